//! The modelled machine under a guest.

use crate::{Accelerator, Distances, Error, ErrorKind, Node};
use nodewise_hardware::Preset;
use nodewise_model::{Control, LIBRARY, Settings, Tracing};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The only QEMU whose clock is known.
const QEMU: (u32, u32) = (10, 0);
/// Names another place of the plugin.
const VARIABLE: &str = "NODEWISE_MODEL";

/// A modelled machine: a guest on it has its time.
#[derive(Clone, Debug)]
pub struct Machine {
    preset: Preset,
    text: String,
    origin: String,
    scale: f64,
    slow: f64,
    memory: bool,
    trace: Option<Tracing>,
    library: PathBuf,
}

impl Machine {
    /// A machine by a preset's TOML text. `origin` is the name of its place in errors, `library` the plugin
    /// ([`library`]).
    pub fn new(
        text: impl Into<String>,
        origin: impl Into<String>,
        library: impl Into<PathBuf>,
    ) -> Result<Self, Error> {
        let (text, origin) = (text.into(), origin.into());
        let preset = Preset::parse(&text, &origin);
        let preset = preset.map_err(|error| Error::new(ErrorKind::Shape, error.to_string()))?;
        if preset.llc.is_none() {
            let message = format!("{origin}: a machine without caches has no Linux of today");
            return Err(Error::new(ErrorKind::Shape, message));
        }
        Ok(Self {
            preset,
            text,
            origin,
            scale: 1.0,
            slow: 1.0,
            memory: true,
            trace: None,
            library: library.into(),
        })
    }

    /// The distances between the machine's nodes, as firmware tells them.
    pub fn distances(&self) -> Result<Distances, Error> {
        let row = |row: &Vec<u32>| row.iter().map(|&value| u8::try_from(value).unwrap_or(u8::MAX)).collect();
        Distances::new(self.preset.distances.iter().map(row).collect())
    }

    /// Shrinks the caches by this factor, for problems that are shrunk by it.
    #[must_use]
    pub fn scale(mut self, factor: f64) -> Self {
        self.scale = factor;
        self
    }

    /// Makes every modelled part slower by this factor: a modelled second has less work.
    #[must_use]
    pub fn slow(mut self, factor: f64) -> Self {
        self.slow = factor;
        self
    }

    /// Counts instructions only: accesses to memory take no time. The guest is faster on this computer
    /// then.
    #[must_use]
    pub fn instructions_only(mut self) -> Self {
        self.memory = false;
        self
    }

    /// Writes the program's references behind its private caches to a file that is there, of so many bytes at
    /// most. It is a trace (`nodewise-trace`) once the run's [`Report`](crate::Report) tells so.
    #[must_use]
    pub fn trace(mut self, file: impl Into<PathBuf>, limit_bytes: u64) -> Self {
        self.trace = Some(Tracing { file: file.into(), limit_bytes });
        self
    }

    /// Whether accesses to memory take time.
    pub(crate) fn has_memory(&self) -> bool {
        self.memory
    }

    /// Whether it writes a trace.
    pub(crate) fn traces(&self) -> bool {
        self.trace.is_some()
    }

    /// Whether a machine can be under a guest of this kind.
    pub(crate) fn check(accelerator: Option<Accelerator>, version: (u32, u32)) -> Result<(), Error> {
        if accelerator == Some(Accelerator::Kvm) {
            let message = "a modelled machine is emulated: KVM runs the host's CPUs, at their own speed";
            return Err(Error::new(ErrorKind::Shape, message));
        }
        if version != QEMU {
            let message = format!(
                "a modelled machine needs QEMU {}.{}, whose clock is known, and this is {}.{}",
                QEMU.0, QEMU.1, version.0, version.1
            );
            return Err(Error::new(ErrorKind::NotInstalled, message));
        }
        Ok(())
    }

    /// Has QEMU load the plugin with the settings for these nodes.
    pub(crate) fn load(
        &self,
        nodes: &[Node],
        directory: &Path,
        command: &mut Command,
    ) -> Result<Control, Error> {
        let (settings, socket) = (directory.join("model.json"), directory.join("model"));
        let device = directory.join("device");
        let settings_of_model = Settings {
            preset: self.text.clone(),
            origin: self.origin.clone(),
            cpus: nodes.iter().map(|node| node.cpus as usize).collect(),
            memory_bytes: nodes.iter().map(|node| node.memory_bytes).collect(),
            scale: self.scale,
            slow: self.slow,
            memory: self.memory,
            socket: socket.clone(),
            device: device.clone(),
            trace: self.trace.clone(),
        };
        let refused = |error: nodewise_hardware::Error| Error::new(ErrorKind::Shape, error.to_string());
        let device_bytes = settings_of_model.device_bytes().map_err(refused)?;
        fs::File::create(&device)
            .and_then(|file| file.set_len(device_bytes))
            .map_err(|error| Error::file(ErrorKind::System, "create", &device, error))?;
        let text = serde_json::to_vec(&settings_of_model);
        let text = text.map_err(|error| Error::system("describe the machine", error.into()))?;
        fs::write(&settings, text)
            .map_err(|error| Error::file(ErrorKind::System, "write", &settings, error))?;
        let mut option = self.library.clone().into_os_string();
        option.push(",settings=");
        option.push(&settings);
        command.arg("-plugin").arg(option);
        command.args(self.hmat());
        // The guest's counters and samples, in memory that it shares with the plugin.
        let mut memory =
            OsString::from(format!("memory-backend-file,id=model,share=on,size={device_bytes},mem-path="));
        memory.push(&device);
        command.arg("-object").arg(memory).args(["-device", "ivshmem-plain,memdev=model"]);
        Control::listen(&socket).map_err(|error| Error::system("listen for the modelled machine", error))
    }
}

