//! Predictions as a table for people and spreadsheets, a row for each sample: `.csv`, `.tsv` or `.parquet`.

use crate::core::tensor::Data;
use crate::export::Pending;
use crate::infer::{Ran, Raw};
use anyhow::{Context, Result, bail, ensure};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::writer::SerializedFileWriter;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

/// Classes whose probabilities have a column each, and elements of another output that have.
const COLUMNS: usize = 20;

/// True of a file that is written as a table.
pub fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "csv" || e == "tsv" || e == "parquet")
}

/// An output that says the class of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassOutput {
    /// Logits of all classes.
    Logits(usize),
    /// The logit of the second of two classes.
    One(usize),
}

/// Names of classes, in the order of the labels.
pub struct Names {
    /// As somebody has given them.
    pub given: Option<Vec<String>>,
    /// Column of the data with the labels, whose classes have names by default.
    pub column: String,
}

/// A column's cells.
#[derive(Clone, Debug, PartialEq)]
enum Cells {
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    Words(Vec<String>),
}

impl Cells {
    /// A cell as text: of a float, the fewest digits that are read back as the same f32.
    fn text(&self, row: usize) -> String {
        match self {
            Cells::Integers(all) => all[row].to_string(),
            Cells::Floats(all) => all[row].to_string(),
            Cells::Words(all) => all[row].clone(),
        }
    }
}

/// Names and cells of a batch.
type Columns = Vec<(String, Cells)>;

/// A file that rows are added to.
enum Out {
    /// Cells separated by this character.
    Text(BufWriter<File>, char),
    /// Begun with the first batch, which says the columns.
    Parquet(Option<File>, Option<SerializedFileWriter<File>>),
}

/// A table on its way into a file.
pub struct PredictedTable {
    pending: Pending,
    out: Out,
    /// Numbers of the outputs.
    outputs: Vec<usize>,
    class: Option<ClassOutput>,
    names: Names,
    /// Names of the columns, once they are known.
    head: Vec<String>,
}

