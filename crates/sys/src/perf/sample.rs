//! `PERF_RECORD_SAMPLE`, whose layout depends on the event's attributes.

use super::{Attr, AttrFlags, BranchType, Malformed, ReadFormat, SampleType};

/// The properties that decide a sample's layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleFormat {
    /// Which parts it has.
    pub sample_type: SampleType,
    /// The layout of [`SampleType::READ`].
    pub read_format: ReadFormat,
    /// The layout of [`SampleType::BRANCH_STACK`].
    pub branch_type: BranchType,
    /// The registers of [`SampleType::REGS_USER`].
    pub regs_user: u64,
    /// The registers of [`SampleType::REGS_INTR`].
    pub regs_intr: u64,
    /// Whether other records end with their identity
    /// ([`AttrFlags::SAMPLE_ID_ALL`](super::AttrFlags::SAMPLE_ID_ALL)).
    pub sample_id_all: bool,
}

impl From<&Attr> for SampleFormat {
    fn from(attr: &Attr) -> Self {
        Self {
            sample_type: attr.sample_type,
            read_format: attr.read_format,
            branch_type: attr.branch_sample_type,
            regs_user: attr.sample_regs_user,
            regs_intr: attr.sample_regs_intr,
            sample_id_all: attr.flags.contains(AttrFlags::SAMPLE_ID_ALL),
        }
    }
}

/// Whose code ran, as a record's header says: the low three bits of `misc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuMode {
    /// The kernel does not say.
    #[default]
    Unknown,
    /// The kernel's.
    Kernel,
    /// A process's.
    User,
    /// The hypervisor's.
    Hypervisor,
    /// A guest's kernel's.
    GuestKernel,
    /// A guest's process's.
    GuestUser,
}

impl CpuMode {
    pub(super) const fn of(misc: u16) -> Self {
        match misc & 7 {
            1 => Self::Kernel,
            2 => Self::User,
            3 => Self::Hypervisor,
            4 => Self::GuestKernel,
            5 => Self::GuestUser,
            _ => Self::Unknown,
        }
    }
}

/// The addresses of a call chain, the innermost first: each where its caller goes on, but for the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallChain<'a>(&'a [u8]);

impl CallChain<'_> {
    /// The addresses of user code.
    pub fn user(&self) -> impl Iterator<Item = u64> + '_ {
        const USER: u64 = -512_i64 as u64;
        self.within(USER, true)
    }

    /// The addresses of the kernel's code.
    pub fn kernel(&self) -> impl Iterator<Item = u64> + '_ {
        const KERNEL: u64 = -128_i64 as u64;
        self.within(KERNEL, false)
    }

    /// The addresses behind a word that says whose they are. `begins`: whether those in front of the first
    /// such word count, too.
    fn within(&self, context: u64, begins: bool) -> impl Iterator<Item = u64> + '_ {
        /// Words from here on say whose addresses follow (`PERF_CONTEXT_MAX`).
        const CONTEXTS: u64 = -4095_i64 as u64;
        let mut is_within = begins;
        let words = self.0.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes));
        words.filter(move |&word| {
            if word >= CONTEXTS {
                is_within = word == context;
            }
            is_within && word < CONTEXTS
        })
    }
}

/// A sample. Parts that were not asked for are `None`; branches and registers are skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Whose code was sampled.
    pub cpu_mode: CpuMode,
    /// Event's number, of [`SampleType::IDENTIFIER`] or [`SampleType::ID`].
    pub id: Option<u64>,
    /// Instruction pointer.
    pub ip: Option<u64>,
    /// Process.
    pub pid: Option<i32>,
    /// Thread.
    pub tid: Option<i32>,
    /// When, by the event's clock.
    pub time_ns: Option<u64>,
    /// The address accessed.
    pub address: Option<u64>,
    /// The event's number even inside a group.
    pub stream_id: Option<u64>,
    /// The CPU.
    pub cpu: Option<u32>,
    /// Events since the sample before.
    pub period: Option<u64>,
    /// The code that was running, and its callers.
    pub call_chain: Option<CallChain<'a>>,
    /// PMU- or tracepoint-specific bytes.
    pub raw: Option<&'a [u8]>,
    /// The user's stack from its pointer on, as much as was asked for and is there.
    pub user_stack: Option<&'a [u8]>,
    /// The whole weight word: with [`SampleType::WEIGHT`] a cost in cycles, with
    /// [`SampleType::WEIGHT_STRUCT`] three numbers, see [`Sample::weights`].
    pub weight: Option<u64>,
    /// `union perf_mem_data_src`.
    pub data_source: Option<u64>,
    /// Physical address.
    pub physical_address: Option<u64>,
    /// Control group's number.
    pub cgroup: Option<u64>,
    /// Size of the data's page.
    pub data_page_bytes: Option<u64>,
}

