//! Complex numbers. Those of an export become pairs while it is imported: floats with a last dimension of 2,
//! as `torch.view_as_real` shows them. A table says of each operator what it is of pairs. Whether a tensor is
//! of complex numbers is what PyTorch recorded of its name.

mod algebra;
mod fourier;
mod maker;
mod pairs;

use crate::arguments::{self, Call, Obstacle, Operand};
use crate::error::{Error, Result, refuse};
use crate::functionalize::TensorId;
use crate::importer::{Importer, Made, refused};
use crate::schema::Node;
use crate::scope::{self, Scope};
use crate::ways_out;
use headwater_core::ops::complex::conj::CONJ;
use headwater_core::ops::schema::Schema;
use headwater_core::ops::view::{permute::PERMUTE, select::SELECT, transpose::TRANSPOSE};
use headwater_core::ops::{Body, OpCx, OpDef};
use headwater_core::shape::wrap_dim;
use headwater_core::{Attr, Attrs, DType, Layout, ValueId};
use maker::Maker;
use std::collections::HashMap;
use std::sync::OnceLock;

/// The meaning of an operator on pairs.
#[derive(Clone, Copy)]
enum How {
    /// The operator itself: it knows of pairs.
    Itself,
    /// The operator itself, its attributes changed where they count dimensions. Real operands become complex,
    /// masks hold for both parts.
    OfPairs(&'static [(&'static str, Axes)]),
    /// The same memory viewed by a sequence of other operators, given the number of dimensions.
    View(fn(usize) -> Vec<(&'static OpDef, Attrs)>),
    /// The result of other operators.
    Made(fn(&mut Maker) -> Result<ValueId, Obstacle>),
    /// A conversion: of complex numbers to complex numbers the operator itself, else as [`How::Made`].
    Converted(fn(&mut Maker) -> Result<ValueId, Obstacle>),
}

/// The state of a node after complex numbers were seen to.
#[derive(Clone, Copy)]
pub(crate) enum Turn {
    /// Nothing is left to do.
    Taken,
    /// Its operator is what it is.
    Left,
    /// Its arguments are yet to become those of pairs.
    OfPairs(&'static [(&'static str, Axes)]),
}

impl Turn {
    /// True if nothing is left to do.
    pub fn is_taken(self) -> bool {
        matches!(self, Turn::Taken)
    }
}

/// The meaning of an attribute that counts dimensions; pairs have one more.
#[derive(Clone, Copy)]
pub(crate) enum Axes {
    /// One dimension or several, negative ones counted from the end.
    Dims,
    /// As many as there are, if absent or empty.
    AllDims,
    /// Among those of the result, which has one more.
    NewDim,
    /// The order of all dimensions.
    Order,
    /// Sizes of the result.
    Sizes,
    /// Repetitions of each dimension.
    Repeats,
    /// Borders, those of the last dimension first.
    Borders,
    /// A number that must be 0: another one would appear in both parts.
    Zero,
    /// A mode that must be `constant`.
    Constant,
}

use Axes::{AllDims, Borders, Constant, Dims, NewDim, Order, Repeats, Sizes, Zero};
use How::{Converted, Itself, Made as MadeBy, OfPairs, View};

