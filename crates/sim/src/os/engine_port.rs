//! The simulated machine as the engine sees it.

use crate::os::kernel::machine::{Process, SimMachine};
use crate::os::kernel::memory::{PAGE_SHIFT, State};
use nodewise_engine::{
    Access, Action, DataSource, Decision, HUGE_PAGE_PAGES, Machine, Mapping, MappingKind, Observation,
    Outcome, PageNumber, PageRange, PageSize, Pid, ProcessState, Sample, SamplingRate, Tid, VirtAddr,
};
use nodewise_topology::{NodeIndex, Topology};
use std::convert::Infallible;

impl SimMachine {
    pub(crate) fn index(&self, page: PageNumber) -> usize {
        self.memory.page(page.0 << PAGE_SHIFT)
    }

    pub(crate) fn number(&self, page: usize) -> PageNumber {
        PageNumber(self.memory.address(page) >> PAGE_SHIFT)
    }

    pub(crate) fn process_of(&self, page: usize) -> Option<&Process> {
        self.processes.iter().find(|process| process.mappings.iter().any(|mapping| mapping.contains(&page)))
    }

    fn sample_of(&self, taken: crate::os::kernel::sampler::Taken) -> Option<Sample> {
        let page = self.memory.page(taken.address);
        let home = self.memory.home(page).map(|home| match self.memory.state(page) {
            State::Replicated => taken.node,
            _ => home,
        });
        Some(Sample {
            time_ns: taken.time_ps / 1000,
            address: VirtAddr(taken.address),
            pid: self.process_of(page)?.pid,
            tid: Tid(1 + taken.thread as u32),
            accessor: NodeIndex(taken.node as u8),
            home: home.map(|home| NodeIndex(home as u8)),
            access: if taken.write { Access::Write } else { Access::Read },
            source: taken.hops.map_or(DataSource::LocalDram, |hops| DataSource::RemoteDram { hops }),
            page_size: if self.memory.is_huge(page) { PageSize::Huge } else { PageSize::Base },
            latency_cycles: taken.latency_cycles,
            weight: taken.weight,
        })
    }

    /// The mapped pages of a process in a range, one for each huge page.
    fn mapped(&self, pid: Pid, range: PageRange) -> Vec<usize> {
        let Some(process) = self.processes.iter().find(|process| process.pid == pid) else {
            return Vec::new();
        };
        let mut pages = Vec::new();
        for mapping in &process.mappings {
            let whole = PageRange { start: self.number(mapping.start), end: self.number(mapping.end) };
            let part = whole.intersect(range);
            if part.is_empty() {
                continue;
            }
            let (mut page, end) = (self.index(part.start), self.index(part.end));
            while page < end {
                if self.memory.home(page).is_some() {
                    pages.push(page);
                }
                page = self.memory.together(page).end;
            }
        }
        pages
    }

    fn carry_out(&mut self, decision: &Decision) -> Outcome {
        let mut outcome = Outcome::default();
        if !self.processes.iter().any(|process| process.pid == decision.pid) {
            outcome.process_gone = true;
            return outcome;
        }
        let mut pages = self.mapped(decision.pid, decision.range);
        if let Some(sampled) = &self.sampled {
            let all = pages.len();
            pages.retain(|page| sampled.contains(page));
            outcome.deferred = (all - pages.len()) as u64;
            outcome.planned = outcome.deferred;
        }
        let thread = self.next_thread();
        let before_ps = self.kernel_ps[thread];
        let targets: Vec<(usize, usize)> = match &decision.action {
            Action::Collocate { to } => pages.into_iter().map(|page| (page, to.get())).collect(),
            Action::CollocateEach { pages } => {
                let target = |target: &nodewise_engine::PageTarget| {
                    let page = self.index(target.page);
                    let mine = self.process_of(page).is_some_and(|process| process.pid == decision.pid);
                    (mine && self.memory.home(page).is_some()).then_some((page, target.to.get()))
                };
                pages.iter().filter_map(target).collect()
            }
            Action::Interleave(interleaving) => {
                let target = |&page: &usize| {
                    let at_home = self.memory.home(page) == Some(interleaving.from.get());
                    let pages = self.memory.together(page).len() as u64;
                    let to = interleaving.target(self.number(page), pages).filter(|_| at_home)?;
                    Some((page, to.get()))
                };
                pages.iter().filter_map(target).collect()
            }
            Action::Replicate if self.replication => {
                outcome.planned += pages.len() as u64;
                outcome.moved = self.replicate(thread, &pages);
                outcome.busy = outcome.planned - outcome.moved;
                Vec::new()
            }
            Action::Replicate | Action::Split { .. } | Action::Collapse { .. } => {
                outcome.only_reported = true;
                Vec::new()
            }
        };
        let elsewhere: Vec<_> =
            targets.into_iter().filter(|&(page, to)| self.memory.home(page) != Some(to)).collect();
        let elsewhere = self.within_budget(elsewhere, &mut outcome);
        let planned: u64 = elsewhere.iter().map(|&(page, _)| self.memory.together(page).len() as u64).sum();
        let moved = self.move_pages(thread, &elsewhere);
        outcome.planned += planned;
        outcome.moved += moved;
        outcome.node_full += planned - moved;
        outcome.blocked_ns = (self.kernel_ps[thread] - before_ps) / 1000;
        outcome.calls = u64::from(planned > 0);
        outcome.longest_call_ns = outcome.blocked_ns;
        outcome
    }
}

