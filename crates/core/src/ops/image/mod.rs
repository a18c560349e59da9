//! Operators on images.
operators! {}
