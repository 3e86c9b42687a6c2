//! Saying how memory is used: to the manager, or, where there is none, to the library itself.

use crate::error::{Error, Result};
use crate::location::current_node;
use crate::memory::{BATCH_PAGES, HUGE_BYTES, mask};
use crate::nearest::MemoryNodes;
use crate::per_process::PerProcess;
use nodewise_sys::hints::{self, Entry, Kind};
use nodewise_sys::{
    Clock, MbindFlags, MoveFlags, Policy, PolicyMode, SharedFile, clock_ns, mbind_at, move_pages, page_bytes,
    query_pages,
};
use nodewise_topology::NodeId;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a range of memory is used: the placement pragmas that Bolosky et al. (SOSP 1989, sections 4.3 and 4.4)
/// wished for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Hint {
    /// One thread or node uses it: it shall be local there.
    ///
    /// The manager collocates it and never interleaves it. The library moves the pages that are there to the
    /// caller's node, so the thread that goes on to use them should say it. Pages that are touched later come
    /// from the node that touches them, and the kernel's balancing may move them.
    Private,
    /// Many threads read it, and hardly any ever writes.
    ///
    /// The manager never collocates it, and reports it as worth replicating. The library interleaves it, over
    /// the nodes of [`crate::Layout::Interleaved`]: that no node's controller serves all is what can be done
    /// without copies; [`crate::ReplicatedVec`] makes those.
    ReadShared,
    /// Many threads write it.
    ///
    /// It is interleaved. The manager moves what is there, within its budget and without waiting for
    /// evidence, and never collocates it; the library moves it before it returns.
    WriteShared,
}

/// The one who honours a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HonouredBy {
    /// A `nodewise` that manages this process, from its next round on.
    Manager,
    /// This library, which has done what it can.
    Library,
}

/// Says how `memory` is used, in place of what was said of it before. It concerns the pages that lie wholly
/// within; where there are none nothing is done. The hint also holds for memory that is allocated there
/// later: call [`forget_hints`] before the memory is freed. Hints of a [`crate::NodeVec`] or
/// [`crate::NodeArena`] are forgotten with it. A policy that the memory had, a [`crate::Layout`]'s for
/// instance, gives way.
///
/// The first call also makes the section in which the manager reads hints (`nodewise_sys::hints`), so that a
/// manager finds it in its next round: until then the library honours them, see [`is_managed`]. Where a
/// section cannot be made, the library honours all hints. Any thread may call it.
///
/// ```
/// use nodewise_runtime::{Hint, Layout, NodeVec, current_node, hint};
///
/// let table = NodeVec::<u64>::new(1 << 16, Layout::On(current_node()))?;
/// hint(&table[..], Hint::WriteShared)?;
/// # Ok::<(), nodewise_runtime::Error>(())
/// ```
///
/// # Errors
/// [`crate::ErrorKind::Hints`]: 1022 ranges have hints already. [`crate::ErrorKind::Memory`]: not all of the
/// pages are mapped, or a container's filter refuses memory policies or `move_pages(2)`.
/// [`crate::ErrorKind::Machine`]: `/sys` or `/proc` cannot be read.
pub fn hint<T>(memory: &[T], hint: Hint) -> Result<HonouredBy> {
    let range = whole_pages(memory);
    if range.is_empty() {
        return Ok(HonouredBy::Library);
    }
    let mut section = section();
    let managed = section.as_ref().is_some_and(Section::is_managed);
    let interleaved = match hint {
        Hint::Private => {
            set_policy(&range, &Policy::DEFAULT, MbindFlags::FuturePages)?;
            if !managed {
                move_here(&range)?;
            }
            false
        }
        Hint::ReadShared if managed => false,
        Hint::ReadShared | Hint::WriteShared => {
            let nodes: Vec<NodeId> = MemoryNodes::of_this_process()?.near_cpus.iter().collect();
            let policy = Policy::new(PolicyMode::Interleave, mask(nodes.iter().copied()));
            set_policy(&range, &policy, MbindFlags::FuturePages)?;
            if !managed {
                interleave(&range, &nodes)?;
            }
            !managed
        }
    };
    if let Some(section) = &mut *section {
        let kind = match hint {
            Hint::Private => Kind::Private,
            Hint::ReadShared => Kind::ReadShared,
            Hint::WriteShared => Kind::WriteShared,
        };
        section.change(&range, Some(Entry { start: range.start, end: range.end, kind, interleaved }))?;
    }
    Ok(if managed { HonouredBy::Manager } else { HonouredBy::Library })
}

