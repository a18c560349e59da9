//! Metrics of held-out data for people: in a line, as tables.

use super::{Block, Table, text};
use crate::runtime::score::{Metric, Scores};

/// Confusion matrices of more classes are only in the JSON.
const SHOWN: usize = 12;

/// Metrics that a line has whatever evaluations are compared by.
const HEADLINE: [Metric; 4] = [Metric::Loss, Metric::Accuracy, Metric::Perplexity, Metric::R2];

/// A metric's value, to the digits that it is shown with in a sentence.
pub fn shown(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Mse | Metric::Mae => text::number(value),
        _ => format!("{value:.4}"),
    }
}

/// The most important metrics in a line, that by which evaluations are compared among them: "loss 0.5226,
/// accuracy 0.9944".
pub fn line(s: &Scores, compared: Metric) -> String {
    let mut metrics = HEADLINE.to_vec();
    if !metrics.contains(&compared) {
        metrics.push(compared);
    }
    let of = |m: Metric| Some(format!("{} {}", m.word(), shown(m, m.of(s)?)));
    metrics.into_iter().filter_map(of).collect::<Vec<_>>().join(", ")
}

/// Name of a metric in a table.
pub fn name(metric: Metric, s: &Scores) -> String {
    match (metric, s.top_k) {
        (Metric::TopK, Some((k, _))) => format!("top-{k} accuracy"),
        (Metric::Precision | Metric::Recall | Metric::F1 | Metric::Iou, _) => {
            format!("{}, mean over classes", metric.word())
        }
        _ => metric.word().into(),
    }
}

/// All that was measured: a table, and the counts by label and prediction of a few classes.
pub fn tables(title: &str, s: &Scores) -> Vec<Table> {
    let mut table = Table::new(title, &["what", ">value"]);
    table.row(["samples".into(), s.samples.to_string()]);
    if let Some(counted) = s.counted {
        table.row(["labels counted".into(), counted.to_string()]);
    }
    for metric in Metric::ALL {
        if let Some(value) = metric.of(s) {
            table.row([name(metric, s), text::number(value)]);
        }
    }
    std::iter::once(table).chain(each(s)).chain(confusion(s)).collect()
}

/// Name of a class: that of the data, or its number.
fn class(s: &Scores, number: usize) -> String {
    let name = s.by_class.as_ref().and_then(|by| by.each.get(number)?.name.clone());
    name.unwrap_or_else(|| number.to_string())
}

/// Precision and recall of each of a few classes.
pub fn each(s: &Scores) -> Option<Table> {
    let all = &s.by_class.as_ref()?.each;
    if all.is_empty() || all.len() > SHOWN {
        return None;
    }
    let mut table =
        Table::new("Classes", &["class", ">labels", ">predicted", ">precision", ">recall", ">F1"]);
    for (number, c) in all.iter().enumerate() {
        let share = |x: f64| format!("{x:.4}");
        let counts = [c.labels, c.predicted].map(|n| n.to_string());
        let [labels, predicted] = counts;
        table.row([class(s, number), labels, predicted, share(c.precision), share(c.recall), share(c.f1)]);
    }
    Some(table)
}

/// Counts by label and prediction, of a few classes.
pub fn confusion(s: &Scores) -> Option<Table> {
    let counts = &s.by_class.as_ref()?.confusion;
    if counts.is_empty() || counts.len() > SHOWN {
        return None;
    }
    let heads: Vec<String> = (0..counts.len()).map(|c| format!(">{}", class(s, c))).collect();
    let columns: Vec<&str> =
        std::iter::once("label \\ predicted").chain(heads.iter().map(String::as_str)).collect();
    let mut table = Table::new("Confusion matrix", &columns);
    for (label, row) in counts.iter().enumerate() {
        table.rows.push(std::iter::once(class(s, label)).chain(row.iter().map(u64::to_string)).collect());
    }
    Some(table)
}

/// The same as blocks of a report.
pub fn blocks(title: &str, s: &Scores) -> Vec<Block> {
    tables(title, s).into_iter().map(Block::Table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::score::{ByClass, Regression};

    #[test]
    fn a_line_has_what_evaluations_are_compared_by() {
        let mut s = Scores { loss: 0.5, accuracy: Some(0.75), ..Scores::default() };
        assert_eq!(line(&s, Metric::Loss), "loss 0.5000, accuracy 0.7500");
        s.by_class = Some(ByClass { f1: 0.5, ..ByClass::default() });
        assert_eq!(line(&s, Metric::F1), "loss 0.5000, accuracy 0.7500, F1 0.5000");
        let regression = Some(Regression { mse: 1.5e-7, mae: 1e-4, r2: 0.5 });
        let s = Scores { loss: 0.25, regression, ..Scores::default() };
        assert_eq!(line(&s, Metric::Mse), "loss 0.2500, R² 0.5000, MSE 1.5e-7");
    }

    #[test]
    fn tables_have_what_was_measured() {
        let by_class = Some(ByClass { confusion: vec![vec![3, 1], vec![0, 4]], ..ByClass::default() });
        let s = Scores { samples: 8, counted: Some(8), top_k: Some((5, 1.0)), by_class, ..Scores::default() };
        let found = tables("Held-out data", &s);
        let names: Vec<&str> = found[0].rows.iter().map(|r| r[0].as_str()).collect();
        assert_eq!(names[..4], ["samples", "labels counted", "loss", "top-5 accuracy"]);
        assert_eq!(names.len(), 8);
        assert_eq!(found[1].rows, [["0", "3", "1"], ["1", "0", "4"]]);
        let many = ByClass { confusion: vec![vec![0; 13]; 13], ..ByClass::default() };
        assert_eq!(confusion(&Scores { by_class: Some(many), ..Scores::default() }).map(|t| t.rows), None);
    }
}
