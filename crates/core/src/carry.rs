//! Collectives over a transport, on bytes in host memory: who sends which elements to whom, and sums in the
//! order that does not depend on the number of ranks. A device whose plans have collectives calls
//! [`Carrier::run`].

use crate::attr::{Attr, Attrs};
use crate::diagnostic::Result;
use crate::ops::OpDef;
use crate::ops::collective::{
    all_gather::ALL_GATHER, all_reduce::ALL_REDUCE, all_to_all::ALL_TO_ALL, broadcast::BROADCAST,
    reduce_scatter::REDUCE_SCATTER, shard::SHARD, sum_lanes::SUM_LANES, sum_lanes::in_order,
};
use crate::ranks::{Exchange, Transport, exchanged, halving, joining, lanes_of, parts_by_rank};
use crate::{DType, ensure, fail};
use std::ops::Range;

/// A collective as a rank does it.
pub struct Carrier<'a> {
    /// The other ranks.
    pub transport: &'a dyn Transport,
    /// The operator.
    pub op: &'static OpDef,
    /// Its attributes.
    pub attrs: &'a Attrs,
    /// Dtype of its operands and of its result.
    pub dtype: DType,
}

impl Carrier<'_> {
    /// Does it: operands are row-major, the result is written to `out`. All ranks do the same.
    ///
    /// # Errors
    /// `Device` if a rank is lost or does something else; `Unsupported` for an operator that is not known
    /// here.
    pub fn run(&self, operands: &[&[u8]], out: &mut [u8]) -> Result<()> {
        let first = *operands.first().ok_or_else(|| fail!(Attribute, "a collective of nothing"))?;
        let (rank, ranks) = (self.transport.rank(), self.transport.ranks());
        let whole = |parts: Vec<Vec<u8>>| parts.concat();
        let result = match self.op {
            op if *op == ALL_REDUCE => {
                self.gathered(self.reduced(&[first], &vec![1; ranks], &halving(ranks))?)?
            }
            op if *op == SUM_LANES => {
                let lanes = self.number("lanes")?;
                let counts = parts_by_rank(lanes, ranks);
                let sums: Vec<&[u8]> =
                    in_order(counts[rank]).filter_map(|i| operands.get(i).copied()).collect();
                ensure!(sums.len() == counts[rank], Attribute, "{} sums of {}", sums.len(), counts[rank]);
                self.gathered(self.reduced(&sums, &counts, &joining(lanes, ranks))?)?
            }
            op if *op == REDUCE_SCATTER => self.reduced(&[first], &vec![1; ranks], &halving(ranks))?,
            op if *op == ALL_GATHER => whole(self.exchange(Exchange::AllGather(first.to_vec()))?),
            op if *op == ALL_TO_ALL => {
                let parts = (0..ranks).map(|q| first[self.part(q, first.len())].to_vec()).collect();
                whole(self.exchange(Exchange::AllToAll(parts))?)
            }
            op if *op == BROADCAST => {
                let root = self.number("root")?;
                whole(self.exchange(Exchange::Broadcast { root, bytes: first.to_vec() })?)
            }
            op if *op == SHARD => first[self.part(rank, first.len())].to_vec(),
            op => return Err(fail!(Unsupported, "{} is no collective that a transport carries", op.name)),
        };
        ensure!(
            result.len() == out.len(),
            Device,
            "{} bytes have come, {} were expected: ranks do not run the same step",
            result.len(),
            out.len()
        );
        out.copy_from_slice(&result);
        Ok(())
    }

    fn number(&self, name: &str) -> Result<usize> {
        match self.attrs.get(name) {
            Some(Attr::Int(n)) => Ok(usize::try_from(*n).unwrap_or(0)),
            _ => Err(fail!(Attribute, "attribute `{name}` is missing")),
        }
    }

    fn exchange(&self, exchange: Exchange) -> Result<Vec<Vec<u8>>> {
        exchanged(self.transport, exchange)
    }

    /// The bytes of a rank's part of `bytes`: whole elements, as equal as they can be.
    fn part(&self, rank: usize, bytes: usize) -> Range<usize> {
        let size = self.dtype.size();
        let elements = lanes_of(rank, self.transport.ranks(), bytes / size);
        elements.start * size..elements.end * size
    }

    /// This rank's part of a sum over all values of all ranks, of which each has as many as `counts` says,
    /// added up in `order` by their numbers.
    fn reduced(&self, values: &[&[u8]], counts: &[usize], order: &[(usize, usize)]) -> Result<Vec<u8>> {
        let to = |q: usize| {
            let mut bytes = Vec::new();
            values.iter().for_each(|v| bytes.extend_from_slice(&v[self.part(q, v.len())]));
            bytes
        };
        let own = values.first().map_or(0, |v| self.part(self.transport.rank(), v.len()).len());
        let received = self.exchange(Exchange::AllToAll((0..counts.len()).map(to).collect()))?;
        let mut all: Vec<Vec<u8>> = Vec::with_capacity(counts.iter().sum());
        for ((rank, bytes), count) in received.into_iter().enumerate().zip(counts) {
            ensure!(
                bytes.len() == own * count,
                Device,
                "{} has sent {} bytes to be added up, {} were expected: ranks do not run the same step",
                self.transport.named(rank),
                bytes.len(),
                own * count
            );
            match count {
                1 => all.push(bytes),
                _ => all.extend((0..*count).map(|i| bytes[i * own..(i + 1) * own].to_vec())),
            }
        }
        for &(into, from) in order {
            let (left, right) = all.split_at_mut(from);
            add(self.dtype, &mut left[into], &right[0])?;
        }
        Ok(all.into_iter().next().unwrap_or_default())
    }

    /// The parts of all ranks as one.
    fn gathered(&self, own: Vec<u8>) -> Result<Vec<u8>> {
        Ok(self.exchange(Exchange::AllGather(own))?.concat())
    }
}

/// Adds numbers to others, each sum rounded once to their dtype.
fn add(dtype: DType, into: &mut [u8], from: &[u8]) -> Result<()> {
    match dtype {
        DType::F32 => {
            for (a, b) in into.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
                *a = (f32::from_le_bytes(*a) + f32::from_le_bytes(*b)).to_le_bytes();
            }
        }
        DType::F64 => {
            for (a, b) in into.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
                *a = (f64::from_le_bytes(*a) + f64::from_le_bytes(*b)).to_le_bytes();
            }
        }
        _ => return Err(fail!(DType, "ranks add up in f32 or wider, not in {dtype}")),
    }
    Ok(())
}
