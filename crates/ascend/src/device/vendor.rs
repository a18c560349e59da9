//! Kinds of operators to choose from, our own kernels or the vendor's.

/// Kernels of products, attention and convolutions on an NPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AscendOps {
    /// Our own, as everything else.
    #[default]
    Own,
    /// The vendor's operators (aclnn), where they compute a step; they round otherwise.
    Vendor,
}
