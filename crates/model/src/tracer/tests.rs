//! Tests of the tracer, with references made up.

use super::*;
use nodewise_trace::{Part, Reader};
use std::collections::BTreeSet;
use std::io::BufReader;

const SHELL: u64 = 0x1000;
const PROGRAM: u64 = 0x2000;
const TLS: u64 = 0x7000;
const FUTEX: [u64; 3] = [calls::FUTEX, 0x500, 128];
const WAKE: [u64; 3] = [calls::FUTEX, 0x500, 129];

const BEYOND: Outcome = Outcome { is_beyond: true, waited: false };

/// A guest whose CPUs do what a test says.
struct Guest {
    tracer: Tracer,
    file: tempfile::NamedTempFile,
}

impl Guest {
    fn new(limit_bytes: u64) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        Self { tracer: Tracer::new(file.path(), limit_bytes, 4).unwrap(), file }
    }

    /// A program that a shell of before the trace has executed, on CPU 0.
    fn with_program() -> Self {
        let mut guest = Self::new(1 << 30);
        guest.enter(0, SHELL, TLS, 0);
        guest.tracer.begin();
        guest.touch(0, 1);
        guest.call(0, [calls::EXECVE, 0, 0]);
        guest.enter(0, PROGRAM, 0, 0);
        guest.call(0, [calls::ARCH_PRCTL, calls::ARCH_SET_FS, TLS]);
        guest.enter(0, PROGRAM, TLS, 0);
        guest
    }

    fn enter(&mut self, cpu: usize, cr3: u64, fs_base: u64, rax: i64) {
        // The low bits say which translations are this address space's.
        let registers = Registers { cr3: cr3 | 5, fs_base, rax: rax as u64, ..Registers::default() };
        self.tracer.enter(cpu, 0, registers);
    }

    fn call(&mut self, cpu: usize, [rax, rdi, rsi]: [u64; 3]) {
        self.tracer.call(cpu, 0, Registers { rax, rdi, rsi, ..Registers::default() });
    }

    fn touch(&mut self, cpu: usize, line: u64) {
        self.tracer.access(cpu, 0, line * 64, Kind::Read, BEYOND);
    }

    /// The parts of the trace, each as `thread: lines of process` or `thread after count of other`.
    fn parts(mut self) -> Vec<String> {
        assert_eq!(self.tracer.finish().error, None);
        let mut reader = Reader::new(BufReader::new(self.file.reopen().unwrap())).unwrap();
        let mut lines = vec![0; reader.threads()];
        let mut parts = Vec::new();
        while let Some(part) = reader.next_part().unwrap() {
            parts.push(match part {
                Part::Wait { thread, other, done } => format!("{thread} after {done} of {other}"),
                Part::Accesses(block) => {
                    let (mut touched, mut processes) = (Vec::new(), BTreeSet::new());
                    let thread = block.thread();
                    let each = |access: Access| {
                        touched.push(access.line % PROCESS_LINES);
                        processes.insert(access.line / PROCESS_LINES);
                    };
                    block.decode(&mut lines[thread], each).unwrap();
                    format!("{thread}: {touched:?} of {processes:?}")
                }
            });
        }
        parts
    }
}

#[test]
fn a_pages_first_touch_is_told_though_caches_serve_it() {
    let mut guest = Guest::with_program();
    let near = Outcome { is_beyond: false, ..BEYOND };
    for line in [640, 640, 641, 704] {
        guest.tracer.access(0, 0, line * 64, Kind::Write, near);
    }
    guest.touch(0, 641);
    assert_eq!(guest.parts(), ["0: [640, 704, 641] of {0}"]);
}

#[test]
fn the_kernel_reaches_memory_for_the_thread_that_it_runs() {
    let mut guest = Guest::with_program();
    guest.enter(1, PROGRAM, TLS + 1, 0);
    let serves = |cr3, fs_base| Registers { cr3, fs_base, ..Registers::default() };
    guest.call(0, [0, 0, 0]);
    guest.tracer.serve(0, 0, serves(PROGRAM, TLS + 1));
    guest.touch(0, 10);
    guest.tracer.serve(0, 0, serves(SHELL, TLS));
    guest.touch(0, 11);
    guest.tracer.serve(0, 0, serves(0x9000, TLS));
    guest.touch(0, 12);
    guest.tracer.serve(0, 0, serves(PROGRAM, TLS));
    guest.touch(0, 13);
    assert_eq!(guest.parts(), ["0: [13] of {0}", "1: [10] of {0}"]);
}

