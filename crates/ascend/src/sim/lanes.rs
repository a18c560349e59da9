//! Lanes of the vector unit: the walk of an instruction over its operands.
//!
//! Lanes are computed in batches: those of a stretch that is contiguous in every operand, or of some repeats,
//! whose active lanes are compacted. A batch is read, computed on arrays and written.

use super::Fault;
pub use super::lane_room::{CHUNK, LaneRoom, Lanes};
use super::memory::Reach;
use super::numbers::*;
use crate::kernel::*;

/// A number that lanes are computed in.
pub trait Number: Copy + Default + Send + 'static {
    /// Reads elements, of which `from` has as many as `to`.
    fn read(elem: Elem, from: &[u8], to: &mut [Self]);
    /// Writes elements.
    fn write(elem: Elem, from: &[Self], to: &mut [u8]);
    /// Makes results of f16 those of saturation mode. Bits are moved as they are.
    fn saturate(_: &mut [Self]) {}
    /// The buffers for them.
    fn room(room: &mut LaneRoom) -> &mut Option<Box<Lanes<Self>>>;
}

/// Floating-point types.
impl Number for f32 {
    fn read(elem: Elem, from: &[u8], to: &mut [f32]) {
        read_floats(elem, from, to);
    }

    fn write(elem: Elem, from: &[f32], to: &mut [u8]) {
        write_floats(elem, from, to);
    }

    fn saturate(results: &mut [f32]) {
        saturate(results);
    }

    fn room(room: &mut LaneRoom) -> &mut Option<Box<Lanes<f32>>> {
        &mut room.floats
    }
}

/// Integers; of floating-point types the bits.
impl Number for i64 {
    fn read(elem: Elem, from: &[u8], to: &mut [i64]) {
        read_ints(elem, from, to);
    }

    fn write(elem: Elem, from: &[i64], to: &mut [u8]) {
        write_ints(elem, from, to);
    }

    fn room(room: &mut LaneRoom) -> &mut Option<Box<Lanes<i64>>> {
        &mut room.ints
    }
}

/// Bits of types of at most 32 bits, moved as they are.
impl Number for u32 {
    fn read(elem: Elem, from: &[u8], to: &mut [u32]) {
        match elem.size() {
            4 => {
                for (x, b) in to.iter_mut().zip(from.as_chunks::<4>().0) {
                    *x = u32::from_le_bytes(*b);
                }
            }
            2 => {
                for (x, b) in to.iter_mut().zip(from.as_chunks::<2>().0) {
                    *x = u16::from_le_bytes(*b).into();
                }
            }
            _ => to.iter_mut().zip(from).for_each(|(x, b)| *x = (*b).into()),
        }
    }

    fn write(elem: Elem, from: &[u32], to: &mut [u8]) {
        match elem.size() {
            4 => {
                for (x, b) in from.iter().zip(to.as_chunks_mut::<4>().0) {
                    *b = x.to_le_bytes();
                }
            }
            2 => {
                for (x, b) in from.iter().zip(to.as_chunks_mut::<2>().0) {
                    *b = (*x as u16).to_le_bytes();
                }
            }
            _ => from.iter().zip(to).for_each(|(x, b)| *b = *x as u8),
        }
    }

    fn room(room: &mut LaneRoom) -> &mut Option<Box<Lanes<u32>>> {
        &mut room.bits
    }
}

/// Any type but i64; what is written is a number of the type already.
impl Number for f64 {
    fn read(elem: Elem, from: &[u8], to: &mut [f64]) {
        match elem {
            Elem::F32 => {
                for (x, b) in to.iter_mut().zip(from.as_chunks::<4>().0) {
                    *x = f64::from(f32::from_le_bytes(*b));
                }
            }
            Elem::I32 => {
                for (x, b) in to.iter_mut().zip(from.as_chunks::<4>().0) {
                    *x = f64::from(i32::from_le_bytes(*b));
                }
            }
            _ => {
                for (x, b) in to.iter_mut().zip(from.chunks_exact(elem.size() as usize)) {
                    *x = read_number(elem, b);
                }
            }
        }
    }

