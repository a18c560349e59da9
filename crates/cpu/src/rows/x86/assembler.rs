//! An assembler for the few x86-64 instructions that row programs need, and the loop around them. They are
//! AVX2 and F16C in the VEX form, on vectors of 32 bytes, or AVX-512 in the EVEX form, on 64. After Intel's
//! Software Developer's Manual, volume 2.

use memmap2::{Mmap, MmapMut};

/// A general register by its number in encodings.
pub(super) type Gpr = u8;
pub(super) const RAX: Gpr = 0;
pub(super) const RCX: Gpr = 1;
pub(super) const RDX: Gpr = 2;
pub(super) const RBX: Gpr = 3;
pub(super) const RSP: Gpr = 4;
pub(super) const RBP: Gpr = 5;
pub(super) const RDI: Gpr = 7;

/// The other operand of an instruction: a vector register, or memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rm {
    Reg(u8),
    /// `base + rcx · scale + displacement`; a scale of 0 leaves the index out.
    At {
        base: Gpr,
        scale: u8,
        disp: i32,
    },
    /// So many bytes into the constants, which follow the code.
    Pool(usize),
}

/// An instruction: prefix (0 none, 1 66, 2 F3, 3 F2), map (1 0F, 2 0F38, 3 0F3A), opcode. The same in both
/// forms, for those that both have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Op(pub u8, pub u8, pub u8);

impl Op {
    /// True if it needs the bit `W`: one instruction alone, which moves quarters of a vector.
    fn wants_w(self) -> bool {
        self == op::PERMUTE_QUADS
    }
}

/// The vectors that code works on, and so its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Width {
    /// Eight columns: AVX2.
    #[default]
    Eight,
    /// Sixteen: AVX-512.
    Sixteen,
}

impl Width {
    /// Columns of a vector.
    pub const fn lanes(self) -> usize {
        match self {
            Width::Eight => 8,
            Width::Sixteen => 16,
        }
    }

    /// Bytes of a vector.
    pub const fn bytes(self) -> usize {
        4 * self.lanes()
    }

    /// Vector registers that values may have. Of AVX-512's the last ones are for what one value takes several
    /// instructions.
    pub const fn registers(self) -> usize {
        match self {
            Width::Eight => 16,
            Width::Sixteen => SPARE as usize,
        }
    }
}

/// The first of two registers that hold nothing from one value to the next.
pub(super) const SPARE: u8 = 30;

/// The part of registers that an instruction is for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Length {
    /// 16 bytes.
    Low,
    /// 32 bytes.
    Half,
    /// 64 bytes.
    Full,
}

