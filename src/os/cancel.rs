//! A one-way switch that ends a wait: every call that may wait holds one and either polls its descriptor or hooks into it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// A cancellation token. Clones share one switch; once thrown it stays thrown.
///
/// Costs one allocation; the descriptor is made only for a call that polls one.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Switch>);

#[derive(Default)]
struct Switch {
    thrown: AtomicBool,
    /// An eventfd that is readable for ever once the switch is thrown.
    descriptor: OnceLock<OwnedFd>,
    hooks: Mutex<Hooks>,
}

#[derive(Default)]
struct Hooks {
    next: u64,
    waiting: Vec<(u64, Hook)>,
}

type Hook = Box<dyn FnOnce() + Send>;

impl Cancel {
    /// A switch that has not been thrown.
    pub fn new() -> Self {
        Self::default()
    }

    /// Throws the switch: makes the descriptor readable and runs every hook, once. Later calls do nothing.
    pub fn cancel(&self) {
        if self.0.thrown.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(descriptor) = self.0.descriptor.get() {
            announce(descriptor.as_fd());
        }
        let waiting = std::mem::take(&mut self.hooks().waiting);
        for (_, hook) in waiting {
            hook();
        }
    }

    /// Whether the switch has been thrown.
    pub fn is_cancelled(&self) -> bool {
        self.0.thrown.load(Ordering::SeqCst)
    }

    /// A descriptor for a poll set, readable once the switch is thrown and never read by anyone.
    ///
    /// Fails when the process is out of descriptors.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        if self.0.descriptor.get().is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            // Another thread may have been first; then its descriptor stands and this one closes.
            let _ = self.0.descriptor.set(made);
        }
        let descriptor = self.0.descriptor.get().ok_or(io::ErrorKind::NotFound)?.as_fd();
        if self.is_cancelled() {
            announce(descriptor);
        }
        Ok(descriptor)
    }

    /// Runs `hook` when the switch is thrown, on the thread that throws it; at once when it already was.
    /// Dropping the guard forgets the hook, which may at that moment be running.
    pub fn on_cancel(&self, hook: impl FnOnce() + Send + 'static) -> HookGuard {
        let mut hooks = self.hooks();
        if self.is_cancelled() {
            drop(hooks);
            hook();
            return HookGuard { cancel: self.clone(), number: None };
        }
        let number = hooks.next;
        hooks.next += 1;
        hooks.waiting.push((number, Box::new(hook)));
        HookGuard { cancel: self.clone(), number: Some(number) }
    }

    fn hooks(&self) -> MutexGuard<'_, Hooks> {
        self.0.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

/// Keeps a hook registered with [`Cancel::on_cancel`] for as long as it lives.
#[must_use = "dropping the guard forgets the hook"]
pub struct HookGuard {
    cancel: Cancel,
    number: Option<u64>,
}

impl Drop for HookGuard {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.cancel.hooks().waiting.retain(|(other, _)| *other != number);
        }
    }
}

/// Adds to the counter of a switch's eventfd. It can only fail when the counter is full, which is readable too.
fn announce(descriptor: BorrowedFd<'_>) {
    let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::atomic::AtomicUsize;

    fn readable(cancel: &Cancel) -> bool {
        let descriptor = cancel.descriptor().unwrap();
        let mut set = [PollFd::new(&descriptor, PollFlags::IN)];
        poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn the_descriptor_turns_readable_whichever_comes_first() {
        let early = Cancel::new();
        assert!(!readable(&early));
        early.cancel();
        assert!(readable(&early));

        let late = Cancel::new();
        late.cancel();
        assert!(readable(&late));
    }

    #[test]
    fn hooks_run_once_and_a_dropped_guard_forgets_its_hook() {
        let count = Arc::new(AtomicUsize::new(0));
        let add = |n| {
            let count = count.clone();
            move || {
                count.fetch_add(n, Ordering::SeqCst);
            }
        };
        let cancel = Cancel::new();
        let _kept = cancel.on_cancel(add(1));
        drop(cancel.on_cancel(add(10)));
        cancel.cancel();
        cancel.cancel();
        let _late = cancel.on_cancel(add(100));
        assert_eq!(count.load(Ordering::SeqCst), 101);
    }
}
