//! Operators, apart from any device. One operator, one file; one line in its folder's list registers it.
//!
//! Folders by kind: `pointwise`, `create`, `view`, `movement`, `reduce`, `norm`, `loss`, `linear`, `linalg`,
//! `complex` (with Fourier transforms), `conv`, `attention`, `image`, `index`, `random`, `recurrent`,
//! `collective` (what ranks compute jointly), and `control` (what is understood but computes nothing).

pub mod case;
pub mod cx;
pub mod departures;
pub mod registry;
pub mod schema;

pub use case::{Case, Sample};
pub use cx::{GradCx, OpCx};
pub use registry::Registry;

use crate::diagnostic::Result;
use crate::expr::Expr;
use crate::graph::{Builder, ValueId};
use crate::row::RowProgram;
use crate::shape::Layout;
use crate::tensor::{Tensor, TensorType};
use std::collections::HashSet;

/// Everything about an operator that needs no device. There are no defaults: each statement must be made.
#[derive(Clone, Copy)]
pub struct OpDef {
    /// ATen's name without overload, e.g. `gelu`; unique.
    pub name: &'static str,
    /// ATen schemas this operator is imported from. Tensor arguments become inputs in order (lists
    /// flattened), the rest attributes under their names. In-place spellings (`gelu_`) are derived by the
    /// importer. Other arguments that a call writes are marked `Tensor(a!)`, even where PyTorch forgets to
    /// (`batch_norm`'s running statistics): their new contents are the last outputs.
    pub schemas: &'static [&'static str],
    /// Shape and dtype rule: types of all outputs. Outputs beyond the schema's are stashes for the backward
    /// pass.
    pub infer: fn(&OpCx) -> Result<Vec<TensorType>>,
    /// The flow of gradients through it.
    pub derivative: Derivative,
    /// Its class under mixed precision.
    pub precision: Precision,
    /// Arithmetic it performs.
    pub cost: Cost,
    /// Its computation.
    pub body: Body,
    /// Test cases: every test of every device is made from these.
    pub cases: fn() -> Vec<Case>,
}

/// The flow of gradients through an operator.
#[derive(Clone, Copy)]
pub enum Derivative {
    /// A rule that builds the gradients of the inputs.
    Rule(fn(&mut GradCx) -> Result<()>),
    /// Gradients stop here, and why.
    NotDifferentiable(&'static str),
    /// That of what it is decomposed into.
    ByDecomposition,
}

/// Class of an operator under automatic mixed precision (apex's and autocast's lists).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Runs in low precision: matmul, convolution, attention.
    Low,
    /// Runs in f32: exponentials, norms, losses, large sums.
    Full,
    /// Takes the widest dtype of its inputs.
    Widest,
    /// Runs in the dtype it is given.
    Same,
    /// Refused on low-precision inputs, and why.
    Refused(&'static str),
}

/// Arithmetic of an operator, in floating-point operations.
#[derive(Clone, Copy)]
pub enum Cost {
    /// None, and no memory traffic either: views and metadata.
    Free,
    /// This many per element of the first output.
    PerOutput(u32),
    /// This many per element of the first input.
    PerInput(u32),
    /// From the types: inputs in the context, outputs given.
    Custom(fn(&OpCx, &[TensorType]) -> f64),
}

/// A view: the same elements under another layout.
#[derive(Clone, Copy)]
pub struct View {
    /// Layout of output `i` given the input's; `None` if this input layout needs a copy first.
    pub layout: fn(&OpCx, &Layout, usize) -> Result<Option<Layout>>,
    /// Builds the input with what output `i` sees replaced by a new value: `(builder, context, base, new,
    /// i)`. `None` where writing through the view has no meaning (`expand`).
    pub scatter: Option<fn(&mut Builder, &OpCx, ValueId, ValueId, usize) -> Result<ValueId>>,
}

/// The source of a [`RegionCopy`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Source {
    /// An input of the node, by position.
    Input(usize),
    /// One value everywhere.
    Fill(f64),
}

/// Copies a box of one operand into a box of the output, element by element. All vectors have the rank of the
/// output. An input is addressed in its logical dimensions: its rank must be the output's, missing leading
/// dimensions count as 1.
#[derive(Clone, PartialEq, Debug)]
pub struct RegionCopy {
    /// The operand or number that is read.
    pub source: Source,
    /// First index read along each dimension.
    pub source_start: Vec<usize>,
    /// Index step along each dimension (may be negative or zero).
    pub source_step: Vec<isize>,
    /// First index written.
    pub start: Vec<usize>,
    /// Index step of writing.
    pub step: Vec<usize>,
    /// Number of elements along each dimension.
    pub extent: Vec<usize>,
}

impl RegionCopy {
    /// The box `shape` at index 0 of the source copied to index 0 of the output.
    pub fn whole(source: Source, shape: &[usize]) -> Self {
        let rank = shape.len();
        RegionCopy {
            source,
            source_start: vec![0; rank],
            source_step: vec![1; rank],
            start: vec![0; rank],
            step: vec![1; rank],
            extent: shape.to_vec(),
        }
    }
}

/// Input `i` of an operator being decomposed.
///
/// # Errors
/// `Attribute` if it is absent.
pub fn required(inputs: &[Option<ValueId>], i: usize) -> Result<ValueId> {
    inputs.get(i).copied().flatten().ok_or_else(|| crate::fail!(Attribute, "input {i} is missing"))
}

