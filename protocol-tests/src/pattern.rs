//! Comparing a JSON value with what is expected of it. `vectors/README.md` describes the patterns.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Values that earlier messages left, by name: `$save` puts them here, `$load` takes them.
pub type Saved = BTreeMap<String, Value>;

/// Why a value is not what was expected: where, and how.
pub type Mismatch = String;

/// Compares `found` with `pattern`; what the pattern saves is added to `saved` when all of it fits.
pub fn check(pattern: &Value, found: &Value, saved: &mut Saved) -> Result<(), Mismatch> {
    let mut news = Saved::new();
    compare(pattern, Some(found), "", &mut news)?;
    saved.append(&mut news);
    Ok(())
}

fn compare(pattern: &Value, found: Option<&Value>, at: &str, saved: &mut Saved) -> Result<(), Mismatch> {
    if let Value::Object(members) = pattern
        && members.keys().any(|key| key.starts_with('$'))
    {
        return members.iter().try_for_each(|(operator, operand)| operate(operator, operand, found, at, saved));
    }
    let Some(found) = found else {
        return Err(format!("{} is missing", place(at)));
    };
    match (pattern, found) {
        (Value::Object(members), Value::Object(there)) => compare_members(members, there, at, saved),
        (Value::Array(items), Value::Array(there)) if items.len() == there.len() => items
            .iter()
            .zip(there)
            .enumerate()
            .try_for_each(|(n, (pattern, found))| compare(pattern, Some(found), &format!("{at}[{n}]"), saved)),
        (Value::Number(wanted), Value::Number(there)) if same_number(wanted, there) => Ok(()),
        _ if pattern == found => Ok(()),
        _ => Err(format!("{} is {}, not {pattern}", place(at), short(found))),
    }
}

fn compare_members(
    members: &Map<String, Value>,
    there: &Map<String, Value>,
    at: &str,
    saved: &mut Saved,
) -> Result<(), Mismatch> {
    members.iter().try_for_each(|(key, pattern)| compare(pattern, there.get(key), &format!("{at}.{key}"), saved))
}

/// A value as a message of a few lines at most shows it.
pub fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(700) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

fn place(at: &str) -> &str {
    if at.is_empty() { "the message" } else { at }
}

/// JSON has one number type: 8.0 is 8. Whole numbers are compared without rounding.
fn same_number(one: &serde_json::Number, other: &serde_json::Number) -> bool {
    one == other
        || (!(one.is_f64() && other.is_f64()) && (one.is_f64() || other.is_f64()) && one.as_f64() == other.as_f64())
}

