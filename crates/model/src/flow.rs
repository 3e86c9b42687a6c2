//! The data flow of a translation block: which addresses hang on which loads.
//!
//! A core that has missed its caches goes on with whatever does not need the data. It waits as soon as an
//! address does: that is all the difference between a pointer chase and a stream. A block's flow is found
//! once, when QEMU translates it.

use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, InstructionInfoOptions, OpAccess,
    Register,
};

/// How many loads of a block are told apart. Later ones are taken for independent ones.
pub(crate) const LOADS: usize = 64;

/// General-purpose registers; vectors do not address memory.
pub(crate) const REGISTERS: usize = 16;

/// The things that a value was made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Registers at the block's entry, a bit for each.
    pub registers: u16,
    /// Loads of the block, a bit for each.
    pub loads: u64,
}

impl Origin {
    fn register(number: usize) -> Self {
        Self { registers: 1 << number, loads: 0 }
    }

    fn and(self, other: Self) -> Self {
        Self { registers: self.registers | other.registers, loads: self.loads | other.loads }
    }
}

/// The memory access of one instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access {
    /// The origin of its address.
    pub address: Origin,
    /// The number of the load in its block, if it loads and is one of the first [`LOADS`].
    pub load: Option<u8>,
    /// Whether the instruction is an atomic read-modify-write.
    pub atomic: bool,
}

/// A translation block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// The accesses, one for each instruction.
    pub accesses: Vec<Access>,
    /// The origin of each register's value at the block's end.
    pub exits: [Origin; REGISTERS],
}

/// The number of the general-purpose register that this is a part of.
fn general(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

fn reads(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

impl Block {
    /// Finds the flow of instructions in 64-bit mode, one after the other. Bytes that are no instruction
    /// touch nothing.
    pub fn of<'a>(instructions: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut factory = InstructionInfoFactory::new();
        let mut state: [Origin; REGISTERS] = std::array::from_fn(Origin::register);
        let mut accesses = Vec::new();
        let mut loads = 0;
        for bytes in instructions {
            let mut instruction = Instruction::default();
            Decoder::new(64, bytes, DecoderOptions::NONE).decode_out(&mut instruction);
            if instruction.code() == Code::INVALID {
                accesses.push(Access::default());
                continue;
            }
            let info = factory.info_options(&instruction, InstructionInfoOptions::NONE);
            let of = |register: Register| general(register).map_or(Origin::default(), |number| state[number]);
            let mut access = Access { atomic: is_atomic(&instruction), ..Access::default() };
            let mut sources = Origin::default();
            for memory in info.used_memory() {
                access.address = access.address.and(of(memory.base())).and(of(memory.index()));
                if reads(memory.access()) && access.load.is_none() && loads < LOADS {
                    access.load = Some(loads as u8);
                    sources.loads |= 1 << loads;
                    loads += 1;
                }
            }
            // Registers of the address are among them: data is never there before its address.
            for used in info.used_registers() {
                if reads(used.access()) {
                    sources = sources.and(of(used.register()));
                }
            }
            for used in info.used_registers() {
                let Some(number) = general(used.register()) else { continue };
                match used.access() {
                    // The stack pointer moves by constants and never hangs on what is popped.
                    _ if used.register().full_register() == Register::RSP
                        && instruction.is_stack_instruction() => {}
                    OpAccess::Write | OpAccess::ReadWrite => state[number] = sources,
                    OpAccess::CondWrite | OpAccess::ReadCondWrite => {
                        state[number] = state[number].and(sources);
                    }
                    _ => {}
                }
            }
            accesses.push(access);
        }
        Self { accesses, exits: state }
    }
}

/// An instruction with a lock prefix, or an exchange with memory, which needs none.
fn is_atomic(instruction: &Instruction) -> bool {
    let exchange = matches!(
        instruction.code(),
        Code::Xchg_rm8_r8 | Code::Xchg_rm16_r16 | Code::Xchg_rm32_r32 | Code::Xchg_rm64_r64
    );
    instruction.has_lock_prefix() || exchange
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAX: u16 = 1;
    const RCX: u16 = 1 << 1;
    const RDX: u16 = 1 << 2;
    const RBX: u16 = 1 << 3;

    #[test]
    fn a_pointer_chase_hangs_on_its_last_load() {
        // mov rax, [rax]; mov rax, [rax]
        let block = Block::of([&[0x48, 0x8b, 0x00][..]; 2].into_iter());
        assert_eq!(block.accesses[0].address, Origin { registers: RAX, loads: 0 });
        assert_eq!(block.accesses[1].address, Origin { registers: RAX, loads: 1 });
        assert_eq!(block.exits[0], Origin { registers: RAX, loads: 3 });
    }

    #[test]
    fn a_stream_hangs_on_its_counter_only() {
        // add rdx, [rax+rcx*8]; inc rcx; add rdx, [rax+rcx*8]
        let add = [0x48, 0x03, 0x14, 0xc8];
        let block = Block::of([&add[..], &[0x48, 0xff, 0xc1], &add].into_iter());
        let address = Origin { registers: RAX | RCX, loads: 0 };
        assert_eq!((block.accesses[0].address, block.accesses[2].address), (address, address));
        assert_eq!(block.exits[2], Origin { registers: RDX | RAX | RCX, loads: 3 });
        assert_eq!(block.accesses[2].load, Some(1));
    }

    #[test]
    fn a_register_that_is_cleared_hangs_on_nothing() {
        // mov rax, [rbx]; xor eax, eax; mov rcx, [rax]
        let block = Block::of([&[0x48, 0x8b, 0x03][..], &[0x31, 0xc0], &[0x48, 0x8b, 0x08]].into_iter());
        assert_eq!(block.accesses[0].address, Origin { registers: RBX, loads: 0 });
        assert_eq!(block.accesses[2].address, Origin::default());
    }

    #[test]
    fn a_popped_value_does_not_hold_the_stack_up() {
        // pop rax; pop rbx
        let block = Block::of([&[0x58][..], &[0x5b]].into_iter());
        assert_eq!(block.accesses[1].address, Origin { registers: 1 << 4, loads: 0 });
        assert_eq!(block.exits[0], Origin { registers: 1 << 4, loads: 1 });
    }

    #[test]
    fn an_address_that_is_only_computed_is_no_load() {
        // lea rax, [rbx+8]
        let block = Block::of([&[0x48, 0x8d, 0x43, 0x08][..]].into_iter());
        assert_eq!(block.accesses[0].load, None);
        assert_eq!(block.exits[0], Origin { registers: RBX, loads: 0 });
    }

    #[test]
    fn atomics_are_known() {
        // lock add [rax], ecx; xchg [rax], ecx; add [rax], ecx
        let block = Block::of([&[0xf0, 0x01, 0x08][..], &[0x87, 0x08], &[0x01, 0x08]].into_iter());
        let atomic: Vec<bool> = block.accesses.iter().map(|access| access.atomic).collect();
        assert_eq!(atomic, [true, true, false]);
    }

    #[test]
    fn bytes_that_are_no_instruction_touch_nothing() {
        let block = Block::of([&[0x06][..]].into_iter());
        assert_eq!(block.accesses, [Access::default()]);
    }
}
