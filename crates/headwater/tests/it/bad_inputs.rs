//! Two hundred bad inputs. Each ends with the right exit status and a message that names the fault and a way
//! out, and leaves no file.

use headwater::core::{DType, Tensor, TensorType};
use headwater::tensors::TensorFile;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bad input: the command line, and what its message must have in it.
struct Bad {
    args: Vec<String>,
    status: i32,
    /// The thing that is wrong, and a part of the way out. An error code is a way out: `explain` has it.
    names: Vec<String>,
}

fn bad(args: &[&str], status: i32, names: &[&str]) -> Bad {
    let strings = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
    Bad { args: strings(args), status, names: strings(names) }
}

fn example(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit");
    folder.join(file).to_str().unwrap().to_string()
}

/// A folder of bad files.
struct Place(tempfile::TempDir);

impl Place {
    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_string()
    }
}

/// Settings that make no sense: the file's text, and what the message names.
fn settings(place: &Place, all: &mut Vec<Bad>) {
    let known = "docs/settings.md";
    let texts: &[(&str, &str, &str)] = &[
        ("steps = 0", "`steps`", "HW-R004"),
        ("steps = -1", "steps = -1", known),
        ("steps = 1\ndata = 'x'", "a table [data] with `train`", known),
        ("steps = 1\noptimizer = 'sgd'", "a table [optimizer] with its `name`", known),
        ("steps = 1\namp = 'O2'", "a table [amp] with `level`", known),
        ("steps = 1\neval = 10", "a table [eval]", known),
        ("steps = 'x'", "steps = 'x'", known),
        ("steps = 1.5", "steps = 1.5", known),
        ("epochs = 0", "`epochs`", "HW-R004"),
        ("epochs = -3", "`epochs`", "HW-R004"),
        ("epochs = nan", "`epochs`", "HW-R004"),
        ("epochs = inf", "`epochs`", "HW-R004"),
        ("steps = 1\nepochs = 1", "`steps`", "HW-R004"),
        ("steps = 1\nbatch = 0", "`batch`", "HW-R004"),
        ("steps = 1\nbatch = 1000000", "1000000", "HW-R003"),
        ("steps = 1\naccumulate = 0", "`accumulate`", "HW-R004"),
        ("steps = 1\naccumulate = -1", "accumulate = -1", known),
        ("steps = 1\nwarmup = -1", "warmup = -1", known),
        ("steps = 1\nseed = -1", "seed = -1", known),
        ("steps = 1\nend = 2", "`end`", "HW-R004"),
        ("steps = 1\nend = -0.1", "`end`", "HW-R004"),
        ("steps = 1\nclip_norm = -1", "`clip_norm`", "HW-R004"),
        ("steps = 1\nclip_norm = 0", "`clip_norm`", "HW-R004"),
        ("steps = 1\nclip_norm = nan", "`clip_norm`", "HW-R004"),
        ("steps = 1\nclip_norm = 'a'", "clip_norm = 'a'", known),
        ("steps = 1\nclip_value = -1", "`clip_value`", "HW-R004"),
        ("steps = 1\nema = 1", "`ema`", "HW-R004"),
        ("steps = 1\nema = -0.5", "`ema`", "HW-R004"),
        ("steps = 1\nema = nan", "`ema`", "HW-R004"),
        ("steps = 1\ndecay = 'some'", "`some`", "`matrices`"),
        ("steps = 1\nnonfinite = 'x'", "`x`", "`skip`"),
        ("steps = 1\nrecompute = 1", "recompute = 1", known),
        ("steps = 1\nschedule = 'cosin'", "`cosin`", "`cosine`"),
        ("steps = 1\nschedule = 'step'", "`every`", known),
        ("steps = 1\nschedule = { name = 'step', every = 0 }", "`every`", "HW-R004"),
        ("steps = 1\nschedule = { name = 'step', evry = 1 }", "`evry`", "`every`"),
        ("steps = 1\nschedule = { name = 'exponential', gamma = -1 }", "`gamma`", "HW-R004"),
        ("steps = 1\nschedule = { name = 'polynomial', power = 0 }", "`power`", "HW-R004"),
        ("steps = 1\nschedule = { name = 'onecycle', pct_start = 1 }", "`pct_start`", "HW-R004"),
        ("steps = 1\nschedule = { name = 'restarts', t_0 = 0 }", "`t_0`", "HW-R004"),
        (
            "steps = 1\ndata.eval = 'x.npz'\neval.every = 1\nschedule = { name = 'plateau', factor = 2 }",
            "x.npz",
            "HW-R001",
        ),
        ("steps = 1\nschedule = 'plateau'", "`schedule`", "data.eval"),
        ("steps = 1\n[eval]\npatience = 0", "`eval.patience`", "HW-R004"),
        ("steps = 1\n[eval]\npatience = 2", "`eval.patience`", "data.eval"),
        ("steps = 1\n[eval]\nkeep_best = true", "`eval.keep_best`", "data.eval"),
        ("steps = 1\n[eval]\nmin_delta = -1", "`eval.min_delta`", "HW-R004"),
        ("steps = 1\n[eval]\nmetric = 'f2'", "`f2`", "`accuracy`"),
        ("steps = 1\n[eval]\ntop_k = 0", "`eval.top_k`", "HW-R004"),
        ("steps = 1\n[eval]\ntop_k = -1", "top_k = -1", known),
        ("steps = 1\n[eval]\nevery = 0", "`eval.every`", "HW-R004"),
        ("steps = 1\n[eval]\nevry = 1", "`evry`", "`every`"),
        ("steps = 1\n[checkpoint]\nkeep = 0", "`checkpoint.keep`", "HW-R004"),
        ("steps = 1\n[checkpoint]\nevery = 3", "`checkpoint.dir`", "HW-R004"),
        ("steps = 1\n[checkpoint]\nminutes = -1", "`checkpoint.minutes`", "HW-R004"),
        ("steps = 1\n[checkpoint]\nminutes = inf", "`checkpoint.minutes`", "HW-R004"),
        ("steps = 1\n[checkpoint]\nwait = -1", "`checkpoint.wait`", "HW-R004"),
        ("steps = 1\n[checkpoint]\ndirr = 'x'", "`dirr`", "`dir`"),
        ("steps = 1\n[log]\njson = 1", "json = 1", known),
        ("steps = 1\n[log]\njason = 'x'", "`jason`", "`json`"),
        ("steps = 1\n[data]\nlast = 'maybe'", "`maybe`", "`keep`"),
        ("steps = 1\n[data]\norder = 'x'", "`data.order`", "file:tensor"),
        ("steps = 1\n[data]\norder = 'nowhere.npz:x'", "nowhere.npz", "HW-R001"),
        ("steps = 1\n[data]\nname = 1", "`name`", "`names`"),
        ("steps = 1\n[data]\nbuckets = 'some'", "buckets", known),
        ("steps = 1\n[data]\nbuckets = []", "`data.buckets`", "does not say how long"),
        ("steps = 1\n[data]\nlengths = 'x'", "`data.lengths`", "data.buckets"),
        ("steps = 1\n[data]\nbuckets = [8]\nlengths = 'images'", "`data.lengths`", "[samples]"),
        ("steps = 1\n[data]\norder = 'part-*.safetensors:order'", "part-*.safetensors", "matches no file"),
        ("steps = 1\n[data.augment]\nflip = 2", "`data.augment.flip`", "HW-R004"),
        ("steps = 1\n[data.augment]\nflip = nan", "`data.augment.flip`", "HW-R004"),
        ("steps = 1\n[data.augment]\ncrop = -1", "crop = -1", known),
        ("steps = 1\n[data.augment]\ncrop = 4000000000", "`data.augment.crop`", "HW-R004"),
        ("steps = 1\n[data.augment]\ncrop = 1\ninputs = ['labels']", "`data.augment.inputs`", "no images"),
        ("steps = 1\n[data.augment]\ncrop = 1\ninputs = ['x']", "`data.augment.inputs`", "it has images"),
        ("steps = 1\n[init]\nweights = 'part-*.safetensors'", "part-*.safetensors", "matches no file"),
        ("steps = 1\n[data]\nnames = { images = 'pixels' }", "pixels", "data.names"),
        ("steps = 1\n[init]\nweights = 'nowhere.safetensors'", "nowhere.safetensors", "HW-R001"),
        ("steps = 1\n[init]\nwieghts = 'x'", "`wieghts`", "`weights`"),
        ("steps = 1\n[amp]\nlevel = 'O9'", "O9", known),
        ("steps = 1\n[amp]\ndtype = 'f8'", "f8", known),
        ("steps = 1\n[amp]\nleval = 'O1'", "`leval`", "`level`"),
        ("steps = 1\n[amp]\nlevel = 'O2'\nloss_scale = -1", "loss_scale", "HW-R004"),
        ("steps = 1\n[amp.scaler]\nrule = 'x'", "`x`", "`torch`"),
        ("steps = 1\n[amp]\nlevel = 'O2'\ndtype = 'f16'\n[amp.scaler]\ngrowth = 0.5", "growth", "HW-R004"),
        ("steps = 1\n[[groups]]\nparameters = 'nothing.*'\nlr = 0.0", "nothing.*", "HW-R004"),
        ("steps = 1\n[[groups]]\nparameters = '*'\nlearning = 0.0", "learning", "HW-R004"),
        ("steps = 1\n[datta]\nx = 1", "`datta`", "`data`"),
        ("stepss = 1", "`stepss`", "`steps`"),
        ("steps = ", "steps = ", known),
        ("steps = 1\nsteps = 2", "steps", known),
        ("[[[", "[[[", known),
    ];
    let optimizers: &[(&str, &str)] = &[
        ("name = 'sdg'", "`sdg`"),
        ("lr = 1", "`name`"),
        ("name = 'sgd'\nlr = -1", "`lr`"),
        ("name = 'sgd'\nlr = nan", "`lr`"),
        ("name = 'sgd'\nlr = inf", "`lr`"),
        ("name = 'sgd'\nmomentum = -1", "`momentum`"),
        ("name = 'sgd'\nnesterov = true", "nesterov"),
        ("name = 'sgd'\nbetas = [0.9, 0.9]", "`betas`"),
        ("name = 'adam'\nbetas = [2, 0.9]", "`betas`"),
        ("name = 'adam'\nbetas = [0.9]", "[optimizer]"),
        ("name = 'adamw'\neps = -1", "`eps`"),
        ("name = 'adamw'\nweight_decay = -1", "`weight_decay`"),
        ("name = 'rmsprop'\nalpha = 2", "`alpha`"),
        ("name = 'adagrad'\nlr_decay = -1", "`lr_decay`"),
        ("name = 'adadelta'\nrho = 2", "`rho`"),
    ];
    let optimizers =
        optimizers.iter().map(|(text, named)| (format!("steps = 1\n[optimizer]\n{text}"), *named, ""));
    let texts = texts.iter().map(|(text, named, way)| (text.to_string(), *named, *way)).chain(optimizers);
    for (i, (text, named, way)) in texts.enumerate() {
        let file = place.write(&format!("settings{i}.toml"), text);
        let (model, data) = (example("digits_vit.pt2"), example("train.safetensors"));
        all.push(bad(&["train", &model, "--data", &data, "--config", &file], 1, &[named, way]));
    }
}

