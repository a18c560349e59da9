//! The evaluator against the core's reference, on random programs over random layouts. Numbers are small
//! integers and the operations keep them so: every result is exact, whatever the order of summation, and must
//! agree to the bit.

use super::*;
use crate::memory::CpuMemory;
use crate::pool::{Pool, Shared};
use headwater_core::expr::{Binary, Unary};
use headwater_core::plan::{Place, Segment, SegmentId, SegmentKind, TensorView};
use headwater_core::reference;
use headwater_core::reference::memory::{Segments, load, store};
use headwater_core::row::{Access, Instr, Operand, Reduce, RowProgram};
use headwater_core::{Class, DType, Layout, Shape, Tensor, TensorType};
use proptest::prelude::*;
use std::sync::Arc;

/// A random source with only what the tests need.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// An operand's tensor and its place: segments hold one buffer each, operands may share one.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    segment: usize,
    layout: Layout,
    pub(super) ty: TensorType,
}

#[derive(Debug)]
pub(super) struct Example {
    program: RowProgram,
    pub(super) reads: Vec<(Slot, Tensor)>,
    writes: Vec<Slot>,
    bytes: Vec<usize>,
}

/// A layout of a shape: dimensions in any order in memory, with gaps, some running backwards.
fn layout(rng: &mut Rng, shape: &[usize], plain: bool) -> (Layout, usize) {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if !plain {
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i + 1));
        }
    }
    let (mut strides, mut offset, mut step) = (vec![0isize; shape.len()], 0isize, 1isize);
    for &d in order.iter().rev() {
        if !plain && rng.chance(10) {
            step += rng.below(3) as isize;
        }
        let n = shape[d].max(1) as isize;
        strides[d] = step;
        if !plain && rng.chance(15) {
            offset += step * (n - 1);
            strides[d] = -step;
        }
        step *= n;
    }
    (Layout { shape: shape.into(), strides: strides.into(), offset }, step as usize)
}

fn example(rng: &mut Rng, outer: Vec<usize>, inner: Vec<usize>, dtypes: &[DType]) -> Example {
    let dims: Vec<usize> = outer.iter().chain(&inner).copied().collect();
    let mut ex = Example {
        program: RowProgram { outer: outer.clone(), inner: inner.clone(), ..Default::default() },
        reads: vec![],
        writes: vec![],
        bytes: vec![],
    };
    let plain = rng.chance(30);
    // Operand dimensions are some of the iteration dimensions, in any order.
    let operand = |rng: &mut Rng, keep: &dyn Fn(&mut Rng, usize) -> bool| {
        let mut used: Vec<usize> = (0..dims.len()).filter(|&d| keep(rng, d)).collect();
        if !plain && used.len() > 1 && rng.chance(30) {
            let (a, b) = (rng.below(used.len()), rng.below(used.len()));
            used.swap(a, b);
        }
        let access = (0..dims.len()).map(|d| used.iter().position(|&u| u == d).map(|i| (i, 1))).collect();
        (Access(access), used.iter().map(|&d| dims[d]).collect::<Vec<usize>>())
    };
    for _ in 0..1 + rng.below(3) {
        let dtype = rng.pick(dtypes);
        let whole = rng.chance(50);
        let (access, shape) = operand(rng, &|rng, _| whole || rng.chance(70));
        let (mut l, size) = layout(rng, &shape, plain);
        if rng.chance(10) && !shape.is_empty() {
            let d = rng.below(shape.len());
            l.offset = l.offset.min(l.offset + l.strides[d] * (shape[d].max(1) as isize - 1)).max(0);
            l.strides[d] = 0;
            // The other dimensions alone decide the offset.
            l.offset = l
                .strides
                .iter()
                .zip(&shape)
                .map(|(&s, &n)| if s < 0 { -s * (n.max(1) as isize - 1) } else { 0 })
                .sum();
        }
        let ty = TensorType::new(dtype, Shape::new(&shape));
        let n = ty.shape.numel();
        // Equal elements of a broadcast layout hold equal numbers.
        let at: Vec<isize> = l.offsets();
        let number = |o: isize| ((o * 7 + 3) % 11 - 5) as f64;
        let tensor = match dtype.class() {
            Class::Float => Tensor::float(dtype, ty.shape.clone(), at.iter().map(|&o| number(o)).collect()),
            Class::Int => {
                Tensor::int(dtype, ty.shape.clone(), at.iter().map(|&o| number(o) as i64).collect())
            }
            Class::Bool => {
                Tensor::int(dtype, ty.shape.clone(), at.iter().map(|&o| (number(o) > 0.0) as i64).collect())
            }
        };
        assert_eq!(at.len(), n);
        ex.program.reads.push(Operand { dtype, access });
        ex.reads.push((Slot { segment: ex.bytes.len(), layout: l, ty }, tensor));
        ex.bytes.push(size * dtype.size());
    }
    body(rng, &mut ex, &operand, plain, outer.len());
    ex
}

