//! The plugin: QEMU calls these functions, and they call the model.

mod tracing;

use crate::clock::PATIENCE;
use crate::control;
use crate::cpu::Cpu;
use crate::flow::{Access, Block};
use crate::model::{Kind, Model, Request};
use crate::qemu::{self, Entry, Id, MemoryInfo, Qemu};
use crate::settings::{Report, Settings};
use crate::tracer::Tracer;
use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tracing::{Mode, Tracing};

/// The version of the interface that this plugin is written for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)] // the name that QEMU looks for
pub static qemu_plugin_version: c_int = qemu::VERSION;

/// A block runs this many instructions, or any at all while a load is on its way, before [`on_block`] looks.
const LOOK: u64 = 4096;
/// Set in a CPU's count of instructions while a load is on its way.
const WAITS: u64 = 1 << 40;

/// How often a CPU asks whether a timer is due, in modelled time.
const TIMERS_PS: u64 = 20_000_000;

/// While all CPUs idle, time runs this much faster than the host's at most: whoever talks to the guest has to
/// get a word in.
const IDLE_SPEED: u32 = 40;
/// How far it runs at once.
const IDLE_STEP_NS: i64 = 20_000_000;

/// The stages of a guest.
const OFF: u8 = 0;
const WANTED: u8 = 1;
const ON: u8 = 2;

struct Plugin {
    qemu: Qemu,
    id: Id,
    model: Model,
    cpus: Vec<Slot>,
    /// Instructions of each CPU since its last look.
    counts: *mut c_void,
    stage: AtomicU8,
    begun: (Mutex<bool>, Condvar),
    /// All translations until QEMU forgets its own. Boxed: QEMU and the CPUs hold their addresses.
    #[allow(clippy::vec_box)]
    blocks: Mutex<Vec<Box<Translation>>>,
    timers_ps: AtomicU64,
    /// The program's trace, if one is asked for.
    tracing: Option<Tracing>,
    /// Whether the guest's clocks are this model's, once there is a CPU.
    clocks: OnceLock<Result<(), &'static str>>,
    /// Whether all CPUs idle, for the thread that skips that time.
    all_idle: (Mutex<()>, Condvar),
}

/// A CPU's place.
#[repr(align(128))]
struct Slot {
    cpu: UnsafeCell<Cpu>,
    count: AtomicPtr<u64>,
    idles: AtomicBool,
    /// QEMU's own CPU.
    of_qemu: AtomicPtr<c_void>,
    /// How many times the CPU lost a line to another. Other CPUs' threads count here.
    losses: AtomicU32,
}

// SAFETY: a slot's CPU is used by that CPU's own thread, and by others only while QEMU has stopped all CPUs.
// All else in it is atomic. QEMU's functions may be called by all threads.
unsafe impl Sync for Plugin {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Plugin {}

struct Translation {
    block: Block,
    sites: Vec<Site>,
}

/// An instruction that touches memory.
struct Site {
    block: *const Block,
    access: Access,
}

// SAFETY: the pointer is to the site's own translation, which is not changed after it was made.
unsafe impl Send for Site {}

static PLUGIN: AtomicPtr<Plugin> = AtomicPtr::new(ptr::null_mut());

thread_local! {
    /// The CPU whose thread this is.
    static CPU: Cell<Option<usize>> = const { Cell::new(None) };
}

fn plugin() -> &'static Plugin {
    // SAFETY: it is set before the first callback is registered, and lives as long as the process.
    unsafe { &*PLUGIN.load(Ordering::Relaxed) }
}

impl Plugin {
    fn on(&self) -> bool {
        self.stage.load(Ordering::Relaxed) == ON
    }

    /// The state of a CPU, on its own thread or while all CPUs stand still.
    #[inline]
    #[allow(clippy::mut_from_ref)] // see the promise above
    fn cpu(&self, number: usize) -> &mut Cpu {
        // SAFETY: only the CPU's own thread comes here, never twice at a time: callbacks do not nest.
        unsafe { &mut *self.cpus[number].cpu.get() }
    }

