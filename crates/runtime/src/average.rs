//! An exponential moving average of the weights: `e ← e + (1 − decay) · (p − e)` after every update.
//! `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn` computes the same. The first update
//! sets it. It is kept on the host, in f32 (f64 for weights in f64): each update reads the weights from the
//! device.

use crate::data::append;
use crate::error::{Error, Result};
use crate::session::{ModelTensor, Session};
use headwater_core::graph::InputRole;
use headwater_core::{DType, TensorType};

/// The average of all trainable parameters.
#[derive(Clone, Debug)]
pub struct Average {
    decay: f64,
    tensors: Vec<(ModelTensor, Values)>,
    /// True after the first update.
    begun: bool,
}

/// Elements of a tensor, in the width in which they are averaged.
#[derive(Clone, Debug)]
enum Values {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Values {
    fn dtype(&self) -> DType {
        match self {
            Values::F32(_) => DType::F32,
            Values::F64(_) => DType::F64,
        }
    }

    /// Sets them from bytes of their own dtype, or moves them towards those by `share`.
    fn take(&mut self, bytes: &[u8], share: Option<f64>) {
        match self {
            Values::F32(values) => {
                let new = bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
                match share {
                    None => *values = new.collect(),
                    Some(share) => {
                        values.iter_mut().zip(new).for_each(|(e, p)| *e += share as f32 * (p - *e))
                    }
                }
            }
            Values::F64(values) => {
                let new = bytes.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x));
                match share {
                    None => *values = new.collect(),
                    Some(share) => values.iter_mut().zip(new).for_each(|(e, p)| *e += share * (p - *e)),
                }
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match self {
            Values::F32(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Values::F64(values) => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }
}

impl Average {
    /// No average yet, of a session's trainable parameters.
    pub fn new(session: &Session, decay: f64) -> Average {
        let trained = |t: &&ModelTensor| matches!(t.role, InputRole::Parameter { trainable: true, .. });
        let empty = |t: &ModelTensor| match t.ty.dtype {
            DType::F64 => Values::F64(Vec::new()),
            _ => Values::F32(Vec::new()),
        };
        let tensors = session.tensors().iter().filter(trained).map(|t| (t.clone(), empty(t)));
        Average { decay, tensors: tensors.collect(), begun: false }
    }

    /// Takes in the weights after an update.
    ///
    /// # Errors
    /// If the device cannot be read.
    pub fn add(&mut self, session: &Session) -> Result<()> {
        let share = self.begun.then_some(1.0 - self.decay);
        for (tensor, values) in &mut self.tensors {
            let bytes = session.read(tensor)?;
            let (from, to) = (tensor.ty.dtype, values.dtype());
            if from == to {
                values.take(&bytes, share);
            } else {
                let mut wide = Vec::with_capacity(bytes.len() / from.size() * to.size());
                append(from, to, &bytes, &mut wide);
                values.take(&wide, share);
            }
        }
        self.begun = true;
        Ok(())
    }

    /// True once there is an average, which is after the first update.
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// The averaged tensors in order: the parameter and the type in which its average is kept.
    pub fn types(&self) -> impl Iterator<Item = (&ModelTensor, TensorType)> {
        self.tensors.iter().map(|(t, v)| (t, TensorType::new(v.dtype(), t.ty.shape.clone())))
    }

    /// Bytes of the average of tensor `i` of [`Average::types`].
    pub fn bytes(&self, i: usize) -> Vec<u8> {
        self.tensors[i].1.bytes()
    }

    /// Sets the average to what a checkpoint has, `found` giving bytes by name and type.
    ///
    /// # Errors
    /// Errors of `found`.
    pub fn restore(&mut self, mut found: impl FnMut(&str, &TensorType) -> Result<Vec<u8>>) -> Result<()> {
        for (tensor, values) in &mut self.tensors {
            let ty = TensorType::new(values.dtype(), tensor.ty.shape.clone());
            values.take(&found(&tensor.name, &ty)?, None);
        }
        self.begun = true;
        Ok(())
    }

    /// Puts the average in the place of a session's weights, and returns those, for [`Average::remove`].
    ///
    /// # Errors
    /// If the device cannot be read or written.
    pub fn install(&self, session: &mut Session) -> Result<Vec<Vec<u8>>> {
        let read = |(t, _): &(ModelTensor, Values)| session.read(t);
        let before = self.tensors.iter().map(read).collect::<Result<Vec<_>>>()?;
        for (tensor, values) in &self.tensors {
            let mut own = Vec::with_capacity(tensor.ty.bytes());
            append(values.dtype(), tensor.ty.dtype, &values.bytes(), &mut own);
            session.write(tensor, &own)?;
        }
        Ok(before)
    }

    /// Puts the weights back that [`Average::install`] returned, to the bit.
    ///
    /// # Errors
    /// If the device cannot be written.
    pub fn remove(&self, session: &mut Session, before: &[Vec<u8>]) -> Result<()> {
        let mut all = self.tensors.iter().zip(before);
        all.try_for_each(|((tensor, _), bytes)| session.write(tensor, bytes))
    }
}

/// Refuses a decay that is none.
///
/// # Errors
/// `Config`.
pub(crate) fn check(decay: Option<f64>) -> Result<()> {
    match decay {
        Some(d) if !(0.0..1.0).contains(&d) => {
            Err(Error::config("ema", format!("is a decay, at least 0 and below 1; it is {d}")))
        }
        _ => Ok(()),
    }
}
