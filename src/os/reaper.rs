//! The small process that stands between Berth and each command it starts, so that nothing a command started outlives it.
//!
//! A process group is not enough: a daemon leaves it with one `setsid` and goes on after its session has ended (39 orphans
//! of one agent's shell once held seven cores for eight hours). So every command gets a parent of its own: a *reaper*, a fork of this
//! process that never executes a program, adopts every orphan of the command (`PR_SET_CHILD_SUBREAPER`) and stays until the
//! last of them is gone. It holds one descriptor, its channel to Berth. When Berth closes its end, or dies, even by SIGKILL, the
//! reaper ends everything and leaves.
//!
//! The reaper is forked from a process with threads, so until its end it may only do what a signal handler may: no allocation,
//! no lock, no panic. `rustix` calls the kernel directly and is used wherever it has the call.
//!
//! Linux only, as is `os/launch`: the subreaper, `ppoll`, `close_range` and `/proc`.

#![allow(unsafe_code)] // fork, signal masks, ppoll, and the plain system calls allowed between fork and exit.

use std::cell::Cell;
use std::ffi::{CStr, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, chdir, getpgid, getpid, kill_process, kill_process_group,
    set_child_subreaper, set_parent_process_death_signal, setpgid, setpriority_process, wait, waitid,
};

use super::launch::{Plan, Stage, close, exit, keep_only, launch};

/// What a reaper says on its channel: [`Report::SIZE`] bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The command's process exists, under this id. Said by itself, before anything can have happened to its reaper.
    Born(i32),
    /// It runs its program.
    Started,
    /// It does not run, for this reason (an errno).
    Failed(Stage, i32),
    /// It ended with this exit code.
    Exited(i32),
    /// It was ended by this signal.
    Signalled(i32),
    /// Nothing that it started is left; the reaper leaves.
    Gone,
    /// Something it started does not die, not even by SIGKILL; the reaper leaves.
    Stuck,
}

impl Report {
    pub(super) const SIZE: usize = 8;

    pub(super) const fn encode(self) -> [u8; Self::SIZE] {
        let (kind, stage, value) = match self {
            Self::Born(pid) => (1, 0, pid),
            Self::Failed(stage, errno) => (2, stage as u8, errno),
            Self::Exited(code) => (3, 0, code),
            Self::Signalled(signal) => (4, 0, signal),
            Self::Gone => (5, 0, 0),
            Self::Stuck => (6, 0, 0),
            Self::Started => (7, 0, 0),
        };
        let [a, b, c, d] = value.to_ne_bytes();
        [kind, stage, 0, 0, a, b, c, d]
    }

    /// `None` for bytes no reaper wrote.
    pub(super) const fn decode([kind, stage, _, _, a, b, c, d]: [u8; Self::SIZE]) -> Option<Self> {
        let value = i32::from_ne_bytes([a, b, c, d]);
        Some(match kind {
            1 => Self::Born(value),
            2 => match Stage::from_number(stage as i32) {
                Some(stage) => Self::Failed(stage, value),
                None => return None,
            },
            3 => Self::Exited(value),
            4 => Self::Signalled(value),
            5 => Self::Gone,
            6 => Self::Stuck,
            7 => Self::Started,
            _ => return None,
        })
    }
}

/// How long a reaper goes on killing while nothing dies of it: a process in an uninterruptible wait may never do so.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long it waits between two rounds of killing when no child ends meanwhile.
static ROUND: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The kernel gives out no process id above this (`PID_MAX_LIMIT`).
const LAST_PID: i32 = 4 * 1024 * 1024;

/// Forks a reaper, which starts the command. The caller must wait for the process it is given.
///
/// Every pointer in `plan` must hold until this returns; descriptors stay the caller's.
pub(super) fn fork(plan: &Plan) -> io::Result<Pid> {
    let mut previous = MaybeUninit::<libc::sigset_t>::uninit();
    // No handler of this process may run in the child, so every signal is blocked before it exists.
    let blocked = every_signal();
    // SAFETY: both sets are valid for the call, the second one to be written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, previous.as_mut_ptr()) };
    // SAFETY: the child runs `run` alone, which keeps to what is allowed after a fork and never returns.
    let forked = unsafe { libc::fork() };
    if forked == 0 {
        run(*plan);
    }
    let failed = io::Error::last_os_error();
    // SAFETY: `previous` was written by the call above, which cannot fail with these arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, previous.as_ptr(), ptr::null_mut()) };
    Pid::from_raw(forked.max(0)).ok_or(failed)
}

