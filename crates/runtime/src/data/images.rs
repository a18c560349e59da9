//! Images in folders as a data set: PNG and JPEG files, decoded when a batch needs them.
//!
//! A folder is such a data set if it has a file `images.toml`. Each subfolder is a class, as for torchvision's
//! `ImageFolder`; without subfolders there are no labels. Values are those of `ToTensor` and `Normalize`:
//! `(byte / 255 − mean) / std`, in the layout `[channels, height, width]`. With `masks`, a folder of PNG files has the class of
//! each pixel.
//!
//! An image of another size is scaled so that it just covers the size asked for, and its middle is taken. The
//! filter is a triangle as wide as a pixel of the smaller grid, as `Resize(antialias=True)` has it, but in one
//! rounding rather than two: values differ from PyTorch's by about one step of 1/255.

use crate::error::{Error, Result};
use serde::Deserialize;
use std::io::Cursor;
use std::path::{Path, PathBuf};

/// The file that makes a folder a data set.
pub(super) const FILE: &str = "images.toml";

/// Pixels of the largest image that is decoded.
const PIXELS: usize = 1 << 27;
/// Deflate cannot expand more than this many times: a PNG file that claims more is no image.
const MAX_INFLATE: usize = 1032;
/// A byte of a JPEG file is at most so many pixels: each block of 64 takes a bit of its scan, if only for the
/// difference of its mean.
const MAX_JPEG: usize = 512;
/// Bytes of the largest file that is read.
const BYTES: u64 = 1 << 28;

/// Contents of `images.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ImageSettings {
    /// 1 (grey) or 3 (red, green, blue).
    channels: usize,
    height: usize,
    width: usize,
    /// By channel; one number is for all. Default: 0.
    #[serde(default)]
    mean: Vec<f64>,
    /// By channel; one number is for all. Default: 1.
    #[serde(default)]
    std: Vec<f64>,
    /// Names of the classes in order. Default: the subfolders, sorted.
    classes: Option<Vec<String>>,
    /// Folder with the mask of each image, a PNG file of the image's name whose grey values or colour numbers are the classes of
    /// pixels. The other subfolder then holds the images, and is no class.
    masks: Option<String>,
}

/// Encoded images as tensors of one shape.
#[derive(Debug)]
pub(super) struct Layout {
    settings: ImageSettings,
    /// By channel: factor and summand of a byte.
    affine: Vec<(f64, f64)>,
}

impl Layout {
    /// # Errors
    /// The setting that makes no sense.
    pub fn new(settings: ImageSettings) -> Result<Layout, String> {
        if ![1, 3].contains(&settings.channels) || settings.height == 0 || settings.width == 0 {
            return Err("`channels` must be 1 or 3, `height` and `width` at least 1".into());
        }
        if settings.height.checked_mul(settings.width).is_none_or(|n| n > PIXELS) {
            return Err(format!("images of more than {PIXELS} pixels are not supported"));
        }
        let affine = affine(&settings)?;
        Ok(Layout { settings, affine })
    }

    /// Channels, height and width.
    pub fn shape(&self) -> [usize; 3] {
        [self.settings.channels, self.settings.height, self.settings.width]
    }

    /// True if the settings name masks.
    pub fn has_masks(&self) -> bool {
        self.settings.masks.is_some()
    }

    /// The value of a black pixel in each channel.
    pub fn black(&self) -> Vec<f64> {
        self.affine.iter().map(|(_, summand)| *summand).collect()
    }

    /// Appends the values of a PNG or JPEG file as f32, little-endian.
    ///
    /// # Errors
    /// That it is damaged, of another kind, or too large.
    pub fn append(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        let [channels, height, width] = self.shape();
        let image = Image::decode(bytes)?.in_channels(channels).covering(height, width)?;
        for (c, (factor, summand)) in self.affine.iter().enumerate() {
            let plane = image.values.iter().skip(c).step_by(image.channels);
            out.extend(plane.flat_map(|x| ((*x as f64 * factor + summand) as f32).to_le_bytes()));
        }
        Ok(())
    }

