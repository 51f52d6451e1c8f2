//! Commands: started in a directory, watched by a reaper each, and ended together with everything they started.
//!
//! A [`Command`] becomes a [`Child`]; between the two stands a process of its own (`os/reaper`) that adopts whatever the command
//! leaves behind. Dropping a [`Child`], or the end of this process however it comes, ends the whole tree.
//!
//! What a command gets: the directory, arguments and environment it was given and no others, a session of its own without a
//! terminal, standard input from nowhere or from a pipe, default signal dispositions, no other descriptor. Its umask, limits, user and
//! out-of-memory score are Berth's.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use nix::libc::c_char;
use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process_group};

use super::cancel::Cancel;
use super::launch::{Plan, Stage};
pub use super::orphan::adopt_orphans;
use super::orphan::{Reaper, end_orphans, wait_readable};
use super::reaper::Report;

/// What to start, and with what.
pub struct Command<'a> {
    /// The program's file; a relative one is taken from `directory`. `PATH` is not searched.
    pub program: &'a Path,
    /// Arguments, the program's name first.
    pub arguments: &'a [&'a OsStr],
    /// The whole environment.
    pub environment: &'a [(&'a OsStr, &'a OsStr)],
    /// The directory it starts in.
    pub directory: BorrowedFd<'a>,
    /// Where its standard input comes from.
    pub input: Input,
    /// Where its standard output and error go.
    pub output: Output,
}

/// A command's standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// At its end from the beginning: `/dev/null`, or a closed pipe where that is missing.
    Nothing,
    /// A pipe: [`Child::stdin`].
    Pipe,
}

/// A command's standard output and error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Both into one pipe, in the order they were written: [`Child::stdout`].
    Together,
    /// A pipe each: [`Child::stdout`] and [`Child::stderr`].
    Apart,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code from 0 to 255.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// What is left of everything a command started, itself included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    /// Something lives, or what was ended was not seen to be gone yet.
    Living,
    /// Nothing is left.
    Gone,
    /// Something did not die within five seconds of SIGKILL: it waits in the kernel, or belongs to another user.
    Stuck,
    /// The reaper itself was killed, from outside or by the command. What could still be found was ended.
    Lost,
}

/// Why a command could not be started.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A name, an argument or a variable holds a NUL character, which no program can be given.
    Nul,
    /// The machine ran out of processes, descriptors or memory.
    Prepare(io::Error),
    /// The directory could not be entered.
    Directory(io::Error),
    /// The program could not be executed.
    Program(io::Error),
    /// Nobody waits for it any more.
    Cancelled,
    /// The process that was to watch over it was killed.
    Lost,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nul => f.write_str("a program cannot be given a NUL character"),
            Self::Prepare(why) => write!(f, "no process could be made for it: {why}"),
            Self::Directory(why) => write!(f, "its directory cannot be entered: {why}"),
            Self::Program(why) => write!(f, "the program cannot be executed: {why}"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Lost => f.write_str("the process that was to watch over it was killed"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Prepare(why) | Self::Directory(why) | Self::Program(why) => Some(why),
            Self::Nul | Self::Cancelled | Self::Lost => None,
        }
    }
}

