//! Finds the id of a message while its line is being thrown away, so that the one who waits for it gets an answer: the peer whose
//! request it was, or the caller here whose answer it was.
//!
//! A scanner of constant size: it follows strings and nesting, and keeps the text of the top level's `id` alone.

use serde_json::value::RawValue;

use super::Id;

/// The longest id text that is kept; a longer one counts as none.
const ID_MAX_BYTES: usize = 256;

/// The longest key that needs to be told from others.
const KEY_MAX_BYTES: usize = 8;

/// Whose id a line held that was thrown away.
#[derive(Debug, PartialEq, Eq)]
pub enum Owner {
    /// A request of the peer.
    Request(Id),
    /// An answer to a request of ours.
    Answer(Id),
}

/// What has been seen of a line so far.
#[derive(Default)]
pub(super) struct Finder {
    depth: u64,
    in_string: bool,
    escaped: bool,
    place: Place,
    /// The text of the key or of the id that is being read.
    text: Vec<u8>,
    id: Option<Vec<u8>>,
    ids: u32,
    is_request: bool,
    is_answer: bool,
}

/// Where in the top level's object the scanner stands.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Place {
    /// Before or in a key.
    #[default]
    Key,
    /// In the value of `id`.
    Id,
    /// In another value.
    Other,
}

impl Finder {
    /// Goes on with the next bytes of the line.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.step(byte);
        }
    }

    /// The id, where the line was a request or an answer with exactly one.
    pub(super) fn finish(self) -> Option<Owner> {
        let id = self.id.filter(|_| self.is_request != self.is_answer && self.ids == 1)?;
        let raw: &RawValue = serde_json::from_slice(&id).ok()?;
        let id = Id::parse(raw)?;
        Some(if self.is_request { Owner::Request(id) } else { Owner::Answer(id) })
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            self.keep(byte);
            if self.escaped {
                self.escaped = false;
            } else if byte == b'\\' {
                self.escaped = true;
            } else if byte == b'"' {
                self.in_string = false;
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.keep(byte);
            }
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                if self.depth == 1 {
                    self.end_of_value();
                }
                self.depth = self.depth.saturating_sub(1);
            }
            b':' if self.depth == 1 => {
                self.place = match self.text.as_slice() {
                    br#""id""# => {
                        self.ids = self.ids.saturating_add(1);
                        Place::Id
                    }
                    br#""method""# => {
                        self.is_request = true;
                        Place::Other
                    }
                    br#""result""# | br#""error""# => {
                        self.is_answer = true;
                        Place::Other
                    }
                    _ => Place::Other,
                };
                self.text.clear();
            }
            b',' if self.depth == 1 => self.end_of_value(),
            b' ' | b'\t' | b'\r' => {}
            _ => self.keep(byte),
        }
    }

    fn keep(&mut self, byte: u8) {
        let most = match self.place {
            Place::Key => KEY_MAX_BYTES + 1,
            Place::Id => ID_MAX_BYTES + 1,
            Place::Other => return,
        };
        if self.depth == 1 && self.text.len() < most {
            self.text.push(byte);
        }
    }

    fn end_of_value(&mut self) {
        if self.place == Place::Id && self.text.len() <= ID_MAX_BYTES {
            self.id = Some(std::mem::take(&mut self.text));
        }
        self.text.clear();
        self.place = Place::Key;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_id_of_the_top_level_alone() {
        for (line, expected) in [
            (r#"{"id":7,"method":"a"}"#, Some(Owner::Request(Id::from(7)))),
            (
                r#"{"method":"a","params":{"id":1,"x":["id",{"id":2}]} , "id" : "s\"}" }"#,
                Some(Owner::Request(Id::String("s\"}".into()))),
            ),
            (r#"{"method":"a","params":{"x":"\",\"id\":3,"},"id":4}"#, Some(Owner::Request(Id::from(4)))),
            (r#"{"id":7,"result":{}}"#, Some(Owner::Answer(Id::from(7)))),
            (r#"{"error":{"method":"a"},"id":"7"}"#, Some(Owner::Answer(Id::String("7".into())))),
            (r#"{"id":7,"result":{},"method":"a"}"#, None),
            (r#"{"id":7}"#, None),
            (r#"{"id":7,"id":8,"method":"a"}"#, None),
            (r#"{"id":null,"method":"a"}"#, None),
            (r#"{"id":[1],"method":"a"}"#, None),
            (r#"{"method":"a","params":{}}"#, None),
            ("]]]]{{{{\"id\":", None),
        ] {
            let mut finder = Finder::default();
            finder.take(line.as_bytes());
            assert_eq!(finder.finish(), expected, "{line}");
        }
    }

    #[test]
    fn keeps_little() {
        let mut finder = Finder::default();
        finder.take(br#"{"method":"a","id":""#);
        finder.take(&vec![b'x'; 1 << 20]);
        assert!(finder.text.len() <= ID_MAX_BYTES + 1);
        finder.take(b"\"}");
        assert_eq!(finder.finish(), None);
    }
}
