//! One request and its answer: the limits of its wait, what ends it before, and what the server is told then (spec mcp 1.6, 4.1, 4.2).

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, at, bounded, never, select};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::envelope;
use super::error::{Closed, Ended, Error};
use super::inbound::Shared;
use super::routes::{Progress, Reply, Waiter};
use super::transport::{SendError, Until};
use crate::jsonrpc::{Id, LINE_MAX_BYTES, write_request};
use crate::mcp::protocol::{Version, method};
use crate::os::cancel::{Cancel, HookGuard};

/// How long a server that no longer reads is given to end, so that the error can say how it did.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How many times its own length a default limit can be prolonged to by progress.
const PROLONGED_MAX: u32 = 10;

/// What a caller says of one request beside its parameters.
#[derive(Default)]
pub struct CallOptions<'a> {
    /// Ends the wait at once when it is thrown, and tells the server.
    pub cancel: Option<&'a Cancel>,
    /// Called on the caller's own thread for each progress notification. Without it the server is not asked for progress.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
    /// How long an answer is waited for, counted anew from each progress notification. None is the default: no limit for a tool call,
    /// [`super::Timeouts::request`] for everything else. `Duration::MAX` is no limit.
    pub timeout: Option<Duration>,
    /// How long it is waited for whatever the progress.
    pub maximum: Option<Duration>,
    /// Members for the request's `_meta`, such as `traceparent`.
    pub meta: Option<&'a Map<String, Value>>,
}

/// The options as the wait needs them: moments in place of lengths.
pub(super) struct Wait<'a> {
    pub(super) cancel: Option<&'a Cancel>,
    progress: Option<&'a mut dyn FnMut(Progress)>,
    timeout: Option<Duration>,
    maximum: Option<(Duration, Instant)>,
    pub(super) meta: Option<&'a Map<String, Value>>,
}

impl<'a> CallOptions<'a> {
    /// With a switch that ends the wait.
    pub fn cancelled_by(cancel: &'a Cancel) -> Self {
        Self { cancel: Some(cancel), ..Self::default() }
    }

    pub(super) fn wait(self, default: Option<Duration>) -> Wait<'a> {
        let prolonged = || default.filter(|_| self.timeout.is_none()).map(|limit| limit.saturating_mul(PROLONGED_MAX));
        let maximum = self.maximum.or_else(prolonged);
        Wait {
            cancel: self.cancel,
            progress: self.progress,
            timeout: self.timeout.or(default),
            maximum: maximum.and_then(|length| Some((length, Instant::now().checked_add(length)?))),
            meta: self.meta,
        }
    }
}

/// The end of a wait as it stands.
pub(super) struct Limit {
    /// When.
    pub(super) deadline: Option<Instant>,
    /// What length of time led to it.
    pub(super) length: Duration,
}

impl Wait<'_> {
    /// The end of the wait, counted from now.
    pub(super) fn limit(&self) -> Limit {
        let plain = self.timeout.and_then(|length| Some((length, Instant::now().checked_add(length)?)));
        let first = match (plain, self.maximum) {
            (Some(plain), Some(maximum)) => Some(if plain.1 <= maximum.1 { plain } else { maximum }),
            (plain, maximum) => plain.or(maximum),
        };
        Limit {
            deadline: first.map(|(_, deadline)| deadline),
            length: first.map_or(Duration::MAX, |(length, _)| length),
        }
    }
}

/// A request as it goes out.
pub(super) struct Outbound<'a> {
    pub(super) method: &'a str,
    /// The text of an object, or none.
    pub(super) params: Option<&'a str>,
    /// What goes into `_meta`: members without braces.
    pub(super) envelope: &'a str,
    /// What the transport is to say the version is.
    pub(super) version: Option<Version>,
    /// Whether the server is told when nobody waits any more. Not of the handshake: it may not be taken back (spec mcp 2.1), and an old
    /// server may choke on a word about the probe.
    pub(super) revocable: bool,
}

