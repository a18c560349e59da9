//! Attention and its gradient, as products and row programs.
//!
//! Scores are f32 in temporaries, block by block of samples, heads and queries, so that they stay bounded
//! ([`Sequence::budget`]). Weights and the gradients of scores are rounded to the operands' dtype before they
//! are multiplied. Gradients of keys and values are summed in f32 over blocks of queries. With a causal mask
//! alone, blocks of early queries leave out the keys that none of them sees. With dropout, the uniform
//! numbers of a block's weights are drawn again in both directions.

use super::sequence::{Sequence, View};
use crate::diagnostic::{Error, Result};
use crate::dtype::DType;
use crate::expr::{Expr, float, input as x};
use crate::fail;
use crate::ops::OpCx;
use crate::ops::attention::attention::Attention;
use crate::ops::random::philox;
use crate::row::{Access, Instr, Reduce, Reg, RowBuilder, RowProgram};

/// Queries of a block are a multiple of it where there are more: rows of a tile of a product.
const QUERIES: usize = 128;

/// Fewest queries of a block that a causal mask lets see fewer keys than the next one, and most such blocks.
const BAND: usize = 512;
const BANDS: usize = 4;

/// The steps of an `attention` node.
///
/// # Errors
/// Types and shapes that the kernels do not take.
pub fn forward(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    let a = Attention::of(cx, [0, 1, 2, 3, 4])?;
    let results = s.outputs();
    let [out, largest, denominators] = &results[..] else {
        return Err(unsupported("attention without its three results"));
    };
    if empty(&a)? {
        s.fill(out, 0.0)?;
        s.fill(largest, f64::NEG_INFINITY)?;
        s.fill(denominators, 0.0)?;
        return Ok(());
    }
    let (q, k, v) = (s.input(0)?, s.input(1)?, s.input(2)?);
    let mask = mask(s, &a, 3)?;
    let dtype = q.dtype;
    let dropout = Dropout::of(s, &a, cx, 4)?;
    let bands = a.causal && mask.is_none() && dropout.from.is_none();
    for block in Block::all(&a, s.budget, 4 + dtype.size() + dropout.bytes(), bands) {
        let scores = block.scores(s, &a, &q, &k)?;
        let weights = s.temporary(dtype, scores.shape())?;
        let own = [block.of(largest)?, block.of(denominators)?];
        let mask = mask.as_ref().map(|m| block.of(m)).transpose()?;
        let drawn = dropout.drawn(s, &a, &block)?;
        let mut b = RowBuilder::new(&scores.shape()[..3], &scores.shape()[3..]);
        let score = masked(&mut b, &a, mask.as_ref(), block.queries.0);
        let most = b.reduce(Reduce::Max, score);
        // A query whose keys are all hidden has a sum of 0: its weights are then this factor times 0.
        let unseen = float(if a.nan_without_keys { f64::NAN } else { 0.0 });
        let none = x(0).eq(float(f64::NEG_INFINITY));
        let shift = b.expr(&none.select(float(0.0), x(0)), &[most]);
        let e = b.expr(&(x(0) - x(1)).exp_nonpos(), &[score, shift]);
        let sum = b.sum(e);
        let scale = b.expr(&x(0).eq(float(0.0)).select(unseen.clone(), x(0).recip()), &[sum]);
        let weight = b.expr(&(x(0) * x(1)), &[e, scale]);
        let kept = dropout.kept(&mut b);
        let weight = kept.map_or(weight, |kept| b.expr(&(x(0) * x(1)), &[weight, kept]));
        b.store(dtype, Access::identity(4), weight);
        let denominator = b.expr(&x(0).eq(float(0.0)).select(unseen, x(0)), &[sum]);
        for (to, number) in own.iter().zip([most, denominator]) {
            b.store(to.dtype, by_query(), number);
        }
        let reads: Vec<&View> = [&scores].into_iter().chain(&mask).chain(&drawn).collect();
        s.rows(b.finish(), &reads, &[&weights, &own[0], &own[1]])?;
        let values = block.repeated(&v, &a)?;
        let weights = grouped(&weights, a.heads / a.value_heads)?;
        s.product(&weights, &values, &grouped(&block.of(out)?, a.heads / a.value_heads)?)?;
    }
    Ok(())
}

