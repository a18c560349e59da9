//! Ranks under faults, by a seeded script: each case names the rank and the cause, ends every process in
//! time, and goes on to the bits of a run without a fault. `.ci/long ranks` runs it; `HEADWATER_FAULTS` is
//! the number of cases, `HEADWATER_FUZZ_SEED` the seed, and `HEADWATER_FAULT` picks one kind.
#![cfg(unix)]

use crate::ranks::{MPICH, Mpi, alive, example, hash, installed, launch, processes, run, said, train};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Steps of a run, and between checkpoints.
const STEPS: u64 = 60;
const EVERY: u64 = 6;
/// Seconds within which the rank is named on every survivor, and within which no process is left.
const NAMED: f64 = 10.0;
const GONE: f64 = 20.0;

/// A rank's number in a shell.
const OWN: &str = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}";

/// Faults, each with its name.
const KINDS: [(&str, fn(&mut Case) -> Result<(), String>); 14] = [
    ("killed", |c| c.signalled("-KILL", "has died")),
    ("stopped", |c| c.signalled("-STOP", "is stopped")),
    ("bit of a gradient", |c| c.flipped("gradient", "", "the reduced gradients of ranks differ in step")),
    ("bit of a weight", |c| c.flipped("weight", "", "the weights of ranks differ before step")),
    ("bit of a lane", |c| c.flipped("lane", "--recompute-lanes 1", "has other gradients")),
    ("seed", |c| c.seed()),
    ("doubled data", |c| c.other_data("doubled")),
    ("truncated data", |c| c.other_data("halved")),
    ("cut file", |c| c.other_data("cut")),
    ("truncated checkpoint", |c| c.truncated()),
    ("full disk", |c| c.full_disk()),
    ("slow", |c| c.slow()),
    ("other library", |c| c.other_library()),
    ("signal to the launcher", |c| c.terminated()),
];

/// SplitMix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % limit
    }
}

struct Case<'a> {
    chance: Chance,
    mpis: &'a [Mpi],
    mpi: &'a Mpi,
    ranks: usize,
    /// The rank with the fault.
    wrong: usize,
    out: PathBuf,
    /// Hash of the run without a fault.
    want: &'a str,
}

/// A run on its way, and what it says.
struct Run {
    launcher: Child,
    said: PathBuf,
}

