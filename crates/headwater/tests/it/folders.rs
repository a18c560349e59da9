//! Data as pandas, Pillow and Hugging Face write them, from files to a migration in which every step that
//! compares passes. `python -m headwater_tools.folders crates/headwater/tests/folders` made the files.

use headwater::core::{DType, Tensor, TensorType};
use headwater::runtime::Dataset;
use headwater::tensors::TensorFile;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exit status, standard output and standard error with runs of blanks as one.
fn headwater(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_headwater")).args(args).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ");
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/folders").join(name)
}

/// A writable copy of a folder of the tests.
fn copy(name: &str) -> tempfile::TempDir {
    fn all(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => all(&entry.path(), &to),
                false => drop(std::fs::copy(entry.path(), to).unwrap()),
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    all(&folder(name), dir.path());
    dir
}

/// Migrates the model of a folder, on these data of it, with settings of its job changed: the page of the
/// report. Nothing fails, and forward pass, gradients and held-out data pass.
fn migrated(dir: &Path, data: &str, eval: &str, more: &[&str], settings: &[(&str, &str)]) -> String {
    let at = |name: &str| dir.join(name).to_str().unwrap().to_string();
    let (job, model) = (at("job"), at("model.pt2"));
    let (data, eval) = (at(data), at(eval));
    let new = ["migrate", &job, "--new", &model, "--data", &data, "--eval", &eval];
    let (status, shown, said) = headwater(&[&new[..], more].concat());
    assert_eq!(status, 0, "{shown} {said}");
    let file = dir.join("job/migrate.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let changed = settings.iter().fold(text.clone(), |t, (from, to)| {
        assert!(t.contains(from), "{from}: {t}");
        t.replace(from, to)
    });
    std::fs::write(&file, changed).unwrap();
    let (status, shown, said) = headwater(&["migrate", &job, "--out", &at("out"), "--json"]);
    let results: Value = serde_json::from_str(&shown).unwrap_or_default();
    assert_eq!(status, 0, "{shown} {said}");
    assert_eq!(results["passed"], true, "{results:#}");
    for step in ["forward", "gradients", "evaluation"] {
        assert_eq!(results["steps"][step]["verdict"], "pass", "{step}: {results:#}");
    }
    std::fs::read_to_string(dir.join("out/report.html")).unwrap()
}

/// Numbers of a column of a data set.
fn column(data: &Dataset, name: &str) -> (Vec<usize>, Vec<f64>) {
    let c = data.column(name).unwrap_or_else(|| panic!("no {name}: {:?}", data.columns()));
    let mut bytes = Vec::new();
    (0..c.ty.shape[0]).for_each(|i| c.append(i, DType::F64, &mut bytes).unwrap());
    (
        c.ty.shape.to_vec(),
        Tensor::from_bytes(&TensorType::new(DType::F64, c.ty.shape.clone()), &bytes).to_f64(),
    )
}