impl Sample<'_> {
    /// The parts of a [`SampleType::WEIGHT_STRUCT`]: 32, 16 and 16 bits (`var1_dw`, `var2_w`, `var3_w`), on
    /// x86 the latency of the load, of the whole instruction, and retirement's.
    #[must_use]
    pub fn weights(&self) -> Option<(u32, u16, u16)> {
        self.weight.map(|word| (word as u32, (word >> 32) as u16, (word >> 48) as u16))
    }
}

/// The thread that was running, where and when, as far as the format has it: records other than samples end
/// with this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Process.
    pub pid: Option<i32>,
    /// Thread.
    pub tid: Option<i32>,
    /// When, by the event's clock.
    pub time_ns: Option<u64>,
    /// The CPU.
    pub cpu: Option<u32>,
}

impl Identity {
    /// In the order of `__perf_event__output_id_sample` in `kernel/events/core.c`; nothing when records carry
    /// none.
    pub(super) fn parse(from: &mut Cursor<'_>, format: &SampleFormat) -> Result<Self, Malformed> {
        let mut identity = Self::default();
        let has = |part| format.sample_id_all && format.sample_type.contains(part);
        if has(SampleType::TID) {
            identity.pid = Some(from.u32()? as i32);
            identity.tid = Some(from.u32()? as i32);
        }
        if has(SampleType::TIME) {
            identity.time_ns = Some(from.u64()?);
        }
        if has(SampleType::ID) {
            from.u64()?;
        }
        if has(SampleType::STREAM_ID) {
            from.u64()?;
        }
        if has(SampleType::CPU) {
            identity.cpu = Some(from.u32()?);
        }
        Ok(identity)
    }
}

/// Bytes read from the front.
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn bytes(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (front, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(front)
    }

    /// The bytes before the first that is zero, of all that are left.
    pub(super) fn text(&self) -> &'a [u8] {
        self.0.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        let word = self.bytes(8)?.try_into().map_err(|_| Malformed)?;
        Ok(u64::from_ne_bytes(word))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        let word = self.bytes(4)?.try_into().map_err(|_| Malformed)?;
        Ok(u32::from_ne_bytes(word))
    }

    fn skip_words(&mut self, words: u64) -> Result<(), Malformed> {
        self.bytes(words.checked_mul(8).ok_or(Malformed)?).map(|_| ())
    }
}

