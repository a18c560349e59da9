//! The vector unit: what each instruction computes.
//!
//! Operands are cut into runs in which all of them are contiguous; a run is read, computed in f32 (integers in i64) and
//! written. Maxima and minima of NaN are NaN: the chips' rule is not published.

use super::Fault;
use super::memory::{Reach, start};
use super::numbers::*;
use crate::kernel::*;

/// Elements that are computed at a time.
const CHUNK: usize = 1024;

type Done = Result<(), Fault>;

/// A stretch of elements that is contiguous in every operand: where each begins, in bytes, and how many.
struct Run {
    starts: [i64; 4],
    len: usize,
}

/// Runs of an instruction over operands (at most four); `wide` is the type by which the mask counts.
fn runs(operands: &[&Vector<Value>], over: &Over<Value>, wide: Elem) -> Vec<Run> {
    let mut starts = [0; 4];
    for (to, v) in starts.iter_mut().zip(operands) {
        *to = v.view.byte();
    }
    let (mask, repeat) = match over {
        Over::Count(n) => return vec![Run { starts, len: n.as_int().max(0) as usize }],
        Over::Repeats { mask, repeat } => (mask, repeat.as_int().max(0)),
    };
    let lanes = wide.per_repeat();
    let first = match mask {
        Mask::First(n) => (n.as_int().max(0) as u64).min(lanes),
        Mask::Bits(_) => 0,
    };
    let dense = operands.iter().all(|v| v.block == 1);
    let joined = operands.iter().all(|v| u64::from(v.repeat) * 32 == lanes * v.view.elem.size());
    if dense && joined && first == lanes {
        return vec![Run { starts, len: (lanes as i64 * repeat) as usize }];
    }
    // Contiguous in all operands at least within a block of the widest.
    let step = if dense { lanes } else { wide.per_block() };
    let mut out = Vec::new();
    for r in 0..repeat {
        let mut lane = 0;
        while lane < lanes {
            let end = (lane / step + 1) * step;
            let active = |i: u64| match mask {
                Mask::First(_) => i < first,
                Mask::Bits(words) => words[(i / 64) as usize & 1] >> (i % 64) & 1 == 1,
            };
            let from = (lane..end).find(|&i| active(i)).unwrap_or(end);
            let to = (from..end).find(|&i| !active(i)).unwrap_or(end);
            if from < to {
                let mut at = starts;
                for (at, v) in at.iter_mut().zip(operands) {
                    let per_block = v.view.elem.per_block();
                    let (block, rest) = (from / per_block, from % per_block);
                    *at += r * i64::from(v.repeat) * 32
                        + (block * u64::from(v.block) * 32 + rest * v.view.elem.size()) as i64;
                }
                out.push(Run { starts: at, len: (to - from) as usize });
            }
            lane = to.max(from);
        }
    }
    out
}

/// Runs cut into chunks.
fn chunks(runs: Vec<Run>, sizes: [i64; 4]) -> impl Iterator<Item = Run> {
    runs.into_iter().flat_map(move |run| {
        (0..run.len).step_by(CHUNK).map(move |i| {
            let mut starts = run.starts;
            for (start, size) in starts.iter_mut().zip(sizes) {
                *start += i as i64 * size;
            }
            Run { starts, len: CHUNK.min(run.len - i) }
        })
    })
}

/// Results and up to three operands of a floating-point type, as f32.
struct Floats {
    out: [f32; CHUNK],
    x: [[f32; CHUNK]; 3],
}

impl Reach<'_, '_> {
    /// Marks results as written where all their operands are. `sources` are operands as in `run`, from 1.
    fn follow(&mut self, run: &Run, operands: &[&Vector<Value>]) {
        if !self.checked {
            return;
        }
        let mut all = vec![1u8; run.len];
        for (v, &at) in operands.iter().zip(&run.starts).skip(1) {
            let size = v.view.elem.size() as usize;
            if let Some(defined) = self.defined(v.view.base, at, run.len * size) {
                for (all, d) in all.iter_mut().zip(defined.chunks(size)) {
                    *all &= d.iter().fold(1, |a, b| a & b);
                }
            }
        }
        let size = operands[0].view.elem.size() as usize;
        if let Some(to) = self.defined_mut(operands[0].view.base, run.starts[0], run.len * size) {
            for (to, all) in to.chunks_mut(size).zip(&all) {
                to.fill(*all);
            }
        }
    }

