//! Tables and numbers for the terminal.

use super::Table;
use std::borrow::Cow;
use std::fmt::Write;

/// The table with aligned columns, heads underlined.
pub fn table(t: &Table) -> String {
    let columns = t.columns.len();
    let mut width: Vec<usize> = (0..columns).map(|i| t.head(i).0.chars().count()).collect();
    for row in &t.rows {
        for (i, cell) in row.iter().enumerate() {
            width[i] = width[i].max(cell.chars().count());
        }
    }
    let mut out = String::new();
    if !t.title.is_empty() {
        let _ = writeln!(out, "{}", t.title);
    }
    let line = |cells: &mut dyn Iterator<Item = &str>, out: &mut String| {
        let mut text = String::from("  ");
        for (i, cell) in cells.enumerate() {
            let pad = width[i].saturating_sub(cell.chars().count());
            let right = t.head(i).1;
            let _ = write!(
                text,
                "{}{cell}{}",
                if right { " ".repeat(pad) } else { String::new() },
                if right { String::new() } else { " ".repeat(pad) }
            );
            text.push_str("  ");
        }
        let _ = writeln!(out, "{}", text.trim_end());
    };
    line(&mut (0..columns).map(|i| t.head(i).0), &mut out);
    let rule: Vec<String> = width.iter().map(|&w| "─".repeat(w)).collect();
    line(&mut rule.iter().map(String::as_str), &mut out);
    for row in &t.rows {
        line(&mut row.iter().map(String::as_str), &mut out);
    }
    out
}

/// A curve in one line of at most `width` characters: the mean of each stretch, between the smallest and the
/// largest.
pub fn sparkline(values: impl Iterator<Item = f64>, width: usize) -> String {
    sparklines(&[(&values.collect::<Vec<_>>(), width)]).concat()
}

/// Curves in a line each, all between the smallest and the largest of all.
pub fn sparklines(curves: &[(&[f64], usize)]) -> Vec<String> {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let means = |&(values, width): &(&[f64], usize)| {
        let values: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
        let (n, width) = (values.len(), width.min(values.len()));
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        (0..width).map(|i| mean(&values[i * n / width..(i + 1) * n / width])).collect::<Vec<f64>>()
    };
    let curves: Vec<Vec<f64>> = curves.iter().map(means).collect();
    let low = curves.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    let range = curves.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max) - low;
    let level = |x: f64| if range > 0.0 { ((x - low) / range * 7.0).round() as usize } else { 0 };
    curves.into_iter().map(|means| means.into_iter().map(|x| LEVELS[level(x)]).collect()).collect()
}

/// Bytes with a binary unit: `1.50 MiB`.
pub fn bytes(n: usize) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut x, mut unit) = (n as f64, 0);
    while x >= 1024.0 && unit + 1 < UNITS.len() {
        x /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{x:.2} {}", UNITS[unit]) }
}

/// A count with a decimal unit: `21.3 M`.
pub fn count(x: f64) -> String {
    const UNITS: [&str; 5] = ["", " k", " M", " G", " T"];
    let (mut x, mut unit) = (x, 0);
    while x >= 1000.0 && unit + 1 < UNITS.len() {
        x /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{x:.0}") } else { format!("{x:.2}{}", UNITS[unit]) }
}

/// A duration: `350 µs`, `12.0 ms`, `3.21 s`, `4 min 05 s`, `2 h 05 min`.
pub fn seconds(s: f64) -> String {
    match s {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 60.0 => format!("{s:.2} s"),
        s if s < 3600.0 => format!("{} min {:02} s", (s / 60.0) as u64, (s % 60.0) as u64),
        s => format!("{} h {:02} min", (s / 3600.0) as u64, (s / 60.0 % 60.0) as u64),
    }
}

/// A number to six digits, with an exponent where that is shorter.
pub fn number(x: f64) -> String {
    let rounded: f64 = format!("{x:.5e}").parse().unwrap_or(x);
    match rounded.abs() {
        a if a == 0.0 || (1e-4..1e6).contains(&a) || !a.is_finite() => format!("{rounded}"),
        _ => format!("{rounded:e}"),
    }
}

/// The first error code in a message, such as `HW-R003`.
pub fn code(message: &str) -> Option<String> {
    let (before, after) = message.split_once("HW-")?;
    let digits = after.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(after.len());
    (!before.ends_with(|c: char| c.is_ascii_alphanumeric())).then(|| format!("HW-{}", &after[..digits]))
}

/// A word as a shell reads it back: in quotes where it would be split.
pub fn word(w: &str) -> String {
    let plain = !w.is_empty() && w.chars().all(|c| c.is_alphanumeric() || "-_./=:,+%@".contains(c));
    if plain { w.to_string() } else { format!("'{}'", w.replace('\'', r"'\''")) }
}

/// A text whose control characters are spelled out, line ends and tabs excepted. Names in a model come from
/// strangers, and a terminal obeys what is written to it; a page would show what is not in the file.
pub fn plain(text: &str) -> Cow<'_, str> {
    // Beside control characters, those that change the direction of writing (Unicode, UAX #9).
    let obeyed = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(obeyed) {
        return text.into();
    }
    let spelled = |c: char| if obeyed(c) { c.escape_unicode().to_string() } else { c.to_string() };
    text.chars().map(spelled).collect()
}

/// An error in scientific notation: `3.1e-12`; an exact zero as `0`.
pub fn error(x: f64) -> String {
    if x == 0.0 { "0".into() } else { format!("{x:.1e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_read_well() {
        assert_eq!(
            (bytes(1023), bytes(1536), bytes(3 << 30)),
            ("1023 B".into(), "1.50 KiB".into(), "3.00 GiB".into())
        );
        assert_eq!((count(999.0), count(21.3e6)), ("999".to_string(), "21.30 M".to_string()));
        assert_eq!((seconds(0.00035), seconds(245.0)), ("350 µs".to_string(), "4 min 05 s".to_string()));
        assert_eq!((seconds(3599.9), seconds(7530.0)), ("59 min 59 s".to_string(), "2 h 05 min".to_string()));
    }

    #[test]
    fn curves_in_lines_have_one_scale() {
        assert_eq!(sparkline([0.0, 7.0, f64::NAN, 3.0].into_iter(), 9), "▁█▄");
        let curves = sparklines(&[(&[0.0, 7.0], 2), (&[1.0, 1.0, 3.0], 3), (&[], 4)]);
        assert_eq!(curves, ["▁█", "▂▂▄", ""]);
    }

    #[test]
    fn words_come_back_from_a_shell() {
        assert_eq!(word("runs/a-1.pt2"), "runs/a-1.pt2");
        assert_eq!((word("a b"), word("it's"), word("")), ("'a b'".into(), r"'it'\''s'".into(), "''".into()));
    }

    #[test]
    fn a_terminal_is_told_nothing_to_obey() {
        assert_eq!(plain("a\tb\nç ▁█"), "a\tb\nç ▁█");
        assert_eq!(plain("\u{1b}[2Jgone\r\u{9b}1m\u{202e}x"), "\\u{1b}[2Jgone\\u{d}\\u{9b}1m\\u{202e}x");
    }

    #[test]
    fn columns_align() {
        let mut t = Table::new("", &["name", ">n"]);
        t.row(["µ".into(), "7".into()]);
        t.row(["long name".into(), "12".into()]);
        let lines: Vec<String> = table(&t).lines().map(str::to_string).collect();
        assert_eq!(lines[2], "  µ           7");
        assert_eq!(lines[3], "  long name  12");
    }
}
