//! Files as the crate's own writer makes them.

use super::super::{Dataset, feeds};
use super::parquet::Parquet;
use super::*;
use ::parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, FloatType, Int32Type, Int64Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use std::fs::File;

/// Writes the next column: values, and levels of definition and repetition.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<File>,
    values: &[T::T],
    levels: Option<(&[i16], &[i16])>,
) {
    let mut writer = group.next_column().unwrap().unwrap();
    let (defined, repeated) = levels.unzip();
    writer.typed::<T>().write_batch(values, defined, repeated.filter(|r| !r.is_empty())).unwrap();
    writer.close().unwrap();
}

/// Writes a file of row groups, each by one call.
fn write(path: &Path, schema: &str, groups: &mut [&mut dyn FnMut(&mut SerializedRowGroupWriter<File>)]) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let compressed =
        WriterProperties::builder().set_compression(::parquet::basic::Compression::SNAPPY).build();
    let mut writer =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::new(compressed)).unwrap();
    for write in groups {
        let mut group = writer.next_row_group().unwrap();
        write(&mut group);
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn floats(data: &Dataset, name: &str, samples: &[usize]) -> Vec<f64> {
    let column = data.column(name).expect(name);
    let mut out = Vec::new();
    samples.iter().for_each(|&s| column.append(s, column.ty.dtype, &mut out).unwrap());
    let n = out.len() / column.ty.dtype.size();
    Tensor::from_bytes(&TensorType::new(column.ty.dtype, [n]), &out).to_f64()
}

fn said(path: &Path) -> String {
    Dataset::open(path).map(drop).unwrap_err().to_string()
}

const LISTS: &str =
    "message m { required group ids (LIST) { repeated group list { required int64 element; } } }";

/// Lists of 1, 0 and 3 elements in one row group.
fn lists(path: &Path) {
    write(
        path,
        LISTS,
        &mut [&mut |g| column::<Int64Type>(g, &[7, 1, 2, 3], Some((&[1, 0, 1, 1, 1], &[0, 0, 0, 1, 1])))],
    );
}

#[test]
fn columns_are_tensors_whose_rows_are_read_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let schema = "message m { required int32 small (INTEGER(8,true)); optional float x; required boolean b;
        optional group pair (LIST) { repeated group list { optional double element; } } optional binary text (STRING); }";
    let group = |small: &[i32], x: &[f32], pair: &[f64]| {
        let (small, x, pair) = (small.to_vec(), x.to_vec(), pair.to_vec());
        move |g: &mut SerializedRowGroupWriter<File>| {
            let n = small.len();
            column::<Int32Type>(g, &small, None);
            column::<FloatType>(g, &x, Some((&vec![1; n], &[])));
            column::<BoolType>(g, &vec![true; n], None);
            let starts: Vec<i16> = (0..2 * n as i16).map(|i| i % 2).collect();
            column::<::parquet::data_type::DoubleType>(g, &pair, Some((&vec![3; 2 * n], &starts)));
            column::<ByteArrayType>(g, &vec![ByteArray::from("t"); n], Some((&vec![1; n], &[])));
        }
    };
    let (mut first, mut second) =
        (group(&[1, -2, 3], &[0.5, 1.5, 2.5], &[0., 1., 2., 3., 4., 5.]), group(&[4], &[3.5], &[6., 7.]));
    write(&path, schema, &mut [&mut first, &mut second]);
    let data = Dataset::open(&path).unwrap();
    let types: Vec<(&str, String)> =
        data.columns().iter().map(|c| (c.name.as_str(), c.ty.to_string())).collect();
    let want = [("small", "i8[4]"), ("x", "f32[4]"), ("b", "bool[4]"), ("pair", "f64[4, 2]")];
    assert_eq!(types, want.map(|(n, t)| (n, t.to_string())));
    let order = [3, 0, 2, 1];
    assert_eq!(floats(&data, "small", &order), [4., 1., 3., -2.]);
    assert_eq!(floats(&data, "x", &order), [3.5, 0.5, 2.5, 1.5]);
    assert_eq!(floats(&data, "pair", &order), [6., 7., 0., 1., 4., 5., 2., 3.]);
    assert_eq!(floats(&data, "b", &[3]), [1.]);

    // A column that is no tensor is named with its kind where it is requested.
    let ty = TensorType::new(DType::F32, [1]);
    let refused = feeds([("text", &ty)].into_iter(), &data, &Default::default(), Default::default())
        .unwrap_err()
        .to_string();
    assert!(refused.contains("text in") && refused.contains("holds strings"), "{refused}");

    // Several files are one data set.
    std::fs::copy(&path, dir.path().join("b.parquet")).unwrap();
    let both = Dataset::open(&dir.path().join("*.parquet")).unwrap();
    assert_eq!(floats(&both, "small", &[7, 1, 4]), [4., -2., 1.]);
    assert!(
        both.place(0, 5).contains("sample 1") && both.place(0, 5).contains("b.parquet"),
        "{}",
        both.place(0, 5)
    );
}

