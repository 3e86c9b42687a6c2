//! Policies side by side on real programs.

use nodewise_hardware::Preset;
use nodewise_sim::workloads::{self, Parameters};
use nodewise_sim::{Costs, POLICIES, Report, Settings, simulate};

fn run(workload: &str, policy: &str) -> Report {
    run_on("opteron-8385-4n", workload, policy, 16, 0.001)
}

fn run_on(machine: &str, workload: &str, policy: &str, threads: usize, scale: f64) -> Report {
    let preset = Preset::named(machine).unwrap().scaled(scale);
    let program = workloads::all().into_iter().find(|candidate| candidate.name == workload).unwrap();
    let build = || (program.build)(Parameters { threads, scale, seed: 1 });
    let settings = Settings { costs: Costs::of(&preset), ..Settings::scaled(scale) };
    simulate(&preset, &build, &settings, &policy.parse().unwrap(), &mut |_| ())
        .unwrap_or_else(|error| panic!("{workload} on {machine}, {policy}: {error}"))
}

/// All of them but FFT, whose size no scale changes; each run checks the program's result.
#[test]
fn every_workload_runs_under_every_policy() {
    let policies: Vec<String> =
        POLICIES.iter().map(|(name, _)| name.replace(":N", ":1")).chain(["ace+pragmas".to_owned()]).collect();
    for workload in workloads::all().into_iter().filter(|workload| workload.name != "fft") {
        for policy in &policies {
            // As many threads as there are cores, as by default.
            let report = run_on("opteron-8385-4n", workload.name, policy, 16, 5e-5);
            assert!(report.instructions > 0, "{}, {policy}", workload.name);
        }
    }
}

#[test]
fn every_machine_runs() {
    for machine in Preset::names() {
        for policy in ["first-touch", "interleave", "autonuma", "ace"] {
            assert!(run_on(machine, "pagerank", policy, 7, 1e-4).run_time_s > 0.0);
        }
    }
}

/// Policies that move pages or threads are ahead of any fixed placement if a program has phases. They are
/// also ahead if threads come into step, as in face recognition under the kernel's balancing.
#[test]
fn nobody_places_better_than_the_oracle() {
    for workload in ["streamcluster", "pca", "facerec", "ua", "hash-join", "mg"] {
        let oracle = run(workload, "oracle");
        for (name, _) in POLICIES.iter().filter(|(name, _)| !name.contains(":N")) {
            let other = run(workload, name);
            assert!(oracle.run_time_s <= other.run_time_s, "{workload}: {oracle:?} {other:?}");
        }
    }
}

/// The engine's interval shrinks by the passes, and may become a part of one of FT's transforms. A decision
/// that is right for that one is wrong for the next, and a real interval sees all of them.
#[test]
fn what_carrefour_does_to_a_program_in_iterations_does_not_hang_on_the_passes() {
    let scale = 1.0 / 64.0;
    let preset = Preset::named("opteron-8385-4n").unwrap().scaled(scale);
    for (name, most) in [("ft", 1.04), ("is", 1.0)] {
        let workload = workloads::all().into_iter().find(|candidate| candidate.name == name).unwrap();
        let build = || (workload.build)(Parameters { threads: 16, scale, seed: 1 });
        let relative_time = |passes: f64| {
            let settings = Settings { period_scale: scale / passes, ..Settings::scaled(scale) };
            let run_time_s = |policy: &str| {
                let policy = policy.parse().unwrap();
                simulate(&preset, &build, &settings, &policy, &mut |_| ()).unwrap().run_time_s
            };
            run_time_s("carrefour") / run_time_s("first-touch")
        };
        let times = [26.0, 60.0, 100.0, 200.0].map(relative_time);
        let (least, longest) = times
            .iter()
            .fold((f64::MAX, 0f64), |(least, longest), &time| (least.min(time), longest.max(time)));
        assert!(longest <= most && longest - least < 0.03, "{name}: {times:?}");
    }
}

#[test]
fn shared_data_that_is_only_read_is_copied() {
    for policy in ["oracle", "ace"] {
        let report = run("streamcluster", policy);
        assert!(report.pages_replicated > 0 && report.local_access_percent > Some(90.0), "{report:?}");
    }
}

/// Each thread's own memory is a few pages here, in an area of its own.
#[test]
fn small_areas_are_interleaved_over_all_nodes() {
    let report = run_on("opteron-6272-8n", "dc", "interleave", 64, 0.002);
    let (least, most) = (report.resident_pages.iter().min(), report.resident_pages.iter().max());
    assert!(least > Some(&0) && most.unwrap() < &(2 * least.unwrap()), "{:?}", report.resident_pages);
}

/// Nodes 2 and 3 of the machine have memory behind CXL, and no CPUs.
#[test]
fn policies_cope_with_nodes_without_cpus() {
    for workload in ["cg", "pagerank"] {
        for (name, _) in POLICIES {
            let policy = name.replace(":N", ":1");
            let report = run_on("epyc-cxl-4n", workload, &policy, 12, 0.01);
            let lines: u64 = report.traffic[..2].iter().flatten().sum();
            assert!(
                lines > 0 && report.traffic[2..].iter().flatten().sum::<u64>() == 0,
                "{name}: {report:?}"
            );
            // The ACE's global memory is where no CPUs are, and the fastest of all may be under that.
            let spreads = name.contains("interleave") || name == "blocked";
            if spreads || !["ace", "oracle"].contains(&name) {
                let there: u64 = report.resident_pages[2..].iter().sum();
                assert_eq!(there > 0, spreads, "{workload}, {name}: {:?}", report.resident_pages);
            }
        }
    }
}

/// Worked out by hand: 64 bytes in 0.278 ns are 230 216 MB/s, and the links of the modules have 27 000. Parts
/// of 32 are 14.3 and 1.7.
#[test]
fn weights_come_of_the_bandwidths_if_none_are_given() {
    let report = run_on("epyc-cxl-4n", "pagerank", "weighted-interleave", 8, 0.01);
    let given = run_on("epyc-cxl-4n", "pagerank", "weighted-interleave:14/14/1/1", 8, 0.01);
    assert_eq!(report.resident_pages, given.resident_pages);
    let even = run_on("epyc-cxl-4n", "pagerank", "interleave", 8, 0.01);
    assert!(report.resident_pages[2] * 10 < report.resident_pages[0], "{:?}", report.resident_pages);
    assert!(even.resident_pages[2] * 5 > even.resident_pages[0] * 4, "{:?}", even.resident_pages);
    assert!(report.run_time_s < even.run_time_s, "{report:?} {even:?}");
}
