use super::*;
use crate::cache::DIRTY;
use proptest::prelude::*;
use std::fmt::Write as _;

pub(super) const MACHINE: &str = r#"
name = "test"
about = "two nodes, figures that are easy to add"
line_bytes = 64
core = { ghz = 1.0, cycles_per_instruction = 1.0, outstanding_misses = 4 }
l1 = { kib = 1, ways = 4, latency_cycles = 3 }
l2 = { kib = 2, ways = 4, latency_cycles = 10 }
llc = { kib = 8, ways = 8, latency_cycles = 30 }
controller = { idle_latency_ns = 100.0, service_ns = 10.0 }
node = [{ count = 2, cores = 2, memory_mib = 64 }]
link = [{ between = [0, 1], gb_per_s = 4.0, hop_latency_ns = 20.0 }]
"#;

/// Two lines an L1 apart, without hashing luck: far more lines than any cache holds are between two uses of
/// one.
pub(super) const APART: u64 = 64;

fn machine() -> Hardware {
    Hardware::new(&Preset::parse(MACHINE, "test").unwrap())
}

pub(super) fn near(value: f64, expected: f64) -> bool {
    (value / expected - 1.0).abs() < 0.02
}

#[test]
#[should_panic(expected = "65 nodes")]
fn a_machine_of_more_nodes_than_there_are_bits_for_is_none() {
    let mut preset = Preset::parse(MACHINE, "test").unwrap();
    preset.nodes = vec![preset.nodes[0]; MOST_NODES + 1];
    let _ = Hardware::new(&preset);
}

#[test]
fn copies_far_ahead_delay_nobody_before_them() {
    let preset = Preset::named("opteron-8385-4n").unwrap();
    let mut hardware = Hardware::new(&preset);
    let alone = hardware.read(0, 1 << 20, 1).latency_ps;
    let mut hardware = Hardware::new(&preset);
    for ms in 1..5 {
        hardware.copy_page(ms * 1_000_000_000, 1, 0, 4096);
    }
    assert_eq!(hardware.read(0, 1 << 20, 1).latency_ps, alone);
}

#[test]
fn a_lone_pointer_chase_takes_the_sum_of_its_latencies() {
    for (home, latency_ns) in [(0, 100.0), (1, 140.0)] {
        let mut hw = machine();
        let links = 1000;
        for link in 0..links {
            hw.chase(0, link * APART, home);
        }
        hw.drain(0);
        assert!(near(hw.clock(0) as f64, links as f64 * (latency_ns + 1.0) * 1000.0), "{}", hw.clock(0));
    }
}

#[test]
fn a_chase_through_a_line_on_its_way_waits_for_it() {
    let mut hw = machine();
    hw.read(0, 0, 0);
    assert_eq!(hw.chase(0, 8, 0).source, Source::L1);
    hw.read(1, 1 << 20, 0);
    hw.read(1, (1 << 20) + 8, 0);
    hw.chase(1, 2 << 20, 0);
    assert!(hw.clock(1) >= 101_000);
}

#[test]
fn chases_in_the_caches_take_their_latencies() {
    let mut hw = machine();
    for (lines, latency) in [(8, 3u32), (24, 10), (96, 30)] {
        let walk = |hw: &mut Hardware| {
            for line in 0..lines {
                hw.chase(0, line * APART, 0);
            }
        };
        (0..3).for_each(|_| walk(&mut hw));
        hw.drain(0);
        let start = hw.clock(0);
        let rounds = 20;
        (0..rounds).for_each(|_| walk(&mut hw));
        let each = (hw.clock(0) - start) as f64 / (rounds * lines) as f64;
        // Hashing lets a few lines out to the next level.
        assert!(
            each >= f64::from(latency + 1) * 995.0 && each < f64::from(latency + 1) * 1300.0,
            "{lines} lines: {each}"
        );
    }
}

#[test]
fn independent_misses_overlap_as_many_as_may_be_outstanding() {
    let mut hw = machine();
    let lines = 4000;
    for line in 0..lines {
        hw.read(0, line * APART, 1);
    }
    hw.drain(0);
    // 140 ns for 4 lines; the link, 16 ns a line, is not the limit.
    assert!(near(hw.clock(0) as f64, lines as f64 * 140_000.0 / 4.0), "{}", hw.clock(0));
}

