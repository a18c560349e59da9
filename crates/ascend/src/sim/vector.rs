//! The vector unit: the computation of each instruction.
//!
//! Lanes are read, computed in f32 (integers in i64) and written. Maxima and minima of NaN are NaN: the
//! chips' rule is not published.

use super::Fault;
use super::lanes::{Batch, Lanes, Number, Walk};
use super::memory::{Reach, start};
use super::numbers::*;
use crate::kernel::finding::Rule;
use crate::kernel::*;

type Done = Result<(), Fault>;

impl Reach<'_, '_> {
    /// `operands[0] = f(operands[1..])`, lane by lane, of a floating-point type.
    fn floats(
        &mut self,
        operands: &[&Vector<Value>],
        over: &Over<Value>,
        mut f: impl FnMut(&mut Lanes<f32>, usize),
    ) -> Done {
        let walk = Walk::new(operands, over, operands[0].view.elem);
        self.each(walk, Some(operands[0]), &operands[1..], |lanes, batch| f(lanes, batch.len()))?;
        self.follow(walk, operands[0], &operands[1..]);
        Ok(())
    }

    /// The same of integers.
    fn ints(&mut self, operands: &[&Vector<Value>], over: &Over<Value>, f: impl Fn(i64, i64) -> i64) -> Done {
        let walk = Walk::new(operands, over, operands[0].view.elem);
        self.each::<i64>(walk, Some(operands[0]), &operands[1..], |lanes, batch| {
            let [x0, x1, _] = &lanes.x;
            for ((o, a), b) in lanes.out[..batch.len()].iter_mut().zip(x0).zip(x1) {
                *o = f(*a, *b);
            }
        })?;
        self.follow(walk, operands[0], &operands[1..]);
        Ok(())
    }

