use super::journal::{VALUE_DIGITS, others_can_write};
use super::*;
use std::os::unix::fs::MetadataExt as _;

fn setting(directory: &Path, name: &str, value: &str) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, value).unwrap();
    path
}

/// A journal about three settings, of this value.
fn place(directory: &Path, value: &str) -> (Place, [PathBuf; 3]) {
    let settings = ["a", "b", "c"].map(|name| setting(directory, name, value));
    (Place::new(directory.join("run/journal.json"), directory, settings.clone()), settings)
}

/// Another owner, until it is dropped.
fn owner(place: &Place) -> fs::File {
    let lock = fs::File::open(&place.lock).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    lock
}

/// The text of the journal.
fn journal(place: &Place) -> String {
    fs::read_to_string(&place.journal).unwrap()
}

fn now(path: &Path) -> String {
    fs::read_to_string(path).unwrap().trim_end().to_owned()
}

/// As another process that lives, or none, would have written it.
fn write_journal(place: &Place, pid: u32, lives: bool, changed: &BTreeMap<PathBuf, [&str; 2]>) {
    let start_time = crate::process::start_time(pid).unwrap() + u64::from(!lives);
    let originals = changed.iter().map(|(path, values)| (path.clone(), values[0].to_owned()));
    let written = changed.iter().map(|(path, values)| (path.clone(), [values[1].to_owned()].into()));
    let journal = Journal { pid, start_time, originals: originals.collect(), written: written.collect() };
    fs::DirBuilder::new().recursive(true).mode(0o755).create(place.directory()).unwrap();
    fs::write(&place.journal, serde_json::to_string(&journal).unwrap()).unwrap();
}

#[test]
fn restores_on_drop_and_removes_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, b, _]) = place(dir.path(), "1000\n");
    let mut settings = Settings::open(place.clone());
    settings.set(&a, "0").unwrap();
    settings.set(&b, "200").unwrap();
    settings.set(&b, "300").unwrap();
    assert_eq!(now(&b), "300");
    assert!(place.journal.exists());
    drop(settings);
    assert_eq!([now(&a), now(&b)], ["1000", "1000"]);
    assert!(!place.journal.exists());
}

/// As of transparent huge pages: `always [madvise] never` is read, and the word alone is written.
#[test]
fn a_choice_is_put_back_by_its_word() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "always [madvise] never\n");
    let mut settings = Settings::open(place.clone());
    settings.set(&a, "madvise").unwrap();
    assert!(!place.journal.exists(), "it is that already");
    settings.set(&a, "never").unwrap();
    let originals = BTreeMap::from([(a.clone(), "madvise".to_owned())]);
    assert_eq!(Journal::read(&place).unwrap().unwrap().originals, originals, "as the next one would");
    // The kernel shows the choice so.
    fs::write(&a, "always madvise [never]\n").unwrap();
    drop(settings);
    assert_eq!(now(&a), "madvise");
}

#[test]
fn a_killed_predecessor_is_cleaned_up_after() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "0");
    let parent = std::os::unix::process::parent_id();
    write_journal(&place, parent, false, &[(a.clone(), ["1", "0"])].into());
    let originals = BTreeMap::from([(a.clone(), "1".to_owned())]);
    assert_eq!(Changed::look(&place).unwrap(), Changed::LeftBy { pid: parent, originals });
    assert_eq!(now(&a), "0", "looking puts nothing back");

    let settings = Settings::open(place.clone());
    assert!(settings.is_owner());
    assert_eq!(now(&a), "1");
    assert!(!place.journal.exists());
    assert_eq!(Changed::look(&place).unwrap(), Changed::No);
}

#[test]
fn leaves_the_settings_of_a_living_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "0");
    let parent = std::os::unix::process::parent_id();
    // One that opened before it came finds out when it wants to change something.
    let (mut earlier, idle) = (Settings::open(place.clone()), Settings::open(place.clone()));
    let _owner = owner(&place);
    write_journal(&place, parent, true, &[(a.clone(), ["1", "0"])].into());
    drop(idle);
    assert!(place.journal.exists(), "it is not theirs to remove");
    assert!(earlier.is_owner());
    earlier.set(&a, "8").unwrap();
    assert!(!earlier.is_owner());
    drop(earlier);
    assert_eq!(Changed::look(&place).unwrap(), Changed::ByRunning(parent));
    let mut settings = Settings::open(place.clone());
    assert!(!settings.is_owner());
    settings.set(&a, "7").unwrap();
    drop(settings);
    assert_eq!(now(&a), "0");
    assert!(place.journal.exists());
}

