//! Contests with numbers in memory: products, sorting, scanning; and trees of tasks with a cut-off.
//! `contestant.cpp` has the same in C++.

use super::{Contender, Contest, parts, plain, timed};
use nodewise_runtime::{Layout, NodePool, NodeVec};
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Instant;

const SIZE: usize = 1_000_000;

/// A sparse matrix in compressed rows: the Laplacian of a grid, with numbers of the rows instead of ones.
struct Matrix {
    begins: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize) -> Self {
        const SIDE: isize = 1000;
        let mut matrix = Self { begins: vec![0], columns: Vec::new(), values: Vec::new() };
        for row in 0..rows as isize {
            for column in [row - SIDE, row - 1, row, row + 1, row + SIDE] {
                if (0..rows as isize).contains(&column) {
                    matrix.columns.push(column as u32);
                    matrix.values.push((row % 7) as f64);
                }
            }
            matrix.begins.push(matrix.columns.len());
        }
        matrix
    }

    #[inline]
    fn of_row(&self, row: usize, x: &[f64]) -> f64 {
        let entries = self.begins[row]..self.begins[row + 1];
        let columns = self.columns[entries.clone()].iter();
        columns.zip(&self.values[entries]).map(|(&column, value)| value * x[column as usize]).sum()
    }
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn mixed() -> Vec<u64> {
    (1..=SIZE as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7).collect()
}

/// The body's work on mixed numbers is timed, not their making.
fn with_mixed<'a>(name: &'static str, body: impl Fn(&mut [u64]) + 'a) -> Contender<'a> {
    timed(name, SIZE as u64, move || {
        let mut numbers = mixed();
        let begin = Instant::now();
        body(&mut numbers);
        let ns = begin.elapsed().as_nanos() as u64;
        black_box(numbers);
        ns
    })
}

pub fn contests<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool, threads: usize) -> Vec<Contest<'a>> {
    let mut contests: Vec<_> = products(pool, rayon, threads).into();
    contests.extend(orders(pool, rayon));
    contests.extend(trees(pool, rayon));
    contests
}

fn products<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool, threads: usize) -> [Contest<'a>; 3] {
    let vector = || {
        let mut vector = NodeVec::<f64>::new(SIZE, Layout::Blocked).expect("there is memory");
        vector.fill(0.5);
        vector
    };
    let factors = std::rc::Rc::new([vec![0.5; SIZE], vec![2.0; SIZE]]);
    let dots = [("dot, 1e6", false), ("dot of blocks, 1e6", true)].map(|(name, of_blocks)| {
        let [for_ours, for_rayon, for_threads] = [(); 3].map(|()| factors.clone());
        let ours = if of_blocks {
            let factors = [vector(), vector()];
            plain("nodewise reduce_blocks", SIZE as u64, move || {
                let [left, right] = &factors;
                let part =
                    |block: nodewise_runtime::Block, left: &[f64]| product(left, &right[block.elements]);
                black_box(left.reduce_blocks(pool, part, |a, b| a + b));
            })
        } else {
            plain("nodewise reduce_parts", SIZE as u64, move || {
                let [left, right] = &*for_ours;
                let part = |part: std::ops::Range<usize>| product(&left[part.clone()], &right[part]);
                black_box(pool.parallel_reduce_parts(0..SIZE, part, |a, b| a + b));
            })
        };
        Contest {
            name,
            operation: "element",
            contenders: vec![
                ours,
                plain("rayon zip, sum", SIZE as u64, move || {
                    let [left, right] = &*for_rayon;
                    let sum = || left.par_iter().zip(right).map(|(a, b)| a * b).sum::<f64>();
                    black_box(rayon.install(sum));
                }),
                plain("std threads", SIZE as u64, move || {
                    let [left, right] = &*for_threads;
                    let part = |part: std::ops::Range<usize>| product(&left[part.clone()], &right[part]);
                    let sum = std::thread::scope(|scope| {
                        let threads: Vec<_> =
                            parts(SIZE, threads).map(|range| scope.spawn(move || part(range))).collect();
                        threads.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum::<f64>()
                    });
                    black_box(sum);
                }),
            ],
        }
    });
    let [dot, of_blocks] = dots;
    let matrix = std::rc::Rc::new(Matrix::new(SIZE));
    let (for_ours, for_rayon, for_threads) = (matrix.clone(), matrix.clone(), matrix);
    let (x, mut y) = (vector(), vector());
    let (of_rayon, mut to_rayon) = (vec![0.5; SIZE], vec![0.0; SIZE]);
    let (of_threads, mut to_threads) = (of_rayon.clone(), to_rayon.clone());
    let product = Contest {
        name: "SpMV, 1e6 rows",
        operation: "row",
        contenders: vec![
            plain("nodewise for_each_block", SIZE as u64, move || {
                let (matrix, x) = (&*for_ours, &x[..]);
                y.for_each_block(pool, |block, values| {
                    for (row, value) in block.elements.zip(values) {
                        *value = matrix.of_row(row, x);
                    }
                });
            }),
            plain("rayon par_iter_mut", SIZE as u64, move || {
                let (matrix, x, y) = (&*for_rayon, &of_rayon, &mut to_rayon);
                let each = |(row, value): (usize, &mut f64)| *value = matrix.of_row(row, x);
                rayon.install(|| y.par_iter_mut().enumerate().for_each(each));
            }),
            plain("std threads", SIZE as u64, move || {
                let (matrix, x) = (&*for_threads, &of_threads);
                std::thread::scope(|scope| {
                    let mut rest = &mut to_threads[..];
                    for part in parts(SIZE, threads) {
                        let (values, after) = rest.split_at_mut(part.len());
                        rest = after;
                        scope.spawn(move || {
                            for (row, value) in part.zip(values) {
                                *value = matrix.of_row(row, x);
                            }
                        });
                    }
                });
            }),
        ],
    };
    [dot, of_blocks, product]
}