/// The reaper's life.
fn run(mut plan: Plan) -> ! {
    let own = getpid();
    // Out of Berth's group: what kills that must not take the reaper before its children. In its session all the same: a new session is a
    // new group to the scheduler too, which waits for its turn on a busy machine (one start in ten took 13 ms so, and takes 5).
    let _ = setpgid(None, None);
    let _ = rustix::thread::set_name(c"berth-reaper");
    // Should the command have stopped it when Berth dies, that very death lets it run again. (It comes as often as the thread that
    // forked it, or the one it passed to, ends; then it means nothing.)
    let _ = set_parent_process_death_signal(Some(Signal::CONT));
    let adopts = set_child_subreaper(Some(own));
    watch_children();
    if let Err(errno) = adopts.and_then(|()| keep_only(&mut plan)) {
        leave(plan.channel, Report::Failed(Stage::Prepare, errno.raw_os_error()));
    }
    let command = match launch(&plan, own) {
        Ok(command) => command,
        Err((stage, errno)) => leave(plan.channel, Report::Failed(stage, errno.raw_os_error())),
    };
    // The command has its pipes now. A copy held here would keep them open past their end.
    for descriptor in plan.standard {
        close(descriptor);
    }
    close(plan.directory);
    // Nor must a mounted file system stay busy for our sake.
    let _ = chdir(c"/");
    say(plan.channel, &Report::Started.encode());
    Reaper { own, command, running: true, channel: plan.channel }.stand()
}

/// A reaper whose command was started.
struct Reaper {
    own: Pid,
    command: Pid,
    /// Whether the command itself has not been waited for; until then its process id, and its group's, are certainly its own.
    running: bool,
    channel: c_int,
}

impl Reaper {
    /// Waits for what happens first: a child ends, Berth sends a signal, Berth goes away.
    fn stand(mut self) -> ! {
        let waiting = every_signal_but_child();
        loop {
            self.reap();
            let mut wanted = libc::pollfd { fd: self.channel, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, valid for the call; no timeout; the set is valid for the call.
            let ready = unsafe { libc::ppoll(&raw mut wanted, 1, ptr::null(), &raw const waiting) };
            if ready > 0 {
                let mut signals = [0u8; 16];
                // SAFETY: the buffer is valid for its length.
                let count = unsafe { libc::read(self.channel, signals.as_mut_ptr().cast(), signals.len()) };
                match usize::try_from(count) {
                    Ok(0) => self.end_everything(),
                    Ok(count) => signals.iter().take(count).for_each(|signal| self.signal_group(c_int::from(*signal))),
                    Err(_) if Errno::from_io_error(&io::Error::last_os_error()) == Some(Errno::INTR) => {}
                    // A channel that was reset is closed too.
                    Err(_) => self.end_everything(),
                }
            }
        }
    }

    /// Waits for every child that has ended, and leaves when there is none any more. Answers how many had.
    fn reap(&mut self) -> usize {
        let mut ended = 0;
        let mut news = None;
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    ended += 1;
                    if pid == self.command && self.running {
                        self.running = false;
                        news = Some(match (status.exit_status(), status.terminating_signal()) {
                            (Some(code), _) => Report::Exited(code),
                            (None, signal) => Report::Signalled(signal.unwrap_or_default()),
                        });
                    }
                }
                Ok(None) => {
                    if let Some(news) = news {
                        say(self.channel, &news.encode());
                    }
                    return ended;
                }
                Err(Errno::INTR) => {}
                Err(_) => {
                    // One write, so that Berth need not wake twice for a command that left nothing behind.
                    if let Some(news) = news {
                        let mut both = [0; Report::SIZE * 2];
                        for (to, from) in both.iter_mut().zip(news.encode().into_iter().chain(Report::Gone.encode())) {
                            *to = from;
                        }
                        say(self.channel, &both);
                        exit();
                    }
                    leave(self.channel, Report::Gone);
                }
            }
        }
    }

    /// Sends a signal to the command's process group.
    fn signal_group(&self, signal: c_int) {
        // Once the command has been waited for, the number is its group's only while a member lives: else it may be a stranger's.
        let mut ours = self.running;
        if !ours {
            each_child(&mut |child| ours |= getpgid(Some(child)) == Ok(self.command));
        }
        if ours {
            // SAFETY: plain numbers; a signal that is none is refused by the kernel.
            unsafe { libc::kill(-self.command.as_raw_pid(), signal) };
        }
    }

    /// Kills until nothing is left, then leaves.
    ///
    /// Only own children are looked for: a grandchild becomes one as soon as its parent is dead. Killing a whole group is one step for
    /// the kernel, in which no member can fork away, and a group or session that holds one descendant holds nothing else, since
    /// both are only ever inherited. So a bomb in one group dies at once, and one that changes groups has to fork,
    /// change and fork again faster than the list of children is read.
    fn end_everything(mut self) -> ! {
        // Against ten thousand runnable processes the killer must get its turn. Allowed to root only; elsewhere it does without.
        let _ = setpriority_process(None, -20);
        let waiting = every_signal_but_child();
        let mut last = Instant::now();
        loop {
            if self.running {
                let _ = kill_process_group(self.command, Signal::KILL);
                let _ = kill_process(self.command, Signal::KILL);
            }
            each_child(&mut |child| {
                if let Ok(group) = getpgid(Some(child))
                    && group != self.own
                {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = kill_process(child, Signal::KILL);
            });
            if self.reap() > 0 {
                last = Instant::now();
            } else if last.elapsed() > PATIENCE {
                leave(self.channel, Report::Stuck);
            } else {
                // SAFETY: no entries; timeout and set are valid for the call. Ended early by the next child's end.
                unsafe { libc::ppoll(ptr::null_mut(), 0, &raw const ROUND, &raw const waiting) };
            }
        }
    }
}

