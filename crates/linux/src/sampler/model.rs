//! The counters and samples of a modelled machine, in a guest that has its time (`docs/modelled-guests.md`).
//!
//! A device of the machine shows them ([`nodewise_sys::device`]). A sample has a virtual and a physical
//! address, and no process. It belongs to a managed process in whose page tables the one leads to the other,
//! as `/proc/PID/pagemap` shows them (`Documentation/admin-guide/mm/pagemap.rst`). Samples that belong to
//! nobody managed are dropped and counted. Pages that were moved since are among these. The thread is the one
//! that ran on the CPU at the time, as the kernel's records of context switches say.

use super::cpus::Cpus;
use super::switches::Switches;
use super::{Counted, Interval, RawSample, Sampler};
use crate::kernel::now_ns;
use crate::{Error, ErrorKind};
use nodewise_engine::{
    Access, Counters, DataSource, Measure, PAGE_BYTES, Pid, SamplingRate, Tid, TrafficMatrix, VirtAddr,
    imbalance_percent,
};
use nodewise_sys::Mapping;
use nodewise_sys::device::{Accesses, Counts, DEVICE, Device, Missed, Pair, Record, Source, VENDOR};
use nodewise_sys::perf::Losses;
use nodewise_topology::{NodeId, Topology};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEVICES: &str = "/sys/bus/pci/devices";

/// Samples that are wanted in a second of the machine at its own speed: while pages are being placed, and
/// while little is to do.
const WANTED_PER_S: f64 = 2000.0;
const WANTED_CHEAP_PER_S: f64 = 500.0;
/// And in a second of the guest at least.
const WANTED_LEAST_PER_S: f64 = 100.0;
/// One of so many accesses is sampled until it is known how many there are.
const FIRST_PERIOD: u64 = 1 << 12;
/// And at most one of so few, lest few accesses make no samples at all for long.
const MOST_PERIOD: f64 = 16_777_216.0;
/// Page tables that are looked into for the samples of a drain: some 50 ms.
const MOST_LOOKS: usize = 1 << 15;
/// The machine's clock and the kernel's are known to be apart to within much less than this.
const CLOCKS_APART_NS: u64 = 10_000_000;
/// Page tables that are open at once: there may be more processes than descriptors.
const MOST_OPEN: usize = 64;

/// Bit 63 of a pagemap entry, and its bits 0 to 54.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// Samples by a modelled machine's device.
pub struct ModelSampler {
    device: Device<Mapping>,
    /// Locked, so that two managers do not take each other's samples.
    _file: File,
    cpus: Cpus,
    switches: Switches,
    /// The nodes of the topology, by the machine's.
    nodes: Vec<Option<nodewise_topology::NodeIndex>>,
    /// For each node of the topology, whether it has memory and CPUs.
    balanced: Vec<bool>,
    rate: SamplingRate,
    /// The managed processes, those that the last samples belonged to first.
    pids: Vec<Pid>,
    losses: Losses,
    /// Samples that belonged to managed processes, and to nobody managed.
    ours: u64,
    nobodys: u64,
    /// The counts when the sampler was opened, and at the last look.
    first: Counts,
    last: Counts,
    began_ns: u64,
    /// Accesses in a second that the machine could have sampled, in the last interval.
    per_s: Option<f64>,
    /// The kernel's clock less the machine's, in ns.
    ahead_ns: i128,
    /// The least of it in this interval: the device shows some moments late what the machine's clock says.
    least_ahead_ns: i128,
    /// The period when it was closed.
    ended_with: Option<u64>,
}