/// Files that are not what they should be, in every place where a command takes one.
fn files(place: &Place, all: &mut Vec<Bad>) {
    let (model, train) = (example("digits_vit.pt2"), example("train.safetensors"));
    let golden = example("digits_vit.golden.safetensors");
    let cut = |file: &str, part: f64| {
        let bytes = std::fs::read(file).unwrap();
        bytes[..(bytes.len() as f64 * part) as usize].to_vec()
    };
    std::fs::create_dir(place.path("folder")).unwrap();
    for (ending, whole) in [("pt2", &model), ("safetensors", &train), ("golden.safetensors", &golden)] {
        let mut found = vec![
            place.path(&format!("nowhere.{ending}")),
            place.path("folder"),
            place.write(&format!("empty.{ending}"), ""),
            place.write(&format!("garbage.{ending}"), "this is no such file"),
        ];
        for part in [0.001, 0.1, 0.5, 0.9, 0.999] {
            found.push(place.write(&format!("cut{part}.{ending}"), cut(whole, part)));
        }
        for file in found {
            let name = Path::new(&file).file_name().unwrap().to_str().unwrap();
            match ending {
                "pt2" => {
                    all.push(bad(&["inspect", &file], 1, &[name, "HW-I"]));
                    all.push(bad(&["train", &file, "--data", &train, "--steps", "1"], 1, &[name, "HW-I"]));
                }
                "safetensors" => {
                    all.push(bad(&["train", &model, "--data", &file, "--steps", "1"], 1, &[name, "HW-R"]));
                    all.push(bad(&["eval", &model, "--data", &file], 1, &[name, "HW-R"]));
                    let init = ["train", &model, "--data", &train, "--steps", "1", "--init", &file];
                    all.push(bad(&init, 1, &[name]));
                }
                _ => all.push(bad(&["check", &model, &file], 1, &[name])),
            }
        }
    }
    for (ending, way) in [("csv", "--name images=COLUMN"), ("pt", ".npz"), ("parquet", ".npz"), ("", ".npz")]
    {
        let file = place.write(&format!("data.{ending}"), "a,b\n1,2\n");
        all.push(bad(&["train", &model, "--data", &file, "--steps", "1"], 1, &["data", way]));
    }
    // A pattern names data. Weights and orders are in one file, or in the shards of an index.
    for part in ["shard-1.safetensors", "shard-2.safetensors"] {
        std::fs::copy(&train, place.path(part)).unwrap();
    }
    let pattern = place.path("shard-*.safetensors");
    let init = ["train", &model, "--data", &train, "--steps", "1", "--init", &pattern];
    all.push(bad(&init, 1, &["shard-*.safetensors", "weights are files of tensors"]));
    let order = place.write("order.toml", format!("steps = 1\n[data]\norder = '{pattern}:labels'"));
    all.push(bad(&["train", &model, "--data", &train, "--config", &order], 1, &["labels", "HW-R004"]));
    // A pickle of torch.save in the place of a model: a zip with `data.pkl` and no `archive_format`.
    let saved = place.path("saved.pt");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&saved).unwrap());
    zip.start_file("saved/data.pkl", zip::write::SimpleFileOptions::default()).unwrap();
    zip.finish().unwrap();
    all.push(bad(&["inspect", &saved], 1, &["HW-I009", "torch.export.save"]));
    let here = place.write("amp.toml", "mine");
    let auto = ["train", &model, "--data", &train, "--steps", "1", "--amp", "auto"];
    all.push(bad(&auto, 2, &["amp.toml", "--policy-file"]));
    assert_eq!(std::fs::read_to_string(here).unwrap(), "mine");
    let pickle = place.write("weights.pth", "pickle");
    let init = ["train", &model, "--data", &train, "--steps", "1", "--init", &pickle];
    all.push(bad(&init, 1, &["weights.pth", "save_file"]));
    all.push(bad(&["migrate", &place.path("folder")], 1, &["migrate.toml", "--new"]));
    let job = place.write("job.toml", "[model]\nexprt = 'x'\n");
    all.push(bad(&["migrate", &job], 1, &["`exprt`", "`export`"]));
    let job = place.write("plain.toml", "model = 'x.pt2'\n");
    all.push(bad(&["migrate", &job], 1, &["plain.toml", "a table [model] with `export`"]));
}

