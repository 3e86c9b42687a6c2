//! A server that serves one request at a time: a memory controller, a link in one direction.

use std::collections::VecDeque;

use crate::Load;

/// How long idle time is remembered, for requests that are told of late. Longer than the run-ahead of any core and the way of
/// any request through the machine.
const MEMORY_PS: u64 = 20_000_000;

/// A queue in simulated time.
///
/// Requests are told of in nearly, not exactly, the order of their arrival: a core runs ahead of the others by a little, and
/// an answer reserves its way back before others have asked. So the queue remembers the gaps between
/// the promises that it has made, and a request told of late is served in the gaps after its arrival, in parts if
/// one is too short. That way the server is busy at exactly the times it would be if all requests had been told of in order
/// (a server that does not idle while work waits is busy at the same times in whichever order it serves), whoever asks, and no promise
/// once made is changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    /// From here on nothing is promised.
    free_ps: u64,
    /// Idle times before that, in order; none is empty and no two touch.
    gaps: VecDeque<(u64, u64)>,
}

impl Queue {
    /// Serves a request that arrives at `at_ps` and keeps the server busy for `service_ps`. `now_ps`, at most `at_ps`, is
    /// when it was sent on its way: nobody sends anything long before that any more. Returns when it is served.
    #[inline]
    pub fn serve(&mut self, now_ps: u64, at_ps: u64, service_ps: u64, load: &mut Load) -> u64 {
        let done_ps = if at_ps >= self.free_ps {
            if at_ps > self.free_ps {
                while self.gaps.front().is_some_and(|gap| gap.1 + MEMORY_PS < now_ps) {
                    self.gaps.pop_front();
                }
                self.gaps.push_back((self.free_ps, at_ps));
            }
            self.free_ps = at_ps + service_ps;
            self.free_ps
        } else if self.gaps.back().is_none_or(|gap| gap.1 <= at_ps) {
            self.free_ps += service_ps;
            self.free_ps
        } else {
            self.fill_gaps(at_ps, service_ps)
        };
        load.busy_ps += service_ps;
        load.wait_ps += done_ps - at_ps - service_ps;
        done_ps
    }

    /// The end of the last promise.
    pub fn end_ps(&self) -> u64 {
        self.free_ps
    }

    /// Serves a request in the idle times after its arrival.
    fn fill_gaps(&mut self, at_ps: u64, service_ps: u64) -> u64 {
        let mut left_ps = service_ps;
        let mut index = self.gaps.partition_point(|gap| gap.1 <= at_ps);
        while let Some(&(start, end)) = self.gaps.get(index) {
            let begin = start.max(at_ps);
            let stop = end.min(begin + left_ps);
            left_ps -= stop - begin;
            match (begin > start, stop < end) {
                (true, true) => {
                    self.gaps[index].1 = begin;
                    self.gaps.insert(index + 1, (stop, end));
                }
                (true, false) => {
                    self.gaps[index].1 = begin;
                    index += 1;
                }
                (false, true) => self.gaps[index].0 = stop,
                (false, false) => drop(self.gaps.remove(index)),
            }
            if left_ps == 0 {
                return stop;
            }
        }
        self.free_ps += left_ps;
        self.free_ps
    }

    /// The idle times before the last promise.
    #[cfg(test)]
    fn idle(&self) -> Vec<(u64, u64)> {
        self.gaps.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn serve_all(requests: &[(u64, u64)]) -> (Queue, Load, Vec<u64>) {
        let (mut queue, mut load) = (Queue::default(), Load::default());
        let done = requests.iter().map(|&(at, service)| queue.serve(0, at, service, &mut load)).collect();
        (queue, load, done)
    }

    #[test]
    fn early_requests_told_of_late_use_the_gap() {
        let (queue, load, done) = serve_all(&[(100, 10), (0, 30), (95, 10), (20, 10)]);
        assert_eq!(done, [110, 30, 115, 40]);
        assert_eq!(queue.idle(), [(40, 95)]);
        assert_eq!(load.wait_ps, 20);
    }

    #[test]
    fn poisson_arrivals_wait_as_the_md1_formula_says() {
        let (mut queue, mut load) = (Queue::default(), Load::default());
        let (service, utilisation) = (10_000.0, 0.7);
        // A multiplicative congruential generator (Park and Miller 1988) and the inverse of the exponential distribution.
        let (mut state, mut at) = (1u64, 0.0);
        let requests = 1_000_000;
        for _ in 0..requests {
            state = state * 48271 % 0x7fff_ffff;
            at -= service / utilisation * (state as f64 / f64::from(0x7fff_ffff)).ln();
            queue.serve(at as u64, at as u64, service as u64, &mut load);
        }
        let waited = load.wait_ps as f64 / f64::from(requests);
        let expected = utilisation * service / (2.0 * (1.0 - utilisation));
        assert!((waited / expected - 1.0).abs() < 0.02, "{waited} ps, not {expected}");
    }

    proptest! {
        #[test]
        fn the_server_is_busy_at_the_same_times_in_whatever_order_requests_are_told_of(
            requests in prop::collection::vec((0u64..2000, 1u64..50), 1..60),
        ) {
            let mut ordered = requests.clone();
            ordered.sort_unstable();
            let (queue, load, done) = serve_all(&requests);
            let (in_order, load_in_order, _) = serve_all(&ordered);
            prop_assert_eq!(queue.idle(), in_order.idle());
            prop_assert_eq!(queue.free_ps, in_order.free_ps);
            prop_assert_eq!(load.busy_ps, load_in_order.busy_ps);
            for (&(at, service), done) in requests.iter().zip(done) {
                prop_assert!(done >= at + service);
            }
        }

        #[test]
        fn it_never_idles_while_work_waits(requests in prop::collection::vec((0u64..2000, 1u64..50), 1..60)) {
            let (queue, _, done) = serve_all(&requests);
            for (start, end) in queue.idle() {
                for (&(at, _), &done) in requests.iter().zip(&done) {
                    prop_assert!(done <= start || at >= end, "idle from {start} to {end}, and one waits from {at} to {done}");
                }
            }
        }
    }
}
