//! A workload of one's own: each thread adds up its part of an array that the first has written.
//!
//!     cargo run -p nodewise-sim --example own_workload
#![allow(missing_docs)]

use nodewise_hardware::Preset;
use nodewise_sim::{
    Area, Array, Error, ErrorKind, Program, Progress, Role, Settings, Space, Trace, simulate,
};

const NUMBERS: usize = 1 << 16;

struct Sum {
    areas: Vec<Area>,
    numbers: Array<u64>,
    sums: Vec<u64>,
    written: Vec<bool>,
}

impl Sum {
    fn new(threads: usize) -> Self {
        let mut space = Space::new();
        let numbers = space.array("numbers", vec![0; NUMBERS], Role::ReadShared);
        Self { areas: space.into_areas(), numbers, sums: vec![0; threads], written: vec![false; threads] }
    }
}

impl Program for Sum {
    fn threads(&self) -> usize {
        self.sums.len()
    }
    fn areas(&self) -> &[Area] {
        &self.areas
    }
    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if !self.written[thread] {
            self.written[thread] = true;
            if thread == 0 {
                (0..NUMBERS).for_each(|index| self.numbers.write(index, index as u64, trace));
            }
            return Progress::Barrier;
        }
        let part = NUMBERS / self.threads();
        for index in thread * part..(thread + 1) * part {
            trace.compute(1); // the addition
            self.sums[thread] += self.numbers.read(index, trace);
        }
        Progress::Finished
    }
    fn check(&self) -> Result<(), Error> {
        let right = self.sums.iter().sum::<u64>() == (NUMBERS * (NUMBERS - 1) / 2) as u64;
        if right { Ok(()) } else { Err(Error::new(ErrorKind::WrongResult, "the sum is wrong")) }
    }
}

fn main() -> Result<(), Error> {
    let preset = Preset::named("opteron-8385-4n")?.scaled(0.01);
    for policy in ["first-touch", "interleave", "carrefour"] {
        let build = || Box::new(Sum::new(preset.cpus())) as Box<dyn Program>;
        let report = simulate(&preset, &build, &Settings::scaled(0.01), &policy.parse()?, &mut |_| ())?;
        println!("{policy}: {:.3} ms", report.run_time_s * 1e3);
    }
    Ok(())
}
