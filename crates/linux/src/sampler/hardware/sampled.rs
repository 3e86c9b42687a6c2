//! An event to sample, and how often.

use nodewise_engine::SamplingRate;
use nodewise_sys::perf::Attr;

/// An event to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampled {
    /// Its events, in a word for people.
    pub(super) what: &'static str,
    /// Leader of the group, for an event that the kernel refuses on its own.
    pub(super) leader: Option<Attr>,
    pub(super) attr: Attr,
    pub(super) periods: Periods,
}

/// Events from one sample to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Periods {
    pub(super) accurate: u64,
    pub(super) cheap: u64,
}

impl Periods {
    /// The period of a rate. Events that are paused do not run, whatever their period.
    pub(super) const fn at(self, rate: SamplingRate) -> u64 {
        match rate {
            SamplingRate::Accurate => self.accurate,
            SamplingRate::Cheap | SamplingRate::Paused => self.cheap,
        }
    }
}
