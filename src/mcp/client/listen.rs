//! `subscriptions/listen`: one request of 2026-07-28 whose answer stays open while notifications come (spec mcp 3.7).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Sender, at, bounded, never, select};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Client;
use super::error::Error;
use super::handler::Notification;
use super::inbound::Shared;
use super::request::{CallOptions, cancelled};
use super::routes::Reply;
use crate::mcp::protocol::method;

/// What to be told of.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Subscriptions {
    /// Changes of the list of tools.
    #[serde(rename = "toolsListChanged", skip_serializing_if = "is_false")]
    pub tools: bool,
    /// Changes of the list of prompts.
    #[serde(rename = "promptsListChanged", skip_serializing_if = "is_false")]
    pub prompts: bool,
    /// Changes of the list of resources.
    #[serde(rename = "resourcesListChanged", skip_serializing_if = "is_false")]
    pub resources: bool,
    /// Changes of these resources, by URI.
    #[serde(rename = "resourceSubscriptions", skip_serializing_if = "Vec::is_empty")]
    pub uris: Vec<String>,
}

// The shape serde asks for.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// What a listener is told.
#[derive(Debug)]
pub enum Heard {
    /// Something it listens for.
    Notification(Notification),
    /// Nothing more will come: the server ended it in order, or the error says what happened. There is no replay: listen again, and
    /// fetch again what may have changed.
    Ended(Result<(), Error>),
}

/// Keeps a listen open; dropping it ends it. A notification that is being handed over at that moment may still arrive.
pub struct Listening {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    id: i64,
    honoured: Map<String, Value>,
}

impl Listening {
    /// What of it the server agreed to, as it stands on the wire.
    pub fn honoured(&self) -> &Map<String, Value> {
        &self.honoured
    }

    /// Whether it is over already.
    pub fn is_over(&self) -> bool {
        self.listener.over.load(Ordering::SeqCst)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.listener.over.store(true, Ordering::SeqCst);
        if self.shared.routes.forget(self.id) {
            self.shared.abandon(self.id, "no longer listening");
        }
    }
}

/// Who is told.
pub(super) struct Listener {
    callback: Mutex<Box<dyn FnMut(Heard) + Send>>,
    /// Whether the server has agreed. An end before that is told to whoever called `listen`, and to nobody else.
    begun: AtomicBool,
    over: AtomicBool,
    acknowledged: Sender<Map<String, Value>>,
}

impl Listener {
    /// Tells it; nothing once it is over.
    pub(super) fn tell(&self, heard: Heard) {
        let ends = matches!(heard, Heard::Ended(_));
        let over = if ends { self.over.swap(true, Ordering::SeqCst) } else { self.over.load(Ordering::SeqCst) };
        if !over && (!ends || self.begun.load(Ordering::SeqCst)) {
            let mut callback = self.callback.lock().unwrap_or_else(PoisonError::into_inner);
            callback(heard);
        }
    }

    /// The server says what it agreed to.
    pub(super) fn acknowledge(&self, honoured: Map<String, Value>) {
        self.begun.store(true, Ordering::SeqCst);
        let _ = self.acknowledged.try_send(honoured);
    }
}

