//! What can go wrong between a client and a server, each as a sentence a person can act on.

use std::fmt;
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::{Map, Value};

use super::printable;
use crate::jsonrpc::{self, ErrorObject};
use crate::mcp::protocol::{Version, code, method};

/// The most characters of a server's message that an error repeats.
const MESSAGE_MAX_CHARS: usize = 2000;

/// The most characters of what is wrong with an answer.
const WHY_MAX_CHARS: usize = 300;

/// The most names of a server's list that an error repeats.
const NAMES_MAX: usize = 20;

/// The most names of a server's list that are read.
const NAMES_READ_MAX: usize = 100;

/// Why something asked of a server did not work out.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The server's program could not be started.
    Launch {
        /// What was to be started, without its directory.
        program: String,
        /// What the system said.
        error: io::Error,
    },
    /// The connection is over; who had a request under way does not know whether it was carried out.
    Closed(Closed),
    /// No answer came in time. The server was told that nobody waits any more.
    TimedOut {
        /// What was asked.
        method: String,
        /// How long the answer was waited for; progress may have prolonged it.
        after: Duration,
        /// What the server printed that is no message, where it did: often the reason.
        printed: Option<String>,
    },
    /// The caller's switch was thrown. The server was told.
    Cancelled,
    /// The server answered with an error.
    Rpc {
        /// What was asked.
        method: String,
        /// The error; any code may come (trap T30).
        error: ErrorObject,
    },
    /// The server answered with something the protocol does not allow.
    Protocol {
        /// What was asked.
        method: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// No version of the protocol is spoken by both.
    UnsupportedVersion {
        /// What this client speaks, newest first.
        ours: Vec<String>,
        /// What the server says it speaks; empty where it did not say.
        theirs: Vec<String>,
    },
    /// The server did not declare what is asked for, so it was not asked.
    NotOffered {
        /// The capability's name.
        capability: &'static str,
    },
    /// The version spoken has no such request, so it was not sent.
    NotInVersion {
        /// What was asked for.
        method: &'static str,
        /// The version spoken.
        version: Version,
        /// What that version has in its place.
        instead: &'static str,
    },
    /// The parameters are no JSON object, or longer than a message may be; nothing was sent.
    InvalidParams {
        /// What was to be asked.
        method: String,
        /// What is wrong with them.
        why: String,
    },
    /// To answer a call the server asked something back, and it was refused here (spec mcp 3.6).
    InputRefused {
        /// What was asked of the server.
        method: String,
        /// What the server asked back.
        asked: String,
        /// Why it was refused.
        error: ErrorObject,
    },
    /// The system refused something the connection needs.
    Io {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

/// How a connection ended.
#[derive(Clone, Debug)]
pub struct Closed {
    /// What happened.
    pub how: Ended,
    /// The last the server wrote to its standard error, cleaned of control characters, at most 4 KiB before that; empty where it is not
    /// captured. It may hold secrets: it is for a person, and stands in no error's text.
    pub stderr: String,
}

/// What ended a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// This side closed it.
    ByUs,
    /// The server's process ended.
    Exited(ExitStatus),
    /// The server closed its output and, as far as is known, lives on.
    EndOfStream,
    /// The server no longer reads.
    NotReading,
    /// The stream broke.
    Broken(io::ErrorKind),
    /// The server printed more lines that are no messages than are skipped.
    NotTheProtocol,
}

impl Closed {
    /// An end of which nothing more is known.
    pub fn new(how: Ended) -> Self {
        Self { how, stderr: String::new() }
    }
}

impl Error {
    /// The server's error, where it answered with one.
    pub fn rpc(&self) -> Option<&ErrorObject> {
        match self {
            Self::Rpc { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Whether the server says that a resource does not exist: by either of the codes that servers use at every version (trap T27).
    pub fn is_missing_resource(&self) -> bool {
        match self {
            Self::Rpc { method, error } => {
                method == method::RESOURCES_READ
                    && matches!(error.code, code::RESOURCE_NOT_FOUND | jsonrpc::code::INVALID_PARAMS)
            }
            _ => false,
        }
    }

    /// The capabilities the server says a request needs and that were not declared: an object alone is taken (trap T28).
    pub fn required_capabilities(&self) -> Option<Map<String, Value>> {
        match required(self.rpc()?)? {
            Value::Object(map) => Some(map),
            _ => None,
        }
    }

    /// The last the server wrote to its standard error, where the connection's end brought it; for a person.
    pub fn stderr(&self) -> Option<&str> {
        match self {
            Self::Closed(closed) if !closed.stderr.is_empty() => Some(&closed.stderr),
            _ => None,
        }
    }

    pub(super) fn protocol(method: &str, why: impl Into<String>) -> Self {
        // It may quote the server.
        Self::Protocol { method: method.to_owned(), why: printable::line(why.into().as_bytes(), WHY_MAX_CHARS) }
    }
}

/// What stands under `requiredCapabilities` of the error that names them.
fn required(error: &ErrorObject) -> Option<Value> {
    if error.code != code::MISSING_CAPABILITY {
        return None;
    }
    let data: Value = serde_json::from_str(error.data.as_ref()?.get()).ok()?;
    data.get("requiredCapabilities").cloned()
}

/// The versions an error's data lists as supported; `None` where it lists none (spec mcp 2.2, 3.4).
pub(super) fn supported(error: &ErrorObject) -> Option<Vec<String>> {
    let data: Value = serde_json::from_str(error.data.as_ref()?.get()).ok()?;
    strings(data.get("supported")?)
}

/// The strings of a list that a server sent; what is no string is left out.
pub(super) fn strings(list: &Value) -> Option<Vec<String>> {
    Some(list.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).take(NAMES_READ_MAX).collect())
}

fn names<'a>(list: impl Iterator<Item = &'a str>) -> String {
    let named: Vec<String> = list.take(NAMES_MAX).map(|name| printable::line(name.as_bytes(), 60)).collect();
    if named.is_empty() { "none that it names".to_owned() } else { named.join(", ") }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launch { program, error } => write!(f, "cannot start the server {program:?}: {error}"),
            Self::Closed(closed) => closed.fmt(f),
            Self::TimedOut { method, after, printed } => {
                write!(f, "the server did not answer {method} within {after:?}")?;
                match printed {
                    Some(line) => write!(f, "; it printed what is not the protocol: {line:?}"),
                    None => Ok(()),
                }
            }
            Self::Cancelled => f.write_str("cancelled"),
            Self::Rpc { method, error } => {
                let message = printable::line(error.message.as_bytes(), MESSAGE_MAX_CHARS);
                write!(f, "the server refused {method}: {message} (code {})", error.code)?;
                match required(error) {
                    Some(Value::Object(map)) => write!(f, "; it needs {}", names(map.keys().map(String::as_str))),
                    Some(Value::Array(list)) => {
                        write!(f, "; it needs {}", names(list.iter().filter_map(Value::as_str)))
                    }
                    _ => Ok(()),
                }
            }
            Self::Protocol { method, why } => {
                write!(f, "the server broke the protocol in its answer to {method}: {why}")
            }
            Self::UnsupportedVersion { ours, theirs } => write!(
                f,
                "no protocol version in common: this client speaks {}, the server {}",
                names(ours.iter().map(String::as_str)),
                names(theirs.iter().map(String::as_str))
            ),
            Self::NotOffered { capability } => write!(f, "the server does not offer {capability}"),
            Self::NotInVersion { method, version, instead } => {
                write!(f, "{method} does not exist in protocol version {version}; it has {instead}")
            }
            Self::InvalidParams { method, why } => write!(f, "cannot send {method}: {why}"),
            Self::InputRefused { method, asked, error } => {
                let message = printable::line(error.message.as_bytes(), MESSAGE_MAX_CHARS);
                let asked = printable::line(asked.as_bytes(), 60);
                write!(f, "to answer {method} the server asked for {asked}, which was refused: {message}")
            }
            Self::Io { what, error } => write!(f, "cannot {what}: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Launch { error, .. } | Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            Ended::ByUs => f.write_str("the connection to the server was closed"),
            Ended::Exited(status) => write!(f, "the server ended ({status})"),
            Ended::EndOfStream => f.write_str("the server closed its output"),
            Ended::NotTheProtocol => f.write_str("the server prints what is not the protocol"),
            Ended::NotReading => f.write_str("the server no longer reads its input"),
            Ended::Broken(kind) => write!(f, "the connection to the server broke: {kind}"),
        }
    }
}

impl std::error::Error for Closed {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rpc(method: &str, code: i64, data: Option<Value>) -> Error {
        let mut error = ErrorObject::new(code, "no\u{1b}[1m");
        if let Some(data) = data {
            error = error.with_data(&data);
        }
        Error::Rpc { method: method.to_owned(), error }
    }

    /// Trap T28: an object is taken, a list is only named.
    #[test]
    fn required_capabilities_are_an_object() {
        let object = rpc("tools/call", -32021, Some(json!({"requiredCapabilities": {"sampling": {}}})));
        assert_eq!(Value::Object(object.required_capabilities().unwrap()), json!({"sampling": {}}));
        let list = rpc("tools/call", -32021, Some(json!({"requiredCapabilities": ["sampling"]})));
        assert!(list.required_capabilities().is_none());
        for error in [object, list] {
            assert_eq!(
                error.to_string(),
                "the server refused tools/call: no\\u{1b}[1m (code -32021); it needs sampling"
            );
        }
        assert!(rpc("tools/call", -32003, Some(json!({"requiredCapabilities": {}}))).required_capabilities().is_none());
    }

    /// Trap T27: both codes, at every version.
    #[test]
    fn a_missing_resource_is_known_by_either_code() {
        assert!(rpc("resources/read", -32002, None).is_missing_resource());
        assert!(rpc("resources/read", -32602, None).is_missing_resource());
        assert!(!rpc("resources/read", -32603, None).is_missing_resource());
        assert!(!rpc("tools/call", -32602, None).is_missing_resource());
    }

    #[test]
    fn both_lists_of_versions_are_told() {
        let error = Error::UnsupportedVersion { ours: vec!["2026-07-28".into()], theirs: vec!["2031-01-01".into()] };
        assert_eq!(
            error.to_string(),
            "no protocol version in common: this client speaks 2026-07-28, the server 2031-01-01"
        );
    }
}
