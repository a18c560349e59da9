//! A comparison as tables, for the terminal and for reports.

use super::{CheckReport, Compared};
use crate::golden::Kind;
use crate::report::{Table, text};

/// Counts and worst errors by kind.
pub fn summary(r: &CheckReport) -> Table {
    let title = format!("Compared with PyTorch in float64, run in {}", r.precision);
    let mut t =
        Table::new(&title, &["kind", ">compared", ">within bound", ">largest error", ">its bound", "where"]);
    for (kind, _) in Kind::ALL {
        let all = r.of(kind).count();
        let Some(worst) = r.worst(kind) else { continue };
        let good = r.of(kind).filter(|c| c.passed).count();
        t.row([
            format!("{kind:?}").to_lowercase(),
            all.to_string(),
            good.to_string(),
            text::error(worst.error),
            text::error(worst.bound),
            worst.name.clone(),
        ]);
    }
    t
}

/// One row a value.
pub fn listing(title: &str, rows: &[&Compared]) -> Table {
    let mut t = Table::new(title, &["kind", "name", ">error", ">bound", ">norm", "verdict", "computed at"]);
    for c in rows {
        t.row([
            format!("{:?}", c.kind).to_lowercase(),
            c.name.clone(),
            text::error(c.error),
            text::error(c.bound),
            text::error(c.norm),
            match (c.passed, c.zero) {
                (true, false) => "ok".into(),
                (true, true) => "zero".into(),
                (false, _) => "DIFFERS".into(),
            },
            c.origin.clone(),
        ]);
    }
    t
}
