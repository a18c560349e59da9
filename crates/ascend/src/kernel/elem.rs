//! Element types, pipes and kinds of cores, with their names in texts and in Ascend C.

use crate::words::words;
use headwater_core::DType;

words! {
    /// Type of an element in memory.
    Elem {
        /// `int8_t`
        I8 = "i8",
        /// `uint8_t`; also eight results of a comparison, lowest bit first.
        U8 = "u8",
        /// `int16_t`
        I16 = "i16",
        /// `uint16_t`
        U16 = "u16",
        /// `int32_t`
        I32 = "i32",
        /// `uint32_t`
        U32 = "u32",
        /// `int64_t`
        I64 = "i64",
        /// IEEE binary16, `half`
        F16 = "f16",
        /// `bfloat16_t`
        BF16 = "bf16",
        /// IEEE binary32, `float`
        F32 = "f32",
    }
}

words! {
    /// An in-order queue of a core. Pipes run beside each other; flags order them.
    Pipe {
        /// Scalar unit, which also issues to all others.
        S = "s",
        /// Vector unit.
        V = "v",
        /// Cube unit.
        M = "m",
        /// L1 to L0 and to the bias table.
        Mte1 = "mte1",
        /// GM to UB, L1, L0.
        Mte2 = "mte2",
        /// UB to GM (310P: and to L1).
        Mte3 = "mte3",
        /// L0C to GM or L1.
        Fix = "fix",
    }
}

words! {
    /// Kind of core that a part of a kernel runs on.
    Unit {
        /// A2's vector core.
        Vector = "vector",
        /// A2's cube core.
        Cube = "cube",
        /// 310P's core, with both units.
        Whole = "whole",
    }
}

impl Elem {
    /// Bytes of one element.
    pub const fn size(self) -> u64 {
        match self {
            Elem::I8 | Elem::U8 => 1,
            Elem::I16 | Elem::U16 | Elem::F16 | Elem::BF16 => 2,
            Elem::I32 | Elem::U32 | Elem::F32 => 4,
            Elem::I64 => 8,
        }
    }

    /// Elements in a block of 32 bytes.
    pub const fn per_block(self) -> u64 {
        32 / self.size()
    }

    /// Elements that one repeat of a vector instruction covers: 256 bytes.
    pub const fn per_repeat(self) -> u64 {
        256 / self.size()
    }

    /// Type in Ascend C.
    pub const fn c_name(self) -> &'static str {
        match self {
            Elem::I8 => "int8_t",
            Elem::U8 => "uint8_t",
            Elem::I16 => "int16_t",
            Elem::U16 => "uint16_t",
            Elem::I32 => "int32_t",
            Elem::U32 => "uint32_t",
            Elem::I64 => "int64_t",
            Elem::F16 => "half",
            Elem::BF16 => "bfloat16_t",
            Elem::F32 => "float",
        }
    }

    /// True if this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Elem::F16 | Elem::BF16 | Elem::F32)
    }

    /// The type in which a tensor of `dtype` is stored in GM; f64 has none.
    pub const fn of(dtype: DType) -> Option<Elem> {
        Some(match dtype {
            DType::Bool | DType::U8 => Elem::U8,
            DType::I8 => Elem::I8,
            DType::I16 => Elem::I16,
            DType::I32 => Elem::I32,
            DType::I64 => Elem::I64,
            DType::F16 => Elem::F16,
            DType::BF16 => Elem::BF16,
            DType::F32 => Elem::F32,
            DType::F64 => return None,
        })
    }
}
