//! Jobs as a newcomer writes them: another run than the recorded one, no golden, no data, another archive's
//! golden.

use headwater::core::device::Device;
use headwater::cpu::Cpu;
use headwater::curve::recorded_training;
use headwater::golden::Golden;
use headwater::migrate::{Begin, Job, New, Watcher, migrate, write_new};
use headwater::report::{Report, Section, Verdict, html};
use headwater::runtime::optim::Optimizer;
use headwater::runtime::trainer::{Event, Observer};
use headwater::tensors::{TensorFile, sha256};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// A folder with the job of these settings.
fn job(settings: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in
        ["digits_vit.pt2", "digits_vit.golden.safetensors", "train.safetensors", "heldout.safetensors"]
    {
        std::fs::copy(digits(file), dir.path().join(file)).unwrap();
    }
    std::fs::write(dir.path().join("migrate.toml"), settings).unwrap();
    dir
}

/// Runs the job of these settings, of a few steps.
fn run(settings: &str) -> Report {
    run_in(job(settings).path())
}

fn run_in(dir: &Path) -> Report {
    let out = tempfile::tempdir().unwrap();
    run_into(dir, out.path(), Begin::Anew, &mut Quiet, &AtomicBool::new(false))
}

fn run_into(dir: &Path, out: &Path, begin: Begin, watcher: &mut dyn Watcher, stop: &AtomicBool) -> Report {
    run_on(Arc::new(Cpu::new(2)), dir, out, begin, watcher, stop)
}

