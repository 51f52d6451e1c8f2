//! The client library against the fixture and against berth, in both eras: what one side of the `mcp` room writes, the other reads.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth::jsonrpc::{ErrorObject, code};
use berth::mcp::client::{
    CallOptions, ChildServer, Client, Ended, EraChoice, Error, Handler, Heard, Launch, Notification, Options, Progress,
    Reference, Root, Subscriptions,
};
use berth::mcp::protocol::{Era, Level, Version};
use berth::mcp::types::{CallResult, Content, Implementation};
use berth::os::cancel::Cancel;
use protocol_tests::directory::Directory;
use protocol_tests::server::DEADLINE;
use protocol_tests::{procfs, program};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

const ERAS: [EraChoice; 2] = [EraChoice::Legacy, EraChoice::Modern];

/// Answers what it is asked, and passes on what it is told.
struct Person {
    told: Mutex<Sender<Notification>>,
}

impl Handler for Person {
    fn roots(&self, _cancel: &Cancel) -> Result<Vec<Root>, ErrorObject> {
        Ok(vec![Root { uri: "file:///somewhere".to_owned(), name: Some("Somewhere".to_owned()) }])
    }

    fn sample(&self, params: &Map<String, Value>, _cancel: &Cancel) -> Result<Map<String, Value>, ErrorObject> {
        let asked = params["messages"][0]["content"]["text"].as_str().unwrap_or_default();
        Ok(map(
            json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": format!("an answer to {asked}")}}),
        ))
    }

    fn elicit(&self, params: &Map<String, Value>, _cancel: &Cancel) -> Result<Map<String, Value>, ErrorObject> {
        let properties = params["requestedSchema"]["properties"].as_object().cloned().unwrap_or_default();
        let content: Map<String, Value> = properties
            .into_iter()
            .map(|(name, property)| {
                let value = match property["type"].as_str() {
                    Some("boolean") => json!(true),
                    _ => json!(format!("my {name}")),
                };
                (name, value)
            })
            .collect();
        Ok(map(json!({"action": "accept", "content": content})))
    }

    fn notified(&self, notification: Notification) {
        let _ = self.told.lock().unwrap().send(notification);
    }
}

fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn options(era: EraChoice) -> (Options, Receiver<Notification>) {
    let (told, heard) = channel();
    let info = Implementation { name: "client test".to_owned(), version: "1".to_owned(), title: None };
    let capabilities = map(json!({"roots": {}, "sampling": {}, "elicitation": {"form": {}}}));
    let handler = Arc::new(Person { told: Mutex::new(told) });
    (Options { capabilities, era, handler, ..Options::new(info) }, heard)
}

/// A client of the fixture.
fn fixture(era: EraChoice) -> (Client, Receiver<Notification>) {
    let (options, heard) = options(era);
    let server = ChildServer::spawn(&Launch::new([program::fixture()])).unwrap();
    (Client::connect(server, options).unwrap(), heard)
}

fn text(result: &CallResult) -> &str {
    match result.content.first() {
        Some(Content::Text { text }) => text,
        other => panic!("no text: {other:?}"),
    }
}

fn call(client: &Client, tool: &str, arguments: Value) -> CallResult {
    client.call_tool(tool, &arguments, CallOptions::default()).unwrap()
}

fn with_limit(limit: Duration) -> CallOptions<'static> {
    CallOptions { timeout: Some(limit), ..CallOptions::default() }
}

/// Receives what comes within the deadline.
fn next<T>(heard: &Receiver<T>) -> T {
    heard.recv_timeout(DEADLINE).expect("it comes in time")
}

#[test]
fn the_era_is_found_out_by_asking() {
    for (arguments, version) in [(&[][..], Version::V2026_07_28), (&["--mcp", "legacy"], Version::V2025_11_25)] {
        let mut argv = vec![program::fixture().into_os_string()];
        argv.extend(arguments.iter().map(Into::into));
        let server = ChildServer::spawn(&Launch::new(argv)).unwrap();
        let client = Client::connect(server, options(EraChoice::Auto).0).unwrap();
        assert_eq!(client.version(), version);
        assert_eq!(client.server().info.as_ref().unwrap().name, "fixture");
        assert_eq!(text(&call(&client, "greet", json!({"name": "you"}))), "Hello, you!");
    }
}

#[test]
fn a_server_without_the_modern_era_is_not_spoken_to_in_it() {
    let server =
        ChildServer::spawn(&Launch::new([program::fixture().as_os_str(), "--mcp".as_ref(), "legacy".as_ref()]));
    let error = Client::connect(server.unwrap(), options(EraChoice::Modern).0).err().unwrap();
    assert!(!error.to_string().is_empty(), "{error}");
}

