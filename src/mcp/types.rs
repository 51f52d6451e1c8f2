//! What tools, resources and prompts look like on the wire. What a peer adds to them is ignored; what it must keep opaque, such as a
//! schema, is kept as its text, so that no keyword and no order is lost (spec mcp 5.1).

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::protocol::Version;

/// Who a client or a server is; for display only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Implementation {
    /// The program's name.
    pub name: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub title: Option<String>,
}

/// A tool as it is listed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tool {
    /// What it is called by. Emit at most 64 of `[A-Za-z0-9_.-]`; accept anything (trap T42).
    pub name: String,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub title: Option<String>,
    /// What it does, for a model.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub description: Option<String>,
    /// A JSON Schema, root type object, as its text.
    pub input_schema: Box<RawValue>,
    /// A JSON Schema of the structured output.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output_schema: Option<Box<RawValue>>,
    /// Hints, not to be trusted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub annotations: Option<Map<String, Value>>,
    /// The server's statements beyond the protocol.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none", default)]
    pub meta: Option<Map<String, Value>>,
}

impl Tool {
    /// A tool with a name, a description and a schema; the schema is taken as it is.
    pub fn new(name: impl Into<String>, description: impl Into<String>, input_schema: Box<RawValue>) -> Self {
        Self {
            name: name.into(),
            title: None,
            description: Some(description.into()),
            input_schema,
            output_schema: None,
            annotations: None,
            meta: None,
        }
    }
}

/// A piece of a tool's answer or of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Content {
    /// Words.
    Text {
        /// The words.
        text: String,
    },
    /// A picture.
    Image {
        /// Its bytes in base64.
        data: String,
        /// Its media type.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
    /// A sound, from 2025-03-26.
    Audio {
        /// Its bytes in base64.
        data: String,
        /// Its media type.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
    /// A resource's content.
    Resource {
        /// The content.
        resource: ResourceContents,
    },
    /// A pointer to a resource, from 2025-06-18.
    ResourceLink(Resource),
    /// A kind this version of the code does not know; kept, never refused.
    #[serde(untagged)]
    Other(Value),
}

impl Content {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// A tool's answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CallResult {
    /// For the model, in order; may be empty.
    pub content: Vec<Content>,
    /// For a program. An explicit null is a value at 2026-07-28 (trap T35).
    #[serde(deserialize_with = "present")]
    pub structured_content: Option<Value>,
    /// Whether the tool failed: the content then says why.
    pub is_error: bool,
    /// The server's own.
    #[serde(rename = "_meta")]
    pub meta: Option<Map<String, Value>>,
}

impl CallResult {
    /// A success with words.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Content::text(text)], ..Self::default() }
    }

    /// A failure with words.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }
}

/// Tells a member that is null from one that is missing.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A resource as it is listed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// Its URI, kept byte for byte.
    pub uri: String,
    /// A short name.
    #[serde(default)]
    pub name: String,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub title: Option<String>,
    /// What it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub description: Option<String>,
    /// Its media type.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mime_type: Option<String>,
    /// Its size in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<u64>,
}

/// A family of resources as it is listed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceTemplate {
    /// An RFC 6570 template, kept byte for byte.
    pub uri_template: String,
    /// A short name.
    #[serde(default)]
    pub name: String,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub title: Option<String>,
    /// What the family is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub description: Option<String>,
    /// The media type of its members.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mime_type: Option<String>,
}

/// A resource's content: text, or bytes in base64.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceContents {
    /// The URI it was read by.
    pub uri: String,
    /// Its media type.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mime_type: Option<String>,
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text: Option<String>,
    /// The bytes in base64.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub blob: Option<String>,
}

/// A prompt as it is listed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// What it is got by.
    pub name: String,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub title: Option<String>,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub description: Option<String>,
    /// What it takes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub arguments: Vec<PromptArgument>,
}

/// What a prompt takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptArgument {
    /// Its name.
    pub name: String,
    /// What it is.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub description: Option<String>,
    /// Whether it must be given.
    #[serde(default)]
    pub required: bool,
}

/// A prompt that was got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptResult {
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub description: Option<String>,
    /// Its messages in order.
    pub messages: Vec<PromptMessage>,
}

/// A message of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptMessage {
    /// Whose words they are: `user` or `assistant`.
    pub role: String,
    /// The words.
    pub content: Content,
}

/// What may stand where words are completed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Completion {
    /// At most 100 of them.
    pub values: Vec<String>,
    /// How many there are in all.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub total: Option<u64>,
    /// Whether there are more.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub has_more: Option<bool>,
}

impl Tool {
    /// The tool as a version has it: what came later is left out (spec mcp 0).
    #[must_use]
    pub fn at(&self, version: Version) -> Self {
        let mut tool = self.clone();
        if version < Version::V2025_03_26 {
            tool.annotations = None;
        }
        if version < Version::V2025_06_18 {
            tool.title = None;
            tool.output_schema = None;
            tool.meta = None;
        }
        tool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_an_unknown_kind_is_kept() {
        for text in [
            r#"{"type":"text","text":"a"}"#,
            r#"{"type":"image","data":"aGk=","mimeType":"image/png"}"#,
            r#"{"type":"resource","resource":{"uri":"test://a","text":"x"}}"#,
            r#"{"type":"resource_link","uri":"test://a","name":"a"}"#,
            r#"{"type":"hologram","x":1}"#,
        ] {
            let content: Content = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::from_str::<Value>(text).unwrap(), serde_json::to_value(&content).unwrap());
            assert_eq!(matches!(content, Content::Other(_)), text.contains("hologram"));
        }
    }

    #[test]
    fn an_explicit_null_is_not_a_missing_member() {
        let with: CallResult = serde_json::from_str(r#"{"content":[],"structuredContent":null}"#).unwrap();
        let without: CallResult = serde_json::from_str(r#"{"structuredContent2":1}"#).unwrap();
        assert_eq!((with.structured_content, without.structured_content), (Some(Value::Null), None));
    }
}
