//! A data set of several files: those that a pattern names, such as `train-*.safetensors`, in the order of
//! their names.

use super::{Bytes, Column, Dataset};
use crate::error::{Error, Result};
use headwater_core::{DType, Shape, TensorType};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A tensor whose samples are in several files.
#[derive(Debug)]
pub(super) struct Shards {
    /// The samples of each file begin at this one.
    begins: Vec<usize>,
    /// The tensor in each file.
    columns: Vec<Column>,
    /// The files.
    files: Arc<Vec<PathBuf>>,
}

impl Shards {
    /// The tensor of the file that holds a sample, and the sample's number there.
    pub fn of(&self, sample: usize) -> (&Column, usize) {
        let which = self.which(sample);
        (&self.columns[which], sample - self.begins[which])
    }

    /// A sample's place, for messages.
    pub fn place(&self, name: &str, sample: usize) -> String {
        let which = self.which(sample);
        let at = sample - self.begins[which];
        format!("sample {at} of `{name}` in {}", self.files[which].display())
    }

    fn which(&self, sample: usize) -> usize {
        self.begins.partition_point(|&b| b <= sample).saturating_sub(1)
    }
}

/// True for a pattern: the path's last part has a `*`, and nothing is called so.
pub(super) fn is_pattern(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.to_string_lossy().contains('*')) && !path.exists()
}

/// The files that a path names: those that a pattern matches, sorted, else the path itself. A `*` stands for
/// any characters of a file's name.
///
/// # Errors
/// `Data` if a pattern matches nothing, `Io`.
pub fn files(pattern: &Path) -> Result<Vec<PathBuf>> {
    if !is_pattern(pattern) {
        return Ok(vec![pattern.to_owned()]);
    }
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = match pattern.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let parts: Vec<&str> = name.split('*').collect();
    let mut files = super::entries(folder)?;
    files.retain(|f| matches(&f.file_name().unwrap_or_default().to_string_lossy(), &parts) && f.is_file());
    match files.is_empty() {
        true => Err(Error::data(pattern, "matches no file")),
        false => Ok(files),
    }
}

/// True if a name is these parts with anything between them.
fn matches(name: &str, parts: &[&str]) -> bool {
    let (Some((first, rest)), true) = (parts.split_first(), parts.len() > 1) else { return parts == [name] };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let (last, middle) = rest.split_last().unwrap_or((&"", &[]));
    for part in middle {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(last)
}

/// Joins the tensors of several files by their names.
///
/// # Errors
/// `Data`, naming the file whose tensors are others than the first one's.
pub(super) fn join(paths: Vec<PathBuf>, sets: &[Dataset]) -> Result<Vec<Column>> {
    let files = Arc::new(paths);
    let Some((first, rest)) = sets.split_first() else { return Ok(Vec::new()) };
    let mut out = Vec::new();
    for column in first.columns() {
        let name = &column.name;
        let Some((mut samples, shape)) = super::sample(&column.ty) else {
            return Err(Error::data(
                first.path(),
                format!("{name} is a scalar, which has no samples to join"),
            ));
        };
        let (mut begins, mut columns, mut dtype) = (vec![0], vec![column.clone()], column.ty.dtype);
        for set in rest {
            let refuse = |m: String| Error::data(set.path(), m);
            let there = set.column(name).ok_or_else(|| {
                refuse(format!(
                    "has no tensor {name}, which {} has: the files are no shards of one data set",
                    first.path().display()
                ))
            })?;
            let more = super::sample(&there.ty)
                .filter(|(_, s)| *s == shape && (there.ty.dtype == dtype || of_text(set, there, dtype)))
                .ok_or_else(|| {
                    let first = first.path().display();
                    refuse(format!(
                        "{name} is {}, in {first} it is {}: all but the first size must agree",
                        there.ty, column.ty
                    ))
                })?;
            if there.ty.dtype == DType::F64 {
                dtype = DType::F64;
            }
            begins.push(samples);
            samples = samples.checked_add(more.0).ok_or_else(|| refuse("has too many samples".into()))?;
            columns.push(there.clone());
        }
        let sizes: Vec<usize> = std::iter::once(samples).chain(shape.iter().copied()).collect();
        let ty = TensorType::new(dtype, Shape::new(&sizes));
        let shards = Shards { begins, columns, files: files.clone() };
        out.push(Column { name: name.clone(), ty, bytes: Bytes::Shards(Arc::new(shards)) });
    }
    if let Some(extra) = rest.iter().find(|s| s.columns().len() != first.columns().len()) {
        let message = format!("has other tensors than {}", first.path().display());
        return Err(Error::data(extra.path(), message));
    }
    Ok(out)
}

/// True if a column of a table of text is of integers where one of floats is joined to it, or the other way
/// round: the cells of a file say which, and 1 and 1.5 are both numbers. All of them are floats then.
fn of_text(set: &Dataset, there: &Column, dtype: DType) -> bool {
    let number = |dtype| matches!(dtype, DType::I64 | DType::F64);
    super::table::is_text(set.path()) && number(there.ty.dtype) && number(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        let parts = |p: &'static str| p.split('*').collect::<Vec<_>>();
        assert!(matches("train-01.npz", &parts("train-*.npz")));
        assert!(matches("abcabc", &parts("a*b*c")) && matches("ab", &parts("*")));
        assert!(!matches("train.npz", &parts("train-*.npz")) && !matches("a", &parts("a*a")));
    }

    /// Writes a tensor `x` of i32 `[values, 1]`.
    fn write(path: &Path, values: &[i32], width: usize) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let view = safetensors::tensor::TensorView::new(
            safetensors::Dtype::I32,
            vec![values.len() / width, width],
            &bytes,
        );
        std::fs::write(path, safetensors::serialize([("x", view.unwrap())], None).unwrap()).unwrap();
    }

    #[test]
    fn shards_are_one_data_set_and_their_samples_are_named_by_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        write(&at("x-1.safetensors"), &[1, 2], 1);
        write(&at("x-2.safetensors"), &[], 1);
        write(&at("x-3.safetensors"), &[3], 1);
        write(&at("y.safetensors"), &[4], 1);
        let data = Dataset::open(&at("x-*.safetensors")).unwrap();
        let column = &data.columns()[0];
        assert_eq!(column.ty, TensorType::new(DType::I32, [3, 1]));
        let mut bytes = Vec::new();
        for sample in [2, 0, 1] {
            column.append(sample, DType::I64, &mut bytes).unwrap();
        }
        assert_eq!(bytes, [3i64, 1, 2].map(i64::to_le_bytes).concat());
        assert!(
            data.place(0, 2).contains("sample 0") && data.place(0, 2).contains("x-3"),
            "{}",
            data.place(0, 2)
        );

        write(&at("x-4.safetensors"), &[3, 3], 2);
        let said = Dataset::open(&at("x-*.safetensors")).unwrap_err().to_string();
        assert!(said.contains("x-4") && said.contains("must agree"), "{said}");
        let said = Dataset::open(&at("z-*.npz")).unwrap_err().to_string();
        assert!(said.contains("matches no file"), "{said}");
    }
}