impl Command<'_> {
    /// Starts the command, and returns when its program runs or could not be made to.
    ///
    /// Waits while the system loads the program, which on a network file system may take long; `cancel` ends that wait.
    pub fn spawn(&self, cancel: &Cancel) -> Result<Child, Error> {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let program = terminated(self.program.as_os_str().as_bytes().to_vec())?;
        let arguments = self
            .arguments
            .iter()
            .map(|argument| terminated(argument.as_bytes().to_vec()))
            .collect::<Result<Vec<_>, _>>()?;
        let environment = self
            .environment
            .iter()
            .map(|(name, value)| terminated([name.as_bytes(), b"=", value.as_bytes()].concat()))
            .collect::<Result<Vec<_>, _>>()?;
        let argument_list = pointers(&arguments);
        let environment_list = pointers(&environment);

        let (channel, far_channel) = UnixStream::pair().map_err(Error::Prepare)?;
        channel.set_nonblocking(true).map_err(Error::Prepare)?;
        let (far_input, stdin) = match self.input {
            Input::Nothing => (nothing().map_err(Error::Prepare)?, None),
            Input::Pipe => pipe().map(|(read, write)| (read, Some(write.into()))).map_err(Error::Prepare)?,
        };
        let (stdout, far_output) = readable_pipe().map_err(Error::Prepare)?;
        let (stderr, far_error) = match self.output {
            Output::Together => (None, None),
            Output::Apart => {
                readable_pipe().map(|(read, write)| (Some(read.into()), Some(write))).map_err(Error::Prepare)?
            }
        };
        let plan = Plan {
            program: program.as_ptr(),
            arguments: argument_list.as_ptr(),
            environment: environment_list.as_ptr(),
            directory: self.directory.as_raw_fd(),
            standard: [&far_input, &far_output, far_error.as_ref().unwrap_or(&far_output)].map(AsRawFd::as_raw_fd),
            channel: far_channel.as_raw_fd(),
        };
        let reaper = Reaper::fork(&plan).map_err(Error::Prepare)?;
        // The far ends must be the reaper's and the command's alone, else nobody's end would be seen.
        drop((far_channel, far_input, far_output, far_error));
        let child = Child {
            stdin,
            stdout: Some(stdout.into()),
            stderr,
            command: None,
            reaper,
            channel,
            partial: Vec::with_capacity(Report::SIZE),
            exit: None,
            killed: false,
            last: None,
            tree: Tree::Living,
        };
        child.started(cancel)
    }
}

/// A command that was started, and everything it started in turn. Dropping it kills all of that, without waiting until it is gone.
#[derive(Debug)]
pub struct Child {
    /// The pipe to its standard input; dropping it is the input's end.
    pub stdin: Option<File>,
    /// The pipe from its standard output; reads do not block.
    pub stdout: Option<File>,
    /// The pipe from its standard error; reads do not block.
    pub stderr: Option<File>,
    command: Option<Pid>,
    reaper: Reaper,
    channel: UnixStream,
    /// The beginning of a report whose end has not arrived.
    partial: Vec<u8>,
    exit: Option<Exit>,
    killed: bool,
    /// The last report that came, while it says why the reaper left.
    last: Option<Report>,
    tree: Tree,
}

impl Child {
    /// The command's process id, which is its process group's and its session's as well.
    pub fn id(&self) -> u32 {
        self.command.and_then(|pid| u32::try_from(pid.as_raw_pid()).ok()).unwrap_or_default()
    }

