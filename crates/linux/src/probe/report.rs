//! The meaning of the facts, line by line, and what to do about each.

use super::{Facts, Outcome};
use crate::settings::Changed;
use nodewise_sys::Capability;
use serde::Serialize;

/// How well a thing works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should.
    Works,
    /// In part, or only after something is done.
    Limited,
    /// Not at all.
    Missing,
}

/// The subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// The machine.
    Machine,
    /// Seeing who accesses what.
    Sampling,
    /// Moving pages, splitting and making huge ones.
    Moving,
    /// Memory policies, for programs that cooperate.
    Policies,
    /// Permissions and limits.
    Rights,
}

/// A line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The subject.
    pub area: Area,
    /// The name of the check.
    pub name: &'static str,
    /// How well it works.
    pub status: Status,
    /// The finding.
    pub found: String,
    /// Advice, where something can be done.
    pub advice: Option<String>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Kernel release.
    pub kernel: String,
    /// Processor architecture.
    pub architecture: String,
    /// Nodes with memory.
    pub nodes: usize,
    /// The sampler that would be used, `hardware` or `hint-faults`, if any.
    pub sampler: Option<&'static str>,
    /// Whether programs can be managed here at all: two nodes, a sampler, pages can be moved.
    pub manageable: bool,
    /// Line by line.
    pub checks: Vec<Check>,
}

impl Report {
    /// Makes the report.
    #[must_use]
    pub fn new(facts: &Facts) -> Self {
        let sampler = sampler(facts);
        let mut checks = Vec::new();
        machine(facts, &mut checks);
        sampling(facts, &mut checks);
        moving(facts, &mut checks);
        policies(facts, &mut checks);
        rights(facts, &mut checks);
        Self {
            kernel: facts.kernel.clone(),
            architecture: facts.architecture.clone(),
            nodes: facts.nodes,
            sampler,
            manageable: facts.nodes_allowed >= 2 && sampler.is_some() && facts.move_pages.works(),
            checks,
        }
    }
}

fn sampler(facts: &Facts) -> Option<&'static str> {
    let balancing = facts.balancing.is_some_and(|mode| mode & 1 == 1) || facts.balancing_writable;
    // Untried is what remains when balancing is off (and can be switched on); lacking was tried and did not
    // come.
    let hint_faults = balancing
        && facts.page_fault_event.works()
        && matches!(facts.hint_faults, Outcome::Works(_) | Outcome::Untried(_));
    match (facts.hardware_sampler.works(), hint_faults) {
        (true, _) => Some("hardware"),
        (false, true) => Some("hint-faults"),
        (false, false) => None,
    }
}

fn line(
    area: Area,
    name: &'static str,
    status: Status,
    found: impl Into<String>,
    advice: Option<&str>,
) -> Check {
    Check { area, name, status, found: found.into(), advice: advice.map(str::to_owned) }
}

/// A line about something that was tried; `refused` and `lacking` say what to do in either case.
fn tried(area: Area, name: &'static str, outcome: &Outcome, refused: &str, lacking: &str) -> Check {
    let advice = |advice: &'_ str| (!advice.is_empty()).then(|| advice.to_owned());
    let (status, advice) = match outcome {
        Outcome::Works(_) => (Status::Works, None),
        Outcome::Refused(_) => (Status::Missing, advice(refused)),
        Outcome::Lacking(_) => (Status::Missing, advice(lacking)),
        Outcome::Untried(_) => (Status::Limited, None),
    };
    Check { area, name, status, found: outcome.text().to_owned(), advice }
}

