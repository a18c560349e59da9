//! Several processes under real MPIs: the bits of one, resumption by other numbers of ranks, refusals, ranks
//! that die or are suspended. They need `mpirun.openmpi` and `mpiexec.mpich`; `.ci/ranks` installs these and
//! runs what is ignored here.
#![cfg(unix)]

use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A launcher, with what it needs on a machine of few cores.
#[derive(Clone, Copy)]
pub(crate) struct Mpi {
    pub command: &'static str,
    pub options: &'static [&'static str],
    pub library: &'static str,
}

const OPEN: Mpi = Mpi {
    command: "mpirun.openmpi",
    options: &["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"],
    library: "libmpi.so.40",
};
pub(crate) const MPICH: Mpi = Mpi { command: "mpiexec.mpich", options: &[], library: "libmpich.so.12" };

/// The MPIs that are installed; at least one.
pub(crate) fn installed() -> Vec<Mpi> {
    let there = |m: &Mpi| Command::new(m.command).arg("--version").output().is_ok();
    let found: Vec<Mpi> = [OPEN, MPICH].into_iter().filter(there).collect();
    assert!(!found.is_empty(), "neither mpirun.openmpi nor mpiexec.mpich is installed: see .ci/ranks");
    found
}

pub(crate) fn example(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits-vit").join(file)
}

/// The arguments of a training on the digits into `out`.
pub(crate) fn train(out: &Path, more: &str) -> String {
    format!(
        "{} train {} --data {} --out {} --batch 16 --threads 1 {more}",
        env!("CARGO_BIN_EXE_headwater"),
        example("digits_vit.pt2").display(),
        example("train.safetensors").display(),
        out.display()
    )
}

