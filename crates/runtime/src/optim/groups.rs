//! Parameter groups: parameters that are trained with the same settings form a group, and a group has
//! buckets of its own.

use super::by_step::ByStep;
use super::{Optimizer, Rule, UpdateRule};
use crate::error::{Error, Result};
use headwater_core::TensorType;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Which parameters weight decay applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// Parameters of two and more dimensions: none for norms and biases.
    #[default]
    Matrices,
    /// All, as an optimizer without groups does.
    All,
    /// None.
    None,
}

/// Settings of the optimizer that differ for some parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// PyTorch name of the parameters, `*` standing for any characters: `encoder.*.bias`.
    pub parameters: String,
    /// Settings that differ, by the optimizer's names. A rate `lr` follows the schedule in proportion to the
    /// optimizer's own; `weight_decay` overrides the setting `decay`.
    #[serde(flatten)]
    pub settings: BTreeMap<String, serde_json::Value>,
}

/// Parameters by their names, with all settings of their optimizer. These may change from step to step, as
/// PyTorch's groups do: weight decay, momentum and the decay rates of SGD, Adam, AdamW and RMSprop are then
/// numbers of the step as the rate is, and a change of others plans the update anew.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedGroup {
    /// PyTorch names.
    pub parameters: Vec<String>,
    /// Settings.
    pub optimizer: Optimizer,
}

/// The distinct settings of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    base: Optimizer,
    groups: Vec<Group>,
    decay: Decay,
    /// Groups of parameters by name, where all are listed: then they are the distinct settings, equal ones
    /// too.
    listed: Option<HashMap<String, usize>>,
    distinct: Vec<ByStep>,
}

impl Groups {
    /// Settings for all parameters, and those of `groups` that differ; a parameter is of the first group that
    /// names it.
    ///
    /// # Errors
    /// `Config` for settings that the optimizer does not have or that are out of range.
    pub fn new(base: Optimizer, groups: Vec<Group>, decay: Decay) -> Result<Groups> {
        base.rule().check()?;
        for g in &groups {
            let o = base.with(g.settings.clone())?;
            o.rule().check()?;
            if base.rule().lr() == 0.0 && o.rule().lr() != 0.0 {
                let message =
                    format!("the group {} has a learning rate, the optimizer's own is 0", g.parameters);
                return Err(Error::config("lr", message));
            }
        }
        Ok(Groups { base, groups, decay, ..Groups::default() })
    }

    /// Groups that list all parameters.
    ///
    /// # Errors
    /// `Config` for settings out of range, and for a parameter in two groups.
    pub fn listed(groups: &[ListedGroup]) -> Result<Groups> {
        let (mut listed, mut distinct) = (HashMap::new(), Vec::new());
        for (i, g) in groups.iter().enumerate() {
            g.optimizer.rule().check()?;
            distinct.push(ByStep(g.optimizer.clone()));
            for name in &g.parameters {
                if listed.insert(name.clone(), i).is_some() {
                    return Err(Error::config("groups", format!("{name} is in two groups")));
                }
            }
        }
        Ok(Groups { listed: Some(listed), distinct, ..Groups::default() })
    }

    /// Gives the groups of [`Groups::listed`] other settings, in their order. True if the update has to be
    /// planned anew.
    ///
    /// # Errors
    /// `Config` for settings out of range, or that keep other moments than before.
    pub fn change(&mut self, settings: &[Optimizer]) -> Result<bool> {
        self.check_listed(settings.len())?;
        let settings: Vec<ByStep> = settings.iter().cloned().map(ByStep).collect();
        let mut same = true;
        for (old, new) in self.distinct.iter().zip(&settings) {
            new.0.rule().check()?;
            same &= old.plans_as(new);
            if (old.moments(), old.scalars()) != (new.moments(), new.scalars()) {
                let message = "the new settings keep other moments than those that the run began with";
                return Err(Error::config("optimizer", message));
            }
        }
        self.distinct = settings;
        Ok(!same)
    }

    /// Values of each group's scalars, for a learning rate and a step, counted from 1, of each of
    /// [`Groups::listed`].
    ///
    /// # Errors
    /// `Config` if they are not as many.
    pub fn listed_values(&self, steps: &[(f64, u64)]) -> Result<Vec<Vec<f64>>> {
        self.check_listed(steps.len())?;
        Ok(self.distinct.iter().zip(steps).map(|(o, &(lr, t))| o.values(t, lr)).collect())
    }

