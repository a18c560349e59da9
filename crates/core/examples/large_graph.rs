//! Times every stage of the compiler over synthetic models of 50,000 nodes: `cargo run --release -p
//! headwater-core --example large_graph`. A first argument sets another number of nodes.

#[path = "../tests/it/common/large.rs"]
mod large;

use headwater_core::compile::{CompiledGraph, Options, Stage, StageResult, compile};
use headwater_core::graph::{parse, verify};
use headwater_core::pass::precision::{Level, PrecisionSettings};
use headwater_core::pass::upcast;
use headwater_core::plan::Bindings;
use headwater_core::target::Target;
use headwater_core::{DType, Error, Graph, Registry, Result};
use std::cell::Cell;
use std::time::Instant;

fn timed<T>(what: &str, total: &mut f64, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = f();
    let seconds = start.elapsed().as_secs_f64();
    *total += seconds;
    println!("  {what:<20}{seconds:>9.3} s");
    result
}

fn run(name: &str, build: impl FnOnce() -> Graph) -> Result<()> {
    let target = Target::default();
    println!("{name}");
    // Building by hand and printing are not part of compiling a model.
    let mut aside = 0.0;
    let graph = timed("(build)", &mut aside, build);
    println!("  {} nodes, {} parameters", graph.nodes.len(), graph.parameters().count());
    let text = timed("(print)", &mut aside, || graph.to_string());
    timed("(parse)", &mut aside, || parse(&text, Registry::standard()))?;
    timed("(lift to f64)", &mut aside, || upcast(&graph, DType::F64))?;

    let mut total = 0.0;
    timed("verify", &mut total, || verify(&graph))?;
    // Every stage that a training step in mixed precision with summed micro-batches goes through.
    let precision = PrecisionSettings { level: Level::O1, ..PrecisionSettings::default() }
        .properties(&Target::default())?;
    let (clock, total) = (Cell::new(Instant::now()), Cell::new(total));
    let watch = |stage: &'static Stage, made: &StageResult| {
        let seconds = clock.get().elapsed().as_secs_f64();
        total.set(total.get() + seconds);
        println!("  {:<20}{seconds:>9.3} s  {} nodes or steps", stage.name, made.size());
        clock.set(Instant::now());
    };
    let options = Options { precision, accumulate: true, watch: Some(&watch), ..Options::default() };
    let bind = |compiled: &CompiledGraph| Ok::<_, Error>(Bindings::simple(&compiled.graph));
    let compiled = compile(graph, &options, &target, bind)?;
    verify(&compiled.graph)?;
    let missing = compiled.missing.len();
    let plan = compiled.into_plan()?;
    println!("  {missing} gradients missing, arena of {} KiB", plan.segments[0].bytes >> 10);
    println!("  {:<20}{:>9.3} s", "total", total.get());
    let text = timed("(print plan)", &mut aside, || plan.to_string());
    timed("(parse plan)", &mut aside, || headwater_core::plan::parse(&text, Registry::standard()))?;
    Ok(())
}

fn main() -> Result<()> {
    let nodes = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(50_000);
    run("deep: a transformer", || large::deep(nodes))?;
    run("wide: branches of one input", || large::wide(nodes))
}
