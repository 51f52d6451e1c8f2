//! Command lines, run by the workspace's shell at its root: with a bounded output, a time limit and a switch that ends them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::{Environment, Workspace};
use crate::os::cancel::Cancel;
use crate::os::child::{Child, Command, Error, Exit, Input, Output as Into, Tree};
use crate::os::trees::Trees;

/// The shell that runs command lines, and what these left running in the background.
#[derive(Debug)]
pub struct Shell {
    program: PathBuf,
    name: &'static str,
    background: Trees,
}

/// One command line to run.
pub struct Run<'a> {
    /// The line, given to the shell as it is.
    pub line: &'a str,
    /// Where it starts.
    pub directory: BorrowedFd<'a>,
    /// All the variables it gets.
    pub environment: &'a Environment,
    /// How long it may take; everything it started is killed then.
    pub timeout: Duration,
    /// How many bytes of its output, the first ones, are kept; the rest is read, counted and dropped.
    pub keep: usize,
    /// Ends it early.
    pub cancel: &'a Cancel,
    /// Told of the output while the command runs: what came since the last time, its last 4096 bytes at the most, at once and then
    /// every 250 ms at the most (spec executor 10.7). Characters are whole where the output is UTF-8.
    pub watch: Option<Watch<'a>>,
}

/// What is told of output while it comes.
pub type Watch<'a> = &'a mut dyn FnMut(&[u8]);

/// The most bytes a watcher is told at once: the last ones.
const WINDOW: usize = 4096;

/// How often a watcher is told at the most.
const PACE: Duration = Duration::from_millis(250);

/// What became of a command line.
#[derive(Debug)]
pub struct Output {
    /// The first bytes of standard output and error, as they came; not cut within a UTF-8 character.
    pub bytes: Vec<u8>,
    /// How many bytes came after those.
    pub dropped: u64,
    /// How it ended.
    pub ended: Ended,
}

/// How a command line ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ended {
    /// By itself, with this code. Background processes it started may live on, until [`Workspace::end_processes`].
    Exit(i32),
    /// By this signal, likewise.
    Signal(i32),
    /// Its time was over; everything it started was killed.
    TimedOut,
    /// Nobody waited for it any more; everything it started was killed.
    Cancelled,
    /// It did not begin.
    NotStarted(Error),
    /// It killed the process that watches over it; what could be found of it was killed.
    Lost,
}

impl Shell {
    /// The first of: `bash` in the environment's `PATH`, in `/bin`, in `/usr/bin`, then `sh` in the same places. Relative entries of `PATH`
    /// are passed over: they would let the workspace choose the shell.
    pub fn find(environment: &Environment) -> Option<Self> {
        let path = environment.get("PATH").unwrap_or_default();
        ["bash", "sh"].into_iter().find_map(|name| {
            let program = std::env::split_paths(path)
                .chain([PathBuf::from("/bin"), PathBuf::from("/usr/bin")])
                .filter(|directory| directory.is_absolute())
                .map(|directory| directory.join(name))
                .find(|program| is_program(program))?;
            Some(Self { program, name, background: Trees::new() })
        })
    }

    /// What it is called: `bash` or `sh`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// How many command lines have left something running that is still there.
    pub fn background(&self) -> usize {
        self.background.count()
    }

    /// Runs a command line, and waits until it has ended, its time is over or it is cancelled.
    ///
    /// What it leaves running when it ends by itself lives on, whoever holds its output open. When it is killed, so is all it
    /// started; that is waited for, for two seconds at the most.
    pub fn run(&self, run: Run<'_>) -> Output {
        let mut collected = Collected::new(run.keep, run.watch);
        let environment: Vec<(&OsStr, &OsStr)> = run.environment.iter().collect();
        let started = Command {
            program: &self.program,
            // The dashes end the options: a line may begin with one itself.
            arguments: &[OsStr::new(self.name), OsStr::new("-c"), OsStr::new("--"), OsStr::new(run.line)],
            environment: &environment,
            directory: run.directory,
            input: Input::Nothing,
            output: Into::Together,
        }
        .spawn(run.cancel);
        let ended = match started {
            Ok(child) => self.attend(child, &mut collected, run.timeout, run.cancel).unwrap_or_else(Ended::NotStarted),
            Err(Error::Cancelled) => Ended::Cancelled,
            Err(Error::Lost) => Ended::Lost,
            Err(why) => Ended::NotStarted(why),
        };
        collected.finish(ended)
    }

