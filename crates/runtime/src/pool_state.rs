//! The state that a pool's handle and its workers share.

use crate::allowance::Allowance;
use crate::deque::{Deque, Stealer};
use crate::error::{Error, Result};
use crate::injector::Injector;
use crate::job::{Call, IsolatedCalls, Job, SentBack, with_current};
use crate::location::{current_cpu, current_node};
use crate::sleep::{Next, Sleep};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::task_counter::TaskCounter;
use crate::worker::{Counts, Worker};
use crossbeam_utils::CachePadded;
use nodewise_sys::AffinityMask;
use nodewise_topology::NodeId;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A pool's nodes, places and queues, and how far it has come.
pub(crate) struct PoolState {
    pub(crate) nodes: Box<[PoolNode]>,
    pub(crate) workers: usize,
    /// The workers', then those of callers who work along, and then those of substitutes, node by node.
    pub(crate) places: Box<[Place]>,
    /// The callers' part of `places`.
    pub(crate) callers: Range<usize>,
    /// The number of workers whose threads have begun.
    pub(crate) begun: std::sync::atomic::AtomicUsize,
    /// The number of substitutes that work.
    pub(crate) substitutes: std::sync::atomic::AtomicUsize,
    pub(crate) sleep: Sleep,
    pub(crate) stopping: AtomicBool,
    /// Nobody has the pool any more.
    abandoned: AtomicBool,
    /// Tasks that nobody has to wait for but the pool's end.
    pub(crate) detached: TaskCounter,
    /// Where threads that are on none of the pool's nodes submit.
    next: AtomicUsize,
    /// The number of calls so far that are isolated, or from outside and not worked along with.
    pub(crate) numbered_calls: std::sync::atomic::AtomicUsize,
    pub(crate) isolated_calls: Mutex<IsolatedCalls>,
}

/// A node's workers, or those of one of its caches where the pool goes by cache.
pub(crate) struct PoolNode {
    pub(crate) id: NodeId,
    /// All that there are of this node. The first has the queue of what only this node may take.
    pub(crate) of_node: Range<usize>,
    pub(crate) cpus: AffinityMask,
    pub(crate) workers: Range<usize>,
    /// Whose queues there are: the workers, and the callers.
    pub(crate) places: Range<usize>,
    /// The places of its substitutes.
    pub(crate) substitutes: Range<usize>,
    /// The other nodes, nearest first.
    pub(crate) others: Vec<usize>,
    pub(crate) injector: Injector<Job>,
    /// For this node's workers only, in the first of [`PoolNode::of_node`].
    pub(crate) bound: Injector<Job>,
}

/// The part of a worker that others see.
pub(crate) struct Place {
    pub(crate) stealer: Stealer<Job>,
    pub(crate) counts: Arc<CachePadded<Counts>>,
    pub(crate) sent_back: SentBack,
}

impl PoolState {
    pub(crate) fn new(
        allowance: &Allowance,
        workers: &[usize],
        node_of: &[usize],
        // There are some on pools of one node only.
        callers: usize,
        deques: &[Deque<Job>],
    ) -> Self {
        let mut end = 0;
        let of_callers = node_of.len()..node_of.len() + callers;
        let each = (deques.len() - of_callers.end) / workers.len();
        let node = |(index, (node, &workers)): (usize, (&crate::AllowedNode, &usize))| {
            let mut others: Vec<usize> =
                (0..allowance.nodes().len()).filter(|&other| other != index).collect();
            others.sort_by_key(|&other| node.distances[other]);
            end += workers;
            let is_of_node = |other: &usize| allowance.nodes()[*other].id == node.id;
            let first = (0..index).find(is_of_node).unwrap_or(index);
            let others_of_node = (index + 1..allowance.nodes().len()).filter(is_of_node).count();
            PoolNode {
                id: node.id,
                of_node: first..index + 1 + others_of_node,
                cpus: node.cpus.iter().map(|cpu| cpu.0).collect(),
                workers: end - workers..end,
                places: end - workers..end + callers,
                substitutes: of_callers.end + index * each..of_callers.end + (index + 1) * each,
                others,
                injector: Injector::new(),
                bound: Injector::new(),
            }
        };
        let place = |deque: &Deque<Job>| Place {
            stealer: deque.stealer(),
            counts: Arc::default(),
            sent_back: SentBack::default(),
        };
        Self {
            nodes: allowance.nodes().iter().zip(workers).enumerate().map(node).collect(),
            workers: node_of.len(),
            places: deques.iter().map(place).collect(),
            sleep: Sleep::new(workers.len(), node_of.iter().copied(), callers, each),
            callers: of_callers.clone(),
            begun: std::sync::atomic::AtomicUsize::new(0),
            substitutes: std::sync::atomic::AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            detached: TaskCounter::with_nodes(workers.len()),
            next: AtomicUsize::new(0),
            numbered_calls: std::sync::atomic::AtomicUsize::new(0),
            isolated_calls: Mutex::new(IsolatedCalls::default()),
        }
    }