type MakeOperand<'a> = dyn Fn(&mut Rng, &dyn Fn(&mut Rng, usize) -> bool) -> (Access, Vec<usize>) + 'a;

/// Random instructions, and a result for some of the registers.
fn body(rng: &mut Rng, ex: &mut Example, operand: &MakeOperand, plain: bool, outer: usize) {
    let dims = ex.program.outer.len() + ex.program.inner.len();
    let push = |ex: &mut Example, i: Instr| ex.program.body.push(i);
    for i in 0..ex.reads.len() {
        push(ex, Instr::Load(i));
    }
    push(ex, Instr::Iota((0..dims).map(|_| rng.below(3) as i64 - 1).collect()));
    push(ex, Instr::Float(2.0));
    push(ex, Instr::Int(-3));
    for _ in 0..2 + rng.below(6) {
        let classes = ex.program.classes().unwrap();
        let a = rng.below(classes.len());
        let class = classes[a].unwrap();
        let same: Vec<usize> = (0..classes.len()).filter(|&i| classes[i] == Some(class)).collect();
        let b = rng.pick(&same);
        let bools: Vec<usize> = (0..classes.len()).filter(|&i| classes[i] == Some(Class::Bool)).collect();
        let instr = match (rng.below(8), class) {
            (0, Class::Bool) => Instr::Unary(Unary::Not, a),
            (0, _) => Instr::Unary(rng.pick(&[Unary::Neg, Unary::Abs, Unary::Sign]), a),
            (1, Class::Bool) => Instr::Binary(rng.pick(&[Binary::And, Binary::Or, Binary::Xor]), a, b),
            (1 | 2, Class::Float | Class::Int) => {
                Instr::Binary(rng.pick(&[Binary::Add, Binary::Sub, Binary::Max, Binary::Min]), a, b)
            }
            (3, _) => Instr::Binary(rng.pick(&[Binary::Lt, Binary::Ge, Binary::Eq]), a, b),
            (4, Class::Float | Class::Int) => {
                Instr::Reduce(rng.pick(&[Reduce::Sum, Reduce::Max, Reduce::Min]), a)
            }
            (5, _) if !bools.is_empty() => Instr::Select(rng.pick(&bools), a, b),
            (6, _) => {
                Instr::Cast(rng.pick(&[DType::F32, DType::I64, DType::I16, DType::Bool, DType::F16]), a)
            }
            _ => Instr::Binary(Binary::Eq, a, b),
        };
        push(ex, instr);
    }
    let classes = ex.program.classes().unwrap();
    let scalars = ex.program.scalars();
    for _ in 0..1 + rng.below(3) {
        let r = classes.len() - 1 - rng.below(classes.len().min(5));
        let class = classes[r].unwrap();
        let dtype = match class {
            Class::Float => rng.pick(&[DType::F32, DType::F32, DType::BF16, DType::F16]),
            Class::Int => rng.pick(&[DType::I64, DType::I32, DType::U8]),
            Class::Bool => DType::Bool,
        };
        let columns = class != Class::Bool && rng.chance(25);
        let narrow = scalars[r] && rng.chance(70);
        // In place: over an input that is walked like the result, element by element.
        let dims_all = dims;
        let target = ex.program.reads.iter().position(|o| {
            let whole = o.access.0.iter().all(|a| a.is_some()) && o.access.0.len() == dims_all;
            whole && o.dtype == dtype
        });
        if let (Some(t), false, false) = (target, columns, narrow)
            && rng.chance(40)
            && ex.writes.iter().all(|w| w.segment != t)
            && ex.reads[t].0.layout.strides.iter().all(|&s| s != 0)
        {
            let o = ex.program.reads[t].clone();
            ex.program.writes.push(o);
            ex.writes.push(ex.reads[t].0.clone());
        } else {
            let keep = |_: &mut Rng, d: usize| if columns { d >= outer } else { !narrow || d < outer };
            let (access, shape) = operand(rng, &keep);
            let (l, size) = layout(rng, &shape, plain);
            ex.program.writes.push(Operand { dtype, access });
            ex.writes.push(Slot {
                segment: ex.bytes.len(),
                layout: l,
                ty: TensorType::new(dtype, Shape::new(&shape)),
            });
            ex.bytes.push(size * dtype.size());
        }
        let w = ex.program.writes.len() - 1;
        push(ex, if columns { Instr::Columns(w, r) } else { Instr::Store(w, r) });
    }
}