    /// Appends the classes of the pixels of a mask of the size `have`: the nearest pixel's where the mask is scaled, as
    /// `Resize(interpolation=NEAREST_EXACT)`, over the part that [`Layout::append`] takes of an image of that size.
    fn append_mask(&self, have: [usize; 2], values: &[u8], out: &mut Vec<u8>) {
        let [_, height, width] = self.shape();
        let [(tall, top), (wide, left)] = placed(have, [height, width]);
        let nearest = |i: usize, from: usize, to: usize| {
            ((i as f64 + 0.5) * from as f64 / to as f64).floor().min((from - 1) as f64) as usize
        };
        for row in top..top + height {
            let row = nearest(row, have[0], tall) * have[1];
            out.extend((left..left + width).map(|column| values[row + nearest(column, have[1], wide)]));
        }
    }
}

/// For height and width, the size that an image of a size is scaled to so that it covers another one, and what is cut off before
/// its middle.
fn placed(have: [usize; 2], size: [usize; 2]) -> [(usize, usize); 2] {
    let scale = (size[0] as f64 / have[0] as f64).max(size[1] as f64 / have[1] as f64);
    let scaled = |n: usize, least: usize| ((n as f64 * scale).round() as usize).max(least);
    let (tall, wide) = (scaled(have[0], size[0]), scaled(have[1], size[1]));
    [(tall, (tall - size[0]) / 2), (wide, (wide - size[1]) / 2)]
}

/// The images of a folder.
#[derive(Debug)]
pub(super) struct Images {
    layout: Layout,
    /// Files, by class and name.
    files: Vec<PathBuf>,
    /// Class of each file; none without subfolders.
    pub labels: Option<Vec<i64>>,
    /// Names of the classes; of masks none, unless they are listed.
    pub classes: Vec<String>,
    /// The mask of each file, if there are masks.
    pub masks: Option<Vec<PathBuf>>,
    /// In a sentence, the files and folders among them that are no images.
    pub remark: Option<String>,
}

