//! Products of f32 on a cube that multiplies f16 alone (310P).
//!
//! Each row of the left and each column of the right operand is scaled by a power of two, so that its largest
//! magnitude is in [2¹⁴, 2¹⁵), and split: x = h + 2⁻¹¹ l + e with h and l in f16 and |e| ≤ max(2⁻²³ |x|, 2⁻⁵⁰
//! of the largest). The product's `h h` and its two mixed terms are summed in f32, each by the cube, and
//! added; `l l`, at most 2⁻²² of the term, is left out. So a term is off by at most 2⁻²¹ in addition to the
//! roundings of the sums. The splitting is Dekker's ("A floating-point technique for extending the available
//! precision", Numerische Mathematik 18, 1971), with f16 parts as Markidis et al. have them ("NVIDIA tensor
//! core programmability, performance & precision", IPDPSW 2018).
//!
//! f16 saturates on this chip, so that parts are finite. A row or column with an infinity or a NaN has NaN
//! for its scale, and so are all sums of its terms.

use super::launch::Refusal;
use super::sequence::{Sequence, Tensor};
use headwater_core::DType::{F16, F32};
use headwater_core::expr::{Expr, float, input as x};
use headwater_core::row::{Access, Reduce, RowBuilder};
use headwater_core::target::ProductModel;

/// Roundings of the products: of an element's two parts, and of a product without its last term.
pub const MODEL: ProductModel = ProductModel {
    operands: F32,
    operand: 1.0 / (1u64 << 23) as f64,
    product: 1.0 / (1u64 << 22) as f64,
    accumulator: 1.0 / (1u64 << 24) as f64,
};

/// Elements of f16 in 32 bytes: parts of rows begin at multiples of it, and results of products have as many
/// columns.
const BLOCK: usize = 16;

/// Longest rows whose elements are picked out of columns; longer ones are first copied to be contiguous.
const PICKED: usize = 256;

/// Rows of an operand that were split.
struct Parts {
    /// `[batch…, rows or more, 3 · pitch]`: h, then the two factors of the mixed terms.
    packed: Tensor,
    /// Inverse of the scale: `[batch…, rows]`; NaN for rows that are not finite.
    scale: Tensor,
    /// Elements from one part to the next, at least `len`.
    pitch: usize,
    len: usize,
}

impl Parts {
    fn of(&self, first: usize, parts: usize) -> Result<Tensor, Refusal> {
        let last = self.packed.shape().rank() - 1;
        self.packed.part(last, first * self.pitch, (parts - 1) * self.pitch + self.len)
    }
}

