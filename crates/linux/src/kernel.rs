//! The running kernel, as the mover and the machine see it.

use crate::bounds::MAPS_TIME;
use crate::ending::{Ending, Until};
use crate::maps;
use crate::mover::{Kernel, Mapper};
use crate::page_frames::PageFrames;
use crate::process::{ReadCost, has_ended};
use nodewise_engine::{Mapping, PageNumber, PageRange, Pid};
use nodewise_sys::{Clock, Error, MoveFlags, clock_ns};
use nodewise_topology::NodeId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// System calls and files of the live machine.
#[derive(Debug, Default)]
pub struct LiveKernel {
    frames: PageFrames,
    /// Handles of the processes that these numbers are to mean.
    handles: BTreeMap<u32, Arc<OwnedFd>>,
    cost: ReadCost,
    /// Memory that the machine has and no node counts: it may be free on any.
    uncounted_bytes: u64,
    ending: Ending,
    /// Where pages of shared memory were seen, by their place in the first process that has mapped them.
    seen_at: HashMap<Place, Place>,
    /// The processes of [`keep`](Self::keep).
    kept: BTreeSet<u32>,
}

/// A page of a process.
pub(crate) type Place = (Pid, PageNumber);

/// Pages of shared memory of which it is known who has used them.
const PLACES_MOST: usize = 1 << 18;

impl Kernel for LiveKernel {
    fn query(&mut self, pid: u32, addresses: &[u64], status: &mut [i32]) -> Result<(), Error> {
        self.while_it_lives(pid, || nodewise_sys::query_pages(pid as i32, addresses, status))
    }

    fn move_pages(
        &mut self,
        pid: u32,
        addresses: &[u64],
        nodes: &[i32],
        status: &mut [i32],
        flags: MoveFlags,
    ) -> Result<u64, Error> {
        self.while_it_lives(pid, || nodewise_sys::move_pages(pid as i32, addresses, nodes, status, flags))
    }

    fn is_huge(&mut self, pid: u32, page: PageNumber) -> Option<bool> {
        self.frames.is_huge(&mut self.cost, pid, page)
    }

    fn folios(&mut self, pid: u32, window: PageRange, pages: &[PageNumber]) -> Option<Vec<u16>> {
        let Self { frames, cost, .. } = self;
        frames.folios(cost, pid, window, pages)
    }

    fn seen_at(&self, pid: u32, page: PageNumber) -> Option<(u32, PageNumber)> {
        self.last_seen((Pid(pid), page)).map(|(pid, page)| (pid.0, page))
    }

    /// By how often the kernel counts a page as mapped (`/proc/kpagecount`). Whoever maps it after that look
    /// is moved along.
    fn are_theirs_alone(&mut self, mappers: &[Mapper], window: PageRange) -> Vec<bool> {
        let Self { frames, cost, .. } = self;
        frames.are_alone(cost, mappers, window)
    }

    /// `/sys/devices/system/node/nodeN/meminfo`, and what no node counts; 0 where there is no such node.
    fn free_bytes(&mut self, node: NodeId) -> u64 {
        let text =
            self.cost.read(&format!("/sys/devices/system/node/node{node}/meminfo")).unwrap_or_default();
        free_kib(&text).map_or(0, |kib| kib * 1024 + self.uncounted_bytes)
    }

    fn now_ns(&mut self) -> u64 {
        now_ns()
    }

    fn is_ending(&self) -> bool {
        self.ending.is_set()
    }

    fn cpu_ns(&mut self) -> u64 {
        clock_ns(Clock::ThreadCpu).expect("every kernel has this clock")
    }
}

/// A node's memory that is free, or page cache that nobody used lately and that is clean. The kernel gives
/// the latter up for pages that are moved there (`alloc_migration_target`, `mm/migrate.c`, Linux 6.12). On
/// a server that has run for a day next to nothing else is free.
fn free_kib(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find(|line| line.contains(&format!(" {name}:")))?;
        line.split_ascii_whitespace().rev().nth(1)?.parse::<u64>().ok()
    };
    let dirty = ["Dirty", "Writeback"].into_iter().filter_map(kib).sum();
    Some(kib("MemFree")? + kib("Inactive(file)").unwrap_or(0).saturating_sub(dirty))
}