/// The computation of an operator.
#[derive(Clone, Copy)]
pub enum Body {
    /// One scalar expression an output over the broadcast inputs (absent inputs are skipped in numbering).
    Pointwise(fn(&OpCx) -> Result<Vec<Expr>>),
    /// A row program. Its reads are the present inputs in order, its writes the outputs in order.
    Rows(fn(&OpCx, &[TensorType]) -> Result<RowProgram>),
    /// The same memory under another layout.
    View(View),
    /// Boxes copied in order into the output; later ones win. Their union covers the output.
    Copies(fn(&OpCx, &TensorType) -> Result<Vec<RegionCopy>>),
    /// A kernel family written by hand for each device, found there by the operator's name. The function is
    /// the reference: slow and obvious, in f64, `(context, inputs, output types)`.
    Kernel(fn(&OpCx, &[Option<&Tensor>], &[TensorType]) -> Result<Vec<Tensor>>),
    /// A kernel that changes a part of input 0 in place. The planner gives output 0, the only one, that
    /// input's memory, or copies it there first. A device then sees no input 0: it is the content of
    /// output 0. The function is the reference, which returns the whole of it. It has no workspace.
    Update(fn(&OpCx, &[Option<&Tensor>], &[TensorType]) -> Result<Vec<Tensor>>),
    /// Expanded into other operators right after import: `(builder, context, inputs)` to outputs.
    Decompose(fn(&mut Builder, &OpCx, &[Option<ValueId>]) -> Result<Vec<ValueId>>),
    /// The function that the ranks along an axis compute jointly: from the inputs of all ranks, in their
    /// order, to the outputs of all, `(context, inputs by rank, output types)`. Types are the same on every
    /// rank. The function is the reference.
    Collective(fn(&OpCx, &collective::Given, &[TensorType]) -> Result<Vec<Vec<Tensor>>>),
}

impl std::fmt::Debug for OpDef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for OpDef {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl OpDef {
    /// Names of its attributes: those its schemas give and its cases show. An operator that only passes make
    /// has cases alone.
    pub fn attr_names(&self) -> HashSet<&'static str> {
        let cases = (self.cases)();
        let shown = cases.iter().flat_map(|c| c.attrs.iter().map(|(name, _)| name));
        let schemas = self.schemas.iter().filter_map(|s| schema::Schema::parse(s).ok());
        schemas.flat_map(|s| s.args).map(|a| a.name).chain(shown).collect()
    }

    /// The row program of one application, if the body is `Pointwise` or `Rows`.
    ///
    /// # Errors
    /// The body's own; `DType` for operands whose types do not match in it.
    pub fn row_program(&self, cx: &OpCx, outs: &[TensorType]) -> Result<Option<RowProgram>> {
        let program = match self.body {
            Body::Pointwise(f) => {
                let exprs = f(cx)?;
                let inputs: Vec<_> = cx.present().map(|t| (t.dtype, &t.shape[..])).collect();
                let dtypes: Vec<_> = outs.iter().map(|t| t.dtype).collect();
                let first =
                    outs.first().ok_or_else(|| crate::fail!(Attribute, "{} makes no result", self.name))?;
                RowProgram::pointwise(&inputs, &first.shape, &dtypes, &exprs)
            }
            Body::Rows(f) => f(cx, outs)?,
            _ => return Ok(None),
        };
        let types = || cx.list_types();
        program.classes().map_err(|m| crate::fail!(DType, "{} of {}: {m}", self.name, types()))?;
        Ok(Some(program))
    }

    /// Floating-point operations and bytes moved (every operand once) of one application.
    pub fn cost_of(&self, cx: &OpCx, outputs: &[TensorType]) -> (f64, f64) {
        let numel = |t: Option<&TensorType>| t.map_or(0.0, |t| t.shape.numel() as f64);
        let flops = match self.cost {
            Cost::Free => return (0.0, 0.0),
            Cost::PerOutput(n) => n as f64 * numel(outputs.first()),
            Cost::PerInput(n) => n as f64 * numel(cx.inputs.first().copied().flatten()),
            Cost::Custom(f) => f(cx, outputs),
        };
        let bytes: usize = cx.inputs.iter().flatten().copied().chain(outputs).map(TensorType::bytes).sum();
        (flops, bytes as f64)
    }
}

/// Declares the files of a folder and the operators in them: `file: OP, OP_BACKWARD;`.
macro_rules! operators {
    ($($file:ident: $($def:ident),+;)*) => {
        $(pub mod $file;)*
        /// The operators of this folder.
        pub const ALL: &[&crate::ops::OpDef] = &[$($(&$file::$def),+),*];
    };
}

pub mod attention;
pub mod collective;
pub mod complex;
pub mod control;
pub mod conv;
pub mod create;
pub mod image;
pub mod index;
pub mod linalg;
pub mod linear;
pub mod loss;
pub mod movement;
pub mod norm;
pub mod pointwise;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod update;
pub mod view;

/// Every folder's operators.
pub(crate) const FOLDERS: &[&[&OpDef]] = &[
    attention::ALL,
    collective::ALL,
    complex::ALL,
    control::ALL,
    conv::ALL,
    create::ALL,
    image::ALL,
    index::ALL,
    linalg::ALL,
    linear::ALL,
    loss::ALL,
    movement::ALL,
    norm::ALL,
    pointwise::ALL,
    random::ALL,
    recurrent::ALL,
    reduce::ALL,
    update::ALL,
    view::ALL,
];
