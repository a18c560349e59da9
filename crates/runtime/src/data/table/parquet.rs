//! Parquet files: the values of one column in one row group, as little-endian bytes, a fixed number for each
//! row.

use super::super::Mapped;
use super::block::{Block, Fault, GROUP, Kind, NULL, too_large};
use super::format::{Field, Format, Words};
use super::source::Source;
use headwater_core::DType;
use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{AsBytes, DataType};
use parquet::errors::{ParquetError, Result as Read};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use std::sync::Arc;

/// Rows that are decoded at a time.
const ROWS: usize = 1024;
/// Elements of the largest column of a row group: a few bytes of a file can stand for any number of them.
const ELEMENTS: u64 = 1 << 28;

impl From<ParquetError> for Fault {
    fn from(e: ParquetError) -> Fault {
        Fault { row: None, message: e.to_string() }
    }
}

/// An open file.
pub(super) struct Parquet(SerializedFileReader<Source>);

impl Parquet {
    pub(super) fn open(map: &Arc<Mapped>) -> Result<Parquet, String> {
        SerializedFileReader::new(Source(map.clone())).map(Parquet).map_err(|e| e.to_string())
    }

    /// Reads all pages of a column of the first row group, of at most `most` elements.
    #[cfg(test)]
    pub(super) fn limited(&self, leaf: usize, most: u64) -> Result<(), String> {
        let group = self.0.get_row_group(0).map_err(|e| e.to_string())?;
        let mut pages = Pages::new(group.as_ref(), leaf, most).map_err(|e| e.to_string())?;
        pages.try_for_each(|page| page.map(drop)).map_err(|e| e.to_string())
    }
}

impl Format for Parquet {
    fn groups(&self) -> Vec<i64> {
        self.0.metadata().row_groups().iter().map(|group| group.num_rows()).collect()
    }

    fn fields(&self) -> Vec<Field> {
        let schema = self.0.metadata().file_metadata().schema_descr();
        let field = |column: &Arc<ColumnDescriptor>| Field {
            path: column.path().string(),
            found: name(column).and_then(|name| Ok((name, dtype(column)?))),
            list: column.max_rep_level() > 0,
            words: column.max_rep_level() == 0 && is_text(column),
        };
        schema.columns().iter().map(field).collect()
    }

    fn decode(
        &self,
        group: usize,
        leaf: usize,
        rows: usize,
        dtype: Option<DType>,
        kind: &Kind,
    ) -> Result<Block, Fault> {
        decode(self.0.get_row_group(group)?.as_ref(), leaf, rows, dtype, kind)
    }

    fn first_length(&self, group: usize, leaf: usize) -> Result<usize, Fault> {
        first_length(self.0.get_row_group(group)?.as_ref(), leaf)
    }

    fn words(&self, group: usize, leaf: usize, rows: usize, words: &mut Words) -> Result<(), Fault> {
        let group = self.0.get_row_group(group)?;
        let ColumnReader::ByteArrayColumnReader(r) = reader(group.as_ref(), leaf)? else {
            return Err(Fault { row: None, message: "holds no strings".into() });
        };
        let mut bytes = 0;
        each(r, group.as_ref(), leaf, rows, |row, values| {
            for value in values {
                bytes += value.len();
                let text = std::str::from_utf8(value.data()).map_err(|_| Fault::at(row, "is no UTF-8"))?;
                words.push(text);
            }
            if bytes > GROUP { Err(Fault::at(row, too_large())) } else { Ok(()) }
        })
    }
}

/// True of strings, and of the categories of pandas, which are stored as such.
fn is_text(column: &ColumnDescriptor) -> bool {
    let logical = matches!(column.logical_type_ref(), Some(LogicalType::String));
    column.physical_type() == Physical::BYTE_ARRAY
        && (logical || column.converted_type() == ConvertedType::UTF8)
}

/// A column's name: a list's own, or the fields of structs joined by dots.
fn name(column: &ColumnDescriptor) -> Result<String, String> {
    let parts = column.path().parts();
    match column.max_rep_level() {
        0 => Ok(parts.join(".")),
        1 if parts.len() <= 3 => Ok(parts[0].clone()),
        _ => Err("lists of lists or structs".into()),
    }
}

