//! An exported call's arguments, sorted by its operator's schema into tensors and attributes.

use crate::error::{Error, Result, refuse, shown};
use crate::functionalize::TensorId;
use crate::schema::{self, Argument, Named, Node, OptionalTensor, SymFloatArgument, SymIntArgument};
use crate::scope::{Scope, Slot};
use crate::symbolic::Number;
use crate::weights::{dtype_of, element_of};
use headwater_core::ops::OpDef;
use headwater_core::ops::schema::{Arg, ArgType, Schema};
use headwater_core::{Attr, Attrs};

/// Why a call cannot be made.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// It goes into the report of what is not supported.
    Unsupported(String),
    /// An operand stems from something reported already.
    Reported,
    /// The file is at fault.
    Fault(Error),
}

impl From<Error> for Obstacle {
    fn from(e: Error) -> Self {
        Obstacle::Fault(e)
    }
}

/// A tensor that a call takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand {
    pub tensor: TensorId,
    /// Name of the argument that it is, or whose list contains it.
    pub argument: &'static str,
    /// It is of pairs: complex numbers.
    pub complex: bool,
}

/// A call's arguments.
#[derive(Debug, Default)]
pub(crate) struct Call {
    /// Tensors in schema order, lists flattened.
    pub tensors: Vec<Option<Operand>>,
    /// Everything else. A complex number is a list of two floats.
    pub attrs: Attrs,
    /// Tensors that the schema marks as written.
    pub written: Vec<TensorId>,
    /// Argument for a tensor that is given as a plain number.
    number: Option<&'static str>,
}

impl Call {
    /// Takes out the number that stands for the first tensor, as in `torch.mul(2, x)`, unless an overload of
    /// `op` has a number of that name.
    pub fn take_first_number(&mut self, op: &OpDef) -> Option<Attr> {
        let name = self.number.filter(|&name| name == "self")?;
        let takes = |s: &Schema| s.args.iter().any(|a| a.name == name && a.ty == ArgType::Scalar);
        if op.schemas.iter().filter_map(|s| Schema::parse(s).ok()).any(|s| takes(&s)) {
            return None;
        }
        self.number = None;
        let number = self.attrs.get(name).cloned();
        self.attrs.remove(name);
        number
    }

    /// Checks that where this call has a number instead of a tensor, an overload of `op` takes one.
    ///
    /// # Errors
    /// `Argument` if none does.
    pub fn check_numbers(&self, op: &OpDef) -> Result<()> {
        let Some(name) = self.number else { return Ok(()) };
        let mut overloads = op.schemas.iter().filter_map(|s| Schema::parse(s).ok());
        if overloads.any(|s| s.accepts(&self.tensors)) {
            return Ok(());
        }
        Err(refuse!(Argument, "argument `{name}` cannot be a number"))
    }
}

/// Sorts the arguments of `node`, whose operator has this schema.
pub(crate) fn call(scope: &Scope, node: &Node, schema: &Schema) -> Result<Call, Obstacle> {
    let mut given: Vec<Option<&Argument>> = vec![None; schema.args.len()];
    for (i, input) in node.inputs.iter().enumerate() {
        let at = if input.name.is_empty() {
            (i < given.len()).then_some(i)
        } else {
            schema.args.iter().position(|a| a.name == input.name)
        };
        match at {
            Some(at) if given[at].is_none() => given[at] = Some(&input.arg),
            Some(_) => {
                return Err(refuse!(Argument, "argument `{}` is given twice", shown(&input.name)).into());
            }
            None if matches!(input.arg, Argument::AsNone(_)) => {}
            None => return Err(Obstacle::Unsupported(format!("argument `{}`", shown(&input.name)))),
        }
    }
    let (mut call, complex) = (Call::default(), scope.computes_complex(node));
    for (arg, given) in schema.args.iter().zip(given) {
        match given {
            Some(value) => one(scope, arg, value, complex, &mut call)?,
            None if arg.required => {
                return Err(refuse!(Argument, "argument `{}` is missing", arg.name).into());
            }
            None => {
                if matches!(arg.ty, ArgType::OptTensor | ArgType::Tensor) {
                    call.tensors.push(None);
                } else if let Some(default) = &arg.default {
                    call.attrs.set(arg.name, default.clone());
                }
            }
        }
    }
    Ok(call)
}

