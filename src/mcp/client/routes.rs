//! Where what a server sends belongs: each request under way has its answer, its progress, and, where it is a listen, its notifications.
//!
//! `jsonrpc::Pending` matches answers alone. Here an answer that broke the protocol must end its request too, progress is routed by the
//! same number, and who asks after the end wants to know how it ended; so it is one table under one lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::error::Closed;
use super::listen::Listener;
use crate::jsonrpc::{Answer, Id};

/// How many progress notifications may wait for a caller; more are dropped, since the next says more than the last.
const PROGRESS_MAX: usize = 64;

/// How far a request has come.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// A number that grows.
    pub progress: f64,
    /// What it grows to, where that is known.
    pub total: Option<f64>,
    /// Words for a person, or a piece of output; at most 64 KiB of it are kept.
    pub message: Option<String>,
}

/// What a request ends with.
pub(super) enum Reply {
    /// The server's answer.
    Answer(Answer),
    /// An answer that is none, and why.
    Broken(String),
}

/// The requests under way.
#[derive(Default)]
pub(super) struct Routes(Mutex<Table>);

#[derive(Default)]
struct Table {
    last: i64,
    closed: Option<Closed>,
    open: HashMap<i64, Route>,
}

struct Route {
    answer: Sender<Reply>,
    progress: Option<Sender<Progress>>,
    listener: Option<Arc<Listener>>,
}

/// What a caller holds of its request; dropping it forgets the request, and whatever comes for it then is ignored (trap T47).
pub(super) struct Waiter<'a> {
    routes: &'a Routes,
    id: i64,
    kept: bool,
    pub(super) answer: Receiver<Reply>,
    pub(super) progress: Option<Receiver<Progress>>,
}

impl Routes {
    /// Takes the next id. Ids start at 1: some peers take 0 for none (traps T1, T38). Fails once the connection is over.
    pub(super) fn open(&self, progress: bool, listener: Option<Arc<Listener>>) -> Result<Waiter<'_>, Closed> {
        let (answer, answered) = bounded(1);
        let (progress, progressed) = if progress {
            let (sender, receiver) = bounded(PROGRESS_MAX);
            (Some(sender), Some(receiver))
        } else {
            (None, None)
        };
        let mut table = self.lock();
        if let Some(closed) = &table.closed {
            return Err(closed.clone());
        }
        table.last += 1;
        let id = table.last;
        table.open.insert(id, Route { answer, progress, listener });
        drop(table);
        Ok(Waiter { routes: self, id, kept: false, answer: answered, progress: progressed })
    }

    /// Ends a request with a reply; none when nobody waits for it, which is no error: it may have been given up. The listener, where it was
    /// a listen, is for the caller to tell.
    pub(super) fn settle(&self, id: &Id, reply: Reply) -> Option<Settled> {
        let mut table = self.lock();
        let route = key(id).and_then(|key| table.open.remove(&key));
        drop(table);
        let Route { answer, listener, .. } = route?;
        match listener {
            Some(listener) => {
                // Only who still waits for the acknowledgement takes it; the listener is told in any case.
                let (kept, told) = reply.twice();
                let _ = answer.try_send(kept);
                Some(Settled::Listen(listener, told))
            }
            None => {
                let _ = answer.try_send(reply);
                Some(Settled::Request)
            }
        }
    }

    /// Hands progress to whoever asked for it. Its token is exact: "7" is not 7 (trap T47).
    pub(super) fn progress(&self, token: &Id, progress: Progress) {
        let Id::Integer(number) = token else { return };
        let sender = i64::try_from(*number)
            .ok()
            .and_then(|id| self.lock().open.get(&id).and_then(|route| route.progress.clone()));
        if let Some(sender) = sender {
            let _ = sender.try_send(progress);
        }
    }

    /// The listener of an id, which a server may have turned into a string (trap T38).
    pub(super) fn listener(&self, id: &Id) -> Option<Arc<Listener>> {
        self.lock().open.get(&key(id)?).and_then(|route| route.listener.clone())
    }

    /// The connection is over: every waiter is told how, no new one is taken, and the listeners are given back to be told.
    /// The first end that is reported stands.
    pub(super) fn close(&self, closed: Closed) -> Vec<Arc<Listener>> {
        let mut table = self.lock();
        table.closed.get_or_insert(closed);
        let open = std::mem::take(&mut table.open);
        drop(table);
        open.into_values().filter_map(|route| route.listener).collect()
    }

    /// How the connection ended, where it has.
    pub(super) fn closed(&self) -> Option<Closed> {
        self.lock().closed.clone()
    }

    /// Forgets a request; false when it was already over.
    pub(super) fn forget(&self, id: i64) -> bool {
        self.lock().open.remove(&id).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose request was ended.
pub(super) enum Settled {
    /// A caller's, who has the reply.
    Request,
    /// A listen, and what it ended with.
    Listen(Arc<Listener>, Reply),
}

impl Reply {
    fn twice(self) -> (Self, Self) {
        match self {
            Self::Answer(answer) => (Self::Answer(answer.clone()), Self::Answer(answer)),
            Self::Broken(why) => (Self::Broken(why.clone()), Self::Broken(why)),
        }
    }
}

impl Waiter<'_> {
    /// The id to send the request with, which is its progress token too.
    pub(super) fn id(&self) -> i64 {
        self.id
    }

    /// Leaves the request under way when the waiter is dropped.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.routes.forget(self.id);
        }
    }
}

