//! Memory that several managed processes have mapped: it is one memory, whoever's samples tell of it, and
//! moves as one.

use crate::kernel::Place;
use crate::maps::SharedMapping;
use crate::process::{Process, Processes};
use crate::sampler::RawSample;
use nodewise_engine::{PAGE_BYTES, PageNumber, PageRange, Pid, VirtAddr};
use nodewise_sys::compare_memory;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// The mappings of shared memory, by device and inode.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    objects: BTreeMap<(u64, u64), Object>,
    memories: RefCell<Memories>,
}

/// Processes that have mapped a page, at most, of which it is asked whether they are all who have.
const MAPPERS_MOST: usize = 1024;

/// One memory.
#[derive(Debug, Default)]
struct Object {
    /// In ascending order of the processes' numbers, and of addresses.
    mappings: Vec<(Pid, SharedMapping)>,
    /// From each of these pages of it on, which mapping is the first of those that hold it.
    first: Vec<(u64, Option<usize>)>,
}

impl Object {
    fn new(mappings: Vec<(Pid, SharedMapping)>) -> Self {
        // Where mappings begin and end, in the order of the memory's pages.
        let mut ends: Vec<(u64, usize, bool)> = Vec::with_capacity(2 * mappings.len());
        for (index, (_, mapping)) in mappings.iter().enumerate() {
            ends.push((mapping.first, index, true));
            ends.push((mapping.first.saturating_add(mapping.range.pages()), index, false));
        }
        ends.sort_unstable();
        let (mut first, mut holding): (Vec<(u64, Option<usize>)>, _) = (Vec::new(), BTreeSet::new());
        for (page, index, begins) in ends {
            if begins {
                holding.insert(index)
            } else {
                holding.remove(&index)
            };
            let now = (page, holding.first().copied());
            match first.last_mut() {
                Some(last) if last.0 == page => *last = now,
                _ => first.push(now),
            }
        }
        first.dedup_by_key(|&mut (_, index)| index);
        Self { mappings, first }
    }

    /// The first mapping that holds this page of it.
    fn first_with(&self, page: u64) -> Option<&(Pid, SharedMapping)> {
        let after = self.first.partition_point(|&(begin, _)| begin <= page);
        self.mappings.get(self.first[..after].last()?.1?)
    }
}

impl SharedMemory {
    pub(crate) fn of(processes: &Processes) -> Self {
        let shared = processes.iter().map(|process| (process.pid, &process.details.shared));
        Self::new(shared.flat_map(|(pid, all)| all.iter().map(move |&mapping| (pid, mapping))))
    }

    /// Takes mappings in ascending order of the processes' numbers.
    fn new(mappings: impl Iterator<Item = (Pid, SharedMapping)>) -> Self {
        let mut objects: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (pid, mapping) in mappings {
            objects.entry(mapping.object).or_default().push((pid, mapping));
        }
        let objects = objects.into_iter().map(|(object, mappings)| (object, Object::new(mappings)));
        Self { objects: objects.collect(), memories: RefCell::default() }
    }

    /// Samples of one page name one address, that of the first process that has mapped it. Returns these
    /// places, each with that of a process that has the page.
    pub(crate) fn unite(&self, processes: &Processes, samples: &mut [RawSample]) -> BTreeMap<Place, Place> {
        let mut places = BTreeMap::new();
        if self.objects.values().all(|object| object.mappings.len() == 1) {
            return places;
        }
        for sample in samples {
            if let Some(process) = processes.get(sample.pid) {
                let seen = (sample.pid, sample.address.page());
                self.unite_one(&process.details.shared, sample);
                let first = (sample.pid, sample.address.page());
                if first != seen {
                    places.insert(first, seen);
                }
            }
        }
        places
    }

    fn unite_one(&self, shared: &[SharedMapping], sample: &mut RawSample) {
        let page = sample.address.page();
        let Some(mapping) = mapping_at(shared, page) else { return };
        let offset = mapping.first + (page.0 - mapping.range.start.0);
        let first = self.objects.get(&mapping.object).and_then(|object| object.first_with(offset));
        if let Some(&(pid, other)) = first {
            let start = (other.range.start.0 + offset - other.first) * PAGE_BYTES;
            (sample.pid, sample.address) = (pid, VirtAddr(start + sample.address.0 % PAGE_BYTES));
        }
    }

