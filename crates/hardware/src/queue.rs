//! A server that serves one request at a time: a memory controller, a link in one direction.

use crate::Load;
use std::collections::VecDeque;

/// How long idle time is remembered at least, for requests that are told of late. Longer than the way of any
/// request through the machine.
const MEMORY_PS: u64 = 20_000_000;

/// A queue in simulated time.
///
/// Requests are reported in nearly, not exactly, the order of their arrival. A core runs ahead of the others
/// by a little, and an answer reserves its way back before others have asked. So the queue remembers the gaps
/// between its reservations. A request that is reported late is served in the gaps after its arrival, in
/// parts if one is too short.
///
/// The server is thus busy exactly when it would be had the requests arrived in order, and no reservation is
/// ever changed. The reason is that a server which never idles while work waits is busy at the same times in
/// whatever order it serves.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    /// From here on nothing is promised.
    free_ps: u64,
    /// Idle times before that.
    gaps: Gaps,
    /// How long these are remembered.
    memory_ps: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self { free_ps: 0, gaps: Gaps::default(), memory_ps: MEMORY_PS }
    }
}

impl Queue {
    /// Requests may be told of so much later than others after them.
    pub fn allow(&mut self, run_ahead_ps: u64) {
        self.memory_ps = MEMORY_PS.max(run_ahead_ps.saturating_mul(5) / 2);
    }

    /// Serves a request that arrives at `at_ps` and keeps the server busy for `service_ps`. `now_ps`, at most
    /// `at_ps`, is when it was sent on its way: nobody sends anything long before that any more. Returns
    /// when it is served.
    #[inline]
    pub fn serve(&mut self, now_ps: u64, at_ps: u64, service_ps: u64, load: &mut Load) -> u64 {
        let done_ps = if at_ps >= self.free_ps {
            if at_ps > self.free_ps {
                self.gaps.forget(now_ps.saturating_sub(self.memory_ps + 1));
                self.gaps.push((self.free_ps, at_ps));
            }
            self.free_ps = at_ps + service_ps;
            self.free_ps
        } else if self.gaps.end() <= at_ps {
            self.free_ps += service_ps;
            self.free_ps
        } else {
            let (left_ps, done_ps) = self.gaps.fill(at_ps, service_ps);
            self.free_ps += left_ps;
            if left_ps > 0 { self.free_ps } else { done_ps }
        };
        load.busy_ps += service_ps;
        load.wait_ps += done_ps - at_ps - service_ps;
        done_ps
    }

    /// The end of the last promise.
    pub fn end_ps(&self) -> u64 {
        self.free_ps
    }

    /// The idle times before the last promise.
    #[cfg(test)]
    fn idle(&self) -> Vec<(u64, u64)> {
        self.gaps.pieces.iter().flatten().copied().collect()
    }
}

/// Idle times in order; none is empty and no two touch.
///
/// A thread that copies pages has promises made long before others ask for the time in between, so there may
/// be thousands. They are kept in pieces: of the gaps behind one that is parted only those of its piece have
/// to make room.
#[derive(Clone, Debug, Default)]
struct Gaps {
    /// None is empty.
    pieces: VecDeque<Vec<(u64, u64)>>,
    /// Gaps that end by then are no more.
    forgotten_ps: u64,
}

impl Gaps {
    /// Most gaps of a piece.
    const PIECE: usize = 128;

    /// When the last ends; 0 if there is none.
    #[inline]
    fn end(&self) -> u64 {
        self.pieces.back().and_then(|piece| piece.last()).map_or(0, |gap| gap.1)
    }

    /// Adds one after all others.
    #[inline]
    fn push(&mut self, gap: (u64, u64)) {
        match self.pieces.back_mut() {
            Some(piece) if piece.len() < Self::PIECE => piece.push(gap),
            _ => self.pieces.push_back(vec![gap]),
        }
    }

    /// Nobody will ask for these any more.
    #[inline]
    fn forget(&mut self, until_ps: u64) {
        self.forgotten_ps = self.forgotten_ps.max(until_ps);
        while self.pieces.front().is_some_and(|piece| piece[piece.len() - 1].1 <= self.forgotten_ps) {
            self.pieces.pop_front();
        }
    }

