//! `edit`: one text in a file exchanged for another (spec executor 10.3), with an answer that helps when it does not fit.

use std::fmt;
use std::io::Read as _;
use std::sync::Arc;

use super::nearest::nearest;
use super::schema::{self, Argument};
use super::write::lock;
use super::{Arguments, Call, Definition, Effect, Failure, Settings, Tool};
use crate::workspace::{self, RelPath, Workspace};

/// How many places of an ambiguous text are named.
const MAX_PLACES: usize = 10;

/// How many bytes an edit may add to a file beside one `new_string`: a short text exchanged everywhere for a long one multiplies.
const MAX_GROWTH: usize = 16 * 1024 * 1024;

/// Why a text was not exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mismatch {
    /// There is nothing to look for.
    Empty,
    /// The text is nowhere.
    NotFound,
    /// The text is in more than one place, and not all are meant. `lines` has where the first ten begin, counted from 1.
    Several {
        /// How many places, apart from each other; 2 where two overlap.
        count: usize,
        /// The lines on which the first of them begin.
        lines: Vec<usize>,
    },
    /// The result would be larger than an edit may make a file.
    TooLarge,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("old_string is empty"),
            Self::NotFound => f.write_str("old_string was not found"),
            Self::Several { count, lines } => {
                write!(f, "old_string matches {count} times, on ")?;
                for (index, line) in lines.iter().enumerate() {
                    write!(f, "{}{line}", if index == 0 { "lines " } else { ", " })?;
                }
                let more = if *count > lines.len() { " and more" } else { "" };
                write!(f, "{more}: make it longer so that it matches once, or set replace_all")
            }
            Self::TooLarge => f.write_str("the result would be too large: replace_all with a shorter new_string"),
        }
    }
}

/// Exchanges `old` for `new` in `text`: the one place where it is, or with `replace_all` every place from the start on. All other bytes
/// stay as they are, be they UTF-8 or not, and line ends are not converted.
///
/// A text that overlaps itself (`aa` in `aaa`) is in two places. Linear in the text but for the places asked about.
pub fn apply(text: &[u8], old: &str, new: &str, replace_all: bool) -> Result<Vec<u8>, Mismatch> {
    if old.is_empty() {
        return Err(Mismatch::Empty);
    }
    let count = places(text, old).count();
    let first = places(text, old).next().ok_or(Mismatch::NotFound)?;
    if !replace_all {
        let mut found: Vec<usize> = places(text, old).take(MAX_PLACES).collect();
        if count == 1 {
            // One step on, past the first character, an overlapping one would be found.
            let step = first + old.chars().next().map_or(1, char::len_utf8);
            found.extend(text.get(step..).and_then(|rest| places(rest, old).next()).map(|place| step + place));
        }
        if found.len() > 1 {
            let lines = found.iter().map(|place| line_of(text, *place)).collect();
            return Err(Mismatch::Several { count: count.max(2), lines });
        }
    }
    let limit = text.len().saturating_add(new.len()).saturating_add(MAX_GROWTH);
    let length = count.checked_mul(new.len()).and_then(|added| added.checked_add(text.len() - count * old.len()));
    let length = length.filter(|length| *length <= limit).ok_or(Mismatch::TooLarge)?;
    let mut result = Vec::with_capacity(length);
    let mut from = 0;
    for place in places(text, old) {
        result.extend_from_slice(text.get(from..place).unwrap_or_default());
        result.extend_from_slice(new.as_bytes());
        from = place + old.len();
    }
    result.extend_from_slice(text.get(from..).unwrap_or_default());
    Ok(result)
}

/// Where `old` is in `text`, from the start on and apart from each other.
///
/// A text that is not UTF-8 is searched in its parts that are: `old` is UTF-8, and no part of a character it begins or ends with can
/// belong to a broken one, so it lies whole in one of them.
fn places<'a>(text: &'a [u8], old: &'a str) -> impl Iterator<Item = usize> + 'a {
    let mut start = 0;
    text.utf8_chunks().flat_map(move |chunk| {
        let here = start;
        start += chunk.valid().len() + chunk.invalid().len();
        chunk.valid().match_indices(old).map(move |(place, _)| here + place)
    })
}

