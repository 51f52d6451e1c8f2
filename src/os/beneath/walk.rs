//! The lookup that `openat2` would do, for kernels without it: each component is opened without following it, and links are read
//! and followed by hand. Where it is, is always a directory that was reached from the root, so no answer can lie outside.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

use super::{ATTEMPTS, MAX_LINKS, PATH_MAX, kind};

/// How deep a walk goes: each directory on the way costs a descriptor while it lasts, so that `..` needs no second lookup. A deeper
/// name is refused with `ENAMETOOLONG`.
const MAX_DEPTH: usize = 512;

/// Opens `path` below `root`. `flags` as for `openat`, with O_CLOEXEC and without O_CREAT.
pub(super) fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = path.as_os_str().as_bytes();
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    if path.starts_with(b"/") {
        return Err(Errno::XDEV);
    }
    if path.len() >= PATH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let mut way = Way::default();
    way.prepend(path);
    let mut stack: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    let mut swaps = 0;
    loop {
        let here = stack.last().map_or(root, AsFd::as_fd);
        let Some(name) = way.next() else {
            // The way ended at a directory as such.
            return again(|| openat(here, ".", flags, Mode::empty()));
        };
        match name.as_slice() {
            b"." => continue,
            b".." => {
                stack.pop().ok_or(Errno::XDEV)?;
                continue;
            }
            _ => {}
        }
        let found =
            again(|| openat(here, name.as_slice(), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()))?;
        let kind = kind(&fstat(&found)?);
        let last = way.is_empty();
        if kind == FileType::Symlink && !(last && flags.contains(OFlags::NOFOLLOW)) {
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP);
            }
            let target = readlinkat(&found, "", Vec::new())?;
            followable(found.as_fd(), target.as_bytes())?;
            way.prepend(target.as_bytes());
        } else if !last {
            if kind != FileType::Directory {
                return Err(Errno::NOTDIR);
            }
            if stack.len() >= MAX_DEPTH {
                return Err(Errno::NAMETOOLONG);
            }
            stack.push(found);
        } else if flags.contains(OFlags::DIRECTORY) && kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        } else if flags.contains(OFlags::PATH) {
            return Ok(found);
        } else {
            match again(|| openat(here, name.as_slice(), flags | OFlags::NOFOLLOW, Mode::empty())) {
                // A link has taken its place since: look again.
                Err(Errno::LOOP) if swaps < ATTEMPTS => {
                    swaps += 1;
                    way.put_back(name);
                }
                answer => return answer,
            }
        }
    }
}

/// Refuses a link's target as `RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS` does: absolute, or made up by procfs. `link` is a descriptor
/// on the file system the link is on.
///
/// Procfs has ordinary links too (`/proc/self`, `/proc/mounts`), whose text is relative. Text such as `pipe:[7]` or
/// `(unreachable)/x` is a description and leads nowhere.
pub(super) fn followable(link: BorrowedFd<'_>, target: &[u8]) -> Result<(), Errno> {
    let absolute = target.starts_with(b"/");
    if absolute || target.contains(&b':') || target.starts_with(b"(") {
        if fstatfs(link)?.f_type == PROC_SUPER_MAGIC {
            return Err(Errno::LOOP);
        }
        if absolute {
            return Err(Errno::XDEV);
        }
    }
    Ok(())
}

/// The components still to go, the next one last.
#[derive(Default)]
struct Way(Vec<Vec<u8>>);

impl Way {
    /// Puts the components of `path` before the others. A slash at its end is kept as `.`, which demands a directory.
    fn prepend(&mut self, path: &[u8]) {
        if path.ends_with(b"/") {
            self.0.push(b".".to_vec());
        }
        self.0.extend(path.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec));
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        self.0.pop()
    }

    fn put_back(&mut self, name: Vec<u8>) {
        self.0.push(name);
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Asks again when a signal got between.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}
