//! The thread that hands notifications on, so that the one who reads never waits for who is told. It is started by the first of them:
//! most servers never send one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::handler::{Handler, Notification};
use super::listen::{Heard, Listener};

/// How many notifications may wait; one that finds more is dropped. Ends of listens are not counted: there are no more than listens.
const EVENTS_MAX: usize = 1024;

/// How many bytes the notifications that wait may have on the wire together.
const EVENTS_MAX_BYTES: usize = 16 * 1024 * 1024;

/// What waits to be handed on.
pub(super) struct Events {
    handler: Arc<dyn Handler>,
    queue: OnceLock<Option<Sender<Event>>>,
    bytes: Arc<AtomicUsize>,
    warned: AtomicBool,
}

struct Event {
    to: To,
    bytes: usize,
}

enum To {
    Handler(Notification),
    Listener(Arc<Listener>, Heard),
}

impl Events {
    pub(super) fn new(handler: Arc<dyn Handler>) -> Self {
        Self { handler, queue: OnceLock::new(), bytes: Arc::default(), warned: AtomicBool::new(false) }
    }

    /// A notification of `bytes` bytes for the handler, or for a listener.
    pub(super) fn notify(&self, listener: Option<Arc<Listener>>, notification: Notification, bytes: usize) {
        let Some(queue) = self.queue() else { return };
        let waiting = self.bytes.load(Ordering::SeqCst);
        if queue.len() >= EVENTS_MAX || (waiting > 0 && waiting.saturating_add(bytes) > EVENTS_MAX_BYTES) {
            if !self.warned.swap(true, Ordering::SeqCst) {
                log::warn!("an MCP server sends notifications faster than they are taken; some are dropped");
            }
            return;
        }
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
        let to = match listener {
            Some(listener) => To::Listener(listener, Heard::Notification(notification)),
            None => To::Handler(notification),
        };
        let _ = queue.send(Event { to, bytes });
    }

    /// The end of a listen, after all that came before it.
    pub(super) fn end(&self, listener: Arc<Listener>, heard: Heard) {
        if let Some(queue) = self.queue() {
            let _ = queue.send(Event { to: To::Listener(listener, heard), bytes: 0 });
        }
    }

    fn queue(&self) -> Option<&Sender<Event>> {
        self.queue
            .get_or_init(|| {
                let (sender, receiver) = unbounded();
                let handler = Arc::clone(&self.handler);
                let bytes = Arc::clone(&self.bytes);
                let thread = thread::Builder::new().name("mcp events".to_owned());
                match thread.spawn(move || hand_on(&receiver, &*handler, &bytes)) {
                    Ok(_) => Some(sender),
                    Err(error) => {
                        log::warn!("notifications of an MCP server are dropped: no thread for them: {error}");
                        None
                    }
                }
            })
            .as_ref()
    }
}

fn hand_on(queue: &Receiver<Event>, handler: &dyn Handler, bytes: &AtomicUsize) {
    for event in queue {
        let handed = catch_unwind(AssertUnwindSafe(|| match event.to {
            To::Handler(notification) => handler.notified(notification),
            To::Listener(listener, heard) => listener.tell(heard),
        }));
        bytes.fetch_sub(event.bytes, Ordering::SeqCst);
        if handed.is_err() {
            log::error!("what was told of an MCP server's notification panicked");
        }
    }
}
