//! The client's side of the protocol: one [`Client`] for every version, over any [`Transport`].
//!
//! ```no_run
//! use berth::mcp::client::{CallOptions, ChildServer, Client, Launch, Options};
//! use berth::mcp::types::Implementation;
//!
//! # fn main() -> Result<(), berth::mcp::client::Error> {
//! let server = ChildServer::spawn(&Launch::new(["/usr/local/bin/berth", "execute"]))?;
//! let info = Implementation { name: "example".into(), version: "1".into(), title: None };
//! let client = Client::connect(server, Options::new(info))?;
//! for tool in client.tools(CallOptions::default())? {
//!     log::info!("{}", tool.name);
//! }
//! let arguments = serde_json::json!({ "path": "README.md" });
//! let answer = client.call_tool("read", &arguments, CallOptions::default())?;
//! # let _ = answer;
//! # Ok(())
//! # }
//! ```
//!
//! One thread reads; callers write on their own threads and wait for their answers there, each with its own limit and its own switch. A
//! second thread hands on notifications once there are any, and a question of the server's gets a thread while it is answered.

mod child;
mod envelope;
mod error;
mod events;
mod features;
mod handler;
mod inbound;
mod listen;
mod outbox;
mod printable;
mod probe;
mod process;
mod request;
mod rounds;
mod routes;
mod streams;
#[cfg(test)]
mod testing;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub use child::ChildServer;
pub use error::{Closed, Ended, Error};
pub use features::Reference;
pub use handler::{Handler, NoHandler, Notification, Root};
pub use listen::{Heard, Listening, Subscriptions};
pub use process::{GRACE, Launch, StderrTo};
pub use request::CallOptions;
pub use rounds::ROUNDS_MAX;
pub use routes::Progress;
pub use streams::{Stderr, Streams};
pub use transport::{Inbox, Outgoing, SendError, Transport, Until};

use super::protocol::{Era, Level, Version};
use super::types::Implementation;
use crate::os::cancel::Cancel;
use inbound::Shared;
use request::{Outbound, Wait};

/// How a connection is made, and what the server is told of the client.
#[derive(Clone)]
pub struct Options {
    /// Who the client is.
    pub info: Implementation,
    /// What it can do, as it goes over the wire. What is not declared here is not answered.
    pub capabilities: Map<String, Value>,
    /// Which way of talking to begin with.
    pub era: EraChoice,
    /// How long is waited for what.
    pub timeouts: Timeouts,
    /// Who answers the server's questions.
    pub handler: Arc<dyn Handler>,
    /// From which level on a server of 2026-07-28 may send log messages. None: not at all. An older one decides for itself, or is told by
    /// [`Client::set_level`].
    pub log_level: Option<Level>,
    /// Ends the attempt to connect.
    pub cancel: Cancel,
}

impl Options {
    /// A client that can do nothing but ask, and finds out the era.
    pub fn new(info: Implementation) -> Self {
        Self {
            info,
            capabilities: Map::new(),
            era: EraChoice::Auto,
            timeouts: Timeouts::default(),
            handler: Arc::new(NoHandler),
            log_level: None,
            cancel: Cancel::new(),
        }
    }
}

/// Which way of talking a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EraChoice {
    /// Asks the server, and falls back to the handshake (spec mcp 3.10).
    Auto,
    /// The handshake at once, at 2025-11-25 or what older version the server answers with.
    Legacy,
    /// 2026-07-28, or the connection fails.
    Modern,
}

/// How long is waited for what.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For an answer to the first question, before the server is taken for an old one that does not answer it.
    pub probe: Duration,
    /// For the handshake. A server may have to be fetched and started first.
    pub connect: Duration,
    /// For any request that sets no limit of its own, but for tool calls, which have none. Progress prolongs it, at most tenfold.
    pub request: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { probe: Duration::from_secs(5), connect: Duration::from_secs(60), request: Duration::from_secs(60) }
    }
}

/// What a server said of itself.
#[derive(Clone, Debug)]
pub struct Server {
    /// The version spoken with it.
    pub version: Version,
    /// Who it is, where it says so; for display only.
    pub info: Option<Implementation>,
    /// What it can do, as it stands on the wire.
    pub capabilities: Map<String, Value>,
    /// Its words for the model.
    pub instructions: Option<String>,
}

/// A connection to a server. Used from several threads at once; dropping it closes it.
pub struct Client {
    link: Link,
    server: Server,
    timeouts: Timeouts,
    /// What every request's `_meta` carries at 2026-07-28: members without braces. Empty before.
    envelope: String,
}

/// Closes the connection when it is dropped, a failed attempt's too.
struct Link(Arc<Shared>);

impl Drop for Link {
    fn drop(&mut self) {
        self.0.shut();
    }
}

