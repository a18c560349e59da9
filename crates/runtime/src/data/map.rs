//! A file mapped into memory: the one place of this crate where the language's rules do not suffice.

use crate::error::{Error, Result};
use std::fs::File;
use std::path::Path;

/// A whole file, read by the system as it is touched.
#[derive(Debug)]
pub struct Mapped(Option<memmap2::Mmap>);

impl Mapped {
    /// Maps a file. It must not be shortened while it is mapped: the system ends a process that reads what is
    /// gone.
    ///
    /// # Errors
    /// `Io` if it cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Mapped> {
        let file = File::open(path).map_err(Error::io(path))?;
        let meta = file.metadata().map_err(Error::io(path))?;
        if !meta.is_file() {
            return Err(Error::data(path, "is not a file"));
        }
        if meta.len() == 0 {
            // An empty range cannot be mapped.
            return Ok(Mapped(None));
        }
        // SAFETY: the map is only read, as plain bytes, which have no invalid values. That nobody else
        // changes the file cannot be ensured on any system; it is stated above and in the user's
        // documentation.
        #[allow(unsafe_code)]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(Error::io(path))?;
        Ok(Mapped(Some(map)))
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or(&[])
    }
}
