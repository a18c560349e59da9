//! Random changes of images in training: a crop out of the image with a border around it, and a flip. What
//! happens to a sample follows from the run's seed, the epoch and the sample's number alone.

use super::{AugmentConfig, Column, Feed};
use crate::error::{Error, Result};
use headwater_core::random::{Stream, uniform};
use headwater_core::{DType, Tensor};

/// Stream of random numbers; nodes of models, which are numbered from 0, have others.
const STREAM: u32 = u32::MAX;
/// Largest border, in pixels.
const BORDER: usize = 1 << 20;

/// Changes of a data set's images.
#[derive(Debug)]
pub(super) struct Augment {
    seed: u64,
    flip: f64,
    border: usize,
    /// By feed: how its samples are changed, if they are.
    images: Vec<Option<Image>>,
}

/// An input whose samples are images.
#[derive(Debug)]
struct Image {
    height: usize,
    width: usize,
    /// Bytes of a pixel in a plane.
    size: usize,
    /// Value of the border, by plane; one is for all.
    border: Vec<Vec<u8>>,
}

/// The change of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Draw {
    flip: bool,
    /// First row and column of the crop, counted in the image with its border.
    at: [usize; 2],
}

impl Augment {
    /// Changes of these feeds from these columns, if the settings request any.
    ///
    /// # Errors
    /// `Config` for settings out of range, and for inputs that are no images of one size.
    pub(super) fn new(
        config: &AugmentConfig,
        seed: u64,
        feeds: &[Feed],
        columns: &[Column],
    ) -> Result<Option<Augment>> {
        if !(0.0..=1.0).contains(&config.flip) {
            let message = format!("must be from 0 to 1, it is {}", config.flip);
            return Err(Error::config("data.augment.flip", message));
        }
        if config.crop > BORDER {
            return Err(Error::config("data.augment.crop", format!("must be at most {BORDER}")));
        }
        if !config.changes() {
            return Ok(None);
        }
        let shape = |f: &Feed| &columns[f.column].ty.shape[1..];
        let refuse = |m: String| Err(Error::config("data.augment.inputs", m));
        let inputs = match &config.inputs[..] {
            [] => feeds.iter().filter(|f| shape(f).len() == 3).map(|f| f.input.clone()).collect::<Vec<_>>(),
            named => named.to_vec(),
        };
        if config.inputs.is_empty() && inputs.len() != 1 {
            let which = match inputs.is_empty() {
                true => "the model has no input with samples [channels, height, width]".into(),
                false => format!("these may be images: {}", inputs.join(", ")),
            };
            return refuse(format!("{which}; name those to change"));
        }
        if config.inputs.is_empty() {
            // An input of the image's height and width is likely its mask, which must be changed with it.
            let size = |f: &Feed| shape(f).iter().rev().take(2).copied().collect::<Vec<_>>();
            let image = feeds.iter().find(|f| f.input == inputs[0]).map(size);
            let alike = |f: &&Feed| f.input != inputs[0] && shape(f).len() >= 2 && Some(size(f)) == image;
            if let Some(mask) = feeds.iter().find(alike) {
                let (image, mask) = (&inputs[0], &mask.input);
                return refuse(format!(
                    "{mask} has the height and width of {image}: name both, [\"{image}\", \"{mask}\"], if it is a mask, which is changed \
                     in the same way, or [\"{image}\"] alone"
                ));
            }
        }
        let known = |input: &String| inputs.contains(input);
        if let Some(other) = config.fill.keys().find(|input| !known(input)) {
            let message = format!("{other} is not changed; changed are {}", inputs.join(", "));
            return Err(Error::config("data.augment.fill", message));
        }
        let mut size = None;
        for input in &inputs {
            let Some(feed) = feeds.iter().find(|f| f.input == *input) else {
                let have: Vec<&str> = feeds.iter().map(|f| f.input.as_str()).collect();
                return refuse(format!("the model has no input {input}; it has {}", have.join(", ")));
            };
            let [.., height, width] = shape(feed) else {
                return refuse(format!("samples of {input} are {:?}, and no images", shape(feed)));
            };
            if *size.get_or_insert((*height, *width)) != (*height, *width) {
                return refuse(format!("images of {input} have another size than those of {}", inputs[0]));
            }
            let numbers = !feed.dtype.is_float() && columns[feed.column].black().is_none();
            if config.crop > 0 && numbers && !config.fill.contains_key(input) {
                let message = format!(
                    "{input} holds {}: say what a crop fills its border with, as `fill = {{ {input} = 255 }}`; a class that the loss \
                     ignores, since 0 is a class",
                    feed.dtype
                );
                return Err(Error::config("data.augment.fill", message));
            }
            if let Some(x) = config.fill.get(input).filter(|x| !fits(**x, feed.dtype)) {
                let message = format!("{x} is no value of {input}, which holds {}", feed.dtype);
                return Err(Error::config("data.augment.fill", message));
            }
        }
        let image = |feed: &Feed| {
            let (true, [.., height, width]) = (inputs.contains(&feed.input), shape(feed)) else {
                return None;
            };
            let black = columns[feed.column].black().unwrap_or_else(|| vec![0.0]);
            let black = config.fill.get(&feed.input).map_or(black, |x| vec![*x]);
            let bytes = |x: f64| Tensor::float(DType::F64, [1], vec![x]).cast(feed.dtype).to_bytes();
            let border = black.into_iter().map(bytes).collect();
            Some(Image { height: *height, width: *width, size: feed.dtype.size(), border })
        };
        let images = feeds.iter().map(image).collect();
        Ok(Some(Augment { seed, flip: config.flip, border: config.crop, images }))
    }

