//! Asks the person at the terminal, past whatever standard input and output are tied to.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{QueueSelector, tcflush};

use crate::os::cancel::Cancel;

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Yes.
    Yes,
    /// Anything else.
    No,
    /// There is nobody to ask.
    Nobody,
    /// The program was interrupted.
    Interrupted,
}

/// The longest answer that is read.
const ANSWER_MAX_BYTES: usize = 256;

/// Shows `question`, which the caller has cleaned, and waits for a line, or until cancelled. Only `y` and `yes` allow, and only when they
/// were typed after the question was shown.
pub(super) fn yes_or_no(question: &str, cancel: &Cancel) -> Reply {
    let Ok(mut terminal) = OpenOptions::new().read(true).write(true).open("/dev/tty") else { return Reply::Nobody };
    // What was typed before was typed for something else.
    let _ = tcflush(&terminal, QueueSelector::IFlush);
    if write!(terminal, "{question} [y/N] ").is_err() {
        return Reply::Nobody;
    }
    if !readable(&terminal, cancel) {
        let _ = writeln!(terminal);
        return Reply::Interrupted;
    }
    // A terminal gives a line at a time.
    let mut answer = [0; ANSWER_MAX_BYTES];
    let Ok(count) = terminal.read(&mut answer) else { return Reply::No };
    let answer = String::from_utf8_lossy(answer.get(..count).unwrap_or_default()).trim().to_ascii_lowercase();
    if answer == "y" || answer == "yes" { Reply::Yes } else { Reply::No }
}

/// Waits until the terminal has a line; false when cancelled first.
fn readable(terminal: &File, cancel: &Cancel) -> bool {
    let Ok(cancelled) = cancel.descriptor() else { return true };
    let mut wanted =
        [PollFd::from_borrowed_fd(terminal.as_fd(), PollFlags::IN), PollFd::from_borrowed_fd(cancelled, PollFlags::IN)];
    loop {
        match poll(&mut wanted, None) {
            Err(Errno::INTR) => {}
            _ => return !cancel.is_cancelled(),
        }
    }
}
