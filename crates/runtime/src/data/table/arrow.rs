//! Arrow IPC files, in both forms: with a footer (`.arrow`, Feather 2) and as a stream of messages, as the
//! `datasets` library writes them. Format: <https://arrow.apache.org/docs/format/Columnar.html>.

use super::super::Mapped;
use super::block::{Block, Fault, GROUP, Kind, NULL, too_large};
use super::format::{Field, Format, Words};
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, cast::AsArray};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Message, MetadataVersion, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use headwater_core::DType;
use std::ops::Range;
use std::sync::Arc;

/// First and last bytes of a file with a footer.
const MAGIC: &[u8] = b"ARROW1";
/// First bytes of a message, before its length.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Bytes of the largest record batch, which is decoded as a whole.
const BATCH: u64 = 4 << 30;

impl From<ArrowError> for Fault {
    fn from(e: ArrowError) -> Fault {
        Fault { row: None, message: e.to_string() }
    }
}

/// A column of numbers or bytes: its place in the schema, and in the structs there.
type Place = (usize, Vec<usize>);

/// An open file.
pub(super) struct Arrow {
    map: Arc<Mapped>,
    schema: SchemaRef,
    version: MetadataVersion,
    batches: Vec<Batch>,
    places: Vec<Place>,
}

/// A record batch in the file.
struct Batch {
    block: arrow_ipc::Block,
    rows: i64,
}

impl Arrow {
    pub(super) fn open(map: &Arc<Mapped>) -> Result<Arrow, String> {
        let bytes = Bytes(map);
        let start = bytes.read(0, MAGIC.len() as u64).unwrap_or_default();
        if start.starts_with(b"FEA1") {
            return Err("is Feather version 1, which holds no Arrow IPC".into());
        }
        let (schema, version, batches) = match start == MAGIC {
            true => footer(&bytes)?,
            false => stream(&bytes)?,
        };
        let mut places = Vec::new();
        for (at, field) in schema.fields().iter().enumerate() {
            leaves(field.data_type(), &mut vec![], &mut |inside| places.push((at, inside.to_vec())));
        }
        Ok(Arrow { map: map.clone(), schema, version, batches, places })
    }

    /// The rows of a column in a record batch.
    fn array(&self, group: usize, leaf: usize) -> Result<ArrayRef, Fault> {
        let (batch, (column, inside)) = (&self.batches[group], &self.places[leaf]);
        let block = &batch.block;
        let (metadata, body) = (block.metaDataLength() as u64, block.bodyLength() as u64);
        let fault = |message: String| Fault { row: None, message };
        if body > BATCH {
            return Err(fault(format!("is in a record batch of {body} bytes: write smaller ones")));
        }
        let bytes = Bytes(&self.map).read(block.offset() as u64, metadata + body).map_err(fault)?;
        let (head, body) = bytes.split_at(metadata as usize);
        bounded(&message(head).map_err(fault)?, body).map_err(fault)?;
        let decoder = FileDecoder::new(self.schema.clone(), self.version).with_projection(vec![*column]);
        let rows = decoder.read_record_batch(block, &Buffer::from_vec(bytes))?;
        let rows = rows.ok_or_else(|| fault("is damaged: a record batch is missing".into()))?;
        let mut array = rows.column(0).clone();
        for &field in inside {
            if let Some(row) = (0..array.len()).find(|&row| array.is_null(row)) {
                return Err(Fault::at(row, NULL));
            }
            array = array.as_struct().column(field).clone();
        }
        match array.len() as i64 == batch.rows {
            true => Ok(array),
            false => Err(fault(format!("is damaged: it has {} rows of {}", array.len(), batch.rows))),
        }
    }
}

impl Format for Arrow {
    fn groups(&self) -> Vec<i64> {
        self.batches.iter().map(|batch| batch.rows).collect()
    }

