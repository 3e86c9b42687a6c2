//! The facts behind `nodewise doctor`: things that work on this machine, found out by trying.
//!
//! [`Facts::gather`] tries things on memory of its own and on a [`target`], a process that the caller starts
//! for that. It touches nothing else on the machine and changes no setting. [`Report`] says what the facts
//! mean.

mod policy;
mod report;
mod sampling;
pub mod target;
#[cfg(test)]
mod tests;

pub use report::{Area, Check, Report, Status};

use crate::Error;
use crate::settings::{Changed, Place};
use nodewise_sys::{ErrorKind, FileLimit};
use nodewise_topology::Topology;
use std::fs;
use std::process::Command;
use std::str::FromStr;

/// How a thing that was tried went. The text says what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It works.
    Works(String),
    /// Not permitted.
    Refused(String),
    /// The kernel or the machine does not have it.
    Lacking(String),
    /// There was no way to try.
    Untried(String),
}

impl Outcome {
    /// Whether it works.
    #[must_use]
    pub const fn works(&self) -> bool {
        matches!(self, Self::Works(_))
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Works(text) | Self::Refused(text) | Self::Lacking(text) | Self::Untried(text) => text,
        }
    }

    fn failed(error: nodewise_sys::Error) -> Self {
        match error.kind() {
            ErrorKind::NotPermitted => Self::Refused(error.to_string()),
            _ => Self::Lacking(error.to_string()),
        }
    }
}

/// Everything that was looked at. Plain data, so that a report can be made of any machine's.
// Each is a fact of its own, not a state.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug)]
pub struct Facts {
    /// Kernel release.
    pub kernel: String,
    /// Processor architecture.
    pub architecture: String,
    /// CPUs online.
    pub cpus: usize,
    /// Nodes that have memory.
    pub nodes: usize,
    /// The topology's warnings from when the machine was read ([`Topology::warnings`]).
    pub topology_warnings: Vec<String>,
    /// Nodes with memory that this process's cpuset lets it use.
    pub nodes_allowed: usize,
    /// Effective capabilities, one bit each.
    pub capabilities: u64,
    /// Whether a seccomp filter stands between this process and the kernel.
    pub seccomp: bool,
    /// `kernel.perf_event_paranoid`
    pub perf_event_paranoid: Option<i32>,
    /// `kernel.numa_balancing`; none when the kernel has none.
    pub balancing: Option<u32>,
    /// Whether that may be written.
    pub balancing_writable: bool,
    /// Whether the scanner's periods in debugfs can be set.
    pub scan_settings: bool,
    /// The Nodewise that has changed settings of balancing, if any; why that is not known.
    pub settings_changed: Result<Changed, String>,
    /// Why Nodewise cannot own the settings, if so, and then changes none.
    pub settings_barred: Option<String>,
    /// Pages lose their mapping and are noticed when they are used again.
    pub hint_faults: Outcome,
    /// The software event on a CPU.
    pub page_fault_event: Outcome,
    /// The tracepoint, which tells reads from writes.
    pub page_fault_tracepoint: Outcome,
    /// PEBS, IBS or SPE.
    pub hardware_sampler: Outcome,
    /// Moving a page of another process.
    pub move_pages: Outcome,
    /// Splitting a huge page of another process by advice.
    pub split: Outcome,
    /// Making one.
    pub collapse: Outcome,
    /// Setting a memory policy at all.
    pub mempolicy: Outcome,
    /// `MPOL_PREFERRED_MANY`
    pub preferred_many: Outcome,
    /// `MPOL_BIND | MPOL_F_NUMA_BALANCING`
    pub bind_balancing: Outcome,
    /// `MPOL_PREFERRED_MANY | MPOL_F_NUMA_BALANCING`
    pub preferred_many_balancing: Outcome,
    /// `MPOL_WEIGHTED_INTERLEAVE`
    pub weighted_interleave: Outcome,
    /// Bytes of the kernel's part of a thread's rseq area, 0 when it does not say.
    pub rseq_feature_bytes: u64,
    /// The programs that get transparent huge pages: `always`, `madvise`, `never`.
    pub huge_pages: Option<String>,
    /// khugepaged's `pages_to_scan` and `scan_sleep_millisecs`.
    pub khugepaged: Option<(u64, u64)>,
    /// Whether debugfs can be read.
    pub debugfs: bool,
    /// The kernel's lockdown mode.
    pub lockdown: Option<String>,
    /// `kernel.yama.ptrace_scope`
    pub ptrace_scope: Option<u32>,
    /// Limit on open files.
    pub file_limit: Option<FileLimit>,
}

