//! Row programs of larger sizes than operators' cases have. They have several tiles, rows longer than a tile,
//! ranges of rows, transposed, strided and broadcast operands, and results that end within a block.

use crate::common::{Memory, Tally, WAYS, drawn, judge, lower, run};
use headwater_ascend::Chip;
use headwater_core::expr::{Binary, Expr, Unary, input};
use headwater_core::graph::{OriginId, Phase};
use headwater_core::plan::{Place, Plan, Segment, SegmentId, SegmentKind, Step, TensorView, Work};
use headwater_core::reference::memory as interpreter;
use headwater_core::row::{Access, Instr, Reduce, RowBuilder, RowProgram};
use headwater_core::{DType, Layout, Shape, Tensor};
use std::sync::Arc;

/// A plan of one step whose operands have these layouts, each in a segment of its own.
fn plan(p: &RowProgram, layouts: &[Layout]) -> Plan {
    let dtypes: Vec<DType> = p.reads.iter().chain(&p.writes).map(|o| o.dtype).collect();
    let reach = |l: &Layout| -> isize {
        l.offset + l.shape.iter().zip(&l.strides).map(|(&n, &s)| (n as isize - 1) * s).sum::<isize>() + 1
    };
    let segments = layouts.iter().zip(&dtypes).enumerate().map(|(i, (l, d))| Segment {
        name: format!("operand{i}"),
        bytes: reach(l) as usize * d.size(),
        kind: SegmentKind::State,
    });
    let views: Vec<TensorView> = (layouts.iter().zip(&dtypes).enumerate())
        .map(|(i, (layout, &dtype))| TensorView {
            place: Place { segment: SegmentId(i as u32), offset: 0 },
            dtype,
            layout: layout.clone(),
        })
        .collect();
    let (reads, writes) = views.split_at(p.reads.len());
    let step = Step {
        work: Work::Rows(Arc::new(p.clone())),
        reads: reads.iter().cloned().map(Some).collect(),
        writes: writes.to_vec(),
        workspace: None,
        op: "program",
        origin: OriginId(0),
        phase: Phase::Forward,
        flops: 0.0,
        stream: 0,
    };
    Plan {
        alignment: 512,
        segments: segments.collect(),
        steps: vec![step],
        waits: vec![],
        placements: Vec::new(),
        completions: vec![],
        halves: None,
        origins: Arc::new(vec![Default::default()]),
    }
}

/// Runs a program on both chips in every way, and judges it.
fn right(name: &str, p: &RowProgram, layouts: &[Layout]) {
    let plan = plan(p, layouts);
    let step = &plan.steps[0];
    for chip in ["910b1", "310p"] {
        let chip = Chip::from_name(chip).unwrap();
        let mut segments: Vec<Vec<u8>> = plan.segments.iter().map(|s| vec![0; s.bytes]).collect();
        let mut state = 3;
        let inputs: Vec<Tensor> = step.reads.iter().flatten().map(|v| drawn(v, &mut state)).collect();
        for (v, t) in step.reads.iter().flatten().zip(&inputs) {
            interpreter::store(v, t, &mut segments).unwrap();
        }
        let mut memory = Memory::new(&plan);
        memory.put(&segments);
        let mut tally = Tally::default();
        run(chip, &plan, &mut memory, &WAYS, &mut tally).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(tally.refused.is_empty(), "{name} on {chip}: {:?}", tally.refused);
        let now = memory.segments();
        let got: Vec<Tensor> = step.writes.iter().map(|v| interpreter::load(v, &now).unwrap()).collect();
        judge(p, step, &inputs, &got).unwrap_or_else(|e| panic!("{name} on {chip}: {e}\n{p}"));
    }
}

fn whole(shape: &[usize]) -> Layout {
    Layout::contiguous(&Shape::new(shape))
}

fn strided(shape: &[usize], strides: &[isize]) -> Layout {
    Layout { shape: Shape::new(shape), strides: strides.into(), offset: 0 }
}

const TYPES: [DType; 2] = [DType::F32, DType::F16];

fn along() -> Access {
    Access::dims(&[None, Some(0)])
}

fn layer_norm(dtype: DType, rows: usize, cols: usize) -> RowProgram {
    let mut b = RowBuilder::new(&[rows], &[cols]);
    let x = b.read(dtype, Access::identity(2));
    let (gamma, beta) = (b.read(dtype, along()), b.read(dtype, along()));
    let sum = b.sum(x);
    let mean = b.expr(&(input(0) * (1.0 / cols as f64)), &[sum]);
    let centred = b.expr(&(input(0) - input(1)), &[x, mean]);
    let square = b.expr(&(input(0) * input(0)), &[centred]);
    let sum = b.sum(square);
    let rstd = b.expr(&(input(0) * (1.0 / cols as f64) + 1e-5).rsqrt(), &[sum]);
    let y = b.expr(&(input(0) * input(1) * input(2) + input(3)), &[centred, rstd, gamma, beta]);
    b.store(dtype, Access::identity(2), y);
    b.store(DType::F32, Access::dims(&[Some(0), None]), mean);
    b.store(DType::F32, Access::dims(&[Some(0), None]), rstd);
    b.finish()
}

