//! RMSNorm and its gradients on the CPU against f64 by the formula: many shapes, dtypes, layouts and
//! distributions. Errors are bounded by the rounding of the result and what f32 sums of that length may lose;
//! bits do not depend on threads.

use crate::common::run;
use headwater_core::device::Device;
use headwater_core::graph::{InputRole, OutputRole};
use headwater_core::ops::norm::rms_norm::RMS_NORM;
use headwater_core::pass::differentiate::gradients;
use headwater_core::pass::{decompose, fuse, simplify};
use headwater_core::{Attrs, Builder, DType, Graph, Tensor, TensorType};
use headwater_cpu::Cpu;

#[derive(Clone, Copy, Debug)]
struct Setting {
    rows: usize,
    cols: usize,
    x: DType,
    weight: Option<DType>,
    /// The input is the transpose of the contiguous memory.
    transposed: bool,
    /// Magnitude of the input's numbers.
    scale: f64,
    eps: Option<f64>,
}

fn graph(s: Setting) -> Graph {
    let mut b = Builder::new();
    let shape = if s.transposed { [s.cols, s.rows] } else { [s.rows, s.cols] };
    let x = b.input("x", TensorType::new(s.x, shape), InputRole::User);
    let w = s.weight.map(|d| b.input("w", TensorType::new(d, [s.cols]), InputRole::User));
    let v = if s.transposed { b.permute(x, &[1, 0]).unwrap() } else { x };
    let mut attrs = Attrs::new().with("normalized_shape", [s.cols as i64]);
    if let Some(eps) = s.eps {
        attrs.set("eps", eps);
    }
    let out = b.apply(&RMS_NORM, &[Some(v), w], attrs).unwrap();
    let g = b.input("g", TensorType::new(s.x, [s.rows, s.cols]), InputRole::User);
    b.output("y", out[0], OutputRole::User);
    b.output("rstd", out[1], OutputRole::User);
    let wanted: Vec<_> = [Some(x), w].into_iter().flatten().collect();
    for (v, g) in wanted.iter().zip(gradients(&mut b, &[(out[0], g)], &wanted).unwrap()) {
        b.output(format!("grad.{v}"), g.unwrap(), OutputRole::Gradient(*v));
    }
    fuse(simplify(decompose(b.finish()).unwrap()).graph, Cpu::new(2).target()).unwrap()
}

fn numbers(ty: &TensorType, seed: usize, scale: f64) -> Tensor {
    let number = |i: usize| ((i * 7919 + seed * 31) % 2003) as f64 / 1001.0 - 1.0;
    let data = (0..ty.shape.numel()).map(|i| scale * number(i)).collect();
    Tensor::float(DType::F64, ty.shape.clone(), data).cast(ty.dtype)
}

/// Half a unit in the last place of f32, relative.
const U: f64 = 1.0 / (1 << 24) as f64;