/// Runs an example and returns its results.
pub(super) fn run(ex: &Example, threads: usize, tier: Tier) -> Vec<Tensor> {
    let kind = SegmentKind::Arena;
    let segments = ex.bytes.iter().map(|&bytes| Segment { name: "t".into(), bytes, kind }).collect();
    let plan = Plan {
        alignment: ALIGN,
        segments,
        steps: vec![],
        waits: vec![],
        placements: vec![],
        completions: vec![],
        halves: None,
        origins: Arc::new(vec![]),
    };
    let view = |s: &Slot| TensorView {
        place: Place { segment: SegmentId(s.segment as u32), offset: 0 },
        dtype: s.ty.dtype,
        layout: s.layout.clone(),
    };
    let mut memory = Blocks(ex.bytes.iter().map(|&b| CpuMemory::new(b).unwrap()).collect());
    // Contents that a run leaves are undefined: fill it with something telling.
    memory.0.iter_mut().for_each(|m| m.as_mut_slice().fill(0xA5));
    let reads: Vec<View> = ex.reads.iter().map(|(s, _)| View::checked(&plan, &view(s)).unwrap()).collect();
    for (slot, tensor) in &ex.reads {
        store(&view(slot), tensor, &mut memory).unwrap();
    }
    let bases: Vec<Shared<u8>> = memory.0.iter_mut().map(|m| Shared(m.base())).collect();
    let writes: Vec<ViewMut> =
        ex.writes.iter().map(|s| View::checked_mut(&plan, &view(s)).unwrap()).collect();
    let program = Program::new(&plan, &ex.program, &reads.iter().collect::<Vec<_>>(), &writes, tier);
    let program = program.unwrap_or_else(|e| panic!("{e}\n{}", ex.program));
    let mut scratch = Scratch::new(program.scratch(), threads).unwrap();
    scratch.reserve(&program);
    // SAFETY: the memory is that of the plan, and the scratch memory that of the program.
    unsafe { program.run(&bases, &Pool::new(threads), &mut scratch) };
    ex.writes.iter().map(|s| load(&view(s), &memory).unwrap()).collect()
}

/// The segments of an example.
struct Blocks(Vec<CpuMemory>);

impl Segments for Blocks {
    fn bytes(&self, segment: SegmentId) -> Option<&[u8]> {
        self.0.get(segment.0 as usize).map(CpuMemory::as_slice)
    }