/// ATen names, without the `_` of in-place spellings, with their meaning on pairs.
static RULES: &[(&str, How)] = &[
    // Conversions between real and complex numbers.
    ("view_as_real view_as_complex", Itself),
    ("complex", MadeBy(algebra::complex)),
    ("polar", MadeBy(algebra::polar)),
    ("real", View(|_| vec![part(0)])),
    ("imag", View(|_| vec![part(1)])),
    ("abs absolute", MadeBy(algebra::abs)),
    ("angle", MadeBy(algebra::angle)),
    ("to _to_copy type_as", Converted(algebra::convert)),
    ("copy", Converted(algebra::copy)),
    // Arithmetic.
    ("neg negative positive clone alias alias_copy contiguous", OfPairs(&[])),
    ("detach lift lift_fresh lift_fresh_copy resolve_conj resolve_neg", OfPairs(&[])),
    ("conj _conj", View(|_| vec![conjugate()])),
    ("conj_physical", MadeBy(algebra::conj)),
    ("add sub subtract", MadeBy(algebra::sum)),
    ("rsub", MadeBy(algebra::rsub)),
    ("mul multiply", MadeBy(algebra::mul)),
    ("div divide true_divide", MadeBy(algebra::div)),
    ("reciprocal", MadeBy(algebra::reciprocal)),
    ("square", MadeBy(algebra::square)),
    ("pow", MadeBy(algebra::pow)),
    ("exp", MadeBy(algebra::exp)),
    ("log", MadeBy(algebra::log)),
    ("where", MadeBy(algebra::choose)),
    ("masked_fill", MadeBy(algebra::masked_fill)),
    // Sums and products of tensors.
    ("sum mean", MadeBy(algebra::reduced)),
    ("cumsum", OfPairs(&[("dim", Dims)])),
    ("norm linalg_vector_norm", MadeBy(algebra::norm)),
    ("matmul mm bmm mv dot outer ger einsum", MadeBy(algebra::product)),
    ("vdot", MadeBy(algebra::vdot)),
    // New tensors.
    ("zeros zeros_like new_zeros zero empty empty_like new_empty", MadeBy(|m| m.filled([0.0, 0.0]))),
    ("empty_strided empty_permuted new_empty_strided", MadeBy(|m| m.filled([0.0, 0.0]))),
    ("ones ones_like new_ones", MadeBy(|m| m.filled([1.0, 0.0]))),
    ("full full_like new_full", MadeBy(|m| algebra::full(m, "fill_value"))),
    ("fill", MadeBy(|m| algebra::full(m, "value"))),
    ("scalar_tensor", MadeBy(|m| algebra::full(m, "s"))),
    // Views.
    ("view reshape _unsafe_view", OfPairs(&[("size", Sizes), ("shape", Sizes)])),
    ("view_as reshape_as expand_as", OfPairs(&[])),
    ("expand broadcast_to", OfPairs(&[("size", Sizes)])),
    ("permute", OfPairs(&[("dims", Order)])),
    ("transpose swapdims", OfPairs(&[("dim0", Dims), ("dim1", Dims)])),
    ("swapaxes", OfPairs(&[("axis0", Dims), ("axis1", Dims)])),
    ("movedim", OfPairs(&[("source", Dims), ("destination", Dims)])),
    ("t numpy_T", View(|rank| vec![reversed(rank)])),
    ("mT", View(|rank| vec![last_two(rank)])),
    ("mH adjoint matrix_H", View(|rank| vec![conjugate(), last_two(rank)])),
    ("slice select narrow chunk split split_with_sizes tensor_split unbind", OfPairs(&[("dim", Dims)])),
    ("slice_scatter select_scatter", OfPairs(&[("dim", Dims)])),
    ("squeeze", OfPairs(&[("dim", Dims)])),
    ("unsqueeze stack", OfPairs(&[("dim", NewDim)])),
    ("flatten", OfPairs(&[("start_dim", Dims), ("end_dim", Dims)])),
    ("unflatten", OfPairs(&[("dim", Dims)])),
    // Movement and indices.
    ("cat concat concatenate", OfPairs(&[("dim", Dims)])),
    ("repeat", OfPairs(&[("repeats", Repeats)])),
    ("tile", OfPairs(&[("dims", Repeats)])),
    ("repeat_interleave", OfPairs(&[("dim", Dims)])),
    ("flip roll", OfPairs(&[("dims", Dims)])),
    ("constant_pad_nd", OfPairs(&[("pad", Borders), ("value", Zero)])),
    ("pad", OfPairs(&[("pad", Borders), ("value", Zero), ("mode", Constant)])),
    ("index _unsafe_index index_put _unsafe_index_put", OfPairs(&[])),
    ("index_select index_add index_copy", OfPairs(&[("dim", Dims)])),
    // Fourier transforms.
    ("_fft_c2c _fft_r2c _fft_c2r", Itself),
    ("fft_fftshift fft_ifftshift", OfPairs(&[("dim", AllDims)])),
    ("fft_fft", MadeBy(|m| fourier::complex(m, true))),
    ("fft_ifft", MadeBy(|m| fourier::complex(m, false))),
    ("fft_fft2 fft_fftn", MadeBy(|m| fourier::complex(m, true))),
    ("fft_ifft2 fft_ifftn", MadeBy(|m| fourier::complex(m, false))),
    ("fft_rfft fft_rfft2 fft_rfftn", MadeBy(|m| fourier::from_real(m, true))),
    ("fft_ihfft fft_ihfft2 fft_ihfftn", MadeBy(|m| fourier::from_real(m, false))),
    ("fft_irfft fft_irfft2 fft_irfftn", MadeBy(|m| fourier::to_real(m, false))),
    ("fft_hfft fft_hfft2 fft_hfftn", MadeBy(|m| fourier::to_real(m, true))),
    ("stft", MadeBy(fourier::stft)),
    ("istft", MadeBy(fourier::istft)),
];

