//! Sorting of numbers. Other elements are sorted by the wrapper's own code.

use crate::arguments::slice_mut;
use crate::pool::Held;
use crate::result::{Code, Failure, Outcome, guarded};
use nodewise_runtime::NodePool;
use std::ffi::{c_int, c_void};

pub const INT8: c_int = 0;
pub const INT16: c_int = 1;
pub const INT32: c_int = 2;
pub const INT64: c_int = 3;
pub const UINT8: c_int = 4;
pub const UINT16: c_int = 5;
pub const UINT32: c_int = 6;
pub const UINT64: c_int = 7;
pub const FLOAT: c_int = 8;
pub const DOUBLE: c_int = 9;

/// # Safety
/// There are so many numbers of this type, which nobody else touches.
unsafe fn sort<T: Ord + Send + Sync>(pool: &NodePool, numbers: *mut c_void, count: usize) -> Outcome {
    // SAFETY: as promised.
    pool.parallel_sort_unstable::<T>(unsafe { slice_mut(numbers.cast(), count, "numbers") }?);
    Ok(())
}

/// Sorts floating-point numbers by their bits as integers. These have the same order but for negative ones,
/// for which `turn` makes up, there and back.
///
/// # Safety
/// As [`sort`].
unsafe fn sort_by_bits<T: Ord + Send + Sync>(
    pool: &NodePool,
    numbers: *mut c_void,
    count: usize,
    turn: impl Fn(&mut T) + Sync,
) -> Outcome {
    // SAFETY: as promised.
    let bits: &mut [T] = unsafe { slice_mut(numbers.cast(), count, "numbers") }?;
    pool.parallel_for_each(bits, |_, bits| turn(bits));
    pool.parallel_sort_unstable(bits);
    pool.parallel_for_each(bits, |_, bits| turn(bits));
    Ok(())
}

/// # Safety
/// As [`sort`].
unsafe fn sort_floats(pool: &NodePool, numbers: *mut c_void, count: usize) -> Outcome {
    let turn = |bits: &mut i32| *bits ^= (*bits >> 31) & i32::MAX;
    // SAFETY: as promised.
    unsafe { sort_by_bits(pool, numbers, count, turn) }
}

/// # Safety
/// As [`sort`].
unsafe fn sort_doubles(pool: &NodePool, numbers: *mut c_void, count: usize) -> Outcome {
    let turn = |bits: &mut i64| *bits ^= (*bits >> 63) & i64::MAX;
    // SAFETY: as promised.
    unsafe { sort_by_bits(pool, numbers, count, turn) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nodewise_pool_sort(
    pool: *const NodePool,
    numbers: *mut c_void,
    count: usize,
    number_type: c_int,
) -> Code {
    guarded(|| {
        // SAFETY: `pool` is null, or a pool that lives as this begins.
        let pool = unsafe { Held::new(pool) }?;
        let sort_these: unsafe fn(&NodePool, *mut c_void, usize) -> Outcome = match number_type {
            INT8 => sort::<i8>,
            INT16 => sort::<i16>,
            INT32 => sort::<i32>,
            INT64 => sort::<i64>,
            UINT8 => sort::<u8>,
            UINT16 => sort::<u16>,
            UINT32 => sort::<u32>,
            UINT64 => sort::<u64>,
            FLOAT => sort_floats,
            DOUBLE => sort_doubles,
            other => return Err(Failure::invalid(format!("{other} is no type of numbers"))),
        };
        // SAFETY: there are so many numbers of this type, which nobody else touches.
        unsafe { sort_these(&pool, numbers, count) }
    })
}