#[test]
fn nothing_is_traced_of_processes_from_before() {
    let mut guest = Guest::new(1 << 30);
    guest.enter(0, SHELL, TLS, 0);
    guest.touch(0, 1);
    guest.tracer.begin();
    guest.touch(0, 2);
    guest.enter(1, SHELL, TLS + 1, 0);
    guest.touch(1, 3);
    assert!(guest.parts().is_empty());
}

#[test]
fn a_thread_begins_after_its_maker_and_a_woken_one_goes_on_after_its_waker() {
    let mut guest = Guest::with_program();
    guest.touch(0, 10);
    guest.call(0, [calls::CLONE3, 0, 0]);
    guest.enter(0, PROGRAM, TLS, 77);
    guest.enter(1, PROGRAM, TLS + 1, 0);
    guest.touch(1, 20);
    guest.call(1, FUTEX);
    guest.touch(0, 11);
    guest.call(0, WAKE);
    guest.enter(0, PROGRAM, TLS, 1);
    guest.touch(0, 12);
    guest.enter(1, PROGRAM, TLS + 1, 0);
    guest.touch(1, 21);
    // The kernel wakes who waits for a thread's end.
    guest.call(0, [calls::FUTEX, 0x900, 0]);
    guest.call(1, [calls::EXIT, 0, 0]);
    guest.enter(0, PROGRAM, TLS, 0);
    guest.touch(0, 13);
    let expected = [
        "0: [10] of {0}",
        "1 after 1 of 0",
        "0: [11] of {0}",
        "1: [20] of {0}",
        "1 after 2 of 0",
        "1: [21] of {0}",
        "0: [12] of {0}",
        "0 after 2 of 1",
        "0: [13] of {0}",
    ];
    assert_eq!(guest.parts(), expected);
}

#[test]
fn a_wait_that_was_none_or_ran_out_is_for_nobody() {
    for answer in [-11, -110] {
        let mut guest = Guest::with_program();
        guest.touch(0, 10);
        guest.call(0, WAKE);
        guest.enter(0, PROGRAM, TLS, 0);
        guest.enter(1, PROGRAM, TLS + 1, 0);
        guest.call(1, FUTEX);
        guest.call(0, WAKE);
        guest.enter(1, PROGRAM, TLS + 1, answer);
        guest.touch(1, 20);
        assert_eq!(guest.parts(), ["0: [10] of {0}", "1: [20] of {0}"]);
    }
}

#[test]
fn a_child_is_another_process_and_its_number_and_page_tables_serve_the_next() {
    let mut guest = Guest::with_program();
    guest.touch(0, 10);
    for child in 0..2 {
        guest.call(0, [calls::FORK, 0, 0]);
        guest.enter(1, 0x3000, TLS, 0);
        guest.enter(0, PROGRAM, TLS, 80);
        guest.touch(1, 10);
        guest.call(1, [calls::EXECVE, 0, 0]);
        guest.enter(1, 0x4000, 0, 0);
        guest.touch(1, 30 + child);
        guest.call(0, [calls::WAIT4, 0, 0]);
        guest.call(1, [calls::EXIT_GROUP, 0, 0]);
        guest.enter(0, PROGRAM, TLS, 80);
        guest.touch(0, 11);
    }
    let expected = [
        "0: [10] of {0}",
        "1 after 1 of 0",
        "1: [10, 30] of {1, 2}",
        "0 after 2 of 1",
        "0: [11] of {0}",
        "1 after 2 of 0",
        "1: [10, 31] of {3, 4}",
        "0 after 4 of 1",
        "0: [11] of {0}",
    ];
    assert_eq!(guest.parts(), expected);
}