impl PredictedTable {
    /// Begins a file for these outputs, one of which may say the class of a sample.
    ///
    /// # Errors
    /// If it exists, or cannot be written.
    pub fn new(
        out: &Path,
        overwrite: bool,
        outputs: Vec<usize>,
        class: Option<ClassOutput>,
        names: Names,
    ) -> Result<PredictedTable> {
        let pending = Pending::new(out, overwrite)?;
        let file = pending.create()?;
        let out = match out.extension().and_then(|e| e.to_str()) {
            Some("parquet") => Out::Parquet(Some(file), None),
            Some("tsv") => Out::Text(BufWriter::new(file), '\t'),
            _ => Out::Text(BufWriter::new(file), ','),
        };
        Ok(PredictedTable { pending, out, outputs, class, names, head: Vec::new() })
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// If an output is not one value a sample, or the disk refuses.
    pub fn add(&mut self, ran: &Ran) -> Result<()> {
        let columns = self.columns(ran)?;
        let first = self.head.is_empty();
        if first {
            self.head = columns.iter().map(|(name, _)| name.clone()).collect();
        }
        self.write(&columns, ran.samples, first)
            .with_context(|| format!("cannot write {}", self.pending.end().display()))
    }

    /// The columns of a batch.
    fn columns(&self, ran: &Ran) -> Result<Columns> {
        let numbers = ran.first..ran.first + ran.samples;
        let mut columns =
            vec![("sample".into(), Cells::Integers(numbers.clone().map(|i| i as i64).collect()))];
        let files: Option<Vec<String>> = numbers.map(|i| ran.data.sample_name(i)).collect();
        columns.extend(files.map(|files| ("file".to_string(), Cells::Words(files))));
        let of_data = ran.classes.get(&self.names.column).map(Vec::as_slice);
        for (number, raw) in self.outputs.iter().zip(&ran.outputs) {
            let each = elements(raw, ran.samples, *number)?;
            let tensor = raw.tensor();
            let values = tensor.to_f64();
            let logits = match self.class {
                Some(ClassOutput::Logits(class)) if class == *number => Some((values.clone(), each)),
                // A logit of class 1 beside one of 0 has the sigmoid as its softmax.
                Some(ClassOutput::One(class)) if class == *number && each == 1 => {
                    Some((values.iter().flat_map(|x| [0.0, *x]).collect(), 2))
                }
                _ => None,
            };
            if let Some((logits, count)) = logits {
                columns.extend(classified(&logits, count, self.names.given.as_deref().or(of_data))?);
                continue;
            }
            if each > COLUMNS {
                bail!(
                    "output.{number} has {each} values for each sample, and a table at most {COLUMNS}: write .safetensors or \
                     .npz, or choose others with --outputs"
                );
            }
            for k in 0..each {
                let name =
                    if each == 1 { format!("output.{number}") } else { format!("output.{number}.{k}") };
                let cells = match &tensor.data {
                    Data::Int(all) => Cells::Integers(all.iter().skip(k).step_by(each).copied().collect()),
                    Data::Float(all) => {
                        Cells::Floats(all.iter().skip(k).step_by(each).map(|x| *x as f32).collect())
                    }
                };
                columns.push((name, cells));
            }
        }
        Ok(columns)
    }

    fn write(&mut self, columns: &Columns, rows: usize, first: bool) -> Result<()> {
        match &mut self.out {
            Out::Text(out, between) => {
                if first {
                    writeln!(out, "{}", line(&self.head, *between))?;
                }
                for row in 0..rows {
                    let cells: Vec<String> = columns.iter().map(|(_, cells)| cells.text(row)).collect();
                    writeln!(out, "{}", line(&cells, *between))?;
                }
            }
            Out::Parquet(file, writer) => {
                if let Some(file) = file.take() {
                    *writer = Some(begun(file, columns)?);
                }
                let writer = writer.as_mut().context("the table was not begun")?;
                let mut group = writer.next_row_group()?;
                for (_, cells) in columns {
                    let mut column = group.next_column()?.context("the table has fewer columns")?;
                    match (column.untyped(), cells) {
                        (ColumnWriter::Int64ColumnWriter(w), Cells::Integers(all)) => {
                            w.write_batch(all, None, None)?
                        }
                        (ColumnWriter::FloatColumnWriter(w), Cells::Floats(all)) => {
                            w.write_batch(all, None, None)?
                        }
                        (ColumnWriter::ByteArrayColumnWriter(w), Cells::Words(all)) => {
                            let all: Vec<ByteArray> = all.iter().map(|s| s.as_str().into()).collect();
                            w.write_batch(&all, None, None)?
                        }
                        _ => bail!("a column holds other values than in the first batch"),
                    };
                    column.close()?;
                }
                group.close()?;
            }
        }
        Ok(())
    }

    /// Completes the file. Returns the names of its columns.
    ///
    /// # Errors
    /// If the disk refuses.
    pub fn finish(mut self) -> Result<Vec<String>> {
        let failed = || format!("cannot write {}", self.pending.end().display());
        match &mut self.out {
            Out::Text(out, _) => out.flush().with_context(failed)?,
            Out::Parquet(_, writer) => {
                writer.as_mut().map_or(Ok(()), |w| w.finish().map(drop)).with_context(failed)?;
            }
        }
        self.pending.finish()?;
        Ok(self.head)
    }
}

/// A Parquet file of these columns, compressed by Snappy.
fn begun(file: File, columns: &Columns) -> Result<SerializedFileWriter<File>> {
    use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
    use parquet::schema::types::Type;
    let field = |(name, cells): &(String, Cells)| {
        let (physical, logical) = match cells {
            Cells::Integers(_) => (Physical::INT64, None),
            Cells::Floats(_) => (Physical::FLOAT, None),
            Cells::Words(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let column = Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED);
        Ok(Arc::new(column.with_logical_type(logical).build()?))
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>>>()?;
    let schema = Type::group_type_builder("predictions").with_fields(fields).build()?;
    let settings =
        parquet::file::properties::WriterProperties::builder().set_compression(Compression::SNAPPY);
    Ok(SerializedFileWriter::new(file, Arc::new(schema), Arc::new(settings.build()))?)
}

/// Elements of a sample of an output.
fn elements(raw: &Raw, samples: usize, number: usize) -> Result<usize> {
    ensure!(
        raw.ty.shape.first() == Some(&samples),
        "output.{number} is {}, not one value for each of {samples} samples: choose others with --outputs",
        raw.ty
    );
    Ok(raw.ty.shape[1..].iter().product())
}

/// Class, its probability, and those of a few classes, by the softmax of the logits. A row with NaN has none.
fn classified(values: &[f64], count: usize, names: Option<&[String]>) -> Result<Columns> {
    ensure!(
        names.is_none_or(|names| names.len() == count),
        "there are {count} classes, and {} names for them",
        names.map_or(0, <[String]>::len)
    );
    let name = |class: usize| names.map_or_else(|| class.to_string(), |names| names[class].clone());
    let rows: Vec<Vec<f64>> = values.chunks(count).map(softmax).collect();
    // The first of equal ones.
    let best = |row: &[f64]| (0..count).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
    let known = |row: &[f64]| !row.iter().any(|x| x.is_nan());
    let class = |row: &Vec<f64>| if known(row) { best(row) as i64 } else { -1 };
    let word = |row: &Vec<f64>| if known(row) { name(best(row)) } else { String::new() };
    let class = match names {
        Some(_) => Cells::Words(rows.iter().map(word).collect()),
        None => Cells::Integers(rows.iter().map(class).collect()),
    };
    let of =
        |column: &dyn Fn(&Vec<f64>) -> f64| Cells::Floats(rows.iter().map(|r| column(r) as f32).collect());
    let likely = |row: &Vec<f64>| if known(row) { row[best(row)] } else { f64::NAN };
    let mut columns = vec![("class".to_string(), class), ("probability".to_string(), of(&likely))];
    if count <= COLUMNS {
        columns.extend((0..count).map(|c| (format!("probability of {}", name(c)), of(&|row| row[c]))));
    }
    Ok(columns)
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|x| (x - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|p| p / sum).collect()
}

/// A line of CSV (RFC 4180).
fn line(cells: &[String], between: char) -> String {
    let quoted = |cell: &String| match cell.contains([between, '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(&between.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_names_and_probabilities() {
        let names = ["no".to_string(), "yes, sir".to_string()];
        let logits = [0.0, 0.0, 1.0, 1.0 + 3f64.ln(), f64::NAN, 1.0];
        let found = classified(&logits, 2, Some(&names)).unwrap();
        let column = |name: &str| -> Vec<String> {
            let cells = &found.iter().find(|c| c.0 == name).unwrap().1;
            (0..3).map(|row| cells.text(row)).collect()
        };
        assert_eq!(column("class"), ["no", "yes, sir", ""]);
        assert_eq!(column("probability"), ["0.5", "0.75", "NaN"]);
        assert_eq!(column("probability of no")[..2], ["0.5", "0.25"]);
        assert_eq!(line(&column("class"), ','), "no,\"yes, sir\",");
        assert_eq!(line(&column("class"), '\t'), "no\tyes, sir\t");
        let unnamed = classified(&logits, 2, None).unwrap();
        assert_eq!(unnamed[0].1, Cells::Integers(vec![0, 1, -1]));
        assert!(
            classified(&[0.0; 6], 3, Some(&names))
                .unwrap_err()
                .to_string()
                .contains("3 classes, and 2 names")
        );
    }
}
