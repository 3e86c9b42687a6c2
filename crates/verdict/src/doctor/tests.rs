use super::*;

/// A busy program on four nodes, whose memory is where it was asked to be.
fn evidence(local_percent: f64) -> Evidence {
    Evidence {
        seconds: 30.0,
        cpu_percent: 390.0,
        nodes: 4,
        samples: 5000,
        sampler: "hint faults".to_owned(),
        local_percent: Some(local_percent),
        imbalance_percent: Some(0.0),
        resident_bytes: Some(1 << 30),
        cache_bytes: Some(16 << 20),
        far_ratio: 2.0,
        far_source: "firmware's distances".to_owned(),
        hidden_percent: Some(1.0),
        ..Evidence::default()
    }
}

fn verdict_of(evidence: Evidence) -> (Verdict, String) {
    let diagnosis = diagnose(42, evidence);
    (diagnosis.verdict, diagnosis.text)
}

#[test]
fn misplaced_memory_hurts_by_distance_and_by_the_queue() {
    // 75 % far at twice the time: 1.75 times longer, of which 43 % are the way.
    let far = Evidence { to_collocate: 8, ..evidence(25.0) };
    let diagnosis = diagnose(42, far.clone());
    assert_eq!((diagnosis.verdict, diagnosis.remedy), (Verdict::Hurt, Some(Remedy::Collocate)));
    assert!((diagnosis.cost_percent.unwrap() - 42.86).abs() < 0.01, "{diagnosis:?}");
    assert_eq!(diagnosis.command.as_deref(), Some("nodewise attach 42"));
    let managed = diagnose(42, Evidence { managed_by: Some(7), ..far.clone() });
    assert_eq!((managed.verdict, managed.command), (Verdict::Hurt, None));
    assert!(managed.text.ends_with("; Nodewise, process 7, manages it already and moves them there."));
    // All on one of four nodes (200 %): three quarters of the time are the queue.
    let queued = diagnose(42, Evidence { imbalance_percent: Some(200.0), ..far });
    assert!((queued.cost_percent.unwrap() - 75.0).abs() < 1e-9, "{queued:?}");
    let shared = Evidence { to_interleave: 3, imbalance_percent: Some(200.0), ..evidence(25.0) };
    assert_eq!(diagnose(42, shared).remedy, Some(Remedy::Interleave));
    // More ranges were to be spread at first, and next to all that is far has one user.
    let mixed = Evidence {
        to_collocate: 5,
        to_interleave: 8,
        collocation_adds_percent: Some(74.3),
        imbalance_percent: Some(175.0),
        ..evidence(25.6)
    };
    assert_eq!(diagnose(42, mixed.clone()).remedy, Some(Remedy::Collocate));
    let mostly_shared = Evidence { collocation_adds_percent: Some(20.0), ..mixed };
    assert_eq!(diagnose(42, mostly_shared).remedy, Some(Remedy::Interleave));
    // The engine had not come to what is shared yet.
    let early = Evidence {
        to_collocate: 3,
        collocation_adds_percent: Some(0.0),
        imbalance_percent: Some(196.0),
        ..evidence(25.0)
    };
    assert_eq!(diagnose(42, early.clone()).remedy, Some(Remedy::Interleave));
    let even = Evidence { imbalance_percent: Some(20.0), ..early };
    assert_eq!(diagnose(42, even).remedy, Some(Remedy::Collocate));
    // The kernel was quicker than the engine.
    let moved = Evidence { local_at_end_percent: Some(80.0), ..evidence(25.0) };
    assert_eq!(diagnose(42, moved).remedy, Some(Remedy::Collocate));
    // It is not known where the memory lies at the end, but who uses it is.
    let large = Evidence { collocation_adds_percent: Some(74.0), ..evidence(25.0) };
    assert_eq!(diagnose(42, large).remedy, Some(Remedy::Collocate));
    let split = Evidence { falsely_shared: 3, to_interleave: 9, ..evidence(25.0) };
    assert_eq!(diagnose(42, split).remedy, Some(Remedy::Split));
}