impl Client {
    /// Begins a connection. What `transport` holds is closed when that fails.
    ///
    /// Fails when the server does not answer in time, ends, speaks no version that is known here, or answers what the protocol does not
    /// allow.
    pub fn connect(transport: impl Transport, options: Options) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new(
            Box::new(transport),
            Arc::clone(&options.handler),
            options.capabilities.clone(),
            options.log_level,
        ));
        let link = Link(Arc::clone(&shared));
        shared
            .transport
            .start(Inbox(Arc::clone(&shared)))
            .map_err(|error| Error::Io { what: "start to read from the server", error })?;
        let server = probe::open(&shared, &options)?;
        shared.agreed(server.version);
        let envelope = match server.version.era() {
            Era::Modern => envelope::envelope(server.version, &options.info, &options.capabilities),
            Era::Legacy => String::new(),
        };
        Ok(Self { link, server, timeouts: options.timeouts, envelope })
    }

    /// What the server said of itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The version spoken.
    pub fn version(&self) -> Version {
        self.server.version
    }

    /// The way of talking it belongs to.
    pub fn era(&self) -> Era {
        self.server.version.era()
    }

    /// Sends any request and gives its result's text, an object. `params` must be one as well where there are any.
    ///
    /// This is for methods the protocol does not have: nothing is checked, and a question of the server's at 2026-07-28 is not answered.
    pub fn request(
        &self,
        method: &str,
        params: Option<&RawValue>,
        options: CallOptions<'_>,
    ) -> Result<Box<RawValue>, Error> {
        self.exchange(method, params.map(RawValue::get), &mut options.wait(Some(self.timeouts.request)))
    }

    /// Sends a notification, such as `notifications/roots/list_changed`. Waits for room for as long as a request would for its answer.
    pub fn notify(&self, method: &str, params: Option<&RawValue>) -> Result<(), Error> {
        if params.is_some_and(|params| !params.get().starts_with('{')) {
            return Err(Error::InvalidParams { method: method.to_owned(), why: "its parameters are no object".into() });
        }
        let limit = CallOptions::default().wait(Some(self.timeouts.request)).limit();
        let until = Until { deadline: limit.deadline, cancel: None };
        self.shared().tell(method, params.map(RawValue::get), &until).map_err(|error| match error {
            SendError::Full => self.shared().timed_out(method, limit.length),
            SendError::Cancelled => Error::Cancelled,
            SendError::Closed => Error::Closed(self.ended().unwrap_or_else(|| Closed::new(Ended::NotReading))),
        })
    }

    /// How the connection ended, once it has.
    pub fn ended(&self) -> Option<Closed> {
        self.shared().routes.closed()
    }

    /// The last the server wrote to its standard error, cleaned of control characters, where that is captured.
    pub fn stderr(&self) -> String {
        self.shared().transport.stderr()
    }

    /// How many lines the server sent that are no messages.
    pub fn skipped_lines(&self) -> u64 {
        self.shared().noise()
    }

    /// Ends the connection: calls under way fail with [`Error::Closed`], and a server that was started here is ended, which takes a few
    /// seconds when it does not want to. A second call does nothing.
    pub fn close(&self) {
        self.shared().shut();
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.link.0
    }

    /// Sends a request the way this connection's version wants it.
    fn exchange(&self, method: &str, params: Option<&str>, wait: &mut Wait<'_>) -> Result<Box<RawValue>, Error> {
        let envelope = self.envelope();
        self.shared().exchange(&self.outbound(method, params, &envelope), wait)
    }

    fn outbound<'a>(&self, method: &'a str, params: Option<&'a str>, envelope: &'a str) -> Outbound<'a> {
        Outbound { method, params, envelope, version: Some(self.version()), revocable: true }
    }

    /// What goes into a request's `_meta`.
    fn envelope(&self) -> String {
        let mut members = self.envelope.clone();
        if let Some(level) = self.shared().log_level().filter(|_| self.era() == Era::Modern) {
            envelope::with_level(&mut members, level);
        }
        members
    }

    /// The text of parameters.
    fn params(&self, method: &str, params: &impl Serialize) -> Result<String, Error> {
        serde_json::to_string(params).map_err(|error| Error::InvalidParams {
            method: method.to_owned(),
            why: format!("its parameters have no JSON form: {error}"),
        })
    }

    fn modern_only(&self, method: &'static str, instead: &'static str) -> Result<(), Error> {
        self.only(Era::Modern, method, instead)
    }

    fn legacy_only(&self, method: &'static str, instead: &'static str) -> Result<(), Error> {
        self.only(Era::Legacy, method, instead)
    }

    fn only(&self, era: Era, method: &'static str, instead: &'static str) -> Result<(), Error> {
        if self.era() == era {
            return Ok(());
        }
        Err(Error::NotInVersion { method, version: self.version(), instead })
    }
}
