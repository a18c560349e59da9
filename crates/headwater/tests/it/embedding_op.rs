//! Published test tables for the gradient of an embedding, run through `headwater op` on the CPU and on
//! simulated chips. Every float dtype and every type of index is within the error bound of the kernel around
//! PyTorch's float64.

use crate::common::op::{attrs, op, table};
use headwater::core::{DType, Tensor};
use headwater::tensors::TensorFile;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// `got` is the sums of `grad` by `index`, divided by their number if asked, which PyTorch gives as `want`:
/// within one rounding and the bound for f32 sums (f64 for f64) of that length. The bound is the one of
/// `kernels::embedding_grad`.
fn judge(case: &Case, dtype: DType, got: &Tensor, grad: &Tensor, want: &Tensor) {
    let (unit, wide) = (dtype.epsilon() / 2.0, if dtype == DType::F64 { DType::F64 } else { DType::F32 });
    assert_eq!((got.dtype(), got.shape()), (dtype, want.shape()), "{}", case.label);
    let width = *want.shape().last().unwrap();
    for (i, (g, w)) in got.floats().iter().zip(want.floats()).enumerate() {
        let own = || case.index.ints().iter().enumerate().filter(|(_, row)| **row == (i / width) as i64);
        let terms = match own().count() {
            n if n <= 256 => n + 1,
            n => 257 + n.div_ceil(256),
        };
        let size: f64 = own().map(|(at, _)| grad.floats()[at * width + i % width].abs()).sum();
        // Errors of rounding the gradient itself, of the sum, and of the result. (No
        // subnormals in the table.)
        let weight = if case.by_frequency { 1.0 / own().count().max(1) as f64 } else { 1.0 };
        let error = (unit + terms as f64 * wide.epsilon() / 2.0) * size * weight;
        let bound = 1.01 * (error + unit * (w.abs() + error));
        assert!(
            (g - w).abs() <= bound,
            "{} in {dtype}: element {i} is {g}, not {w}, bound {bound:e}",
            case.label
        );
    }
}

struct Case {
    label: String,
    grad: Tensor,
    index: Tensor,
    want: Tensor,
    attrs: Vec<String>,
    rows: i64,
    by_frequency: bool,
}

fn cases() -> Vec<Case> {
    let (file, cases) = table("embedding_dense_backward");
    let tensor =
        |id: &Value, name: &str| file.get(&format!("{}.{name}", id.as_str().unwrap())).unwrap().clone();
    let of = |case: &Value| {
        let (id, args) = (&case["case"], &case["args"]);
        let list = format!("num_weights={} padding_idx={} scale_grad_by_freq={}", args[2], args[3], args[4]);
        Case {
            label: format!("case {id}"),
            grad: tensor(id, "input.0"),
            index: tensor(id, "input.1"),
            want: tensor(id, "output.0"),
            attrs: attrs(&list),
            rows: args[2].as_i64().unwrap(),
            by_frequency: args[4].as_bool().unwrap(),
        }
    };
    cases.iter().map(of).collect()
}

/// The type that the indices of case `i` have in the `j`-th dtype: every dtype with every type of index, in
/// turn.
fn kind(case: &Case, i: usize, j: usize) -> DType {
    let kind = [DType::I64, DType::I32, DType::I16, DType::I8, DType::U8][(i + j) % 5];
    if case.rows > 128 && kind.size() == 1 { DType::I16 } else { kind }
}

const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// Runs all cases on a device; gives those whose sums ran on the host, with their dtypes.
fn all_cases(device: &str) -> BTreeSet<String> {
    let cases = cases();
    assert!(cases.len() >= 18);
    let mut on_host = BTreeSet::new();
    for (i, case) in cases.iter().enumerate() {
        for (j, dtype) in DTYPES.into_iter().enumerate() {
            let grad = case.grad.cast(dtype);
            let tensors = vec![("grad_output", grad), ("indices", case.index.cast(kind(case, i, j)))];
            let (out, host) = op("embedding_dense_backward", device, tensors, &case.attrs).unwrap();
            judge(case, dtype, out.get("output.0").unwrap(), &case.grad, &case.want);
            if host.iter().any(|line| line.starts_with("embedding_dense_backward: ")) {
                on_host.insert(format!("{i} {dtype}"));
            }
        }
    }
    on_host
}

/// The cases that a chip has no kernel for: f64, indices that are neither i32 nor i64, rows without elements;
/// `lacks` says of which dtypes, or of tables of so many elements, it has none beside.
fn refused(lacks: impl Fn(DType, usize) -> bool) -> BTreeSet<String> {
    let mut refused = BTreeSet::new();
    for (i, case) in cases().iter().enumerate() {
        for (j, dtype) in DTYPES.into_iter().enumerate() {
            let elements = case.want.shape().numel();
            let index = !matches!(kind(case, i, j), DType::I32 | DType::I64);
            if dtype == DType::F64 || index || elements == 0 || lacks(dtype, elements) {
                refused.insert(format!("{i} {dtype}"));
            }
        }
    }
    refused
}

