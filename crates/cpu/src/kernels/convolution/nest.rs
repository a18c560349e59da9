//! Convolutions as loop nests: which inputs the outputs meet through which taps.

use super::band::within;
use super::{Block, spatial};
use crate::matrix::Mat;
use crate::prefetch::Prefetch;
use headwater_core::ops::conv::geometry::Conv;
use std::ops::Range;

/// Where the outputs of a pass find their inputs: along dimension `d`, output `r` meets through tap `t` the
/// input `r · step[d] + t · tap[d] + base[d]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meeting {
    /// Inputs.
    pub source: [usize; 3],
    /// Outputs.
    pub result: [usize; 3],
    /// Taps.
    pub taps: [usize; 3],
    pub step: [usize; 3],
    pub tap: [usize; 3],
    pub base: [isize; 3],
}

impl Meeting {
    /// The inputs that the outputs of a block meet, of so many channels; nothing of images with depth. The
    /// first channel of sample `n` starts at `x[n · sample]`.
    pub fn ahead<T>(&self, x: *const T, sample: usize, block: &Block, channels: usize) -> Prefetch {
        let [depth, height, width] = self.source;
        if depth != 1 || self.result[0] != 1 || block.positions() == 0 {
            return Prefetch::NONE;
        }
        let met = |d: usize, outputs: &Range<usize>| {
            let inside = |i: isize| usize::try_from(i).unwrap_or(0).min(self.source[d]);
            let first = (outputs.start * self.step[d]) as isize + self.base[d];
            let last = (outputs.len() - 1) * self.step[d] + (self.taps[d] - 1) * self.tap[d];
            inside(first)..inside(first + last as isize + 1)
        };
        let mut columns = 0..width;
        if block.columns.len() < self.result[2] {
            columns = met(2, &block.columns);
        }
        let lines = met(1, &block.lines);
        let x = x.wrapping_add(block.images.start * sample + lines.start * width + columns.start);
        let elements = lines.len().saturating_sub(1) * width + columns.len();
        ahead(x, (block.images.len(), sample), channels, elements, height * width)
    }
}

/// So many elements of each of some channels of some images, which begin `apart` elements after each other:
/// of the first image alone if that is less than the whole plane of a channel.
pub(super) fn ahead<T>(
    x: *const T,
    (images, apart): (usize, usize),
    channels: usize,
    elements: usize,
    plane: usize,
) -> Prefetch {
    let matrix = |rows, rs: usize, k| Prefetch::matrix(Mat { ptr: x, rs: rs as isize, cs: 1 }, rows, k);
    match elements == plane {
        // Whole channels follow each other.
        true => matrix(images, apart, channels * plane),
        false => matrix(channels, plane, elements),
    }
}

/// Members of a cell that are one nest, at most, where each has a single tap, and where some have several.
const CELL: usize = 16;
const MOST: usize = 4096;

/// A pass as a loop nest. Outputs of a plane come in cells of `apart[1] × apart[2]`, one for each output of
/// the meeting, whose members meet inputs through taps of their own.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    /// What the cells meet, all members together.
    pub meeting: Meeting,
    pub whole: [usize; 3],
    /// Depth `r` of the meeting is `place[0] + r · apart[0]`. Of a point, lines and columns are as well, and
    /// what lies between them is no member of any cell.
    pub place: [usize; 3],
    pub apart: [usize; 3],
    /// Of each dimension, the members: of depth a single one.
    pub members: [Vec<Member>; 3],
    /// The kernel's element of each tap, those of member after member, in each dimension.
    pub elements: Vec<usize>,
}

/// The taps of a member of a cell, along a dimension.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Member {
    /// The first of them, among those of all members, and how many.
    pub first: usize,
    pub taps: usize,
    /// Inputs from the first that the cell meets to that of the first tap, and from one tap to the next.
    pub offset: usize,
    pub apart: usize,
}

impl Nest {
    /// The forward pass.
    pub fn forward(c: &Conv) -> Nest {
        let [source, result, taps, step, tap, pad] = spatial(c);
        let base = pad.map(|p| -(p as isize));
        let meeting = Meeting { source, result, taps, step, tap, base };
        let members =
            std::array::from_fn(|d| vec![Member { first: 0, taps: taps[d], offset: 0, apart: tap[d] }]);
        let elements = (0..c.kernel_size()).collect();
        Nest { meeting, whole: result, place: [0; 3], apart: [1; 3], members, elements }
    }

    /// The data gradient: a nest for each remainder of the input's index modulo the stride that any output
    /// meets.
    pub fn remainders(c: &Conv) -> Vec<Nest> {
        let all = Remainder::all(c);
        let [depths, lines, columns] = [0, 1, 2].map(|d| all[d].len());
        let places =
            (0..depths * lines * columns).map(|i| [i / columns / lines, i / columns % lines, i % columns]);
        let one = |place: [usize; 3]| [0, 1, 2].map(|d| std::slice::from_ref(&all[d][place[d]]));
        let met = places.filter(|place| one(*place).iter().all(|remainder| remainder[0].is_some()));
        let nests = met.map(|place| Nest::of(c, one(place), place).inside());
        nests.filter(|nest| nest.meeting.result.iter().all(|&n| n > 0)).collect()
    }