impl Facts {
    /// Tries everything; takes a second or so, up to 6 when waiting for hint faults. `target` is a command
    /// that runs [`target::run_probe_target`].
    ///
    /// # Errors
    /// The machine's topology cannot be read.
    pub fn gather(target: &mut Command) -> Result<Self, Error> {
        let topology = Topology::live().map_err(|e| {
            Error::with_source(crate::ErrorKind::File, "cannot read this machine's topology", e)
        })?;
        let with_memory =
            || topology.nodes().iter().filter(|node| node.may_have_memory()).map(|node| node.id.0);
        let allowed = nodewise_sys::mems_allowed().ok();
        let nodes_allowed = with_memory().filter(|&id| allowed.is_none_or(|mask| mask.contains(id))).count();
        let capabilities = nodewise_sys::effective_capabilities().unwrap_or(0);
        let balancing = number("/proc/sys/kernel/numa_balancing");
        let results = target::probe(target, capabilities);
        Ok(Self {
            kernel: text("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned()),
            architecture: std::env::consts::ARCH.to_owned(),
            cpus: topology.online_cpus().len(),
            nodes: with_memory().count(),
            topology_warnings: topology.warnings().to_vec(),
            nodes_allowed,
            capabilities,
            seccomp: status_field("Seccomp").is_some_and(|mode: u32| mode == 2),
            perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
            balancing,
            balancing_writable: is_writable("/proc/sys/kernel/numa_balancing"),
            scan_settings: is_writable("/sys/kernel/debug/sched/numa_balancing/scan_period_min_ms"),
            settings_barred: Place::live().can_be_owned().err().map(|error| error.in_full()),
            settings_changed: Changed::look(&Place::live()).map_err(|e| e.to_string()),
            hint_faults: sampling::hint_faults(&topology, balancing),
            page_fault_event: sampling::page_fault_event(&topology),
            page_fault_tracepoint: sampling::page_fault_tracepoint(&topology),
            hardware_sampler: sampling::hardware(&topology),
            move_pages: results.move_pages,
            split: results.split,
            collapse: results.collapse,
            mempolicy: policy::any(),
            preferred_many: policy::preferred_many(),
            bind_balancing: policy::bind_balancing(),
            preferred_many_balancing: policy::preferred_many_balancing(),
            weighted_interleave: policy::weighted_interleave(),
            rseq_feature_bytes: rseq_feature_bytes(),
            huge_pages: topology.transparent_huge_pages().map(|pages| pages.enabled.clone()),
            khugepaged: khugepaged(),
            debugfs: fs::read_dir("/sys/kernel/debug").is_ok_and(|mut entries| entries.next().is_some()),
            lockdown: text("/sys/kernel/security/lockdown").and_then(|text| chosen(&text)),
            ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
            file_limit: nodewise_sys::file_limit().ok(),
        })
    }
}

fn text(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number<T: FromStr>(path: &str) -> Option<T> {
    text(path)?.parse().ok()
}

fn is_writable(path: &str) -> bool {
    // Opening changes nothing; a container's read-only /proc/sys refuses it, which the mode bits do not show.
    fs::OpenOptions::new().write(true).open(path).is_ok()
}

/// The word in brackets of `none [integrity] confidentiality`.
fn chosen(text: &str) -> Option<String> {
    text.split_ascii_whitespace().find_map(|word| Some(word.strip_prefix('[')?.strip_suffix(']')?.to_owned()))
}

fn status_field<T: FromStr>(name: &str) -> Option<T> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

/// `AT_RSEQ_FEATURE_SIZE` of the auxiliary vector, since Linux 6.3 (`include/uapi/linux/auxvec.h`).
fn rseq_feature_bytes() -> u64 {
    const AT_RSEQ_FEATURE_SIZE: u64 = 27;
    nodewise_sys::auxiliary_value(AT_RSEQ_FEATURE_SIZE).unwrap_or(0)
}

fn khugepaged() -> Option<(u64, u64)> {
    let directory = "/sys/kernel/mm/transparent_hugepage/khugepaged";
    Some((
        number(&format!("{directory}/pages_to_scan"))?,
        number(&format!("{directory}/scan_sleep_millisecs"))?,
    ))
}
