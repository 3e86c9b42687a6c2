//! Pools and their tasks.

use crate::arguments::{List, exclusive, free, handle, node_set, optional_out, out, shared};
use crate::callback::{Context, FirstStatus, Run, given};
use crate::result::{Code, Outcome, guarded};
use nodewise_runtime::{Allowance, NodePool, NodePoolBuilder, Seat};
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::sync::Arc;

/// `nodewise_node_statistics`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct NodeStatistics {
    pub node: u32,
    pub workers: usize,
    pub run: u64,
    pub stolen_inside: u64,
    pub stolen_across: u64,
}

/// A pool for the length of a call that runs tasks, one of which may free it.
pub(crate) enum Held<'a> {
    /// By a worker: the pool goes on until the worker's task has ended.
    Inside(&'a NodePool),
    /// By another thread, which is an owner meanwhile.
    Outside(Arc<NodePool>),
}

impl<'a> Held<'a> {
    /// # Safety
    /// `pool` is null or from [`nodewise_pool_new`] or [`nodewise_default_pool`], and not freed yet.
    pub(crate) unsafe fn new(pool: *const NodePool) -> Outcome<Self> {
        // SAFETY: as promised.
        let inside: &'a NodePool = unsafe { shared(pool, "pool") }?;
        if inside.worker_node().is_some() {
            return Ok(Self::Inside(inside));
        }
        // SAFETY: it came from `Arc::into_raw`.
        unsafe { Arc::increment_strong_count(pool) };
        // SAFETY: the owner that was counted.
        Ok(Self::Outside(unsafe { Arc::from_raw(pool) }))
    }
}

impl Deref for Held<'_> {
    type Target = NodePool;

    fn deref(&self) -> &NodePool {
        match self {
            Self::Inside(pool) => pool,
            Self::Outside(pool) => pool,
        }
    }
}

