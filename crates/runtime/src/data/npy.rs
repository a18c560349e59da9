//! NumPy's formats: `.npy` (versions 1 to 3,
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>) and `.npz`, a zip of them,
//! stored or deflated.

use super::{Bytes, Column, Mapped};
use crate::error::{Error, Result};
use headwater_core::{DType, Shape, TensorType};
use std::collections::HashSet;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Longest header read; NumPy's own stay far below.
const MAX_HEADER: usize = 64 << 10;
/// Deflate cannot expand more than this many times, so a larger claim is false.
const MAX_INFLATE: usize = 1032;
/// All tensors of a file may unpack to this many times its size, and [`TOTAL_BASE`] bytes. Padded token ids,
/// the best compressed data that are worth training on, shrink by a factor of about 50.
const TOTAL_RATIO: usize = 256;
const TOTAL_BASE: usize = 64 << 20;

/// A parsed header: the type, and where the elements begin.
#[derive(Debug, PartialEq)]
struct Header {
    ty: TensorType,
    data: usize,
}

/// A `.npy` whose bytes are in `range` of a mapped file.
pub(super) fn mapped(path: &Path, name: String, map: &Arc<Mapped>, range: Range<usize>) -> Result<Column> {
    let bytes =
        map.bytes().get(range.clone()).ok_or_else(|| Error::data(path, format!("{name} leaves the file")))?;
    let refuse = |m: String| Error::data(path, format!("{name}: {m}"));
    let header = header(bytes).map_err(refuse)?;
    let have = bytes.len() - header.data;
    if have != header.ty.bytes() {
        return Err(refuse(format!("{} needs {} bytes, the file has {have}", header.ty, header.ty.bytes())));
    }
    let start = range.start + header.data;
    Ok(Column { name, bytes: Bytes::Mapped(map.clone(), start..range.end), ty: header.ty })
}

/// All tensors of a `.npz`; compressed ones are unpacked if they are requested, within a budget.
pub(super) fn npz(path: &Path, map: &Arc<Mapped>, wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Column>> {
    let zip_error = |e: zip::result::ZipError| Error::data(path, e.to_string());
    let mut archive = zip::ZipArchive::new(Cursor::new(map.bytes())).map_err(zip_error)?;
    if archive.has_overlapping_entries().map_err(zip_error)? {
        return Err(Error::data(path, "entries of the archive overlap"));
    }
    let mut columns: Vec<Column> = Vec::new();
    let mut names = HashSet::new();
    let mut budget = map.bytes().len().saturating_mul(TOTAL_RATIO).saturating_add(TOTAL_BASE);
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(zip_error)?;
        let entry_name = entry.name().map_err(zip_error)?.into_owned();
        let Some(name) = entry_name.strip_suffix(".npy").map(str::to_string) else {
            return Err(Error::data(path, format!("entry {entry_name:?} is no .npy")));
        };
        if !names.insert(name.clone()) {
            return Err(Error::data(path, format!("{name} stands in the archive twice")));
        }
        let refuse = |m: String| Error::data(path, format!("{name}: {m}"));
        columns.push(match entry.compression() {
            zip::CompressionMethod::Stored => {
                let start = entry.data_start().and_then(|s| usize::try_from(s).ok());
                let size = usize::try_from(entry.size()).ok();
                let range = start.zip(size).and_then(|(s, n)| Some(s..s.checked_add(n)?));
                let range = range.ok_or_else(|| refuse("its place in the file makes no sense".into()))?;
                mapped(path, name, map, range)?
            }
            _ => {
                let packed =
                    usize::try_from(entry.compressed_size()).unwrap_or(usize::MAX).min(map.bytes().len());
                let limit = if wanted(&name) { Some(budget) } else { None };
                let (ty, bytes) = inflate(&mut entry, packed, limit).map_err(refuse)?;
                budget -= bytes.len();
                Column { name, ty, bytes: Bytes::Owned(Arc::new(bytes)) }
            }
        });
    }
    Ok(columns)
}

/// Reads a compressed `.npy`: its header first, then exactly as many bytes as that justifies, at most
/// `limit`. Without a limit, the header alone.
fn inflate(
    entry: &mut impl Read,
    packed: usize,
    limit: Option<usize>,
) -> Result<(TensorType, Vec<u8>), String> {
    let mut start = vec![0; 12];
    read_exact(entry, &mut start)?;
    // A header that ends before byte 12 is too short to parse, and is refused below.
    start.resize(header_length(&start)?.max(12), 0);
    read_exact(entry, &mut start[12..])?;
    let header = header(&start)?;
    let bytes = header.ty.bytes();
    if bytes > packed.saturating_mul(MAX_INFLATE) {
        return Err(format!("{} cannot come out of {packed} compressed bytes", header.ty));
    }
    let Some(limit) = limit else { return Ok((header.ty, Vec::new())) };
    if bytes > limit {
        return Err(format!(
            "{} unpacks to {bytes} bytes, out of proportion to the file; save it with numpy.savez, uncompressed",
            header.ty
        ));
    }
    let mut data = vec![0; bytes];
    read_exact(entry, &mut data)?;
    if entry.read(&mut [0]).map_err(|e| e.to_string())? != 0 {
        return Err(format!("there are bytes after {}", header.ty));
    }
    Ok((header.ty, data))
}

