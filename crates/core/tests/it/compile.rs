//! The table of stages: written once, shown where it is documented, and the only order in which passes are
//! called.

use headwater_core::compile::{
    CompiledGraph, Form, Goal, GradientRequest, Options, STAGES, Stage, StageResult, compile, optimize, stage,
};
use headwater_core::graph::{InputRole, OutputRole, Phase, parse, verify};
use headwater_core::ops::pointwise::{exp::EXP, gelu::GELU};
use headwater_core::pass::check_plan;
use headwater_core::pass::precision::{Level, PrecisionSettings, Properties};
use headwater_core::plan::{self, Bindings, Plan};
use headwater_core::target::Target;
use headwater_core::train::{self, BucketLayout, BucketSize};
use headwater_core::{Builder, Code, DType, Error, Graph, Registry, TensorType};
use std::cell::RefCell;
use std::path::{Path, PathBuf};

fn model() -> Graph {
    let mut b = Builder::new();
    let w = b.parameter("w", DType::F32, &[4, 3]);
    let unused = b.parameter("unused", DType::F32, &[2]);
    let x = b.input("x", TensorType::new(DType::F32, [8, 4]), InputRole::User);
    let h = b.matmul(x, w).unwrap();
    let h = b.call(&GELU, &[h]).unwrap();
    let loss = b.sum(h, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    b.output("hidden", h, OutputRole::User);
    let twice = b.add(unused, unused).unwrap();
    b.output("twice", twice, OutputRole::User);
    b.finish()
}

fn simple(compiled: &CompiledGraph) -> Result<Bindings, Error> {
    Ok(Bindings::simple(&compiled.graph))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn default_options_are_those_of_default_settings() {
    assert_eq!(Properties::default(), PrecisionSettings::default().properties(&Target::default()).unwrap());
}

#[test]
fn names_are_unique_and_forms_meet() {
    for (i, s) in STAGES.iter().enumerate() {
        assert!(STAGES[..i].iter().all(|other| other.name != s.name), "{} twice", s.name);
        assert!(std::ptr::eq(stage(s.name).unwrap(), s));
        let given = STAGES[..i].last().map_or(Form::Forward, |before| before.output);
        assert_eq!(s.input, given, "{} is given what {i} makes", s.name);
    }
    assert!(STAGES.last().unwrap().output == Form::Plan);
}

#[test]
fn every_stages_text_reads_back() {
    let precision = PrecisionSettings { level: Level::O2, ..PrecisionSettings::default() }
        .properties(&Target::default())
        .unwrap();
    for options in [
        Options { precision, accumulate: true, ..Options::default() },
        Options { upcast: Some(DType::F64), all_outputs: true, ..Options::default() },
        Options { goal: Goal::Evaluate, ..Options::default() },
    ] {
        let seen = RefCell::new(Vec::new());
        let watch = |stage: &'static Stage, made: &StageResult| {
            seen.borrow_mut().push(stage.name);
            match made {
                StageResult::Graph(graph) => {
                    verify(graph).unwrap_or_else(|e| panic!("{}: {e}", stage.name));
                    let text = graph.to_string();
                    assert_eq!(parse(&text, Registry::standard()).unwrap().to_string(), text);
                }
                StageResult::Plan(made) => {
                    let text = made.to_string();
                    assert_eq!(plan::parse(&text, Registry::standard()).unwrap().to_string(), text);
                }
            }
        };
        let options = Options { watch: Some(&watch), ..options };
        let compiled = compile(model(), &options, &Target::default(), simple).unwrap();
        let reported: Vec<&str> = compiled.report.iter().map(|r| r.stage.name).collect();
        assert_eq!(*seen.borrow(), reported);
        assert_eq!(seen.borrow().last(), Some(&"plan"));
        assert!(compiled.report.windows(2).all(|w| w[0].after == w[1].before), "{:?}", compiled.report);
    }
}

#[test]
fn gradients_and_missing_ones_are_reported() {
    let compiled = compile(model(), &Options::default(), &Target::default(), simple).unwrap();
    assert_eq!(compiled.gradients.len(), 1);
    assert_eq!(
        (compiled.gradients[0].parameter.as_str(), compiled.missing[0].parameter.as_str()),
        ("w", "unused")
    );
    assert_eq!(compiled.graph.outputs.iter().filter(|o| o.role == OutputRole::User).count(), 1);
    assert!(compiled.into_plan().is_ok());
}

#[test]
fn a_step_differentiates_given_outputs_with_respect_to_given_inputs() {
    let derivative = GradientRequest::Vjp { outputs: &["hidden", "loss"], inputs: &["x", "w", "unused"] };
    let options = Options { derivative, ..Options::default() };
    let compiled = compile(model(), &options, &Target::default(), simple).unwrap();
    let mut got: Vec<&str> = compiled.gradients.iter().map(|g| g.parameter.as_str()).collect();
    got.sort_unstable();
    assert_eq!(got, ["w", "x"]);
    assert_eq!(compiled.missing[0].parameter, "unused");
    let fed: Vec<&str> = compiled.graph.inputs.iter().skip(3).map(|i| i.name.as_str()).collect();
    assert_eq!(fed, ["cotangent.hidden", "cotangent.loss"]);
    assert_eq!(compiled.graph.outputs.iter().filter(|o| o.role == OutputRole::User).count(), 3);
    assert!(compiled.into_plan().is_ok());
    for (outputs, inputs, says) in
        [(["nothing"], ["x"], "no user output `nothing`"), (["loss"], ["y"], "no input `y`")]
    {
        let derivative = GradientRequest::Vjp { outputs: &outputs, inputs: &inputs };
        let e = optimize(model(), &Options { derivative, ..Options::default() }, &Target::default());
        let e = e.unwrap_err();
        assert!(e.code == Code::Attribute && e.message.contains(says), "{e}");
    }
}

#[test]
fn compilation_stops_where_it_is_told_to() {
    let options = Options { stop_after: Some("differentiate"), ..Options::default() };
    let compiled = compile(model(), &options, &Target::default(), simple).unwrap();
    assert_eq!(compiled.report.last().unwrap().stage.name, "differentiate");
    assert_eq!(compiled.into_plan().unwrap_err().code, Code::Plan);
    let options = Options { stop_after: Some("nowhere"), ..Options::default() };
    let e = optimize(model(), &options, &Target::default()).unwrap_err();
    assert!(e.message.starts_with("there is no stage `nowhere`; the stages are evaluation, upcast"), "{e}");
}

/// The row of a stage in ARCHITECTURE.md.
fn row(s: &Stage) -> String {
    let form = |f: Form| format!("{f:?}").to_lowercase();
    format!("| `{}` | {} → {} | {} | {} |", s.name, form(s.input), form(s.output), s.label(), s.summary)
}

#[test]
fn the_architecture_shows_the_table() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows: Vec<String> = STAGES.iter().map(row).collect();
    assert!(text.contains(&rows.join("\n")), "ARCHITECTURE.md should have these rows:\n{}", rows.join("\n"));
}

