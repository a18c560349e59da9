//! Lines and tables in the width of a terminal.

use super::Table;
use std::fmt::Write;

/// A cell is not made narrower than this many columns, if its text is longer.
const NARROW: usize = 6;
/// Columns between two cells.
const GAP: usize = 2;

/// Columns that a text takes, by its characters.
fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Breaks a line at spaces so that no part is wider than `width`. Parts after the first are aligned with the
/// text: after the indentation, and after a first word that is separated by two spaces.
pub fn line(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_string();
    }
    let blanks = |t: &str| t.chars().take_while(|c| *c == ' ').count();
    let lead = blanks(text);
    let rest = &text[lead..];
    let word = rest.find("  ").filter(|at| !rest[..*at].contains(' '));
    let hang = lead + word.map_or(0, |at| columns(&rest[..at]) + blanks(&rest[at..]));
    // Narrower than this nothing is gained by hanging.
    let hang = if hang + 2 * NARROW > width { lead.min(width / 4) } else { hang };
    let head: String = text.chars().take(hang.max(lead)).collect();
    let body: String = text.chars().skip(hang.max(lead)).collect();
    let parts = parts(&body, width.saturating_sub(hang).max(1));
    let below = format!("\n{}", " ".repeat(hang));
    format!("{head}{}", parts.join(&below))
}

/// A text in parts of at most `width`: broken at spaces, else after `.`, `/`, `,`, `_` or `-`, else anywhere.
fn parts(text: &str, width: usize) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut rest: Vec<char> = text.chars().collect();
    while rest.len() > width {
        let space = (1..=width).rev().find(|&i| rest[i] == ' ');
        let sign = || (1..width).rev().find(|&i| "./,_-".contains(rest[i])).map(|i| i + 1);
        let (end, next) = match space {
            Some(at) => (at, at + 1),
            None => {
                let at = sign().unwrap_or(width);
                (at, at)
            }
        };
        all.push(rest[..end].iter().collect::<String>().trim_end().to_string());
        rest.drain(..next);
        while rest.first() == Some(&' ') {
            rest.remove(0);
        }
    }
    all.push(rest.into_iter().collect());
    all
}

/// The table with aligned columns, heads underlined, and no line wider than `width`: the widest columns are
/// made narrower and their cells broken.
pub fn table(t: &Table, width: usize) -> String {
    let count = t.columns.len();
    let natural = |i: usize| {
        let cells = t.rows.iter().filter_map(|row| row.get(i)).map(|c| columns(c));
        cells.chain([columns(t.head(i).0)]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..count).map(natural).collect();
    // Numbers stay whole: of a column that is right-aligned, only the head is broken.
    let least = |i: usize| {
        let cells = t.rows.iter().filter_map(|row| row.get(i)).map(|c| columns(c)).max().unwrap_or(0);
        if t.head(i).1 { cells.max(NARROW.min(columns(t.head(i).0))) } else { NARROW }
    };
    let least: Vec<usize> = (0..count).map(|i| least(i).min(widths[i])).collect();
    let total = |widths: &[usize]| GAP + widths.iter().map(|w| w + GAP).sum::<usize>() - GAP;
    while count > 0 && total(&widths) > width {
        let Some(widest) = (0..count).filter(|&i| widths[i] > least[i]).max_by_key(|&i| widths[i]) else {
            break;
        };
        widths[widest] -= 1;
    }
    let mut out = String::new();
    if !t.title.is_empty() {
        let _ = writeln!(out, "{}", line(&t.title, width));
    }
    let row = |cells: &mut dyn Iterator<Item = &str>, out: &mut String| {
        let broken: Vec<Vec<String>> = cells.zip(&widths).map(|(c, w)| parts(c, (*w).max(1))).collect();
        for k in 0..broken.iter().map(Vec::len).max().unwrap_or(0) {
            let mut text = String::from("  ");
            for (i, parts) in broken.iter().enumerate() {
                let cell = parts.get(k).map_or("", String::as_str);
                let pad = " ".repeat(widths[i].saturating_sub(columns(cell)));
                let (before, after) = if t.head(i).1 { (pad.as_str(), "") } else { ("", pad.as_str()) };
                let _ = write!(text, "{before}{cell}{after}  ");
            }
            let _ = writeln!(out, "{}", text.trim_end());
        }
    };
    row(&mut (0..count).map(|i| t.head(i).0), &mut out);
    let rule: Vec<String> = widths.iter().map(|&w| "─".repeat(w)).collect();
    row(&mut rule.iter().map(String::as_str), &mut out);
    for cells in &t.rows {
        row(&mut cells.iter().map(String::as_str), &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_words_and_hang() {
        let text =
            "   pass  27 values agree; largest relative error 7.8e-16 in f64, 3.6e-7 in f32  (109.8 ms)";
        assert_eq!(line(text, 200), text);
        let broken = line(text, 40);
        let lines: Vec<&str> = broken.lines().collect();
        assert_eq!(lines[0], "   pass  27 values agree; largest");
        assert!(
            lines[1..].iter().all(|l| l.starts_with("         ") && !l[9..].starts_with(' ')),
            "{broken}"
        );
        assert!(lines.iter().all(|l| columns(l) <= 40), "{broken}");
        let words = |t: &str| t.split_whitespace().map(str::to_string).collect::<Vec<_>>();
        assert_eq!(words(&broken), words(text));
        assert_eq!(line("error: abc def", 10), "error: abc\ndef");
        let long = line(&"x".repeat(25), 10);
        assert!(long.lines().all(|l| columns(l) <= 10) && long.replace('\n', "").len() == 25, "{long}");
    }

    #[test]
    fn tables_are_as_wide_as_they_may_be() {
        let mut t = Table::new(
            "Largest in memory",
            &["made by", ">bytes", ">replayed (assumed: 20 µs a recording)", "in the model"],
        );
        let place = "model.layers.11.self_attn.q_proj (transformers/models/llama/modeling_llama.py:231)";
        t.row(["linear_backward".into(), "12.00 MiB".into(), "3.1 ms".into(), place.into()]);
        for width in [60, 80, 120, 200] {
            let text = table(&t, width);
            assert!(text.lines().all(|l| columns(l) <= width), "{width}:\n{text}");
            let found: String = text.lines().flat_map(|l| l.chars()).filter(|c| !c.is_whitespace()).collect();
            assert!(found.matches('─').count() > 20);
            assert!(text.contains("12.00 MiB") && text.contains("3.1 ms"), "numbers stay whole:\n{text}");
        }
        assert_eq!(table(&t, 1000), super::super::text::table(&t));
        assert_eq!(table(&Table::new("", &[]), 10), table(&Table::new("", &[]), 100));
    }
}