fn orders<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool) -> [Contest<'a>; 2] {
    let sort = Contest {
        name: "sort, 1e6",
        operation: "element",
        contenders: vec![
            with_mixed("nodewise sort_unstable", move |numbers| pool.parallel_sort_unstable(numbers)),
            with_mixed("rayon par_sort_unstable", move |numbers| {
                rayon.install(|| numbers.par_sort_unstable());
            }),
            with_mixed("std, one thread", <[u64]>::sort_unstable),
        ],
    };
    let scan = Contest {
        name: "scan, 1e6",
        operation: "element",
        contenders: vec![
            with_mixed("nodewise inclusive_scan", move |numbers| {
                pool.parallel_inclusive_scan(numbers, |a, b| a.wrapping_add(*b));
            }),
            with_mixed("std, one thread", |numbers| {
                let mut sum = 0_u64;
                for number in numbers {
                    sum = sum.wrapping_add(*number);
                    *number = sum;
                }
            }),
        ],
    };
    [sort, scan]
}

const FIB: u64 = 32;
const CUT_OFF: u64 = 15;
/// Where a task becomes a call.
const SORTED_ALONE: usize = 2000;
const INSERTED: usize = 24;

/// Recursion that no compiler can unroll: gcc would to some depth, and clang and rustc not.
#[derive(Clone, Copy)]
struct Recursion(fn(Self, u64) -> u64);

fn fib_by(again: Recursion, n: u64) -> u64 {
    if n < 2 { n } else { again.0(again, n - 1) + again.0(again, n - 2) }
}

fn fib(n: u64) -> u64 {
    let again = black_box(Recursion(fib_by));
    again.0(again, n)
}

fn nodewise_fib(pool: &NodePool, n: u64) -> u64 {
    if n < CUT_OFF {
        return fib(n);
    }
    let (a, b) = pool.join(|| nodewise_fib(pool, n - 1), || nodewise_fib(pool, n - 2));
    a + b
}

fn rayon_fib(n: u64) -> u64 {
    if n < CUT_OFF {
        return fib(n);
    }
    let (a, b) = rayon::join(|| rayon_fib(n - 1), || rayon_fib(n - 2));
    a + b
}

/// Hoare's: the elements up to the middle one, and the others.
fn partition(elements: &mut [u64]) -> (&mut [u64], &mut [u64]) {
    let pivot = elements[elements.len() / 2];
    let (mut low, mut high) = (0, elements.len() - 1);
    loop {
        while elements[low] < pivot {
            low += 1;
        }
        while elements[high] > pivot {
            high -= 1;
        }
        if low >= high {
            return elements.split_at_mut(high + 1);
        }
        elements.swap(low, high);
        (low, high) = (low + 1, high - 1);
    }
}

fn quicksort(mut elements: &mut [u64]) {
    while elements.len() > INSERTED {
        let (first, rest) = partition(elements);
        quicksort(first);
        elements = rest;
    }
    for i in 1..elements.len() {
        let (element, mut place) = (elements[i], i);
        while place > 0 && elements[place - 1] > element {
            elements[place] = elements[place - 1];
            place -= 1;
        }
        elements[place] = element;
    }
}

fn nodewise_quicksort(pool: &NodePool, elements: &mut [u64]) {
    if elements.len() <= SORTED_ALONE {
        return quicksort(elements);
    }
    let (first, rest) = partition(elements);
    pool.join(|| nodewise_quicksort(pool, first), || nodewise_quicksort(pool, rest));
}

fn rayon_quicksort(elements: &mut [u64]) {
    if elements.len() <= SORTED_ALONE {
        return quicksort(elements);
    }
    let (first, rest) = partition(elements);
    rayon::join(|| rayon_quicksort(first), || rayon_quicksort(rest));
}

fn trees<'a>(pool: &'a NodePool, rayon: &'a rayon::ThreadPool) -> [Contest<'a>; 2] {
    /// How often fib(32) divides until it is cut off.
    const JOINS: u64 = 6764;
    let fib = Contest {
        name: "fib with cut-off",
        operation: "join",
        contenders: vec![
            plain("nodewise join", JOINS, move || {
                black_box(pool.scope(|_| nodewise_fib(pool, FIB)));
            }),
            plain("rayon join", JOINS, move || {
                black_box(rayon.install(|| rayon_fib(FIB)));
            }),
        ],
    };
    let sort = Contest {
        name: "quicksort, 1e6",
        operation: "element",
        contenders: vec![
            with_mixed("nodewise join", move |numbers| pool.scope(|_| nodewise_quicksort(pool, numbers))),
            with_mixed("rayon join", move |numbers| rayon.install(|| rayon_quicksort(numbers))),
        ],
    };
    [fib, sort]
}
