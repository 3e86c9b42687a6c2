//! The machine under the guest: the hardware that all CPUs share, and each CPU's own part.

use crate::clock::{Clock, QUANTUM_PS};
use crate::cpu::Cpu;
use crate::flow::{Access, Block};
use crate::settings::{Homes, Report, Settings, Times};
use nodewise_hardware::{Counters, Hardware, Preset, Source};
use nodewise_sys::Mapping;
use nodewise_sys::device::{self, Device, Record};
use std::fs::File;
use std::io;
use std::path::Path;
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
    pub virtual_address: u64,
    /// The block that its instruction is in.
    pub block: *const Block,
    pub access: &'a Access,
}

/// How an access went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The CPU's own caches did not serve it.
    pub is_beyond: bool,
    /// Its address had to be waited for.
    pub waited: bool,
}

/// How often the guest's device is told of the machine's work.
const TELL_PS: u64 = 100_000_000;

/// The machine under the guest, for all CPUs.
pub(crate) struct Model {
    pub clock: Clock,
    /// Whether accesses to memory are asked for.
    pub memory: bool,
    /// How far a CPU runs before it meets the others.
    step_ps: u64,
    preset: Preset,
    nodes_of_cpus: Vec<usize>,
    homes: Homes,
    shared: Mutex<Shared>,
    /// Time of 1024 instructions.
    kilo_instruction_ps: u64,
    line_shift: u32,
    l2_ps: u64,
    begun: Mutex<Option<Begin>>,
    /// Each CPU's instructions and running time, as of its last meeting with the others.
    totals: Vec<Totals>,
    /// The device by which the guest sees counters and samples, and when it is told of the former.
    device: Device<Mapping>,
    tell_ps: AtomicU64,
}

