//! Steps that follow each other over a node's operands and temporaries.

use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::expr::Expr;
use crate::ops::linear::matmul::MATMUL;
use crate::ops::random::philox::PHILOX_UNIFORM;
use crate::ops::{OpCx, OpDef};
use crate::plan::Work;
use crate::row::RowProgram;
use crate::shape::{Layout, Shape};
use crate::tensor::TensorType;
use crate::{ensure, fail};
use std::sync::Arc;

/// The memory of a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// An input of the node, by its position.
    Read(usize),
    /// An output of the node.
    Write(usize),
    /// A temporary of the expansion ([`Sequence::temporaries`]).
    Temporary(usize),
}

/// Elements that a step reads or writes: an operand of the node, a temporary, or a part of either.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// Their memory.
    pub memory: Memory,
    /// Their type.
    pub dtype: DType,
    /// Their places in it.
    pub layout: Layout,
}

impl View {
    /// An operand of the node.
    pub fn new(memory: Memory, ty: &TensorType, layout: &Layout) -> View {
        View { memory, dtype: ty.dtype, layout: layout.clone() }
    }

    /// Type and sizes.
    pub fn ty(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: self.layout.shape.clone() }
    }

    /// Sizes.
    pub fn shape(&self) -> &Shape {
        &self.layout.shape
    }

    fn with(&self, layout: Layout) -> View {
        View { memory: self.memory, dtype: self.dtype, layout }
    }

    /// The same elements in the same order under another shape.
    ///
    /// # Errors
    /// `Unsupported` if their layout does not allow it without a copy.
    pub fn reshaped(&self, shape: &[usize]) -> Result<View> {
        let layout = self.layout.reshape(&shape.into());
        Ok(self.with(layout.ok_or_else(|| fail!(Unsupported, "an operand whose strides do not merge"))?))
    }

    /// The same with its last two dimensions exchanged.
    pub fn transposed(&self) -> View {
        let rank = self.shape().rank();
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        self.permuted(&order)
    }

    /// Dimension `i` is dimension `order[i]` of this one.
    pub fn permuted(&self, order: &[usize]) -> View {
        let l = &self.layout;
        let shape = order.iter().map(|&d| l.shape[d]).collect();
        let strides = order.iter().map(|&d| l.strides[d]).collect();
        self.with(Layout { shape, strides, offset: l.offset })
    }

    /// A strided view: for each dimension its size, and the dimension of this one that it moves along with
    /// the number of indices per step; `None` broadcasts. Sizes must keep within this view.
    ///
    /// # Errors
    /// `Unsupported` for strides beyond 64 bits.
    pub fn strided(&self, dims: &[(usize, Option<(usize, usize)>)]) -> Result<View> {
        let l = &self.layout;
        let stride = |&(_, way): &(usize, Option<(usize, usize)>)| match way {
            None => Some(0),
            Some((dim, times)) => l.strides[dim].checked_mul(isize::try_from(times).ok()?),
        };
        let strides = dims.iter().map(stride).collect::<Option<_>>();
        let strides = strides.ok_or_else(|| fail!(Unsupported, "strides beyond 64 bits"))?;
        Ok(self.with(Layout { shape: dims.iter().map(|d| d.0).collect(), strides, offset: l.offset }))
    }

    /// Indices `start` to `start + len` along a dimension.
    ///
    /// # Errors
    /// `Unsupported` for operands with negative strides.
    pub fn part(&self, dim: usize, start: usize, len: usize) -> Result<View> {
        let mut layout = self.layout.clone();
        let moved = layout.strides[dim].checked_mul(start as isize).filter(|&m| m >= 0);
        layout.offset += moved.ok_or_else(|| fail!(Unsupported, "an operand with negative strides"))?;
        let mut shape = layout.shape.to_vec();
        shape[dim] = len;
        layout.shape = shape.into();
        Ok(self.with(layout))
    }

    /// The words of 64-bit integers along a further dimension of two: the lower one first, as little-endian
    /// memory has them.
    ///
    /// # Errors
    /// `Unsupported` for strides beyond 64 bits.
    pub fn words(&self) -> Result<View> {
        let own = &self.layout;
        let doubled = own.strides.iter().map(|s| s.checked_mul(2)).collect::<Option<Vec<isize>>>();
        let mut strides = doubled.ok_or_else(|| fail!(Unsupported, "strides beyond 64 bits"))?;
        strides.push(1);
        let shape: Shape = own.shape.iter().copied().chain([2]).collect();
        let layout = Layout { shape, strides: strides[..].into(), offset: own.offset * 2 };
        Ok(View { memory: self.memory, dtype: DType::I32, layout })
    }
}

