//! Training runs compared, from their logs: settings in which they differ, metrics at their ends, curves.

mod log;
mod page;

pub use log::{RunLog, State};
pub use page::report;

use crate::report::{Table, scores, text};
use crate::runtime::score::Metric;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Runs in a table; more take further tables.
const BESIDE: usize = 6;
/// Characters of the longest curve on a terminal.
const CURVE: usize = 32;

/// Runs, and the metric of held-out data by which they are compared.
#[derive(Debug)]
pub struct Comparison {
    /// The runs, in the order in which they were named.
    pub runs: Vec<RunLog>,
    /// `eval.metric` of their settings, if that is the same in all, or else the loss.
    pub metric: Metric,
}

/// A row of a table: a name, and the text of each run.
type Row = (String, Vec<String>);

impl Comparison {
    /// Reads the logs of runs, each a log or a folder that has one.
    ///
    /// # Errors
    /// If a log cannot be read or has no step, or one is named twice.
    pub fn read(paths: &[PathBuf]) -> Result<Comparison> {
        let logs = paths.iter().map(|p| log::find(p)).collect::<Result<Vec<_>>>()?;
        let places: Vec<PathBuf> =
            logs.iter().map(|l| l.canonicalize().unwrap_or_else(|_| l.clone())).collect();
        for (i, log) in logs.iter().enumerate() {
            ensure!(
                !places[..i].contains(&places[i]),
                "{} is named twice: name each run once",
                log.display()
            );
        }
        let names = log::names(&logs);
        let runs = logs.iter().zip(names).map(|(log, name)| RunLog::read(log, name));
        let runs = runs.collect::<Result<Vec<_>>>()?;
        let metrics: Vec<Metric> = runs.iter().map(|r| r.metric).collect();
        let same = metrics.windows(2).all(|pair| pair[0] == pair[1]);
        let metric = metrics.first().copied().filter(|_| same).unwrap_or_default();
        Ok(Comparison { runs, metric })
    }

    /// The settings that are not the same in all runs, by name, with the value of each run; `None` where it
    /// has none.
    pub fn differing(&self) -> Vec<(String, Vec<Option<&str>>)> {
        let mut names: Vec<&String> = self.runs.iter().flat_map(|r| r.settings.keys()).collect();
        names.sort();
        names.dedup();
        let of = |name: &String| self.runs.iter().map(|r| r.settings.get(name).map(String::as_str)).collect();
        let all = names.into_iter().map(|name| (name.clone(), of(name)));
        all.filter(|(_, values): &(_, Vec<_>)| values.iter().any(|v| *v != values[0])).collect()
    }

    /// The run with the best of some values; `None` if not two runs have one, or the best is not alone.
    fn best_of(&self, values: &[Option<f64>], falls: bool) -> Option<&RunLog> {
        let better = |a: f64, b: f64| if falls { a < b } else { a > b };
        let known: Vec<(usize, f64)> =
            values.iter().enumerate().filter_map(|(i, v)| Some((i, v.filter(|v| v.is_finite())?))).collect();
        let (i, best) = known.iter().copied().reduce(|a, b| if better(b.1, a.1) { b } else { a })?;
        let alone = known.iter().filter(|(_, v)| *v == best).count() == 1;
        (known.len() > 1 && alone).then(|| &self.runs[i])
    }

    /// The best value of [`Comparison::metric`] of each run, with its step.
    fn best_values(&self) -> Vec<Option<(f64, f64)>> {
        self.runs.iter().map(|r| r.history.best(self.metric)).collect()
    }

    /// The run whose best evaluation is the best of all, or else that of the lowest training loss, in words.
    pub fn winner(&self) -> Option<String> {
        let measured = self.best_values();
        let values: Vec<Option<f64>> = measured.iter().map(|v| v.map(|v| v.1)).collect();
        if let Some(run) = self.best_of(&values, self.metric.falls()) {
            let (step, value) = run.history.best(self.metric)?;
            let value = scores::shown(self.metric, value);
            return Some(format!(
                "best held-out {}: {value} by {}, at step {step}",
                self.metric.word(),
                run.name
            ));
        }
        let values: Vec<Option<f64>> = self.runs.iter().map(|r| r.history.end_loss()).collect();
        let run = self.best_of(&values, true)?;
        Some(format!("lowest training loss at the end: {:.4} by {}", run.history.end_loss()?, run.name))
    }

