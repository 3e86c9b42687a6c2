//! Getting pages to their nodes, and seeing whether they got there.

use super::layout::Plan;
use crate::device::bind_thread;
use crate::error::{Error, Result};
use crate::hint::forget;
use crate::nearest::MemoryNodes;
use crate::pool::NodePool;
use nodewise_sys::{
    Advice, AffinityMask, MbindFlags, MoveFlags, NodeMask, OwnedMemory, Policy, PolicyMode, get_mempolicy,
    move_pages, page_bytes, query_pages, sched_getaffinity, sched_setaffinity, set_mempolicy,
};
use nodewise_topology::NodeId;
use std::collections::BTreeMap;
use std::ops::Range;

/// The answer to pages that find no room on their node, or whose place nobody knows: a container's filter may
/// refuse memory policies and `move_pages(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// It is an error, and the memory is given back.
    #[default]
    Error,
    /// The pages stay where the kernel put them. Most often that is the nearest node that has room;
    /// [`Placement::misplaced`] counts them. Where nobody knows their place, threads on the CPUs of their
    /// nodes touch them first; [`Placement::unknown`] counts those, and the kernel's balancing may move them.
    Anywhere,
}

/// Where the base pages of an array are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placement {
    /// How many are on each node that has some.
    pub pages: BTreeMap<NodeId, usize>,
    /// How many are on another node than the layout wants.
    pub misplaced: usize,
    /// How many are in no memory now: swapped out, or never touched since they were given back.
    pub absent: usize,
    /// How many the kernel tells nothing of, since a container's filter refuses `move_pages(2)`.
    pub unknown: usize,
}

impl Placement {
    /// Counts a page that is on one node and wanted on another, or the same.
    pub(crate) fn count(&mut self, node: NodeId, wanted: NodeId) {
        *self.pages.entry(node).or_default() += 1;
        self.misplaced += usize::from(node != wanted);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (node, pages) in &other.pages {
            *self.pages.entry(*node).or_default() += pages;
        }
        self.misplaced += other.misplaced;
        self.absent += other.absent;
        self.unknown += other.unknown;
    }
}

/// Bytes of a huge page.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// Pages in one call: milliseconds at most.
pub(crate) const BATCH_PAGES: usize = 4096;

/// Memory and how it is laid out: `unit_bytes` at a time.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) memory: OwnedMemory,
    pub(crate) unit_bytes: usize,
    pub(crate) plan: Plan,
}

impl Placed {
    /// Brings all pages in, each node's by threads on that node: the pool's workers, or one thread for each.
    pub(crate) fn first_touch(&mut self, pool: Option<&NodePool>, huge: bool) -> Result<()> {
        self.advise(huge);
        let failures = std::sync::Mutex::new(Vec::new());
        let (placed, failures_of) = (&*self, &failures);
        let touch = move |node: NodeId| {
            if let Err(error) = placed.touch_those_of(node) {
                failures_of.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((node, error));
            }
        };
        let nodes = self.plan.nodes();
        match pool {
            Some(pool) => pool.scope(|scope| {
                for node in nodes.iter() {
                    // Nodes without workers are filled from elsewhere.
                    if scope.spawn_on(node, move |_| touch(node)).is_err() {
                        scope.spawn(move |_| touch(node));
                    }
                }
            }),
            None => std::thread::scope(|scope| {
                for node in nodes.iter() {
                    // So are those for which the kernel gives no thread.
                    if std::thread::Builder::new().spawn_scoped(scope, move || touch(node)).is_err() {
                        touch(node);
                    }
                }
            }),
        }
        let failures = failures.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        match failures.into_iter().next() {
            Some((node, error)) => Err(cannot_bring_in(node, error)),
            None => self.keep(&self.all()),
        }
    }

    /// The same by the calling thread alone.
    pub(crate) fn touch_here(&mut self, huge: bool) -> Result<()> {
        self.advise(huge);
        self.bring_in()?;
        self.keep(&self.all())
    }

    /// Brings in what is absent.
    fn bring_in(&self) -> Result<()> {
        let nodes = self.plan.nodes();
        nodes
            .iter()
            .try_for_each(|node| self.touch_those_of(node).map_err(|error| cannot_bring_in(node, error)))
    }

    /// A stripe must not bring its neighbours along, nor khugepaged later. Kernels without huge pages refuse
    /// both.
    fn advise(&mut self, huge: bool) {
        let advice = if huge { Advice::HugePage } else { Advice::NoHugePage };
        let _ = self.memory.advise(0..self.memory.len_bytes(), advice);
    }

