//! One step: its batches, the gradients of each, the update.

use super::Trainer;
use super::drift::fed_digest;
use super::event::Step;
use super::lanes::Seen as SeenLane;
use super::spans::Recorder;
use super::world::{Told, World};
use crate::config::{Flip, LaneLog, NonFinite};
use crate::data::{Batch, Loader, located};
use crate::error::{Error, Result};
use crate::scaler::{LossScale, ScalerAction, Seen};
use crate::session::{ProgramId, Underflow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The results of a step's batches beside their gradients.
#[derive(Default)]
struct Summed {
    /// Mean over the batches.
    loss: f64,
    samples: usize,
    underflow: Option<Underflow>,
    lanes: Vec<SeenLane>,
}

impl Trainer<'_> {
    /// One step; `None` if `stop` was set before its last batch: everything is then as it was before.
    pub(super) fn train_step(&mut self, loader: &mut Loader, stop: &AtomicBool) -> Result<Option<Step>> {
        let begin = Instant::now();
        let recorded = self.recorder.as_ref().filter(|r| r.on()).map(Recorder::now);
        let stops = if self.world.is_some() { self.agreed[0] } else { stop.load(Ordering::Relaxed) };
        if stops {
            return Ok(None);
        }
        let batches = self.config.batches();
        self.session.begin_step()?;
        let state = self.scaler[0];
        self.session.set_loss_scale(state.scale)?;
        self.session.set_fault(self.config.fault.is_some_and(|f| f.step == self.step))?;
        let before = self.running.iter().map(|t| self.session.read(t)).collect::<Result<Vec<_>>>()?;
        let summed = self.gradients(loader, stop);
        // Without all of its gradients the step never was: running statistics are as before it.
        if !matches!(summed, Ok(Some(_))) {
            let mut tensors = self.running.iter().zip(&before);
            let restored = tensors.try_for_each(|(tensor, bytes)| self.session.write(tensor, bytes));
            // The first error is the one that counts.
            summed.as_ref().map_or(Ok(()), |_| restored)?;
        }
        let Some(Summed { loss, samples, underflow, lanes }) = summed? else { return Ok(None) };
        let lr = self.schedule.rate(self.step) * self.course.factor;
        let program = self.session.update_program()?;
        // Where weights or moments are rounded stochastically.
        self.session.set_rng(self.config.seed, batches.last(self.step))?;
        let update = self.timed("update", Some(program), |t| t.session.update(lr))?;
        if let (Some(average), true) = (&mut self.average, update.applied) {
            average.add(&self.session)?;
        }
        let (next, action) =
            self.rule.next(&state, Seen { found_inf: !update.applied, largest: update.largest });
        self.skipping = if update.applied { None } else { self.skipping.or(Some(self.step)) };
        let halts = match self.rule.scale {
            LossScale::Static(_) => !update.applied && self.config.nonfinite == NonFinite::Stop,
            LossScale::Adaptive(_) => action == ScalerAction::Stop,
        };
        let culprit = match halts || (!update.applied && self.config.amp.trace_skips) {
            true => self.culprit()?,
            false => None,
        };
        if halts {
            return Err(self.not_finite(loss, update.norm, culprit)?);
        }
        if !update.applied {
            self.skipped = Some([self.skipped.map_or(state.scale, |s| s[0]), state.scale]);
        }
        self.scaler[0] = next;
        self.step += 1;
        if let (Some(start), Some(recorder)) = (recorded, &mut self.recorder) {
            recorder.step(self.step, start);
        }
        Ok(Some(Step {
            step: self.step,
            epoch: batches.step(self.step).start as f64 / self.sampler.per_epoch() as f64,
            loss,
            lr,
            norm: update.norm,
            largest: update.largest,
            applied: update.applied,
            culprit,
            underflow,
            scale: state.scale,
            samples,
            seconds: begin.elapsed().as_secs_f64(),
            lanes: lanes.iter().enumerate().map(|(i, lane)| lane.logged(i)).collect(),
        }))
    }

    /// The lanes that this process computes.
    pub(super) fn own_lanes(&self) -> std::ops::Range<usize> {
        let lanes = self.config.ranks.lanes();
        self.world.as_ref().map_or(0..lanes as usize, |w| w.lanes(lanes))
    }

    /// Says to the other ranks what this one does.
    pub(super) fn at(&self, doing: impl FnOnce(&Self) -> String) {
        if let Some(world) = &self.world {
            world.at(&doing(self));
        }
    }

    /// The gradients of a step, summed over its batches; `None` if `stop` was set before the last of them.
    fn gradients(&mut self, loader: &mut Loader, stop: &AtomicBool) -> Result<Option<Summed>> {
        let batches = self.config.batches();
        let counts = self.session.can_underflow() && self.config.amp.counts_underflow(self.step);
        let mut told = Told::default();
        let own = batches.of_lanes(self.step, self.own_lanes());
        let twice = self.twice();
        let rank = self.world.as_ref().map_or(0, World::rank);
        if let Some(twice) = twice.filter(|t| t.other == rank) {
            told.computed = Some(self.recompute(loader, twice.lane, counts)?);
        }
        let owned =
            twice.filter(|t| t.owner == rank).map(|t| batches.of_lanes(self.step, t.lane..t.lane + 1));
        let (mut fed, mut seen) = (0, SeenLane::default());
        let logged = if self.config.ranks.lanes() > 1 { self.config.ranks.lane_log } else { LaneLog::None };
        for number in own.clone() {
            if self.world.is_none() && number > own.start && stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let batch = self.timed("wait for data", None, |t| t.next(loader))?;
            let (program, loss) = self.batch(&batch, counts)?;
            told.losses.push(loss.to_bits());
            told.samples += batch.samples;
            if counts {
                let lost = self.session.underflow(program)?;
                told.underflow = Some(told.underflow.unwrap_or_default().and(lost));
            }
            if let Some(lane) = owned.as_ref().filter(|lane| lane.contains(&number)) {
                fed = fed_digest(fed, &batch);
                if number + 1 == lane.end {
                    self.flip(Flip::Lane)?;
                    let losses = &told.losses[(lane.start - own.start) as usize..];
                    told.computed = Some(self.computed(fed, losses)?);
                }
            }
            if logged != LaneLog::None {
                let types = self.session.inputs(program).map(|(_, ty)| ty);
                let inputs: Vec<_> = types.zip(batch.inputs.iter().map(Vec::as_slice)).collect();
                seen.add(batch.samples, &inputs, loss);
            }
            if logged != LaneLog::None && batches.ends_lane(number) {
                if logged == LaneLog::Norm {
                    seen.set_norm(self.session.squares()?, self.scaler[0].scale);
                }
                told.lanes.push(std::mem::take(&mut seen));
            }
            if self.config.ranks.lanes() > 1 && batches.ends_lane(number) {
                self.timed("sums of lanes", None, |t| t.session.end_lane())?;
            }
        }
        if let Some(world) = self.world.clone() {
            (told.stop, told.late) = (stop.load(Ordering::Relaxed), self.agreed[1]);
            self.witness(&mut told)?;
            let all = world.gather(&told)?;
            self.agree(&all)?;
            told = Told::together(all);
            self.agreed = [told.stop, told.late];
        }
        let count = batches.per_step() as f64;
        let loss = told.losses.iter().fold(0.0, |sum, loss| sum + f64::from_bits(*loss) / count);
        let Told { samples, underflow, lanes, .. } = told;
        Ok(Some(Summed { loss, samples, underflow, lanes }))
    }

    /// The gradients of a batch, added to those of the lane, and its loss.
    pub(super) fn batch(&mut self, batch: &Batch, counts: bool) -> Result<(ProgramId, f64)> {
        let shapes = self.train.shapes(batch.bucket, batch.samples);
        let program = match counts {
            true => self.counting_program(shapes)?,
            false => self.training_program(shapes)?,
        };
        self.session.set_rng(self.config.seed, batch.index)?;
        let ran = self.timed("gradients", Some(program), |t| t.session.gradients(program, &batch.inputs));
        if let Err(e) = ran {
            let samples = self.sampler.batch(batch.index).unwrap_or_default();
            return Err(located(e, &self.train, batch, &samples));
        }
        Ok((program, self.session.output(program, 0)?.to_f64()[0]))
    }

    /// The next batch.
    ///
    /// # Errors
    /// `Data`, `Io` or `Feed` if there is none.
    pub(super) fn next(&self, loader: &mut Loader) -> Result<Batch> {
        loader.next().unwrap_or_else(|| {
            self.train.data().unchanged()?;
            Err(Error::Feed("the data ended before the run did".into()))
        })
    }
}