impl Run {
    fn text(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Waits until a condition holds; false after so many seconds.
    fn until(&mut self, seconds: f64, mut holds: impl FnMut(&mut Run) -> bool) -> bool {
        let begin = Instant::now();
        while !holds(self) {
            if begin.elapsed().as_secs_f64() > seconds {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    fn ended(&mut self) -> bool {
        let over = !matches!(self.launcher.try_wait(), Ok(None));
        over && processes(&self.text()).iter().all(|p| !alive(*p))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for process in processes(&self.text()).iter().filter(|p| alive(**p)) {
            let _ = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

impl Case<'_> {
    fn command(&self, options: &str) -> String {
        train(&self.out, &format!("--steps {STEPS} --lanes 4 --save-every {EVERY} {options}"))
    }

    fn start(&self, shell: &str) -> Run {
        let said = self.out.with_extension("stderr");
        // Survivors are to say what they find: hydra would end them at once.
        let mpi = Mpi {
            options: if self.hydra() { &["-disable-auto-cleanup"] } else { self.mpi.options },
            ..*self.mpi
        };
        let mut command = launch(&mpi, self.ranks, shell);
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&said).unwrap());
        Run { launcher: command.spawn().unwrap(), said }
    }

    fn hydra(&self) -> bool {
        self.mpi.command == MPICH.command
    }

    /// A run in its middle: a checkpoint has been saved, and heartbeats tell of its steps.
    fn middle(&mut self, options: &str) -> Result<Run, String> {
        let mut run = self.start(&format!("exec {}", self.command(options)));
        let step = EVERY * (1 + self.chance.below(3));
        let saved = self.out.join(format!("step-{step:08}"));
        if !run.until(120.0, |_| saved.exists()) {
            return Err(format!("no checkpoint {}: {}", saved.display(), run.text()));
        }
        std::thread::sleep(Duration::from_millis(1100 + self.chance.below(200)));
        match processes(&run.text()).len() == self.ranks && !run.ended() {
            true => Ok(run),
            false => Err(format!("it has ended before the fault: {}", run.text())),
        }
    }

    /// Every survivor says a line in time, and no process is left.
    fn named(&self, run: &mut Run, lines: usize, words: &[&str]) -> Result<(), String> {
        let begin = Instant::now();
        let count = |text: &str| text.lines().filter(|l| words.iter().all(|w| l.contains(w))).count();
        if !run.until(NAMED, |run| count(&run.text()) >= lines) {
            let (found, text) = (count(&run.text()), run.text());
            return Err(format!("{found} of {lines} lines with {words:?} in {NAMED} s: {text}"));
        }
        let left = GONE - begin.elapsed().as_secs_f64();
        match run.until(left, Run::ended) {
            true => Ok(()),
            false => Err(format!("processes are left after {GONE} s: {}", run.text())),
        }
    }

    /// Goes on with any number of ranks, to the bits of the run without a fault.
    fn resumed(&mut self) -> Result<(), String> {
        let (mpi, ranks) = (self.chance.below(self.mpis.len() as u64), 1 + self.chance.below(4) as usize);
        let output = run(&self.mpis[mpi as usize], ranks, &self.command("--resume"));
        if !output.status.success() {
            return Err(format!("it does not go on with {ranks} ranks: {}", said(&output)));
        }
        match hash(&self.out) == self.want {
            true => Ok(()),
            false => Err(format!("other bits after it went on with {ranks} ranks: {}", said(&output))),
        }
    }

    /// The rank with the fault, as messages name it.
    fn rank(&self) -> String {
        format!("rank {} (host ", self.wrong)
    }

    fn signalled(&mut self, signal: &str, what: &str) -> Result<(), String> {
        let mut run = self.middle("")?;
        let process = processes(&run.text())[self.wrong];
        signal_to(process, signal);
        let rank = self.rank();
        let named = self.named(&mut run, self.ranks - 1, &["HW-R012", &rank, what, "step "]);
        drop(run);
        named?;
        self.resumed()
    }

    fn flipped(&mut self, kind: &str, options: &str, what: &str) -> Result<(), String> {
        let step = EVERY + 1 + self.chance.below(12);
        if kind == "lane" {
            // The rank that has the lane, or the one that computes it too.
            let lane = (step as usize - 1) % 4;
            let owner = (0..self.ranks).find(|r| (r + 1) * 4 / self.ranks > lane).unwrap();
            let further = (step as usize - 1) / 4 % (self.ranks - 1);
            self.wrong = [owner, (owner + 1 + further) % self.ranks][self.chance.below(2) as usize];
        }
        let options = format!("--digests 1 --flip-bit {kind}:{step}:{} {options}", self.wrong);
        let mut run = self.start(&format!("exec {}", self.command(&options)));
        if !run.until(120.0, Run::ended) {
            return Err(format!("it goes on: {}", run.text()));
        }
        let (rank, at) = (self.rank(), format!("step {step}"));
        let lines =
            |words: &[&str]| run.text().lines().filter(|l| words.iter().all(|w| l.contains(w))).count();
        let named = match self.ranks {
            2 => lines(&["HW-R014", what, &at, "nothing tells which is wrong"]),
            _ => lines(&["HW-R014", what, &at, &rank]),
        };
        let blamed = lines(&["HW-R014", &format!(": {rank}")]) + lines(&["HW-R014", &format!("; {rank}")]);
        if named != self.ranks || (self.ranks > 2 && blamed != self.ranks) {
            return Err(format!("{named} lines of {}, {blamed} blame the rank: {}", self.ranks, run.text()));
        }
        drop(run);
        self.resumed()
    }

    /// A run that does not begin: one line names the rank and the cause, and nothing is saved. The same run
    /// begins without the fault.
    fn refused(&mut self, shell: &str, words: &[&str]) -> Result<(), String> {
        let mut run = self.start(shell);
        let begun = run.until(30.0, |run| run.text().contains("HW-R0"));
        let rank = self.rank();
        let words: Vec<&str> = words.iter().copied().chain(["HW-R013", &rank]).collect();
        if !begun {
            return Err(format!("nothing is said: {}", run.text()));
        }
        self.named(&mut run, 1, &words)?;
        if self.out.join(format!("step-{EVERY:08}")).exists() {
            return Err("it has trained".into());
        }
        drop(run);
        let output = crate::ranks::run(self.mpi, self.ranks, &self.command(""));
        match output.status.success() && hash(&self.out) == self.want {
            true => Ok(()),
            false => Err(format!("other bits without the fault: {}", said(&output))),
        }
    }

    fn seed(&mut self) -> Result<(), String> {
        // Differences are to rank 0, which has it if all others have the same.
        self.wrong = self.wrong.max(1);
        let seed = format!("--seed $([ {OWN} = {} ] && echo 7 || echo 0)", self.wrong);
        self.refused(&self.command(&seed), &["setting `seed`: 0 and 7"])
    }

    fn other_data(&mut self, kind: &str) -> Result<(), String> {
        self.wrong = self.wrong.max(1);
        let (mine, theirs) = (self.out.with_extension("safetensors"), example("train.safetensors"));
        let bytes = std::fs::read(&theirs).unwrap();
        match kind {
            "cut" => std::fs::write(&mine, &bytes[..bytes.len() * 3 / 4]).unwrap(),
            _ => {
                let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
                let tensors: Vec<(_, _, _, Vec<u8>)> = file
                    .iter()
                    .map(|(name, t)| {
                        let (bytes, mut shape) = (t.data(), t.shape().to_vec());
                        let sample = bytes.len() / shape[0];
                        shape[0] = if kind == "doubled" { 2 * shape[0] } else { shape[0] / 2 };
                        let bytes = bytes.iter().cycle().take(shape[0] * sample).copied().collect();
                        (name, t.dtype(), shape, bytes)
                    })
                    .collect();
                let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
                    (*name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
                });
                safetensors::serialize_to_file(views, None, &mine).unwrap();
            }
        }
        let (mine, theirs) = (mine.display().to_string(), theirs.display().to_string());
        let file = format!("$([ {OWN} = {} ] && echo {mine} || echo {theirs})", self.wrong);
        let shell = self.command("").replace(&format!("--data {theirs}"), &format!("--data {file}"));
        match kind {
            "cut" => self.refused(&shell, &["does not begin", &mine]),
            _ => self.refused(&shell, &["the training data, in samples"]),
        }
    }

    /// The library of another launcher: each process would train alone.
    fn other_library(&mut self) -> Result<(), String> {
        let Some(other) = self.mpis.iter().find(|m| m.command != self.mpi.command) else {
            return Err("there is one MPI only".into());
        };
        let shell = format!("HEADWATER_MPI={} {}", other.library, self.command(""));
        let mut run = self.start(&shell);
        if !run.until(GONE, Run::ended) {
            return Err(format!("it goes on: {}", run.text()));
        }
        let text = run.text();
        let ranks = format!("the launcher has started {} ranks", self.ranks);
        match ["HW-R013", &ranks, "sees 1", other.library].iter().all(|w| text.contains(w))
            && !self.out.exists()
        {
            true => Ok(()),
            false => Err(text),
        }
    }

    /// A piece of the newest checkpoint is cut off after the run was killed: that one is set aside, by name,
    /// and the run goes on from the one before.
    fn truncated(&mut self) -> Result<(), String> {
        let mut run = self.middle("")?;
        processes(&run.text()).iter().for_each(|p| signal_to(*p, "-KILL"));
        let ended = run.until(GONE, Run::ended);
        drop(run);
        if !ended {
            return Err("processes are left".into());
        }
        let mut steps: Vec<PathBuf> =
            std::fs::read_dir(&self.out).unwrap().map(|e| e.unwrap().path()).collect();
        steps.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-")));
        steps.sort();
        let newest = steps.last().unwrap();
        let file = newest.join(["model.safetensors", "state.safetensors"][self.chance.below(2) as usize]);
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() - 1 - self.chance.below(bytes.len() as u64 / 2) as usize])
            .unwrap();
        let output = crate::ranks::run(self.mpi, self.ranks, &self.command("--resume"));
        let (text, name) = (said(&output), newest.file_name().unwrap().to_string_lossy());
        match output.status.success() && text.contains("damaged") && text.contains(&*name) {
            true if hash(&self.out) == self.want => Ok(()),
            true => Err(format!("other bits: {text}")),
            false => Err(format!("{name} is not named as damaged: {text}")),
        }
    }

    /// One rank's disk is full: its writes go to a small file system of its own over the shared one.
    fn full_disk(&mut self) -> Result<(), String> {
        // The last rank writes files of one piece.
        self.wrong = self.ranks - 1;
        let first = format!("--steps {STEPS}");
        let short = self.command("").replace(&first, &format!("--steps {}", 2 * EVERY));
        let output = run(self.mpi, self.ranks, &short);
        if !output.status.success() {
            return Err(said(&output));
        }
        let (out, small) = (self.out.display(), self.out.with_extension("small"));
        std::fs::create_dir_all(&small).unwrap();
        let small = small.display();
        let mounts = format!(
            "mount -t tmpfs -o size=64k tmpfs {small} && mkdir {small}/upper {small}/work && mount -t overlay overlay -o \
             lowerdir={out},upperdir={small}/upper,workdir={small}/work {out}"
        );
        let command = self.command("--resume");
        let shell = format!(
            "if [ {OWN} = {} ]; then exec unshare -m sh -c '{mounts} && exec {command}'; else exec {command}; fi",
            self.wrong
        );
        let mut run = self.start(&shell);
        if !run.until(120.0, |run| run.text().contains("error:")) {
            return Err(format!("nothing is said: {}", run.text()));
        }
        let rank = self.rank();
        let named = self.named(&mut run, 1, &["HW-R005", &rank, "the disk is full"]);
        drop(run);
        named?;
        self.resumed()
    }

    /// Stopped half of each second: late, and no fault.
    fn slow(&mut self) -> Result<(), String> {
        let mut run = self.middle("")?;
        let process = processes(&run.text())[self.wrong];
        let begin = Instant::now();
        while !run.ended() && begin.elapsed() < Duration::from_secs(180) {
            for signal in ["-STOP", "-CONT"] {
                signal_to(process, signal);
                std::thread::sleep(Duration::from_millis(500));
            }
        }
        let text = run.text();
        match run.ended() && !text.contains("error:") && hash(&self.out) == self.want {
            true => Ok(()),
            false => Err(format!("a false alarm, or other bits: {text}")),
        }
    }

    /// SIGTERM to the launcher: whether it lets the ranks save or not, no process is left.
    fn terminated(&mut self) -> Result<(), String> {
        let mut run = self.middle("")?;
        signal_to(run.launcher.id(), "-TERM");
        let ended = run.until(GONE, Run::ended);
        let text = run.text();
        drop(run);
        match ended {
            true => self.resumed(),
            false => Err(format!("processes are left after {GONE} s: {text}")),
        }
    }
}

fn signal_to(process: u32, signal: &str) {
    // One that has just ended is no failure here.
    let _ = Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status();
}

#[test]
#[ignore = "takes long: .ci/long ranks runs it"]
fn every_fault_is_named_and_the_run_goes_on_to_the_same_bits() {
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (count, seed) =
        (number("HEADWATER_FAULTS", 2 * KINDS.len() as u64), number("HEADWATER_FUZZ_SEED", 1));
    let only = std::env::var("HEADWATER_FAULT").ok();
    let kinds: Vec<_> = KINDS.iter().filter(|(name, _)| only.as_ref().is_none_or(|o| o == name)).collect();
    assert!(!kinds.is_empty(), "HEADWATER_FAULT names none of {:?}", KINDS.map(|(name, _)| name));
    let (mpis, dir) = (installed(), tempfile::tempdir().unwrap());
    let undisturbed = dir.path().join("undisturbed");
    let output = run(&mpis[0], 1, &train(&undisturbed, &format!("--steps {STEPS} --lanes 4")));
    assert!(output.status.success(), "{}", said(&output));
    let want = hash(&undisturbed);
    let mut missed = Vec::new();
    for case in 0..count {
        let mut chance = Chance(seed.wrapping_mul(1 << 32).wrapping_add(case));
        let (name, fault) = kinds[case as usize % kinds.len()];
        let ranks = 2 + chance.below(3) as usize;
        let wrong = chance.below(ranks as u64) as usize;
        let mpi = &mpis[chance.below(mpis.len() as u64) as usize];
        let out: &Path = &dir.path().join(format!("case-{case}"));
        let begin = Instant::now();
        let mut one = Case { chance, mpis: &mpis, mpi, ranks, wrong, out: out.into(), want: &want };
        let result = fault(&mut one);
        let end = if result.is_ok() { "as it should be" } else { "MISSED" };
        let place = format!("case {case}: {name}, rank {} of {ranks}, {}", one.wrong, mpi.command);
        eprintln!("{place}: {end}, {:.1} s", begin.elapsed().as_secs_f64());
        if let Err(why) = result {
            eprintln!("{why}");
            missed.push(place);
        }
        let _ = std::fs::remove_dir_all(out);
    }
    assert!(missed.is_empty(), "{} of {count}, seed {seed}: {missed:#?}", missed.len());
}
