//! Sixty mistakes that newcomers make on the command line. Each ends with the right exit status, in a message
//! that says what is wrong and what is right.

use std::path::Path;
use std::process::{Command, Stdio};

/// A command line, with `{model}`, `{train}`, `{own}` (the folder of the tests' files) and `{dir}` (an empty
/// folder) for files; its exit status; parts of the message.
const MISTAKES: &[(&str, i32, &[&str])] = &[
    // Commands and options.
    ("trian {model}", 2, &["unrecognized subcommand 'trian'", "'train'"]),
    ("train", 2, &["<MODEL>", "--help"]),
    ("train {model} --datas x", 2, &["--datas", "'--data'"]),
    ("train {model} --steps 5", 2, &["--data"]),
    ("train {model} --data {train}", 2, &["--epochs or --steps"]),
    ("train {model} --data {train} --steps five", 2, &["'five'", "--steps"]),
    ("train {model} --data {train} --steps 1 --epochs 1", 2, &["cannot be used with"]),
    ("train {model} --data {train} --steps 1 --lr -1", 2, &["`lr`"]),
    ("train {model} --data {train} --steps 1 --lr inf", 2, &["--lr", "finite"]),
    ("train {model} --data {train} --steps 1 --weight-decay -1", 2, &["weight_decay"]),
    ("train {model} --data {train} --steps 1 --optimizer adamw2", 2, &["did you mean adamw?", "sgd"]),
    ("train {model} --data {train} --steps 1 --optimizer Adagard", 2, &["did you mean adagrad?"]),
    ("train {model} --data {train} --steps 1 --schedule cosin", 2, &["did you mean cosine?", "onecycle"]),
    ("train {model} --data {train} --steps 1 --schedule step", 2, &["every", "settings file"]),
    (
        "train {model} --data {train} --steps 1 --eval {train} --metric acc",
        2,
        &["did you mean accuracy?", "perplexity"],
    ),
    ("train {model} --data {train} --steps 1 --decay matrics", 2, &["did you mean matrices?"]),
    ("train {model} --data {train} --steps 1 --amp O5", 2, &["O0, O1, O2, O3 or auto"]),
    ("train {model} --data {train} --steps 1 --amp O2 --dtype fp8", 2, &["--dtype fp8", "bf16"]),
    ("train {model} --data {train} --steps 1 --policy appex", 2, &["appex", "apex"]),
    ("train {model} --data {train} --steps 1 --moments fp16", 2, &["f32, bf16 or int8"]),
    ("train {model} --data {train} --steps 1 --sparse-embeddings al", 2, &["did you mean all?"]),
    ("train {model} --data {train} --steps 1 --cast rond", 2, &["did you mean round?"]),
    ("train {model} --data {train} --steps 1 --memory-budget lots", 2, &["8GiB"]),
    ("train {model} --data {train} --steps 1 --threads 0", 2, &["1..=1024"]),
    ("train {model} --data {train} --steps 1 --name images", 2, &["input=column"]),
    ("train {model} --data {train} --steps 1 --buckets some", 2, &["32,64,128"]),
    // Options that would do nothing.
    ("train {model} --data {train} --steps 1 --eval-every 5", 2, &["--eval-every does nothing", "--eval"]),
    ("train {model} --data {train} --steps 1 --metric accuracy", 2, &["--metric does nothing", "--eval"]),
    ("train {model} --data {train} --steps 1 --labels labels", 2, &["--labels does nothing", "--eval"]),
    ("train {model} --data {train} --steps 1 --patience 2", 2, &["eval.patience", "data.eval"]),
    ("train {model} --data {train} --steps 1 --trace-steps 3", 2, &["--trace <FILE>"]),
    ("train {model} --data {train} --steps 1 --policy-file {dir}/p.toml", 2, &["--amp auto"]),
    ("train {model} --data {train} --steps 1 --save-every 5", 2, &["checkpoint.dir"]),
    ("train {model} --data {train} --steps 1 --resume", 2, &["checkpoint.dir"]),
    ("eval {model} --data {train} --ema", 2, &["--weights"]),
    ("eval {model} --data {train} --partial", 2, &["--weights"]),
    ("eval {model} --data {train} --lengths labels", 2, &["--buckets"]),
    // Devices.
    ("train {model} --data {train} --steps 1 --device nvidia", 2, &["an NVIDIA GPU is `cuda`"]),
    ("train {model} --data {train} --steps 1 --device npu", 2, &["an NPU is `ascend`"]),
    ("train {model} --data {train} --steps 1 --device cup", 2, &["did you mean cpu?"]),
    ("inspect {model} --device ascend-sim:910b", 2, &["910b1"]),
    ("kernels {model} --target 910b --out {dir}/k", 2, &["910b1", "did you mean"]),
    ("inspect {model} --device ascend-sim:310p --ascend-ops vendr", 2, &["did you mean vendor?"]),
    // Files.
    ("train {model}x --data {train} --steps 1", 1, &["does not exist", "did you mean", "digits_vit.pt2?"]),
    ("inspect {dir}/m.pt2", 1, &["m.pt2 does not exist"]),
    ("inspect {train}", 1, &["HW-I"]),
    ("migrate {model}", 1, &["is a model, and no job", "--new"]),
    ("migrate {dir}", 1, &["migrate.toml", "--new MODEL"]),
    ("train {model} --data {dir} --steps 1", 1, &["images.toml", "text.toml", "table.toml"]),
    ("train {model} --data {dir}/nowhere.npz --steps 1", 1, &["HW-R001", "nowhere.npz"]),
    ("train {model} --data {dir}/*.npz --steps 1", 1, &["matches no file"]),
    ("train {model} --data {model} --steps 1", 1, &["`.pt2` is no kind of data file", ".safetensors"]),
    ("predict {model} --data {train} --out {dir}/no/p.npz", 1, &["no/p.npz"]),
    ("export {train} --out {dir}/x.bin", 1, &[".safetensors or a .pt2"]),
    ("export {dir} --out {dir}/x.safetensors", 1, &["model.safetensors"]),
    ("check {model} {train}", 1, &["golden"]),
    // Models and weights that do not fit.
    ("train {own}/no_loss.pt2 --data {train} --steps 1", 1, &["HW-"]),
    ("eval {own}/no_loss.pt2 --data {train}", 1, &["no loss", "return loss, logits"]),
    ("eval {model} --data {train} --weights {golden}", 1, &["is a golden"]),
    ("eval {model} --data {train} --weights {train}", 1, &["no tensor of", "the model"]),
    ("eval {own}/table.pt2 --data {train}", 1, &["input x has no tensor x", "--name x=COLUMN"]),
    ("eval {model} --data {train} --labels label", 1, &["no input label", "labels"]),
    ("train {model} --data {train} --steps 1 --batch 0", 2, &["`batch`"]),
    ("train {model} --data {train} --steps 1 --batch 1000000", 1, &["1000000"]),
    ("predict {model} --data {train} --outputs 9 --out {dir}/p.npz", 1, &["no output 9", "returns 2 values"]),
    (
        "op gelu --in {train} --out {dir}/y.safetensors --grad",
        1,
        &["no overload of gelu takes images", "gelu(Tensor self", "grad_output.0"],
    ),
    (
        "train {model} --data {train} --steps 1 --memory-budget 100KiB",
        1,
        &["KiB: it takes", "Raise the budget"],
    ),
    (
        "train {model} --data {train} --steps 1 --freeze bloks.*",
        2,
        &["`bloks.*` matches no parameter", "position"],
    ),
    ("train {model} --data {train} --steps 1 --class-weights even", 2, &["balanced", "1,3.5"]),
    ("export {dir} --trainable --out {dir}/x.safetensors", 1, &["model.safetensors"]),
    (
        "kernels softmax --target 910b1 --shape 4x4 --project --out {dir}/k",
        2,
        &[
            "add, rms_norm, rms_norm_grad, embedding_grad",
            "a module with this operator alone",
            "kernels.json",
        ],
    ),
    ("explain HW-X1", 1, &["headwater explain"]),
];

