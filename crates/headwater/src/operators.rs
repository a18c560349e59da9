//! The operators a user can import: Headwater's own, and custom ones registered from outside the import code.

use crate::core::Registry;

/// The standard operators together with the custom ones shipped here.
pub fn registry() -> Registry {
    Registry::standard().clone()
}
