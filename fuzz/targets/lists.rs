//! Lists of nodes and CPUs as options have them, `!` and `+` included: what they name is allowed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodewise_topology::{Allowed, Lists, Topology};
use std::path::Path;

fuzz_target!(|input: (bool, &str)| {
    let (confined, text) = input;
    let topology = Topology::synthetic(8, 4, 1 << 30);
    let mut allowed = Allowed::everything(&topology);
    if confined {
        allowed = Allowed { cpus: "2-5,9,31".parse().unwrap(), memory_nodes: "1,6-7".parse().unwrap() };
    }
    let lists = Lists::new(&topology, allowed.clone(), Path::new("/nonexistent"));
    if let Ok(nodes) = lists.memory_nodes(text) {
        assert!(nodes.iter().all(|node| allowed.memory_nodes.contains(node)), "{text:?}: {nodes}");
    }
    for cpus in [lists.cpus(text), lists.cpus_of_nodes(text)].into_iter().flatten() {
        assert!(cpus.iter().all(|cpu| allowed.cpus.contains(cpu)), "{text:?}: {cpus}");
    }
});
