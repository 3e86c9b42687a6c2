//! `nodewise doctor -p PID`: watches a process, and says whether NUMA hurts it.

use super::Args;
use crate::commands::compare::events;
use crate::commands::costs::Costs;
use crate::commands::latencies::{Latencies, page_number};
use crate::commands::manager::manager;
use crate::commands::{command_line, cpu_seconds, minor_faults, wrap};
use crate::manage::{self, LARGE_BYTES, Observer, Options, Reports, Summary, Watchdog};
use crate::output::{print, shown};
use crate::terminal;
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};
use nodewise_engine::recording::Interval;
use nodewise_engine::{DataSource, HUGE_PAGE_PAGES, PageSize, Pid};
use nodewise_linux::kernel_time::{KernelShares, KernelTime};
use nodewise_linux::placement::Unknown;
use nodewise_linux::process::{descendants, require_access};
use nodewise_linux::{DiskUse, bytes_so_far};
use nodewise_topology::{CacheKind, Node, Topology};
use nodewise_verdict::doctor::{self, Diagnosis, Disk, Evidence, UnseenFiles, Verdict, diagnose};
use nodewise_verdict::profile::{Use, collocation_adds_percent};
use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

pub fn main(args: &Args, pid: u32) -> anyhow::Result<ExitCode> {
    let topology = Topology::live()?;
    require_access(Pid(pid)).map_err(manage::explain)?;
    let costs = Costs::of(args.model.as_deref(), &topology)?;
    let evidence = if nodewise_linux::require_nodes(&topology).is_ok() {
        watch(pid, args.seconds, &topology, costs)?
    } else {
        Evidence { nodes: 1, far_ratio: 1.0, far_source: costs.source, ..Evidence::default() }
    };
    let diagnosis = diagnose(pid, evidence);
    print(&if args.json {
        serde_json::to_string_pretty(&diagnosis)? + "\n"
    } else {
        text(&diagnosis, terminal::width())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// So much longer it watches at a time, while more of the memory that is used shows for the first time.
const LONGER: Duration = Duration::from_secs(5);
/// So many times as long as was asked for at most.
const LONGEST: u32 = 4;
/// A program that uses so much of one CPU has memory that shows, once the kernel comes to it.
const BUSY: f64 = 0.25;

/// The accesses of a sampler that tells what served them, each with its base page.
struct Uses {
    latencies: Latencies,
    uses: Vec<Use>,
}

impl Observer for Uses {
    fn begin(&mut self, _: &[Pid]) {}

    fn interval(&mut self, Interval { seen, .. }: Interval) {
        self.latencies.take_in(&seen);
        let told = seen.samples.iter().filter(|sample| sample.source != DataSource::Unknown);
        self.uses.extend(told.filter(|sample| sample.source.is_of_memory()).map(|sample| Use {
            object: 0,
            page: page_number(sample.pid, sample.address.page()),
            from: sample.accessor.0,
            home: sample.home.map(|home| home.0),
            is_far: false,
            write: None,
            weight: sample.weight,
            huge: sample.page_size == PageSize::Huge,
            word: 0,
            is_taken: false,
            stored: 0,
        }));
    }
}

/// Watches as `attach --dry-run` does.
fn watch(pid: u32, seconds: u32, topology: &Topology, costs: Costs) -> anyhow::Result<Evidence> {
    let options = Options::only_watching();
    // Before the first kernel setting is changed: a signal must not keep it from being put back.
    let watchdog = Watchdog::default();
    let end = watchdog.end_on_signals()?;
    let notes = nodewise_linux::obstacles(pid, topology);
    let bar = bar(seconds);
    let first = Duration::from_secs(first_s(seconds).into());
    let (seen_first, is_interrupted) = look_first(pid, first, topology, &end, &bar);
    let reports = Reports::open(&options)?;
    let prepared = manage::prepare(&options, topology.clone(), reports, Some(&[Pid(pid)]), &watchdog)?;
    let mut watched_uses = Uses { latencies: Latencies::new(topology.nodes().len()), uses: Vec::new() };
    let mut session = prepared.observed_by(Some(&mut watched_uses)).start(None)?;
    let pids = std::iter::once(Pid(pid)).chain(descendants(pid));
    let mut kernel = seen_first.kernel.and_then(|_| KernelTime::open(topology, pids).ok());
    let (began, before) = (Instant::now(), cpu_seconds(pid));
    let asked = Duration::from_secs(seconds.into());
    let all = if is_interrupted { Duration::ZERO } else { asked.saturating_sub(first) };
    // Its CPU time until it was seen last: it may end meanwhile.
    let mut used = 0.0;
    let (mut resident_bytes, mut resident_due) = (None, began);
    let mut until = all;
    let watched = loop {
        let mut is_over = true;
        let watched = session.manage(|time| {
            kernel.iter_mut().for_each(KernelTime::drain);
            let elapsed = began.elapsed();
            if Instant::now() >= resident_due {
                resident_bytes = resident_of_all(pid).or(resident_bytes);
                resident_due = Instant::now() + Duration::from_secs(1);
            }
            used = (cpu_seconds(pid) - before).max(used);
            bar.set_position((first + elapsed).as_secs());
            let left = until.saturating_sub(elapsed);
            is_over = !left.is_zero() && end.recv_timeout(time.min(left)).is_ok();
            if is_over || left.is_zero() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        until += LONGER;
        let shows_later = match session.unknown() {
            Some(Unknown::Scan) => true,
            Some(Unknown::Pace(_)) => used > BUSY * began.elapsed().as_secs_f64(),
            _ => false,
        };
        if is_over || watched.is_err() || until > all * LONGEST || !shows_later {
            break watched;
        }
        bar.set_length((first + until).as_secs());
    };
    bar.finish_and_clear();
    let later = kernel.and_then(KernelTime::finish);
    let kernel = seen_first.kernel.map(|kernel| doctor::KernelTime {
        later_percent: later.map(|shares| [shares.returning_percent, shares.taking_percent]),
        ..kernel
    });
    let summary = session.conclude()?;
    watched?;
    let cpus = used / began.elapsed().as_secs_f64();
    let Uses { latencies, uses } = watched_uses;
    let count = topology.nodes().len();
    let split_adds_percent = collocation_adds_percent(uses.clone(), count);
    let whole = uses
        .into_iter()
        .map(|one| if one.huge { Use { page: one.page & !(HUGE_PAGE_PAGES - 1), ..one } } else { one });
    let by_pairs = collocation_adds_percent(whole.collect(), count);
    let taken_percent = latencies.taken_percent();
    let load = latencies.load(&costs.machine(topology), cpus);
    let cpu_percent = 100.0 * cpus;
    // The kernel looks through all of the memory for this, so it is only asked where samples say nothing.
    let is_unknown = summary.local_access_percent.before.is_none();
    let hidden_percent = if is_unknown { nodewise_linux::hidden_percent(pid) } else { None };
    Ok(evidence(
        &summary,
        topology,
        costs,
        Evidence {
            cpu_percent,
            hidden_percent,
            resident_bytes,
            notes,
            load,
            kernel,
            taken_percent,
            command: command_line(pid),
            managed_by: manager(pid),
            collocation_adds_percent: summary.collocation_adds_percent.or(by_pairs),
            split_adds_percent,
            ..seen_first
        },
    ))
}

/// The time for the first look, of so many seconds.
fn first_s(seconds: u32) -> u32 {
    (seconds / 4).clamp(1, 8).min(seconds - 1)
}

/// A look before sampling changes what the kernel does: at the kernel's own time, and at disks. Also whether
/// the end came meanwhile.
fn look_first(
    pid: u32,
    time: Duration,
    topology: &Topology,
    end: &Receiver<()>,
    bar: &ProgressBar,
) -> (Evidence, bool) {
    let pids: Vec<Pid> = std::iter::once(Pid(pid)).chain(descendants(pid)).collect();
    let nothing = Evidence::default();
    // Whoever may not watch the kernel does without.
    let Ok(mut kernel) = KernelTime::open(topology, pids.iter().copied()) else { return (nothing, false) };
    let (began, flushes, bytes) = (Instant::now(), events::shootdowns(), bytes_so_far(pids.iter().copied()));
    let faults_and_memory = || {
        let faults: u64 = pids.iter().filter_map(|pid| minor_faults(pid.0)).sum();
        (faults, pids.iter().filter_map(|pid| resident(pid.0)).sum::<u64>())
    };
    let before = faults_and_memory();
    let mut used = None;
    while let Some(left) = time.checked_sub(began.elapsed()).filter(|left| !left.is_zero()) {
        if end.recv_timeout(left.min(Duration::from_millis(500))).is_ok() {
            return (nothing, true);
        }
        kernel.drain();
        // A child that reads may be gone in a moment.
        used = used.or_else(|| DiskUse::of(&[pids.clone(), descendants(pid)].concat(), topology));
        bar.set_position(began.elapsed().as_secs());
    }
    let per_s = |count: u64| count as f64 / began.elapsed().as_secs_f64();
    let (faults, memory) = faults_and_memory();
    let bytes_per_s = per_s(bytes_so_far(pids.iter().copied()).saturating_sub(bytes));
    let flushes = events::shootdowns().zip(flushes);
    let Some(shares) = kernel.finish() else { return (nothing, false) };
    let seen = Evidence {
        disk: used.and_then(|used| disk(&used, topology, &shares, bytes_per_s)),
        kernel: Some(doctor::KernelTime {
            samples: shares.samples,
            kernel_percent: shares.kernel_percent,
            balancing_percent: shares.balancing_percent,
            returning_percent: shares.returning_percent,
            taking_percent: shares.taking_percent,
            later_percent: None,
            faults: faults.saturating_sub(before.0),
            grown_bytes: memory.saturating_sub(before.1),
            shootdowns_per_s: flushes.map(|(now, before)| per_s(now.saturating_sub(before))),
        }),
        ..nothing
    };
    (seen, false)
}

fn disk(used: &DiskUse, topology: &Topology, shares: &KernelShares, bytes_per_s: f64) -> Option<Disk> {
    let (index, node) =
        topology.node_indices().zip(topology.nodes()).find(|(_, node)| node.id == used.node)?;
    Some(Disk {
        file: used.file.to_string_lossy().into_owned(),
        node: node.id.0,
        cpus: node.cpus.to_string(),
        bytes_per_s,
        runs_there_percent: *shares.runs_on.get(index.get())?,
    })
}

/// All that was seen, the rest being given.
fn evidence(summary: &Summary, topology: &Topology, costs: Costs, rest: Evidence) -> Evidence {
    let nodes = || topology.nodes().iter().filter(|node| node.may_have_memory());
    let served_by = summary.served_by.iter().flatten();
    let serves = served_by.map(|&share| share > 0.0).chain(std::iter::repeat(false));
    let pairs = nodes().flat_map(|from| nodes().map(move |to| (from, to)));
    let is_far = |(from, to): &(&Node, &Node)| from.id != to.id && !from.cpus.is_empty();
    let ratios = pairs.filter(is_far).filter_map(|(from, to)| costs.ratio(from.id.0, to.id.0));
    let ratios: Vec<f64> = ratios.collect();
    Evidence {
        seconds: summary.elapsed_seconds,
        nodes: nodes().count(),
        balanced: topology.nodes().iter().map(Node::is_balanced).collect(),
        samples: summary.samples,
        sampler: summary.sampler.to_owned(),
        local_percent: summary.local_access_percent.before,
        local_at_end_percent: summary.local_access_percent.after,
        unknown: summary.memory_in_use.unknown.clone(),
        imbalance_percent: summary.controller_imbalance_percent.before,
        imbalance_nodes: Some(
            topology.nodes().iter().zip(serves).filter(|(n, serves)| n.is_balanced() || *serves).count(),
        ),
        used_bytes: summary.memory_in_use.bytes,
        cache_bytes: cache_bytes(topology),
        far_ratio: ratios.iter().sum::<f64>() / ratios.len().max(1) as f64,
        far_source: costs.source,
        to_collocate: summary.actions.collocated,
        to_interleave: summary.actions.interleaved,
        falsely_shared: summary.falsely_shared_huge_pages,
        local_with_copies_percent: summary.local_access_percent_with_copies,
        unseen_huge_bytes: Some(summary.unseen_huge_bytes).filter(|&bytes| bytes >= LARGE_BYTES).unwrap_or(0),
        unseen_files: summary.unseen_files.as_ref().and_then(unseen_files),
        pages_moved_by_kernel: summary.pages_moved_by_kernel,
        ..rest
    }
}

fn unseen_files(files: &nodewise_linux::UnseenFiles) -> Option<UnseenFiles> {
    let &nodewise_linux::UnseenFiles { bytes, are_uneven, .. } = files;
    let most = files.most().filter(|_| bytes >= LARGE_BYTES)?;
    Some(UnseenFiles { bytes, node: most.node, node_percent: most.percent, are_uneven })
}

/// The smallest last-level cache: what fits there is far from no memory for long.
fn cache_bytes(topology: &Topology) -> Option<u64> {
    let level = topology.caches().iter().map(|cache| cache.level).max()?;
    let last =
        topology.caches().iter().filter(|cache| cache.level == level && cache.kind != CacheKind::Instruction);
    last.filter_map(|cache| cache.size_bytes).min()
}

/// Resident memory of a process, huge pages by reservation included (`proc_pid_status(5)`).
fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    resident_by(&String::from_utf8_lossy(&status))
}

fn resident_by(status: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some((kib("VmRSS:")? + kib("HugetlbPages:").unwrap_or(0)) << 10)
}

/// The same of a process and all its descendants.
fn resident_of_all(pid: u32) -> Option<u64> {
    let own = resident(pid)?;
    Some(own + descendants(pid).into_iter().filter_map(|pid| resident(pid.0)).sum::<u64>())
}

fn text(diagnosis: &Diagnosis, width: usize) -> String {
    let mut out = String::new();
    let style = match diagnosis.verdict {
        Verdict::Hurt => AnsiColor::Yellow.on_default().bold(),
        Verdict::Healthy => AnsiColor::Green.on_default(),
        Verdict::Unknown => Style::new().bold(),
    };
    // Writing to a string does not fail.
    for line in wrap(&shown(&diagnosis.text), width) {
        let _ = writeln!(out, "{style}{line}{style:#}");
    }
    if diagnosis.verdict == Verdict::Healthy {
        return out;
    }
    let _ = writeln!(out);
    let mut row = |name: &str, text: String| {
        for (at, line) in wrap(&shown(text), width.saturating_sub(12).max(24)).into_iter().enumerate() {
            let _ = writeln!(out, "{:<10}  {line}", if at == 0 { name } else { "" });
        }
    };
    let seen = &diagnosis.evidence;
    row("seen", format!("{} accesses by {} in {:.0} s", seen.samples, seen.sampler, seen.seconds));
    if let Some(far) = diagnosis.far_access_percent {
        let used =
            seen.used_bytes.map(|bytes| format!(", of {} MiB in use", bytes >> 20)).unwrap_or_default();
        row(
            "far",
            format!("{far:.0} % of accesses{used}; {:.2}x as long by {}", seen.far_ratio, seen.far_source),
        );
    }
    if let Some(imbalance) = seen.imbalance_percent {
        row("imbalance", format!("{imbalance:.0} % between the nodes whose memory is accessed"));
    }
    if let Some(copies) = seen.local_with_copies_percent {
        row("copies", format!("of what is only read would make {copies:.0} % of accesses near"));
    }
    seen.notes.iter().for_each(|note| row("note", note.clone()));
    if let Some(kernel) = seen.kernel.filter(|kernel| kernel.kernel_percent >= 1.0) {
        row(
            "kernel",
            format!(
                "{:.0} % of its CPU time: {:.0} % balancing, {:.0} % taking memory, {:.0} % giving it back",
                kernel.kernel_percent,
                kernel.balancing_percent,
                kernel.taking_percent,
                kernel.returning_percent
            ),
        );
    }
    diagnosis.command.iter().for_each(|command| row("do", command.clone()));
    out
}

/// On standard error, if that is a terminal.
fn bar(seconds: u32) -> ProgressBar {
    let bar = ProgressBar::new(seconds.into());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} s  watching") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_has_huge_pages_by_reservation_in_it() {
        let status = "Name:\tjava\nVmRSS:\t   3000 kB\nRssAnon:\t   2000 kB\nHugetlbPages:\t   2048 kB\n";
        assert_eq!(resident_by(status), Some(5048 << 10));
        assert_eq!(resident_by(&status.replace("Hugetlb", "Other")), Some(3000 << 10));
        assert_eq!(resident_by("Name:\tkthreadd\n"), None);
    }

    #[test]
    fn resident_memory_of_a_process_counts_what_it_started() {
        let touched = |mib: usize| vec![1u8; mib << 20];
        let own = touched(1);
        let before = resident_of_all(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        // From the fork to the exec it has what we have.
        std::thread::sleep(Duration::from_millis(200));
        let with_child = resident_of_all(std::process::id()).unwrap();
        let of_child = resident(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(of_child > 0 && with_child >= before / 2 + of_child, "{before} {with_child} {of_child}");
        assert!(before > own.len() as u64);
    }
}