    fn check_listed(&self, given: usize) -> Result<()> {
        let listed = if self.listed.is_some() { self.distinct.len() } else { 0 };
        if listed == given {
            return Ok(());
        }
        Err(Error::config("groups", format!("there are {listed} listed groups, {given} were given")))
    }

    /// Refuses groups that no parameter belongs to: what they request would silently not happen.
    ///
    /// # Errors
    /// `Config`, naming the pattern and the parameters that there are.
    pub fn check_patterns<'a>(groups: &[Group], names: impl Iterator<Item = &'a str> + Clone) -> Result<()> {
        Groups::check_names("groups", groups.iter().map(|g| g.parameters.as_str()), names)
    }

    /// The same of any patterns; `setting` has them.
    ///
    /// # Errors
    /// As [`Groups::check_patterns`].
    pub(crate) fn check_names<'a, 'b>(
        setting: &'static str,
        mut patterns: impl Iterator<Item = &'b str>,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> Result<()> {
        const SHOWN: usize = 8;
        let idle = patterns.find(|pattern| !names.clone().any(|name| matches(pattern, name)));
        let Some(parameters) = idle else { return Ok(()) };
        let (all, shown) = (names.clone().count(), names.take(SHOWN).collect::<Vec<_>>().join(", "));
        let more = if all > SHOWN { format!(" and {} more", all - SHOWN) } else { String::new() };
        let message = format!("the pattern `{parameters}` matches no parameter; the model has {shown}{more}");
        Err(Error::config(setting, message))
    }

    /// The number of a parameter's group: those with equal settings share one.
    ///
    /// # Errors
    /// None after [`Groups::new`] has accepted the settings; `Config` for a parameter that no listed group
    /// names.
    pub fn of(&mut self, name: &str, ty: &TensorType) -> Result<usize> {
        if let Some(listed) = &self.listed {
            let unlisted = || Error::config("groups", format!("{name} is in no group"));
            return listed.get(name).copied().ok_or_else(unlisted);
        }
        let group = self.groups.iter().find(|g| matches(&g.parameters, name));
        let mut settings = group.map(|g| g.settings.clone()).unwrap_or_default();
        let decays = match self.decay {
            Decay::Matrices => ty.shape.rank() >= 2,
            Decay::All => true,
            Decay::None => false,
        };
        if !decays {
            settings.entry("weight_decay".into()).or_insert(0.0.into());
        }
        let optimizer = self.base.with(settings)?;
        let found = self.distinct.iter().position(|o| o.0 == optimizer);
        Ok(found.unwrap_or_else(|| {
            self.distinct.push(ByStep(optimizer));
            self.distinct.len() - 1
        }))
    }

    /// Number of groups met so far.
    #[allow(clippy::len_without_is_empty, reason = "a run has a group")]
    pub fn len(&self) -> usize {
        self.distinct.len()
    }

    /// The rule that a group is trained with.
    pub fn rule(&self, group: usize) -> &dyn Rule {
        self.distinct[group].0.rule()
    }

    /// The update of a group as it is planned.
    pub fn update_rule(&self, group: usize) -> &dyn UpdateRule {
        if self.listed.is_some() { &self.distinct[group] } else { self.rule(group) }
    }

    /// True if every optimizer of the run steps each element by itself ([`super::UpdateRule::by_element`]).
    pub fn by_element(&self) -> bool {
        if self.listed.is_some() {
            return self.distinct.iter().all(UpdateRule::by_element);
        }
        let others = self.groups.iter().map(|g| self.base.with(g.settings.clone()));
        self.base.rule().by_element() && others.into_iter().all(|o| o.is_ok_and(|o| o.rule().by_element()))
    }

    /// Values of the group's scalars at step `t`, where the schedule gives the optimizer's own rate as `lr`.
    pub fn values(&self, group: usize, t: u64, lr: f64) -> Vec<f64> {
        let (own, base) = (self.rule(group).lr(), self.base.rule().lr());
        let lr = if own == base { lr } else { lr * (own / base) };
        self.rule(group).values(t, lr)
    }
}

