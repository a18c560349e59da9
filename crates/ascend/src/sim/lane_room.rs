//! Buffers for the lanes that an instruction of the vector unit computes at a time.

/// Lanes that are computed at a time.
pub const CHUNK: usize = 512;

/// A batch of lanes: results and up to three operands.
pub struct Lanes<T> {
    /// Results.
    pub out: [T; CHUNK],
    /// Operands.
    pub x: [[T; CHUNK]; 3],
}

/// Buffers for a batch, kept from one instruction to the next.
#[derive(Default)]
pub struct LaneRoom {
    /// Floating-point types.
    pub floats: Option<Box<Lanes<f32>>>,
    /// Integers.
    pub ints: Option<Box<Lanes<i64>>>,
    /// Bits of types of at most 32 bits.
    pub bits: Option<Box<Lanes<u32>>>,
    /// Any type but i64.
    pub numbers: Option<Box<Lanes<f64>>>,
}
