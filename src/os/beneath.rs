//! Confined opens: a name is looked up below a directory and can lead nowhere else, whatever links say and whoever moves things
//! meanwhile (anchors 5.2).
//!
//! The kernel does it where it has `openat2`; elsewhere (before Linux 5.6, in gVisor, behind an old container runtime's seccomp
//! filter) the `walk` does the same one component at a time. Both give the same answers, and both are tested on the same cases:
//! `EXDEV` where a name leads out, `ELOOP` where it meets a link made up by procfs or too many links.

mod walk;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat};
use rustix::io::Errno;

/// The most links followed on the way to one name, as in the kernel.
pub const MAX_LINKS: usize = 40;

/// The most bytes of a name, its closing NUL included, as in the kernel.
const PATH_MAX: usize = 4096;

/// How often `openat2` is asked again when something else on the machine was renamed under it. After that the walk, which a rename
/// elsewhere cannot disturb, decides.
const ATTEMPTS: usize = 64;

const CONFINED: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Who confines a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// The kernel, by `openat2`.
    Kernel,
    /// This process, component by component.
    Walk,
}

/// What stands at a name that was asked for as a regular file.
#[derive(Debug)]
pub enum Found {
    /// A regular file, open for reading.
    Regular(File, Stat),
    /// Something else, which has not been opened.
    Other(FileType),
}

impl Strategy {
    /// What this machine can do; asked of the kernel once per process.
    pub fn detect() -> Self {
        static DETECTED: OnceLock<Strategy> = OnceLock::new();
        *DETECTED.get_or_init(|| match openat2(CWD, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), CONFINED) {
            // EPERM is how a seccomp filter that is older than the call answers. Nothing else makes it fail so on `.`.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::TOOBIG | Errno::OPNOTSUPP) => Self::Walk,
            _ => Self::Kernel,
        })
    }

    /// A handle on what `path` leads to, links followed; it can be looked at and searched in but not read.
    pub fn look(self, root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
        self.open(root, path, OFlags::PATH)
    }

    /// As [`Strategy::look`], but a link at the end is itself what is looked at.
    pub fn look_at_link(self, root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
        self.open(root, path, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// A directory, open for listing. `ENOTDIR` where it is none.
    pub fn open_directory(self, root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
        // O_DIRECTORY is checked before anything is opened, so this never touches a FIFO or a device.
        self.open(root, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::NOCTTY)
    }

    /// A regular file, open for reading (in non-blocking mode, which procfs and leases heed). Never opens anything else: opening a FIFO
    /// waits for or releases a peer, opening a device may act on it.
    pub fn open_regular(self, root: BorrowedFd<'_>, path: &Path) -> Result<Found, Errno> {
        let kind = kind(&fstat(self.look(root, path)?)?);
        if kind != FileType::RegularFile {
            return Ok(Found::Other(kind));
        }
        checked(self.open(root, path, READ))
    }

    /// As [`Strategy::open_regular`] where the answer is known without waiting for a disk, a mount or another machine; `None` where it
    /// is not, and nothing has happened then.
    pub fn open_regular_now(self, root: BorrowedFd<'_>, path: &Path) -> Option<Result<Found, Errno>> {
        if self == Self::Walk {
            return None;
        }
        let open = |flags: OFlags| {
            let resolve = CONFINED | ResolveFlags::CACHED | ResolveFlags::NO_XDEV;
            match openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                // Not cached, another mount (or a way out, which the patient lookup will name), no such flag before Linux 5.12.
                Err(Errno::AGAIN | Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::INTR) => None,
                answer => Some(answer),
            }
        };
        let kind = match open(OFlags::PATH)?.and_then(fstat) {
            Ok(stat) => kind(&stat),
            Err(error) => return Some(Err(error)),
        };
        if kind != FileType::RegularFile {
            return Some(Ok(Found::Other(kind)));
        }
        Some(checked(open(READ)?))
    }

    /// The directory in which `path` really lies and its name there, links followed to the end: a link at `path` is not the name, what
    /// it leads to is. The name may not exist yet. `EISDIR` where the way ends at a directory as such (`.`, `..`, a slash).
    ///
    /// The name was no link when it was looked at; a caller that opens it must not follow one.
    pub fn parent(self, root: BorrowedFd<'_>, path: &Path) -> Result<(OwnedFd, OsString), Errno> {
        let mut path = path.as_os_str().as_bytes().to_vec();
        for _ in 0..=MAX_LINKS {
            let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => path.split_at(slash + 1),
                None => (&b"."[..], path.as_slice()),
            };
            if matches!(name, b"" | b"." | b"..") {
                return Err(Errno::ISDIR);
            }
            let open = self.open(root, Path::new(OsStr::from_bytes(directory)), OFlags::PATH | OFlags::DIRECTORY)?;
            let target = match readlinkat(&open, name, Vec::new()) {
                // No link, or nothing there.
                Err(Errno::INVAL | Errno::NOENT) => return Ok((open, OsString::from_vec(name.to_vec()))),
                Err(error) => return Err(error),
                Ok(target) => target,
            };
            walk::followable(open.as_fd(), target.as_bytes())?;
            let mut next = directory.to_vec();
            next.push(b'/');
            next.extend_from_slice(target.as_bytes());
            path = next;
        }
        Err(Errno::LOOP)
    }

    /// `flags` without O_CLOEXEC, which is always added. Never creates.
    fn open(self, root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        if self == Self::Kernel {
            for _ in 0..ATTEMPTS {
                match openat2(root, path, flags, Mode::empty(), CONFINED) {
                    // EAGAIN: a rename or mount anywhere raced with a `..`, and the kernel could not rule an escape out.
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    answer => return answer,
                }
            }
        }
        walk::open(root, path, flags)
    }
}

