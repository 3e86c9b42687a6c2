//! Faults on pages that NUMA balancing marked, and the threads that it moves.

use super::exchange::Exchange;
use super::machine::SimMachine;
use super::task_placement::Step;

impl SimMachine {
    /// One of Linux 6. Returns the node that the access then goes to.
    pub(super) fn hint_fault(&mut self, thread: usize, page: usize) -> usize {
        let home = self.serve_hint_fault(thread, page);
        let pages = self.memory.together(page).len();
        if let Some(placement) = self.balancing.as_mut().and_then(|balancing| balancing.placement.as_mut()) {
            placement.note(thread, home, pages);
        }
        home
    }

    fn serve_hint_fault(&mut self, thread: usize, page: usize) -> usize {
        self.charge(thread, self.costs.hint_fault_ns);
        self.done.hint_faults += 1;
        let node = self.threads[thread].1;
        let home = self.memory.home(page).unwrap_or(node);
        self.memory.unmark(page);
        let touched = page;
        let huge = self.memory.is_huge(page);
        let page = self.memory.together(page).start;
        let Some(balancing) = &mut self.balancing else { return home };
        if huge && balancing.split && balancing.shared(page, node) {
            let parts = self.memory.together(page);
            self.memory.split(page);
            self.done.split += 1;
            for part in parts {
                balancing.forget(part);
                self.memory.mark(part);
            }
            self.memory.unmark(touched);
            self.charge(thread, self.costs.split_ns);
            self.shoot_down(thread);
            // The part that was touched comes at once; the others when they are.
            let moved = home != node && self.move_pages(thread, &[(touched, node)]) > 0;
            return if moved { node } else { home };
        }
        let pages = self.memory.together(page).len();
        if !balancing.wants(page, pages, thread, node, home) || !self.memory.nodes().contains(&node) {
            return home;
        }
        let moved = self.move_pages(thread, &[(page, node)]) > 0;
        if let Some(balancing) = &mut self.balancing {
            balancing.migration_ended(moved);
        }
        if moved { node } else { home }
    }

    /// One of version 27 of the patch: for each page of a range, in the time of who came first. Returns the same.
    pub(super) fn range_fault(&mut self, thread: usize, page: usize) -> usize {
        self.charge(thread, self.costs.hint_fault_ns);
        self.done.hint_faults += 1;
        let (core, node) = self.threads[thread];
        let Some(mut autonuma) = self.autonuma27.take() else { return node };
        for part in autonuma.range_of(page, &self.memory) {
            let Some(home) = self.memory.home(part) else { continue };
            self.memory.unmark(part);
            let wants = autonuma.wants(part, node, home, self.hardware.clock(core));
            if wants && self.memory.nodes().contains(&node) {
                // It moves no huge pages: `sync_isolate_migratepages` splits them first.
                if self.memory.is_huge(part) {
                    self.memory.split(part);
                    self.done.split += 1;
                    self.charge(thread, self.costs.split_ns);
                }
                self.move_pages(thread, &[(part, node)]);
            }
            autonuma.note(thread, self.memory.home(part).unwrap_or(home));
        }
        self.autonuma27 = Some(autonuma);
        self.memory.home(page).unwrap_or(node)
    }

    /// Balancing moves threads, of those that run.
    pub(crate) fn place_threads(&mut self, running: &[usize]) {
        for &thread in running {
            let Some(balancing) = &mut self.balancing else { return };
            let cpu_shares = balancing.cpu_shares().to_vec();
            let Some(placement) = &mut balancing.placement else { return };
            match placement.step(thread, &self.threads, running, &cpu_shares) {
                None => {}
                Some(Step::To(core)) => self.run_on(thread, core),
                Some(Step::Swap(other)) => self.swap_threads(thread, other),
            }
        }
    }

    /// Version 27 of the patch moves threads, of those that run: each CPU looks in turn.
    pub(super) fn exchange_threads(&mut self, exchange: &Exchange, running: &[usize]) {
        for &thread in running {
            if let Some(other) = exchange.partner(thread, &self.threads, running) {
                self.swap_threads(thread, other);
            }
        }
    }

    /// Two threads change places, once both have come to a stop.
    pub(super) fn swap_threads(&mut self, thread: usize, other: usize) {
        let (here, there) = (self.threads[thread].0, self.threads[other].0);
        // Both are there before either is charged: nobody pays for the other's move.
        let stopped_ps = self.stop(here).max(self.stop(there));
        for (thread, from, to) in [(thread, here, there), (other, there, here)] {
            self.kernel_ps[thread] += stopped_ps - self.hardware.clock(from);
            self.threads[thread] = (to, self.node_of_core[to]);
        }
        for (thread, core) in [(thread, there), (other, here)] {
            self.hardware.set_clock(core, stopped_ps);
            self.moved(thread);
        }
    }

    /// A thread goes on on another core, once both have come to a stop.
    pub(super) fn run_on(&mut self, thread: usize, core: usize) {
        let began_ps = self.stop(self.threads[thread].0);
        self.stop(core);
        self.hardware.set_clock(core, began_ps);
        self.threads[thread] = (core, self.node_of_core[core]);
        self.kernel_ps[thread] += self.hardware.clock(core) - began_ps;
        self.moved(thread);
    }

    /// A core waits for what is outstanding; its time then.
    fn stop(&mut self, core: usize) -> u64 {
        self.hardware.drain(core);
        self.hardware.clock(core)
    }

    fn moved(&mut self, thread: usize) {
        self.charge(thread, self.costs.move_thread_ns);
        self.done.threads_moved += 1;
    }
}
