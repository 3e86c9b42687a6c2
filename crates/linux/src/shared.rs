//! Memory that several managed processes have mapped: it is one memory, whoever's samples tell of it, and
//! moves as one.

use crate::bounds::{MAPPINGS, MAPS_TIME};
use crate::ending::{Ending, Until};
use crate::kernel::Place;
use crate::maps::{Maps, SharedMapping};
use crate::mover::Mapper;
use crate::process::{Process, Processes};
use crate::sampler::RawSample;
use nodewise_engine::{HUGE_PAGE_PAGES, PAGE_BYTES, PageNumber, PageRange, Pid, VirtAddr};
use nodewise_sys::compare_memory;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::time::Instant;

/// The mappings of shared memory, by device and inode.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    objects: BTreeMap<(u64, u64), Object>,
    memories: RefCell<Memories>,
    /// Processes whose mappings begin or end elsewhere by now, with those of shared memory.
    changed: RefCell<BTreeMap<Pid, Vec<SharedMapping>>>,
}

/// Mappings of a mapping's pages, at most, of which it is asked whether they are all that there are.
const MAPPERS_MOST: usize = 1024;
/// Mappings of a process that are looked at for one range. Nothing is known of those beyond, so that of their
/// pages only those move that the process alone has.
const MAPPINGS_MOST: usize = 16;

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
        Self { objects: objects.collect(), ..Self::default() }
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

    /// Lists the managed processes that have mapped what shared memory `process` has in this range. Huge
    /// pages at its ends count as a whole. Left out is memory that belongs to another user than the process
    /// acts for: he decides where it lies.
    pub(crate) fn mappers(&self, process: &Process, range: PageRange) -> Vec<Mapper> {
        let end = range.end.0.next_multiple_of(HUGE_PAGE_PAGES);
        let range = PageRange { start: range.start.huge(), end: PageNumber(end) };
        let owned = mappings_in(&process.details.shared, range).filter(|own| self.owns(process.pid, own));
        let mappers = owned.filter_map(|own| self.mappers_of(process.pid, own, range));
        let mappers = mappers.flatten().collect();
        self.memories.borrow_mut().distinct(mappers).unwrap_or_default()
    }

    /// Tells whether the memory that is mapped there belongs to the user whom the process acts for.
    fn owns(&self, pid: Pid, own: &SharedMapping) -> bool {
        let owner = match owner(pid, own.range) {
            // A heap that grows where it was reserved ends elsewhere, with as much mapped as before.
            Err(Errno::NOENT) => self.now(pid, own).and_then(|now| owner(pid, now).ok()),
            found => found.ok(),
        };
        let status = std::fs::read(format!("/proc/{pid}/status")).ok();
        owner.is_some_and(|owner| status.and_then(|status| effective_user(&status)) == Some(owner))
    }

    /// The mapping by now that holds the beginning of this one, of the same memory.
    fn now(&self, pid: Pid, own: &SharedMapping) -> Option<PageRange> {
        let mut changed = self.changed.borrow_mut();
        let mappings = changed.entry(pid).or_insert_with(|| mapped_now(pid).unwrap_or_default());
        let now = mapping_at(mappings, own.range.start)?;
        let is_same =
            now.object == own.object && now.first + (own.range.start.0 - now.range.start.0) == own.first;
        is_same.then_some(now.range)
    }

    /// The processes of which it has turned out since the last call that their mappings have changed.
    pub(crate) fn take_changed(&self) -> impl Iterator<Item = Pid> + use<> {
        self.changed.take().into_keys()
    }

    /// Lists who has mapped pages of a range of a process's mapping, itself first. None if there are too
    /// many.
    fn mappers_of(&self, pid: Pid, own: &SharedMapping, range: PageRange) -> Option<Vec<Mapper>> {
        let range = own.range.intersect(range);
        let first = own.first + (range.start.0 - own.range.start.0);
        let mut mappers = vec![Mapper { pid: pid.0, range, at: range.start }];
        let object = self.objects.get(&own.object);
        for &(other, mapping) in object.into_iter().flat_map(|object| &object.mappings) {
            // Pages of the memory that both have mapped.
            let begin = first.max(mapping.first);
            let end = (first + range.pages()).min(mapping.first.saturating_add(mapping.range.pages()));
            if begin >= end || (other, mapping.range) == (pid, own.range) {
                continue;
            }
            let mapper = Mapper {
                pid: other.0,
                range: PageRange::new(range.start.0 + begin - first, range.start.0 + end - first),
                at: PageNumber(mapping.range.start.0 + begin - mapping.first),
            };
            // Mappings side by side, as mprotect(2) makes them, are one.
            match mappers.last_mut() {
                Some(last) if last.is_continued_by(&mapper) => last.range.end = mapper.range.end,
                _ => mappers.push(mapper),
            }
            if mappers.len() > MAPPERS_MOST {
                return None;
            }
        }
        Some(mappers)
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
    fn distinct(&mut self, mappers: Vec<Mapper>) -> Option<Vec<Mapper>> {
        // The first process of the list that has each memory.
        let mut by: BTreeMap<u32, u32> = BTreeMap::new();
        let mut distinct = Vec::with_capacity(mappers.len());
        for mapper in mappers {
            if *by.entry(self.of(mapper.pid)?).or_insert(mapper.pid) == mapper.pid {
                distinct.push(mapper);
            }
        }
        Some(distinct)
    }
}