#[test]
fn tables_of_pandas_are_columns_classes_and_vectors() {
    let dir = copy("adult");
    let train = Dataset::open(&dir.path().join("train-*.csv")).unwrap();
    let (shape, numbers) = column(&train, "numbers");
    // The first rows of both files, as to_csv wrote them.
    assert_eq!(shape, [600, 5]);
    assert_eq!(numbers[..5], [22.0, 695585.0, 12.0, 0.0, 38.5]);
    assert_eq!(numbers[2500..2505], [21.0, 97322.0, 3.0, 0.0, 11.5]);
    let (_, work) = column(&train, "workclass");
    assert_eq!(work[..2], [2.0, 0.0], "in the order of table.toml");
    let (_, married) = column(&train, "marital-status");
    assert_eq!(married[..2], [0.0, 2.0], "sorted: Divorced, Married-civ-spouse, Never-married");
    assert_eq!(train.class_names("income").unwrap(), ["<=50K", ">50K"]);
    assert_eq!(train.column("education-num").unwrap().ty.dtype, DType::F64);

    // A file without a table.toml beside it says where one would help.
    let alone = dir.path().join("alone");
    std::fs::create_dir(&alone).unwrap();
    std::fs::copy(dir.path().join("heldout.csv"), alone.join("people.csv")).unwrap();
    let (model, data) = (dir.path().join("model.pt2"), alone.join("people.csv"));
    let eval = ["eval", model.to_str().unwrap(), "--data", data.to_str().unwrap()];
    let (status, _, said) =
        headwater(&[&eval[..], &["--name", "numbers=age", "--name", "labels=income"]].concat());
    assert!(status == 1 && said.contains("input numbers takes samples of [5], age in"), "{said}");
    assert!(said.contains("[vectors]") && said.contains("table.toml"), "{said}");
    std::fs::write(alone.join("table.toml"), "[vectors]\nnumbers = [\"age\", \"workclass\"]\n").unwrap();
    let (_, _, said) = headwater(&eval);
    assert!(
        said.contains("`numbers` below [vectors]: there is no column `workclass` of single numbers"),
        "{said}"
    );
    let five = "[vectors]\nnumbers = ['age', 'fnlwgt', 'education-num', 'capital-gain', 'hours-per-week']\n";
    std::fs::write(alone.join("table.toml"), five).unwrap();
    let (_, _, said) = headwater(&[&eval[..], &["--name", "workclass=workclass"]].concat());
    assert!(said.contains("[classes]") && said.contains("workclass = \"auto\""), "{said}");
    std::fs::write(alone.join("table.toml"), "[classes]\nincome = [\">50K\"]\n").unwrap();
    let (_, _, said) = headwater(&eval);
    assert!(said.contains("`income` of row 0 is \"<=50K\", which is none of its [classes]"), "{said}");
}

#[test]
fn a_table_of_pandas_migrates_with_one_logit_and_names() {
    let dir = copy("adult");
    let names = ["--name", "labels=income", "--name", "marital=marital-status"];
    let settings = [("epochs = 3.0", "epochs = 12.0"), ("lr = 0.001", "lr = 0.02")];
    let page = migrated(dir.path(), "train-*.csv", "heldout.csv", &names, &settings);
    assert!(page.contains("&lt;=50K") && page.contains("&gt;50K") && page.contains("ROC-AUC"));

    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (model, data, run) = (at("model.pt2"), at("heldout.csv"), at("out/f32/checkpoints"));
    let run = match Path::new(&run).exists() {
        true => run,
        false => newest(&dir.path().join("out")),
    };
    let weights =
        ["--data", &data, "--weights", &run, "--name", "labels=income", "--name", "marital=marital-status"];
    let (status, shown, said) = headwater(&[&["--json", "eval", &model], &weights[..]].concat());
    assert_eq!(status, 0, "{said}");
    let scores = &serde_json::from_str::<Value>(&shown).unwrap()["scores"];
    let number = |key: &str| scores[key].as_f64().unwrap_or_else(|| panic!("{key}: {scores:#}"));
    assert!(number("accuracy") > 0.8 && number("roc_auc") > 0.85, "{scores:#}");
    assert!((number("log_loss") - number("loss")).abs() < 1e-4 * number("loss"), "{scores:#}");
    let each = &scores["by_class"]["each"];
    assert!(each[0]["name"] == "<=50K" && each[1]["name"] == ">50K", "{each:#}");

    // The same classes and probabilities in every form.
    let predict = |name: &str, more: &[&str]| {
        let out = at(name);
        let args = [&["predict", &model], &weights[..], more, &["--out", &out]].concat();
        let (status, _, said) = headwater(&args);
        assert_eq!(status, 0, "{name}: {said}");
        out
    };
    let tensors = TensorFile::read(Path::new(&predict("p.safetensors", &[]))).unwrap();
    let logits = tensors.get("output.1").unwrap().to_f64();
    let text = std::fs::read_to_string(predict("p.csv", &[])).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "sample,class,probability,probability of <=50K,probability of >50K");
    assert_eq!(lines.len(), 201);
    let mut right = 0;
    let truth = column(&Dataset::open(Path::new(&data)).unwrap(), "income").1;
    for (i, (line, logit)) in lines[1..].iter().zip(&logits).enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        let yes = 1.0 / (1.0 + (-logit).exp());
        let near = |cell: &str, want: f64| (cell.parse::<f64>().unwrap() - want).abs() < 1e-6;
        assert!(
            cells[0] == i.to_string() && near(cells[2], yes.max(1.0 - yes)) && near(cells[4], yes),
            "{line} {logit}"
        );
        assert_eq!(cells[1], if *logit > 0.0 { ">50K" } else { "<=50K" }, "{line} {logit}");
        right += usize::from((truth[i] == 1.0) == (*logit > 0.0));
    }
    assert_eq!(right as f64 / 200.0, number("accuracy"));
    // Parquet is read back by our own reader, words as classes.
    predict("p.parquet", &["--classes", "low,high"]);
    std::fs::create_dir(at("read")).unwrap();
    std::fs::rename(at("p.parquet"), at("read/p.parquet")).unwrap();
    std::fs::write(at("read/table.toml"), "[classes]\nclass = [\"low\", \"high\"]\n").unwrap();
    let read = Dataset::open(&dir.path().join("read")).unwrap();
    let class: Vec<f64> = logits.iter().map(|x| f64::from(*x > 0.0)).collect();
    assert_eq!(column(&read, "class").1, class);
    assert_eq!(column(&read, "probability of high").0, [200]);
    // New people have no income yet.
    let text = std::fs::read_to_string(&data).unwrap();
    let without: Vec<&str> = text.lines().map(|l| l.rsplit_once(',').unwrap().0).collect();
    std::fs::write(at("new.csv"), without.join("\n") + "\n").unwrap();
    let out = at("new-p.csv");
    let new =
        ["predict", &model, "--data", &at("new.csv"), "--weights", &run, "--name", "marital=marital-status"];
    let (status, _, said) = headwater(&[&new[..], &["--name", "labels=income", "--out", &out]].concat());
    assert_eq!(status, 0, "{said}");
    assert_eq!(std::fs::read_to_string(out).unwrap(), std::fs::read_to_string(at("p.csv")).unwrap());
    let (status, _, said) = headwater(
        &[&["predict", &model], &weights[..], &["--out", &at("p.npz"), "--classes", "a,b"]].concat(),
    );
    assert!(status == 1 && said.contains("--classes does nothing without a table"), "{said}");
}