/// A step of an expansion.
#[derive(Clone, Debug)]
pub struct ExpandedStep {
    /// The function that the operation computes.
    pub work: Work,
    /// Operands read; `None` for one that is left out.
    pub reads: Vec<Option<View>>,
    /// Operands written.
    pub writes: Vec<View>,
}

/// Steps in order, each of which sees what those before it wrote, and the temporaries that they use.
#[derive(Debug)]
pub struct Sequence {
    inputs: Vec<Option<View>>,
    outputs: Vec<View>,
    /// The steps so far.
    pub steps: Vec<ExpandedStep>,
    /// Bytes of each temporary. The planner places them, from the first step that writes one to the last that
    /// reads it.
    pub temporaries: Vec<usize>,
    /// Bytes that temporaries of one block of work stay below, where an expansion can cut its work into
    /// blocks.
    pub budget: usize,
}

/// [`Sequence::budget`] where a target says nothing else.
pub const BUDGET: usize = 128 << 20;

impl Sequence {
    /// No steps, for a node with such operands.
    pub fn new(inputs: Vec<Option<View>>, outputs: Vec<View>, budget: usize) -> Sequence {
        Sequence { inputs, outputs, steps: Vec::new(), temporaries: Vec::new(), budget }
    }

    /// An input of the node.
    ///
    /// # Errors
    /// `Unsupported` if it is left out.
    pub fn input(&self, i: usize) -> Result<View> {
        self.optional(i).ok_or_else(|| fail!(Unsupported, "input {i} is missing"))
    }

    /// An input of the node that may be left out.
    pub fn optional(&self, i: usize) -> Option<View> {
        self.inputs.get(i).and_then(Option::as_ref).cloned()
    }

    /// All outputs of the node.
    pub fn outputs(&self) -> Vec<View> {
        self.outputs.clone()
    }

    /// An output of the node.
    ///
    /// # Errors
    /// `Unsupported` if there is none.
    pub fn output(&self, i: usize) -> Result<View> {
        self.outputs.get(i).cloned().ok_or_else(|| fail!(Unsupported, "there is no output {i}"))
    }

    /// A contiguous temporary.
    ///
    /// # Errors
    /// `Unsupported` for sizes that memory does not have.
    pub fn temporary(&mut self, dtype: DType, shape: &[usize]) -> Result<View> {
        let shape = Shape::new(shape);
        let bytes = shape.checked_numel().and_then(|n| n.checked_mul(dtype.size()));
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        self.temporaries.push(bytes.ok_or_else(|| fail!(Unsupported, "temporary memory for {shape}"))?);
        let memory = Memory::Temporary(self.temporaries.len() - 1);
        Ok(View { memory, dtype, layout: Layout::contiguous(&shape) })
    }

    /// Runs a row program.
    ///
    /// # Errors
    /// `Unsupported` if the program has other operands.
    pub fn rows(&mut self, program: RowProgram, reads: &[&View], writes: &[&View]) -> Result<()> {
        let types: Vec<TensorType> = reads.iter().map(|v| v.ty()).collect();
        let outs: Vec<TensorType> = writes.iter().map(|v| v.ty()).collect();
        if let Err(why) = program.agrees(&types, &outs) {
            ensure!(false, Unsupported, "an expansion that is wrong: {why}");
        }
        self.steps.push(ExpandedStep {
            work: Work::Rows(Arc::new(program)),
            reads: reads.iter().map(|&v| Some(v.clone())).collect(),
            writes: writes.iter().map(|&v| v.clone()).collect(),
        });
        Ok(())
    }

