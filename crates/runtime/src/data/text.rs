//! Texts as a data set: lines of `.jsonl` files and plain text, tokenized when the data set is opened.
//!
//! A folder is such a data set if it has a file `text.toml`. Tokens are those of a `tokenizer.json` as Hugging
//! Face's `tokenizers` saves it, or the text's bytes. Samples are windows of all texts joined (`packed`), as
//! language models are trained on, or one text each, padded to the same length.

use super::{Bytes, Column, Lengths};
use crate::error::{Error, Result};
use headwater_core::{DType, TensorType};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::{Encoding, Tokenizer, TruncationParams};

/// The file that makes a folder a data set of texts.
pub(super) const FILE: &str = "text.toml";

/// Label of a position that has none: `ignore_index` of `cross_entropy`.
const IGNORED: i32 = -100;
/// Bytes of the largest file that is read.
const BYTES: u64 = 1 << 31;
/// Elements of the largest column.
const ELEMENTS: usize = 1 << 31;
/// Texts that are tokenized at a time.
const TOGETHER: usize = 1024;

/// Contents of `text.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
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

/// Makes tokens of texts.
enum Tokens {
    Bytes,
    Hub(Box<Tokenizer>),
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
        let settings: Settings = toml::from_str(&settings).map_err(|e| refuse(e.to_string()))?;
        settings.check().map_err(refuse)?;
        let tokens = Tokens::open(folder, &settings)?;
        let id = |name: &str, token: &Option<Token>| {
            token.as_ref().map(|t| tokens.id(t).map_err(|m| refuse(format!("`{name}` {m}")))).transpose()
        };
        let (end, pad) = (id("end", &settings.end)?, id("pad", &settings.pad)?);

        let files = settings.files(folder)?;
        let mut out = Output { packed: settings.packed, length: settings.length, pad, ..Output::default() };
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

impl Settings {
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
fn samples(path: &Path, file: u32, settings: &Settings) -> Result<Vec<Sample>> {
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

/// The result of `f`; a panic of the `tokenizers` crate, which some tokenizers cause, is a message.
fn unless_panic<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    let message = "is no usable tokenizer: the `tokenizers` library stopped at it; save it again with the version of \
                   Hugging Face's transformers that made it";
    catch_unwind(AssertUnwindSafe(f)).map_err(|_| message.into())
}

/// A text's tokens, with the number of the text of a pair that each belongs to.
#[derive(Default)]
struct Encoded {
    ids: Vec<i32>,
    types: Vec<i32>,
}

impl Tokens {
    fn open(folder: &Path, settings: &Settings) -> Result<Tokens> {
        if settings.tokenizer == "bytes" {
            return Ok(Tokens::Bytes);
        }
        let path = folder.join(&settings.tokenizer);
        let refuse = |m: String| Error::data(&path, m);
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let read = unless_panic(|| Tokenizer::from_bytes(&bytes)).map_err(refuse)?;
        let mut tokenizer = read
            .map_err(|e| refuse(format!("is no tokenizer as Hugging Face saves it (tokenizer.json): {e}")))?;
        // Lengths are settings of the data set, whatever the file was saved with.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|e| refuse(e.to_string()))?;
        if settings.truncate {
            let empty = unless_panic(|| match settings.fields().len() {
                2 => tokenizer.encode(("", ""), settings.special()),
                _ => tokenizer.encode("", settings.special()),
            });
            let empty = empty.map_err(refuse)?;
            let added = empty.map_err(|e| refuse(e.to_string()))?.len();
            if added >= settings.length {
                let length = settings.length;
                return Err(refuse(format!(
                    "puts {added} tokens around a text: `length` {length} is too small"
                )));
            }
            let params = TruncationParams { max_length: settings.length, ..Default::default() };
            tokenizer.with_truncation(Some(params)).map_err(|e| refuse(e.to_string()))?;
        }
        Ok(Tokens::Hub(Box::new(tokenizer)))
    }

    fn id(&self, token: &Token) -> Result<i32, String> {
        match (token, self) {
            (Token::Id(id), _) if *id >= 0 => Ok(*id),
            (Token::Id(id), _) => Err(format!("is {id}, which is no token")),
            (Token::Name(name), Tokens::Bytes) if name.len() == 1 => Ok(name.as_bytes()[0] as i32),
            (Token::Name(name), Tokens::Bytes) => Err(format!("{name:?} is not one byte")),
            (Token::Name(name), Tokens::Hub(t)) => t
                .token_to_id(name)
                .and_then(|id| i32::try_from(id).ok())
                .ok_or_else(|| format!("{name:?} is no token of the tokenizer")),
        }
    }