    /// Lists the managed processes that have mapped what `process` has mapped in this range, and from which
    /// page on, itself first. The list is empty where the memory is not shared, or where it belongs to
    /// another user than the process acts for: he decides where it lies.
    pub(crate) fn mappers(&self, process: &Process, range: PageRange) -> Vec<(u32, PageNumber)> {
        let own = mapping_at(&process.details.shared, range.start).filter(|own| owns(process.pid, own.range));
        let places = own.and_then(|own| self.places(process.pid, own, range));
        places.and_then(|places| self.memories.borrow_mut().distinct(places)).unwrap_or_default()
    }

    /// Finds where the pages of a range of a process's mapping are in all processes, its own place first and
    /// each place once. None if there are too many places.
    fn places(&self, pid: Pid, own: &SharedMapping, range: PageRange) -> Option<Vec<(u32, PageNumber)>> {
        let first = own.first + (range.start.0 - own.range.start.0);
        let mut places = vec![(pid.0, range.start)];
        let mut known = BTreeSet::from([(pid.0, range.start.0)]);
        let object = self.objects.get(&own.object);
        for (pid, other) in object.into_iter().flat_map(|object| &object.mappings) {
            // The first page may lie before the mapping. Mappings side by side say the same place.
            let at = (other.range.start.0 + first).wrapping_sub(other.first);
            let overlaps = first < other.first + other.range.pages() && other.first < first + range.pages();
            if overlaps && known.insert((pid.0, at)) {
                places.push((pid.0, PageNumber(at)));
            }
            if places.len() > MAPPERS_MOST {
                return None;
            }
        }
        Some(places)
    }
}

/// Which processes have one memory, as far as that was asked.
#[derive(Debug, Default)]
struct Memories {
    /// One process of each, in the kernel's order.
    sorted: Vec<u32>,
    /// That process by each that has the same memory.
    of: BTreeMap<u32, u32>,
}

impl Memories {
    /// The process that stands for all with its memory. None where the kernel does not tell.
    fn of(&mut self, pid: u32) -> Option<u32> {
        if let Some(&known) = self.of.get(&pid) {
            return Some(known);
        }
        let mut failed = false;
        let order = |other: &u32| {
            compare_memory(*other as i32, pid as i32).unwrap_or_else(|_| {
                failed = true;
                Ordering::Equal
            })
        };
        let first = match self.sorted.binary_search_by(order) {
            _ if failed => return None,
            Ok(at) => self.sorted[at],
            // Whether it is there at all shows when it is compared with itself.
            Err(at) => {
                compare_memory(pid as i32, pid as i32).ok()?;
                self.sorted.insert(at, pid);
                pid
            }
        };
        self.of.insert(pid, first);
        Some(first)
    }

    /// Leaves out processes that share their memory with one before: a page that both have mapped is mapped
    /// once. None where the kernel does not tell.
    fn distinct(&mut self, places: Vec<(u32, PageNumber)>) -> Option<Vec<(u32, PageNumber)>> {
        // The first process of the list that has each memory.
        let mut by: BTreeMap<u32, u32> = BTreeMap::new();
        let mut distinct = Vec::with_capacity(places.len());
        for (pid, page) in places {
            if *by.entry(self.of(pid)?).or_insert(pid) == pid {
                distinct.push((pid, page));
            }
        }
        Some(distinct)
    }
}

fn mapping_at(shared: &[SharedMapping], page: PageNumber) -> Option<&SharedMapping> {
    let after = shared.partition_point(|mapping| mapping.range.start <= page);
    shared[..after].last().filter(|mapping| mapping.range.contains(page))
}

/// Tells whether the memory that is mapped there belongs to the user whom the process acts for.
fn owns(pid: Pid, PageRange { start, end }: PageRange) -> bool {
    let mapped = format!("/proc/{pid}/map_files/{:x}-{:x}", start.address().0, end.address().0);
    // As far as it is known here: a file system, of a network or of a program, may never answer.
    let found = statx(CWD, mapped, AtFlags::STATX_DONT_SYNC, StatxFlags::UID);
    let owner = found.ok().map(|found| found.stx_uid);
    let status = std::fs::read(format!("/proc/{pid}/status")).ok();
    owner.is_some_and(|owner| status.and_then(|status| effective_user(&status)) == Some(owner))
}

