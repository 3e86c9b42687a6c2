//! Decoding with a language model: every thread continues a text of its own, a token at a time.
//!
//! Scale 1 has 64 MB of weights, which one thread reads from a file, so they are all where it runs. For each
//! token a thread goes through all of them, and through the keys and values of the text so far, which are its
//! own. Kept: a layer's projections, attention over the cache, the residual. Left out: the wide layers
//! between (they would be more of the same weights), heads, and sampling: the next token's vector is what
//! comes out.

use crate::workloads::Parameters;
use crate::workloads::phases::{Lines, Phased, Phases, Random, alone, scaled, write_lines};
use crate::{Area, Array, Error, Program, Role, Space, Trace};
use std::ops::Range;

const WEIGHTS: usize = 16 << 20;
const LAYERS: usize = 4;
const TOKENS: usize = 12;
/// Matrices of a layer: query, key, value, output.
const MATRICES: usize = 4;
/// Rows of an item, a matrix's.
const ROWS: usize = 8;

/// A line of 16 weights: eight-wide multiply-adds and their loads; decoding is bound by memory.
const DOT: Lines = Lines { at_once: 6, instructions: 8 };
const ROW: u64 = 12;

/// A thread's text.
struct Text {
    /// Keys and values, `[layer][token][key or value][width]`.
    cache: Array<f32>,
    /// The vector that goes into the layer, and is added to.
    x: Vec<f32>,
    query: Vec<f32>,
    attention: Vec<f32>,
    /// The result of the output projection so far.
    out: Vec<f32>,
}

struct Llm {
    areas: Vec<Area>,
    width: usize,
    /// `[layer][matrix][row][width]`.
    weights: Array<f32>,
    texts: Vec<Text>,
    seed: u64,
}

pub fn build(parameters: Parameters) -> Box<dyn Program> {
    let weights = scaled(WEIGHTS, parameters.scale, 1) as f64;
    let width = ((weights / (LAYERS * MATRICES) as f64).sqrt().round() as usize).max(16);
    let mut random = Random::new(parameters.seed);
    let spread = 1.0 / (width as f64).sqrt();
    let list = (0..LAYERS * MATRICES * width * width)
        .map(|_| ((random.unit() - 0.5) * 3.4 * spread) as f32)
        .collect();
    let mut space = Space::new();
    let weights = space.array("weights", list, Role::ReadShared);
    let texts = (0..parameters.threads).map(|thread| Text {
        cache: space.array(
            format!("cache {thread}"),
            vec![0.0; LAYERS * TOKENS * 2 * width],
            Role::Private(thread),
        ),
        x: first_token(parameters.seed, thread, width),
        query: vec![0.0; width],
        attention: vec![0.0; width],
        out: vec![0.0; width],
    });
    let texts = texts.collect();
    let program = Llm { areas: space.into_areas(), width, weights, texts, seed: parameters.seed };
    Phases::program(program, parameters.threads)
}

