//! The NUMA manager of the ACE paper: local memories as caches over global memory, a page at a time.
//!
//! Bolosky, Fitzgerald and Scott, "Simple But Effective Techniques for NUMA Memory Management" (SOSP 1989),
//! section 2.3. A page is [`State::ReadOnly`], [`State::LocalWritable`] or [`State::GlobalWritable`]; a
//! reference that its mappings do not permit faults, the [`Policy`] answers [`Location::Local`] or
//! [`Location::Global`], and the page changes as the paper's Tables 1 and 2 say.

use crate::Role;
use nodewise_hardware::MOST_NODES;

/// Where a logical page may be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In global memory, and in any number of local memories, all of them read-only.
    ReadOnly,
    /// In this node's memory only, which may write it; global memory is stale.
    LocalWritable(usize),
    /// In global memory, where everyone may write it.
    GlobalWritable,
}

/// The policy's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Into the faulting node's memory.
    Local,
    /// Into global memory.
    Global,
}

/// Nodes, a bit each.
pub type NodeSet = u64;
const _: () = assert!(MOST_NODES <= NodeSet::BITS as usize);

/// A logical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    state: State,
    /// Local memories that hold a copy.
    copies: NodeSet,
    /// Nodes that map it; with no more permission than the state gives.
    mapped: NodeSet,
    /// The node that wrote it last into a local memory, and how often that changed.
    owner: Option<usize>,
    moves: u32,
    /// Never referenced: its content is zeros, which are written when it is first mapped.
    blank: bool,
}

/// The actions of the NUMA manager for a fault: the rows of a table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Actions {
    /// Copy this node's content back to global memory first.
    pub sync: Option<usize>,
    /// Drop mappings and copies on these nodes.
    pub flush: NodeSet,
    /// Drop mappings on these nodes.
    pub unmap: NodeSet,
    /// Copy from global memory to the faulting node's.
    pub copy: bool,
    /// Fill with zeros where it will be.
    pub fill: bool,
}

impl Default for Page {
    fn default() -> Self {
        Self { state: State::ReadOnly, copies: 0, mapped: 0, owner: None, moves: 0, blank: true }
    }
}

impl Page {
    /// Its state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Local memories that hold a copy.
    #[must_use]
    pub fn copies(&self) -> NodeSet {
        self.copies
    }

    /// Whether it was never referenced.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.blank
    }

    /// Ownership transfers so far.
    #[must_use]
    pub fn moves(&self) -> u32 {
        self.moves
    }

    /// Where a node's reference goes, or none if it faults.
    #[inline]
    #[must_use]
    pub fn place(&self, node: usize, write: bool) -> Option<Location> {
        if self.mapped >> node & 1 == 0 {
            return None;
        }
        match self.state {
            State::ReadOnly => (!write).then_some(Location::Local),
            State::LocalWritable(_) => Some(Location::Local),
            State::GlobalWritable => Some(Location::Global),
        }
    }

    /// Handles a fault of `node`: Table 1 for reads, Table 2 for writes.
    pub fn fault(&mut self, node: usize, write: bool, answer: Location, count: CountedMoves) -> Actions {
        let own: NodeSet = 1 << node;
        let mut actions = Actions { fill: self.blank, ..Actions::default() };
        let before = *self;
        self.blank = false;
        // The first line of the entry: earlier copies and mappings.
        match (self.state, answer) {
            (State::ReadOnly, Location::Local) if !write => {}
            (State::ReadOnly, Location::Local) => self.flush(!own, &mut actions),
            (State::ReadOnly, Location::Global) => self.flush(NodeSet::MAX, &mut actions),
            (State::GlobalWritable, Location::Local) => {
                actions.unmap = self.mapped;
                self.mapped = 0;
            }
            (State::LocalWritable(owner), Location::Local) if owner == node => {}
            (State::LocalWritable(owner), _) => {
                actions.sync = Some(owner);
                self.flush(1 << owner, &mut actions);
            }
            (State::GlobalWritable, Location::Global) => {}
        }
        // The second: the copy; and the third: the new state.
        match answer {
            Location::Global => self.state = State::GlobalWritable,
            Location::Local => {
                actions.copy = self.copies & own == 0 && !actions.fill;
                self.copies |= own;
                let stays = self.state == State::LocalWritable(node);
                self.state = if write || stays { State::LocalWritable(node) } else { State::ReadOnly };
            }
        }
        self.mapped |= own;
        self.count(before, count);
        actions
    }

    fn flush(&mut self, nodes: NodeSet, actions: &mut Actions) {
        actions.flush = (self.copies | self.mapped) & nodes;
        self.copies &= !nodes;
        self.mapped &= !nodes;
    }

    fn count(&mut self, before: Self, count: CountedMoves) {
        match (before.state, self.state) {
            (_, State::LocalWritable(owner)) => {
                self.moves += u32::from(self.owner.is_some_and(|earlier| earlier != owner));
                self.owner = Some(owner);
            }
            (State::LocalWritable(_), State::ReadOnly) if count == CountedMoves::OwnershipAndReads => {
                self.moves += 1;
            }
            _ => {}
        }
    }
}

