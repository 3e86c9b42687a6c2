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
use std::time::Duration;

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
/// So many writable mappings has a small program, until it is known.
const MAPPINGS: u64 = 20;
/// At least one mapping in so many is taken for left out: who scans is chance, and a thread heeds another
/// period with the first fault of the next pass, so that one that is too long lasts as long as it is too
/// long.
const LEFT_OUT: u64 = 4;

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

/// Where balancing was on before, a thread heeds our period after the pass under way. Five more show which
/// nodes use a page, and there is no rest before.
const OLD_PASSES: u64 = 6;

/// While pages are being placed, passes become faster until so many samples come in a second: memory in huge
/// pages gives one for 2 MiB a pass. They become slower again, up to `PASS`, where that gives more than twice
/// as many.
///
/// `scan_delay_ms` stays as it is: since Linux 6.7 the kernel remembers for four to eight times that long
/// which threads faulted in a mapping, and scans it for no others (`vma_is_accessed`), so that a short delay
/// makes it stop scanning.
const ENOUGH_PER_S: f64 = 500.0;

/// Samples page accesses through NUMA hint faults.
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
    /// Samples since the pass was last judged, and how long that is.
    recent: (u64, Duration),
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
    /// Which process that is, the number of its pass, and how long this pass has lasted.
    scan_sequence: Option<(Pid, u64, Duration)>,
    /// Samples of the last intervals, and pages that the kernel moved meanwhile, fading.
    lately: (f64, f64),
    /// Whether we have switched balancing off for a while.
    paused: bool,
    /// Whether somebody has switched balancing off meanwhile.
    switched_off: bool,
    /// How many passes have yet to end until samples come at the sampler's pace.
    old_passes: u64,
}

