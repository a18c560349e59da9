//! LU factors with partial pivoting, and what is computed from them.

use super::dense::{order_of_pivots, pivoted, pivots_of_order};
use super::triangular::LINALG_SOLVE_TRIANGULAR;
use super::{each_matrix, matrices, squares, transposed};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::graph::{Builder, ValueId};
use crate::ops::create::eye::EYE;
use crate::ops::movement::tril::{TRIL, TRIU};
use crate::ops::{Body, Case, Cost, Derivative, GradCx, OpCx, OpDef, Precision, Sample, required};
use crate::shape::Shape;
use crate::tensor::{Tensor, TensorType};
use crate::{ensure, fail};

/// Both factors in one matrix, the ones on the diagonal of L left out, of each matrix `[..., m, n]`; and the
/// i32 pivots `[..., min(m, n)]`: row i was exchanged with row `pivots[i]`, counted from 1. Then i32 zeros in
/// the place of errors: a matrix is never refused here.
pub static LINALG_LU_FACTOR: OpDef = OpDef {
    name: "linalg_lu_factor",
    schemas: &[
        "linalg_lu_factor(Tensor A, *, bool pivot=True) -> (Tensor LU, Tensor pivots)",
        "linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor LU, Tensor pivots, Tensor info)",
    ],
    infer: |cx| {
        with_pivots(cx)?;
        let (t, [m, n]) = matrices(cx, 0)?;
        let lead = &t.shape[..t.shape.rank() - 2];
        Ok(vec![
            t.clone(),
            TensorType::new(DType::I32, Shape::from([lead, &[m.min(n)]].concat())),
            TensorType::new(DType::I32, Shape::new(lead)),
        ])
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let types = (LINALG_LU_FACTOR.infer)(cx)?;
        let factors = b.apply(&LU, &[Some(required(inputs, 0)?)], Attrs::new())?;
        let pivots = b.one(&PIVOTS, &[factors[1]], Attrs::new().with("count", last(&types[1]) as i64))?;
        Ok(vec![factors[0], pivots, b.full(&types[2], 0.0)?])
    }),
    cases: || {
        vec![matrix("square", &[2, 3, 3]).attr("pivot", true), matrix("tall", &[4, 2]).attr("pivot", true)]
    },
};

/// `P`, `L` and `U` with `P · L · U = A` of each matrix `[..., m, n]`: a permutation, a lower triangle with
/// ones on its diagonal, and an upper one.
pub static LINALG_LU: OpDef = OpDef {
    name: "linalg_lu",
    schemas: &["linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)"],
    infer: |cx| {
        with_pivots(cx)?;
        let (t, mn) = matrices(cx, 0)?;
        Ok(unpacked(t, mn))
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (_, mn) = matrices(cx, 0)?;
        let factors = b.apply(&LU, &[Some(required(inputs, 0)?)], Attrs::new())?;
        let [lower, upper] = triangles(b, factors[0], mn)?;
        Ok(vec![factors[1], lower, upper])
    }),
    cases: || {
        vec![matrix("square", &[3, 3]).attr("pivot", true), matrix("wide", &[2, 4]).attr("pivot", true)]
    },
};

/// The permutation and the triangles of the results of [`LINALG_LU_FACTOR`]; those that are not requested are
/// empty.
pub static LU_UNPACK: OpDef = OpDef {
    name: "lu_unpack",
    schemas: &[
        "lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True) -> (Tensor P, Tensor L, Tensor U)",
    ],
    infer: |cx| {
        let (t, mn) = packed(cx, 0)?;
        let mut types = unpacked(t, mn);
        let [data, pivots] = asked(cx)?;
        for (ty, kept) in types.iter_mut().zip([pivots, data, data]) {
            if !kept {
                ty.shape = [0].into();
            }
        }
        Ok(types)
    },
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let (t, mn) = packed(cx, 0)?;
        let types = (LU_UNPACK.infer)(cx)?;
        let [data, pivots] = asked(cx)?;
        let p = if pivots {
            permutation(b, required(inputs, 1)?, mn[0], t.dtype)?
        } else {
            b.full(&types[0], 0.0)?
        };
        let [lower, upper] = if data {
            triangles(b, required(inputs, 0)?, mn)?
        } else {
            [b.full(&types[1], 0.0)?, b.full(&types[2], 0.0)?]
        };
        Ok(vec![p, lower, upper])
    }),
    cases: || {
        vec![
            matrix("square", &[3, 3]).arg(DType::I32, &[3], exchanges()),
            matrix("pivots alone", &[3, 3]).arg(DType::I32, &[3], exchanges()).attr("unpack_data", false),
        ]
    },
};

