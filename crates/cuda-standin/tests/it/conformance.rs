//! Operators on the stand-in, in checked mode, within derived bounds; and row programs with the bits of the
//! CPU.

use crate::common::{device, machine, skipped};
use headwater_core::DType::{self, BF16, F16, F32, F64};
use headwater_core::conformance::{Truth, graph_of, numbers};
use headwater_core::device::Device;
use headwater_core::expr::elementary::FUNCTIONS;
use headwater_core::expr::{Binary, Unary};
use headwater_core::graph::Graph;
use headwater_core::ops::{Case, OpDef};
use headwater_core::pass::{self, narrow_integers};
use headwater_core::plan::{Bindings, Plan, Step, TensorView, Work};
use headwater_core::row::{Instr, Operand};
use headwater_core::{Code, Registry, Result, Tensor, evaluate, expand};
use headwater_cpu::{Cpu, Tier};
use headwater_cuda::Cuda;
use headwater_cuda::host::context::Settings;
use std::collections::BTreeMap;

/// Operators of every way to run a row program, products, and embeddings: all their cases are in every run.
const ALWAYS: &[&str] = &[
    "add",
    "silu",
    "gelu",
    "where",
    "softmax",
    "log_softmax",
    "rms_norm",
    "layer_norm",
    "cross_entropy_loss",
    "sum",
    "amax",
    "prod",
    "matmul",
    "linear",
    "embedding",
    "embedding_dense_backward",
    "cumsum",
    "cumprod",
    "check_index",
    "philox_uniform",
    "constant",
    "max_pool2d_with_indices",
    "avg_pool2d",
    "attention",
    "group_norm",
    "remainder",
];
/// One in so many of the other cases is in every run, by the digest of its name.
const PART: u64 = 24;

/// Results of the cases.
#[derive(Default)]
struct Found {
    ran: usize,
    operators: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
    /// Cases of row programs alone, those of them with the bits of the CPU, and the others.
    rows: usize,
    same: usize,
    apart: Vec<String>,
    /// Cases with other bits although their functions have one definition for both devices.
    unexpected: Vec<String>,
}

