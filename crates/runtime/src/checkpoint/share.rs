//! A checkpoint in parts: each rank writes a range of every file, the next one reads it back, and when a run
//! goes on, each reads its own pieces and gives them to the others.

use super::file::{Disk, Image};
use super::manifest::{Manifest, Written};
use super::pieces::{self, Hashes};
use super::{Checkpoint, Progress, Snapshot, Source, contents, full};
use crate::data::{from_safetensors, safetensors_header};
use crate::error::{Error, Result};
use crate::together::{all, gather};
use headwater_core::TensorType;
use headwater_core::ranks::{Exchange, Transport, exchanged, lanes_of};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The files of tensors, written into a new directory. With others, each rank calls this: rank 0 gives the
/// directory, or why there is none.
///
/// # Errors
/// `Checkpoint` and `Io`. Ranks succeed or fail jointly: see [`all`].
pub(super) fn write(
    disk: Disk,
    state: Snapshot,
    dir: Result<Option<PathBuf>>,
) -> Result<BTreeMap<String, Written>> {
    let images = |dir: &Path| -> Result<Vec<(&'static str, Image<Source>)>> {
        let files = contents(state.session, state.average).into_iter();
        files.map(|(name, entries)| Ok((name, Image::new(&dir.join(name), entries)?))).collect()
    };
    let source = |s: &Source| match s {
        Source::Tensor(t) => state.session.read(t),
        Source::Moment(key) => state.session.read_moment(key),
        Source::Average(i) => Ok(state.average.map(|a| a.bytes(*i)).unwrap_or_default()),
    };
    let Some(ranks) = state.ranks else {
        let dir = dir?.unwrap_or_default();
        let mut files = BTreeMap::new();
        for (name, image) in images(&dir)? {
            let hashes = image.write(disk, &dir.join(name), 0..image.bytes, source)?;
            files.insert(name.to_string(), Written::new(image.bytes, hashes));
        }
        return Ok(files);
    };
    let (rank, count) = (ranks.rank(), ranks.ranks());
    // Of a rank in another folder the path would be another.
    let dir = dir.and_then(|d| d.map(|d| std::path::absolute(&d).map_err(Error::io(&d))).transpose());
    let told = |m| Error::checkpoint(Path::new("the checkpoint"), format!("cannot be saved: {m}"));
    let dir = all(ranks, dir, told)?.swap_remove(0).unwrap_or_default();
    let told = |m| Error::checkpoint(&dir, format!("cannot be saved: {m}"));
    let part = |rank: usize, bytes: u64| {
        let own = lanes_of(rank, count, pieces::count(bytes, disk.piece) as usize);
        pieces::range(own.start as u64..own.end as u64, disk.piece, bytes)
    };
    let made = images(&dir);
    let written = made.as_deref().map_err(|e| Error::checkpoint(&dir, e.to_string())).and_then(|images| {
        let write = |(name, image): &(&str, Image<Source>)| {
            let own = part(rank, image.bytes);
            let hashes = image.write(disk, &dir.join(name), own, source).map_err(|e| full(e, &dir))?;
            Ok((image.bytes, hashes))
        };
        images.iter().map(write).collect::<Result<Vec<(u64, Vec<String>)>>>()
    });
    let written = all(ranks, written, told)?;
    let images = made?;
    // Each part is read by another rank than the one that has written it: a hash of what was meant proves
    // nothing.
    let other = (rank + count - 1) % count;
    let read =
        |(name, image): &(&str, Image<Source>)| read_back(disk, &dir.join(name), part(other, image.bytes));
    let mut read = all(ranks, images.iter().map(read).collect::<Result<Vec<_>>>(), told)?;
    read.rotate_left(1);
    let mut files = BTreeMap::new();
    let mut verdict = Ok(());
    for (i, (name, image)) in images.iter().enumerate() {
        let mut hashes = Vec::new();
        for writer in 0..count {
            if (image.bytes, &read[writer][i]) != (written[writer][i].0, &written[writer][i].1) {
                let (writer, reader) = (ranks.named(writer), ranks.named((writer + 1) % count));
                let message = format!(
                    "cannot be saved: {name} is not what {writer} has written, as {reader} reads it; look at the disk, the \
                     network and the memory of both"
                );
                verdict = verdict.and(Err(Error::checkpoint(&dir, message)));
            }
            hashes.extend(written[writer][i].1.iter().cloned());
        }
        files.insert(name.to_string(), Written::new(image.bytes, hashes));
    }
    all(ranks, verdict, told)?;
    Ok(files)
}

/// The hashes of a part of a file, as stored on disk.
fn read_back(disk: Disk, path: &Path, part: Range<u64>) -> Result<Vec<String>> {
    if part.is_empty() {
        return Ok(Vec::new());
    }
    (disk.before)("read back");
    let (mut hashes, mut block) = (Hashes::new(disk.piece), vec![0; 1 << 20]);
    let mut read = || -> std::io::Result<()> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(part.start))?;
        let mut file = file.take(part.end - part.start);
        loop {
            match file.read(&mut block)? {
                0 => return Ok(()),
                n => hashes.update(&block[..n]),
            }
        }
    };
    read().map_err(Error::io(path))?;
    Ok(hashes.finish())
}

