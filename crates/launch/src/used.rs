//! Steps that a vendor's library computes, counted for reports.

use std::collections::BTreeMap;

/// Steps by operator, and by the vendor's function that computes them or the reason why none does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Used(BTreeMap<(&'static str, Result<&'static str, String>), usize>);

impl Used {
    /// Notes a step.
    pub fn add(&mut self, op: &'static str, by: Result<&'static str, String>) {
        *self.0.entry((op, by)).or_default() += 1;
    }

    /// Notes all of another's.
    pub fn join(&mut self, other: Used) {
        other.0.into_iter().for_each(|(key, steps)| *self.0.entry(key).or_default() += steps);
    }

    /// A line for each operator and function or reason.
    pub fn lines(&self) -> Vec<String> {
        let line = |((op, by), count): (&(&str, Result<&str, String>), &usize)| {
            let steps = if *count == 1 { "step" } else { "steps" };
            match by {
                Ok(function) => format!("{count} {steps} of {op} by {function}"),
                Err(why) => format!("{count} {steps} of {op} by Headwater's own kernels: {why}"),
            }
        };
        self.0.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_by_function_and_reason() {
        let mut used = Used::default();
        used.add("matmul", Ok("aclnnMatmul"));
        used.add("matmul", Err("operands in f64".into()));
        assert_eq!(used.lines()[0], "1 step of matmul by aclnnMatmul");
        let mut all = used.clone();
        all.join(used);
        let lines = [
            "2 steps of matmul by aclnnMatmul",
            "2 steps of matmul by Headwater's own kernels: operands in f64",
        ];
        assert_eq!(all.lines(), lines);
    }
}
