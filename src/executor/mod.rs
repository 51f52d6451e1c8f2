//! The execution plane: what serves the coding tools to a client, and what reaches tools that run elsewhere.
//!
//! [`Executor`] is the seam: whoever calls a tool holds one and does not know whether it runs in this process ([`InProcess`]) or in another
//! ([`Remote`]). Nothing falls back from one to the other.

pub mod file_uri;
mod in_process;
mod remote;
mod server;
mod target;

use std::fmt;

use serde_json::{Map, Value};

pub use in_process::InProcess;
pub use remote::Remote;
pub use server::CodingService;
pub use target::{Target, TargetError};

use crate::mcp;
use crate::os::cancel::Cancel;
use crate::tools::Progress;

/// Runs tools, wherever they are.
pub trait Executor: Send + Sync {
    /// The tools, in the executor's order.
    fn tools(&self) -> &[mcp::types::Tool];

    /// Runs a call; blocks until it is done or `cancel` is thrown. A call is sent once: it may have run even where an error comes back.
    fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        cancel: &Cancel,
        progress: &dyn Progress,
    ) -> Result<mcp::types::CallResult, Error>;
}

/// Why a call has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The executor has no tool of that name.
    NoSuchTool(String),
    /// The call was cancelled.
    Cancelled,
    /// The executor cannot be reached, or was lost while the call was under way.
    Unreachable(String),
    /// The executor refused.
    Refused(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchTool(name) => write!(f, "no tool named {name:?}"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Unreachable(why) => write!(f, "the executor cannot be reached: {why}"),
            Self::Refused(why) => write!(f, "the executor refused: {why}"),
        }
    }
}

impl std::error::Error for Error {}

/// Whether a listed tool says of itself that it only looks. A hint, and false where nothing is said (spec mcp 5.1).
pub fn only_looks(tool: &mcp::types::Tool) -> bool {
    tool.annotations.as_ref().and_then(|hints| hints.get("readOnlyHint")).is_some_and(|hint| hint == &Value::Bool(true))
}
