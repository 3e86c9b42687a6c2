//! Gill and Peri, "Measure the Impact of NUMA Migrations on Performance" (Intel, updated 2019).
//!
//! The program writes its memory once and its threads stay where they are, so all it meets of the kernel's
//! balancing is the scanner's first pass and the first fault of each page. That much is modelled here, on the
//! bare hardware, as kernels of the article's time did it: 4.5 (threads rest after they scanned) to 4.17 (new
//! threads scan as fast as old ones, and what a node receives is limited).

use super::{Options, Progress, Row, Study, Tolerance};
use crate::Error;
use crate::{
    bare,
    workloads::{Parameters, bandwidth::Micro},
};
use nodewise_hardware::{Hardware, Preset};

const MACHINE: &str = "xeon-5120-4s";
/// Memory, caches and the kernel's times and sizes relative to the article's and Linux's: durations shrink
/// with the data, so that rates (bytes a second that are scanned) and costs of a page stay.
const SCALE: f64 = 1.0 / 2048.0;
/// Threads of the runs on one socket; the article's text does not say which its figure has.
const ON_ONE_SOCKET: [usize; 5] = [1, 2, 4, 7, 14];
/// Sizes as parts of 160 GB: 20, 40, 80, 160 GB.
const SIZES: [f64; 4] = [0.125, 0.25, 0.5, 1.0];

/// Time of a fault on a page that the scanner marked. It is an estimate without a source, as are the next
/// three.
const HINT_FAULT_PS: u64 = 1_000_000;
/// Time of migrating a page beside copying it: isolation, unmapping, shootdown, allocation.
const MIGRATION_PS: u64 = 3_000_000;
/// Time of the first touch of a page, which clears it.
const FIRST_TOUCH_PS: u64 = 1_000_000;
/// Time of marking a page.
const MARK_PS: u64 = 50_000;
/// `scan_delay_ms`, `scan_size_mb`, `scan_period_min_ms`, and the least period for that size (2560 MB/s):
/// Linux 4.17, kernel/sched/fair.c.
const SCAN_DELAY_PS: f64 = 1e12;
const SCAN_BYTES: f64 = 256.0 * 1024.0 * 1024.0;
const PERIOD_MIN_PS: f64 = 1e12;
const PERIOD_FLOOR_PS: f64 = 100e9;
/// Memory that a node receives in a window at most (`ratelimit_pages`, `migrate_interval_millisecs`:
/// mm/migrate.c, until Linux 4.19).
const WINDOW_BYTES: f64 = 128.0 * 1024.0 * 1024.0;
const WINDOW_PS: f64 = 100e9;
/// How much longer than it scanned a thread has to run before it scans again (`task_numa_work`).
const REST: u64 = 32;

const PAGE: u64 = 4096;

/// The kernel's work on the program's pages.
struct Kernel {
    node_of: Vec<usize>,
    base: u64,
    pages: Vec<Page>,
    free: Vec<u64>,
    balancing: Option<Scanner>,
    migrated: u64,
    /// When the last page was touched first: the memory is allocated, and the writing begins.
    allocated_ps: u64,
}

#[derive(Clone, Copy, Default)]
struct Page {
    home: Option<usize>,
    marked: bool,
}

/// The balancing's scanner: marks so many pages at a time, from the start of the address space on.
///
/// Threads scan, in their own time: each that has run for its period since it last tried, unless another
/// scanned within that one's period (`task_tick_numa`, `task_numa_work`). A thread's period is the scan delay
/// until it first tries, then follows from the memory there is (`task_scan_min`); it changes when all memory
/// was scanned once, which this program does not live to see.
struct Scanner {
    /// When somebody may scan next.
    next_ps: u64,
    pages: usize,
    at: usize,
    threads: Vec<Turn>,
    /// The end of each node's window, and the pages that the node received in it.
    received: Vec<(u64, usize)>,
    scale: f64,
}

/// When a thread tries to scan.
#[derive(Clone, Copy)]
#[expect(clippy::struct_field_names, reason = "they are times")]
struct Turn {
    /// When it began to run, once it has.
    began_ps: Option<u64>,
    /// Its run time up to the last try, and between tries.
    stamp_ps: u64,
    period_ps: u64,
}

