//! `read`: the lines of a file, numbered, within stated limits (spec executor 10.1).

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use rustix::fs::Stat;

use super::schema::{self, Argument};
use super::{Arguments, Call, Definition, Effect, Failure, Settings, Tool};
use crate::os::cancel::Cancel;
use crate::workspace::{self, RelPath, Workspace};

/// Lines shown where a call does not say.
const DEFAULT_LIMIT: u64 = 2000;

/// A line is cut after this many bytes.
const MAX_LINE: usize = 64 * 1024;

/// No line is begun once this many bytes are shown.
const MAX_OUTPUT: usize = 200 * 1024;

/// The largest file that is read on the thread that read the call.
const MAX_PROMPT: i64 = 256 * 1024;

/// How much is read between two looks at the cancel switch.
const CHUNK: u64 = 256 * 1024;

/// The `read` tool.
pub(super) struct Read {
    workspace: Arc<Workspace>,
    /// The most bytes of a file that are looked at.
    scan_limit: u64,
    definition: Definition,
}

impl Read {
    pub(super) fn new(workspace: &Arc<Workspace>, settings: &Settings) -> Self {
        let kib = settings.max_read_bytes.div_ceil(1024);
        let definition = Definition {
            name: "read",
            description: format!(
                "Read a text file. Answers with its lines, each with its number and a tab before it. At most {DEFAULT_LIMIT} lines \
                 unless limit says otherwise, and at most {} KiB of text per call: use offset to go on. Only the first {kib} KiB of a \
                 file can be read.",
                MAX_OUTPUT / 1024
            ),
            input_schema: schema::object(vec![
                Argument::required("path", "string", "the file, relative to the workspace or absolute in it"),
                Argument::optional("offset", "integer", "the first line to show, counted from 1 (default 1)"),
                Argument::optional("limit", "integer", format!("how many lines to show (default {DEFAULT_LIMIT})")),
            ]),
            read_only: true,
            effect: Effect::Looks,
            sequential: false,
        };
        Self { workspace: Arc::clone(workspace), scan_limit: settings.max_read_bytes, definition }
    }

    fn wanted(&self, arguments: &Arguments) -> Result<(RelPath, Selection), Failure> {
        arguments.known(&["path", "offset", "limit", schema::STAMP])?;
        arguments.optional_string(schema::STAMP)?;
        // Zero is how a client says that it says nothing.
        let count =
            |key: &str, default: u64| Ok::<_, Failure>(arguments.count(key)?.filter(|n| *n > 0).unwrap_or(default));
        let selection = Selection { first: count("offset", 1)?, limit: count("limit", DEFAULT_LIMIT)? };
        Ok((self.workspace.path(arguments.string("path")?)?, selection))
    }

    fn show(
        &self,
        (file, stat): (File, Stat),
        path: &RelPath,
        selection: Selection,
        cancel: &Cancel,
    ) -> Result<String, Failure> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let mut lines = Lines::new(selection, size);
        // Room for the whole file where that is small. One that says it has no size may be procfs's and have content all the same.
        let room = size.clamp(4096, CHUNK).min(self.scan_limit);
        let mut buffer = vec![0; usize::try_from(room).unwrap_or(0)];
        let mut scanned: u64 = 0;
        let mut ended = false;
        while !ended && scanned < self.scan_limit {
            if cancel.is_cancelled() {
                return Err(Failure::Cancelled);
            }
            let left = usize::try_from(self.scan_limit - scanned).unwrap_or(usize::MAX);
            let room = left.min(buffer.len());
            let chunk = match (&file).read(buffer.get_mut(..room).unwrap_or_default()) {
                Ok(count) => buffer.get(..count).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(workspace::Error::System("read", path.into(), error).into()),
            };
            lines.take(chunk);
            scanned = scanned.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
            // What a file gained since it was opened is not waited for, so one that grows is read to an end too.
            ended = chunk.is_empty() || (size > 0 && scanned >= size);
        }
        Ok(lines.finish((!ended).then_some(self.scan_limit)))
    }
}

impl Tool for Read {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn run(&self, arguments: &Arguments, call: &Call<'_>) -> Result<String, Failure> {
        let (path, selection) = self.wanted(arguments)?;
        self.show(self.workspace.open_file(&path)?, &path, selection, call.cancel)
    }

