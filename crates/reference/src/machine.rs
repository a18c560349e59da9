//! Streams of work on one device, or on several that meet in collectives: delayed, interleaved by a seed, and
//! ordered by events alone.

pub(crate) use crate::clock::User;
pub use crate::clock::{Clock, StreamId};
use crate::meeting::{Issue, meet};
use headwater_core::diagnostic::{Code, Error, Result};
use headwater_core::fail;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A mark in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub stream: StreamId,
    pub time: u64,
}

type Task = Box<dyn FnOnce(User) -> Result<()> + Send>;

enum Work {
    Task(Task),
    /// Nothing: later work of another stream may wait for it.
    Mark,
    Wait(Mark),
    /// A collective, done when every rank has come to one.
    Meet(Box<Issue>),
}

struct Job {
    time: u64,
    work: Work,
    /// The host's knowledge when it submitted the job: that work is over before the job begins.
    host: Clock,
}

#[derive(Default)]
struct Queue {
    rank: usize,
    jobs: VecDeque<Job>,
    submitted: u64,
    done: u64,
    clock: Clock,
    /// The knowledge after each mark that has come.
    marks: BTreeMap<u64, Clock>,
    failure: Option<Error>,
}

/// All streams of a device.
pub struct Machine {
    world: Arc<World>,
    rank: usize,
}

/// The devices that meet in collectives.
struct World {
    state: Mutex<State>,
    /// Told when a rank has submitted work, or done some.
    news: Condvar,
    /// Time for which a rank waits for others to submit theirs.
    patience: Duration,
}

struct State {
    streams: Vec<Queue>,
    /// By rank, the work that its host has waited for.
    hosts: Vec<Clock>,
    random: u64,
}

