//! An operator from outside with a kernel of its own is a file (`custom_kernel/discounted_cumsum.rs`) and a
//! line (`with_kernels` below). It then runs natively, in every dtype that the kernel takes.

#[path = "custom_kernel/discounted_cumsum.rs"]
mod discounted_cumsum;

use discounted_cumsum::{DISCOUNTED_CUMSUM, KERNEL};
use headwater_core::conformance::{self, Truth, graph_of, numbers};
use headwater_core::device::Device;
use headwater_core::ops::pointwise::silu::SILU;
use headwater_core::ops::{Case, OpDef};
use headwater_core::pass::plan;
use headwater_core::plan::Bindings;
use headwater_core::{DType, Tensor, evaluate};
use headwater_cpu::kernels::Kernel;
use headwater_cpu::{Cpu, Tier};

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

fn cpu(threads: usize) -> Cpu {
    Cpu::new(threads).with_kernels(&[&KERNEL]).unwrap()
}

/// More rows than a block has.
fn large() -> Case {
    Case::new("large").f(&[2000, 70]).attr("gamma", 0.9)
}

#[test]
fn it_agrees_with_the_reference_in_every_dtype() {
    let cases = (DISCOUNTED_CUMSUM.cases)().len();
    for device in [cpu(1), cpu(2), cpu(7), cpu(2).with_tier(Tier::Portable).unwrap(), Cpu::new(2)] {
        let found = conformance::operator(&device, &DISCOUNTED_CUMSUM, &FLOATS);
        assert!(found.wrong.is_empty(), "{:?}", found.wrong);
        assert_eq!(found.ran["discounted_cumsum"], cases * FLOATS.len());
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for dtype in FLOATS {
        let graph = graph_of(&DISCOUNTED_CUMSUM, &large(), dtype).unwrap();
        let exact = graph_of(&DISCOUNTED_CUMSUM, &large(), DType::F64).unwrap();
        let inputs = numbers(&graph, &large());
        let device = cpu(1);
        let truth = Truth::new(&graph, &exact, &inputs, device.target()).unwrap();
        let [one, two, seven] = [1, 2, 7].map(|threads| evaluate(&cpu(threads), &graph, &inputs).unwrap());
        let mut wrong = Vec::new();
        truth.judge("discounted_cumsum", &one, &mut wrong);
        assert!(wrong.is_empty(), "{wrong:?}");
        let bits = |all: &[Tensor]| all.iter().map(Tensor::to_bytes).collect::<Vec<_>>();
        assert!(bits(&one) == bits(&two) && bits(&one) == bits(&seven), "{dtype}");
    }
}

/// The host that `inspect` reports for each step of an operator with its gradient.
fn hosts(device: &Cpu, op: &'static OpDef) -> Vec<Option<String>> {
    let graph = graph_of(op, &(op.cases)()[0], DType::F32).unwrap();
    let plan = plan(&graph, &Bindings::simple(&graph), device.target()).unwrap();
    device.survey(&plan).into_iter().map(|used| used.host).collect()
}

/// Another operator that has taken the name.
static OTHER: OpDef = OpDef { schemas: &[], ..DISCOUNTED_CUMSUM };

#[test]
fn reports_say_what_runs_natively() {
    let reference = Some("no kernel".to_string());
    assert_eq!(hosts(&cpu(1), &DISCOUNTED_CUMSUM), [None, None]);
    assert_eq!(hosts(&Cpu::new(1), &DISCOUNTED_CUMSUM), [reference.clone(), reference.clone()]);
    // Its gradient is the one that has the kernel.
    assert_eq!(hosts(&cpu(1), &OTHER), [reference, None]);
}

static OF_POINTWISE: Kernel = Kernel { op: &SILU, ..KERNEL };

#[test]
fn kernels_that_would_never_run_are_refused() {
    let refused = |kernel| cpu(1).with_kernels(&[kernel]).unwrap_err().to_string();
    assert!(refused(&KERNEL).contains("`discounted_cumsum` has a kernel already"));
    assert!(refused(&OF_POINTWISE).contains("`silu` needs no kernel"));
}

/// The page that explains this shows the kernel as it is.
#[test]
fn the_contributors_page_shows_the_kernel() {
    let page = include_str!("../../../../CONTRIBUTING.md");
    let file = include_str!("custom_kernel/discounted_cumsum.rs");
    let kernel = &file[file.find("/// [`DISCOUNTED_CUMSUM`] on the CPU").unwrap()..];
    assert!(page.contains(kernel.trim_end()), "CONTRIBUTING.md must show the kernel as it is");
    assert!(page.contains("with_kernels(&[&KERNEL])?"));
}
