//! Tools that run elsewhere, reached through a command whose standard input and output carry the protocol.
//!
//! A call is sent once: when the connection is lost while it is under way, it may have run, and its error says so.

use serde_json::{Map, Value};

use super::server::implementation;
use super::{Error, Executor};
use crate::mcp::client::{self, CallOptions, ChildServer, Client, EraChoice, Launch, Options};
use crate::mcp::types::{CallResult, Tool};
use crate::os::cancel::Cancel;
use crate::tools::Progress;
use crate::workspace::Environment;

/// An executor in another process. Dropped, it ends the process.
pub struct Remote {
    client: Client,
    tools: Vec<Tool>,
}

impl Remote {
    /// Starts `argv` without a shell, with this process's environment less its credentials except those named in `pass_env` (design 7), and
    /// asks it for its tools. Blocks until it has answered or `cancel` is thrown.
    pub fn start(argv: &[String], pass_env: &[String], cancel: &Cancel) -> Result<Self, Error> {
        let mut launch = Launch::new(argv);
        launch.environment =
            Environment::inherit(pass_env).iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let server = ChildServer::spawn(&launch).map_err(unreachable)?;
        // An executor has a session, so the handshake comes first (spec executor 1.1).
        let options = Options { era: EraChoice::Legacy, cancel: cancel.clone(), ..Options::new(implementation()) };
        let client = Client::connect(server, options).map_err(unreachable)?;
        let tools = client.tools(CallOptions::cancelled_by(cancel)).map_err(unreachable)?;
        Ok(Self { client, tools })
    }
}

impl Executor for Remote {
    fn tools(&self) -> &[Tool] {
        &self.tools
    }

    fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        cancel: &Cancel,
        progress: &dyn Progress,
    ) -> Result<CallResult, Error> {
        if !self.tools.iter().any(|tool| tool.name == name) {
            return Err(Error::NoSuchTool(name.to_owned()));
        }
        let mut report = |told: client::Progress| progress.report(told.message.as_deref().unwrap_or_default());
        let options = CallOptions {
            cancel: Some(cancel),
            progress: progress.wanted().then_some(&mut report as &mut dyn FnMut(client::Progress)),
            ..CallOptions::default()
        };
        self.client.call_tool(name, &Value::Object(arguments), options).map_err(|error| match error {
            client::Error::Cancelled => Error::Cancelled,
            client::Error::Closed(_) | client::Error::Io { .. } => {
                Error::Unreachable(format!("{}; the call may have run", words(&error)))
            }
            other => Error::Refused(words(&other)),
        })
    }
}

fn unreachable(error: client::Error) -> Error {
    match error {
        client::Error::Cancelled => Error::Cancelled,
        other => Error::Unreachable(words(&other)),
    }
}

/// What went wrong, with what the command printed about it.
fn words(error: &client::Error) -> String {
    match error.stderr() {
        Some(printed) if !printed.trim().is_empty() => format!("{error}\n  it printed: {}", printed.trim()),
        _ => error.to_string(),
    }
}
