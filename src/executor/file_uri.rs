//! The URI a workspace's file is read under as a resource: `agentworkspace:///{op}{?path}` (spec executor 8).
//!
//! Text to typed value and back, with no file in sight. The older spelling of the scheme is read too; only the newer is announced.

use std::fmt;

/// The template, as a client compares it.
pub const TEMPLATE: &str = "agentworkspace:///{op}{?path}";

/// The schemes that are read: the one announced, and the one before it.
const SCHEMES: [&str; 2] = ["agentworkspace", "dax-workspace"];

/// What is asked of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// What it leads to.
    Stat,
    /// What it is itself.
    Lstat,
    /// What a directory holds.
    Readdir,
    /// Where a link points.
    Readlink,
    /// What a file holds.
    Read,
}

impl Operation {
    const ALL: [Self; 5] = [Self::Stat, Self::Lstat, Self::Readdir, Self::Readlink, Self::Read];

    /// Its name in a URI.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::Lstat => "lstat",
            Self::Readdir => "readdir",
            Self::Readlink => "readlink",
            Self::Read => "read",
        }
    }
}

/// A request for a file. The name is checked by whoever opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileUri {
    /// What is asked.
    pub operation: Operation,
    /// Of which name.
    pub path: String,
}

/// Why a text is no URI of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriError {
    /// It is another kind of URI.
    OtherScheme,
    /// It has a host, a user, a port or a fragment.
    NotPlain,
    /// What it asks is not known; files are only read.
    UnknownOperation,
    /// The query is anything but one `path`.
    Query,
    /// The name is not UTF-8, or a percent sign has not two hexadecimal digits behind it.
    Encoding,
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherScheme => "not a URI of a workspace file",
            Self::NotPlain => "a URI of a workspace file has no host, user or fragment",
            Self::UnknownOperation => "the operation is none of stat, lstat, readdir, readlink and read",
            Self::Query => "a URI of a workspace file has exactly one query parameter, path",
            Self::Encoding => "the path is not percent-encoded UTF-8",
        })
    }
}

impl std::error::Error for UriError {}

impl FileUri {
    /// Reads a URI. Linear in its length.
    pub fn parse(uri: &str) -> Result<Self, UriError> {
        let (scheme, rest) = uri.split_once(':').ok_or(UriError::OtherScheme)?;
        if !SCHEMES.contains(&scheme) {
            return Err(UriError::OtherScheme);
        }
        let rest = rest.strip_prefix("///").ok_or(UriError::NotPlain)?;
        if rest.contains('#') {
            return Err(UriError::NotPlain);
        }
        let (operation, query) = rest.split_once('?').ok_or(UriError::Query)?;
        let operation =
            Operation::ALL.into_iter().find(|known| known.as_str() == operation).ok_or(UriError::UnknownOperation)?;
        let path = query.strip_prefix("path=").ok_or(UriError::Query)?;
        // A second parameter, however it is set apart.
        if path.contains(['&', ';']) {
            return Err(UriError::Query);
        }
        Ok(Self { operation, path: decoded(path)? })
    }
}

impl fmt::Display for FileUri {
    /// Writes every byte but the unreserved ones of RFC 3986 percent-encoded, the slash too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agentworkspace:///{}?path=", self.operation.as_str())?;
        for byte in self.path.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

fn decoded(text: &str) -> Result<String, UriError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
                let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
                    return Err(UriError::Encoding);
                };
                bytes.push(u8::try_from(high * 16 + low).map_err(|_| UriError::Encoding)?);
            }
            // A form's spelling of a space, which Go's query parser reads so.
            b'+' => bytes.push(b' '),
            plain => bytes.push(plain),
        }
    }
    String::from_utf8(bytes).map_err(|_| UriError::Encoding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_template_makes_and_refuses_the_rest() {
        use UriError::{Encoding, NotPlain, OtherScheme, Query, UnknownOperation};
        for (uri, expected) in [
            ("agentworkspace:///read?path=dir%2Fa%20b.txt", Ok((Operation::Read, "dir/a b.txt"))),
            ("dax-workspace:///stat?path=.", Ok((Operation::Stat, "."))),
            ("agentworkspace:///readdir?path=a/b", Ok((Operation::Readdir, "a/b"))),
            ("agentworkspace:///read?path=%E4%B8%96+x", Ok((Operation::Read, "世 x"))),
            ("agentworkspace:///read?path=", Ok((Operation::Read, ""))),
            ("agentworkspace://host/read?path=a", Err(NotPlain)),
            ("agentworkspace:/read?path=a", Err(NotPlain)),
            ("agentworkspace:///read?path=a#b", Err(NotPlain)),
            ("agentworkspace:///write?path=a", Err(UnknownOperation)),
            ("agentworkspace:///READ?path=a", Err(UnknownOperation)),
            ("agentworkspace:///read", Err(Query)),
            ("agentworkspace:///read?", Err(Query)),
            ("agentworkspace:///read?path=a&path=b", Err(Query)),
            ("agentworkspace:///read?path=a&x=1", Err(Query)),
            ("agentworkspace:///read?x=1&path=a", Err(Query)),
            ("agentworkspace:///read?Path=a", Err(Query)),
            ("agentworkspace:///read?path=%ff", Err(Encoding)),
            ("agentworkspace:///read?path=%4", Err(Encoding)),
            ("agentworkspace:///read?path=%zz", Err(Encoding)),
            ("file:///etc/passwd", Err(OtherScheme)),
            ("", Err(OtherScheme)),
        ] {
            let read = FileUri::parse(uri);
            assert_eq!(
                read.map(|uri| (uri.operation, uri.path)),
                expected.map(|(op, path)| (op, path.into())),
                "{uri}"
            );
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for path in ["a b.txt", "dir/ü&=+%#?;", ".", "\u{1}\n"] {
            let uri = FileUri { operation: Operation::Read, path: path.into() };
            assert_eq!(FileUri::parse(&uri.to_string()), Ok(uri));
        }
    }
}