    /// A descriptor for a poll set, readable when [`Child::update`] has something to learn.
    pub fn status_descriptor(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Learns what has happened since. Does not block, but where the tree is found gone or lost: then for as long as the reaper's process
    /// takes to end, and a lost tree to be killed.
    pub fn update(&mut self) {
        while self.tree == Tree::Living {
            match self.next_report() {
                Ok(Some(report)) => self.take(report),
                Ok(None) => return,
                Err(_) => self.bury(),
            }
        }
    }

    /// How the command itself ended, as far as [`Child::update`] has learned. Its descendants may live on.
    pub fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// What is left of the tree, as far as [`Child::update`] has learned.
    pub fn tree(&self) -> Tree {
        self.tree
    }

    /// Sends a signal, 1 to 64, to the command's process group, if any of it is left.
    pub fn signal(&self, signal: u8) {
        if (1..=64).contains(&signal) {
            // A channel that takes no more is one whose reaper has left or was stopped with thousands of signals waiting.
            let _ = (&self.channel).write(&[signal]);
        }
    }

    /// Kills the command and all it started. Returns at once; [`Child::wait_tree`] waits for it. Nothing can be signalled afterwards.
    pub fn kill_tree(&mut self) {
        self.killed = true;
        let _ = self.channel.shutdown(Shutdown::Write);
        self.reaper.wake();
    }

    /// Helps the killing along: to be called every [`Child::NUDGE`] while a killed tree is waited for. [`Child::wait_tree`] does.
    ///
    /// A command may have stopped its reaper, or go on stopping it, so it is woken and the command's group killed from here as well.
    pub fn nudge(&mut self) {
        self.update();
        if self.killed && self.tree == Tree::Living {
            self.reaper.wake();
            self.kill_group();
        }
    }

    /// How long a killed tree is waited for, should something of it resist.
    pub const GRACE: Duration = Duration::from_secs(2);

    /// How often a tree that is slow to die is nudged.
    pub const NUDGE: Duration = Duration::from_millis(100);

    /// Kills the command's group, unless the command was waited for: then the number may be a stranger's by now.
    fn kill_group(&self) {
        if self.exit.is_none()
            && let Some(command) = self.command
        {
            let _ = kill_process_group(command, Signal::KILL);
        }
    }

    /// Waits until the command itself has ended, or for `deadline`.
    pub fn wait_exit(&mut self, deadline: Instant) -> Option<Exit> {
        self.wait_until(deadline, |child| child.exit.is_some());
        self.exit
    }

    /// Waits until no more of the tree lives than can be helped, or for `deadline`; answers what is left of it.
    pub fn wait_tree(&mut self, deadline: Instant) -> Tree {
        self.wait_until(deadline, |_| false);
        self.tree
    }

    fn wait_until(&mut self, deadline: Instant, enough: impl Fn(&Self) -> bool) {
        loop {
            self.update();
            let left = deadline.saturating_duration_since(Instant::now());
            if self.tree != Tree::Living || enough(self) || left.is_zero() {
                return;
            }
            let longest = if self.killed { left.min(Self::NUDGE) } else { left };
            if !wait_readable(&[self.channel.as_fd()], longest) {
                self.nudge();
            }
        }
    }

    /// Waits until the program runs.
    fn started(mut self, cancel: &Cancel) -> Result<Self, Error> {
        let watched = cancel.descriptor().map_err(Error::Prepare)?;
        loop {
            match self.next_report() {
                Ok(Some(Report::Started)) => return Ok(self),
                Ok(Some(Report::Failed(stage, errno))) => {
                    self.command = None;
                    self.take(Report::Gone);
                    let why = io::Error::from_raw_os_error(errno);
                    return Err(match stage {
                        Stage::Prepare => Error::Prepare(why),
                        Stage::Directory => Error::Directory(why),
                        Stage::Program => Error::Program(why),
                    });
                }
                Ok(Some(report)) => {
                    self.take(report);
                    continue;
                }
                Ok(None) => {}
                Err(_) => {
                    self.bury();
                    return Err(Error::Lost);
                }
            }
            if cancel.is_cancelled() {
                // The reaper hears nothing until the program is executed, which may take for ever; then the command's process is killed
                // from here. Not the reaper, for the program may just have begun, and would leave orphans.
                self.kill_tree();
                self.wait_tree(Instant::now() + Self::GRACE);
                return Err(Error::Cancelled);
            }
            if !wait_readable(&[self.channel.as_fd(), watched], Self::NUDGE) {
                // The command may run already and have stopped its reaper before that could say so.
                self.reaper.wake();
            }
        }
    }

    fn take(&mut self, report: Report) {
        match report {
            Report::Exited(code) => self.exit = Some(Exit::Code(code)),
            Report::Signalled(signal) => self.exit = Some(Exit::Signal(signal)),
            Report::Gone | Report::Stuck => {
                self.last = Some(report);
                self.bury();
            }
            Report::Born(pid) => self.command = Pid::from_raw(pid),
            Report::Started | Report::Failed(..) => {}
        }
    }

    /// Reads one report: `None` when none is there now, an error when no more will come.
    fn next_report(&mut self) -> io::Result<Option<Report>> {
        loop {
            let mut buffer = [0; Report::SIZE];
            let wanted = buffer.get_mut(self.partial.len()..).unwrap_or_default();
            match (&self.channel).read(wanted) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.partial.extend(wanted.iter().take(count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            if let Ok(whole) = <[u8; Report::SIZE]>::try_from(self.partial.as_slice()) {
                self.partial.clear();
                return Report::decode(whole).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into());
            }
        }
    }

    /// Waits for the reaper's process, which has left or was killed, and settles what is left of the tree.
    fn bury(&mut self) {
        self.reaper.wait();
        self.tree = match self.last {
            Some(Report::Gone) => Tree::Gone,
            Some(Report::Stuck) => Tree::Stuck,
            _ => {
                // The command died with its parent; the rest of its group has to be ended from here.
                self.kill_group();
                end_orphans(Instant::now() + Self::GRACE);
                Tree::Lost
            }
        };
    }
}

fn terminated(bytes: Vec<u8>) -> Result<CString, Error> {
    CString::new(bytes).map_err(|_| Error::Nul)
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// A pipe whose reading end does not block. The writing end does: that it might not is nothing a program expects of its output.
fn readable_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe()?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((read, write))
}

fn nothing() -> io::Result<OwnedFd> {
    match open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(nothing) => Ok(nothing),
        // A root without devices; a pipe nobody writes to is at its end as well.
        Err(_) => pipe().map(|(read, _)| read),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, kill_process, pidfd_open};
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    /// How long a test waits for what should take milliseconds, on a machine that does much else.
    const LONG: Duration = Duration::from_secs(60);

    fn soon() -> Instant {
        Instant::now() + LONG
    }

    fn spawn(program: &str, arguments: &[&str], output: Output) -> Result<Child, Error> {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let directory = File::open("/").unwrap();
        Command {
            program: Path::new(program),
            arguments: &arguments,
            environment: &[("PATH".as_ref(), &std::env::var_os("PATH").unwrap())],
            directory: directory.as_fd(),
            input: Input::Nothing,
            output,
        }
        .spawn(&Cancel::new())
    }

    fn sh(line: &str) -> Child {
        spawn("/bin/sh", &["sh", "-c", line], Output::Together).unwrap()
    }

    /// Reads one of a child's pipes until `enough` of it has come, or to its end: which may come a moment after the command's own, since a
    /// process that another test forks meanwhile holds a copy for that moment.
    fn read_bytes(pipe: &mut Option<File>, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let deadline = soon();
        let pipe = pipe.as_mut().unwrap();
        let mut bytes = Vec::new();
        loop {
            let mut buffer = [0; 4096];
            match pipe.read(&mut buffer) {
                Ok(0) => return bytes,
                Ok(count) => bytes.extend(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(Instant::now() < deadline, "too long; so far {:?}", String::from_utf8_lossy(&bytes));
                    wait_readable(&[pipe.as_fd()], LONG);
                }
                Err(error) => panic!("{error}"),
            }
            if enough(&bytes) {
                return bytes;
            }
        }
    }

    fn read(pipe: &mut Option<File>, enough: impl Fn(&str) -> bool) -> String {
        let bytes = read_bytes(pipe, |bytes| std::str::from_utf8(bytes).is_ok_and(&enough));
        String::from_utf8(bytes).unwrap()
    }

    fn to_end(pipe: &mut Option<File>) -> String {
        read(pipe, |_| false)
    }

    /// The numbers on the first `count` lines of what a child prints.
    fn pids(child: &mut Child, count: usize) -> Vec<i32> {
        let text = read(&mut child.stdout, |text| text.matches('\n').count() >= count);
        let pids: Vec<i32> = text.lines().map(|line| line.trim().parse().unwrap()).collect();
        assert_eq!(pids.len(), count, "{text:?}");
        pids
    }

    fn exists(pid: i32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    /// Waits for the end of a process that is not this one's child.
    fn wait_end(pid: i32) {
        // A process that is gone already has no descriptor to wait for.
        if let Ok(end) = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()) {
            let mut set = [rustix::event::PollFd::new(&end, rustix::event::PollFlags::IN)];
            let longest = rustix::event::Timespec::try_from(LONG).unwrap();
            assert_eq!(rustix::event::poll(&mut set, Some(&longest)), Ok(1), "{pid} lives on");
        }
    }

    fn ends(mut child: Child) -> (Option<Exit>, Tree) {
        let tree = child.wait_tree(soon());
        (child.exit(), tree)
    }

    fn parent_of(pid: i32) -> i32 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn a_command_gets_what_it_was_given_and_nothing_else() {
        let directory = File::open(std::env::temp_dir()).unwrap();
        // A descriptor that would be inherited, and one with a high number.
        let leaked = rustix::io::dup(&directory).unwrap();
        let high = rustix::io::fcntl_dupfd_cloexec(&directory, 600).unwrap();
        rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
            let mut child = Command {
                program: Path::new(program),
                arguments: &arguments,
                environment: &[("A".as_ref(), "b c".as_ref()), ("N".as_ref(), OsStr::from_bytes(b"\xff"))],
                directory: directory.as_fd(),
                input: Input::Nothing,
                output: Output::Together,
            }
            .spawn(&Cancel::new())
            .unwrap();
            let output = read_bytes(&mut child.stdout, |_| false);
            assert_eq!(ends(child), (Some(Exit::Code(0)), Tree::Gone));
            output
        };
        assert_eq!(run("/usr/bin/env", &["env"]), b"A=b c\nN=\xff\n");
        let wanted = std::fs::canonicalize(std::env::temp_dir()).unwrap();
        assert_eq!(run("/bin/sh", &["sh", "-c", "pwd -P"]), [wanted.as_os_str().as_bytes(), b"\n"].concat());
        // The fourth is the one that lists them.
        assert_eq!(run("/bin/ls", &["ls", "/proc/self/fd"]), b"0\n1\n2\n3\n");
        assert_eq!(run("/bin/cat", &["cat"]), b"");
        drop((leaked, high));
    }

