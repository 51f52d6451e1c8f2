//! Text from elsewhere, made fit for a terminal: what could move the cursor, hide words or type for the person is shown and not obeyed
//! (design 9).

use std::fmt::Write;

/// Text with every control character but newline and tab written out, and every character that turns the direction of text.
pub(super) fn lines(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter != '\n' && letter != '\t' && (letter.is_control() || turns(letter)) {
            // Writing to a String cannot fail.
            let _ = write!(clean, "\\u{{{:x}}}", u32::from(letter));
        } else {
            clean.push(letter);
        }
    }
    clean
}

/// As [`lines`], on one line.
pub(super) fn line(text: &str) -> String {
    lines(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// JSON text with the same characters as JSON's own escapes. Outside of strings there are none of them.
pub(super) fn json(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() || turns(letter) {
            let mut units = [0; 2];
            for unit in letter.encode_utf16(&mut units) {
                let _ = write!(clean, "\\u{unit:04x}");
            }
        } else {
            clean.push(letter);
        }
    }
    clean
}

/// The characters with which text is written to look like other text (CVE-2021-42574), and those that separate lines.
fn turns(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_that_it_would_obey() {
        assert_eq!(lines("a\x1b[2Jb\r\n\tc\u{9b}1m\u{7f}"), "a\\u{1b}[2Jb\\u{d}\n\tc\\u{9b}1m\\u{7f}");
        assert_eq!(lines("\u{202e}gpj.exe"), "\\u{202e}gpj.exe");
        assert_eq!(line("a\nb\tc"), "a\\nb\\tc");
        assert_eq!(lines("Grüße, 世界"), "Grüße, 世界");
        assert_eq!(json("{\"a\":\"\u{9b}31m\u{202e}\u{7f}ü\"}"), r#"{"a":"\u009b31m\u202e\u007fü"}"#);
    }
}