/// Rust files below a folder.
fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn the_order_of_passes_is_written_once() {
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    assert!(files.len() > 300, "only {} files found", files.len());
    // Tests of passes call them one by one; whatever compiles a model has its order from the table.
    let own = ["core/src/pass", "core/src/compile", "core/tests"].map(|f| root().join("crates").join(f));
    let others = files.iter().filter(|f| !own.iter().any(|own| f.starts_with(own)));
    let both = others.filter(|file| {
        let text = std::fs::read_to_string(file).unwrap();
        let calls = |names: &[&str]| names.iter().any(|n| text.contains(&format!("pass::{n}(")));
        let [fuse, differentiate] =
            [&["fuse"][..], &["differentiate", "differentiate_scaled", "vjp", "differentiate::gradients"]]
                .map(calls);
        fuse && differentiate
    });
    let both: Vec<&PathBuf> = both.collect();
    assert!(both.is_empty(), "these call `fuse` and `differentiate` themselves: {both:?}");
}

#[test]
fn a_step_in_halves_lists_what_crosses_and_the_checker_misses_nothing() {
    let options = Options { halves: true, all_outputs: true, ..Options::default() };
    let compiled = compile(model(), &options, &Target::default(), simple).unwrap();
    let plan = compiled.into_plan().unwrap();
    let text = plan.to_string();
    assert_eq!(plan::parse(&text, Registry::standard()).unwrap().to_string(), text);
    let halves = plan.halves.clone().unwrap();
    assert!(!halves.crossing.is_empty() && halves.returned.len() == 3, "{halves:?}");
    let refused = |change: &dyn Fn(&mut plan::Halves)| {
        let mut broken = plan.clone();
        change(broken.halves.as_mut().unwrap());
        check_plan(&broken).unwrap_err().message
    };
    assert!(refused(&|h| h.boundary -= 1).contains("on the other side of the boundary"));
    assert!(refused(&|h| h.returned[0].1 += 1 << 20).contains("without writing them all"));
    let arena = halves.crossing.iter().position(|c| c.place.segment == plan::ARENA).unwrap();
    assert!(refused(&|h| drop(h.crossing.remove(arena))).contains("not listed as crossing"));
    assert!(refused(&|h| h.returned.truncate(2)).contains("does not return them"));
    assert!(refused(&|h| h.returned[0].0.segment = plan::ARENA).contains("without writing them all"));
    // A backward step writes its result over one that the caller has been given.
    let mut broken = plan.clone();
    let (place, bytes) = halves.returned[1];
    let step = broken.steps[halves.boundary..].iter_mut().find(|s| !s.writes.is_empty()).unwrap();
    step.writes[0] = plan::TensorView {
        place,
        dtype: DType::U8,
        layout: headwater_core::Layout::contiguous(&[bytes].into()),
    };
    let e = check_plan(&broken).unwrap_err();
    assert!(e.message.contains("which the forward half returns"), "{e}");
    // One completed after the boundary.
    let mut broken = plan.clone();
    let writes = |s: &plan::Step| s.writes.iter().any(|w| w.place == place);
    let step = broken.steps.iter_mut().rfind(|s| writes(s)).unwrap();
    step.writes.retain(|w| w.place != place);
    let e = check_plan(&broken).unwrap_err();
    assert!(e.message.contains("without writing them all"), "{e}");
    let budget = Options { memory_budget: Some(1 << 20), ..options };
    assert_eq!(optimize(model(), &budget, &Target::default()).unwrap_err().code, Code::Attribute);
}