/// Schemas of operators that exist of complex numbers alone, as PyTorch prints them.
static SCHEMAS: &[&str] = &[
    "complex(Tensor real, Tensor imag) -> Tensor",
    "polar(Tensor abs, Tensor angle) -> Tensor",
    "real(Tensor(a) self) -> Tensor(a)",
    "imag(Tensor(a) self) -> Tensor(a)",
    "angle(Tensor self) -> Tensor",
    "conj(Tensor(a) self) -> Tensor(a)",
    "_conj(Tensor(a) self) -> Tensor(a)",
    "conj_physical(Tensor self) -> Tensor",
    "fft_fft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    "fft_ifft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    "fft_rfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    "fft_irfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    "fft_hfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    "fft_ihfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    "fft_fft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    "fft_ifft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    "fft_rfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    "fft_irfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    "fft_hfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    "fft_ihfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    "fft_fftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    "fft_ifftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    "fft_rfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    "fft_irfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    "fft_hfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    "fft_ihfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    "stft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor",
    "stft.center(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True, str pad_mode=\"reflect\", bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor",
    "istft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True, bool normalized=False, bool? onesided=None, SymInt? length=None, bool return_complex=False) -> Tensor",
];

/// Real part 0 or imaginary part 1.
fn part(index: i64) -> (&'static OpDef, Attrs) {
    (&SELECT, Attrs::new().with("dim", -1).with("index", index))
}

fn conjugate() -> (&'static OpDef, Attrs) {
    (&CONJ, Attrs::new())
}

/// So many dimensions in reverse order.
fn reversed(rank: usize) -> (&'static OpDef, Attrs) {
    let dims: Vec<i64> = (0..rank as i64).rev().chain([rank as i64]).collect();
    (&PERMUTE, Attrs::new().with("dims", dims))
}

/// The last two of so many dimensions exchanged.
fn last_two(rank: usize) -> (&'static OpDef, Attrs) {
    let dim = |from_end: usize| rank.saturating_sub(from_end) as i64;
    (&TRANSPOSE, Attrs::new().with("dim0", dim(2)).with("dim1", dim(1)))
}

/// A schema of [`SCHEMAS`] by its target.
fn schema(target: &str) -> Option<&'static Schema> {
    static TABLE: OnceLock<HashMap<String, Schema>> = OnceLock::new();
    let parsed = || SCHEMAS.iter().filter_map(|s| Schema::parse(s).ok()).map(|s| (s.target.clone(), s));
    TABLE.get_or_init(|| parsed().collect()).get(scope::short(target))
}

/// The rule of an operator that computes complex numbers; `None` for a node that has to do with real ones
/// alone.
fn rule(scope: &Scope, node: &Node) -> Result<Option<How>, Obstacle> {
    static TABLE: OnceLock<HashMap<&'static str, How>> = OnceLock::new();
    if schema(&node.target).is_none() && !scope.computes_complex(node) {
        return Ok(None);
    }
    let (namespace, name) = scope::base(&node.target);
    let named = |(names, how): &(&'static str, How)| {
        let how = *how;
        names.split(' ').map(move |name| (name, how))
    };
    let table = TABLE.get_or_init(|| RULES.iter().flat_map(named).collect());
    let found = table.get(name).or_else(|| table.get(name.strip_suffix('_')?));
    match found.filter(|_| namespace == "aten") {
        Some(how) => Ok(Some(*how)),
        None => Err(Obstacle::Unsupported(ways_out::complex(&node.target))),
    }
}

