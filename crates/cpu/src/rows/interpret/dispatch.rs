//! The loops of row programs by operation and type, looked up when a program is scheduled. Each loop of
//! `loops` is compiled here once for every instruction set.

use super::loops::*;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::simd;
use crate::rows::types::{Dot, Fold, Map, Move, Ty};
use crate::tier::Tier;
use half::{bf16, f16};
use headwater_core::expr::{Binary, Unary};
use headwater_core::row::Reduce;
use headwater_core::{Class, DType};

/// The functions of one tier. All keep the contract of `loops`.
#[derive(Clone, Copy)]
pub(in crate::rows) struct Table {
    /// By the types of argument and result.
    pub unary: fn(Ty, Unary, Ty) -> Map,
    pub binary: fn(Ty, Binary) -> Map,
    /// Functions of a vector and one number, which is the argument of that number; only what is worth a loop
    /// of its own.
    pub spread: fn(Ty, Binary, usize) -> Option<Map>,
    /// By the type of the alternatives.
    pub select: fn(Ty) -> Map,
    /// From a type to a dtype, in a program that computes floats in the third.
    pub cast: fn(Ty, DType, Ty) -> Map,
    /// From memory to a register.
    pub load: fn(DType, Ty) -> Move,
    /// From a register to memory.
    pub store: fn(Ty, DType) -> Move,
    /// The same with non-temporal stores.
    pub stream: fn(Ty, DType) -> Move,
    /// Sums of products, of floats.
    pub dot: fn(Ty) -> Dot,
    /// One accumulator for each slow index.
    pub fold_fast: fn(Ty, Reduce) -> Fold,
    /// One accumulator for each fast index.
    pub fold_slow: fn(Ty, Reduce) -> Fold,
    /// Sums in the type itself, one for each fast index.
    pub sum_slow: fn(Ty) -> Fold,
}

/// The functions of a tier, which this processor must have.
pub(in crate::rows) fn table(tier: Tier) -> Table {
    const fn of<V: Isa>() -> Table {
        Table {
            unary: unary::<V>,
            binary: binary::<V>,
            spread: spread::<V>,
            select: select::<V>,
            cast: cast::<V>,
            load: load::<V>,
            store: store::<V>,
            stream: stream::<V>,
            dot: dot::<V>,
            fold_fast: fold_fast::<V>,
            fold_slow: fold_slow::<V>,
            sum_slow: sum_slow::<V>,
        }
    }
    match tier {
        Tier::Tiles | Tier::Pairs | Tier::Portable => of::<Portable>(),
        #[cfg(target_arch = "aarch64")]
        Tier::Neon | Tier::NeonBf16 => of::<Neon>(),
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 => of::<Avx2>(),
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 | Tier::Avx512Bf16 | Tier::Amx => of::<Avx512>(),
    }
}

/// An instruction set: compiles loops for it. The functions may run only on processors that have it.
trait Isa {
    fn map<L: MapLoop>() -> Map;
    fn mov<L: MoveLoop>() -> Move;
    fn fold<L: FoldLoop>() -> Fold;
    fn dot<L: DotLoop>() -> Dot;
    /// Floats in memory to f32 and back (with non-temporal stores if requested and possible), and f32 rounded
    /// to f16 or bf16.
    fn load(from: DType) -> Move;
    fn store(to: DType, stream: bool) -> Move;
    fn round(to: DType) -> Map;
    /// An elementary function of f32, by its number.
    fn function<const OP: usize>() -> Map;
}

/// Conversions of the portable tier, by plain loops, into the caches.
mod plain {
    use super::*;
    use crate::rows::interpret::functions::Memory;
    use std::marker::PhantomData;

    pub type Load<D> = LoadLoop<D, f32>;

    pub struct Store<D, const STREAM: bool>(PhantomData<D>);
    impl<D: Memory<f32>, const STREAM: bool> MoveLoop for Store<D, STREAM> {
        #[inline(always)]
        unsafe fn run(src: *const u8, dst: *mut u8, step: isize, n: usize) {
            // SAFETY: the same contract.
            unsafe { StoreLoop::<D, f32>::run(src, dst, step, n) }
        }
    }

    pub type Function<const OP: usize> = UnaryLoop<f32, OP>;

    pub struct Round<D>(PhantomData<D>);
    impl<D: Memory<f32>> MapLoop for Round<D> {
        #[inline(always)]
        unsafe fn run(args: [*const u8; 3], out: *mut u8, n: usize) {
            let (from, to) = (args[0].cast::<f32>(), out.cast::<f32>());
            for i in 0..n {
                // SAFETY: the contract of `loops`.
                unsafe { *to.add(i) = D::of(*from.add(i)).get() };
            }
        }
    }
}

