//! Programs on the ACE: the NUMA manager's page faults, and nothing else of an operating system.
//!
//! The paper's times are user and system time, a page at a time, on a machine without caches, so this needs
//! none of the general OS model: no virtual memory areas, no scheduler, no memory pressure.

use crate::ace::{Actions, Location, Page, Policy, State};
use crate::{Area, Error, Op, Program, Progress, Role, Trace};
use nodewise_hardware::{Hardware, Preset, Uncached};

const PAGE_SHIFT: u32 = 12;
const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
const PAGE_WORDS: f64 = 1024.0;

/// How far a thread may run ahead of the one that is furthest behind, on its own memory. References over the
/// bus and faults come in the order of their times.
const SLACK_PS: u64 = 50_000_000;

/// The costs of the kernel's work, besides the words it moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A page fault through Mach's machine-independent VM system and `pmap_enter`. The paper does not print
    /// it: estimated from Table 4 as `docs/fidelity.md` tells.
    pub fault_us: f64,
    /// Dropping the mappings of a page on one node.
    pub shootdown_us: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self { fault_us: 1000.0, shootdown_us: 100.0 }
    }
}

/// The times of a run, in seconds over all threads, as time(1) gives them; waiting at barriers is in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// In the program.
    pub user_s: f64,
    /// In the kernel.
    pub system_s: f64,
    /// Page faults.
    pub faults: u64,
    /// Pages copied into a local memory or back.
    pub copies: u64,
    /// References made.
    pub references: u64,
}

/// A machine with a program on it: thread i on processor i.
pub struct Run<'a> {
    hardware: Hardware,
    program: &'a mut dyn Program,
    policy: Policy,
    pages: Vec<(Page, Role)>,
    base: u64,
    global: usize,
    uncached: Uncached,
    fault_ps: u64,
    shootdown_ps: u64,
    /// Filling a page with zeros.
    fill_local_ps: u64,
    fill_global_ps: u64,
    user_ps: u64,
    system_ps: u64,
    faults: u64,
    copies: u64,
    references: u64,
}

/// The pages from the first area to the last, with what is said of each, and the first address.
fn pages_of(areas: &[Area]) -> (u64, Vec<(Page, Role)>) {
    let base = areas.first().map_or(0, |area| area.base);
    let end = areas.last().map_or(0, |area| area.base + area.bytes);
    let mut pages = vec![(Page::default(), Role::Unknown); (end - base).div_ceil(PAGE_BYTES) as usize];
    for area in areas {
        let first = ((area.base - base) >> PAGE_SHIFT) as usize;
        let last = (area.base + area.bytes - base).div_ceil(PAGE_BYTES) as usize;
        pages[first..last].iter_mut().for_each(|page| page.1 = area.role);
    }
    (base, pages)
}

struct Thread {
    trace: Trace,
    /// Operations of the trace already executed.
    done: usize,
    /// Whether the instructions before the next one's reference are executed already.
    computed: bool,
    progress: Progress,
}

impl<'a> Run<'a> {
    /// Puts a program on a machine that has no caches and whose last node is the global memory.
    pub fn new(
        preset: &Preset,
        program: &'a mut dyn Program,
        policy: Policy,
        costs: Costs,
    ) -> Result<Self, Error> {
        let Some(uncached) = preset.uncached else {
            return Err(Error::unsuitable(format!(
                "{}: the ACE study needs a machine without caches",
                preset.name
            )));
        };
        let global = preset.nodes.len() - 1;
        if preset.nodes[global].cores > 0 || preset.nodes[..global].iter().any(|node| node.cores != 1) {
            return Err(Error::unsuitable(format!(
                "{}: the ACE study needs nodes of one processor, and a last one of none",
                preset.name
            )));
        }
        if program.threads() > global {
            return Err(Error::unsuitable(format!("{} threads on {global} processors", program.threads())));
        }
        let (base, pages) = pages_of(program.areas());
        let page_ps = |ns: f64| (PAGE_WORDS * ns * 1000.0) as u64;
        Ok(Run {
            hardware: Hardware::new(preset),
            program,
            policy,
            pages,
            base,
            global,
            uncached,
            fault_ps: (costs.fault_us * 1e6) as u64,
            shootdown_ps: (costs.shootdown_us * 1e6) as u64,
            fill_local_ps: page_ps(uncached.local_store_ns),
            fill_global_ps: page_ps(uncached.global_store_ns),
            user_ps: 0,
            system_ps: 0,
            faults: 0,
            copies: 0,
            references: 0,
        })
    }