impl Machine {
    /// The machine's latencies and bandwidths as firmware tells them (ACPI's HMAT), as slow as it is.
    fn hmat(&self) -> Vec<String> {
        let preset = &self.preset;
        let mut arguments = vec!["-machine".to_owned(), "hmat=on".to_owned()];
        let nodes = preset.nodes.len();
        for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
            let pair = format!("hmat-lb,initiator={from},target={to},hierarchy=memory");
            let latency_ns = (preset.idle_latency_ns(from, to) * self.slow).round() as u64;
            let mb_per_s = (preset.bandwidth_gb_per_s(from, to) * 1000.0 / self.slow).round().max(1.0) as u64;
            for value in [
                format!("{pair},data-type=access-latency,latency={latency_ns}"),
                format!("{pair},data-type=access-bandwidth,bandwidth={mb_per_s}M"),
            ] {
                arguments.extend(["-numa".to_owned(), value]);
            }
        }
        arguments
    }
}

/// The plugin that comes with a program: `$NODEWISE_MODEL`, or in `deps` beside this program, where cargo
/// puts it, beside the program itself, or in `../lib/nodewise`.
///
/// # Errors
/// [`NotInstalled`](ErrorKind::NotInstalled), if it is in none of these places.
pub fn library() -> Result<PathBuf, Error> {
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let program = env::current_exe().map_err(|error| Error::system("find this program", error))?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let places = [
        beside.join("deps").join(LIBRARY),
        beside.join(LIBRARY),
        beside.join("../lib/nodewise").join(LIBRARY),
    ];
    places.into_iter().find(|place| place.exists()).ok_or_else(|| {
        let message = format!(
            "no {LIBRARY} beside {} nor in ../lib/nodewise: run 'cargo build --release -p nodewise-model' in the \
             nodewise sources, and name its target/release/{LIBRARY} in ${VARIABLE}",
            program.display()
        );
        Error::new(ErrorKind::NotInstalled, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opteron() -> Machine {
        let name = "opteron-8385-4n";
        Machine::new(Preset::text(name).unwrap(), name, "/plugin.so").unwrap()
    }

    #[test]
    fn firmware_tells_latencies_and_bandwidths() {
        let arguments = opteron().hmat().join(" ");
        let pair = |from, to, data: &str| {
            format!("hmat-lb,initiator={from},target={to},hierarchy=memory,data-type=access-{data}")
        };
        // A controller serves a line in 10.7 ns, and a link carries 4 GB/s. A hop is 19.5 ns, there and back.
        for (from, to, latency_ns, mb_per_s) in [(0, 0, 130, 5981), (0, 1, 169, 4000), (3, 0, 208, 4000)] {
            let latency = pair(from, to, &format!("latency,latency={latency_ns}"));
            assert!(arguments.contains(&latency), "{latency} is not in {arguments}");
            let bandwidth = pair(from, to, &format!("bandwidth,bandwidth={mb_per_s}M"));
            assert!(arguments.contains(&bandwidth), "{bandwidth} is not in {arguments}");
        }
        assert_eq!(arguments.matches("-numa").count(), 2 * 16);
        let slow = opteron().slow(8.0).hmat().join(" ");
        for told in [pair(0, 0, "latency,latency=1040"), pair(0, 0, "bandwidth,bandwidth=748M")] {
            assert!(slow.contains(&told), "{told} is not in {slow}");
        }
    }

    #[test]
    fn machines_that_cannot_be_are_refused() {
        let refused = |result: Result<(), Error>| result.unwrap_err().to_string();
        assert!(refused(Machine::check(Some(Accelerator::Kvm), QEMU)).contains("KVM"));
        assert!(refused(Machine::check(None, (10, 2))).contains("needs QEMU 10.0"));
        assert!(Machine::check(Some(Accelerator::Emulation), QEMU).is_ok());
        let text = Preset::text("ace-7").unwrap();
        assert!(
            Machine::new(text, "ace-7", "/plugin.so").unwrap_err().to_string().contains("without caches")
        );
    }

    #[test]
    fn the_plugin_is_told_the_guests_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let nodes = [Node { cpus: 2, memory_bytes: 512 << 20 }; 4];
        let mut command = Command::new("qemu");
        let machine = opteron().scale(0.5).slow(4.0);
        let control = machine.load(&nodes, directory.path(), &mut command).unwrap();
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let file = directory.path().join("model.json");
        assert!(arguments.contains(&format!("/plugin.so,settings={}", file.display())), "{arguments:?}");
        let settings: Settings = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let preset = settings.machine().unwrap();
        assert_eq!((settings.cpus, preset.cores()), (vec![2; 4], 8));
        // Half the caches, and a core of a quarter of its speed.
        assert_eq!(preset.llc.unwrap().kib, 3072);
        assert!((preset.core.ghz - 2.3 / 4.0).abs() < 1e-9, "{}", preset.core.ghz);
        assert!((preset.controller.idle_latency_ns - 520.0).abs() < 1e-6);
        drop(control);
    }
}
