//! The confined directory tree, its environment, and the processes that run in it.
//!
//! A [`Workspace`] is opened once and shared by every session of one executor. Everything below its root is reached
//! through [`Workspace::open_file`] and its siblings, which the kernel confines (`os/beneath`); nothing here takes a path as text twice.

mod descriptor;
mod environment;
mod error;
mod path;
mod process;
mod root;
mod write;

pub use descriptor::{Descriptor, Kind};
pub use environment::{Environment, is_credential};
pub use error::{Error, Name};
pub use path::RelPath;
pub use process::{Ended, Output, Run, Shell, Watch};
pub use root::{Options, Workspace};
pub use write::WriteGuard;
