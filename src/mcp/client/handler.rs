//! What a server may ask of its client, and tell it.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::jsonrpc::{self, ErrorObject};
use crate::mcp::protocol::{Level, method};
use crate::os::cancel::Cancel;

/// Answers what a server asks. Called from several threads at once, never from the one that reads, so it may block: `cancel` is thrown
/// when nobody waits for the answer any more.
///
/// What the client did not declare among its capabilities is refused before it comes here.
pub trait Handler: Send + Sync + 'static {
    /// The directories the server may look at: `{uri, name?}` each.
    fn roots(&self, _cancel: &Cancel) -> Result<Vec<Root>, ErrorObject> {
        Err(refusal(method::ROOTS_LIST))
    }

    /// Lets a model answer; `params` and the result as spec mcp 4.7 has them.
    fn sample(&self, _params: &Map<String, Value>, _cancel: &Cancel) -> Result<Map<String, Value>, ErrorObject> {
        Err(refusal(method::SAMPLING))
    }

    /// Asks the person; `params` and the result as spec mcp 4.6 has them. That the person declines is a result, not an error.
    fn elicit(&self, _params: &Map<String, Value>, _cancel: &Cancel) -> Result<Map<String, Value>, ErrorObject> {
        Err(refusal(method::ELICITATION))
    }

    /// Answers a method the protocol does not have, with the text of an object.
    fn custom(&self, method: &str, _params: Option<&RawValue>, _cancel: &Cancel) -> Result<Box<RawValue>, ErrorObject> {
        Err(refusal(method))
    }

    /// The server tells something. Called from one thread, in order; what comes faster than this returns is dropped in the end.
    fn notified(&self, _notification: Notification) {}
}

/// Answers nothing and listens to nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHandler;

impl Handler for NoHandler {}

/// A directory a server may look at.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Root {
    /// A `file:` URI.
    pub uri: String,
    /// A name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// What a server tells without being asked.
#[derive(Clone, Debug)]
pub enum Notification {
    /// A message of its log.
    Log {
        /// How grave; a level that does not exist reads as info.
        level: Level,
        /// Which part of the server says it.
        logger: Option<String>,
        /// What it says, as it stands on the wire.
        data: Box<RawValue>,
    },
    /// The list of tools changed.
    ToolsChanged,
    /// The list of prompts changed.
    PromptsChanged,
    /// The list of resources changed.
    ResourcesChanged,
    /// A resource changed.
    ResourceUpdated {
        /// Its URI.
        uri: String,
    },
    /// Anything else.
    Other {
        /// What.
        method: String,
        /// The text of an object, or nothing.
        params: Option<Box<RawValue>>,
    },
}

impl Notification {
    /// Reads one; what does not fit its method is handed on as it is.
    pub(super) fn read(method: &str, params: Option<&RawValue>) -> Self {
        #[derive(serde::Deserialize)]
        struct Log<'a> {
            #[serde(default)]
            level: Option<Value>,
            #[serde(default)]
            logger: Option<String>,
            #[serde(borrow)]
            data: &'a RawValue,
        }
        #[derive(serde::Deserialize)]
        struct Updated {
            uri: String,
        }
        let text = params.map_or("{}", RawValue::get);
        let known = match method {
            method::TOOLS_CHANGED => Some(Self::ToolsChanged),
            method::PROMPTS_CHANGED => Some(Self::PromptsChanged),
            method::RESOURCES_CHANGED => Some(Self::ResourcesChanged),
            method::RESOURCE_UPDATED => {
                serde_json::from_str::<Updated>(text).ok().map(|updated| Self::ResourceUpdated { uri: updated.uri })
            }
            method::MESSAGE => serde_json::from_str::<Log<'_>>(text).ok().map(|log| Self::Log {
                level: log.level.and_then(|level| serde_json::from_value(level).ok()).unwrap_or(Level::Info),
                logger: log.logger,
                data: log.data.to_owned(),
            }),
            _ => None,
        };
        known.unwrap_or_else(|| Self::Other { method: method.to_owned(), params: params.map(ToOwned::to_owned) })
    }
}

/// What a client that cannot do something answers.
pub(super) fn refusal(method: &str) -> ErrorObject {
    ErrorObject::new(jsonrpc::code::METHOD_NOT_FOUND, format!("this client does not offer {method:?}"))
}

/// Whether the capabilities a client declared cover a question of the server; the error to answer with where they do not.
pub(super) fn declared(
    capabilities: &Map<String, Value>,
    method: &str,
    params: &Map<String, Value>,
) -> Result<(), ErrorObject> {
    let name = match method {
        method::ROOTS_LIST => "roots",
        method::SAMPLING => "sampling",
        method::ELICITATION => "elicitation",
        _ => return Ok(()),
    };
    let Some(capability) = capabilities.get(name) else {
        return Err(refusal(method));
    };
    if method != method::ELICITATION {
        return Ok(());
    }
    // An empty declaration means forms alone (spec mcp 4.6).
    let mode = params.get("mode").and_then(Value::as_str).unwrap_or("form");
    let offered = match mode {
        "form" => capability.get("form").is_some() || capability.get("url").is_none(),
        other => capability.get(other).is_some(),
    };
    if offered {
        Ok(())
    } else {
        Err(ErrorObject::new(jsonrpc::code::INVALID_PARAMS, format!("this client does not elicit in mode {mode:?}")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn only_what_was_declared_is_answered() {
        for (capabilities, method, params, expected) in [
            (json!({}), "roots/list", json!({}), Some(-32601)),
            (json!({"roots": {}}), "roots/list", json!({}), None),
            (json!({"roots": {}}), "sampling/createMessage", json!({}), Some(-32601)),
            (json!({}), "elicitation/create", json!({}), Some(-32601)),
            (json!({"elicitation": {}}), "elicitation/create", json!({}), None),
            (json!({"elicitation": {}}), "elicitation/create", json!({"mode": "form"}), None),
            (json!({"elicitation": {}}), "elicitation/create", json!({"mode": "url"}), Some(-32602)),
            (json!({"elicitation": {"url": {}}}), "elicitation/create", json!({"mode": "url"}), None),
            (json!({"elicitation": {"url": {}}}), "elicitation/create", json!({}), Some(-32602)),
            (json!({"elicitation": {"url": {}, "form": {}}}), "elicitation/create", json!({}), None),
            (json!({}), "com.example/ask", json!({}), None),
        ] {
            let answer = declared(&map(capabilities.clone()), method, &map(params.clone()));
            assert_eq!(answer.err().map(|error| error.code), expected, "{capabilities} {method} {params}");
        }
    }

    #[test]
    fn a_notification_that_does_not_fit_is_handed_on_as_it_is() {
        let read = |method: &str, params: &str| {
            Notification::read(method, Some(&RawValue::from_string(params.to_owned()).unwrap()))
        };
        assert!(matches!(
            read("notifications/message", r#"{"level":"error","logger":"a","data":null}"#),
            Notification::Log { level: Level::Error, logger: Some(_), .. }
        ));
        assert!(matches!(
            read("notifications/message", r#"{"level":"loud","data":1}"#),
            Notification::Log { level: Level::Info, .. }
        ));
        assert!(matches!(read("notifications/message", r#"{"level":"info"}"#), Notification::Other { .. }));
        assert!(matches!(read("notifications/resources/updated", r#"{"uri":7}"#), Notification::Other { .. }));
        assert!(matches!(read("com.example/x", "{}"), Notification::Other { .. }));
        assert!(matches!(Notification::read("notifications/tools/list_changed", None), Notification::ToolsChanged));
    }
}
