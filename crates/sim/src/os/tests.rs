//! Tests: what the operating system does is charged once, to whom it takes time, in the account that it
//! belongs to.

use crate::os::kernel::costs::Costs;
use crate::os::kernel::machine::SimMachine;
use crate::os::kernel::memory::{HUGE_PAGES, PAGE_BYTES, State};
use crate::os::policy::Policy;
use crate::os::run::events::Events;
use crate::os::run::pinning::Pinning;
use crate::os::run::settings::Settings;
use crate::os::run::simulation::everyone_is_there;
use crate::{Role, Space};
use nodewise_hardware::{Preset, Touch};

/// No sum of a few of them is a sum of others.
const COSTS: Costs = Costs {
    page_fault_ns: 1_000,
    huge_page_fault_ns: 3_000,
    hint_fault_ns: 10_000,
    mark_page_ns: 30_000,
    move_page_ns: 100_000,
    move_thread_ns: 300_000,
    split_ns: 1_000_000,
    shootdown_ns: 3_000_000,
    interrupted_ns: 10_000_000,
    pages_per_shootdown: 512,
    sample_ns: 30_000_000,
    barrier_ns: 100_000_000,
};

/// A thread on each of four nodes, and as much memory as two huge pages.
fn machine(huge_pages: bool) -> SimMachine {
    let preset = Preset::named("opteron-8385-4n").unwrap();
    let mut space = Space::new();
    space.area("area", 2 * HUGE_PAGES as u64 * PAGE_BYTES, Role::Unknown);
    SimMachine::new(&preset, &space.into_areas(), &[0, 4, 8, 12], &Policy::FirstTouch, huge_pages, COSTS)
}

fn read(machine: &mut SimMachine, thread: usize, page: usize) {
    machine.access(thread, machine.threads[thread].0, Touch::Read, machine.memory.address(page));
    assert_eq!(machine.failure, None);
}

fn clocks(machine: &SimMachine) -> Vec<u64> {
    machine.threads.iter().map(|&(cpu, _)| machine.hardware.clock(cpu)).collect()
}

/// Nanoseconds that each thread is charged for something. They pass on its clock, which else goes on by an
/// instruction at most.
fn charged(machine: &mut SimMachine, something: impl FnOnce(&mut SimMachine)) -> Vec<u64> {
    let (clocks_before, kernel_before) = (clocks(machine), machine.kernel_ps.clone());
    something(machine);
    let passed = clocks(machine).into_iter().zip(clocks_before).map(|(now, before)| now - before);
    let charged = machine.kernel_ps.iter().zip(kernel_before).map(|(now, before)| now - before);
    passed
        .zip(charged)
        .map(|(passed_ps, charged_ps)| {
            let user_ps = passed_ps - charged_ps;
            assert!(user_ps < 1000, "{user_ps} ps pass that nobody is charged for");
            charged_ps / 1000
        })
        .collect()
}

#[test]
fn first_touches_are_charged_to_who_touches_and_huge_pages_once_for_all_of_them() {
    let mut base = machine(false);
    assert_eq!(charged(&mut base, |machine| read(machine, 1, 0)), [0, COSTS.page_fault_ns, 0, 0]);
    assert_eq!(charged(&mut base, |machine| read(machine, 1, 0)), [0; 4]);
    let mut huge = machine(true);
    assert_eq!(charged(&mut huge, |machine| read(machine, 1, 0)), [0, COSTS.huge_page_fault_ns, 0, 0]);
    assert_eq!(charged(&mut huge, |machine| read(machine, 2, HUGE_PAGES - 1)), [0; 4]);
}

/// A fault needs its address. A dependent one that the read before it yields begins when that read ends, and
/// an atomic's when all before it end.
#[test]
fn a_fault_begins_when_the_address_is_there() {
    let took = |touch| {
        let mut machine = machine(false);
        let cpu = machine.threads[1].0;
        read(&mut machine, 1, 0);
        read(&mut machine, 1, 1);
        let (began_ps, address) = (machine.hardware.clock(cpu), machine.memory.address(2));
        machine.access(1, cpu, touch, address);
        (machine.hardware.clock(cpu) - began_ps) / 1000
    };
    // The machine's memory takes 130 ns: see the preset.
    assert_eq!(took(Touch::Read), COSTS.page_fault_ns);
    assert_eq!(took(Touch::Chase), 130 + COSTS.page_fault_ns);
    assert_eq!(took(Touch::Atomic), 130 + COSTS.page_fault_ns + 130);
}

