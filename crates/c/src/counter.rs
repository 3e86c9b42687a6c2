//! Both counters.

use crate::arguments::{free, handle, out, shared};
use crate::result::{Code, Failure, guarded};
use nodewise_runtime::{NodeCounter, TaskCounter};
use nodewise_topology::NodeId;
use std::time::Duration;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_counter_new(out_counter: *mut *mut NodeCounter) -> Code {
    guarded(|| {
        // SAFETY: `out_counter` is null, or room for a value that only this call has.
        let out_counter = unsafe { out(out_counter, "out_counter") }?;
        out_counter.write(handle(NodeCounter::new()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_counter_free(counter: *mut NodeCounter) {
    // SAFETY: `counter` is null, or was made for the caller, who does not use it again.
    unsafe { free(counter) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_counter_add(counter: *const NodeCounter, number: u64) -> Code {
    guarded(|| {
        // SAFETY: `counter` is null, or a value that lives and is only shared until this returns.
        let counter = unsafe { shared(counter, "counter") }?;
        counter.add(number);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_counter_approximate(
    counter: *const NodeCounter,
    out_count: *mut u64,
) -> Code {
    guarded(|| {
        // SAFETY: `counter` is null, or a value that lives and is only shared until this returns.
        let counter = unsafe { shared(counter, "counter") }?;
        // SAFETY: `out_count` is null, or room for a value that only this call has.
        let out_count = unsafe { out(out_count, "out_count") }?;
        out_count.write(counter.approximate());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_counter_exact(counter: *const NodeCounter, out_count: *mut u64) -> Code {
    guarded(|| {
        // SAFETY: `counter` is null, or a value that lives and is only shared until this returns.
        let counter = unsafe { shared(counter, "counter") }?;
        // SAFETY: `out_count` is null, or room for a value that only this call has.
        let out_count = unsafe { out(out_count, "out_count") }?;
        let busy = || Failure::new(Code::Busy, "additions kept coming while the counter was read");
        out_count.write(counter.exact().ok_or_else(busy)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_counter_on_node(
    counter: *const NodeCounter,
    node: u32,
    out_count: *mut u64,
) -> Code {
    guarded(|| {
        // SAFETY: `counter` is null, or a value that lives and is only shared until this returns.
        let counter = unsafe { shared(counter, "counter") }?;
        // SAFETY: `out_count` is null, or room for a value that only this call has.
        let out_count = unsafe { out(out_count, "out_count") }?;
        out_count.write(counter.on_node(NodeId(node)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_counter_new(out_counter: *mut *mut TaskCounter) -> Code {
    guarded(|| {
        // SAFETY: `out_counter` is null, or room for a value that only this call has.
        let out_counter = unsafe { out(out_counter, "out_counter") }?;
        out_counter.write(handle(TaskCounter::new()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_counter_free(counter: *mut TaskCounter) {
    // SAFETY: `counter` is null, or was made for the caller, who does not use it again.
    unsafe { free(counter) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_counter_submit(counter: *const TaskCounter, tasks: u64) -> Code {
    guarded(|| {
        // SAFETY: `counter` is null, or a value that lives and is only shared until this returns.
        let counter = unsafe { shared(counter, "counter") }?;
        counter.submit(tasks);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_counter_done(counter: *const TaskCounter, tasks: u64) -> Code {
    guarded(|| {
        // SAFETY: `counter` is null, or a value that lives and is only shared until this returns.
        let counter = unsafe { shared(counter, "counter") }?;
        counter.done(tasks);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_counter_count(
    counter: *const TaskCounter,
    out_count: *mut u64,
) -> Code {
    guarded(|| {
        // SAFETY: `counter` is null, or a value that lives and is only shared until this returns.
        let counter = unsafe { shared(counter, "counter") }?;
        // SAFETY: `out_count` is null, or room for a value that only this call has.
        let out_count = unsafe { out(out_count, "out_count") }?;
        out_count.write(counter.count());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_counter_wait(counter: *const TaskCounter) -> Code {
    guarded(|| {
        // SAFETY: `counter` is null, or a value that lives and is only shared until this returns.
        let counter = unsafe { shared(counter, "counter") }?;
        counter.wait();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_task_counter_wait_timeout(
    counter: *const TaskCounter,
    timeout_ns: u64,
    out_all_done: *mut bool,
) -> Code {
    guarded(|| {
        // SAFETY: `counter` is null, or a value that lives and is only shared until this returns.
        let counter = unsafe { shared(counter, "counter") }?;
        // SAFETY: `out_all_done` is null, or room for a value that only this call has.
        let out_all_done = unsafe { out(out_all_done, "out_all_done") }?;
        out_all_done.write(counter.wait_timeout(Duration::from_nanos(timeout_ns)));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_counter_that_keeps_changing_has_no_exact_count() {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return; // Nothing changes while it is read.
        }
        let (counter, seen) = (NodeCounter::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !seen.load(Ordering::Relaxed) {
                    counter.add(1);
                }
            });
            let mut count = 0;
            // SAFETY: a counter that lives, and room for a number.
            while unsafe { nodewise_counter_exact(&raw const counter, &raw mut count) } == Code::Ok {}
            seen.store(true, Ordering::Relaxed);
        });
        let mut count = 0;
        // SAFETY: as above.
        assert_eq!(unsafe { nodewise_counter_exact(&raw const counter, &raw mut count) }, Code::Ok);
        assert!(count > 0);
    }
}