    /// `to = a · b`: a `[batch…, m, k]`, b `[batch…, k, n]`, to `[batch…, m, n]`, as `matmul` broadcasts
    /// them. Sums are f32, rounded once to the result's dtype, which may be f32 for operands of 16 bits.
    ///
    /// # Errors
    /// `Unsupported` for sizes that do not fit.
    pub fn product(&mut self, a: &View, b: &View, to: &View) -> Result<()> {
        self.kernel(&MATMUL, Attrs::new(), &[a, b], to)
    }

    /// Uniform f32 numbers of a random stream from word `first` on, a multiple of 4, as many as `to` has
    /// elements.
    ///
    /// # Errors
    /// `Unsupported` for numbers beyond the stream's end.
    pub fn uniform(&mut self, key: &View, stream: u32, first: u64, to: &View) -> Result<()> {
        let sizes: Vec<i64> = to.shape().iter().map(|&n| n as i64).collect();
        let first = i64::try_from(first).map_err(|_| fail!(Unsupported, "random numbers beyond a stream"))?;
        let attrs = Attrs::new().with("size", sizes).with("stream", i64::from(stream)).with("first", first);
        self.kernel(&PHILOX_UNIFORM, attrs, &[key], to)
    }

    /// Runs an operator that devices have kernels for. Its result may be wider than by the operator's own
    /// rule.
    fn kernel(&mut self, op: &'static OpDef, attrs: Attrs, reads: &[&View], to: &View) -> Result<()> {
        let types: Vec<TensorType> = reads.iter().map(|v| v.ty()).collect();
        let cx = OpCx { inputs: types.iter().map(Some).collect(), attrs: &attrs };
        let shape = (op.infer)(&cx).ok().and_then(|types| types.first().map(|t| t.shape.clone()));
        if shape.as_ref() != Some(to.shape()) {
            return Err(fail!(Unsupported, "an expansion that is wrong: {} of {}", op.name, cx.list_types()));
        }
        self.steps.push(ExpandedStep {
            work: Work::Kernel { op, attrs },
            reads: reads.iter().map(|&v| Some(v.clone())).collect(),
            writes: vec![to.clone()],
        });
        Ok(())
    }

    /// The view under another shape, copied into a temporary where strides do not allow it.
    ///
    /// # Errors
    /// `Unsupported` for another number of elements.
    pub fn shaped(&mut self, from: &View, shape: &[usize]) -> Result<View> {
        match from.reshaped(shape) {
            Ok(same) => Ok(same),
            Err(_) => self.copied(from)?.reshaped(shape),
        }
    }

    /// Copies elements to a view of the same shape, rounded to its dtype.
    ///
    /// # Errors
    /// As [`Sequence::rows`].
    pub fn copy(&mut self, from: &View, to: &View) -> Result<()> {
        self.rows(RowProgram::copy(from.dtype, to.dtype, to.shape()), &[from], &[to])
    }

    /// Writes one number everywhere.
    ///
    /// # Errors
    /// As [`Sequence::rows`].
    pub fn fill(&mut self, to: &View, value: f64) -> Result<()> {
        self.rows(RowProgram::pointwise(&[], to.shape(), &[to.dtype], &[Expr::Float(value)]), &[], &[to])
    }

    /// A contiguous copy in a temporary.
    ///
    /// # Errors
    /// As [`Sequence::rows`].
    pub fn copied(&mut self, from: &View) -> Result<View> {
        let to = self.temporary(from.dtype, from.shape())?;
        self.copy(from, &to)?;
        Ok(to)
    }
}
