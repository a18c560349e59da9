//! Predicted times beside published ones, and the bars for them.

use headwater_ascend::kernel::Pipe;
use headwater_ascend::timing::Timing;

/// Largest relative error of task times.
pub const TASK: f64 = 0.25;

/// The same of a pipe's busy time: of the units that compute, and of those that copy.
pub fn bar(pipe: Pipe) -> f64 {
    if matches!(pipe, Pipe::V | Pipe::M) { 0.10 } else { 0.15 }
}

/// A kernel with published times in microseconds: its task, and busy times of pipes.
pub struct Published<'a> {
    pub what: &'a str,
    pub task: f64,
    pub pipes: &'a [(Pipe, f64)],
    /// Columns beyond their bars, by name: neither more nor fewer are. `docs/ascend-timing.md` lists them as
    /// not met.
    pub missed: &'a [&'a str],
}

impl Published<'_> {
    /// Prints every column beside its prediction, and holds it to its bar unless it is named as missed. What
    /// is named and within its bar is an error too, so that the list cannot outlive its reason.
    pub fn beside(&self, timing: &Timing) {
        println!("{}: {timing}", self.what);
        let pipes = self.pipes.iter().map(|&(pipe, us)| (pipe.name(), timing.pipe(pipe), us, bar(pipe)));
        let mut beyond = Vec::new();
        for (name, predicted, published, bar) in
            std::iter::once(("task", timing.task, self.task, TASK)).chain(pipes)
        {
            let error = predicted / published - 1.0;
            println!(
                "  {name}: predicted {predicted:.1} µs, published {published:.1} µs, error {:+.1} %, bar {:.0} %",
                100.0 * error,
                100.0 * bar
            );
            if error.abs() > bar {
                beyond.push(name);
            }
        }
        assert_eq!(beyond, self.missed, "{}: columns beyond their bars", self.what);
    }
}