/// The steps of an `attention_backward` node.
///
/// # Errors
/// As [`forward`].
pub fn backward(s: &mut Sequence, cx: &OpCx) -> Result<()> {
    let a = Attention::of_backward(cx)?;
    let results = s.outputs();
    let [dq, dk, dv, dmask @ ..] = &results[..] else {
        return Err(unsupported("a gradient of attention without its three results"));
    };
    if empty(&a)? {
        results.iter().try_for_each(|result| s.fill(result, 0.0))?;
        return Ok(());
    }
    let (g, q, k, v) = (s.input(0)?, s.input(1)?, s.input(2)?, s.input(3)?);
    let (y, largest, denominators) = (s.input(4)?, s.input(5)?, s.input(6)?);
    let mask = mask(s, &a, 7)?;
    let dtype = q.dtype;
    if g.dtype != dtype {
        return Err(unsupported("a gradient of another type than the queries'"));
    }
    let groups = [a.heads / a.key_heads, a.heads / a.value_heads];
    let dropout = Dropout::of(s, &a, cx, 8)?;
    let bands = a.causal && mask.is_none() && dropout.from.is_none();
    let blocks = Block::all(&a, s.budget, 2 * (4 + dtype.size()) + dropout.bytes(), bands);
    // Blocks of queries of the same samples and heads follow each other.
    for same in blocks.chunk_by(|b, c| (b.samples, b.heads) == (c.samples, c.heads)) {
        let parts = [(dk, groups[0]), (dv, groups[1])];
        let parts = parts.map(|(t, group)| same[0].of_group(t, group));
        let [own_dk, own_dv] = parts;
        let (own_dk, own_dv) = (own_dk?, own_dv?);
        let mut sums = [Sum::new(s, &own_dk, same.len())?, Sum::new(s, &own_dv, same.len())?];
        // The last queries see all keys: sums begin with them.
        for block in same.iter().rev() {
            let (own_q, own_g) = (block.of(&q)?, block.of(&g)?);
            let (through, own_g) = through(s, &own_g, &block.of(&y)?, groups[1])?;
            let scores = block.scores(s, &a, &q, &k)?;
            // The gradient of the weights.
            let d = s.temporary(DType::F32, scores.shape())?;
            let values = block.repeated(&v, &a)?.transposed();
            s.product(&grouped(&own_g, groups[1])?, &values, &grouped(&d, groups[1])?)?;

            let (weights, slopes) =
                (s.temporary(dtype, scores.shape())?, s.temporary(dtype, scores.shape())?);
            let own_mask = mask.as_ref().map(|m| block.of(m)).transpose()?;
            let (own_largest, own_denominators) = (block.of(&largest)?, block.of(&denominators)?);
            let drawn = dropout.drawn(s, &a, block)?;
            let own_dmask = dmask.iter().map(|t| block.of(t)).collect::<Result<Vec<_>, _>>()?;
            let mut b = RowBuilder::new(&scores.shape()[..3], &scores.shape()[3..]);
            let score = masked(&mut b, &a, own_mask.as_ref(), block.queries.0);
            let [most, sum] = [&largest, &denominators].map(|t| b.read(t.dtype, by_query()));
            let d_weight = b.read(DType::F32, Access::identity(4));
            let through_row = b.read(DType::F32, by_query());
            let scale = b.expr(&x(0).eq(float(0.0)).select(float(0.0), x(0).recip()), &[sum]);
            let none = x(0).eq(float(f64::NEG_INFINITY));
            let shift = b.expr(&none.select(float(0.0), x(0)), &[most]);
            let weight = b.expr(&((x(0) - x(1)).exp_nonpos() * x(2)), &[score, shift, scale]);
            let (mut used, mut d_used) = (weight, d_weight);
            if let Some(kept) = dropout.kept(&mut b) {
                [used, d_used] = [used, d_used].map(|own| b.expr(&(x(0) * x(1)), &[own, kept]));
            }
            b.store(dtype, Access::identity(4), used);
            let slope = b.expr(&(x(0) * (x(1) - x(2))), &[weight, d_used, through_row]);
            let scaled = b.expr(&(x(0) * a.scale), &[slope]);
            b.store(dtype, Access::identity(4), scaled);
            for t in &own_dmask {
                b.store(t.dtype, Access::identity(4), slope);
            }
            let reads = [&scores].into_iter().chain(&own_mask).chain([&own_largest, &own_denominators]);
            let reads = reads.chain([&d, &through]).chain(&drawn);
            let writes = [&weights, &slopes].into_iter().chain(&own_dmask);
            s.rows(b.finish(), &reads.collect::<Vec<_>>(), &writes.collect::<Vec<_>>())?;

            let keys = block.repeated(&k, &a)?;
            s.product(&grouped(&slopes, groups[0])?, &keys, &grouped(&block.of(dq)?, groups[0])?)?;
            for (sum, [left, right], group) in
                [(0, [&slopes, &own_q], groups[0]), (1, [&weights, &own_g], groups[1])]
            {
                // The sum runs over all queries of a group of heads.
                let (left, right) = (joined(s, left, group)?, joined(s, right, group)?);
                sums[sum].add(s, &left.transposed(), &right)?;
            }
        }
    }
    Ok(())
}