/// Takes back what was said of the pages that lie wholly in `memory`. They stay where they are, and their
/// policy stays.
pub fn forget_hints<T>(memory: &[T]) {
    forget(whole_pages(memory));
}

/// Whether a manager honours this process's hints now. The first call makes the section that a manager looks
/// for, so a program that wants to leave the work to it asks early, and again after the manager's interval, 1
/// s by default. False at the latest some seconds after the manager has gone.
#[must_use]
pub fn is_managed() -> bool {
    section().as_ref().is_some_and(Section::is_managed)
}

pub(crate) fn forget(range: Range<u64>) {
    let Some(own) = SECTION.own_if_any() else { return };
    if let Some(section) = &mut *locked(own) {
        // Taking away may divide an entry where there is no room for another; then it stays.
        let _ = section.change(&range, None);
    }
}

/// The section that the manager reads.
struct Section {
    file: SharedFile,
    /// As in the file, which others may change.
    entries: Vec<Entry>,
    sequence: u64,
}

/// A child of fork does not inherit the mapping: where that was, something else may be.
static SECTION: PerProcess<Mutex<Option<Section>>> = PerProcess::new();

fn locked(section: &Mutex<Option<Section>>) -> MutexGuard<'_, Option<Section>> {
    section.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process's section; none where it cannot be made.
fn section() -> MutexGuard<'static, Option<Section>> {
    let mut section = locked(SECTION.own());
    if section.is_none() {
        *section = Section::new();
    }
    section
}

impl Section {
    fn new() -> Option<Self> {
        let file = SharedFile::new(hints::NAME, hints::BYTES).ok()?;
        let words = file.as_atomics();
        words[1].store(hints::VERSION, Ordering::Relaxed);
        words[0].store(hints::MAGIC, Ordering::Release);
        Some(Self { file, entries: Vec::new(), sequence: 0 })
    }

    fn is_managed(&self) -> bool {
        let until_ns = self.file.as_atomics()[hints::MANAGED_UNTIL_NS].load(Ordering::Relaxed);
        clock_ns(Clock::Monotonic).is_ok_and(|now_ns| now_ns < until_ns)
    }

    /// Puts a range's entry, or none, in place of those it covers.
    fn change(&mut self, range: &Range<u64>, new: Option<Entry>) -> Result<()> {
        let mut entries = Vec::with_capacity(self.entries.len() + 2);
        for &old in &self.entries {
            let before = Entry { end: old.end.min(range.start), ..old };
            let after = Entry { start: old.start.max(range.end), ..old };
            entries.extend([before, after].into_iter().filter(|entry| entry.start < entry.end));
        }
        entries.extend(new);
        if entries.len() > hints::ENTRIES_MAX {
            return Err(Error::hints(hints::ENTRIES_MAX));
        }
        if entries != self.entries {
            self.entries = entries;
            self.publish();
        }
        Ok(())
    }