/// What rank 0 asks of the others while it looks for the checkpoint to go on from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// To read their pieces of this one, and to say if they are whole.
    Verify { path: PathBuf, files: Vec<(String, Written)>, piece: u64, progress: Box<Progress> },
    /// To go on from this one; from none in a new run.
    Go(Option<PathBuf>),
    /// To end: rank 0 says why.
    End,
    /// Of other ranks: nothing.
    Nothing,
}

/// A rank's finding about its pieces.
#[derive(Serialize, Deserialize)]
enum Finding {
    Whole,
    Damaged(String),
    /// They cannot be read here, which says nothing about them.
    Unread(String),
}

/// The checkpoint that rank 0 has found, for another rank: reads its own pieces.
///
/// # Errors
/// `AsRankZero` if there is none; what is wrong with one that rank 0 has found whole.
pub(crate) fn follow(ranks: &Arc<dyn Transport>) -> Result<Option<Checkpoint>> {
    let mut seen: Option<Checkpoint> = None;
    loop {
        match gather(&**ranks, &Ask::Nothing)?.swap_remove(0) {
            Ask::Verify { path, files, piece, progress } => {
                let held = verify(ranks, &path, &files, piece);
                seen = held.ok().map(|held| Checkpoint {
                    path,
                    progress: *progress,
                    held: Some(Arc::new(held)),
                });
            }
            Ask::Go(None) => return Ok(None),
            Ask::Go(Some(path)) => {
                return match seen.filter(|c| c.path == path) {
                    Some(checkpoint) => Ok(Some(checkpoint)),
                    None => Checkpoint::open(&path).map(Some),
                };
            }
            Ask::End | Ask::Nothing => return Err(Error::AsRankZero),
        }
    }
}

/// Asks the others to verify a checkpoint, and does so; rank 0 calls this.
pub(super) fn verify_with(
    ranks: &Arc<dyn Transport>,
    path: &Path,
    manifest: &Manifest,
    piece: u64,
    progress: &Progress,
) -> Result<Held> {
    let path = std::path::absolute(path).map_err(Error::io(path))?;
    let files: Vec<_> = manifest.tensors().map(|(name, w)| (name.to_string(), w.clone())).collect();
    let progress = Box::new(progress.clone());
    gather(&**ranks, &Ask::Verify { path: path.clone(), files: files.clone(), piece, progress })?;
    verify(ranks, &path, &files, piece)
}

/// Reads this rank's pieces, and receives the others'.
///
/// # Errors
/// `Checkpoint` if any piece is not what was written, `Ranks` if a rank cannot read its own.
fn verify(ranks: &Arc<dyn Transport>, path: &Path, files: &[(String, Written)], piece: u64) -> Result<Held> {
    let mut held = HashMap::new();
    let mut own = Finding::Whole;
    for (name, written) in files {
        match read_own(&path.join(name), written, piece, ranks.rank(), ranks.ranks()) {
            Ok(Ok(read)) => drop(held.insert(name.clone(), read)),
            Ok(Err(damage)) => {
                own = Finding::Damaged(format!("{name} is not what was written: {damage}"));
                break;
            }
            Err(e) if e.kind() == ErrorKind::NotFound && ranks.rank() == 0 => {
                own = Finding::Damaged(format!("{name} is missing"));
                break;
            }
            Err(e) => {
                own = Finding::Unread(format!("{}: {e}", path.join(name).display()));
                break;
            }
        }
    }
    let all = gather(&**ranks, &own)?;
    // What rank 0 finds missing or damaged is so; of others, a file that they do not see may be elsewhere.
    if let Some(Finding::Damaged(message)) = all.first() {
        return Err(Error::checkpoint(path, message.clone()));
    }
    for (rank, finding) in all.iter().enumerate() {
        if let Finding::Unread(why) = finding {
            let rank = ranks.named(rank);
            let message = format!(
                "{rank} cannot read its part of the checkpoint: {why}. All ranks need the checkpoints, under the same path"
            );
            return Err(Error::Ranks(message));
        }
    }
    match all.into_iter().find_map(|f| if let Finding::Damaged(m) = f { Some(m) } else { None }) {
        Some(message) => Err(Error::checkpoint(path, message)),
        None => {
            let sizes = files.iter().map(|(name, w)| (name.clone(), w.bytes)).collect();
            Ok(Held { ranks: ranks.clone(), piece, sizes, pieces: Mutex::new(held) })
        }
    }
}

