//! Replacing a file's content whole: readers see the old bytes or the new, and a write that fails leaves the old (design 8.4).
//!
//! A temporary file in the same directory gets the content and everything else the old file had, and is renamed over it. Where that
//! would lose something (a mount point, other hard links, an owner or attribute that cannot be given) or the directory takes no new
//! file, the content is written into the old file and taken back when that fails. Nothing is synced to disk: a workspace is not a store.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags, fallocate, fchmod, fchown, fgetxattr,
    flistxattr, fremovexattr, fsetxattr, fstat, ftruncate, openat, renameat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};

use super::beneath::kind;

/// Why a file was not replaced. Unless it says otherwise, what was there is unchanged.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// A link is there; the caller resolves names, this follows none.
    Link,
    /// Something else that is no regular file is there.
    NotRegular(FileType),
    /// The system refused.
    System(Errno),
    /// The content went into the old file half way, and the old bytes could not be put back.
    Torn(Errno),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// Makes `content` the whole content of the regular file `name`, one element, in `directory`; a missing file is made with mode 0644
/// less the umask. The file must be one that this process may write.
pub fn replace(directory: BorrowedFd<'_>, name: &OsStr, content: &[u8]) -> Result<(), Error> {
    match Old::open(directory, name)? {
        None => match rename_over(directory, name, content, None) {
            Ok(()) => Ok(()),
            Err(Stop::Unfit(errno) | Stop::Failed(errno)) => Err(errno.into()),
        },
        // Another name of the file would keep the old content.
        Some(old) if old.stat.st_nlink > 1 => old.overwrite(content),
        Some(old) => match rename_over(directory, name, content, Some(&old)) {
            Ok(()) => Ok(()),
            Err(Stop::Unfit(_)) => old.overwrite(content),
            Err(Stop::Failed(errno)) => Err(errno.into()),
        },
    }
}

/// Why a file could not be renamed over another.
enum Stop {
    /// Not in this directory, or not without losing something: it is to be written in place.
    Unfit(Errno),
    /// Not at all.
    Failed(Errno),
}

fn rename_over(directory: BorrowedFd<'_>, name: &OsStr, content: &[u8], old: Option<&Old>) -> Result<(), Stop> {
    // Nobody else may read the new bytes before the file's own mode says so; a new file is made with the mode it will have, so that the
    // umask and a directory's default ACL apply.
    let mode = if old.is_some() { 0o600 } else { 0o644 };
    let temporary = Temporary::create(directory, Mode::from_raw_mode(mode))?;
    if let Some(old) = old {
        old.give_owner_and_attributes(&temporary.file).map_err(Stop::Unfit)?;
    }
    // No room here is no reason to write in place, where there is no room either.
    write_start(&temporary.file, content).map_err(|(_, errno)| Stop::Failed(errno))?;
    if let Some(old) = old {
        // Last, since a change of owner and a write both take the set-id bits.
        fchmod(&temporary.file, Mode::from_raw_mode(old.stat.st_mode & 0o7777)).map_err(Stop::Unfit)?;
    }
    temporary.rename(name)
}

/// A file with a name nobody else has, removed again unless it is renamed.
struct Temporary<'a> {
    directory: BorrowedFd<'a>,
    name: String,
    file: OwnedFd,
    renamed: bool,
}

impl<'a> Temporary<'a> {
    fn create(directory: BorrowedFd<'a>, mode: Mode) -> Result<Self, Stop> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        loop {
            let mut random = [0; 8];
            getrandom::fill(&mut random).map_err(|_| Stop::Failed(Errno::IO))?;
            let mut name = String::from(".berth-");
            for byte in random {
                let _ = write!(name, "{byte:02x}");
            }
            match openat(directory, name.as_str(), flags, mode) {
                Ok(file) => return Ok(Self { directory, name, file, renamed: false }),
                Err(Errno::EXIST | Errno::INTR) => {}
                Err(errno @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => return Err(Stop::Unfit(errno)),
                Err(errno) => return Err(Stop::Failed(errno)),
            }
        }
    }

