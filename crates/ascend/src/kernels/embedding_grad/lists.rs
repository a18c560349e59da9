//! Sorted positions as a task reads them: from slices that another launch has sorted, or from the only one,
//! which each core sorts for itself.

use super::super::copies::read;
use super::REPORT;
use super::part::{KEYS, Partition};
use super::sort::{Edges, Sorter, row, search};
use crate::kernel::{Buf, Builder, Elem, Gm, Pipe, Scalar, ScalarBinary, ScalarType};

/// Sorted positions in UB.
pub(super) struct Lists<'a> {
    part: &'a Partition,
    source: Source<'a>,
    /// Keys of the task's positions.
    keys: Buf,
    /// Places in each slice at which the task's ranges begin.
    edges: Buf,
    /// Positions of the padding row, which come before all ranges.
    padded: Scalar,
}

/// The place where positions are sorted.
enum Source<'a> {
    Own {
        sorter: Sorter<'a>,
        finder: Edges,
        fault: Gm,
    },
    /// `base` has for each slice the key that stands for its place 0.
    Shared {
        lists: Gm,
        edges: Gm,
        base: Buf,
        probe: Buf,
    },
}

/// One end of a task: a range, and how many of its positions come before.
pub(super) struct Cut {
    pub range: Scalar,
    pub skip: Scalar,
}