    /// Runs the program to its end and checks its result.
    pub fn finish(mut self) -> Result<Times, Error> {
        let mut threads: Vec<Thread> = (0..self.program.threads())
            .map(|_| Thread {
                trace: Trace::default(),
                done: 0,
                computed: false,
                progress: Progress::Running,
            })
            .collect();
        // Times of the threads that can run.
        let mut times = vec![0; threads.len()];
        loop {
            let (mut core, mut least, mut second) = (usize::MAX, u64::MAX, u64::MAX);
            for (candidate, &time) in times.iter().enumerate() {
                if time < least {
                    (core, least, second) = (candidate, time, least);
                } else {
                    second = second.min(time);
                }
            }
            if core == usize::MAX {
                if !self.release(&mut threads, &mut times) {
                    break;
                }
                continue;
            }
            let can_run = self.turn(core, &mut threads[core], second);
            times[core] = if can_run { self.hardware.clock(core) } else { u64::MAX };
        }
        self.program.check()?;
        Ok(Times {
            user_s: self.user_ps as f64 / 1e12,
            system_s: self.system_ps as f64 / 1e12,
            faults: self.faults,
            copies: self.copies,
            references: self.references,
        })
    }

    /// Runs the thread that is furthest behind until it is ahead of the next, whose time is `second`. False
    /// if it is at a barrier or at its end.
    fn turn(&mut self, core: usize, thread: &mut Thread, second: u64) -> bool {
        loop {
            if !self.execute(core, thread, second) {
                return true;
            }
            if thread.progress != Progress::Running {
                return false;
            }
            if self.hardware.clock(core) > second {
                return true;
            }
            thread.trace.clear();
            thread.done = 0;
            thread.progress = self.program.advance(core, &mut thread.trace);
            assert!(!matches!(thread.progress, Progress::After { .. }), "only a replay says so");
        }
    }

    /// Lets everyone past the barrier, from the time the last one came; false if no one waits.
    fn release(&mut self, threads: &mut [Thread], times: &mut [u64]) -> bool {
        let waits = |thread: &Thread| thread.progress == Progress::Barrier;
        let waiting: Vec<usize> = (0..threads.len()).filter(|&core| waits(&threads[core])).collect();
        let last = waiting.iter().map(|&core| self.hardware.clock(core)).max();
        for &core in &waiting {
            self.hardware.set_clock(core, last.unwrap_or(0));
            threads[core].progress = Progress::Running;
            times[core] = self.hardware.clock(core);
        }
        !waiting.is_empty()
    }

    /// Executes operations of the trace until one has to wait for the thread whose time is `second`; true if
    /// none had to.
    fn execute(&mut self, core: usize, thread: &mut Thread, second: u64) -> bool {
        let words = thread.trace.words();
        // Faults move the clock too; they are not user time.
        let (start, system) = (self.hardware.clock(core), self.system_ps);
        let ahead = second.saturating_add(SLACK_PS);
        while thread.done < words.len() {
            let (address, instructions, write) = match Op::decode(words[thread.done]) {
                Op::Read { address, instructions } | Op::Chase { address, instructions } => {
                    (address, instructions, false)
                }
                Op::Write { address, instructions } | Op::Atomic { address, instructions } => {
                    (address, instructions, true)
                }
                Op::Compute { instructions } => {
                    self.hardware.execute(core, instructions);
                    thread.done += 1;
                    continue;
                }
            };
            if instructions > 0 && !thread.computed {
                self.hardware.execute(core, instructions);
            }
            thread.computed = true;
            let page = ((address - self.base) >> PAGE_SHIFT) as usize;
            let location = self.pages[page].0.place(core, write);
            let limit = if location == Some(Location::Local) { ahead } else { second };
            if self.hardware.clock(core) > limit {
                break;
            }
            thread.done += 1;
            thread.computed = false;
            self.references += 1;
            if location.is_none() {
                // The reference that faulted is completed in any case, or two nodes might take a page from
                // each other for ever (section 2.1). It must not hold the bus for those whose
                // time is before the fault's end.
                let location = self.fault(core, page, write);
                let ps = self.uncontended_ps(location, write);
                self.hardware.set_clock(core, self.hardware.clock(core) + ps);
                continue;
            }
            let home = if location == Some(Location::Local) { core } else { self.global };
            if write {
                self.hardware.write(core, address, home);
            } else {
                self.hardware.read(core, address, home);
            }
        }
        self.user_ps += self.hardware.clock(core) - start - (self.system_ps - system);
        thread.done == words.len()
    }

