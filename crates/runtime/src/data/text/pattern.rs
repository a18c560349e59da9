//! Regular expressions of tokenizers: from the syntax of Oniguruma, in which `tokenizer.json` is written and
//! Hugging Face's own library reads it, to that of `fancy-regex`, which needs no C compiler. Both have the
//! same grammar, and give other meanings to some of it: classes such as `\w`, the ends of lines, intervals,
//! options.
//!
//! Every class is written out by Unicode properties, most anchors as lookarounds; what is left means the same
//! in both. What has no equal, or none that was compared, is refused by name. The classes were compared with
//! Oniguruma 6.9.10 on all code points (both have the tables of Unicode 16), patterns by
//! `headwater_tools.patterns`.

mod class;
mod fold;

/// Groups within each other that a pattern may have.
const DEPTH: usize = 100;
/// Oniguruma's largest number of repetitions.
const REPEATS: usize = 100_000;

/// `\w` on its own: Oniguruma has a table of its own for Latin 1, in which ² ³ ¹ ¼ ½ ¾ are of words.
const WORD: &str = r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}²³¹¼½¾]";

/// What is before it is no part of the match.
const KEEP: &str = r"\K";

/// The pattern in the syntax of `fancy-regex`.
///
/// # Errors
/// What cannot be said there, with its place.
pub(super) fn translated(pattern: &str) -> Result<String, String> {
    let mut reader = Reader {
        chars: pattern.chars().collect(),
        at: 0,
        flags: Flags::default(),
        depth: 0,
        run: fold::Run::default(),
    };
    let read = reader.alternatives().and_then(|parts| match reader.peek() {
        None => Ok(either(parts).text),
        Some(_) => Err("the `)` without a `(`".into()),
    });
    read.map_err(|what| {
        let place = reader.at.min(reader.chars.len());
        format!(
            "has the regular expression `{pattern}`: {what} before character {} cannot be read here as Hugging \
             Face's library reads it; write the expression without it",
            place + 1
        )
    })
}

/// Options of a part of a pattern.
#[derive(Clone, Copy, Default)]
struct Flags {
    /// `(?i)`.
    ignore: bool,
    /// `(?m)`: a dot is any character.
    all: bool,
    /// `(?x)`: spaces and comments do not count.
    extended: bool,
}

/// A part of a pattern, translated.
#[derive(Default)]
struct Part {
    text: String,
    /// Characters of the shortest match.
    least: usize,
    /// Characters of the longest match, if there is one.
    most: Option<usize>,
    /// It is a repetition; true if a lazy one.
    repeats: Option<bool>,
}

impl Part {
    fn of(text: impl Into<String>, length: usize) -> Part {
        Part { text: text.into(), least: length, most: Some(length), repeats: None }
    }
}

/// One of several.
fn either(mut parts: Vec<Part>) -> Part {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    Part {
        text: parts.iter().map(|p| p.text.as_str()).collect::<Vec<_>>().join("|"),
        least: parts.iter().map(|p| p.least).min().unwrap_or(0),
        most: parts.iter().map(|p| p.most).try_fold(0, |a, b| Some(a.max(b?))),
        repeats: None,
    }
}

struct Reader {
    chars: Vec<char>,
    at: usize,
    flags: Flags,
    depth: usize,
    run: fold::Run,
}

type Read<T> = Result<T, String>;