/// The user whom a process acts for, by `/proc/PID/status`. The owner of its files says less: they are root's
/// where the process lets nobody look into it.
fn effective_user(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let users = std::str::from_utf8(lines.find_map(|line| line.strip_prefix(b"Uid:"))?).ok()?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
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
        let all = all.map(|(pid, mapping)| (Pid(pid), mapping));
        let shared = SharedMemory::new(all.into_iter());
        let places = |pid, mapping, range| shared.places(Pid(pid), &mapping, range).unwrap();
        let found = places(7, mapping(100, 20, 0), PageRange::new(105, 118));
        assert_eq!(found, [(7, PageNumber(105)), (8, PageNumber(505)), (8, PageNumber(905))]);
        // A range that one of the two parts holds.
        let found = places(8, mapping(510, 10, 10), PageRange::new(512, 515));
        assert_eq!(found, [(8, PageNumber(512)), (7, PageNumber(112)), (8, PageNumber(912))]);
    }

    fn sample(pid: u32, page: u64) -> RawSample {
        use nodewise_engine::{Access, DataSource, Tid};
        RawSample {
            time_ns: 0,
            address: VirtAddr(page * PAGE_BYTES + 8),
            pid: Pid(pid),
            tid: Tid(pid),
            accessor: nodewise_topology::NodeIndex(0),
            access: Access::Read,
            source: DataSource::Unknown,
            latency_cycles: 0,
            weight: 1,
        }
    }

    /// A program maps one memory as often as it may, and has samples taken there. With 65 000 steps for each
    /// sample the search would take minutes.
    #[test]
    fn samples_find_the_first_mapping_however_many_there_are() {
        const EACH: u64 = 32_500;
        let mapping = |at: u64, start: u64, first| SharedMapping {
            range: PageRange::new(start + 2 * at, start + 2 * at + 1),
            object: (1, 2),
            first,
        };
        // The first process has mapped the memory's pages in turn, the second in the reverse order.
        let one: Vec<_> = (0..EACH).map(|at| mapping(at, 1 << 20, at)).collect();
        let two: Vec<_> = (0..EACH).map(|at| mapping(at, 1 << 24, EACH - 1 - at)).collect();
        let all = one.iter().map(|&m| (Pid(7), m)).chain(two.iter().map(|&m| (Pid(8), m)));
        let shared = SharedMemory::new(all);
        let steps = shared.objects[&(1, 2)].first.len();
        assert!(steps <= 2 * EACH as usize, "{steps}");
        for at in 0..1 << 18 {
            let at = at % EACH;
            let mut sample = sample(8, (1 << 24) + 2 * at);
            shared.unite_one(&two, &mut sample);
            let there = (1 << 20) + 2 * (EACH - 1 - at);
            assert_eq!((sample.pid, sample.address), (Pid(7), VirtAddr(there * PAGE_BYTES + 8)));
        }
        let whole = PageRange::new(1 << 20, (1 << 20) + 1);
        assert_eq!(shared.places(Pid(7), &one[0], whole).map(|places| places.len()), Some(2));
    }

    #[test]
    fn memory_that_too_many_have_mapped_stays() {
        let mapping = SharedMapping { range: PageRange::new(100, 120), object: (1, 2), first: 0 };
        let places = |processes: u32| {
            let all = (1..=processes).map(|pid| (Pid(pid), mapping));
            SharedMemory::new(all).places(Pid(1), &mapping, mapping.range).map(|places| places.len())
        };
        assert_eq!(places(1000), Some(1000));
        assert_eq!(places(2000), None);
    }

    #[test]
    fn a_process_acts_for_its_effective_user_whoever_owns_its_files() {
        let status = b"Name:\tcaf\xe9\nUmask:\t0022\nUid:\t1000\t1001\t1002\t1003\nGid:\t5\t5\t5\t5\n";
        assert_eq!(effective_user(status), Some(1001));
        assert_eq!(effective_user(b"Name:\tx\n"), None);
    }

    #[test]
    fn processes_with_one_memory_are_one() {
        let me = std::process::id();
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let thread = std::thread::spawn(|| {
            // A thread has its process's memory, as a child of clone(CLONE_VM) would.
            let tid = nodewise_sys::gettid() as u32;
            Memories::default().distinct(vec![(std::process::id(), PageNumber(1)), (tid, PageNumber(1))])
        });
        assert_eq!(thread.join().unwrap(), Some(vec![(me, PageNumber(1))]));
        let two = vec![(me, PageNumber(1)), (child.id(), PageNumber(2)), (me, PageNumber(3))];
        assert_eq!(Memories::default().distinct(two.clone()), Some(two));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(
            Memories::default().distinct(vec![(me, PageNumber(1)), (child.id(), PageNumber(2))]),
            None,
            "gone"
        );
    }
}
