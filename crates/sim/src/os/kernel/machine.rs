//! Hardware and memory under one operating system: accesses, faults, moves, and what they cost.

use crate::os::kernel::costs::Costs;
use crate::os::kernel::memory::{Memory, PAGE_BYTES, PAGE_SHIFT, State};
use crate::os::kernel::sampler::Sampler;
use crate::os::policies::ace_pages::AcePages;
use crate::os::policies::autonuma27::AutoNuma27;
use crate::os::policies::balancing::Balancing;
use crate::os::policies::plan::{Plan, Record};
use crate::os::policies::weights::from_bandwidths;
use crate::os::policy::Policy;
use crate::{Area, Error, ErrorKind};
use nodewise_engine::{Counters, Measure, Pid, TrafficMatrix};
use nodewise_hardware::{Access, Hardware, Preset, Source, Touch};
use nodewise_topology::Topology;
use std::collections::BTreeSet;

/// A process's part of the address space.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// Its mappings, as page indices.
    pub(crate) mappings: Vec<std::ops::Range<usize>>,
    /// The engine has observed it before.
    pub(crate) is_observed: bool,
    /// Its mappings were reported as they are.
    pub(crate) is_reported: bool,
}

impl Process {
    pub(crate) fn new(pid: Pid, mappings: Vec<std::ops::Range<usize>>) -> Self {
        Self { pid, mappings, is_observed: false, is_reported: false }
    }
}

/// Counts of the operating system's actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OsCounters {
    pub(crate) migrated: u64,
    pub(crate) replicated: u64,
    pub(crate) collapsed: u64,
    pub(crate) split: u64,
    pub(crate) hint_faults: u64,
    pub(crate) threads_moved: u64,
    pub(crate) samples: u64,
}

/// Base pages that may be moved for the engine in an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveBudget {
    /// Pages that may yet be moved in this interval.
    pub(crate) left: u64,
    /// Pages that may be moved in each.
    pub(crate) each_interval: u64,
}

impl MoveBudget {
    pub(crate) const fn of(each_interval: u64) -> Self {
        Self { left: each_interval, each_interval }
    }
}

/// The end of the last interval, and the counts then.
#[derive(Clone, Debug)]
pub(crate) struct LastInterval {
    pub(crate) end_ps: u64,
    pub(crate) counters: nodewise_hardware::Counters,
    /// DRAM accesses of reads and of writes.
    pub(crate) dram: [u64; 2],
}

/// A simulated machine whose processes the engine can manage.
pub struct SimMachine {
    pub(crate) hardware: Hardware,
    pub(crate) memory: Memory,
    pub(crate) topology: Topology,
    pub(crate) costs: Costs,
    /// The weight of kernel time and copies: less than 1 where the run stands for one that goes over its data
    /// more often.
    pub(crate) one_off_weight: f64,
    /// Bytes that were to be copied from one node to another and have not been yet, `[from * nodes + to]`.
    uncopied: Vec<f64>,
    /// Base pages that may be moved for the engine.
    pub(crate) move_budget: MoveBudget,
    /// CPU and node of each thread.
    pub(crate) threads: Vec<(usize, usize)>,
    pub(crate) node_of_cpu: Vec<usize>,
    /// Hardware threads of a core.
    pub(crate) threads_of_core: usize,
    /// Time in the kernel of each thread, and at barriers.
    pub(crate) kernel_ps: Vec<u64>,
    pub(crate) waited_ps: Vec<u64>,
    pub(crate) processes: Vec<Process>,
    pub(crate) sampler: Sampler,
    pub(crate) balancing: Option<Balancing>,
    pub(crate) autonuma27: Option<AutoNuma27>,
    /// Pages under the ACE paper's policy.
    pub(crate) ace: Option<AcePages>,
    /// Where pages belong that were seen in an earlier run.
    pub(crate) plan: Option<Plan>,
    /// The accesses of this run, for such a plan.
    pub(crate) record: Option<Record>,
    pub(crate) counts: OsCounters,
    /// Barriers that all threads have got past, and those of an iteration of the program.
    pub(crate) barriers: u64,
    pub(crate) iteration: u64,
    /// When the threads first were all at a barrier.
    pub(crate) first_barrier_ps: Option<u64>,
    /// Why the program cannot go on.
    pub(crate) failure: Option<Error>,
    /// Pages sampled in this interval, if the engine's decisions reach only those.
    pub(crate) sampled: Option<BTreeSet<usize>>,
    /// The engine may replicate.
    pub(crate) replication: bool,
    pub(crate) last_interval: LastInterval,
    /// DRAM accesses of reads and of writes.
    pub(crate) dram: [u64; 2],
    pub(crate) cycle_ps: f64,
    policy: Policy,
    areas: Vec<(usize, usize)>,
    /// Pages that each thread has touched first, from its number on.
    steps: Vec<u64>,
    turn: usize,
}

