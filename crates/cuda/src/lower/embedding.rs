//! Rows of a table by index, and their gradient, without atomics: indices are sorted with their positions,
//! stably, and each row of the table adds up its run in the order of positions.

use super::rows::{span, symbol};
use crate::program::{CudaProgram, Param, Work};
use crate::text::{load, memory, store};
use headwater_core::ops::OpCx;
use headwater_core::plan::{Step, TensorView};
use headwater_core::{Attr, DType};
use headwater_launch::{Lowered, LoweredArg, LoweredLaunch, Refusal};
use std::sync::Arc;

/// Threads of a block.
pub(super) const THREADS: usize = 256;
/// Keys that a thread of the sort has, and a block.
const KEYS: usize = 4;
const TILE: usize = THREADS * KEYS;
/// Bits of a digit.
const BITS: u32 = 4;
/// Bytes of a report of indices out of range.
const REPORT: u64 = 32;

/// A kernel written by hand, of blocks of [`THREADS`], and its launch.
pub(super) struct Kernel {
    pub name: &'static str,
    pub doc: String,
    pub body: String,
    pub shared: usize,
    pub blocks: usize,
    /// Name, place, bytes, and true if it is written.
    pub operands: Vec<(&'static str, LoweredArg, u64, bool)>,
}

/// Adds a launch.
///
/// # Errors
/// More blocks than a launch has.
pub(super) fn push(lowered: &mut Lowered<CudaProgram>, op: &str, kernel: Kernel) -> Result<(), Refusal> {
    let param = |&(name, _, bytes, writes): &(&str, LoweredArg, u64, bool)| Param {
        name: name.into(),
        writes,
        bytes,
    };
    let work = Work::Text {
        doc: vec![format!("{op}: {}", kernel.doc)],
        body: kernel.body,
        threads: THREADS as u32,
        shared: kernel.shared as u32,
    };
    let params = kernel.operands.iter().map(param).collect();
    let program = CudaProgram { name: symbol(op, kernel.name), params, work };
    let blocks = u32::try_from(kernel.blocks).map_err(|_| Refusal::new("too many indices"))?;
    let args = kernel.operands.iter().map(|o| o.1).collect();
    lowered.launches.push(LoweredLaunch { program: Arc::new(program), args, blocks });
    Ok(())
}

/// An operand without gaps.
///
/// # Errors
/// One that is missing, or has gaps.
pub(super) fn contiguous(view: Option<&Option<TensorView>>) -> Result<&TensorView, Refusal> {
    let view = view.and_then(Option::as_ref).ok_or_else(|| Refusal::new("an operator without an operand"))?;
    match view.layout.is_contiguous() {
        true => Ok(view),
        false => Err(Refusal::new("an operand with gaps")),
    }
}

/// Reports the first index of each block of indices that is out of range, operand `operand` of the step. One
/// that is `ignored` is right.
pub(super) fn check(
    lowered: &mut Lowered<CudaProgram>,
    op: &str,
    (operand, index): (usize, &TensorView),
    limit: usize,
    ignored: Option<i64>,
) -> Result<(), Refusal> {
    let (n, ty) = (index.layout.shape.numel(), memory(index.dtype));
    let blocks = n.div_ceil(THREADS);
    let but = ignored.map_or(String::new(), |x| format!(" && x != (i64){:#x}ull", x as u64));
    let body = format!(
        "    const i64 i = hw_block() * {THREADS} + hw_thread();
    const i64 x = i < {n}ll ? (i64)hw_ld((const {ty}*)hw_a.p[0], i) : 0;
    u8* const wrong = hw_shared();
    hw_st(wrong, hw_thread(), (u8)(i < {n}ll && (x < 0 || x >= {limit}ll){but}));
    hw_sync();
    if (hw_thread() != 0) return;
    i32 count = 0, first = 0;
    for (i32 t = {THREADS} - 1; t >= 0; t--) if (hw_ld((const u8*)wrong, t)) {{ count++; first = t; }}
    const i64 at = hw_block() * {THREADS} + first;
    const i64 bad = count ? (i64)hw_ld((const {ty}*)hw_a.p[0], at) : 0;
    i32* const report = (i32*)hw_a.p[1] + hw_block() * 8;
    hw_st(report, 0, count);
    hw_st(report, 1, count ? (i32)at : 0);
    hw_st(report, 2, (i32)(u32)(u64)bad);
    hw_st(report, 3, (i32)(u32)((u64)bad >> 32));
    for (i32 w = 4; w < 8; w++) hw_st(report, w, 0);
"
    );
    let operands = vec![
        ("index", LoweredArg::Read { operand, bytes: 0 }, span(index), false),
        ("report", LoweredArg::Fault { limit: limit as u64 }, blocks as u64 * REPORT, true),
    ];
    let doc = format!("checks that {n} indices are below {limit}");
    push(lowered, op, Kernel { name: "check", doc, body, shared: THREADS, blocks, operands })
}

/// The launches of an `embedding`.
///
/// # Errors
/// Operands that are not contiguous.
pub(super) fn forward(step: &Step) -> Result<Lowered<CudaProgram>, Refusal> {
    let (table, index, out) =
        (contiguous(step.reads.first())?, contiguous(step.reads.get(1))?, &step.writes[0]);
    let (rows, width) = (table.layout.shape[0], table.layout.shape[1]);
    let n = index.layout.shape.numel();
    let mut lowered = Lowered::default();
    if n == 0 {
        return Ok(lowered);
    }
    if !out.layout.is_contiguous() {
        return Err(Refusal::new("an embedding's result with gaps"));
    }
    check(&mut lowered, step.op, (1, index), rows, None)?;
    if width == 0 || rows == 0 {
        return Ok(lowered);
    }
    let (total, ty, at) = (n * width, memory(table.dtype), memory(index.dtype));
    let body = format!(
        "    const i64 i = hw_block() * {THREADS} + hw_thread();
    if (i >= {total}ll) return;
    const i64 x = (i64)hw_ld((const {at}*)hw_a.p[1], i / {width});
    // A wrong index has been reported; it reads the first row.
    const i64 row = x < 0 || x >= {rows}ll ? 0 : x;
    hw_st(({ty}*)hw_a.p[2], i, hw_ld((const {ty}*)hw_a.p[0], row * {width} + i % {width}));
"
    );
    let operands = vec![
        ("table", LoweredArg::Read { operand: 0, bytes: 0 }, span(table), false),
        ("index", LoweredArg::Read { operand: 1, bytes: 0 }, span(index), false),
        ("rows", LoweredArg::Write { operand: 0, bytes: 0 }, span(out), true),
    ];
    let (doc, blocks) = (format!("{n} rows of {width} from a table of {rows}"), total.div_ceil(THREADS));
    push(&mut lowered, step.op, Kernel { name: "rows", doc, body, shared: 0, blocks, operands })?;
    Ok(lowered)
}

/// The launches of an `embedding_dense_backward`.
///
/// # Errors
/// Operands that are not contiguous.
pub(super) fn backward(cx: &OpCx, step: &Step) -> Result<Lowered<CudaProgram>, Refusal> {
    let (grad, index, out) =
        (contiguous(step.reads.first())?, contiguous(step.reads.get(1))?, &step.writes[0]);
    let (rows, width) = (out.layout.shape[0], out.layout.shape[1]);
    let n = index.layout.shape.numel();
    let padding = match cx.attrs.get("padding_idx") {
        Some(Attr::Int(row)) => *row,
        _ => -1,
    };
    if !out.layout.is_contiguous() {
        return Err(Refusal::new("an embedding's gradient with gaps"));
    }
    let mut lowered = Lowered::default();
    let op = step.op;
    if n > 0 {
        check(&mut lowered, op, (1, index), rows, None)?;
    }
    let (total, ty) = (rows * width, memory(out.dtype));
    let zero = format!(
        "    const i64 i = hw_block() * {THREADS} + hw_thread();
    if (i < {total}ll) hw_st(({ty}*)hw_a.p[0], i, ({ty})0);
"
    );
    let table = ("table", LoweredArg::Write { operand: 0, bytes: 0 }, span(out), true);
    if total == 0 {
        return Ok(lowered);
    }
    let doc = format!("zeros of {rows} rows of {width}");
    push(
        &mut lowered,
        op,
        Kernel {
            name: "zero",
            doc,
            body: zero,
            shared: 0,
            blocks: total.div_ceil(THREADS),
            operands: vec![table],
        },
    )?;
    if n == 0 {
        return Ok(lowered);
    }
    // Scratch memory: keys and positions, twice; counts of digits by block.
    let blocks = n.div_ceil(TILE);
    let array = (n as u64 * 4).next_multiple_of(512);
    let counts = ((blocks << BITS) as u64 * 4).next_multiple_of(512);
    let place = |i: u64| LoweredArg::Scratch { bytes: i * array };
    let count_place = LoweredArg::Scratch { bytes: 4 * array };
    lowered.scratch = 4 * array + counts;
    let bytes = n as u64 * 4;
    let of_counts = (blocks << BITS) as u64 * 4;
    // A row for each key, and one after the table's last for indices out of range and those that get no
    // gradient.
    let from = memory(index.dtype);
    let body = format!(
        "    const i64 i = hw_block() * {THREADS} + hw_thread();
    if (i >= {n}ll) return;
    const i64 x = (i64)hw_ld((const {from}*)hw_a.p[0], i);
    hw_st((u32*)hw_a.p[1], i, x < 0 || x >= {rows}ll || x == {padding}ll ? {rows}u : (u32)x);
    hw_st((u32*)hw_a.p[2], i, (u32)i);
"
    );
    let operands = vec![
        ("index", LoweredArg::Read { operand: 1, bytes: 0 }, span(index), false),
        ("keys", place(0), bytes, true),
        ("positions", place(1), bytes, true),
    ];
    let doc = format!("keys of {n} indices");
    push(
        &mut lowered,
        op,
        Kernel { name: "keys", doc, body, shared: 0, blocks: n.div_ceil(THREADS), operands },
    )?;
    let digits = (usize::BITS - rows.leading_zeros()).div_ceil(BITS);
    let radix = 1usize << BITS;
    let mut side = 0;
    for digit in 0..digits {
        let shift = digit * BITS;
        // The counts of a thread's keys, digit by digit, then of all threads before it.
        let counting = format!(
            "    u32* const room = (u32*)hw_shared();
    const i64 first = hw_block() * {TILE} + hw_thread() * {KEYS};
    for (i32 d = 0; d < {radix}; d++) hw_st(room, d * {THREADS} + hw_thread(), 0u);
    for (i64 i = first; i < first + {KEYS} && i < {n}ll; i++) {{
        const i32 at = (i32)(hw_ld((const u32*)hw_a.p[0], i) >> {shift} & {mask}u) * {THREADS} + hw_thread();
        hw_st(room, at, hw_ld((const u32*)room, at) + 1u);
    }}
    hw_sync();
    // Sums over threads: one thread a digit.
    if (hw_thread() < {radix}) {{
        u32 sum = 0;
        for (i32 t = 0; t < {THREADS}; t++) {{
            const i32 at = hw_thread() * {THREADS} + t;
            const u32 own = hw_ld((const u32*)room, at);
            PLACE
            sum += own;
        }}
        COUNT
    }}
",
            mask = radix - 1
        );
        let (keys, positions) = (place(2 * side), place(2 * side + 1));
        let (to_keys, to_positions) = (place(2 - 2 * side), place(3 - 2 * side));
        let count = format!("hw_st((u32*)hw_a.p[1], hw_thread() * {blocks}ll + hw_block(), sum);");
        let body = counting.replace("            PLACE\n", "").replace("COUNT", &count);
        let operands = vec![("keys", keys, bytes, false), ("counts", count_place, of_counts, true)];
        let doc = format!("keys of each block by digit, bits {shift} to {}", shift + BITS);
        let shared = radix * THREADS * 4;
        push(&mut lowered, op, Kernel { name: "count", doc, body, shared, blocks, operands })?;
        // The first place of each digit of each block.
        let all = radix * blocks;
        let each = all.div_ceil(THREADS);
        let body = format!(
            "    u32* const room = (u32*)hw_shared();
    const i64 first = hw_thread() * {each}ll, last = first + {each} < {all}ll ? first + {each} : {all}ll;
    u32 sum = 0;
    for (i64 i = first; i < last; i++) sum += hw_ld((const u32*)hw_a.p[0], i);
    hw_st(room, hw_thread(), sum);
    hw_sync();
    u32 before = 0;
    for (i32 t = 0; t < hw_thread(); t++) before += hw_ld((const u32*)room, t);
    for (i64 i = first; i < last; i++) {{
        const u32 own = hw_ld((const u32*)hw_a.p[0], i);
        hw_st((u32*)hw_a.p[0], i, before);
        before += own;
    }}
"
        );
        let operands = vec![("counts", count_place, of_counts, true)];
        let doc = "places of digits".to_string();
        push(&mut lowered, op, Kernel { name: "scan", doc, body, shared: THREADS * 4, blocks: 1, operands })?;
        let body = counting.replace("        COUNT\n", "").replace("PLACE", "hw_st(room, at, sum);")
            + &format!(
                "    hw_sync();
    for (i64 i = first; i < first + {KEYS} && i < {n}ll; i++) {{
        const u32 key = hw_ld((const u32*)hw_a.p[0], i), d = key >> {shift} & {mask}u;
        const i32 at = (i32)d * {THREADS} + hw_thread();
        const u32 within = hw_ld((const u32*)room, at);
        hw_st(room, at, within + 1u);
        const i64 to = (i64)hw_ld((const u32*)hw_a.p[2], d * {blocks}ll + hw_block()) + within;
        hw_st((u32*)hw_a.p[3], to, key);
        hw_st((u32*)hw_a.p[4], to, hw_ld((const u32*)hw_a.p[1], i));
    }}
",
                mask = radix - 1
            );
        let operands = vec![
            ("keys", keys, bytes, false),
            ("positions", positions, bytes, false),
            ("counts", count_place, of_counts, false),
            ("sorted keys", to_keys, bytes, true),
            ("sorted positions", to_positions, bytes, true),
        ];
        let doc = format!("keys to their places by digit, bits {shift} to {}", shift + BITS);
        push(&mut lowered, op, Kernel { name: "place", doc, body, shared, blocks, operands })?;
        side = 1 - side;
    }
    // A warp for each position of the sorted keys that begins a run.
    let wide = out.dtype == DType::F64;
    let acc = if wide { "double" } else { "float" };
    let term =
        load(grad.dtype, &format!("hw_ld((const {}*)hw_a.p[2], at * {width} + c)", memory(grad.dtype)), wide);
    let rounded = store(out.dtype, "sum", wide);
    let body = format!(
        "    const i64 first = hw_block() * {warps} + hw_thread() / 32;
    if (first >= {n}ll) return;
    const u32 key = hw_ld((const u32*)hw_a.p[0], first);
    if (key >= {rows}u || (first > 0 && hw_ld((const u32*)hw_a.p[0], first - 1) == key)) return;
    for (i64 c = hw_thread() % 32; c < {width}; c += 32) {{
        {acc} sum = 0;
        for (i64 i = first; i < {n}ll && hw_ld((const u32*)hw_a.p[0], i) == key; i++) {{
            const i64 at = hw_ld((const u32*)hw_a.p[1], i);
            sum += {term};
        }}
        hw_st(({ty}*)hw_a.p[3], key * {width}ll + c, {rounded});
    }}
",
        warps = THREADS / 32
    );
    let operands = vec![
        ("sorted keys", place(2 * side), bytes, false),
        ("sorted positions", place(2 * side + 1), bytes, false),
        ("gradient", LoweredArg::Read { operand: 0, bytes: 0 }, span(grad), false),
        table,
    ];
    let doc = "the gradients of each row, in the order of positions".to_string();
    push(
        &mut lowered,
        op,
        Kernel { name: "sum", doc, body, shared: 0, blocks: n.div_ceil(THREADS / 32), operands },
    )?;
    Ok(lowered)
}
