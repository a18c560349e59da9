//! Streams: queues of work that is done in order, and events.

use crate::function::Function;
use crate::operator::Work;
use crate::outcome::{Outcome, fail};
use headwater_ascend::host::codes::{self, Status};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Work of a stream. Addresses are numbers: memory is checked when the work is given and used when it is
/// done, as on a device.
pub enum Task {
    Copy { from: usize, to: usize, bytes: usize },
    Fill { to: usize, byte: u8, bytes: usize },
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    Kernel { function: Arc<Function>, blocks: u32, args: Arguments, task: u32 },
    Operator { name: &'static str, work: Arc<Work>, workspace: (usize, usize), task: u32 },
    Replay(Arc<Vec<Task>>),
}

/// A recording under way.
#[derive(Default)]
pub struct Capture {
    pub tasks: Vec<Task>,
    /// The mode it was begun with.
    pub mode: u32,
    /// The thread that began it.
    pub thread: Option<ThreadId>,
    /// Something was called that must not be meanwhile.
    pub invalid: bool,
}

/// Place of a kernel's arguments.
pub enum Arguments {
    /// Taken over when the launch was given.
    Bytes(Vec<u8>),
    /// In device memory, read when the kernel starts.
    Device(usize, usize),
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    given: u64,
    done: u64,
    /// The first failure and what it says.
    error: Option<(Status, String)>,
    closing: bool,
}

/// A stream.
pub struct Stream {
    pub id: i32,
    pub device: i32,
    queue: Mutex<Queue>,
    capture: Mutex<Option<Capture>>,
    changed: Condvar,
    /// Its work was aborted.
    pub abandoned: AtomicBool,
}

impl Stream {
    /// A stream without work, of a device.
    pub fn new(id: i32, device: i32) -> Stream {
        Stream {
            id,
            device,
            queue: Mutex::default(),
            capture: Mutex::default(),
            changed: Condvar::new(),
            abandoned: AtomicBool::new(false),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its recording, if there is one.
    pub fn capture(&self) -> MutexGuard<'_, Option<Capture>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes work, to be done or recorded.
    pub fn give(&self, task: Task) {
        if let Some(capture) = &mut *self.capture() {
            capture.tasks.push(task);
            return;
        }
        let mut queue = self.queue();
        queue.tasks.push_back(task);
        queue.given += 1;
        self.changed.notify_all();
    }

    /// The next work, as soon as there is some; `None` once the stream is closed.
    pub fn next(&self) -> Option<Task> {
        let mut queue = self.queue();
        loop {
            match queue.tasks.pop_front() {
                Some(task) => return Some(task),
                None if queue.closing => return None,
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Notes the outcome of work that was next.
    pub fn finish(&self, outcome: Outcome) {
        let mut queue = self.queue();
        if let Err(failure) = outcome {
            queue.error.get_or_insert(failure);
        }
        queue.done += 1;
        self.changed.notify_all();
    }

    /// Waits until all work is done; gives the first failure, once for all.
    pub fn synchronize(&self, limit: Option<Duration>) -> Outcome {
        let start = Instant::now();
        let mut queue = self.queue();
        let given = queue.given;
        while queue.done < given {
            let rest = limit.map(|l| l.saturating_sub(start.elapsed()));
            if rest.is_some_and(|r| r.is_zero()) {
                return fail(codes::STREAM_SYNC_TIMEOUT, format!("stream {} is not done", self.id));
            }
            let rest = rest.unwrap_or(Duration::from_secs(3600));
            queue = self.changed.wait_timeout(queue, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.error.clone().map_or(Ok(()), Err)
    }

    /// Ends its thread; with `force` whatever that does.
    pub fn close(&self, force: bool) {
        if force {
            self.abandoned.store(true, Ordering::SeqCst);
        }
        self.queue().closing = true;
        self.changed.notify_all();
    }
}

/// An event: how often it was recorded, and which of the records the streams have reached.
#[derive(Default)]
pub struct Event {
    numbers: Mutex<(u64, u64)>,
}

impl Event {
    fn numbers(&self) -> MutexGuard<'_, (u64, u64)> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new record; its number.
    pub fn record(&self) -> u64 {
        let mut numbers = self.numbers();
        numbers.0 += 1;
        numbers.0
    }

    /// The last record.
    pub fn last(&self) -> u64 {
        self.numbers().0
    }

    pub fn reached(&self, number: u64) -> bool {
        self.numbers().1 >= number
    }

    pub fn reach(&self, number: u64) {
        self.numbers().1 = number;
    }
}
