//! A guest on a modelled machine has that machine's time. Programs' own clocks are held against the preset
//! and against the simulator's hardware.

mod guests;

use guests::{c_program, programs};
use nodewise_hardware::{Hardware, Preset};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Caches a tenth their size let a few MiB be more than they hold.
const SCALE: f64 = 0.1;

/// Runs a program under `nodewise rig --machine`, and returns its output and the report.
fn rig(machine: &str, options: &[&str], program: &[&str]) -> (String, Value) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(&programs().nodewise);
    // The machine's time does not hang on what else runs here, and such a guest is on one CPU of it.
    command.env("NODEWISE_RIG_EXCLUSIVE", "0");
    command.args(["rig", "--machine", machine, "--scale", &SCALE.to_string(), "--cpus-per-node", "1"]);
    command.args(options).arg("--json").arg(file.path()).arg("--").args(program);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    let report = serde_json::from_str(&std::fs::read_to_string(file.path()).unwrap()).unwrap();
    (String::from_utf8(output.stdout).unwrap(), report)
}

fn machine_c() -> String {
    c_program("modelled/machine.c").to_str().unwrap().to_owned()
}

/// The machine as the guest has it.
fn preset(name: &str) -> Preset {
    let mut preset = Preset::named(name).unwrap().scaled(SCALE);
    preset.nodes.iter_mut().for_each(|node| node.cores = 1);
    preset
}

/// Each pair's latency is the preset's, to within 5 %, whatever the machine's links.
fn latencies_are_the_presets(name: &str) {
    let preset = preset(name);
    let nodes = preset.nodes.len();
    let (output, report) =
        rig(name, &["--mem-per-node", "256M"], &[&machine_c(), "latency", &nodes.to_string()]);
    let mut pairs = 0;
    for line in output.lines() {
        let mut words = line.split(' ');
        let mut number = || words.next().unwrap().parse::<f64>().unwrap();
        let (cpu, node, measured_ns) = (number() as usize, number() as usize, number());
        let expected_ns = Hardware::new(&preset).read(cpu, 1 << 30, node).latency_ps as f64 / 1000.0;
        let off = 100.0 * (measured_ns / expected_ns - 1.0);
        println!(
            "{name}: CPU {cpu}, node {node}: {measured_ns} ns, {expected_ns} by the preset: {off:+.1} %"
        );
        assert!(off.abs() < 5.0, "{name}: CPU {cpu}, node {node}: {measured_ns} ns instead of {expected_ns}");
        pairs += 1;
    }
    assert_eq!(pairs, nodes * nodes);
    assert!(report["late_percent"].as_f64().unwrap() < 1.0, "{report}");
}

#[test]
fn latencies_of_a_square_are_the_presets() {
    latencies_are_the_presets("opteron-8385-4n");
}

#[test]
#[ignore = "for `make slow`: latencies_of_a_square_are_the_presets on another machine"]
fn latencies_of_a_ring_of_four_are_the_presets() {
    latencies_are_the_presets("xeon-e7-4830v3-4n");
}

#[test]
#[ignore = "for `make slow`: latencies_of_a_square_are_the_presets on another machine"]
fn latencies_of_eight_nodes_of_unlike_distances_are_the_presets() {
    latencies_are_the_presets("opteron-6272-8n");
}

/// So many bytes are read of each node.
const READ_BYTES: u64 = 8_000_000;

/// MB/s at which a core reads a node's memory, from its first byte to its last, which that node's core has
/// just written.
fn read_mb_per_s(preset: &Preset, core: usize, home: usize) -> f64 {
    let mut hardware = Hardware::new(preset);
    let addresses = || (0..READ_BYTES).step_by(8).map(|byte| 1 << 30 | byte);
    for address in addresses() {
        hardware.write(home, address, home);
    }
    hardware.drain(home);
    let begin = hardware.clock(home);
    hardware.set_clock(core, begin);
    for address in addresses() {
        hardware.read(core, address, home);
    }
    hardware.drain(core);
    READ_BYTES as f64 * 1e6 / (hardware.clock(core) - begin) as f64
}