/// Our ids are integers all; a string that spells one is taken for it (trap T5).
fn key(id: &Id) -> Option<i64> {
    match id {
        Id::Integer(number) => i64::try_from(*number).ok(),
        Id::String(_) => key(&id.lenient()?),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::super::error::Ended;
    use super::*;

    fn reply() -> Reply {
        Reply::Answer(Ok(RawValue::from_string("{}".to_owned()).unwrap()))
    }

    fn progress(progress: f64) -> Progress {
        Progress { progress, total: None, message: None }
    }

    #[test]
    fn answers_find_their_requests_in_any_order() {
        let routes = Routes::default();
        let (first, second) = (routes.open(false, None).unwrap(), routes.open(false, None).unwrap());
        assert_eq!((first.id(), second.id()), (1, 2));
        assert!(routes.settle(&Id::from(2), reply()).is_some());
        assert!(routes.settle(&Id::from(2), reply()).is_none());
        assert!(second.answer.try_recv().is_ok());
        assert!(first.answer.try_recv().is_err());
        // Trap T5: a peer that answers "1" to 1.
        assert!(routes.settle(&Id::String("1".into()), reply()).is_some());
        assert!(first.answer.try_recv().is_ok());
        assert!(routes.settle(&Id::String("x".into()), reply()).is_none());
        assert!(routes.settle(&Id::Integer(i128::MAX), reply()).is_none());
    }

    /// Trap T47.
    #[test]
    fn progress_goes_to_the_exact_token_while_its_request_is_under_way() {
        let routes = Routes::default();
        let waiter = routes.open(true, None).unwrap();
        let other = routes.open(false, None).unwrap();
        routes.progress(&Id::String("1".into()), progress(1.0));
        routes.progress(&Id::from(2), progress(2.0));
        routes.progress(&Id::from(99), progress(3.0));
        routes.progress(&Id::from(1), progress(4.0));
        assert_eq!(waiter.progress.as_ref().unwrap().try_iter().collect::<Vec<_>>(), [progress(4.0)]);
        for _ in 0..2 * PROGRESS_MAX {
            routes.progress(&Id::from(1), progress(5.0));
        }
        assert_eq!(waiter.progress.as_ref().unwrap().len(), PROGRESS_MAX);
        routes.settle(&Id::from(1), reply());
        routes.progress(&Id::from(1), progress(6.0));
        assert_eq!(waiter.progress.as_ref().unwrap().len(), PROGRESS_MAX);
        drop(other);
    }

    #[test]
    fn the_end_reaches_every_waiter_and_the_first_end_stands() {
        let routes = Routes::default();
        let waiter = routes.open(false, None).unwrap();
        routes.close(Closed::new(Ended::NotReading));
        routes.close(Closed::new(Ended::ByUs));
        assert!(waiter.answer.recv().is_err());
        assert_eq!(routes.open(false, None).err().unwrap().how, Ended::NotReading);
    }
}