fn check(s: Setting) {
    let graph = graph(s);
    let inputs: Vec<Tensor> = (graph.inputs.iter().enumerate())
        .map(|(k, i)| numbers(graph.ty(i.value), k, if i.name == "x" { s.scale } else { 1.0 }))
        .collect();
    let got = run(&Cpu::new(1), &graph, &inputs).unwrap();
    for threads in [2, 7] {
        for (a, b) in got.iter().zip(run(&Cpu::new(threads), &graph, &inputs).unwrap()) {
            assert_eq!(a.to_bytes(), b.to_bytes(), "{threads} threads: {s:?}");
        }
    }
    let (n, g) = (s.cols, inputs.last().unwrap().floats());
    let stored = inputs[0].floats();
    let x = |r: usize, c: usize| if s.transposed { stored[c * s.rows + r] } else { stored[r * n + c] };
    let w = |c: usize| s.weight.map_or(1.0, |_| inputs[1].floats()[c]);
    // A sum of n terms in f32 lanes loses at most min(n, 134) roundings, as `rows` states; then a few single
    // ones.
    let sum = n.min(134) as f64 * U;
    let eps = s.eps.unwrap_or(DType::F32.epsilon());
    let near = |got: f64, want: f64, size: f64, dtype: DType, bound: f64, what: &str| {
        // One rounding of the result's dtype, which has a smallest step.
        let tiny = if dtype == DType::F16 { f64::exp2(-25.0) } else { f64::exp2(-149.0) };
        let error = dtype.epsilon() / 2.0 * want.abs() + tiny + bound * size * 1.01;
        // Beyond what the dtype holds, the truth is rounded to infinity.
        let overflows = want.abs() + error > dtype.max_value() && got == f64::INFINITY.copysign(want);
        assert!(overflows || (got - want).abs() <= error, "{what}: {got}, not {want} ± {error}; {s:?}");
    };
    let mut columns = vec![(0.0, 0.0); n];
    for r in 0..s.rows {
        let mean = (0..n).map(|c| x(r, c).powi(2)).sum::<f64>() / n as f64;
        let rstd = 1.0 / (mean + eps).sqrt();
        let loss = sum / 2.0 + 4.0 * U;
        near(got[1].floats()[r], rstd, rstd, DType::F32, loss, "rstd");
        let along = (0..n).map(|c| g[r * n + c] * w(c) * x(r, c) * rstd).sum::<f64>() / n as f64;
        let size = (0..n).map(|c| (g[r * n + c] * w(c) * x(r, c) * rstd).abs()).sum::<f64>() / n as f64;
        for c in 0..n {
            let (h, gw) = (x(r, c) * rstd, g[r * n + c] * w(c));
            near(got[0].floats()[r * n + c], h * w(c), (h * w(c)).abs(), s.x, loss + 2.0 * U, "y");
            let (dx, own) = (rstd * (gw - h * along), rstd * (gw.abs() + h.abs() * size));
            let at = if s.transposed { c * s.rows + r } else { r * n + c };
            near(got[2].floats()[at], dx, own, s.x, sum + 3.0 * loss + 8.0 * U, "dx");
            columns[c].0 += g[r * n + c] * h;
            columns[c].1 += (g[r * n + c] * h).abs();
        }
        if let Some(dtype) = s.weight.filter(|_| r + 1 == s.rows) {
            for (c, &(want, size)) in columns.iter().enumerate() {
                near(got[3].floats()[c], want, size, dtype, loss + 3.0 * U, "dweight");
            }
        }
    }
    if s.rows == 0 && s.weight.is_some() {
        assert!(got[3].floats().iter().all(|&x| x == 0.0), "{s:?}");
    }
}

#[test]
fn rms_norm_is_as_accurate_as_its_roundings_allow() {
    use DType::{BF16, F16, F32};
    let plain = Setting {
        rows: 3,
        cols: 8,
        x: F32,
        weight: Some(F32),
        transposed: false,
        scale: 1.0,
        eps: Some(1e-6),
    };
    let shapes =
        [(1, 1), (1, 7), (5, 33), (0, 16), (40, 64), (3, 129), (9, 1000), (2, 5000), (1, 65_536), (300, 70)];
    for (rows, cols) in shapes {
        for (x, weight) in [
            (F32, Some(F32)),
            (F32, None),
            (BF16, Some(BF16)),
            (BF16, Some(F32)),
            (F16, Some(F16)),
            (F16, Some(F32)),
            (F32, Some(BF16)),
            (F16, None),
        ] {
            check(Setting { rows, cols, x, weight, ..plain });
        }
    }
    for (rows, cols) in [(6, 40), (130, 65)] {
        for x in [F32, BF16, F16] {
            check(Setting { rows, cols, x, transposed: true, ..plain });
        }
    }
    // The largest f16 squared is far beyond f16, the smallest squared far below.
    for scale in [65_504.0, f64::exp2(-20.0), f64::exp2(-24.0)] {
        for eps in [None, Some(0.0)] {
            check(Setting { rows: 4, cols: 300, x: F16, weight: Some(F16), scale, eps, ..plain });
        }
    }
    check(Setting { eps: None, ..plain });
    check(Setting { scale: 1e15, ..plain });
    check(Setting { scale: 1e-15, ..plain });
}
