//! Tokens of texts, by a `tokenizer.json` or byte by byte. Files are from anywhere: what the `tokenizers`
//! library does not bear ends in a message.

use super::{Sample, TextSettings, Token, pattern};
use crate::error::{Error, Result};
use serde_json::Value;
use std::path::Path;
use tokenizers::models::ModelWrapper;
use tokenizers::{Encoding, Tokenizer, TruncationParams};

/// Bytes of the largest tokenizer that is read.
const BYTES: u64 = 1 << 28;
/// Times that replacements may make a text longer, as far as their lengths tell.
const GROWTH: f64 = 65536.0;

/// Said of a file that holds something else.
const NONE: &str = "is no tokenizer as Hugging Face saves it (tokenizer.json)";

/// Makes tokens of texts.
pub(super) enum Tokens {
    Bytes,
    Hub(Box<Tokenizer>),
}

/// A text's tokens, with the number of the text of a pair that each belongs to.
#[derive(Default)]
pub(super) struct Encoded {
    pub ids: Vec<i32>,
    pub types: Vec<i32>,
}

impl Tokens {
    /// The tokenizer that the settings of a folder name.
    ///
    /// # Errors
    /// `Data` if it is none or would not work, `Io`.
    pub fn open(folder: &Path, settings: &TextSettings) -> Result<Tokens> {
        if settings.tokenizer == "bytes" {
            return Ok(Tokens::Bytes);
        }
        let path = folder.join(&settings.tokenizer);
        let refuse = |m: String| Error::data(&path, m);
        let file = std::fs::metadata(&path).map_err(Error::io(&path))?;
        if !file.is_file() || file.len() > BYTES {
            return Err(refuse(format!("is no tokenizer: it must be a file of at most {BYTES} bytes")));
        }
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let bytes = adapted(bytes).map_err(refuse)?;
        let read = unless_panic(|| Tokenizer::from_bytes(&bytes)).map_err(refuse)?;
        let mut tokenizer = read.map_err(|e| refuse(format!("{NONE}: {e}")))?;
        leave_nothing_to_chance(&mut tokenizer);
        unless_panic(|| cut(&mut tokenizer, settings)).flatten().map_err(refuse)?;
        Ok(Tokens::Hub(Box::new(tokenizer)))
    }

