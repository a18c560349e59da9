//! Operators with kernels of their own.
//!
//! Kernels that are written by hand take contiguous operands; the planner makes them so where an operator has
//! a kernel ([`has_kernel`]). Operators that are composed of products take them at any strides
//! ([`takes_strides`]).

use super::expand::whole;
use super::launch::{Lowered, LoweredArg, LoweredLaunch, Refusal};
use super::sequence::Sequence;
use super::source::attributed;
use super::{
    attention, constant, convolution, counting, grouped, indexing, product, recurrent, resample, segment,
    tables,
};
use crate::chip::Chip;
use crate::kernel::{Elem, Program, Source};
use crate::kernels::{
    CheckIndex, EmbeddingGrad, GatherRows, Operand, Rung, Scatter, ScatterSum, Stages, check_index,
    embedding_grad, gather_rows, philox_uniform, scatter_sum, uniform_blocks,
};
use headwater_core::graph::Origin;
use headwater_core::ops::index::embedding_grad::EmbeddingGradOptions;
use headwater_core::ops::random::philox;
use headwater_core::ops::{OpCx, OpDef};
use headwater_core::plan::{Place, SegmentId, Step, TensorView};
use headwater_core::{Attrs, DType, Layout, TensorType};
use std::sync::Arc;

/// The launches of an operator.
///
/// # Errors
/// The operator, type or shape that has no kernel yet.
pub fn kernel(
    chip: &Chip,
    together: bool,
    op: &'static OpDef,
    attrs: &Attrs,
    step: &Step,
    source: &Source,
) -> Result<Lowered, Refusal> {
    let types = step.types();
    let (cx, outs) = (types.cx(attrs), &types.outs);
    let composed = find(op);
    if let Some(expansion) = headwater_core::expand::find(op).filter(|_| composed.is_none()) {
        return Err(whole(expansion, &cx, outs));
    }
    let contiguous = step.reads.iter().flatten().chain(&step.writes).all(|v| v.layout.is_contiguous());
    if !contiguous && !composed.is_some_and(|composed| composed.strided) {
        return Err(Refusal::new("operands that are not contiguous"));
    }
    if let Some(composed) = composed {
        let mut s = Sequence::new(chip, source).of(&step.reads, &step.writes);
        s.together = together;
        (composed.launches)(&mut s, &cx)?;
        return Ok(s.lowered);
    }
    let lowered = choose(chip, op, &cx, outs)?;
    let launches = lowered.launches.into_iter().map(|launch| {
        let program = Arc::unwrap_or_clone(launch.program);
        LoweredLaunch { program: Arc::new(attributed(program, source)), ..launch }
    });
    Ok(Lowered { launches: launches.collect(), ..lowered })
}

/// True if an operator has a kernel on a chip, for contiguous operands of these types.
pub fn has_kernel(chip: &Chip, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> bool {
    let Some(composed) = find(op) else { return choose(chip, op, cx, outs).is_ok() };
    let view = |ty: &TensorType| TensorView {
        place: Place { segment: SegmentId(0), offset: 0 },
        dtype: ty.dtype,
        layout: Layout::contiguous(&ty.shape),
    };
    let reads: Vec<Option<TensorView>> = cx.inputs.iter().map(|ty| ty.map(view)).collect();
    let writes: Vec<TensorView> = outs.iter().map(view).collect();
    let source = Source { op: op.name.into(), origin: Origin::default() };
    let mut s = Sequence::new(chip, &source).of(&reads, &writes);
    (composed.launches)(&mut s, cx).is_ok()
}

/// True if the kernels of an operator take strided operands: those that are composed of products.
pub fn takes_strides(op: &OpDef) -> bool {
    find(op).is_some_and(|composed| composed.strided)
}

/// An operator that is a sequence of launches.
struct Composed {
    op: &'static str,
    /// True if strided operands are taken; otherwise they are made contiguous.
    strided: bool,
    launches: fn(&mut Sequence, &OpCx) -> Result<(), Refusal>,
}

/// The entry of an operator in the table, if it has one.
fn find(op: &OpDef) -> Option<&'static Composed> {
    COMPOSED.iter().find(|composed| composed.op == op.name)
}

/// An entry that takes strided operands, such as a product.
const fn strided(op: &'static str, launches: fn(&mut Sequence, &OpCx) -> Result<(), Refusal>) -> Composed {
    Composed { op, strided: true, launches }
}

/// Over contiguous operands.
const fn contiguous(op: &'static str, launches: fn(&mut Sequence, &OpCx) -> Result<(), Refusal>) -> Composed {
    Composed { op, strided: false, launches }
}

