//! The machine under the guest: the hardware that all CPUs share, and each CPU's own part.

use crate::clock::{Clock, QUANTUM_PS};
use crate::cpu::Cpu;
use crate::flow::{Access, Block};
use crate::settings::{Homes, Report, Settings, Times};
use nodewise_hardware::{Counters, Error, Hardware, Preset, Source};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
}

/// An access to memory.
pub(crate) struct Request<'a> {
    pub kind: Kind,
    pub physical: u64,
    /// The number of its line by its virtual address.
    pub line: u64,
    /// The block that its instruction is in.
    pub block: *const Block,
    pub access: &'a Access,
}

/// The machine under the guest, for all CPUs.
pub(crate) struct Model {
    pub clock: Clock,
    /// Whether accesses to memory are asked for.
    pub memory: bool,
    /// How far a CPU runs before it meets the others.
    step_ps: u64,
    preset: Preset,
    homes: Homes,
    shared: Mutex<Shared>,
    /// Time of 1024 instructions.
    kilo_instruction_ps: u64,
    line_shift: u32,
    l2_ps: u64,
    begun: Mutex<Option<Begin>>,
    /// Each CPU's instructions and running time, as of its last meeting with the others.
    totals: Vec<Totals>,
}

struct Shared {
    hardware: Hardware,
    /// Lines that each CPU had lost at the last look.
    lost: Vec<u32>,
}

/// The state when the model begins.
struct Begin {
    at: Instant,
    now_ps: u64,
    counters: Counters,
}

#[derive(Default)]
struct Totals {
    instructions: AtomicU64,
    ran_ps: AtomicU64,
}

impl Model {
    pub fn new(settings: &Settings) -> Result<Self, Error> {
        let preset = settings.machine()?;
        let cpus = preset.cores();
        // Without accesses no order at a controller has to be right, but the same work is done in a quantum.
        let quantum_ps =
            if settings.memory { QUANTUM_PS } else { (QUANTUM_PS as f64 * settings.slow.max(1.0)) as u64 };
        Ok(Self {
            clock: Clock::new(cpus, quantum_ps),
            memory: settings.memory,
            step_ps: quantum_ps / 2,
            homes: Homes::new(&settings.memory_bytes),
            shared: Mutex::new(Shared { hardware: Hardware::new(&preset), lost: vec![0; cpus] }),
            kilo_instruction_ps: (preset.cycle_ps() * preset.core.cycles_per_instruction * 1024.0).round()
                as u64,
            line_shift: preset.line_bytes.trailing_zeros(),
            l2_ps: preset.l2.map_or(0, |l2| (l2.latency_cycles as f64 * preset.cycle_ps()) as u64),
            begun: Mutex::new(None),
            totals: (0..cpus).map(|_| Totals::default()).collect(),
            preset,
        })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a line at an address.
    #[inline]
    pub fn line(&self, address: u64) -> u64 {
        address >> self.line_shift
    }

    /// The model begins at this time.
    pub fn begin(&self, now_ps: u64) {
        self.clock.reach(now_ps);
        let counters = self.shared().hardware.counters().clone();
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Begin { at: Instant::now(), now_ps, counters });
    }

    /// The time of a CPU that has executed `instructions` since its last look.
    #[inline]
    pub fn time_ps(&self, cpu: &Cpu, instructions: u64) -> u64 {
        cpu.ps + (instructions * self.kilo_instruction_ps >> 10)
    }

    /// Adds instructions to a CPU's time.
    #[inline]
    pub fn settle(&self, cpu: &mut Cpu, instructions: u64) {
        cpu.ps = self.time_ps(cpu, instructions);
        cpu.instructions += instructions;
    }

    /// An access that the CPU's filter does not know. `losses` gives the count of a CPU's lost lines.
    pub fn access<'a>(
        &self,
        losses: impl Fn(usize) -> &'a AtomicU32,
        number: usize,
        cpu: &mut Cpu,
        Request { kind, physical, line, block, access }: Request<'_>,
    ) {
        let home = self.homes.node(physical);
        if cpu.flow.waits() {
            cpu.ps = cpu.ps.max(cpu.flow.ready_ps(access.address));
        }
        let mut shared = self.shared();
        let Shared { hardware, lost } = &mut *shared;
        hardware.set_clock(number, cpu.ps);
        let result = match kind {
            Kind::Read => hardware.read(number, physical, home),
            Kind::Write => hardware.write(number, physical, home),
            Kind::Atomic => hardware.atomic(number, physical, home),
        };
        cpu.ps = hardware.clock(number);
        for (index, lost) in lost.iter_mut().enumerate() {
            let now = hardware.losses(index);
            if now != *lost {
                *lost = now;
                losses(index).store(now, Ordering::Relaxed);
            }
        }
        drop(shared);
        cpu.filter.insert(line, losses(number).load(Ordering::Relaxed), kind != Kind::Read);
        if kind == Kind::Read && result.latency_ps > self.l2_ps && result.source != Source::L1 {
            cpu.flow.load(block, access, cpu.ps + result.latency_ps);
        }
    }

    /// A CPU meets the others if it has run for a while: its time counts for them, and it waits for the
    /// slowest.
    #[inline]
    pub fn meet(&self, number: usize, cpu: &mut Cpu) {
        if cpu.ps >= cpu.met_ps + self.step_ps {
            self.publish(number, cpu);
            cpu.met_ps = cpu.ps;
            self.clock.advance(number, cpu.ps);
        }
    }

    fn publish(&self, number: usize, cpu: &mut Cpu) {
        cpu.ran_ps += cpu.ps.saturating_sub(cpu.runs_since_ps);
        cpu.runs_since_ps = cpu.ps;
        self.totals[number].instructions.store(cpu.instructions, Ordering::Relaxed);
        self.totals[number].ran_ps.store(cpu.ran_ps, Ordering::Relaxed);
    }

    /// A CPU idles.
    pub fn idle(&self, number: usize, cpu: &mut Cpu) {
        self.publish(number, cpu);
        self.clock.idle(number, cpu.ps);
    }

    /// A CPU runs again.
    pub fn resume(&self, number: usize, cpu: &mut Cpu) {
        cpu.ps = self.clock.resume(number);
        cpu.met_ps = cpu.ps;
        cpu.runs_since_ps = cpu.ps;
        cpu.flow.forget();
    }

    /// The report on the time since the begin; none before it.
    pub fn report(&self) -> Option<Report> {
        let state = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = state.as_ref()?;
        let counters = self.shared().hardware.counters().since(&begin.counters);
        let sum = |of: fn(&Totals) -> &AtomicU64| -> u64 {
            self.totals.iter().map(|totals| of(totals).load(Ordering::Relaxed)).sum()
        };
        let times = Times {
            modelled_ps: self.clock.now_ps() - begin.now_ps,
            host_s: begin.at.elapsed().as_secs_f64(),
            overtaken_ps: self.clock.overtaken_ps(),
            running_ps: sum(|totals| &totals.ran_ps),
            instructions: sum(|totals| &totals.instructions),
        };
        Some(Report::new(&self.preset, &counters, times))
    }
}
