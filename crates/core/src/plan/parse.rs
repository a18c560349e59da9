//! Reads the text form of plans (see [`super::text`]). Takes any text: what is wrong is an error with its
//! line and column. Checks the form alone; whether the plan may run is `pass::check_plan`'s business, and the
//! device's.

use super::text::{HEADER, KINDS};
use super::{
    ALIGN, Completion, Crossing, Halves, Place, Placement, Plan, Segment, SegmentId, Step, TensorView, Wait,
    Work,
};
use crate::attr::Attrs;
use crate::diagnostic::Result;
use crate::graph::text::PHASES;
use crate::graph::{Origin, OriginId, Phase, ValueId};
use crate::ops::{OpDef, Registry};
use crate::shape::Layout;
use crate::syntax::{Line, Spot, attribute, no_gap, statements};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Reads a plan, whose operators and attribute names `registry` must know.
///
/// # Errors
/// `Parse`, with line and column.
pub fn parse(text: &str, registry: &Registry) -> Result<Plan> {
    let mut reader = Reader {
        registry,
        alignment: ALIGN,
        segments: Vec::new(),
        steps: Vec::new(),
        waits: Vec::new(),
        placements: Vec::new(),
        completions: Vec::new(),
        halves: None,
        origins: BTreeMap::new(),
        origin_uses: Vec::new(),
        phase: Phase::Forward,
    };
    statements(text, HEADER, |line| reader.statement(line))?;
    if let Some((o, (number, at))) = reader.origin_uses.iter().find(|(o, _)| !reader.origins.contains_key(o))
    {
        let line = Line::new(*number, text.lines().nth(*number).unwrap_or(""));
        return Err(line.error((*number, *at), format!("@{o} is not defined")));
    }
    no_gap('@', reader.origins.keys())?;
    Ok(Plan {
        alignment: reader.alignment,
        segments: reader.segments,
        steps: reader.steps,
        waits: reader.waits,
        placements: reader.placements,
        completions: reader.completions,
        halves: reader.halves,
        origins: Arc::new(reader.origins.into_values().collect()),
    })
}

/// The plan as far as it has been read.
struct Reader<'a> {
    registry: &'a Registry,
    alignment: usize,
    segments: Vec<Segment>,
    steps: Vec<Step>,
    waits: Vec<Wait>,
    placements: Vec<Placement>,
    completions: Vec<Completion>,
    halves: Option<Halves>,
    origins: BTreeMap<u32, Origin>,
    /// Origins named, and where, to look up at the end: they are defined further down.
    origin_uses: Vec<(u32, Spot)>,
    phase: Phase,
}

