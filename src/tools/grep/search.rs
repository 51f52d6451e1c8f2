//! The search of one file: reading it within the limits, and the lines of it that match.

use std::cmp::Ordering;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grep_matcher::{LineMatchKind, Matcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use rustix::io::Errno;

use crate::os::cancel::Cancel;
use crate::tools::Failure;
use crate::tools::smallest::Item;
use crate::tools::walk::name_order;

/// Larger files are not searched.
pub(super) const MAX_FILE: usize = 2 * 1024 * 1024;

/// A NUL within this many bytes of its beginning makes a file binary.
const HEAD: usize = 8000;

/// How much of a file is read before it is known to be text, in bytes.
const FIRST_READ: usize = 64 * 1024;

/// The most bytes of a line that are shown.
const MAX_TEXT: usize = 500;

/// A file is searched in pieces of whole lines, each meant to take this long, so that a cancel is noticed between them.
const PACE: Duration = Duration::from_millis(2);

/// The bounds of a piece, in bytes. The smallest is what a pattern begins with: one with thousands of counted repetitions takes 10 us
/// for a byte.
const PIECES: (usize, usize) = (1024, 256 * 1024);

/// A line longer than this many bytes is searched only if that is not expected to take longer than [`PATIENCE`], since nothing can
/// interrupt it.
const LONG_LINE: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_millis(250);

/// What a pattern may cost: its text, the automaton compiled from it, and for each thread the cache of states it reaches.
const MAX_PATTERN: usize = 16 * 1024;
const MAX_AUTOMATON: usize = 10 * 1024 * 1024;
const MAX_STATES: usize = 10 * 1024 * 1024;

/// Compiles a pattern that is matched within lines, in time linear in their length.
pub(super) fn compile(pattern: &str, ignore_case: bool) -> Result<RegexMatcher, Failure> {
    let invalid =
        |why: String| Failure::InvalidArguments(format!("\"pattern\" is not a valid regular expression: {why}"));
    if pattern.len() > MAX_PATTERN {
        return Err(invalid(format!("it is longer than {MAX_PATTERN} bytes")));
    }
    // `^` and `$` are the line's. With CRLF a carriage return at a line's end is not part of it, for `$` neither.
    let built = RegexMatcherBuilder::new()
        .case_insensitive(ignore_case)
        .multi_line(true)
        .crlf(true)
        .size_limit(MAX_AUTOMATON)
        .dfa_size_limit(MAX_STATES)
        .build(pattern);
    built.map_err(|error| match error.kind() {
        grep_regex::ErrorKind::NotAllowed(_) => {
            invalid("it asks for a line break, and a match lies within one line".to_owned())
        }
        // The last line says what is wrong; those before repeat the pattern.
        _ => invalid(error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()),
    })
}

/// A line that matches.
#[derive(Clone)]
pub(super) struct Hit {
    /// The file, relative to the search's start.
    pub(super) path: Arc<[u8]>,
    /// Its number from 1.
    pub(super) line: u64,
    /// The line without its end, cut where it is long.
    pub(super) text: Box<str>,
}

impl Ord for Hit {
    fn cmp(&self, other: &Self) -> Ordering {
        name_order(&self.path, &other.path).then(self.line.cmp(&other.line))
    }
}

impl PartialOrd for Hit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Hit {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Hit {}

impl Item for Hit {
    fn size(&self) -> usize {
        // Line number, colons and line break are about 8 bytes.
        self.path.len() + self.text.len() + 8
    }
}

/// What a file turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// It has been read and can be searched.
    Text,
    /// It has a NUL near its beginning.
    Binary,
    /// It is larger than [`MAX_FILE`].
    TooLarge,
}

/// Searches one file after another with buffers that are used again.
pub(super) struct Searcher {
    matcher: RegexMatcher,
    /// How many lines of one file are of interest.
    most: usize,
    /// The file, in the first `filled` bytes.
    buffer: Vec<u8>,
    filled: usize,
    /// How many bytes of text take about [`PACE`] with this pattern.
    piece: usize,
    /// Lines that were left out because they would have taken too long.
    pub(super) skipped: u64,
}

impl Searcher {
    /// A searcher that finds at most `most` lines of a file.
    pub(super) fn new(matcher: &RegexMatcher, most: usize) -> Self {
        // A clone of a matcher has caches of its own, for which threads would otherwise queue.
        Self { matcher: matcher.clone(), most, buffer: vec![0; FIRST_READ], filled: 0, piece: PIECES.0, skipped: 0 }
    }

    /// Reads a file of which `fstat` said that it has `size` bytes.
    pub(super) fn read(&mut self, file: impl AsFd, size: u64) -> Result<Content, Errno> {
        self.filled = 0;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if size > MAX_FILE {
            return Ok(Content::TooLarge);
        }
        // The first read shows what it is, before the rest of a large binary is read for nothing.
        let mut room_end = FIRST_READ;
        while let Some(room) = self.buffer.get_mut(self.filled..room_end) {
            let read = match rustix::io::read(&file, room) {
                Ok(read) => read,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            };
            let head = self.filled.min(HEAD)..(self.filled + read).min(HEAD);
            if self.buffer.get(head).is_some_and(has_nul) {
                return Ok(Content::Binary);
            }
            self.filled += read;
            if self.filled > MAX_FILE {
                return Ok(Content::TooLarge);
            }
            // What the size promised is there, so its end is not asked for: one call less for each file. A file that is made as it
            // is read, as procfs's are, has no size and is read until it ends.
            if read == 0 || (self.filled >= size && size > 0) {
                break;
            }
            if self.filled == self.buffer.len() {
                self.grow(size);
            }
            room_end = self.buffer.len();
        }
        Ok(Content::Text)
    }

    /// Adds to `hits` the lines of the file last read that match, in order. Its name is `path`.
    pub(super) fn search(&mut self, path: &[u8], hits: &mut Vec<Hit>, cancel: &Cancel) {
        let text = self.buffer.get(..self.filled).unwrap_or_default();
        // A byte order mark is no part of the first line.
        let from = if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        let mut lines =
            Lines { path, shared_path: None, text, piece: from, counted: from, line: 1, left: self.most, hits };
        while lines.left > 0 && !cancel.is_cancelled() {
            let rest = text.get(lines.piece..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let piece = whole_lines(rest, self.piece);
            if piece.len() > LONG_LINE && piece.len() > self.piece && !affordable(&self.matcher, piece, cancel) {
                self.skipped += 1;
            } else {
                let began = Instant::now();
                matching_lines(&self.matcher, piece, |start, line| lines.take(start, line));
                self.piece = next_piece(self.piece, piece.len(), began.elapsed());
            }
            lines.piece += piece.len();
        }
    }

    /// Makes room for a file of `size` bytes, and for one byte more, which shows that it has grown beyond that.
    fn grow(&mut self, size: usize) {
        let length = (size + 1).max(self.buffer.len().saturating_mul(2)).min(MAX_FILE + 1);
        // Fresh memory comes zeroed from the system, page by page as it is used; zeroing it again would touch all of it.
        let mut larger = vec![0; length];
        if let (Some(to), Some(from)) = (larger.get_mut(..self.filled), self.buffer.get(..self.filled)) {
            to.copy_from_slice(from);
        }
        self.buffer = larger;
    }
}

/// The beginning of `text` that ends with a line and has `length` bytes: fewer for whole lines, more only for a single one.
fn whole_lines(text: &[u8], length: usize) -> &[u8] {
    let Some(head) = text.get(..length) else { return text };
    let end = match head.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => Some(end),
        None => text.iter().skip(length).position(|byte| *byte == b'\n').map(|beyond| length + beyond),
    };
    end.and_then(|end| text.get(..=end)).unwrap_or(text)
}

/// How long pieces should be from now on, when they should have been `piece` bytes and one of `length` bytes took `took`.
fn next_piece(piece: usize, length: usize, took: Duration) -> usize {
    let fitting = (length as u128).saturating_mul(PACE.as_nanos()) / took.as_nanos().max(1);
    let fitting = usize::try_from(fitting).unwrap_or(usize::MAX).clamp(PIECES.0, PIECES.1);
    // A short piece says nothing good of a long one.
    let most = if length >= piece / 2 { piece.saturating_mul(4) } else { piece };
    fitting.min(most)
}

/// Whether searching a long line takes less than [`PATIENCE`], judged by how long its beginning takes, and a beginning twice as long.
fn affordable(matcher: &RegexMatcher, line: &[u8], cancel: &Cancel) -> bool {
    let mut length = PIECES.0;
    while length < LONG_LINE && !cancel.is_cancelled() {
        let began = Instant::now();
        let found = line.get(..length).is_none_or(|head| matches!(matcher.is_match(head), Ok(true)));
        let took = began.elapsed();
        if took >= PACE {
            return found || took.saturating_mul(u32::try_from(line.len() / length).unwrap_or(u32::MAX)) <= PATIENCE;
        }
        length *= 2;
    }
    !cancel.is_cancelled()
}

/// Without a branch for each byte, so that the compiler takes many at a time.
fn has_nul(bytes: &[u8]) -> bool {
    bytes.chunks(1024).any(|chunk| chunk.iter().fold(false, |found, byte| found | (*byte == 0)))
}

/// How many line ends there are. Summed in bytes for as long as a byte can hold the sum: sixteen to an instruction instead of two.
fn count_lines(text: &[u8]) -> u64 {
    text.chunks(240).map(|chunk| u64::from(chunk.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>())).sum()
}

/// Takes the lines of one file that match.
struct Lines<'l> {
    path: &'l [u8],
    /// The path as hits hold it, made for the first.
    shared_path: Option<Arc<[u8]>>,
    /// The whole file.
    text: &'l [u8],
    /// Where the piece begins that is being searched.
    piece: usize,
    /// Where the line begins whose number is `line`.
    counted: usize,
    line: u64,
    left: usize,
    hits: &'l mut Vec<Hit>,
}

