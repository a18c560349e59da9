//! Classes of characters: brackets, properties and those with a letter of their own, written out by Unicode's
//! properties.

use super::{DEPTH, Part, Read, Reader, fold, named};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

/// The characters of words: `\w` within brackets. On its own it has also those of [`super::WORD`].
const WORDS: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}";
impl Reader {
    /// `\s`, `\d`, `\h` and their opposites.
    pub(super) fn shorthand(&self, c: char) -> Option<&'static str> {
        Some(match c {
            's' => r"[\p{White_Space}]",
            'S' => r"[^\p{White_Space}]",
            'd' => r"[\p{Nd}]",
            'D' => r"[^\p{Nd}]",
            'h' => "[0-9A-Fa-f]",
            'H' => "[^0-9A-Fa-f]",
            _ => return None,
        })
    }

    /// The name after `\p`, as it is looked up, and true if all others are meant.
    pub(super) fn property(&mut self, negative: bool) -> Read<(String, bool)> {
        if !self.takes("{") {
            return named("\\p without braces");
        }
        let opposite = self.takes("^");
        let name = self.until('}')?;
        let plain: String = name.chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect();
        if plain.is_empty() || !plain.chars().all(|c| c.is_ascii_alphanumeric()) {
            return named(format_args!("\\p{{{name}}}"));
        }
        Ok((plain.to_ascii_lowercase(), negative != opposite))
    }

    pub(super) fn class_alone(&mut self) -> Read<Part> {
        let begin = self.at;
        let negative = self.peek() == Some('^');
        let class = self.brackets()?;
        if self.flags.ignore && class.sets {
            let written: String = self.chars[begin..self.at].iter().collect();
            return Err(format!("the class `[{written}` where case is ignored"));
        }
        self.class(&class.text, negative)
    }

    /// A class in the new syntax, after it has been read.
    pub(super) fn class(&mut self, text: &str, negative: bool) -> Read<Part> {
        let of = |text: &str| -> Read<ClassUnicode> {
            let hir = regex_syntax::parse(text).map_err(|_| format!("the class `{text}`"))?;
            match hir.into_kind() {
                HirKind::Class(Class::Unicode(class)) => Ok(class),
                HirKind::Literal(l) => {
                    let c = std::str::from_utf8(&l.0).ok().and_then(|t| t.chars().next());
                    let c = c.ok_or("a class")?;
                    Ok(ClassUnicode::new([ClassUnicodeRange::new(c, c)]))
                }
                _ => Err(format!("the class `{text}`")),
            }
        };
        let set = of(text)?;
        if !self.flags.ignore {
            return Ok(Part::of(text, 1));
        }
        let mut inside = set;
        if negative {
            inside.negate();
        }
        // Where case is ignored, a class with ß matches "ss" as well; without it, both libraries take in
        // other cases.
        if !negative && fold::expands(&inside) {
            return Err(fold::ERROR.into());
        }
        Ok(Part::of(format!("(?i:{text})"), 1))
    }

    /// The rest of a class, with its end.
    fn brackets(&mut self) -> Read<Brackets> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("more than {DEPTH} classes in each other"));
        }
        let mut text = String::from(if self.takes("^") { "[^" } else { "[" });
        let (mut sets, mut operands, mut operand) = (false, vec![], String::new());
        // What came last: nothing, a character that a range may begin with, or something else.
        let mut last: Option<Option<char>> = None;
        let mut first = true;
        loop {
            let c = self.next().ok_or("the missing `]`")?;
            match c {
                ']' if !first => break,
                '&' if self.takes("&") => {
                    sets = true;
                    if operand.is_empty() {
                        return named("&&");
                    }
                    operands.push(std::mem::take(&mut operand));
                    last = None;
                }
                '[' if self.takes(":") => {
                    let opposite = self.takes("^");
                    let name = self.until(':')?;
                    if !self.takes("]") {
                        return named(format_args!("[:{name}"));
                    }
                    operand += &posix(&name, opposite).ok_or(format!("`[:{name}:]`"))?;
                    sets |= opposite;
                    last = Some(None);
                }
                '[' => {
                    sets = true;
                    operand += &self.brackets()?.text;
                    last = Some(None);
                }
                // The first, the last, and after what begins no range.
                '-' if last.is_some() && self.peek() != Some(']') => match last {
                    Some(Some(from)) => {
                        let mut to = self.next().ok_or("the missing `]`")?;
                        if to == '\\' {
                            let c = self.next().ok_or("the backslash at the end")?;
                            to = self.inside(c)?;
                        } else if matches!(to, '[' | '&') {
                            return named(format_args!("{from}-{to}"));
                        }
                        if to < from {
                            return named(format_args!("{from}-{to}"));
                        }
                        operand += &format!("-\\x{{{:X}}}", to as u32);
                        last = Some(None);
                    }
                    _ => return named("-"),
                },
                '\\' => {
                    let c = self.next().ok_or("the backslash at the end")?;
                    let set = match c {
                        'w' => Some(format!("[{WORDS}]")),
                        'W' => Some(format!("[^{WORDS}]")),
                        'p' | 'P' => {
                            let (name, negative) = self.property(c == 'P')?;
                            sets |= negative;
                            Some(property(&name, negative)?)
                        }
                        c => self.shorthand(c).map(str::to_string),
                    };
                    sets |= matches!(c, 'W');
                    last = Some(match set {
                        Some(set) => {
                            operand += &set;
                            None
                        }
                        None => {
                            let c = self.inside(c)?;
                            operand += &format!("\\x{{{:X}}}", c as u32);
                            Some(c)
                        }
                    });
                }
                c => {
                    operand += &format!("\\x{{{:X}}}", c as u32);
                    last = Some(Some(c));
                }
            }
            first = false;
        }
        if operand.is_empty() {
            return named("]");
        }
        operands.push(operand);
        match operands.len() {
            1 => text += &operands[0],
            _ => text += &operands.iter().map(|o| format!("[{o}]")).collect::<Vec<_>>().join("&&"),
        }
        text.push(']');
        self.depth -= 1;
        Ok(Brackets { text, sets })
    }

    /// The character that an escape within brackets stands for.
    fn inside(&mut self, c: char) -> Read<char> {
        match c {
            'b' => Ok('\x08'),
            c => self.character(c),
        }
    }
}

