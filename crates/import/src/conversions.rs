//! Conversions of f32 to f32, which have an effect in mixed precision only. Knows tensors by number alone.

use crate::functionalize::TensorId;

/// A conversion of f32 to f32. In f32 PyTorch gives back the very tensor, so the export names it wherever the
/// model reads either. Who reads which matters to mixed precision alone; modules tell. One outside the module
/// that converts its argument has never seen the result, unless the module does nothing else with it.
#[derive(Debug)]
pub(crate) struct Conversion {
    /// What is converted.
    pub source: TensorId,
    /// Path of the module that converts.
    pub module: String,
    /// True if what is converted was made outside of that module.
    pub given: bool,
    /// True if the module itself reads the result.
    pub read: bool,
}

/// True if a module is the other one or inside of it.
pub(crate) fn within(path: &str, module: &str) -> bool {
    module.is_empty()
        || path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '@']))
}
