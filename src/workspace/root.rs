//! The root: every open and every look below it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, FsWord, Mode, OFlags, Stat, fstat, fstatfs, openat, readlinkat, stat};
use rustix::io::Errno;

use super::write::WriteLock;
use super::{Descriptor, Environment, Error, Kind, RelPath, Shell};
use crate::os::beneath::{Found, Strategy, kind};

/// How a workspace is opened.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Variables that look like credentials but are passed to processes all the same.
    pub pass_env: Vec<String>,
    /// What kind of place this is, for the record.
    pub kind: Kind,
    /// Free text for the record; this host's name where it is `None`.
    pub reference: Option<String>,
}

/// A directory tree that nothing leaves.
pub struct Workspace {
    /// The root itself. Every lookup starts here, so what its name means later does not matter to safety.
    directory: OwnedFd,
    /// Which directory that is: device and inode.
    identity: (u64, u64),
    strategy: Strategy,
    /// The root's absolute name as it was given, clean.
    given: PathBuf,
    /// The same with links resolved.
    root: PathBuf,
    /// Whether the root's file system answers from this machine, so that a cached lookup is followed by a prompt read.
    local: bool,
    pub(super) writing: Arc<WriteLock>,
    environment: Environment,
    shell: Option<Shell>,
    descriptor: Descriptor,
}

impl Workspace {
    /// Opens the root. Links in `root` are followed: it is the operator's word, not a model's.
    pub fn open(root: &Path, options: Options) -> Result<Self, Error> {
        Self::open_with(root, options, Strategy::detect())
    }

