//! Images in folders as a data set: PNG and JPEG files, decoded when a batch needs them.
//!
//! A folder is such a data set if it has a file `images.toml`. Each subfolder is a class, as for
//! torchvision's `ImageFolder`; without subfolders there are no labels. Values are those of `ToTensor` and
//! `Normalize`: `(byte / 255 − mean) / std`, in the layout `[channels, height, width]`. With `masks`, a
//! folder of PNG files has the class of each pixel.
//!
//! An image of another size is scaled so that it just covers the requested size, and its middle is taken. The
//! filter is a triangle as wide as a pixel of the smaller grid, as `Resize(antialias=True)` has it, but in
//! one rounding rather than two: values differ from PyTorch's by about one step of 1/255.

mod masks;
mod pixels;

use crate::error::{Error, Result};
use pixels::{Image, PIXELS, size};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The file that makes a folder a data set.
pub(super) const FILE: &str = "images.toml";

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
    /// Folder with the mask of each image, a PNG file of the image's name whose grey values or colour numbers
    /// are the classes of pixels. The other subfolder then holds the images, and is no class.
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

    /// Lists images and the mask of each: those of the one subfolder beside the masks', or of the folder
    /// itself.
    fn with_masks(
        folder: &Path,
        layout: Layout,
        masks: &str,
        folders: Vec<PathBuf>,
        beside: Vec<PathBuf>,
    ) -> Result<Images> {
        let place = folder.join(masks);
        if !place.is_dir() {
            let message = format!("`masks` is {masks:?}, and there is no folder {}", place.display());
            return Err(Error::data(&folder.join(FILE), message));
        }
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
        let masks = masks::of_images(&place, &files)?;
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
        let (pixels, values) = masks::numbers(&mask).map_err(refuse)?;
        let have = size(&read(image)?).map_err(|m| Error::data(image, m))?;
        if pixels != have {
            let [height, width] = pixels;
            let message =
                format!("has {height} × {width} pixels, {} has {} × {}", image.display(), have[0], have[1]);
            return Err(refuse(message));
        }
        let [_, height, width] = self.shape();
        masks::append(pixels, &values, [height, width], out);
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

#[cfg(test)]
mod tests {
    use super::pixels::tests::png_file;
    use super::*;

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
    fn a_folder_of_masks_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let settings = "channels = 1\nheight = 1\nwidth = 1\nmasks = \"nomask\"";
        std::fs::write(dir.path().join(FILE), settings).unwrap();
        std::fs::create_dir(dir.path().join("photos")).unwrap();
        std::fs::write(dir.path().join("photos/a.png"), "").unwrap();
        let said = Images::open(dir.path()).unwrap_err().to_string();
        let folder = dir.path().join("nomask").display().to_string();
        assert!(said.contains(FILE) && said.contains(&format!("there is no folder {folder}")), "{said}");
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
        let pixels = |a: u8, b: u8| png_file(1, 2, png::ColorType::Grayscale, &[a, b]);
        write("b/2.png", &pixels(0, 255));
        write("b/1.PNG", &pixels(255, 255));
        write("a/x.png", &pixels(51, 0));
        write("a/notes.txt", b"");
        // Beside the classes' folders, and below them: nothing of it is a sample.
        write("stray.png", &pixels(1, 2));
        write("b/more/3.png", &pixels(1, 2));
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
        write("a/x.png", &pixels(51, 0)[..40]);
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
}
