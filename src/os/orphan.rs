//! Which children of this process are reapers, and what becomes of those that are not.
//!
//! A command may kill its own reaper (`kill -9 $PPID`). What it had started is nobody's then, and belongs to the parent of last resort:
//! the system's, out of reach, or this process where it said that it adopts ([`adopt_orphans`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpgid, getpgrp, getpid, kill_process,
    kill_process_group, pidfd_open, set_child_subreaper, waitid, waitpid,
};

use super::launch::Plan;
use super::reaper;

/// Makes this process the parent of last resort of everything its commands start, so that a tree whose reaper was killed
/// is still found and ended. Once thrown it stays.
///
/// For a program whose every child is a [`Child`], at its start: when a reaper is lost, every child that is no reaper is ended.
/// Errors: a kernel before Linux 3.4.
pub fn adopt_orphans() -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    ADOPTS.store(true, Ordering::SeqCst);
    Ok(())
}

static ADOPTS: AtomicBool = AtomicBool::new(false);

/// A reaper's process, to be waited for exactly once.
#[derive(Debug)]
pub(super) struct Reaper {
    pid: Pid,
    waited: bool,
}

/// Every reaper that was not waited for, so that none stays a zombie and none is taken for an orphan.
/// As many as there are trees, plus those given up since the last fork.
static REAPERS: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

struct Listed {
    pid: Pid,
    /// Whether its [`Child`] is no more; then it is waited for when the next one is forked.
    dropped: bool,
}

fn reapers() -> MutexGuard<'static, Vec<Listed>> {
    REAPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reaper {
    pub(super) fn fork(plan: &Plan) -> io::Result<Self> {
        // Held over the fork: a reaper that is not in the list would be ended as an orphan by another thread.
        let mut reapers = reapers();
        reapers.retain(|listed| !(listed.dropped && has_ended(listed.pid)));
        for dropped in reapers.iter().filter(|listed| listed.dropped) {
            // It may have been stopped after its child was dropped.
            let _ = kill_process(dropped.pid, Signal::CONT);
        }
        let pid = reaper::fork(plan)?;
        reapers.push(Listed { pid, dropped: false });
        Ok(Self { pid, waited: false })
    }

    /// Lets it run again, should the command have stopped it.
    pub(super) fn wake(&self) {
        if !self.waited {
            let _ = kill_process(self.pid, Signal::CONT);
        }
    }

    /// Waits until it has ended, which it is about to do: its descriptors are closed.
    pub(super) fn wait(&mut self) {
        if !self.waited {
            while matches!(waitpid(Some(self.pid), WaitOptions::empty()), Err(Errno::INTR)) {}
            self.waited = true;
            reapers().retain(|listed| listed.pid != self.pid);
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        if !self.waited {
            // The channel's end, which comes with this, reaches a reaper only while it runs.
            self.wake();
            if let Some(listed) = reapers().iter_mut().find(|listed| listed.pid == self.pid) {
                listed.dropped = true;
            }
        }
    }
}

/// Whether a process of ours has ended; it is waited for then.
fn has_ended(pid: Pid) -> bool {
    !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None) | Err(Errno::INTR))
}

/// Ends every child of this process that is no reaper, and what they leave behind (see [`adopt_orphans`]), or as many as can be until
/// `deadline`. The reaper that left them must have been waited for: only then are they this process's children.
pub(super) fn end_orphans(deadline: Instant) {
    if !ADOPTS.load(Ordering::SeqCst) {
        return;
    }
    loop {
        let orphans = orphans();
        for orphan in &orphans {
            if let Ok(group) = getpgid(Some(*orphan))
                && group != getpgrp()
            {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = kill_process(*orphan, Signal::KILL);
        }
        for orphan in &orphans {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Ok(end) = pidfd_open(*orphan, PidfdFlags::empty()) {
                wait_readable(&[end.as_fd()], left);
            }
            let _ = has_ended(*orphan);
        }
        if orphans.is_empty() || Instant::now() >= deadline {
            return;
        }
    }
}

fn orphans() -> Vec<Pid> {
    let reapers = reapers();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .filter_map(|entry| Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .filter(|pid| {
            let asked = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(*pid), asked).is_ok() && !reapers.iter().any(|listed| listed.pid == *pid)
        })
        .collect()
}

/// Waits until one of the descriptors is readable or closed, or for `longest`; answers which. May return early with neither.
pub(super) fn wait_readable(descriptors: &[BorrowedFd<'_>], longest: Duration) -> bool {
    let mut set: Vec<_> = descriptors.iter().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
    poll(&mut set, Timespec::try_from(longest).ok().as_ref()) != Ok(0)
}
