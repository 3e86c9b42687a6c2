//! How much CPU time and memory control groups leave a process.

use crate::error::{Error, ParseError};
use crate::root::{Root, Text};
use std::path::{Component, Path, PathBuf};

/// The tightest limit of CPU time among a process's control groups: all its threads together run at most
/// `quota_us` in each `period_us`, then wait for the next period.
///
/// Source: `cpu.max` in Documentation/admin-guide/cgroup-v2.rst, `cpu.cfs_quota_us` and `cpu.cfs_period_us`
/// in Documentation/scheduler/sched-bwc.rst, Linux 6.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Microseconds of CPU time.
    pub quota_us: u64,
    /// Microseconds of time; never 0.
    pub period_us: u64,
}

impl CpuQuota {
    /// The quota of the calling process; `None` where nothing limits it.
    pub fn of_this_process() -> Result<Option<Self>, Error> {
        Self::from_root(Path::new("/"))
    }

    /// The quota of the calling process as a directory that stands for `/` has it.
    pub fn from_root(path: &Path) -> Result<Option<Self>, Error> {
        let root = Root::new(path);
        let mut tightest = None;
        for (hierarchy, dir) in groups(&root, "cpu")? {
            tightest = tighter(tightest, hierarchy.quota(&root, &dir)?);
        }
        Ok(tightest)
    }

    /// How many CPUs can be kept busy all the time: at least 1.
    #[must_use]
    pub fn whole_cpus(self) -> usize {
        usize::try_from(self.quota_us / self.period_us).unwrap_or(usize::MAX).max(1)
    }
}

fn tighter(one: Option<CpuQuota>, other: Option<CpuQuota>) -> Option<CpuQuota> {
    let (Some(a), Some(b)) = (one, other) else { return one.or(other) };
    let left = u128::from(a.quota_us) * u128::from(b.period_us);
    Some(if left <= u128::from(b.quota_us) * u128::from(a.period_us) { a } else { b })
}

/// Bytes that may still be charged to the calling process's control groups; `None` where nothing limits them.
/// The kernel gives up page cache that is charged to them for what is asked for, so that counts as left.
///
/// Source: `memory.max` and `memory.high` in Documentation/admin-guide/cgroup-v2.rst, `memory.limit_in_bytes`
/// in Documentation/admin-guide/cgroup-v1/memory.rst, Linux 6.1.
pub fn memory_left_bytes() -> Result<Option<u64>, Error> {
    memory_left_from_root(Path::new("/"))
}

fn memory_left_from_root(path: &Path) -> Result<Option<u64>, Error> {
    let root = Root::new(path);
    let mut least = None;
    for (hierarchy, dir) in groups(&root, "memory")? {
        let left = hierarchy.memory_left(&root, &dir)?;
        least = left.into_iter().chain(least).min();
    }
    Ok(least)
}

/// The directories of the calling process's groups, below the root: each up to its mount's top has a say.
fn groups(root: &Root, controller: &str) -> Result<Vec<(Hierarchy, String)>, Error> {
    let (Some(groups), Some(mounts)) = (root.text("proc/self/cgroup")?, root.text("proc/self/mountinfo")?)
    else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for hierarchy in [Hierarchy::Two, Hierarchy::One] {
        let Some((top, group)) = hierarchy.place(controller, &groups, &mounts) else { continue };
        let dirs = group.ancestors().take_while(|dir| dir.starts_with(&top));
        found.extend(dirs.map(|dir| (hierarchy, dir.to_string_lossy().into_owned())));
    }
    Ok(found)
}

#[derive(Clone, Copy)]
enum Hierarchy {
    One,
    Two,
}

