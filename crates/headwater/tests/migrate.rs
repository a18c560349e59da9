//! Jobs as a newcomer writes them: another run than the recorded one, no golden, no data, another archive's
//! golden.

use headwater::cpu::Cpu;
use headwater::migrate::{Job, New, Watcher, migrate, write_new};
use headwater::report::{Report, Section, Verdict};
use headwater::runtime::trainer::{Event, Observer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

struct Quiet;

impl Observer for Quiet {
    fn event(&mut self, _: &Event) -> headwater::runtime::Result<()> {
        Ok(())
    }
}

impl Watcher for Quiet {
    fn begin(&mut self, _: usize, _: &str) {}
    fn end(&mut self, _: usize, _: &Section) {}
    fn training(&mut self) -> &mut dyn Observer {
        self
    }
}

fn digits(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit").join(file)
}

/// Runs the job of these settings, of a few steps.
fn run(settings: &str) -> Report {
    let dir = tempfile::tempdir().unwrap();
    for file in
        ["digits_vit.pt2", "digits_vit.golden.safetensors", "train.safetensors", "heldout.safetensors"]
    {
        std::fs::copy(digits(file), dir.path().join(file)).unwrap();
    }
    std::fs::write(dir.path().join("migrate.toml"), settings).unwrap();
    run_in(dir.path())
}

fn run_in(dir: &Path) -> Report {
    let out = tempfile::tempdir().unwrap();
    let (device, stop) = (Arc::new(Cpu::new(2)), AtomicBool::new(false));
    migrate(dir, out.path(), true, device, |_| Ok(()), &mut Quiet, &stop)
        .unwrap_or_else(|e| panic!("{e:#}"))
        .0
}

fn step<'a>(report: &'a Report, title: &str) -> &'a Section {
    report.sections.iter().find(|s| s.title.contains(title)).unwrap_or_else(|| panic!("no step {title}"))
}

/// The recorded run's own settings, to be changed one by one.
fn recorded(steps: u64, change: impl Fn(String) -> String) -> String {
    let job = std::fs::read_to_string(digits("migrate.toml")).unwrap();
    let job = job.replace("steps = 550", &format!("steps = {steps}")).replace("accuracy = 0.96", "");
    change(job).replace("level = \"O2\"", "level = \"O0\"")
}

#[test]
fn the_recorded_run_is_compared_and_another_one_is_not() {
    // The curve's rates are those of 550 steps: a shorter run with a cosine would be another one after the
    // warm-up.
    let same = run(&recorded(20, |job| job));
    let s = step(&same, "curve");
    assert!(s.verdict == Verdict::Pass && s.summary.contains("over the first 20 steps"), "{}", s.summary);
    for (from, to, named) in [
        ("name = \"adamw\"", "name = \"adam\"", "the optimizer is adamw"),
        ("lr = 3e-3", "lr = 2e-3", "the learning rate of step 1 is 3e-5 there, 2e-5 here"),
        ("clip_norm = 1.0", "", "clip_norm is 1 there, none here"),
        ("decay = \"matrices\"", "decay = \"all\"", "weight decay is for `matrices` there, `all` here"),
        ("order = ", "# order = ", "batch 1 takes other samples"),
        ("steps = 20", "steps = 20\naccumulate = 2", "a step averages 2 batches here"),
        ("steps = 20", "steps = 20\namp = { level = \"O1\" }", "the precision is full there, O1 here"),
        ("batch = 64", "batch = 32", "a batch has 64 samples there, 32 here"),
    ] {
        let drop_order = |job: String| match from {
            "batch = 64" => job.replace("order = ", "# order = "),
            _ => job,
        };
        let report = run(&recorded(3, |job| {
            let job = job.replace("steps = 20", "steps = 3");
            let changed = drop_order(job.replace(&from.replace("20", "3"), &to.replace("20", "3")));
            assert_ne!(job, changed, "{from}");
            changed
        }));
        let s = step(&report, "curve");
        assert_eq!(s.verdict, Verdict::Note, "{from}: {}", s.summary);
        assert!(s.summary.contains(named), "{named}: {}", s.summary);
        assert!(report.passed(), "the other steps count");
    }
}

#[test]
fn what_is_not_named_becomes_a_note() {
    let report = run("[model]\nexport = \"digits_vit.pt2\"\n");
    assert!(report.passed());
    for title in ["Forward", "Gradients", "Training"] {
        assert_eq!(step(&report, title).verdict, Verdict::Note, "{title}");
    }
    assert!(step(&report, "Training").summary.contains("[train.data]"));
    let report = run(&recorded(2, |job| {
        job.replace("golden = ", "# golden = ")
            .replace("order = ", "# order = ")
            .replace("eval = \"h", "# eval = \"h")
    }));
    assert!(report.passed());
    assert!(step(&report, "curve").summary.contains("no curve of PyTorch's"));
    assert_eq!(step(&report, "Evaluation").verdict, Verdict::Note);
    assert_eq!(step(&report, "Bundle").verdict, Verdict::Pass);
}

#[test]
fn new_jobs_run_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::copy(digits("digits_vit.pt2"), at("m.pt2")).unwrap();
    let new = New { model: at("m.pt2"), ..New::default() };
    let named = New {
        data: Some(digits("train.safetensors")),
        eval: Some(digits("heldout.safetensors")),
        ..new.clone()
    };
    // A model alone.
    let written = write_new(&new).unwrap();
    assert_eq!(written.path, at("migrate.toml"));
    assert!(run_in(dir.path()).passed());
    let again = write_new(&new).unwrap_err().to_string();
    assert!(again.contains("already exists"), "{again}");
    // With data elsewhere.
    std::fs::remove_file(at("migrate.toml")).unwrap();
    write_new(&named).unwrap();
    let job = Job::read(dir.path()).unwrap();
    assert_eq!((job.train.batch, job.train.epochs), (Some(32), Some(3.0)));
    assert_eq!(
        job.train.data.train.canonicalize().unwrap(),
        digits("train.safetensors").canonicalize().unwrap()
    );
    // With a golden beside it: the job trains on its one batch, which is not what its curve was recorded on.
    std::fs::remove_file(at("migrate.toml")).unwrap();
    std::fs::copy(digits("digits_vit.golden.safetensors"), at("m.golden.safetensors")).unwrap();
    write_new(&new).unwrap();
    let job = Job::read(dir.path()).unwrap();
    assert_eq!(job.train.data.names["images"], "input.0");
    assert!(job.golden.is_some() && job.train.optimizer.rule().weight_decay() == 0.2);
}

#[test]
fn a_golden_of_another_archive_is_known_by_its_hash() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../goldens");
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(root.join("writes/masks.core.pt2"), dir.path().join("m.pt2")).unwrap();
    std::fs::copy(root.join("writes/slices.core.golden.safetensors"), dir.path().join("g.safetensors"))
        .unwrap();
    let settings = "[model]\nexport = \"m.pt2\"\ngolden = \"g.safetensors\"\n";
    std::fs::write(dir.path().join("migrate.toml"), settings).unwrap();
    let report = run_in(dir.path());
    assert!(!report.passed());
    let wrong = report.sections.iter().find(|s| s.verdict == Verdict::Fail).unwrap();
    assert!(wrong.summary.contains("recorded from slices.core.pt2"), "{}", wrong.summary);
}