    fn encode(&self, samples: &[Sample], settings: &Settings) -> Result<Vec<Encoded>, String> {
        let Tokens::Hub(tokenizer) = self else {
            let cut = if settings.truncate { settings.length } else { usize::MAX };
            let bytes = |s: &Sample| {
                let texts = [Some(&s.text), s.pair.as_ref()].into_iter().flatten().zip(0..);
                let tokens = texts.flat_map(|(text, which)| text.bytes().map(move |b| (b as i32, which)));
                let (ids, types) = tokens.take(cut).unzip();
                Encoded { ids, types }
            };
            return Ok(samples.iter().map(bytes).collect());
        };
        let pairs = settings.fields().len() == 2;
        let special = settings.special();
        let encode = || {
            if pairs {
                let all =
                    samples.iter().map(|s| (s.text.as_str(), s.pair.as_deref().unwrap_or(""))).collect();
                tokenizer.encode_batch::<(&str, &str)>(all, special)
            } else {
                tokenizer.encode_batch(samples.iter().map(|s| s.text.as_str()).collect::<Vec<_>>(), special)
            }
        };
        let encoded = unless_panic(encode)
            .map_err(|m| format!("could not be tokenized: {} {m}", settings.tokenizer))?;
        let number = |&n: &u32| i32::try_from(n).map_err(|_| format!("a token is {n}, more than 2^31"));
        let convert = |e: Encoding| {
            let ids = e.get_ids().iter().map(number).collect::<Result<_, _>>()?;
            let types = e.get_type_ids().iter().map(number).collect::<Result<_, _>>()?;
            Ok(Encoded { ids, types })
        };
        encoded.map_err(|e| format!("could not be tokenized: {e}"))?.into_iter().map(convert).collect()
    }
}

/// Samples as they are made.
#[derive(Default)]
struct Output {
    packed: bool,
    length: usize,
    pad: Option<i32>,
    /// All tokens one after the other, padding included.
    ids: Vec<i32>,
    types: Vec<i32>,
    /// Tokens of each sample before padding.
    sizes: Vec<usize>,
}

impl Output {
    /// Appends a text of a packed data set.
    fn join(&mut self, text: &Encoded, end: Option<i32>) -> Result<(), String> {
        self.room(text.ids.len() + 1)?;
        self.ids.extend(&text.ids);
        self.ids.extend(end);
        Ok(())
    }

    /// Appends a sample.
    fn push(&mut self, text: &Encoded) -> Result<(), String> {
        let have = text.ids.len();
        let Some(missing) = self.length.checked_sub(have) else {
            let length = self.length;
            return Err(format!(
                "the text has {have} tokens, more than `length` {length}: raise it, or set `truncate = true` in {FILE}"
            ));
        };
        self.room(self.length)?;
        let pad = match (missing, self.pad) {
            (0, _) => 0,
            (_, Some(pad)) => pad,
            (_, None) => {
                let length = self.length;
                return Err(format!(
                    "the text has {have} tokens, fewer than `length` {length}: name the token that fills it up by `pad` in {FILE}"
                ));
            }
        };
        self.ids.extend(&text.ids);
        self.ids.extend(std::iter::repeat_n(pad, missing));
        self.types.extend(&text.types);
        self.types.extend(std::iter::repeat_n(0, missing));
        self.sizes.push(have);
        Ok(())
    }

    fn room(&self, more: usize) -> Result<(), String> {
        match self.ids.len().checked_add(more) {
            Some(n) if n <= ELEMENTS => Ok(()),
            _ => Err(format!(
                "the texts have more than {ELEMENTS} tokens in all: make several data sets of them"
            )),
        }
    }

    fn samples(&self) -> usize {
        self.ids.len() / self.length
    }

    /// Tokens of each sample; none of a packed data set.
    fn lengths(&self) -> Result<Option<Vec<u32>>, String> {
        let length = |&n: &usize| u32::try_from(n).map_err(|_| format!("a text has {n} tokens"));
        (!self.packed).then(|| self.sizes.iter().map(length).collect()).transpose()
    }

