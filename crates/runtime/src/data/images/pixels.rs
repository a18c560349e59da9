//! The pixels of PNG and JPEG files: decoded, in grey or in colour, and scaled.

use std::io::Cursor;

/// Pixels of the largest image that is decoded.
pub(super) const PIXELS: usize = 1 << 27;
/// Deflate cannot expand more than this many times: a PNG file that claims more is no image.
const MAX_INFLATE: usize = 1032;
/// A byte of a JPEG file is at most so many pixels: each block of 64 takes a bit of its scan, if only for the
/// difference of its mean.
const MAX_JPEG: usize = 512;

/// An image: rows of pixels, channels innermost, values from 0 to 255.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Image {
    height: usize,
    width: usize,
    pub channels: usize,
    pub values: Vec<f32>,
}

impl Image {
    /// Decodes a file by what it begins with.
    ///
    /// # Errors
    /// That it is damaged, of another kind, or too large.
    pub fn decode(bytes: &[u8]) -> Result<Image, String> {
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
    pub fn in_channels(self, channels: usize) -> Image {
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
    pub fn covering(self, height: usize, width: usize) -> Result<Image, String> {
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

/// For height and width, the size that an image of a size is scaled to so that it covers another one, and
/// what is cut off before its middle.
pub(super) fn placed(have: [usize; 2], size: [usize; 2]) -> [(usize, usize); 2] {
    let scale = (size[0] as f64 / have[0] as f64).max(size[1] as f64 / have[1] as f64);
    let scaled = |n: usize, least: usize| ((n as f64 * scale).round() as usize).max(least);
    let (tall, wide) = (scaled(have[0], size[0]), scaled(have[1], size[1]));
    [(tall, (tall - size[0]) / 2), (wide, (wide - size[1]) / 2)]
}

fn png(bytes: &[u8]) -> Result<Image, String> {
    let (height, width, samples, out) = png_bytes(bytes, png::Transformations::normalize_to_color8())?;
    Image::new(height, width, samples, &out)
}

/// Height and width that a file of an image claims.
pub(super) fn size(bytes: &[u8]) -> Result<[usize; 2], String> {
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
pub(super) fn png_bytes(
    bytes: &[u8],
    changes: png::Transformations,
) -> Result<(usize, usize, usize, Vec<u8>), String> {
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
pub(super) mod tests {
    use super::*;

    fn image(height: usize, width: usize, channels: usize, values: &[f32]) -> Image {
        Image { height, width, channels, values: values.to_vec() }
    }

    pub fn png_of(image: &Image, color: png::ColorType) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, image.width as u32, image.height as u32);
        encoder.set_color(color);
        encoder.set_depth(png::BitDepth::Eight);
        let bytes: Vec<u8> = image.values.iter().map(|x| *x as u8).collect();
        encoder.write_header().unwrap().write_image_data(&bytes).unwrap();
        out
    }

    /// A PNG file of the bytes of rows of pixels.
    pub fn png_file(height: usize, width: usize, color: png::ColorType, bytes: &[u8]) -> Vec<u8> {
        let channels = color.samples();
        png_of(&Image::new(height, width, channels, bytes).unwrap(), color)
    }

    /// A grey image of 8 × 8 pixels of the value 128: JPEG's blocks have no coefficient but the first, 0.
    pub const GREY_JPEG: &[u8] = &[
        0xff, 0xd8, 0xff, 0xdb, 0, 67, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 0xff, 0xc0, 0, 11, 8, 0, 8, 0, 8, 1, 1, 0x11, 0, 0xff, 0xc4, 0, 20, 0, 1, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xc4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0xff, 0xda, 0, 8, 1, 1, 0, 0, 63, 0, 0x3f, 0xff, 0xd9,
    ];

    #[test]
    fn pixels_come_back() {
        let rgb = image(2, 1, 3, &[255.0, 0.0, 10.0, 1.0, 2.0, 3.0]);
        assert_eq!(png(&png_of(&rgb, png::ColorType::Rgb)).unwrap(), rgb);
        let grey = jpeg(GREY_JPEG).unwrap();
        assert_eq!((grey.height, grey.width, grey.channels), (8, 8, 1));
        assert_eq!(size(GREY_JPEG), Ok([8, 8]));
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
        // The requested height needs no scaling, the width a half: it covers, and its middle stays.
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
