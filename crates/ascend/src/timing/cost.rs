//! Cycles of single instructions.
//!
//! Sources, all of A2: the vector rule is asc-devkit's published measurements of `Add` (back to back,
//! `22 + repeats · (1 + conflicts)`); cycles a repeat of other functions are msKPP's measured tables (910B1,
//! 910B3) and the cost model of pto-isa; cube and copies likewise. What no source states is marked as
//! assumed. 310P has no published measurement: the same rules are used, scaled by its bytes a cycle, and are
//! not calibrated.

use super::address::Addresses;
use super::bank::{Access, Banks};
use crate::chip::Arch;
use crate::kernel::{
    Base, Binary, Elem, Instr, Mask, Over, Program, Quant, Reduction, Scaled, Space, Unary, Value, Vector,
    View,
};

/// Cycles of an instruction beside its repeats.
const VECTOR_HEAD: u64 = 22;

/// Time for which an instruction keeps its pipe.
pub enum Cost {
    /// So many cycles; its results are available `tail` cycles later.
    Fixed {
        /// Cycles on the pipe.
        busy: u64,
        /// Cycles until what follows may use its results.
        tail: u64,
    },
    /// A transfer from or to GM.
    Transfer(Transfer),
}

/// A transfer from or to GM.
pub struct Transfer {
    /// Runs in GM: address and bytes.
    pub runs: Vec<(u64, u64)>,
    /// To GM.
    pub write: bool,
    /// Leaves L2 alone.
    pub streamed: bool,
    /// The other end.
    pub port: Port,
}

/// Bytes a cycle of a core's way to GM.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Port {
    /// Bytes a cycle of lines that L2 holds.
    pub hit: f64,
    /// Bytes a cycle of lines that it does not hold.
    pub miss: f64,
    /// Bytes that the first buffer takes, and how many a cycle.
    pub burst: (f64, f64),
    /// Cycles from the request of the first byte to the arrival of the last one, excluding the bytes' own.
    pub latency: f64,
    /// Least cycles that a transfer keeps the pipe.
    pub least: f64,
}

/// GM to UB, from a single core's published times: waited for 1 KB 235 cycles, 16 KB 404, 64 KB 1426, 192 KB
/// 4202 (in L2); streamed from HBM 8 KB 350; queued copies of 128 bytes 20.6 each.
const GM_UB: Port = Port { hit: 46.8, miss: 23.4, burst: (16384.0, 90.0), latency: 223.0, least: 20.6 };
/// GM to L1: 1 KB 173 cycles, 64 KB 623, 256 KB 1681.
const GM_L1: Port = Port { hit: 160.0, miss: 32.0, burst: (0.0, 160.0), latency: 170.0, least: 20.6 };
/// UB to GM: 1 KB 151 cycles, 16 KB 316, 64 KB 993; streamed to HBM 8 KB 295.
const UB_GM: Port = Port { hit: 67.0, miss: 27.8, burst: (16384.0, 93.0), latency: 140.0, least: 20.6 };
/// L0C to GM: up to 8 KB 82 cycles, 16 KB 135, 64 KB 559.
const L0C_GM: Port = Port { hit: 117.0, miss: 32.0, burst: (0.0, 117.0), latency: 0.0, least: 82.0 };

