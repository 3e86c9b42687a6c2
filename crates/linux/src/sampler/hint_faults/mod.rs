//! Sampling without a PMU: the kernel's NUMA balancing takes pages' mappings away, and the page-fault event
//! tells who comes back for them.
//!
//! A page gives one sample for each of the kernel's scans, however often it is used: samples say who, not how
//! much. The kernel also migrates on these faults by its own rules; the machine counts that apart, and asks
//! where pages are before it believes anything.

use super::page_fault_event::{PageFaultEvents, Source};
use super::{Interval, Sampler};
use crate::sampler::RawSample;
use crate::settings::{BALANCING, KNOBS, SharedSettings};
use crate::{Error, ErrorKind};
use nodewise_engine::{Pid, SamplingRate};
use nodewise_sys::perf::Losses;
use nodewise_topology::Topology;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A pass over a program's memory while pages are being placed, to begin with: half the kernel's own default
/// rate. Every fault is also a chance for the kernel to move the page; few samples suffice, since decisions
/// are about regions.
const PASS: Duration = Duration::from_secs(2);
/// The fastest pass that is asked for. The kernel itself never marks more than 2560 MB/s, and lets a thread
/// run 32 times as long as it scanned.
const PASS_MIN: Duration = Duration::from_millis(100);
/// The shortest pass while there is little to do, which leaves well-placed programs alone and the kernel few
/// chances to move what was just interleaved. A thread that changes its node is still scanned anew at once.
const PASS_CHEAP: Duration = Duration::from_secs(60);
/// And the longest.
const PASS_CHEAP_MAX: Duration = Duration::from_secs(600);
/// Samples in a second that show a change while there is little to do: a larger program's pass takes longer.
const ENOUGH_CHEAP_PER_S: f64 = 50.0;
/// How long samples are counted before a cheap pass that gives four times as many is doubled. The first such
/// time of a rest does not count: pages that were marked before it are still being touched.
const CHEAP_JUDGED: Duration = Duration::from_secs(10);

/// How much the kernel marks at once while pages are being placed: its own default. Its scan period is the
/// knob over the number of such portions in resident memory (`kernel/sched/fair.c`, Linux 6.1 to 6.12,
/// `task_scan_min`), so that the knob is the time of a pass over all memory.
///
/// Since Linux 6.7 a pass takes longer: mappings that the scanning thread did not use for four to eight
/// seconds (`vma_is_accessed`) are left out, and marked one a period once all others are, and only then does
/// the next pass begin (`task_numa_work`, commit f169c62ff7cd). How many these are is measured, by the number
/// of the pass.
const PORTION_MB: u64 = 256;
/// The least time from one such portion to the next: the kernel marks no more than 2560 MB/s
/// (`MAX_SCAN_WINDOW`).
const PORTION_TIME: Duration = Duration::from_millis(100);
/// So many writable mappings has a small program, until it is known.
const MAPPINGS: u64 = 20;
/// At least this share of mappings is taken for left out, since who scans is chance. A thread heeds another
/// period only with the first fault of the next pass, which is far off where this one is too long. All are
/// taken for it at first, so that huge pages soon have samples enough. Two passes end the burst of others.
const LEFT_OUT: f64 = 0.25;
/// The first kernel that marks those one a period.
const LEAVES_OUT_SINCE: (u32, u32) = (6, 7);

/// And while there is little to do. Marked whole, a small program falls into a burst of faults that the
/// kernel answers with a burst of migrations, to whoever runs just then; little by little, samples come
/// evenly. The next portion, then as large as above, ends the memory's part of the pass, and only with the
/// pass does the kernel heed a shorter period (`task_numa_placement`): so sampling becomes eager
/// after the left-out mappings.
///
/// Nor does it heed a longer one before, and marks small portions as often as it marked large ones, until
/// they have made a pass. So where the kernel moves next to nothing, sampling ends with a pass in large
/// portions, whose period is already that between small ones.
const PORTION_CHEAP_MB: u64 = 4;
/// But at least so many of them in a pass, as small as a small program's must be, lest they come so seldom
/// that a change is long unseen.
const PORTIONS_CHEAP: u64 = 64;
/// So many pages moved, for each sample of the last intervals, are next to nothing.
const NEXT_TO_NOTHING: f64 = 0.05;
/// So many passes are waited for that last one, which idle threads do not make.
const LAST_PASSES: u32 = 4;

