//! Streams of work on one device: delayed, interleaved by a seed, and ordered by events alone.

use headwater_core::diagnostic::{Code, Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Number of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u32);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The part of each stream that is known to be over: a vector clock.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Clock(BTreeMap<StreamId, u64>);

impl Clock {
    /// True if work number `time` of a stream is over.
    pub fn knows(&self, stream: StreamId, time: u64) -> bool {
        self.0.get(&stream).is_some_and(|&t| t >= time)
    }

    /// Learns that work up to number `time` of a stream is over.
    pub fn learn(&mut self, stream: StreamId, time: u64) {
        let known = self.0.entry(stream).or_default();
        *known = time.max(*known);
    }

    /// Learns all that another clock knows.
    pub fn join(&mut self, other: &Clock) {
        other.0.iter().for_each(|(&s, &t)| self.learn(s, t));
    }
}

/// A mark in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub stream: StreamId,
    pub time: u64,
}

/// A user of memory: work on a stream, and what it knows of the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User<'a> {
    pub stream: StreamId,
    pub time: u64,
    pub clock: &'a Clock,
}

type Task = Box<dyn FnOnce(User) -> Result<()> + Send>;

enum Work {
    Task(Task),
    /// Nothing: later work of another stream may wait for it.
    Mark,
    Wait(Mark),
}

struct Job {
    time: u64,
    work: Work,
    /// The host's knowledge when it submitted the job: that work is over before the job begins.
    host: Clock,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    submitted: u64,
    done: u64,
    clock: Clock,
    /// The knowledge after each mark that has come.
    marks: BTreeMap<u64, Clock>,
    failure: Option<Error>,
}

/// All streams of a device.
pub struct Machine(Mutex<State>);

struct State {
    streams: Vec<Queue>,
    /// The work that the host has waited for.
    host: Clock,
    random: u64,
}

impl Machine {
    /// No streams; `seed` decides their interleaving.
    pub(crate) fn new(seed: u64) -> Machine {
        Machine(Mutex::new(State {
            streams: Vec::new(),
            host: Clock::default(),
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stream(&self) -> StreamId {
        let mut state = self.lock();
        state.streams.push(Queue::default());
        StreamId(state.streams.len() as u32 - 1)
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
        self.lock().append(stream, Work::Task(Box::new(task))).map(drop)
    }

    pub(crate) fn mark(&self, stream: StreamId) -> Result<Mark> {
        self.lock().append(stream, Work::Mark)
    }

    pub(crate) fn wait(&self, stream: StreamId, mark: Mark) -> Result<()> {
        self.lock().append(stream, Work::Wait(mark)).map(drop)
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
            state.advance();
        }
        let queue = &state.streams[mark.stream.0 as usize];
        // Behind the last work of a stream there may be no mark: all before is over.
        let clock = queue.marks.get(&mark.time).unwrap_or(&queue.clock).clone();
        let failure = queue.failure.clone();
        state.host.join(&clock);
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
        let host = self.host.clone();
        let queue = &mut self.streams[stream.0 as usize];
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

    /// Does the first job of a stream that the seed chooses. Marks are submitted before who waits for them,
    /// so there is always one that can be done.
    fn advance(&mut self) {
        let come = |mark: &Mark| self.streams[mark.stream.0 as usize].done >= mark.time;
        let ready = |q: &Queue| match q.jobs.front() {
            None => false,
            Some(Job { work: Work::Wait(mark), .. }) => come(mark),
            Some(_) => true,
        };
        let able: Vec<usize> = (0..self.streams.len()).filter(|&s| ready(&self.streams[s])).collect();
        if able.is_empty() {
            return;
        }
        let s = able[self.below(able.len())];
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
            // Jobs behind a failure are dropped.
            Work::Task(task) if queue.failure.is_none() => {
                queue.failure = task(User { stream, time, clock: &queue.clock }).err();
            }
            Work::Task(_) | Work::Wait(_) | Work::Mark => {}
        }
        queue.clock.learn(stream, time);
        queue.done = time;
        if marks {
            queue.marks.insert(time, queue.clock.clone());
        }
    }
}