/// Runs cores in time order, each reading its own lines on `home`. Returns the time and each core's reads.
pub(super) fn stream(hw: &mut Hardware, cores: &[usize], home: usize, reads: u64) -> (u64, Vec<u64>) {
    let mut done = vec![0; cores.len()];
    for _ in 0..reads {
        let (index, &core) = cores.iter().enumerate().min_by_key(|&(_, &core)| hw.clock(core)).unwrap();
        hw.read(core, ((core as u64) << 30) + done[index] * APART, home);
        done[index] += 1;
    }
    (cores.iter().map(|&core| hw.clock(core)).max().unwrap(), done)
}

#[test]
fn a_core_says_when_it_will_ask_and_waits_until_then() {
    let mut hw = machine();
    hw.chase(0, 0, 0);
    let data_ps = hw.clock(0) + 100_000;
    // It reads a line of its own cache whenever it likes, and asks for another when the address is there.
    assert!(!hw.waits(0, Touch::Chase, 8, 0));
    assert!(hw.waits(0, Touch::Chase, 4096, 0));
    assert_eq!(hw.clock(0), data_ps);
    assert!(!hw.waits(0, Touch::Chase, 4096, data_ps));
    let mut hw = machine();
    for line in 0..4 {
        hw.read(0, line * APART, 0);
    }
    // All four misses are outstanding: the first comes at 101 ns, the last 30 later. A write of what it only
    // reads asks.
    for touch in [Touch::Read, Touch::Write] {
        assert!(hw.waits(0, touch, 1 << 20, 50_000));
        assert_eq!(hw.clock(0), 100_000);
    }
    assert!(!hw.waits(0, Touch::Read, 0, 50_000));
    assert!(hw.waits(0, Touch::Write, 0, 50_000));
    assert!(hw.waits(0, Touch::Atomic, 1 << 20, 100_000));
    assert_eq!(hw.clock(0), 131_000);
}

#[test]
fn a_saturated_controller_serves_a_line_per_service_time() {
    let mut hw = machine();
    let reads = 20_000;
    // Two cores with 4 misses each want a line every 12.5 ns locally: make it saturate with all four.
    let (time, _) = stream(&mut hw, &[0, 1, 2, 3], 0, reads);
    // The remote half comes over a link of 16 ns a line, the local half takes the rest.
    assert!(near(time as f64, reads as f64 * 10_000.0), "{time}");
    let load = hw.counters().controllers[0];
    assert!(near(load.busy_ps as f64, time as f64));
    assert_eq!(load.bytes, reads * 64);
}

#[test]
fn two_threads_share_a_controller_evenly() {
    let slow = MACHINE.replace("service_ns = 10.0", "service_ns = 40.0");
    let mut hw = Hardware::new(&Preset::parse(&slow, "test").unwrap());
    let (time, done) = stream(&mut hw, &[0, 1], 0, 10_000);
    assert!(near(time as f64, 10_000.0 * 40_000.0));
    assert!(near(done[0] as f64, 5000.0), "{done:?}");
    // Little: 8 outstanding, one served each 40 ns.
    assert!(near(hw.counters().mean_dram_latency_ps(), 8.0 * 40_000.0));
}

#[test]
fn a_saturated_link_carries_a_line_per_its_time() {
    let slow = MACHINE.replace("gb_per_s = 4.0", "gb_per_s = 1.0");
    let mut hw = Hardware::new(&Preset::parse(&slow, "test").unwrap());
    let (time, done) = stream(&mut hw, &[0, 1], 1, 10_000);
    assert!(near(time as f64, 10_000.0 * 64_000.0), "{time}");
    assert!(near(done[0] as f64, 5000.0), "{done:?}");
}

/// Lines that two cores write in another node's memory: each is asked for and written back one way, and comes
/// and is confirmed the other way.
#[test]
fn messages_without_data_take_their_part_of_a_link() {
    for (message_bytes, line_ns) in [(0, 16), (8, 18)] {
        let machine = MACHINE
            .replace(
                "hop_latency_ns = 20.0",
                &format!("hop_latency_ns = 20.0, message_bytes = {message_bytes}"),
            )
            .replace("outstanding_misses = 4", "outstanding_misses = 16")
            .replace("service_ns = 10.0", "service_ns = 5.0");
        let mut hw = Hardware::new(&Preset::parse(&machine, "test").unwrap());
        let lines = 10_000;
        for line in 0..lines {
            for core in [2, 3] {
                hw.write(core, ((core as u64) << 30) + line * APART, 0);
            }
        }
        hw.drain(2);
        hw.assert_sound();
        assert!(near(hw.clock(2) as f64, (2 * lines * line_ns * 1000) as f64), "{}", hw.clock(2));
    }
}

