//! Gill and Peri, "Measure the Impact of NUMA Migrations on Performance" (Intel, updated 2019): memory is
//! allocated with a placement of the program's own, then written once.

use super::LINE;
use crate::{Area, Error, Program, Progress, Role, Space, Trace, workloads::Parameters};
use std::collections::BTreeMap;

/// The article's largest size; its others are fractions of this. Its GB are taken as GiB, as those of the
/// machine's 187 GB are.
const BYTES: f64 = 160.0 * (1 << 30) as f64;
const PAGE: usize = 4096;
/// Instructions of a line beside the write that the simulator sees: seven more of 8 bytes, and each one's
/// loop.
const INSTRUCTIONS: u64 = 23;
/// Pages of a piece.
const PIECE: usize = 16;

/// Threads that write a contiguous block each, once.
///
/// The placement is done by a thread on each node, the last one there, which touches its node's pages
/// first: as Galois' allocation functions do, from which the article's are taken. Threads after the writers
/// do nothing else.
pub struct Micro {
    areas: Vec<Area>,
    base: u64,
    writers: usize,
    blocked: bool,
    /// The thread that touches each node's pages first.
    allocators: Vec<usize>,
    /// Each page's value: its number, once written.
    pages: Vec<u64>,
    stages: Vec<Stage>,
}

/// How far a thread has come.
#[derive(Clone, Copy)]
enum Stage {
    /// After so many of its node's pages.
    Allocating(usize),
    /// Before this page.
    Writing(usize),
}

impl Micro {
    /// Pages round the nodes.
    #[must_use]
    pub fn interleaved(parameters: Parameters) -> Self {
        Self::new(parameters, false)
    }

    /// An equal chunk on each node.
    #[must_use]
    pub fn blocked(parameters: Parameters) -> Self {
        Self::new(parameters, true)
    }

    fn new(parameters: Parameters, blocked: bool) -> Self {
        let pages = ((BYTES * parameters.scale) as usize / PAGE).max(parameters.threads);
        let mut space = Space::new();
        let base = space.area("memory", (pages * PAGE) as u64, Role::WriteShared);
        Self {
            areas: space.into_areas(),
            base,
            writers: parameters.threads,
            blocked,
            allocators: vec![parameters.threads - 1],
            pages: vec![u64::MAX; pages],
            stages: vec![Stage::Allocating(0); parameters.threads],
        }
    }

    /// The same with further threads, after the writers.
    #[must_use]
    pub fn and_allocators(mut self, more: usize) -> Self {
        self.stages.resize(self.writers + more, Stage::Allocating(0));
        self
    }

    /// The page that a node's allocator touches after `turn` others, if there is one.
    fn allocated(&self, node: usize, turn: usize) -> Option<usize> {
        let nodes = self.allocators.len();
        let (page, end) = if self.blocked {
            let (start, end) = block(self.pages.len(), nodes, node);
            (start + turn, end)
        } else {
            (node + turn * nodes, self.pages.len())
        };
        (page < end).then_some(page)
    }

    /// Touches some pages, from the `turn`th on; says whether there are more.
    fn allocate(&self, thread: usize, turn: usize, trace: &mut Trace) -> bool {
        let Some(node) = self.allocators.iter().position(|&allocator| allocator == thread) else {
            return false;
        };
        for turn in turn..turn + PIECE {
            let Some(page) = self.allocated(node, turn) else { return false };
            trace.write(self.base + (page * PAGE) as u64);
        }
        true
    }
}

/// Where a part of many starts and ends.
fn block(items: usize, parts: usize, part: usize) -> (usize, usize) {
    (items * part / parts, items * (part + 1) / parts)
}

impl Program for Micro {
    fn threads(&self) -> usize {
        self.stages.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn placed(&mut self, nodes: &[usize]) {
        let last: BTreeMap<usize, usize> =
            nodes.iter().enumerate().map(|(thread, &node)| (node, thread)).collect();
        self.allocators = last.into_values().collect();
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        // Threads after the writers have nothing to write.
        let (start, end) = block(self.pages.len(), self.writers, thread.min(self.writers));
        let end = end.min(self.pages.len());
        match self.stages[thread] {
            Stage::Allocating(turn) => {
                if self.allocate(thread, turn, trace) {
                    self.stages[thread] = Stage::Allocating(turn + PIECE);
                    return Progress::Running;
                }
                self.stages[thread] = Stage::Writing(start);
                Progress::Barrier
            }
            Stage::Writing(first) => {
                let last = (first + PIECE).min(end);
                for page in first..last {
                    for line in 0..PAGE / LINE {
                        trace.compute(INSTRUCTIONS);
                        trace.write(self.base + (page * PAGE + line * LINE) as u64);
                    }
                    self.pages[page] = page as u64;
                }
                self.stages[thread] = Stage::Writing(last);
                if last < end { Progress::Running } else { Progress::Finished }
            }
        }
    }

    fn check(&self) -> Result<(), Error> {
        match self.pages.iter().enumerate().find(|&(page, &value)| value != page as u64) {
            Some((page, _)) => Err(Error::wrong_result(format!("page {page} was not written"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program without a machine; who touched each page first.
    fn touched(mut micro: Micro, nodes: &[usize]) -> Vec<Option<usize>> {
        micro.placed(nodes);
        let mut touched = vec![None; micro.pages.len()];
        let mut trace = Trace::default();
        for ended in [Progress::Barrier, Progress::Finished] {
            for thread in 0..micro.threads() {
                let mut progress = Progress::Running;
                while progress == Progress::Running {
                    trace.clear();
                    progress = micro.advance(thread, &mut trace);
                    for op in trace.ops() {
                        if let crate::Op::Write { address, .. } = op {
                            touched[(address - micro.base) as usize / PAGE].get_or_insert(thread);
                        }
                    }
                }
                assert_eq!(progress, ended);
            }
        }
        micro.check().unwrap();
        touched
    }

    #[test]
    fn every_page_is_touched_on_its_node_and_then_written() {
        let parameters = Parameters { threads: 3, scale: 1e-6, seed: 1 };
        // The last thread on each node; those after the writers, where there are such.
        for (more, nodes, allocators) in
            [(0, &[0, 0, 3][..], &[1, 2][..]), (4, &[0, 0, 0, 3, 2, 1, 0][..], &[6, 5, 4, 3][..])]
        {
            let count = allocators.len();
            let round = touched(Micro::interleaved(parameters).and_allocators(more), nodes);
            assert!(round.len() > 30);
            for (page, &thread) in round.iter().enumerate() {
                assert_eq!(thread, Some(allocators[page % count]));
            }
            let blocked = touched(Micro::blocked(parameters).and_allocators(more), nodes);
            for (page, &thread) in blocked.iter().enumerate() {
                let node = (0..count).find(|&node| block(blocked.len(), count, node).1 > page);
                assert_eq!(thread, node.map(|node| allocators[node]));
            }
        }
    }
}
