//! Whether memory is collocated, of the whole machine or of a process.

use super::super::View;
use super::CarrefourSettings;

/// Whether so few accesses are local that memory is collocated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Collocating {
    pub(super) now: bool,
    /// The last interval in which it was so.
    pub(super) last: Option<u32>,
}

impl Collocating {
    /// Judges by the share of local accesses, and returns the limit that it was held against.
    pub(super) fn judge(
        &mut self,
        settings: &CarrefourSettings,
        local_percent: Option<f64>,
        view: &View<'_>,
    ) -> f64 {
        let CarrefourSettings { collocate_until_percent, collocate_below_percent, .. } = *settings;
        let limit = if self.now { collocate_until_percent } else { collocate_below_percent };
        self.now = local_percent.is_some_and(|local| local < limit) || (self.now && view.put_off);
        if self.now {
            self.last = Some(view.round);
        }
        limit
    }
}
