//! A request's id: a string or an integer, kept exactly as it came.

use std::fmt;

use serde_json::value::RawValue;

/// What an answer is matched by. An integer keeps its value beyond 2^53, where other readers round (trap T4);
/// a string and an integer that look alike are two ids (trap T5).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    /// A whole number. JSON has one number type, so `8.0` and `8` are the same id.
    Integer(i128),
    /// Text.
    String(Box<str>),
}

impl Id {
    /// Reads an id from its JSON text; `None` for what may not be one: null, a fraction, true, a list, an integer of more than 38 digits.
    pub fn parse(raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        match text.as_bytes().first()? {
            b'"' => serde_json::from_str::<Box<str>>(text).ok().map(Self::String),
            b'-' | b'0'..=b'9' => integer(text).map(Self::Integer),
            _ => None,
        }
    }

    /// Appends the id as JSON.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Integer(number) => out.extend_from_slice(number.to_string().as_bytes()),
            // Writing to a Vec cannot fail, and a string always has a JSON form.
            Self::String(text) => drop(serde_json::to_writer(out, text)),
        }
    }

    /// How many bytes it takes beside its own size: as long as the peer likes.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Integer(_) => 0,
            Self::String(text) => text.len(),
        }
    }

    /// The integer that a string id spells, for a peer that answers "7" to 7: tried only after an exact match failed (trap T5).
    pub fn lenient(&self) -> Option<Self> {
        match self {
            Self::String(text) => text.parse().ok().map(Self::Integer),
            Self::Integer(_) => None,
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::String(text) => write!(f, "{text:?}"),
        }
    }
}

impl From<i64> for Id {
    fn from(number: i64) -> Self {
        Self::Integer(number.into())
    }
}

/// A JSON number as a whole number, without a detour through floating point where it is written as an integer.
fn integer(text: &str) -> Option<i128> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    // `8.0` and `8e0`: a fraction of zeros only, or an exponent. Up to 2^53 a float is exact, beyond it this would round.
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.bytes().all(|digit| digit == b'0') && !text.contains(['e', 'E']) {
        return whole.parse().ok();
    }
    let float: f64 = text.parse().ok()?;
    // The bound makes the cast exact.
    #[allow(clippy::cast_possible_truncation)]
    (float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0).then_some(float as i128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_may_be_an_id_and_nothing_else() {
        for (text, expected) in [
            ("0", Some(Id::Integer(0))),
            ("-3", Some(Id::Integer(-3))),
            ("8.0", Some(Id::Integer(8))),
            ("1e3", Some(Id::Integer(1000))),
            ("9007199254740993", Some(Id::Integer(9_007_199_254_740_993))),
            ("9007199254740993.0", Some(Id::Integer(9_007_199_254_740_993))),
            ("18446744073709551616", Some(Id::Integer(18_446_744_073_709_551_616))),
            (r#""9""#, Some(Id::String("9".into()))),
            (r#""a\nb""#, Some(Id::String("a\nb".into()))),
            (r#""""#, Some(Id::String("".into()))),
            ("1.5", None),
            ("1e400", None),
            ("true", None),
            ("null", None),
            ("[]", None),
            ("{}", None),
            ("1234567890123456789012345678901234567890123", None),
        ] {
            let raw: &RawValue = serde_json::from_str(text).unwrap();
            assert_eq!(Id::parse(raw), expected, "{text}");
        }
    }

    #[test]
    fn comes_back_as_it_went() {
        for text in ["0", "-3", "9007199254740993", r#""9""#, r#""a\nb""#] {
            let raw: &RawValue = serde_json::from_str(text).unwrap();
            let mut out = Vec::new();
            Id::parse(raw).unwrap().write(&mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}
