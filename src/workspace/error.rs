//! What can go wrong in the workspace, and on which name.

use std::fmt;
use std::io;

use rustix::fs::FileType;
use rustix::io::Errno;

/// What went wrong, and on which name. Never shows a path outside the workspace other than the one it was given.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No path was given.
    PathRequired,
    /// The path cannot name anything; it holds a NUL.
    InvalidPath(Name),
    /// The path leads out of the workspace, by its text or by a link on its way.
    Outside(Name),
    /// Nothing is there.
    NotFound(Name),
    /// The system does not permit it.
    Permission(Name),
    /// Something other than a regular file is there.
    NotRegular(Name, FileType),
    /// Something other than a directory is there, or on the way there.
    NotDirectory(Name),
    /// The way there has too many links, or one that procfs makes up.
    Links(Name),
    /// The path, or one of its elements, is longer than the system takes, or goes deeper.
    TooLong(Name),
    /// What is there is no link.
    NotLink(Name),
    /// There is no room for the content; what was there is unchanged.
    NoSpace(Name),
    /// The content is larger than a file may be; what was there is unchanged.
    TooLarge(Name),
    /// Writing failed half way, and what was there could not be put back.
    Torn(Name, io::Error),
    /// The system refused for another reason: what was attempted, on what, and why.
    System(&'static str, Name, io::Error),
    /// The workspace's own directory was moved or deleted since it was opened.
    RootGone,
    /// The workspace's directory cannot be opened.
    Root(Name, io::Error),
    /// The call was cancelled while it waited.
    Cancelled,
}

impl Error {
    /// What a failed `action` on `name` means.
    pub(super) fn system(action: &'static str, errno: Errno, name: impl Into<Name>) -> Self {
        let name = name.into();
        match errno {
            Errno::NOENT => Self::NotFound(name),
            Errno::XDEV => Self::Outside(name),
            Errno::ACCESS | Errno::PERM => Self::Permission(name),
            Errno::NOTDIR => Self::NotDirectory(name),
            Errno::LOOP => Self::Links(name),
            Errno::NAMETOOLONG => Self::TooLong(name),
            Errno::ISDIR => Self::NotRegular(name, FileType::Directory),
            Errno::NOSPC | Errno::DQUOT => Self::NoSpace(name),
            Errno::FBIG => Self::TooLarge(name),
            other => Self::System(action, name, other.into()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PathRequired => f.write_str("path is required"),
            Self::InvalidPath(name) => write!(f, "path holds a NUL character: {name}"),
            Self::Outside(name) => write!(f, "path is outside the workspace: {name}"),
            Self::NotFound(name) => write!(f, "no such file or directory: {name}"),
            Self::Permission(name) => write!(f, "permission denied: {name}"),
            Self::NotRegular(name, kind) => write!(f, "not a regular file: {name} is {}", describe(*kind)),
            Self::NotDirectory(name) => write!(f, "not a directory: {name}"),
            Self::Links(name) => write!(f, "too many links, or one that cannot be followed: {name}"),
            Self::TooLong(name) => write!(f, "path is too long or too deep: {name}"),
            Self::NotLink(name) => write!(f, "not a link: {name}"),
            Self::NoSpace(name) => write!(f, "no space left to write {name}; nothing was changed"),
            Self::TooLarge(name) => write!(f, "larger than a file may be here: {name}; nothing was changed"),
            Self::Torn(name, why) => {
                write!(f, "writing {name} failed ({why}) and its old content could not be put back: check it")
            }
            Self::System(action, name, why) => write!(f, "cannot {action} {name}: {why}"),
            Self::RootGone => f.write_str("the workspace's directory was moved or deleted; start again in the new one"),
            Self::Root(name, why) => write!(f, "cannot open the workspace's directory {name}: {why}"),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Torn(_, why) | Self::System(_, _, why) | Self::Root(_, why) => Some(why),
            _ => None,
        }
    }
}

/// What a kind of file is called in a sentence.
fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Symlink => "a link",
        FileType::RegularFile => "a regular file",
        _ => "of an unknown kind",
    }
}

/// A name in an error: no longer than a person reads, and without control characters, since it may be anything a caller sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// Names are cut to this many characters.
    const SHOWN: usize = 256;
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        let mut shown = String::new();
        for (count, letter) in name.chars().enumerate() {
            if count == Self::SHOWN {
                shown.push_str("...");
                break;
            }
            if letter.is_control() {
                shown.extend(letter.escape_default());
            } else {
                shown.push(letter);
            }
        }
        Self(shown)
    }
}

impl From<&super::RelPath> for Name {
    fn from(path: &super::RelPath) -> Self {
        path.as_str().into()
    }
}

impl From<&std::path::Path> for Name {
    fn from(path: &std::path::Path) -> Self {
        path.to_string_lossy().as_ref().into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