fn run_on(
    device: Arc<dyn Device>,
    dir: &Path,
    out: &Path,
    begin: Begin,
    watcher: &mut dyn Watcher,
    stop: &AtomicBool,
) -> Report {
    migrate(dir, out, begin, device, |_| Ok(()), watcher, stop).unwrap_or_else(|e| panic!("{e:#}")).0
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
        (
            "steps = 20",
            "steps = 20\naccumulate = 2",
            "a step averages the gradients of 1 batches there, of 2 here",
        ),
        (
            "steps = 20",
            "steps = 20\ngroups = [{ parameters = \"*\", lr = 1e-3 }]",
            "settings of their own (`groups`) are none there, `*` here",
        ),
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
fn a_job_freezes_parameters() {
    let settings = recorded(3, |job| job.replace("steps = 3", "steps = 3\nfreeze = [\"blocks.*\"]"));
    let (dir, out) = (job(&settings), tempfile::tempdir().unwrap());
    let report = run_into(dir.path(), out.path(), Begin::Anew, &mut Quiet, &AtomicBool::new(false));
    assert!(report.passed(), "{:?}", report.sections.iter().map(|s| &s.summary).collect::<Vec<_>>());
    // Its curve is no longer PyTorch's, and is said not to be.
    let s = step(&report, "curve");
    assert!(
        s.verdict == Verdict::Note && s.summary.contains("frozen by the settings here (`freeze`)"),
        "{}",
        s.summary
    );
    let read = |path: PathBuf| TensorFile::read(&path).unwrap().tensors;
    let state = read(out.path().join("run/step-00000003/state.safetensors"));
    assert!(state.keys().any(|k| k == "exp_avg.head.weight"));
    assert!(!state.keys().any(|k| k.starts_with("exp_avg.blocks.")), "{:?}", state.keys());
}

/// A device with neither f64 nor i64 arithmetic, with a memory of its own and streams that run late: every
/// verdict but the accuracy, for which the run is too short.
#[test]
fn the_job_passes_on_the_strictest_device() {
    let device = headwater::devices::open("reference", 1).unwrap();
    // With the second run, in f16 with masters.
    let settings = std::fs::read_to_string(digits("migrate.toml")).unwrap();
    let settings = settings.replace("steps = 550", "steps = 3").replace("accuracy = 0.96", "");
    let (dir, out) = (job(&settings), tempfile::tempdir().unwrap());
    let report = run_on(device, dir.path(), out.path(), Begin::Anew, &mut Quiet, &AtomicBool::new(false));
    for s in &report.sections {
        assert!(s.verdict == Verdict::Pass || s.title.contains("Evaluation"), "{}: {}", s.title, s.summary);
    }
    assert!(report.passed());
    let s = step(&report, "curve");
    assert!(s.summary.contains("over the first 3 steps"), "{}", s.summary);
}

#[test]
fn what_is_not_named_becomes_a_note() {
    let report = run("[model]\nexport = \"digits_vit.pt2\"\n");
    assert!(report.passed());
    for title in ["Forward", "Gradients", "Training"] {
        assert_eq!(step(&report, title).verdict, Verdict::Note, "{title}");
    }
    assert!(step(&report, "Training").summary.contains("[train.data]"));
    assert_eq!(report.conclusion(), "2 passed; 3 proved nothing: forward, gradients, training");
    assert_eq!(report.results()["proved_nothing"], serde_json::json!(["forward", "gradients", "training"]));
    let page = headwater::report::html::page(&report, None);
    assert!(page.contains("badge note\">2 passed; 3 proved nothing"), "the page says so too");
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
fn a_recorded_run_that_cannot_be_repeated_becomes_a_job_and_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::copy(digits("digits_vit.pt2"), at("m.pt2")).unwrap();
    std::fs::copy(digits("train.safetensors"), at("train.safetensors")).unwrap();
    let recorded = TensorFile::read(&digits("digits_vit.golden.safetensors")).unwrap();
    // On the data, or on the golden's one batch.
    let write = |name: &str, options: Value, autocast: Option<&str>, data: bool| {
        let mut golden = recorded.clone();
        let mut fact = |key: &str, value: String| golden.metadata.insert(key.into(), value);
        let mut around =
            json!({ "name": name, "decay": "all", "schedule": "constant", "autocast": autocast });
        around.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        fact("optimizer", around.to_string());
        if data {
            let mut optimizer = options;
            optimizer["name"] = name.to_lowercase().into();
            let run = json!({
                "steps": 2, "batch": 64, "seed": 3, "decay": "all", "schedule": "constant", "warmup": 0, "end": 0.0,
                "optimizer": optimizer, "data": { "train": "train.safetensors", "last": "drop" },
            });
            fact("train", run.to_string());
            fact("data", "train.safetensors".into());
            fact("data_sha256", sha256(&at("train.safetensors")).unwrap());
        }
        golden.write(&at("m.golden.safetensors")).unwrap();
        let job = at("migrate.toml");
        if job.exists() {
            std::fs::remove_file(&job).unwrap();
        }
        let written = write_new(&New { model: at("m.pt2"), ..New::default() }).unwrap();
        (Job::read(dir.path()).unwrap(), written.notes.join("\n"))
    };
    let adam = json!({ "lr": 0.004, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 0.125 });
    let with = |key: &str, value: Value| {
        let mut all = adam.clone();
        all[key] = value;
        all
    };
    let own: Optimizer = serde_json::from_value(with("name", "adamw".into())).unwrap();

    // Adam with decoupled decay is AdamW, and compared.
    let (job, said) = write("Adam", with("decoupled_weight_decay", true.into()), None, true);
    assert_eq!((&job.train.optimizer, job.train.seed), (&own, 3));
    assert!(said.contains("the curves will be compared"), "{said}");
    let golden = Golden::read(&at("m.golden.safetensors")).unwrap();
    assert_eq!(recorded_training(&golden).unwrap().optimizer, own);

    // Others are not: AdamW takes what it shares with them.
    let adafactor = json!({ "lr": 0.5, "eps": [null, 1e-3], "d": 1.0 });
    for (name, options, optimizer) in
        [("Adafactor", adafactor, Optimizer::default()), ("SparseAdam", adam.clone(), own.clone())]
    {
        let (job, said) = write(name, options.clone(), None, false);
        assert_eq!(job.train.optimizer, Optimizer::default(), "{name}");
        assert!(
            said.contains(&format!("its optimizer was {name}, which")) && said.contains("one batch"),
            "{said}"
        );
        let (job, said) = write(name, options, None, true);
        assert_eq!(
            (&job.train.optimizer, job.train.steps, job.train.seed),
            (&optimizer, Some(2), 3),
            "{name}"
        );
        let named = format!("its optimizer was {} (", name.to_lowercase());
        assert!(said.contains(&named) && said.contains("is AdamW here"), "{said}");
        assert!(said.contains("will not be compared, the other steps count"), "{said}");
    }
    let page = std::fs::read_to_string(at("migrate.toml")).unwrap();
    std::fs::write(at("migrate.toml"), page.replace("level = \"O1\"", "level = \"O0\"")).unwrap();
    let report = run_in(dir.path());
    let s = step(&report, "curve");
    assert!(
        s.verdict == Verdict::Note && s.summary.contains("the optimizer is SparseAdam there"),
        "{}",
        s.summary
    );
    assert!(report.passed());

    // Nor is what was recorded in another precision.
    for data in [true, false] {
        let (job, said) = write("AdamW", adam.clone(), Some("bfloat16"), data);
        assert_eq!(job.train.optimizer, own);
        assert!(said.contains("`torch.autocast` in bfloat16") && said.contains("not be compared"), "{said}");
    }
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
    let next = wrong.next.as_deref().unwrap_or_default();
    assert!(next.contains("recorded from slices.core.pt2"), "{next}");
}

/// Sets the flag after so many steps of all runs.
struct StopsAt<'a>(usize, &'a AtomicBool);

