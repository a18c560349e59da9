//! The iteration space of a row program: dimensions that all operands walk alike are one.

use headwater_core::plan::TensorView;
use headwater_core::row::{Instr, RowProgram};
use std::fmt::Write;

/// A dimension, with the step of each walk in it: of the operands in elements, then of the indices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    pub size: usize,
    pub steps: Vec<i64>,
}

/// The dimensions of a program's rows and of its columns, outermost first, those of size 1 left out. Walks
/// are the program's reads, its writes, and its [`Instr::Iota`]s in their order.
pub fn axes(p: &RowProgram, views: &[&TensorView]) -> (Vec<Axis>, Vec<Axis>) {
    let sizes: Vec<usize> = p.outer.iter().chain(&p.inner).copied().collect();
    let operands: Vec<_> = p.reads.iter().chain(&p.writes).zip(views).collect();
    let axis = |d: usize| {
        let walk = |(o, view): &(&headwater_core::row::Operand, &&TensorView)| {
            o.access.0[d].map_or(0, |(dim, step)| view.layout.strides[dim] as i64 * step as i64)
        };
        let indices = p.body.iter().filter_map(|i| match i {
            Instr::Iota(c) => Some(c[d]),
            _ => None,
        });
        Axis { size: sizes[d], steps: operands.iter().map(walk).chain(indices).collect() }
    };
    let split = p.outer.len();
    (merge((0..split).map(axis)), merge((split..sizes.len()).map(axis)))
}

/// Neighbouring dimensions as one where every walk allows it.
pub fn merge(axes: impl Iterator<Item = Axis>) -> Vec<Axis> {
    let mut all: Vec<Axis> = Vec::new();
    for axis in axes.filter(|a| a.size != 1) {
        match all.last_mut() {
            Some(last) if last.steps.iter().zip(&axis.steps).all(|(&l, &s)| l == s * axis.size as i64) => {
                *last = Axis { size: last.size * axis.size, steps: axis.steps };
            }
            _ => all.push(axis),
        }
    }
    all
}

/// Number of indices.
pub fn count(axes: &[Axis]) -> usize {
    axes.iter().map(|a| a.size).product()
}

/// Writes the coordinates `{name}0`, `{name}1` … of the index `index` along axes.
pub fn coordinates(out: &mut String, axes: &[Axis], index: &str, name: &str) {
    let mut below: usize = 1;
    for (i, axis) in axes.iter().enumerate().rev() {
        let part = if below == 1 { index.to_string() } else { format!("{index} / {below}") };
        let part = if i == 0 { part } else { format!("({part}) % {}", axis.size) };
        let _ = writeln!(out, "    const i64 {name}{i} = {part};");
        below *= axis.size;
    }
}

/// The offset of a walk at coordinates, without those whose stride is 0.
pub fn offset(axes: &[(&[Axis], &str)], walk: usize) -> String {
    let mut terms = Vec::new();
    for (axes, name) in axes {
        for (i, axis) in axes.iter().enumerate() {
            match axis.steps[walk] {
                0 => {}
                1 => terms.push(format!("{name}{i}")),
                step => terms.push(format!("{name}{i} * {step}ll")),
            }
        }
    }
    if terms.is_empty() { "0".into() } else { terms.join(" + ") }
}