/// Places one argument of a call that computes `complex` numbers or not.
fn one(scope: &Scope, arg: &Arg, value: &Argument, complex: bool, call: &mut Call) -> Result<(), Obstacle> {
    let wrong =
        || -> Obstacle { refuse!(Argument, "argument `{}` cannot be {}", arg.name, value.kind()).into() };
    if let Argument::AsNone(_) = value {
        match arg.ty {
            ArgType::OptTensor => call.tensors.push(None),
            _ if arg.optional || arg.ty == ArgType::Ignored => {}
            _ => return Err(wrong()),
        }
        return Ok(());
    }
    match arg.ty {
        ArgType::Tensor | ArgType::OptTensor => {
            match (scope.value(value), value) {
                (_, Argument::AsOptionalTensor(OptionalTensor::AsNone(_))) => call.tensors.push(None),
                (Slot::Tensor(t), _) => {
                    let complex = scope.is_complex(value);
                    call.tensors.push(Some(Operand { tensor: t, argument: arg.name, complex }));
                    if arg.written {
                        call.written.push(t);
                    }
                }
                // A plain number in a tensor's place becomes an attribute of that name.
                (Slot::Number(n), _) => {
                    call.attrs.set(arg.name, number(arg, n)?);
                    call.number = Some(arg.name);
                }
                (_, Argument::AsComplex(z)) if complex => call.attrs.set(arg.name, vec![z.real.0, z.imag.0]),
                (Slot::Nothing, Argument::AsTensor(_) | Argument::AsOptionalTensor(_)) => {
                    return Err(Obstacle::Reported);
                }
                (Slot::Nothing, _) => return Err(wrong()),
            }
        }
        ArgType::TensorList | ArgType::OptTensorList => {
            let names: Vec<Option<&Named>> = match value {
                Argument::AsTensors(ts) => ts.iter().map(Some).collect(),
                Argument::AsOptionalTensors(ts) => ts
                    .iter()
                    .map(|t| match t {
                        OptionalTensor::AsTensor(t) => Some(t),
                        OptionalTensor::AsNone(_) => None,
                    })
                    .collect(),
                // PyTorch writes an empty list as one of ints.
                Argument::AsInts(v) if v.is_empty() => vec![],
                _ => return Err(wrong()),
            };
            for name in names {
                let operand = match name.map(|n| (&n.name, scope.slot(&n.name))) {
                    None => None,
                    Some((name, Slot::Tensor(tensor))) => {
                        Some(Operand { tensor, argument: arg.name, complex: scope.is_complex_name(name) })
                    }
                    Some(_) => return Err(Obstacle::Reported),
                };
                call.tensors.push(operand);
                call.written.extend(operand.filter(|_| arg.written).map(|o| o.tensor));
            }
        }
        ArgType::Ignored => {
            // Memory formats, devices and generators change no value; a layout must be the dense one.
            if let Argument::AsLayout(l) = value
                && *l != schema::STRIDED
            {
                return Err(Obstacle::Unsupported(
                    "tensors that are not dense (sparse or other layouts)".into(),
                ));
            }
        }
        ArgType::DType => match value {
            Argument::AsScalarType(code) => {
                // A complex dtype is requested where complex numbers are created.
                let dtype = if complex { element_of(*code).map(|e| e.dtype) } else { dtype_of(*code) };
                let dtype = dtype.map_err(|what| Obstacle::Unsupported(format!("it asks for {what}")))?;
                call.attrs.set(arg.name, dtype);
            }
            _ => return Err(wrong()),
        },
        ArgType::Str => match value {
            Argument::AsString(s) => call.attrs.set(arg.name, s.as_str()),
            _ => return Err(wrong()),
        },
        ArgType::Int | ArgType::Float | ArgType::Bool | ArgType::Scalar => {
            match (scope.value(value), value) {
                (Slot::Number(n), _) => call.attrs.set(arg.name, number(arg, n)?),
                (_, Argument::AsComplex(z)) if complex => call.attrs.set(arg.name, vec![z.real.0, z.imag.0]),
                (_, Argument::AsComplex(_)) => {
                    return Err(Obstacle::Unsupported("a complex number among real ones".into()));
                }
                _ => return Err(wrong()),
            }
        }
        ArgType::Ints(size) => {
            let mut ints = match (scope.value(value), value) {
                (Slot::Number(n), _) => vec![integer(arg, n)?],
                (_, Argument::AsInts(v)) => v.clone(),
                (_, Argument::AsSymInts(v)) => v
                    .iter()
                    .map(|x| match x {
                        SymIntArgument::AsInt(i) => Ok(*i),
                        SymIntArgument::AsName(n) => match scope.slot(n) {
                            Slot::Number(n) => integer(arg, n),
                            _ => Err(Obstacle::Reported),
                        },
                    })
                    .collect::<Result<_, _>>()?,
                _ => return Err(wrong()),
            };
            // One number stands for as many as the schema says.
            if let (&[x], Some(n)) = (&ints[..], size) {
                ints = vec![x; n];
            }
            call.attrs.set(arg.name, ints);
        }
        ArgType::Floats => {
            let floats: Vec<f64> = match value {
                Argument::AsFloats(v) => v.iter().map(|x| x.0).collect(),
                Argument::AsInts(v) => v.iter().map(|&i| i as f64).collect(),
                Argument::AsSymFloats(v) => v
                    .iter()
                    .map(|x| match x {
                        SymFloatArgument::AsFloat(x) => Ok(x.0),
                        SymFloatArgument::AsName(n) => match scope.slot(n) {
                            Slot::Number(Some(n)) => Ok(n.float()),
                            _ => Err(depends_on_data(arg)),
                        },
                    })
                    .collect::<Result<_, _>>()?,
                _ => return Err(wrong()),
            };
            call.attrs.set(arg.name, floats);
        }
        ArgType::Bools => match value {
            Argument::AsBools(v) => {
                call.attrs.set(arg.name, v.iter().map(|&b| b as i64).collect::<Vec<_>>());
            }
            _ => return Err(wrong()),
        },
    }
    Ok(())
}

