//! Loops over memory that lies on nodes: a node's workers do what lies there, and take it from each other,
//! but not from other nodes.

use crate::job::Scope;
use crate::memory::Block;
use crate::parallel::{Divide, Loops};
use crate::pool::NodePool;
use crate::pool_state::PoolState;
use crate::sync::{Mutex, lock};
use crate::worker::Worker;
use crossbeam_utils::CachePadded;
use nodewise_topology::NodeId;
use std::iter::FusedIterator;
use std::ops::Range;
use std::vec;

/// A worker's share is divided into about so many pieces. A peer that is through sooner waits for one of
/// them, at most.
const PIECES: usize = 32;

/// A node's workers, and the pieces that they do together.
struct Team<W> {
    /// The pool's node; none for what any worker may do.
    node: Option<usize>,
    /// A worker takes its own share from the front, and what is left of its peers' from the back.
    shares: Box<[Share<W>]>,
    /// The number of pieces that a worker takes at once: more than one where blocks are small.
    batch: usize,
}

type Share<W> = CachePadded<Mutex<vec::IntoIter<W>>>;

/// The pieces that a member of a team has to do.
pub(crate) struct Pieces<'a, W> {
    team: &'a Team<W>,
    own: usize,
    taken: Vec<W>,
}

impl<W: Divide> Team<W> {
    /// Divides blocks among so many workers, into pieces no smaller than `least` where the blocks are larger.
    fn new(node: Option<usize>, blocks: Vec<W>, workers: usize, least: usize) -> Self {
        let all: usize = blocks.iter().map(Divide::size).sum();
        let step = (all / workers / PIECES).max(least).max(1);
        let mut shares: Vec<Vec<W>> = (0..workers).map(|_| Vec::new()).collect();
        let mut begun = 0;
        for mut block in blocks.into_iter().filter(|block| block.size() > 0) {
            let pieces = (block.size() / step).max(1);
            for left in (1..=pieces).rev() {
                let size = block.size() / left;
                let (piece, rest) = block.divide(size);
                shares[(begun as u128 * workers as u128 / all.max(1) as u128) as usize].push(piece);
                (block, begun) = (rest, begun + size);
            }
        }
        let most = shares.iter().map(Vec::len).max().unwrap_or_default();
        let shares = shares.into_iter().map(|share| CachePadded::new(Mutex::new(share.into_iter())));
        Self { node, shares: shares.collect(), batch: (most / PIECES).max(1) }
    }
}

impl<W: Send> Team<W> {
    /// Does the part of the first of these members, after it has called the others, each of which calls some
    /// in turn.
    fn work<'a>(
        &'a self,
        scope: &Scope<'a>,
        members: Range<usize>,
        body: &'a (impl Fn(Pieces<'a, W>) + Sync),
    ) {
        let Range { start, mut end } = members;
        while end - start > 1 {
            let called = start + (end - start) / 2..end;
            end = called.start;
            self.call(scope, move |scope| self.work(scope, called, body));
        }
        body(self.pieces(start));
    }

    fn call<'a>(&'a self, scope: &Scope<'a>, task: impl FnOnce(&Scope<'a>) + Send + 'a) {
        match self.node {
            Some(node) => scope.spawn_bound(node, task),
            None => scope.spawn(task),
        }
    }

    fn pieces(&self, own: usize) -> Pieces<'_, W> {
        Pieces { team: self, own, taken: Vec::new() }
    }
}

impl<W> Iterator for Pieces<'_, W> {
    type Item = W;

    fn next(&mut self) -> Option<W> {
        let Self { team: Team { shares, batch, .. }, own, taken } = self;
        if let Some(piece) = taken.pop() {
            return Some(piece);
        }
        let piece = {
            let mut share = lock(&shares[*own]);
            let piece = share.next();
            taken.extend(share.by_ref().take(*batch - 1));
            piece
        };
        // In their order.
        taken.reverse();
        let from_peers =
            || (1..shares.len()).find_map(|peer| lock(&shares[(*own + peer) % shares.len()]).next_back());
        piece.or_else(from_peers)
    }
}

impl<W> FusedIterator for Pieces<'_, W> {}

/// The teams that do these blocks.
fn teams<W: Divide>(
    shared: &PoolState,
    blocks: impl Iterator<Item = (NodeId, W)>,
    least: usize,
) -> Vec<Team<W>> {
    let nodes = shared.nodes.len();
    // The last for nodes that the pool has no workers on. One node has one team.
    let mut of_nodes: Vec<Vec<W>> = (0..=nodes).map(|_| Vec::new()).collect();
    for (id, block) in blocks {
        let of_node = || shared.nodes.iter().position(|node| node.id == id);
        let node = if shared.has_one_node() { Some(0) } else { of_node() };
        of_nodes[node.unwrap_or(nodes)].push(block);
    }
    let team = |(node, blocks): (usize, Vec<W>)| {
        let own = shared.nodes.get(node);
        let groups = own.map_or(&shared.nodes[..], |own| &shared.nodes[own.of_node.clone()]);
        let workers = groups.iter().map(|group| group.workers.len()).sum();
        (!blocks.is_empty()).then(|| Team::new(own.map(|_| node), blocks, workers, least))
    };
    of_nodes.into_iter().enumerate().filter_map(team).collect()
}