    /// A CPU's instructions since its last look, and the flag.
    #[inline]
    #[allow(clippy::mut_from_ref)] // see the promise above
    fn count(&self, number: usize) -> &mut u64 {
        let count = self.cpus[number].count.load(Ordering::Relaxed);
        // SAFETY: the scoreboard has an entry for each CPU, which its own thread alone uses, and it does not
        // move once all CPUs are there.
        unsafe { &mut *count }
    }

    #[inline]
    fn losses(&self, number: usize) -> u32 {
        self.cpus[number].losses.load(Ordering::Relaxed)
    }

    /// Takes a CPU's instructions into its time.
    #[inline]
    fn settle(&self, number: usize, cpu: &mut Cpu) {
        let count = self.count(number);
        self.model.settle(cpu, *count & (WAITS - 1));
        *count = 0;
    }

    /// Leaves a mark that blocks have to be looked at, if a load is on its way.
    #[inline]
    fn mark(&self, number: usize, cpu: &Cpu) {
        *self.count(number) = if cpu.flow.waits() { WAITS } else { 0 };
    }

    /// The time for the thread that asks: its CPU's, or the latest that anybody was told.
    fn now_ps(&self) -> u64 {
        match CPU.get() {
            Some(number) if !self.cpus[number].idles.load(Ordering::Relaxed) => {
                let count = *self.count(number) & (WAITS - 1);
                self.model.clock.reach(self.model.time_ps(self.cpu(number), count))
            }
            _ => self.model.clock.now_ps(),
        }
    }

