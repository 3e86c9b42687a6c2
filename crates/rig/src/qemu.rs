//! QEMU's command line, and the choice between KVM and software emulation.

use crate::shape::BUSES_APART;
use crate::{Device, Distances, Error, ErrorKind, Node};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::Duration;
use std::{fmt, thread};

/// How a guest's CPUs are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// The host's CPUs, by /dev/kvm.
    Kvm,
    /// Software emulation.
    Emulation,
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::Emulation => "software emulation",
        })
    }
}

/// A serial line of the guest, see init.sh; QEMU connects each to a socket of this name.
pub(crate) const LINES: [&str; 3] = ["out", "err", "control"];

/// Ports and interrupts of ttyS1 to ttyS3. A PC's third and fourth share the interrupts of the first two,
/// and an edge-triggered one that is shared gets lost; the guest learns these from ACPI.
const LINE_PORTS: [(&str, &str); 3] = [("0x2f8", "3"), ("0x3e8", "5"), ("0x2e8", "7")];

/// Kernel parameters of every guest: nothing that only costs time on a machine that lives for seconds. Three
/// parts of the kernel that no guest needs take 0.4 s to begin, and write protection of the kernel's own code
/// takes as long. The kernel is always in the same place, on node 0: of a small node not much is left where
/// chance puts it there.
const PARAMETERS: &str = "console=ttyS0 panic=-1 mitigations=off tsc=reliable random.trust_cpu=on nokaslr \
                          cryptomgr.notests rodata=off \
                          initcall_blacklist=jent_mod_init,crypto_kdf108_init,bpf_tcp_ca_kfunc_init";
/// For emulated ones: how far a delay loop counts in 4 ms, here that of a TSC with 2.5 GHz, this machine's
/// being not far from that. Else each CPU measures it, fails to, and tries again: 2 of a 4-node guest's 5 s.
const EMULATED_PARAMETERS: &str = "lpj=10000000";
/// For modelled machines, whose TSC counts nanoseconds.
const MODELLED_PARAMETERS: &str = "lpj=4000000";

/// The QEMU of this machine.
pub(crate) struct Qemu {
    path: PathBuf,
    /// Major and minor number.
    pub version: (u32, u32),
}

impl Qemu {
    pub fn find() -> Result<Self, Error> {
        let path = crate::program::find("qemu-system-x86_64".as_ref(), Path::new("/")).map_err(|_| {
            Error::new(
                ErrorKind::NotInstalled,
                "no QEMU: run 'make setup' in the nodewise sources, or 'apt-get install --no-install-recommends \
                 qemu-system-x86'",
            )
        })?;
        let output = Command::new(&path).arg("--version").output();
        let output = output.map_err(|error| Error::file(ErrorKind::NotInstalled, "run", &path, error))?;
        let version = version(&String::from_utf8_lossy(&output.stdout)).unwrap_or_default();
        Ok(Self { path, version })
    }

    /// The emulated CPU is all QEMU knows, without five-level page tables, which only make walks longer.
    ///
    /// QEMU before 8.1 (Debian 12 has 7.2) has two bugs that each kill some boots:
    /// - it computes a cmpxchg16b's result from flags it has not brought up to date, and an interrupt right
    ///   after it saves and restores garbage. 13 of 40 boots panicked, most in the slab allocator, which uses
    ///   it wherever CPUID has it;
    /// - with a thread for each CPU, it may translate code while another CPU writes it, and keep what was
    ///   there before. 2 of 80 boots met an int3 that the kernel had long replaced (Oops: int3). Later ones
    ///   do that, too, but far less often ([`Emulation`](ErrorKind::Emulation)).
    fn emulation(&self) -> [&'static str; 4] {
        if self.version < (8, 1) {
            ["-accel", "tcg,thread=single", "-cpu", "max,la57=off,cx16=off"]
        } else {
            ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]
        }
    }
}