impl SimMachine {
    pub(crate) fn new(
        preset: &Preset,
        all: &[Area],
        cpus: &[usize],
        policy: &Policy,
        huge_pages: bool,
        costs: Costs,
    ) -> Self {
        let hardware = Hardware::new(preset);
        let memory = Memory::new(preset, all, huge_pages);
        let nodes = preset.nodes_of_cpus();
        let extent = |area: &Area| {
            let first = memory.page(area.base);
            (first, first + area.bytes.div_ceil(PAGE_BYTES) as usize)
        };
        let areas: Vec<(usize, usize)> = all.iter().map(extent).collect();
        let mappings = areas.iter().map(|&(start, end)| start..end).collect();
        // The engine asks whether a node has CPUs, and how far it is; memory it is told in the counters.
        let cpus_of_nodes: Vec<usize> =
            (0..preset.nodes.len()).map(|node| preset.cpus_of_node(node)).collect();
        let ace = match policy {
            Policy::Ace(policy) => {
                let cpus: Vec<usize> = preset.nodes.iter().map(|node| node.cores).collect();
                Some(AcePages::new(*policy, &memory, all, &cpus))
            }
            _ => None,
        };
        Self {
            last_interval: LastInterval { end_ps: 0, counters: hardware.counters().clone(), dram: [0; 2] },
            topology: Topology::synthetic_of(&cpus_of_nodes, preset.nodes[0].memory_bytes)
                .with_threads_of_core(preset.core.threads)
                .with_distances(&preset.distances),
            costs,
            one_off_weight: 1.0,
            uncopied: vec![0.0; preset.nodes.len() * preset.nodes.len()],
            move_budget: MoveBudget::of(u64::MAX),
            threads: cpus.iter().map(|&cpu| (cpu, nodes[cpu])).collect(),
            node_of_cpu: nodes,
            threads_of_core: preset.core.threads,
            kernel_ps: vec![0; cpus.len()],
            waited_ps: vec![0; cpus.len()],
            processes: vec![Process::new(Pid(1), mappings)],
            sampler: Sampler::off(cpus.len()),
            balancing: None,
            autonuma27: None,
            ace,
            plan: None,
            record: None,
            counts: OsCounters::default(),
            barriers: 0,
            iteration: 0,
            first_barrier_ps: None,
            failure: None,
            sampled: None,
            replication: false,
            dram: [0; 2],
            cycle_ps: preset.cycle_ps(),
            policy: match policy {
                Policy::WeightedInterleave(weights) if weights.is_empty() => {
                    Policy::WeightedInterleave(from_bandwidths(preset))
                }
                policy => policy.clone(),
            },
            areas,
            steps: (0..cpus.len() as u64).collect(),
            turn: 0,
            hardware,
            memory,
        }
    }

    /// One access of a thread.
    #[inline]
    pub(crate) fn access(&mut self, thread: usize, cpu: usize, touch: Touch, address: u64) {
        let page = self.memory.page(address);
        let home = if let Some(home) = self.memory.plain_home(page) {
            home
        } else {
            self.hardware.begin(cpu, touch);
            self.fault(thread, page, touch)
        };
        debug_assert!(
            self.serves(thread, page, home, touch),
            "page {page} at {home}: {touch:?} of thread {thread}"
        );
        let access = self.hardware.touch(cpu, touch, address, home);
        let missed = matches!(access.source, Source::LocalDram | Source::RemoteDram { .. });
        if let Some(record) = &mut self.record {
            record.note(page, self.threads[thread].1, touch.writes(), missed);
        }
        if missed {
            self.dram[usize::from(touch.writes())] += 1;
            if self.sampler.takes(thread) {
                self.sample(thread, touch, address, access);
            }
        }
    }

