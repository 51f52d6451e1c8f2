//! The signals that ask a process to end, as something a thread can wait for, and those that must not end it.

// sigaction is unsafe to call, since a handler may do anything; ignoring a signal runs none.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, pthread_sigmask, signal};

/// The signals that ask for the end: a supervisor's, the terminal's interrupt, and the terminal's hang-up.
const ENDING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// Ignores the signals by which a write fails fatally, for this process: a pipe nobody reads (EPIPE) and a file larger than the limit
/// (EFBIG) are errors of the call alone. Commands start with the defaults again.
pub fn ignore_fatal_writes() -> io::Result<()> {
    for number in [Signal::SIGPIPE, Signal::SIGXFSZ] {
        // SAFETY: no handler is installed, so no code runs in a signal's context.
        unsafe { signal(number, SigHandler::SigIgn) }?;
    }
    Ok(())
}

/// Waits for SIGTERM, SIGINT or SIGHUP. They stay blocked for the life of the process, so that none of them ends it half way.
#[derive(Debug)]
pub struct Termination(SigSet);

impl Termination {
    /// Blocks the signals in this thread and in those it starts from now on: to be called before any other is started.
    pub fn block() -> io::Result<Self> {
        // What was ignored when the process started stays so: that is what nohup means.
        let signals: SigSet = ENDING.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&signals), None)?;
        Ok(Self(signals))
    }

    /// Waits for the next of the signals, and takes it; says its number.
    pub fn wait(&self) -> io::Result<i32> {
        loop {
            match self.0.wait() {
                Ok(signal) => return Ok(signal as i32),
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Makes a command start with no signal blocked and with those of [`ignore_fatal_writes`] at their defaults, whatever holds here.
pub fn start_with_defaults(command: &mut Command) {
    let defaults = || {
        let all = SigSet::all();
        pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&all), None)?;
        for number in [Signal::SIGPIPE, Signal::SIGXFSZ] {
            // SAFETY: no handler is installed, so no code runs in a signal's context.
            unsafe { signal(number, SigHandler::SigDfl) }?;
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it makes two kinds of system call, and neither allocates nor takes a lock.
    unsafe { command.pre_exec(defaults) };
}

fn is_ignored(number: Signal) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: with no new action the call only writes the present one, into memory that is large enough for it, and zeroes are one too.
    unsafe {
        libc::sigaction(number as libc::c_int, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::raise;

    #[test]
    fn a_blocked_signal_is_waited_for_and_taken() {
        // Raised on this very thread, so that they stay pending on it whatever other threads have blocked.
        let wanted: Vec<Signal> = ENDING.into_iter().filter(|signal| !is_ignored(*signal)).collect();
        assert!(!wanted.is_empty(), "started with every signal ignored");
        let expected = wanted.clone();
        let waited = std::thread::spawn(move || {
            let termination = Termination::block().unwrap();
            wanted.iter().for_each(|signal| raise(*signal).unwrap());
            wanted.iter().map(|_| termination.wait().unwrap()).collect::<Vec<i32>>()
        });
        let mut taken = waited.join().unwrap();
        taken.sort_unstable();
        let mut expected: Vec<i32> = expected.into_iter().map(|signal| signal as i32).collect();
        expected.sort_unstable();
        assert_eq!(taken, expected);
    }
}
