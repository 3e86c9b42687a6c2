//! The ACE paper's policy on any machine: each node's memory is a cache, a page at a time, over global
//! memory.

use crate::ace::{Location, NodeSet, Page, Policy, State};
use crate::os::kernel::machine::SimMachine;
use crate::os::kernel::memory::{Memory, PAGE_BYTES};
use crate::{Area, Role};
use nodewise_hardware::Touch;

/// The states of all pages.
///
/// A page has a frame in global memory as long as it lives; that one is in the page table, and marked, so
/// that every access comes here. Global memory is where there are no cores, as on the ACE; on other machines
/// it is all nodes' memory, page by page around them, and the node that has the frame needs no copy. A local
/// memory without room leaves a page global.
#[derive(Clone, Debug)]
pub(crate) struct AcePages {
    policy: Policy,
    pages: Vec<(Page, Role)>,
    global: Vec<usize>,
}

impl AcePages {
    /// Nothing was touched yet. `cores`: of each node.
    pub(crate) fn new(policy: Policy, memory: &Memory, areas: &[Area], cores: &[usize]) -> Self {
        let mut pages = vec![(Page::default(), Role::Unknown); memory.pages()];
        for area in areas {
            let first = memory.page(area.base);
            let count = area.bytes.div_ceil(PAGE_BYTES) as usize;
            pages[first..first + count].iter_mut().for_each(|page| page.1 = area.role);
        }
        let bare: Vec<usize> = memory.nodes().iter().copied().filter(|&node| cores[node] == 0).collect();
        let global = if bare.is_empty() { memory.nodes().to_vec() } else { bare };
        Self { policy, pages, global }
    }

    /// The node whose memory has the page's global frame, if there is room.
    pub(crate) fn global(&self, page: usize) -> usize {
        self.global[page % self.global.len()]
    }

    /// Where a node's access goes; none if it faults.
    pub(crate) fn place(&self, memory: &Memory, page: usize, node: usize, write: bool) -> Option<usize> {
        match self.pages[page].0.place(node, write)? {
            Location::Local => Some(node),
            Location::Global => memory.home(page),
        }
    }

    /// Local copies are all that is taken from the nodes besides the page table.
    pub(crate) fn assert_sound(&self, memory: &Memory) {
        let mut copies = vec![0; memory.free_bytes().len()];
        for (page, (state, _)) in self.pages.iter().enumerate() {
            for node in local(state.copies(), memory.home(page)) {
                copies[node] += 1;
            }
            if let State::LocalWritable(owner) = state.state() {
                assert_eq!(state.copies(), 1 << owner, "copies of page {page}, which node {owner} may write");
            }
        }
        assert_eq!(copies, memory.occupied(), "local copies by node");
    }
}

/// Nodes of a set but the one that has the global frame.
fn local(set: NodeSet, global: Option<usize>) -> impl Iterator<Item = usize> {
    (0..NodeSet::BITS as usize).filter(move |&node| set >> node & 1 == 1 && Some(node) != global)
}

impl SimMachine {
    /// An access under the ACE paper's policy. Returns the node it goes to.
    pub(crate) fn ace_access(&mut self, thread: usize, page: usize, touch: Touch) -> usize {
        let (node, write) = (self.threads[thread].1, touch.writes());
        let place = |machine: &Self| {
            machine.ace.as_ref().and_then(|ace| ace.place(&machine.memory, page, node, write))
        };
        if place(self).is_none() {
            self.ace_fault(thread, page, write);
        }
        place(self).or(self.memory.home(page)).unwrap_or(node)
    }

    fn ace_fault(&mut self, thread: usize, page: usize, write: bool) {
        let (Some(ace), Some(global)) = (&mut self.ace, self.memory.home(page)) else { return };
        let node = self.threads[thread].1;
        let (state, role) = &mut ace.pages[page];
        let (before, blank) = (state.copies(), state.is_blank());
        let mut location = ace.policy.location(state, *role);
        let needs_room = node != global && before >> node & 1 == 0;
        if location == Location::Local && needs_room && !self.memory.occupy(node, 1) {
            location = Location::Global;
        }
        let actions = state.fault(node, write, location, ace.policy.count);
        let (after, writable) = (state.copies(), matches!(state.state(), State::LocalWritable(_)));
        for gone in local(before & !after, Some(global)) {
            self.memory.vacate(gone, 1);
            self.counts.collapsed += 1;
        }
        if !blank {
            // The first touch was charged for.
            self.charge(thread, self.costs.page_fault_ns);
        }
        if let Some(owner) = actions.sync.filter(|&owner| owner != global) {
            self.copy(thread, owner, global, PAGE_BYTES);
        }
        if (actions.flush | actions.unmap) != 0 {
            self.hardware.forget(self.memory.address(page), PAGE_BYTES);
            self.shoot_down(thread);
        }
        if actions.copy && node != global {
            self.copy(thread, global, node, PAGE_BYTES);
            *(if writable { &mut self.counts.migrated } else { &mut self.counts.replicated }) += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;
    use crate::os::kernel::costs::Costs;
    use crate::os::policy::Policy as Placement;
    use nodewise_hardware::Preset;
    use proptest::prelude::*;

    const PAGES: u64 = 6;

    fn machine(preset: &str, local_pages: u64) -> (SimMachine, u64) {
        let mut preset = Preset::named(preset).unwrap();
        for node in preset.nodes.iter_mut().filter(|node| node.cores > 0) {
            node.memory_bytes = local_pages * PAGE_BYTES;
        }
        let nodes = preset.nodes_of_cores();
        let cores: Vec<usize> = (0..3).map(|node| nodes.iter().position(|&n| n == node).unwrap()).collect();
        let mut space = Space::new();
        let base = space.area("data", PAGES * PAGE_BYTES, Role::Unknown);
        let policy = Placement::Ace(Policy::default());
        (SimMachine::new(&preset, &space.into_areas(), &cores, &policy, false, Costs::default()), base)
    }

    proptest! {
        /// Every access is checked against stale copies on its way (`SimMachine::serves`); frames are
        /// conserved though local memories are full.
        #[test]
        fn frames_are_conserved(
            ace: bool,
            accesses in prop::collection::vec((0..3usize, 0..PAGES, any::<bool>()), 1..200),
        ) {
            let (mut machine, base) = machine(if ace { "ace-7" } else { "opteron-8385-4n" }, 4);
            for (thread, page, write) in accesses {
                let touch = if write { Touch::Write } else { Touch::Read };
                machine.access(thread, machine.threads[thread].0, touch, base + page * PAGE_BYTES);
                prop_assert_eq!(&machine.failure, &None);
                machine.assert_sound();
            }
        }
    }

    #[test]
    fn readers_get_copies_and_a_contended_page_is_pinned() {
        let (mut machine, base) = machine("ace-7", 100);
        let mut access =
            |thread: usize, touch| machine.access(thread, machine.threads[thread].0, touch, base);
        (0..3).for_each(|thread| access(thread, Touch::Read));
        for turn in 0..9 {
            access(turn % 3, Touch::Write);
        }
        // Copies for two more readers than the first; then a page moves four times, and stays in global
        // memory.
        assert_eq!((machine.counts.replicated, machine.counts.migrated), (2, 4));
        assert_eq!(machine.memory.occupied(), [0; 8]);
    }
}