/// `X` with `A · X = B`, or with `left` false `X · A = B`, of the factors and pivots of A; with `adjoint` of
/// the transposed A. Leading dimensions broadcast.
pub static LINALG_LU_SOLVE: OpDef = OpDef {
    name: "linalg_lu_solve",
    schemas: &[
        "linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False) -> Tensor",
    ],
    infer: |cx| solution(cx, [0, 1, 2]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, cx: &OpCx, inputs: &[Option<ValueId>]| {
        let flags = [cx.opt_int("left")?.unwrap_or(1) != 0, cx.flag("adjoint")?];
        solve(b, [0, 1, 2].map(|i| required(inputs, i)), flags)
    }),
    cases: || {
        let case = |name, left: bool, adjoint: bool| {
            let case = matrix(name, &[3, 3]).arg(DType::I32, &[3], exchanges());
            case.f(if left { &[3, 2] } else { &[2, 3] }).attr("left", left).attr("adjoint", adjoint)
        };
        vec![
            case("left", true, false),
            case("adjoint", true, true),
            case("right", false, false),
            case("right, adjoint", false, true),
        ]
    },
};

/// [`LINALG_LU_SOLVE`] in the older order of arguments: `self` are the right sides.
pub static LU_SOLVE: OpDef = OpDef {
    name: "lu_solve",
    schemas: &["lu_solve(Tensor self, Tensor LU_data, Tensor LU_pivots) -> Tensor"],
    infer: |cx| solution(cx, [1, 2, 0]),
    derivative: Derivative::ByDecomposition,
    precision: Precision::Full,
    cost: Cost::Free,
    body: Body::Decompose(|b: &mut Builder, _: &OpCx, inputs: &[Option<ValueId>]| {
        solve(b, [1, 2, 0].map(|i| required(inputs, i)), [true, false])
    }),
    cases: || {
        let mut case = Case::new("plain").f(&[3, 2]);
        case.inputs.extend(matrix("factors", &[3, 3]).inputs);
        vec![case.arg(DType::I32, &[3], exchanges())]
    },
};

/// Both factors in one matrix, and the permutation `P [..., m, m]`. Where no pivot is left, U has a zero.
pub static LU: OpDef = OpDef {
    name: "lu_factors",
    schemas: &["headwater::lu_factors(Tensor A) -> (Tensor LU, Tensor P)"],
    infer: |cx| {
        let (t, [m, n]) = matrices(cx, 0)?;
        let shape = Shape::from([&t.shape[..t.shape.rank() - 1], &[m]].concat());
        ensure!(n > 0 || shape.numel() == 0, Shape, "no factors of {t}");
        ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        Ok(vec![t.clone(), TensorType::new(t.dtype, shape)])
    },
    derivative: Derivative::Rule(gradient),
    precision: Precision::Full,
    cost: Cost::Custom(|cx, _| {
        matrices(cx, 0).map_or(0.0, |(t, [m, n])| t.shape.numel() as f64 * m.min(n) as f64)
    }),
    body: Body::Kernel(|cx, inputs, outs| {
        let [m, n] = matrices(cx, 0)?.1;
        let x = inputs[0].expect("typed").floats();
        each_matrix([x], [m * n], outs, [m * n, m * m], |[x], [lu, p]| {
            factors(x, [m, n], lu, p);
            Ok(())
        })
    }),
    cases: || {
        vec![
            matrix("square", &[2, 3, 3]),
            matrix("tall", &[4, 2]),
            matrix("wide", &[2, 2, 3]),
            Case::new("none").f(&[0, 2, 2]),
        ]
    },
};