impl Images {
    /// Lists a folder's images; none is decoded yet.
    pub fn open(folder: &Path) -> Result<Images> {
        let file = folder.join(FILE);
        let refuse = |m: String| Error::data(&file, m);
        let text = std::fs::read_to_string(&file).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::data(folder, format!("is a folder without {FILE} (`channels`, `height`, `width`), text.toml (`tokenizer`, `length`) or table.toml (tables; it may be empty), of which a data set has one (docs/data.md)"))
            }
            _ => Error::io(&file)(e),
        })?;
        let settings: ImageSettings = toml::from_str(&text).map_err(|e| refuse(e.to_string()))?;
        let layout = Layout::new(settings).map_err(refuse)?;
        let (folders, beside): (Vec<_>, Vec<_>) =
            super::entries(folder)?.into_iter().partition(|p| p.is_dir());
        let name = |p: &Path| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(masks) = layout.settings.masks.clone() {
            let folders = folders.into_iter().filter(|p| name(p) != masks).collect::<Vec<_>>();
            return Images::with_masks(folder, layout, &masks, folders, beside);
        }
        let found: Vec<String> = folders.iter().map(|p| name(p)).collect();
        let classes = layout.settings.classes.clone().unwrap_or_else(|| found.clone());
        let (mut files, mut labels, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (path, class) in folders.iter().zip(&found) {
            let label = classes.iter().position(|c| c == class).ok_or_else(|| {
                refuse(format!("there is a folder {class:?}, but `classes` has no such name"))
            })?;
            let (images, rest) = images(super::entries(path)?)?;
            labels.extend(std::iter::repeat_n(label as i64, images.len()));
            files.extend(images);
            others.extend(rest);
        }
        let labels = (!folders.is_empty()).then_some(labels);
        if labels.is_none() {
            (files, others) = images(beside)?;
        } else {
            others.splice(0..0, beside);
        }
        if files.is_empty() {
            return Err(Error::data(folder, "holds no .png, .jpg or .jpeg"));
        }
        others.retain(|p| *p != file);
        let remark = passed_over(folder, &others);
        Ok(Images { layout, files, labels, classes, masks: None, remark })
    }

    /// Lists images and the mask of each: those of the one subfolder beside the masks', or of the folder itself.
    fn with_masks(
        folder: &Path,
        layout: Layout,
        masks: &str,
        folders: Vec<PathBuf>,
        beside: Vec<PathBuf>,
    ) -> Result<Images> {
        let own = match &folders[..] {
            [] => beside,
            [one] => super::entries(one)?,
            _ => {
                let names: Vec<String> = folders.iter().map(|p| p.display().to_string()).collect();
                let message = format!(
                    "has `masks`, so that one other folder holds the images, and there are {}",
                    names.join(", ")
                );
                return Err(Error::data(&folder.join(FILE), message));
            }
        };
        let (files, others) = images(own)?;
        if files.is_empty() {
            return Err(Error::data(folder, "holds no .png, .jpg or .jpeg"));
        }
        let mask = |image: &PathBuf| {
            let mut name = image.file_stem().unwrap_or_default().to_os_string();
            name.push(".png");
            let mask = folder.join(masks).join(name);
            match mask.is_file() {
                true => Ok(mask),
                false => Err(Error::data(image, format!("has no mask {}", mask.display()))),
            }
        };
        let masks = files.iter().map(mask).collect::<Result<Vec<_>>>()?;
        let others: Vec<PathBuf> = others.into_iter().filter(|p| *p != folder.join(FILE)).collect();
        let (classes, remark) =
            (layout.settings.classes.clone().unwrap_or_default(), passed_over(folder, &others));
        Ok(Images { layout, files, labels: None, classes, masks: Some(masks), remark })
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Channels, height and width.
    pub fn shape(&self) -> [usize; 3] {
        self.layout.shape()
    }

    /// The value of a black pixel in each channel.
    pub fn black(&self) -> Vec<f64> {
        self.layout.black()
    }

    /// The file of an image.
    pub fn file(&self, sample: usize) -> &Path {
        &self.files[sample]
    }

    /// Appends the values of an image as f32, little-endian.
    ///
    /// # Errors
    /// `Data` if it is damaged, of another kind, or too large; `Io`.
    pub fn append(&self, sample: usize, out: &mut Vec<u8>) -> Result<()> {
        let path = &self.files[sample];
        self.layout.append(&read(path)?, out).map_err(|m| Error::data(path, m))
    }

    /// Appends the classes of the pixels of an image as u8.
    ///
    /// # Errors
    /// As [`Images::append`].
    pub fn append_mask(&self, sample: usize, out: &mut Vec<u8>) -> Result<()> {
        let Some(path) = self.masks.as_ref().map(|masks| &masks[sample]) else { return Ok(()) };
        let refuse = |m| Error::data(path, m);
        let (image, mask) = (&self.files[sample], read(path)?);
        let (pixels, values) = numbers(&mask).map_err(refuse)?;
        let have = size(&read(image)?).map_err(|m| Error::data(image, m))?;
        if pixels != have {
            let [height, width] = pixels;
            let message =
                format!("has {height} × {width} pixels, {} has {} × {}", image.display(), have[0], have[1]);
            return Err(refuse(message));
        }
        self.layout.append_mask(pixels, &values, out);
        Ok(())
    }
}

/// The bytes of a file of an image.
fn read(path: &Path) -> Result<Vec<u8>> {
    let size = std::fs::metadata(path).map_err(Error::io(path))?.len();
    if size > BYTES {
        let message = format!("is larger than {BYTES} bytes, which no image here may be");
        return Err(Error::data(path, message));
    }
    std::fs::read(path).map_err(Error::io(path))
}

/// Factor and summand of each channel's bytes.
fn affine(s: &ImageSettings) -> Result<Vec<(f64, f64)>, String> {
    let by_channel = |name: &str, given: &[f64], default: f64| match given.len() {
        0 => Ok(vec![default; s.channels]),
        1 => Ok(vec![given[0]; s.channels]),
        n if n == s.channels => Ok(given.to_vec()),
        n => Err(format!("`{name}` has {n} numbers for {} channels", s.channels)),
    };
    let (mean, std) = (by_channel("mean", &s.mean, 0.0)?, by_channel("std", &s.std, 1.0)?);
    if mean.iter().any(|x| !x.is_finite()) || std.iter().any(|x| !(x.is_finite() && *x > 0.0)) {
        return Err("`mean` must be finite, `std` positive".into());
    }
    Ok(mean.iter().zip(std).map(|(mean, std)| (1.0 / (255.0 * std), -mean / std)).collect())
}

