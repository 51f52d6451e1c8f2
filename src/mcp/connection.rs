//! One client's connection, whatever carries it: a message comes in, its answer goes out, and what may block becomes a [`Job`].
//!
//! Both eras are served side by side (spec mcp 3.11): a request that carries the envelope of 2026-07-28 is modern, any other needs a
//! finished handshake. What belongs to one era alone stands in `legacy` and `modern`.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crossbeam_channel::{bounded, select};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::modern::Listens;
use super::protocol::{Level, Version, method};
use super::reply::Reply;
pub use super::request::Request;
use super::request::{Droppable, Envelope, Progress, read};
use super::server::{AskError, Client, Offer, Service, Session};
use super::{legacy, methods, modern};
use crate::jsonrpc::{
    self, ErrorObject, Id, InFlight, Malformed, Message, Owner, Pending, Refusal, code, write_error,
    write_notification, write_request, write_result,
};
use crate::os::cancel::Cancel;

/// The most requests of one connection that are carried out or wait for it at a time; one more is refused.
pub const IN_FLIGHT_MAX: usize = 1024;

/// The most bytes of parameters and ids that are held for them together; beyond it a request is refused unless it is the only one.
pub const IN_FLIGHT_MAX_BYTES: usize = 64 * 1024 * 1024;

/// The most resources a client with a handshake may watch.
pub(super) const WATCHED_MAX: usize = 1024;

/// A connection's way out. Each message is one line without its end.
pub trait Outlet: Send + Sync {
    /// Sends a message that must arrive; waits while the client does not read. `message` writes it once it is its turn, so that of many
    /// answers that wait only one stands in memory twice.
    fn send(&self, message: &mut dyn FnMut(&mut Vec<u8>));

    /// Sends a message without ever waiting; false when it is lost because too many wait. `droppable` ones are lost sooner.
    fn offer(&self, message: Vec<u8>, droppable: bool) -> bool;

    /// Sends a message that must arrive, behind everything that was offered before it; waits while too much waits.
    fn send_behind_offers(&self, message: Vec<u8>);
}

/// What a connection serves.
#[derive(Clone, Copy, Debug)]
pub struct Eras {
    /// Whether 2026-07-28 is served; without it a client that looks for it is told that there is no such method (design 8.1).
    pub modern: bool,
}

impl Default for Eras {
    fn default() -> Self {
        Self { modern: true }
    }
}

/// The state of one connection.
pub struct Connection {
    service: Arc<dyn Service>,
    outlet: Arc<dyn Outlet>,
    eras: Eras,
    state: Mutex<State>,
    running: InFlight,
    asked: Pending,
}

#[derive(Default)]
struct State {
    opened: Option<Arc<Opened>>,
    /// The client of the handshake, once there was one.
    greeted: Option<Arc<Client>>,
    /// From which level on a client with a handshake wants log messages.
    level: Option<Level>,
    /// The resources a client with a handshake watches.
    watched: HashSet<String>,
    listens: Listens,
    closed: bool,
}

/// A session and what it said of itself when it was opened.
pub(super) struct Opened {
    pub(super) session: Arc<dyn Session>,
    pub(super) offer: Offer,
    /// The text of the server's own description.
    pub(super) server: Vec<u8>,
}

/// A request that may block, to be run on a thread that may. Dropped unrun, it is never answered.
pub struct Job {
    connection: Arc<Connection>,
    opened: Arc<Opened>,
    client: Arc<Client>,
    level: Option<Level>,
    id: Id,
    cancel: Cancel,
    method: Box<str>,
    params: Option<Box<RawValue>>,
}

/// How a request is to be carried out: for whom, and what the client wants to hear meanwhile.
struct Admitted {
    client: Arc<Client>,
    opened: Arc<Opened>,
    level: Option<Level>,
}

impl Connection {
    /// A connection over `outlet` that nothing has come in on yet.
    pub fn new(service: Arc<dyn Service>, outlet: Arc<dyn Outlet>, eras: Eras) -> Arc<Self> {
        Arc::new(Self {
            service,
            outlet,
            eras,
            state: Mutex::default(),
            running: InFlight::default(),
            asked: Pending::default(),
        })
    }

