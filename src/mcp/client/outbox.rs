//! The writing half of a pair of byte streams: written to by whoever has a message, and by the reading thread for what had to wait.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::transport::{SendError, Until};

/// How many bytes may wait for a server that does not read; a message that finds more waits itself, until its caller gives up.
const BACKLOG_BYTES: usize = 1024 * 1024;

/// How many more may wait of messages that cannot wait themselves: cancellations and answers to the server.
const RESERVE_BYTES: usize = 256 * 1024;

/// What the buffer of waiting bytes may keep when it is empty.
const BACKLOG_KEPT_BYTES: usize = 64 * 1024;

/// The writing half, shared by the callers and the thread.
pub(super) struct Outbox {
    waiting: Mutex<Waiting>,
    /// Told when there is room again, or never will be.
    room: Condvar,
    /// Ends the thread's wait.
    wake: io::PipeWriter,
}

struct Waiting {
    /// Shared with the thread while it waits for room in the pipe; none once writing is over.
    write: Option<Arc<OwnedFd>>,
    /// What did not go out yet. Whole messages but for the first, which may have begun to go.
    backlog: VecDeque<u8>,
    /// Whether the reading is to end as well.
    stop: bool,
}

impl Outbox {
    /// Writes to `write`, and wakes the thread that reads through `wake`. Neither may block.
    pub(super) fn new(write: OwnedFd, wake: io::PipeWriter) -> Self {
        let waiting = Waiting { write: Some(Arc::new(write)), backlog: VecDeque::new(), stop: false };
        Self { waiting: Mutex::new(waiting), room: Condvar::new(), wake }
    }

    /// Writes a line, or leaves to the thread what there is no room for. Waits while too much is left to it already.
    pub(super) fn send(this: &Arc<Self>, text: &[u8], until: &Until<'_>) -> Result<(), SendError> {
        let most = if until.left() == Some(Duration::ZERO) { BACKLOG_BYTES + RESERVE_BYTES } else { BACKLOG_BYTES };
        let waiting = lock(&this.waiting);
        if waiting.write.is_none() || waiting.backlog.len() <= most {
            return this.put(waiting, text);
        }
        drop(waiting);
        // A thrown switch ends the wait. The lock is taken so that the news cannot fall between a look at the switch and the wait.
        let _hook = until.cancel.map(|cancel| {
            let out = Arc::clone(this);
            cancel.on_cancel(move || {
                drop(lock(&out.waiting));
                out.room.notify_all();
            })
        });
        let mut waiting = lock(&this.waiting);
        while waiting.write.is_some() && waiting.backlog.len() > most {
            if until.cancel.is_some_and(|cancel| cancel.is_cancelled()) {
                return Err(SendError::Cancelled);
            }
            waiting = match until.left() {
                None => this.room.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Err(SendError::Full),
                Some(left) => this.room.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        this.put(waiting, text)
    }

    /// Writes a line, or what there is room for, and keeps the rest.
    fn put(&self, mut waiting: MutexGuard<'_, Waiting>, text: &[u8]) -> Result<(), SendError> {
        let Some(write) = waiting.write.clone() else {
            return Err(SendError::Closed);
        };
        let mut rest = text;
        let mut ended = false;
        if waiting.backlog.is_empty() {
            while !ended {
                match rustix::io::writev(&*write, &[IoSlice::new(rest), IoSlice::new(b"\n")]) {
                    Ok(count) => {
                        ended = count > rest.len();
                        rest = rest.get(count..).unwrap_or_default();
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(_) => {
                        drop(waiting);
                        self.end();
                        return Err(SendError::Closed);
                    }
                }
            }
        }
        if !ended {
            waiting.backlog.extend(rest);
            waiting.backlog.push_back(b'\n');
            drop(waiting);
            self.wake();
        }
        Ok(())
    }

    /// The descriptor that is waited for, while something waits for room.
    pub(super) fn wants_room(&self) -> Option<Arc<OwnedFd>> {
        let waiting = lock(&self.waiting);
        waiting.write.clone().filter(|_| !waiting.backlog.is_empty())
    }

    /// Writes of what waits as much as there is room for.
    pub(super) fn flush(&self) {
        let mut waiting = lock(&self.waiting);
        let Some(write) = waiting.write.clone() else { return };
        while !waiting.backlog.is_empty() {
            let (first, second) = waiting.backlog.as_slices();
            match rustix::io::writev(&*write, &[IoSlice::new(first), IoSlice::new(second)]) {
                Ok(count) => drop(waiting.backlog.drain(..count)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    drop(waiting);
                    return self.end();
                }
            }
        }
        if waiting.backlog.is_empty() && waiting.backlog.capacity() > BACKLOG_KEPT_BYTES {
            waiting.backlog = VecDeque::new();
        }
        if waiting.backlog.len() <= BACKLOG_BYTES {
            self.room.notify_all();
        }
    }

    /// Writing is over: what waits is dropped, and who waits is told.
    pub(super) fn end(&self) {
        self.over(false);
    }

    /// Writing is over, and so is reading.
    pub(super) fn stop(&self) {
        self.over(true);
    }

    /// Whether reading is over.
    pub(super) fn stopped(&self) -> bool {
        lock(&self.waiting).stop
    }

    fn over(&self, stop: bool) {
        let mut waiting = lock(&self.waiting);
        waiting.stop |= stop;
        waiting.write = None;
        waiting.backlog = VecDeque::new();
        drop(waiting);
        self.room.notify_all();
        // The thread lets go of the descriptor too.
        self.wake();
    }

    fn wake(&self) {
        // A full pipe wakes as well.
        let _ = (&self.wake).write(&[0]);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
