//! The label of rewrites: how far results may change.

/// The change that a rewrite may make in results.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Exactness {
    /// Nothing: the same bits in the reference interpreter.
    Exact,
    /// The same operations in the same order, and every rounding that the model requests by a conversion. A
    /// device that computes in f32 gives the same bits. The reference, which computes in f64, rounds to f32
    /// less often.
    SameAccumulator,
    /// The same accumulators and every rounding that the model requests, but sums are taken in another order.
    /// Numbers that are rounded only because they go to memory stay in registers.
    Reordered,
    /// The result is rounded otherwise, within the same bound of error.
    ChangesRounding,
}