    /// Lets timers run that are due.
    fn timers(&self) {
        let now_ps = self.model.clock.now_ps();
        let due_ps = self.timers_ps.load(Ordering::Relaxed);
        if now_ps < due_ps
            || self
                .timers_ps
                .compare_exchange(due_ps, now_ps + TIMERS_PS, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        // SAFETY: any thread may ask.
        let left_ns = unsafe { (self.qemu.qemu_clock_deadline_ns_all)(qemu::VIRTUAL, -1) };
        if left_ns == 0 {
            // SAFETY: any thread may say so.
            unsafe { (self.qemu.qemu_clock_notify)(qemu::VIRTUAL) };
            self.await_timers();
        }
    }

    /// Waits until QEMU's main thread has run the timers that are due: no time passes for a CPU meanwhile.
    #[cold]
    fn await_timers(&self) {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_micros(20));
            // SAFETY: any thread may ask.
            if unsafe { (self.qemu.qemu_clock_deadline_ns_all)(qemu::VIRTUAL, -1) } != 0 {
                return;
            }
        }
    }

    fn register(&self) {
        // SAFETY (all): the identity is this plugin's, and the functions live as long as QEMU.
        let (qemu, id) = (&self.qemu, self.id);
        // SAFETY: as above.
        unsafe { (qemu.qemu_plugin_register_vcpu_idle_cb)(id, on_idle) };
        // SAFETY: as above.
        unsafe { (qemu.qemu_plugin_register_vcpu_resume_cb)(id, on_resume) };
        if self.on() {
            // SAFETY: as above.
            unsafe { (qemu.qemu_plugin_register_flush_cb)(id, on_flush) };
            // SAFETY: as above.
            unsafe { (qemu.qemu_plugin_register_vcpu_tb_trans_cb)(id, on_translation) };
        } else {
            // SAFETY: as above.
            unsafe { (qemu.qemu_plugin_register_vcpu_init_cb)(id, on_cpu) };
        }
    }

    /// Has the model begin, once a CPU pauses.
    fn begin(&self) -> String {
        match self.clocks.get() {
            Some(Ok(())) => {}
            Some(Err(why)) => return (*why).to_owned(),
            None => return "the guest has no CPU yet".to_owned(),
        }
        self.stage.store(WANTED, Ordering::SeqCst);
        let (begun, changed) = &self.begun;
        let guard = begun.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = Duration::from_secs(50);
        let result = changed.wait_timeout_while(guard, limit, |begun| !*begun);
        let begun = *result.unwrap_or_else(PoisonError::into_inner).0;
        if begun { "begun".into() } else { "no CPU of the guest came to a pause".into() }
    }

    fn answer(&self, line: &str) -> String {
        match line {
            "begin" => self.begin(),
            "trace" => match &self.tracing {
                Some(Tracing { tracer, registers, .. }) if matches!(registers.get(), Some(Some(_))) => {
                    tracer.lock().unwrap_or_else(PoisonError::into_inner).begin();
                    "tracing".to_owned()
                }
                Some(_) => "this QEMU does not tell the registers that a trace needs".to_owned(),
                None => "no trace was asked for".to_owned(),
            },
            "report" => match self.report().map(|report| serde_json::to_string(&report)) {
                Some(Ok(report)) => report,
                Some(Err(error)) => error.to_string(),
                None => "the model has not begun".to_owned(),
            },
            _ => format!("'{line}' is no request"),
        }
    }

    fn report(&self) -> Option<Report> {
        let mut report = self.model.report()?;
        report.trace = self
            .tracing
            .as_ref()
            .map(|tracing| tracing.tracer.lock().unwrap_or_else(PoisonError::into_inner).finish());
        Some(report)
    }

    /// Skips the time in which all CPUs idle.
    fn skip_idle_time(&self) {
        let (lock, changed) = &self.all_idle;
        loop {
            let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let asleep = |(): &mut ()| !self.on() || self.model.clock.any_runs();
            let waited = changed.wait_timeout_while(guard, PATIENCE, asleep);
            let (guard, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(guard);
            if waited.timed_out() {
                // Nobody else is there to notice an interrupt that woke no CPU.
                if self.on() && self.model.clock.waits_for_woken() {
                    self.model.clock.give_up_woken();
                }
                continue;
            }
            // Interrupts of devices, which take no modelled time, are on their way for a moment.
            std::thread::sleep(Duration::from_micros(50));
            if self.model.clock.any_runs() {
                continue;
            }
            // SAFETY: any thread may ask.
            let left_ns = unsafe { (self.qemu.qemu_clock_deadline_ns_all)(qemu::VIRTUAL, -1) };
            let step_ns = if left_ns < 0 { IDLE_STEP_NS } else { left_ns.min(IDLE_STEP_NS) };
            self.model.clock.reach(self.model.clock.now_ps() + step_ns as u64 * 1000);
            // SAFETY: any thread may say so.
            unsafe { (self.qemu.qemu_clock_notify)(qemu::VIRTUAL) };
            std::thread::sleep(Duration::from_nanos(step_ns as u64) / IDLE_SPEED);
        }
    }

    #[cold]
    fn look(&self, number: usize, info: MemoryInfo, address: u64, kind: Kind, site: &Site) {
        let cpu = self.cpu(number);
        // SAFETY: this is a memory callback, with the callback's own information.
        let place = unsafe { (self.qemu.qemu_plugin_get_hwaddr)(info, address) };
        if place.is_null() {
            return;
        }
        // SAFETY: `place` is QEMU's answer of just now.
        if unsafe { (self.qemu.qemu_plugin_hwaddr_is_io)(place) } {
            return;
        }
        // SAFETY: `place` is memory, by QEMU's answer of just now.
        let physical = unsafe { (self.qemu.qemu_plugin_hwaddr_phys_addr)(place) };
        self.settle(number, cpu);
        let losses = |other: usize| &self.cpus[other].losses;
        let request =
            Request { kind, physical, virtual_address: address, block: site.block, access: &site.access };
        let outcome = self.model.access(losses, number, cpu, request);
        if let (Some(tracing), Some(outcome)) = (&self.tracing, outcome) {
            tracing.access(self, number, address, kind, outcome);
        }
        self.mark(number, cpu);
        self.model.meet(number, cpu);
        self.timers();
    }
}

extern "C" fn clock() -> i64 {
    let plugin = plugin();
    if !plugin.on() {
        // SAFETY: any thread may ask.
        return unsafe { (plugin.qemu.cpu_get_clock)() };
    }
    (plugin.now_ps() / 1000) as i64
}

