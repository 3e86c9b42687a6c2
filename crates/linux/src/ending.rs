//! The word that managing is to end, which whatever takes long looks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Whether managing is to end. Clones hear of it together.
#[derive(Clone, Debug, Default)]
pub struct Ending(Arc<AtomicBool>);

impl Ending {
    /// Has everything that takes long end early.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether managing is to end.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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
