//! Types of registers, and of the functions that operate on them.

use headwater_core::{Class, DType};

/// Type of the elements of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ty {
    F32,
    F64,
    /// Any integer.
    I64,
    /// 0 or 1 in a byte.
    Bool,
}

impl Ty {
    /// The type of a class in a program that computes floats in `float`.
    pub fn of(class: Class, float: Ty) -> Ty {
        match class {
            Class::Float => float,
            Class::Int => Ty::I64,
            Class::Bool => Ty::Bool,
        }
    }

    /// Bytes per element.
    pub fn size(self) -> usize {
        self.dtype().size()
    }

    /// The dtype with the same form in memory.
    pub fn dtype(self) -> DType {
        match self {
            Ty::F32 => DType::F32,
            Ty::F64 => DType::F64,
            Ty::I64 => DType::I64,
            Ty::Bool => DType::Bool,
        }
    }

    /// The type reductions accumulate in.
    pub fn accumulator(self) -> Ty {
        if self == Ty::F32 { Ty::F64 } else { self }
    }
}

/// Computes `n` elements from those of up to three arguments.
pub(super) type Map = unsafe fn([*const u8; 3], *mut u8, usize);
/// Copies `n` elements with conversion: source, destination, step in elements of whichever is in memory.
pub(super) type Move = unsafe fn(*const u8, *mut u8, isize, usize);
/// Folds a tile into accumulators: tile of `slow × fast` elements, slow, fast, accumulators.
pub(super) type Fold = unsafe fn(*const u8, usize, usize, *mut u8);

/// Adds the products of two tiles to accumulators: tiles, slow, fast, accumulators.
pub(super) type Dot = unsafe fn(*const u8, *const u8, usize, usize, *mut u8);
