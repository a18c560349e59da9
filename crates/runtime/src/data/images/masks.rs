//! Masks beside images: PNG files that hold the class of each pixel.

use super::pixels::{placed, png_bytes};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Cursor;
use std::path::{Path, PathBuf};

/// The mask of each image: the PNG file of its name in the folder of masks.
///
/// # Errors
/// `Data` for an image without a mask, and for two that would share one, as `a.png` and `a.jpg`.
pub(super) fn of_images(masks: &Path, images: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut known: BTreeMap<&OsStr, &Path> = BTreeMap::new();
    let mut found = Vec::with_capacity(images.len());
    for image in images {
        let stem = image.file_stem().unwrap_or_default();
        let mut name = stem.to_os_string();
        name.push(".png");
        let mask = masks.join(name);
        if let Some(other) = known.insert(stem, image) {
            let message = format!(
                "and {} would both have the mask {}: rename one of the images, and give it a mask of its own",
                other.display(),
                mask.display()
            );
            return Err(Error::data(image, message));
        }
        if !mask.is_file() {
            return Err(Error::data(image, format!("has no mask {}", mask.display())));
        }
        found.push(mask);
    }
    Ok(found)
}

/// Appends the classes of the pixels of a mask of the size `have`: the nearest pixel's where the mask is
/// scaled, as `Resize(interpolation=NEAREST_EXACT)`, over the part that is taken of an image of that size.
pub(super) fn append(have: [usize; 2], values: &[u8], [height, width]: [usize; 2], out: &mut Vec<u8>) {
    let [(tall, top), (wide, left)] = placed(have, [height, width]);
    let nearest = |i: usize, from: usize, to: usize| {
        ((i as f64 + 0.5) * from as f64 / to as f64).floor().min((from - 1) as f64) as usize
    };
    for row in top..top + height {
        let row = nearest(row, have[0], tall) * have[1];
        out.extend((left..left + width).map(|column| values[row + nearest(column, have[1], wide)]));
    }
}

/// Height and width of a PNG file without colours, and the number that each pixel is stored as: its grey
/// value, or the number of its colour in a palette.
pub(super) fn numbers(bytes: &[u8]) -> std::result::Result<([usize; 2], Vec<u8>), String> {
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

#[cfg(test)]
mod tests {
    use super::super::pixels::size;
    use super::super::pixels::tests::{GREY_JPEG, png_file};
    use super::*;

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
        let grey = png_file(1, 3, png::ColorType::Grayscale, &[0, 255, 7]);
        assert_eq!(numbers(&grey).unwrap(), ([1, 3], vec![0, 255, 7]));
        let said = numbers(&png_file(1, 1, png::ColorType::Rgb, &[1, 2, 3])).unwrap_err();
        assert!(said.contains("Rgb") && said.contains("grey or has a palette"), "{said}");
        assert!(numbers(GREY_JPEG).unwrap_err().contains("is no PNG"));
        assert_eq!(size(&coded), Ok([2, 3]));

        // Halved, and cut to the middle: the nearest pixels, as torchvision's NEAREST_EXACT takes them.
        let mut out = Vec::new();
        let values: Vec<u8> = (0..32).collect();
        append([4, 8], &values, [2, 2], &mut out);
        // Rows 1 and 3; of four columns at 1, 3, 5, 7 the middle two.
        assert_eq!(out, [11, 13, 27, 29]);
    }

    #[test]
    fn each_image_has_a_mask_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let (masks, images) = (dir.path().join("masks"), ["photos/a.png", "photos/b.jpg"].map(file));
        let made = ["masks/a.png", "masks/b.png"].map(file);
        assert_eq!(of_images(&masks, &images).unwrap(), made);
        let other = file("photos/a.jpg");
        let said = of_images(&masks, &[other, images[0].clone()]).unwrap_err().to_string();
        for words in ["photos/a.jpg", "photos/a.png", "would both have the mask", "masks/a.png"] {
            assert!(said.contains(words), "{said}");
        }
    }
}
