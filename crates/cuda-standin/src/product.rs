//! Matrix products as cuBLASLt's interface states them, in f64 and rounded once. The workspace is NaN before
//! and after.

use crate::memory::Memory;
use headwater_core::DType;

/// A matrix, column by column.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Layout {
    pub kind: i32,
    pub rows: u64,
    pub columns: u64,
    pub pitch: i64,
    pub batch: i32,
    pub step: i64,
}

/// The device memory that a product reads and writes.
pub trait Reach {
    /// The memory that holds a range.
    fn memory(&mut self, address: u64, bytes: usize) -> Option<&mut Memory>;

    /// True if what is read must have been written.
    fn checked(&self) -> bool;
}

/// `d = op(a) · op(b) + bias`.
#[derive(Clone, Debug)]
pub struct Product {
    pub a: Layout,
    pub b: Layout,
    pub d: Layout,
    pub turned: [bool; 2],
    pub at: [u64; 3],
    pub bias: Option<u64>,
    pub scales: [f64; 2],
    pub workspace: (u64, usize),
}

/// The type of a number of cuBLASLt's.
pub fn dtype(kind: i32) -> Option<DType> {
    Some(match kind {
        0 => DType::F32,
        1 => DType::F64,
        2 => DType::F16,
        14 => DType::BF16,
        _ => return None,
    })
}

fn get(dtype: DType, address: u64) -> f64 {
    // SAFETY: the caller has checked that the element is inside a memory.
    unsafe {
        match dtype {
            DType::F64 => (address as *const f64).read_unaligned(),
            DType::F16 => half_to_f64((address as *const u16).read_unaligned()),
            DType::BF16 => {
                f64::from(f32::from_bits(u32::from((address as *const u16).read_unaligned()) << 16))
            }
            _ => f64::from((address as *const f32).read_unaligned()),
        }
    }
}

fn half_to_f64(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    match exponent {
        0 => sign * mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        e => sign * (1.0 + mantissa / 1024.0) * 2f64.powi(e - 15),
    }
}

fn put(dtype: DType, address: u64, x: f64) {
    use headwater_core::{Shape, Tensor};
    let bytes = Tensor::float(dtype, Shape::new(&[1]), vec![dtype.round(x)]).to_bytes();
    // SAFETY: the caller has checked that the element is inside a memory.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}

impl Layout {
    fn bytes(&self, size: usize) -> usize {
        let matrix = (self.columns.max(1) - 1) * self.pitch as u64 + self.rows;
        ((self.batch.max(1) as u64 - 1) * self.step as u64 + matrix) as usize * size
    }
}

impl Product {
    /// Computes it.
    ///
    /// # Errors
    /// A finding.
    pub fn run(&self, world: &mut impl Reach) -> Result<(), String> {
        let kinds = [self.a.kind, self.d.kind].map(dtype);
        let [Some(kind), Some(result)] = kinds else { return Err("a product of an unknown type".into()) };
        let size = kind.size();
        let checked = world.checked();
        let (rows, columns) = (self.d.rows, self.d.columns);
        let terms = if self.turned[0] { self.a.rows } else { self.a.columns };
        for (name, layout, at, written) in [
            ("a", self.a, self.at[0], true),
            ("b", self.b, self.at[1], true),
            ("d", self.d, self.at[2], false),
        ] {
            let bytes = layout.bytes(if written { size } else { result.size() });
            let memory =
                world.memory(at, bytes).ok_or(format!("cublasLtMatmul: {name} leaves its memory"))?;
            // Bytes between columns may be anybody's; only whole matrices are checked for being written.
            let whole = layout.pitch as u64 == layout.rows;
            if checked && written && whole && memory.unwritten(at, bytes).is_some() {
                return Err(format!("cublasLtMatmul: {name} has bytes that nobody wrote"));
            }
        }
        if let Some(bias) = self.bias {
            let bytes = rows as usize * size;
            let memory = world.memory(bias, bytes).ok_or("cublasLtMatmul: the bias leaves its memory")?;
            if checked && memory.unwritten(bias, bytes).is_some() {
                return Err("cublasLtMatmul: the bias has bytes that nobody wrote".into());
            }
        }
        if self.scales[1] != 0.0 {
            return Err("cublasLtMatmul: the stand-in computes without c".into());
        }
        self.poison(world)?;
        let at = |layout: &Layout, start: u64, batch: u64, row: u64, column: u64| {
            let size = dtype(layout.kind).map_or(0, |d| d.size()) as u64;
            start + (batch * layout.step as u64 + column * layout.pitch as u64 + row) * size
        };
        for batch in 0..self.d.batch.max(1) as u64 {
            let side = |layout: &Layout, start: u64, turned: bool, i: u64, j: u64| {
                let (i, j) = if turned { (j, i) } else { (i, j) };
                get(kind, at(layout, start, batch, i, j))
            };
            let a: Vec<f64> = (0..rows)
                .flat_map(|i| (0..terms).map(move |p| (i, p)))
                .map(|(i, p)| side(&self.a, self.at[0], self.turned[0], i, p))
                .collect();
            for j in 0..columns {
                let b: Vec<f64> =
                    (0..terms).map(|p| side(&self.b, self.at[1], self.turned[1], p, j)).collect();
                for i in 0..rows {
                    let own = &a[(i * terms) as usize..((i + 1) * terms) as usize];
                    let sum: f64 = own.iter().zip(&b).map(|(x, y)| x * y).sum();
                    let bias = self.bias.map_or(0.0, |bias| get(kind, bias + i * size as u64));
                    put(result, at(&self.d, self.at[2], batch, i, j), self.scales[0] * sum + bias);
                }
            }
        }
        for batch in 0..self.d.batch.max(1) as u64 {
            for j in 0..columns {
                let start = at(&self.d, self.at[2], batch, 0, j);
                let bytes = rows as usize * result.size();
                if let Some(memory) = world.memory(start, bytes) {
                    memory.mark(start, bytes, true);
                }
            }
        }
        self.poison(world)
    }

    fn poison(&self, world: &mut impl Reach) -> Result<(), String> {
        let (start, bytes) = self.workspace;
        if bytes == 0 {
            return Ok(());
        }
        let checked = world.checked();
        let memory = world.memory(start, bytes).ok_or("cublasLtMatmul: the workspace leaves its memory")?;
        if checked {
            // A part of it is enough to find who reads it.
            let bytes = bytes.min(1 << 16);
            // SAFETY: inside.
            unsafe { (start as *mut u8).write_bytes(0xff, bytes) };
            memory.mark(start, bytes, false);
        }
        Ok(())
    }
}