    #[test]
    fn signals_are_unblocked_and_at_their_defaults() {
        use nix::sys::signal::{SigSet, SigmaskHow};
        // Rust ignores SIGPIPE in the test's process already.
        let mut blocked = SigSet::empty();
        blocked.add(nix::sys::signal::SIGUSR1);
        let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap();
        let mut child = spawn("/bin/cat", &["cat", "/proc/self/status"], Output::Together).unwrap();
        before.thread_set_mask().unwrap();
        let status = to_end(&mut child.stdout);
        for name in ["SigBlk:", "SigIgn:", "SigCgt:"] {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            assert!(line.ends_with("\t0000000000000000"), "{line}");
        }
    }

    #[test]
    fn a_command_has_a_session_of_its_own_and_no_terminal() {
        let mut child = spawn("/bin/cat", &["cat", "/proc/self/stat"], Output::Together).unwrap();
        let pid = child.id().to_string();
        let stat = to_end(&mut child.stdout);
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // State, parent, group, session, terminal.
        assert_eq!(fields[2..5], [pid.as_str(), pid.as_str(), "0"]);
        assert_ne!(ends(sh(": < /dev/tty")).0, Some(Exit::Code(0)));
    }

    #[test]
    fn a_reaper_holds_its_channel_alone() {
        let mut child = sh("echo $$; exec sleep 1000");
        let reaper = parent_of(pids(&mut child, 1)[0]);
        let held: Vec<_> = std::fs::read_dir(format!("/proc/{reaper}/fd")).unwrap().collect();
        assert_eq!(held.len(), 1, "{held:?}");
        assert_eq!(std::fs::read_to_string(format!("/proc/{reaper}/comm")).unwrap(), "berth-reaper\n");
        child.kill_tree();
        assert_eq!(ends(child), (Some(Exit::Signal(9)), Tree::Gone));
        assert!(!exists(reaper));
    }