    /// Takes in one message. What can be answered at once is appended to `out`, each answer with a newline behind it, which no JSON text
    /// holds; what may block is appended to `jobs`. Never blocks.
    pub fn receive(self: &Arc<Self>, line: &[u8], out: &mut Vec<u8>, jobs: &mut Vec<Job>) {
        match Message::parse(line) {
            Ok(message) => self.take(message, out, jobs),
            Err(Malformed::Batch) => self.batch(line, out, jobs),
            Err(Malformed::NotJson) => log::warn!("a line of {} bytes that is not JSON was dropped", line.len()),
            Err(Malformed::Invalid { id, why }) => refuse(out, id.as_ref(), why),
            Err(Malformed::Answer { id, why }) => {
                log::warn!("an answer that is none was dropped: {why}");
                if let Some(id) = id {
                    self.asked.settle(&id, Err(ErrorObject::new(code::INVALID_REQUEST, why)));
                }
            }
        }
    }

    /// Answers a request whose line was too long to be kept, and ends the wait for an answer whose line was.
    pub fn too_long(&self, bytes: u64, owner: Option<&Owner>, out: &mut Vec<u8>) {
        let most = jsonrpc::LINE_MAX_BYTES >> 20;
        log::warn!("a line of {bytes} bytes was discarded: at most {most} MiB are taken");
        let why = format!("the message has {bytes} bytes; at most {most} MiB are taken");
        match owner {
            Some(Owner::Request(id)) => refuse(out, Some(id), why),
            Some(Owner::Answer(id)) => {
                self.asked.settle(id, Err(ErrorObject::new(code::INVALID_REQUEST, why)));
            }
            None => {}
        }
    }

    /// Throws the switch of every request under way: the client is gone or the server is to end.
    pub fn cancel_all(&self) {
        self.running.cancel_all();
        self.asked.close();
    }

    /// How many requests are under way.
    pub fn under_way(&self) -> usize {
        self.running.count()
    }

    /// The connection is over: ends what is under way and closes the session.
    pub fn close(&self) {
        let (opened, farewells) = {
            let mut state = self.state();
            state.closed = true;
            (state.opened.take(), state.listens.end_all())
        };
        for farewell in farewells {
            self.outlet.offer(farewell, false);
        }
        self.cancel_all();
        if let Some(opened) = opened {
            opened.session.close();
        }
    }

    fn take(self: &Arc<Self>, message: Message<'_>, out: &mut Vec<u8>, jobs: &mut Vec<Job>) {
        match message {
            Message::Request { id, method, params } => self.request(id, &method, params, out, jobs),
            Message::Notification { method, params } => self.notification(&method, params),
            Message::Response { id: Some(id), outcome } => {
                if !self.asked.settle(&id, outcome.map(ToOwned::to_owned)) {
                    log::debug!("an answer to {id}, which nobody waits for, was dropped");
                }
            }
            Message::Response { id: None, outcome } => {
                // Matched to nothing (trap T3).
                if let Err(error) = outcome {
                    log::warn!("the client says: {error}");
                }
            }
        }
    }

