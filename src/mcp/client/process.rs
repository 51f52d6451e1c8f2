//! A server's process from its start to its end: its own process group, and the closing order of spec mcp 2.5.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::os::signal;

/// How long each polite step of closing is given.
pub const GRACE: Duration = Duration::from_secs(2);

/// How long the end of a killed process is waited for: only one that hangs in the kernel takes longer.
const KILLED: Duration = Duration::from_secs(2);

/// Which program is a server, and what it is given.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program and its arguments; nothing is expanded and no shell sees them. A program without a slash is looked for on the `PATH`
    /// of `environment`.
    pub argv: Vec<OsString>,
    /// Its whole environment: nothing of this process's is added.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it starts; this process's directory when none is given.
    pub directory: Option<PathBuf>,
    /// Where its standard error goes.
    pub stderr: StderrTo,
    /// How long each polite step of closing is given: end of input, then SIGTERM, then SIGKILL.
    pub grace: Duration,
}

/// Where a server's standard error goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StderrTo {
    /// To this process's, as it comes.
    Inherit,
    /// The last 4 KiB are kept for error messages.
    Capture,
    /// Nowhere.
    Discard,
}

impl Launch {
    /// A program with no environment, whose standard error is captured.
    pub fn new(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            directory: None,
            stderr: StderrTo::Capture,
            grace: GRACE,
        }
    }
}

/// A running server. Dropping it ends it.
pub(super) struct Process {
    child: Mutex<Child>,
    group: Pid,
    /// Readable once the process has ended, whether or not it was reaped.
    exit: OwnedFd,
    status: OnceLock<ExitStatus>,
    grace: Duration,
}

impl Process {
    /// Starts a program in a process group of its own, its input and output being pipes.
    pub(super) fn start(launch: &Launch) -> io::Result<(Self, Pipes)> {
        let (program, arguments) = launch.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(launch.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        command.stderr(match launch.stderr {
            StderrTo::Inherit => Stdio::inherit(),
            StderrTo::Capture => Stdio::piped(),
            StderrTo::Discard => Stdio::null(),
        });
        if let Some(directory) = &launch.directory {
            command.current_dir(directory);
        }
        signal::start_with_defaults(&mut command);
        let mut child = command.spawn()?;
        let pipes = Pipes {
            stdin: child.stdin.take().map(OwnedFd::from),
            stdout: child.stdout.take().map(OwnedFd::from),
            stderr: child.stderr.take().map(OwnedFd::from),
        };
        let group = Pid::from_child(&child);
        match exit_of(group) {
            Ok(exit) => {
                let process =
                    Self { child: Mutex::new(child), group, exit, status: OnceLock::new(), grace: launch.grace };
                Ok((process, pipes))
            }
            Err(error) => {
                // It cannot be watched, so it is not left running.
                let _ = kill_process_group(group, Signal::KILL);
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Its process id, which is its group's too.
    pub(super) fn id(&self) -> u32 {
        self.group.as_raw_nonzero().get().unsigned_abs()
    }

    /// A descriptor that is readable once the process has ended.
    pub(super) fn exit(&self) -> BorrowedFd<'_> {
        self.exit.as_fd()
    }

    /// How it ended, where it has; what it left behind in its group is ended too.
    ///
    /// The order matters: until the leader is reaped its number cannot be another's, so the group that is killed is still this one.
    pub(super) fn reap(&self) -> Option<ExitStatus> {
        let mut child = self.child();
        if let Some(status) = self.status.get() {
            return Some(*status);
        }
        if !ready(self.exit(), Duration::ZERO) {
            return None;
        }
        let _ = kill_process_group(self.group, Signal::KILL);
        let status = child.wait().ok()?;
        Some(*self.status.get_or_init(|| status))
    }

    /// Ends it, once its input has been closed: waits, then SIGTERM, waits, then SIGKILL. Takes twice the grace and two seconds at most.
    pub(super) fn end(&self) -> Option<ExitStatus> {
        if !ready(self.exit(), self.grace) {
            self.signal(Signal::TERM);
            // A stopped process takes no notice until it is continued.
            self.signal(Signal::CONT);
            if !ready(self.exit(), self.grace) {
                self.signal(Signal::KILL);
                ready(self.exit(), KILLED);
            }
        }
        self.reap()
    }

    fn signal(&self, signal: Signal) {
        let _child = self.child();
        if self.status.get().is_none() {
            let _ = kill_process_group(self.group, signal);
        }
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// The ends of a server's streams that are ours.
pub(super) struct Pipes {
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: Option<OwnedFd>,
    pub(super) stderr: Option<OwnedFd>,
}

/// A descriptor that is readable once a child has ended: the kernel's own, or, where it has none, the end of a pipe whose other end a
/// thread holds until then.
fn exit_of(pid: Pid) -> io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    if let Ok(descriptor) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        return Ok(descriptor);
    }
    exit_by_thread(pid)
}

fn exit_by_thread(pid: Pid) -> io::Result<OwnedFd> {
    let (read, write) = io::pipe()?;
    thread::Builder::new().name("mcp exit".to_owned()).stack_size(64 * 1024).spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(pid), options), Err(rustix::io::Errno::INTR)) {}
        drop(write);
    })?;
    Ok(read.into())
}

