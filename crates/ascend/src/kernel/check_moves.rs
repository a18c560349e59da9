//! Rules of copies between GM and UB, of tiles on their way into L0, and of products.

use super::check::{Check, Checked, Known, broken, int, range, within};
use super::instr::{DataCopy, DataCopyPad, LoadData3d, Mmad};
use super::operand::UnitFlag;
use super::{Elem, Space, Unit};
use crate::chip::Arch;

impl Check<'_> {
    pub(super) fn data_copy<S: Known>(&self, x: &DataCopy<S>) -> Checked {
        use Space::{Bt, Gm, L1, Ub};
        let (from, to) = (self.space(x.src.base), self.space(x.dst.base));
        let exists = match (from, to) {
            (Gm, Ub) | (Ub, Gm) | (Gm, L1) | (Ub, Ub) => true,
            (L1, Bt) => self.arch == Arch::A2,
            (Ub, L1) | (L1, Ub) => self.arch == Arch::P310,
            _ => false,
        };
        if !exists {
            return broken!(Memory, "there is no copy from {from} to {to} on architecture {}", self.arch);
        }
        self.same(&x.dst, &x.src)?;
        for view in [&x.dst, &x.src] {
            match self.space(view.base) {
                Gm => {}
                Bt => self.aligned(view, 64)?,
                _ => self.aligned(view, 32)?,
            }
        }
        self.atomic(x.atomic, x.dst.elem, to)?;
        range("blocks", &x.blocks, 1, 4095)?;
        range("len", &x.len, 1, 65535)?;
        range("src_gap", &x.src_gap, 0, 65535)?;
        range("dst_gap", &x.dst_gap, 0, 65535)
    }

    pub(super) fn data_copy_pad<S: Known>(&self, x: &DataCopyPad<S>) -> Checked {
        self.only(Arch::A2, "a copy of any number of bytes")?;
        let (from, to) = (self.space(x.src.base), self.space(x.dst.base));
        if !matches!((from, to), (Space::Gm, Space::Ub) | (Space::Ub, Space::Gm)) {
            return broken!(Memory, "padded copies go between gm and ub, not from {from} to {to}");
        }
        self.same(&x.dst, &x.src)?;
        let local = if from == Space::Gm { &x.dst } else { &x.src };
        self.aligned(local, 32)?;
        self.atomic(x.atomic, x.dst.elem, to)?;
        range("blocks", &x.blocks, 1, 4095)?;
        range("bytes", &x.bytes, 1, 2_097_151)?;
        let size = x.dst.elem.size();
        match int(&x.bytes) {
            Some(bytes) if bytes % size as i64 != 0 => {
                return broken!(Range, "a row of {bytes} bytes is no whole number of {}", x.dst.elem);
            }
            _ => {}
        }
        let (gm_gap, ub_gap) =
            if from == Space::Gm { (&x.src_gap, &x.dst_gap) } else { (&x.dst_gap, &x.src_gap) };
        range("the gap in gm", gm_gap, 0, i64::from(u32::MAX))?;
        range("the gap in ub", ub_gap, 0, 65535)?;
        if to == Space::Gm && (x.left, x.right, x.fill) != (0, 0, None) {
            return broken!(Unsupported, "rows are filled up on their way into ub alone");
        }
        within("left", x.left, 0, (32 / size) as u32)?;
        within("right", x.right, 0, (32 / size) as u32)
    }

    /// Rules of asc-devkit's page on `LoadData` of images, and of its header's check
    /// (`kernel_operator_mm_check.h`), which requires whole fractals where the page allows a last one to
    /// reach beyond the matrix. What does nothing according to the page, such as an image without rows, is
    /// refused.
    pub(super) fn load_data_3d<S: Known>(&self, x: &LoadData3d<S>) -> Checked {
        use Elem::{BF16, F16, F32, I8, I32, U8, U32};
        self.unit(Unit::Cube, "a load into L0")?;
        self.same(&x.dst, &x.src)?;
        self.is_in(&x.src, &[Space::L1])?;
        self.is_in(&x.dst, &[Space::L0a, Space::L0b])?;
        let right = self.space(x.dst.base) == Space::L0b;
        self.elem(
            &x.src,
            match (self.arch, right) {
                (Arch::P310, _) => &[I8, U8, F16],
                (Arch::A2, false) => &[I8, U8, F16, BF16, I32, U32, F32],
                (Arch::A2, true) => &[F16, BF16, I32, U32, F32],
            },
        )?;
        let size = x.src.elem.size() as i64;
        if x.pro && right && size == 1 {
            return broken!(Unsupported, "the pro form moves no {} to L0B", x.src.elem);
        }
        if x.transpose && right {
            return broken!(Unsupported, "a tile for L0B is transposed in any case");
        }
        if x.transpose && (size == 1 || size == 4 && self.arch == Arch::P310) {
            return broken!(Unsupported, "a tile of {} is not transposed", x.src.elem);
        }
        self.aligned(&x.src, 32)?;
        self.aligned(&x.dst, 512)?;
        for (name, pair, high) in [
            ("size", x.size, 32767),
            ("stride", x.stride, 63),
            ("filter", x.filter, 255),
            ("dilation", x.dilation, 255),
        ] {
            pair.iter().try_for_each(|&n| within(name, n, 1, high))?;
        }
        x.pad.iter().try_for_each(|&p| within("pad", p, 0, 255))?;
        let (columns, rows) = (32 / size, if size == 4 { 1 } else { 16 });
        for (name, s, low, high, unit) in [
            ("k", &x.k, 1, 65535, columns),
            ("m", &x.m, 1, 65535, rows),
            ("k_start", &x.k_start, 0, 65535, columns),
            ("m_start", &x.m_start, 0, 32767, rows),
        ] {
            range(name, s, low, high)?;
            match int(s) {
                Some(n) if n % unit != 0 => {
                    return broken!(Alignment, "{name} is {n}, no multiple of {unit}");
                }
                _ => {}
            }
        }
        range("channels", &x.channels, 1, 65535)?;
        let Some(channels) = int(&x.channels) else { return Ok(()) };
        // Remainders are 4, 8, ... below a fractal's columns; 0 is none of them in 310P's first form, but for
        // one fractal.
        let whole = channels % columns == 0;
        let some = (0..).map(|i| 4 << i).take_while(|&n| n < columns).any(|n| channels % columns == n);
        match whole && (x.pro || self.arch == Arch::A2 || channels == columns) || some {
            true => Ok(()),
            false => broken!(
                Range,
                "{channels} channels of {} are not for {} on architecture {}",
                x.src.elem,
                if x.pro { "the pro form" } else { "this form" },
                self.arch
            ),
        }
    }

    pub(super) fn mmad<S: Known>(&self, x: &Mmad<S>) -> Checked {
        use Elem::{BF16, F16, F32, I8, I32};
        self.unit(Unit::Cube, "a product of matrices")?;
        self.is_in(&x.a, &[Space::L0a])?;
        self.is_in(&x.b, &[Space::L0b])?;
        self.is_in(&x.c, &[Space::L0c])?;
        self.same(&x.a, &x.b)?;
        let exists = matches!(
            (self.arch, x.a.elem, x.c.elem),
            (_, F16, F32) | (_, I8, I32) | (Arch::P310, F16, F16) | (Arch::A2, BF16 | F32, F32)
        );
        if !exists {
            return broken!(
                Unsupported,
                "there is no product of {} into {} on architecture {}",
                x.a.elem,
                x.c.elem,
                self.arch
            );
        }
        if let Some(bias) = &x.bias {
            self.only(Arch::A2, "the bias of a product")?;
            self.is_in(bias, &[Space::Bt])?;
            self.same(&x.c, bias)?;
            self.aligned(bias, 64)?;
        }
        if x.unit_flag != UnitFlag::Off {
            self.only(Arch::A2, "the unit flag")?;
        }
        if x.hf32 && (x.a.elem != F32 || self.arch != Arch::A2) {
            return broken!(Unsupported, "hf32 is a way to multiply f32 on A2");
        }
        self.aligned(&x.a, 512)?;
        self.aligned(&x.b, 512)?;
        self.aligned(&x.c, if x.c.elem.size() == 4 { 1024 } else { 512 })?;
        range("m", &x.m, 0, 4095)?;
        range("n", &x.n, 0, 4095)?;
        range("k", &x.k, 0, 4095)?;
        range("init", &x.init, 0, 1)
    }
}
