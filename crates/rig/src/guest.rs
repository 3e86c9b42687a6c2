//! Boots a guest, follows it to its end, and leaves nothing behind.

use crate::initramfs::Initramfs;
use crate::lock::Lock;
use crate::machine::Machine;
use crate::own_cpu::OwnCpu;
use crate::qemu::Qemu;
use crate::running::Running;
use crate::{
    Accelerator, Device, Distances, Error, ErrorKind, Node, Report, kernel, packages, program, qemu, shape,
};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{env, fs};

/// A guest to be: its nodes and what is in it. Each [`run`](Guest::run) boots a fresh one.
#[derive(Clone, Debug)]
pub struct Guest {
    nodes: Vec<Node>,
    distances: Option<Distances>,
    devices: Vec<(usize, Device)>,
    kernel: Option<PathBuf>,
    accelerator: Option<Accelerator>,
    copies: Vec<PathBuf>,
    packages: Vec<String>,
    root: Option<PathBuf>,
    commands: Vec<(String, PathBuf)>,
    append: Vec<String>,
    boot_limit: Duration,
    time_limit: Option<Duration>,
    exclusive: bool,
    machine: Option<Machine>,
}

/// Where a run's bytes and news go.
pub struct Streams<'a> {
    /// The text that the program finds on its standard input, all of it.
    pub stdin: Vec<u8>,
    /// The program's standard output.
    pub stdout: &'a mut dyn Write,
    /// The program's standard error.
    pub stderr: &'a mut dyn Write,
    /// Whether standard error is the same file as standard output, as after `2>&1`: all comes through
    /// `stdout` then, in the order in which the program wrote it. Two files do not tell the order.
    pub joined: bool,
    /// The kernel's console, where given: the kernel says all it has to say, which takes it longer.
    pub console: Option<&'a mut dyn Write>,
    /// Called as the run goes from one stage to the next.
    pub progress: Option<&'a mut dyn FnMut(Stage)>,
    /// Where given, the program gets a terminal, as large as this one: its input comes from here, and all
    /// its output goes to `stdout`; `stdin` and `stderr` are not used.
    pub terminal: Option<Terminal>,
    /// Called at the end with the modelled machine's work, where there is one ([`Guest::machine`]).
    pub report: Option<&'a mut dyn FnMut(Report)>,
    /// When somebody sets this, the guest is ended at once and the run is an error.
    pub stop: &'a AtomicBool,
}

/// A terminal for the program.
pub struct Terminal {
    /// Keys, byte by byte as a terminal in raw mode gives them. Read by a thread that outlives the run until
    /// its next read returns.
    pub keys: Box<dyn Read + Send>,
    /// Height in lines.
    pub rows: u16,
    /// Width in characters.
    pub columns: u16,
}

/// How far a run has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Another exclusive guest is running, and this one waits.
    Waiting,
    /// The guest boots.
    Booting(Accelerator),
    /// The program runs.
    Running,
}

/// The results that a program left when it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its exit status as a shell gives it: 128 + the signal's number when a signal ended it.
    pub status: u8,
    /// All it wrote to standard output.
    pub stdout: Vec<u8>,
    /// All it wrote to standard error.
    pub stderr: Vec<u8>,
}

/// Set to anything but `0`, every guest is exclusive.
const EXCLUSIVE_VARIABLE: &str = "NODEWISE_RIG_EXCLUSIVE";
/// The memory that is not there for files: the kernel and what it reserves at boot.
const KERNEL_MIB: u64 = 64;
/// The trace begins when all processes are there that are not the program's. The shell has opened the
/// program's files by then, for which it has waited until those who read them had, too.
const TRACE: &[u8] = b"exec 4<>/dev/ttyS3; echo trace >&4; read go <&4; exec 4>&-\n";
/// Emulated on a busy machine, 8 nodes take some 20 s.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

impl Guest {
    /// A guest with these nodes, numbered from 0.
    #[must_use]
    pub fn new(nodes: impl Into<Vec<Node>>) -> Self {
        Self {
            nodes: nodes.into(),
            distances: None,
            devices: Vec::new(),
            kernel: None,
            accelerator: None,
            copies: Vec::new(),
            packages: Vec::new(),
            root: None,
            commands: Vec::new(),
            append: Vec::new(),
            boot_limit: BOOT_LIMIT,
            time_limit: None,
            exclusive: env::var_os(EXCLUSIVE_VARIABLE).is_some_and(|value| !value.is_empty() && value != "0"),
            machine: None,
        }
    }

