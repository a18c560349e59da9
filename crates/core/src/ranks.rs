//! Many ranks as plans and devices see them: the mesh that a graph is compiled for, and the transport that
//! carries bytes between ranks. Knows no library that does.

use crate::diagnostic::Result;
use std::ops::Range;

/// Name of the axis along which ranks have batches of their own and the same parameters.
pub const DATA: &str = "data";

/// The most ranks along an axis, and the most lanes they share. Orders of addition are lists of that length.
pub const MOST: usize = 1 << 16;

/// An axis of a mesh.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Axis {
    /// Its name.
    pub name: &'static str,
    /// Ranks along it.
    pub size: usize,
    /// Position of this rank along it.
    pub coordinate: usize,
}

/// The ranks that run one step jointly, by axes. Programs of all ranks are the same, but for coordinates that
/// become constants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mesh {
    /// The axes. There is one today, [`DATA`].
    pub axes: Vec<Axis>,
}

impl Default for Mesh {
    /// One rank alone.
    fn default() -> Self {
        Mesh::data(1, 0)
    }
}

impl Mesh {
    /// Ranks along the axis [`DATA`], and which of them this is.
    pub fn data(size: usize, coordinate: usize) -> Mesh {
        Mesh { axes: vec![Axis { name: DATA, size, coordinate }] }
    }

    /// Ranks in all.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }

    /// The number of this rank.
    pub fn coordinate(&self) -> usize {
        self.axes.iter().fold(0, |number, a| number * a.size + a.coordinate)
    }
}

/// An exchange of bytes in which every rank takes part. Ranks post the same exchanges in the same order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Exchange {
    /// Part `q` goes to rank `q`; received are the parts from ranks 0, 1, … Parts differ in length as they
    /// like.
    AllToAll(Vec<Vec<u8>>),
    /// These bytes go to every rank; received are those of ranks 0, 1, …
    AllGather(Vec<u8>),
    /// The bytes of one rank go to all; received is one part. The bytes that others give are of no account.
    Broadcast {
        /// The rank that sends.
        root: usize,
        /// The bytes that it sends.
        bytes: Vec<u8>,
    },
    /// Nothing: it is over when every rank has posted it.
    Barrier,
}

/// An exchange under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub u64);

/// Carries bytes between ranks: MPI, HCCL, or the memory of one process. It adds nothing up: sums are
/// Headwater's own, in an order that does not depend on the number of ranks.
pub trait Transport: Send + Sync {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// Ranks in all.
    fn ranks(&self) -> usize;

    /// Begins an exchange. Returns before it is over.
    ///
    /// # Errors
    /// `Device` if a rank is lost, or exchanges something else.
    fn post(&self, exchange: Exchange) -> Result<Ticket>;

    /// The parts received, in the order of ranks, once the exchange is over; `None` before. Does not wait. A
    /// ticket is good until its parts are taken.
    ///
    /// # Errors
    /// As [`Transport::post`].
    fn test(&self, ticket: Ticket) -> Result<Option<Vec<Vec<u8>>>>;

    /// Waits for an exchange.
    ///
    /// # Errors
    /// As [`Transport::post`].
    fn wait(&self, ticket: Ticket) -> Result<Vec<Vec<u8>>>;

    /// Ends all ranks: what they wait for will not come. `why` is for the others to report.
    fn abort(&self, why: &str);

    /// Ends this rank's part in order: all ranks leave, and post nothing more.
    fn leave(&self) {}

    /// Says what this rank does from now on, so that others can say where it was when they receive nothing
    /// from it any more.
    fn at(&self, doing: &str) {
        let _ = doing;
    }

    /// Says which part of that it does, such as an operator at a line of the model.
    fn inside(&self, part: &str) {
        let _ = part;
    }

    /// A rank in words: its number, and host and process where they are known.
    fn named(&self, rank: usize) -> String {
        format!("rank {rank}")
    }
}

/// Waits for an exchange.
///
/// # Errors
/// As [`Transport::post`].
pub fn exchanged(transport: &dyn Transport, exchange: Exchange) -> Result<Vec<Vec<u8>>> {
    transport.wait(transport.post(exchange)?)
}

/// The order in which the values of `count` lanes or ranks are added up: recursive halving,
/// `s(a, b) = s(a, m) + s(m, b)` with `m = (a + b) / 2`. A list of additions, `(into, from)`: value `from` is
/// added to value `into`, and the sum is value 0 at the end. The rank that holds a half of the range adds
/// that up alone, so the bits do not depend on how many ranks share the lanes, where the halves are theirs.
pub fn halving(count: usize) -> Vec<(usize, usize)> {
    fn add(a: usize, b: usize, all: &mut Vec<(usize, usize)>) {
        if b - a > 1 {
            let middle = (a + b) / 2;
            add(a, middle, all);
            add(middle, b, all);
            all.push((a, middle));
        }
    }
    let mut all = Vec::new();
    if count > 0 {
        add(0, count, &mut all);
    }
    all
}

/// The lanes of a rank: contiguous ranges in the order of ranks, as equal as they can be.
pub fn lanes_of(rank: usize, ranks: usize, lanes: usize) -> Range<usize> {
    rank * lanes / ranks..(rank + 1) * lanes / ranks
}

/// Sums of [`halving`] that can be made once lane `lane` of `lanes` has been added up, and those from lane
/// `first` to it: that many of the last sums are joined, the latest first.
pub fn joins(lanes: usize, first: usize, lane: usize) -> usize {
    let (mut a, mut b, mut joins) = (0, lanes, 0);
    while b - a > 1 {
        joins += usize::from(b == lane + 1 && a >= first);
        let middle = (a + b) / 2;
        (a, b) = if lane < middle { (a, middle) } else { (middle, b) };
    }
    joins
}

