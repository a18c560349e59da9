//! `headwater op`: one operator on tensors from a file, for operator tests of others.

use super::{Outcome, Printer};
use crate::core::device::Device;
use crate::core::evaluate;
use crate::core::graph::{Graph, InputRole, OutputRole};
use crate::core::ops::schema::{ArgType, Schema};
use crate::core::pass::{self, decompose, differentiate::gradients};
use crate::core::plan::Bindings;
use crate::core::{Attr, Attrs, Builder, DType, OpDef, Registry, Tensor, TensorType, ValueId, reference};
use crate::machine::Machine;
use crate::report::Table;
use crate::tensors::TensorFile;
use crate::words::meant;
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use std::path::PathBuf;

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Tensors are named as in the operator's ATen schema (`self`, `weight`, `indices`; lists as `tensors.0`, `tensors.1`).
Outputs are written as `output.0`, `output.1`, ... With --grad the file gets `grad.<input>` too. The outputs' gradients are
`grad_output.0`, ... of the input file, or ones where it has none.

Examples:
  headwater op softmax --in in.safetensors --out out.safetensors --attr dim=-1
  headwater op embedding_dense_backward --in in.safetensors --out out.safetensors \\
      --attr num_weights=1000 --attr padding_idx=-1 --attr scale_grad_by_freq=false
  headwater op rms_norm --in in.safetensors --out out.safetensors --attr normalized_shape=64 --grad
  headwater op gelu --schema")]
pub struct Args {
    /// Operator: a name (`softmax`) or an ATen target (`aten.softmax.int`).
    name: String,
    /// Safetensors file with the inputs.
    #[arg(long = "in", value_name = "FILE", required_unless_present = "schema")]
    input: Option<PathBuf>,
    /// Safetensors file to write.
    #[arg(long = "out", value_name = "FILE", required_unless_present = "schema")]
    output: Option<PathBuf>,
    /// An argument that is not a tensor; a list is written as `1,2`, an absent one as `none`.
    #[arg(long = "attr", value_name = "KEY=VALUE")]
    attrs: Vec<String>,
    /// Also compute the gradients of all float inputs.
    #[arg(long)]
    grad: bool,
    /// Run the slow float64 interpreter, against which every device is tested, instead of a device.
    #[arg(long)]
    oracle: bool,
    /// Print the operator's schemas and stop.
    #[arg(long)]
    schema: bool,
}

pub fn run(args: &Args, device: &dyn Device, printer: Printer) -> Result<Outcome> {
    let registry = Registry::standard();
    let (op, schema) = match registry.resolve(&args.name) {
        Some(r) => (r.op, Some(r.schema.clone())),
        None => {
            let near = registry
                .operators()
                .iter()
                .map(|o| o.name)
                .filter(|n| n.contains(&args.name))
                .collect::<Vec<_>>();
            let op = registry.by_name(&args.name).ok_or_else(|| match near[..] {
                [] => anyhow!(
                    "there is no operator `{}`; `headwater inspect --operators` lists them",
                    args.name
                ),
                _ => anyhow!("there is no operator `{}`; there are {}", args.name, near.join(", ")),
            })?;
            (op, None)
        }
    };
    if args.schema {
        op.schemas.iter().for_each(|s| printer.line(s));
        return Outcome::of(op.schemas, true);
    }
    let (Some(input), Some(output)) = (&args.input, &args.output) else { bail!("--in and --out are needed") };
    let file = TensorFile::read(input)?;
    let given = parse_pairs(&args.attrs)?;
    let schema = match schema {
        Some(s) => s,
        None => pick_schema(op, &file, &given)?,
    };
    let call = Call::bind(op, &schema, &file, &given)?;
    let (out, host) = call.run(&file, args, device)?;
    out.write(output)?;
    let report = Report {
        operator: schema.target.to_string(),
        device: ran_on(args, device),
        host,
        tensors: out.tensors.iter().map(Written::of).collect(),
    };
    let title = format!("{} on {}", report.operator, report.device);
    let mut table = Table::new(&title, &["tensor", "type", ">largest magnitude"]);
    for ((_, t), w) in out.tensors.iter().zip(&report.tensors) {
        table.row([w.name.clone(), t.ty.to_string(), format!("{:.6e}", w.largest)]);
    }
    printer.table(&table);
    report.host.iter().for_each(|step| printer.line(format!("on the host, through the reference: {step}")));
    Outcome::of(&report, true)
}