macro_rules! isa {
    ($name:ident, $ways:ident $(, $lanes:ty, $features:literal, $cfg:meta)?) => {
        $(#[cfg($cfg)])?
        struct $name;

        $(#[cfg($cfg)])?
        impl Isa for $name {
            fn map<L: MapLoop>() -> Map {
                $(#[target_feature(enable = $features)])?
                unsafe fn f<L: MapLoop>(args: [*const u8; 3], out: *mut u8, n: usize) {
                    // SAFETY: the caller keeps the contract.
                    unsafe { L::run(args, out, n) }
                }
                f::<L>
            }
            fn mov<L: MoveLoop>() -> Move {
                $(#[target_feature(enable = $features)])?
                unsafe fn f<L: MoveLoop>(src: *const u8, dst: *mut u8, step: isize, n: usize) {
                    // SAFETY: the caller keeps the contract.
                    unsafe { L::run(src, dst, step, n) }
                }
                f::<L>
            }
            fn fold<L: FoldLoop>() -> Fold {
                $(#[target_feature(enable = $features)])?
                unsafe fn f<L: FoldLoop>(src: *const u8, slow: usize, fast: usize, acc: *mut u8) {
                    // SAFETY: the caller keeps the contract.
                    unsafe { L::run(src, slow, fast, acc) }
                }
                f::<L>
            }
            fn dot<L: DotLoop>() -> Dot {
                $(#[target_feature(enable = $features)])?
                unsafe fn f<L: DotLoop>(a: *const u8, b: *const u8, slow: usize, fast: usize, acc: *mut u8) {
                    // SAFETY: the caller keeps the contract.
                    unsafe { L::run(a, b, slow, fast, acc) }
                }
                f::<L>
            }
            fn load(from: DType) -> Move {
                match from {
                    DType::F16 => Self::mov::<$ways::Load<f16>>(),
                    DType::BF16 => Self::mov::<$ways::Load<bf16>>(),
                    _ => Self::mov::<$ways::Load<f32>>(),
                }
            }
            fn store(to: DType, stream: bool) -> Move {
                match (to, stream) {
                    (DType::F16, false) => Self::mov::<$ways::Store<f16, false>>(),
                    (DType::F16, true) => Self::mov::<$ways::Store<f16, true>>(),
                    (DType::BF16, false) => Self::mov::<$ways::Store<bf16, false>>(),
                    (DType::BF16, true) => Self::mov::<$ways::Store<bf16, true>>(),
                    (_, false) => Self::mov::<$ways::Store<f32, false>>(),
                    (_, true) => Self::mov::<$ways::Store<f32, true>>(),
                }
            }
            fn round(to: DType) -> Map {
                match to {
                    DType::F16 => Self::map::<$ways::Round<f16>>(),
                    _ => Self::map::<$ways::Round<bf16>>(),
                }
            }
            fn function<const OP: usize>() -> Map {
                Self::map::<$ways::Function<$($lanes,)? OP>>()
            }
        }
    };
}
isa!(Portable, plain);
isa!(Neon, simd, crate::simd::neon::Eight, "neon", target_arch = "aarch64");
isa!(Avx2, simd, std::arch::x86_64::__m256, "avx2,fma,f16c,bmi2", target_arch = "x86_64");
isa!(
    Avx512,
    simd,
    std::arch::x86_64::__m512,
    "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl",
    target_arch = "x86_64"
);

/// Evaluates `$body` with the constant `$I` equal to a number known only at run time, one of those listed.
macro_rules! numbered {
    ($number:expr, $I:ident => $body:expr; $($i:literal)*) => {
        match $number {
            $($i => {
                const $I: usize = $i;
                $body
            })*
            n => unreachable!("no function has number {n}"),
        }
    };
}

/// Evaluates `$body` with `$D` bound to the Rust type of an integer dtype.
macro_rules! int_dtype {
    ($dtype:expr, $D:ident => $body:expr) => {
        match $dtype {
            DType::U8 => {
                type $D = u8;
                $body
            }
            DType::I8 => {
                type $D = i8;
                $body
            }
            DType::I16 => {
                type $D = i16;
                $body
            }
            DType::I32 => {
                type $D = i32;
                $body
            }
            _ => {
                type $D = i64;
                $body
            }
        }
    };
}

/// Elementary functions that vectors of f32 have.
const FUNCTIONS: [Unary; 7] = {
    use Unary::*;
    [Exp, ExpNonpos, Log, Tanh, Erf, Ndtr, Sigmoid]
};

fn unary<V: Isa>(ty: Ty, op: Unary, to: Ty) -> Map {
    macro_rules! of {
        ($OP:ident => $l:ty) => {
            numbered!(op as usize, $OP => V::map::<$l>();
                0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25)
        };
    }
    let test = matches!(op, Unary::IsNan | Unary::IsInf);
    match ty {
        Ty::F32 if op == Unary::Bits => V::map::<BitsLoop<f32>>(),
        Ty::F64 if op == Unary::Bits => V::map::<BitsLoop<f64>>(),
        Ty::I64 if op == Unary::FromBits && to == Ty::F32 => V::map::<FromBitsLoop<f32>>(),
        Ty::I64 if op == Unary::FromBits => V::map::<FromBitsLoop<f64>>(),
        Ty::F32 if test => of!(OP => TestLoop<f32, OP>),
        Ty::F32 if FUNCTIONS.contains(&op) => {
            numbered!(op as usize, OP => V::function::<OP>(); 3 4 6 14 16 17 22)
        }
        Ty::F64 if test => of!(OP => TestLoop<f64, OP>),
        Ty::F32 => of!(OP => UnaryLoop<f32, OP>),
        Ty::F64 => of!(OP => UnaryLoop<f64, OP>),
        Ty::I64 => of!(OP => IntUnaryLoop<OP>),
        Ty::Bool => V::map::<NotLoop>(),
    }
}

fn binary<V: Isa>(ty: Ty, op: Binary) -> Map {
    macro_rules! of {
        ($OP:ident => $l:ty) => {
            numbered!(op as usize, $OP => V::map::<$l>(); 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19)
        };
    }
    let compare = op.class(Class::Float) == Class::Bool;
    match ty {
        Ty::F32 if compare => of!(OP => CompareLoop<f32, OP>),
        Ty::F64 if compare => of!(OP => CompareLoop<f64, OP>),
        Ty::I64 if compare => of!(OP => CompareLoop<i64, OP>),
        Ty::F32 => of!(OP => BinaryLoop<f32, OP>),
        Ty::F64 => of!(OP => BinaryLoop<f64, OP>),
        Ty::I64 => of!(OP => IntBinaryLoop<OP>),
        Ty::Bool => of!(OP => BoolBinaryLoop<OP>),
    }
}

fn select<V: Isa>(ty: Ty) -> Map {
    match ty {
        Ty::F32 => V::map::<SelectLoop<f32>>(),
        Ty::F64 => V::map::<SelectLoop<f64>>(),
        Ty::I64 => V::map::<SelectLoop<i64>>(),
        Ty::Bool => V::map::<SelectLoop<u8>>(),
    }
}

fn cast<V: Isa>(from: Ty, to: DType, float: Ty) -> Map {
    macro_rules! of {
        ($TO:ident => $l:ty) => {
            numbered!(to as usize, $TO => V::map::<$l>(); 1 2 3 4 5 6 7 8 9)
        };
    }
    match (from, to.class()) {
        (Ty::F32, Class::Int) => of!(TO => FloatToIntLoop<f32, TO>),
        (Ty::F64, Class::Int) => of!(TO => FloatToIntLoop<f64, TO>),
        (Ty::I64, Class::Int) => of!(TO => WrapLoop<TO>),
        (Ty::Bool, Class::Int) => V::map::<BoolToIntLoop>(),
        (Ty::F32, Class::Bool) => V::map::<FloatToBoolLoop<f32>>(),
        (Ty::F64, Class::Bool) => V::map::<FloatToBoolLoop<f64>>(),
        (Ty::I64, Class::Bool) => V::map::<IntToBoolLoop>(),
        (Ty::Bool, Class::Bool) => unreachable!("a bool is not converted to itself"),
        (Ty::F32, Class::Float) if matches!(to, DType::F16 | DType::BF16) => V::round(to),
        (Ty::F32, Class::Float) => of!(TO => RoundLoop<f32, TO>),
        (Ty::F64, Class::Float) => of!(TO => RoundLoop<f64, TO>),
        (Ty::I64, Class::Float) if float == Ty::F32 => of!(TO => IntToFloatLoop<f32, TO>),
        (Ty::I64, Class::Float) => of!(TO => IntToFloatLoop<f64, TO>),
        (Ty::Bool, Class::Float) if float == Ty::F32 => V::map::<BoolToFloatLoop<f32>>(),
        (Ty::Bool, Class::Float) => V::map::<BoolToFloatLoop<f64>>(),
    }
}

fn load<V: Isa>(from: DType, to: Ty) -> Move {
    match (from, to) {
        (DType::F32 | DType::BF16 | DType::F16, Ty::F32) => V::load(from),
        (DType::F64, _) => V::mov::<LoadLoop<f64, f64>>(),
        (DType::F32, _) => V::mov::<LoadLoop<f32, f64>>(),
        (DType::BF16, _) => V::mov::<LoadLoop<bf16, f64>>(),
        (DType::F16, _) => V::mov::<LoadLoop<f16, f64>>(),
        (DType::Bool, _) => V::mov::<LoadBoolLoop>(),
        (int, _) => int_dtype!(int, D => V::mov::<LoadIntLoop<D>>()),
    }
}

fn store<V: Isa>(from: Ty, to: DType) -> Move {
    match (from, to) {
        (Ty::F32, to) => V::store(to, false),
        (Ty::F64, DType::F32) => V::mov::<StoreLoop<f32, f64>>(),
        (Ty::F64, DType::F16) => V::mov::<StoreLoop<f16, f64>>(),
        (Ty::F64, DType::BF16) => V::mov::<StoreLoop<bf16, f64>>(),
        (Ty::F64, _) => V::mov::<StoreLoop<f64, f64>>(),
        (Ty::Bool, _) => V::mov::<StoreBoolLoop>(),
        (Ty::I64, int) => int_dtype!(int, D => V::mov::<StoreIntLoop<D>>()),
    }
}

fn stream<V: Isa>(from: Ty, to: DType) -> Move {
    if from == Ty::F32 { V::store(to, true) } else { store::<V>(from, to) }
}

fn spread<V: Isa>(ty: Ty, op: Binary, one: usize) -> Option<Map> {
    macro_rules! of {
        ($t:ty) => {
            match (op, one) {
                (Binary::Add, 0) => V::map::<SpreadLoop<$t, { Binary::Add as usize }, 0>>(),
                (Binary::Add, _) => V::map::<SpreadLoop<$t, { Binary::Add as usize }, 1>>(),
                (Binary::Sub, 0) => V::map::<SpreadLoop<$t, { Binary::Sub as usize }, 0>>(),
                (Binary::Sub, _) => V::map::<SpreadLoop<$t, { Binary::Sub as usize }, 1>>(),
                (Binary::Mul, 0) => V::map::<SpreadLoop<$t, { Binary::Mul as usize }, 0>>(),
                (Binary::Mul, _) => V::map::<SpreadLoop<$t, { Binary::Mul as usize }, 1>>(),
                (Binary::Div, 0) => V::map::<SpreadLoop<$t, { Binary::Div as usize }, 0>>(),
                (Binary::Div, _) => V::map::<SpreadLoop<$t, { Binary::Div as usize }, 1>>(),
                _ => return None,
            }
        };
    }
    match ty {
        Ty::F32 => Some(of!(f32)),
        Ty::F64 => Some(of!(f64)),
        Ty::I64 | Ty::Bool => None,
    }
}

fn dot<V: Isa>(ty: Ty) -> Dot {
    match ty {
        Ty::F32 => V::dot::<DotFast<f32>>(),
        Ty::F64 => V::dot::<DotFast<f64>>(),
        Ty::I64 | Ty::Bool => unreachable!("products are summed of floats alone"),
    }
}

macro_rules! fold {
    ($name:ident, $float:ident, $other:ident) => {
        fn $name<V: Isa>(ty: Ty, op: Reduce) -> Fold {
            macro_rules! of {
                                        ($l:ident, $t:ty) => {
                                            numbered!(op as usize, OP => V::fold::<$l<$t, OP>>(); 0 1 2 3)
                                        };
                                    }
            match ty {
                Ty::F32 => of!($float, f32),
                Ty::F64 => of!($float, f64),
                Ty::I64 => of!($other, i64),
                Ty::Bool => of!($other, u8),
            }
        }
    };
}
fold!(fold_fast, FoldFastFloat, FoldFastOther);
fold!(fold_slow, FoldSlowFloat, FoldSlowOther);

fn sum_slow<V: Isa>(ty: Ty) -> Fold {
    match ty {
        Ty::F32 => V::fold::<SumSlow>(),
        _ => fold_slow::<V>(ty, Reduce::Sum),
    }
}