fn digest(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// The plan that a device runs for a graph.
fn planned(gpu: &Cuda, graph: &Graph) -> Result<Plan> {
    let target = gpu.target();
    let graph = narrow_integers(pass::on_host(graph.clone(), target)?, target)?;
    pass::plan(&graph, &Bindings::simple(&graph), target)
}

/// Steps of a plan that runs row programs alone, which are not expansions, and nothing on the host.
fn row_programs(gpu: &Cuda, graph: &Graph, plan: Plan) -> Option<Vec<Step>> {
    let here = gpu.survey(&plan).iter().all(|step| step.host.is_none());
    let rows = plan.steps.iter().all(|step| matches!(step.work, Work::Rows(_)));
    let expanded = graph.nodes.iter().any(|node| expand::find(node.op).is_some());
    (here && rows && !expanded && !plan.steps.is_empty()).then_some(plan.steps)
}

/// True if a program's functions are IEEE's, or have one definition for all devices; and its sums have one
/// order: the CPU adds up a dimension that is not contiguous term by term.
fn is_shared(step: &Step) -> bool {
    let Work::Rows(p) = &step.work else { return false };
    let theirs = |i: &Instr| match i {
        Instr::Unary(f, _) => {
            matches!(f, Unary::Expm1 | Unary::Log1p | Unary::Sin | Unary::Cos | Unary::Tan | Unary::Atan)
                || (FUNCTIONS.contains(f) && p.computes_in_f64())
        }
        Instr::Binary(f, ..) => matches!(f, Binary::Pow | Binary::Atan2),
        _ => false,
    };
    let folds = p.body.iter().any(|i| matches!(i, Instr::Reduce(..)));
    let last = (0..p.inner.len()).rev().find(|&d| p.inner[d] > 1).map(|d| d + p.outer.len());
    let contiguous = |(o, view): (&Operand, &Option<TensorView>)| {
        let moves = last.and_then(|d| o.access.0[d]).zip(view.as_ref());
        moves.is_none_or(|((dim, step), view)| view.layout.strides[dim] * step as isize == 1)
    };
    !p.body.iter().any(theirs) && (!folds || p.reads.iter().zip(&step.reads).all(contiguous))
}

fn one(gpu: &Cuda, cpu: &Cpu, op: &'static OpDef, case: &Case, dtype: DType, found: &mut Found) {
    let name = format!("{} ({}) in {dtype}", op.name, case.name);
    let Some(exact) = graph_of(op, case, F64) else {
        return found.wrong.push(format!("{name}: does not take its own case"));
    };
    let Some(graph) = graph_of(op, case, dtype) else { return };
    let inputs = numbers(&graph, case);
    // A case may be about refused numbers.
    let Ok(truth) = Truth::new(&graph, &exact, &inputs, gpu.target()) else { return };
    let got = match evaluate(gpu, &graph, &inputs) {
        Ok(got) => got,
        Err(e) => return found.wrong.push(format!("{name}: {e}")),
    };
    truth.judge(&name, &got, &mut found.wrong);
    found.ran += 1;
    *found.operators.entry(op.name).or_default() += 1;
    let Some(programs) = planned(gpu, &graph).ok().and_then(|plan| row_programs(gpu, &graph, plan)) else {
        return;
    };
    let want = match evaluate(cpu, &graph, &inputs) {
        Err(e) if e.code == Code::Unsupported => return,
        want => want.unwrap_or_else(|e| panic!("{name} on the CPU: {e}")),
    };
    let bits = |outs: &[Tensor]| outs.iter().map(Tensor::to_bytes).collect::<Vec<_>>();
    found.rows += 1;
    if bits(&got) == bits(&want) {
        found.same += 1;
    } else {
        if programs.iter().all(is_shared) {
            found.unexpected.push(name.clone());
        }
        found.apart.push(name);
    }
}

/// Runs cases of all operators in some dtypes, each in an order of threads, blocks and streams of the seed's.
fn run(seed: u64, dtypes: &[DType], chosen: impl Fn(&OpDef, &str) -> bool) -> Found {
    let machine = machine(seed);
    let gpu = device(&machine, Settings { poison: true, ..Settings::default() });
    let cpu = Cpu::new(1).with_tier(Tier::Portable).unwrap();
    let mut found = Found::default();
    for op in Registry::standard().operators() {
        for (i, case) in (op.cases)().iter().enumerate() {
            for &dtype in dtypes.iter().filter(|d| chosen(op, &format!("{} {i} {d}", op.name))) {
                one(&gpu, &cpu, op, case, dtype, &mut found);
            }
        }
    }
    drop(gpu);
    assert_eq!(machine.live(), [0; 6], "handles are left; wrong: {:?}", found.wrong);
    found
}

impl Found {
    fn check(&self, least: usize) {
        let Found { ran, rows, same, .. } = self;
        eprintln!(
            "{ran} cases of {} operators; of {rows} of row programs alone, {same} have the bits of the CPU",
            self.operators.len()
        );
        if std::env::var_os("HEADWATER_VERBOSE").is_some() {
            eprintln!("apart:\n{}", self.apart.join("\n"));
        }
        assert!(self.wrong.is_empty(), "{} cases:\n{}", self.wrong.len(), self.wrong.join("\n"));
        assert!(self.unexpected.is_empty(), "{}:\n{}", self.unexpected.len(), self.unexpected.join("\n"));
        assert!(*ran >= least, "{ran} cases");
    }
}

#[test]
fn operators_conform() {
    if skipped("operators_conform") {
        return;
    }
    let found =
        run(7, &[F32, F16, BF16], |op, name| ALWAYS.contains(&op.name) || digest(name).is_multiple_of(PART));
    found.check(300);
    ALWAYS.iter().for_each(|op| assert!(found.operators.contains_key(op), "{op} did not run"));
}

/// Every case of every operator: thousands of kernels are compiled.
fn every(dtype: DType) {
    if !skipped("every_operator_conforms") {
        run(0, &[dtype], |_, _| true).check(900);
    }
}

#[test]
#[ignore = "minutes"]
fn every_operator_conforms_in_f32() {
    every(F32);
}

#[test]
#[ignore = "minutes"]
fn every_operator_conforms_in_f16() {
    every(F16);
}

#[test]
#[ignore = "minutes"]
fn every_operator_conforms_in_bf16() {
    every(BF16);
}