#[test]
fn layer_norms() {
    for dtype in TYPES {
        for [rows, cols] in [[300, 100], [257, 64], [9, 768], [3, 5000], [2, 30001], [9, 3000]] {
            let layouts = [[rows, cols], [0, cols], [0, cols], [rows, cols], [rows, 0], [rows, 0]].map(
                |[r, c]| match (r, c) {
                    (0, n) | (n, 0) => whole(&[n]),
                    _ => whole(&[r, c]),
                },
            );
            right("layer norm", &layer_norm(dtype, rows, cols), &layouts);
        }
    }
}

#[test]
fn softmax_of_long_and_short_rows() {
    for dtype in TYPES {
        for [rows, cols] in [[1000, 10], [40, 197], [2, 40000]] {
            let mut b = RowBuilder::new(&[rows], &[cols]);
            let x = b.read(dtype, Access::identity(2));
            let most = b.reduce(Reduce::Max, x);
            let e = b.expr(&(input(0) - input(1)).exp_nonpos(), &[x, most]);
            let sum = b.sum(e);
            let y = b.expr(&(input(0) / input(1)), &[e, sum]);
            b.store(dtype, Access::identity(2), y);
            right("softmax", &b.finish(), &[whole(&[rows, cols]), whole(&[rows, cols])]);
        }
    }
}

#[test]
fn gradients_of_norms_with_column_sums() {
    for dtype in TYPES {
        for [rows, cols] in [[300, 100], [70, 3000], [66, 7000]] {
            let mut b = RowBuilder::new(&[rows], &[cols]);
            let (g, x) = (b.read(dtype, Access::identity(2)), b.read(dtype, Access::identity(2)));
            let gamma = b.read(dtype, along());
            let rstd = b.read(DType::F32, Access::dims(&[Some(0), None]));
            let hat = b.expr(&(input(0) * input(1)), &[x, rstd]);
            let scaled = b.expr(&(input(0) * input(1)), &[g, gamma]);
            let product = b.expr(&(input(0) * input(1)), &[scaled, hat]);
            let dot = b.sum(product);
            let e = (input(0) - input(1) * input(2) * (1.0 / cols as f64)) * input(3);
            let dx = b.expr(&e, &[scaled, hat, dot, rstd]);
            b.store(dtype, Access::identity(2), dx);
            let dgamma = b.expr(&(input(0) * input(1)), &[g, hat]);
            b.columns(dtype, along(), dgamma);
            b.columns(DType::F32, along(), g);
            let m = || whole(&[rows, cols]);
            let v = || whole(&[cols]);
            right("norm gradient", &b.finish(), &[m(), m(), v(), whole(&[rows]), m(), v(), v()]);
        }
    }
}

#[test]
fn column_sums() {
    for dtype in TYPES {
        for [rows, cols] in [[3000, 33], [3, 10], [200, 5000], [1, 100]] {
            let mut b = RowBuilder::new(&[rows], &[cols]);
            let x = b.read(dtype, Access::identity(2));
            b.columns(dtype, along(), x);
            right("column sum", &b.finish(), &[whole(&[rows, cols]), whole(&[cols])]);
        }
    }
}

#[test]
fn partial_column_sums_are_added_in_one_launch_where_cores_meet() {
    for [rows, cols] in [[300, 112], [3000, 33], [200, 5000]] {
        let mut b = RowBuilder::new(&[rows], &[cols]);
        let x = b.read(DType::F16, Access::identity(2));
        b.columns(DType::F16, along(), x);
        let (p, m, v) = (b.finish(), whole(&[rows, cols]), whole(&[cols]));
        for (chip, to, launches) in [
            ("910b1", v.clone(), 1),
            ("310p", v.clone(), 2),
            // A row program adds those whose results have gaps.
            ("910b1", strided(&[cols], &[2]), 2),
        ] {
            let plan = plan(&p, &[m.clone(), to]);
            let lowered = lower(Chip::from_name(chip).unwrap(), &plan, &plan.steps[0]).unwrap().unwrap();
            assert_eq!(lowered.launches.len(), launches, "{rows} × {cols} on {chip}");
        }
    }
}

/// `x · y + z` over dimensions, `z` along the last, and a second result that is a truth value.
fn pointwise(dtype: DType, shape: &[usize]) -> RowProgram {
    let last = &shape[shape.len() - 1..];
    let e = input(0) * input(1) + input(2);
    let truth = Expr::Unary(Unary::Not, Box::new(e.clone().lt(input(0))));
    let inputs = [(dtype, shape), (dtype, shape), (dtype, last)];
    RowProgram::pointwise(&inputs, shape, &[dtype, DType::Bool], &[e, truth])
}