    fn rename(mut self, name: &OsStr) -> Result<(), Stop> {
        match renameat(self.directory, self.name.as_str(), self.directory, name) {
            Ok(()) => {
                self.renamed = true;
                Ok(())
            }
            // A mount point; a sticky directory; a file system whose directories cannot rename.
            Err(errno @ (Errno::BUSY | Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::XDEV)) => {
                Err(Stop::Unfit(errno))
            }
            Err(errno) => Err(Stop::Failed(errno)),
        }
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = unlinkat(self.directory, self.name.as_str(), AtFlags::empty());
        }
    }
}

/// The file that is to be replaced.
struct Old {
    file: OwnedFd,
    stat: Stat,
    /// Set where the file can be renamed over but not written: it is being executed.
    busy: bool,
}

impl Old {
    /// `None` where nothing is there.
    fn open(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Self>, Error> {
        let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(directory, name, look, Mode::empty()).and_then(fstat) {
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
            Ok(stat) => check_regular(&stat)?,
        }
        // A file that could not be written in place is not replaced either: its mode means that.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mut busy = false;
        let mut opened = openat(directory, name, flags | OFlags::RDWR, Mode::empty());
        if matches!(opened, Err(Errno::TXTBSY)) {
            busy = true;
            opened = openat(directory, name, flags | OFlags::RDONLY, Mode::empty());
        }
        let file = match opened {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(Error::Link),
            Err(Errno::NXIO) => return Err(Error::NotRegular(FileType::Socket)),
            Err(errno) => return Err(errno.into()),
        };
        let stat = fstat(&file)?;
        check_regular(&stat)?;
        Ok(Some(Self { file, stat, busy }))
    }

    /// Gives `new` this file's owner, group and extended attributes, access lists among them.
    fn give_owner_and_attributes(&self, new: &OwnedFd) -> Result<(), Errno> {
        let fresh = fstat(new)?;
        if (fresh.st_uid, fresh.st_gid) != (self.stat.st_uid, self.stat.st_gid) {
            fchown(new, Some(Uid::from_raw(self.stat.st_uid)), Some(Gid::from_raw(self.stat.st_gid)))?;
        }
        let wanted = attributes(&self.file)?;
        let inherited = attributes(new)?;
        for (name, value) in &wanted {
            // A security module labels the new file by its own rules; what it already set need not be set, which it may forbid.
            if !inherited.contains(&(name.clone(), value.clone())) {
                fsetxattr(new, name.as_slice(), value, XattrFlags::empty())?;
            }
        }
        for (name, _) in inherited {
            // An access list from the directory's default would open the file to others than the old one was.
            if name == b"system.posix_acl_access" && !wanted.iter().any(|(other, _)| *other == name) {
                fremovexattr(new, name.as_slice())?;
            }
        }
        Ok(())
    }

    /// Writes `content` into the file itself, or leaves it as it was.
    fn overwrite(&self, content: &[u8]) -> Result<(), Error> {
        if self.busy {
            return Err(Errno::TXTBSY.into());
        }
        let old_length = u64::try_from(fstat(&self.file)?.st_size).unwrap_or(0);
        let new_length = u64::try_from(content.len()).map_err(|_| Errno::FBIG)?;
        let saved = read_start(&self.file, old_length.min(new_length))?;
        if new_length > old_length {
            self.reserve(old_length, new_length - old_length)?;
        }
        // The tail goes last, when nothing that could want room is left to do.
        let done = write_start(&self.file, content).and_then(|()| {
            if new_length < old_length {
                ftruncate(&self.file, new_length).map_err(|errno| (content.len(), errno))
            } else {
                Ok(())
            }
        });
        let Err((written, errno)) = done else {
            return Ok(());
        };
        let overwritten = saved.get(..written).unwrap_or(&saved);
        match write_start(&self.file, overwritten)
            .and_then(|()| ftruncate(&self.file, old_length).map_err(|why| (0, why)))
        {
            Ok(()) => Err(errno.into()),
            Err(_) => Err(Error::Torn(errno)),
        }
    }

    /// Asks for the room that a longer content needs before anything is overwritten. A file system that cannot say is found out by
    /// the write.
    fn reserve(&self, from: u64, length: u64) -> Result<(), Errno> {
        loop {
            match fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, length) {
                Err(Errno::INTR) => {}
                Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                    // Gives back what was reserved before the room ended.
                    let _ = ftruncate(&self.file, from);
                    return Err(errno);
                }
                _ => return Ok(()),
            }
        }
    }
}

