//! The contract of a file format of columns.

use super::block::{Block, Fault, Kind};
use headwater_core::DType;

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

    /// The strings of a column of them, of a group of `rows` rows.
    fn words(&self, group: usize, leaf: usize, rows: usize) -> Result<Vec<String>, Fault>;
}

/// A column, without the structs and lists around its elements.
pub(super) struct Field {
    /// Fields of structs, joined by dots.
    pub(super) path: String,
    /// Its name, and the dtype of its elements, none for bytes; for what is no tensor, the kind that it holds.
    pub(super) found: Result<(String, Option<DType>), String>,
    /// Its rows are lists.
    pub(super) list: bool,
    /// Its rows are strings.
    pub(super) words: bool,
}