/// The second BAR of the first device that is one.
fn find(directory: &Path) -> Option<PathBuf> {
    let number = |path: PathBuf| {
        let text = fs::read_to_string(path).ok()?;
        u16::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    let mut devices: Vec<PathBuf> =
        fs::read_dir(directory).ok()?.flatten().map(|entry| entry.path()).collect();
    devices.sort_unstable();
    let is_one = |path: &PathBuf| {
        number(path.join("vendor")) == Some(VENDOR) && number(path.join("device")) == Some(DEVICE)
    };
    devices.into_iter().find(is_one).map(|path| path.join("resource2"))
}

impl ModelSampler {
    /// Finds the device and starts sampling.
    ///
    /// # Errors
    /// `Unsupported` there is no such device, or what it shows is no such machine; `NotPermitted` it is
    /// root's, or another manager's at the time.
    pub fn open(topology: &Topology) -> Result<Self, Error> {
        let none = || {
            Error::new(
                ErrorKind::Unsupported,
                "no modelled machine: this is no guest of 'nodewise rig --machine'",
            )
        };
        let path = find(Path::new(DEVICES)).ok_or_else(none)?;
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|error| Error::file(&path, "open", error))?;
        let bytes = file.metadata().map_err(|error| Error::file(&path, "look at", error))?.len();
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            let message = format!("{} is another manager's", path.display());
            Error::with_source(ErrorKind::NotPermitted, message, error)
        })?;
        let memory = Mapping::of_file(&file, bytes as usize).map_err(|error| {
            Error::with_source(ErrorKind::Unsupported, format!("cannot map {}", path.display()), error)
        })?;
        let device = Device::open(memory).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("{}: not a modelled machine's device", path.display()))
        })?;
        if !sees_frames() {
            let message = "page frames are not shown in /proc/self/pagemap (CAP_SYS_ADMIN)";
            return Err(Error::new(ErrorKind::NotPermitted, message));
        }
        let nodes = (0..device.shape().nodes).map(|node| topology.index_of(NodeId(node as u32))).collect();
        let balanced = topology.nodes().iter().map(|node| !node.cpus.is_empty() && node.may_have_memory());
        let counts = device.counts();
        let cpus = Cpus::new(Path::new("/"), topology);
        let ahead_ns = ahead_ns(&device);
        let mut sampler = Self {
            switches: Switches::open(cpus.online().iter().map(|cpu| cpu.0)),
            nodes,
            balanced: balanced.collect(),
            cpus,
            rate: SamplingRate::Accurate,
            pids: Vec::new(),
            losses: Losses::default(),
            ours: 0,
            nobodys: 0,
            first: counts.clone(),
            last: counts,
            began_ns: now_ns(),
            per_s: None,
            ended_with: None,
            ahead_ns,
            least_ahead_ns: ahead_ns,
            device,
            _file: file,
        };
        sampler.set_rate(SamplingRate::Accurate)?;
        Ok(sampler)
    }

    /// Takes the rate of accesses in the first moments for that of the first interval.
    fn first_rate(&mut self) {
        let since = self.device.counts().since(&self.first);
        let passed_ns = now_ns().saturating_sub(self.began_ns);
        if let Some(since) = since.filter(|_| passed_ns > 0) {
            self.per_s = Some(sampled(&since) * 1e9 / passed_ns as f64);
            self.device.set_period(self.period());
        }
    }

    /// One of so many accesses, for the samples that are wanted.
    fn period(&self) -> u64 {
        let wanted = match self.rate {
            SamplingRate::Accurate => WANTED_PER_S,
            SamplingRate::Cheap | SamplingRate::Paused => WANTED_CHEAP_PER_S,
        };
        let wanted = (wanted * 1000.0 / self.device.shape().slow_thousandths as f64).max(WANTED_LEAST_PER_S);
        self.per_s.map_or(FIRST_PERIOD, |per_s| (per_s / wanted).clamp(1.0, MOST_PERIOD) as u64)
    }

    /// The process that has the physical page at the virtual one.
    fn owner(&mut self, tables: &mut PageTables, page: u64, frame: u64) -> Option<Pid> {
        let at = self.pids.iter().position(|&pid| tables.frame(pid, page) == Some(frame))?;
        // The next sample is likely to be the same process's.
        self.pids[..=at].rotate_right(1);
        Some(self.pids[0])
    }

    fn sample(&self, cpu: usize, pid: Pid, record: &Record) -> Option<RawSample> {
        let cycle_ps = self.device.shape().cycle_fs as f64 / 1000.0;
        let time_ns = i128::from(record.time_ps / 1000) + self.ahead_ns;
        let time_ns = time_ns.clamp(0, i128::from(now_ns())) as u64;
        let ran = self.switches.thread(cpu as u32, time_ns).filter(|&(owner, _)| owner == pid);
        Some(RawSample {
            time_ns,
            address: VirtAddr(record.virtual_address),
            pid,
            tid: ran.map_or(Tid(pid.0), |(_, tid)| tid),
            accessor: self.cpus.node_of(cpu as u32)?,
            access: if record.writes { Access::Write } else { Access::Read },
            source: match record.source {
                Source::L2 | Source::Llc => DataSource::LocalCache,
                Source::RemoteLlc => DataSource::RemoteCache { modified: true },
                Source::LocalDram => DataSource::LocalDram,
                Source::RemoteDram => DataSource::RemoteDram { hops: 0 },
            },
            latency_cycles: (record.latency_ps as f64 / cycle_ps).min(f64::from(u32::MAX)) as u32,
            weight: u32::try_from(record.weight).unwrap_or(u32::MAX).max(1),
        })
    }

    /// The traffic by the topology's nodes.
    fn traffic(&self, counts: &Counts, of: fn(&Pair) -> u64) -> TrafficMatrix {
        let mut traffic = TrafficMatrix::new(self.balanced.len());
        let homes = self.nodes.len();
        for (index, pair) in counts.pairs.iter().enumerate() {
            if let (Some(from), Some(to)) = (self.nodes[index / homes], self.nodes[index % homes]) {
                traffic.add(from, to, of(pair) as f64);
            }
        }
        traffic
    }

    /// DRAM accesses in a microsecond, on the machine at its own speed.
    fn rate(&self, accesses: f64, duration_ns: u64) -> f64 {
        let slow = self.device.shape().slow_thousandths as f64 / 1000.0;
        accesses * 1000.0 / duration_ns.max(1) as f64 * slow
    }
}

