//! Where case is ignored, Oniguruma takes some characters for several: ß for "ss", ﬁ for "fi", as full case
//! folding has it (Unicode's CaseFolding.txt, status F). `fancy-regex` folds single characters. Patterns in
//! which the two might differ are found here.

use regex_syntax::hir::ClassUnicode;
use std::sync::LazyLock;

/// Said of what would be folded otherwise.
pub(super) const ERROR: &str =
    "the characters that stand for several where case is ignored, such as ß for \"ss\",";

/// A character that is folded to several, with these, in order of characters.
static SEVERAL: LazyLock<Vec<(char, Vec<char>)>> = LazyLock::new(|| {
    // All of them are in the basic plane.
    let all = ('\0'..='\u{ffff}').filter(|c| !c.is_ascii());
    all.map(|c| (c, folded(c))).filter(|(_, to)| to.len() > 1).collect()
});

/// A character in the form that all its cases share.
fn folded(c: char) -> Vec<char> {
    let lower = |c: char| c.to_lowercase();
    lower(c).flat_map(char::to_uppercase).flat_map(lower).collect()
}

/// True if a class holds a character that is folded to several.
pub(super) fn expands(class: &ClassUnicode) -> bool {
    let holds = |c: char| class.ranges().iter().any(|r| (r.start()..=r.end()).contains(&c));
    SEVERAL.iter().any(|(c, _)| holds(*c))
}

/// Characters that follow each other in a pattern where case is ignored.
#[derive(Default)]
pub(super) struct Run(Vec<char>);

impl Run {
    /// Adds a character. False if it, or it with those before, may be folded otherwise.
    pub fn push(&mut self, c: char) -> bool {
        let to = folded(c);
        self.0.extend(&to);
        to.len() == 1 && !SEVERAL.iter().any(|(_, several)| self.0.ends_with(several))
    }

    /// Adds the last character again. True if that may be folded otherwise.
    pub fn again(&mut self) -> bool {
        self.0.last().copied().is_some_and(|c| !self.push(c))
    }

    /// Something else follows.
    pub fn end(&mut self) {
        self.0.clear();
    }
}
