//! The comparison as a page, in the form of the report of a run.

use super::{Comparison, metric_name};
use crate::report::{Block, Chart, Report, Section, Series, facts};
use crate::runtime::score::Metric;

/// The page: tables, then a chart for each kind of curve, with a line for each run.
pub fn report(c: &Comparison) -> Report {
    let mut blocks: Vec<Block> = c.tables().into_iter().map(Block::Table).collect();
    blocks.extend(charts(c).into_iter().map(Block::Chart));
    let said = match c.differing().len() {
        0 => "no setting differs".to_string(),
        1 => "1 setting differs".to_string(),
        n => format!("{n} settings differ"),
    };
    let best = c.winner().map_or(String::new(), |w| format!("; {w}"));
    let mut facts = facts::run();
    facts.extend(c.runs.iter().map(|r| (r.name.clone(), r.log.display().to_string())));
    let section = Section {
        title: "Runs".into(),
        word: Some(""),
        summary: format!("{} runs; {said}{best}", c.runs.len()),
        blocks,
        ..Section::default()
    };
    Report { title: format!("Comparison of {} runs", c.runs.len()), facts, sections: vec![section] }
}

/// Curves over each other. A run has the same colour in all of them.
fn charts(c: &Comparison) -> Vec<Chart> {
    // Through the noise of batches a trend is seen; runs too short for one show every step.
    let loss = |i: usize| {
        let history = &c.runs[i].history;
        history.trend().map_or_else(|| history.loss("").points, |trend| trend.points)
    };
    let mut charts = vec![chart(c, "Training loss", "loss", true, &loss)];
    for metric in Metric::ALL {
        let measured = |i: usize| c.runs[i].history.measured(metric);
        let mut evaluated = c.runs.iter().filter_map(|r| r.history.evaluation());
        let Some(e) = evaluated.find(|e| metric.of(&e.scores).is_some()) else { continue };
        let title = format!("Held-out {}", metric_name(metric, e));
        charts.push(chart(c, &title, metric.word(), metric.falls(), &measured));
    }
    for (place, (title, y, log, _)) in c.runs[0].history.course().into_iter().enumerate() {
        let points = |i: usize| c.runs[i].history.course()[place].3.points.clone();
        charts.push(chart(c, title, y, log, &points));
    }
    charts.into_iter().filter(|c| c.series.iter().any(|s| s.points.len() > 1)).collect()
}

/// A chart with a line for each run that has points.
fn chart(
    c: &Comparison,
    title: &str,
    y: &str,
    log: bool,
    points: &dyn Fn(usize) -> Vec<(f64, f64)>,
) -> Chart {
    let series = c.runs.iter().enumerate().map(|(i, r)| Series::new(&r.name, points(i)).colour(i));
    let series = series.filter(|s| !s.points.is_empty()).collect();
    Chart::new(title, "step", y, series).log(log)
}
