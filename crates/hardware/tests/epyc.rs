//! The EPYC presets: memory behind CXL is as far and as wide as they say, and each die has an LLC of its own.
#![allow(missing_docs)]

use nodewise_hardware::{Hardware, Preset, Source};

/// The mean latency in ns of a pointer chase by CPU 0 through a node's memory.
fn chase_ns(preset: &Preset, home: usize) -> f64 {
    let mut hw = Hardware::new(preset);
    let steps = 1000;
    let latencies = (0..steps).map(|step| hw.chase(0, step * 4160, home).latency_ps);
    latencies.sum::<u64>() as f64 / steps as f64 / 1000.0
}

/// GB/s that CPUs get from a node's memory when each reads lines of its own.
fn stream_gb_per_s(preset: &Preset, cpus: std::ops::Range<usize>, home: usize) -> f64 {
    let mut hw = Hardware::new(preset);
    let lines = 40_000;
    for line in 0..lines {
        let cpu = cpus.clone().min_by_key(|&cpu| hw.clock(cpu)).unwrap();
        hw.read(cpu, ((cpu as u64) << 30) + line * 4160 % (1 << 30), home);
    }
    cpus.clone().for_each(|cpu| hw.drain(cpu));
    let end_ps = cpus.map(|cpu| hw.clock(cpu)).max().unwrap();
    (lines * preset.line_bytes) as f64 * 1000.0 / end_ps as f64
}

fn near(value: f64, expected: f64) -> bool {
    (value / expected - 1.0).abs() < 0.02
}

#[test]
fn memory_behind_cxl_is_as_far_and_as_wide_as_the_preset_says() {
    let preset = Preset::named("epyc-cxl-4n").unwrap();
    // The controller's, and twice the links' 51 and 40 ns.
    for (home, ns) in [(0, 118.0), (1, 220.0), (2, 250.0), (3, 352.0)] {
        let latency_ns = chase_ns(&preset, home);
        assert!(near(latency_ns, ns), "node {home}: {latency_ns} ns, not {ns}");
    }
    // The modules' by their links, whichever socket reads.
    for home in [2, 3] {
        let bandwidth = stream_gb_per_s(&preset, 0..48, home);
        assert!(near(bandwidth, 27.0), "node {home}: {bandwidth} GB/s");
    }
    // 64 bytes in 0.278 ns are 230, less what banks in use cost.
    let bandwidth = stream_gb_per_s(&preset, 0..48, 0);
    assert!((0.9..1.0).contains(&(bandwidth / 230.2)), "{bandwidth} GB/s");
}

#[test]
fn a_die_finds_nothing_in_the_llcs_of_others() {
    for (name, cores_of_a_die, dies_of_a_node) in [("epyc-nps4", 8, 3), ("epyc-cxl-4n", 6, 8)] {
        let preset = Preset::named(name).unwrap();
        assert_eq!(preset.nodes[0].cores, cores_of_a_die * dies_of_a_node);
        let mut hw = Hardware::new(&preset);
        for die in 0..dies_of_a_node {
            let first = die * cores_of_a_die;
            assert_eq!(hw.read(first, 0, 0).source, Source::LocalDram, "{name}, die {die}");
            for core in first + 1..first + cores_of_a_die {
                assert_eq!(hw.read(core, 0, 0).source, Source::Llc, "{name}, core {core}");
            }
        }
    }
}
