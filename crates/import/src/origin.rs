//! A node's place in the user's model: reads `nn_module_stack` and `stack_trace`, as PyTorch writes
//! them.

use headwater_core::graph::Origin;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Longest text kept of a path, a class or a source line.
const KEEP: usize = 300;

/// Module and source line of a node, cut out of its metadata while reading.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    module: String,
    class: String,
    file: String,
    line: u32,
    code: String,
}

impl Trace {
    /// The origin of the node of this name.
    pub fn origin(&self, node: &str) -> Origin {
        Origin {
            node: kept(node).to_string(),
            module: self.module.clone(),
            class: self.class.clone(),
            file: self.file.clone(),
            line: self.line,
            code: self.code.clone(),
        }
    }

    /// Reads `key,path,class;key,path,class;...`, outermost module first. Keys may hold brackets with commas
    /// in them.
    fn read_modules(&mut self, stack: &str) {
        let Some(fields) = stack.rsplit(';').next().and_then(split_fields) else { return };
        // PyTorch's mark for nodes of its own making.
        if fields[0] == "_empty_nn_module_stack_from_metadata_hook" {
            return;
        }
        self.module = kept(fields[1]).to_string();
        self.class = kept(fields[2].rsplit('.').next().unwrap_or(fields[2])).to_string();
    }

    /// Reads a Python stack trace, innermost frame last, and keeps the innermost frame of the model's own
    /// code.
    fn read_frames(&mut self, trace: &str) {
        let mut best: Option<(bool, &str, u32, &str)> = None;
        let mut lines = trace.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((file, number)) = frame(line) else { continue };
            let code = lines.next_if(|next| frame(next).is_none()).map_or("", str::trim);
            let own = is_model_code(file);
            if own || best.is_none_or(|(best_own, ..)| !best_own) {
                best = Some((own, file, number, code));
            }
        }
        if let Some((_, file, line, code)) = best {
            (self.file, self.line, self.code) = (kept(file).to_string(), line, kept(code).to_string());
        }
    }
}

/// `File "path", line 12, in forward`
fn frame(line: &str) -> Option<(&str, u32)> {
    let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((file, digits.parse().ok()?))
}

/// Neither PyTorch itself nor code made up while exporting.
fn is_model_code(file: &str) -> bool {
    !(file.starts_with('<') || file.starts_with("torch/") || file.contains("/site-packages/torch/"))
}

/// Splits at commas outside brackets into exactly three fields.
fn split_fields(item: &str) -> Option<[&str; 3]> {
    let mut depth = 0i32;
    let mut parts = item.split(|c| {
        depth += match c {
            '[' | '(' => 1,
            ']' | ')' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    });
    let fields = [parts.next()?, parts.next()?, parts.next()?];
    parts.next().is_none().then_some(fields)
}

/// The first [`KEEP`] bytes, cut at a character.
fn kept(s: &str) -> &str {
    let end = (0..=KEEP.min(s.len())).rev().find(|&i| s.is_char_boundary(i)).unwrap_or(0);
    &s[..end]
}

impl<'de> Deserialize<'de> for Trace {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Metadata;
        impl<'de> Visitor<'de> for Metadata {
            type Value = Trace;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a node's metadata")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Trace, A::Error> {
                let mut trace = Trace::default();
                while let Some(key) = map.next_key::<Cow<str>>()? {
                    match &*key {
                        "nn_module_stack" => trace.read_modules(&map.next_value::<String>()?),
                        "stack_trace" => trace.read_frames(&map.next_value::<String>()?),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(trace)
            }
        }
        d.deserialize_map(Metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(modules: &str, frames: &str) -> Origin {
        let json = serde_json::json!({"nn_module_stack": modules, "stack_trace": frames, "torch_fn": "x"});
        serde_json::from_value::<Trace>(json).unwrap().origin("n")
    }

    #[test]
    fn the_innermost_module_and_the_innermost_line_of_the_model_are_kept() {
        let o = read(
            "L__self__,,m.Loss;L__self__model.layers.3,model.layers.3,m.Block;L['self'].f(1,2),model.layers.3.attn@1,m.Attention",
            "File \"/home/me/model.py\", line 22, in forward\n    y = self.l(x)\n  File \"/x/site-packages/torch/nn/modules/linear.py\", line 134, in forward\n    return F.linear(",
        );
        assert_eq!((o.module.as_str(), o.class.as_str()), ("model.layers.3.attn@1", "Attention"));
        assert_eq!((o.file.as_str(), o.line, o.code.as_str()), ("/home/me/model.py", 22, "y = self.l(x)"));
    }

    #[test]
    fn odd_metadata_leaves_the_origin_empty() {
        for (modules, frames) in [
            ("", ""),
            ("a,b", "File \"x"),
            (";;;,,,,", "File \"x\", line 99999999999999, in f"),
            ("a]],(b,c", "é"),
        ] {
            let o = read(modules, frames);
            assert_eq!((o.module.as_str(), o.line), ("", 0));
        }
        let long = "é".repeat(1000);
        assert!(read(&format!("a,{long},c"), "").module.len() <= KEEP);
    }
}