#[test]
fn everything_is_listed_over_all_pages() {
    for era in ERAS {
        let (client, _heard) = fixture(era);
        let tools = client.tools(CallOptions::default()).unwrap();
        assert_eq!(tools.first().unwrap().name, "test_simple_text");
        let schema = tools.iter().find(|tool| tool.name == "json_schema_2020_12_tool").unwrap().input_schema.get();
        // Every keyword, in the order in which it was written.
        assert!(
            schema.starts_with(r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","$defs":"#)
        );
        assert!(schema.ends_with(r#""else":{"required":["email"]},"additionalProperties":false}"#), "{schema}");
        let echoed =
            call(&client, "json_schema_echo", json!({"schema": serde_json::from_str::<Value>(schema).unwrap()}));
        assert_eq!(
            serde_json::from_str::<Value>(text(&echoed)).unwrap(),
            serde_json::from_str::<Value>(schema).unwrap()
        );
        // T39: three pages, the second behind the empty cursor.
        let templates = client.resource_templates(CallOptions::default()).unwrap();
        let names: Vec<&str> = templates.iter().map(|template| template.uri_template.as_str()).collect();
        assert_eq!(names, ["test://template/{id}/data", "test://second/{id}", "test://third/{id}"]);
        assert_eq!(client.resources(CallOptions::default()).unwrap().len(), 3);
        assert_eq!(client.prompts(CallOptions::default()).unwrap().len(), 5);
        client.ping(CallOptions::default()).unwrap();
    }
}

#[test]
fn tools_answer_with_every_kind_of_content() {
    for era in ERAS {
        let (client, _heard) = fixture(era);
        assert!(
            matches!(&call(&client, "test_image_content", json!({})).content[..], [Content::Image { mime_type, .. }] if mime_type == "image/png")
        );
        assert!(
            matches!(&call(&client, "test_audio_content", json!(null)).content[..], [Content::Audio { mime_type, .. }] if mime_type == "audio/wav")
        );
        assert!(
            matches!(&call(&client, "test_multiple_content_types", json!({})).content[..], [Content::Text { .. }, Content::Image { .. }, Content::Resource { resource }] if resource.uri == "test://mixed-content-resource")
        );
        assert!(
            matches!(&call(&client, "test_resource_link", json!({})).content[..], [Content::ResourceLink(link)] if link.uri == "test://static-text")
        );
        // T35: an explicit null is a value where the version has it.
        let null = call(&client, "test_structured_content", json!({"kind": "null"})).structured_content;
        assert_eq!(null, (era == EraChoice::Modern).then_some(Value::Null));
        let object = call(&client, "test_structured_content", json!({"kind": "object"})).structured_content;
        assert_eq!(object, Some(json!({"kind": "object"})));
        assert!(call(&client, "test_error_handling", json!({})).is_error);
    }
}

#[test]
fn errors_come_with_their_codes() {
    for era in ERAS {
        let (client, _heard) = fixture(era);
        let codes = |result: Result<CallResult, Error>| result.unwrap_err().rpc().unwrap().code;
        assert_eq!(codes(client.call_tool("no_such_tool", &json!({}), CallOptions::default())), code::INVALID_PARAMS);
        assert_eq!(codes(client.call_tool("test_panic", &json!({}), CallOptions::default())), code::INTERNAL_ERROR);
        // T27: the code differs between the eras, what it means does not.
        let missing = client.read_resource("test://no-such", CallOptions::default()).unwrap_err();
        assert!(missing.is_missing_resource(), "{missing}");
        let unknown = client.request("com.example/fixture/no-such", None, CallOptions::default()).unwrap_err();
        assert_eq!(unknown.rpc().unwrap().code, code::METHOD_NOT_FOUND);
        // And the session goes on.
        assert_eq!(text(&call(&client, "greet", json!({"name": "you"}))), "Hello, you!");
    }
}

#[test]
fn resources_prompts_and_completions_are_read() {
    for era in ERAS {
        let (client, _heard) = fixture(era);
        let contents = client.read_resource("test://template/123/data", CallOptions::default()).unwrap();
        assert!(contents[0].text.as_ref().unwrap().contains("123"));
        assert!(client.read_resource("test://static-binary", CallOptions::default()).unwrap()[0].blob.is_some());
        let arguments = map(json!({"arg1": "one", "arg2": "two"}));
        let prompt = client.prompt("test_prompt_with_arguments", &arguments, CallOptions::default()).unwrap();
        assert_eq!(prompt.messages[0].content, Content::text("Prompt with arguments: arg1='one', arg2='two'"));
        let completion = client
            .complete(
                Reference::Prompt("test_prompt_with_arguments"),
                "arg1",
                "pari",
                &Map::new(),
                CallOptions::default(),
            )
            .unwrap();
        assert_eq!(completion.values, ["paris"]);
    }
}

#[test]
fn progress_comes_in_order_and_before_the_answer() {
    for era in ERAS {
        let (client, _heard) = fixture(era);
        let mut seen = Vec::new();
        let mut take = |progress: Progress| seen.push((progress.progress, progress.total));
        let options = CallOptions { progress: Some(&mut take), ..CallOptions::default() };
        client.call_tool("test_tool_with_progress", &json!({}), options).unwrap();
        assert_eq!(seen, [(0.0, Some(100.0)), (50.0, Some(100.0)), (100.0, Some(100.0))]);
    }
}

#[test]
fn a_thrown_switch_and_a_limit_stop_the_handler() {
    for era in ERAS {
        let (client, _heard) = fixture(era);
        let cancel = Cancel::new();
        // Thrown by the progress that says the call has begun.
        let switch = cancel.clone();
        let mut begun = move |_: Progress| switch.cancel();
        let options = CallOptions { progress: Some(&mut begun), ..CallOptions::cancelled_by(&cancel) };
        let error = client.call_tool("test_wait_for_cancel", &json!({}), options).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
        assert_eq!(text(&call(&client, "test_count_cancelled", json!({"at_least": 1}))), "1");
        let error =
            client.call_tool("test_wait_for_cancel", &json!({}), with_limit(Duration::from_millis(50))).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        assert_eq!(text(&call(&client, "test_count_cancelled", json!({"at_least": 2}))), "2");
    }
}

#[test]
fn a_server_with_a_handshake_asks_and_is_answered() {
    let (client, _heard) = fixture(EraChoice::Legacy);
    let answer = call(&client, "test_sampling", json!({"prompt": "what?"}));
    assert_eq!(text(&answer), "LLM response: an answer to what?");
    let answer = call(&client, "test_elicitation", json!({"message": "who?"}));
    assert!(text(&answer).starts_with("User response: action=accept"), "{answer:?}");
    assert!(text(&answer).contains("my username"), "{answer:?}");
}

#[test]
fn a_modern_server_asks_in_its_result_and_is_asked_again() {
    let (client, _heard) = fixture(EraChoice::Modern);
    for (tool, words) in [
        ("test_input_required_result_elicitation", "Hello, my name!"),
        ("test_input_required_result_sampling", "an answer to What is the capital"),
        ("test_input_required_result_list_roots", "Somewhere"),
        // T37: the state comes back byte for byte, or the fixture refuses it.
        ("test_input_required_result_request_state", "state-ok"),
        ("test_input_required_result_tampered_state", "state-ok"),
        ("test_input_required_result_multiple_inputs", "my name, of Somewhere"),
        ("test_input_required_result_multi_round", "my name likes my color"),
        ("test_input_required_result_capabilities", "can answer"),
    ] {
        let answer = call(&client, tool, json!({}));
        assert!(text(&answer).contains(words), "{tool}: {answer:?}");
    }
    let prompt = client.prompt("test_input_required_result_prompt", &Map::new(), CallOptions::default()).unwrap();
    assert_eq!(prompt.messages[0].content, Content::text("Prompt with context: my context"));
}

#[test]
fn what_a_client_did_not_declare_is_not_asked_of_it() {
    let (mut options, _heard) = options(EraChoice::Modern);
    options.capabilities.clear();
    let server = ChildServer::spawn(&Launch::new([program::fixture()])).unwrap();
    let client = Client::connect(server, options).unwrap();
    let error = client.call_tool("test_missing_capability", &json!({}), CallOptions::default()).unwrap_err();
    // T28: the names of what is needed, from an object.
    assert_eq!(error.required_capabilities().unwrap().keys().collect::<Vec<_>>(), ["sampling"]);
}

#[test]
fn changes_are_told_with_a_handshake() {
    let (client, heard) = fixture(EraChoice::Legacy);
    client.set_level(Level::Info, CallOptions::default()).unwrap();
    call(&client, "test_logging_tool", json!({}));
    assert!(matches!(next(&heard), Notification::Log { level: Level::Info, .. }));
    call(&client, "test_trigger_tool_change", json!({}));
    assert!(matches!(next(&heard), Notification::ToolsChanged));
    client.subscribe("test://watched-resource", CallOptions::default()).unwrap();
    call(&client, "test_trigger_resource_change", json!({}));
    assert!(matches!(next(&heard), Notification::ResourceUpdated { uri } if uri == "test://watched-resource"));
    assert!(matches!(next(&heard), Notification::ResourcesChanged));
    client.unsubscribe("test://watched-resource", CallOptions::default()).unwrap();
    call(&client, "test_trigger_resource_change", json!({}));
    assert!(matches!(next(&heard), Notification::ResourcesChanged));
}

#[test]
fn changes_are_listened_for_in_the_modern_era() {
    let (client, _heard) = fixture(EraChoice::Modern);
    let (told, heard) = channel();
    let wanted =
        Subscriptions { tools: true, uris: vec!["test://watched-resource".to_owned()], ..Subscriptions::default() };
    let tell = move |event| {
        let _ = told.send(event);
    };
    let listening = client.listen(&wanted, tell, CallOptions::default()).unwrap();
    assert_eq!(listening.honoured()["toolsListChanged"], true);
    call(&client, "test_trigger_prompt_change", json!({}));
    call(&client, "test_trigger_tool_change", json!({}));
    assert!(matches!(next(&heard), Heard::Notification(Notification::ToolsChanged)));
    call(&client, "test_trigger_resource_change", json!({}));
    assert!(matches!(next(&heard), Heard::Notification(Notification::ResourceUpdated { .. })));
    drop(listening);
    call(&client, "test_trigger_tool_change", json!({}));
    client.close();
    assert!(heard.try_recv().is_err(), "told after it was dropped");
}

#[test]
fn a_custom_method_carries_any_json() {
    for era in ERAS {
        let (client, _heard) = fixture(era);
        for method in ["com.example/fixture/echo", "com.example/fixture/slow-echo"] {
            let value = r#"{"a":[1,2.50,9007199254740993,null,"é\u2028"],"b":{}}"#;
            let params = RawValue::from_string(format!(r#"{{"value":{value}}}"#)).unwrap();
            let answer = client.request(method, Some(&params), CallOptions::default()).unwrap();
            assert!(answer.get().contains(value), "{answer}");
        }
    }
}

#[test]
fn many_calls_at_once_get_their_own_answers() {
    for era in ERAS {
        let (client, _heard) = fixture(era);
        let client = &client;
        std::thread::scope(|scope| {
            for caller in 0..8 {
                scope.spawn(move || {
                    for n in 0..50 {
                        let name = format!("{caller}-{n}");
                        assert_eq!(text(&call(client, "greet", json!({"name": name}))), format!("Hello, {name}!"));
                    }
                });
            }
        });
    }
}

/// The client and the executor: the way a model's call takes.
#[test]
fn berth_is_called_in_both_eras_and_leaves_nothing() {
    for era in ERAS {
        let root = Directory::with(&[("hello.txt", "hello\nworld\n")]);
        let mark = protocol_tests::directory::unique();
        let berth = program::berth();
        let argv = [berth.as_os_str(), "execute".as_ref(), "--root".as_ref(), root.path().as_os_str()];
        let mut launch = Launch::new(argv);
        launch.environment.push((procfs::MARK.into(), mark.clone().into()));
        launch.environment.extend(std::env::var_os("PATH").map(|path| ("PATH".into(), path)));
        let client = Client::connect(ChildServer::spawn(&launch).unwrap(), options(era).0).unwrap();
        assert_eq!(client.era(), if era == EraChoice::Modern { Era::Modern } else { Era::Legacy });
        assert_eq!(client.tools(CallOptions::default()).unwrap().len(), 7);
        let read = call(&client, "read", json!({"path": "hello.txt"}));
        assert_eq!(text(&read), "     1\thello\n     2\tworld\n");
        assert!(call(&client, "read", json!({"path": "../x"})).is_error);
        let cancel = Cancel::new();
        let switch = cancel.clone();
        let mut begun = move |progress: Progress| {
            if progress.message.is_some_and(|message| message.contains("started")) {
                switch.cancel();
            }
        };
        let options = CallOptions { progress: Some(&mut begun), ..CallOptions::cancelled_by(&cancel) };
        let arguments = to_raw_value(&json!({"command": "echo started; sleep 1000"})).unwrap();
        let error = client.call_tool("bash", &arguments, options).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
        client.close();
        assert_eq!(client.ended().unwrap().how, Ended::ByUs);
        let gone = procfs::eventually(DEADLINE, || procfs::marked(&mark).is_empty().then_some(()));
        assert!(gone.is_some(), "{:?}", procfs::marked(&mark));
    }
}
