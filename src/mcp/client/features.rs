//! What a server offers: tools, resources, prompts, completion, log messages, one method each.

use std::collections::HashSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Client;
use super::error::Error;
use super::printable;
use super::request::CallOptions;
use super::rounds::{Kind, kind};
use crate::mcp::protocol::{Era, Level, Version, method};
use crate::mcp::types::{
    CallResult, Completion, Prompt, PromptResult, Resource, ResourceContents, ResourceTemplate, Tool,
};

/// How many pages a list may have; a server that never ends is not followed.
const LIST_MAX_PAGES: usize = 1000;

/// How many bytes the pages of a list may have together.
const LIST_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Where a completion is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Reference<'a> {
    /// In an argument of the prompt of this name.
    Prompt(&'a str),
    /// In a variable of the resource template of this URI.
    Resource(&'a str),
}

/// One page of any list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    #[serde(borrow)]
    tools: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    resources: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    resource_templates: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    prompts: Option<Vec<&'a RawValue>>,
    next_cursor: Option<String>,
}

impl<'a> Page<'a> {
    fn items(self, method: &str) -> Option<Vec<&'a RawValue>> {
        match method {
            method::TOOLS_LIST => self.tools,
            method::RESOURCES_LIST => self.resources,
            method::RESOURCE_TEMPLATES_LIST => self.resource_templates,
            _ => self.prompts,
        }
    }
}

impl Client {
    /// All tools, of all pages. One that does not fit the protocol is left out and logged.
    pub fn tools(&self, options: CallOptions<'_>) -> Result<Vec<Tool>, Error> {
        self.offered("tools")?;
        self.list(method::TOOLS_LIST, options)
    }