/// A shell command on `ranks` ranks; on one without a launcher.
pub(crate) fn launch(mpi: &Mpi, ranks: usize, shell: &str) -> Command {
    let mut command = match ranks {
        1 => Command::new("sh"),
        _ => {
            let mut c = Command::new(mpi.command);
            c.args(mpi.options).args(["-n", &ranks.to_string(), "sh"]);
            c
        }
    };
    command.args(["-c", shell]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn run(mpi: &Mpi, ranks: usize, shell: &str) -> Output {
    launch(mpi, ranks, shell).output().unwrap()
}

/// The newest checkpoint's hash.
pub(crate) fn hash(out: &Path) -> String {
    let mut steps: Vec<PathBuf> = std::fs::read_dir(out).unwrap().map(|e| e.unwrap().path()).collect();
    steps.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-")));
    steps.sort();
    let mut hash = Sha256::new();
    for file in ["model.safetensors", "state.safetensors"] {
        hash.update(std::fs::read(steps.last().unwrap().join(file)).unwrap());
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
#[ignore = "needs MPI: .ci/ranks runs it"]
fn a_run_has_one_hash_for_any_number_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    for (lanes, worlds) in [(4, &[2, 4][..]), (8, &[3])] {
        let alone = dir.path().join(format!("alone-{lanes}"));
        let options = format!("--steps 4 --lanes {lanes} --accumulate 2 --clip-norm 0.5");
        let output = run(&OPEN, 1, &train(&alone, &options));
        assert!(output.status.success(), "{}", said(&output));
        for mpi in installed() {
            for &ranks in worlds {
                let out = dir.path().join(format!("{}-{ranks}-{lanes}", mpi.command));
                let output = run(&mpi, ranks, &train(&out, &options));
                assert!(output.status.success(), "{}", said(&output));
                assert_eq!(hash(&out), hash(&alone), "{ranks} ranks of {lanes} lanes, {}", mpi.command);
                assert!(
                    said(&output).contains(&format!("{ranks} ranks over {}", mpi.library)),
                    "{}",
                    said(&output)
                );
                // Losses are those of the run, whichever rank computed them.
                let losses = |out: &Path| {
                    let log = std::fs::read_to_string(out.join("log.jsonl")).unwrap();
                    let lines = log.lines().map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
                    lines.filter(|l| l["event"] == "step").map(|l| l["loss"].clone()).collect::<Vec<_>>()
                };
                assert_eq!(losses(&out), losses(&alone));
                assert_eq!(losses(&out).len(), 4);
            }
        }
    }
}

#[test]
#[ignore = "needs MPI: .ci/ranks runs it"]
fn a_run_goes_on_with_other_numbers_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let output = run(&OPEN, 1, &train(&whole, "--steps 8 --lanes 4"));
    assert!(output.status.success(), "{}", said(&output));
    let mpis = installed();
    // The number of lanes is that of the ranks with which the run begins.
    for (i, ranks) in [4, 2, 3, 1].into_iter().enumerate() {
        let resume = if i == 0 { "" } else { " --resume" };
        let options = format!("--steps {}{resume}", 2 * (i + 1));
        let output = run(&mpis[i % mpis.len()], ranks, &train(&parts, &options));
        assert!(output.status.success(), "{ranks} ranks: {}", said(&output));
        assert!(!said(&output).contains("lanes:"), "{}", said(&output));
    }
    assert_eq!(hash(&parts), hash(&whole));
}

#[test]
#[ignore = "needs MPI: .ci/ranks runs it"]
fn ranks_that_make_no_run_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mpis = installed();
    let mut cases: Vec<(&Mpi, usize, String, Vec<&str>)> = Vec::new();
    for mpi in &mpis {
        let seeds = train(&out, "--steps 2 --seed ${OMPI_COMM_WORLD_RANK:-$PMI_RANK}");
        cases.push((
            mpi,
            2,
            seeds,
            vec!["HW-R013", "rank 0 (host", "rank 1 (host", "setting `seed`: 0 and 1"],
        ));
        let lanes = train(&out, "--steps 2 --lanes 2");
        cases.push((mpi, 3, lanes, vec!["HW-R004", "2 lanes, and 3 ranks", "--lanes 3"]));
        let held = example("heldout.safetensors");
        let own = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}";
        let file =
            format!("--steps 2 --eval $([ {own} = 0 ] && echo {} || echo /nowhere/x.npz)", held.display());
        let words = vec!["HW-R013: rank 1 (host", "does not begin: HW-R001", "/nowhere/x.npz"];
        cases.push((mpi, 2, train(&out, &file), words));
        let device = train(&out, "--steps 2 --device reference");
        cases.push((mpi, 2, device, vec!["2 ranks were started, and the device `reference`"]));
    }
    let torchrun = format!("WORLD_SIZE=4 RANK=1 LOCAL_RANK=1 {}", train(&out, "--steps 2"));
    cases.push((&mpis[0], 1, torchrun, vec!["HW-R013", "WORLD_SIZE asks for 4 ranks", "mpirun"]));
    let alone = train(&out, "--steps 2 --engine mpi");
    cases.push((&mpis[0], 1, alone, vec!["HW-R013", "no launcher has started"]));
    if let [open, mpich] = &mpis[..] {
        // Each process would be a world of its own, and train alone.
        for (mpi, other) in [(open, mpich), (mpich, open)] {
            let wrong = format!("HEADWATER_MPI={} {}", other.library, train(&out, "--steps 2"));
            cases.push((mpi, 2, wrong, vec!["HW-R013", "sees 1", other.library, "HEADWATER_MPI"]));
        }
    }
    for (mpi, ranks, shell, words) in cases {
        let begin = Instant::now();
        let output = run(mpi, ranks, &shell);
        let text = said(&output);
        assert!(!output.status.success(), "{shell}: {text}");
        for word in words {
            assert!(text.contains(word), "{word} is missing under {}: {shell}\n{text}", mpi.command);
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{shell}");
        assert!(!out.join("step-00000002").exists());
    }
}

/// Processes of a run by rank, as its first lines say.
pub(crate) fn processes(text: &str) -> Vec<u32> {
    let own = |line: &str| {
        let (_, rest) = line.strip_prefix("  rank ")?.split_once("process ")?;
        rest.trim_end_matches(')').parse().ok()
    };
    text.lines().filter_map(own).collect()
}

pub(crate) fn alive(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// A run of three ranks of which rank 1 gets a signal in its middle: all that was said, and the seconds until
/// every process was gone.
fn struck(mpi: &Mpi, signal: &str, out: &Path) -> (String, f64) {
    let errors = out.with_extension("stderr");
    let mut command = launch(mpi, 3, &format!("exec {}", train(out, "--steps 100000 --save-every 2")));
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&errors).unwrap());
    let mut launcher = command.spawn().unwrap();
    let text = || std::fs::read_to_string(&errors).unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    while !out.join("step-00000004").exists() {
        assert!(Instant::now() < until, "{}", text());
        std::thread::sleep(Duration::from_millis(50));
    }
    // Heartbeats come each second: the next one tells of a step.
    std::thread::sleep(Duration::from_millis(1500));
    let all = processes(&text());
    assert_eq!(all.len(), 3, "{}", text());
    let struck = Instant::now();
    assert!(Command::new("kill").args([signal, &all[1].to_string()]).status().unwrap().success());
    while all.iter().any(|p| alive(*p)) && struck.elapsed() < Duration::from_secs(40) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let seconds = struck.elapsed().as_secs_f64();
    // Processes that still run end here, also after a failed assertion.
    for process in all.iter().filter(|p| alive(**p)) {
        let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
    }
    let _ = launcher.wait();
    (text(), seconds)
}