#[test]
fn nulls_are_refused_by_file_column_and_row() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nulls.parquet");
    let schema = "message m { optional float x; }";
    write(
        &path,
        schema,
        &mut [&mut |g| column::<FloatType>(g, &[1.0, 2.0], Some((&[1, 1], &[]))), &mut |g| {
            column::<FloatType>(g, &[1.0], Some((&[1, 0], &[])))
        }],
    );
    let message = said(&path);
    assert!(message.contains("nulls.parquet: `x` of row 3 is null"), "{message}");
    // Columns that are not requested may have them.
    assert!(Dataset::open_columns(&path, &|_| false).is_ok());

    // A list that is null, and an element of one.
    let schema = "message m { optional group x (LIST) { repeated group list { optional float element; } } }";
    for (levels, row) in [((&[3i16, 0][..], &[0i16, 0][..]), 1), ((&[3, 2], &[0, 1]), 0)] {
        write(&path, schema, &mut [&mut |g| column::<FloatType>(g, &[1.0], Some(levels))]);
        let message = said(&path);
        assert!(message.contains(&format!("`x` of row {row} is null")), "{message}");
    }
}

#[test]
fn lists_are_filled_up_as_the_settings_say() {
    let dir = tempfile::tempdir().unwrap();
    lists(&dir.path().join("a.parquet"));
    let message = said(&dir.path().join("a.parquet"));
    assert!(message.contains("`ids` of row 1 has 0 elements, the first has 1"), "{message}");

    let settings = |text: &str| std::fs::write(dir.path().join(FILE), text).unwrap();
    settings("[sequences.ids]\nlength = 4\npad = -1\nmask = \"attention_mask\"");
    let data = Dataset::open(dir.path()).unwrap();
    assert_eq!(floats(&data, "ids", &[2, 0, 1]), [1., 2., 3., -1., 7., -1., -1., -1., -1., -1., -1., -1.]);
    assert_eq!(floats(&data, "attention_mask", &[2, 0]), [1., 1., 1., 0., 1., 0., 0., 0.]);
    assert_eq!(data.column("attention_mask").unwrap().ty, TensorType::new(DType::Bool, [3, 4]));
    let lengths = data.lengths().unwrap();
    assert_eq!(
        (&lengths.of[..], &lengths.columns[..]),
        (&[1, 0, 3][..], &["ids".into(), "attention_mask".into()][..])
    );

    settings("[sequences.ids]\nlength = 2\npad = 0");
    let message = said(dir.path());
    assert!(message.contains("`ids` of row 2 has 3 elements, more than `length`"), "{message}");
    settings("[sequences.ids]\nlength = 2\npad = 0\ntruncate = true");
    assert_eq!(floats(&Dataset::open(dir.path()).unwrap(), "ids", &[2]), [1., 2.]);
    for (text, want) in [
        ("[sequences.ids]\nlength = 0\npad = 0", "`length` 0"),
        ("[sequences.ids]\nlength = 4\npad = 0.5", "`pad` is 0.5"),
        ("[sequences.other]\nlength = 4\npad = 0", "no column `other`"),
        ("[sequences.ids]\nlength = 4", "`pad` is missing"),
        ("[sequences.ids]\nlength = 4\npad = 0\nend = 1", "`end` goes with `packed` only"),
        ("[sequences.ids]\nlength = 4\npacked = true\npad = 0", "`pad` does not go with `packed`"),
        ("[sequences.ids]\nlength = 5\npacked = true", "no sample of 5 elements"),
        ("[sequences.ids]\nlength = 2\npacked = true\nend = 0.5", "`end` is 0.5"),
        ("files = [\"none-*.parquet\"]", "matches no file"),
        ("length = 4", "unknown field"),
    ] {
        settings(text);
        assert!(said(dir.path()).contains(want), "{text}: {}", said(dir.path()));
    }
}

