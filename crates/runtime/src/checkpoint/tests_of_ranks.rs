//! Checkpoints that several ranks write and read jointly.

use super::tests::{names, open_full, progress, session, value};
use super::*;
use headwater_ranks::World;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pieces of 64 bytes: a file of the small model has some twenty.
fn small() -> Disk {
    Disk { piece: 64, ..Disk::default() }
}

/// What each rank of a world does, each in a thread.
fn ranks<T: Send>(count: usize, work: impl Fn(usize, Arc<dyn Transport>) -> T + Sync) -> Vec<T> {
    let world = World::new(count);
    std::thread::scope(|s| {
        let all: Vec<_> = (0..count)
            .map(|rank| {
                let (transport, work) = (world.rank(rank), &work);
                s.spawn(move || work(rank, transport))
            })
            .collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Saves a model whose elements are `x` at step `step` by so many ranks, each on a disk of its own kind.
fn save(dir: &Path, count: usize, step: u64, x: f32, disk: impl Fn(usize) -> Disk + Sync) -> Vec<Result<()>> {
    ranks(count, |rank, transport| {
        let (session, progress) = (session(x), progress(step));
        let others = (count > 1).then_some(&*transport);
        let snapshot = Snapshot { session: &session, progress: &progress, average: None, ranks: others };
        if rank > 0 {
            return assist_on(disk(rank), snapshot);
        }
        let store = Store { disk: disk(0), ..Store::open(dir, 3).unwrap() };
        store.save(snapshot).map(drop)
    })
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    entries(dir).unwrap().into_iter().map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// Resumes on so many ranks: the first element of each, and the bytes that each has read.
fn resume(dir: &Path, count: usize) -> Vec<Result<(f32, usize, usize)>> {
    ranks(count, |rank, transport| {
        let mut store = None;
        let (checkpoint, damaged) = if rank == 0 {
            let found = Store::resume_with(dir, 3, Some(&transport));
            let ask = match &found {
                Ok((_, found)) => Ask::Go(found.checkpoint.as_ref().map(|c| c.path().to_owned())),
                Err(_) => Ask::End,
            };
            crate::together::gather(&*transport, &ask).unwrap();
            let (opened, found) = found?;
            store = Some(opened);
            (found.checkpoint, found.damaged.len())
        } else {
            (follow(&transport)?, 0)
        };
        let checkpoint = checkpoint.unwrap();
        let read = checkpoint.held.as_ref().map_or(0, |held| held.read());
        let mut restored = session(0.0);
        checkpoint.restore(&mut restored, None)?;
        drop(store);
        Ok((value(&restored), read, damaged))
    })
}

#[test]
fn files_are_the_same_whoever_writes_them() {
    let mut found = Vec::new();
    for count in [1, 2, 3, 4, 7] {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), count, 1, 2.5, |_| small()).into_iter().for_each(Result::unwrap);
        assert_eq!(names(dir.path()), ["step-00000001"]);
        let path = dir.path().join("step-00000001");
        found.push(files(&path));
        // What one process reads back is what was written.
        let mut restored = session(0.0);
        Checkpoint::open(&path).unwrap().restore(&mut restored, None).unwrap();
        assert_eq!(value(&restored), 2.5);
    }
    assert!(found.iter().all(|f| *f == found[0]));
    assert!(found[0][MANIFEST].len() > 20 * 64 && found[0].len() == 4);
}

#[test]
fn ranks_that_go_on_read_each_byte_once() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 3, 1, 1.0, |_| small()).into_iter().for_each(Result::unwrap);
    save(dir.path(), 1, 2, 2.0, |_| small()).into_iter().for_each(Result::unwrap);
    let size = |name: &str| fs::metadata(dir.path().join("step-00000002").join(name)).unwrap().len() as usize;
    let all = size(MODEL) + size(STATE);
    for count in [2, 3, 4] {
        let found: Vec<_> = resume(dir.path(), count).into_iter().map(Result::unwrap).collect();
        assert!(found.iter().all(|(x, _, _)| *x == 2.0));
        assert_eq!(found.iter().map(|(_, read, _)| read).sum::<usize>(), all, "{count} ranks");
        assert!(found.iter().all(|(_, read, _)| *read < all * 2 / count));
    }
    // Damage in a piece that another rank than the first reads: the one before counts.
    let model = dir.path().join("step-00000002").join(MODEL);
    let mut bytes = fs::read(&model).unwrap();
    bytes[64 * 5 + 3] ^= 1;
    fs::write(&model, &bytes).unwrap();
    let found: Vec<_> = resume(dir.path(), 4).into_iter().map(Result::unwrap).collect();
    assert!(found.iter().all(|(x, _, _)| *x == 1.0) && found[0].2 == 1);
    // A truncated file too; if none is whole, all end.
    fs::write(&model, &bytes[..bytes.len() - 1]).unwrap();
    assert!(resume(dir.path(), 2).into_iter().all(|r| r.unwrap().0 == 1.0));
    fs::remove_file(dir.path().join("step-00000001").join(STATE)).unwrap();
    let found = resume(dir.path(), 2);
    assert!(matches!(found[0], Err(Error::Checkpoint { .. })) && matches!(found[1], Err(Error::AsRankZero)));
}