    fn run_now(&self, arguments: &Arguments, call: &Call<'_>) -> Option<Result<String, Failure>> {
        let (path, selection) = match self.wanted(arguments) {
            Ok(wanted) => wanted,
            Err(failure) => return Some(Err(failure)),
        };
        match self.workspace.open_file_now(&path)? {
            Ok((_, stat)) if stat.st_size > MAX_PROMPT => None,
            Ok(opened) => Some(self.show(opened, &path, selection, call.cancel)),
            Err(error) => Some(Err(error.into())),
        }
    }
}

/// The lines of a piece, each with its end; the last one may have none.
fn lines_of(chunk: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = chunk;
    std::iter::from_fn(move || {
        let length = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
        let (line, others) = rest.split_at_checked(length)?;
        rest = others;
        (!line.is_empty()).then_some(line)
    })
}

/// Which lines are asked for.
#[derive(Clone, Copy)]
struct Selection {
    /// Counted from 1.
    first: u64,
    limit: u64,
}

/// Takes a file in pieces and keeps the lines that are asked for. Holds no more than it will show.
struct Lines {
    first: u64,
    last: u64,
    size: u64,
    /// The number of the line that comes next or is being taken.
    number: u64,
    /// Whether bytes of it have been seen.
    begun: bool,
    /// Where its text begins in `shown`, when it is shown.
    text: Option<usize>,
    /// How many bytes of it were cut off.
    cut: usize,
    /// Set to the first line not shown once enough are; from there lines are only counted.
    next: Option<u64>,
    shown: Vec<u8>,
}

impl Lines {
    fn new(selection: Selection, size: u64) -> Self {
        let room = usize::try_from(size.saturating_add(size / 4)).unwrap_or(MAX_OUTPUT).min(MAX_OUTPUT) + 256;
        Self {
            first: selection.first,
            last: selection.first.saturating_add(selection.limit.saturating_sub(1)),
            size,
            number: 1,
            begun: false,
            text: None,
            cut: 0,
            next: None,
            shown: Vec::with_capacity(room),
        }
    }

    fn take(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        for line in lines_of(chunk) {
            if self.next.is_some() {
                break;
            }
            rest = rest.get(line.len()..).unwrap_or_default();
            let (text, ended) = match line.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (line, false),
            };
            if self.number >= self.first {
                self.show(text);
            }
            self.begun = true;
            if ended {
                self.end_line();
            }
        }
        if let Some(last) = rest.last() {
            let ends = rest.iter().filter(|byte| **byte == b'\n').count();
            self.number = self.number.saturating_add(u64::try_from(ends).unwrap_or(u64::MAX));
            self.begun = *last != b'\n';
        }
    }

    fn show(&mut self, text: &[u8]) {
        let start = match self.text {
            Some(start) => start,
            None => {
                self.push_number();
                *self.text.insert(self.shown.len())
            }
        };
        let room = MAX_LINE.saturating_sub(self.shown.len() - start);
        let (kept, cut) = text.split_at(room.min(text.len()));
        self.shown.extend_from_slice(kept);
        self.cut += cut.len();
    }

    /// The line's number, right-aligned in six columns, and a tab. By hand, since two thousand formatted ones cost more than all else.
    fn push_number(&mut self) {
        let mut digits = [b' '; 20];
        let mut from = digits.len();
        let mut number = self.number;
        while let Some(digit) = from.checked_sub(1).and_then(|at| digits.get_mut(at)) {
            *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
            from -= 1;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.shown.extend_from_slice(digits.get(from.min(14)..).unwrap_or_default());
        self.shown.push(b'\t');
    }

    fn end_line(&mut self) {
        if let Some(start) = self.text.take() {
            if self.cut > 0 {
                self.shown.truncate(self.shown.len() - partial_character(&self.shown));
                let cut = std::mem::take(&mut self.cut);
                self.shown.extend_from_slice(format!(" [line cut here: {cut} more bytes]").as_bytes());
            } else {
                while self.shown.len() > start && self.shown.last() == Some(&b'\r') {
                    self.shown.pop();
                }
            }
            self.shown.push(b'\n');
            if self.number == self.last || self.shown.len() >= MAX_OUTPUT {
                self.next = Some(self.number + 1);
            }
        }
        self.number = self.number.saturating_add(1);
        self.begun = false;
    }

    /// The answer. `limit` is the scan limit in bytes, where the file goes on behind it.
    fn finish(mut self, limit: Option<u64>) -> String {
        if self.begun {
            self.end_line();
        }
        let total = self.number - 1;
        if self.shown.is_empty() {
            return match limit {
                Some(limit) => format!(
                    "(offset {} is beyond the first {} of the file, which is all of it that can be read)",
                    self.first,
                    Bytes(limit)
                ),
                None if total == 0 => "(the file is empty)".to_owned(),
                None => format!("(offset {} is past the end: the file has {})", self.first, Count(total)),
            };
        }
        // Lossy only where the file is: text costs no second copy.
        let mut answer = String::from_utf8(self.shown)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        if let Some(next) = self.next
            && next <= total
        {
            let least = if limit.is_some() { "at least " } else { "" };
            answer += &format!("({least}{} more; go on with offset {next})\n", Count(total - next + 1));
        }
        if let Some(limit) = limit {
            let size = if self.size > limit { format!(" of {}", Bytes(self.size)) } else { String::new() };
            answer += &format!("(only the first {}{size} can be read; the file goes on)\n", Bytes(limit));
        }
        answer
    }
}

