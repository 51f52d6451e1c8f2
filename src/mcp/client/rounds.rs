//! Requests whose answer may first be a question: at 2026-07-28 a server asks by answering `input_required`, and the client asks again
//! with what it was asked for (spec mcp 3.6).

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Client;
use super::envelope;
use super::error::Error;
use super::request::{Wait, cancelled};
use crate::jsonrpc::strict;
use crate::mcp::protocol::{Era, method};
use crate::os::cancel::Cancel;

/// How often a server may ask before the call is given up.
pub const ROUNDS_MAX: u32 = 10;

/// How many questions a server may ask at once.
const INPUTS_MAX: usize = 32;

/// How long is waited before asking again when the server asked nothing and only wants to be asked again; doubled each time.
const PAUSE: Duration = Duration::from_millis(50);

/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// What a result of 2026-07-28 says of itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Head<'a> {
    result_type: Option<String>,
    #[serde(borrow)]
    input_requests: Option<&'a RawValue>,
    #[serde(borrow)]
    request_state: Option<&'a RawValue>,
}

/// What kind of result it is.
pub(super) enum Kind<'a> {
    Complete,
    InputRequired(Head<'a>),
}

/// Tells a complete result from a question. A result that does not say is complete, one of a kind nobody knows is an error (trap T36).
pub(super) fn kind<'a>(method: &str, result: &'a RawValue) -> Result<Kind<'a>, Error> {
    let head: Head<'_> = serde_json::from_str(result.get())
        .map_err(|error| Error::protocol(method, format!("its result cannot be read: {error}")))?;
    match head.result_type.as_deref() {
        None | Some("complete") => Ok(Kind::Complete),
        Some("input_required") => Ok(Kind::InputRequired(head)),
        Some(other) => Err(Error::protocol(method, format!("a result of the unknown type {other:?}"))),
    }
}