    fn write(elem: Elem, from: &[f64], to: &mut [u8]) {
        match elem {
            Elem::F32 => {
                for (x, b) in from.iter().zip(to.as_chunks_mut::<4>().0) {
                    *b = (*x as f32).to_le_bytes();
                }
            }
            Elem::I32 => {
                for (x, b) in from.iter().zip(to.as_chunks_mut::<4>().0) {
                    *b = (*x as i32).to_le_bytes();
                }
            }
            _ => {
                for (x, b) in from.iter().zip(to.chunks_exact_mut(elem.size() as usize)) {
                    match elem.is_float() {
                        true => write_floats(elem, &[*x as f32], b),
                        false => write_int(elem, *x as i64, b),
                    }
                }
            }
        }
    }

    fn saturate(results: &mut [f64]) {
        results.iter_mut().for_each(|x| *x = saturated(*x));
    }

    fn room(room: &mut LaneRoom) -> &mut Option<Box<Lanes<f64>>> {
        &mut room.numbers
    }
}

/// The way of an instruction over its operands.
#[derive(Clone, Copy)]
pub struct Walk {
    /// Lanes of a repeat up to the last active one; of a stretch all.
    pub lanes: usize,
    /// Repeats; `None` for a stretch.
    repeats: Option<usize>,
    /// Active lanes, where they are not all.
    bits: Option<[u64; 2]>,
}

/// A batch of lanes.
#[derive(Clone, Copy)]
pub struct Batch {
    /// The first repeat, or the first lane of a stretch.
    pub first: usize,
    /// Number of repeats.
    pub repeats: usize,
    /// Lanes of each, repeat by repeat.
    pub lanes: usize,
}

impl Batch {
    /// Lanes of all repeats.
    pub const fn len(&self) -> usize {
        self.repeats * self.lanes
    }
}

impl Walk {
    /// The walk of an instruction over operands; `wide` is the type by which the mask counts.
    pub fn new(operands: &[&Vector<Value>], over: &Over<Value>, wide: Elem) -> Walk {
        let walk = match over {
            Over::Count(n) => return Walk { lanes: n.as_int().max(0) as usize, repeats: None, bits: None },
            Over::Repeats { mask, repeat } => Walk::repeats(mask, repeat, wide),
        };
        let all = wide.per_repeat();
        let joined =
            |v: &&Vector<Value>| v.block == 1 && u64::from(v.repeat) * 32 == all * v.view.elem.size();
        match walk.repeats {
            Some(repeats)
                if walk.bits.is_none() && walk.lanes == all as usize && operands.iter().all(joined) =>
            {
                Walk { lanes: walk.lanes * repeats, repeats: None, bits: None }
            }
            _ => walk,
        }
    }

    /// Over repeats, at any strides.
    pub fn repeats(mask: &Mask<Value>, repeat: &Value, wide: Elem) -> Walk {
        let all = wide.per_repeat();
        let (lanes, bits) = match *mask {
            Mask::First(n) => ((n.as_int().max(0) as u64).min(all), None),
            Mask::Bits([low, high]) => {
                let high = if all > 64 { high } else { 0 };
                let last = if high != 0 { 128 - high.leading_zeros() } else { 64 - low.leading_zeros() };
                (u64::from(last), Some([low, high]))
            }
        };
        Walk { lanes: lanes as usize, repeats: Some(repeat.as_int().max(0) as usize), bits }
    }

    /// True if lanes are contiguous in every operand, and all active.
    pub const fn is_stretch(&self) -> bool {
        self.repeats.is_none()
    }

    /// The batches, in order.
    pub fn batches(self) -> impl Iterator<Item = Batch> {
        let (all, step) = match self.repeats {
            None => (self.lanes, CHUNK),
            // A repeat has up to 128 lanes.
            Some(repeats) => (if self.lanes == 0 { 0 } else { repeats }, CHUNK / self.lanes.max(1)),
        };
        (0..all).step_by(step.max(1)).map(move |first| {
            let some = (all - first).min(step);
            match self.repeats {
                None => Batch { first, repeats: 1, lanes: some },
                Some(_) => Batch { first, repeats: some, lanes: self.lanes },
            }
        })
    }