    fn fields(&self) -> Vec<Field> {
        let field = |(at, inside): &Place| {
            let mut field = self.schema.field(*at);
            let mut path = field.name().clone();
            for &i in inside {
                let DataType::Struct(fields) = field.data_type() else { break };
                field = &fields[i];
                path = format!("{path}.{}", field.name());
            }
            let element = element(field.data_type());
            let list = element.is_some();
            let found = match (element, inside.is_empty()) {
                (Some(_), false) => Err("lists in structs".into()),
                (element, _) => dtype(element.unwrap_or(field.data_type())),
            };
            let words = is_text(field.data_type());
            Field { found: found.map(|dtype| (path.clone(), dtype)), path, list, words }
        };
        self.places.iter().map(field).collect()
    }

    fn decode(
        &self,
        group: usize,
        leaf: usize,
        _rows: usize,
        _dtype: Option<DType>,
        kind: &Kind,
    ) -> Result<Block, Fault> {
        let rows = Rows::new(self.array(group, leaf)?);
        let mut block = Block::default();
        macro_rules! numbers {
            ($ty:ty, $bytes:expr) => {
                rows.numbers::<$ty>(kind, &mut block, $bytes)
            };
        }
        match rows.values.data_type().clone() {
            DataType::Boolean => rows.bools(kind, &mut block),
            DataType::Int8 => numbers!(Int8Type, |v, out| out.extend(v.to_le_bytes())),
            DataType::Int16 => numbers!(Int16Type, |v, out| out.extend(v.to_le_bytes())),
            DataType::Int32 => numbers!(Int32Type, |v, out| out.extend(v.to_le_bytes())),
            DataType::Int64 => numbers!(Int64Type, |v, out| out.extend(v.to_le_bytes())),
            DataType::UInt8 => numbers!(UInt8Type, |v, out| out.push(v)),
            DataType::UInt16 => numbers!(UInt16Type, |v, out| out.extend((v as i32).to_le_bytes())),
            DataType::UInt32 => numbers!(UInt32Type, |v, out| out.extend((v as i64).to_le_bytes())),
            DataType::Float16 => numbers!(Float16Type, |v, out| out.extend(v.to_le_bytes())),
            DataType::Float32 => numbers!(Float32Type, |v, out| out.extend(v.to_le_bytes())),
            DataType::Float64 => numbers!(Float64Type, |v, out| out.extend(v.to_le_bytes())),
            DataType::Binary => rows.bytes(&mut block, |row| rows.values.as_binary::<i32>().value(row)),
            DataType::LargeBinary => rows.bytes(&mut block, |row| rows.values.as_binary::<i64>().value(row)),
            other => Err(Fault { row: None, message: format!("holds {other}") }),
        }?;
        Ok(block)
    }

    fn first_length(&self, group: usize, leaf: usize) -> Result<usize, Fault> {
        Ok(Rows::new(self.array(group, leaf)?).range(0)?.len())
    }

    fn words(&self, group: usize, leaf: usize, _rows: usize, words: &mut Words) -> Result<(), Fault> {
        let array = self.array(group, leaf)?;
        if let Some(row) = (0..array.len()).find(|&row| array.is_null(row)) {
            return Err(Fault::at(row, NULL));
        }
        let none = || Fault { row: None, message: "holds no strings".into() };
        let Some(dictionary) = array.as_any_dictionary_opt() else {
            return strings(&array, &mut |word| words.push(word)).ok_or_else(none);
        };
        let mut values = Vec::new();
        strings(dictionary.values(), &mut |word| values.push(word.to_string())).ok_or_else(none)?;
        for key in dictionary.normalized_keys() {
            words.push(values.get(key).ok_or_else(none)?);
        }
        Ok(())
    }
}