#[test]
fn a_gradient_that_the_forward_half_computes_is_delivered_by_the_backward_half() {
    let mut b = Builder::new();
    let w = b.parameter("w", DType::F32, &[4]);
    let e = b.call(&EXP, &[w]).unwrap();
    let loss = b.sum(e, &[0], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let options = Options { halves: true, recompute: false, ..Options::default() };
    let compiled = compile(b.finish(), &options, &Target::default(), simple).unwrap();
    let gradient = compiled.graph.outputs.iter().find(|o| o.role == OutputRole::Gradient(w)).unwrap();
    let (producer, _) = compiled.graph.producer(gradient.value).unwrap();
    assert_eq!(producer.phase, Phase::Forward, "equal nodes are merged: {}", compiled.graph);
    let plan = compiled.into_plan().unwrap();
    let halves = plan.halves.unwrap();
    assert_eq!((halves.returned.len(), halves.crossing.len()), (1, 1), "{halves:?}");
    assert!(plan.steps[halves.boundary..].iter().any(|s| s.writes.iter().any(|w| w.place.segment.0 == 3)));
}

#[test]
fn the_plan_names_the_step_that_completes_each_bucket_and_the_checker_misses_nothing() {
    let mut b = Builder::new();
    let mut x = b.input("x", TensorType::new(DType::F32, [8, 4]), InputRole::User);
    for i in 0..4 {
        let w = b.parameter(&format!("{i}"), DType::F32, &[4, 4]);
        let h = b.matmul(x, w).unwrap();
        x = b.call(&GELU, &[h]).unwrap();
    }
    let loss = b.sum(x, &[0, 1], false).unwrap();
    b.output("loss", loss, OutputRole::User);
    let model = b.finish();
    for (accumulate, size) in
        [(false, BucketSize::of(1)), (true, BucketSize::of(1)), (true, BucketSize::UNLIMITED)]
    {
        let bind = |c: &CompiledGraph| {
            let parameters = c.gradients.iter().map(|g| (g.parameter.as_str(), &g.ty, 0));
            Ok::<_, Error>(train::bind(&c.graph, &BucketLayout::new(parameters, size)))
        };
        let options = Options { accumulate, ..Options::default() };
        let plan = compile(model.clone(), &options, &Target::default(), bind).unwrap().into_plan().unwrap();
        let text = plan.to_string();
        assert_eq!(plan::parse(&text, Registry::standard()).unwrap().completions, plan.completions);
        let complete: Vec<(u32, usize)> = plan.completions.iter().map(|c| (c.segment.0, c.step)).collect();
        assert_eq!(complete.len(), if size == BucketSize::UNLIMITED { 1 } else { 4 });
        assert!(complete.is_sorted_by_key(|c| c.1), "{complete:?}");
        for (segment, step) in &complete {
            let writes = |s: &plan::Step| s.writes.iter().any(|w| w.place.segment.0 == *segment);
            assert!(text.contains(&format!("complete ${segment} step {step}\n")));
            assert_eq!(plan.steps.iter().rposition(writes), Some(*step));
        }
        let refused = |change: &dyn Fn(&mut Plan)| {
            let mut broken = plan.clone();
            change(&mut broken);
            check_plan(&broken).unwrap_err().message
        };
        let first = plan.completions[0];
        assert!(refused(&|p| p.completions[0].step = p.steps.len()).contains("does not write it"));
        assert!(refused(&|p| p.completions[0].segment.0 = 99).contains("cannot be complete"));
        assert!(refused(&|p| p.completions.push(first)).contains("complete twice"));
        // The step that completes the bucket runs once more at the end.
        let later = refused(&|p| p.steps.push(plan::Step { reads: vec![], ..p.steps[first.step].clone() }));
        assert!(later.contains("said to be complete after step"), "{later}");
    }
}