/// Cost of an issued instruction.
pub fn cost(program: &Program, at: &Addresses, banks: &mut Banks, instr: &Instr<Value>) -> Cost {
    let mut vector = |per_repeat: u64,
                      sources: &[&Vector<Value>],
                      dst: Option<&Vector<Value>>,
                      over: &Over<Value>,
                      elem| {
        let repeats = repeats(over, elem);
        let access = |v: &&Vector<Value>| Access {
            address: at.of(program, &v.view),
            block: v.block,
            repeat: v.repeat,
        };
        let sources: Vec<Access> = sources.iter().map(access).collect();
        let stalls = match program.arch {
            Arch::A2 => banks.stalls(&sources, dst.as_ref().map(access), repeats),
            // The geometry of its banks is not published.
            Arch::P310 => 0,
        };
        fixed(VECTOR_HEAD + repeats * per_repeat + stalls)
    };
    match instr {
        Instr::UnaryOp(x) => {
            let wide = x.dst.view.elem.size() == 4;
            let per = match x.op {
                Unary::Exp | Unary::Ln | Unary::Sqrt => {
                    if wide {
                        2
                    } else {
                        4
                    }
                }
                _ => 1,
            };
            vector(per, &[&x.src], Some(&x.dst), &x.over, x.dst.view.elem)
        }
        Instr::BinaryOp(x) => {
            let per = match x.op {
                Binary::Div => 4,
                Binary::MulAddDst => 6,
                _ => 1,
            };
            vector(per, &[&x.src0, &x.src1], Some(&x.dst), &x.over, x.dst.view.elem)
        }
        Instr::ScaledOp(x) => {
            let per = if x.op == Scaled::Axpy { 2 } else { 1 };
            vector(per, &[&x.src], Some(&x.dst), &x.over, x.dst.view.elem)
        }
        Instr::Duplicate(x) => vector(1, &[], Some(&x.dst), &x.over, x.dst.view.elem),
        Instr::Cast(x) => {
            let (a, b) = (x.src.view.elem, x.dst.view.elem);
            vector(1, &[&x.src], Some(&x.dst), &x.over, if a.size() > b.size() { a } else { b })
        }
        Instr::CompareOp(x) => vector(2, &[&x.src0, &x.src1], None, &x.over, x.src0.view.elem),
        Instr::CompareScalar(x) => vector(1, &[&x.src], None, &x.over, x.src.view.elem),
        Instr::Select(x) => vector(2, &[&x.src0, &x.src1], Some(&x.dst), &x.over, x.dst.view.elem),
        Instr::SelectScalar(x) => vector(2, &[&x.src], Some(&x.dst), &x.over, x.dst.view.elem),
        Instr::Reduce(x) => {
            let wide = x.src.view.elem.size() == 4;
            let per = match x.op {
                Reduction::WholeSum => {
                    if wide {
                        3
                    } else {
                        7
                    }
                }
                Reduction::WholeMax | Reduction::WholeMin => 7,
                Reduction::BlockSum | Reduction::BlockMax | Reduction::BlockMin => {
                    if wide {
                        1
                    } else {
                        7
                    }
                }
                Reduction::PairSum => 1,
            };
            fixed(VECTOR_HEAD + positive(x.repeat) * per)
        }
        Instr::Gather(x) => {
            let wide = x.dst.elem.size() == 4;
            let per = if wide { 12 } else { 24 };
            fixed(VECTOR_HEAD + positive(x.count).div_ceil(x.dst.elem.per_repeat()) * per)
        }
        Instr::GatherMask(x) => fixed(VECTOR_HEAD + positive(x.repeat) * 14),
        Instr::Brcb(x) => fixed(VECTOR_HEAD + positive(x.repeat)),
        Instr::Ramp(x) => {
            // The library makes a block on the scalar unit, then the blocks of a repeat and the other
            // repeats, each of the one before.
            let (count, elem) = (positive(x.count), x.dst.elem);
            let blocks = count.min(elem.per_repeat()).div_ceil(elem.per_block());
            let repeats = count.div_ceil(elem.per_repeat());
            fixed((VECTOR_HEAD + 1) * (blocks + repeats).saturating_sub(2))
        }
        Instr::MergeSort(x) => {
            let results: u64 = x.lengths.iter().map(|&n| u64::from(n)).sum();
            // 16 cycles for each repeat of 32 results.
            fixed(VECTOR_HEAD + positive(x.repeat) * results.div_ceil(32) * 16)
        }
        // Assumed: no source has them.
        Instr::Sort32(x) => fixed(VECTOR_HEAD + positive(x.repeat) * 16),
        Instr::Transpose(_) => fixed(VECTOR_HEAD + 8),
        Instr::TransposeRows(x) => fixed(VECTOR_HEAD + positive(x.repeat) * 8),
        // On 310P: the table gives 512 bytes a cycle.
        Instr::CopyL0c(x) => fixed(VECTOR_HEAD + positive(x.blocks) * positive(x.len) * 2),
        Instr::Mmad(x) => {
            let k0 = 32 / x.a.elem.size();
            let fractals =
                positive(x.m).div_ceil(16) * positive(x.n).div_ceil(16) * positive(x.k).div_ceil(k0);
            let each = match (x.a.elem, x.hf32) {
                (Elem::F32, false) => 2,
                _ => 1,
            };
            // 9 cycles in addition to the products when issued back to back; alone, 23 until the results are
            // available.
            Cost::Fixed { busy: fractals * each + 9, tail: 14 }
        }
        Instr::LoadData2d(x) => {
            let bytes = positive(x.repeat) * 512;
            match program.space(x.src.base) {
                Space::Gm => transfer(program, &x.src, vec![(at.of(program, &x.src), bytes)], false, GM_L1),
                _ => fixed(l0(program, x.dst.base, bytes)),
            }
        }
        Instr::LoadDataTransposed(x) => {
            let fractals = if x.src.elem.size() == 4 { 2 } else { 1 };
            fixed(l0(program, x.dst.base, positive(x.repeat) * fractals * 512))
        }
        Instr::LoadData3d(x) => {
            let k0 = 32 / x.dst.elem.size();
            let fractals = positive(x.m).div_ceil(16) * positive(x.k).div_ceil(k0);
            fixed(l0(program, x.dst.base, fractals * 512))
        }
        Instr::InitConst(x) => {
            let unit = if program.space(x.dst.base) == Space::L1 { 32 } else { 512 };
            fixed(l0(program, x.dst.base, positive(x.repeat) * positive(x.len) * unit))
        }
        Instr::CopyNdToNz(x) => {
            let (size, from) = (x.src.elem.size(), at.of(program, &x.src));
            let runs = (0..positive(x.matrices)).flat_map(|m| (0..positive(x.n)).map(move |n| (m, n)));
            let runs = runs.map(|(m, n)| {
                let skip = (m * positive(x.src_matrix) + n * positive(x.src_row)) * size;
                (from + skip, positive(x.d) * size)
            });
            transfer(program, &x.src, runs.collect(), false, Port { latency: 784.0 - 32.0, ..GM_L1 })
        }
        Instr::Fixpipe(x) => {
            let (m, n) = (positive(x.m), positive(x.n));
            let bytes = match x.quant {
                Quant::Off => 4,
                Quant::F16 | Quant::BF16 => 2,
            };
            match program.space(x.dst.base) {
                Space::Gm => {
                    let from = at.of(program, &x.dst);
                    let step = positive(x.dst_stride) * x.dst.elem.size();
                    let runs = (0..m).map(|row| (from + row * step, n * bytes)).collect();
                    // The port carries what L0C holds, four bytes an element.
                    let ratio = bytes as f64 / 4.0;
                    let port = Port { hit: L0C_GM.hit * ratio, burst: (0.0, L0C_GM.hit * ratio), ..L0C_GM };
                    transfer(program, &x.dst, runs, true, port)
                }
                _ => fixed((m * n * 4).div_ceil(128)),
            }
        }
        Instr::DataCopy(x) => {
            let bytes = positive(x.len) * 32;
            let (src, dst) = (program.space(x.src.base), program.space(x.dst.base));
            let runs = |from: u64, gap: Value| {
                let step = bytes + positive(gap) * 32;
                (0..positive(x.blocks)).map(|i| (from + i * step, bytes)).collect::<Vec<_>>()
            };
            match (src, dst) {
                (Space::Gm, _) => {
                    let port = if dst == Space::Ub { GM_UB } else { GM_L1 };
                    transfer(program, &x.src, runs(at.of(program, &x.src), x.src_gap), false, port)
                }
                (_, Space::Gm) => {
                    transfer(program, &x.dst, runs(at.of(program, &x.dst), x.dst_gap), true, UB_GM)
                }
                // 1 KB into the bias table 31 cycles.
                (_, Space::Bt) => fixed((positive(x.blocks) * bytes * 31).div_ceil(1024)),
                // UB to UB at a repeat a cycle, between UB and L1 at 256 bytes a cycle (310P).
                _ => fixed(VECTOR_HEAD + (positive(x.blocks) * bytes).div_ceil(256)),
            }
        }
        Instr::DataCopyPad(x) => {
            let bytes = positive(x.bytes);
            let runs = |from: u64, gap: Value| {
                let step = bytes + positive(gap);
                (0..positive(x.blocks)).map(|i| (from + i * step, bytes)).collect::<Vec<_>>()
            };
            match program.space(x.src.base) {
                Space::Gm => transfer(program, &x.src, runs(at.of(program, &x.src), x.src_gap), false, GM_UB),
                _ => transfer(program, &x.dst, runs(at.of(program, &x.dst), x.dst_gap), true, UB_GM),
            }
        }
        // Scalar accesses: UB a few cycles, GM a cache line from L2. Assumed.
        Instr::Load(x) => fixed(if program.space(x.src.base) == Space::Gm { 200 } else { 10 }),
        Instr::Store(x) => fixed(if program.space(x.dst.base) == Space::Gm { 20 } else { 10 }),
        Instr::CacheFlush(_) => fixed(100),
        Instr::SyncSoft(_) => fixed(2000),
        Instr::SetFlag(_)
        | Instr::WaitFlag(_)
        | Instr::CrossSet(_)
        | Instr::CrossWait(_)
        | Instr::Barrier(_) => fixed(1),
    }
}

