//! The canary of `scripts/asan`: reads one byte past a heap block, as a reader that forgot the wrap would.
//! Under `AddressSanitizer` it must die; without, it may do anything.

fn main() {
    let ring: Box<[u8]> = std::env::args().flat_map(String::into_bytes).collect();
    let past = ring.as_ptr().wrapping_add(ring.len());
    // SAFETY: none; that this is caught is what the canary is for.
    let byte = unsafe { past.read_volatile() };
    println!("read {byte:#x} past the end, and nobody noticed");
}