fn unsupported(why: &str) -> Error {
    fail!(Unsupported, "{why}")
}

/// True if there is nothing to multiply: results are zeros.
fn empty(a: &Attention) -> Result<bool> {
    let nothing = [a.batch, a.heads, a.l, a.s].contains(&0);
    if !nothing && a.ev == 0 {
        return Err(unsupported("attention to values without elements"));
    }
    Ok(nothing)
}

/// The mask in `[batch, heads, queries, keys]`, if there is one.
fn mask(s: &Sequence, a: &Attention, at: usize) -> Result<Option<View>> {
    let Some(mask) = s.optional(at) else { return Ok(None) };
    let sizes = [a.batch, a.heads, a.l, a.s];
    let way = |d: usize| (sizes[d], (mask.shape()[d] != 1).then_some((d, 1)));
    mask.strided(&[0, 1, 2, 3].map(way)).map(Some)
}

/// One number for each query of `[batch, heads, queries]`.
fn by_query() -> Access {
    Access::dims(&[Some(0), Some(1), Some(2), None])
}

/// Reads scores, and a mask if there is one: scaled, masked scores of queries that begin at `first`.
fn masked(b: &mut RowBuilder, a: &Attention, mask: Option<&View>, first: usize) -> Reg {
    let score = b.read(DType::F32, Access::identity(4));
    let mut score = b.expr(&(x(0) * a.scale), &[score]);
    let choice = |seen: Expr| seen.select(x(0), float(f64::NEG_INFINITY));
    if let Some(mask) = mask {
        let read = b.read(mask.dtype, Access::identity(4));
        let with = if mask.dtype == DType::Bool { choice(x(1)) } else { x(0) + x(1) };
        score = b.expr(&with, &[score, read]);
    }
    if a.causal {
        let ahead = b.push(Instr::Iota(vec![0, 0, -1, 1]));
        score = b.expr(&choice(x(1).le(Expr::Int(first as i64))), &[score, ahead]);
    }
    score
}

/// `Σ_e g · y` of each query, in f32, and `g` itself in a layout that [`joined`] takes: copied by the same
/// program where its strides do not allow it.
fn through(s: &mut Sequence, g: &View, y: &View, group: usize) -> Result<(View, View)> {
    let to = s.temporary(DType::F32, &g.shape()[..3])?;
    let copy = match g.reshaped(&joined_shape(g, group)?) {
        Ok(_) => None,
        Err(_) => Some(s.temporary(g.dtype, g.shape())?),
    };
    let mut b = RowBuilder::new(&g.shape()[..3], &g.shape()[3..]);
    let (own_g, own_y) = (b.read(g.dtype, Access::identity(4)), b.read(y.dtype, Access::identity(4)));
    let term = b.expr(&(x(0) * x(1)), &[own_g, own_y]);
    let sum = b.sum(term);
    b.store(DType::F32, by_query(), sum);
    if copy.is_some() {
        b.store(g.dtype, Access::identity(4), own_g);
    }
    let writes: Vec<&View> = [&to].into_iter().chain(&copy).collect();
    s.rows(b.finish(), &[g, y], &writes)?;
    let own = copy.unwrap_or_else(|| g.clone());
    Ok((to, own))
}

/// `[n, heads, …]` as `[n, heads / group, group, …]`.
fn grouped(t: &View, group: usize) -> Result<View> {
    let [n, heads, rows, columns] = t.shape()[..] else { return Err(unsupported("heads of no matrices")) };
    let shape = [n, heads / group, group, rows, columns];
    t.reshaped(&shape)
}

/// `[n, heads, queries, e]` as `[n, heads / group, group · queries, e]`, copied where strides do not allow
/// it.
fn joined(s: &mut Sequence, t: &View, group: usize) -> Result<View> {
    s.shaped(t, &joined_shape(t, group)?)
}