/// So many scans end before memory of several portions gets rest. The kernel goes by address, and the first
/// of a large program's memory may be all that is well placed.
const PASSES_BEFORE_REST: u64 = 2;
/// A process whose pass has lasted so long sleeps, and is waited for no longer: the kernel scans who runs.
/// One that takes longer by its size has twice that time.
const NEVER_SCANNED: Duration = Duration::from_secs(60);

/// Where balancing was on before, a thread heeds our period after the pass under way. Five more show which
/// nodes use a page. If the first ends at rest, the rest ends, too, until these are over.
const OLD_PASSES: u64 = 6;
/// A pass at the old pace that has lasted so long is that of a process that sleeps.
const OLD_PASS_MOST: Duration = Duration::from_secs(300);

/// While pages are being placed, passes become faster until so many samples come in a second: memory in huge
/// pages gives one for 2 MiB a pass. They become slower again, up to `PASS`, where that gives more than twice
/// as many.
///
/// `scan_delay_ms` stays as it is: since Linux 6.7 the kernel remembers for four to eight times that long
/// which threads faulted in a mapping, and scans it for no others (`vma_is_accessed`), so that a short delay
/// makes it stop scanning.
const ENOUGH_PER_S: f64 = 500.0;

/// So many passes tell how many samples one gives, however soon they have ended.
const PASSES_JUDGED: u64 = 2;

/// So long is an owner of the settings waited for that has balancing switched off: several of its intervals.
const ANSWER: Duration = Duration::from_secs(5);

/// How much is marked at once, and both ends of the scan period.
const KNOB_NAMES: [&str; 3] = ["scan_size_mb", "scan_period_min_ms", "scan_period_max_ms"];

/// Samples page accesses through NUMA hint faults.
///
/// The kernel marks pages for the whole machine. Where another Nodewise owns its settings, that one marks as
/// eagerly as the most eager of all wishes.
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub struct HintFaults {
    events: Option<PageFaultEvents>,
    /// The kind of the events, and what they tell.
    event: &'static str,
    settings: SharedSettings,
    /// `/proc/sys/kernel/numa_balancing`
    balancing: PathBuf,
    /// `/sys/kernel/debug/sched/numa_balancing`, where we can write there.
    knobs: Option<PathBuf>,
    losses: Losses,
    rate: SamplingRate,
    /// A pass at the accurate rate.
    pass: Duration,
    /// And at the cheap rate.
    cheap_pass: Duration,
    /// Samples since the pass was last judged, how long that is, and how many passes ended meanwhile.
    recent: (u64, Duration, u64),
    /// Whether the cheap rate has lasted for longer than the first judgement.
    rested: bool,
    /// Samples of an accurate pass.
    in_pass: f64,
    /// Samples of the last pass before rest, and for how long it has been waited for.
    last_pass: Option<(u64, Duration)>,
    /// Scans of the largest process that ended at the accurate rate, and the rate to take after enough.
    passes: u64,
    wished: SamplingRate,
    /// Resident pages of the largest process.
    largest_pages: u64,
    /// Its writable mappings, and how many of them take a period each.
    mappings: u64,
    left_out: f64,
    /// The least share of them that is taken for it.
    least_left_out: f64,
    /// Which process that is, the number of its pass, and how long this pass has lasted.
    scan_sequence: Option<(Pid, u64, Duration)>,
    /// Samples of the last intervals, and pages that the kernel moved meanwhile, fading.
    lately: (f64, f64),
    /// Whether another Nodewise asks for samples, for whom there is no rest.
    requested: bool,
    /// Whether we have switched balancing off for a while.
    paused: bool,
    /// Whether somebody has switched balancing off meanwhile.
    switched_off: bool,
    /// How many passes have yet to end until samples come at the sampler's pace.
    old_passes: u64,
}

/// Whether a kernel leaves mappings out of a pass until all others are marked. One that says nothing is new.
fn leaves_out(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(u32::MAX), numbers.next().unwrap_or(0)) >= LEAVES_OUT_SINCE
}

/// Whether the knobs can be set. Under lockdown (`kernel_lockdown(7)`) the kernel refuses that even to root.
fn are_writable(knobs: &Path) -> bool {
    KNOB_NAMES.iter().all(|name| fs::OpenOptions::new().write(true).open(knobs.join(name)).is_ok())
}

