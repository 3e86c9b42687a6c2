use super::barrier::QUEUED;
use super::*;
use crate::deque::Deque;
use crate::injector::Injector;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

/// With the work of `barrier::QUEUED`.
struct Pool {
    sleep: Sleep,
    over: AtomicUsize,
}

impl Pool {
    fn new(workers: usize, one_sided: bool) -> Arc<Self> {
        let sleep = Sleep { one_sided: one_sided.into(), ..Sleep::new(1, (0..workers).map(|_| 0), 1, 0) };
        Arc::new(Self { sleep, over: AtomicUsize::new(0) })
    }

    fn take(&self) -> bool {
        QUEUED.take()
    }

    fn has_work(&self) -> bool {
        QUEUED.seen() > 0
    }

    /// As a worker does: search once, sleep, search again, until a task was done.
    fn do_one(&self, worker: usize) {
        if self.take() {
            return;
        }
        self.sleep.start_search();
        loop {
            if self.take() {
                self.sleep.end_search(0, || self.has_work());
                return;
            }
            self.sleep.sleep(worker, || self.has_work());
        }
    }

    /// As a worker does in the middle of a task, until another's end.
    fn wait_until_over(&self) {
        self.sleep.start_search();
        while self.over.load(Ordering::Acquire) == 0 {
            self.sleep.sleep(0, || self.over.load(Ordering::Acquire) == 1);
        }
    }

    fn end(&self, waiter: usize) {
        self.over.store(1, Ordering::Release);
        self.sleep.happened(waiter);
    }

    /// As a caller does.
    fn stand_in(&self, meanwhile: impl FnOnce()) {
        let worker = self.sleep.stand_in(0);
        meanwhile();
        if let Some(worker) = worker {
            self.sleep.stand_back(worker, || self.has_work());
        }
    }

    fn submit(&self) {
        if self.sleep.one_sided.load(Ordering::Relaxed) {
            QUEUED.push_buffered();
            self.sleep.work_made(0);
            // Sooner would be as if it had been pushed later.
            QUEUED.empty_buffer();
        } else {
            QUEUED.push();
            self.sleep.work_made(0);
        }
    }
}

type Thread = thread::JoinHandle<()>;

/// Does it with the pool on a thread of its own.
fn on_thread(pool: &Arc<Pool>, body: impl FnOnce(&Pool) + 'static) -> Thread {
    let pool = pool.clone();
    thread::spawn(move || body(&pool))
}

/// Each of them does one task.
fn workers<const N: usize>(pool: &Arc<Pool>) -> [Thread; N] {
    std::array::from_fn(|worker| on_thread(pool, move |pool| pool.do_one(worker)))
}

fn ended(threads: impl IntoIterator<Item = Thread>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Checks it with fences on both sides, and with all the cost on one, where three preemptions at most are
/// tried: there are more steps.
fn both_barriers(preemptions: Option<usize>, check: impl Fn(bool) + Send + Sync + Copy + 'static) {
    for (one_sided, preemptions) in [(false, preemptions), (true, Some(preemptions.unwrap_or(3)))] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.check(move || check(one_sided));
    }
}

/// So many workers do so many tasks, made by `make`.
fn all_are_done<const N: usize>(preemptions: Option<usize>, make: fn(&Pool)) {
    both_barriers(preemptions, move |one_sided| {
        let pool = Pool::new(N, one_sided);
        let workers = workers::<N>(&pool);
        make(&pool);
        ended(workers);
        assert!(!pool.has_work());
    });
}

#[test]
fn a_task_that_meets_a_worker_falling_asleep_is_done() {
    all_are_done::<1>(None, Pool::submit);
}

/// In the queue that the pool has for them: its length, which sleepers look at, is all that the barriers
/// order. (With fences only: loom knows no barrier of one side, but for work of `barrier::QUEUED`.)
#[test]
fn a_task_from_outside_meets_a_worker_falling_asleep_and_is_done_once() {
    for batches in [false, true] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let sleep =
                Arc::new(Sleep { one_sided: false.into(), ..Sleep::new(1, [0, 0].into_iter(), 0, 0) });
            let injector = Arc::new(Injector::new());
            let workers = [0, 1].map(|worker| {
                let (sleep, injector) = (sleep.clone(), injector.clone());
                thread::spawn(move || {
                    let own = Deque::new();
                    let take = || if batches { injector.take_half(2, &own) } else { injector.take() };
                    if let Some(task) = take() {
                        return task;
                    }
                    sleep.start_search();
                    loop {
                        if let Some(task) = take() {
                            sleep.end_search(0, || !injector.is_empty());
                            return task;
                        }
                        sleep.sleep(worker, || !injector.is_empty());
                    }
                })
            });
            for task in [1, 2] {
                injector.push(task);
                sleep.work_made(0);
            }
            let done = workers.map(|worker| worker.join().unwrap());
            assert!(done == [1, 2] || done == [2, 1]);
            assert!(injector.is_empty() && injector.take().is_none());
        });
    }
}

/// As callers do with what is not theirs.
#[test]
fn a_task_that_was_looked_at_and_put_back_is_done() {
    both_barriers(None, |one_sided| {
        let pool = Pool::new(1, one_sided);
        QUEUED.push();
        let workers = workers::<1>(&pool);
        if pool.take() {
            pool.submit();
        }
        ended(workers);
        assert!(!pool.has_work());
    });
}

