//! Recording of a stream's work, and its replay.

use super::{exports, put};
use crate::outcome::{HANDLE, Outcome, PARAM, fail};
use crate::stream::{Capture, Task};
use crate::world::WORLD;
use headwater_ascend::host::acl::types::CAPTURE_THREAD_LOCAL;
use std::ffi::c_void;
use std::sync::Arc;

/// The relaxed mode, the last one.
const RELAXED: u32 = 2;

/// Refuses chips that the version does not record on: 310P before 9.0.
fn supported() -> Outcome {
    let version = WORLD.config.version.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    if WORLD.arch() == 2002 && version < 9 {
        return fail(207_000, "this chip does not record streams");
    }
    Ok(())
}

exports! {
    /// `aclmdlRICaptureBegin`.
    fn aclmdlRICaptureBegin(stream: *mut c_void, mode: u32) {
        supported()?;
        if mode > RELAXED {
            return fail(PARAM, format!("there is no mode {mode}"));
        }
        let mut state = WORLD.state();
        state.current()?;
        let own = state.stream(stream)?;
        let mut capture = own.capture();
        if capture.is_some() {
            return fail(107_027, "the stream is being recorded");
        }
        let thread = Some(std::thread::current().id());
        *capture = Some(Capture { mode, thread, ..Capture::default() });
        Ok(())
    }

    /// `aclmdlRICaptureEnd`.
    fn aclmdlRICaptureEnd(stream: *mut c_void, graph: *mut *mut c_void) {
        let mut state = WORLD.state();
        let own = state.stream(stream)?;
        let mut recorded = own.capture();
        let Some(capture) = &*recorded else { return fail(107_029, "the stream is not being recorded") };
        let thread = Some(std::thread::current().id());
        if capture.mode <= CAPTURE_THREAD_LOCAL && capture.thread != thread {
            return fail(107_038, "another thread began the recording");
        }
        let capture = recorded.take().unwrap_or_default();
        if capture.invalid {
            return fail(107_039, "something was called that must not be while a stream is recorded");
        }
        let token = WORLD.token();
        state.graphs.insert(token, Arc::new(capture.tasks));
        put(graph, token as *mut c_void)
    }

    /// `aclmdlRIExecuteAsync`.
    fn aclmdlRIExecuteAsync(graph: *mut c_void, stream: *mut c_void) {
        let mut state = WORLD.state();
        state.current()?;
        let own = state.stream(stream)?;
        let Some(tasks) = state.graphs.get(&(graph as usize)).cloned() else {
            return fail(HANDLE, "no such recording");
        };
        if own.capture().is_some() {
            return fail(107_027, "the stream is being recorded");
        }
        own.give(Task::Replay(tasks));
        Ok(())
    }

    /// `aclmdlRIDestroy`.
    fn aclmdlRIDestroy(graph: *mut c_void) {
        let mut state = WORLD.state();
        let running = state.graphs.get(&(graph as usize)).map(|tasks| Arc::strong_count(tasks) > 1);
        match running {
            None => fail(HANDLE, "no such recording"),
            Some(true) => fail(107_037, "the recording is still running"),
            Some(false) => {
                state.graphs.remove(&(graph as usize));
                Ok(())
            }
        }
    }
}
