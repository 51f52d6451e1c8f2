//! Who waits for which answer: the requests we sent, and those we are carrying out.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};
use serde_json::value::RawValue;

use super::{ErrorObject, Id};
use crate::os::cancel::Cancel;

/// What came back for a request: the result's text or the peer's error.
pub type Answer = Result<Box<RawValue>, ErrorObject>;

/// The requests this side sent and that wait for their answers.
#[derive(Default)]
pub struct Pending(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    last: i64,
    closed: bool,
    answers: HashMap<Id, Sender<Answer>>,
}

/// The end of a request that its sender keeps: the answer comes here, or nothing once the peer is gone.
pub struct Waiter<'a> {
    pending: &'a Pending,
    id: Id,
    answer: Receiver<Answer>,
}

impl Pending {
    /// Takes a new id and a place for its answer; `None` once the peer is gone. Ids start at 1: some peers take 0 for none (traps T1, T38).
    pub fn expect(&self) -> Option<Waiter<'_>> {
        let (sender, answer) = bounded(1);
        let mut waiting = lock(&self.0);
        if waiting.closed {
            return None;
        }
        waiting.last += 1;
        let id = Id::from(waiting.last);
        waiting.answers.insert(id.clone(), sender);
        Some(Waiter { pending: self, id, answer })
    }

    /// Hands an answer to whoever waits for it; false when nobody does, which is no error: it may have given up (trap T47).
    pub fn settle(&self, id: &Id, answer: Answer) -> bool {
        let mut waiting = lock(&self.0);
        let sender = match waiting.answers.remove(id) {
            Some(sender) => Some(sender),
            None => id.lenient().and_then(|id| waiting.answers.remove(&id)),
        };
        drop(waiting);
        sender.is_some_and(|sender| sender.try_send(answer).is_ok())
    }

    /// The peer is gone: every waiter is told, and no new one is taken.
    pub fn close(&self) {
        let mut waiting = lock(&self.0);
        waiting.closed = true;
        waiting.answers.clear();
    }
}

impl Waiter<'_> {
    /// The id to send the request with.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Where the answer arrives, for a select; disconnected once the peer is gone.
    pub fn answer(&self) -> &Receiver<Answer> {
        &self.answer
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(&self.pending.0).answers.remove(&self.id);
    }
}

/// The peer's requests that are being carried out, and the switch that ends each.
#[derive(Default)]
pub struct InFlight(Mutex<Running>);

#[derive(Default)]
struct Running {
    /// Each request's switch, and how many bytes are held for it.
    requests: HashMap<Id, (Cancel, usize)>,
    bytes: usize,
}

impl InFlight {
    /// Takes a request in, for which `bytes` are held. Refused when one of that id is under way (spec mcp 1.6), when `most` are, or when
    /// more than `most_bytes` would be held for all of them together; one alone may be as large as it likes.
    pub fn begin(&self, id: &Id, bytes: usize, most: usize, most_bytes: usize) -> Result<Cancel, Refusal> {
        let mut running = lock(&self.0);
        if running.requests.contains_key(id) {
            return Err(Refusal::SameId);
        }
        let held = running.bytes.saturating_add(bytes);
        if running.requests.len() >= most || (held > most_bytes && !running.requests.is_empty()) {
            return Err(Refusal::TooMany);
        }
        let cancel = Cancel::new();
        running.requests.insert(id.clone(), (cancel.clone(), bytes));
        running.bytes = held;
        Ok(cancel)
    }

    /// A request is done: true when it may be answered, false when it was cancelled meanwhile.
    pub fn end(&self, id: &Id) -> bool {
        let mut running = lock(&self.0);
        let Some((cancel, bytes)) = running.requests.remove(id) else { return false };
        running.bytes = running.bytes.saturating_sub(bytes);
        !cancel.is_cancelled()
    }

    /// Throws a request's switch; false when none of that id is under way, which is no error (spec mcp 4.2).
    pub fn cancel(&self, id: &Id) -> bool {
        let found = {
            let running = lock(&self.0);
            running.requests.get(id).or_else(|| running.requests.get(&id.lenient()?)).map(|(cancel, _)| cancel.clone())
        };
        found.map(|cancel| cancel.cancel()).is_some()
    }

    /// Throws every switch.
    pub fn cancel_all(&self) {
        let all: Vec<Cancel> = lock(&self.0).requests.values().map(|(cancel, _)| cancel.clone()).collect();
        all.iter().for_each(Cancel::cancel);
    }

    /// Whether a request of this id is under way.
    pub fn contains(&self, id: &Id) -> bool {
        lock(&self.0).requests.contains_key(id)
    }

    /// How many are under way.
    pub fn count(&self) -> usize {
        lock(&self.0).requests.len()
    }
}

/// Why a request was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another with this id is under way.
    SameId,
    /// As many as may be are under way, or as large ones.
    TooMany,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str) -> Answer {
        Ok(RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn an_answer_reaches_the_one_who_waits_for_it() {
        let pending = Pending::default();
        let (first, second) = (pending.expect().unwrap(), pending.expect().unwrap());
        assert_eq!((first.id(), second.id()), (&Id::from(1), &Id::from(2)));
        assert!(pending.settle(&Id::from(2), text("{}")));
        assert!(!pending.settle(&Id::from(2), text("{}")));
        assert!(second.answer().try_recv().unwrap().is_ok());
        assert!(first.answer().try_recv().is_err());
        // A peer that answers "1" to 1.
        assert!(pending.settle(&Id::String("1".into()), text("{}")));
        assert!(first.answer().try_recv().unwrap().is_ok());
    }

    #[test]
    fn a_waiter_that_left_is_forgotten_and_a_close_tells_the_rest() {
        let pending = Pending::default();
        drop(pending.expect().unwrap());
        assert!(!pending.settle(&Id::from(1), text("{}")));
        let waiter = pending.expect().unwrap();
        pending.close();
        assert!(waiter.answer().recv().is_err());
        assert!(pending.expect().is_none());
    }

    #[test]
    fn a_cancelled_request_is_not_answered_and_an_id_is_used_once_at_a_time() {
        let running = InFlight::default();
        let zero = Id::from(0);
        let begin = |id: &Id| running.begin(id, 1, 2, 10);
        let cancel = begin(&zero).unwrap();
        assert_eq!(begin(&zero).unwrap_err(), Refusal::SameId);
        assert!(begin(&Id::String("0".into())).is_ok());
        assert_eq!(begin(&Id::from(5)).unwrap_err(), Refusal::TooMany);
        assert!(running.cancel(&zero));
        assert!(cancel.is_cancelled());
        assert!(!running.end(&zero));
        assert!(running.end(&Id::String("0".into())));
        assert!(!running.cancel(&zero));
    }

    #[test]
    fn what_is_held_is_bounded_but_for_one_alone() {
        let running = InFlight::default();
        let begin = |id: i64, bytes| running.begin(&Id::from(id), bytes, 100, 10);
        assert!(begin(1, 50).is_ok());
        assert_eq!(begin(2, 1).unwrap_err(), Refusal::TooMany);
        running.end(&Id::from(1));
        assert!(begin(2, 6).is_ok() && begin(3, 4).is_ok());
        assert_eq!(begin(4, 1).unwrap_err(), Refusal::TooMany);
        running.end(&Id::from(2));
        assert!(begin(4, 6).is_ok());
    }
}