    /// `operands[0] = f(operands[1..])`, elementwise.
    fn floats(
        &mut self,
        operands: &[&Vector<Value>],
        over: &Over<Value>,
        mut f: impl FnMut(&mut Floats, usize),
    ) -> Done {
        let mut sizes = [0; 4];
        for (size, v) in sizes.iter_mut().zip(operands) {
            *size = v.view.elem.size() as i64;
        }
        let wide = operands[0].view.elem;
        let mut data = Box::new(Floats { out: [0.0; CHUNK], x: [[0.0; CHUNK]; 3] });
        for run in chunks(runs(operands, over, wide), sizes) {
            for (i, v) in operands.iter().enumerate().skip(1) {
                let bytes = self.read(v.view.base, run.starts[i], run.len * sizes[i] as usize)?;
                read_floats(v.view.elem, bytes, &mut data.x[i - 1][..run.len]);
            }
            f(&mut data, run.len);
            let to = self.write(operands[0].view.base, run.starts[0], run.len * sizes[0] as usize)?;
            write_floats(wide, &data.out[..run.len], to);
            self.follow(&run, operands);
        }
        Ok(())
    }

    /// The same for integers, one by one.
    fn ints(&mut self, operands: &[&Vector<Value>], over: &Over<Value>, f: impl Fn([i64; 3]) -> i64) -> Done {
        let elem = operands[0].view.elem;
        let size = elem.size() as usize;
        for run in chunks(runs(operands, over, elem), [size as i64; 4]) {
            let mut x = vec![[0; 3]; run.len];
            for (j, v) in operands.iter().enumerate().skip(1) {
                let bytes = self.read(v.view.base, run.starts[j], run.len * size)?;
                for (x, b) in x.iter_mut().zip(bytes.chunks(size)) {
                    x[j - 1] = read_int(v.view.elem, b);
                }
            }
            let mut out = vec![0; run.len * size];
            for (x, out) in x.into_iter().zip(out.chunks_mut(size)) {
                write_int(elem, f(x), out);
            }
            self.write(operands[0].view.base, run.starts[0], out.len())?.copy_from_slice(&out);
            self.follow(&run, operands);
        }
        Ok(())
    }

    /// Executes an instruction of the vector unit.
    pub(super) fn vector(&mut self, instr: &Instr<Value>) -> Done {
        match instr {
            Instr::UnaryOp(x) => self.unary(x),
            Instr::BinaryOp(x) => self.binary(x),
            Instr::ScaledOp(x) => self.scaled(x),
            Instr::Duplicate(x) => {
                let elem = x.dst.view.elem;
                match elem.is_float() {
                    true => {
                        let value = round_to(elem, x.value);
                        self.floats(&[&x.dst], &x.over, |d, n| d.out[..n].fill(value))
                    }
                    false => self.ints(&[&x.dst], &x.over, |_| x.value.as_int()),
                }
            }
            Instr::Cast(x) => self.cast(x),
            Instr::CompareOp(x) => {
                self.compare(&x.dst, &x.src0, Some(&x.src1), Value::Int(0), x.cmp, &x.over)
            }
            Instr::CompareScalar(x) => self.compare(&x.dst, &x.src, None, x.scalar, x.cmp, &x.over),
            Instr::Select(x) => self.select(&x.dst, &x.mask, &x.src0, Some(&x.src1), Value::Int(0), &x.over),
            Instr::SelectScalar(x) => self.select(&x.dst, &x.mask, &x.src, None, x.scalar, &x.over),
            Instr::Reduce(x) => self.reduce(x),
            _ => self.permute(instr),
        }
    }

    fn unary(&mut self, x: &UnaryOp<Value>) -> Done {
        let operands = [&x.dst, &x.src];
        if !x.dst.view.elem.is_float() {
            return self.ints(&operands, &x.over, |[a, ..]| if x.op == Unary::Not { !a } else { a.max(0) });
        }
        let f: fn(f32) -> f32 = match x.op {
            Unary::Abs => f32::abs,
            Unary::Exp => libm::expf,
            Unary::Ln => libm::logf,
            Unary::Sqrt => f32::sqrt,
            Unary::Rsqrt => |x| 1.0 / x.sqrt(),
            Unary::Reciprocal => |x| 1.0 / x,
            Unary::Relu | Unary::Not => |x| if x < 0.0 { 0.0 } else { x },
        };
        self.floats(&operands, &x.over, |d, n| {
            for (o, a) in d.out[..n].iter_mut().zip(&d.x[0]) {
                *o = f(*a);
            }
        })
    }