    /// The number of a token.
    ///
    /// # Errors
    /// That it has none.
    pub fn id(&self, token: &Token) -> Result<i32, String> {
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

    /// The tokens of texts, concatenated.
    ///
    /// # Errors
    /// The message of the tokenizer, or that it failed.
    pub fn encode(&self, samples: &[Sample], settings: &TextSettings) -> Result<Vec<Encoded>, String> {
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

/// Takes over the length of samples: whatever a tokenizer was saved with, its texts are cut to that or not at
/// all.
///
/// # Errors
/// If its own tokens leave no capacity for a text.
fn cut(tokenizer: &mut Tokenizer, settings: &TextSettings) -> Result<(), String> {
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
    if !settings.truncate {
        return Ok(());
    }
    let empty = match settings.fields().len() {
        2 => tokenizer.encode(("", ""), settings.special()),
        _ => tokenizer.encode("", settings.special()),
    };
    let (added, length) = (empty.map_err(|e| e.to_string())?.len(), settings.length);
    if added >= length {
        return Err(format!("puts {added} tokens around a text: `length` {length} is too small"));
    }
    let params = TruncationParams { max_length: length, ..Default::default() };
    tokenizer.with_truncation(Some(params)).map(|_| ()).map_err(|e| e.to_string())
}

/// Turns off what gives a text other tokens in each run: merges that are left out, and pieces that are drawn.
pub(super) fn leave_nothing_to_chance(tokenizer: &mut Tokenizer) {
    let mut model = match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) if bpe.dropout.is_some() => tokenizer.get_model().clone(),
        ModelWrapper::Unigram(unigram) if unigram.alpha.is_some() => tokenizer.get_model().clone(),
        _ => return,
    };
    match &mut model {
        ModelWrapper::BPE(bpe) => bpe.dropout = None,
        ModelWrapper::Unigram(unigram) => (unigram.alpha, unigram.nbest_size) = (None, None),
        _ => {}
    }
    tokenizer.with_model(model);
}

/// A tokenizer as the library is to read it: with regular expressions in its syntax.
///
/// # Errors
/// The part with which the library would take memory that the file does not justify, or an expression that
/// would have another meaning.
fn adapted(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    let mut file: Value = serde_json::from_slice(&bytes).map_err(|e| format!("{NONE}: {e}"))?;
    let growth = walk(&file)?;
    if growth > GROWTH.log2() {
        return Err(format!(
            "is no usable tokenizer: its replacements can make a text more than {GROWTH} times as long"
        ));
    }
    let mut changed = false;
    for part in ["normalizer", "pre_tokenizer"] {
        if let Some(part) = file.get_mut(part) {
            changed |= translate(part)?;
        }
    }
    // Decoders have expressions too, and texts are only encoded.
    if let Some(decoder) = file.get_mut("decoder") {
        changed |= !decoder.take().is_null();
    }
    match changed {
        true => serde_json::to_vec(&file).map_err(|e| format!("{NONE}: {e}")),
        false => Ok(bytes),
    }
}

/// Puts all regular expressions of a part of a tokenizer into the library's syntax; true if there are any.
///
/// # Errors
/// That of one which has no equal there.
fn translate(part: &mut Value) -> Result<bool, String> {
    let mut changed = false;
    match part {
        Value::Array(parts) => {
            for part in parts {
                changed |= translate(part)?;
            }
        }
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get_mut("pattern").and_then(|p| p.get_mut("Regex")) {
                *text = pattern::translated(text)?;
                changed = true;
            }
            for part in fields.values_mut() {
                changed |= translate(part)?;
            }
        }
        _ => {}
    }
    Ok(changed)
}

/// Looks at all parts of a tokenizer: by how many powers of two its replacements can make a text longer.
///
/// # Errors
/// If a table of characters is shorter than it says.
fn walk(part: &Value) -> Result<f64, String> {
    match part {
        Value::Array(parts) => parts.iter().map(walk).sum(),
        Value::Object(fields) => {
            if let Some(Value::String(table)) = fields.get("precompiled_charsmap") {
                // Six bits a character; the table begins with the bytes of its trie, which are set aside
                // unseen.
                let claimed = first_word(table).map_or(0, u64::from);
                if claimed > table.len() as u64 {
                    let have = table.len() * 3 / 4;
                    return Err(format!(
                        "is damaged: `precompiled_charsmap` claims {claimed} bytes and has {have}"
                    ));
                }
            }
            let mut growth = fields.values().map(walk).sum::<Result<f64, String>>()?;
            if let Some(Value::String(content)) =
                fields.get("content").filter(|_| fields.get("type").is_some_and(|t| t == "Replace"))
            {
                let pattern = fields.get("pattern").and_then(|p| p.get("String")).and_then(Value::as_str);
                // An expression may match nothing, before each character.
                let longest = match pattern.map(str::len) {
                    Some(length @ 1..) => content.len() as f64 / length as f64,
                    _ => 1.0 + content.len() as f64,
                };
                growth += longest.max(1.0).log2();
            }
            Ok(growth)
        }
        _ => Ok(0.0),
    }
}

/// The first 32 bits of a text in base64, as a little-endian number.
fn first_word(text: &str) -> Option<u32> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let first = text.as_bytes().get(..6)?;
    let bits = first.iter().try_fold(0u64, |bits, c| Some(bits << 6 | u64::from(digit(*c)?)))?;
    Some(((bits >> 4) as u32).swap_bytes())
}

/// The result of `f`; a panic of the `tokenizers` library, which some tokenizers cause, is a message.
pub(super) fn unless_panic<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    crate::quiet::unless_panic(f).ok_or_else(|| {
        "is no usable tokenizer: the `tokenizers` library stopped at it; save it again with the version of Hugging Face's \
         transformers that made it"
            .into()
    })
}
