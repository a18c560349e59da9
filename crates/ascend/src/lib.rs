//! The Ascend device. The host side opens the vendor's libraries at run time; nothing here is needed to build.

pub mod chip;
pub mod host;