impl HintFaults {
    /// Switches balancing on if it is off, opens the events and starts sampling at the accurate rate.
    pub fn open(topology: &Topology, settings: SharedSettings) -> Result<Self, Error> {
        let (balancing, knobs) = (PathBuf::from(BALANCING), PathBuf::from(KNOBS));
        let mut sampler = Self::closed(settings, balancing, None);
        sampler.old_passes = if sampler.mode()? & 1 == 1 { OLD_PASSES } else { 0 };
        sampler.switch_on()?;
        sampler.knobs = knobs.join("scan_period_min_ms").exists().then_some(knobs);
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
            recent: (0, Duration::ZERO),
            rested: false,
            in_pass: 0.0,
            last_pass: None,
            passes: 0,
            wished: SamplingRate::Accurate,
            largest_pages: 0,
            mappings: MAPPINGS,
            left_out: MAPPINGS as f64,
            scan_sequence: None,
            lately: (0.0, 0.0),
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
        if !self.settings.is_owner() {
            let message = "NUMA balancing is off and another Nodewise owns the kernel's settings";
            return Err(Error::new(ErrorKind::NotPermitted, message));
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
        for (name, value) in
            [("scan_size_mb", &portion), ("scan_period_min_ms", &period), ("scan_period_max_ms", &period)]
        {
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
            let periods = lasted.as_secs_f64() / self.period().as_secs_f64().max(f64::MIN_POSITIVE);
            let left_out = periods / passes.max(1) as f64 - f64::from(self.portions(PORTION_MB));
            if passes > 0 || left_out > self.left_out {
                self.left_out = left_out;
            }
            self.scan_sequence = Some((pid, sequence, if passes > 0 { Duration::ZERO } else { lasted }));
        }
        let most = self.mappings as f64;
        self.left_out = self.left_out.clamp(most / LEFT_OUT as f64, most);
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
        if let Some(events) = &mut self.events {
            events.drain(keep, into);
        }
    }

    fn losses(&self) -> Losses {
        self.events.as_ref().map_or(self.losses, PageFaultEvents::losses)
    }

    fn set_rate(&mut self, rate: SamplingRate) -> Result<(), Error> {
        let in_portions = self.scan_sequence.is_some() && self.portions(PORTION_MB) > 1;
        let is_young = in_portions && self.passes < PASSES_BEFORE_REST;
        let is_half_way = (1..OLD_PASSES).contains(&self.old_passes);
        self.wished = rate;
        if (self.rate, rate) == (SamplingRate::Accurate, SamplingRate::Cheap) && (is_young || is_half_way) {
            return Ok(());
        }
        self.pause(rate == SamplingRate::Paused)?;
        if (rate == SamplingRate::Accurate) != (self.rate == SamplingRate::Accurate) {
            (self.rested, self.passes) = (false, 0);
            let rests = rate != SamplingRate::Accurate;
            self.last_pass = (rests && self.moves_little()).then_some((0, Duration::ZERO));
        }
        self.rate = rate;
        self.recent = (0, Duration::ZERO);
        self.tell_kernel()
    }

    fn adapt(&mut self, interval: &Interval) -> Result<(), Error> {
        if self.paused {
            return Ok(());
        }
        let &Interval { duration: over, samples, .. } = interval;
        let before = self.period();
        self.largest_pages = interval.largest_pages;
        // At rest the passes are long.
        if self.rate == SamplingRate::Accurate {
            self.count_left_out(interval);
            if self.wished != self.rate {
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
                self.recent = (0, Duration::ZERO);
                return self.tell_kernel();
            }
            return Ok(());
        }
        if changed && self.rate == SamplingRate::Accurate {
            self.tell_kernel()?;
        }
        self.recent = (self.recent.0 + samples, self.recent.1 + over);
        let (samples, over) = self.recent;
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
        // Samples come in bursts, one a pass or a portion, and passes can take longer than was asked for.
        if over < if cheap { CHEAP_JUDGED } else { self.pass * 2 } {
            return Ok(());
        }
        self.recent = (0, Duration::ZERO);
        if cheap {
            let longer = (self.cheap_pass * 2).min(PASS_CHEAP_MAX);
            let settled = std::mem::replace(&mut self.rested, true);
            if !settled || per_s < 4.0 * ENOUGH_CHEAP_PER_S || longer == self.cheap_pass {
                return Ok(());
            }
            self.cheap_pass = longer;
            return self.tell_kernel();
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

    fn lags(&self) -> bool {
        self.old_passes > 0 && self.scan_sequence.is_some()
    }

    fn close(&mut self) -> Result<(), Error> {
        self.losses = self.losses();
        self.events = None;
        self.switched_off |= !self.paused && self.mode().is_ok_and(|mode| mode & 1 == 0);
        self.settings.restore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Place, Settings};

    const KNOBS: [&str; 3] = ["scan_size_mb", "scan_period_min_ms", "scan_period_max_ms"];
    const SECOND: Duration = Duration::from_secs(1);
    /// 64 MiB.
    const PAGES: u64 = 16_384;

    fn interval(samples: u64, duration: Duration) -> Interval {
        Interval {
            duration,
            samples,
            largest_pages: PAGES,
            writable_mappings: Some(0),
            scan_sequence: None,
            moved_by_kernel: 0,
        }
    }

    fn sampler(directory: &Path) -> HintFaults {
        for name in KNOBS {
            fs::write(directory.join(name), "1000").unwrap();
        }
        let balancing = directory.join("numa_balancing");
        let known = KNOBS.map(|name| directory.join(name)).into_iter().chain([balancing.clone()]);
        let settings = Settings::open(Place::new(directory.join("journal"), directory, known)).into();
        let mut sampler = HintFaults::closed(settings, balancing, Some(directory.to_owned()));
        sampler.set_rate(SamplingRate::Accurate).unwrap();
        sampler
    }

    /// The size that is marked at once, in MB, and the period, in ms.
    fn told(directory: &Path) -> (u64, u64) {
        let [size, min, max] =
            KNOBS.map(|name| fs::read_to_string(directory.join(name)).unwrap().parse().unwrap());
        assert_eq!(min, max);
        (size, min)
    }

    #[test]
    fn rest_begins_with_a_whole_pass() {
        let directory = tempfile::tempdir().unwrap();
        let mut sampler = sampler(directory.path());
        assert_eq!(told(directory.path()), (PORTION_MB, 95), "21 periods, for all that is known yet");
        sampler.adapt(&interval(16_000, 2 * SECOND)).unwrap();
        assert_eq!(told(directory.path()), (PORTION_MB, 2_000));
        sampler.set_rate(SamplingRate::Cheap).unwrap();
        // All of it is one large portion, and 64 small ones, each of which is to come 5 s after the one
        // before.
        assert_eq!(told(directory.path()), (PORTION_MB, 5_000));
        sampler.adapt(&interval(100, SECOND)).unwrap();
        assert_eq!(told(directory.path()), (PORTION_MB, 5_000));
        sampler.adapt(&interval(9_000, SECOND)).unwrap();
        assert_eq!(told(directory.path()), (1, 320_000));
        sampler.set_rate(SamplingRate::Accurate).unwrap();
        assert_eq!(told(directory.path()), (PORTION_MB, 2_000));
    }

    #[test]
    fn passes_take_their_time_though_mappings_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let mut sampler = sampler(directory.path());
        let mut sequence = 0;
        let mut period = |passes| {
            sequence += passes;
            let (writable_mappings, scan_sequence) = (Some(19), Some((Pid(1), sequence)));
            let interval = Interval { writable_mappings, scan_sequence, ..interval(500, SECOND) };
            sampler.adapt(&interval).unwrap();
            told(directory.path()).1
        };
        assert_eq!(period(1), 95, "as told at the start, which is near enough");
        assert_eq!(period(2), 200, "two passes of 20 periods, each of ten");
        assert_eq!(period(50), (2000.0 / 5.75) as u64, "at least a quarter");
        let waiting: Vec<u64> = (0..30).map(|_| period(0)).collect();
        assert!(waiting.is_sorted_by(|a, b| a >= b), "no pass for so long: {waiting:?}");
        // Another process that has become the largest begins anew, whatever its number.
        let other = Interval {
            scan_sequence: Some((Pid(2), 1000)),
            writable_mappings: Some(19),
            ..interval(500, SECOND)
        };
        let before = sampler.left_out;
        sampler.adapt(&other).unwrap();
        assert!((sampler.left_out - before).abs() < 0.01);
        assert!(
            waiting[29] < 125,
            "next to 2000 / 20, which a change by so little is not worth: {waiting:?}"
        );
    }

    #[test]
    fn a_program_that_was_scanned_before_goes_at_its_old_pace_for_some_passes() {
        let directory = tempfile::tempdir().unwrap();
        let mut sampler = sampler(directory.path());
        assert!(!sampler.lags());
        sampler.old_passes = OLD_PASSES;
        let lags = |sampler: &mut HintFaults, pid, sequence| {
            let scan_sequence = Some((Pid(pid), sequence));
            sampler.adapt(&Interval { scan_sequence, ..interval(0, SECOND) }).unwrap();
            sampler.lags()
        };
        assert_eq!([7, 7].map(|sequence| lags(&mut sampler, 1, sequence)), [true; 2]);
        // Nobody knows when the pass under way ends, and until then there may be rest.
        sampler.set_rate(SamplingRate::Cheap).unwrap();
        assert_eq!(sampler.rate, SamplingRate::Cheap);
        sampler.set_rate(SamplingRate::Accurate).unwrap();
        assert!(lags(&mut sampler, 1, 9));
        sampler.set_rate(SamplingRate::Cheap).unwrap();
        assert!(lags(&mut sampler, 1, 12) && sampler.rate == SamplingRate::Accurate);
        assert!(!lags(&mut sampler, 1, 13) && sampler.rate == SamplingRate::Cheap);
        sampler.set_rate(SamplingRate::Accurate).unwrap();
        sampler.old_passes = OLD_PASSES;
        assert!(!lags(&mut sampler, 2, 70), "another process");
        (sampler.old_passes, sampler.scan_sequence) = (OLD_PASSES, None);
        assert!(!lags(&mut sampler, 3, 1), "it has just begun");
    }

    #[test]
    fn a_large_program_has_no_rest_before_all_of_it_was_marked_twice() {
        let directory = tempfile::tempdir().unwrap();
        let mut sampler = sampler(directory.path());
        let adapt = |sampler: &mut HintFaults, pages, sequence| {
            let scan_sequence = Some((Pid(1), sequence));
            // Samples are few, so that passes are made faster meanwhile.
            let few = interval(50, 4 * SECOND);
            sampler.adapt(&Interval { largest_pages: pages, scan_sequence, ..few }).unwrap();
            sampler.rate
        };
        let (large, accurate, cheap) = (64 * PAGES, SamplingRate::Accurate, SamplingRate::Cheap);
        adapt(&mut sampler, large, 7);
        sampler.set_rate(cheap).unwrap();
        assert_eq!([7, 7, 8, 9].map(|sequence| adapt(&mut sampler, large, sequence)), {
            [accurate, accurate, accurate, cheap]
        });
        // Another wish takes rest back.
        sampler.set_rate(accurate).unwrap();
        adapt(&mut sampler, large, 10);
        sampler.set_rate(cheap).unwrap();
        sampler.set_rate(accurate).unwrap();
        assert_eq!([12, 14].map(|sequence| adapt(&mut sampler, large, sequence)), [accurate; 2]);
        // Memory that is marked at once has rest at once.
        sampler.set_rate(accurate).unwrap();
        adapt(&mut sampler, PAGES, 14);
        sampler.set_rate(cheap).unwrap();
        assert_eq!(sampler.rate, cheap);
    }

    #[test]
    fn where_the_kernel_moves_pages_rest_begins_with_no_burst_of_faults() {
        let directory = tempfile::tempdir().unwrap();
        let mut sampler = sampler(directory.path());
        let interval = Interval { moved_by_kernel: 3_000, ..interval(16_000, 2 * SECOND) };
        sampler.adapt(&interval).unwrap();
        sampler.set_rate(SamplingRate::Cheap).unwrap();
        assert_eq!(told(directory.path()), (1, 320_000));
    }

    #[test]
    fn a_pause_is_our_own_or_somebody_elses() {
        let directory = tempfile::tempdir().unwrap();
        let balancing = directory.path().join("numa_balancing");
        let mode = || fs::read_to_string(&balancing).unwrap();
        fs::write(&balancing, "3").unwrap();
        let mut ours = sampler(directory.path());
        ours.set_rate(SamplingRate::Cheap).unwrap();
        ours.set_rate(SamplingRate::Paused).unwrap();
        assert_eq!(mode(), "2");
        ours.adapt(&interval(0, SECOND)).unwrap();
        ours.set_rate(SamplingRate::Cheap).unwrap();
        assert_eq!(mode(), "3");
        ours.set_rate(SamplingRate::Paused).unwrap();
        ours.close().unwrap();
        assert_eq!(mode(), "3", "put back");
        assert!(!ours.switched_off);

        let mut sampler = sampler(directory.path());
        fs::write(&balancing, "0").unwrap();
        sampler.set_rate(SamplingRate::Paused).unwrap();
        sampler.set_rate(SamplingRate::Cheap).unwrap();
        assert_eq!(mode(), "0", "somebody else's");
        sampler.close().unwrap();
        assert!(sampler.switched_off);
    }

    #[test]
    fn threads_that_sleep_are_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let mut sampler = sampler(directory.path());
        sampler.adapt(&interval(0, 2 * SECOND)).unwrap();
        sampler.set_rate(SamplingRate::Cheap).unwrap();
        for _ in 0..8 {
            sampler.adapt(&interval(0, SECOND)).unwrap();
            assert_eq!(told(directory.path()).0, PORTION_MB);
        }
        sampler.adapt(&interval(0, SECOND)).unwrap();
        assert_eq!(told(directory.path()), (1, 60_000));
    }

    #[test]
    fn the_first_samples_say_how_long_a_cheap_pass_is() {
        let directory = tempfile::tempdir().unwrap();
        let mut sampler = sampler(directory.path());
        sampler.adapt(&interval(16_000, SECOND)).unwrap();
        sampler.adapt(&interval(0, SECOND / 2)).unwrap();
        sampler.set_rate(SamplingRate::Cheap).unwrap();
        assert_eq!(sampler.pass(), 320 * SECOND);
    }
}