/// Folders of texts and of images whose settings make no sense: the settings, and what the message names.
fn folders(place: &Place, all: &mut Vec<Bad>) {
    let gpt = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/bytes-gpt/gpt.pt2");
    let bytes = "tokenizer = 'bytes'\nlength = 64\n";
    let texts: &[(&str, &str, &str)] = &[
        ("tokenizer = 'bytes'\nlenght = 64", "`lenght`", "`length`"),
        ("length = 64", "`tokenizer`", "HW-R002"),
        ("tokenizer = 'bytes'", "`length`", "HW-R002"),
        ("tokenizer = 'bytes'\nlength = 0", "`length`", "from 1 to"),
        ("tokenizer = 'bytes'\nlength = 9223372036854775807", "`length`", "from 1 to"),
        ("tokenizer = 'bytes'\nlength = -1", "length = -1", "HW-R002"),
        ("tokenizer = 'nowhere.json'\nlength = 64", "nowhere.json", "HW-R001"),
        ("tokenizer = 'bytes'\nlength = 64\npad = 'ab'", "`pad`", "one byte"),
        ("tokenizer = 'bytes'\nlength = 64\npacked = 3", "packed = 3", "HW-R002"),
        // A text of 12 bytes, and nothing to fill it up with.
        (bytes, "a.txt", "`pad`"),
        ("[[[", "[[[", "HW-R002"),
    ];
    let images: &[(&str, &str, &str)] = &[
        ("channels = 1\nheight = 8\nwidth = 8\nsise = 1", "`sise`", "`width`"),
        ("height = 8\nwidth = 8", "`channels`", "HW-R002"),
        ("channels = 2\nheight = 8\nwidth = 8", "`channels`", "1 or 3"),
        ("channels = 1\nheight = 0\nwidth = 8", "`height`", "at least 1"),
        ("channels = 1\nheight = 8000000\nwidth = 8000000", "pixels", "HW-R002"),
        ("channels = 1\nheight = 4294967296\nwidth = 4294967296", "pixels", "HW-R002"),
        ("channels = 1\nheight = 8\nwidth = 8\nmean = [0.0, 1.0]", "`mean`", "1 channels"),
        ("channels = 1\nheight = 8\nwidth = 8\nstd = [0.0]", "`std`", "positive"),
        ("channels = 1\nheight = 8\nwidth = 8\nstd = [nan]", "`std`", "positive"),
        ("channels = 1\nheight = 8\nwidth = 8\nclasses = ['two']", "\"one\"", "`classes`"),
        // The settings are good, the file is no image.
        ("channels = 1\nheight = 8\nwidth = 8", "a.png", "PNG"),
        ("[[[", "[[[", "HW-R002"),
    ];
    let (gpt, vit) = (gpt.to_str().unwrap().to_string(), example("digits_vit.pt2"));
    for (file, inside, model, cases) in
        [("text.toml", "a.txt", &gpt, texts), ("images.toml", "one/a.png", &vit, images)]
    {
        for (i, (text, named, way)) in cases.iter().enumerate() {
            let folder = format!("{file}.{i}");
            let sample = format!("{folder}/{inside}");
            std::fs::create_dir_all(Path::new(&place.path(&sample)).parent().unwrap()).unwrap();
            place.write(&sample, "hello world\n");
            place.write(&format!("{folder}/{file}"), text);
            let args = ["train", model, "--data", &place.path(&folder), "--batch", "1", "--steps", "1"];
            all.push(bad(&args, 1, &[&folder, named, way]));
        }
    }
}

