//! Ascend C: the source of a kernel program, for the vendor's compilers from CANN 8.0 on.
//!
//! Flags and barriers are the program's own, so the source is built without automatic synchronisation.
//! Memories of a core are taken whole and cut at the program's addresses. The program's text follows the
//! source in comments, between lines that begin with [`BEGIN`] and [`END`]: the program can be read back from
//! the source.

mod calls;
mod scalars;

use crate::chip::Arch;
use crate::kernel::{
    Base, CoreFact, Elem, Instr, Param, ParamKind, Part, Program, Scalar, ScalarBinary, ScalarType, SourceId,
    Space, Stmt, StmtKind, Unit, VarId, hash,
};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

/// Line before a program's text; the kernel's name follows.
pub const BEGIN: &str = "// headwater-program ";
/// Line after it.
pub const END: &str = "// headwater-program-end";

/// The source of a verified program: one translation unit with one kernel.
pub fn emit(program: &Program) -> String {
    let mut out =
        Emitter { program, text: String::new(), depth: 0, source: SourceId(0), once: HashMap::new() };
    out.all();
    out.text
}

struct Emitter<'a> {
    program: &'a Program,
    text: String,
    depth: usize,
    /// Source that the last statement belonged to.
    source: SourceId,
    /// Variables that are set at one place only, which declares them.
    once: HashMap<VarId, usize>,
}

/// Name of a memory's tensor of bytes, and the position that it is allocated as.
const fn memory(space: Space) -> (&'static str, &'static str) {
    match space {
        Space::Gm => ("", ""),
        Space::Ub => ("ub", "VECCALC"),
        Space::L1 => ("l1", "A1"),
        Space::L0a => ("l0a", "A2"),
        Space::L0b => ("l0b", "B2"),
        Space::L0c => ("l0c", "CO1"),
        Space::Bt => ("bt", "C2"),
    }
}

