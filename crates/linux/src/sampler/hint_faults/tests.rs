use super::*;
use crate::settings::{Place, Settings};

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
    for name in KNOB_NAMES {
        fs::write(directory.join(name), "1000").unwrap();
    }
    let mut sampler = closed(directory);
    sampler.set_rate(SamplingRate::Accurate).unwrap();
    sampler
}

/// Its settings are those in the directory, whose owner locks `lock` there if there is one.
fn closed(directory: &Path) -> HintFaults {
    let balancing = directory.join("numa_balancing");
    let known = KNOB_NAMES.map(|name| directory.join(name)).into_iter().chain([balancing.clone()]);
    let lock = Some(directory.join("lock")).filter(|lock| lock.exists()).unwrap_or(directory.to_owned());
    let settings = Settings::open(Place::new(directory.join("journal"), lock, known)).into();
    HintFaults::closed(settings, balancing, Some(directory.to_owned()))
}

/// The size that is marked at once, in MB, and the period, in ms.
fn told(directory: &Path) -> (u64, u64) {
    let [size, min, max] =
        KNOB_NAMES.map(|name| fs::read_to_string(directory.join(name)).unwrap().parse().unwrap());
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
    assert!(waiting[29] < 125, "next to 2000 / 20, which a change by so little is not worth: {waiting:?}");
}

#[test]
fn huge_pages_that_give_few_samples_are_marked_often_as_soon_as_two_passes_have_ended() {
    let directory = tempfile::tempdir().unwrap();
    let mut sampler = sampler(directory.path());
    // 32 samples a pass, of which there are to be 500 a second.
    let few = |sequence| Interval { scan_sequence: Some((Pid(1), sequence)), ..interval(32, SECOND / 2) };
    sampler.adapt(&few(0)).unwrap();
    sampler.adapt(&few(1)).unwrap();
    assert_eq!(sampler.pass(), PASS);
    sampler.adapt(&few(2)).unwrap();
    assert!(sampler.pass() < SECOND, "{:?}, and not only after two passes of two seconds", sampler.pass());
    // Pages that were split give one sample each.
    let many = |sequence| Interval { samples: 16_000, ..few(sequence) };
    sampler.adapt(&many(4)).unwrap();
    assert_eq!(sampler.pass(), PASS);
}

#[test]
fn a_kernel_that_leaves_no_mapping_out_is_not_hurried() {
    for (release, leaves) in [
        ("6.1.0-13-cloud-amd64\n", false),
        ("6.6.3", false),
        ("5.15", false),
        ("6.7.1", true),
        ("7.0-rc1", true),
        ("", true),
    ] {
        assert_eq!(leaves_out(release), leaves, "{release}");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("osrelease"), "6.1.0-13-cloud-amd64\n").unwrap();
    let mut sampler = sampler(directory.path());
    assert_eq!(told(directory.path()), (PORTION_MB, 2_000));
    let mut sequence = 0;
    for _ in 0..20 {
        sequence += 2_000 / told(directory.path()).1;
        let (writable_mappings, scan_sequence) = (Some(400), Some((Pid(1), sequence)));
        let full = interval(16_000, 2 * SECOND);
        sampler.adapt(&Interval { writable_mappings, scan_sequence, ..full }).unwrap();
    }
    assert_eq!(told(directory.path()), (PORTION_MB, 2_000), "{sequence} passes");
}

/// The kernel marks no more than a portion each 100 ms, whatever is asked for.
#[test]
fn many_mappings_ask_for_no_more_than_the_kernel_gives() {
    let directory = tempfile::tempdir().unwrap();
    let mut sampler = sampler(directory.path());
    let mut sequence = 0;
    let mut left_out = |passes, duration| {
        sequence += passes;
        let (writable_mappings, scan_sequence) = (Some(400), Some((Pid(1), sequence)));
        sampler.adapt(&Interval { writable_mappings, scan_sequence, ..interval(500, duration) }).unwrap();
        sampler.left_out.round() as u64
    };
    assert_eq!(left_out(0, SECOND), 20, "each 95 ms, and not the 20 ms of a quarter of the mappings");
    assert_eq!(left_out(50, SECOND), 20);
    let waiting: Vec<u64> = (0..15).map(|_| left_out(0, SECOND)).collect();
    assert_eq!(waiting.last(), Some(&149), "15 s are 150 periods: {waiting:?}");
    assert_eq!(left_out(1, 5 * SECOND), 199, "a pass of 20 s");
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
    assert!(lags(&mut sampler, 1, 7) && sampler.rate == SamplingRate::Cheap);
    // When it has, its five are waited for.
    assert!(lags(&mut sampler, 1, 9) && sampler.rate == SamplingRate::Accurate);
    assert!(lags(&mut sampler, 1, 12) && sampler.rate == SamplingRate::Accurate);
    assert!(!lags(&mut sampler, 1, 13) && sampler.rate == SamplingRate::Cheap);
    // One that sleeps after some passes is not waited for without end.
    sampler.set_rate(SamplingRate::Accurate).unwrap();
    sampler.old_passes = 3;
    sampler.set_rate(SamplingRate::Cheap).unwrap();
    let waited =
        (0..1000).take_while(|_| lags(&mut sampler, 1, 13) && sampler.rate == SamplingRate::Accurate);
    let waited = waited.count();
    assert!((280..320).contains(&waited), "{waited} s");
    assert!(lags(&mut sampler, 1, 13) && sampler.rate == SamplingRate::Cheap, "none has ended");
    sampler.set_rate(SamplingRate::Accurate).unwrap();
    sampler.old_passes = OLD_PASSES;
    assert!(!lags(&mut sampler, 2, 70), "another process");
    (sampler.old_passes, sampler.scan_sequence) = (OLD_PASSES, None);
    assert!(!lags(&mut sampler, 3, 1), "it has just begun");
}

