//! Digests of a session's state, for ranks that compare theirs, and flipped bits that try them out.

use super::Session;
use super::layout::Slot;
use crate::digest::Digest;
use crate::error::{Error, Result};
use headwater_core::DType;
use headwater_core::train::{Kept, StateKey};
use std::ops::Range;

/// Bytes that are read at a time: they stay in the caches.
const PIECE: usize = 64 << 10;

/// A kind of state that is the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Parameters with their masters.
    Weights,
    /// Moments of the optimizer, with scales where they are kept in codes.
    Moments,
    /// Sums of gradients.
    Gradients,
}

impl Session {
    /// A digest for each bucket.
    pub(crate) fn digests(&self, part: Part) -> Result<Vec<u64>> {
        (0..self.layout.buckets.len()).map(|bucket| self.digest(&self.bucket(part, bucket))).collect()
    }

    /// A digest for each parameter of a bucket, in the order of its entries.
    pub(crate) fn digests_in(&self, part: Part, bucket: usize) -> Result<Vec<u64>> {
        let entries = self.layout.buckets[bucket].entries.iter();
        entries.map(|e| self.digest(&self.parameter(part, bucket, &e.name))).collect()
    }

    /// A digest for each tensor that is not trained, with its name: frozen parameters, buffers, constants.
    pub(crate) fn digests_untrained(&self) -> Result<Vec<(&str, u64)>> {
        let untrained = self.tensors.iter().filter(|t| self.layout.find(&t.name).is_none());
        untrained.map(|t| Ok((t.name.as_str(), self.digest(&[t.key()])?))).collect()
    }

    /// Flips the lowest bit of the middle element of a parameter, or of its gradient.
    ///
    /// # Errors
    /// `Config` if no such parameter is trained.
    pub(crate) fn flip_bit(&mut self, part: Part, parameter: &str) -> Result<()> {
        if self.layout.find(parameter).is_none() {
            return Err(Error::config("flip_bit", format!("no trained parameter is called {parameter}")));
        }
        let key = match part {
            Part::Weights => StateKey::Parameter(parameter.into()),
            _ => StateKey::gradient(parameter),
        };
        let slot = self.state.slot(&key)?.clone();
        let mut bytes = self.state.read(&slot)?;
        let element = slot.ty.shape.numel() / 2 * slot.ty.dtype.size();
        if let Some(byte) = bytes.get_mut(element) {
            *byte ^= 1;
        }
        self.state.write(&slot, parameter, &bytes)
    }

    /// The sum of the squares of all gradients in memory.
    pub(crate) fn squares(&self) -> Result<f64> {
        let mut sums = [0f64; 8];
        for bucket in 0..self.layout.buckets.len() {
            let slot = self.state.slot(&StateKey::Bucket(bucket, Kept::Gradients))?;
            let dtype = slot.ty.dtype;
            self.pieces(slot, |bytes| match dtype {
                DType::F32 => {
                    for eight in bytes.as_chunks::<32>().0 {
                        for (sum, x) in sums.iter_mut().zip(eight.as_chunks::<4>().0) {
                            let x = f64::from(f32::from_le_bytes(*x));
                            *sum += x * x;
                        }
                    }
                }
                _ => {
                    for x in bytes.as_chunks::<8>().0 {
                        let x = f64::from_le_bytes(*x);
                        sums[0] += x * x;
                    }
                }
            })?;
        }
        Ok(sums.iter().sum())
    }

    fn bucket(&self, part: Part, bucket: usize) -> Vec<StateKey> {
        let kept = |kept: Kept| StateKey::Bucket(bucket, kept);
        match part {
            Part::Weights => vec![StateKey::Parameters(bucket), kept(Kept::Masters)],
            Part::Gradients => vec![kept(Kept::Gradients)],
            Part::Moments => {
                self.names(bucket, |m| [kept(Kept::Moment(m.into())), kept(Kept::Scales(m.into()))])
            }
        }
    }

    fn parameter(&self, part: Part, bucket: usize, name: &str) -> Vec<StateKey> {
        match part {
            Part::Weights => vec![StateKey::Parameter(name.into()), StateKey::master(name)],
            Part::Gradients => vec![StateKey::gradient(name)],
            Part::Moments => self.names(bucket, |m| [StateKey::moment(m, name), StateKey::scales(m, name)]),
        }
    }

    fn names(&self, bucket: usize, key: impl Fn(&str) -> [StateKey; 2]) -> Vec<StateKey> {
        let Some(t) = &self.training else { return Vec::new() };
        let rule = t.groups.rule(self.layout.buckets[bucket].group);
        rule.moments().into_iter().flatten().flat_map(|m| key(m.name)).collect()
    }

    /// The digest of several tensors; those that the state does not have are left out.
    fn digest(&self, keys: &[StateKey]) -> Result<u64> {
        let mut digest = Digest::new(0);
        for slot in keys.iter().filter_map(|key| self.state.slot(key).ok()) {
            self.pieces(slot, |bytes| digest.add(bytes))?;
        }
        Ok(digest.end())
    }

    /// Calls `take` with the bytes of a tensor, piece by piece.
    fn pieces(&self, slot: &Slot, mut take: impl FnMut(&[u8])) -> Result<()> {
        let (bytes, mut piece) = (slot.ty.bytes(), vec![0; PIECE.min(slot.ty.bytes())]);
        for start in (0..bytes).step_by(PIECE) {
            let range: Range<usize> = start..bytes.min(start + PIECE);
            let piece = &mut piece[..range.len()];
            self.state.read_part(slot, range, piece)?;
            take(piece);
        }
        Ok(())
    }
}