    fn binary(&mut self, x: &BinaryOp<Value>) -> Done {
        let elem = x.dst.view.elem;
        if !elem.is_float() {
            return self.ints(&[&x.dst, &x.src0, &x.src1], &x.over, |[a, b, _]| match x.op {
                Binary::Add => a.wrapping_add(b),
                Binary::Sub => a.wrapping_sub(b),
                Binary::Max => a.max(b),
                Binary::Min => a.min(b),
                Binary::And => a & b,
                Binary::Or => a | b,
                _ => a.wrapping_mul(b),
            });
        }
        macro_rules! each {
            (|$a:ident, $b:ident| $e:expr) => {
                self.floats(&[&x.dst, &x.src0, &x.src1], &x.over, |d, n| {
                    let [x0, x1, _] = &d.x;
                    for ((o, $a), $b) in d.out[..n].iter_mut().zip(x0).zip(x1) {
                        let ($a, $b) = (*$a, *$b);
                        *o = $e;
                    }
                })
            };
        }
        match x.op {
            Binary::Add => each!(|a, b| a + b),
            Binary::Sub => each!(|a, b| a - b),
            Binary::Mul => each!(|a, b| a * b),
            Binary::Div => each!(|a, b| a / b),
            Binary::Max => each!(|a, b| larger(a, b)),
            Binary::Min => each!(|a, b| -larger(-a, -b)),
            _ => self.floats(&[&x.dst, &x.src0, &x.src1, &x.dst], &x.over, |d, n| {
                let [x0, x1, x2] = &d.x;
                for (((o, a), b), c) in d.out[..n].iter_mut().zip(x0).zip(x1).zip(x2) {
                    *o = c + round_float(elem, a * b);
                }
            }),
        }
    }

    fn scaled(&mut self, x: &ScaledOp<Value>) -> Done {
        let elem = x.dst.view.elem;
        if !elem.is_float() {
            let s = x.scalar.as_int();
            let bits = elem.size() as i64 * 8;
            return self.ints(&[&x.dst, &x.src], &x.over, |[a, ..]| match x.op {
                Scaled::Adds => a.wrapping_add(s),
                Scaled::Muls => a.wrapping_mul(s),
                Scaled::Maxs => a.max(s),
                Scaled::Mins => a.min(s),
                Scaled::ShiftLeft => {
                    if s < bits {
                        a << s
                    } else {
                        0
                    }
                }
                _ => a >> s.clamp(0, 63),
            });
        }
        let s = round_to(elem, x.scalar);
        macro_rules! each {
            (|$a:ident| $e:expr) => {
                self.floats(&[&x.dst, &x.src], &x.over, |d, n| {
                    for (o, $a) in d.out[..n].iter_mut().zip(&d.x[0]) {
                        let $a = *$a;
                        *o = $e;
                    }
                })
            };
        }
        match x.op {
            Scaled::Adds => each!(|a| a + s),
            Scaled::Muls => each!(|a| a * s),
            Scaled::Maxs => each!(|a| larger(a, s)),
            Scaled::Mins => each!(|a| -larger(-a, -s)),
            Scaled::LeakyRelu => each!(|a| if a > 0.0 { a } else { a * s }),
            _ => self.floats(&[&x.dst, &x.src, &x.dst], &x.over, |d, n| {
                let [x0, x1, _] = &d.x;
                for ((o, a), c) in d.out[..n].iter_mut().zip(x0).zip(x1) {
                    *o = c + round_float(elem, a * s);
                }
            }),
        }
    }

