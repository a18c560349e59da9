//! Windows of a pooling: the inputs that each output covers. Shared by the type rules, the reference and
//! the devices' kernels.

use super::geometry::numbers;
use crate::diagnostic::Result;
use crate::ensure;
use crate::ops::OpCx;
use crate::shape::Shape;

/// The elements that one output covers along one dimension: `count` inputs from `start`, with stride `step`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// First input.
    pub start: usize,
    /// Number of inputs, at least 1.
    pub count: usize,
    /// Distance between them.
    pub step: usize,
    /// Its share of an average's divisor.
    pub weight: usize,
    /// Places before `start`, with the same stride, that are in the padding.
    pub skipped: usize,
}

impl Window {
    /// The inputs covered.
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (0..self.count).map(move |i| self.start + i * self.step)
    }
}

/// The division of one dimension into windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Axis {
    Sliding { kernel: usize, stride: usize, padding: usize, dilation: usize, count_padding: bool },
    Adaptive,
}

/// Windows along one dimension; devices work them out beforehand.
const MAX_WINDOWS: usize = 1 << 24;

/// A pooling over the last two dimensions; those before are independent planes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    /// Number of planes.
    pub planes: usize,
    /// Rows and columns of an input plane.
    pub input: [usize; 2],
    /// Rows and columns of an output plane.
    pub output: [usize; 2],
    /// Shape of the output.
    pub out_shape: Shape,
    axes: [Axis; 2],
}

impl Pool {
    /// Windows of `kernel_size`, `stride` (default: the kernel's), `padding`, `dilation`, `ceil_mode` and, in
    /// the weights, `count_include_pad` (default true), all from the node's attributes.
    ///
    /// # Errors
    /// `Shape` or `Attribute` if they do not fit the input, `Unsupported` if a window would cover padding
    /// only.
    pub fn sliding(input: &Shape, cx: &OpCx) -> Result<Pool> {
        let kernel = numbers(cx, "kernel_size", 2, 0, 1)?;
        let stride = match cx.opt_ints("stride")? {
            Some(s) if !s.is_empty() => numbers(cx, "stride", 2, 1, 1)?,
            _ => kernel.clone(),
        };
        let padding = numbers(cx, "padding", 2, 0, 0)?;
        let dilation = numbers(cx, "dilation", 2, 1, 1)?;
        let ceil = cx.flag("ceil_mode")?;
        let count_padding = cx.opt_int("count_include_pad")?.unwrap_or(1) != 0;
        Pool::new(input, |d, n| {
            let (k, s, p) = (kernel[d], stride[d], padding[d]);
            ensure!(n <= i32::MAX as usize, Size, "{n} inputs along a dimension are too many to pool");
            ensure!(p <= k / 2, Attribute, "`padding` {p} must be at most half the kernel size {k}");
            // With `ceil_mode` a window may reach beyond the input, even the only one.
            let reach = ((k - 1) * dilation[d] + 1) as i64;
            let free = (n + 2 * p) as i64 - reach + if ceil { s as i64 - 1 } else { 0 };
            let count = free.div_euclid(s as i64) + 1;
            ensure!(count > 0, Shape, "a kernel of {k} does not fit into {n} inputs and padding {p}");
            let mut count = count as usize;
            ensure!(
                p == 0 || dilation[d] <= n,
                Unsupported,
                "windows of dilation {} over {n} inputs can lie in the padding alone",
                dilation[d]
            );
            // The last window must start inside the input or the padding before it.
            if ceil && (count - 1) * s >= n + p {
                count -= 1;
            }
            Ok((
                count,
                Axis::Sliding { kernel: k, stride: s, padding: p, dilation: dilation[d], count_padding },
            ))
        })
    }

    /// The input divided into `output_size` windows as equal as can be, overlapping where it does not divide
    /// evenly.
    ///
    /// # Errors
    /// `Shape` or `Attribute` if they do not fit the input.
    pub fn adaptive(input: &Shape, cx: &OpCx) -> Result<Pool> {
        let size = numbers(cx, "output_size", 2, 1, 0)?;
        Pool::new(input, |d, n| {
            ensure!(n > 0, Shape, "nothing to pool in {input}");
            ensure!(
                n.checked_mul(size[d]).is_some(),
                Size,
                "`output_size` {} is too large for {input}",
                size[d]
            );
            Ok((size[d], Axis::Adaptive))
        })
    }

    fn new(input: &Shape, axis: impl Fn(usize, usize) -> Result<(usize, Axis)>) -> Result<Pool> {
        let rank = input.rank();
        ensure!(matches!(rank, 3 | 4), Shape, "pooling needs [N, C, H, W] or [C, H, W], got {input}");
        let sizes = [input[rank - 2], input[rank - 1]];
        let ((rows, a), (columns, b)) = (axis(0, sizes[0])?, axis(1, sizes[1])?);
        ensure!(
            rows.max(columns) <= MAX_WINDOWS,
            Size,
            "{} windows along one dimension, more than {MAX_WINDOWS}",
            rows.max(columns)
        );
        let lead = &input[..rank - 2];
        let out_shape = lead.iter().copied().chain([rows, columns]).collect();
        let planes = lead.iter().product();
        Ok(Pool { planes, input: sizes, output: [rows, columns], out_shape, axes: [a, b] })
    }

    /// The window of output `o` along dimension `d`.
    pub fn window(&self, d: usize, o: usize) -> Window {
        let n = self.input[d];
        match self.axes[d] {
            Axis::Sliding { kernel, stride, padding, dilation, count_padding } => {
                // Positions are counted from the first padding element.
                let first = o * stride;
                let skipped = padding.saturating_sub(first).div_ceil(dilation);
                let start = first + skipped * dilation - padding;
                let count = (kernel - skipped).min((n - start).div_ceil(dilation));
                let whole = (first + kernel).min(n + 2 * padding) - first;
                let weight = if count_padding { whole } else { count };
                Window { start, count, step: dilation, weight, skipped }
            }
            Axis::Adaptive => {
                let parts = self.output[d];
                let (start, end) = (o * n / parts, ((o + 1) * n).div_ceil(parts));
                Window { start, count: end - start, step: 1, weight: end - start, skipped: 0 }
            }
        }
    }

    /// Elements of an input plane.
    pub fn input_plane(&self) -> usize {
        self.input[0] * self.input[1]
    }

    /// Elements of an output plane.
    pub fn output_plane(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// The windows of each output of a plane, in order.
    pub fn outputs(&self) -> impl Iterator<Item = (Window, Window)> + '_ {
        (0..self.output[0]).flat_map(move |r| {
            let rows = self.window(0, r);
            (0..self.output[1]).map(move |c| (rows, self.window(1, c)))
        })
    }

    /// The divisor of a window's sum: the node's `divisor_override`, or the window's size.
    pub fn divisor(cx: &OpCx, rows: Window, columns: Window) -> Result<f64> {
        let given = cx.opt_int("divisor_override")?;
        ensure!(given != Some(0), Attribute, "`divisor_override` must not be 0");
        Ok(given.map_or((rows.weight * columns.weight) as f64, |d| d as f64))
    }

    /// Indices into a plane that a pair of windows covers, in order.
    pub fn covered(&self, rows: Window, columns: Window) -> impl Iterator<Item = usize> + use<> {
        let width = self.input[1];
        rows.indices().flat_map(move |r| columns.indices().map(move |c| r * width + c))
    }
}