/// The shape that [`joined`] gives.
fn joined_shape(t: &View, group: usize) -> Result<[usize; 4]> {
    let [n, heads, rows, columns] = t.shape()[..] else { return Err(unsupported("heads of no matrices")) };
    Ok([n, heads / group, group * rows, columns])
}

/// Dropout of weights: the key and the stream of their uniform numbers, if there is one.
struct Dropout {
    from: Option<(View, u32)>,
    below: f64,
    scale: f64,
}

impl Dropout {
    fn of(s: &Sequence, a: &Attention, cx: &OpCx, key: usize) -> Result<Dropout> {
        let stream = || philox::number(cx);
        let from = if a.dropout > 0.0 { Some((s.input(key)?, stream()?)) } else { None };
        // Uniform numbers are multiples of 2⁻²⁴: those below 1 - p are below the next multiple, which f32
        // holds.
        let steps = f64::exp2(24.0);
        let below = ((1.0 - a.dropout) * steps).ceil() / steps;
        Ok(Dropout { from, below, scale: a.survivor_scale() })
    }

    /// Bytes for each weight.
    fn bytes(&self) -> usize {
        if self.from.is_some() { 4 } else { 0 }
    }

    /// Uniform numbers of a block's weights: those of their indices in `[batch, heads, queries, keys]`.
    fn drawn(&self, s: &mut Sequence, a: &Attention, block: &Block) -> Result<Option<View>> {
        let Some((key, stream)) = &self.from else { return Ok(None) };
        let Block { samples, heads, queries, .. } = *block;
        // Numbers that follow one another: of all heads of the block, or of some queries of each.
        let whole = queries.1 == a.l;
        let (pieces, len) = match whole {
            true => (1, samples.1 * heads.1 * a.l * a.s),
            false => (heads.1, queries.1 * a.s),
        };
        // Each piece is drawn from a multiple of four numbers on: up to three come before it.
        let pitch = if whole { a.l * a.s } else { len + 4 };
        let numbers = s.temporary(DType::F32, &[4 + if whole { len } else { pieces * pitch }])?;
        for piece in 0..pieces {
            let head = (samples.0 * a.heads + heads.0 + piece) as u64;
            let first = (head * a.l as u64 + queries.0 as u64) * a.s as u64;
            let before = (first % 4) as usize;
            let to = numbers.part(0, 4 + piece * pitch - before, len + before)?;
            s.uniform(key, *stream, first - before as u64, &to)?;
        }
        let dims = [(samples.1, heads.1 * a.l * a.s), (heads.1, pitch), (queries.1, a.s), (a.s, 1)];
        let drawn = numbers.part(0, 4, 1)?.strided(&dims.map(|(size, times)| (size, Some((0, times)))))?;
        Ok(Some(drawn))
    }

    /// Reads uniform numbers: what weights are multiplied by.
    fn kept(&self, b: &mut RowBuilder) -> Option<Reg> {
        self.from.as_ref()?;
        let drawn = b.read(DType::F32, Access::identity(4));
        let kept = x(0).lt(float(self.below)).select(float(self.scale), float(0.0));
        Some(b.expr(&kept, &[drawn]))
    }
}

/// Samples, heads and queries of one block: the first of each, and how many.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Block {
    samples: (usize, usize),
    heads: (usize, usize),
    queries: (usize, usize),
    /// The first so many keys, which these queries may see.
    keys: usize,
}

impl Block {
    /// All blocks in order, for scores of so many bytes. Heads of a block are whole groups of keys and of
    /// values. Of a causal mask, `bands` of queries have the keys up to their last one; the last has all.
    fn all(a: &Attention, budget: usize, bytes: usize, bands: bool) -> Vec<Block> {
        let scores = budget / bytes;
        let fit = |each: usize, all: usize| (scores / each.max(1)).clamp(1, all);
        let group = (a.heads / a.key_heads).max(a.heads / a.value_heads);
        let smaller = (a.heads / a.key_heads).min(a.heads / a.value_heads);
        // The least number of heads that both divide.
        let unit = (1..=a.heads / group).map(|n| n * group).find(|n| n % smaller == 0).unwrap_or(a.heads);
        let queries = fit(unit.saturating_mul(a.s), a.l);
        let queries = if queries == a.l || queries < QUERIES { queries } else { queries / QUERIES * QUERIES };
        let whole = queries == a.l;
        let band = a.l.div_ceil(BANDS).next_multiple_of(QUERIES.min(BAND)).max(BAND);
        let queries = if bands { queries.min(band) } else { queries };
        let per_head = queries.saturating_mul(a.s);
        let heads = match whole {
            true => fit(unit.saturating_mul(per_head), a.heads / unit) * unit,
            false => unit,
        };
        let samples = if heads == a.heads { fit(heads.saturating_mul(per_head), a.batch) } else { 1 };
        let cut =
            |all: usize, each: usize| (0..all).step_by(each).map(move |first| (first, each.min(all - first)));
        cut(a.batch, samples)
            .flat_map(|samples| cut(a.heads, heads).map(move |heads| (samples, heads)))
            .flat_map(|(samples, heads)| {
                cut(a.l, queries).map(move |queries| {
                    let end = queries.0 + queries.1;
                    let keys = if bands && end < a.l { end.min(a.s) } else { a.s };
                    Block { samples, heads, queries, keys }
                })
            })
            .collect()
    }

