//! The zip around an export: finds entries, lends stored ones from the memory map, unpacks compressed ones
//! within a budget. Knows nothing of what the entries mean.

use crate::error::{Error, Result, refuse, shown};
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt;
use std::io::{Cursor, Read};
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::{Arc, Mutex};
use zip::CompressionMethod;
use zip::read::{ArchiveOffset, Config, ZipArchive};

/// Unpacked bytes an archive may claim beyond [`UNPACK_RATIO`] times its own size.
const UNPACK_BASE: u64 = 16 << 20;
/// The JSON of real exports shrinks by a factor of 15 to 30 under deflate.
const UNPACK_RATIO: u64 = 64;

/// The program in an archive of an older `torch.export.save`, at the archive's root, as PyTorch 2.15's
/// `torch.export.load` still looks for it.
const BEFORE: &str = "serialized_exported_program.json";

/// The way out where an older PyTorch has written an archive.
pub(crate) const AGAIN: &str = "export again with PyTorch 2.13 to 2.15, in an environment of its own; weights come along \
                                as a `state_dict`, saved as safetensors";

/// Immutable bytes: a file's memory map, or memory.
enum Backing {
    Map(memmap2::Mmap),
    Memory(Vec<u8>),
}

impl Backing {
    fn bytes(&self) -> &[u8] {
        match self {
            Backing::Map(m) => m,
            Backing::Memory(v) => v,
        }
    }
}

/// Sets what happens when a part of a mapped file is read that is no longer there (SIGBUS), in place of the
/// sudden end of the process. `then` runs in a signal handler and must end the process; it may write to
/// standard error.
pub fn on_lost_file(then: fn()) {
    #[cfg(unix)]
    {
        #[allow(unsafe_code)]
        // SAFETY: the instruction that reads the map raises the signal, on its own thread, which copies bytes
        // then and holds no lock that writing to standard error takes. A system that refuses the handler ends
        // the process as it would without one.
        let _ = unsafe { signal_hook::low_level::register(signal_hook::consts::SIGBUS, then) };
    }
    #[cfg(not(unix))]
    let _ = then;
}

/// A range of an archive's bytes that keeps the archive alive; cheap to clone. Dereferences to the bytes.
#[derive(Clone)]
pub struct Bytes {
    backing: Arc<Backing>,
    range: Range<usize>,
}

impl Bytes {
    fn whole(backing: Backing) -> Self {
        let range = 0..backing.bytes().len();
        Bytes { backing: Arc::new(backing), range }
    }

    /// Bytes in memory.
    pub fn from_vec(v: Vec<u8>) -> Self {
        Bytes::whole(Backing::Memory(v))
    }

    /// Maps a file.
    fn map(path: &Path) -> Result<Self> {
        let io = |reason| Error::Io { path: path.display().to_string(), reason };
        // Asked before it is opened: a pipe would wait for somebody to write to it.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("it is not a file")));
        }
        let file = std::fs::File::open(path).map_err(io)?;
        #[allow(unsafe_code)]
        // SAFETY: the map is private and read-only and lives as long as any slice of it. Should another
        // process shrink or change the file meanwhile, reads may fault or see other bytes; as for every
        // program that maps its input, model files are not to be modified while in use, which `Program::open`
        // documents.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Ok(Bytes::whole(Backing::Map(map)))
    }

    /// Tells the system that a mapped file need not stay in memory: what is touched again is read again.
    fn release(&self) {
        #[cfg(unix)]
        if let Backing::Map(map) = &*self.backing {
            #[allow(unsafe_code)]
            // SAFETY: of a private map of a file that nobody wrote to, the system drops copies of what the
            // file holds. Should it refuse, they stay.
            let _ = unsafe { map.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        }
    }

    /// A part of these bytes; `None` if it reaches beyond them.
    pub fn slice(&self, part: Range<usize>) -> Option<Bytes> {
        let (start, end) =
            (self.range.start.checked_add(part.start)?, self.range.start.checked_add(part.end)?);
        (start <= end && end <= self.range.end)
            .then(|| Bytes { backing: self.backing.clone(), range: start..end })
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.backing.bytes()[self.range.clone()]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.range.len())
    }
}

