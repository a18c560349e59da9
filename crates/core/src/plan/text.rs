//! The text form of a plan: for people to read and compare, and exact, so that [`parse`](fn@super::parse)
//! gives the same plan back.
//!
//! ```text
//! headwater plan 1
//!
//! alignment 64
//! $0 = arena "arena" 256
//! $1 = state "parameters.f32" 4096
//!
//! forward
//! step addmm kernel addmm(alpha=1.0) ($1[0] f32[4]{1}, $2[0] f32[2, 3]{3, 1}, _) -> ($0[64] f32[2, 4]{4, 1})
//!     workspace $0[128] 64 flops 48.0  @1  # fc        (on the same line)
//! step relu rows[2][4] (f32(0 1)) -> (f32(0 1)) { … } ($0[64] f32[2, 4]{4, 1}) -> ($0[0] f32[2, 4]{4, 1}) flops 8.0
//!
//! place %7 $0[64] 32 steps 0 to 1  @1
//!
//! @0 = ""
//! @1 = "addmm" module "fc"
//! ```
//!
//! `alignment` is that of segments and buffers in bytes. `$1[64]` is byte 64 of segment 1. A view is a place,
//! a dtype, a shape, strides in elements, and `+ n` where its first element is not the place's first. A step
//! names its operator, its work (a kernel with attributes, or a row program), views read and written, and
//! workspace. `stream 1` follows where it runs on another stream than 0, and floating-point operations.
//! `wait 7 for 5` says that step 7 begins when step 5, of another stream, is over. `place` is a value's share
//! of the arena from its first step to its last. `complete $1 step 1` names the step after which segment 1 is
//! complete. Phases and origins are as in the text form of graphs. A plan in halves says so after these:
//!
//! ```text
//! boundary 12
//! cross "fc addmm" $0[64] f32[2, 4]
//! return $2[0] 32
//! ```

use super::{Completion, Crossing, Place, Placement, Plan, SegmentKind, Step, TensorView, Wait, Work};
use crate::exact::{Exact, Listed};
use crate::graph::text::{write_origin, write_origins};
use std::fmt::{self, Display, Formatter};

/// First line of every text; the number changes when the form does.
pub(super) const HEADER: &str = "headwater plan 1";

/// Words for the kinds of segments.
pub(super) const KINDS: [(SegmentKind, &str); 5] = [
    (SegmentKind::Arena, "arena"),
    (SegmentKind::State, "state"),
    (SegmentKind::Input, "input"),
    (SegmentKind::Output, "output"),
    (SegmentKind::Constant, "constant"),
];

impl Display for SegmentKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(KINDS[*self as usize].1)
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "${}[{}]", self.segment.0, self.offset)
    }
}

impl Display for TensorView {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let l = &self.layout;
        write!(f, "{} {}{}{{{}}}", self.place, self.dtype, l.shape, Listed(&l.strides))?;
        if l.offset != 0 { write!(f, " + {}", l.offset) } else { Ok(()) }
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}\n\nalignment {}", self.alignment)?;
        for (i, segment) in self.segments.iter().enumerate() {
            writeln!(f, "${i} = {} {:?} {}", segment.kind, segment.name, segment.bytes)?;
        }
        let mut phase = None;
        for step in &self.steps {
            if phase.replace(step.phase) != Some(step.phase) {
                writeln!(f, "\n{}", step.phase)?;
            }
            write_step(f, self, step)?;
        }
        f.write_str("\n")?;
        for Wait { step, on } in &self.waits {
            writeln!(f, "wait {step} for {on}")?;
        }
        for p in &self.placements {
            let Placement { value, place, bytes, first, last, origin } = p;
            write!(f, "place {value} {place} {bytes} steps {first} to {last}")?;
            write_origin(f, *origin, &self.origins)?;
        }
        for Completion { segment, step } in &self.completions {
            writeln!(f, "complete ${} step {step}", segment.0)?;
        }
        if let Some(halves) = &self.halves {
            writeln!(f, "\nboundary {}", halves.boundary)?;
            for Crossing { name, ty, place } in &halves.crossing {
                writeln!(f, "cross {name:?} {place} {ty}")?;
            }
            for (place, bytes) in &halves.returned {
                writeln!(f, "return {place} {bytes}")?;
            }
        }
        f.write_str("\n")?;
        write_origins(f, &self.origins)
    }
}

fn write_step(f: &mut Formatter<'_>, plan: &Plan, step: &Step) -> fmt::Result {
    let Step { work, reads, writes, workspace, op, origin, phase: _, flops, stream } = step;
    match work {
        Work::Rows(program) => write!(f, "step {op} {program}")?,
        Work::Kernel { op: kernel, attrs } => write!(f, "step {op} kernel {}({attrs})", kernel.name)?,
    }
    f.write_str(" (")?;
    for (i, read) in reads.iter().enumerate() {
        f.write_str(if i > 0 { ", " } else { "" })?;
        match read {
            Some(view) => write!(f, "{view}")?,
            None => f.write_str("_")?,
        }
    }
    write!(f, ") -> ({})", Listed(writes))?;
    if let Some((place, bytes)) = workspace {
        write!(f, " workspace {place} {bytes}")?;
    }
    if *stream != 0 {
        write!(f, " stream {stream}")?;
    }
    write!(f, " flops {}", Exact(*flops))?;
    write_origin(f, *origin, &plan.origins)
}
