//! Seeded faults: kernels that are changed in one place, drawn by a seed. Each fault must be found by a check
//! of the stand-in, by a result outside of its derived bound, or by bits that are not those of the kernel as
//! it was; or the change must be without effect for a reason that is derived from the text.

use crate::common::{machine, skipped};
use headwater_core::conformance::{Truth, graph_of, numbers};
use headwater_core::device::Device;
use headwater_core::graph::Graph;
use headwater_core::ops::{Case, Sample};
use headwater_core::pass::{self, narrow_integers};
use headwater_core::plan::{Bindings, Plan, SegmentKind, TensorView};
use headwater_core::{DType, Registry, Result, Tensor, evaluate};
use headwater_cuda::host::Installation;
use headwater_cuda::host::context::Settings;
use headwater_cuda::program::Work;
use headwater_cuda::{Cuda, CudaProgram, lower};
use headwater_launch::LoweredArg;
use std::collections::BTreeMap;

/// Kernels that are changed.
const MUTANTS: usize = 200;
/// Most changes in a hundred that may be without effect.
const WITHOUT_EFFECT: usize = 5;

/// Operators with shapes that need every way: warps and blocks for rows, vectors kept in registers, sums over
/// rows in several blocks, groups of neighbours, gathers, sorted gradients.
fn subjects() -> Vec<(&'static str, Case, DType)> {
    use DType::{BF16, F32};
    // All different, except that the largest of every second row occurs twice.
    let mut numbers: Vec<f64> = (0..40 * 600).map(|i| f64::from(i * 7919 % 24001)).collect();
    for row in numbers.chunks_mut(600).step_by(2) {
        let largest = row.iter().copied().fold(0.0, f64::max);
        row[if row[77] == largest { 78 } else { 77 }] = largest;
    }
    let ties = Case::new("ties").arg(DType::F64, &[40, 600], Sample::Values(numbers));
    vec![
        ("silu", Case::new("vectors").range(&[33, 64], -4.0, 4.0), F32),
        ("add", Case::new("broadcast").f(&[30, 70]).f(&[70]), BF16),
        ("softmax", Case::new("warps").f(&[9, 200]).attr("dim", 1i64), F32),
        ("softmax", Case::new("blocks").f(&[2, 9000]).attr("dim", 1i64), F32),
        (
            "rms_norm",
            Case::new("rows").f(&[70, 96]).f(&[96]).attr("normalized_shape", [96]).attr("eps", 1e-5),
            F32,
        ),
        (
            "layer_norm",
            Case::new("rows")
                .f(&[300, 80])
                .f(&[80])
                .f(&[80])
                .attr("normalized_shape", [80])
                .attr("eps", 1e-5),
            BF16,
        ),
        ("sum", Case::new("rows").f(&[300, 300]).attr("dim", [0]).attr("keepdim", false), F32),
        ("sum", Case::new("long").f(&[3, 9000]).attr("dim", [1]).attr("keepdim", false), F32),
        ("amax", ties.attr("dim", [1]).attr("keepdim", false), F32),
        // Some rows of the table are not read.
        ("embedding", Case::new("rows").f(&[50, 24]).index(&[700], 40), F32),
        ("cross_entropy_loss", Case::new("rows").f(&[40, 130]).index(&[40], 130).none(), F32),
    ]
}

/// A kernel of a subject, and the graph that it is part of.
struct Kernel {
    subject: usize,
    body: String,
    blocks: u32,
    /// Parameters that hold results which nothing reads.
    unread: Vec<usize>,
}

struct Subject {
    name: String,
    graph: Graph,
    exact: Graph,
    inputs: Vec<Tensor>,
    /// Inputs that end in an error.
    refused: Option<Vec<Tensor>>,
}

impl Subject {
    /// Results of the inputs, or the error of those that end in one.
    fn run(&self, gpu: &Cuda) -> Result<(Vec<Tensor>, String)> {
        let results = evaluate(gpu, &self.graph, &self.inputs)?;
        let error = |inputs: &Vec<Tensor>| {
            evaluate(gpu, &self.graph, inputs).map_or_else(|e| e.to_string(), |_| String::new())
        };
        Ok((results, self.refused.as_ref().map_or_else(String::new, error)))
    }
}

/// True if a result of a plan's step is neither read by a later step nor a result of the plan.
fn is_unread(plan: &Plan, step: usize, view: &TensorView) -> bool {
    let bytes = |v: &TensorView| {
        let size = v.dtype.size() as isize;
        let steps = || v.layout.shape.iter().zip(&v.layout.strides).map(|(&n, s)| s * (n as isize - 1));
        let (before, after): (isize, isize) =
            (steps().map(|s| s.min(0)).sum(), steps().map(|s| s.max(0)).sum());
        let start = v.place.offset as isize + v.layout.offset * size;
        start + before * size..start + (after + 1) * size
    };
    let meets = |v: &&TensorView| {
        let (a, b) = (bytes(v), bytes(view));
        v.place.segment == view.place.segment && a.start < b.end && b.start < a.end
    };
    let read = plan.steps[step + 1..].iter().any(|s| s.reads.iter().flatten().any(|v| meets(&v)));
    !read && matches!(plan.segments[view.place.segment.0 as usize].kind, SegmentKind::Arena)
}

