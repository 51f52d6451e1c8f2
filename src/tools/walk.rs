//! The walk that `glob` and `grep` share: every file below a directory, reached through descriptors alone (spec executor 10, "Walk
//! rules").
//!
//! A directory is opened relative to one that was opened before it and never through a link, so no rename can lead the walk out of
//! the workspace. Links to regular files go through the workspace's own confined open. The threads of a walk share one [`Queue`]; it
//! hands out directories in name order, so that a walk whose answer is full has seen the right files first.
//!
//! What bounds it: names are read in chunks of a fixed size; what waits is bounded by [`Limits`]; open descriptors are a few for
//! each thread and one for every thousand bytes of depth. What a bound leaves out is counted and told ([`Lost`]).

mod queue;
mod worker;

use std::cmp::Ordering;
use std::ffi::{CStr, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::answer::add_line;
use super::{Call, Failure};
use crate::os::beneath::kind;
use crate::workspace::{self, RelPath, Workspace};
use queue::{Directory, Queue};
use worker::Worker;

/// The bounds of one walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Threads, the caller's included; as many as there are processors where it is `None`, and at most eight.
    pub(super) threads: Option<usize>,
    /// How long the caller's thread works alone. Starting a thread costs 22 us; a small tree is done before one is worth that.
    pub(super) alone: Duration,
    /// The longest path below the start, in bytes; directories beyond are counted as [`Lost`].
    pub(super) path: usize,
    /// The most memory, in bytes, for directories that wait; those beyond are counted as [`Lost`].
    pub(super) waiting: usize,
    /// How long until the first report of progress, and from each to the next.
    pub(super) report: Duration,
}

impl Limits {
    fn threads(&self) -> usize {
        /// Finding out means reading the control group's files, so it is done once and only for a walk that is large enough.
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let processors = || thread::available_parallelism().map_or(1, |processors| processors.get().min(8));
        self.threads.unwrap_or_else(|| *PROCESSORS.get_or_init(processors))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads: None,
            alone: Duration::from_micros(200),
            path: 32 * 1024,
            waiting: 64 * 1024 * 1024,
            report: Duration::from_secs(1),
        }
    }
}

/// What a walk does with what it finds. Each thread has one of its own.
pub(super) trait Visitor {
    /// Whether anything below the directory can matter. Asked when the directory is met and again when its turn comes.
    /// `path` is relative to the start.
    fn enter(&mut self, path: &[u8]) -> bool;

    /// Looks at a regular file, or at a link that may lead to one.
    fn visit(&mut self, found: &Found<'_>);

    /// The thread has nothing more to visit.
    fn end(&mut self);
}

/// Where a walk starts.
pub(super) struct Start<'a> {
    /// The workspace it stays in.
    pub(super) workspace: &'a Workspace,
    /// The directory's name there.
    pub(super) path: &'a RelPath,
    /// The directory.
    pub(super) directory: OwnedFd,
}

/// Walks everything below `start`, on several threads when it takes long. Says how far it is where it takes longer
/// than a second.
///
/// Answers with what could not be looked at; fails only when cancelled, which it notices at every entry.
pub(super) fn walk<V: Visitor>(
    start: Start<'_>,
    call: &Call<'_>,
    limits: Limits,
    visitor: impl Fn() -> V + Sync,
) -> Result<Lost, Failure> {
    let top = Arc::new(Directory { fd: start.directory, path: Box::default() });
    let shared = Shared {
        workspace: start.workspace,
        start: start.path,
        call,
        listened: call.progress.wanted(),
        limits,
        queue: Queue::new(limits.waiting),
        began: Instant::now(),
        threads: AtomicUsize::new(1),
        looked: AtomicU64::new(0),
        report_at: AtomicU64::new(milliseconds(limits.report)),
        unreadable: AtomicU64::new(0),
        too_deep: AtomicU64::new(0),
    };
    let make: &(dyn Fn() -> V + Sync) = &visitor;
    thread::scope(|scope| {
        let mut worker = Worker::new(&shared, scope, make);
        {
            let _working = shared.queue.first();
            worker.list(&top);
        }
        worker.work();
    });
    if call.cancel.is_cancelled() {
        return Err(Failure::Cancelled);
    }
    Ok(Lost {
        unreadable: shared.unreadable.into_inner(),
        too_deep: shared.too_deep.into_inner(),
        too_many: shared.queue.refused(),
    })
}