/// A CPU gets an interrupt, of another CPU or of a device, under QEMU's lock.
extern "C" fn on_interrupt(cpu: *mut c_void, mask: c_int) {
    let plugin = plugin();
    if plugin.on() && mask & qemu::WAKING != 0 {
        let at = plugin.cpus.iter().position(|slot| slot.of_qemu.load(Ordering::Relaxed) == cpu);
        if let Some(number) = at.filter(|&number| plugin.cpus[number].idles.load(Ordering::Relaxed)) {
            plugin.model.clock.interrupt(number, plugin.now_ps());
        }
    }
    // SAFETY: the function whose place this one has, with its own arguments.
    unsafe { (plugin.qemu.tcg_handle_interrupt)(cpu, mask) };
}

extern "C" fn on_cpu(_: Id, number: c_uint) {
    let (plugin, number) = (plugin(), number as usize);
    CPU.set(Some(number));
    plugin.clocks.get_or_init(|| qemu::replace_clocks(&plugin.qemu, clock, on_interrupt));
    if let Some(tracing) = &plugin.tracing {
        tracing.registers.get_or_init(|| Tracing::find_registers(&plugin.qemu));
    }
}

extern "C" fn on_idle(_: Id, number: c_uint) {
    let (plugin, number) = (plugin(), number as usize);
    if plugin.on() {
        let cpu = plugin.cpu(number);
        plugin.settle(number, cpu);
        plugin.model.idle(number, cpu);
        plugin.cpus[number].idles.store(true, Ordering::Relaxed);
        if !plugin.model.clock.any_runs() {
            let (lock, changed) = &plugin.all_idle;
            drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
            changed.notify_one();
        }
        return;
    }
    plugin.cpus[number].idles.store(true, Ordering::Relaxed);
    if plugin.stage.load(Ordering::SeqCst) == WANTED {
        // SAFETY: this is a CPU's own thread; QEMU refuses a second request.
        unsafe { (plugin.qemu.qemu_plugin_reset)(plugin.id, on_reset) };
    }
}

extern "C" fn on_resume(_: Id, number: c_uint) {
    let (plugin, number) = (plugin(), number as usize);
    plugin.cpus[number].idles.store(false, Ordering::Relaxed);
    if plugin.on() {
        let cpu = plugin.cpu(number);
        *plugin.count(number) = 0;
        plugin.model.resume(number, cpu);
    }
}

/// QEMU has stopped all CPUs and forgotten its translations.
extern "C" fn on_reset(_: Id) {
    let plugin = plugin();
    if plugin.on() {
        return;
    }
    // SAFETY: any thread may ask.
    let now_ps = unsafe { (plugin.qemu.cpu_get_clock)() } as u64 * 1000;
    plugin.model.begin(now_ps);
    for (number, slot) in plugin.cpus.iter().enumerate() {
        // SAFETY: the scoreboard is this plugin's, and has an entry for each CPU, all of which are there by
        // now.
        let count = unsafe { (plugin.qemu.qemu_plugin_scoreboard_find)(plugin.counts, number as c_uint) };
        slot.count.store(count.cast(), Ordering::Relaxed);
        // SAFETY: any thread may ask while no CPU comes or goes.
        slot.of_qemu.store(unsafe { (plugin.qemu.qemu_get_cpu)(number as c_int) }, Ordering::Relaxed);
        *plugin.count(number) = 0;
        if !slot.idles.load(Ordering::Relaxed) {
            plugin.model.resume(number, plugin.cpu(number));
        }
    }
    plugin.stage.store(ON, Ordering::SeqCst);
    plugin.register();
    let (begun, changed) = &plugin.begun;
    *begun.lock().unwrap_or_else(PoisonError::into_inner) = true;
    changed.notify_all();
}