/// Name of the device that ran the operator.
fn ran_on(args: &Args, device: &dyn Device) -> String {
    if args.oracle { "oracle".into() } else { device.name().into() }
}

/// Output of `--json`.
#[derive(Serialize)]
struct Report {
    /// ATen target.
    operator: String,
    /// Device that ran it.
    device: String,
    /// Steps for which the device has no kernel, with the reason: they ran on the host, through the
    /// reference.
    host: Vec<String>,
    /// Tensors that were written, by name.
    tensors: Vec<Written>,
}

/// A tensor that was written.
#[derive(Serialize)]
struct Written {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    /// Largest magnitude of an element, NaN (`null` in JSON) if one is NaN.
    largest: f64,
}

impl Written {
    fn of((name, t): (&String, &Tensor)) -> Written {
        let numbers = t.to_f64().into_iter().map(f64::abs);
        let largest =
            numbers.fold(0.0, |a: f64, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) });
        Written { name: name.clone(), dtype: t.dtype().name(), shape: t.shape().to_vec(), largest }
    }
}

fn parse_pairs(attrs: &[String]) -> Result<Vec<(&str, &str)>> {
    attrs
        .iter()
        .map(|a| a.split_once('=').with_context(|| format!("`--attr {a}` is not of the form key=value")))
        .collect()
}

/// The first overload that has all the given names.
fn pick_schema(op: &'static OpDef, file: &TensorFile, given: &[(&str, &str)]) -> Result<Schema> {
    let schemas: Vec<Schema> = op.schemas.iter().filter_map(|s| Schema::parse(s).ok()).collect();
    let takes = |s: &Schema| {
        let known = |n: &str| s.args.iter().any(|a| a.name == n);
        let listed = |n: &str| n.rsplit_once('.').is_some_and(|(base, _)| known(base));
        let cotangent = |n: &str| n.starts_with("grad_output.");
        file.tensors.keys().all(|n| known(n) || listed(n) || cotangent(n))
            && given.iter().all(|(k, _)| known(k))
    };
    schemas.into_iter().find(takes).ok_or_else(|| {
        let have: Vec<_> = file.tensors.keys().map(String::as_str).chain(given.iter().map(|g| g.0)).collect();
        anyhow!(
            "no overload of {} takes {}; it has\n  {}\nTensors of --in are named like these arguments, and the gradients of its outputs \
             grad_output.0, grad_output.1, ...",
            op.name,
            have.join(", "),
            op.schemas.join("\n  ")
        )
    })
}

/// Absent tensors that may occur in a list of optional ones: dimensions that are not indexed.
const GAPS: usize = 64;

/// An operator with its arguments in place.
struct Call {
    op: &'static OpDef,
    /// Name of the tensor at each input, `None` where an optional one is absent.
    inputs: Vec<Option<String>>,
    attrs: Attrs,
}

impl Call {
    fn bind(op: &'static OpDef, schema: &Schema, file: &TensorFile, given: &[(&str, &str)]) -> Result<Call> {
        let (mut inputs, mut attrs) = (Vec::new(), Attrs::new());
        for arg in &schema.args {
            match arg.ty {
                ArgType::Tensor | ArgType::OptTensor => {
                    let there = file.tensors.contains_key(arg.name);
                    if !there && arg.ty == ArgType::Tensor {
                        file.get(arg.name)?;
                    }
                    inputs.push(there.then(|| arg.name.to_string()));
                }
                ArgType::TensorList | ArgType::OptTensorList => {
                    let named = |i: usize| format!("{}.{i}", arg.name);
                    let index =
                        |n: &String| n.strip_prefix(arg.name)?.strip_prefix('.')?.parse::<usize>().ok();
                    let count = file.tensors.keys().filter_map(index).count();
                    // Absent ones may occur between those of an optional list, such as indices; not many.
                    let gaps = if arg.ty == ArgType::OptTensorList { GAPS } else { 0 };
                    let last = file.tensors.keys().filter_map(index).max();
                    if let Some(last) = last.filter(|&last| last >= count + gaps) {
                        bail!("`{}` is given, but not all of the {last} before it", named(last));
                    }
                    let count = last.map_or(0, |last| last + 1);
                    inputs.extend((0..count).map(|i| file.tensors.contains_key(&named(i)).then(|| named(i))));
                }
                ArgType::Ignored => {}
                _ => {
                    let text = given.iter().find(|(k, _)| *k == arg.name).map(|(_, v)| *v);
                    let value = match text {
                        Some("none" | "None") => None,
                        Some(v) => Some(
                            parse_attr(arg.ty, v).with_context(|| format!("attribute {}={v}", arg.name))?,
                        ),
                        None if arg.required => {
                            bail!("attribute `{}` is needed: --attr {}=...", arg.name, arg.name)
                        }
                        None => arg.default.clone(),
                    };
                    if let Some(v) = value {
                        attrs.set(arg.name, v);
                    }
                }
            }
        }
        if let Some((k, _)) = given.iter().find(|(k, _)| schema.args.iter().all(|a| a.name != *k)) {
            bail!("{} has no argument `{k}`", schema.target);
        }
        Ok(Call { op, inputs, attrs })
    }