#[test]
fn a_child_that_shares_memory_ends_or_fails_without_its_parent() {
    let mut guest = Guest::with_program();
    guest.touch(0, 10);
    guest.call(0, [calls::VFORK, 0, 0]);
    guest.enter(1, PROGRAM, TLS, 0);
    guest.call(1, [calls::EXECVE, 0, 0]);
    guest.enter(1, PROGRAM, TLS, -2);
    guest.touch(1, 11);
    guest.call(1, [calls::EXIT_GROUP, 0, 0]);
    guest.enter(0, PROGRAM, TLS, 80);
    guest.touch(0, 12);
    // A program of its own this time.
    guest.call(0, [calls::VFORK, 0, 0]);
    guest.enter(1, PROGRAM, TLS, 0);
    guest.call(1, [calls::EXECVE, 0, 0]);
    guest.enter(1, 0x3000, 0, 0);
    guest.touch(1, 30);
    guest.enter(0, PROGRAM, TLS, 81);
    guest.touch(0, 13);
    // And it executes another itself, which fails first.
    guest.call(0, [calls::EXECVE, 0, 0]);
    guest.enter(0, PROGRAM, TLS, -2);
    guest.touch(0, 14);
    guest.call(0, [calls::EXECVE, 0, 0]);
    guest.enter(0, 0x5000, 0, 0);
    guest.touch(0, 15);
    let expected = [
        "0: [10] of {0}",
        "0: [11, 12] of {0}",
        "1 after 3 of 0",
        "0: [13, 14, 15] of {0, 2}",
        "1: [30] of {1}",
    ];
    assert_eq!(guest.parts(), expected);
}

#[test]
fn instructions_are_the_threads_own() {
    let mut guest = Guest::with_program();
    let at = |fs_base| Registers { cr3: PROGRAM, fs_base, ..Registers::default() };
    guest.tracer.enter(0, 100, at(TLS));
    guest.tracer.enter(0, 130, at(TLS + 1));
    guest.tracer.access(0, 137, 64, Kind::Write, BEYOND);
    guest.tracer.enter(1, 1000, at(TLS));
    guest.tracer.access(1, 1003, 64, Kind::Read, Outcome { waited: true, ..BEYOND });
    guest.tracer.finish();
    let mut reader = Reader::new(BufReader::new(guest.file.reopen().unwrap())).unwrap();
    let mut found = Vec::new();
    while let Some(Part::Accesses(block)) = reader.next_part().unwrap() {
        block.decode(&mut 0, |access| found.push((access.instructions, access.kind))).unwrap();
    }
    // 100 up to the first look at CPU 0, 30 and 3 by thread 0, of which one is the access.
    assert_eq!(found, [(132, nodewise_trace::Kind::Chase), (6, nodewise_trace::Kind::Write)]);
}

#[test]
fn a_trace_ends_whole_at_its_limit() {
    let mut guest = Guest::with_program();
    guest.tracer.limit_bytes = 1000;
    (0..10_000).for_each(|line| guest.touch(0, line * 7919 % 100_000));
    let traced = guest.tracer.finish();
    assert!(traced.reached_limit && (200..1000).contains(&traced.accesses), "{traced:?}");
    let bytes = guest.file.as_file().metadata().unwrap().len();
    assert!((900..=1000).contains(&bytes), "{bytes}");
    assert_eq!(guest.parts().len(), 1);
}

#[test]
fn waits_count_towards_the_limit() {
    let mut guest = Guest::with_program();
    guest.tracer.limit_bytes = 1000;
    guest.touch(0, 10);
    guest.enter(1, PROGRAM, TLS + 1, 0);
    guest.touch(1, 20);
    for _ in 0..1000 {
        guest.call(1, FUTEX);
        guest.call(0, WAKE);
        guest.enter(0, PROGRAM, TLS, 1);
        guest.enter(1, PROGRAM, TLS + 1, 0);
    }
    assert!(guest.tracer.finish().reached_limit);
    let bytes = guest.file.as_file().metadata().unwrap().len();
    assert!((900..=1000).contains(&bytes), "{bytes}");
    let parts = guest.parts();
    assert!(parts.len() > 100 && parts.last().unwrap() == "1 after 1 of 0", "{parts:?}");
}

#[test]
fn a_full_disk_is_said() {
    let mut tracer = Tracer::new(Path::new("/dev/full"), 1 << 30, 1).unwrap();
    tracer.begin();
    tracer.enter(0, 0, Registers { cr3: PROGRAM, ..Registers::default() });
    tracer.access(0, 1, 64, Kind::Read, BEYOND);
    assert!(tracer.finish().error.unwrap().contains("No space left"));
}
