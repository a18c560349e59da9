//! The contract of a file format of columns.

use super::block::{Block, Fault, Kind};
use headwater_core::DType;
use std::collections::HashMap;
use std::sync::Arc;

/// A format of columns in groups of rows: row groups of Parquet, record batches of Arrow.
pub(super) trait Format: Send + Sync {
    /// Rows of each group, as the file claims them.
    fn groups(&self) -> Vec<i64>;

    /// The columns of the file.
    fn fields(&self) -> Vec<Field>;

    /// Decodes a column of a group of `rows` rows; `dtype` is its elements'.
    fn decode(
        &self,
        group: usize,
        leaf: usize,
        rows: usize,
        dtype: Option<DType>,
        kind: &Kind,
    ) -> Result<Block, Fault>;

    /// Elements of the first row of a group, in a column of lists.
    fn first_length(&self, group: usize, leaf: usize) -> Result<usize, Fault>;

    /// Appends the strings of a column of them, of a group of `rows` rows.
    fn words(&self, group: usize, leaf: usize, rows: usize, words: &mut Words) -> Result<(), Fault>;
}

/// Strings of rows, each distinct one once.
#[derive(Default)]
pub(super) struct Words {
    /// In the order in which they first occur.
    pub(super) distinct: Vec<Arc<str>>,
    /// By row, the number of its string.
    pub(super) rows: Vec<u32>,
    numbers: HashMap<Arc<str>, u32>,
}

impl Words {
    /// Appends a row.
    pub(super) fn push(&mut self, word: &str) {
        let number = self.number(word);
        self.rows.push(number);
    }

    /// Appends rows of some strings, as numbers of these.
    pub(super) fn extend(&mut self, words: &[Arc<str>], rows: &[u32]) {
        let mut own = vec![None; words.len()];
        for &row in rows {
            let number = own[row as usize].unwrap_or_else(|| self.number(&words[row as usize]));
            own[row as usize] = Some(number);
            self.rows.push(number);
        }
    }

    fn number(&mut self, word: &str) -> u32 {
        if let Some(&number) = self.numbers.get(word) {
            return number;
        }
        let (word, number) = (Arc::<str>::from(word), self.distinct.len() as u32);
        self.distinct.push(word.clone());
        self.numbers.insert(word, number);
        number
    }
}

/// A column, without the structs and lists around its elements.
pub(super) struct Field {
    /// Fields of structs, joined by dots.
    pub(super) path: String,
    /// Its name, and the dtype of its elements, none for bytes; for what is no tensor, the kind that it
    /// holds.
    pub(super) found: Result<(String, Option<DType>), String>,
    /// Its rows are lists.
    pub(super) list: bool,
    /// Its rows are strings.
    pub(super) words: bool,
}