impl<'a> Importer<'a> {
    /// Takes a node of complex numbers, if that is not the operator itself.
    pub fn complex(&mut self, scope: &mut Scope<'a>, node: &'a Node) -> Result<Turn, Obstacle> {
        let how = match rule(scope, node)? {
            None | Some(Itself) => return Ok(Turn::Left),
            Some(OfPairs(axes)) => return Ok(Turn::OfPairs(axes)),
            // `real` and its like give back real numbers as they are.
            Some(View(_)) if !node.inputs.first().is_some_and(|i| scope.is_complex(&i.arg)) => {
                return Ok(Turn::Left);
            }
            Some(how) => how,
        };
        let registry = self.registry;
        let resolved = registry.resolve(&node.target);
        let Some(schema) = resolved.map(|r| r.schema).or_else(|| schema(&node.target)) else {
            return Err(Obstacle::Unsupported(ways_out::complex(&node.target)));
        };
        let call = arguments::call(scope, node, schema)?;
        match how {
            View(_) if scope::base(&node.target).1.ends_with('_') => {
                return Err(Obstacle::Unsupported(ways_out::complex(&node.target)));
            }
            View(steps) => {
                let Some(&Some(seen)) = call.tensors.first() else { return Ok(Turn::Left) };
                let t = self.seen(scope, seen, steps)?;
                self.define(scope, node, &[Made::Tensor(t)])?;
            }
            Converted(_) if call.tensors.iter().flatten().all(|o| o.complex) => {
                let result = scope::output_names(&node.outputs).first().copied().flatten();
                if result.is_some_and(|name| scope.is_complex_name(name)) {
                    return Ok(Turn::Left);
                }
                self.made(scope, node, how, resolved.map(|r| r.op), call)?;
            }
            _ => self.made(scope, node, how, resolved.map(|r| r.op), call)?,
        }
        Ok(Turn::Taken)
    }

    /// Makes a result by other operators, and writes it if the call is in place.
    fn made(
        &mut self,
        scope: &mut Scope<'a>,
        node: &'a Node,
        how: How,
        op: Option<&'static OpDef>,
        call: Call,
    ) -> Result<(), Obstacle> {
        let (MadeBy(make) | Converted(make)) = how else { return Ok(()) };
        let Some(&Some(name)) = scope::output_names(&node.outputs).first() else {
            return Err(refuse!(Argument, "a call without result").into());
        };
        let (meta, target) = (scope.meta(name)?, call.tensors.first().copied().flatten());
        let want = self.sizes.ty(meta, name)?;
        let complex = scope.is_complex_name(name);
        let mut maker = Maker { importer: self, scope, op, call, want, complex };
        let new = make(&mut maker).map_err(|e| match e {
            Obstacle::Fault(Error::Core(e)) => refused(e),
            other => other,
        })?;
        let in_place = scope::base(&node.target).1.ends_with('_');
        let made = match target.filter(|_| in_place) {
            Some(target) => {
                self.write(scope, target.tensor, new)?;
                Made::Tensor(target.tensor)
            }
            None => Made::Value(new),
        };
        Ok(self.define(scope, node, &[made])?)
    }

