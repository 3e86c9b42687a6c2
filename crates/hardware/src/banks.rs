//! The banks of a controller's memory: many servers, each of which a line keeps for long.

use crate::queue::Queue;
use crate::{Controller, Load};

/// The banks behind one controller.
///
/// A bank opens the row of a line and closes it again, and serves nobody else meanwhile. Two requests seldom
/// meet in one bank while the memory is nearly idle, and often when it is nearly saturated. A controller
/// serves others in the meantime, so that its own time for a line and the bank's pass side by side.
#[derive(Clone, Debug)]
pub(crate) struct Banks {
    queues: Vec<Queue>,
    /// The time for which a line keeps its bank.
    busy_ps: u64,
}

impl Banks {
    /// The banks of a controller, none if the preset names none.
    pub fn new(controller: &Controller) -> Self {
        Self {
            queues: vec![Queue::default(); controller.banks],
            busy_ps: (controller.bank_ns * 1000.0).round() as u64,
        }
    }

    /// Requests may be told of so much later than others after them.
    pub fn allow(&mut self, run_ahead_ps: u64) {
        self.queues.iter_mut().for_each(|queue| queue.allow(run_ahead_ps));
    }

    /// When the bank of a line that is asked for at `at_ps` is free for it.
    #[inline]
    pub fn free_for(&mut self, line: u64, now_ps: u64, at_ps: u64) -> u64 {
        if self.queues.is_empty() {
            return at_ps;
        }
        let bank = (spread(line) >> 32) * self.queues.len() as u64 >> 32;
        let done_ps = self.queues[bank as usize].serve(now_ps, at_ps, self.busy_ps, &mut Load::default());
        done_ps - self.busy_ps
    }
}

/// As controllers do, so that no stride of a program has all its lines in few banks (the finalizer of
/// `SplitMix64`, Steele et al. 2014).
#[inline]
fn spread(line: u64) -> u64 {
    let line = (line ^ line >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let line = (line ^ line >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    line ^ line >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn banks(number: usize) -> Banks {
        Banks::new(&Controller {
            idle_latency_ns: 80.0,
            service_ns: 0.5,
            write_service_ns: None,
            banks: number,
            bank_ns: 50.0,
            probe_bytes: 0,
        })
    }

    #[test]
    fn lines_of_one_bank_wait_and_others_do_not() {
        let mut banks = banks(64);
        let alone: Vec<u64> = (0..200).map(|line| banks.clone().free_for(line, 0, 7)).collect();
        assert_eq!(alone, [7; 200]);
        let bank = |line| (spread(line) >> 32) * 64 >> 32;
        let other = (6..100_000).find(|&line| bank(line) == bank(5)).unwrap();
        assert_eq!([5, other, 5].map(|line| banks.free_for(line, 0, 7)), [7, 50_007, 100_007]);
        assert_eq!([5, other].map(|line| super::tests::banks(0).free_for(line, 0, 7)), [7, 7]);
    }

    /// Requests at random times for random banks: each bank is an M/D/1 queue.
    #[test]
    fn waiting_grows_with_the_load_as_the_md1_formula_says() {
        for utilisation in [0.1, 0.4, 0.7] {
            let mut banks = banks(64);
            let (mut state, mut at, mut waited) = (1u64, 0.0, 0);
            let requests = 1_000_000;
            for line in 0..requests {
                state = state * 48271 % 0x7fff_ffff;
                at -= 50_000.0 / 64.0 / utilisation * (state as f64 / f64::from(0x7fff_ffff)).ln();
                waited += banks.free_for(line, at as u64, at as u64) - at as u64;
            }
            let waited = waited as f64 / requests as f64;
            let expected = utilisation * 50_000.0 / (2.0 * (1.0 - utilisation));
            assert!((waited / expected - 1.0).abs() < 0.03, "{waited} ps, not {expected}");
        }
    }
}