    fn uncontended_ps(&self, location: Location, write: bool) -> u64 {
        let ns = match (location, write) {
            (Location::Local, false) => self.uncached.local_fetch_ns,
            (Location::Local, true) => self.uncached.local_store_ns,
            (Location::Global, false) => self.uncached.global_fetch_ns,
            (Location::Global, true) => self.uncached.global_store_ns,
        };
        (ns * 1000.0) as u64
    }

    /// Handles a fault, in the time of the processor that has it; where the page is then.
    #[cold]
    fn fault(&mut self, core: usize, page: usize, write: bool) -> Location {
        let at = self.hardware.clock(core);
        let (page, role) = &mut self.pages[page];
        let location = self.policy.location(page, *role);
        let Actions { sync, flush, unmap, copy, fill } = page.fault(core, write, location, self.policy.count);
        let mut done = at + self.fault_ps + u64::from((flush | unmap).count_ones()) * self.shootdown_ps;
        if let Some(owner) = sync {
            done = self.hardware.copy_page(done, owner, self.global, PAGE_BYTES);
            self.copies += 1;
        }
        if copy {
            done = self.hardware.copy_page(done, self.global, core, PAGE_BYTES);
            self.copies += 1;
        }
        if fill {
            done += if location == Location::Local { self.fill_local_ps } else { self.fill_global_ps };
        }
        self.hardware.set_clock(core, done);
        self.system_ps += self.hardware.clock(core) - at;
        self.faults += 1;
        if page.state() == State::GlobalWritable { Location::Global } else { Location::Local }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::{Parameters, ace};

    fn run(workload: &str, threads: usize, policy: Policy) -> Times {
        let workload = ace::ALL.iter().find(|candidate| candidate.name == workload).unwrap();
        let mut program = (workload.build)(Parameters { threads, scale: 0.005, seed: 1 });
        let preset = Preset::named("ace-7").unwrap();
        Run::new(&preset, &mut *program, policy, Costs::default()).unwrap().finish().unwrap()
    }

    /// The user time of one thread is the sum of its instructions' and references' times.
    #[test]
    fn a_lone_thread_is_the_closed_form() {
        for (all_global, fetch_us, store_us) in [(false, 0.65, 0.84), (true, 1.5, 1.4)] {
            let times = run("gfetch", 1, Policy { all_global, ..Policy::default() });
            let workload = ace::ALL.iter().find(|workload| workload.name == "gfetch").unwrap();
            let mut program = (workload.build)(Parameters { threads: 1, scale: 0.005, seed: 1 });
            let mut expected_us = 0.0;
            let mut trace = Trace::default();
            while program.advance(0, &mut trace) != Progress::Finished {
                expected_us += trace
                    .ops()
                    .map(|op| match op {
                        Op::Read { instructions, .. } | Op::Chase { instructions, .. } => {
                            instructions as f64 * 0.25 + fetch_us
                        }
                        Op::Write { instructions, .. } | Op::Atomic { instructions, .. } => {
                            instructions as f64 * 0.25 + store_us
                        }
                        Op::Compute { instructions } => instructions as f64 * 0.25,
                    })
                    .sum::<f64>();
                trace.clear();
            }
            let difference = (times.user_s * 1e6 / expected_us - 1.0).abs();
            assert!(difference < 1e-4, "{} against {} s", times.user_s, expected_us / 1e6);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        assert_eq!(run("plytrace", 7, Policy::default()), run("plytrace", 7, Policy::default()));
    }

    #[test]
    fn pragmas_save_the_moves_before_pinning() {
        let plain = run("primes3", 7, Policy::default());
        let told = run("primes3", 7, Policy { pragmas: true, ..Policy::default() });
        assert!(plain.copies > 0);
        assert_eq!(told.copies, 0);
        assert!(told.system_s < plain.system_s);
    }

    #[test]
    fn with_more_moves_allowed_pages_are_copied_more_often() {
        let copies = |moves| run("primes3", 7, Policy { moves, ..Policy::default() }).copies;
        let counts: Vec<u64> = [0, 1, 4, 16].into_iter().map(copies).collect();
        assert!(counts.is_sorted() && counts[0] < counts[3], "{counts:?}");
    }

    #[test]
    fn a_machine_with_caches_is_refused() {
        let mut program = (ace::ALL[0].build)(Parameters { threads: 1, scale: 0.01, seed: 1 });
        let preset = Preset::named("opteron-8385-4n").unwrap();
        let refused = Run::new(&preset, &mut *program, Policy::default(), Costs::default()).err().unwrap();
        assert!(refused.to_string().contains("opteron-8385-4n"), "{refused}");
    }
}