#[test]
fn lists_are_joined_and_cut_into_windows() {
    let dir = tempfile::tempdir().unwrap();
    lists(&dir.path().join("a.parquet"));
    lists(&dir.path().join("b.parquet"));
    let settings = |text: &str| std::fs::write(dir.path().join(FILE), text).unwrap();
    // 7 9 | 9 | 1 2 3 9, in each file.
    settings("[sequences.ids]\nlength = 3\npacked = true\nend = 9\nnext = \"next_ids\"");
    let data = Dataset::open(dir.path()).unwrap();
    assert_eq!(data.column("ids").unwrap().ty, TensorType::new(DType::I64, [4, 3]));
    assert_eq!(floats(&data, "ids", &[0, 1, 3]), [7., 9., 9., 1., 2., 3., 1., 2., 3.]);
    assert_eq!(floats(&data, "next_ids", &[0, 1]), [9., 9., 1., 2., 3., 9.]);
    assert!(data.lengths().is_none());
    settings("[sequences.ids]\nlength = 2\npacked = true");
    let data = Dataset::open(dir.path()).unwrap();
    assert_eq!(floats(&data, "ids", &[0, 1, 2, 3]), [7., 1., 2., 3., 7., 1., 2., 3.]);
}

#[test]
fn bytes_are_images_where_the_settings_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let png = |grey: u8| {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, 2, 1);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.write_header().unwrap().write_image_data(&[grey, 255]).unwrap();
        ByteArray::from(out)
    };
    let schema = "message m { optional group image { optional binary bytes; optional binary path (STRING); } required int64 label; }";
    let path = dir.path().join("a.parquet");
    let make = |second: ByteArray| {
        write(
            &path,
            schema,
            &mut [&mut |g| {
                column::<ByteArrayType>(g, &[png(51), second.clone()], Some((&[2, 2], &[])));
                column::<ByteArrayType>(g, &[], Some((&[1, 1], &[])));
                column::<Int64Type>(g, &[4, 2], None);
            }],
        );
    };
    make(png(102));
    std::fs::write(dir.path().join(FILE), "[images.\"image.bytes\"]\nchannels = 1\nheight = 1\nwidth = 2")
        .unwrap();
    let data = Dataset::open(dir.path()).unwrap();
    assert_eq!(data.column("image.bytes").unwrap().ty, TensorType::new(DType::F32, [2, 1, 1, 2]));
    let close = |got: Vec<f64>, want: [f64; 4]| got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6);
    assert!(close(floats(&data, "image.bytes", &[1, 0]), [0.4, 1.0, 0.2, 1.0]));
    assert_eq!(floats(&data, "label", &[1, 0]), [2., 4.]);
    drop(data);

    make(ByteArray::from("no image"));
    let data = Dataset::open(dir.path()).unwrap();
    let wrong = data.columns()[0].append(1, DType::F32, &mut Vec::new()).unwrap_err().to_string();
    assert!(wrong.contains("`image.bytes` of row 1 is neither a PNG nor a JPEG"), "{wrong}");
}