fn subject((op, case, dtype): &(&'static str, Case, DType)) -> Subject {
    let registry = Registry::standard();
    let op = registry.by_name(op).unwrap();
    let name = format!("{} ({}) in {dtype}", op.name, case.name);
    let graph = graph_of(op, case, *dtype).unwrap_or_else(|| panic!("{name}"));
    let inputs = numbers(&graph, case);
    // An index whose low half alone would be in range, among those of the last block.
    let indices = matches!(op.name, "embedding" | "cross_entropy_loss");
    let refused = indices.then(|| {
        let mut bad = inputs.clone();
        let mut index = bad[1].ints().to_vec();
        let last = index.len();
        index[last - 10] = (5 << 32) + 3;
        bad[1] = Tensor::int(DType::I64, bad[1].shape().clone(), index);
        bad
    });
    Subject { name, exact: graph_of(op, case, DType::F64).unwrap(), inputs, refused, graph }
}

fn kernels(gpu: &Cuda, number: usize, subject: &Subject, all: &mut BTreeMap<String, Kernel>) {
    let target = gpu.target();
    let graph = narrow_integers(pass::on_host(subject.graph.clone(), target).unwrap(), target).unwrap();
    let plan = pass::plan(&graph, &Bindings::simple(&graph), target).unwrap();
    for (i, step) in plan.steps.iter().enumerate() {
        let Ok(lowered) = lower::step(step) else { continue };
        for launch in &lowered.launches {
            let CudaProgram { work: Work::Text { body, .. }, .. } = &*launch.program else { continue };
            let unread = |arg: &LoweredArg| match *arg {
                LoweredArg::Write { operand, .. } => is_unread(&plan, i, &step.writes[operand]),
                _ => false,
            };
            let unread = (0..launch.args.len()).filter(|&p| unread(&launch.args[p])).collect();
            let kernel = Kernel { subject: number, body: body.clone(), blocks: launch.blocks, unread };
            all.entry(body.clone()).or_insert(kernel);
        }
    }
}

/// The places after a word, and the arguments of the call that it begins.
fn calls<'a>(body: &'a str, word: &'a str) -> impl Iterator<Item = (usize, Vec<(usize, usize)>)> + 'a {
    body.match_indices(word).map(move |(at, _)| {
        let start = at + word.len();
        let (mut depth, mut from, mut args) = (1, start, Vec::new());
        for (i, c) in body[start..].char_indices() {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                _ => {}
            }
            if depth == 0 || (depth == 1 && c == ',') {
                args.push((from, start + i));
                from = start + i + 1;
            }
            if depth == 0 {
                break;
            }
        }
        (at, args)
    })
}

/// A change: its kind, and the text after it. `None` for the reason if it has an effect.
struct Change {
    what: String,
    body: String,
    without_effect: Option<&'static str>,
}