/// A class that has been read.
struct Brackets {
    text: String,
    /// It holds classes that are negated or met: where case is ignored, their order counts.
    sets: bool,
}

/// A property by its name, as [`Reader::property`] gives it.
pub(super) fn property(name: &str, negative: bool) -> Read<String> {
    // Signs such as $ and + are punctuation in brackets alone.
    let text = match name {
        "punct" => if negative { r"[^\p{P}]" } else { r"[\p{P}]" }.into(),
        name => match posix(name, negative) {
            Some(text) => text,
            None => format!("[{}\\p{{{name}}}]", if negative { "^" } else { "" }),
        },
    };
    // `regex-syntax` knows `IsGreek`, which Oniguruma does not.
    match regex_syntax::parse(&text) {
        Ok(_) if !name.starts_with("is") => Ok(text),
        _ => named(format_args!("\\p{{{name}}}")),
    }
}

/// A class of POSIX by its name.
fn posix(name: &str, negative: bool) -> Option<String> {
    let (not, set) = match name {
        "alnum" => (false, r"\p{Alphabetic}\p{Nd}"),
        "alpha" => (false, r"\p{Alphabetic}"),
        "ascii" => (false, r"\x00-\x7F"),
        "blank" => (false, r"\t\p{Zs}"),
        "cntrl" => (false, r"\p{Cc}"),
        "digit" => (false, r"\p{Nd}"),
        "graph" => (true, r"\p{White_Space}\p{Cc}\p{Cn}"),
        "lower" => (false, r"\p{Lowercase}"),
        "print" => (true, r"\p{Cc}\p{Cn}\p{Zl}\p{Zp}"),
        "punct" => (false, r"\p{P}\p{S}"),
        "space" => (false, r"\p{White_Space}"),
        "upper" => (false, r"\p{Uppercase}"),
        "word" => (false, WORDS),
        "xdigit" => (false, "0-9A-Fa-f"),
        _ => return None,
    };
    Some(format!("[{}{set}]", if negative != not { "^" } else { "" }))
}
