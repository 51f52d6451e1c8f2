//! Writing in the workspace: one writer at a time over all sessions, each file replaced whole.

use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use super::{Error, RelPath, Workspace};
use crate::os::cancel::Cancel;
use crate::os::replace;

/// How often a name that turns into a link while it is being written is resolved again.
const ATTEMPTS: usize = 8;

/// Who may write: nobody waits on a lock that cannot be cancelled, so this is a flag under a short lock and not a mutex.
#[derive(Default)]
pub(super) struct WriteLock {
    held: Mutex<bool>,
    changed: Condvar,
}

impl WriteLock {
    fn held(&self) -> MutexGuard<'_, bool> {
        // The flag is never left half changed, so a panic elsewhere does not spoil it.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the flag is free and takes it; `false` when cancelled first.
    fn take(self: &Arc<Self>, cancel: &Cancel) -> bool {
        let lock = Arc::clone(self);
        // The hook passes through the lock, so that it cannot fall between a waiter's look at the switch and its sleep.
        let _hook = cancel.on_cancel(move || {
            drop(lock.held());
            lock.changed.notify_all();
        });
        let mut held = self.held();
        while *held {
            if cancel.is_cancelled() {
                return false;
            }
            held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        *held = true;
        true
    }

    fn release(&self) {
        *self.held() = false;
        self.changed.notify_one();
    }
}

/// The right to write in the workspace; one at a time, over all sessions. Dropping it passes the right on.
pub struct WriteGuard<'a> {
    workspace: &'a Workspace,
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.workspace.writing.release();
    }
}

impl Workspace {
    /// Waits for the right to write, or until cancelled ([`Error::Cancelled`]).
    pub fn lock_writes(&self, cancel: &Cancel) -> Result<WriteGuard<'_>, Error> {
        self.check_root()?;
        if !self.writing.take(cancel) {
            return Err(Error::Cancelled);
        }
        Ok(WriteGuard { workspace: self })
    }
}

