//! The JSON Schema of a tool's arguments, written by hand so that its members stand in one order: type, description, properties,
//! required (spec executor 10).

use serde_json::value::RawValue;

/// One argument of a tool.
pub(super) struct Argument {
    pub(super) name: &'static str,
    /// A JSON Schema type.
    pub(super) kind: &'static str,
    pub(super) description: String,
    pub(super) required: bool,
}

impl Argument {
    pub(super) fn required(name: &'static str, kind: &'static str, description: impl Into<String>) -> Self {
        Self { name, kind, description: description.into(), required: true }
    }

    pub(super) fn optional(name: &'static str, kind: &'static str, description: impl Into<String>) -> Self {
        Self { name, kind, description: description.into(), required: false }
    }
}

/// The argument every coding tool has for its executor: proof that the call's facts were read (spec executor 5.3).
pub(super) const STAMP: &str = "dax_stamp";

/// The schema of an object with these arguments and [`STAMP`].
pub(super) fn object(arguments: Vec<Argument>) -> Box<RawValue> {
    let stamp = Argument::optional(STAMP, "string", "added by the executor; leave it out");
    let mut properties = String::new();
    let mut required = String::new();
    for argument in arguments.iter().chain([&stamp]) {
        let comma = if properties.is_empty() { "" } else { "," };
        let Argument { name, kind, description, .. } = argument;
        properties += &format!(r#"{comma}"{name}":{{"type":"{kind}","description":{}}}"#, quoted(description));
        if argument.required {
            let comma = if required.is_empty() { "" } else { "," };
            required += &format!(r#"{comma}"{name}""#);
        }
    }
    let text = format!(r#"{{"type":"object","properties":{{{properties}}},"required":[{required}]}}"#);
    // Names and kinds are constants without quotes, so the text is JSON; a test reads each schema.
    RawValue::from_string(text).unwrap_or_default()
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::scratch::Scratch;
    use crate::tools::{DEFAULT_MAX_READ_BYTES, Settings, coding, testing};

    #[test]
    fn every_tool_has_a_schema_that_can_be_read() {
        let settings = Settings { max_read_bytes: DEFAULT_MAX_READ_BYTES };
        for tool in coding(&testing::open(&Scratch::new()), &settings) {
            let definition = tool.definition();
            let text = definition.input_schema.get();
            assert!(text.starts_with(r#"{"type":"object","#), "{}: {text}", definition.name);
            let schema: serde_json::Value = serde_json::from_str(text).unwrap();
            let properties = schema["properties"].as_object().unwrap();
            assert!(properties.contains_key(STAMP), "{}", definition.name);
            for (name, property) in properties {
                assert!(
                    property["type"].is_string() && property["description"].is_string(),
                    "{}: {name}",
                    definition.name
                );
            }
            for name in schema["required"].as_array().unwrap() {
                assert!(properties.contains_key(name.as_str().unwrap()), "{}: {name}", definition.name);
            }
            assert!(definition.description.len() > 20, "{}", definition.name);
        }
    }

    #[test]
    fn members_stand_in_their_order_and_text_is_escaped() {
        let schema = object(vec![
            Argument::required("path", "string", "a \"quoted\"\nname"),
            Argument::optional("limit", "integer", "how many"),
        ]);
        assert_eq!(
            schema.get(),
            concat!(
                r#"{"type":"object","properties":{"path":{"type":"string","description":"a \"quoted\"\nname"},"#,
                r#""limit":{"type":"integer","description":"how many"},"#,
                r#""dax_stamp":{"type":"string","description":"added by the executor; leave it out"}},"#,
                r#""required":["path"]}"#
            )
        );
    }
}
