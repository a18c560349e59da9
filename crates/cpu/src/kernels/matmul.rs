//! Matrix products of operators: `matmul` (batched, broadcast), `linear` (with bias) and the product of
//! `matmul_sum`, whose sums the executor runs as the row program that they are.

use super::{Args, Kernel, Prepared, Site, floats};
use crate::element::Float;
use crate::float_dtype;
use crate::gemm::{self, Operand, Size, Start};
use crate::matrix::{Mat, MatMut};
use crate::tier::Tier;
use crate::view::View;
use headwater_core::diagnostic::Result;
use headwater_core::ops::linear::linear::LINEAR;
use headwater_core::ops::linear::matmul::{Dims, MATMUL};
use headwater_core::ops::linear::matmul_sum::{self, MATMUL_SUM};
use headwater_core::plan::{Step, TensorView};
use headwater_core::row::RowProgram;
use headwater_core::shape::{Layout, Shape};
use headwater_core::target::Port;
use headwater_core::{Attrs, fail};

/// The family.
pub static KERNELS: &[Kernel] = &[
    Kernel {
        op: &MATMUL,
        takes: floats,
        workspace: |site| Geometry::matmul(site).map_or(0, |g| g.workspace(site)),
        strided: |port| matches!(port, Port::Read(_)),
        prepare: |site| Ok(prepare(Geometry::matmul(site)?, site.tier)),
    },
    Kernel {
        op: &MATMUL_SUM,
        takes: floats,
        workspace: |site| Geometry::matmul(site).map_or(0, |g| g.workspace(site)),
        strided: |port| matches!(port, Port::Read(_)),
        prepare: |site| Ok(prepare(Geometry::matmul(site)?, site.tier)),
    },
    Kernel {
        op: &LINEAR,
        takes: floats,
        workspace: |site| Geometry::linear(site).map_or(0, |g| g.workspace(site)),
        strided: |port| matches!(port, Port::Read(_)),
        prepare: |site| Ok(prepare(Geometry::linear(site)?, site.tier)),
    },
];

/// A batched product as the operands' types state it.
struct Geometry {
    /// Broadcast batch dimensions.
    batch: Vec<usize>,
    size: Size,
    /// The right operand is stored as `[n, k]`.
    transposed: bool,
    /// All batches share the right operand, so that rows of all batches may count as one matrix.
    shared: bool,
}

impl Geometry {
    fn matmul(site: &Site) -> Result<Self> {
        let d = Dims::of(&site.cx)?;
        let shared = d.right[..d.right.rank() - 2].iter().all(|&n| n == 1);
        let size = Size { m: d.m, n: d.n, k: d.k };
        Ok(Geometry { batch: d.batch.to_vec(), size, transposed: false, shared })
    }

    fn linear(site: &Site) -> Result<Self> {
        let (x, w) = (site.cx.shape(0)?, site.cx.shape(1)?);
        let (&k, lead) = x.split_last().expect("typed: at least one dimension");
        let n = if w.rank() == 2 { w[0] } else { 1 };
        let (m, batch) = lead.split_last().map_or((1, lead), |(&m, batch)| (m, batch));
        Ok(Geometry { batch: batch.to_vec(), size: Size { m, n, k }, transposed: true, shared: true })
    }

    fn batches(&self) -> usize {
        self.batch.iter().product()
    }

    /// The product as one of all rows of all batches.
    fn merged(&self) -> Size {
        Size { m: self.size.m * self.batches(), ..self.size }
    }

    fn workspace(&self, site: &Site) -> usize {
        let bytes = |size| float_dtype!(site.outs[0].dtype, T => gemm::workspace::<T, T>(site.tier, size, site.threads));
        // Rows that do not follow each other are multiplied batch by batch; that may take more than all of
        // them at once.
        if self.shared { bytes(self.merged()).max(bytes(self.size)) } else { bytes(self.size) }
    }

