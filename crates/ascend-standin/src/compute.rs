//! The vendor's operators as the stand-in computes them: in f64, rounded once. So their bits are not those of
//! kernels.

use crate::operator::{Function, Tensor, Work};
use crate::outcome::{Outcome, fail};
use crate::world::WORLD;
use headwater_core::reference::apply;
use headwater_core::{DType, Registry, TensorType};

/// Numbers of a tensor, in row-major order.
type Numbers = headwater_core::Tensor;

impl Tensor {
    /// Its bytes from the first element to the last, if they are memory of the device.
    fn bytes(&self) -> Result<&'static mut [u8], String> {
        let (address, bytes) = (self.address, self.span() * self.ty.dtype.size());
        if !WORLD.state().is_device(address, bytes) {
            return Err(format!("{bytes} bytes at {address:#x} are not device memory"));
        }
        // SAFETY: the range is in one allocation of the stand-in's; the stream's thread alone works on it
        // now, as the order of work says, and no other slice of it lives.
        Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) })
    }

    fn read(&self) -> Result<Numbers, String> {
        let (bytes, size) = (self.bytes()?, self.ty.dtype.size());
        let elements = self.layout.offsets().into_iter().map(|at| at as usize * size);
        let data: Vec<u8> = elements.flat_map(|at| bytes[at..at + size].to_vec()).collect();
        Ok(Numbers::from_bytes(&self.ty, &data))
    }

    fn write(&self, values: Vec<f64>) -> Result<(), String> {
        let rounded = Numbers::float(self.ty.dtype, self.ty.shape.clone(), values).to_bytes();
        let (bytes, size) = (self.bytes()?, self.ty.dtype.size());
        for (at, element) in self.layout.offsets().into_iter().zip(rounded.chunks_exact(size)) {
            bytes[at as usize * size..][..size].copy_from_slice(element);
        }
        Ok(())
    }
}

impl Work {
    /// Computes, and writes the results.
    fn compute(&self) -> Result<(), String> {
        match &self.function {
            Function::Attention { scale, sparse_mode, .. } => self.attention(*scale, *sparse_mode),
            Function::AttentionGrad { scale, sparse_mode, .. } => self.attention_grad(*scale, *sparse_mode),
            _ => {
                let (name, attrs, inputs) = self.types()?;
                let op = Registry::standard().by_name(name).ok_or("no such operator")?;
                let read =
                    |&i: &usize| self.reads.get(i).and_then(Option::as_ref).map(Tensor::read).transpose();
                let inputs = inputs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                let inputs: Vec<Option<&Numbers>> = inputs.iter().map(Option::as_ref).collect();
                let wide = TensorType::new(DType::F64, self.writes[0].shape().to_vec());
                let result = apply(op, &attrs, &inputs, &[wide]).map_err(|e| e.to_string())?;
                let mut values = result[0].floats().to_vec();
                if self.function == Function::Addmm {
                    let summand = self.operand(2)?.read()?;
                    let columns = summand.floats().len();
                    values.iter_mut().enumerate().for_each(|(i, x)| *x += summand.floats()[i % columns]);
                }
                self.writes[0].write(values)
            }
        }
    }

    /// For each query of each head: its row, the first row of its keys, and its scores; minus infinity where
    /// it sees no key.
    fn scores(&self, scale: f64, sparse_mode: i64) -> Result<Vec<(usize, usize, Vec<f64>)>, String> {
        let ([b, h, l, e], hk, s) = self.heads()?;
        let (q, k) = (self.operand(0)?.read()?, self.operand(1)?.read()?);
        let mask =
            self.reads[3].as_ref().map(|t| Ok::<_, String>((t.read()?, t.shape().to_vec()))).transpose()?;
        let hidden = |i: usize, j: usize| match (&mask, sparse_mode) {
            (None, 0) => Ok(false),
            (Some((mask, shape)), 0) if shape[..] == [l, s] => Ok(mask.ints()[i * s + j] != 0),
            (Some((mask, shape)), 2) if shape[..] == [2048, 2048] && mask.ints()[1] != 0 => Ok(j > i),
            _ => Err(format!("sparseMode {sparse_mode} with another mask")),
        };
        let mut all = Vec::new();
        for row in 0..b * h * l {
            let (head, i) = (row / l, row % l);
            let first = (head / h * hk + head % h / (h / hk)) * s;
            let score = |j: usize| {
                let terms = (0..e).map(|x| q.floats()[row * e + x] * k.floats()[(first + j) * e + x]);
                Ok(if hidden(i, j)? { f64::NEG_INFINITY } else { scale * terms.sum::<f64>() })
            };
            all.push((row, first, (0..s).map(score).collect::<Result<_, String>>()?));
        }
        Ok(all)
    }

    fn attention(&self, scale: f64, sparse_mode: i64) -> Result<(), String> {
        let ([b, h, l, e], ..) = self.heads()?;
        let v = self.operand(2)?.read()?;
        let (mut largest, mut sums, mut out) = (Vec::new(), Vec::new(), vec![0.0; b * h * l * e]);
        for (row, first, scores) in self.scores(scale, sparse_mode)? {
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
            largest.extend([max; 8]);
            sums.extend([sum; 8]);
            for (j, score) in scores.iter().enumerate() {
                let weight = (score - max).exp() / sum;
                (0..e).for_each(|x| out[row * e + x] += weight * v.floats()[(first + j) * e + x]);
            }
        }
        self.writes[0].write(largest)?;
        self.writes[1].write(sums)?;
        self.writes[2].write(out)
    }

    fn attention_grad(&self, scale: f64, sparse_mode: i64) -> Result<(), String> {
        let ([b, h, l, e], hk, s) = self.heads()?;
        let read = |i: usize| self.operand(i)?.read();
        let (q, k, v) = (read(0)?, read(1)?, read(2)?);
        let (g, largest, sums, y) = (read(4)?, read(5)?, read(6)?, read(7)?);
        let (mut dq, mut dk, mut dv) =
            (vec![0.0; b * h * l * e], vec![0.0; b * hk * s * e], vec![0.0; b * hk * s * e]);
        for (row, first, scores) in self.scores(scale, sparse_mode)? {
            let dot = |a: &[f64], i: usize, b: &[f64], j: usize| -> f64 {
                (0..e).map(|x| a[i * e + x] * b[j * e + x]).sum()
            };
            let through = dot(g.floats(), row, y.floats(), row);
            for (j, score) in scores.iter().enumerate() {
                let key = first + j;
                let weight = (score - largest.floats()[row * 8]).exp() / sums.floats()[row * 8];
                let slope = weight * (dot(g.floats(), row, v.floats(), key) - through) * scale;
                for x in 0..e {
                    dv[key * e + x] += weight * g.floats()[row * e + x];
                    dq[row * e + x] += slope * k.floats()[key * e + x];
                    dk[key * e + x] += slope * q.floats()[row * e + x];
                }
            }
        }
        self.writes[0].write(dq)?;
        self.writes[1].write(dk)?;
        self.writes[2].write(dv)
    }
}

/// Does the work, after it has written all over its workspace.
pub fn run(work: &Work, (workspace, bytes): (usize, usize)) -> Outcome {
    if !WORLD.state().is_device(workspace, bytes) {
        return fail(507_015, "the workspace is not device memory");
    }
    // SAFETY: the range is in an allocation of the stand-in's, which the call was given for itself.
    unsafe { std::ptr::write_bytes(workspace as *mut u8, 0x5A, bytes) };
    work.compute().map_err(|text| (507_015, text))
}
