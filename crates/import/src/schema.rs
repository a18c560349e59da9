//! The shape of `model.json`: PyTorch's export schema, major version 8. Field and variant names are
//! PyTorch's. Owns reading; what the names refer to is checked by `verify`.
#![allow(missing_docs, clippy::enum_variant_names)]

use crate::origin::Trace;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;

/// Schema major version this importer reads.
pub const MAJOR: u64 = 8;

/// A JSON object as a table; a key that appears twice is an error.
#[derive(Debug, Clone)]
pub struct Table<V>(pub HashMap<String, V>);

impl<V> Default for Table<V> {
    fn default() -> Self {
        Table(HashMap::new())
    }
}

impl<V> std::ops::Deref for Table<V> {
    type Target = HashMap<String, V>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Table<V> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Entries<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = Table<V>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut table = HashMap::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if let Some(key) = table.contains_key(&key).then(|| crate::error::shown(&key)) {
                        return Err(de::Error::custom(format_args!("`{key}` stands twice")));
                    }
                    table.insert(key, value);
                }
                Ok(Table(table))
            }
        }
        d.deserialize_map(Entries(PhantomData))
    }
}

/// A float; PyTorch writes infinities and NaN as strings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Float(pub f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Float;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a number, \"Infinity\", \"-Infinity\" or \"NaN\"")
            }
            fn visit_f64<E>(self, x: f64) -> Result<Float, E> {
                Ok(Float(x))
            }
            fn visit_i64<E>(self, x: i64) -> Result<Float, E> {
                Ok(Float(x as f64))
            }
            fn visit_u64<E>(self, x: u64) -> Result<Float, E> {
                Ok(Float(x as f64))
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Float, E> {
                match s {
                    "Infinity" => Ok(Float(f64::INFINITY)),
                    "-Infinity" => Ok(Float(f64::NEG_INFINITY)),
                    "NaN" => Ok(Float(f64::NAN)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(s), &self)),
                }
            }
        }
        d.deserialize_any(Number)
    }
}