impl Emitter<'_> {
    fn line(&mut self, text: &str) {
        if !text.is_empty() {
            let _ = write!(self.text, "{:1$}{text}", "", self.depth * 4);
        }
        self.text.push('\n');
    }

    /// Text as a comment: whatever could end the line is escaped.
    fn comment(&mut self, text: &str) {
        let text: String = text.chars().map(|c| if c.is_control() || c == '\\' { ' ' } else { c }).collect();
        self.line(format!("// {text}").trim_end());
    }

    fn all(&mut self) {
        let program = self.program;
        self.comment(&format!(
            "Kernel {} for __NPU_ARCH__ {}. Written by Headwater.",
            program.name, program.arch
        ));
        for doc in &program.doc {
            self.comment(doc);
        }
        self.comment("");
        for param in &program.params {
            self.comment(&param.to_string());
        }
        for buffer in &program.buffers {
            let end = buffer.address.unwrap_or(0) + buffer.bytes;
            self.comment(&format!(
                "{}: {} bytes of {}, {} to {end}",
                buffer.name,
                buffer.bytes,
                buffer.space,
                buffer.address.unwrap_or(0)
            ));
        }
        self.line("#include \"kernel_operator.h\"");
        self.line("");
        self.line("using namespace AscendC;");
        self.line("");
        self.helpers();
        let params: Vec<String> = program.params.iter().map(declaration).collect();
        self.line(&format!(
            "extern \"C\" __global__ __aicore__ void {}({})",
            program.name,
            params.join(", ")
        ));
        self.line("{");
        self.depth = 1;
        self.kind();
        if let Some(sync) = program.params.iter().find(|p| p.kind == ParamKind::Sync) {
            self.line(&format!("set_ffts_base_addr(reinterpret_cast<uint64_t>({}));", sync.name));
        }
        for part in &program.parts {
            let guard = match (program.mixed(), part.unit) {
                (true, Unit::Cube) => Some("ASCEND_IS_AIC"),
                (true, _) => Some("ASCEND_IS_AIV"),
                _ => None,
            };
            if let Some(guard) = guard {
                self.line(&format!("if {guard} {{"));
                self.depth += 1;
            }
            self.part(part);
            if guard.is_some() {
                self.depth -= 1;
                self.line("}");
            }
        }
        self.depth = 0;
        self.line("}");
        self.line("");
        let text = program.to_string();
        self.line(&format!("{BEGIN}{}", program.name));
        for line in text.lines() {
            self.line(format!("// {line}").trim_end());
        }
        self.line(END);
        self.line(&format!("// hash {:016x}", hash(&text)));
    }

    /// The kernel's kind, where the vendor's headers require it.
    fn kind(&mut self) {
        let program = self.program;
        let kind = match (program.arch, &program.parts[..]) {
            (Arch::P310, _) => return,
            (Arch::A2, [part]) if part.unit == Unit::Cube => "KERNEL_TYPE_AIC_ONLY",
            (Arch::A2, [_]) if meets(program) => "KERNEL_TYPE_MIX_AIV_1_0",
            (Arch::A2, [_]) => "KERNEL_TYPE_AIV_ONLY",
            (Arch::A2, _) => "KERNEL_TYPE_MIX_AIC_1_2",
        };
        self.line("#ifdef KERNEL_TASK_TYPE_DEFAULT");
        self.line(&format!("KERNEL_TASK_TYPE_DEFAULT({kind});"));
        self.line("#endif");
    }

    /// Functions that scalars need and the language has not.
    fn helpers(&mut self) {
        let mut minmax = false;
        let mut bits = false;
        self.program.visit_scalars(&mut |x| match x {
            Scalar::Binary(ScalarBinary::Min | ScalarBinary::Max, ..) => minmax = true,
            Scalar::Float(x) => bits |= !x.0.is_finite(),
            _ => {}
        });
        // Sources may be joined into one unit.
        if minmax {
            self.line("#ifndef HEADWATER_SMALLER_LARGER");
            self.line("#define HEADWATER_SMALLER_LARGER");
            self.line(
                "template <typename T> __aicore__ inline T smaller_(T a, T b) { return b < a ? b : a; }",
            );
            self.line(
                "template <typename T> __aicore__ inline T larger_(T a, T b) { return b > a ? b : a; }",
            );
            self.line("#endif");
        }
        if bits {
            self.line("#ifndef HEADWATER_FROM_BITS");
            self.line("#define HEADWATER_FROM_BITS");
            self.line("__aicore__ inline float from_bits_(uint32_t bits)");
            self.line("{");
            self.line("    union { uint32_t bits; float number; } both;");
            self.line("    both.bits = bits;");
            self.line("    return both.number;");
            self.line("}");
            self.line("#endif");
        }
        if minmax || bits {
            self.line("");
        }
    }

    fn part(&mut self, part: &Part) {
        let program = self.program;
        let mut views: BTreeSet<(Base, Elem)> = BTreeSet::new();
        Program::walk(&part.body, &mut |stmt| {
            if let StmtKind::Instr(instr) = &stmt.kind {
                views.extend(instr.operands().into_iter().map(|(_, base, elem)| (base, elem)));
            }
        });
        self.line("TPipe pipe;");
        for &space in Space::ALL.iter().filter(|s| **s != Space::Gm) {
            if !views.iter().any(|(base, _)| program.space(*base) == space) {
                continue;
            }
            let (name, position) = memory(space);
            self.line(&format!("TBuf<TPosition::{position}> {name}_buf_;"));
            self.line(&format!("pipe.InitBuffer({name}_buf_, {});", program.peak(space)));
            self.line(&format!("LocalTensor<uint8_t> {name} = {name}_buf_.Get<uint8_t>();"));
        }
        for (base, elem) in views {
            let (name, c) = (self.tensor(base, elem), elem.c_name());
            match base {
                Base::Param(p) => {
                    let param = &program.params[p.0 as usize];
                    let len = param.bytes() / elem.size();
                    self.line(&format!("GlobalTensor<{c}> {name};"));
                    let pointer = format!("reinterpret_cast<__gm__ {c} *>({})", param.name);
                    self.line(&format!("{name}.SetGlobalBuffer({pointer}, {len});"));
                    if matches!(param.kind, ParamKind::Pointer { streamed: true, .. })
                        && program.arch == Arch::A2
                    {
                        self.line(&format!("{name}.SetL2CacheHint(CacheMode::CACHE_MODE_DISABLE);"));
                    }
                }
                Base::Buffer(b) => {
                    let buffer = &program.buffers[b.0 as usize];
                    let (memory, _) = memory(buffer.space);
                    let address = buffer.address.unwrap_or(0);
                    self.line(&format!(
                        "LocalTensor<{c}> {name} = {memory}[{address}].ReinterpretCast<{c}>();"
                    ));
                }
            }
        }
        self.variables(part);
        self.source = SourceId(0);
        self.body(&part.body);
    }

    /// Declares variables that are set at several places; those set at one are declared there.
    fn variables(&mut self, part: &Part) {
        let mut times: HashMap<VarId, usize> = HashMap::new();
        let mut inside: BTreeSet<VarId> = BTreeSet::new();
        Program::walk(&part.body, &mut |stmt| match &stmt.kind {
            StmtKind::Let(var, _) => *times.entry(*var).or_default() += 1,
            StmtKind::Instr(Instr::Load(x)) => *times.entry(x.into).or_default() += 1,
            StmtKind::For { var, .. } => *times.entry(*var).or_default() += 1,
            StmtKind::If { then, otherwise, .. } => {
                // A variable of a branch may be used after it.
                Program::walk(then, &mut |s| inside.extend(assigned(s)));
                Program::walk(otherwise, &mut |s| inside.extend(assigned(s)));
            }
            _ => {}
        });
        let mut many: Vec<VarId> =
            times.iter().filter(|(v, n)| **n > 1 || inside.contains(v)).map(|(v, _)| *v).collect();
        many.sort_unstable();
        for var in &many {
            let v = &self.program.vars[var.0 as usize];
            match v.ty {
                ScalarType::Int => self.line(&format!("int64_t {} = 0;", v.name)),
                ScalarType::Float => self.line(&format!("float {} = 0.0f;", v.name)),
            }
        }
        self.once = times.into_iter().filter(|(v, n)| *n == 1 && !inside.contains(v)).collect();
    }

    /// The left side of an assignment to a variable.
    fn target(&self, var: VarId) -> String {
        let v = &self.program.vars[var.0 as usize];
        match (self.once.contains_key(&var), v.ty) {
            (false, _) => v.name.clone(),
            (true, ScalarType::Int) => format!("const int64_t {}", v.name),
            (true, ScalarType::Float) => format!("const float {}", v.name),
        }
    }

    fn body(&mut self, body: &[Stmt]) {
        for stmt in body {
            if stmt.source != self.source {
                self.source = stmt.source;
                if let Some(source) = self.program.source(stmt.source) {
                    self.comment(&format!("{}: {}", source.op, source.origin));
                }
            }
            if !stmt.note.is_empty() {
                self.comment(&stmt.note);
            }
            match &stmt.kind {
                StmtKind::Instr(instr) => self.instr(instr),
                StmtKind::Let(var, x) => {
                    let text = format!("{} = {};", self.target(*var), self.scalar(x));
                    self.line(&text);
                }
                StmtKind::For { var, from, to, step, body } => {
                    let name = &self.program.vars[var.0 as usize].name;
                    let declared = if self.once.contains_key(var) { "int64_t " } else { "" };
                    let (from, to, step) = (self.scalar(from), self.scalar(to), self.scalar(step));
                    let text = format!("for ({declared}{name} = {from}; {name} < {to}; {name} += {step}) {{");
                    self.block(&text, body);
                    self.line("}");
                }
                StmtKind::While { cond, body } => {
                    let text = format!("while ({}) {{", self.scalar(cond));
                    self.block(&text, body);
                    self.line("}");
                }
                StmtKind::If { cond, then, otherwise } => {
                    let text = format!("if ({}) {{", self.scalar(cond));
                    self.block(&text, then);
                    if !otherwise.is_empty() {
                        self.block("} else {", otherwise);
                    }
                    self.line("}");
                }
            }
        }
    }

    fn block(&mut self, head: &str, body: &[Stmt]) {
        self.line(head);
        self.depth += 1;
        self.body(body);
        self.depth -= 1;
    }

    /// Name of the tensor of a base seen as a type. Names of programs do not end with `_`.
    fn tensor(&self, base: Base, elem: Elem) -> String {
        format!("{}_{elem}_", self.program.base_name(base))
    }
}

