//! Judges whether a run in mixed precision is worse than one in full precision by more than chance: runs that
//! differ in rounding alone part ways as runs of different seeds do.
//!
//! Both final models are evaluated on the same held-out batches, and compared batch by batch. What makes a
//! batch hard is in both and falls out; what remains of the differences has a mean and a standard error.

use crate::runtime::score::Paired;
use crate::runtime::trainer::Evaluation;

/// Largest relative increase of the loss, and largest decrease of the accuracy, that is no cost in any case.
const LIMIT: f64 = 0.01;

/// Largest relative increase of the loss, and largest decrease of the accuracy, that batches may hide; and of
/// the loss, that an accuracy as good makes up for.
const MOST: f64 = 0.1;

/// Standard errors that a mean difference of batches must exceed.
const ERRORS: f64 = 3.0;

/// Standard errors of a difference of two shares of samples. That one does not know that the samples are the
/// same, and is too large by itself.
const ERRORS_OF_SHARES: f64 = 2.0;

/// Fewer batches than these have no standard error that says anything.
const FEWEST: usize = 8;

/// One of two runs that are compared.
pub(super) struct Side<'a> {
    /// Its evaluation on held-out samples.
    pub evaluation: Option<&'a Evaluation>,
    /// The losses of its steps.
    pub losses: &'a [f64],
    /// True for each step that has updated the parameters.
    pub applied: &'a [bool],
}

/// An answer of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Says {
    NoCost,
    /// It may be chance.
    Unclear,
    Cost,
}

/// A judgement with its sentence.
pub(super) struct Judged {
    pub says: Says,
    pub text: String,
}

/// Judges the second run by the first.
pub(super) fn judge(plain: &Side, mixed: &Side) -> Judged {
    let (Some(a), Some(b)) = (plain.evaluation, mixed.evaluation) else { return by_steps(plain, mixed) };
    let accuracy = accuracy(a, b);
    let (what, values) = ("held-out loss", (a.scores.loss, b.scores.loss));
    let lost = a.scores.accuracy.zip(b.scores.accuracy).map(|(a, b)| a - b);
    let excuse = match accuracy.as_ref().map(|j| j.says) {
        Some(Says::NoCost) if lost.is_some_and(|lost| lost <= LIMIT) => Excuse::Equal,
        Some(Says::NoCost) => Excuse::ByChance,
        _ => Excuse::None,
    };
    let loss = loss(what, values, a.by_batch.loss(&b.by_batch), excuse);
    match accuracy {
        // Accuracy first: it is what a classifier is for.
        Some(accuracy) if accuracy.says < loss.says => {
            Judged { text: format!("{}; {}", loss.text, accuracy.text), ..loss }
        }
        Some(accuracy) if values.1 - values.0 > LIMIT * values.0.abs() => {
            Judged { text: format!("{}; {}", accuracy.text, loss.text), ..accuracy }
        }
        Some(accuracy) => accuracy,
        None => loss,
    }
}

