//! Where the calling thread runs, from the area that it shares with the kernel: `struct rseq`,
//! `include/uapi/linux/rseq.h`.
//!
//! The C library (glibc 2.35 and later) registers one area a thread with the kernel and says where it lies:
//! `__rseq_offset` bytes from the thread pointer. The kernel keeps the area up to date whenever the thread is
//! put on another CPU (`rseq_update_cpu_node_id`, kernel/rseq.c), so that reading it is one load. Where there
//! is no such area (an older C library, a static program, musl, Valgrind) every function here says so, and
//! callers ask [`crate::sched_getcpu`].

use crate::auxiliary_value;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

/// `AT_RSEQ_FEATURE_SIZE`, include/uapi/linux/auxvec.h: bytes of `struct rseq` that the kernel fills. Linux
/// 6.3.
const AT_RSEQ_FEATURE_SIZE: u64 = 27;
/// Where `cpu_id` begins; negative numbers say that this thread is not registered. Linux 4.18.
const CPU_ID: isize = 4;
/// Where `node_id` begins. Linux 6.3, which also brought `AT_RSEQ_FEATURE_SIZE`.
const NODE_ID: isize = 20;
const NODE_ID_END: u64 = 24;

/// Not looked up yet. Fields are aligned to four bytes, so that no offset is odd.
const UNKNOWN: isize = 1;
/// The C library registers none, or the kernel does not fill the field in question.
const ABSENT: isize = 3;

static CPU_OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);
static NODE_OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);

/// The node the calling thread runs on, by one load; `None` where the area does not tell. It may have changed
/// when this returns, unless the thread is bound.
///
/// # References
/// `node_id` in `include/uapi/linux/rseq.h`, Linux 6.3; `__rseq_offset` in the manual of the C library,
/// 'Restartable Sequences'
#[inline]
#[must_use]
pub fn rseq_node() -> Option<u32> {
    let node = load(field_offset(&NODE_OFFSET)?)?;
    // As cpu_id's, its top bit says that this thread is not registered: the kernel's numbers stay far below.
    (node >> 31 == 0).then_some(node)
}

/// The CPU the calling thread runs on, likewise.
#[inline]
#[must_use]
pub fn rseq_cpu() -> Option<u32> {
    let cpu = load(field_offset(&CPU_OFFSET)?)?;
    (cpu >> 31 == 0).then_some(cpu)
}

#[inline]
fn field_offset(known: &AtomicIsize) -> Option<isize> {
    let offset = known.load(Ordering::Relaxed);
    if is_offset(offset) { Some(offset) } else { looked_up(known) }
}

#[inline]
fn is_offset(offset: isize) -> bool {
    offset & 1 == 0
}

#[cold]
fn looked_up(known: &AtomicIsize) -> Option<isize> {
    if known.load(Ordering::Relaxed) == UNKNOWN {
        look_up();
    }
    Some(known.load(Ordering::Relaxed)).filter(|&offset| is_offset(offset))
}

fn look_up() {
    let area = area();
    let offset_of = |field: isize, there: bool| area.filter(|_| there).map_or(ABSENT, |area| area + field);
    let filled = auxiliary_value(AT_RSEQ_FEATURE_SIZE).is_some_and(|bytes| bytes >= NODE_ID_END);
    CPU_OFFSET.store(offset_of(CPU_ID, true), Ordering::Relaxed);
    NODE_OFFSET.store(offset_of(NODE_ID, filled), Ordering::Relaxed);
}

/// Where the area lies from the thread pointer, if this process has one that is large enough for `node_id`.
fn area() -> Option<isize> {
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: dlsym reads a string that ends in NUL.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let (offset, size) = (symbol(c"__rseq_offset")?.cast::<isize>(), symbol(c"__rseq_size")?.cast::<u32>());
    // SAFETY: a constant of the C library, `const ptrdiff_t` (sys/rseq.h).
    let offset = unsafe { offset.read() };
    // SAFETY: likewise, `const unsigned int`.
    let size = unsafe { size.read() };
    // 0: registration failed or was turned off by a tunable. Until glibc 2.39 the size is 32 then; later it
    // is what the kernel fills, 20 before Linux 6.3, of which 4 + 4 bytes are cpu_id and what is before
    // it.
    (size >= 20).then_some(offset)
}

