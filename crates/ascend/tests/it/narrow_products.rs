//! Products of f16 on 310P onto rows of less than 32 bytes, which go through rows of whole blocks: beside
//! f64.

use headwater_ascend::device::AscendSim;
use headwater_core::DType::F16;
use headwater_core::evaluate::evaluate;
use headwater_core::graph::{Builder, InputRole, OutputRole};
use headwater_core::ops::linear::linear::LINEAR;
use headwater_core::{Attrs, Tensor, TensorType};

/// Numbers in (-1, 1), as f16.
fn drawn(shape: &[usize], state: &mut u64) -> Tensor {
    let next = |_| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as f64 / f64::exp2(30.0) - 1.0
    };
    let values = (0..shape.iter().product::<usize>()).map(next).collect();
    Tensor::float(headwater_core::DType::F32, shape, values).cast(F16)
}

/// With u = 2⁻²⁴ sums of k exact products and a bias are right to γ(k) of their magnitudes, and rounded once
/// to f16.
#[test]
fn short_rows_are_right() {
    let mut state = 11;
    for [m, k, n] in [[200, 20, 7], [130, 16, 12], [1100, 33, 1]] {
        let (x, w, bias) = (drawn(&[m, k], &mut state), drawn(&[n, k], &mut state), drawn(&[n], &mut state));
        let mut graph = Builder::new();
        let inputs = [("x", &x), ("w", &w), ("bias", &bias)].map(|(name, t)| {
            Some(graph.input(name, TensorType::new(F16, t.shape().clone()), InputRole::User))
        });
        let y = graph.apply(&LINEAR, &inputs, Attrs::new()).unwrap()[0];
        graph.output("y", y, OutputRole::User);
        let graph = graph.finish();
        let run = |name: &str| {
            let device = AscendSim::from_name(name, 1).unwrap();
            let inputs = [x.clone(), w.clone(), bias.clone()];
            evaluate(&device, &graph, &inputs).unwrap_or_else(|e| panic!("{e}")).remove(0)
        };
        let (checked, fast) = (run("310p,checked"), run("310p"));
        assert_eq!(checked.to_bytes(), fast.to_bytes());
        let (x, w, bias) = (x.floats(), w.floats(), bias.floats());
        for (i, got) in fast.floats().iter().enumerate() {
            let (row, column) = (i / n, i % n);
            let terms = || (0..k).map(|p| x[row * k + p] * w[column * k + p]).chain([bias[column]]);
            let (sum, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
            let sums = 1.01 * k as f64 * f64::exp2(-24.0) * size;
            let bound = sums + (sum.abs() + sums) * f64::exp2(-11.0) + f64::exp2(-25.0);
            assert!((got - sum).abs() <= bound, "[{m}, {k}, {n}] {i}: {got}, not {sum}, bound {bound:e}");
        }
    }
}