    /// Of outputs of a single tap only those that meet an input: the others are zeros, which nothing writes.
    fn inside(mut self) -> Nest {
        let m = &mut self.meeting;
        if m.taps == [1; 3] {
            for d in 0..3 {
                let (before, inside, first) = within(m.base[d], m.step[d], m.result[d], m.source[d]);
                self.place[d] += before * self.apart[d];
                (m.result[d], m.base[d]) = (inside, first as isize);
            }
        }
        self
    }

    /// Whether the data gradient has not too many nests, and not too large ones.
    pub fn feasible(c: &Conv) -> bool {
        let few = (1..3).map(|d| c.stride[d].min(c.input[d])).product::<usize>() <= MOST;
        few || Nest::remainders(c).iter().all(|nest| single(&nest.meeting))
    }

    /// The same with one nest for all remainders of line and column, unless all are of a single tap and few
    /// or very many.
    pub fn backward(c: &Conv) -> Vec<Nest> {
        if c.kernel_size() == 1 || c.stride.iter().product::<usize>() > CELL {
            let nests = Nest::remainders(c);
            if nests.iter().all(|nest| single(&nest.meeting)) {
                return nests;
            }
        }
        let all = Remainder::all(c);
        let depths = all[0].iter().enumerate().filter(|(_, depth)| depth.is_some());
        let nest = |(z, depth)| Nest::of(c, [std::slice::from_ref(depth), &all[1], &all[2]], [z, 0, 0]);
        let met = all[1..].iter().all(|members| members.iter().any(Option::is_some));
        depths.map(nest).filter(|_| met).collect()
    }

    /// Of some remainders of each dimension, the first of which is that of the input at `place`.
    fn of(c: &Conv, remainders: [&[Option<Remainder>]; 3], place: [usize; 3]) -> Nest {
        let [input, output, kernel, stride, ..] = spatial(c);
        let mut meeting =
            Meeting { source: output, result: input, taps: [1; 3], step: [1; 3], tap: [1; 3], base: [0; 3] };
        let mut members: [Vec<Member>; 3] = Default::default();
        for (d, remainders) in remainders.into_iter().enumerate() {
            let base = remainders.iter().flatten().map(|r| r.base).min().unwrap_or(0);
            let mut first = 0;
            for remainder in remainders {
                let member = remainder.as_ref().map_or(Member { first, ..Member::default() }, |r| Member {
                    first,
                    taps: r.elements.len(),
                    offset: (r.base - base) as usize,
                    apart: r.apart,
                });
                first += member.taps;
                let last = member.offset + member.taps.saturating_sub(1) * member.apart;
                meeting.taps[d] = meeting.taps[d].max(last + 1);
                members[d].push(member);
            }
            if let [Member { taps, apart, .. }] = members[d][..] {
                (meeting.taps[d], meeting.tap[d]) = (taps, apart);
            }
            meeting.base[d] = base;
            meeting.result[d] = (input[d] - place[d]).div_ceil(stride[d]);
        }
        let [z, y, x] = remainders.map(|r| r.iter().flatten().flat_map(|r| r.elements.iter().copied()));
        let elements = z
            .flat_map(|z| y.clone().map(move |y| z * kernel[1] + y))
            .flat_map(|zy| x.clone().map(move |x| zy * kernel[2] + x))
            .collect();
        Nest { meeting, whole: input, place, apart: stride, members, elements }
    }

    /// Taps of all members.
    pub fn taps(&self) -> usize {
        self.elements.len()
    }

    /// Taps of one member at most.
    pub fn most_taps(&self) -> usize {
        self.members.iter().map(|all| all.iter().map(|member| member.taps).max().unwrap_or(0)).product()
    }
}

/// Inputs of one remainder of their index modulo the stride, along a dimension: input `i` meets through
/// kernel element `k` the output `(i + pad − k · dilation) / stride`, where that is whole.
struct Remainder {
    /// Elements, so that the outputs they meet ascend, and from one of these to the next.
    elements: Vec<usize>,
    apart: usize,
    /// The output that the first of these inputs meets through the first element.
    base: isize,
}

impl Remainder {
    /// All that inputs have, along each dimension.
    fn all(c: &Conv) -> [Vec<Option<Remainder>>; 3] {
        [0, 1, 2].map(|d| (0..c.stride[d].min(c.input[d])).map(|at| Remainder::new(c, d, at)).collect())
    }

    /// Of the input at `place`, unless no output meets it.
    fn new(c: &Conv, d: usize, place: usize) -> Option<Remainder> {
        let [_, _, kernel, stride, dilation, pad] = spatial(c).map(|of| of[d]);
        let shared = gcd(dilation, stride);
        let (at, every) = (place + pad, stride / shared);
        let first = (0..every.min(kernel)).find(|k| at % stride == k * dilation % stride)?;
        let elements: Vec<usize> = (first..kernel).step_by(every).rev().collect();
        let base = (at as isize - (elements[0] * dilation) as isize) / stride as isize;
        Some(Remainder { elements, apart: dilation / shared, base })
    }
}

/// Whether a meeting is of one tap, and all inputs lie in the image.
pub(super) fn single(m: &Meeting) -> bool {
    (0..3).all(|d| {
        let last = m.base[d] + (m.result[d].saturating_sub(1) * m.step[d]) as isize;
        m.taps[d] == 1 && m.base[d] >= 0 && last < m.source[d] as isize
    })
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