/// The number that stands for no node.
pub const NO_NODE: u32 = u32::MAX;
/// The number that stands for no index of a worker.
pub const NO_INDEX: usize = usize::MAX;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_options_new(out_options: *mut *mut NodePoolBuilder) -> Code {
    guarded(|| {
        // SAFETY: `out_options` is null, or room for a value that only this call has.
        let out_options = unsafe { out(out_options, "out_options") }?;
        out_options.write(handle(NodePool::builder()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_options_free(options: *mut NodePoolBuilder) {
    // SAFETY: `options` is null, or was made for the caller, who does not use it again.
    unsafe { free(options) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_options_workers(options: *mut NodePoolBuilder, most: usize) -> Code {
    guarded(|| {
        // SAFETY: `options` is null, or a value that nobody else uses until this returns.
        let options = unsafe { exclusive(options, "options") }?;
        *options = options.clone().workers(most);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_options_nodes(
    options: *mut NodePoolBuilder,
    nodes: *const u32,
    count: usize,
) -> Code {
    guarded(|| {
        // SAFETY: `options` is null, or a value that nobody else uses until this returns.
        let options = unsafe { exclusive(options, "options") }?;
        // SAFETY: `nodes` is to `count` values that stay as they are until this returns.
        let nodes = unsafe { node_set(nodes, count, "nodes") }?;
        *options = options.clone().nodes(&nodes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_options_stack_bytes(
    options: *mut NodePoolBuilder,
    bytes: usize,
) -> Code {
    guarded(|| {
        // SAFETY: `options` is null, or a value that nobody else uses until this returns.
        let options = unsafe { exclusive(options, "options") }?;
        *options = options.clone().stack_bytes(bytes);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_options_allowance(
    options: *mut NodePoolBuilder,
    allowance: *const Allowance,
) -> Code {
    guarded(|| {
        // SAFETY: `options` is null, or a value that nobody else uses until this returns.
        let options = unsafe { exclusive(options, "options") }?;
        // SAFETY: `allowance` is null, or a value that lives and is only shared until this returns.
        let allowance = unsafe { shared(allowance, "allowance") }?;
        *options = options.clone().allowance(allowance.clone());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_options_confined(
    options: *mut NodePoolBuilder,
    confined: bool,
) -> Code {
    guarded(|| {
        // SAFETY: `options` is null, or a value that nobody else uses until this returns.
        let options = unsafe { exclusive(options, "options") }?;
        *options = options.clone().confined(confined);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_options_callers_work(
    options: *mut NodePoolBuilder,
    work: bool,
) -> Code {
    guarded(|| {
        // SAFETY: `options` is null, or a value that nobody else uses until this returns.
        let options = unsafe { exclusive(options, "options") }?;
        *options = options.clone().callers_work(work);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_options_by_cache(
    options: *mut NodePoolBuilder,
    by_cache: bool,
) -> Code {
    guarded(|| {
        // SAFETY: `options` is null, or a value that nobody else uses until this returns.
        let options = unsafe { exclusive(options, "options") }?;
        *options = options.clone().by_cache(by_cache);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_new(
    options: *const NodePoolBuilder,
    out_pool: *mut *mut NodePool,
) -> Code {
    guarded(|| {
        // SAFETY: `out_pool` is null, or room for a value that only this call has.
        let options = unsafe { options.as_ref() };
        // SAFETY: `out_pool` is null, or room for a value that only this call has.
        let out_pool = unsafe { out(out_pool, "out_pool") }?;
        let options = options.map_or_else(NodePool::builder, NodePoolBuilder::clone);
        out_pool.write(Arc::into_raw(Arc::new(options.build()?)).cast_mut());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_default_pool(out_pool: *mut *mut NodePool) -> Code {
    guarded(|| {
        // SAFETY: `out_pool` is null, or room for a value that only this call has.
        let out_pool = unsafe { out(out_pool, "out_pool") }?;
        out_pool.write(Arc::into_raw(NodePool::shared()?).cast_mut());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_default_pool_limit(most: usize) -> Code {
    guarded(|| Ok(NodePool::limit_shared(most)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_free(pool: *mut NodePool) {
    if !pool.is_null() {
        // SAFETY: the caller's promise: it came from `Arc::into_raw`, and this owner's use ends here.
        let pool = unsafe { Arc::from_raw(pool) };
        guarded(|| {
            drop(pool);
            Ok(())
        });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_nodes(
    pool: *const NodePool,
    nodes: *mut u32,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let pool = unsafe { shared(pool, "pool") }?;
        // SAFETY: `nodes` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(nodes, capacity, out_count, "nodes") }?;
        list.fill(pool.nodes().map(|node| node.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_workers(pool: *const NodePool, out_workers: *mut usize) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let pool = unsafe { shared(pool, "pool") }?;
        // SAFETY: `out_workers` is null, or room for a value that only this call has.
        let out_workers = unsafe { out(out_workers, "out_workers") }?;
        out_workers.write(pool.workers());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_worker_node(pool: *const NodePool, out_node: *mut u32) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let pool = unsafe { shared(pool, "pool") }?;
        // SAFETY: `out_node` is null, or room for a value that only this call has.
        let out_node = unsafe { out(out_node, "out_node") }?;
        out_node.write(pool.worker_node().map_or(NO_NODE, |node| node.0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_worker_index(pool: *const NodePool, out_index: *mut usize) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let pool = unsafe { shared(pool, "pool") }?;
        // SAFETY: `out_index` is null, or room for a value that only this call has.
        let out_index = unsafe { out(out_index, "out_index") }?;
        out_index.write(pool.worker_index().unwrap_or(NO_INDEX));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_identity(
    pool: *const NodePool,
    out_identity: *mut *const c_void,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let pool = unsafe { shared(pool, "pool") }?;
        // SAFETY: `out_identity` is null, or room for a value that only this call has.
        let out_identity = unsafe { out(out_identity, "out_identity") }?;
        out_identity.write(pool.identity());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nodewise_this_seat() -> *const Seat {
    // Nothing in it panics: it is an address.
    nodewise_runtime::seat()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_worker_indices(
    pool: *const NodePool,
    out_indices: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let pool = unsafe { shared(pool, "pool") }?;
        // SAFETY: `out_indices` is null, or room for a value that only this call has.
        let out_indices = unsafe { out(out_indices, "out_indices") }?;
        out_indices.write(pool.worker_indices());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_statistics(
    pool: *const NodePool,
    statistics: *mut NodeStatistics,
    capacity: usize,
    out_count: *mut usize,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let pool = unsafe { shared(pool, "pool") }?;
        // SAFETY: `statistics` is room for `capacity` values, and `out_count` for their number.
        let list = unsafe { List::new(statistics, capacity, out_count, "statistics") }?;
        list.fill(pool.statistics().into_iter().map(|of| NodeStatistics {
            node: of.node.0,
            workers: of.workers,
            run: of.run,
            stolen_inside: of.stolen_inside,
            stolen_across: of.stolen_across,
        }));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_join(
    pool: *const NodePool,
    a: Option<Run>,
    a_context: *mut c_void,
    b: Option<Run>,
    b_context: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let inside = unsafe { shared(pool, "pool") }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let (a, b) = (given(a, "a")?, given(b, "b")?);
        let (a_context, b_context) = (Context::new(a_context), Context::new(b_context));
        let both = inside.join_inside(
            // SAFETY: `a` may be called with its context from any thread.
            || unsafe { a(a_context.get()) },
            // SAFETY: `b` may be called with its context from any thread.
            || unsafe { b(b_context.get()) },
        );
        let (a, b) = match both {
            Ok(both) => both,
            // SAFETY: `pool` is a pool that lives as this begins.
            Err((a, b)) => unsafe { Held::new(pool) }?.join(a, b),
        };
        let status = FirstStatus::default();
        status.note(a);
        status.note(b);
        status.tell(out_status)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_isolate(
    pool: *const NodePool,
    run: Option<Run>,
    context: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a pool that lives as this begins.
        let pool = unsafe { Held::new(pool) }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let (run, context) = (given(run, "run")?, Context::new(context));
        let status = FirstStatus::default();
        // SAFETY: `run` may be called with its context from any thread.
        status.note(pool.isolate(|| unsafe { run(context.get()) }));
        status.tell(out_status)
    })
}
