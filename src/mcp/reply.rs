//! A result, written as its version has it: what came later is left out, what the modern era adds is put on (spec mcp 3.2).

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::protocol::{Era, Version, key};
use super::server::{Outcome, Page};
use super::types::{
    CallResult, Completion, Content, Prompt, PromptResult, Resource, ResourceContents, ResourceTemplate, Tool,
};
use crate::jsonrpc::text::write_string;

/// What a request is answered with.
pub(super) enum Reply {
    Empty,
    Tools(Page<Tool>),
    Resources(Page<Resource>),
    Templates(Page<ResourceTemplate>),
    Prompts(Page<Prompt>),
    Call(Outcome<CallResult>),
    Read(Outcome<Vec<ResourceContents>>),
    Prompt(Outcome<PromptResult>),
    Completion(Completion),
    /// The handshake's or discovery's answer, whole.
    Whole(Vec<u8>),
    /// A custom method's answer: the text of an object.
    Custom(Box<RawValue>),
}

impl Reply {
    /// Appends the result's text. `server` is the text of the server's own description, for the modern envelope.
    pub(super) fn write(&self, out: &mut Vec<u8>, version: Version, server: &[u8]) {
        let mut object = Object::new(out);
        let mut kind = "complete";
        let mut cacheable = false;
        let mut meta = None;
        match self {
            Self::Empty => {}
            Self::Tools(page) => {
                cacheable = true;
                let tools: Vec<Tool> = page.items.iter().map(|tool| tool.at(version)).collect();
                object.field("tools", &tools);
                object.optional("nextCursor", page.next.as_ref());
            }
            Self::Resources(page) => {
                cacheable = true;
                object.field("resources", &page.items);
                object.optional("nextCursor", page.next.as_ref());
            }
            Self::Templates(page) => {
                cacheable = true;
                object.field("resourceTemplates", &page.items);
                object.optional("nextCursor", page.next.as_ref());
            }
            Self::Prompts(page) => {
                cacheable = true;
                object.field("prompts", &page.items);
                object.optional("nextCursor", page.next.as_ref());
            }
            Self::Call(Outcome::Complete(result)) => {
                write_call(&mut object, result, version);
                meta = result.meta.as_ref();
            }
            Self::Read(Outcome::Complete(contents)) => {
                cacheable = true;
                object.field("contents", contents);
            }
            Self::Prompt(Outcome::Complete(prompt)) => {
                object.optional("description", prompt.description.as_ref());
                object.field("messages", &prompt.messages);
            }
            Self::Call(Outcome::InputRequired { requests, state })
            | Self::Read(Outcome::InputRequired { requests, state })
            | Self::Prompt(Outcome::InputRequired { requests, state }) => {
                kind = "input_required";
                if !requests.is_empty() {
                    object.field("inputRequests", requests);
                }
                object.optional("requestState", state.as_ref());
            }
            Self::Call(Outcome::Extension { result_type, body })
            | Self::Read(Outcome::Extension { result_type, body })
            | Self::Prompt(Outcome::Extension { result_type, body }) => {
                kind = result_type;
                object.members(body);
            }
            Self::Completion(completion) => object.field("completion", completion),
            Self::Whole(text) => object.inside(text),
            Self::Custom(text) => object.inside(text.get().as_bytes()),
        }
        if version.era() == Era::Modern {
            // A custom method may say its own kind.
            if !matches!(self, Self::Custom(text) if has_member(text, "resultType")) {
                object.field("resultType", &kind);
            }
            if cacheable {
                object.field("ttlMs", &0);
                object.field("cacheScope", &"private");
            }
            if !matches!(self, Self::Custom(text) if has_member(text, "_meta")) {
                object.meta(meta, Some(server));
            }
        } else if version >= Version::V2025_06_18 {
            object.meta(meta, None);
        }
        object.end();
    }
}

fn write_call(object: &mut Object<'_>, result: &CallResult, version: Version) {
    object.name("content");
    write_content(object.out, &result.content);
    // An object from 2025-06-18, any value at 2026-07-28; another value to an older client would be refused (rmcp 1340).
    match &result.structured_content {
        Some(value) if version >= Version::V2026_07_28 || (version >= Version::V2025_06_18 && value.is_object()) => {
            object.field("structuredContent", value);
        }
        _ => {}
    }
    if result.is_error {
        object.field("isError", &true);
    }
}

/// Words, which is what most answers are, are written by hand.
fn write_content(out: &mut Vec<u8>, content: &[Content]) {
    out.push(b'[');
    for (number, part) in content.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        match part {
            Content::Text { text } => {
                out.extend_from_slice(br#"{"type":"text","text":"#);
                write_string(out, text);
                out.push(b'}');
            }
            // Writing to a Vec cannot fail, and every kind has a JSON form.
            other => drop(serde_json::to_writer(&mut *out, other)),
        }
    }
    out.push(b']');
}

