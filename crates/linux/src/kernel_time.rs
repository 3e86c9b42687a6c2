//! The CPU time that the kernel takes for processes: for its NUMA balancing, and for memory that they take
//! from it and give back again and again. Samples of the clock find it by functions of the kernel.
//!
//! While interrupts are off no sample is taken, and its time counts for whatever runs next. So a CPU that
//! flushes its TLB for another one's sake has that time as its program's own.

use crate::Error;
use crate::in_order::InOrder;
use crate::kernel::vmstat_count;
use crate::sampler::{CpuClockEvents, Time};
use nodewise_engine::Pid;
use nodewise_sys::{Clock, clock_ns};
use nodewise_topology::{NodeIndex, Topology};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::fs;

/// Distinct call chains that are kept.
const MOST_CHAINS: usize = 1 << 14;
/// A share of the kernel's below which nobody asks for what, in percent: its symbols are some 10 MB.
const LEAST_PERCENT: f64 = 1.0;

/// CPU time of processes, in percent of all that they used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelShares {
    /// Samples, one every 4 ms of CPU time.
    pub samples: u64,
    /// Samples that were lost meanwhile, of all processes of the machine.
    #[serde(default)]
    pub samples_lost: u64,
    /// In the kernel.
    pub kernel_percent: f64,
    /// That of its NUMA balancing: marking pages, hint faults, migrations. If hint faults are sampled
    /// meanwhile, that is in it.
    pub balancing_percent: f64,
    /// That of giving memory back, and of calls that have others' TLBs flushed: munmap, madvise, mprotect. It
    /// is of processes that were there from the beginning: one that begins takes memory, and gives some back.
    pub returning_percent: f64,
    /// That of taking memory: page faults, and mmap. It is of the same processes.
    pub taking_percent: f64,
    /// On each node.
    pub runs_on: Vec<f64>,
}

impl KernelShares {
    /// So many lost for each that was taken may change what the shares say.
    const MANY_LOST: f64 = 0.05;

    /// Words for a reader, if many samples were lost.
    #[must_use]
    pub fn losses(&self) -> Option<String> {
        let many = self.samples_lost as f64 > Self::MANY_LOST * self.samples as f64;
        many.then(|| {
            format!("{} samples lost, of all processes, and {} taken", self.samples_lost, self.samples)
        })
    }
}

/// Watches the CPU time of processes, and of what they start.
pub struct KernelTime {
    events: CpuClockEvents,
    pending: InOrder<Time>,
    counts: Counts,
    /// When it began.
    faults: Faults,
}

impl KernelTime {
    /// Watches from now on.
    ///
    /// # Errors
    /// The event is refused: it takes `CAP_PERFMON` or `perf_event_paranoid` at most 0.
    pub fn open(topology: &Topology, pids: impl IntoIterator<Item = Pid>) -> Result<Self, Error> {
        let first: BTreeSet<Pid> = pids.into_iter().collect();
        let counts = Counts {
            followed: first.clone(),
            first,
            by_node: vec![0; topology.nodes().len()],
            in_kernel: 0,
            chains: HashMap::new(),
        };
        let events = CpuClockEvents::open(topology)?;
        Ok(Self { events, pending: InOrder::default(), counts, faults: Faults::now() })
    }

    /// Watches these from when it was opened, with all that they have started since.
    pub fn follow(&mut self, pids: impl IntoIterator<Item = Pid>) {
        let Counts { followed, first, .. } = &mut self.counts;
        first.extend(pids);
        followed.extend(first.iter());
    }

    /// Takes in what has happened. To be called once a second or so: a ring holds as much.
    pub fn drain(&mut self) {
        let begin = clock_ns(Clock::Monotonic).unwrap_or(u64::MAX);
        self.read();
        self.take(begin);
    }

    fn read(&mut self) {
        let Self { events, pending, .. } = self;
        events.read(|time_ns, time| pending.add(time_ns, time));
    }

    /// Takes in what has happened until then.
    fn take(&mut self, until_ns: u64) {
        let Self { pending, counts, .. } = self;
        pending.until(until_ns).for_each(|time| counts.take_in(time));
    }

    /// Everything that was learnt. None where no sample was taken.
    #[must_use]
    pub fn finish(mut self) -> Option<KernelShares> {
        self.read();
        self.take(u64::MAX);
        let symbols = || Symbols::parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default());
        let shares = self.counts.shares(Faults::now().hint_share_since(&self.faults), symbols);
        shares.map(|shares| KernelShares { samples_lost: self.events.lost(), ..shares })
    }
}

/// Page faults of the whole machine so far, and how many of them were hint faults.
#[derive(Clone, Copy, Debug)]
struct Faults {
    all: u64,
    hint: u64,
}

