//! Work that borrows, with `unsafe`.
//!
//! A queue holds [`Job`]s: an address and a function, since closures of many types, with borrows that end
//! before the queue does, lie in one deque. Three things make that sound, and each is kept in one place:
//! - A job runs exactly once: [`Job`] is neither `Clone` nor `Copy`, is consumed by running, and no pool ends
//!   with a job in its queues.
//! - The data that it points to lives until it has run. [`StackJob`]s are waited for before their frame is
//!   left ([`Worker::join`], `NodePool::in_worker`). Closures with borrows are spawned by a [`Scope`] only,
//!   which waits for all of them.
//! - The end of a job is told by one atomic operation, after which nothing of what the waiter may free is
//!   touched: `Signal::set`, [`crate::tally::count_done`].
//!
//! [`OfPlaces`] is here as well: only this module knows which worker the calling thread is.
#![allow(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

mod blocks;
mod join;
#[cfg(all(test, loom))]
mod loom_tests;
mod own;
mod remote_latch;
mod scope;
mod task;

pub(crate) use blocks::{Blocks, SentBack};
pub(crate) use own::OfPlaces;
pub use scope::Scope;
pub(crate) use scope::UncountedTasks;
pub use task::{Ended, ForeignTask, Task};

use crate::pool_state::PoolState;
use crate::worker::Worker;
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};
use std::thread;

/// Something to run once, on a worker. Two words, which queues and joins pass in registers.
#[derive(Debug)]
pub(crate) struct Job {
    /// The address of its data, with the call that it is part of in the lowest bits and the highest. Data is
    /// aligned to eight bytes, and no address of a process is as high.
    data: *const (),
    run: unsafe fn(*const (), &Worker),
}

// SAFETY: the constructors are given closures that are Send, and what else a job touches is atomic or its own
// until it is told to have ended.
unsafe impl Send for Job {}

/// The call which jobs come from and which waits for them. A worker that waits for an isolated call runs only
/// jobs of that call meanwhile, and so does a thread from outside that works along. One that waits for a part
/// of a call from outside runs none of another such call.
///
/// The lowest bits tell callers apart, from 1 on: those who work along exactly, others as well as so few bits
/// can. Calls within a caller's have them, too. The highest seven but one have the number of a call that is
/// isolated, or from outside without its caller's work, or 0. The highest bit tells which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call(usize);

impl Call {
    pub(crate) const NONE: Self = Self(0);
    const CALLERS: usize = 7;
    /// Addresses have 56 bits at most: x86-64's with five levels of tables, half of which are the kernel's.
    const NUMBER: u32 = usize::BITS - 8;
    const ISOLATED: usize = 1 << (usize::BITS - 1);
    const BITS: usize = Self::CALLERS | 0xff << Self::NUMBER;

    pub(crate) const fn of_caller(number: usize) -> Self {
        assert!(number < Self::CALLERS, "there are no bits for more callers");
        Self(number + 1)
    }

    /// A call whose caller does not work along. Any two of 889 in a row differ.
    pub(crate) fn from_outside(number: usize) -> Self {
        Self(number % Self::CALLERS + 1 | Self::numbered(number))
    }

    /// An isolated call within this one, by the number that it has ([`IsolatedCalls`]).
    pub(crate) fn isolated(self, number: usize) -> Self {
        Self(self.0 & Self::CALLERS | Self::numbered(number) | Self::ISOLATED)
    }

    fn numbered(number: usize) -> usize {
        (number % NUMBERS + 1) << Self::NUMBER
    }

    #[inline]
    pub(crate) fn is_isolated(self) -> bool {
        self.0 & Self::ISOLATED != 0
    }

    /// Whether both are calls from outside, or within such, and not of the same caller.
    #[inline]
    pub(crate) fn is_of_another_caller(self, than: Self) -> bool {
        // An isolated call has only the lowest bits of its caller's.
        let known = if self.is_isolated() || than.is_isolated() { Self::CALLERS } else { Self::BITS };
        let [mine, other] = [self, than].map(|call| call.0 & known);
        mine != 0 && other != 0 && mine != other
    }

    /// For tasks that the call need not wait for.
    #[inline]
    pub(crate) fn of_detached(self) -> Self {
        if self.is_isolated() { self } else { Self::NONE }
    }
}