    /// Calls a tool. `arguments` is written as it is and must be an object; null stands for none. A tool that failed is a [`CallResult`]
    /// that says so; a tool that does not exist may be that or an error, as the server likes (trap T26).
    ///
    /// Without a limit unless `options` sets one.
    pub fn call_tool(
        &self,
        name: &str,
        arguments: &(impl Serialize + ?Sized),
        options: CallOptions<'_>,
    ) -> Result<CallResult, Error> {
        #[derive(Serialize)]
        struct Params<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            arguments: Option<&'a RawValue>,
        }
        self.offered("tools")?;
        let arguments = serde_json::value::to_raw_value(arguments)
            .map_err(|error| invalid(method::TOOLS_CALL, format!("its arguments have no JSON form: {error}")))?;
        let arguments = match arguments.get().as_bytes().first() {
            Some(b'{') => Some(&*arguments),
            Some(b'n') => None,
            _ => return Err(invalid(method::TOOLS_CALL, "its arguments are no object")),
        };
        let params = self.params(method::TOOLS_CALL, &Params { name, arguments })?;
        let result = self.rounds(method::TOOLS_CALL, &params, &mut options.wait(None))?;
        called(&result)
    }

    /// All resources, of all pages.
    pub fn resources(&self, options: CallOptions<'_>) -> Result<Vec<Resource>, Error> {
        self.offered("resources")?;
        self.list(method::RESOURCES_LIST, options)
    }

    /// All families of resources, of all pages.
    pub fn resource_templates(&self, options: CallOptions<'_>) -> Result<Vec<ResourceTemplate>, Error> {
        self.offered("resources")?;
        self.list(method::RESOURCE_TEMPLATES_LIST, options)
    }

    /// Reads a resource; the URI is sent byte for byte. [`Error::is_missing_resource`] tells one that does not exist.
    pub fn read_resource(&self, uri: &str, options: CallOptions<'_>) -> Result<Vec<ResourceContents>, Error> {
        #[derive(Serialize)]
        struct Params<'a> {
            uri: &'a str,
        }
        #[derive(Deserialize)]
        struct Body {
            contents: Vec<ResourceContents>,
        }
        self.offered("resources")?;
        let params = self.params(method::RESOURCES_READ, &Params { uri })?;
        let mut wait = options.wait(Some(self.timeouts.request));
        let result = self.rounds(method::RESOURCES_READ, &params, &mut wait)?;
        read::<Body>(method::RESOURCES_READ, &result).map(|body| body.contents)
    }

    /// Asks to be told of a resource's changes, through [`super::Handler::notified`]. Before 2026-07-28, which has [`Client::listen`].
    pub fn subscribe(&self, uri: &str, options: CallOptions<'_>) -> Result<(), Error> {
        self.subscription(method::RESOURCES_SUBSCRIBE, uri, options)
    }

    /// Asks no longer to be told of a resource's changes.
    pub fn unsubscribe(&self, uri: &str, options: CallOptions<'_>) -> Result<(), Error> {
        self.subscription(method::RESOURCES_UNSUBSCRIBE, uri, options)
    }

    fn subscription(&self, method: &'static str, uri: &str, options: CallOptions<'_>) -> Result<(), Error> {
        #[derive(Serialize)]
        struct Params<'a> {
            uri: &'a str,
        }
        self.legacy_only(method, "subscriptions/listen")?;
        let resources = self.server().capabilities.get("resources");
        if resources.and_then(|resources| resources.get("subscribe")) != Some(&Value::Bool(true)) {
            return Err(Error::NotOffered { capability: "resources.subscribe" });
        }
        let params = self.params(method, &Params { uri })?;
        self.exchange(method, Some(&params), &mut options.wait(Some(self.timeouts.request))).map(drop)
    }

    /// All prompts, of all pages.
    pub fn prompts(&self, options: CallOptions<'_>) -> Result<Vec<Prompt>, Error> {
        self.offered("prompts")?;
        self.list(method::PROMPTS_LIST, options)
    }

    /// Gets a prompt, filled with arguments.
    pub fn prompt(
        &self,
        name: &str,
        arguments: &Map<String, Value>,
        options: CallOptions<'_>,
    ) -> Result<PromptResult, Error> {
        #[derive(Serialize)]
        struct Params<'a> {
            name: &'a str,
            #[serde(skip_serializing_if = "Map::is_empty")]
            arguments: &'a Map<String, Value>,
        }
        self.offered("prompts")?;
        let params = self.params(method::PROMPTS_GET, &Params { name, arguments })?;
        let mut wait = options.wait(Some(self.timeouts.request));
        let result = self.rounds(method::PROMPTS_GET, &params, &mut wait)?;
        read(method::PROMPTS_GET, &result)
    }

    /// What may stand in an argument called `argument` that begins with `value`. `context` is the other arguments that are known already;
    /// a server before 2025-06-18 is not told of them.
    pub fn complete(
        &self,
        reference: Reference<'_>,
        argument: &str,
        value: &str,
        context: &Map<String, Value>,
        options: CallOptions<'_>,
    ) -> Result<Completion, Error> {
        #[derive(Deserialize)]
        struct Body {
            completion: Completion,
        }
        // The oldest version has completion and no capability for it (spec mcp 2.4).
        if self.version() > Version::V2024_11_05 {
            self.offered("completions")?;
        }
        let reference = match reference {
            Reference::Prompt(name) => serde_json::json!({ "type": "ref/prompt", "name": name }),
            Reference::Resource(uri) => serde_json::json!({ "type": "ref/resource", "uri": uri }),
        };
        let mut params = serde_json::json!({ "ref": reference, "argument": { "name": argument, "value": value } });
        if self.version() >= Version::V2025_06_18
            && !context.is_empty()
            && let Some(params) = params.as_object_mut()
        {
            params.insert("context".to_owned(), serde_json::json!({ "arguments": context }));
        }
        let mut wait = options.wait(Some(self.timeouts.request));
        let result = self.exchange(method::COMPLETE, Some(&params.to_string()), &mut wait)?;
        self.complete_result(method::COMPLETE, &result)?;
        read::<Body>(method::COMPLETE, &result).map(|body| body.completion)
    }

    /// Says from which level on the server's log messages are wanted. Before 2026-07-28 the server is asked to change its level; from then on
    /// every later request says it.
    pub fn set_level(&self, level: Level, options: CallOptions<'_>) -> Result<(), Error> {
        #[derive(Serialize)]
        struct Params {
            level: Level,
        }
        self.offered("logging")?;
        match self.era() {
            Era::Modern => {
                *self.shared().level.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(level);
                Ok(())
            }
            Era::Legacy => {
                let params = self.params(method::SET_LEVEL, &Params { level })?;
                let mut wait = options.wait(Some(self.timeouts.request));
                self.exchange(method::SET_LEVEL, Some(&params), &mut wait).map(drop)
            }
        }
    }

    /// Asks for a sign of life: `ping`, or at 2026-07-28, which has none, `server/discover`.
    pub fn ping(&self, options: CallOptions<'_>) -> Result<(), Error> {
        let method = match self.era() {
            Era::Legacy => method::PING,
            Era::Modern => method::DISCOVER,
        };
        self.exchange(method, None, &mut options.wait(Some(self.timeouts.request))).map(drop)
    }

    /// All items of a list, page by page.
    fn list<T: DeserializeOwned>(&self, method: &'static str, options: CallOptions<'_>) -> Result<Vec<T>, Error> {
        #[derive(Serialize)]
        struct Params<'a> {
            cursor: &'a str,
        }
        let mut wait = options.wait(Some(self.timeouts.request));
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        let mut seen = HashSet::new();
        let mut bytes = 0usize;
        for _ in 0..LIST_MAX_PAGES {
            let params = cursor.as_deref().map(|cursor| self.params(method, &Params { cursor })).transpose()?;
            let result = self.exchange(method, params.as_deref(), &mut wait)?;
            self.complete_result(method, &result)?;
            bytes = bytes.saturating_add(result.get().len());
            if bytes > LIST_MAX_BYTES {
                return Err(Error::protocol(method, format!("its list has more than {LIST_MAX_BYTES} bytes")));
            }
            let page: Page<'_> = read(method, &result)?;
            let next = page.next_cursor.clone();
            let listed = page.items(method).ok_or_else(|| Error::protocol(method, "its result has no list"))?;
            for item in listed {
                match serde_json::from_str(item.get()) {
                    Ok(item) => items.push(item),
                    Err(error) => log::warn!(
                        "an MCP server's {method} has an entry that does not fit, left out ({error}): {}",
                        printable::line(item.get().as_bytes(), 100)
                    ),
                }
            }
            // The empty string is a cursor like any other (trap T39).
            let Some(next) = next else { return Ok(items) };
            if !seen.insert(next.clone()) {
                return Err(Error::protocol(method, "its list never ends: a cursor came twice"));
            }
            cursor = Some(next);
        }
        Err(Error::protocol(method, format!("its list has more than {LIST_MAX_PAGES} pages")))
    }

    /// At 2026-07-28 a result says what it is, and most methods have complete ones alone.
    fn complete_result(&self, method: &str, result: &RawValue) -> Result<(), Error> {
        if self.era() == Era::Legacy {
            return Ok(());
        }
        match kind(method, result)? {
            Kind::Complete => Ok(()),
            Kind::InputRequired(_) => Err(Error::protocol(method, "it asks for input, which this method may not")),
        }
    }

    fn offered(&self, capability: &'static str) -> Result<(), Error> {
        if self.server().capabilities.contains_key(capability) { Ok(()) } else { Err(Error::NotOffered { capability }) }
    }
}

