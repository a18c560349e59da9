//! Operators that other steps begin with: proof that indices are in range, random numbers, and tensors that
//! are written into the graph.

use super::embedding::{Kernel, THREADS, check, contiguous, push};
use super::rows::{rows, span};
use crate::program::CudaProgram;
use crate::text::{memory, store};
use headwater_core::ops::OpCx;
use headwater_core::ops::random::philox;
use headwater_core::plan::Step;
use headwater_core::row::RowProgram;
use headwater_core::{Attr, Layout};
use headwater_launch::{Lowered, LoweredArg, Refusal};

fn refused(e: headwater_core::Error) -> Refusal {
    Refusal(e.message)
}

/// The launches of a `check_index` that does not wrap.
///
/// # Errors
/// Operands that are not contiguous.
pub(super) fn check_index(cx: &OpCx, step: &Step) -> Result<Lowered<CudaProgram>, Refusal> {
    let (index, out) = (contiguous(step.reads.first())?, &step.writes[0]);
    let (limit, ignored) = (cx.size("limit").map_err(refused)?, cx.opt_int("ignore_index").map_err(refused)?);
    let shape = &index.layout.shape;
    if shape.numel() == 0 {
        return Ok(Lowered::default());
    }
    let mut lowered = rows(step.op, &RowProgram::copy(index.dtype, out.dtype, shape), &[index, out])?;
    check(&mut lowered, step.op, (0, index), limit, ignored)?;
    // Indices are checked where they still are, before the result may take their place. The report is the
    // last launch's.
    lowered.launches.rotate_right(1);
    Ok(lowered)
}

/// The launches of a `philox_uniform`: Philox4x32-10 in integers of 32 bits, with the reference's bits.
///
/// # Errors
/// A result with gaps.
pub(super) fn philox_uniform(cx: &OpCx, step: &Step) -> Result<Lowered<CudaProgram>, Refusal> {
    let (key, out) = (contiguous(step.reads.first())?, &step.writes[0]);
    let (stream, first) = (philox::number(cx).map_err(refused)?, philox::first(cx).map_err(refused)?);
    let n = out.layout.shape.numel();
    let mut lowered = Lowered::default();
    if n == 0 {
        return Ok(lowered);
    }
    if !out.layout.is_contiguous() {
        return Err(Refusal::new("random numbers with gaps"));
    }
    let (ty, wide) = (memory(out.dtype), out.dtype == headwater_core::DType::F64);
    let float = if wide { "double" } else { "float" };
    let value = store(out.dtype, "x", wide);
    let body = format!(
        "    // A thread has the four words of a block.
    const i64 i = hw_block() * {THREADS} + hw_thread();
    if (i * 4 >= {n}ll) return;
    const u64 seed = (u64)hw_ld((const i64*)hw_a.p[0], 0), step = (u64)hw_ld((const i64*)hw_a.p[0], 1);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    u32 c[4] = {{(u32)(i + {block}ll), {stream}u, (u32)step, (u32)(step >> 32)}};
    for (i32 round = 0; round < 10; round++) {{
        const u64 a = (u64)c[0] * 0xd2511f53u, b = (u64)c[2] * 0xcd9e8d57u;
        c[0] = (u32)(b >> 32) ^ c[1] ^ k0;
        c[1] = (u32)b;
        c[2] = (u32)(a >> 32) ^ c[3] ^ k1;
        c[3] = (u32)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }}
    for (i32 w = 0; w < 4 && i * 4 + w < {n}ll; w++) {{
        const {float} x = ({float})(c[w] >> 8) * ({float})0.000000059604644775390625;
        hw_st(({ty}*)hw_a.p[1], i * 4 + w, {value});
    }}
",
        block = first / 4
    );
    let operands = vec![
        ("key", LoweredArg::Read { operand: 0, bytes: 0 }, span(key), false),
        ("numbers", LoweredArg::Write { operand: 0, bytes: 0 }, span(out), true),
    ];
    let doc = format!("{n} uniform numbers of stream {stream}, from word {first} on");
    let blocks = n.div_ceil(4 * THREADS);
    push(&mut lowered, step.op, Kernel { name: "words", doc, body, shared: 0, blocks, operands })?;
    Ok(lowered)
}

/// The launches of a `constant`: a copy of bytes that are written when the plan is loaded.
///
/// # Errors
/// A result that a copy does not write.
pub(super) fn constant(cx: &OpCx, step: &Step) -> Result<Lowered<CudaProgram>, Refusal> {
    let out = &step.writes[0];
    let Some(Attr::Tensor(value)) = cx.attrs.get("value") else {
        return Err(Refusal::new("a constant without a value"));
    };
    let shape = &out.layout.shape;
    if shape.numel() == 0 {
        return Ok(Lowered::default());
    }
    let mut from = out.clone();
    from.layout = Layout::contiguous(shape);
    from.place.offset = 0;
    let mut lowered = rows(step.op, &RowProgram::copy(out.dtype, out.dtype, shape), &[&from, out])?;
    for launch in &mut lowered.launches {
        launch.args[0] = LoweredArg::Constant { bytes: 0 };
    }
    lowered.constants = value.to_bytes();
    Ok(lowered)
}
