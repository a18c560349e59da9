//! A world within one process: ranks are threads, and bytes go through its memory. For tests, and for
//! programs that hold several devices.

use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::ranks::{Exchange, Ticket, Transport};
use std::collections::HashMap;
use std::mem::discriminant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// An exchange on its way: what each rank gives, and how many have taken their parts.
struct Meeting {
    given: Vec<Option<Exchange>>,
    taken: usize,
}

#[derive(Default)]
struct Board {
    /// By number, as each rank counts them.
    meetings: HashMap<u64, Meeting>,
    /// Why nobody waits any more.
    failure: Option<String>,
    /// Exchanges that were over, and bytes that they have brought.
    exchanges: u64,
    bytes: u64,
}

/// The ranks of a world; see the module's description.
pub struct World {
    board: Mutex<Board>,
    came: Condvar,
    ranks: usize,
}

/// A rank of a world.
struct Rank {
    world: Arc<World>,
    rank: usize,
    next: AtomicU64,
}

impl World {
    /// A world of so many ranks, at least one.
    pub fn new(ranks: usize) -> Arc<World> {
        Arc::new(World { board: Mutex::default(), came: Condvar::new(), ranks: ranks.max(1) })
    }

    /// A rank of it; each is taken once.
    pub fn rank(self: &Arc<World>, rank: usize) -> Arc<dyn Transport> {
        Arc::new(Rank { world: self.clone(), rank, next: AtomicU64::new(0) })
    }

    /// Exchanges that were over so far, and bytes that ranks have received in them.
    pub fn moved(&self) -> (u64, u64) {
        let board = self.board();
        (board.exchanges, board.bytes)
    }

    fn board(&self) -> std::sync::MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lost(why: &str) -> Error {
    Error::new(Code::Device, why.to_string())
}

/// The parts that rank `rank` receives, when all have given theirs.
fn parts(given: &[Option<Exchange>], rank: usize) -> Result<Option<Vec<Vec<u8>>>> {
    let Some(all) = given.iter().map(Option::as_ref).collect::<Option<Vec<_>>>() else { return Ok(None) };
    if let Some(other) = all.iter().position(|e| discriminant(*e) != discriminant(all[0])) {
        return Err(lost(&format!("rank 0 and rank {other} exchange different things")));
    }
    let parts = match all[0] {
        Exchange::Barrier => Vec::new(),
        Exchange::Broadcast { root, .. } => match all.get(*root) {
            Some(Exchange::Broadcast { bytes, .. }) => vec![bytes.clone()],
            _ => return Err(lost(&format!("rank {root} sends, of {} ranks", all.len()))),
        },
        _ => all
            .iter()
            .filter_map(|e| match e {
                Exchange::AllGather(bytes) => Some(bytes.clone()),
                Exchange::AllToAll(parts) => parts.get(rank).cloned(),
                _ => None,
            })
            .collect(),
    };
    Ok(Some(parts))
}

impl Transport for Rank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.world.ranks
    }

    fn post(&self, exchange: Exchange) -> Result<Ticket> {
        let number = self.next.fetch_add(1, Ordering::SeqCst);
        let mut board = self.world.board();
        let empty = || Meeting { given: (0..self.world.ranks).map(|_| None).collect(), taken: 0 };
        board.meetings.entry(number).or_insert_with(empty).given[self.rank] = Some(exchange);
        self.world.came.notify_all();
        Ok(Ticket(number))
    }

    fn test(&self, ticket: Ticket) -> Result<Option<Vec<Vec<u8>>>> {
        let mut board = self.world.board();
        let Some(meeting) = board.meetings.get_mut(&ticket.0) else {
            return Err(lost("the parts of an exchange were taken already"));
        };
        let Some(parts) = parts(&meeting.given, self.rank)? else {
            return board.failure.as_deref().map_or(Ok(None), |why| Err(lost(why)));
        };
        meeting.taken += 1;
        if meeting.taken == self.world.ranks {
            board.meetings.remove(&ticket.0);
            board.exchanges += 1;
        }
        board.bytes += parts.iter().map(|p| p.len() as u64).sum::<u64>();
        Ok(Some(parts))
    }

    fn wait(&self, ticket: Ticket) -> Result<Vec<Vec<u8>>> {
        loop {
            if let Some(parts) = self.test(ticket)? {
                return Ok(parts);
            }
            let board = self.world.board();
            // Somebody may have come between the look and the lock: it is looked at again after a while.
            let pause = std::time::Duration::from_millis(1);
            drop(self.world.came.wait_timeout(board, pause));
        }
    }

    fn abort(&self, why: &str) {
        let mut board = self.world.board();
        board.failure.get_or_insert_with(|| format!("rank {} has ended: {why}", self.rank));
        self.world.came.notify_all();
    }
}