impl Sequence<'_> {
    /// `c = a · b + bias`, as [`Sequence::product`], of f32 by products of f16.
    ///
    /// # Errors
    /// Shapes that the kernels do not take.
    pub(super) fn split_product(
        &mut self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        c: &Tensor,
    ) -> Result<(), Refusal> {
        let mark = self.mark();
        let rank = c.shape().rank();
        let (batch, columns) = (&c.shape()[..rank - 2], c.shape()[rank - 1]);
        let left = self.split(a, [1, 2], 1)?;
        let right = self.split(&b.transposed(), [2, 1], BLOCK)?;
        // Rows of less than a block would be written element by element, by one core.
        let shape = [batch, &[c.shape()[rank - 2], columns.max(BLOCK)]].concat();
        let mut sums = Vec::new();
        for (first, parts) in [(0, 1), (1, 2)] {
            let to = self.scratch(F32, &shape)?;
            let (a, b) = (left.of(first, parts)?, right.of(first, parts)?.transposed());
            self.product(&a, &b, None, &to)?;
            sums.push(to.part(rank - 1, 0, columns)?);
        }
        let mut program = RowBuilder::new(&c.shape()[..rank - 1], &[columns]);
        let [large, small] = [(); 2].map(|()| program.read(F32, Access::identity(rank)));
        let along = |last: usize| {
            Access::dims(
                &(0..rank)
                    .map(|d| (d < rank - 2 || d == last).then_some(d.min(rank - 2)))
                    .collect::<Vec<_>>(),
            )
        };
        let [of_row, of_column] = [rank - 2, rank - 1].map(|last| program.read(F32, along(last)));
        // Factors of which neither product leaves the range that the result keeps.
        let one = || float(1.0);
        let first = program.expr(&(x(0).min(one()) * x(1).max(one())), &[of_row, of_column]);
        let second = program.expr(&(x(0).max(one()) * x(1).min(one())), &[of_row, of_column]);
        // Minima and maxima of NaN are not stated for the chip: it comes by a term of its own.
        let sum = (x(0) + x(1) * f64::exp2(-11.0)) * x(2) * x(3) + (x(4) + x(5)) * 0.0;
        let mut sum = program.expr(&sum, &[large, small, first, second, of_row, of_column]);
        let scales = [batched(&left.scale, batch)?, batched(&right.scale, batch)?];
        let mut reads = vec![&sums[0], &sums[1], &scales[0], &scales[1]];
        if let Some(bias) = bias {
            let mut access = vec![None; rank];
            access[rank - 1] = Some(0);
            let added = program.read(F32, Access::dims(&access));
            sum = program.expr(&(x(0) + x(1)), &[sum, added]);
            reads.push(bias);
        }
        program.store(c.dtype(), Access::identity(rank), sum);
        self.rows(&program.finish(), &reads, &[c])?;
        self.release(mark);
        Ok(())
    }

    /// Splits the rows of `[batch…, rows, columns]`. `places`: parts at which h and l are factors of the
    /// mixed terms. Matrices that repeat are split once. They have `least` rows at least, of zeros where they
    /// have fewer.
    fn split(&mut self, t: &Tensor, places: [usize; 2], least: usize) -> Result<Parts, Refusal> {
        let layout = &t.view.layout;
        let rank = layout.shape.rank();
        let once = |d: usize| if d < rank - 2 && layout.strides[d] == 0 { 1 } else { layout.shape[d] };
        let dims: Vec<_> = (0..rank).map(|d| (once(d), Some((d, 1)))).collect();
        let (lead, len) = (dims[..rank - 1].iter().map(|d| d.0).collect::<Vec<_>>(), layout.shape[rank - 1]);
        let pitch = len.checked_next_multiple_of(BLOCK).filter(|p| p.checked_mul(3).is_some());
        let pitch = pitch.ok_or_else(|| Refusal::new("rows beyond memory"))?;
        let rows = lead[rank - 2];
        let packed = self.scratch(F16, &[&lead[..rank - 2], &[rows.max(least), 3 * pitch]].concat())?;
        let scale = self.scratch(F32, &lead)?;
        let mark = self.mark();
        let mut from = t.walked(&dims)?;
        if layout.strides[rank - 1] != 1 && len > PICKED {
            from = self.copied(&from)?;
        }
        if pitch != len || rows < least {
            self.fill(&packed, 0.0)?;
        }
        // Rows of less than a block are split with zeros appended: their parts are whole blocks.
        let width = if len < BLOCK { pitch } else { len };
        if width != len {
            let padded = self.scratch(F32, &[&lead[..], &[width]].concat())?;
            self.fill(&padded, 0.0)?;
            self.copy(&from, &padded.part(rank - 1, 0, len)?)?;
            from = padded;
        }
        let mut b = RowBuilder::new(&lead, &[width]);
        let all = Access::identity(rank);
        let read = b.read(F32, all.clone());
        // 0, or NaN.
        let nothing = b.expr(&(x(0) * 0.0), &[read]);
        let nothing = b.sum(nothing);
        let finite = x(0).abs().lt(float(f64::INFINITY)).select(x(0), float(0.0));
        let finite = b.expr(&finite, &[read]);
        let size = b.expr(&x(0).abs(), &[finite]);
        let largest = b.reduce(Reduce::Max, size);
        // The power of two at or below it; 2⁻¹¹² at least, so that the scale is a normal number.
        let exponent = Expr::Int(0x7f80_0000);
        let power = x(0)
            .bits()
            .and(exponent)
            .cast(headwater_core::DType::I32)
            .from_bits()
            .max(float(f64::exp2(-112.0)));
        let power = b.expr(&power, &[largest]);
        let inverse = b.expr(&(x(0) * f64::exp2(-14.0) + x(1)), &[power, nothing]);
        let factor = b.expr(&(float(f64::exp2(14.0)) / x(0)), &[power]);
        let scaled = b.expr(&(x(0) * x(1)), &[finite, factor]);
        let least = f64::exp2(-24.0);
        let smallest = (x(1) * f64::exp2(127.0)).min(float(least)).max(float(-least));
        let rounded = x(0).cast(F16);
        let high = b.expr(&rounded.clone().eq(float(0.0)).select(smallest, rounded), &[scaled, finite]);
        let low = b.expr(&((x(0) - x(1)) * 2048.0), &[scaled, high]);
        let mut writes = Vec::new();
        for (part, value) in [(0, high), (places[0], high), (places[1], low)] {
            b.store(F16, all.clone(), value);
            writes.push(packed.part(rank - 2, 0, rows)?.part(rank - 1, part * pitch, width)?);
        }
        let by_row = (0..rank).map(|d| (d < rank - 1).then_some(d)).collect::<Vec<_>>();
        b.store(F32, Access::dims(&by_row), inverse);
        let writes: Vec<&Tensor> = writes.iter().chain([&scale]).collect();
        self.rows(&b.finish(), &[&from], &writes)?;
        self.release(mark);
        Ok(Parts { packed, scale, pitch, len })
    }
}

/// `[own batch…, rows]` over a batch: dimensions that it lacks or has of size 1 repeat it.
fn batched(t: &Tensor, batch: &[usize]) -> Result<Tensor, Refusal> {
    let own = t.shape().rank() - 1;
    let missing = batch.len() - own;
    let way = |(d, &size): (usize, &usize)| {
        let dim = d.checked_sub(missing).filter(|&dim| t.shape()[dim] == size && size > 1);
        (size, dim.map(|dim| (dim, 1)))
    };
    let rows = (t.shape()[own], Some((own, 1)));
    t.walked(&batch.iter().enumerate().map(way).chain([rows]).collect::<Vec<_>>())
}