impl Observer for StopsAt<'_> {
    fn event(&mut self, event: &Event) -> headwater::runtime::Result<()> {
        if matches!(event, Event::Step(_)) {
            self.0 -= 1;
            if self.0 == 0 {
                self.1.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

impl Watcher for StopsAt<'_> {
    fn begin(&mut self, _: usize, _: &str) {}
    fn end(&mut self, _: usize, _: &Section) {}
    fn training(&mut self) -> &mut dyn Observer {
        self
    }
}

/// Reads the page after the first step of each run.
struct Reads<'a>(&'a Path, Vec<String>, bool);

impl Observer for Reads<'_> {
    fn event(&mut self, event: &Event) -> headwater::runtime::Result<()> {
        match event {
            Event::Start(_) => self.2 = true,
            Event::Step(_) if std::mem::take(&mut self.2) => {
                self.1.push(std::fs::read_to_string(self.0.join("report.html")).unwrap());
            }
            _ => {}
        }
        Ok(())
    }
}

impl Watcher for Reads<'_> {
    fn begin(&mut self, _: usize, _: &str) {}
    fn end(&mut self, _: usize, _: &Section) {}
    fn training(&mut self) -> &mut dyn Observer {
        self
    }
}

#[test]
fn the_page_shows_a_run_while_it_goes_on() {
    let settings = recorded(3, |job| job).replace("level = \"O0\"", "level = \"O2\"");
    let (dir, out) = (job(&settings), tempfile::tempdir().unwrap());
    let mut reads = Reads(out.path(), Vec::new(), false);
    run_into(dir.path(), out.path(), Begin::Anew, &mut reads, &AtomicBool::new(false));
    let Reads(_, pages, _) = reads;
    assert_eq!(pages.len(), 2, "two runs");
    for (page, (number, title)) in pages.iter().zip([(5, "Training against"), (7, "Mixed precision")]) {
        let section = page.split("<section ").last().unwrap();
        let head = format!("<span class=\"number\">{number}</span>{title}");
        assert!(section.contains(&head) && section.contains("note\">running</span>"), "{section}");
        assert!(section.contains("running: step 1 of 3") && section.contains(" remain<"), "{section}");
        assert!(section.contains("<figcaption>Loss</figcaption>"), "{section}");
        assert_eq!(page.matches("<section ").count(), number, "the steps before are there too");
        assert!(page.contains("data-refresh=\"10\""));
    }
    let last = std::fs::read_to_string(out.path().join("report.html")).unwrap();
    assert!(!last.contains(">running<") && !last.contains("data-refresh=\"10\""));
}