impl HintFaults {
    /// Switches balancing on if it is off, opens the events and starts sampling at the accurate rate.
    pub fn open(topology: &Topology, settings: SharedSettings) -> Result<Self, Error> {
        let (balancing, knobs) = (PathBuf::from(BALANCING), PathBuf::from(KNOBS));
        let mut sampler = Self::closed(settings, balancing, None);
        sampler.old_passes = if sampler.mode()? & 1 == 1 { OLD_PASSES } else { 0 };
        sampler.switch_on()?;
        sampler.knobs = Some(knobs).filter(|knobs| are_writable(knobs));
        let events = match PageFaultEvents::open(topology, Source::best()) {
            // The tracepoint needs more rights than the software event.
            Err(e) if e.kind() == ErrorKind::NotPermitted => {
                PageFaultEvents::open(topology, Source::Software)?
            }
            other => other?,
        };
        sampler.event = match events.source() {
            Source::Tracepoint { .. } => "exceptions:page_fault_user, tells reads from writes",
            Source::Software | Source::Called { .. } => "page-faults, does not tell reads from writes",
        };
        sampler.events = Some(events);
        sampler.set_rate(SamplingRate::Accurate)?;
        Ok(sampler)
    }

    /// With these files, and without events.
    fn closed(settings: SharedSettings, balancing: PathBuf, knobs: Option<PathBuf>) -> Self {
        let release = fs::read_to_string(balancing.with_file_name("osrelease")).unwrap_or_default();
        let least_left_out = if leaves_out(&release) { LEFT_OUT } else { 0.0 };
        Self {
            events: None,
            event: "",
            settings,
            balancing,
            knobs,
            losses: Losses::default(),
            rate: SamplingRate::Accurate,
            pass: PASS,
            cheap_pass: PASS_CHEAP,
            recent: Default::default(),
            rested: false,
            in_pass: 0.0,
            last_pass: None,
            passes: 0,
            wished: SamplingRate::Accurate,
            largest_pages: 0,
            mappings: MAPPINGS,
            left_out: if least_left_out > 0.0 { MAPPINGS as f64 } else { 0.0 },
            least_left_out,
            scan_sequence: None,
            lately: (0.0, 0.0),
            requested: false,
            paused: false,
            switched_off: false,
            old_passes: 0,
        }
    }

    /// Bit 0 is balancing between nodes; bit 1, tiering, does not mark pages of ordinary memory
    /// (`include/linux/sched/sysctl.h`).
    fn switch_on(&mut self) -> Result<(), Error> {
        let mode = self.mode()?;
        if mode & 1 == 1 {
            return Ok(());
        }
        let cannot = "NUMA balancing is off and cannot be switched on; run as root, or: sysctl kernel.numa_balancing=1";
        self.settings
            .set(&self.balancing, &(mode | 1).to_string())
            .map_err(|e| Error::with_source(e.kind(), cannot, e))?;
        if let Some(why) = self.settings.barred() {
            return Err(Error::new(ErrorKind::NotPermitted, format!("{cannot} ({why})")));
        }
        if !self.settings.is_owner() && !self.is_switched_on_by_owner()? {
            let message = "NUMA balancing is off and another Nodewise owns the kernel's settings";
            return Err(Error::new(ErrorKind::NotPermitted, message));
        }
        Ok(())
    }

    /// Whether another Nodewise owns the settings.
    fn is_guest(&self) -> bool {
        !self.settings.is_owner() && self.settings.barred().is_none()
    }

    /// Asks the owner of the settings, and waits for it.
    fn is_switched_on_by_owner(&self) -> Result<bool, Error> {
        let begin = Instant::now();
        while begin.elapsed() < ANSWER {
            self.settings.request_samples(true);
            std::thread::sleep(Duration::from_millis(50));
            if self.mode()? & 1 == 1 {
                return Ok(true);
            }
        }
        self.settings.request_samples(false);
        Ok(false)
    }

    /// Rests while nobody wants samples, and takes the settings over when their owner has ended.
    fn share(&mut self) -> Result<(), Error> {
        if self.settings.is_owner() {
            let requested = self.settings.are_samples_requested();
            if requested != self.requested {
                self.requested = requested;
                // Our own processes' samples say nothing of theirs.
                if self.wished != SamplingRate::Accurate {
                    self.pass = PASS;
                }
                self.set_rate(self.wished).inspect_err(|_| self.requested = !requested)?;
            }
        } else if self.settings.take_over() {
            // If that fails there are no samples, as if somebody else had switched it off.
            let _ = self.switch_on();
            self.set_rate(self.wished)?;
        } else if self.is_guest() {
            self.settings.request_samples(self.rate == SamplingRate::Accurate);
        }
        Ok(())
    }