impl NodePool {
    /// Calls `body` with these blocks, or with pieces of the larger ones. Workers of the block's node do so,
    /// and take pieces from each other; any workers do where the pool has none there. A loop over several
    /// arrays of one layout takes the blocks of one of them.
    ///
    /// ```
    /// use nodewise_runtime::{Layout, NodePool, NodeVec};
    ///
    /// let pool = NodePool::new()?;
    /// let (a, b) = (NodeVec::<f64>::new(1000, Layout::Blocked)?, NodeVec::<f64>::new(1000, Layout::Blocked)?);
    /// let product = |i| a[i] * b[i];
    /// let dot = pool.reduce_blocks(a.blocks(), |block| block.elements.map(product).sum(), |left: f64, right| left + right);
    /// assert_eq!(dot, Some(0.0));
    /// # Ok::<(), nodewise_runtime::Error>(())
    /// ```
    ///
    /// # Panics
    ///
    /// With what `body` panicked with first, when all else is done.
    pub fn for_each_block(&self, blocks: impl IntoIterator<Item = Block>, body: impl Fn(Block) + Sync) {
        self.grain(1).for_each_block(blocks, body);
    }

    /// Calls `part` as [`NodePool::for_each_block`] does, and combines the results in any order: `combine`
    /// has to be associative and commutative. None if there are no blocks.
    ///
    /// # Panics
    ///
    /// As [`NodePool::for_each_block`].
    pub fn reduce_blocks<T: Send>(
        &self,
        blocks: impl IntoIterator<Item = Block>,
        part: impl Fn(Block) -> T + Sync,
        combine: impl Fn(T, T) -> T + Sync,
    ) -> Option<T> {
        self.grain(1).reduce_blocks(blocks, part, combine)
    }
}

impl Loops<'_> {
    /// As [`NodePool::for_each_block`].
    pub fn for_each_block(&self, blocks: impl IntoIterator<Item = Block>, body: impl Fn(Block) + Sync) {
        let blocks = blocks.into_iter().map(|block| (block.node, block));
        in_teams(self.pool, blocks, self.grain, |pieces| pieces.for_each(&body));
    }

    /// As [`NodePool::reduce_blocks`].
    pub fn reduce_blocks<T: Send>(
        &self,
        blocks: impl IntoIterator<Item = Block>,
        part: impl Fn(Block) -> T + Sync,
        combine: impl Fn(T, T) -> T + Sync,
    ) -> Option<T> {
        let of_members = Mutex::new(Vec::new());
        let blocks = blocks.into_iter().map(|block| (block.node, block));
        in_teams(self.pool, blocks, self.grain, |pieces| {
            let done = pieces.map(&part).reduce(&combine);
            lock(&of_members).extend(done);
        });
        let of_members = std::mem::take(&mut *lock(&of_members));
        of_members.into_iter().reduce(combine)
    }
}

/// Has members of each node's team call `body` with the pieces that they are to do.
pub(crate) fn in_teams<W: Divide>(
    pool: &NodePool,
    blocks: impl Iterator<Item = (NodeId, W)>,
    least: usize,
    body: impl Fn(Pieces<'_, W>) + Sync,
) {
    let teams = teams(pool.state(), blocks, least);
    pool.in_worker(|worker: &Worker| {
        Scope::run(worker, |scope| {
            let (own, others): (Vec<_>, Vec<_>) =
                teams.iter().partition(|team| team.node == Some(worker.shared.home(worker.node)));
            let body = &body;
            for team in others {
                team.call(scope, move |scope| team.work(scope, 0..team.shares.len(), body));
            }
            for team in own {
                team.work(scope, 0..team.shares.len(), body);
            }
        });
    });
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two members, one of whom has a piece more; each takes the other's where its own are done.
    #[test]
    fn each_piece_is_done_once() {
        for batch in [1, 2] {
            loom::model(move || {
                let block = |elements: Range<usize>| elements;
                let team =
                    Team { batch, ..Team::new(None, vec![block(0..1), block(1..2), block(2..3)], 2, 1) };
                let team = Arc::new(team);
                let of_peer = {
                    let team = team.clone();
                    thread::spawn(move || team.pieces(1).collect::<Vec<_>>())
                };
                let mut done: Vec<Range<usize>> = team.pieces(0).collect();
                done.extend(of_peer.join().unwrap());
                done.sort_by_key(|piece| piece.start);
                assert_eq!(done, [0..1, 1..2, 2..3]);
            });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shares_are_about_equal_and_in_order() {
        for (blocks, workers, least) in [
            (Vec::from_iter(Some(0..1_000_000)), 4, 1),
            ((0..1000).map(|page| page * 512..(page + 1) * 512).collect(), 3, 8192),
            (vec![0..10, 10..1_000_000, 1_000_000..1_000_001], 2, 100),
            (Vec::from_iter(Some(0..3)), 8, 1),
            (vec![0..7, 7..7], 2, 1000),
        ] {
            let end = blocks.last().map_or(0, |block: &Range<usize>| block.end);
            let largest = blocks.iter().map(Range::len).max().unwrap_or_default();
            let team = Team::new(None, blocks, workers, least);
            let mut next = 0;
            for share in team.shares.iter().map(|share| lock(share).as_slice().to_vec()) {
                let begin = next;
                for piece in &share {
                    assert_eq!(piece.start, next);
                    next = piece.end;
                }
                let piece = (2 * (end / workers / PIECES).max(least)).min(largest);
                assert!((next - begin).abs_diff(end / workers) <= piece, "{begin}..{next} of {end}");
            }
            assert_eq!(next, end);
        }
    }

    #[test]
    fn a_member_does_its_own_in_order_and_then_its_mates_last() {
        let team = Team::new(None, Vec::from_iter(Some(0..6)), 2, 1);
        let mut first = team.pieces(0);
        assert_eq!(first.by_ref().take(4).collect::<Vec<_>>(), [0..1, 1..2, 2..3, 5..6]);
        assert_eq!(team.pieces(1).chain(first).collect::<Vec<_>>(), [3..4, 4..5]);
    }
}
