//! One thread of a walk: reading directories, visiting their files, and getting help when there is much to do.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, Scope};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, openat, openat2, statat};
use rustix::io::Errno;

use super::queue::{Directory, Job, Listing, Pending};
use super::{Found, Shared, Visitor};
use crate::os::beneath::{Strategy, kind};

/// Directories that are not descended into below the start: what tools and package managers made, not what a person wrote.
const SKIPPED: [&[u8]; 11] = [
    b".git",
    b".hg",
    b".svn",
    b"node_modules",
    b"vendor",
    b".venv",
    b"venv",
    b"__pycache__",
    b".cache",
    b".idea",
    b".next",
];

/// How many bytes of directory entries are read at a time, about a thousand names.
const CHUNK: usize = 32 * 1024;

/// A directory this many bytes of path below the last one that was kept open is kept open for those below it. Far less than the 4096
/// that a system call takes.
const ANCHOR: usize = 1024;

/// The clock is looked at once for this many files.
const ROUND: usize = 16;

/// A thread hands over half of its files when another has none, but not fewer than half of this.
const WORTH_SHARING: usize = 4;

/// Regular expressions keep their state on the heap, so the deepest frames are the reading of a directory.
const STACK: usize = 256 * 1024;

/// One thread of a walk.
pub(super) struct Worker<'scope, 'env, V> {
    shared: &'env Shared<'env>,
    scope: &'scope Scope<'scope, 'env>,
    make: &'env (dyn Fn() -> V + Sync),
    visitor: V,
    /// Used again for every directory.
    dirents: Vec<u8>,
    listing: Listing,
    path: Vec<u8>,
    looked: u64,
}

impl<'scope, 'env, V: Visitor> Worker<'scope, 'env, V> {
    /// A thread that has done nothing yet.
    pub(super) fn new(
        shared: &'env Shared<'env>,
        scope: &'scope Scope<'scope, 'env>,
        make: &'env (dyn Fn() -> V + Sync),
    ) -> Self {
        let visitor = make();
        let dirents = Vec::with_capacity(CHUNK);
        Self { shared, scope, make, visitor, dirents, listing: Listing::default(), path: Vec::new(), looked: 0 }
    }

    /// Takes jobs until there are none and nobody can make more.
    pub(super) fn work(&mut self) {
        while let Some((job, _working)) = self.shared.queue.next(|| self.shared.cancelled()) {
            match job {
                Job::Files(directory, mut listing) => self.visit(&directory, &mut listing),
                Job::Directory(pending) => {
                    if !self.visitor.enter(&pending.path) {
                        continue;
                    }
                    match open_below(pending.anchor.fd.as_fd(), pending.below_anchor()) {
                        Ok(fd) => {
                            let far = pending.below_anchor().as_os_str().len() >= ANCHOR;
                            let directory = Arc::new(Directory { fd, path: pending.path });
                            self.list_below(&directory, if far { &directory } else { &pending.anchor });
                        }
                        Err(errno) => self.shared.failed(errno),
                    }
                }
            }
        }
        self.visitor.end();
    }

    /// Reads the directory the walk starts from.
    pub(super) fn list(&mut self, directory: &Arc<Directory>) {
        self.list_below(directory, directory);
    }

    /// Reads a directory: what is below it is put in the queue, to be opened relative to `anchor`; its files are visited.
    fn list_below(&mut self, directory: &Arc<Directory>, anchor: &Arc<Directory>) {
        let mut dirents = std::mem::take(&mut self.dirents);
        let mut listing = std::mem::take(&mut self.listing);
        let mut reader = RawDir::new(directory.fd.as_fd(), dirents.spare_capacity_mut());
        loop {
            let more = self.read_chunk(directory, anchor, &mut reader, &mut listing);
            self.visit(directory, &mut listing);
            if !more || self.shared.cancelled() {
                break;
            }
        }
        self.dirents = dirents;
        self.listing = listing;
    }

