//! Operators that move elements without computing.

operators! {
    cat: CAT;
}
