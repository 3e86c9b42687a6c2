//! The kernel's word on where memory is, asked without the library.

use anyhow::Context as _;
use nodewise_sys::{page_bytes, query_pages};
use nodewise_topology::NodeId;
use std::collections::BTreeMap;

/// The node of each base page, asked of the kernel without the library.
pub fn homes<T: bytemuck::Pod>(values: &[T], pages: usize) -> anyhow::Result<Vec<i32>> {
    homes_from(values.as_ptr().addr(), pages)
}

pub fn homes_from(start: usize, pages: usize) -> anyhow::Result<Vec<i32>> {
    let addresses: Vec<u64> = (0..pages).map(|page| (start + page * page_bytes()) as u64).collect();
    let mut status = vec![i32::MIN; pages];
    query_pages(0, &addresses, &mut status)?;
    Ok(status)
}

/// Equal neighbours together: how many and which.
pub fn runs(homes: &[i32]) -> Vec<(usize, i32)> {
    homes.chunk_by(|a, b| a == b).map(|run| (run.len(), run[0])).collect()
}

/// This process's memory of a kind that `smaps` tells, exactly, unlike `statm`.
fn kib_of(kind: &str) -> anyhow::Result<usize> {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let mut lines = rollup.lines();
    let kib = lines.find_map(|line| line.strip_prefix(kind)?.strip_prefix(':')).context("no such kind")?;
    Ok(kib.trim().trim_end_matches(" kB").parse()?)
}

/// Memory of this process that is no file's, in pages.
pub fn own_pages() -> anyhow::Result<usize> {
    Ok(kib_of("Anonymous")? * 1024 / page_bytes())
}

/// This process's memory in huge pages.
pub fn huge_kib() -> anyhow::Result<usize> {
    kib_of("AnonHugePages")
}

/// Page faults of each node's workers so far; pages that they have the kernel bring in count as well.
pub fn faults_of_workers() -> anyhow::Result<BTreeMap<u32, u64>> {
    let mut faults = BTreeMap::new();
    for thread in std::fs::read_dir("/proc/self/task")? {
        let thread = thread?.path();
        // Threads that are no workers may end meanwhile.
        let Ok(name) = std::fs::read_to_string(thread.join("comm")) else { continue };
        let Some((node, _)) = name.strip_prefix("node").and_then(|name| name.split_once('-')) else {
            continue;
        };
        let stat = std::fs::read_to_string(thread.join("stat"))?;
        let (_, fields) = stat.rsplit_once(')').context("the name is in parentheses")?;
        // The tenth field of all (proc_pid_stat(5)).
        let minor: u64 = fields.split_whitespace().nth(7).context("minor faults")?.parse()?;
        *faults.entry(node.parse()?).or_default() += minor;
    }
    Ok(faults)
}

/// Anonymous pages of this process on a node.
pub fn anonymous_pages(node: NodeId) -> anyhow::Result<usize> {
    let maps = std::fs::read_to_string("/proc/self/numa_maps")?;
    let anonymous = maps.lines().filter(|line| line.contains(" anon="));
    let there = format!("N{node}=");
    let pages = anonymous.flat_map(|line| line.split(' ').filter_map(|word| word.strip_prefix(&there)));
    pages.map(|pages| Ok(pages.parse::<usize>()?)).sum()
}
