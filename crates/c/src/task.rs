//! Tasks of their own, and what their owners have of them.

use crate::arguments::{optional_out, out, shared};
use crate::callback::{DropContext, FirstStatus, Owned, Run, given};
use crate::pool::NO_NODE;
use crate::result::{Code, Failure, Outcome, guarded};
use crate::scope::MoveContext;
use crate::task_memory;
use nodewise_runtime::{Ended, ForeignTask, NodePool};
use nodewise_topology::NodeId;
use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// `nodewise_task`, in one allocation with the task's object, which lies behind it.
#[repr(C, align(16))]
pub struct TaskHandle {
    /// The joiner and the pool, or the spawner alone.
    owners: AtomicU32,
    /// The number that the task returned, once it has ended.
    status: AtomicI32,
    /// The object has so many.
    bytes: usize,
    /// Set by the spawner before anybody else is an owner.
    task: UnsafeCell<Object>,
    ended: Ended,
}

/// So that a block of [`task_memory`] has room for an object as large.
const _: () = assert!(size_of::<TaskHandle>() <= 64);

/// The functions of a task's object.
#[derive(Clone, Copy)]
struct Object {
    run: Option<Run>,
    drop: Option<DropContext>,
}

/// A share of a task.
pub(crate) struct Owner(NonNull<TaskHandle>);

// SAFETY: the count, the status and the end are atomic. The rest does not change while there are several
// owners.
unsafe impl Send for Owner {}

impl Owner {
    /// The only one, with room for an object of so many bytes.
    fn new(bytes: usize) -> Option<Self> {
        let layout = TaskHandle::layout(bytes)?;
        let memory = task_memory::take(layout).cast::<TaskHandle>();
        let handle = TaskHandle {
            owners: AtomicU32::new(1),
            status: AtomicI32::new(0),
            bytes,
            task: UnsafeCell::new(Object { run: None, drop: None }),
            ended: Ended::default(),
        };
        // SAFETY: there is room.
        unsafe { memory.write(handle) };
        Some(Self(memory))
    }

    fn task(&self) -> &TaskHandle {
        // SAFETY: alive as long as this one.
        unsafe { self.0.as_ref() }
    }

    /// A second one. It is made by the only one.
    fn share(&self) -> Self {
        // Nobody else counts meanwhile, so a locked instruction is not needed.
        self.task().owners.store(2, Ordering::Relaxed);
        Self(self.0)
    }

    fn object(&self) -> *mut c_void {
        // SAFETY: it begins where the handle ends.
        unsafe { self.0.add(1) }.as_ptr().cast()
    }

    /// For the only owner, once it has made the object.
    ///
    /// # Safety
    /// `run` may be called with the object once, on any thread, and `drop` after that or instead of it.
    unsafe fn begins(&self, run: Run, drop: Option<DropContext>) {
        // SAFETY: nobody else has it yet.
        unsafe { *self.task().task.get() = Object { run: Some(run), drop } };
    }

    /// Has a worker do the task, and hands the joiner's share over if it is wanted.
    fn spawn(
        self,
        pool: &NodePool,
        node: Option<NodeId>,
        out_task: Option<&mut MaybeUninit<*mut TaskHandle>>,
    ) -> Outcome {
        match out_task {
            Some(out_task) => {
                pool.spawn_foreign(node, self.share())?;
                out_task.write(self.into_raw());
            }
            None => pool.spawn_foreign(node, self)?,
        }
        Ok(())
    }

    fn into_raw(self) -> *mut TaskHandle {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// # Safety
    /// It is null or comes from [`Owner::into_raw`], and this is the last use of it.
    unsafe fn from_raw(task: *mut TaskHandle) -> Option<Self> {
        NonNull::new(task).map(Self)
    }
}

// SAFETY: handles are aligned to 16 bytes.
unsafe impl ForeignTask for Owner {
    fn into_raw(self) -> *const u128 {
        Self::into_raw(self).cast()
    }

    unsafe fn from_raw(data: *const u128) -> Self {
        // SAFETY: as promised.
        let owner = unsafe { Self::from_raw(data.cast_mut().cast()) };
        owner.expect("no share is null")
    }

    fn run(&self) {
        // SAFETY: nobody changes it any more.
        if let Object { run: Some(run), .. } = unsafe { *self.task().task.get() } {
            // SAFETY: as promised to `begins`. The joiner looks when it sees the end.
            self.task().status.store(unsafe { run(self.object()) }, Ordering::Relaxed);
        }
    }

    fn ended(&self) -> &Ended {
        &self.task().ended
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let task = self.task();
        if task.owners.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        // SAFETY: nobody else has it.
        if let Object { drop: Some(drop), .. } = unsafe { *task.task.get() } {
            // SAFETY: as promised to `begins`.
            unsafe { drop(self.object()) };
        }
        let layout = TaskHandle::layout(task.bytes).expect("it was allocated so");
        // SAFETY: this is its end.
        unsafe { self.0.drop_in_place() };
        // SAFETY: it was taken with this layout.
        unsafe { task_memory::give(self.0.cast(), layout) };
    }
}

impl TaskHandle {
    /// With an object of so many bytes.
    fn layout(bytes: usize) -> Option<Layout> {
        let object = Layout::from_size_align(bytes, align_of::<Self>()).ok()?;
        Some(Layout::new::<Self>().extend(object).ok()?.0)
    }