    fn cast(&mut self, x: &Cast<Value>) -> Done {
        let (from, to) = (x.src.view.elem, x.dst.view.elem);
        let operands = [&x.dst, &x.src];
        let wide = if to.size() >= from.size() { to } else { from };
        let sizes = [to.size() as i64, from.size() as i64, 0, 0];
        for run in chunks(runs(&operands, &x.over, wide), sizes) {
            let bytes = self.read(x.src.view.base, run.starts[1], run.len * from.size() as usize)?;
            let mut out = vec![0; run.len * to.size() as usize];
            if (from, to) == (Elem::F32, Elem::F32) {
                // To whole numbers.
                let mut data = vec![0.0; run.len];
                read_floats(from, bytes, &mut data);
                data.iter_mut().for_each(|v| *v = whole(*v, x.round));
                write_floats(to, &data, &mut out);
            } else if from.is_float() && to.is_float() && matches!(x.round, Round::None | Round::Rint) {
                let mut data = vec![0.0; run.len];
                read_floats(from, bytes, &mut data);
                write_floats(to, &data, &mut out);
            } else {
                let cells = bytes.chunks(from.size() as usize).zip(out.chunks_mut(to.size() as usize));
                for (b, o) in cells {
                    match (from, to) {
                        (Elem::I64, Elem::I32) | (_, Elem::I64) if !from.is_float() => {
                            write_int(to, read_int(from, b), o);
                        }
                        (Elem::I64, _) => write_number(to, odd_f64(read_int(from, b)), x.round, o),
                        _ => {
                            let n = read_number(from, b) * x.scale.map_or(1.0, |s| f64::from(s.0));
                            write_number(to, n, x.round, o);
                        }
                    }
                }
            }
            self.write(x.dst.view.base, run.starts[0], out.len())?.copy_from_slice(&out);
            self.follow(&run, &operands);
        }
        Ok(())
    }

    /// Active elements of operands repeat by repeat: number within the repeat, and where each operand has it.
    pub(super) fn lanes(operands: &[&Vector<Value>], over: &Over<Value>) -> Vec<(u64, [i64; 4])> {
        let elem = operands[0].view.elem;
        let (size, lanes) = (elem.size() as i64, elem.per_repeat());
        // A lane that is one element far from the first in a contiguous stretch has its number in address order.
        let mut out = Vec::new();
        match over {
            Over::Count(n) => {
                for i in 0..n.as_int().max(0) {
                    let mut at = [0; 4];
                    for (at, v) in at.iter_mut().zip(operands) {
                        *at = v.view.byte() + i * size;
                    }
                    out.push((i as u64, at));
                }
            }
            Over::Repeats { mask, repeat } => {
                for r in 0..repeat.as_int().max(0) {
                    for lane in 0..lanes {
                        let active = match mask {
                            Mask::First(n) => (lane as i64) < n.as_int(),
                            Mask::Bits(words) => words[(lane / 64) as usize & 1] >> (lane % 64) & 1 == 1,
                        };
                        if active {
                            let mut at = [0; 4];
                            for (at, v) in at.iter_mut().zip(operands) {
                                let (block, rest) = (lane / elem.per_block(), lane % elem.per_block());
                                *at = v.view.byte()
                                    + r * i64::from(v.repeat) * 32
                                    + (block * u64::from(v.block) * 32) as i64
                                    + rest as i64 * size;
                            }
                            out.push((r as u64 * lanes + lane, at));
                        }
                    }
                }
            }
        }
        out
    }

    /// All lanes as one run, where they are contiguous and numbered in order. Fast runs alone take this way: it follows
    /// no written bytes.
    fn stretch(&self, operands: &[&Vector<Value>], over: &Over<Value>) -> Option<Run> {
        if self.checked || matches!(over, Over::Repeats { mask: Mask::Bits(_), .. }) {
            return None;
        }
        let mut runs = runs(operands, over, operands[0].view.elem);
        runs.pop().filter(|_| runs.is_empty())
    }

    fn element(&self, v: &Vector<Value>, at: i64) -> Result<f64, Fault> {
        Ok(read_number(v.view.elem, self.read(v.view.base, at, v.view.elem.size() as usize)?))
    }

    fn is_defined(&self, v: &Vector<Value>, at: i64) -> bool {
        self.defined(v.view.base, at, v.view.elem.size() as usize).is_none_or(|d| d.iter().all(|&d| d == 1))
    }

