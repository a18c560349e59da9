//! Operators that show the same memory under another layout.

operators! {
    expand: EXPAND;
    permute: PERMUTE;
    reshape: RESHAPE;
    slice: SLICE, SLICE_SCATTER;
}
