//! A call's arguments, read by exact key and checked by type, with the sentence that says what does not fit.

use serde_json::{Map, Value};

use super::Failure;

/// The arguments of one call: a JSON object whose keys a tool takes by exact name (spec executor 5.4).
#[derive(Clone, Debug, Default)]
pub struct Arguments(Map<String, Value>);

impl From<Map<String, Value>> for Arguments {
    fn from(map: Map<String, Value>) -> Self {
        Self(map)
    }
}

impl Arguments {
    /// Refuses a key that equals one of `known` only when case is folded: such a call means something else to another reader.
    /// Folding is Unicode's simple folding as far as it meets ASCII: letters in either case, U+017F for `s`, U+212A for `k`.
    pub fn known(&self, known: &[&str]) -> Result<(), Failure> {
        for key in self.0.keys() {
            if known.contains(&key.as_str()) {
                continue;
            }
            if let Some(meant) = known.iter().find(|name| folded(key).eq(name.chars())) {
                return Err(Failure::InvalidArguments(format!("{key:?} must be written {meant:?}")));
            }
        }
        Ok(())
    }

    /// A string that must be there.
    pub fn string(&self, key: &str) -> Result<&str, Failure> {
        self.optional_string(key)?.ok_or_else(|| Failure::InvalidArguments(format!("{key:?} is required")))
    }

    /// A string that may be missing or null.
    pub fn optional_string(&self, key: &str) -> Result<Option<&str>, Failure> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(mistyped(key, "a string", other)),
        }
    }

    /// A boolean that may be missing or null; false then.
    pub fn flag(&self, key: &str) -> Result<bool, Failure> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(mistyped(key, "true or false", other)),
        }
    }

    /// A whole number of at least zero that may be missing or null. `8.0` is 8: JSON has one number type.
    pub fn count(&self, key: &str) -> Result<Option<u64>, Failure> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value @ Value::Number(number)) => {
                if let Some(count) = number.as_u64() {
                    return Ok(Some(count));
                }
                match number.as_f64() {
                    // A cast of a float stops at the largest number there is, which is what a count that large means.
                    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                    Some(float) if float.fract() == 0.0 && float >= 0.0 => Ok(Some(float as u64)),
                    _ => Err(mistyped(key, "a whole number of at least 0", value)),
                }
            }
            Some(other) => Err(mistyped(key, "a whole number of at least 0", other)),
        }
    }
}

fn mistyped(key: &str, wanted: &str, found: &Value) -> Failure {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    Failure::InvalidArguments(format!("{key:?} must be {wanted}, not {found}"))
}

fn folded(key: &str) -> impl Iterator<Item = char> + '_ {
    key.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Arguments {
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => map.into(),
            other => panic!("not an object: {other:?}"),
        }
    }

    #[test]
    fn a_key_in_another_case_is_refused_and_an_unknown_one_is_not() {
        for (text, wrong) in [
            (r#"{"Path":"a"}"#, true),
            (r#"{"path":"a","PATH":"b"}"#, true),
            ("{\"dax_\u{17f}tamp\":\"a\"}", true),
            (r#"{"path":"a","other":1}"#, false),
        ] {
            assert_eq!(arguments(text).known(&["path", "dax_stamp"]).is_err(), wrong, "{text}");
        }
    }

    #[test]
    fn counts_are_whole_and_not_negative() {
        let given = arguments(r#"{"a":3,"b":8.0,"c":-1,"d":1.5,"e":"3","f":null,"g":1e300,"h":18446744073709551616}"#);
        assert_eq!(given.count("a").unwrap(), Some(3));
        assert_eq!(given.count("b").unwrap(), Some(8));
        assert_eq!(given.count("f").unwrap(), None);
        assert_eq!(given.count("missing").unwrap(), None);
        assert_eq!(given.count("g").unwrap(), Some(u64::MAX));
        assert_eq!(given.count("h").unwrap(), Some(u64::MAX));
        for key in ["c", "d", "e"] {
            let error = given.count(key).unwrap_err().to_string();
            assert!(error.starts_with("invalid arguments: "), "{error}");
            assert!(error.contains(key), "{error}");
        }
    }
}