/// The kernel's clock less what the device shows of the machine's, in ns.
fn ahead_ns(device: &Device<Mapping>) -> i128 {
    i128::from(now_ns()) - i128::from(device.time_ps() / 1000)
}

/// Accesses that may be sampled: those that the LLC of the CPU's node did not serve.
fn sampled(counts: &Counts) -> f64 {
    let beyond = [Source::RemoteLlc, Source::LocalDram, Source::RemoteDram].map(|source| source as usize);
    let accesses = counts.cpus.iter().flat_map(|cpu| beyond.map(|source| cpu.accesses[source]));
    accesses.map(|accesses| accesses.reads as f64 + accesses.writes as f64).sum()
}

/// DRAM accesses that instructions made: reads, and all others.
fn demanded(counts: &Counts) -> [f64; 2] {
    let dram = [Source::LocalDram, Source::RemoteDram].map(|source| source as usize);
    let of = |which: fn(&Accesses) -> u64| -> f64 {
        counts.cpus.iter().flat_map(|cpu| dram.map(|source| which(&cpu.accesses[source]) as f64)).sum()
    };
    [of(|accesses| accesses.reads), of(|accesses| accesses.writes)]
}

/// The share of reads among DRAM accesses, in percent.
fn read_percent(counts: &Counts) -> Option<f64> {
    let [reads, writes] = demanded(counts);
    (reads + writes > 0.0).then(|| 100.0 * reads / (reads + writes))
}

/// The share of DRAM accesses that were not prefetched, in percent. Each CPU's own are counted some moments
/// after the machine's.
fn demand_percent(counts: &Counts) -> Option<f64> {
    let all: u64 = counts.pairs.iter().map(|pair| pair.dram).sum();
    (all > 0).then(|| (100.0 * demanded(counts).iter().sum::<f64>() / all as f64).min(100.0))
}

/// Whether page frames are shown to this process.
fn sees_frames() -> bool {
    let word = Box::new(1_u8);
    let page = std::ptr::from_ref(&*word) as u64 / PAGE_BYTES;
    PageTables::default().frame(Pid(std::process::id()), page).is_some()
}

/// The page tables of processes, for the samples of a drain.
#[derive(Default)]
struct PageTables {
    open: BTreeMap<Pid, Option<File>>,
    looks: usize,
}

impl PageTables {
    /// The frame of a process's page, if one is there and shown.
    fn frame(&mut self, pid: Pid, page: u64) -> Option<u64> {
        self.looks += 1;
        if self.open.len() >= MOST_OPEN && !self.open.contains_key(&pid) {
            self.open.clear();
        }
        let file = self.open.entry(pid).or_insert_with(|| File::open(format!("/proc/{pid}/pagemap")).ok());
        let mut entry = [0; 8];
        file.as_ref()?.read_exact_at(&mut entry, page * 8).ok()?;
        let entry = u64::from_ne_bytes(entry);
        (entry & PRESENT != 0 && entry & FRAME != 0).then_some(entry & FRAME)
    }
}