#[test]
fn a_text_of_too_many_columns_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.csv");
    let write = |columns: usize| std::fs::write(&path, vec!["a"; columns].join(",") + "\n").unwrap();
    write(65_537);
    let message = said(&path);
    for words in ["wide.csv", "has 65537 columns", "at most 65536"] {
        assert!(message.contains(words), "{message}");
    }
    write(65_536);
    let map = Arc::new(Mapped::open(&path).unwrap());
    assert_eq!(Table::open(&path, &map).unwrap().fields.len(), 65_536);
}

#[test]
fn strings_are_kept_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    std::fs::write(&path, "c,d\nx,p\n\"y, z\",q\nx,\ny,q\n").unwrap();
    let table = Table::open(&path, &Arc::new(Mapped::open(&path).unwrap())).unwrap();
    let words = table.words(0).unwrap();
    let distinct: Vec<&str> = words.distinct.iter().map(|w| &**w).collect();
    assert_eq!((distinct, &words.rows[..]), (vec!["x", "y, z", "y"], &[0, 1, 0, 2][..]));
    let missing = table.words(1).map(drop).unwrap_err().to_string();
    assert!(missing.contains("`d` of row 2 is null"), "{missing}");
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.csv");
    let both = |header: &str, settings: &str, twice: &str| {
        std::fs::write(&path, format!("{header}\n1,2,3,x,y\n4,5,6,y,x\n")).unwrap();
        std::fs::write(dir.path().join(FILE), settings).unwrap();
        let message = said(dir.path());
        assert!(message.contains(&format!("a.csv: has two columns `{twice}`")), "{message}");
    };
    both("a,b,v,c,d", "[vectors]\nv = [\"a\", \"b\"]", "v");
    both("a,b,v,c,c", "[classes]\nc = [\"x\", \"y\"]\n[vectors]\nw = [\"a\", \"b\"]", "c");
    both("a,b,v,c,d", "[classes]\nc = \"auto\"\n[vectors]\nc = [\"a\", \"b\"]", "c");
    both("a,a,v,c,d", "", "a");
    let path = dir.path().join("b.parquet");
    lists(&path);
    let settings = "files = [\"b.parquet\"]\n[sequences.ids]\nlength = 3\npad = 0\nmask = \"ids\"";
    std::fs::write(dir.path().join(FILE), settings).unwrap();
    assert!(said(dir.path()).contains("b.parquet: has two columns `ids`"), "{}", said(dir.path()));
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    lists(&path);
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        let message = said(&path);
        assert!(message.starts_with("HW-R002"), "{length} bytes: {message}");
    }
    std::fs::write(&path, &whole).unwrap();
    assert!(said(&path).contains("has 0 elements"));
}

#[test]
fn more_elements_than_a_row_group_may_have_are_refused_before_they_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bomb.parquet");
    // A run of equal levels and values takes a few bytes, whatever its length.
    write(
        &path,
        "message m { required group ids (LIST) { repeated group list { required boolean element; } } }",
        &mut [&mut |g| {
            let n = 1 << 20;
            let repeated: Vec<i16> = (0..n).map(|i| (i > 0) as i16).collect();
            column::<BoolType>(g, &vec![true; n], Some((&vec![1; n], &repeated)));
        }],
    );
    let data = Dataset::open(&path).unwrap();
    assert_eq!(data.columns()[0].ty, TensorType::new(DType::Bool, [1, 1 << 20]));
    let map = Arc::new(Mapped::open(&path).unwrap());
    assert_eq!(Table::open(&path, &map).unwrap().first_length(0, "ids").unwrap(), 1 << 20);
    let refused = Parquet::open(&map).unwrap().limited(0, 1000).unwrap_err();
    assert!(refused.contains("more than 1000 elements: write smaller row groups"), "{refused}");
}
