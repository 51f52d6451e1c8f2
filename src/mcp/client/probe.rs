//! How a connection begins: which era the server speaks, and what it says of itself (spec mcp 2.1, 3.10).

use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::envelope::{self, envelope};
use super::error::{Error, strings, supported};
use super::inbound::Shared;
use super::request::{CallOptions, Outbound};
use super::rounds::{Kind, kind};
use super::transport::Until;
use super::{EraChoice, Options, Server};
use crate::jsonrpc::strict;
use crate::mcp::protocol::{Era, Version, code, key, method};
use crate::mcp::types::Implementation;

/// The error code of a header that disagrees with the body. A server that sends it is modern.
const HEADER_MISMATCH: i64 = -32020;

/// What the probe found.
enum Finding {
    /// A modern server.
    Modern(Server),
    /// Anything else, and what was answered instead.
    Legacy(Error),
}

/// Finds out what the server is, and begins.
pub(super) fn open(shared: &Shared, options: &Options) -> Result<Server, Error> {
    match options.era {
        EraChoice::Legacy => initialize(shared, options),
        EraChoice::Modern => match probe(shared, options, options.timeouts.connect)? {
            Finding::Modern(server) => Ok(server),
            Finding::Legacy(why) => Err(why),
        },
        EraChoice::Auto => match probe(shared, options, options.timeouts.probe)? {
            Finding::Modern(server) => Ok(server),
            Finding::Legacy(_) => match initialize(shared, options) {
                // A modern server that only took longer to start than the probe was given.
                Err(Error::UnsupportedVersion { ours, theirs }) if common(&theirs, Era::Modern, &[]).is_some() => {
                    match probe(shared, options, options.timeouts.connect)? {
                        Finding::Modern(server) => Ok(server),
                        Finding::Legacy(_) => Err(Error::UnsupportedVersion { ours, theirs }),
                    }
                }
                other => other,
            },
        },
    }
}

/// Asks a server what it is in the way of 2026-07-28. Nothing but a recognised modern answer makes it modern: what old servers answer to
/// a method they do not know is as many things as there are servers, silence among them (traps T12, T13).
fn probe(shared: &Shared, options: &Options, limit: Duration) -> Result<Finding, Error> {
    let mut tried = Vec::new();
    let mut version = Version::NEWEST;
    loop {
        tried.push(version);
        let mut members = envelope(version, &options.info, &options.capabilities);
        if let Some(level) = options.log_level {
            envelope::with_level(&mut members, level);
        }
        let outbound = Outbound {
            method: method::DISCOVER,
            params: None,
            envelope: &members,
            version: Some(version),
            revocable: false,
        };
        let mut wait = CallOptions::cancelled_by(&options.cancel).wait(Some(limit));
        let error = match shared.exchange(&outbound, &mut wait) {
            Ok(result) => {
                let complete = matches!(kind(method::DISCOVER, &result), Ok(Kind::Complete));
                let body = strict::object(result.get()).ok().filter(|_| complete);
                return Ok(body.map_or_else(
                    || Finding::Legacy(Error::protocol(method::DISCOVER, "its result cannot be read")),
                    discovered,
                ));
            }
            Err(error) => error,
        };
        match &error {
            // Trap T14: this server is modern, and is never taken for an old one.
            Error::Rpc { error: object, .. } if object.code == code::UNSUPPORTED_VERSION => {
                let theirs = supported(object).unwrap_or_default();
                match common(&theirs, Era::Modern, &tried) {
                    Some(other) => version = other,
                    None => return Err(unsupported(Era::Modern, theirs)),
                }
            }
            Error::Rpc { error: object, .. } if matches!(object.code, HEADER_MISMATCH | code::MISSING_CAPABILITY) => {
                return Err(error);
            }
            Error::Rpc { .. } | Error::TimedOut { .. } | Error::Protocol { .. } => return Ok(Finding::Legacy(error)),
            _ => return Err(error),
        }
    }
}

/// Reads a discovery. Some servers list their old versions as well; only a modern one can be named in an envelope, and a server without
/// one that is known here is spoken to in the old way (trap T15).
fn discovered(mut body: Map<String, Value>) -> Finding {
    let theirs = body.get("supportedVersions").and_then(strings).unwrap_or_default();
    let Some(version) = common(&theirs, Era::Modern, &[]) else {
        return Finding::Legacy(unsupported(Era::Modern, theirs));
    };
    let info = body.get_mut("_meta").and_then(|meta| meta.get_mut(key::SERVER_INFO)).map(Value::take);
    Finding::Modern(server(version, info, body))
}