impl Sampler for ModelSampler {
    fn name(&self) -> &'static str {
        "model"
    }

    fn description(&self) -> String {
        let period = self.ended_with.unwrap_or_else(|| self.device.period());
        let whose = match self.nobodys {
            0 => String::new(),
            nobodys => format!("; {nobodys} more belonged to no managed process, or their page had moved"),
        };
        format!("the modelled machine's device, one of {period} accesses to memory at the end{whose}")
    }

    fn is_proportional(&self) -> bool {
        true
    }

    fn follow(&mut self, pids: &mut dyn Iterator<Item = Pid>) {
        let present: Vec<Pid> = pids.collect();
        self.pids.retain(|pid| present.contains(pid));
        let new: Vec<Pid> = present.into_iter().filter(|pid| !self.pids.contains(pid)).collect();
        self.pids.extend(new);
    }

    /// A ring holds those of a second at the rate that is wanted, were they all one CPU's.
    fn drain_at_least_every(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn drain(&mut self, keep: &dyn Fn(Pid) -> bool, into: &mut Vec<RawSample>) {
        if self.pids.is_empty() {
            return; // they stay where they are until it is known whose they may be
        }
        let begin_ns = now_ns();
        self.least_ahead_ns = self.least_ahead_ns.min(ahead_ns(&self.device));
        let mut records = Vec::new();
        for cpu in 0..self.device.shape().cpus {
            let Missed { lost, malformed } = self.device.take(cpu, |record| records.push((cpu, record)));
            self.losses += Losses { lost, malformed, ..Losses::default() };
        }
        self.switches.read();
        if self.per_s.is_none() {
            self.first_rate();
        }
        records.sort_unstable_by_key(|(_, record)| record.virtual_address / PAGE_BYTES);
        let mut tables = PageTables::default();
        let mut seen = None;
        let count = records.len();
        for (done, (cpu, record)) in records.into_iter().enumerate() {
            let [page, frame] = [record.virtual_address, record.physical_address].map(|at| at / PAGE_BYTES);
            let owner = match seen {
                Some((place, owner)) if place == (page, frame) => owner,
                _ if tables.looks >= MOST_LOOKS => {
                    self.losses.lost += (count - done) as u64;
                    break;
                }
                _ => self.owner(&mut tables, page, frame).filter(|&pid| keep(pid)),
            };
            seen = Some(((page, frame), owner));
            let sample = owner.and_then(|pid| self.sample(cpu, pid, &record));
            *(if sample.is_some() { &mut self.ours } else { &mut self.nobodys }) += 1;
            into.extend(sample);
        }
        // A sample that the machine wrote meanwhile is taken the next time.
        self.switches.forget(begin_ns.saturating_sub(CLOCKS_APART_NS));
    }

    fn losses(&self) -> Losses {
        self.losses
    }

    fn set_rate(&mut self, rate: SamplingRate) -> Result<(), Error> {
        self.rate = rate;
        self.device.set_period(self.period());
        Ok(())
    }

    fn adapt(&mut self, _interval: &Interval) -> Result<(), Error> {
        self.set_rate(self.rate)
    }

    fn count(&mut self, duration_ns: u64, into: &mut Counters) {
        // The clocks drift apart.
        self.ahead_ns = std::mem::replace(&mut self.least_ahead_ns, i128::MAX).min(ahead_ns(&self.device));
        let now = self.device.counts();
        let since = now.since(&self.last);
        self.last = now;
        // Counts that shrink are no counts.
        let Some(since) = since else {
            self.losses.malformed += 1;
            return;
        };
        let traffic = self.traffic(&since, |pair| pair.dram);
        let total = traffic.total();
        self.per_s = Some(sampled(&since) * 1e9 / duration_ns.max(1) as f64);
        let cycle_ps = self.device.shape().cycle_fs as f64 / 1000.0;
        let mut sums = vec![(0.0, 0.0); self.balanced.len()];
        for (index, pair) in since.pairs.iter().enumerate() {
            if let Some(home) = self.nodes[index % self.nodes.len()] {
                let sum = &mut sums[home.get()];
                *sum = (sum.0 + pair.latency_ps as f64, sum.1 + pair.dram as f64);
            }
        }
        let latencies = sums.into_iter().map(|(ps, accesses)| ps / accesses.max(1.0) / cycle_ps).collect();
        let sum = |of: &dyn Fn(&nodewise_sys::device::Cpu) -> u64| -> f64 {
            since.cpus.iter().map(|cpu| of(cpu) as f64).sum()
        };
        into.access_rate = Measure::Measured(self.rate(total, duration_ns));
        into.controller_loads = Measure::Measured(traffic.controller_loads());
        into.traffic = Measure::Measured(traffic);
        into.user_traffic = Measure::Measured(self.traffic(&since, |pair| pair.user_dram));
        into.read_percent = read_percent(&since).map_or(Measure::Unknown, Measure::Measured);
        into.demand_percent = demand_percent(&since).map_or(Measure::Unknown, Measure::Measured);
        into.latency_cycles = Measure::Measured(latencies);
        into.instructions = Measure::Measured(sum(&|cpu| cpu.instructions));
        into.cycles = Measure::Measured(sum(&|cpu| cpu.ran_ps) / cycle_ps);
        let mut llc_cycles = vec![0.0; self.balanced.len()];
        for (number, cpu) in since.cpus.iter().enumerate() {
            if let Some(node) = self.cpus.node_of(number as u32) {
                llc_cycles[node.get()] += cpu.accesses[Source::Llc as usize].latency_ps as f64 / cycle_ps;
            }
        }
        into.llc_cycles = Measure::Measured(llc_cycles);
        into.cache_misses = Measure::Measured(since.nodes.iter().map(|node| node.llc_misses as f64).sum());
    }

    fn counted(&self) -> Option<Counted> {
        let since = self.last.since(&self.first)?;
        let shape = self.device.shape();
        let traffic = self.traffic(&since, |pair| pair.dram);
        let duration_ns = now_ns().saturating_sub(self.began_ns).max(1);
        let latency_ps: f64 = since.pairs.iter().map(|pair| pair.latency_ps as f64).sum();
        let use_percent = |busy_ps: u64| 100.0 * busy_ps as f64 / (duration_ns as f64 * 1000.0);
        let nodes = self.balanced.len();
        let index = |node: usize| nodewise_topology::NodeIndex(node as u8);
        let row = |from: usize| (0..nodes).map(|to| traffic.get(index(from), index(to)) as u64).collect();
        Some(Counted {
            accesses_per_us: self.rate(traffic.total(), duration_ns),
            local_access_percent: traffic.local_access_percent(),
            controller_imbalance_percent: imbalance_percent(&traffic.controller_loads(), &self.balanced),
            read_percent: read_percent(&since),
            dram_latency_cycles: latency_ps / traffic.total().max(1.0) * 1000.0 / shape.cycle_fs as f64,
            controller_use_percent: since
                .nodes
                .iter()
                .map(|node| use_percent(node.controller.busy_ps))
                .collect(),
            link_use_percent: since.links.iter().map(|link| use_percent(link.busy_ps)).collect(),
            traffic: (0..nodes).map(row).collect(),
        })
    }

    fn close(&mut self) -> Result<(), Error> {
        self.last = self.device.counts();
        self.ended_with = Some(self.device.period());
        self.device.set_period(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_is_known_by_its_numbers() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(find(directory.path()), None);
        for (name, vendor, device) in [
            ("0000:00:01.0", "0x8086", "0x1110"),
            ("0000:00:02.0", "0x1af4", "0x1000"),
            ("0000:00:03.0", "0x1af4", "0x1110"),
        ] {
            assert_eq!(find(directory.path()), None);
            let device_directory = directory.path().join(name);
            fs::create_dir(&device_directory).unwrap();
            fs::write(device_directory.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(device_directory.join("device"), format!("{device}\n")).unwrap();
        }
        assert_eq!(find(directory.path()), Some(directory.path().join("0000:00:03.0/resource2")));
    }

    #[test]
    fn a_frame_is_its_owners_alone() {
        // Frames are root's to see.
        if !sees_frames() {
            return;
        }
        let words = vec![1_u8; 1 << 16];
        let page = words.as_ptr() as u64 / PAGE_BYTES + 1;
        let me = Pid(std::process::id());
        let mut tables = PageTables::default();
        let frame = tables.frame(me, page).unwrap();
        assert_ne!(tables.frame(me, page + 1), Some(frame));
        assert_eq!(tables.frame(me, 1), None, "nothing is mapped there");
        assert_eq!(tables.frame(Pid(u32::MAX), page), None, "there is no such process");
        assert_eq!(tables.frame(me, u64::MAX / 8 - 1), None);
    }
}
