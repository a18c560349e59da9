//! Attention.

operators! {
    attention: ATTENTION, ATTENTION_BACKWARD;
    sdpa: SDPA;
}