/// What a walk left out other than by its rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lost {
    /// Files and directories the system could not open or read, permissions aside: it was out of descriptors or memory, or the disk failed.
    unreadable: u64,
    /// Directories, and links, deeper than [`Limits::path`] or a system call goes.
    too_deep: u64,
    /// Directories for which there was no room in [`Limits::waiting`].
    too_many: u64,
}

impl Lost {
    /// Adds a line for each kind of loss, so that nobody takes the answer for the whole truth.
    pub(super) fn tell(self, text: &mut String) {
        for (count, why) in [
            (self.unreadable, "files or directories could not be read: the system failed or is out of resources"),
            (
                self.too_deep,
                "directories or links lie too deep and were not looked at; start nearer to them with \"path\"",
            ),
            (self.too_many, "directories were not looked at: too many at once; start in one of them with \"path\""),
        ] {
            if count > 0 {
                add_line(text, format_args!("({count} {why})"));
            }
        }
    }
}

/// A file as the walk met it: regular, or a link that may lead to a regular file.
pub(super) struct Found<'w> {
    /// Its path relative to the start, not always UTF-8.
    pub(super) path: &'w [u8],
    name: &'w CStr,
    link: bool,
    directory: &'w Directory,
    shared: &'w Shared<'w>,
}

impl Found<'_> {
    /// The last element of its path.
    pub(super) fn name(&self) -> &[u8] {
        self.name.to_bytes()
    }

    /// Whether it is a regular file, or a link that leads to one inside the workspace.
    pub(super) fn is_regular(&self) -> bool {
        !self.link
            || match self.shared.workspace.stat_at(&self.path_from_root()) {
                Ok(stat) => kind(&stat) == FileType::RegularFile,
                Err(error) => self.shared.refused(&error),
            }
    }

    /// Opens it for reading, with its size in bytes; `None` when it is not a regular file, or not for us to read.
    pub(super) fn open(&self) -> Option<(OwnedFd, u64)> {
        let (file, stat) = if self.link {
            match self.shared.workspace.open_file_at(&self.path_from_root()) {
                Ok((file, stat)) => (file.into(), stat),
                Err(error) => {
                    self.shared.refused(&error);
                    return None;
                }
            }
        } else {
            // The listing said it is a regular file. Something else may have taken its name since: O_NONBLOCK keeps a FIFO from
            // holding the thread, the look afterwards keeps anything else from being read.
            const FLAGS: OFlags = OFlags::RDONLY
                .union(OFlags::NOFOLLOW)
                .union(OFlags::NONBLOCK)
                .union(OFlags::NOCTTY)
                .union(OFlags::CLOEXEC);
            let opened = openat(&self.directory.fd, self.name, FLAGS, Mode::empty());
            match opened.and_then(|file| fstat(&file).map(|stat| (file, stat))) {
                Ok(opened) => opened,
                Err(errno) => {
                    self.shared.failed(errno);
                    return None;
                }
            }
        };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        (kind(&stat) == FileType::RegularFile).then_some((file, size))
    }

    /// Tells the walk that reading it failed.
    pub(super) fn failed(&self, errno: Errno) {
        self.shared.failed(errno);
    }

    fn path_from_root(&self) -> PathBuf {
        let path = Path::new(OsStr::from_bytes(self.path));
        if self.shared.start.is_root() { path.to_owned() } else { self.shared.start.as_path().join(path) }
    }
}

/// What the threads of a walk have in common.
struct Shared<'w> {
    workspace: &'w Workspace,
    start: &'w RelPath,
    call: &'w Call<'w>,
    listened: bool,
    limits: Limits,
    queue: Queue,
    began: Instant,
    threads: AtomicUsize,
    looked: AtomicU64,
    /// When to report next, in milliseconds after the beginning.
    report_at: AtomicU64,
    unreadable: AtomicU64,
    too_deep: AtomicU64,
}

