//! Scopes.

use crate::arguments::{optional_out, out, shared};
use crate::callback::{Context, DropContext, FirstStatus, Owned, given};
use crate::pool::{Held, NO_NODE};
use crate::result::{Code, Failure, Outcome, guarded};
use nodewise_runtime::{NodePool, Scope};
use nodewise_topology::NodeId;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, Ordering};

pub type ScopeRun = unsafe extern "C" fn(scope: *const ScopeHandle, context: *mut c_void) -> c_int;

pub type MoveContext = unsafe extern "C" fn(from: *mut c_void, to: *mut c_void);

/// `nodewise_scope`: lies in the frame of [`nodewise_pool_scope`], which outlives the scope and so its tasks.
#[derive(Default)]
pub struct ScopeHandle {
    /// Set before anybody sees the handle.
    scope: AtomicPtr<Scope<'static>>,
    status: FirstStatus,
}

impl ScopeHandle {
    fn scope(&self) -> Outcome<&Scope<'static>> {
        // SAFETY: null or the scope in whose frame, or task, the caller is: the header allows no other use.
        let scope = unsafe { self.scope.load(Ordering::Acquire).as_ref() };
        scope.ok_or_else(|| Failure::invalid("the scope has not begun"))
    }
}

/// A handle's address, for tasks, which it outlives.
#[derive(Clone, Copy)]
struct Outlives(*const ScopeHandle);

// SAFETY: all that is in a handle may be used from any thread.
unsafe impl Send for Outlives {}

impl Outlives {
    /// The address; a method, so that closures capture the whole.
    fn get(self) -> *const ScopeHandle {
        self.0
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_scope(
    pool: *const NodePool,
    body: Option<ScopeRun>,
    context: *mut c_void,
    out_status: *mut c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a pool that lives as this begins.
        let pool = unsafe { Held::new(pool) }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let (body, context) = (given(body, "body")?, Context::new(context));
        let handle = ScopeHandle::default();
        pool.scope(|scope| {
            handle.scope.store(std::ptr::from_ref(scope).cast_mut(), Ordering::Release);
            // SAFETY: `body` may be called with its context from any thread.
            handle.status.note(unsafe { body(&raw const handle, context.get()) });
        });
        handle.status.tell(out_status)
    })
}

