//! Tests of the machine without a kernel that has several nodes.

use super::*;
use crate::sampler::RawSample;
use crate::survey::SURVEY_PAGES;
use nodewise_engine::{Access, DataSource, VirtAddr};
use nodewise_sys::perf::Losses;
use std::process::{Child, Command, Stdio};

/// So many samples of a process each time, in order, and losses of each kind.
#[derive(Default)]
struct Lossy {
    losses: Losses,
    samples: u64,
    sampled: u64,
    /// All of one page; 0 is mapped nowhere.
    address: u64,
    /// Whether they are faults, and not accesses.
    by_faults: bool,
}

impl Sampler for Lossy {
    fn name(&self) -> &'static str {
        "lossy"
    }

    fn description(&self) -> String {
        String::new()
    }

    fn is_proportional(&self) -> bool {
        !self.by_faults
    }

    fn drain(&mut self, _keep: &dyn Fn(Pid) -> bool, into: &mut Vec<RawSample>) {
        self.losses += Losses { lost: 2, throttled: 1, malformed: 1, aux_gaps: 1 };
        let sample = |time_ns| RawSample {
            time_ns,
            address: VirtAddr(self.address),
            pid: Pid(std::process::id()),
            tid: nodewise_engine::Tid(1),
            accessor: NodeIndex(0),
            access: Access::Read,
            source: DataSource::Unknown,
            latency_cycles: 0,
            weight: 1,
        };
        into.extend((self.sampled..self.sampled + self.samples).map(sample));
        self.sampled += self.samples;
    }

    fn losses(&self) -> Losses {
        self.losses
    }

    fn set_rate(&mut self, _rate: SamplingRate) -> Result<(), Error> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        self.losses.lost += 10;
        Ok(())
    }
}

fn machine(pids: &[Pid]) -> LinuxMachine {
    sampled(pids, Lossy::default())
}

fn sampled(pids: &[Pid], sampler: Lossy) -> LinuxMachine {
    let processes = Processes::new(pids, false, false).unwrap();
    let topology = Topology::live().unwrap();
    LinuxMachine::new(topology, processes, Box::new(sampler), MachineSettings::default())
}

#[test]
fn a_look_that_saw_no_memory_leaves_what_moved_since_the_last_one_that_did() {
    let memory = 0u64;
    let mapped = std::ptr::from_ref(&memory) as u64;
    for (address, saw) in [(0, false), (mapped, true)] {
        let pid = Pid(std::process::id());
        let mut machine = sampled(&[pid], Lossy { samples: 10, address, ..Lossy::default() });
        let long_ago = u64::MAX;
        machine.migrated_when_seen = long_ago;
        machine.drain();
        machine.observe().unwrap();
        machine.look();
        assert_eq!(machine.migrated_when_seen != long_ago, saw, "{address:#x}");
    }
}

#[test]
fn faults_in_files_that_are_only_read_do_not_tell_who_uses_them() {
    static READ: [u64; 3] = [4, 1, 3];
    let pid = Pid(std::process::id());
    let (read, written) = (READ.as_ptr() as u64, Box::new(0u64));
    let written = std::ptr::from_ref(&*written) as u64;
    for (address, by_faults, tells) in [(read, true, false), (read, false, true), (written, true, true)] {
        let mut machine = sampled(&[pid], Lossy { samples: 10, address, by_faults, ..Lossy::default() });
        machine.drain();
        assert_eq!(machine.observe().unwrap().samples.is_empty(), !tells, "{address:#x}, {by_faults}");
    }
}

#[test]
fn of_too_many_samples_some_are_looked_at_from_all_of_the_interval() {
    const EACH: u64 = 200_000;
    let mut machine = sampled(&[Pid(std::process::id())], Lossy { samples: EACH, ..Lossy::default() });
    machine.drain();
    assert_eq!(machine.bounds_met(), BTreeSet::new());
    machine.drain();
    let seen = machine.observe().unwrap();
    assert_eq!(machine.bounds_met(), BTreeSet::from([Bound::Samples]));
    let count = seen.samples.len();
    assert!((bounds::SAMPLES / 2..=bounds::SAMPLES).contains(&count), "{count}");
    for drain in 0..3 {
        let times = drain * EACH..(drain + 1) * EACH;
        let of_drain = seen.samples.iter().filter(|sample| times.contains(&sample.time_ns)).count();
        assert!(of_drain.abs_diff(count / 3) < 10, "{of_drain} of {count}");
    }
    assert_eq!(seen.samples_lost, 3 * EACH - count as u64 + 9);
    assert!(machine.observe().unwrap().samples.len() > 190_000, "the next interval begins anew");
}

#[test]
fn losses_are_counted_by_kind_to_the_end() {
    let mut machine = machine(&[Pid(std::process::id())]);
    assert_eq!(machine.observe().unwrap().samples_lost, 3);
    machine.drain();
    assert_eq!(machine.observe().unwrap().samples_lost, 6);
    machine.close().unwrap();
    let totals = machine.totals();
    assert_eq!((totals.samples_lost, totals.throttled, totals.aux_gaps), (19, 3, 3));
    assert!(totals.read.files > 0 && totals.read.bytes > 0 && totals.read.time_ns > 0);
}

#[test]
fn many_processes_are_surveyed_no_longer_than_one() {
    // Each waits for input, with a buffer of half of what is asked about.
    let mut dd = Command::new("dd");
    dd.arg("bs=512M").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut children: Vec<Child> = (0..4).map(|_| dd.spawn().unwrap()).collect();
    for child in &children {
        let size = || std::fs::read_to_string(format!("/proc/{}/statm", child.id())).unwrap();
        while size().split(' ').next().unwrap().parse::<usize>().unwrap() < SURVEY_PAGES / 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let pids: Vec<Pid> = children.iter().map(|child| Pid(child.id())).collect();
    let mut machine = machine(&pids);
    machine.observe().unwrap();
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Small mappings are asked about whole, large ones in blocks.
    let asked = machine.totals.homes_queried;
    assert!((SURVEY_PAGES as u64 * 9 / 10..=SURVEY_PAGES as u64).contains(&asked), "{asked}");
}

#[test]
fn moving_has_its_share_of_the_time_where_looking_is_slow() {
    let (allowed, second) = (Duration::from_millis(750), Duration::from_secs(1));
    assert_eq!(time_to_move(allowed, second / 50), allowed);
    assert_eq!(time_to_move(allowed, 2 * second), 2 * second);
    assert_eq!(time_to_move(allowed, 60 * second), 3 * second);
}

#[test]
fn of_processes_of_a_size_one_is_followed() {
    let states = |pages: &[(u32, u64)]| -> Vec<ProcessState> {
        let state = |&(pid, resident_pages)| ProcessState {
            pid: Pid(pid),
            fresh: false,
            resident_pages,
            mappings: None,
            hints: None,
            asked: false,
            confined: None,
            bound: Vec::new(),
            to_interleave: Vec::new(),
            unmoved: Vec::new(),
        };
        pages.iter().map(state).collect()
    };
    let followed = |before: Option<u32>, pages: &[(u32, u64)]| {
        large(before.map(Pid), &states(pages)).map(|state| state.pid.0)
    };
    assert_eq!(followed(None, &[(1, 100), (2, 110)]), Some(2));
    assert_eq!(followed(Some(1), &[(1, 100), (2, 110)]), Some(1));
    assert_eq!(followed(Some(1), &[(1, 100), (2, 150)]), Some(2));
    assert_eq!(followed(Some(3), &[(1, 100), (2, 90)]), Some(1), "it has ended");
    assert_eq!(followed(Some(3), &[]), None);
}
