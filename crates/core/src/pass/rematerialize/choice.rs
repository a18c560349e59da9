//! The choice of results to compute a second time: greedy, on a timeline of the bytes in use.
//!
//! Time is the order of the graph's nodes. A result that is recomputed is made once more right before the
//! first node of the backward pass that needs it. So is what it is made from, up to what is kept. What was to
//! be recomputed of that is kept after all where that is better. The limit falls in small steps from the peak
//! to what is asked. At each step the candidates are taken first that save most bytes and moments above it,
//! for each second that they cost.

use super::timeline::Timeline;
use super::units::{Unit, units, work};
use crate::diagnostic::Result;
use crate::graph::{Graph, Node, Phase, ValueId};
use crate::ops::Body;
use crate::target::Target;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

/// Share of the peak that the limit falls to in one step.
const STEP: f64 = 0.95;
/// Units that one candidate may concern: bounds the time for each.
const REACH: usize = 192;
/// Results in a candidate that is a module.
const MEMBERS: usize = 128;
/// An operand smaller than what is made of it by this factor is kept rather than recomputed.
const SMALL: i64 = 8;
/// Results smaller than the mean by this factor are no candidates.
const SMALLEST: usize = 16;

/// First and last moment.
type Span = (usize, usize);

/// A result of a node that is no view.
#[derive(Clone, Copy, Debug)]
struct Held {
    bytes: i64,
    /// Node that makes it, and unit that makes it again.
    node: usize,
    unit: usize,
    /// Last node of the forward pass that uses it, or its own.
    forward: usize,
    /// True if it may be recomputed: a result of the forward pass in the arena.
    free: bool,
    /// True if it is kept from the forward pass for all that needs it.
    kept: bool,
    /// When the backward pass itself uses it.
    used: Option<Span>,
    /// When the backward pass needs it, recomputations included.
    need: Option<Span>,
}

/// Contents of memory over time, and what is made a second time.
pub(super) struct Choice {
    /// The value whose elements a value shows.
    root: Vec<ValueId>,
    held: HashMap<ValueId, Held>,
    units: Vec<Unit>,
    /// Roots that each unit reads, each once.
    reads: Vec<Vec<ValueId>>,
    /// Units that read each root.
    readers: Vec<Vec<usize>>,
    /// Operations and seconds of all nodes.
    all: (f64, f64),
    modules: BTreeMap<String, Vec<ValueId>>,
    /// Results that are candidates alone.
    single: Vec<ValueId>,
    /// Before which node a unit runs.
    again: Vec<Option<usize>>,
    /// Bytes of workspace of each node.
    workspace: Vec<i64>,
    time: Timeline,
    moved: bool,
}

/// The consequences of recomputing some results, not yet decided.
#[derive(Default)]
struct Trial {
    held: BTreeMap<ValueId, Held>,
    again: BTreeMap<usize, Option<usize>>,
    seconds: f64,
    /// Changes of the bytes in use: from, to, by how much.
    changes: Vec<(usize, usize, i64)>,
}

/// A candidate in the queue, by its score.
struct Ranked {
    score: f64,
    tries: u8,
    set: usize,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.set.cmp(&self.set))
    }
}
impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Ranked {}