#[test]
fn a_cost_that_was_measured_is_no_bound() {
    let matrix = |of: &dyn Fn(usize, usize) -> f64| -> Vec<Vec<f64>> {
        (0..4).map(|from| (0..4).map(|to| of(from, to)).collect()).collect()
    };
    let ways = matrix(&|from, to| if from == to { 300.0 } else { 400.0 });
    let accesses = matrix(&|_, to| if to == 0 { 1e6 } else { 0.0 });
    // Each access is waited for, 375 cycles in the mean, after 125 others.
    let (cycles, work_cycles) = (4e6 * 500.0, 4e6 * 125.0);
    let load =
        Load { accesses, latencies: ways.clone(), ways, cycles, work_cycles, cpus: 4.0, ..Load::default() };
    let far = Evidence { to_collocate: 8, load: Some(load), ..evidence(25.0) };
    let Diagnosis { verdict, text, cost_percent, cost_is_bound, .. } = diagnose(42, far.clone());
    // The far ones take 525 cycles, and then 425.
    assert!(verdict == Verdict::Hurt && !cost_is_bound && text.contains("costs about 19 %"), "{text}");
    assert!((cost_percent.unwrap() - 100.0 * 100.0 / 525.0).abs() < 0.1, "{cost_percent:?}");
    let spread = Evidence { to_collocate: 0, to_interleave: 8, ..far.clone() };
    let Diagnosis { verdict, text, .. } = diagnose(42, spread);
    assert!(verdict == Verdict::Healthy && text.contains("about 4.8 %"), "{text}");
    // Some of its memory has one user, and only that gains.
    let hardly = Evidence { collocation_adds_percent: Some(2.0), to_interleave: 3, ..far.clone() };
    let Diagnosis { verdict, text, .. } = diagnose(42, hardly.clone());
    assert!(verdict == Verdict::Healthy && text.contains("about 4.8 %"), "{text}");
    let private = Evidence { to_interleave: 0, ..hardly };
    let text = diagnose(42, private).text;
    assert!(text.contains("about 0.5 %"), "{text}");
    // A queue that was not measured is none.
    let shared =
        Evidence { to_collocate: 0, local_at_end_percent: Some(25.0), imbalance_percent: Some(170.0), ..far };
    assert_eq!(diagnose(42, shared).verdict, Verdict::Healthy);
}

#[test]
fn the_healthy_get_silence() {
    let healthy = |evidence: Evidence| {
        let diagnosis = diagnose(42, evidence);
        assert!(diagnosis.text.starts_with("Nothing to do here: "), "{}", diagnosis.text);
        assert_eq!((diagnosis.verdict, diagnosis.remedy, diagnosis.command), (Verdict::Healthy, None, None));
        diagnosis.text
    };
    healthy(evidence(99.0));
    // Memory that is far and cannot be nearer: shared by all, and spread.
    let spread = Evidence { local_at_end_percent: Some(27.0), ..evidence(25.0) };
    assert!(healthy(spread.clone()).contains("no other place is better"));
    // The engine saw its first look only: the kernel's balancing has spread it since.
    let even = Evidence { to_interleave: 9, imbalance_percent: Some(23.0), ..spread };
    assert!(!healthy(even.clone()).contains("copy"));
    let copies = Evidence { local_with_copies_percent: Some(99.0), ..even };
    assert!(healthy(copies).contains("would make 99 % near"));
    // Samples came of one node's part first, and one page of it looked shared.
    let near = Evidence { to_interleave: 1, imbalance_percent: Some(80.0), ..evidence(99.6) };
    assert!(healthy(Evidence { collocation_adds_percent: Some(0.1), ..near }).contains("are near"));
    // Little can be gained: 4 % far.
    healthy(Evidence { to_collocate: 1, ..evidence(96.0) });
    assert!(
        healthy(Evidence { cpu_percent: 1.0, to_collocate: 9, ..evidence(0.0) }).contains("1.0 % of one CPU")
    );
    healthy(Evidence { nodes: 1, ..evidence(0.0) });
    let small = Evidence { resident_bytes: Some(1 << 20), to_collocate: 9, ..evidence(0.0) };
    assert!(healthy(small.clone()).contains("fits in a cache"));
    // More may be in use, of a process and all that it started, than was resident at the one look.
    assert_eq!(verdict_of(Evidence { used_bytes: Some(1 << 30), ..small }).0, Verdict::Hurt);
    let quiet = Evidence { local_percent: None, samples: 3, cpu_percent: 8.0, ..evidence(0.0) };
    assert!(healthy(quiet).contains("hardly works"));
}