    #[test]
    fn output_goes_where_it_was_asked_to() {
        let line = "echo one; echo two >&2; echo three";
        let mut child = sh(line);
        assert_eq!(to_end(&mut child.stdout), "one\ntwo\nthree\n");
        let mut child = spawn("/bin/sh", &["sh", "-c", line], Output::Apart).unwrap();
        assert_eq!(to_end(&mut child.stdout), "one\nthree\n");
        assert_eq!(to_end(&mut child.stderr), "two\n");
    }

    #[test]
    fn input_goes_through_a_pipe_and_has_an_end() {
        let directory = File::open("/").unwrap();
        let mut child = Command {
            program: Path::new("/bin/cat"),
            arguments: &["cat".as_ref()],
            environment: &[],
            directory: directory.as_fd(),
            input: Input::Pipe,
            output: Output::Together,
        }
        .spawn(&Cancel::new())
        .unwrap();
        child.stdin.as_mut().unwrap().write_all(b"hello").unwrap();
        assert_eq!(read(&mut child.stdout, |text| text == "hello"), "hello");
        child.stdin = None;
        assert_eq!(ends(child), (Some(Exit::Code(0)), Tree::Gone));
    }

    #[test]
    fn what_cannot_be_started_says_why() {
        let code = |result: Result<Child, Error>| match result {
            Err(Error::Program(why)) => why.raw_os_error(),
            other => panic!("{other:?}"),
        };
        let is = |errno: rustix::io::Errno| Some(errno.raw_os_error());
        let run = |program: &str, argument: &str| spawn(program, &["x", argument], Output::Together);
        assert_eq!(code(run("/no/such/program", "")), is(rustix::io::Errno::NOENT));
        assert_eq!(code(run("/etc/passwd", "")), is(rustix::io::Errno::ACCESS));
        assert_eq!(code(run("/bin/true", &"x".repeat(4 << 20))), is(rustix::io::Errno::TOOBIG));
        assert!(matches!(run("/bin/true", "a\0b"), Err(Error::Nul)));

        let file = File::open("/etc/passwd").unwrap();
        let mut command = Command {
            program: Path::new("/bin/true"),
            arguments: &["true".as_ref()],
            environment: &[],
            directory: file.as_fd(),
            input: Input::Nothing,
            output: Output::Together,
        };
        assert!(matches!(command.spawn(&Cancel::new()), Err(Error::Directory(_))));
        let root = File::open("/").unwrap();
        command.directory = root.as_fd();
        let cancelled = Cancel::new();
        cancelled.cancel();
        assert!(matches!(command.spawn(&cancelled), Err(Error::Cancelled)));
    }

