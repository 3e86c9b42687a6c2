//! A program on a machine under a policy, from start to end.

use crate::os::kernel::machine::SimMachine;
use crate::os::policies::plan::{Plan, Record};
use crate::os::policy::Policy;
use crate::os::run::events::Events;
use crate::os::run::report::{Report, Times};
use crate::os::run::settings::Settings;
use crate::os::run::sharing::Sharing;
use crate::scheduler::{self, Processors};
use crate::{Error, Program};
use nodewise_hardware::{Hardware, MOST_NODES, Preset, Touch};

/// A program on a machine under a policy.
pub struct Simulation {
    preset: Preset,
    program: Box<dyn Program>,
    settings: Settings,
    policy: Policy,
    cpus: Vec<usize>,
    plan: Option<Plan>,
}

/// The observations of a run, its report included.
pub(crate) struct Watched {
    pub(crate) report: Report,
    /// When all threads had got to the first barrier: the end of what many programs do not count in their
    /// times.
    pub(crate) first_barrier_s: f64,
    pub(crate) sharing: Sharing,
}

/// A machine, and the events by the clock on it.
struct Managed {
    machine: SimMachine,
    events: Events,
}

impl Simulation {
    /// Lays the program's threads over the machine's CPUs.
    ///
    /// Fails if there are more threads than CPUs, more nodes than [`MOST_NODES`], or the policy names a node
    /// that there is not.
    pub fn new(
        preset: &Preset,
        program: Box<dyn Program>,
        settings: Settings,
        policy: Policy,
    ) -> Result<Self, Error> {
        let threads = program.threads();
        Self::check(preset, threads, &settings, &policy)?;
        let mut cpus = settings.cpus.clone().unwrap_or_else(|| settings.pinning.cpus(preset));
        cpus.truncate(threads);
        Ok(Self { preset: preset.clone(), program, settings, policy, cpus, plan: None })
    }

