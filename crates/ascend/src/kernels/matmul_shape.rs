//! Shapes of products, and which of them there are.

use super::refusal;
use crate::chip::Arch;
use crate::kernel::Elem;
use crate::kernel::finding::{Result, Rule};

/// Rows of a fractal; of 16-bit elements also columns.
pub const SIDE: u64 = 16;
/// Largest size that a dimension, a row's stride or an operand may have.
const LIMIT: u64 = i32::MAX as u64;

/// Place of a matrix in memory, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Matrix {
    /// True where it is stored transposed (column-major).
    pub transposed: bool,
    /// From one row (of the transpose, where it is stored) to the next: at least a row's elements.
    pub row: u64,
    /// From one matrix of the batch to the next, in both dimensions of the batch; 0 reads the same one again.
    pub batch: [u64; 2],
}

/// Shapes of [`super::matmul()`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Matmul {
    /// Type of a, b and the bias: f16, on A2 also bf16 and f32. Products are exact, sums f32.
    pub elem: Elem,
    /// Type of c: f32, or `elem`, rounded once to nearest even.
    pub out: Elem,
    /// Rows of c.
    pub m: u64,
    /// Columns of c.
    pub n: u64,
    /// Length of the sums.
    pub k: u64,
    /// Sizes of the batch's dimensions; 1 where there are none.
    pub batch: [u64; 2],
    /// Left operand, m × k.
    pub a: Matrix,
    /// Right operand, k × n.
    pub b: Matrix,
    /// Result, m × n.
    pub c: Matrix,
    /// True where a bias of n elements is added to each row.
    pub bias: bool,
}

/// The dimension that is in groups; the batch's first dimension counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grouped {
    /// Rows of a and c: `c[i] = a[i] · b[g]` for each row i of group g.
    Rows,
    /// Terms of the sums: `c[g] = Σ a[:, p] · b[p, :]` over the terms p of group g.
    Sums,
}

/// As [`check`], of products in groups.
///
/// # Errors
/// As of `grouped_matmul`.
pub fn check_groups(arch: Arch, shape: &Matmul, grouped: Grouped, name: &str, tile: u64) -> Result<[u64; 3]> {
    let Matmul { batch: [groups, others], a, b, c, .. } = *shape;
    let fail = |rule, message: &str| Err(refusal(name, "_grouped_mm", rule, message.into()));
    if shape.bias || c.transposed || others != 1 {
        return fail(Rule::Unsupported, "groups have a bias, a transposed result or two dimensions");
    }
    let still = match grouped {
        Grouped::Rows => [a.batch, c.batch, [0, b.batch[1]]],
        Grouped::Sums => [a.batch, b.batch, [0, c.batch[1]]],
    };
    if still != [[0; 2]; 3] {
        return fail(Rule::Range, "what all groups share moves from one to the next");
    }
    match grouped {
        Grouped::Sums => check(arch, shape, name, tile),
        Grouped::Rows => {
            let mut lens = check(arch, &Matmul { batch: [1, 1], ..*shape }, name, tile)?;
            let more = groups.checked_sub(1).and_then(|g| g.checked_mul(b.batch[0]));
            match more.and_then(|more| more.checked_add(lens[1])) {
                Some(len) if groups <= LIMIT && len <= i64::MAX as u64 / 16 => lens[1] = len,
                _ => return fail(Rule::Range, "b does not fit in memory"),
            }
            Ok(lens)
        }
    }
}

/// Elements that each of a, b and c reaches, of a product whose tiles have `tile` rows.
///
/// # Errors
/// As of `matmul`.
pub fn check(arch: Arch, shape: &Matmul, name: &str, tile: u64) -> Result<[u64; 3]> {
    let Matmul { elem, out, m, n, k, batch, a, b, c, bias } = *shape;
    let fail = |rule, message| Err(refusal(name, "mm", rule, message));
    let types = elem == Elem::F16 || (matches!(elem, Elem::BF16 | Elem::F32) && arch == Arch::A2);
    if !types || !(out == Elem::F32 || out == elem) {
        return fail(
            Rule::Unsupported,
            format!("{elem} to {out} is no product that the kernel has on {arch}"),
        );
    }
    // Fractals of 32 bits keep their rows: these have to run along k.
    let along = [a.transposed, !b.transposed];
    if elem == Elem::F32 && along != [false; 2] {
        return fail(Rule::Unsupported, "rows of an f32 operand do not run along k".into());
    }
    if bias && c.transposed {
        return fail(Rule::Unsupported, "the result is transposed and has a bias".into());
    }
    for (what, size) in
        [("rows", m), ("columns", n), ("terms of a sum", k), ("batch", batch[0]), ("batch", batch[1])]
    {
        if !(1..=LIMIT).contains(&size) {
            return fail(Rule::Range, format!("{what}: {size}, outside 1 to {LIMIT}"));
        }
    }
    let mut lens = [0; 3];
    for ((name, x, rows, columns), len) in
        [("a", a, m, k), ("b", b, k, n), ("c", c, m, n)].into_iter().zip(&mut lens)
    {
        let (rows, columns) = if x.transposed { (columns, rows) } else { (rows, columns) };
        if x.row < columns || x.row > LIMIT {
            return fail(Rule::Range, format!("rows of {name} are {} apart, {columns} elements each", x.row));
        }
        let matrix = (rows - 1).checked_mul(x.row).and_then(|x| x.checked_add(columns));
        let outer = (batch[0] - 1).checked_mul(x.batch[0]);
        let inner = (batch[1] - 1).checked_mul(x.batch[1]);
        let total = matrix.zip(outer).zip(inner).and_then(|((m, o), i)| m.checked_add(o)?.checked_add(i));
        *len = match total {
            Some(len) if len <= i64::MAX as u64 / 16 => len,
            _ => return fail(Rule::Range, format!("{name} does not fit in memory")),
        };
        let dims = [(batch[0], x.batch[0]), (batch[1], x.batch[1]), (rows, x.row), (columns, 1)];
        if name == "c" && !distinct(dims) {
            return fail(
                Rule::Range,
                format!("results overlap: rows {} apart, matrices {:?}", x.row, x.batch),
            );
        }
    }
    if batch[0]
        .checked_mul(batch[1])
        .and_then(|x| x.checked_mul(m.div_ceil(tile))?.checked_mul(n.div_ceil(SIDE)))
        .is_none_or(|x| x > i64::MAX as u64 / 4)
    {
        return fail(Rule::Range, "there are too many tiles".into());
    }
    Ok(lens)
}

/// True where elements of dimensions (size, stride) have places of their own: each stride beyond all smaller
/// ones' reach.
fn distinct(mut dims: [(u64, u64); 4]) -> bool {
    dims.sort_by_key(|&(_, stride)| stride);
    let mut reach = 0u64;
    dims.into_iter().filter(|&(size, _)| size > 1).all(|(size, stride)| {
        let free = stride > reach;
        reach = reach.saturating_add((size - 1).saturating_mul(stride));
        free
    })
}