/// The dtype of a column's elements; `None` for strings of bytes.
///
/// # Errors
/// For a column that is not numeric, the kind that it holds.
fn dtype(column: &ColumnDescriptor) -> Result<Option<DType>, String> {
    let integer = match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Integer(int)), _) => Some((int.bit_width, int.is_signed)),
        (Some(LogicalType::Float16), _) => return Ok(Some(DType::F16)),
        (Some(LogicalType::String), _) => return Err("strings".into()),
        (Some(other), _) => return Err(format!("{other:?}")),
        (None, ConvertedType::INT_8) => Some((8, true)),
        (None, ConvertedType::INT_16) => Some((16, true)),
        (None, ConvertedType::INT_32) => Some((32, true)),
        (None, ConvertedType::INT_64) => Some((64, true)),
        (None, ConvertedType::UINT_8) => Some((8, false)),
        (None, ConvertedType::UINT_16) => Some((16, false)),
        (None, ConvertedType::UINT_32) => Some((32, false)),
        (None, ConvertedType::UINT_64) => Some((64, false)),
        (None, ConvertedType::NONE) => None,
        (None, other) => return Err(format!("{other}")),
    };
    Ok(Some(match (column.physical_type(), integer) {
        (Physical::INT32, Some((8, true))) => DType::I8,
        (Physical::INT32, Some((8, false))) => DType::U8,
        (Physical::INT32, Some((16, true))) => DType::I16,
        (Physical::INT32, Some((16, false)) | None | Some((32, true))) => DType::I32,
        (Physical::INT32, Some((32, false))) | (Physical::INT64, None | Some((64, true))) => DType::I64,
        (Physical::BOOLEAN, None) => DType::Bool,
        (Physical::FLOAT, None) => DType::F32,
        (Physical::DOUBLE, None) => DType::F64,
        (Physical::BYTE_ARRAY, None) => return Ok(None),
        (physical, Some((bits, signed))) => {
            return Err(format!(
                "{} integers of {bits} bits in {physical}",
                if signed { "signed" } else { "unsigned" }
            ));
        }
        (physical, None) => return Err(physical.to_string()),
    }))
}

/// Decodes a column of a row group of `rows` rows; `dtype` is its elements'.
fn decode(
    group: &dyn RowGroupReader,
    leaf: usize,
    rows: usize,
    dtype: Option<DType>,
    kind: &Kind,
) -> Result<Block, Fault> {
    let mut block = Block::default();
    let signed = |v: i64| format!("{v}, which is no {}", dtype.unwrap_or(DType::I64));
    match reader(group, leaf)? {
        ColumnReader::BoolColumnReader(r) => each(r, group, leaf, rows, |row, v| {
            kind.row(&mut block, row, v, |v, out| {
                out.push(*v as u8);
                Ok(())
            })
        }),
        ColumnReader::Int32ColumnReader(r) => each(r, group, leaf, rows, |row, v| {
            kind.row(&mut block, row, v, |&v, out| {
                let wrong = |_| signed(v as i64);
                match dtype {
                    Some(DType::I8) => out.extend(i8::try_from(v).map_err(wrong)?.to_le_bytes()),
                    Some(DType::U8) => out.extend(u8::try_from(v).map_err(wrong)?.to_le_bytes()),
                    Some(DType::I16) => out.extend(i16::try_from(v).map_err(wrong)?.to_le_bytes()),
                    // Unsigned integers of 32 bits are stored as their two's complement.
                    Some(DType::I64) => out.extend((v as u32 as i64).to_le_bytes()),
                    _ => out.extend(v.to_le_bytes()),
                }
                Ok(())
            })
        }),
        ColumnReader::Int64ColumnReader(r) => numbers(r, group, leaf, rows, kind, &mut block),
        ColumnReader::FloatColumnReader(r) => numbers(r, group, leaf, rows, kind, &mut block),
        ColumnReader::DoubleColumnReader(r) => numbers(r, group, leaf, rows, kind, &mut block),
        ColumnReader::FixedLenByteArrayColumnReader(r) => numbers(r, group, leaf, rows, kind, &mut block),
        ColumnReader::ByteArrayColumnReader(r) => each(r, group, leaf, rows, |row, v| {
            v.iter().for_each(|v| block.bytes.extend(v.data()));
            if block.bytes.len() > GROUP {
                return Err(Fault::at(row, too_large()));
            }
            block.ends.push(block.bytes.len());
            Ok(())
        }),
        ColumnReader::Int96ColumnReader(_) => Err(Fault { row: None, message: "holds timestamps".into() }),
    }?;
    Ok(block)
}

/// Elements of the first row of a row group, at most.
fn first_length(group: &dyn RowGroupReader, leaf: usize) -> Result<usize, Fault> {
    let mut length = 0;
    let mut count = |_, n| {
        length = n;
        Ok(())
    };
    match reader(group, leaf)? {
        ColumnReader::BoolColumnReader(r) => each(r, group, leaf, 1, |row, v| count(row, v.len())),
        ColumnReader::Int32ColumnReader(r) => each(r, group, leaf, 1, |row, v| count(row, v.len())),
        ColumnReader::Int64ColumnReader(r) => each(r, group, leaf, 1, |row, v| count(row, v.len())),
        ColumnReader::FloatColumnReader(r) => each(r, group, leaf, 1, |row, v| count(row, v.len())),
        ColumnReader::DoubleColumnReader(r) => each(r, group, leaf, 1, |row, v| count(row, v.len())),
        ColumnReader::FixedLenByteArrayColumnReader(r) => {
            each(r, group, leaf, 1, |row, v| count(row, v.len()))
        }
        _ => Err(Fault { row: None, message: "is no list of numbers".into() }),
    }?;
    Ok(length)
}

