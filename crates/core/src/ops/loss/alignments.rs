//! Alignments of labels with a longer sequence of frames: Graves, Fernández, Gomez and Schmidhuber 2006,
//! "Connectionist temporal classification". Sums over all of them are logarithms, in f64.

/// A sequence of frames and the labels that it is to read. Its states are the labels, with a blank before,
/// between and after them.
#[derive(Debug)]
pub struct Alignments<'a, P> {
    /// Log-probability of a class in a frame: `(frame, class)`.
    pub log_probability: P,
    /// Number of frames.
    pub frames: usize,
    /// The labels, each a class.
    pub labels: &'a [i64],
    /// The class that stands for no label.
    pub blank: usize,
}

impl<P: Fn(usize, usize) -> f64> Alignments<'_, P> {
    /// Number of states.
    pub fn states(&self) -> usize {
        states(self.labels.len())
    }

    /// The logarithm of the probability of the labels, negated; infinite if the frames are too few. `scratch`
    /// can hold the states twice.
    pub fn loss(&self, scratch: &mut [f64]) -> f64 {
        let (mut before, mut now) = scratch[..2 * self.states()].split_at_mut(self.states());
        if self.frames == 0 {
            return if self.labels.is_empty() { 0.0 } else { f64::INFINITY };
        }
        self.first(now);
        for t in 1..self.frames {
            std::mem::swap(&mut before, &mut now);
            self.advance(t, before, now);
        }
        self.negated_total(now)
    }

    /// Calls `add(frame, class, share)` for each state of each frame, the last frame first: the share of the
    /// alignments, by their probability, that are in the state then. Returns false, and calls it for none, if
    /// there is no alignment. `scratch` can hold the states as often as there are frames, and twice more.
    pub fn shares(&self, scratch: &mut [f64], mut add: impl FnMut(usize, usize, f64)) -> bool {
        let (n, frames) = (self.states(), self.frames);
        let (ahead, rest) = scratch[..(frames + 2) * n].split_at_mut(frames * n);
        let (mut later, mut now) = rest.split_at_mut(n);
        if frames == 0 {
            return self.labels.is_empty();
        }
        self.first(&mut ahead[..n]);
        for t in 1..frames {
            let (before, from) = ahead.split_at_mut(t * n);
            self.advance(t, &before[(t - 1) * n..], &mut from[..n]);
        }
        let loss = self.negated_total(&ahead[(frames - 1) * n..]);
        if !loss.is_finite() {
            return false;
        }
        for t in (0..frames).rev() {
            std::mem::swap(&mut later, &mut now);
            for s in 0..n {
                // The sum over what follows, and the state's own probability.
                let follows = if t + 1 == frames {
                    if s + 2 >= n { 0.0 } else { f64::NEG_INFINITY }
                } else {
                    let next = |d: usize| later.get(s + d).copied().unwrap_or(f64::NEG_INFINITY);
                    let skip = if self.skips(s + 2) { next(2) } else { f64::NEG_INFINITY };
                    log_sum([next(0), next(1), skip])
                };
                let class = self.class(s);
                now[s] = follows + (self.log_probability)(t, class);
                let share = ahead[t * n + s] + follows + loss;
                if share != f64::NEG_INFINITY {
                    add(t, class, share.exp());
                }
            }
        }
        true
    }

    fn class(&self, state: usize) -> usize {
        if state.is_multiple_of(2) { self.blank } else { self.labels[state / 2] as usize }
    }

    /// True if a state may follow the one two before it: labels that differ need no blank between them.
    fn skips(&self, state: usize) -> bool {
        !state.is_multiple_of(2)
            && state >= 3
            && self.labels.get(state / 2).is_some_and(|l| *l != self.labels[state / 2 - 1])
    }

    /// States of the first frame.
    fn first(&self, now: &mut [f64]) {
        for (s, x) in now.iter_mut().enumerate() {
            *x = if s < 2 { (self.log_probability)(0, self.class(s)) } else { f64::NEG_INFINITY };
        }
    }

    /// States of frame `t` from those of the frame before.
    fn advance(&self, t: usize, before: &[f64], now: &mut [f64]) {
        for s in 0..self.states() {
            let from = |d: usize| if s >= d { before[s - d] } else { f64::NEG_INFINITY };
            let skip = if self.skips(s) { from(2) } else { f64::NEG_INFINITY };
            now[s] = log_sum([from(0), from(1), skip]) + (self.log_probability)(t, self.class(s));
        }
    }

    /// The sum over the last two states, in which an alignment may end, negated.
    fn negated_total(&self, last: &[f64]) -> f64 {
        let n = self.states();
        -log_sum([last[n - 1], if n > 1 { last[n - 2] } else { f64::NEG_INFINITY }, f64::NEG_INFINITY])
    }
}

/// States of a sequence of so many labels.
pub fn states(labels: usize) -> usize {
    2 * labels + 1
}

/// `ln Σ e^x`.
fn log_sum(x: [f64; 3]) -> f64 {
    let most = x[0].max(x[1]).max(x[2]);
    if most == f64::NEG_INFINITY {
        // NaN, which no maximum shows, stays.
        return x.iter().sum();
    }
    most + x.iter().map(|x| (x - most).exp()).sum::<f64>().ln()
}
