//! Operators that make tensors from numbers alone.

operators! {
    constant: CONSTANT;
    full: FULL;
}
