//! Operators that passes make, and operators that compute nothing.

operators! {
    custom_vjp: COTANGENT_OF, CUSTOM_VJP;
    detach: DETACH, OVERWRITE;
    fused: FUSED;
    on_host: ON_HOST;
}