impl WriteGuard<'_> {
    /// Replaces the file's content whole (design 8.4), making parent directories (0755) and the file (0644) where missing. What a link
    /// leads to is replaced, inside the workspace only, and the link stays. On an error the old file is whole, but for [`Error::Torn`].
    pub fn replace(&self, path: &RelPath, content: &[u8]) -> Result<(), Error> {
        let workspace = self.workspace;
        let mut made = false;
        for _ in 0..ATTEMPTS {
            let (directory, name) = match workspace.strategy().parent(workspace.root_fd(), path.as_path()) {
                Ok(found) => found,
                Err(Errno::NOENT) if !made => {
                    self.make_directories(path.parent())?;
                    made = true;
                    continue;
                }
                Err(errno) => return Err(workspace.failed("write", errno, path.as_path())),
            };
            return match replace::replace(directory.as_fd(), &name, content) {
                Ok(()) => Ok(()),
                // Somebody put a link there since it was resolved.
                Err(replace::Error::Link) => continue,
                Err(replace::Error::NotRegular(kind)) => Err(Error::NotRegular(path.into(), kind)),
                Err(replace::Error::Torn(errno)) => Err(Error::Torn(path.into(), errno.into())),
                Err(replace::Error::System(errno)) => Err(workspace.failed("write", errno, path.as_path())),
            };
        }
        Err(Error::Links(path.into()))
    }

    /// Makes a directory and those above it where they are missing, each in a directory that is known to be inside.
    fn make_directories(&self, path: RelPath) -> Result<(), Error> {
        let workspace = self.workspace;
        let mut missing = Vec::new();
        let mut at = path;
        let mut directory = loop {
            match workspace.strategy().look(workspace.root_fd(), at.as_path()) {
                Ok(directory) => break directory,
                Err(Errno::NOENT) if !at.is_root() => {
                    let above = at.parent();
                    missing.push(at);
                    at = above;
                }
                Err(errno) => return Err(workspace.failed("make the directory", errno, at.as_path())),
            }
        };
        for path in missing.iter().rev() {
            let made = match mkdirat(&directory, path.name(), Mode::from_raw_mode(0o755)) {
                // Somebody else made it, or it is a link that leads nowhere; the open tells.
                Ok(()) | Err(Errno::EXIST) => {
                    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    openat(&directory, path.name(), flags, Mode::empty())
                }
                Err(errno) => Err(errno),
            };
            directory = made.map_err(|errno| workspace.failed("make the directory", errno, path.as_path()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::beneath::Strategy;
    use crate::os::scratch::Scratch;
    use crate::workspace::Options;
    use rustix::fs::{CWD, FileType, RenameFlags, mknodat, renameat_with};
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn workspaces(scratch: &Scratch) -> Vec<Workspace> {
        let mut strategies = vec![Strategy::detect(), Strategy::Walk];
        strategies.dedup();
        strategies
            .into_iter()
            .map(|by| Workspace::open_with(&scratch.root(), Options::default(), by).unwrap())
            .collect()
    }

    /// Writes a file as a tool does.
    fn write(workspace: &Workspace, given: &str, content: &str) -> Result<(), Error> {
        workspace.lock_writes(&Cancel::new())?.replace(&workspace.path(given)?, content.as_bytes())
    }

    #[test]
    fn what_a_link_leads_to_is_replaced_and_the_link_stays() {
        let scratch = Scratch::new();
        let file = scratch.file("d/file", "old");
        scratch.link("d/file", "one");
        scratch.link("../one", "d/two");
        scratch.link("d/new", "dangling");
        scratch.link("d", "to_d");
        for workspace in workspaces(&scratch) {
            for link in ["one", "d/two", "to_d/two", "to_d/file"] {
                let before = fs::metadata(&file).unwrap().ino();
                write(&workspace, link, link).unwrap();
                assert_eq!(fs::read_to_string(&file).unwrap(), link);
                assert_ne!(fs::metadata(&file).unwrap().ino(), before, "renamed over");
            }
            write(&workspace, "dangling", "made").unwrap();
            assert_eq!(fs::read_to_string(scratch.inside("d/new")).unwrap(), "made");
            fs::remove_file(scratch.inside("d/new")).unwrap();
            for link in ["one", "d/two", "dangling", "to_d"] {
                assert!(fs::symlink_metadata(scratch.inside(link)).unwrap().is_symlink(), "{link}");
            }
        }
        assert_eq!(scratch.names("d"), ["file", "two"]);
    }

    #[test]
    fn missing_directories_are_made_inside_and_nowhere_else() {
        let scratch = Scratch::new();
        scratch.file("file", "");
        scratch.link("..", "up");
        scratch.link("nowhere", "dangling");
        scratch.link("../nowhere", "dangling_out");
        fs::create_dir(scratch.inside("like")).unwrap();
        for workspace in workspaces(&scratch) {
            write(&workspace, "a/b/c", "content").unwrap();
            assert_eq!(fs::read_to_string(scratch.inside("a/b/c")).unwrap(), "content");
            // The test's umask is as it is; a directory made by mkdir's own default shows it.
            let mode = |name: &str| fs::metadata(scratch.inside(name)).unwrap().mode();
            assert_eq!(mode("a/b"), mode("like") & !0o022);
            for (given, wanted) in [
                ("up/new/c", "path is outside the workspace: up/new/c"),
                ("up/c", "path is outside the workspace: up/c"),
                ("dangling_out", "path is outside the workspace: dangling_out"),
                ("dangling_out/c", "path is outside the workspace: dangling_out/c"),
                ("dangling/c", "not a directory: dangling"),
                ("file/b/c", "not a directory: file"),
            ] {
                assert_eq!(write(&workspace, given, "").unwrap_err().to_string(), wanted);
            }
            fs::remove_dir_all(scratch.inside("a")).unwrap();
        }
        assert_eq!(scratch.names(".."), ["canary", "root"]);
        assert_eq!(scratch.names("."), ["dangling", "dangling_out", "file", "like", "up"]);
    }

    #[test]
    fn only_regular_files_inside_are_written() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.inside("d")).unwrap();
        mknodat(CWD, scratch.inside("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        scratch.link("fifo", "to_fifo");
        scratch.link("../canary", "out");
        scratch.link(scratch.outside("canary"), "out_absolute");
        scratch.link("ring", "ring");
        for workspace in workspaces(&scratch) {
            for (given, wanted) in [
                (".", "not a regular file: . is a directory"),
                ("d", "not a regular file: d is a directory"),
                ("fifo", "not a regular file: fifo is a FIFO"),
                ("to_fifo", "not a regular file: to_fifo is a FIFO"),
                ("out", "path is outside the workspace: out"),
                ("out_absolute", "path is outside the workspace: out_absolute"),
                ("ring", "too many links, or one that cannot be followed: ring"),
            ] {
                assert_eq!(write(&workspace, given, "").unwrap_err().to_string(), wanted);
            }
            let long = "x".repeat(256);
            assert!(matches!(write(&workspace, &long, ""), Err(Error::TooLong(_))));
        }
        assert_eq!(fs::read_to_string(scratch.outside("canary")).unwrap(), "outside");
        assert_eq!(scratch.names("."), ["d", "fifo", "out", "out_absolute", "ring", "to_fifo"]);
    }

    /// CVE-2025-67366 for writes: the directory is a link out at every other moment, and nothing is ever written there.
    #[test]
    fn a_directory_that_is_swapped_for_a_link_leads_no_write_out() {
        let scratch = Scratch::new();
        scratch.file("d/file", "inside");
        fs::create_dir(scratch.outside("evil")).unwrap();
        fs::write(scratch.outside("evil/file"), "outside").unwrap();
        scratch.link("../evil", "link");
        scratch.file("file", "inside");
        scratch.link("../canary", "file_link");
        let workspaces = workspaces(&scratch);
        let stop = AtomicBool::new(false);
        /// Ends the other thread also when an assertion here fails.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for (one, other) in [("d", "link"), ("file", "file_link")] {
                        let (one, other) = (scratch.inside(one), scratch.inside(other));
                        renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                        std::thread::yield_now();
                        renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                    }
                }
            });
            let (mut written, mut refused) = (0, 0);
            for round in 0..6000 {
                let given = ["d/file", "file", "d/new/file"][round % 3];
                match write(&workspaces[round / 3 % workspaces.len()], given, "written") {
                    Ok(()) => written += 1,
                    Err(Error::Outside(_) | Error::Links(_) | Error::NotFound(_) | Error::NotDirectory(_)) => {
                        refused += 1
                    }
                    Err(other) => panic!("{given}: {other:?}"),
                }
                if round % 3 == 2 {
                    // So that it has to be made again; in whichever of its places it is at the moment.
                    let _ = fs::remove_dir_all(scratch.inside("d/new"));
                }
            }
            assert!(written > 0 && refused > 0, "the race never happened: {written} written, {refused} refused");
        });
        assert_eq!(scratch.names("../evil"), ["file"]);
        assert_eq!(fs::read_to_string(scratch.outside("evil/file")).unwrap(), "outside");
        assert_eq!(fs::read_to_string(scratch.outside("canary")).unwrap(), "outside");
    }

    #[test]
    fn one_writes_and_the_others_wait_or_are_cancelled() {
        let scratch = Scratch::new();
        let workspace = &workspaces(&scratch)[0];
        let cancelled = Cancel::new();
        let writers = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let guard = workspace.lock_writes(&Cancel::new()).unwrap();
            let waiting = scope.spawn(|| matches!(workspace.lock_writes(&cancelled), Err(Error::Cancelled)));
            let others: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..200 {
                            let _guard = workspace.lock_writes(&Cancel::new()).unwrap();
                            assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0);
                            std::thread::yield_now();
                            writers.fetch_sub(1, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            cancelled.cancel();
            // While the right is still held.
            assert!(waiting.join().unwrap());
            drop(guard);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
        // A call that was cancelled before does not wait, and takes what is free only to give it back.
        let guard = workspace.lock_writes(&Cancel::new()).unwrap();
        assert!(matches!(workspace.lock_writes(&cancelled), Err(Error::Cancelled)));
        drop(guard);
        drop(workspace.lock_writes(&Cancel::new()).unwrap());
    }
}
