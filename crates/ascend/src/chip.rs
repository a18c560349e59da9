//! Generations of chips.

/// A generation of chips: instructions, memories and binaries differ between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// `__NPU_ARCH__` 2201: Atlas A2 and A3 (910B, 910_93). Cube and vector cores are apart, one to two.
    A2,
    /// `__NPU_ARCH__` 2002: Atlas 300I/V Pro (310P). One core has both a cube and a vector unit.
    P310,
}
