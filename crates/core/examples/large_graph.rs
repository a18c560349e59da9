//! Times every pass over synthetic models of 50,000 nodes: `cargo run --release -p headwater-core --example
//! large_graph`. A first argument sets another number of nodes.

#[path = "../tests/common/large.rs"]
mod large;

use headwater_core::graph::{parse, verify};
use headwater_core::pass::{check_plan, decompose, differentiate, fuse, lift, plan, recompute, simplify};
use headwater_core::plan::Bindings;
use headwater_core::target::Target;
use headwater_core::{DType, Graph, Registry, Result};
use std::time::Instant;

fn timed<T>(what: &str, total: &mut f64, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = f();
    let seconds = start.elapsed().as_secs_f64();
    *total += seconds;
    println!("  {what:<16}{:>9.3} s", seconds);
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
    timed("(lift to f64)", &mut aside, || lift(&graph, DType::F64))?;

    let mut total = 0.0;
    timed("verify", &mut total, || verify(&graph))?;
    let graph = timed("decompose", &mut total, || decompose(graph))?;
    let loss = graph.outputs[0].value;
    let d = timed("differentiate", &mut total, || differentiate(graph, loss))?;
    println!("  {} nodes, {} gradients missing", d.graph.nodes.len(), d.missing.len());
    let s = timed("simplify", &mut total, || simplify(d.graph));
    let (identities, merged, folded) = (s.identities, s.merged, s.folded);
    println!("  {} nodes ({identities} identities, {merged} merged, {folded} folded)", s.graph.nodes.len());
    let graph = timed("fuse", &mut total, || fuse(s.graph, &target))?;
    let graph = timed("recompute", &mut total, || recompute(graph, &target))?;
    timed("verify again", &mut total, || verify(&graph))?;
    let plan = timed("plan", &mut total, || plan(&graph, &Bindings::simple(&graph), &target))?;
    println!("  {} steps, arena of {} KiB", plan.steps.len(), plan.segments[0].bytes >> 10);
    timed("check plan", &mut total, || check_plan(&plan))?;
    println!("  total           {total:>9.3} s");
    Ok(())
}

fn main() -> Result<()> {
    let nodes = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(50_000);
    run("deep: a transformer", || large::deep(nodes))?;
    run("wide: branches of one input", || large::wide(nodes))
}