impl Machine {
    /// Machines of `ranks` devices without streams; `seed` decides their interleaving. Each waits at most
    /// `patience` for the others to come to a collective.
    pub(crate) fn world(ranks: usize, seed: u64, patience: Duration) -> Vec<Machine> {
        let state = State {
            streams: Vec::new(),
            hosts: vec![Clock::default(); ranks],
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        };
        let world = Arc::new(World { state: Mutex::new(state), news: Condvar::new(), patience });
        (0..ranks).map(|rank| Machine { world: world.clone(), rank }).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.world.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ranks that meet in collectives.
    pub(crate) fn ranks(&self) -> usize {
        self.lock().hosts.len()
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn stream(&self) -> StreamId {
        let mut state = self.lock();
        state.streams.push(Queue { rank: self.rank, ..Queue::default() });
        StreamId(state.streams.len() as u32 - 1)
    }

    fn append(&self, stream: StreamId, work: Work) -> Result<Mark> {
        let mark = self.lock().append(stream, work);
        self.world.news.notify_all();
        mark
    }

    /// Appends a task, and perhaps does some work of any stream.
    ///
    /// # Errors
    /// A sticky failure of the stream.
    pub(crate) fn submit(
        &self,
        stream: StreamId,
        task: impl FnOnce(User) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.append(stream, Work::Task(Box::new(task))).map(drop)
    }

    /// Appends a collective.
    ///
    /// # Errors
    /// A sticky failure of the stream.
    pub(crate) fn meet(&self, stream: StreamId, issue: Issue) -> Result<()> {
        self.append(stream, Work::Meet(Box::new(issue))).map(drop)
    }

    pub(crate) fn mark(&self, stream: StreamId) -> Result<Mark> {
        self.append(stream, Work::Mark)
    }

    pub(crate) fn wait(&self, stream: StreamId, mark: Mark) -> Result<()> {
        self.append(stream, Work::Wait(mark)).map(drop)
    }

    pub(crate) fn is_done(&self, mark: Mark) -> bool {
        self.lock().streams[mark.stream.0 as usize].done >= mark.time
    }

    /// Does work until a mark of a stream has come; the host knows then what is over.
    ///
    /// # Errors
    /// The failure on the stream, which keeps it.
    pub(crate) fn await_mark(&self, mark: Mark) -> Result<()> {
        let mut state = self.lock();
        while state.streams[mark.stream.0 as usize].done < mark.time {
            if state.advance() {
                self.world.news.notify_all();
                continue;
            }
            // Whatever is left waits for ranks whose hosts have not come so far.
            let waited = self.world.news.wait_timeout(state, self.world.patience);
            let (found, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = found;
            if timeout.timed_out() && state.streams[mark.stream.0 as usize].done < mark.time {
                return Err(state.absent(self.world.patience));
            }
        }
        let queue = &state.streams[mark.stream.0 as usize];
        // After the last work of a stream there may be no mark: all before is over.
        let clock = queue.marks.get(&mark.time).unwrap_or(&queue.clock).clone();
        let failure = queue.failure.clone();
        state.hosts[self.rank].join(&clock);
        failure.map_or(Ok(()), Err)
    }

    /// Does work until a stream is empty, and reports what went wrong; an error in data is over then.
    ///
    /// # Errors
    /// That.
    pub(crate) fn synchronize(&self, stream: StreamId) -> Result<()> {
        let time = self.lock().streams[stream.0 as usize].submitted;
        let result = self.await_mark(Mark { stream, time });
        if result.as_ref().is_err_and(|e| e.code != Code::Device) {
            self.lock().streams[stream.0 as usize].failure = None;
        }
        result
    }
}

impl State {
    /// A number below `n` (Marsaglia's xorshift64, 2003).
    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 33) as usize % n
    }

    fn append(&mut self, stream: StreamId, work: Work) -> Result<Mark> {
        let queue = &mut self.streams[stream.0 as usize];
        let host = self.hosts[queue.rank].clone();
        if let Some(e) = queue.failure.as_ref().filter(|e| e.code == Code::Device) {
            return Err(e.clone());
        }
        queue.submitted += 1;
        let time = queue.submitted;
        queue.jobs.push_back(Job { time, work, host });
        if self.below(4) == 0 {
            self.advance();
        }
        Ok(Mark { stream, time })
    }

    /// By rank, the stream whose next job is a collective.
    fn arrived(&self) -> Vec<Option<usize>> {
        let mut at = vec![None; self.hosts.len()];
        for (s, queue) in self.streams.iter().enumerate() {
            if matches!(queue.jobs.front(), Some(Job { work: Work::Meet(_), .. })) {
                at[queue.rank].get_or_insert(s);
            }
        }
        at
    }

    /// The error of a collective to which not every rank has come.
    fn absent(&self, patience: Duration) -> Error {
        let arrived = self.arrived();
        let issue = arrived.iter().flatten().find_map(|&s| match self.streams[s].jobs.front() {
            Some(Job { work: Work::Meet(issue), .. }) => Some((self.streams[s].rank, issue)),
            _ => None,
        });
        let missing: Vec<String> =
            (0..arrived.len()).filter(|&r| arrived[r].is_none()).map(|r| r.to_string()).collect();
        let (missing, seconds) = (missing.join(" and "), patience.as_secs_f64());
        match issue {
            Some((rank, issue)) => {
                let message = format!(
                    "rank {rank} has waited {seconds} s in {issue}; rank {missing} has come to no collective"
                );
                Error::new(Code::Device, message).in_op(issue.op.name).at(&issue.origin)
            }
            None => fail!(Device, "nothing happened for {seconds} s"),
        }
    }

    /// Does the first job of a stream that the seed chooses; false if there is none to do. Marks are
    /// submitted before who waits for them, so that only a rank which has not come to a collective holds
    /// others up.
    fn advance(&mut self) -> bool {
        let come = |mark: &Mark| self.streams[mark.stream.0 as usize].done >= mark.time;
        let all: Option<Vec<usize>> = self.arrived().into_iter().collect();
        let ready = |q: &Queue| match q.jobs.front() {
            None => false,
            Some(Job { work: Work::Wait(mark), .. }) => come(mark),
            Some(Job { work: Work::Meet(_), .. }) => all.is_some(),
            Some(_) => true,
        };
        let able: Vec<usize> = (0..self.streams.len()).filter(|&s| ready(&self.streams[s])).collect();
        if able.is_empty() {
            return false;
        }
        let s = able[self.below(able.len())];
        let meets = matches!(self.streams[s].jobs.front(), Some(Job { work: Work::Meet(_), .. }));
        match all.filter(|_| meets) {
            Some(all) => self.meet(&all),
            None => self.job(s),
        }
        true
    }

    /// Does the collective that comes first on one stream of each rank.
    fn meet(&mut self, streams: &[usize]) {
        let mut issues = Vec::new();
        for &s in streams {
            let queue = &mut self.streams[s];
            let Some(Job { time, work: Work::Meet(issue), host }) = queue.jobs.pop_front() else { return };
            queue.clock.join(&host);
            issues.push((StreamId(s as u32), time, queue.clock.clone(), *issue));
        }
        for (failure, &s) in meet(&mut issues).into_iter().zip(streams) {
            let queue = &mut self.streams[s];
            queue.failure = queue.failure.take().or(failure);
        }
        for (stream, time, ..) in issues {
            let queue = &mut self.streams[stream.0 as usize];
            queue.clock.learn(stream, time);
            queue.done = time;
        }
    }

    /// Does the first job of a stream, which is no collective.
    fn job(&mut self, s: usize) {
        let Some(Job { time, work, host }) = self.streams[s].jobs.pop_front() else { return };
        let learnt = match &work {
            Work::Wait(mark) => self.streams[mark.stream.0 as usize].marks.get(&mark.time).cloned(),
            _ => None,
        };
        let (stream, marks) = (StreamId(s as u32), matches!(work, Work::Mark));
        let queue = &mut self.streams[s];
        queue.clock.join(&host);
        queue.clock.join(&learnt.unwrap_or_default());
        match work {
            // Jobs after a failure are dropped.
            Work::Task(task) if queue.failure.is_none() => {
                queue.failure = task(User { stream, time, clock: &queue.clock }).err();
            }
            Work::Task(_) | Work::Wait(_) | Work::Mark | Work::Meet(_) => {}
        }
        queue.clock.learn(stream, time);
        queue.done = time;
        if marks {
            queue.marks.insert(time, queue.clock.clone());
        }
    }
}