    /// Reads as many entries as come at once; false when there are no more.
    fn read_chunk(
        &mut self,
        directory: &Directory,
        anchor: &Arc<Directory>,
        reader: &mut RawDir<'_, BorrowedFd<'_>>,
        listing: &mut Listing,
    ) -> bool {
        listing.clear();
        let mut below = Vec::new();
        let mut more = false;
        self.set_directory(directory);
        let stem = self.path.len();
        while let Some(entry) = reader.next() {
            if self.shared.cancelled() {
                return false;
            }
            let entry = match entry {
                Ok(entry) => entry,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    self.shared.failed(errno);
                    break;
                }
            };
            let name = entry.file_name();
            let bytes = name.to_bytes();
            let kind = match entry.file_type() {
                // Not every file system says.
                FileType::Unknown => {
                    match statat(&directory.fd, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
                        Ok(stat) => kind(&stat),
                        Err(_) => FileType::Unknown,
                    }
                }
                kind => kind,
            };
            match kind {
                FileType::RegularFile => listing.push(name, false),
                FileType::Symlink => listing.push(name, true),
                FileType::Directory if bytes == b"." || bytes == b".." || SKIPPED.contains(&bytes) => {}
                FileType::Directory => {
                    self.path.truncate(stem);
                    self.path.extend_from_slice(bytes);
                    if self.path.len() > self.shared.limits.path {
                        self.shared.too_deep.fetch_add(1, Relaxed);
                    } else if self.visitor.enter(&self.path) {
                        below.push(Pending { anchor: anchor.clone(), path: self.path.as_slice().into() });
                    }
                }
                _ => {}
            }
            if reader.is_buffer_empty() {
                more = true;
                break;
            }
        }
        if !below.is_empty() && self.shared.queue.put(below) {
            self.recruit();
        }
        more
    }

    /// Visits the files of a listing, giving away half of them whenever another thread has nothing to do.
    fn visit(&mut self, directory: &Arc<Directory>, listing: &mut Listing) {
        self.set_directory(directory);
        let stem = self.path.len();
        let mut next = 0;
        while let Some((name, link)) = listing.get(next) {
            if self.shared.cancelled() {
                return;
            }
            self.path.truncate(stem);
            self.path.extend_from_slice(name.to_bytes());
            self.visitor.visit(&Found { path: &self.path, name, link, directory, shared: self.shared });
            self.looked += 1;
            next += 1;
            let left = listing.len() - next;
            if left >= WORTH_SHARING && self.shared.queue.is_starved() {
                self.shared.queue.give(directory, listing.split_off(next + left / 2));
            }
            if next.is_multiple_of(ROUND) {
                self.shared.looked(&mut self.looked);
                if left >= WORTH_SHARING {
                    self.recruit();
                }
            }
        }
        self.shared.looked(&mut self.looked);
    }

    /// Makes `path` the directory's, ready for a name to be added.
    fn set_directory(&mut self, directory: &Directory) {
        self.path.clear();
        self.path.extend_from_slice(&directory.path);
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
    }

    /// Starts another thread when there is work for one, this walk has shown that it is no small one, and the limit permits.
    fn recruit(&self) {
        let shared = self.shared;
        let threads = &shared.threads;
        if shared.queue.is_starved()
            || shared.began.elapsed() < shared.limits.alone
            || threads.load(Relaxed) >= shared.limits.threads()
            || threads.fetch_add(1, Relaxed) >= shared.limits.threads()
        {
            return;
        }
        let (scope, make) = (self.scope, self.make);
        let started = thread::Builder::new()
            .name("walk".to_owned())
            .stack_size(STACK)
            .spawn_scoped(scope, move || Worker::new(shared, scope, make).work());
        if started.is_err() {
            // The system gives no more threads; those there are do the work, and do not ask again.
            threads.store(usize::MAX / 2, Relaxed);
        }
    }
}

/// Opens a directory below another without following a link anywhere on the way.
fn open_below(anchor: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    const RESOLVE: ResolveFlags =
        ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
    match Strategy::detect() {
        Strategy::Kernel => openat2(anchor, path, DIRECTORY, Mode::empty(), RESOLVE),
        Strategy::Walk => open_by_component(anchor, path),
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// As [`open_below`] where the kernel has no `openat2`: each component is opened from the one before.
fn open_by_component(anchor: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let mut names = path.iter();
    let first = names.next().ok_or(Errno::NOENT)?;
    let mut here = openat(anchor, first, DIRECTORY, Mode::empty())?;
    for name in names {
        here = openat(&here, name, DIRECTORY, Mode::empty())?;
    }
    Ok(here)
}

#[cfg(test)]
mod tests {
    use super::super::fixture::Tree;
    use super::*;
    use rustix::fs::{CWD, fstat};

    #[test]
    fn both_ways_of_opening_agree_and_follow_no_link() {
        let tree = Tree::with(&["a/b/c/file"]);
        tree.link("b", "a/link");
        let root = openat(CWD, &tree.root, DIRECTORY, Mode::empty()).unwrap();
        for path in ["a", "a/b", "a/b/c"] {
            let opened = open_below(root.as_fd(), Path::new(path)).unwrap();
            let walked = open_by_component(root.as_fd(), Path::new(path)).unwrap();
            assert_eq!(fstat(opened).unwrap().st_ino, fstat(walked).unwrap().st_ino, "{path}");
        }
        for path in ["a/link", "a/link/c", "a/b/c/file", "missing", ""] {
            assert!(open_below(root.as_fd(), Path::new(path)).is_err(), "{path}");
            assert!(open_by_component(root.as_fd(), Path::new(path)).is_err(), "{path}");
        }
    }
}