/// The number in `QEMU emulator version 7.2.15 (Debian ...)`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_once("version ")?.1.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The whole command that runs a guest. `directory` holds the sockets and the initramfs.
pub(crate) fn command(
    qemu: &Qemu,
    accelerator: Accelerator,
    kernel: &Path,
    directory: &Path,
    nodes: &[Node],
    distances: Option<&Distances>,
    append: &[String],
) -> Command {
    let mut command = base(qemu, accelerator);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(directory.join("initramfs"));
    let parameters = std::iter::once(PARAMETERS).chain(append.iter().map(String::as_str));
    command.arg("-append").arg(parameters.collect::<Vec<_>>().join(" "));
    command.args(machine(nodes, distances));
    command.args(["-serial", "stdio"]); // the console
    for (index, (name, (port, interrupt))) in LINES.iter().zip(LINE_PORTS).enumerate() {
        let mut path = OsString::from(format!("socket,id={name},path="));
        path.push(directory.join(name));
        command.arg("-chardev").arg(path).arg("-device");
        command.arg(format!("isa-serial,chardev={name},index={},iobase={port},irq={interrupt}", index + 1));
    }
    command
}

/// The parameters that tell a guest's kernel how fast its CPUs count, so that it need not measure that.
pub(crate) fn parameters(accelerator: Accelerator, modelled: bool) -> Option<&'static str> {
    match accelerator {
        Accelerator::Kvm => None,
        Accelerator::Emulation if modelled => Some(MODELLED_PARAMETERS),
        Accelerator::Emulation => Some(EMULATED_PARAMETERS),
    }
}

/// setpriv takes QEMU down even when this process is killed with no chance to do so.
fn base(qemu: &Qemu, accelerator: Accelerator) -> Command {
    let mut command = match crate::program::find("setpriv".as_ref(), Path::new("/")) {
        Ok(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(&qemu.path);
            command
        }
        Err(_) => Command::new(&qemu.path),
    };
    match accelerator {
        Accelerator::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
        Accelerator::Emulation => command.args(qemu.emulation()),
    };
    command.args(["-M", "pc", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    // Its own process group: a terminal's Ctrl-C is for us to handle.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command
}

/// Each node with CPUs is a package; where the counts differ, each CPU is one.
fn machine(nodes: &[Node], distances: Option<&Distances>) -> Vec<String> {
    let cpus: u32 = nodes.iter().map(|node| node.cpus).sum();
    let memory_bytes: u64 = nodes.iter().map(|node| node.memory_bytes).sum();
    let with_cpus: Vec<u32> = nodes.iter().map(|node| node.cpus).filter(|&cpus| cpus > 0).collect();
    let (sockets, cores) = match with_cpus.as_slice() {
        [first, rest @ ..] if rest.iter().all(|cpus| cpus == first) => (with_cpus.len() as u32, *first),
        _ => (cpus, 1),
    };
    let mut arguments: Vec<String> = ["-m", &format!("{}M", memory_bytes >> 20)].map(String::from).into();
    let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    option("-smp", format!("{cpus},sockets={sockets},cores={cores},threads=1"));
    let mut first_cpu = 0;
    for (id, node) in nodes.iter().enumerate() {
        let mut numa = vec![format!("node,nodeid={id}")];
        if node.cpus > 0 {
            numa.push(format!("cpus={first_cpu}-{}", first_cpu + node.cpus - 1));
            first_cpu += node.cpus;
        }
        if node.memory_bytes > 0 {
            option("-object", format!("memory-backend-ram,id=memory{id},size={}M", node.memory_bytes >> 20));
            numa.push(format!("memdev=memory{id}"));
        }
        option("-numa", numa.join(","));
    }
    for (from, row) in distances.map(Distances::rows).unwrap_or_default().iter().enumerate() {
        for (to, value) in row.iter().enumerate() {
            option("-numa", format!("dist,src={from},dst={to},val={value}"));
        }
    }
    arguments
}

/// Each device below a host bridge that firmware says is on its node (`_PXM`).
pub(crate) fn devices(devices: &[(usize, Device)]) -> Vec<String> {
    devices.iter().enumerate().flat_map(|(index, &(node, device))| attached(index, node, device)).collect()
}

fn attached(index: usize, node: usize, device: Device) -> Vec<String> {
    let bus = (index + 1) * BUSES_APART;
    let mut arguments =
        vec!["-device".to_owned(), format!("pxb,id=bridge{index},bus=pci.0,bus_nr={bus},numa_node={node}")];
    let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
    match device {
        Device::Nvme => {
            option("-drive", format!("if=none,id=disk{index},driver=null-co,size=64M,read-zeroes=on"));
            option("-device", format!("nvme,bus=bridge{index},addr=1,serial=disk{index},drive=disk{index}"));
        }
        Device::Network => option("-device", format!("virtio-net-pci,bus=bridge{index},addr=1,romfile=")),
    }
    arguments
}

/// How long a kernel under KVM may take to its first line; it takes some 0.3 s.
const KVM_PROBE_LIMIT: Duration = Duration::from_secs(2);

/// KVM where a kernel really starts on it, else emulation. There are machines whose /dev/kvm opens, and
/// even runs a few instructions, and then hangs. Found out once a process. Where it hangs, which takes the
/// whole limit, a file keeps that for the processes of the next minutes.
pub(crate) fn accelerator(qemu: &Qemu, kernel: &Path) -> Accelerator {
    static FOUND: OnceLock<Accelerator> = OnceLock::new();
    *FOUND.get_or_init(|| match OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        Ok(kvm) if starts_on(&kvm, qemu, kernel) => Accelerator::Kvm,
        _ => Accelerator::Emulation,
    })
}

/// A kernel on KVM.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnKvm {
    Starts,
    /// QEMU has said what is missing, perhaps memory, and ended.
    Ends,
    /// Nothing until the limit. The machine may have been too busy.
    Hangs,
}

