//! Footprints: the bytes that an issued instruction reads and writes, operand by operand. Everything that is
//! checked about accesses (bounds, order, contents) starts from them.

use super::instr::*;
use super::meaning::ReductionKind;
use super::op::*;
use super::operand::{Base, Mask, Over, Vector, View};
use super::scalar::Value;
use super::{Elem, Space};

/// Runs of bytes: `len` bytes at `start + i · stride[0] + j · stride[1]` for all i below `count[0]` and j
/// below `count[1]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Runs {
    /// First byte, from the base's beginning.
    pub start: i64,
    /// Bytes of a run.
    pub len: u64,
    /// Numbers of runs, outer and inner.
    pub count: [u64; 2],
    /// Distances in bytes, outer and inner.
    pub stride: [u64; 2],
}

/// An access of an instruction to an operand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Name of the operand.
    pub operand: &'static str,
    /// Buffer or parameter.
    pub base: Base,
    /// True if it is written.
    pub write: bool,
    /// Bytes.
    pub runs: Runs,
}

impl Runs {
    /// One run.
    pub const fn one(start: i64, len: u64) -> Runs {
        Runs { start, len, count: [1, 1], stride: [0, 0] }
    }

    /// Runs in one row.
    pub const fn row(start: i64, len: u64, count: u64, stride: u64) -> Runs {
        Runs { start, len, count: [1, count], stride: [0, stride] }.joined()
    }

    /// The same bytes in fewer runs where they are contiguous.
    const fn joined(mut self) -> Runs {
        let mut dim = 2;
        while dim > 0 {
            dim -= 1;
            if self.count[1] > 0 && self.stride[1] == self.len {
                self.len *= self.count[1];
                self.count[1] = 1;
            }
            if self.count[1] == 1 {
                let outer = if self.count[0] == 1 { 0 } else { self.stride[0] };
                self.count = [1, self.count[0]];
                self.stride = [0, outer];
            }
        }
        self
    }

    /// True if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0 || self.count[0] == 0 || self.count[1] == 0
    }

    /// First byte and one past the last; both `start` if there are none.
    pub const fn span(&self) -> (i64, i64) {
        if self.is_empty() {
            return (self.start, self.start);
        }
        let outer = (self.count[0] - 1).saturating_mul(self.stride[0]);
        let inner = (self.count[1] - 1).saturating_mul(self.stride[1]);
        let bytes = outer.saturating_add(inner).saturating_add(self.len);
        let bytes = if bytes > i64::MAX as u64 { i64::MAX } else { bytes as i64 };
        (self.start, self.start.saturating_add(bytes))
    }

    /// Number of bytes.
    pub const fn bytes(&self) -> u64 {
        self.count[0].saturating_mul(self.count[1]).saturating_mul(self.len)
    }

    /// Beginnings of the runs, in order.
    pub fn starts(self) -> impl Iterator<Item = i64> {
        let outer = if self.len == 0 { 0 } else { self.count[0] };
        (0..outer).flat_map(move |i| {
            (0..self.count[1]).map(move |j| self.start + (i * self.stride[0] + j * self.stride[1]) as i64)
        })
    }

    /// True if the runs have a byte in common.
    pub fn meets(&self, other: &Runs) -> bool {
        let ((a, b), (c, d)) = (self.span(), other.span());
        if self.is_empty() || other.is_empty() || b <= c || d <= a {
            return false;
        }
        if self.count == [1, 1] && other.count == [1, 1] {
            return true;
        }
        let mut mine: Vec<(i64, i64)> = self.starts().map(|s| (s, s + self.len as i64)).collect();
        mine.sort_unstable();
        other.starts().any(|s| {
            let end = s + other.len as i64;
            let first = mine.partition_point(|r| r.1 <= s);
            mine.get(first).is_some_and(|r| r.0 < end)
        })
    }
}