impl Kernel {
    fn new(preset: &Preset, base: u64, bytes: u64, scale: f64, balancing: bool) -> Self {
        let pages = vec![Page::default(); bytes.div_ceil(PAGE) as usize];
        let turn = Turn { began_ps: None, stamp_ps: 0, period_ps: (SCAN_DELAY_PS * scale) as u64 };
        let scanner = Scanner {
            next_ps: (SCAN_DELAY_PS * scale) as u64,
            pages: ((SCAN_BYTES * scale) as u64 / PAGE).max(1) as usize,
            at: 0,
            threads: vec![turn; preset.cpus()],
            received: vec![(0, 0); preset.nodes.len()],
            scale,
        };
        let free = |node: &nodewise_hardware::Node| (node.memory_bytes as f64 * scale) as u64 / PAGE;
        Self {
            node_of: preset.nodes_of_cpus(),
            base,
            pages,
            free: preset.nodes.iter().map(free).collect(),
            balancing: balancing.then_some(scanner),
            migrated: 0,
            allocated_ps: 0,
        }
    }

    /// The node of an address, after whatever faults its page takes.
    fn home(&mut self, hardware: &mut Hardware, core: usize, address: u64) -> usize {
        self.scan(hardware, core);
        let index = ((address - self.base) / PAGE) as usize;
        match self.pages[index] {
            Page { home: None, .. } => self.touch_first(hardware, core, index),
            Page { home: Some(home), marked: false } => home,
            Page { home: Some(home), marked: true } => self.hint_fault(hardware, core, index, home),
        }
    }

    fn touch_first(&mut self, hardware: &mut Hardware, core: usize, index: usize) -> usize {
        let node = self.node_of[core];
        let nodes = self.free.len();
        // A full node's pages go to the next: as far as the article's sizes go, there is one.
        let home =
            (node..node + nodes).map(|node| node % nodes).find(|&node| self.free[node] > 0).unwrap_or(node);
        self.free[home] = self.free[home].saturating_sub(1);
        self.pages[index].home = Some(home);
        hardware.set_clock(core, hardware.clock(core) + FIRST_TOUCH_PS);
        self.allocated_ps = self.allocated_ps.max(hardware.clock(core));
        home
    }

    /// A page that was marked. No thread has been through four scans, so the first fault moves it, if there
    /// is room.
    fn hint_fault(&mut self, hardware: &mut Hardware, core: usize, index: usize, home: usize) -> usize {
        self.pages[index].marked = false;
        let start_ps = hardware.clock(core) + HINT_FAULT_PS;
        hardware.set_clock(core, start_ps);
        let node = self.node_of[core];
        let mut receives = || self.balancing.as_mut().is_some_and(|scanner| scanner.receives(node, start_ps));
        if home == node || self.free[node] == 0 || !receives() {
            return home;
        }
        let copied_ps = hardware.copy_page(start_ps, home, node, PAGE);
        hardware.set_clock(core, copied_ps + MIGRATION_PS);
        hardware.forget(self.base + index as u64 * PAGE, PAGE);
        self.free[home] += 1;
        self.free[node] -= 1;
        self.pages[index].home = Some(node);
        self.migrated += 1;
        node
    }

    fn scan(&mut self, hardware: &mut Hardware, core: usize) {
        let Some(scanner) = &mut self.balancing else { return };
        let now_ps = hardware.clock(core);
        let turn = &mut scanner.threads[core];
        let ran_ps = now_ps - *turn.began_ps.get_or_insert(now_ps);
        if ran_ps <= turn.stamp_ps + turn.period_ps {
            return;
        }
        let last_ps = turn.stamp_ps;
        turn.stamp_ps += turn.period_ps;
        if last_ps == 0 {
            let resident = self.pages.iter().filter(|page| page.home.is_some()).count();
            let windows = resident.div_ceil(scanner.pages).max(1) as f64;
            turn.period_ps = ((PERIOD_MIN_PS / windows).max(PERIOD_FLOOR_PS) * scanner.scale) as u64;
        }
        if now_ps < scanner.next_ps {
            return;
        }
        scanner.next_ps = now_ps + turn.period_ps;
        let mut left = scanner.pages;
        // A page that is not there yet is passed over.
        while left > 0 && scanner.at < self.pages.len() {
            let page = &mut self.pages[scanner.at];
            if page.home.is_some() {
                page.marked = true;
                left -= 1;
            }
            scanner.at += 1;
        }
        if scanner.at == self.pages.len() {
            scanner.at = 0;
        }
        let scanned_ps = (scanner.pages - left) as u64 * MARK_PS;
        scanner.threads[core].stamp_ps += REST * scanned_ps;
        hardware.set_clock(core, now_ps + scanned_ps);
    }
}