    /// Whether an access goes where the data is: never to a stale copy. A run that has failed is excused.
    fn serves(&self, thread: usize, page: usize, home: usize, touch: Touch) -> bool {
        let (node, write) = (self.threads[thread].1, touch.writes());
        self.failure.is_some()
            || match &self.ace {
                Some(ace) => ace.place(&self.memory, page, node, write) == Some(home),
                None => self.memory.serves(page, node, home, write),
            }
    }

    /// The program's pages, if so many base pages are placed together.
    pub(crate) fn placeable_pages(&self, together: usize) -> u64 {
        self.areas.iter().map(|(start, end)| (end - start).div_ceil(together) as u64).sum()
    }

    /// Asserts all that always holds: see [`Memory::assert_sound`] and [`Hardware::assert_sound`].
    pub(crate) fn assert_sound(&self) {
        self.memory.assert_sound();
        self.hardware.assert_sound();
        if let Some(ace) = &self.ace {
            ace.assert_sound(&self.memory);
        }
    }

    #[cold]
    fn sample(&mut self, thread: usize, touch: Touch, address: u64, access: Access) {
        let time_ps = self.hardware.clock(self.threads[thread].0);
        let node = self.threads[thread].1;
        self.sampler.take(thread, node, time_ps, touch, address, access, self.cycle_ps);
        self.counts.samples += 1;
        self.charge_ps(thread, self.sampler.cost_ps);
    }

    /// An access that the page table does not serve. Returns the node it then goes to.
    fn fault(&mut self, thread: usize, page: usize, touch: Touch) -> usize {
        let node = self.threads[thread].1;
        if page >= self.memory.pages() {
            let address = self.memory.address(page);
            self.failure.get_or_insert_with(|| {
                let where_to = format!("{address:#x}, beyond the program's memory");
                Error::wrong_result(format!("thread {thread} touches {where_to}"))
            });
            return node;
        }
        match self.memory.state(page) {
            State::Absent => {
                let home = self.first_touch(thread, page);
                // Some policies have a word on this very access already.
                if self.memory.state(page) == State::Marked { self.fault(thread, page, touch) } else { home }
            }
            _ if self.ace.is_some() => self.ace_access(thread, page, touch),
            State::Marked if self.plan.is_some() => self.planned(thread, page, touch),
            State::At(home) => home,
            State::Replicated if !touch.writes() && self.memory.nodes().contains(&node) => node,
            State::Replicated => {
                if touch.writes() {
                    self.collapse(thread, page);
                }
                self.memory.home(page).unwrap_or(node)
            }
            State::Marked if self.autonuma27.is_some() => self.range_fault(thread, page),
            State::Marked => self.hint_fault(thread, page),
        }
    }

    fn first_touch(&mut self, thread: usize, page: usize) -> usize {
        let huge = self.memory.is_huge(page);
        let wanted = self.wanted(thread, self.memory.together(page).start);
        self.charge(thread, if huge { self.costs.huge_page_fault_ns } else { self.costs.page_fault_ns });
        let only_there = matches!(self.policy, Policy::Bind(_));
        let home = self.memory.map(page, wanted, only_there);
        if home.is_none() {
            let which = if only_there { format!("node {wanted}") } else { "every node".to_string() };
            self.failure.get_or_insert_with(|| {
                Error::new(ErrorKind::OutOfMemory, format!("out of memory: {which} is full"))
            });
        }
        if self.ace.is_some() || self.plan.as_ref().is_some_and(|plan| plan.copies(page)) {
            // Every access asks.
            self.memory.mark(page);
        }
        home.unwrap_or(wanted)
    }