impl Shared<'_> {
    fn cancelled(&self) -> bool {
        self.call.cancel.is_cancelled()
    }

    /// Counts a failure that is not the rules' (unreadable is skipped, spec executor 10) and not a change under way (gone, swapped).
    fn failed(&self, errno: Errno) {
        match errno {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::IO => {
                self.unreadable.fetch_add(1, Relaxed)
            }
            Errno::NAMETOOLONG => self.too_deep.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    /// As `failed`, for what the workspace said of a link. Links that lead out, nowhere or in a circle are not files inside.
    fn refused(&self, error: &workspace::Error) -> bool {
        match error {
            workspace::Error::TooLong(_) => self.too_deep.fetch_add(1, Relaxed),
            workspace::Error::System(..) => self.unreadable.fetch_add(1, Relaxed),
            _ => 0,
        };
        false
    }

    /// Adds to the number of files looked at, and reports it when a second has passed.
    fn looked(&self, files: &mut u64) {
        let sum = self.looked.fetch_add(std::mem::take(files), Relaxed);
        if !self.listened {
            return;
        }
        let now = milliseconds(self.began.elapsed());
        let due = self.report_at.load(Relaxed);
        // One thread wins the exchange and reports.
        if now >= due
            && self
                .report_at
                .compare_exchange(due, now.saturating_add(milliseconds(self.limits.report)), Relaxed, Relaxed)
                .is_ok()
        {
            self.call.progress.report(&format!("{sum} files looked at"));
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The order of a walk: by name, element after element, so that a directory's files stand together (`a/x` before `a.txt`).
pub(super) fn name_order(one: &[u8], other: &[u8]) -> Ordering {
    match one.iter().zip(other).find(|(a, b)| a != b) {
        // Nothing in a name sorts before what separates names.
        Some((b'/', _)) => Ordering::Less,
        Some((_, b'/')) => Ordering::Greater,
        Some((a, b)) => a.cmp(b),
        None => one.len().cmp(&other.len()),
    }
}

#[cfg(test)]
pub(super) mod fixture;

#[cfg(test)]
mod tests {
    use super::fixture::{Reports, Tree};
    use super::*;
    use crate::os::cancel::Cancel;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Mutex;

    /// Limits under which even a small tree is walked by four threads.
    const EAGER: Limits = Limits {
        threads: Some(4),
        alone: Duration::ZERO,
        path: 32 * 1024,
        waiting: 64 * 1024 * 1024,
        report: Duration::from_secs(1),
    };

    const ALONE: Limits = Limits { threads: Some(1), ..EAGER };

    struct Collect<'c> {
        found: &'c Mutex<Vec<String>>,
        enters: fn(&[u8]) -> bool,
    }

    impl Visitor for Collect<'_> {
        fn enter(&mut self, path: &[u8]) -> bool {
            (self.enters)(path)
        }

        fn visit(&mut self, found: &Found<'_>) {
            if found.is_regular() && found.open().is_some() {
                self.found.lock().unwrap().push(String::from_utf8_lossy(found.path).into_owned());
            }
        }

        fn end(&mut self) {}
    }

    /// The files of a walk, sorted, and what was lost.
    fn files_with(
        tree: &Tree,
        path: &str,
        limits: Limits,
        cancel: &Cancel,
        progress: &Reports,
    ) -> Result<(Vec<String>, Lost), Failure> {
        let workspace = tree.workspace();
        let path = workspace.path(path).unwrap();
        let directory = workspace.open_directory(&path).unwrap();
        let found = Mutex::new(Vec::new());
        let start = Start { workspace: &workspace, path: &path, directory };
        let visitor = || Collect { found: &found, enters: |_| true };
        let lost = walk(start, &Call { cancel, progress }, limits, visitor)?;
        let mut files = found.into_inner().unwrap();
        files.sort();
        Ok((files, lost))
    }

    fn files(tree: &Tree, path: &str) -> Vec<String> {
        let walked = |limits| files_with(tree, path, limits, &Cancel::new(), &Reports::default()).unwrap();
        let (alone, lost) = walked(ALONE);
        assert_eq!(lost, Lost::default());
        assert_eq!(walked(EAGER), (alone.clone(), lost));
        alone
    }

    #[test]
    fn hidden_files_are_visited_and_tools_directories_are_not() {
        let tree = Tree::with(&[
            "a",
            ".hidden",
            ".github/x",
            "src/vendor.rs",
            "src/node_modules/x",
            "lib/.git/config",
            "sub/.git",
        ]);
        for skipped in ["git", "hg", "svn", "venv", "cache", "idea", "next"] {
            tree.file(format!("deep/.{skipped}/x"), "");
        }
        for skipped in ["node_modules", "vendor", "venv", "__pycache__"] {
            tree.file(format!("deep/{skipped}/x"), "");
        }
        // A file of such a name is a file.
        assert_eq!(files(&tree, "."), [".github/x", ".hidden", "a", "src/vendor.rs", "sub/.git"]);
    }

    #[test]
    fn the_start_is_walked_whatever_it_is_called() {
        let tree = Tree::with(&["node_modules/a/b", "node_modules/node_modules/c", ".git/config"]);
        assert_eq!(files(&tree, "node_modules"), ["a/b"]);
        assert_eq!(files(&tree, ".git"), ["config"]);
    }

    #[test]
    fn links_to_files_inside_are_visited_and_all_other_links_are_not() {
        let tree = Tree::with(&["a/file", "b/other"]);
        let secret = tree.outside("secret", "");
        tree.outside("root-evil/file", "");
        tree.link("../a/file", "b/inside");
        tree.link("../b/inside", "a/twice");
        tree.link("a", "to_directory");
        tree.link(".", "a/loop");
        tree.link("..", "b/up");
        tree.link("self", "self");
        tree.link("nowhere", "dangling");
        tree.link("../secret", "out");
        tree.link(&secret, "absolute");
        tree.link("../root-evil/file", "sibling");
        tree.link("/proc/self/root", "magic");
        tree.link("/dev/zero", "device");
        assert_eq!(files(&tree, "."), ["a/file", "a/twice", "b/inside", "b/other"]);
        // A start below the root leads its links as the root would; a start through a link is a start.
        assert_eq!(files(&tree, "b"), ["inside", "other"]);
        assert_eq!(files(&tree, "to_directory"), ["file", "twice"]);
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let tree = Tree::with(&["a"]);
        tree.fifo("fifo");
        tree.link("fifo", "link_to_fifo");
        let socket = std::os::unix::net::UnixListener::bind(tree.root.join("socket"));
        assert_eq!(files(&tree, "."), ["a"]);
        drop(socket);
    }

    #[test]
    fn an_unreadable_directory_is_skipped() {
        let tree = Tree::with(&["a", "closed/b", "z"]);
        let closed = tree.root.join("closed");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        let readable = fs::read_dir(&closed).is_ok();
        let found = files(&tree, ".");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        // Permissions do not hold root back.
        assert_eq!(found, if readable { vec!["a", "closed/b", "z"] } else { vec!["a", "z"] });
    }

    #[test]
    fn names_of_any_bytes_are_walked() {
        let tree = Tree::new();
        tree.bytes_named(b"line\nbreak/x", "");
        tree.bytes_named(b"latin\xe9/y", "");
        tree.bytes_named(&[b'n'; 255], "");
        assert_eq!(files(&tree, "."), ["latin\u{fffd}/y", "line\nbreak/x", &"n".repeat(255)]);
    }

    #[test]
    fn a_tree_deeper_than_a_path_may_be_long_is_walked_to_its_end() {
        let tree = Tree::new();
        let name = "a_directory_with_a_name";
        let last = tree.deep(name, 1000);
        let file = openat(&last, "file", OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(0o600)).unwrap();
        let expected = format!("{}file", format!("{name}/").repeat(1000));
        assert!(expected.len() > 4 * 4096);
        assert_eq!(files(&tree, "."), [expected]);

        let shallow = Limits { path: 500, ..EAGER };
        let (found, lost) = files_with(&tree, ".", shallow, &Cancel::new(), &Reports::default()).unwrap();
        assert_eq!((found, lost), (vec![], Lost { too_deep: 1, ..Lost::default() }));
        let mut told = String::new();
        lost.tell(&mut told);
        assert!(told.starts_with("(1 directories or links lie too deep"), "{told}");
        drop((file, last));
        tree.remove_deep(name);
    }

    #[test]
    fn a_link_beyond_what_a_system_call_can_name_is_told_of() {
        let tree = Tree::new();
        let last = tree.deep("a_directory_with_a_name", 200);
        rustix::fs::symlinkat("target", &last, "file").unwrap();
        let (found, lost) = files_with(&tree, ".", ALONE, &Cancel::new(), &Reports::default()).unwrap();
        assert_eq!((found, lost), (vec![], Lost { too_deep: 1, ..Lost::default() }));
        drop(last);
        tree.remove_deep("a_directory_with_a_name");
    }

    #[test]
    fn directories_that_find_no_room_are_counted() {
        let tree = Tree::new();
        for number in 0..100 {
            tree.file(format!("{number:03}/file"), "");
        }
        let narrow = Limits { waiting: 1000, ..ALONE };
        let (found, lost) = files_with(&tree, ".", narrow, &Cancel::new(), &Reports::default()).unwrap();
        assert!(lost.too_many > 0);
        assert_eq!(found.len() as u64 + lost.too_many, 100);
    }

    #[test]
    fn a_wide_directory_is_read_in_chunks_and_shared() {
        let tree = Tree::new();
        let mut expected = Vec::new();
        for number in 0..3000 {
            let name = format!("a_file_with_quite_a_long_name_{number:06}");
            tree.file(&name, "");
            expected.push(name);
        }
        assert_eq!(files(&tree, "."), expected);
    }

    #[test]
    fn directories_are_entered_in_name_order() {
        let tree = Tree::with(&["b/2/x", "a/x", "a-b/x", "a/c/x", "b/10/x"]);
        let workspace = tree.workspace();
        let path = workspace.path(".").unwrap();
        let directory = workspace.open_directory(&path).unwrap();
        let found = Mutex::new(Vec::new());
        let start = Start { workspace: &workspace, path: &path, directory };
        let call = Call { cancel: &Cancel::new(), progress: &Reports::default() };
        walk(start, &call, ALONE, || Collect { found: &found, enters: |path| path != b"b/10" }).unwrap();
        assert_eq!(found.into_inner().unwrap(), ["a/x", "a/c/x", "a-b/x", "b/2/x"]);
    }

    #[test]
    fn a_cancel_ends_it_before_the_start_and_in_between() {
        let tree = Tree::new();
        for number in 0..200 {
            tree.file(format!("{}/{number}", number / 50), "");
        }
        let cancel = Cancel::new();
        let progress = Reports { cancels: Some(cancel.clone()), ..Reports::default() };
        let eager = Limits { report: Duration::ZERO, ..EAGER };
        let ended = files_with(&tree, ".", eager, &cancel, &progress);
        assert!(matches!(ended, Err(Failure::Cancelled)), "{ended:?}");
        assert!(!progress.said.lock().unwrap().is_empty());

        let quiet = Reports::default();
        let ended = files_with(&tree, ".", EAGER, &cancel, &quiet);
        assert!(matches!(ended, Err(Failure::Cancelled)), "{ended:?}");
        assert!(quiet.said.lock().unwrap().is_empty());
    }

    #[test]
    fn progress_counts_files_and_a_short_walk_makes_none() {
        let tree = Tree::with(&["a", "b/c", "b/d"]);
        let progress = Reports::default();
        files_with(&tree, ".", EAGER, &Cancel::new(), &progress).unwrap();
        assert!(progress.said.lock().unwrap().is_empty());
        files_with(&tree, ".", Limits { report: Duration::ZERO, ..ALONE }, &Cancel::new(), &progress).unwrap();
        assert_eq!(progress.said.lock().unwrap().last().unwrap(), "3 files looked at");
    }

    #[test]
    fn a_panic_in_a_thread_reaches_the_caller_and_leaves_nobody_waiting() {
        struct Panics;
        impl Visitor for Panics {
            fn enter(&mut self, _: &[u8]) -> bool {
                true
            }
            fn visit(&mut self, _: &Found<'_>) {
                panic!("expected");
            }
            fn end(&mut self) {}
        }
        let tree = Tree::with(&["a/b/c", "d/e", "f/g/h", "i/j"]);
        let workspace = tree.workspace();
        let path = workspace.path(".").unwrap();
        let directory = workspace.open_directory(&path).unwrap();
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let start = Start { workspace: &workspace, path: &path, directory };
            let call = Call { cancel: &Cancel::new(), progress: &Reports::default() };
            walk(start, &call, EAGER, || Panics)
        }));
        assert!(ended.is_err());
    }

    #[test]
    fn names_order_element_by_element() {
        let sorted = ["a", "a/b", "a/b/c", "a/c", "a-b", "a.b", "a.b/c", "ab", "b"];
        for (at, one) in sorted.iter().enumerate() {
            for (other_at, other) in sorted.iter().enumerate() {
                assert_eq!(name_order(one.as_bytes(), other.as_bytes()), at.cmp(&other_at), "{one} {other}");
            }
        }
    }
}
