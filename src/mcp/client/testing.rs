//! A server for tests: a script at the other end of a socket pair.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::{Client, EraChoice, Error, Options, Streams, Timeouts};
use crate::jsonrpc::strict;
use crate::mcp::types::Implementation;

/// How long a test waits for what must come.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// The scripted server's end.
pub(super) struct Peer {
    read: BufReader<UnixStream>,
    write: UnixStream,
}

/// A transport and the server at its other end.
pub(super) fn pair() -> (Streams, Peer) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_read_timeout(Some(SOON)).unwrap();
    let streams = Streams::new(ours.try_clone().unwrap(), ours).unwrap();
    (streams, Peer { read: BufReader::new(theirs.try_clone().unwrap()), write: theirs })
}

/// What a test connects with.
pub(super) fn options(era: EraChoice) -> Options {
    let info = Implementation { name: "test".into(), version: "1".into(), title: None };
    let timeouts = Timeouts { probe: SOON, connect: SOON, request: SOON };
    Options { era, timeouts, ..Options::new(info) }
}

/// As [`options`], declaring capabilities.
pub(super) fn declaring(era: EraChoice, capabilities: Value) -> Options {
    Options { capabilities: map(capabilities), ..options(era) }
}

pub(super) fn map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is no object"),
    }
}

/// A script that runs at the other end.
pub(super) fn script<T: Send + 'static>(
    mut peer: Peer,
    run: impl FnOnce(&mut Peer) -> T + Send + 'static,
) -> JoinHandle<T> {
    thread::spawn(move || run(&mut peer))
}

/// A client of a server that spoke to it at `version` and then follows a script.
pub(super) fn client<T: Send + 'static>(
    version: &'static str,
    options: Options,
    run: impl FnOnce(&mut Peer) -> T + Send + 'static,
) -> (Client, JoinHandle<T>) {
    let (streams, peer) = pair();
    let server = script(peer, move |peer| {
        peer.begin(version);
        run(peer)
    });
    (Client::connect(streams, options).unwrap(), server)
}

/// A legacy client of a server that follows a script.
pub(super) fn legacy<T: Send + 'static>(run: impl FnOnce(&mut Peer) -> T + Send + 'static) -> (Client, JoinHandle<T>) {
    client("2025-11-25", options(EraChoice::Legacy), run)
}

/// A modern client of a server that follows a script.
pub(super) fn modern<T: Send + 'static>(run: impl FnOnce(&mut Peer) -> T + Send + 'static) -> (Client, JoinHandle<T>) {
    client("2026-07-28", options(EraChoice::Modern), run)
}

/// The error of an attempt to connect to a server that follows a script.
pub(super) fn refused<T: Send + 'static>(
    options: Options,
    run: impl FnOnce(&mut Peer) -> T + Send + 'static,
) -> (Error, T) {
    let (streams, peer) = pair();
    let server = script(peer, run);
    let error = Client::connect(streams, options).err().unwrap();
    (error, server.join().unwrap())
}

/// All a server can offer.
pub(super) fn everything() -> Value {
    json!({"tools": {}, "resources": {"subscribe": true}, "prompts": {}, "completions": {}, "logging": {}})
}

impl Peer {
    /// The next message; the end of the stream is null.
    pub(super) fn hear(&mut self) -> Value {
        match self.hear_line() {
            line if line.is_empty() => Value::Null,
            line => strict::value(&line).unwrap(),
        }
    }

    /// The next message as it stands on the wire, with its end; empty at the end of the stream.
    pub(super) fn hear_line(&mut self) -> String {
        let mut line = String::new();
        self.read.read_line(&mut line).unwrap();
        line
    }

    /// The next message, which is a request or a notification of this method.
    pub(super) fn expect(&mut self, method: &str) -> Value {
        let message = self.hear();
        assert_eq!(message["method"], method, "{message}");
        message
    }

    /// Says a line, whatever it is.
    pub(super) fn say(&mut self, line: impl AsRef<[u8]>) {
        self.write.write_all(line.as_ref()).unwrap();
        self.write.write_all(b"\n").unwrap();
    }

    pub(super) fn notify(&mut self, method: &str, params: Value) {
        self.say(json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string());
    }

    pub(super) fn ask(&mut self, id: impl Into<Value>, method: &str, params: Value) {
        self.say(json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params}).to_string());
    }

    /// Answers a request.
    pub(super) fn answer(&mut self, request: &Value, result: Value) {
        self.say(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}).to_string());
    }

    /// Answers a request with an error.
    pub(super) fn refuse(&mut self, request: &Value, code: i64, data: Value) {
        let error = json!({"code": code, "message": "no", "data": data});
        self.say(json!({"jsonrpc": "2.0", "id": request["id"], "error": error}).to_string());
    }

    /// Hears a request of this method, answers it, and gives it back.
    pub(super) fn serve(&mut self, method: &str, result: Value) -> Value {
        let request = self.expect(method);
        self.answer(&request, result);
        request
    }

    /// The beginning of a connection at a version.
    pub(super) fn begin(&mut self, version: &str) {
        if version == "2026-07-28" {
            self.serve(
                "server/discover",
                json!({
                    "resultType": "complete", "supportedVersions": [version], "capabilities": everything(),
                    "ttlMs": 0, "cacheScope": "private",
                }),
            );
        } else {
            self.handshake(version);
        }
    }

    /// The old beginning, from `initialize` on.
    pub(super) fn handshake(&mut self, version: &str) -> Value {
        let request = self.serve(
            "initialize",
            json!({
                "protocolVersion": version, "capabilities": everything(),
                "serverInfo": {"name": "scripted", "version": "0"}, "instructions": "be kind",
            }),
        );
        let initialized = self.expect("notifications/initialized");
        assert!(initialized.get("params").is_none() && initialized.get("id").is_none());
        request
    }
}

/// Whether no process of a group is alive any more, or soon will be. One that has ended may stand there until its new parent takes
/// notice; that is not waited for.
pub(super) fn ended(group: u32) -> bool {
    let deadline = Instant::now() + SOON;
    while living(group) > 0 {
        if Instant::now() > deadline {
            return false;
        }
        thread::yield_now();
    }
    true
}

/// How many processes of a group are alive.
pub(super) fn living(group: u32) -> usize {
    let all = std::fs::read_dir("/proc").unwrap();
    all.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok())
        .filter(|stat| {
            // The name stands in parentheses and may hold anything.
            let rest: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
            !matches!(rest[0], "Z" | "X") && rest[2] == group.to_string()
        })
        .count()
}
