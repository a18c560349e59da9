//! Functions that groups of instructions have in common, and their other words.

use crate::words::words;

words! {
    /// Vector functions of one operand.
    Unary {
        /// Absolute value.
        Abs = "abs",
        /// Exponential function.
        Exp = "exp",
        /// Natural logarithm.
        Ln = "ln",
        /// Square root.
        Sqrt = "sqrt",
        /// Reciprocal of the square root, good to about 1e-3 (f16) and 1e-4 (f32): prefer `sqrt` and `div`.
        Rsqrt = "rsqrt",
        /// Reciprocal, as coarse.
        Reciprocal = "reciprocal",
        /// Larger of the element and 0.
        Relu = "relu",
        /// Bits inverted.
        Not = "not",
    }
}

words! {
    /// Vector functions of two operands. Integer sums, differences and products stay within their type, which
    /// the simulator checks: a control bit makes some chips saturate them (CTRL\[53\]), and A2 raises its
    /// overflow status. The `wrapping` ones are marked as assuming that the low bits come out.
    Binary {
        /// Sum.
        Add = "add",
        /// Difference.
        Sub = "sub",
        /// Product.
        Mul = "mul",
        /// Quotient.
        Div = "div",
        /// Larger.
        Max = "max",
        /// Smaller.
        Min = "min",
        /// Bits in both.
        And = "and",
        /// Bits in either.
        Or = "or",
        /// `dst += src0 · src1`, rounded twice.
        MulAddDst = "mul_add_dst",
        /// Sum of integers that may leave their type; the result is the low bits.
        AddWrapping = "add_wrapping",
        /// Difference, likewise.
        SubWrapping = "sub_wrapping",
        /// Product, likewise.
        MulWrapping = "mul_wrapping",
    }
}

words! {
    /// Vector functions of an operand and a scalar.
    Scaled {
        /// `src + scalar`
        Adds = "adds",
        /// `src · scalar`
        Muls = "muls",
        /// `max(src, scalar)`
        Maxs = "maxs",
        /// `min(src, scalar)`
        Mins = "mins",
        /// `src` if positive, else `src · scalar`
        LeakyRelu = "leaky_relu",
        /// `src << scalar`
        ShiftLeft = "shift_left",
        /// `src >> scalar`, with the sign where the type has one
        ShiftRight = "shift_right",
        /// `dst + src · scalar`; `src` may be f16 beside a f32 `dst`
        Axpy = "axpy",
        /// `src + scalar` of integers that may leave their type; the result is the low bits
        AddsWrapping = "adds_wrapping",
        /// `src · scalar`, likewise
        MulsWrapping = "muls_wrapping",
    }
}

words! {
    /// Reductions of a repeat to one value, and of a block to one value.
    Reduction {
        /// Sum of a repeat's elements, in a tree of neighbours.
        WholeSum = "whole_reduce_sum",
        /// Maximum of a repeat's elements, of equal ones the first.
        WholeMax = "whole_reduce_max",
        /// Minimum of a repeat's elements, of equal ones the first.
        WholeMin = "whole_reduce_min",
        /// Sum of each block.
        BlockSum = "block_reduce_sum",
        /// Maximum of each block.
        BlockMax = "block_reduce_max",
        /// Minimum of each block.
        BlockMin = "block_reduce_min",
        /// Sums of neighbours, 2i and 2i + 1.
        PairSum = "pair_reduce_sum",
    }
}

words! {
    /// Ordering within a core or between cores.
    Barrier {
        /// Vector instructions before it are done before later ones start.
        V = "barrier_v",
        /// The same for the cube unit.
        M = "barrier_m",
        /// The same for copies into L0.
        Mte1 = "barrier_mte1",
        /// The same for copies from GM.
        Mte2 = "barrier_mte2",
        /// The same for copies to GM.
        Mte3 = "barrier_mte3",
        /// The same for copies out of L0C.
        Fix = "barrier_fix",
        /// All pipes of the core are done before the core goes on.
        All = "barrier_all",
        /// All cores of the kernel have arrived here (A2, in hardware): every core's GM writes are visible
        /// after it.
        Cores = "sync_all",
    }
}

words! {
    /// Conversion of results on their way out of L0C.
    Quant {
        /// As they are: f32, i32.
        Off = "off",
        /// f32 to f16, to nearest even.
        F16 = "f16",
        /// f32 to bf16, to nearest even.
        BF16 = "bf16",
    }
}

words! {
    /// Layout of results on their way out of L0C.
    Layout {
        /// Fractals, in their order in memory.
        Nz = "nz",
        /// Rows.
        Nd = "nd",
    }
}
