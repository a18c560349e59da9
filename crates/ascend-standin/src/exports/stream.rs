//! Streams and events.

use super::{exports, put};
use crate::outcome::{HANDLE, fail};
use crate::stream::Task;
use crate::worker;
use crate::world::{LAST_TASK, WORLD};
use headwater_ascend::host::acl::types::EVENT_COMPLETE;
use std::ffi::c_void;
use std::time::Duration;

exports! {
    /// `aclrtCreateStream`.
    fn aclrtCreateStream(stream: *mut *mut c_void) {
        let mut state = WORLD.state();
        let device = state.current()?.0;
        let token = WORLD.token();
        // Numbers are small and not the handle's.
        let id = (token / 16 % 2000) as i32;
        state.streams.insert(token, worker::start(id, device));
        put(stream, token as *mut c_void)
    }

    /// `aclrtDestroyStream`: waits for the work, as a device would.
    fn aclrtDestroyStream(stream: *mut c_void) {
        let own = WORLD.state().stream(stream)?;
        own.capture().take();
        let _ = own.synchronize(None);
        own.close(false);
        WORLD.state().streams.remove(&(stream as usize));
        Ok(())
    }

    /// `aclrtDestroyStreamForce`: gives the work up, and waits until the stream does nothing more.
    fn aclrtDestroyStreamForce(stream: *mut c_void) {
        let own = WORLD.state().stream(stream)?;
        own.close(true);
        let _ = own.synchronize(None);
        WORLD.state().streams.remove(&(stream as usize));
        Ok(())
    }

    /// `aclrtStreamGetId`.
    fn aclrtStreamGetId(stream: *mut c_void, id: *mut i32) {
        let number = WORLD.state().stream(stream)?.id;
        put(id, number)
    }

    /// `aclrtGetThreadLastTaskId`.
    fn aclrtGetThreadLastTaskId(task: *mut u32) {
        put(task, LAST_TASK.get())
    }

    /// `aclrtSynchronizeStreamWithTimeout`.
    fn aclrtSynchronizeStreamWithTimeout(stream: *mut c_void, milliseconds: i32) {
        let own = {
            let mut state = WORLD.state();
            state.current()?;
            let own = state.stream(stream)?;
            state.idle(Some(&own))?;
            own
        };
        own.synchronize(u64::try_from(milliseconds).ok().map(Duration::from_millis))
    }

    /// `aclrtCreateEvent`.
    fn aclrtCreateEvent(event: *mut *mut c_void) {
        let mut state = WORLD.state();
        state.current()?;
        let token = WORLD.token();
        state.events.insert(token, Default::default());
        put(event, token as *mut c_void)
    }

    /// `aclrtDestroyEvent`.
    fn aclrtDestroyEvent(event: *mut c_void) {
        match WORLD.state().events.remove(&(event as usize)) {
            Some(_) => Ok(()),
            None => fail(HANDLE, "no such event"),
        }
    }

    /// `aclrtRecordEvent`.
    fn aclrtRecordEvent(event: *mut c_void, stream: *mut c_void) {
        let state = WORLD.state();
        let event = state.event(event)?;
        let number = event.record();
        state.stream(stream)?.give(Task::Record(event, number));
        Ok(())
    }

    /// `aclrtStreamWaitEvent`.
    fn aclrtStreamWaitEvent(stream: *mut c_void, event: *mut c_void) {
        let state = WORLD.state();
        let event = state.event(event)?;
        let number = event.last();
        state.stream(stream)?.give(Task::Wait(event, number));
        Ok(())
    }

    /// `aclrtQueryEventStatus`.
    fn aclrtQueryEventStatus(event: *mut c_void, status: *mut u32) {
        let mut state = WORLD.state();
        state.current()?;
        state.idle(None)?;
        let event = state.event(event)?;
        put(status, if event.reached(event.last()) { EVENT_COMPLETE } else { 0 })
    }
}
