//! Batches: a list of messages in one line, which only protocol version 2025-03-26 knows (spec mcp 1.3).

use serde_json::value::RawValue;

/// The most messages a batch may hold; a longer one is refused whole.
pub const BATCH_MAX_MESSAGES: usize = 100;

/// The messages of a batch, each as its own text; `None` for what is not a list of 1 to [`BATCH_MAX_MESSAGES`] values.
pub fn members(line: &[u8]) -> Option<Vec<&RawValue>> {
    let text = std::str::from_utf8(line).ok()?;
    let members: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    (1..=BATCH_MAX_MESSAGES).contains(&members.len()).then_some(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_one_to_a_hundred_messages() {
        let list = |n: usize| format!("[{}]", vec!["{}"; n].join(","));
        assert!(members(b"[]").is_none());
        assert_eq!(members(list(1).as_bytes()).unwrap().len(), 1);
        assert_eq!(members(list(100).as_bytes()).unwrap().len(), 100);
        assert!(members(list(101).as_bytes()).is_none());
        assert!(members(b"{}").is_none());
    }
}
