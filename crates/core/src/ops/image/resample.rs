//! Weights of resampling: the inputs that each output of a resampled dimension is a sum of, and their
//! weights. Shared by the type rules, the reference and the devices' kernels. The formulas are PyTorch's,
//! which for antialiasing are Pillow's.

use crate::diagnostic::Result;
use crate::ops::OpCx;
use crate::{ensure, fail};

/// The method by which values between inputs are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The input that the output's start falls into.
    Nearest,
    /// The input that the output's centre falls into.
    NearestExact,
    /// From two neighbours.
    Linear,
    /// From four neighbours: Keys 1981, with a = −0.75 (−0.5 where antialiased).
    Cubic,
}

/// The resampling of one dimension.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ResampledAxis {
    /// Inputs.
    pub input: usize,
    /// Outputs.
    pub output: usize,
    mode: Mode,
    align_corners: bool,
    antialias: bool,
    /// Outputs for each input, if stated apart from the sizes.
    scale: Option<f64>,
}

impl ResampledAxis {
    /// The resampling of rows and columns that the attributes of an `upsample2d` node state.
    ///
    /// # Errors
    /// `Attribute` if they state none.
    pub fn of(cx: &OpCx, input: [usize; 2]) -> Result<[ResampledAxis; 2]> {
        let size = cx.sizes("output_size")?;
        let [rows, columns] = size[..] else {
            return Err(fail!(Attribute, "`output_size` must be two sizes, it is {size}"));
        };
        ensure!(rows > 0 && columns > 0, Attribute, "`output_size` {size} is empty");
        ensure!(input[0] > 0 && input[1] > 0, Shape, "nothing to resample in {input:?}");
        let mode = match cx.opt_str("mode")?.unwrap_or("") {
            "nearest" => Mode::Nearest,
            "nearest-exact" => Mode::NearestExact,
            "bilinear" => Mode::Linear,
            "bicubic" => Mode::Cubic,
            other => return Err(fail!(Attribute, "`mode` {other:?} is not known")),
        };
        let (align_corners, antialias) = (cx.flag("align_corners")?, cx.flag("antialias")?);
        let axis = |d: usize, output: usize, scale: &str| {
            // PyTorch ignores scales that are not positive.
            let scale = cx.opt_float(scale)?.filter(|&s| s > 0.0 && s.is_finite());
            Ok(ResampledAxis { input: input[d], output, mode, align_corners, antialias, scale })
        };
        Ok([axis(0, rows, "scales_h")?, axis(1, columns, "scales_w")?])
    }

    /// Inputs and their weights for output `o`. An input may occur more than once.
    pub fn taps(&self, o: usize) -> Vec<(usize, f64)> {
        match self.mode {
            Mode::Nearest | Mode::NearestExact => vec![(self.nearest(o), 1.0)],
            _ if self.antialias => self.smoothed(o),
            _ if self.input == self.output => vec![(o, 1.0)],
            Mode::Linear => {
                let (at, t) = self.between(self.source(o).max(0.0));
                let next = at + i64::from(at < self.input as i64 - 1);
                vec![(self.clamp(at), 1.0 - t), (self.clamp(next), t)]
            }
            Mode::Cubic => {
                let (at, t) = self.between(self.source(o));
                let near = |x: f64| cubic(x, -0.75);
                let weights = [near(t + 1.0), near(t), near(1.0 - t), near(2.0 - t)];
                weights.into_iter().zip(at - 1..).map(|(w, i)| (self.clamp(i), w)).collect()
            }
        }
    }

    fn clamp(&self, i: i64) -> usize {
        i.clamp(0, self.input as i64 - 1) as usize
    }

    /// In f32 whatever the data, as PyTorch does: the result must fall on the same side.
    fn nearest(&self, o: usize) -> usize {
        let scale = self.scale.map_or(self.input as f32 / self.output as f32, |s| (1.0 / s) as f32);
        let start = match self.mode {
            Mode::Nearest if self.output == self.input => return o,
            Mode::Nearest if self.output == 2 * self.input => return o / 2,
            Mode::Nearest => o as f32 * scale,
            _ => (o as f32 + 0.5) * scale,
        };
        self.clamp(start.floor() as i64)
    }

    /// Inputs for each output.
    fn step(&self) -> f64 {
        match self.scale {
            _ if self.align_corners && self.output > 1 => (self.input - 1) as f64 / (self.output - 1) as f64,
            _ if self.align_corners => 0.0,
            Some(s) => 1.0 / s,
            None => self.input as f64 / self.output as f64,
        }
    }

    /// The place of output `o` among the inputs.
    fn source(&self, o: usize) -> f64 {
        if self.align_corners { self.step() * o as f64 } else { self.step() * (o as f64 + 0.5) - 0.5 }
    }

    /// The input before a place, and how far beyond it the place is.
    fn between(&self, place: f64) -> (i64, f64) {
        let at = (place.floor() as i64).min(self.input as i64 - 1);
        (at, (place - at as f64).clamp(0.0, 1.0))
    }

    /// All inputs within the filter's reach, which grows with the step.
    fn smoothed(&self, o: usize) -> Vec<(usize, f64)> {
        let step = self.step();
        let (stretch, reach) = (step.max(1.0), if self.mode == Mode::Cubic { 2.0 } else { 1.0 });
        let centre = step * (o as f64 + 0.5);
        let first = ((centre - reach * stretch + 0.5) as i64).max(0);
        let last = ((centre + reach * stretch + 0.5) as i64).min(self.input as i64);
        let filter = |i: i64| {
            let x = ((i as f64 - centre + 0.5) / stretch).abs();
            if self.mode == Mode::Cubic { cubic(x, -0.5) } else { (1.0 - x).max(0.0) }
        };
        let weights: Vec<(usize, f64)> = (first..last).map(|i| (i as usize, filter(i))).collect();
        let total: f64 = weights.iter().map(|w| w.1).sum();
        if total == 0.0 { weights } else { weights.into_iter().map(|(i, w)| (i, w / total)).collect() }
    }
}

/// Keys' kernel at distance `x ≥ 0`.
fn cubic(x: f64, a: f64) -> f64 {
    match x {
        x if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * a,
        _ => 0.0,
    }
}