/// With all memory touched by the thread on node 0, and balancing that splits huge pages; no scan has been.
fn balanced(huge_pages: bool) -> SimMachine {
    let mut machine = machine(huge_pages);
    (0..2 * HUGE_PAGES).for_each(|page| read(&mut machine, 0, page));
    let settings = Settings { pinning: Pinning::Spread, ..Settings::scaled(1.0) };
    let _events = Events::new(&mut machine, &settings, &Policy::AutoNuma { split: true });
    machine
}

#[test]
fn a_hint_fault_is_charged_to_who_comes_back() {
    let mut machine = balanced(false);
    machine.memory.mark(7);
    assert_eq!(charged(&mut machine, |machine| read(machine, 0, 7)), [COSTS.hint_fault_ns, 0, 0, 0]);
    assert_eq!(charged(&mut machine, |machine| read(machine, 0, 7)), [0; 4]);
    assert_eq!(machine.counts.hint_faults, 1);
}

#[test]
fn marking_pages_is_charged_to_the_thread_that_scans_and_the_shootdown_to_all() {
    let mut machine = balanced(false);
    let settings = Settings { pinning: Pinning::Spread, ..Settings::scaled(1.0) };
    let mut events = Events::new(&mut machine, &settings, &Policy::AutoNuma { split: false });
    let first_ps = events.due_ps(&machine, 2);
    machine.hardware.set_clock(machine.threads[2].0, first_ps);
    let scan = charged(&mut machine, |machine| events.tick(machine, 2, &[0, 1, 2, 3]));
    let marked = 2 * HUGE_PAGES as u64 * COSTS.mark_page_ns;
    let others = COSTS.interrupted_ns;
    assert_eq!(scan, [others, others, marked + COSTS.shootdown_ns, others]);
    // They are marked already.
    let next_ps = events.due_ps(&machine, 2);
    machine.hardware.set_clock(machine.threads[2].0, next_ps);
    assert_eq!(charged(&mut machine, |machine| events.tick(machine, 2, &[0, 1, 2, 3])), [0; 4]);
}

/// As a scan leaves the first huge page.
fn mark(machine: &mut SimMachine) {
    for page in machine.memory.together(0) {
        machine.memory.mark(page);
    }
}

#[test]
fn a_split_is_charged_to_who_comes_back_and_the_shootdown_to_all() {
    let mut machine = balanced(true);
    mark(&mut machine);
    assert_eq!(charged(&mut machine, |machine| read(machine, 0, 3)), [COSTS.hint_fault_ns, 0, 0, 0]);
    mark(&mut machine);
    let split = charged(&mut machine, |machine| read(machine, 2, 5));
    // The part that was touched comes at once, with a shootdown of its own, and its bytes take some
    // microseconds.
    let mine = COSTS.hint_fault_ns + COSTS.split_ns + COSTS.move_page_ns + 2 * COSTS.shootdown_ns;
    assert!((mine..mine + 9000).contains(&split[2]), "{} and {mine} ns", split[2]);
    assert_eq!([0, 1, 3].map(|other| split[other]), [2 * COSTS.interrupted_ns; 3]);
    assert_eq!((machine.counts.split, machine.counts.migrated), (1, 1));
}

#[test]
fn parts_of_a_split_huge_page_are_marked_and_go_to_who_touches_them_next() {
    let mut machine = balanced(true);
    mark(&mut machine);
    read(&mut machine, 0, 3);
    mark(&mut machine);
    // A thread that shares it takes the part that it touches.
    read(&mut machine, 2, 5);
    assert_eq!((machine.counts.split, machine.counts.migrated, machine.counts.hint_faults), (1, 1, 2));
    for part in 0..HUGE_PAGES {
        let state = if part == 5 { State::At(2) } else { State::Marked };
        assert_eq!(machine.memory.state(part), state, "part {part}");
        assert_eq!(machine.memory.home(part), Some(if part == 5 { 2 } else { 0 }), "part {part}");
    }
    assert_eq!(machine.memory.state(HUGE_PAGES), State::At(0), "the next huge page");
    // The others stay until they are touched: by a third node, by the same, by those at home.
    for (thread, part) in [(3, 9), (2, 10), (0, 11)] {
        read(&mut machine, thread, part);
        assert_eq!(machine.memory.state(part), State::At(thread), "part {part}");
    }
    assert_eq!((machine.counts.split, machine.counts.migrated, machine.counts.hint_faults), (1, 3, 5));
    assert_eq!(machine.memory.state(12), State::Marked);
    machine.assert_sound();
}

