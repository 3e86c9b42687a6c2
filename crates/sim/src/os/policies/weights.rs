//! Weights of interleaving that the kernel takes from the machine's bandwidths.

use nodewise_hardware::Preset;

/// The kernel's `weightiness`: the sum that weights are cut to, before common divisors go.
const WEIGHTINESS: u64 = 32;

/// The weight of each node (`reduce_interleave_weights`, mm/mempolicy.c, Linux 6.16). Its share of the
/// bandwidth, in parts of [`WEIGHTINESS`] rounded down, is one at least. Nodes without memory have none.
///
/// A node's bandwidth is what firmware tells of the nearest node with CPUs, in MB/s.
pub(crate) fn from_bandwidths(preset: &Preset) -> Vec<u32> {
    let bandwidth = |home: usize| {
        let with_cpus = (0..preset.nodes.len()).filter(|&node| preset.nodes[node].cores > 0);
        let latency_ns = |&node: &usize| preset.idle_latency_ns(node, home);
        let nearest = with_cpus.min_by(|one, other| latency_ns(one).total_cmp(&latency_ns(other)));
        let has_memory = preset.nodes[home].memory_bytes > 0;
        let gb_per_s = nearest.map_or(0.0, |node| preset.bandwidth_gb_per_s(node, home));
        has_memory.then_some((gb_per_s * 1000.0).round() as u64)
    };
    let bandwidths: Vec<Option<u64>> = (0..preset.nodes.len()).map(bandwidth).collect();
    let sum: u64 = bandwidths.iter().flatten().sum();
    let parts = |bandwidth: u64| (WEIGHTINESS * bandwidth / sum.max(1)).max(1) as u32;
    let weights: Vec<u32> = bandwidths.iter().map(|bandwidth| bandwidth.map_or(0, parts)).collect();
    let divisor = weights.iter().copied().fold(0, greatest_common_divisor).max(1);
    weights.iter().map(|weight| weight / divisor).collect()
}

fn greatest_common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// Two nodes with CPUs at 100 GB/s, and more nodes without, each at its own GB/s by links of 50.
    fn weights(others: &[f64]) -> Vec<u32> {
        let mut text = r#"
            name = "test"
            about = "memory of several speeds"
            line_bytes = 64
            core = { ghz = 1.0, cycles_per_instruction = 1.0, outstanding_misses = 4 }
            controller = { idle_latency_ns = 100.0, service_ns = 0.64 }
            [[node]]
            count = 2
            cores = 2
            memory_mib = 64
            [[link]]
            between = [0, 1]
            gb_per_s = 50.0
            hop_latency_ns = 20.0
            "#
        .to_owned();
        for (index, gb_per_s) in others.iter().enumerate() {
            let service_ns = 64.0 / gb_per_s;
            writeln!(
                text,
                "[[node]]\ncount = 1\ncores = 0\nmemory_mib = 64\n\
                 controller = {{ idle_latency_ns = 200.0, service_ns = {service_ns:.6} }}\n\
                 [[link]]\nbetween = [0, {}]\ngb_per_s = 50.0\nhop_latency_ns = 50.0",
                2 + index
            )
            .unwrap();
        }
        from_bandwidths(&Preset::parse(&text, "test").unwrap())
    }

    #[test]
    fn they_are_the_kernels() {
        // Worked out by hand. Alike: 32 * 100 / 200 is 16 each, and 16 their common divisor.
        assert_eq!(weights(&[]), [1, 1]);
        // 32 * 100 / 225 is 14.2, and 32 * 25 / 225 is 3.6.
        assert_eq!(weights(&[25.0]), [14, 14, 3]);
        // Behind a link of 50 GB/s, 80 are 50: 12.8, 12.8 and 6.4 parts, which have 6 in common.
        assert_eq!(weights(&[80.0]), [2, 2, 1]);
        // 15.9 and 0.2: nobody gets nothing.
        assert_eq!(weights(&[1.0]), [15, 15, 1]);
        // 32 * 100 / 350 is 9.1, and 32 * 50 / 350 is 4.6.
        assert_eq!(weights(&[80.0, 80.0, 80.0]), [9, 9, 4, 4, 4]);
    }

    #[test]
    fn a_machine_of_like_nodes_interleaves_evenly() {
        for name in Preset::names().filter(|name| !name.starts_with("ace")) {
            let preset = Preset::named(name).unwrap();
            if preset.nodes.iter().all(|node| node.controller.is_none()) {
                assert_eq!(from_bandwidths(&preset), vec![1; preset.nodes.len()], "{name}");
            }
        }
    }
}