/// True of strings, and of numbers of strings.
fn is_text(ty: &DataType) -> bool {
    match ty {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

/// Calls `each` with the strings of an array of them, a null being an empty one; `None` where it holds
/// others.
fn strings(array: &ArrayRef, each: &mut dyn FnMut(&str)) -> Option<()> {
    let mut own = |s: Option<&str>| each(s.unwrap_or_default());
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().for_each(&mut own),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().for_each(&mut own),
        DataType::Utf8View => array.as_string_view().iter().for_each(&mut own),
        _ => return None,
    }
    Some(())
}

/// Calls `leaf` with the place of each column that is no struct, in the structs of `ty`.
fn leaves(ty: &DataType, inside: &mut Vec<usize>, leaf: &mut dyn FnMut(&[usize])) {
    let DataType::Struct(fields) = ty else { return leaf(inside) };
    for (at, field) in fields.iter().enumerate() {
        inside.push(at);
        leaves(field.data_type(), inside, leaf);
        inside.pop();
    }
}

/// The type of a list's elements.
fn element(ty: &DataType) -> Option<&DataType> {
    match ty {
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            Some(field.data_type())
        }
        _ => None,
    }
}

/// The dtype of elements; `None` for strings of bytes.
///
/// # Errors
/// For what is no tensor, the kind that it holds.
fn dtype(ty: &DataType) -> Result<Option<DType>, String> {
    Ok(Some(match ty {
        DataType::Boolean => DType::Bool,
        DataType::Int8 => DType::I8,
        DataType::Int16 => DType::I16,
        DataType::Int32 | DataType::UInt16 => DType::I32,
        DataType::Int64 | DataType::UInt32 => DType::I64,
        DataType::UInt8 => DType::U8,
        DataType::Float16 => DType::F16,
        DataType::Float32 => DType::F32,
        DataType::Float64 => DType::F64,
        DataType::Binary | DataType::LargeBinary => return Ok(None),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => return Err("strings".into()),
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) | DataType::Struct(_) => {
            return Err("lists of lists or structs".into());
        }
        other => return Err(other.to_string()),
    }))
}

/// The rows of a column: their elements, and the place of each row's.
struct Rows {
    array: ArrayRef,
    values: ArrayRef,
}

impl Rows {
    fn new(array: ArrayRef) -> Rows {
        let values = match array.data_type() {
            DataType::List(_) => array.as_list::<i32>().values().clone(),
            DataType::LargeList(_) => array.as_list::<i64>().values().clone(),
            DataType::FixedSizeList(..) => array.as_fixed_size_list().values().clone(),
            _ => array.clone(),
        };
        Rows { array, values }
    }

    /// The place of a row's elements.
    fn range(&self, row: usize) -> Result<Range<usize>, Fault> {
        if self.array.is_null(row) {
            return Err(Fault::at(row, NULL));
        }
        let range = match self.array.data_type() {
            DataType::List(_) => {
                let ends = self.array.as_list::<i32>().value_offsets();
                ends[row] as usize..ends[row + 1] as usize
            }
            DataType::LargeList(_) => {
                let ends = self.array.as_list::<i64>().value_offsets();
                ends[row] as usize..ends[row + 1] as usize
            }
            DataType::FixedSizeList(_, size) => row * *size as usize..(row + 1) * *size as usize,
            _ => row..row + 1,
        };
        match self.values.nulls().is_some_and(|n| range.clone().any(|at| n.is_null(at))) {
            true => Err(Fault::at(row, NULL)),
            false => Ok(range),
        }
    }