impl Client {
    /// Listens until the guard is dropped; 2026-07-28 alone. Returns once the server has said what it agreed to; `callback` is called from
    /// one thread, in order, and what comes faster than it returns is dropped in the end.
    ///
    /// An older version has [`Client::subscribe`] and tells the [`super::Handler`] of changed lists by itself.
    pub fn listen(
        &self,
        subscriptions: &Subscriptions,
        callback: impl FnMut(Heard) + Send + 'static,
        options: CallOptions<'_>,
    ) -> Result<Listening, Error> {
        #[derive(Serialize)]
        struct Params<'a> {
            notifications: &'a Subscriptions,
        }
        self.modern_only(method::LISTEN, "resources/subscribe, and tells of changed lists unasked")?;
        let params = self.params(method::LISTEN, &Params { notifications: subscriptions })?;
        let wait = options.wait(Some(self.timeouts.request));
        let (acknowledged, acknowledgement) = bounded(1);
        let listener = Arc::new(Listener {
            callback: Mutex::new(Box::new(callback)),
            begun: AtomicBool::new(false),
            over: AtomicBool::new(false),
            acknowledged,
        });
        let waiter = self.shared().routes.open(false, Some(Arc::clone(&listener))).map_err(Error::Closed)?;
        let envelope = self.envelope();
        let outbound = self.outbound(method::LISTEN, Some(&params), &envelope);
        let limit = wait.limit();
        self.shared().send_request(&outbound, &waiter, &wait, &limit)?;
        let (thrown, _hook) = cancelled(wait.cancel);
        let ended = limit.deadline.map_or_else(never, at);
        let given_up = |reason: &str| {
            listener.over.store(true, Ordering::SeqCst);
            self.shared().abandon(waiter.id(), reason);
        };
        let honoured = select! {
            recv(acknowledgement) -> honoured => honoured.unwrap_or_default(),
            // It may have begun and ended at once.
            recv(waiter.answer) -> reply => match acknowledgement.try_recv() {
                Ok(honoured) => honoured,
                Err(_) => return Err(match self.shared().outcome(method::LISTEN, reply.ok()) {
                    Ok(_) => Error::protocol(method::LISTEN, "it ended before it began"),
                    Err(error) => error,
                }),
            },
            recv(thrown) -> _ => {
                given_up("cancelled");
                return Err(Error::Cancelled);
            }
            recv(ended) -> _ => {
                given_up("not acknowledged in time");
                return Err(self.shared().timed_out(method::LISTEN, limit.length));
            }
        };
        let id = waiter.id();
        waiter.keep();
        Ok(Listening { shared: Arc::clone(self.shared()), listener, id, honoured })
    }
}