    /// Reads what a command prints until it ends or has to be ended.
    fn attend(
        &self,
        mut child: Child,
        collected: &mut Collected<'_>,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<Ended, Error> {
        let mut poll = Poll::new().map_err(Error::Prepare)?;
        let watched = [
            child.stdout.as_ref().map(AsRawFd::as_raw_fd),
            Some(child.status_descriptor().as_raw_fd()),
            Some(cancel.descriptor().map_err(Error::Prepare)?.as_raw_fd()),
        ];
        for descriptor in watched.into_iter().flatten() {
            // Which of them it was that ended a wait is of no interest: all are looked at each time.
            poll.registry()
                .register(&mut SourceFd(&descriptor), Token(0), Interest::READABLE)
                .map_err(Error::Prepare)?;
        }
        let mut events = Events::with_capacity(4);
        let deadline = Instant::now().checked_add(timeout);
        let mut killed: Option<(Ended, Instant)> = None;
        let ended = loop {
            let more = collected.read(&mut child.stdout, Collected::PORTIONS);
            collected.tell();
            // Learned before the pipe is emptied below: all the command itself has written is in it then.
            child.nudge();
            let now = Instant::now();
            match &killed {
                Some((_, until)) if child.tree() != Tree::Living || now >= *until => {
                    break killed.map(|(ended, _)| ended);
                }
                Some(_) => {}
                None if child.tree() == Tree::Lost => break Some(Ended::Lost),
                None => {
                    if let Some(exit) = child.exit() {
                        break Some(match exit {
                            Exit::Code(code) => Ended::Exit(code),
                            Exit::Signal(signal) => Ended::Signal(signal),
                        });
                    }
                    let over = deadline.is_some_and(|deadline| now >= deadline);
                    if over || cancel.is_cancelled() {
                        child.kill_tree();
                        let ended = if over { Ended::TimedOut } else { Ended::Cancelled };
                        killed = Some((ended, now + Child::GRACE));
                    }
                }
            }
            if !more {
                let until = match &killed {
                    Some((_, until)) => Some((*until).min(now + Child::NUDGE)),
                    None => deadline,
                };
                let until = until.into_iter().chain(collected.due()).min();
                let longest = until.map(|until| until.saturating_duration_since(now));
                match poll.poll(&mut events, longest) {
                    Err(why) if why.kind() != io::ErrorKind::Interrupted => return Err(Error::Prepare(why)),
                    _ => {}
                }
            }
        };
        // What is in the pipe now and no more: somebody in the background may hold it open, and print without end.
        collected.read_waiting(&mut child.stdout);
        self.background.keep(child);
        Ok(ended.unwrap_or(Ended::Lost))
    }
}

impl Workspace {
    /// Ends everything that command lines left running in the background. Waits until it is gone, for two seconds at the most and
    /// only where something resists; answers how many trees did. Commands that still run are ended by their calls' cancelling.
    pub fn end_processes(&self) -> usize {
        self.shell().map_or(0, |shell| shell.background.end(Instant::now() + Child::GRACE))
    }
}

/// Whether a path leads to a file that this process may execute.
fn is_program(path: &Path) -> bool {
    path.is_file() && accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

/// What a command has printed.
struct Collected<'a> {
    bytes: Vec<u8>,
    keep: usize,
    total: u64,
    buffer: Vec<u8>,
    watch: Option<Watch<'a>>,
    /// What was not told yet, its last [`WINDOW`] bytes.
    window: Vec<u8>,
    told: Option<Instant>,
}

impl<'a> Collected<'a> {
    /// A pipe's usual size.
    const PORTION: usize = 64 * 1024;
    /// How many portions are read before anything else is looked at.
    const PORTIONS: usize = 16;

    fn new(keep: usize, watch: Option<Watch<'a>>) -> Self {
        Self {
            bytes: Vec::new(),
            keep,
            total: 0,
            buffer: vec![0; Self::PORTION],
            watch,
            window: Vec::new(),
            told: None,
        }
    }

