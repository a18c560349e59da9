//! Imported models against what PyTorch recorded of them.

use std::path::Path;

/// Rounding of float64, ten thousand times over: the models sum a few hundred products.
const TOLERANCE: f64 = 1e4 * f64::EPSILON;

/// Decomposed, PyTorch loses their gradients: they exist in the training form alone.
const TRAIN_ALONE: [&str; 2] = ["pieces", "no_grad"];

fn check(folder: &str, name: &str) {
    let alone = folder == "writes" && TRAIN_ALONE.contains(&name);
    for form in if alone { &["train"][..] } else { &["train", "core"][..] } {
        let file = format!("../../goldens/{folder}/{name}.{form}.pt2");
        crate::support::truth::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file), TOLERANCE);
    }
}

macro_rules! goldens {
    ($($folder:ident: $($name:ident)*;)*) => {
        $(mod $folder { $(#[test] fn $name() { super::check(stringify!($folder), stringify!($name)) })* })*
    };
}

goldens! {
    writes: slices selects reshapes copies transposes chains later_reads pieces diagonals masks scatters no_grad buffers
        tied dtypes symbolic selections branches loops;
    complex: arithmetic products shapes writes transforms rotary fnet gfnet fno afno spectrogram;
}
