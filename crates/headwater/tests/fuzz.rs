//! Mutated goldens, settings, operators and whole models: a result or an error, and never a panic.

#[path = "../../runtime/tests/it/common/fuzz.rs"]
mod fuzz;
#[path = "../../import/tests/it/support/mutate.rs"]
mod mutate;

use fuzz::Random;
use headwater::check::check;
use headwater::core::ops::Case;
use headwater::core::ops::case::Sample;
use headwater::core::plan::parse;
use headwater::core::target::Target;
use headwater::core::{Attr, DType, Graph, Registry, Shape, conformance, evaluate, pass};
use headwater::cpu::Cpu;
use headwater::golden::{Golden, Kind};
use headwater::import::Dims;
use headwater::migrate::Job;
use headwater::model::Model;
use headwater::runtime::TrainConfig;
use headwater::runtime::optim::Optimizer;
use headwater::runtime::session::{Session, SessionModel, Training};
use serde_json::Value;
use std::io::{Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zip::write::{SimpleFileOptions, ZipWriter};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The smallest models that are recorded.
fn writes(ending: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(root("goldens/writes")).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<_> = all.filter(|p| p.to_string_lossy().ends_with(ending)).collect();
    all.sort();
    assert!(all.len() >= 10, "{ending}");
    all
}

#[test]
fn goldens() {
    let goldens = writes(".core.golden.safetensors");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("golden.safetensors");
    let device = Cpu::new(1);
    fuzz::run("goldens", |random| {
        let golden = random.pick(&goldens).clone();
        let mut bytes = std::fs::read(&golden).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        if random.one_in(3) {
            random.bytes(&mut bytes);
        } else {
            random.json(&mut header);
            let (header, rest) = (header.to_string(), bytes.split_off(8 + length));
            bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.into_bytes());
            bytes.extend(rest);
        }
        std::fs::write(&path, bytes).unwrap();
        let Ok(read) = Golden::read(&path) else { return false };
        let _ = (read.curve(), read.recorded_run(), read.json("optimizer"), read.inputs().len());
        Kind::ALL.iter().for_each(|(kind, _)| drop(read.values(*kind)));
        let model = golden.to_string_lossy().replace(".golden.safetensors", ".pt2");
        let model = Model::open(Path::new(&model)).unwrap();
        check(&model, &read, *random.pick(&[DType::F32, DType::F64]), &device).is_ok()
    });
}

#[test]
fn settings() {
    let dir = tempfile::tempdir().unwrap();
    let mut seeds = vec![toml::to_string(&TrainConfig::default()).unwrap()];
    for optimizer in Optimizer::all() {
        let config = TrainConfig { steps: Some(3), optimizer, ..TrainConfig::default() };
        seeds.push(toml::to_string(&config).unwrap());
    }
    for schedule in [
        r#"name = "plateau""#,
        r#"name = "multistep", milestones = [1, 2]"#,
        r#"name = "onecycle""#,
        r#"name = "restarts", t_0 = 2, t_mult = 3"#,
    ] {
        seeds.push(format!("steps = 9\nschedule = {{ {schedule} }}\ndata.train = 'x.npz'\n"));
    }
    for example in ["digits-vit", "bytes-gpt", "tabular-mlp", "encoder-finetune"] {
        seeds.push(std::fs::read_to_string(root("examples").join(example).join("migrate.toml")).unwrap());
    }
    let (train, job) = (dir.path().join("train.toml"), dir.path().join("migrate.toml"));
    fuzz::run("settings", |random| {
        let mut text = random.pick(&seeds).clone();
        if random.one_in(3) {
            let mut bytes = text.into_bytes();
            random.bytes(&mut bytes);
            text = String::from_utf8_lossy(&bytes).into_owned();
        } else {
            let table: toml::Table = toml::from_str(&text).unwrap();
            let mut doc = serde_json::to_value(table).unwrap();
            random.json(&mut doc);
            let Ok(changed) = toml::to_string(&doc) else { return false };
            text = changed;
        }
        std::fs::write(&train, &text).unwrap();
        std::fs::write(&job, &text).unwrap();
        let read = headwater::settings::read(&train);
        let accepted = match &read {
            Err(e) => {
                assert!(format!("{e:#}").contains("train.toml"), "{e:#}");
                false
            }
            Ok(c) => {
                let any = Target::default();
                for steps in [1, 9, u64::MAX] {
                    let Ok(s) = c.schedule(steps) else { continue };
                    [0, 1, 8, u64::MAX].iter().for_each(|&step| {
                        assert!(!s.rate(step).is_nan() || c.optimizer.rule().lr().is_nan())
                    });
                }
                c.check(&any).is_ok() & c.training(&any).is_ok() & c.total_steps(7).is_ok()
            }
        };
        Job::read(&job).is_ok() | accepted
    });
}

/// Elements of the largest value that is computed.
const LARGEST: usize = 1 << 14;

/// True if all of a graph's values are small.
fn small(graph: &Graph) -> bool {
    graph.values.iter().all(|v| v.ty.shape.checked_numel().is_some_and(|n| n <= LARGEST))
}