impl Lines<'_> {
    /// Takes a line that begins at `start` in the piece; answers whether more are wanted.
    fn take(&mut self, start: usize, line: &[u8]) -> bool {
        let start = self.piece + start;
        let passed = self.text.get(self.counted..start).unwrap_or_default();
        self.line += count_lines(passed);
        self.counted = start;
        let path = self.shared_path.get_or_insert_with(|| self.path.into()).clone();
        self.hits.push(Hit { path, line: self.line, text: cut(line) });
        self.left -= 1;
        self.left > 0
    }
}

/// Gives `found` each line of `text` that matches, and where it begins, until it wants no more.
///
/// The matcher runs over many lines at a time and stops at one that may match, which is right because it never matches across a line's
/// end. Only a pattern with `\A` or `\z`, which mean the line's ends here, is tried on each line by itself.
///
/// A matcher from ripgrep's crates under a loop of our own: `grep-searcher` brings tables for every text encoding, a twentieth of this
/// program, for files that are not searched here.
fn matching_lines(matcher: &RegexMatcher, text: &[u8], mut found: impl FnMut(usize, &[u8]) -> bool) {
    let many_at_a_time = matcher.line_terminator().is_some();
    let mut from = 0;
    while let Some(rest) = text.get(from..).filter(|rest| !rest.is_empty()) {
        let (at, certain) = if many_at_a_time {
            match matcher.find_candidate_line(rest) {
                Ok(Some(LineMatchKind::Confirmed(at))) => (from + at, true),
                Ok(Some(LineMatchKind::Candidate(at))) => (from + at, false),
                // A matcher of regular expressions does not fail.
                Ok(None) | Err(_) => return,
            }
        } else {
            (from, false)
        };
        let before = text.get(from..at).unwrap_or_default();
        let start = memchr::memrchr(b'\n', before).map_or(from, |end| from + end + 1);
        let after = text.get(at..).unwrap_or_default();
        let end = memchr::memchr(b'\n', after).map_or(text.len(), |end| at + end);
        let line = text.get(start..end).unwrap_or_default();
        let matches = || matcher.is_match(line.strip_suffix(b"\r").unwrap_or(line)).unwrap_or(false);
        if (certain || matches()) && !found(start, line) {
            return;
        }
        from = end + 1;
    }
}

