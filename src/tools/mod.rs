//! The coding tools: what each is called, what it takes, what it answers (spec executor 10).
//!
//! A tool acts through [`crate::workspace::Workspace`] and returns text. It never prints, never blocks on a person, and every wait
//! in it ends when its call is cancelled.

mod answer;
mod arguments;
mod bash;
pub mod edit;
mod glob;
mod grep;
mod ls;
mod nearest;
pub mod pattern;
mod read;
mod schema;
mod smallest;
#[cfg(test)]
mod testing;
mod tool;
mod walk;
mod write;

pub use arguments::Arguments;
pub use tool::{Call, Definition, Effect, Failure, Progress, Settings, Tool};

use std::sync::Arc;

use crate::workspace::Workspace;

/// The extension these tools belong to, by the name a `dax` client knows (design 8.2).
pub const EXTENSION: &str = "dax-coding";

/// The most bytes of a file a tool reads where nothing else is said: 2 MiB (spec executor 3.2).
pub const DEFAULT_MAX_READ_BYTES: u64 = 2 * 1024 * 1024;

/// The coding tools over one workspace, in the order they are offered: read, write, edit, glob, grep, ls, bash.
/// `bash` is left out where the workspace has no shell.
pub fn coding(workspace: &Arc<Workspace>, settings: &Settings) -> Vec<Arc<dyn Tool>> {
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        Arc::new(read::Read::new(workspace, settings)),
        Arc::new(write::Write::new(workspace)),
        Arc::new(edit::Edit::new(workspace, settings)),
        Arc::new(glob::Glob::new(workspace)),
        Arc::new(grep::Grep::new(workspace)),
        Arc::new(ls::Ls::new(workspace)),
    ];
    if let Some(bash) = bash::Bash::new(workspace) {
        tools.push(Arc::new(bash));
    }
    tools
}