/// Memory of a node that is free, or that the kernel gives up at once ([`free_kib`]).
#[must_use]
pub fn free_bytes(node: NodeId) -> Option<u64> {
    let meminfo = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
    Some(free_kib(&meminfo)? * 1024)
}

impl LiveKernel {
    /// The kernel of a machine of whose memory no node counts so much
    /// ([`nodewise_topology::Topology::uncounted_memory_bytes`]).
    #[must_use]
    pub fn new(uncounted_bytes: u64) -> Self {
        Self { uncounted_bytes, ..Self::default() }
    }

    /// Learns where pages of shared memory were seen. To have mapped such memory is not to have each of its
    /// pages: a process has those that it has touched. So the first may know nothing of a page.
    pub(crate) fn learn_places(&mut self, places: impl Iterator<Item = (Place, Place)>) {
        for (first, seen) in places {
            if self.seen_at.len() >= PLACES_MOST {
                self.seen_at.clear();
            }
            self.seen_at.insert(first, seen);
        }
    }

    /// The place where a page of shared memory was seen last, if that process is still there.
    pub(crate) fn last_seen(&self, first: Place) -> Option<Place> {
        self.seen_at.get(&first).copied().filter(|(pid, _)| self.kept.contains(&pid.0))
    }

    /// Hears when managing is to end.
    pub(crate) fn hear(&mut self, ending: &Ending) {
        self.ending = ending.clone();
    }

    /// From here on these numbers mean the processes of these handles, and no others.
    pub(crate) fn mean(&mut self, handles: impl Iterator<Item = (u32, Arc<OwnedFd>)>) {
        self.handles = handles.collect();
    }

    /// Calls the kernel about a process by its number, which may be given to another: what is learnt then is
    /// worth nothing, and the process is gone. A call is short, and so is the time in which another's
    /// pages could be moved.
    fn while_it_lives<T>(&self, pid: u32, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        const ESRCH: i32 = 3;
        self.ending.goes_on();
        let handle = self.handles.get(&pid);
        let gone = || handle.is_some_and(has_ended).then_some(Error::new("move_pages", ESRCH));
        if let Some(gone) = gone() {
            return Err(gone);
        }
        let returned = call();
        gone().map_or(returned, Err)
    }

    /// The cost of all that was read so far.
    #[must_use]
    pub const fn cost(&self) -> ReadCost {
        self.cost
    }

    /// How many pages move only together with this one, itself included: 512 are a huge page. None where
    /// there is no page, and where the kernel does not tell.
    pub(crate) fn folio_pages(&mut self, pid: u32, page: PageNumber) -> Option<u16> {
        self.frames.folio_pages(&mut self.cost, pid, page)
    }

    /// Whether huge pages are told from others, which takes root.
    #[must_use]
    pub const fn sees_huge_pages(&self) -> bool {
        self.frames.have_flags()
    }

    /// Memory that a process has bound itself, where that can be read in good time: the kernel walks all page
    /// tables for it, one mapping at a time.
    pub(crate) fn bound(&mut self, pid: Pid, mappings: &[Mapping]) -> Option<Vec<PageRange>> {
        let status = self.cost.read(&format!("/proc/{pid}/status"))?;
        let until = Until { at: Instant::now() + MAPS_TIME, ending: self.ending.clone() };
        maps::bound(self.cost.open(&policies_file(pid, &status)?)?, mappings, until).ok()
    }

    /// Pages that the kernel's balancing has moved since boot (`/proc/vmstat`, `numa_pages_migrated`); 0 on
    /// kernels without.
    pub fn pages_migrated(&mut self) -> u64 {
        vmstat_count(&self.cost.read("/proc/vmstat").unwrap_or_default(), "numa_pages_migrated")
    }

    /// Closes the files of all processes but these. An open pagemap keeps showing the program that ran when
    /// it was opened. Leave a process out of `processes` when it has executed another program, so that its
    /// file is closed.
    pub fn keep(&mut self, processes: &BTreeSet<u32>) {
        self.frames.keep(processes);
        self.kept.clone_from(processes);
    }
}

