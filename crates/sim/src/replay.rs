//! A program that was traced, replayed: its accesses come from a file.

use crate::{Area, Error, ErrorKind, Program, Progress, Role, Space, Trace};
use nodewise_trace::{Access, Kind, LINE_BYTES, PROCESS_LINES, Part, Reader};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Lines of 2 MiB, as a power of two: memory is laid out anew in such chunks, so that gaps cost nothing.
const CHUNK: u32 = 15;
/// Most chunks that a trace may touch: a TiB.
const MOST_CHUNKS: usize = 1 << 19;

/// A trace in a file, read once to learn what it touches.
#[derive(Clone, Debug)]
pub struct Recording(Arc<Index>);

#[derive(Debug)]
struct Index {
    path: PathBuf,
    areas: Vec<Area>,
    /// The simulated address of each chunk.
    chunks: BTreeMap<u64, u64>,
    /// The pieces of each thread.
    pieces: Vec<Vec<Piece>>,
}

/// A piece of a thread.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// Accesses, which are at this place of the file.
    Accesses(u64),
    /// It waits until another has ended so many pieces.
    After { thread: usize, pieces: usize },
}

/// A thread while the file is read.
#[derive(Clone, Default)]
struct Read {
    line: u64,
    pieces: Vec<Piece>,
    /// The accesses up to the end of each of its pieces.
    done: Vec<u64>,
}

impl Read {
    fn add(&mut self, piece: Piece, accesses: u64) {
        self.pieces.push(piece);
        self.done.push(self.done.last().copied().unwrap_or(0) + accesses);
    }
}

impl Recording {
    /// Reads the file from end to end.
    ///
    /// Fails if it is no trace of a known version, is cut short or wrong, or touches more than a TiB.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut reader = reader(path)?;
        let mut threads = vec![Read::default(); reader.threads()];
        let (mut touched, mut last) = (BTreeSet::new(), u64::MAX);
        loop {
            let at = reader.position();
            let Some(part) = reader.next_part().map_err(|error| wrong(path, &error))? else { break };
            let block = match part {
                Part::Accesses(block) => block,
                Part::Wait { thread, other, done } => {
                    // The piece whose end has as many; the reader knows that there is one.
                    let pieces = threads[other].done.partition_point(|&there| there < done) + 1;
                    if done > 0 && thread != other {
                        threads[thread].add(Piece::After { thread: other, pieces }, 0);
                    }
                    continue;
                }
            };
            let thread = &mut threads[block.thread()];
            thread.add(Piece::Accesses(at), block.accesses() as u64);
            let mut each = |access: Access| {
                let chunk = access.line >> CHUNK;
                if chunk != last {
                    last = chunk;
                    touched.insert(chunk);
                }
            };
            block.decode(&mut thread.line, &mut each).map_err(|error| wrong(path, &error))?;
            if touched.len() > MOST_CHUNKS {
                return Err(Error::new(
                    ErrorKind::Unsuitable,
                    format!("{}: it touches more than a TiB of memory", path.display()),
                ));
            }
        }
        while threads.len() > 1 && threads.last().is_some_and(|last| last.pieces.is_empty()) {
            threads.pop();
        }
        let (areas, chunks) = lay_out(&touched);
        let pieces = threads.into_iter().map(|thread| thread.pieces).collect();
        Ok(Self(Arc::new(Index { path: path.to_owned(), areas, chunks, pieces })))
    }

    /// How many threads there are.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.0.pieces.len()
    }

    /// The program that does what was recorded. Its threads wait for each other where the trace says so.
    #[must_use]
    pub fn program(&self) -> Box<dyn Program> {
        let reader = reader(&self.0.path);
        let threads = vec![Thread::default(); self.threads()];
        Box::new(Replay { index: Arc::clone(&self.0), reader, threads, failed: None })
    }
}

/// An area for each run of chunks, and where each chunk is.
fn lay_out(touched: &BTreeSet<u64>) -> (Vec<Area>, BTreeMap<u64, u64>) {
    let bytes = LINE_BYTES << CHUNK;
    let mut space = Space::new();
    let mut chunks = BTreeMap::new();
    let numbers: Vec<u64> = touched.iter().copied().collect();
    for run in numbers.chunk_by(|one, next| one + 1 == *next) {
        let (process, line) = ((run[0] << CHUNK) / PROCESS_LINES, (run[0] << CHUNK) % PROCESS_LINES);
        let name = format!("process {process}, {:#x}", line * LINE_BYTES);
        let base = space.area(name, run.len() as u64 * bytes, Role::Unknown);
        chunks.extend(run.iter().enumerate().map(|(index, &chunk)| (chunk, base + index as u64 * bytes)));
    }
    (space.into_areas(), chunks)
}