fn check_regular(stat: &Stat) -> Result<(), Error> {
    match kind(stat) {
        FileType::RegularFile => Ok(()),
        FileType::Symlink => Err(Error::Link),
        other => Err(Error::NotRegular(other)),
    }
}

/// An extended attribute: its name and its value.
type Attribute = (Vec<u8>, Vec<u8>);

/// The extended attributes of a file that belong to the file. Those that vouch for its content are left behind, as the kernel takes
/// them from a file that is written.
fn attributes(file: &OwnedFd) -> Result<Vec<Attribute>, Errno> {
    const OF_THE_CONTENT: [&[u8]; 3] = [b"security.capability", b"security.ima", b"security.evm"];
    // The kernel's own limits on a list and on a value are 64 KiB each.
    let mut buffer = vec![0; 64 * 1024];
    let length = match flistxattr(file, buffer.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        Err(errno) => return Err(errno),
    };
    let names: Vec<Vec<u8>> = buffer
        .get(..length)
        .unwrap_or_default()
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty() && !OF_THE_CONTENT.contains(name))
        .map(<[u8]>::to_vec)
        .collect();
    let mut attributes = Vec::with_capacity(names.len());
    for name in names {
        match fgetxattr(file, name.as_slice(), buffer.as_mut_slice()) {
            Ok(length) => attributes.push((name, buffer.get(..length).unwrap_or_default().to_vec())),
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(attributes)
}

/// The first `length` bytes of a file, fewer where it is shorter.
fn read_start(file: impl AsFd, length: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; usize::try_from(length).map_err(|_| Errno::FBIG)?];
    let mut have = 0;
    while let Some(room) = bytes.get_mut(have..).filter(|room| !room.is_empty()) {
        match pread(&file, room, offset(have)) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    bytes.truncate(have);
    Ok(bytes)
}

/// Writes all of `bytes` at the start of a file; where that fails, says how many were written before.
fn write_start(file: impl AsFd, bytes: &[u8]) -> Result<(), (usize, Errno)> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match pwrite(&file, rest, offset(written)) {
            // A regular file that takes nothing and says nothing.
            Ok(0) => return Err((written, Errno::IO)),
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err((written, errno)),
        }
    }
    Ok(())
}

