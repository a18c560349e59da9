//! Random numbers, all from one counter-based source.

operators! {
    philox: PHILOX_UNIFORM;
}
