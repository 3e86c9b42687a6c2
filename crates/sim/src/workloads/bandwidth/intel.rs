//! Gill and Peri, "Measure the Impact of NUMA Migrations on Performance" (Intel, updated 2019): memory is allocated with a
//! placement of the program's own, then written once.

use super::LINE;
use crate::{Area, Program, Progress, Role, Space, Trace, workloads::Parameters};

/// The article's largest size; its others are fractions of this. Its GB are taken as GiB, as those of the machine's 187 GB are.
const BYTES: f64 = 160.0 * (1 << 30) as f64;
const PAGE: usize = 4096;
/// Instructions of a line beside the write that the simulator sees: seven more of 8 bytes, and each one's loop.
const INSTRUCTIONS: u64 = 23;
/// Pages of a piece.
const PIECE: usize = 16;

/// Threads that write a contiguous block each, once.
///
/// The placement is done by allocator threads, one for each of [`NODES`](Self::NODES) nodes, which touch their node's pages
/// first and finish: as Galois' allocation functions do, from which the article's are taken. They are the threads after the writers, and the
/// first of them is to run on node 0, the next on node 1, and so on.
pub struct Micro {
    areas: Vec<Area>,
    base: u64,
    writers: usize,
    blocked: bool,
    /// Each page's value: its number, once written.
    pages: Vec<u64>,
    next: Vec<usize>,
}

impl Micro {
    /// Nodes that the memory is placed on.
    pub const NODES: usize = 4;

    /// Pages round the nodes.
    #[must_use]
    pub fn interleaved(parameters: Parameters) -> Micro {
        Micro::new(parameters, false)
    }

    /// An equal chunk on each node.
    #[must_use]
    pub fn blocked(parameters: Parameters) -> Micro {
        Micro::new(parameters, true)
    }

    fn new(parameters: Parameters, blocked: bool) -> Micro {
        let pages = ((BYTES * parameters.scale) as usize / PAGE).max(Micro::NODES);
        let mut space = Space::new();
        let base = space.area("memory", (pages * PAGE) as u64, Role::WriteShared);
        let next = vec![0; parameters.threads + Micro::NODES];
        Micro {
            areas: space.into_areas(),
            base,
            writers: parameters.threads,
            blocked,
            pages: vec![u64::MAX; pages],
            next,
        }
    }

    /// The page that an allocator touches after `turn` others, if there is one.
    fn allocated(&self, node: usize, turn: usize) -> Option<usize> {
        let (page, end) = if self.blocked {
            let (start, end) = block(self.pages.len(), Micro::NODES, node);
            (start + turn, end)
        } else {
            (node + turn * Micro::NODES, self.pages.len())
        };
        (page < end).then_some(page)
    }

    fn allocate(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        for _ in 0..PIECE {
            let Some(page) = self.allocated(thread - self.writers, self.next[thread]) else {
                return Progress::Barrier;
            };
            trace.write(self.base + (page * PAGE) as u64);
            self.next[thread] += 1;
        }
        Progress::Running
    }
}

/// Where a part of many starts and ends.
fn block(items: usize, parts: usize, part: usize) -> (usize, usize) {
    (items * part / parts, items * (part + 1) / parts)
}

impl Program for Micro {
    fn threads(&self) -> usize {
        self.writers + Micro::NODES
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if thread >= self.writers {
            return match self.next[thread] {
                usize::MAX => Progress::Finished,
                _ => match self.allocate(thread, trace) {
                    Progress::Barrier => {
                        self.next[thread] = usize::MAX;
                        Progress::Barrier
                    }
                    progress => progress,
                },
            };
        }
        let (start, end) = block(self.pages.len(), self.writers, thread);
        // The first piece is the wait for the memory.
        if self.next[thread] == 0 {
            self.next[thread] = start + 1;
            return Progress::Barrier;
        }
        let first = self.next[thread] - 1;
        let last = (first + PIECE).min(end);
        for page in first..last {
            for line in 0..PAGE / LINE {
                trace.compute(INSTRUCTIONS);
                trace.write(self.base + (page * PAGE + line * LINE) as u64);
            }
            self.pages[page] = page as u64;
        }
        self.next[thread] = last + 1;
        if last < end { Progress::Running } else { Progress::Finished }
    }

    fn check(&self) -> Result<(), String> {
        match self.pages.iter().enumerate().find(|&(page, &value)| value != page as u64) {
            Some((page, _)) => Err(format!("page {page} was not written")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_touched_by_its_node_and_then_written() {
        for blocked in [false, true] {
            let mut micro = Micro::new(Parameters { threads: 3, scale: 1e-6, seed: 1 }, blocked);
            let pages = micro.pages.len();
            let mut touched = vec![None; pages];
            let mut trace = Trace::default();
            for node in 0..Micro::NODES {
                let mut progress = Progress::Running;
                while progress == Progress::Running {
                    trace.clear();
                    progress = micro.advance(3 + node, &mut trace);
                    for op in trace.ops() {
                        let crate::Op::Write { address, .. } = op else { panic!("{op:?}") };
                        touched[(address - micro.base) as usize / PAGE] = Some(node);
                    }
                }
                assert_eq!(micro.advance(3 + node, &mut trace), Progress::Finished);
            }
            for (page, node) in touched.into_iter().enumerate() {
                let expected = if blocked {
                    (0..4).find(|&node| block(pages, 4, node).1 > page)
                } else {
                    Some(page % 4)
                };
                assert_eq!(node, expected);
            }
            for thread in 0..3 {
                while micro.advance(thread, &mut trace) != Progress::Finished {}
            }
            micro.check().unwrap();
        }
    }
}
