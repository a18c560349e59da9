//! Folders of texts, good and bad.

use super::tokens::unless_panic;
use super::*;
use headwater_core::DType;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior};

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

/// Words by white space, as a `tokenizer.json`, which puts token 1 before each text and 2 after it.
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

/// Tokenizers that are none, or that the library fails at.
#[test]
fn hostile_tokenizers_end_in_a_message() {
    let with = |part: &str, value: &str| {
        let mut file: Value = serde_json::from_str(WORDS).unwrap();
        file[part] = serde_json::from_str(value).unwrap();
        file.to_string()
    };
    let nested = |n: usize| {
        format!(
            r#"{}{{"type": "Lowercase"}}{}"#,
            r#"{"type": "Sequence", "normalizers": ["#.repeat(n),
            "]}".repeat(n)
        )
    };
    let double = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}"#;
    let doubled = format!(r#"{{"type": "Sequence", "normalizers": [{}]}}"#, vec![double; 40].join(", "));
    let template = r#"{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<nowhere>", "type_id": 0}}],
                      "pair": [], "special_tokens": {}}"#;
    let cases: &[(&str, String, &str)] = &[
        ("no JSON", "{".into(), "is no tokenizer"),
        ("JSON of something else", "[1, 2]".into(), "is no tokenizer"),
        ("a model that is none", with("model", r#"{"type": "Oracle"}"#), "is no tokenizer"),
        (
            "pieces of no length",
            with("pre_tokenizer", r#"{"type": "FixedLength", "length": 0}"#),
            "the `tokenizers` library stopped",
        ),
        (
            "a token that is none around texts",
            with("post_processor", template),
            "the `tokenizers` library stopped",
        ),
        ("a text of no end", with("normalizer", &doubled), "more than 65536 times as long"),
        ("parts in parts", nested(4000), "is no tokenizer"),
        (
            "a table of 4 GiB in six bytes",
            with("normalizer", r#"{"type": "Precompiled", "precompiled_charsmap": "/////wAA"}"#),
            "claims 4294967295 bytes",
        ),
        (
            "no unknown token",
            with("model", r#"{"type": "WordLevel", "unk_token": "<none>", "vocab": {}}"#),
            "could not be tokenized",
        ),
        (
            "tokens beyond 2^31",
            with("model", r#"{"type": "WordLevel", "unk_token": "<u>", "vocab": {"<u>": 4294967295}}"#),
            "more than 2^31",
        ),
        (
            "merges of no tokens",
            with("model", r#"{"type": "BPE", "vocab": {"a": 0}, "merges": [["x", "y"]]}"#),
            "is no tokenizer",
        ),
        ("scores of no tokens", with("model", r#"{"type": "Unigram", "unk_id": 7, "vocab": []}"#), ""),
    ];
    for (what, tokenizer, want) in cases {
        let dir = folder(&[
            ("text.toml", "tokenizer = \"t.json\"\nlength = 64\npad = 0"),
            ("t.json", tokenizer),
            ("x.txt", &"a".repeat(40)),
        ]);
        let said = Texts::open(dir.path()).map(drop).expect_err(what).to_string();
        assert!(said.starts_with("HW-R002") && said.contains(want), "{what}: {said}");
    }
    let dir = folder(&[("text.toml", "tokenizer = \"/dev/zero\"\nlength = 64"), ("x.txt", "a")]);
    assert!(Texts::open(dir.path()).map(drop).unwrap_err().to_string().contains("must be a file"));
}

/// The truth is recorded by `python -m headwater_tools.patterns`.
#[test]
fn expressions_split_texts_where_hugging_face_splits_them() {
    #[derive(serde::Deserialize)]
    struct Recorded {
        texts: Vec<String>,
        properties: std::collections::BTreeMap<String, [u64; 2]>,
        patterns: Vec<Pattern>,
    }
    #[derive(serde::Deserialize)]
    struct Pattern {
        pattern: String,
        known: bool,
        /// Ends of pieces by text, or why the expression is refused.
        spans: Value,
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../goldens/tokens/patterns.json");
    let recorded: Recorded = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut wrong, mut equal, mut refused) = (vec![], 0, 0);
    for Pattern { pattern, known, spans } in recorded.patterns {
        let translated = match pattern::translated(&pattern) {
            Ok(translated) => translated,
            Err(message) => {
                assert!(!known, "{message}");
                assert!(message.contains(&pattern) && message.contains("before character"), "{message}");
                refused += 1;
                continue;
            }
        };
        let Ok(ends) = serde_json::from_value::<Vec<Vec<usize>>>(spans) else {
            wrong.push(format!("{pattern:?} is read, which Hugging Face's library refuses"));
            continue;
        };
        let regex = SplitPattern::Regex(translated);
        let split = Split::new(regex, SplitDelimiterBehavior::Isolated, false).unwrap();
        for (text, mut want) in recorded.texts.iter().zip(ends) {
            let mut pieces = PreTokenizedString::from(text.as_str());
            split.pre_tokenize(&mut pieces).unwrap();
            let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Char);
            let mut got: Vec<usize> = pieces.iter().map(|piece| piece.1.1).collect();
            got.dedup();
            got.retain(|&end| end > 0);
            want.dedup();
            want.retain(|&end| end > 0);
            if got != want {
                wrong.push(format!("{pattern:?} splits {text:?} at {got:?}, not at {want:?}"));
            }
        }
        equal += 1;
    }
    for (name, want) in recorded.properties {
        if let Ok(class) = pattern::translated(&format!("\\p{{{name}}}")) {
            let members = regex_syntax::parse(&class).unwrap();
            let members = match members.kind() {
                regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(members)) => {
                    members.clone()
                }
                // Of one member.
                regex_syntax::hir::HirKind::Literal(one) => {
                    let mut one = std::str::from_utf8(&one.0).unwrap().chars();
                    let (Some(c), None) = (one.next(), one.next()) else { panic!("{class} is no class") };
                    regex_syntax::hir::ClassUnicode::new([regex_syntax::hir::ClassUnicodeRange::new(c, c)])
                }
                _ => panic!("{class} is no class"),
            };
            // All but private planes and what has no characters.
            let recorded = |c: &char| !matches!(*c as u32, 0 | 0x33480..0xE0000 | 0xE0200..);
            let all = members.ranges().iter().flat_map(|r| r.start()..=r.end()).filter(recorded);
            let got = all.fold([0, 0], |[n, sum], c| [n + 1, sum + (c as u64).pow(2)]);
            if got != want {
                wrong.push(format!("\\p{{{name}}} has other members: {got:?}, not {want:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(equal > 300 && refused > 50, "{equal} equal, {refused} refused");
}

/// Texts with their tokens by kind of tokenizer, as Hugging Face's library has them:
/// `python -m headwater_tools.tokenizers`.
#[derive(serde::Deserialize)]
struct Recorded {
    texts: Vec<String>,
    ids: std::collections::BTreeMap<String, Vec<Vec<i64>>>,
}

impl Recorded {
    fn read() -> Recorded {
        serde_json::from_slice(&std::fs::read(recorded("ids.json")).unwrap()).unwrap()
    }

    /// The tokenizer of a kind, as JSON.
    fn tokenizer(kind: &str) -> Value {
        serde_json::from_slice(&std::fs::read(recorded(&format!("{kind}.json"))).unwrap()).unwrap()
    }

    /// A tokenizer has the recorded tokens of a kind.
    fn agrees(&self, kind: &str, tokenizer: &str) {
        let lines: String =
            self.texts.iter().map(|t| serde_json::json!({ "text": t }).to_string() + "\n").collect();
        let settings = "tokenizer = \"t.json\"\nlength = 256\npad = 0";
        let dir = folder(&[("text.toml", settings), ("t.json", tokenizer), ("x.jsonl", &lines)]);
        let texts = Texts::open(dir.path()).unwrap_or_else(|e| panic!("{kind}: {e}"));
        let (ids, mask) = (ints(&texts, "input_ids"), ints(&texts, "attention_mask"));
        for (i, want) in self.ids[kind].iter().enumerate() {
            let row = i * 256..(i + 1) * 256;
            let length = mask[row.clone()].iter().sum::<i64>() as usize;
            assert_eq!(&ids[row][..length], want, "{kind}: {:?}", self.texts[i]);
        }
    }
}

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens/tokens").join(name)
}

/// Tokenizers as `save_pretrained` of Hugging Face's transformers writes them.
#[test]
fn saved_tokenizers_give_hugging_faces_tokens() {
    let all = Recorded::read();
    assert!(all.ids.len() > 5, "{:?}", all.ids.keys());
    for kind in all.ids.keys() {
        all.agrees(kind, &std::fs::read_to_string(recorded(&format!("{kind}.json"))).unwrap());
    }
}

/// BPE of bytes, of pieces with a mark in front, with bytes for unknown characters, and with one after words:
/// with dropout, the tokens are those that Hugging Face's library has without.
#[test]
fn merges_left_out_by_chance_are_not() {
    let all = Recorded::read();
    for kind in ["gpt2", "llama", "llama3", "clip"] {
        for dropout in [0.1, 0.9, 1.0] {
            let mut file = Recorded::tokenizer(kind);
            file["model"]["dropout"] = dropout.into();
            all.agrees(kind, &file.to_string());
        }
    }
}

/// A chance that is none is refused, as Hugging Face's library refuses it.
#[test]
fn a_dropout_that_is_no_chance_is_refused() {
    for dropout in [Value::from(1.5), Value::from(-0.1), Value::from("0.1")] {
        let mut file = Recorded::tokenizer("gpt2");
        file["model"]["dropout"] = dropout.clone();
        let settings = "tokenizer = \"t.json\"\nlength = 256\npad = 0";
        let dir = folder(&[("text.toml", settings), ("t.json", &file.to_string()), ("x.txt", "a")]);
        let said = Texts::open(dir.path()).map(drop).expect_err("a tokenizer").to_string();
        assert!(said.starts_with("HW-R002") && said.contains("is no tokenizer"), "{dropout}: {said}");
    }
}

/// Pieces that sentencepiece would draw (`alpha`, `nbest_size`): the likeliest are taken.
#[test]
fn pieces_drawn_by_chance_are_not() {
    let all = Recorded::read();
    for (alpha, best) in [(0.1, 8), (0.5, 64), (1.0, 0)] {
        let mut file = Recorded::tokenizer("t5");
        file["model"]["alpha"] = alpha.into();
        file["model"]["nbest_size"] = best.into();
        all.agrees("t5", &file.to_string());
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(Recorded::tokenizer("t5").to_string()).unwrap();
        let mut model = tokenizer.get_model().clone();
        let tokenizers::models::ModelWrapper::Unigram(unigram) = &mut model else {
            panic!("t5 is no unigram")
        };
        (unigram.alpha, unigram.nbest_size) = (Some(alpha), (best > 0).then_some(best));
        tokenizer.with_model(model);
        tokens::leave_nothing_to_chance(&mut tokenizer);
        for (text, want) in all.texts.iter().zip(&all.ids["t5"]) {
            let got = tokenizer.encode(text.as_str(), true).unwrap();
            assert!(got.get_ids().iter().map(|&id| i64::from(id)).eq(want.iter().copied()), "{text:?}");
        }
    }
}

/// A tokenizer that was saved while it cut and filled up texts: `text.toml` alone says what is done here.
#[test]
fn lengths_that_were_saved_are_not_those_of_samples() {
    let all = Recorded::read();
    for kind in ["bert", "gpt2", "t5", "words"] {
        let mut file = Recorded::tokenizer(kind);
        file["truncation"] = serde_json::json!(
            {"direction": "Left", "max_length": 4, "strategy": "LongestFirst", "stride": 1});
        file["padding"] = serde_json::json!(
            {"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": 8, "pad_id": 3,
             "pad_type_id": 1, "pad_token": "?"});
        all.agrees(kind, &file.to_string());
    }
}

#[test]
fn an_expression_that_would_mean_something_else_is_refused_by_name() {
    let with = |part: &str| {
        let words = WORDS.replace(r#"{"type": "WhitespaceSplit"}"#, part);
        let dir = self::folder(&[
            ("text.toml", "tokenizer = \"t.json\"\nlength = 5\npad = 0"),
            ("t.json", &words),
            ("x.txt", "the\n"),
        ]);
        Texts::open(dir.path()).err().map(|e| e.to_string()).unwrap_or_default()
    };
    let split = |p: &str| {
        with(&serde_json::json!({"type": "Split", "pattern": {"Regex": p}, "behavior": "Removed", "invert": false})
            .to_string())
    };
    assert_eq!(split(r"\w+"), "");
    let said = split(r"\X+");
    assert!(said.starts_with("HW-R002") && said.contains(r"`\X+`: `\X` before character 3"), "{said}");
    // Within a sequence as well.
    let said = with(
        r#"{"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a)\\1"},
            "behavior": "Removed", "invert": false}]}"#,
    );
    assert!(said.contains(r"`\1` before character 6"), "{said}");
}