/// Tokenizers that are none, at which the `tokenizers` library panics, or which request memory without end:
/// what the file holds, and what the message names.
fn tokenizers(place: &Place, all: &mut Vec<Bad>) {
    let gpt = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/bytes-gpt/gpt.pt2");
    let plain = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "unk_token": "<u>", "vocab": { "<u>": 0, "a": 1 } },
    });
    let with = |part: &str, value: serde_json::Value| {
        let mut file = plain.clone();
        file[part] = value;
        file.to_string()
    };
    let double = serde_json::json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aa" });
    let template = serde_json::json!({
        "type": "TemplateProcessing", "pair": [], "special_tokens": {},
        "single": [{ "SpecialToken": { "id": "<nowhere>", "type_id": 0 } }],
    });
    let words = |unknown: &str, id: u64| serde_json::json!({ "type": "WordLevel", "unk_token": unknown, "vocab": { "<u>": id } });
    let deep = format!("{}null{}", "[".repeat(100_000), "]".repeat(100_000));
    let whole = plain.to_string();
    let cases = [
        (String::new(), "is no tokenizer"),
        (whole[..whole.len() / 2].to_string(), "is no tokenizer"),
        ("[1, 2, 3]".into(), "is no tokenizer"),
        (deep, "is no tokenizer"),
        (with("model", serde_json::json!({ "type": "Oracle" })), "is no tokenizer"),
        (with("pre_tokenizer", serde_json::json!({ "type": "FixedLength", "length": 0 })), "save it again"),
        (with("post_processor", template), "save it again"),
        (
            with("normalizer", serde_json::json!({ "type": "Sequence", "normalizers": vec![double; 64] })),
            "times as long",
        ),
        (
            with(
                "normalizer",
                serde_json::json!({ "type": "Precompiled", "precompiled_charsmap": "/////wAA" }),
            ),
            "precompiled_charsmap",
        ),
        (with("model", words("<none>", 0)), "could not be tokenized"),
        (with("model", words("<u>", 4_294_967_295)), "more than 2^31"),
        (
            with("model", serde_json::json!({ "type": "BPE", "vocab": { "a": 0 }, "merges": [["x", "y"]] })),
            "is no tokenizer",
        ),
    ];
    for (i, (tokenizer, named)) in cases.iter().enumerate() {
        let folder = format!("tokenizer.{i}");
        std::fs::create_dir(place.path(&folder)).unwrap();
        place.write(&format!("{folder}/tokenizer.json"), tokenizer);
        place.write(&format!("{folder}/a.txt"), "aaaa aaaa aaaa\n");
        let settings = "tokenizer = 'tokenizer.json'\nlength = 64\npad = 0";
        place.write(&format!("{folder}/text.toml"), settings);
        let args =
            ["train", gpt.to_str().unwrap(), "--data", &place.path(&folder), "--batch", "1", "--steps", "1"];
        all.push(bad(&args, 1, &[&folder, named, "HW-R002"]));
    }
}