/// Containers have a `/run` each, and the machine has its settings once.
#[test]
fn another_journal_is_another_owners_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, b, _]) = place(dir.path(), "1000");
    let elsewhere = Place { journal: dir.path().join("other/journal.json"), ..place.clone() };
    let (mut first, mut second) = (Settings::open(place), Settings::open(elsewhere.clone()));
    first.set(&a, "0").unwrap();
    second.set(&a, "5").unwrap();
    second.set(&b, "5").unwrap();
    assert!(first.is_owner() && !second.is_owner());
    drop(first);
    drop(second);
    assert_eq!([now(&a), now(&b)], ["1000", "1000"]);
    let mut third = Settings::open(elsewhere);
    third.set(&a, "5").unwrap();
    assert_eq!(now(&a), "5");
}

#[test]
fn one_takes_over_when_the_owner_has_ended_and_puts_back_in_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "1000");
    let [mut first, mut second, mut third] = [(); 3].map(|()| Settings::open(place.clone()));
    first.set(&a, "1").unwrap();
    for later in [&mut second, &mut third] {
        later.set(&a, "2").unwrap();
        assert!(!later.take_over(), "it lives");
    }
    drop(first);
    assert_eq!(now(&a), "1000");
    assert!(second.take_over() && !second.take_over(), "once");
    assert!(!third.take_over());
    second.set(&a, "2").unwrap();
    drop(third);
    assert_eq!(now(&a), "2");
    drop(second);
    assert_eq!(now(&a), "1000");
    assert!(!place.journal.exists());
}

#[test]
fn what_a_killed_owner_left_is_put_back_by_who_takes_over() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "0");
    let mut settings = Settings::open(place.clone());
    let first = owner(&place);
    settings.set(&a, "2").unwrap();
    write_journal(&place, std::os::unix::process::parent_id(), false, &[(a.clone(), ["1000", "0"])].into());
    drop(first);
    assert!(settings.take_over());
    assert_eq!(Changed::look(&place).unwrap(), Changed::ByRunning(std::process::id()));
    settings.set(&a, "2").unwrap();
    drop(settings);
    assert_eq!(now(&a), "1000");
    assert!(!place.journal.exists());
}

#[test]
fn any_other_may_ask_for_samples() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "1000");
    let [mut first, mut second, mut third] = [(); 3].map(|()| Settings::open(place.clone()));
    assert!(!first.are_samples_requested(), "nobody can: there is no directory");
    second.request_samples(true);
    fs::create_dir(&place.requests).unwrap();
    first.set(&a, "1").unwrap();
    assert!(!first.are_samples_requested());
    second.request_samples(true);
    third.request_samples(true);
    second.request_samples(true);
    second.request_samples(false);
    assert!(first.are_samples_requested(), "by the third");
    drop(third);
    assert!(!first.are_samples_requested());
}

#[test]
fn nothing_is_changed_where_no_owner_can_be_told() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "1");
    let mut settings = Settings::open(Place { lock: dir.path().join("not-mounted"), ..place });
    settings.set(&a, "0").unwrap();
    assert_eq!(now(&a), "1");
    assert!(settings.barred().unwrap().to_string().starts_with("cannot lock "));
}

/// The real one, whether it is mounted here or not.
#[test]
fn debugfs_is_locked_where_it_is_not_mounted() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Ok(hidden) = open_in_debugfs(Path::new("sched")) else { return };
    let Ok(again) = open_in_debugfs(Path::new("sched")) else { return };
    let inode = |file: &fs::File| file.metadata().unwrap().ino();
    assert_eq!(inode(&hidden), inode(&again), "it is the same for all");
    assert!(open_in_debugfs(Path::new("no-such-directory")).is_err());
    Place::live().can_be_owned().unwrap();
}