    /// Switches balancing off for a while, or on again: what is marked less often is still marked. Where
    /// somebody else has switched it off it stays off.
    fn pause(&mut self, pause: bool) -> Result<(), Error> {
        if pause == self.paused || (pause && !self.settings.is_owner()) {
            return Ok(());
        }
        let mode = self.mode()?;
        if (mode & 1 == 1) == pause {
            self.settings.set(&self.balancing, &(mode ^ 1).to_string())?;
            self.paused = pause;
        } else if !pause {
            self.paused = false;
        }
        Ok(())
    }

    fn mode(&self) -> Result<u32, Error> {
        match fs::read_to_string(&self.balancing) {
            Ok(text) => text.trim().parse().map_err(|_| Error::malformed(&self.balancing, 1, "a number")),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let message =
                    "this kernel has no NUMA balancing (CONFIG_NUMA_BALANCING), so there are no hint faults";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
            Err(e) => Err(Error::file(&self.balancing, "read", e)),
        }
    }

    /// Sets the scan period, and how much is marked at once.
    fn tell_kernel(&mut self) -> Result<(), Error> {
        let portion_mb = match self.rate {
            // Before rest as long between portions as it will be, but that there are fewer in a pass.
            SamplingRate::Cheap | SamplingRate::Paused if self.last_pass.is_some() => PORTION_MB,
            _ => self.portion_mb(),
        };
        let knob = (self.period() * self.portions(portion_mb)).as_millis().max(1);
        let (portion, period) = (portion_mb.to_string(), knob.to_string());
        // Both ends the same: the period is not to adapt by the kernel's rules.
        for (name, value) in KNOB_NAMES.into_iter().zip([&portion, &period, &period]) {
            if let Some(path) = self.knob(name) {
                self.settings.set(&path, value)?;
            }
        }
        Ok(())
    }

    /// How much is marked at once.
    fn portion_mb(&self) -> u64 {
        match self.rate {
            SamplingRate::Accurate => PORTION_MB,
            SamplingRate::Cheap | SamplingRate::Paused => {
                (self.largest_pages / (PORTIONS_CHEAP << 20 >> 12)).clamp(1, PORTION_CHEAP_MB)
            }
        }
    }

    /// How many portions of such a size the largest process has.
    fn portions(&self, mb: u64) -> u32 {
        u32::try_from(self.largest_pages.div_ceil(mb << 20 >> 12).max(1)).unwrap_or(u32::MAX)
    }

    /// The time of a pass from portion to portion.
    fn period(&self) -> Duration {
        self.pass().div_f64(f64::from(self.portions(self.portion_mb())) + self.left_out)
    }

    /// Measures how many mappings are left out, by the passes that there were.
    fn count_left_out(&mut self, interval: &Interval) {
        self.mappings = interval.writable_mappings.unwrap_or(self.mappings);
        if let Some((pid, sequence)) = interval.scan_sequence {
            let same = self.scan_sequence.filter(|&(before, ..)| before == pid);
            self.passes = if same.is_some() { self.passes } else { 0 };
            // One that has just begun has no old pace, and nobody counts the passes of one after another.
            if same.is_none() && (sequence <= 1 || self.scan_sequence.is_some()) {
                self.old_passes = 0;
            }
            let (_, before, lasted) = same.unwrap_or((pid, sequence, Duration::ZERO));
            let lasted = lasted + interval.duration;
            let passes = sequence.saturating_sub(before);
            self.passes += passes;
            self.old_passes = self.old_passes.saturating_sub(passes);
            let periods = lasted.as_secs_f64() / self.period().max(PORTION_TIME).as_secs_f64();
            let left_out = periods / passes.max(1) as f64 - f64::from(self.portions(PORTION_MB));
            if passes > 0 || left_out > self.left_out {
                self.left_out = left_out;
            }
            self.scan_sequence = Some((pid, sequence, if passes > 0 { Duration::ZERO } else { lasted }));
        }
        // More would only have the period be shorter than the kernel's own least.
        let fastest = PASS.div_duration_f64(PORTION_TIME) * f64::from(self.portions(PORTION_MB));
        let most = self.mappings as f64;
        self.left_out = self.left_out.clamp((most * self.least_left_out).min(fastest), most);
    }