fn fixed(busy: u64) -> Cost {
    Cost::Fixed { busy, tail: 0 }
}

fn positive(x: Value) -> u64 {
    x.as_int().max(0) as u64
}

/// Repeats of a vector instruction of elements of type `elem`.
fn repeats(over: &Over<Value>, elem: Elem) -> u64 {
    match over {
        Over::Count(n) => positive(*n).div_ceil(elem.per_repeat()),
        Over::Repeats { mask: Mask::First(_) | Mask::Bits(_), repeat } => positive(*repeat),
    }
}

/// Cycles of a copy from L1: measured 256 bytes a cycle to L0A and 128 to L0B, and 54 for each instruction
/// among others (429 cycles for 16 KB of A and 32 KB of B, asc-devkit's matmul examples).
fn l0(program: &Program, dst: Base, bytes: u64) -> u64 {
    let rate = if program.space(dst) == Space::L0b { 128 } else { 256 };
    bytes.div_ceil(rate) + 54
}

fn transfer(program: &Program, gm: &View<Value>, runs: Vec<(u64, u64)>, write: bool, port: Port) -> Cost {
    let streamed = match gm.base {
        Base::Param(p) => program
            .params
            .get(p.0 as usize)
            .is_some_and(|p| matches!(p.kind, crate::kernel::ParamKind::Pointer { streamed: true, .. })),
        Base::Buffer(_) => false,
    };
    // 310P: 17 bytes a cycle from memory, 114 from L2, by its platform table.
    let port = match program.arch {
        Arch::A2 => port,
        Arch::P310 => Port { miss: 17.0, ..port },
    };
    Cost::Transfer(Transfer { runs, write, streamed, port })
}