    /// True if a lane of a repeat takes part.
    pub fn is_active(&self, lane: usize) -> bool {
        self.bits.is_none_or(|bits| (bits[(lane / 64) & 1] >> (lane % 64)) & 1 == 1)
    }

    /// The lanes of byte `i` of a repeat's or stretch's mask that take part, of `lanes` in all.
    pub fn active_bits(&self, i: usize, lanes: usize) -> u8 {
        let all = u8::MAX >> 8usize.saturating_sub(lanes - 8 * i).min(7);
        all & self.bits.map_or(u8::MAX, |bits| (bits[(i / 8) & 1] >> (i % 8 * 8)) as u8)
    }

    /// Number of a lane among all that the instruction has, active or not.
    pub fn number(&self, batch: &Batch, repeat: usize, lane: usize, wide: Elem) -> usize {
        match self.repeats {
            None => batch.first + lane,
            Some(_) => (batch.first + repeat) * wide.per_repeat() as usize + lane,
        }
    }

    /// The byte at which a batch begins in an operand, and how far it reaches.
    fn hull(&self, v: &Vector<Value>, batch: &Batch) -> (i64, usize) {
        let (size, per_block) = (v.view.elem.size() as usize, v.view.elem.per_block() as usize);
        if self.is_stretch() {
            return (v.view.byte().saturating_add((batch.first * size) as i64), batch.lanes * size);
        }
        let (block, repeat) = (v.block as usize * 32, v.repeat as usize * 32);
        let last = (batch.lanes - 1) / per_block;
        let within = match v.block {
            0 if last > 0 => 32,
            _ => last * block + (batch.lanes - last * per_block) * size,
        };
        let at = v.view.byte().saturating_add((batch.first * repeat) as i64);
        (at, (batch.repeats - 1) * repeat + within)
    }

    /// Calls `f` with each part of a batch that is contiguous in an operand: the offset in bytes from the
    /// batch's beginning there, and lanes of the batch.
    fn parts(&self, v: &Vector<Value>, batch: &Batch, mut f: impl FnMut(usize, usize, usize)) {
        let size = v.view.elem.size() as usize;
        let (block, repeat) = (v.block as usize * 32, v.repeat as usize * 32);
        let row = batch.lanes * size;
        if self.is_stretch() || v.block == 1 && (repeat == row || batch.repeats == 1) {
            return f(0, 0, batch.len());
        }
        let per_block = v.view.elem.per_block() as usize;
        for r in 0..batch.repeats {
            if v.block == 1 {
                f(r * repeat, r * batch.lanes, batch.lanes);
                continue;
            }
            for lane in (0..batch.lanes).step_by(per_block) {
                let lanes = per_block.min(batch.lanes - lane);
                f(r * repeat + lane / per_block * block, r * batch.lanes + lane, lanes);
            }
        }
    }
}

impl Reach<'_, '_> {
    /// Computes the lanes of an instruction: `f` makes the results of a batch from its operands.
    ///
    /// # Errors
    /// `Bounds`
    pub(super) fn each<T: Number>(
        &mut self,
        walk: Walk,
        dst: Option<&Vector<Value>>,
        sources: &[&Vector<Value>],
        mut f: impl FnMut(&mut Lanes<T>, &Batch),
    ) -> Result<(), Fault> {
        let room = T::room(&mut self.local.lanes).take();
        let empty = || Box::new(Lanes { out: [T::default(); CHUNK], x: [[T::default(); CHUNK]; 3] });
        let mut lanes = room.unwrap_or_else(empty);
        let done = walk.batches().try_for_each(|batch| {
            for (v, to) in sources.iter().zip(&mut lanes.x) {
                self.read_lanes(&walk, v, &batch, to)?;
            }
            f(&mut lanes, &batch);
            let Some(dst) = dst else { return Ok(()) };
            if self.saturates(dst.view.elem) {
                T::saturate(&mut lanes.out[..batch.len()]);
            }
            self.write_lanes(&walk, dst, &batch, &lanes.out)
        });
        *T::room(&mut self.local.lanes) = Some(lanes);
        done
    }