fn named<T>(what: impl std::fmt::Display) -> Read<T> {
    Err(format!("`{what}`"))
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek();
        self.at += c.is_some() as usize;
        c
    }

    fn takes(&mut self, text: &str) -> bool {
        let takes = text.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        self.at += if takes { text.chars().count() } else { 0 };
        takes
    }

    /// Characters up to `end`, which is passed.
    fn until(&mut self, end: char) -> Read<String> {
        let rest = &self.chars[self.at..];
        let length = rest.iter().position(|&c| c == end).ok_or(format!("the missing `{end}`"))?;
        let text = rest[..length].iter().collect();
        self.at += length + 1;
        Ok(text)
    }

    /// Alternatives up to the end of the group or pattern.
    fn alternatives(&mut self) -> Read<Vec<Part>> {
        self.depth += 1;
        if self.depth > DEPTH {
            return Err(format!("more than {DEPTH} groups in each other"));
        }
        let mut parts = vec![];
        loop {
            parts.push(self.sequence()?);
            if !self.takes("|") {
                self.depth -= 1;
                return Ok(parts);
            }
            self.run.end();
        }
    }

    fn sequence(&mut self) -> Read<Part> {
        let (mut whole, mut count, mut kept) = (Part::of("", 0), 0, None);
        while !matches!(self.peek(), None | Some('|' | ')')) {
            if self.flags.extended && self.comment()? {
                continue;
            }
            if self.takes("(?#") {
                self.until(')')?;
                continue;
            }
            let part = self.repeated()?;
            if part.text == KEEP {
                kept = Some(whole.least);
            }
            whole.text += &part.text;
            whole.least += part.least;
            whole.most = whole.most.zip(part.most).map(|(a, b)| a + b);
            count += 1;
            whole.repeats = part.repeats.filter(|_| count == 1);
        }
        // After an empty match the two go on at different places.
        match kept == Some(whole.least) {
            true => named(format_args!("{KEEP} before what may be empty")),
            false => Ok(whole),
        }
    }

    /// Passes a space or a comment of the extended syntax.
    fn comment(&mut self) -> Read<bool> {
        match self.peek() {
            Some('#') => {
                while self.next().is_some_and(|c| c != '\n') {}
                Ok(true)
            }
            Some(c) if c.is_ascii_whitespace() => {
                self.at += 1;
                Ok(true)
            }
            Some(c) if c.is_whitespace() => Err("the space".into()),
            _ => Ok(false),
        }
    }

    /// A part with what says how often it is repeated.
    fn repeated(&mut self) -> Read<Part> {
        let start = self.at;
        let (mut part, mut repeated, mut more) = (self.one()?, false, false);
        while let Some(times) = self.times()? {
            // `a{1,2}+` and `a{2}?` repeat what an interval repeats; more is not understood.
            if more {
                return Err("a repetition of a repetition".into());
            }
            more = !times.2 || repeated;
            repeated = true;
            part = self.times_of(part, start, times)?;
        }
        Ok(part)
    }

    /// A part repeated as is said, from a place of the pattern on.
    fn times_of(
        &mut self,
        part: Part,
        start: usize,
        (least, most, interval): (usize, Option<usize>, bool),
    ) -> Read<Part> {
        let written: String = self.chars[start..self.at].iter().collect();
        if part.most == Some(0) {
            return named(format_args!("{written}"));
        }
        if most.is_none() && part.least == 0 {
            return Err(format!("the endless repetition of what may be empty, `{written}`,"));
        }
        if self.flags.ignore && least > 1 && self.run.again() {
            return Err(fold::ERROR.into());
        }
        let fixed = interval && most == Some(least);
        let lazy = !fixed && self.takes("?");
        let possessive = !interval && !lazy && self.takes("+");
        if part.repeats.is_some() && (lazy || possessive || part.repeats == Some(true)) {
            return Err("a lazy repetition of a repetition".into());
        }
        let end = most.map_or(String::new(), |m| m.to_string());
        let mut text = format!("(?:{}){{{least},{end}}}{}", part.text, if lazy { "?" } else { "" });
        if possessive {
            text = format!("(?>{text})");
        }
        let times = |n: usize, m: usize| n.checked_mul(m).ok_or("the length");
        let longest = match (part.most, most) {
            (Some(length), Some(most)) => Some(times(length, most)?),
            _ => None,
        };
        Ok(Part { text, least: times(part.least, least)?, most: longest, repeats: Some(lazy) })
    }

    /// How often the part before is repeated, at least and at most; and true if braces say so.
    fn times(&mut self) -> Read<Option<(usize, Option<usize>, bool)>> {
        let (least, most) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => return Ok(self.interval_taken()?.map(|(least, most)| (least, most, true))),
        };
        self.at += 1;
        Ok(Some((least, most, false)))
    }

    /// True if an interval begins at a place.
    fn interval_at(&mut self, place: usize) -> bool {
        let at = std::mem::replace(&mut self.at, place);
        let read = self.interval_taken();
        self.at = at;
        !matches!(read, Ok(None))
    }

    /// `{2}`, `{2,}`, `{,3}` or `{2,3}`. Other braces are characters.
    fn interval_taken(&mut self) -> Read<Option<(usize, Option<usize>)>> {
        let begin = self.at;
        if !self.takes("{") {
            return Ok(None);
        }
        let (least, comma) = (self.digits(), self.takes(","));
        let most = if comma { self.digits() } else { least.clone() };
        if !self.takes("}") || least.is_empty() && most.is_empty() {
            self.at = begin;
            return Ok(None);
        }
        let count = |text: &str| match text.parse() {
            Ok(n) if n <= REPEATS => Ok(n),
            _ => Err(format!("the number of repetitions `{text}`")),
        };
        let low = if least.is_empty() { 0 } else { count(&least)? };
        let high = if most.is_empty() { None } else { Some(count(&most)?) };
        match high {
            Some(high) if high < low => named(format_args!("{{{low},{high}}}")),
            _ => Ok(Some((low, high))),
        }
    }

    fn digits(&mut self) -> String {
        let mut text = String::new();
        while let Some(c) = self.peek().filter(char::is_ascii_digit) {
            text.push(c);
            self.at += 1;
        }
        text
    }

    /// One part that a repetition would be of.
    fn one(&mut self) -> Read<Part> {
        let c = self.next().ok_or("the end")?;
        if !matches!(c, '(') {
            let literal = !matches!(c, '^' | '$' | '.' | '[' | '\\');
            if !literal {
                self.run.end();
            }
        }
        match c {
            '^' => Ok(Part::of(r"(?:\A|(?<=\n)(?!\z))", 0)),
            '$' => Ok(Part::of("(?m:$)", 0)),
            '.' if self.flags.all => Ok(Part::of(r"(?s:.)", 1)),
            '.' => Ok(Part::of(r"[^\n]", 1)),
            '(' => self.group(),
            '[' => self.class_alone(),
            '\\' => self.escape(),
            '*' | '+' | '?' => named(c),
            '{' if self.interval_at(self.at - 1) => named(c),
            c => self.literal(c),
        }
    }

    /// One character that stands for itself.
    fn literal(&mut self, c: char) -> Read<Part> {
        let text = format!("\\x{{{:X}}}", c as u32);
        if !self.flags.ignore {
            self.run.end();
            return Ok(Part::of(text, 1));
        }
        match self.run.push(c) {
            true => Ok(Part::of(format!("(?i:{text})"), 1)),
            false => Err(fold::ERROR.into()),
        }
    }

    fn group(&mut self) -> Read<Part> {
        let outside = self.flags;
        if !self.takes("?") {
            if self.peek() == Some('*') {
                return named("(*");
            }
            return self.grouped("(?:");
        }
        for (begin, negative) in [("<=", false), ("<!", true)] {
            if self.takes(begin) {
                return self.behind(negative, outside);
            }
        }
        for (begin, around) in [("=", true), ("!", true), (">", false), (":", false)] {
            if self.takes(begin) {
                if around {
                    self.run.end();
                }
                let inside = self.grouped(&format!("(?{begin}"))?;
                if around {
                    self.run.end();
                }
                return Ok(if around { Part::of(inside.text, 0) } else { inside });
            }
        }
        if self.takes("<") {
            let name = self.until('>')?;
            let word = |c: char| c == '_' || c.is_alphanumeric();
            if name.is_empty() || !name.chars().all(word) || name.starts_with(|c: char| c.is_numeric()) {
                return named(format_args!("(?<{name}>"));
            }
            return self.grouped("(?:");
        }
        let mut on = true;
        let begin = self.at;
        loop {
            match self.next() {
                Some('-') => on = false,
                Some('i') => self.flags.ignore = on,
                Some('m') => self.flags.all = on,
                Some('x') => self.flags.extended = on,
                Some(':') => {
                    let inside = self.grouped("(?:");
                    self.flags = outside;
                    return inside;
                }
                // To the end of the group around it, alternatives and all.
                Some(')') => {
                    let parts = self.alternatives()?;
                    self.flags = outside;
                    let part = either(parts);
                    return Ok(Part { text: format!("(?:{})", part.text), ..part });
                }
                _ => {
                    let text: String = self.chars[begin..self.at].iter().collect();
                    return named(format_args!("(?{text}"));
                }
            }
        }
    }

    /// The rest of a group, with its end.
    fn grouped(&mut self, begin: &str) -> Read<Part> {
        let outside = self.flags;
        let parts = self.alternatives()?;
        self.flags = outside;
        if !self.takes(")") {
            return Err("the missing `)`".into());
        }
        let part = either(parts);
        let repeats = part.repeats.filter(|_| begin != "(?>");
        Ok(Part { text: format!("{begin}{})", part.text), repeats, ..part })
    }

    /// The rest of a lookbehind: one for each alternative, whose length must be known.
    fn behind(&mut self, negative: bool, outside: Flags) -> Read<Part> {
        self.run.end();
        let parts = self.alternatives()?;
        self.flags = outside;
        if !self.takes(")") {
            return Err("the missing `)`".into());
        }
        if parts.iter().any(|p| p.most != Some(p.least)) {
            return Err("the lookbehind of no fixed length".into());
        }
        let each = parts.iter().map(|p| format!("(?<{}{})", if negative { '!' } else { '=' }, p.text));
        let each: Vec<String> = each.collect();
        let text = if negative { each.concat() } else { format!("(?:{})", each.join("|")) };
        Ok(Part::of(text, 0))
    }

    /// What follows a backslash outside of brackets.
    fn escape(&mut self) -> Read<Part> {
        let c = self.next().ok_or("the backslash at the end")?;
        Ok(match c {
            'w' => Part::of(WORD, 1),
            'W' => Part::of(format!("[^{}", &WORD[1..]), 1),
            'A' | 'z' => Part::of(format!("\\{c}"), 0),
            'Z' => Part::of(r"(?=\n?\z)", 0),
            'b' => Part::of(format!("(?:(?<={WORD})(?!{WORD})|(?<!{WORD})(?={WORD}))"), 0),
            'B' => Part::of(format!("(?:(?<={WORD})(?={WORD})|(?<!{WORD})(?!{WORD}))"), 0),
            'N' => Part::of(r"[^\n]", 1),
            'O' => Part::of(r"(?s:.)", 1),
            'R' => Part {
                text: r"(?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}])".into(),
                least: 1,
                most: Some(2),
                repeats: None,
            },
            'K' if self.depth == 1 => Part::of(KEEP, 0),
            'p' | 'P' => {
                let (name, negative) = self.property(c == 'P')?;
                if name == "word" {
                    return Ok(Part::of(if negative { format!("[^{}", &WORD[1..]) } else { WORD.into() }, 1));
                }
                let text = class::property(&name, negative)?;
                self.class(&text, negative)?
            }
            _ => match self.shorthand(c) {
                Some(text) => Part::of(text, 1),
                None => {
                    let c = self.character(c)?;
                    return self.literal(c);
                }
            },
        })
    }

    /// The character that an escape stands for, within brackets and without.
    fn character(&mut self, c: char) -> Read<char> {
        let hex = |text: &str| u32::from_str_radix(text, 16).ok().and_then(char::from_u32);
        Ok(match c {
            't' => '\t',
            'n' => '\n',
            'r' => '\r',
            'f' => '\x0c',
            'v' => '\x0b',
            'a' => '\x07',
            'e' => '\x1b',
            'x' if self.takes("{") => {
                let digits = self.until('}')?;
                hex(&digits).ok_or(format!("`\\x{{{digits}}}`"))?
            }
            'x' | 'u' => {
                let count = if c == 'x' { 2 } else { 4 };
                let digits: String = self.chars[self.at..].iter().take(count).collect();
                let plain = digits.len() == count && digits.chars().all(|d| d.is_ascii_hexdigit());
                let read = hex(&digits).filter(|&r| plain && (c == 'u' || r.is_ascii()));
                self.at += digits.chars().count();
                read.ok_or(format!("`\\{c}{digits}`"))?
            }
            c if c.is_ascii_alphanumeric() => return named(format_args!("\\{c}")),
            c => c,
        })
    }
}