    fn numbers<T: ArrowPrimitiveType>(
        &self,
        kind: &Kind,
        block: &mut Block,
        bytes: impl Fn(T::Native, &mut Vec<u8>),
    ) -> Result<(), Fault> {
        let values: &[T::Native] = self.values.as_primitive::<T>().values();
        for row in 0..self.array.len() {
            kind.row(block, row, &values[self.range(row)?], |v, out| {
                bytes(*v, out);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn bools(&self, kind: &Kind, block: &mut Block) -> Result<(), Fault> {
        let values = self.values.as_boolean().values();
        for row in 0..self.array.len() {
            let own: Vec<bool> = self.range(row)?.map(|at| values.value(at)).collect();
            kind.row(block, row, &own, |v, out| {
                out.push(*v as u8);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn bytes<'a>(&self, block: &mut Block, value: impl Fn(usize) -> &'a [u8]) -> Result<(), Fault> {
        for row in 0..self.array.len() {
            block.bytes.extend(value(self.range(row)?.start));
            if block.bytes.len() > GROUP {
                return Err(Fault::at(row, too_large()));
            }
            block.ends.push(block.bytes.len());
        }
        Ok(())
    }
}

/// The bytes of a file, which may be shortened while it is mapped.
struct Bytes<'a>(&'a Mapped);

impl Bytes<'_> {
    fn length(&self) -> u64 {
        self.0.bytes().len() as u64
    }

    fn read(&self, start: u64, length: u64) -> Result<Vec<u8>, String> {
        let end = start.checked_add(length).filter(|&end| end <= self.length());
        let end = end.ok_or("is damaged: a part of it leaves the file")?;
        let mut out = Vec::new();
        self.0.append(start as usize..end as usize, &mut out).map_err(|e| e.to_string())?;
        Ok(out)
    }

    /// Length of a message's metadata with what precedes it; 0 at the end of a stream.
    fn metadata(&self, at: u64) -> Result<u64, String> {
        let word = |at| Ok::<[u8; 4], String>(self.read(at, 4)?.try_into().unwrap_or_default());
        let (before, length) = match word(at)? {
            CONTINUATION => (8, word(at + 4)?),
            length => (4, length),
        };
        match i32::from_le_bytes(length) {
            0 => Ok(0),
            length => u64::try_from(length).map(|l| l + before).map_err(|_| "is no Arrow IPC file".into()),
        }
    }
}

/// A message, with the length before it.
fn message(bytes: &[u8]) -> Result<Message<'_>, String> {
    let before = if bytes.starts_with(&CONTINUATION) { 8 } else { 4 };
    let found = bytes.get(before..).ok_or("is damaged: it ends inside of a message")?;
    root_as_message(found).map_err(|e| format!("is no Arrow IPC file, or damaged ({e})"))
}

/// Refuses a record batch whose buffers claim to be larger than a column may be, before anything is
/// decompressed.
fn bounded(message: &Message<'_>, body: &[u8]) -> Result<(), String> {
    let batch = message.header_as_record_batch().ok_or("is damaged: a record batch is none")?;
    let (Some(buffers), Some(_)) = (batch.buffers(), batch.compression()) else { return Ok(()) };
    for buffer in buffers {
        let start = usize::try_from(buffer.offset()).ok();
        let length = start.and_then(|s| body.get(s..)?.first_chunk()).map(|word| i64::from_le_bytes(*word));
        if buffer.length() >= 8 && length.is_none_or(|length| length > GROUP as i64) {
            return Err(too_large());
        }
    }
    Ok(())
}

type Found = (SchemaRef, MetadataVersion, Vec<Batch>);

fn schema(schema: Option<arrow_ipc::Schema<'_>>) -> Result<SchemaRef, String> {
    let schema = schema.ok_or("is damaged: it has no schema")?;
    if !schema.endianness().equals_to_target_endianness() {
        return Err("was written by a machine of the other byte order".into());
    }
    try_fb_to_schema(schema).map(Arc::new).map_err(|e| e.to_string())
}

/// Rows of the record batch whose message is at an offset of the file.
fn batch(bytes: &Bytes<'_>, block: arrow_ipc::Block) -> Result<Batch, String> {
    let lengths = [block.offset(), block.metaDataLength() as i64, block.bodyLength()];
    if lengths.iter().any(|&l| l < 0) {
        return Err("is damaged: a length in it is negative".into());
    }
    let head = bytes.read(block.offset() as u64, block.metaDataLength() as u64)?;
    let message = message(&head)?;
    let rows = message.header_as_record_batch().ok_or("is damaged: a record batch is none")?.length();
    Ok(Batch { block, rows })
}

/// Contents of a file with a footer.
fn footer(bytes: &Bytes<'_>) -> Result<Found, String> {
    let end = bytes.length().saturating_sub(10);
    let last: [u8; 10] = bytes.read(end, 10)?.try_into().unwrap_or_default();
    let length = read_footer_length(last).map_err(|e| format!("is cut off ({e})"))? as u64;
    let start = end.checked_sub(length).ok_or("is damaged: its footer leaves the file")?;
    let footer = bytes.read(start, length)?;
    let footer = root_as_footer(&footer).map_err(|e| format!("is damaged: its footer is none ({e})"))?;
    let blocks = footer.recordBatches().into_iter().flatten();
    let batches = blocks.map(|block| batch(bytes, *block)).collect::<Result<_, _>>()?;
    Ok((schema(footer.schema())?, footer.version(), batches))
}

/// Contents of a stream of messages.
fn stream(bytes: &Bytes<'_>) -> Result<Found, String> {
    let mut found: Option<(SchemaRef, MetadataVersion)> = None;
    let (mut batches, mut at) = (Vec::new(), 0);
    loop {
        // The format lets a stream end without its mark; a file that was cut off could then not be
        // distinguished from a whole one.
        if at == bytes.length() {
            return Err(
                "is cut off: the mark of its end is missing, as if its writer had not been closed".into()
            );
        }
        let metadata = bytes.metadata(at)?;
        if metadata == 0 {
            break;
        }
        if metadata > bytes.length() - at {
            return Err(match at {
                0 => "is no Arrow IPC file, or is cut off".into(),
                _ => "is cut off inside of a message".into(),
            });
        }
        let head = bytes.read(at, metadata)?;
        let message = message(&head)?;
        let body = u64::try_from(message.bodyLength()).ok();
        let end = body.and_then(|body| at.checked_add(metadata)?.checked_add(body));
        let end = end.filter(|&end| end <= bytes.length()).ok_or("is cut off inside of a message")?;
        if let Some(own) = message.header_as_schema() {
            found = Some((schema(Some(own))?, message.version()));
        } else if message.header_as_record_batch().is_some() {
            let block = arrow_ipc::Block::new(at as i64, metadata as i32, message.bodyLength());
            batches.push(batch(bytes, block)?);
        }
        at = end;
    }
    let (schema, version) = found.ok_or("is no Arrow IPC file")?;
    Ok((schema, version, batches))
}

#[cfg(test)]
mod tests {
    use super::super::super::Dataset;
    use super::*;
    use arrow_array::builder::{Int32Builder, ListBuilder};
    use arrow_array::{BinaryArray, DictionaryArray, Float32Array, RecordBatch, StructArray, UInt16Array};
    use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    use std::path::{Path, PathBuf};

    fn stream(dir: &Path, batches: &[RecordBatch]) -> PathBuf {
        let path = dir.join("data.arrow");
        let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
        batches.iter().for_each(|b| writer.write(b).unwrap());
        std::fs::write(&path, writer.into_inner().unwrap()).unwrap();
        path
    }

    fn of(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap()
    }

    fn lists(rows: &[&[i32]]) -> ArrayRef {
        let mut builder = ListBuilder::new(Int32Builder::new());
        for row in rows {
            builder.values().append_slice(row);
            builder.append(true);
        }
        Arc::new(builder.finish())
    }

    fn said(path: &Path) -> String {
        Dataset::open(path).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn rows_of_several_batches_are_read_in_any_order() {
        let dir = tempfile::tempdir().unwrap();
        let part = |first: u16, n: u16| {
            let depth = UInt16Array::from_iter_values(first..first + n);
            let inner = StructArray::from(vec![(
                Arc::new(arrow_schema::Field::new("depth", DataType::UInt16, true)),
                Arc::new(depth) as ArrayRef,
            )]);
            let pairs: Vec<[i32; 2]> = (first..first + n).map(|i| [i as i32, -(i as i32)]).collect();
            let pairs: Vec<&[i32]> = pairs.iter().map(|p| &p[..]).collect();
            let kind = DictionaryArray::<Int32Type>::from_iter((0..n).map(|_| "kind"));
            of(vec![("inner", Arc::new(inner)), ("pair", lists(&pairs)), ("kind", Arc::new(kind))])
        };
        let data = Dataset::open(&stream(dir.path(), &[part(0, 3), part(3, 0), part(3, 2)])).unwrap();
        let types: Vec<(&str, String)> =
            data.columns().iter().map(|c| (c.name.as_str(), c.ty.to_string())).collect();
        assert_eq!(types, [("inner.depth", "i32[5]".to_string()), ("pair", "i32[5, 2]".to_string())]);
        let mut bytes = Vec::new();
        for i in [4, 0, 3] {
            data.column("inner.depth").unwrap().append(i, DType::I32, &mut bytes).unwrap();
            data.column("pair").unwrap().append(i, DType::I32, &mut bytes).unwrap();
        }
        let got: Vec<i32> = bytes.chunks(4).map(|c| i32::from_le_bytes(c.try_into().unwrap())).collect();
        assert_eq!(got, [4, 4, -4, 0, 0, 0, 3, 3, -3]);
    }

    #[test]
    fn what_is_no_sample_is_named_by_its_row() {
        let dir = tempfile::tempdir().unwrap();
        let x = |values: &[Option<f32>]| {
            of(vec![("x", Arc::new(Float32Array::from(values.to_vec())) as ArrayRef)])
        };
        let message = said(&stream(dir.path(), &[x(&[Some(1.0), Some(2.0)]), x(&[Some(3.0), None])]));
        assert!(message.contains("data.arrow: `x` of row 3 is null"), "{message}");
        let message = said(&stream(dir.path(), &[of(vec![("ids", lists(&[&[1, 2], &[3], &[4, 5]]))])]));
        assert!(message.contains("`ids` of row 1 has 1 elements, the first has 2"), "{message}");
        let image = BinaryArray::from_iter_values([b"no image"]);
        let path = stream(dir.path(), &[of(vec![("image", Arc::new(image))])]);
        assert!(said(&path).contains("`image` holds bytes"), "{}", said(&path));
        std::fs::write(
            dir.path().join("table.toml"),
            "[images.image]\nchannels = 1\nheight = 4\nwidth = 4\n",
        )
        .unwrap();
        let data = Dataset::open(dir.path()).unwrap();
        let message = data.columns()[0].append(0, DType::F32, &mut Vec::new()).unwrap_err().to_string();
        assert!(
            message.contains("`image` of row 0") && message.contains("neither a PNG nor a JPEG"),
            "{message}"
        );
    }

    /// Files that end early, claim more than they have, or are in another format of the name.
    #[test]
    fn damaged_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let batch = of(vec![("ids", lists(&[&[1, 2], &[3, 4]]))]);
        let path = stream(dir.path(), std::slice::from_ref(&batch));
        let whole = std::fs::read(&path).unwrap();
        for cut in 1..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(said(&path).contains("data.arrow: is "), "{cut}: {}", said(&path));
        }
        for (bytes, words) in [
            (&b"FEA1 and more"[..], "Feather version 1"),
            (b"ARROW1\0\0 and nothing", "is cut off"),
            (b"id,text\n1,a\n", "no Arrow IPC file"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            assert!(said(&path).contains(words), "{}", said(&path));
        }
        // A few bytes that claim to hold a tebibyte.
        let lz4 = Some(arrow_ipc::CompressionType::LZ4_FRAME);
        let options = IpcWriteOptions::default().try_with_compression(lz4).unwrap();
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        let many = of(vec![("ids", lists(&[&[7; 1000][..]; 4]))]);
        writer.write(&many).unwrap();
        let mut bytes = writer.into_inner().unwrap();
        let claim = 16_000i64.to_le_bytes();
        let at = bytes.windows(8).position(|w| w == claim).expect("the length of the values");
        bytes[at..at + 8].copy_from_slice(&(1i64 << 40).to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        assert!(said(&path).contains("takes its row group beyond"), "{}", said(&path));
    }
}