impl Reader<'_> {
    fn statement(&mut self, line: &mut Line) -> Result<()> {
        match line.peek() {
            Some('$') => self.segment(line),
            Some('@') => {
                let spot = line.spot();
                let (id, origin) = line.origin_statement()?;
                match self.origins.insert(id, origin) {
                    None => Ok(()),
                    Some(_) => Err(line.error(spot, format!("@{id} is defined twice"))),
                }
            }
            _ => match line.word()? {
                "alignment" => {
                    self.alignment = line.number("a number of bytes")?;
                    Ok(())
                }
                "step" => self.step(line),
                "place" => self.placement(line),
                "wait" => {
                    let step = line.number("the number of a step")?;
                    line.expect("for")?;
                    self.waits.push(Wait { step, on: line.number("the number of a step")? });
                    Ok(())
                }
                "complete" => {
                    line.expect("$")?;
                    let segment = SegmentId(line.number("the number of a segment")?);
                    line.expect("step")?;
                    let step = line.number("the number of a step")?;
                    self.completions.push(Completion { segment, step });
                    Ok(())
                }
                "boundary" => {
                    if self.halves.is_some() {
                        return Err(line.fail("one boundary alone"));
                    }
                    let boundary = line.number("the number of a step")?;
                    self.halves = Some(Halves { boundary, crossing: Vec::new(), returned: Vec::new() });
                    Ok(())
                }
                "cross" => {
                    let (name, place, ty) = (line.string()?, place(line)?, line.ty()?);
                    self.halves(line)?.crossing.push(Crossing { name, ty, place });
                    Ok(())
                }
                "return" => {
                    let returned = (place(line)?, line.number("a number of bytes")?);
                    self.halves(line)?.returned.push(returned);
                    Ok(())
                }
                word => match PHASES.into_iter().find(|(_, w)| *w == word) {
                    Some((phase, _)) => {
                        self.phase = phase;
                        Ok(())
                    }
                    None => Err(line.fail_at(word, "a segment, a step, a place, an origin or a phase")),
                },
            },
        }
    }

    fn segment(&mut self, line: &mut Line) -> Result<()> {
        line.expect("$")?;
        let spot = line.spot();
        if line.number::<usize>("the number of a segment")? != self.segments.len() {
            return Err(line.error(spot, format!("expected segment ${} here", self.segments.len())));
        }
        line.expect("=")?;
        let word = line.word()?;
        let kind = KINDS.into_iter().find(|(_, w)| *w == word).map(|(kind, _)| kind);
        let kind = kind.ok_or_else(|| line.fail_at(word, "a kind of segment such as state"))?;
        self.segments.push(Segment { kind, name: line.string()?, bytes: line.number("a number of bytes")? });
        Ok(())
    }

    fn op(&self, line: &mut Line) -> Result<&'static OpDef> {
        let word = line.word()?;
        self.registry.by_name(word).ok_or_else(|| line.fail_at(word, "a known operator"))
    }

    fn step(&mut self, line: &mut Line) -> Result<()> {
        let op = self.op(line)?.name;
        let work = match line.word()? {
            "rows" => Work::Rows(Arc::new(line.program()?)),
            "kernel" => {
                let kernel = self.op(line)?;
                let mut attrs = Attrs::new();
                line.expect("(")?;
                while !line.eat(")") {
                    if !attrs.is_empty() {
                        line.expect(",")?;
                    }
                    attribute(line, |name| self.registry.attr_name(name), &mut attrs)?;
                }
                Work::Kernel { op: kernel, attrs }
            }
            word => return Err(line.fail_at(word, "`rows` or `kernel`")),
        };
        line.expect("(")?;
        let reads = line.list(")", |l| if l.eat("_") { Ok(None) } else { view(l).map(Some) })?;
        line.expect("->")?;
        line.expect("(")?;
        let writes = line.list(")", view)?;
        let workspace = match line.eat("workspace") {
            true => Some((place(line)?, line.number("a number of bytes")?)),
            false => None,
        };
        let stream = if line.eat("stream") { line.number("the number of a stream")? } else { 0 };
        line.expect("flops")?;
        let flops = line.float()?;
        let (origin, phase) = (self.origin(line)?, self.phase);
        self.steps.push(Step { work, reads, writes, workspace, op, origin, phase, flops, stream });
        Ok(())
    }

    fn placement(&mut self, line: &mut Line) -> Result<()> {
        let (value, place, bytes) = (ValueId(line.value()?), place(line)?, line.number("a number of bytes")?);
        line.expect("steps")?;
        let first = line.number("the number of a step")?;
        line.expect("to")?;
        let last = line.number("the number of a step")?;
        let origin = self.origin(line)?;
        self.placements.push(Placement { value, place, bytes, first, last, origin });
        Ok(())
    }

    /// The halves that a boundary further up has begun.
    fn halves(&mut self, line: &mut Line) -> Result<&mut Halves> {
        self.halves.as_mut().ok_or_else(|| line.fail("a boundary before this"))
    }

    /// The origin at the end of a line, `@0` where there is none.
    fn origin(&mut self, line: &mut Line) -> Result<OriginId> {
        if line.peek() != Some('@') {
            return Ok(OriginId(0));
        }
        let spot = line.spot();
        let origin = line.origin()?;
        self.origin_uses.push((origin, spot));
        Ok(OriginId(origin))
    }
}

/// `$1[64]`
fn place(line: &mut Line) -> Result<Place> {
    line.expect("$")?;
    let segment = SegmentId(line.number("the number of a segment")?);
    line.expect("[")?;
    let offset = line.number("a byte")?;
    line.expect("]")?;
    Ok(Place { segment, offset })
}

/// `$1[64] f32[2, 3]{3, 1} + 5`
fn view(line: &mut Line) -> Result<TensorView> {
    let (place, ty) = (place(line)?, line.ty()?);
    line.expect("{")?;
    let strides = line.list("}", |l| l.number::<isize>("a stride"))?;
    if strides.len() != ty.shape.rank() {
        return Err(line.fail(&format!("{} strides before this", ty.shape.rank())));
    }
    let offset = if line.eat("+") { line.number("a number of elements")? } else { 0 };
    let layout = Layout { shape: ty.shape, strides: strides.into(), offset };
    Ok(TensorView { place, dtype: ty.dtype, layout })
}