fn reader(path: &Path) -> Result<Reader<BufReader<File>>, Error> {
    let file = File::open(path).map_err(|error| {
        Error::new(ErrorKind::Unreadable, format!("cannot read {}: {error}", path.display()))
    })?;
    Reader::new(BufReader::new(file)).map_err(|error| wrong(path, &error))
}

fn wrong(path: &Path, error: &nodewise_trace::Error) -> Error {
    match error.source() {
        Some(source) => {
            Error::new(ErrorKind::Unreadable, format!("cannot read {}: {source}", path.display()))
        }
        None => Error::new(ErrorKind::Malformed, format!("{}: {error}", path.display())),
    }
}

struct Replay {
    index: Arc<Index>,
    reader: Result<Reader<BufReader<File>>, Error>,
    threads: Vec<Thread>,
    /// Why it could not go on: the file has changed, say.
    failed: Option<Error>,
}

#[derive(Clone, Default)]
struct Thread {
    pieces: usize,
    line: u64,
}

impl Replay {
    /// Records a thread's next piece.
    fn next(&mut self, thread: usize, trace: &mut Trace) -> Result<Progress, Error> {
        let (state, index) = (&mut self.threads[thread], &self.index);
        let Some(&piece) = index.pieces[thread].get(state.pieces) else { return Ok(Progress::Finished) };
        state.pieces += 1;
        let at = match piece {
            Piece::Accesses(at) => at,
            Piece::After { thread, pieces } => return Ok(Progress::After { thread, pieces }),
        };
        let reader = self.reader.as_mut().map_err(|error| error.clone())?;
        let wrong = |error: &nodewise_trace::Error| wrong(&index.path, error);
        reader.seek(at).map_err(|error| wrong(&error))?;
        let (mut chunk, mut base, mut changed) = (u64::MAX, 0, false);
        if let Some(Part::Accesses(block)) = reader.next_part().map_err(|error| wrong(&error))? {
            let each = |access: Access| {
                if access.line >> CHUNK != chunk {
                    chunk = access.line >> CHUNK;
                    match index.chunks.get(&chunk) {
                        Some(&found) => base = found,
                        None => changed = true,
                    }
                }
                let address = base + (access.line & ((1 << CHUNK) - 1)) * LINE_BYTES;
                trace.compute(access.instructions);
                match access.kind {
                    Kind::Read => trace.read(address),
                    Kind::Write => trace.write(address),
                    Kind::Atomic => trace.atomic(address),
                    Kind::Chase => trace.chase(address),
                }
            };
            let foreign = block.thread() != thread;
            block.decode(&mut state.line, each).map_err(|error| wrong(&error))?;
            changed |= foreign;
        } else {
            changed = true;
        }
        if changed {
            let reason = format!("{} has changed while it was replayed", index.path.display());
            return Err(Error::new(ErrorKind::Malformed, reason));
        }
        Ok(Progress::Running)
    }
}

impl Program for Replay {
    fn threads(&self) -> usize {
        self.threads.len()
    }

    fn areas(&self) -> &[Area] {
        &self.index.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if self.failed.is_some() {
            return Progress::Finished;
        }
        self.next(thread, trace).unwrap_or_else(|error| {
            trace.clear();
            self.failed = Some(error);
            Progress::Finished
        })
    }

