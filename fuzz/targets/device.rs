//! Arbitrary words as a modelled machine's device: never a panic, and what is read makes sense.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_sys::device::{Device, RECORDS, RING_WORDS, Shape, bytes};
use std::sync::atomic::{AtomicU64, Ordering};

fuzz_target!(|input: (bool, u8, u8, u8, Vec<(u16, u64)>)| {
    let (is_device, nodes, cpus, links, scribbles) = input;
    let [nodes, cpus, links] = [nodes % 8 + 1, cpus % 4 + 1, links % 8].map(usize::from);
    let ends = (0..links).map(|link| (link % nodes, (link + 1) % nodes)).collect();
    let shape = Shape { nodes, cpus, links: ends, cycle_fs: 500_000, line_bytes: 64, slow_thousandths: 1000 };
    let words: Vec<AtomicU64> = (0..bytes(&shape) / 8).map(|_| AtomicU64::new(0)).collect();
    if is_device {
        Device::create(&words[..], shape).expect("it is large enough");
    }
    // Half before the guest opens it, half while it reads.
    let (before, after) = scribbles.split_at(scribbles.len() / 2);
    let scribble = |&(place, word): &(u16, u64)| {
        let place = usize::from(place);
        // The low words, or those at the beginnings of rings.
        let at = if place % 2 == 0 { place / 2 } else { words.len() - place / 2 * (RING_WORDS / 64) % words.len() - 1 };
        words[at % words.len()].store(word, Ordering::Relaxed);
    };
    before.iter().for_each(scribble);
    let Some(mut device) = Device::open(&words[..]) else { return };
    let first = device.counts();
    for step in after.chunks(4) {
        step.iter().for_each(scribble);
        for cpu in 0..device.shape().cpus {
            let mut taken = 0;
            device.take(cpu, |record| {
                taken += 1;
                assert!(record.weight > 0);
            });
            assert!(taken <= RECORDS);
        }
    }
    let _ = device.counts().since(&first);
});