    /// The places with queues in which there may be something.
    pub(crate) fn places_in_use(&self) -> &[Place] {
        let end =
            if self.substitutes.load(Ordering::Relaxed) > 0 { self.places.len() } else { self.callers.end };
        &self.places[..end]
    }

    /// The places of a node's substitutes, if any works.
    pub(crate) fn substitutes(&self, node: usize) -> Range<usize> {
        if self.substitutes.load(Ordering::Relaxed) > 0 { self.nodes[node].substitutes.clone() } else { 0..0 }
    }

    /// The jobs that a node's workers and substitutes have begun.
    pub(crate) fn begun_on(&self, node: usize) -> u64 {
        let PoolNode { places, substitutes, .. } = &self.nodes[node];
        let begun = |place: usize| self.places[place].counts.run.load(Ordering::Relaxed);
        places.clone().chain(substitutes.clone()).map(begun).sum()
    }

    /// Whether there is what only a node's workers may begin.
    pub(crate) fn has_bound(&self, node: usize) -> bool {
        !self.bound(node).is_empty()
    }

    /// Whether a node was given what it, or others, have not begun.
    pub(crate) fn has_given(&self, node: usize) -> bool {
        !self.nodes[node].injector.is_empty()
    }

    /// Ends the workers.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.sleep.wake_everybody();
    }

    /// Leaves it to the last task to end the workers: that of the calling thread, or a later one.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.stop_if_over();
    }

    /// A task that nobody waits for has ended.
    pub(crate) fn task_ended(&self, node: usize) {
        // The thread that has set the alarm has abandoned the pool before.
        if self.detached.done_on(node, 1) && self.abandoned.load(Ordering::Acquire) {
            self.stop_if_over();
        }
    }

    /// Ends the workers if there are no tasks; else an alarm is set that one of these will ring.
    fn stop_if_over(&self) {
        if self.detached.wait_timeout(Duration::ZERO) {
            self.stop();
        }
    }

    /// The address that the pool's state has while the pool is there, and no other pool's.
    pub(crate) const fn identity(&self) -> *const c_void {
        std::ptr::from_ref(self).cast()
    }

    /// The place of the calling thread, if it works for the pool.
    pub(crate) fn index_here(&self) -> Option<usize> {
        let of_this = |worker: &&Worker| std::ptr::eq(Arc::as_ptr(&worker.shared), self);
        with_current(|current| Some(current.filter(of_this)?.index))
    }

    pub(crate) fn index_of(&self, node: NodeId) -> Result<usize> {
        self.nodes.iter().position(|own| own.id == node).ok_or_else(|| {
            let own = self.nodes.iter().map(|own| own.id);
            Error::no_workers(node, &own.collect())
        })
    }

    /// The pool's node that the calling thread is on; any, where it is on none.
    pub(crate) fn near(&self) -> usize {
        let here = current_node();
        let Some(first) = self.nodes.iter().position(|node| node.id == here) else {
            return self.next.fetch_add(1, Ordering::Relaxed) % self.nodes.len();
        };
        let mut of_node = self.nodes[first].of_node.clone();
        if of_node.len() == 1 {
            return first;
        }
        let cpu = current_cpu().0;
        of_node.find(|&group| self.nodes[group].cpus.contains(cpu)).unwrap_or(first)
    }

    /// The pool's nodes, once each.
    pub(crate) fn machine_nodes(&self) -> impl Iterator<Item = &PoolNode> {
        self.nodes
            .iter()
            .enumerate()
            .filter(|(index, node)| node.of_node.start == *index)
            .map(|(_, node)| node)
    }

    /// Whether all workers are of one node.
    pub(crate) fn has_one_node(&self) -> bool {
        self.nodes[0].of_node.len() == self.nodes.len()
    }

    /// The first of the groups of this one's node.
    pub(crate) fn home(&self, group: usize) -> usize {
        self.nodes[group].of_node.start
    }

    /// The queue of what only workers of this one's node may take.
    pub(crate) fn bound(&self, group: usize) -> &Injector<Job> {
        &self.nodes[self.home(group)].bound
    }

    /// A call from outside whose caller does not work along.
    pub(crate) fn call_from_outside(&self) -> Call {
        Call::from_outside(self.numbered_calls.fetch_add(1, Ordering::Relaxed))
    }

    /// Queues a job from outside for a node, which others may take when they have run dry.
    pub(crate) fn inject(&self, node: usize, job: Job) {
        self.nodes[node].injector.push(job);
        self.sleep.work_made(node);
    }

    /// Queues a job that only this node may take. `next` is what the calling thread does, where it is one of
    /// the node's workers.
    pub(crate) fn inject_bound(&self, node: usize, job: Job, next: Next) {
        self.bound(node).push(job);
        self.sleep.work_made_for(self.nodes[node].of_node.clone(), next);
    }
}