/// Elements of a repeat that take part, as runs of elements within one block each: (block, first element,
/// number).
fn block_runs(mask: &Mask<Value>, elem: Elem, elems_per_repeat: u64) -> Vec<(u64, u64, u64)> {
    // Blocks are the operand's own: a type half as wide has half as many blocks in a repeat.
    let per_block = elem.per_block();
    let active = |i: u64| match mask {
        Mask::First(n) => i < n.as_int().max(0) as u64,
        Mask::Bits(words) => words[(i / 64) as usize & 1] >> (i % 64) & 1 == 1,
    };
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for i in (0..elems_per_repeat).filter(|&i| active(i)) {
        let (block, lane) = (i / per_block, i % per_block);
        match runs.last_mut() {
            Some(run) if run.0 == block && run.1 + run.2 == lane => run.2 += 1,
            _ => runs.push((block, lane, 1)),
        }
    }
    runs
}

/// Bytes of a vector operand. `wide` is the widest type of the instruction, which the mask counts by.
fn vector_runs(v: &Vector<Value>, over: &Over<Value>, wide: Elem) -> Vec<Runs> {
    let (start, size) = (v.view.byte(), v.view.elem.size());
    match over {
        Over::Count(n) => vec![Runs::one(start, (n.as_int().max(0) as u64).saturating_mul(size))],
        Over::Repeats { mask, repeat } => masked_runs(v, mask, repeat.as_int().max(0) as u64, wide),
    }
}

fn masked_runs(v: &Vector<Value>, mask: &Mask<Value>, repeat: u64, wide: Elem) -> Vec<Runs> {
    let (start, size) = (v.view.byte(), v.view.elem.size());
    let (block, stride) = (u64::from(v.block) * 32, u64::from(v.repeat) * 32);
    let runs = block_runs(mask, v.view.elem, wide.per_repeat());
    // Equal runs of consecutive blocks are one row.
    let mut out: Vec<Runs> = Vec::new();
    let mut i = 0;
    while i < runs.len() {
        let (first, lane, n) = runs[i];
        let mut blocks = 1;
        while runs.get(i + blocks).is_some_and(|r| *r == (first + blocks as u64, lane, n)) {
            blocks += 1;
        }
        out.push(
            Runs {
                start: start + (first * block + lane * size) as i64,
                len: n * size,
                count: [repeat, blocks as u64],
                stride: [stride, block],
            }
            .joined(),
        );
        i += blocks;
    }
    out
}

/// Elements that an instruction covers, counted from the first to the last that take part; for bit fields.
fn bits_bytes(over: &Over<Value>, elem: Elem) -> u64 {
    match over {
        Over::Count(n) => (n.as_int().max(0) as u64).div_ceil(8),
        Over::Repeats { repeat, .. } => repeat.as_int().max(0) as u64 * elem.per_repeat() / 8,
    }
}

fn n(x: &Value) -> u64 {
    x.as_int().max(0) as u64
}

/// Collects touches.
struct Feet(Vec<Touch>);

impl Feet {
    fn add(&mut self, operand: &'static str, base: Base, write: bool, runs: Runs) {
        if !runs.is_empty() {
            self.0.push(Touch { operand, base, write, runs });
        }
    }

    fn reads(&mut self, operand: &'static str, view: &View<Value>, runs: Runs) {
        self.add(operand, view.base, false, Runs { start: runs.start + view.byte(), ..runs });
    }

    fn writes(&mut self, operand: &'static str, view: &View<Value>, runs: Runs) {
        self.add(operand, view.base, true, Runs { start: runs.start + view.byte(), ..runs });
    }

    fn vector(
        &mut self,
        operand: &'static str,
        write: bool,
        v: &Vector<Value>,
        over: &Over<Value>,
        wide: Elem,
    ) {
        for runs in vector_runs(v, over, wide) {
            self.add(operand, v.view.base, write, runs);
        }
    }
}

/// Runs of a copy of `blocks` runs with gaps.
fn gapped(blocks: u64, len: u64, gap: u64) -> Runs {
    Runs::row(0, len, blocks, len + gap)
}

