//! `struct perf_event_attr`: what an event measures.

use std::ops::{BitOr, BitOrAssign};

/// The event that [`Event::open`](super::Event::open) is to measure: `struct perf_event_attr` as of
/// `PERF_ATTR_SIZE_VER8` (Linux 6.3). An older kernel accepts it as long as the fields that it does not know
/// are zero, else it answers `E2BIG`. A newer one takes the missing fields as zero. So `size` is set to this
/// struct's and that is all the negotiation there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Attr {
    /// Which PMU: an [`EventType`], or the number in `/sys/bus/event_source/devices/PMU/type`.
    pub kind: u32,
    size: u32,
    /// Which of the PMU's events.
    pub config: u64,
    /// Events per sample, or samples per second with [`AttrFlags::FREQUENCY`]; 0 only counts.
    pub sample_period: u64,
    /// The parts of a sample.
    pub sample_type: SampleType,
    /// The format in which [`Event::read`](super::Event::read) returns counts.
    pub read_format: ReadFormat,
    /// The bit field.
    pub flags: AttrFlags,
    /// Records, or with [`AttrFlags::WATERMARK`] bytes, after which a poll wakes up.
    pub wakeup: u32,
    /// `bp_type`, for breakpoints.
    pub breakpoint_type: u32,
    /// PMU-specific, or a breakpoint's address.
    pub config1: u64,
    /// PMU-specific, or a breakpoint's length.
    pub config2: u64,
    /// The contents of a branch stack.
    pub branch_sample_type: BranchType,
    /// Mask of user registers in a sample.
    pub sample_regs_user: u64,
    /// Bytes of user stack in a sample.
    pub sample_stack_user: u32,
    /// The clock that stamps samples, with [`AttrFlags::USE_CLOCKID`].
    pub clockid: i32,
    /// Mask of registers at the interrupt in a sample.
    pub sample_regs_intr: u64,
    /// Bytes of AUX data after which a poll wakes up.
    pub aux_watermark: u32,
    /// Greatest depth of a call chain.
    pub sample_max_stack: u16,
    reserved_2: u16,
    /// Bytes of AUX data in a sample.
    pub aux_sample_size: u32,
    /// `aux_action`, Linux 6.13.
    pub aux_action: u32,
    /// User data for `sigtrap`.
    pub sig_data: u64,
    /// PMU-specific. Linux 6.3.
    pub config3: u64,
}

// The kernel's layout: PERF_ATTR_SIZE_VER8, and one field behind each hole there might be.
const _: () = assert!(size_of::<Attr>() == 136);
const _: () = assert!(std::mem::offset_of!(Attr, flags) == 40);
const _: () = assert!(std::mem::offset_of!(Attr, clockid) == 92);
const _: () = assert!(std::mem::offset_of!(Attr, sig_data) == 120);

impl Attr {
    /// An event of a PMU, counting only, disabled until it is enabled, in user mode only.
    #[must_use]
    pub const fn new(kind: u32, config: u64) -> Self {
        Self {
            kind,
            size: size_of::<Self>() as u32,
            config,
            sample_period: 0,
            sample_type: SampleType(0),
            read_format: ReadFormat(ReadFormat::TOTAL_TIME_ENABLED.0 | ReadFormat::TOTAL_TIME_RUNNING.0),
            flags: AttrFlags(AttrFlags::DISABLED.0 | AttrFlags::EXCLUDE_KERNEL.0 | AttrFlags::EXCLUDE_HV.0),
            wakeup: 0,
            breakpoint_type: 0,
            config1: 0,
            config2: 0,
            branch_sample_type: BranchType(0),
            sample_regs_user: 0,
            sample_stack_user: 0,
            clockid: 0,
            sample_regs_intr: 0,
            aux_watermark: 0,
            sample_max_stack: 0,
            reserved_2: 0,
            aux_sample_size: 0,
            aux_action: 0,
            sig_data: 0,
            config3: 0,
        }
    }

    /// A software event.
    #[must_use]
    pub const fn software(event: SoftwareEvent) -> Self {
        Self::new(EventType::SOFTWARE, event as u64)
    }

    /// Stamps samples with `CLOCK_MONOTONIC` instead of the scheduler's clock.
    #[must_use]
    pub const fn monotonic(mut self) -> Self {
        self.flags = AttrFlags(self.flags.0 | AttrFlags::USE_CLOCKID.0);
        self.clockid = libc::CLOCK_MONOTONIC;
        self
    }
}

/// `PERF_TYPE_*`, the PMUs whose numbers are fixed.
#[derive(Clone, Copy, Debug)]
pub struct EventType;

impl EventType {
    /// Generic hardware events.
    pub const HARDWARE: u32 = 0;
    /// The kernel's own events, [`SoftwareEvent`].
    pub const SOFTWARE: u32 = 1;
    /// Tracepoints; `config` is the number in tracefs.
    pub const TRACEPOINT: u32 = 2;
    /// The CPU's own numbering of events.
    pub const RAW: u32 = 4;
}