impl Choice {
    /// Nothing is recomputed yet.
    ///
    /// # Errors
    /// Refusals of an operator's own program rule.
    pub fn new(graph: &Graph, target: &Target) -> Result<Choice> {
        let n = graph.nodes.len();
        let mut root: Vec<ValueId> = (0..graph.values.len() as u32).map(ValueId).collect();
        let mut held: HashMap<ValueId, Held> = HashMap::new();
        let mut workspace = vec![0i64; n];
        for (t, node) in graph.nodes.iter().enumerate() {
            if let (Body::View(_), Some(x)) = (node.op.body, node.operands().next()) {
                node.outputs.iter().for_each(|v| root[v.0 as usize] = root[x.0 as usize]);
                continue;
            }
            for v in node.operands().map(|v| root[v.0 as usize]) {
                let Some(h) = held.get_mut(&v) else { continue };
                match node.phase {
                    Phase::Forward => h.forward = t,
                    _ => h.used = widened(h.used, t),
                }
            }
            let types: Vec<_> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
            if matches!(node.op.body, Body::Kernel(_)) {
                workspace[t] = target.operators.workspace(node.op, &graph.cx(node), &types) as i64;
            }
            for (&v, ty) in node.outputs.iter().zip(&types) {
                let bytes = ty.bytes().next_multiple_of(target.memory.alignment) as i64;
                let (free, used, need) = (node.phase == Phase::Forward, None, None);
                let unit = usize::MAX;
                held.insert(v, Held { bytes, node: t, unit, forward: t, free, kept: true, used, need });
            }
        }
        let units = units(graph, target)?;
        let (mut reads, mut readers) = (Vec::with_capacity(units.len()), vec![Vec::new(); root.len()]);
        for (u, unit) in units.iter().enumerate() {
            for v in &unit.node.outputs {
                if let Some(h) = held.get_mut(v) {
                    h.unit = u;
                }
            }
            let mut read: Vec<ValueId> = unit.node.operands().map(|v| root[v.0 as usize]).collect();
            read.sort_unstable();
            read.dedup();
            read.retain(|v| held.contains_key(v));
            read.iter().for_each(|v| readers[v.0 as usize].push(u));
            reads.push(read);
        }
        // Outputs of the graph are outside of the arena, and are live in any case.
        for o in &graph.outputs {
            if let Some(h) = held.get_mut(&root[o.value.0 as usize]) {
                (h.bytes, h.free) = (0, false);
            }
        }
        let saved = |h: &Held| h.free && h.used.is_some();
        let (count, all) =
            held.values().filter(|h| saved(h)).fold((0, 0i64), |(n, all), h| (n + 1, all + h.bytes));
        let enough = |h: &Held| saved(h) && h.bytes.saturating_mul(count * SMALLEST as i64) >= all;
        let (mut single, mut modules) = (Vec::new(), BTreeMap::<String, Vec<ValueId>>::new());
        for node in &graph.nodes {
            for &v in node.outputs.iter().filter(|v| held.get(v).is_some_and(enough)) {
                single.push(v);
                let path = &graph.origin(node).module;
                let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
                for end in ends.filter(|&end| end > 0) {
                    modules.entry(path[..end].to_string()).or_default().push(v);
                }
            }
        }
        modules.retain(|_, members| (2..=MEMBERS).contains(&members.len()));
        let all = graph.nodes.iter().map(|node| work(graph, node, target));
        let all = all.fold((0.0, 0.0), |all, work| (all.0 + work.0, all.1 + work.1));
        let (again, time) = (vec![None; units.len()], Timeline::new(&[]));
        let mut choice = Choice {
            root,
            held,
            units,
            reads,
            readers,
            all,
            modules,
            single,
            again,
            workspace,
            time,
            moved: false,
        };
        choice.settle();
        Ok(choice)
    }

    /// Derives from what is kept when all else is made and needed, and the bytes in use.
    fn settle(&mut self) {
        self.held.values_mut().for_each(|h| h.need = h.used);
        self.again.fill(None);
        // Users come before what they use.
        for unit in (0..self.again.len()).rev() {
            let Some(at) = self.lost(&Trial::default(), unit) else { continue };
            self.again[unit] = Some(at);
            for r in &self.reads[unit] {
                if let Some(h) = self.held.get_mut(r) {
                    h.need = widened(h.need, at);
                }
            }
        }
        let mut change = vec![0i64; self.workspace.len() + 1];
        for h in self.held.values() {
            for (from, to) in lives(h, self.made(h)).into_iter().flatten() {
                change[from] += h.bytes;
                change[to + 1] -= h.bytes;
            }
        }
        let mut live = self.workspace.clone();
        let mut now = 0;
        for (live, change) in live.iter_mut().zip(&change) {
            now += change;
            *live += now;
        }
        self.time = Timeline::new(&live);
    }

    /// The most bytes in use at once, as predicted.
    pub fn peak(&self) -> f64 {
        self.time.peak() as f64
    }

    /// Operations and seconds of all nodes, each once.
    pub fn all(&self) -> (f64, f64) {
        self.all
    }

    /// Operations and seconds of what runs a second time.
    pub fn more(&self) -> (f64, f64) {
        let second = self.again.iter().zip(&self.units).filter(|(again, _)| again.is_some());
        second.fold((0.0, 0.0), |all, (_, unit)| (all.0 + unit.flops, all.1 + unit.seconds))
    }

    /// The value whose elements `v` shows.
    pub fn root(&self, v: ValueId) -> ValueId {
        self.root[v.0 as usize]
    }

    /// True if the backward pass reads a second copy of a value.
    pub fn recomputed(&self, v: ValueId) -> bool {
        self.held.get(&self.root(v)).is_some_and(is_lost)
    }