/// The i32 pivots `[..., count]` of permutations `P [..., m, m]`.
pub static PIVOTS: OpDef = OpDef {
    name: "lu_pivots",
    schemas: &["headwater::lu_pivots(Tensor P, *, int count) -> Tensor"],
    infer: |cx| {
        let ((t, m), count) = (squares(cx, 0)?, cx.size("count")?);
        ensure!(count <= m, Attribute, "{count} pivots of {t}");
        Ok(vec![TensorType::new(
            DType::I32,
            Shape::from([&t.shape[..t.shape.rank() - 2], &[count]].concat()),
        )])
    },
    derivative: Derivative::NotDifferentiable("pivots are integers"),
    precision: Precision::Same,
    cost: Cost::PerInput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        let (m, count) = (squares(cx, 0)?.1, cx.size("count")?);
        let x = inputs[0].expect("typed").floats();
        let mut pivots = Vec::with_capacity(outs[0].shape.numel());
        for p in x.chunks_exact((m * m).max(1)).filter(|_| count > 0) {
            // Row `order[i]` of the matrix is row i of the factors: column i of P has its one there.
            let order: Vec<usize> =
                (0..m).map(|i| (0..m).find(|r| p[r * m + i] != 0.0).unwrap_or(i)).collect();
            pivots.extend(pivots_of_order(&order)[..count].iter().map(|&p| p as i64 + 1));
        }
        Ok(vec![Tensor::int(DType::I32, outs[0].shape.clone(), pivots)])
    }),
    cases: || {
        let turned = Sample::Values(vec![0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        vec![Case::new("turned").arg(DType::F64, &[3, 3], turned).attr("count", 2)]
    },
};

/// The permutations `[..., m, m]` that pivots `[..., k]` stand for, in `dtype`.
pub static PERMUTATION: OpDef = OpDef {
    name: "lu_permutation",
    schemas: &["headwater::lu_permutation(Tensor pivots, *, int m, ScalarType dtype) -> Tensor"],
    infer: |cx| {
        let (pivots, m) = (cx.ty(0)?, cx.size("m")?);
        ensure!(pivots.dtype == DType::I32 && pivots.shape.rank() > 0, DType, "{pivots} are no i32 pivots");
        let dtype = cx.opt_dtype("dtype")?.filter(|d| d.is_float());
        let dtype = dtype.ok_or_else(|| fail!(Attribute, "`dtype` must be a float"))?;
        let k = last(pivots);
        ensure!(k <= m, Shape, "{k} pivots of {m} rows");
        let shape = Shape::from([&pivots.shape[..pivots.shape.rank() - 1], &[m, m]].concat());
        ensure!(shape.checked_numel().is_some(), Size, "{shape} is larger than memory can be");
        Ok(vec![TensorType::new(dtype, shape)])
    },
    derivative: Derivative::NotDifferentiable("pivots are integers"),
    precision: Precision::Same,
    cost: Cost::PerOutput(1),
    body: Body::Kernel(|cx, inputs, outs| {
        let (x, m) = (inputs[0].expect("typed"), cx.size("m")?);
        let k = last(&x.ty);
        let mut p = vec![0.0; outs[0].shape.numel()];
        for (i, p) in p.chunks_exact_mut((m * m).max(1)).enumerate() {
            let order = order_of_pivots(&x.ints()[i * k..][..k], m)?;
            order.iter().enumerate().for_each(|(i, &row)| p[row * m + i] = 1.0);
        }
        Ok(vec![Tensor::float(outs[0].dtype, outs[0].shape.clone(), p)])
    }),
    cases: || {
        let case = |name| Case::new(name).arg(DType::I32, &[3], exchanges()).attr("dtype", DType::F64);
        vec![case("square").attr("m", 3), case("tall").attr("m", 4)]
    },
};

/// The factors and the permutation of one matrix `[m, n]`.
pub fn factors(x: &[f64], [m, n]: [usize; 2], lu: &mut [f64], p: &mut [f64]) {
    lu.copy_from_slice(x);
    let order = pivoted(lu, [m, n]).0;
    p.fill(0.0);
    order.iter().enumerate().for_each(|(i, &row)| p[row * m + i] = 1.0);
}

fn last(t: &TensorType) -> usize {
    t.shape.last().copied().unwrap_or(0)
}

/// PyTorch factorizes without pivots on GPUs alone.
fn with_pivots(cx: &OpCx) -> Result<()> {
    let pivot = cx.opt_int("pivot")?.unwrap_or(1) != 0;
    ensure!(
        pivot,
        Unsupported,
        "LU factors without pivots, which PyTorch has on GPUs alone: take `pivot=True`"
    );
    Ok(())
}

/// Types of the permutation and the triangles of matrices `[..., m, n]`.
fn unpacked(t: &TensorType, [m, n]: [usize; 2]) -> Vec<TensorType> {
    let with = |last: [usize; 2]| Shape::from([&t.shape[..t.shape.rank() - 2], &last].concat());
    let k = m.min(n);
    [with([m, m]), with([m, k]), with([k, n])].map(|s| TensorType::new(t.dtype, s)).to_vec()
}

/// Packed factors, input `i`, whose pivots are the next input.
fn packed<'a>(cx: &OpCx<'a>, i: usize) -> Result<(&'a TensorType, [usize; 2])> {
    let (t, [m, n]) = matrices(cx, i)?;
    let (pivots, lead) = (cx.ty(i + 1)?, &t.shape[..t.shape.rank() - 2]);
    let fits = pivots.dtype == DType::I32 && pivots.shape[..] == [lead, &[m.min(n)]].concat()[..];
    ensure!(fits, Shape, "pivots {pivots} do not fit factors {t}");
    Ok((t, [m, n]))
}