/// The newest checkpoint below a folder.
fn newest(dir: &Path) -> String {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().unwrap().to_string_lossy().starts_with("step-") {
                    found.push(path.clone());
                }
                open.push(path);
            }
        }
    }
    found.sort();
    found.first().expect("a checkpoint").parent().unwrap().to_str().unwrap().to_string()
}

#[test]
fn samples_are_drawn_by_class_or_weight() {
    let dir = copy("adult");
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let train = |settings: &str| {
        std::fs::write(at("t.toml"), format!("steps = 6\nbatch = 32\n[data]\n{settings}\n")).unwrap();
        let args =
            ["train", &at("model.pt2"), "--data", &at("train-*.csv"), "--config", &at("t.toml"), "--json"];
        headwater(&[&args[..], &["--name", "labels=income", "--name", "marital=marital-status"]].concat())
    };
    let loss = |settings: &str| {
        let (status, shown, said) = train(settings);
        assert_eq!(status, 0, "{settings}: {said}");
        serde_json::from_str::<Value>(&shown).unwrap()["last_loss"].as_f64().unwrap()
    };
    let plain = loss("");
    assert!(loss("balance = 'income'") != plain && loss("weights = 'age'") != plain);
    for (settings, why) in [
        ("balance = 'income'\nweights = 'age'", "a sample has one weight"),
        ("balance = 'incom'", "has no tensor incom"),
        ("balance = 'education-num'", "must be one integer for each of 600 samples"),
        ("balance = 'income'\nsequential = true", "does nothing beside `data.sequential`"),
    ] {
        let (status, _, said) = train(settings);
        assert!(status != 0 && said.contains(why), "{settings}: {said}");
    }
}