fn read_exact(from: &mut impl Read, to: &mut [u8]) -> Result<(), String> {
    from.read_exact(to).map_err(|e| e.to_string())
}

/// Bytes before the elements, from the first twelve bytes of a file.
fn header_length(bytes: &[u8]) -> Result<usize, String> {
    let prefix: &[u8; 12] = bytes.first_chunk().ok_or("too short for a .npy file")?;
    if !prefix.starts_with(b"\x93NUMPY") {
        return Err("does not begin as a .npy file".into());
    }
    let (length, at) = match prefix[6] {
        1 => (u16::from_le_bytes([prefix[8], prefix[9]]) as usize, 10),
        2 | 3 => (u32::from_le_bytes([prefix[8], prefix[9], prefix[10], prefix[11]]) as usize, 12),
        v => return Err(format!("version {v} of the .npy format is not known")),
    };
    if length > MAX_HEADER {
        return Err(format!("a header of {length} bytes is not plausible"));
    }
    Ok(at + length)
}

/// Parses the header of a `.npy` file that begins `bytes`.
fn header(bytes: &[u8]) -> Result<Header, String> {
    let data = header_length(bytes)?;
    let at = if bytes[6] == 1 { 10 } else { 12 };
    let text = bytes.get(at..data).ok_or("the header is cut off")?;
    let text = std::str::from_utf8(text).map_err(|_| "the header is not text")?;
    let dict = Dict::parse(text).ok_or_else(|| format!("the header {text:?} cannot be read"))?;
    if dict.fortran && dict.shape.len() > 1 {
        return Err("is in Fortran order; save it with numpy.ascontiguousarray".into());
    }
    let dtype = dtype(&dict.descr)?;
    let shape = Shape::new(&dict.shape);
    if shape.checked_numel().and_then(|n| n.checked_mul(dtype.size())).is_none_or(|n| n > isize::MAX as usize)
    {
        return Err(format!("{shape} is larger than memory can be"));
    }
    Ok(Header { ty: TensorType::new(dtype, shape), data })
}

fn dtype(descr: &str) -> Result<DType, String> {
    Ok(match descr {
        "|b1" => DType::Bool,
        "|u1" => DType::U8,
        "|i1" => DType::I8,
        "<i2" => DType::I16,
        "<i4" => DType::I32,
        "<i8" => DType::I64,
        "<f2" => DType::F16,
        "<f4" => DType::F32,
        "<f8" => DType::F64,
        d if d.starts_with('>') => return Err(format!("is big-endian ({d}); convert it with .astype first")),
        d if d.contains('O') => return Err("holds Python objects, which are never read".into()),
        d => return Err(format!("has dtype {d:?}, which is not supported")),
    })
}

/// The header's dictionary, a Python literal of exactly three keys.
#[derive(Debug, Default, PartialEq)]
struct Dict {
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

impl Dict {
    fn parse(text: &str) -> Option<Dict> {
        let (mut dict, mut seen) = (Dict::default(), 0u8);
        let mut rest = text.trim().strip_prefix('{')?.trim_start();
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                return (after.trim().is_empty() && seen == 0b111).then_some(dict);
            }
            let key;
            (key, rest) = quoted(rest)?;
            rest = rest.trim_start().strip_prefix(':')?.trim_start();
            let bit = match key {
                "descr" => {
                    let descr;
                    (descr, rest) = quoted(rest)?;
                    dict.descr = descr.to_string();
                    1
                }
                "fortran_order" => {
                    let yes = rest.strip_prefix("True");
                    dict.fortran = yes.is_some();
                    rest = yes.or_else(|| rest.strip_prefix("False"))?;
                    2
                }
                "shape" => {
                    let (inside, after) = rest.strip_prefix('(')?.split_once(')')?;
                    let sizes = inside.split(',').map(str::trim).filter(|s| !s.is_empty());
                    dict.shape = sizes.map(|s| s.parse().ok()).collect::<Option<_>>()?;
                    rest = after;
                    4
                }
                _ => return None,
            };
            if seen & bit != 0 {
                return None;
            }
            seen |= bit;
            rest = rest.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
    }
}