fn mapping_at(shared: &[SharedMapping], page: PageNumber) -> Option<&SharedMapping> {
    let after = shared.partition_point(|mapping| mapping.range.start <= page);
    shared[..after].last().filter(|mapping| mapping.range.contains(page))
}

fn mappings_in(shared: &[SharedMapping], range: PageRange) -> impl Iterator<Item = &SharedMapping> {
    let first = shared.partition_point(|mapping| mapping.range.end <= range.start);
    shared[first..].iter().take_while(move |mapping| mapping.range.start < range.end).take(MAPPINGS_MOST)
}

/// The user to whom the memory belongs that is mapped just there.
fn owner(pid: Pid, PageRange { start, end }: PageRange) -> Result<u32, Errno> {
    let mapped = format!("/proc/{pid}/map_files/{:x}-{:x}", start.address().0, end.address().0);
    // As far as it is known here: a file system, of a network or of a program, may never answer.
    statx(CWD, mapped, AtFlags::STATX_DONT_SYNC, StatxFlags::UID).map(|found| found.stx_uid)
}

/// A process's mappings of shared memory as they are now.
fn mapped_now(pid: Pid) -> Option<Vec<SharedMapping>> {
    let until = Until { at: Instant::now() + MAPS_TIME, ending: Ending::default() };
    let maps = File::open(format!("/proc/{pid}/maps")).ok()?;
    Some(Maps::read(maps, MAPPINGS, until).ok()?.shared)
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
    use nodewise_sys::Mapping;
    use std::process::Command;

    #[test]
    fn pages_are_told_only_where_processes_have_mapped_them() {
        let mapping = |start, pages, first| SharedMapping {
            range: PageRange::new(start, start + pages),
            object: (1, 2),
            first,
        };
        // The second process has split its mapping in two, and has mapped the memory a second time elsewhere.
        // The third has the end of it only.
        let all = [
            (7, mapping(100, 20, 0)),
            (8, mapping(500, 10, 0)),
            (8, mapping(510, 10, 10)),
            (8, mapping(900, 20, 0)),
            (9, mapping(300, 5, 15)),
        ];
        let all = all.map(|(pid, mapping)| (Pid(pid), mapping));
        let shared = SharedMemory::new(all.into_iter());
        let mappers = |pid, mapping, start, end| {
            let mappers = shared.mappers_of(Pid(pid), &mapping, PageRange::new(start, end)).unwrap();
            let told = |m: &Mapper| (m.pid, m.range.start.0..m.range.end.0, m.at.0);
            mappers.iter().map(told).collect::<Vec<_>>()
        };
        let found = mappers(7, mapping(100, 20, 0), 105, 118);
        let parts = [(8, 105..118, 505), (8, 105..118, 905), (9, 115..118, 300)];
        assert_eq!(found, [&[(7, 105..118, 105)][..], &parts].concat());
        // A range that one of the two parts holds.
        let found = mappers(8, mapping(510, 10, 10), 512, 515);
        assert_eq!(found, [(8, 512..515, 512), (7, 512..515, 112), (8, 512..515, 912)]);
        // A range that begins before the mapping, and ends after it.
        let found = mappers(9, mapping(300, 5, 15), 0, 512);
        let parts = [(9, 300..305, 300), (7, 300..305, 115), (8, 300..305, 515), (8, 300..305, 915)];
        assert_eq!(found, parts);
    }

    /// A JVM's heap ends elsewhere in each second while it grows.
    #[test]
    fn memory_belongs_to_whom_it_did_if_its_mapping_has_grown() {
        const PAGES: u64 = 8;
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGES * PAGE_BYTES).unwrap();
        let memory = Mapping::of_file(&file, (PAGES * PAGE_BYTES) as usize).unwrap();
        let (pid, start) = (Pid(std::process::id()), VirtAddr(memory.address()).page());
        let maps = File::open("/proc/self/maps").unwrap();
        let maps = Maps::read(maps, usize::MAX, (Instant::now() + MAPS_TIME).into()).unwrap();
        let now = *mapping_at(&maps.shared, start).unwrap();
        let shared = SharedMemory::default();
        // Without root it is not known whose it is.
        let known = owner(pid, now.range).is_ok();
        assert_eq!((shared.owns(pid, &now), shared.take_changed().count()), (known, 0));
        let before = SharedMapping { range: PageRange::new(start.0, start.0 + PAGES / 2), ..now };
        assert_eq!(shared.owns(pid, &before), known);
        assert!(shared.take_changed().eq([pid]));
        let others = SharedMapping { object: (1, 2), ..before };
        assert!(!shared.owns(pid, &others));
    }

    #[test]
    fn only_shared_mappings_of_a_range_are_looked_at_and_not_too_many() {
        let mapping = |at: u64| SharedMapping {
            range: PageRange::new(10 * at, 10 * at + 5),
            object: (1, at),
            first: 0,
        };
        let all: Vec<_> = (0..100).map(mapping).collect();
        let within = |start, end| mappings_in(&all, PageRange::new(start, end)).map(|m| m.object.1).collect();
        let found: [Vec<u64>; 3] = [within(24, 51), within(25, 30), within(0, 1000)];
        assert_eq!(found, [vec![2, 3, 4, 5], vec![], (0..16).collect()]);
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
        assert_eq!(shared.mappers_of(Pid(7), &one[0], whole).map(|mappers| mappers.len()), Some(2));
    }

    #[test]
    fn memory_that_too_many_have_mapped_stays() {
        let mapping = SharedMapping { range: PageRange::new(100, 120), object: (1, 2), first: 0 };
        let mappers = |processes: u32| {
            let all = (1..=processes).map(|pid| (Pid(pid), mapping));
            SharedMemory::new(all).mappers_of(Pid(1), &mapping, mapping.range).map(|mappers| mappers.len())
        };
        assert_eq!(mappers(1000), Some(1000));
        assert_eq!(mappers(2000), None);
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
        let mapper = |pid, at| Mapper { pid, range: PageRange::new(1, 2), at: PageNumber(at) };
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let thread = std::thread::spawn(move || {
            // A thread has its process's memory, as a child of clone(CLONE_VM) would.
            let tid = nodewise_sys::gettid() as u32;
            Memories::default().distinct(vec![mapper(me, 1), mapper(tid, 1)])
        });
        assert_eq!(thread.join().unwrap(), Some(vec![mapper(me, 1)]));
        let two = vec![mapper(me, 1), mapper(child.id(), 2), mapper(me, 3)];
        assert_eq!(Memories::default().distinct(two.clone()), Some(two));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Memories::default().distinct(vec![mapper(me, 1), mapper(child.id(), 2)]), None, "gone");
    }
}
