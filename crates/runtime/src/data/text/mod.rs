//! Texts as a data set: lines of `.jsonl` files and plain text, tokenized when the data set is opened.
//!
//! A folder is such a data set if it has a file `text.toml`. Tokens are those of a `tokenizer.json` as
//! Hugging Face's `tokenizers` saves it, or the text's bytes. Samples are windows of all texts joined
//! (`packed`), as language models are trained on, or one text each, padded to the same length.

mod columns;
mod pattern;
mod tokens;

use super::{Column, Lengths};
use crate::error::{Error, Result};
use columns::{Output, label_column};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokens::Tokens;

/// The file that makes a folder a data set of texts.
pub(super) const FILE: &str = "text.toml";

/// Bytes of the largest file that is read.
const BYTES: u64 = 1 << 31;
/// Texts that are tokenized at a time.
const TOGETHER: usize = 1024;

/// Contents of `text.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextSettings {
    /// A `tokenizer.json`, from the folder; or "bytes": each byte of the text is a token.
    tokenizer: String,
    /// Tokens of a sample.
    length: usize,
    /// Default: the folder's `.jsonl` and `.txt`, sorted.
    files: Option<Vec<String>>,
    /// Fields of a line of `.jsonl`; two make a pair. Default: "text".
    text: Option<OneOrMore>,
    /// The field with a sample's label.
    label: Option<String>,
    /// Names of the classes in order. Default: those that occur, sorted.
    classes: Option<Vec<String>>,
    /// All texts joined and cut into windows, rather than one text a sample.
    #[serde(default)]
    packed: bool,
    /// The token after each text of a packed data set.
    end: Option<Token>,
    /// The token that fills samples up.
    pad: Option<Token>,
    /// Longer texts lose their end, rather than being refused.
    #[serde(default)]
    truncate: bool,
    /// The tokens that the tokenizer puts around a text. Default: true, false if packed.
    special_tokens: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// A token as people name it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Token {
    Id(i32),
    Name(String),
}

/// File and line that each sample comes from.
#[derive(Debug)]
pub(super) struct Places {
    files: Vec<PathBuf>,
    of: Vec<(u32, u32)>,
}

impl Places {
    /// A sample's place, for messages.
    pub fn place(&self, sample: usize) -> Option<String> {
        let (file, line) = *self.of.get(sample)?;
        Some(format!("line {line} of {}", self.files[file as usize].display()))
    }
}

/// The columns of a folder of texts.
pub(super) struct Texts {
    pub columns: Vec<Column>,
    /// Names of the classes in the order of their labels.
    pub classes: Option<Vec<String>>,
    /// None of a packed data set, whose samples have no place of their own.
    pub places: Option<Places>,
    /// Likewise.
    pub lengths: Option<Lengths>,
}

/// A text, or a pair of texts.
struct Sample {
    text: String,
    pair: Option<String>,
    label: Option<Value>,
    place: (u32, u32),
}

impl Texts {
    /// Reads and tokenizes all texts of a folder.
    ///
    /// # Errors
    /// `Data`, naming file and line, for what is not as `text.toml` says; `Io`.
    pub fn open(folder: &Path) -> Result<Texts> {
        let file = folder.join(FILE);
        let refuse = |m: String| Error::data(&file, m);
        let settings = std::fs::read_to_string(&file).map_err(Error::io(&file))?;
        let settings: TextSettings = toml::from_str(&settings).map_err(|e| refuse(e.to_string()))?;
        settings.check().map_err(refuse)?;
        let tokens = Tokens::open(folder, &settings)?;
        let id = |name: &str, token: &Option<Token>| {
            token.as_ref().map(|t| tokens.id(t).map_err(|m| refuse(format!("`{name}` {m}")))).transpose()
        };
        let (end, pad) = (id("end", &settings.end)?, id("pad", &settings.pad)?);

        let files = settings.files(folder)?;
        let mut out = Output::new(settings.packed, settings.length, pad);
        let mut places = Vec::new();
        let mut labels = Vec::new();
        for (number, path) in files.iter().enumerate() {
            let mut samples = samples(path, number as u32, &settings)?.into_iter();
            loop {
                let some: Vec<Sample> = samples.by_ref().take(TOGETHER).collect();
                if some.is_empty() {
                    break;
                }
                let encoded = tokens.encode(&some, &settings).map_err(|m| Error::data(path, m))?;
                for (sample, encoded) in some.into_iter().zip(encoded) {
                    let here = |m: String| Error::data(path, format!("line {}: {m}", sample.place.1));
                    match settings.packed {
                        true => out.join(&encoded, end),
                        false => out.push(&encoded),
                    }
                    .map_err(here)?;
                    places.push(sample.place);
                    labels.extend(sample.label);
                }
            }
        }
        let samples = out.samples();
        if samples == 0 {
            let need =
                if settings.packed { format!(" of {} tokens", settings.length) } else { String::new() };
            return Err(refuse(format!("the texts hold no sample{need}")));
        }
        let places = (!settings.packed).then_some(Places { files, of: places });
        let mut classes = settings.classes.clone();
        let labels = match settings.label {
            None => None,
            Some(_) => Some(label_column(labels, &mut classes, places.as_ref()).map_err(refuse)?),
        };
        let lengths = out.lengths().map_err(refuse)?;
        let columns = out.columns(samples, labels);
        let of_tokens = |c: &&Column| c.ty.shape.rank() == 2;
        let lengths = lengths.map(|of| Lengths {
            of: Arc::new(of),
            columns: columns.iter().filter(of_tokens).map(|c| c.name.clone()).collect(),
        });
        Ok(Texts { columns, classes, places, lengths })
    }
}