    /// Reads up to `portions` times, and answers whether there may be more. At its end the pipe is closed.
    fn read(&mut self, pipe: &mut Option<File>, portions: usize) -> bool {
        for _ in 0..portions {
            let Some(open) = pipe else { return false };
            match open.read(&mut self.buffer) {
                Ok(0) => *pipe = None,
                Ok(count) => self.take(count),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Reads what is in the pipe at this moment.
    fn read_waiting(&mut self, pipe: &mut Option<File>) {
        let waiting = pipe.as_ref().and_then(|open| rustix::io::ioctl_fionread(open).ok()).unwrap_or(0);
        let end = self.total.saturating_add(waiting);
        while self.total < end && self.read(pipe, 1) {}
    }

    /// Takes the first `count` bytes of the buffer.
    fn take(&mut self, count: usize) {
        let came = self.buffer.get(..count).unwrap_or_default();
        self.total = self.total.saturating_add(count as u64);
        let room = self.keep.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(came.get(..room).unwrap_or(came));
        if self.watch.is_some() {
            self.window.extend_from_slice(came.get(count.saturating_sub(WINDOW)..).unwrap_or(came));
            let before = self.window.len().saturating_sub(WINDOW);
            if before > 0 {
                // The characters' parts that the cut has left at the front go too.
                let parts = self.window.iter().skip(before).take(3).take_while(|byte| is_continuation(**byte)).count();
                self.window.drain(..before + parts);
            }
        }
    }

    /// When the next window is to be told; `None` while there is nothing to tell.
    fn due(&self) -> Option<Instant> {
        let told = self.told?;
        (whole(&self.window) > 0).then(|| told + PACE)
    }

    /// Tells the window, if it is time.
    fn tell(&mut self) {
        let length = whole(&self.window);
        let due = self.due().is_none_or(|due| Instant::now() >= due);
        if let Some(watch) = &mut self.watch
            && length > 0
            && due
        {
            watch(self.window.get(..length).unwrap_or_default());
            self.window.drain(..length);
            self.told = Some(Instant::now());
        }
    }

    fn finish(mut self, ended: Ended) -> Output {
        if self.total > self.bytes.len() as u64 {
            self.bytes.truncate(whole(&self.bytes));
        }
        Output { dropped: self.total.saturating_sub(self.bytes.len() as u64), bytes: self.bytes, ended }
    }
}

/// How many bytes remain of a text without a UTF-8 character at its end whose rest is missing.
fn whole(bytes: &[u8]) -> usize {
    for (back, byte) in (1..).zip(bytes.iter().rev().take(3)) {
        if !is_continuation(*byte) {
            let length = match byte {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => 1,
            };
            return if length > back { bytes.len() - back } else { bytes.len() };
        }
    }
    bytes.len()
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::scratch::Scratch;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_shell_comes_from_the_workspaces_path_where_that_is_absolute() {
        let scratch = Scratch::new();
        let find = |path: &str| Shell::find(&Environment::scrub([("PATH".into(), path.into())], &[])).unwrap();
        let root = scratch.root();
        let root = root.to_str().unwrap();
        // Not executable, and a directory.
        scratch.file("bash", "#!/bin/sh");
        scratch.file("deeper/bash/x", "");
        let usual = find("").program;
        assert!(usual.is_absolute());
        assert_eq!(find(&format!("{root}:{root}/deeper")).program, usual);
        let program = scratch.inside("bash");
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(find(&format!("/none:{root}")).program, program);
        assert_eq!(find(".:bin:../bin").program, usual);
    }

    #[test]
    fn text_is_not_cut_within_a_character() {
        for (text, wanted) in [
            (&b""[..], 0),
            (b"a", 1),
            (b"a\xc3", 1),
            (b"a\xc3\xa4", 3),
            (b"a\xe2\x82", 1),
            (b"a\xf0\x9f\x98", 1),
            (b"\xf0\x9f\x98\x80", 4),
            // No UTF-8, so there is no character to keep whole.
            (b"a\xff", 2),
            (b"\x80\x80\x80\x80", 4),
        ] {
            assert_eq!(whole(text), wanted, "{text:?}");
        }
    }
}
