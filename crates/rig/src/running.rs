//! A QEMU that runs: its serial lines are read by a thread each, and one loop follows what they say.

use crate::own_cpu::OwnCpu;
use crate::qemu::LINES;
use crate::{Error, ErrorKind, Stage, Streams};
use nodewise_model::Control;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// QEMU connects its serial lines before it does anything that takes long.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// How often the stop flag is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How much of the console an error shows, and how much is kept for it.
const CONSOLE_LINES: usize = 40;
const CONSOLE_BYTES: usize = 64 << 10;
/// The kernel met an int3 although there is none in that place. It puts one there while it patches the rest
/// of an instruction (`text_poke_bp_batch`, arch/x86/kernel/alternative.c, Linux 6.12). QEMU drops its
/// translation before it writes. Another CPU may translate the int3 again just before it goes, and nothing
/// drops that. QEMU 10.0 did so within 800 changes of code that four CPUs ran, in two runs of two.
const STALE_CODE: &str =
    "QEMU ran code that the guest's kernel had replaced, which happens rarely: run it again";

/// Where bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Console,
    Stdout,
    Stderr,
    Control,
    /// The model: nothing when it has begun, or why it has not.
    Model,
}

/// A QEMU process, killed when dropped.
pub(crate) struct Running {
    child: Child,
    /// Bytes of each source in order; empty ones at its end.
    received: Receiver<(Source, Vec<u8>)>,
    /// Gone as soon as QEMU has read what is in it, so that not even kill -9 leaves it behind.
    directory: Option<TempDir>,
    console: Vec<u8>,
    /// The line that is the program's terminal where it has one.
    terminal: Option<UnixStream>,
    /// The control line, to write to.
    control: Option<UnixStream>,
    model: Option<Arc<Mutex<Control>>>,
    /// The sender of the model's word, until the model is to begin. A thread that holds a sender keeps
    /// `received` open.
    sender: Option<Sender<(Source, Vec<u8>)>>,
}

impl Running {
    /// Starts QEMU, on a CPU of its own if there is one.
    pub fn start(
        command: &mut Command,
        own_cpu: Option<&OwnCpu>,
        directory: TempDir,
        model: Option<Control>,
    ) -> Result<Self, Error> {
        let listeners: io::Result<Vec<UnixListener>> =
            LINES.iter().map(|name| UnixListener::bind(directory.path().join(name))).collect();
        let listeners =
            listeners.map_err(|error| Error::system("listen for the guest's serial lines", error))?;
        let child = match own_cpu {
            Some(cpu) => cpu.spawn(command),
            None => command.spawn(),
        };
        let mut child = child.map_err(|error| Error::system("start QEMU", error))?;
        let (sender, received) = mpsc::channel();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut running = Self {
            child,
            received,
            directory: Some(directory),
            console: Vec::new(),
            terminal: None,
            control: None,
            model: model.map(|model| Arc::new(Mutex::new(model))),
            sender: Some(sender.clone()),
        };
        read_all(stdout, Source::Console, &sender);
        read_all(stderr, Source::Console, &sender);
        let deadline = Instant::now() + CONNECT_LIMIT;
        for (listener, source) in listeners.iter().zip([Source::Stdout, Source::Stderr, Source::Control]) {
            let stream = running.accept(listener, deadline)?;
            match source {
                Source::Stdout => running.terminal = stream.try_clone().ok(),
                Source::Control => running.control = stream.try_clone().ok(),
                _ => {}
            }
            read_all(Some(stream), source, &sender);
        }
        Ok(running)
    }