impl Faults {
    fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/vmstat").unwrap_or_default())
    }

    fn parse(vmstat: &str) -> Self {
        Self { all: vmstat_count(vmstat, "pgfault"), hint: vmstat_count(vmstat, "numa_hint_faults") }
    }

    fn hint_share_since(self, before: &Self) -> f64 {
        let (all, hint) = (self.all.saturating_sub(before.all), self.hint.saturating_sub(before.hint));
        (hint as f64 / all.max(1) as f64).min(1.0)
    }
}

/// Samples by code.
struct Counts {
    followed: BTreeSet<Pid>,
    /// Processes that were there from the beginning.
    first: BTreeSet<Pid>,
    by_node: Vec<u64>,
    in_kernel: u64,
    /// Samples in the kernel by call chain, and whether they are of the first processes.
    chains: HashMap<(bool, Vec<u64>), u64>,
}

impl Counts {
    fn take_in(&mut self, time: Time) {
        match time {
            Time::Forked { parent, child } => {
                if self.followed.contains(&parent) {
                    self.followed.insert(child);
                }
            }
            Time::Ran { pid, node, in_kernel } => {
                if self.followed.contains(&pid) {
                    self.count(pid, node, in_kernel);
                }
            }
        }
    }

    fn count(&mut self, pid: Pid, node: NodeIndex, in_kernel: Option<Vec<u64>>) {
        self.by_node[node.get()] += 1;
        let Some(chain) = in_kernel else { return };
        self.in_kernel += 1;
        let chain = (self.first.contains(&pid), chain);
        if self.chains.len() < MOST_CHAINS || self.chains.contains_key(&chain) {
            *self.chains.entry(chain).or_default() += 1;
        }
    }

    /// Such a share of all faults are hint faults.
    fn shares(&self, hint_share: f64, symbols: impl FnOnce() -> Symbols) -> Option<KernelShares> {
        let samples: u64 = self.by_node.iter().sum();
        let percent = |count: u64| 100.0 * count as f64 / samples as f64;
        let kernel_percent = percent(self.in_kernel);
        let mut shares = KernelShares {
            samples,
            kernel_percent,
            runs_on: self.by_node.iter().map(|&count| percent(count)).collect(),
            ..KernelShares::default()
        };
        if kernel_percent >= LEAST_PERCENT {
            let symbols = symbols();
            for ((is_first, chain), &count) in &self.chains {
                let (all, first) = (percent(count), if *is_first { percent(count) } else { 0.0 });
                match symbols.cause(chain) {
                    Some(Cause::Balancing) => shares.balancing_percent += all,
                    Some(Cause::Returning) => shares.returning_percent += first,
                    Some(Cause::Taking) => shares.taking_percent += first,
                    Some(Cause::Fault) => {
                        shares.balancing_percent += hint_share * all;
                        shares.taking_percent += (1.0 - hint_share) * first;
                    }
                    None => {}
                }
            }
        }
        (samples > 0).then_some(shares)
    }
}

/// The reason for which the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Balancing,
    Returning,
    Taking,
    /// Taking memory or a hint fault.
    Fault,
}

impl Cause {
    /// By the name of a function. These are Linux 5.10 to 6.18's (`mm/memory.c`, `mm/huge_memory.c`,
    /// `mm/migrate.c`, `kernel/sched/fair.c`, and the entries of system calls and faults of x86 and Arm).
    /// Compilers have some of them as a part of others: Debian's 6.12 has no `do_numa_page`.
    fn of(function: &str) -> Option<Self> {
        // A compiler marks copies of a function: `do_numa_page.isra.0`.
        let name = function.split('.').next().unwrap_or_default();
        match name {
            "do_numa_page"
            | "do_huge_pmd_numa_page"
            | "numa_migrate_check"
            | "task_numa_work"
            | "task_numa_fault"
            | "change_prot_numa"
            | "migrate_misplaced_page"
            | "migrate_misplaced_folio"
            | "migrate_misplaced_transhuge_page" => return Some(Self::Balancing),
            "do_anonymous_page"
            | "do_huge_pmd_anonymous_page"
            | "do_fault"
            | "do_swap_page"
            | "do_wp_page"
            | "hugetlb_fault"
            | "clear_page_erms"
            | "clear_page_rep"
            | "clear_page_orig"
            | "clear_huge_page"
            | "folio_zero_user" => return Some(Self::Taking),
            "handle_mm_fault" | "do_user_addr_fault" | "do_page_fault" | "exc_page_fault" => {
                return Some(Self::Fault);
            }
            _ => {}
        }
        match name.split_once("_sys_")?.1 {
            "munmap" | "madvise" | "mprotect" | "mremap" | "brk" => Some(Self::Returning),
            "mmap" => Some(Self::Taking),
            _ => None,
        }
    }
}