impl Shared {
    /// Sends a request and waits for its result: the text of an object.
    pub(super) fn exchange(&self, outbound: &Outbound<'_>, wait: &mut Wait<'_>) -> Result<Box<RawValue>, Error> {
        let waiter = self.routes.open(wait.progress.is_some(), None).map_err(Error::Closed)?;
        let mut limit = wait.limit();
        self.send_request(outbound, &waiter, wait, &limit)?;
        let (thrown, _hook) = cancelled(wait.cancel);
        let mut progressed = waiter.progress.clone().unwrap_or_else(never);
        loop {
            let ended = limit.deadline.map_or_else(never, at);
            select! {
                recv(waiter.answer) -> reply => {
                    // What came before the answer is told before it.
                    if let Some(callback) = &mut wait.progress {
                        progressed.try_iter().for_each(callback);
                    }
                    return self.outcome(outbound.method, reply.ok());
                }
                recv(progressed) -> progress => match (progress, &mut wait.progress) {
                    (Ok(progress), Some(callback)) => {
                        callback(progress);
                        limit = wait.limit();
                    }
                    // The answer, or the end, is on its way.
                    _ => progressed = never(),
                },
                recv(thrown) -> _ => {
                    if outbound.revocable {
                        self.abandon(waiter.id(), "cancelled");
                    }
                    return Err(Error::Cancelled);
                }
                recv(ended) -> _ => {
                    if outbound.revocable {
                        self.abandon(waiter.id(), "not answered in time");
                    }
                    return Err(self.timed_out(outbound.method, limit.length));
                }
            }
        }
    }

    /// Sends a request whose answer `waiter` waits for. Fails without a word to the server when nothing was sent.
    pub(super) fn send_request(
        &self,
        outbound: &Outbound<'_>,
        waiter: &Waiter<'_>,
        wait: &Wait<'_>,
        limit: &Limit,
    ) -> Result<(), Error> {
        if wait.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Error::Cancelled);
        }
        let invalid = |why: String| Error::InvalidParams { method: outbound.method.to_owned(), why };
        let mut members = outbound.envelope.to_owned();
        for (name, value) in wait.meta.into_iter().flatten() {
            if !envelope::OURS.contains(&name.as_str()) {
                envelope::member(&mut members, name, value);
            }
        }
        if waiter.progress.is_some() {
            envelope::with_token(&mut members, waiter.id());
        }
        let params = match outbound.params {
            None if members.is_empty() => String::new(),
            params => envelope::with_meta(params.unwrap_or("{}"), &members).map_err(invalid)?,
        };
        let id = Id::from(waiter.id());
        let mut text = Vec::with_capacity(params.len() + 100);
        write_request(&mut text, &id, outbound.method, params.as_bytes());
        drop(params);
        if text.len() > LINE_MAX_BYTES {
            return Err(invalid(format!("it is {} bytes long, and a message may have {LINE_MAX_BYTES}", text.len())));
        }
        let until = Until { deadline: limit.deadline, cancel: wait.cancel };
        match self.put(text, Some(outbound.method), Some(&id), outbound.version, &until) {
            Ok(()) => Ok(()),
            Err(SendError::Cancelled) => Err(Error::Cancelled),
            Err(SendError::Full) => Err(self.timed_out(outbound.method, limit.length)),
            Err(SendError::Closed) => {
                // A server that is ending stops reading a moment before its end is known.
                let _ = waiter.answer.recv_timeout(LAST_WORDS);
                let stopped = || Closed { how: Ended::NotReading, stderr: self.transport.stderr() };
                Err(Error::Closed(self.routes.closed().unwrap_or_else(stopped)))
            }
        }
    }

    /// A reply as a caller gets it; none means that the connection is over.
    pub(super) fn outcome(&self, method: &str, reply: Option<Reply>) -> Result<Box<RawValue>, Error> {
        match reply {
            Some(Reply::Answer(Ok(result))) if result.get().starts_with('{') => Ok(result),
            Some(Reply::Answer(Ok(_))) => Err(Error::protocol(method, "its result is no object")),
            Some(Reply::Answer(Err(error))) => Err(Error::Rpc { method: method.to_owned(), error }),
            Some(Reply::Broken(why)) => Err(Error::protocol(method, why)),
            None => Err(Error::Closed(self.routes.closed().unwrap_or_else(|| Closed::new(Ended::EndOfStream)))),
        }
    }

    /// Tells the server that nobody waits for a request any more, where that can be said at once.
    pub(super) fn abandon(&self, id: i64, reason: &str) {
        if self.transport.abandon(&Id::from(id)) {
            return;
        }
        let params = serde_json::json!({ "requestId": id, "reason": reason }).to_string();
        if self.tell(method::CANCELLED, Some(&params), &Until::now()) == Err(SendError::Full) {
            log::warn!("an MCP server does not read, so it was not told that a request is cancelled");
        }
    }

    pub(super) fn timed_out(&self, method: &str, after: Duration) -> Error {
        Error::TimedOut { method: method.to_owned(), after, printed: self.first_noise().map(str::to_owned) }
    }
}