/// Endings of images that are not read.
const OTHERS: [&str; 12] =
    ["webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jp2", "jxl", "ppm", "pgm"];

/// The images among a folder's entries, and those that are none, both in their order.
///
/// # Errors
/// `Data` for an image of a kind that is not read: without it the data set would be another one.
fn images(entries: Vec<PathBuf>) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let ending = |p: &Path| p.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let unread = |p: &&PathBuf| p.is_file() && OTHERS.contains(&ending(p).as_str());
    if let Some(other) = entries.iter().find(unread) {
        let message =
            "is an image of a kind that is not read: convert it to PNG or JPEG, or move it elsewhere";
        return Err(Error::data(other, message));
    }
    let image = |p: &PathBuf| p.is_file() && ["png", "jpg", "jpeg"].contains(&ending(p).as_str());
    Ok(entries.into_iter().partition(image))
}

/// Says what of a folder is passed over, if anything is.
fn passed_over(folder: &Path, others: &[PathBuf]) -> Option<String> {
    const SHOWN: usize = 3;
    let name = |p: &PathBuf| p.strip_prefix(folder).unwrap_or(p).display().to_string();
    let mut shown = others.iter().take(SHOWN).map(name).collect::<Vec<_>>().join(", ");
    if let more @ 1.. = others.len().saturating_sub(SHOWN) {
        shown += &format!(" and {more} more");
    }
    let count = match others.len() {
        0 => return None,
        1 => "1 entry that is no image of it was".to_string(),
        n => format!("{n} entries that are no images of it were"),
    };
    Some(format!("{}: {count} passed over: {shown}", folder.display()))
}

/// An image: rows of pixels, channels innermost, values from 0 to 255.
#[derive(Clone, Debug, PartialEq)]
struct Image {
    height: usize,
    width: usize,
    channels: usize,
    values: Vec<f32>,
}

impl Image {
    /// Decodes a file by what it begins with.
    fn decode(bytes: &[u8]) -> Result<Image, String> {
        match &bytes[..bytes.len().min(3)] {
            [0x89, b'P', b'N'] => png(bytes),
            [0xff, 0xd8, 0xff] => jpeg(bytes),
            _ => Err("is neither a PNG nor a JPEG file".into()),
        }
    }

    fn new(height: usize, width: usize, channels: usize, bytes: &[u8]) -> Result<Image, String> {
        let want = height.checked_mul(width).and_then(|n| n.checked_mul(channels));
        if want != Some(bytes.len()) || bytes.is_empty() {
            return Err(format!(
                "has {} bytes for {height} × {width} pixels of {channels} values",
                bytes.len()
            ));
        }
        Ok(Image { height, width, channels, values: bytes.iter().map(|&b| b as f32).collect() })
    }

    /// In grey or in colour; opacity is dropped. Grey is the luma of ITU-R BT.601, as PIL has it.
    fn in_channels(self, channels: usize) -> Image {
        let colours = if self.channels >= 3 { 3 } else { 1 };
        if colours == channels && self.channels == channels {
            return self;
        }
        let pixels = self.values.chunks_exact(self.channels);
        let values = match (colours, channels) {
            (3, 1) => pixels.map(|p| (0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2]).round()).collect(),
            (1, 3) => pixels.flat_map(|p| [p[0]; 3]).collect(),
            _ => pixels.flat_map(|p| p[..channels].to_vec()).collect(),
        };
        Image { channels, values, ..self }
    }

    /// Scaled so that it covers the size, cut to its middle.
    ///
    /// # Errors
    /// If it is so narrow that rows of the new width, one for each of its own, are more than [`PIXELS`].
    fn covering(self, height: usize, width: usize) -> Result<Image, String> {
        if (self.height, self.width) == (height, width) {
            return Ok(self);
        }
        if self.height.checked_mul(width).is_none_or(|n| n > PIXELS) {
            let size = format!("{} × {}", self.height, self.width);
            return Err(format!("has {size} pixels, too narrow to be scaled to {height} × {width}"));
        }
        // Rows and columns of the scaled image from `top` and `left` on stay.
        let [(tall, top), (wide, left)] = placed([self.height, self.width], [height, width]);
        let columns = weights(self.width, wide, left, width);
        let rows = weights(self.height, tall, top, height);
        let c = self.channels;
        let mut narrow = vec![0.0f32; self.height * width * c];
        for (row, out) in self.values.chunks_exact(self.width * c).zip(narrow.chunks_exact_mut(width * c)) {
            for ((first, weights), pixel) in columns.iter().zip(out.chunks_exact_mut(c)) {
                for (w, from) in weights.iter().zip(row[first * c..].chunks_exact(c)) {
                    pixel.iter_mut().zip(from).for_each(|(p, x)| *p += *w as f32 * x);
                }
            }
        }
        let mut values = vec![0.0f32; height * width * c];
        for ((first, weights), out) in rows.iter().zip(values.chunks_exact_mut(width * c)) {
            for (w, from) in weights.iter().zip(narrow[first * width * c..].chunks_exact(width * c)) {
                out.iter_mut().zip(from).for_each(|(p, x)| *p += *w as f32 * x);
            }
        }
        Ok(Image { height, width, channels: c, values })
    }
}