/// How many numbers there are bits for.
const NUMBERS: usize = 127;

/// The numbers of isolated calls. A worker that waits in one takes what has its number, and may hold what
/// others want. So no two that go on have the same, as long as there are enough.
#[derive(Debug)]
pub(crate) struct IsolatedCalls {
    /// How many go on, by number.
    open: [u32; NUMBERS],
    /// Numbers are used again as late as possible, since tasks that nobody waits for may live longer.
    next: usize,
}

impl Default for IsolatedCalls {
    fn default() -> Self {
        Self { open: [0; NUMBERS], next: 0 }
    }
}

impl IsolatedCalls {
    pub(crate) fn begin(&mut self) -> usize {
        let numbers = (self.next..self.next + NUMBERS).map(|number| number % NUMBERS);
        let number = numbers.min_by_key(|&number| self.open[number]).unwrap_or(0);
        self.open[number] += 1;
        self.next = number + 1;
        number
    }

    pub(crate) fn end(&mut self, number: usize) {
        self.open[number] -= 1;
    }
}

impl Job {
    fn new<T>(data: *const T, run: unsafe fn(*const (), &Worker)) -> Self {
        const { assert!(align_of::<T>() > Call::CALLERS, "the lowest bits say which call it is part of") };
        Self { data: data.cast(), run }
    }

    /// As part of that call, where it was of none.
    #[inline]
    pub(crate) fn part_of(self, call: Call) -> Self {
        Self { data: self.data.map_addr(|address| address | call.0), ..self }
    }

    /// As part of none.
    pub(crate) fn part_of_none(self) -> Self {
        Self { data: self.data.map_addr(|address| address & !Call::BITS), ..self }
    }

    #[inline]
    pub(crate) fn call(&self) -> Call {
        Call(self.data.addr() & Call::BITS)
    }

    /// Runs it. Jobs catch panics.
    #[inline]
    pub(crate) fn run(self, worker: &Worker) {
        let data = self.data.map_addr(|address| address & !Call::BITS);
        // SAFETY: whoever made the job promised that it may run once, and self is consumed.
        unsafe { (self.run)(data, worker) }
    }
}

/// How the end of a [`StackJob`] is told to who waits for it.
trait Signal {
    /// # Safety
    /// `this` is valid when called, and not after the waiter can have seen the signal.
    unsafe fn set(this: *const Self, worker: &Worker);
}

/// A job in the frame of a function that waits for it.
struct StackJob<S, F, R> {
    signal: S,
    f: UnsafeCell<Option<F>>,
    result: UnsafeCell<Option<thread::Result<R>>>,
}

// Outlined, these copy the job around, and a join takes twice as long.
#[allow(clippy::inline_always)]
impl<S: Signal, F: FnOnce(&Worker) -> R + Send, R: Send> StackJob<S, F, R> {
    #[inline(always)]
    fn new(signal: S, f: F) -> Self {
        Self { signal, f: UnsafeCell::new(Some(f)), result: UnsafeCell::new(None) }
    }

    /// # Safety
    /// Called once. `self` is neither moved nor dropped until the job was run and the signal was seen, or the
    /// job was taken back from the queue.
    unsafe fn job(&self) -> Job {
        Job::new(self, Self::run)
    }

    /// # Safety
    /// `data` is a `StackJob` of this type whose waiter has not seen the signal.
    unsafe fn run(data: *const (), worker: &Worker) {
        worker.count_done();
        // SAFETY: valid until the signal below.
        let this = unsafe { &*data.cast::<Self>() };
        // SAFETY: until the signal nobody else looks at f or the result.
        let f = unsafe { &mut *this.f.get() }.take();
        let f = f.expect("a job runs once");
        let result = catch_unwind(AssertUnwindSafe(|| f(worker)));
        // SAFETY: likewise.
        unsafe { *this.result.get() = Some(result) };
        // SAFETY: valid now, and not touched after this.
        unsafe { S::set(&raw const this.signal, worker) };
    }

    /// The job's result, after the signal was seen.
    #[inline(always)]
    fn into_result(self) -> thread::Result<R> {
        self.result.into_inner().expect("a job leaves a result")
    }

    /// The closure, after its job was taken back from the queue.
    #[inline(always)]
    fn take(&mut self) -> F {
        self.f.get_mut().take().expect("a job that was taken back has not run")
    }
}