    /// As [`Workspace::open`], confined in the given way.
    pub(crate) fn open_with(root: &Path, options: Options, strategy: Strategy) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::Root(root.into(), error);
        let directory = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| failed(errno.into()))?;
        let stat = fstat(&directory).map_err(|errno| failed(errno.into()))?;
        let file_system = fstatfs(&directory).map_err(|errno| failed(errno.into()))?.f_type;
        let environment = Environment::inherit(&options.pass_env);
        Ok(Self {
            identity: (stat.st_dev, stat.st_ino),
            strategy,
            given: clean(&std::path::absolute(root).map_err(failed)?),
            root: root.canonicalize().map_err(failed)?,
            local: is_local(file_system),
            directory,
            writing: Arc::default(),
            shell: Shell::find(&environment),
            environment,
            descriptor: Descriptor::new(options.kind, options.reference),
        })
    }

    /// The root's absolute name with links resolved.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The root's descriptor, opened with O_PATH: for `fchdir` and `*at` calls, not for reading.
    pub fn root_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Checks a name as a tool was given it: relative, or absolute below the root in either spelling (as given or with links resolved).
    /// Cleaned lexically. Errors: empty ("path is required"), NUL, outside ("path is outside the workspace: X").
    pub fn path(&self, given: &str) -> Result<RelPath, Error> {
        if given.is_empty() {
            return Err(Error::PathRequired);
        }
        if given.contains('\0') {
            return Err(Error::InvalidPath(given.into()));
        }
        RelPath::clean(given, &[&self.given, &self.root]).ok_or_else(|| Error::Outside(given.into()))
    }

    /// Opens a regular file for reading, never blocking, never opening a FIFO or device.
    pub fn open_file(&self, path: &RelPath) -> Result<(File, Stat), Error> {
        self.open_file_at(path.as_path())
    }

    /// As [`Workspace::open_file`], for a name met in a listing, which need not be UTF-8. Relative to the root.
    pub fn open_file_at(&self, path: &Path) -> Result<(File, Stat), Error> {
        self.found(path, self.strategy.open_regular(self.root_fd(), path))
    }

    /// As `open_file`, but only when the name can be looked up without waiting (names cached by the kernel, no mount crossed,
    /// root on a local file system); `None` when it can't be known without waiting.
    pub fn open_file_now(&self, path: &RelPath) -> Option<Result<(File, Stat), Error>> {
        if !self.local {
            return None;
        }
        let found = self.strategy.open_regular_now(self.root_fd(), path.as_path())?;
        Some(self.found(path.as_path(), found))
    }

    /// Opens a directory for listing.
    pub fn open_directory(&self, path: &RelPath) -> Result<OwnedFd, Error> {
        self.open_directory_at(path.as_path())
    }

    /// As [`Workspace::open_directory`], for a name met in a listing, which need not be UTF-8. Relative to the root.
    pub fn open_directory_at(&self, path: &Path) -> Result<OwnedFd, Error> {
        self.checked(path, self.strategy.open_directory(self.root_fd(), path))
    }

    /// Looks at what a name leads to, links followed. O_PATH only.
    pub fn stat(&self, path: &RelPath) -> Result<Stat, Error> {
        self.stat_at(path.as_path())
    }

    /// As [`Workspace::stat`], for a name met in a listing, which need not be UTF-8. Relative to the root.
    pub fn stat_at(&self, path: &Path) -> Result<Stat, Error> {
        self.checked(path, self.strategy.look(self.root_fd(), path).and_then(fstat))
    }

    /// Looks at a name itself: a link at its end is what is described.
    pub fn lstat(&self, path: &RelPath) -> Result<Stat, Error> {
        self.checked(path.as_path(), self.strategy.look_at_link(self.root_fd(), path.as_path()).and_then(fstat))
    }

    /// The text of a link, as stored, at most 4096 bytes; it may lead anywhere. [`Error::NotLink`] where there is none.
    pub fn read_link(&self, path: &RelPath) -> Result<Vec<u8>, Error> {
        let path = path.as_path();
        let link = self.checked(path, self.strategy.look_at_link(self.root_fd(), path))?;
        // A descriptor opened with O_PATH names the link itself; the kernel says NOENT of one that is no link.
        match readlinkat(&link, "", Vec::new()) {
            Ok(text) => Ok(text.into_bytes()),
            Err(Errno::NOENT | Errno::INVAL) => Err(Error::NotLink(path.into())),
            Err(errno) => Err(self.failed("read the link", errno, path)),
        }
    }

    /// What a process started here is given.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The shell for the bash tool: bash, else sh, else none.
    pub fn shell(&self) -> Option<&Shell> {
        self.shell.as_ref()
    }

    /// What the record says of this place.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    pub(super) fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// Fails when the root's name no longer means this directory: answers from a directory that was moved away or deleted would be
    /// about files nobody sees. Where the name cannot be looked up at all, nothing is known and the descriptor stands.
    pub(super) fn check_root(&self) -> Result<(), Error> {
        match stat(&self.root) {
            Err(Errno::NOENT | Errno::NOTDIR) => Err(Error::RootGone),
            // A file system that is served from elsewhere may give the same directory another number.
            Ok(now) if self.local && (now.st_dev, now.st_ino) != self.identity => Err(Error::RootGone),
            _ => Ok(()),
        }
    }

    fn checked<T>(&self, path: &Path, answer: Result<T, Errno>) -> Result<T, Error> {
        self.check_root()?;
        answer.map_err(|errno| self.failed("open", errno, path))
    }

    /// What it means that `action` failed on `path`; where something on the way is no directory, it is that which is named.
    pub(super) fn failed(&self, action: &'static str, errno: Errno, path: &Path) -> Error {
        let mut culprit = path;
        if errno == Errno::NOTDIR {
            for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
                match self.strategy.look(self.root_fd(), above).and_then(fstat).map(|stat| kind(&stat)) {
                    Ok(FileType::Directory) => break,
                    _ => culprit = above,
                }
            }
        }
        Error::system(action, errno, culprit)
    }

    fn found(&self, path: &Path, found: Result<Found, Errno>) -> Result<(File, Stat), Error> {
        match self.checked(path, found)? {
            Found::Regular(file, stat) => Ok((file, stat)),
            Found::Other(kind) => Err(Error::NotRegular(path.into(), kind)),
        }
    }
}