#[test]
fn images_with_masks_migrate() {
    let dir = copy("segments");
    let place = dir.path().join("data");
    std::fs::create_dir(&place).unwrap();
    for part in ["photos", "masks", "images.toml"] {
        std::fs::rename(dir.path().join(part), place.join(part)).unwrap();
    }
    let data = Dataset::open(&place).unwrap();
    let (shape, masks) = column(&data, "masks");
    assert_eq!(shape, [12, 16, 16]);
    // The second file has the requested size, and a row that is ignored.
    assert!(masks[256..272].iter().all(|x| *x == 255.0) && masks[272..512].iter().all(|x| *x <= 2.0));
    assert!(masks.contains(&1.0) && masks.contains(&2.0));
    let settings = [("epochs = 3.0", "epochs = 40.0"), ("lr = 0.001", "lr = 0.02")];
    let page = migrated(dir.path(), "data", "data", &[], &settings);
    assert!(page.contains("ground") && page.contains("disc") && page.contains("edge"));

    // A mask that is missing, of another size, or no mask at all is named.
    let (model, data) = (dir.path().join("model.pt2"), place.to_str().unwrap().to_string());
    let eval = || headwater(&["eval", model.to_str().unwrap(), "--data", &data]).2;
    let mask = place.join("masks/01.png");
    std::fs::copy(place.join("masks/00.png"), &mask).unwrap();
    let said = eval();
    assert!(
        said.contains("01.png") && said.contains("has 20 × 32 pixels") && said.contains("has 16 × 16"),
        "{said}"
    );
    std::fs::copy(place.join("photos/01.png"), &mask).unwrap();
    let said = eval();
    assert!(said.contains("01.png: has pixels of Rgb"), "{said}");
    std::fs::remove_file(&mask).unwrap();
    let said = eval();
    assert!(said.contains("01.png: has no mask"), "{said}");
}

#[test]
fn texts_with_saved_tokenizers_migrate() {
    for kind in ["gpt2", "bert", "llama", "t5"] {
        let dir = copy(kind);
        let place = dir.path().join("corpus");
        std::fs::create_dir(&place).unwrap();
        for part in ["texts.jsonl", "tokenizer.json", "text.toml"] {
            std::fs::rename(dir.path().join(part), place.join(part)).unwrap();
        }
        // In full precision alone: 64 texts part by more than the 1 % of loss that mixed precision may cost.
        let settings = [
            ("epochs = 3.0", "epochs = 16.0"),
            ("lr = 0.001", "lr = 0.01"),
            ("level = \"O1\"", "level = \"O0\""),
        ];
        let page = migrated(dir.path(), "corpus", "corpus", &[], &settings);
        let comment = std::fs::read_to_string(dir.path().join("job/migrate.toml")).unwrap();
        assert!(comment.contains("a folder of texts: columns `input_ids`"), "{comment}");
        if kind == "bert" {
            assert!(page.contains("short") && page.contains("Confusion matrix"));
        }

        // Written as tensors, the texts train to the same bits.
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
        let (status, shown, said) = headwater(&["data", &at("corpus"), "--out", &at("fed.safetensors")]);
        assert!(status == 0 && shown.contains("input_ids: i32[64, 12]"), "{shown} {said}");
        let loss = |data: &str| {
            let args = ["train", &at("model.pt2"), "--data", data, "--batch", "16", "--steps", "4", "--json"];
            let (status, shown, said) = headwater(&args);
            assert_eq!(status, 0, "{said}");
            serde_json::from_str::<Value>(&shown).unwrap()["last_loss"].clone()
        };
        assert_eq!(loss(&at("corpus")), loss(&at("fed.safetensors")));
        let (status, _, said) = headwater(&["data", &at("corpus"), "--out", &at("fed.safetensors")]);
        assert!(status == 1 && said.contains("--overwrite"), "{said}");
        let (status, _, said) =
            headwater(&["data", &at("corpus"), "--out", &at("x.npz"), "--columns", "ids"]);
        assert!(status == 1 && said.contains("has no column ids; it has: input_ids"), "{said}");
    }
}
