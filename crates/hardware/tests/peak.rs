//! The bandwidth of the presets' controllers, which banks must not take away, and their banks.
#![allow(missing_docs)]

use nodewise_hardware::{Hardware, Preset};

/// GB/s of one node's CPUs that read their own memory.
fn read_gb_per_s(preset: &Preset) -> f64 {
    let mut hardware = Hardware::new(preset);
    let cpus = preset.cpus_of_node(0);
    let mut read = vec![0; cpus];
    let reads = 400_000;
    for _ in 0..reads {
        let cpu = (0..cpus).min_by_key(|&cpu| hardware.clock(cpu)).unwrap();
        hardware.read(cpu, ((cpu as u64) << 30) + read[cpu] * 64, 0);
        read[cpu] += 1;
    }
    let end_ps = (0..cpus).map(|cpu| hardware.clock(cpu)).min().unwrap();
    hardware.counters().controllers[0].bytes as f64 * 1000.0 / end_ps as f64
}

#[test]
fn all_cpus_get_the_bandwidth_of_their_node() {
    for name in Preset::names().filter(|&name| name != "ace-7") {
        let preset = Preset::named(name).unwrap().scaled(1e-3);
        let peak = preset.line_bytes as f64 / preset.controller.service_ns;
        let read = read_gb_per_s(&preset);
        println!("{name}: {read:.1} of {peak:.1} GB/s, {:.3}", read / peak);
        assert!(read > 0.98 * peak && read < 1.01 * peak, "{name}: {read} of {peak} GB/s");
    }
}

/// Presets whose bandwidth is that of their memory's bus have the banks of the one calibration. The Opterons'
/// controllers get less than half of the bus, so that it is not banks that bound them. The E7's bandwidth is
/// an estimate, and its memory is behind buffers, as no machine's of the curves.
#[test]
fn banks_are_those_of_one_calibration() {
    for name in Preset::names() {
        let controller = Preset::named(name).unwrap().controller;
        if controller.banks > 0 {
            assert_eq!(controller, controller.with_banks(), "{name}");
        } else {
            let without = ["ace-7", "opteron-6272-8n", "opteron-8385-4n", "xeon-e7-4830v3-4n"];
            assert!(without.contains(&name), "{name}");
        }
    }
}
