//! Findings of a command, as plain data: printed as tables for people, as JSON for machines, as one HTML page
//! to keep.

pub mod chart;
pub mod facts;
pub mod history;
pub mod html;
pub mod live;
pub mod scores;
pub mod text;
pub mod wrap;

use serde::Serialize;
use serde_json::{Map, Value, json};

/// End of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Everything as it must be.
    Pass,
    /// It works, and the reader should know something.
    #[default]
    Note,
    /// It is wrong; the summary says what to do.
    Fail,
}

impl Verdict {
    /// As printed.
    pub const fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Note => "note",
            Verdict::Fail => "FAIL",
        }
    }
}

/// A table; the first row of `rows` is data, not the head.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// Its title.
    pub title: String,
    /// Column heads. A head that starts with `>` marks a right-aligned column.
    pub columns: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(title: &str, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|c| c.to_string()).collect();
        Table { title: title.to_string(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.to_vec());
    }

    /// Head of column `i` and whether it is right-aligned.
    pub fn head(&self, i: usize) -> (&str, bool) {
        match self.columns[i].strip_prefix('>') {
            Some(head) => (head, true),
            None => (&self.columns[i], false),
        }
    }
}

/// One line of a chart.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points (x, y); points that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// Number of its colour, where that is not its place in the chart.
    pub colour: Option<usize>,
    /// The way it is drawn.
    pub stroke: Stroke,
}

/// The way in which a line is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stroke {
    /// A plain line; few points are marked.
    #[default]
    Plain,
    /// Thin and pale, below others: the noise around a trend.
    Faint,
    /// Wide and pale, below all others: a line that another one should cover.
    Wide,
}

impl Series {
    /// A line in the colour of its place.
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, colour: None, stroke: Stroke::Plain }
    }

    /// The same, drawn in another way.
    pub fn stroke(self, stroke: Stroke) -> Series {
        Series { stroke, ..self }
    }

    /// The same in the colour of this number.
    pub fn colour(self, number: usize) -> Series {
        Series { colour: Some(number), ..self }
    }
}

/// A chart of lines over a common x axis.
#[derive(Clone, Debug, Serialize)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis, with its unit.
    pub y: String,
    /// The lines; of those that are drawn alike, the first is on top.
    pub series: Vec<Series>,
    /// True if the area below the lines is filled.
    pub filled: bool,
    /// A logarithmic y axis is offered too, if all numbers are positive.
    pub log: bool,
    /// Left out on the terminal.
    pub aside: bool,
}

impl Chart {
    /// A chart of lines.
    pub fn new(title: &str, x: &str, y: &str, series: Vec<Series>) -> Chart {
        Chart {
            title: title.into(),
            x: x.into(),
            y: y.into(),
            series,
            filled: false,
            log: false,
            aside: false,
        }
    }

    /// Fills the area below the lines.
    pub fn filled(self, filled: bool) -> Chart {
        Chart { filled, ..self }
    }

    /// Leaves it out on the terminal.
    pub fn aside(self) -> Chart {
        Chart { aside: true, ..self }
    }

    /// Offers a logarithmic y axis.
    pub fn log(self, log: bool) -> Chart {
        Chart { log, ..self }
    }
}

/// Shares of a whole, as bars.
#[derive(Clone, Debug, Serialize)]
pub struct Bars {
    /// Its title.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Name and value, largest first.
    pub bars: Vec<(String, f64)>,
}

/// A piece of a section.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Block {
    /// A table.
    Table(Table),
    /// A chart.
    Chart(Chart),
    /// Bars.
    Bars(Bars),
}

/// One step of a report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Section {
    /// Name of the step for programs; it does not change.
    pub key: &'static str,
    /// Name of the step.
    pub title: String,
    /// Its verdict.
    pub verdict: Verdict,
    /// True of a note if nothing was compared, so that the step proved nothing.
    pub idle: bool,
    /// Text that the page shows in place of the verdict's word; empty for nothing.
    pub word: Option<&'static str>,
    /// The findings in a sentence or two.
    pub summary: String,
    /// The advice where something failed.
    pub next: Option<String>,
    /// Numbers and names for programs, by keys that do not change.
    pub values: Map<String, Value>,
    /// Details.
    pub blocks: Vec<Block>,
    /// Wall-clock seconds it took; 0 for a step that reads what an earlier one computed.
    pub seconds: f64,
}

impl Section {
    /// The time it took in words; `None` below a millisecond, where nothing was computed.
    pub fn time(&self) -> Option<String> {
        (self.seconds >= 1e-3).then(|| text::seconds(self.seconds))
    }
}

/// A whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Title.
    pub title: String,
    /// Name and value of what the report is about: model, versions, machine, date.
    pub facts: Vec<(String, String)>,
    /// Steps in order.
    pub sections: Vec<Section>,
}

impl Report {
    /// The verdicts and typed values of all steps, by their keys: what `docs/json.md` documents.
    pub fn results(&self) -> Value {
        let steps = self.sections.iter().map(|s| {
            let mut step = Map::from_iter([
                ("title".to_string(), json!(s.title)),
                ("verdict".to_string(), json!(s.verdict)),
                ("summary".to_string(), json!(s.summary)),
                ("next".to_string(), json!(s.next)),
                ("seconds".to_string(), json!(s.seconds)),
            ]);
            step.extend(s.values.clone());
            (s.key.to_string(), Value::Object(step))
        });
        let facts: Map<String, Value> = self.facts.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        json!({
            "title": self.title,
            "passed": self.passed(),
            "conclusion": self.conclusion(),
            "proved_nothing": self.keys(|s| s.idle),
            "facts": facts,
            "steps": Map::from_iter(steps),
        })
    }

    /// Keys of the steps that `of` says yes to.
    fn keys(&self, of: impl Fn(&Section) -> bool) -> Vec<&'static str> {
        self.sections.iter().filter(|s| of(s)).map(|s| s.key).collect()
    }

    /// All verdicts in a line: `5 passed, 3 proved nothing: forward, gradients, training`.
    pub fn conclusion(&self) -> String {
        let passed = self.keys(|s| s.verdict == Verdict::Pass).len();
        let others = [
            ("FAILED", self.keys(|s| s.verdict == Verdict::Fail)),
            ("proved nothing", self.keys(|s| s.idle)),
            ("with a note", self.keys(|s| s.verdict == Verdict::Note && !s.idle)),
        ];
        let said = others.iter().filter(|(_, keys)| !keys.is_empty()).map(|(word, keys)| {
            let keys: Vec<String> = keys.iter().map(|k| k.replace('_', " ")).collect();
            format!("; {} {word}: {}", keys.len(), keys.join(", "))
        });
        format!("{passed} passed{}", said.collect::<String>())
    }

    /// True if no step failed.
    pub fn passed(&self) -> bool {
        self.sections.iter().all(|s| s.verdict != Verdict::Fail)
    }
}
