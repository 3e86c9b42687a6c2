//! Links between nodes.

/// A link in one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// From this node
    pub from: usize,
    /// to this one.
    pub to: usize,
    /// Bandwidth in GB/s (10^9 bytes).
    pub gb_per_s: f64,
    /// The latency that it adds to a message's way.
    pub hop_latency_ns: f64,
    /// The bytes of its bandwidth that a message without data takes: one that asks for a line, or confirms
    /// that one was written. 0 if they go another way, or if that is not known.
    pub message_bytes: u64,
}