    fn touch_those_of(&self, node: NodeId) -> nodewise_sys::Result<()> {
        prefer(node, || {
            let mut runs = self.plan.runs().filter(|(of, _)| *of == node);
            runs.try_for_each(|(_, units)| self.memory.populate(self.bytes(units)))
        })?
    }

    /// All units.
    pub(crate) fn all(&self) -> Range<usize> {
        0..self.plan.units()
    }

    /// Tells the kernel, so that its balancing leaves the pages alone and those that it reclaims come back to
    /// their node.
    fn keep(&mut self, units: &Range<usize>) -> Result<()> {
        for (units, nodes) in self.plan.policies(units) {
            let mode = if nodes.len() == 1 { PolicyMode::Preferred } else { PolicyMode::Interleave };
            let policy = Policy::new(mode, mask(nodes));
            match self.memory.bind(self.bytes(units), &policy, MbindFlags::FuturePages) {
                // Nobody else has one then either, but the kernel's balancing may move the pages.
                Err(error) if !is_refused(&error) => {
                    return Err(Error::memory("cannot set the memory's policy".into(), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The bytes of units, within the memory.
    fn bytes(&self, units: Range<usize>) -> Range<usize> {
        let end = (units.end * self.unit_bytes).min(self.memory.len_bytes());
        units.start * self.unit_bytes..end
    }

    /// The node a base page belongs on.
    pub(crate) fn wanted(&self, page: usize) -> NodeId {
        self.plan.node_of(page * page_bytes() / self.unit_bytes)
    }

    /// The base pages of units.
    fn pages(&self, units: Range<usize>) -> Range<usize> {
        let bytes = self.bytes(units);
        bytes.start / page_bytes()..bytes.end / page_bytes()
    }

    /// Where the base pages of units are.
    pub(crate) fn placement(&self, units: Range<usize>) -> Result<Placement> {
        let mut placement = Placement::default();
        self.for_each_home(self.pages(units), |page, home| match home {
            None => placement.absent += 1,
            Some(node) => placement.count(node, self.wanted(page)),
        })?;
        Ok(placement)
    }

    /// Looks whether pages are where they belong, and tries once more to get them there.
    pub(crate) fn settle(&mut self, units: Range<usize>, fallback: Fallback) -> Result<Placement> {
        if self.kernel_does_not_tell() {
            let (pages, nodes) = (self.pages(units.clone()).len(), MemoryNodes::of_this_process()?.allowed);
            if let Some(only) = nodes.first().filter(|_| nodes.len() == 1) {
                return Ok(Placement { pages: [(only, pages)].into(), ..Placement::default() });
            }
            if fallback == Fallback::Anywhere {
                return Ok(Placement { unknown: pages, ..Placement::default() });
            }
        }
        let mut placement = self.placement(units.clone())?;
        if placement.misplaced > 0 {
            self.move_there(units.clone())?;
            placement = self.placement(units.clone())?;
            if placement.absent > 0 {
                // Huge pages that find no room are split, and of those parts that hold nothing but zeros
                // nothing is kept (`try_to_map_unused_to_zeropage` in mm/migrate.c, Linux
                // 6.12): they would come back anywhere at the next write.
                self.bring_in()?;
                placement = self.placement(units)?;
            }
        }
        if placement.misplaced > 0 && fallback == Fallback::Error {
            return Err(Error::node_full(&placement));
        }
        Ok(placement)
    }

    fn kernel_does_not_tell(&self) -> bool {
        query_pages(0, &[self.memory.page_address(0)], &mut [0]).is_err_and(|error| is_refused(&error))
    }

    /// Moves what is elsewhere, as far as the kernel tells. Huge pages move as a whole, so their first pages
    /// go first.
    pub(crate) fn move_there(&mut self, units: Range<usize>) -> Result<()> {
        if self.kernel_does_not_tell() {
            return self.keep(&units);
        }
        if self.unit_bytes > page_bytes() {
            self.move_misplaced(units.clone(), self.unit_bytes / page_bytes())?;
        }
        self.move_misplaced(units.clone(), 1)?;
        self.keep(&units)
    }

    fn move_misplaced(&self, units: Range<usize>, step: usize) -> Result<()> {
        let mut pages = Vec::new();
        self.for_each_home(self.pages(units), |page, home| {
            if page % step == 0 && home.is_some_and(|node| node != self.wanted(page)) {
                pages.push(page);
            }
        })?;
        for batch in pages.chunks(BATCH_PAGES) {
            let addresses: Vec<u64> = batch.iter().map(|&page| self.memory.page_address(page)).collect();
            let nodes: Vec<i32> = batch.iter().map(|&page| self.wanted(page).0 as i32).collect();
            let mut status = vec![0; batch.len()];
            // The placement counts pages that found no room.
            match move_pages(0, &addresses, &nodes, &mut status, MoveFlags::Exclusive) {
                Err(error) if error.kind() != nodewise_sys::ErrorKind::OutOfMemory => {
                    return Err(Error::memory("cannot move pages".into(), error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Calls with each of these base pages and its home.
    pub(crate) fn for_each_home(
        &self,
        pages: Range<usize>,
        mut each: impl FnMut(usize, Option<NodeId>),
    ) -> Result<()> {
        let mut status = vec![0; BATCH_PAGES.min(pages.len())];
        for first in pages.clone().step_by(BATCH_PAGES) {
            let batch = first..(first + BATCH_PAGES).min(pages.end);
            let addresses: Vec<u64> = batch.clone().map(|page| self.memory.page_address(page)).collect();
            let status = &mut status[..addresses.len()];
            query_pages(0, &addresses, status)
                .map_err(|error| Error::memory("cannot ask where pages are".into(), error))?;
            for (page, &home) in batch.zip(&*status) {
                each(page, u32::try_from(home).ok().map(NodeId));
            }
        }
        Ok(())
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        let start = self.memory.page_address(0);
        forget(start..start + self.memory.len_bytes() as u64);
    }
}

fn cannot_bring_in(node: NodeId, error: nodewise_sys::Error) -> Error {
    Error::memory(format!("cannot bring in the pages that belong on node {node}"), error)
}

pub(crate) fn mask(nodes: impl IntoIterator<Item = NodeId>) -> NodeMask {
    nodes.into_iter().map(|node| node.0).collect()
}

/// Does something while this thread prefers a node's memory. A preference, unlike a binding, finds memory
/// elsewhere when the node is full, instead of having the kernel end a process for want of it. Where the
/// kernel refuses preferences, it is done on the node's CPUs: what is touched first is there then, too, if
/// there is room.
pub(crate) fn prefer<R>(node: NodeId, body: impl FnOnce() -> R) -> nodewise_sys::Result<R> {
    let preferred = KeptPolicy::new().and_then(|kept| prefer_from_now(node).map(|()| kept));
    let _kept = match preferred {
        Err(error) if is_refused(&error) => (None, KeptCpus::on(node)),
        preferred => (Some(preferred?), None),
    };
    Ok(body())
}

/// Whether the kernel will not be told or asked where memory is: a container's filter refuses it, or it knows
/// no nodes.
fn is_refused(error: &nodewise_sys::Error) -> bool {
    matches!(error.kind(), nodewise_sys::ErrorKind::NotPermitted | nodewise_sys::ErrorKind::NotSupported)
}

/// Has this thread prefer a node's memory.
pub(crate) fn prefer_from_now(node: NodeId) -> nodewise_sys::Result<()> {
    set_mempolicy(&Policy::new(PolicyMode::Preferred, mask([node])))
}

/// The thread's memory policy, for one that is to prefer several nodes in turn: put back when this is
/// dropped.
pub(crate) struct KeptPolicy(Policy);

impl KeptPolicy {
    pub(crate) fn new() -> nodewise_sys::Result<Self> {
        get_mempolicy().map(Self)
    }
}

impl Drop for KeptPolicy {
    fn drop(&mut self) {
        // It was the policy before.
        let _ = set_mempolicy(&self.0);
    }
}

/// The CPUs that the thread may run on, for one that is to be on a node's for a while: put back when this is
/// dropped.
struct KeptCpus(AffinityMask);

impl KeptCpus {
    /// None where it is anyway, or where the thread may run on none of the node's CPUs.
    fn on(node: NodeId) -> Option<Self> {
        let nodes = MemoryNodes::of_this_process().ok()?.allowed;
        let before = sched_getaffinity(0).ok().filter(|_| nodes.len() > 1)?;
        bind_thread(&[node].into_iter().collect()).ok()?;
        Some(Self(before))
    }
}

impl Drop for KeptCpus {
    fn drop(&mut self) {
        // They were the thread's before.
        let _ = sched_setaffinity(0, &self.0);
    }
}

/// Maps memory of which every page is to be brought in. A request that could never be met is refused: the
/// kernel, asked page by page, would sooner end processes. Its own check of a mapping's size is off where it
/// may overcommit.
pub(crate) fn map(bytes: usize, align_bytes: usize, nodes: &MemoryNodes) -> Result<OwnedMemory> {
    if let Some(most) = nodes.bytes.filter(|&most| bytes as u64 > most) {
        return Err(Error::too_little_memory(bytes, most, &nodes.allowed));
    }
    OwnedMemory::new(bytes, align_bytes)
        .map_err(|error| Error::memory(format!("cannot map {bytes} bytes"), error))
}
