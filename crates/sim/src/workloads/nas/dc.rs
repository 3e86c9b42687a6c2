//! DC: a data cube, tuples grouped by one choice of their attributes after the other.
//!
//! Scale 1 is class A: a million tuples, of which eight views of 32 768 are taken. Kept: every thread groups
//! its own tuples in search trees of its own, whose nodes it allocates as it goes. Left out: files, and the
//! balancing of trees, as keys come in no order.

use crate::workloads::Parameters;
use crate::workloads::phases::{Lines, Phased, Phases, Random, part, scaled, wait_for, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

const TUPLES: usize = 1 << 20;
const ATTRIBUTES: usize = 4;
/// Values of each attribute; the views together have some of each size.
const VALUES: [usize; ATTRIBUTES] = [6, 14, 30, 62];
/// Attributes of each view, as bits.
const VIEWS: [usize; 8] = [0b1111, 0b0111, 0b1011, 0b1101, 0b1110, 0b0011, 0b1100, 0b0100];
const BATCH: usize = 8;

/// Instructions to make the key of a tuple, and for a step down the tree: compare, branch, next.
const KEY: u64 = 20;
const STEP: u64 = 6;
/// A new node.
const NODE: u64 = 40;

/// A tuple, 24 bytes: attributes and the measure.
#[derive(Clone, Copy)]
struct Tuple {
    attributes: [u32; ATTRIBUTES],
    measure: u64,
}

/// A node of a tree, 32 bytes: a group and its children, by index, 0 for none.
#[derive(Clone, Copy, Default)]
struct Node {
    key: u64,
    measure: u64,
    children: [u32; 2],
    _color: u64,
}

/// A thread's own.
struct Own {
    tuples: Array<Tuple>,
    nodes: Array<Node>,
    used: usize,
    /// Groups and the sum of all measures of each view.
    found: Vec<(usize, u64)>,
}

struct Dc {
    areas: Vec<Area>,
    own: Vec<Own>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let tuples = scaled(TUPLES, parameters.scale, 256);
    let mut space = Space::new();
    let own = (0..parameters.threads).map(|thread| {
        let mut random = Random::new(parameters.seed ^ (thread as u64) << 32);
        let count = part(tuples, thread, parameters.threads).len();
        let tuple = |_| Tuple {
            attributes: VALUES.map(|values| random.below(values) as u32),
            measure: random.next() & 0xff,
        };
        let list = (0..count).map(tuple).collect();
        let role = Role::Private(thread);
        let tuples = space.array(format!("tuples {thread}"), list, role);
        let nodes = space.array(format!("trees {thread}"), vec![Node::default(); count + 1], role);
        Own { tuples, nodes, used: 0, found: Vec::new() }
    });
    let own = own.collect();
    let program = Dc { areas: space.into_areas(), own };
    Phases::program(program, parameters.threads)
}

/// The key that a view groups a tuple by.
fn key(view: usize, tuple: &Tuple) -> u64 {
    let chosen = (0..ATTRIBUTES).filter(|attribute| VIEWS[view] >> attribute & 1 == 1);
    // Spread out, so that trees are nearly as deep as balanced ones.
    let key = chosen.fold(1, |key, attribute| key * 64 + u64::from(tuple.attributes[attribute]));
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Own {
    fn add(&mut self, key: u64, measure: u64, trace: &mut Trace) {
        let mut place = 0;
        while self.used > 0 {
            let node = self.nodes.chase(place, trace);
            wait_for(self.nodes.address(place), trace);
            trace.compute(STEP);
            if node.key == key {
                return self.nodes.write(place, Node { measure: node.measure + measure, ..node }, trace);
            }
            let side = usize::from(key > node.key);
            if node.children[side] == 0 {
                let mut parent = node;
                parent.children[side] = self.used as u32;
                self.nodes.write(place, parent, trace);
                break;
            }
            place = node.children[side] as usize;
        }
        trace.compute(NODE);
        self.nodes.write(self.used, Node { key, measure, ..Node::default() }, trace);
        self.used += 1;
    }
}

impl Phased for Dc {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        1 + VIEWS.len()
    }

    fn items(&self, _phase: usize, thread: usize) -> Range<usize> {
        0..self.own[thread].tuples.values().len().div_ceil(BATCH)
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        let own = &mut self.own[thread];
        let batch = item * BATCH..((item + 1) * BATCH).min(own.tuples.values().len());
        let first = own.tuples.address(batch.start);
        let bytes = batch.len() as u64 * 24;
        if phase == 0 {
            trace.compute(batch.len() as u64 * 100);
            return write_lines(first, bytes, trace);
        }
        let view = phase - 1;
        if item == 0 {
            own.used = 0;
        }
        Lines { at_once: 4, instructions: 0 }.read(first, bytes, trace);
        for index in batch.clone() {
            let tuple = own.tuples.values()[index];
            trace.compute(KEY);
            own.add(key(view, &tuple), tuple.measure, trace);
        }
        if batch.end == own.tuples.values().len() {
            let nodes = &own.nodes.values()[..own.used];
            own.found.push((own.used, nodes.iter().map(|node| node.measure).sum()));
        }
    }

    fn check(&self) -> Result<(), Error> {
        for (thread, own) in self.own.iter().enumerate() {
            let sum: u64 = own.tuples.values().iter().map(|tuple| tuple.measure).sum();
            for (view, &found) in own.found.iter().enumerate() {
                let mut keys: Vec<u64> = own.tuples.values().iter().map(|tuple| key(view, tuple)).collect();
                keys.sort_unstable();
                keys.dedup();
                if found != (keys.len(), sum) {
                    let (groups, total) = found;
                    let wanted = keys.len();
                    return Err(Error::wrong_result(format!(
                        "view {view} of thread {thread} has {groups} groups of {total} in all, not {wanted} of {sum}"
                    )));
                }
            }
            if own.found.len() != VIEWS.len() && !own.tuples.values().is_empty() {
                return Err(Error::wrong_result(format!("thread {thread} has {} views", own.found.len())));
            }
        }
        Ok(())
    }
}