#[test]
fn a_sample_is_charged_to_whose_access_it_is() {
    let mut machine = machine(false);
    (0..8).for_each(|page| read(&mut machine, 0, page));
    // Kernel time weighs half.
    machine.one_off_weight = 0.5;
    let settings = Settings { costs: COSTS, ..Settings::scaled(1.0) };
    let _events = Events::new(&mut machine, &settings, &Policy::Carrefour);
    machine.sampler.set(2, machine.sampler.cost_ps);
    // Threads 0 and 1 take their first miss, the others their second.
    let half = COSTS.sample_ns / 2;
    assert_eq!(charged(&mut machine, |machine| read(machine, 1, 0)), [0, half, 0, 0]);
    assert_eq!(charged(&mut machine, |machine| read(machine, 1, 0)), [0; 4]);
    assert_eq!(charged(&mut machine, |machine| read(machine, 2, 1)), [0; 4]);
    assert_eq!(charged(&mut machine, |machine| read(machine, 2, 2)), [0, 0, half, 0]);
    assert_eq!(machine.counts.samples, 2);
}

#[test]
fn moving_to_another_core_is_charged_to_the_thread_that_moves_and_so_is_waiting_for_that_core() {
    let mut machine = machine(false);
    let cost = COSTS.move_thread_ns;
    assert_eq!(charged(&mut machine, |machine| machine.run_on(1, 5)), [0, cost, 0, 0]);
    assert_eq!(charged(&mut machine, |machine| machine.run_on(1, 4)), [0, cost, 0, 0]);
    assert_eq!(machine.threads[1], (4, 1));
    // Its own core's clock is beyond another's that it goes to, or behind.
    machine.hardware.set_clock(6, machine.hardware.clock(4) + 7000);
    assert_eq!(charged(&mut machine, |machine| machine.run_on(1, 6)), [0, cost + 7, 0, 0]);
    assert_eq!(machine.counts.threads_moved, 3);
}

#[test]
fn changing_places_is_charged_to_each_of_two_threads_once() {
    let mut machine = machine(false);
    let each = COSTS.move_thread_ns;
    assert_eq!(charged(&mut machine, |machine| machine.swap_threads(2, 3)), [0, 0, each, each]);
    assert_eq!(machine.threads, [(0, 0), (4, 1), (12, 3), (8, 2)]);
    // The thread that is there first waits for the other in the kernel.
    machine.charge(3, 1);
    assert_eq!(charged(&mut machine, |machine| machine.swap_threads(3, 2)), [0, 0, each + 1, each]);
    machine.charge(3, 1);
    assert_eq!(charged(&mut machine, |machine| machine.swap_threads(2, 3)), [0, 0, each + 1, each]);
    assert_eq!(machine.counts.threads_moved, 6);
}

#[test]
fn a_barrier_takes_its_time_once_all_are_there_and_nobody_is_charged() {
    let mut machine = machine(false);
    for (thread, ns) in [(0, 5), (1, 9), (2, 20), (3, 2)] {
        machine.charge(thread, ns);
    }
    let kernel = machine.kernel_ps.clone();
    everyone_is_there(&mut machine, &[0, 1, 3]);
    let end_ns = 9 + COSTS.barrier_ns;
    assert_eq!(clocks(&machine), [end_ns, end_ns, 20, end_ns].map(|ns| ns * 1000));
    let waited_ns = [4, 0, 0, 7].map(|for_the_last| for_the_last + COSTS.barrier_ns);
    assert_eq!(machine.waited_ps, [waited_ns[0], waited_ns[1], 0, waited_ns[3]].map(|ns| ns * 1000));
    assert_eq!(machine.kernel_ps, kernel);
}
