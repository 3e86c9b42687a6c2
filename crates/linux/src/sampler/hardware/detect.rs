//! Which memory-sampling PMU a machine has, from `/sys/bus/event_source/devices` and `/proc/cpuinfo`.

use super::format::PmuDirectory;
use super::ibs::Ibs;
use super::pebs::Pebs;
use super::sampled::Sampled;
use super::spe::{Sources, Spe};
use crate::{Error, ErrorKind};
use nodewise_engine::SamplingRate;
use nodewise_topology::CpuSet;
use std::fs;
use std::path::Path;

/// A PMU that samples memory accesses with address and source, and what to open on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pmu {
    /// Intel PEBS.
    Pebs(Pebs),
    /// AMD IBS.
    Ibs(Ibs),
    /// Arm SPE.
    Spe(Spe),
}

/// The fields of `/proc/cpuinfo` that are asked for, of its first CPU.
#[derive(Debug, Default)]
struct Cpu {
    vendor: String,
    family: u32,
    model: u32,
    implementer: u32,
    part: u32,
    is_virtual: bool,
}

/// Where the kernel describes its PMUs.
pub(super) const DEVICES: &str = "sys/bus/event_source/devices";

/// PMUs that are looked for there.
pub(super) const DIRECTORIES: [&str; 4] = ["ibs_op", SPE, "cpu", "cpu_core"];
const SPE: &str = "arm_spe_0";

impl Pmu {
    /// The PMU of the machine whose files are below `root` (`/` for this one).
    ///
    /// # Errors
    /// `Unsupported`, in one line that says why there is none; `File` when sysfs cannot be read or
    /// understood.
    pub fn detect(root: &Path) -> Result<Self, Error> {
        let cpu = Cpu::read(root);
        let devices = root.join(DEVICES);
        let [ibs, spe, pebs @ ..] = DIRECTORIES;
        if let Some(ibs) = PmuDirectory::open(&devices, ibs)? {
            return Ibs::detect(&ibs, cpu.family, cpu.model).map(Self::Ibs);
        }
        if let Some(spe) = PmuDirectory::open(&devices, spe)? {
            return Spe::detect(&spe, Sources::of(cpu.implementer, cpu.part)).map(Self::Spe);
        }
        // On hybrid parts the P cores' PMU, which the kernel opens on P cores alone.
        for name in pebs {
            let Some(pmu) = PmuDirectory::open(&devices, name)? else { continue };
            return match Pebs::detect(&pmu, cpu.is_virtual)? {
                Some(pebs) => Ok(Self::Pebs(pebs)),
                None => Err(missing(match cpu.vendor.as_str() {
                    "AuthenticAMD" | "HygonGenuine" if cpu.is_virtual => {
                        "the hypervisor does not pass IBS on to this virtual machine"
                    }
                    "AuthenticAMD" | "HygonGenuine" => {
                        "IBS is switched off in the firmware, or the kernel lacks it"
                    }
                    _ if cpu.is_virtual => "the hypervisor does not pass PEBS on to this virtual machine",
                    _ => "the kernel knows no load latency event for this CPU",
                })),
            };
        }
        let has_arm_pmu = fs::read_dir(&devices).is_ok_and(|entries| {
            entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("armv8"))
        });
        Err(missing(if has_arm_pmu {
            "this CPU has no SPE, or the firmware or kernel (CONFIG_ARM_SPE_PMU) does not enable it"
        } else if cpu.is_virtual {
            "this CPU's PMU is not visible (virtual machine)"
        } else {
            "the kernel exports no CPU PMU"
        }))
    }

    /// The PMU's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pebs(_) => "Intel PEBS",
            Self::Ibs(_) => "AMD IBS op",
            Self::Spe(_) => "Arm SPE",
        }
    }

    /// Events to open together, on one ring.
    pub(super) fn events(&self) -> Vec<Sampled> {
        match self {
            Self::Pebs(pebs) => pebs.events(),
            Self::Ibs(ibs) => ibs.events(),
            Self::Spe(spe) => spe.events(),
        }
    }

    /// File descriptors it takes on each CPU or thread.
    pub(super) fn files_each(&self) -> usize {
        self.events().iter().map(|event| 1 + usize::from(event.leader.is_some())).sum()
    }

    /// How often it samples what, for people.
    pub(super) fn frequency(&self, rate: SamplingRate) -> String {
        let each =
            self.events().into_iter().map(|event| format!("{} {}", event.periods.at(rate), event.what));
        format!("one sample in {}", each.collect::<Vec<_>>().join(" and in "))
    }
}