    fn bytes_mut(&mut self, segment: SegmentId) -> Option<&mut [u8]> {
        self.0.get_mut(segment.0 as usize).map(CpuMemory::as_mut_slice)
    }
}

/// An element, as text: floats to all digits.
fn element(t: &Tensor, at: usize) -> String {
    if t.dtype().is_float() { format!("{:?}", t.floats()[at]) } else { t.ints()[at].to_string() }
}

fn check(ex: &Example) {
    let tensors: Vec<&Tensor> = ex.reads.iter().map(|(_, t)| t).collect();
    let types: Vec<TensorType> = ex.writes.iter().map(|s| s.ty.clone()).collect();
    let want = reference::rows::run(&ex.program, &tensors, &types).unwrap();
    for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
        for threads in [1, 2, 7] {
            let got = run(ex, threads, tier);
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                if g != w {
                    // Large results are not for reading: where they differ first is.
                    let numbers = |at: usize| (at, element(g, at), element(w, at));
                    let first = (0..w.shape().numel()).map(numbers).find(|(_, g, w)| g != w);
                    let (tier, program) = (tier.name(), &ex.program);
                    panic!("result {i} differs at {first:?}, {threads} threads, {tier}, of {program}");
                }
            }
        }
    }
}

const DTYPES: [DType; 7] =
    [DType::F32, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I8, DType::Bool];

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_programs_agree_with_the_reference(seed: u64) {
        let mut rng = Rng(seed);
        let mut sizes = |n: usize| (0..rng.below(n)).map(|_| rng.pick(&[1, 2, 3, 3, 5, 8, 19])).collect::<Vec<_>>();
        let (outer, inner) = (sizes(4), sizes(3));
        let double = [DType::F64, DType::F32, DType::I32];
        let dtypes: &[DType] = if rng.chance(20) { &double } else { &DTYPES };
        check(&example(&mut rng, outer, inner, dtypes));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 25, failure_persistence: None, ..ProptestConfig::default() })]

    /// Long rows, many rows, rows next to each other: several tiles, blocks, phases.
    #[test]
    fn large_programs_agree_with_the_reference(seed: u64) {
        let mut rng = Rng(seed);
        let (outer, inner) = match rng.below(6) {
            0 => (vec![2], vec![30_000]),
            1 => (vec![], vec![150_000]),
            2 => (vec![700], vec![3, 40]),
            3 => (vec![5, 300], vec![50]),
            4 => (vec![1000], vec![70]),
            _ => (vec![3], vec![40, 1000]),
        };
        check(&example(&mut rng, outer, inner, &DTYPES));
    }
}

/// A program over contiguous operands of the given shapes, each in its own segment.
pub(super) fn plain(program: RowProgram, reads: &[&[usize]], writes: &[&[usize]]) -> Example {
    let mut ex = Example { program, reads: vec![], writes: vec![], bytes: vec![] };
    let slot = |dtype: DType, shape: &[usize], bytes: &mut Vec<usize>| {
        let ty = TensorType::new(dtype, Shape::new(shape));
        bytes.push(ty.bytes());
        Slot { segment: bytes.len() - 1, layout: Layout::contiguous(&ty.shape), ty }
    };
    for (o, shape) in ex.program.reads.iter().zip(reads) {
        let slot = slot(o.dtype, shape, &mut ex.bytes);
        let number = |i: usize| ((i * 7919) % 1009) as f64 / 1009.0 - 0.3;
        let data: Vec<f64> = (0..slot.ty.shape.numel()).map(number).collect();
        let tensor = match o.dtype {
            DType::Bool => {
                Tensor::int(o.dtype, slot.ty.shape.clone(), data.iter().map(|x| (*x > 0.0) as i64).collect())
            }
            d if d.is_float() => Tensor::float(d, slot.ty.shape.clone(), data),
            d => Tensor::int(d, slot.ty.shape.clone(), data.iter().map(|x| (*x * 1e3) as i64).collect()),
        };
        ex.reads.push((slot, tensor));
    }
    for (o, shape) in ex.program.writes.iter().zip(writes) {
        ex.writes.push(slot(o.dtype, shape, &mut ex.bytes));
    }
    ex
}

