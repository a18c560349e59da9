//! Softmax and the normalizations, with their gradients: all row programs.

operators! {
    softmax: SOFTMAX, SOFTMAX_BACKWARD;
}
