//! Running the vectors: data that says what a server answers to what. The format stands in `vectors/README.md`.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::directory::Directory;
use crate::pattern::{self, Context, Saved, is_modern, short};
use crate::server::{Launch, Server, described};

/// The versions of the protocol, oldest first.
pub const VERSIONS: [&str; 5] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];

/// Methods whose complete answers say how long they may be kept (spec mcp 3.2).
const CACHEABLE: [&str; 6] =
    ["server/discover", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

const VERSION_KEY: &str = "io.modelcontextprotocol/protocolVersion";

/// A file of vectors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// What the file is about, for a reader.
    #[allow(dead_code)]
    about: String,
    vectors: Vec<Vector>,
}

/// One vector as it stands in its file.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vector {
    /// The rule it checks.
    pub name: String,
    /// Where the rule stands.
    pub spec: String,
    /// Which server it concerns.
    pub server: Subject,
    /// Arguments for the server beyond those that every run gives.
    #[serde(default)]
    pub args: Vec<String>,
    /// The versions to run it at; none: without a handshake and without envelopes.
    #[serde(default)]
    pub versions: Versions,
    /// What the client says it can do.
    #[serde(default)]
    pub capabilities: Map<String, Value>,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// The server a vector concerns.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// `berth execute`.
    Berth,
    /// The fixture that offers everything.
    Fixture,
    /// Both, one after the other.
    Both,
}

/// The versions a vector runs at.
#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Versions {
    /// No version: the vector says every byte itself.
    #[default]
    None,
    /// All five.
    All,
    /// The four with a handshake.
    Legacy,
    /// The one with envelopes.
    Modern,
    /// These.
    #[serde(untagged)]
    These(Vec<String>),
}

/// One step: what is sent, then what must come.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// For a reader.
    #[serde(default)]
    #[allow(dead_code)]
    note: String,
    request: Option<Value>,
    send: Option<Value>,
    line: Option<String>,
    hex: Option<String>,
    pieces: Option<Vec<Value>>,
    allow: Option<Value>,
    expect: Option<Value>,
    #[serde(default)]
    quiet: bool,
}

/// A vector made ready for one server and one version.
pub struct Case {
    /// The vector's name with what it was made ready for.
    pub name: String,
    vector: Vector,
    subject: Subject,
    version: Option<String>,
}

/// Reads all vectors of a directory, in the order of the files' names.
///
/// # Panics
/// When a file cannot be read or is no file of vectors.
pub fn cases(directory: &Path) -> Vec<Case> {
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("a directory can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file: File = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for vector in file.vectors {
            make_ready(&stem, &vector, &mut cases);
        }
    }
    cases
}

fn make_ready(stem: &str, vector: &Vector, cases: &mut Vec<Case>) {
    let subjects: &[Subject] = match vector.server {
        Subject::Both => &[Subject::Berth, Subject::Fixture],
        Subject::Berth => &[Subject::Berth],
        Subject::Fixture => &[Subject::Fixture],
    };
    let versions: Vec<Option<String>> = match &vector.versions {
        Versions::None => vec![None],
        Versions::All => VERSIONS.iter().map(|version| Some((*version).to_owned())).collect(),
        Versions::Legacy => VERSIONS.iter().filter(|v| !is_modern(v)).map(|v| Some((*v).to_owned())).collect(),
        Versions::Modern => VERSIONS.iter().filter(|v| is_modern(v)).map(|v| Some((*v).to_owned())).collect(),
        Versions::These(these) => these.iter().cloned().map(Some).collect(),
    };
    for subject in subjects {
        for version in &versions {
            let server = if matches!(subject, Subject::Berth) { "berth" } else { "fixture" };
            let at = version.as_deref().map(|version| format!(" @ {version}")).unwrap_or_default();
            let name = format!("{stem}: {} [{server}{at}]", vector.name);
            cases.push(Case { name, vector: vector.clone(), subject: *subject, version: version.clone() });
        }
    }
}