fn starts_on(kvm: &File, qemu: &Qemu, kernel: &Path) -> bool {
    // A boot or a module that was loaded anew makes another device.
    let since = kvm.metadata().map_or((0, 0), |metadata| (metadata.ctime(), metadata.ctime_nsec()));
    let asked = format!("{since:?} {:?} {} {}\n", qemu.version, qemu.path.display(), kernel.display());
    match crate::lock::open_own("-kvm-hangs") {
        Ok(mut file) => starts_unless_kept(&mut file, &asked, || on_kvm(qemu, kernel)),
        Err(_) => on_kvm(qemu, kernel) == OnKvm::Starts,
    }
}

const KEPT_FOR: Duration = Duration::from_secs(600);

/// That it hangs is kept in the file, by what was asked. If that cannot be read or written, it is found out
/// again.
fn starts_unless_kept(file: &mut File, asked: &str, try_it: impl FnOnce() -> OnKvm) -> bool {
    let mut known = String::new();
    let is_read = file.read_to_string(&mut known).is_ok();
    let written = file.metadata().and_then(|metadata| metadata.modified());
    let age = written.ok().and_then(|written| written.elapsed().ok());
    if is_read && known == asked && age.is_some_and(|age| age < KEPT_FOR) {
        return false;
    }
    let found = try_it();
    let kept = if found == OnKvm::Hangs { asked } else { "" };
    let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(kept.as_bytes()));
    found == OnKvm::Starts
}