fn operate(
    operator: &str,
    operand: &Value,
    found: Option<&Value>,
    at: &str,
    saved: &mut Saved,
) -> Result<(), Mismatch> {
    if operator == "$absent" {
        return match found {
            None => Ok(()),
            Some(found) => Err(format!("{} is {} and should not be there", place(at), short(found))),
        };
    }
    if operator == "$one_of" {
        let mut last = String::new();
        for pattern in list(operand) {
            match compare(pattern, found, at, saved) {
                Ok(()) => return Ok(()),
                Err(why) => last = why,
            }
        }
        return Err(format!("{} fits none of the choices; of the last: {last}", place(at)));
    }
    if operator == "$and" {
        return list(operand).iter().try_for_each(|pattern| compare(pattern, found, at, saved));
    }
    if operator == "$not" {
        return match compare(operand, found, at, &mut Saved::new()) {
            Ok(()) => Err(format!("{} is what it should not be: {operand}", place(at))),
            Err(_) => Ok(()),
        };
    }
    let Some(found) = found else {
        return Err(format!("{} is missing", place(at)));
    };
    let wrong = |how: &str| Err(format!("{} is {}, which {how} {operand}", place(at), short(found)));
    match operator {
        "$any" => Ok(()),
        "$type" => {
            let fits = match operand.as_str() {
                Some("string") => found.is_string(),
                Some("integer") => found.is_i64() || found.is_u64(),
                Some("number") => found.is_number(),
                Some("boolean") => found.is_boolean(),
                Some("object") => found.is_object(),
                Some("array") => found.is_array(),
                Some("null") => found.is_null(),
                _ => return Err(format!("the vector names no type: {operand}")),
            };
            if fits { Ok(()) } else { wrong("is not of type") }
        }
        "$contains" => match (found.as_str(), operand.as_str()) {
            (Some(text), Some(part)) if text.contains(part) => Ok(()),
            _ => wrong("does not contain"),
        },
        "$lacks" => match (found.as_str(), operand.as_str()) {
            (Some(text), Some(part)) if !text.contains(part) => Ok(()),
            _ => wrong("contains"),
        },
        "$starts" => match (found.as_str(), operand.as_str()) {
            (Some(text), Some(part)) if text.starts_with(part) => Ok(()),
            _ => wrong("does not start with"),
        },
        "$trimmed" => match (found.as_str(), operand.as_str()) {
            (Some(text), Some(wanted)) if text.trim_end() == wanted => Ok(()),
            _ => wrong("is not, but for white space at its end,"),
        },
        "$has" => {
            let Some(there) = found.as_array() else { return wrong("is no list with") };
            for pattern in list(operand) {
                if !there.iter().any(|item| compare(pattern, Some(item), at, saved).is_ok()) {
                    return Err(format!("{} has nothing like {pattern}: {}", place(at), short(found)));
                }
            }
            Ok(())
        }
        "$each" => {
            let Some(there) = found.as_array() else { return wrong("is no list of") };
            there
                .iter()
                .enumerate()
                .try_for_each(|(n, item)| compare(operand, Some(item), &format!("{at}[{n}]"), saved))
        }
        "$length" => {
            let length = match found {
                Value::Array(items) => items.len(),
                Value::Object(members) => members.len(),
                Value::String(text) => text.chars().count(),
                _ => return wrong("has no length"),
            };
            if operand.as_u64() == u64::try_from(length).ok() { Ok(()) } else { wrong("has not the length") }
        }
        "$only" => {
            let (Some(members), Some(there)) = (operand.as_object(), found.as_object()) else {
                return wrong("is no object with only");
            };
            if let Some(more) = there.keys().find(|key| !members.contains_key(*key)) {
                return Err(format!("{at}.{more} should not be there: {}", short(found)));
            }
            compare_members(members, there, at, saved)
        }
        "$at_least" => match (found.as_f64(), operand.as_f64()) {
            (Some(number), Some(least)) if number >= least => Ok(()),
            _ => wrong("is not at least"),
        },
        "$tool_name" => match found.as_str() {
            Some(name)
                if (1..=64).contains(&name.len())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)) =>
            {
                Ok(())
            }
            _ => wrong("is no tool name that every peer takes:"),
        },
        "$save" => {
            let Some(name) = operand.as_str() else { return Err("the vector saves under no name".to_owned()) };
            saved.insert(name.to_owned(), found.clone());
            Ok(())
        }
        _ => Err(format!("the vector has an operator nobody knows: {operator}")),
    }
}

fn list(operand: &Value) -> &[Value] {
    operand.as_array().map_or(std::slice::from_ref(operand), Vec::as_slice)
}

/// What a vector's text is made into before it is used: the values saved, the version's variants, the envelope, long strings.
pub struct Context<'a> {
    /// The version the vector runs at, where it names one.
    pub version: Option<&'a str>,
    /// The members of a modern request's envelope.
    pub envelope: &'a Map<String, Value>,
    /// What was saved.
    pub saved: &'a Saved,
}

impl Context<'_> {
    /// Replaces `$load`, `$by`, `$envelope` and `$repeat` in a value.
    pub fn resolve(&self, value: &Value) -> Result<Value, Mismatch> {
        match value {
            Value::Array(items) => items.iter().map(|item| self.resolve(item)).collect(),
            Value::Object(members) => {
                if let Some(name) = members.get("$load").and_then(Value::as_str) {
                    let value = self.saved.get(name).ok_or_else(|| format!("nothing was saved as {name:?}"))?;
                    if members.get("as").and_then(Value::as_str) == Some("text") {
                        return Ok(Value::String(value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
                    }
                    return match (members.get("append").and_then(Value::as_str), value) {
                        (Some(more), Value::String(text)) => Ok(Value::String(format!("{text}{more}"))),
                        (Some(_), _) => Err(format!("{name:?} is no string to append to")),
                        (None, value) => Ok(value.clone()),
                    };
                }
                if let Some(choices) = members.get("$by").and_then(Value::as_object) {
                    return self.resolve(self.choose(choices)?);
                }
                if let Some(more) = members.get("$envelope").and_then(Value::as_object) {
                    let mut envelope = self.envelope.clone();
                    for (key, value) in more {
                        envelope.insert(key.clone(), self.resolve(value)?);
                    }
                    return Ok(Value::Object(envelope));
                }
                if let Some(text) = members.get("$repeat").and_then(Value::as_str) {
                    let times = members.get("times").and_then(Value::as_u64).ok_or("a repeat says how many times")?;
                    let times = usize::try_from(times).map_err(|_| "a repeat that fits into memory")?;
                    return Ok(Value::String(text.repeat(times)));
                }
                let resolved: Result<Map<_, _>, _> =
                    members.iter().map(|(key, value)| Ok((key.clone(), self.resolve(value)?))).collect();
                resolved.map(Value::Object)
            }
            other => Ok(other.clone()),
        }
    }

    /// The choice for this version: by its name, else by its era, else `else`.
    fn choose<'v>(&self, choices: &'v Map<String, Value>) -> Result<&'v Value, Mismatch> {
        let era = self.version.map(|version| if is_modern(version) { "modern" } else { "legacy" });
        [self.version, era, Some("else")]
            .into_iter()
            .flatten()
            .find_map(|key| choices.get(key))
            .ok_or_else(|| format!("the vector has no choice for version {:?}", self.version))
    }
}

