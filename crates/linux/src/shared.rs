//! Memory that several managed processes have mapped: it is one memory, whoever's samples tell of it, and
//! moves as one.

use crate::maps::SharedMapping;
use crate::process::{Process, Processes};
use nodewise_engine::{PAGE_BYTES, PageNumber, PageRange, Pid, Sample, VirtAddr};
use nodewise_sys::compare_memory;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;

/// The mappings of shared memory, by device and inode, in ascending order of the processes' numbers.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory(BTreeMap<(u64, u64), Vec<(Pid, SharedMapping)>>);

impl SharedMemory {
    pub(crate) fn of(processes: &Processes) -> Self {
        let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for process in processes.iter() {
            for &mapping in process.shared.iter() {
                all.entry(mapping.object).or_default().push((process.pid, mapping));
            }
        }
        Self(all)
    }

    /// Samples of one page name one address, that of the first process that has mapped it.
    pub(crate) fn unite(&self, processes: &Processes, samples: &mut [Sample]) {
        if self.0.values().all(|mappers| mappers.len() == 1) {
            return;
        }
        for sample in samples {
            let page = sample.address.page();
            let mapping = processes.get(sample.pid).and_then(|process| mapping_at(process, page));
            let Some(mapping) = mapping else { continue };
            let offset = mapping.first + (page.0 - mapping.range.start.0);
            let holds =
                |other: &SharedMapping| (other.first..other.first + other.range.pages()).contains(&offset);
            let first =
                self.0.get(&mapping.object).and_then(|all| all.iter().find(|(_, other)| holds(other)));
            if let Some(&(pid, other)) = first {
                let start = (other.range.start.0 + offset - other.first) * PAGE_BYTES;
                (sample.pid, sample.address) = (pid, VirtAddr(start + sample.address.0 % PAGE_BYTES));
            }
        }
    }

    /// Lists the managed processes that have mapped what `process` has mapped in this range, and from which
    /// page on, itself first. The list is empty where the memory is not shared, or where it belongs to
    /// another user than the process acts for: he decides where it lies.
    pub(crate) fn mappers(&self, process: &Process, range: PageRange) -> Vec<(u32, PageNumber)> {
        let own = mapping_at(process, range.start).filter(|own| owns(process.pid, own.range));
        own.and_then(|own| distinct(self.places(process.pid, own, range))).unwrap_or_default()
    }

    /// Finds where the pages of a range of a process's mapping are in all processes, its own place first and
    /// each place once.
    fn places(&self, pid: Pid, own: &SharedMapping, range: PageRange) -> Vec<(u32, PageNumber)> {
        let first = own.first + (range.start.0 - own.range.start.0);
        let mut places = vec![(pid.0, range.start)];
        let mut known = BTreeSet::from([(pid.0, range.start.0)]);
        for (pid, other) in self.0.get(&own.object).into_iter().flatten() {
            // The first page may lie before the mapping. Mappings side by side say the same place.
            let at = (other.range.start.0 + first).wrapping_sub(other.first);
            let overlaps = first < other.first + other.range.pages() && other.first < first + range.pages();
            if overlaps && known.insert((pid.0, at)) {
                places.push((pid.0, PageNumber(at)));
            }
        }
        places
    }
}

/// Leaves out processes that share their memory with one before: a page that both have mapped is mapped once.
/// None where the kernel does not tell.
fn distinct(mut places: Vec<(u32, PageNumber)>) -> Option<Vec<(u32, PageNumber)>> {
    let mut by_memory: Vec<u32> = Vec::new();
    let mut twins = BTreeSet::new();
    for &(pid, _) in &places {
        if by_memory.contains(&pid) || twins.contains(&pid) {
            continue;
        }
        let mut failed = false;
        let order = |other: &u32| {
            compare_memory(*other as i32, pid as i32).unwrap_or_else(|_| {
                failed = true;
                Ordering::Equal
            })
        };
        match by_memory.binary_search_by(order) {
            _ if failed => return None,
            Ok(_) => drop(twins.insert(pid)),
            Err(at) => by_memory.insert(at, pid),
        }
    }
    places.retain(|(pid, _)| !twins.contains(pid));
    Some(places)
}

fn mapping_at(process: &Process, page: PageNumber) -> Option<&SharedMapping> {
    let after = process.shared.partition_point(|mapping| mapping.range.start <= page);
    process.shared[..after].last().filter(|mapping| mapping.range.contains(page))
}

/// Tells whether the memory that is mapped there belongs to the user whom the process acts for.
fn owns(pid: Pid, PageRange { start, end }: PageRange) -> bool {
    let owner = |path: String| std::fs::metadata(path).ok().map(|found| found.uid());
    let mapped = format!("/proc/{pid}/map_files/{:x}-{:x}", start.address().0, end.address().0);
    owner(mapped).is_some_and(|user| owner(format!("/proc/{pid}")) == Some(user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_place_counts_once_however_often_it_is_listed() {
        let mapping = |start, pages, first| SharedMapping {
            range: PageRange::new(start, start + pages),
            object: (1, 2),
            first,
        };
        // The second process has split its mapping in two, and has mapped the memory a second time elsewhere.
        let all = [
            (7, mapping(100, 20, 0)),
            (8, mapping(500, 10, 0)),
            (8, mapping(510, 10, 10)),
            (8, mapping(900, 20, 0)),
        ];
        let all = all.map(|(pid, mapping)| (Pid(pid), mapping)).to_vec();
        let shared = SharedMemory([((1, 2), all)].into());
        let places = shared.places(Pid(7), &mapping(100, 20, 0), PageRange::new(105, 118));
        assert_eq!(places, [(7, PageNumber(105)), (8, PageNumber(505)), (8, PageNumber(905))]);
        // A range that one of the two parts holds.
        let places = shared.places(Pid(8), &mapping(510, 10, 10), PageRange::new(512, 515));
        assert_eq!(places, [(8, PageNumber(512)), (7, PageNumber(112)), (8, PageNumber(912))]);
    }

    #[test]
    fn processes_with_one_memory_are_one() {
        let me = std::process::id();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let thread = std::thread::spawn(|| {
            // A thread has its process's memory, as a child of clone(CLONE_VM) would.
            let tid = nodewise_sys::gettid() as u32;
            distinct(vec![(std::process::id(), PageNumber(1)), (tid, PageNumber(1))])
        });
        assert_eq!(thread.join().unwrap(), Some(vec![(me, PageNumber(1))]));
        let two = vec![(me, PageNumber(1)), (child.id(), PageNumber(2)), (me, PageNumber(3))];
        assert_eq!(distinct(two.clone()), Some(two));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(distinct(vec![(me, PageNumber(1)), (child.id(), PageNumber(2))]), None, "gone");
    }
}
