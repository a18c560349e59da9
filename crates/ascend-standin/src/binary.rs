//! The stand-in's binaries: a header and, for each kernel, its symbol and the text of its program. Compilers
//! of the stand-in make them from sources that carry the text in comments.

use headwater_ascend::emit::{BEGIN, END};
use std::fmt::Write;

/// First line of every binary.
const MAGIC: &str = "headwater stand-in binary 1";
/// Magic word of a binary whose compiler finds out by itself which cores a kernel needs.
pub const ANY: u32 = 0;

/// A kernel of a binary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelText {
    /// Symbol.
    pub name: String,
    /// Text of the program.
    pub program: String,
}

/// A binary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StandinBinary {
    /// Architecture number, 2201 or 2002.
    pub arch: u32,
    /// Magic word of the cores it runs on.
    pub magic: u32,
    /// True if it went through the linker; CANN loads no bare objects.
    pub linked: bool,
    /// Its kernels.
    pub kernels: Vec<KernelText>,
}

impl StandinBinary {
    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let state = if self.linked { "linked" } else { "object" };
        let mut text = format!("{MAGIC}\narch {} magic {} {state}\n", self.arch, self.magic);
        for kernel in &self.kernels {
            let _ = write!(text, "kernel {} {}\n{}", kernel.name, kernel.program.len(), kernel.program);
        }
        text.into_bytes()
    }

    /// From bytes; says what is wrong.
    pub fn parse(bytes: &[u8]) -> Result<StandinBinary, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
        let rest = text.strip_prefix(MAGIC).and_then(|r| r.strip_prefix('\n')).ok_or("no stand-in binary")?;
        let (head, mut rest) = rest.split_once('\n').ok_or("no second line")?;
        let words: Vec<_> = head.split(' ').collect();
        let &["arch", arch, "magic", magic, state] = words.as_slice() else {
            return Err(format!("the second line is `{head}`"));
        };
        let number = |text: &str| text.parse::<u32>().map_err(|e| format!("`{text}`: {e}"));
        let mut kernels = Vec::new();
        while !rest.is_empty() {
            let (line, tail) = rest.split_once('\n').ok_or("a kernel without a program")?;
            let words: Vec<_> = line.split(' ').collect();
            let &["kernel", name, length] = words.as_slice() else {
                return Err(format!("`{line}` is no kernel"));
            };
            let length = number(length)? as usize;
            let program = tail.get(..length).ok_or("a program is cut off")?;
            kernels.push(KernelText { name: name.into(), program: program.into() });
            rest = &tail[length..];
        }
        Ok(StandinBinary { arch: number(arch)?, magic: number(magic)?, linked: state == "linked", kernels })
    }
}

/// Programs that a source carries in its comments.
///
/// # Errors
/// The line and what is wrong: an `#error` as a compiler would meet it, a program without an end.
pub fn programs_of(source: &str, file: &str) -> Result<Vec<KernelText>, String> {
    let mut kernels = Vec::new();
    let mut lines = source.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(text) = line.trim_start().strip_prefix("#error") {
            return Err(format!("{file}:{}:2: error: {}", number + 1, text.trim()));
        }
        let Some(name) = line.strip_prefix(BEGIN) else { continue };
        let mut program = String::new();
        loop {
            match lines.next() {
                Some((_, END)) => break,
                Some((_, line)) => {
                    let line = line.strip_prefix("//").ok_or(format!("{file}: a program without an end"))?;
                    program += line.strip_prefix(' ').unwrap_or(line);
                    program.push('\n');
                }
                None => return Err(format!("{file}: a program without an end")),
            }
        }
        kernels.push(KernelText { name: name.trim().into(), program });
    }
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let source = "int x;\n// headwater-program a\n// standin 1\n//\n// add\n// headwater-program-end\n";
        let kernels = programs_of(source, "a.cpp").unwrap();
        assert_eq!(kernels[0].program, "standin 1\n\nadd\n");
        let binary = StandinBinary { arch: 2201, magic: 7, linked: true, kernels };
        assert_eq!(StandinBinary::parse(&binary.to_bytes()).unwrap(), binary);
        let cut = &binary.to_bytes()[..binary.to_bytes().len() - 1];
        assert!(StandinBinary::parse(cut).is_err());
        assert!(programs_of("\n#error no\n", "a.cpp").unwrap_err().contains("a.cpp:2"));
    }
}
