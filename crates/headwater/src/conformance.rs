//! The conformance suite of the operators on a device of this machine, for people: which agree, which are
//! refused, and which of them the device computes by itself.

use crate::core::conformance::{graph_of, operator};
use crate::core::device::Device;
use crate::core::ops::OpDef;
use crate::core::plan::{Bindings, Plan};
use crate::core::target::Target;
use crate::core::{DType, Registry, pass};
use crate::words::meant;
use anyhow::{Result, bail, ensure};
use serde::Serialize;
use std::collections::BTreeMap;

/// Dtypes of the suite.
pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Operators on a device.
#[derive(Clone, Debug, Serialize)]
pub struct Conforms {
    /// Name of the device.
    pub device: String,
    /// The device's remark that belongs beside its results, such as that it is simulated.
    pub remark: Option<String>,
    /// Dtypes of the cases.
    pub dtypes: Vec<&'static str>,
    /// Cases that ran, with their gradients, by operator.
    pub ran: BTreeMap<&'static str, usize>,
    /// Operators with a step that the device leaves to the host, and why.
    pub host: BTreeMap<&'static str, String>,
    /// Refusals of the device, by operator and dtype.
    pub refused: BTreeMap<String, String>,
    /// Wrong results and failures.
    pub wrong: Vec<String>,
}

/// The operators of a list of names separated by commas, or `all` of the registry.
///
/// # Errors
/// A name that no operator has.
pub fn chosen(names: &str) -> Result<Vec<&'static OpDef>> {
    let all = Registry::standard().operators();
    if names == "all" {
        return Ok(all);
    }
    let one = |name: &str| match all.iter().find(|op| op.name == name) {
        Some(op) => Ok(*op),
        None => {
            let listed: Vec<&str> = all.iter().map(|op| op.name).collect();
            // The nearest name alone: all would be some hundred.
            let near = meant(name, listed).split("did you mean ").nth(1).map(str::to_string);
            let near = near.map_or(String::new(), |near| format!(", did you mean {near}"));
            bail!("there is no operator `{name}`{near}; `headwater inspect --operators` lists them")
        }
    };
    let found: Vec<_> =
        names.split(',').map(str::trim).filter(|n| !n.is_empty()).map(one).collect::<Result<_>>()?;
    ensure!(!found.is_empty(), "no operator is named: give names separated by commas, or `all`");
    Ok(found)
}

/// The plans of an operator and its gradients for the cases on which it is tested, as the suite runs them.
/// Cases that passes refuse for a target have none.
///
/// # Errors
/// Faults of the passes.
pub fn plans(op: &'static OpDef, dtypes: &[DType], target: &Target) -> Result<Vec<Plan>> {
    let mut plans = Vec::new();
    for case in (op.cases)() {
        for graph in dtypes.iter().filter_map(|&dtype| graph_of(op, &case, dtype)) {
            let plan = pass::on_host(graph, target)
                .and_then(|graph| pass::narrow_integers(graph, target))
                .and_then(|graph| pass::plan(&graph, &Bindings::simple(&graph), target));
            match plan {
                Ok(plan) => plans.push(plan),
                Err(e) if e.code == crate::core::Code::Unsupported => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(plans)
}

/// Runs the cases of operators on a device.
///
/// # Errors
/// Faults of the passes.
pub fn run(device: &dyn Device, operators: &[&'static OpDef], dtypes: &[DType]) -> Result<Conforms> {
    let mut all = Conforms {
        device: device.name().to_string(),
        remark: device.remark().map(str::to_string),
        dtypes: dtypes.iter().map(|d| d.name()).collect(),
        ran: BTreeMap::new(),
        host: BTreeMap::new(),
        refused: BTreeMap::new(),
        wrong: Vec::new(),
    };
    for &op in operators {
        let found = operator(device, op, dtypes);
        all.ran.extend(found.ran);
        all.refused.extend(found.refused);
        all.wrong.extend(found.wrong);
        let steps = plans(op, dtypes, device.target())?;
        if let Some(why) = steps.iter().flat_map(|plan| device.survey(plan)).find_map(|step| step.host) {
            all.host.insert(op.name, why);
        }
    }
    Ok(all)
}