/// How many bytes at the end of `bytes` begin a UTF-8 character that does not end there.
fn partial_character(bytes: &[u8]) -> usize {
    for (back, byte) in bytes.iter().rev().take(3).enumerate() {
        let length = match byte {
            0x80..0xc0 => continue,
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0.. => 4,
            _ => 1,
        };
        return if length > back + 1 { back + 1 } else { 0 };
    }
    0
}

/// A number of lines, for a sentence.
struct Count(u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { "line" } else { "lines" })
    }
}

/// A number of bytes, for a sentence.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1024 => write!(f, "{} KiB", bytes.div_ceil(1024)),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::scratch::Scratch;
    use crate::tools::testing::{arguments, call, open};

    fn tool(scratch: &Scratch, max_read_bytes: u64) -> Read {
        Read::new(&open(scratch), &Settings { max_read_bytes })
    }

    /// What a call answers; by both ways, where there are two.
    fn read(tool: &Read, text: &str) -> String {
        let given = arguments(text);
        let patient = call(|call| tool.run(&given, call)).unwrap();
        if let Some(prompt) = call(|call| tool.run_now(&given, call)) {
            assert_eq!(prompt.unwrap(), patient);
        }
        patient
    }

    #[test]
    fn lines_are_numbered() {
        let scratch = Scratch::new();
        for (content, wanted) in [
            ("hello\n", "     1\thello\n"),
            ("a\nb", "     1\ta\n     2\tb\n"),
            ("a\r\n\r\n\nb\r", "     1\ta\n     2\t\n     3\t\n     4\tb\n"),
            ("\ta \n", "     1\t\ta \n"),
            ("\n", "     1\t\n"),
            ("", "(the file is empty)"),
        ] {
            scratch.file("file", content);
            assert_eq!(read(&tool(&scratch, 1 << 20), r#"{"path":"file"}"#), wanted, "{content:?}");
        }
    }

    #[test]
    fn offset_and_limit_select() {
        let scratch = Scratch::new();
        let content: String = (1..=1_000_010).map(|number| format!("{number}\n")).collect();
        scratch.file("file", content);
        let tool = tool(&scratch, 16 << 20);
        for (given, wanted) in [
            (r#""offset":2,"limit":2"#, "     2\t2\n     3\t3\n(1000007 lines more; go on with offset 4)\n"),
            (
                r#""offset":999999,"limit":3"#,
                "999999\t999999\n1000000\t1000000\n1000001\t1000001\n(9 lines more; go on with offset 1000002)\n",
            ),
            (r#""offset":1000009,"limit":1"#, "1000009\t1000009\n(1 line more; go on with offset 1000010)\n"),
            (r#""offset":1000010"#, "1000010\t1000010\n"),
            (r#""offset":1000011"#, "(offset 1000011 is past the end: the file has 1000010 lines)"),
            (
                r#""offset":18446744073709551615,"limit":18446744073709551615"#,
                "(offset 18446744073709551615 is past the end: the file has 1000010 lines)",
            ),
        ] {
            assert_eq!(read(&tool, &format!(r#"{{"path":"file",{given}}}"#)), wanted, "{given}");
        }
        let shown = read(&tool, r#"{"path":"file","offset":0,"limit":0,"dax_stamp":"any"}"#);
        assert_eq!(shown.lines().count(), 2001);
        assert!(shown.ends_with("  2000\t2000\n(998010 lines more; go on with offset 2001)\n"), "{shown}");
    }

    /// However the chunks fall, the answer is that of the whole text.
    #[test]
    fn pieces_make_no_difference() {
        let content = b"one\r\n\r\ntwo \xc3\xa9\xff\n\nlast\r";
        for first in 1..7 {
            for limit in 1..7 {
                let selection = Selection { first, limit };
                let mut whole = Lines::new(selection, 0);
                whole.take(content);
                let whole = whole.finish(None);
                for size in 1..content.len() {
                    let mut pieces = Lines::new(selection, 0);
                    content.chunks(size).for_each(|chunk| pieces.take(chunk));
                    assert_eq!(pieces.finish(None), whole, "from {first}, {limit} lines, in pieces of {size}");
                }
            }
        }
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let scratch = Scratch::new();
        let tool = tool(&scratch, 1 << 20);
        for (line, kept) in [
            ("x".repeat(MAX_LINE), MAX_LINE),
            ("x".repeat(MAX_LINE + 5), MAX_LINE),
            (format!("a{}", "é".repeat(MAX_LINE)), MAX_LINE - 1),
            (format!("a{}", "𝄞".repeat(MAX_LINE)), MAX_LINE - 3),
        ] {
            scratch.file("file", format!("{line}\nnext\n"));
            let shown = read(&tool, r#"{"path":"file"}"#);
            let mark = match line.len() - MAX_LINE {
                0 => String::new(),
                cut => format!(" [line cut here: {cut} more bytes]"),
            };
            assert!(shown == format!("     1\t{}{mark}\n     2\tnext\n", &line[..kept]), "{}", shown.len());
        }
    }

    #[test]
    fn output_ends_after_200_kib() {
        let scratch = Scratch::new();
        scratch.file("file", format!("{}\n", "x".repeat(1000)).repeat(1000));
        let shown = read(&tool(&scratch, 1 << 20), r#"{"path":"file"}"#);
        assert!(shown.len() < MAX_OUTPUT + 2000, "{}", shown.len());
        assert!(shown.ends_with("(796 lines more; go on with offset 205)\n"), "{}", &shown[shown.len() - 100..]);
    }

    #[test]
    fn nothing_beyond_the_scan_limit_is_read() {
        let scratch = Scratch::new();
        scratch.file("file", "line\n".repeat(1000));
        let tool = tool(&scratch, 2048);
        let shown = read(&tool, r#"{"path":"file","offset":409}"#);
        assert_eq!(shown, "   409\tline\n   410\tlin\n(only the first 2 KiB of 5 KiB can be read; the file goes on)\n");
        let shown = read(&tool, r#"{"path":"file","limit":1}"#);
        assert_eq!(
            shown,
            "     1\tline\n(at least 409 lines more; go on with offset 2)\n(only the first 2 KiB of 5 KiB can be read; the file goes on)\n"
        );
        let shown = read(&tool, r#"{"path":"file","offset":411}"#);
        assert_eq!(shown, "(offset 411 is beyond the first 2 KiB of the file, which is all of it that can be read)");
        // A file of just the limit is whole.
        scratch.file("file", "x".repeat(2048));
        assert_eq!(read(&tool, r#"{"path":"file"}"#).len(), 7 + 2048 + 1);
    }

    #[test]
    fn a_sparse_file_costs_no_more_than_the_limit() {
        let scratch = Scratch::new();
        let file = File::create(scratch.inside("sparse")).unwrap();
        file.set_len(10 << 30).unwrap();
        let shown = read(&tool(&scratch, 1 << 20), r#"{"path":"sparse"}"#);
        assert!(shown.len() < MAX_LINE + 200, "{}", shown.len());
        assert!(shown.ends_with("(only the first 1024 KiB of 10485760 KiB can be read; the file goes on)\n"));
    }

    #[test]
    fn a_file_that_grows_while_it_is_read_comes_to_an_end() {
        use std::io::Write;
        use std::sync::atomic::{AtomicBool, Ordering};
        let scratch = Scratch::new();
        let mut file = File::create(scratch.inside("log")).unwrap();
        file.write_all(b"line\n").unwrap();
        let tool = tool(&scratch, 1 << 30);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Not without end: a disk is small where a test has lost its way.
                for _ in 0..4_000 {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    file.write_all(&b"line\n".repeat(100)).unwrap();
                }
            });
            for _ in 0..5 {
                let shown = call(|call| tool.run(&arguments(r#"{"path":"log","limit":3}"#), call)).unwrap();
                assert!(shown.starts_with("     1\tline\n"), "{shown}");
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such() {
        let scratch = Scratch::new();
        scratch.file("file", b"a\xff\xfeb\nc\0d\n");
        let shown = read(&tool(&scratch, 1 << 20), r#"{"path":"file"}"#);
        assert_eq!(shown, "     1\ta\u{fffd}\u{fffd}b\n     2\tc\0d\n");
    }

    /// What procfs makes up has no size until it is read.
    #[test]
    fn a_file_that_says_it_is_empty_is_read_all_the_same() {
        let workspace = Arc::new(Workspace::open(std::path::Path::new("/proc"), Default::default()).unwrap());
        let tool = Read::new(&workspace, &Settings { max_read_bytes: 1 << 20 });
        assert!(read(&tool, r#"{"path":"self/status","limit":1}"#).starts_with("     1\tName:\t"));
    }

    #[test]
    fn refusals_are_sentences() {
        let scratch = Scratch::new();
        scratch.file("d/a", "a");
        scratch.link("../canary", "out");
        let tool = tool(&scratch, 1 << 20);
        for (given, wanted) in [
            (r#"{"path":""}"#, "path is required"),
            (r#"{}"#, "invalid arguments: \"path\" is required"),
            (r#"{"path":7}"#, "invalid arguments: \"path\" must be a string, not 7"),
            (
                r#"{"path":"a","offset":-1}"#,
                "invalid arguments: \"offset\" must be a whole number of at least 0, not -1",
            ),
            (r#"{"path":"a","Limit":1}"#, "invalid arguments: \"Limit\" must be written \"limit\""),
            (r#"{"path":"a","dax_stamp":1}"#, "invalid arguments: \"dax_stamp\" must be a string, not 1"),
            (r#"{"path":"d"}"#, "not a regular file: d is a directory"),
            (r#"{"path":"none"}"#, "no such file or directory: none"),
            (r#"{"path":"d/a/b"}"#, "not a directory: d/a"),
            (r#"{"path":"../canary"}"#, "path is outside the workspace: ../canary"),
            (r#"{"path":"out"}"#, "path is outside the workspace: out"),
            (r#"{"path":"a\u0000b"}"#, "path holds a NUL character: a\\u{0}b"),
        ] {
            let given = arguments(given);
            let error = call(|call| tool.run(&given, call)).unwrap_err().to_string();
            assert_eq!(error, wanted);
            if let Some(prompt) = call(|call| tool.run_now(&given, call)) {
                assert_eq!(prompt.unwrap_err().to_string(), wanted);
            }
        }
    }

    #[test]
    fn a_cancelled_call_says_so_and_a_large_file_is_left_to_another_thread() {
        let scratch = Scratch::new();
        scratch.file("large", "x".repeat(256 * 1024 + 1));
        let tool = tool(&scratch, 1 << 20);
        let given = arguments(r#"{"path":"large"}"#);
        call(|call| {
            assert!(tool.run_now(&given, call).is_none());
            call.cancel.cancel();
            assert!(matches!(tool.run(&given, call), Err(Failure::Cancelled)));
        });
    }

    #[test]
    fn the_description_states_the_limit() {
        let scratch = Scratch::new();
        let definition = tool(&scratch, 2 << 20);
        assert!(definition.definition().description.contains("2048 KiB"));
    }
}