/// A line as it is shown: without its end, what is not UTF-8 replaced, and cut after at most [`MAX_TEXT`] bytes.
fn cut(line: &[u8]) -> Box<str> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // A few bytes more than are shown, since a character may lie across the cut.
    let head = String::from_utf8_lossy(line.get(..MAX_TEXT + 4).unwrap_or(line));
    if line.len() <= MAX_TEXT && head.len() <= MAX_TEXT {
        return head.into();
    }
    let end = (0..=MAX_TEXT.min(head.len())).rev().find(|end| head.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", head.get(..end).unwrap_or_default()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Seek, Write};

    /// Reads and searches a file with this content.
    fn lines(pattern: &str, content: &[u8]) -> Vec<(u64, String)> {
        let mut searcher = Searcher::new(&compile(pattern, false).unwrap(), usize::MAX);
        assert_eq!(searcher.read(file(content), content.len() as u64), Ok(Content::Text));
        let mut hits = Vec::new();
        searcher.search(b"file", &mut hits, &Cancel::new());
        assert_eq!(searcher.skipped, 0);
        hits.iter().map(|hit| (hit.line, hit.text.to_string())).collect()
    }

    /// An open file without a name.
    fn file(content: &[u8]) -> File {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(file);
        file.write_all(content).unwrap();
        file.rewind().unwrap();
        file
    }

    fn texts(pattern: &str, content: &[u8]) -> Vec<String> {
        lines(pattern, content).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn a_line_is_found_with_its_number_wherever_it_ends() {
        assert_eq!(lines("b", b"a\nb\n\nab\r\nx b"), [(2, "b".into()), (4, "ab".into()), (5, "x b".into())]);
        assert_eq!(lines("b", b""), []);
        assert_eq!(lines("^$", b"\na\n\r\n"), [(1, String::new()), (3, String::new())]);
    }

    #[test]
    fn anchors_are_the_lines_and_a_carriage_return_is_no_part_of_it() {
        assert_eq!(texts("^a$", b"a\nba\nab\na\r\na"), ["a", "a", "a"]);
        assert_eq!(texts("a.$", b"ab\r\na\r\n"), ["ab"]);
        assert_eq!(texts("\\Aa\\z", b"a\nba\nab\na\r\na"), ["a", "a", "a"]);
        // A byte order mark is no part of the first line.
        assert_eq!(texts("^one", b"\xef\xbb\xbfone\none"), ["one", "one"]);
        assert_eq!(texts("a[^b]c", b"a\nc\na c\n"), ["a c"]);
        assert_eq!(texts("(?s)a.c", b"a\nc\naxc\n"), ["axc"]);
    }

    #[test]
    fn what_a_line_cannot_hold_is_refused() {
        for (pattern, why) in [
            ("a\nb", "line break"),
            ("a\\nb", "line break"),
            ("a\\r", "line break"),
            ("(", "unclosed group"),
            ("a{2", "unclosed counted repetition"),
            ("(?=a)", "look-ahead"),
            ("(a)\\1", "backreferences"),
            ("((a{100}){100}){100}", "size limit"),
        ] {
            let error = compile(pattern, false).unwrap_err().to_string();
            assert!(error.starts_with("invalid arguments: \"pattern\" is not a valid regular expression: "), "{error}");
            assert!(error.contains(why), "{pattern}: {error}");
        }
        let error = compile(&"a".repeat(MAX_PATTERN + 1), false).unwrap_err().to_string();
        assert!(error.contains("longer than") && error.len() < 200, "{error}");
        assert!(compile(&"(".repeat(MAX_PATTERN), false).is_err());
    }

    #[test]
    fn case_matters_unless_told_otherwise() {
        assert!(compile("straße", false).unwrap().is_match("STRAßE".as_bytes()).is_ok_and(|found| !found));
        assert!(compile("straße", true).unwrap().is_match("STRAßE".as_bytes()).unwrap());
    }

    #[test]
    fn bytes_that_are_not_utf8_are_searched_and_shown_replaced() {
        assert_eq!(texts("b", b"a\xffb\xfe\n"), ["a\u{fffd}b\u{fffd}"]);
        assert_eq!(texts("^.b", b"\xffb\n\xc3\xa9b\n"), ["\u{e9}b"]);
        assert_eq!(texts("(?-u:\\xff)b", b"\xffb\n"), ["\u{fffd}b"]);
        assert_eq!(texts("a", b"\xef\xbb\xbfa\n"), ["a"]);
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let a = |count| "a".repeat(count);
        for (line, shown) in [
            (a(500), a(500)),
            (a(501), a(500) + "..."),
            (a(499) + "é", a(499) + "..."),
            (a(498) + "é", a(498) + "é"),
            (a(498) + "éa", a(498) + "é..."),
            (a(497) + "日本", a(497) + "日..."),
        ] {
            assert_eq!(*cut(format!("{line}\r\n").as_bytes()), *shown, "{}", line.len());
            assert_eq!(*cut(line.as_bytes()), *shown);
        }
        // Each byte is replaced by three.
        assert_eq!(*cut(&[0xff; 400]), *("\u{fffd}".repeat(166) + "..."));
    }

    #[test]
    fn a_nul_near_the_beginning_makes_it_binary() {
        let mut searcher = Searcher::new(&compile("a", false).unwrap(), 1);
        for (at, expected) in
            [(0, Content::Binary), (1023, Content::Binary), (7999, Content::Binary), (8000, Content::Text)]
        {
            let mut content = vec![b'a'; 100_000];
            content[at] = 0;
            assert_eq!(searcher.read(file(&content), 100_000).unwrap(), expected, "{at}");
        }
    }

    #[test]
    fn two_mebibytes_are_read_and_not_one_byte_more() {
        let mut searcher = Searcher::new(&compile("z", false).unwrap(), 1);
        let mut content = vec![b'\n'; MAX_FILE];
        content[MAX_FILE - 1] = b'z';
        let mut hits = Vec::new();
        assert_eq!(searcher.read(file(&content), MAX_FILE as u64), Ok(Content::Text));
        searcher.search(b"", &mut hits, &Cancel::new());
        assert_eq!(hits[0].line, MAX_FILE as u64);

        content.push(b'\n');
        assert_eq!(searcher.read(file(&content), MAX_FILE as u64 + 1), Ok(Content::TooLarge));
        assert_eq!(searcher.read(file(&content), 10 << 30), Ok(Content::TooLarge));
        // It grew since its size was asked, or has none.
        assert_eq!(searcher.read(file(&content), 0), Ok(Content::TooLarge));
        assert!(searcher.buffer.len() <= MAX_FILE + 1);
        // It shrank.
        assert_eq!(searcher.read(file(b"z"), 1000), Ok(Content::Text));
        assert_eq!(searcher.filled, 1);
    }

    #[test]
    fn it_stops_at_as_many_lines_as_are_of_interest() {
        let mut searcher = Searcher::new(&compile("", false).unwrap(), 3);
        let content = b"x\n".repeat(1_000_000);
        searcher.read(file(&content), content.len() as u64).unwrap();
        let mut hits = Vec::new();
        searcher.search(b"", &mut hits, &Cancel::new());
        assert_eq!(hits.iter().map(|hit| hit.line).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn numbers_hold_across_pieces() {
        let content: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
        assert_eq!(lines("00000$", content.as_bytes()), [(100_000, "100000".into()), (200_000, "200000".into())]);
        let all = lines("", content.as_bytes());
        assert!(all.iter().all(|(line, text)| line.to_string() == *text));
        assert_eq!(all.len(), 200_000);
    }

    #[test]
    fn pieces_are_whole_lines() {
        for (text, length, piece) in [
            ("", 4, ""),
            ("abc", 4, "abc"),
            ("ab\ncd\nef", 4, "ab\n"),
            ("ab\ncd\nef", 6, "ab\ncd\n"),
            ("abcdef\ngh", 4, "abcdef\n"),
            ("abcdefgh", 4, "abcdefgh"),
            ("\nabcdefg", 1, "\n"),
        ] {
            assert_eq!(whole_lines(text.as_bytes(), length), piece.as_bytes(), "{text:?}");
        }
    }

    #[test]
    fn pieces_are_as_long_as_the_pace_allows() {
        let (least, most) = PIECES;
        for (piece, length, took, next) in [
            (least, least, Duration::from_micros(1), 4 * least),
            (most, most, Duration::from_micros(1), most),
            (8192, 8192, PACE * 2, 4096),
            (8192, 8192, PACE * 1000, least),
            // A short file neither lengthens nor shortens them, unless it was slow.
            (8192, 100, Duration::from_nanos(1), 8192),
            (8192, 100, PACE, least),
        ] {
            assert_eq!(next_piece(piece, length, took), next, "{piece} {length} {took:?}");
        }
    }

    #[test]
    fn a_cancel_ends_a_search() {
        let mut searcher = Searcher::new(&compile("x", false).unwrap(), usize::MAX);
        searcher.read(file(b"x\n"), 2).unwrap();
        let cancel = Cancel::new();
        cancel.cancel();
        let mut hits = Vec::new();
        searcher.search(b"", &mut hits, &cancel);
        assert!(hits.is_empty());
    }

    #[test]
    fn a_line_that_would_take_too_long_is_left_out() {
        // Hundreds of states are alive at each byte, and nothing could interrupt it. With thousands the line takes 20 s.
        let mut searcher = Searcher::new(&compile("[ab].{300}Q", false).unwrap(), usize::MAX);
        let mut state = 1u32;
        let line: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b"abcd"[(state >> 30) as usize]
        })
        .take(MAX_FILE - 2)
        .collect();
        let content = [&line[..], b"\nx"].concat();
        searcher.read(file(&content), content.len() as u64).unwrap();
        let mut hits = Vec::new();
        searcher.search(b"", &mut hits, &Cancel::new());
        assert_eq!((searcher.skipped, hits.len()), (1, 0));
    }
}
