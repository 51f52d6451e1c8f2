//! Serves the coding tools of one workspace over the Model Context Protocol: `berth execute`.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::jsonrpc::{ErrorObject, strict};
use crate::mcp::server::{Client, Notifier, Offer, Outcome, Page, Request, Service, Session, unknown_tool};
use crate::mcp::types::{CallResult, Implementation, Tool as Listed};
use crate::os::cancel::Cancel;
use crate::tools::{Arguments, Call, Definition, Effect, Failure, Progress, Settings, Tool, coding};
use crate::workspace::Workspace;

/// The key of a listed tool's `_meta` under which the server says what the protocol has no field for (spec executor 4).
const TOOL_META: &str = "io.github.christopherdavenport.agenttool/tool";

/// What the program calls itself on the wire.
pub(super) fn implementation() -> Implementation {
    Implementation { name: "berth".into(), version: env!("CARGO_PKG_VERSION").into(), title: Some("Berth".into()) }
}

/// The coding tools over one workspace, a session for each client: the sessions share the workspace and the lock its writes take.
pub struct CodingService {
    workspace: Arc<Workspace>,
    settings: Settings,
}

impl CodingService {
    /// Serves `workspace`; `settings` hold the most any session may have.
    pub fn new(workspace: Arc<Workspace>, settings: Settings) -> Self {
        Self { workspace, settings }
    }
}

impl Service for CodingService {
    fn open(&self, _client: &Client, _notifier: Notifier) -> Result<Arc<dyn Session>, ErrorObject> {
        Ok(Arc::new(CodingSession::new(&self.workspace, &self.settings)))
    }
}

struct CodingSession {
    workspace: Arc<Workspace>,
    tools: Vec<Arc<dyn Tool>>,
    by_name: HashMap<&'static str, Arc<dyn Tool>>,
    listed: Vec<Listed>,
}

impl CodingSession {
    fn new(workspace: &Arc<Workspace>, settings: &Settings) -> Self {
        let tools = coding(workspace, settings);
        let by_name = tools.iter().map(|tool| (tool.definition().name, tool.clone())).collect();
        let mut listed: Vec<Listed> = tools.iter().map(|tool| listing(tool.definition())).collect();
        // Clients of the kind this serves expect the listing sorted by name (spec executor 4).
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        Self { workspace: workspace.clone(), tools, by_name, listed }
    }
}

impl Session for CodingSession {
    fn offer(&self) -> Offer {
        let root = self.workspace.root().display();
        let names: Vec<&str> = self.tools.iter().map(|tool| tool.definition().name).collect();
        Offer {
            server: implementation(),
            instructions: Some(format!(
                "Coding tools ({}). The file tools act in {root} and nowhere else; paths are relative to it, or absolute below it. \
                 Commands start there.",
                names.join(", ")
            )),
            tools: Some(false),
            ..Offer::default()
        }
    }

    fn tools(&self, cursor: Option<&str>) -> Result<Page<Listed>, ErrorObject> {
        Page::whole(self.listed.clone(), cursor)
    }

    fn call_tool_now(
        &self,
        name: &str,
        arguments: Option<&RawValue>,
        request: &Request<'_>,
    ) -> Option<Result<Outcome<CallResult>, ErrorObject>> {
        let Some(tool) = self.by_name.get(name) else { return Some(Err(unknown_tool(name))) };
        let outcome = match read_arguments(arguments) {
            Ok(arguments) => tool.run_now(&arguments, &surroundings(request.cancel(), &Reports(request)))?,
            Err(failure) => Err(failure),
        };
        Some(Ok(Outcome::Complete(result(outcome))))
    }

    fn call_tool(
        &self,
        name: &str,
        arguments: Option<&RawValue>,
        request: &Request<'_>,
    ) -> Result<Outcome<CallResult>, ErrorObject> {
        let tool = self.by_name.get(name).ok_or_else(|| unknown_tool(name))?;
        let outcome = read_arguments(arguments)
            .and_then(|arguments| tool.run(&arguments, &surroundings(request.cancel(), &Reports(request))));
        Ok(Outcome::Complete(result(outcome)))
    }

    fn close(&self) {
        self.workspace.end_processes();
    }
}

/// What a client is told of a tool.
pub(super) fn listing(definition: &Definition) -> Listed {
    let mut tool = Listed::new(definition.name, definition.description.clone(), definition.input_schema.clone());
    tool.annotations = Some(hints(definition.effect));
    if definition.sequential {
        tool.meta = Some(Map::from_iter([(TOOL_META.to_owned(), json!({ "sequential": true }))]));
    }
    tool
}

/// The protocol's hints, each said outright: the defaults of two of them are true (spec mcp 5.1).
fn hints(effect: Effect) -> Map<String, Value> {
    let (read_only, destructive, idempotent, open_world) = match effect {
        Effect::Looks => (true, false, true, false),
        Effect::ReplacesFiles => (false, true, true, false),
        Effect::ChangesFiles => (false, true, false, false),
        Effect::Anything => (false, true, false, true),
    };
    let hints = [
        ("readOnlyHint", read_only),
        ("destructiveHint", destructive),
        ("idempotentHint", idempotent),
        ("openWorldHint", open_world),
    ];
    hints.into_iter().map(|(name, hint)| (name.to_owned(), Value::Bool(hint))).collect()
}

/// A call's arguments from their text: an object, each key once at every depth; nothing reads as no arguments (spec executor 7).
fn read_arguments(text: Option<&RawValue>) -> Result<Arguments, Failure> {
    match text {
        None => Ok(Arguments::default()),
        Some(text) if text.get() == "null" => Ok(Arguments::default()),
        Some(text) => strict::object(text.get())
            .map(Arguments::from)
            .map_err(|error| Failure::InvalidArguments(error.to_string())),
    }
}

pub(super) fn surroundings<'a>(cancel: &'a Cancel, progress: &'a dyn Progress) -> Call<'a> {
    Call { cancel, progress }
}

pub(super) fn result(outcome: Result<String, Failure>) -> CallResult {
    match outcome {
        Ok(text) => CallResult::text(text),
        Err(failure) => CallResult::error(failure.to_string()),
    }
}

/// A tool's progress, as the protocol's.
struct Reports<'a>(&'a Request<'a>);

impl Progress for Reports<'_> {
    fn wanted(&self) -> bool {
        self.0.progress_wanted()
    }

    fn report(&self, message: &str) {
        self.0.progress(None, None, Some(message));
    }
}
