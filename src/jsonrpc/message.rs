//! One message: read strictly, written compactly.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Id;

/// The error codes of JSON-RPC 2.0.
pub mod code {
    /// The text is not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// JSON, but not a message.
    pub const INVALID_REQUEST: i64 = -32600;
    /// No such method, or one whose feature is not offered.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters do not fit the method.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The receiver failed.
    pub const INTERNAL_ERROR: i64 = -32603;
}

/// A message that came in, borrowing from its line.
#[derive(Debug)]
pub enum Message<'a> {
    /// Wants an answer.
    Request {
        /// What the answer is matched by.
        id: Id,
        /// The method's name, exact.
        method: Cow<'a, str>,
        /// An object's text, or nothing; `null` reads as nothing.
        params: Option<&'a RawValue>,
    },
    /// Wants none.
    Notification {
        /// The method's name, exact.
        method: Cow<'a, str>,
        /// An object's text, or nothing.
        params: Option<&'a RawValue>,
    },
    /// Answers a request of ours. The id is missing when the peer could not read it (trap T3).
    Response {
        /// The request's id.
        id: Option<Id>,
        /// The result's text, or the error.
        outcome: Result<&'a RawValue, ErrorObject>,
    },
}

/// An error as it crosses the wire.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorObject {
    /// What kind; any integer may come in (trap T30).
    pub code: i64,
    /// A sentence for a person.
    #[serde(default)]
    pub message: String,
    /// More, as the code defines it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub data: Option<Box<RawValue>>,
}

impl ErrorObject {
    /// An error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The same error with data. Data that has no JSON form is left out.
    #[must_use]
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        self.data = serde_json::value::to_raw_value(data).ok();
        self
    }
}

impl fmt::Display for ErrorObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (code {})", self.message, self.code)
    }
}

impl std::error::Error for ErrorObject {}

/// Why a line is no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Not JSON, or not UTF-8. Never answered on a stream: two peers could answer each other for ever (trap T10).
    NotJson,
    /// A list, which may be a batch (see [`super::members`]).
    Batch,
    /// JSON, but no message; `id` is the request's where one could be read.
    Invalid {
        /// The id to answer with.
        id: Option<Id>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Meant as an answer, but not one. Never answered: the error would be taken for the answer to another request.
    Answer {
        /// The request that it was meant for, which has failed.
        id: Option<Id>,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotJson => f.write_str("not JSON"),
            Self::Batch => f.write_str("a batch, which this version of the protocol has not"),
            Self::Invalid { why, .. } | Self::Answer { why, .. } => f.write_str(why),
        }
    }
}

impl std::error::Error for Malformed {}

impl<'a> Message<'a> {
    /// Reads a message from one line's bytes, by the table of spec mcp 1.5. Members a message may not have are ignored (trap T6);
    /// one it may have, given twice, is refused.
    pub fn parse(line: &'a [u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(line).map_err(|_| Malformed::NotJson)?;
        match text.trim_start_matches([' ', '\t', '\r', '\n']).as_bytes().first() {
            Some(b'{') => {}
            Some(b'[') => return Err(Malformed::Batch),
            _ => return Err(invalid_unless_garbage(text)),
        }
        let members: Members<'a> = serde_json::from_str(text).map_err(|_| Malformed::NotJson)?;
        members.into_message()
    }
}

/// A lone string or number is JSON and no message; anything else that does not start an object is garbage.
fn invalid_unless_garbage(text: &str) -> Malformed {
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Malformed::Invalid { id: None, why: "a message is an object" },
        Err(_) => Malformed::NotJson,
    }
}

/// The members of a message as they stand in the text.
#[derive(Default)]
struct Members<'a> {
    jsonrpc: Option<&'a RawValue>,
    id: Option<&'a RawValue>,
    method: Option<&'a RawValue>,
    params: Option<&'a RawValue>,
    result: Option<&'a RawValue>,
    error: Option<&'a RawValue>,
    /// A member given twice. The id itself given twice leaves no id to answer with.
    twice: bool,
    id_twice: bool,
}