/// The tile of a matrix whose fractals are contiguous in L1, since no window is wider than a point: the first
/// one's offset from `src`, and the bytes from one column of fractals to the next. `None` for images with
/// windows, and for tiles that reach beyond theirs.
pub(crate) fn plain(x: &LoadData3d<Value>) -> Option<[u64; 2]> {
    let c0 = 32 / x.src.elem.size();
    let rows = u64::from(x.size[0]) * u64::from(x.size[1]);
    let points = x.filter == [1, 1] && x.stride == [1, 1] && x.pad == [0; 4];
    let inside = n(&x.m_start) + n(&x.m).next_multiple_of(16) <= rows
        && n(&x.k_start) + n(&x.k) <= n(&x.channels).next_multiple_of(c0);
    (points && inside).then_some([(n(&x.k_start) / c0 * rows + n(&x.m_start)) * 32, rows * 32])
}

/// Every access of an instruction, reads first. `space` gives the memory of a base.
pub fn footprint(instr: &Instr<Value>, space: &dyn Fn(Base) -> Space) -> Vec<Touch> {
    let mut feet = Feet(Vec::new());
    let f = &mut feet;
    match instr {
        Instr::DataCopy(x) => {
            let unit = if space(x.dst.base) == Space::Bt { 64 } else { 32 };
            let (blocks, len) = (n(&x.blocks), n(&x.len) * unit);
            f.reads("src", &x.src, gapped(blocks, len, n(&x.src_gap) * unit));
            f.writes("dst", &x.dst, gapped(blocks, len, n(&x.dst_gap) * unit));
        }
        Instr::DataCopyPad(x) => {
            let (blocks, bytes, size) = (n(&x.blocks), n(&x.bytes), x.dst.elem.size());
            if space(x.src.base) == Space::Gm {
                let row = (bytes + u64::from(x.left + x.right) * size).next_multiple_of(32);
                f.reads("src", &x.src, gapped(blocks, bytes, n(&x.src_gap)));
                f.writes("dst", &x.dst, gapped(blocks, row, n(&x.dst_gap) * 32));
            } else {
                let stride = bytes.next_multiple_of(32) + n(&x.src_gap) * 32;
                f.reads("src", &x.src, Runs::row(0, bytes, blocks, stride));
                f.writes("dst", &x.dst, gapped(blocks, bytes, n(&x.dst_gap)));
            }
        }
        Instr::CopyNdToNz(x) => {
            let size = x.src.elem.size();
            let c0 = 32 / size;
            let (rows, d) = (n(&x.n), n(&x.d));
            for i in 0..n(&x.matrices) {
                let from =
                    Runs::row((i * n(&x.src_matrix) * size) as i64, d * size, rows, n(&x.src_row) * size);
                f.reads("src", &x.src, from);
                let to = Runs {
                    start: (i * n(&x.dst_matrix) * size) as i64,
                    len: 32,
                    count: [d.div_ceil(c0), rows],
                    stride: [n(&x.dst_c0) * 32, n(&x.dst_row) * 32],
                };
                f.writes("dst", &x.dst, to.joined());
            }
        }
        Instr::LoadData2d(x) => {
            let repeat = n(&x.repeat);
            let from = Runs::row((n(&x.start) * 512) as i64, 512, repeat, n(&x.src_stride) * 512);
            f.reads("src", &x.src, from);
            f.writes("dst", &x.dst, Runs::row(0, 512, repeat, (n(&x.dst_gap) + 1) * 512));
        }
        Instr::LoadDataTransposed(x) => {
            let fractals = x.src.elem.size() / 2;
            let block = fractals.max(1) * 512;
            let repeat = n(&x.repeat);
            let from = Runs::row((n(&x.start) * block) as i64, block, repeat, n(&x.src_stride) * block);
            f.reads("src", &x.src, from);
            let step = (n(&x.dst_fractal_gap) + 1) * 512;
            let to = Runs {
                start: 0,
                len: 512,
                count: [repeat, fractals.max(1)],
                stride: [fractals.max(1) * step + n(&x.dst_gap) * 512, step],
            };
            f.writes("dst", &x.dst, to.joined());
        }
        Instr::LoadData3d(x) => {
            let size = x.src.elem.size();
            let c0 = 32 / size;
            let (rows, columns) = (n(&x.m).div_ceil(16), n(&x.k).div_ceil(c0));
            let image = u64::from(x.size[0]) * u64::from(x.size[1]) * n(&x.channels).div_ceil(c0) * 32;
            let runs = plain(x).map(|[first, column]| Runs::row(first as i64, rows * 512, columns, column));
            f.reads("src", &x.src, runs.unwrap_or(Runs::one(0, image)));
            f.writes("dst", &x.dst, Runs::one(0, rows * columns * 512));
        }
        Instr::InitConst(x) => {
            let unit = if space(x.dst.base) == Space::L1 { 32 } else { 512 };
            f.writes("dst", &x.dst, gapped(n(&x.repeat), n(&x.len) * unit, n(&x.gap) * unit));
        }
        Instr::Mmad(x) => {
            let (m, cols, k) = (n(&x.m), n(&x.n), n(&x.k));
            if m * cols * k > 0 {
                let k0 = 32 / x.a.elem.size();
                let ks = k.div_ceil(k0);
                let a = if m == 1 {
                    (k * x.a.elem.size()).next_multiple_of(32)
                } else {
                    m.div_ceil(16) * ks * 512
                };
                f.reads("a", &x.a, Runs::one(0, a));
                f.reads("b", &x.b, Runs::one(0, ks * cols.div_ceil(16) * 512));
                let size = x.c.elem.size();
                let c = Runs::one(0, m.div_ceil(16) * cols.div_ceil(16) * 256 * size);
                match &x.bias {
                    Some(bias) => f.reads("bias", bias, Runs::one(0, cols * bias.elem.size())),
                    None if x.init.as_int() == 0 => f.reads("c", &x.c, c),
                    None => {}
                }
                f.writes("c", &x.c, c);
            }
        }
        Instr::Fixpipe(x) => {
            let (cols, rows, size) = (n(&x.n), n(&x.m), x.dst.elem.size());
            let c0 = x.src.elem.size() * 16;
            let from = Runs {
                start: 0,
                len: rows * c0,
                count: [1, cols.div_ceil(16)],
                stride: [0, n(&x.src_stride) * c0],
            };
            f.reads("src", &x.src, from.joined());
            let to = match x.layout {
                Layout::Nd => Runs::row(0, cols * size, rows, n(&x.dst_stride) * size),
                Layout::Nz => Runs::row(0, rows * 16 * size, cols / 16, n(&x.dst_stride) * 32),
            };
            f.writes("dst", &x.dst, to);
        }
        Instr::CopyL0c(x) => {
            let (blocks, len) = (n(&x.blocks), n(&x.len));
            let from = x.src.elem.size() * 256;
            f.reads("src", &x.src, gapped(blocks, len * from, n(&x.src_gap) * from));
            f.writes("dst", &x.dst, gapped(blocks, len * x.dst.elem.size() * 256, n(&x.dst_gap) * 32));
        }
        Instr::UnaryOp(x) => {
            let wide = x.dst.view.elem;
            f.vector("src", false, &x.src, &x.over, wide);
            f.vector("dst", true, &x.dst, &x.over, wide);
        }
        Instr::BinaryOp(x) => {
            let wide = x.dst.view.elem;
            f.vector("src0", false, &x.src0, &x.over, wide);
            f.vector("src1", false, &x.src1, &x.over, wide);
            if x.op == Binary::MulAddDst {
                f.vector("dst", false, &x.dst, &x.over, wide);
            }
            f.vector("dst", true, &x.dst, &x.over, wide);
        }
        Instr::ScaledOp(x) => {
            let wide = x.dst.view.elem;
            f.vector("src", false, &x.src, &x.over, wide);
            if x.op == Scaled::Axpy {
                f.vector("dst", false, &x.dst, &x.over, wide);
            }
            f.vector("dst", true, &x.dst, &x.over, wide);
        }
        Instr::Duplicate(x) => f.vector("dst", true, &x.dst, &x.over, x.dst.view.elem),
        Instr::Cast(x) => {
            let wide = wider(x.dst.view.elem, x.src.view.elem);
            f.vector("src", false, &x.src, &x.over, wide);
            f.vector("dst", true, &x.dst, &x.over, wide);
        }
        Instr::CompareOp(x) => {
            let wide = x.src0.view.elem;
            f.vector("src0", false, &x.src0, &x.over, wide);
            f.vector("src1", false, &x.src1, &x.over, wide);
            f.writes("dst", &x.dst, Runs::one(0, bits_bytes(&x.over, wide)));
        }
        Instr::CompareScalar(x) => {
            f.vector("src", false, &x.src, &x.over, x.src.view.elem);
            f.writes("dst", &x.dst, Runs::one(0, bits_bytes(&x.over, x.src.view.elem)));
        }
        Instr::Select(x) => {
            let wide = x.dst.view.elem;
            f.reads("mask", &x.mask, Runs::one(0, bits_bytes(&x.over, wide)));
            f.vector("src0", false, &x.src0, &x.over, wide);
            f.vector("src1", false, &x.src1, &x.over, wide);
            f.vector("dst", true, &x.dst, &x.over, wide);
        }
        Instr::SelectScalar(x) => {
            let wide = x.dst.view.elem;
            f.reads("mask", &x.mask, Runs::one(0, bits_bytes(&x.over, wide)));
            f.vector("src", false, &x.src, &x.over, wide);
            f.vector("dst", true, &x.dst, &x.over, wide);
        }
        Instr::Reduce(x) => {
            let elem = x.src.view.elem;
            let size = elem.size();
            let repeat = n(&x.repeat);
            for runs in masked_runs(&x.src, &x.mask, repeat, elem) {
                f.add("src", x.src.view.base, false, runs);
            }
            let step = u64::from(x.dst_repeat);
            let to = match x.op.kind() {
                ReductionKind::Whole => Runs::row(0, x.results() * size, repeat, step * x.results() * size),
                ReductionKind::Block => Runs::row(0, 8 * size, repeat, step * 8 * size),
                ReductionKind::Pair => Runs::row(0, 128, repeat, step * 128),
            };
            f.writes("dst", &x.dst, to);
        }
        Instr::Gather(x) => {
            let (count, size) = (n(&x.count), x.dst.elem.size());
            f.reads("offsets", &x.offsets, Runs::one(0, count * 4));
            f.writes("dst", &x.dst, Runs::one(0, count * size));
        }
        Instr::GatherMask(x) => {
            let elem = x.src.view.elem;
            let repeat = n(&x.repeat);
            for runs in masked_runs(&x.src, &Mask::First(x.count), repeat, elem) {
                f.add("src", x.src.view.base, false, runs);
            }
            f.writes("dst", &x.dst, Runs::one(0, repeat * x.picked() * elem.size()));
        }
        Instr::Brcb(x) => {
            let repeat = n(&x.repeat);
            f.reads("src", &x.src, Runs::one(0, repeat * 8 * x.src.elem.size()));
            let (block, stride) = (u64::from(x.dst.block) * 32, u64::from(x.dst.repeat) * 32);
            let to = Runs { start: 0, len: 32, count: [repeat, 8], stride: [stride, block] };
            f.writes("dst", &x.dst.view, to.joined());
        }
        Instr::Ramp(x) => f.writes("dst", &x.dst, Runs::one(0, n(&x.count) * x.dst.elem.size())),
        Instr::Transpose(x) => {
            f.reads("src", &x.src, Runs::one(0, 512));
            f.writes("dst", &x.dst, Runs::one(0, 512));
        }
        Instr::TransposeRows(x) => {
            let repeat = n(&x.repeat);
            for view in &x.src {
                f.reads("src", view, Runs::row(0, 32, repeat, u64::from(x.src_repeat) * 32));
            }
            for view in &x.dst {
                f.writes("dst", view, Runs::row(0, 32, repeat, u64::from(x.dst_repeat) * 32));
            }
        }
        Instr::Sort32(x) => {
            let repeat = n(&x.repeat);
            f.reads("score", &x.score, Runs::one(0, repeat * 32 * x.score.elem.size()));
            f.reads("index", &x.index, Runs::one(0, repeat * 128));
            f.writes("dst", &x.dst, Runs::one(0, repeat * 256));
        }
        Instr::MergeSort(x) => {
            let repeat = n(&x.repeat);
            let total: u64 = x.lengths.iter().map(|&l| u64::from(l)).sum();
            if repeat == 1 {
                for (view, &len) in x.src.iter().zip(&x.lengths) {
                    f.reads("src", view, Runs::one(0, u64::from(len) * 8));
                }
            } else if let Some(first) = x.src.first() {
                f.reads("src", first, Runs::one(0, repeat * total * 8));
            }
            f.writes("dst", &x.dst, Runs::one(0, repeat * total * 8));
        }
        Instr::Load(x) => f.reads("src", &x.src, Runs::one(0, x.src.elem.size())),
        Instr::Store(x) => f.writes("dst", &x.dst, Runs::one(0, x.dst.elem.size())),
        Instr::SyncSoft(_)
        | Instr::CacheFlush(_)
        | Instr::SetFlag(_)
        | Instr::WaitFlag(_)
        | Instr::CrossSet(_)
        | Instr::CrossWait(_)
        | Instr::Barrier(_) => {}
    }
    feet.0
}

