//! `ls`: the entries of one directory (spec executor 10.6).

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, RawDir, Stat, statat};
use rustix::io::Errno;

use super::schema::{self, Argument};
use super::{Arguments, Call, Definition, Effect, Failure, Tool};
use crate::os::beneath;
use crate::os::cancel::Cancel;
use crate::workspace::{self, RelPath, Workspace};

/// The most entries shown. Of a larger directory only so many names are held at a time.
const MAX_ENTRIES: usize = 10_000;

/// The `ls` tool.
pub(super) struct Ls {
    workspace: Arc<Workspace>,
    definition: Definition,
}

impl Ls {
    pub(super) fn new(workspace: &Arc<Workspace>) -> Self {
        let definition = Definition {
            name: "ls",
            description: format!(
                "List one directory, sorted by name: name/ is a directory, name with a number a file of so many bytes, name@ a link, shown \
                 with what it leads to. At most {MAX_ENTRIES} entries."
            ),
            input_schema: schema::object(vec![Argument::optional(
                "path",
                "string",
                "the directory, relative to the workspace or absolute in it (default: the workspace itself)",
            )]),
            read_only: true,
            effect: Effect::Looks,
            sequential: false,
        };
        Self { workspace: Arc::clone(workspace), definition }
    }

    /// An entry's line. `None` when it is gone.
    fn line(&self, directory: &OwnedFd, path: &RelPath, entry: &Entry) -> Option<String> {
        let name = OsStr::from_bytes(&entry.name);
        let shown = shown(&entry.name);
        let stat = match entry.kind {
            // The listing says all that is shown of these.
            FileType::Directory | FileType::Symlink => None,
            _ => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT) {
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => return None,
                Err(_) => return Some(format!("{shown}  (cannot be looked at)\n")),
            },
        };
        let kind = stat.as_ref().map_or(entry.kind, beneath::kind);
        if kind != FileType::Symlink {
            return Some(format!("{shown}{}\n", described(kind, stat.as_ref())));
        }
        Some(match self.workspace.stat_at(&path.as_path().join(Path::new(name))) {
            Ok(stat) => format!("{shown}@{}\n", described(beneath::kind(&stat), Some(&stat))),
            Err(workspace::Error::Outside(_)) => format!("{shown}@  (leads out of the workspace)\n"),
            Err(workspace::Error::NotFound(_)) => format!("{shown}@  (broken)\n"),
            Err(_) => format!("{shown}@  (cannot be followed)\n"),
        })
    }
}

impl Tool for Ls {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn run(&self, arguments: &Arguments, call: &Call<'_>) -> Result<String, Failure> {
        arguments.known(&["path", schema::STAMP])?;
        arguments.optional_string(schema::STAMP)?;
        let path = self.workspace.path(arguments.optional_string("path")?.unwrap_or("."))?;
        let directory = self.workspace.open_directory(&path)?;
        let (entries, count) = first_entries(&directory, MAX_ENTRIES, call.cancel).map_err(|stop| match stop {
            Some(errno) => workspace::Error::System("list", (&path).into(), errno.into()).into(),
            None => Failure::Cancelled,
        })?;
        let mut answer = String::new();
        for entry in &entries {
            if call.cancel.is_cancelled() {
                return Err(Failure::Cancelled);
            }
            answer += &self.line(&directory, &path, entry).unwrap_or_default();
        }
        if answer.is_empty() {
            return Ok("(empty)".to_owned());
        }
        if count > entries.len() {
            let _ = writeln!(answer, "({} entries more, which are not shown)", count - entries.len());
        }
        Ok(answer)
    }
}

/// What follows a name: a slash, a size, or what kind of thing it is.
fn described(kind: FileType, stat: Option<&Stat>) -> String {
    match kind {
        FileType::Directory => "/".to_owned(),
        FileType::RegularFile => format!("  {}", stat.map_or(0, |stat| stat.st_size)),
        FileType::Fifo => "  (FIFO)".to_owned(),
        FileType::Socket => "  (socket)".to_owned(),
        FileType::CharacterDevice | FileType::BlockDevice => "  (device)".to_owned(),
        _ => "  (of an unknown kind)".to_owned(),
    }
}

/// A name as one line of text: what is not UTF-8 is replaced, and a control character cannot forge another line.
fn shown(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    if !name.contains(char::is_control) {
        return name.into_owned();
    }
    name.chars().fold(String::new(), |mut shown, letter| {
        if letter.is_control() {
            shown.extend(letter.escape_default())
        } else {
            shown.push(letter)
        }
        shown
    })
}