/// Waits for a descriptor to be readable or at its end; false when it is not in time.
pub(super) fn ready(descriptor: BorrowedFd<'_>, limit: Duration) -> bool {
    let deadline = Instant::now().checked_add(limit);
    loop {
        let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        match poll(&mut set, timespec(deadline).as_ref()) {
            Ok(count) => return count > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// How long until a moment, as the system takes it; none for ever.
pub(super) fn timespec(deadline: Option<Instant>) -> Option<Timespec> {
    Timespec::try_from(deadline?.saturating_duration_since(Instant::now())).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::ExitStatusExt;

    use super::super::testing::{ended, living};
    use super::*;

    fn shell(script: &str, grace: Duration) -> (Process, BufReader<std::fs::File>, Pipes) {
        let mut launch = Launch::new(["/bin/sh", "-c", script]);
        launch.environment = vec![("PATH".into(), "/usr/bin:/bin".into()), ("ONLY".into(), "this".into())];
        launch.grace = grace;
        let (process, mut pipes) = Process::start(&launch).unwrap();
        let stdout = BufReader::new(std::fs::File::from(pipes.stdout.take().unwrap()));
        (process, stdout, pipes)
    }

    fn heard(stdout: &mut impl BufRead) -> String {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn the_environment_is_what_was_given_and_no_more() {
        let (process, mut stdout, _pipes) = shell("exec env", GRACE);
        let mut all = String::new();
        stdout.read_to_string(&mut all).unwrap();
        let mut names: Vec<&str> = all.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
        // The shell's own.
        names.retain(|name| !matches!(*name, "PWD" | "_" | "SHLVL" | "OLDPWD"));
        names.sort_unstable();
        assert_eq!(names, ["ONLY", "PATH"]);
        assert!(process.end().unwrap().success());
    }

    #[test]
    fn the_end_of_input_is_enough_for_one_that_listens() {
        let (process, mut stdout, mut pipes) = shell("echo up; cat; exit 7", Duration::from_secs(60));
        assert_eq!(heard(&mut stdout), "up\n");
        drop(pipes.stdin.take());
        assert_eq!(process.end().unwrap().code(), Some(7));
    }

    #[test]
    fn one_that_ignores_the_end_of_input_and_sigterm_is_killed_with_all_its_children() {
        let script = r#"trap "" TERM; sleep 1000 & (trap "" TERM; sleep 1000) & echo up; while :; do wait; done"#;
        let (process, mut stdout, mut pipes) = shell(script, Duration::from_millis(50));
        assert_eq!(heard(&mut stdout), "up\n");
        drop(pipes.stdin.take());
        assert_eq!(living(process.id()), 3);
        assert_eq!(process.end().unwrap().signal(), Some(9));
        // The output ends when nobody holds it.
        assert_eq!(stdout.read_to_end(&mut Vec::new()).unwrap(), 0);
        assert!(ended(process.id()));
    }

    #[test]
    fn sigterm_is_enough_for_one_that_only_ignores_the_end_of_input_even_when_it_is_stopped() {
        let (process, mut stdout, mut pipes) = shell(
            r#"trap "exit 5" TERM; echo up; kill -STOP $$; while :; do sleep 0.01; done"#,
            Duration::from_secs(60),
        );
        assert_eq!(heard(&mut stdout), "up\n");
        drop(pipes.stdin.take());
        // The first step would take its whole minute.
        process.signal(Signal::TERM);
        process.signal(Signal::CONT);
        assert_eq!(process.end().unwrap().code(), Some(5));
    }

    #[test]
    fn what_a_server_left_behind_in_its_group_ends_with_it() {
        let (process, mut stdout, pipes) = shell("sleep 1000 & echo up; exit 3", GRACE);
        assert_eq!(heard(&mut stdout), "up\n");
        assert!(ready(process.exit(), Duration::from_secs(60)));
        assert_eq!(process.reap().unwrap().code(), Some(3));
        assert_eq!(stdout.read_to_end(&mut Vec::new()).unwrap(), 0);
        drop(pipes);
    }

    #[test]
    fn an_end_is_seen_without_the_kernels_descriptor_too() {
        let mut child = Command::new("/bin/sh").args(["-c", "read x"]).stdin(Stdio::piped()).spawn().unwrap();
        let exit = exit_by_thread(Pid::from_child(&child)).unwrap();
        assert!(!ready(exit.as_fd(), Duration::ZERO));
        drop(child.stdin.take());
        assert!(ready(exit.as_fd(), Duration::from_secs(60)));
        child.wait().unwrap();
    }
}