/// The functions of the kernel in the order of addresses, each with what it runs for.
struct Symbols(Vec<(u64, Option<Cause>)>);

impl Symbols {
    /// `/proc/kallsyms`, whose addresses are 0 for whoever may not see them.
    fn parse(text: &str) -> Self {
        let symbol = |line: &str| {
            let mut words = line.split_ascii_whitespace();
            let address = u64::from_str_radix(words.next()?, 16).ok().filter(|&address| address != 0)?;
            let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
            is_code.then_some((address, Cause::of(words.next()?)))
        };
        let mut symbols: Vec<_> = text.lines().filter_map(symbol).collect();
        // If an address has several names, one that says what for comes last, and counts.
        symbols.sort_unstable_by_key(|&(address, cause)| (address, cause.is_some()));
        Self(symbols)
    }

    /// The reason of the innermost function that has one.
    fn cause(&self, chain: &[u64]) -> Option<Cause> {
        chain.iter().find_map(|&address| {
            let next = self.0.partition_point(|&(start, _)| start <= address);
            self.0.get(next.checked_sub(1)?)?.1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use nodewise_sys::{Whose, usage};
    use std::time::{Duration, Instant};

    const SYMBOLS: &str = "\
ffffffff81000000 T _stext
ffffffff81000100 T __x64_sys_munmap
ffffffff81000100 T __ia32_sys_munmap
ffffffff81000200 t do_numa_page.isra.0
ffffffff81000300 T handle_mm_fault
ffffffff81000400 T __do_sys_getpid
ffffffff81000500 D do_numa_page
ffffffff81000600 T __arm64_sys_madvise
ffffffff81000700 t flush_tlb_mm_range
ffffffff81000800 t do_anonymous_page
ffffffffc0000000 t read\t[driver]
";

    #[test]
    fn the_innermost_function_with_a_cause_tells() {
        let symbols = Symbols::parse(SYMBOLS);
        let at = |low: u64| 0xffff_ffff_8100_0000 + low;
        for (chain, expected) in [
            (vec![at(0x720), at(0x140)], Some(Cause::Returning)),
            (vec![at(0x710), at(0x640)], Some(Cause::Returning)),
            (vec![at(0x210), at(0x310)], Some(Cause::Balancing)),
            (vec![at(0x10), at(0x310)], Some(Cause::Fault)),
            (vec![at(0x10), at(0x810), at(0x310)], Some(Cause::Taking)),
            (vec![at(0x410)], None),
            (vec![0xffff_ffff_c000_0010], None),
            (vec![0x10], None),
            (vec![], None),
        ] {
            assert_eq!(symbols.cause(&chain), expected, "{chain:x?}");
        }
        let hidden = "0000000000000000 T __x64_sys_munmap\n";
        assert_eq!(Symbols::parse(hidden).cause(&[at(0x140)]), None);
    }

    fn counts(samples: &[(u64, u64)], in_user_mode: u64) -> Counts {
        let all = in_user_mode + samples.iter().map(|(_, count)| count).sum::<u64>();
        // The last one is of a process that began meanwhile.
        let is_first = |at| at + 1 < samples.len();
        let chain = |low| vec![0xffff_ffff_8100_0000 + low];
        let chains = samples.iter().enumerate();
        Counts {
            followed: BTreeSet::new(),
            first: BTreeSet::new(),
            by_node: vec![all / 4, all - all / 4],
            in_kernel: all - in_user_mode,
            chains: chains.map(|(at, &(low, count))| ((is_first(at), chain(low)), count)).collect(),
        }
    }

    #[test]
    fn shares_are_of_all_the_time() {
        let counts = counts(&[(0x210, 30), (0x110, 10), (0x310, 10), (0x810, 10), (0x310, 40)], 100);
        let of = |hint_share| counts.shares(hint_share, || Symbols::parse(SYMBOLS)).unwrap();
        let shares = of(0.0);
        let expected = KernelShares {
            samples: 200,
            samples_lost: 0,
            kernel_percent: 50.0,
            balancing_percent: 15.0,
            returning_percent: 5.0,
            taking_percent: 10.0,
            runs_on: vec![25.0, 75.0],
        };
        assert_eq!(shares, expected);
        // Balancing is of the last process, too.
        let half = KernelShares { balancing_percent: 27.5, taking_percent: 7.5, ..expected };
        assert_eq!(of(0.5), half);
    }

    #[test]
    fn grandchildren_count_in_whatever_order_rings_tell_of_them() {
        let mut counts = counts(&[], 0);
        counts.followed.insert(Pid(1));
        let ran = |pid| Time::Ran { pid: Pid(pid), node: NodeIndex(1), in_kernel: None };
        let forked = |parent, child| Time::Forked { parent: Pid(parent), child: Pid(child) };
        let mut pending = InOrder::default();
        let mut read = |news: Vec<(u64, Time)>, begin| {
            for (time_ns, time) in news {
                pending.add(time_ns, time);
            }
            pending.until(begin).for_each(|time| counts.take_in(time));
            counts.by_node[1]
        };
        // The ring of one CPU, then that of another.
        let one = [(30, ran(3)), (41, ran(4)), (20, forked(2, 3)), (5, ran(9)), (4, forked(8, 9))];
        let other = [(8, ran(1)), (10, forked(1, 2)), (40, forked(3, 4))];
        assert_eq!(read(one.into_iter().chain(other).collect(), 100), 3, "all but the stranger");
        assert_eq!(read(vec![], 200), 3, "each once");
        assert_eq!(read(vec![(210, ran(4))], 300), 4);
        // The first ring was read before the child's fork, and the second after the grandchild's.
        assert_eq!(read(vec![(320, forked(5, 6)), (330, ran(6))], 305), 4, "not before it is known");
        assert_eq!(read(vec![(310, forked(1, 5))], 400), 5);
        assert!(counts.followed.contains(&Pid(6)) && !counts.followed.contains(&Pid(9)));
    }

    #[test]
    fn hint_faults_are_a_share_of_all() {
        let before =
            Faults::parse("pgfault 100\npgmajfault 7\nnuma_hint_faults 10\nnuma_hint_faults_local 9\n");
        let after = Faults::parse("numa_hint_faults 85\npgfault 200\n");
        assert!((after.hint_share_since(&before) - 0.75).abs() < 1e-9);
        // Without balancing, and where nothing has happened.
        assert!(Faults::parse("pgfault 500\n").hint_share_since(&Faults::parse("pgfault 1\n")) < 1e-9);
        assert!(after.hint_share_since(&after) < 1e-9);
    }

    #[test]
    fn nothing_is_read_for_a_program_that_hardly_enters_the_kernel() {
        let shares = counts(&[(0x210, 1)], 1000).shares(0.0, || unreachable!()).unwrap();
        assert!(shares.kernel_percent < 0.2 && shares.balancing_percent == 0.0, "{shares:?}");
        assert_eq!(counts(&[], 0).shares(0.0, || unreachable!()), None);
    }

    /// Beside the kernel's own account of this process, which takes samples, too.
    #[test]
    fn a_process_that_maps_memory_again_and_again_is_seen_at_it() {
        let topology = Topology::live().unwrap();
        let mut time = match KernelTime::open(&topology, [Pid(std::process::id())]) {
            Err(error) if error.kind() == ErrorKind::NotPermitted => return,
            opened => opened.unwrap(),
        };
        let began = usage(Whose::Process).unwrap();
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            // So large that malloc maps it, and gives it back.
            std::hint::black_box(vec![1_u8; 64 << 20]);
            time.drain();
        }
        let shares = time.finish().unwrap();
        let ended = usage(Whose::Process).unwrap();
        let (user, system) = (ended.user_ns - began.user_ns, ended.system_ns - began.system_ns);
        let accounted = 100.0 * system as f64 / (user + system) as f64;
        assert!(shares.samples > 50, "{shares:?}");
        assert!((shares.kernel_percent - accounted).abs() < 25.0, "{shares:?}, {accounted} % accounted");
        // Symbols may be hidden where the clock is not.
        if shares.taking_percent + shares.returning_percent > 0.0 {
            assert!(shares.taking_percent > 20.0 && shares.returning_percent > 0.2, "{shares:?}");
            assert!(shares.balancing_percent < 1.0, "{shares:?}");
        }
    }

    /// Threads that begin and end are records, too, and fill the rings.
    #[test]
    fn what_rings_had_no_room_for_is_counted() {
        let topology = Topology::live().unwrap();
        let lost = |drains: bool| {
            let mut time = match KernelTime::open(&topology, [Pid(std::process::id())]) {
                Err(error) if error.kind() == ErrorKind::NotPermitted => return None,
                opened => opened.unwrap(),
            };
            for _ in 0..200 {
                (0..50).for_each(|_| std::thread::spawn(|| ()).join().unwrap());
                if drains {
                    time.drain();
                }
            }
            Some(time.finish().unwrap().samples_lost)
        };
        let Some(undrained) = lost(false) else { return };
        let drained = lost(true).unwrap();
        assert!(undrained > 1000 && drained < undrained / 10, "{undrained}, {drained}");
    }
}