/// An entry of a directory, in the order of its name, byte for byte.
#[derive(Debug)]
struct Entry {
    name: Vec<u8>,
    /// As the listing says it, which is `Unknown` on some file systems.
    kind: FileType,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Entry {}

/// The `limit` entries that come first by name, sorted, and how many there are in all. `Err(None)` when cancelled.
///
/// Holds no more than `limit` names, however many the directory has.
fn first_entries(directory: &OwnedFd, limit: usize, cancel: &Cancel) -> Result<(Vec<Entry>, usize), Option<Errno>> {
    let mut buffer = vec![MaybeUninit::uninit(); 32 * 1024];
    let mut listing = RawDir::new(directory, &mut buffer);
    let mut first: BinaryHeap<Entry> = BinaryHeap::new();
    let mut count = 0;
    while let Some(entry) = listing.next() {
        if cancel.is_cancelled() {
            return Err(None);
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(Some(errno)),
        };
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        count += 1;
        if first.len() < limit {
            first.push(Entry { name: name.to_vec(), kind: entry.file_type() });
        } else if let Some(mut last) = first.peek_mut()
            && name < last.name.as_slice()
        {
            *last = Entry { name: name.to_vec(), kind: entry.file_type() };
        }
    }
    Ok((first.into_sorted_vec(), count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::scratch::Scratch;
    use crate::tools::testing::{arguments, call, open};
    use rustix::fs::{CWD, mknodat};
    use std::fs;

    fn ls(scratch: &Scratch, text: &str) -> Result<String, Failure> {
        let tool = Ls::new(&open(scratch));
        call(|call| tool.run(&arguments(text), call))
    }

    #[test]
    fn each_kind_of_entry_has_its_form() {
        let scratch = Scratch::new();
        scratch.file("d/b", "content");
        scratch.file("a", "");
        scratch.file("B", "1234567890");
        scratch.file("é", "é");
        scratch.file(OsStr::from_bytes(b"\xff"), "1");
        scratch.file("new\nline/red\u{1b}[31m", "1");
        scratch.link("d", "to_d");
        scratch.link("d/b", "to_b");
        scratch.link("none", "broken");
        scratch.link("ring", "ring");
        scratch.link("../canary", "out");
        scratch.link(scratch.outside("canary"), "out_absolute");
        mknodat(CWD, scratch.inside("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        scratch.link("fifo", "to_fifo");
        let _listener = std::os::unix::net::UnixListener::bind(scratch.inside("socket")).unwrap();
        let wanted = [
            "B  10",
            "a  0",
            "broken@  (broken)",
            "d/",
            "fifo  (FIFO)",
            "new\\nline/",
            "out@  (leads out of the workspace)",
            "out_absolute@  (leads out of the workspace)",
            "ring@  (cannot be followed)",
            "socket  (socket)",
            "to_b@  7",
            "to_d@/",
            "to_fifo@  (FIFO)",
            "é  2",
            "\u{fffd}  1",
            "",
        ];
        assert_eq!(ls(&scratch, "{}").unwrap().split('\n').collect::<Vec<_>>(), wanted);
        assert_eq!(ls(&scratch, r#"{"path":".","dax_stamp":"any"}"#).unwrap(), wanted.join("\n"));
        assert_eq!(ls(&scratch, r#"{"path":"new\nline"}"#).unwrap(), "red\\u{1b}[31m  1\n");
        assert_eq!(ls(&scratch, r#"{"path":"to_d"}"#).unwrap(), "b  7\n");
    }

    #[test]
    fn an_empty_directory_and_refusals_are_sentences() {
        let scratch = Scratch::new();
        scratch.file("a", "");
        fs::create_dir(scratch.inside("d")).unwrap();
        scratch.link("..", "up");
        assert_eq!(ls(&scratch, r#"{"path":"d"}"#).unwrap(), "(empty)");
        for (given, wanted) in [
            (r#"{"path":"a"}"#, "not a directory: a"),
            (r#"{"path":"none"}"#, "no such file or directory: none"),
            (r#"{"path":"up"}"#, "path is outside the workspace: up"),
            (r#"{"path":".."}"#, "path is outside the workspace: .."),
            (r#"{"path":""}"#, "path is required"),
            (r#"{"PATH":"d"}"#, "invalid arguments: \"PATH\" must be written \"path\""),
        ] {
            assert_eq!(ls(&scratch, given).unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn of_a_large_directory_the_first_entries_are_shown_and_held() {
        let scratch = Scratch::new();
        for number in 0..MAX_ENTRIES + 50 {
            // In an order that is not the names'.
            fs::create_dir(scratch.inside(format!("{:05}", number * 7919 % (MAX_ENTRIES + 50)))).unwrap();
        }
        let listed = ls(&scratch, "{}").unwrap();
        let mut lines = listed.lines();
        for number in 0..MAX_ENTRIES {
            assert_eq!(lines.next().unwrap(), format!("{number:05}/"));
        }
        assert_eq!(lines.next().unwrap(), "(50 entries more, which are not shown)");
        assert_eq!(lines.next(), None);
        let workspace = open(&scratch);
        let directory = workspace.open_directory(&workspace.path(".").unwrap()).unwrap();
        let (entries, count) = first_entries(&directory, 3, &Cancel::new()).unwrap();
        assert_eq!((entries.len(), count, &*entries[2].name), (3, MAX_ENTRIES + 50, &b"00002"[..]));
    }

    #[test]
    fn a_cancelled_call_says_so() {
        let scratch = Scratch::new();
        scratch.file("a", "");
        let tool = Ls::new(&open(&scratch));
        call(|call| {
            call.cancel.cancel();
            assert!(matches!(tool.run(&arguments("{}"), call), Err(Failure::Cancelled)));
        });
    }
}
