//! The place in the user's model that a node comes from.

use std::fmt;

/// Index into a graph's origins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct OriginId(pub u32);

/// The place in the user's model that a node was traced from.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Origin {
    /// Name of the node in the exported graph, e.g. `layer_norm_3`.
    pub node: String,
    /// Path of the innermost module, e.g. `encoder.layer.0.attention`; empty for the root.
    pub module: String,
    /// Class of that module, e.g. `BertSelfAttention`.
    pub class: String,
    /// Source file of the model, as recorded.
    pub file: String,
    /// Line in `file`; 0 if unknown.
    pub line: u32,
    /// The source text of that line.
    pub code: String,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.node.is_empty() { "(no name)" } else { &self.node })?;
        if !self.module.is_empty() {
            write!(f, " in {}", self.module)?;
        }
        if !self.class.is_empty() {
            write!(f, " ({})", self.class)?;
        }
        if !self.file.is_empty() {
            write!(f, ", {}:{}", self.file, self.line)?;
        }
        if !self.code.is_empty() {
            write!(f, ": `{}`", self.code)?;
        }
        Ok(())
    }
}
