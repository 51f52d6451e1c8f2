//! What is still to be walked, shared by the threads of one walk.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ffi::{CStr, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::name_order;

/// An open directory.
pub(super) struct Directory {
    pub(super) fd: OwnedFd,
    /// Its path relative to the start; empty for the start itself.
    pub(super) path: Box<[u8]>,
}

/// A directory that has been met but not opened.
pub(super) struct Pending {
    /// The open directory it is opened from: the start, or one so far down that a path from above would be too long.
    pub(super) anchor: Arc<Directory>,
    /// Its path relative to the start.
    pub(super) path: Box<[u8]>,
}

impl Pending {
    /// Its path relative to the anchor.
    pub(super) fn below_anchor(&self) -> &Path {
        let stem = self.anchor.path.len();
        let rest = self.path.get(stem..).unwrap_or_default();
        Path::new(OsStr::from_bytes(rest.strip_prefix(b"/").unwrap_or(rest)))
    }

    /// What it costs to remember, in bytes.
    fn size(&self) -> usize {
        // The allocator's share included.
        size_of::<Self>() + self.path.len() + 16
    }
}

/// The first in name order comes out of a max-heap first.
impl Ord for Pending {
    fn cmp(&self, other: &Self) -> Ordering {
        name_order(&other.path, &self.path)
    }
}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pending {}

/// Names of files in one directory, in two allocations however many they are.
#[derive(Default)]
pub(super) struct Listing {
    /// Each name with its closing NUL.
    names: Vec<u8>,
    /// Where each ends, and whether it is a link.
    ends: Vec<(usize, bool)>,
}

impl Listing {
    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.ends.clear();
    }

    pub(super) fn push(&mut self, name: &CStr, link: bool) {
        self.names.extend_from_slice(name.to_bytes_with_nul());
        self.ends.push((self.names.len(), link));
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, index: usize) -> Option<(&CStr, bool)> {
        let (end, link) = *self.ends.get(index)?;
        let name = self.names.get(self.start(index)..end)?;
        Some((CStr::from_bytes_with_nul(name).ok()?, link))
    }

    /// Takes the names from `index` on.
    pub(super) fn split_off(&mut self, index: usize) -> Self {
        let index = index.min(self.ends.len());
        let start = self.start(index);
        let mut ends = self.ends.split_off(index);
        for (end, _) in &mut ends {
            *end -= start;
        }
        Self { names: self.names.split_off(start), ends }
    }

    fn start(&self, index: usize) -> usize {
        index.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |(end, _)| *end)
    }
}

/// Something for a thread to do.
pub(super) enum Job {
    /// Open a directory and read it.
    Directory(Pending),
    /// Visit files of a directory that another thread has read.
    Files(Arc<Directory>, Listing),
}

/// The jobs that nobody has taken yet.
pub(super) struct Queue {
    state: Mutex<State>,
    ready: Condvar,
    /// How many threads wait for a job, less the jobs on offer. A hint: read without the lock, by those who could offer one.
    starved: AtomicUsize,
    limit: usize,
}

#[derive(Default)]
struct State {
    directories: BinaryHeap<Pending>,
    /// What the directories cost, in bytes.
    size: usize,
    /// Bounded by the number of threads, since a listing is only given when a thread starves.
    files: Vec<(Arc<Directory>, Listing)>,
    /// Threads that may still offer something.
    working: usize,
    waiting: usize,
    /// Directories that were turned away.
    refused: u64,
    /// A thread panicked: the others stop, so that the panic gets to the caller.
    broken: bool,
}

impl Queue {
    /// A queue for at most `limit` bytes of waiting directories. When it is full, further ones are refused and counted.
    pub(super) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), ready: Condvar::new(), starved: AtomicUsize::new(0), limit }
    }

    /// Registers the thread that begins, whose first job is not in the queue.
    pub(super) fn first(&self) -> Working<'_> {
        self.lock().working += 1;
        Working(self)
    }

    /// Waits for a job; `None` when there is none and nobody works who could offer one, or when `stop` says so.
    ///
    /// Nothing wakes a thread that waits here when `stop` turns true: those at work notice it, and their leaving wakes it.
    pub(super) fn next(&self, stop: impl Fn() -> bool) -> Option<(Job, Working<'_>)> {
        let mut state = self.lock();
        loop {
            if state.broken || stop() {
                return None;
            }
            let job = match state.files.pop() {
                Some((directory, listing)) => Some(Job::Files(directory, listing)),
                None => state.directories.pop().map(|pending| {
                    state.size = state.size.saturating_sub(pending.size());
                    Job::Directory(pending)
                }),
            };
            if let Some(job) = job {
                state.working += 1;
                return Some((job, Working(self)));
            }
            if state.working == 0 {
                return None;
            }
            state.waiting += 1;
            self.hint(&state);
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
            self.hint(&state);
        }
    }

    /// Offers directories; says whether there is now more than one job to take.
    pub(super) fn put(&self, below: Vec<Pending>) -> bool {
        let mut state = self.lock();
        for pending in below {
            let size = state.size + pending.size();
            if size > self.limit {
                state.refused += 1;
                continue;
            }
            state.size = size;
            state.directories.push(pending);
        }
        self.offer(&state);
        state.directories.len() > 1
    }

    /// Offers files to a thread that has none.
    pub(super) fn give(&self, directory: &Arc<Directory>, listing: Listing) {
        let mut state = self.lock();
        state.files.push((directory.clone(), listing));
        self.offer(&state);
    }

    /// Whether a thread waits for which there is no job yet.
    pub(super) fn is_starved(&self) -> bool {
        self.starved.load(Relaxed) > 0
    }

    /// How many directories were turned away.
    pub(super) fn refused(&self) -> u64 {
        self.lock().refused
    }

    fn offer(&self, state: &State) {
        self.hint(state);
        let jobs = state.files.len() + state.directories.len();
        if jobs >= state.waiting {
            self.ready.notify_all();
        } else {
            (0..jobs).for_each(|_| self.ready.notify_one());
        }
    }

    fn hint(&self, state: &State) {
        self.starved.store(state.waiting.saturating_sub(state.files.len() + state.directories.len()), Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that a thread works, and may offer jobs, until it is dropped.
pub(super) struct Working<'q>(&'q Queue);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.working = state.working.saturating_sub(1);
        state.broken |= thread::panicking();
        if state.working == 0 || state.broken {
            self.0.ready.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(listing: &Listing) -> Vec<(String, bool)> {
        let entries = (0..listing.len()).map(|index| listing.get(index).unwrap());
        entries.map(|(name, link)| (name.to_str().unwrap().to_owned(), link)).collect()
    }

    #[test]
    fn a_listing_splits_anywhere() {
        let all = [(c"one", false), (c"two", true), (c"three", false)];
        for at in 0..=4 {
            let mut listing = Listing::default();
            all.iter().for_each(|(name, link)| listing.push(name, *link));
            let rest = listing.split_off(at);
            let mut both = names(&listing);
            assert_eq!(both.len(), at.min(3));
            both.extend(names(&rest));
            assert_eq!(both, [("one".to_owned(), false), ("two".to_owned(), true), ("three".to_owned(), false)]);
            assert!(listing.get(at).is_none());
        }
    }
}