/// Lines that two cores write: each is read from memory and written back to it.
#[test]
fn a_saturated_controller_takes_longer_for_a_mix_by_what_a_written_line_costs() {
    let mixed = MACHINE
        .replace("service_ns = 10.0", "service_ns = 20.0, write_service_ns = 30.0")
        .replace("outstanding_misses = 4", "outstanding_misses = 16");
    let mut hw = Hardware::new(&Preset::parse(&mixed, "test").unwrap());
    let lines = 10_000;
    for line in 0..lines {
        for core in [0, 1] {
            hw.write(core, ((core as u64) << 30) + line * APART, 0);
        }
    }
    hw.drain(0);
    hw.assert_sound();
    assert!(near(hw.clock(0) as f64, (2 * lines * 50_000) as f64), "{}", hw.clock(0));
}

#[test]
fn a_write_takes_the_line_from_all_others_and_its_reader_gets_it_from_the_writer() {
    let mut hw = machine();
    for core in 0..4 {
        hw.read(core, 0, 0);
    }
    assert_eq!(hw.read(0, 0, 0).source, Source::L1);
    assert_eq!(hw.write(2, 0, 0).source, Source::Llc);
    assert_eq!(hw.write(2, 0, 0).source, Source::L1);
    hw.drain(2);
    assert_eq!(hw.read(3, 0, 0).source, Source::Llc);
    assert_eq!(hw.read(0, 0, 0).source, Source::RemoteLlc);
    assert_eq!(hw.counters().writebacks, [0, 0, 1, 0]);
    assert_eq!(hw.read(1, 0, 0).source, Source::Llc);
    // The writer lost the right to write silently.
    assert_eq!(hw.write(2, 0, 0).source, Source::Llc);
    assert_eq!(hw.read(1, 0, 0).source, Source::RemoteLlc);
}

/// Cores take turns with an atomic on one line. Returns the time each takes.
fn in_turns(cores: &[usize]) -> f64 {
    let snooping = MACHINE
        .replace("outstanding_misses = 4", "outstanding_misses = 4, snoop_cycles = 25, atomic_cycles = 18");
    let mut hw = Hardware::new(&Preset::parse(&snooping, "test").unwrap());
    let turns = 1000;
    for turn in 0..turns {
        hw.atomic(cores[turn % cores.len()], 0, 0);
    }
    check_coherence(&hw);
    cores.iter().map(|&core| hw.clock(core)).max().unwrap() as f64 / turns as f64 / 1000.0
}

#[test]
fn atomics_on_one_line_come_one_after_the_other() {
    // Its own: the instruction and the atomic.
    assert!(near(in_turns(&[0]), 1.0 + 18.0));
    // From a mate's caches: the LLC and the snoop. Each issues while the other has the line.
    assert!(near(in_turns(&[0, 1]), 30.0 + 25.0));
    // From the other node: there, its LLC and the snoop, the line's 20 ns back, and the own LLC.
    assert!(near(in_turns(&[0, 2]), 20.0 + 30.0 + 25.0 + 20.0 + 30.0));
    // Half of the turns from a mate, half from the other node.
    assert!(near(in_turns(&[0, 1, 2, 3]), 90.0));
}

#[test]
fn an_atomic_waits_for_what_the_core_did_before_and_is_waited_for() {
    let mut hw = machine();
    hw.read(0, 1 << 20, 1);
    let before = hw.clock(0);
    hw.atomic(0, 0, 0);
    // The read's 140 ns, then its own 100 from memory.
    assert_eq!(hw.clock(0), before + 140_000 + 1000 + 100_000);
    // Another core issues at 1 ns and gets the line when that is done.
    hw.chase(1, 0, 0);
    hw.chase(1, 1 << 21, 0);
    assert!(hw.clock(1) > hw.clock(0), "{} {}", hw.clock(1), hw.clock(0));
}

