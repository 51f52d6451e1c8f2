//! What comes in from a server: each message to whom it belongs, on the thread that read it, which never waits for anybody.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::{Closed, Ended, Error};
use super::events::Events;
use super::handler::{Handler, Notification, declared};
use super::listen::{self, Heard};
use super::printable;
use super::routes::{Progress, Reply, Routes, Settled};
use super::transport::{Outgoing, SendError, Transport, Until};
use crate::jsonrpc::{
    self, ErrorObject, Id, InFlight, Malformed, Message, Owner, Refusal, strict, write_error, write_notification,
    write_result,
};
use crate::mcp::protocol::{Era, Level, Version, method};
use crate::os::cancel::Cancel;

/// How many questions of a server are answered at once; one more is answered with an error.
const ASKS_MAX: usize = 8;

/// How long an answer to a server's question waits for room, before it is dropped: the server does not read.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// How many bad lines of one server are logged; the rest are counted.
const NOISE_LOGGED: u64 = 20;

/// How many are skipped before the server is taken for a program that does not speak the protocol at all.
const NOISE_MAX: u64 = 10_000;

/// How much of a bad line is shown.
const NOISE_MAX_CHARS: usize = 200;

/// The longest message of a progress notification that is kept whole.
const PROGRESS_MAX_BYTES: usize = 64 * 1024;

/// A connection to a server: what its threads and its callers share.
pub(super) struct Shared {
    pub(super) transport: Box<dyn Transport>,
    pub(super) routes: Routes,
    pub(super) handler: Arc<dyn Handler>,
    /// What this client declared.
    pub(super) capabilities: Map<String, Value>,
    events: Events,
    asks: InFlight,
    /// The version agreed on; none until then.
    version: OnceLock<Version>,
    /// From which level on a modern server's log messages are wanted.
    pub(super) level: Mutex<Option<Level>>,
    noise: AtomicU64,
    first_noise: OnceLock<String>,
}

impl Shared {
    pub(super) fn new(
        transport: Box<dyn Transport>,
        handler: Arc<dyn Handler>,
        capabilities: Map<String, Value>,
        level: Option<Level>,
    ) -> Self {
        Self {
            transport,
            routes: Routes::default(),
            events: Events::new(Arc::clone(&handler)),
            handler,
            capabilities,
            asks: InFlight::default(),
            version: OnceLock::new(),
            level: Mutex::new(level),
            noise: AtomicU64::new(0),
            first_noise: OnceLock::new(),
        }
    }

    /// The version has been agreed on.
    pub(super) fn agreed(&self, version: Version) {
        let _ = self.version.set(version);
    }