/// A channel that says when a switch is thrown, for as long as the guard is kept.
pub(super) fn cancelled(cancel: Option<&Cancel>) -> (Receiver<()>, Option<HookGuard>) {
    let Some(cancel) = cancel else { return (never(), None) };
    let (thrown, receiver) = bounded(1);
    let guard = cancel.on_cancel(move || {
        let _ = thrown.try_send(());
    });
    (receiver, Some(guard))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use serde_json::json;

    use super::super::testing::{SOON, legacy, modern};
    use super::super::{Client, Ended};
    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    fn ask(client: &Client, method: &str, options: CallOptions<'_>) -> Result<Value, Error> {
        client.request(method, None, options).map(|result| serde_json::from_str(result.get()).unwrap())
    }

    fn within(timeout: Duration) -> CallOptions<'static> {
        CallOptions { timeout: Some(timeout), ..CallOptions::default() }
    }

    #[test]
    fn an_answer_that_does_not_come_is_given_up_and_the_server_is_told() {
        for (client, server) in [
            legacy(|peer| {
                let request = peer.expect("a/b");
                let cancelled = peer.expect("notifications/cancelled");
                assert_eq!(cancelled["params"]["requestId"], request["id"]);
                // Its answer comes all the same, and disturbs nobody.
                peer.answer(&request, json!({"late": true}));
                peer.serve("c/d", json!({"in": "time"}));
            }),
            modern(|peer| {
                let request = peer.expect("a/b");
                assert_eq!(peer.expect("notifications/cancelled")["params"]["requestId"], request["id"]);
                peer.answer(&request, json!({"late": true}));
                peer.serve("c/d", json!({"in": "time"}));
            }),
        ] {
            let error = ask(&client, "a/b", within(SHORT)).unwrap_err();
            assert_eq!(error.to_string(), "the server did not answer a/b within 30ms");
            assert_eq!(ask(&client, "c/d", CallOptions::default()).unwrap(), json!({"in": "time"}));
            server.join().unwrap();
        }
    }

    #[test]
    fn a_thrown_switch_ends_the_wait_and_the_server_is_told() {
        let cancel = Cancel::new();
        let thrower = cancel.clone();
        let (client, server) = legacy(move |peer| {
            let request = peer.expect("tools/call");
            thrower.cancel();
            assert_eq!(peer.expect("notifications/cancelled")["params"]["requestId"], request["id"]);
            peer.hear()
        });
        let error = client.call_tool("t", &json!({}), CallOptions::cancelled_by(&cancel)).unwrap_err();
        assert!(matches!(error, Error::Cancelled));
        // A switch that was thrown before sends nothing.
        let error = client.call_tool("t", &json!({}), CallOptions::cancelled_by(&cancel)).unwrap_err();
        assert!(matches!(error, Error::Cancelled));
        drop(client);
        assert_eq!(server.join().unwrap(), Value::Null);
    }

    #[test]
    fn progress_is_told_in_order_and_before_the_answer() {
        let (client, server) = legacy(|peer| {
            let request = peer.expect("tools/call");
            let token = request["params"]["_meta"]["progressToken"].clone();
            assert_eq!(token, request["id"]);
            for (token, progress) in
                [(json!(99), 1.0), (json!(token.to_string()), 2.0), (token.clone(), 3.0), (token.clone(), 4.5)]
            {
                peer.notify(
                    "notifications/progress",
                    json!({"progressToken": token, "progress": progress, "total": 9}),
                );
            }
            // Trap T49: one that does not fit is nothing.
            peer.notify("notifications/progress", json!({"progressToken": token, "value": 5}));
            let long = "ä".repeat(40_000);
            peer.notify("notifications/progress", json!({"progressToken": token, "progress": 6, "message": long}));
            peer.answer(&request, json!({"content": []}));
            // Trap T47.
            peer.notify("notifications/progress", json!({"progressToken": token, "progress": 7}));
            let second = peer.serve("tools/call", json!({"content": []}));
            assert!(second["params"].get("_meta").is_none(), "no token unless somebody listens");
        });
        let mut heard = Vec::new();
        let mut hear = |progress: Progress| heard.push((progress.progress, progress.total, progress.message));
        let options = CallOptions { progress: Some(&mut hear), ..CallOptions::default() };
        client.call_tool("t", &json!({}), options).unwrap();
        client.call_tool("t", &json!({}), CallOptions::default()).unwrap();
        server.join().unwrap();
        assert_eq!(heard[..2], [(3.0, Some(9.0), None), (4.5, Some(9.0), None)]);
        assert_eq!(heard[2].2.as_ref().map(String::len), Some(64 * 1024));
        assert_eq!(heard.len(), 3);
    }

    #[test]
    fn progress_prolongs_a_limit_but_not_the_hardest_one() {
        let (client, server) = legacy(|peer| {
            let request = peer.expect("a/b");
            let mut next = Value::Null;
            while next["method"] != "notifications/cancelled" {
                peer.notify("notifications/progress", json!({"progressToken": request["id"], "progress": 1}));
                next = peer.hear();
            }
        });
        let limit = Duration::from_millis(700);
        // Each progress is answered with a notification, so that the two go in step.
        let mut hear = |_| client.notify("x/heard", None).unwrap();
        let options = CallOptions {
            progress: Some(&mut hear),
            timeout: Some(Duration::from_millis(500)),
            maximum: Some(limit),
            ..CallOptions::default()
        };
        let started = Instant::now();
        let error = ask(&client, "a/b", options).unwrap_err();
        assert_eq!(error.to_string(), "the server did not answer a/b within 700ms");
        assert!(started.elapsed() >= limit);
        server.join().unwrap();
    }

    /// Traps T5 and T4: in any order, and from a server that turns an id into a string or a fraction.
    #[test]
    fn answers_find_their_callers_in_any_order() {
        let (client, server) = legacy(|peer| {
            let mut requests: Vec<Value> = (0..20).map(|_| peer.hear()).collect();
            requests.reverse();
            for (at, request) in requests.iter().enumerate() {
                let id = request["id"].as_i64().unwrap();
                let id = match at % 3 {
                    0 => json!(id),
                    1 => json!(id.to_string()),
                    _ => json!(id as f64),
                };
                peer.say(
                    json!({"jsonrpc": "2.0", "id": id, "result": {"method": request["method"]}, "extra": 1})
                        .to_string(),
                );
            }
        });
        let client = Arc::new(client);
        let callers: Vec<_> = (0..20)
            .map(|number| {
                let client = Arc::clone(&client);
                thread::spawn(move || {
                    let method = format!("m/{number}");
                    assert_eq!(ask(&client, &method, within(SOON)).unwrap()["method"], method);
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        server.join().unwrap();
    }

    /// Traps T26, T30: any integer is an error's code, zero too.
    #[test]
    fn the_servers_errors_are_handed_on() {
        for code in [0, 1, -32602, -32603, -32001, 7_000_000_000i64] {
            let (client, server) = legacy(move |peer| {
                let request = peer.expect("tools/call");
                peer.refuse(&request, code, json!({"a": 1}));
            });
            let error = client.call_tool("unknown", &json!({}), CallOptions::default()).unwrap_err();
            let object = error.rpc().unwrap();
            assert_eq!((object.code, object.data.as_ref().unwrap().get()), (code, r#"{"a":1}"#));
            assert!(error.required_capabilities().is_none());
            server.join().unwrap();
        }
    }

    #[test]
    fn a_broken_answer_ends_its_request_and_no_other() {
        for broken in [
            r#"{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":""}}"#,
            r#"{"jsonrpc":"2.0","id":ID,"error":"no"}"#,
            r#"{"jsonrpc":"2.0","id":ID}"#,
            r#"{"id":ID,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":ID,"result":7}"#,
            r#"{"jsonrpc":"2.0","id":ID,"result":{},"result":{}}"#,
        ] {
            let (client, server) = legacy(move |peer| {
                let request = peer.expect("a/b");
                peer.say(broken.replace("ID", &request["id"].to_string()));
                peer.serve("c/d", json!({}));
            });
            let error = ask(&client, "a/b", within(SOON)).unwrap_err();
            assert!(matches!(error, Error::Protocol { .. }), "{broken}: {error}");
            ask(&client, "c/d", within(SOON)).unwrap();
            server.join().unwrap();
        }
    }

    #[test]
    fn a_server_that_dies_in_mid_call_ends_every_call() {
        let (client, server) = legacy(|peer| {
            for _ in 0..5 {
                peer.hear();
            }
        });
        let client = Arc::new(client);
        let callers: Vec<_> = (0..5)
            .map(|_| {
                let client = Arc::clone(&client);
                thread::spawn(move || client.call_tool("t", &json!({}), CallOptions::default()).unwrap_err())
            })
            .collect();
        server.join().unwrap();
        for caller in callers {
            let error = caller.join().unwrap();
            assert!(matches!(&error, Error::Closed(closed) if closed.how == Ended::EndOfStream), "{error}");
        }
        assert!(matches!(ask(&client, "a/b", CallOptions::default()), Err(Error::Closed(_))));
        assert_eq!(client.ended().unwrap().how, Ended::EndOfStream);
    }

    #[test]
    fn closing_ends_the_calls_under_way() {
        let (has_it, had_it) = bounded(1);
        let (client, server) = legacy(move |peer| {
            peer.expect("tools/call");
            has_it.send(()).unwrap();
            assert_eq!(peer.hear(), Value::Null);
        });
        let client = Arc::new(client);
        let caller = {
            let client = Arc::clone(&client);
            thread::spawn(move || client.call_tool("t", &json!({}), CallOptions::default()).unwrap_err())
        };
        had_it.recv_timeout(SOON).unwrap();
        client.close();
        assert!(matches!(caller.join().unwrap(), Error::Closed(closed) if closed.how == Ended::ByUs));
        server.join().unwrap();
        client.close();
    }

    #[test]
    fn parameters_travel_on_one_line_and_as_they_were_written() {
        let (client, server) = legacy(|peer| {
            let request = peer.serve("a/b", json!({}));
            assert_eq!(request["params"], json!({"x": [1, "a\nb"], "_meta": {"traceparent": "t"}}));
            let request = peer.serve("a/b", json!({}));
            assert_eq!(request["params"], json!({"_meta": {"traceparent": "u"}}));
            peer.hear()
        });
        let params =
            RawValue::from_string("{\n\"x\": [1,\r\n \"a\\nb\"],\n\"_meta\":{\"traceparent\":\"t\"}}".into()).unwrap();
        client.request("a/b", Some(&params), CallOptions::default()).unwrap();
        let meta = super::super::testing::map(json!({"traceparent": "u", "progressToken": 9}));
        ask(&client, "a/b", CallOptions { meta: Some(&meta), ..CallOptions::default() }).unwrap();
        let list = RawValue::from_string("[1]".into()).unwrap();
        assert!(matches!(client.notify("a/b", Some(&list)), Err(Error::InvalidParams { .. })));
        let error = client.request("a/b", Some(&list), CallOptions::default()).unwrap_err();
        assert!(matches!(error, Error::InvalidParams { .. }), "{error}");
        let long = RawValue::from_string(format!(r#"{{"x":"{}"}}"#, "x".repeat(LINE_MAX_BYTES))).unwrap();
        let error = client.request("a/b", Some(&long), CallOptions::default()).unwrap_err();
        assert!(matches!(error, Error::InvalidParams { .. }), "{error}");
        drop(client);
        assert_eq!(server.join().unwrap(), Value::Null, "none of these was sent");
    }
}
