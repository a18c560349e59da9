//! LARC: settings, and the step of the optimizer inside.

use super::table::{NOT_NEGATIVE, POSITIVE, settings};
use super::{Moment, Optimizer, Rates, Rule, SettingTable, Sgd, Span, UpdateRule};
use crate::error::{Error, Result};
use headwater_core::ops::update::larc::{LARC, LARC_RATE};
use headwater_core::{Attrs, Builder, DType, TensorType, ValueId};

settings! {
    /// Layer-wise adaptive rates around another optimizer, with the defaults of apex's LARC. Weight decay is the
    /// other's setting; it is added to the gradient before that is scaled, whatever the other does with it alone.
    Larc {
        /// Share of a parameter's norm that one step may move it, at a rate of 1.
        trust_coefficient: f64 = 0.02, NOT_NEGATIVE;
        /// Never moves further than the optimizer's own rate would (LARC); otherwise the rates are multiplied
        /// (LARS).
        clip: bool = true;
        /// Added to the norm of the gradient.
        eps: f64 = 1e-8, POSITIVE;
        /// The optimizer that makes the step.
        optimizer: Box<Optimizer> = Box::new(Optimizer::Sgd(Sgd::default()));
    }
}

impl Larc {
    /// The optimizer inside, which leaves weight decay to LARC.
    fn inner(&self) -> Optimizer {
        let none = [("weight_decay".to_string(), 0.0.into())];
        self.optimizer.with(none).expect("every optimizer has a weight decay")
    }
}

impl UpdateRule for Larc {
    fn moments(&self) -> Vec<Option<Moment>> {
        self.optimizer.rule().moments()
    }

    fn scalars(&self) -> Vec<&'static str> {
        let mut all = vec!["larc_lr"];
        all.extend(self.optimizer.rule().scalars());
        all
    }

    fn step(&self, b: &mut Builder, span: &Span) -> headwater_core::Result<Vec<ValueId>> {
        let (p, g) = (span.squares_of(b, span.param)?, span.gradient_squares(b)?);
        let lr = span.double(b, span.scalars[0])?;
        let attrs = Attrs::new()
            .with("trust_coefficient", self.trust_coefficient)
            .with("eps", self.eps)
            .with("weight_decay", self.weight_decay())
            .with("clip", self.clip);
        let rates = b.apply(&LARC_RATE, &[p, g, span.scale, lr].map(Some), attrs)?;
        let (rate, decay) = (span.spread(b, rates[0])?, span.spread(b, rates[1])?);
        let scale = span.wide_scale(b)?;
        let inputs = [span.gradient, span.param, scale, rate, decay].map(Some);
        let gradient = b.apply(&LARC, &inputs, span.clipped(Attrs::new()))?[0];
        let one = TensorType::new(DType::F64, [0usize; 0]);
        let inner = Span {
            gradient,
            scale: b.full(&one, 1.0)?,
            scalars: span.scalars[1..].to_vec(),
            clip_value: None,
            ..span.clone()
        };
        self.inner().rule().step(b, &inner)
    }
}

impl Rule for Larc {
    fn values(&self, t: u64, lr: f64) -> Vec<f64> {
        let mut all = vec![lr];
        all.extend(self.inner().rule().values(t, lr));
        all
    }

    fn check(&self) -> Result<()> {
        self.in_range()?;
        if serde_json::to_value(&self.optimizer).is_ok_and(|o| o["maximize"] == true) {
            return Err(Error::config("maximize", "cannot be combined with LARC"));
        }
        match *self.optimizer {
            // Its other norms would be those of the gradient as it was.
            Optimizer::Larc(_) | Optimizer::NovoGrad(_) | Optimizer::BertAdam(_) => Err(Error::config(
                "optimizer",
                "LARC is for optimizers without norms of gradients of their own",
            )),
            _ => self.optimizer.rule().check(),
        }
    }
}

impl Rates for Larc {
    fn lr(&self) -> f64 {
        self.optimizer.rule().lr()
    }

    fn weight_decay(&self) -> f64 {
        self.optimizer.rule().weight_decay()
    }
}