impl<'a> Members<'a> {
    fn into_message(self) -> Result<Message<'a>, Malformed> {
        let id = self.id.filter(|_| !self.id_twice).and_then(Id::parse);
        let is_answer = self.method.is_none() && (self.result.is_some() || self.error.is_some());
        let invalid = |why| {
            let id = id.clone();
            Err(if is_answer { Malformed::Answer { id, why } } else { Malformed::Invalid { id, why } })
        };
        if self.twice {
            return invalid("a member is given twice");
        }
        if self.jsonrpc.and_then(text_of).as_deref() != Some("2.0") {
            return invalid("\"jsonrpc\" must be \"2.0\"");
        }
        if let Some(method) = self.method {
            let Some(method) = text_of(method) else {
                return invalid("\"method\" must be a string");
            };
            if self.result.is_some() || self.error.is_some() {
                return invalid("a message is a request or an answer, not both");
            }
            let params = match self.params {
                None => None,
                Some(raw) => match raw.get().as_bytes().first() {
                    Some(b'{') => Some(raw),
                    Some(b'n') => None,
                    _ => return invalid("\"params\" must be an object"),
                },
            };
            return match (self.id, id) {
                (None, _) => Ok(Message::Notification { method, params }),
                (Some(_), Some(id)) => Ok(Message::Request { id, method, params }),
                // Never carried out as a notification (trap T2).
                (Some(_), None) => Err(Malformed::Invalid { id: None, why: "\"id\" must be a string or an integer" }),
            };
        }
        match (self.result, self.error) {
            (Some(result), None) => match id {
                Some(id) => Ok(Message::Response { id: Some(id), outcome: Ok(result) }),
                None => invalid("an answer must carry its request's id"),
            },
            (None, Some(error)) => match serde_json::from_str(error.get()) {
                Ok(error) => Ok(Message::Response { id, outcome: Err(error) }),
                Err(_) => invalid("\"error\" must have an integer \"code\" and a \"message\""),
            },
            (Some(_), Some(_)) => invalid("an answer is a result or an error, not both"),
            (None, None) => invalid("neither a request nor an answer"),
        }
    }
}

