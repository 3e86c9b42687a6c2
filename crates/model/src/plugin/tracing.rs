//! A CPU as a trace needs it: its instructions in user mode, and its registers where it enters the kernel and
//! leaves it.

use super::{Plugin, plugin};
use crate::model::{Kind, Outcome};
use crate::qemu::{self, Entry, Qemu};
use crate::tracer::{Registers, Tracer, USER};
use std::cell::Cell;
use std::ffi::{CStr, c_uint, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The program's trace, and how it is taken.
pub(super) struct Tracing {
    pub(super) tracer: Mutex<Tracer>,
    /// A [`Mode`] of each CPU.
    pub(super) modes: *mut c_void,
    /// The handles of the registers' values that are needed, once there is a CPU.
    pub(super) registers: OnceLock<Option<[usize; 5]>>,
}

/// A CPU's user mode, as translated code keeps it.
#[repr(C)]
pub(super) struct Mode {
    /// Instructions so far.
    instructions: u64,
    /// Whether it has come back from the kernel.
    came_back: u64,
}

/// The registers of [`Registers`], in order.
const REGISTERS: [&CStr; 5] = [c"cr3", c"fs_base", c"rax", c"rdi", c"rsi"];

impl Tracing {
    /// The count of a CPU's instructions in user mode.
    fn instructions(&self, plugin: &Plugin, number: usize) -> u64 {
        // SAFETY: the scoreboard is this plugin's, and has an entry for each CPU.
        let mode = unsafe { (plugin.qemu.qemu_plugin_scoreboard_find)(self.modes, number as c_uint) };
        // SAFETY: each entry is a `Mode`, which only the CPU's own thread uses, and this is that thread.
        unsafe { &*mode.cast::<Mode>() }.instructions
    }

    #[cold]
    pub(super) fn access(&self, plugin: &Plugin, number: usize, address: u64, kind: Kind, outcome: Outcome) {
        if address >= USER {
            return;
        }
        let instructions = self.instructions(plugin, number);
        let mut tracer = self.tracer.lock().unwrap_or_else(PoisonError::into_inner);
        tracer.access(number, instructions, address, kind, outcome);
    }

    /// Learns how registers are asked for, in the callback of a CPU's begin.
    pub(super) fn find_registers(qemu: &Qemu) -> Option<[usize; 5]> {
        // SAFETY: this is a CPU's own thread.
        let all = unsafe { (qemu.qemu_plugin_get_registers)() };
        // SAFETY: QEMU's answer is an array, or null.
        let all = unsafe { all.as_ref() }?;
        // SAFETY: QEMU's array has as many; it is not freed.
        let all = unsafe { std::slice::from_raw_parts(all.first, all.length as usize) };
        let handle = |wanted: &CStr| {
            // SAFETY: names end in 0 and are there as long as QEMU.
            all.iter().find(|register| unsafe { CStr::from_ptr(register.name) } == wanted)
        };
        let mut handles = [0; 5];
        for (place, wanted) in handles.iter_mut().zip(REGISTERS) {
            *place = handle(wanted)?.handle as usize;
        }
        Some(handles)
    }

    /// The registers of the CPU whose thread this is, in a callback that may read them.
    fn registers(&self, qemu: &Qemu) -> Option<Registers> {
        thread_local! {
            static BYTES: Cell<*mut qemu::Array<u8>> = const { Cell::new(ptr::null_mut()) };
        }
        if BYTES.get().is_null() {
            // SAFETY: it takes nothing.
            BYTES.set(unsafe { (qemu.g_byte_array_new)() });
        }
        let bytes = BYTES.get();
        let handles = self.registers.get().copied().flatten()?;
        let [cr3, fs_base, rax, rdi, rsi] = handles.map(|handle| {
            // SAFETY: the array is this thread's.
            unsafe { (qemu.g_byte_array_set_size)(bytes, 0) };
            // SAFETY: the handle is QEMU's, and the array this thread's.
            unsafe { (qemu.qemu_plugin_read_register)(handle as *mut c_void, bytes) };
            // SAFETY: the array is this thread's, and nobody changes it meanwhile.
            let bytes = unsafe { &*bytes };
            let mut value = [0; 8];
            let length = value.len().min(bytes.length as usize);
            // SAFETY: the array has so many bytes.
            unsafe { ptr::copy_nonoverlapping(bytes.first, value.as_mut_ptr(), length) };
            u64::from_le_bytes(value)
        });
        Some(Registers { cr3, fs_base, rax, rdi, rsi })
    }

    /// Has a block's user code be followed, or the kernel's returns to such and its ways to user memory.
    pub(super) fn follow(
        &self,
        qemu: &Qemu,
        block: *mut c_void,
        is_users: bool,
        code: &[(*mut c_void, &[u8])],
    ) {
        let entry = |offset| Entry { scoreboard: self.modes, offset };
        let (instructions, came_back) =
            (entry(offset_of!(Mode, instructions)), entry(offset_of!(Mode, came_back)));
        let (reads, none) = (qemu::READS_REGISTERS, ptr::null_mut());
        if !is_users {
            if code.iter().any(|(_, text)| returns(text)) {
                // SAFETY: QEMU's block in its callback, and this plugin's scoreboard.
                unsafe {
                    (qemu.qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu)(
                        block,
                        qemu::STORE,
                        came_back,
                        1,
                    );
                };
            }
            for &(instruction, _) in code.iter().filter(|(_, text)| text.starts_with(&STAC)) {
                // SAFETY: QEMU's instruction in its block's callback.
                unsafe {
                    (qemu.qemu_plugin_register_vcpu_insn_exec_cb)(instruction, on_user_memory, reads, none);
                };
            }
            return;
        }
        // First, lest this block's instructions be the other thread's.
        // SAFETY: QEMU's block in its callback, and this plugin's scoreboard.
        unsafe {
            (qemu.qemu_plugin_register_vcpu_tb_exec_cond_cb)(
                block,
                on_user,
                reads,
                qemu::AT_LEAST,
                came_back,
                1,
                none,
            );
        };
        let length = code.len() as u64;
        // SAFETY: the same.
        unsafe {
            (qemu.qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu)(block, qemu::ADD, instructions, length);
        };
        for &(instruction, _) in code.iter().filter(|(_, text)| text.starts_with(&[0x0f, 0x05])) {
            // SAFETY: QEMU's instruction in its block's callback.
            unsafe {
                (qemu.qemu_plugin_register_vcpu_insn_exec_cb)(instruction, on_system_call, reads, none);
            };
        }
    }
}

/// The instruction by which the kernel lets itself reach user memory (x86's SMAP).
const STAC: [u8; 3] = [0x0f, 0x01, 0xcb];

/// Whether an instruction of the kernel may return to user code: sysret or iret.
fn returns(text: &[u8]) -> bool {
    let text = text.strip_prefix(&[0x48]).unwrap_or(text);
    text.starts_with(&[0x0f, 0x07]) || text.starts_with(&[0xcf])
}

/// User code runs for the first time since the CPU came back from the kernel.
extern "C" fn on_user(number: c_uint, _: *mut c_void) {
    let (plugin, number) = (plugin(), number as usize);
    let Some(tracing) = &plugin.tracing else { return };
    // SAFETY: the scoreboard is this plugin's, and has an entry for each CPU.
    let mode = unsafe { (plugin.qemu.qemu_plugin_scoreboard_find)(tracing.modes, number as c_uint) };
    // SAFETY: each entry is a `Mode`, which only the CPU's own thread uses, and this is that thread.
    let mode = unsafe { &mut *mode.cast::<Mode>() };
    mode.came_back = 0;
    if let Some(registers) = tracing.registers(&plugin.qemu) {
        let mut tracer = tracing.tracer.lock().unwrap_or_else(PoisonError::into_inner);
        tracer.enter(number, mode.instructions, registers);
    }
}

/// The kernel is about to reach user memory.
extern "C" fn on_user_memory(number: c_uint, _: *mut c_void) {
    let (plugin, number) = (plugin(), number as usize);
    let Some(tracing) = &plugin.tracing else { return };
    if let Some(registers) = tracing.registers(&plugin.qemu) {
        let instructions = tracing.instructions(plugin, number);
        let mut tracer = tracing.tracer.lock().unwrap_or_else(PoisonError::into_inner);
        tracer.serve(number, instructions, registers);
    }
}

extern "C" fn on_system_call(number: c_uint, _: *mut c_void) {
    let (plugin, number) = (plugin(), number as usize);
    let Some(tracing) = &plugin.tracing else { return };
    if let Some(registers) = tracing.registers(&plugin.qemu) {
        let instructions = tracing.instructions(plugin, number);
        let mut tracer = tracing.tracer.lock().unwrap_or_else(PoisonError::into_inner);
        tracer.call(number, instructions, registers);
    }
}
