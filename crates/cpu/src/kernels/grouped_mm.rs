//! Products of groups of rows with matrices of their own: `_grouped_mm` and the gradient of its weight. The
//! groups are read from the offsets in every run; how a group is multiplied depends on its size alone.

use super::grid::Indices;
use super::{Args, Kernel, Site, any};
use crate::element::Float;
use crate::float_dtype;
use crate::gemm::{Grouped, Operand, Size, gemm_groups, workspace_groups};
use crate::matrix::{Mat, MatMut};
use crate::tier::Tier;
use crate::view::View;
use headwater_core::diagnostic::Result;
use headwater_core::ops::OpDef;
use headwater_core::ops::linear::grouped_mm::{GROUPED_MM, GROUPED_MM_WEIGHT_BACKWARD, Groups};
use headwater_core::target::Port;

/// The family.
pub static KERNELS: &[Kernel] = &[kernel(&GROUPED_MM), kernel(&GROUPED_MM_WEIGHT_BACKWARD)];

const fn kernel(op: &'static OpDef) -> Kernel {
    Kernel {
        op,
        takes: any,
        workspace: |site| Products::new(site).map_or(0, |p| p.workspace(site.threads)),
        strided: |port| matches!(port, Port::Read(0 | 1)),
        prepare: |site| {
            let products = Products::new(site)?;
            Ok(Box::new(move |args| {
                float_dtype!(args.writes[0].dtype(), T => match products.weight {
                    true => products.weights::<T>(args),
                    false => products.rows::<T>(args),
                })
            }))
        },
    }
}

/// One product for each group.
struct Products {
    groups: Groups,
    /// Columns of the result.
    n: usize,
    /// The result is a gradient of the weight: sums go over the rows of a group.
    weight: bool,
    tier: Tier,
}

/// Offsets that were checked.
#[derive(Clone, Copy)]
struct Offsets<'a>(Indices<'a>);

impl Offsets<'_> {
    /// The row after the last of the groups before this one.
    fn start(self, group: usize) -> usize {
        group.checked_sub(1).map_or(0, |before| self.0.get(before) as usize)
    }

    /// First row of a group, and how many it has.
    fn rows(self, group: usize) -> (isize, usize) {
        let start = self.start(group);
        (start as isize, self.start(group + 1) - start)
    }
}

impl Products {
    fn new(site: &Site) -> Result<Products> {
        let out = &site.outs[0].shape;
        let (n, weight) = (out[out.rank() - 1], out.rank() == 3);
        Ok(Products { groups: Groups::of(&site.cx)?, n, weight, tier: site.tier })
    }

    /// The size of a group of so many rows.
    fn size(&self, rows: usize) -> Size {
        let (k, n) = (self.groups.k, self.n);
        if self.weight { Size { m: k, n, k: rows } } else { Size { m: rows, n, k } }
    }

    fn workspace(&self, threads: usize) -> usize {
        let most = self.size(self.groups.rows);
        float_dtype!(self.groups.dtype, T => workspace_groups::<T>(self.tier, most, threads))
    }

    fn offsets<'a>(&self, args: &Args<'a>) -> Result<Offsets<'a>> {
        let ends = Indices::of(args.read(2)?)?;
        (0..ends.len()).try_fold(0, |start, at| Ok(self.groups.group(start, ends.get(at))?.end))?;
        Ok(Offsets(ends))
    }

    /// Each row by the matrix of its group.
    fn rows<T: Operand>(&self, args: &mut Args) -> Result<()> {
        let offsets = self.offsets(args)?;
        let (x, w, n) = (matrix::<T>(args.read(0)?), args.read(1)?, self.n);
        let (by, weight) = (w.strides()[0], matrix::<T>(w));
        let out = args.writes[0].slice_mut::<T>();
        out[offsets.start(self.groups.groups) * n..].fill(T::from_f64(0.0));
        let out = MatMut { ptr: out.as_mut_ptr(), rs: n as isize };
        // SAFETY: rows and matrices of the operands, whose offsets were checked; groups have rows of their
        // own.
        unsafe {
            self.run(args, |group| {
                let (first, rows) = offsets.rows(group);
                let c = out.moved(first * out.rs);
                Grouped {
                    size: self.size(rows),
                    a: x.moved(first * x.rs),
                    b: weight.moved(group as isize * by),
                    c,
                }
            });
        }
        Ok(())
    }

    /// The rows of each group by the gradients of its results.
    fn weights<T: Operand>(&self, args: &mut Args) -> Result<()> {
        let offsets = self.offsets(args)?;
        let (x, g) = (matrix::<T>(args.read(0)?), matrix::<T>(args.read(1)?));
        let out = MatMut { ptr: args.writes[0].slice_mut::<T>().as_mut_ptr(), rs: self.n as isize };
        // SAFETY: rows of the operands, whose offsets were checked; groups have a matrix of the result each.
        unsafe {
            self.run(args, |group| {
                let (first, rows) = offsets.rows(group);
                let (a, b) = (x.moved(first * x.rs).transposed(), g.moved(first * g.rs));
                Grouped {
                    size: self.size(rows),
                    a,
                    b,
                    c: out.moved((group * self.groups.k * self.n) as isize),
                }
            });
        }
        Ok(())
    }

    /// # Safety
    /// As [`gemm_groups`].
    unsafe fn run<T: Operand>(&self, args: &mut Args, group: impl Fn(usize) -> Grouped<T> + Sync) {
        let (most, count) = (self.size(self.groups.rows), self.groups.groups);
        // SAFETY: the caller's promise; the device runs no tier the processor lacks.
        unsafe { gemm_groups(args.pool, self.tier, args.workspace, most, count, group) }
    }
}

/// The first matrix of a view, of its last two dimensions.
fn matrix<T: Float>(view: &View) -> Mat<T> {
    let [.., rs, cs] = *view.strides() else { unreachable!("typed: two dimensions at least") };
    Mat { ptr: view.ptr::<T>(), rs, cs }
}