    /// Writes the entries so that a reader who sees some of them and some older ones knows it.
    fn publish(&mut self) {
        let words = self.file.as_atomics();
        words[hints::SEQUENCE].store(self.sequence + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        words[hints::COUNT].store(self.entries.len() as u64, Ordering::Relaxed);
        let entries = self.entries.iter().flat_map(|entry| entry.words());
        for (word, value) in words[hints::ENTRIES..].iter().zip(entries) {
            word.store(value, Ordering::Relaxed);
        }
        self.sequence += 2;
        words[hints::SEQUENCE].store(self.sequence, Ordering::Release);
    }
}

/// The pages that lie wholly in `memory`.
fn whole_pages<T>(memory: &[T]) -> Range<u64> {
    let page = page_bytes() as u64;
    let bytes = memory.as_ptr_range();
    let start = (bytes.start.addr() as u64).next_multiple_of(page);
    start..(bytes.end.addr() as u64 / page * page).max(start)
}

fn set_policy(range: &Range<u64>, policy: &Policy, flags: MbindFlags) -> Result<()> {
    mbind_at(range.clone(), policy, flags)
        .map_err(|error| Error::memory("cannot set the memory's policy".into(), error))
}

/// Moves pages to the caller's node, as far as it has memory for this process.
fn move_here(range: &Range<u64>) -> Result<()> {
    let here = current_node();
    if !MemoryNodes::of_this_process()?.allowed.contains(here) {
        return Ok(());
    }
    let pages: Vec<u64> = range.clone().step_by(page_bytes()).collect();
    move_to(&pages, here)
}

/// Moves pages to these nodes in turn: huge pages whole, others one by one. `mbind` with `MPOL_MF_MOVE` would
/// leave alone what is on any of them already (`queue_folio_required` in mm/mempolicy.c, Linux 6.12).
fn interleave(range: &Range<u64>, nodes: &[NodeId]) -> Result<()> {
    let huge = huge_pages(range, nodes)?;
    let is_huge = |page: &u64| huge.binary_search(&(page / HUGE_BYTES as u64 * HUGE_BYTES as u64)).is_ok();
    let base = range.clone().step_by(page_bytes()).filter(|page| !is_huge(page));
    let mut of_nodes = vec![Vec::new(); nodes.len()];
    for page in base {
        of_nodes[turn(page, page_bytes(), nodes)].push(page);
    }
    for &page in &huge {
        of_nodes[turn(page, HUGE_BYTES, nodes)].push(page);
    }
    // A call for each node: neighbours of one target move together.
    nodes.iter().zip(of_nodes).try_for_each(|(&node, pages)| move_to(&pages, node))
}

/// Which of the nodes gets a page, by its address, as with the kernel's policy.
fn turn(address: u64, page_bytes: usize, nodes: &[NodeId]) -> usize {
    (address / page_bytes as u64) as usize % nodes.len()
}

/// The huge pages that lie wholly in the range: those whose last base page goes along when the first is
/// moved.
fn huge_pages(range: &Range<u64>, nodes: &[NodeId]) -> Result<Vec<u64>> {
    let bytes = HUGE_BYTES as u64;
    let firsts = (range.start.next_multiple_of(bytes)..range.end / bytes * bytes).step_by(HUGE_BYTES);
    // To a single node all pages go the same way.
    let firsts: Vec<u64> = if nodes.len() > 1 { firsts.collect() } else { Vec::new() };
    let lasts: Vec<u64> = firsts.iter().map(|first| first + bytes - page_bytes() as u64).collect();
    let elsewhere = |first: u64, home: NodeId| {
        let turn = turn(first, HUGE_BYTES, nodes);
        if nodes[turn] == home { nodes[(turn + 1) % nodes.len()] } else { nodes[turn] }
    };
    let homes_before = homes(&firsts)?.into_iter().zip(homes(&lasts)?);
    let targets: Vec<Option<NodeId>> = firsts
        .iter()
        .zip(homes_before)
        .map(|(&first, (home, of_last))| home.filter(|_| home == of_last).map(|home| elsewhere(first, home)))
        .collect();
    for &node in nodes {
        let to_node = firsts.iter().zip(&targets).filter(|(_, target)| **target == Some(node));
        move_to(&to_node.map(|(&first, _)| first).collect::<Vec<_>>(), node)?;
    }
    let went_along =
        targets.iter().zip(homes(&lasts)?).map(|(target, home)| target.is_some() && *target == home);
    Ok(firsts.iter().zip(went_along).filter(|(_, went_along)| *went_along).map(|(&first, _)| first).collect())
}

/// The node of each page; none for one that is in no memory now.
fn homes(pages: &[u64]) -> Result<Vec<Option<NodeId>>> {
    let mut status = vec![0; pages.len()];
    for (pages, status) in pages.chunks(BATCH_PAGES).zip(status.chunks_mut(BATCH_PAGES)) {
        query_pages(0, pages, status)
            .map_err(|error| Error::memory("cannot ask where pages are".into(), error))?;
    }
    Ok(status.into_iter().map(|home| u32::try_from(home).ok().map(NodeId)).collect())
}

fn move_to(pages: &[u64], node: NodeId) -> Result<()> {
    for batch in pages.chunks(BATCH_PAGES) {
        let mut status = vec![0; batch.len()];
        // A page that is absent, busy or finds no room stays as it is.
        match move_pages(0, batch, &vec![node.0 as i32; batch.len()], &mut status, MoveFlags::Exclusive) {
            Err(error) if error.kind() == nodewise_sys::ErrorKind::NotPermitted => {
                return Err(Error::memory("cannot move pages".into(), error));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{ErrorKind, Layout, NodeVec};
    use nodewise_sys::get_mempolicy_at;
    use proptest::prelude::*;

    /// The entries that a reader outside would see.
    fn published(section: &Section) -> Vec<Entry> {
        let words: Vec<u64> =
            section.file.as_atomics().iter().map(|word| word.load(Ordering::Relaxed)).collect();
        hints::entries(&words).unwrap()
    }

    fn about(range: &Range<u64>) -> Vec<(u64, Kind)> {
        let section = section();
        let entries = published(section.as_ref().unwrap());
        let inside = entries.into_iter().filter(|entry| range.contains(&entry.start));
        inside.map(|entry| (entry.end - entry.start, entry.kind)).collect()
    }

    #[test]
    fn without_a_manager_the_library_does_what_it_can() {
        let here = MemoryNodes::of_this_process().unwrap().allowed.first().unwrap();
        let vec = NodeVec::<u64>::new(512 * 8, Layout::On(here)).unwrap();
        let range = whole_pages(&vec);
        let policy = || get_mempolicy_at(range.start).unwrap().mode;
        assert_eq!(policy(), PolicyMode::Preferred);
        assert_eq!(hint(&vec[..], Hint::WriteShared).unwrap(), HonouredBy::Library);
        assert_eq!((policy(), is_managed()), (PolicyMode::Interleave, false));
        assert_eq!(hint(&vec[512..1024], Hint::Private).unwrap(), HonouredBy::Library);
        assert_eq!(get_mempolicy_at(range.start + page_bytes() as u64).unwrap().mode, PolicyMode::Default);
        let page = page_bytes() as u64;
        let mut said = about(&range);
        said.sort_unstable_by_key(|&(bytes, _)| bytes);
        let shared = Kind::WriteShared;
        assert_eq!(said, [(page, shared), (page, Kind::Private), (6 * page, shared)]);
        forget_hints(&vec[..1024]);
        assert_eq!(about(&range), [(6 * page, shared)]);
        drop(vec);
        assert_eq!(about(&range), []);
        assert_eq!(hint(&[0_u8; 10], Hint::Private).unwrap(), HonouredBy::Library);
    }

    #[test]
    fn with_a_manager_it_only_says_so() {
        let mut section = Section::new().unwrap();
        assert!(!section.is_managed());
        let now_ns = clock_ns(Clock::Monotonic).unwrap();
        let until = &section.file.as_atomics()[hints::MANAGED_UNTIL_NS];
        until.store(now_ns + 3_600_000_000_000, Ordering::Relaxed);
        assert!(section.is_managed());
        section.file.as_atomics()[hints::MANAGED_UNTIL_NS].store(now_ns - 1, Ordering::Relaxed);
        assert!(!section.is_managed(), "it has gone");
        for i in 0..hints::ENTRIES_MAX as u64 {
            let entry = Entry { start: 2 * i, end: 2 * i + 1, kind: Kind::Private, interleaved: false };
            section.change(&(entry.start..entry.end), Some(entry)).unwrap();
        }
        let more = Entry { start: 9999, end: 10_000, kind: Kind::Private, interleaved: false };
        let error = section.change(&(9999..10_000), Some(more)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Hints);
        assert_eq!(published(&section).len(), hints::ENTRIES_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_last_word_on_each_page_holds(
            said in proptest::collection::vec((0..60_u64, 0..20_u64, 0..4_u8), 1..30)
        ) {
            let mut section = Section::new().unwrap();
            let mut pages = [None; 80];
            for (start, len, kind) in said {
                let kind = [None, Some(Kind::Private), Some(Kind::ReadShared), Some(Kind::WriteShared)]
                    [usize::from(kind)];
                let range = start..start + len;
                let entry = kind.map(|kind| Entry { start, end: range.end, kind, interleaved: false });
                section.change(&range, entry.filter(|_| len > 0)).unwrap();
                pages[start as usize..range.end as usize].fill(kind);
            }
            let mut got = [None; 80];
            for entry in published(&section) {
                for page in &mut got[entry.start as usize..entry.end as usize] {
                    prop_assert_eq!(page.replace(entry.kind), None, "entries do not overlap");
                }
            }
            prop_assert_eq!(got, pages);
        }
    }
}
