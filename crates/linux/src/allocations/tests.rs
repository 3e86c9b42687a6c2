use super::ring::Caller;
use super::*;
use nodewise_engine::{Access, DataSource, PageSize, VirtAddr};
use nodewise_topology::NodeIndex;
use proptest::prelude::*;

const A: Pid = Pid(10);

/// A block that code at an address has asked for.
fn block(address: u64, bytes: u64, mapped: bool, code: u64) -> Event {
    Event::Block { address, bytes, mapped, caller: Caller { at: [code, 0, 0], ..Caller::default() } }
}

fn told(known: &mut Known, pid: Pid, time_ns: u64, event: Event) {
    known.take_in(Told { pid, tid: Tid(pid.0), time_ns, event });
}

/// All blocks: process, address, bytes, time, and the code that asked.
fn blocks(known: Known) -> Vec<(u32, u64, u64, u64, Option<u64>, u64)> {
    let codes: HashMap<u32, u64> =
        known.stacks.iter().map(|(chain, &stack)| (stack, chain[0].1 + 1)).collect();
    let all = known.report().blocks;
    let mut all: Vec<_> = all
        .iter()
        .map(|b| (b.pid.0, b.address, b.bytes, b.from_ns, b.until_ns, codes[&b.stack.unwrap()]))
        .collect();
    all.sort_unstable();
    all
}

fn sample(address: u64, time_ns: u64) -> Sample {
    Sample {
        time_ns,
        address: VirtAddr(address),
        pid: A,
        tid: Tid(A.0),
        accessor: NodeIndex(0),
        home: None,
        access: Access::Read,
        source: DataSource::Unknown,
        page_size: PageSize::Base,
        latency_cycles: 0,
        weight: 1,
    }
}

#[test]
fn a_block_ends_when_it_is_given_back_and_its_place_is_used_again() {
    let mut known = Known::new(4096);
    told(&mut known, A, 1, block(0x10000, 8192, false, 5));
    told(&mut known, A, 2, Event::Freed { address: 0x10000 });
    told(&mut known, A, 3, block(0x10000, 4096, false, 6));
    // One that is not known, and one whose end was lost.
    told(&mut known, A, 4, Event::Freed { address: 0x90000 });
    told(&mut known, A, 5, block(0x20000, 4096, false, 5));
    told(&mut known, A, 6, block(0x20000, 4096, false, 6));
    let report = [5, 6].map(|code| known.stacks[&vec![(None, code - 1)]]);
    let sums = report.map(|stack| &known.sums[stack as usize]);
    assert_eq!(sums.map(|sum| (sum.blocks, sum.bytes)), [(2, 12288), (2, 8192)]);
    assert_eq!(sums.map(|sum| (sum.most_bytes, sum.now_bytes)), [(8192, 0), (8192, 8192)]);
    assert_eq!(
        blocks(known),
        [
            (10, 0x10000, 4096, 3, None, 6),
            (10, 0x10000, 8192, 1, Some(2), 5),
            (10, 0x20000, 4096, 5, Some(6), 5),
            (10, 0x20000, 4096, 6, None, 6),
        ]
    );
}

#[test]
fn memory_is_unmapped_in_parts() {
    let mut known = Known::new(4096);
    told(&mut known, A, 1, block(0x10000, 0x4000, true, 5));
    told(&mut known, A, 2, block(0x11000, 0x1000, false, 6));
    told(&mut known, A, 3, Event::Unmapped { address: 0x11000, bytes: 0x1000 });
    assert_eq!(
        blocks(known),
        [
            (10, 0x10000, 0x1000, 1, None, 5),
            (10, 0x11000, 0x1000, 1, Some(3), 5),
            (10, 0x11000, 0x1000, 2, None, 6),
            (10, 0x12000, 0x2000, 1, None, 5),
        ]
    );
}

#[test]
fn children_have_their_parents_blocks_until_they_run_another_program() {
    let mut known = Known::new(4096);
    told(&mut known, A, 1, block(0x10000, 4096, false, 5));
    told(&mut known, Pid(11), 2, Event::Forked { parent: A });
    told(&mut known, Pid(11), 3, Event::Freed { address: 0x10000 });
    told(&mut known, Pid(12), 4, Event::Forked { parent: A });
    told(&mut known, Pid(12), 5, Event::Mappings { place: 0, text: Vec::new() });
    assert_eq!(known.sums[0].now_bytes, 4096, "a copy is not counted");
    assert_eq!(
        blocks(known),
        [
            (10, 0x10000, 4096, 1, None, 5),
            (11, 0x10000, 4096, 2, Some(3), 5),
            (12, 0x10000, 4096, 4, Some(5), 5),
        ]
    );
}