#[test]
#[ignore = "needs MPI: .ci/ranks runs it"]
fn a_rank_that_is_killed_or_stopped_is_named_by_all_others() {
    let dir = tempfile::tempdir().unwrap();
    for mpi in installed() {
        for (signal, what, limit) in [("-KILL", "has died", 20.0), ("-STOP", "is stopped", 20.0)] {
            let out = dir.path().join(format!("{}{signal}", mpi.command));
            let (text, seconds) = struck(&mpi, signal, &out);
            let lines =
                text.lines().filter(|l| l.contains("HW-R012: rank 1 (host ") && l.contains(what)).count();
            // hydra ends the others as soon as it sees a death, before or after they have printed.
            let least = if signal == "-KILL" && mpi.command == MPICH.command { 0 } else { 2 };
            assert!(lines >= least, "{} {signal}: {lines} lines\n{text}", mpi.command);
            assert!(seconds < limit, "{} {signal}: {seconds} s\n{text}", mpi.command);
            let named = text.lines().find(|l| l.contains("HW-R012")).unwrap_or("step ");
            assert!(named.contains("step "), "{named}");
        }
    }
}

#[test]
#[ignore = "needs MPI: .ci/ranks runs it"]
fn launch_goes_on_from_the_last_checkpoint_after_a_death() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let options = "--steps 40 --lanes 3 --save-every 4";
    let output = run(&OPEN, 1, &train(&whole, options));
    assert!(output.status.success(), "{}", said(&output));
    for mpi in installed() {
        for restarts in [0, 1] {
            let out = dir.path().join(format!("{}-{restarts}", mpi.command));
            let command = train(&out, options);
            let (program, rest) = command.split_once(' ').unwrap();
            let shell =
                format!("{program} launch -n 3 --launcher {} --restarts {restarts} {rest}", mpi.command);
            let errors = out.with_extension("stderr");
            let mut launched = launch(&mpi, 1, &format!("exec {shell}"));
            let file = std::fs::File::create(&errors).unwrap();
            let mut launched = launched.stdout(Stdio::null()).stderr(file).spawn().unwrap();
            let text = || std::fs::read_to_string(&errors).unwrap();
            let until = Instant::now() + Duration::from_secs(120);
            while !out.join("step-00000004").exists() {
                assert!(Instant::now() < until, "{}", text());
                std::thread::sleep(Duration::from_millis(20));
            }
            let struck = processes(&text())[1];
            assert!(Command::new("kill").args(["-KILL", &struck.to_string()]).status().unwrap().success());
            let status = launched.wait().unwrap();
            assert_eq!(status.success(), restarts > 0, "{status}: {}", text());
            let again = text().contains("start 2 of 2: 3 ranks, from its last checkpoint");
            assert_eq!(again, restarts > 0, "{}", text());
            if restarts > 0 {
                assert_eq!(hash(&out), hash(&whole), "{}", text());
            }
            assert!(processes(&text()).iter().all(|p| !alive(*p)), "{}", text());
        }
    }
}