/// Begins in the old way, offering the newest version that has it. Nothing modern rides on it (trap T16).
fn initialize(shared: &Shared, options: &Options) -> Result<Server, Error> {
    let mut params = String::new();
    envelope::member(&mut params, "protocolVersion", Version::NEWEST_LEGACY.as_str());
    envelope::member(&mut params, "capabilities", &options.capabilities);
    envelope::member(&mut params, "clientInfo", &options.info);
    let params = format!("{{{params}}}");
    let outbound =
        Outbound { method: method::INITIALIZE, params: Some(&params), envelope: "", version: None, revocable: false };
    let limit = options.timeouts.connect;
    let mut wait = CallOptions::cancelled_by(&options.cancel).wait(Some(limit));
    let result = shared.exchange(&outbound, &mut wait).map_err(|error| match error.rpc().and_then(supported) {
        Some(theirs) => unsupported(Era::Legacy, theirs),
        None => error,
    })?;
    let broken = |why: String| Error::protocol(method::INITIALIZE, why);
    let mut body =
        strict::object(result.get()).map_err(|error| broken(format!("its result cannot be read: {error}")))?;
    let Some(name) = body.get("protocolVersion").and_then(Value::as_str) else {
        return Err(broken("it names no protocol version".to_owned()));
    };
    let Some(version) = Version::parse(name).filter(|version| version.era() == Era::Legacy) else {
        return Err(unsupported(Era::Legacy, vec![name.to_owned()]));
    };
    let info = body.remove("serverInfo");
    let server = server(version, info, body);
    shared.agreed(version);
    let until = Until { deadline: Instant::now().checked_add(limit), cancel: Some(&options.cancel) };
    // A connection that is over by now says so at the first request.
    let _ = shared.tell(method::INITIALIZED, None, &until);
    Ok(server)
}

/// What a server said of itself, but for its version: members of the wrong type count as missing.
fn server(version: Version, info: Option<Value>, mut body: Map<String, Value>) -> Server {
    let info = info.and_then(|info| serde_json::from_value::<Implementation>(info).ok());
    let capabilities = match body.remove("capabilities") {
        Some(Value::Object(capabilities)) => capabilities,
        _ => Map::new(),
    };
    let instructions = match body.remove("instructions") {
        Some(Value::String(instructions)) => Some(instructions),
        _ => None,
    };
    Server { version, info, capabilities, instructions }
}

/// The newest version of an era that is spoken here, stands in a server's list and was not tried.
fn common(theirs: &[String], era: Era, tried: &[Version]) -> Option<Version> {
    Version::ALL
        .into_iter()
        .rev()
        .filter(|version| version.era() == era && !tried.contains(version))
        .find(|version| theirs.iter().any(|name| name == version.as_str()))
}

