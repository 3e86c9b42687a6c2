//! From C's pointers to references, or to the error that says which one was null.

use crate::result::{Failure, Outcome};
use nodewise_topology::{MAX_ID, NodeId, NodeSet};
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

fn null(name: &str) -> Failure {
    Failure::invalid(format!("{name} is NULL"))
}

/// # Safety
/// `pointer` is null or to a value that nobody changes as long as the reference lives.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, name: &str) -> Outcome<&'a T> {
    // SAFETY: as promised.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// # Safety
/// `pointer` is null or to a value that nobody else looks at as long as the reference lives.
pub(crate) unsafe fn exclusive<'a, T>(pointer: *mut T, name: &str) -> Outcome<&'a mut T> {
    // SAFETY: as promised.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(name))
}

/// # Safety
/// `pointer` is null or to room for a value that nobody else looks at as long as the reference lives.
pub(crate) unsafe fn out<'a, T>(pointer: *mut T, name: &str) -> Outcome<&'a mut MaybeUninit<T>> {
    // SAFETY: as promised; what is there needs not be initialised.
    unsafe { pointer.cast::<MaybeUninit<T>>().as_mut() }.ok_or_else(|| null(name))
}

/// As [`out`], for what the caller need not want.
///
/// # Safety
/// As [`out`].
pub(crate) unsafe fn optional_out<'a, T>(pointer: *mut T) -> Option<&'a mut MaybeUninit<T>> {
    // SAFETY: as promised.
    unsafe { pointer.cast::<MaybeUninit<T>>().as_mut() }
}

/// # Safety
/// `pointer` is to `len` values that nobody changes as long as the slice lives; it may be null where `len` is
/// 0.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, len: usize, name: &str) -> Outcome<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    checked_len::<T>(len, name)?;
    // SAFETY: as promised.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// # Safety
/// `pointer` is to `len` values that nobody else looks at as long as the slice lives; it may be null where
/// `len` is 0.
pub(crate) unsafe fn slice_mut<'a, T>(pointer: *mut T, len: usize, name: &str) -> Outcome<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(null(name));
    }
    checked_len::<T>(len, name)?;
    // SAFETY: as promised.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer, len) })
}

/// There are no longer slices.
fn checked_len<T>(len: usize, name: &str) -> Outcome {
    match len.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Failure::invalid(format!("{name} cannot have {len} elements"))),
    }
}

/// # Safety
/// As [`slice`].
pub(crate) unsafe fn node_set(nodes: *const u32, count: usize, name: &str) -> Outcome<NodeSet> {
    // SAFETY: as promised.
    let nodes = unsafe { slice(nodes, count, name) }?;
    match nodes.iter().find(|&&node| node > MAX_ID) {
        Some(node) => Err(Failure::invalid(format!("{name} has {node}, which no node's number can be"))),
        None => Ok(nodes.iter().map(|&node| NodeId(node)).collect()),
    }
}

/// # Safety
/// `pointer` is null or to a string.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Outcome<&'a str> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: as promised.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::invalid(format!("{name} is not UTF-8")))
}

/// Where a function lists what it has: room for `capacity` items, and for how many there are.
pub(crate) struct List<'a, T> {
    items: &'a mut [MaybeUninit<T>],
    count: &'a mut MaybeUninit<usize>,
}

impl<T> List<'_, T> {
    /// # Safety
    /// `items` is to room for `capacity` values that nobody else looks at as long as this lives; it may be
    /// null where `capacity` is
    /// 0. `count` is null or to room for a number.
    pub(crate) unsafe fn new(items: *mut T, capacity: usize, count: *mut usize, name: &str) -> Outcome<Self> {
        // SAFETY: as promised.
        let count = unsafe { out(count, "out_count") }?;
        checked_len::<T>(capacity, name)?;
        let items = match (items.is_null(), capacity) {
            (_, 0) => &mut [][..],
            (true, _) => return Err(null(name)),
            // SAFETY: as promised; what is there needs not be initialised.
            (false, _) => unsafe { std::slice::from_raw_parts_mut(items.cast(), capacity) },
        };
        Ok(Self { items, count })
    }

    /// Writes as many as there is room for, and how many there are.
    pub(crate) fn fill(self, things: impl IntoIterator<Item = T>) {
        let mut count = 0;
        for thing in things {
            if let Some(item) = self.items.get_mut(count) {
                item.write(thing);
            }
            count += 1;
        }
        self.count.write(count);
    }
}

/// A handle's end.
///
/// # Safety
/// `handle` is null or came from `Box::into_raw`, and nobody uses it any more.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: as promised.
        let handle = unsafe { Box::from_raw(handle) };
        crate::result::guarded(|| {
            drop(handle);
            Ok(())
        });
    }
}

/// Hands a value over to C.
pub(crate) fn handle<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}
