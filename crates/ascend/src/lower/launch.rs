//! Kernel programs as what the runtime of devices launches.

use crate::kernel::finding::Finding;
use crate::kernel::{Access, Param, ParamKind, Program, Value};
use headwater_launch::{Parameter, ParameterKind};

pub use headwater_launch::{LoweredArg, Refusal};

/// One launch of a kernel for a step of a plan.
pub type LoweredLaunch = headwater_launch::LoweredLaunch<Program>;

/// A step as launches, in order.
pub type Lowered = headwater_launch::Lowered<Program>;

/// Kernels of a plan, each once.
pub type Distinct = headwater_launch::Distinct<Program>;

impl headwater_launch::Program for Program {
    fn name(&self) -> &str {
        &self.name
    }

    fn renamed(&self, name: String) -> Program {
        Program { name, ..self.clone() }
    }

    fn text(&self) -> String {
        self.plain().to_string()
    }

    fn parameters(&self) -> Vec<Parameter> {
        let kind = |param: &Param| match param.kind {
            ParamKind::Int => Some(ParameterKind::Int),
            ParamKind::Float => Some(ParameterKind::Float),
            // Its argument comes from the runtime.
            ParamKind::Sync => None,
            ParamKind::Pointer { access, elem, len, .. } => Some(ParameterKind::Pointer {
                writes: access != Access::In,
                own: len.saturating_mul(elem.size()),
                touched: param.bytes(),
            }),
        };
        let parameter = |param: &Param| Some(Parameter { name: param.name.clone(), kind: kind(param)? });
        self.params.iter().filter_map(parameter).collect()
    }
}

/// Parameters of a launch with their arguments: all but the synchronisation address.
fn arguments(launch: &LoweredLaunch) -> impl Iterator<Item = (&Param, &LoweredArg)> {
    launch.program.params.iter().filter(|p| p.kind != ParamKind::Sync).zip(&launch.args)
}

/// A value for each parameter of a launch: numbers as they are, 0 for addresses, the synchronisation address
/// among them.
pub fn values(launch: &LoweredLaunch) -> Vec<Value> {
    let mut args = arguments(launch);
    let value = |param: &Param| match param.kind {
        ParamKind::Sync => Value::Int(0),
        _ => match args.next() {
            Some((_, LoweredArg::Float(x))) => Value::Float(*x),
            Some((_, LoweredArg::Int(x))) => Value::Int(*x),
            _ => Value::Int(0),
        },
    };
    launch.program.params.iter().map(value).collect()
}

/// A kernel that cannot be written for the requested shapes.
impl From<Box<Finding>> for Refusal {
    fn from(finding: Box<Finding>) -> Refusal {
        Refusal(finding.message)
    }
}
