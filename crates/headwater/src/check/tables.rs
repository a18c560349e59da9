//! A comparison as tables, for the terminal and for reports.

use super::{CheckReport, Compared, Found, Verdict};
use crate::golden::Kind;
use crate::report::{Table, text};

/// Counts and worst errors by kind.
pub fn summary(r: &CheckReport) -> Table {
    let title = format!("Compared with PyTorch in float64, run in {}", r.precision);
    let mut t = Table::new(
        &title,
        &["kind", ">compared", ">proved", ">not proved", ">differ", ">largest error", ">its bound", "where"],
    );
    for (kind, _) in Kind::ALL {
        let all = r.of(kind).count();
        let Some(worst) = r.worst(kind) else { continue };
        let count = |verdict| r.of(kind).filter(|c| c.verdict == verdict).count().to_string();
        t.row([
            format!("{kind:?}").to_lowercase(),
            all.to_string(),
            count(Verdict::Proved),
            count(Verdict::NotProved),
            count(Verdict::Differs),
            text::error(worst.error),
            text::error(worst.bound),
            worst.name.clone(),
        ]);
    }
    t
}

/// One row a value.
pub fn listing(title: &str, rows: &[&Compared]) -> Table {
    let mut t = Table::new(
        title,
        &["kind", "name", ">shift", ">error", ">bound", ">factor", ">norm", "verdict", "computed at"],
    );
    for c in rows {
        t.row([
            format!("{:?}", c.kind).to_lowercase(),
            c.name.clone(),
            text::error(c.shift),
            text::error(c.error),
            text::error(c.bound),
            if c.factor.is_finite() { format!("{:.1}", c.factor) } else { "-".into() },
            text::error(c.norm),
            match (c.verdict, c.zero) {
                (Verdict::Proved, false) => "proved".into(),
                (Verdict::Proved, true) => "zero, proved".into(),
                (Verdict::NotProved, _) => "not proved".into(),
                (Verdict::Differs, _) => "DIFFERS".into(),
            },
            c.origin.clone(),
        ]);
    }
    t
}

/// Shares of mutations that are found, by kind.
pub fn power(precision: &str, found: &[Found]) -> Table {
    let title = format!("Mutations of the golden that the check in {precision} finds");
    let columns =
        ["mutation", ">tried", ">found", ">by the device alone", ">of proved values", "not found that way"];
    let mut t = Table::new(&title, &columns);
    let share = |found: usize, tried: usize| match tried {
        0 => "-".to_string(),
        _ => format!("{:.1} %", 100.0 * found as f64 / tried as f64),
    };
    for f in found.iter().filter(|f| f.tried > 0) {
        let names = if f.missed.is_empty() { &f.unseen } else { &f.missed };
        let some = names.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
        let more = names.len().saturating_sub(4);
        t.row([
            format!("{:?}", f.mutation).to_lowercase(),
            f.tried.to_string(),
            share(f.found, f.tried),
            share(f.by_device, f.tried),
            share(f.proved_by_device, f.proved),
            if more > 0 { format!("{some} and {more} more") } else { some },
        ]);
    }
    t
}