/// True if `name` fits `pattern`, in which `*` stands for any characters.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_core::DType;

    #[test]
    fn patterns() {
        for (pattern, name, fits) in [
            ("*", "", true),
            ("a.b", "a.b", true),
            ("a.b", "a.b.c", false),
            ("*.bias", "layer.0.bias", true),
            ("*.bias", "bias", false),
            ("a*a", "a", false),
            ("a*b*c", "a.b.b.c", true),
            ("a*b*c", "acb", false),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "ab", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn parameters_of_equal_settings_share_a_group() {
        let groups =
            r#"[{"parameters": "head.*", "lr": 0.01}, {"parameters": "*.scale", "weight_decay": 0.5}]"#;
        let groups = serde_json::from_str(groups).unwrap();
        let base = serde_json::from_str(r#"{"name": "adamw", "lr": 0.1, "weight_decay": 0.2}"#).unwrap();
        let mut g = Groups::new(base, groups, Decay::Matrices).unwrap();
        let mut of = |name: &str, rank: usize| {
            let group = g.of(name, &TensorType::new(DType::F32, vec![2; rank])).unwrap();
            (group, g.values(group, 1, 0.05)[0])
        };
        // The first scalar is 1 − lr · weight_decay, at half the peak rate.
        let near = |(_, x): (usize, f64), y: f64| assert!((x - y).abs() < f64::EPSILON, "{x} {y}");
        near(of("a.weight", 2), 1.0 - 0.05 * 0.2);
        near(of("a.bias", 1), 1.0);
        near(of("head.weight", 2), 1.0 - 0.005 * 0.2);
        near(of("head.bias", 1), 1.0);
        near(of("a.scale", 1), 1.0 - 0.05 * 0.5);
        assert_eq!(of("a.bias", 1).0, of("b.bias", 1).0);
        assert_ne!(of("a.bias", 1).0, of("head.bias", 1).0);
        let wrong = |text: &str| {
            let groups = serde_json::from_str(text).unwrap();
            assert!(Groups::new(Optimizer::default(), groups, Decay::All).is_err(), "{text}");
        };
        wrong(r#"[{"parameters": "*", "learning_rate": 0.1}]"#);
        wrong(r#"[{"parameters": "*", "lr": -0.1}]"#);
    }

    #[test]
    fn listed_groups_stay_apart_and_change_each_by_itself() {
        let group = |names: &[&str], json: &str| ListedGroup {
            parameters: names.iter().map(|n| n.to_string()).collect(),
            optimizer: serde_json::from_str(json).unwrap(),
        };
        let adamw = r#"{"name": "adamw", "weight_decay": 0.5}"#;
        let mut g = Groups::listed(&[group(&["a", "b"], adamw), group(&["c"], adamw)]).unwrap();
        let ty = TensorType::new(DType::F32, [2usize]);
        assert_eq!(["a", "b", "c"].map(|name| g.of(name, &ty).unwrap()), [0, 0, 1]);
        assert!(g.of("d", &ty).unwrap_err().to_string().contains("d is in no group"));
        let values = g.listed_values(&[(0.5, 1), (0.25, 3)]).unwrap();
        assert_eq!((values[0][0], values[1][0]), (0.75, 0.875), "1 − lr · weight_decay");
        assert!(g.listed_values(&[(0.5, 1)]).is_err());
        let other = |json: &str| serde_json::from_str::<Optimizer>(json).unwrap();
        let new = [other(adamw), other(r#"{"name": "adamw", "weight_decay": 0.0}"#)];
        g.change(&new).unwrap();
        assert_eq!(g.listed_values(&[(0.5, 1), (0.25, 3)]).unwrap()[1][0], 1.0);
        for json in [
            r#"{"name": "adamw", "amsgrad": true}"#,
            r#"{"name": "adam"}"#,
            r#"{"name": "adamw", "eps": -1}"#,
        ] {
            assert!(g.change(&[other(adamw), other(json)]).is_err(), "{json}");
        }
        assert!(Groups::listed(&[group(&["a", "a"], adamw)]).is_err());
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_refused() {
        let groups: Vec<Group> =
            serde_json::from_str(r#"[{"parameters": "f.0.*"}, {"parameters": "g.9.*"}]"#).unwrap();
        let names = |n: usize| (0..n).map(|i| ["f.0.weight", "f.0.bias", "g.0.weight"][i % 3]);
        let refused = Groups::check_patterns(&groups, names(3)).unwrap_err().to_string();
        assert!(
            refused.contains("`g.9.*` matches no parameter; the model has f.0.weight, f.0.bias"),
            "{refused}"
        );
        assert!(Groups::check_patterns(&groups, names(12)).unwrap_err().to_string().ends_with("and 4 more"));
        Groups::check_patterns(&groups[..1], names(3)).unwrap();
    }
}