/// Another case of an operator: other shapes, attributes out of all reason.
fn changed(random: &mut Random, mut case: Case) -> Case {
    const INTS: [i64; 14] =
        [0, 1, -1, 2, 3, -2, 5, 64, i64::MAX, i64::MIN, i32::MAX as i64, i32::MIN as i64, 1 << 40, 1 << 62];
    for _ in 0..1 + random.below(3) {
        let names: Vec<&'static str> = case.attrs.iter().map(|(n, _)| n).collect();
        if !names.is_empty() && random.one_in(2) {
            let name = *random.pick(&names);
            let value = match case.attrs.get(name).cloned() {
                Some(Attr::Ints(mut v)) => {
                    match (v.is_empty(), random.below(4)) {
                        (true, _) | (_, 0) => v.push(*random.pick(&INTS)),
                        (_, 1) => drop(v.pop()),
                        _ => {
                            let at = random.below(v.len());
                            v[at] = *random.pick(&INTS);
                        }
                    }
                    Attr::Ints(v)
                }
                Some(Attr::Int(_)) => Attr::Int(*random.pick(&INTS)),
                Some(Attr::Float(_)) => {
                    Attr::Float(*random.pick(&[0.0, -1.0, 1e300, f64::NAN, f64::INFINITY, 1e-300, 3.5]))
                }
                Some(Attr::Bool(b)) => Attr::Bool(!b),
                Some(other) => other,
                None => continue,
            };
            case.attrs.set(name, value);
        } else if !case.inputs.is_empty() {
            let at = random.below(case.inputs.len());
            let Some(arg) = &mut case.inputs[at] else { continue };
            let mut dims = arg.ty.shape.to_vec();
            match random.below(4) {
                0 => dims.push(random.below(4)),
                1 => drop(dims.pop()),
                2 if random.one_in(4) => arg.ty.dtype = *random.pick(&DType::ALL),
                _ if !dims.is_empty() => {
                    let d = random.below(dims.len());
                    dims[d] = *random.pick(&[0, 1, 2, 3, 5, 8]);
                }
                _ => {}
            }
            if dims.iter().product::<usize>() <= 1 << 10 {
                arg.ty.shape = Shape::new(&dims);
                // Values that were listed no longer fit.
                if let Sample::Values(v) = &arg.sample {
                    let largest = v.iter().copied().fold(1.0, f64::max);
                    arg.sample = Sample::Uniform(0.0, largest + 1.0);
                }
            }
        }
    }
    case
}

#[test]
fn operators() {
    let device = Cpu::new(1);
    let all = Registry::standard().operators();
    fuzz::run("operators", |random| {
        let op = *random.pick(&all);
        let cases = (op.cases)();
        if cases.is_empty() {
            return false;
        }
        let case = random_case(random, cases);
        let case = changed(random, case);
        let Some(graph) =
            conformance::graph_of(op, &case, *random.pick(&[DType::F32, DType::F64, DType::BF16]))
        else {
            return false;
        };
        small(&graph) && evaluate(&device, &graph, &conformance::numbers(&graph, &case)).is_ok()
    });
}

fn random_case(random: &mut Random, mut cases: Vec<Case>) -> Case {
    let at = random.below(cases.len());
    cases.swap_remove(at)
}

/// The entries of an archive.
fn entries(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let count = archive.len();
    let read = |i| {
        let mut entry = archive.by_index(i).unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (entry.name().unwrap().into_owned(), content)
    };
    (0..count).map(read).collect()
}

#[test]
fn plans() {
    let models: Vec<_> = writes(".core.pt2").iter().map(|p| entries(p)).collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.pt2");
    let device = Arc::new(Cpu::new(1));
    fuzz::run("plans", |random| {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in random.pick(&models) {
            let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
            zip.start_file(name.as_str(), stored).unwrap();
            let json = name.ends_with("models/model.json")
                || name.ends_with("model_weights_config.json") && random.one_in(4);
            if json && !random.one_in(8) {
                let mut doc: Value = serde_json::from_slice(content).unwrap();
                random.json(&mut doc);
                zip.write_all(doc.to_string().as_bytes()).unwrap();
            } else {
                zip.write_all(content).unwrap();
            }
        }
        std::fs::write(&path, zip.finish().unwrap().into_inner()).unwrap();
        let Ok(model) = Model::open(&path) else { return false };
        let Ok(bound) = model.bind(&Dims::new().or_exported()) else { return false };
        if !small(&bound.graph) {
            return false;
        }
        let exported = SessionModel { graph: &bound.graph, weights: &bound };
        let training = Some(Training::default()).filter(|_| !random.one_in(4));
        let trains = training.is_some();
        let Ok(mut session) = Session::new(device.clone(), exported, training) else { return false };
        let program = match trains {
            true => session.program(),
            false => session.evaluation_program(&bound.graph),
        };
        let Ok(program) = program else { return false };
        let feeds: Vec<Vec<u8>> = session.inputs(program).map(|(_, ty)| vec![0; ty.bytes()]).collect();
        let ran = match trains {
            true => session
                .begin_step()
                .and_then(|()| session.gradients(program, &feeds))
                .and_then(|()| session.update(1e-3).map(drop)),
            false => session.evaluate(program, &feeds),
        };
        // The plan's own text, changed: it is refused, or a plan whose memory can be checked.
        let mut text = session.plan(program).to_string().into_bytes();
        random.bytes(&mut text);
        if let Ok(plan) = parse(&String::from_utf8_lossy(&text), Registry::standard()) {
            let _ = pass::check_plan(&plan);
        }
        ran.is_ok()
    });
}
