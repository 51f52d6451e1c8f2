//! The first so many of what several threads find in no particular order, in bounded memory.
//!
//! A tool that stops at a limit must give the same answer every time, so it cannot stop at the first so many that happen to be found.
//! It keeps the first in order instead, and tells the walk what can no longer be among them.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is kept: ordered, and of a known size.
pub(super) trait Item: Ord + Clone {
    /// Its size in the answer, in bytes.
    fn size(&self) -> usize;
}

/// Keeps the first items in order, up to a number and a size.
pub(super) struct Smallest<T> {
    count: usize,
    bytes: usize,
    state: Mutex<State<T>>,
    /// Goes up with each new bound, so that a thread need not take the lock to learn that there is none.
    version: AtomicUsize,
}

struct State<T> {
    /// In no order.
    items: Vec<T>,
    bytes: usize,
    /// Nothing after this can be in the answer.
    bound: Option<T>,
    /// How many items, and bytes, until it is worth sorting out.
    next_count: usize,
    next_bytes: usize,
}

/// What a thread knows of the bound.
pub(super) struct Bound<T> {
    version: usize,
    item: Option<T>,
}

impl<T> Default for Bound<T> {
    fn default() -> Self {
        Self { version: 0, item: None }
    }
}

impl<T: Item> Smallest<T> {
    /// For the first `count` items of together at most `bytes` bytes.
    pub(super) fn new(count: usize, bytes: usize) -> Self {
        let state = State {
            items: Vec::new(),
            bytes: 0,
            bound: None,
            // One more than fits: that it exists is what makes the answer incomplete.
            next_count: count.saturating_add(1),
            next_bytes: bytes.saturating_add(1),
        };
        Self { count, bytes, state: Mutex::new(state), version: AtomicUsize::new(0) }
    }

    /// Takes the items out of `found`, in any order, each offered once.
    pub(super) fn offer(&self, found: &mut Vec<T>) {
        let mut state = self.lock();
        let state = &mut *state;
        for item in found.drain(..) {
            if state.bound.as_ref().is_none_or(|bound| item < *bound) {
                state.bytes = state.bytes.saturating_add(item.size());
                state.items.push(item);
            }
        }
        if state.items.len() >= state.next_count || state.bytes >= state.next_bytes {
            self.sort_out(state);
        }
    }

    /// What cannot be in the answer: this item, and all after it. `None` while there is room for any.
    pub(super) fn bound<'b>(&self, known: &'b mut Bound<T>) -> Option<&'b T> {
        let version = self.version.load(Relaxed);
        if version != known.version {
            known.item.clone_from(&self.lock().bound);
            known.version = version;
        }
        known.item.as_ref()
    }

    /// The answer in order, and whether there was more.
    pub(super) fn finish(self) -> (Vec<T>, bool) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut items = state.items;
        items.sort_unstable();
        let found = items.len();
        let mut bytes = 0usize;
        let fit = items.iter().take(self.count).take_while(|item| {
            bytes = bytes.saturating_add(item.size());
            bytes <= self.bytes
        });
        let fit = fit.count();
        items.truncate(fit);
        (items, fit < found)
    }

    /// Drops what is after the first that does not fit, and makes that one the bound.
    fn sort_out(&self, state: &mut State<T>) {
        if state.items.len() > self.count {
            state.items.select_nth_unstable(self.count);
            state.items.truncate(self.count + 1);
        }
        let mut bytes = state.items.iter().map(T::size).fold(0, usize::saturating_add);
        if bytes > self.bytes {
            state.items.sort_unstable();
            bytes = 0;
            let fit = state.items.iter().take_while(|item| {
                bytes = bytes.saturating_add(item.size());
                bytes <= self.bytes
            });
            let fit = fit.count();
            state.items.truncate(fit + 1);
        }
        state.bytes = bytes;
        state.bound = state.items.iter().max().cloned();
        // Sorting out costs as much as there are items, so it waits until a share of them is new.
        state.next_count = state.items.len() + (self.count / 4).max(64);
        state.next_bytes = bytes.saturating_add(self.bytes / 4).saturating_add(1);
        self.version.fetch_add(1, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Item for u32 {
        fn size(&self) -> usize {
            10
        }
    }

    /// 0 to 999 in an order that is neither sorted nor random.
    fn numbers() -> impl Iterator<Item = u32> {
        (0..1000).map(|number| number * 467 % 1000)
    }

    #[test]
    fn it_keeps_the_first_in_order_and_knows_whether_there_were_more() {
        for count in [1, 2, 10, 100, 999] {
            let kept = Smallest::new(count, usize::MAX);
            numbers().for_each(|number| kept.offer(&mut vec![number]));
            assert_eq!(kept.finish(), ((0..count as u32).collect(), true), "{count}");
        }
        for count in [1000, 1001, usize::MAX] {
            let kept = Smallest::new(count, usize::MAX);
            numbers().for_each(|number| kept.offer(&mut vec![number]));
            assert_eq!(kept.finish(), ((0..1000).collect(), false), "{count}");
        }
    }

    #[test]
    fn it_keeps_what_fits_by_size() {
        for (bytes, fit, more) in
            [(0, 0, true), (9, 0, true), (10, 1, true), (555, 55, true), (9_999, 999, true), (10_000, 1000, false)]
        {
            let kept = Smallest::new(usize::MAX, bytes);
            numbers().for_each(|number| kept.offer(&mut vec![number]));
            assert_eq!(kept.finish(), ((0..fit).collect(), more), "{bytes}");
        }
    }

    #[test]
    fn the_bound_closes_in_and_memory_stays_small() {
        let kept = Smallest::new(10, usize::MAX);
        let mut known = Bound::default();
        assert_eq!(kept.bound(&mut known), None);
        for chunk in 0..10_000u32 {
            kept.offer(&mut vec![20_000 - chunk]);
            assert!(kept.lock().items.len() < 100);
        }
        // Never tighter than the first that does not fit, and not much looser.
        let bound = *kept.bound(&mut known).unwrap();
        assert!((10_011..10_100).contains(&bound), "{bound}");
        assert_eq!(kept.finish(), ((10_001..10_011).collect(), true));
    }
}