    /// The block's part of `[batch, heads, queries, …]`.
    fn of(&self, t: &View) -> Result<View> {
        let parts = [self.samples, self.heads, self.queries];
        parts.iter().enumerate().try_fold(t.clone(), |t, (d, &(first, len))| t.part(d, first, len))
    }

    /// The block's part of `[batch, heads / group, …]`.
    fn of_group(&self, t: &View, group: usize) -> Result<View> {
        let samples = t.part(0, self.samples.0, self.samples.1)?;
        samples.part(1, self.heads.0 / group, self.heads.1 / group)
    }

    /// Keys or values of the block's heads as `[samples, heads / group, group, keys, e]`.
    fn repeated(&self, t: &View, a: &Attention) -> Result<View> {
        let group = a.heads / t.shape()[1];
        let own = self.of_group(t, group)?.part(2, 0, self.keys)?;
        let [n, heads, rows, columns] = own.shape()[..] else { return Err(unsupported("no heads")) };
        own.strided(&[
            (n, Some((0, 1))),
            (heads, Some((1, 1))),
            (group, None),
            (rows, Some((2, 1))),
            (columns, Some((3, 1))),
        ])
    }

    /// f32 scores of the block's queries, without scale and mask.
    fn scores(&self, s: &mut Sequence, a: &Attention, q: &View, k: &View) -> Result<View> {
        let group = a.heads / a.key_heads;
        let scores = s.temporary(DType::F32, &[self.samples.1, self.heads.1, self.queries.1, self.keys])?;
        let keys = self.repeated(k, a)?.transposed();
        s.product(&grouped(&self.of(q)?, group)?, &keys, &grouped(&scores, group)?)?;
        Ok(scores)
    }
}

/// f32 sums of products that are computed sequentially.
struct Sum<'a> {
    to: &'a View,
    parts: usize,
    /// Parts so far, and their sum where there are several.
    done: usize,
    sum: Option<View>,
}

impl<'a> Sum<'a> {
    /// A sum of so many parts, rounded once into `to`.
    fn new(s: &mut Sequence, to: &'a View, parts: usize) -> Result<Sum<'a>> {
        let sum = if parts > 1 { Some(s.temporary(DType::F32, to.shape())?) } else { None };
        Ok(Sum { to, parts, done: 0, sum })
    }

    /// Adds the product of two batches of matrices, to the first rows where it has fewer than the first
    /// product.
    fn add(&mut self, s: &mut Sequence, a: &View, b: &View) -> Result<()> {
        self.done += 1;
        let Some(sum) = &self.sum else { return s.product(a, b, self.to) };
        if self.done == 1 {
            return s.product(a, b, sum);
        }
        let dim = self.to.shape().rank() - 2;
        let mut shape = self.to.shape().to_vec();
        let all = std::mem::replace(&mut shape[dim], a.shape()[a.shape().rank() - 2]);
        let rows = shape[dim];
        let part = s.temporary(DType::F32, &shape)?;
        s.product(a, b, &part)?;
        let last = self.done == self.parts;
        let (own, to) = (sum.part(dim, 0, rows)?, if last { self.to } else { sum }.part(dim, 0, rows)?);
        let inputs = [(DType::F32, &shape[..]), (DType::F32, &shape[..])];
        let added = RowProgram::pointwise(&inputs, &shape, &[to.dtype], &[x(0) + x(1)]);
        s.rows(added, &[&own, &part], &[&to])?;
        if last && rows < all {
            s.copy(&sum.part(dim, rows, all - rows)?, &self.to.part(dim, rows, all - rows)?)?;
        }
        Ok(())
    }
}
