//! Text tables: `.csv` and `.tsv` with a line of names, as pandas writes them. A column's dtype is that of
//! all its cells: integers, floats, bools, or else words. The file is parsed once, when it is opened.

use super::super::Mapped;
use super::block::{Block, Fault, Kind, NULL};
use super::format::{Field, Format, Words};
use headwater_core::DType;
use std::sync::Arc;

/// Columns of the widest file that is read: each takes memory of its own, however few bytes the file has of
/// it.
const COLUMNS: usize = 1 << 16;

/// A column's cells.
enum Cells {
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Words(Words),
    /// All of them are empty.
    Empty,
}

/// A column.
struct Text {
    name: String,
    cells: Cells,
    /// Rows whose cell is empty, ascending.
    empty: Vec<usize>,
}

/// An open file.
pub(super) struct Csv {
    columns: Vec<Text>,
    rows: usize,
}

/// The dtypes that all cells of a column so far could have.
#[derive(Clone, Copy)]
struct May {
    integer: bool,
    float: bool,
    bool: bool,
    filled: bool,
}

impl Csv {
    /// Parses a file; `tabs` for one whose cells are separated by tabs. Others have commas, or semicolons
    /// where the line of names has these and no comma.
    pub(super) fn open(map: &Arc<Mapped>, tabs: bool) -> Result<Csv, String> {
        let bytes = map.bytes();
        let head = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
        let delimiter = match tabs {
            true => b'\t',
            false if !head.contains(&b',') && head.contains(&b';') => b';',
            false => b',',
        };
        let reader = || {
            let mut builder = csv::ReaderBuilder::new();
            builder.delimiter(delimiter).trim(csv::Trim::All).from_reader(bytes)
        };
        let wrong = |e: csv::Error| format!("is no table of text: {e}");
        let mut first = reader();
        let names = first.headers().map_err(wrong)?;
        if names.len() > COLUMNS {
            return Err(format!(
                "has {} columns, and of text at most {COLUMNS} are read: leave some out",
                names.len()
            ));
        }
        let names: Vec<String> = names.iter().map(str::to_string).collect();
        if names.iter().all(|n| n.is_empty()) {
            return Err("is empty".into());
        }
        if names.iter().all(|n| n.parse::<f64>().is_ok()) {
            return Err(
                "has no line of names: its first line is numbers; write one, as pandas' to_csv does".into()
            );
        }
        let mut may = vec![May { integer: true, float: true, bool: true, filled: false }; names.len()];
        let mut record = csv::StringRecord::new();
        let mut rows = 0;
        while first.read_record(&mut record).map_err(wrong)? {
            rows += 1;
            for (may, cell) in may.iter_mut().zip(&record).filter(|(_, cell)| !cell.is_empty()) {
                may.filled = true;
                may.integer &= cell.parse::<i64>().is_ok();
                may.float &= cell.parse::<f64>().is_ok();
                may.bool &= truth(cell).is_some();
            }
        }
        let cells = |may: &May| match may {
            May { filled: false, .. } => Cells::Empty,
            May { integer: true, .. } => Cells::Integers(Vec::with_capacity(rows)),
            May { float: true, .. } => Cells::Floats(Vec::with_capacity(rows)),
            May { bool: true, .. } => Cells::Bools(Vec::with_capacity(rows)),
            _ => Cells::Words(Words::default()),
        };
        let column = |(name, may): (String, &May)| Text { name, cells: cells(may), empty: Vec::new() };
        let mut columns: Vec<Text> = names.into_iter().zip(&may).map(column).collect();
        let mut second = reader();
        let mut row = 0;
        while second.read_record(&mut record).map_err(wrong)? {
            for (column, cell) in columns.iter_mut().zip(&record) {
                if cell.is_empty() {
                    column.empty.push(row);
                }
                match &mut column.cells {
                    Cells::Integers(all) => all.push(cell.parse().unwrap_or_default()),
                    Cells::Floats(all) => all.push(cell.parse().unwrap_or_default()),
                    Cells::Bools(all) => all.push(truth(cell).unwrap_or_default()),
                    Cells::Words(words) => words.push(cell),
                    Cells::Empty => {}
                }
            }
            row += 1;
        }
        Ok(Csv { columns, rows })
    }

    fn present(&self, column: &Text, row: usize) -> Result<(), Fault> {
        match column.empty.binary_search(&row) {
            Ok(_) => Err(Fault::at(row, NULL)),
            Err(_) => Ok(()),
        }
    }
}

/// A truth value as pandas, R and SQL spell it.
fn truth(cell: &str) -> Option<bool> {
    match cell {
        "True" | "true" | "TRUE" => Some(true),
        "False" | "false" | "FALSE" => Some(false),
        _ => None,
    }
}

impl Format for Csv {
    fn groups(&self) -> Vec<i64> {
        vec![self.rows as i64]
    }

    fn fields(&self) -> Vec<Field> {
        let field = |c: &Text| {
            let found = match &c.cells {
                Cells::Integers(_) => Ok((c.name.clone(), Some(DType::I64))),
                Cells::Floats(_) => Ok((c.name.clone(), Some(DType::F64))),
                Cells::Bools(_) => Ok((c.name.clone(), Some(DType::Bool))),
                Cells::Words(..) => Err("strings".to_string()),
                Cells::Empty => Err("nothing".to_string()),
            };
            Field { path: c.name.clone(), found, list: false, words: matches!(c.cells, Cells::Words(..)) }
        };
        self.columns.iter().map(field).collect()
    }

    fn decode(
        &self,
        _: usize,
        leaf: usize,
        rows: usize,
        _: Option<DType>,
        kind: &Kind,
    ) -> Result<Block, Fault> {
        let column = &self.columns[leaf];
        let mut block = Block::default();
        for row in 0..rows {
            self.present(column, row)?;
            let mut push = |bytes: &[u8]| {
                kind.row(&mut block, row, &[()], |(), out| {
                    out.extend(bytes);
                    Ok(())
                })
            };
            match &column.cells {
                Cells::Integers(all) => push(&all[row].to_le_bytes()),
                Cells::Floats(all) => push(&all[row].to_le_bytes()),
                Cells::Bools(all) => push(&[all[row] as u8]),
                Cells::Words(..) | Cells::Empty => {
                    Err(Fault { row: None, message: "holds no numbers".into() })
                }
            }?;
        }
        Ok(block)
    }

    fn first_length(&self, _: usize, _: usize) -> Result<usize, Fault> {
        Err(Fault { row: None, message: "is no list of numbers".into() })
    }

    fn words(&self, _: usize, leaf: usize, _: usize, words: &mut Words) -> Result<(), Fault> {
        let column = &self.columns[leaf];
        match (&column.cells, column.empty.first()) {
            (Cells::Words(_), Some(&row)) => Err(Fault::at(row, NULL)),
            (Cells::Words(own), None) => {
                words.extend(&own.distinct, &own.rows);
                Ok(())
            }
            _ => Err(Fault { row: None, message: "holds no strings".into() }),
        }
    }
}
