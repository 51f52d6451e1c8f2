//! What a tool is, and what a call of one is given.

use std::fmt;

use serde_json::value::RawValue;

use super::Arguments;
use crate::os::cancel::Cancel;
use crate::workspace;

/// What a client is told of a tool.
#[derive(Debug)]
pub struct Definition {
    /// The name it is called by.
    pub name: &'static str,
    /// What it does, for a model.
    pub description: String,
    /// A JSON Schema of its arguments: an object with `type`, `description`, `properties`, `required` in that order.
    pub input_schema: Box<RawValue>,
    /// Whether the extension counts it among those that only look (spec executor 10), which `bash` is for the lines that do. Not the
    /// protocol's hint, which is made from `effect`.
    pub read_only: bool,
    /// What a call of it can do at the most.
    pub effect: Effect,
    /// Whether a batch that holds a call of it runs one call at a time.
    pub sequential: bool,
}

/// What a call of a tool can do at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing changes.
    Looks,
    /// Files in the workspace get a given content: a second call changes nothing more.
    ReplacesFiles,
    /// Files in the workspace change.
    ChangesFiles,
    /// Whatever a process may do.
    Anything,
}

/// What differs between the sessions of one executor.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The most bytes of a file a tool reads.
    pub max_read_bytes: u64,
}

/// One call's surroundings.
pub struct Call<'a> {
    /// Thrown when nobody waits for the answer any more.
    pub cancel: &'a Cancel,
    /// Where a tool that takes long says how far it is.
    pub progress: &'a dyn Progress,
}

/// Where progress goes.
pub trait Progress: Sync {
    /// Whether anybody listens; a tool may skip the work of a report when not.
    fn wanted(&self) -> bool;
    /// Says `message`. Never blocks: a report nobody could take is dropped.
    fn report(&self, message: &str);
}

/// A tool that can be called, from several threads at once.
pub trait Tool: Send + Sync {
    /// What a client is told of it.
    fn definition(&self) -> &Definition;

    /// Runs a call and answers with its text. May block until `call.cancel` is thrown.
    fn run(&self, arguments: &Arguments, call: &Call<'_>) -> Result<String, Failure>;

    /// Runs a call that cannot block, on the thread that read it; `None` when this one might (then nothing has happened yet).
    fn run_now(&self, _arguments: &Arguments, _call: &Call<'_>) -> Option<Result<String, Failure>> {
        None
    }
}

/// Why a call failed: a sentence the model can act on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The arguments do not fit the schema; the text says which and why.
    InvalidArguments(String),
    /// The workspace refused.
    Workspace(workspace::Error),
    /// The call was cancelled before it was done.
    Cancelled,
    /// The tool itself says why.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArguments(why) => write!(f, "invalid arguments: {why}"),
            Self::Workspace(error) => error.fmt(f),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Failure {}

impl From<workspace::Error> for Failure {
    fn from(error: workspace::Error) -> Self {
        match error {
            workspace::Error::Cancelled => Self::Cancelled,
            other => Self::Workspace(other),
        }
    }
}