/// The line a place is on, counted from 1.
fn line_of(text: &[u8], place: usize) -> usize {
    1 + text.get(..place).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count()
}

/// The `edit` tool.
pub(super) struct Edit {
    workspace: Arc<Workspace>,
    /// The most bytes a file may have to be edited.
    limit: u64,
    definition: Definition,
}

impl Edit {
    pub(super) fn new(workspace: &Arc<Workspace>, settings: &Settings) -> Self {
        let definition = Definition {
            name: "edit",
            description: format!(
                "Exchange one text in a file for another. old_string must be in the file exactly once, character for character with \
                 white space and line ends, without the line numbers that read shows; with replace_all it is exchanged everywhere. Files \
                 of up to {} KiB.",
                settings.max_read_bytes.div_ceil(1024)
            ),
            input_schema: schema::object(vec![
                Argument::required("path", "string", "the file, relative to the workspace or absolute in it"),
                Argument::required("old_string", "string", "the text to be exchanged"),
                Argument::required("new_string", "string", "the text to put in its place"),
                Argument::optional(
                    "replace_all",
                    "boolean",
                    "exchange every place where old_string is (default false)",
                ),
            ]),
            read_only: false,
            effect: Effect::ChangesFiles,
            sequential: false,
        };
        Self { workspace: Arc::clone(workspace), limit: settings.max_read_bytes, definition }
    }

    /// A file's whole content, when that is within the limit.
    fn content(&self, path: &RelPath) -> Result<Vec<u8>, Failure> {
        let (file, stat) = self.workspace.open_file(path)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let too_large = || {
            let kib = self.limit.div_ceil(1024);
            Failure::Refused(format!("{path} is too large to be edited: more than {kib} KiB"))
        };
        if size > self.limit {
            return Err(too_large());
        }
        let mut content = Vec::with_capacity(usize::try_from(size.saturating_add(1)).unwrap_or(0));
        // One byte more than allowed shows a file that has grown.
        file.take(self.limit.saturating_add(1))
            .read_to_end(&mut content)
            .map_err(|error| workspace::Error::System("read", path.into(), error))?;
        if u64::try_from(content.len()).unwrap_or(u64::MAX) > self.limit {
            return Err(too_large());
        }
        Ok(content)
    }
}