    /// Passes that end while there is rest say nothing of the next time without.
    fn pass_over(&mut self, interval: &Interval) {
        let (Some((pid, sequence)), Some((before, seen, _))) = (interval.scan_sequence, self.scan_sequence)
        else {
            return;
        };
        if pid == before {
            self.old_passes = self.old_passes.saturating_sub(sequence.saturating_sub(seen));
            self.scan_sequence = Some((pid, sequence, Duration::ZERO));
        }
    }

    /// Whether the followed process's pass may still end.
    fn may_end(&self, most: Duration) -> bool {
        let periods = f64::from(self.portions(PORTION_MB)) + self.left_out;
        let most = most.max(2 * PORTION_TIME.mul_f64(periods));
        self.scan_sequence.is_some_and(|(.., lasted)| lasted < most)
    }

    /// Whether rest is wished for between the end of the pass under way at first, at the old pace, and that
    /// of enough passes. A pause is wished for only where most memory has been judged, by whatever pace.
    fn is_half_way(&self) -> bool {
        self.wished == SamplingRate::Cheap
            && (1..OLD_PASSES).contains(&self.old_passes)
            && self.may_end(OLD_PASS_MOST)
    }

    fn moves_little(&self) -> bool {
        let (samples, moved) = self.lately;
        moved <= NEXT_TO_NOTHING * samples
    }

    fn knob(&self, name: &str) -> Option<PathBuf> {
        self.knobs.as_deref().map(|directory: &Path| directory.join(name))
    }
}