#[test]
fn a_copy_goes_through_both_controllers_and_the_link() {
    let mut hw = machine();
    let done = hw.copy_page(1_000_000, 0, 1, 4096);
    assert!(done > 1_000_000 + 64 * 16_000);
    let counters = hw.counters();
    assert_eq!(
        [counters.controllers[0].bytes, counters.controllers[1].bytes, counters.copied_bytes],
        [4096; 3]
    );
    assert_eq!(counters.links.iter().map(|link| link.bytes).sum::<u64>(), 4096);
}

#[test]
fn what_is_forgotten_comes_from_its_new_home() {
    let mut hw = machine();
    hw.write(0, 128, 0);
    hw.read(2, 192, 0);
    hw.forget(0, 4096);
    assert_eq!(hw.read(0, 128, 1).source, Source::RemoteDram { hops: 1 });
    assert_eq!(hw.read(2, 192, 1).source, Source::LocalDram);
    assert_eq!(hw.counters().writebacks, [0; 4]);
}

#[test]
fn words_of_a_machine_without_caches_take_their_times() {
    let mut hw = Hardware::new(&Preset::named("ace-7").unwrap());
    hw.read(0, 0, 0);
    assert_eq!(hw.clock(0), 650_000);
    hw.write(0, 0, 7);
    assert_eq!(hw.clock(0), 2_050_000);
}

#[test]
fn a_neighbouring_line_is_brought_along_and_taken_from_whoever_had_it() {
    let paired =
        MACHINE.replace("outstanding_misses = 4", "outstanding_misses = 4, adjacent_line_prefetches = 2");
    let mut hw = Hardware::new(&Preset::parse(&paired, "test").unwrap());
    hw.read(0, 0, 0);
    assert_eq!(hw.read(0, 64, 0).source, Source::L2);
    assert_eq!(hw.read(0, 128, 0).source, Source::LocalDram);
    hw.write(2, 256, 0);
    hw.drain(0);
    hw.read(0, 320, 0);
    assert_eq!(hw.counters().remote_llc, [1, 0]);
    assert_eq!(hw.write(2, 256, 0).source, Source::Llc);
    check_coherence(&hw);
}

/// The state of all caches is one that a machine can be in.
fn check_coherence(hw: &Hardware) {
    check_llcs(hw, &hw.llcs_of_few);
    check_llcs(hw, &hw.llcs_of_many);
}

fn check_llcs<S: CoreSet>(hw: &Hardware, llcs: &[Llc<S>]) {
    for (number, llc) in llcs.iter().enumerate() {
        for entry in llc.iter() {
            let holders = hw.directory.get(entry.line());
            assert!(holders.has(number), "the directory does not know a holder");
            assert_eq!(holders.modifier() == Some(number), entry.has(DIRTY));
            assert!(!entry.has(DIRTY) || holders.llcs().count() == 1, "modified in one LLC, held in another");
        }
    }
    for (index, core) in hw.cores.iter().enumerate().filter(|_| !llcs.is_empty()) {
        let number = hw.cpus[index << hw.thread_bits].llc;
        let mut llc = llcs[number].clone();
        for entry in core.l1.iter().chain(core.l2.iter()) {
            let (in_llc, sharers) = llc.find(entry.line()).expect("the LLC is inclusive");
            let own = S::only(index - hw.first_core[number]);
            assert!(own.without(sharers).is_empty(), "the LLC does not know a sharer");
            if entry.has(WRITABLE) {
                assert!(in_llc.has(WRITABLE) && in_llc.has(DIRTY) && sharers == own, "writable, and shared");
            }
        }
    }
}