fn first_token(seed: u64, thread: usize, width: usize) -> Vec<f32> {
    let mut random = Random::new(seed ^ (thread as u64 + 1) << 32);
    (0..width).map(|_| (random.unit() - 0.5) as f32).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The vector that attention takes from the values, given the keys: softmax of the products with the query.
fn attend(query: &[f32], keys: &[&[f32]], values: &[&[f32]]) -> Vec<f32> {
    let scale = 1.0 / (query.len() as f32).sqrt();
    let scores: Vec<f32> = keys.iter().map(|key| dot(query, key) * scale).collect();
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = scores.iter().map(|score| (score - most).exp()).collect();
    let total: f32 = weights.iter().sum();
    let column = |place: usize| {
        values.iter().zip(&weights).map(|(value, weight)| weight * value[place]).sum::<f32>() / total
    };
    (0..query.len()).map(column).collect()
}

/// The residual, kept within bounds as a norm does.
fn add(x: &mut [f32], out: &[f32]) {
    for (x, out) in x.iter_mut().zip(out) {
        *x = (*x + out).tanh();
    }
}

impl Llm {
    /// Where a row of a matrix starts.
    fn row(&self, layer: usize, matrix: usize, row: usize) -> usize {
        ((layer * MATRICES + matrix) * self.width + row) * self.width
    }

    fn weights_of(&self, layer: usize, matrix: usize, row: usize) -> &[f32] {
        let start = self.row(layer, matrix, row);
        &self.weights.values()[start..start + self.width]
    }

    /// Where a token's key or value starts in a cache.
    fn place(&self, layer: usize, token: usize, value: bool) -> usize {
        ((layer * TOKENS + token) * 2 + usize::from(value)) * self.width
    }

    fn blocks(&self) -> usize {
        self.width.div_ceil(ROWS)
    }

    /// Items of a layer: blocks of rows of query, key and value, the attention, blocks of rows of the output.
    fn items_of_layer(&self) -> usize {
        self.blocks() * MATRICES + 1
    }

    /// Some rows of a matrix times what goes into it.
    fn multiply(
        &mut self,
        thread: usize,
        layer: usize,
        token: usize,
        matrix: usize,
        rows: Range<usize>,
        trace: &mut Trace,
    ) {
        for row in rows {
            DOT.read(self.weights.address(self.row(layer, matrix, row)), self.width as u64 * 4, trace);
            trace.compute(ROW);
            let weights = self.weights_of(layer, matrix, row);
            let text = &self.texts[thread];
            let sum = dot(weights, if matrix == 3 { &text.attention } else { &text.x });
            let place = self.place(layer, token, matrix == 2) + row;
            let text = &mut self.texts[thread];
            match matrix {
                0 => text.query[row] = sum,
                3 => text.out[row] = sum,
                _ => text.cache.write(place, sum, trace),
            }
        }
    }

    fn attention(&mut self, thread: usize, layer: usize, token: usize, trace: &mut Trace) {
        let first = self.place(layer, 0, false);
        let bytes = ((token + 1) * 2 * self.width) as u64 * 4;
        DOT.read(self.texts[thread].cache.address(first), bytes, trace);
        let text = &self.texts[thread];
        let of = |value: bool| -> Vec<&[f32]> {
            let slice = |token| &text.cache.values()[self.place(layer, token, value)..][..self.width];
            (0..=token).map(slice).collect()
        };
        let attention = attend(&text.query, &of(false), &of(true));
        self.texts[thread].attention = attention;
    }
}

impl Phased for Llm {
    fn areas(&self) -> &[Area] {
        &self.areas
    }

    fn phases(&self) -> usize {
        2
    }

    fn items(&self, phase: usize, thread: usize) -> Range<usize> {
        match phase {
            0 => alone(LAYERS * MATRICES * self.width, thread),
            _ => 0..TOKENS * LAYERS * self.items_of_layer(),
        }
    }

    fn item(&mut self, phase: usize, thread: usize, item: usize, trace: &mut Trace) {
        if phase == 0 {
            trace.compute(self.width as u64);
            return write_lines(self.weights.address(item * self.width), self.width as u64 * 4, trace);
        }
        let step = item % self.items_of_layer();
        let layer = item / self.items_of_layer() % LAYERS;
        let token = item / self.items_of_layer() / LAYERS;
        let before = self.blocks() * (MATRICES - 1);
        if step == before {
            return self.attention(thread, layer, token, trace);
        }
        // The attention is between the last two matrices.
        let block = step - usize::from(step > before);
        let (matrix, first) = (block / self.blocks(), block % self.blocks() * ROWS);
        self.multiply(thread, layer, token, matrix, first..(first + ROWS).min(self.width), trace);
        if step + 1 == self.items_of_layer() {
            let text = &mut self.texts[thread];
            add(&mut text.x, &text.out);
        }
    }

    fn check(&self) -> Result<(), Error> {
        // The first and the last text again, in one go.
        let times = |layer: usize, matrix: usize, x: &[f32]| -> Vec<f32> {
            (0..self.width).map(|row| dot(self.weights_of(layer, matrix, row), x)).collect()
        };
        for thread in [0, self.texts.len() - 1] {
            let mut x = first_token(self.seed, thread, self.width);
            let mut cache = vec![(Vec::<Vec<f32>>::new(), Vec::<Vec<f32>>::new()); LAYERS];
            for _ in 0..TOKENS {
                for (layer, (keys, values)) in cache.iter_mut().enumerate() {
                    keys.push(times(layer, 1, &x));
                    values.push(times(layer, 2, &x));
                    let keys: Vec<&[f32]> = keys.iter().map(Vec::as_slice).collect();
                    let values: Vec<&[f32]> = values.iter().map(Vec::as_slice).collect();
                    let attention = attend(&times(layer, 0, &x), &keys, &values);
                    add(&mut x, &times(layer, 3, &attention));
                }
            }
            if x != self.texts[thread].x {
                return Err(Error::wrong_result(format!(
                    "text {thread} ends in {:?}, not {:?}",
                    self.texts[thread].x.first(),
                    x.first()
                )));
            }
        }
        Ok(())
    }
}
