//! Operators that passes make, and operators that compute nothing.

operators! {
    detach: DETACH, OVERWRITE;
    fused: FUSED;
    on_host: ON_HOST;
}