    fn accept(&mut self, listener: &UnixListener, deadline: Instant) -> Result<UnixStream, Error> {
        let failed = |error| Error::system("connect the guest's serial lines", error);
        listener.set_nonblocking(true).map_err(failed)?;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(failed)?;
                    return Ok(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            if self.child.try_wait().map_err(failed)?.is_some() {
                return Err(self.died());
            }
            if Instant::now() > deadline {
                return Err(self.guest_error("QEMU does not connect its serial lines"));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Follows the guest to its end and returns the program's exit status.
    pub fn follow(
        mut self,
        streams: &mut Streams<'_>,
        boot_limit: Duration,
        time_limit: Option<Duration>,
    ) -> Result<u8, Error> {
        let mut deadline = Some(Instant::now() + boot_limit);
        let mut up = false;
        let mut control = Vec::new();
        loop {
            if streams.stop.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Stopped, "stopped"));
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let Some(limit) = time_limit.filter(|_| up) else {
                    let limit_s = boot_limit.as_secs_f64();
                    return Err(self.guest_error(&format!("the guest hangs: not up after {limit_s} s")));
                };
                let message = format!("the time limit of {} s was reached", limit.as_secs_f64());
                return Err(Error::new(ErrorKind::TimeLimit, message));
            }
            let (source, bytes) = match self.received.recv_timeout(TICK) {
                Ok(received) => received,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
            };
            match source {
                Source::Control => {}
                Source::Model if bytes.is_empty() => {
                    self.running(&mut deadline, time_limit, streams);
                    continue;
                }
                Source::Model => {
                    let why = String::from_utf8_lossy(&bytes);
                    return Err(self.guest_error(&format!("the modelled machine does not begin: {why}")));
                }
                _ => {
                    self.pass_on(source, &bytes, streams)?;
                    continue;
                }
            }
            if bytes.is_empty() {
                return Err(self.died());
            }
            control.extend(bytes);
            while let Some(end) = control.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = control.drain(..=end).collect();
                match line.trim_ascii() {
                    b"up" => {
                        up = true;
                        let sender = self.sender.take();
                        if let (Some(model), Some(sender)) = (&self.model, sender) {
                            let line = self.control.as_ref().and_then(|line| line.try_clone().ok());
                            begin(model, line, sender);
                        } else {
                            self.running(&mut deadline, time_limit, streams);
                        }
                    }
                    b"trace" => self.trace()?,
                    line => {
                        let status =
                            line.strip_prefix(b"exit ").and_then(|status| std::str::from_utf8(status).ok());
                        let Some(status) = status.and_then(|status| status.parse().ok()) else {
                            let line = String::from_utf8_lossy(line).into_owned();
                            return Err(self.guest_error(&format!("the guest's init says '{line}'")));
                        };
                        return self.finish(status, streams);
                    }
                }
            }
        }
    }

    /// The shell that will become the program asks for the trace to begin.
    fn trace(&mut self) -> Result<(), Error> {
        let (Some(model), Some(line)) = (&self.model, &mut self.control) else { return Ok(()) };
        let begun = model.lock().unwrap_or_else(PoisonError::into_inner).trace();
        begun.and_then(|()| line.write_all(b"go\n")).map_err(|error| Error::system("begin the trace", error))
    }

    /// The program begins.
    fn running(
        &mut self,
        deadline: &mut Option<Instant>,
        time_limit: Option<Duration>,
        streams: &mut Streams<'_>,
    ) {
        *deadline = time_limit.map(|limit| Instant::now() + limit);
        self.directory = None;
        streams.progress(Stage::Running);
        if let (Some(terminal), Some(line)) = (streams.terminal.take(), self.terminal.take()) {
            send_keys(terminal.keys, line);
        }
    }

    /// The program has ended and all it wrote has left the guest: what is still in the sockets is read.
    fn finish(mut self, status: u8, streams: &mut Streams<'_>) -> Result<u8, Error> {
        if let (Some(model), Some(report)) = (&self.model, &mut streams.report) {
            let answer = model.lock().unwrap_or_else(PoisonError::into_inner).report();
            report(answer.map_err(|error| Error::system("get the modelled machine's report", error))?);
        }
        self.end();
        while let Ok((source, bytes)) = self.received.recv() {
            self.pass_on(source, &bytes, streams)?;
        }
        streams.stdout.flush().and_then(|()| streams.stderr.flush()).map_err(Error::output)?;
        Ok(status)
    }

    fn pass_on(&mut self, source: Source, bytes: &[u8], streams: &mut Streams<'_>) -> Result<(), Error> {
        match source {
            Source::Stdout => streams.stdout.write_all(bytes).and_then(|()| streams.stdout.flush()),
            Source::Stderr => streams.stderr.write_all(bytes).and_then(|()| streams.stderr.flush()),
            Source::Control | Source::Model => Ok(()),
            Source::Console => {
                self.keep(bytes);
                streams.console.as_mut().map_or(Ok(()), |console| console.write_all(bytes))
            }
        }
        .map_err(Error::output)
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.console.extend(bytes);
        let excess = self.console.len().saturating_sub(CONSOLE_BYTES);
        self.console.drain(..excess);
    }

    /// QEMU is gone, or the guest has switched itself off, without an exit status.
    fn died(&mut self) -> Error {
        // The console's last words may still be on their way.
        let deadline = Instant::now() + Duration::from_secs(2);
        while let Ok((source, bytes)) =
            self.received.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if source == Source::Console {
                self.keep(&bytes);
            }
        }
        self.end();
        let console = String::from_utf8_lossy(&self.console);
        let after = |mark: &str| console.lines().find_map(|line| Some(line.split_once(mark)?.1.trim()));
        match after("Kernel panic - not syncing: ") {
            Some(_) if after("Oops: int3: ").is_some() => self.error(ErrorKind::Emulation, STALE_CODE),
            Some(why) => self.guest_error(&format!("the guest's kernel panicked: {why}")),
            None => self.guest_error("the guest went away before the program ended"),
        }
    }

    fn guest_error(&self, what: &str) -> Error {
        self.error(ErrorKind::Guest, what)
    }

    fn error(&self, kind: ErrorKind, what: &str) -> Error {
        let console = String::from_utf8_lossy(&self.console);
        let lines: Vec<&str> = console.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(CONSOLE_LINES)..];
        let console =
            if last.is_empty() { "\n  (nothing)".into() } else { format!("\n  {}", last.join("\n  ")) };
        Error::new(kind, format!("{what}; its console's last lines:{console}"))
    }

    fn end(&mut self) {
        // Fails where it has ended already, and then wait gives its status all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn read_all(stream: Option<impl Read + Send + 'static>, source: Source, sender: &Sender<(Source, Vec<u8>)>) {
    let (Some(mut stream), sender) = (stream, sender.clone()) else { return };
    thread::spawn(move || {
        let mut buffer = [0; 16 << 10];
        loop {
            let count = match stream.read(&mut buffer) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => 0, // QEMU was killed: the end, as good as any
            };
            if sender.send((source, buffer[..count].to_vec())).is_err() || count == 0 {
                return;
            }
        }
    });
}

/// Has the model begin, and tells the guest when it has.
fn begin(model: &Arc<Mutex<Control>>, line: Option<UnixStream>, sender: Sender<(Source, Vec<u8>)>) {
    let model = Arc::clone(model);
    thread::spawn(move || {
        let begun = model.lock().unwrap_or_else(PoisonError::into_inner).begin();
        let begun = begun.and_then(|()| line.map_or(Ok(()), |mut line| line.write_all(b"go\n")));
        let _ =
            sender.send((Source::Model, begun.err().map_or(Vec::new(), |error| error.to_string().into())));
    });
}

/// Until one of the two ends; a read that waits for a key when the guest ends is nobody's concern.
fn send_keys(mut keys: Box<dyn Read + Send>, mut line: UnixStream) {
    thread::spawn(move || io::copy(&mut keys, &mut line));
}
