//! What belongs to the versions with a handshake alone: `initialize`, and what may come before it (spec mcp 2).

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::connection::Eras;
use super::protocol::{Era, Version, key, method};
use super::reply::Object;
use super::request::read;
use super::server::{Client, Offer, invalid_params, method_not_found};
use super::types::Implementation;
use crate::jsonrpc::ErrorObject;
use crate::jsonrpc::strict::Strict;

/// Reads who greets, and settles the version: the client's when it has a handshake, else the newest that does (spec mcp 2.2).
pub(super) fn client(params: Option<&RawValue>) -> Result<Client, ErrorObject> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Initialize {
        protocol_version: String,
        capabilities: Option<Strict>,
        client_info: Option<Implementation>,
    }
    let greeting: Initialize = read(params.ok_or_else(|| invalid_params("\"initialize\" has no parameters"))?)?;
    let version = Version::parse(&greeting.protocol_version)
        .filter(|version| version.era() == Era::Legacy)
        .unwrap_or(Version::NEWEST_LEGACY);
    let capabilities = match greeting.capabilities {
        None => Map::new(),
        Some(Strict(Value::Object(map))) => map,
        Some(_) => return Err(invalid_params("\"capabilities\" must be an object")),
    };
    Ok(Client { version, info: greeting.client_info, capabilities })
}

/// The handshake's answer.
pub(super) fn greeting(client: &Client, offer: &Offer) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = Object::new(&mut out);
    object.field("protocolVersion", client.version.as_str());
    object.text("capabilities", &capabilities(offer, client.version));
    let mut server = offer.server.clone();
    if client.version < Version::V2025_06_18 {
        server.title = None;
    }
    object.field("serverInfo", &server);
    object.optional("instructions", offer.instructions.as_ref());
    object.end();
    out
}

/// What the server can do, as a version has it (spec mcp 2.4). A flag that is false is left out.
pub(super) fn capabilities(offer: &Offer, version: Version) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = Object::new(&mut out);
    let flags = |flags: &[(&str, bool)]| -> Map<String, Value> {
        flags.iter().filter(|(_, set)| *set).map(|(name, _)| ((*name).to_owned(), Value::Bool(true))).collect()
    };
    if let Some(list_changed) = offer.tools {
        object.field("tools", &flags(&[("listChanged", list_changed)]));
    }
    if let Some(resources) = offer.resources {
        // At 2026-07-28 a client watches by listening; the flag stays.
        object
            .field("resources", &flags(&[("subscribe", resources.subscribe), ("listChanged", resources.list_changed)]));
    }
    if let Some(list_changed) = offer.prompts {
        object.field("prompts", &flags(&[("listChanged", list_changed)]));
    }
    if offer.logging {
        object.field("logging", &Map::new());
    }
    if offer.completions && version >= Version::V2025_03_26 {
        object.field("completions", &Map::new());
    }
    if !offer.experimental.is_empty() {
        object.field("experimental", &offer.experimental);
    }
    if !offer.extensions.is_empty() && version >= Version::V2025_11_25 {
        object.field("extensions", &offer.extensions);
    }
    object.end();
    out
}

/// What a request that came before any handshake, and without an envelope, is met with (spec mcp 2.3).
pub(super) fn before_the_handshake(method: &str, eras: Eras) -> Result<Vec<u8>, ErrorObject> {
    if method == method::PING {
        return Ok(b"{}".to_vec());
    }
    if !super::methods::needs_handshake(method) {
        return Err(method_not_found(method));
    }
    let other = if eras.modern {
        format!(", or give {:?} and {:?} in \"_meta\"", key::PROTOCOL_VERSION, key::CLIENT_CAPABILITIES)
    } else {
        String::new()
    };
    Err(invalid_params(format!("{method:?} came before \"initialize\": send that first{other}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greet(version: &str) -> Result<Client, ErrorObject> {
        let params =
            format!(r#"{{"protocolVersion":{version},"capabilities":{{}},"clientInfo":{{"name":"c","version":"1"}}}}"#);
        client(Some(&RawValue::from_string(params).unwrap()))
    }

    #[test]
    fn a_known_version_is_kept_and_any_other_becomes_the_newest_with_a_handshake() {
        for (offered, settled) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-03-26", "2025-03-26"),
            ("2025-11-25", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("1999-01-01", "2025-11-25"),
            ("2031-01-01", "2025-11-25"),
        ] {
            assert_eq!(greet(&format!("{offered:?}")).unwrap().version.as_str(), settled);
        }
        assert!(greet("7").is_err());
        assert!(client(None).is_err());
    }

    #[test]
    fn a_capability_is_an_object_and_a_false_flag_is_left_out() {
        let offer = Offer { tools: Some(false), completions: true, prompts: Some(true), ..Offer::default() };
        let text = |version| String::from_utf8(capabilities(&offer, version)).unwrap();
        assert_eq!(text(Version::V2024_11_05), r#"{"tools":{},"prompts":{"listChanged":true}}"#);
        assert_eq!(text(Version::V2025_03_26), r#"{"tools":{},"prompts":{"listChanged":true},"completions":{}}"#);
    }
}