impl SimMachine {
    /// As many of these pages as may still be moved in this interval; the others are put off.
    fn within_budget(
        &mut self,
        mut targets: Vec<(usize, usize)>,
        outcome: &mut Outcome,
    ) -> Vec<(usize, usize)> {
        let mut left = self.move_budget.left;
        let fits = targets.iter().take_while(|&&(page, _)| {
            let pages = self.memory.together(page).len() as u64;
            let fits = pages <= left;
            left = left.saturating_sub(pages);
            fits
        });
        let late = targets.split_off(fits.count());
        let pages = |targets: &[(usize, usize)]| -> u64 {
            targets.iter().map(|&(page, _)| self.memory.together(page).len() as u64).sum()
        };
        let late = pages(&late);
        outcome.deferred += late;
        outcome.planned += late;
        self.move_budget.left = self.move_budget.left.saturating_sub(pages(&targets));
        targets
    }
}

impl Machine for SimMachine {
    fn replicates(&self) -> bool {
        self.replication
    }

    type Error = Infallible;

    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn observe(&mut self) -> Result<Observation, Infallible> {
        self.move_budget.left = self.move_budget.each_interval;
        let clocks = self.threads.iter().map(|&(cpu, _)| self.hardware.clock(cpu));
        let end_ps = clocks.max().unwrap_or(0).max(self.last_interval.end_ps + 1000) / 1000 * 1000;
        let duration_ns = (end_ps - self.last_interval.end_ps) / 1000;
        let counters = self.engine_counters(end_ps);
        let taken = std::mem::take(&mut self.sampler.taken);
        if let Some(sampled) = &mut self.sampled {
            // The module's table of pages is a third as large when sampling is cheap.
            let cheap = self.sampler.every > self.sampler.accurate_every;
            let room = self.move_budget.each_interval / if cheap { 3 } else { 1 };
            sampled.clear();
            for taken in &taken {
                if sampled.len() as u64 == room {
                    break;
                }
                sampled.insert(self.memory.page(taken.address));
            }
        }
        let samples = taken.into_iter().filter_map(|taken| self.sample_of(taken)).collect();
        let processes = (0..self.processes.len()).map(|index| {
            let process = &self.processes[index];
            let resident = |mapping: &std::ops::Range<usize>| {
                mapping.clone().filter(|&page| self.memory.home(page).is_some()).count() as u64
            };
            let mappings =
                process.mappings.iter().filter(|mapping| !mapping.is_empty()).map(|mapping| Mapping {
                    range: PageRange { start: self.number(mapping.start), end: self.number(mapping.end) },
                    writable: true,
                    kind: MappingKind::Anonymous,
                });
            ProcessState {
                pid: process.pid,
                fresh: !process.is_observed,
                resident_pages: process.mappings.iter().map(resident).sum(),
                mappings: (!process.is_reported).then(|| mappings.collect()),
                hints: None,
                confined: None,
                bound: Vec::new(),
                to_interleave: Vec::new(),
                asked: false,
                unmoved: Vec::new(),
            }
        });
        let processes = processes.collect();
        for process in &mut self.processes {
            (process.is_observed, process.is_reported) = (true, true);
        }
        Ok(Observation { end_ns: end_ps / 1000, duration_ns, counters, samples, samples_lost: 0, processes })
    }

    fn apply(&mut self, decisions: &[Decision]) -> Result<Vec<Outcome>, Infallible> {
        Ok(decisions.iter().map(|decision| self.carry_out(decision)).collect())
    }

    fn set_sampling(&mut self, rate: SamplingRate) -> Result<(), Infallible> {
        let every = match rate {
            SamplingRate::Accurate => self.sampler.accurate_every,
            // Carrefour's two periods: 65 528 and 262 112 cycles.
            SamplingRate::Cheap | SamplingRate::Paused => 4 * self.sampler.accurate_every,
        };
        self.sampler.set(every, self.sampler.cost_ps);
        Ok(())
    }
}