/// A symbolic expression and the value it had when exported.
#[derive(Debug, Clone, Deserialize)]
pub struct SymExpr {
    pub expr_str: String,
    pub hint: Option<Hint>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    AsInt(i64),
    AsBool(de::IgnoredAny),
    AsFloat(de::IgnoredAny),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymInt {
    AsExpr(SymExpr),
    AsInt(i64),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymFloat {
    AsExpr(SymExpr),
    AsFloat(Float),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymBool {
    AsExpr(SymExpr),
    AsBool(bool),
}

#[derive(Debug, Clone, Deserialize)]
pub struct TensorMeta {
    pub dtype: u64,
    pub sizes: Vec<SymInt>,
    pub requires_grad: bool,
    pub strides: Vec<SymInt>,
    pub storage_offset: SymInt,
    pub layout: u64,
}

/// `Layout.Strided`: dense tensors, the only ones supported.
pub const STRIDED: u64 = 7;

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymIntArgument {
    AsName(String),
    AsInt(i64),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymFloatArgument {
    AsName(String),
    AsFloat(Float),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymBoolArgument {
    AsName(String),
    AsBool(bool),
}

/// A tensor, token or other thing by name.
#[derive(Debug, Clone, Deserialize)]
pub struct Named {
    pub name: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionalTensor {
    AsTensor(Named),
    AsNone(de::IgnoredAny),
}

#[derive(Debug, Clone, Deserialize)]
pub struct GraphArgument {
    pub name: String,
    pub graph: Graph,
}

/// A complex number.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct ComplexValue {
    pub real: Float,
    pub imag: Float,
}

/// An argument of a node. Variants that only unsupported operators take keep no content.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    AsNone(de::IgnoredAny),
    AsTensor(Named),
    AsTensors(Vec<Named>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsString(String),
    AsStrings(de::IgnoredAny),
    AsSymInt(SymIntArgument),
    AsSymInts(Vec<SymIntArgument>),
    AsScalarType(u64),
    AsMemoryFormat(de::IgnoredAny),
    AsLayout(u64),
    AsDevice(de::IgnoredAny),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsSymBool(SymBoolArgument),
    AsSymBools(Vec<SymBoolArgument>),
    AsGraph(Box<GraphArgument>),
    AsOptionalTensors(Vec<OptionalTensor>),
    AsCustomObj(de::IgnoredAny),
    AsOperator(de::IgnoredAny),
    AsSymFloat(SymFloatArgument),
    AsSymFloats(Vec<SymFloatArgument>),
    AsOptionalTensor(OptionalTensor),
    AsComplex(ComplexValue),
    AsNestedTensors(Vec<Vec<Named>>),
    AsIntLists(de::IgnoredAny),
    AsStringToArgument(de::IgnoredAny),
    AsFloatLists(de::IgnoredAny),
}

impl Argument {
    /// PyTorch's name of the variant, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Argument::AsNone(_) => "None",
            Argument::AsTensor(_) => "a tensor",
            Argument::AsTensors(_) => "a list of tensors",
            Argument::AsInt(_) => "an int",
            Argument::AsInts(_) => "a list of ints",
            Argument::AsFloat(_) => "a float",
            Argument::AsFloats(_) => "a list of floats",
            Argument::AsString(_) => "a string",
            Argument::AsStrings(_) => "a list of strings",
            Argument::AsSymInt(_) => "a symbolic int",
            Argument::AsSymInts(_) => "a list of symbolic ints",
            Argument::AsScalarType(_) => "a dtype",
            Argument::AsMemoryFormat(_) => "a memory format",
            Argument::AsLayout(_) => "a layout",
            Argument::AsDevice(_) => "a device",
            Argument::AsBool(_) => "a bool",
            Argument::AsBools(_) => "a list of bools",
            Argument::AsSymBool(_) => "a symbolic bool",
            Argument::AsSymBools(_) => "a list of symbolic bools",
            Argument::AsGraph(_) => "a graph",
            Argument::AsOptionalTensors(_) => "a list of optional tensors",
            Argument::AsCustomObj(_) => "a custom object",
            Argument::AsOperator(_) => "an operator",
            Argument::AsSymFloat(_) => "a symbolic float",
            Argument::AsSymFloats(_) => "a list of symbolic floats",
            Argument::AsOptionalTensor(_) => "an optional tensor",
            Argument::AsComplex(_) => "a complex number",
            Argument::AsNestedTensors(_) => "nested lists of tensors",
            Argument::AsIntLists(_) => "nested lists of ints",
            Argument::AsStringToArgument(_) => "a dictionary",
            Argument::AsFloatLists(_) => "nested lists of floats",
        }
    }

    /// Calls `f` with every name this argument uses, sub-graphs' bodies excluded.
    pub fn names<'a>(&'a self, f: &mut impl FnMut(&'a str)) {
        let mut optional = |t: &'a OptionalTensor| {
            if let OptionalTensor::AsTensor(t) = t {
                f(&t.name);
            }
        };
        match self {
            Argument::AsOptionalTensors(ts) => ts.iter().for_each(optional),
            Argument::AsOptionalTensor(t) => optional(t),
            Argument::AsTensor(t) => f(&t.name),
            Argument::AsTensors(ts) => ts.iter().for_each(|t| f(&t.name)),
            Argument::AsNestedTensors(ts) => ts.iter().flatten().for_each(|t| f(&t.name)),
            Argument::AsSymInt(SymIntArgument::AsName(n))
            | Argument::AsSymBool(SymBoolArgument::AsName(n))
            | Argument::AsSymFloat(SymFloatArgument::AsName(n)) => f(n),
            Argument::AsSymInts(v) => v.iter().for_each(|a| {
                if let SymIntArgument::AsName(n) = a {
                    f(n)
                }
            }),
            Argument::AsSymBools(v) => v.iter().for_each(|a| {
                if let SymBoolArgument::AsName(n) = a {
                    f(n)
                }
            }),
            Argument::AsSymFloats(v) => v.iter().for_each(|a| {
                if let SymFloatArgument::AsName(n) = a {
                    f(n)
                }
            }),
            _ => {}
        }
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct NamedArgument {
    pub name: String,
    pub arg: Argument,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Node {
    pub target: String,
    pub inputs: Vec<NamedArgument>,
    pub outputs: Vec<Argument>,
    #[serde(rename = "metadata")]
    pub trace: Trace,
    #[serde(default)]
    pub name: Option<String>,
}

impl Node {
    /// A name for messages: the node's own, else that of its first output, else the target.
    pub fn label(&self) -> &str {
        let mut first = None;
        self.outputs.iter().for_each(|o| {
            o.names(&mut |n| {
                first.get_or_insert(n);
            })
        });
        self.name.as_deref().or(first).unwrap_or(&self.target)
    }
}

#[derive(Debug, Clone, Deserialize)]
pub struct Graph {
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    pub nodes: Vec<Node>,
    pub tensor_values: Table<TensorMeta>,
    #[serde(default)]
    pub sym_int_values: Table<SymInt>,
    #[serde(default)]
    pub sym_bool_values: Table<SymBool>,
    #[serde(default)]
    pub sym_float_values: Table<SymFloat>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec {
    UserInput { arg: Argument },
    Parameter { arg: Named, parameter_name: String },
    Buffer { arg: Named, buffer_name: String, persistent: bool },
    TensorConstant { arg: Named, tensor_constant_name: String },
    CustomObj { arg: Named, custom_obj_name: String },
    Token { arg: Named },
    ConstantInput {},
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputSpec {
    UserOutput { arg: Argument },
    LossOutput { arg: Named },
    BufferMutation { arg: Named, buffer_name: String },
    GradientToParameter { arg: Named },
    GradientToUserInput { arg: Named },
    UserInputMutation { arg: Named, user_input_name: String },
    Token { arg: Named },
    ParameterMutation { arg: Named, parameter_name: String },
}

#[derive(Debug, Clone, Deserialize)]
pub struct Signature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct GraphModule {
    pub graph: Graph,
    pub signature: Signature,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Range {
    pub min_val: Option<i64>,
    pub max_val: Option<i64>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Version {
    pub major: u64,
    pub minor: u64,
}

/// The whole of `models/<name>.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Model {
    pub graph_module: GraphModule,
    #[serde(default)]
    pub range_constraints: Table<Range>,
    #[serde(default)]
    pub torch_version: String,
    #[serde(default)]
    pub guards_code: Vec<String>,
}

/// Only the version, read first so that a file of another major version is refused as such.
#[derive(Debug, Deserialize)]
pub struct Head {
    pub schema_version: Version,
}

/// One stored tensor or object of `*_weights_config.json` and `*_constants_config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Payload {
    pub path_name: String,
    pub use_pickle: bool,
    pub tensor_meta: Option<TensorMeta>,
}

/// A weights or constants configuration: name to payload.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Payloads {
    pub config: Table<Payload>,
}
