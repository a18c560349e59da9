//! Operators that passes make, and what is understood without computing anything.

operators! {
    detach: DETACH, OVERWRITE;
    fused: FUSED;
    on_host: ON_HOST;
}