pub(super) mod op {
    use super::Op;
    pub const LOAD: Op = Op(0, 1, 0x10);
    pub const STORE: Op = Op(0, 1, 0x11);
    pub const STREAM: Op = Op(0, 1, 0x2B);
    pub const STREAM_HALVES: Op = Op(1, 1, 0xE7);
    pub const PERMUTE_QUADS: Op = Op(1, 3, 0x00);
    pub const ADD: Op = Op(0, 1, 0x58);
    pub const MUL: Op = Op(0, 1, 0x59);
    pub const SUB: Op = Op(0, 1, 0x5C);
    pub const DIV: Op = Op(0, 1, 0x5E);
    pub const MIN: Op = Op(0, 1, 0x5D);
    pub const MAX: Op = Op(0, 1, 0x5F);
    /// `reg = reg · rm + v`, `reg = v · reg + rm` and `reg = v · rm + reg`.
    pub const FMA_132: Op = Op(1, 2, 0x98);
    pub const FMA_213: Op = Op(1, 2, 0xA8);
    pub const FMA_231: Op = Op(1, 2, 0xB8);
    pub const SQRT: Op = Op(0, 1, 0x51);
    pub const AND: Op = Op(0, 1, 0x54);
    pub const OR: Op = Op(0, 1, 0x56);
    pub const XOR: Op = Op(0, 1, 0x57);
    pub const CMP: Op = Op(0, 1, 0xC2);
    pub const BLEND: Op = Op(1, 3, 0x4A);
    pub const ROUND: Op = Op(1, 3, 0x08);
    pub const TO_HALF: Op = Op(1, 3, 0x1D);
    pub const FROM_HALF: Op = Op(1, 2, 0x13);
    pub const WIDEN_16: Op = Op(1, 2, 0x33);
    pub const WIDEN_SIGNED_16: Op = Op(1, 2, 0x23);
    pub const WIDEN_8: Op = Op(1, 2, 0x31);
    pub const SHIFT: Op = Op(1, 1, 0x72);
    pub const ADD_INT: Op = Op(1, 1, 0xFE);
    pub const SUB_INT: Op = Op(1, 1, 0xFA);
    pub const EQ_INT: Op = Op(1, 1, 0x76);
    pub const MAX_INT: Op = Op(1, 2, 0x3D);
    pub const PACK: Op = Op(1, 2, 0x2B);
    pub const UPPER: Op = Op(1, 3, 0x39);
    /// `reg = rm`'s lanes that `v` names.
    pub const PICK: Op = Op(1, 2, 0x36);
    pub const FROM_INT: Op = Op(0, 1, 0x5B);
    pub const FROM_GPR: Op = Op(1, 1, 0x6E);
    pub const PACK_SIGNED: Op = Op(1, 1, 0x6B);
    pub const PACK_BYTES: Op = Op(1, 1, 0x63);
    pub const ABS_BYTES: Op = Op(1, 2, 0x1C);
    pub const STORE_8: Op = Op(1, 1, 0xD6);
    pub const BROADCAST_INT: Op = Op(1, 2, 0x58);
    pub const BROADCAST: Op = Op(1, 2, 0x18);
    pub const PERMUTE: Op = Op(1, 3, 0x04);
    pub const STORE_ONE: Op = Op(2, 1, 0x11);
    /// Flags, of mask registers: zero if none has a bit.
    pub const TEST_MASKS: Op = Op(0, 1, 0x98);
    /// From here on in EVEX form alone. Lanes of ones where the mask register `rm` has a bit, and the mask
    /// register `reg` of the sign bits of `rm`. Then `reg = v` or, by the mask, `rm`.
    pub const FROM_MASK: Op = Op(2, 2, 0x38);
    pub const TO_MASK: Op = Op(2, 2, 0x39);
    pub const BLEND_MASK: Op = Op(1, 2, 0x65);
    /// `rm`, a half or a quarter of a vector, from the lower halves or bytes of the lanes of `reg`.
    pub const LOWER_16: Op = Op(2, 2, 0x33);
    pub const LOWER_8: Op = Op(2, 2, 0x31);
    /// `reg`'s quarters of `v` and of `rm`.
    pub const QUARTERS: Op = Op(1, 3, 0x23);
    /// The mask register `reg`: which lanes of `rm` are numbers of some kinds.
    pub const KIND: Op = Op(1, 3, 0x66);
    /// `reg`, half a vector, is `rm` rounded to bf16; subnormal numbers become 0.
    pub const TO_BF16: Op = Op(2, 2, 0x72);
}

/// Code being written, and the constants it reads.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// Width of the vectors.
    pub width: Width,
    code: Vec<u8>,
    pool: Vec<u8>,
    /// Displacements to be filled in: position, bytes that follow it in its instruction, offset into the
    /// constants.
    holes: Vec<(usize, usize, usize)>,
}

impl Assembler {
    /// Nothing yet, of vectors of this width.
    pub fn new(width: Width) -> Assembler {
        Assembler { width, ..Assembler::default() }
    }

    /// The place of the next instruction.
    pub fn here(&self) -> usize {
        self.code.len()
    }

    /// The end of the code, to come back to.
    pub fn mark(&self) -> (usize, usize) {
        (self.code.len(), self.holes.len())
    }

    /// Takes back what was written since; constants stay.
    pub fn back(&mut self, &(code, holes): &(usize, usize)) {
        self.code.truncate(code);
        self.holes.truncate(holes);
    }

    /// A constant's place; equal ones share it.
    pub fn constant(&mut self, bytes: &[u8]) -> usize {
        let size = bytes.len();
        let found = self.pool.chunks_exact(size).position(|c| c == bytes);
        found.map(|i| i * size).unwrap_or_else(|| {
            let at = self.pool.len().next_multiple_of(size);
            self.pool.resize(at, 0);
            self.pool.extend_from_slice(bytes);
            at
        })
    }

    /// ModRM, SIB and displacement; `after`: bytes of the instruction that follow them. In EVEX form
    /// displacements of a byte would count vectors.
    fn operand(&mut self, reg: u8, rm: Rm, after: usize) {
        self.operand_in(reg, rm, after, false)
    }