/// Arrow files that are cut, of another kind, or with rows that are null.
fn arrow(place: &Place, all: &mut Vec<Bad>) {
    use arrow_array::types::Float32Type;
    use arrow_array::{ArrayRef, FixedSizeListArray, Int64Array, RecordBatch, StringArray};
    use std::sync::Arc;
    let model = example("digits_vit.pt2");
    let pixels = |n: usize, null: Option<usize>| -> ArrayRef {
        let rows = (0..n).map(|row| (Some(row) != null).then(|| vec![Some(0.5f32); 64]));
        Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows, 64))
    };
    let stream = |images: ArrayRef, labels: ArrayRef| {
        let columns = [("images", images, true), ("labels", labels, true)];
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let mut writer = arrow_ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    };
    let labels = |values: &[Option<i64>]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
    let whole = stream(pixels(2, None), labels(&[Some(1), Some(2)]));
    let half = whole[..whole.len() / 2].to_vec();
    let words: ArrayRef = Arc::new(StringArray::from(vec!["one", "two"]));
    let cases: [(&str, Vec<u8>, &[&str]); 9] = [
        ("empty.arrow", vec![], &["HW-R"]),
        ("text.arrow", b"images,labels\n1,2\n".to_vec(), &["HW-R002", "no Arrow IPC file"]),
        ("first.feather", b"FEA1 and more".to_vec(), &["HW-R002", "Feather version 1"]),
        ("cut.arrow", half, &["HW-R"]),
        ("cut.feather", b"ARROW1\0\0 and nothing".to_vec(), &["HW-R002", "is cut off"]),
        (
            "null_label.arrow",
            stream(pixels(2, None), labels(&[Some(1), None])),
            &["HW-R002", "`labels` of row 1 is null"],
        ),
        (
            "null_image.arrow",
            stream(pixels(2, Some(0)), labels(&[Some(1), Some(2)])),
            &["HW-R002", "`images` of row 0 is null"],
        ),
        ("flat.arrow", whole, &["HW-R003", "[1, 8, 8]"]),
        ("words.arrow", stream(words, labels(&[Some(1), Some(2)])), &["HW-R", "images"]),
    ];
    for (name, bytes, names) in cases {
        let file = place.write(name, bytes);
        let names = [&[name], names].concat();
        all.push(bad(&["train", &model, "--data", &file, "--batch", "2", "--steps", "1"], 1, &names));
    }
}

