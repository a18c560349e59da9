//! Matrix products and what is made of them.

operators! {
    addmm: ADDMM, ADDBMM, OUTER, ADDR;
    einsum: EINSUM;
    linear: LINEAR;
    matmul: MATMUL;
}
