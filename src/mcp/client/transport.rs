//! What carries whole messages between a client and a server, however they travel.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::Closed;
use super::inbound::Shared;
use crate::jsonrpc::{Id, Owner};
use crate::mcp::protocol::Version;
use crate::os::cancel::Cancel;

/// A way to a server. Used from several threads at once.
///
/// Messages go out one by one through [`Transport::send`]; what comes in is handed to the [`Inbox`] by threads of the transport's own,
/// of which there may be several: one per response stream over HTTP.
pub trait Transport: Send + Sync + 'static {
    /// Begins to receive. Called once, before anything is sent.
    fn start(&self, inbox: Inbox) -> io::Result<()>;

    /// Hands a message over for sending, whole and in order. Waits for room until `until` says no longer, and not for the server. A message
    /// that may not wait at all, such as a cancellation, has a small reserve to itself.
    fn send(&self, message: &Outgoing<'_>, until: &Until<'_>) -> Result<(), SendError>;

    /// Gives up a request in the transport's own way, as closing its response stream does over HTTP; false where there is none, and
    /// then `notifications/cancelled` is sent (spec mcp 3.8).
    fn abandon(&self, _id: &Id) -> bool {
        false
    }

    /// The last the server said beside the protocol, cleaned of control characters; empty where that is not heard.
    fn stderr(&self) -> String {
        String::new()
    }

    /// Ends the connection and what belongs to it. Takes bounded time; a second call does nothing.
    fn close(&self);
}

/// A message on its way out.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Its JSON, without a line end anywhere in it.
    pub text: &'a [u8],
    /// The method, of a request or a notification; none for an answer.
    pub method: Option<&'a str>,
    /// The id, of a request.
    pub id: Option<&'a Id>,
    /// The version it is sent at: of the probe the one probed for, of `initialize` none (trap T16).
    pub version: Option<Version>,
}

/// How long something may take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until<'a> {
    /// The latest moment; none: for ever.
    pub deadline: Option<Instant>,
    /// What ends the wait before.
    pub cancel: Option<&'a Cancel>,
}

impl Until<'_> {
    /// Not at all: what cannot be done at once is not done.
    pub fn now() -> Self {
        Self { deadline: Some(Instant::now()), cancel: None }
    }

    /// How long is left; `None` for ever, zero once the moment is past.
    pub fn left(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// Why a message was not handed over. Nothing of it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The connection is over, or the server no longer reads.
    Closed,
    /// There was no room in time: the server does not read what was sent before.
    Full,
    /// The switch was thrown.
    Cancelled,
}

/// Where a transport delivers what comes in. Never blocks for long.
#[derive(Clone)]
pub struct Inbox(pub(super) Arc<Shared>);

impl Inbox {
    /// A message came in: the text of one, however bad.
    pub fn message(&self, text: &[u8]) {
        self.0.message(text);
    }

    /// A message of `bytes` bytes was too long to keep; whose it was, where that was seen.
    pub fn too_long(&self, bytes: u64, owner: Option<&Owner>) {
        self.0.too_long(bytes, owner);
    }

    /// The connection is over; nothing comes any more. Every caller that waits is told.
    pub fn closed(&self, closed: Closed) {
        self.0.closed(closed);
    }
}