/// The task as the runtime takes it.
///
/// # Safety
/// The pointers are what the header asks for.
unsafe fn task(
    scope: *const ScopeHandle,
    run: ScopeRun,
    context: Owned,
) -> impl FnOnce(&Scope<'static>) + Send + 'static {
    let scope = Outlives(scope);
    move |_| {
        // SAFETY: the scope waits for this task, and its handle outlives it.
        let handle = unsafe { &*scope.get() };
        // SAFETY: as promised.
        handle.status.note(unsafe { run(handle, context.get()) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_scope_spawn(
    scope: *const ScopeHandle,
    run: Option<ScopeRun>,
    context: *mut c_void,
    drop: Option<DropContext>,
) -> Code {
    // SAFETY: the caller's promise. Before all else, so that it is dropped whatever is wrong.
    let context = unsafe { Owned::new(context, drop) };
    guarded(move || {
        let run = given(run, "run")?;
        // SAFETY: `scope` is null, or a value that lives and is only shared until this returns.
        let handle = unsafe { shared(scope, "scope") }?;
        // SAFETY: `run` may be called with this context from any thread until the scope ends.
        handle.scope()?.spawn(unsafe { task(scope, run, context) });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_scope_spawn_copy(
    scope: *const ScopeHandle,
    run: Option<ScopeRun>,
    context: *const c_void,
    bytes: usize,
) -> Code {
    guarded(|| {
        let run = given(run, "run")?;
        // SAFETY: `scope` is null, or a value that lives and is only shared until this returns.
        let handle = unsafe { shared(scope, "scope") }?;
        if context.is_null() && bytes > 0 {
            return Err(Failure::invalid("context is NULL"));
        }
        let context = context.cast::<Word>();
        match bytes {
            // SAFETY: `context` is to an object of `bytes` bytes, which may be moved.
            8 => unsafe { spawn_words::<1>(handle, run, context) },
            // SAFETY: likewise.
            16 => unsafe { spawn_words::<2>(handle, run, context) },
            // SAFETY: likewise.
            24 => unsafe { spawn_words::<3>(handle, run, context) },
            // SAFETY: likewise.
            32 => unsafe { spawn_words::<4>(handle, run, context) },
            _ => {
                let mut copy = Box::<[u64]>::new_uninit_slice(bytes.div_ceil(size_of::<Word>()));
                // SAFETY: likewise, and there is room for so many.
                unsafe { copy.as_mut_ptr().cast::<u8>().copy_from(context.cast(), bytes) };
                // SAFETY: likewise.
                unsafe { spawn_with(handle, run, copy) }
            }
        }
    })
}

type Word = MaybeUninit<u64>;

/// Copies so many words into the task, by way of registers.
///
/// # Safety
/// There are so many, and `run` is what the header asks for.
#[inline]
unsafe fn spawn_words<const WORDS: usize>(
    handle: &ScopeHandle,
    run: ScopeRun,
    context: *const Word,
) -> Outcome {
    // SAFETY: as promised.
    let copy = unsafe { context.cast::<[Word; WORDS]>().read_unaligned() };
    // SAFETY: as promised.
    unsafe { spawn_with(handle, run, copy) }
}

/// # Safety
/// `run` is what the header asks for.
#[inline]
unsafe fn spawn_with(
    handle: &ScopeHandle,
    run: ScopeRun,
    mut copy: impl AsMut<[Word]> + Send + 'static,
) -> Outcome {
    let outlives = Outlives(handle);
    handle.scope()?.spawn(move |_| {
        // SAFETY: the scope waits for this task, and its handle outlives it.
        let handle = unsafe { &*outlives.get() };
        // SAFETY: as promised.
        handle.status.note(unsafe { run(handle, copy.as_mut().as_mut_ptr().cast()) });
    });
    Ok(())
}

/// An object of the caller's in a task's memory, where the caller has moved it.
struct Moved {
    handle: Outlives,
    /// None once it was called, which has ended the object.
    run: Option<ScopeRun>,
    object: MaybeUninit<[u64; 4]>,
}

impl Moved {
    fn call(&mut self) {
        if let Some(run) = self.run.take() {
            // SAFETY: the scope waits for this task, and its handle outlives it.
            let handle = unsafe { &*self.handle.get() };
            // SAFETY: as promised to `nodewise_scope_spawn_moved`.
            handle.status.note(unsafe { run(handle, self.object.as_mut_ptr().cast()) });
        }
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        if let Some(run) = self.run {
            // SAFETY: likewise.
            unsafe { run(std::ptr::null(), self.object.as_mut_ptr().cast()) };
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_scope_spawn_moved(
    scope: *const ScopeHandle,
    node: u32,
    run: Option<ScopeRun>,
    context: *mut c_void,
    bytes: usize,
    move_to: Option<MoveContext>,
) -> Code {
    guarded(|| {
        let (run, move_to) = (given(run, "run")?, given(move_to, "move")?);
        // SAFETY: `scope` is null, or a value that lives and is only shared until this returns.
        let handle = unsafe { shared(scope, "scope") }?;
        if bytes > size_of::<[u64; 4]>() {
            return Err(Failure::invalid(format!("a task has no room for {bytes} bytes")));
        }
        let outlives = Outlives(handle);
        let make = |task: &mut MaybeUninit<Moved>| {
            let moved = Moved { handle: outlives, run: Some(run), object: MaybeUninit::uninit() };
            // SAFETY: `move_to` makes the object at the address that it is given.
            unsafe { move_to(context, task.write(moved).object.as_mut_ptr().cast()) };
        };
        let node = (node != NO_NODE).then_some(NodeId(node));
        // SAFETY: it makes one.
        Ok(unsafe { handle.scope()?.spawn_in_place(node, make, |task, _| task.call()) }?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_scope_spawn_on(
    scope: *const ScopeHandle,
    node: u32,
    run: Option<ScopeRun>,
    context: *mut c_void,
    drop: Option<DropContext>,
) -> Code {
    // SAFETY: the caller's promise. Before all else, so that it is dropped whatever is wrong.
    let context = unsafe { Owned::new(context, drop) };
    guarded(move || {
        let run = given(run, "run")?;
        // SAFETY: `scope` is null, or a value that lives and is only shared until this returns.
        let handle = unsafe { shared(scope, "scope") }?;
        // SAFETY: `run` may be called with this context from any thread until the scope ends.
        Ok(handle.scope()?.spawn_on(NodeId(node), unsafe { task(scope, run, context) })?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_scope_cancel(scope: *const ScopeHandle) -> Code {
    guarded(|| {
        // SAFETY: `scope` is null, or a value that lives and is only shared until this returns.
        unsafe { shared(scope, "scope") }?.scope()?.cancel();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_scope_is_cancelled(
    scope: *const ScopeHandle,
    out_cancelled: *mut bool,
) -> Code {
    guarded(|| {
        // SAFETY: `scope` is null, or a value that lives and is only shared until this returns.
        let scope = unsafe { shared(scope, "scope") }?;
        // SAFETY: `out_cancelled` is null, or room for a value that only this call has.
        let out_cancelled = unsafe { out(out_cancelled, "out_cancelled") }?;
        out_cancelled.write(scope.scope()?.is_cancelled());
        Ok(())
    })
}