impl<'a> Sample<'a> {
    /// Takes the body of a record (what follows the header) apart, in the order of `perf_output_sample` in
    /// `kernel/events/core.c`.
    pub(super) fn parse(body: &'a [u8], format: &SampleFormat) -> Result<Self, Malformed> {
        let mut from = Cursor(body);
        let mut sample = Self::default();
        let has = |part| format.sample_type.contains(part);
        if has(SampleType::IDENTIFIER) {
            sample.id = Some(from.u64()?);
        }
        if has(SampleType::IP) {
            sample.ip = Some(from.u64()?);
        }
        if has(SampleType::TID) {
            sample.pid = Some(from.u32()? as i32);
            sample.tid = Some(from.u32()? as i32);
        }
        if has(SampleType::TIME) {
            sample.time_ns = Some(from.u64()?);
        }
        if has(SampleType::ADDR) {
            sample.address = Some(from.u64()?);
        }
        if has(SampleType::ID) {
            sample.id = Some(from.u64()?);
        }
        if has(SampleType::STREAM_ID) {
            sample.stream_id = Some(from.u64()?);
        }
        if has(SampleType::CPU) {
            sample.cpu = Some(from.u32()?);
            from.u32()?;
        }
        if has(SampleType::PERIOD) {
            sample.period = Some(from.u64()?);
        }
        if has(SampleType::READ) {
            skip_read(&mut from, format.read_format)?;
        }
        if has(SampleType::CALLCHAIN) {
            let addresses = from.u64()?;
            sample.call_chain = Some(CallChain(from.bytes(addresses.checked_mul(8).ok_or(Malformed)?)?));
        }
        if has(SampleType::RAW) {
            // The kernel pads so that length word and bytes together are a multiple of 8, and counts the
            // padding.
            let length = from.u32()?;
            sample.raw = Some(from.bytes(length.into())?);
        }
        if has(SampleType::BRANCH_STACK) {
            skip_branches(&mut from, format.branch_type)?;
        }
        if has(SampleType::REGS_USER) {
            skip_registers(&mut from, format.regs_user)?;
        }
        if has(SampleType::STACK_USER) {
            let length = from.u64()?;
            let bytes = from.bytes(length)?;
            // The length that is meant.
            let meant = if length != 0 { from.u64()? } else { 0 };
            sample.user_stack = bytes.get(..usize::try_from(meant).map_err(|_| Malformed)?);
        }
        if has(SampleType::WEIGHT) || has(SampleType::WEIGHT_STRUCT) {
            sample.weight = Some(from.u64()?);
        }
        if has(SampleType::DATA_SRC) {
            sample.data_source = Some(from.u64()?);
        }
        if has(SampleType::TRANSACTION) {
            from.u64()?;
        }
        if has(SampleType::REGS_INTR) {
            skip_registers(&mut from, format.regs_intr)?;
        }
        if has(SampleType::PHYS_ADDR) {
            sample.physical_address = Some(from.u64()?);
        }
        if has(SampleType::CGROUP) {
            sample.cgroup = Some(from.u64()?);
        }
        if has(SampleType::DATA_PAGE_SIZE) {
            sample.data_page_bytes = Some(from.u64()?);
        }
        if has(SampleType::CODE_PAGE_SIZE) {
            from.u64()?;
        }
        // SampleType::AUX would be last, and nothing after it is wanted.
        Ok(sample)
    }
}

/// `perf_output_read`
fn skip_read(from: &mut Cursor<'_>, format: ReadFormat) -> Result<(), Malformed> {
    let words = |format: ReadFormat| u64::from(format.0.count_ones());
    let times = ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING;
    let each = ReadFormat(format.0 & (ReadFormat::ID | ReadFormat::LOST).0);
    let times = ReadFormat(format.0 & times.0);
    let counters = if format.contains(ReadFormat::GROUP) { from.u64()? } else { 1 };
    let all = counters.checked_mul(1 + words(each)).and_then(|all| all.checked_add(words(times)));
    from.skip_words(all.ok_or(Malformed)?)
}

/// `perf_output_sample`'s branch part: a count, an index if asked for, three words a branch, one more with
/// counters.
fn skip_branches(from: &mut Cursor<'_>, format: BranchType) -> Result<(), Malformed> {
    let branches = from.u64()?;
    let each = 3 + u64::from(format.contains(BranchType::COUNTERS));
    let index = u64::from(format.contains(BranchType::HW_INDEX));
    let all = branches.checked_mul(each).and_then(|all| all.checked_add(index));
    from.skip_words(all.ok_or(Malformed)?)
}

fn skip_registers(from: &mut Cursor<'_>, mask: u64) -> Result<(), Malformed> {
    const NONE: u64 = 0; // PERF_SAMPLE_REGS_ABI_NONE
    if from.u64()? == NONE { Ok(()) } else { from.skip_words(mask.count_ones().into()) }
}
