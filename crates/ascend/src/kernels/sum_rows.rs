//! Sums over the rows of partial results, as kernels that divide their rows hand them on. They are added in a
//! fixed tree, so the bits are the same for any number of blocks.

use super::copies::write;
use super::refusal;
use crate::chip::Arch;
use crate::kernel::finding::{Result, Rule};
use crate::kernel::{Barrier, Binary, Buf, Builder, Elem, Gm, Over, Pipe, Program, Round, Scalar, Unit};

/// Most rows: the most of [`WIDEST`] columns that fit in UB.
const ROWS: u64 = 256;
/// Most columns of a task.
const WIDEST: u64 = 128;
/// Fewest columns of a task: a block of any type.
const LEAST: u64 = 16;
/// Cores of the largest chip.
const CORES: u64 = 48;

/// Shapes of [`sum_rows`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SumRows<'a> {
    /// Number of rows, at most 256.
    pub rows: u64,
    /// From one row to the next in elements, a multiple of 8.
    pub pitch: u64,
    /// Elements of a row, d.
    pub dim: u64,
    /// Types of the results: f32, f16, on A2 also bf16. Summed in f32, rounded once to nearest even.
    pub outs: &'a [Elem],
}

impl SumRows<'_> {
    /// Columns of a task: a task for each core, of whole blocks of any type.
    fn wide(&self) -> u64 {
        self.dim.div_ceil(CORES).next_multiple_of(16).clamp(32, WIDEST)
    }

    /// Number of tasks: more blocks have nothing to do.
    pub fn tasks(&self) -> u64 {
        self.outs.len() as u64 * self.dim.div_ceil(self.wide())
    }

    /// Rows of a buffer that a task's columns are added in. The second one is also the place of rounded sums.
    const fn places(&self) -> u64 {
        let places = self.rows.next_power_of_two();
        if places < 2 { 2 } else { places }
    }

    /// Columns of a task of [`sum_rows_after`] whose sums are added in `near`; 0 if it is too small.
    fn wide_in(&self, near: Buf) -> u64 {
        self.wide().min(near.len / self.places() / LEAST * LEAST)
    }

    /// True if [`sum_rows_after`] adds in `near`.
    pub fn fits_after(&self, arch: Arch, near: Buf) -> bool {
        arch == Arch::A2 && self.is_sound() && self.wide_in(near) > 0
    }

    /// True if the kernels take the shape.
    fn is_sound(&self) -> bool {
        1 <= self.rows
            && self.rows <= ROWS
            && self.dim > 0
            && self.pitch >= self.dim
            && self.pitch.is_multiple_of(8)
    }
}

/// `sums[j] = Σ partials[i, j]` for each result: row i and i + n / 2, then i + n / 4, down to one, where n is
/// the number of rows rounded up to a power of two and missing rows are zeros.
///
/// Parameters: `partials` \[rows, pitch\] f32 for each result, then `sums` \[d\] for each.
///
/// # Errors
/// `Range` for other numbers of rows, empty rows and a pitch that is too small or no multiple of 8.
/// `Alignment` on 310P, which has no copy of part of 32 bytes, where a result is no multiple of them.
pub fn sum_rows(arch: Arch, name: &str, shape: &SumRows) -> Result<Program> {
    let SumRows { rows, pitch, dim, outs } = *shape;
    let fail = |rule, message| Err(refusal(name, "sum", rule, message));
    if !shape.is_sound() {
        return fail(Rule::Range, format!("{rows} rows of {dim} elements, {pitch} apart"));
    }
    if arch == Arch::P310 && outs.iter().any(|elem| dim % elem.per_block() != 0) {
        return fail(Rule::Alignment, format!("a result has {dim} elements, no multiple of 32 bytes"));
    }
    let unit = if arch.split() { Unit::Vector } else { Unit::Whole };
    let mut k = Builder::new(name, arch, unit);
    k.doc(format!("sums over {rows} rows of {dim}, in f32"));
    let partials: Vec<_> = outs.iter().map(|_| k.input("partials", Elem::F32, rows * pitch)).collect();
    let sums: Vec<_> = outs.iter().map(|&elem| k.output("sums", elem, dim)).collect();
    let wide = shape.wide();
    let near = k.ub("near", Elem::F32, (shape.places() * wide).next_multiple_of(64));
    add(&mut k, shape, [&partials, &sums], near, wide);
    k.finish()
}

/// As [`sum_rows`], as the last statements of a kernel whose blocks have written the partial sums: they meet
/// first. `near` is a buffer in UB that nothing needs any more, for which [`SumRows::fits_after`].
pub fn sum_rows_after(k: &mut Builder, shape: &SumRows, operands: [&[Gm]; 2], near: Buf) {
    k.barrier(Barrier::Cores);
    add(k, shape, operands, near, shape.wide_in(near));
}

/// The statements: `wide` columns a task.
fn add(k: &mut Builder, shape: &SumRows, [partials, sums]: [&[Gm]; 2], near: Buf, wide: u64) {
    let SumRows { rows, pitch, dim, outs } = *shape;
    let (arch, places) = (k.arch(), rows.next_power_of_two());
    let across = dim.div_ceil(wide);
    let tasks = outs.len() as u64 * across;
    k.set_flag(Pipe::Mte3, Pipe::V, 0);
    k.for_each("task", Scalar::BLOCK, tasks, Scalar::BLOCKS, |k, task| {
        let column = k.let_("column", task.clone() % across * wide);
        let there = k.let_("there", Scalar::from(wide).min(Scalar::from(pitch) - column.clone()));
        let columns = k.let_("columns", there.clone().min(Scalar::from(dim) - column.clone()));
        k.wait_flag(Pipe::Mte3, Pipe::V, 0);
        if rows < places {
            k.duplicate(near.at(rows * wide), 0.0, Over::count((places - rows) * wide));
        }
        // Results of the task before have left when copies of this one begin.
        k.flag(Pipe::V, Pipe::Mte2, 0);
        let each = |k: &mut Builder, write: &dyn Fn(&mut Builder, usize)| match outs.len() {
            1 => write(k, 0),
            number => {
                for i in 0..number {
                    k.if_((task.clone() / across).eq(i), |k| write(k, i));
                }
            }
        };
        each(k, &|k, i| {
            let (from, gap) = (partials[i].at(&column), (Scalar::from(pitch) - there.clone()) / 8);
            k.copy_runs(
                near.at(0),
                from,
                rows,
                there.clone() / 8,
                gap,
                (Scalar::from(wide) - there.clone()) / 8,
            );
        });
        k.flag(Pipe::Mte2, Pipe::V, 0);
        let mut half = places / 2;
        while half > 0 {
            k.barrier(Barrier::V);
            let over = Over::count(half * wide);
            k.binary(Binary::Add, near.at(0), near.at(0), near.at(half * wide), over);
            half /= 2;
        }
        each(k, &|k, i| {
            let elem = outs[i];
            let result = match elem {
                Elem::F32 => near.at(0),
                _ => {
                    // 310P rounds so where no rounding is named.
                    let round = if arch == Arch::A2 { Round::Rint } else { Round::None };
                    let to = near.cast(elem).at(wide * 4 / elem.size());
                    k.barrier(Barrier::V);
                    k.cast(to.clone().strided(1, 4), near.at(0), round, Over::count(wide));
                    to
                }
            };
            k.flag(Pipe::V, Pipe::Mte3, 0);
            write(k, sums[i].at(&column), result, &columns);
        });
        k.set_flag(Pipe::Mte3, Pipe::V, 0);
    });
    k.wait_flag(Pipe::Mte3, Pipe::V, 0);
}