fn numbers<T: DataType>(
    reader: ColumnReaderImpl<T>,
    group: &dyn RowGroupReader,
    leaf: usize,
    rows: usize,
    kind: &Kind,
    block: &mut Block,
) -> Result<(), Fault> {
    each(reader, group, leaf, rows, |row, v| {
        kind.row(block, row, v, |v, out| {
            out.extend(v.as_bytes());
            Ok(())
        })
    })
}

fn reader(group: &dyn RowGroupReader, leaf: usize) -> Read<ColumnReader> {
    let column = group.metadata().schema_descr().column(leaf);
    Ok(get_column_reader(column, Box::new(Pages::new(group, leaf, ELEMENTS)?)))
}

/// Calls `row` with the elements of each of `rows` rows in turn.
fn each<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    group: &dyn RowGroupReader,
    leaf: usize,
    rows: usize,
    mut row: impl FnMut(usize, &[T::T]) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let column = group.metadata().schema_descr().column(leaf);
    let (full, nested) = (column.max_def_level(), column.max_rep_level() > 0);
    // From this level on there is an element in a list, if only a missing one.
    let inside = match column.self_type().get_basic_info().repetition() {
        Repetition::OPTIONAL => full - 1,
        _ => full,
    };
    let (mut values, mut defined, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
    let mut done = 0;
    while done < rows {
        values.clear();
        defined.clear();
        repeated.clear();
        let most = ROWS.min(rows - done);
        let (records, _, levels) =
            reader.read_records(most, Some(&mut defined), Some(&mut repeated), &mut values)?;
        if records == 0 {
            break;
        }
        if full == 0 {
            defined.resize(levels, 0);
        }
        if !nested {
            repeated.resize(levels, 0);
        }
        if defined.len() != levels || repeated.len() != levels || repeated.first() != Some(&0) {
            return Err(Fault { row: Some(done), message: "is damaged: levels and values disagree".into() });
        }
        let (mut at, mut value) = (0, 0);
        while at < levels {
            let end = (at + 1..levels).find(|&i| repeated[i] == 0).unwrap_or(levels);
            let own = &defined[at..end];
            let empty = nested && own.len() == 1 && own[0] == inside - 1 && !(own[0] == 0 && inside > 1);
            if !empty && own.iter().any(|&d| d != full) {
                return Err(Fault::at(done, NULL));
            }
            let count = if empty { 0 } else { own.len() };
            let own = values.get(value..value + count);
            let own = own.ok_or_else(|| Fault::at(done, "is damaged: it has fewer values than it says"))?;
            row(done, own)?;
            (at, value, done) = (end, value + count, done + 1);
        }
    }
    match done == rows {
        true => Ok(()),
        false => {
            let message = format!("is damaged: {done} of {rows} rows are there");
            Err(Fault { row: None, message })
        }
    }
}

/// Pages that hold no more elements than a column of a row group may. Pages without any, which pyarrow may
/// write before the last one, are passed over: the reader would take them for the end.
struct Pages {
    inner: Box<dyn PageReader>,
    most: u64,
    left: u64,
}

impl Pages {
    fn new(group: &dyn RowGroupReader, leaf: usize, most: u64) -> Read<Pages> {
        Ok(Pages { inner: group.get_column_page_reader(leaf)?, most, left: most })
    }

    /// Passes over pages without elements.
    fn skip_empty(&mut self) -> Read<Option<PageMetadata>> {
        loop {
            match self.inner.peek_next_page()? {
                Some(page) if !page.is_dict && page.num_levels == Some(0) => self.inner.skip_next_page()?,
                page => return Ok(page),
            }
        }
    }
}

impl Iterator for Pages {
    type Item = Read<Page>;

    fn next(&mut self) -> Option<Read<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Read<Option<Page>> {
        self.skip_empty()?;
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.left = self.left.checked_sub(page.num_values() as u64).ok_or_else(|| {
                let most = self.most;
                ParquetError::General(format!("has more than {most} elements: write smaller row groups"))
            })?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Read<Option<PageMetadata>> {
        self.skip_empty()
    }

    fn skip_next_page(&mut self) -> Read<()> {
        self.skip_empty()?;
        self.inner.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Read<bool> {
        self.skip_empty()?;
        self.inner.at_record_boundary()
    }
}