proptest! {
    #[test]
    fn caches_stay_coherent_bytes_are_conserved_and_clocks_never_go_back(
        accesses in prop::collection::vec((0usize..8, 0u64..400, 0u8..4), 1..1500),
        prefetch in any::<bool>(),
        own_llc in any::<bool>(),
        threads in 1..3usize,
    ) {
        let mut preset = Preset::parse(MACHINE, "test").unwrap();
        preset.core.threads = threads;
        preset.core.adjacent_line_prefetches = if prefetch { 2 } else { 0 };
        if let Some(llc) = &mut preset.llc {
            llc.cores = usize::from(own_llc);
        }
        let mut hw = Hardware::new(&preset);
        for (core, line, kind) in accesses {
            let core = core % preset.cpus();
            let (before, home) = (hw.clock(core), line as usize / 64 % 2);
            let access = match kind {
                0 => hw.read(core, line * 64, home),
                1 => hw.chase(core, line * 64, home),
                2 => hw.atomic(core, line * 64, home),
                _ => hw.write(core, line * 64, home),
            };
            prop_assert!(hw.clock(core) > before && access.latency_ps >= 3000);
            let now = hw.clock(core);
            hw.set_clock(core, before);
            prop_assert_eq!(hw.clock(core), now);
        }
        check_coherence(&hw);
        let counters = hw.counters();
        for home in 0..2 {
            let lines: u64 =
                (0..2).map(|node| counters.dram[node * 2 + home] + counters.writebacks[node * 2 + home]).sum();
            prop_assert_eq!(counters.controllers[home].bytes, lines * 64);
            prop_assert_eq!(counters.controllers[home].busy_ps, lines * 10_000);
        }
        let misses: u64 = counters.llc_misses.iter().sum();
        let served = counters.dram.iter().chain(&counters.remote_llc).sum::<u64>();
        // An LLC may also have a line from another of its node.
        let is_right = if own_llc { misses >= served } else { misses == served };
        prop_assert!(is_right, "{misses} misses, {served} served");
        let crossing = counters.dram[1] + counters.dram[2] + counters.writebacks[1] + counters.writebacks[2];
        let crossed: u64 = counters.links.iter().map(|link| link.bytes).sum();
        prop_assert_eq!(crossed, (crossing + counters.remote_llc.iter().sum::<u64>()) * 64);
        prop_assert_eq!(crossed, counters.lines_between_nodes() * 64);
    }

    #[test]
    fn a_core_that_waits_first_comes_as_far_as_one_that_does_not(
        accesses in prop::collection::vec((0usize..4, 0u64..400, 0u8..4), 1..800),
    ) {
        let (mut one, mut other) = (machine(), machine());
        for (core, line, touch) in accesses {
            let touch = [Touch::Read, Touch::Chase, Touch::Write, Touch::Atomic][usize::from(touch)];
            let home = line as usize / 64 % 2;
            if one.waits(core, touch, line * 64, 0) {
                prop_assert!(!one.waits(core, touch, line * 64, one.clock(core)));
            }
            prop_assert_eq!(
                one.touch(core, touch, line * 64, home),
                other.touch(core, touch, line * 64, home)
            );
            prop_assert_eq!(one.clock(core), other.clock(core));
        }
    }

    #[test]
    fn the_same_accesses_give_the_same_machine(accesses in prop::collection::vec((0usize..4, 0u64..400), 1..300)) {
        let run = || {
            let mut hw = machine();
            for &(core, line) in &accesses {
                hw.write(core, line * 64, line as usize % 2);
            }
            (hw.counters().clone(), (0..4).map(|core| hw.clock(core)).collect::<Vec<_>>())
        };
        prop_assert_eq!(run(), run());
    }
}

/// A machine of 64 nodes with 256 cores in all, on a ring, whose LLCs have few lines.
fn a_large_machine() -> Hardware {
    let mut text = MACHINE.split("node = [").next().unwrap().to_owned();
    text += "node = [{ count = 64, cores = 4, memory_mib = 64 }]\n";
    for node in 0..64 {
        let next = (node + 1) % 64;
        writeln!(text, "[[link]]\nbetween = [{node}, {next}]\ngb_per_s = 4.0\nhop_latency_ns = 1.0").unwrap();
    }
    Hardware::new(&Preset::parse(&text, "test").unwrap())
}

#[test]
fn sixty_four_nodes_share_a_line_and_lose_it_to_the_last() {
    let mut hw = a_large_machine();
    for node in 0..64 {
        let hops = node.min(64 - node) as u8;
        let source = if node == 0 { Source::LocalDram } else { Source::RemoteDram { hops } };
        assert_eq!(hw.read(4 * node, 0, 0).source, source);
        let access = hw.read(4 * node, 64, 63);
        assert!(matches!(access.source, Source::LocalDram | Source::RemoteDram { .. }));
    }
    check_coherence(&hw);
    hw.write(255, 0, 0);
    check_coherence(&hw);
    hw.drain(255);
    for node in 0..63 {
        assert_eq!(hw.read(4 * node, 64, 63).source, Source::L1);
    }
    assert_eq!(hw.read(0, 0, 0).source, Source::RemoteLlc);
    // It was written back to node 0 from node 63.
    assert_eq!(hw.counters().writebacks[63 * 64], 1);
    hw.assert_sound();
}

