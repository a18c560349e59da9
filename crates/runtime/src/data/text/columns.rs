//! Samples of texts as columns: tokens filled up to one length or cut into windows, and labels.

use super::tokens::Encoded;
use super::{FILE, Places};
use crate::data::{Bytes, Column};
use headwater_core::{DType, TensorType};
use serde_json::Value;
use std::sync::Arc;

/// Label of a position that has none: `ignore_index` of `cross_entropy`.
const IGNORED: i32 = -100;
/// Elements of the largest column.
const ELEMENTS: usize = 1 << 31;

/// Samples as they are made.
#[derive(Default)]
pub(super) struct Output {
    packed: bool,
    length: usize,
    pad: Option<i32>,
    /// All tokens concatenated, padding included.
    ids: Vec<i32>,
    types: Vec<i32>,
    /// Tokens of each sample before padding.
    sizes: Vec<usize>,
}

impl Output {
    /// Samples of `length` tokens: windows of all texts (`packed`), or single texts that `pad` fills up.
    pub fn new(packed: bool, length: usize, pad: Option<i32>) -> Output {
        Output { packed, length, pad, ..Output::default() }
    }

    /// Appends a text of a packed data set.
    pub fn join(&mut self, text: &Encoded, end: Option<i32>) -> Result<(), String> {
        self.room(text.ids.len() + 1)?;
        self.ids.extend(&text.ids);
        self.ids.extend(end);
        Ok(())
    }

    /// Appends a sample.
    pub fn push(&mut self, text: &Encoded) -> Result<(), String> {
        let have = text.ids.len();
        let Some(missing) = self.length.checked_sub(have) else {
            let length = self.length;
            return Err(format!(
                "the text has {have} tokens, more than `length` {length}: raise it, or set `truncate = true` in {FILE}"
            ));
        };
        self.room(self.length)?;
        let pad = match (missing, self.pad) {
            (0, _) => 0,
            (_, Some(pad)) => pad,
            (_, None) => {
                let length = self.length;
                return Err(format!(
                    "the text has {have} tokens, fewer than `length` {length}: name the token that fills it up by `pad` in {FILE}"
                ));
            }
        };
        self.ids.extend(&text.ids);
        self.ids.extend(std::iter::repeat_n(pad, missing));
        self.types.extend(&text.types);
        self.types.extend(std::iter::repeat_n(0, missing));
        self.sizes.push(have);
        Ok(())
    }

    fn room(&self, more: usize) -> Result<(), String> {
        match self.ids.len().checked_add(more) {
            Some(n) if n <= ELEMENTS => Ok(()),
            _ => Err(format!(
                "the texts have more than {ELEMENTS} tokens in all: make several data sets of them"
            )),
        }
    }

    pub fn samples(&self) -> usize {
        self.ids.len() / self.length
    }

    /// Tokens of each sample before padding; none of a packed data set.
    pub fn lengths(&self) -> Result<Option<Vec<u32>>, String> {
        let length = |&n: &usize| u32::try_from(n).map_err(|_| format!("a text has {n} tokens"));
        (!self.packed).then(|| self.sizes.iter().map(length).collect()).transpose()
    }

    pub fn columns(self, samples: usize, labels: Option<Column>) -> Vec<Column> {
        let length = self.length;
        let elements = samples * length;
        let of = |name: &str, values: &mut dyn Iterator<Item = i32>| {
            let mut bytes = Vec::with_capacity(elements * 4);
            values.for_each(|v| bytes.extend(v.to_le_bytes()));
            column(name, TensorType::new(DType::I32, [samples, length]), bytes)
        };
        let ids = &self.ids[..elements];
        // True for a position that holds a token, and no padding.
        let real = |at: usize| self.packed || at % length < self.sizes[at / length];
        let mut columns = vec![of("input_ids", &mut ids.iter().copied())];
        let mask = (0..elements).map(|at| real(at) as u8).collect();
        columns.push(column("attention_mask", TensorType::new(DType::Bool, [samples, length]), mask));
        if self.types.iter().any(|t| *t != 0) {
            columns.push(of("token_type_ids", &mut self.types.iter().copied()));
        }
        if let Some(labels) = labels {
            columns.push(labels);
            return columns;
        }
        columns.push(of("labels", &mut (0..elements).map(|at| if real(at) { ids[at] } else { IGNORED })));
        // The token that follows: in the next window, if that is packed.
        let next = |at: usize| {
            let inside = self.packed || !(at + 1).is_multiple_of(length) && real(at + 1);
            if inside { self.ids.get(at + 1).copied().unwrap_or(IGNORED) } else { IGNORED }
        };
        columns.push(of("next_ids", &mut (0..elements).map(next)));
        columns
    }
}

fn column(name: &str, ty: TensorType, bytes: Vec<u8>) -> Column {
    Column { name: name.into(), ty, bytes: Bytes::Owned(Arc::new(bytes)) }
}

/// Labels as a column: integers as they are, numbers as f32, strings by their place among the classes.
pub(super) fn label_column(
    labels: Vec<Value>,
    classes: &mut Option<Vec<String>>,
    places: Option<&Places>,
) -> Result<Column, String> {
    let place = |at: usize| places.and_then(|p| p.place(at)).unwrap_or_else(|| format!("sample {at}"));
    let n = labels.len();
    if labels.iter().all(Value::is_string) {
        let names: Vec<&str> = labels.iter().filter_map(Value::as_str).collect();
        let known = classes.get_or_insert_with(|| {
            let all: std::collections::BTreeSet<&str> = names.iter().copied().collect();
            all.into_iter().map(String::from).collect()
        });
        let number: std::collections::HashMap<&str, i64> =
            known.iter().map(String::as_str).zip(0..).collect();
        let mut bytes = Vec::with_capacity(n * 8);
        for (at, name) in names.iter().enumerate() {
            let label = number.get(name).ok_or_else(|| {
                format!("the label of {} is {name:?}, but `classes` has no such name", place(at))
            })?;
            bytes.extend(label.to_le_bytes());
        }
        return Ok(column("labels", TensorType::new(DType::I64, [n]), bytes));
    }
    if classes.is_some() {
        return Err("`classes` names labels that are strings, these are not".into());
    }
    if labels.iter().all(Value::is_i64) {
        let bytes = labels.iter().filter_map(Value::as_i64).flat_map(i64::to_le_bytes).collect();
        return Ok(column("labels", TensorType::new(DType::I64, [n]), bytes));
    }
    if let Some(at) = labels.iter().position(|l| !l.is_number()) {
        return Err(format!(
            "the label of {} is {}: labels must be all strings or all numbers",
            place(at),
            labels[at]
        ));
    }
    let bytes = labels.iter().filter_map(Value::as_f64).flat_map(|x| (x as f32).to_le_bytes()).collect();
    Ok(column("labels", TensorType::new(DType::F32, [n]), bytes))
}