/// What a listen that ended with `reply` tells its listener.
pub(super) fn ended(reply: Reply) -> Heard {
    Heard::Ended(match reply {
        Reply::Answer(Ok(_)) => Ok(()),
        Reply::Answer(Err(error)) => Err(Error::Rpc { method: method::LISTEN.to_owned(), error }),
        Reply::Broken(why) => Err(Error::protocol(method::LISTEN, why)),
    })
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::{Receiver, unbounded};
    use serde_json::json;

    use super::super::error::Ended;
    use super::super::testing::{Peer, SOON, modern};
    use super::*;
    use crate::os::cancel::Cancel;

    const ID: &str = "io.modelcontextprotocol/subscriptionId";

    fn listener() -> (impl FnMut(Heard) + Send + 'static, Receiver<Heard>) {
        let (sender, receiver) = unbounded();
        (move |heard| sender.send(heard).unwrap(), receiver)
    }

    fn acknowledge(peer: &mut Peer, request: &Value) {
        let notifications = json!({"toolsListChanged": true});
        peer.notify(
            "notifications/subscriptions/acknowledged",
            json!({"notifications": notifications, "_meta": {ID: request["id"]}}),
        );
    }

    fn all() -> Subscriptions {
        Subscriptions { tools: true, uris: vec!["test://a".to_owned()], ..Subscriptions::default() }
    }

    /// Trap T38: a server that turns the id into a string is heard too. Other calls go on meanwhile.
    #[test]
    fn what_is_listened_for_reaches_its_listener_until_the_guard_is_dropped() {
        let (client, server) = modern(|peer| {
            let listen = peer.expect("subscriptions/listen");
            assert_eq!(
                listen["params"]["notifications"],
                json!({"toolsListChanged": true, "resourceSubscriptions": ["test://a"]})
            );
            assert!(listen["params"]["_meta"].is_object());
            acknowledge(peer, &listen);
            peer.serve("tools/list", json!({"resultType": "complete", "tools": []}));
            let id = listen["id"].clone();
            peer.notify("notifications/tools/list_changed", json!({"_meta": {ID: id}}));
            peer.notify("notifications/tools/list_changed", json!({"_meta": {ID: 99}}));
            peer.notify("notifications/resources/updated", json!({"uri": "test://a", "_meta": {ID: id.to_string()}}));
            assert_eq!(peer.expect("notifications/cancelled")["params"]["requestId"], id);
            peer.notify("notifications/tools/list_changed", json!({"_meta": {ID: id}}));
            peer.answer(&listen, json!({"resultType": "complete", "_meta": {ID: id}}));
            peer.serve("tools/list", json!({"resultType": "complete", "tools": []}));
        });
        let (callback, heard) = listener();
        let listening = client.listen(&all(), callback, CallOptions::default()).unwrap();
        assert_eq!(Value::Object(listening.honoured().clone()), json!({"toolsListChanged": true}));
        client.tools(CallOptions::default()).unwrap();
        let next = || heard.recv_timeout(SOON).unwrap();
        assert!(matches!(next(), Heard::Notification(Notification::ToolsChanged)));
        assert!(matches!(next(), Heard::Notification(Notification::ResourceUpdated { uri }) if uri == "test://a"));
        assert!(!listening.is_over());
        drop(listening);
        client.tools(CallOptions::default()).unwrap();
        server.join().unwrap();
        drop(client);
        // The listener is forgotten, and with it the sender.
        assert!(heard.recv_timeout(SOON).is_err() && heard.is_empty());
    }

    #[test]
    fn a_listener_is_told_of_the_end_whichever_way_it_comes() {
        for way in 0..4 {
            let (client, server) = modern(move |peer| {
                let listen = peer.expect("subscriptions/listen");
                acknowledge(peer, &listen);
                match way {
                    0 => peer.answer(&listen, json!({"resultType": "complete"})),
                    1 => {
                        peer.notify("notifications/cancelled", json!({"requestId": listen["id"]}));
                        peer.answer(&listen, json!({"resultType": "complete"}));
                    }
                    2 => peer.refuse(&listen, -32603, Value::Null),
                    _ => return,
                }
                peer.serve("x/y", json!({}));
            });
            let (callback, heard) = listener();
            let listening = client.listen(&all(), callback, CallOptions::default()).unwrap();
            match (way, heard.recv_timeout(SOON).unwrap()) {
                (0 | 1, Heard::Ended(Ok(()))) | (2, Heard::Ended(Err(Error::Rpc { .. }))) => {
                    client.request("x/y", None, CallOptions::default()).unwrap();
                }
                (3, Heard::Ended(Err(Error::Closed(closed)))) => assert_eq!(closed.how, Ended::EndOfStream),
                (_, other) => panic!("{way}: {other:?}"),
            }
            server.join().unwrap();
            assert!(listening.is_over());
            drop(listening);
            drop(client);
            assert!(heard.recv_timeout(SOON).is_err(), "it is told once");
        }
    }

    #[test]
    fn a_listen_that_does_not_come_about_is_an_error_and_nobody_is_told() {
        // Refused.
        let (client, server) = modern(|peer| {
            let listen = peer.expect("subscriptions/listen");
            peer.refuse(&listen, -32601, Value::Null);
        });
        let (callback, heard) = listener();
        let error = client.listen(&all(), callback, CallOptions::default()).err().unwrap();
        assert_eq!(error.rpc().unwrap().code, -32601);
        server.join().unwrap();
        drop(client);
        assert!(heard.recv_timeout(SOON).is_err());
        // Not acknowledged, and given up.
        let (client, server) = modern(|peer| {
            let listen = peer.expect("subscriptions/listen");
            assert_eq!(peer.expect("notifications/cancelled")["params"]["requestId"], listen["id"]);
        });
        let options = CallOptions { timeout: Some(std::time::Duration::from_millis(30)), ..CallOptions::default() };
        assert!(matches!(client.listen(&all(), |_| (), options), Err(Error::TimedOut { .. })));
        server.join().unwrap();
        // A thrown switch.
        let cancel = Cancel::new();
        let thrower = cancel.clone();
        let (client, server) = modern(move |peer| {
            peer.expect("subscriptions/listen");
            thrower.cancel();
            peer.expect("notifications/cancelled");
        });
        let outcome = client.listen(&all(), |_| (), CallOptions::cancelled_by(&cancel));
        assert!(matches!(outcome, Err(Error::Cancelled)));
        server.join().unwrap();
    }

    #[test]
    fn a_listener_that_panics_costs_nobody_else_anything() {
        let (client, server) = modern(|peer| {
            let first = peer.expect("subscriptions/listen");
            acknowledge(peer, &first);
            let second = peer.expect("subscriptions/listen");
            acknowledge(peer, &second);
            for listen in [&first, &second] {
                peer.notify("notifications/tools/list_changed", json!({"_meta": {ID: listen["id"]}}));
            }
            peer.expect("notifications/cancelled");
        });
        let first = client
            .listen(&all(), |_| panic!("a listener that panics, as the test wants"), CallOptions::default())
            .unwrap();
        let (callback, heard) = listener();
        let second = client.listen(&all(), callback, CallOptions::default()).unwrap();
        assert!(matches!(heard.recv_timeout(SOON).unwrap(), Heard::Notification(Notification::ToolsChanged)));
        drop((first, second));
        server.join().unwrap();
    }
}
