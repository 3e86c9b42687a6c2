//! The mappings and CPUs of a process, which are read less often than its `stat` as they cost more.

use super::read_cost::ReadCost;
use crate::ending::Until;
use crate::maps::SharedMapping;
use nodewise_engine::{Mapping, Pid};
use nodewise_sys::AffinityMask;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the mappings of a process are believed that has as much mapped as before.
const BELIEVED: Duration = Duration::from_secs(30);

/// The details of a process, as they were read last.
#[derive(Clone, Debug)]
pub(crate) struct Details {
    /// Its mappings, when they were read again in this interval.
    pub(crate) mappings: Option<Vec<Mapping>>,
    /// The CPUs on which any of its threads may run; none if it has too many threads to ask.
    pub(crate) cpus: Option<AffinityMask>,
    /// Whether its threads were asked for them in this interval.
    pub(crate) asked: bool,
    /// The addresses at which it says how it uses its memory, when they were among the mappings.
    pub(crate) hints_at: Option<(u64, u64)>,
    /// Its shared memory.
    pub(crate) shared: Arc<[SharedMapping]>,
    /// The files that it only reads there.
    pub(crate) files: Arc<[SharedMapping]>,
    /// Mappings that were read last.
    pub(super) count: usize,
    /// The bytes that it had mapped when the mappings were read last; none if they are known to have changed
    /// since.
    pub(super) mapped_bytes: Option<u64>,
    /// No sooner are the details read again.
    pub(super) due: Instant,
    /// No later are the mappings read again, though as much is mapped as before.
    pub(super) old: Instant,
}

impl Details {
    /// Nothing is known, and all of it is due.
    pub(super) fn unread(now: Instant) -> Self {
        Self {
            mappings: None,
            cpus: None,
            asked: false,
            hints_at: None,
            shared: [].into(),
            files: [].into(),
            count: 0,
            mapped_bytes: None,
            due: now,
            old: now,
        }
    }

    /// Reads the CPUs, and `most` mappings unless they are believed. `mapped_bytes`: how much is mapped now.
    /// Mappings that are not read `until` then stay unknown. True if there were more than `most`.
    pub(super) fn read(
        &mut self,
        pid: Pid,
        mapped_bytes: u64,
        most: usize,
        until: &Until,
        cost: &mut ReadCost,
    ) -> bool {
        let (now, mut is_cut) = (Instant::now(), false);
        if self.mapped_bytes != Some(mapped_bytes) || self.old <= now {
            let maps = cost.maps(pid, most, until.clone());
            is_cut = maps.as_ref().is_some_and(|maps| maps.is_cut);
            self.hints_at = maps.as_ref().and_then(|maps| maps.hints_at);
            self.count = maps.as_ref().map_or(0, |maps| maps.mappings.len());
            self.mappings = maps.map(|maps| {
                (self.shared, self.files) = (maps.shared.into(), maps.files.into());
                maps.mappings
            });
            (self.mapped_bytes, self.old) = (Some(mapped_bytes), now + BELIEVED);
        }
        (self.cpus, self.asked) = (cost.allowed_cpus(pid), true);
        is_cut
    }

    /// The mappings are known to have changed.
    pub(super) fn distrust_mappings(&mut self) {
        self.mapped_bytes = None;
    }

    /// News of the last interval is known from now on.
    pub(super) fn begin_interval(&mut self) {
        (self.mappings, self.asked) = (None, false);
    }
}
