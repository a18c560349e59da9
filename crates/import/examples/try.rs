use headwater_core::Registry;
use headwater_import::*;
fn main() {
    for path in std::env::args().skip(1) {
        let r = Program::open(&path).and_then(|p| {
            let d = Dims::new().or_exported();
            p.bind(&d, Registry::standard())
        });
        match r {
            Ok(i) => {
                println!(
                    "{path}: {} nodes {} inputs {} outputs {} notes",
                    i.graph.nodes.len(),
                    i.graph.inputs.len(),
                    i.graph.outputs.len(),
                    i.notes.len()
                );
                if let Err(e) = headwater_core::graph::verify::verify(&i.graph) {
                    println!("   VERIFY {e}");
                }
                for n in &i.notes {
                    println!("   note {n}");
                }
            }
            Err(e) => {
                let s = e.to_string();
                println!(
                    "{path}: {}",
                    s.lines().filter(|l| !l.starts_with("      ")).collect::<Vec<_>>().join("\n")
                )
            }
        }
    }
}