#[test]
fn everybody_can_read_the_journal_and_only_its_owner_write_it() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "1");
    // The count is the whole process's: writes of other tests meanwhile are no less theirs.
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let mut settings = Settings::open(place.clone());
    settings.set(&a, "0").unwrap();
    rustix::process::umask(before);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!([mode(place.directory()), mode(&place.journal)], [0o755, 0o644]);
}

#[test]
fn a_survivor_puts_back_what_a_killed_owner_left() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, b, _]) = place(dir.path(), "0");
    let parent = std::os::unix::process::parent_id();
    let left = [(a.clone(), ["1", "0"])].into();
    let owner = owner(&place);
    write_journal(&place, parent, true, &left);
    let mut survivor = Settings::open(place.clone());
    survivor.set(&b, "8").unwrap();
    drop(owner);
    write_journal(&place, parent, false, &left);
    survivor.set(&b, "9").unwrap();
    assert!(!survivor.is_owner());
    assert_eq!([now(&a), now(&b)], ["0", "0"]);
    drop(survivor);
    assert_eq!([now(&a), now(&b)], ["1", "0"]);
    assert!(!place.journal.exists());
}

/// One that opened while nothing was changed, and comes to a journal whose owner has been killed since.
#[test]
fn what_a_killed_owner_changed_is_taken_over_with_the_first_change() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, b, _]) = place(dir.path(), "0");
    let mut settings = Settings::open(place.clone());
    let parent = std::os::unix::process::parent_id();
    write_journal(&place, parent, false, &[(a.clone(), ["1", "0"])].into());
    settings.set(&b, "8").unwrap();
    assert_eq!([now(&a), now(&b)], ["0", "8"]);
    assert_eq!(Changed::look(&place).unwrap(), Changed::ByRunning(std::process::id()));
    drop(settings);
    assert_eq!([now(&a), now(&b)], ["1", "0"]);
}

#[test]
fn what_somebody_else_sets_meanwhile_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, b, c]) = place(dir.path(), "1000\n");
    let mut settings = Settings::open(place.clone());
    for path in [&a, &b, &c] {
        settings.set(path, "2000").unwrap();
        settings.set(path, "60000").unwrap();
    }
    fs::write(&a, "777\n").unwrap();
    fs::write(&b, "888\n").unwrap();
    // Changed again: theirs is what comes back.
    settings.set(&b, "2000").unwrap();
    assert_eq!(now(&b), "2000");
    drop(settings);
    assert_eq!([now(&a), now(&b), now(&c)], ["777", "888", "1000"]);
    assert!(!place.journal.exists());
}

/// As the pace of sampling is for days: the journal grows by none of them.
#[test]
fn of_many_values_the_journal_names_the_last_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, b, _]) = place(dir.path(), "1000\n");
    let mut settings = Settings::open(place.clone());
    for value in 0..2000 {
        settings.set(&a, &value.to_string()).unwrap();
    }
    assert!(journal(&place).len() < 1000, "{}", journal(&place));
    settings.set(&b, "7").unwrap();
    settings.set(&b, "8").unwrap();
    settings.set(&b, "9").unwrap();
    // Somebody else has chosen what we set once.
    fs::write(&b, "7\n").unwrap();
    drop(settings);
    assert_eq!([now(&a), now(&b)], ["1000", "7"]);
}

#[test]
fn nothing_is_changed_that_could_not_be_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "1");
    // No directory can be made there, nor by root.
    fs::write(dir.path().join("run"), "").unwrap();
    let mut settings = Settings::open(place.clone());
    settings.set(&a, "0").unwrap();
    assert_eq!(now(&a), "1");
    let why = settings.barred().unwrap().to_string();
    assert!(why.starts_with("cannot create ") && why.ends_with("/run"), "{why}");
    drop(settings);

    // Gone in the middle: what was changed goes back, and nothing else changes.
    fs::remove_file(dir.path().join("run")).unwrap();
    let mut settings = Settings::open(place.clone());
    settings.set(&a, "0").unwrap();
    fs::remove_dir_all(dir.path().join("run")).unwrap();
    settings.set(&a, "2").unwrap();
    assert_eq!(now(&a), "0");
    assert!(settings.barred().is_some());
    settings.set(&a, "1").unwrap();
    assert_eq!(now(&a), "1");
    drop(settings);
    assert_eq!(now(&a), "1");
}

