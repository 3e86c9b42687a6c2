//! Today's programs, as small as they can be: what each keeps of the real ones stands in its file.

mod hash_join;
mod key_value;
mod llm;
mod pagerank;

use super::Workload;

pub const ALL: [Workload; 4] = [
    Workload {
        name: "key-value",
        about: "a hash table that one thread filled, read and updated by keys after Zipf's law",
        build: key_value::build,
    },
    Workload {
        name: "pagerank",
        about: "ranks of the vertices of an RMAT graph that one thread read",
        build: pagerank::build,
    },
    Workload {
        name: "hash-join",
        about: "two relations joined with one hash table that all threads fill and probe",
        build: hash_join::build,
    },
    Workload {
        name: "llm",
        about: "tokens decoded with weights that one thread read and all read on, and private caches of keys and values",
        build: llm::build,
    },
];