/// A quoted string without escapes, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| *c == '\'' || *c == '"')?;
    text[1..].split_once(quote)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(version: u8, dict: &str, data: &[u8]) -> Vec<u8> {
        let mut out = b"\x93NUMPY".to_vec();
        out.extend([version, 0]);
        match version {
            1 => out.extend((dict.len() as u16).to_le_bytes()),
            _ => out.extend((dict.len() as u32).to_le_bytes()),
        }
        out.extend(dict.as_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn headers_of_every_version_are_read() {
        let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n";
        for (version, start) in [(1, 10), (2, 12), (3, 12)] {
            let h = header(&file(version, dict, &[])).unwrap();
            assert_eq!(h, Header { ty: TensorType::new(DType::F32, [3, 4]), data: start + dict.len() });
        }
        let vector = "{'descr': '|b1', 'fortran_order': True, 'shape': (5,), }";
        assert_eq!(header(&file(1, vector, &[])).unwrap().ty, TensorType::new(DType::Bool, [5]));
    }

    #[test]
    fn what_cannot_be_trained_on_is_refused() {
        for dict in [
            "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }",
            "{'descr': '>f4', 'fortran_order': False, 'shape': (3, 4), }",
            "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 2), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (), }",
        ] {
            assert!(header(&file(1, dict, &[])).is_err(), "{dict}");
        }
        assert!(header(&file(9, "", &[])).is_err());
        assert!(header(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").is_err());
    }

    #[test]
    fn a_claim_beyond_what_deflate_can_do_allocates_nothing() {
        let lie = file(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }", &[0; 64]);
        assert!(inflate(&mut &lie[..], 64, Some(1 << 50)).unwrap_err().contains("cannot come out"));
    }

    #[test]
    fn inflated_files_end_where_they_say() {
        let dict = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }";
        for version in [1, 2] {
            let whole = file(version, dict, &[1, 0, 2, 0]);
            assert_eq!(inflate(&mut &whole[..], 1000, Some(1000)).unwrap().1, [1, 0, 2, 0]);
            assert!(inflate(&mut &whole[..whole.len() - 1], 1000, Some(1000)).is_err());
            let long = file(version, dict, &[1, 0, 2, 0, 9]);
            assert!(inflate(&mut &long[..], 1000, Some(1000)).is_err());
        }
    }

    /// A `.npz` of deflated zeros, `elements` bytes in each tensor.
    fn zeros(names: &[&str], elements: usize) -> Vec<u8> {
        use std::io::Write;
        use zip::write::{SimpleFileOptions, ZipWriter};
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        let deflated = SimpleFileOptions::default().compression_method(zip::CompressionMethod::DEFLATE);
        let dict = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({elements},), }}");
        for name in names {
            zip.start_file(format!("{name}.npy"), deflated).unwrap();
            zip.write_all(&file(1, &dict, &vec![0; elements])).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn opened(bytes: &[u8], wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Column>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.npz");
        std::fs::write(&path, bytes).unwrap();
        npz(&path, &Arc::new(Mapped::open(&path)?), wanted)
    }

    #[test]
    fn only_what_is_wanted_is_unpacked_and_within_a_budget() {
        let bytes = zeros(&["a", "b", "c"], 50 << 20);
        assert!(bytes.len() < 1 << 20);
        let one = opened(&bytes, &|name| name == "b").unwrap();
        let sizes: Vec<_> = one.iter().map(|c| (c.ty.shape[0], c.bytes().len())).collect();
        assert_eq!(sizes, [(50 << 20, 0), (50 << 20, 50 << 20), (50 << 20, 0)]);
        let e = opened(&bytes, &|_| true).map(|c| c.len()).unwrap_err();
        assert!(e.to_string().contains("out of proportion to the file"), "{e}");
    }

    #[test]
    fn entries_that_overlap_are_refused() {
        let bytes = zeros(&["a"], 1000);
        // The directory of one entry: repeated, under other names, for the same place in the file.
        let end = bytes.len() - 22;
        let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        let (size, start) = (field(end + 12), field(end + 16));
        let entry = &bytes[start..start + size];
        let name = entry.windows(5).position(|w| w == b"a.npy").unwrap();
        let mut bomb = bytes[..start].to_vec();
        for letter in b'a'..=b'z' {
            let mut entry = entry.to_vec();
            entry[name] = letter;
            bomb.extend(entry);
        }
        let mut tail = bytes[end..].to_vec();
        tail[8..10].copy_from_slice(&26u16.to_le_bytes());
        tail[10..12].copy_from_slice(&26u16.to_le_bytes());
        tail[12..16].copy_from_slice(&(26 * size as u32).to_le_bytes());
        bomb.extend(tail);
        let e = opened(&bomb, &|_| true).map(|c| c.len()).unwrap_err();
        assert!(e.to_string().contains("overlap"), "{e}");
    }

    proptest! {
        #[test]
        fn hostile_headers_never_panic(version in 0u8..4, dict in "[{}'a-z_:<>f480-9(), TF]{0,60}", cut in 0usize..80) {
            let mut bytes = file(version, &dict, &[0; 8]);
            bytes.truncate(cut);
            let _ = header(&bytes);
            let _ = inflate(&mut &bytes[..], bytes.len(), Some(bytes.len()));
        }
    }
}