/// QEMU forgets its translations, with all CPUs stopped.
extern "C" fn on_flush(_: Id) {
    let plugin = plugin();
    for number in 0..plugin.cpus.len() {
        plugin.cpu(number).flow.forget();
    }
    plugin.blocks.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

extern "C" fn on_translation(_: Id, block: *mut c_void) {
    let plugin = plugin();
    let qemu = &plugin.qemu;
    // SAFETY: QEMU's block, in the callback that it is for.
    let length = unsafe { (qemu.qemu_plugin_tb_n_insns)(block) };
    let mut instructions = Vec::with_capacity(length);
    let mut bytes = Vec::with_capacity(length);
    // No single instruction counts if accesses take no time.
    for index in 0..if plugin.model.memory { length } else { 0 } {
        // SAFETY: QEMU's block, and an instruction that it has.
        let instruction = unsafe { (qemu.qemu_plugin_tb_get_insn)(block, index) };
        let mut text = [0; 16];
        // SAFETY: QEMU copies as much as there is room for.
        let size = unsafe { (qemu.qemu_plugin_insn_data)(instruction, text.as_mut_ptr(), text.len()) };
        instructions.push(instruction);
        bytes.push((text, size.min(text.len())));
    }
    let flow = Block::of(bytes.iter().map(|(text, size)| &text[..*size]));
    let mut translation = Box::new(Translation { block: flow, sites: Vec::new() });
    let own = &raw const translation.block;
    translation.sites =
        translation.block.accesses.iter().map(|&access| Site { block: own, access }).collect();
    if let Some(tracing) = &plugin.tracing {
        // SAFETY: QEMU's block, in the callback that it is for.
        let is_users = unsafe { (qemu.qemu_plugin_tb_vaddr)(block) } >> 63 == 0;
        let text = bytes.iter().map(|(text, size)| &text[..*size]);
        let code: Vec<_> = instructions.iter().copied().zip(text).collect();
        tracing.follow(qemu, block, is_users, &code);
    }
    let counts = Entry { scoreboard: plugin.counts, offset: 0 };
    // SAFETY: QEMU's block in its callback, and this plugin's scoreboard.
    unsafe {
        (qemu.qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu)(block, qemu::ADD, counts, length as u64);
    };
    let data = own.cast_mut().cast();
    // SAFETY: the same; the data lives until QEMU forgets the block (`on_flush`).
    unsafe {
        (qemu.qemu_plugin_register_vcpu_tb_exec_cond_cb)(
            block,
            on_block,
            qemu::NO_REGISTERS,
            qemu::AT_LEAST,
            counts,
            LOOK,
            data,
        );
    }
    for (&instruction, site) in instructions.iter().zip(&translation.sites) {
        let data = ptr::from_ref(site).cast_mut().cast();
        for (function, which) in [(on_read as qemu::OnMemory, qemu::READS), (on_write, qemu::WRITES)] {
            // SAFETY: QEMU's instruction in its block's callback; the data lives as long as the block.
            unsafe {
                (qemu.qemu_plugin_register_vcpu_mem_cb)(
                    instruction,
                    function,
                    qemu::NO_REGISTERS,
                    which,
                    data,
                );
            }
        }
    }
    plugin.blocks.lock().unwrap_or_else(PoisonError::into_inner).push(translation);
}

extern "C" fn on_block(number: c_uint, block: *mut c_void) {
    let (plugin, number) = (plugin(), number as usize);
    let cpu = plugin.cpu(number);
    plugin.settle(number, cpu);
    if cpu.flow.waits() {
        // SAFETY: a block that a CPU is in, or was in last, is kept until QEMU has stopped all CPUs.
        let left = unsafe { cpu.flow.block().as_ref() };
        cpu.flow.enter(left, block.cast_const().cast(), cpu.ps);
    }
    plugin.mark(number, cpu);
    plugin.model.meet(number, cpu);
    plugin.timers();
}

extern "C" fn on_read(number: c_uint, info: MemoryInfo, address: u64, site: *mut c_void) {
    let (plugin, number) = (plugin(), number as usize);
    // SAFETY: the data that this plugin registered for the instruction.
    let site = unsafe { &*site.cast_const().cast::<Site>() };
    let cpu = plugin.cpu(number);
    if cpu.filter.reads(plugin.model.line(address), plugin.losses(number)) {
        if cpu.flow.waits() {
            let ps = cpu.flow.ready_ps(site.access.address);
            cpu.flow.load(site.block, &site.access, ps);
        }
        return;
    }
    if !site.access.atomic {
        plugin.look(number, info, address, Kind::Read, site);
    }
}

extern "C" fn on_write(number: c_uint, info: MemoryInfo, address: u64, site: *mut c_void) {
    let (plugin, number) = (plugin(), number as usize);
    // SAFETY: the data that this plugin registered for the instruction.
    let site = unsafe { &*site.cast_const().cast::<Site>() };
    if site.access.atomic {
        plugin.look(number, info, address, Kind::Atomic, site);
    } else if !plugin.cpu(number).filter.writes(plugin.model.line(address), plugin.losses(number)) {
        plugin.look(number, info, address, Kind::Write, site);
    }
}

/// Prepares the model. QEMU prints what goes wrong and ends.
fn install(id: Id, settings: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(settings).map_err(|error| format!("{settings}: {error}"))?;
    let settings: Settings = serde_json::from_str(&text).map_err(|error| format!("{settings}: {error}"))?;
    let qemu = Qemu::find().map_err(|name| format!("this QEMU has no {name}"))?;
    let model = Model::new(&settings)?;
    // SAFETY: any size is allowed.
    let counts = unsafe { (qemu.qemu_plugin_scoreboard_new)(size_of::<u64>()) };
    let tracing = match &settings.trace {
        Some(trace) => {
            let tracer = Tracer::new(&trace.file, trace.limit_bytes, settings.cpus.iter().sum());
            let tracer = tracer.map_err(|error| format!("{}: {error}", trace.file.display()))?;
            // SAFETY: any size is allowed.
            let scoreboard = unsafe { (qemu.qemu_plugin_scoreboard_new)(size_of::<Mode>()) };
            Some(Tracing { tracer: Mutex::new(tracer), modes: scoreboard, registers: OnceLock::new() })
        }
        None => None,
    };
    let slot = || Slot {
        cpu: UnsafeCell::new(Cpu::new()),
        count: AtomicPtr::default(),
        idles: AtomicBool::new(false),
        of_qemu: AtomicPtr::default(),
        losses: AtomicU32::new(0),
    };
    let plugin = Plugin {
        qemu,
        id,
        model,
        cpus: std::iter::repeat_with(slot).take(settings.cpus.iter().sum()).collect(),
        counts,
        stage: AtomicU8::new(OFF),
        begun: (Mutex::new(false), Condvar::new()),
        blocks: Mutex::new(Vec::new()),
        timers_ps: AtomicU64::new(0),
        tracing,
        clocks: OnceLock::new(),
        all_idle: (Mutex::new(()), Condvar::new()),
    };
    // Kept for as long as the process runs.
    let plugin: &'static Plugin = Box::leak(Box::new(plugin));
    PLUGIN.store(ptr::from_ref(plugin).cast_mut(), Ordering::Relaxed);
    plugin.register();
    serve(plugin, &settings.socket).map_err(|error| format!("{}: {error}", settings.socket.display()))
}

fn serve(plugin: &'static Plugin, socket: &Path) -> std::io::Result<()> {
    std::thread::Builder::new().name("model-idle".into()).spawn(|| plugin.skip_idle_time())?;
    control::serve(socket, |line| plugin.answer(line))
}

/// Called by QEMU when it loads the plugin: `settings=FILE`.
///
/// # Safety
/// QEMU's promise: `arguments` are `count` texts that end in 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    _: *const c_void,
    count: c_int,
    arguments: *const *const c_char,
) -> c_int {
    let mut arguments = (0..usize::try_from(count).unwrap_or(0)).filter_map(|index| {
        // SAFETY: QEMU's promise.
        let argument = unsafe { arguments.add(index) };
        // SAFETY: QEMU's promise.
        let argument = unsafe { *argument };
        // SAFETY: QEMU's promise.
        unsafe { CStr::from_ptr(argument) }.to_str().ok()
    });
    let settings = arguments.find_map(|argument| argument.strip_prefix("settings="));
    let result =
        settings.ok_or_else(|| "settings=FILE is missing".to_owned()).and_then(|file| install(id, file));
    match result {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("nodewise-model: {message}");
            1
        }
    }
}
