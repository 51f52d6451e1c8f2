//! What the answers of `glob` and `grep` have in common: names as they are shown, limits, and the lines that say what is missing.

use std::fmt::Write;

use crate::workspace::RelPath;

/// The most bytes of an answer. More is of no use to a model, and with every character escaped it still fits a message of 16 MiB.
pub(super) const MAX_BYTES: usize = 2 * 1024 * 1024;

/// How many results a call asks for: `given`, or `default` where that is missing or 0, and at most `most`.
pub(super) fn limit(given: Option<u64>, default: usize, most: usize) -> usize {
    match given.map(|given| usize::try_from(given).unwrap_or(usize::MAX)) {
        None | Some(0) => default,
        Some(given) => given.min(most),
    }
}

/// The line that ends an answer of `shown` results when there were more than `limit`, or than [`MAX_BYTES`] hold.
pub(super) fn stopped(shown: usize, limit: usize, most: usize, things: &str) -> String {
    let advice = if shown < limit {
        "the answer is full; narrow the search"
    } else if limit < most {
        "narrow the search or raise max_results"
    } else {
        "no more are ever listed; narrow the search"
    };
    format!("(stopped at {shown} {things}, there are more: {advice})")
}

/// An answer: the lines found, or that there are none, and the lines to be said about it.
pub(super) fn answer(found: String, nothing: &str, notes: &str) -> String {
    match (found.is_empty(), notes.is_empty()) {
        (false, _) => found + notes,
        (true, false) => format!("{nothing}\n{notes}"),
        (true, true) => nothing.to_owned(),
    }
}

/// Adds a line to an answer.
pub(super) fn add_line(text: &mut String, line: impl std::fmt::Display) {
    let _ = writeln!(text, "{line}");
}

/// How a file is named: relative to the workspace's root, what is not UTF-8 replaced, control characters escaped. A name with a line
/// break in it would otherwise pass for several results.
pub(super) fn shown(start: &RelPath, path: &[u8]) -> String {
    let mut name = String::with_capacity(path.len());
    if !start.is_root() {
        push_clean(&mut name, start.as_str());
        if !path.is_empty() {
            name.push('/');
        }
    }
    push_clean(&mut name, &String::from_utf8_lossy(path));
    name
}

fn push_clean(name: &mut String, part: &str) {
    if part.bytes().all(|byte| (b' '..0x7f).contains(&byte)) {
        name.push_str(part);
        return;
    }
    for letter in part.chars() {
        if letter.is_control() {
            name.extend(letter.escape_default());
        } else {
            name.push(letter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_default_the_given_or_the_most() {
        for (given, expected) in [(None, 10), (Some(0), 10), (Some(7), 7), (Some(20), 20), (Some(u64::MAX), 20)] {
            assert_eq!(limit(given, 10, 20), expected, "{given:?}");
        }
    }

    #[test]
    fn the_last_line_says_what_can_be_done() {
        assert!(stopped(10, 10, 20, "files").contains("raise max_results"));
        assert!(stopped(20, 20, 20, "files").contains("no more are ever listed"));
        assert!(stopped(5, 10, 20, "files").contains("answer is full"));
    }
}
