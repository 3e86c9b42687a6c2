//! The CPUs and nodes that this process may use.

use crate::arguments::{List, free, handle, node_set, out, shared};
use crate::result::{Code, Failure, Outcome, guarded};
use nodewise_runtime::{Allowance, AllowedNode};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_of_this_thread(out_allowance: *mut *mut Allowance) -> Code {
    guarded(|| {
        // SAFETY: `out_allowance` is null, or room for a value that only this call has.
        let out_allowance = unsafe { out(out_allowance, "out_allowance") }?;
        out_allowance.write(handle(Allowance::of_this_thread()?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_on_nodes(
    allowance: *const Allowance,
    nodes: *const u32,
    count: usize,
    out_allowance: *mut *mut Allowance,
) -> Code {
    guarded(|| {
        // SAFETY: `allowance` is null, or a value that lives and is only shared until this returns.
        let allowance = unsafe { shared(allowance, "allowance") }?;
        // SAFETY: `nodes` is to `count` values that stay as they are until this returns.
        let nodes = unsafe { node_set(nodes, count, "nodes") }?;
        // SAFETY: `out_allowance` is null, or room for a value that only this call has.
        let out_allowance = unsafe { out(out_allowance, "out_allowance") }?;
        out_allowance.write(handle(allowance.on_nodes(&nodes)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_free(allowance: *mut Allowance) {
    // SAFETY: `allowance` is null, or was made for the caller, who does not use it again.
    unsafe { free(allowance) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_nodes(
    allowance: *const Allowance,
    nodes: *mut u32,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `allowance` is null, or a value that lives and is only shared until this returns.
        let allowance = unsafe { shared(allowance, "allowance") }?;
        // SAFETY: `nodes` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(nodes, capacity, out_count, "nodes") }?;
        list.fill(allowance.nodes().iter().map(|node| node.id.0));
        Ok(())
    })
}

fn of_node(allowance: &Allowance, id: u32) -> Outcome<&AllowedNode> {
    let node = allowance.nodes().iter().find(|node| node.id.0 == id);
    node.ok_or_else(|| Failure::invalid(format!("the allowance has no node {id}")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_cpus(
    allowance: *const Allowance,
    node: u32,
    cpus: *mut u32,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `allowance` is null, or a value that lives and is only shared until this returns.
        let allowance = unsafe { shared(allowance, "allowance") }?;
        // SAFETY: `cpus` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(cpus, capacity, out_count, "cpus") }?;
        list.fill(of_node(allowance, node)?.cpus.iter().map(|cpu| cpu.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_has_memory(
    allowance: *const Allowance,
    node: u32,
    out_memory: *mut bool,
) -> Code {
    guarded(|| {
        // SAFETY: `allowance` is null, or a value that lives and is only shared until this returns.
        let allowance = unsafe { shared(allowance, "allowance") }?;
        // SAFETY: `out_memory` is null, or room for a value that only this call has.
        let out_memory = unsafe { out(out_memory, "out_memory") }?;
        out_memory.write(of_node(allowance, node)?.memory);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_distance(
    allowance: *const Allowance,
    from: u32,
    to: u32,
    out_distance: *mut u32,
) -> Code {
    guarded(|| {
        // SAFETY: `allowance` is null, or a value that lives and is only shared until this returns.
        let allowance = unsafe { shared(allowance, "allowance") }?;
        // SAFETY: `out_distance` is null, or room for a value that only this call has.
        let out_distance = unsafe { out(out_distance, "out_distance") }?;
        of_node(allowance, to)?;
        let place = allowance.nodes().iter().take_while(|node| node.id.0 != to).count();
        out_distance.write(of_node(allowance, from)?.distances[place]);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_cpu_quota(
    allowance: *const Allowance,
    out_quota_us: *mut u64,
    out_period_us: *mut u64,
) -> Code {
    guarded(|| {
        // SAFETY: `allowance` is null, or a value that lives and is only shared until this returns.
        let allowance = unsafe { shared(allowance, "allowance") }?;
        // SAFETY: `out_quota_us` is null, or room for a value that only this call has.
        let out_quota_us = unsafe { out(out_quota_us, "out_quota_us") }?;
        // SAFETY: `out_period_us` is null, or room for a value that only this call has.
        let out_period_us = unsafe { out(out_period_us, "out_period_us") }?;
        let quota = allowance.cpu_quota();
        out_quota_us.write(quota.map_or(0, |quota| quota.quota_us));
        out_period_us.write(quota.map_or(0, |quota| quota.period_us));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_parallelism(
    allowance: *const Allowance,
    out_threads: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `allowance` is null, or a value that lives and is only shared until this returns.
        let allowance = unsafe { shared(allowance, "allowance") }?;
        // SAFETY: `out_threads` is null, or room for a value that only this call has.
        let out_threads = unsafe { out(out_threads, "out_threads") }?;
        out_threads.write(allowance.parallelism());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_allowance_workers(
    allowance: *const Allowance,
    most: usize,
    workers: *mut usize,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `allowance` is null, or a value that lives and is only shared until this returns.
        let allowance = unsafe { shared(allowance, "allowance") }?;
        // SAFETY: `workers` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(workers, capacity, out_count, "workers") }?;
        list.fill(allowance.workers(most));
        Ok(())
    })
}