    /// From which level on log messages are wanted.
    pub(super) fn log_level(&self) -> Option<Level> {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many lines came that are no messages.
    pub(super) fn noise(&self) -> u64 {
        self.noise.load(Ordering::Relaxed)
    }

    /// The first line that is not even JSON, for an error's text.
    pub(super) fn first_noise(&self) -> Option<&str> {
        self.first_noise.get().map(String::as_str)
    }

    /// A message came in.
    pub(super) fn message(self: &Arc<Self>, text: &[u8]) {
        match Message::parse(text) {
            Ok(message) => self.take(message),
            Err(Malformed::Batch) if self.version.get() == Some(&Version::V2025_03_26) => {
                for member in jsonrpc::members(text).unwrap_or_default() {
                    match Message::parse(member.get().as_bytes()) {
                        Ok(message) => self.take(message),
                        Err(why) => self.malformed(member.get().as_bytes(), &why),
                    }
                }
            }
            Err(why) => self.malformed(text, &why),
        }
    }

    /// A message came in that was too long to keep. Whoever waits for it is told.
    pub(super) fn too_long(&self, bytes: u64, owner: Option<&Owner>) {
        log::warn!("an MCP server sent a message of {bytes} bytes, which is too long and was discarded");
        match owner {
            Some(Owner::Answer(id)) => {
                self.settle(id, Reply::Broken(format!("it is {bytes} bytes long, more than is taken")));
            }
            Some(Owner::Request(id)) => {
                self.refuse(id, &ErrorObject::new(jsonrpc::code::INVALID_REQUEST, "the message is too long"));
            }
            None => {}
        }
    }

    /// The connection is over.
    pub(super) fn closed(&self, closed: Closed) {
        for listener in self.routes.close(closed.clone()) {
            self.events.end(listener, Heard::Ended(Err(Error::Closed(closed.clone()))));
        }
        self.asks.cancel_all();
    }

    /// Ends the connection from this side. Takes as long as the transport's end does.
    pub(super) fn shut(&self) {
        let stderr = self.transport.stderr();
        self.closed(Closed { how: Ended::ByUs, stderr });
        self.transport.close();
    }

    fn take(self: &Arc<Self>, message: Message<'_>) {
        match message {
            Message::Response { id: Some(id), outcome } => {
                if !self.settle(&id, Reply::Answer(outcome.map(ToOwned::to_owned))) {
                    log::debug!("an MCP server answered a request nobody waits for");
                }
            }
            // Trap T3: it belongs to no request that is known.
            Message::Response { id: None, outcome } => {
                let message = outcome.err().map(|error| error.to_string()).unwrap_or_default();
                log::warn!(
                    "an MCP server reports an error of no request: {}",
                    printable::line(message.as_bytes(), NOISE_MAX_CHARS)
                );
            }
            Message::Notification { method, params } => self.notified(&method, params),
            Message::Request { id, method, params } => self.asked(id, method, params),
        }
    }

    fn settle(&self, id: &Id, reply: Reply) -> bool {
        match self.routes.settle(id, reply) {
            Some(Settled::Listen(listener, reply)) => {
                self.events.end(listener, listen::ended(reply));
                true
            }
            Some(Settled::Request) => true,
            None => false,
        }
    }

    /// What is no message is skipped and the session goes on (trap T11), but who waits for a broken answer must not wait for ever.
    fn malformed(&self, text: &[u8], why: &Malformed) {
        #[derive(Deserialize)]
        struct Peek {
            method: Option<IgnoredAny>,
        }
        let asks = || serde_json::from_slice::<Peek>(text).is_ok_and(|peek| peek.method.is_some());
        match why {
            Malformed::Invalid { id: Some(id), why } if asks() => {
                self.refuse(id, &ErrorObject::new(jsonrpc::code::INVALID_REQUEST, *why));
            }
            // Its caller was told, and that is the better place for it.
            Malformed::Invalid { id: Some(id), why } | Malformed::Answer { id: Some(id), why }
                if self.settle(id, Reply::Broken((*why).to_owned())) =>
            {
                return;
            }
            _ => {}
        }
        let count = self.noise.fetch_add(1, Ordering::Relaxed);
        let shown = || printable::line(text, NOISE_MAX_CHARS);
        if *why == Malformed::NotJson {
            self.first_noise.get_or_init(shown);
        }
        if count == NOISE_MAX {
            let stderr = self.transport.stderr();
            self.closed(Closed { how: Ended::NotTheProtocol, stderr });
        }
        if count < NOISE_LOGGED {
            log::warn!("an MCP server sent a line that is no message, skipped ({why}): {}", shown());
        } else if count == NOISE_LOGGED {
            log::warn!("an MCP server sent more lines that are no messages; they are skipped in silence");
        }
    }

    fn notified(&self, method: &str, params: Option<&RawValue>) {
        match method {
            method::PROGRESS => self.progressed(params),
            method::CANCELLED => self.cancelled(params),
            _ => {
                let listener = match subscription(params) {
                    Some(id) => match self.routes.listener(&id) {
                        Some(listener) => Some(listener),
                        // Of a listen that is over.
                        None => return,
                    },
                    None => None,
                };
                if let (method::ACKNOWLEDGED, Some(listener)) = (method, &listener) {
                    return listener.acknowledge(honoured(params));
                }
                let bytes = method.len() + params.map_or(0, |params| params.get().len());
                self.events.notify(listener, Notification::read(method, params), bytes);
            }
        }
    }

    fn progressed(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            progress_token: &'a RawValue,
            progress: f64,
            total: Option<f64>,
            message: Option<String>,
        }
        let params = params.and_then(|params| serde_json::from_str::<Params<'_>>(params.get()).ok());
        let Some(params) = params else {
            log::debug!("an MCP server sent a progress notification that does not fit");
            return;
        };
        let message = params.message.map(|mut message| {
            let end = (0..=message.len().min(PROGRESS_MAX_BYTES))
                .rev()
                .find(|at| message.is_char_boundary(*at))
                .unwrap_or_default();
            if message.len() > end {
                message.truncate(end);
            }
            message
        });
        if let Some(token) = Id::parse(params.progress_token) {
            self.routes.progress(&token, Progress { progress: params.progress, total: params.total, message });
        }
    }

    /// A server takes back its question, or at 2026-07-28 ends a listen. Anything else is ignored (spec mcp 4.2).
    fn cancelled(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        let params = params.and_then(|params| serde_json::from_str::<Params<'_>>(params.get()).ok());
        let Some(id) = params.and_then(|params| Id::parse(params.request_id)) else { return };
        if self.is_modern() {
            if self.routes.listener(&id).is_some() {
                let empty = RawValue::from_string("{}".to_owned()).map_err(|_| ErrorObject::new(0, ""));
                self.settle(&id, Reply::Answer(empty));
            }
        } else {
            self.asks.cancel(&id);
        }
    }

    /// A server's question. A modern one may not ask, and clients do not answer there (spec mcp 3.9).
    fn asked(self: &Arc<Self>, id: Id, method: Cow<'_, str>, params: Option<&RawValue>) {
        if self.is_modern() {
            log::warn!(
                "an MCP server sent the request {}, which its version does not have; ignored",
                printable::line(method.as_bytes(), 60)
            );
            return;
        }
        if method == method::PING {
            return self.answer(&id, Ok("{}"), &Until::now());
        }
        let cancel = match self.asks.begin(&id, 0, ASKS_MAX, 0) {
            Ok(cancel) => cancel,
            Err(Refusal::SameId) => {
                let error = ErrorObject::new(jsonrpc::code::INVALID_REQUEST, "a request of this id is under way");
                return self.refuse(&id, &error);
            }
            Err(Refusal::TooMany) => {
                let error = ErrorObject::new(jsonrpc::code::INTERNAL_ERROR, "too many requests at once");
                return self.refuse(&id, &error);
            }
        };
        let shared = Arc::clone(self);
        let (asked, method, params) = (id.clone(), method.into_owned(), params.map(ToOwned::to_owned));
        let spawned = thread::Builder::new().name("mcp ask".to_owned()).spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| shared.fulfil(&method, params.as_deref(), &cancel)));
            let outcome = outcome.unwrap_or_else(|_| {
                Err(ErrorObject::new(jsonrpc::code::INTERNAL_ERROR, "the client failed to answer"))
            });
            // A request that was taken back gets no answer.
            if shared.asks.end(&asked) {
                let until = Until { deadline: Instant::now().checked_add(ANSWER_LIMIT), cancel: None };
                shared.answer(&asked, outcome.as_ref().map(|result| result.get()), &until);
            }
        });
        if spawned.is_err() && self.asks.end(&id) {
            self.refuse(&id, &ErrorObject::new(jsonrpc::code::INTERNAL_ERROR, "no thread to answer on"));
        }
    }

    /// Lets the handler answer a question of the server's, where this client declared that it can.
    pub(super) fn fulfil(
        &self,
        method: &str,
        params: Option<&RawValue>,
        cancel: &Cancel,
    ) -> Result<Box<RawValue>, ErrorObject> {
        let text = params.map_or("{}", RawValue::get);
        let map = strict::object(text)
            .map_err(|_| ErrorObject::new(jsonrpc::code::INVALID_PARAMS, "the parameters are no object"))?;
        declared(&self.capabilities, method, &map)?;
        let written = match method {
            method::ROOTS_LIST => {
                serde_json::value::to_raw_value(&serde_json::json!({ "roots": self.handler.roots(cancel)? }))
            }
            method::SAMPLING => serde_json::value::to_raw_value(&self.handler.sample(&map, cancel)?),
            method::ELICITATION => serde_json::value::to_raw_value(&self.handler.elicit(&map, cancel)?),
            other => Ok(self.handler.custom(other, params, cancel)?),
        };
        written
            .ok()
            .filter(|result| result.get().starts_with('{'))
            .ok_or_else(|| ErrorObject::new(jsonrpc::code::INTERNAL_ERROR, "the client's answer is no object"))
    }

    fn is_modern(&self) -> bool {
        self.version.get().is_some_and(|version| version.era() == Era::Modern)
    }

    fn refuse(&self, id: &Id, error: &ErrorObject) {
        // Clients of 2026-07-28 write no answers.
        if !self.is_modern() {
            self.answer(id, Err(error), &Until::now());
        }
    }

    fn answer(&self, id: &Id, outcome: Result<&str, &ErrorObject>, until: &Until<'_>) {
        let mut text = Vec::new();
        match outcome {
            Ok(result) => write_result(&mut text, id, result.as_bytes()),
            Err(error) => write_error(&mut text, Some(id), error),
        }
        let sent = self.put(text, None, None, self.version.get().copied(), until);
        if sent == Err(SendError::Full) {
            log::warn!("an answer to an MCP server was dropped: it does not read");
        }
    }

    /// Sends a notification; `params` is the text of an object.
    pub(super) fn tell(&self, method: &str, params: Option<&str>, until: &Until<'_>) -> Result<(), SendError> {
        let mut text = Vec::new();
        write_notification(&mut text, method, params.unwrap_or_default().as_bytes());
        self.put(text, Some(method), None, self.version.get().copied(), until)
    }

    /// Sends a message, on one line: a line end in JSON stands only between its parts, where a space means the same.
    pub(super) fn put(
        &self,
        mut text: Vec<u8>,
        method: Option<&str>,
        id: Option<&Id>,
        version: Option<Version>,
        until: &Until<'_>,
    ) -> Result<(), SendError> {
        for byte in &mut text {
            if matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        self.transport.send(&Outgoing { text: &text, method, id, version }, until)
    }
}