    /// Whether a program of so many threads can be run, before it is made; if not, why.
    pub fn check(preset: &Preset, threads: usize, settings: &Settings, policy: &Policy) -> Result<(), Error> {
        let (name, nodes, all) = (&preset.name, preset.nodes.len(), preset.cpus());
        if threads == 0 || threads > all {
            return Err(Error::unsuitable(format!(
                "{threads} threads: {name} has {all} CPUs, and every thread needs one of its own"
            )));
        }
        if let Some(cpus) = &settings.cpus {
            let mut seen = vec![false; all];
            for &cpu in cpus {
                if cpu >= all || std::mem::replace(&mut seen[cpu], true) {
                    let reason = if cpu >= all { "is not there" } else { "was chosen twice" };
                    return Err(Error::unsuitable(format!("CPU {cpu} {reason}: {name} has {all}")));
                }
            }
            if threads > cpus.len() {
                return Err(Error::unsuitable(format!(
                    "{threads} threads: {} CPUs were chosen, and every thread needs one of its own",
                    cpus.len()
                )));
            }
        }
        if nodes > MOST_NODES {
            return Err(Error::unsuitable(format!(
                "{name} has {nodes} nodes; {MOST_NODES} can be simulated"
            )));
        }
        if preset.uncached.is_some() && *policy == Policy::Carrefour {
            return Err(Error::unsuitable(format!(
                "{policy}: {name} has no caches to count the misses of; all other policies run on it"
            )));
        }
        if settings.huge_pages && matches!(policy, Policy::Ace(_)) {
            return Err(Error::unsuitable(format!(
                "{policy}: it keeps copies of base pages; run it without huge pages"
            )));
        }
        let with_memory = |node: usize| preset.nodes.get(node).is_some_and(|node| node.memory_bytes > 0);
        match policy {
            Policy::Bind(node) | Policy::Preferred(node) if !with_memory(*node) => Err(Error::unsuitable(
                format!("{policy}: {name} has no memory on node {node}; its nodes are 0 to {}", nodes - 1),
            )),
            Policy::WeightedInterleave(weights) if !weights.is_empty() && weights.len() != nodes => {
                Err(Error::unsuitable(format!(
                    "{policy}: {} weights, and {name} has {nodes} nodes",
                    weights.len()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Gives [`Policy::Oracle`] the plan that it needs.
    pub(crate) fn after(self, plan: Plan) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Runs to the end and tells, besides, where each page may belong.
    pub(crate) fn observe(self, progress: &mut dyn FnMut(u64)) -> Result<(Report, [Plan; 2]), Error> {
        let unit = if self.settings.huge_pages { self.settings.huge_page_pages } else { 1 };
        let (report, machine) = self.execute(true, progress)?;
        let record = machine.record.as_ref().expect("execute was told to record");
        Ok((report, record.plans(unit, machine.memory.nodes())))
    }

    /// Runs to the end and tells, besides, who shared huge pages.
    pub(crate) fn watch(self, progress: &mut dyn FnMut(u64)) -> Result<Watched, Error> {
        let (report, machine) = self.execute(true, progress)?;
        let record = machine.record.as_ref().expect("execute was told to record");
        let first_barrier_s = machine.first_barrier_ps.unwrap_or(0) as f64 / 1e12;
        Ok(Watched { report, first_barrier_s, sharing: Sharing::new(record, &machine.memory) })
    }

    /// Runs to the end. `progress` is told now and then how many operations have been simulated.
    ///
    /// Fails if memory runs out or the program finds its result wrong.
    pub fn run(self, progress: &mut dyn FnMut(u64)) -> Result<Report, Error> {
        if self.policy == Policy::Oracle && self.plan.is_none() {
            return Err(Error::unsuitable("oracle: it has to see the program run first"));
        }
        Ok(self.execute(false, progress)?.0)
    }

    fn execute(self, record: bool, progress: &mut dyn FnMut(u64)) -> Result<(Report, SimMachine), Error> {
        let Self { preset, mut program, settings, policy, cpus, plan } = self;
        let mut machine =
            SimMachine::new(&preset, program.areas(), &cpus, &policy, settings.huge_pages, settings.costs);
        machine.memory.set_huge_pages_of(settings.huge_page_pages);
        machine.plan = plan;
        machine.record = record.then(|| Record::new(machine.memory.pages(), preset.nodes.len()));
        machine.iteration = program.iteration();
        machine.one_off_weight = settings.period_scale / settings.size_scale;
        let nodes: Vec<usize> = machine.threads.iter().map(|thread| thread.1).collect();
        program.placed(&nodes);
        let events = Events::new(&mut machine, &settings, &policy);
        let mut managed = Managed { machine, events };
        scheduler::run(&mut *program, &mut managed, settings.slack_ps, progress)?;
        let machine = managed.machine;
        machine.assert_sound();
        let ended = || machine.threads.iter().map(|&(cpu, _)| machine.hardware.clock(cpu));
        let run_ps = ended().max().unwrap_or(0);
        let waiting_ps = ended().map(|end_ps| run_ps - end_ps).chain(machine.waited_ps.clone()).sum();
        let (first_barrier_ps, kernel_ps) =
            (machine.first_barrier_ps.unwrap_or(0), machine.kernel_ps.iter().sum());
        let times = Times { run_ps, first_barrier_ps, kernel_ps, waiting_ps, threads: cpus.len() };
        let resident = machine.memory.resident();
        let resident = resident.iter().zip(machine.memory.occupied()).map(|(mapped, copies)| mapped + copies);
        let mut report = Report::new(
            policy.to_string(),
            &preset,
            machine.hardware.counters(),
            &times,
            machine.counts,
            program.items(),
            resident.collect(),
        );
        let together = if settings.huge_pages { settings.huge_page_pages } else { 1 };
        report.placeable_pages = machine.placeable_pages(together);
        Ok((report, machine))
    }
}

impl Processors for Managed {
    #[inline]
    fn hardware(&mut self) -> &mut Hardware {
        &mut self.machine.hardware
    }

    #[inline]
    fn cpu(&self, thread: usize) -> usize {
        self.machine.threads[thread].0
    }

    #[inline]
    fn clock(&self, thread: usize) -> u64 {
        self.machine.hardware.clock(self.cpu(thread))
    }

    #[inline]
    fn access(&mut self, thread: usize, cpu: usize, touch: Touch, address: u64) {
        self.machine.access(thread, cpu, touch, address);
    }

    fn everyone_is_there(&mut self, threads: &[usize]) {
        everyone_is_there(&mut self.machine, threads);
    }

    fn goes_on(&mut self, thread: usize, at_ps: u64) {
        let cpu = self.machine.threads[thread].0;
        let now_ps = self.machine.hardware.clock(cpu);
        self.machine.waited_ps[thread] += at_ps.saturating_sub(now_ps);
        self.machine.hardware.set_clock(cpu, at_ps.max(now_ps));
    }

    #[inline]
    fn due_ps(&self, thread: usize) -> u64 {
        self.events.due_ps(&self.machine, thread)
    }

    fn tick(&mut self, thread: usize, running: &[usize]) {
        self.events.tick(&mut self.machine, thread, running);
    }

    #[inline]
    fn failure(&self) -> Option<&Error> {
        self.machine.failure.as_ref()
    }
}

/// Lets threads go on together from a barrier that the last of them has reached.
pub(crate) fn everyone_is_there(machine: &mut SimMachine, threads: &[usize]) {
    let clock = |thread: &usize| machine.hardware.clock(machine.threads[*thread].0);
    let last = threads.iter().map(clock).max().unwrap_or(0) + machine.costs.barrier_ns * 1000;
    for &thread in threads {
        let cpu = machine.threads[thread].0;
        machine.waited_ps[thread] += last - machine.hardware.clock(cpu);
        machine.hardware.set_clock(cpu, last);
    }
    machine.barriers += 1;
    machine.first_barrier_ps.get_or_insert(last);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::run::pinning::Pinning;
    use crate::os::run::simulate;
    use crate::{Area, ErrorKind, Progress, Role, Space, Trace};

    /// The first thread writes everything, then each of them reads one half over and over.
    struct Halves {
        areas: Vec<Area>,
        base: u64,
        steps: Vec<u64>,
        passes: u64,
    }

    const PAGES: u64 = 512;

    impl Halves {
        fn boxed(passes: u64) -> Box<dyn Program> {
            let mut space = Space::new();
            let base = space.area("halves", PAGES * 4096, Role::Unknown);
            Box::new(Self { areas: space.into_areas(), base, steps: vec![0; 2], passes })
        }
    }

    impl Program for Halves {
        fn threads(&self) -> usize {
            2
        }

        fn areas(&self) -> &[Area] {
            &self.areas
        }

        fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
            let step = self.steps[thread];
            self.steps[thread] += 1;
            let lines = PAGES * 64;
            if step == 0 {
                if thread == 0 {
                    (0..lines).for_each(|line| trace.write(self.base + line * 64));
                }
                return Progress::Barrier;
            }
            let half = lines / 2;
            (0..half).for_each(|line| trace.read(self.base + (thread as u64 * half + line) * 64));
            if step == self.passes { Progress::Finished } else { Progress::Running }
        }

        fn check(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    fn report(policy: &str, huge_pages: bool, passes: u64) -> Report {
        // Caches of one set, so that every pass goes to memory.
        let preset = Preset::named("opteron-8385-4n").unwrap().scaled(1e-3);
        // Its scans are ten times as far apart.
        let period_scale = if policy == "autonuma-27" { 3e-5 } else { 3e-4 };
        let settings = Settings { huge_pages, period_scale, ..Settings::scaled(0.01) };
        let simulation =
            Simulation::new(&preset, Halves::boxed(passes), settings, policy.parse().unwrap()).unwrap();
        let mut operations = 0;
        let report = simulation.run(&mut |so_far| operations = so_far).unwrap();
        assert_eq!(operations, PAGES * 64 + passes * PAGES * 64);
        report
    }

    #[test]
    fn pages_go_where_the_policy_says() {
        assert_eq!(report("first-touch", false, 1).resident_pages, [512, 0, 0, 0]);
        assert_eq!(report("interleave", false, 1).resident_pages, [128; 4]);
        assert_eq!(report("weighted-interleave:1/2/1/0", false, 1).resident_pages, [128, 256, 128, 0]);
        assert_eq!(report("blocked", false, 1).resident_pages, [128; 4]);
        assert_eq!(report("bind:2", false, 1).resident_pages, [0, 0, 512, 0]);
        assert_eq!(report("preferred:3", false, 1).resident_pages, [0, 0, 0, 512]);
        assert_eq!(report("first-touch", true, 1).resident_pages, [512, 0, 0, 0]);
    }

    #[test]
    fn the_report_adds_up() {
        let report = report("interleave", false, 3);
        let threads_s = 2.0 * report.run_time_s;
        assert!((report.user_s + report.kernel_s + report.waiting_s - threads_s).abs() < 1e-9);
        // A microsecond each, in a run that stands for one with 1 / 0.03 as many passes.
        assert!(report.kernel_s >= 512.0 * 1e-6 * 0.03);
        assert!((20.0..30.0).contains(&report.local_access_percent.unwrap()), "{report:?}");
        assert!(report.instructions_per_cycle > 0.0 && report.dram_latency_cycles >= 299.0, "{report:?}");
    }

    #[test]
    fn same_seed_same_bytes() {
        for policy in ["interleave", "autonuma", "autonuma-27", "carrefour"] {
            assert_eq!(report(policy, false, 20), report(policy, false, 20));
        }
    }

    #[test]
    fn those_who_move_pages_find_the_half_that_is_used_elsewhere() {
        let before = report("first-touch", false, 60);
        for policy in ["autonuma", "autonuma-27", "carrefour"] {
            let after = report(policy, false, 60);
            assert!(after.pages_migrated + after.pages_replicated > 200, "{policy}: {after:?}");
            assert!(after.local_access_percent > before.local_access_percent, "{policy}: {after:?}");
        }
    }

    fn twice(policy: &str) -> Report {
        let preset = Preset::named("opteron-8385-4n").unwrap().scaled(1e-3);
        let settings = Settings { period_scale: 3e-4, ..Settings::scaled(0.01) };
        simulate(&preset, &|| Halves::boxed(20), &settings, &policy.parse().unwrap(), &mut |_| ()).unwrap()
    }

    #[test]
    fn the_oracle_places_best() {
        let oracle = twice("oracle");
        assert_eq!(oracle.resident_pages, [256, 256, 0, 0]);
        assert!(oracle.local_access_percent > Some(95.0), "{oracle:?}");
        for policy in ["first-touch", "interleave", "blocked", "bind:1", "autonuma", "carrefour", "ace"] {
            let other = twice(policy);
            assert!(oracle.run_time_s <= other.run_time_s, "{policy}: {other:?}");
        }
        let unseen = Simulation::new(
            &Preset::named("dahu-2n").unwrap(),
            Halves::boxed(1),
            Settings::scaled(1.0),
            Policy::Oracle,
        );
        assert_eq!(
            unseen.unwrap().run(&mut |_| ()).unwrap_err().to_string(),
            "oracle: it has to see the program run first"
        );
    }

    #[test]
    fn threads_go_where_their_memory_has_to_stay() {
        let mut preset = Preset::named("opteron-8385-4n").unwrap().scaled(1e-3);
        // The first half is on node 1 and fills it, the second on node 2 and fills that.
        for (node, bytes) in [(0, 0), (1, PAGES / 2 * 4096), (2, PAGES / 2 * 4096), (3, 0)] {
            preset.nodes[node].memory_bytes = bytes;
        }
        let run = |pinning| {
            let settings = Settings { pinning, period_scale: 3e-4, ..Settings::scaled(0.01) };
            let policy = Policy::AutoNuma { split: false };
            let simulation = Simulation::new(&preset, Halves::boxed(120), settings, policy).unwrap();
            simulation.run(&mut |_| ()).unwrap()
        };
        let pinned = run(Pinning::Spread);
        assert_eq!((pinned.threads_moved, pinned.pages_migrated), (0, 0));
        assert!(pinned.local_access_percent < Some(10.0), "{pinned:?}");
        // On node 1 the first thread would unbalance the nodes until the second, which begins there, has gone
        // to node 2. Meanwhile it tries those where it gains nothing.
        let free = run(Pinning::None);
        assert_eq!((free.threads_moved, free.pages_migrated), (9, 0));
        assert!(free.local_access_percent > Some(75.0), "{free:?}");
        assert!(free.run_time_s < pinned.run_time_s, "{free:?} {pinned:?}");
    }

    #[test]
    fn under_ace_readers_get_copies_of_their_own() {
        let ace = twice("ace");
        assert!(ace.local_access_percent > Some(95.0), "{ace:?}");
        // The copied pages are those of the second half's 256 whose global frame is not on node 1; node 0's
        // copies go when node 1 reads.
        assert_eq!((ace.pages_replicated, ace.pages_migrated), (192, 0));
        assert_eq!(ace.resident_pages, [320, 320, 128, 128]);
    }

    #[test]
    fn a_huge_page_that_nodes_share_is_split() {
        let plain = report("autonuma", true, 120);
        assert_eq!(plain.pages_split, 0);
        let split = report("autonuma+split", true, 120);
        assert_eq!(split.pages_split, 1);
        assert!(split.local_access_percent > Some(80.0), "{split:?}");
    }

    #[test]
    fn the_list_of_policies_names_the_machines_that_one_cannot_be_run_on() {
        for machine in Preset::names() {
            let preset = Preset::named(machine).unwrap();
            for (name, about) in crate::os::policy::POLICIES {
                let policy = name.replace(":N", ":0").parse().unwrap();
                let refused = Simulation::check(&preset, 1, &Settings::scaled(1.0), &policy).is_err();
                assert_eq!(refused, about.contains(machine), "{name} on {machine}");
            }
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_reason() {
        let preset = Preset::named("dahu-2n").unwrap();
        let refused = |policy: &str| {
            let refused =
                Simulation::new(&preset, Halves::boxed(1), Settings::scaled(1.0), policy.parse().unwrap());
            let error = refused.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsuitable);
            error.to_string()
        };
        assert_eq!(refused("bind:2"), "bind:2: dahu-2n has no memory on node 2; its nodes are 0 to 1");
        assert_eq!(
            refused("weighted-interleave:1/2/3"),
            "weighted-interleave:1/2/3: 3 weights, and dahu-2n has 2 nodes"
        );
        let mut small = preset.clone();
        small.nodes.iter_mut().for_each(|node| node.memory_bytes = 1 << 20);
        let run = |policy: Policy| {
            let settings = Settings::scaled(1.0);
            Simulation::new(&small, Halves::boxed(1), settings, policy).unwrap().run(&mut |_| ())
        };
        let full = run(Policy::Bind(1)).unwrap_err();
        assert_eq!(
            (full.kind(), &*full.to_string()),
            (ErrorKind::OutOfMemory, "out of memory: node 1 is full")
        );
        assert_eq!(run(Policy::Preferred(1)).unwrap().resident_pages, [256, 256]);
        assert_eq!(run(Policy::FirstTouch).unwrap().resident_pages, [256, 256]);
    }
}
