//! The text form of a graph: for people to read, and exact, so that [`parse`](fn@super::parse) gives the
//! same graph back.
//!
//! ```text
//! headwater graph 1
//!
//! %0 = parameter "wte.weight" also "lm_head.weight" : f32[8, 4]
//! %1 = user "tokens" : i64[2, 3]
//!
//! forward
//! %2 = embedding(%0, %1, padding_idx=-1) : f32[2, 3, 4]  @1  # wte
//! %3 = dropout(%2, _, p=0.0) : f32[2, 3, 4]  @2
//!
//! output "loss" = %3
//!
//! @0 = ""
//! @1 = "embedding" module "wte" class "Embedding" file "model.py" line 12 code "return self.wte(tokens)"
//! ```
//!
//! One statement a line; `#` starts a comment. Inputs have a role, a name and a type. Nodes have their
//! operands (`_` is an absent one), attributes, result types and origin (`@0` where there is none).
//! `forward`, `backward` and `update` on a line of their own give the phase of the nodes below. Values and
//! origins are numbered from 0 without gaps.

use super::{Graph, Input, InputRole, Node, Origin, OriginId, Output, OutputRole, Phase};
use std::fmt::{self, Display, Formatter};

/// First line of every text; the number changes when the form does.
pub(super) const HEADER: &str = "headwater graph 1";

/// Words for the phases.
pub(crate) const PHASES: [(Phase, &str); 3] =
    [(Phase::Forward, "forward"), (Phase::Backward, "backward"), (Phase::Update, "update")];

/// Words for the input roles; a parameter's aliases are separate.
pub(super) fn roles() -> [(InputRole, &'static str); 8] {
    [
        (InputRole::Parameter { trainable: true, aliases: vec![] }, "parameter"),
        (InputRole::Parameter { trainable: false, aliases: vec![] }, "frozen"),
        (InputRole::Buffer { persistent: true }, "buffer"),
        (InputRole::Buffer { persistent: false }, "transient"),
        (InputRole::Constant, "constant"),
        (InputRole::User, "user"),
        (InputRole::Rng, "rng"),
        (InputRole::State, "state"),
    ]
}

impl Display for Phase {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(PHASES[*self as usize].1)
    }
}

impl Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}\n")?;
        for input in &self.inputs {
            write_input(f, self, input)?;
        }
        let mut phase = None;
        for node in &self.nodes {
            if phase.replace(node.phase) != Some(node.phase) {
                writeln!(f, "\n{}", node.phase)?;
            }
            write_node(f, self, node)?;
        }
        f.write_str("\n")?;
        for output in &self.outputs {
            write_output(f, output)?;
        }
        f.write_str("\n")?;
        write_origins(f, &self.origins)
    }
}

/// One line for each origin: `@1 = "node" module "path" …`.
pub(crate) fn write_origins(f: &mut Formatter<'_>, origins: &[Origin]) -> fmt::Result {
    for (i, origin) in origins.iter().enumerate() {
        write!(f, "@{i} = {:?}", origin.node)?;
        let parts = [("module", &origin.module), ("class", &origin.class), ("file", &origin.file)];
        for (name, text) in parts.into_iter().filter(|(_, text)| !text.is_empty()) {
            write!(f, " {name} {text:?}")?;
        }
        if origin.line != 0 {
            write!(f, " line {}", origin.line)?;
        }
        if !origin.code.is_empty() {
            write!(f, " code {:?}", origin.code)?;
        }
        f.write_str("\n")?;
    }
    Ok(())
}

fn write_input(f: &mut Formatter<'_>, graph: &Graph, input: &Input) -> fmt::Result {
    let (role, aliases) = match &input.role {
        InputRole::Parameter { trainable, aliases } => {
            (InputRole::Parameter { trainable: *trainable, aliases: vec![] }, &aliases[..])
        }
        role => (role.clone(), &[][..]),
    };
    let word = roles().into_iter().find(|(r, _)| *r == role).map_or("", |(_, word)| word);
    write!(f, "{} = {word} {:?}", input.value, input.name)?;
    for (i, alias) in aliases.iter().enumerate() {
        write!(f, "{}{alias:?}", if i == 0 { " also " } else { ", " })?;
    }
    writeln!(f, " : {}", graph.ty(input.value))
}

fn write_node(f: &mut Formatter<'_>, graph: &Graph, node: &Node) -> fmt::Result {
    for (i, v) in node.outputs.iter().enumerate() {
        write!(f, "{}{v}", if i > 0 { ", " } else { "" })?;
    }
    write!(f, "{}{}(", if node.outputs.is_empty() { "_ = " } else { " = " }, node.op.name)?;
    for (i, v) in node.inputs.iter().enumerate() {
        f.write_str(if i > 0 { ", " } else { "" })?;
        match v {
            Some(v) => write!(f, "{v}")?,
            None => f.write_str("_")?,
        }
    }
    if !node.attrs.is_empty() {
        write!(f, "{}{}", if node.inputs.is_empty() { "" } else { ", " }, node.attrs)?;
    }
    f.write_str(")")?;
    for (i, &v) in node.outputs.iter().enumerate() {
        write!(f, "{}{}", if i > 0 { ", " } else { " : " }, graph.ty(v))?;
    }
    write_origin(f, node.origin, &graph.origins)
}

/// The end of a line: where its node comes from, by number and, in a comment, by module path.
pub(crate) fn write_origin(f: &mut Formatter<'_>, origin: OriginId, origins: &[Origin]) -> fmt::Result {
    if origin != OriginId(0) {
        write!(f, "  @{}", origin.0)?;
    }
    // A comment: whatever could end the line is escaped.
    match origins.get(origin.0 as usize) {
        Some(origin) if !origin.module.is_empty() => writeln!(f, "  # {}", origin.module.escape_debug()),
        _ => f.write_str("\n"),
    }
}

fn write_output(f: &mut Formatter<'_>, output: &Output) -> fmt::Result {
    write!(f, "output {:?} = {}", output.name, output.value)?;
    match output.role {
        OutputRole::User => f.write_str("\n"),
        OutputRole::Mutation(v) => writeln!(f, " mutation of {v}"),
        OutputRole::Gradient(v) => writeln!(f, " gradient of {v}"),
        OutputRole::Gradients => f.write_str(" gradients\n"),
    }
}
