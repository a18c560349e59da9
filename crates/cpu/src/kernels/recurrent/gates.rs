//! The functions of cells, on blocks of scratch memory: samples by a strip of columns, a whole number of
//! groups of lanes. Columns after the state's last are undefined; they are computed too and go nowhere.

// Loops go by index over arrays: what the compiler is sure to unroll, and so to keep in registers.
#![allow(clippy::needless_range_loop)]

use crate::element::Wide;
use crate::kernels::vector::{LANES, Rows, Vector};

/// A group of lanes of some blocks.
type Groups<W> = [[W; LANES]];

#[inline(always)]
fn groups<W>(x: &[W]) -> &Groups<W> {
    x.as_chunks().0
}

#[inline(always)]
fn groups_mut<W>(x: &mut [W]) -> &mut Groups<W> {
    x.as_chunks_mut().0
}

/// Calls `f(group of a row among the strip's, group of a block)` for each group of the first `rows` rows.
#[inline(always)]
fn each_group<const N: usize, W>(
    rows: usize,
    strip: usize,
    blocks: &mut [&mut [W]; N],
    mut f: impl FnMut(usize, usize, &mut [&mut Groups<W>; N]),
) {
    let width = strip / LANES;
    let mut blocks = blocks.each_mut().map(|b| groups_mut(b));
    for row in 0..rows {
        for group in 0..width {
            f(group, row * width + group, &mut blocks);
        }
    }
}

/// `1 − x`.
#[inline(always)]
fn rest<V: Vector>(x: V) -> V {
    V::splat(V::E::ONE).sub(x)
}

/// `x · (1 − x)`: the slope of the logistic function where its value is `x`.
#[inline(always)]
fn slope<V: Vector>(x: V) -> V {
    x.mul(rest(x))
}

/// A step of long short-term memory. Blocks: sums of `i`, `f`, `g`, `o`, which become the gates; the cell
/// state; the hidden state, which is written.
pub(super) struct Lstm<'a, 'b, W> {
    pub rows: usize,
    pub blocks: &'a mut [&'b mut [W]; 6],
    pub bias: [&'a [W]; 4],
}

impl<W: Wide> Rows<W> for Lstm<'_, '_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let bias = self.bias.map(groups);
        let strip = self.bias[0].len();
        each_group(self.rows, strip, self.blocks, |column, at, [i, f, g, o, cell, hidden]| {
            for p in 0..V::PARTS {
                let sum =
                    |gate: usize, x: &Groups<W>| V::load(&x[at], p).add(V::load(&bias[gate][column], p));
                let (vi, vf) = (sum(0, i).sigmoid(), sum(1, f).sigmoid());
                let (vg, vo) = (sum(2, g).tanh(), sum(3, o).sigmoid());
                let c = vf.mul(V::load(&cell[at], p)).add(vi.mul(vg));
                vi.store(&mut i[at], p);
                vf.store(&mut f[at], p);
                vg.store(&mut g[at], p);
                vo.store(&mut o[at], p);
                c.store(&mut cell[at], p);
                vo.mul(c.tanh()).store(&mut hidden[at], p);
            }
        });
    }
}

/// Its gradient. Blocks: `i`, `f`, `g`, `o`, which become the gradients of their sums. Then the gradients of
/// the hidden state and of the cell state, which becomes that of the state before. Last, the cell states
/// after and before the step.
pub(super) struct LstmBackward<'a, 'b, W> {
    pub rows: usize,
    pub strip: usize,
    pub blocks: &'a mut [&'b mut [W]; 8],
}

impl<W: Wide> Rows<W> for LstmBackward<'_, '_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        each_group(self.rows, self.strip, self.blocks, |_, at, [i, f, g, o, hidden, cell, after, before]| {
            for p in 0..V::PARTS {
                let load = |x: &Groups<W>| V::load(&x[at], p);
                let [vi, vf, vg, vo] = [load(i), load(f), load(g), load(o)];
                let (grad, tanh) = (load(hidden), load(after).tanh());
                let through = load(cell).add(grad.mul(vo).mul(rest(tanh.mul(tanh))));
                through.mul(vg).mul(slope(vi)).store(&mut i[at], p);
                through.mul(load(before)).mul(slope(vf)).store(&mut f[at], p);
                through.mul(vi).mul(rest(vg.mul(vg))).store(&mut g[at], p);
                grad.mul(tanh).mul(slope(vo)).store(&mut o[at], p);
                through.mul(vf).store(&mut cell[at], p);
            }
        });
    }
}