    /// Results of the runs.
    fn results(&self) -> Vec<Row> {
        let runs = &self.runs;
        let row = |name: &str, of: &dyn Fn(&RunLog) -> String| -> Row {
            (name.to_string(), runs.iter().map(of).chain([String::new()]).collect())
        };
        // Numbers, with the name of the run that has the best of them.
        let judged = |name: String, values: Vec<Option<f64>>, falls: bool, shown: &dyn Fn(f64) -> String| {
            let best = self.best_of(&values, falls).map_or(String::new(), |r| r.name.clone());
            let cells = values.iter().map(|v| v.map_or("–".to_string(), shown));
            (name, cells.chain([best]).collect())
        };
        let four = |x: f64| format!("{x:.4}");
        let mut rows = vec![
            row("state", &|r| r.state.word().to_string()),
            row("steps", &|r| match r.history.planned {
                Some(planned) if planned != r.history.step() => format!("{}/{planned}", r.history.step()),
                _ => r.history.step().to_string(),
            }),
        ];
        let end = runs.iter().map(|r| r.history.end_loss()).collect();
        rows.push(judged("training loss, end".into(), end, true, &four));
        for metric in Metric::ALL {
            let last = |r: &RunLog| metric.of(&r.history.evaluation()?.scores);
            let values: Vec<Option<f64>> = runs.iter().map(last).collect();
            if values.iter().all(Option::is_none) {
                continue;
            }
            let mut evaluated = runs.iter().filter_map(|r| r.history.evaluation());
            let named = evaluated.find(|e| metric.of(&e.scores).is_some());
            let name = named.map_or(String::new(), |e| metric_name(metric, e));
            rows.push(judged(format!("held-out {name}"), values, metric.falls(), &|x| {
                scores::shown(metric, x)
            }));
        }
        let best = self.best_values();
        if best.iter().flatten().next().is_some() {
            let values = best.iter().map(|b| b.map(|b| b.1)).collect();
            let shown = |x: f64| scores::shown(self.metric, x);
            let word = self.metric.word();
            rows.push(judged(format!("best held-out {word}"), values, self.metric.falls(), &shown));
            let steps = best.iter().map(|b| b.map_or("–".to_string(), |b| b.0.to_string()));
            rows.push(("  at step".into(), steps.chain([String::new()]).collect()));
        }
        if runs.iter().any(|r| r.history.skipped() > 0) {
            rows.push(row("skipped steps", &|r| r.history.skipped().to_string()));
        }
        let rates = runs.iter().map(|r| Some(r.history.speed().1).filter(|s| *s > 0.0)).collect();
        rows.push(judged("samples/s".into(), rates, false, &|x| format!("{x:.0}")));
        rows.push(row("time", &|r| text::seconds(r.history.seconds())));
        rows
    }

    /// A table of these rows for every few runs. `last` is the head of a column that follows the runs.
    fn beside(&self, title: &str, what: &str, rows: &[Row], last: Option<&str>) -> Vec<Table> {
        let places: Vec<usize> = (0..self.runs.len()).collect();
        let table = |part: &[usize]| {
            let mut table = Table { title: title.into(), columns: vec![what.into()], rows: Vec::new() };
            table.columns.extend(part.iter().map(|&i| format!(">{}", self.runs[i].name)));
            table.columns.extend(last.map(str::to_string));
            for (name, cells) in rows {
                let cells = part.iter().copied().chain(last.map(|_| self.runs.len())).map(|i| &cells[i]);
                table.rows.push(std::iter::once(name).chain(cells).cloned().collect());
            }
            table
        };
        places.chunks(BESIDE).map(table).collect()
    }

    /// Tables: settings that differ, and what the runs came to.
    pub fn tables(&self) -> Vec<Table> {
        let settings: Vec<Row> = self
            .differing()
            .into_iter()
            .map(|(name, values)| (name, values.iter().map(|v| v.unwrap_or("–").to_string()).collect()))
            .collect();
        let mut tables = self.beside("Settings that differ", "setting", &settings, None);
        if settings.is_empty() {
            tables.clear();
        }
        tables.extend(self.beside("Results", "", &self.results(), Some("best")));
        tables
    }

    /// The training losses of all runs in a line each, of one scale, each as long as its steps are many.
    pub fn curves(&self) -> Table {
        let longest = self.runs.iter().map(|r| r.history.step()).max().unwrap_or(1).max(1);
        let losses: Vec<Vec<f64>> = self.runs.iter().map(|r| r.history.losses()).collect();
        let curves = losses.iter().zip(&self.runs).map(|(l, r)| {
            let share = r.history.step() as f64 / longest as f64;
            (&l[..], (share * CURVE as f64).round().max(1.0) as usize)
        });
        let curves = text::sparklines(&curves.collect::<Vec<_>>());
        let mut table = Table::new("Training loss", &["run", "curve", ">first", ">end"]);
        for ((run, loss), curve) in self.runs.iter().zip(&losses).zip(curves) {
            let shown = |x: Option<f64>| x.map_or("–".to_string(), |x| format!("{x:.4}"));
            let first = shown(loss.iter().copied().find(|l| l.is_finite()));
            table.row([run.name.clone(), curve, first, shown(run.history.end_loss())]);
        }
        table
    }

    /// For programs, as `docs/json.md` documents it.
    pub fn json(&self) -> Value {
        let run = |r: &RunLog| {
            let best = r.history.best(self.metric);
            json!({
                "name": r.name,
                "log": r.log,
                "state": r.state.word(),
                "step": r.history.step(),
                "steps": r.history.planned,
                "last_loss": r.history.losses().last().filter(|l| l.is_finite()),
                "end_loss": r.history.end_loss(),
                "evaluation": r.history.evaluation().map(|e| e.brief()),
                "best": best.map(|(step, value)| json!({ "step": step as u64, "value": value })),
                "skipped": r.history.skipped(),
                "samples_per_second": Some(r.history.speed().1).filter(|s| *s > 0.0),
                "seconds": r.history.seconds(),
            })
        };
        let settings =
            self.differing().into_iter().map(|(name, values)| json!({ "name": name, "values": values }));
        json!({
            "runs": self.runs.iter().map(run).collect::<Vec<_>>(),
            "metric": self.metric.name(),
            "settings": settings.collect::<Vec<_>>(),
        })
    }
}

/// A metric's name in a table, without "mean over classes": heads of rows are narrow.
fn metric_name(metric: Metric, e: &crate::runtime::trainer::Evaluation) -> String {
    scores::name(metric, &e.scores).replace(", mean over classes", "")
}
