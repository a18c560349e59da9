//! Chips: memory, cores and clocks of each. Plain data from published tables; costs of instructions are the
//! timing model's business.
//!
//! Sources: `sys_constants.h` and the platform stubs of asc-devkit (sizes, cores), the platform tables of
//! pypto (clocks, bytes per cycle), the pages on the architectures 2201 and 2002 in asc-devkit's
//! documentation.

use crate::words::words;
use std::fmt;

/// A generation of chips: which instructions exist and how large the memories of a core are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// `__NPU_ARCH__` 2201: Atlas A2 and A3 (910B, 910_93). Cube and vector cores are separate, one to two.
    A2,
    /// `__NPU_ARCH__` 2002: Atlas 300I/V Pro (310P). One core has both a cube and a vector unit.
    P310,
}

words! {
    /// A memory as a core sees it.
    Space {
        /// Global memory: HBM or DDR, cached in L2.
        Gm = "gm",
        /// Unified buffer: operands of the vector unit.
        Ub = "ub",
        /// L1 buffer: operands of the cube unit, before L0.
        L1 = "l1",
        /// Left operand of the cube unit, in fractals.
        L0a = "l0a",
        /// Right operand of the cube unit, in fractals.
        L0b = "l0b",
        /// Accumulators of the cube unit.
        L0c = "l0c",
        /// Bias table of the cube unit.
        Bt = "bt",
    }
}

/// One chip.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Chip {
    /// Name on our command line, in lower case: `910b1`, `310p`.
    pub name: &'static str,
    /// Name of the system on chip as the vendor's runtime gives it: `Ascend910B1`.
    pub soc: &'static str,
    /// Instructions and sizes of memories.
    pub arch: Arch,
    /// Cores with a cube unit.
    pub cube_cores: u32,
    /// Cores with a vector unit: twice the cube cores where they are separate, else the same cores.
    pub vector_cores: u32,
    /// Clock of the cores in MHz.
    pub mhz: u32,
    /// Device memory in bytes.
    pub memory: u64,
    /// Level-2 cache in bytes, shared by all cores.
    pub l2: u64,
}

/// Every chip that is known.
pub static CHIPS: [Chip; 6] = [
    a2("910b1", "Ascend910B1", 24, 1850, 64, 192),
    a2("910b2", "Ascend910B2", 24, 1800, 64, 192),
    a2("910b3", "Ascend910B3", 20, 1800, 64, 192),
    a2("910b4", "Ascend910B4", 20, 1500, 32, 96),
    a2("910_9391", "Ascend910_9391", 24, 1850, 64, 192),
    Chip {
        name: "310p",
        soc: "Ascend310P3",
        arch: Arch::P310,
        cube_cores: 8,
        vector_cores: 8,
        mhz: 1060,
        memory: 24 << 30,
        l2: 16 << 20,
    },
];

const fn a2(name: &'static str, soc: &'static str, cubes: u32, mhz: u32, gib: u64, l2_mib: u64) -> Chip {
    Chip {
        name,
        soc,
        arch: Arch::A2,
        cube_cores: cubes,
        vector_cores: 2 * cubes,
        mhz,
        memory: gib << 30,
        l2: l2_mib << 20,
    }
}

impl Chip {
    /// The chip of a name as on the command line (`310p` and `310p3` are the same) or as the runtime gives
    /// it.
    pub fn from_name(name: &str) -> Option<&'static Chip> {
        let name = name.to_ascii_lowercase();
        let short = name.strip_prefix("ascend").unwrap_or(&name);
        let short = if short == "310p3" { "310p" } else { short };
        CHIPS.iter().find(|chip| chip.name == short)
    }
}

impl fmt::Display for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Arch {
    /// Both generations.
    pub const ALL: [Arch; 2] = [Arch::A2, Arch::P310];

    /// The vendor's number, `__NPU_ARCH__`.
    pub const fn number(self) -> u32 {
        match self {
            Arch::A2 => 2201,
            Arch::P310 => 2002,
        }
    }

    /// The generation of a number.
    pub fn from_number(number: u32) -> Option<Arch> {
        Arch::ALL.into_iter().find(|arch| arch.number() == number)
    }

    /// Bytes of a core's memory that a kernel may use; 0 where there is none, `u64::MAX` for GM.
    ///
    /// 8 KiB of UB are left to the vendor's library, which keeps intermediate results of `Select` there; of
    /// A2's, 256 bytes more to the system.
    pub const fn capacity(self, space: Space) -> u64 {
        match (self, space) {
            (_, Space::Gm) => u64::MAX,
            (Arch::A2, Space::Ub) => (192 << 10) - (8 << 10) - 256,
            (Arch::P310, Space::Ub) => (256 << 10) - (8 << 10),
            (Arch::A2, Space::L1) => (512 << 10) - 256,
            (Arch::P310, Space::L1) => 1 << 20,
            (_, Space::L0a | Space::L0b) => 64 << 10,
            (Arch::A2, Space::L0c) => 128 << 10,
            (Arch::P310, Space::L0c) => 256 << 10,
            (Arch::A2, Space::Bt) => 1 << 10,
            (Arch::P310, Space::Bt) => 0,
        }
    }

    /// True if infinite results of f16 become the largest number of their sign, and NaN 0: saturation mode,
    /// the only one of 310P (`aclrtFloatOverflowMode` of CANN's reference). A2 and A3 keep to IEEE unless
    /// told otherwise.
    ///
    /// The reference does not say which types saturate. Those of a later chip are f16 in arithmetic and
    /// 16-bit types in conversions (bit 48 of its control register, `SetCtrlSpr`); f32 is taken to keep to
    /// IEEE.
    pub const fn saturates(self) -> bool {
        matches!(self, Arch::P310)
    }

    /// True if cube and vector units are in cores of their own.
    pub const fn split(self) -> bool {
        matches!(self, Arch::A2)
    }
}

impl Space {
    /// Alignment in bytes of a buffer in this memory.
    pub const fn align(self) -> u64 {
        match self {
            Space::Gm => 1,
            Space::Ub | Space::L1 => 32,
            Space::L0a | Space::L0b => 512,
            Space::L0c => 1024,
            Space::Bt => 64,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number())
    }
}