/// The wider of two types, by which the mask of a conversion counts.
pub(crate) fn wider(a: Elem, b: Elem) -> Elem {
    if a.size() >= b.size() { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::BufferId;

    fn operand(block: u32, repeat: u32) -> Vector<Value> {
        let view = View { base: Base::Buffer(BufferId(0)), elem: Elem::F32, offset: Value::Int(8) };
        Vector { view, block, repeat }
    }

    #[test]
    fn runs_are_the_bytes_of_a_mask() {
        let over = |mask, repeat| Over::Repeats { mask, repeat: Value::Int(repeat) };
        let full = over(Mask::First(Value::Int(64)), 3);
        assert_eq!(vector_runs(&operand(1, 8), &full, Elem::F32), [Runs::one(32, 768)]);
        // Ten of 64: a whole block and a quarter of the next, in three repeats with a stride of 10 blocks.
        let ten = over(Mask::First(Value::Int(10)), 3);
        let runs = vector_runs(&operand(2, 10), &ten, Elem::F32);
        assert_eq!(runs, [Runs::row(32, 32, 3, 320), Runs::row(32 + 64, 8, 3, 320)]);
        let odd = over(Mask::Bits([0b1010, 0]), 1);
        let runs = vector_runs(&operand(1, 8), &odd, Elem::F32);
        assert_eq!(runs, [Runs::one(36, 4), Runs::one(44, 4)]);
    }

    #[test]
    fn a_narrow_operand_of_a_conversion_has_half_the_blocks() {
        let over = Over::Repeats { mask: Mask::First(Value::Int(64)), repeat: Value::Int(2) };
        let mut narrow = operand(1, 4);
        narrow.view.elem = Elem::F16;
        assert_eq!(vector_runs(&narrow, &over, Elem::F32), [Runs::one(16, 256)]);
    }

    #[test]
    fn runs_meet_where_they_share_a_byte() {
        let even = Runs::row(0, 32, 4, 64);
        assert!(!even.meets(&Runs::row(32, 32, 4, 64)));
        assert!(even.meets(&Runs::row(31, 32, 4, 64)));
        assert!(even.meets(&Runs::one(70, 2)));
        assert!(!even.meets(&Runs::one(96, 32)));
        assert!(!even.meets(&Runs::one(0, 0)));
    }
}