/// A parameter in C.
fn declaration(param: &Param) -> String {
    let ty = match param.kind {
        ParamKind::Pointer { .. } | ParamKind::Sync => "GM_ADDR",
        ParamKind::Int => "int64_t",
        ParamKind::Float => "float",
    };
    format!("{ty} {}", param.name)
}

fn assigned(stmt: &Stmt) -> Option<VarId> {
    match &stmt.kind {
        StmtKind::Let(var, _) => Some(*var),
        StmtKind::Instr(Instr::Load(x)) => Some(x.into),
        _ => None,
    }
}

/// True if all cores meet in hardware.
fn meets(program: &Program) -> bool {
    let mut found = false;
    for part in &program.parts {
        Program::walk(&part.body, &mut |s| {
            found |= matches!(
                s.kind,
                StmtKind::Instr(Instr::Barrier(crate::kernel::Barrier::Cores) | Instr::CrossSet(_))
            );
        });
    }
    found
}

/// A fact about the core in Ascend C.
const fn fact(fact: CoreFact) -> &'static str {
    match fact {
        CoreFact::Block => "static_cast<int64_t>(GetBlockIdx())",
        CoreFact::Blocks => "static_cast<int64_t>(GetBlockNum())",
        CoreFact::SubBlock => "static_cast<int64_t>(GetSubBlockIdx())",
    }
}