/// Which listen a notification belongs to.
fn subscription(params: Option<&RawValue>) -> Option<Id> {
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(rename = "_meta", borrow)]
        meta: Meta<'a>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(rename = "io.modelcontextprotocol/subscriptionId", borrow)]
        id: &'a RawValue,
    }
    let params: Params<'_> = serde_json::from_str(params?.get()).ok()?;
    Id::parse(params.meta.id)
}

/// What a server agreed to tell of.
fn honoured(params: Option<&RawValue>) -> Map<String, Value> {
    #[derive(Deserialize)]
    struct Params {
        #[serde(default)]
        notifications: Map<String, Value>,
    }
    params
        .and_then(|params| serde_json::from_str::<Params>(params.get()).ok())
        .map(|params| params.notifications)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, Sender, unbounded};
    use serde_json::json;

    use super::super::testing::{Peer, SOON, client, declaring, legacy, map, modern};
    use super::super::{CallOptions, Client, EraChoice, Options, Root};
    use super::*;

    /// Answers some things, and says what it was told.
    struct Told {
        heard: Sender<Notification>,
        asked: Sender<Cancel>,
        /// What the questions wait at.
        gate: Receiver<()>,
    }

    impl Handler for Told {
        fn roots(&self, _cancel: &Cancel) -> Result<Vec<Root>, ErrorObject> {
            Ok(vec![Root { uri: "file:///work".to_owned(), name: None }])
        }

        fn elicit(&self, _params: &Map<String, Value>, cancel: &Cancel) -> Result<Map<String, Value>, ErrorObject> {
            let (thrown, _hook) = super::super::request::cancelled(Some(cancel));
            self.asked.send(cancel.clone()).unwrap();
            crossbeam_channel::select_biased! {
                recv(thrown) -> _ => Err(ErrorObject::new(0, "taken back")),
                recv(self.gate) -> _ => Ok(map(json!({"action": "decline"}))),
            }
        }

        fn sample(&self, _params: &Map<String, Value>, _cancel: &Cancel) -> Result<Map<String, Value>, ErrorObject> {
            panic!("a handler that panics, as the test wants")
        }

        fn custom(
            &self,
            method: &str,
            params: Option<&RawValue>,
            _cancel: &Cancel,
        ) -> Result<Box<RawValue>, ErrorObject> {
            match method {
                "com.example/echo" => Ok(params.unwrap().to_owned()),
                "com.example/list" => Ok(RawValue::from_string("[1]".to_owned()).unwrap()),
                other => Err(super::super::handler::refusal(other)),
            }
        }

        fn notified(&self, notification: Notification) {
            let _ = self.heard.send(notification);
        }
    }

    struct Watched {
        client: Client,
        heard: Receiver<Notification>,
        asked: Receiver<Cancel>,
        gate: Sender<()>,
    }

    fn watched<T: Send + 'static>(
        version: &'static str,
        run: impl FnOnce(&mut Peer) -> T + Send + 'static,
    ) -> (Watched, thread::JoinHandle<T>) {
        let (heard_by, heard) = unbounded();
        let (asked_by, asked) = unbounded();
        let (gate, gated) = unbounded();
        let options = Options {
            handler: Arc::new(Told { heard: heard_by, asked: asked_by, gate: gated }),
            ..declaring(EraChoice::Legacy, json!({"roots": {}, "sampling": {}, "elicitation": {"form": {}}}))
        };
        let (client, server) = client(version, options, run);
        (Watched { client, heard, asked, gate }, server)
    }

    fn code(answer: &Value) -> i64 {
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{answer}"))
    }

    /// Traps T1, T5: any id, zero too, comes back as it was.
    #[test]
    fn a_servers_questions_are_answered_with_their_own_ids() {
        let (watched, server) = watched("2025-11-25", |peer| {
            for id in [json!(0), json!("9"), json!(9), json!(9_007_199_254_740_993u64)] {
                peer.ask(id.clone(), "ping", json!({}));
                assert_eq!(peer.hear(), json!({"jsonrpc": "2.0", "id": id, "result": {}}));
                peer.ask(id.clone(), "roots/list", json!({}));
                assert_eq!(
                    peer.hear(),
                    json!({"jsonrpc": "2.0", "id": id, "result": {"roots": [{"uri": "file:///work"}]}})
                );
            }
            peer.say("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"com.example/echo\",\"params\":{\"a\":\r[1]}}");
            assert_eq!(peer.hear()["result"], json!({"a": [1]}));
            for (method, params, expected) in [
                ("com.example/none", json!({}), -32601),
                ("com.example/list", json!({}), -32603),
                ("sampling/createMessage", json!({}), -32603),
                ("elicitation/create", json!({"mode": "url"}), -32602),
                ("tools/list", json!({}), -32601),
            ] {
                peer.ask(1, method, params);
                assert_eq!(code(&peer.hear()), expected, "{method}");
            }
            // Bad ones: with an id that can be read they are refused, without one there is nobody to answer (traps T2, T10).
            peer.say(r#"{"jsonrpc":"2.0","id":2,"method":"ping","params":[]}"#);
            assert_eq!(code(&peer.hear()), -32600);
            peer.say(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#);
            peer.say(r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#);
            peer.ask(3, "ping", json!({}));
            assert_eq!(peer.hear()["id"], 3);
        });
        server.join().unwrap();
        assert_eq!(watched.client.skipped_lines(), 3);
    }

    /// Trap T1: the question of id 0 is taken back like any other, and then gets no answer.
    #[test]
    fn a_question_that_is_taken_back_is_not_answered() {
        let (go, gone) = crossbeam_channel::bounded(1);
        let (watched, server) = watched("2025-06-18", move |peer| {
            peer.ask(0, "elicitation/create", json!({}));
            gone.recv_timeout(SOON).unwrap();
            peer.ask(0, "elicitation/create", json!({}));
            assert_eq!(code(&peer.hear()), -32600, "one of an id at a time");
            peer.notify("notifications/cancelled", json!({"requestId": 0}));
            peer.notify("notifications/cancelled", json!({"requestId": "unknown"}));
            peer.notify("notifications/cancelled", json!({}));
            // The next answer is the next question's.
            peer.ask("next", "elicitation/create", json!({}));
            assert_eq!(peer.hear(), json!({"jsonrpc": "2.0", "id": "next", "result": {"action": "decline"}}));
        });
        let first = watched.asked.recv_timeout(SOON).unwrap();
        go.send(()).unwrap();
        watched.asked.recv_timeout(SOON).unwrap();
        assert!(first.is_cancelled());
        watched.gate.send(()).unwrap();
        server.join().unwrap();
    }

    #[test]
    fn more_questions_than_can_be_answered_at_once_are_refused_and_the_reading_goes_on() {
        let (go, gone) = crossbeam_channel::bounded(1);
        let (watched, server) = watched("2025-11-25", move |peer| {
            for id in 0..=ASKS_MAX {
                peer.ask(id, "elicitation/create", json!({}));
            }
            let refused = peer.hear();
            assert_eq!((code(&refused), &refused["id"]), (-32603, &json!(ASKS_MAX)));
            peer.ask("p", "ping", json!({}));
            assert_eq!(peer.hear()["id"], "p");
            go.send(()).unwrap();
            peer.serve("x/y", json!({}));
            for _ in 0..ASKS_MAX {
                assert_eq!(peer.hear()["result"]["action"], "decline");
            }
        });
        let client = &watched.client;
        for _ in 0..ASKS_MAX {
            watched.asked.recv_timeout(SOON).unwrap();
        }
        gone.recv_timeout(SOON).unwrap();
        client.request("x/y", None, CallOptions::default()).unwrap();
        for _ in 0..ASKS_MAX {
            watched.gate.send(()).unwrap();
        }
        server.join().unwrap();
    }

    #[test]
    fn the_end_of_the_connection_ends_the_questions() {
        let (watched, server) = watched("2025-11-25", |peer| {
            peer.ask(1, "elicitation/create", json!({}));
        });
        let cancel = watched.asked.recv_timeout(SOON).unwrap();
        let (thrown, _hook) = super::super::request::cancelled(Some(&cancel));
        thrown.recv_timeout(SOON).unwrap();
        server.join().unwrap();
    }

    /// Spec mcp 3.9: a modern server may not ask, and a modern client does not answer.
    #[test]
    fn a_modern_servers_questions_are_not_answered() {
        let (client, server) = modern(|peer| {
            // Its first request shows that the client knows what it speaks.
            peer.serve("x/y", json!({"resultType": "complete"}));
            peer.ask(1, "ping", json!({}));
            peer.ask(2, "roots/list", json!({}));
            peer.say(r#"{"jsonrpc":"2.0","id":3,"method":"ping","params":[]}"#);
            peer.notify("notifications/cancelled", json!({"requestId": 77}));
            peer.serve("x/z", json!({"resultType": "complete"}));
        });
        client.request("x/y", None, CallOptions::default()).unwrap();
        client.request("x/z", None, CallOptions::default()).unwrap();
        server.join().unwrap();
    }

    /// Traps T3, T7, T11.
    #[test]
    fn what_is_no_message_is_skipped_and_the_session_goes_on() {
        let (client, server) = legacy(|peer| {
            let request = peer.expect("tools/list");
            for line in [
                &b"Server listening on \x1b[31mport 8080"[..],
                b"",
                b"\r",
                b"{",
                b"7",
                b"[]",
                b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}]",
                b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}",
                b"{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32700,\"message\":\"what?\"}}",
                b"{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32700,\"message\":\"what?\"}}",
                b"{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{}}",
            ] {
                peer.say(line);
            }
            for _ in 0..1000 {
                peer.say("more noise");
            }
            peer.say(format!(
                "\u{feff}{{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{{\"tools\":[],\"x\":\"\u{2028}\u{85}\"}}}}\r",
                request["id"]
            ));
        });
        assert!(client.tools(CallOptions::default()).unwrap().is_empty());
        assert_eq!(client.skipped_lines(), 1006);
        assert_eq!(client.shared().first_noise(), Some("Server listening on \\u{1b}[31mport 8080"));
        server.join().unwrap();
    }

    /// Trap T9: a line of 20 MiB. Its caller is told, where it was an answer; nobody else notices.
    #[test]
    fn a_message_that_is_too_long_is_discarded_and_its_caller_is_told() {
        let (client, server) = legacy(|peer| {
            let request = peer.expect("tools/call");
            let long = "x".repeat(20 * 1024 * 1024);
            peer.say(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"content":[],"x":"{long}"}}}}"#, request["id"]));
            peer.say(&long);
            peer.say(format!(
                r#"{{"jsonrpc":"2.0","method":"ping","params":{{"x":"{long}"}},"id":{}}}"#,
                request["id"]
            ));
            // The refusal of that last one, and the next request, in whichever order.
            for _ in 0..2 {
                match peer.hear() {
                    next if next["method"] == "x/y" => peer.answer(&next, json!({})),
                    refusal => assert_eq!(code(&refusal), -32600),
                }
            }
        });
        let error = client.call_tool("t", &json!({}), CallOptions::default()).unwrap_err();
        assert!(matches!(&error, Error::Protocol { why, .. } if why.contains("bytes long")), "{error}");
        client.request("x/y", None, CallOptions::default()).unwrap();
        server.join().unwrap();
    }

    /// Spec mcp 1.3: batches exist in one version alone.
    #[test]
    fn a_batch_is_read_at_the_one_version_that_has_them() {
        for (version, read) in [("2025-03-26", true), ("2024-11-05", false), ("2025-06-18", false)] {
            let (watched, server) = watched(version, move |peer| {
                let request = peer.expect("x/y");
                let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": {"in": "a batch"}});
                let ping = json!({"jsonrpc": "2.0", "id": "p", "method": "ping"});
                peer.say(json!([ping, {"no": "message"}, answer]).to_string());
                if read {
                    assert_eq!(peer.hear()["id"], "p");
                } else {
                    peer.answer(&request, json!({"in": "a line"}));
                }
            });
            let result = watched.client.request("x/y", None, CallOptions::default()).unwrap();
            assert_eq!(result.get(), if read { r#"{"in":"a batch"}"# } else { r#"{"in":"a line"}"# });
            assert_eq!(watched.client.skipped_lines(), 1);
            server.join().unwrap();
        }
    }

    #[test]
    fn notifications_reach_the_handler_in_order() {
        let (watched, server) = watched("2025-11-25", |peer| {
            peer.notify("notifications/message", json!({"level": "warning", "logger": "l", "data": {"a": 1}}));
            peer.notify("notifications/tools/list_changed", json!({}));
            peer.notify("notifications/resources/updated", json!({"uri": "test://a"}));
            peer.notify("com.example/told", json!({"x": 1}));
            peer.notify("notifications/progress", json!({"progressToken": 0, "progress": 1}));
        });
        let next = || watched.heard.recv_timeout(SOON).unwrap();
        assert!(matches!(next(), Notification::Log { level: Level::Warning, data, .. } if data.get() == r#"{"a":1}"#));
        assert!(matches!(next(), Notification::ToolsChanged));
        assert!(matches!(next(), Notification::ResourceUpdated { uri } if uri == "test://a"));
        assert!(matches!(next(), Notification::Other { method, params: Some(_) } if method == "com.example/told"));
        server.join().unwrap();
    }

    /// Who is told may be slow; who reads is not, and what waits is bounded.
    #[test]
    fn a_handler_that_hangs_holds_up_nothing_but_notifications() {
        struct Slow {
            gate: Receiver<()>,
            count: Sender<()>,
        }
        impl Handler for Slow {
            fn notified(&self, _notification: Notification) {
                let _ = self.gate.recv();
                self.count.send(()).unwrap();
            }
        }
        let (gate, gated) = unbounded();
        let (counter, counted) = unbounded();
        let handler = Arc::new(Slow { gate: gated, count: counter });
        let options = Options { handler, ..declaring(EraChoice::Legacy, json!({})) };
        let (client, server) = client("2025-11-25", options, |peer| {
            for _ in 0..10_000 {
                peer.notify("notifications/tools/list_changed", json!({}));
            }
            peer.serve("x/y", json!({}));
        });
        client.request("x/y", None, CallOptions::default()).unwrap();
        server.join().unwrap();
        drop((gate, client));
        let handed_on = counted.iter().count();
        assert!((1..2000).contains(&handed_on), "{handed_on}");
    }
}