impl Hierarchy {
    /// Where the hierarchy is mounted and where in it the process is, both below the root.
    fn place(self, controller: &str, groups: &Text, mounts: &Text) -> Option<(PathBuf, PathBuf)> {
        let path = groups.lines().find_map(|(_, line)| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let it = match self {
                Self::One => controllers.split(',').any(|one| one == controller),
                Self::Two => number == "0" && controllers.is_empty(),
            };
            it.then_some(path)
        })?;
        let (shown, top) = mounts.lines().find_map(|(_, line)| {
            let (place, kind) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(3);
            let (shown, top) = (place.next()?, place.next()?);
            let mut kind = kind.split(' ');
            let (kind, options) = (kind.next()?, kind.nth(1)?);
            let it = match self {
                Self::One => kind == "cgroup" && options.split(',').any(|option| option == controller),
                Self::Two => kind == "cgroup2",
            };
            it.then_some((shown, top))
        })?;
        let top = PathBuf::from(top.trim_start_matches('/'));
        // The top of a container's mount may be a group far down, and the process may even be outside of what
        // is mounted. Then the top is the nearest that can be seen.
        let within = Path::new(path).strip_prefix(shown).ok();
        let within = within.filter(|path| path.components().all(|part| matches!(part, Component::Normal(_))));
        let group = within.map_or_else(|| top.clone(), |within| top.join(within));
        Some((top, group))
    }

    fn quota(self, root: &Root, dir: &str) -> Result<Option<CpuQuota>, Error> {
        match self {
            Self::Two => {
                root.text(&format!("{dir}/cpu.max"))?.map_or(Ok(None), |text| text.parse(quota_and_period))
            }
            Self::One => {
                let quota = root.text(&format!("{dir}/cpu.cfs_quota_us"))?;
                let period = root.text(&format!("{dir}/cpu.cfs_period_us"))?;
                let (Some(quota), Some(period)) = (quota, period) else { return Ok(None) };
                if quota.trimmed().starts_with('-') {
                    return Ok(None);
                }
                Ok(CpuQuota { quota_us: quota.number()?, period_us: period.number()? }.sensible())
            }
        }
    }
}