#[test]
fn sixty_mistakes_end_in_a_message_with_the_way_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let example =
        |name: &str| root.join("../../examples/digits-vit").join(name).to_str().unwrap().to_string();
    let places = [
        ("{model}", example("digits_vit.pt2")),
        ("{train}", example("train.safetensors")),
        ("{golden}", example("digits_vit.golden.safetensors")),
        ("{own}", root.join("tests/newcomer").to_str().unwrap().to_string()),
        ("{dir}", dir.path().to_str().unwrap().to_string()),
    ];
    assert!(MISTAKES.len() >= 60, "{} mistakes", MISTAKES.len());
    let mut wrong = Vec::new();
    for (line, status, parts) in MISTAKES {
        let given = places.iter().fold(line.to_string(), |l, (name, path)| l.replace(name, path));
        let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
        let command =
            command.args(given.split(' ')).env_remove("COLUMNS").stdin(Stdio::null()).current_dir(dir.path());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let lacks: Vec<&&str> = parts.iter().filter(|part| !said.contains(**part)).collect();
        if output.status.code() != Some(*status) || !lacks.is_empty() {
            wrong.push(format!("{line}\n  {:?} for {status}, lacks {lacks:?}: {said}", output.status.code()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), MISTAKES.len(), wrong.join("\n"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a mistake left something behind");
}