/// The imbalance is one of the nodes over which accesses should be even.
#[test]
fn nodes_without_cpus_are_none_to_spread_over() {
    // One of two nodes serves all, and two more have memory only.
    let uneven = Evidence { imbalance_percent: Some(2f64.sqrt() * 100.0), ..evidence(50.0) };
    let two = Evidence { imbalance_nodes: Some(2), ..uneven.clone() };
    assert!((by_queue(&two) - 50.0).abs() < 1e-9, "{}", by_queue(&two));
    assert!(by_queue(&uneven) > 60.0);
    let one = Evidence { imbalance_nodes: Some(1), ..uneven };
    assert!(by_queue(&one).abs() < 1e-9);
}

/// Below 5 % there is no finding, and above there is.
#[test]
fn five_percent_is_where_findings_begin() {
    let at = |local| verdict_of(Evidence { to_collocate: 9, ..evidence(local) }).0;
    // 5 % of the time are 5.26 % of far accesses at twice the time.
    assert_eq!((at(94.8), at(94.7)), (Verdict::Healthy, Verdict::Hurt));
}

#[test]
fn what_cannot_be_seen_is_not_called_healthy() {
    let blind = Evidence { local_percent: None, samples: 3, hidden_percent: Some(97.0), ..evidence(0.0) };
    let (verdict, text) = verdict_of(blind);
    assert!(verdict == Verdict::Unknown && text.contains("97 % of its memory is bound"), "{text}");
    let why = Some("only 150 samples tell who uses the memory".to_owned());
    let few = Evidence { local_percent: None, samples: 150, unknown: why, ..evidence(0.0) };
    assert_eq!(verdict_of(few).0, Verdict::Unknown);
    // The part that samples show may be small, and the memory large.
    let part = Evidence { used_bytes: Some(1 << 20), to_collocate: 9, ..evidence(0.0) };
    assert_eq!(verdict_of(part).0, Verdict::Hurt);
    let busy = Evidence { local_percent: None, samples: 3, ..evidence(0.0) };
    assert_eq!(verdict_of(busy).0, Verdict::Unknown);
    // One node serves all, and nothing was decided.
    let idle = Evidence { imbalance_percent: Some(200.0), ..evidence(25.0) };
    assert_eq!(verdict_of(idle).0, Verdict::Unknown);
    // There is so much memory that most of it has not shown yet.
    let (unknown, resident_bytes) = (Some("not all".to_owned()), Some(1 << 40));
    let large = Evidence { unknown, resident_bytes, ..evidence(25.0) };
    let Diagnosis { verdict, text, command, .. } = diagnose(42, large);
    assert!(verdict == Verdict::Unknown && text.contains("75 % of its accesses are far"), "{text}");
    assert_eq!(command.unwrap(), "nodewise doctor -p 42 --seconds 1228");
    let short = Evidence { local_percent: None, samples: 3, seconds: 3.0, ..evidence(0.0) };
    assert_eq!(verdict_of(short).0, Verdict::Unknown);
}

