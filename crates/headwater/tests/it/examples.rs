//! The jobs of `examples/`, a few steps of each: every step of the move passes, and the loss falls.

use headwater::cpu::Cpu;
use headwater::migrate::{Accept, Begin, Watcher, migrate};
use headwater::report::{Report, Section, Verdict};
use headwater::runtime::trainer::{Event, Observer};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Collects the losses of each run of a job.
#[derive(Default)]
struct Losses(Vec<Vec<f64>>);

impl Observer for Losses {
    fn event(&mut self, event: &Event) -> headwater::runtime::Result<()> {
        match event {
            Event::Start(_) => self.0.push(vec![]),
            Event::Step(s) => self.0.last_mut().unwrap().push(s.loss),
            _ => {}
        }
        Ok(())
    }
}

impl Watcher for Losses {
    fn begin(&mut self, _: usize, _: &str) {}
    fn end(&mut self, _: usize, _: &Section) {}
    fn training(&mut self) -> &mut dyn Observer {
        self
    }
}

/// A job with so many steps and their own limits left out.
fn run(name: &str, steps: u64) -> (Report, Vec<Vec<f64>>) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let out = tempfile::tempdir().unwrap();
    let mut losses = Losses::default();
    let short = |job: &mut headwater::migrate::Job| {
        (job.train.steps, job.train.epochs) = (Some(steps), None);
        job.accept = Accept::default();
        Ok(())
    };
    let device = Arc::new(Cpu::new(2));
    let (report, _) =
        migrate(&dir, out.path(), Begin::Overwrite, device, short, &mut losses, &AtomicBool::new(false))
            .unwrap_or_else(|e| panic!("{name}: {e:#}"));
    for s in &report.sections {
        assert_ne!(s.verdict, Verdict::Fail, "{name}: {}: {}", s.title, s.summary);
    }
    assert_eq!(report.sections.len(), 8, "{name}");
    (report, losses.0)
}

fn training(report: &Report) -> &Section {
    report.sections.iter().find(|s| s.title.contains("curve")).unwrap()
}

/// Mean of the last five losses below that of the first five, in full and in mixed precision.
fn falls(name: &str, runs: &[Vec<f64>]) {
    assert_eq!(runs.len(), 2, "{name}");
    for run in runs {
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (first, last) = (mean(&run[..5]), mean(&run[run.len() - 5..]));
        assert!(last < 0.9 * first, "{name}: {first} to {last}");
    }
}

#[test]
fn recorded_runs_are_compared_without_dropout() {
    // The schedules' first steps do not depend on the length of the run: a warm-up, and a first stair.
    for (name, steps) in [("tabular-mlp", 60), ("bytes-gpt", 20)] {
        let (report, losses) = run(name, steps);
        let s = training(&report);
        assert_eq!(s.verdict, Verdict::Pass, "{name}: {}", s.summary);
        assert!(
            s.summary.contains(&format!("over the first {steps} steps with dropout as the identity")),
            "{}",
            s.summary
        );
        falls(name, &losses);
    }
}

#[test]
fn an_encoder_begins_with_saved_weights() {
    let (report, losses) = run("encoder-finetune", 40);
    let s = training(&report);
    assert!(s.verdict == Verdict::Note && s.summary.contains("no curve"), "{}", s.summary);
    falls("encoder-finetune", &losses);
}

#[test]
fn sentences_of_several_lengths_train_in_buckets() {
    let (report, losses) = run("lengths", 120);
    let s = training(&report);
    assert!(s.verdict == Verdict::Note && s.summary.contains("no curve"), "{}", s.summary);
    falls("lengths", &losses);
}