#[test]
fn checkpoints_of_format_1_are_still_read() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 1, 1, 3.0, |_| small()).into_iter().for_each(Result::unwrap);
    let path = dir.path().join("step-00000001");
    let mut listed = serde_json::Map::new();
    for (name, bytes) in files(&path).into_iter().filter(|(name, _)| name != MANIFEST) {
        let hash = pieces::hex(&Sha256::digest(&bytes));
        listed.insert(name, serde_json::json!({ "bytes": bytes.len(), "sha256": hash }));
    }
    let manifest = serde_json::json!({ "format": "headwater-checkpoint-1", "step": 1, "files": listed });
    fs::write(path.join(MANIFEST), manifest.to_string()).unwrap();
    for count in [1, 3] {
        assert!(resume(dir.path(), count).into_iter().all(|r| r.unwrap().0 == 3.0));
    }
    let mut bytes = fs::read(path.join(MODEL)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path.join(MODEL), bytes).unwrap();
    let e = Checkpoint::open(&path).unwrap_err();
    assert!(e.to_string().contains("model.safetensors is not what was written"), "{e}");
    // Neither format has the other's hashes.
    fs::write(path.join(MANIFEST), manifest.to_string().replace("checkpoint-1", "checkpoint-2")).unwrap();
    assert!(matches!(Checkpoint::open(&path), Err(Error::Checkpoint { .. })));
}

#[test]
fn a_part_that_is_not_what_was_written_is_found_before_the_checkpoint_counts() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 3, 1, 1.0, |_| small()).into_iter().for_each(Result::unwrap);
    // Rank 2 reads what rank 1 has written, and finds something else.
    let damage = |what: &'static str| {
        if what == "read back" {
            let dir = std::env::temp_dir().join(format!("headwater-damage-{}", std::process::id()));
            let dir = PathBuf::from(fs::read_to_string(dir).unwrap());
            let half =
                entries(&dir).unwrap().into_iter().find(|(name, _)| name.starts_with(TEMPORARY)).unwrap().1;
            // In the middle, which rank 1 has written; others read their parts meanwhile.
            let mut model = File::options().read(true).write(true).open(half.join(MODEL)).unwrap();
            let middle = model.metadata().unwrap().len() / 2;
            let mut byte = [0];
            model.seek(SeekFrom::Start(middle)).unwrap();
            model.read_exact(&mut byte).unwrap();
            model.seek(SeekFrom::Start(middle)).unwrap();
            model.write_all(&[!byte[0]]).unwrap();
        }
    };
    let note = std::env::temp_dir().join(format!("headwater-damage-{}", std::process::id()));
    fs::write(&note, dir.path().to_str().unwrap()).unwrap();
    let found = save(dir.path(), 3, 2, 2.0, |rank| match rank {
        2 => Disk { before: damage, ..small() },
        _ => small(),
    });
    fs::remove_file(note).unwrap();
    let text = found[0].as_ref().unwrap_err().to_string();
    assert!(text.contains("model.safetensors is not what rank 1 has written, as rank 2 reads it"), "{text}");
    assert!(found[1..].iter().all(|r| matches!(r, Err(Error::AsRankZero))), "{found:?}");
    assert_eq!(names(dir.path()), ["step-00000001"]);
}

