//! Operators that make tensors from numbers alone.

operators! {
    full: FULL;
}