impl Tool for Edit {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn run(&self, arguments: &Arguments, call: &Call<'_>) -> Result<String, Failure> {
        arguments.known(&["path", "old_string", "new_string", "replace_all", schema::STAMP])?;
        arguments.optional_string(schema::STAMP)?;
        let path = self.workspace.path(arguments.string("path")?)?;
        let old = arguments.string("old_string")?;
        let new = arguments.string("new_string")?;
        let replace_all = arguments.flag("replace_all")?;
        // Held from the look to the write, so that no other call's change is lost between them.
        let guard = lock(&self.workspace, call.cancel)?;
        let text = self.content(&path)?;
        let edited = apply(&text, old, new, replace_all).map_err(|mismatch| {
            Failure::Refused(match mismatch {
                Mismatch::NotFound => format!("{mismatch} in {path}. {}", nearest(&text, old)),
                other => format!("{other} ({path})"),
            })
        })?;
        if call.cancel.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        guard.replace(&path, &edited)?;
        Ok(format!("edited {path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::scratch::Scratch;
    use crate::tools::testing::{arguments, call, open};
    use std::fs;

    fn edit(scratch: &Scratch, text: &str) -> Result<String, Failure> {
        let tool = Edit::new(&open(scratch), &Settings { max_read_bytes: 1 << 20 });
        call(|call| tool.run(&arguments(text), call))
    }

    /// `apply` as one would write it on a slate: every position tried.
    fn reference(text: &[u8], old: &str, new: &str, replace_all: bool) -> Result<Vec<u8>, Mismatch> {
        let old = old.as_bytes();
        if old.is_empty() {
            return Err(Mismatch::Empty);
        }
        let everywhere: Vec<usize> = (0..text.len()).filter(|place| text[*place..].starts_with(old)).collect();
        let mut apart: Vec<usize> = Vec::new();
        for place in &everywhere {
            if apart.last().is_none_or(|last| last + old.len() <= *place) {
                apart.push(*place);
            }
        }
        let line = |place: &usize| 1 + text[..*place].iter().filter(|byte| **byte == b'\n').count();
        match (everywhere.len(), replace_all) {
            (0, _) => return Err(Mismatch::NotFound),
            (1, _) | (_, true) => {}
            _ => {
                let shown = if apart.len() > 1 { &apart[..apart.len().min(10)] } else { &everywhere[..2] };
                return Err(Mismatch::Several { count: apart.len().max(2), lines: shown.iter().map(line).collect() });
            }
        }
        let mut result = Vec::new();
        let mut place = 0;
        while place < text.len() {
            if apart.contains(&place) {
                result.extend(new.as_bytes());
                place += old.len();
            } else {
                result.push(text[place]);
                place += 1;
            }
        }
        Ok(result)
    }

    #[test]
    fn apply_does_what_the_reference_does() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % below
        };
        let letters: [&[u8]; 9] = [b"a", b"a", b"b", b"\n", b"\r\n", "é".as_bytes(), b"\xc3", b"\xa9", b"\xf0\x9d\x84"];
        let words = ["a", "aa", "ab", "aba", "é", "éé", "a\n", "\n", "\r\n", "b\r", "", "\u{fffd}", "\u{1d11e}"];
        let mut outcomes = [0; 4];
        for _ in 0..100_000 {
            let text: Vec<u8> = (0..random(12)).flat_map(|_| letters[random(letters.len())].to_vec()).collect();
            let (old, new) = (words[random(words.len())], words[random(words.len())]);
            let all = random(2) == 1;
            let wanted = reference(&text, old, new, all);
            assert_eq!(apply(&text, old, new, all), wanted, "{text:?} {old:?} {new:?} {all}");
            outcomes[match wanted {
                Ok(_) => 0,
                Err(Mismatch::NotFound) => 1,
                Err(Mismatch::Several { .. }) => 2,
                Err(_) => 3,
            }] += 1;
        }
        assert!(outcomes.iter().all(|count| *count > 1000), "hardly tried: {outcomes:?}");
    }

    #[test]
    fn an_edit_that_multiplies_a_file_is_refused() {
        let text = "a".repeat(1 << 20);
        let new = "b".repeat(1 << 20);
        assert_eq!(apply(text.as_bytes(), "a", &new, true), Err(Mismatch::TooLarge));
        assert_eq!(apply(b"a", "a", &new, true).unwrap().len(), 1 << 20);
        assert_eq!(apply(text.as_bytes(), "a", "bb", true).unwrap().len(), 2 << 20);
    }

    #[test]
    fn the_one_place_is_exchanged_and_nothing_else() {
        let scratch = Scratch::new();
        let file = scratch.file("file", b"\xff one\r\ntwo\r\n\xfe");
        assert_eq!(edit(&scratch, r#"{"path":"file","old_string":"two","new_string":"2"}"#).unwrap(), "edited file");
        assert_eq!(fs::read(&file).unwrap(), b"\xff one\r\n2\r\n\xfe");
        assert_eq!(
            edit(&scratch, r#"{"path":"file","old_string":" one\r\n","new_string":""}"#).unwrap(),
            "edited file"
        );
        assert_eq!(fs::read(&file).unwrap(), b"\xff2\r\n\xfe");
        fs::write(&file, "a b a b a").unwrap();
        let all = r#"{"path":"file","old_string":"a","new_string":"aa","replace_all":true}"#;
        assert_eq!(edit(&scratch, all).unwrap(), "edited file");
        assert_eq!(fs::read(&file).unwrap(), b"aa b aa b aa");
        assert_eq!(scratch.names("."), ["file"]);
    }

    #[test]
    fn what_a_link_leads_to_is_edited() {
        let scratch = Scratch::new();
        let file = scratch.file("d/file", "one");
        scratch.link("d/file", "link");
        assert_eq!(edit(&scratch, r#"{"path":"link","old_string":"one","new_string":"two"}"#).unwrap(), "edited link");
        assert_eq!(fs::read(&file).unwrap(), b"two");
        assert!(fs::symlink_metadata(scratch.inside("link")).unwrap().is_symlink());
    }

    #[test]
    fn refusals_are_sentences_and_change_nothing() {
        let scratch = Scratch::new();
        let content = "one\ntwo\n".repeat(12) + "aaa\n    three\n";
        scratch.file("file", &content);
        scratch.file("large", vec![b'x'; (1 << 20) + 1]);
        scratch.link("../canary", "out");
        fs::create_dir(scratch.inside("d")).unwrap();
        for (given, wanted) in [
            (r#"{"path":"file","old_string":"","new_string":"x"}"#, "old_string is empty (file)"),
            (r#"{"path":"file","old_string":"x"}"#, "invalid arguments: \"new_string\" is required"),
            (
                r#"{"path":"file","old_string":"x","new_string":"y","replace_all":"yes"}"#,
                "invalid arguments: \"replace_all\" must be true or false, not a string",
            ),
            (
                r#"{"path":"file","old_string":"two","new_string":"x"}"#,
                "old_string matches 12 times, on lines 2, 4, 6, 8, 10, 12, 14, 16, 18, 20 and more: make it longer so that it matches once, or set replace_all (file)",
            ),
            (
                r#"{"path":"file","old_string":"aa","new_string":"x"}"#,
                "old_string matches 2 times, on lines 25, 25: make it longer so that it matches once, or set replace_all (file)",
            ),
            (
                r#"{"path":"file","old_string":"\tthree\n","new_string":"x"}"#,
                "old_string was not found in file. It matches at line 26 but for white space:\n    26\t    three",
            ),
            (
                r#"{"path":"large","old_string":"x","new_string":"y"}"#,
                "large is too large to be edited: more than 1024 KiB",
            ),
            (r#"{"path":"none","old_string":"x","new_string":"y"}"#, "no such file or directory: none"),
            (r#"{"path":"d","old_string":"x","new_string":"y"}"#, "not a regular file: d is a directory"),
            (r#"{"path":"out","old_string":"out","new_string":"in"}"#, "path is outside the workspace: out"),
            (
                r#"{"path":"../canary","old_string":"out","new_string":"in"}"#,
                "path is outside the workspace: ../canary",
            ),
        ] {
            assert_eq!(edit(&scratch, given).unwrap_err().to_string(), wanted, "{given}");
        }
        assert_eq!(fs::read_to_string(scratch.inside("file")).unwrap(), content);
        assert_eq!(fs::read_to_string(scratch.outside("canary")).unwrap(), "outside");
    }

    /// Each edit reads what the one before wrote: without the lock over both, changes are lost.
    #[test]
    fn edits_from_several_sessions_lose_nothing() {
        let scratch = Scratch::new();
        let words: Vec<String> = (0..80).map(|number| format!("<{number}>")).collect();
        let file = scratch.file("file", words.concat());
        let workspace = open(&scratch);
        std::thread::scope(|scope| {
            for words in words.chunks(20) {
                let tool = Edit::new(&workspace, &Settings { max_read_bytes: 1 << 20 });
                scope.spawn(move || {
                    for word in words {
                        let given = arguments(&format!(r#"{{"path":"file","old_string":"{word}","new_string":"."}}"#));
                        call(|call| tool.run(&given, call)).unwrap();
                    }
                });
            }
        });
        assert_eq!(fs::read_to_string(file).unwrap(), ".".repeat(80));
    }
}
