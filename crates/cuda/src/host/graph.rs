//! Launches recorded once and replayed by one call.

use super::context::Context;
use super::error::Result;
use super::stream::Stream;
use super::table::Handle;
use std::sync::Arc;

/// A recording.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: handles of the driver belong to no thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what a function gives to a stream. Nothing of it runs.
    ///
    /// # Errors
    /// Refusals of the driver; those of the function.
    pub fn record(stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let context = stream.context();
        context.enter()?;
        let driver = context.driver();
        // SAFETY: the stream is alive. 1: other threads may do what they like meanwhile.
        context.check("cuStreamBeginCapture", unsafe { (driver.capture_begin)(stream.handle(), 1) })?;
        let given = work();
        let mut graph = std::ptr::null_mut();
        // SAFETY: a recording was begun on this stream; writes a handle.
        let ended =
            context.check("cuStreamEndCapture", unsafe { (driver.capture_end)(stream.handle(), &mut graph) });
        let recorded = given.and(ended).and_then(|()| {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the graph is alive; writes a handle.
            let code = unsafe { (driver.graph_instantiate)(&mut handle, graph, 0) };
            context.check("cuGraphInstantiate", code)?;
            Ok(Graph { context: context.clone(), handle })
        });
        if !graph.is_null() {
            // SAFETY: made once, destroyed once; what was instantiated from it lives on.
            unsafe { (driver.graph_destroy)(graph) };
        }
        recorded
    }

    /// Gives the recorded work to a stream.
    ///
    /// # Errors
    /// Refusals of the driver.
    pub fn replay(&self, stream: &Stream) -> Result<()> {
        self.context.enter()?;
        // SAFETY: both are alive.
        let code = unsafe { (self.context.driver().graph_launch)(self.handle, stream.handle()) };
        self.context.check("cuGraphLaunch", code)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made once, destroyed once.
            unsafe { (self.context.driver().graph_exec_destroy)(self.handle) };
        }
    }
}