fn compile_plain(ex: &Example) -> Result<Program> {
    compile(ex, Tier::Portable)
}

pub(super) fn compile(ex: &Example, tier: Tier) -> Result<Program> {
    let kind = SegmentKind::Arena;
    let segments = ex.bytes.iter().map(|&bytes| Segment { name: "t".into(), bytes, kind }).collect();
    let plan = Plan {
        alignment: ALIGN,
        segments,
        steps: vec![],
        waits: vec![],
        placements: vec![],
        completions: vec![],
        halves: None,
        origins: Arc::new(vec![]),
    };
    let view = |s: &Slot| TensorView {
        place: Place { segment: SegmentId(s.segment as u32), offset: 0 },
        dtype: s.ty.dtype,
        layout: s.layout.clone(),
    };
    let reads = ex.reads.iter().map(|(s, _)| View::checked(&plan, &view(s))).collect::<Result<Vec<_>>>()?;
    let writes = ex.writes.iter().map(|s| View::checked_mut(&plan, &view(s))).collect::<Result<Vec<_>>>()?;
    Program::new(&plan, &ex.program, &reads.iter().collect::<Vec<_>>(), &writes, tier)
}

/// `exp(x − max) / Σ` over the last of two dimensions, or over the first.
fn softmax(rows: usize, cols: usize, first: bool) -> Example {
    use headwater_core::expr::input;
    use headwater_core::row::{ReduceSpace, RowBuilder};
    let shape: &[usize] = if first { &[cols, rows] } else { &[rows, cols] };
    let space = ReduceSpace::new(shape, &[!first as usize]);
    let mut b: RowBuilder = space.builder();
    let x = b.read(DType::F32, space.full.clone());
    let max = b.reduce(Reduce::Max, x);
    let e = b.expr(&(input(0) - input(1)).exp(), &[x, max]);
    let sum = b.sum(e);
    let y = b.expr(&(input(0) / input(1)), &[e, sum]);
    b.store(DType::F32, space.full.clone(), y);
    plain(b.finish(), &[shape], &[shape])
}

#[test]
fn the_tiling_follows_sizes_and_layouts() {
    let tiling = |ex: &Example| compile_plain(ex).unwrap();
    // Many short rows share a tile; rows that fit are kept; long ones are recomputed in each phase.
    let short = tiling(&softmax(1000, 20, false));
    assert!(short.tiling.tile_rows > 10 && short.tiling.tile_cols == 20 && short.code.vector.len() == 3);
    let loads =
        |p: &Program, phase: usize| p.code.vector[phase].iter().any(|op| matches!(op, Op::Load { .. }));
    let kept = tiling(&softmax(64, 5000, false));
    assert!(kept.tiling.tile_cols < 5000 && !loads(&kept, 2));
    let long = tiling(&softmax(64, 100_000, false));
    assert!(long.tiling.tile_cols < 5000 && !long.tiling.split && loads(&long, 2));
    // Few long rows are divided between threads; contiguous rows are merged.
    assert!(tiling(&softmax(2, 200_000, false)).tiling.split);
    assert!(tiling(&softmax(1000, 20, true)).tiling.across);
}

#[test]
fn softmax_is_accurate_however_it_is_cut() {
    for (rows, cols, first) in
        [(300, 20, false), (3, 5000, false), (20, 30_000, false), (2, 140_000, false), (500, 40, true)]
    {
        let ex = softmax(rows, cols, first);
        let want = reference::rows::run(&ex.program, &[&ex.reads[0].1], &[ex.writes[0].ty.clone()]).unwrap();
        let got = run(&ex, 2, Tier::detect());
        for (g, w) in got[0].floats().iter().zip(want[0].floats()) {
            // Two roundings and 2 ulp of exp in the terms, the sum's bound of 134 roundings at most, one
            // division.
            let bound = (134.0 + 6.0) * f64::exp2(-24.0) * w;
            assert!((g - w).abs() <= bound, "{rows}×{cols}: {g}, not {w}");
        }
    }
}

