//! The place in the user's model that a node comes from.

use std::fmt;

/// Index into a graph's origins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct OriginId(pub u32);

/// The place in the user's model that a node was traced from.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub struct Origin {
    /// Name of the node in the exported graph, e.g. `layer_norm_3`.
    pub node: String,
    /// Path of the innermost module, e.g. `encoder.layer.0.attention`; empty for the root.
    pub module: String,
    /// Class of that module, e.g. `BertSelfAttention`.
    pub class: String,
    /// Source file of the model, as recorded.
    pub file: String,
    /// Line in `file`; 0 if unknown.
    pub line: u32,
    /// The source text of that line.
    pub code: String,
}

/// The dtype that the source line of a conversion names. In an export in f32, `.float()` and `.to(x.dtype)`
/// are one and the same call; the line distinguishes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamedDType {
    /// f32 by its name.
    F32,
    /// That of a tensor, a module or a variable.
    Other,
    /// Neither, both, or the line is not recorded.
    Unknown,
}

impl Origin {
    /// The dtype that the source line names.
    pub fn named_dtype(&self) -> NamedDType {
        // Code that PyTorch generates, as where it traces a region a second time, is not the model's line.
        if self.file.starts_with('<') {
            return NamedDType::Unknown;
        }
        let code = &self.code[..];
        let word = |c: char| c.is_alphanumeric() || c == '_';
        // Places of `name` that are not the beginning of a longer word; what follows.
        let after = |name: &'static str| {
            code.match_indices(name)
                .map(move |(at, _)| &code[at + name.len()..])
                .filter(move |rest| !rest.starts_with(word))
        };
        let wide = ["float()", "float32", "FloatTensor", "torch.float"]
            .iter()
            .any(|name| after(name).next().is_some());
        // `dtype=` says only that one follows.
        let keyword = |rest: &str| rest.trim_start().starts_with('=') && !rest.trim_start().starts_with("==");
        let plain = |rest: &str| {
            let argument = rest.split([')', ',']).next().unwrap_or("").trim();
            let other = ["torch.", "device", "cpu", "cuda", "="].iter().any(|known| argument.contains(known));
            !argument.is_empty() && !other && argument.chars().all(|c| word(c) || c == '.')
        };
        let other = after("dtype").any(|rest| !keyword(rest))
            || code.contains("type_as(")
            || code.match_indices(".to(").any(|(at, call)| plain(&code[at + call.len()..]));
        match (wide, other) {
            (true, false) => NamedDType::F32,
            (false, true) => NamedDType::Other,
            _ => NamedDType::Unknown,
        }
    }

    /// True if the line of a conversion names a device and no dtype.
    pub fn moves_only(&self) -> bool {
        let moves = ["device", ".cpu()", ".cuda("].iter().any(|word| self.code.contains(word));
        moves && self.named_dtype() == NamedDType::Unknown && !self.code.contains("float")
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.node.is_empty() { "(no name)" } else { &self.node })?;
        if !self.module.is_empty() {
            write!(f, " in {}", self.module)?;
        }
        if !self.class.is_empty() {
            write!(f, " ({})", self.class)?;
        }
        if !self.file.is_empty() {
            write!(f, ", {}:{}", self.file, self.line)?;
        }
        if !self.code.is_empty() {
            write!(f, ": `{}`", self.code)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_a_conversion_names_its_dtype() {
        let named = |code: &str| Origin { code: code.into(), ..Origin::default() }.named_dtype();
        for code in [
            "x = x.float()",
            "hidden_states = hidden_states.to(torch.float32)",
            "scores = F.softmax(scores, dim=-1, dtype=torch.float32)",
            "y = y.to(dtype = torch.float)",
            "y = y.type(torch.FloatTensor)",
        ] {
            assert_eq!(named(code), NamedDType::F32, "{code}");
        }
        for code in [
            "return self.weight * hidden_states.to(input_dtype)",
            "y = y.to(x.dtype)",
            "y = y.to(dtype=self.dtype)",
            "y = y.type_as(x)",
            "y = y.to(other)",
            "y = y.to(device=x.device, dtype=x.dtype)",
        ] {
            assert_eq!(named(code), NamedDType::Other, "{code}");
        }
        for code in [
            "",
            "y = helper(x)",
            "p = F.softmax(s.float(), -1).to(q.dtype)",
            "y = y.to(x.device)",
            "torch.floating()",
        ] {
            assert_eq!(named(code), NamedDType::Unknown, "{code}");
        }
        assert!(Origin { code: "y = y.to(x.device)".into(), ..Origin::default() }.moves_only());
        assert!(
            !Origin { code: "y = y.to(x.device, torch.float32)".into(), ..Origin::default() }.moves_only()
        );
    }
}