/// A rank's pieces of a file: every piece whose number has the rank as its rest. The inner error: what
/// differs.
fn read_own(
    path: &Path,
    written: &Written,
    piece: u64,
    rank: usize,
    ranks: usize,
) -> std::io::Result<Result<Vec<Vec<u8>>, String>> {
    // Asked before it is opened: a pipe would wait for somebody to write to it.
    if !std::fs::metadata(path)?.is_file() {
        return Ok(Err("it is not a file".into()));
    }
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    if size != written.bytes {
        return Ok(Err(format!("it has {size} bytes of {}", written.bytes)));
    }
    let mut out = Vec::new();
    for number in (rank as u64..pieces::count(size, piece)).step_by(ranks) {
        let range = pieces::range(number..number + 1, piece, size);
        file.seek(SeekFrom::Start(range.start))?;
        let mut bytes = Vec::new();
        (&mut file).take(range.end - range.start).read_to_end(&mut bytes)?;
        let mut hashes = Hashes::new(piece);
        hashes.update(&bytes);
        if hashes.finish().first() != written.pieces.get(number as usize) {
            return Ok(Err(format!("the SHA-256 of bytes {} to {} differs", range.start, range.end)));
        }
        out.push(bytes);
    }
    Ok(Ok(out))
}

/// This rank's pieces of a checkpoint's files, verified. They are sent to all when the files are read, and
/// freed then.
pub(super) struct Held {
    ranks: Arc<dyn Transport>,
    piece: u64,
    sizes: HashMap<String, u64>,
    pieces: Mutex<HashMap<String, Vec<Vec<u8>>>>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("sizes", &self.sizes).finish_non_exhaustive()
    }
}

impl Held {
    /// True if the checkpoint has the file.
    pub fn has(&self, file: &str) -> bool {
        self.sizes.contains_key(file)
    }

    /// Bytes that this rank has read.
    #[cfg(test)]
    pub fn read(&self) -> usize {
        let pieces = self.pieces.lock().unwrap();
        pieces.values().flatten().map(Vec::len).sum()
    }

    /// Gives the tensors of a file to `take` as they arrive, and their number to `begin` before. All ranks
    /// read the same files in the same order. A rank that takes no more still gives its pieces to the others.
    ///
    /// # Errors
    /// The first of `begin` and `take`; `Checkpoint` if it is no file of tensors; `Device` if a rank is lost.
    pub fn each(
        &self,
        path: &Path,
        file: &str,
        begin: &mut dyn FnMut(usize) -> Result<()>,
        take: &mut dyn FnMut(&str, &TensorType, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let own = self.pieces.lock().unwrap_or_else(PoisonError::into_inner).remove(file).unwrap_or_default();
        let mut own = own.into_iter();
        let mut arriving = Arriving { path: path.join(file), bytes: Vec::new(), at: 0, tensors: None };
        let mut done = Ok(());
        let pieces = pieces::count(self.sizes.get(file).copied().unwrap_or(0), self.piece);
        for _ in 0..pieces.div_ceil(self.ranks.ranks() as u64) {
            let parts = exchanged(&*self.ranks, Exchange::AllGather(own.next().unwrap_or_default()))?;
            if done.is_ok() {
                parts.iter().for_each(|p| arriving.bytes.extend_from_slice(p));
                done = arriving.take(begin, take);
            }
        }
        done?;
        match &arriving.tensors {
            Some(rest) if rest.as_slice().is_empty() => Ok(()),
            _ => Err(Error::checkpoint(path, format!("{file} ends before its tensors do"))),
        }
    }
}

/// A file of tensors as it arrives from front to back.
struct Arriving {
    path: PathBuf,
    /// Bytes from `at` on that were not taken yet.
    bytes: Vec<u8>,
    at: usize,
    /// Tensors that were not taken yet, with the place of their bytes in the file; `None` before the header
    /// has come.
    tensors: Option<std::vec::IntoIter<(String, TensorType, Range<usize>)>>,
}

impl Arriving {
    /// Takes all that has been read.
    fn take(
        &mut self,
        begin: &mut dyn FnMut(usize) -> Result<()>,
        take: &mut dyn FnMut(&str, &TensorType, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if self.tensors.is_none() {
            let Some(tensors) = header(&self.bytes).map_err(|m| Error::checkpoint(&self.path, m))? else {
                return Ok(());
            };
            begin(tensors.len())?;
            self.tensors = Some(tensors.into_iter());
        }
        let Some(tensors) = &mut self.tensors else { return Ok(()) };
        let end = self.at + self.bytes.len();
        let mut taken = self.at;
        while let Some((name, ty, place)) =
            tensors.as_slice().first().filter(|(_, _, place)| place.end <= end)
        {
            take(name, ty, &self.bytes[place.start - self.at..place.end - self.at])?;
            taken = place.end;
            tensors.next();
        }
        self.bytes.drain(..taken - self.at);
        self.at = taken;
        Ok(())
    }
}

/// The tensors of a file by the place of their bytes, once its header is complete.
fn header(bytes: &[u8]) -> Result<Option<Vec<(String, TensorType, Range<usize>)>>, String> {
    let Some((begin, metadata)) = safetensors_header(bytes)? else { return Ok(None) };
    let mut tensors = Vec::new();
    for name in metadata.offset_keys() {
        let Some(info) = metadata.info(&name) else { continue };
        let dtype = from_safetensors(info.dtype).ok_or_else(|| format!("{name} is {:?}", info.dtype))?;
        let ty = TensorType::new(dtype, info.shape.clone());
        let (start, end) = info.data_offsets;
        tensors.push((name, ty, begin + start..begin + end));
    }
    Ok(Some(tensors))
}
