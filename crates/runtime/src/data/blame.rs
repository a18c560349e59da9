//! Names the place in a data file of a value that made a step fail.

use super::{Batch, Dataset, Feed, Feeding};
use crate::error::Error;
use headwater_core::{Class, Code, Tensor, TensorType};

/// Elements that one sample has in a column of a batch.
fn elements(batch: &Batch, feed: usize, of: &Feed) -> usize {
    (batch.inputs[feed].len() / of.dtype.size() / batch.samples.max(1)).max(1)
}

fn tensor(batch: &Batch, feed: usize, of: &Feed) -> Tensor {
    let ty = TensorType::new(of.dtype, [batch.inputs[feed].len() / of.dtype.size()]);
    Tensor::from_bytes(&ty, &batch.inputs[feed])
}

fn named(data: &Dataset, of: &Feed, sample: u32) -> String {
    data.place(of.column, sample as usize)
}

/// The first number of a batch that is not finite: "sample 9 of `x` in data.npz is NaN (its element 3)".
/// `samples`: those of the batch, by their position in the file.
pub(crate) fn not_finite(feeding: &Feeding, batch: &Batch, samples: &[u32]) -> Option<String> {
    let (data, feeds) = (feeding.data(), feeding.feeds(batch.bucket));
    let floats = feeds.iter().enumerate().filter(|(_, f)| f.dtype.class() == Class::Float);
    floats.into_iter().find_map(|(i, feed)| {
        let (tensor, size) = (tensor(batch, i, feed), elements(batch, i, feed));
        let (at, x) = tensor.floats().iter().enumerate().find(|(_, x)| !x.is_finite())?;
        let (sample, element) = (*samples.get(at / size)?, at % size);
        let word = if x.is_nan() { "NaN" } else { "infinite" };
        Some(format!("{} is {word} (its element {element})", named(data, feed, sample)))
    })
}

/// The sample that holds `index`, which an operator found at `position` of its tensor to be out of range.
/// The column that has it at that very position is taken, or else the first that has it anywhere: models
/// shift and reshape their labels.
fn holder(
    feeding: &Feeding,
    batch: &Batch,
    samples: &[u32],
    (index, position): (i64, usize),
) -> Option<String> {
    let (data, feeds) = (feeding.data(), feeding.feeds(batch.bucket));
    let integers: Vec<usize> = (0..feeds.len()).filter(|&i| feeds[i].dtype.class() == Class::Int).collect();
    let place = |exact: bool| {
        integers.iter().find_map(|&i| {
            let tensor = tensor(batch, i, &feeds[i]);
            let mut found = tensor.ints().iter().enumerate().filter(|(_, x)| **x == index).map(|(at, _)| at);
            let at = found.find(|at| !exact || *at == position)?;
            let sample = *samples.get(at / elements(batch, i, &feeds[i]))?;
            Some(named(data, &feeds[i], sample))
        })
    };
    place(true).or_else(|| place(false))
}

/// An error of a program, with the sample it is due to where a value of the data is out of range. `samples`:
/// those of the batch, by their position in the file.
pub fn located(e: Error, feeding: &Feeding, batch: &Batch, samples: &[u32]) -> Error {
    let Error::Core(mut core) = e else { return e };
    if core.code == Code::Value
        && let Some(found) = index_of(&core.message)
        && let Some(place) = holder(feeding, batch, samples, found)
    {
        core.message = format!("{}: {} in {place}", core.message, found.0);
    }
    Error::Core(core)
}

/// Index and position of the message that `headwater_core::ops::index::resolve` gives; `None` for any other.
fn index_of(message: &str) -> Option<(i64, usize)> {
    let (index, rest) = message.strip_prefix("index ")?.split_once(" at position ")?;
    Some((index.parse().ok()?, rest.split(' ').next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_index_out_of_range_is_understood() {
        let e = headwater_core::ops::index::resolve(-3, 17, 2, false).unwrap_err();
        assert_eq!(index_of(&e.message), Some((-3, 17)), "{e}");
        assert_eq!(index_of("index of nothing"), None);
    }
}
