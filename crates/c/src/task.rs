//! Tasks of their own, and what their owners have of them.

use crate::arguments::{optional_out, out, shared};
use crate::callback::{DropContext, FirstStatus, Run, given};
use crate::pool::NO_NODE;
use crate::result::{Code, Failure, guarded};
use crate::scope::MoveContext;
use nodewise_runtime::{NodePool, Task};
use nodewise_topology::NodeId;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `nodewise_task`, in one allocation with the object that lies behind it, if the task has one.
#[repr(C, align(16))]
pub struct TaskHandle {
    /// The joiner, and the task where it has an object.
    owners: AtomicUsize,
    layout: Layout,
    /// Set by the spawner before anybody else is an owner: what ends the object.
    drop: UnsafeCell<Option<DropContext>>,
    /// The joiner's.
    state: UnsafeCell<State>,
}

enum State {
    Spawned(Task<c_int>),
    Joined(c_int),
}

/// A share of a task.
pub(crate) struct Owner(NonNull<TaskHandle>);

// SAFETY: the count is atomic, and what else there is has one owner at a time.
unsafe impl Send for Owner {}

impl Owner {
    /// The only one, with room for an object of so many bytes.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let object = Layout::from_size_align(bytes, align_of::<TaskHandle>()).ok()?;
        let (layout, _) = Layout::new::<TaskHandle>().extend(object).ok()?;
        // SAFETY: it has a size.
        let memory = unsafe { alloc(layout) };
        #[allow(clippy::cast_ptr_alignment, reason = "it is aligned as the layout says")]
        let memory = memory.cast::<TaskHandle>();
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let (drop, state) = (UnsafeCell::new(None), UnsafeCell::new(State::Joined(0)));
        // SAFETY: there is room.
        unsafe { memory.write(TaskHandle { owners: AtomicUsize::new(1), layout, drop, state }) };
        Some(Self(memory))
    }

    fn task(&self) -> &TaskHandle {
        // SAFETY: alive as long as this one.
        unsafe { self.0.as_ref() }
    }

    fn share(&self) -> Self {
        self.task().owners.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }

    fn object(&self) -> *mut c_void {
        // SAFETY: it begins where the handle ends.
        unsafe { self.0.add(1) }.as_ptr().cast()
    }

    /// For the only owner, once it has made the object.
    fn ends_by(&self, drop: Option<DropContext>) {
        // SAFETY: nobody else has it yet.
        unsafe { *self.task().drop.get() = drop };
    }

    /// # Safety
    /// This is the joiner's share, or nobody else has one.
    pub(crate) unsafe fn joins(&self, task: Task<c_int>) {
        // SAFETY: as promised.
        unsafe { *self.task().state.get() = State::Spawned(task) };
    }

    pub(crate) fn into_raw(self) -> *mut TaskHandle {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// # Safety
    /// It is null or comes from [`Owner::into_raw`], and this is the last use of it.
    unsafe fn from_raw(task: *mut TaskHandle) -> Option<Self> {
        NonNull::new(task).map(Self)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let task = self.task();
        if task.owners.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        // SAFETY: nobody else has it.
        if let Some(drop) = unsafe { *task.drop.get() } {
            // SAFETY: `drop` takes such an object, which nobody else has any more.
            unsafe { drop(self.object()) };
        }
        let layout = task.layout;
        // SAFETY: this is its end.
        unsafe { self.0.drop_in_place() };
        // SAFETY: from `alloc`, with this layout.
        unsafe { dealloc(self.0.as_ptr().cast(), layout) };
    }
}

impl TaskHandle {
    /// Waits, and says what the task returned.
    ///
    /// # Safety
    /// The caller is the joiner, and nobody else uses the handle meanwhile.
    unsafe fn wait(&self) -> c_int {
        // SAFETY: as promised.
        let state = unsafe { &mut *self.state.get() };
        if let State::Spawned(task) = std::mem::replace(state, State::Joined(0)) {
            *state = State::Joined(task.join());
        }
        match state {
            State::Joined(status) => *status,
            State::Spawned(_) => unreachable!("it was joined"),
        }
    }
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
        owner.ends_by(drop);
        let of_task = owner.share();
        let task = move || {
            let of_task = of_task;
            // SAFETY: `run` takes such an object, which lives as long as the task.
            unsafe { run(of_task.object()) }
        };
        let task = match node {
            Some(node) => pool.spawn_on(node, task)?,
            None => pool.spawn(task),
        };
        if let Some(out_task) = out_task {
            // SAFETY: this is the joiner's.
            unsafe { owner.joins(task) };
            out_task.write(owner.into_raw());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_wait(task: *mut TaskHandle, out_status: *mut c_int) -> Code {
    guarded(|| {
        // SAFETY: `task` is null, or a value that lives and is only shared until this returns.
        let task = unsafe { shared(task, "task") }?;
        // SAFETY: `out_status` is null, or room for a value that only this call has.
        let out_status = unsafe { optional_out(out_status) };
        // SAFETY: the task lives until this returns.
        tell(unsafe { task.wait() }, out_status)
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
        // SAFETY: the task lives until this returns.
        let status = unsafe { task.wait() };
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
        // SAFETY: the caller's promise: nobody joins it meanwhile.
        out_finished.write(match unsafe { &*task.state.get() } {
            State::Spawned(task) => task.is_finished(),
            State::Joined(_) => true,
        });
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