#[test]
fn two_tasks_wake_two_workers() {
    all_are_done::<2>(Some(1), |pool| {
        pool.submit();
        pool.submit();
    });
}

#[test]
fn work_made_while_a_caller_stands_in_is_done_when_it_stands_back() {
    all_are_done::<1>(None, |pool| pool.stand_in(|| pool.submit()));
}

/// The searcher then owes what the caller leaves to it, whether it finds a task or sleeps.
#[test]
fn work_made_while_a_caller_stands_in_is_done_by_who_searches_when_it_stands_back() {
    all_are_done::<2>(Some(1), |pool| {
        pool.stand_in(|| {
            pool.submit();
            pool.submit();
        });
    });
}

#[test]
fn a_worker_that_a_caller_stands_in_for_wakes_for_what_it_waits_for() {
    loom::model(|| {
        let pool = Pool::new(1, false);
        let waiting = on_thread(&pool, Pool::wait_until_over);
        pool.stand_in(|| pool.end(0));
        ended([waiting]);
    });
}

#[test]
fn a_caller_sleeps_until_it_has_happened_and_others_work_meanwhile() {
    both_barriers(Some(1), |one_sided| {
        let pool = Pool::new(1, one_sided);
        let worker = on_thread(&pool, |pool| {
            pool.do_one(0);
            pool.end(1);
        });
        let stood_in_for = pool.sleep.stand_in(0);
        pool.submit();
        let over = || pool.over.load(Ordering::Acquire) == 1;
        pool.sleep.sleep_as_caller(1, stood_in_for, over, || pool.has_work());
        while !over() {
            pool.sleep.sleep_as_caller(1, None, over, || pool.has_work());
        }
        ended([worker]);
    });
}

#[test]
fn what_a_sleeper_waits_for_wakes_it() {
    loom::model(|| {
        let pool = Pool::new(1, false);
        let waiting = on_thread(&pool, Pool::wait_until_over);
        pool.end(0);
        ended([waiting]);
    });
}

/// And may sleep as others do afterwards, when who has told it may still be about to wake it.
#[test]
fn what_one_who_sleeps_apart_waits_for_wakes_it() {
    both_barriers(Some(3), |one_sided| {
        let pool = Pool::new(1, one_sided);
        let waiting = on_thread(&pool, |pool| {
            let over = || pool.over.load(Ordering::Acquire) == 1;
            while !over() {
                pool.sleep.sleep_apart(0, Duration::MAX, over);
            }
            pool.do_one(0);
        });
        pool.end(0);
        pool.submit();
        ended([waiting]);
        assert_eq!(pool.sleep.idle.load(Ordering::Relaxed), 0);
        assert!(pool.sleep.sleepers.iter().all(|sleepers| lock(sleepers).ready.is_empty()));
    });
}

/// Worker 0 sleeps, in these models, and is no thread of its own; others have found something else to do, so
/// that it has to be woken.
fn is_woken(pool: &Pool) {
    assert_eq!(pool.sleep.workers[0].state.get(Ordering::Acquire), AWAKE, "nobody does the task");
}

fn with_one_asleep(one_sided: bool, stood_in_for: bool) -> Arc<Pool> {
    let pool = Pool::new(1, one_sided);
    pool.sleep.workers[0].state.set(ASLEEP, Ordering::Relaxed);
    let mut sleepers = lock(&pool.sleep.sleepers[0]);
    if stood_in_for {
        sleepers.stood_in_for.push(0);
    } else {
        sleepers.ready.push(0);
        pool.sleep.idle.fetch_add(SLEEPING, Ordering::Relaxed);
    }
    drop(sleepers);
    pool
}

fn search_and_find_something_else(pool: &Arc<Pool>) -> Thread {
    pool.sleep.start_search();
    on_thread(pool, |pool| pool.sleep.end_search(0, || pool.has_work()))
}

#[test]
fn work_left_to_a_searcher_that_found_something_else_wakes_the_next() {
    both_barriers(None, |one_sided| {
        let pool = with_one_asleep(one_sided, false);
        let searcher = search_and_find_something_else(&pool);
        pool.submit();
        ended([searcher]);
        is_woken(&pool);
    });
}

/// The maker of the work may have it in its store buffer when it sees nobody asleep.
#[test]
fn work_made_when_a_caller_stands_back_wakes_who_it_stood_in_for() {
    both_barriers(Some(3), |one_sided| {
        let pool = with_one_asleep(one_sided, true);
        let threads = [search_and_find_something_else(&pool), on_thread(&pool, Pool::submit)];
        pool.sleep.stand_back(0, || pool.has_work());
        ended(threads);
        is_woken(&pool);
    });
}

/// A barrier that is left to searchers for the second time is not taken back by the one who pays for the
/// first.
#[test]
fn work_made_when_a_caller_stands_back_again_wakes_who_it_stood_in_for() {
    both_barriers(Some(2), |one_sided| {
        let pool = with_one_asleep(one_sided, true);
        let threads = [
            search_and_find_something_else(&pool),
            search_and_find_something_else(&pool),
            on_thread(&pool, Pool::submit),
        ];
        pool.sleep.stand_back(0, || pool.has_work());
        pool.stand_in(|| ());
        ended(threads);
        is_woken(&pool);
    });
}