#[test]
fn a_disk_that_is_full_for_one_rank_ends_all_with_its_name() {
    for (rank, full) in [(1, MODEL), (2, STATE), (0, MODEL), (0, MANIFEST)] {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), 3, 1, 1.0, |_| small()).into_iter().for_each(Result::unwrap);
        let open: fn(&Path) -> std::io::Result<File> = match full {
            MODEL => |p| open_full(p, MODEL),
            STATE => |p| open_full(p, STATE),
            _ => |p| open_full(p, MANIFEST),
        };
        let found =
            save(dir.path(), 3, 2, 2.0, |r| if r == rank { Disk { open, ..small() } } else { small() });
        let text = found[0].as_ref().unwrap_err().to_string();
        assert!(text.contains("the disk is full"), "{text}");
        assert!(rank == 0 || text.contains(&format!("rank {rank}: ")), "{text}");
        assert!(found[1..].iter().all(|r| matches!(r, Err(Error::AsRankZero))), "{found:?}");
        assert_eq!(names(dir.path()), ["step-00000001"]);
        assert!(resume(dir.path(), 2).into_iter().all(|r| r.unwrap().0 == 1.0));
    }
}

/// Changes of the disk before which this process ends, counted down; and their number so far.
static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);
static SEEN: AtomicUsize = AtomicUsize::new(0);

const KILLS: usize = 100;

/// The process that is killed: three ranks write a second checkpoint.
#[test]
#[ignore = "the test below starts it"]
fn three_ranks_that_are_killed() {
    let Ok(order) = std::env::var("HEADWATER_TEST_KILLED") else { return };
    let (left, dir) = order.split_once(' ').unwrap();
    LEFT.store(left.parse().unwrap(), Ordering::SeqCst);
    let before = |_: &'static str| {
        SEEN.fetch_add(1, Ordering::SeqCst);
        if LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::process::abort();
        }
    };
    save(Path::new(dir), 3, 2, 2.0, |_| Disk { before, ..small() }).into_iter().for_each(Result::unwrap);
    fs::write(Path::new(dir).join("step-00000099"), SEEN.load(Ordering::SeqCst).to_string()).unwrap();
}

/// Runs it until the given change of the disk.
fn killed(dir: &Path, left: usize) -> bool {
    let name = "checkpoint::tests_of_ranks::three_ranks_that_are_killed";
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--include-ignored", "--nocapture"]);
    child.env("HEADWATER_TEST_KILLED", format!("{left} {}", dir.display()));
    child.output().unwrap().status.success()
}

#[test]
fn three_ranks_killed_at_a_hundred_points_leave_the_checkpoint_before_whole() {
    let dir = tempfile::tempdir().unwrap();
    assert!(killed(dir.path(), usize::MAX));
    let note = dir.path().join("step-00000099");
    let points: usize = fs::read_to_string(note).unwrap().parse().unwrap();
    assert!(points > KILLS, "{points}");
    let (mut old, mut new) = (0, 0);
    for i in 0..KILLS {
        let at = 1 + i * (points - 1) / (KILLS - 1);
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), 1, 1, 1.0, |_| small()).into_iter().for_each(Result::unwrap);
        let before = files(&dir.path().join("step-00000001"));
        assert!(!killed(dir.path(), at), "point {at} of {points}");
        // The next run takes the earlier one as it was, or the whole new one, and removes the rest.
        let found: BTreeSet<u32> =
            resume(dir.path(), 2).into_iter().map(|r| r.unwrap().0.to_bits()).collect();
        assert!(found.len() == 1);
        match f32::from_bits(*found.first().unwrap()) {
            1.0 => {
                old += 1;
                assert_eq!(names(dir.path()), ["step-00000001"], "point {at}");
            }
            _ => {
                new += 1;
                assert_eq!(names(dir.path()), ["step-00000001", "step-00000002"], "point {at}");
            }
        }
        assert_eq!(files(&dir.path().join("step-00000001")), before, "point {at}");
    }
    // Only what comes after the last renaming finds the new one.
    assert!(old >= KILLS - 3 && old + new == KILLS, "{old} and {new}");
}