/// Samples that do not fit the model.
fn samples(place: &Place, all: &mut Vec<Bad>) {
    let model = example("digits_vit.pt2");
    let whole = TensorFile::read(Path::new(&example("heldout.safetensors"))).unwrap();
    let tensor = |name: &str| whole.get(name).unwrap().clone();
    let write = |name: &str, change: &dyn Fn(&mut TensorFile)| {
        let mut file = whole.clone();
        change(&mut file);
        let path = place.path(&format!("{name}.safetensors"));
        file.write(Path::new(&path)).unwrap();
        path
    };
    let (images, labels) = (tensor("images"), tensor("labels"));
    let set = |t: &Tensor, at: usize, x: f64| {
        let mut values = t.to_f64();
        values[at] = x;
        match t.dtype().is_float() {
            true => Tensor::float(t.dtype(), t.shape().clone(), values),
            false => Tensor::from_bytes(
                &t.ty,
                &values.iter().flat_map(|x| (*x as i64).to_le_bytes()).collect::<Vec<u8>>(),
            ),
        }
    };
    // A prediction reads no labels.
    let file = write("label_of_eval", &|f| drop(f.tensors.insert("labels".into(), set(&labels, 99, 10.0))));
    all.push(bad(&["eval", &model, "--data", &file], 1, &["labels", "sample 99", "label_of_eval"]));
    let mut case = |name: &str, names: &[&str], change: &dyn Fn(&mut TensorFile)| {
        let file = write(name, change);
        all.push(bad(&["train", &model, "--data", &file, "--batch", "8", "--epochs", "1"], 1, names));
    };
    case("without_images", &["images", "[data.names]"], &|f| drop(f.tensors.remove("images")));
    case("without_labels", &["labels", "[data.names]"], &|f| drop(f.tensors.remove("labels")));
    case("in_f64", &["images", "0.1 in sample 1", "--cast round", "astype(\"float32\")"], &|f| {
        f.tensors.insert("images".into(), set(&images.cast(DType::F64), 64, 0.1));
    });
    case("labels_in_float", &["labels", "2.5 in sample 9"], &|f| {
        f.tensors.insert("labels".into(), set(&labels.cast(DType::F32), 9, 2.5));
    });
    case("scalar", &["labels", "scalar"], &|f| {
        f.tensors.insert("labels".into(), Tensor::full(&TensorType::new(DType::I64, [0usize; 0]), 1.0));
    });
    case("other_shape", &["images", "[1, 8, 8]"], &|f| {
        f.tensors.insert("images".into(), Tensor::full(&TensorType::new(DType::F32, [360, 8, 8]), 1.0));
    });
    case("other_count", &["labels", "360"], &|f| {
        f.tensors.insert("labels".into(), Tensor::full(&TensorType::new(DType::I64, [359]), 1.0));
    });
    case("none", &["0 samples", "HW-R003"], &|f| {
        f.tensors.insert("labels".into(), Tensor::full(&TensorType::new(DType::I64, [0]), 1.0));
        f.tensors.insert("images".into(), Tensor::full(&TensorType::new(DType::F32, [0, 1, 8, 8]), 1.0));
    });
    for at in [0, 99, 359] {
        let sample = format!("sample {at}");
        for label in [-1.0, 10.0, 1e9] {
            let name = format!("label{label}at{at}");
            case(&name, &["labels", &sample, &name], &|f| {
                f.tensors.insert("labels".into(), set(&labels, at, label));
            });
        }
        for (word, x) in [("nan", f64::NAN), ("inf", f64::INFINITY), ("minus_inf", f64::NEG_INFINITY)] {
            let name = format!("{word}at{at}");
            case(&name, &["images", &sample, &name], &|f| {
                f.tensors.insert("images".into(), set(&images, at * 64, x));
            });
        }
    }
}