/// likwid-bench finds the bandwidth of each pair that the simulator's hardware has, to within 10 %.
fn bandwidths_are_the_presets(name: &str) {
    let preset = preset(name);
    let script = "PATH=$PATH:/usr/sbin; for cpu in 0 1 2 3; do for node in 0 1 2 3; do
        printf '%s %s ' $cpu $node; likwid-bench -t load -i 1 -w S$cpu:8MB:1-0:S$node 2>&1 | grep MByte/s; done; done";
    // It looks for a program of its own with bash.
    let options =
        ["/usr/bin/likwid-bench", "/usr/sbin/likwid-accessD", "/usr/bin/bash"].map(|file| ["--copy", file]);
    let (output, _) = rig(name, options.as_flattened(), &["sh", "-c", script]);
    let mut pairs = 0;
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (cpu, node): (usize, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        let (measured, expected) = (words[3].parse::<f64>().unwrap(), read_mb_per_s(&preset, cpu, node));
        let off = 100.0 * (measured / expected - 1.0);
        println!("{name}: CPU {cpu}, node {node}: {measured} MB/s, {expected:.0} by the preset: {off:+.1} %");
        assert!(off.abs() < 10.0, "{name}: CPU {cpu}, node {node}: {measured} instead of {expected}");
        pairs += 1;
    }
    assert_eq!(pairs, 16);
}

#[test]
fn bandwidths_of_a_square_are_the_presets() {
    bandwidths_are_the_presets("opteron-8385-4n");
}

#[test]
#[ignore = "for `make slow`: CI has 90 minutes"]
fn bandwidths_of_a_ring_of_four_are_the_presets() {
    bandwidths_are_the_presets("xeon-e7-4830v3-4n");
}

/// The time in which four cores read 4 MiB each, in order of time.
fn streams_s(preset: &Preset, home: impl Fn(usize) -> usize) -> f64 {
    let mut hardware = Hardware::new(preset);
    let mut left = [4 << 20 >> 6; 4];
    while let Some(core) = (0..4).filter(|&core| left[core] > 0).min_by_key(|&core| hardware.clock(core)) {
        left[core] -= 1;
        hardware.execute(core, 4); // the other instructions of the loop
        hardware.read(core, (core as u64) << 30 | left[core] << 6, home(core));
    }
    (0..4).for_each(|core| hardware.drain(core));
    (0..4).map(|core| hardware.clock(core)).max().unwrap() as f64 / 1e12
}

#[test]
fn one_controller_for_all_costs_what_the_simulator_says() {
    let name = "opteron-8385-4n";
    let measured = |where_| -> (f64, Value) {
        let (output, report) = rig(name, &[], &[&machine_c(), "stream", where_, "1"]);
        (output.trim().parse().unwrap(), report)
    };
    let ((one_s, one), (blocked_s, _)) = (measured("one"), measured("blocked"));
    let preset = preset(name);
    let simulated = streams_s(&preset, |_| 0) / streams_s(&preset, |core| core);
    let ratio = one_s / blocked_s;
    println!("{one_s} s on one controller, {blocked_s} s on four: {ratio:.2}, {simulated:.2} simulated");
    assert!((ratio / simulated - 1.0).abs() < 0.1, "{ratio} instead of {simulated}");
    // The report tells the same of the run: all four CPUs at one node's memory, three times.
    let traffic = |from: usize, to: usize| one["traffic"][from][to].as_u64().unwrap();
    let lines = 4u64 << 20 >> 6;
    for from in 1..4 {
        assert!((3 * lines..3 * lines * 5 / 4).contains(&traffic(from, 0)), "{one}");
    }
    assert!(one["controller_imbalance_percent"].as_f64().unwrap() > 100.0, "{one}");
}

/// Then a run shows what a manager costs, and nothing of what it gives.
#[test]
fn where_instructions_alone_take_time_it_does_not_matter_where_memory_lies() {
    let name = "opteron-8385-4n";
    let measured = |where_| -> (f64, Value) {
        let options = ["--instructions-only", "--slow", "4"];
        // Starting and ending threads takes 0.3 ms, which is to be little.
        let (output, report) = rig(name, &options, &[&machine_c(), "stream", where_, "20"]);
        (output.trim().parse().unwrap(), report)
    };
    let ((one_s, one), (blocked_s, blocked)) = (measured("one"), measured("blocked"));
    let ratio = one_s / blocked_s;
    println!("{one_s} s on one controller, {blocked_s} s on four: {ratio:.3}");
    assert!((ratio - 1.0).abs() < 0.02, "{ratio}: {one:#}, {blocked:#}");
    for report in [one, blocked] {
        let number = |field: &str| report[field].as_f64().unwrap();
        assert_eq!((&report["instructions_only"], number("dram_latency_cycles")), (&true.into(), 0.0));
        // One instruction a cycle of a core of 2.3 GHz, four times slower.
        let ran_s = 4.0 * number("modelled_seconds") * number("cpus_busy_percent") / 100.0;
        let ghz = number("instructions") / ran_s / 1e9;
        assert!((ghz / (2.3 / 4.0) - 1.0).abs() < 0.01, "{ghz} GHz: {report}");
    }
}