    /// Marks results as written where all their operands are.
    pub(super) fn follow(&mut self, walk: Walk, dst: &Vector<Value>, sources: &[&Vector<Value>]) {
        if !self.checked {
            return;
        }
        for batch in walk.batches() {
            let mut all = [1u8; CHUNK];
            for v in sources {
                let size = v.view.elem.size() as usize;
                let (at, reach) = walk.hull(v, &batch);
                let Some(defined) = self.defined(v.view.base, at, reach) else { continue };
                walk.parts(v, &batch, |from, lane, lanes| {
                    let defined = defined[from..].chunks(size);
                    for (all, defined) in all[lane..lane + lanes].iter_mut().zip(defined) {
                        *all &= defined.iter().fold(1, |a, b| a & b);
                    }
                });
            }
            let size = dst.view.elem.size() as usize;
            let (at, reach) = walk.hull(dst, &batch);
            let Some(defined) = self.defined_mut(dst.view.base, at, reach) else { continue };
            walk.parts(dst, &batch, |to, lane, lanes| {
                let own = all[lane..lane + lanes].iter().zip(defined[to..].chunks_mut(size));
                for (i, (all, defined)) in own.enumerate() {
                    if walk.is_active((lane + i) % batch.lanes) {
                        defined.fill(*all);
                    }
                }
            });
        }
    }

    /// True if a lane of a batch takes part and its element has been written.
    pub(super) fn is_written(&self, walk: &Walk, v: &Vector<Value>, batch: &Batch, lane: usize) -> bool {
        let (size, (at, reach)) = (v.view.elem.size() as usize, walk.hull(v, batch));
        let Some(defined) = self.defined(v.view.base, at, reach) else { return false };
        let mut written = false;
        walk.parts(v, batch, |from, first, lanes| {
            if (first..first + lanes).contains(&lane) {
                written = defined[from + (lane - first) * size..][..size].iter().all(|&b| b != 0);
            }
        });
        written && walk.is_active(lane % batch.lanes)
    }

    /// Reads the lanes of a batch.
    ///
    /// # Errors
    /// `Bounds`
    pub(super) fn read_lanes<T: Number>(
        &self,
        walk: &Walk,
        v: &Vector<Value>,
        batch: &Batch,
        to: &mut [T],
    ) -> Result<(), Fault> {
        let (elem, size) = (v.view.elem, v.view.elem.size() as usize);
        let (at, reach) = walk.hull(v, batch);
        let bytes = self.read(v.view.base, at, reach)?;
        walk.parts(v, batch, |from, lane, lanes| {
            T::read(elem, &bytes[from..from + lanes * size], &mut to[lane..lane + lanes]);
        });
        Ok(())
    }

    fn write_lanes<T: Number>(
        &mut self,
        walk: &Walk,
        v: &Vector<Value>,
        batch: &Batch,
        from: &[T],
    ) -> Result<(), Fault> {
        let (elem, size) = (v.view.elem, v.view.elem.size() as usize);
        let (at, reach) = walk.hull(v, batch);
        let bytes = self.write(v.view.base, at, reach)?;
        walk.parts(v, batch, |to, lane, lanes| {
            let (from, bytes) = (&from[lane..lane + lanes], &mut bytes[to..to + lanes * size]);
            if walk.bits.is_none() {
                return T::write(elem, from, bytes);
            }
            for (i, (x, b)) in from.iter().zip(bytes.chunks_exact_mut(size)).enumerate() {
                if walk.is_active((lane + i) % batch.lanes) {
                    T::write(elem, std::slice::from_ref(x), b);
                }
            }
        });
        Ok(())
    }
}