    fn compare(
        &mut self,
        dst: &View<Value>,
        a: &Vector<Value>,
        b: Option<&Vector<Value>>,
        scalar: Value,
        cmp: Compare,
        over: &Over<Value>,
    ) -> Done {
        let operands = [a, b.unwrap_or(a)];
        let scalar =
            if a.view.elem.is_float() { f64::from(round_to(a.view.elem, scalar)) } else { scalar.to_f64() };
        let (base, byte) = start(dst);
        if let Some(run) = self.stretch(&operands, over) {
            let size = a.view.elem.size() as usize;
            let numbers = |v: &Vector<Value>, at: i64| {
                let bytes = self.read(v.view.base, at, run.len * size)?;
                Ok::<_, Fault>(bytes.chunks(size).map(|b| read_number(v.view.elem, b)).collect::<Vec<f64>>())
            };
            let x = numbers(a, run.starts[0])?;
            let y = match b {
                Some(b) => numbers(b, run.starts[1])?,
                None => vec![scalar; run.len],
            };
            let cells = self.write(base, byte, run.len.div_ceil(8))?;
            for (i, (x, y)) in x.into_iter().zip(y).enumerate() {
                let cell = &mut cells[i / 8];
                *cell = *cell & !(1 << (i % 8)) | u8::from(holds(cmp, x, y)) << (i % 8);
            }
            return Ok(());
        }
        for (bit, at) in Self::lanes(&operands, over) {
            let x = self.element(a, at[0])?;
            let y = if b.is_some() { self.element(operands[1], at[1])? } else { scalar };
            let truth = holds(cmp, x, y);
            let defined = self.is_defined(a, at[0]) && self.is_defined(operands[1], at[1]);
            let place = byte + (bit / 8) as i64;
            let cell = &mut self.write(base, place, 1)?[0];
            *cell = *cell & !(1 << (bit % 8)) | u8::from(truth) << (bit % 8);
            // A byte of bits is written when its first is, and undefined when one of its bits is.
            if let Some(d) = self.defined_mut(base, place, 1) {
                d[0] = if bit % 8 == 0 { u8::from(defined) } else { d[0] & u8::from(defined) };
            }
        }
        Ok(())
    }

    fn select(
        &mut self,
        dst: &Vector<Value>,
        mask: &View<Value>,
        a: &Vector<Value>,
        b: Option<&Vector<Value>>,
        scalar: Value,
        over: &Over<Value>,
    ) -> Done {
        let operands = [dst, a, b.unwrap_or(a)];
        let elem = dst.view.elem;
        let size = elem.size() as usize;
        let scalar = round_to(elem, scalar);
        let (base, byte) = start(mask);
        if let Some(run) = self.stretch(&operands, over) {
            let bits = self.read(base, byte, run.len.div_ceil(8))?.to_vec();
            let mut out = self.read(a.view.base, run.starts[1], run.len * size)?.to_vec();
            let mut other = vec![0; run.len * size];
            match b {
                Some(b) => other.copy_from_slice(self.read(b.view.base, run.starts[2], run.len * size)?),
                None => write_floats(elem, &vec![scalar; run.len], &mut other),
            }
            for (i, (out, other)) in out.chunks_mut(size).zip(other.chunks(size)).enumerate() {
                if bits[i / 8] >> (i % 8) & 1 == 0 {
                    out.copy_from_slice(other);
                }
            }
            self.write(dst.view.base, run.starts[0], out.len())?.copy_from_slice(&out);
            return Ok(());
        }
        for (bit, at) in Self::lanes(&operands, over) {
            let place = byte + (bit / 8) as i64;
            let first = self.read(base, place, 1)?[0] >> (bit % 8) & 1 == 1;
            let mut out = [0; 4];
            let mut defined = self.defined(base, place, 1).is_none_or(|d| d[0] == 1);
            match (first, b) {
                (false, None) => write_floats(elem, &[scalar], &mut out[..size]),
                _ => {
                    let i = if first { 1 } else { 2 };
                    out[..size].copy_from_slice(self.read(operands[i].view.base, at[i], size)?);
                    defined &= self.is_defined(operands[i], at[i]);
                }
            }
            self.write(dst.view.base, at[0], size)?.copy_from_slice(&out[..size]);
            self.define(dst.view.base, at[0], size, defined);
        }
        Ok(())
    }