/// The files in the directory that `berth` serves in every vector.
const FILES: [(&str, &str); 3] =
    [("hello.txt", "hello\nworld\n"), ("dir/inner.txt", "inner\n"), ("separators.txt", "a\u{2028}b\u{85}c\u{c}d\n")];

impl Case {
    /// Runs it against a fresh server; an error says in which step what was different.
    pub fn run(&self) -> Result<(), String> {
        let root = Directory::with(&FILES);
        let mut launch = match self.subject {
            Subject::Berth => Launch::berth(root.path()),
            _ => Launch::fixture(),
        };
        for argument in &self.vector.args {
            launch = launch.arg(argument);
        }
        let mut run = Run {
            server: launch.start(),
            vector: &self.vector,
            version: self.version.as_deref(),
            saved: Saved::new(),
            asked: HashMap::new(),
            allowed: Vec::new(),
            last_id: 1000,
            quiets: 0,
        };
        let outcome = run.all();
        outcome.map_err(|why| match run.server.stderr().trim() {
            "" => why,
            stderr => format!("{why}\n    stderr: {}", stderr.chars().take(2000).collect::<String>()),
        })
    }
}

struct Run<'a> {
    server: Server,
    vector: &'a Vector,
    version: Option<&'a str>,
    saved: Saved,
    /// The requests sent, by id: the method, and whether it was modern.
    asked: HashMap<String, (String, bool)>,
    allowed: Vec<Value>,
    last_id: i64,
    quiets: u32,
}