    fn operand_in(&mut self, reg: u8, rm: Rm, after: usize, evex: bool) {
        let reg = (reg & 7) << 3;
        match rm {
            Rm::Reg(r) => self.code.push(0xC0 | reg | (r & 7)),
            Rm::At { base, scale, disp } => {
                // No displacement, one of a byte, or one of four; without one, `rbp` and `r13` would mean
                // another form.
                let short = i8::try_from(disp).ok().filter(|&d| d == 0 || !evex);
                let form = match short {
                    Some(0) if base & 7 != RBP => 0x00,
                    Some(_) => 0x40,
                    None => 0x80,
                };
                if scale == 0 && base & 7 != RSP {
                    self.code.push(form | reg | (base & 7));
                } else {
                    let index = if scale == 0 { RSP } else { RCX };
                    let log = scale.max(1).trailing_zeros() as u8;
                    self.code.extend([form | 0x04 | reg, (log << 6) | (index << 3) | (base & 7)]);
                }
                match (form, short) {
                    (0x40, Some(d)) => self.code.push(d as u8),
                    (0x80, _) => self.code.extend(disp.to_le_bytes()),
                    _ => {}
                }
            }
            Rm::Pool(at) => {
                self.code.push(0x05 | reg);
                self.holes.push((self.code.len(), after, at));
                self.code.extend([0; 4]);
            }
        }
    }

    /// `reg = v op rm` (or a store of `reg`) on whole vectors. Unused `v` is 0.
    pub fn vector(&mut self, op: Op, reg: u8, v: u8, rm: Rm, imm: Option<u8>) {
        match self.width {
            Width::Eight => self.vex(true, op, reg, v, rm, imm),
            Width::Sixteen => self.evex(Length::Full, op, reg, v, rm, None, imm),
        }
    }

    /// The same on the first 16 bytes.
    pub fn low(&mut self, op: Op, reg: u8, v: u8, rm: Rm, imm: Option<u8>) {
        match self.width {
            Width::Eight => self.vex(false, op, reg, v, rm, imm),
            Width::Sixteen => self.evex(Length::Low, op, reg, v, rm, None, imm),
        }
    }

    /// The same on half a vector of AVX-512.
    pub fn half(&mut self, op: Op, reg: u8, v: u8, rm: Rm) {
        self.evex(Length::Half, op, reg, v, rm, None, None)
    }

    /// The same on the lanes of a whole one that a mask register has bits for; in the others `reg` stays as
    /// it is.
    pub fn masked(&mut self, op: Op, reg: u8, v: u8, rm: Rm, mask: u8) {
        self.evex(Length::Full, op, reg, v, rm, Some(mask), None)
    }

    fn vex(&mut self, wide: bool, op: Op, reg: u8, v: u8, rm: Rm, imm: Option<u8>) {
        let Op(prefix, map, opcode) = op;
        let b = match rm {
            Rm::Reg(r) => r >> 3,
            Rm::At { base, .. } => base >> 3,
            Rm::Pool(_) => 0,
        };
        // No bit of the index, `rcx`, is extended.
        let (extends, rest) = ((reg >> 3 ^ 1) << 7, ((v ^ 15) << 3) | ((wide as u8) << 2) | prefix);
        if map == 1 && b == 0 {
            self.code.extend([0xC5, extends | rest, opcode]);
        } else {
            let w = (op.wants_w() as u8) << 7;
            self.code.extend([0xC4, extends | (1 << 6) | ((b ^ 1) << 5) | map, w | rest, opcode]);
        }
        self.operand(reg, rm, imm.is_some() as usize);
        self.code.extend(imm);
    }

    #[allow(clippy::too_many_arguments)]
    fn evex(&mut self, length: Length, op: Op, reg: u8, v: u8, rm: Rm, mask: Option<u8>, imm: Option<u8>) {
        let Op(prefix, map, opcode) = op;
        let (x, b) = match rm {
            Rm::Reg(r) => (r >> 4, r >> 3 & 1),
            Rm::At { base, .. } => (0, base >> 3),
            Rm::Pool(_) => (0, 0),
        };
        // Upper bits of registers are inverted.
        let upper = (reg >> 3 & 1) << 7 | x << 6 | b << 5 | (reg >> 4) << 4;
        let w = (op.wants_w() as u8) << 7;
        let rest = [
            w | (!v & 15) << 3 | 4 | prefix,
            (length as u8) << 5 | (v >> 4 ^ 1) << 3 | mask.unwrap_or(0),
            opcode,
        ];
        self.code.extend([0x62, (upper ^ 0xF0) | map]);
        self.code.extend(rest);
        self.operand_in(reg, rm, imm.is_some() as usize, true);
        self.code.extend(imm);
    }

