//! ATen schema strings: how an exported call's arguments map to a node's inputs and attributes.
//!
//! Grammar: `[ns::]name[.overload](Type arg[=default], ..., *, Type arg=default) -> ...`, as PyTorch prints
//! it.

use crate::attr::Attr;
use crate::dtype::DType;

/// Type of an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgType {
    /// `Tensor`
    Tensor,
    /// `Tensor?`
    OptTensor,
    /// `Tensor[]`
    TensorList,
    /// `Tensor?[]`
    OptTensorList,
    /// `int`, `SymInt`
    Int,
    /// `int[]`; with a size, a single int stands for that many
    Ints(Option<usize>),
    /// `float`
    Float,
    /// `float[]`
    Floats,
    /// `bool`
    Bool,
    /// `bool[]`, carried as 0 and 1
    Bools,
    /// `str`
    Str,
    /// `Scalar`: int, float or bool as given
    Scalar,
    /// `ScalarType`
    DType,
    /// `Layout`, `Device`, `MemoryFormat`, `Generator`: accepted and dropped
    Ignored,
}

/// One argument.
#[derive(Clone, PartialEq, Debug)]
pub struct Arg {
    /// Name.
    pub name: &'static str,
    /// Type, without its optionality except for tensors.
    pub ty: ArgType,
    /// True if `None` is allowed.
    pub optional: bool,
    /// Value when omitted; `None` if it must be given or its default is `None`.
    pub default: Option<Attr>,
    /// True if it must be given.
    pub required: bool,
    /// PyTorch's `(a!)`: the call changes this tensor in place. The new contents of the written arguments
    /// that are present are the operator's *last* outputs, in order of the arguments. They come after those
    /// the schema returns.
    pub written: bool,
}

/// A parsed schema.
#[derive(Clone, PartialEq, Debug)]
pub struct Schema {
    /// `aten.add.Tensor`: namespace, name, overload (`default` if none).
    pub target: String,
    /// Arguments in order.
    pub args: Vec<Arg>,
    /// Number of results declared; an operator may make only the first of them.
    pub results: usize,
    /// PyTorch's `-> Tensor(a!)`: for each result, the place among the written arguments of the tensor that
    /// it is.
    pub returned: Vec<Option<usize>>,
}