fn has_member(text: &RawValue, name: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text.get()).is_ok_and(|map| map.contains_key(name))
}

/// Writes an object member by member.
pub(super) struct Object<'a> {
    out: &'a mut Vec<u8>,
    empty: bool,
}

impl<'a> Object<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, empty: true }
    }

    pub(super) fn field(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        self.name(name);
        // Writing to a Vec cannot fail, and every type given has a JSON form.
        let _ = serde_json::to_writer(&mut *self.out, value);
    }

    pub(super) fn optional(&mut self, name: &str, value: Option<&impl Serialize>) {
        if let Some(value) = value {
            self.field(name, value);
        }
    }

    /// A member whose value is JSON text.
    pub(super) fn text(&mut self, name: &str, text: &[u8]) {
        self.name(name);
        self.out.extend_from_slice(text);
    }

    fn members(&mut self, map: &Map<String, Value>) {
        for (name, value) in map {
            self.field(name, value);
        }
    }

    /// The members of an object's text.
    fn inside(&mut self, text: &[u8]) {
        let inside = text.trim_ascii();
        let inside = inside.strip_prefix(b"{").unwrap_or(inside);
        let inside = inside.strip_suffix(b"}").unwrap_or(inside).trim_ascii();
        if !inside.is_empty() {
            self.comma();
            self.out.extend_from_slice(inside);
        }
    }

    fn meta(&mut self, meta: Option<&Map<String, Value>>, server: Option<&[u8]>) {
        if meta.is_none() && server.is_none() {
            return;
        }
        self.name("_meta");
        let mut object = Object::new(self.out);
        if let Some(meta) = meta {
            object.members(meta);
        }
        if let Some(server) = server.filter(|_| meta.is_none_or(|meta| !meta.contains_key(key::SERVER_INFO))) {
            object.text(key::SERVER_INFO, server);
        }
        object.end();
    }

    fn name(&mut self, name: &str) {
        self.comma();
        let _ = serde_json::to_writer(&mut *self.out, name);
        self.out.push(b':');
    }

    fn comma(&mut self) {
        if !std::mem::take(&mut self.empty) {
            self.out.push(b',');
        }
    }

    pub(super) fn end(self) {
        self.out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(reply: &Reply, version: Version) -> Value {
        let mut out = Vec::new();
        reply.write(&mut out, version, br#"{"name":"s"}"#);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn the_modern_envelope_never_reaches_an_older_client() {
        for version in Version::ALL {
            let modern = version.era() == Era::Modern;
            for (reply, cacheable) in [
                (Reply::Empty, false),
                (Reply::Tools(Page { items: vec![], next: Some(String::new()) }), true),
                (Reply::Call(Outcome::Complete(CallResult::text("x"))), false),
                (Reply::Custom(RawValue::from_string(" { \"a\" : 1 } ".into()).unwrap()), false),
            ] {
                let value = written(&reply, version);
                assert_eq!(value.get("resultType").is_some(), modern, "{version}: {value}");
                assert_eq!(value.get("_meta").is_some(), modern, "{version}: {value}");
                assert_eq!(value.get("ttlMs").is_some(), modern && cacheable, "{version}: {value}");
            }
        }
    }

    #[test]
    fn structured_content_goes_to_those_who_know_it() {
        let with = |value| {
            Reply::Call(Outcome::Complete(CallResult { structured_content: Some(value), ..CallResult::default() }))
        };
        let has = |reply: &Reply, version| written(reply, version).get("structuredContent").is_some();
        let object = with(Value::Object(Map::new()));
        let null = with(Value::Null);
        assert!(!has(&object, Version::V2025_03_26) && has(&object, Version::V2025_06_18));
        assert!(!has(&null, Version::V2025_11_25) && has(&null, Version::V2026_07_28));
    }

    #[test]
    fn content_is_written_part_by_part() {
        let content = vec![
            Content::text("a\"\n"),
            Content::Image { data: "aGk=".into(), mime_type: "image/png".into() },
            Content::text(""),
        ];
        let mut out = Vec::new();
        write_content(&mut out, &content);
        assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&content).unwrap());
    }

    #[test]
    fn a_custom_answer_may_say_its_own_kind() {
        let reply = Reply::Custom(RawValue::from_string(r#"{"resultType":"task"}"#.into()).unwrap());
        assert_eq!(written(&reply, Version::V2026_07_28)["resultType"], "task");
        assert_eq!(written(&reply, Version::V2026_07_28)["_meta"][key::SERVER_INFO]["name"], "s");
    }
}