fn asked(cx: &OpCx) -> Result<[bool; 2]> {
    let flag = |name| Ok(cx.opt_int(name)?.unwrap_or(1) != 0);
    Ok([flag("unpack_data")?, flag("unpack_pivots")?])
}

/// L and U of packed factors.
fn triangles(b: &mut Builder, lu: ValueId, [m, n]: [usize; 2]) -> Result<[ValueId; 2]> {
    let (ty, k) = (b.ty(lu).clone(), m.min(n));
    let (rows, columns) = (ty.shape.rank() - 2, ty.shape.rank() - 1);
    let below = b.slice(lu, columns, 0, k)?;
    let below = b.one(&TRIL, &[below], Attrs::new().with("diagonal", -1))?;
    let attrs = Attrs::new().with("n", m as i64).with("m", k as i64).with("dtype", ty.dtype);
    let one = b.one(&EYE, &[], attrs)?;
    let lower = b.add(below, one)?;
    let above = b.slice(lu, rows, 0, k)?;
    Ok([lower, b.one(&TRIU, &[above], Attrs::new().with("diagonal", 0))?])
}

fn permutation(b: &mut Builder, pivots: ValueId, m: usize, dtype: DType) -> Result<ValueId> {
    b.one(&PERMUTATION, &[pivots], Attrs::new().with("m", m as i64).with("dtype", dtype))
}

/// Type of the solutions, given the places of factors, pivots and right sides among the inputs.
fn solution(cx: &OpCx, [lu, pivots, right]: [usize; 3]) -> Result<Vec<TensorType>> {
    let swapped =
        OpCx { inputs: vec![Some(cx.ty(lu)?), Some(cx.ty(pivots)?), Some(cx.ty(right)?)], attrs: cx.attrs };
    packed(&swapped, 0)?;
    squares(&swapped, 0)?;
    let attrs = Attrs::new().with("upper", true).with("left", cx.opt_int("left")?.unwrap_or(1) != 0);
    cx.flag("adjoint")?;
    (LINALG_SOLVE_TRIANGULAR.infer)(&OpCx {
        inputs: vec![swapped.inputs[0], swapped.inputs[2]],
        attrs: &attrs,
    })
}

/// `U⁻¹ L⁻¹ Pᵀ B`, or of the transposed matrix `P L⁻ᵀ U⁻ᵀ B`; from the right, the transposed system.
fn solve(b: &mut Builder, inputs: [Result<ValueId>; 3], [left, adjoint]: [bool; 2]) -> Result<Vec<ValueId>> {
    let [lu, pivots, right] = inputs;
    let (lu, pivots, mut x) = (lu?, pivots?, right?);
    let ty = b.ty(lu).clone();
    let p = permutation(b, pivots, last(&ty), ty.dtype)?;
    let flags =
        |upper: bool| Attrs::new().with("upper", upper).with("unitriangular", !upper).with("left", true);
    if !left {
        x = transposed(b, x)?;
    }
    if left == adjoint {
        // The triangles of the transposed factors: Uᵀ is the lower one, Lᵀ the upper one with ones.
        let t = transposed(b, lu)?;
        let with =
            |upper: bool| Attrs::new().with("upper", upper).with("unitriangular", upper).with("left", true);
        x = b.one(&LINALG_SOLVE_TRIANGULAR, &[t, x], with(false))?;
        x = b.one(&LINALG_SOLVE_TRIANGULAR, &[t, x], with(true))?;
        x = b.matmul(p, x)?;
    } else {
        let t = transposed(b, p)?;
        x = b.matmul(t, x)?;
        x = b.one(&LINALG_SOLVE_TRIANGULAR, &[lu, x], flags(false))?;
        x = b.one(&LINALG_SOLVE_TRIANGULAR, &[lu, x], flags(true))?;
    }
    if !left {
        x = transposed(b, x)?;
    }
    Ok(vec![x])
}