    /// A guest of `nodes` equal nodes.
    #[must_use]
    pub fn uniform(nodes: usize, cpus: u32, memory_bytes: u64) -> Self {
        Self::new(vec![Node { cpus, memory_bytes }; nodes])
    }

    /// Distances between the nodes; without, each is 20 from each other.
    #[must_use]
    pub fn distances(mut self, distances: Distances) -> Self {
        self.distances = Some(distances);
        self
    }

    /// Attaches a device to a node; may be repeated.
    #[must_use]
    pub fn device(mut self, node: usize, device: Device) -> Self {
        self.devices.push((node, device));
        self
    }

    /// The kernel to boot, instead of the first of [`kernels`](crate::kernels).
    #[must_use]
    pub fn kernel(mut self, vmlinuz: impl Into<PathBuf>) -> Self {
        self.kernel = Some(vmlinuz.into());
        self
    }

    /// KVM or emulation, instead of KVM where it works.
    #[must_use]
    pub fn accelerator(mut self, accelerator: Accelerator) -> Self {
        self.accelerator = Some(accelerator);
        self
    }

    /// Copies a file or directory of this machine to the same path in the guest, with owners, modes and
    /// times; programs in it bring the libraries they need.
    #[must_use]
    pub fn copy(mut self, path: impl Into<PathBuf>) -> Self {
        self.copies.push(path.into());
        self
    }

    /// Copies the files of an installed Debian package of this machine, of all that it depends on, and of the
    /// essential packages. Documentation and translations stay here.
    #[must_use]
    pub fn package(mut self, name: impl Into<String>) -> Self {
        self.packages.push(name.into());
        self
    }

    /// Gives the guest a Debian tree of this machine for its root, as debootstrap makes one. The tree is only
    /// read. Programs are looked for in it first.
    #[must_use]
    pub fn root(mut self, tree: impl Into<PathBuf>) -> Self {
        self.root = Some(tree.into());
        self
    }

    /// Copies a program of this machine, and puts it into the guest's PATH under a name.
    #[must_use]
    pub fn command(mut self, name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        self.commands.push((name.into(), program.into()));
        self
    }

    /// Adds kernel parameters, as in `transparent_hugepage=never`.
    #[must_use]
    pub fn append(mut self, parameters: impl Into<String>) -> Self {
        self.append.push(parameters.into());
        self
    }

    /// How long the guest may take to boot before it counts as hung, instead of 180 s.
    #[must_use]
    pub fn boot_limit(mut self, limit: Duration) -> Self {
        self.boot_limit = limit;
        self
    }

    /// How long the program may run, its guest's boot not counted; without, as long as it likes.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Whether to wait until no other exclusive guest of this user runs. The environment variable
    /// `NODEWISE_RIG_EXCLUSIVE=1` makes all of them so.
    #[must_use]
    pub fn exclusive(mut self, exclusive: bool) -> Self {
        self.exclusive = exclusive;
        self
    }

