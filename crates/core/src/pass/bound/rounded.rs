//! A graph in f64 that rounds where another rounds, by a random function in place of round to nearest.
//!
//! A rounding function takes every number to one of its two neighbours on the grid of a dtype, as round to
//! nearest does. A random one takes a number that is at a share `f` of the way to the upper neighbour there
//! with the chance `2f - 1/2`, if that is one: below a quarter it goes to the lower neighbour and above three
//! quarters to the upper one, as round to nearest takes it. Over all `f` the variance is 1/12 of the squared
//! spacing, the mean squared error of round to nearest; stochastic rounding, with the chance `f`, has twice
//! that. What has no rounding error stays exact: numbers on the grid, and so 1 - 1, products by powers of
//! two, selections, masks of 0 and 1. One function serves a whole run, since round to nearest is one function
//! as well: equal numbers are rounded alike wherever they occur, `-x` as `x`, and `2x` as `x`. Several runs,
//! each with another function, show what roundings make of a result (Parker, "Monte Carlo arithmetic", UCLA
//! 1997; Croci et al., "Stochastic rounding: implementation, error analysis and applications", R. Soc. Open
//! Sci. 9, 2022).

use super::writer::{Grid, VIRTUAL_BITS, Writer, unit};
use super::{Rounding, accumulator, moves, reference_error};
use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::dtype::{Class, DType};
use crate::expr::{Binary, Unary};
use crate::graph::{Builder, Graph, InputRole, Node, ValueId};
use crate::ops::attention::attention::{ATTENTION, ATTENTION_BACKWARD};
use crate::ops::control::fused::{FUSED, encode_types};
use crate::pass::rebuild::rebuild;
use crate::pass::upcast::attributes;
use crate::row::{Instr, Reduce, Reg, RowProgram};
use crate::target::Target;
use crate::tensor::TensorType;
use std::sync::Arc;

/// Names of the two inputs of [`rounded`] graphs, numbers of role `State`: which function rounds, a number in
/// (0, 1), and the width of its randomness, 1 for a random function and 0 for round to nearest.
pub const ROUNDING: [&str; 2] = ["rounding.function", "rounding.width"];

/// The number of the `n`-th rounding function: none is a small multiple of another, which would make them
/// alike.
pub fn function(n: usize) -> f64 {
    (mixed(n as u64) >> 11) as f64 / f64::exp2(53.0)
}