#[test]
fn programs_that_would_go_astray_are_refused() {
    let refused = |change: &dyn Fn(&mut Example)| {
        let mut ex = softmax(4, 6, false);
        assert!(compile_plain(&ex).is_ok());
        change(&mut ex);
        compile_plain(&ex).unwrap_err().code == headwater_core::Code::Plan
    };
    // Beyond the segment, by size, stride, offset or the program's own sizes.
    assert!(refused(&|ex| ex.bytes[0] -= 1));
    assert!(refused(&|ex| ex.reads[0].0.layout.strides[0] = 7));
    assert!(refused(&|ex| ex.reads[0].0.layout.strides[0] = -1));
    assert!(refused(&|ex| ex.writes[0].layout.offset = 1));
    assert!(refused(&|ex| ex.program.outer[0] = 5));
    assert!(refused(&|ex| ex.writes[0].layout.strides[0] = isize::MAX));
    // Programs of another type, dimension, or number of operands.
    assert!(refused(&|ex| ex.program.reads[0].dtype = DType::F64));
    assert!(refused(&|ex| ex.program.reads[0].access.0[0] = Some((2, 1))));
    assert!(refused(&|ex| _ = ex.reads.pop()));
    // Results on top of each other, or over another part of what is read.
    assert!(refused(&|ex| ex.writes[0].layout.strides[0] = 5));
    assert!(refused(&|ex| {
        ex.bytes[1] += 24;
        ex.reads[0].0.segment = 1;
        ex.reads[0].0.layout.offset = 6;
    }));
}

#[test]
fn what_is_overwritten_has_been_read() {
    // Two results over two operands: the second, which is rounded, is of what the first one goes over.
    let shape: &[usize] = &[3000];
    let mut b = headwater_core::row::RowBuilder::new(&[], shape);
    let [x, y] = [DType::F32; 2].map(|d| b.read(d, Access::identity(1)));
    b.operand(DType::BF16, Access::identity(1));
    b.store(DType::F32, Access::identity(1), y);
    b.store(DType::BF16, Access::identity(1), x);
    let mut ex = plain(b.finish(), &[shape; 3], &[shape; 2]);
    for (write, read) in [(0, 0), (1, 2)] {
        ex.writes[write].segment = ex.reads[read].0.segment;
    }
    for (i, (slot, tensor)) in ex.reads.iter_mut().enumerate() {
        let number = |at: usize| slot.ty.dtype.round((at * 7 + i) as f64 / 512.0);
        *tensor = Tensor::float(slot.ty.dtype, slot.ty.shape.clone(), (0..3000).map(number).collect());
    }
    check(&ex);
}

#[test]
fn a_row_is_read_before_its_number_is_stored() {
    use headwater_core::expr::input;
    use headwater_core::row::ReduceSpace;
    // A transposed operand needs blocks of some columns; a row value that overwrites its operand, one.
    let shape: &[usize] = &[600, 700];
    let space = ReduceSpace::new(shape, &[1]);
    let mut b = space.builder();
    let a = b.read(DType::F32, space.full.clone());
    let turned = space.full.0.iter().map(|s| s.map(|(d, t)| (1 - d, t))).collect();
    let x = b.read(DType::F32, Access(turned));
    let s = b.read(DType::F32, space.dropped.clone());
    let t = b.expr(&(input(0) + 1.0), &[s]);
    let y = b.expr(&((input(0) + input(1)) * input(2)), &[a, x, t]);
    b.store(DType::F32, space.full.clone(), y);
    b.store(DType::F32, space.dropped.clone(), t);
    let mut ex = plain(b.finish(), &[shape, &[700, 600], &[600]], &[shape, &[600]]);
    ex.writes[1].segment = ex.reads[2].0.segment;
    for (slot, tensor) in &mut ex.reads {
        let numbers = (0..slot.ty.shape.numel()).map(|i| (i * 7 % 31) as f64).collect();
        *tensor = Tensor::float(DType::F32, slot.ty.shape.clone(), numbers);
    }
    check(&ex);
}

