//! The coding tools in this process, with no wire between.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::server::{listing, result, surroundings};
use super::{Error, Executor};
use crate::mcp::types::{CallResult, Tool as Listed};
use crate::os::cancel::Cancel;
use crate::tools::{Arguments, Progress, Settings, Tool, coding};
use crate::workspace::Workspace;

/// The coding tools over one workspace. Dropped, it ends the processes its calls left.
pub struct InProcess {
    workspace: Arc<Workspace>,
    tools: Vec<Arc<dyn Tool>>,
    listed: Vec<Listed>,
}

impl InProcess {
    /// The tools over `workspace`.
    pub fn new(workspace: Arc<Workspace>, settings: &Settings) -> Self {
        let tools = coding(&workspace, settings);
        let listed = tools.iter().map(|tool| listing(tool.definition())).collect();
        Self { workspace, tools, listed }
    }
}

impl Executor for InProcess {
    fn tools(&self) -> &[Listed] {
        &self.listed
    }

    fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        cancel: &Cancel,
        progress: &dyn Progress,
    ) -> Result<CallResult, Error> {
        let tool = self
            .tools
            .iter()
            .find(|tool| tool.definition().name == name)
            .ok_or_else(|| Error::NoSuchTool(name.to_owned()))?;
        let outcome = tool.run(&Arguments::from(arguments), &surroundings(cancel, progress));
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Ok(result(outcome))
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.workspace.end_processes();
    }
}