struct Shared {
    hardware: Hardware,
    /// Lines that each CPU had lost at the last look.
    lost: Vec<u32>,
    /// DRAM accesses to user addresses and what they had prefetched, by accessor and then by home.
    user_dram: Vec<u64>,
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
    pub fn new(settings: &Settings) -> Result<Self, String> {
        let say = |error: nodewise_hardware::Error| error.to_string();
        let (preset, shape) = (settings.machine().map_err(say)?, settings.shape().map_err(say)?);
        let device = open_device(&settings.device, shape)
            .map_err(|error| format!("{}: {error}", settings.device.display()))?;
        let cpus = preset.cpus();
        // As much work may be done in a quantum of a slower machine. With accesses it is a quarter of that:
        // longer, threads that follow each other fall into step.
        let work = if settings.memory { settings.slow / 4.0 } else { settings.slow };
        let quantum_ps = (QUANTUM_PS as f64 * work.max(1.0)) as u64;
        Ok(Self {
            clock: Clock::new(cpus, quantum_ps),
            memory: settings.memory,
            step_ps: quantum_ps / 2,
            homes: Homes::new(&settings.memory_bytes),
            shared: Mutex::new(Shared {
                hardware: Hardware::new(&preset).with_run_ahead(quantum_ps),
                lost: vec![0; cpus],
                user_dram: vec![0; preset.nodes.len() * preset.nodes.len()],
            }),
            kilo_instruction_ps: (preset.cycle_ps() * preset.core.cycles_per_instruction * 1024.0).round()
                as u64,
            line_shift: preset.line_bytes.trailing_zeros(),
            l2_ps: preset.l2.map_or(0, |l2| (l2.latency_cycles as f64 * preset.cycle_ps()) as u64),
            begun: Mutex::new(None),
            totals: (0..cpus).map(|_| Totals::default()).collect(),
            nodes_of_cpus: preset.nodes_of_cpus(),
            preset,
            device,
            tell_ps: AtomicU64::new(0),
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

    /// An access that the CPU's filter does not know; nothing if it is to a device. `losses` gives the count
    /// of a CPU's lost lines.
    pub fn access<'a>(
        &self,
        losses: impl Fn(usize) -> &'a AtomicU32,
        number: usize,
        cpu: &mut Cpu,
        Request { kind, physical, virtual_address, block, access }: Request<'_>,
    ) -> Option<Outcome> {
        // A device's memory is none of the machine's.
        let home = self.homes.node(physical)?;
        let began_ps = cpu.ps;
        if cpu.flow.waits() {
            cpu.ps = cpu.ps.max(cpu.flow.ready_ps(access.address));
        }
        let waited = cpu.ps > began_ps;
        let mut shared = self.shared();
        let Shared { hardware, lost, user_dram } = &mut *shared;
        hardware.set_clock(number, cpu.ps);
        let node = self.nodes_of_cpus[number];
        let dram_before = hardware.counters().dram_between(node, home);
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
        if is_users(virtual_address) {
            user_dram[node * self.preset.nodes.len() + home] +=
                hardware.counters().dram_between(node, home) - dram_before;
        }
        drop(shared);
        self.count(number, cpu, &result, kind, virtual_address, physical);
        let line = self.line(virtual_address);
        cpu.filter.insert(line, losses(number).load(Ordering::Relaxed), kind != Kind::Read);
        if kind == Kind::Read && result.latency_ps > self.l2_ps && result.source != Source::L1 {
            cpu.flow.load(block, access, cpu.ps + result.latency_ps);
        }
        Some(Outcome { is_beyond: !matches!(result.source, Source::L1 | Source::L2), waited })
    }

    /// Counts an access, and samples it if its turn has come.
    #[inline]
    fn count(
        &self,
        number: usize,
        cpu: &mut Cpu,
        result: &nodewise_hardware::Access,
        kind: Kind,
        virtual_address: u64,
        physical_address: u64,
    ) {
        let source = match result.source {
            Source::L1 => return,
            Source::L2 => device::Source::L2,
            Source::Llc => device::Source::Llc,
            Source::RemoteLlc => device::Source::RemoteLlc,
            Source::LocalDram => device::Source::LocalDram,
            Source::RemoteDram { .. } => device::Source::RemoteDram,
        };
        let accesses = &mut cpu.accesses[source as usize];
        let writes = kind != Kind::Read;
        *(if writes { &mut accesses.writes } else { &mut accesses.reads }) += 1;
        accesses.latency_ps += result.latency_ps;
        let is_near = matches!(source, device::Source::L2 | device::Source::Llc);
        let period = self.device.period();
        if is_users(virtual_address) && cpu.samples(is_near, writes, period) {
            let (time_ps, latency_ps) = (cpu.ps, result.latency_ps);
            let record = Record {
                virtual_address,
                physical_address,
                time_ps,
                latency_ps,
                source,
                writes,
                weight: period,
            };
            self.device.sample(number, &record);
        }
    }

    /// Tells the guest's device of the machine's work, now and then.
    #[inline]
    fn tell(&self, now_ps: u64) {
        let due_ps = self.tell_ps.load(Ordering::Relaxed);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        if now_ps >= due_ps && self.tell_ps.compare_exchange(due_ps, now_ps + TELL_PS, set, get).is_ok() {
            let shared = self.shared();
            self.device.put_counts(&counts(shared.hardware.counters(), &shared.user_dram), now_ps);
        }
    }

    /// A CPU meets the others if it has run for a while: its time counts for them, and it waits for the
    /// slowest.
    #[inline]
    pub fn meet(&self, number: usize, cpu: &mut Cpu) {
        if cpu.ps >= cpu.met_ps + self.step_ps {
            self.publish(number, cpu);
            cpu.met_ps = cpu.ps;
            self.tell(cpu.ps);
            self.clock.advance(number, cpu.ps);
        }
    }

    fn publish(&self, number: usize, cpu: &mut Cpu) {
        cpu.ran_ps += cpu.ps.saturating_sub(cpu.runs_since_ps);
        cpu.runs_since_ps = cpu.ps;
        self.totals[number].instructions.store(cpu.instructions, Ordering::Relaxed);
        self.totals[number].ran_ps.store(cpu.ran_ps, Ordering::Relaxed);
        let Cpu { instructions, ran_ps, accesses, .. } = *cpu;
        self.device.put_cpu(number, &device::Cpu { instructions, ran_ps, accesses });
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

/// Whether an address is in the lower half, as all of programs are.
#[inline]
const fn is_users(virtual_address: u64) -> bool {
    virtual_address >> 63 == 0
}

fn open_device(path: &Path, shape: device::Shape) -> io::Result<Device<Mapping>> {
    let file = File::options().read(true).write(true).open(path)?;
    let bytes = device::bytes(&shape);
    if file.metadata()?.len() < bytes as u64 {
        return Err(io::Error::other("too small for the machine's counters"));
    }
    let memory = Mapping::of_file(&file, bytes).map_err(io::Error::other)?;
    Device::create(memory, shape).ok_or_else(|| io::Error::other("too small for the machine's counters"))
}

/// The machine's counters as the guest's device shows them.
fn counts(counters: &Counters, user_dram: &[u64]) -> device::Counts {
    let load = |load: &nodewise_hardware::Load| device::Load {
        bytes: load.bytes,
        busy_ps: load.busy_ps,
        wait_ps: load.wait_ps,
    };
    let pair = |index: usize| device::Pair {
        dram: counters.dram[index],
        latency_ps: counters.dram_latency_ps[index],
        written_back: counters.writebacks[index],
        user_dram: user_dram[index],
    };
    let node = |index: usize| device::Node {
        controller: load(&counters.controllers[index]),
        llc_misses: counters.llc_misses[index],
        remote_llc: counters.remote_llc[index],
    };
    device::Counts {
        cpus: Vec::new(),
        pairs: (0..counters.dram.len()).map(pair).collect(),
        nodes: (0..counters.nodes).map(node).collect(),
        links: counters.links.iter().map(load).collect(),
    }
}