fn machine(facts: &Facts, checks: &mut Vec<Check>) {
    let Facts { nodes, nodes_allowed, cpus, .. } = facts;
    checks.push(match (*nodes, *nodes_allowed) {
        (0 | 1, _) => line(
            Area::Machine,
            "nodes",
            Status::Missing,
            format!("one node with memory, {cpus} CPUs: all memory is equally near"),
            Some("nothing to place here; try a guest with more: nodewise rig --nodes 4 -- nodewise doctor"),
        ),
        (nodes, allowed) if allowed < nodes => line(
            Area::Machine,
            "nodes",
            if allowed < 2 { Status::Missing } else { Status::Limited },
            format!("{nodes} with memory, but this process may use {allowed}"),
            Some("widen the container's or slice's cpuset.mems"),
        ),
        (nodes, _) => {
            line(Area::Machine, "nodes", Status::Works, format!("{nodes} with memory, {cpus} CPUs"), None)
        }
    });
    for warning in &facts.topology_warnings {
        checks.push(line(Area::Machine, "topology", Status::Limited, warning, None));
    }
    checks.push(match facts.huge_pages.as_deref() {
        None => line(Area::Machine, "huge pages", Status::Missing, "no transparent huge pages in this kernel", None),
        Some("never") => line(
            Area::Machine,
            "huge pages",
            Status::Limited,
            "never, but by advice to collapse",
            Some("for programs that gain from them: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
        ),
        Some(who) => line(Area::Machine, "huge pages", Status::Works, who, None),
    });
    if let Some((pages, sleep_ms)) = facts.khugepaged {
        // It makes huge pages of what was split; from some 100 000 pages a second that is faster than
        // placement can be.
        let pages_per_s = pages * 1000 / sleep_ms.max(1);
        let found = format!("{pages} pages every {sleep_ms} ms");
        checks.push(if pages_per_s >= 100_000 {
            let advice =
                "it undoes splits at once: lower /sys/kernel/mm/transparent_hugepage/khugepaged/pages_to_scan";
            line(Area::Machine, "khugepaged", Status::Limited, found, Some(advice))
        } else {
            line(Area::Machine, "khugepaged", Status::Works, found, None)
        });
    }
}

fn sampling(facts: &Facts, checks: &mut Vec<Check>) {
    let perf = "run as root, or grant CAP_PERFMON, or set kernel.perf_event_paranoid to 0";
    checks.push(tried(Area::Sampling, "hardware sampler", &facts.hardware_sampler, perf, ""));
    checks.push(balancing(facts));
    checks.push(settings_changed(facts));
    checks.push(tried(
        Area::Sampling,
        "hint faults",
        &facts.hint_faults,
        "",
        "look at numa_pte_updates and numa_hint_faults in /proc/vmstat while a program runs",
    ));
    checks.push(tried(Area::Sampling, "page-fault event", &facts.page_fault_event, perf, ""));
    let advice =
        format!("{}; without it reads and writes look the same", mounted(facts, "tracefs", "tracing"));
    let tracepoint = tried(
        Area::Sampling,
        "page-fault tracepoint",
        &facts.page_fault_tracepoint,
        &advice,
        "reads and writes look the same without it",
    );
    // A refinement: hint faults do without.
    let status = if tracepoint.status == Status::Missing { Status::Limited } else { tracepoint.status };
    checks.push(Check { status, ..tracepoint });
    checks.push(if facts.scan_settings {
        line(Area::Sampling, "scan settings", Status::Works, "can be tuned while sampling", None)
    } else {
        let found = if facts.debugfs { "not to be written" } else { "debugfs cannot be read" };
        let advice = if is_locked_down(facts) {
            "the kernel's lockdown forbids it; sampling goes on at the kernel's own pace".to_owned()
        } else {
            let mounted = mounted(facts, "debugfs", "debug");
            format!("{mounted}; without it sampling goes on at the kernel's own pace")
        };
        line(Area::Sampling, "scan settings", Status::Limited, found, Some(&advice))
    });
}

/// The advice to mount a file system. Root need not be told to be root.
fn mounted(facts: &Facts, name: &str, directory: &str) -> String {
    let command = format!("mount -t {name} none /sys/kernel/{directory}");
    let is_root = Capability::SysAdmin.is_in(facts.capabilities);
    if is_root {
        format!("mount {name}: {command}")
    } else {
        format!("run as root with {name} mounted ({command})")
    }
}

fn is_locked_down(facts: &Facts) -> bool {
    facts.lockdown.as_deref().is_some_and(|mode| mode != "none")
}

fn balancing(facts: &Facts) -> Check {
    let name = "NUMA balancing";
    match (facts.balancing, facts.balancing_writable) {
        (None, _) => line(
            Area::Sampling,
            name,
            Status::Missing,
            "not in this kernel",
            Some("boot a kernel with CONFIG_NUMA_BALANCING; distributions' kernels have it"),
        ),
        (Some(mode), _) if mode & 1 == 1 => line(Area::Sampling, name, Status::Works, "on", None),
        (Some(_), true) if facts.settings_barred.is_some() => line(
            Area::Sampling,
            name,
            Status::Missing,
            "off, and Nodewise cannot switch it on",
            Some("see kernel settings, or: sysctl kernel.numa_balancing=1"),
        ),
        (Some(_), true) => line(
            Area::Sampling,
            name,
            Status::Limited,
            "off",
            Some("nodewise switches it on while it needs it, and off again"),
        ),
        (Some(_), false) => line(
            Area::Sampling,
            name,
            Status::Missing,
            "off, and this user may not switch it on",
            Some("run as root, or: sysctl kernel.numa_balancing=1"),
        ),
    }
}

fn settings_changed(facts: &Facts) -> Check {
    let name = "kernel settings";
    match &facts.settings_changed {
        Ok(Changed::No) if facts.settings_barred.is_some() => {
            let why = facts.settings_barred.as_deref().unwrap_or_default();
            let found = format!("stay as they are: {why}");
            line(Area::Sampling, name, Status::Limited, found, Some("run as root, with debugfs mounted"))
        }
        Ok(Changed::No) => line(Area::Sampling, name, Status::Works, "as they were found", None),
        Ok(Changed::ByRunning(pid)) => {
            let found = format!("changed by nodewise {pid}, which runs and will put them back");
            line(Area::Sampling, name, Status::Works, found, None)
        }
        Ok(Changed::LeftBy { pid, originals }) => {
            let each = originals.iter().map(|(path, before)| format!("{} (was {before})", path.display()));
            let each = each.collect::<Vec<_>>().join(", ");
            let found = format!("left changed by nodewise {pid}, which was killed: {each}");
            let advice =
                "the next nodewise run or attach puts them back first, as root: nodewise run -- true";
            line(Area::Sampling, name, Status::Limited, found, Some(advice))
        }
        Err(error) => {
            let advice = "look at the settings that this file names, put them back, and delete it";
            line(Area::Sampling, name, Status::Limited, error.clone(), Some(advice))
        }
    }
}

fn moving(facts: &Facts, checks: &mut Vec<Check>) {
    let seccomp = "a container's seccomp filter refuses it: allow it there (Docker: --cap-add SYS_NICE)";
    let own = "ptrace rights are missing: same user, or CAP_SYS_PTRACE";
    let refused = if facts.seccomp { seccomp } else { own };
    checks.push(tried(
        Area::Moving,
        "moving pages",
        &facts.move_pages,
        refused,
        "boot a kernel with CONFIG_MIGRATION",
    ));
    let nice = if facts.seccomp {
        seccomp
    } else {
        "process_madvise needs CAP_SYS_NICE besides ptrace rights: run as root"
    };
    checks.push(tried(Area::Moving, "splitting huge pages", &facts.split, nice, "boot Linux 5.10 or newer"));
    checks.push(tried(Area::Moving, "making huge pages", &facts.collapse, nice, "boot Linux 6.1 or newer"));
}

fn policies(facts: &Facts, checks: &mut Vec<Check>) {
    let refused = "a container's seccomp filter refuses memory policies: allow set_mempolicy and mbind (Docker: --cap-add SYS_NICE)";
    let mut push = |name, outcome, lacking: &str| {
        checks.push(tried(Area::Policies, name, outcome, refused, lacking));
    };
    push("memory policies", &facts.mempolicy, "boot a kernel with CONFIG_NUMA");
    push("MPOL_PREFERRED_MANY", &facts.preferred_many, "");
    push("MPOL_BIND, balancing", &facts.bind_balancing, "");
    push("PREFERRED_MANY, balancing", &facts.preferred_many_balancing, "binding does instead");
    push("weighted interleave", &facts.weighted_interleave, "interleaving treats all nodes alike without it");
    // The node number is bytes 20 to 23 of struct rseq.
    checks.push(match facts.rseq_feature_bytes {
        24.. => line(
            Area::Policies,
            "rseq node id",
            Status::Works,
            "threads know their node without a call",
            None,
        ),
        _ => line(
            Area::Policies,
            "rseq node id",
            Status::Missing,
            "not in this kernel; in Linux since 6.3",
            Some("threads ask with getcpu instead"),
        ),
    });
}

fn rights(facts: &Facts, checks: &mut Vec<Check>) {
    let has = |capability: Capability| capability.is_in(facts.capabilities);
    let wanted = [
        ("CAP_PERFMON", has(Capability::PerfMon) || has(Capability::SysAdmin), "samples of every CPU"),
        ("CAP_SYS_NICE", has(Capability::SysNice), "huge pages of other processes"),
        ("CAP_SYS_PTRACE", has(Capability::SysPtrace), "other users' processes"),
        ("CAP_SYS_ADMIN", has(Capability::SysAdmin), "page frames and kernel settings"),
    ];
    let absent: Vec<_> = wanted.iter().filter(|(_, present, _)| !present).collect();
    let names = |list: &mut dyn Iterator<Item = &str>| list.collect::<Vec<_>>().join(", ");
    checks.push(if absent.is_empty() {
        let all = names(&mut wanted.iter().map(|(name, ..)| *name));
        line(Area::Rights, "capabilities", Status::Works, all, None)
    } else {
        let found = format!("without {}", names(&mut absent.iter().map(|(name, ..)| *name)));
        let for_what = names(&mut absent.iter().map(|(_, _, what)| *what));
        let advice = format!("run as root for {for_what}");
        line(Area::Rights, "capabilities", Status::Limited, found, Some(&advice))
    });
    checks.push(paranoid(facts));
    checks.push(match facts.ptrace_scope {
        Some(scope @ 1..) if !has(Capability::SysPtrace) => line(
            Area::Rights,
            "Yama ptrace_scope",
            Status::Limited,
            format!("{scope}: only programs that nodewise starts"),
            Some("run as root to attach to running programs, or: sysctl kernel.yama.ptrace_scope=0"),
        ),
        Some(scope) => {
            line(Area::Rights, "Yama ptrace_scope", Status::Works, format!("{scope}: no hindrance"), None)
        }
        None => line(Area::Rights, "Yama ptrace_scope", Status::Works, "no Yama", None),
    });
    checks.push(match facts.lockdown.as_deref() {
        None | Some("none") => line(Area::Rights, "kernel lockdown", Status::Works, "none", None),
        Some(mode) => line(
            Area::Rights,
            "kernel lockdown",
            Status::Limited,
            format!("{mode}: debugfs cannot be written"),
            Some("scan settings stay as they are; boot without lockdown (Secure Boot) to change that"),
        ),
    });
    if let Some(limit) = facts.file_limit {
        // The most a sampler takes is three files a CPU; the soft limit is raised as needed.
        let needed = 3 * facts.cpus as u64 + 128;
        let found = format!("{}, may be raised to {}", limit.soft, limit.hard);
        checks.push(if limit.hard >= needed {
            line(Area::Rights, "open files", Status::Works, found, None)
        } else {
            let advice = format!("ulimit -Hn {needed}; else samplers watch threads instead of CPUs");
            line(Area::Rights, "open files", Status::Limited, found, Some(&advice))
        });
    }
}

fn paranoid(facts: &Facts) -> Check {
    let name = "perf_event_paranoid";
    let privileged =
        Capability::PerfMon.is_in(facts.capabilities) || Capability::SysAdmin.is_in(facts.capabilities);
    match facts.perf_event_paranoid {
        None => line(
            Area::Rights,
            name,
            Status::Missing,
            "no perf events in this kernel",
            Some("boot a kernel with CONFIG_PERF_EVENTS"),
        ),
        Some(level) if privileged => {
            line(Area::Rights, name, Status::Works, format!("{level}: no hindrance with these rights"), None)
        }
        Some(level) if level <= 0 => line(Area::Rights, name, Status::Works, level.to_string(), None),
        Some(level) => line(
            Area::Rights,
            name,
            Status::Limited,
            format!("{level}: no events of whole CPUs for this user"),
            Some("sysctl kernel.perf_event_paranoid=0, or run as root"),
        ),
    }
}