/// Place of an entry's data.
#[derive(Debug, Clone)]
struct Entry {
    /// Position in the zip's directory.
    index: usize,
    data: Range<usize>,
    size: u64,
    deflated: bool,
}

/// An opened archive. Entry names are relative to its one top folder.
#[derive(Debug)]
pub struct Archive {
    bytes: Bytes,
    entries: HashMap<String, Entry>,
    reader: Mutex<Reader>,
}

/// State that reading through an entry changes.
#[derive(Debug)]
struct Reader {
    zip: ZipArchive<Cursor<Bytes>>,
    /// Bytes that may still be unpacked.
    budget: u64,
    unpacked: HashMap<String, Bytes>,
}

impl Archive {
    /// Reads a JSON entry, checksum included.
    pub(crate) fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        self.verify(name)?;
        serde_json::from_slice(&self.entry(name)?)
            .map_err(|e| refuse!(Json, "`{}`: {}", shown(name), shown(&e.to_string())))
    }

    /// Maps and indexes a file.
    ///
    /// # Errors
    /// `Io`, `Zip`, `Entries`, `Unpack`.
    pub fn open(path: &Path) -> Result<Self> {
        Archive::index(Bytes::map(path)?)
    }

    /// Size of the whole file.
    pub fn file_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Lets the system have the memory that the file takes.
    pub fn release(&self) {
        self.bytes.release();
    }

    /// Indexes bytes in memory.
    ///
    /// # Errors
    /// As [`Archive::open`].
    pub fn from_vec(bytes: Vec<u8>) -> Result<Self> {
        Archive::index(Bytes::from_vec(bytes))
    }

    fn index(bytes: Bytes) -> Result<Self> {
        let bad = |e| {
            refuse!(Zip, "not a complete zip archive ({e}); an export is what `torch.export.save` writes")
        };
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let mut zip = ZipArchive::with_config(config, Cursor::new(bytes.clone())).map_err(bad)?;
        if zip.has_duplicate_names() {
            return Err(refuse!(Entries, "two entries of the archive have the same name"));
        }
        if zip.has_overlapping_entries().map_err(bad)? {
            return Err(refuse!(Entries, "entries of the archive overlap"));
        }
        if zip.index_for_name(BEFORE).is_some() {
            return Err(refuse!(
                Version,
                "PyTorch 2.7 or older has written this archive, with its files at the root: {AGAIN}"
            ));
        }
        let mut entries = HashMap::new();
        let mut top: Option<String> = None;
        for i in 0..zip.len() {
            let file = zip.by_index_raw(i).map_err(bad)?;
            let name = std::str::from_utf8(file.name_raw())
                .map_err(|_| refuse!(Entries, "entry {i} has a name that is not UTF-8"))?;
            if file.is_dir() {
                continue;
            }
            let (folder, rest) = split_name(name)?;
            if top.get_or_insert_with(|| folder.to_string()) != folder {
                return Err(refuse!(
                    Entries,
                    "`{}` is not in the archive's folder; an export has one top folder",
                    shown(name)
                ));
            }
            let deflated = match file.compression() {
                CompressionMethod::STORE => false,
                CompressionMethod::DEFLATE => true,
                other => return Err(refuse!(Unpack, "`{}` is compressed by {other:?}", shown(name))),
            };
            if file.encrypted() {
                return Err(refuse!(Unpack, "`{}` is encrypted", shown(name)));
            }
            if !deflated && file.size() != file.compressed_size() {
                return Err(refuse!(
                    Zip,
                    "`{}` is stored as {} bytes but claims {}",
                    shown(name),
                    file.compressed_size(),
                    file.size()
                ));
            }
            let data = file
                .data_start()
                .and_then(|start| Some((start, start.checked_add(file.compressed_size())?)))
                .and_then(|(start, end)| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?))
                .filter(|r| bytes.get(r.clone()).is_some())
                .ok_or_else(|| {
                    refuse!(Zip, "the data of `{}` lies beyond the end of the file", shown(name))
                })?;
            let entry = Entry { index: i, data, size: file.size(), deflated };
            entries.insert(rest.to_string(), entry);
        }
        let budget = (bytes.len() as u64).saturating_mul(UNPACK_RATIO).saturating_add(UNPACK_BASE);
        Ok(Archive { bytes, entries, reader: Mutex::new(Reader { zip, budget, unpacked: HashMap::new() }) })
    }

    /// Names of all entries under a folder, sorted.
    pub fn names<'a>(&'a self, folder: &'a str) -> Vec<&'a str> {
        let mut names: Vec<_> =
            self.entries.keys().map(String::as_str).filter(|n| n.starts_with(folder)).collect();
        names.sort_unstable();
        names
    }

    /// The bytes of an entry: lent from the map if stored, unpacked (once) if deflated.
    ///
    /// # Errors
    /// `Missing`; `Unpack` if it does not unpack to what the directory claims, or the budget is spent.
    pub fn entry(&self, name: &str) -> Result<Bytes> {
        let entry = self.find(name)?;
        if !entry.deflated {
            return self.lend(entry, name);
        }
        let mut reader = self.reader();
        if let Some(unpacked) = reader.unpacked.get(name) {
            return Ok(unpacked.clone());
        }
        if entry.size > reader.budget {
            return Err(refuse!(
                Unpack,
                "`{}` claims {} unpacked bytes, out of proportion to a file of {} bytes; store it uncompressed",
                shown(name),
                entry.size,
                self.bytes.len()
            ));
        }
        reader.budget -= entry.size;
        let mut out = Vec::new();
        read_through(&mut reader.zip, entry, name, &mut out)?;
        let out = Bytes::from_vec(out);
        reader.unpacked.insert(name.to_string(), out.clone());
        Ok(out)
    }

    /// Size of an entry, unpacked, without reading it.
    ///
    /// # Errors
    /// `Missing`.
    pub fn size(&self, name: &str) -> Result<u64> {
        Ok(self.find(name)?.size)
    }

    /// True if there is an entry of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Reads an entry through and compares its checksum. Deflated ones are checked when they are unpacked.
    ///
    /// # Errors
    /// `Missing`, `Unpack`.
    pub fn verify(&self, name: &str) -> Result<()> {
        let entry = self.find(name)?;
        if entry.deflated {
            return self.entry(name).map(drop);
        }
        read_through(&mut self.reader().zip, entry, name, &mut std::io::sink())
    }

    fn reader(&self) -> std::sync::MutexGuard<'_, Reader> {
        // A panic elsewhere leaves nothing half done that matters here.
        self.reader.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn find(&self, name: &str) -> Result<&Entry> {
        self.entries.get(name).ok_or_else(|| refuse!(Missing, "the archive has no `{}`", shown(name)))
    }

    fn lend(&self, entry: &Entry, name: &str) -> Result<Bytes> {
        let data = self.bytes.slice(entry.data.clone());
        data.ok_or_else(|| refuse!(Zip, "the data of `{}` lies beyond the end of the file", shown(name)))
    }
}

/// Copies an entry's content, which must have its size and checksum.
fn read_through(
    zip: &mut ZipArchive<Cursor<Bytes>>,
    entry: &Entry,
    name: &str,
    out: &mut impl std::io::Write,
) -> Result<()> {
    let bad = |e: String| refuse!(Unpack, "`{}` is damaged: {e}", shown(name));
    let file = zip.by_index(entry.index).map_err(|e| bad(e.to_string()))?;
    let read =
        std::io::copy(&mut file.take(entry.size.saturating_add(1)), out).map_err(|e| bad(e.to_string()))?;
    if read != entry.size {
        return Err(bad(format!("it has not the {} bytes the directory says", entry.size)));
    }
    Ok(())
}

/// Splits an entry's name into top folder and the rest, refusing names that could mean another place.
fn split_name(name: &str) -> Result<(&str, &str)> {
    let odd = name.split('/').any(|part| matches!(part, "" | "." | "..")) || name.contains(['\\', '\0']);
    match name.split_once('/') {
        Some((folder, rest)) if !odd && !folder.contains(':') => Ok((folder, rest)),
        _ => Err(refuse!(Entries, "`{}` is not a plain path inside the archive's folder", shown(name))),
    }
}