/// Whether a version has an envelope in every request instead of a handshake.
pub fn is_modern(version: &str) -> bool {
    version >= "2026-07-28"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fits(pattern: Value, found: Value) -> bool {
        check(&pattern, &found, &mut Saved::new()).is_ok()
    }

    #[test]
    fn objects_are_open_arrays_and_values_are_exact() {
        assert!(fits(json!({"a": 1}), json!({"a": 1, "b": 2})));
        assert!(!fits(json!({"a": 1}), json!({"b": 2})));
        assert!(!fits(json!({"$only": {"a": 1}}), json!({"a": 1, "b": 2})));
        assert!(fits(json!([1, 2]), json!([1, 2])) && !fits(json!([1]), json!([1, 2])));
        assert!(fits(json!(8), json!(8.0)) && !fits(json!(8), json!("8")));
        assert!(!fits(json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_992_u64)));
        assert!(!fits(json!(null), json!(0)) && !fits(json!({"a": null}), json!({})));
    }

    #[test]
    fn each_operator_can_fail() {
        for (pattern, good, bad) in [
            (json!({"$type": "integer"}), json!(1), json!(1.5)),
            (json!({"$contains": "b"}), json!("abc"), json!("ac")),
            (json!({"$lacks": "b"}), json!("ac"), json!("abc")),
            (json!({"$starts": "a"}), json!("ab"), json!("ba")),
            (json!({"$trimmed": "a"}), json!("a\n"), json!("a b")),
            (json!({"$has": [2]}), json!([1, 2]), json!([1])),
            (json!({"$each": {"$type": "string"}}), json!(["a"]), json!(["a", 1])),
            (json!({"$length": 2}), json!([1, 2]), json!([1])),
            (json!({"$one_of": [1, 2]}), json!(2), json!(3)),
            (json!({"$not": 1}), json!(2), json!(1)),
            (json!({"$at_least": 0}), json!(0), json!(-1)),
            (json!({"$tool_name": true}), json!("a.B-c_1"), json!("a/b")),
            (json!({"a": {"$absent": true}}), json!({}), json!({"a": null})),
            (json!({"a": {"$any": true}}), json!({"a": null}), json!({})),
            (json!({"a": {"$one_of": [{"$absent": true}, null]}}), json!({"a": null}), json!({"a": 1})),
        ] {
            assert!(fits(pattern.clone(), good.clone()), "{pattern} should take {good}");
            assert!(!fits(pattern.clone(), bad.clone()), "{pattern} should not take {bad}");
        }
        assert!(!fits(json!({"$typo": 1}), json!(1)));
    }

    #[test]
    fn what_was_saved_can_be_used_and_a_version_chooses() {
        let mut saved = Saved::new();
        check(&json!({"state": {"$save": "s"}}), &json!({"state": "abc"}), &mut saved).unwrap();
        assert!(check(&json!({"state": {"$save": "t"}, "x": 1}), &json!({"state": "no"}), &mut saved).is_err());
        let envelope = Map::from_iter([("v".to_owned(), json!(1))]);
        saved.insert("n".to_owned(), json!(7));
        let context = Context { version: Some("2025-06-18"), envelope: &envelope, saved: &saved };
        assert_eq!(context.resolve(&json!({"$load": "n", "as": "text"})).unwrap(), json!("7"));
        let resolved = context.resolve(&json!([
            {"$load": "s", "append": "-X"}, {"$by": {"modern": 1, "legacy": 2}}, {"$envelope": {"w": 2}},
            {"$repeat": "ab", "times": 2}
        ]));
        assert_eq!(resolved.unwrap(), json!(["abc-X", 2, {"v": 1, "w": 2}, "abab"]));
        assert!(context.resolve(&json!({"$load": "t"})).is_err());
        assert!(context.resolve(&json!({"$by": {"modern": 1}})).is_err());
    }
}