/// Four bytes at the thread pointer plus `offset`, which is the offset of a field of the area.
#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(clippy::unnecessary_wraps)]
fn load(offset: isize) -> Option<u32> {
    let value: u32;
    // SAFETY: fs is the thread pointer, and the offset is that of an aligned field of memory that lives as
    // long as the thread. The kernel writes it only while the thread is not running user code.
    unsafe {
        std::arch::asm!(
            "mov {value:e}, dword ptr fs:[{offset}]",
            value = out(reg) value,
            offset = in(reg) offset,
            options(nostack, preserves_flags, readonly),
        );
    }
    Some(value)
}

#[cfg(target_arch = "aarch64")]
#[inline]
#[allow(clippy::unnecessary_wraps)]
fn load(offset: isize) -> Option<u32> {
    let value: u32;
    // SAFETY: as above, with tpidr_el0 as the thread pointer.
    unsafe {
        std::arch::asm!(
            "mrs {area}, tpidr_el0",
            "ldr {value:w}, [{area}, {offset}]",
            area = out(reg) _,
            value = out(reg) value,
            offset = in(reg) offset,
            options(nostack, preserves_flags, readonly),
        );
    }
    Some(value)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn load(_offset: isize) -> Option<u32> {
    None
}

/// Whether [`rseq_add`] and [`rseq_take`] work in this process; the answer never changes. A thread without an
/// area is refused all the same.
#[must_use]
pub fn rseq_adds() -> bool {
    cfg!(target_arch = "x86_64") && field_offset(&CPU_OFFSET).is_some()
}

/// Two cache lines of its own, since x86 fetches them in pairs, for a number that one CPU changes. Either as
/// a sum, by [`rseq_add`] or [`CpuSlot::add`], or as a lock, by [`rseq_take`] or [`CpuSlot::take`]; never by
/// both of a pair, since what a restartable sequence does is not atomic towards other CPUs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct CpuSlot(AtomicU64);

impl CpuSlot {
    /// The number.
    #[inline]
    #[must_use]
    pub fn get(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    /// Adds in one atomic operation.
    #[inline]
    pub fn add(&self, number: u64) {
        self.0.fetch_add(number, Ordering::Release);
    }

    /// Takes the lock in one atomic operation; false if it is taken.
    #[inline]
    #[must_use]
    pub fn take(&self) -> bool {
        self.0.swap(1, Ordering::Acquire) == 0
    }

    /// Lets go of the lock, on whatever CPU.
    #[inline]
    pub fn let_go(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// A restartable sequence: instructions, the last of which is the only store to shared memory, and what they
/// use besides `{at}` (theirs), `{cpu_id}` (where the area's `cpu_id` is), `{slots}` and `{len}`. They give
/// up by going to `4f`, the end.
///
/// It names itself in the area's `rseq_cs`, 8 bytes into it and 4 after `cpu_id`. Where it is cut off the
/// kernel goes to label 5, which stands after the signature the C library registered, and it begins anew.
/// `rseq_cs` is cleared behind it, since the kernel would read the descriptor when this code may have been
/// unloaded.
#[cfg(target_arch = "x86_64")]
macro_rules! restartable {
    ($cpu_id:ident, $slots:ident, [$($instruction:literal,)+], $($operands:tt)+) => {
        std::arch::asm!(
            ".pushsection __rseq_cs, \"aw\"",
            ".balign 32",
            "2:",
            ".long 0, 0",
            ".quad 3f, (4f - 3f), 5f",
            ".popsection",
            ".pushsection .text.rseq_abort, \"ax\"",
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "5:",
            "jmp 6f",
            ".popsection",
            "6:",
            "lea {at}, [rip + 2b]",
            "mov qword ptr fs:[{cpu_id} + 4], {at}",
            "3:",
            $($instruction,)+
            "4:",
            "mov qword ptr fs:[{cpu_id} + 4], 0",
            at = out(reg) _,
            cpu_id = in(reg) $cpu_id,
            len = in(reg) $slots.len(),
            slots = in(reg) $slots.as_ptr(),
            options(nostack),
            $($operands)+
        )
    };
}

/// Adds to the slot of the CPU that the calling thread runs on, without a locked instruction: if the thread
/// is taken off the CPU between choosing the slot and adding, the kernel starts the sequence again. False,
/// and nothing is added, where this thread has no area, the CPU has no slot, or this processor's sequence is
/// not written yet (all but x86-64).
///
/// A thread that sees the sum sees all that was written before (release).
///
/// # References
/// [`rseq(2)`](https://github.com/compudj/librseq/blob/master/doc/man/rseq.2.md); `struct rseq_cs` in
/// `include/uapi/linux/rseq.h`, Linux 4.18; `RSEQ_SIG` in the C library's `bits/rseq.h`
#[cfg(target_arch = "x86_64")]
#[inline]
#[must_use]
pub fn rseq_add(slots: &[CpuSlot], number: u64) -> bool {
    let Some(cpu_id) = field_offset(&CPU_OFFSET) else { return false };
    // All ones where the CPU has a slot, else 0.
    let there: u32;
    // SAFETY: `restartable` is what the kernel asks for. The sequence reads the CPU, refuses one without a
    // slot (an unregistered thread's CPU is negative, which is large), and ends in its only store to
    // shared memory, an aligned add within `slots`. Readers load atomically; no other CPU stores to the
    // slot, and on x86 a plain store is a release.
    unsafe {
        restartable!(
            cpu_id,
            slots,
            [
                "mov {at:e}, dword ptr fs:[{cpu_id}]",
                "cmp {at}, {len}",
                "sbb {there:e}, {there:e}",
                "jae 4f",
                "shl {at}, 7",
                "add qword ptr [{slots} + {at}], {number}",
            ],
            there = out(reg) there,
            number = in(reg) number,
        );
    }
    there != 0
}

/// As on x86-64, where the sequence is written.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
#[must_use]
pub fn rseq_add(_slots: &[CpuSlot], _number: u64) -> bool {
    false
}

/// Takes the lock in the slot of the CPU that the calling thread runs on, without a locked instruction; the
/// slot's index, or `None` if it is taken, where [`rseq_add`] would not add, or before anybody has asked
/// [`rseq_adds`]. The lock is the thread's until [`CpuSlot::let_go`], wherever it runs by then.
///
/// It excludes others as a lock does, since only threads on this CPU take it. None of them takes it between
/// another's look and its store, or the kernel starts the latter again. The CPU's next look comes after the
/// store, whichever thread looks. The next holder sees what the last one wrote (on x86 a plain store is a
/// release, and a plain load an acquire).
///
/// # References
/// As [`rseq_add`].
#[cfg(target_arch = "x86_64")]
#[inline]
#[must_use]
pub fn rseq_take(slots: &[CpuSlot]) -> Option<usize> {
    // Looking it up would be a call in the middle of what is to be a few instructions.
    let cpu_id = Some(CPU_OFFSET.load(Ordering::Relaxed)).filter(|&offset| is_offset(offset))?;
    let (cpu, taken): (usize, u64);
    // SAFETY: as in `rseq_add`; the only store to shared memory, an aligned one within `slots`, comes last.
    unsafe {
        restartable!(
            cpu_id,
            slots,
            [
                "xor {taken:e}, {taken:e}",
                "mov {cpu:e}, dword ptr fs:[{cpu_id}]",
                "cmp {cpu}, {len}",
                "jae 4f",
                "mov {at}, {cpu}",
                "shl {at}, 7",
                "cmp qword ptr [{slots} + {at}], 0",
                "jne 4f",
                "mov {taken:e}, 1",
                "mov qword ptr [{slots} + {at}], {taken}",
            ],
            cpu = out(reg) cpu,
            taken = out(reg) taken,
        );
    }
    (taken != 0).then_some(cpu)
}

/// As on x86-64, where the sequence is written.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
#[must_use]
pub fn rseq_take(_slots: &[CpuSlot]) -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AffinityMask, getcpu, sched_getaffinity, sched_setaffinity};

    #[test]
    fn a_bound_thread_is_where_the_kernel_says() {
        for cpu in sched_getaffinity(0).unwrap().iter() {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    sched_setaffinity(0, &[cpu].into_iter().collect::<AffinityMask>()).unwrap();
                    let (here, node) = getcpu().unwrap();
                    assert_eq!(here, cpu);
                    assert!(rseq_cpu().is_none_or(|told| told == cpu));
                    assert!(rseq_node().is_none_or(|told| told == node));
                });
            });
        }
    }

    #[test]
    fn nothing_is_lost_while_threads_push_each_other_off_their_cpus() {
        const THREADS: u64 = 8;
        const ADDS: u64 = 200_000;
        let slots: Vec<CpuSlot> = (0..8192).map(|_| CpuSlot::default()).collect();
        if !rseq_add(&slots, 0) {
            return;
        }
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for add in 0..ADDS {
                        assert!(rseq_add(&slots, 1));
                        if add % 1024 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        let sum: u64 = slots.iter().map(|slot| slot.get(Ordering::Relaxed)).sum();
        assert_eq!(sum, THREADS * ADDS);
    }

    #[test]
    fn a_cpu_without_a_slot_is_refused() {
        assert!(!rseq_add(&[], 1));
        assert_eq!(rseq_take(&[]), None);
    }

    /// A CPU's lock never lets others see half of what its holder changes in two steps, while holders are
    /// pushed off their CPUs and on to others.
    #[test]
    fn a_cpus_lock_has_one_holder() {
        const THREADS: usize = 8;
        const TURNS: usize = 100_000;
        struct Guarded(std::cell::UnsafeCell<[u64; 2]>);
        // SAFETY: each is looked at by the holder of its lock only: that is the test.
        unsafe impl Sync for Guarded {}
        let slots: Vec<CpuSlot> = (0..8192).map(|_| CpuSlot::default()).collect();
        let guarded: Vec<Guarded> = slots.iter().map(|_| Guarded([0; 2].into())).collect();
        if !rseq_adds() {
            return;
        }
        let cpus: Vec<u32> = sched_getaffinity(0).unwrap().iter().collect();
        let held: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (slots, guarded, cpus) = (&slots, &guarded, &cpus);
                    scope.spawn(move || {
                        let mut held = 0;
                        for turn in 0..TURNS {
                            let Some(cpu) = rseq_take(slots) else {
                                std::thread::yield_now();
                                continue;
                            };
                            // SAFETY: the lock is ours.
                            let halves = unsafe { &mut *guarded[cpu].0.get() };
                            assert_eq!(halves[0], halves[1]);
                            halves[0] += 1;
                            if (turn + thread) % 64 == 0 {
                                let to = cpus[(turn / 64 + thread) % cpus.len()];
                                sched_setaffinity(0, &[to].into_iter().collect::<AffinityMask>()).unwrap();
                            }
                            halves[1] += 1;
                            held += 1;
                            slots[cpu].let_go();
                        }
                        held
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // SAFETY: the threads have ended.
        let counted = |guarded: &Guarded| unsafe { *guarded.0.get() };
        assert!(held > 0);
        assert_eq!(
            guarded.iter().map(counted).fold([0; 2], |sum, [a, b]| [sum[0] + a, sum[1] + b]),
            [held; 2]
        );
    }
}
