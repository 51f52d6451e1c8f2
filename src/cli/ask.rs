//! Asks the person at the terminal, past whatever standard input and output are tied to.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Yes.
    Yes,
    /// Anything else.
    No,
    /// There is nobody to ask.
    Nobody,
}

/// The longest answer that is read.
const ANSWER_MAX_BYTES: u64 = 256;

/// Shows `question`, which the caller has cleaned, and waits for a line. Only `y` and `yes` allow.
pub(super) fn yes_or_no(question: &str) -> Reply {
    let Ok(mut terminal) = OpenOptions::new().read(true).write(true).open("/dev/tty") else { return Reply::Nobody };
    if write!(terminal, "{question} [y/N] ").is_err() {
        return Reply::Nobody;
    }
    let mut answer = String::new();
    if BufReader::new(terminal.take(ANSWER_MAX_BYTES)).read_line(&mut answer).is_err() {
        return Reply::No;
    }
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Reply::Yes,
        _ => Reply::No,
    }
}
