//! Threads of streams: each does the work of one stream, and tells of its failures.

use crate::outcome::{Outcome, fail};
use crate::stream::{Arguments, Stream, Task};
use crate::world::WORLD;
use crate::{compute, run};
use headwater_ascend::host::codes::Status;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A new stream, and the thread that does its work.
pub fn start(id: i32, device: i32) -> Arc<Stream> {
    let stream = Arc::new(Stream::new(id, device));
    let own = stream.clone();
    std::thread::spawn(move || {
        while let Some(task) = own.next() {
            let abandoned = own.abandoned.load(Ordering::SeqCst);
            let outcome = if abandoned { Ok(()) } else { perform(&own, &task, own.id as u32) };
            drop(task);
            own.finish(outcome);
        }
    });
    stream
}

/// Number of the stream that recorded tasks fail on: one of the runtime's own, which no caller knows.
const INTERNAL: u32 = 9999;

/// Executes one task; a failure is reported as one of the stream `id`.
fn perform(stream: &Stream, task: &Task, id: u32) -> Outcome {
    if let Some(status) = WORLD.state().devices[stream.device as usize].lost {
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
            while !event.reached(*number) && !stream.abandoned.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_micros(50));
            }
            Ok(())
        }
        Task::Replay(tasks) => tasks.iter().try_for_each(|task| {
            let abandoned = stream.abandoned.load(Ordering::SeqCst);
            if abandoned { Ok(()) } else { perform(stream, task, INTERNAL) }
        }),
        Task::Operator { name, work, workspace, task } => {
            let stalled = WORLD.state().stalled.as_deref() == Some(name);
            let outcome = if stalled { run::spin(name, stream) } else { compute::run(work, *workspace) };
            outcome.or_else(|(status, text)| exception(stream, id, *task, status, &text))
        }
        Task::Kernel { function, blocks, args, task } => {
            let bytes = match args {
                Arguments::Bytes(bytes) => bytes.clone(),
                Arguments::Device(address, bytes) => {
                    if !WORLD.state().is_device(*address, *bytes) {
                        return exception(stream, id, *task, 507_015, "the arguments' memory is gone");
                    }
                    // SAFETY: the range is in an allocation of the stand-in's.
                    unsafe { std::slice::from_raw_parts(*address as *const u8, *bytes) }.to_vec()
                }
            };
            match run::kernel(function, *blocks, &bytes, stream) {
                Ok(()) => Ok(()),
                Err((status, text)) => exception(stream, id, *task, status, &text),
            }
        }
    }
}

/// Tells a failed task, as the runtime does.
fn exception(stream: &Stream, id: u32, task: u32, status: Status, text: &str) -> Outcome {
    let callback = WORLD.state().callback;
    if let Some(callback) = callback {
        let info = ExceptionInfo { device: stream.device as u32, stream: id, task, status: status as u32 };
        callback((&raw const info).cast::<c_void>());
    }
    fail(status, text)
}

/// A failed task, as the accessors of an exception read it.
pub struct ExceptionInfo {
    pub device: u32,
    pub stream: u32,
    pub task: u32,
    pub status: u32,
}