/// Names every child of this process, those that have ended but were not waited for as well.
///
/// From the kernel's own list; where it keeps none, from the processes in `/proc`; where there is no `/proc`, or one of another
/// process namespace, by asking for every number there can be (half a second of work at worst).
fn each_child(act: &mut dyn FnMut(Pid)) {
    let found = Cell::new(false);
    let mut check = |number: i32| {
        if let Some(pid) = Pid::from_raw(number)
            // The kernel's word that this is a child, since the sources may speak of another namespace's numbers.
            && waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT).is_ok()
        {
            found.set(true);
            act(pid);
        }
    };
    listed_children(&mut check);
    if !found.get() {
        listed_processes(&mut check);
    }
    if !found.get() {
        (2..=LAST_PID).for_each(check);
    }
}

/// Reads the kernel's list of this thread's children: numbers with a space after each. This process has one thread.
fn listed_children(check: &mut dyn FnMut(i32)) {
    let Ok(list) = openat(CWD, c"/proc/thread-self/children", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let mut number: i32 = 0;
    let mut buffer = [0u8; 4096];
    while let Ok(count @ 1..) = rustix::io::read(&list, &mut buffer) {
        for byte in buffer.iter().take(count) {
            match byte {
                b'0'..=b'9' => number = number.saturating_mul(10).saturating_add(i32::from(byte.saturating_sub(b'0'))),
                _ => check(std::mem::take(&mut number)),
            }
        }
    }
}

/// Reads the numbers of all processes from `/proc`.
fn listed_processes(check: &mut dyn FnMut(i32)) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(processes) = openat(CWD, c"/proc", flags, Mode::empty()) else {
        return;
    };
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(&processes, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        check(number(entry.file_name()));
    }
}

/// A decimal number; 0 for what is none.
fn number(text: &CStr) -> i32 {
    text.to_bytes()
        .iter()
        .fold(0, |number: i32, byte| match byte {
            b'0'..=b'9' if number >= 0 => {
                number.saturating_mul(10).saturating_add(i32::from(byte.saturating_sub(b'0')))
            }
            _ => -1,
        })
        .max(0)
}

/// Makes SIGCHLD interrupt a wait: its default is to be ignored, and Berth may have been started with it ignored for good,
/// whereupon nothing could be waited for at all.
fn watch_children() {
    extern "C" fn nothing(_: c_int) {}
    // SAFETY: all zero is a valid value; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as libc::sighandler_t;
        libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut());
    }
}

/// Says the last word and ends this process.
fn leave(channel: c_int, report: Report) -> ! {
    say(channel, &report.encode());
    exit()
}

/// Tells Berth. When it is not there any more nobody wants to know: the signal for that is blocked.
pub(super) fn say(channel: c_int, bytes: &[u8]) {
    // SAFETY: the bytes are valid for their length. Never blocks: a channel holds far more than all a reaper says.
    unsafe { libc::write(channel, bytes.as_ptr().cast(), bytes.len()) };
}

fn every_signal() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call writes the whole set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn every_signal_but_child() -> libc::sigset_t {
    let mut set = every_signal();
    // SAFETY: the set is valid and the signal one of the system's.
    unsafe { libc::sigdelset(&raw mut set, libc::SIGCHLD) };
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_channel() {
        for report in [
            Report::Born(4_194_304),
            Report::Started,
            Report::Failed(Stage::Prepare, 11),
            Report::Failed(Stage::Directory, 2),
            Report::Failed(Stage::Program, 13),
            Report::Exited(255),
            Report::Signalled(9),
            Report::Gone,
            Report::Stuck,
        ] {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Report::decode([0; 8]), None);
        assert_eq!(Report::decode([2, 9, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn a_process_number_is_all_digits() {
        for (text, wanted) in
            [(c"1", 1), (c"4194304", 4_194_304), (c"self", 0), (c"12x", 0), (c"", 0), (c"99999999999", i32::MAX)]
        {
            assert_eq!(number(text), wanted, "{text:?}");
        }
    }

    /// Each source of children must do alone, since a machine may lack the others.
    #[test]
    fn every_way_to_find_children_finds_them() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let wanted = i32::try_from(child.id()).unwrap();
        type Source = fn(&mut dyn FnMut(i32));
        for source in [listed_children as Source, listed_processes] {
            let mut found = false;
            source(&mut |pid| found |= pid == wanted);
            assert!(found);
        }
        let mut found = false;
        each_child(&mut |pid| found |= pid.as_raw_pid() == wanted);
        assert!(found);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
