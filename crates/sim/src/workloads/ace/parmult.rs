//! `ParMult`: nothing but integer multiplication.

use super::shared::Counter;
use super::{MULTIPLY, scaled};
use crate::workloads::Parameters;
use crate::{Area, Error, Program, Progress, Space, Trace};

/// Multiplications in all: 67.3 s at 27 instructions each.
const MULTIPLICATIONS: u64 = 10_000_000;
/// Multiplications handed out at a time: so many that handing out cannot be measured, as the paper says.
const PORTION: u32 = 10_000;
const LOOP: u64 = 3;
const FACTOR: u32 = 1_664_525;

struct ParMult {
    areas: Vec<Area>,
    work: Counter,
    portions: u32,
    /// Products, a portion each, kept in a register.
    products: Vec<u32>,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let mut space = Space::new();
    let work = Counter::new(&mut space, "work");
    let portions = scaled(MULTIPLICATIONS / u64::from(PORTION), parameters, 1) as u32;
    Box::new(ParMult { areas: space.into_areas(), work, portions, products: vec![1; parameters.threads] })
}

impl Program for ParMult {
    fn threads(&self) -> usize {
        self.products.len()
    }

    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn advance(&mut self, thread: usize, trace: &mut Trace) -> Progress {
        if self.work.take(1, self.portions, trace) >= self.portions {
            return Progress::Finished;
        }
        for _ in 0..PORTION {
            self.products[thread] = self.products[thread].wrapping_mul(FACTOR);
        }
        trace.compute(u64::from(PORTION) * (MULTIPLY + LOOP));
        Progress::Running
    }

    fn check(&self) -> Result<(), Error> {
        let product = self.products.iter().copied().fold(1, u32::wrapping_mul);
        let expected = FACTOR.wrapping_pow(self.portions * PORTION);
        if product == expected {
            Ok(())
        } else {
            Err(Error::wrong_result(format!("the product is {product}, not {expected}")))
        }
    }
}