/// The CPUs of the first SPE, where others than it have others of those that are online.
pub(super) fn only_cpus(root: &Path, online: &CpuSet) -> Option<CpuSet> {
    let text = fs::read_to_string(root.join(DEVICES).join(SPE).join("cpumask")).ok()?;
    let cpus: CpuSet = text.trim().parse().ok()?;
    online.iter().any(|cpu| !cpus.contains(cpu)).then_some(cpus)
}

fn missing(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("no hardware sampler: {why}"))
}

impl Cpu {
    /// A field that is not there stays empty; other files then say that there is no PMU.
    fn read(root: &Path) -> Self {
        let text = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let first = text.split("\n\n").next().unwrap_or_default();
        let field = |name: &str| {
            let mut fields = first.lines().filter_map(|line| line.split_once(':'));
            fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
        };
        let number = |name: &str| {
            let value = field(name)?;
            value
                .strip_prefix("0x")
                .map_or_else(|| value.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
        };
        let is_virtual = field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
            // Arm's cpuinfo does not say; firmware tables of virtual machines do.
            || fs::read_to_string(root.join("sys/class/dmi/id/sys_vendor")).is_ok_and(|vendor| {
                ["QEMU", "KVM", "Amazon EC2", "Google", "VMware", "Xen"].iter().any(|v| vendor.contains(v))
            });
        Self {
            vendor: field("vendor_id").unwrap_or_default().to_owned(),
            family: number("cpu family").unwrap_or(0),
            model: number("model").unwrap_or(0),
            implementer: number("CPU implementer").unwrap_or(0),
            part: number("CPU part").unwrap_or(0),
            is_virtual,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::sampler::hardware::sampled::Periods;
    use nodewise_sys::perf::{AttrFlags, SampleType};

    /// A tree of the files that matter, with the contents that the kernel gives them.
    pub(in super::super) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const INTEL: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nflags\t\t: fpu pebs\n\nprocessor\t: 1\n";
    const AMD_ZEN_3: &str =
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\nflags\t\t: fpu ibs\n";
    const ARM_N2: &str = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd49\n";
    const GUEST: &str = "vendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\n";
    const CPU: &str = "sys/bus/event_source/devices/cpu";

    fn zen_3() -> tempfile::TempDir {
        tree(&[
            ("proc/cpuinfo", AMD_ZEN_3),
            ("sys/bus/event_source/devices/cpu/type", "4\n"),
            ("sys/bus/event_source/devices/ibs_op/type", "11\n"),
            ("sys/bus/event_source/devices/ibs_op/format/cnt_ctl", "config:19\n"),
        ])
    }

    pub(in super::super) fn neoverse_n2() -> tempfile::TempDir {
        tree(&[
            ("proc/cpuinfo", ARM_N2),
            ("sys/bus/event_source/devices/arm_spe_0/type", "12\n"),
            ("sys/bus/event_source/devices/arm_spe_0/caps/min_interval", "256\n"),
            ("sys/bus/event_source/devices/arm_spe_0/format/ts_enable", "config:0\n"),
            ("sys/bus/event_source/devices/arm_spe_0/format/jitter", "config:16\n"),
            ("sys/bus/event_source/devices/arm_spe_0/format/load_filter", "config:33\n"),
            ("sys/bus/event_source/devices/arm_spe_0/format/store_filter", "config:34\n"),
            ("sys/bus/event_source/devices/arm_spe_0/format/min_latency", "config2:0-11\n"),
        ])
    }

    #[test]
    fn cpus_of_another_spe_are_told() {
        let all: CpuSet = "0-7".parse().unwrap();
        let cpumask = |cpus| tree(&[("sys/bus/event_source/devices/arm_spe_0/cpumask", cpus)]);
        assert_eq!(only_cpus(cpumask("0-3\n").path(), &all), "0-3".parse().ok());
        assert_eq!(only_cpus(cpumask("0-15\n").path(), &all), None);
        assert_eq!(only_cpus(neoverse_n2().path(), &all), None, "one that does not say");
    }

    /// One of each, for tests of what is done with their records.
    pub(in super::super) fn intel() -> Pmu {
        Pmu::detect(sapphire_rapids().path()).unwrap()
    }

    pub(in super::super) fn amd() -> Pmu {
        Pmu::detect(zen_3().path()).unwrap()
    }

    pub(in super::super) fn arm() -> Pmu {
        Pmu::detect(neoverse_n2().path()).unwrap()
    }

    pub(in super::super) fn sapphire_rapids() -> tempfile::TempDir {
        tree(&[
            ("proc/cpuinfo", INTEL),
            ("sys/bus/event_source/devices/cpu/type", "4\n"),
            ("sys/bus/event_source/devices/cpu/caps/max_precise", "3\n"),
            ("sys/bus/event_source/devices/cpu/format/event", "config:0-7\n"),
            ("sys/bus/event_source/devices/cpu/format/umask", "config:8-15\n"),
            ("sys/bus/event_source/devices/cpu/format/ldlat", "config1:0-15\n"),
            ("sys/bus/event_source/devices/cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
            ("sys/bus/event_source/devices/cpu/events/mem-loads-aux", "event=0x03,umask=0x82\n"),
            ("sys/bus/event_source/devices/cpu/events/mem-stores", "event=0xcd,umask=0x2\n"),
        ])
    }

    #[test]
    fn sapphire_rapids_groups_its_loads() {
        let root = sapphire_rapids();
        let pmu = Pmu::detect(root.path()).unwrap();
        assert_eq!((pmu.name(), pmu.files_each()), ("Intel PEBS", 3));
        let events = pmu.events();
        let (leader, loads) = (events[0].leader, events[0].attr);
        assert_eq!(leader.unwrap().config, 0x8203);
        assert_eq!(leader.unwrap().sample_period, 0);
        assert_eq!((loads.kind, loads.config, loads.config1), (4, 0x01cd, 64));
        assert!(loads.flags.contains(AttrFlags::PRECISE_2 | AttrFlags::EXCLUDE_KERNEL));
        let (leader, stores) = (events[1].leader, events[1].attr);
        assert_eq!((leader, stores.config), (None, 0x02cd));
    }

    #[test]
    fn hybrid_cpus_are_sampled_by_the_performance_cores_pmu() {
        let devices = "sys/bus/event_source/devices";
        let [of_all, performance, efficiency] =
            ["cpu", "cpu_core", "cpu_atom"].map(|name| format!("{devices}/{name}"));
        let root = sapphire_rapids();
        fs::rename(root.path().join(&of_all), root.path().join(&performance)).unwrap();
        fs::write(root.path().join(performance).join("cpus"), "0-15\n").unwrap();
        // Its load latency event is another one, of another PMU, and comes first by name.
        let atom = root.path().join(efficiency);
        fs::create_dir_all(atom.join("events")).unwrap();
        fs::write(atom.join("type"), "10\n").unwrap();
        fs::write(atom.join("events/mem-loads"), "event=0xd0,umask=0x5,ldlat=3\n").unwrap();
        let pmu = Pmu::detect(root.path()).unwrap();
        let loads = pmu.events()[0].attr;
        assert_eq!((pmu.name(), loads.kind, loads.config), ("Intel PEBS", 4, 0x01cd));
    }

    #[test]
    fn skylake_needs_no_group() {
        let root = sapphire_rapids();
        fs::remove_file(root.path().join(CPU).join("events/mem-loads-aux")).unwrap();
        fs::write(root.path().join(CPU).join("events/mem-stores"), "event=0xd0,umask=0x82\n").unwrap();
        let pmu = Pmu::detect(root.path()).unwrap();
        assert_eq!(pmu.files_each(), 2);
        assert_eq!(pmu.events()[1].attr.config, 0x82d0);
    }

    #[test]
    fn ibs_asks_for_no_filter_that_the_kernel_lacks() {
        let ibs = "sys/bus/event_source/devices/ibs_op";
        let root = zen_3();
        let attr = |pmu: &Pmu| pmu.events()[0].attr;
        let pmu = Pmu::detect(root.path()).unwrap();
        assert_eq!((attr(&pmu).kind, attr(&pmu).config), (11, 1 << 19));
        assert!(!attr(&pmu).flags.contains(AttrFlags::EXCLUDE_KERNEL));
        assert!(!attr(&pmu).flags.contains(AttrFlags::EXCLUDE_HV));
        assert!(!attr(&pmu).flags.contains(AttrFlags::EXCLUDE_GUEST), "the kernel refuses it");
        // Without a filter each sample is an interrupt.
        assert_eq!(pmu.events()[0].periods, Periods { accurate: 1 << 18, cheap: 0xf_fff0 });
        assert!(matches!(&pmu, Pmu::Ibs(ibs) if ibs.registers.erratum_1293));
        fs::write(root.path().join(ibs).join("format/l3missonly"), "config:16\n").unwrap();
        fs::write(root.path().join(ibs).join("format/swfilt"), "config2:0\n").unwrap();
        let pmu = Pmu::detect(root.path()).unwrap();
        assert_eq!((attr(&pmu).config, attr(&pmu).config2), (1 << 19 | 1 << 16, 1));
        assert!(attr(&pmu).flags.contains(AttrFlags::EXCLUDE_KERNEL));
        assert_eq!(pmu.events()[0].periods, Periods { accurate: 1 << 16, cheap: 1 << 18 });
        assert_eq!(pmu.frequency(SamplingRate::Cheap), "one sample in 262144 micro-ops");
        fs::remove_file(root.path().join(ibs).join("format/cnt_ctl")).unwrap();
        let pmu = Pmu::detect(root.path()).unwrap();
        assert_eq!(attr(&pmu).config, 1 << 16);
        assert_eq!(pmu.frequency(SamplingRate::Cheap), "one sample in 262144 cycles");
    }

    #[test]
    fn pebs_asks_only_for_what_the_cpu_may_gather_in_a_buffer() {
        let pmu = intel();
        for event in pmu.events() {
            let SampleType(asked) = event.attr.sample_type;
            assert_eq!(asked & (SampleType::TIME | SampleType::WEIGHT).0, 0);
            assert!(!event.attr.flags.contains(AttrFlags::USE_CLOCKID));
        }
        let periods = pmu.events().iter().map(|event| event.periods.accurate).collect::<Vec<_>>();
        assert!(periods[0] >= 10_007 && periods[1] >= 100_003, "{periods:?}");
        assert_eq!(
            pmu.frequency(SamplingRate::Accurate),
            "one sample in 10007 slow loads and in 100003 stores"
        );
    }

    #[test]
    fn pebs_leaves_guests_out() {
        for event in intel().events() {
            for attr in event.leader.iter().chain([&event.attr]) {
                assert!(attr.flags.contains(AttrFlags::EXCLUDE_GUEST));
            }
        }
    }

    #[test]
    fn spe_asks_for_loads_and_stores() {
        let root = neoverse_n2();
        let pmu = Pmu::detect(root.path()).unwrap();
        let attr = pmu.events()[0].attr;
        assert_eq!((attr.config, attr.config2), (1 | 1 << 16 | 1 << 33 | 1 << 34, 32));
        assert!(attr.flags.contains(AttrFlags::SAMPLE_ID_ALL));
        assert!(matches!(pmu, Pmu::Spe(spe) if spe.sources == Sources::Arm));
    }

    #[test]
    fn says_in_one_line_why_there_is_none() {
        let why = |files: &[(&str, &str)]| {
            let error = Pmu::detect(tree(files).path()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            error.to_string()
        };
        let devices = "sys/bus/event_source/devices";
        let cpu_type = &format!("{devices}/cpu/type");
        assert_eq!(
            why(&[("proc/cpuinfo", GUEST)]),
            "no hardware sampler: this CPU's PMU is not visible (virtual machine)"
        );
        assert_eq!(
            why(&[("proc/cpuinfo", GUEST), (cpu_type, "4\n")]),
            "no hardware sampler: the hypervisor does not pass PEBS on to this virtual machine"
        );
        assert_eq!(
            why(&[("proc/cpuinfo", AMD_ZEN_3), (cpu_type, "4\n")]),
            "no hardware sampler: IBS is switched off in the firmware, or the kernel lacks it"
        );
        assert_eq!(
            why(&[("proc/cpuinfo", ARM_N2), (&format!("{devices}/armv8_pmuv3_0/type"), "8\n")]),
            "no hardware sampler: this CPU has no SPE, or the firmware or kernel (CONFIG_ARM_SPE_PMU) does not enable it"
        );
        assert_eq!(why(&[]), "no hardware sampler: the kernel exports no CPU PMU");
    }

    #[test]
    fn a_guest_with_a_pmu_but_without_precise_events_has_no_pebs() {
        let root = sapphire_rapids();
        fs::write(root.path().join(CPU).join("caps/max_precise"), "0\n").unwrap();
        assert_eq!(Pmu::detect(root.path()).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn malformed_files_are_named() {
        let root = sapphire_rapids();
        let path = root.path().join(CPU).join("format/ldlat");
        fs::write(&path, "config1:x\n").unwrap();
        let error = Pmu::detect(root.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::File);
        assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");
    }
}
