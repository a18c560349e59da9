//! What steers gradients and computes nothing.

operators! {
    detach: DETACH, OVERWRITE;
}
