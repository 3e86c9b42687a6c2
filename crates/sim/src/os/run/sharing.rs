//! Huge pages that nodes share, and whether the nodes share their contents too.

use crate::os::kernel::memory::Memory;
use crate::os::policies::plan::Record;

/// The share of a page's DRAM accesses, in percent, from which it is one node's.
const OWN_PERCENT: u64 = 95;

/// The sharing in a run that left pages where they were touched first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sharing {
    /// Huge pages that are no node's own, of those accessed, in percent.
    pub(crate) shared_percent: f64,
    /// False sharing: of the accesses to other nodes' memory, those to base pages that are one node's own,
    /// in huge pages that are not, in percent.
    pub(crate) falsely_percent: f64,
}

/// The node that a page is the own of, given its accesses by each node.
fn owner(accesses: &[u64]) -> Option<usize> {
    let total: u64 = accesses.iter().sum();
    accesses.iter().position(|&count| total > 0 && count * 100 >= total * OWN_PERCENT)
}

impl Sharing {
    pub(crate) fn new(record: &Record, memory: &Memory) -> Self {
        let of = |page: usize| -> Vec<u64> { record.accesses(page).iter().copied().map(u64::from).collect() };
        let unit = memory.pages_of_huge();
        let (mut used, mut shared, mut remote, mut falsely) = (0, 0, 0, 0);
        for first in (0..memory.pages()).step_by(unit) {
            let pages = first..first + unit;
            let mut all = vec![0; of(first).len()];
            for page in pages.clone() {
                all.iter_mut().zip(of(page)).for_each(|(sum, count)| *sum += count);
            }
            if all.iter().sum::<u64>() == 0 {
                continue;
            }
            used += 1;
            let is_shared = owner(&all).is_none();
            shared += u64::from(is_shared);
            for page in pages {
                let accesses = of(page);
                let local = memory.home(page).map_or(0, |home| accesses[home]);
                let from_afar = accesses.iter().sum::<u64>() - local;
                remote += from_afar;
                falsely += if is_shared && owner(&accesses).is_some() { from_afar } else { 0 };
            }
        }
        let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
        Self { shared_percent: percent(shared, used), falsely_percent: percent(falsely, remote) }
    }
}
