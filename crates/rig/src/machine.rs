//! The modelled machine under a guest.

use crate::{Accelerator, Error, ErrorKind, Node};
use nodewise_hardware::Preset;
use nodewise_model::{Control, LIBRARY, Settings};
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
    text: String,
    origin: String,
    scale: f64,
    slow: f64,
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
        Ok(Self { text, origin, scale: 1.0, slow: 1.0, library: library.into() })
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
        let text = serde_json::to_vec(&Settings {
            preset: self.text.clone(),
            origin: self.origin.clone(),
            cpus: nodes.iter().map(|node| node.cpus as usize).collect(),
            memory_bytes: nodes.iter().map(|node| node.memory_bytes).collect(),
            scale: self.scale,
            slow: self.slow,
            socket: socket.clone(),
        });
        let text = text.map_err(|error| Error::system("describe the machine", error.into()))?;
        fs::write(&settings, text)
            .map_err(|error| Error::file(ErrorKind::System, "write", &settings, error))?;
        let mut option = self.library.clone().into_os_string();
        option.push(",settings=");
        option.push(&settings);
        command.arg("-plugin").arg(option);
        Control::listen(&socket).map_err(|error| Error::system("listen for the modelled machine", error))
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