/// The pool for which a thread works now, and the thread's index there. Its own thread alone may read it.
///
/// It is for callers that can read memory more quickly than they can call. In C and C++ each call goes
/// through the loader's table, and looks for the thread's memory.
#[derive(Debug)]
#[doc(hidden)]
#[repr(C)]
pub struct Seat {
    /// As [`crate::NodePool::identity`] gives it; null while the thread works for none.
    pub pool: Cell<*const c_void>,
    /// `usize::MAX` while the thread works for none.
    pub index: Cell<usize>,
}

struct Current {
    worker: Cell<*const Worker>,
    seat: Seat,
}

impl Current {
    fn set(&self, worker: Option<&Worker>) {
        self.worker.set(worker.map_or(std::ptr::null(), std::ptr::from_ref));
        self.seat.pool.set(worker.map_or(std::ptr::null(), |worker| worker.shared.identity()));
        self.seat.index.set(worker.map_or(usize::MAX, |worker| worker.index));
    }
}

thread_local! {
    static CURRENT: Current = const {
        let seat = Seat { pool: Cell::new(std::ptr::null()), index: Cell::new(usize::MAX) };
        Current { worker: Cell::new(std::ptr::null()), seat }
    };
}

/// The calling thread's seat, where it stays until the thread ends.
#[doc(hidden)]
#[must_use]
pub fn seat() -> *const Seat {
    CURRENT.with(|current| &raw const current.seat)
}

/// Makes the calling thread that worker, for as long as `body` runs.
pub(crate) fn as_worker<R>(worker: &Worker, body: impl FnOnce() -> R) -> R {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            CURRENT.with(|current| current.set(None));
        }
    }
    let _reset = Reset;
    CURRENT.with(|current| current.set(Some(worker)));
    body()
}

/// From here on the thread of a forked child is no worker, whatever its parent's was: while it waited for
/// something it would run what lies in its copy of the queues, and the parent's workers run that as well.
pub(crate) fn end_with_the_process() {
    extern "C" fn in_child() {
        CURRENT.with(|current| current.set(None));
    }
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: it stores three words.
        let asked = unsafe { nodewise_sys::at_fork_in_child(in_child) };
        asked.expect("there are some bytes for it");
    });
}

/// Calls `f` with the worker that the calling thread is, if it is one.
#[inline]
pub(crate) fn with_current<R>(f: impl FnOnce(Option<&Worker>) -> R) -> R {
    // SAFETY: set by as_worker only, which borrows the worker for as long; a thread that is in its body is in
    // ours.
    f(unsafe { CURRENT.with(|current| current.worker.get()).as_ref() })
}

/// The worker of this pool that the calling thread is. As a value and not, as above, for the length of a
/// call: joins that pass their closures through one more take twice as long.
#[inline]
pub(crate) fn current_of(shared: &Arc<PoolState>) -> Option<&Worker> {
    // SAFETY: as above. The reference cannot leave this thread, since workers are not Sync. The callers use
    // it in their own frames, which lie within as_worker's body.
    let worker = unsafe { CURRENT.with(|current| current.worker.get()).as_ref() }?;
    Arc::ptr_eq(&worker.shared, shared).then_some(worker)
}

/// Ends the process if it is dropped: while others hold addresses into this frame, it cannot be unwound.
struct Anchored;

impl Drop for Anchored {
    fn drop(&mut self) {
        eprintln!("nodewise-runtime: a panic while waiting for work that borrows from the stack");
        std::process::abort();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn isolated_calls_that_go_on_have_numbers_of_their_own() {
        let mut calls = IsolatedCalls::default();
        let held = calls.begin();
        // However many others begin and end meanwhile.
        for _ in 0..1000 {
            let other = calls.begin();
            assert_ne!(Call::NONE.isolated(other), Call::NONE.isolated(held));
            calls.end(other);
        }
        let (one, next) = (calls.begin(), calls.begin());
        calls.end(one);
        assert!(![one, next].contains(&calls.begin()), "used again as late as possible");
        // Each number has as few as possible if there are too many.
        let mut calls = IsolatedCalls::default();
        (0..3 * NUMBERS).for_each(|_| {
            calls.begin();
        });
        assert!(calls.open.iter().all(|&open| open == 3));
    }
}