fn depends_on_data(arg: &Arg) -> Obstacle {
    Obstacle::Unsupported(format!(
        "argument `{}` depends on data, so shapes would differ from step to step; make it a constant",
        arg.name
    ))
}

/// A number in the form the schema requires.
fn number(arg: &Arg, n: Option<Number>) -> Result<Attr, Obstacle> {
    let n = n.ok_or_else(|| depends_on_data(arg))?;
    Ok(match (arg.ty, n) {
        (ArgType::Int, _) => Attr::Int(integer(arg, Some(n))?),
        (ArgType::Bool, _) => match n.int() {
            Some(i) => Attr::Bool(i != 0),
            None => return Err(refuse!(Argument, "argument `{}` cannot be {n}", arg.name).into()),
        },
        (ArgType::Float, _) => Attr::Float(n.float()),
        (_, Number::Int(i)) => Attr::Int(i),
        (_, Number::Bool(b)) => Attr::Bool(b),
        (_, n) => Attr::Float(n.float()),
    })
}

fn integer(arg: &Arg, n: Option<Number>) -> Result<i64, Obstacle> {
    let n = n.ok_or_else(|| depends_on_data(arg))?;
    n.int().ok_or_else(|| refuse!(Argument, "argument `{}` must be an int, got {n}", arg.name).into())
}
