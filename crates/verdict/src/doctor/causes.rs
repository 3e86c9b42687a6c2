//! Other causes than where pages lie: the kernel's own work, lines that nodes take from each other, and a
//! disk that is far away.

use super::{Evidence, IDLE_PERCENT, LEAST_PERCENT, Remedy};
use crate::compare::remedy::quoted;
use crate::load::Load;
use serde::Serialize;

/// CPU time that the kernel took, in percent of all that the program used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KernelTime {
    /// Samples of the clock.
    pub samples: u64,
    /// In the kernel.
    pub kernel_percent: f64,
    /// That of its NUMA balancing.
    pub balancing_percent: f64,
    /// That of giving memory back.
    pub returning_percent: f64,
    /// That of taking memory.
    pub taking_percent: f64,
    /// The last two in the time after: giving back, and taking. None where nobody watched.
    pub later_percent: Option<[f64; 2]>,
    /// Page faults.
    pub faults: u64,
    /// Resident memory that was there at the end and not at the beginning.
    pub grown_bytes: u64,
    /// Requests to CPUs to flush their TLBs, machine-wide.
    pub shootdowns_per_s: Option<f64>,
}

/// Disks that the program uses, all on one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Disk {
    /// A file there.
    pub file: String,
    /// The node.
    pub node: u32,
    /// Its CPUs, as a list.
    pub cpus: String,
    /// Read from disks and written to them.
    pub bytes_per_s: f64,
    /// Share of the program's CPU time that it spends there.
    pub runs_there_percent: f64,
}

/// A cause with its cure.
pub(super) struct Cause {
    pub(super) remedy: Remedy,
    /// None where it cannot be told.
    pub(super) cost_percent: Option<f64>,
    pub(super) is_bound: bool,
    pub(super) text: String,
    pub(super) command: String,
}

/// The cause that costs most, if one costs enough to be named.
pub(super) fn worst(pid: u32, evidence: &Evidence) -> Option<Cause> {
    let is_idle = evidence.cpu_percent < IDLE_PERCENT;
    let costly = [balancing(evidence), keeping(evidence), taken(pid, evidence)];
    let costly =
        costly.into_iter().flatten().filter(|cause| !is_idle && cause.cost_percent >= Some(LEAST_PERCENT));
    costly.max_by(|one, other| {
        one.cost_percent.partial_cmp(&other.cost_percent).unwrap_or(std::cmp::Ordering::Equal)
    })
}

/// Pages that go back and forth. A page that is on its way to its user arrives, and then rests.
fn balancing(evidence: &Evidence) -> Option<Cause> {
    /// So many times the memory in use moves only if it goes back and forth.
    const TIMES: f64 = 2.0;
    let kernel = evidence.kernel?;
    let moved = evidence.pages_moved_by_kernel as f64 * PAGE_BYTES;
    let used = evidence.used_bytes.or(evidence.resident_bytes)? as f64;
    let times = moved / used.max(1.0);
    (times >= TIMES).then(|| Cause {
        remedy: Remedy::StopBalancing,
        cost_percent: Some(kernel.balancing_percent),
        is_bound: false,
        text: format!(
            "Yes: the kernel's NUMA balancing takes at least {:.0} % of its CPU time. In {:.0} s it moved {:.0} MiB, \
             which is {times:.0} times the memory in use, so that pages go back and forth. Bind its threads to \
             nodes if they wander. Or have balancing leave it alone: 'nodewise run --localalloc' starts it so, \
             and the command switches balancing off for all.",
            kernel.balancing_percent,
            evidence.seconds,
            moved / f64::from(1 << 20)
        ),
        command: "sysctl kernel.numa_balancing=0".to_owned(),
    })
}

const PAGE_BYTES: f64 = 4096.0;