    /// Waits, and says what the task returned.
    fn wait(&self) -> c_int {
        self.ended.wait();
        self.status.load(Ordering::Relaxed)
    }
}

/// The object of a task that C gives by function and context. The context ends with the task.
struct Called {
    run: Run,
    context: Option<Owned>,
}

unsafe extern "C" fn run_called(object: *mut c_void) -> c_int {
    // SAFETY: `spawn_called` has made one there, and nobody else uses it.
    let called = unsafe { &mut *object.cast::<Called>() };
    // SAFETY: `run` may be called with its context from any thread, once.
    called.context.take().map_or(0, |context| unsafe { (called.run)(context.get()) })
}

unsafe extern "C" fn drop_called(object: *mut c_void) {
    // SAFETY: likewise, for the last time.
    unsafe { object.cast::<Called>().drop_in_place() };
}

/// Spawns a task of a function and its context.
///
/// # Safety
/// The pointers are what the header asks for.
unsafe fn spawn_called(
    pool: *const NodePool,
    node: Option<NodeId>,
    run: Option<Run>,
    context: *mut c_void,
    drop: Option<DropContext>,
    out_task: *mut *mut TaskHandle,
) -> Code {
    // SAFETY: `drop` takes this context. Before all else, so that it is dropped whatever is wrong.
    let context = unsafe { Owned::new(context, drop) };
    guarded(move || {
        let run = given(run, "run")?;
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let pool = unsafe { shared(pool, "pool") }?;
        // SAFETY: `out_task` is null, or room for a value that only this call has.
        let out_task = unsafe { optional_out(out_task) };
        let owner = Owner::new(size_of::<Called>()).expect("it has a size that can be");
        // SAFETY: there is room, and handles are aligned to more than this.
        unsafe { owner.object().cast::<Called>().write(Called { run, context: Some(context) }) };
        // SAFETY: both take such an object, and its function may be called from any thread.
        unsafe { owner.begins(run_called, Some(drop_called)) };
        owner.spawn(pool, node, out_task)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_spawn(
    pool: *const NodePool,
    run: Option<Run>,
    context: *mut c_void,
    drop: Option<DropContext>,
    out_task: *mut *mut TaskHandle,
) -> Code {
    // SAFETY: the pointers are what the header asks for.
    unsafe { spawn_called(pool, None, run, context, drop, out_task) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_spawn_on(
    pool: *const NodePool,
    node: u32,
    run: Option<Run>,
    context: *mut c_void,
    drop: Option<DropContext>,
    out_task: *mut *mut TaskHandle,
) -> Code {
    // SAFETY: the pointers are what the header asks for.
    unsafe { spawn_called(pool, Some(NodeId(node)), run, context, drop, out_task) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_spawn_moved(
    pool: *const NodePool,
    node: u32,
    run: Option<Run>,
    context: *mut c_void,
    bytes: usize,
    move_to: Option<MoveContext>,
    drop: Option<DropContext>,
    out_task: *mut *mut TaskHandle,
) -> Code {
    guarded(|| {
        let (run, move_to) = (given(run, "run")?, given(move_to, "move")?);
        // SAFETY: `pool` is null, or a value that lives and is only shared until this returns.
        let pool = unsafe { shared(pool, "pool") }?;
        // SAFETY: `out_task` is null, or room for a value that only this call has.
        let out_task = unsafe { optional_out(out_task) };
        let node = (node != NO_NODE).then_some(NodeId(node));
        if let Some(nowhere) = node.filter(|&node| !pool.nodes().any(|own| own == node)) {
            // Before anything is moved.
            return Ok(pool.spawn_on(nowhere, || ()).map(std::mem::drop)?);
        }
        let owner = Owner::new(bytes).ok_or_else(|| {
            Failure::new(Code::Memory, format!("{bytes} bytes are more than there are addresses"))
        })?;
        // SAFETY: `move_to` makes the object at the address that it is given.
        unsafe { move_to(context, owner.object()) };
        // SAFETY: `run` and `drop` take such an object.
        unsafe { owner.begins(run, drop) };
        owner.spawn(pool, node, out_task)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_wait(task: *mut TaskHandle, out_status: *mut c_int) -> Code {
    guarded(|| {
        // SAFETY: `task` is null, or a value that lives and is only shared until this returns.
        let task = unsafe { shared(task, "task") }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        tell(task.wait(), out_status)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_join(task: *mut TaskHandle, out_status: *mut c_int) -> Code {
    guarded(|| {
        // SAFETY: the caller's promise: it came from `into_raw`, and ends here.
        let owner = unsafe { Owner::from_raw(task) };
        // SAFETY: `task` is null, or a value that lives and is only shared until this returns.
        let task = unsafe { shared(task, "task") }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        let status = task.wait();
        drop(owner);
        tell(status, out_status)
    })
}

fn tell(returned: c_int, out_status: Option<&mut MaybeUninit<c_int>>) -> crate::result::Outcome {
    let status = FirstStatus::default();
    status.note(returned);
    status.tell(out_status)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_is_finished(task: *const TaskHandle, out_finished: *mut bool) -> Code {
    guarded(|| {
        // SAFETY: `task` is null, or a value that lives and is only shared until this returns.
        let task = unsafe { shared(task, "task") }?;
        // SAFETY: `out_finished` is null, or room for a value that only this call has.
        let out_finished = unsafe { out(out_finished, "out_finished") }?;
        out_finished.write(task.ended.is_set());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_free(task: *mut TaskHandle) {
    // SAFETY: the caller's promise: it came from `into_raw`, and ends here.
    if let Some(owner) = unsafe { Owner::from_raw(task) } {
        guarded(|| {
            drop(owner);
            Ok(())
        });
    }
}
