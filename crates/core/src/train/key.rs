//! Names of what a training step keeps, typed.

use crate::graph::{Input, InputRole};
use crate::pass::instrument::FAULT;
use std::fmt;

/// A tensor that outlives a step, as graphs name it: an input whose role is not `User`. Its text form is the
/// name of the input.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum StateKey {
    /// A weight, frozen ones included.
    Parameter(String),
    /// A buffer of the model.
    Buffer(String),
    /// A constant of the model.
    Constant(String),
    /// The key of random numbers.
    Rng,
    /// A factor of the gradients before all else, 1 / (micro-batches · loss scale); wide.
    Unscale,
    /// A factor of the loss before it is differentiated.
    LossScale,
    /// The switch of a fault on purpose.
    Fault,
    /// A number of the step for a bucket, such as its learning rate.
    Scalar(usize, String),
    /// The parameters of a bucket, in low precision if they have masters.
    Parameters(usize),
    /// One number for each element of a bucket, or for each of its parameters.
    Bucket(usize, Kept),
    /// A parameter's own part of a bucket.
    Part(String, Kept),
}

/// Contents of a bucket beside its parameters.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Kept {
    /// f32 masters of low-precision parameters, which the optimizer steps, or what they have beyond these.
    Masters,
    /// Gradients; of a table whose gradient is sparse, those of the rows that were read.
    Gradients,
    /// Numbers of these rows, ascending, with -1 after the last.
    GradientRows,
    /// Gradients of earlier lanes, added up, that wait for those of later ones: the sum of this number.
    Pending(usize),
    /// A moment of the optimizer, by PyTorch's name.
    Moment(String),
    /// Scales of a moment that is kept in codes ([`MomentForm::Int8`](super::MomentForm)), by PyTorch's name.
    Scales(String),
}

impl StateKey {
    /// The key of a graph input; `None` for what the user feeds, and for state that no key names.
    pub fn of(input: &Input) -> Option<StateKey> {
        let name = || input.name.clone();
        match input.role {
            InputRole::Parameter { .. } => Some(StateKey::Parameter(name())),
            InputRole::Buffer { .. } => Some(StateKey::Buffer(name())),
            InputRole::Constant => Some(StateKey::Constant(name())),
            InputRole::Rng => Some(StateKey::Rng),
            InputRole::State => StateKey::parse(&input.name),
            InputRole::User => None,
        }
    }

    /// The key of an input of role `State`, by its name.
    fn parse(name: &str) -> Option<StateKey> {
        match name {
            UNSCALE => return Some(StateKey::Unscale),
            LOSS_SCALE => return Some(StateKey::LossScale),
            FAULT => return Some(StateKey::Fault),
            _ => {}
        }
        for (prefix, kept) in [(GRADIENT, Kept::Gradients), (GRADIENT_ROWS, Kept::GradientRows)] {
            if let Some(parameter) = name.strip_prefix(prefix) {
                return Some(StateKey::Part(parameter.into(), kept));
            }
        }
        let (kind, rest) = name.split_once('/')?;
        if kind == "scalar" {
            let (bucket, scalar) = rest.split_once('/')?;
            return Some(StateKey::Scalar(bucket.parse().ok()?, scalar.into()));
        }
        let bucket = rest.parse().ok()?;
        Some(match kind {
            "parameters" => StateKey::Parameters(bucket),
            "masters" => StateKey::Bucket(bucket, Kept::Masters),
            "gradients" => StateKey::Bucket(bucket, Kept::Gradients),
            "gradient_rows" => StateKey::Bucket(bucket, Kept::GradientRows),
            kind => match kind.strip_prefix(SCALES) {
                Some(moment) => StateKey::Bucket(bucket, Kept::Scales(moment.into())),
                None => StateKey::Bucket(
                    bucket,
                    match kind.strip_prefix(PENDING) {
                        Some(number) => Kept::Pending(number.parse().ok()?),
                        None => Kept::Moment(kind.into()),
                    },
                ),
            },
        })
    }

    /// A moment of a parameter.
    pub fn moment(moment: &str, parameter: &str) -> StateKey {
        StateKey::Part(parameter.into(), Kept::Moment(moment.into()))
    }