    /// The machine whose time the guest has. Its nodes are this guest's, in order. The guest is emulated, and
    /// needs QEMU 10.0.
    #[must_use]
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = Some(machine);
        self
    }

    /// Runs a program of this machine in the guest, as root, and collects its output.
    ///
    /// These parts of `program` count: the name (looked up in PATH), the arguments, the variables set
    /// explicitly and the working directory. The guest has no other variables than PATH, HOME and, where set
    /// here, TERM, TZ and `LD_LIBRARY_PATH`. It has the time zone that TZ names, or else this machine's.
    pub fn output(&self, program: &Command) -> Result<Output, Error> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let status = self.run(program, Streams::new(&mut stdout, &mut stderr))?;
        Ok(Output { status, stdout, stderr })
    }

    /// Runs a program as [`output`](Self::output) does, with its output written as it comes, and returns
    /// its exit status: 128 + the signal's number when a signal ended it.
    pub fn run(&self, program: &Command, mut streams: Streams<'_>) -> Result<u8, Error> {
        shape::check(&self.nodes, self.distances.as_ref(), &self.devices)?;
        let qemu = Qemu::find()?;
        if self.machine.is_some() {
            Machine::check(self.accelerator, qemu.version)?;
        }
        let kernel = kernel::choose(self.kernel.as_deref(), kernel::kernels())?;
        // There is no use in waiting for others to give memory back that this machine does not have.
        self.check_memory("MemTotal:", "altogether")?;
        let directory = tempfile::Builder::new().prefix("nodewise-rig-").tempdir();
        let directory = directory.map_err(|error| Error::system("create a temporary directory", error))?;
        self.pack(program, &streams, &directory.path().join("initramfs"))?;

        let _lock = if self.exclusive {
            Some(Lock::wait(streams.stop, || streams.progress(Stage::Waiting))?)
        } else {
            None
        };
        self.check_memory("MemAvailable:", "to spare")?;
        let accelerator = match (&self.machine, self.accelerator) {
            (None, None) => qemu::accelerator(&qemu, &kernel),
            (None, Some(accelerator)) => accelerator,
            (Some(_), _) => Accelerator::Emulation,
        };
        streams.progress(Stage::Booting(accelerator));
        let mut append = self.append.clone();
        if streams.console.is_none() {
            append.insert(0, "quiet".into());
        }
        append.extend(qemu::parameters(accelerator, self.machine.is_some()).map(String::from));
        let mut command = qemu::command(
            &qemu,
            accelerator,
            &kernel,
            directory.path(),
            &self.nodes,
            self.distances.as_ref(),
            &append,
        );
        command.args(qemu::devices(&self.devices));
        let model = match &self.machine {
            Some(machine) => Some(machine.load(&self.nodes, directory.path(), &mut command)?),
            None => None,
        };
        let in_turn = self.machine.as_ref().is_some_and(Machine::has_memory);
        let own_cpu = if in_turn { OwnCpu::take() } else { None };
        let running = Running::start(&mut command, own_cpu.as_ref(), directory, model)?;
        running.follow(&mut streams, self.boot_limit, self.time_limit)
    }

    fn pack(&self, program: &Command, streams: &Streams<'_>, into: &Path) -> Result<(), Error> {
        let here = env::current_dir().map_err(|error| Error::system("find the current directory", error))?;
        let directory = program.get_current_dir().map_or_else(|| here.clone(), |dir| here.join(dir));
        let busybox = program::find("busybox".as_ref(), Path::new("/")).map_err(|_| {
            let advice = "run 'make setup' in the nodewise sources, or 'apt-get install busybox-static'";
            Error::new(ErrorKind::NotInstalled, format!("no busybox for the guest: {advice}"))
        })?;
        let mut root = match &self.root {
            Some(tree) => Initramfs::of_tree(&here.join(tree), &busybox)?,
            None => Initramfs::new(&busybox)?,
        };
        if !self.packages.is_empty() {
            for file in packages::files(&self.packages)? {
                root.copy_listed(&file)?;
            }
        }
        let of_tree = self.root.as_ref().and_then(|_| root.find(program.get_program()));
        let executable = if let Some(executable) = of_tree {
            executable
        } else {
            let executable = program::find(program.get_program(), &here)?;
            root.copy_tree(&executable)?;
            executable
        };
        for path in &self.copies {
            root.copy_tree(&here.join(path))?;
        }
        for (name, path) in &self.commands {
            let path = here.join(path);
            root.copy_tree(&path)?;
            root.link(&Path::new("/usr/local/bin").join(name), &path);
        }
        if let Some(zone) = zone_file(program) {
            root.copy_tree(&zone)?;
        }
        root.directory(&directory, 0o755);
        if streams.joined {
            root.bytes("/.rig/joined", 0o644, Vec::new());
        }
        if self.machine.is_some() {
            root.bytes("/.rig/model", 0o644, Vec::new());
        }
        let command = shell_command(program, &executable, &directory);
        let traces = self.machine.as_ref().is_some_and(Machine::traces);
        root.bytes("/.rig/command", 0o644, [if traces { TRACE } else { b"" }, &command].concat());
        root.bytes("/.rig/stdin", 0o644, streams.stdin.clone());
        if let Some(Terminal { rows, columns, .. }) = streams.terminal {
            root.bytes("/.rig/terminal", 0o644, format!("rows {rows} cols {columns}").into());
        }
        // First, lest a large tree be written for nothing.
        self.check_room(root.bytes_of_files())?;
        let file = fs::File::create(into);
        let size_bytes =
            root.write(file.map_err(|error| Error::file(ErrorKind::System, "create", into, error))?)?;
        self.check_room(size_bytes)
    }

    /// The kernel unpacks the archive into a tmpfs, which takes up to half of the memory; one that does not
    /// fit panics.
    fn check_room(&self, archive_bytes: u64) -> Result<(), Error> {
        let memory_mib = self.nodes.iter().map(|node| node.memory_bytes).sum::<u64>() >> 20;
        let archive_mib = archive_bytes >> 20;
        if archive_mib + KERNEL_MIB / 2 <= memory_mib / 2 {
            return Ok(());
        }
        let message = format!(
            "{archive_mib} MiB of files do not fit into a guest with {memory_mib} MiB of memory, half of \
                 which may hold files: give its nodes more"
        );
        Err(Error::new(ErrorKind::Shape, message))
    }

    /// The guest's memory is only taken as it is used, but a machine that runs out of it in the middle
    /// kills something, and not necessarily the guest.
    fn check_memory(&self, field: &str, is: &str) -> Result<(), Error> {
        let asked_bytes: u64 = self.nodes.iter().map(|node| node.memory_bytes).sum();
        let meminfo = fs::read_to_string("/proc/meminfo")
            .map_err(|error| Error::file(ErrorKind::System, "read", Path::new("/proc/meminfo"), error))?;
        let there_is = meminfo.lines().find_map(|line| line.strip_prefix(field));
        let there_is = there_is.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        match there_is {
            Some(kib) if asked_bytes > kib << 10 => Err(Error::new(
                ErrorKind::NotEnoughMemory,
                format!(
                    "the guest has {} MiB of memory, and this machine {} MiB {is}",
                    asked_bytes >> 20,
                    kib >> 10
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl<'a> Streams<'a> {
    /// The program's output to these, no input, and no news.
    #[must_use]
    pub fn new(stdout: &'a mut dyn Write, stderr: &'a mut dyn Write) -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Streams {
            stdin: Vec::new(),
            stdout,
            stderr,
            joined: false,
            console: None,
            progress: None,
            terminal: None,
            report: None,
            stop: &NEVER,
        }
    }

    pub(crate) fn progress(&mut self, stage: Stage) {
        if let Some(progress) = &mut self.progress {
            progress(stage);
        }
    }
}

/// The file of the time zone that the program's TZ names, where there is one.
fn zone_file(program: &Command) -> Option<PathBuf> {
    let set = program.get_envs().find(|(name, _)| *name == "TZ");
    let zone = set.map_or_else(|| env::var_os("TZ"), |(_, value)| value.map(OsStr::to_owned))?;
    let zone = OsStr::from_bytes(zone.as_bytes().strip_prefix(b":").unwrap_or(zone.as_bytes()));
    let file = Path::new("/usr/share/zoneinfo").join(zone);
    file.is_file().then_some(file)
}

/// The line that init reads to start the program.
fn shell_command(program: &Command, executable: &Path, directory: &Path) -> Vec<u8> {
    let mut line = b"cd ".to_vec();
    quote(directory.as_os_str(), &mut line);
    line.extend(b" && exec env -i \"PATH=$PATH\" HOME=/root");
    let inherited = ["TERM", "TZ", "LD_LIBRARY_PATH"];
    let inherited = inherited.iter().filter_map(|name| Some((name.into(), Some(env::var_os(name)?))));
    let set = program.get_envs().map(|(name, value)| (name.to_owned(), value.map(OsStr::to_owned)));
    for (name, value) in inherited.chain(set) {
        let Some(value) = value else { continue };
        line.push(b' ');
        quote(OsStr::from_bytes(&[name.as_bytes(), b"=", value.as_bytes()].concat()), &mut line);
    }
    line.push(b' ');
    quote(executable.as_os_str(), &mut line);
    for argument in program.get_args() {
        line.push(b' ');
        quote(argument, &mut line);
    }
    line.push(b'\n');
    line
}

/// Appends `text` as one word of a shell.
fn quote(text: &OsStr, line: &mut Vec<u8>) {
    line.push(b'\'');
    for &byte in text.as_bytes() {
        match byte {
            b'\'' => line.extend(b"'\\''"),
            _ => line.push(byte),
        }
    }
    line.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_shell_gives_the_words_back(text in proptest::collection::vec(1u8..=255, 0..40)) {
            let mut line = b"printf %s ".to_vec();
            quote(OsStr::from_bytes(&text), &mut line);
            let output = Command::new("/bin/busybox").args(["sh", "-c"]).arg(OsStr::from_bytes(&line)).output().unwrap();
            prop_assert_eq!(output.stdout, text);
        }
    }

    #[test]
    fn files_must_fit_into_the_guest() {
        let guest = Guest::uniform(2, 1, 256 << 20);
        assert!(guest.check_room(200 << 20).is_ok());
        let error = guest.check_room(300 << 20).unwrap_err();
        assert_eq!(
            error.to_string(),
            "300 MiB of files do not fit into a guest with 512 MiB of memory, half of which may hold files: give its \
             nodes more"
        );
    }

    #[test]
    fn more_memory_than_there_is() {
        let error = Guest::uniform(2, 1, 1 << 50).check_memory("MemTotal:", "altogether").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotEnoughMemory);
    }
}