fn on_kvm(qemu: &Qemu, kernel: &Path) -> OnKvm {
    let mut command = base(qemu, Accelerator::Kvm);
    command.arg("-kernel").arg(kernel).args(["-append", "earlyprintk=ttyS0 console=ttyS0"]);
    command.args(["-m", "256M", "-serial", "stdio"]).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return OnKvm::Ends };
    let (sender, receiver) = mpsc::channel();
    if let Some(console) = child.stdout.take() {
        thread::spawn(move || {
            let lines = BufReader::new(console).split(b'\n').map_while(Result::ok);
            let version = b"Linux version";
            let started =
                lines.take(100).any(|line| line.windows(version.len()).any(|words| words == version));
            let _ = sender.send(started); // nobody listens when the limit has passed
        });
    }
    let found = match receiver.recv_timeout(KVM_PROBE_LIMIT) {
        Ok(true) => OnKvm::Starts,
        Ok(false) => OnKvm::Ends,
        Err(_) => OnKvm::Hangs,
    };
    let _ = child.kill();
    let _ = child.wait();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_hung_is_not_started_again_for_a_while() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let starts = |asked: &str, found: Option<OnKvm>| {
            starts_unless_kept(&mut open(), asked, || found.expect("it is known that it hangs"))
        };
        assert!(!starts("this QEMU\n", Some(OnKvm::Ends)));
        assert!(!starts("this QEMU\n", Some(OnKvm::Hangs)), "that one ended is not kept");
        assert!(!starts("this QEMU\n", None));
        assert!(starts("another\n", Some(OnKvm::Starts)));
        assert!(!starts("this QEMU\n", Some(OnKvm::Hangs)), "the last that was asked is kept");
        assert!(!starts("this QEMU\n", None));
        open().set_modified(std::time::SystemTime::now() - KEPT_FOR).unwrap();
        assert!(starts("this QEMU\n", Some(OnKvm::Starts)));
        assert!(starts("this QEMU\n", Some(OnKvm::Starts)), "that one started is not kept");
    }

    #[test]
    fn uneven_nodes_are_laid_out_one_after_the_other() {
        let node = |cpus, mib: u64| Node { cpus, memory_bytes: mib << 20 };
        let distances = Distances::parse("10,20,17;20,10,28;17,28,10", 3).unwrap();
        let arguments = machine(&[node(2, 1024), node(1, 512), node(0, 256)], Some(&distances)).join(" ");
        assert!(arguments.starts_with("-m 1792M -smp 3,sockets=3,cores=1,threads=1"), "{arguments}");
        assert!(arguments.contains("-numa node,nodeid=0,cpus=0-1,memdev=memory0"));
        assert!(arguments.contains("-numa node,nodeid=1,cpus=2-2,memdev=memory1"));
        assert!(arguments.contains("-numa node,nodeid=2,memdev=memory2"));
        assert!(arguments.contains("-numa dist,src=0,dst=2,val=17"));
    }

    #[test]
    fn old_qemus_are_kept_from_their_bugs() {
        let text = "QEMU emulator version 7.2.15 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright (c) 2003-2022";
        assert_eq!(version(text), Some((7, 2)));
        assert_eq!(version("QEMU emulator version 10.0.2\n"), Some((10, 0)));
        assert_eq!(version("something else"), None);
        let emulation = |version| Qemu { path: PathBuf::new(), version }.emulation().join(" ");
        assert!(emulation((7, 2)).contains("thread=single -cpu max,la57=off,cx16=off"));
        assert!(emulation((8, 1)).contains("thread=multi") && !emulation((10, 0)).contains("cx16"));
    }

    #[test]
    fn each_device_has_a_host_bridge_on_its_node() {
        let arguments = devices(&[(1, Device::Nvme), (3, Device::Network)]).join(" ");
        assert!(arguments.contains("pxb,id=bridge0,bus=pci.0,bus_nr=16,numa_node=1"), "{arguments}");
        assert!(arguments.contains("nvme,bus=bridge0,"), "{arguments}");
        assert!(arguments.contains("pxb,id=bridge1,bus=pci.0,bus_nr=32,numa_node=3"), "{arguments}");
        assert!(arguments.contains("virtio-net-pci,bus=bridge1,"), "{arguments}");
    }

    #[test]
    fn equal_nodes_are_packages() {
        let arguments = machine(&[Node { cpus: 2, memory_bytes: 1 << 30 }; 4], None).join(" ");
        assert!(arguments.contains("-smp 8,sockets=4,cores=2,threads=1"), "{arguments}");
    }
}
