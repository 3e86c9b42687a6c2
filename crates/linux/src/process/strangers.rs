//! Processes below this one that have nothing to do with the program that it starts.

use super::life::{descendants, start_time};
use super::read_cost::ReadCost;
use crate::bounds;
use crate::ending::Ending;
use nodewise_engine::Pid;
use std::collections::BTreeMap;

/// Processes that were below this one already when it came to be Nodewise, and those that they have started
/// since. A shell that executes its last command leaves it the children that it has in the background.
#[derive(Clone, Debug, Default)]
pub struct Strangers(BTreeMap<Pid, u64>);

impl Strangers {
    /// All that are below this process now.
    #[must_use]
    pub fn now() -> Self {
        let mut strangers = Self::default();
        strangers.add_children(
            &mut ReadCost::default(),
            &mut vec![Pid(std::process::id())],
            &Ending::default(),
        );
        strangers
    }

    /// Whether there are any.
    #[must_use]
    pub fn are_some(&self) -> bool {
        !self.0.is_empty()
    }

    /// All others that live below this process.
    pub fn others_below(&mut self) -> Vec<Pid> {
        self.update(&mut ReadCost::default(), &Ending::default());
        let mut others = descendants(std::process::id());
        others.retain(|&pid| !self.contains(pid));
        others
    }

    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.0.contains_key(&pid)
    }

    /// Takes in what they have started, and forgets those that have ended.
    pub(super) fn update(&mut self, cost: &mut ReadCost, ending: &Ending) {
        self.0.retain(|pid, started| start_time(pid.0) == Some(*started));
        let mut parents: Vec<Pid> = self.0.keys().copied().collect();
        self.add_children(cost, &mut parents, ending);
    }

    fn add_children(&mut self, cost: &mut ReadCost, parents: &mut Vec<Pid>, ending: &Ending) {
        let mut threads = bounds::THREADS;
        while let Some(parent) = parents.pop() {
            let mut children = Vec::new();
            cost.children(parent, &mut threads, &mut children, ending);
            for child in children {
                let Some(started) = start_time(child.0) else { continue };
                if self.0.insert(child, started).is_none() {
                    parents.push(child);
                }
            }
        }
    }
}