    #[test]
    fn an_end_is_told_as_it_was() {
        for (line, wanted) in [
            ("exit 0", Exit::Code(0)),
            ("exit 255", Exit::Code(255)),
            ("kill -9 $$", Exit::Signal(9)),
            ("kill -TERM $$", Exit::Signal(15)),
            ("kill -PIPE $$", Exit::Signal(13)),
            ("read line", Exit::Code(1)),
            ("exec 0<&- 1>&- 2>&-", Exit::Code(0)),
        ] {
            assert_eq!(ends(sh(line)), (Some(wanted), Tree::Gone), "{line}");
        }
    }

    #[test]
    fn a_signal_reaches_the_whole_group() {
        let mut child = sh("sleep 1000 & echo $!; exec sleep 1000");
        let pid = pids(&mut child, 1)[0];
        child.signal(0);
        child.signal(200);
        child.signal(15);
        assert_eq!(ends(child), (Some(Exit::Signal(15)), Tree::Gone));
        assert!(!exists(pid));
    }

    #[test]
    fn a_group_without_its_leader_is_still_signalled() {
        let mut child = sh("(trap 'echo caught; exit 0' TERM; echo 1; sleep 1000 & wait) & read line");
        pids(&mut child, 1);
        assert_eq!(child.wait_exit(soon()), Some(Exit::Code(1)));
        child.signal(15);
        assert_eq!(read(&mut child.stdout, |text| text == "caught\n"), "caught\n");
        child.kill_tree();
        assert_eq!(ends(child), (Some(Exit::Code(1)), Tree::Gone));
    }

    #[test]
    fn descendants_live_until_the_tree_is_killed() {
        let mut child = sh(
            "sleep 1000 & echo $!; setsid sleep 1000 & echo $!; (setsid sh -c 'setsid sleep 1000 & echo $!' & ) & wait $!",
        );
        let pids = pids(&mut child, 3);
        assert_eq!(child.wait_exit(soon()), Some(Exit::Code(0)));
        child.update();
        assert_eq!(child.tree(), Tree::Living);
        assert!(pids.iter().all(|pid| exists(*pid)));
        child.kill_tree();
        assert_eq!(child.wait_tree(soon()), Tree::Gone);
        assert!(pids.iter().all(|pid| !exists(*pid)));
        // It stays so.
        child.kill_tree();
        child.signal(9);
        child.update();
        assert_eq!((child.exit(), child.tree()), (Some(Exit::Code(0)), Tree::Gone));
    }