/// By a modelled core's instructions, which do not hang on the host's load. The core has an eighth of the
/// machine's speed, so that what is done by the second takes eight times the share. Even there nodewise takes
/// less than 1 % at rest. The whole run, with the first passes over all memory in it, takes less than 1 % of
/// a whole core.
#[test]
fn watching_programs_that_are_well_placed_or_idle_takes_below_one_percent_of_a_cpu() {
    const SLOW: u32 = 8;
    let workload = programs().workload.to_str().unwrap();
    // Each thread works for some hundred microseconds, and rests.
    for pattern in ["local --rest-us 5000", "idle"] {
        // At rest is 15 s that begin when eager sampling has ended, or after a while without samples.
        let script = format!(
            "nodewise run --quiet --sampler hint-faults --json summary --log log -- \\
                 {workload} {pattern} --seconds 52 --report report & nodewise=$!
             used() {{ cat /proc/$nodewise/task/*/schedstat | awk '{{ ns += $1 }} END {{ print ns }}'; }}
             for second in $(seq 28); do sleep 1; ! grep -q cheap log || break; done
             sleep 3; used >at_rest; sleep 15; used >>at_rest
             wait $nodewise && tr -d '\\n' <summary && echo && cat at_rest"
        );
        let options = ["--slow", &SLOW.to_string(), "--instructions-only", "--copy", workload];
        let (output, report) = rig("opteron-8385-4n", &options, &["sh", "-c", &script]);
        let mut lines = output.lines();
        let summary: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
        let mut used_ns = || lines.next().unwrap().parse::<f64>().unwrap();
        let percent_at_rest = -100.0 * (used_ns() - used_ns()) / 15e9;
        let percent = summary["own_cost"]["cpu_percent"].as_f64().unwrap();
        let samples = summary["samples"].as_u64().unwrap();
        println!("{pattern}: {samples} samples, {percent} % of a CPU, {percent_at_rest} % at rest");
        assert_eq!(summary["pages_moved"], 0, "{summary}");
        if pattern != "idle" {
            assert!(samples > 16384, "all pages were looked at: {summary}");
            assert!(summary["local_access_percent"]["after"].as_f64() > Some(99.0), "{summary}");
        }
        assert!(percent_at_rest < 1.0, "{pattern}: {percent_at_rest} % of a CPU at rest");
        assert!(percent / f64::from(SLOW) < 1.0, "{pattern}: {percent} % of a CPU");
        assert!(report["late_percent"].as_f64().unwrap() < 1.0, "{report}");
    }
}

#[test]
fn time_in_which_nothing_happens_passes_without_work() {
    let script = "read a _ </proc/uptime; sleep 60; read b _ </proc/uptime; echo ${a%.*} ${b%.*}";
    let (output, report) = rig("opteron-8385-4n", &[], &["sh", "-c", script]);
    let times: Vec<i64> = output.split_whitespace().map(|time| time.parse().unwrap()).collect();
    assert!((60..=61).contains(&(times[1] - times[0])), "{output}");
    assert!((60.0..61.0).contains(&report["modelled_seconds"].as_f64().unwrap()), "{report}");
    // How soon it passes is a matter of this computer's other work.
    println!("{} s for each second", report["slow_down"]);
    assert!(report["cpus_busy_percent"].as_f64().unwrap() < 1.0, "{report}");
}

/// Memory of the program below, in pages.
const PAGES: u64 = 4096;

/// The results of a program that ran managed in a modelled guest. The kernel's balancing was off before.
struct Managed {
    /// The manager's summary.
    summary: Value,
    /// Its log.
    log: Vec<Value>,
    /// Where the program's pages were at its end, as `move_pages` tells.
    pages_by_node: Vec<u64>,
    local_percent: f64,
    /// The machine's report of the whole run.
    report: Value,
}

/// `length` says when the program ends.
fn managed(options: &str, pattern: &str, length: &str) -> Managed {
    let workload = programs().workload.to_str().unwrap();
    let script = format!(
        "cd /tmp; echo 0 >/proc/sys/kernel/numa_balancing
         nodewise run {options} --json summary --log log -- \\
             {workload} {pattern} --stream --mebibytes 16 {length} --report where || exit
         tr -d '\\n' <summary; echo; tail -n 1 where; cat log"
    );
    let (output, report) =
        rig("opteron-8385-4n", &["--slow", "8", "--copy", workload], &["sh", "-c", &script]);
    let mut lines = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let (summary, placement) = (lines.next().unwrap(), lines.next().unwrap());
    println!("{options} {pattern}: counted {}\nreport {report}", summary["counted"]);
    Managed {
        summary,
        log: lines.collect(),
        pages_by_node: placement["pages_by_node"].as_array().unwrap().iter().map(number).collect(),
        local_percent: placement["local_percent"].as_f64().unwrap(),
        report,
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

impl Managed {
    /// The decisions about the program's memory, which is more than a MiB a thread.
    fn decisions(&self) -> impl Iterator<Item = &Value> {
        let planned = |line: &Value| number(&line["outcome"]["planned"]);
        self.log.iter().filter(move |line| line["event"] == "decision" && planned(line) >= 256)
    }

    /// Asserts that the guest was told what the machine tells outside.
    fn counts_are_the_machines(&self) {
        let counted = &self.summary["counted"];
        let matrix = |of: &Value| -> Vec<f64> {
            let rows = of["traffic"].as_array().unwrap().iter();
            rows.flat_map(|row| row.as_array().unwrap()).map(|count| count.as_f64().unwrap()).collect()
        };
        let (inside, outside) = (matrix(counted), matrix(&self.report));
        let all: f64 = outside.iter().sum();
        for (place, (inside, outside)) in inside.iter().zip(&outside).enumerate() {
            // All that ran before the manager and after it counts outside, too. It is as much in each run.
            let bound = (0.05 * outside).max(0.002 * all);
            let off = (inside - outside).abs();
            assert!(off < bound, "{place}: {inside} instead of {outside} of {all}");
        }
        for figure in ["local_access_percent", "controller_imbalance_percent"] {
            let [inside, outside] = [counted, &self.report].map(|of| of[figure].as_f64().unwrap());
            assert!((inside - outside).abs() < 3.0, "{figure}: {inside} instead of {outside}");
        }
        for figure in ["accesses_per_us", "read_percent", "dram_latency_cycles"] {
            assert!(counted[figure].as_f64().unwrap() > 0.0, "{figure}: {counted}");
        }
        let busiest = |which: &str| -> f64 {
            let all = counted[which].as_array().unwrap().iter();
            all.map(|percent| percent.as_f64().unwrap()).fold(0.0, f64::max)
        };
        assert!(busiest("controller_use_percent") > 20.0 && busiest("link_use_percent") > 10.0, "{counted}");
        for rule in self.summary["rules"].as_array().unwrap() {
            assert_eq!(rule["standing"]["kind"], "measured", "{rule}");
        }
    }
}

#[test]
#[ignore = "for `make slow`: CI has 90 minutes"]
fn what_one_thread_uses_is_seen_by_the_machines_samples_and_moved() {
    // The last ones go as late as a sample hits them.
    let run = managed("--sampler model", "private", "--seconds 60 --after-placed 3");
    run.counts_are_the_machines();
    assert_eq!((run.local_percent, run.pages_by_node), (100.0, vec![PAGES / 4; 4]), "{:?}", run.log);
    let first = |log: &[Value]| -> f64 {
        let seconds = log.iter().filter(|line| line["event"] == "decision");
        seconds.map(|line| line["seconds"].as_f64().unwrap()).fold(f64::MAX, f64::min)
    };
    // Hint faults show a page as often as the kernel's scans take its mapping away.
    let by_faults = managed("--sampler hint-faults", "private", "--passes 350");
    assert!(by_faults.summary["counted"].is_null());
    let (model_s, faults_s) = (first(&run.log), first(&by_faults.log));
    println!("the first decision after {model_s} s by the model, after {faults_s} s by hint faults");
    assert!(model_s.round() < faults_s.round(), "{model_s}, {faults_s}");
}

#[test]
fn samples_of_one_nodes_memory_say_so() {
    let run = managed("--sampler model --dry-run", "private", "--passes 150");
    run.counts_are_the_machines();
    assert_eq!(run.pages_by_node, [PAGES, 0, 0, 0]);
    let mut ranges: Vec<(u64, u64, &Value)> = run
        .decisions()
        .map(|decision| {
            println!("{decision}");
            assert_eq!(decision["action"], "collocate", "{decision}");
            let address = |end: usize| {
                let text = decision["range"][end].as_str().unwrap();
                u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
            };
            (address(0), address(1), decision)
        })
        .collect();
    ranges.sort_by_key(|range| range.0);
    // Threads 1 to 3 are on nodes 1 to 3, and use a quarter each, in order.
    let first = ranges.first().expect("decisions").0;
    for (start, end, decision) in ranges {
        let quarter = (PAGES / 4) << 12;
        let node = (start - first) / quarter + 1;
        assert_eq!(decision["to"], serde_json::json!([node]), "{start:x} of {first:x}");
        // Pages behind the memory may lie elsewhere, and are few.
        let homes: Vec<f64> = serde_json::from_value(decision["figures"]["homes"].clone()).unwrap();
        assert!(homes[0] > 0.98 * homes.iter().sum::<f64>(), "{decision}");
        if end <= first + 3 * quarter {
            assert_eq!(decision["from"], serde_json::json!([0]), "{decision}");
        }
        assert!(end <= first + node * quarter + (16 << 12), "{start:x} to {end:x} of {first:x}");
    }
}

#[test]
fn what_all_read_is_seen_by_the_machines_samples_and_spread() {
    let run = managed("--sampler model", "shared-read", "--passes 60");
    run.counts_are_the_machines();
    assert!(run.decisions().any(|decision| decision["action"] == "interleave"), "{:?}", run.log);
    let even = |&pages: &u64| (PAGES / 5..PAGES / 3).contains(&pages);
    assert!(run.pages_by_node.iter().all(even), "{:?}: {:?}", run.pages_by_node, run.log);
}

/// Eight huge pages on four nodes: as evenly as may be, or one off. By chance, some node has four or more in
/// 45 % of cases, and none in 38 %.
#[test]
fn huge_pages_that_all_read_are_spread_evenly() {
    let run = managed("--sampler model", "shared-read --huge", "--passes 45");
    println!("{:?}", run.pages_by_node);
    assert_eq!(run.pages_by_node.iter().sum::<u64>(), PAGES);
    assert!(run.pages_by_node.iter().all(|pages| (512..=3 * 512).contains(pages)), "{:?}", run.pages_by_node);
    let again: u64 = run.decisions().map(|line| number(&line["outcome"]["moved_again"])).sum();
    assert_eq!(again, 0, "{:?}", run.log);
}

/// Root in the guest writes whatever it likes into the device. Neither the manager nor its program nor the
/// machine is the worse for it.
#[test]
fn scribbles_on_the_device_harm_nobody() {
    let (scribble, workload) = (c_program("modelled/scribble.c"), programs().workload.to_str().unwrap());
    let scribble = scribble.to_str().unwrap();
    // Once the manager is first, and once the scribbler.
    let script = format!(
        "cd /tmp; run='{workload} private --stream --mebibytes 4 --passes 200 --report where'
         nodewise run --quiet --sampler model -- $run & manager=$!
         sleep 0.2; {scribble} >began & scribbler=$!
         wait $manager; echo amid scribbles: $?; cat began
         nodewise run --quiet --sampler model -- $run; echo after scribbles: $?
         kill $scribbler
         nodewise run --quiet --sampler hint-faults -- $run; echo without the device: $?"
    );
    let options = ["--slow", "8", "--copy", workload, "--copy", scribble];
    let (output, report) = rig("opteron-8385-4n", &options, &["sh", "-c", &script]);
    println!("{output}");
    // Scribbles over its head make it no device: an error that says so, and the program is not started.
    let expected = "amid scribbles: 0\nscribbling\nafter scribbles: 1\nwithout the device: 0\n";
    assert_eq!(output, expected);
    assert!(report["modelled_seconds"].as_f64().unwrap() > 0.1, "{report}");
    assert!((0.0..=100.0).contains(&report["local_access_percent"].as_f64().unwrap()), "{report}");
}

#[test]
fn a_run_is_told_in_full() {
    let plot = tempfile::tempdir().unwrap();
    let file = plot.path().join("traffic.svg");
    let (output, report) = rig(
        "opteron-8385-4n",
        &["--slow", "4", "--plot", file.to_str().unwrap()],
        &["cat", "/sys/devices/system/node/node1/access0/initiators/read_latency"],
    );
    // Firmware tells the preset's figures, of a machine that is four times slower.
    assert_eq!(output, "520\n");
    assert_eq!((&report["machine"], &report["slow"]), (&"opteron-8385-4n".into(), &4.0.into()));
    for field in [
        "modelled_seconds",
        "slow_down",
        "late_percent",
        "local_access_percent",
        "dram_latency_cycles",
        "controller_imbalance_percent",
        "instructions",
    ] {
        assert!(report[field].is_number(), "{field}: {report}");
    }
    assert!(is_picture(&file));
}

fn is_picture(file: &Path) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.starts_with("<svg") && text.ends_with("</svg>\n"))
}
