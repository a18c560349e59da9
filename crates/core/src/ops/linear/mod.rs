//! Matrix products and what is made of them.

operators! {
    addmm: ADDMM, ADDBMM, OUTER, ADDR;
    bilinear: BILINEAR;
    cross: CROSS;
    einsum: EINSUM;
    kron: KRON;
    grouped_mm: GROUPED_MM, GROUPED_MM_WEIGHT_BACKWARD;
    linear: LINEAR;
    matmul: MATMUL;
    matmul_sum: MATMUL_SUM;
    tensordot: TENSORDOT, INNER;
    vecdot: VECDOT;
}