    /// Where the policy wants a page.
    fn wanted(&mut self, thread: usize, page: usize) -> usize {
        let nodes = self.memory.nodes();
        // Each thread goes round the nodes with its own faults, and does not begin where the others do
        // (`interleave_nodes`, `il_prev`: mm/mempolicy.c, Linux 6.12; a new thread goes on from its maker's).
        let step = self.steps[thread];
        self.steps[thread] += 1;
        match &self.policy {
            Policy::FirstTouch | Policy::AutoNuma { .. } | Policy::AutoNuma27 | Policy::Carrefour => {
                self.threads[thread].1
            }
            Policy::Bind(node) | Policy::Preferred(node) => *node,
            Policy::Oracle => self.plan.as_ref().map_or(self.threads[thread].1, |plan| plan.home(page)),
            Policy::Ace(_) => self.ace.as_ref().map_or(0, |ace| ace.global(page)),
            Policy::Interleave => nodes[(step % nodes.len() as u64) as usize],
            Policy::WeightedInterleave(weights) => {
                let total: u32 = nodes.iter().map(|&node| weights[node]).sum();
                let mut ticket = (step % u64::from(total.max(1))) as u32;
                for &node in nodes {
                    if ticket < weights[node] {
                        return node;
                    }
                    ticket -= weights[node];
                }
                nodes[0]
            }
            Policy::Blocked => {
                let area = self.areas.iter().find(|&&(start, end)| start <= page && page < end);
                let &(start, end) = area.unwrap_or(&(page, page + 1));
                nodes[(page - start) * nodes.len() / (end - start)]
            }
        }
    }

    /// Every other copy goes: the writer needs the only one.
    fn collapse(&mut self, thread: usize, page: usize) {
        self.memory.collapse(page);
        self.hardware.forget(self.memory.address(page), PAGE_BYTES);
        self.counts.collapsed += 1;
        self.charge(thread, self.costs.page_fault_ns);
        self.shoot_down(thread);
    }

    /// Moves pages, one after the other, in the time of a thread. Returns how many base pages went.
    pub(crate) fn move_pages(&mut self, thread: usize, pages: &[(usize, usize)]) -> u64 {
        let mut moved = 0;
        let mut since_shootdown = 0;
        for &(page, to) in pages {
            let from = self.memory.home(page);
            let together = self.memory.together(page);
            if from.is_none_or(|from| from == to) || !self.memory.relocate(page, to) {
                continue;
            }
            let bytes = (together.len() as u64) << PAGE_SHIFT;
            self.copy(thread, from.unwrap_or(to), to, bytes);
            self.hardware.forget(self.memory.address(together.start), bytes);
            moved += together.len() as u64;
            since_shootdown += 1;
            if since_shootdown == self.costs.pages_per_shootdown {
                self.shoot_down(thread);
                since_shootdown = 0;
            }
        }
        if since_shootdown > 0 {
            self.shoot_down(thread);
        }
        self.counts.migrated += moved;
        moved
    }

    /// Gives every node with CPUs a copy of pages. Returns how many pages have them now.
    pub(crate) fn replicate(&mut self, thread: usize, pages: &[usize]) -> u64 {
        let mut done = 0;
        for &page in pages {
            let Some(home) = self.memory.home(page) else { continue };
            if self.memory.state(page) == State::Replicated || !self.memory.replicate(page) {
                continue;
            }
            for to in self.memory.copied_to(home).skip(1).collect::<Vec<_>>() {
                self.copy(thread, home, to, PAGE_BYTES);
            }
            self.hardware.forget(self.memory.address(page), PAGE_BYTES);
            done += 1;
            if done % self.costs.pages_per_shootdown == 0 {
                self.shoot_down(thread);
            }
        }
        if done % self.costs.pages_per_shootdown != 0 {
            self.shoot_down(thread);
        }
        self.counts.replicated += done;
        done
    }