    /// True if the samples of a feed are changed.
    pub(super) fn changes(&self, feed: usize) -> bool {
        self.images[feed].is_some()
    }

    /// Changes a sample's bytes as they are fed.
    pub(super) fn apply(&self, feed: usize, epoch: u64, sample: u32, bytes: &mut [u8]) {
        if let Some(image) = &self.images[feed] {
            image.apply(self.draw(epoch, sample), self.border, bytes);
        }
    }

    fn draw(&self, epoch: u64, sample: u32) -> Draw {
        let [flip, row, column, _] = Stream::new(self.seed as i64, epoch as i64, STREAM).block(sample);
        // Places differ in likelihood by less than 2⁻³² of their number (Lemire 2019, without rejection).
        let places = 2 * self.border as u64 + 1;
        let place = |word: u32| ((word as u64 * places) >> 32) as usize;
        Draw { flip: uniform(flip) < self.flip, at: [place(row), place(column)] }
    }
}

/// True if a dtype has the value, of floats up to rounding.
fn fits(x: f64, dtype: DType) -> bool {
    if dtype.is_float() {
        return x.is_finite() && x.abs() <= dtype.max_value();
    }
    let (low, high) = if dtype == DType::Bool { (0, 1) } else { dtype.int_range() };
    x.fract() == 0.0 && x >= low as f64 && x <= high as f64
}

impl Image {
    /// Crops, then flips.
    fn apply(&self, draw: Draw, border: usize, bytes: &mut [u8]) {
        let (height, width, size) = (self.height, self.width, self.size);
        let before = bytes.to_vec();
        let plane = height * width * size;
        if plane == 0 {
            return;
        }
        for (number, (from, to)) in before.chunks(plane).zip(bytes.chunks_mut(plane)).enumerate() {
            let outside = &self.border[number.min(self.border.len() - 1)];
            for (at, pixel) in to.chunks_exact_mut(size).enumerate() {
                let (row, column) = (at / width, at % width);
                let column = if draw.flip { width - 1 - column } else { column };
                let inside = |place: usize, first: usize, n: usize| {
                    (place + first).checked_sub(border).filter(|p| *p < n)
                };
                let source = inside(row, draw.at[0], height).zip(inside(column, draw.at[1], width));
                pixel.copy_from_slice(match source {
                    Some((row, column)) => &from[(row * width + column) * size..][..size],
                    None => outside,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn augment(flip: f64, border: usize) -> Augment {
        Augment { seed: 5, flip, border, images: vec![] }
    }

    #[test]
    fn crops_and_flips_by_hand() {
        let image = Image { height: 2, width: 3, size: 1, border: vec![vec![9], vec![8]] };
        let after = |flip, at| {
            let mut bytes = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15];
            image.apply(Draw { flip, at }, 1, &mut bytes);
            bytes
        };
        assert_eq!(after(false, [1, 1]), [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
        assert_eq!(after(true, [1, 1]), [2, 1, 0, 5, 4, 3, 12, 11, 10, 15, 14, 13]);
        assert_eq!(after(false, [0, 2]), [9, 9, 9, 1, 2, 9, 8, 8, 8, 11, 12, 8]);
        assert_eq!(after(true, [0, 2]), [9, 9, 9, 9, 2, 1, 8, 8, 8, 8, 12, 11]);
    }

    #[test]
    fn draws_are_uniform_and_depend_on_epoch_and_sample_alone() {
        let a = augment(0.25, 2);
        let n = 20_000;
        let draws: Vec<Draw> = (0..n).map(|s| a.draw(3, s)).collect();
        // Standard deviations: √(n · p · (1 − p)), 61 for flips and 57 for each of five rows.
        let flips = draws.iter().filter(|d| d.flip).count() as f64;
        assert!((flips - 0.25 * n as f64).abs() < 5.0 * 61.3, "{flips}");
        for row in 0..5 {
            for axis in 0..2 {
                let found = draws.iter().filter(|d| d.at[axis] == row).count() as f64;
                assert!((found - 0.2 * n as f64).abs() < 5.0 * 56.6, "{row}: {found}");
            }
        }
        assert_eq!(a.draw(3, 7), draws[7]);
        assert!((0..100).any(|s| a.draw(4, s) != draws[s as usize]));
        assert!((0..100).all(|s| augment(0.0, 0).draw(1, s) == Draw { flip: false, at: [0, 0] }));
        assert!((0..100).all(|s| augment(1.0, 0).draw(1, s).flip));
    }
}