impl Run<'_> {
    fn all(&mut self) -> Result<(), String> {
        if let Some(version) = self.version.filter(|version| !is_modern(version)) {
            self.handshake(version).map_err(|why| format!("handshake: {why}"))?;
        }
        for (n, step) in self.vector.steps.iter().enumerate() {
            self.step(step).map_err(|why| format!("step {}: {why}", n + 1))?;
        }
        self.end().map_err(|why| format!("end: {why}"))
    }

    fn handshake(&mut self, version: &str) -> Result<(), String> {
        let params = json!({
            "protocolVersion": version,
            "capabilities": self.vector.capabilities,
            "clientInfo": {"name": "vectors", "version": "1"},
        });
        self.deliver(&json!({"jsonrpc": "2.0", "id": "handshake", "method": "initialize", "params": params}));
        self.expect(vec![json!({"id": "handshake", "result": {"protocolVersion": version}})])?;
        self.deliver(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        if let Some(pattern) = &step.allow {
            let pattern = self.resolve(pattern)?;
            self.allowed.push(pattern);
        }
        let mut id = None;
        if let Some(request) = &step.request {
            let request = self.resolve(request)?;
            let message = self.complete(request)?;
            id = message.get("id").cloned();
            self.deliver(&message);
        }
        if let Some(message) = &step.send {
            let message = self.resolve(message)?;
            self.deliver(&message);
        }
        if let Some(text) = &step.line {
            if let Ok(message) = serde_json::from_str(text) {
                self.remember(&message);
            }
            self.server.write(format!("{text}\n"));
        }
        if let Some(digits) = &step.hex {
            self.server.write(bytes_of(digits)?);
        }
        if let Some(pieces) = &step.pieces {
            let mut bytes = Vec::new();
            for piece in pieces {
                match self.resolve(piece)? {
                    Value::String(text) => bytes.extend_from_slice(text.as_bytes()),
                    other => return Err(format!("a piece is text, not {other}")),
                }
            }
            self.server.write(bytes);
        }
        if let Some(expected) = &step.expect {
            let patterns = match self.resolve(expected)? {
                Value::Array(patterns) => patterns,
                pattern => vec![pattern],
            };
            // One answer to the step's own request need not repeat its id.
            let patterns = match (patterns.as_slice(), id) {
                ([only], Some(id)) if !says_which(only) => vec![json!({"$and": [{"id": id}, only]})],
                _ => patterns,
            };
            self.expect(patterns)?;
        }
        if step.quiet {
            self.quiet()?;
        }
        Ok(())
    }

    /// Nothing was written before this: the next message is the answer to a ping.
    fn quiet(&mut self) -> Result<(), String> {
        self.quiets += 1;
        let id = format!("quiet-{}", self.quiets);
        self.deliver(&json!({"jsonrpc": "2.0", "id": id, "method": "ping"}));
        self.expect(vec![json!({"id": id, "result": {}})])
    }

    fn resolve(&self, value: &Value) -> Result<Value, String> {
        let envelope = self.envelope();
        Context { version: self.version, envelope: &envelope, saved: &self.saved }.resolve(value)
    }

    /// The envelope of a modern request: that of the vector's version, or of the newest where it names none.
    fn envelope(&self) -> Map<String, Value> {
        let version = self.version.filter(|version| is_modern(version)).unwrap_or("2026-07-28");
        Map::from_iter([
            (VERSION_KEY.to_owned(), json!(version)),
            ("io.modelcontextprotocol/clientInfo".to_owned(), json!({"name": "vectors", "version": "1"})),
            ("io.modelcontextprotocol/clientCapabilities".to_owned(), json!(self.vector.capabilities)),
        ])
    }

    /// Adds to a request what every request of the version has.
    fn complete(&mut self, request: Value) -> Result<Value, String> {
        let Value::Object(mut message) = request else { return Err("a request is an object".to_owned()) };
        message.entry("jsonrpc").or_insert_with(|| json!("2.0"));
        let notification =
            message.get("method").and_then(Value::as_str).is_some_and(|method| method.starts_with("notifications/"));
        if !notification && !message.contains_key("id") {
            self.last_id += 1;
            message.insert("id".to_owned(), json!(self.last_id));
        }
        if self.version.is_some_and(is_modern) && !notification {
            let params = message.entry("params").or_insert_with(|| json!({}));
            if let Value::Object(params) = params {
                let mut envelope = self.envelope();
                if let Some(Value::Object(meta)) = params.get("_meta") {
                    envelope.extend(meta.clone());
                }
                params.insert("_meta".to_owned(), Value::Object(envelope));
            }
        }
        Ok(Value::Object(message))
    }

    fn deliver(&mut self, message: &Value) {
        self.remember(message);
        self.server.send(message);
    }

    fn remember(&mut self, message: &Value) {
        for message in message.as_array().map_or(std::slice::from_ref(message), Vec::as_slice) {
            if let (Some(id), Some(method)) = (message.get("id"), message.get("method").and_then(Value::as_str)) {
                let modern = method != "initialize"
                    && message.pointer("/params/_meta").is_some_and(|meta| meta.get(VERSION_KEY).is_some());
                self.asked.insert(id.to_string(), (method.to_owned(), modern));
            }
        }
    }

    /// Receives until every pattern has met its message, in any order; a message that fits none is an error.
    fn expect(&mut self, mut patterns: Vec<Value>) -> Result<(), String> {
        while !patterns.is_empty() {
            let message = match self.server.receive() {
                Ok(Some(message)) => message,
                Ok(None) => return Err(format!("the output ended before {}", join(&patterns))),
                Err(trouble) => return Err(format!("{trouble}; wanted {}", join(&patterns))),
            };
            self.lawful(&message).map_err(|why| format!("{why}, in {}", short(&message)))?;
            let mut reasons = Vec::new();
            let mut met = None;
            for (n, pattern) in patterns.iter().enumerate() {
                match pattern::check(pattern, &message, &mut self.saved) {
                    Ok(()) => {
                        met = Some(n);
                        break;
                    }
                    Err(why) => reasons.push(why),
                }
            }
            match met {
                Some(n) => drop(patterns.remove(n)),
                None if self.is_allowed(&message) => {}
                None => return Err(format!("{} ({})", short(&message), reasons.join("; "))),
            }
        }
        Ok(())
    }

    fn is_allowed(&self, message: &Value) -> bool {
        self.allowed.iter().any(|pattern| pattern::check(pattern, message, &mut Saved::new()).is_ok())
    }

    /// The session's end: no message that nobody expected, exit status 0, nothing left behind.
    fn end(&mut self) -> Result<(), String> {
        self.server.close_input();
        loop {
            match self.server.receive() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    self.lawful(&message).map_err(|why| format!("{why}, in {}", short(&message)))?;
                    if !self.is_allowed(&message) {
                        return Err(format!("a message nobody expected: {}", short(&message)));
                    }
                }
                Err(trouble) => return Err(trouble.to_string()),
            }
        }
        let status = self.server.exit_status();
        if !status.success() {
            return Err(described(status));
        }
        self.server.assert_nothing_left();
        Ok(())
    }

    /// What holds for every message of every server (README, "Always").
    fn lawful(&self, message: &Value) -> Result<(), String> {
        let Some(members) = message.as_object() else { return Err("a message that is no object".to_owned()) };
        if members.get("jsonrpc") != Some(&json!("2.0")) {
            return Err("no \"jsonrpc\":\"2.0\"".to_owned());
        }
        let id = members.get("id");
        if !id.is_none_or(|id| id.is_string() || id.is_i64() || id.is_u64() || id.is_null()) {
            return Err("an id that is no string, integer or null".to_owned());
        }
        match (members.get("method"), members.get("result"), members.get("error")) {
            (Some(Value::String(_)), None, None) => {
                if members.get("params").is_some_and(|params| !params.is_object()) {
                    return Err("params that are no object".to_owned());
                }
                if id.is_some_and(Value::is_null) {
                    return Err("a request with id null".to_owned());
                }
                Ok(())
            }
            (None, Some(Value::Object(result)), None) => {
                let Some(id) = id.filter(|id| !id.is_null()) else {
                    return Err("a result without an id".to_owned());
                };
                self.lawful_result(id, result)
            }
            (None, None, Some(Value::Object(error))) => {
                let code = error.get("code").is_some_and(|code| code.is_i64());
                if code && error.get("message").is_some_and(Value::is_string) {
                    Ok(())
                } else {
                    Err("an error without an integer code and a message".to_owned())
                }
            }
            _ => Err("neither a request nor a result nor an error".to_owned()),
        }
    }

    /// Modern results say what they are and how long they keep; legacy ones never do (spec mcp 3.2).
    fn lawful_result(&self, id: &Value, result: &Map<String, Value>) -> Result<(), String> {
        let Some((method, modern)) = self.asked.get(&id.to_string()) else { return Ok(()) };
        if !modern {
            return match ["resultType", "ttlMs", "cacheScope"].into_iter().find(|key| result.contains_key(*key)) {
                Some(key) => Err(format!("a legacy result with {key}")),
                None => Ok(()),
            };
        }
        let Some(kind) = result.get("resultType").and_then(Value::as_str) else {
            return Err("a modern result without resultType".to_owned());
        };
        let ttl = result.get("ttlMs");
        let scope = result.get("cacheScope").and_then(Value::as_str);
        if CACHEABLE.contains(&method.as_str()) && kind == "complete" {
            if !ttl.is_some_and(Value::is_u64) {
                return Err(format!("{method} answered without ttlMs, a whole number of at least 0"));
            }
            if !matches!(scope, Some("public" | "private")) {
                return Err(format!("{method} answered without cacheScope public or private"));
            }
        } else if kind == "input_required" && (ttl.is_some() || scope.is_some()) {
            return Err("a question that says how long it may be kept".to_owned());
        }
        Ok(())
    }
}

fn bytes_of(digits: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<u32> = digits
        .chars()
        .filter(|digit| !digit.is_whitespace())
        .map(|digit| digit.to_digit(16).ok_or_else(|| format!("{digit:?} is no hex digit")))
        .collect::<Result<_, _>>()?;
    if !digits.len().is_multiple_of(2) {
        return Err("hex with half a byte".to_owned());
    }
    Ok(digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap_or_default()).collect())
}

fn join(patterns: &[Value]) -> String {
    patterns.iter().map(Value::to_string).collect::<Vec<_>>().join(" and ")
}

/// Whether a pattern says itself which message it is for.
fn says_which(pattern: &Value) -> bool {
    pattern.get("id").is_some()
        || pattern.get("method").is_some()
        || pattern.get("$one_of").and_then(Value::as_array).is_some_and(|choices| choices.iter().any(says_which))
}