/// The `n`-th number of SplitMix64 with the seed 0 (Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators", OOPSLA 2014).
pub(super) fn mixed(n: u64) -> u64 {
    let mut h = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    h = (h ^ (h >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    h ^ (h >> 31)
}

/// Roundings of a graph of f64 are so many times as large in its [`rounded`] form.
pub fn magnification() -> f64 {
    f64::exp2(f64::from(53 - VIRTUAL_BITS))
}

/// The graph with every float in f64, rounded to the grid of its own dtype where the graph rounds. Results of
/// operators are rounded to their dtypes; instructions of row programs to the type in which the target
/// computes them. Long sums are not split: their terms and results are off by a random share of the standard
/// deviation that rounding each addition has, except for integers, whose sums are exact. f64 is a type of 40
/// bits here ([`magnification`]).
///
/// Inputs are to be on the grids of their own dtypes. What an output is off by is a sample of its error.
///
/// # Errors
/// Refusals of type rules for f64.
pub fn rounded(graph: &Graph, target: &Target) -> Result<Graph> {
    let mut by = None;
    let f64s = |_: &crate::graph::Input, ty: &TensorType| widened(ty);
    rebuild(graph, f64s, |b, node, operands| {
        let scalar = || TensorType::new(DType::F64, [0usize; 0]);
        let by = *by.get_or_insert_with(|| ROUNDING.map(|name| b.input(name, scalar(), InputRole::State)));
        if let Some(results) = program(graph, node, target, b, operands, by)? {
            return Ok(results);
        }
        let moved = moves(node) || selects(graph, node);
        let own = node.outputs.iter().map(|&v| {
            let own = Rounding::of(graph, node, target, graph.ty(v));
            let scale = if graph.ty(v).dtype == DType::F64 { magnification() } else { 1.0 };
            (own.sum.hypot(own.terms) * scale, own.truth * scale)
        });
        let own: Vec<(f64, f64)> = own.collect();
        let floats = node.outputs.iter().any(|&v| graph.ty(v).dtype.is_float());
        let sums = own.iter().fold(0.0f64, |most, own| most.max(own.0)) * f64::from(u8::from(floats));
        let mut operands = operands.to_vec();
        let (terms, count) = match products(graph, node, target) {
            Some(of_attention) => of_attention,
            None => (sums, operands.len()),
        };
        for v in operands.iter_mut().take(count).flatten().filter(|_| !moved && terms > 0.0) {
            *v = pointwise(b, *v, by, None, terms)?;
        }
        let mut results = b.apply(node.op, &operands, attributes(node, DType::F64)?)?;
        for (i, ((v, &old), (sums, truth))) in results.iter_mut().zip(&node.outputs).zip(own).enumerate() {
            // The statistic of a row that its scores are compared with: the gradient makes the same scores
            // again.
            if node.op == &ATTENTION && i == 1 {
                continue;
            }
            let dtype = graph.ty(old).dtype;
            if dtype.is_float() && b.ty(*v).dtype != DType::F64 {
                *v = b.cast(*v, DType::F64)?;
            }
            let changes = node.operands().any(|v| graph.ty(v).dtype != dtype);
            if !moved || changes {
                let deviation = if moved { 0.0 } else { sums.hypot(truth) };
                *v = pointwise(b, *v, by, Some(Grid::of(dtype, target)), deviation)?;
            }
        }
        Ok(results)
    })
}

fn widened(ty: &TensorType) -> TensorType {
    let dtype = if ty.dtype.is_float() { DType::F64 } else { ty.dtype };
    TensorType { dtype, shape: ty.shape.clone() }
}

/// True for kernels that compare and choose, or move, and compute nothing.
fn selects(graph: &Graph, node: &Node) -> bool {
    const CHOOSE: [&str; 16] = [
        "sort",
        "argsort",
        "msort",
        "topk",
        "kthvalue",
        "median",
        "median_dim",
        "nanmedian",
        "nanmedian_dim",
        "mode",
        "cummax",
        "cummin",
        "adaptive_max_pool2d",
        "max_pool1d_with_indices",
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
    ];
    let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let free = node.op.cost_of(&graph.cx(node), &types).0 == 0.0;
    // Puts elements in the place of others, or keeps the largest.
    let puts = match node.op.name {
        "scatter" => match node.attrs.get("reduce") {
            Some(Attr::Str(how)) => how == "amax" || how == "amin",
            reduce => reduce.is_none(),
        },
        "_index_put_impl" => node.attrs.get("accumulate") == Some(&Attr::Bool(false)),
        _ => false,
    };
    free || puts || CHOOSE.contains(&node.op.name)
}

/// For attention and its gradient: the deviation of the operands of products and their number. Both
/// directions have the same, so that they make the same scores; masks and statistics of rows are no terms of
/// sums.
fn products(graph: &Graph, node: &Node, target: &Target) -> Option<(f64, usize)> {
    let first = [(&ATTENTION, 0), (&ATTENTION_BACKWARD, 1)].into_iter().find(|(op, _)| node.op == *op)?.1;
    let query = graph.ty(node.inputs[first]?);
    let own = Rounding::of(graph, node, target, query);
    let scale = if query.dtype == DType::F64 { magnification() } else { 1.0 };
    let sums = unit(accumulator(query.dtype, target)) / scale * (query.shape.last().copied()? as f64).sqrt();
    Some((own.terms.hypot(sums) * scale, first + 3))
}

/// A value off by a relative deviation, then rounded to a grid.
fn pointwise(
    b: &mut Builder,
    v: ValueId,
    by: [ValueId; 2],
    grid: Option<Grid>,
    deviation: f64,
) -> Result<ValueId> {
    let ty = b.ty(v).clone();
    if ty.dtype != DType::F64 || ty.shape.numel() == 0 {
        return Ok(v);
    }
    let copy = RowProgram::copy(DType::F64, DType::F64, &ty.shape);
    let mut w = Writer::new(&copy);
    let x = w.out.compute(Instr::Load(0));
    // A value with a grid is a result, one without is a term of a sum.
    let place = grid.map(|_| w.place(true));
    let x = w.off_at(x, deviation, place);
    let x = grid.map_or(x, |grid| w.round(x, grid));
    w.out.body.push(Instr::Store(0, x));
    Ok(fused(b, w.out, vec![v], by, &[ty], "round")?[0])
}

/// A row program as a node.
fn fused(
    b: &mut Builder,
    program: RowProgram,
    reads: Vec<ValueId>,
    by: [ValueId; 2],
    types: &[TensorType],
    name: &str,
) -> Result<Vec<ValueId>> {
    let reads: Vec<Option<ValueId>> = reads.into_iter().chain(by).map(Some).collect();
    let attrs = Attrs::new()
        .with("outputs", encode_types(types))
        .with("ops", name)
        .with("program", Arc::new(program));
    b.apply(&FUSED, &reads, attrs)
}

/// The results of a node's row program, each instruction rounded; `None` if it has no program.
fn program(
    graph: &Graph,
    node: &Node,
    target: &Target,
    b: &mut Builder,
    operands: &[Option<ValueId>],
    by: [ValueId; 2],
) -> Result<Option<Vec<ValueId>>> {
    let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let cx = graph.cx(node);
    let Some(program) = node.op.row_program(&cx, &types)? else { return Ok(None) };
    if !types.iter().any(|t| t.dtype.is_float()) || program.rows() * program.cols() == 0 {
        return Ok(None);
    }
    let Ok(classes) = program.classes() else { return Ok(None) };
    let computing = accumulator(if program.computes_in_f64() { DType::F64 } else { DType::F32 }, target);
    let truth = reference_error(&cx, node) * if computing == DType::F64 { magnification() } else { 1.0 };
    let mut w = Writer::new(&program);
    let mut regs: Vec<Reg> = Vec::with_capacity(program.body.len());
    for (at, instr) in program.body.iter().enumerate() {
        let moved = instr.map(|r| regs[r]);
        let float = |r: Reg| classes[r] == Some(Class::Float);
        let (rows, cols) = ((program.rows() as f64).sqrt(), (program.cols() as f64).sqrt());
        let (sum, grid) = (unit(computing), Grid::of(computing, target));
        regs.push(match (instr, moved) {
            (Instr::Store(o, old), Instr::Store(_, a)) if float(*old) => {
                let a = w.off(a, truth);
                let a = w.round(a, Grid::of(program.writes[*o].dtype, target));
                w.store(Instr::Store(*o, a))
            }
            (Instr::Columns(_, old), Instr::Columns(o, a)) if float(*old) => {
                let a = w.off(a, sum * rows);
                w.store(Instr::Columns(o, a))
            }
            (_, moved @ (Instr::Store(..) | Instr::Columns(..))) => w.store(moved),
            (_, Instr::Float(x)) => w.constant(if computing == DType::F64 { x } else { computing.round(x) }),
            (Instr::Reduce(Reduce::Sum, old), Instr::Reduce(_, a)) if float(*old) => {
                let terms = w.off(a, sum * cols);
                let total = w.write(Instr::Reduce(Reduce::Sum, terms));
                let place = w.place(false);
                let total = w.off_at(total, sum * cols, Some(place));
                w.round(total, grid)
            }
            (Instr::Reduce(Reduce::Prod, old), moved) if float(*old) => {
                let total = w.write(moved);
                let place = w.place(false);
                let total = w.off_at(total, sum * cols, Some(place));
                w.round(total, grid)
            }
            (Instr::Cast(to, _), Instr::Cast(_, a)) if to.is_float() => {
                let a = w.write(Instr::Cast(DType::F64, a));
                w.round(a, Grid::of(*to, target))
            }
            (Instr::Unary(op, old), moved) if float(*old) && float(at) && rounds(*op) => {
                let y = w.write(moved);
                let y = match op {
                    Unary::Ndtr => w.off_one(y, ELEMENTARY * sum),
                    op if elementary(*op) => w.off(y, ELEMENTARY * sum),
                    _ => y,
                };
                w.round(y, grid)
            }
            (Instr::Binary(op, old, _), moved) if float(*old) && rounds_two(*op) => {
                let y = w.write(moved);
                let y =
                    if matches!(op, Binary::Pow | Binary::Atan2) { w.off(y, ELEMENTARY * sum) } else { y };
                w.round(y, grid)
            }
            (Instr::Load(o), moved) => {
                let y = w.write(moved);
                w.grids[y] = Some(Grid::of(program.reads[*o].dtype, target));
                y
            }
            (_, moved) => w.write(moved),
        });
    }
    let lifted: Vec<TensorType> = types.iter().map(widened).collect();
    let reads = operands.iter().copied().flatten().collect();
    let mut results = fused(b, w.out, reads, by, &lifted, node.op.name)?;
    // Sums over rows are stored as they are made, and rounded then.
    for instr in &program.body {
        if let Instr::Columns(o, old) = instr
            && classes[*old] == Some(Class::Float)
        {
            let sum = unit(computing) * (program.rows() as f64).sqrt();
            results[*o] = pointwise(b, results[*o], by, Some(Grid::of(types[*o].dtype, target)), sum)?;
        }
    }
    Ok(Some(results))
}

/// Standard deviation of elementary functions in unit roundoffs: devices compute them within 2 to 4 units of
/// the last place, most of them within one.
const ELEMENTARY: f64 = 2.0;

/// True for functions that devices do not round to nearest.
fn elementary(op: Unary) -> bool {
    rounds(op) && !matches!(op, Unary::Sqrt | Unary::Recip)
}

/// True for functions of floats that round.
fn rounds(op: Unary) -> bool {
    use Unary::*;
    !matches!(op, Neg | Abs | Sign | Floor | Ceil | Trunc | Round | IsNan | IsInf | Not | Bits | FromBits)
}

fn rounds_two(op: Binary) -> bool {
    use Binary::*;
    matches!(op, Add | Sub | Mul | Div | Rem | Pow | Atan2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::OutputRole;
    use crate::ops::pointwise::ndtr::NDTR;
    use crate::ops::reduce::cummax::CUMMAX;
    use crate::{Tensor, reference};

    /// Outputs of a graph of one input `x`, rounded by a function: 0 is round to nearest.
    fn run(graph: &Graph, x: &[f64], function: usize) -> Vec<Vec<f64>> {
        let random = rounded(graph, &Target::default()).unwrap();
        let number = super::function(function);
        let fed = random.inputs.iter().map(|i| match ROUNDING.iter().position(|n| *n == i.name) {
            Some(0) => Tensor::full(random.ty(i.value), number),
            Some(_) => Tensor::full(random.ty(i.value), f64::from(u8::from(function > 0))),
            None => Tensor::float(DType::F64, random.ty(i.value).shape.clone(), x.to_vec()),
        });
        let out = reference::run(&random, &fed.collect::<Vec<_>>()).unwrap();
        out.iter().map(|t| t.floats().to_vec()).collect()
    }

    fn graph(dtype: DType, n: usize, build: impl Fn(&mut Builder, ValueId) -> Vec<ValueId>) -> Graph {
        let mut b = Builder::new();
        let x = b.input("x", TensorType::new(dtype, [n]), InputRole::User);
        for (i, v) in build(&mut b, x).into_iter().enumerate() {
            b.output(format!("y{i}"), v, OutputRole::User);
        }
        b.finish()
    }

    #[test]
    fn exact_operations_have_no_rounding() {
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            let g = graph(dtype, 4, |b, x| {
                // (1 - x) · -9984, which every grid has, sums of whole numbers, products by powers of two,
                // and x - x.
                let minus = b.scale(x, -1.0).unwrap();
                let rest = b.shift(minus, 1.0).unwrap();
                let mask = b.scale(rest, -9984.0).unwrap();
                let sum = b.sum(x, &[0], false).unwrap();
                let twice = b.scale(x, 4.0).unwrap();
                let zero = b.add(x, minus).unwrap();
                vec![mask, sum, twice, zero]
            });
            let mask = -9984.0;
            for function in 0..20 {
                let got = run(&g, &[1.0, 0.0, 1.0, 1.0], function);
                let want = [vec![0.0, mask, 0.0, 0.0], vec![3.0], vec![4.0, 0.0, 4.0, 4.0], vec![0.0; 4]];
                assert_eq!(got, want, "{dtype} {function}");
            }
        }
    }

    #[test]
    fn numbers_off_the_grid_go_to_a_neighbour_with_the_variance_of_their_place() {
        let third = |dtype| graph(dtype, 64, |b, x| vec![b.scale(x, 1.0 / 3.0).unwrap()]);
        let x: Vec<f64> = (0..64).map(|i| f64::from(i + 64)).collect();
        // The factor is a number of the accumulator's.
        let factor = f64::from((1.0f64 / 3.0) as f32);
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let spacing = |y: f64| dtype.epsilon() * y.abs().log2().floor().exp2();
            let (mut sum, mut count) = (0.0, 0.0);
            for function in 0..40 {
                for (y, x) in run(&third(dtype), &x, function)[0].iter().zip(&x) {
                    let apart = (y - x * factor) / spacing(x * factor);
                    assert_eq!(dtype.round(*y), *y, "on the grid");
                    assert!(apart.abs() <= if function == 0 { 0.51 } else { 1.01 }, "{dtype} {apart}");
                    (sum, count) = (sum + apart * apart, count + 1.0);
                }
            }
            // A variance of 1/12, and 1/48 that all functions have alike below and above a quarter.
            let variance: f64 = sum / count;
            assert!(variance > 0.08 && variance < 0.13, "{dtype}: {variance}");
        }
    }

    /// The largest number of f16 less a score, as masks and scores are added: the nearest number is the
    /// largest.
    #[test]
    fn what_does_not_overflow_to_nearest_overflows_in_no_run() {
        let g = graph(DType::F16, 8, |b, x| vec![b.shift(x, -65504.0).unwrap()]);
        let x: Vec<f64> = (0..8).map(|i| -2.0 * f64::from(i)).collect();
        for function in 0..40 {
            assert!(run(&g, &x, function)[0].iter().all(|y| *y == -65504.0), "{function}");
        }
    }

    #[test]
    fn what_cancels_is_off_by_its_terms() {
        // A sum of terms that cancel, and of as many that do not.
        let g = graph(DType::F32, 256, |b, x| {
            let square = b.mul(x, x).unwrap();
            let minus = b.scale(square, -1.0).unwrap();
            let cube = b.mul(square, x).unwrap();
            let back = b.mul(minus, x).unwrap();
            let zero = b.add(cube, back).unwrap();
            vec![b.sum(zero, &[0], false).unwrap(), b.sum(x, &[0], false).unwrap()]
        });
        let x: Vec<f64> = (0..256).map(|i| f64::from((f64::from(i) * 0.7).sin() as f32)).collect();
        let total: f64 = x.iter().sum();
        for function in 1..10 {
            let got = run(&g, &x, function);
            // Equal numbers are rounded alike, so these cancel.
            assert_eq!(got[0], [0.0]);
            // √256 roundings of terms of about 0.7, thrice over.
            let apart = (got[1][0] - total).abs();
            assert!(apart > 0.0 && apart < 3.0 * 16.0 * 16.0 * unit(DType::F32), "{apart:e}");
        }
    }

    #[test]
    fn what_chooses_makes_no_error_and_the_normal_distribution_one_relative_to_1() {
        let g = graph(DType::F32, 4, |b, x| {
            let most = b.apply(&CUMMAX, &[Some(x)], Attrs::new().with("dim", 0)).unwrap()[0];
            vec![most, b.call(&NDTR, &[x]).unwrap()]
        });
        let x = [-8.1f32, -7.3, -6.7, -6.1].map(f64::from);
        let mut apart = 0.0f64;
        for function in 1..20 {
            let got = run(&g, &x, function);
            assert_eq!(got[0], x);
            // Φ(-8.1) is 3e-16.
            apart = apart.max(got[1][0].abs());
        }
        assert!(apart > unit(DType::F32) && apart < 10.0 * unit(DType::F32), "{apart:e}");
    }

    #[test]
    fn the_rounded_graph_grows_with_the_graph_and_no_faster() {
        let doubled = |depth: usize| {
            let mut b = Builder::new();
            let x = b.parameter("x", DType::F32, &[4, 4]);
            let mut w = b.sum(x, &[0], true).unwrap();
            for _ in 0..depth {
                let moved = b.reshape(w, &[1, 4]).unwrap();
                w = b.add(w, moved).unwrap();
            }
            b.output("grad.x", w, OutputRole::Gradient(x));
            b.finish()
        };
        let nodes = |depth| rounded(&doubled(depth), &Target::default()).unwrap().nodes.len();
        assert_eq!(nodes(300) - nodes(200), nodes(200) - nodes(100));
        assert!(nodes(5_000) < 20 * 5_000);
    }
}