impl Hierarchy {
    /// Above `memory.high` the kernel takes memory back from the group, and has it wait.
    fn memory_left(self, root: &Root, dir: &str) -> Result<Option<u64>, Error> {
        let (limits, used, cache) = match self {
            Self::Two => {
                (&["memory.max", "memory.high"][..], "memory.current", ["inactive_file", "active_file"])
            }
            Self::One => (
                &["memory.limit_in_bytes"][..],
                "memory.usage_in_bytes",
                ["total_inactive_file", "total_active_file"],
            ),
        };
        let Some(used) = root.text(&format!("{dir}/{used}"))? else { return Ok(None) };
        let stat = root.text(&format!("{dir}/memory.stat"))?;
        let bytes = |name: &str| {
            let mut lines = stat.iter().flat_map(Text::lines);
            lines.find_map(|(_, line)| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
        };
        let cached: u64 = cache.into_iter().filter_map(bytes).sum();
        let mut least = None;
        for limit in limits {
            let Some(limit) = root.text(&format!("{dir}/{limit}"))? else { continue };
            if limit.trimmed() == "max" {
                continue;
            }
            // Version 1 has a number for none, the largest that its counters hold.
            let limit = Some(limit.number()?).filter(|&limit| limit < 1 << 62);
            least = limit.into_iter().chain(least).min();
        }
        let Some(least) = least else { return Ok(None) };
        Ok(Some(least.saturating_sub(used.number()?.saturating_sub(cached))))
    }
}

impl CpuQuota {
    /// The kernel has no period of 0.
    fn sensible(self) -> Option<Self> {
        (self.period_us > 0).then_some(self)
    }
}

/// `max 100000` or `50000 100000`.
fn quota_and_period(text: &str) -> Result<Option<CpuQuota>, ParseError> {
    let expected = || ParseError::new("a quota and a period like '50000 100000', or 'max 100000'", text);
    let (quota, period) = text.split_once(' ').ok_or_else(expected)?;
    let period_us = period.trim().parse().map_err(|_| expected())?;
    if quota == "max" {
        return Ok(None);
    }
    let quota_us = quota.parse().map_err(|_| expected())?;
    Ok(CpuQuota { quota_us, period_us }.sensible())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MOUNT_2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn of_all_groups_above_the_tightest_counts() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/a.slice/b.scope\n"),
            ("proc/self/mountinfo", MOUNT_2),
            ("sys/fs/cgroup/a.slice/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a.slice/b.scope/cpu.max", "80000 20000\n"),
        ]);
        let quota = CpuQuota::from_root(root.path()).unwrap().unwrap();
        assert_eq!(quota, CpuQuota { quota_us: 150_000, period_us: 100_000 });
        assert_eq!(quota.whole_cpus(), 1);
    }

    #[test]
    fn version_1_counts_its_cpu_controller_only() {
        let root = tree(&[
            ("proc/self/cgroup", "3:cpuset:/\n2:cpu,cpuacct:/docker/f00\n"),
            (
                "proc/self/mountinfo",
                "33 25 0:29 /docker/f00 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            ),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(CpuQuota::from_root(root.path()).unwrap().unwrap().whole_cpus(), 4);
        fs::write(root.path().join("sys/fs/cgroup/cpu/cpu.cfs_quota_us"), "-1\n").unwrap();
        assert_eq!(CpuQuota::from_root(root.path()).unwrap(), None);
    }

    #[test]
    fn a_process_outside_of_the_mount_is_held_to_its_top() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/../other\n"),
            ("proc/self/mountinfo", MOUNT_2),
            ("sys/fs/cgroup/cpu.max", "200000 100000\n"),
        ]);
        assert_eq!(CpuQuota::from_root(root.path()).unwrap().unwrap().whole_cpus(), 2);
    }

    #[test]
    fn of_all_groups_above_the_one_with_least_memory_left_counts() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/a.slice/b.scope\n"),
            ("proc/self/mountinfo", MOUNT_2),
            ("sys/fs/cgroup/a.slice/memory.max", "5000000\n"),
            ("sys/fs/cgroup/a.slice/memory.current", "4000000\n"),
            ("sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n"),
            ("sys/fs/cgroup/a.slice/b.scope/memory.current", "3000000\n"),
        ]);
        let left = || memory_left_from_root(root.path()).unwrap();
        assert_eq!(left(), Some(1_000_000));
        fs::write(root.path().join("sys/fs/cgroup/a.slice/b.scope/memory.max"), "3500000\n").unwrap();
        assert_eq!(left(), Some(500_000));
        fs::write(root.path().join("sys/fs/cgroup/a.slice/b.scope/memory.max"), "2000000\n").unwrap();
        assert_eq!(left(), Some(0), "a limit that was set below what is used");
        let stat = "anon 500000\ninactive_file 1500000\nactive_file 800000\ninactive_file_other 7\n";
        fs::write(root.path().join("sys/fs/cgroup/a.slice/b.scope/memory.stat"), stat).unwrap();
        assert_eq!(
            left(),
            Some(1_000_000),
            "the other group's, as this one has 1 300 000 but for its page cache"
        );
    }

    #[test]
    fn memory_above_which_the_kernel_takes_some_back_is_not_left() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/a.slice\n"),
            ("proc/self/mountinfo", MOUNT_2),
            ("sys/fs/cgroup/a.slice/memory.max", "max\n"),
            ("sys/fs/cgroup/a.slice/memory.high", "4500000\n"),
            ("sys/fs/cgroup/a.slice/memory.current", "4000000\n"),
        ]);
        let left = || memory_left_from_root(root.path()).unwrap();
        assert_eq!(left(), Some(500_000));
        fs::write(root.path().join("sys/fs/cgroup/a.slice/memory.max"), "4200000\n").unwrap();
        assert_eq!(left(), Some(200_000));
        fs::write(root.path().join("sys/fs/cgroup/a.slice/memory.high"), "max\n").unwrap();
        assert_eq!(left(), Some(200_000));
    }

    #[test]
    fn version_1_has_a_number_for_no_limit() {
        let root = tree(&[
            ("proc/self/cgroup", "3:memory:/docker/f00\n2:cpu,cpuacct:/docker/f00\n"),
            (
                "proc/self/mountinfo",
                "33 25 0:29 /docker/f00 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
        ]);
        assert_eq!(memory_left_from_root(root.path()).unwrap(), None);
        fs::write(root.path().join("sys/fs/cgroup/memory/memory.limit_in_bytes"), "4096\n").unwrap();
        assert_eq!(memory_left_from_root(root.path()).unwrap(), Some(3096));
    }

    #[test]
    fn without_groups_or_limits_there_is_none() {
        assert_eq!(CpuQuota::from_root(tree(&[("proc/x", "")]).path()).unwrap(), None);
        let root = tree(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", MOUNT_2),
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(CpuQuota::from_root(root.path()).unwrap(), None);
    }

    #[test]
    fn nonsense_is_named() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", MOUNT_2),
            ("sys/fs/cgroup/cpu.max", "much\n"),
        ]);
        let error = CpuQuota::from_root(root.path()).unwrap_err().to_string();
        assert!(error.contains("cpu.max:1: expected a quota and a period"), "{error}");
    }
}
