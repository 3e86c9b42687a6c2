//! Programs that only stream through memory: Pikus's bandwidth tests, Intel's microbenchmark, latency under
//! load.

mod intel;
mod loaded;
mod pikus;

use super::Workload;

pub use intel::Micro;
pub use loaded::Loaded;
pub use pikus::Stream;

/// Bytes of a cache line. These programs go through memory line by line: what else they do in a line stays in
/// registers and the first-level cache.
const LINE: usize = 64;

/// Every such program.
pub const ALL: [Workload; 5] = [
    Workload {
        name: "pikus-own",
        about: "every thread writes its own memory from end to end, 64 MB each (Pikus's talk)",
        build: |parameters| Box::new(Stream::own(parameters)),
    },
    Workload {
        name: "pikus-bandwidth",
        about: "one array, dealt out to the threads line by line, and every thread writes its lines (Pikus's talk)",
        build: |parameters| Box::new(Stream::interleaved(parameters)),
    },
    Workload {
        name: "intel-micro",
        about: "160 GB, whose pages lie round the nodes of its threads; every thread writes a contiguous block once (Intel's article)",
        build: |parameters| Box::new(Micro::interleaved(parameters)),
    },
    Workload {
        name: "intel-micro-blocked",
        about: "160 GB, an equal chunk on each node of its threads; every thread writes a contiguous block once (Intel's article)",
        build: |parameters| Box::new(Micro::blocked(parameters)),
    },
    Workload {
        name: "loaded-latency",
        about: "one thread follows pointers, the others read their own memory meanwhile: an item a second is 1 over the latency (MLC)",
        build: |parameters| Box::new(Loaded::new(parameters)),
    },
];