    /// Strides of an operand that end in those of its matrix; a vector is one row (`left`) or one column.
    fn operand<'a, T: Float>(&self, view: &'a View, left: bool) -> Stack<'a, T> {
        let (shape, strides) = (&view.shape()[..], view.strides());
        let (lead, rs, cs) = match (strides.len(), left || self.transposed) {
            (1, true) => (0, 0, strides[0]),
            (1, false) => (0, strides[0], 0),
            (rank, _) => (rank - 2, strides[rank - 2], strides[rank - 1]),
        };
        let mat = Mat { ptr: view.ptr::<T>(), rs, cs };
        let mat = if !left && self.transposed { mat.transposed() } else { mat };
        Stack { mat, shape: &shape[..lead], strides: &strides[..lead] }
    }
}

/// A matrix per batch.
struct Stack<'a, T> {
    mat: Mat<T>,
    /// Batch dimensions, aligned to the end of the broadcast ones; size 1 is broadcast.
    shape: &'a [usize],
    strides: &'a [isize],
}

impl<T: Float> Stack<'_, T> {
    /// The matrix of a batch.
    fn at(&self, batch: &[usize], mut index: usize) -> Mat<T> {
        let mut offset = 0;
        let lead = batch.len() - self.shape.len();
        for d in (lead..batch.len()).rev() {
            if self.shape[d - lead] != 1 {
                offset += (index % batch[d]) as isize * self.strides[d - lead];
            }
            index /= batch[d];
        }
        self.mat.moved(offset)
    }

    /// True if the rows of all batches have one stride.
    fn rows_follow(&self, batch: &[usize], m: usize) -> bool {
        let mut follow = m as isize * self.mat.rs;
        self.shape.len() == batch.len()
            && batch.iter().zip(self.shape).zip(self.strides).rev().all(|((&n, &own), &stride)| {
                let fits = own == n && (n == 1 || stride == follow);
                follow *= n as isize;
                fits
            })
    }
}

fn prepare(g: Geometry, tier: Tier) -> Prepared {
    Box::new(move |args| float_dtype!(args.writes[0].dtype(), T => run::<T>(&g, tier, args)))
}

fn run<T: Operand>(g: &Geometry, tier: Tier, args: &mut Args) -> Result<()> {
    if g.merged().m * g.size.n == 0 {
        return Ok(());
    }
    let (a, b) = (g.operand::<T>(args.read(0)?, true), g.operand::<T>(args.read(1)?, false));
    let start = match args.opt(2) {
        None => Start::Zero,
        Some(bias) => Start::Bias(Mat { ptr: bias.ptr::<T>(), rs: 0, cs: bias.strides()[0] }),
    };
    let merge = g.shared && a.rows_follow(&g.batch, g.size.m);
    let (batches, size) = if merge { (1, g.merged()) } else { (g.batches(), g.size) };
    let out = MatMut { ptr: args.writes[0].ptr_mut::<T>(), rs: g.size.n as isize };
    let step = size.m * size.n;
    // SAFETY: the matrices are those of the operands' views, whose indices are all in bounds. The output is
    // contiguous and overlaps no other operand, and its batches follow each other. The device runs no tier
    // the processor lacks.
    unsafe {
        gemm::gemm::<T, T>(
            args.pool,
            tier,
            args.workspace,
            batches,
            size,
            |i| if merge { a.mat } else { a.at(&g.batch, i) },
            |i| if merge { b.mat } else { b.at(&g.batch, i) },
            |i| out.moved((i * step) as isize),
            start,
        );
    }
    Ok(())
}

/// The sums of a `matmul_sum` as a row program over the operand that they are of, and that operand with the
/// summed dimension first.
///
/// # Errors
/// `Plan` if the step lacks the operand.
pub(crate) fn sums(step: &Step, attrs: &Attrs) -> Result<(RowProgram, TensorView)> {
    let types = step.types();
    let of = matmul_sum::of(&types.cx(attrs))?;
    let operand = step.reads.get(of).and_then(Option::as_ref);
    let operand = operand.ok_or_else(|| fail!(Plan, "operand {of} of matmul_sum is missing"))?;
    let l = &operand.layout;
    let order = if of == 0 { [1, 0] } else { [0, 1] };
    let layout = Layout {
        shape: Shape::new(&order.map(|d| l.shape[d])),
        strides: order.map(|d| l.strides[d]).into_iter().collect(),
        offset: l.offset,
    };
    let view = TensorView { layout, ..operand.clone() };
    Ok((matmul_sum::program(&view.layout.shape, view.dtype), view))
}
