//! Whether samples can be had, and how.

use super::Outcome;
use crate::ErrorKind;
use crate::sampler::hardware::HardwareSampler;
use nodewise_sys::perf::{Attr, AttrFlags, Event, EventType, SampleType, SoftwareEvent, Target};
use nodewise_sys::{
    Advice, AffinityMask, Mapping, MappingOptions, Whose, page_bytes, sched_getaffinity, sched_setaffinity,
    usage,
};
use nodewise_topology::Topology;
use std::fs;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Opens what there is of PEBS, IBS and SPE, and closes it.
pub(super) fn hardware(topology: &Topology) -> Outcome {
    match HardwareSampler::open(topology) {
        Ok(sampler) => Outcome::Works(crate::sampler::Sampler::description(&sampler)),
        Err(e) => {
            // The check's name says already what this is about.
            let text = e.to_string();
            let text = text.strip_prefix("no hardware sampler: ").unwrap_or(&text).to_owned();
            if e.kind() == ErrorKind::NotPermitted { Outcome::Refused(text) } else { Outcome::Lacking(text) }
        }
    }
}

/// Opens the software event on a CPU.
pub(super) fn page_fault_event(topology: &Topology) -> Outcome {
    let mut attr = Attr::software(SoftwareEvent::PageFaults);
    attr.sample_period = 1;
    attr.sample_type = SampleType::TID | SampleType::ADDR | SampleType::CPU;
    opened_on_a_cpu(topology, &attr, "opened on a CPU")
}

/// Opens the tracepoint on a CPU.
pub(super) fn page_fault_tracepoint(topology: &Topology) -> Outcome {
    let mounts = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
    if !mounts.iter().any(|mount| fs::metadata(format!("{mount}/events")).is_ok()) {
        return Outcome::Refused("tracefs is not mounted, or not to be read by this user".to_owned());
    }
    let id = mounts.iter().find_map(|mount| {
        fs::read_to_string(format!("{mount}/events/exceptions/page_fault_user/id")).ok()?.trim().parse().ok()
    });
    let Some(id) = id else {
        return Outcome::Lacking("this kernel has no exceptions:page_fault_user".to_owned());
    };
    let mut attr = Attr::new(EventType::TRACEPOINT, id);
    attr.sample_period = 1;
    attr.sample_type = SampleType::TID | SampleType::CPU | SampleType::RAW;
    attr.flags = attr.flags.without(AttrFlags::EXCLUDE_KERNEL);
    opened_on_a_cpu(topology, &attr, "opened on a CPU: reads and writes are told apart")
}

fn opened_on_a_cpu(topology: &Topology, attr: &Attr, works: &str) -> Outcome {
    let Some(cpu) = topology.online_cpus().iter().next() else {
        return Outcome::Untried("no CPU is online".to_owned());
    };
    match Event::open(attr, Target::Cpu(cpu.0), None) {
        Ok(_) => Outcome::Works(works.to_owned()),
        Err(e) => Outcome::failed(e),
    }
}

/// How long to wait for the scanner: it starts a second into a process's CPU time, looks at new memory the
/// time after, and may be slow on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

/// A CPU on each of two nodes with memory, of those that are allowed.
fn two_nodes(topology: &Topology, allowed: &AffinityMask) -> Option<(u32, u32)> {
    let nodes = topology.nodes().iter().filter(|node| node.may_have_memory());
    let mut cpus =
        nodes.filter_map(|node| node.cpus.iter().map(|cpu| cpu.0).find(|&cpu| allowed.contains(cpu)));
    Some((cpus.next()?, cpus.next()?))
}

/// Touches memory from one node and reads it from another, until the reader takes faults on pages that were
/// there all along.
pub(super) fn hint_faults(topology: &Topology, balancing: Option<u32>) -> Outcome {
    // Kernel.org's default; bit 1 alone (tiering) marks no ordinary memory.
    match balancing {
        None => return Outcome::Lacking("this kernel has no NUMA balancing".to_owned()),
        Some(mode) if mode & 1 == 0 => return Outcome::Untried("NUMA balancing is off".to_owned()),
        Some(_) => {}
    }
    // A cpuset may have taken any of them.
    let allowed = match sched_getaffinity(0) {
        Ok(allowed) => allowed,
        Err(e) => return Outcome::failed(e),
    };
    let Some((home, accessor)) = two_nodes(topology, &allowed) else {
        return Outcome::Untried("takes two nodes with CPUs that this process may run on".to_owned());
    };
    let bytes = 1024 * page_bytes();
    let mapping = match Mapping::new(bytes, MappingOptions::default()) {
        Ok(mapping) => mapping,
        Err(e) => return Outcome::failed(e),
    };
    // Not an error where the kernel has no huge pages.
    let _ = mapping.advise(0..bytes, Advice::NoHugePage);
    let on = |cpu: u32| sched_setaffinity(0, &[cpu].into_iter().collect::<AffinityMask>());
    let pages = || mapping.as_atomics().iter().step_by(page_bytes() / 8);
    let touch = || -> nodewise_sys::Result<()> {
        on(home)?;
        pages().for_each(|word| word.store(1, Ordering::Relaxed));
        Ok(())
    };
    let read = || -> nodewise_sys::Result<Option<(u64, Duration)>> {
        on(accessor)?;
        let faults = || usage(Whose::Thread).map(|usage| usage.minor_faults);
        let read_all = || pages().map(|word| word.load(Ordering::Relaxed)).sum::<u64>();
        std::hint::black_box(read_all());
        let (begin, before) = (Instant::now(), faults()?);
        while begin.elapsed() < PATIENCE {
            std::hint::black_box(read_all());
            let taken = faults()?.saturating_sub(before);
            // More than the few that anything else may bring.
            if taken >= 64 {
                return Ok(Some((taken, begin.elapsed())));
            }
        }
        Ok(None)
    };
    let done = std::thread::scope(|scope| {
        let touched = scope.spawn(touch).join();
        touched.map(|touched| touched.and_then(|()| scope.spawn(read).join().unwrap_or(Ok(None))))
    });
    match done {
        Ok(Ok(Some((faults, after)))) => {
            Outcome::Works(format!("{faults} seen on resident pages after {:.1} s", after.as_secs_f64()))
        }
        Ok(Ok(None)) => {
            Outcome::Lacking(format!("none in {} s, though NUMA balancing is on", PATIENCE.as_secs()))
        }
        Ok(Err(e)) => Outcome::failed(e),
        Err(_) => Outcome::Untried("the thread that tried died".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_a_cpuset_has_taken_are_not_tried() {
        let topology = Topology::synthetic(4, 4, 1 << 30);
        let within = |cpus: std::ops::Range<u32>| two_nodes(&topology, &cpus.collect());
        assert_eq!(within(0..16), Some((0, 4)));
        assert_eq!(within(6..9), Some((6, 8)));
        assert_eq!(within(8..12), None, "all on one node");
    }
}
