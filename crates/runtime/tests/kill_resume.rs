//! Kills a training run with SIGKILL at random moments and resumes it until it is complete. Its end is
//! compared bit by bit with an undisturbed run. For a hundred kills:
//! `cargo test -p headwater-runtime --test kill_resume -- 100`.
//!
//! Runs itself as the process to be killed, hence without the test harness.

#[path = "it/common/mod.rs"]
mod common;

use headwater_cpu::Cpu;
use headwater_runtime::{SessionModel, Store, TrainConfig, Trainer};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const STEPS: u64 = 60;
const KILLS: usize = 12;

fn config(dir: &Path) -> TrainConfig {
    let mut config = common::config(dir);
    config.steps = Some(STEPS);
    config.data.eval = None;
    config.accumulate = 2;
    // Most of the time goes into saving, so that most kills hit it.
    config.checkpoint.every = Some(1);
    config
}

/// The process that is killed: resumes from the state of the directory.
fn train(dir: &Path) {
    let (graph, weights) = (common::graph(4, 0.2), common::weights());
    let model = SessionModel { graph: &graph, weights: &weights };
    let config = config(dir);
    let resume = Store::any(config.checkpoint.dir.as_deref().unwrap()).unwrap();
    let mut trainer = Trainer::new(Arc::new(Cpu::new(1)), model, None, config, resume).unwrap();
    trainer.run(&mut [], &AtomicBool::new(false)).unwrap();
}

fn end(dir: &Path) -> Vec<Vec<u8>> {
    let last = dir.join(format!("checkpoints/step-{STEPS:08}"));
    ["model.safetensors", "state.safetensors"].map(|f| std::fs::read(last.join(f)).unwrap()).into()
}

fn child(dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--train").arg(dir);
    command
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, dir] = &args[..]
        && flag == "--train"
    {
        train(Path::new(dir));
        return ExitCode::SUCCESS;
    }
    let wanted: usize = args.iter().find_map(|a| a.parse().ok()).unwrap_or(KILLS);

    let whole = tempfile::tempdir().unwrap();
    common::write_data(&whole.path().join("data.safetensors"));
    let begin = std::time::Instant::now();
    assert!(child(whole.path()).status().unwrap().success());
    let full = begin.elapsed();

    // The moments come from the clock: every run of this test tries others, and says which.
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}, an undisturbed run takes {full:?}");
    let mut moment = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        full.mul_f64((seed >> 11) as f64 / (1u64 << 53) as f64 / 3.0)
    };
    let (mut kills, mut runs) = (0, 0);
    while kills < wanted {
        let dir = tempfile::tempdir().unwrap();
        common::write_data(&dir.path().join("data.safetensors"));
        loop {
            let mut process = child(dir.path()).spawn().unwrap();
            // After enough kills of one run it may end, so that its end is compared.
            if kills < wanted {
                std::thread::sleep(moment().max(Duration::from_millis(1)));
                process.kill().unwrap();
            }
            let status = process.wait().unwrap();
            if status.success() {
                break;
            }
            assert!(status.code().is_none(), "a resumed run failed by itself: {status}");
            kills += 1;
        }
        assert_eq!(end(dir.path()), end(whole.path()), "a run that was killed ends differently");
        runs += 1;
    }
    println!("{kills} kills in {runs} runs: every directory resumed, every end is bit-equal");
    ExitCode::SUCCESS
}