    /// Takes time out of the gaps from `at_ps` on. Returns how much is lacking, and the end of the last part.
    fn fill(&mut self, at_ps: u64, service_ps: u64) -> (u64, u64) {
        let (mut left_ps, mut stop) = (service_ps, at_ps);
        let past = |gap: &(u64, u64)| gap.1 <= at_ps.max(self.forgotten_ps);
        // Most requests are late by little.
        let mut number = match self.pieces.back() {
            Some(piece) if past(&piece[0]) => self.pieces.len() - 1,
            _ => self.pieces.partition_point(|piece| past(&piece[piece.len() - 1])),
        };
        let mut index = self.pieces.get(number).map_or(0, |piece| piece.partition_point(past));
        while let Some(piece) = self.pieces.get_mut(number) {
            while let Some(&(start, end)) = piece.get(index) {
                let begin = start.max(at_ps);
                stop = end.min(begin + left_ps);
                left_ps -= stop - begin;
                match (begin > start, stop < end) {
                    (true, true) => {
                        piece[index].1 = begin;
                        piece.insert(index + 1, (stop, end));
                    }
                    (true, false) => {
                        piece[index].1 = begin;
                        index += 1;
                    }
                    (false, true) => piece[index].0 = stop,
                    (false, false) => drop(piece.remove(index)),
                }
                if left_ps == 0 {
                    break;
                }
            }
            if piece.is_empty() {
                self.pieces.remove(number);
            } else {
                if piece.len() > Self::PIECE {
                    let half = piece.split_off(Self::PIECE / 2);
                    self.pieces.insert(number + 1, half);
                }
                number += 1;
            }
            if left_ps == 0 {
                break;
            }
            index = 0;
        }
        (left_ps, stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn thousands_of_gaps_are_filled_as_few_are() {
        let ahead = (0..2000).map(|number| (number * 100, 10));
        // Each parts a gap, in an order that is none, and then one takes all there is in a quarter of the
        // time.
        let late = (0..2000).map(|number| (number * 7919 % 2000 * 100 + 40, 15));
        let mut requests: Vec<_> = ahead.chain(late).chain([(50_000, 40_000)]).collect();
        let (queue, load, done) = serve_all(&requests);
        assert!(queue.gaps.pieces.len() > 10);
        assert!(queue.gaps.pieces.iter().all(|piece| (1..=Gaps::PIECE).contains(&piece.len())));
        assert!(
            done[2000..4000].iter().zip(&requests[2000..]).all(|(done, request)| *done == request.0 + 15)
        );
        requests.sort_unstable();
        let (in_order, load_in_order, _) = serve_all(&requests);
        assert_eq!(queue.idle(), in_order.idle());
        assert_eq!(load.busy_ps, load_in_order.busy_ps);
    }

    #[test]
    fn poisson_arrivals_wait_as_the_md1_formula_says() {
        let (mut queue, mut load) = (Queue::default(), Load::default());
        let (service, utilisation) = (10_000.0, 0.7);
        // A multiplicative congruential generator (Park and Miller 1988) and the inverse of the exponential
        // distribution.
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

        /// Time goes on until most gaps are forgotten. Requests are told of late by as much as a core runs
        /// ahead of others, arrive some time after they were sent, and now and then somebody who copies asks
        /// for time long before it comes.
        #[test]
        fn nor_does_it_while_time_goes_on_and_gaps_are_forgotten(
            requests in prop::collection::vec(
                (0u64..400_000, 0u64..2_000_000, 0u64..1_000_000, 1u64..150_000, 0u8..64),
                300..500,
            ),
        ) {
            let (mut queue, mut load, mut time_ps) = (Queue::default(), Load::default(), 0);
            let mut served = Vec::new();
            for (passed_ps, late_ps, way_ps, service_ps, copy) in requests {
                time_ps += passed_ps;
                let (now_ps, at_ps) = if copy == 0 {
                    (0, time_ps + 5 * way_ps)
                } else {
                    let now_ps = time_ps.saturating_sub(late_ps);
                    (now_ps, now_ps + way_ps)
                };
                let done_ps = queue.serve(now_ps, at_ps, service_ps, &mut load);
                prop_assert!(done_ps >= at_ps + service_ps);
                served.push((at_ps, service_ps, done_ps));
            }
            // When a server idles that is told of all in order.
            served.sort_unstable();
            let (mut idle, mut free_ps) = (Vec::new(), 0);
            for &(at_ps, service_ps, _) in &served {
                if at_ps > free_ps {
                    idle.push((free_ps, at_ps));
                }
                free_ps = free_ps.max(at_ps) + service_ps;
            }
            prop_assert_eq!(queue.free_ps, free_ps);
            let forgotten_ps = queue.gaps.forgotten_ps;
            let known = |gaps: Vec<(u64, u64)>| -> Vec<_> {
                gaps.into_iter().filter(|gap| gap.1 > forgotten_ps).collect()
            };
            prop_assert_eq!(known(queue.idle()), known(idle.clone()));
            for (start, end) in idle {
                for &(at, _, done) in &served {
                    prop_assert!(done <= start || at >= end, "idle from {start} to {end}, and one waits from {at} to {done}");
                }
            }
        }
    }
}