/// The text of a JSON string, borrowed where it has no escapes.
fn text_of(raw: &RawValue) -> Option<Cow<'_, str>> {
    /// Borrows through serde, which a bare `Cow` does not.
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str::<Text<'_>>(raw.get()).ok().map(|text| text.0)
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                #[derive(Deserialize)]
                struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
                let mut members = Members::default();
                while let Some(Key(key)) = map.next_key()? {
                    let slot = match &*key {
                        "jsonrpc" => &mut members.jsonrpc,
                        "id" => {
                            members.id_twice |= members.id.is_some();
                            &mut members.id
                        }
                        "method" => &mut members.method,
                        "params" => &mut members.params,
                        "result" => &mut members.result,
                        "error" => &mut members.error,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    members.twice |= slot.replace(map.next_value()?).is_some();
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

/// Appends an answer: `result` is the JSON text of an object.
pub fn write_result(out: &mut Vec<u8>, id: &Id, result: &[u8]) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    id.write(out);
    out.extend_from_slice(br#","result":"#);
    out.extend_from_slice(result);
    out.push(b'}');
}

/// Appends an error. Without an id the member is left out, which every reader of 2025-11-25 and later takes.
pub fn write_error(out: &mut Vec<u8>, id: Option<&Id>, error: &ErrorObject) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","#);
    if let Some(id) = id {
        out.extend_from_slice(br#""id":"#);
        id.write(out);
        out.push(b',');
    }
    out.extend_from_slice(br#""error":"#);
    // Writing to a Vec cannot fail, and an error object always has a JSON form.
    let _ = serde_json::to_writer(&mut *out, error);
    out.push(b'}');
}

/// Appends a request; `params` is the JSON text of an object, or empty for none.
pub fn write_request(out: &mut Vec<u8>, id: &Id, method: &str, params: &[u8]) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    id.write(out);
    out.push(b',');
    write_method(out, method, params);
}

/// Appends a notification; `params` as for a request.
pub fn write_notification(out: &mut Vec<u8>, method: &str, params: &[u8]) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","#);
    write_method(out, method, params);
}

fn write_method(out: &mut Vec<u8>, method: &str, params: &[u8]) {
    out.extend_from_slice(br#""method":"#);
    let _ = serde_json::to_writer(&mut *out, method);
    if !params.is_empty() {
        out.extend_from_slice(br#","params":"#);
        out.extend_from_slice(params);
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(line: &str) -> String {
        match Message::parse(line.as_bytes()) {
            Ok(Message::Request { id, method, params }) => {
                format!("request {id} {method} {}", params.map_or("-", RawValue::get))
            }
            Ok(Message::Notification { method, params }) => {
                format!("notification {method} {}", params.map_or("-", RawValue::get))
            }
            Ok(Message::Response { id, outcome }) => {
                let id = id.map_or("-".to_owned(), |id| id.to_string());
                match outcome {
                    Ok(result) => format!("result {id} {}", result.get()),
                    Err(error) => format!("error {id} {}", error.code),
                }
            }
            Err(Malformed::NotJson) => "not json".to_owned(),
            Err(Malformed::Batch) => "batch".to_owned(),
            Err(Malformed::Answer { id, .. }) => {
                format!("bad answer {}", id.map_or("-".to_owned(), |id| id.to_string()))
            }
            Err(Malformed::Invalid { id, .. }) => format!("invalid {}", id.map_or("-".to_owned(), |id| id.to_string())),
        }
    }

    #[test]
    fn reads_messages_by_the_table_of_spec_mcp_1_5() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#, "request 1 ping -"),
            (r#"  {"method":"ping","id":"a","jsonrpc":"2.0","params":{"x":1}} "#, r#"request "a" ping {"x":1}"#),
            (r#"{"jsonrpc":"2.0","id":0,"method":"ping","params":null}"#, "request 0 ping -"),
            (r#"{"jsonrpc":"2.0","id":8.0,"method":"ping"}"#, "request 8 ping -"),
            (r#"{"jsonrpc":"2.0","method":"note"}"#, "notification note -"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","extra":1}"#, "request 1 ping -"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"pi\u006eg"}"#, "request 1 ping -"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{}}"#, "result 1 {}"),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":0,"message":"m"}}"#, "error 1 0"),
            (r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}"#, "error - -32700"),
            (r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"m"}}"#, "error - -32700"),
            (r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, "invalid -"),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, "invalid -"),
            (r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#, "invalid -"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}"#, "invalid 1"),
            (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, "invalid 1"),
            (r#"{"id":1,"method":"ping"}"#, "invalid 1"),
            (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, "invalid 1"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"other"}"#, "invalid 1"),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, "invalid -"),
            (r#"{"jsonrpc":"2.0","id":1,"Method":"ping"}"#, "invalid 1"),
            (r#"{"jsonrpc":"2.0","id":1,"method\u0000":"ping"}"#, "invalid 1"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#, "bad answer 1"),
            (r#"{"id":1,"result":{}}"#, "bad answer 1"),
            (r#"{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}"#, "bad answer 1"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "invalid 1"),
            (r#"{"jsonrpc":"2.0","result":{}}"#, "bad answer -"),
            ("[]", "batch"),
            ("7", "invalid -"),
            (r#""text""#, "invalid -"),
            ("{", "not json"),
            ("hello", "not json"),
            ("", "not json"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"ping"} trailing"#, "not json"),
        ] {
            assert_eq!(shape(line), expected, "{line}");
        }
        assert_eq!(Message::parse(b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\"}").unwrap_err(), Malformed::NotJson);
    }

    #[test]
    fn deep_nesting_reaches_nobodys_stack() {
        let deep = format!(
            r#"{{"jsonrpc":"2.0","id":4,"method":"ping","params":{{"a":{}1{}}}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(shape(&deep).starts_with("request 4 ping"));
        let cut = format!(r#"{{"jsonrpc":"2.0","id":4,"x":{}"#, "[".repeat(100_000));
        assert_eq!(shape(&cut), "not json");
    }

    #[test]
    fn writes_what_it_reads() {
        let mut out = Vec::new();
        write_request(&mut out, &Id::from(3), "a/b", br#"{"x":1}"#);
        assert_eq!(shape(std::str::from_utf8(&out).unwrap()), r#"request 3 a/b {"x":1}"#);
        out.clear();
        write_error(&mut out, None, &ErrorObject::new(-32600, "no \"id\"").with_data(&[1]));
        assert_eq!(
            std::str::from_utf8(&out).unwrap(),
            r#"{"jsonrpc":"2.0","error":{"code":-32600,"message":"no \"id\"","data":[1]}}"#
        );
        out.clear();
        write_notification(&mut out, "n", b"");
        assert_eq!(shape(std::str::from_utf8(&out).unwrap()), "notification n -");
        out.clear();
        write_result(&mut out, &Id::String("x".into()), b"{}");
        assert_eq!(shape(std::str::from_utf8(&out).unwrap()), r#"result "x" {}"#);
    }
}