    fn run(&self, file: &TensorFile, args: &Args, device: &dyn Device) -> Result<(TensorFile, Vec<String>)> {
        let mut b = Builder::new();
        let mut feed = Vec::new();
        let mut input = |b: &mut Builder, name: &str, t: Tensor| {
            let v = b.input(name, t.ty.clone(), InputRole::User);
            feed.push(t);
            v
        };
        let ids: Vec<Option<ValueId>> = self
            .inputs
            .iter()
            .map(|n| {
                n.as_ref().map(|n| Ok::<_, anyhow::Error>(input(&mut b, n, file.get(n)?.clone()))).transpose()
            })
            .collect::<Result<_>>()?;
        let outputs = b.apply(self.op, &ids, self.attrs.clone())?;
        for (i, &v) in outputs.iter().enumerate() {
            b.output(format!("output.{i}"), v, OutputRole::User);
        }
        let graph = if args.grad {
            // Cotangents become inputs too; a decomposed operator is expanded before its gradient is taken.
            let mut seeds = Vec::new();
            for (i, &v) in outputs.iter().enumerate() {
                if !b.ty(v).dtype.is_float() {
                    continue;
                }
                let name = format!("grad_output.{i}");
                if let Some(t) = file.tensors.get(&name) {
                    seeds.push((i, input(&mut b, &name, t.clone())));
                } else if i == 0 {
                    affordable(b.ty(v))?;
                    let ones = Tensor::full(&b.ty(v).clone(), 1.0);
                    seeds.push((i, input(&mut b, &name, ones)));
                }
            }
            let names: Vec<String> = b.graph().inputs.iter().map(|i| i.name.clone()).collect();
            let mut b = Builder::extend(decompose(b.finish())?);
            let find =
                |b: &Builder, name: &str| b.graph().inputs.iter().find(|i| i.name == name).map(|i| i.value);
            let wanted: Vec<(String, ValueId)> = names[..ids.iter().flatten().count()]
                .iter()
                .filter_map(|n| find(&b, n).map(|v| (n.clone(), v)))
                .filter(|(_, v)| b.ty(*v).dtype.is_float())
                .collect();
            let pairs: Vec<_> = seeds
                .iter()
                .filter_map(|(i, _)| {
                    Some((b.graph().outputs[*i].value, find(&b, &format!("grad_output.{i}"))?))
                })
                .collect();
            let grads = gradients(&mut b, &pairs, &wanted.iter().map(|w| w.1).collect::<Vec<_>>())?;
            for ((name, v), g) in wanted.iter().zip(grads) {
                if let Some(g) = g {
                    b.output(format!("grad.{name}"), g, OutputRole::Gradient(*v));
                }
            }
            b.finish()
        } else {
            b.finish()
        };
        let graph = decompose(graph)?;
        graph.values.iter().try_for_each(|v| affordable(&v.ty))?;
        // Decomposition may have requested the key of random numbers.
        for extra in &graph.inputs[feed.len()..] {
            feed.push(Tensor::full(graph.ty(extra.value), 0.0));
        }
        let (values, host) = match args.oracle {
            true => (reference::run(&graph, &feed)?, Vec::new()),
            false => (evaluate(device, &graph, &feed)?, on_host(device, graph.clone())?),
        };
        let tensors = graph.outputs.iter().map(|o| o.name.clone()).zip(values).collect();
        let metadata = [
            ("operator".to_string(), self.op.name.to_string()),
            ("device".to_string(), ran_on(args, device)),
        ];
        Ok((TensorFile { tensors, metadata: metadata.into() }, host))
    }
}