impl Scanner {
    /// Whether a node may receive one more page (`numamigrate_update_ratelimit`).
    fn receives(&mut self, node: usize, now_ps: u64) -> bool {
        let (end_ps, pages) = &mut self.received[node];
        if now_ps > *end_ps {
            (*end_ps, *pages) = (now_ps + (WINDOW_PS * self.scale) as u64, 0);
        }
        let room = *pages <= (WINDOW_BYTES * self.scale) as usize / PAGE as usize;
        *pages += usize::from(room);
        room
    }
}

/// One run of the program.
#[derive(Clone, Copy)]
struct Run {
    blocked: bool,
    threads: usize,
    size: f64,
    balancing: bool,
}

/// The result of one run.
#[derive(Clone, Copy)]
struct Outcome {
    time_ps: f64,
    migrated: f64,
}

impl Run {
    fn run(self, options: &Options) -> Result<Outcome, Error> {
        let scale = SCALE * options.scale;
        let preset = Preset::named(MACHINE)?.scaled(scale);
        let parameters = Parameters { threads: self.threads, scale: scale * self.size, seed: options.seed };
        let micro = if self.blocked { Micro::blocked(parameters) } else { Micro::interleaved(parameters) };
        let mut micro = micro.and_allocators(preset.nodes.len());
        let area = crate::Program::areas(&micro)[0].clone();
        let mut kernel = Kernel::new(&preset, area.base, area.bytes, scale, self.balancing);
        // Writers fill the sockets one after the other; then one allocator for each node, on its first core.
        let mut cores: Vec<usize> = (0..self.threads).collect();
        cores.extend((0..preset.nodes.len()).map(|node| node * preset.nodes[0].cores));
        let outcome =
            bare::run(&preset, &mut micro, &cores, |hw, core, address| kernel.home(hw, core, address))?;
        let time_ps = (outcome.time_ps - kernel.allocated_ps) as f64;
        Ok(Outcome { time_ps, migrated: kernel.migrated as f64 })
    }
}

/// Runs the study.
pub fn run(options: &Options, progress: Progress<'_>) -> Result<Study, Error> {
    let mut runs = Vec::new();
    for blocked in [false, true] {
        for size in SIZES {
            runs.push(Run { blocked, threads: 56, size, balancing: true });
        }
        for threads in ON_ONE_SOCKET {
            for balancing in [true, false] {
                runs.push(Run { blocked, threads, size: 1.0, balancing });
            }
        }
    }
    let results: Vec<Outcome> = super::in_parallel(&runs, options.jobs, progress, |run| run.run(options))
        .into_iter()
        .collect::<Result<_, _>>()?;
    let (interleaved, blocked) = results.split_at(results.len() / 2);
    let growth = |results: &[Outcome]| {
        let steps =
            results[..SIZES.len()].windows(2).map(|pair| pair[1].migrated / pair[0].migrated.max(1.0));
        steps.fold(f64::INFINITY, f64::min)
    };
    let gain = |results: &[Outcome]| {
        let logs: f64 =
            results[SIZES.len()..].chunks(2).map(|pair| (pair[0].time_ps / pair[1].time_ps).ln()).sum();
        (logs / ON_ONE_SOCKET.len() as f64).exp()
    };
    let (all, of_40) = (SIZES.len() - 1, 1);
    let rows = vec![
        Row::new(
            "56 threads, 160 GB: time interleaved over time blocked",
            "x",
            1.0,
            interleaved[all].time_ps / blocked[all].time_ps,
            Tolerance::MoreThan,
        ),
        Row::new(
            "56 threads, interleaved: pages migrated at twice the size, least of 20, 40, 80, 160 GB",
            "x",
            1.0,
            growth(interleaved),
            Tolerance::MoreThan,
        ),
        Row::new(
            "56 threads, blocked, 40 GB: pages migrated",
            "pages",
            0.0,
            blocked[of_40].migrated,
            Tolerance::Within(0.0),
        ),
        Row::new(
            "one socket, 160 GB, interleaved: gain of switching migrations off, geometric mean",
            "x",
            2.4,
            gain(interleaved),
            Tolerance::percent_of(2.4, 25.0),
        ),
        Row::new(
            "one socket, 160 GB, blocked: gain of switching migrations off, geometric mean",
            "x",
            1.6,
            gain(blocked),
            Tolerance::percent_of(1.6, 25.0),
        ),
    ];
    Ok(Study { name: "intel".to_string(), rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_holds() {
        let study = run(&Options { scale: 0.125, ..Options::default() }, &|_| ()).unwrap();
        assert!(study.holds(), "{:#?}", study.rows);
    }
}