    #[test]
    fn dropping_a_child_ends_its_tree() {
        let mut child =
            sh("trap '' TERM HUP INT; echo $$; setsid sleep 1000 >&- 2>&- & echo $!; exec >&- 2>&-; sleep 1000");
        let pids = pids(&mut child, 2);
        assert_eq!(to_end(&mut child.stdout), "");
        drop(child);
        pids.into_iter().for_each(wait_end);
    }

    #[test]
    fn a_stopped_command_and_a_stopped_reaper_are_ended_too() {
        for line in ["echo $$; kill -STOP $$; sleep 1000", "echo $$; kill -STOP $PPID; sleep 1000 & exec sleep 1000"] {
            let mut child = sh(line);
            let pid = pids(&mut child, 1)[0];
            child.kill_tree();
            assert_eq!(ends(child), (Some(Exit::Signal(9)), Tree::Gone), "{line}");
            assert!(!exists(pid), "{line}");
        }
    }

    /// A command may begin in the very moment its start is cancelled.
    #[test]
    fn a_cancelled_start_leaves_nothing() {
        let directory = File::open("/").unwrap();
        let marker = format!("BERTH_TEST_MARKER={}", std::process::id());
        let left = || {
            let marked =
                |environment: Vec<u8>| environment.split(|byte| *byte == 0).any(|found| found == marker.as_bytes());
            let processes = std::fs::read_dir("/proc").unwrap();
            processes.filter_map(|entry| std::fs::read(entry.unwrap().path().join("environ")).ok()).any(marked)
        };
        let (name, value) = marker.split_once('=').unwrap();
        for round in 0..100 {
            let cancel = Cancel::new();
            let result = std::thread::scope(|scope| {
                scope.spawn(|| {
                    // A little later each time.
                    for step in 0..round * 5_000 {
                        std::hint::black_box(step);
                    }
                    cancel.cancel();
                });
                let command = Command {
                    program: Path::new("/bin/sh"),
                    arguments: &["sh".as_ref(), "-c".as_ref(), "setsid sleep 1000 & sleep 1000 | sleep 1000".as_ref()],
                    environment: &[
                        ("PATH".as_ref(), &std::env::var_os("PATH").unwrap()),
                        (name.as_ref(), value.as_ref()),
                    ],
                    directory: directory.as_fd(),
                    input: Input::Nothing,
                    output: Output::Together,
                };
                command.spawn(&cancel)
            });
            match result {
                Ok(mut child) => {
                    child.kill_tree();
                    assert_eq!(child.wait_tree(soon()), Tree::Gone);
                }
                Err(why) => assert!(matches!(why, Error::Cancelled), "{why}"),
            }
            assert!(!left());
        }
    }

    /// Without adoption: the command dies with its parent, and the rest of its group is ended from here.
    #[test]
    fn a_command_that_kills_its_reaper_is_ended() {
        let mut child = sh("sleep 1000 & echo $!; echo $$; exec sleep 1000");
        let pids = pids(&mut child, 2);
        kill_process(Pid::from_raw(parent_of(pids[1])).unwrap(), Signal::KILL).unwrap();
        assert_eq!(child.wait_tree(soon()), Tree::Lost);
        pids.into_iter().for_each(wait_end);
        // At once, maybe before it was said that the command runs.
        for _ in 0..20 {
            match spawn("/bin/sh", &["sh", "-c", "kill -9 $PPID; sleep 1000"], Output::Together) {
                Ok(mut child) => assert_eq!(child.wait_tree(soon()), Tree::Lost),
                Err(why) => assert!(matches!(why, Error::Lost), "{why}"),
            }
        }
    }

