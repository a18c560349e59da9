//! Matrix products and what is made of them.

operators! {
    addmm: ADDMM, ADDBMM, OUTER, ADDR;
    linear: LINEAR;
    matmul: MATMUL;
}
