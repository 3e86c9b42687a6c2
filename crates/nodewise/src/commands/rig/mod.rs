//! `nodewise rig`: one program in a throw-away guest.

mod machine;
mod terminal;

pub use machine::preset_text;

use self::machine::Modelled;
use super::{Exit, exit};
use crate::output::{note, print, shown};
use crate::signals;
use nodewise_rig::{
    Accelerator, Device, Distances, ErrorKind, Guest, Node, Stage, Streams, kernels, no_kernel, parse_size,
};
use rustix::fs::fstat;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Run a program of this machine in a throw-away guest with several NUMA nodes
///
/// The guest boots a Debian cloud kernel in QEMU, with KVM where it works and emulated else, in seconds.
/// It holds busybox, the program with the libraries it needs, and what --copy adds, at the paths they have
/// here, and nodewise and setpriv; the program runs as root in the directory it is started from. Users,
/// groups and the time zone are those of this machine. Placement and the kernel's behaviour are real in the
/// guest. Time is an emulator's, or with --machine that of a modelled machine: its caches, controllers and
/// links. The program's clock then shows the machine's time, and a summary of the machine's work is printed
/// at the end.
#[allow(clippy::doc_markdown, clippy::struct_excessive_bools)] // help is plain text; switches are bools
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  nodewise rig -- numactl --hardware
  nodewise rig --nodes 8 --distances ring -- nodewise topo
  nodewise rig --nodes 2 --cpuless-node=256M -- \\
      sh -c 'cat /sys/devices/system/node/has_cpu'
  nodewise rig --nodes 3 --mem-per-node 1G,1G,256M \\
      --distances '10,20,30;20,10,20;30,20,10' -- ./bench.sh
  nodewise rig -t --copy ./target/release -- sh
  nodewise rig --mem-per-node 1G --with postgresql -- \\
      pg_virtualenv sh -c 'pgbench -i -q && pgbench -T 10'
  nodewise rig --with openjdk-17-jre-headless --copy app.jar -- \\
      java -XX:+UseNUMA -jar app.jar
  nodewise rig --root ./bookworm -- cat /etc/os-release
  nodewise rig --machine opteron-8385-4n --cpus-per-node 1 -- ./bench
  nodewise rig --machine opteron-8385-4n --cpus-per-node 1 \\
      --plot traffic.svg -- nodewise run -- ./bench
  nodewise rig --machine opteron-8385-4n --cpus-per-node 1 \\
      --trace bench.nwtrace -- ./bench
  nodewise sim run --machine dahu-2n --trace bench.nwtrace \\
      --policy first-touch,interleave,oracle

Exit status:
  that of the program; 128 + N when signal N ended it (the program, or nodewise: 130 after Ctrl-C)
  1    the guest did not boot, hung or panicked; QEMU or a kernel is missing
  2    the command line could not be understood, or no such guest can be
  124  the time limit was reached
  126  the program cannot be executed
  127  the program was not found")]
pub struct Args {
    /// Make so many nodes with CPUs: 4 unless given
    #[arg(long, value_name = "N", conflicts_with = "machine")]
    nodes: Option<usize>,

    /// Give each node so many CPUs, or a list with one number for each: 1, or the machine's, unless given
    ///
    /// A modelled machine's node has no more than the machine's.
    #[arg(long, value_name = "K", value_delimiter = ',')]
    cpus_per_node: Vec<u32>,

