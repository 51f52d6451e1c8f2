//! What commands leave running when they end: a server an agent started in the background, say. Kept here until its session ends.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};

use super::child::{Child, Tree};

/// The most trees that are kept. One more, and the oldest is killed to make room.
pub const MOST: usize = 64;

/// Trees that outlived the calls that started them. Dropping it kills them all, without waiting until they are gone.
///
/// What they go on printing is read and thrown away, so that they neither stop at a full pipe nor die of a closed one. A thread does that, and
/// waits for their end, as long as there are any.
#[derive(Debug, Default)]
pub struct Trees(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    kept: Vec<Kept>,
    /// The next one's number. It names a tree in the poll set, since a descriptor's number may come to mean another.
    next: usize,
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Kept {
    number: usize,
    child: Child,
    /// Whether there is output to throw away.
    noisy: bool,
}

/// The ways to reach the thread.
#[derive(Debug)]
struct Watch {
    registry: Registry,
    waker: Waker,
}

const WAKE: Token = Token(usize::MAX);

/// How often output is thrown away, and how much of each pipe at the most: a program that prints without end gets 6 MB/s, not a whole core.
const PACE: Duration = Duration::from_millis(10);
const PORTION: usize = 64 * 1024;

impl Trees {
    /// An empty set. Costs nothing until something is kept.
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps a tree until nothing of it is left, or until it is ended.
    pub fn keep(&self, mut child: Child) {
        child.update();
        if child.tree() != Tree::Living {
            return;
        }
        let mut state = self.lock();
        if state.kept.len() >= MOST {
            drop(state.kept.remove(0));
        }
        if state.watch.is_none() {
            // Without a thread the tree lives all the same; only nobody reads what it prints.
            state.watch = self.start().map_err(|why| log::warn!("no thread for background processes: {why}")).ok();
        }
        let number = state.next;
        state.next = (number + 1) % (usize::MAX / 4);
        if let Some(watch) = &state.watch {
            let pipes = [&child.stdout, &child.stderr].map(|pipe| pipe.as_ref().map(AsRawFd::as_raw_fd));
            let status = Some(child.status_descriptor().as_raw_fd());
            for (kind, descriptor) in [status].into_iter().chain(pipes).enumerate() {
                if let Some(descriptor) = descriptor {
                    // Fails only when memory runs out; then this tree's end is noticed at the next one's.
                    let _ = watch.registry.register(
                        &mut SourceFd(&descriptor),
                        Token(number * 4 + kind),
                        Interest::READABLE,
                    );
                }
            }
        }
        state.kept.push(Kept { number, child, noisy: false });
    }

    /// How many are kept.
    pub fn count(&self) -> usize {
        self.lock().kept.len()
    }

    /// Kills all that are kept and waits until they are gone, or for `deadline`. Answers how many were not gone then; their killing goes on.
    pub fn end(&self, deadline: Instant) -> usize {
        let mut children = self.take();
        children.iter_mut().for_each(Child::kill_tree);
        let left = children.iter_mut().map(|child| child.wait_tree(deadline));
        left.filter(|tree| matches!(tree, Tree::Living | Tree::Stuck)).count()
    }

    fn take(&self) -> Vec<Child> {
        let mut state = self.lock();
        if let Some(watch) = &state.watch {
            let _ = watch.waker.wake();
        }
        state.kept.drain(..).map(|kept| kept.child).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    fn start(&self) -> io::Result<Watch> {
        let poll = Poll::new()?;
        let watch = Watch { registry: poll.registry().try_clone()?, waker: Waker::new(poll.registry(), WAKE)? };
        let state = Arc::clone(&self.0);
        thread::Builder::new()
            .name("berth-background".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || attend(&state, poll))?;
        Ok(watch)
    }
}

impl Drop for Trees {
    fn drop(&mut self) {
        drop(self.take());
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread: until nothing is kept.
fn attend(state: &Mutex<State>, mut poll: Poll) {
    let mut events = Events::with_capacity(64);
    let mut buffer = vec![0; PORTION];
    let mut next_reading = Instant::now();
    let mut noisy = false;
    loop {
        let longest = noisy.then(|| next_reading.saturating_duration_since(Instant::now()));
        if let Err(why) = poll.poll(&mut events, longest)
            && why.kind() != io::ErrorKind::Interrupted
        {
            log::warn!("background processes cannot be watched: {why}");
            lock(state).watch = None;
            return;
        }
        let mut state = lock(state);
        for token in events.iter().map(|event| event.token()).filter(|token| *token != WAKE) {
            if let Some(kept) = state.kept.iter_mut().find(|kept| kept.number == token.0 / 4) {
                match token.0 % 4 {
                    0 => kept.child.update(),
                    _ => kept.noisy = true,
                }
            }
        }
        state.kept.retain(|kept| kept.child.tree() == Tree::Living);
        if state.kept.is_empty() {
            state.watch = None;
            return;
        }
        if Instant::now() >= next_reading {
            for kept in state.kept.iter_mut().filter(|kept| kept.noisy) {
                let Child { stdout, stderr, .. } = &mut kept.child;
                // Both, whatever the first one says.
                kept.noisy = discard(stdout, &mut buffer) | discard(stderr, &mut buffer);
            }
            next_reading = Instant::now() + PACE;
        }
        noisy = state.kept.iter().any(|kept| kept.noisy);
    }
}

/// Throws away what is in a pipe, a portion at the most; answers whether there may be more. At its end the pipe is closed.
fn discard(pipe: &mut Option<std::fs::File>, buffer: &mut [u8]) -> bool {
    let Some(open) = pipe else { return false };
    match open.read(buffer) {
        Ok(0) => {
            *pipe = None;
            false
        }
        Ok(_) => true,
        Err(why) if why.kind() == io::ErrorKind::Interrupted => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::cancel::Cancel;
    use crate::os::child::{Command, Exit, Input, Output};
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::path::Path;

    /// How long a test waits for what should take milliseconds.
    const LONG: Duration = Duration::from_secs(60);

    /// A tree whose command has ended, and the process id of what it left.
    fn tree(line: &str) -> (Child, i32) {
        let directory = File::open("/").unwrap();
        let mut child = Command {
            program: Path::new("/bin/sh"),
            arguments: &["sh".as_ref(), "-c".as_ref(), format!("{line} & echo $!").as_ref()],
            environment: &[("PATH".as_ref(), &std::env::var_os("PATH").unwrap())],
            directory: directory.as_fd(),
            input: Input::Nothing,
            output: Output::Apart,
        }
        .spawn(&Cancel::new())
        .unwrap();
        assert_eq!(child.wait_exit(Instant::now() + LONG), Some(Exit::Code(0)));
        let mut buffer = [0; 16];
        let count = child.stdout.as_mut().unwrap().read(&mut buffer).unwrap();
        let pid = std::str::from_utf8(&buffer[..count]).unwrap().lines().next().unwrap().parse().unwrap();
        (child, pid)
    }

    fn exists(pid: i32) -> bool {
        Path::new(&format!("/proc/{pid}")).exists()
    }

    fn eventually(what: impl Fn() -> bool) {
        let deadline = Instant::now() + LONG;
        while !what() {
            assert!(Instant::now() < deadline);
            thread::yield_now();
        }
    }

    #[test]
    fn kept_trees_live_until_they_are_ended() {
        let trees = Trees::new();
        let (child, pid) = tree("exec sleep 1000");
        trees.keep(child);
        assert!(exists(pid) && trees.count() == 1);
        assert_eq!(trees.end(Instant::now() + LONG), 0);
        assert!(!exists(pid) && trees.count() == 0);
        // It can be used again, and dropping it is an end too.
        let (child, pid) = tree("exec sleep 1000");
        trees.keep(child);
        drop(trees);
        eventually(|| !exists(pid));
    }

    #[test]
    fn what_is_printed_is_taken_and_an_end_is_noticed() {
        let trees = Trees::new();
        // More than two pipes hold.
        let (child, _) = tree("(head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2)");
        trees.keep(child);
        eventually(|| trees.count() == 0);
        assert!(lock(&trees.0).watch.is_none());
    }

    #[test]
    fn the_oldest_makes_room() {
        let trees = Trees::new();
        let pids: Vec<i32> = (0..=MOST)
            .map(|_| {
                let (child, pid) = tree("exec sleep 1000");
                trees.keep(child);
                pid
            })
            .collect();
        eventually(|| !exists(pids[0]));
        assert!(pids[1..].iter().all(|pid| exists(*pid)) && trees.count() == MOST);
        assert_eq!(trees.end(Instant::now() + LONG), 0);
        assert!(!pids.into_iter().any(exists));
    }
}