/// A step of gated recurrent units. Blocks: sums of `r` and `z`, which become these gates; then what the
/// inputs add to `n`, which becomes `n`. Last, what the state adds to it, and the state.
pub(super) struct Gru<'a, 'b, W> {
    pub rows: usize,
    pub blocks: &'a mut [&'b mut [W]; 6],
    pub bias: [&'a [W]; 4],
}

impl<W: Wide> Rows<W> for Gru<'_, '_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let bias = self.bias.map(groups);
        let strip = self.bias[0].len();
        each_group(self.rows, strip, self.blocks, |column, at, [r, z, n, m, state, _]| {
            for p in 0..V::PARTS {
                let sum =
                    |gate: usize, x: &Groups<W>| V::load(&x[at], p).add(V::load(&bias[gate][column], p));
                let (vr, vz, vm) = (sum(0, r).sigmoid(), sum(1, z).sigmoid(), sum(2, m));
                let vn = V::load(&n[at], p).add(vr.mul(vm)).tanh();
                let before = V::load(&state[at], p);
                vr.store(&mut r[at], p);
                vz.store(&mut z[at], p);
                vn.store(&mut n[at], p);
                vm.store(&mut m[at], p);
                rest(vz).mul(vn).add(vz.mul(before)).store(&mut state[at], p);
            }
        });
    }
}

/// Its gradient. Blocks: `r` and `z`, which become the gradients of their sums. Then `n` and `m`, which
/// become those of what inputs and state add to `n`. Last, the gradient of the state, which becomes the part
/// of that before which goes past the gates; and the state before.
pub(super) struct GruBackward<'a, 'b, W> {
    pub rows: usize,
    pub strip: usize,
    pub blocks: &'a mut [&'b mut [W]; 8],
}

impl<W: Wide> Rows<W> for GruBackward<'_, '_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        each_group(self.rows, self.strip, self.blocks, |_, at, [r, z, n, m, state, before, _, _]| {
            for p in 0..V::PARTS {
                let load = |x: &Groups<W>| V::load(&x[at], p);
                let [vr, vz, vn, vm] = [load(r), load(z), load(n), load(m)];
                let grad = load(state);
                let dn = grad.mul(rest(vz)).mul(rest(vn.mul(vn)));
                dn.mul(vm).mul(slope(vr)).store(&mut r[at], p);
                grad.mul(load(before).sub(vn)).mul(slope(vz)).store(&mut z[at], p);
                dn.store(&mut n[at], p);
                dn.mul(vr).store(&mut m[at], p);
                grad.mul(vz).store(&mut state[at], p);
            }
        });
    }
}

/// A step of simple units: sums become the state.
pub(super) struct Tanh<'a, W> {
    pub rows: usize,
    pub sums: &'a mut [W],
    pub bias: &'a [W],
}

impl<W: Wide> Rows<W> for Tanh<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let bias = groups(self.bias);
        each_group(self.rows, self.bias.len(), &mut [self.sums], |column, at, [x]| {
            for p in 0..V::PARTS {
                V::load(&x[at], p).add(V::load(&bias[column], p)).tanh().store(&mut x[at], p);
            }
        });
    }
}

/// A step of rectified units: sums become the state.
pub(super) struct Rectified<'a, W> {
    pub rows: usize,
    pub sums: &'a mut [W],
    pub bias: &'a [W],
}

impl<W: Wide> Rows<W> for Rectified<'_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let (bias, zero) = (groups(self.bias), V::splat(W::ZERO));
        each_group(self.rows, self.bias.len(), &mut [self.sums], |column, at, [x]| {
            for p in 0..V::PARTS {
                let sum = V::load(&x[at], p).add(V::load(&bias[column], p));
                // Not the larger of both: NaN stays.
                sum.less(zero, zero, sum).store(&mut x[at], p);
            }
        });
    }
}

/// Gradient of simple units: the states become the gradients of the sums, given those of the states.
pub(super) struct SimpleBackward<'a, 'b, W> {
    pub rows: usize,
    pub strip: usize,
    pub relu: bool,
    pub blocks: &'a mut [&'b mut [W]; 2],
}

impl<W: Wide> Rows<W> for SimpleBackward<'_, '_, W> {
    type Out = ();

    #[inline(always)]
    fn run<V: Vector<E = W>>(self) {
        let (relu, zero) = (self.relu, V::splat(W::ZERO));
        each_group(self.rows, self.strip, self.blocks, |_, at, [y, grad]| {
            for p in 0..V::PARTS {
                let (vy, grad) = (V::load(&y[at], p), V::load(&grad[at], p));
                let slope = if relu { zero.less(vy, grad, zero) } else { grad.mul(rest(vy.mul(vy))) };
                slope.store(&mut y[at], p);
            }
        });
    }
}