/// Memory that is given back only to be taken again. Each time all CPUs that run the program flush their
/// TLBs.
fn keeping(evidence: &Evidence) -> Option<Cause> {
    /// Giving back takes at least such a share of both, of pages that are only filled.
    const RETURNING_SHARE: f64 = 0.02;
    let kernel = evidence.kernel?;
    let both = kernel.returning_percent + kernel.taking_percent;
    // A fault may bring a huge page, which then stays or not.
    let is_kept = kernel.grown_bytes as f64 > kernel.faults as f64 * PAGE_BYTES / 2.0;
    let flushes = kernel.shootdowns_per_s.filter(|&flushes| flushes >= 1.0);
    let flushes = flushes.map_or(String::new(), |flushes| {
        format!(", and CPUs are asked {flushes:.0} times a second to flush their TLBs")
    });
    let gives_back = |[returning, taking]: [f64; 2]| {
        let both = returning + taking;
        both >= LEAST_PERCENT && returning >= RETURNING_SHARE * both
    };
    // A program that begins takes memory and gives some back, once.
    let goes_on = kernel.later_percent.is_none_or(gives_back);
    (!is_kept && goes_on && gives_back([kernel.returning_percent, kernel.taking_percent])).then(|| Cause {
        remedy: Remedy::KeepMemory,
        cost_percent: Some(both),
        is_bound: false,
        text: format!(
            "Yes: it takes memory from the kernel and gives it back, again and again. That takes about {both:.0} % \
             of its CPU time{flushes}. Keep memory, and use it again. If that is malloc's doing, the command \
             keeps it."
        ),
        command: format!(
            "GLIBC_TUNABLES=glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold={KEPT_BYTES}:\
             glibc.malloc.top_pad={PAD_BYTES} {}",
            quoted(&evidence.command)
        ),
    })
}

/// So much free memory malloc keeps, and takes at a time.
const KEPT_BYTES: u64 = 1 << 40;
const PAD_BYTES: u64 = 64 << 20;

/// Lines that nodes take from each other, wherever their pages lie.
fn taken(pid: u32, evidence: &Evidence) -> Option<Cause> {
    /// Threads that work together hand some lines on.
    const LEAST_TAKEN: f64 = 20.0;
    let taken = evidence.taken_percent?;
    let saved = |load: &Load| {
        let all = vec![1.0; load.accesses.len()];
        Some(load.fitted()?.saves_without_taken(&all).of_cpus)
    };
    let saved = evidence.load.as_ref().and_then(saved);
    let (cost, how) = saved.map_or((taken, "up to"), |saved| (saved, "about"));
    (taken >= LEAST_TAKEN).then(|| Cause {
        remedy: Remedy::Privatise,
        cost_percent: Some(cost),
        is_bound: saved.is_none(),
        text: format!(
            "Yes: its nodes write the same lines and take them from each other, which costs {how} {cost:.0} % of \
             its time. No place is better for such memory. Give each thread its own, or pad it; the command names \
             the lines."
        ),
        command: format!("nodewise profile -p {pid} --seconds 30 && nodewise report nodewise.profile"),
    })
}

/// A disk whose data goes to another node, though all who use it run there.
pub(super) fn far_disk(pid: u32, evidence: &Evidence) -> Option<Cause> {
    /// Less than that comes at the same speed from any node.
    const LEAST_BYTES_PER_S: f64 = 1e8;
    /// Threads that wander run on each node now and then.
    const HARDLY_PERCENT: f64 = 10.0;
    let disk = evidence.disk.as_ref()?;
    let Disk { file, node, cpus, bytes_per_s, runs_there_percent } = disk;
    let is_far = *runs_there_percent < HARDLY_PERCENT && !cpus.is_empty();
    (is_far && *bytes_per_s >= LEAST_BYTES_PER_S).then(|| Cause {
        remedy: Remedy::RunNearDisk,
        cost_percent: None,
        is_bound: true,
        text: format!(
            "Cannot tell how much: {:.0} MB a second go to or from a disk on node {node} ({file}), and its threads \
             hardly run there. Try the command; or start it by 'nodewise run --cpunodebind file:{file}'.",
            bytes_per_s / 1e6
        ),
        command: format!("taskset -apc {cpus} {pid}"),
    })
}
