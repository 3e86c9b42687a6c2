//! `PageRank`: every vertex pulls the ranks of those that point to it.
//!
//! Scale 1 is an RMAT graph (Chakrabarti, Zhan and Faloutsos, 2004, with Graph500's parameters) of a million
//! vertices with 16 edges each. One thread reads it, as most programs do; the ranks are where their vertices
//! are worked on. Edges are dealt out evenly.

use crate::workloads::Parameters;
use crate::workloads::phases::{LINE, Phased, Phases, Random, alone, part, scaled, wait_for, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

const VERTICES: usize = 1 << 20;
const EDGES_PER_VERTEX: usize = 16;
/// The edges, of a hundred, that go to each quarter of the matrix but the last.
const QUARTERS: [usize; 3] = [57, 19, 19];
const ITERATIONS: usize = 10;
const DAMPING: f64 = 0.85;
/// Edges and vertices of an item.
const BLOCK: usize = 512;

/// An edge: load its vertex, load and add the rank, loop.
const EDGE: u64 = 4;
/// A vertex: divide and store.
const VERTEX: u64 = 12;
/// Edges that are in flight together.
const AT_ONCE: usize = 16;

struct PageRank {
    areas: Vec<Area>,
    /// The first edge of each vertex, and the end.
    starts: Array<u32>,
    /// Where edges come from, by the vertex they lead to.
    sources: Array<u32>,
    /// Edges that leave each vertex.
    degrees: Array<u32>,
    ranks: Array<f64>,
    /// The share that a vertex gives to each that it points to.
    shares: Array<f64>,
    /// The first vertex of each thread, and the end: with even parts of the edges.
    bounds: Vec<usize>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let vertices = scaled(VERTICES, parameters.scale, 64).next_power_of_two();
    let mut random = Random::new(parameters.seed);
    let mut edges: Vec<(u32, u32)> = (0..vertices * EDGES_PER_VERTEX)
        .map(|_| {
            let (mut to, mut from) = (0, 0);
            for _ in 0..vertices.trailing_zeros() {
                let draw = random.below(100);
                let quarter = match draw {
                    _ if draw < QUARTERS[0] => 0,
                    _ if draw < QUARTERS[0] + QUARTERS[1] => 1,
                    _ if draw < QUARTERS.iter().sum() => 2,
                    _ => 3,
                };
                (to, from) = (to * 2 + quarter / 2, from * 2 + quarter % 2);
            }
            (to, from)
        })
        .collect();
    edges.sort_unstable();
    let (mut starts, mut degrees) = (vec![0; vertices + 1], vec![0; vertices]);
    for &(to, from) in &edges {
        starts[to as usize + 1] += 1;
        degrees[from as usize] += 1;
    }
    for vertex in 0..vertices {
        starts[vertex + 1] += starts[vertex];
    }
    let bound = |thread: usize| {
        let edge = (edges.len() * thread / parameters.threads) as u32;
        if thread == parameters.threads { vertices } else { starts.partition_point(|&start| start < edge) }
    };
    let bounds = (0..=parameters.threads).map(bound).collect();
    let mut space = Space::new();
    let starts = space.array("starts", starts, Role::ReadShared);
    let sources = edges.iter().map(|edge| edge.1).collect();
    let sources = space.array("sources", sources, Role::ReadShared);
    let degrees = space.array("degrees", degrees, Role::ReadShared);
    let ranks = space.array("ranks", vec![1.0 / vertices as f64; vertices], Role::WriteShared);
    let shares = space.array("shares", vec![0.0; vertices], Role::WriteShared);
    let program = PageRank { areas: space.into_areas(), starts, sources, degrees, ranks, shares, bounds };
    Phases::program(program, parameters.threads)
}

// The kinds of phases: the graph is read, ranks are made; then for each iteration two steps.
const READ: usize = 0;
const MAKE: usize = 1;
const FIRST: usize = 2;

impl PageRank {
    fn vertices(&self) -> usize {
        self.degrees.values().len()
    }

    fn edges_of(&self, thread: usize) -> Range<usize> {
        let starts = self.starts.values();
        starts[self.bounds[thread]] as usize..starts[self.bounds[thread + 1]] as usize
    }

    fn share(&mut self, vertices: Range<usize>, trace: &mut Trace) {
        for vertex in vertices {
            let degree = self.degrees.read(vertex, trace);
            let rank = self.ranks.read(vertex, trace);
            trace.compute(VERTEX);
            self.shares.write(vertex, rank / f64::from(degree.max(1)), trace);
            // From now on the rank is the next one.
            self.ranks.values_mut()[vertex] = (1.0 - DAMPING) / self.degrees.values().len() as f64;
        }
    }

    fn pull(&mut self, edges: Range<usize>, trace: &mut Trace) {
        let mut vertex = self.starts.values().partition_point(|&start| start as usize <= edges.start) - 1;
        trace.read(self.starts.address(vertex));
        let mut sum = 0.0;
        for edge in edges.clone() {
            while self.starts.values()[vertex + 1] as usize <= edge {
                self.ranks.write(vertex, self.ranks.values()[vertex] + DAMPING * sum, trace);
                (vertex, sum) = (vertex + 1, 0.0);
                trace.read(self.starts.address(vertex + 1));
                trace.compute(VERTEX);
            }
            let address = self.sources.address(edge);
            if address % LINE == 0 || edge == edges.start {
                trace.read(address);
            }
            if edge % AT_ONCE == 0 {
                wait_for(address, trace);
            }
            trace.compute(EDGE);
            sum += self.shares.read(self.sources.values()[edge] as usize, trace);
        }
        self.ranks.write(vertex, self.ranks.values()[vertex] + DAMPING * sum, trace);
    }
}

impl Phased for PageRank {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        FIRST + 2 * ITERATIONS
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        let vertices = self.bounds[thread + 1] - self.bounds[thread];
        match phase {
            READ => alone(self.sources.values().len().div_ceil(BLOCK), thread),
            _ if phase == MAKE || phase % 2 == 0 => 0..vertices.div_ceil(BLOCK),
            _ => 0..self.edges_of(thread).len().div_ceil(BLOCK),
        }
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        if phase == READ {
            let blocks = self.sources.values().len().div_ceil(BLOCK);
            let edges = part(self.sources.values().len(), item, blocks);
            let vertices = part(self.vertices(), item, blocks);
            trace.compute(edges.len() as u64 * 2);
            write_lines(self.sources.address(edges.start), edges.len() as u64 * 4, trace);
            write_lines(self.starts.address(vertices.start), vertices.len() as u64 * 4, trace);
            write_lines(self.degrees.address(vertices.start), vertices.len() as u64 * 4, trace);
            return;
        }
        let block = |of: Range<usize>| {
            let start = of.start + item * BLOCK;
            start..(start + BLOCK).min(of.end)
        };
        if phase >= FIRST && phase % 2 == 1 {
            let edges = block(self.edges_of(thread));
            return self.pull(edges, trace);
        }
        let vertices = block(self.bounds[thread]..self.bounds[thread + 1]);
        if phase == MAKE {
            write_lines(self.ranks.address(vertices.start), vertices.len() as u64 * 8, trace);
            write_lines(self.shares.address(vertices.start), vertices.len() as u64 * 8, trace);
            return;
        }
        self.share(vertices, trace);
    }

    fn check(&self) -> Result<(), Error> {
        let vertices = self.vertices();
        let mut ranks = vec![1.0 / vertices as f64; vertices];
        for _ in 0..ITERATIONS {
            let shares: Vec<f64> = ranks
                .iter()
                .zip(self.degrees.values())
                .map(|(rank, &degree)| rank / f64::from(degree.max(1)))
                .collect();
            for (vertex, rank) in ranks.iter_mut().enumerate() {
                let edges = self.starts.values()[vertex] as usize..self.starts.values()[vertex + 1] as usize;
                let pulled: f64 =
                    self.sources.values()[edges].iter().map(|&from| shares[from as usize]).sum();
                *rank = (1.0 - DAMPING) / vertices as f64 + DAMPING * pulled;
            }
        }
        for (vertex, (found, wanted)) in self.ranks.values().iter().zip(&ranks).enumerate() {
            let error = (found - wanted).abs();
            if error.is_nan() || error > 1e-9 {
                return Err(Error::wrong_result(format!("vertex {vertex} has rank {found}, not {wanted}")));
            }
        }
        Ok(())
    }
}
