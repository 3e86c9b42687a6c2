//! The word that managing is to end, which whatever takes long asks for again and again. That it asks shows
//! that it does not hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Whether managing is to end. Clones hear of it together.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_set: AtomicBool,
    asked: AtomicU64,
}

impl Ending {
    /// Has everything that takes long end early.
    pub fn set(&self) {
        self.0.is_set.store(true, Ordering::Relaxed);
    }

    /// Whether managing is to end.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.goes_on();
        self.0.is_set.load(Ordering::Relaxed)
    }

    /// Shows that nothing hangs, where there is nothing to end.
    pub(crate) fn goes_on(&self) {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// How often somebody has asked.
    #[must_use]
    pub fn times_asked(&self) -> u64 {
        self.0.asked.load(Ordering::Relaxed)
    }
}

/// The end of a time, or of managing.
#[derive(Clone, Debug)]
pub(crate) struct Until {
    pub(crate) at: Instant,
    pub(crate) ending: Ending,
}

impl Until {
    pub(crate) fn is_over(&self) -> bool {
        self.ending.is_set() || Instant::now() >= self.at
    }
}

#[cfg(test)]
impl From<Instant> for Until {
    fn from(at: Instant) -> Self {
        Self { at, ending: Ending::default() }
    }
}
