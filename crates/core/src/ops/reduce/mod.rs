//! Operators that reduce dimensions.

operators! {
    sum: SUM;
}