/// Command lines that fit no command, or name what does not exist.
fn lines(place: &Place, all: &mut Vec<Bad>) {
    let (model, train) = (example("digits_vit.pt2"), example("train.safetensors"));
    let usage = "--help";
    all.push(bad(&["fly"], 2, &["fly", usage]));
    for command in
        ["inspect", "compile", "check", "train", "eval", "predict", "export", "op", "explain", "migrate"]
    {
        all.push(bad(&[command, "--no-such-flag"], 2, &["--no-such-flag", usage]));
        if command != "migrate" && command != "explain" {
            all.push(bad(&[command], 2, &["required", usage]));
        }
    }
    let run = |more: &[&str], status: i32, names: &[&str]| {
        let args = [&["train", &model, "--data", &train], more].concat();
        bad(&args, status, names)
    };
    all.extend([
        run(&[], 2, &["--epochs", "--steps"]),
        run(&["--steps", "x"], 2, &["'x'", "--steps"]),
        run(&["--steps", "-1"], 2, &["-1", "--help"]),
        run(&["--steps", "1", "--epochs", "1"], 2, &["--epochs", "--steps"]),
        run(&["--steps", "1", "--lr", "nan"], 2, &["--lr", "finite"]),
        run(&["--steps", "1", "--lr", "-1"], 2, &["`lr`", "HW-R004"]),
        run(&["--steps", "1", "--optimizer", "sdg"], 2, &["sdg", "did you mean sgd?"]),
        run(&["--steps", "1", "--schedule", "cosin"], 2, &["cosin", "did you mean cosine?"]),
        run(&["--steps", "1", "--decay", "some"], 2, &["some", "matrices, all or none"]),
        run(&["--steps", "1", "--metric", "f2"], 2, &["f2", "accuracy", "did you mean f1?"]),
        run(&["--steps", "1", "--dim", "batch"], 1, &["batch", "name=value"]),
        run(&["--steps", "1", "--dim", "nosuch=3"], 1, &["nosuch", "HW-I"]),
        run(&["--steps", "1", "--threads", "0"], 2, &["--threads", "1..=1024"]),
        run(&["--steps", "1", "--device", "tpu"], 2, &["tpu", "cpu"]),
        run(&["--steps", "1", "--device", "cpu:0"], 2, &["cpu", "qualifier"]),
        run(&["--steps", "1", "--resume"], 2, &["checkpoint.dir", "HW-R004"]),
        run(&["--steps", "1", "--resume", "--out", &place.path("tpyo")], 1, &["tpyo", "do not resume"]),
        run(&["--steps", "1", "--keep-best"], 2, &["eval.keep_best", "data.eval"]),
        run(&["--steps", "1", "--eval", &train, "--metric", "r2"], 2, &["eval.metric", "labels are classes"]),
        run(&["--steps", "1", "--eval", &train, "--metric", "perplexity"], 2, &["eval.metric", "no tokens"]),
        run(&["--steps", "1", "--patience", "0"], 2, &["eval.patience", "HW-R004"]),
        bad(&["explain", "HW-X999"], 1, &["HW-X999"]),
        bad(
            &["op", "no_such_operator", "--in", &train, "--out", &place.path("o")],
            1,
            &["no_such_operator", "--operators"],
        ),
        bad(
            &["op", "softmax", "--in", &train, "--out", &place.path("o"), "--attr", "dim"],
            1,
            &["dim", "key=value"],
        ),
        bad(
            &["op", "softmax", "--in", &train, "--out", &place.path("o"), "--attr", "dim=x"],
            1,
            &["softmax"],
        ),
        bad(&["eval", &model, "--data", &train, "--labels", "nosuch"], 1, &["nosuch", "labels"]),
        bad(&["eval", &model, "--data", &train, "--weights", &place.path("nowhere")], 1, &["nowhere"]),
        bad(&["eval", &model, "--data", &train, "--name", "images"], 2, &["images", "input=column"]),
        bad(
            &["predict", &model, "--data", &train, "--out", &place.path("no/such/folder.npz")],
            1,
            &["folder.npz"],
        ),
        bad(
            &["export", &place.path("nowhere"), "--model", &model, "--out", &place.path("x.pt2")],
            1,
            &["nowhere"],
        ),
        bad(&["eval", &model, "--data", &train, "--ema"], 2, &["--weights"]),
        bad(
            &["export", &train, "--ema", "--out", &place.path("x.safetensors")],
            1,
            &["has no ema.safetensors", "--ema 0.999"],
        ),
    ]);
}