/// Without held-out samples, by the last steps of both runs, whose batches are the same. Steps that either
/// run has skipped are left out: their losses, infinite or NaN as they may be, have changed nothing.
fn by_steps(plain: &Side, mixed: &Side) -> Judged {
    let all = plain.losses.len().min(mixed.losses.len());
    let count = all.div_ceil(10).max(FEWEST).min(all);
    let tail = |side: &Side| -> Vec<(f64, bool)> {
        let applied = |i: usize| side.applied.get(i).copied().unwrap_or(true);
        let n = side.losses.len();
        (n - count..n).map(|i| (side.losses[i], applied(i))).collect()
    };
    let both = tail(plain).into_iter().zip(tail(mixed));
    let pairs: Vec<_> = both.filter(|(a, b)| a.1 && b.1).map(|((a, _), (b, _))| (a, b, 1.0)).collect();
    let skipped = count - pairs.len();
    if pairs.is_empty() && skipped > 0 {
        return Judged {
            says: Says::Cost,
            text: format!("it COSTS all: the last {count} steps were skipped"),
        };
    }
    let mean = |of: &dyn Fn(&(f64, f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / pairs.len() as f64;
    let what = match skipped {
        0 => format!("mean loss of the last {count} steps"),
        n => format!("mean loss of the last {count} steps, without {n} that were skipped,"),
    };
    loss(&what, (mean(&|p| p.0), mean(&|p| p.1)), Paired::new(&pairs), Excuse::None)
}

/// An accuracy that makes up for some loss.
#[derive(Clone, Copy, PartialEq)]
enum Excuse {
    /// None was measured, or it is a cost itself.
    None,
    /// Lower by no more than chance: it decides where nothing can be said of the loss.
    ByChance,
    /// Lower by at most [`LIMIT`].
    Equal,
}

/// Judges a loss.
fn loss(what: &str, (a, b): (f64, f64), paired: Option<Paired>, excuse: Excuse) -> Judged {
    let (difference, count) = (b - a, paired.map_or(0, |p| p.pairs));
    let values = format!("{what} {b:.4}, {a:.4} in full precision");
    let judged = |says, word: &str, why: String| Judged { says, text: format!("{word}: {values}; {why}") };
    let (limit, most) = (LIMIT * a.abs(), MOST * a.abs());
    if difference <= limit {
        return judged(Says::NoCost, "no cost", format!("{} is allowed", 1.0 + LIMIT));
    }
    // A NaN is no loss to be within anything.
    if !difference.is_finite() {
        return judged(Says::Cost, "it COSTS loss", "not finite".into());
    }
    let Some(error) = paired.and_then(|p| p.error).filter(|_| count >= FEWEST) else {
        if excuse != Excuse::None && difference <= most {
            return judged(
                Says::NoCost,
                "no cost of accuracy, though of loss",
                format!("over {count} batches"),
            );
        }
        let why = format!(
            "{count} batches are too few to tell from chance: hold out more samples, or take a smaller batch, for at least {FEWEST}"
        );
        return judged(Says::Unclear, "more loss, of which nothing follows yet", why);
    };
    let within = difference <= ERRORS * error;
    let chance = format!("over {count} batches the difference is {difference:.4} ± {error:.4}");
    match (within, difference <= most) {
        (true, true) => judged(Says::NoCost, "no cost beyond chance", chance),
        (true, false) => {
            let word = "more loss, though batches differ by so much that it may be chance";
            judged(Says::Unclear, word, format!("{chance}: hold out more samples"))
        }
        (false, true) if excuse == Excuse::Equal => {
            judged(Says::NoCost, "no cost of accuracy, though of loss", chance)
        }
        (false, _) => {
            judged(Says::Cost, "it COSTS loss", format!("{chance}, and {} is allowed", 1.0 + LIMIT))
        }
    }
}

/// Judges shares of samples, tokens or pixels that are right; `None` where none were counted.
fn accuracy(a: &Evaluation, b: &Evaluation) -> Option<Judged> {
    let (first, second) = (a.scores.accuracy?, b.scores.accuracy?);
    let paired = a.by_batch.accuracy(&b.by_batch);
    let error = paired.and_then(|p| p.error.filter(|_| p.pairs >= FEWEST));
    let single = a.scores.counted == Some(a.scores.samples as u64);
    let lost = first - second;
    let unit = if single { 1.0 / a.scores.samples as f64 } else { 0.0 };
    let by_batches = error.map(|error| (ERRORS * error + unit).max(LIMIT));
    // Tokens and pixels of one sample are not independent, so that their number says nothing of chance.
    let by_samples = single.then(|| {
        let variance = first * (1.0 - first) + second * (1.0 - second);
        ERRORS_OF_SHARES * (variance / a.scores.samples as f64).sqrt() + unit
    });
    let count = a.scores.counted.unwrap_or(a.scores.samples as u64);
    let values = format!(
        "{second:.4} on {count} held-out {}, {first:.4} in full precision",
        if single { "samples" } else { "labels" }
    );
    let (says, word, why) = match by_batches.into_iter().chain(by_samples).reduce(f64::min) {
        _ if lost <= 0.0 => (Says::NoCost, "no loss of accuracy", String::new()),
        Some(chance) => {
            let why = format!("; a difference of up to {chance:.4} is chance");
            match (lost > chance, lost > MOST) {
                (true, _) => (Says::Cost, "it COSTS accuracy", why),
                (false, true) => {
                    let word = "less accuracy, though so few are held out that it may be chance";
                    (Says::Unclear, word, why)
                }
                (false, false) => (Says::NoCost, "no loss of accuracy beyond chance", why),
            }
        }
        None if lost <= LIMIT => (Says::NoCost, "no loss of accuracy", format!("; {LIMIT} is allowed")),
        None => (
            Says::Unclear,
            "less accuracy, of which nothing follows yet",
            format!("; fewer than {FEWEST} batches"),
        ),
    };
    Some(Judged { says, text: format!("{word}: {values}{why}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::score::{Batch, ByBatch, Scores};

    /// An evaluation of batches of 10 samples: of each the loss and the labels that are right.
    fn of(batches: &[(f64, u64)], counted: u64) -> Evaluation {
        let each = |&(loss, right): &(f64, u64)| Batch { samples: 10, loss, counted, right };
        let by_batch = ByBatch::new(batches.iter().map(each).collect());
        let n = batches.len();
        let mean = batches.iter().map(|b| b.0).sum::<f64>() / n as f64;
        let right = batches.iter().map(|b| b.1).sum::<u64>();
        let all = counted * n as u64;
        let scores = Scores {
            samples: 10 * n,
            loss: mean,
            accuracy: (counted > 0).then(|| right as f64 / all as f64),
            counted: (counted > 0).then_some(all),
            ..Scores::default()
        };
        Evaluation { step: 9, scores, left_out: 0, seconds: 0.0, by_batch }
    }

    fn judged(a: &Evaluation, b: &Evaluation) -> Judged {
        let side = |e| Side { evaluation: Some(e), losses: &[], applied: &[] };
        judge(&side(a), &side(b))
    }

    /// Losses of batches that differ by far more than the runs do.
    const HARD: [f64; 8] = [0.6, 1.4, 0.7, 1.3, 0.8, 1.2, 0.9, 1.1];

    fn losses(change: impl Fn(usize, f64) -> f64) -> Evaluation {
        let each: Vec<_> = HARD.iter().enumerate().map(|(i, l)| (change(i, *l), 0)).collect();
        of(&each, 0)
    }

    #[test]
    fn one_and_a_half_is_no_one_however_batches_differ() {
        let plain = losses(|_, l| l);
        for mixed in
            [losses(|_, l| 1.5 * l), losses(|_, l| l + 0.5), losses(|i, l| l + 0.3 + 0.05 * i as f64)]
        {
            let found = judged(&plain, &mixed);
            assert!(
                found.says == Says::Cost && found.text.starts_with("it COSTS loss: held-out loss 1."),
                "{}",
                found.text
            );
        }
        // One batch makes all of the difference: never passed.
        let found = judged(&plain, &losses(|i, l| if i == 0 { l + 4.0 } else { l }));
        assert_eq!(found.says, Says::Unclear, "{}", found.text);
        assert!(found.text.contains("hold out more samples"), "{}", found.text);
        // Nor where all labels are as right as before.
        let (a, b): (Vec<_>, Vec<_>) = HARD.iter().map(|l| ((*l, 9), (l * 1.5, 9))).unzip();
        assert_eq!(judged(&of(&a, 10), &of(&b, 10)).says, Says::Cost);
        assert_eq!(judged(&plain, &losses(|_, _| f64::NAN)).says, Says::Cost);
        assert_eq!(judged(&plain, &losses(|i, l| if i == 3 { f64::INFINITY } else { l })).says, Says::Cost);
    }

    #[test]
    fn a_loss_is_judged_on_both_sides_of_both_limits() {
        let plain = losses(|_, l| l);
        let says = |change: &dyn Fn(usize, f64) -> f64| judged(&plain, &losses(change)).says;
        // Within 1 %, even if every batch shows it; better is no cost.
        assert_eq!(says(&|_, l| 1.009 * l), Says::NoCost);
        assert_eq!(says(&|_, l| 0.5 * l), Says::NoCost);
        // 2 %: in each batch; and in the mean alone, of batches that part by 20 % either way.
        assert_eq!(says(&|_, l| 1.02 * l), Says::Cost);
        let text = judged(&plain, &losses(|i, l| l + 0.02 + if i % 2 == 0 { 0.2 } else { -0.2 })).text;
        assert!(
            text.starts_with("no cost beyond chance")
                && text.contains("over 8 batches the difference is 0.0200 ± 0.07"),
            "{text}"
        );
        // On both sides of three standard errors: ±d has an error of d / √7.
        let d = 0.05 * 7f64.sqrt() / 3.0;
        let around = |mean: f64| move |i: usize, l: f64| l + mean + if i.is_multiple_of(2) { d } else { -d };
        assert_eq!((says(&around(0.049)), says(&around(0.051))), (Says::NoCost, Says::Cost));
    }

    #[test]
    fn few_batches_say_nothing() {
        let (few, more): (Vec<_>, Vec<_>) = HARD[..7].iter().map(|l| ((*l, 0), (1.03 * l, 0))).unzip();
        let found = judged(&of(&few, 0), &of(&more, 0));
        assert!(
            found.says == Says::Unclear && found.text.contains("7 batches are too few"),
            "{}",
            found.text
        );
        let same: Vec<_> = few.iter().map(|b| (1.005 * b.0, 0)).collect();
        assert_eq!(judged(&of(&few, 0), &of(&same, 0)).says, Says::NoCost);
        // Some loss passes, and is stated, if as many samples are right; not any loss.
        let right = |by: f64| HARD[..7].iter().map(|l| (by * l, 9)).collect::<Vec<_>>();
        let found = judged(&of(&right(1.0), 10), &of(&right(1.03), 10));
        assert!(found.says == Says::NoCost && found.text.contains("though of loss"), "{}", found.text);
        assert_eq!(judged(&of(&right(1.0), 10), &of(&right(1.5), 10)).says, Says::Unclear);
        // 63 of 70 right: 60 may be chance, and decide as the loss cannot; 52 are a cost by two standard
        // errors.
        let rights =
            |rights: [u64; 7]| HARD.iter().zip(rights).map(|(l, r)| (1.03 * l, r)).collect::<Vec<_>>();
        let (some, many) = (rights([9, 9, 9, 9, 8, 8, 8]), rights([8, 8, 8, 7, 7, 7, 7]));
        assert_eq!(judged(&of(&right(1.0), 10), &of(&some, 10)).says, Says::NoCost);
        assert_eq!(judged(&of(&right(1.0), 10), &of(&many, 10)).says, Says::Cost);
        // An evaluation that was read again has no batches.
        let read = Evaluation { by_batch: ByBatch::default(), ..of(&more, 0) };
        assert_eq!(judged(&of(&few, 0), &read).says, Says::Unclear);
    }

    #[test]
    fn accuracy_is_judged_by_batches_too() {
        let run = |rights: [u64; 8], loss: f64| of(&rights.map(|r| (loss, r)), 10);
        let says = |a, b| judged(&run(a, 1.0), &run(b, 1.0)).says;
        assert_eq!(says([9; 8], [8; 8]), Says::Cost, "every batch loses one");
        assert_eq!(says([9; 8], [9, 9, 9, 9, 9, 9, 9, 8]), Says::NoCost, "one sample");
        assert_eq!(
            says([9, 5, 9, 5, 9, 5, 9, 5], [5, 9, 5, 9, 5, 9, 5, 8]),
            Says::NoCost,
            "batches part either way"
        );
        assert_eq!(says([5; 8], [9; 8]), Says::NoCost, "better is no cost");
        let cost = judged(&run([9; 8], 1.0), &run([8; 8], 1.0)).text;
        assert!(
            cost.starts_with("it COSTS accuracy: 0.8000 on 80 held-out samples, 0.9000 in full"),
            "{cost}"
        );
        // Half of the ten samples that were right, which chance may do: nothing follows.
        let few = judged(&of(&[(1.0, 6)], 10), &of(&[(1.0, 3)], 10));
        assert!(few.says == Says::Unclear && few.text.contains("may be chance"), "{}", few.text);
        // 7 % fewer right is within chance where batches part, and makes up for no loss that is not.
        let (before, after) = ([9, 5, 9, 5, 9, 5, 9, 5], [4, 8, 4, 9, 4, 8, 4, 9]);
        assert_eq!(says(before, after), Says::NoCost);
        assert_eq!(judged(&run(before, 1.0), &run(after, 1.05)).says, Says::Cost);
        // A loss 2 % higher in each batch, with as many right: said, and no cost. Not so with fewer right.
        let text = judged(&run([9; 8], 1.0), &run([9; 8], 1.02));
        assert_eq!(text.says, Says::NoCost);
        let worse = judged(&run([9; 8], 1.0), &run([8; 8], 1.02));
        assert_eq!(worse.says, Says::Cost);
    }

    #[test]
    fn pixels_as_right_excuse_some_loss() {
        // 640 pixels of 10 images a batch: their number says nothing of chance, the batches do.
        let run = |rights: [u64; 8], loss: f64| of(&rights.map(|r| (loss, r)), 640);
        let better = judged(&run([630; 8], 1.0), &run([634; 8], 1.05));
        assert_eq!(better.says, Says::NoCost, "{}", better.text);
        let worse = judged(&run([630; 8], 1.0), &run([600; 8], 1.05));
        assert_eq!(worse.says, Says::Cost, "{}", worse.text);
        assert_eq!(judged(&run([630; 8], 1.0), &run([634; 8], 1.5)).says, Says::Cost, "not any loss");
    }

    #[test]
    fn without_held_out_samples_the_last_steps_are_compared() {
        let judged = |a: &[f64], b: &[f64]| {
            let side = |losses| Side { evaluation: None, losses, applied: &[] };
            judge(&side(a), &side(b))
        };
        let plain: Vec<f64> = (0..200).map(|i| 2.0 + 0.3 * f64::from(i % 7)).collect();
        let higher = |by: f64| plain.iter().map(|l| l * by).collect::<Vec<_>>();
        assert_eq!(judged(&plain, &higher(1.005)).says, Says::NoCost);
        let cost = judged(&plain, &higher(1.03));
        assert!(
            cost.says == Says::Cost && cost.text.contains("mean loss of the last 20 steps"),
            "{}",
            cost.text
        );
        assert_eq!(judged(&plain[..40], &higher(1.03)[..40]).says, Says::Cost, "8 of 40 steps");
        assert_eq!(judged(&plain[..5], &higher(1.03)[..5]).says, Says::Unclear);
        assert_eq!(judged(&plain, &higher(f64::NAN)).says, Says::Cost);
    }

    #[test]
    fn a_step_that_was_skipped_decides_nothing() {
        let plain: Vec<f64> = (0..200).map(|i| 2.0 + 0.3 * f64::from(i % 7)).collect();
        let judged = |by: f64, nans: &[usize], skipped: &[usize]| {
            let mut mixed: Vec<f64> = plain.iter().map(|l| l * by).collect();
            let mut applied = vec![true; 200];
            nans.iter().for_each(|&i| mixed[i] = f64::NAN);
            skipped.iter().for_each(|&i| applied[i] = false);
            let full = Side { evaluation: None, losses: &plain, applied: &[] };
            judge(&full, &Side { evaluation: None, losses: &mixed, applied: &applied })
        };
        let one = judged(1.0, &[190], &[190]);
        assert_eq!(one.says, Says::NoCost, "{}", one.text);
        assert!(one.text.contains("the last 20 steps, without 1 that were skipped, "), "{}", one.text);
        assert_eq!(judged(1.03, &[190, 195], &[190, 195]).says, Says::Cost, "the other steps decide");
        // One that was applied is the run's own.
        assert_eq!(judged(1.0, &[190], &[]).says, Says::Cost);
        let last: Vec<usize> = (180..200).collect();
        let none = judged(1.0, &last, &last);
        assert!(
            none.says == Says::Cost && none.text.contains("the last 20 steps were skipped"),
            "{}",
            none.text
        );
    }
}