    fn check(&self) -> Result<(), Error> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, Policy, Settings, simulate};
    use nodewise_hardware::Preset;
    use nodewise_trace::Writer;

    /// Writes what a program does, thread by thread, as a tracer would.
    fn record(path: &Path, program: &mut dyn Program) -> u64 {
        let mut writer = Writer::new(File::create(path).unwrap(), program.threads()).unwrap();
        let (mut trace, mut accesses) = (Trace::default(), 0);
        for thread in 0..program.threads() {
            let mut instructions = 0;
            let mut progress = Progress::Running;
            while progress == Progress::Running {
                trace.clear();
                progress = program.advance(thread, &mut trace);
                assert_ne!(progress, Progress::Barrier);
                for op in trace.ops() {
                    let (kind, address, before) = match op {
                        Op::Read { address, instructions } => (Kind::Read, address, instructions),
                        Op::Write { address, instructions } => (Kind::Write, address, instructions),
                        Op::Chase { address, instructions } => (Kind::Chase, address, instructions),
                        Op::Atomic { address, instructions } => (Kind::Atomic, address, instructions),
                        Op::Compute { instructions: more } => {
                            instructions += more;
                            continue;
                        }
                    };
                    let access = Access { instructions: instructions + before, line: address / 64, kind };
                    writer.access(thread, access).unwrap();
                    (instructions, accesses) = (0, accesses + 1);
                }
            }
        }
        writer.finish().unwrap();
        accesses
    }

    /// Threads that go over their own halves, written by the other's neighbour first, without barriers.
    struct Walk {
        areas: Vec<Area>,
        bases: [u64; 2],
        pieces: [u64; 2],
    }

    impl Walk {
        fn new() -> Self {
            let mut space = Space::new();
            let bases = [5 << 20, 3 << 20].map(|bytes| space.area("half", bytes, Role::Unknown));
            Self { areas: space.into_areas(), bases, pieces: [0; 2] }
        }
    }

    impl Program for Walk {
        fn threads(&self) -> usize {
            2
        }

        fn areas(&self) -> &[Area] {
            &self.areas
        }

        fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
            for step in 0..1000 {
                trace.compute(step % 7);
                let place = (self.pieces[thread] * 1000 + step) * 88 % (3 << 20);
                let address = self.bases[thread] + place;
                match step % 4 {
                    0 => trace.write(address),
                    1 => trace.chase(address),
                    _ => trace.read(address),
                }
            }
            self.pieces[thread] += 1;
            if self.pieces[thread] == 60 { Progress::Finished } else { Progress::Running }
        }

        fn check(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    #[test]
    fn a_program_and_its_trace_take_the_same_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("walk.nwtrace");
        let accesses = record(&path, &mut Walk::new());
        assert_eq!(accesses, 120_000);
        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.threads(), 2);
        let preset = Preset::named("opteron-8385-4n").unwrap().scaled(0.01);
        for policy in ["first-touch", "interleave", "bind:2", "oracle"] {
            let policy: Policy = policy.parse().unwrap();
            let settings = Settings::scaled(1.0);
            let run = |build: &dyn Fn() -> Box<dyn Program>| {
                simulate(&preset, &build, &settings, &policy, &mut |_| ()).unwrap()
            };
            let (program, replayed) = (run(&|| Box::new(Walk::new())), run(&|| recording.program()));
            assert_eq!(program.resident_pages, replayed.resident_pages, "{policy}");
            let off = replayed.run_time_s / program.run_time_s - 1.0;
            assert!(off.abs() < 0.002, "{policy}: {off}");
        }
    }

    /// The first thread writes all, and the others each read their part when it has. So the pages are where
    /// the first one ran.
    #[test]
    fn threads_wait_where_the_trace_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let local_percent = |waits: bool| {
            let path = directory.path().join("trace");
            let mut writer = Writer::new(File::create(&path).unwrap(), 100).unwrap();
            let lines = 1 << 16;
            let access = |line, kind| Access { instructions: 2, line, kind };
            (0..lines).for_each(|line| writer.access(0, access(line, Kind::Write)).unwrap());
            let done = writer.done(0).unwrap();
            for thread in 1..4 {
                if waits {
                    writer.wait(thread, 0, done).unwrap();
                }
                let part = lines / 4;
                for line in (0..part).rev().chain((0..part).rev()) {
                    writer.access(thread, access(thread as u64 * part + line, Kind::Read)).unwrap();
                }
                let done = writer.done(thread).unwrap();
                if waits {
                    writer.wait(0, thread, done).unwrap();
                }
            }
            writer.access(0, access(0, Kind::Read)).unwrap();
            writer.finish().unwrap();
            let recording = Recording::open(&path).unwrap();
            assert_eq!(recording.threads(), 4);
            let preset = Preset::named("opteron-8385-4n").unwrap().scaled(0.01);
            let pinning = "spread".parse().unwrap();
            let settings = Settings { pinning, ..Settings::scaled(1.0) };
            let build = || recording.program();
            let report =
                simulate(&preset, &build, &settings, &"first-touch".parse().unwrap(), &mut |_| ()).unwrap();
            (report.resident_pages, report.local_access_percent.unwrap())
        };
        let (pages, local) = local_percent(true);
        assert_eq!(pages, [1024, 0, 0, 0]);
        assert!((39.0..42.0).contains(&local), "{local}: 65536 of 163841 accesses are the first thread's");
        let (pages, local) = local_percent(false);
        assert!(pages[0] < 900 && local > 50.0, "{pages:?}, {local}");
    }

    #[test]
    fn memory_far_apart_is_laid_out_together() {
        let touched = BTreeSet::from([0, 1, 1 << 22, (1 << 22) + 1, 5000]);
        let (areas, chunks) = lay_out(&touched);
        assert_eq!(areas.iter().map(|area| area.bytes >> 21).collect::<Vec<_>>(), [2, 1, 2]);
        assert_eq!(chunks.len(), 5);
        let end = areas[2].base + areas[2].bytes;
        assert!(end - areas[0].base < 10 << 21);
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        let error = Recording::open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreadable);
        std::fs::write(&path, "dear diary").unwrap();
        let error = Recording::open(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Malformed);
        assert!(error.to_string().ends_with("notes: it is no trace: it does not begin with NWTRACE"));
    }
}
