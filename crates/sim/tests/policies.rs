//! Policies side by side on real programs.

use nodewise_hardware::Preset;
use nodewise_sim::workloads::{self, Parameters};
use nodewise_sim::{Report, Settings, simulate};

fn run(workload: &str, policy: &str) -> Report {
    let scale = 0.001;
    let preset = Preset::named("opteron-8385-4n").unwrap().scaled(scale);
    let workload = workloads::all().into_iter().find(|candidate| candidate.name == workload).unwrap();
    let build = || (workload.build)(Parameters { threads: preset.cores(), scale, seed: 1 });
    let policy = policy.parse().unwrap();
    simulate(&preset, &build, &Settings::scaled(scale), &policy, &mut |_| ()).unwrap()
}

/// The oracle's placement is free, and the others have to find theirs. (They may come close: 1 % is granted for accesses that
/// are made otherwise in the second run.)
#[test]
fn nobody_places_better_than_the_oracle() {
    for workload in ["streamcluster", "pca"] {
        let oracle = run(workload, "oracle");
        for policy in ["first-touch", "interleave", "carrefour", "ace"] {
            let other = run(workload, policy);
            assert!(oracle.run_time_s < 1.01 * other.run_time_s, "{workload}: {oracle:?} {other:?}");
        }
    }
}

#[test]
fn shared_data_that_is_only_read_is_copied() {
    for policy in ["oracle", "ace"] {
        let report = run("streamcluster", policy);
        assert!(report.pages_replicated > 0 && report.local_access_percent > Some(90.0), "{report:?}");
    }
}
