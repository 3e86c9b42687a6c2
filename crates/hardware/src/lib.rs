//! Caches, memory controllers and links as queues: the machine under the simulator.
#![forbid(unsafe_code)]