#[test]
fn operands_in_any_order_of_dimensions() {
    for dtype in TYPES {
        let transposed = |r: usize, c: usize| strided(&[r, c], &[1, r as isize]);
        for [r, c] in [[130, 300], [67, 45], [5, 1500], [1500, 5]] {
            let (a, n) = (whole(&[r, c]), whole(&[c]));
            let t = transposed(r, c);
            right(
                "one transposed",
                &pointwise(dtype, &[r, c]),
                &[a.clone(), t.clone(), n.clone(), a.clone(), a.clone()],
            );
            right("results transposed", &pointwise(dtype, &[r, c]), &[a.clone(), a.clone(), n, t, a]);
        }
        let (b, h, s, d) = (2, 3, 50, 16);
        let heads = strided(&[b, h, s, d], &[(h * s * d) as isize, d as isize, (h * d) as isize, 1]);
        let all = whole(&[b, h, s, d]);
        let layouts = [heads.clone(), all.clone(), whole(&[d]), heads, all];
        right("heads", &pointwise(dtype, &[b, h, s, d]), &layouts);
    }
}

#[test]
fn parts_of_larger_tensors() {
    for dtype in TYPES {
        for (c, pitch) in [(24, 40), (7, 12), (33, 70), (1, 3)] {
            let part = strided(&[90, c], &[pitch, 1]);
            let every = strided(&[90, c], &[pitch * 2, 2]);
            let layouts = [part.clone(), every.clone(), whole(&[c]), part, whole(&[90, c])];
            right("parts", &pointwise(dtype, &[90, c]), &layouts);
            let layouts = [whole(&[90, c]), whole(&[90, c]), whole(&[c]), every, whole(&[90, c])];
            right("every other", &pointwise(dtype, &[90, c]), &layouts);
        }
    }
}

/// Integers that leave 32 bits and are cut to their lower words, as in hashes: the same in every bit.
#[test]
fn integers_beyond_words_are_cut() {
    let n = 1000;
    let flat = || Access::dims(&[Some(0), None]);
    let mut b = RowBuilder::new(&[n], &[1]);
    let x = b.read(DType::I64, flat());
    let word = |b: &mut RowBuilder, op: Binary, x: usize, y: usize| {
        let raw = b.push(Instr::Binary(op, x, y));
        b.push(Instr::Cast(DType::I32, raw))
    };
    let low = b.push(Instr::Cast(DType::I32, x));
    let counter = b.push(Instr::Iota(vec![1, 0]));
    let golden = b.push(Instr::Int(-1_640_531_527));
    let hash = word(&mut b, Binary::Mul, counter, golden);
    let sum = word(&mut b, Binary::Add, hash, hash);
    let difference = word(&mut b, Binary::Sub, low, sum);
    let mixed = word(&mut b, Binary::Xor, difference, hash);
    let below = b.push(Instr::Binary(Binary::Lt, mixed, sum));
    b.store(DType::I32, flat(), mixed);
    b.store(DType::I64, flat(), difference);
    b.store(DType::Bool, flat(), below);
    let layouts = [whole(&[n]), whole(&[n]), whole(&[n]), whole(&[n])];
    right("integers", &b.finish(), &layouts);
}

#[test]
fn flat_tensors_of_any_length() {
    for dtype in TYPES {
        for n in [1, 7, 8, 31, 100, 4097, 70001] {
            let e = (input(0) + input(1)).exp();
            let p = RowProgram::pointwise(&[(dtype, &[n]), (dtype, &[])], &[n], &[dtype], &[e]);
            right("flat", &p, &[whole(&[n]), whole(&[]), whole(&[n])]);
        }
    }
}

#[test]
fn a_number_for_each_row_longer_than_strides_reach() {
    for dtype in TYPES {
        for (outer, cols) in [(vec![3], 4096), (vec![2, 48], 2048), (vec![5], 3000)] {
            let (rank, shape) = (outer.len() + 1, [&outer[..], &[cols]].concat());
            let mut b = RowBuilder::new(&outer, &[cols]);
            let x = b.read(dtype, Access::identity(rank));
            let own = (0..rank).map(|d| (d == rank - 2).then_some(0)).collect::<Vec<_>>();
            let bias = b.read(dtype, Access::dims(&own));
            let y = b.expr(&(input(0) + input(1)), &[x, bias]);
            b.store(dtype, Access::identity(rank), y);
            let layouts = [whole(&shape), whole(&outer[rank - 2..]), whole(&shape)];
            right(&format!("{shape:?} in {dtype}"), &b.finish(), &layouts);
        }
    }
}