    fn reduce(&mut self, x: &Reduce<Value>) -> Done {
        let elem = x.src.view.elem;
        let (size, lanes) = (elem.size() as usize, elem.per_repeat() as usize);
        let (base, byte) = start(&x.dst);
        let repeats = x.repeat.as_int().max(0);
        for r in 0..repeats {
            let mut view = x.src.clone();
            view.view.offset = Value::Int(
                x.src.view.offset.as_int() + r * i64::from(x.src.repeat) * elem.per_block() as i64,
            );
            let over = Over::Repeats { mask: x.mask.clone(), repeat: Value::Int(1) };
            let mut values: Vec<Option<f32>> = vec![None; lanes];
            let mut defined = vec![true; lanes];
            if let Some(run) = self.stretch(&[&view], &over).filter(|_| elem.is_float()) {
                let mut numbers = vec![0.0; run.len];
                read_floats(elem, self.read(view.view.base, run.starts[0], run.len * size)?, &mut numbers);
                values.iter_mut().zip(numbers).for_each(|(value, number)| *value = Some(number));
            } else {
                for (lane, at) in Self::lanes(&[&view], &over) {
                    values[lane as usize] = Some(self.element(&view, at[0])? as f32);
                    defined[lane as usize] = self.is_defined(&view, at[0]);
                }
            }
            let (group, step) = match x.op.kind() {
                ReductionKind::Whole => (lanes, x.dst_repeat as i64 * (x.results() as usize * size) as i64),
                ReductionKind::Block => (32 / size, x.dst_repeat as i64 * 8 * size as i64),
                ReductionKind::Pair => (2, x.dst_repeat as i64 * 128),
            };
            for (g, lanes) in values.chunks(group).enumerate() {
                let at = byte + r * step + (g * x.results() as usize * size) as i64;
                let all = defined[g * group..(g + 1) * group].iter().all(|&d| d);
                let (value, index) = reduced(x.op, elem, lanes);
                let any = lanes.iter().any(Option::is_some) || x.op.kind() != ReductionKind::Block;
                let mut number = [0; 4];
                write_floats(elem, &[value], &mut number[..size]);
                let mut place = [0; 4];
                write_int(if size == 2 { Elem::U16 } else { Elem::U32 }, index as i64, &mut place[..size]);
                let out: Vec<u8> = match x.order {
                    None | Some(Order::OnlyValue) => number[..size].to_vec(),
                    Some(Order::OnlyIndex) => place[..size].to_vec(),
                    Some(Order::ValueIndex) => [&number[..size], &place[..size]].concat(),
                    Some(Order::IndexValue) => [&place[..size], &number[..size]].concat(),
                };
                self.write(base, at, out.len())?.copy_from_slice(&out);
                self.define(base, at, out.len(), all && any);
            }
        }
        Ok(())
    }
}

/// True if a comparison holds.
fn holds(cmp: Compare, x: f64, y: f64) -> bool {
    match cmp {
        Compare::Lt => x < y,
        Compare::Gt => x > y,
        Compare::Eq => x == y,
        Compare::Le => x <= y,
        Compare::Ge => x >= y,
        Compare::Ne => x != y,
    }
}

/// The larger; NaN if one is.
fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || a > b { a } else { b }
}

/// `x` as an element of a floating-point type has it.
pub fn round_float(elem: Elem, x: f32) -> f32 {
    match elem {
        Elem::F32 => x,
        _ => to_float(f64::from(x), elem, Round::Rint) as f32,
    }
}

/// A scalar as an element has it.
pub fn round_to(elem: Elem, x: Value) -> f32 {
    to_float(x.to_f64(), elem, Round::Rint) as f32
}

/// The reduction of some lanes, of which some take part, and the first lane that has a maximum or minimum. A sum is a
/// tree of neighbours, rounded at each node; lanes that take no part are zeros.
fn reduced(op: Reduction, elem: Elem, lanes: &[Option<f32>]) -> (f32, usize) {
    match op {
        Reduction::WholeSum | Reduction::BlockSum | Reduction::PairSum => {
            let mut level: Vec<f32> = lanes.iter().map(|x| x.unwrap_or(0.0)).collect();
            while level.len() > 1 {
                let half = level.len().div_ceil(2);
                for i in 0..half {
                    level[i] = round_float(elem, level[2 * i] + level.get(2 * i + 1).unwrap_or(&0.0));
                }
                level.truncate(half);
            }
            (level.first().copied().unwrap_or(0.0), 0)
        }
        _ => {
            let sign = if matches!(op, Reduction::WholeMax | Reduction::BlockMax) { 1.0 } else { -1.0 };
            let mut best = (f32::NEG_INFINITY, 0, false);
            for (i, x) in lanes.iter().enumerate().filter_map(|(i, x)| Some((i, sign * (*x)?))) {
                let beats = !best.2 || x > best.0 || (x.is_nan() && !best.0.is_nan());
                if beats && !(best.2 && best.0.is_nan()) {
                    best = (x, i, true);
                }
            }
            (sign * best.0, best.1)
        }
    }
}
