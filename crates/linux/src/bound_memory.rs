//! Memory that a process has bound to nodes itself.

use crate::process::pause;
use nodewise_engine::PageRange;
use std::time::Instant;

/// The ranges of its memory that a process has bound itself.
#[derive(Debug)]
pub(crate) struct BoundMemory {
    /// None where they cannot be learnt.
    pub(crate) ranges: Option<Vec<PageRange>>,
    /// The mappings have been read again since.
    pub(crate) is_old: bool,
    /// The time before which they are not read again: reading takes 1 % of the time at most, of all processes
    /// together.
    due: Instant,
}

impl Default for BoundMemory {
    fn default() -> Self {
        Self { ranges: None, is_old: true, due: Instant::now() }
    }
}

impl BoundMemory {
    pub(crate) fn update(&mut self, processes: usize, read: impl FnOnce() -> Option<Vec<PageRange>>) {
        let begin = Instant::now();
        if self.is_old && self.due <= begin {
            (self.ranges, self.is_old) = (read(), false);
            self.due = Instant::now() + pause(begin.elapsed().as_nanos() as u64, processes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn policies_are_read_again_no_sooner_than_costs_little() {
        let mut bound = BoundMemory::default();
        let slow = || {
            std::thread::sleep(Duration::from_millis(20));
            Some(Vec::new())
        };
        bound.update(1, slow);
        assert!(!bound.is_old && bound.ranges == Some(Vec::new()));
        bound.update(1, || panic!("nothing has changed"));
        bound.is_old = true;
        bound.update(1, || panic!("too soon"));
        bound.due = Instant::now();
        bound.update(1, || None);
        assert!(!bound.is_old && bound.ranges.is_none());
    }
}
