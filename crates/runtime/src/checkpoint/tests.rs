//! Full disks, damage and leftovers. No plan runs here.

use super::*;
use crate::session::SessionModel;
use headwater_core::{Builder, DType};
use headwater_cpu::Cpu;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

pub(super) fn session(value: f32) -> Session {
    let mut b = Builder::new();
    b.parameter("w", DType::F32, &[300]);
    let graph = b.finish();
    let bytes = std::iter::repeat_n(value.to_le_bytes(), 300).flatten().collect();
    let weights = HashMap::from([("w".to_string(), bytes)]);
    Session::new(Arc::new(Cpu::new(1)), SessionModel { graph: &graph, weights: &weights }, None).unwrap()
}

pub(super) fn progress(step: u64) -> Progress {
    let (scaler, course) = (Vec::new(), Course::default());
    let (classes, trained) = Default::default();
    Progress { step, applied: step, scaler, course, classes, trained, config: TrainConfig::default() }
}

fn snapshot<'a>(session: &'a Session, progress: &'a Progress) -> Snapshot<'a> {
    Snapshot { session, progress, average: None, ranks: None }
}

pub(super) fn value(session: &Session) -> f32 {
    let bytes = session.read(&session.tensors()[0]).unwrap();
    f32::from_le_bytes(*bytes.last_chunk().unwrap())
}

pub(super) fn names(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.retain(|name| name != LOCK);
    all.sort();
    all
}

#[test]
fn the_last_ones_are_kept_and_the_newest_whole_one_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), 2).unwrap();
    for step in 1..=4 {
        store.save(snapshot(&session(step as f32), &progress(step))).unwrap();
    }
    assert_eq!(names(dir.path()), ["step-00000003", "step-00000004"]);
    // Two runs must not save into one directory.
    assert!(Store::resume(dir.path(), 2).unwrap_err().to_string().contains("another run"));
    drop(store);
    assert_eq!(Store::create(dir.path(), 2).unwrap_err().code(), "HW-R005");
    // Files that a killed run may leave.
    fs::create_dir(dir.path().join(".tmp-step-00000005-1")).unwrap();

    let resume = || Store::resume(dir.path(), 2);
    let (_, found) = resume().unwrap();
    let mut restored = session(0.0);
    found.checkpoint.unwrap().restore(&mut restored, None).unwrap();
    assert_eq!(value(&restored), 4.0);

    // One flipped bit: the next older one counts; the damaged one stays until the run goes on, and then
    // under another name.
    let model = dir.path().join("step-00000004").join(MODEL);
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&model, bytes).unwrap();
    let (store, found) = resume().unwrap();
    assert_eq!((found.checkpoint.unwrap().progress().step, found.damaged.len()), (3, 1));
    assert_eq!(names(dir.path()), ["step-00000003", "step-00000004"]);
    let aside = store.set_aside(&found.damaged).unwrap();
    assert_eq!(aside, [dir.path().join("damaged-step-00000004")]);
    assert!(aside[0].join(MODEL).exists());
    assert_eq!(names(dir.path()), ["damaged-step-00000004", "step-00000003"]);
    // Damaged again: the earlier one stays too.
    let again = store.save(snapshot(&session(4.0), &progress(4))).unwrap();
    let aside = store.set_aside(&[again]).unwrap();
    assert_eq!(aside, [dir.path().join("damaged-step-00000004-2")]);
    drop(store);

    // If none is whole, that is an error and nothing is removed.
    fs::remove_file(dir.path().join("step-00000003").join(STATE)).unwrap();
    assert_eq!(resume().unwrap_err().code(), "HW-R005");
    assert_eq!(names(dir.path()), ["damaged-step-00000004", "damaged-step-00000004-2", "step-00000003"]);
}

#[test]
fn nothing_to_resume_is_an_error_and_makes_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    for empty in [dir.path().join("tpyo"), dir.path().to_owned()] {
        let e = Store::resume(&empty, 2).unwrap_err();
        assert!(e.code() == "HW-R005" && e.to_string().contains("no checkpoint to resume"), "{e}");
        assert!(!Store::any(&empty).unwrap());
    }
    assert!(!dir.path().join("tpyo").exists());
}

