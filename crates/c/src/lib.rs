//! The C ABI of `nodewise-runtime`: `libnodewise`, with `include/nodewise.h` and `include/nodewise.hpp`.
//!
//! The header documents what each function does, its errors, who owns what, and which threads may call it.
//! SAFETY comments name what the header asks of the caller. How all functions are made:
//!
//! - Handles are the runtime's own types, boxed, and opaque to C.
//! - Pointers are looked at by `arguments` and become references before anything else happens, so that a null
//!   one changes nothing.
//! - No panic leaves a function ([`result::guarded`]), and no exception comes in: callbacks return a number,
//!   and the C++ wrapper carries exceptions by itself.
//! - The tests in `header` compile the header against the functions' and structures' types as rustc has them;
//!   those in `documented` hold what it says of each function against what `tests/contract.c` shows.

// Every function here is unsafe for the same reason: it believes the caller's pointers. The header says what
// they must be.
#![allow(clippy::missing_safety_doc)]

mod arguments;
mod result;

mod allowance;
mod arena;
mod array;
mod callback;
mod counter;
#[cfg(test)]
mod documented;
#[cfg(test)]
mod header;
mod hint;
mod location;
mod node_replicated;
mod pool;
mod reduce;
mod replicated;
mod replicated_array;
mod scope;
mod sort;
mod task;
mod task_memory;
