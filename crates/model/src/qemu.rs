//! QEMU's plugin interface (`include/qemu/qemu-plugin.h`, version 4, QEMU 10.0), found in the running QEMU.
//!
//! Nothing is linked: a symbol that this QEMU lacks is an error that names it, and the library half of this
//! crate needs no QEMU.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub(crate) type Id = u64;
pub(crate) type MemoryInfo = u32;

/// The scoreboard's entry, as QEMU passes it by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub scoreboard: *mut c_void,
    pub offset: usize,
}

pub(crate) const VERSION: c_int = 4;
/// `QEMU_PLUGIN_CB_NO_REGS`
pub(crate) const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_CB_R_REGS`
pub(crate) const READS_REGISTERS: c_int = 1;
/// `QEMU_PLUGIN_MEM_R`, `_W`
pub(crate) const READS: c_int = 1;
pub(crate) const WRITES: c_int = 2;
/// `QEMU_PLUGIN_INLINE_ADD_U64`
pub(crate) const ADD: c_int = 0;
/// `QEMU_PLUGIN_INLINE_STORE_U64`
pub(crate) const STORE: c_int = 1;
/// `QEMU_PLUGIN_COND_GE`
pub(crate) const AT_LEAST: c_int = 7;
/// `CPU_INTERRUPT_HARD`, and an x86 CPU's `POLL` and `NMI`: those that end a halt.
pub(crate) const WAKING: c_int = 0x2 | 0x10 | 0x200;
/// `QEMU_CLOCK_VIRTUAL`
pub(crate) const VIRTUAL: c_int = 1;

/// An array of `glib`'s: the first thing, and how many there are.
#[repr(C)]
pub(crate) struct Array<T> {
    pub first: *mut T,
    pub length: c_uint,
}

/// A register of the guest's CPUs.
#[repr(C)]
pub(crate) struct Register {
    pub handle: *mut c_void,
    pub name: *const c_char,
    pub feature: *const c_char,
}

pub(crate) type OnMemory = extern "C" fn(c_uint, MemoryInfo, u64, *mut c_void);
pub(crate) type OnCpu = extern "C" fn(Id, c_uint);
pub(crate) type OnExecution = extern "C" fn(c_uint, *mut c_void);
pub(crate) type OnTranslation = extern "C" fn(Id, *mut c_void);
pub(crate) type Simple = extern "C" fn(Id);

macro_rules! interface {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of QEMU that a model calls.
        #[derive(Clone, Copy)]
        pub(crate) struct Qemu {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Qemu {
            /// Finds all of them in this process, or names one that is not there.
            pub fn find() -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let address = symbol(name).ok_or(stringify!($name))?;
                        // SAFETY: the interface's header declares the function with these types, and
                        // `address` is that function's in the QEMU that has loaded this plugin.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(address) }
                    },)*
                })
            }
        }
    };
}

interface! {
    qemu_plugin_register_vcpu_tb_trans_cb: fn(Id, OnTranslation);
    qemu_plugin_register_vcpu_idle_cb: fn(Id, OnCpu);
    qemu_plugin_register_vcpu_resume_cb: fn(Id, OnCpu);
    qemu_plugin_register_vcpu_init_cb: fn(Id, OnCpu);
    qemu_plugin_register_flush_cb: fn(Id, Simple);
    qemu_plugin_register_vcpu_insn_exec_cb: fn(*mut c_void, OnExecution, c_int, *mut c_void);
    qemu_plugin_get_registers: fn() -> *mut Array<Register>;
    qemu_plugin_read_register: fn(*mut c_void, *mut Array<u8>) -> c_int;
    g_byte_array_new: fn() -> *mut Array<u8>;
    g_byte_array_set_size: fn(*mut Array<u8>, c_uint) -> *mut Array<u8>;
    qemu_plugin_tb_vaddr: fn(*const c_void) -> u64;
    qemu_plugin_tb_n_insns: fn(*const c_void) -> usize;
    qemu_plugin_tb_get_insn: fn(*const c_void, usize) -> *mut c_void;
    qemu_plugin_insn_data: fn(*const c_void, *mut u8, usize) -> usize;
    qemu_plugin_register_vcpu_mem_cb: fn(*mut c_void, OnMemory, c_int, c_int, *mut c_void);
    qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu: fn(*mut c_void, c_int, Entry, u64);
    qemu_plugin_register_vcpu_tb_exec_cond_cb: fn(*mut c_void, OnExecution, c_int, c_int, Entry, u64, *mut c_void);
    qemu_plugin_scoreboard_new: fn(usize) -> *mut c_void;
    qemu_plugin_scoreboard_find: fn(*mut c_void, c_uint) -> *mut c_void;
    qemu_plugin_get_hwaddr: fn(MemoryInfo, u64) -> *mut c_void;
    qemu_plugin_hwaddr_is_io: fn(*const c_void) -> bool;
    qemu_plugin_hwaddr_phys_addr: fn(*const c_void) -> u64;
    qemu_plugin_reset: fn(Id, Simple);
    cpu_get_clock: fn() -> i64;
    object_class_by_name: fn(*const c_char) -> *mut c_void;
    qemu_clock_deadline_ns_all: fn(c_int, c_int) -> i64;
    qemu_clock_notify: fn(c_int);
    qemu_get_cpu: fn(c_int) -> *mut c_void;
    tcg_handle_interrupt: fn(*mut c_void, c_int);
}

/// `name` ends in 0.
pub(crate) fn symbol(name: &str) -> Option<*mut c_void> {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
    // SAFETY: `name` ends in 0, and the default handle names the program and what it has loaded.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// How many words of the accelerator's class are looked through, and how many belong to the class above.
const SLOTS: usize = 30;
const HEAD: usize = 12;

/// Has QEMU's clocks read by a function of ours: the guest's virtual clock and its CPUs' time-stamp counters.
/// Interrupts go to another.
///
/// The clocks are members of `AccelOpsClass` (`include/system/accel-ops.h`), which is private to a version.
/// In QEMU 10.0 they come one and three members after `handle_interrupt`, whose value the emulator exports.
/// In other versions this is not known, and neither is it where a member is not empty.
pub(crate) fn replace_clocks(
    qemu: &Qemu,
    clock: extern "C" fn() -> i64,
    interrupt: extern "C" fn(*mut c_void, c_int),
) -> Result<(), &'static str> {
    const UNKNOWN: &str =
        "this QEMU keeps its clock in another place than QEMU 10.0, which is the only one known";
    // SAFETY: the name ends in 0; an unknown class gives null.
    let class = unsafe { (qemu.object_class_by_name)(c"tcg-accel-ops".as_ptr()) }.cast::<usize>();
    let known = qemu.tcg_handle_interrupt as usize;
    if class.is_null() {
        return Err("this QEMU does not emulate its CPUs in software (TCG)");
    }
    // SAFETY: the class of an accelerator is larger than this in every version since 6.2, where it came to
    // be.
    let slots = unsafe { class.add(HEAD) };
    // SAFETY: the same; nobody uses the class while its first CPU is being made.
    let slots = unsafe { std::slice::from_raw_parts_mut(slots, SLOTS - HEAD) };
    let at = slots.iter().position(|&slot| slot == known).ok_or(UNKNOWN)?;
    let [handle_interrupt, virtual_clock, set_virtual_clock, ticks, ..] = &mut slots[at..] else {
        return Err(UNKNOWN);
    };
    if [&*virtual_clock, &*set_virtual_clock, &*ticks].iter().any(|slot| **slot != 0) {
        return Err(UNKNOWN);
    }
    (*virtual_clock, *ticks) = (clock as usize, clock as usize);
    *handle_interrupt = interrupt as usize;
    Ok(())
}