#[test]
fn a_checkpoint_that_contradicts_itself_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), 9).unwrap();
    store.save(snapshot(&session(1.0), &progress(1))).unwrap();
    for (step, applied, name) in
        [(2, 2, "step-18446744073709551615"), (3, u64::MAX, "step-00000003"), (5, 4, "step-00000004")]
    {
        let lie = Progress { applied, ..progress(step) };
        let path = store.save(snapshot(&session(2.0), &lie)).unwrap();
        let end = dir.path().join(name);
        if path != end {
            fs::rename(path, &end).unwrap();
        }
        let e = Checkpoint::open(&end).unwrap_err();
        assert!(matches!(e, Error::Checkpoint { .. }) && e.to_string().contains("contradict"), "{e}");
    }
    drop(store);
    let (_, found) = Store::resume(dir.path(), 9).unwrap();
    assert_eq!((found.checkpoint.unwrap().progress().step, found.damaged.len()), (1, 3));
}

#[test]
fn one_of_a_later_step_does_not_push_out_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), 1).unwrap();
    fs::create_dir(dir.path().join("step-18446744073709551615")).unwrap();
    for step in 1..=3 {
        store.save(snapshot(&session(1.0), &progress(step))).unwrap();
    }
    assert_eq!(names(dir.path()), ["step-00000003", "step-18446744073709551615"]);
}

#[test]
fn foreign_files_of_our_names_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    Store::create(dir.path(), 2).unwrap().save(snapshot(&session(1.0), &progress(1))).unwrap();
    for file in [".tmp-step-9", "step-00000009", "step-9", ".old-step-00000007"] {
        fs::write(dir.path().join(file), "mine").unwrap();
    }
    let (_, found) = Store::resume(dir.path(), 2).unwrap();
    assert_eq!((found.checkpoint.unwrap().progress().step, found.damaged.len()), (1, 0));
    assert_eq!(
        names(dir.path()),
        [".old-step-00000007", ".tmp-step-9", "step-00000001", "step-00000009", "step-9"]
    );
    // Not to be emptied while it holds something that no run writes.
    let e = Store::clear(dir.path()).unwrap_err();
    assert!(e.to_string().contains("`step-9` is nothing that a run writes"), "{e}");
    fs::remove_file(dir.path().join("step-9")).unwrap();
    Store::clear(dir.path()).unwrap();
    assert!(names(dir.path()).is_empty() && dir.path().join(LOCK).exists());
}

#[test]
fn what_cannot_go_on_is_saved_and_never_resumed_or_removed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), 1).unwrap();
    let path = store.save_diverged(snapshot(&session(1e30), &progress(1))).unwrap();
    assert!(path.ends_with("diverged-step-00000001") && path.join(MODEL).exists());
    store.save(snapshot(&session(2.0), &progress(2))).unwrap();
    store.save(snapshot(&session(3.0), &progress(3))).unwrap();
    assert_eq!(names(dir.path()), ["diverged-step-00000001", "step-00000003"]);
    drop(store);
    assert_eq!(Store::resume(dir.path(), 1).unwrap().1.checkpoint.unwrap().progress().step, 3);
}