// A page here is a page there.
const _: () = assert!(1 << PAGE_SHIFT == nodewise_engine::PAGE_BYTES);
const _: () = assert!(crate::os::kernel::memory::HUGE_PAGES as u64 == HUGE_PAGE_PAGES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::kernel::memory::{PAGE_BYTES, State};
    use nodewise_engine::{Figures, Reason};
    use nodewise_hardware::Preset;

    #[test]
    fn a_machine_that_knows_only_sampled_pages_puts_the_others_off() {
        let preset = Preset::named("opteron-8385-4n").unwrap();
        let mut machine = SimMachine::with_processes(&preset, &[vec![8]]);
        let (pid, to) = (machine.pid(0), NodeIndex(2));
        let range = machine.mapping(pid, 0);
        for page in 0..8 {
            machine.touch(NodeIndex(0), VirtAddr((range.start.0 + page) << PAGE_SHIFT), Access::Write);
        }
        machine.sampled = Some([1, 5].into());
        let reason = Reason { rule: "test".to_owned(), figures: Figures::default() };
        let decision = Decision { pid, range, action: Action::Collocate { to }, reason };
        let Ok(outcomes) = machine.apply(&[decision]);
        let expected = Outcome { planned: 8, moved: 2, deferred: 6, ..outcomes[0] };
        assert_eq!(outcomes[0], expected);
        let moved = (0..8).filter(|&page| machine.home(pid, PageNumber(range.start.0 + page)) == Some(to));
        assert_eq!(moved.collect::<Vec<_>>(), [1, 5]);
    }

    #[test]
    fn who_moves_pages_pays_for_the_work_and_the_way_and_all_others_for_shootdowns() {
        let preset = Preset::named("opteron-8385-4n").unwrap();
        let mut machine = SimMachine::with_processes(&preset, &[vec![600]]);
        let first = machine.mapping(machine.pid(0), 0).start;
        for page in 0..600 {
            machine.touch(NodeIndex(0), VirtAddr((first.0 + page) << PAGE_SHIFT), Access::Write);
        }
        let pages: Vec<_> = (0..600).map(|page| (machine.index(first) + page, 2)).collect();
        let before = machine.kernel_ps.clone();
        assert_eq!(machine.move_pages(1, &pages), 600);
        let charged = |thread: usize| (machine.kernel_ps[thread] - before[thread]) / 1000;
        // One after 512 pages, and one after the rest.
        let interrupted = 2 * machine.costs.interrupted_ns;
        assert_eq!([0, 2, 3].map(charged), [interrupted; 3]);
        // 64 lines a page, each of which takes 16 ns on the link between the two nodes, and more on the way.
        let least = 600 * (machine.costs.move_page_ns + 64 * 16) + 2 * machine.costs.shootdown_ns;
        assert!(charged(1) > least, "{} and {least} ns", charged(1));
        assert_eq!(machine.hardware.counters().copied_bytes, 600 * PAGE_BYTES);
    }

    #[test]
    fn in_a_run_that_stands_for_a_hundred_times_as_many_passes_moving_pages_takes_a_hundredth() {
        let preset = Preset::named("opteron-8385-4n").unwrap();
        let took = |once: f64| {
            let mut machine = SimMachine::with_processes(&preset, &[vec![600]]);
            let first = machine.mapping(machine.pid(0), 0).start;
            for page in 0..600 {
                machine.touch(NodeIndex(0), VirtAddr((first.0 + page) << PAGE_SHIFT), Access::Write);
            }
            machine.one_off_weight = once;
            let pages: Vec<_> = (0..600).map(|page| (machine.index(first) + page, 2)).collect();
            // Controllers have been busy until the last touch.
            machine.hardware.set_clock(machine.threads[1].0, machine.hardware.clock(machine.threads[0].0));
            let before = machine.kernel_ps[1];
            machine.move_pages(1, &pages);
            (machine.kernel_ps[1] - before, machine.hardware.counters().copied_bytes)
        };
        let ((whole_ps, bytes), (part_ps, copied)) = (took(1.0), took(0.01));
        assert_eq!((bytes, copied), (600 * PAGE_BYTES, 6 * PAGE_BYTES));
        assert!((part_ps * 100).abs_diff(whole_ps) < whole_ps / 20, "{part_ps} and {whole_ps} ps");
    }

    #[test]
    fn a_page_that_has_copies_loses_them_when_somebody_writes_and_only_then() {
        let preset = Preset::named("opteron-8385-4n").unwrap();
        let mut machine = SimMachine::with_processes(&preset, &[vec![1]]);
        let first = machine.mapping(machine.pid(0), 0).start;
        let address = VirtAddr(first.0 << PAGE_SHIFT);
        machine.touch(NodeIndex(0), address, Access::Write);
        let page = machine.index(first);
        assert_eq!(machine.replicate(0, &[page]), 1);
        machine.touch(NodeIndex(3), address, Access::Read);
        assert_eq!((machine.memory.state(page), machine.counts.collapsed), (State::Replicated, 0));
        machine.touch(NodeIndex(3), address, Access::Write);
        assert_eq!((machine.memory.state(page), machine.counts.collapsed), (State::At(0), 1));
        machine.assert_sound();
    }
}