/// An inference server's weights are a file that it only reads.
#[test]
fn a_verdict_by_a_small_part_of_the_memory_says_so() {
    let weights = UnseenFiles { bytes: 4 << 30, node: 2, node_percent: 72.0, are_uneven: true };
    let with =
        |unseen_files, of: Evidence| diagnose(42, Evidence { used_bytes: Some(8 << 20), unseen_files, ..of });
    let near = with(Some(weights), evidence(99.0));
    assert_eq!(near.verdict, Verdict::Unknown);
    assert!(near.text.contains("4096 MiB of files") && near.text.contains("72 % of the files lie on node 2"));
    assert_eq!(near.command.as_deref(), Some("nodewise attach 42 --interleave-files"));
    let even = with(Some(UnseenFiles { are_uneven: false, ..weights }), evidence(99.0));
    assert_eq!(even.verdict, Verdict::Unknown);
    assert!(!even.text.contains("--interleave-files"), "{}", even.text);
    let hurt = with(Some(weights), Evidence { to_collocate: 8, ..evidence(25.0) });
    assert_eq!(hurt.verdict, Verdict::Hurt);
    let files =
        "Not in this are 4096 MiB of files that it only reads: hint faults cannot see them; 72 % of the";
    assert!(hurt.text.contains(files), "{}", hurt.text);
    // So may a database's memory be.
    let huge = Evidence { unseen_huge_bytes: 8 << 30, ..evidence(99.0) };
    let both = with(Some(weights), huge.clone());
    assert!(
        both.text.contains("4096 MiB of files that it only reads and 8192 MiB of huge pages by reservation")
    );
    let huge = with(None, huge);
    assert_eq!((huge.verdict, huge.command), (Verdict::Unknown, None));
    assert_eq!(
        huge.text,
        "Cannot tell: 8192 MiB of huge pages by reservation cannot be seen by hint faults."
    );
    // More is seen than not, or the program rests.
    let small = with(Some(UnseenFiles { bytes: 1 << 20, ..weights }), evidence(99.0));
    assert_eq!(small.verdict, Verdict::Healthy);
    let idle = with(Some(weights), Evidence { cpu_percent: 4.0, ..evidence(99.0) });
    assert_eq!(idle.verdict, Verdict::Healthy);
    assert_eq!(with(None, evidence(99.0)).verdict, Verdict::Healthy);
}

/// A busy program whose memory is where it is used, with so much of its CPU time in the kernel.
fn in_kernel(balancing: f64, returning: f64, taking: f64) -> Evidence {
    let kernel = KernelTime {
        samples: 1000,
        kernel_percent: balancing + returning + taking,
        balancing_percent: balancing,
        returning_percent: returning,
        taking_percent: taking,
        later_percent: Some([returning, taking]),
        faults: 1000,
        shootdowns_per_s: Some(4000.0),
        ..KernelTime::default()
    };
    let (kernel, command) = (Some(kernel), vec!["./solver".to_owned(), "a b".to_owned()]);
    Evidence { kernel, command, used_bytes: Some(64 << 20), ..evidence(99.0) }
}

#[track_caller]
fn hurt_by(evidence: Evidence, remedy: Remedy, cost_percent: f64) -> Diagnosis {
    let found = diagnose(42, evidence);
    assert_eq!((found.verdict, found.remedy), (Verdict::Hurt, Some(remedy)), "{}", found.text);
    assert!((found.cost_percent.unwrap() - cost_percent).abs() < 1e-9, "{found:?}");
    found
}

#[test]
fn pages_that_go_back_and_forth_cost_the_kernels_time() {
    // 64 MiB in use, and 128 moved.
    let moved = |pages| Evidence { pages_moved_by_kernel: pages, ..in_kernel(12.0, 0.0, 0.0) };
    let found = hurt_by(moved(32 << 10), Remedy::StopBalancing, 12.0);
    assert!(found.text.contains("moved 128 MiB, which is 2 times"), "{}", found.text);
    assert!(!found.cost_is_bound);
    // On their way to their users, once.
    assert_eq!(diagnose(42, moved(16 << 10)).verdict, Verdict::Healthy);
    // Whatever the engine would do with them meanwhile.
    let also = Evidence { to_collocate: 8, local_percent: Some(25.0), ..moved(32 << 10) };
    hurt_by(also, Remedy::StopBalancing, 12.0);
    let little = Evidence { pages_moved_by_kernel: 32 << 10, ..in_kernel(4.9, 0.0, 0.0) };
    assert_eq!(diagnose(42, little).verdict, Verdict::Healthy);
}