/// Operators that are sequences of launches.
static COMPOSED: [Composed; 32] = [
    strided("matmul", product::product),
    strided("linear", product::affine),
    strided("attention", attention::attention),
    strided("attention_backward", attention::attention_backward),
    strided("convolution", convolution::convolution),
    strided("convolution_input_grad", convolution::convolution_input_grad),
    strided("convolution_weight_grad", convolution::convolution_weight_grad),
    strided("_grouped_mm", grouped::product),
    strided("grouped_mm_weight_backward", grouped::weight_gradient),
    contiguous("col2im", convolution::col2im),
    contiguous("im2col", convolution::im2col),
    contiguous("constant", constant::constant),
    contiguous("gather", indexing::gather),
    contiguous("index", indexing::index),
    contiguous("_index_put_impl", indexing::index_put),
    contiguous("scatter", indexing::scatter),
    contiguous("gather_rows", tables::rows),
    contiguous("update_rows", tables::update_rows),
    contiguous("gru_layer", recurrent::gru),
    contiguous("gru_layer_backward", recurrent::gru_backward),
    contiguous("lstm_layer", recurrent::lstm),
    contiguous("lstm_layer_backward", recurrent::lstm_backward),
    contiguous("rnn_layer", recurrent::rnn),
    contiguous("rnn_layer_backward", recurrent::rnn_backward),
    contiguous("histc", counting::histogram),
    contiguous("searchsorted", counting::searched),
    contiguous("sort", counting::sort),
    contiguous("topk", counting::topk),
    contiguous("segment_spread", segment::spread),
    contiguous("segment_sum_pair", segment::sums),
    contiguous("upsample2d", resample::upsample),
    contiguous("upsample2d_backward", resample::upsample_backward),
];

type Chosen = (Program, Vec<LoweredArg>, u32);

/// The kernels of an operator on contiguous operands.
fn choose(chip: &Chip, op: &OpDef, cx: &OpCx, outs: &[TensorType]) -> Result<Lowered, Refusal> {
    let (program, args, blocks) = match op.name {
        "embedding" if input(cx, 1)?.shape.contains(&0) => return Ok(Lowered::default()),
        "embedding" => embedding(chip, cx, outs)?,
        "embedding_dense_backward" => return embedding_backward(chip, cx),
        "on_host" => {
            let reason = cx.opt_str("reason").ok().flatten();
            return Err(Refusal::new(reason.unwrap_or("a row program on the host")));
        }
        "check_index" => checked_index(chip, cx)?,
        "max_pool2d_with_indices_backward" => maximum_backward(chip, cx, outs)?,
        "philox_uniform" => uniform(chip, cx, outs)?,
        name => return Err(Refusal(format!("`{name}` has no kernel yet"))),
    };
    Ok(Lowered {
        launches: vec![LoweredLaunch { program: Arc::new(program), args, blocks }],
        ..Lowered::default()
    })
}

/// Address of a whole operand.
const fn read(operand: usize) -> LoweredArg {
    LoweredArg::Read { operand, bytes: 0 }
}

const fn write(operand: usize) -> LoweredArg {
    LoweredArg::Write { operand, bytes: 0 }
}

/// Type of an input; an error if it is absent.
fn input<'a>(cx: &OpCx<'a>, i: usize) -> Result<&'a TensorType, Refusal> {
    cx.inputs.get(i).copied().flatten().ok_or_else(|| Refusal(format!("input {i} is missing")))
}

/// Type of indices as kernels read them.
fn index_type(dtype: DType) -> Result<Elem, Refusal> {
    Elem::of(dtype)
        .filter(|e| matches!(e, Elem::I32 | Elem::I64))
        .ok_or_else(|| Refusal(format!("indices in {dtype}")))
}

fn embedding(chip: &Chip, cx: &OpCx, outs: &[TensorType]) -> Result<Chosen, Refusal> {
    let (table, index) = (input(cx, 0)?, input(cx, 1)?);
    let (elem, dim) = indexing::words(table.dtype, table.shape[1] as u64);
    let shape = GatherRows {
        elem,
        index: index_type(index.dtype)?,
        indices: index.shape.numel() as u64,
        rows: table.shape[0] as u64,
        dim,
        merged: false,
    };
    if outs[0].shape.contains(&0) {
        return Err(Refusal::new("no elements"));
    }
    let program = gather_rows(chip.arch, &shape)?;
    let args = vec![read(1), read(0), write(0), LoweredArg::Fault { limit: shape.rows }];
    let blocks = shape.reports().min(u64::from(chip.vector_cores)) as u32;
    Ok((program, args, blocks))
}

