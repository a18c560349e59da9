//! Finds operators by ATen target or by name. Users add their own before importing.

use super::schema::Schema;
use super::{FOLDERS, OpDef};
use crate::diagnostic::{Code, Error, Result};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

/// The operator that an exported call resolves to.
#[derive(Clone, Copy, Debug)]
pub struct Resolved<'a> {
    /// The operator.
    pub op: &'static OpDef,
    /// The schema of the overload called.
    pub schema: &'a Schema,
    /// The call is the in-place spelling: its first output is written back to its first input.
    pub in_place: bool,
}

/// The operators that can be imported and built.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    by_name: HashMap<&'static str, &'static OpDef>,
    by_target: HashMap<String, (&'static OpDef, Arc<Schema>)>,
    attr_names: HashSet<&'static str>,
}

impl Registry {
    /// All of Headwater's own operators.
    pub fn standard() -> &'static Registry {
        static STANDARD: OnceLock<Registry> = OnceLock::new();
        STANDARD.get_or_init(|| {
            let mut r = Registry::default();
            for op in FOLDERS.iter().copied().flatten() {
                if let Err(e) = r.register(op) {
                    // Unreachable while the test below passes: it registers every operator.
                    panic!("{e}");
                }
            }
            r
        })
    }

    /// Adds an operator, for example a user's custom one.
    ///
    /// # Errors
    /// `Unsupported` if its name or one of its targets is taken, `Parse` if a schema does not parse.
    pub fn register(&mut self, op: &'static OpDef) -> Result<()> {
        if self.by_name.insert(op.name, op).is_some() {
            return Err(Error::new(Code::Unsupported, "an operator of this name is registered already")
                .in_op(op.name));
        }
        self.attr_names.extend(op.attr_names());
        for text in op.schemas {
            let schema = Schema::parse(text).map_err(|m| Error::new(Code::Parse, m).in_op(op.name))?;
            let target = schema.target.clone();
            if self.by_target.insert(target.clone(), (op, Arc::new(schema))).is_some() {
                return Err(
                    Error::new(Code::Unsupported, format!("{target} is registered already")).in_op(op.name)
                );
            }
        }
        Ok(())
    }

    /// The operator of this name.
    pub fn by_name(&self, name: &str) -> Option<&'static OpDef> {
        self.by_name.get(name).copied()
    }

    /// Resolves `aten.add_.Tensor` (a leading `torch.ops.` is allowed). A target of an unregistered in-place
    /// spelling resolves to the functional one.
    pub fn resolve(&self, target: &str) -> Option<Resolved<'_>> {
        let target = target.strip_prefix("torch.ops.").unwrap_or(target);
        let found = |t: &str, in_place: bool| {
            let (op, schema) = self.by_target.get(t)?;
            // Some in-place overloads have no functional one of their name: `pow_.Scalar`, `__iand__`.
            let in_place = in_place || schema.args.first().is_some_and(|a| a.written);
            Some(Resolved { op, schema, in_place })
        };
        found(target, false).or_else(|| {
            let mut parts = target.splitn(3, '.');
            let (ns, name, overload) = (parts.next()?, parts.next()?, parts.next()?);
            let base = name.strip_suffix('_').filter(|b| !b.ends_with('_'))?;
            found(&format!("{ns}.{base}.{overload}"), true)
        })
    }

    /// The attribute name that reads `name`, if any operator has it.
    pub fn attr_name(&self, name: &str) -> Option<&'static str> {
        self.attr_names.get(name).copied()
    }

    /// Every operator, by name.
    pub fn operators(&self) -> Vec<&'static OpDef> {
        let mut all: Vec<_> = self.by_name.values().copied().collect();
        all.sort_by_key(|op| op.name);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_registers_and_in_place_spellings_resolve() {
        let r = Registry::standard();
        assert!(r.operators().len() > 10);
        let add = r.resolve("torch.ops.aten.add_.Tensor").unwrap();
        assert_eq!((add.op.name, add.in_place), ("add", true));
        let pow = r.resolve("torch.ops.aten.pow_.Scalar").unwrap();
        assert_eq!((pow.op.name, pow.in_place), ("pow", true));
        assert!(r.resolve("torch.ops.aten.nothing.default").is_none());
    }
}