    /// Give each node this much memory, or a list with one size for each
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "512M")]
    mem_per_node: Vec<String>,

    /// Add a node with memory only, of this size or as large as the others; may be repeated
    #[arg(long, value_name = "SIZE", num_args = 0..=1, require_equals = true, default_missing_value = "",
        conflicts_with = "machine")]
    cpuless_node: Vec<String>,

    /// Set the distances between nodes: rows as in '10,20;20,10', one value for all, 'ring' or 'square'
    #[arg(long, value_name = "TABLE", conflicts_with = "machine")]
    distances: Option<String>,

    /// Attach a device to a node: 'nvme', a disk of zeros, or 'net', an adapter without a driver; may be
    /// repeated
    #[arg(long, value_name = "NODE:KIND")]
    device: Vec<String>,

    /// Boot this kernel; else $NODEWISE_KERNEL's, or the newest in .nodewise/kernels,
    /// ~/.local/share/nodewise/kernels, /var/lib/nodewise/kernels, ~/.cache/nodewise/kernels or /boot
    #[arg(long, value_name = "VMLINUZ")]
    kernel: Option<PathBuf>,

    /// Copy a file or directory to the same path in the guest, owners, modes and times included, with the
    /// libraries of programs in it
    #[arg(long, value_name = "PATH")]
    copy: Vec<PathBuf>,

    /// Copy the files of an installed Debian package, with all that it depends on and the essential packages;
    /// may be repeated
    #[arg(long, value_name = "PACKAGE")]
    with: Vec<String>,

    /// Take a Debian tree for the guest's root, as debootstrap makes one; it is only read
    #[arg(long, value_name = "DIR", conflicts_with = "with")]
    root: Option<PathBuf>,

    /// Set a variable for the program; those set here are not seen in the guest
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,

    /// Read standard input to its end, before the guest boots, and give it to the program
    #[arg(short = 'i', long, conflicts_with = "terminal")]
    stdin: bool,

    /// Give the program this terminal, for a shell, say; Ctrl-] ends the guest
    #[arg(short, long)]
    terminal: bool,

    /// End the guest when the program has run that long
    #[arg(long, value_name = "SECONDS")]
    time_limit: Option<f64>,

    /// Add kernel parameters, as in 'transparent_hugepage=never'
    #[arg(long, value_name = "PARAMETERS")]
    append: Vec<String>,

    #[command(flatten)]
    machine: machine::MachineArgs,

    /// Make the guest's CPUs this way
    #[arg(long, value_name = "HOW", default_value = "auto")]
    accel: Accel,

    /// Show the guest's kernel console on standard error
    #[arg(short, long)]
    verbose: bool,

    /// List the kernels found, the one that would be booted first, and exit
    #[arg(long)]
    list_kernels: bool,

    /// The program and its arguments
    #[arg(last = true, value_name = "CMD", required_unless_present = "list_kernels")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Accel {
    Auto,
    Kvm,
    Tcg,
}

/// The program reached its time limit, as timeout(1) says it.
const TIME_LIMIT: u8 = 124;

pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    if args.list_kernels {
        let kernels = kernels();
        if kernels.is_empty() {
            return Err(no_kernel().into());
        }
        print(&kernels.iter().map(|kernel| shown(kernel.display()) + "\n").collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let nodewise = std::env::current_exe()?;
    let refused = |message| Exit { code: exit::USAGE, message };
    let modelled = Modelled::new(&args.machine).map_err(refused)?;
    let (guest, cpus) = guest(args, &nodewise, modelled.as_ref()).map_err(refused)?;
    let Some((name, arguments)) = args.command.split_first() else { return Ok(ExitCode::from(exit::USAGE)) };
    let mut program = Command::new(if name == "nodewise" { nodewise.as_os_str() } else { name });
    program.args(arguments);
    for variable in &args.env {
        let (name, value) = variable.split_once('=').ok_or_else(|| Exit {
            code: exit::USAGE,
            message: format!("--env {variable}: a variable is written NAME=VALUE"),
        })?;
        program.env(name, value);
    }
    let (stop, signal) = stop_on_signals()?;
    let mut stdin = Vec::new();
    if args.stdin {
        io::stdin().read_to_end(&mut stdin)?;
    }
    let terminal = args.terminal.then(|| terminal::open(&stop)).transpose()?;
    let (mut stdout, mut stderr, mut console) = (io::stdout().lock(), io::stderr(), io::stderr());
    let spinner = Spinner::new(!args.verbose);
    let mut raw = None;
    let mut progress = |stage| {
        spinner.show(stage);
        if args.terminal && stage == Stage::Running {
            raw = terminal::Raw::enter().ok();
        }
    };
    let mut streams = Streams::new(&mut stdout, &mut stderr);
    streams.stdin = stdin;
    streams.terminal = terminal;
    streams.progress = Some(&mut progress);
    streams.stop = &stop;
    streams.joined = is_one_file(&io::stdout(), &io::stderr());
    if args.verbose {
        streams.console = Some(&mut console);
    }
    let mut work = None;
    let mut keep = |report| work = Some(report);
    streams.report = Some(&mut keep);
    let result = guest.run(&program, streams);
    drop(raw);
    spinner.clear();
    if let (Some(modelled), Some(work)) = (modelled, &work) {
        modelled.finish(&cpus, &args.command, work)?;
    }
    match result {
        Ok(status) => Ok(ExitCode::from(status)),
        Err(error) => match (error.kind(), signal.load(Ordering::Relaxed)) {
            (ErrorKind::Stopped, signal @ 1..128) => Ok(ExitCode::from(128 + signal as u8)),
            (ErrorKind::Stopped, _) => Ok(ExitCode::from(exit::FAILURE)), // by Ctrl-]
            // Whoever read our output has gone; no message would help, as with any program in a pipe.
            (ErrorKind::Output, _) => Ok(ExitCode::from(128 + signal_hook::consts::SIGPIPE as u8)),
            (kind, _) => Err(match exit_code(kind) {
                Some(code) => Exit { code, message: describe(&error) }.into(),
                None => error.into(),
            }),
        },
    }
}

/// Whether two descriptors are of one file, pipe or terminal.
fn is_one_file(one: &impl AsFd, other: &impl AsFd) -> bool {
    let identity = |file: BorrowedFd<'_>| fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).ok();
    identity(one.as_fd()).is_some_and(|one| Some(one) == identity(other.as_fd()))
}

fn exit_code(kind: ErrorKind) -> Option<u8> {
    match kind {
        ErrorKind::Shape => Some(exit::USAGE),
        ErrorKind::TimeLimit => Some(TIME_LIMIT),
        ErrorKind::ProgramNotFound => Some(exit::NOT_FOUND),
        ErrorKind::ProgramNotExecutable => Some(exit::CANNOT_EXECUTE),
        _ => None,
    }
}

fn describe(error: &nodewise_rig::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// The guest that was asked for, and the CPUs of each of its nodes.
fn guest(args: &Args, nodewise: &Path, modelled: Option<&Modelled>) -> Result<(Guest, Vec<u32>), String> {
    let say = |option: &str, error: nodewise_rig::Error| format!("{option}: {error}");
    let preset = modelled.map(|modelled| &modelled.preset);
    let count = preset.map_or(args.nodes.unwrap_or(4), |preset| preset.nodes.len());
    let total = count + args.cpuless_node.len();
    let cpus = match (args.cpus_per_node.as_slice(), preset) {
        ([], None) => vec![1; count],
        ([], Some(preset)) => preset.nodes.iter().map(|node| node.cores as u32).collect(),
        (given, _) => each(given, count, count, "--cpus-per-node")?,
    };
    for (&asked, node) in cpus.iter().zip(preset.iter().flat_map(|preset| &preset.nodes)) {
        if asked as usize > node.cores {
            let machine = preset.map_or("", |preset| &preset.name);
            return Err(format!("--cpus-per-node {asked}: a node of {machine} has {} CPUs", node.cores));
        }
    }
    let sizes: Result<Vec<u64>, _> = args.mem_per_node.iter().map(|size| parse_size(size)).collect();
    let sizes = sizes.map_err(|error| say("--mem-per-node", error))?;
    let memory_bytes = each(&sizes, count, total, "--mem-per-node")?;
    let mut nodes = Vec::with_capacity(total);
    for id in 0..count {
        nodes.push(Node { cpus: cpus[id], memory_bytes: memory_bytes[id] });
    }
    for (index, size) in args.cpuless_node.iter().enumerate() {
        let listed = memory_bytes.get(count + index).or(memory_bytes.last());
        let memory_bytes = match (size.as_str(), listed) {
            ("", Some(&size)) => size,
            (size, _) => parse_size(size).map_err(|error| say("--cpuless-node", error))?,
        };
        nodes.push(Node { cpus: 0, memory_bytes });
    }
    let memory_bytes: u64 = nodes.iter().map(|node| node.memory_bytes).sum();
    let mut guest = Guest::new(nodes);
    if let Some(modelled) = modelled {
        let distances = modelled.machine.distances().map_err(|error| say("--machine", error))?;
        guest = guest.machine(modelled.machine.clone()).distances(distances);
    }
    // A guest keeps its files in memory, and a small one needs its own for something else.
    if std::fs::metadata(nodewise).is_ok_and(|file| file.len() <= memory_bytes / 4) {
        guest = guest.command("nodewise", nodewise);
    }
    if let Some(table) = &args.distances {
        guest = guest.distances(Distances::parse(table, total).map_err(|error| say("--distances", error))?);
    }
    for device in &args.device {
        let wrong = || format!("--device {device}: a device is written NODE:nvme or NODE:net");
        let (node, kind) = device.split_once(':').ok_or_else(wrong)?;
        let kind = match kind {
            "nvme" => Device::Nvme,
            "net" => Device::Network,
            _ => return Err(wrong()),
        };
        guest = guest.device(node.parse().map_err(|_| wrong())?, kind);
    }
    if let Some(kernel) = &args.kernel {
        guest = guest.kernel(kernel);
    }
    if let Some(seconds) = args.time_limit {
        let limit = Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero());
        let limit = limit.ok_or_else(|| format!("--time-limit {seconds}: not a time in seconds"))?;
        guest = guest.time_limit(limit);
    }
    match args.accel {
        Accel::Auto => {}
        Accel::Kvm => guest = guest.accelerator(Accelerator::Kvm),
        Accel::Tcg => guest = guest.accelerator(Accelerator::Emulation),
    }
    guest = args.copy.iter().fold(guest, Guest::copy);
    guest = args.with.iter().fold(guest, Guest::package);
    guest = args.root.iter().fold(guest, Guest::root);
    Ok((args.append.iter().fold(guest, Guest::append), cpus))
}

/// One value for all nodes, or one for each: of those with CPUs, or of `total` with the others at the end.
fn each<T: Copy>(values: &[T], nodes: usize, total: usize, option: &str) -> Result<Vec<T>, String> {
    match values {
        [value] => Ok(vec![*value; nodes]),
        _ if values.len() == nodes || values.len() == total => Ok(values.to_vec()),
        _ => Err(format!("{option}: {} values for {nodes} nodes", values.len())),
    }
}

/// A flag that Ctrl-C and its kin raise, and the number of the signal.
fn stop_on_signals() -> io::Result<(Arc<AtomicBool>, Arc<AtomicUsize>)> {
    let (stop, number) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for signal in signals::ending() {
        signal_hook::flag::register_usize(signal, Arc::clone(&number), signal as usize)?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok((stop, number))
}

/// The progress of the boot, on a terminal and until the program runs. That another guest is waited for is
/// said elsewhere, too.
struct Spinner(Option<indicatif::ProgressBar>);

impl Spinner {
    fn new(wanted: bool) -> Self {
        Self((wanted && io::stderr().is_terminal()).then(indicatif::ProgressBar::new_spinner))
    }

    fn show(&self, stage: Stage) {
        const WAITING: &str = "waiting for another guest of this user to end";
        let Some(bar) = &self.0 else {
            if stage == Stage::Waiting {
                note(WAITING);
            }
            return;
        };
        match stage {
            Stage::Waiting => bar.set_message(WAITING),
            Stage::Booting(how) => bar.set_message(format!("booting the guest ({how})")),
            Stage::Running => return bar.finish_and_clear(),
        }
        bar.enable_steady_tick(Duration::from_millis(100));
    }

    fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