fn checked_index(chip: &Chip, cx: &OpCx) -> Result<Chosen, Refusal> {
    let index = input(cx, 0)?;
    let shape = CheckIndex {
        index: index_type(index.dtype)?,
        indices: index.shape.numel() as u64,
        limit: cx.size("limit")? as u64,
        wrap: cx.flag("wrap")?,
        ignored: cx.opt_int("ignore_index")?,
    };
    let program = check_index(chip.arch, &shape)?;
    let args = vec![read(0), write(0), LoweredArg::Fault { limit: shape.limit }];
    let blocks = shape.reports().min(u64::from(chip.vector_cores)) as u32;
    Ok((program, args, blocks))
}

fn embedding_backward(chip: &Chip, cx: &OpCx) -> Result<Lowered, Refusal> {
    let (grad, index) = (input(cx, 0)?, input(cx, 1)?);
    let options = EmbeddingGradOptions::of(cx)?;
    let elem = Elem::of(grad.dtype).ok_or_else(|| Refusal(format!("gradients in {}", grad.dtype)))?;
    let rows = options.num_weights as u64;
    let shape = EmbeddingGrad {
        elem,
        index: index_type(index.dtype)?,
        indices: index.shape.numel() as u64,
        rows,
        dim: grad.shape.last().map_or(0, |&d| d as u64),
        padding: u64::try_from(options.padding_idx).ok().filter(|&row| row < rows),
        by_frequency: options.scale_grad_by_freq,
        cores: chip.vector_cores,
    };
    embedding_grads(chip, &shape, Rung::Pipelined)
}

/// The launches of an embedding's gradient: operand 0 read is the gradient, operand 1 the indices.
///
/// # Errors
/// A type or shape that has no kernel.
pub fn embedding_grads(chip: &Chip, shape: &EmbeddingGrad, rung: Rung) -> Result<Lowered, Refusal> {
    let Stages { stages, workspace } = embedding_grad(chip.arch, shape, rung)?;
    let arg = |operand: &Operand| match *operand {
        Operand::Index => read(1),
        Operand::Grad => read(0),
        Operand::Table => write(0),
        Operand::Fault => LoweredArg::Fault { limit: shape.rows },
        Operand::Workspace(bytes) => LoweredArg::Scratch { bytes },
    };
    let launches = stages.into_iter().map(|stage| LoweredLaunch {
        args: stage.operands.iter().map(arg).collect(),
        program: Arc::new(stage.program),
        blocks: stage.blocks,
    });
    Ok(Lowered { launches: launches.collect(), scratch: workspace, ..Lowered::default() })
}

fn maximum_backward(chip: &Chip, cx: &OpCx, outs: &[TensorType]) -> Result<Chosen, Refusal> {
    let (g, index) = (input(cx, 0)?, input(cx, 1)?);
    let plane = |shape: &[usize]| shape[shape.len() - 2..].iter().map(|&n| n as u64).product();
    let to = &outs[0].shape;
    let shape = ScatterSum {
        scatter: Scatter::Sum,
        elem: Elem::of(g.dtype).ok_or_else(|| Refusal(format!("gradients in {}", g.dtype)))?,
        index: index_type(index.dtype)?,
        planes: to[..to.rank() - 2].iter().map(|&n| n as u64).product(),
        from: plane(&g.shape),
        to: plane(to),
    };
    let program = scatter_sum(chip.arch, &shape)?;
    let args = vec![read(1), read(0), write(0), LoweredArg::Fault { limit: shape.to }];
    let blocks = shape.reports().min(u64::from(chip.vector_cores)) as u32;
    Ok((program, args, blocks))
}

fn uniform(chip: &Chip, cx: &OpCx, outs: &[TensorType]) -> Result<Chosen, Refusal> {
    if outs[0].dtype != DType::F32 {
        return Err(Refusal(format!("random numbers in {}", outs[0].dtype)));
    }
    let (stream, first) = (philox::number(cx)?, philox::first(cx)?);
    let numbers = outs[0].shape.numel() as u64;
    let program = philox_uniform(chip.arch, numbers)?;
    let args = vec![read(0), write(0), LoweredArg::Int(stream.into()), LoweredArg::Int(first as i64 / 4)];
    Ok((program, args, uniform_blocks(numbers).min(chip.vector_cores)))
}
