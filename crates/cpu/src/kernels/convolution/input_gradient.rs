//! The input gradient as a transposed convolution, by stride phases. Inputs whose index leaves one remainder
//! modulo the stride read taps of their own. So each phase is a dense convolution of the output gradient.
//! Dilating the gradient by the stride would multiply zeros instead.

use super::index_map::{IndexMap, single, spatial, within};
use super::nest::{Nest, Phase};
use headwater_core::ops::conv::geometry::Conv;

/// Most phases in one nest if each has a single tap.
const CELL: usize = 16;
/// Most phases in one nest if some have several.
const MOST: usize = 4096;

impl Nest {
    /// A nest for each stride phase that any output reads.
    pub fn per_phase(c: &Conv) -> Vec<Nest> {
        let all = Residue::all(c);
        let [depths, lines, columns] = [0, 1, 2].map(|d| all[d].len());
        let places =
            (0..depths * lines * columns).map(|i| [i / columns / lines, i / columns % lines, i % columns]);
        let one = |place: [usize; 3]| [0, 1, 2].map(|d| std::slice::from_ref(&all[d][place[d]]));
        let met = places.filter(|place| one(*place).iter().all(|residue| residue[0].is_some()));
        let nests = met.map(|place| Nest::of(c, one(place), place).inside());
        nests.filter(|nest| nest.map.result.iter().all(|&n| n > 0)).collect()
    }

    /// With a single tap, only outputs whose input is inside the image: the others are zeros, which nothing
    /// writes.
    fn inside(mut self) -> Nest {
        let m = &mut self.map;
        if m.taps == [1; 3] {
            for d in 0..3 {
                let (before, inside, first) = within(m.base[d], m.step[d], m.result[d], m.source[d]);
                self.origin[d] += before * self.stride[d];
                (m.result[d], m.base[d]) = (inside, first as isize);
            }
        }
        self
    }

    /// True if the input gradient has neither too many nests nor too large ones.
    pub fn feasible(c: &Conv) -> bool {
        let few = (1..3).map(|d| c.stride[d].min(c.input[d])).product::<usize>() <= MOST;
        few || Nest::per_phase(c).iter().all(|nest| single(&nest.map))
    }

    /// One nest for all phases of line and column, unless all have a single tap and are few or very many.
    pub fn input_gradient(c: &Conv) -> Vec<Nest> {
        if c.kernel_size() == 1 || c.stride.iter().product::<usize>() > CELL {
            let nests = Nest::per_phase(c);
            if nests.iter().all(|nest| single(&nest.map)) {
                return nests;
            }
        }
        let all = Residue::all(c);
        let depths = all[0].iter().enumerate().filter(|(_, depth)| depth.is_some());
        let nest = |(z, depth)| Nest::of(c, [std::slice::from_ref(depth), &all[1], &all[2]], [z, 0, 0]);
        let met = all[1..].iter().all(|phases| phases.iter().any(Option::is_some));
        depths.map(nest).filter(|_| met).collect()
    }

    /// The nest of some phases of each dimension, the first of which is that of the input at `place`.
    fn of(c: &Conv, residues: [&[Option<Residue>]; 3], place: [usize; 3]) -> Nest {
        let [input, output, kernel, stride, ..] = spatial(c);
        let mut map =
            IndexMap { source: output, result: input, taps: [1; 3], step: [1; 3], tap: [1; 3], base: [0; 3] };
        let mut phases: [Vec<Phase>; 3] = Default::default();
        for (d, residues) in residues.into_iter().enumerate() {
            let base = residues.iter().flatten().map(|r| r.base).min().unwrap_or(0);
            let mut first = 0;
            for residue in residues {
                let phase = residue.as_ref().map_or(Phase { first, ..Phase::default() }, |r| Phase {
                    first,
                    taps: r.elements.len(),
                    offset: (r.base - base) as usize,
                    dilation: r.dilation,
                });
                first += phase.taps;
                let last = phase.offset + phase.taps.saturating_sub(1) * phase.dilation;
                map.taps[d] = map.taps[d].max(last + 1);
                phases[d].push(phase);
            }
            if let [Phase { taps, dilation, .. }] = phases[d][..] {
                (map.taps[d], map.tap[d]) = (taps, dilation);
            }
            map.base[d] = base;
            map.result[d] = (input[d] - place[d]).div_ceil(stride[d]);
        }
        let [z, y, x] = residues.map(|r| r.iter().flatten().flat_map(|r| r.elements.iter().copied()));
        let elements = z
            .flat_map(|z| y.clone().map(move |y| z * kernel[1] + y))
            .flat_map(|zy| x.clone().map(move |x| zy * kernel[2] + x))
            .collect();
        Nest { map, output: input, origin: place, stride, phases, elements }
    }
}

/// Inputs whose index has one residue modulo the stride, along a dimension: input `i` reads through filter
/// element `k` the output `(i + pad − k · dilation) / stride`, if that is whole.
struct Residue {
    /// Filter elements, in the order of ascending outputs, and outputs from one to the next.
    elements: Vec<usize>,
    dilation: usize,
    /// The output that the first of these inputs reads through the first element.
    base: isize,
}

impl Residue {
    /// All residues along each dimension.
    fn all(c: &Conv) -> [Vec<Option<Residue>>; 3] {
        [0, 1, 2].map(|d| (0..c.stride[d].min(c.input[d])).map(|at| Residue::new(c, d, at)).collect())
    }

    /// The residue of the input at `place`, unless no output reads it.
    fn new(c: &Conv, d: usize, place: usize) -> Option<Residue> {
        let [_, _, kernel, stride, dilation, pad] = spatial(c).map(|of| of[d]);
        let shared = gcd(dilation, stride);
        let (at, every) = (place + pad, stride / shared);
        let first = (0..every.min(kernel)).find(|k| at % stride == k * dilation % stride)?;
        let elements: Vec<usize> = (first..kernel).step_by(every).rev().collect();
        let base = (at as isize - (elements[0] * dilation) as isize) / stride as isize;
        Some(Residue { elements, dilation: dilation / shared, base })
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