    /// Units that run a second time, in order, and before which node.
    pub fn again(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.again.iter().zip(&self.units).filter_map(|(again, unit)| Some(((*again)?, &unit.node)))
    }

    /// When a second copy of a result is made.
    fn made(&self, h: &Held) -> Option<usize> {
        self.again.get(h.unit).copied().flatten()
    }

    /// True if the last [`Choice::reduce`] chose anything.
    pub fn moved(&self) -> bool {
        self.moved
    }

    /// Recomputes more until at most `limit` bytes are in use at once, or nothing helps any more; whether it
    /// got there.
    pub fn reduce(&mut self, limit: f64) -> bool {
        let limit = limit as i64;
        self.moved = false;
        while self.time.peak() > limit {
            let step = limit.max((self.time.peak() as f64 * STEP) as i64);
            // A result that one round drops from the choice may be chosen again by the next.
            while self.time.peak() > step {
                if !self.lower(step) {
                    return false;
                }
                self.settle();
            }
        }
        true
    }

    /// One round of [`Choice::reduce`]; whether it chose anything.
    fn lower(&mut self, limit: i64) -> bool {
        let mut over = vec![0u32];
        for x in self.time.values() {
            over.push(over[over.len() - 1] + u32::from(x > limit));
        }
        let free = |v: &ValueId| self.held[v].free && self.held[v].kept;
        // Alone, also what is being recomputed: to keep it after all may shorten a chain.
        let single = self.single.iter().filter(|v| self.held[v].free);
        let mut sets: Vec<Vec<ValueId>> = single.map(|&v| vec![v]).collect();
        for members in self.modules.values() {
            let left: Vec<ValueId> = members.iter().copied().filter(free).collect();
            if left.len() > 1 {
                sets.push(left);
            }
        }
        let mut queue = BinaryHeap::new();
        for (set, members) in sets.iter().enumerate() {
            if let Some((score, _)) = self.best(members, limit, &over) {
                queue.push(Ranked { score, tries: 0, set });
            }
        }
        let mut chosen = false;
        while self.time.peak() > limit {
            let Some(Ranked { tries, set, .. }) = queue.pop() else { break };
            let alone = sets[set].len() == 1;
            let left: Vec<ValueId> =
                sets[set].iter().copied().filter(|v| alone || self.held[v].kept).collect();
            if left.is_empty() {
                continue;
            }
            let Some((score, trial)) = self.best(&left, limit, &over) else { continue };
            // Choices made since may have changed it.
            if tries < 3 && queue.peek().is_some_and(|next| score < next.score) {
                queue.push(Ranked { score, tries: tries + 1, set });
                continue;
            }
            self.accept(trial);
            chosen = true;
        }
        self.moved |= chosen;
        chosen
    }

    /// The better way to recompute some results, or to keep one after all, with its score.
    fn best(&self, members: &[ValueId], limit: i64, over: &[u32]) -> Option<(f64, Trial)> {
        let scored = |keep| {
            let trial = self.trial(members, keep)?;
            Some((self.score(&trial, limit, over)?, trial))
        };
        let (chained, kept) = (scored(false), scored(true));
        match (&chained, &kept) {
            (Some(a), Some(b)) if b.0 > a.0 => kept,
            (None, _) => kept,
            _ => chained,
        }
    }

    /// Bytes times moments over the limit that are saved for each second. `None` if nothing is saved where
    /// that is needed, or if more than `limit` bytes would be in use elsewhere.
    fn score(&self, trial: &Trial, limit: i64, over: &[u32]) -> Option<f64> {
        let (mut saved, mut needed) = (0.0, false);
        for &(from, to, by) in &trial.changes {
            if by > 0 && self.time.most(from, to) + by > limit {
                return None;
            }
            if by < 0 {
                let moments = over[to + 1] - over[from];
                saved -= by as f64 * f64::from(moments);
                needed |= moments > 0 && self.time.most(from, to) > limit;
            }
        }
        needed.then_some(saved / trial.seconds.max(1e-12))
    }

    fn accept(&mut self, trial: Trial) {
        self.held.extend(trial.held);
        trial.again.into_iter().for_each(|(unit, at)| self.again[unit] = at);
        trial.changes.into_iter().for_each(|(from, to, by)| self.time.add(from, to, by));
    }