/// A position in memory as one in a file: `usize` is never wider than `u64` where this runs.
fn offset(position: usize) -> u64 {
    u64::try_from(position).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::scratch::Scratch;
    use nix::sys::signal::{SigSet, Signal};
    use rustix::fs::{Stat, chown, getxattr, mknodat, open, setxattr, stat};
    use rustix::process::{Resource, Rlimit, geteuid, setrlimit};
    use rustix::thread::set_thread_res_uid;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    use std::path::Path;
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn directory(scratch: &Scratch) -> OwnedFd {
        open(scratch.root(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    fn put(directory: &OwnedFd, name: &str, content: &str) -> Result<(), Error> {
        replace(directory.as_fd(), OsStr::new(name), content.as_bytes())
    }

    fn mode(path: &Path) -> u32 {
        stat(path).unwrap().st_mode & 0o7777
    }

    fn inode(path: &Path) -> u64 {
        stat(path).unwrap().st_ino
    }

    /// Runs `work` with the rights of nobody in particular, when the tests run with root's.
    fn without_privilege(work: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                if geteuid().is_root() {
                    // Of this thread alone, which ends with it.
                    let nobody = Uid::from_raw(65534);
                    set_thread_res_uid(nobody, nobody, nobody).unwrap();
                }
                work();
            });
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        });
    }

    #[test]
    fn a_new_file_has_the_ordinary_mode() {
        let scratch = Scratch::new();
        let like = scratch.inside("like");
        fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&like).unwrap();
        put(&directory(&scratch), "new", "content").unwrap();
        assert_eq!(fs::read_to_string(scratch.inside("new")).unwrap(), "content");
        assert_eq!(mode(&scratch.inside("new")), mode(&like));
        assert_eq!(scratch.names("."), ["like", "new"]);
    }

    #[test]
    fn mode_owner_and_attributes_are_kept() {
        let scratch = Scratch::new();
        let file = scratch.file("file", "old content");
        let attributes = setxattr(&file, "user.berth", b"kept", XattrFlags::empty());
        if geteuid().is_root() {
            chown(&file, Some(Uid::from_raw(1234)), Some(Gid::from_raw(4321))).unwrap();
        }
        fs::set_permissions(&file, Permissions::from_mode(0o4751)).unwrap();
        let before: Stat = stat(&file).unwrap();

        put(&directory(&scratch), "file", "new").unwrap();

        let after = stat(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_ne!(after.st_ino, before.st_ino, "renamed over");
        assert_eq!((after.st_mode, after.st_uid, after.st_gid), (before.st_mode, before.st_uid, before.st_gid));
        let mut value = [0; 16];
        match attributes {
            Ok(()) => {
                let length = getxattr(&file, "user.berth", &mut value[..]).unwrap();
                assert_eq!(&value[..length], b"kept");
            }
            Err(errno) => assert_eq!(errno, Errno::OPNOTSUPP, "the file system has no attributes"),
        }
        assert_eq!(scratch.names("."), ["file"]);
    }

    /// An access list in the kernel's form: version 2, then tag, permissions and id of each entry.
    fn access_list(named_user: Option<u32>) -> Vec<u8> {
        let mut list = 2u32.to_le_bytes().to_vec();
        let mut entry = |tag: u16, permissions: u16, id: u32| {
            list.extend(tag.to_le_bytes());
            list.extend(permissions.to_le_bytes());
            list.extend(id.to_le_bytes());
        };
        entry(0x01, 6, u32::MAX);
        if let Some(user) = named_user {
            entry(0x02, 6, user);
        }
        entry(0x04, 0, u32::MAX);
        if named_user.is_some() {
            entry(0x10, 6, u32::MAX);
        }
        entry(0x20, 0, u32::MAX);
        list
    }

    #[test]
    fn access_lists_are_kept_and_none_is_inherited() {
        const LIST: &str = "system.posix_acl_access";
        let scratch = Scratch::new();
        let with = scratch.file("with", "old");
        let without = scratch.file("without", "old");
        fs::set_permissions(&without, Permissions::from_mode(0o600)).unwrap();
        let given = access_list(Some(4321));
        if let Err(errno) = setxattr(&with, LIST, &given, XattrFlags::empty()) {
            assert_eq!(errno, Errno::OPNOTSUPP, "the file system has no access lists");
            return;
        }
        // What a new file in the directory would be given.
        setxattr(scratch.root(), "system.posix_acl_default", &access_list(Some(1)), XattrFlags::empty()).unwrap();
        let old = (inode(&with), inode(&without));
        put(&directory(&scratch), "with", "new").unwrap();
        put(&directory(&scratch), "without", "new").unwrap();
        assert!(inode(&with) != old.0 && inode(&without) != old.1, "renamed over");
        let mut value = [0; 256];
        let length = getxattr(&with, LIST, &mut value[..]).unwrap();
        assert_eq!(&value[..length], given);
        assert_eq!(getxattr(&without, LIST, &mut value[..]), Err(Errno::NODATA));
        assert_eq!(mode(&without), 0o600);
        // A file that is new is given it.
        put(&directory(&scratch), "fresh", "new").unwrap();
        getxattr(scratch.inside("fresh"), LIST, &mut value[..]).unwrap();
    }

    #[test]
    fn every_name_of_a_file_sees_the_new_content() {
        let scratch = Scratch::new();
        let file = scratch.file("file", "a long old content");
        fs::hard_link(&file, scratch.inside("other")).unwrap();
        let before = inode(&file);
        for content in ["short", "", "a content that is longer than any was before"] {
            put(&directory(&scratch), "file", content).unwrap();
            assert_eq!(fs::read_to_string(scratch.inside("other")).unwrap(), content);
            assert_eq!(inode(&file), before);
        }
        assert_eq!(scratch.names("."), ["file", "other"]);
    }

    #[test]
    fn a_directory_that_takes_no_file_has_its_files_written_in_place() {
        let scratch = Scratch::new();
        let file = scratch.file("file", "old");
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        let locked = scratch.file("locked", "old");
        fs::set_permissions(&locked, Permissions::from_mode(0o444)).unwrap();
        fs::set_permissions(scratch.root(), Permissions::from_mode(0o555)).unwrap();
        let before = inode(&file);
        // Opened before, since the way there may be closed to others.
        let directory = directory(&scratch);
        without_privilege(|| {
            put(&directory, "file", "new").unwrap();
            assert_eq!(put(&directory, "locked", "new"), Err(Error::System(Errno::ACCESS)));
            assert_eq!(put(&directory, "missing", "new"), Err(Error::System(Errno::ACCESS)));
        });
        fs::set_permissions(scratch.root(), Permissions::from_mode(0o755)).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(inode(&file), before);
        assert_eq!(fs::read_to_string(&locked).unwrap(), "old");
        assert_eq!(scratch.names("."), ["file", "locked"]);
    }

    /// A file that may not be written is not renamed over either, though its directory would allow it; and one of somebody else's, that
    /// may, stays theirs.
    #[test]
    fn a_file_keeps_its_protection_and_its_owner() {
        let scratch = Scratch::new();
        let locked = scratch.file("locked", "old");
        fs::set_permissions(&locked, Permissions::from_mode(0o444)).unwrap();
        let shared = scratch.file("shared", "old");
        fs::set_permissions(&shared, Permissions::from_mode(0o666)).unwrap();
        fs::set_permissions(scratch.root(), Permissions::from_mode(0o777)).unwrap();
        let before = stat(&shared).unwrap();
        // Opened before, since the way there may be closed to others.
        let directory = directory(&scratch);
        without_privilege(|| {
            assert_eq!(put(&directory, "locked", "new"), Err(Error::System(Errno::ACCESS)));
            put(&directory, "shared", "new").unwrap();
        });
        assert_eq!(fs::read_to_string(&locked).unwrap(), "old");
        assert_eq!(fs::read_to_string(&shared).unwrap(), "new");
        let after = stat(&shared).unwrap();
        assert_eq!((after.st_uid, after.st_mode), (before.st_uid, before.st_mode));
        // Renamed over where the owner is the writer, written in place where not.
        assert_eq!(after.st_ino == before.st_ino, geteuid().is_root());
        assert_eq!(scratch.names("."), ["locked", "shared"]);
    }

    #[test]
    fn only_regular_files_are_replaced() {
        let scratch = Scratch::new();
        let directory = directory(&scratch);
        scratch.file("d/a", "a");
        scratch.link("../canary", "link");
        mknodat(&directory, "fifo", FileType::Fifo, 0o600.into(), 0).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(scratch.inside("socket")).unwrap();
        for (name, error) in [
            ("link", Error::Link),
            ("d", Error::NotRegular(FileType::Directory)),
            ("fifo", Error::NotRegular(FileType::Fifo)),
            ("socket", Error::NotRegular(FileType::Socket)),
        ] {
            assert_eq!(put(&directory, name, "new"), Err(error), "{name}");
        }
        assert_eq!(fs::read_to_string(scratch.outside("canary")).unwrap(), "outside");
        assert_eq!(scratch.names("."), ["d", "fifo", "link", "socket"]);
    }

    #[test]
    fn a_running_program_is_renamed_over() {
        let scratch = Scratch::new();
        let program = scratch.inside("program");
        // Copied by another process: a descriptor open for writing here would be inherited by what a neighbouring test starts, and then
        // the program could not be started.
        assert!(Command::new("cp").arg("/bin/cat").arg(&program).status().unwrap().success());
        let mut child = Command::new(&program).stdin(std::process::Stdio::piped()).spawn().unwrap();
        put(&directory(&scratch), "program", "new").unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert_eq!(fs::read_to_string(&program).unwrap(), "new");
    }

    #[test]
    fn a_reader_sees_the_old_or_the_new_and_nothing_between() {
        let scratch = Scratch::new();
        let contents = ["a".repeat(100_000), "b".repeat(300_000)];
        let file = scratch.file("file", &contents[0]);
        let directory = directory(&scratch);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let seen = fs::read_to_string(&file).unwrap();
                    assert!(contents.contains(&seen), "{} bytes", seen.len());
                }
            });
            for round in 0..300 {
                if reader.is_finished() {
                    break;
                }
                put(&directory, "file", &contents[round % 2]).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
    }

    /// A limit on the size of files stops a write as a full disk does, and needs no disk of its own. It binds the whole process, so the
    /// test runs itself once more for it.
    #[test]
    fn a_write_that_runs_out_of_room_leaves_the_old_file_whole() {
        const AGAIN: &str = "BERTH_TEST_FILE_SIZE_LIMIT";
        if std::env::var_os(AGAIN).is_none() {
            let this = "os::replace::tests::a_write_that_runs_out_of_room_leaves_the_old_file_whole";
            let run = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", this])
                .env(AGAIN, "1")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&run.stdout);
            assert!(
                run.status.success() && said.contains("1 passed"),
                "{said}{}",
                String::from_utf8_lossy(&run.stderr)
            );
            return;
        }
        const LIMIT: u64 = 64 * 1024;
        let scratch = Scratch::new();
        let directory = directory(&scratch);
        // Longer than the limit, as a file from before it can be.
        let long: Vec<u8> = (0..150_000u32).map(|number| (number % 251) as u8).collect();
        let short = &long[..10_000];
        for name in ["short", "short linked"] {
            scratch.file(name, short);
        }
        for name in ["long", "long linked"] {
            scratch.file(name, &long);
        }
        for name in ["short linked", "long linked"] {
            fs::hard_link(scratch.inside(name), scratch.inside(format!("{name} too"))).unwrap();
        }
        let names = scratch.names(".");
        SigSet::from(Signal::SIGXFSZ).thread_block().unwrap();
        setrlimit(Resource::Fsize, Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) }).unwrap();

        let content = "x".repeat(200_000);
        for name in ["short", "short linked", "long", "long linked", "missing"] {
            assert_eq!(put(&directory, name, &content), Err(Error::System(Errno::FBIG)), "{name}");
        }
        for name in ["short", "short linked", "short linked too"] {
            assert!(fs::read(scratch.inside(name)).unwrap() == short, "{name}");
        }
        for name in ["long", "long linked", "long linked too"] {
            assert!(fs::read(scratch.inside(name)).unwrap() == long, "{name}");
        }
        assert_eq!(scratch.names("."), names, "no temporary file is left");
        // And what fits is still written.
        put(&directory, "long linked", "fits").unwrap();
        assert_eq!(fs::read(scratch.inside("long linked too")).unwrap(), b"fits");
    }
}
