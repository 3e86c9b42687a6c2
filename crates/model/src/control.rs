//! The socket between the rig and the plugin: a line asks, a line answers.

use crate::Report;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// The file name of the plugin.
pub const LIBRARY: &str = "libnodewise_model.so";

/// How long the plugin may take to answer. It changes over in the next pause of any CPU.
const LIMIT: Duration = Duration::from_secs(60);

/// The rig's end.
#[derive(Debug)]
pub struct Control {
    listener: UnixListener,
    stream: Option<BufReader<UnixStream>>,
}

impl Control {
    /// Listens on a socket of this name, to which the plugin will connect.
    ///
    /// # Errors
    /// The system's, if there can be no such socket.
    pub fn listen(path: &Path) -> io::Result<Self> {
        Ok(Self { listener: UnixListener::bind(path)?, stream: None })
    }

    /// Has the model begin, and waits until it has.
    ///
    /// # Errors
    /// The plugin's own word if it cannot, or the system's if there is no answer.
    pub fn begin(&mut self) -> io::Result<()> {
        self.tell("begin", "begun")
    }

    /// Has the trace begin: address spaces that come from now on are the program's.
    ///
    /// # Errors
    /// The plugin's own word if there is no trace, or the system's if there is no answer.
    pub fn trace(&mut self) -> io::Result<()> {
        self.tell("trace", "tracing")
    }

    fn tell(&mut self, what: &str, done: &str) -> io::Result<()> {
        match self.ask(what)? {
            answer if answer == done => Ok(()),
            other => Err(io::Error::other(other)),
        }
    }

    /// The report on the time since the begin.
    ///
    /// # Errors
    /// The system's if there is no answer, or one that is not a report.
    pub fn report(&mut self) -> io::Result<Report> {
        let answer = self.ask("report")?;
        serde_json::from_str(&answer).map_err(|_| io::Error::other(answer))
    }

    fn ask(&mut self, what: &str) -> io::Result<String> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                self.listener.set_nonblocking(true)?;
                let (stream, _) = self.listener.accept().map_err(|error| match error.kind() {
                    io::ErrorKind::WouldBlock => io::Error::other("the model has not connected"),
                    _ => error,
                })?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(LIMIT))?;
                none.insert(BufReader::new(stream))
            }
        };
        writeln!(stream.get_mut(), "{what}")?;
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

/// The plugin's end: answers each line that comes by what `answer` makes of it, until the rig has gone.
pub(crate) fn serve(path: &Path, mut answer: impl FnMut(&str) -> String + Send + 'static) -> io::Result<()> {
    let stream = UnixStream::connect(path)?;
    std::thread::Builder::new().name("model-control".into()).spawn(move || {
        let mut lines = BufReader::new(&stream);
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok_and(|length| length > 0) {
            if writeln!(&stream, "{}", answer(line.trim_end())).is_err() {
                break;
            }
            line.clear();
        }
    })?;
    Ok(())
}