    /// The same of sums, differences and products, which have to stay within their type unless they are
    /// marked as wrapping: chips saturate them where a control bit says so. Elements that nothing has written
    /// count for nothing.
    fn whole(
        &mut self,
        operands: &[&Vector<Value>],
        over: &Over<Value>,
        f: impl Fn(i64, i64) -> i64,
    ) -> Done {
        if !self.checked {
            return self.ints(operands, over, f);
        }
        let dst = operands[0];
        let half = 1i64 << (dst.view.elem.size() * 8 - 1);
        let walk = Walk::new(operands, over, dst.view.elem);
        let mut beyond = Vec::new();
        self.each::<i64>(walk, Some(dst), &operands[1..], |lanes, batch| {
            let [x0, x1, _] = &lanes.x;
            for (lane, (o, (a, b))) in lanes.out[..batch.len()].iter_mut().zip(x0.iter().zip(x1)).enumerate()
            {
                *o = f(*a, *b);
                if !(-half..half).contains(o) {
                    beyond.push((*batch, lane, *o));
                }
            }
        })?;
        self.follow(walk, dst, &operands[1..]);
        match beyond.iter().find(|(batch, lane, _)| self.is_written(&walk, dst, batch, *lane)) {
            None => Ok(()),
            Some((_, _, x)) => Err(Fault::new(
                Rule::Overflow,
                format!("a result is {x}, beyond {}: chips may saturate it", dst.view.elem),
            )),
        }
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
                    false => self.ints(&[&x.dst], &x.over, |_, _| x.value.as_int()),
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
            return match x.op {
                Unary::Not => self.ints(&operands, &x.over, |a, _| !a),
                _ => self.ints(&operands, &x.over, |a, _| a.max(0)),
            };
        }
        macro_rules! each {
            ($f:expr) => {
                self.floats(&operands, &x.over, |d, n| {
                    d.out[..n].iter_mut().zip(&d.x[0]).for_each(|(o, a)| *o = $f(*a));
                })
            };
        }
        match x.op {
            Unary::Abs => each!(f32::abs),
            Unary::Exp => each!(libm::expf),
            Unary::Ln => each!(libm::logf),
            Unary::Sqrt => each!(f32::sqrt),
            Unary::Rsqrt => each!(|x: f32| 1.0 / x.sqrt()),
            Unary::Reciprocal => each!(|x: f32| 1.0 / x),
            Unary::Relu | Unary::Not => each!(|x: f32| if x < 0.0 { 0.0 } else { x }),
        }
    }

    fn binary(&mut self, x: &BinaryOp<Value>) -> Done {
        let elem = x.dst.view.elem;
        if !elem.is_float() {
            let operands = [&x.dst, &x.src0, &x.src1];
            return match x.op {
                Binary::Add => self.whole(&operands, &x.over, i64::wrapping_add),
                Binary::Sub => self.whole(&operands, &x.over, i64::wrapping_sub),
                Binary::Mul => self.whole(&operands, &x.over, i64::wrapping_mul),
                Binary::AddWrapping => self.ints(&operands, &x.over, i64::wrapping_add),
                Binary::SubWrapping => self.ints(&operands, &x.over, i64::wrapping_sub),
                Binary::Max => self.ints(&operands, &x.over, i64::max),
                Binary::Min => self.ints(&operands, &x.over, i64::min),
                Binary::And => self.ints(&operands, &x.over, |a, b| a & b),
                Binary::Or => self.ints(&operands, &x.over, |a, b| a | b),
                _ => self.ints(&operands, &x.over, i64::wrapping_mul),
            };
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
            let operands = [&x.dst, &x.src];
            return match x.op {
                Scaled::Adds => self.whole(&operands, &x.over, |a, _| a.wrapping_add(s)),
                Scaled::Muls => self.whole(&operands, &x.over, |a, _| a.wrapping_mul(s)),
                Scaled::AddsWrapping => self.ints(&operands, &x.over, |a, _| a.wrapping_add(s)),
                Scaled::MulsWrapping => self.ints(&operands, &x.over, |a, _| a.wrapping_mul(s)),
                Scaled::Maxs => self.ints(&operands, &x.over, |a, _| a.max(s)),
                Scaled::Mins => self.ints(&operands, &x.over, |a, _| a.min(s)),
                Scaled::ShiftLeft if s < bits => self.ints(&operands, &x.over, |a, _| a << s.max(0)),
                Scaled::ShiftLeft => self.ints(&operands, &x.over, |_, _| 0),
                _ => self.ints(&operands, &x.over, |a, _| a >> s.clamp(0, 63)),
            };
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
        let (operands, round) = ([&x.dst, &x.src], x.round);
        let wide = if to.size() >= from.size() { to } else { from };
        let walk = Walk::new(&operands, &x.over, wide);
        let (dst, src) = (Some(operands[0]), &operands[1..]);
        if (from, to) == (Elem::F32, Elem::F32) {
            // To whole numbers.
            self.each::<f32>(walk, dst, src, |lanes, batch| {
                let Lanes { out, x: [x, ..] } = lanes;
                out[..batch.len()].iter_mut().zip(x).for_each(|(o, x)| *o = whole(*x, round));
            })?;
        } else if from.is_float() && to.is_float() && matches!(round, Round::None | Round::Rint) {
            self.each::<f32>(walk, dst, src, |lanes, batch| {
                lanes.out[..batch.len()].copy_from_slice(&lanes.x[0][..batch.len()]);
            })?;
        } else if !from.is_float() && (to == Elem::I64 || (from, to) == (Elem::I64, Elem::I32)) {
            self.each::<i64>(walk, dst, src, |lanes, batch| {
                lanes.out[..batch.len()].copy_from_slice(&lanes.x[0][..batch.len()]);
            })?;
        } else if from == Elem::I64 {
            // 64-bit integers are not representable as f64: rounded to odd they are rounded once.
            let mut wide = Vec::new();
            self.each::<i64>(walk, None, src, |lanes, batch| {
                wide.extend_from_slice(&lanes.x[0][..batch.len()])
            })?;
            let mut wide = wide.into_iter();
            self.each::<f64>(walk, dst, &[], |lanes, batch| {
                for (o, x) in lanes.out[..batch.len()].iter_mut().zip(&mut wide) {
                    *o = to_number(odd_f64(x), to, round);
                }
            })?;
        } else {
            let scale = x.scale.map_or(1.0, |s| f64::from(s.0));
            self.each::<f64>(walk, dst, src, |lanes, batch| {
                let Lanes { out, x: [x, ..] } = lanes;
                for (o, x) in out[..batch.len()].iter_mut().zip(x) {
                    *o = to_number(*x * scale, to, round);
                }
            })?;
        }
        self.follow(walk, operands[0], &operands[1..]);
        Ok(())
    }

    /// Active lanes of operands of one type: number within the instruction, and where each operand has it.
    pub(super) fn lanes(operands: &[&Vector<Value>], over: &Over<Value>) -> Vec<(u64, [i64; 4])> {
        let mut out = Vec::new();
        let lanes = operands[0].view.elem.per_repeat();
        let mut place = |number: u64, to: &dyn Fn(&Vector<Value>) -> i64| {
            let mut at = [0; 4];
            for (at, v) in at.iter_mut().zip(operands) {
                *at = v.view.byte() + to(v);
            }
            out.push((number, at));
        };
        match over {
            Over::Count(n) => {
                for i in 0..n.as_int().max(0) {
                    place(i as u64, &|v| i * v.view.elem.size() as i64);
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
                            place(r as u64 * lanes + lane, &|v| {
                                let elem = v.view.elem;
                                let (block, rest) = (lane / elem.per_block(), lane % elem.per_block());
                                r * i64::from(v.repeat) * 32
                                    + (block * u64::from(v.block) * 32 + rest * elem.size()) as i64
                            });
                        }
                    }
                }
            }
        }
        out
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
        let elem = a.view.elem;
        let (base, byte) = start(dst);
        let walk = Walk::new(&operands, over, elem);
        let sources = if b.is_some() { &operands[..] } else { &operands[..1] };
        match elem.is_float() {
            true => {
                let scalar = b.is_none().then(|| round_to(elem, scalar));
                self.truths::<f32>(walk, dst, sources, scalar, cmp)?;
            }
            false => {
                let scalar = b.is_none().then(|| scalar.to_f64());
                self.truths::<f64>(walk, dst, sources, scalar, cmp)?;
            }
        }
        if self.checked {
            for (bit, at) in Self::lanes(&operands, over) {
                let defined = self.is_defined(a, at[0]) && self.is_defined(operands[1], at[1]);
                // A byte of bits is written when its first is, and undefined when one of its bits is.
                if let Some(d) = self.defined_mut(base, byte + (bit / 8) as i64, 1) {
                    d[0] = if bit % 8 == 0 { u8::from(defined) } else { d[0] & u8::from(defined) };
                }
            }
        }
        Ok(())
    }

    /// Writes the truth of a comparison of two operands, or of one with a scalar: a bit for each lane.
    fn truths<T: Number + PartialOrd>(
        &mut self,
        walk: Walk,
        dst: &View<Value>,
        sources: &[&Vector<Value>],
        scalar: Option<T>,
        cmp: Compare,
    ) -> Done {
        let (elem, (base, byte)) = (sources[0].view.elem, start(dst));
        // Bytes of the bits of lanes of contiguous lanes: index of the first, number of lanes.
        let mut bytes: Vec<u8> = Vec::new();
        let mut places: Vec<(usize, usize)> = Vec::new();
        self.each::<T>(walk, None, sources, |lanes, batch| {
            let [x, y, _] = &mut lanes.x;
            if let Some(scalar) = scalar {
                y[..batch.len()].fill(scalar);
            }
            for r in 0..batch.repeats {
                places.push((walk.number(batch, r, 0, elem), batch.lanes));
                held(cmp, &x[r * batch.lanes..][..batch.lanes], &y[r * batch.lanes..], &mut bytes);
            }
        })?;
        let mut bytes = &bytes[..];
        for (number, lanes) in places {
            let own;
            (own, bytes) = bytes.split_at(lanes.div_ceil(8));
            // Repeats and chunks begin at whole bytes.
            let cells = self.write(base, byte + (number / 8) as i64, own.len())?;
            for (i, (cell, truths)) in cells.iter_mut().zip(own).enumerate() {
                let active = walk.active_bits(i, lanes);
                *cell = *cell & !active | truths & active;
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
        // Bits move, whatever number they are.
        let mut word = [0; 8];
        write_floats(elem, &[round_to(elem, scalar)], &mut word);
        let mut other = [0u32];
        Number::read(elem, &word[..elem.size() as usize], &mut other);
        let (base, byte) = start(mask);
        let walk = Walk::new(&operands, over, elem);
        let last = walk.batches().last().map_or(0, |b| walk.number(&b, b.repeats - 1, b.lanes, elem));
        let bits = self.read(base, byte, last.div_ceil(8))?.to_vec();
        let sources = if b.is_some() { &operands[1..] } else { &operands[1..2] };
        self.each::<u32>(walk, Some(dst), sources, |lanes, batch| {
            let Lanes { out, x: [x, y, _] } = lanes;
            if b.is_none() {
                y[..batch.len()].fill(other[0]);
            }
            for r in 0..batch.repeats {
                // Repeats and chunks begin at whole bytes.
                let bits = &bits[walk.number(batch, r, 0, elem) / 8..];
                let own = r * batch.lanes..(r + 1) * batch.lanes;
                let (x, y) = (x[own.clone()].chunks(8), y[own.clone()].chunks(8));
                for (((out, x), y), byte) in out[own].chunks_mut(8).zip(x).zip(y).zip(bits) {
                    for (i, ((o, x), y)) in out.iter_mut().zip(x).zip(y).enumerate() {
                        *o = if byte >> i & 1 == 1 { *x } else { *y };
                    }
                }
            }
        })?;
        if self.checked {
            for (bit, at) in Self::lanes(&operands, over) {
                let place = byte + (bit / 8) as i64;
                let first = bits[bit as usize / 8] >> (bit % 8) & 1 == 1;
                let mut defined = self.defined(base, place, 1).is_none_or(|d| d[0] == 1);
                if first || b.is_some() {
                    let i = if first { 1 } else { 2 };
                    defined &= self.is_defined(operands[i], at[i]);
                }
                self.define(dst.view.base, at[0], elem.size() as usize, defined);
            }
        }
        Ok(())
    }

    fn reduce(&mut self, x: &Reduce<Value>) -> Done {
        let elem = x.src.view.elem;
        let (size, all) = (elem.size() as usize, elem.per_repeat() as usize);
        let (base, byte) = start(&x.dst);
        let (group, step) = match x.op.kind() {
            ReductionKind::Whole => (all, x.dst_repeat as i64 * (x.results() as usize * size) as i64),
            ReductionKind::Block => (32 / size, x.dst_repeat as i64 * 8 * size as i64),
            ReductionKind::Pair => (2, x.dst_repeat as i64 * 128),
        };
        let walk = Walk::repeats(&x.mask, &x.repeat, elem);
        let identity = match x.op {
            Reduction::WholeSum | Reduction::BlockSum | Reduction::PairSum => 0.0,
            Reduction::WholeMax | Reduction::BlockMax => f32::NEG_INFINITY,
            _ => f32::INFINITY,
        };
        let mut numbers = [identity; 128];
        let width = x.results() as usize * size;
        let mut out = [0; 512];
        for r in 0..x.repeat.as_int().max(0) {
            let batch = Batch { first: r as usize, repeats: 1, lanes: walk.lanes };
            if walk.lanes > 0 {
                self.read_lanes(&walk, &x.src, &batch, &mut numbers)?;
            }
            (0..walk.lanes).filter(|&i| !walk.is_active(i)).for_each(|i| numbers[i] = identity);
            let results = &mut out[..all / group * width];
            for ((g, to), numbers) in results.chunks_mut(width).enumerate().zip(numbers.chunks(group)) {
                let active = |i: usize| g * group + i < walk.lanes && walk.is_active(g * group + i);
                let (value, index) = reduced(x.op, elem, numbers, &active);
                let value = self.result(elem, value.into()) as f32;
                let (low, high) = to.split_at_mut(size.min(to.len()));
                let place = if size == 2 { Elem::U16 } else { Elem::U32 };
                match x.order {
                    None | Some(Order::OnlyValue) => write_floats(elem, &[value], low),
                    Some(Order::OnlyIndex) => write_int(place, index as i64, low),
                    Some(Order::ValueIndex) => {
                        write_floats(elem, &[value], low);
                        write_int(place, index as i64, high);
                    }
                    Some(Order::IndexValue) => {
                        write_int(place, index as i64, low);
                        write_floats(elem, &[value], high);
                    }
                }
            }
            let at = byte + r * step;
            self.write(base, at, results.len())?.copy_from_slice(results);
            if self.checked {
                self.follow_reduction(x, &walk, r, at, group, width);
            }
        }
        Ok(())
    }

    /// Marks the results of a repeat as written where the lanes that they come from are, and, of blocks and
    /// pairs, there are any.
    fn follow_reduction(
        &mut self,
        x: &Reduce<Value>,
        walk: &Walk,
        r: i64,
        at: i64,
        group: usize,
        width: usize,
    ) {
        let one = Over::Repeats { mask: x.mask.clone(), repeat: Value::Int(1) };
        let mut defined = vec![(true, x.op.kind() != ReductionKind::Block); walk.lanes.div_ceil(group)];
        for (lane, place) in Self::lanes(&[&x.src], &one) {
            let place = place[0] + r * i64::from(x.src.repeat) * 32;
            let result = &mut defined[lane as usize / group];
            *result = (result.0 && self.is_defined(&x.src, place), true);
        }
        let none = (true, x.op.kind() != ReductionKind::Block);
        for g in 0..x.src.view.elem.per_repeat() as usize / group {
            let (all, any) = defined.get(g).copied().unwrap_or(none);
            self.define(x.dst.base, at + (g * width) as i64, width, all && any);
        }
    }
}

/// A number as a type has it, as f64.
fn to_number(x: f64, elem: Elem, round: Round) -> f64 {
    match elem {
        Elem::F32 if matches!(round, Round::None | Round::Rint) => f64::from(x as f32),
        _ if elem.is_float() => to_float(x, elem, round),
        _ => to_int(x, elem, round) as f64,
    }
}

/// Appends the truth of a comparison, a bit for each lane, in whole bytes.
fn held<T: PartialOrd>(cmp: Compare, x: &[T], y: &[T], to: &mut Vec<u8>) {
    fn bits<T>(x: &[T], y: &[T], to: &mut Vec<u8>, holds: impl Fn(&T, &T) -> bool) {
        to.extend(x.chunks(8).zip(y.chunks(8)).map(|(x, y)| {
            let truths = x.iter().zip(y).enumerate();
            truths.fold(0, |byte, (i, (x, y))| byte | u8::from(holds(x, y)) << i)
        }));
    }
    match cmp {
        Compare::Lt => bits(x, y, to, |x, y| x < y),
        Compare::Gt => bits(x, y, to, |x, y| x > y),
        Compare::Eq => bits(x, y, to, |x, y| x == y),
        Compare::Le => bits(x, y, to, |x, y| x <= y),
        Compare::Ge => bits(x, y, to, |x, y| x >= y),
        Compare::Ne => bits(x, y, to, |x, y| x != y),
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

/// The reduction of some lanes, and the first lane that has a maximum or minimum. A sum is a tree of
/// neighbours, rounded at each node; lanes that take no part have the identity.
fn reduced(op: Reduction, elem: Elem, lanes: &[f32], active: &dyn Fn(usize) -> bool) -> (f32, usize) {
    match op {
        Reduction::WholeSum | Reduction::BlockSum | Reduction::PairSum => {
            let mut level = [0.0; 128];
            level[..lanes.len()].copy_from_slice(lanes);
            let mut len = lanes.len();
            while len > 1 {
                len /= 2;
                for i in 0..len {
                    level[i] = level[2 * i] + level[2 * i + 1];
                }
                if elem != Elem::F32 {
                    level[..len].iter_mut().for_each(|x| *x = round_float(elem, *x));
                }
            }
            (level[0], 0)
        }
        _ => {
            let sign = if matches!(op, Reduction::WholeMax | Reduction::BlockMax) { 1.0 } else { -1.0 };
            let mut best = (f32::NEG_INFINITY, 0, false);
            for (i, x) in lanes.iter().enumerate() {
                let x = sign * x;
                let beats = !best.2 && active(i) || x > best.0 || (x.is_nan() && !best.0.is_nan());
                if beats && !(best.2 && best.0.is_nan()) {
                    best = (x, i, true);
                }
            }
            (sign * best.0, best.1)
        }
    }
}
