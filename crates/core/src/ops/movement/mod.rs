//! Operators that move elements without computing.

operators! {
    block_diag: BLOCK_DIAG, CARTESIAN_PROD;
    cat: CAT;
    combinations: COMBINATIONS;
    flip: FLIP;
    meshgrid: MESHGRID, BROADCAST_TENSORS;
    pad: PAD, CONSTANT_PAD_ND, REFLECTION_PAD, REPLICATION_PAD, PAD_CIRCULAR;
    repeat: REPEAT, TILE;
    repeat_interleave: REPEAT_INTERLEAVE;
    roll: ROLL, ROLL_DIMS;
    rot90: ROT90, FLIPLR, FLIPUD;
    stack: STACK, HSTACK, VSTACK, DSTACK, COLUMN_STACK, ATLEAST_1D, ATLEAST_2D, ATLEAST_3D;
    tril: TRIL, TRIU;
}
