//! Imported models against what PyTorch recorded of them.

mod support;
#[path = "support/truth.rs"]
mod truth;

use std::path::Path;

/// Rounding of float64, ten thousand times over: the models sum a few hundred products.
const TOLERANCE: f64 = 1e4 * f64::EPSILON;

fn write(name: &str) {
    for form in ["train", "core"] {
        let file = format!("../../goldens/writes/{name}.{form}.pt2");
        truth::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file), TOLERANCE);
    }
}

macro_rules! writes {
    ($($name:ident)*) => { $(#[test] fn $name() { write(stringify!($name)) })* };
}

writes! {
    slices selects reshapes copies transposes chains later_reads pieces diagonals masks scatters no_grad
    buffers tied dtypes symbolic
}