#[test]
fn one_of_another_version_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), 3).unwrap();
    for step in 1..=2 {
        store.save(snapshot(&session(step as f32), &progress(step))).unwrap();
    }
    drop(store);
    let newer = dir.path().join("step-00000002");
    let manifest = fs::read_to_string(newer.join(MANIFEST)).unwrap();
    // A newer format, whose manifest may hold anything else.
    fs::write(newer.join(MANIFEST), r#"{"format": "headwater-checkpoint-3", "files": []}"#).unwrap();
    let refused = || Store::resume(dir.path(), 3).unwrap_err();
    assert_eq!(refused().code(), "HW-R009");
    // The same format with a setting that is not known yet, hashed as it is.
    let text = fs::read_to_string(newer.join(PROGRESS)).unwrap().replacen("{", "{\"novelty\": 1, ", 1);
    let text = text.replacen("\"config\": {", "\"config\": {\"novelty\": 1, ", 1);
    fs::write(newer.join(PROGRESS), &text).unwrap();
    let mut files: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    files["files"][PROGRESS] =
        serde_json::json!({ "bytes": text.len(), "pieces": [pieces::hex(&Sha256::digest(&text))] });
    fs::write(newer.join(MANIFEST), files.to_string()).unwrap();
    let e = refused();
    assert!(e.code() == "HW-R009" && e.to_string().contains("novelty"), "{e}");
    assert_eq!(names(dir.path()), ["step-00000001", "step-00000002"]);
}

#[test]
fn a_checkpoint_that_is_replaced_is_never_missing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::create(dir.path(), 1).unwrap();
    let path = store.save(snapshot(&session(1.0), &progress(1))).unwrap();
    store.save(snapshot(&session(2.0), &progress(1))).unwrap();
    assert_eq!(names(dir.path()), ["step-00000001"]);
    drop(store);
    // Killed between the two renames: the old one is taken back; after the second: it goes.
    fs::rename(&path, dir.path().join(".old-step-00000001")).unwrap();
    let (store, found) = Store::resume(dir.path(), 1).unwrap();
    let mut restored = session(0.0);
    found.checkpoint.unwrap().restore(&mut restored, None).unwrap();
    assert_eq!((value(&restored), names(dir.path())), (2.0, vec!["step-00000001".to_string()]));
    drop(store);
    fs::create_dir(dir.path().join(".old-step-00000001")).unwrap();
    Store::resume(dir.path(), 1).unwrap();
    assert_eq!(names(dir.path()), ["step-00000001"]);
}

#[test]
fn a_full_disk_leaves_the_checkpoint_before_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::create(dir.path(), 1).unwrap();
    store.save(snapshot(&session(1.0), &progress(1))).unwrap();
    // The system's own file that is always full, in place of each file in turn.
    for full in [MODEL, STATE, PROGRESS, MANIFEST] {
        store.disk.open = match full {
            MODEL => |p| open_full(p, MODEL),
            STATE => |p| open_full(p, STATE),
            PROGRESS => |p| open_full(p, PROGRESS),
            _ => |p| open_full(p, MANIFEST),
        };
        let e = store.save(snapshot(&session(2.0), &progress(2))).unwrap_err();
        assert!(
            matches!(e, Error::Checkpoint { .. }) && e.to_string().contains("disk is full"),
            "{full}: {e}"
        );
        assert_eq!(names(dir.path()), ["step-00000001"], "{full}");
    }
    drop(store);
    let (_, found) = Store::resume(dir.path(), 1).unwrap();
    let mut restored = session(0.0);
    found.checkpoint.unwrap().restore(&mut restored, None).unwrap();
    assert_eq!(value(&restored), 1.0);
}

pub(super) fn open_full(path: &Path, name: &str) -> std::io::Result<File> {
    match path.ends_with(name) {
        true => File::options().write(true).open("/dev/full"),
        false => (Disk::default().open)(path),
    }
}

#[test]
fn a_checkpoint_of_another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = Store::create(dir.path(), 1).unwrap().save(snapshot(&session(1.0), &progress(1))).unwrap();
    let mut b = Builder::new();
    b.parameter("w", DType::F32, &[299]);
    let graph = b.finish();
    let weights = HashMap::from([("w".to_string(), vec![0; 299 * 4])]);
    let mut other =
        Session::new(Arc::new(Cpu::new(1)), SessionModel { graph: &graph, weights: &weights }, None).unwrap();
    let e = Checkpoint::open(&path).unwrap().restore(&mut other, None).unwrap_err();
    assert!(e.to_string().contains("w is f32[300], the model has f32[299]"), "{e}");
}
