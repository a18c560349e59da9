//! Rows of a column in one row group, made samples of one size each.

use super::super::images::Layout;
use super::FILE;
use std::sync::Arc;

/// Bytes of the largest decoded column of a row group.
pub(super) const GROUP: usize = 1 << 30;

pub(super) fn too_large() -> String {
    format!("takes its row group beyond {GROUP} bytes: write smaller row groups")
}

/// A decoded column of a row group.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) bytes: Vec<u8>,
    /// Ends of the rows, if they have several sizes.
    pub(super) ends: Vec<usize>,
    /// Elements of the rows before they were filled up.
    pub(super) sizes: Vec<u32>,
}

/// A mistake in a row, counted in the row group, or in the whole of it.
pub(super) struct Fault {
    pub(super) row: Option<usize>,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn at(row: usize, message: impl Into<String>) -> Fault {
        Fault { row: Some(row), message: message.into() }
    }
}

/// A value that is missing, said of its row.
pub(super) const NULL: &str = "is null: fill nulls before they are fed, or leave their rows out";

/// Treatment of the elements of a row.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// The one element.
    One,
    /// A list of this length.
    List(usize),
    /// A list filled up to `length` elements of the bytes `pad`.
    Padded { length: usize, pad: Vec<u8>, truncate: bool },
    /// True for each element of a list, false up to `length`.
    Mask { length: usize, truncate: bool },
    /// An encoded image.
    Image(Arc<Layout>),
    /// All elements of a list, followed by the bytes of one more.
    Joined { end: Vec<u8> },
}

impl Kind {
    /// Appends a row's elements.
    pub(super) fn row<T>(
        &self,
        block: &mut Block,
        row: usize,
        values: &[T],
        mut append: impl FnMut(&T, &mut Vec<u8>) -> Result<(), String>,
    ) -> Result<(), Fault> {
        let fault = |message| Fault { row: Some(row), message };
        let (length, truncate) = match *self {
            Kind::One | Kind::Image(_) => (1, false),
            Kind::Joined { .. } => (values.len(), false),
            Kind::List(length) => (length, false),
            Kind::Padded { length, truncate, .. } | Kind::Mask { length, truncate } => (length, truncate),
        };
        let fills = matches!(self, Kind::Padded { .. } | Kind::Mask { .. });
        let have = values.len();
        if have > length && !truncate || have < length && !fills {
            let advice = match fills {
                true => format!("more than `length`: raise it, or set `truncate = true` in {FILE}"),
                false => format!(
                    "the first has {length}: lists of several lengths need `length` and `pad` in a {FILE}"
                ),
            };
            return Err(fault(format!("has {have} elements, {advice}")));
        }
        let have = have.min(length);
        if fills {
            block.sizes.push(have as u32);
        }
        if block.bytes.len() + length * 8 > GROUP {
            return Err(fault(too_large()));
        }
        if let Kind::Mask { .. } = self {
            block.bytes.extend((0..length).map(|i| (i < have) as u8));
            return Ok(());
        }
        for value in &values[..have] {
            append(value, &mut block.bytes).map_err(|m| fault(format!("holds {m}")))?;
        }
        match self {
            Kind::Padded { pad, .. } => (have..length).for_each(|_| block.bytes.extend(pad)),
            Kind::Joined { end } => block.bytes.extend(end),
            _ => {}
        }
        Ok(())
    }
}