    fn columns(self, samples: usize, labels: Option<Column>) -> Vec<Column> {
        let length = self.length;
        let elements = samples * length;
        let of = |name: &str, values: &mut dyn Iterator<Item = i32>| {
            let mut bytes = Vec::with_capacity(elements * 4);
            values.for_each(|v| bytes.extend(v.to_le_bytes()));
            column(name, TensorType::new(DType::I32, [samples, length]), bytes)
        };
        let ids = &self.ids[..elements];
        // True of a position that holds a token, and no padding.
        let real = |at: usize| self.packed || at % length < self.sizes[at / length];
        let mut columns = vec![of("input_ids", &mut ids.iter().copied())];
        let mask = (0..elements).map(|at| real(at) as u8).collect();
        columns.push(column("attention_mask", TensorType::new(DType::Bool, [samples, length]), mask));
        if self.types.iter().any(|t| *t != 0) {
            columns.push(of("token_type_ids", &mut self.types.iter().copied()));
        }
        if let Some(labels) = labels {
            columns.push(labels);
            return columns;
        }
        columns.push(of("labels", &mut (0..elements).map(|at| if real(at) { ids[at] } else { IGNORED })));
        // The token that follows: in the next window, if that is packed.
        let next = |at: usize| {
            let inside = self.packed || !(at + 1).is_multiple_of(length) && real(at + 1);
            if inside { self.ids.get(at + 1).copied().unwrap_or(IGNORED) } else { IGNORED }
        };
        columns.push(of("next_ids", &mut (0..elements).map(next)));
        columns
    }
}

fn column(name: &str, ty: TensorType, bytes: Vec<u8>) -> Column {
    Column { name: name.into(), ty, bytes: Bytes::Owned(Arc::new(bytes)) }
}

/// Labels as a column: integers as they are, numbers as f32, strings by their place among the classes.
fn label_column(
    labels: Vec<Value>,
    classes: &mut Option<Vec<String>>,
    places: Option<&Places>,
) -> Result<Column, String> {
    let place = |at: usize| places.and_then(|p| p.place(at)).unwrap_or_else(|| format!("sample {at}"));
    let n = labels.len();
    if labels.iter().all(Value::is_string) {
        let names: Vec<&str> = labels.iter().filter_map(Value::as_str).collect();
        let known = classes.get_or_insert_with(|| {
            let all: std::collections::BTreeSet<&str> = names.iter().copied().collect();
            all.into_iter().map(String::from).collect()
        });
        let number: std::collections::HashMap<&str, i64> =
            known.iter().map(String::as_str).zip(0..).collect();
        let mut bytes = Vec::with_capacity(n * 8);
        for (at, name) in names.iter().enumerate() {
            let label = number.get(name).ok_or_else(|| {
                format!("the label of {} is {name:?}, but `classes` has no such name", place(at))
            })?;
            bytes.extend(label.to_le_bytes());
        }
        return Ok(column("labels", TensorType::new(DType::I64, [n]), bytes));
    }
    if classes.is_some() {
        return Err("`classes` names labels that are strings, these are not".into());
    }
    if labels.iter().all(Value::is_i64) {
        let bytes = labels.iter().filter_map(Value::as_i64).flat_map(i64::to_le_bytes).collect();
        return Ok(column("labels", TensorType::new(DType::I64, [n]), bytes));
    }
    if let Some(at) = labels.iter().position(|l| !l.is_number()) {
        return Err(format!(
            "the label of {} is {}: labels must be all strings or all numbers",
            place(at),
            labels[at]
        ));
    }
    let bytes = labels.iter().filter_map(Value::as_f64).flat_map(|x| (x as f32).to_le_bytes()).collect();
    Ok(column("labels", TensorType::new(DType::F32, [n]), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        dir
    }

    fn ints(texts: &Texts, name: &str) -> Vec<i64> {
        let column = texts.columns.iter().find(|c| c.name == name).expect(name);
        headwater_core::Tensor::from_bytes(&column.ty, column.bytes()).cast(DType::I64).ints().to_vec()
    }

    /// Words by white space, as a `tokenizer.json`, which puts token 1 before each text and 2 behind it.
    const WORDS: &str = r#"{
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "BertProcessing", "sep": ["<e>", 2], "cls": ["<s>", 1]}, "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "<u>",
                  "vocab": {"<u>": 0, "<s>": 1, "<e>": 2, "<p>": 3, "the": 4, "cat": 5, "sat": 6}}
    }"#;

    #[test]
    fn packed_texts_are_windows_of_all_that_is_there() {
        let dir = folder(&[
            ("text.toml", "tokenizer = \"bytes\"\nlength = 4\npacked = true\nend = \"\\n\""),
            ("a.txt", "abcde"),
            ("b.jsonl", "{\"text\": \"fg\"}\n\n{\"text\": \"h\"}\n"),
        ]);
        let texts = Texts::open(dir.path()).unwrap();
        let bytes = |s: &str| s.bytes().map(i64::from).collect::<Vec<_>>();
        assert_eq!(ints(&texts, "input_ids"), bytes("abcde\nfg"));
        assert_eq!(ints(&texts, "labels"), bytes("abcde\nfg"));
        assert_eq!(ints(&texts, "next_ids"), bytes("bcde\nfg\n"));
        assert_eq!(ints(&texts, "attention_mask"), [1; 8]);
    }

