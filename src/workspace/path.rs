//! A name inside the workspace that has been checked, so that it need not be checked again.

use std::fmt::{self, Write as _};
use std::path::Path;

/// A normalised name relative to the root: no empty, `.` or `..` element, no NUL; the root itself is `.`.
///
/// Made only by [`super::Workspace::path`]. That it names nothing outside is the kernel's word at each open, not this type's:
/// a link on the way is followed or refused there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(String);

impl RelPath {
    /// The name itself. A tool prints it through `Display`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name for a system call.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// Whether this is the root itself.
    pub fn is_root(&self) -> bool {
        self.0 == "."
    }

    /// The directory it is in; the root is in itself.
    pub(super) fn parent(&self) -> Self {
        Self(self.0.rsplit_once('/').map_or(".", |(directory, _)| directory).to_owned())
    }

    /// The last element; `.` for the root.
    pub(super) fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or(&self.0, |(_, name)| name)
    }

    /// Joins elements that are none of empty, `.`, `..` and hold neither slash nor NUL.
    fn from_elements(elements: &[&str]) -> Self {
        Self(if elements.is_empty() { ".".to_owned() } else { elements.join("/") })
    }

    /// Cleans `given` lexically, as a shell's user means it: `a/./b/../c` is `a/c` whatever `b` is. An absolute name must lie below one
    /// of `roots`, which are absolute and clean; whole elements are compared, so `/work` does not admit `/work-evil` (CVE-2025-53110).
    ///
    /// `None` when the name leads out. `given` is neither empty nor holds a NUL.
    pub(super) fn clean(given: &str, roots: &[&Path]) -> Option<Self> {
        let absolute = given.starts_with('/');
        let mut elements: Vec<&str> = Vec::new();
        for element in given.split('/') {
            match element {
                "" | "." => {}
                // `/..` is `/`.
                ".." if absolute => drop(elements.pop()),
                ".." => drop(elements.pop()?),
                name => elements.push(name),
            }
        }
        if !absolute {
            return Some(Self::from_elements(&elements));
        }
        roots.iter().find_map(|root| {
            let mut rest = elements.as_slice();
            for element in root.components().skip(1) {
                let (first, others) = rest.split_first()?;
                if element.as_os_str() != *first {
                    return None;
                }
                rest = others;
            }
            Some(Self::from_elements(rest))
        })
    }
}

impl fmt::Display for RelPath {
    /// The name on one line: control characters, with which it could pass for something else, are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            if letter.is_control() {
                write!(f, "{}", letter.escape_default())?;
            } else {
                f.write_char(letter)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cleaned_and_kept_inside() {
        let roots = [Path::new("/work"), Path::new("/srv/real")];
        for (given, wanted) in [
            ("a", Some("a")),
            (".", Some(".")),
            ("./a//b/", Some("a/b")),
            ("a/../b", Some("b")),
            ("a/..", Some(".")),
            ("a/b/../../c", Some("c")),
            ("...", Some("...")),
            ("..a/b..", Some("..a/b..")),
            (" ", Some(" ")),
            ("..", None),
            ("../work/a", None),
            ("a/../..", None),
            ("a/../../work", None),
            ("/work", Some(".")),
            ("/work/", Some(".")),
            ("//work//a", Some("a")),
            ("/work/a/../b", Some("b")),
            ("/work/../work/a", Some("a")),
            ("/../work/a", Some("a")),
            ("/srv/real/x", Some("x")),
            ("/work-evil", None),
            ("/work-evil/a", None),
            ("/wor", None),
            ("/", None),
            ("/work/..", None),
            ("/work/../etc/passwd", None),
            ("/srv", None),
            ("/etc/passwd", None),
        ] {
            let cleaned = RelPath::clean(given, &roots);
            assert_eq!(cleaned.as_ref().map(RelPath::as_str), wanted, "{given}");
        }
    }

    #[test]
    fn everything_lies_below_a_root_of_slash() {
        let roots = [Path::new("/")];
        for (given, wanted) in [("/", "."), ("/etc/passwd", "etc/passwd"), ("/../etc", "etc"), ("etc", "etc")] {
            assert_eq!(RelPath::clean(given, &roots).unwrap().as_str(), wanted);
        }
    }

    #[test]
    fn a_name_is_shown_on_one_line() {
        let path = RelPath::clean("a\u{1b}[2J\n\u{9b}ü", &[]).unwrap();
        assert_eq!(path.to_string(), "a\\u{1b}[2J\\n\\u{9b}ü");
        assert_eq!(path.as_str(), "a\u{1b}[2J\n\u{9b}ü");
    }

    #[test]
    fn a_name_knows_its_directory() {
        for (given, directory, name) in [("a/b/c", "a/b", "c"), ("a", ".", "a"), (".", ".", ".")] {
            let path = RelPath::clean(given, &[]).unwrap();
            assert_eq!((path.parent().as_str(), path.name()), (directory, name));
        }
    }
}
