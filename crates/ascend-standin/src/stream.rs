//! Streams: a thread each that does the work in order, and events.

use crate::run::{self, Function};
use crate::world::{Outcome, WORLD, fail};
use headwater_ascend::host::codes::{self, Status};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Work of a stream. Addresses are numbers: memory is checked when the work is given and used when it is done, as on
/// a device.
pub enum Task {
    Copy { from: usize, to: usize, bytes: usize },
    Fill { to: usize, byte: u8, bytes: usize },
    Record(Arc<Event>, u64),
    Wait(Arc<Event>, u64),
    Kernel { function: Arc<Function>, blocks: u32, args: Arguments, task: u32 },
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
    changed: Condvar,
    /// Its work is given up.
    pub abandoned: AtomicBool,
}

impl Stream {
    pub fn start(id: i32, device: i32) -> Arc<Stream> {
        let stream = Arc::new(Stream {
            id,
            device,
            queue: Mutex::default(),
            changed: Condvar::new(),
            abandoned: AtomicBool::new(false),
        });
        let own = stream.clone();
        std::thread::spawn(move || own.work());
        stream
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn give(&self, task: Task) {
        let mut queue = self.queue();
        queue.tasks.push_back(task);
        queue.given += 1;
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

    /// Ends the thread; with `force` whatever it does.
    pub fn close(&self, force: bool) {
        if force {
            self.abandoned.store(true, Ordering::SeqCst);
        }
        self.queue().closing = true;
        self.changed.notify_all();
    }

    fn work(&self) {
        loop {
            let task = {
                let mut queue = self.queue();
                loop {
                    match queue.tasks.pop_front() {
                        Some(task) => break task,
                        None if queue.closing => return,
                        None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                    }
                }
            };
            let outcome = if self.abandoned.load(Ordering::SeqCst) { Ok(()) } else { self.perform(&task) };
            let mut queue = self.queue();
            if let Err(failure) = outcome {
                queue.error.get_or_insert(failure);
            }
            queue.done += 1;
            self.changed.notify_all();
        }
    }

    fn perform(&self, task: &Task) -> Outcome {
        if let Some(status) = WORLD.state().devices[self.device as usize].lost {
            return fail(status, "the device is lost");
        }
        match task {
            Task::Copy { from, to, bytes } => {
                // SAFETY: one side is memory of the stand-in, the other the caller's; the caller keeps both until
                // the work is done, which is what the tests are about.
                unsafe { std::ptr::copy(*from as *const u8, *to as *mut u8, *bytes) };
                Ok(())
            }
            Task::Fill { to, byte, bytes } => {
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(*to as *mut u8, *byte, *bytes) };
                Ok(())
            }
            Task::Record(event, number) => {
                event.reach(*number);
                Ok(())
            }
            Task::Wait(event, number) => {
                while !event.reached(*number) && !self.abandoned.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Ok(())
            }
            Task::Kernel { function, blocks, args, task } => {
                let bytes = match args {
                    Arguments::Bytes(bytes) => bytes.clone(),
                    Arguments::Device(address, bytes) => {
                        if !WORLD.state().is_device(*address, *bytes) {
                            return self.exception(*task, 507_015, "the arguments' memory is gone");
                        }
                        // SAFETY: the range lies in an allocation of the stand-in's.
                        unsafe { std::slice::from_raw_parts(*address as *const u8, *bytes) }.to_vec()
                    }
                };
                match run::kernel(function, *blocks, &bytes, self) {
                    Ok(()) => Ok(()),
                    Err((status, text)) => self.exception(*task, status, &text),
                }
            }
        }
    }

    /// Tells a failed task, as the runtime does.
    fn exception(&self, task: u32, status: Status, text: &str) -> Outcome {
        let callback = WORLD.state().callback;
        if let Some(callback) = callback {
            let info = ExceptionInfo {
                device: self.device as u32,
                stream: self.id as u32,
                task,
                status: status as u32,
            };
            callback((&raw const info).cast::<c_void>());
        }
        fail(status, text)
    }
}

/// What the accessors of an exception read.
pub struct ExceptionInfo {
    pub device: u32,
    pub stream: u32,
    pub task: u32,
    pub status: u32,
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

    fn reach(&self, number: u64) {
        self.numbers().1 = number;
    }
}