/// How a file is opened for reading. By name once more rather than through `/proc/self/fd`, since an empty container has no `/proc`.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Looks again at what was opened: between look and open the name may have been given to something else. A regular file is taken,
/// the same or another, since the lookup itself was confined; anything else is closed unread.
fn checked(opened: Result<OwnedFd, Errno>) -> Result<Found, Errno> {
    let file = match opened {
        Ok(file) => file,
        // What opening a socket answers.
        Err(Errno::NXIO) => return Ok(Found::Other(FileType::Socket)),
        Err(error) => return Err(error),
    };
    let stat = fstat(&file)?;
    match kind(&stat) {
        FileType::RegularFile => Ok(Found::Regular(File::from(file), stat)),
        other => Ok(Found::Other(other)),
    }
}

/// What kind of thing a `Stat` describes.
pub fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::scratch::Scratch;
    use rustix::fs::{RenameFlags, inotify, mknodat, open, openat, renameat_with};
    use std::fs;
    use std::io::Read;
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Every test runs under both, on a kernel that has both.
    fn strategies() -> Vec<Strategy> {
        let mut all = vec![Strategy::detect(), Strategy::Walk];
        all.dedup();
        all
    }

    fn handle(path: impl AsRef<Path>) -> OwnedFd {
        open(path.as_ref(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn content(found: Result<Found, Errno>) -> Result<String, Errno> {
        match found? {
            Found::Regular(mut file, _) => {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                Ok(text)
            }
            Found::Other(kind) => panic!("not a regular file: {kind:?}"),
        }
    }

    #[test]
    fn links_are_followed_inside_and_refused_outside() {
        let scratch = Scratch::new();
        scratch.file("a", "a");
        scratch.file("d/b", "b");
        scratch.file("d/e/c", "c");
        for (target, name) in [
            ("a", "to_a"),
            ("../a", "d/up_to_a"),
            ("d", "to_d"),
            ("d/", "to_d_slash"),
            ("to_d/e/../b", "winding"),
            ("a/", "to_a_slash"),
            ("nothing", "dangling"),
            ("ring2", "ring1"),
            ("ring1", "ring2"),
            ("../canary", "out_file"),
            ("..", "out_dir"),
            ("../root/a", "out_and_in"),
            ("../../canary", "d/out_file"),
            ("d/../..", "out_by_way"),
            ("/", "slash"),
        ] {
            scratch.link(target, name);
        }
        scratch.link(scratch.outside("canary"), "out_absolute");
        scratch.link(scratch.inside("a"), "in_absolute");
        scratch.link(scratch.root(), "in_absolute_dir");
        let root = handle(scratch.root());
        for strategy in strategies() {
            for (name, wanted) in [
                ("a", Ok("a")),
                ("d/b", Ok("b")),
                ("to_a", Ok("a")),
                ("d/up_to_a", Ok("a")),
                ("to_d/b", Ok("b")),
                ("to_d_slash/e/c", Ok("c")),
                ("to_d/up_to_a", Ok("a")),
                ("winding", Ok("b")),
                ("d/../a", Ok("a")),
                ("./d//e/./c", Ok("c")),
                ("nothing", Err(Errno::NOENT)),
                ("dangling", Err(Errno::NOENT)),
                ("d/nothing/x", Err(Errno::NOENT)),
                ("", Err(Errno::NOENT)),
                ("a/x", Err(Errno::NOTDIR)),
                ("a/", Err(Errno::NOTDIR)),
                ("a/.", Err(Errno::NOTDIR)),
                ("a/..", Err(Errno::NOTDIR)),
                ("to_a_slash", Err(Errno::NOTDIR)),
                ("ring1", Err(Errno::LOOP)),
                ("ring1/x", Err(Errno::LOOP)),
                ("..", Err(Errno::XDEV)),
                ("../canary", Err(Errno::XDEV)),
                ("../root/a", Err(Errno::XDEV)),
                ("d/../../canary", Err(Errno::XDEV)),
                ("/etc/passwd", Err(Errno::XDEV)),
                ("out_file", Err(Errno::XDEV)),
                ("out_dir/canary", Err(Errno::XDEV)),
                ("out_and_in", Err(Errno::XDEV)),
                ("d/out_file", Err(Errno::XDEV)),
                ("to_d/out_file", Err(Errno::XDEV)),
                ("out_by_way/canary", Err(Errno::XDEV)),
                ("slash/etc/passwd", Err(Errno::XDEV)),
                ("out_absolute", Err(Errno::XDEV)),
                // The kernel does not ask where an absolute target leads, so neither does the walk.
                ("in_absolute", Err(Errno::XDEV)),
                ("in_absolute_dir/a", Err(Errno::XDEV)),
            ] {
                let found = content(strategy.open_regular(root.as_fd(), Path::new(name)));
                assert_eq!(found.as_deref(), wanted.as_deref(), "{name} by {strategy:?}");
            }
            for name in ["out_dir", "out_by_way", "slash", "..", "in_absolute_dir"] {
                let found = strategy.open_directory(root.as_fd(), Path::new(name)).map(drop);
                assert_eq!(found, Err(Errno::XDEV), "{name} by {strategy:?}");
            }
            for name in [".", "d", "to_d", "to_d_slash", "d/e/..", "d/.."] {
                strategy.open_directory(root.as_fd(), Path::new(name)).unwrap();
            }
            assert_eq!(strategy.open_directory(root.as_fd(), Path::new("a")).map(drop), Err(Errno::NOTDIR));
            let link = strategy.look_at_link(root.as_fd(), Path::new("out_absolute")).unwrap();
            assert_eq!(kind(&fstat(link).unwrap()), FileType::Symlink);
            let through = strategy.look_at_link(root.as_fd(), Path::new("out_dir/canary")).map(drop);
            assert_eq!(through, Err(Errno::XDEV));
        }
    }

    /// The kernel follows 40 links and no more; what one of them says of the next may be in any directory.
    #[test]
    fn the_number_of_links_is_the_kernels() {
        let scratch = Scratch::new();
        scratch.file("0", "end");
        for number in 1..=MAX_LINKS + 1 {
            scratch.link((number - 1).to_string(), number.to_string());
        }
        let root = handle(scratch.root());
        for strategy in strategies() {
            let at = |number: usize| content(strategy.open_regular(root.as_fd(), Path::new(&number.to_string())));
            assert_eq!(at(MAX_LINKS).as_deref(), Ok("end"), "{strategy:?}");
            assert_eq!(at(MAX_LINKS + 1), Err(Errno::LOOP), "{strategy:?}");
            let parent =
                |number: usize| strategy.parent(root.as_fd(), Path::new(&number.to_string())).map(|(_, name)| name);
            assert_eq!(parent(MAX_LINKS), Ok("0".into()), "{strategy:?}");
            assert_eq!(parent(MAX_LINKS + 1), Err(Errno::LOOP), "{strategy:?}");
        }
    }

    /// A link that procfs makes up jumps where its text does not say: `/proc/self/root` is the way out of any root that holds `/proc`.
    #[test]
    fn proc_magic_links_refused() {
        let proc = handle("/proc");
        let scratch = Scratch::new();
        let file = File::open(scratch.file("a", "a")).unwrap();
        let descriptor = {
            use std::os::fd::AsRawFd;
            format!("self/fd/{}", file.as_raw_fd())
        };
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let pipe = {
            use std::os::fd::AsRawFd;
            format!("self/fd/{}", reader.as_raw_fd())
        };
        for strategy in strategies() {
            for name in ["self/root", "self/root/etc", "self/cwd", "self/exe", "self/ns/mnt", &descriptor, &pipe] {
                let found = strategy.look(proc.as_fd(), Path::new(name)).map(drop);
                assert_eq!(found, Err(Errno::LOOP), "{name} by {strategy:?}");
                let found = strategy.parent(proc.as_fd(), Path::new(name)).map(drop);
                assert!(matches!(found, Err(Errno::LOOP)) || name == "self/root/etc", "{name}: {found:?}");
            }
            assert_eq!(strategy.parent(proc.as_fd(), Path::new("self/root/etc")).map(drop), Err(Errno::LOOP));
            // Its ordinary links are followed.
            let status = content(strategy.open_regular(proc.as_fd(), Path::new("self/status"))).unwrap();
            assert!(status.starts_with("Name:"), "{status}");
            content(strategy.open_regular(proc.as_fd(), Path::new("mounts"))).unwrap();
            // And from a root elsewhere there is no way to them at all.
            let up = "../".repeat(40);
            for (number, target) in
                ["/proc/self/root/etc", &format!("{up}proc/self/root/etc"), &format!("/proc/{descriptor}")]
                    .iter()
                    .enumerate()
            {
                let link = format!("magic{number}{strategy:?}");
                scratch.link(target, &link);
                let found = strategy.look(handle(scratch.root()).as_fd(), Path::new(&link)).map(drop);
                assert_eq!(found, Err(Errno::XDEV), "{target} by {strategy:?}");
            }
        }
    }

    #[test]
    fn what_is_no_regular_file_is_never_opened() {
        let scratch = Scratch::new();
        let root = handle(scratch.root());
        mknodat(&root, "fifo", FileType::Fifo, 0o600.into(), 0).unwrap();
        scratch.link("fifo", "to_fifo");
        let _listener = UnixListener::bind(scratch.inside("socket")).unwrap();
        scratch.file("d/a", "a");
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, scratch.inside("fifo"), inotify::WatchFlags::OPEN).unwrap();
        for strategy in strategies() {
            for (name, wanted) in [
                ("fifo", FileType::Fifo),
                ("to_fifo", FileType::Fifo),
                ("socket", FileType::Socket),
                ("d", FileType::Directory),
                (".", FileType::Directory),
            ] {
                match strategy.open_regular(root.as_fd(), Path::new(name)) {
                    Ok(Found::Other(kind)) => assert_eq!(kind, wanted, "{name} by {strategy:?}"),
                    other => panic!("{name} by {strategy:?}: {other:?}"),
                }
            }
            for name in ["fifo", "socket"] {
                assert_eq!(strategy.open_directory(root.as_fd(), Path::new(name)).map(drop), Err(Errno::NOTDIR));
            }
            match strategy.open_regular(handle("/dev").as_fd(), Path::new("null")) {
                Ok(Found::Other(FileType::CharacterDevice)) => {}
                other => panic!("/dev/null by {strategy:?}: {other:?}"),
            }
        }
        let mut events = [0; 256];
        assert_eq!(rustix::io::read(&watch, &mut events), Err(Errno::AGAIN), "the FIFO was opened");
    }

    #[test]
    fn long_and_strange_names() {
        use std::os::unix::ffi::OsStrExt;
        let scratch = Scratch::new();
        let deep = vec!["n"; 300].join("/");
        scratch.file(&deep, "deep");
        let strange = OsStr::from_bytes(b"\xff\xfe n\xc3\n");
        scratch.file(strange, "strange");
        let longest = "x".repeat(255);
        scratch.file(&longest, "longest");
        let root = handle(scratch.root());
        for strategy in strategies() {
            let read = |name: &OsStr| content(strategy.open_regular(root.as_fd(), Path::new(name)));
            assert_eq!(read(deep.as_ref()).as_deref(), Ok("deep"), "{strategy:?}");
            assert_eq!(read(strange).as_deref(), Ok("strange"), "{strategy:?}");
            assert_eq!(read(longest.as_ref()).as_deref(), Ok("longest"), "{strategy:?}");
            assert_eq!(read("x".repeat(256).as_ref()), Err(Errno::NAMETOOLONG), "{strategy:?}");
            // 4095 bytes are a name, and what it names is missing; with one more it is none.
            let path = format!("{}a", "./".repeat(2047));
            assert_eq!(path.len(), 4095);
            assert_eq!(read(path.as_ref()), Err(Errno::NOENT), "{strategy:?}");
            assert_eq!(read(format!("{path}a").as_ref()), Err(Errno::NAMETOOLONG), "{strategy:?}");
            assert_eq!(read("a\0b".as_ref()), Err(Errno::INVAL), "{strategy:?}");
        }
    }

    #[test]
    fn a_name_is_followed_to_the_directory_it_really_is_in() {
        let scratch = Scratch::new();
        scratch.file("d/b", "b");
        scratch.link("d/b", "to_b");
        scratch.link("d", "to_d");
        scratch.link("../to_b", "d/to_to_b");
        scratch.link("d/new", "to_new");
        scratch.link("nowhere/new", "to_nowhere");
        scratch.link("../canary", "out");
        scratch.link(scratch.inside("d/b"), "absolute");
        scratch.link("..", "d/up");
        scratch.link("d/", "slash");
        let root = handle(scratch.root());
        let identity = |stat: Stat| (stat.st_dev, stat.st_ino);
        let root_is = identity(fstat(&root).unwrap());
        let d_is = identity(rustix::fs::stat(scratch.inside("d")).unwrap());
        for strategy in strategies() {
            let parent = |name: &str| {
                let (directory, name) = strategy.parent(root.as_fd(), Path::new(name))?;
                Ok((identity(fstat(directory).unwrap()), name.into_string().unwrap()))
            };
            for (name, wanted) in [
                ("a", Ok((root_is, "a"))),
                ("d/b", Ok((d_is, "b"))),
                ("to_d/b", Ok((d_is, "b"))),
                ("to_b", Ok((d_is, "b"))),
                ("d/to_to_b", Ok((d_is, "b"))),
                ("to_d/to_to_b", Ok((d_is, "b"))),
                ("to_new", Ok((d_is, "new"))),
                ("d", Ok((root_is, "d"))),
                ("to_nowhere", Err(Errno::NOENT)),
                ("x/y", Err(Errno::NOENT)),
                ("d/b/c", Err(Errno::NOTDIR)),
                ("out", Err(Errno::XDEV)),
                ("absolute", Err(Errno::XDEV)),
                (".", Err(Errno::ISDIR)),
                ("..", Err(Errno::ISDIR)),
                ("d/up", Err(Errno::ISDIR)),
                ("slash", Err(Errno::ISDIR)),
                ("../canary", Err(Errno::XDEV)),
            ] {
                assert_eq!(parent(name), wanted.map(|(id, name)| (id, name.to_owned())), "{name} by {strategy:?}");
            }
        }
    }

    #[test]
    fn the_prompt_lookup_answers_as_the_patient_one_or_not_at_all() {
        let scratch = Scratch::new();
        scratch.file("d/a", "a");
        scratch.link("../canary", "out");
        let root = handle(scratch.root());
        let now = |strategy: Strategy, name: &str| strategy.open_regular_now(root.as_fd(), Path::new(name));
        assert!(now(Strategy::Walk, "d/a").is_none());
        if Strategy::detect() == Strategy::Kernel {
            let cached = CONFINED | ResolveFlags::CACHED;
            let supported = openat2(&root, ".", OFlags::PATH, Mode::empty(), cached).is_ok();
            // The file was just written, so its name is cached.
            let found = now(Strategy::Kernel, "d/a");
            assert_eq!(found.map(content), supported.then(|| Ok("a".to_owned())));
            assert!(now(Strategy::Kernel, "out").is_none(), "a way out is for the patient lookup to name");
            assert!(matches!(now(Strategy::Kernel, "d"), Some(Ok(Found::Other(FileType::Directory))) | None));
        }
    }

    /// The walk is the kernel's lookup written out: on trees of any links both must say the same of any name.
    #[test]
    fn the_walk_agrees_with_the_kernel() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % below
        };
        let mut outcomes = std::collections::BTreeMap::new();
        for _ in 0..60 {
            let scratch = Scratch::new();
            let root = handle(scratch.root());
            let mut name = |parts: usize| {
                let parts: Vec<_> =
                    (0..=random(parts)).map(|_| ["a", "b", "c", "a", "b", "..", ".", ""][random(8)]).collect();
                parts.join("/")
            };
            for count in 0..12 {
                let (at, target) = (name(3), name(4));
                // Most of these fail, since the names are any; what comes about is the tree.
                let at = scratch.inside(at.trim_start_matches('/'));
                if !at.starts_with(scratch.root()) || at.components().any(|part| part.as_os_str() == "..") {
                    continue;
                }
                match count % 3 {
                    0 => drop(fs::create_dir(at)),
                    1 => drop(std::os::unix::fs::symlink(target, at)),
                    _ => drop(fs::OpenOptions::new().write(true).create_new(true).open(at)),
                }
            }
            for _ in 0..200 {
                let name = name(5);
                let say = |strategy: Strategy| {
                    let identity = |fd: OwnedFd| fstat(fd).map(|stat| (stat.st_ino, stat.st_mode));
                    let path = Path::new(&name);
                    let parent = strategy.parent(root.as_fd(), path);
                    (
                        strategy.look(root.as_fd(), path).and_then(identity),
                        strategy.look_at_link(root.as_fd(), path).and_then(identity),
                        strategy.open_directory(root.as_fd(), path).and_then(identity),
                        strategy.open_regular(root.as_fd(), path).map(|found| matches!(found, Found::Regular(..))),
                        parent.and_then(|(directory, name)| Ok((identity(directory)?, name))),
                    )
                };
                let walk = say(Strategy::Walk);
                *outcomes.entry(walk.0.map(|_| ()).map_err(Errno::raw_os_error)).or_insert(0) += 1;
                assert_eq!(say(Strategy::detect()), walk, "{name:?}");
            }
        }
        let expected = [Ok(()), Err(Errno::NOENT), Err(Errno::NOTDIR), Err(Errno::LOOP), Err(Errno::XDEV)];
        for outcome in expected.map(|outcome| outcome.map_err(Errno::raw_os_error)) {
            assert!(
                outcomes.get(&outcome).is_some_and(|count| *count > 20),
                "{outcome:?} is hardly tried: {outcomes:?}"
            );
        }
    }

    /// CVE-2025-67366 is this race: checked as a directory, opened as a link. Here whatever is seen is seen by one lookup.
    #[test]
    fn swap_dir_for_symlink_between_check_and_use() {
        let scratch = Scratch::new();
        scratch.file("d/secret", "inside");
        fs::create_dir(scratch.outside("evil")).unwrap();
        fs::write(scratch.outside("evil/secret"), "outside").unwrap();
        scratch.link(scratch.outside("evil"), "absolute");
        scratch.link("../evil", "relative");
        scratch.file("file", "inside");
        scratch.link("../canary", "file_link");
        mknodat(handle(scratch.root()), "fifo", FileType::Fifo, 0o600.into(), 0).unwrap();
        let root = handle(scratch.root());
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
                let exchange = |one: &str, other: &str| {
                    renameat_with(&root, one, &root, other, RenameFlags::EXCHANGE).unwrap();
                };
                while !stop.load(Ordering::Relaxed) {
                    for (one, other) in [("d", "absolute"), ("d", "relative"), ("file", "file_link"), ("file", "fifo")]
                    {
                        exchange(one, other);
                        std::thread::yield_now();
                        exchange(one, other);
                    }
                }
            });
            let mut inside = 0;
            let mut refused = 0;
            for round in 0..40_000 {
                let strategy = if round % 2 == 0 { Strategy::detect() } else { Strategy::Walk };
                let name = if round % 4 < 2 { "d/secret" } else { "file" };
                match strategy.open_regular(root.as_fd(), Path::new(name)) {
                    Ok(Found::Regular(mut file, _)) => {
                        let mut text = String::new();
                        file.read_to_string(&mut text).unwrap();
                        assert_eq!(text, "inside", "{name} by {strategy:?}");
                        inside += 1;
                    }
                    Ok(Found::Other(FileType::Fifo)) | Err(Errno::XDEV | Errno::LOOP | Errno::NOENT | Errno::AGAIN) => {
                        refused += 1;
                    }
                    other => panic!("{name} by {strategy:?}: {other:?}"),
                }
                if round % 8 == 0
                    && let Ok((directory, name)) = strategy.parent(root.as_fd(), Path::new("d/secret"))
                {
                    let file = openat(&directory, &name, OFlags::RDONLY, Mode::empty()).unwrap();
                    let mut text = String::new();
                    File::from(file).read_to_string(&mut text).unwrap();
                    assert_eq!(text, "inside", "the directory of d/secret by {strategy:?}");
                }
            }
            assert!(inside > 0 && refused > 0, "the race never happened: {inside} inside, {refused} refused");
        });
    }
}
