//! A server's words made fit to be shown: in a log, in an error, on a terminal (design 9). What could move a cursor, hide text or turn
//! its direction is spelled out instead.

use std::fmt::Write as _;

/// At most `most` characters of `text`, on one line; what is cut off is marked.
pub(super) fn line(text: &[u8], most: usize) -> String {
    cleaned(text, most, false)
}

/// All of `text`, with its line ends and tabs.
pub(super) fn lines(text: &[u8]) -> String {
    cleaned(text, usize::MAX, true)
}

fn cleaned(text: &[u8], most: usize, with_lines: bool) -> String {
    let mut out = String::with_capacity(text.len().min(most));
    let mut count = 0usize;
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            if count == most {
                out.push('…');
                return out;
            }
            count += 1;
            if with_lines && matches!(character, '\n' | '\t') {
                out.push(character);
            } else if deceives(character) {
                // Writing to a String cannot fail.
                let _ = write!(out, "{}", character.escape_unicode());
            } else {
                out.push(character);
            }
        }
        if !chunk.invalid().is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
    out
}

/// Whether a terminal would do something else than show it.
fn deceives(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_a_cursor_or_hides_text_gets_through() {
        assert_eq!(line("a\u{1b}[2Jb\r\n\tc\u{9b}d".as_bytes(), 99), "a\\u{1b}[2Jb\\u{d}\\u{a}\\u{9}c\\u{9b}d");
        assert_eq!(line("x\u{202e}y\u{2066}z".as_bytes(), 99), "x\\u{202e}y\\u{2066}z");
        assert_eq!(line(b"a\xffb", 99), "a\u{fffd}b");
        assert_eq!(line("äöü".as_bytes(), 2), "äö…");
        assert_eq!(line("äö".as_bytes(), 2), "äö");
        assert_eq!(lines(b"one\n\ttwo\x1b\r\n"), "one\n\ttwo\\u{1b}\\u{d}\n");
    }
}