/// The moves that the policy counts. The paper says "transfers of page ownership" (2.3.2), "in response to
/// writes" (1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CountedMoves {
    /// Another node writes than wrote before, whether or not it was read in between.
    #[default]
    Ownership,
    /// A read by another node that ends a node's ownership, as well.
    OwnershipAndReads,
}

/// When a page goes to global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Moves that a page may make; with one more it is pinned in global memory, for good.
    pub moves: u32,
    /// The kind of moves that count.
    pub count: CountedMoves,
    /// Whether the program's word on its areas is heeded (the pragmas of section 4.3). An area that all write
    /// then goes to global memory at once, and one that is private or only read always to local memory.
    pub pragmas: bool,
    /// Puts everything into global memory: the paper's baseline `T_global`.
    pub all_global: bool,
}

impl Default for Policy {
    /// As the paper's system boots.
    fn default() -> Self {
        Self { moves: 4, count: CountedMoves::Ownership, pragmas: false, all_global: false }
    }
}

impl Policy {
    /// `cache_policy`: where a page that faults shall go.
    #[must_use]
    pub fn location(&self, page: &Page, role: Role) -> Location {
        if self.all_global {
            return Location::Global;
        }
        match role {
            Role::WriteShared if self.pragmas => Location::Global,
            Role::Private(_) | Role::ReadShared if self.pragmas => Location::Local,
            _ if page.moves >= self.moves => Location::Global,
            _ => Location::Local,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const P: usize = 1;
    const Q: usize = 2;
    const R: usize = 3;

    fn page(state: State, nodes: &[usize]) -> Page {
        let set = nodes.iter().fold(0, |set, node| set | 1 << node);
        let copies = if state == State::GlobalWritable { 0 } else { set };
        Page { state, copies, mapped: set, owner: None, moves: 0, blank: false }
    }

    fn set(nodes: &[usize]) -> NodeSet {
        nodes.iter().fold(0, |set, node| set | 1 << node)
    }

    /// Tables 1 and 2, entry by entry: state before, write, answer; sync, flush, unmap, copy, state after.
    #[test]
    fn faults_follow_the_papers_tables() {
        use Location::{Global, Local};
        use State::{GlobalWritable, LocalWritable, ReadOnly};
        let read_only = page(ReadOnly, &[Q, R]);
        let global = page(GlobalWritable, &[Q, R]);
        let (own, other) = (page(LocalWritable(P), &[P]), page(LocalWritable(Q), &[Q]));
        let nobody: &[usize] = &[];
        let entries = [
            (read_only, false, Local, None, nobody, nobody, true, ReadOnly),
            (global, false, Local, None, &[], &[Q, R], true, ReadOnly),
            (own, false, Local, None, &[], &[], false, LocalWritable(P)),
            (other, false, Local, Some(Q), &[Q], &[], true, ReadOnly),
            (read_only, false, Global, None, &[Q, R], &[], false, GlobalWritable),
            (global, false, Global, None, &[], &[], false, GlobalWritable),
            (own, false, Global, Some(P), &[P], &[], false, GlobalWritable),
            (other, false, Global, Some(Q), &[Q], &[], false, GlobalWritable),
            (read_only, true, Local, None, &[Q, R], &[], true, LocalWritable(P)),
            (global, true, Local, None, &[], &[Q, R], true, LocalWritable(P)),
            (own, true, Local, None, &[], &[], false, LocalWritable(P)),
            (other, true, Local, Some(Q), &[Q], &[], true, LocalWritable(P)),
            (read_only, true, Global, None, &[Q, R], &[], false, GlobalWritable),
            (global, true, Global, None, &[], &[], false, GlobalWritable),
            (own, true, Global, Some(P), &[P], &[], false, GlobalWritable),
            (other, true, Global, Some(Q), &[Q], &[], false, GlobalWritable),
        ];
        for (before, write, answer, sync, flush, unmap, copy, after) in entries {
            let mut page = before;
            let actions = page.fault(P, write, answer, CountedMoves::Ownership);
            let expected = Actions { sync, flush: set(flush), unmap: set(unmap), copy, fill: false };
            assert_eq!(actions, expected, "{before:?}, write {write}, {answer:?}");
            assert_eq!(page.state(), after, "{before:?}, write {write}, {answer:?}");
        }
    }

    #[test]
    fn a_copy_that_is_there_is_not_made_again() {
        let mut page = page(State::ReadOnly, &[P, Q]);
        let actions = page.fault(P, true, Location::Local, CountedMoves::Ownership);
        assert!(!actions.copy);
        assert_eq!(actions.flush, set(&[Q]));
    }

    #[test]
    fn a_page_is_pinned_after_its_moves() {
        let policy = Policy::default();
        let mut page = Page::default();
        for (turn, writer) in [0, 1, 2, 0, 1].into_iter().enumerate() {
            let answer = policy.location(&page, Role::Unknown);
            assert_eq!(answer, Location::Local, "turn {turn}");
            page.fault(writer, true, answer, policy.count);
        }
        assert_eq!(page.moves(), 4);
        for node in [2, 0] {
            let answer = policy.location(&page, Role::Unknown);
            assert_eq!(answer, Location::Global);
            page.fault(node, false, answer, policy.count);
            assert_eq!(page.state(), State::GlobalWritable);
        }
    }

    #[test]
    fn pragmas_are_heeded_only_when_told_to() {
        let page = Page::default();
        let told = Policy { pragmas: true, ..Policy::default() };
        assert_eq!(told.location(&page, Role::WriteShared), Location::Global);
        assert_eq!(Policy::default().location(&page, Role::WriteShared), Location::Local);
        let restless = Page { moves: 100, ..page };
        assert_eq!(told.location(&restless, Role::Private(0)), Location::Local);
        assert_eq!(told.location(&restless, Role::Unknown), Location::Global);
    }

    proptest! {
        /// Whatever the references and answers: what is read is what was written last, and copies are as the
        /// state says.
        #[test]
        fn nothing_stale_is_read(
            references in prop::collection::vec((0usize..5, any::<bool>(), any::<bool>()), 1..200),
            reads_count in any::<bool>(),
        ) {
            let count = if reads_count { CountedMoves::OwnershipAndReads } else { CountedMoves::Ownership };
            let mut page = Page::default();
            let (mut global, mut local) = (0u32, [None::<u32>; 5]);
            let mut last = 0;
            for (number, (node, write, want_local)) in references.into_iter().enumerate() {
                let answer = if want_local { Location::Local } else { Location::Global };
                if page.place(node, write).is_none() {
                    let before = page;
                    let actions = page.fault(node, write, answer, count);
                    if let Some(owner) = actions.sync {
                        prop_assert_eq!(before.state(), State::LocalWritable(owner));
                        global = local[owner].unwrap();
                    }
                    for (other, content) in local.iter_mut().enumerate() {
                        if actions.flush >> other & 1 == 1 {
                            *content = None;
                        }
                    }
                    if actions.copy {
                        prop_assert!(local[node].is_none());
                        local[node] = Some(global);
                    }
                    if actions.fill {
                        prop_assert_eq!(number, 0);
                        global = 0;
                        local[node] = want_local.then_some(0);
                    }
                }
                let content = match page.place(node, write) {
                    Some(Location::Local) => local[node].as_mut(),
                    Some(Location::Global) => Some(&mut global),
                    None => None,
                };
                let content = content.expect("a reference gets its page after at most one fault");
                prop_assert_eq!(*content, last);
                if write {
                    last = number as u32 + 1;
                    *content = last;
                }
                let held: NodeSet = (0..5).filter(|&n| local[n].is_some()).fold(0, |set, n| set | 1 << n);
                prop_assert_eq!(page.copies(), held);
                match page.state() {
                    State::LocalWritable(owner) => prop_assert_eq!(held, 1 << owner),
                    State::GlobalWritable => prop_assert_eq!(held, 0),
                    State::ReadOnly => {}
                }
            }
        }
    }
}
