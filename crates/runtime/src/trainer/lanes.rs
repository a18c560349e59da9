//! What each lane of a step was fed, and what came of it, for the log: a rank that reads other data than it
//! should shows there.

use super::event::Lane;
use headwater_core::{DType, Tensor, TensorType};
use serde::{Deserialize, Serialize};

/// What a rank computed for a lane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Computed {
    /// Digest of all that was fed.
    pub fed: u64,
    /// Digest of the losses.
    pub losses: u64,
    /// Digest of the gradient of each parameter.
    pub gradients: Vec<u64>,
}

/// A lane while it is computed. Numbers that may be NaN travel as bits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    samples: usize,
    /// Elements fed, their sum and that of their squares.
    elements: u64,
    sums: [u64; 2],
    /// Sum of the losses, and batches.
    losses: u64,
    batches: u64,
    /// Norm of the gradient, if it is logged.
    norm: Option<u64>,
}

impl Seen {
    /// Adds a batch: its samples, inputs with their types, and loss. Of inputs, those of floats count, or all
    /// if there are none.
    pub fn add(&mut self, samples: usize, inputs: &[(&TensorType, &[u8])], loss: f64) {
        self.samples += samples;
        self.batches += 1;
        self.losses = (f64::from_bits(self.losses) + loss).to_bits();
        let floats = inputs.iter().any(|(ty, _)| ty.dtype.is_float());
        let [mut sum, mut squares] = self.sums.map(f64::from_bits);
        let mut count = |x: f64| {
            sum += x;
            squares += x * x;
        };
        for (ty, bytes) in inputs.iter().filter(|(ty, _)| ty.dtype.is_float() == floats) {
            self.elements += ty.shape.numel() as u64;
            match ty.dtype {
                DType::F32 => {
                    bytes.as_chunks::<4>().0.iter().for_each(|x| count(f32::from_le_bytes(*x).into()));
                }
                DType::I64 => {
                    bytes.as_chunks::<8>().0.iter().for_each(|x| count(i64::from_le_bytes(*x) as f64));
                }
                _ => Tensor::from_bytes(ty, bytes).to_f64().into_iter().for_each(&mut count),
            }
        }
        self.sums = [sum, squares].map(f64::to_bits);
    }

    /// Adds the norm of the lane's gradient, of which the loss was multiplied by `scale`.
    pub fn set_norm(&mut self, squares: f64, scale: f64) {
        self.norm = Some((squares.sqrt() / (scale * self.batches as f64)).to_bits());
    }

    /// As the log has it.
    pub fn logged(&self, lane: usize) -> Lane {
        let elements = self.elements as f64;
        let [mean, squares] = self.sums.map(|s| f64::from_bits(s) / elements);
        Lane {
            lane,
            samples: self.samples,
            mean,
            deviation: (squares - mean * mean).max(0.0).sqrt(),
            loss: f64::from_bits(self.losses) / self.batches as f64,
            norm: self.norm.map(f64::from_bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_deviation_and_loss_are_over_all_batches_of_a_lane() {
        let floats = TensorType::new(DType::F32, [2]);
        let integers = TensorType::new(DType::I64, [1]);
        let batch = |a: f32, b: f32| [a.to_le_bytes(), b.to_le_bytes()].concat();
        let (first, second, label) = (batch(1.0, 2.0), batch(3.0, 6.0), 9i64.to_le_bytes());
        let mut seen = Seen::default();
        for (x, loss) in [(&first, 1.0), (&second, 2.0)] {
            seen.add(2, &[(&floats, &x[..]), (&integers, &label[..])], loss);
        }
        seen.set_norm(16.0, 2.0);
        let lane = seen.logged(3);
        assert_eq!((lane.lane, lane.samples, lane.mean, lane.loss, lane.norm), (3, 4, 3.0, 1.5, Some(1.0)));
        assert!((lane.deviation - 3.5f64.sqrt()).abs() < 1e-12, "{lane:?}");
        // Without floats, integers count.
        let mut seen = Seen::default();
        seen.add(1, &[(&integers, &label[..])], f64::NAN);
        let lane = seen.logged(0);
        assert!((lane.mean, lane.deviation) == (9.0, 0.0) && lane.loss.is_nan());
    }
}
