//! Updates of the parameters from their gradients.

use super::{Session, planned};
use crate::error::{Error, Result};
use crate::optim::Optimizer;
use headwater_core::pass::split_wide::scalar_value;
use headwater_core::train::{StateKey, update};

/// The outcome of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Global L2 norm of the gradients (mean over the micro-batches), before clipping.
    pub norm: f64,
    /// Largest magnitude of an element of it.
    pub largest: f64,
    /// False if the gradients were not finite: nothing was changed.
    pub applied: bool,
}

impl Session {
    /// Updates the parameters from the gradients, with learning rate `lr`.
    ///
    /// # Errors
    /// `Model` in a session for evaluation; what the device reports.
    pub fn update(&mut self, lr: f64) -> Result<Update> {
        let t = self.training()?;
        let step = t.applied + 1;
        let values = (0..t.groups.len()).map(|g| t.groups.values(g, step, lr)).collect();
        self.update_by(values)
    }

    /// The same with the learning rate of each of [`Training::listed`](super::Training::listed), and the
    /// number of the step that its parameters make, counted from 1.
    ///
    /// # Errors
    /// As [`Session::update`]; `Config` if there are not as many groups.
    pub fn update_groups(&mut self, steps: &[(f64, u64)]) -> Result<Update> {
        self.update_by(self.training()?.groups.listed_values(steps)?)
    }

    /// Changes the settings of [`Training::listed`](super::Training::listed), in their order, from the next
    /// update on; it is planned anew for those that are constants of the plan
    /// ([`ListedGroup`](crate::optim::ListedGroup)). The learning rates in them are of no account.
    ///
    /// # Errors
    /// `Config` for settings out of range, or that keep other moments.
    pub fn set_groups(&mut self, settings: &[Optimizer]) -> Result<()> {
        let t = self.training()?;
        let mut groups = t.groups.clone();
        let planned = groups.change(settings)?;
        if planned {
            let target = self.device.target();
            let bound = planned::update(&self.layout, &groups, &t.settings, self.state.layout(), target)?;
            let (at, program) = (t.update.0, self.loaded(bound)?);
            self.programs[at] = program;
        }
        if let Some(t) = &mut self.training {
            t.groups = groups;
            t.update_plans += u64::from(planned);
        }
        Ok(())
    }

    /// Updates with the values of each group's scalars.
    fn update_by(&mut self, values: Vec<Vec<f64>>) -> Result<Update> {
        let t = self.training()?;
        let (lanes, own, over) = (t.settings.lanes as usize, t.settings.own_lanes(), t.lanes);
        if lanes > 1 && over != own.end {
            let (over, own) = (over - own.start, own.len());
            return Err(Error::Model(format!(
                "{over} of {own} lanes are over: the step has not all gradients"
            )));
        }
        let (program, unscale) = (t.update, t.unscale());
        let mut numbers = Vec::new();
        for (i, bucket) in self.layout.buckets.iter().enumerate() {
            let scalars = t.groups.update_rule(bucket.group).scalars().into_iter();
            for (name, &x) in scalars.zip(&values[bucket.group]) {
                numbers.push((self.state.slot(&StateKey::Scalar(i, name.into()))?.clone(), x));
            }
        }
        numbers.into_iter().try_for_each(|(slot, x)| self.state.write_number(&slot, x))?;
        self.run(program)?;
        let number = |i: usize| Ok::<f64, Error>(scalar_value(&self.output(program, i)?));
        let update = Update {
            norm: number(update::NORM)?,
            largest: number(update::LARGEST)? * unscale,
            applied: number(update::APPLIED)? != 0.0,
        };
        if let Some(t) = &mut self.training {
            t.applied += update.applied as u64;
        }
        Ok(update)
    }
}