/// `PERF_COUNT_SW_*`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
#[non_exhaustive]
pub enum SoftwareEvent {
    /// CPU time, in nanoseconds.
    CpuClock = 0,
    /// The task's time on a CPU, in nanoseconds.
    TaskClock = 1,
    /// Page faults, with the exact address in a sample.
    PageFaults = 2,
    /// Context switches.
    ContextSwitches = 3,
    /// Moves to another CPU.
    CpuMigrations = 4,
    /// Page faults that needed no disk.
    PageFaultsMinor = 5,
    /// Page faults that did.
    PageFaultsMajor = 6,
    /// Nothing: a carrier of side-band records.
    Dummy = 9,
}

/// A set of bits of the kernel's, combined with `|`.
macro_rules! bits {
    ($(#[$doc:meta])* $name:ident { $($(#[$bit_doc:meta])* $bit:ident = $at:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            $($(#[$bit_doc])* pub const $bit: Self = Self(1 << $at);)*

            /// Whether all of `other`'s bits are set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The same without `other`'s bits.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }
        }

        impl BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl BitOrAssign for $name {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }
    };
}

bits! {
    /// `PERF_SAMPLE_*`: what a sample holds.
    SampleType {
        /// Instruction pointer.
        IP = 0;
        /// Process and thread.
        TID = 1;
        /// When.
        TIME = 2;
        /// The address accessed.
        ADDR = 3;
        /// Counter values.
        READ = 4;
        /// Call chain.
        CALLCHAIN = 5;
        /// The event's number.
        ID = 6;
        /// The CPU.
        CPU = 7;
        /// Events since the sample before.
        PERIOD = 8;
        /// The event's number, not its group leader's.
        STREAM_ID = 9;
        /// PMU- or tracepoint-specific bytes.
        RAW = 10;
        /// Last branches.
        BRANCH_STACK = 11;
        /// User registers.
        REGS_USER = 12;
        /// User stack.
        STACK_USER = 13;
        /// Latency or another hardware cost.
        WEIGHT = 14;
        /// Where the data came from.
        DATA_SRC = 15;
        /// The event's number, first in the sample.
        IDENTIFIER = 16;
        /// Transaction abort reason.
        TRANSACTION = 17;
        /// Registers at the interrupt.
        REGS_INTR = 18;
        /// Physical address.
        PHYS_ADDR = 19;
        /// AUX data.
        AUX = 20;
        /// Control group. Linux 5.7.
        CGROUP = 21;
        /// Size of the data's page. Linux 5.11.
        DATA_PAGE_SIZE = 22;
        /// Size of the code's page. Linux 5.11.
        CODE_PAGE_SIZE = 23;
        /// The weight in three parts. Linux 5.12.
        WEIGHT_STRUCT = 24;
    }
}

bits! {
    /// `PERF_FORMAT_*`: what reading a counter returns.
    ReadFormat {
        /// Time since the event was enabled.
        TOTAL_TIME_ENABLED = 0;
        /// Time that the event had a counter.
        TOTAL_TIME_RUNNING = 1;
        /// The event's number.
        ID = 2;
        /// The whole group's counters.
        GROUP = 3;
        /// Samples lost. Linux 6.0.
        LOST = 4;
    }
}

bits! {
    /// `PERF_SAMPLE_BRANCH_*`, those that change a branch stack's layout.
    BranchType {
        /// An index word in front.
        HW_INDEX = 17;
        /// Counters behind. Linux 6.8.
        COUNTERS = 19;
    }
}

bits! {
    /// The bit field of `struct perf_event_attr`.
    AttrFlags {
        /// Off until enabled.
        DISABLED = 0;
        /// Threads and children started later are counted too. An event of a task on any CPU has no ring
        /// then.
        INHERIT = 1;
        /// Always on the PMU, or an error.
        PINNED = 2;
        /// Not in user mode.
        EXCLUDE_USER = 4;
        /// Not in the kernel.
        EXCLUDE_KERNEL = 5;
        /// Not in the hypervisor.
        EXCLUDE_HV = 6;
        /// Records of executable mappings.
        MMAP = 8;
        /// Records of names.
        COMM = 9;
        /// `sample_period` is a frequency.
        FREQUENCY = 10;
        /// Enabled by `exec`.
        ENABLE_ON_EXEC = 12;
        /// Records of forks and exits.
        TASK = 13;
        /// `wakeup` counts bytes.
        WATERMARK = 14;
        /// Low bit of the two-bit `precise_ip`.
        PRECISE_1 = 15;
        /// High bit of the two-bit `precise_ip`: what PEBS needs.
        PRECISE_2 = 16;
        /// Records of other mappings.
        MMAP_DATA = 17;
        /// Every record ends with the sample's identity.
        SAMPLE_ID_ALL = 18;
        /// Not in guests of this host. A host that lends its PMU to guests (Linux 7.0) refuses events
        /// without.
        EXCLUDE_GUEST = 20;
        /// Call chains without the kernel's part.
        EXCLUDE_CALLCHAIN_KERNEL = 21;
        /// Call chains without the user's part.
        EXCLUDE_CALLCHAIN_USER = 22;
        /// Names tell whether an exec set them.
        COMM_EXEC = 24;
        /// Stamp with `clockid`.
        USE_CLOCKID = 25;
        /// Records of context switches.
        CONTEXT_SWITCH = 26;
        /// With `INHERIT`: threads only. Linux 5.13.
        INHERIT_THREAD = 35;
        /// Closed by exec. Linux 5.13.
        REMOVE_ON_EXEC = 36;
    }
}