impl<'a> Lists<'a> {
    /// Parameters and buffers.
    pub fn declare(k: &mut Builder, part: &'a Partition) -> Lists<'a> {
        let slices = part.slices;
        let (source, keys) = match part.own {
            true => {
                let index = k.input("index", part.shape.index, part.shape.indices);
                let fault = k.output("fault", Elem::I32, REPORT);
                let pair = ["keys", "other_keys"].map(|name| k.ub(name, Elem::I32, part.slice));
                let sorter = Sorter::new(k, part, index, pair);
                (Source::Own { sorter, finder: Edges::new(k, part.edges), fault }, pair[0])
            }
            false => {
                let lists = k.input("lists", Elem::I32, slices * part.slice);
                // Copies of whole blocks reach past a slice's last key.
                k.slack(lists, Elem::I32.per_block());
                let edges = k.input("edges", Elem::I32, slices * part.all_edges);
                let keys = k.ub("keys", Elem::I32, KEYS);
                let (base, probe) = (k.ub("base", Elem::I32, slices), k.ub("probe", Elem::I32, slices * 8));
                (Source::Shared { lists, edges, base, probe }, keys)
            }
        };
        let edges = k.ub("near_edges", Elem::I32, slices * part.edges);
        Lists { part, source, keys, edges, padded: 0.into() }
    }

    /// Begins: sorts and reports, where the core does that. Gives the number of positions that are summed.
    pub fn begin(&mut self, k: &mut Builder) -> Scalar {
        let part = self.part;
        if let Source::Own { sorter, fault, .. } = &self.source {
            self.keys = sorter.sort(k, &0.into());
            k.flag(Pipe::V, Pipe::S, 0);
            k.if_(Scalar::BLOCK.eq(0), |k| sorter.report(k, self.keys, &0.into(), fault.at(0)));
        }
        if part.shape.padding.is_some() {
            let padded = self.before(k, &0.into(), 1);
            self.padded = k.let_("padded", padded);
        }
        let all = self.before(k, &part.ranges.into(), part.wrong());
        k.let_("all", all - self.padded.clone())
    }

    /// Positions before range `range`, whose first row is `first`.
    fn before(&self, k: &mut Builder, range: &Scalar, first: u64) -> Scalar {
        match &self.source {
            Source::Own { .. } => search(k, self.keys, |_, key, _| row(self.part, key).lt(first)),
            Source::Shared { .. } => self.probe(k, range, 0),
        }
    }

    /// Positions of all slices before range `range + behind`, which is 0 or 1, padding among them.
    fn probe(&self, k: &mut Builder, range: &Scalar, behind: u64) -> Scalar {
        let Source::Shared { edges, probe, .. } = &self.source else { return 0.into() };
        let gap = (self.part.all_edges - 8) / 8;
        k.flag(Pipe::S, Pipe::Mte2, 0);
        k.copy_runs(probe.at(0), edges.at(range), self.part.slices, 1, gap, 0);
        k.flag(Pipe::Mte2, Pipe::S, 0);
        self.total(k, *probe, 8, &behind.into())
    }

    /// The sum of element `at` of each slice's part of a buffer, `apart` elements.
    fn total(&self, k: &mut Builder, buf: Buf, apart: u64, at: &Scalar) -> Scalar {
        let total = k.var("total", ScalarType::Int);
        k.set(total, 0);
        self.slices(k, |k, s| {
            let one = k.load("one", buf.at(s.clone() * apart + at.clone()));
            k.set(total, total + one);
        });
        total.into()
    }

    fn slices(&self, k: &mut Builder, write: impl FnOnce(&mut Builder, &Scalar)) {
        match self.part.slices {
            1 => write(k, &0.into()),
            slices => k.for_each("slice", 0, slices, 1, |k, s| write(k, &s)),
        }
    }

    /// The number of ranges that end before a share of the work: each range is `range` rows and its
    /// positions, in this order: positions, rows.
    pub fn range(&self, k: &mut Builder, share: &Scalar) -> Scalar {
        let (range, ranges) = (self.part.range, self.part.ranges);
        match &self.source {
            Source::Own { .. } => {
                let taken = search(k, self.keys, |k, key, at| {
                    let row = k.let_("row_of_key", row(self.part, key));
                    let cost = (row.clone() - 1) / range * range + at.clone() - self.padded.clone();
                    cost.lt(share).binary(ScalarBinary::And, row.lt(self.part.wrong()))
                });
                let rest = share.clone() + self.padded.clone() - taken;
                k.let_("range", rest.div_ceil(range as i64).min(ranges))
            }
            Source::Shared { .. } => {
                let (low, high) = (k.var("low", ScalarType::Int), k.var("high", ScalarType::Int));
                k.set(low, 0);
                k.set(high, ranges);
                k.while_(Scalar::Var(low).lt(high), |k| {
                    let middle = k.let_("middle", (low + high) / 2);
                    let before = self.probe(k, &middle, 1) - self.padded.clone();
                    let ends = (middle.clone() * range + before).lt(share);
                    k.if_else(ends, |k| k.set(low, middle.clone() + 1), |k| k.set(high, middle.clone()));
                });
                low.into()
            }
        }
    }

    /// Reads the positions of a task, which takes the work between two shares: ranges as [`Lists::range`] has
    /// them.
    pub fn read(&self, k: &mut Builder, ranges: &[Scalar; 2], shares: &[Scalar; 2]) -> [Cut; 2] {
        let part = self.part;
        match &self.source {
            Source::Own { finder, .. } => {
                k.flag(Pipe::S, Pipe::V, 0);
                finder.find(k, part, self.keys, self.edges, &ranges[0], part.edges);
                k.flag(Pipe::V, Pipe::S, 0);
            }
            Source::Shared { edges, .. } => {
                let gap = (part.all_edges - part.edges) / 8;
                k.flag(Pipe::S, Pipe::Mte2, 0);
                k.copy_runs(self.edges.at(0), edges.at(&ranges[0]), part.slices, part.edges / 8, gap, 0);
                k.flag(Pipe::Mte2, Pipe::S, 0);
            }
        }
        let ended = ranges[1].clone() - ranges[0].clone();
        let skips = [Scalar::from(0), ended.clone()];
        let skips = [0, 1].map(|i| self.skip(k, &skips[i], &ranges[i], &shares[i]));
        self.trim(k, &ended, &skips);
        let [first, last] = ranges.clone();
        let [before, within] = skips;
        [Cut { range: first, skip: before }, Cut { range: last, skip: within }]
    }

    /// Positions of the task's range `at`, which is range `range` of all, that precede a share. Ranges of few
    /// positions are not divided.
    fn skip(&self, k: &mut Builder, at: &Scalar, range: &Scalar, share: &Scalar) -> Scalar {
        let Some(heavy) = self.part.heavy else { return 0.into() };
        let before = self.total(k, self.edges, self.part.edges, at);
        let behind = self.total(k, self.edges, self.part.edges, &(at.clone() + 1));
        let own = k.let_("own", behind - before.clone());
        let skip = share.clone() - range.clone() * self.part.range - (before - self.padded.clone());
        let divided = own.clone().binary(ScalarBinary::Ge, heavy);
        k.let_("skip", skip.max(0).min(own) * divided)
    }

    /// Leaves out the positions before the first range's cut and after the last one's, and loads the others'
    /// keys.
    fn trim(&self, k: &mut Builder, ended: &Scalar, skips: &[Scalar; 2]) {
        let part = self.part;
        if part.own && part.heavy.is_none() {
            // The last range is not the task's.
            return;
        }
        let left = [0, 1].map(|i| {
            let left = k.var("left", ScalarType::Int);
            k.set(left, skips[i].clone());
            left
        });
        let room = k.var("room", ScalarType::Int);
        k.set(room, 0);
        self.slices(k, |k, s| {
            let edge = |at: Scalar| self.edges.at(s.clone() * part.edges + at);
            let places = [Scalar::from(0), ended.clone()];
            let ends = [0, 1].map(|i| {
                let begin = k.load("begin", edge(places[i].clone()));
                let end = k.load("end", edge(places[i].clone() + 1));
                let taken = k.let_("taken", (end - begin.clone()).min(left[i]));
                k.set(left[i], left[i] - taken.clone());
                k.let_("from", begin + taken)
            });
            let [from, to] = ends;
            k.store(edge(0.into()), from.clone());
            k.store(edge(ended.clone() + 1), to.clone());
            let Source::Shared { lists, base, .. } = &self.source else { return };
            k.store(base.at(s), room - from.clone());
            let count = k.let_("count", to - from.clone());
            k.if_(count.clone().ne(0), |k| {
                read(k, self.keys.at(room), lists.at(s.clone() * part.slice + from), &count);
            });
            k.set(room, room + count.div_ceil(8) * 8);
        });
        if !part.own {
            k.flag(Pipe::Mte2, Pipe::S, 1);
        }
    }

    /// Calls `write` with the key of each position of the task's range `i`, and its slice.
    pub fn each(&self, k: &mut Builder, i: &Scalar, write: impl FnOnce(&mut Builder, &Scalar, &Scalar)) {
        self.slices(k, |k, s| {
            let edge = |at: Scalar| self.edges.at(s.clone() * self.part.edges + at);
            let mut from = k.load("from", edge(i.clone()));
            let mut to = k.load("until", edge(i.clone() + 1));
            if let Source::Shared { base, .. } = &self.source {
                let base = k.load("base_of_slice", base.at(s));
                from = k.let_("first_key", from + base.clone());
                to = k.let_("last_key", to + base);
            }
            k.for_each("p", from, to, 1, |k, p| {
                let key = k.load("key", self.keys.at(p));
                write(k, &key, s);
            });
        });
    }
}