#[test]
fn other_peoples_tables_pass() {
    assert!(all_cases("cpu").is_empty());
}

#[test]
fn other_peoples_tables_pass_on_a2() {
    assert_eq!(all_cases("ascend-sim:910b1"), refused(|_, _| false));
}

/// 310P has no bf16, and copies nothing shorter than 32 bytes.
#[test]
fn other_peoples_tables_pass_on_310p() {
    let lacks = |dtype: DType, elements: usize| dtype == DType::BF16 || elements * dtype.size() < 32;
    assert_eq!(all_cases("ascend-sim:310p"), refused(lacks));
}

/// The operators with policies are reached the same way, and errors say what is wrong and where.
#[test]
fn policies_are_attributes() {
    let case = &cases()[8];
    let mut bad = case.index.ints().to_vec();
    bad[7] = 5;
    let bad = Tensor::int(DType::I64, case.index.shape().clone(), bad);
    let tensors =
        |index: &Tensor| vec![("grad_output", case.grad.cast(DType::F32)), ("indices", index.clone())];
    let op = |name, tensors, list: &[String]| op(name, "cpu", tensors, list).map(|(out, _)| out);
    let refused = op("embedding_dense_backward", tensors(&bad), &case.attrs).unwrap_err();
    assert!(refused.contains("index 5 at position 7 is outside 0..5"), "{refused}");
    let skip = attrs("num_weights=5 bad_index=skip overflow=saturate");
    let out = op("embedding_dense_backward_ex", tensors(&bad), &skip).unwrap();
    assert_eq!(out.get("output.1").unwrap().ints(), [1, 7, 5, 0, 0, -1, -1]);
    let refused =
        op("embedding_dense_backward_ex", tensors(&bad), &attrs("num_weights=5 overflow=maybe")).unwrap_err();
    assert!(refused.contains("`overflow` is `maybe`: it may be inf, saturate"), "{refused}");

    // Concatenated shards are the whole, and so are the rows of the sparse form.
    let whole = op("embedding_dense_backward", tensors(&case.index), &case.attrs).unwrap();
    let whole = whole.get("output.0").unwrap();
    let mut together = Vec::new();
    for shard in 0..2 {
        let shard = attrs(&format!("num_weights=5 shards=2 padding_idx=-1 shard={shard}"));
        let out = op("embedding_dense_backward_ex", tensors(&case.index), &shard).unwrap();
        together.extend_from_slice(out.get("output.0").unwrap().floats());
    }
    assert_eq!(together, whole.floats());
    let sparse = op("embedding_sparse_backward", tensors(&case.index), &attrs("num_weights=5")).unwrap();
    let (rows, sums) = (sparse.get("output.0").unwrap(), sparse.get("output.1").unwrap());
    assert_eq!(sparse.get("output.2").unwrap().ints(), [rows.ints().len() as i64]);
    assert_eq!(rows.ints(), [0, 1, 2, 3, 4]);
    assert_eq!(sums.floats(), whole.floats());
}

/// The ladder as the command prints it: every rung on every distribution.
#[test]
fn the_ladder_has_all_its_rungs() {
    let sizes =
        ["--rows", "300", "--width", "24", "--indices", "400", "--dtype", "bf16", "--method", "radix"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    let out = command.args(["--json", "bench", "embedding-grad", "--quick"]).args(sizes).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    let ladders = found["ladders"].as_array().unwrap();
    let drawn: Vec<_> = ladders.iter().map(|l| l["problem"]["indices"].as_str().unwrap()).collect();
    assert_eq!(drawn, ["uniform", "zipf", "heavy"]);
    for ladder in ladders {
        let rungs = ladder["rungs"].as_array().unwrap();
        assert!(rungs.len() == 6 && ladder["method"] == "radix", "{ladder}");
        assert!(rungs.iter().all(|r| r["seconds"].as_f64() > Some(0.0) && r["error"].as_f64() < Some(0.1)));
    }
}

/// Fields that `--json` gives for an operator's results, not the table's texts; a NaN is not lost among
/// larger numbers.
#[test]
fn results_are_described_in_fields() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.safetensors"), folder.path().join("out.safetensors"));
    for (x, largest) in [(-4.0, Some(8.0)), (f64::NAN, None)] {
        let own = Tensor::float(DType::F32, [1, 3], vec![x, 1.0, 3.0]);
        let tensors = [("self", own.clone()), ("other", own)].map(|(n, t)| (n.to_string(), t)).into();
        TensorFile { tensors, ..TensorFile::default() }.write(&input).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        command.args(["--json", "op", "aten.add.Tensor", "--in"]).arg(&input).arg("--out").arg(&output);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let found: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!((&found["operator"], &found["device"]), (&"aten.add.Tensor".into(), &"cpu".into()));
        let [t] = &found["tensors"].as_array().unwrap()[..] else { panic!("{found}") };
        assert_eq!((&t["name"], &t["dtype"]), (&"output.0".into(), &"f32".into()));
        assert_eq!(t["shape"], serde_json::json!([1, 3]));
        assert_eq!(t["largest"].as_f64(), largest);
    }
}