    fn batch(self: &Arc<Self>, line: &[u8], out: &mut Vec<u8>, jobs: &mut Vec<Job>) {
        let batches = self.state().greeted.as_ref().is_some_and(|client| client.version == Version::V2025_03_26);
        let Some(members) = jsonrpc::members(line) else {
            if std::str::from_utf8(line).is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()) {
                refuse(out, None, format!("a batch holds 1 to {} messages", jsonrpc::BATCH_MAX_MESSAGES));
            }
            return;
        };
        if !batches {
            return refuse(out, None, "batches belong to version 2025-03-26 alone");
        }
        for member in members {
            match Message::parse(member.get().as_bytes()) {
                Ok(Message::Request { id, method, .. }) if method == method::INITIALIZE => {
                    refuse(out, Some(&id), "\"initialize\" may not be part of a batch");
                }
                Ok(message) => self.take(message, out, jobs),
                Err(Malformed::Invalid { id, why }) => refuse(out, id.as_ref(), why),
                Err(_) => refuse(out, None, "a member of a batch is a message"),
            }
        }
    }

    fn request(
        self: &Arc<Self>,
        id: Id,
        method: &str,
        params: Option<&RawValue>,
        out: &mut Vec<u8>,
        jobs: &mut Vec<Job>,
    ) {
        if self.running.contains(&id) || self.state().listens.contains(&id) {
            return refuse(out, Some(&id), format!("a request with the id {id} is under way"));
        }
        let mut envelope = match Envelope::read(params) {
            Ok(envelope) => envelope,
            Err(error) => return fail(out, &id, &error),
        };
        let admitted = match self.admit(method, params, &mut envelope) {
            Ok(Admission::Handle(admitted)) => admitted,
            Ok(Admission::Greeting(result)) => {
                write_result(out, &id, &result);
                return out.push(b'\n');
            }
            Err(error) => return fail(out, &id, &error),
        };
        let cancel = Cancel::new();
        if method == method::LISTEN {
            return match modern::listen(self, &admitted.opened, &admitted.client, &id, params) {
                Ok(()) => {}
                Err(error) => fail(out, &id, &error),
            };
        }
        let request = self.context(&admitted.client, &cancel, admitted.level, &envelope);
        let done = catch_unwind(AssertUnwindSafe(|| methods::now(&admitted.opened, method, params, &request)))
            .unwrap_or_else(|_| Some(Err(panicked(method))));
        match done {
            Some(outcome) => {
                let offered = request.progress.lock().unwrap_or_else(PoisonError::into_inner).offered;
                let start = out.len();
                write_outcome(out, &id, &outcome, admitted.client.version, &admitted.opened.server);
                if offered {
                    // What the request said on its way goes first.
                    self.outlet.send_behind_offers(out.split_off(start));
                } else {
                    out.push(b'\n');
                }
            }
            None => match self.running.begin(
                &id,
                params.map_or(0, |params| params.get().len()).saturating_add(id.heap_bytes()),
                IN_FLIGHT_MAX,
                IN_FLIGHT_MAX_BYTES,
            ) {
                Ok(cancel) => jobs.push(Job {
                    connection: self.clone(),
                    opened: admitted.opened,
                    client: admitted.client,
                    level: admitted.level,
                    id,
                    cancel,
                    method: method.into(),
                    params: params.map(ToOwned::to_owned),
                }),
                Err(Refusal::SameId) => refuse(out, Some(&id), format!("a request with the id {id} is under way")),
                Err(Refusal::TooMany) => fail(
                    out,
                    &id,
                    &ErrorObject::new(
                        code::INTERNAL_ERROR,
                        format!(
                            "too many requests are under way: at most {IN_FLIGHT_MAX}, and {} MiB of parameters; wait for some to end",
                            IN_FLIGHT_MAX_BYTES >> 20
                        ),
                    ),
                ),
            },
        }
    }

    /// Decides the era of a request and for whom it is carried out.
    fn admit(
        self: &Arc<Self>,
        method: &str,
        params: Option<&RawValue>,
        envelope: &mut Envelope<'_>,
    ) -> Result<Admission, ErrorObject> {
        if method == method::INITIALIZE {
            return self.greet(params).map(Admission::Greeting);
        }
        if self.eras.modern && (envelope.version.is_some() || method == method::DISCOVER) {
            let level = envelope.level;
            let client = Arc::new(modern::client(envelope)?);
            let opened = self.opened(&client)?;
            return Ok(Admission::Handle(Admitted { client, opened, level }));
        }
        let state = self.state();
        match (&state.greeted, &state.opened) {
            (Some(client), Some(opened)) => Ok(Admission::Handle(Admitted {
                client: client.clone(),
                opened: opened.clone(),
                level: Some(state.level.unwrap_or(Level::Info)),
            })),
            _ => {
                drop(state);
                legacy::before_the_handshake(method, self.eras).map(Admission::Greeting)
            }
        }
    }

    /// Answers `initialize`, as often as it comes: the peer and the session are then the new ones (spec mcp 2.3).
    fn greet(self: &Arc<Self>, params: Option<&RawValue>) -> Result<Vec<u8>, ErrorObject> {
        let client = Arc::new(legacy::client(params)?);
        let opened = self.open(&client)?;
        log::info!("a client at {}: {}", client.version, client.info.as_ref().map_or("?", |info| &info.name));
        let result = legacy::greeting(&client, &opened.offer);
        let replaced = {
            let mut state = self.state();
            state.greeted = Some(client);
            state.level = None;
            state.watched.clear();
            state.opened.replace(opened)
        };
        if let Some(replaced) = replaced {
            // Closing may block, and this thread reads.
            let close = move || replaced.session.close();
            if let Err(error) = std::thread::Builder::new().name("mcp-close".into()).spawn(close) {
                log::warn!("a session that was replaced is not closed: {error}");
            }
        }
        Ok(result)
    }

    /// The session of the connection, opened for this client when there is none yet.
    fn opened(self: &Arc<Self>, client: &Client) -> Result<Arc<Opened>, ErrorObject> {
        if let Some(opened) = &self.state().opened {
            return Ok(opened.clone());
        }
        let opened = self.open(client)?;
        self.state().opened = Some(opened.clone());
        Ok(opened)
    }

    fn open(self: &Arc<Self>, client: &Client) -> Result<Arc<Opened>, ErrorObject> {
        let session = self.service.open(client, Notifier(Arc::downgrade(self)))?;
        let offer = session.offer();
        let server = serde_json::to_vec(&offer.server).unwrap_or_else(|_| b"{}".to_vec());
        Ok(Arc::new(Opened { session, offer, server }))
    }

    fn notification(&self, method: &str, params: Option<&RawValue>) {
        match method {
            method::CANCELLED => {
                #[derive(Deserialize)]
                struct Cancelled<'a> {
                    #[serde(borrow, rename = "requestId")]
                    request_id: Option<&'a RawValue>,
                }
                // An unknown, finished or malformed one is ignored (spec mcp 4.2).
                let Some(Ok(cancelled)) = params.map(read::<Cancelled<'_>>) else { return };
                let Some(id) = cancelled.request_id.and_then(Id::parse) else { return };
                if !self.running.cancel(&id) {
                    self.state().listens.remove(&id);
                }
            }
            method::INITIALIZED => {}
            _ => {
                let opened = self.state().opened.clone();
                if let Some(opened) = opened {
                    opened.session.notified(method, params);
                }
            }
        }
    }

    fn context<'a>(
        &'a self,
        client: &'a Client,
        cancel: &'a Cancel,
        level: Option<Level>,
        envelope: &Envelope<'a>,
    ) -> Request<'a> {
        Request {
            connection: self,
            client,
            cancel,
            level,
            token: envelope.token,
            input_responses: None,
            request_state: None,
            progress: Mutex::new(Progress::default()),
        }
    }

    /// Sends the client a question and waits for its answer.
    pub(super) fn ask(&self, method: &str, params: &[u8], cancel: &Cancel) -> Result<Box<RawValue>, AskError> {
        let waiter = self.asked.expect().ok_or(AskError::Cancelled)?;
        let (thrown, cancelled) = bounded::<()>(0);
        // The hook's end of the channel goes when the switch is thrown, which wakes the select.
        let _hook = cancel.on_cancel(move || drop(thrown));
        let mut message = Vec::new();
        write_request(&mut message, waiter.id(), method, params);
        self.outlet.send_behind_offers(message);
        let answer = select! {
            recv(waiter.answer()) -> answer => answer.map_err(|_| AskError::Cancelled)?,
            recv(cancelled) -> _ => {
                #[derive(Serialize)]
                #[serde(rename_all = "camelCase")]
                struct Cancelled<'a> { request_id: &'a RawValue, reason: &'static str }
                let mut id = Vec::new();
                waiter.id().write(&mut id);
                if let Ok(request_id) = serde_json::from_slice::<&RawValue>(&id) {
                    let params = Cancelled { request_id, reason: "the request it belongs to was cancelled" };
                    self.offer(method::CANCELLED, &params, Droppable::No);
                }
                return Err(AskError::Cancelled);
            }
        };
        answer.map_err(AskError::Refused)
    }

    /// Sends a notification without waiting.
    pub(super) fn offer(&self, method: &str, params: &impl Serialize, droppable: Droppable) -> bool {
        let Ok(params) = serde_json::to_vec(params) else { return false };
        let mut message = Vec::new();
        write_notification(&mut message, method, &params);
        self.outlet.offer(message, droppable == Droppable::Yes)
    }

    /// Changes what is kept of the handshake's client.
    pub(super) fn with_client<T>(&self, change: impl FnOnce(&mut Option<Level>, &mut HashSet<String>) -> T) -> T {
        let mut state = self.state();
        let State { level, watched, .. } = &mut *state;
        change(level, watched)
    }

    /// Registers a listen and writes what it begins with as one step, so that no event falls between (spec mcp 3.7).
    pub(super) fn with_listens<T>(&self, change: impl FnOnce(&mut Listens, &dyn Outlet) -> T) -> T {
        change(&mut self.state().listens, &*self.outlet)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request is met with before its handler.
enum Admission {
    /// It is carried out.
    Handle(Admitted),
    /// It is answered with this text: a handshake, or a ping before it.
    Greeting(Vec<u8>),
}

impl Job {
    /// Carries the request out and sends its answer, unless it was cancelled meanwhile. A panic becomes the request's error.
    pub fn run(self) {
        let connection = &self.connection;
        let began = Instant::now();
        // Cancelled while it waited for its turn: then it never begins.
        if self.cancel.is_cancelled() {
            connection.running.end(&self.id);
            return;
        }
        let params = self.params.as_deref();
        // It was read once before the job was made, so it can be read again.
        let envelope = Envelope::read(params).unwrap_or_default();
        let request = connection.context(&self.client, &self.cancel, self.level, &envelope);
        let outcome = catch_unwind(AssertUnwindSafe(|| methods::run(&self.opened, &self.method, params, request)));
        let (outcome, offered) = match outcome {
            Ok((outcome, offered)) => (outcome, offered),
            Err(_) => (Err(panicked(&self.method)), true),
        };
        log::debug!("{} {} took {:?}", self.method, self.id, began.elapsed());
        if !connection.running.end(&self.id) {
            return;
        }
        let (version, server) = (self.client.version, &self.opened.server);
        if offered {
            let mut message = Vec::new();
            write_outcome(&mut message, &self.id, &outcome, version, server);
            connection.outlet.send_behind_offers(message);
        } else {
            connection.outlet.send(&mut |out| write_outcome(out, &self.id, &outcome, version, server));
        }
    }

    /// Gives the request up unrun and unanswered: the connection is over.
    pub fn abandon(self) {
        self.connection.running.end(&self.id);
    }
}

/// Tells a connection's client that something changed. Does nothing once the connection is over.
#[derive(Clone)]
pub struct Notifier(Weak<Connection>);

impl Notifier {
    /// The list of tools changed.
    pub fn tools_changed(&self) {
        self.changed(method::TOOLS_CHANGED, |offer| offer.tools == Some(true));
    }

    /// The list of prompts changed.
    pub fn prompts_changed(&self) {
        self.changed(method::PROMPTS_CHANGED, |offer| offer.prompts == Some(true));
    }

    /// The list of resources changed.
    pub fn resources_changed(&self) {
        self.changed(method::RESOURCES_CHANGED, |offer| offer.resources.is_some_and(|offer| offer.list_changed));
    }

    /// A resource's content changed; reaches those who watch it.
    pub fn resource_updated(&self, uri: &str) {
        #[derive(Serialize)]
        struct Updated<'a> {
            uri: &'a str,
        }
        let Some(connection) = self.0.upgrade() else { return };
        let state = connection.state();
        if state.watched.contains(uri) {
            connection.offer(method::RESOURCE_UPDATED, &Updated { uri }, Droppable::No);
        }
        state.listens.resource_updated(uri, &*connection.outlet);
    }

    /// Sends a notification of the server's own; false when it was lost.
    pub fn notify(&self, method: &str, params: &impl Serialize) -> bool {
        self.0.upgrade().is_some_and(|connection| connection.offer(method, params, Droppable::No))
    }

    fn changed(&self, method: &str, offered: impl Fn(&Offer) -> bool) {
        #[derive(Serialize)]
        struct Nothing {}
        let Some(connection) = self.0.upgrade() else { return };
        let state = connection.state();
        if !state.opened.as_ref().is_some_and(|opened| offered(&opened.offer)) {
            return;
        }
        if state.greeted.is_some() {
            connection.offer(method, &Nothing {}, Droppable::No);
        }
        state.listens.list_changed(method, &*connection.outlet);
    }
}

fn write_outcome(out: &mut Vec<u8>, id: &Id, outcome: &Result<Reply, ErrorObject>, version: Version, server: &[u8]) {
    match outcome {
        Ok(reply) => {
            out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
            id.write(out);
            out.extend_from_slice(br#","result":"#);
            reply.write(out, version, server);
            out.push(b'}');
        }
        Err(error) => write_error(out, Some(id), error),
    }
}

fn refuse(out: &mut Vec<u8>, id: Option<&Id>, why: impl Into<String>) {
    write_error(out, id, &ErrorObject::new(code::INVALID_REQUEST, why));
    out.push(b'\n');
}

fn fail(out: &mut Vec<u8>, id: &Id, error: &ErrorObject) {
    write_error(out, Some(id), error);
    out.push(b'\n');
}

/// What a request whose handler panicked is answered with: the panic's own words went to the log and stay there.
fn panicked(method: &str) -> ErrorObject {
    log::error!("the handler of {method:?} panicked");
    ErrorObject::new(code::INTERNAL_ERROR, "the server failed on this request; it goes on with others")
}