/// Cleans an absolute path lexically.
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(cleaned.pop()),
            Component::CurDir => {}
            other => cleaned.push(other),
        }
    }
    cleaned
}

/// Whether a file system, by the number `statfs` gives it, keeps its data on this machine. One that is not known here is not called
/// local: the price is a thread hop, where the mistake would stop a session until a server far away answers.
fn is_local(file_system: FsWord) -> bool {
    const LOCAL: [FsWord; 17] = [
        0xef53,      // ext2, ext3, ext4
        0x5846_5342, // XFS
        0x9123_683e, // Btrfs
        0x0102_1994, // tmpfs
        0x8584_58f6, // ramfs
        0x794c_7630, // overlayfs
        0x2fc1_2fc1, // ZFS
        0xf2f5_2010, // F2FS
        0xca45_1a4e, // bcachefs
        0x7371_7368, // SquashFS
        0xe0f5_e1e2, // EROFS
        0x3153_464a, // JFS
        0x5265_4973, // ReiserFS
        0x4d44,      // FAT
        0x2011_bab0, // exFAT
        0x7366_746e, // NTFS
        0x9660,      // ISO 9660
    ];
    LOCAL.contains(&file_system)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::scratch::Scratch;
    use std::fs;
    use std::io::Read;

    fn workspaces(root: &Path) -> Vec<Workspace> {
        let mut strategies = vec![Strategy::detect(), Strategy::Walk];
        strategies.dedup();
        strategies.into_iter().map(|by| Workspace::open_with(root, Options::default(), by).unwrap()).collect()
    }

    /// Opens a file as a tool does.
    fn read(workspace: &Workspace, given: &str) -> Result<String, Error> {
        let path = workspace.path(given)?;
        let (mut file, stat) = workspace.open_file(&path)?;
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(stat.st_size, text.len() as i64);
        if let Some(now) = workspace.open_file_now(&path) {
            assert_eq!(now.unwrap().1.st_ino, stat.st_ino);
        }
        Ok(text)
    }

    #[test]
    fn a_root_must_be_a_directory() {
        let scratch = Scratch::new();
        scratch.file("file", "");
        for (name, wanted) in [("none", "No such file"), ("file", "Not a directory"), ("file/x", "Not a directory")] {
            let path = scratch.inside(name);
            let Err(error) = Workspace::open(&path, Options::default()) else { panic!("{name} was opened") };
            let error = error.to_string();
            assert!(error.starts_with("cannot open the workspace's directory /") && error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn both_spellings_of_the_root_are_known() {
        let scratch = Scratch::new();
        scratch.file("real/a", "a");
        scratch.link("real", "link");
        for workspace in workspaces(&scratch.inside("real/../link/.")) {
            assert_eq!(workspace.root(), scratch.inside("real"));
            for name in ["real", "link"] {
                let given = scratch.inside(name).join("a");
                assert_eq!(read(&workspace, given.to_str().unwrap()).unwrap(), "a");
            }
            let beside = scratch.inside("canary");
            assert!(matches!(workspace.path(beside.to_str().unwrap()), Err(Error::Outside(_))));
        }
    }

    /// CVE-2025-53110.
    #[test]
    fn path_sibling_prefix_refused() {
        let scratch = Scratch::new();
        fs::create_dir(scratch.outside("root-evil")).unwrap();
        fs::write(scratch.outside("root-evil/secret"), "outside").unwrap();
        scratch.link("../root-evil", "link");
        for workspace in workspaces(&scratch.root()) {
            let beside = scratch.outside("root-evil/secret");
            for given in [beside.to_str().unwrap(), "../root-evil/secret", "link/secret"] {
                let error = read(&workspace, given).unwrap_err();
                assert_eq!(error.to_string(), format!("path is outside the workspace: {given}"));
            }
        }
    }

    #[test]
    fn errors_have_their_kind_and_name_the_culprit() {
        let scratch = Scratch::new();
        scratch.file("d/a", "a");
        scratch.link("../canary", "out");
        scratch.link("ring", "ring");
        let (wide, deep) = (format!("d/{}", "x".repeat(300)), "d/".repeat(3000));
        for workspace in workspaces(&scratch.root()) {
            for (given, wanted) in [
                ("", "path is required"),
                ("a\0", "path holds a NUL character: a\\u{0}"),
                ("d", "not a regular file: d is a directory"),
                ("d/none", "no such file or directory: d/none"),
                ("d/a/b/c", "not a directory: d/a"),
                ("out", "path is outside the workspace: out"),
                ("ring", "too many links, or one that cannot be followed: ring"),
            ] {
                assert_eq!(read(&workspace, given).unwrap_err().to_string(), wanted);
            }
            for given in [&wide, &deep] {
                let error = read(&workspace, given).unwrap_err();
                assert!(matches!(error, Error::TooLong(_)), "{error}");
                assert!(error.to_string().len() < 400, "a name is cut for the person who reads it");
            }
            let file = workspace.path("d/a").unwrap();
            assert!(matches!(workspace.open_directory(&file), Err(Error::NotDirectory(_))));
            assert!(matches!(workspace.read_link(&file), Err(Error::NotLink(_))));
        }
    }

    #[test]
    fn a_link_can_be_looked_at_wherever_it_leads() {
        let scratch = Scratch::new();
        scratch.file("d/a", "a");
        scratch.link("../d/a", "d/inside");
        scratch.link("/etc/passwd", "d/outside");
        for workspace in workspaces(&scratch.root()) {
            let path = |given: &str| workspace.path(given).unwrap();
            assert_eq!(workspace.read_link(&path("d/inside")).unwrap(), b"../d/a");
            assert_eq!(workspace.read_link(&path("d/outside")).unwrap(), b"/etc/passwd");
            assert_eq!(kind(&workspace.lstat(&path("d/outside")).unwrap()), FileType::Symlink);
            assert_eq!(workspace.stat(&path("d/inside")).unwrap().st_size, 1);
            assert!(matches!(workspace.stat(&path("d/outside")), Err(Error::Outside(_))));
        }
    }

    /// Answers would come from a directory that nobody sees any more.
    #[test]
    fn a_root_that_was_moved_or_deleted_is_named_as_the_reason() {
        let gone = |workspace: &Workspace| {
            let path = workspace.path("a").unwrap();
            let root = workspace.path(".").unwrap();
            let cancel = crate::os::cancel::Cancel::new();
            assert!(matches!(workspace.open_file(&path), Err(Error::RootGone)));
            assert!(matches!(workspace.open_file_now(&path), Some(Err(Error::RootGone)) | None));
            assert!(matches!(workspace.open_directory(&root), Err(Error::RootGone)));
            assert!(matches!(workspace.stat(&root), Err(Error::RootGone)));
            assert!(matches!(workspace.lock_writes(&cancel), Err(Error::RootGone)));
        };
        let scratch = Scratch::new();
        scratch.file("a", "a");
        for workspace in workspaces(&scratch.root()) {
            assert_eq!(read(&workspace, "a").unwrap(), "a");
            fs::rename(scratch.root(), scratch.outside("moved")).unwrap();
            gone(&workspace);
            fs::create_dir(scratch.root()).unwrap();
            gone(&workspace);
            fs::remove_dir(scratch.root()).unwrap();
            fs::rename(scratch.outside("moved"), scratch.root()).unwrap();
            assert_eq!(read(&workspace, "a").unwrap(), "a");
        }
        let workspaces = workspaces(&scratch.root());
        fs::remove_dir_all(scratch.root()).unwrap();
        for workspace in workspaces {
            gone(&workspace);
        }
    }

    #[test]
    fn nothing_is_promised_of_a_file_system_that_is_not_known_to_be_local() {
        for workspace in workspaces(Path::new("/proc")) {
            let path = workspace.path("self/status").unwrap();
            workspace.open_file(&path).unwrap();
            assert!(workspace.open_file_now(&path).is_none());
        }
    }
}
