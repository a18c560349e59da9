//! Names in a directory of checkpoints.

/// Begins the names of directories that are not (or no longer) checkpoints.
pub(super) const TEMPORARY: &str = ".tmp-step-";
/// Begins the name of a checkpoint that another of the same step is about to replace.
pub(super) const REPLACED: &str = ".old-";
/// Begins the name of a checkpoint that was found damaged.
pub(super) const DAMAGED: &str = "damaged-step-";
/// Begins the name of what a run saved that could not go on.
pub(super) const DIVERGED: &str = "diverged-step-";
/// Begins the name of the checkpoint of the best evaluation.
pub(super) const BEST: &str = "best-";
/// Locked while a run may save here; the system releases it however the run ends.
pub(super) const LOCK: &str = ".lock";

/// The directory of a checkpoint.
pub(super) fn of(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a checkpoint, by its directory's name; `None` for any other name.
pub(super) fn step(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    // One spelling a step: two directories of the same step would be one too many.
    (of(step) == name).then_some(step)
}

/// True if a run writes an entry of this name into its directory of checkpoints.
pub fn written(name: &str) -> bool {
    let numbered = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    name == LOCK
        || step(name).is_some()
        || [REPLACED, BEST].iter().any(|p| name.strip_prefix(p).is_some_and(written))
        || [TEMPORARY, DAMAGED, DIVERGED].iter().any(|p| name.strip_prefix(p).is_some_and(numbered))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_one_spelling() {
        assert_eq!((step("step-00000012"), step("step-123456789")), (Some(12), Some(123_456_789)));
        for other in ["step-12", "step-+0000012", "step-000000012", "step-", "step-by-step", "Step-00000012"]
        {
            assert_eq!(step(other), None, "{other}");
        }
    }

    #[test]
    fn foreign_names_are_known_as_such() {
        let ours = [
            "step-00000012",
            ".tmp-step-00000012-77",
            ".old-step-00000012",
            "damaged-step-00000012-2",
            "best-step-00000012",
            ".old-best-step-00000012",
            "diverged-step-00000012",
            ".lock",
        ];
        assert!(ours.iter().all(|name| written(name)));
        let foreign = [
            "step-by-step",
            "step-",
            ".old-",
            ".old-photos",
            "best-photos",
            ".old-.lock2",
            ".tmp-step-",
            "damaged-step-",
            "x",
            "",
        ];
        assert!(!foreign.iter().any(|name| written(name)));
    }
}