    /// Scales of a moment of a parameter.
    pub fn scales(moment: &str, parameter: &str) -> StateKey {
        StateKey::Part(parameter.into(), Kept::Scales(moment.into()))
    }

    /// The gradient of a parameter.
    pub fn gradient(parameter: &str) -> StateKey {
        StateKey::Part(parameter.into(), Kept::Gradients)
    }

    /// Numbers of the rows of a table that its sparse gradient has.
    pub fn gradient_rows(parameter: &str) -> StateKey {
        StateKey::Part(parameter.into(), Kept::GradientRows)
    }

    /// The master of a parameter.
    pub fn master(parameter: &str) -> StateKey {
        StateKey::Part(parameter.into(), Kept::Masters)
    }
}

const UNSCALE: &str = "unscale";
const LOSS_SCALE: &str = "loss_scale";
const SCALES: &str = "scales.";
const PENDING: &str = "pending.";
const GRADIENT: &str = "gradient.";
const GRADIENT_ROWS: &str = "gradient_rows.";

impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateKey::Parameter(name) | StateKey::Buffer(name) | StateKey::Constant(name) => {
                f.write_str(name)
            }
            StateKey::Rng => f.write_str("rng"),
            StateKey::Unscale => f.write_str(UNSCALE),
            StateKey::LossScale => f.write_str(LOSS_SCALE),
            StateKey::Fault => f.write_str(FAULT),
            StateKey::Scalar(bucket, name) => write!(f, "scalar/{bucket}/{name}"),
            StateKey::Parameters(bucket) => write!(f, "parameters/{bucket}"),
            StateKey::Bucket(bucket, Kept::Masters) => write!(f, "masters/{bucket}"),
            StateKey::Bucket(bucket, Kept::Gradients) => write!(f, "gradients/{bucket}"),
            StateKey::Bucket(bucket, Kept::GradientRows) => write!(f, "gradient_rows/{bucket}"),
            StateKey::Bucket(bucket, Kept::Pending(number)) => write!(f, "{PENDING}{number}/{bucket}"),
            StateKey::Bucket(bucket, Kept::Moment(moment)) => write!(f, "{moment}/{bucket}"),
            StateKey::Bucket(bucket, Kept::Scales(moment)) => write!(f, "{SCALES}{moment}/{bucket}"),
            StateKey::Part(parameter, Kept::Masters) => write!(f, "master.{parameter}"),
            StateKey::Part(parameter, Kept::Gradients) => write!(f, "{GRADIENT}{parameter}"),
            StateKey::Part(parameter, Kept::GradientRows) => write!(f, "{GRADIENT_ROWS}{parameter}"),
            StateKey::Part(parameter, Kept::Pending(number)) => write!(f, "{PENDING}{number}.{parameter}"),
            StateKey::Part(parameter, Kept::Moment(moment)) => write!(f, "{moment}.{parameter}"),
            StateKey::Part(parameter, Kept::Scales(moment)) => write!(f, "{SCALES}{moment}.{parameter}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ValueId;

    #[test]
    fn names_of_inputs_read_back_as_their_keys() {
        let moment = Kept::Moment("exp_avg".into());
        for key in [
            StateKey::Unscale,
            StateKey::LossScale,
            StateKey::Fault,
            StateKey::Scalar(3, "lr".into()),
            StateKey::Parameters(0),
            StateKey::Bucket(1, Kept::Masters),
            StateKey::Bucket(12, Kept::Gradients),
            StateKey::Bucket(2, moment),
            StateKey::Bucket(2, Kept::Scales("exp_avg".into())),
            StateKey::Bucket(0, Kept::GradientRows),
            StateKey::Bucket(3, Kept::Pending(1)),
            StateKey::gradient("layers.0.weight"),
            StateKey::gradient_rows("table.weight"),
        ] {
            let input = Input { value: ValueId(0), name: key.to_string(), role: InputRole::State };
            assert_eq!(StateKey::of(&input), Some(key));
        }
        for name in ["", "lr", "exp_avg/", "scalar/x/lr", "scalar/1"] {
            let input = Input { value: ValueId(0), name: name.into(), role: InputRole::State };
            assert_eq!(StateKey::of(&input), None, "{name}");
        }
    }
}