/// Reads a result.
fn read<'a, T: Deserialize<'a>>(method: &str, result: &'a RawValue) -> Result<T, Error> {
    serde_json::from_str(result.get())
        .map_err(|error| Error::protocol(method, format!("its result cannot be read: {error}")))
}

/// Reads what a tool answered. Without any of its members it is another kind of result, not an empty answer (trap T36).
fn called(result: &RawValue) -> Result<CallResult, Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Present<'a> {
        #[serde(borrow)]
        content: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        structured_content: Option<&'a RawValue>,
        #[serde(borrow)]
        is_error: Option<&'a RawValue>,
    }
    fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
        <&RawValue>::deserialize(deserializer).map(Some)
    }
    let there: Present<'_> = read(method::TOOLS_CALL, result)?;
    if there.content.is_none() && there.structured_content.is_none() && there.is_error.is_none() {
        return Err(Error::protocol(method::TOOLS_CALL, "its result has no content"));
    }
    read(method::TOOLS_CALL, result)
}

fn invalid(method: &str, why: impl Into<String>) -> Error {
    Error::InvalidParams { method: method.to_owned(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::EraChoice;
    use super::super::testing::{legacy, map, modern, options, pair, script};
    use super::*;

    fn tool(name: &str) -> Value {
        json!({"name": name, "inputSchema": {"type": "object"}})
    }

    /// Trap T39: the empty string is a cursor; a list that goes in circles is given up.
    #[test]
    fn all_pages_are_fetched_and_a_list_that_goes_in_circles_is_not() {
        let (client, server) = legacy(|peer| {
            let first = peer.serve("tools/list", json!({"tools": [tool("a")], "nextCursor": ""}));
            assert!(first.get("params").is_none());
            let second = peer.serve("tools/list", json!({"tools": [], "nextCursor": "é\"2"}));
            assert_eq!(second["params"], json!({"cursor": ""}));
            let third = peer.serve("tools/list", json!({"tools": [tool("b")], "nextCursor": null}));
            assert_eq!(third["params"], json!({"cursor": "é\"2"}));
            for cursor in ["x", "y", "x"] {
                peer.serve("prompts/list", json!({"prompts": [], "nextCursor": cursor}));
            }
            peer.serve("resources/list", json!({"resources": [], "nextCursor": 7}));
            peer.serve("resources/templates/list", json!({"resources": []}));
        });
        let names: Vec<String> =
            client.tools(CallOptions::default()).unwrap().into_iter().map(|tool| tool.name).collect();
        assert_eq!(names, ["a", "b"]);
        for error in [
            client.prompts(CallOptions::default()).unwrap_err(),
            client.resources(CallOptions::default()).unwrap_err(),
            client.resource_templates(CallOptions::default()).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Protocol { .. }), "{error}");
        }
        server.join().unwrap();
    }

    #[test]
    fn a_list_without_an_end_is_not_followed_for_ever() {
        let (client, server) = legacy(|peer| {
            for page in 0..LIST_MAX_PAGES {
                peer.serve("tools/list", json!({"tools": [], "nextCursor": page.to_string()}));
            }
        });
        let error = client.tools(CallOptions::default()).unwrap_err();
        assert!(error.to_string().contains("more than 1000 pages"), "{error}");
        server.join().unwrap();
    }

    #[test]
    fn an_entry_that_does_not_fit_does_not_cost_the_others() {
        let (client, server) = legacy(|peer| {
            let deep = json!({"name": "x", "inputSchema": {"$defs": {"b": 1, "a": [1.0]}, "type": "object"}, "annotations": {"readOnlyHint": true}});
            peer.serve("tools/list", json!({"tools": [{"name": "no schema"}, 7, deep, tool("../odd name/é")]}));
        });
        let tools = client.tools(CallOptions::default()).unwrap();
        assert_eq!(tools.len(), 2);
        assert_eq!(tools[0].input_schema.get(), r#"{"$defs":{"a":[1.0],"b":1},"type":"object"}"#);
        assert_eq!(tools[1].name, "../odd name/é");
        server.join().unwrap();
    }

    /// Trap T40: odd hints about caching, which this client does not do, cost nothing.
    #[test]
    fn odd_cache_hints_cost_nothing() {
        for (ttl, scope) in
            [(json!(-1), json!("")), (json!("x"), json!(7)), (json!(null), json!(null)), (json!(1e300), json!("other"))]
        {
            let (client, server) = modern(move |peer| {
                peer.serve(
                    "tools/list",
                    json!({"resultType": "complete", "tools": [tool("a")], "ttlMs": ttl, "cacheScope": scope}),
                );
                peer.serve(
                    "resources/read",
                    json!({"resultType": "complete", "contents": [], "ttlMs": ttl, "cacheScope": scope}),
                );
            });
            assert_eq!(client.tools(CallOptions::default()).unwrap().len(), 1);
            client.read_resource("test://a", CallOptions::default()).unwrap();
            server.join().unwrap();
        }
    }

    /// Traps T26, T35, T36.
    #[test]
    fn a_tools_answer_is_kept_as_it_came() {
        for (result, expected) in [
            (json!({"content": [{"type": "text", "text": "a"}], "isError": true}), Some((1, None, true))),
            (json!({"content": [], "structuredContent": null}), Some((0, Some(Value::Null), false))),
            (json!({"content": [{"type": "hologram"}]}), Some((1, None, false))),
            (json!({"structuredContent": {"a": 1}}), Some((0, Some(json!({"a": 1})), false))),
            (json!({"isError": true}), Some((0, None, true))),
            (json!({"_meta": {}}), None),
            (json!({"task": {"taskId": "1"}}), None),
            (json!({"content": 7}), None),
        ] {
            let shown = result.to_string();
            let (client, server) = legacy(move |peer| {
                peer.serve("tools/call", result);
            });
            let answer = client.call_tool("t", &json!({}), CallOptions::default());
            match (answer, expected) {
                (Ok(answer), Some(expected)) => {
                    assert_eq!((answer.content.len(), answer.structured_content, answer.is_error), expected, "{shown}");
                }
                (Err(Error::Protocol { .. }), None) => {}
                (answer, _) => panic!("{shown}: {answer:?}"),
            }
            server.join().unwrap();
        }
    }

    #[test]
    fn arguments_are_sent_as_they_were_written_or_not_at_all() {
        let (client, server) = legacy(|peer| {
            let line = peer.hear_line();
            assert!(line.contains(r#""params":{"name":"t","arguments":{"b":1.0,  "a":1}}"#), "{line}");
            peer.answer(&serde_json::from_str(&line).unwrap(), json!({"content": []}));
            let request = peer.serve("tools/call", json!({"content": []}));
            assert_eq!(request["params"], json!({"name": "t"}));
        });
        let raw = RawValue::from_string("{\"b\":1.0,\n \"a\":1}".into()).unwrap();
        client.call_tool("t", &raw, CallOptions::default()).unwrap();
        client.call_tool("t", &Value::Null, CallOptions::default()).unwrap();
        let error = client.call_tool("t", &[1], CallOptions::default()).unwrap_err();
        assert!(matches!(error, Error::InvalidParams { .. }));
        server.join().unwrap();
    }

    /// Trap T27.
    #[test]
    fn a_resource_is_read_by_its_exact_uri_and_a_missing_one_is_known() {
        let (client, server) = legacy(|peer| {
            let request = peer.serve(
                "resources/read",
                json!({"contents": [{"uri": "TEST://A/%7e?", "text": "x"}, {"uri": "b", "blob": "aGk="}]}),
            );
            assert_eq!(request["params"], json!({"uri": "TEST://A/%7e?"}));
            for code in [-32002, -32602] {
                let request = peer.expect("resources/read");
                peer.refuse(&request, code, json!({"uri": "test://none"}));
            }
        });
        let contents = client.read_resource("TEST://A/%7e?", CallOptions::default()).unwrap();
        assert_eq!(
            (contents.len(), contents[0].text.as_deref(), contents[1].blob.as_deref()),
            (2, Some("x"), Some("aGk="))
        );
        for _ in 0..2 {
            assert!(client.read_resource("test://none", CallOptions::default()).unwrap_err().is_missing_resource());
        }
        server.join().unwrap();
    }

    #[test]
    fn prompts_and_completions_come_as_they_are() {
        let (client, server) = legacy(|peer| {
            let request = peer.serve(
                "prompts/get",
                json!({"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}]}),
            );
            assert_eq!(request["params"], json!({"name": "p", "arguments": {"who": "me"}}));
            let request = peer.serve("completion/complete", json!({"completion": {"values": ["ab"], "hasMore": true}}));
            assert_eq!(
                request["params"],
                json!({
                    "ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "who", "value": "a"}, "context": {"arguments": {"x": "y"}},
                })
            );
        });
        let prompt = client.prompt("p", &map(json!({"who": "me"})), CallOptions::default()).unwrap();
        assert_eq!(prompt.messages[0].role, "user");
        let context = map(json!({"x": "y"}));
        let completion = client.complete(Reference::Prompt("p"), "who", "a", &context, CallOptions::default()).unwrap();
        assert_eq!((completion.values, completion.has_more), (vec!["ab".to_owned()], Some(true)));
        server.join().unwrap();

        // The oldest version has completion without a capability, and no context.
        let (streams, peer) = pair();
        let server = script(peer, |peer| {
            peer.serve("initialize", json!({"protocolVersion": "2024-11-05", "capabilities": {}}));
            peer.expect("notifications/initialized");
            let request = peer.serve("completion/complete", json!({"completion": {"values": []}}));
            assert!(request["params"].get("context").is_none());
        });
        let client = Client::connect(streams, options(EraChoice::Legacy)).unwrap();
        client.complete(Reference::Resource("test://{a}"), "a", "", &context, CallOptions::default()).unwrap();
        for error in [
            client.tools(CallOptions::default()).unwrap_err(),
            client.call_tool("t", &json!({}), CallOptions::default()).unwrap_err(),
            client.resources(CallOptions::default()).unwrap_err(),
            client.prompts(CallOptions::default()).unwrap_err(),
            client.set_level(Level::Info, CallOptions::default()).unwrap_err(),
            client.subscribe("test://a", CallOptions::default()).unwrap_err(),
        ] {
            assert!(matches!(error, Error::NotOffered { .. }), "{error}");
        }
        server.join().unwrap();
    }

    #[test]
    fn the_old_way_subscribes_sets_levels_and_pings() {
        let (client, server) = legacy(|peer| {
            assert_eq!(peer.serve("resources/subscribe", json!({}))["params"], json!({"uri": "test://a"}));
            assert_eq!(peer.serve("resources/unsubscribe", json!({}))["params"], json!({"uri": "test://a"}));
            assert_eq!(peer.serve("logging/setLevel", json!({}))["params"], json!({"level": "warning"}));
            assert!(peer.serve("ping", json!({})).get("params").is_none());
        });
        client.subscribe("test://a", CallOptions::default()).unwrap();
        client.unsubscribe("test://a", CallOptions::default()).unwrap();
        client.set_level(Level::Warning, CallOptions::default()).unwrap();
        client.ping(CallOptions::default()).unwrap();
        let error = client.listen(&Default::default(), |_| (), CallOptions::default()).err().unwrap();
        assert!(matches!(error, Error::NotInVersion { .. }), "{error}");
        server.join().unwrap();
    }

    #[test]
    fn the_modern_way_says_its_level_in_every_request_and_has_no_ping() {
        let (client, server) = modern(|peer| {
            let level = "io.modelcontextprotocol/logLevel";
            let complete = json!({"resultType": "complete", "tools": []});
            assert!(peer.serve("tools/list", complete.clone())["params"]["_meta"].get(level).is_none());
            assert_eq!(peer.serve("tools/list", complete)["params"]["_meta"][level], "error");
            peer.serve("server/discover", json!({"resultType": "complete"}));
            peer.serve("tools/list", json!({"resultType": "input_required", "requestState": "x"}));
        });
        client.tools(CallOptions::default()).unwrap();
        client.set_level(Level::Error, CallOptions::default()).unwrap();
        client.tools(CallOptions::default()).unwrap();
        client.ping(CallOptions::default()).unwrap();
        assert!(matches!(client.tools(CallOptions::default()), Err(Error::Protocol { .. })));
        assert!(matches!(client.subscribe("test://a", CallOptions::default()), Err(Error::NotInVersion { .. })));
        server.join().unwrap();
    }
}
