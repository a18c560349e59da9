//! The operators a user can import: Headwater's own, and custom ones registered from outside the import code.

pub mod grouped_mm;

use crate::core::Registry;
use crate::core::ops::OpDef;

/// Custom operators shipped here.
const CUSTOM: [&OpDef; 2] = [&grouped_mm::GROUPED_MM, &grouped_mm::GROUPED_MM_BACKWARD];

/// The standard operators together with the custom ones shipped here.
pub fn registry() -> Registry {
    let mut registry = Registry::standard().clone();
    for op in CUSTOM {
        if let Err(e) = registry.register(op) {
            // Unreachable while the tests pass: they make this registry.
            panic!("{e}");
        }
    }
    registry
}
