//! Line framing: bytes in, one message's bytes out, whatever the reads were cut into (spec mcp 1.2).

use std::ops::Range;

use super::oversize::{Finder, Owner};

/// The longest line that is kept: 16 MiB, as the widest of the peers takes. A longer one is discarded and the stream goes on.
pub const LINE_MAX_BYTES: usize = 16 * 1024 * 1024;

/// What an idle buffer holds.
const BUFFER_BYTES: usize = 16 * 1024;

/// What a buffer may hold on to after a long line has been taken.
const BUFFER_KEPT_BYTES: usize = 256 * 1024;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A line to read as a message: not empty, no byte order mark, no carriage return at its end.
    Message(&'a [u8]),
    /// A line that was longer than the limit and is gone.
    TooLong {
        /// How long it was.
        bytes: u64,
        /// Whose it was, where its id was found in passing: someone waits for it and deserves to be told.
        owner: Option<Owner>,
    },
}

/// A buffer that reads go into and lines come out of. Splits at 0x0A alone: other line ends are legal inside a JSON string (trap T7).
pub struct Lines {
    buffer: Vec<u8>,
    /// Where the first line not yet taken starts.
    start: usize,
    /// Up to where no line end was found.
    searched: usize,
    /// Where the bytes read so far end.
    end: usize,
    limit: usize,
    /// The line that is being discarded, if one is.
    discarding: Option<Discarded>,
}

impl Default for Lines {
    fn default() -> Self {
        Self::new(LINE_MAX_BYTES)
    }
}

impl Lines {
    /// A buffer that keeps lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: vec![0; BUFFER_BYTES], start: 0, searched: 0, end: 0, limit, discarding: None }
    }

    /// Where the next read goes; never empty. Call [`Lines::filled`] with the number of bytes read.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.searched -= self.start;
            self.start = 0;
        }
        if self.end == 0 && self.buffer.len() > BUFFER_KEPT_BYTES {
            self.buffer = vec![0; BUFFER_BYTES];
        }
        if self.end == self.buffer.len() {
            // Doubling, up to one byte more than the limit, which is enough to know that a line is too long.
            let larger = self.buffer.len().saturating_mul(2).min(self.limit.max(BUFFER_BYTES) + 1).max(self.end + 1);
            self.buffer.resize(larger, 0);
        }
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    /// Says that `count` bytes of [`Lines::space`] hold what was read.
    pub fn filled(&mut self, count: usize) {
        self.end = self.end.saturating_add(count).min(self.buffer.len());
    }

    /// The next whole line; `None` until more is read. A line without its end is never given, not at the end of the stream either.
    pub fn next_line(&mut self) -> Option<Line<'_>> {
        match self.advance()? {
            Found::Message(range) => self.buffer.get(range).map(Line::Message),
            Found::TooLong(line) => Some(Line::TooLong { bytes: line.bytes, owner: line.finder.finish() }),
        }
    }

    /// How many bytes of a line without an end are held.
    pub fn partial(&self) -> usize {
        self.end.saturating_sub(self.start)
    }

    fn advance(&mut self) -> Option<Found> {
        loop {
            let line_end =
                memchr::memchr(b'\n', self.buffer.get(self.searched..self.end)?).map(|at| self.searched + at);
            if let Some(mut line) = self.discarding.take() {
                let until = line_end.unwrap_or(self.end);
                line.take(self.buffer.get(self.start..until)?);
                self.start = until;
                self.searched = until;
                if line_end.is_none() {
                    self.discarding = Some(line);
                    return None;
                }
                self.start += 1;
                self.searched += 1;
                return Some(Found::TooLong(line));
            }
            let reached = line_end.unwrap_or(self.end);
            if reached - self.start > self.limit {
                self.discarding = Some(Discarded::default());
                self.searched = self.start;
                continue;
            }
            self.searched = reached;
            line_end?;
            let line = self.start..reached;
            self.start = reached + 1;
            self.searched = self.start;
            let message = trimmed(self.buffer.get(line.clone())?);
            if !message.is_empty() {
                let skipped = line.len() - message.len();
                let before = if self.buffer.get(line.clone())?.starts_with(MARK) { MARK.len() } else { 0 };
                return Some(Found::Message(line.start + before..line.end - (skipped - before)));
            }
        }
    }
}

enum Found {
    Message(Range<usize>),
    TooLong(Discarded),
}

/// The byte order mark, which some writers put before the first message.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// A line without a byte order mark and without one carriage return at its end.
fn trimmed(line: &[u8]) -> &[u8] {
    let line = line.strip_prefix(MARK).unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[derive(Default)]
struct Discarded {
    bytes: u64,
    finder: Finder,
}

impl Discarded {
    fn take(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.finder.take(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines of `input`, read in pieces of `step` bytes.
    fn lines(input: &[u8], step: usize, limit: usize) -> Vec<String> {
        let mut lines = Lines::new(limit);
        let mut seen = Vec::new();
        for piece in input.chunks(step) {
            let mut piece = piece;
            while !piece.is_empty() {
                let space = lines.space();
                let count = space.len().min(piece.len());
                space[..count].copy_from_slice(&piece[..count]);
                lines.filled(count);
                piece = &piece[count..];
                while let Some(line) = lines.next_line() {
                    seen.push(match line {
                        Line::Message(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                        Line::TooLong { bytes, owner } => format!("<{bytes} {owner:?}>"),
                    });
                }
            }
        }
        seen
    }

    #[test]
    fn lines_are_the_same_however_the_reads_were_cut() {
        let input = "\u{feff}one\r\n\n\r\ntwo\u{2028}\u{85}still two\n three \npartial".as_bytes();
        for step in [1, 2, 3, 7, 1000] {
            assert_eq!(lines(input, step, 1000), ["one", "two\u{2028}\u{85}still two", " three "], "step {step}");
        }
    }

    #[test]
    fn a_line_over_the_limit_is_discarded_and_the_next_is_served() {
        let long = format!(r#"{{"method":"a","params":{{"id":9,"x":"{}"}},"id":7}}"#, "x".repeat(100_000));
        let input = format!("before\n{long}\nafter\n{long}");
        for step in [1, 100, 4096, 1 << 20] {
            let expected = format!("<{} Some(Request(Integer(7)))>", long.len());
            assert_eq!(lines(input.as_bytes(), step, 50_000), ["before", expected.as_str(), "after"], "step {step}");
        }
        assert_eq!(lines(b"12345\n123456\n", 3, 5), ["12345", "<6 None>"]);
    }

    #[test]
    fn the_buffer_stays_bounded_and_shrinks_again() {
        let mut lines = Lines::new(1 << 20);
        for _ in 0..64 {
            let space = lines.space();
            space.fill(b'x');
            let count = space.len();
            lines.filled(count);
            assert!(lines.next_line().is_none());
            assert!(lines.buffer.len() <= (1 << 20) + 1);
        }
        let space = lines.space();
        space[0] = b'\n';
        lines.filled(1);
        assert!(matches!(lines.next_line(), Some(Line::TooLong { .. })));
        lines.space();
        assert!(lines.buffer.len() <= BUFFER_KEPT_BYTES);
    }
}