    /// Copies a page, or as many of the pages as weigh that much: a part of a page would take the time of its
    /// way each time.
    pub(crate) fn copy(&mut self, thread: usize, from: usize, to: usize, bytes: u64) {
        self.charge(thread, self.costs.move_page_ns);
        let uncopied = &mut self.uncopied[from * self.topology.node_count() + to];
        *uncopied += bytes as f64 * self.one_off_weight;
        let pages = (*uncopied / PAGE_BYTES as f64) as u64;
        *uncopied -= (pages * PAGE_BYTES) as f64;
        let at_ps = self.hardware.clock(self.threads[thread].0);
        let done_ps = self.hardware.copy_page(at_ps, from, to, pages * PAGE_BYTES);
        self.charge_ps(thread, done_ps.saturating_sub(at_ps));
    }

    /// Pages were marked in the time of a thread.
    pub(crate) fn scanned(&mut self, thread: usize, marked: u64) {
        self.charge(thread, marked * self.costs.mark_page_ns);
        if marked > 0 {
            self.shoot_down(thread);
        }
    }

    /// A thread in whose time the kernel works on behalf of nobody in particular: each in turn.
    pub(crate) fn next_thread(&mut self) -> usize {
        self.turn = (self.turn + 1) % self.threads.len();
        self.turn
    }

    /// Takes stale translations from all CPUs.
    pub(crate) fn shoot_down(&mut self, thread: usize) {
        for other in 0..self.threads.len() {
            let cost = if other == thread { self.costs.shootdown_ns } else { self.costs.interrupted_ns };
            self.charge(other, cost);
        }
    }

    pub(crate) fn charge(&mut self, thread: usize, ns: u64) {
        self.charge_ps(thread, (ns as f64 * 1000.0 * self.one_off_weight).round() as u64);
    }

    pub(crate) fn charge_ps(&mut self, thread: usize, ps: u64) {
        let cpu = self.threads[thread].0;
        self.hardware.set_clock(cpu, self.hardware.clock(cpu) + ps);
        self.kernel_ps[thread] += ps;
    }

    /// The hardware's counts since the last interval, as the engine wants them.
    pub(crate) fn engine_counters(&mut self, end_ps: u64) -> Counters {
        let now = self.hardware.counters().clone();
        let since = now.since(&self.last_interval.counters);
        let (reads, writes) =
            (self.dram[0] - self.last_interval.dram[0], self.dram[1] - self.last_interval.dram[1]);
        let elapsed_ps = end_ps.saturating_sub(self.last_interval.end_ps).max(1) as f64;
        let nodes = since.nodes;
        let mut traffic = TrafficMatrix::new(nodes);
        let mut latencies = vec![0.0; nodes];
        for (home, latency) in latencies.iter_mut().enumerate() {
            let mut sum_ps = 0;
            for accessor in 0..nodes {
                let accesses = since.dram_between(accessor, home);
                let index = |node: usize| nodewise_topology::NodeIndex(node as u8);
                traffic.add(index(accessor), index(home), accesses as f64);
                sum_ps += since.dram_latency_ps[accessor * nodes + home];
            }
            let accesses: u64 = (0..nodes).map(|accessor| since.dram_between(accessor, home)).sum();
            *latency = sum_ps as f64 / accesses.max(1) as f64 / self.cycle_ps;
        }
        let total = (reads + writes) as f64;
        self.last_interval = LastInterval { end_ps, counters: now, dram: self.dram };
        Counters {
            access_rate: Measure::Measured(traffic.total() / (elapsed_ps / 1e6)),
            controller_loads: Measure::Measured(traffic.controller_loads()),
            user_traffic: Measure::Unknown,
            demand_percent: Measure::Unknown,
            traffic: Measure::Measured(traffic),
            read_percent: if total > 0.0 {
                Measure::Measured(100.0 * reads as f64 / total)
            } else {
                Measure::Unknown
            },
            latency_cycles: Measure::Measured(latencies),
            instructions: Measure::Measured(since.instructions.iter().sum::<u64>() as f64),
            cycles: Measure::Measured(elapsed_ps / self.cycle_ps * self.threads.len() as f64),
            llc_cycles: Measure::Unknown,
            cache_misses: Measure::Measured(since.llc_misses.iter().sum::<u64>() as f64),
            free_bytes: self.memory.free_bytes(),
            total_bytes: self.memory.total_bytes(),
            pages_moved_by_kernel: Measure::Measured(0),
        }
    }
}