#[test]
fn memory_that_is_taken_again_and_again_is_to_be_kept() {
    let found = hurt_by(in_kernel(0.0, 4.0, 90.0), Remedy::KeepMemory, 94.0);
    assert!(found.text.contains("4000 times a second"), "{}", found.text);
    assert!(found.command.unwrap().ends_with(" ./solver 'a b'"));
    // A program that fills its memory, and one that gives hardly any back.
    let mut fills = in_kernel(0.0, 4.0, 50.0);
    fills.kernel.as_mut().unwrap().grown_bytes = 600 * 4096;
    // One that only began so, and then works, and one that then fills its memory.
    let begins = |later| {
        let mut begins = in_kernel(0.0, 4.0, 90.0);
        begins.kernel.as_mut().unwrap().later_percent = Some(later);
        begins
    };
    let [works, goes_on_to_fill] = [[0.1, 0.9], [0.1, 30.0]].map(begins);
    for healthy in [fills, works, goes_on_to_fill, in_kernel(0.0, 0.1, 50.0), in_kernel(0.0, 2.0, 2.9)] {
        assert_eq!(diagnose(42, healthy).verdict, Verdict::Healthy);
    }
    // The larger cost is named.
    let far = Evidence { to_collocate: 8, local_percent: Some(25.0), ..in_kernel(0.0, 2.0, 20.0) };
    assert_eq!(diagnose(42, far).remedy, Some(Remedy::Collocate));
    let idle = Evidence { cpu_percent: 1.0, ..in_kernel(0.0, 4.0, 90.0) };
    assert_eq!(diagnose(42, idle).verdict, Verdict::Healthy);
}

#[test]
fn lines_that_nodes_take_from_each_other_are_named() {
    let small = Evidence { resident_bytes: Some(1 << 20), ..evidence(30.0) };
    let found = hurt_by(Evidence { taken_percent: Some(40.0), ..small.clone() }, Remedy::Privatise, 40.0);
    assert!(found.cost_is_bound && found.command.unwrap().starts_with("nodewise profile -p 42"));
    // Half of that time is hidden behind instructions.
    let near = |of: f64| (0..4).map(|a| (0..4).map(|b| if a == b { of } else { 0.0 }).collect()).collect();
    let load = Load {
        accesses: near(1e6),
        latencies: near(300.0),
        ways: near(300.0),
        cycles: 4e6 * 1000.0,
        work_cycles: 4e6 * 600.0,
        cpus: 4.0,
        taken: vec![5e8; 4],
        ..Load::default()
    };
    let measured = Evidence { taken_percent: Some(62.5), load: Some(load), ..small.clone() };
    let found = diagnose(42, measured);
    assert!(found.text.contains("costs about 25 %") && !found.cost_is_bound, "{}", found.text);
    assert_eq!(diagnose(42, Evidence { taken_percent: Some(19.0), ..small }).verdict, Verdict::Healthy);
}

#[test]
fn a_disk_that_is_far_from_all_threads_is_named() {
    let disk = Disk {
        file: "/data/base".to_owned(),
        node: 2,
        cpus: "8-11".to_owned(),
        bytes_per_s: 1e9,
        runs_there_percent: 0.0,
    };
    let reads = |disk| Evidence { disk: Some(disk), cpu_percent: 3.0, ..evidence(99.0) };
    let found = diagnose(42, reads(disk.clone()));
    assert_eq!((found.verdict, found.remedy), (Verdict::Unknown, Some(Remedy::RunNearDisk)));
    assert_eq!(found.command.as_deref(), Some("taskset -apc 8-11 42"));
    assert!(found.text.contains("1000 MB a second") && found.text.contains("node 2"), "{}", found.text);
    for near in [
        Disk { runs_there_percent: 50.0, ..disk.clone() },
        Disk { bytes_per_s: 1e7, ..disk.clone() },
        Disk { cpus: String::new(), ..disk },
    ] {
        assert_eq!(diagnose(42, reads(near)).verdict, Verdict::Healthy);
    }
}