fn changes(kernel: &Kernel) -> Vec<Change> {
    let body = &kernel.body;
    let mut all = Vec::new();
    let mut change = |what: &str, from: (usize, usize), to: &str, without_effect| {
        let line = body[..from.0].matches('\n').count() + 1;
        let text = format!("{}{to}{}", &body[..from.0], &body[from.1..]);
        all.push(Change { what: format!("{what} in line {line}"), body: text, without_effect });
    };
    let once = (kernel.blocks == 1).then_some("there is one block");
    for (at, word) in body.match_indices("hw_sync();") {
        let last = (!body[at..].contains("room") && body.contains("u8* const room"))
            .then_some("no shared memory is used after it");
        change("a barrier left out", (at, at + word.len()), "", last);
    }
    for (word, what) in [("hw_ld(", "a read"), ("hw_st(", "a store")] {
        for (at, args) in calls(body, word) {
            let (from, to) = args[1];
            let index = body[from..to].trim();
            change(&format!("{what} moved up"), (from, to), &format!(" ({index}) + 1"), None);
            change(&format!("{what} moved down"), (from, to), &format!(" ({index}) - 1"), None);
            if word == "hw_st(" {
                let end = args[2].1 + 1;
                let target = &body[args[0].0..args[0].1];
                let unread = kernel.unread.iter().any(|p| target.contains(&format!("hw_a.p[{p}]")));
                let reason = match unread {
                    true => Some("nothing reads the result"),
                    // `IndexFault` reads the first four words of a report.
                    false => body[at..end].contains("report, w, 0").then_some("nothing reads the last words"),
                };
                change("a store left out", (at, end), "(void)0", reason);
            }
        }
    }
    for word in ["hw_ldn<", "hw_stn<"] {
        for (at, _) in body.match_indices(word) {
            // After the type's arguments: the pointer, then the index.
            let open = at + body[at..].find(">(").map_or(0, |i| i + 1);
            let Some((_, args)) = calls(&body[open..], "(").next() else { continue };
            let (from, to) = (open + args[1].0, open + args[1].1);
            let index = body[from..to].trim().to_string();
            change("a group of neighbours moved", (from, to), &format!(" ({index}) + 4"), None);
        }
    }
    for name in ["sum", "max", "min", "prod"] {
        let word = format!("hw_warp_{name}(");
        for (at, _) in body.match_indices(&word) {
            change("an exchange left out", (at, at + word.len()), "(", None);
        }
    }
    for (at, word) in body.match_indices("hw_block()") {
        change("two blocks on one place", (at, at + word.len()), "(hw_block() / 2)", once);
    }
    for (at, word) in body.match_indices("c += 32") {
        change("columns left out", (at, at + word.len()), "c += 64", None);
        let greatest = !body.contains("hw_add(") && !body.contains("hw_mul(");
        let reason = greatest.then_some("a maximum of the same numbers twice is theirs");
        change("columns twice", (at, at + word.len()), "c += 16", reason);
    }
    for (at, word) in body.match_indices("hw_init(") {
        // 0 begins a sum, 2 a maximum.
        let kind = &body[at + word.len()..at + word.len() + 1];
        let other = if kind == "0" { "1" } else { "3" };
        change("another beginning of a sum", (at + word.len(), at + word.len() + 1), other, None);
    }
    all
}

#[test]
fn planted_faults_of_real_kernels_are_found() {
    if skipped("planted_faults_of_real_kernels_are_found") {
        return;
    }
    let machine = machine(13);
    let installation = Installation::of(vec![machine.path().to_owned()]);
    // Without a cache: binaries with a fault must stay out of it.
    let open = || Cuda::on(0, &installation, Settings { poison: true, ..Settings::default() }, None).unwrap();
    let gpu = open();
    let target = gpu.target().clone();
    let subjects: Vec<Subject> = subjects().iter().map(subject).collect();
    let mut all = BTreeMap::new();
    subjects.iter().enumerate().for_each(|(i, s)| kernels(&gpu, i, s, &mut all));
    let right: Vec<_> =
        subjects.iter().map(|s| s.run(&gpu).unwrap_or_else(|e| panic!("{}: {e}", s.name))).collect();
    let truths: Vec<Truth> =
        (subjects.iter()).map(|s| Truth::new(&s.graph, &s.exact, &s.inputs, &target).unwrap()).collect();
    drop(gpu);
    let mut drawn: Vec<(&Kernel, Change)> =
        all.values().flat_map(|kernel| changes(kernel).into_iter().map(move |c| (kernel, c))).collect();
    let possible = drawn.len();
    assert!(possible >= MUTANTS, "{possible} changes");
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for i in (1..drawn.len()).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        drawn.swap(i, (random >> 33) as usize % (i + 1));
    }
    let (mut found, mut wrong, mut bits, mut equal) = (0, 0, 0, 0);
    let mut missed = Vec::new();
    for (kernel, change) in drawn.iter().take(MUTANTS) {
        let s = &subjects[kernel.subject];
        // A failed context does nothing more: a device for each.
        let gpu = open();
        machine.replace(&kernel.body, &change.body);
        let result = s.run(&gpu);
        drop(gpu);
        assert!(machine.replaced() > 0, "{}: {}", s.name, change.what);
        let Ok(got) = result else {
            machine.revive();
            found += 1;
            continue;
        };
        let mut lines = Vec::new();
        truths[kernel.subject].judge(&s.name, &got.0, &mut lines);
        match change.without_effect {
            _ if !lines.is_empty() => wrong += 1,
            _ if got.1 != right[kernel.subject].1 => wrong += 1,
            _ if got.0 != right[kernel.subject].0 => bits += 1,
            Some(_) => equal += 1,
            None => missed.push(format!("{}: {}\n{}", s.name, change.what, change.body)),
        }
    }
    eprintln!(
        "of {MUTANTS} changes (of {possible} in {} kernels): {found} found by the stand-in, {wrong} by wrong results, \
         {bits} by other bits, {equal} without effect by proof, {} missed",
        all.len(),
        missed.len()
    );
    assert!(missed.is_empty(), "{} missed:\n{}", missed.len(), missed.join("\n\n"));
    assert!(equal * 100 <= MUTANTS * WITHOUT_EFFECT, "{equal} without effect");
    assert!(found >= MUTANTS / 2, "{found} found by the stand-in");
}