/// Steps of a graph for which a device has no kernel, with the reason, each once.
fn on_host(device: &dyn Device, graph: Graph) -> Result<Vec<String>> {
    let target = device.target();
    let graph = pass::narrow_integers(pass::on_host(graph, target)?, target)?;
    let plan = pass::plan(&graph, &Bindings::simple(&graph), target)?;
    let mut host: Vec<String> = Vec::new();
    for (step, used) in plan.steps.iter().zip(device.survey(&plan)) {
        let line = used.host.map(|why| format!("{}: {why}", step.op));
        host.extend(line.filter(|line| !host.contains(line)));
    }
    Ok(host)
}

/// Refuses a tensor that this machine has no memory for: 8 bytes an element, as tensors of this command have.
fn affordable(ty: &TensorType) -> Result<()> {
    let need = ty.shape.checked_numel().and_then(|n| n.checked_mul(8)).unwrap_or(usize::MAX);
    // More than any machine has, if the system does not say what it has.
    let have = Machine::detect().available.unwrap_or(1 << 40);
    if need > have {
        bail!("a tensor {ty} takes {need} bytes here, this machine has {have} left");
    }
    Ok(())
}

/// An attribute's value from the command line.
fn parse_attr(ty: ArgType, text: &str) -> Result<Attr> {
    let list = || text.trim_matches(['[', ']', '(', ')']).split(',').map(str::trim).filter(|s| !s.is_empty());
    let flag = |s: &str| match s {
        "true" | "True" | "1" => Ok(true),
        "false" | "False" | "0" => Ok(false),
        _ => Err(anyhow!("`{s}` is neither true nor false")),
    };
    Ok(match ty {
        ArgType::Int => Attr::Int(text.parse()?),
        ArgType::Ints(size) => {
            let items = list().map(|s| Ok(s.parse()?)).collect::<Result<Vec<i64>>>()?;
            Attr::Ints(match (size, &items[..]) {
                (Some(n), [one]) => vec![*one; n],
                _ => items,
            })
        }
        ArgType::Float => Attr::Float(text.parse()?),
        ArgType::Floats => Attr::Floats(list().map(|s| Ok(s.parse()?)).collect::<Result<_>>()?),
        ArgType::Bool => Attr::Bool(flag(text)?),
        ArgType::Bools => Attr::Ints(list().map(|s| Ok(flag(s)? as i64)).collect::<Result<_>>()?),
        ArgType::Str => Attr::Str(text.to_string()),
        ArgType::Scalar => match (text.parse::<i64>(), flag(text)) {
            (Ok(i), _) => Attr::Int(i),
            (_, Ok(b)) => Attr::Bool(b),
            _ => Attr::Float(text.parse()?),
        },
        ArgType::DType => Attr::DType(parse_dtype(text)?),
        ArgType::Tensor
        | ArgType::OptTensor
        | ArgType::TensorList
        | ArgType::OptTensorList
        | ArgType::Ignored => {
            bail!("a tensor is given in the input file")
        }
    })
}

/// A dtype by our name (`f32`) or PyTorch's (`float32`).
pub(crate) fn parse_dtype(text: &str) -> Result<DType> {
    Ok(match text.trim_start_matches("torch.") {
        "float64" | "double" => DType::F64,
        "float32" | "float" => DType::F32,
        "float16" | "half" => DType::F16,
        "bfloat16" => DType::BF16,
        "int64" | "long" => DType::I64,
        "int32" | "int" => DType::I32,
        "int16" | "short" => DType::I16,
        "int8" => DType::I8,
        "uint8" => DType::U8,
        other => other
            .parse()
            .map_err(|()| anyhow!("`{other}` is no dtype: {}", meant(other, DType::ALL.map(DType::name))))?,
    })
}
