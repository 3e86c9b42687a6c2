//! The root of the shared library. It has no standard library: whatever that asks for memory would come here.
#![no_std]

#[path = "../src/callers.rs"]
mod callers;
#[path = "../src/hooks.rs"]
mod hooks;
#[path = "../src/layout.rs"]
mod layout;
#[path = "../src/libc.rs"]
mod libc;
#[path = "../src/records.rs"]
mod records;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Nothing here panics. A program must not go on without its memory.
    libc::abort_program()
}