#[test]
fn an_interrupted_migration_goes_on_and_ends_as_an_undisturbed_one() {
    let settings = recorded(8, |job| job).replace("level = \"O0\"", "level = \"O2\"");
    let dir = job(&settings);
    let read = |out: &Path, file: &str| std::fs::read(out.join(file)).unwrap();
    let whole = tempfile::tempdir().unwrap();
    let (quiet, never) = (&mut Quiet, AtomicBool::new(false));
    let report = run_into(dir.path(), whole.path(), Begin::Anew, quiet, &never);
    assert!(report.passed());
    // In the first run of 8 steps, and in the second, in mixed precision.
    for at in [5, 11] {
        let out = tempfile::tempdir().unwrap();
        let nothing = migrate(
            dir.path(),
            out.path(),
            Begin::Resume,
            Arc::new(Cpu::new(2)),
            |_| Ok(()),
            &mut Quiet,
            &never,
        );
        assert!(nothing.unwrap_err().to_string().contains("no migration to resume"));
        let stop = AtomicBool::new(false);
        let first = run_into(dir.path(), out.path(), Begin::Anew, &mut StopsAt(at, &stop), &stop);
        let stopped = first.sections.last().unwrap();
        assert!(!first.passed() && stopped.summary.contains("go on with --resume"), "{}", stopped.summary);
        // An error without a code: the command that goes on is printed with it.
        let line = format!("--out {} --resume`", out.path().display());
        assert!(stopped.next.as_ref().is_some_and(|n| n.contains(&line)), "{:?}", stopped.next);
        let second = run_into(dir.path(), out.path(), Begin::Resume, &mut Quiet, &never);
        assert!(second.passed());
        for key in ["losses", "steps", "last_loss", "curve_distance"] {
            assert_eq!(step(&second, "curve").values[key], step(&report, "curve").values[key], "{at}: {key}");
        }
        let mixed = |r: &Report| step(r, "Mixed").values["losses"].clone();
        assert_eq!(mixed(&second), mixed(&report), "{at}");
        assert_eq!(step(&second, "curve").values["resumed_at"], if at == 5 { 5 } else { 8 });
        let model = "run/step-00000008/model.safetensors";
        assert!(read(out.path(), model) == read(whole.path(), model), "{at}");
    }
}

#[test]
fn results_have_the_keys_that_the_page_documents() {
    let report = run(&recorded(3, |job| job).replace("level = \"O0\"", "level = \"O2\""));
    let results = report.results();
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md")).unwrap();
    let section = page.split("\n## ").find(|s| s.starts_with("`headwater migrate"));
    let documented: BTreeSet<String> = section
        .unwrap()
        .lines()
        .filter_map(|l| l.strip_prefix("| `")?.split_once('`'))
        .map(|(key, _)| key.to_string())
        .filter(|key| key.contains('.'))
        .collect();
    let common = ["title", "verdict", "summary", "next", "seconds"];
    let mut found = BTreeSet::new();
    for (step, values) in results["steps"].as_object().unwrap() {
        for key in values.as_object().unwrap().keys().filter(|k| !common.contains(&k.as_str())) {
            found.insert(format!("{step}.{key}"));
        }
    }
    assert_eq!(found, documented);
    let steps = &results["steps"];
    assert_eq!((&results["passed"], &steps["forward"]["verdict"]), (&true.into(), &"pass".into()));
    assert!(steps["forward"]["largest_error"]["f64"].as_f64().unwrap() < 1e-13);
    assert_eq!(steps["training"]["losses"].as_array().unwrap().len(), 3);
    let facts = results["facts"].as_object().unwrap();
    for (name, part) in [
        ("date", "Z"),
        ("headwater", env!("CARGO_PKG_VERSION")),
        ("PyTorch of the export", "2."),
        ("model", "SHA-256 "),
        ("golden", "SHA-256 "),
        ("training data", "SHA-256 "),
    ] {
        assert!(facts[name].as_str().unwrap().contains(part), "{name}: {}", facts[name]);
    }
}

#[test]
fn a_failed_step_says_what_to_do_next() {
    let dir = job(&recorded(2, |job| job));
    // One weight is another than the one that was recorded.
    let golden = dir.path().join("digits_vit.golden.safetensors");
    let mut file = TensorFile::read(&golden).unwrap();
    let loss = file.get("output.0").unwrap().clone();
    file.tensors.insert("output.0".into(), headwater::core::Tensor::full(&loss.ty, 9.0));
    file.write(&golden).unwrap();
    let report = run_in(dir.path());
    let forward = step(&report, "Forward");
    assert_eq!(forward.verdict, Verdict::Fail);
    assert!(forward.next.as_ref().is_some_and(|n| n.contains("ext: ")), "{:?}", forward.next);
    assert!(html::page(&report, None).contains("class=\"next\""));
}