/// As under lockdown, where even root may only read.
#[test]
fn knobs_that_cannot_be_written_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    assert!(!are_writable(directory.path()));
    sampler(directory.path());
    assert!(are_writable(directory.path()));
    // A directory can be read, and not be written by anybody.
    fs::remove_file(directory.path().join("scan_size_mb")).unwrap();
    fs::create_dir(directory.path().join("scan_size_mb")).unwrap();
    assert!(!are_writable(directory.path()));
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
    // Nor is there a pause.
    sampler.set_rate(SamplingRate::Paused).unwrap();
    assert!(sampler.rate == accurate && !sampler.paused);
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
    // One that sleeps is not waited for without end.
    fs::write(directory.path().join("numa_balancing"), "1").unwrap();
    sampler.set_rate(cheap).unwrap();
    sampler.set_rate(accurate).unwrap();
    adapt(&mut sampler, large, 14);
    sampler.set_rate(SamplingRate::Paused).unwrap();
    assert!(sampler.rate == accurate && !sampler.is_paused());
    for _ in 0..15 {
        adapt(&mut sampler, large, 14);
    }
    assert!(sampler.rate == SamplingRate::Paused);
    // The kernel marks less than a sixth of 1 TiB meanwhile.
    let huge = (1 << 40) >> 12;
    sampler.set_rate(accurate).unwrap();
    adapt(&mut sampler, huge, 14);
    sampler.set_rate(cheap).unwrap();
    let waited = (0..1000).take_while(|_| adapt(&mut sampler, huge, 14) == accurate).count();
    assert!((200..220).contains(&waited), "twice 410 s, in steps of four: {waited}");
    // Passes that end at rest are not of the next time.
    adapt(&mut sampler, large, 20);
    sampler.set_rate(accurate).unwrap();
    adapt(&mut sampler, large, 20);
    sampler.set_rate(cheap).unwrap();
    assert_eq!(
        [20, 21, 22].map(|sequence| adapt(&mut sampler, large, sequence)),
        [accurate, accurate, cheap]
    );
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
    drop(ours);

    let mut sampler = sampler(directory.path());
    fs::write(&balancing, "0").unwrap();
    sampler.set_rate(SamplingRate::Paused).unwrap();
    sampler.set_rate(SamplingRate::Cheap).unwrap();
    assert_eq!(mode(), "0", "somebody else's");
    sampler.close().unwrap();
    assert!(sampler.switched_off);
}

#[test]
fn there_is_no_rest_while_another_wants_samples() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::create_dir_all(path.join("lock/numa_balancing")).unwrap();
    let balancing = path.join("numa_balancing");
    fs::write(&balancing, "1").unwrap();
    let nothing = interval(0, SECOND);
    let mut first = sampler(path);
    let mut second = closed(path);
    for rest in [SamplingRate::Cheap, SamplingRate::Paused] {
        first.set_rate(rest).unwrap();
        first.adapt(&nothing).unwrap();
        let at_rest = told(path);
        assert_eq!(first.rate, rest);
        second.set_rate(SamplingRate::Accurate).unwrap();
        assert_eq!(told(path), at_rest, "the settings are the first one's");
        first.adapt(&nothing).unwrap();
        assert_eq!((first.rate, told(path).0), (SamplingRate::Accurate, PORTION_MB));
        for _ in 0..20 {
            first.adapt(&nothing).unwrap();
        }
        assert_eq!(first.pass(), PASS, "that its processes give none is no reason to hurry");
        assert_eq!(fs::read_to_string(&balancing).unwrap(), "1");
        second.set_rate(SamplingRate::Cheap).unwrap();
        first.adapt(&nothing).unwrap();
        assert_eq!(first.rate, rest);
    }
    // One that comes while balancing is off waits for it, and not for the first one's next round.
    assert_eq!(fs::read_to_string(&balancing).unwrap(), "0");
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| second.switch_on());
        while !opened.is_finished() {
            first.drain(&|_| true, &mut Vec::new());
            std::thread::sleep(Duration::from_millis(10));
        }
        opened.join().unwrap().unwrap();
    });
    first.close().unwrap();
    drop(first);
    fs::write(&balancing, "0").unwrap();
    second.adapt(&nothing).unwrap();
    assert_eq!(fs::read_to_string(&balancing).unwrap(), "1", "the second is the owner now");
    second.close().unwrap();
    assert_eq!(fs::read_to_string(&balancing).unwrap(), "0");
    assert!(!second.switched_off);
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
