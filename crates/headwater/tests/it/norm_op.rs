//! Published test tables for RMS norm and its gradient, run through `headwater op` on the CPU and on
//! simulated chips. Every float dtype is within the error bound of their formulas around PyTorch's float64.

use crate::common::op::{attrs, op, table};
use headwater::core::{DType, Tensor};
use serde_json::Value;
use std::collections::BTreeMap;

struct Case {
    label: String,
    x: Tensor,
    weight: Option<Tensor>,
    cotangent: Tensor,
    /// Cotangent of the reciprocal root mean squares, if the case has one.
    rstd_cotangent: Option<Tensor>,
    /// Length of a row.
    row: usize,
    eps: Option<f64>,
    want: Vec<(String, Tensor)>,
    attrs: Vec<String>,
}

fn cases(name: &str) -> Vec<Case> {
    let (file, cases) = table(name);
    let of = |case: &Value| {
        let id = case["case"].as_str().unwrap();
        let tensor = |name: &str| file.tensors.get(&format!("{id}.{name}")).cloned();
        let args = case["args"].as_array().unwrap();
        let shape: Vec<String> = args[1].as_array().unwrap().iter().map(Value::to_string).collect();
        let row = args[1].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).product();
        let eps = args.get(3).and_then(Value::as_f64);
        let eps_attr = eps.map_or(String::new(), |eps| format!("eps={eps}"));
        let mut want: Vec<(String, Tensor)> = Vec::new();
        for (ours, theirs) in [("output.0", "output.0"), ("grad.input", "grad.0"), ("grad.weight", "grad.1")]
        {
            want.extend(tensor(theirs).map(|t| (ours.to_string(), t)));
        }
        Case {
            label: format!("{name}, case {id}"),
            x: tensor("input.0").unwrap(),
            weight: tensor("input.1"),
            cotangent: tensor("cotangent.0").unwrap(),
            rstd_cotangent: tensor("cotangent.1"),
            row,
            eps,
            want,
            attrs: attrs(&format!("normalized_shape={} {eps_attr}", shape.join(","))),
        }
    };
    cases.iter().map(of).collect()
}

/// Bounds of the errors of `output.0`, `grad.input` and `grad.weight`, with `u` a rounding of the dtype and
/// `v` one of the type that is computed in.
///
/// Each operand is off by u, and so is rstd, a mean of squares' root. A sum of n terms is off by n v, and
/// beside it a result takes at most ten further operations. The result is rounded once more. PyTorch's eps
/// without one is float64's.
fn bounds(case: &Case, dtype: DType) -> BTreeMap<&'static str, Vec<f64>> {
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let (u, v, n) = (dtype.epsilon() / 2.0, wide.epsilon() / 2.0, case.row);
    let eps = case.eps.unwrap_or(f64::EPSILON);
    let (x, g) = (case.x.floats(), case.cotangent.floats());
    let w = |j: usize| case.weight.as_ref().map_or(1.0, |w| w.floats()[j]);
    let rows = x.len() / n;
    let (mut y, mut dx, mut dw) = (Vec::new(), Vec::new(), vec![0.0; n]);
    for r in 0..rows {
        let (x, g) = (&x[r * n..][..n], &g[r * n..][..n]);
        let mean = x.iter().map(|x| x * x).sum::<f64>() / n as f64;
        let rstd = 1.0 / (mean + eps).sqrt();
        // Errors of rstd: the operands, the sum, and another eps.
        let other = if case.eps.is_none() { wide.epsilon() / (2.0 * mean) } else { 0.0 };
        let stat = u + (n + 10) as f64 * v + other;
        let along: f64 = (0..n).map(|j| (g[j] * w(j) * x[j] * rstd).abs()).sum::<f64>() / n as f64;
        for j in 0..n {
            let h = (x[j] * rstd).abs();
            let size = h * w(j).abs();
            y.push(size * (2.0 * u + stat + 10.0 * v) + u * size);
            // g, w, x and rstd in each term; rstd three times in the second one.
            let through = case.rstd_cotangent.as_ref().map_or(0.0, |c| c.floats()[r]);
            let terms = rstd * ((g[j] * w(j)).abs() + h * along + (through * rstd * h).abs() / n as f64);
            dx.push(terms * (5.0 * u + 3.0 * stat + (n + 10) as f64 * v) + u * terms);
            dw[j] += (g[j] * h).abs() * (2.0 * u + stat + (rows + 10) as f64 * v + u);
        }
    }
    // Second-order terms, and the tiniest numbers of f16.
    let room = |all: Vec<f64>| -> Vec<f64> { all.into_iter().map(|b| 1.01 * b + 2f64.powi(-25)).collect() };
    [("output.0", room(y)), ("grad.input", room(dx)), ("grad.weight", room(dw))].into()
}

/// Runs all cases on a device; gives what ran on the host, by reason: the dtypes.
fn all_cases(device: &str) -> BTreeMap<String, Vec<String>> {
    let mut on_host: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for case in cases("rms_norm").iter().chain(&cases("_fused_rms_norm")) {
        for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
            let mut tensors =
                vec![("input", case.x.cast(dtype)), ("grad_output.0", case.cotangent.cast(dtype))];
            tensors.extend(case.weight.as_ref().map(|w| ("weight", w.cast(dtype))));
            let stat = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
            tensors.extend(case.rstd_cotangent.as_ref().map(|c| ("grad_output.1", c.cast(stat))));
            let args = [case.attrs.clone(), vec!["--grad".to_string()]].concat();
            let (out, host) = op("rms_norm", device, tensors, &args).unwrap();
            let bounds = bounds(case, dtype);
            for (name, want) in &case.want {
                let got = out.get(name).unwrap();
                assert_eq!((got.dtype(), got.shape()), (dtype, want.shape()), "{} {name}", case.label);
                let numbers = got.floats().iter().zip(want.floats()).zip(&bounds[name.as_str()]);
                for (i, ((got, want), bound)) in numbers.enumerate() {
                    assert!(
                        (got - want).abs() <= *bound,
                        "{} in {dtype} on {device}: {name}[{i}] is {got}, not {want}, bound {bound:e}",
                        case.label
                    );
                }
            }
            for why in host {
                let list = on_host.entry(why).or_default();
                if !list.contains(&dtype.to_string()) {
                    list.push(dtype.to_string());
                }
            }
        }
    }
    on_host
}

#[test]
fn other_peoples_tables_pass() {
    assert!(all_cases("cpu").is_empty());
}

/// Dtypes in which some step ran on the host, sorted.
fn hosted(device: &str) -> Vec<String> {
    let mut dtypes: Vec<String> = all_cases(device).into_values().flatten().collect();
    dtypes.sort();
    dtypes.dedup();
    dtypes
}

/// Neither chip has f64.
#[test]
fn other_peoples_tables_pass_on_a2() {
    assert_eq!(hosted("ascend-sim:910b1"), ["f64"]);
}

/// 310P has no bf16 either.
#[test]
fn other_peoples_tables_pass_on_310p() {
    assert_eq!(hosted("ascend-sim:310p"), ["bf16", "f64"]);
}