    /// Consequences of recomputing these results, or of keeping what was recomputed so far; `None` if that
    /// concerns too much. With `keep`, what was to be recomputed and would have to be made earlier is kept
    /// after all.
    fn trial(&self, members: &[ValueId], keep: bool) -> Option<Trial> {
        let mut t = Trial::default();
        let mut queue: BinaryHeap<usize> = BinaryHeap::new();
        for &v in members {
            let was = self.held[&v];
            let h = Held { kept: !was.kept, ..was };
            queue.push(h.unit);
            t.held.insert(v, h);
        }
        // Users come before what they use, so that each unit is settled once.
        let mut steps = 0;
        while let Some(unit) = queue.pop() {
            if queue.peek() == Some(&unit) {
                continue;
            }
            steps += 1;
            if steps > REACH {
                return None;
            }
            let (before, at) = (self.again[unit], self.lost(&t, unit));
            if before == at {
                continue;
            }
            let outputs = &self.units[unit].node.outputs;
            for &v in outputs {
                t.held.entry(v).or_insert(self.held[&v]);
            }
            t.again.insert(unit, at);
            let runs = f64::from(at.is_some()) - f64::from(before.is_some());
            t.seconds += self.units[unit].seconds * runs;
            let bytes: i64 = outputs.iter().map(|v| self.now(&t, *v)).filter(is_lost).map(|h| h.bytes).sum();
            for &r in &self.reads[unit] {
                let mut h = self.now(&t, r);
                let need = self.need(&t, r, h.used);
                if h.need == need {
                    continue;
                }
                if h.need.is_none() {
                    // Not kept so far. What is small is from now on.
                    h.kept = !h.free || h.bytes.saturating_mul(SMALL) <= bytes;
                } else if !h.kept && keep && at.is_some() && at < self.made(&h) {
                    h.kept = true;
                }
                h.need = need;
                t.held.insert(r, h);
                if h.free {
                    queue.push(h.unit);
                }
            }
        }
        t.changes = self.changes(&t);
        Some(t)
    }

    fn now(&self, t: &Trial, v: ValueId) -> Held {
        *t.held.get(&v).unwrap_or(&self.held[&v])
    }

    /// When the backward pass needs a root that it uses itself at these moments.
    fn need(&self, t: &Trial, v: ValueId, used: Option<Span>) -> Option<Span> {
        let again = |u: &usize| t.again.get(u).copied().unwrap_or(self.again[*u]);
        self.readers[v.0 as usize].iter().filter_map(again).fold(used, widened)
    }

    /// Before which node a unit must run, for results that are not kept.
    fn lost(&self, t: &Trial, unit: usize) -> Option<usize> {
        let lost = self.units[unit].node.outputs.iter().map(|v| self.now(t, *v)).filter(is_lost);
        lost.filter_map(|h| h.need).map(|(first, _)| first).min()
    }

    /// Net changes of the bytes in use.
    fn changes(&self, t: &Trial) -> Vec<(usize, usize, i64)> {
        let mut events: BTreeMap<usize, i64> = BTreeMap::new();
        let mut add = |(from, to): Span, bytes: i64| {
            *events.entry(from).or_default() += bytes;
            *events.entry(to + 1).or_default() -= bytes;
        };
        for (v, new) in &t.held {
            let old = &self.held[v];
            let again = t.again.get(&old.unit).copied().unwrap_or(self.made(old));
            for span in lives(old, self.made(old)).into_iter().flatten() {
                add(span, -old.bytes);
            }
            for span in lives(new, again).into_iter().flatten() {
                add(span, new.bytes);
            }
        }
        let (mut out, mut by, mut from) = (Vec::new(), 0, 0);
        for (at, change) in events {
            if by != 0 && at > from {
                out.push((from, at - 1, by));
            }
            (by, from) = (by + change, at);
        }
        out
    }
}

fn is_lost(h: &Held) -> bool {
    !h.kept && h.need.is_some()
}

/// A span that also includes a moment.
fn widened(span: Option<Span>, at: usize) -> Option<Span> {
    Some(span.map_or((at, at), |(first, last)| (first.min(at), last.max(at))))
}

/// When a result is in memory, and when its second copy is, given when its unit runs.
fn lives(h: &Held, again: Option<usize>) -> [Option<Span>; 2] {
    match (h.kept, h.need) {
        (true, Some((_, last))) => [Some((h.node, last.max(h.forward))), again.map(|at| (at, at))],
        (false, Some((_, last))) => {
            let at = again.unwrap_or(last);
            [Some((h.node, h.forward)), Some((at, last.max(at)))]
        }
        (_, None) => [Some((h.node, h.forward)), again.map(|at| (at, at))],
    }
}
