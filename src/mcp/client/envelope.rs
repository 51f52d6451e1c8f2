//! What every request carries beside its parameters: the envelope of 2026-07-28, and the token its progress comes with (spec mcp 3.1, 4.1).

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::mcp::protocol::{Level, Version, key};
use crate::mcp::types::Implementation;

/// The keys of `_meta` that are the client's to set, and no caller's.
pub(super) const OURS: [&str; 5] =
    [key::PROTOCOL_VERSION, key::CLIENT_CAPABILITIES, key::CLIENT_INFO, key::LOG_LEVEL, key::PROGRESS_TOKEN];

/// The members of `_meta` that name the version, the client and what it can do: JSON without the braces.
pub(super) fn envelope(version: Version, info: &Implementation, capabilities: &Map<String, Value>) -> String {
    let mut members = String::new();
    member(&mut members, key::PROTOCOL_VERSION, &version.as_str());
    member(&mut members, key::CLIENT_INFO, info);
    member(&mut members, key::CLIENT_CAPABILITIES, capabilities);
    members
}

/// Adds the level from which on log messages are wanted.
pub(super) fn with_level(members: &mut String, level: Level) {
    member(members, key::LOG_LEVEL, &level);
}

/// Adds the token progress notifications are to carry.
pub(super) fn with_token(members: &mut String, token: i64) {
    member(members, key::PROGRESS_TOKEN, &token);
}

/// Adds a member to the text of members without braces.
pub(super) fn member(members: &mut String, name: &str, value: &(impl serde::Serialize + ?Sized)) {
    // A name always has a JSON form; a value without one leaves the member out.
    let (Ok(name), Ok(value)) = (serde_json::to_string(name), serde_json::to_string(value)) else { return };
    if !members.is_empty() {
        members.push(',');
    }
    members.push_str(&name);
    members.push(':');
    members.push_str(&value);
}

/// The text of an object with members added at its end; `members` is without braces.
pub(super) fn with_members(object: &str, members: &str) -> String {
    let inner = object.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
    let between = if inner.trim().is_empty() || members.is_empty() { "" } else { "," };
    format!("{{{inner}{between}{members}}}")
}

/// The text of parameters with `members` among those of their `_meta`; all else stays as it was written.
///
/// Fails, saying why, when `params` or their `_meta` is no object.
pub(super) fn with_meta(params: &str, members: &str) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Top<'a> {
        #[serde(rename = "_meta", borrow, deserialize_with = "present", default)]
        meta: Option<&'a RawValue>,
    }
    let unreadable = |error: serde_json::Error| format!("its parameters cannot be read: {error}");
    if !params.trim_start().starts_with('{') {
        return Err("its parameters are no object".to_owned());
    }
    if members.is_empty() {
        return Ok(params.to_owned());
    }
    let top: Top<'_> = serde_json::from_str(params).map_err(unreadable)?;
    let Some(meta) = top.meta else {
        return Ok(with_members(params, &format!(r#""_meta":{{{members}}}"#)));
    };
    let mut theirs: Map<String, Value> = serde_json::from_str(meta.get()).map_err(unreadable)?;
    let ours: Map<String, Value> = serde_json::from_str(&format!("{{{members}}}")).map_err(unreadable)?;
    theirs.retain(|name, _| !ours.contains_key(name));
    let merged = with_members(&serde_json::to_string(&theirs).map_err(unreadable)?, members);
    // The text of `_meta` is a part of the parameters' text, and so its place in it is known.
    let start = (meta.get().as_ptr() as usize).saturating_sub(params.as_ptr() as usize);
    let before = params.get(..start).unwrap_or_default();
    let after = params.get(start.saturating_add(meta.get().len())..).unwrap_or_default();
    Ok(format!("{before}{merged}{after}"))
}

/// Tells a member that is null from one that is missing.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(text: &str) -> Value {
        crate::jsonrpc::strict::value(text).unwrap()
    }

    #[test]
    fn members_join_those_that_stand_there() {
        let members = r#""progressToken":3"#;
        for (params, expected) in [
            ("{}", json!({"_meta": {"progressToken": 3}})),
            (" { } ", json!({"_meta": {"progressToken": 3}})),
            (r#"{"a":1}"#, json!({"a": 1, "_meta": {"progressToken": 3}})),
            (r#"{"_meta":{},"a":1}"#, json!({"a": 1, "_meta": {"progressToken": 3}})),
            (
                r#"{"a":{"_meta":{"x":0}},"_meta" : {"traceparent":"t","progressToken":9} ,"b":2}"#,
                json!({"a": {"_meta": {"x": 0}}, "b": 2, "_meta": {"traceparent": "t", "progressToken": 3}}),
            ),
        ] {
            assert_eq!(parsed(&with_meta(params, members).unwrap()), expected, "{params}");
        }
        for params in [r#"{"_meta":null}"#, r#"{"_meta":1}"#, r#"{"_meta":{},"_meta":{}}"#, "[1]", "7"] {
            assert!(with_meta(params, members).is_err(), "{params}");
        }
    }

    #[test]
    fn the_rest_is_left_as_it_was_written() {
        let params = r#"{"arguments": {"b":1.0,"a":"x\ny", "c":12345678901234567890123}}"#;
        assert_eq!(with_meta(params, "").unwrap(), params);
        assert_eq!(
            with_meta(params, r#""k":1"#).unwrap(),
            r#"{"arguments": {"b":1.0,"a":"x\ny", "c":12345678901234567890123},"_meta":{"k":1}}"#
        );
    }

    #[test]
    fn the_envelope_names_version_client_and_capabilities() {
        let info = Implementation { name: "a".into(), version: "1".into(), title: None };
        let mut members = envelope(Version::V2026_07_28, &info, &Map::new());
        with_level(&mut members, Level::Error);
        with_token(&mut members, 4);
        assert_eq!(
            parsed(&format!("{{{members}}}")),
            json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientInfo": {"name": "a", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/logLevel": "error",
                "progressToken": 4,
            })
        );
    }
}