impl TextSettings {
    fn check(&self) -> Result<(), String> {
        let fields = self.fields();
        if !(1..=1 << 24).contains(&self.length) {
            return Err(format!("`length` must be from 1 to {}", 1 << 24));
        }
        if fields.is_empty() || fields.len() > 2 {
            return Err("`text` must name one field, or two for pairs".into());
        }
        if self.packed {
            let odd = [
                ("label", self.label.is_some()),
                ("classes", self.classes.is_some()),
                ("pad", self.pad.is_some()),
                ("truncate", self.truncate),
                ("text with two fields", fields.len() == 2),
            ];
            if let Some((name, _)) = odd.iter().find(|o| o.1) {
                return Err(format!(
                    "`{name}` does not go with `packed`, whose samples are windows of all texts"
                ));
            }
        } else if self.end.is_some() {
            return Err("`end` goes with `packed` only: the tokenizer's own tokens end single texts".into());
        }
        if self.classes.is_some() && self.label.is_none() {
            return Err("`classes` names the values of a field: say which by `label`".into());
        }
        Ok(())
    }

    fn fields(&self) -> Vec<&str> {
        match &self.text {
            None => vec!["text"],
            Some(OneOrMore::One(one)) => vec![one],
            Some(OneOrMore::More(more)) => more.iter().map(String::as_str).collect(),
        }
    }

    fn special(&self) -> bool {
        self.special_tokens.unwrap_or(!self.packed)
    }

    fn files(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        let text = |p: &Path| p.is_file() && p.extension().is_some_and(|e| e == "jsonl" || e == "txt");
        let files: Vec<PathBuf> = match &self.files {
            Some(files) => files.iter().map(|f| folder.join(f)).collect(),
            None => super::entries(folder)?.into_iter().filter(|p| text(p)).collect(),
        };
        match files.iter().find(|f| !text(f)) {
            _ if files.is_empty() => Err(Error::data(folder, "holds no .jsonl and no .txt")),
            Some(file) if !file.is_file() => Err(Error::data(file, format!("is no file; {FILE} names it"))),
            Some(file) => Err(Error::data(file, "is neither a .jsonl nor a .txt")),
            None => Ok(files),
        }
    }
}

/// A file's texts: lines, or the whole of a plain text of a packed data set.
fn samples(path: &Path, file: u32, settings: &TextSettings) -> Result<Vec<Sample>> {
    let size = std::fs::metadata(path).map_err(Error::io(path))?.len();
    if size > BYTES {
        return Err(Error::data(path, format!("has more than {BYTES} bytes: split it into several files")));
    }
    let content = std::fs::read(path).map_err(Error::io(path))?;
    let content = String::from_utf8(content).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::data(path, format!("is not UTF-8: see its byte {at}"))
    })?;
    let json = path.extension().is_some_and(|e| e == "jsonl");
    if !json && settings.label.is_some() {
        return Err(Error::data(path, "is plain text, which has no field for a `label`: use .jsonl"));
    }
    if !json && settings.fields().len() == 2 {
        return Err(Error::data(path, "is plain text, which has no pairs: use .jsonl"));
    }
    if !json && settings.packed {
        return Ok(vec![Sample { text: content, pair: None, label: None, place: (file, 1) }]);
    }
    let lines = content.lines().zip(1u32..).filter(|(line, _)| !line.trim().is_empty());
    lines
        .map(|(line, number)| {
            let place = (file, number);
            if !json {
                return Ok(Sample { text: line.into(), pair: None, label: None, place });
            }
            let refuse = |m: String| Error::data(path, format!("line {number}: {m}"));
            let mut fields: Map<String, Value> =
                serde_json::from_str(line).map_err(|e| refuse(format!("is no JSON object: {e}")))?;
            let mut texts = settings.fields().into_iter().map(|name| match fields.get(name) {
                Some(Value::String(text)) => Ok(text.clone()),
                Some(other) => Err(refuse(format!("`{name}` is {other}, and no string"))),
                None => {
                    let have: Vec<&str> = fields.keys().map(String::as_str).take(12).collect();
                    let have = have.join(", ");
                    Err(refuse(format!("has no field `{name}`, but: {have}; `text` in {FILE} names it")))
                }
            });
            let text = texts.next().unwrap_or_else(|| Ok(String::new()))?;
            let pair = texts.next().transpose()?;
            drop(texts);
            let label = settings.label.as_deref().map(|name| {
                fields.remove(name).ok_or_else(|| refuse(format!("has no field `{name}`, its label")))
            });
            Ok(Sample { text, pair, label: label.transpose()?, place })
        })
        .collect()
}

#[cfg(test)]
mod tests;