/// `P L⁻ᵀ (tril(Lᵀ gL, −1) + triu(gU Uᵀ)) U⁻ᵀ` of square factors. Rows below the square are `A₂ U⁻¹`, and
/// columns beside it `L⁻¹ A₂`: their gradients flow to those of the square factor too.
fn gradient(cx: &mut GradCx) -> Result<()> {
    // A permutation moves in jumps: nothing flows through it.
    let [m, n] = cx.of(|cx| matrices(cx, 0).map(|m| m.1))?;
    let (g, lu, p, k) = (cx.grad(0)?, cx.y(0), cx.y(1), m.min(n));
    let (rows, columns) = (cx.ty(lu).shape.rank() - 2, cx.ty(lu).shape.rank() - 1);
    let top = |cx: &mut GradCx, v: ValueId| {
        let v = cx.slice(v, rows, 0, k)?;
        cx.slice(v, columns, 0, k)
    };
    let (square, inner) = (top(cx, lu)?, top(cx, g)?);
    let of = |l: bool| Attrs::new().with("upper", l).with("left", l).with("unitriangular", l);
    let t = transposed(cx, square)?;
    // `L⁻ᵀ ·` from the left, `· U⁻ᵀ` from the right: triangles of the transposed factors.
    let by_l = |cx: &mut GradCx, v: ValueId| cx.one(&LINALG_SOLVE_TRIANGULAR, &[t, v], of(true));
    let by_u = |cx: &mut GradCx, v: ValueId| cx.one(&LINALG_SOLVE_TRIANGULAR, &[t, v], of(false));
    let part = |cx: &mut GradCx, v: ValueId, lower: bool| {
        let (op, from) = if lower { (&TRIL, -1) } else { (&TRIU, 0) };
        cx.one(op, &[v], Attrs::new().with("diagonal", from))
    };
    let (mut dl, mut du) = (part(cx, inner, true)?, part(cx, inner, false)?);
    let mut beyond = None;
    if m > n {
        let (low, dlow) = (cx.slice(lu, rows, k, m)?, cx.slice(g, rows, k, m)?);
        let da = by_u(cx, dlow)?;
        let lt = transposed(cx, low)?;
        let taken = cx.matmul(lt, da)?;
        du = cx.sub(du, taken)?;
        beyond = Some((da, rows));
    } else if n > m {
        let (right, dright) = (cx.slice(lu, columns, k, n)?, cx.slice(g, columns, k, n)?);
        let da = by_l(cx, dright)?;
        let ut = transposed(cx, right)?;
        let taken = cx.matmul(da, ut)?;
        dl = cx.sub(dl, taken)?;
        beyond = Some((da, columns));
    }
    let [lower, upper] = triangles(cx, square, [k, k])?;
    let lt = transposed(cx, lower)?;
    let ut = transposed(cx, upper)?;
    let dl = cx.matmul(lt, dl)?;
    let dl = part(cx, dl, true)?;
    let du = cx.matmul(du, ut)?;
    let du = part(cx, du, false)?;
    let sum = cx.add(dl, du)?;
    let sum = by_l(cx, sum)?;
    let mut dx = by_u(cx, sum)?;
    if let Some((more, dim)) = beyond {
        dx = cx.cat(&[dx, more], dim)?;
    }
    let dx = cx.matmul(p, dx)?;
    cx.set(0, dx)
}

/// Row 0 exchanged with row 2, and row 1 with itself.
fn exchanges() -> Sample {
    Sample::Values(vec![3.0, 2.0, 3.0])
}

fn matrix(name: &'static str, shape: &[usize]) -> Case {
    let values =
        [2.0, 0.5, -0.3, 1.5, 3.2, -1.0, 3.0, -0.4, 1.1, 0.7, -2.0, 0.9, 0.3, 1.2, -0.6, 0.8, 2.5, -1.4]
            [..shape.iter().product()]
            .to_vec();
    Case::new(name).arg(DType::F64, shape, Sample::Values(values))
}