/// One node of so many cores, which share LLCs of 8 KiB as told.
fn one_node(cores: usize, an_llc: usize) -> Preset {
    let text = MACHINE
        .replace("latency_cycles = 30 }", &format!("latency_cycles = 30, cores = {an_llc} }}"))
        .replace("count = 2, cores = 2", &format!("count = 1, cores = {cores}"));
    Preset::parse(text.split("link =").next().unwrap(), "test").unwrap()
}

#[test]
fn two_hundred_and_fifty_six_cores_of_a_node_share_a_line() {
    let mut hw = Hardware::new(&one_node(256, 0));
    assert_eq!(hw.read(0, 0, 0).source, Source::LocalDram);
    for core in 1..256 {
        assert_eq!(hw.read(core, 0, 0).source, Source::Llc);
    }
    check_coherence(&hw);
    hw.write(200, 0, 0);
    check_coherence(&hw);
    for core in (0..256).filter(|&core| core != 200) {
        assert_eq!(hw.losses(core), 1, "{core}");
    }
}

#[test]
fn cores_of_a_node_with_several_llcs_share_no_lines_but_by_way_of_its_memory() {
    // Cores 0 and 1 have one, 2 and 3 another.
    let mut hw = Hardware::new(&one_node(4, 2));
    let access = hw.read(0, 0, 0);
    assert_eq!((access.source, access.latency_ps), (Source::LocalDram, 100_000));
    assert_eq!(hw.read(1, 0, 0).source, Source::Llc);
    // A line that nobody has modified comes from memory.
    assert_eq!(hw.read(2, 0, 0).source, Source::LocalDram);
    hw.write(3, 0, 0);
    check_coherence(&hw);
    assert_eq!([0, 1, 2, 3].map(|core| hw.losses(core)), [1, 1, 1, 0]);
    // One that was comes from the LLC that has it: half of 100 ns there, two LLCs of 30 ns, and as much back.
    hw.set_clock(0, 10_000_000);
    let access = hw.read(0, 0, 0);
    assert_eq!((access.source, access.latency_ps), (Source::Llc, 160_000));
    let counters = hw.counters();
    assert_eq!((counters.remote_llc[0], counters.writebacks[0], counters.lines_between_nodes()), (0, 1, 0));
    check_coherence(&hw);
    hw.assert_sound();
}

#[test]
fn an_llc_of_fewer_cores_leaves_each_as_much_more_room() {
    // 8 KiB each: four cores with 3 KiB of their own fit into two LLCs and not into one.
    let misses = |an_llc| {
        let mut hw = Hardware::new(&one_node(4, an_llc));
        for _ in 0..20 {
            for line in 0..48 {
                for core in 0..4 {
                    hw.chase(core, (core as u64 * 1000 + line) * 64, 0);
                }
            }
        }
        check_coherence(&hw);
        hw.counters().llc_misses[0]
    };
    assert!(misses(2) * 3 < misses(0), "{} {}", misses(2), misses(0));
}

#[test]
fn a_node_has_a_controller_of_its_own() {
    let far = "{ count = 1, cores = 2, memory_mib = 64 }, { count = 1, cores = 0, memory_mib = 64, \
               controller = { idle_latency_ns = 300.0, service_ns = 50.0, write_service_ns = 80.0 } }";
    let text = MACHINE.replace("{ count = 2, cores = 2, memory_mib = 64 }", far);
    let preset = Preset::parse(&text, "test").unwrap();
    assert_eq!((preset.idle_latency_ns(0, 1), preset.idle_latency_ns(0, 0)), (340.0, 100.0));
    // 64 bytes in 50 ns, which is less than the link has, and in 10 ns.
    assert!(near(preset.bandwidth_gb_per_s(0, 1), 1.28) && near(preset.bandwidth_gb_per_s(0, 0), 6.4));
    let mut hw = Hardware::new(&preset);
    assert_eq!(hw.read(0, 0, 1).latency_ps, 340_000);
    assert_eq!(hw.read(1, 1 << 20, 0).latency_ps, 100_000);
    for line in 0..1000 {
        hw.write(0, line * 64, 1);
    }
    let counters = hw.counters();
    let written = counters.writebacks[1];
    assert!(written > 800);
    assert_eq!(counters.controllers[1].busy_ps, 1000 * 50_000 + written * 80_000);
    hw.assert_sound();
    let slow = preset.slowed(2.0);
    assert!(near(slow.controller_of(1).idle_latency_ns, 600.0));
}