    /// A tensor of complex numbers seen by other operators. A conjugate is read anew as a view is, but no
    /// write goes through it.
    fn seen(
        &mut self,
        scope: &Scope<'a>,
        seen: Operand,
        steps: fn(usize) -> Vec<(&'static OpDef, Attrs)>,
    ) -> Result<TensorId, Obstacle> {
        let (mut t, mut value) = self.operand(scope, seen.tensor)?;
        let rank = self.b.ty(value).shape.rank();
        for (op, attrs) in steps(rank.saturating_sub(1)) {
            let ty = self.b.ty(value).clone();
            value = self.b.one(op, &[value], attrs.clone()).map_err(refused)?;
            let base = self.tensors.layout(t).clone();
            let layout = match op.body {
                Body::View(view) => {
                    let cx = OpCx { inputs: vec![Some(&ty)], attrs: &attrs };
                    let layout = (view.layout)(&cx, &base, 0).map_err(refused)?;
                    layout.ok_or_else(|| refuse!(Argument, "{} needs a copy", op.name))?
                }
                _ => base,
            };
            t = self.tensors.views(t, op, vec![], attrs, vec![(value, layout)])[0];
        }
        Ok(t)
    }

    /// Makes the arguments of a call those that its operator takes of pairs, if that is left to do.
    pub fn of_pairs(
        &mut self,
        scope: &Scope<'a>,
        node: &Node,
        turn: Turn,
        call: &mut Call,
    ) -> Result<(), Obstacle> {
        let Turn::OfPairs(axes) = turn else { return Ok(()) };
        let results =
            node.outputs.iter().flat_map(|o| scope::output_names(std::slice::from_ref(o))).flatten();
        let first = call.tensors.iter().flatten().find(|o| o.complex).copied();
        let (Some(first), true) = (first, results.into_iter().all(|name| scope.is_complex_name(name))) else {
            return Err(Obstacle::Unsupported(ways_out::complex(&node.target)));
        };
        let ty = self.tensors.ty(&self.b, first.tensor).clone();
        let rank = ty.shape.rank().saturating_sub(1);
        let mut attrs = Attrs::new();
        for (name, value) in call.attrs.iter() {
            let axes = axes.iter().find(|(n, _)| *n == name).map(|(_, axes)| *axes);
            attrs.set(name, axes.map_or(Ok(value.clone()), |axes| adapted(axes, name, value, rank))?);
        }
        for (name, axes) in axes {
            if matches!(axes, AllDims) && attrs.get(name).is_none() {
                attrs.set(name, (0..rank as i64).collect::<Vec<_>>());
            }
        }
        call.attrs = attrs;
        for operand in call.tensors.iter_mut().flatten().filter(|o| !o.complex) {
            let (_, value) = self.operand(scope, operand.tensor)?;
            let dtype = self.b.ty(value).dtype;
            let adapted = match operand.argument {
                "indices" | "index" if !dtype.is_float() => continue,
                _ if dtype == DType::Bool => {
                    let rank = self.b.ty(value).shape.rank();
                    self.b.unsqueeze(value, rank).map_err(refused)?
                }
                _ => pairs::promoted(&mut self.b, value, ty.dtype).map_err(refused)?,
            };
            let layout = Layout::contiguous(&self.b.ty(adapted).shape);
            (operand.tensor, operand.complex) = (self.tensors.root(adapted, layout), true);
        }
        Ok(())
    }
}

/// An attribute as it is of pairs, for complex numbers of so many dimensions.
fn adapted(axes: Axes, name: &str, value: &Attr, rank: usize) -> Result<Attr, Obstacle> {
    let wrapped = |d: i64, rank: usize| match wrap_dim(d, rank) {
        Some(at) if at < rank => Ok(at as i64),
        _ => Err(refuse!(Argument, "`{name}` = {d} is out of range for {rank} dimensions")),
    };
    let with = |value: &[i64], after: i64| value.iter().copied().chain([after]).collect::<Vec<_>>();
    Ok(match (axes, value) {
        (Dims | AllDims, Attr::Int(d)) => Attr::Int(wrapped(*d, rank)?),
        (NewDim, Attr::Int(d)) => Attr::Int(wrapped(*d, rank + 1)?),
        (AllDims, Attr::Ints(dims)) if dims.is_empty() => Attr::Ints((0..rank as i64).collect()),
        // Without dimensions the elements count in row-major order, which are pairs here.
        (Dims, Attr::Ints(dims)) if dims.is_empty() => {
            return Err(Obstacle::Unsupported(format!(
                "`{name}` names no dimension of complex numbers: name all"
            )));
        }
        (Dims | AllDims, Attr::Ints(dims)) => {
            Attr::Ints(dims.iter().map(|&d| wrapped(d, rank)).collect::<Result<_>>()?)
        }
        (Order, Attr::Ints(dims)) => {
            let dims = dims.iter().map(|&d| wrapped(d, rank)).collect::<Result<Vec<_>>>()?;
            Attr::Ints(with(&dims, rank as i64))
        }
        (Sizes, Attr::Ints(sizes)) => Attr::Ints(with(sizes, 2)),
        (Repeats, Attr::Ints(repeats)) => Attr::Ints(with(repeats, 1)),
        (Borders, Attr::Ints(borders)) => Attr::Ints([&[0, 0], &borders[..]].concat()),
        (Zero, Attr::Int(0) | Attr::Bool(false)) => value.clone(),
        (Zero, Attr::Float(x)) if *x == 0.0 => value.clone(),
        (Constant, Attr::Str(mode)) if mode == "constant" => value.clone(),
        _ => {
            return Err(Obstacle::Unsupported(format!(
                "`{name}` = {value} of complex numbers: apply it to `torch.view_as_real`, or to both parts"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_parse_and_every_rule_stands_once() {
        assert!(SCHEMAS.iter().all(|s| Schema::parse(s).is_ok()));
        let mut names: Vec<&str> = RULES.iter().flat_map(|(names, _)| names.split(' ')).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        // Without a schema of our own the operator must be known of real numbers.
        let registry = headwater_core::Registry::standard();
        let known = |name: &str| {
            let overloads = [
                "default",
                "Tensor",
                "int",
                "dim",
                "self",
                "dtype",
                "using_ints",
                "memory_format",
                "Scalar",
                "self_int",
                "sections",
            ];
            SCHEMAS.iter().any(|s| s.starts_with(&format!("{name}(")))
                || overloads.iter().any(|o| registry.resolve(&format!("aten.{name}.{o}")).is_some())
        };
        let own = ["view_as_real", "view_as_complex"];
        let unknown: Vec<_> = names.into_iter().filter(|n| !own.contains(n) && !known(n)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