    /// Flags: zero if a mask register is.
    pub fn test_mask(&mut self, mask: u8) {
        self.vex(false, op::TEST_MASKS, mask, 0, Rm::Reg(mask), None);
    }

    fn rex(&mut self, reg: Gpr, base: Gpr) {
        self.code.push(0x48 | (reg >> 3 << 2) | (base >> 3));
    }

    /// `to = [base + disp]`.
    pub fn load_pointer(&mut self, to: Gpr, base: Gpr, disp: i32) {
        self.rex(to, base);
        self.code.push(0x8B);
        self.operand(to, Rm::At { base, scale: 0, disp }, 0);
    }

    /// Prefetches a line into the second-level cache.
    pub fn prefetch(&mut self, base: Gpr, scale: u8, disp: i32) {
        self.rex(0, base);
        self.code.extend([0x0F, 0x18]);
        self.operand(2, Rm::At { base, scale, disp }, 0);
    }

    pub fn push(&mut self, r: Gpr) {
        self.code.extend([0x40 | (r >> 3), 0x50 | (r & 7)]);
    }

    pub fn pop(&mut self, r: Gpr) {
        self.code.extend([0x40 | (r >> 3), 0x58 | (r & 7)]);
    }

    /// `rsp += n`; gives the place of `n`, for [`Assembler::set`].
    pub fn move_stack(&mut self, n: i32) -> usize {
        self.code.extend([0x48, 0x81, 0xC4]);
        self.code.extend(n.to_le_bytes());
        self.code.len() - 4
    }

    /// Changes a number written before.
    pub fn set(&mut self, at: usize, n: i32) {
        self.code[at..at + 4].copy_from_slice(&n.to_le_bytes());
    }

    /// `rcx = 0`.
    pub fn clear_index(&mut self) {
        self.code.extend([0x31, 0xC9]);
    }

    /// Adds to the index `rcx`, and goes to a place while it is below `rsi`.
    pub fn advance(&mut self, n: u8, to: usize) {
        self.code.extend([0x48, 0x83, 0xC1, n, 0x48, 0x39, 0xF1, 0x0F, 0x82]);
        let from = self.code.len() + 4;
        self.code.extend((to as i32 - from as i32).to_le_bytes());
    }

    /// `[rdi + disp] += n`, eight bytes.
    pub fn add_to(&mut self, disp: i32, n: i32) {
        self.code.extend([0x48, 0x81]);
        self.operand(0, Rm::At { base: RDI, scale: 0, disp }, 4);
        self.code.extend(n.to_le_bytes());
    }

    /// Counts `[rdi + disp]`, eight bytes, down by one, and goes away when it is 0; gives the place for
    /// [`Assembler::arrive`].
    pub fn count_down(&mut self, disp: i32) -> usize {
        self.code.extend([0x48, 0x83]);
        self.operand(5, Rm::At { base: RDI, scale: 0, disp }, 1);
        self.code.extend([1, 0x0F, 0x84, 0, 0, 0, 0]);
        self.code.len() - 4
    }

    /// A forward jump, unconditional or if the zero flag is set; returns the position for
    /// [`Assembler::arrive`].
    pub fn skip(&mut self, if_zero: bool) -> usize {
        match if_zero {
            true => self.code.extend([0x0F, 0x84]),
            false => self.code.push(0xE9),
        }
        self.code.extend([0; 4]);
        self.code.len() - 4
    }

    /// The target of a jump written before.
    pub fn arrive(&mut self, at: usize) {
        self.set(at, (self.code.len() - (at + 4)) as i32);
    }

    /// Goes to a place before.
    pub fn jump(&mut self, to: usize) {
        self.code.push(0xE9);
        let from = self.code.len() + 4;
        self.code.extend((to as i32 - from as i32).to_le_bytes());
    }

    /// Leaves the vector registers as other code expects them, and returns.
    pub fn finish_function(&mut self) {
        self.code.extend([0xC5, 0xF8, 0x77, 0xC3]);
    }

    /// The code in memory that can be run; `None` if the system does not allow it.
    pub fn finish(mut self) -> Option<Mmap> {
        let pool = self.code.len().next_multiple_of(64);
        for (at, after, offset) in self.holes {
            let from = at + 4 + after;
            self.code[at..at + 4].copy_from_slice(&((pool + offset) as i32 - from as i32).to_le_bytes());
        }
        self.code.resize(pool, 0);
        self.code.extend(self.pool);
        let mut map = MmapMut::map_anon(self.code.len()).ok()?;
        map.copy_from_slice(&self.code);
        map.make_exec().ok()
    }
}