impl Sampler for HintFaults {
    fn name(&self) -> &'static str {
        "hint-faults"
    }

    fn description(&self) -> String {
        let scan = match &self.knobs {
            Some(_) if self.settings.is_owner() => "scan rate tuned",
            Some(_) if self.settings.barred().is_some() => {
                "scan rate the kernel's own (it could not be put back)"
            }
            Some(_) => "scan rate left to another Nodewise",
            None => "scan rate the kernel's own (debugfs is not accessible)",
        };
        let off = if self.switched_off { "; NUMA balancing was switched off meanwhile" } else { "" };
        format!("{}; {scan}{off}", self.event)
    }

    fn is_proportional(&self) -> bool {
        false
    }

    /// CPUs come and go; their threads need not be followed.
    fn follow(&mut self, _pids: &mut dyn Iterator<Item = Pid>) {
        if let Some(events) = &mut self.events {
            events.follow();
        }
    }

    fn drain(&mut self, keep: &dyn Fn(Pid) -> bool, into: &mut Vec<RawSample>) {
        // Another Nodewise that begins waits for an answer, and rounds may be far apart.
        if self.paused && self.settings.is_owner() {
            // The next round says why if it fails.
            let _ = self.share();
        }
        if let Some(events) = &mut self.events {
            events.drain(keep, into);
        }
    }

    fn losses(&self) -> Losses {
        self.events.as_ref().map_or(self.losses, PageFaultEvents::losses)
    }

    fn set_rate(&mut self, rate: SamplingRate) -> Result<(), Error> {
        let in_portions = self.may_end(NEVER_SCANNED) && self.portions(PORTION_MB) > 1;
        let is_young = in_portions && self.passes < PASSES_BEFORE_REST;
        self.wished = rate;
        let goes_on = self.is_half_way();
        let rate = if self.requested || goes_on { SamplingRate::Accurate } else { rate };
        let rests = self.rate == SamplingRate::Accurate && rate != SamplingRate::Accurate;
        if (rests && is_young) || (goes_on && self.rate == rate) {
            return Ok(());
        }
        self.pause(rate == SamplingRate::Paused)?;
        if (rate == SamplingRate::Accurate) != (self.rate == SamplingRate::Accurate) {
            (self.rested, self.passes) = (false, 0);
            let rests = rate != SamplingRate::Accurate;
            self.last_pass = (rests && self.moves_little()).then_some((0, Duration::ZERO));
        }
        self.rate = rate;
        self.recent = Default::default();
        self.tell_kernel()?;
        if self.is_guest() {
            self.settings.request_samples(rate == SamplingRate::Accurate);
        }
        Ok(())
    }

    fn adapt(&mut self, interval: &Interval) -> Result<(), Error> {
        self.share()?;
        let old_passes = self.old_passes;
        if self.rate != SamplingRate::Accurate {
            self.pass_over(interval);
        }
        if self.paused {
            return Ok(());
        }
        let has_ended = self.old_passes < old_passes;
        if self.rate == SamplingRate::Cheap && has_ended && self.is_half_way() {
            return self.set_rate(self.wished);
        }
        let &Interval { duration: over, samples, .. } = interval;
        let before = self.period();
        self.largest_pages = interval.largest_pages;
        let mut ended = 0;
        // At rest the passes are long.
        if self.rate == SamplingRate::Accurate {
            let passes = self.passes;
            self.count_left_out(interval);
            ended = self.passes.saturating_sub(passes);
            if self.wished != self.rate && !self.requested {
                self.set_rate(self.wished)?;
            }
        }
        let changed = before.abs_diff(self.period()) > before / 4;
        let fade = |sum: f64, now: u64| sum / 2.0 + now as f64;
        self.lately = (fade(self.lately.0, samples), fade(self.lately.1, interval.moved_by_kernel));
        if let Some((seen, waited)) = &mut self.last_pass {
            *seen += samples;
            *waited += over;
            // It began when most of its samples are there, and with it the kernel heeds the period.
            if *seen as f64 > self.in_pass / 2.0 || *waited > self.pass * LAST_PASSES {
                self.last_pass = None;
                self.recent = Default::default();
                return self.tell_kernel();
            }
            return Ok(());
        }
        if changed && self.rate == SamplingRate::Accurate {
            self.tell_kernel()?;
        }
        self.recent = (self.recent.0 + samples, self.recent.1 + over, self.recent.2 + ended);
        let (samples, over, ended) = self.recent;
        let cheap = self.rate == SamplingRate::Cheap;
        let per_s = samples as f64 / over.as_secs_f64().max(f64::MIN_POSITIVE);
        // Known from the first pass on, since little may be to do before the second.
        if !cheap {
            let passes = over.as_secs_f64() / self.pass.as_secs_f64();
            let so_far = samples as f64;
            self.in_pass = if passes < 1.0 { self.in_pass.max(so_far) } else { so_far / passes };
            let cheap_s = self.in_pass / ENOUGH_CHEAP_PER_S;
            self.cheap_pass = Duration::from_secs(cheap_s as u64).clamp(PASS_CHEAP, PASS_CHEAP_MAX);
        }
        // Samples come in bursts, one a pass or a portion, and passes can take longer than was asked for, or
        // shorter.
        if over < if cheap { CHEAP_JUDGED } else { self.pass * 2 } && ended < PASSES_JUDGED {
            return Ok(());
        }
        self.recent = Default::default();
        if cheap {
            let longer = (self.cheap_pass * 2).min(PASS_CHEAP_MAX);
            let settled = std::mem::replace(&mut self.rested, true);
            if !settled || per_s < 4.0 * ENOUGH_CHEAP_PER_S || longer == self.cheap_pass {
                return Ok(());
            }
            self.cheap_pass = longer;
            return self.tell_kernel();
        }
        if self.requested && self.wished != SamplingRate::Accurate {
            return Ok(());
        }
        let factor = per_s / ENOUGH_PER_S;
        let pass = self.pass.mul_f64(factor).clamp(PASS_MIN, PASS);
        if (0.5..=2.0).contains(&factor) || pass == self.pass {
            return Ok(());
        }
        self.pass = pass;
        self.tell_kernel()
    }

    fn pass(&self) -> Duration {
        match self.rate {
            SamplingRate::Accurate => self.pass,
            SamplingRate::Cheap | SamplingRate::Paused => self.cheap_pass,
        }
    }

    fn is_paused(&self) -> bool {
        self.paused
    }

    fn lags(&self) -> bool {
        self.old_passes > 0 && self.scan_sequence.is_some()
    }

    fn close(&mut self) -> Result<(), Error> {
        let lost = self.events.as_ref().map_or(self.losses.lost, PageFaultEvents::lost);
        self.losses = Losses { lost, ..self.losses() };
        self.events = None;
        // Another owner may have paused it, too, while we asked for nothing.
        let is_paused = self.paused || (self.is_guest() && self.rate != SamplingRate::Accurate);
        self.switched_off |= !is_paused && self.mode().is_ok_and(|mode| mode & 1 == 0);
        self.settings.request_samples(false);
        self.settings.restore()
    }
}

#[cfg(test)]
mod tests;