/// Sums that a range of lanes leaves when its lanes are added up as far as [`halving`] goes without the other
/// lanes: the range of lanes of each, in their order.
pub fn parts(lanes: usize, own: &Range<usize>) -> Vec<Range<usize>> {
    fn cut(a: usize, b: usize, own: &Range<usize>, all: &mut Vec<Range<usize>>) {
        if b <= own.start || own.end <= a {
            return;
        }
        if own.start <= a && b <= own.end {
            all.push(a..b);
        } else if b - a > 1 {
            let middle = (a + b) / 2;
            cut(a, middle, own, all);
            cut(middle, b, own, all);
        }
    }
    let mut all = Vec::new();
    cut(0, lanes, own, &mut all);
    all
}

/// Sums of each rank that are exchanged, by rank; see [`parts`].
pub fn parts_by_rank(lanes: usize, ranks: usize) -> Vec<usize> {
    (0..ranks).map(|r| parts(lanes, &lanes_of(r, ranks, lanes)).len()).collect()
}

/// The order in which the [`parts`] of all ranks are added up, by their number: what is left of [`halving`].
/// The sum is part 0 at the end.
pub fn joining(lanes: usize, ranks: usize) -> Vec<(usize, usize)> {
    let all: Vec<Range<usize>> = (0..ranks).flat_map(|r| parts(lanes, &lanes_of(r, ranks, lanes))).collect();
    let number = |lane: usize| all.iter().position(|p| p.start == lane);
    let apart = |(into, from): &(usize, usize)| Some((number(*into)?, number(*from)?));
    // Additions within a part are of lanes that begin no part, but for those of its first lane.
    let within = |from: usize| all.iter().any(|p| p.start < from && from < p.end);
    halving(lanes).iter().filter(|(_, from)| !within(*from)).filter_map(apart).collect()
}

/// Sums of lanes that wait for others at most, on any of `ranks` ranks, when lanes are added up sequentially.
/// What is left at the end of a rank's lanes waits for the exchange, but for the latest.
pub fn pending(lanes: usize, ranks: usize) -> usize {
    let most = |rank| {
        let own = lanes_of(rank, ranks, lanes);
        let (mut waiting, mut most) = (0usize, 0);
        for lane in own.clone() {
            waiting = waiting.saturating_sub(joins(lanes, own.start, lane));
            most = most.max(waiting);
            waiting += 1;
            most = most.max(if lane + 1 < own.end { waiting } else { waiting - 1 });
        }
        most
    };
    (0..ranks).map(most).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_lane_after_lane_makes_the_sums_of_halving() {
        for lanes in 1..40usize {
            let (mut stack, mut made, mut most): (Vec<usize>, _, _) = (Vec::new(), Vec::new(), 0);
            for lane in 0..lanes {
                let mut own = lane;
                for _ in 0..joins(lanes, 0, lane) {
                    let first = stack.pop().unwrap();
                    made.push((first, own));
                    own = first;
                }
                stack.push(own);
                most = most.max(if lane + 1 < lanes { stack.len() } else { 0 });
            }
            assert_eq!(stack, [0]);
            assert_eq!(most, pending(lanes, 1), "{lanes} lanes");
            let mut want = halving(lanes);
            made.sort_unstable();
            want.sort_unstable();
            assert_eq!(made, want, "{lanes} lanes");
        }
    }

    #[test]
    fn lanes_added_up_by_ranks_and_then_joined_make_the_sums_of_halving() {
        // A sum is written down as the tree that made it.
        let whole = |lanes: usize| {
            let mut all: Vec<String> = (0..lanes).map(|l| l.to_string()).collect();
            for (into, from) in halving(lanes) {
                all[into] = format!("({}+{})", all[into], all[from]);
            }
            all.swap_remove(0)
        };
        for lanes in 1..24usize {
            for ranks in 1..=lanes {
                let (mut all, mut counts) = (Vec::new(), Vec::new());
                for rank in 0..ranks {
                    let own = lanes_of(rank, ranks, lanes);
                    let mut stack: Vec<String> = Vec::new();
                    for lane in own.clone() {
                        let mut sum = lane.to_string();
                        for _ in 0..joins(lanes, own.start, lane) {
                            sum = format!("({}+{sum})", stack.pop().unwrap());
                        }
                        stack.push(sum);
                        assert!(stack.len() <= pending(lanes, ranks) + 1);
                    }
                    assert_eq!(stack.len(), parts(lanes, &own).len(), "rank {rank} of {ranks}, {lanes}");
                    counts.push(stack.len());
                    all.extend(stack);
                }
                assert_eq!(counts, parts_by_rank(lanes, ranks));
                for (into, from) in joining(lanes, ranks) {
                    all[into] = format!("({}+{})", all[into], all[from]);
                }
                assert_eq!(all[0], whole(lanes), "{ranks} ranks, {lanes} lanes");
            }
        }
        // Ranges 0..2, 2..5 and 5..8: only the first is a half of a half.
        assert_eq!(parts_by_rank(8, 3), [1, 2, 2]);
        assert_eq!(parts_by_rank(8, 4), [1, 1, 1, 1]);
    }

    #[test]
    fn halving_adds_in_the_stated_order() {
        assert_eq!(halving(0), []);
        assert_eq!(halving(1), []);
        assert_eq!(halving(3), [(1, 2), (0, 1)]);
        assert_eq!(halving(4), [(0, 1), (2, 3), (0, 2)]);
        // Rank 1 of 2 adds up lanes 2 and 3 without the others.
        let own: Vec<_> = halving(4).into_iter().filter(|(into, _)| *into >= 2).collect();
        assert_eq!(own, halving(2).into_iter().map(|(a, b)| (a + 2, b + 2)).collect::<Vec<_>>());
    }
}