    /// Each process of these forks one other and ends, for ever: as hard to catch as a bomb that doubles, and no danger to the machine.
    #[test]
    fn what_forks_without_end_is_ended() {
        for (shell, line) in [
            ("/bin/sh", "hop() { hop & }"),
            // In a process group of its own each time.
            ("/bin/bash", "hop() { set -m; hop & }"),
            // In a session of its own each time.
            ("/bin/sh", "hop='exec setsid sh -c \"$hop\" &'; export hop; hop() { eval \"$hop\"; }"),
        ] {
            let line = format!("{line}; for i in 1 2 3 4 5 6 7 8; do hop; done; echo 1; exec sleep 1000");
            let mut child = spawn(shell, &["sh", "-c", &line], Output::Together).unwrap();
            pids(&mut child, 1);
            child.kill_tree();
            // Every one of them holds the other end.
            to_end(&mut child.stdout);
            assert_eq!(child.wait_tree(soon()), Tree::Gone, "{line}");
        }
    }

    #[test]
    fn many_sessions_are_ended() {
        let mut child = sh("i=0; while [ $i -lt 200 ]; do setsid sleep 1000 & i=$((i + 1)); done; echo 1");
        pids(&mut child, 1);
        child.kill_tree();
        to_end(&mut child.stdout);
        assert_eq!(child.wait_tree(soon()), Tree::Gone);
    }

    #[test]
    fn one_commands_end_is_not_held_up_by_another() {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        let mut long = sh("echo $$; exec sleep 1000");
                        let pid = pids(&mut long, 1)[0];
                        let mut short = sh("echo hello");
                        assert_eq!(to_end(&mut short.stdout), "hello\n");
                        assert_eq!(ends(short), (Some(Exit::Code(0)), Tree::Gone));
                        drop(long);
                        wait_end(pid);
                    }
                });
            }
        });
    }

    /// Runs one of the roles below in a process of its own: this test's program, called once more.
    fn play(role: &str) -> std::process::Child {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "os::child::tests::role", "--nocapture", "--test-threads=1"])
            .env("BERTH_TEST_ROLE", role)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[test]
    fn role() {
        match std::env::var("BERTH_TEST_ROLE").as_deref() {
            Ok("victim") => {
                let tree = "trap '' HUP TERM; echo $$; sleep 1000 & echo $!; setsid sh -c 'trap \"\" HUP; echo $$; exec sleep 1000' &";
                let mut child = sh(&format!("{tree} exec sleep 1000"));
                let mut stopper = sh(&format!("kill -STOP $PPID; {tree} exec sleep 1000"));
                for pid in pids(&mut child, 3).into_iter().chain(pids(&mut stopper, 3)) {
                    println!("pid {pid}");
                }
                // Until the test ends this process.
                wait_readable(&[], LONG);
            }
            Ok("adopter") => {
                adopt_orphans().unwrap();
                let mut other = sh("echo $$; exec sleep 1000");
                let kept = pids(&mut other, 1)[0];
                let mut child = sh(
                    "setsid sh -c 'echo $$; setsid sleep 1000 & echo $!; exec sleep 1000' & read line; setsid sleep 1000 & echo $!; exec sleep 1000",
                );
                let lost = pids(&mut child, 3);
                let reaper = parent_of(i32::try_from(child.id()).unwrap());
                kill_process(Pid::from_raw(reaper).unwrap(), Signal::KILL).unwrap();
                assert_eq!(child.wait_tree(soon()), Tree::Lost);
                assert!(lost.iter().all(|pid| !exists(*pid)));
                assert!(exists(kept));
                println!("adopted");
            }
            _ => {}
        }
    }

    #[test]
    fn berths_own_death_ends_every_tree() {
        let mut victim = play("victim");
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let pids: Vec<i32> = lines
            .by_ref()
            .map_while(Result::ok)
            .filter_map(|line| line.split_once("pid ")?.1.parse().ok())
            .take(6)
            .collect();
        assert_eq!(pids.len(), 6);
        assert!(pids.iter().all(|pid| exists(*pid)));
        victim.kill().unwrap();
        victim.wait().unwrap();
        // Its output ends at once, held open by nobody.
        assert_eq!(lines.count(), 0);
        pids.into_iter().for_each(wait_end);
    }

    #[test]
    fn an_adopter_ends_what_a_killed_reaper_left() {
        let adopter = play("adopter").wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&adopter.stdout);
        assert!(adopter.status.success() && said.contains("adopted"), "{said}");
    }
}