#[test]
fn bad_inputs_end_in_a_message_that_names_them_and_a_way_out() {
    let place = Place(tempfile::tempdir().unwrap());
    let (mut all, mut counts) = (Vec::new(), Vec::new());
    let tables: [(&str, fn(&Place, &mut Vec<Bad>)); 7] = [
        ("settings", settings),
        ("files", files),
        ("folders", folders),
        ("tokenizers", tokenizers),
        ("Arrow", arrow),
        ("samples", samples),
        ("command lines", lines),
    ];
    for (name, table) in tables {
        let before = all.len();
        table(&place, &mut all);
        counts.push(format!("{name} {}", all.len() - before));
    }
    println!("{} bad inputs: {}", all.len(), counts.join(", "));
    assert!(all.len() >= 200, "{} bad inputs", all.len());
    let names = |dir: &Path| -> Vec<PathBuf> {
        let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        all.sort();
        all
    };
    let before = names(place.0.path());
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let run = |args: &[String]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        command.args(args).stdin(Stdio::null()).current_dir(place.0.path());
        // A backtrace is no part of a message.
        let output = command.env_remove("RUST_BACKTRACE").output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(b) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (status, said) = run(&b.args);
                    let lacks: Vec<&String> = b.names.iter().filter(|n| !said.contains(n.as_str())).collect();
                    if status != Some(b.status) || !lacks.is_empty() || said.contains("panicked") {
                        let line = b.args.join(" ");
                        wrong.lock().unwrap().push(format!("{line}\n  {status:?}, lacks {lacks:?}: {said}"));
                    }
                    // A code is a way out if it is explained.
                    let code = said.find("HW-").map(|at| said[at..].chars().take(7).collect::<String>());
                    if let Some(code) = code
                        && run(&["explain".into(), code.clone()]).0 != Some(0)
                        && b.args[0] != "explain"
                    {
                        wrong.lock().unwrap().push(format!("{code} is not explained"));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    assert_eq!(names(place.0.path()), before, "a bad input left something behind");
}
