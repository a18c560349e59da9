//! Reads the text form of graphs (see [`super::text`]). Takes any text: what is wrong is an error with its
//! line and column. Checks the form alone; whether the graph makes sense is [`verify`](fn@super::verify)'s
//! business.

use super::text::{HEADER, PHASES, roles};
use super::{
    Def, Graph, Input, InputRole, Node, NodeId, Origin, OriginId, Output, OutputRole, Phase, Value, ValueId,
};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::ops::Registry;
use crate::syntax::{Line, Spot, attribute, no_gap, statements};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads a graph, whose operators and attribute names `registry` must know.
///
/// # Errors
/// `Parse`, with line and column.
pub fn parse(text: &str, registry: &Registry) -> Result<Graph> {
    let mut reader = Reader::new(registry);
    statements(text, HEADER, |line| reader.statement(line))?;
    reader.finish(text)
}

/// The graph as far as it has been read.
struct Reader<'a> {
    registry: &'a Registry,
    graph: Graph,
    values: BTreeMap<u32, Value>,
    origins: BTreeMap<u32, Origin>,
    phase: Phase,
    /// Values and origins named, and where, to look up at the end: they may be defined further down.
    uses: Vec<(ValueId, Spot)>,
    origin_uses: Vec<(u32, Spot)>,
}

impl<'a> Reader<'a> {
    fn new(registry: &'a Registry) -> Self {
        Reader {
            registry,
            graph: Graph::default(),
            values: BTreeMap::new(),
            origins: BTreeMap::new(),
            phase: Phase::Forward,
            uses: Vec::new(),
            origin_uses: Vec::new(),
        }
    }

    fn statement(&mut self, line: &mut Line) -> Result<()> {
        match line.peek() {
            Some('%' | '_') => {
                let outputs = self.results(line)?;
                line.expect("=")?;
                let word = line.word()?;
                match roles().into_iter().find(|(_, w)| *w == word) {
                    Some((role, _)) if line.peek() == Some('"') => self.input(line, &outputs, role),
                    _ => self.node(line, outputs, word),
                }
            }
            Some('@') => self.origin(line),
            _ => {
                let word = line.word()?;
                match PHASES.into_iter().find(|(_, w)| *w == word) {
                    Some((phase, _)) => {
                        self.phase = phase;
                        Ok(())
                    }
                    None if word == "output" => self.output(line),
                    None => Err(line.fail_at(word, "a value, an output, an origin or a phase")),
                }
            }
        }
    }

    /// `%1, %2` or `_` for none.
    fn results(&mut self, line: &mut Line) -> Result<Vec<(ValueId, Spot)>> {
        let mut out = Vec::new();
        if line.eat("_") {
            return Ok(out);
        }
        loop {
            let spot = line.spot();
            out.push((ValueId(line.value()?), spot));
            if !line.eat(",") {
                return Ok(out);
            }
        }
    }

    fn define(&mut self, line: &mut Line, (v, spot): (ValueId, Spot), def: Def) -> Result<()> {
        let ty = line.ty()?;
        match self.values.insert(v.0, Value { ty, def }) {
            None => Ok(()),
            Some(_) => Err(line.error(spot, format!("{v} is defined twice"))),
        }
    }

    fn input(&mut self, line: &mut Line, outputs: &[(ValueId, Spot)], mut role: InputRole) -> Result<()> {
        let [output] = outputs else { return Err(line.fail("one value for an input")) };
        let name = line.string()?;
        if let InputRole::Parameter { aliases, .. } = &mut role
            && line.eat("also")
        {
            aliases.push(line.string()?);
            while line.eat(",") {
                aliases.push(line.string()?);
            }
        }
        line.expect(":")?;
        self.define(line, *output, Def::Input(self.graph.inputs.len() as u32))?;
        self.graph.inputs.push(Input { value: output.0, name, role });
        Ok(())
    }

    fn node(&mut self, line: &mut Line, outputs: Vec<(ValueId, Spot)>, word: &str) -> Result<()> {
        let Some(op) = self.registry.by_name(word) else {
            return Err(line.fail_at(word, "a known operator"));
        };
        line.expect("(")?;
        let (mut inputs, mut attrs) = (Vec::new(), Attrs::new());
        while !line.eat(")") {
            if !(inputs.is_empty() && attrs.is_empty()) {
                line.expect(",")?;
            }
            let before = line.rest;
            if line.peek() == Some('%') {
                inputs.push(Some(self.used(line)?));
            } else if line.eat("_") && matches!(line.peek(), Some(',' | ')')) {
                inputs.push(None);
            } else {
                line.rest = before;
                attribute(line, |name| self.registry.attr_name(name), &mut attrs)?;
            }
        }
        let node = NodeId(self.graph.nodes.len() as u32);
        for (i, &output) in outputs.iter().enumerate() {
            line.expect(if i == 0 { ":" } else { "," })?;
            self.define(line, output, Def::Node(node, i as u32))?;
        }
        let mut origin = OriginId(0);
        if line.peek() == Some('@') {
            let spot = line.spot();
            origin = OriginId(line.origin()?);
            self.origin_uses.push((origin.0, spot));
        }
        let outputs = outputs.into_iter().map(|o| o.0).collect();
        self.graph.nodes.push(Node { op, inputs, attrs, outputs, origin, phase: self.phase });
        Ok(())
    }

    fn used(&mut self, line: &mut Line) -> Result<ValueId> {
        let spot = line.spot();
        let v = ValueId(line.value()?);
        self.uses.push((v, spot));
        Ok(v)
    }

    fn output(&mut self, line: &mut Line) -> Result<()> {
        let name = line.string()?;
        line.expect("=")?;
        let value = self.used(line)?;
        let role = if line.eat("mutation") {
            line.expect("of")?;
            OutputRole::Mutation(self.used(line)?)
        } else if line.eat("gradients") {
            OutputRole::Gradients
        } else if line.eat("gradient") {
            line.expect("of")?;
            OutputRole::Gradient(self.used(line)?)
        } else {
            OutputRole::User
        };
        self.graph.outputs.push(Output { value, name, role });
        Ok(())
    }

    fn origin(&mut self, line: &mut Line) -> Result<()> {
        let spot = line.spot();
        let (id, origin) = line.origin_statement()?;
        match self.origins.insert(id, origin) {
            None => Ok(()),
            Some(_) => Err(line.error(spot, format!("@{id} is defined twice"))),
        }
    }

    fn finish(mut self, text: &str) -> Result<Graph> {
        let undefined = |(number, at): Spot, what: String| {
            let text = text.lines().nth(number).unwrap_or("");
            Err(Line::new(number, text).error((number, at), format!("{what} is not defined")))
        };
        if let Some((v, spot)) = self.uses.iter().find(|(v, _)| !self.values.contains_key(&v.0)) {
            return undefined(*spot, v.to_string());
        }
        if let Some((o, spot)) = self.origin_uses.iter().find(|(o, _)| !self.origins.contains_key(o)) {
            return undefined(*spot, format!("@{o}"));
        }
        no_gap('%', self.values.keys())?;
        no_gap('@', self.origins.keys())?;
        self.graph.values = self.values.into_values().collect();
        self.graph.origins = Arc::new(self.origins.into_values().collect());
        Ok(self.graph)
    }
}