impl Schema {
    /// Parses a schema; the default namespace is `aten`.
    ///
    /// # Errors
    /// A sentence saying what does not parse.
    pub fn parse(text: &'static str) -> Result<Schema, String> {
        let bad = |what: &str| format!("schema `{text}`: {what}");
        let (head, rest) = text.split_once('(').ok_or_else(|| bad("no argument list"))?;
        let end = rest
            .find(") ->")
            .or_else(|| rest.strip_suffix(')').map(str::len))
            .ok_or_else(|| bad("no result"))?;
        let (ns, name) = head.split_once("::").unwrap_or(("aten", head));
        let (name, overload) = name.split_once('.').unwrap_or((name, "default"));
        let mut args = Vec::new();
        for part in split_top(&rest[..end]) {
            let part = part.trim();
            if part.is_empty() || part == "*" {
                continue;
            }
            args.push(Arg::parse(part).ok_or_else(|| bad(part))?);
        }
        let results = match rest[end..].split_once("->").map_or("()", |(_, r)| r.trim()) {
            "()" => vec![],
            list if list.starts_with('(') => split_top(list.trim_matches(['(', ')'])),
            one => vec![one],
        };
        // The set of aliases that an annotation names: `a` of `Tensor(a!)`.
        let set = |text: &'static str| Some(text.split_once('!')?.0.rsplit_once('(')?.1);
        let written: Vec<_> = split_top(&rest[..end]).into_iter().filter_map(set).collect();
        let place = |result| written.iter().position(|&w| Some(w) == set(result));
        let returned = results.iter().map(|&r| place(r)).collect();
        Ok(Schema { target: format!("{ns}.{name}.{overload}"), args, results: results.len(), returned })
    }

    /// True if `inputs` can be its tensor arguments, in order: lists take as many as they like, trailing
    /// optional ones may be left out.
    pub fn accepts<T>(&self, inputs: &[Option<T>]) -> bool {
        use ArgType::*;
        let types = self.args.iter().map(|a| a.ty);
        let tensors: Vec<ArgType> =
            types.filter(|t| matches!(t, Tensor | OptTensor | TensorList | OptTensorList)).collect();
        accepts(&tensors, inputs)
    }
}

fn accepts<T>(args: &[ArgType], inputs: &[Option<T>]) -> bool {
    let Some((arg, more)) = args.split_first() else { return inputs.is_empty() };
    let absent_allowed = matches!(arg, ArgType::OptTensor | ArgType::OptTensorList);
    let fits = |v: &Option<T>| v.is_some() || absent_allowed;
    match arg {
        ArgType::Tensor | ArgType::OptTensor => match inputs.split_first() {
            Some((first, rest)) => fits(first) && accepts(more, rest),
            None => absent_allowed && accepts(more, inputs),
        },
        _ if more.is_empty() => inputs.iter().all(fits),
        _ => (0..=inputs.len()).any(|n| inputs[..n].iter().all(fits) && accepts(more, &inputs[n..])),
    }
}

impl Arg {
    fn parse(text: &'static str) -> Option<Arg> {
        let (decl, default) = match text.split_once('=') {
            Some((d, v)) => (d.trim(), Some(v.trim())),
            None => (text, None),
        };
        let (ty, name) = decl.rsplit_once(' ')?;
        let ty = ty.trim();
        let optional = ty.ends_with('?');
        let base = ty.trim_end_matches('?');
        // Only the exclamation mark of an alias annotation `Tensor(a!)` matters: views are the operator's own
        // knowledge.
        let written = base.contains('!');
        let base = match (base.find('('), base.find(')')) {
            (Some(i), Some(j)) => format!("{}{}", &base[..i], &base[j + 1..]),
            _ => base.to_string(),
        };
        let (elem, list) = match base.split_once('[') {
            Some((e, n)) => (e, Some(n.trim_end_matches(']').parse::<usize>().ok())),
            None => (base.as_str(), None),
        };
        let ty = match (elem, list) {
            ("Tensor", None) if optional => ArgType::OptTensor,
            ("Tensor", None) => ArgType::Tensor,
            ("Tensor", Some(_)) => ArgType::TensorList,
            ("Tensor?", Some(_)) => ArgType::OptTensorList,
            ("int" | "SymInt", None) => ArgType::Int,
            ("int" | "SymInt", Some(n)) => ArgType::Ints(n),
            ("float", None) => ArgType::Float,
            ("float", Some(_)) => ArgType::Floats,
            ("bool", None) => ArgType::Bool,
            ("bool", Some(_)) => ArgType::Bools,
            ("str", None) => ArgType::Str,
            ("Scalar", None) => ArgType::Scalar,
            ("ScalarType", None) => ArgType::DType,
            ("Layout" | "Device" | "MemoryFormat" | "Generator", None) => ArgType::Ignored,
            _ => return None,
        };
        let required = default.is_none() && !optional;
        let default = match default {
            None | Some("None") => None,
            Some(v) => Some(parse_default(v, ty)?),
        };
        Some(Arg { name, ty, optional, default, required, written })
    }
}

fn parse_default(v: &'static str, ty: ArgType) -> Option<Attr> {
    Some(match (ty, v) {
        (_, "True") => Attr::Bool(true),
        (_, "False") => Attr::Bool(false),
        // PyTorch's reduction enumeration.
        (_, "Mean") => Attr::Int(1),
        (_, "contiguous_format") => return Some(Attr::Int(0)),
        (ArgType::Str, v) => Attr::Str(v.trim_matches(['\'', '"']).to_string()),
        (ArgType::Ints(n), v) => {
            let items: Option<Vec<i64>> = if let Some(v) = v.strip_prefix('[') {
                v.trim_end_matches(']')
                    .split(',')
                    .map(str::trim)
                    .filter(|s| !s.is_empty())
                    .map(|s| s.parse().ok())
                    .collect()
            } else {
                v.parse().ok().map(|x| vec![x; n.unwrap_or(1)])
            };
            Attr::Ints(items?)
        }
        (ArgType::Float, v) => Attr::Float(v.parse().ok()?),
        (ArgType::DType, v) => Attr::DType(DType::ALL.into_iter().find(|d| v == torch_name(*d))?),
        (_, v) => v.parse::<i64>().map(Attr::Int).or_else(|_| v.parse().map(Attr::Float)).ok()?,
    })
}

/// PyTorch's schema spelling of a dtype (`long`, `float`, ...).
fn torch_name(d: DType) -> &'static str {
    match d {
        DType::Bool => "bool",
        DType::U8 => "uint8",
        DType::I8 => "int8",
        DType::I16 => "short",
        DType::I32 => "int",
        DType::I64 => "long",
        DType::F16 => "half",
        DType::BF16 => "bfloat16",
        DType::F32 => "float",
        DType::F64 => "double",
    }
}

/// Splits at commas outside brackets.
fn split_top(s: &'static str) -> Vec<&'static str> {
    let (mut out, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in s.char_indices() {
        match c {
            '[' | '(' => depth += 1,
            ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&s[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&s[start..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_pytorch_schemas() {
        let s = Schema::parse("add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor").unwrap();
        assert_eq!((s.target.as_str(), s.results), ("aten.add.Tensor", 1));
        let results = |text| Schema::parse(text).unwrap().results;
        assert_eq!(results("f(Tensor x) -> (Tensor y, Tensor(a!)[], Tensor)"), 3);
        assert_eq!(
            (results("f(Tensor x) -> ()"), results("f(Tensor x)"), results("f(int x=1) -> Tensor(a!)")),
            (0, 0, 1)
        );
        assert_eq!(s.args[2].default, Some(Attr::Int(1)));
        let s = Schema::parse(
            "conv2d(Tensor input, Tensor weight, Tensor? bias=None, SymInt[2] stride=1, SymInt[2] padding=0) -> Tensor",
        )
        .unwrap();
        assert_eq!(s.args[3].default, Some(Attr::Ints(vec![1, 1])));
        assert_eq!(s.args[2].ty, ArgType::OptTensor);
        let s = Schema::parse("index.Tensor(Tensor self, Tensor?[] indices) -> Tensor").unwrap();
        assert_eq!(s.args[1].ty, ArgType::OptTensorList);
        let s =
            Schema::parse("x::f(Tensor(a!) self, int[1]? dim=None, str approximate='none') -> Tensor(a!)")
                .unwrap();
        assert_eq!((s.target.as_str(), s.args[1].optional), ("x.f.default", true));
        assert_eq!((s.args[0].written, s.args[1].written), (true, false));
        assert_eq!(s.args[2].default, Some(Attr::Str("none".into())));
        assert_eq!(s.returned, [Some(0)]);
        let s = Schema::parse(
            "f.out(Tensor x, *, Tensor(a!) y, Tensor(b!) z) -> (Tensor(b!), Tensor, Tensor(a!))",
        );
        assert_eq!(s.unwrap().returned, [Some(1), None, Some(0)]);
    }
}
