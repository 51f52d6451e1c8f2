//! JSON that means one thing to every reader: a key given twice is refused at every depth.
//!
//! Two readers of `{"path":"a","path":"b"}` may act on different paths, which is how an approved call becomes another
//! (CVE-2026-27896, GHSA-q382-vc8q-7jhj). Key comparison is exact; a key with a NUL is just another key.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Reads a value, refusing duplicate keys. Nesting deeper than 128 is refused by the parser below.
pub fn value(text: &str) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Seed.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Reads an object, refusing duplicate keys and anything that is not an object.
pub fn object(text: &str) -> Result<Map<String, Value>, serde_json::Error> {
    match value(text)? {
        Value::Object(map) => Ok(map),
        _ => Err(serde_json::Error::custom("expected an object")),
    }
}

/// A value read by [`value`]'s rules, for a field of a derived type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strict(pub Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Seed.deserialize(deserializer).map(Strict)
    }
}

struct Seed;

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Seed)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let value = members.next_value_seed(Seed)?;
            if map.insert(key, value).is_some() {
                return Err(A::Error::custom("a key is given twice"));
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_given_twice_is_refused_at_every_depth() {
        for (text, good) in [
            (r#"{"a":1,"b":2}"#, true),
            (r#"{"a":1,"a":1}"#, false),
            (r#"{"a":{"b":1,"b":2}}"#, false),
            (r#"[{"x":[{"a":1,"a":2}]}]"#, false),
            (r#"{"a":1,"A":2}"#, true),
            ("{\"a\":1,\"\\u0061\":2}", false),
            ("{\"a\":1,\"a\\u0000\":2}", true),
        ] {
            assert_eq!(value(text).is_ok(), good, "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_crash() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(value(&deep).is_err());
    }

    #[test]
    fn numbers_keep_their_kind() {
        assert_eq!(value("[1,-1,1.5,18446744073709551615]").unwrap().to_string(), "[1,-1,1.5,18446744073709551615]");
    }
}
