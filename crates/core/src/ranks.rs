//! Many ranks as plans and devices see them: the mesh that a graph is compiled for, and the transport that
//! carries bytes between ranks. Knows no library that does.

use crate::diagnostic::Result;

/// Name of the axis along which ranks have batches of their own and the same parameters.
pub const DATA: &str = "data";

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

/// The ranks that run one step together, by axes. Programs of all ranks are the same, but for coordinates
/// that become constants.
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
}

/// An exchange of bytes in which every rank takes part. Ranks post the same exchanges in the same order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Exchange {
    /// Part `q` goes to rank `q`; received are the parts from ranks 0, 1, … Parts differ in length as they like.
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
    /// `Device` if a rank is gone, or exchanges something else.
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
}

/// The order in which the values of `count` lanes or ranks are added up: recursive halving,
/// `s(a, b) = s(a, m) + s(m, b)` with `m = (a + b) / 2`. A list of additions, `(into, from)`: value `from` is
/// added to value `into`, and the sum is value 0 at the end. Whoever holds a half of the range adds that up
/// alone, so the bits do not depend on how many ranks share the lanes, where the halves are theirs.
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

/// Sums of [`halving`] that can be made once lane `lane` of `lanes` has been added up, and those before it:
/// that many of the last sums are joined, the latest first.
pub fn joins(lanes: usize, lane: usize) -> usize {
    let (mut a, mut b, mut joins) = (0, lanes, 0);
    while b - a > 1 {
        joins += usize::from(b == lane + 1);
        let middle = (a + b) / 2;
        (a, b) = if lane < middle { (a, middle) } else { (middle, b) };
    }
    joins
}

/// Sums of lanes that wait for others at most, when lanes are added up one after the other.
pub fn pending(lanes: usize) -> usize {
    lanes.max(1).next_power_of_two().trailing_zeros() as usize
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
                for _ in 0..joins(lanes, lane) {
                    let first = stack.pop().unwrap();
                    made.push((first, own));
                    own = first;
                }
                stack.push(own);
                most = most.max(if lane + 1 < lanes { stack.len() } else { 0 });
            }
            assert_eq!(stack, [0]);
            assert_eq!(most, pending(lanes), "{lanes} lanes");
            let mut want = halving(lanes);
            made.sort_unstable();
            want.sort_unstable();
            assert_eq!(made, want, "{lanes} lanes");
        }
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