/// A count of `/proc/vmstat`; 0 on kernels without.
pub(crate) fn vmstat_count(vmstat: &str, name: &str) -> u64 {
    let value = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// Now, on the clock that perf events are told to use.
#[must_use]
pub fn now_ns() -> u64 {
    clock_ns(Clock::Monotonic).expect("every kernel has this clock")
}

/// The file with a process's memory policies, if its page tables are small by its `status`. The kernel walks
/// all of them for it.
pub(crate) fn policies_file(pid: Pid, status: &str) -> Option<String> {
    /// 8 million pages, some tenths of a second.
    const PAGE_TABLES_KIB: u64 = 64 << 10;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    (kib <= PAGE_TABLES_KIB).then(|| format!("/proc/{pid}/numa_maps"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodewise_sys::{Mapping, MappingOptions};
    use std::sync::atomic::Ordering;

    #[test]
    fn clean_page_cache_that_nobody_used_lately_is_free() {
        let meminfo = "Node 1 MemTotal: 1000 kB\nNode 1 MemFree: 10 kB\nNode 1 Active(file): 500 kB\n\
                       Node 1 Inactive(file): 300 kB\nNode 1 Dirty: 40 kB\nNode 1 Writeback: 5 kB\n\
                       Node 1 WritebackTmp: 7 kB\n";
        assert_eq!(free_kib(meminfo), Some(265));
        assert_eq!(free_kib(&meminfo.replace("300", "30")), Some(10));
        assert_eq!(free_kib("Node 1 MemFree: 10 kB\n"), Some(10));
        assert_eq!(free_kib(""), None);
    }

    #[test]
    fn knows_the_free_memory_of_node_0_and_counts_what_it_read() {
        let mut kernel = LiveKernel::default();
        assert!(kernel.free_bytes(NodeId(0)) > 0);
        assert_eq!(kernel.free_bytes(NodeId(9999)), 0);
        // More than any machine has: what no node counts is on top of what this one says.
        let mut grown = LiveKernel::new(1 << 60);
        assert!(grown.free_bytes(NodeId(0)) > 1 << 60);
        assert_eq!(grown.free_bytes(NodeId(9999)), 0);
        let cost = kernel.cost();
        assert!(cost.files == 2 && cost.bytes > 0, "{cost:?}");
        kernel.pages_migrated();
        assert_eq!(kernel.cost().files, 3);
    }

    /// It may have got its number since.
    #[test]
    fn nobody_else_is_meant_by_the_number_of_a_process_that_has_ended() {
        let me = std::process::id();
        let mapping = Mapping::new(1 << 12, MappingOptions::default()).unwrap();
        mapping.as_atomics()[0].store(1, Ordering::Relaxed);
        let addresses = [mapping.page_address(0)];
        let sleep = || std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let end = |child: &mut std::process::Child| {
            child.kill().unwrap();
            child.wait().unwrap();
        };
        let handle_of =
            |child: &std::process::Child| Arc::new(nodewise_sys::pidfd_open(child.id() as i32).unwrap());
        let mut kernel = LiveKernel::default();
        assert!(kernel.query(me, &addresses, &mut [0]).is_ok());
        let mut child = sleep();
        kernel.mean([(me, handle_of(&child))].into_iter());
        assert!(kernel.query(me, &addresses, &mut [0]).is_ok(), "it lives");
        let is_gone = |result: Result<(), Error>| {
            result.is_err_and(|error| error.kind() == nodewise_sys::ErrorKind::NoSuchProcess)
        };
        let ended_meanwhile = kernel.while_it_lives(me, || {
            end(&mut child);
            Ok(())
        });
        assert!(is_gone(ended_meanwhile));
        assert!(is_gone(kernel.query(me, &addresses, &mut [0])));
        let moved = kernel.move_pages(me, &addresses, &[0], &mut [0], MoveFlags::Exclusive);
        assert!(is_gone(moved.map(drop)));
        assert!(is_gone(kernel.while_it_lives(me, || -> Result<(), Error> { panic!("nothing is asked") })));
    }

    #[test]
    fn the_clock_goes_forward() {
        let before = now_ns();
        assert!(now_ns() >= before);
    }
}