/// For each of `count` places from `skip` on in a line scaled from `from` to `to`: the first place it is made
/// of, and the weights of that and those that follow. A triangle filter, widened where the line shrinks.
fn weights(from: usize, to: usize, skip: usize, count: usize) -> Vec<(usize, Vec<f64>)> {
    let scale = from as f64 / to as f64;
    let support = scale.max(1.0);
    let place = |i: usize| {
        let centre = (i as f64 + 0.5) * scale;
        let first = (centre - support + 0.5).floor().max(0.0) as usize;
        let end = ((centre + support + 0.5).floor() as usize).clamp(first + 1, from.max(first + 1));
        let weight = |j: usize| (1.0 - ((j as f64 + 0.5 - centre) / support).abs()).max(0.0);
        let all: Vec<f64> = (first..end.min(from)).map(weight).collect();
        let sum: f64 = all.iter().sum();
        match sum > 0.0 {
            true => (first, all.iter().map(|w| w / sum).collect()),
            false => (first.min(from - 1), vec![1.0]),
        }
    };
    (skip..skip + count).map(place).collect()
}

fn png(bytes: &[u8]) -> Result<Image, String> {
    let (height, width, samples, out) = png_bytes(bytes, png::Transformations::normalize_to_color8())?;
    Image::new(height, width, samples, &out)
}

/// Height and width of a PNG file without colours, and the number that each pixel is stored as: its grey value, or the number of
/// its colour in a palette.
fn numbers(bytes: &[u8]) -> Result<([usize; 2], Vec<u8>), String> {
    if !bytes.starts_with(&[0x89, b'P', b'N']) {
        return Err("is no PNG file, as masks are: other kinds do not keep the numbers of classes".into());
    }
    let info = png::Decoder::new(Cursor::new(bytes)).read_info().map_err(|e| e.to_string())?;
    let (color, depth) = info.output_color_type();
    if !matches!(color, png::ColorType::Grayscale | png::ColorType::Indexed)
        || depth == png::BitDepth::Sixteen
    {
        return Err(format!(
            "has pixels of {color:?} with {depth:?} bits: a mask is grey or has a palette, its numbers being classes below 256"
        ));
    }
    // Rows begin at whole bytes.
    let (height, width, _, packed) = png_bytes(bytes, png::Transformations::IDENTITY)?;
    let bits = depth as usize;
    let row = (width * bits).div_ceil(8);
    if packed.len() != height * row || packed.is_empty() {
        return Err(format!("has {} bytes for {height} × {width} pixels", packed.len()));
    }
    let number =
        |row: &[u8], i: usize| row[i * bits / 8] >> (8 - bits - i * bits % 8) & (0xff >> (8 - bits)) as u8;
    let values = packed.chunks_exact(row).flat_map(|row| (0..width).map(move |i| number(row, i))).collect();
    Ok(([height, width], values))
}