impl Client {
    /// Sends a request that may be answered with questions, and answers them, until the result is complete. `params` is the text of an
    /// object.
    pub(super) fn rounds(&self, method: &str, params: &str, wait: &mut Wait<'_>) -> Result<Box<RawValue>, Error> {
        let mut pause = PAUSE;
        let mut asked_again = String::new();
        for _ in 0..=ROUNDS_MAX {
            let text = envelope::with_members(params, &asked_again);
            let result = self.exchange(method, Some(&text), wait)?;
            if self.era() == Era::Legacy {
                return Ok(result);
            }
            let head = match kind(method, &result)? {
                Kind::Complete => return Ok(result),
                Kind::InputRequired(head) => head,
            };
            if head.input_requests.is_none() && head.request_state.is_none() {
                return Err(Error::protocol(method, "it asks for input and says not which"));
            }
            asked_again = String::new();
            if let Some(requests) = head.input_requests {
                let responses = self.inputs(method, requests, wait.cancel)?;
                envelope::member(&mut asked_again, "inputResponses", &responses);
            } else {
                pause_for(pause, wait.cancel)?;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            if let Some(state) = head.request_state {
                if !state.get().starts_with('"') {
                    return Err(Error::protocol(method, "\"requestState\" must be a string"));
                }
                // As it was written: reading it and writing it anew could change it under its signature (trap T37).
                envelope::member(&mut asked_again, "requestState", state);
            }
        }
        Err(Error::protocol(method, format!("it asked for input more than {ROUNDS_MAX} times")))
    }

    /// Answers a server's questions, one after the other.
    fn inputs(&self, method: &str, requests: &RawValue, cancel: Option<&Cancel>) -> Result<Map<String, Value>, Error> {
        let broken = |why: String| Error::protocol(method, why);
        let requests =
            strict::object(requests.get()).map_err(|error| broken(format!("its questions cannot be read: {error}")))?;
        if requests.len() > INPUTS_MAX {
            return Err(broken(format!("it asks {} questions at once, more than {INPUTS_MAX}", requests.len())));
        }
        let cancel = cancel.cloned().unwrap_or_default();
        let mut responses = Map::new();
        for (key, request) in requests {
            let asked = match request.get("method").and_then(Value::as_str) {
                Some(asked @ (method::ELICITATION | method::SAMPLING | method::ROOTS_LIST)) => asked,
                Some(other) => return Err(broken(format!("it asks for {other:?}, which is no question"))),
                None => return Err(broken("a question without a method".to_owned())),
            };
            let params = request.get("params").and_then(|params| serde_json::value::to_raw_value(params).ok());
            let answer = self.shared().fulfil(asked, params.as_deref(), &cancel);
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let answer = answer.map_err(|error| Error::InputRefused {
                method: method.to_owned(),
                asked: asked.to_owned(),
                error,
            })?;
            let answer = serde_json::from_str(answer.get()).map_err(|error| Error::InputRefused {
                method: method.to_owned(),
                asked: asked.to_owned(),
                error: crate::jsonrpc::ErrorObject::new(crate::jsonrpc::code::INTERNAL_ERROR, error.to_string()),
            })?;
            responses.insert(key, answer);
        }
        Ok(responses)
    }
}

/// Waits, unless the switch is thrown.
fn pause_for(length: Duration, cancel: Option<&Cancel>) -> Result<(), Error> {
    let (thrown, _hook) = cancelled(cancel);
    match thrown.recv_timeout(length) {
        Ok(()) => Err(Error::Cancelled),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::super::testing::{Peer, client, declaring, map, modern};
    use super::super::{CallOptions, EraChoice, Handler, Options};
    use super::*;
    use crate::jsonrpc::ErrorObject;

    /// Says yes to whatever it is asked, once it has been told what to be asked.
    struct Agreeable(Mutex<Vec<Value>>);

    impl Handler for Agreeable {
        fn elicit(&self, params: &Map<String, Value>, _cancel: &Cancel) -> Result<Map<String, Value>, ErrorObject> {
            self.0.lock().unwrap().push(Value::Object(params.clone()));
            Ok(map(json!({"action": "accept", "content": {"name": "berth"}})))
        }

        fn sample(&self, _params: &Map<String, Value>, _cancel: &Cancel) -> Result<Map<String, Value>, ErrorObject> {
            Err(ErrorObject::new(-1, "the person said no"))
        }
    }

    fn agreeable(
        run: impl FnOnce(&mut Peer) + Send + 'static,
    ) -> (Client, Arc<Agreeable>, std::thread::JoinHandle<()>) {
        let handler = Arc::new(Agreeable(Mutex::default()));
        let options = Options {
            handler: Arc::<Agreeable>::clone(&handler),
            ..declaring(EraChoice::Modern, json!({"elicitation": {}, "sampling": {}}))
        };
        let (client, server) = client("2026-07-28", options, run);
        (client, handler, server)
    }

    fn call(client: &Client) -> Result<crate::mcp::types::CallResult, Error> {
        client.call_tool("t", &json!({"a": 1}), CallOptions::default())
    }

    fn done() -> Value {
        json!({"resultType": "complete", "content": [{"type": "text", "text": "done"}]})
    }

    /// Trap T37, and spec mcp 3.6: the same request with a new id, the answers, and the state byte for byte where there was one.
    #[test]
    fn a_question_is_answered_and_the_call_asked_again() {
        let (client, handler, server) = agreeable(|peer| {
            let first = peer.expect("tools/call");
            // A state whose text says more than its value: escapes that need not be, and one that is no character.
            let state = r#""A\u0041\/\ud800 \u00e9""#;
            let ask = r#"{"q1":{"method":"elicitation/create","params":{"message":"who?","mode":"form"}}}"#;
            peer.say(format!(
                r#"{{"jsonrpc":"2.0","id":{},"result":{{"resultType":"input_required","inputRequests":{ask},"requestState":{state}}}}}"#,
                first["id"]
            ));
            let line = peer.hear_line();
            assert!(line.contains(&format!(r#""requestState":{state}"#)), "{line}");
            let second: Value = serde_json::from_str(&line.replace("\\ud800", "")).unwrap();
            assert_ne!(second["id"], first["id"]);
            assert_eq!(second["method"], "tools/call");
            assert_eq!(
                second["params"]["inputResponses"],
                json!({"q1": {"action": "accept", "content": {"name": "berth"}}})
            );
            assert_eq!((&second["params"]["name"], &second["params"]["arguments"]), (&json!("t"), &json!({"a": 1})));
            assert_eq!(second["params"]["_meta"], first["params"]["_meta"]);
            // Another round, without a state: the old one does not come back.
            peer.answer(
                &second,
                json!({
                    "resultType": "input_required",
                    "inputRequests": {"q2": {"method": "elicitation/create", "params": {"message": "sure?"}}},
                }),
            );
            let third = peer.serve("tools/call", done());
            assert!(third["params"].get("requestState").is_none());
            assert_eq!(third["params"]["inputResponses"].as_object().unwrap().keys().collect::<Vec<_>>(), ["q2"]);
            // Neither leaks into the next call.
            let next = peer.serve("tools/call", done());
            assert!(next["params"].get("requestState").is_none() && next["params"].get("inputResponses").is_none());
        });
        assert!(!call(&client).unwrap().is_error);
        assert_eq!(handler.0.lock().unwrap()[0], json!({"message": "who?", "mode": "form"}));
        assert_eq!(handler.0.lock().unwrap().len(), 2);
        call(&client).unwrap();
        server.join().unwrap();
    }

    #[test]
    fn a_server_that_only_wants_to_be_asked_again_is_after_a_pause() {
        let (client, server) = modern(|peer| {
            let first = peer.expect("resources/read");
            peer.answer(&first, json!({"resultType": "input_required", "requestState": ""}));
            let second = peer.serve("resources/read", json!({"resultType": "complete", "contents": []}));
            assert_eq!(second["params"]["requestState"], "");
            assert!(second["params"].get("inputResponses").is_none());
            assert_eq!(second["params"]["uri"], "test://a");
        });
        assert!(client.read_resource("test://a", CallOptions::default()).unwrap().is_empty());
        server.join().unwrap();
    }

    #[test]
    fn a_server_that_never_has_enough_is_given_up() {
        let (client, server) = modern(|peer| {
            for _ in 0..=ROUNDS_MAX {
                let request = peer.expect("prompts/get");
                peer.answer(&request, json!({"resultType": "input_required", "inputRequests": {}}));
            }
            peer.hear()
        });
        let error = client.prompt("p", &Map::new(), CallOptions::default()).unwrap_err();
        assert!(error.to_string().contains("more than 10 times"), "{error}");
        drop(client);
        assert_eq!(server.join().unwrap(), Value::Null);
    }

    /// Trap T36.
    #[test]
    fn a_result_says_what_it_is_or_is_complete() {
        for (result, expected) in [
            (json!({"content": []}), Ok(())),
            (json!({"content": [], "resultType": null}), Ok(())),
            (json!({"content": [], "resultType": "complete"}), Ok(())),
            (json!({"content": [], "resultType": "hologram"}), Err("unknown type \"hologram\"")),
            (json!({"content": [], "resultType": 7}), Err("cannot be read")),
            (json!({"resultType": "task", "taskId": "1"}), Err("unknown type \"task\"")),
            (json!({"resultType": "complete", "_meta": {}}), Err("no content")),
            (json!({"resultType": "input_required"}), Err("says not which")),
            (json!({"resultType": "input_required", "requestState": 7}), Err("must be a string")),
            (json!({"resultType": "input_required", "inputRequests": []}), Err("cannot be read")),
            (json!({"resultType": "input_required", "inputRequests": {"a": {}}}), Err("without a method")),
            (json!({"resultType": "input_required", "inputRequests": {"a": {"method": "ping"}}}), Err("no question")),
            (
                json!({"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}),
                Err("does not offer"),
            ),
            (
                json!({"resultType": "input_required", "inputRequests": {"a": {"method": "sampling/createMessage", "params": {}}}}),
                Err("the person said no"),
            ),
        ] {
            let shown = result.to_string();
            let (client, _handler, server) = agreeable(move |peer| {
                peer.serve("tools/call", result);
            });
            match (call(&client), expected) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{shown}: {error}"),
                (outcome, _) => panic!("{shown}: {outcome:?}"),
            }
            server.join().unwrap();
        }
    }

    /// Trap T36: an older version has none of this, and its members are strangers.
    #[test]
    fn an_old_servers_result_is_not_asked_what_it_is() {
        let (client, server) = super::super::testing::legacy(|peer| {
            peer.serve("tools/call", json!({"content": [], "resultType": "hologram"}));
        });
        call(&client).unwrap();
        server.join().unwrap();
    }

    #[test]
    fn a_question_asked_twice_under_one_key_is_refused_and_a_switch_ends_the_rounds() {
        let (client, _handler, server) = agreeable(|peer| {
            let request = peer.expect("tools/call");
            let ask = r#"{"method":"elicitation/create","params":{}}"#;
            peer.say(format!(
                r#"{{"jsonrpc":"2.0","id":{},"result":{{"resultType":"input_required","inputRequests":{{"a":{ask},"a":{ask}}}}}}}"#,
                request["id"]
            ));
        });
        assert!(matches!(call(&client).unwrap_err(), Error::Protocol { .. }));
        server.join().unwrap();

        let cancel = Cancel::new();
        let thrower = cancel.clone();
        let (client, server) = modern(move |peer| {
            let request = peer.expect("tools/call");
            peer.answer(&request, json!({"resultType": "input_required", "requestState": "s"}));
            thrower.cancel();
        });
        let outcome = client.call_tool("t", &json!({}), CallOptions::cancelled_by(&cancel));
        assert!(matches!(outcome, Err(Error::Cancelled | Error::Closed(_))), "{outcome:?}");
        server.join().unwrap();
    }
}