    #[test]
    fn single_texts_are_padded_and_their_labels_counted() {
        let dir = folder(&[
            (
                "text.toml",
                "tokenizer = \"t.json\"\nlength = 5\npad = \"<p>\"\nlabel = \"mood\"\nfiles = [\"x.jsonl\"]",
            ),
            ("t.json", WORDS),
            (
                "x.jsonl",
                "{\"text\": \"The cat\", \"mood\": \"sad\"}\n{\"text\": \"the dog sat\", \"mood\": \"glad\"}\n",
            ),
        ]);
        let texts = Texts::open(dir.path()).unwrap();
        assert_eq!(ints(&texts, "input_ids"), [1, 4, 5, 2, 3, 1, 4, 0, 6, 2]);
        assert_eq!(ints(&texts, "attention_mask"), [1, 1, 1, 1, 0, 1, 1, 1, 1, 1]);
        assert_eq!(ints(&texts, "labels"), [1, 0]);
        assert_eq!(texts.classes.unwrap(), ["glad", "sad"]);
        assert!(texts.places.unwrap().place(1).unwrap().starts_with("line 2 of "));
    }

    #[test]
    fn without_labels_the_tokens_are_and_padding_counts_for_nothing() {
        let dir = folder(&[
            ("text.toml", "tokenizer = \"t.json\"\nlength = 4\npad = 3\ntruncate = true"),
            ("t.json", WORDS),
            ("x.txt", "the\nthe cat sat\n"),
        ]);
        let texts = Texts::open(dir.path()).unwrap();
        assert_eq!(ints(&texts, "input_ids"), [1, 4, 2, 3, 1, 4, 5, 2]);
        assert_eq!(ints(&texts, "labels"), [1, 4, 2, -100, 1, 4, 5, 2]);
        assert_eq!(ints(&texts, "next_ids"), [4, 2, -100, -100, 4, 5, 2, -100]);
    }

    #[test]
    fn pairs_have_types() {
        let dir = folder(&[
            ("text.toml", "tokenizer = \"t.json\"\nlength = 6\npad = 3\ntext = [\"a\", \"b\"]"),
            ("t.json", WORDS),
            ("x.jsonl", "{\"a\": \"the\", \"b\": \"cat\"}"),
        ]);
        let texts = Texts::open(dir.path()).unwrap();
        assert_eq!(ints(&texts, "input_ids"), [1, 4, 2, 5, 2, 3]);
        assert_eq!(ints(&texts, "token_type_ids"), [0, 0, 0, 1, 1, 0]);
    }

    #[test]
    fn a_panic_of_the_tokenizer_is_a_message() {
        let said = unless_panic(|| Vec::<u8>::new()[3]).unwrap_err();
        assert!(said.contains("no usable tokenizer"), "{said}");
        assert_eq!(unless_panic(|| 7), Ok(7));
    }

    #[test]
    fn mistakes_are_named() {
        let good = "tokenizer = \"t.json\"\nlength = 4\npad = 3\n";
        let cases: &[(&str, &str, &str)] = &[
            ("length = 4", "", "tokenizer"),
            ("tokenizer = \"none.json\"\nlength = 4", "", "none.json"),
            ("tokenizer = \"x.jsonl\"\nlength = 4", "{\"text\": \"the\"}", "tokenizer.json"),
            ("tokenizer = \"t.json\"\nlength = 0", "", "length"),
            ("tokenizer = \"t.json\"\nlength = 4\npad = \"<none>\"", "", "<none>"),
            ("tokenizer = \"t.json\"\nlength = 2\ntruncate = true", "{\"text\": \"the\"}", "too small"),
            ("tokenizer = \"t.json\"\nlength = 4", "{\"text\": \"the\"}", "`pad`"),
            (
                "tokenizer = \"t.json\"\nlength = 4\npacked = true\nlabel = \"y\"",
                "{\"text\": \"the\"}",
                "`label`",
            ),
            (good, "{\"text\": \"the cat sat\"}", "line 1: the text has 5 tokens"),
            (good, "\n{\"texts\": \"the\"}", "line 2: has no field `text`, but: texts"),
            (good, "{\"text\": 3}", "line 1: `text` is 3"),
            (good, "nothing", "line 1: is no JSON object"),
            (good, "", "no sample"),
            (&format!("{good}label = \"y\""), "{\"text\": \"the\"}", "`y`"),
            (
                &format!("{good}label = \"y\""),
                "{\"text\": \"the\", \"y\": 1}\n{\"text\": \"the\", \"y\": \"b\"}",
                "line 2",
            ),
            (
                &format!("{good}label = \"y\"\nclasses = [\"a\"]"),
                "{\"text\": \"the\", \"y\": \"b\"}",
                "`classes` has no such name",
            ),
        ];
        for (settings, lines, want) in cases {
            let dir = folder(&[("text.toml", settings), ("t.json", WORDS), ("x.jsonl", lines)]);
            let said = Texts::open(dir.path()).map(drop).unwrap_err().to_string();
            assert!(said.starts_with("HW-R002") || said.starts_with("HW-R001"), "{said}");
            assert!(said.contains(want), "{settings}: {said}");
        }
    }
}