/// Height and width that a file of an image claims.
fn size(bytes: &[u8]) -> Result<[usize; 2], String> {
    if bytes.starts_with(&[0x89, b'P', b'N']) {
        let reader = png::Decoder::new(Cursor::new(bytes)).read_info().map_err(|e| e.to_string())?;
        return Ok([reader.info().height as usize, reader.info().width as usize]);
    }
    let mut decoder = zune_jpeg::JpegDecoder::new(zune_jpeg::zune_core::bytestream::ZCursor::new(bytes));
    decoder.decode_headers().map_err(|e| e.to_string())?;
    let (width, height) = decoder.dimensions().ok_or("states no size")?;
    Ok([height, width])
}

/// Height, width and samples of a pixel of a PNG file, and its bytes.
fn png_bytes(bytes: &[u8], changes: png::Transformations) -> Result<(usize, usize, usize, Vec<u8>), String> {
    let wrong = |e: png::DecodingError| e.to_string();
    let limits = png::Limits { bytes: 4 * PIXELS };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(changes);
    let mut reader = decoder.read_info().map_err(wrong)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check_pixels(height, width)?;
    let size = reader.output_buffer_size().ok_or("is larger than memory can be")?;
    justified(size, bytes.len().saturating_mul(MAX_INFLATE))?;
    let mut out = vec![0; size];
    let info = reader.next_frame(&mut out).map_err(wrong)?;
    out.truncate(info.buffer_size());
    Ok((height, width, info.color_type.samples(), out))
}