#[test]
fn what_was_given_back_is_kept_if_a_sample_has_hit_it() {
    let mut known = Known::new(4096);
    for (code, address) in [(5, 0x10000), (6, 0x20000), (7, 0x30000)] {
        told(&mut known, A, 10, block(address, 4096, false, code));
    }
    for address in [0x10000, 0x20000] {
        told(&mut known, A, 20, Event::Freed { address });
    }
    // The second at another time, and beside it.
    known.hit(&[sample(0x10fff, 15), sample(0x20000, 25), sample(0x21000, 15)], 0);
    assert_eq!(known.blocks, 3, "samples of the time before may still come");
    known.hit(&[], 30);
    let kept: Vec<u64> = blocks(known).iter().map(|block| block.1).collect();
    assert_eq!(kept, [0x10000, 0x30000]);
}

#[test]
fn what_a_process_no_longer_has_ends() {
    let mapping = |range, is_code, name: &str| NamedMapping { range, is_code, offset: 0, name: name.into() };
    let name = library::path().unwrap();
    let library = mapping(0x7000_0000..0x7000_1000, true, name.to_str().unwrap());
    let heap = mapping(0x10000..0x20000, false, "[heap]");
    let mut known = Known::new(4096);
    for address in [0x10000, 0x30000] {
        told(&mut known, A, 10, block(address, 4096, false, 5));
    }
    told(&mut known, A, 30, block(0x40000, 4096, false, 5));
    known.retain(A, &[heap.clone(), library], 20);
    let ended = |known: &Known| known.processes[&A].report(A).iter().filter(|b| b.until_ns.is_some()).count();
    assert_eq!(ended(&known), 1);
    known.retain(A, &[heap], 40);
    assert_eq!(ended(&known), 3, "another program has no library");
    told(&mut known, A, 50, block(0x10000, 4096, false, 5));
    known.retain_processes(|pid| pid != A, 60);
    assert_eq!(ended(&known), 4);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut known = Known::new(4096);
    for i in 0..=MOST_BLOCKS as u64 {
        told(&mut known, A, i, block(i << 12, 4096, false, 5));
        if i % 2 == 0 {
            told(&mut known, A, i, Event::Freed { address: i << 12 });
        }
    }
    assert!(known.blocks <= MOST_BLOCKS / 2 + 1 && known.left_out == 0, "{}", known.blocks);
    for i in 0..MOST_BLOCKS as u64 {
        told(&mut known, A, i, block(1 << 50 | i << 12, 4096, false, 5));
    }
    assert!(known.blocks <= MOST_BLOCKS && known.left_out > 0, "{}", known.blocks);
    for pid in 0..2 * MOST_PROCESSES as u32 {
        told(&mut known, Pid(pid), 0, Event::Freed { address: 1 });
    }
    assert_eq!(known.processes.len(), MOST_PROCESSES);
}

/// Events of a small address space, so that blocks meet often.
fn any_event() -> impl Strategy<Value = (u32, Event)> {
    let page = || (0_u64..32).prop_map(|page| page << 12);
    let bytes = || (0_u64..8).prop_map(|pages| pages << 12);
    let event = prop_oneof![
        (page(), bytes(), any::<bool>(), 5_u64..8).prop_map(|(a, b, mapped, code)| block(a, b, mapped, code)),
        page().prop_map(|address| Event::Freed { address }),
        (page(), bytes()).prop_map(|(address, bytes)| Event::Unmapped { address, bytes }),
        (1_u32..4).prop_map(|pid| Event::Forked { parent: Pid(pid) }),
        Just(Event::Mappings { place: 0, text: Vec::new() }),
    ];
    (1_u32..4, event)
}

proptest! {
    #[test]
    fn blocks_of_a_kind_never_meet_and_are_all_counted(events in prop::collection::vec(any_event(), 0..200)) {
        let mut known = Known::new(4096);
        for ((pid, event), time_ns) in events.into_iter().zip(0..) {
            told(&mut known, Pid(pid), time_ns, event);
            prop_assert_eq!(known.blocks, known.processes.values().map(Process::count).sum::<usize>());
        }
        for (&pid, process) in &known.processes {
            for mapped in [false, true] {
                let mut now = process.report(pid);
                now.retain(|block| block.until_ns.is_none() && block.mapped == mapped);
                now.sort_by_key(|block| block.address);
                prop_assert!(now.windows(2).all(|pair| pair[0].address + pair[0].bytes <= pair[1].address));
            }
        }
    }
}