#[test]
fn large_results_past_the_caches_are_the_same() {
    use headwater_core::expr::input;
    use headwater_core::row::ReduceSpace;
    // Rows of odd length start at any address.
    let shape: &[usize] = &[1401, 2001];
    let space = ReduceSpace::new(shape, &[1]);
    let mut b = space.builder();
    let x = b.read(DType::F32, space.full.clone());
    let max = b.reduce(Reduce::Max, x);
    let y = b.expr(&(input(0) - input(1)), &[x, max]);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        b.store(dtype, space.full.clone(), y);
    }
    let ex = plain(b.finish(), &[shape], &[shape; 3]);
    assert!(compile_plain(&ex).unwrap().stream);
    let types: Vec<TensorType> = ex.writes.iter().map(|s| s.ty.clone()).collect();
    let want = reference::rows::run(&ex.program, &[&ex.reads[0].1], &types).unwrap();
    // The f32 difference of two f32 is rounded once, then to the narrower dtypes.
    for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
        let got = run(&ex, 2, tier);
        assert_eq!(got[0].floats().len(), want[0].floats().len());
        for (g, w) in got.iter().zip(&want) {
            let twice: Vec<f64> = want[0].floats().iter().map(|&x| g.dtype().round(x)).collect();
            assert_eq!(g.floats(), twice, "{} in {}", w.ty, tier.name());
        }
    }
}

#[test]
fn one_column_of_a_row_is_picked_and_changed() {
    use headwater_core::expr::{Expr, float, input};
    use headwater_core::row::ReduceSpace;
    for shape in [[7, 5], [3, 200], [2, 5000]] {
        let space = ReduceSpace::new(&shape, &[1]);
        let mut b = space.builder();
        let x = b.read(DType::F32, space.full.clone());
        let at = b.read(DType::F32, space.dropped.clone());
        let at = b.expr(&(input(0) * shape[1] as f64 * 1.5).cast(DType::I64), &[at]);
        let here = b.expr(&Expr::Coord(1).eq(input(0)), &[at]);
        let own = b.expr(&input(0).select(input(1), float(0.0)), &[here, x]);
        let own = b.sum(own);
        let less = b.expr(&input(0).select(input(1) - 1.0, input(1)), &[here, x]);
        let kept = b.expr(&input(0).lt(Expr::Int(shape[1] as i64 / 2)), &[at]);
        let y = b.expr(&input(0).select(input(1), float(0.0)), &[kept, less]);
        b.store(DType::F32, space.full.clone(), y);
        b.store(DType::F32, space.dropped.clone(), own);
        let ex = plain(b.finish(), &[&shape, &shape[..1]], &[&shape, &shape[..1]]);
        let code = compile_plain(&ex).unwrap().code;
        let has = |f: fn(&Op) -> bool| code.vector.iter().flatten().any(f);
        assert!(has(|op| matches!(op, Op::Lookup { .. })) && has(|op| matches!(op, Op::Patch { .. })));
        // Rows are picked from within, and from beyond their ends: the numbers begin at -0.3.
        let types: Vec<TensorType> = ex.writes.iter().map(|s| s.ty.clone()).collect();
        let reads: Vec<&Tensor> = ex.reads.iter().map(|(_, t)| t).collect();
        let want = reference::rows::run(&ex.program, &reads, &types).unwrap();
        for tier in Tier::ALL.into_iter().filter(|&t| t <= Tier::detect()) {
            for (g, w) in run(&ex, 2, tier).iter().zip(&want) {
                let rounded: Vec<f64> = w.floats().iter().map(|&x| x as f32 as f64).collect();
                assert_eq!(g.floats(), rounded, "{shape:?} in {}", tier.name());
            }
        }
    }
}