fn jpeg(bytes: &[u8]) -> Result<Image, String> {
    use zune_jpeg::zune_core::bytestream::ZCursor;
    use zune_jpeg::zune_core::colorspace::ColorSpace;
    use zune_jpeg::zune_core::options::DecoderOptions;
    let wrong = |e: zune_jpeg::errors::DecodeErrors| e.to_string();
    let mut decoder = zune_jpeg::JpegDecoder::new(ZCursor::new(bytes));
    decoder.decode_headers().map_err(wrong)?;
    let (width, height) = decoder.dimensions().ok_or("states no size")?;
    check_pixels(height, width)?;
    justified(height * width, bytes.len().saturating_mul(MAX_JPEG))?;
    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (colours, channels) = if grey { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    let options = DecoderOptions::default().jpeg_set_out_colorspace(colours);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let out = decoder.decode().map_err(wrong)?;
    Image::new(height, width, channels, &out)
}

/// Refuses a size that no file of these bytes can hold, before memory is taken for it.
fn justified(claimed: usize, most: usize) -> Result<(), String> {
    if claimed > most {
        return Err(format!(
            "is cut off or damaged: it claims {claimed} values, and can hold {most} at most"
        ));
    }
    Ok(())
}

fn check_pixels(height: usize, width: usize) -> Result<(), String> {
    match height.checked_mul(width) {
        Some(n) if n <= PIXELS => Ok(()),
        _ => Err(format!("has {height} × {width} pixels, more than the {PIXELS} that are decoded")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(height: usize, width: usize, channels: usize, values: &[f32]) -> Image {
        Image { height, width, channels, values: values.to_vec() }
    }

    fn png_of(image: &Image, color: png::ColorType) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, image.width as u32, image.height as u32);
        encoder.set_color(color);
        encoder.set_depth(png::BitDepth::Eight);
        let bytes: Vec<u8> = image.values.iter().map(|x| *x as u8).collect();
        encoder.write_header().unwrap().write_image_data(&bytes).unwrap();
        out
    }

    /// A grey image of 8 × 8 pixels of the value 128: JPEG's blocks have no coefficient but the first, 0.
    const GREY_JPEG: &[u8] = &[
        0xff, 0xd8, 0xff, 0xdb, 0, 67, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 0xff, 0xc0, 0, 11, 8, 0, 8, 0, 8, 1, 1, 0x11, 0, 0xff, 0xc4, 0, 20, 0, 1, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xc4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0, 0x3f, 0xff, 0xd9,
    ];

    #[test]
    fn masks_are_the_numbers_that_pixels_are_stored_as() {
        // Two bits a pixel, rows of three: a byte each.
        let mut coded = Vec::new();
        let mut encoder = png::Encoder::new(&mut coded, 3, 2);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Two);
        encoder.set_palette(vec![0, 0, 0, 9, 9, 9, 200, 0, 0, 1, 2, 3]);
        encoder.write_header().unwrap().write_image_data(&[0b00_01_10_00, 0b11_00_01_00]).unwrap();
        assert_eq!(numbers(&coded).unwrap(), ([2, 3], vec![0, 1, 2, 3, 0, 1]));
        let grey = png_of(&image(1, 3, 1, &[0.0, 255.0, 7.0]), png::ColorType::Grayscale);
        assert_eq!(numbers(&grey).unwrap(), ([1, 3], vec![0, 255, 7]));
        let said = numbers(&png_of(&image(1, 1, 3, &[1.0, 2.0, 3.0]), png::ColorType::Rgb)).unwrap_err();
        assert!(said.contains("Rgb") && said.contains("grey or has a palette"), "{said}");
        assert!(numbers(GREY_JPEG).unwrap_err().contains("is no PNG"));
        assert_eq!((size(GREY_JPEG), size(&coded)), (Ok([8, 8]), Ok([2, 3])));

        // Halved, and cut to the middle: the nearest pixels, as torchvision's NEAREST_EXACT takes them.
        let settings = "channels = 1\nheight = 2\nwidth = 2\nmasks = \"masks\"";
        let layout = Layout::new(toml::from_str(settings).unwrap()).unwrap();
        let mut out = Vec::new();
        let values: Vec<u8> = (0..32).collect();
        layout.append_mask([4, 8], &values, &mut out);
        // Rows 1 and 3; of four columns at 1, 3, 5, 7 the middle two.
        assert_eq!(out, [11, 13, 27, 29]);
    }

    #[test]
    fn pixels_come_back() {
        let rgb = image(2, 1, 3, &[255.0, 0.0, 10.0, 1.0, 2.0, 3.0]);
        assert_eq!(png(&png_of(&rgb, png::ColorType::Rgb)).unwrap(), rgb);
        let grey = jpeg(GREY_JPEG).unwrap();
        assert_eq!((grey.height, grey.width, grey.channels), (8, 8, 1));
        assert!(grey.values.iter().all(|x| *x == 128.0), "{:?}", grey.values);
        // By hand: 0.299 · 255 + 0.114 · 10 = 77.385; 0.299 + 1.174 + 0.342 = 1.815.
        assert_eq!(rgb.clone().in_channels(1).values, [77.0, 2.0]);
        let rgba = image(1, 1, 4, &[1.0, 2.0, 3.0, 99.0]);
        assert_eq!(rgba.in_channels(3).values, [1.0, 2.0, 3.0]);
        assert_eq!(image(1, 1, 2, &[7.0, 99.0]).in_channels(3).values, [7.0; 3]);
    }

    #[test]
    fn scaling_averages_and_keeps_constants() {
        // Half the size: the triangle over four pixels has the weights 1/8, 3/8, 3/8, 1/8.
        let line = image(1, 8, 1, &[0.0, 8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0]);
        let half = weights(8, 4, 1, 1);
        assert_eq!(half, [(1, vec![0.125, 0.375, 0.375, 0.125])]);
        let small = line.clone().covering(1, 4).unwrap();
        // The height asked for needs no scaling, the width a half: it covers, and its middle stays.
        assert_eq!((small.height, small.width), (1, 4));
        for (h, w) in [(3, 5), (7, 2), (1, 1), (9, 9)] {
            let flat = image(4, 6, 3, &[50.0; 72]).covering(h, w).unwrap();
            assert_eq!((flat.height, flat.width, flat.values.len()), (h, w, h * w * 3));
            assert!(flat.values.iter().all(|x| (x - 50.0).abs() < 1e-4), "{h} × {w}");
        }
        // A column scaled to a wide image would have rows of the new width first, one for each of its own.
        let column = image(1 << 20, 1, 1, &vec![1.0; 1 << 20]);
        assert!(column.covering(256, 256).unwrap_err().contains("too narrow"));
    }

    #[test]
    fn an_image_of_another_kind_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "channels = 1\nheight = 1\nwidth = 1").unwrap();
        std::fs::write(dir.path().join("a.png"), "").unwrap();
        std::fs::write(dir.path().join("notes.txt"), "").unwrap();
        let images = Images::open(dir.path()).unwrap();
        assert_eq!(images.len(), 1);
        assert!(
            images.remark.unwrap().ends_with("1 entry that is no image of it was passed over: notes.txt")
        );
        std::fs::remove_file(dir.path().join("notes.txt")).unwrap();
        assert_eq!(Images::open(dir.path()).unwrap().remark, None);
        std::fs::write(dir.path().join("b.WebP"), "").unwrap();
        let said = Images::open(dir.path()).map(drop).unwrap_err().to_string();
        assert!(said.contains("b.WebP") && said.contains("convert it to PNG or JPEG"), "{said}");
    }

    #[test]
    fn a_folder_is_a_data_set() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let write = |name: &str, bytes: &[u8]| {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        let e = Images::open(root).unwrap_err().to_string();
        assert!(e.contains("images.toml") && e.contains("channels"), "{e}");
        write("images.toml", b"channels = 1\nheight = 1\nwidth = 2\nmean = [0.5]\nstd = [0.25]");
        assert!(Images::open(root).unwrap_err().to_string().contains("holds no"));
        let pixels = |a: f32, b: f32| png_of(&image(1, 2, 1, &[a, b]), png::ColorType::Grayscale);
        write("b/2.png", &pixels(0.0, 255.0));
        write("b/1.PNG", &pixels(255.0, 255.0));
        write("a/x.png", &pixels(51.0, 0.0));
        write("a/notes.txt", b"");
        // Beside the classes' folders, and below them: nothing of it is a sample.
        write("stray.png", &pixels(1.0, 2.0));
        write("b/more/3.png", &pixels(1.0, 2.0));
        let images = Images::open(root).unwrap();
        assert_eq!((images.len(), images.labels.as_deref()), (3, Some(&[0, 1, 1][..])));
        let said = images.remark.clone().unwrap();
        assert!(said.contains("3 entries") && said.contains("stray.png, a/notes.txt, b/more"), "{said}");
        let values = |images: &Images, i: usize| {
            let mut out = Vec::new();
            images.append(i, &mut out).unwrap();
            out.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect::<Vec<_>>()
        };
        // (51 / 255 − 0.5) / 0.25 = −1.2; 0 gives −2, 255 gives 2.
        assert!(values(&images, 0).iter().zip([-1.2f32, -2.0]).all(|(a, b)| (a - b).abs() < 1e-6));
        assert_eq!((values(&images, 1), values(&images, 2)), (vec![2.0, 2.0], vec![-2.0, 2.0]));
        // The order that the settings name; a folder they do not name is refused.
        let named = |classes: &str| {
            write(
                "images.toml",
                format!("channels = 1\nheight = 1\nwidth = 2\nclasses = {classes}").as_bytes(),
            );
            Images::open(root)
        };
        assert_eq!(named("['b', 'c', 'a']").unwrap().labels.unwrap(), [2, 0, 0]);
        assert!(named("['b']").unwrap_err().to_string().contains("\"a\""));
        named("['a', 'b']").unwrap();
        // A damaged image is named.
        write("a/x.png", &pixels(51.0, 0.0)[..40]);
        let e = Images::open(root).unwrap().append(0, &mut Vec::new()).unwrap_err();
        assert!(e.code() == "HW-R002" && e.to_string().contains("x.png"), "{e}");
        for wrong in [
            "channels = 2\nheight = 1\nwidth = 1",
            "channels = 1",
            "channels = 3\nheight = 1\nwidth = 1\nmean = [1, 2]",
            "channels = 1\nheight = 1\nwidth = 1\nstd = [0]",
        ] {
            write("images.toml", wrong.as_bytes());
            assert!(Images::open(root).unwrap_err().to_string().contains("images.toml"), "{wrong}");
        }
    }

    #[test]
    fn any_bytes_are_an_image_or_an_error() {
        let whole = [png_of(&image(3, 4, 3, &[9.0; 36]), png::ColorType::Rgb), GREY_JPEG.to_vec()];
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for i in 0..4000 {
            let mut bytes = whole[i % 2].clone();
            for _ in 0..1 + random() % 4 {
                let at = random() % bytes.len();
                bytes[at] = random() as u8;
            }
            if random() % 4 == 0 {
                bytes.truncate(random() % bytes.len());
            }
            if let Ok(image) = if i % 2 == 0 { png(&bytes) } else { jpeg(&bytes) } {
                assert_eq!(image.values.len(), image.height * image.width * image.channels);
            }
        }
    }
}