#[test]
fn what_belongs_to_another_user_can_be_written_by_him_whatever_its_mode() {
    for owner in [0, 1000] {
        assert!(!others_can_write(owner, 0o755, 1000));
        assert!(others_can_write(owner, 0o775, 1000) && others_can_write(owner, 0o757, 1000));
    }
    assert!(others_can_write(65534, 0o755, 1000) && others_can_write(1000, 0o755, 0));
    // Only root can give a directory away.
    if rustix::process::geteuid().is_root() {
        let dir = tempfile::tempdir().unwrap();
        let (place, [a, ..]) = place(dir.path(), "0");
        let parent = std::os::unix::process::parent_id();
        write_journal(&place, parent, false, &[(a.clone(), ["1", "0"])].into());
        for path in [place.directory(), &place.journal] {
            std::os::unix::fs::chown(path, Some(65534), None).unwrap();
            let why = Settings::open(place.clone()).barred().unwrap().to_string();
            assert!(why.starts_with("others could write "), "{why}");
            assert_eq!(now(&a), "0");
            std::os::unix::fs::chown(path, Some(0), None).unwrap();
        }
    }
}

/// All mounts of debugfs are one, and only root can open the directory.
#[test]
fn the_machine_has_one_lock() {
    let place = Place::live();
    assert_eq!(place.lock, Path::new("/sys/kernel/debug/sched"));
    assert_eq!(place.directory(), Path::new("/run/nodewise"));
}

#[test]
fn a_journal_that_others_could_write_is_not_believed() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "0");
    let parent = std::os::unix::process::parent_id();
    write_journal(&place, parent, false, &[(a.clone(), ["1", "0"])].into());
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (path, before) in [(place.directory(), 0o755), (&place.journal, 0o644)] {
        mode(path, before | 0o022);
        let mut settings = Settings::open(place.clone());
        let why = settings.barred().unwrap().to_string();
        assert!(why.starts_with("others could write ") && why.contains("is believed"), "{why}");
        settings.set(&a, "2").unwrap();
        drop(settings);
        assert_eq!(now(&a), "0");
        mode(path, before);
    }
    drop(Settings::open(place));
    assert_eq!(now(&a), "1");
}

#[test]
fn a_journal_names_settings_and_numbers_only() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "0");
    let victim = setting(dir.path(), "victim", "0");
    let parent = std::os::unix::process::parent_id();
    let long = "0".repeat(VALUE_DIGITS + 1);
    for (path, value) in [(&victim, "1"), (&a, "written by nobody"), (&a, "+1"), (&a, &long)] {
        write_journal(&place, parent, false, &[(path.clone(), [value, "0"])].into());
        let why = Settings::open(place.clone()).barred().unwrap().to_string();
        assert!(why.contains("journal.json, line 1: expected"), "{why}");
        assert_eq!([now(&a), now(&victim)], ["0", "0"]);
    }
    // A link leads anywhere.
    fs::rename(&place.journal, dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &place.journal).unwrap();
    assert!(Settings::open(place.clone()).barred().is_some());
    // And a pipe nowhere.
    fs::remove_file(&place.journal).unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, &place.journal, kind, mode, 0).unwrap();
    assert!(Settings::open(place).barred().is_some());
}

#[test]
fn a_malformed_journal_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "1");
    write_journal(&place, std::process::id(), true, &BTreeMap::new());
    fs::write(&place.journal, "{\n oops").unwrap();
    let mut settings = Settings::open(place.clone());
    settings.set(&a, "0").unwrap();
    assert_eq!(now(&a), "1");
    for error in [settings.barred().unwrap(), &Changed::look(&place).unwrap_err()] {
        assert!(error.to_string().contains("journal.json, line 2"), "{error}");
    }
    drop(settings);
    assert_eq!(journal(&place), "{\n oops", "it is for the administrator to read");
}

#[test]
fn a_setting_that_cannot_be_written_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (place, [a, ..]) = place(dir.path(), "1");
    fs::remove_file(&a).unwrap();
    let mut settings = Settings::open(place);
    assert_eq!(settings.set(&a, "1").unwrap_err().kind(), ErrorKind::File);
    assert!(settings.changed().is_empty());
}
