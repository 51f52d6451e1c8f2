//! What each decoder is fuzzed with: a plain function of bytes that panics when a promise is broken. cargo-fuzz drives them (`fuzz/`), and
//! `tests/corpus.rs` replays the checked-in corpora through them on a stable toolchain.

use std::sync::{Arc, Mutex};

use berth::executor::file_uri::FileUri;
use berth::jsonrpc::{ErrorObject, Line, Lines, Message};
use berth::mcp::connection::{Connection, Eras, Outlet};
use berth::mcp::protocol::Version;
use berth::mcp::server::{Client, Notifier, Offer, ResourcesOffer, Service, Session};
use berth::tools::{edit, pattern};

/// Lines cut anywhere give the same messages, and none is longer than the limit.
pub fn jsonrpc_line(input: &[u8]) {
    const LIMIT: usize = 256;
    let Some((&step, input)) = input.split_first() else { return };
    let cut = lines(input, usize::from(step) + 1, LIMIT);
    assert_eq!(cut, lines(input, input.len().max(1), LIMIT), "lines depend on how the reads were cut");
    for line in &cut {
        assert!(line.len() <= LIMIT + 64);
        let _ = Message::parse(line);
    }
    let _ = Message::parse(input);
}

fn lines(input: &[u8], step: usize, limit: usize) -> Vec<Vec<u8>> {
    let mut lines = Lines::new(limit);
    let mut seen = Vec::new();
    for mut piece in input.chunks(step) {
        while !piece.is_empty() {
            let space = lines.space();
            let count = space.len().min(piece.len());
            space[..count].copy_from_slice(&piece[..count]);
            lines.filled(count);
            piece = &piece[count..];
            while let Some(line) = lines.next_line() {
                seen.push(match line {
                    Line::Message(bytes) => bytes.to_vec(),
                    Line::TooLong { bytes, owner } => format!("too long: {bytes} {owner:?}").into_bytes(),
                });
            }
        }
    }
    seen
}

/// A connection at each version takes whatever comes, answers with JSON alone, and goes on: a ping is answered afterwards.
pub fn mcp_message(input: &[u8]) {
    let Some((&choice, input)) = input.split_first() else { return };
    let Some(version) = Version::ALL.get(usize::from(choice) % Version::ALL.len()) else { return };
    let sent = Arc::new(Sent::default());
    let connection = Connection::new(Arc::new(Everything), sent.clone(), Eras::default());
    let mut out = Vec::new();
    let mut jobs = Vec::new();
    let greeting = format!(
        r#"{{"jsonrpc":"2.0","id":"greeting","method":"initialize","params":{{"protocolVersion":"{version}","capabilities":{{}}}}}}"#
    );
    connection.receive(greeting.as_bytes(), &mut out, &mut jobs);
    for line in input.split(|byte| *byte == b'\n') {
        connection.receive(line, &mut out, &mut jobs);
        jobs.drain(..).for_each(berth::mcp::connection::Job::run);
    }
    let before = out.len();
    connection.receive(br#"{"jsonrpc":"2.0","id":"last one","method":"ping"}"#, &mut out, &mut jobs);
    assert_eq!(&out[before..], b"{\"jsonrpc\":\"2.0\",\"id\":\"last one\",\"result\":{}}\n");
    for line in out.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        Message::parse(line).expect("an answer that is no message");
    }
    for message in sent.0.lock().expect("no panic before").iter() {
        Message::parse(message).expect("sent something that is no message");
    }
    connection.close();
}

#[derive(Default)]
struct Sent(Mutex<Vec<Vec<u8>>>);

impl Outlet for Sent {
    fn send(&self, message: &mut dyn FnMut(&mut Vec<u8>)) {
        let mut out = Vec::new();
        message(&mut out);
        self.send_behind_offers(out);
    }

    fn offer(&self, message: Vec<u8>, _droppable: bool) -> bool {
        self.send_behind_offers(message);
        true
    }

    fn send_behind_offers(&self, message: Vec<u8>) {
        self.0.lock().expect("no panic before").push(message);
    }
}

/// Offers every feature and holds nothing.
struct Everything;

struct Nothing;

impl Service for Everything {
    fn open(&self, _client: &Client, _notifier: Notifier) -> Result<Arc<dyn Session>, ErrorObject> {
        Ok(Arc::new(Nothing))
    }
}

impl Session for Nothing {
    fn offer(&self) -> Offer {
        Offer {
            tools: Some(true),
            prompts: Some(true),
            resources: Some(ResourcesOffer { subscribe: true, list_changed: true }),
            logging: true,
            completions: true,
            ..Offer::default()
        }
    }
}

/// A URI that is taken reads back as itself.
pub fn uri(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(uri) = FileUri::parse(text) {
        assert_eq!(FileUri::parse(&uri.to_string()), Ok(uri));
    }
}

/// A pattern and a path, a newline between: any answer but a panic or a long wait.
pub fn glob(input: &[u8]) {
    let Some(at) = input.iter().position(|byte| *byte == b'\n') else { return };
    let Ok(glob) = std::str::from_utf8(&input[..at]) else { return };
    let _ = pattern::matches(glob, &input[at + 1..]);
}

/// Three parts set apart by 0x00: the text, what to replace, and with what. What comes out is what the definition says.
pub fn edit(input: &[u8]) {
    let mut parts = input.splitn(3, |byte| *byte == 0);
    let (Some(text), Some(old), Some(new)) = (parts.next(), parts.next(), parts.next()) else { return };
    let (Ok(old), Ok(new)) = (std::str::from_utf8(old), std::str::from_utf8(new)) else { return };
    let (apart, places) = if old.is_empty() { (0, 0) } else { occurrences(text, old.as_bytes()) };
    for all in [false, true] {
        match edit::apply(text, old, new, all) {
            Ok(edited) => {
                assert!(places == 1 || (all && apart > 0));
                let times = if all { apart } else { 1 };
                assert_eq!(edited.len(), text.len() - times * old.len() + times * new.len());
            }
            // Where it overlaps itself, which of its places is meant cannot be known.
            Err(_) => assert!(places == 0 || (places > 1 && !all)),
        }
    }
}

/// How often `part` stands in `text`: apart from each other from the start on, and at all.
fn occurrences(text: &[u8], part: &[u8]) -> (usize, usize) {
    let mut apart = 0;
    let mut places = 0;
    let mut free = 0;
    for (at, window) in text.windows(part.len()).enumerate() {
        if window == part {
            places += 1;
            if at >= free {
                apart += 1;
                free = at + part.len();
            }
        }
    }
    (apart, places)
}
