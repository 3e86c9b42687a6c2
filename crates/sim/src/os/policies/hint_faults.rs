//! Faults on pages that NUMA balancing marked, and the threads that it moves.

use crate::os::kernel::machine::SimMachine;
use crate::os::policies::balancing::{Fault, Verdict};
use crate::os::policies::exchange::Exchange;
use crate::os::policies::task::Time;
use crate::os::policies::task_placement::Step;

impl SimMachine {
    /// One of Linux 6. Returns the node that the access then goes to.
    pub(crate) fn hint_fault(&mut self, thread: usize, page: usize) -> usize {
        self.charge(thread, self.costs.hint_fault_ns);
        self.counts.hint_faults += 1;
        let node = self.threads[thread].1;
        let was = self.memory.home(page).unwrap_or(node);
        self.memory.unmark(page);
        let Some(balancing) = &mut self.balancing else { return was };
        let together = self.memory.together(page);
        if together.len() > 1 && balancing.split && balancing.shared(together.start, node) {
            return self.split_shared(thread, page);
        }
        let Verdict { wanted, shared_with } = balancing.decide(together.start, thread, node, was);
        let tries = wanted && self.memory.nodes().contains(&node);
        let moved = tries && self.move_pages(thread, &[(together.start, node)]) > 0;
        let is = if moved { node } else { was };
        let (pages, failed) = (together.len(), tries && !moved);
        let fault = Fault { thread, node, was, is, pages, shared_with, failed };
        let time = self.time(thread);
        if let Some(balancing) = &mut self.balancing {
            balancing.note(&self.memory, &fault, time);
        }
        is
    }

    /// Gachod's patch, in a fault on a huge page that another node used last. Returns the same.
    fn split_shared(&mut self, thread: usize, page: usize) -> usize {
        let node = self.threads[thread].1;
        let home = self.memory.home(page).unwrap_or(node);
        let parts = self.memory.together(page);
        self.memory.split(page);
        self.counts.split += 1;
        for part in parts {
            if let Some(balancing) = &mut self.balancing {
                balancing.forget(part);
            }
            self.memory.mark(part);
        }
        self.memory.unmark(page);
        self.charge(thread, self.costs.split_ns);
        self.shoot_down(thread);
        // The part that was touched comes at once; the others when they are.
        let moved = home != node && self.move_pages(thread, &[(page, node)]) > 0;
        if moved { node } else { home }
    }

    /// One of version 27 of the patch: for each page of a range, in the time of who came first. Returns the
    /// same.
    pub(crate) fn range_fault(&mut self, thread: usize, page: usize) -> usize {
        self.charge(thread, self.costs.hint_fault_ns);
        self.counts.hint_faults += 1;
        let (cpu, node) = self.threads[thread];
        let Some(mut autonuma) = self.autonuma27.take() else { return node };
        for part in autonuma.range_of(page, &self.memory) {
            let Some(home) = self.memory.home(part) else { continue };
            self.memory.unmark(part);
            let wants = autonuma.wants(part, node, home, self.hardware.clock(cpu));
            if wants && self.memory.nodes().contains(&node) {
                // It moves no huge pages: `sync_isolate_migratepages` splits them first.
                if self.memory.is_huge(part) {
                    self.memory.split(part);
                    self.counts.split += 1;
                    self.charge(thread, self.costs.split_ns);
                }
                self.move_pages(thread, &[(part, node)]);
            }
            autonuma.note(thread, self.memory.home(part).unwrap_or(home));
        }
        self.autonuma27 = Some(autonuma);
        self.memory.home(page).unwrap_or(node)
    }

    /// When balancing has something to do for a thread.
    pub(crate) fn balancing_due_ps(&self, thread: usize) -> u64 {
        let running_ps = self.balancing.as_ref().map_or(u64::MAX, |balancing| balancing.due_ps(thread));
        running_ps.saturating_add(self.waited_ps[thread])
    }

    fn time(&self, thread: usize) -> Time {
        let now_ps = self.hardware.clock(self.threads[thread].0);
        Time { now_ps, running_ps: now_ps - self.waited_ps[thread] }
    }

    /// A thread goes where it asked to be, or scans, if it is time.
    pub(crate) fn balance(&mut self, thread: usize, running: &[usize]) {
        let time = self.time(thread);
        let Some(balancing) = &mut self.balancing else { return };
        match balancing.step(thread, &self.node_of_cpu, self.threads_of_core, &self.threads, running) {
            None => {}
            Some(Step::To(cpu)) => return self.run_on(thread, cpu),
            Some(Step::Swap(other)) => return self.swap_threads(thread, other),
        }
        if time.running_ps < balancing.due_ps(thread) {
            return;
        }
        let marked = balancing.look(&mut self.memory, thread, time);
        let before_ps = self.kernel_ps[thread];
        self.scanned(thread, marked);
        let scanning_ps = self.kernel_ps[thread] - before_ps;
        if let Some(balancing) = &mut self.balancing {
            balancing.scanned(thread, scanning_ps);
        }
    }

    /// Version 27 of the patch moves threads, of those that run: each CPU looks in turn.
    pub(crate) fn exchange_threads(&mut self, exchange: &Exchange, running: &[usize]) {
        for &thread in running {
            if let Some(other) = exchange.partner(thread, &self.threads, running) {
                self.swap_threads(thread, other);
            }
        }
    }

    /// Two threads change places, once both have come to a stop.
    pub(crate) fn swap_threads(&mut self, thread: usize, other: usize) {
        let (here, there) = (self.threads[thread].0, self.threads[other].0);
        // Both are there before either is charged: nobody pays for the other's move.
        let stopped_ps = self.stop(here).max(self.stop(there));
        for (thread, from, to) in [(thread, here, there), (other, there, here)] {
            self.kernel_ps[thread] += stopped_ps - self.hardware.clock(from);
            self.threads[thread] = (to, self.node_of_cpu[to]);
        }
        for (thread, cpu) in [(thread, there), (other, here)] {
            self.hardware.set_clock(cpu, stopped_ps);
            self.moved(thread);
        }
    }

    /// A thread goes on on another CPU, once both have come to a stop.
    pub(crate) fn run_on(&mut self, thread: usize, cpu: usize) {
        let began_ps = self.stop(self.threads[thread].0);
        self.stop(cpu);
        self.hardware.set_clock(cpu, began_ps);
        let (left, reached) = (self.threads[thread].1, self.node_of_cpu[cpu]);
        self.threads[thread] = (cpu, reached);
        if let Some(balancing) = &mut self.balancing {
            balancing.moved(&self.memory, thread, left, reached);
        }
        self.kernel_ps[thread] += self.hardware.clock(cpu) - began_ps;
        self.moved(thread);
    }

    /// A CPU waits for what is outstanding; its time then.
    fn stop(&mut self, cpu: usize) -> u64 {
        self.hardware.drain(cpu);
        self.hardware.clock(cpu)
    }

    fn moved(&mut self, thread: usize) {
        self.charge(thread, self.costs.move_thread_ns);
        self.counts.threads_moved += 1;
    }
}
