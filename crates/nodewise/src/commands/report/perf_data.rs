//! A `perf.data`, as what 'nodewise profile' would have recorded.

use super::read::{Profile, Told};
use crate::commands::costs::Machine;
use crate::commands::profile::file::{Head, Name, Tail, VERSION};
use crate::output::note;
use nodewise_engine::recording::Interval;
use nodewise_engine::{Counters, Observation, Sample};
use nodewise_linux::perf_data::{Recording, read as read_recording};
use std::io::{Read, Seek};
use std::path::Path;

/// Length of an interval.
const INTERVAL_NS: u64 = 1_000_000_000;

pub fn read(path: &Path, file: impl Read + Seek, length: u64) -> anyhow::Result<Profile> {
    let recording = read_recording(path, file, length)?;
    for (count, what) in [
        (recording.lost, "samples were lost by perf"),
        (recording.left_out, "samples are left out, as there are too many"),
        (recording.from_nowhere, "samples are left out, as their CPUs are of no node"),
        (recording.first_touch.left_out, "first touches are left out, as there are too many"),
    ] {
        if count > 0 {
            note(format_args!("{}: {count} {what}", path.display()));
        }
    }
    let mut told = Told::new(head(&recording));
    (told.are_accesses, told.is_perfs) = (true, true);
    told.programs = recording.programs;
    let time =
        |samples: &[Sample], at: fn(&[Sample]) -> Option<&Sample>| at(samples).map_or(0, |one| one.time_ns);
    let (began, ended) = (time(&recording.samples, <[_]>::first), time(&recording.samples, <[_]>::last));
    let number = |sample: &Sample| (sample.time_ns - began) / INTERVAL_NS;
    for samples in recording.samples.chunk_by(|a, b| number(a) == number(b)) {
        told.interval(interval(samples, began + INTERVAL_NS * number(&samples[0])));
    }
    let name = |(pid, range, text)| Name { pid, range, text };
    Ok(told.finish(&Tail {
        seconds: (ended - began) as f64 / 1e9,
        names: recording.names.into_iter().map(name).collect(),
        variables: recording.variables,
        first_touch: recording.first_touch,
        samples_left_out: recording.left_out,
        ..Tail::default()
    }))
}

fn head(recording: &Recording) -> Head {
    /// `REMOTE_DISTANCE` by `LOCAL_DISTANCE`, the kernel's where firmware has none
    /// (`include/linux/topology.h`).
    const FAR: f64 = 2.0;
    let nodes = recording.nodes.len();
    let row = |from| (0..nodes).map(|to| if from == to { 1.0 } else { FAR }).collect();
    Head {
        nodewise_profile: VERSION,
        command: Some(recording.command.clone()).filter(|command| !command.is_empty()),
        pid: None,
        began_unix_s: 0,
        nodes: recording.nodes.clone(),
        balanced: Vec::new(),
        machine: Machine { ratios: (0..nodes).map(row).collect(), cycles_per_instruction: 1.0, times: None },
        ratios_by: "the kernel's default distances, as perf.data has none".to_owned(),
    }
}

fn interval(samples: &[Sample], began_ns: u64) -> Interval {
    let seen = Observation {
        end_ns: began_ns.saturating_add(INTERVAL_NS),
        duration_ns: INTERVAL_NS,
        counters: Counters::unknown(Vec::new(), Vec::new()),
        samples: samples.to_vec(),
        samples_lost: 0,
        processes: Vec::new(),
    };
    Interval { seen, decisions: Vec::new(), outcomes: Vec::new(), sampling: None }
}