fn unsupported(era: Era, theirs: Vec<String>) -> Error {
    Error::UnsupportedVersion { ours: Version::names(era).into_iter().map(str::to_owned).collect(), theirs }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::{client, declaring, everything, options, pair, refused, script};
    use super::super::{Client, Ended, Timeouts};
    use super::*;

    #[test]
    fn a_modern_server_is_found_by_the_probe_and_asked_with_the_envelope() {
        let (streams, peer) = pair();
        let server = script(peer, |peer| {
            let probe = peer.serve("server/discover", json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28", "2025-11-25"], "capabilities": everything(),
                "instructions": "be kind", "ttlMs": -5, "cacheScope": "",
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "3"}},
            }));
            let list = peer.serve("tools/list", json!({"resultType": "complete", "tools": []}));
            (probe, list)
        });
        let client = Client::connect(streams, declaring(EraChoice::Auto, json!({"roots": {}}))).unwrap();
        assert_eq!((client.version(), client.era()), (Version::V2026_07_28, Era::Modern));
        assert_eq!(client.server().info.as_ref().unwrap().name, "scripted");
        assert_eq!(client.server().instructions.as_deref(), Some("be kind"));
        assert!(client.tools(CallOptions::default()).unwrap().is_empty());
        let (probe, list) = server.join().unwrap();
        let envelope = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"roots": {}},
        });
        assert_eq!((&probe["params"], &list["params"]), (&json!({"_meta": envelope}), &json!({"_meta": envelope})));
        assert_eq!((&probe["id"], &list["id"]), (&json!(1), &json!(2)));
    }

    /// Trap T13, and T29: anything but a recognised modern error means an old server. Trap T16: nothing modern rides on what follows.
    #[test]
    fn any_other_answer_to_the_probe_means_the_handshake() {
        for answer in [
            json!({"error": {"code": -32601, "message": "m"}}),
            json!({"error": {"code": -32602, "message": "initialize first"}}),
            json!({"error": {"code": -32000, "message": "not initialized"}}),
            json!({"error": {"code": -32001, "message": "m"}}),
            json!({"error": {"code": -32003, "message": "m"}}),
            json!({"error": {"code": -32004, "message": "m", "data": {"supported": ["2026-07-28"]}}}),
            json!({"error": {"code": 0, "message": ""}}),
            json!({"error": {"code": "x"}}),
            json!({"result": {}}),
            json!({"result": []}),
            json!({"result": {"supportedVersions": "2026-07-28"}}),
            json!({"result": {"supportedVersions": ["2026-07-28"], "resultType": "hologram"}}),
            json!({"result": {"supportedVersions": ["2026-07-28"], "resultType": "input_required"}}),
            // Trap T15: nothing modern among what it speaks, or nothing that is known here.
            json!({"result": {"supportedVersions": ["2025-11-25", "2025-06-18"], "capabilities": {}}}),
            json!({"result": {"supportedVersions": ["2031-01-01"], "capabilities": {}}}),
        ] {
            let (streams, peer) = pair();
            let shown = answer.to_string();
            let server = script(peer, move |peer| {
                let probe = peer.expect("server/discover");
                let mut line = json!({"jsonrpc": "2.0", "id": probe["id"]});
                line.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
                peer.say(line.to_string());
                peer.handshake("2025-11-25")
            });
            let client = Client::connect(streams, options(EraChoice::Auto)).unwrap();
            assert_eq!(client.version(), Version::V2025_11_25, "{shown}");
            let initialize = server.join().unwrap();
            assert_eq!(initialize["params"]["protocolVersion"], "2025-11-25");
            assert!(initialize["params"].get("_meta").is_none());
        }
    }

    /// Trap T12: some old servers say nothing at all, or much later.
    #[test]
    fn a_silent_server_is_an_old_one_and_its_late_answer_is_ignored() {
        let (streams, peer) = pair();
        let server = script(peer, |peer| {
            let probe = peer.expect("server/discover");
            let initialize = peer.expect("initialize");
            peer.answer(&probe, json!({"supportedVersions": ["2026-07-28"], "capabilities": {}}));
            peer.answer(&initialize, json!({"protocolVersion": "2025-06-18", "capabilities": everything()}));
            // Nothing in between: no word about the probe.
            peer.expect("notifications/initialized");
            let list = peer.serve("tools/list", json!({"tools": []}));
            assert!(list.get("params").is_none(), "{list}");
        });
        let mut options = options(EraChoice::Auto);
        options.timeouts.probe = Duration::from_millis(20);
        let client = Client::connect(streams, options).unwrap();
        assert_eq!(client.version(), Version::V2025_06_18);
        client.tools(CallOptions::default()).unwrap();
        server.join().unwrap();
    }

    #[test]
    fn a_modern_server_that_was_slow_to_start_is_still_found() {
        let (streams, peer) = pair();
        let server = script(peer, |peer| {
            let late = peer.expect("server/discover");
            let initialize = peer.expect("initialize");
            peer.answer(&late, json!({"supportedVersions": ["2026-07-28"], "capabilities": {}}));
            peer.refuse(&initialize, -32022, json!({"supported": ["2026-07-28"], "requested": "2025-11-25"}));
            peer.begin("2026-07-28");
        });
        let mut options = options(EraChoice::Auto);
        options.timeouts.probe = Duration::from_millis(20);
        assert_eq!(Client::connect(streams, options).unwrap().era(), Era::Modern);
        server.join().unwrap();
    }

    /// Trap T14: a modern server is never sent `initialize`, and both lists are told.
    #[test]
    fn a_modern_error_is_never_taken_for_an_old_server() {
        for (data, theirs) in [
            (json!({"supported": ["2031-01-01", "2030-01-01"]}), vec!["2031-01-01", "2030-01-01"]),
            // Asking again for what it has just declined leads nowhere.
            (json!({"supported": ["2026-07-28", "2025-11-25"]}), vec!["2026-07-28", "2025-11-25"]),
            (json!({"supported": 7}), vec![]),
            (json!(null), vec![]),
        ] {
            let (error, next) = refused(options(EraChoice::Auto), move |peer| {
                let probe = peer.expect("server/discover");
                peer.refuse(&probe, -32022, data);
                peer.hear()
            });
            assert_eq!(next, Value::Null);
            let Error::UnsupportedVersion { ours, theirs: told } = error else { panic!("{error}") };
            assert_eq!((ours, told), (vec!["2026-07-28".to_owned()], theirs.into_iter().map(str::to_owned).collect()));
        }
        for code in [-32020, -32021] {
            let (error, next) = refused(options(EraChoice::Auto), move |peer| {
                let probe = peer.expect("server/discover");
                peer.refuse(&probe, code, json!({"requiredCapabilities": {"sampling": {}}}));
                peer.hear()
            });
            assert_eq!((error.rpc().unwrap().code, next), (code, Value::Null));
        }
    }

    #[test]
    fn every_old_version_is_spoken_when_the_server_answers_with_it() {
        for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
            let (client, server) =
                client(version, declaring(EraChoice::Legacy, json!({"experimental": {"a": 1}})), |_| ());
            assert_eq!(client.version().as_str(), version);
            assert_eq!(client.server().info.as_ref().unwrap().name, "scripted");
            server.join().unwrap();
        }
    }

    #[test]
    fn the_old_way_begins_with_initialize_at_once_and_offers_its_newest_version() {
        let (streams, peer) = pair();
        let server = script(peer, |peer| peer.handshake("2025-11-25"));
        Client::connect(streams, declaring(EraChoice::Legacy, json!({"roots": {"listChanged": true}}))).unwrap();
        assert_eq!(
            server.join().unwrap()["params"],
            json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {"roots": {"listChanged": true}},
                "clientInfo": {"name": "test", "version": "1"},
            })
        );
    }

    #[test]
    fn a_version_nobody_speaks_ends_the_connection() {
        for version in ["2026-07-28", "2031-01-01", "1.0"] {
            let (error, next) = refused(options(EraChoice::Legacy), move |peer| {
                peer.serve("initialize", json!({"protocolVersion": version, "capabilities": {}}));
                peer.hear()
            });
            let Error::UnsupportedVersion { ours, theirs } = error else { panic!("{error}") };
            assert_eq!((ours.len(), theirs, next), (4, vec![version.to_owned()], Value::Null));
        }
        for (code, supported) in [(-32602, json!(["2024-10-07"])), (-32022, json!(["2026-07-28"]))] {
            let (error, ()) = refused(options(EraChoice::Legacy), move |peer| {
                let initialize = peer.expect("initialize");
                peer.refuse(&initialize, code, json!({"supported": supported, "requested": "2025-11-25"}));
            });
            assert!(matches!(error, Error::UnsupportedVersion { .. }), "{error}");
        }
    }

    #[test]
    fn a_handshake_that_makes_no_sense_is_an_error_that_says_so() {
        for result in [json!({}), json!({"protocolVersion": 7}), json!([])] {
            let (error, ()) = refused(options(EraChoice::Legacy), move |peer| {
                peer.serve("initialize", result);
            });
            assert!(matches!(error, Error::Protocol { .. }), "{error}");
        }
        let (error, ()) = refused(options(EraChoice::Legacy), |peer| {
            let initialize = peer.expect("initialize");
            let twice = r#""result":{"protocolVersion":"2025-11-25","protocolVersion":"2024-11-05"}"#;
            peer.say(format!(r#"{{"jsonrpc":"2.0","id":{},{twice}}}"#, initialize["id"]));
        });
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }

    #[test]
    fn what_a_server_says_of_itself_in_the_wrong_form_counts_as_unsaid() {
        let (streams, peer) = pair();
        let server = script(peer, |peer| {
            peer.serve("initialize", json!({
                "protocolVersion": "2025-11-25", "capabilities": [], "serverInfo": {"version": 1}, "instructions": 9,
            }));
        });
        let client = Client::connect(streams, options(EraChoice::Legacy)).unwrap();
        let server_said = client.server();
        assert!(
            server_said.info.is_none() && server_said.capabilities.is_empty() && server_said.instructions.is_none()
        );
        server.join().unwrap();
    }

    #[test]
    fn the_modern_way_alone_takes_nothing_else() {
        let (error, next) = refused(options(EraChoice::Modern), |peer| {
            let probe = peer.expect("server/discover");
            peer.refuse(&probe, -32601, Value::Null);
            peer.hear()
        });
        assert_eq!((error.rpc().unwrap().code, next), (-32601, Value::Null));
    }

    #[test]
    fn a_connection_that_does_not_come_about_says_why() {
        // Silence. What it printed instead is told.
        let mut silent = options(EraChoice::Legacy);
        silent.timeouts = Timeouts { connect: Duration::from_millis(50), ..silent.timeouts };
        let (error, end) = refused(silent, |peer| {
            peer.say("Usage: \u{1b}[1mserver FILE");
            peer.expect("initialize");
            peer.hear()
        });
        assert_eq!(end, Value::Null, "initialize may not be taken back");
        assert!(error.to_string().contains(r"Usage: \\u{1b}[1mserver FILE"), "{error}");
        // The end.
        let (error, ()) = refused(options(EraChoice::Auto), |peer| {
            peer.expect("server/discover");
        });
        assert!(matches!(&error, Error::Closed(closed) if closed.how == Ended::EndOfStream), "{error}");
        // A thrown switch.
        let impatient = options(EraChoice::Auto);
        let cancel = impatient.cancel.clone();
        let (error, end) = refused(impatient, move |peer| {
            peer.expect("server/discover");
            cancel.cancel();
            peer.hear()
        });
        assert!(matches!(error, Error::Cancelled), "{error}");
        assert_eq!(end, Value::Null);
    }
}
