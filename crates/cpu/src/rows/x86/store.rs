//! Stores: numbers rounded and cut to what memory holds.

use super::assembler::*;
use super::avx512;
use super::regalloc::Emitter;
use headwater_core::DType;

impl Emitter<'_> {
    /// Writes a vector, or with the second of two both of them.
    pub(super) fn store(&mut self, stream: usize, dtype: DType, from: &[u8], part: usize) {
        let streams = self.options.stream && self.body.streams[stream].past;
        let width = self.body.width;
        let to = self.at(stream, part);
        match dtype {
            DType::F16 if !streams => self.asm.vector(op::TO_HALF, from[0], 0, to, Some(0)),
            DType::F16 => {
                let t = self.take(from);
                self.asm.vector(op::TO_HALF, from[0], 0, Rm::Reg(t), Some(0));
                match width {
                    Width::Eight => self.asm.low(op::STREAM_HALVES, t, 0, to, None),
                    Width::Sixteen => self.asm.half(op::STREAM_HALVES, t, 0, to),
                }
            }
            DType::I16 if width == Width::Sixteen && !streams => {
                self.asm.vector(op::LOWER_16, from[0], 0, to, None);
            }
            DType::BF16 | DType::I16 if width == Width::Sixteen => {
                let t = self.take(from);
                match dtype {
                    DType::BF16 => avx512::round(self.asm, t, from[0]),
                    _ => self.asm.vector(op::LOWER_16, from[0], 0, Rm::Reg(t), None),
                }
                self.asm.half(if streams { op::STREAM_HALVES } else { op::STORE }, t, 0, to);
            }
            DType::BF16 | DType::I16 => {
                let [even, odd] = from else { return };
                let t = self.take(from);
                let to = self.at(stream, part - 1);
                self.asm.vector(op::PACK, t, *even, Rm::Reg(*odd), None);
                self.asm.vector(op::PERMUTE_QUADS, t, 0, Rm::Reg(t), Some(0b11_01_10_00));
                self.asm.vector(if streams { op::STREAM } else { op::STORE }, t, 0, to, None);
            }
            DType::Bool if width == Width::Sixteen => {
                let t = self.take(from);
                self.asm.vector(op::SHIFT, 2, t, Rm::Reg(from[0]), Some(31));
                self.asm.vector(op::LOWER_8, t, 0, to, None);
            }
            DType::Bool => {
                let t = self.take(from);
                self.asm.vector(op::UPPER, from[0], 0, Rm::Reg(t), Some(1));
                self.asm.low(op::PACK_SIGNED, t, from[0], Rm::Reg(t), None);
                self.asm.low(op::PACK_BYTES, t, t, Rm::Reg(t), None);
                // Ones are -1: their magnitude is 1.
                self.asm.low(op::ABS_BYTES, t, 0, Rm::Reg(t), None);
                self.asm.low(op::STORE_8, t, 0, to, None);
            }
            _ => self.asm.vector(if streams { op::STREAM } else { op::STORE }, from[0], 0, to, None),
        }
    }
}
