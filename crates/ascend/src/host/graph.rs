//! Recorded launches: given to a stream once, then run again by one call, without the host between them.
//!
//! CANN calls this capture of a stream (`aclmdlRICapture…`). Nothing may wait or ask on the recording thread
//! meanwhile, so a recording has a stream of its own, and every launch is prepared before it begins.
#![allow(unsafe_code)]

use super::acl::symbols::Capture;
use super::acl::types::{CAPTURE_THREAD_LOCAL, GraphHandle};
use super::device::Device;
use super::error::{Error, Result, Site};
use super::launch::{Kernel, Launch};
use super::log::Sites;
use super::memory::{DeviceMemory, WeakMemory};
use super::stream::Stream;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A recording of launches. It holds their kernels, but not the memory of their arguments; once some of that
/// is freed, it cannot be replayed any more.
#[derive(Clone, Debug)]
pub struct Graph(Arc<Recorded>);

#[derive(Debug)]
struct Recorded {
    handle: GraphHandle,
    uses: Uses,
    /// The stream that it was recorded from: the vendor's sample keeps it as long.
    stream: Arc<Stream>,
}

/// Launches of a recording, and all that they use.
#[derive(Debug, Default)]
struct Uses {
    sites: Arc<[Arc<Site>]>,
    _parts: Vec<(Kernel, Option<DeviceMemory>)>,
    memory: Vec<WeakMemory>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let device = self.stream.device();
        let runtime = device.runtime();
        device.set_context();
        let Some(f) = runtime.acl.capture else { return };
        // SAFETY: the recording is alive and destroyed once; streams hold it until its runs are done.
        let status = unsafe { (f.aclmdlRIDestroy)(self.handle) };
        runtime.released("aclmdlRIDestroy", status, &runtime.counts.graphs);
    }
}

impl Recorded {
    /// The memory that its launches use, if all of it is alive.
    fn memory(&self) -> Option<Vec<DeviceMemory>> {
        self.uses.memory.iter().map(WeakMemory::upgrade).collect()
    }
}

impl Graph {
    /// Records launches from a stream that nobody else uses. After an error that stream must not be used
    /// again.
    ///
    /// # Errors
    /// [`Error::Symbol`] where the library cannot record, [`Error::Call`] if it refuses, [`Error::Usage`] for
    /// a kernel of another device, the device's first error.
    pub fn record(stream: &Arc<Stream>, launches: &[Launch]) -> Result<Graph> {
        let device = stream.device();
        if let Some(launch) = launches.iter().find(|l| !Arc::ptr_eq(l.device(), device)) {
            return Err(Error::Usage(format!("{} is not loaded on {}", launch.site(), device.name())));
        }
        let memory = launches.iter().flat_map(Launch::memory);
        let memory: BTreeMap<u64, WeakMemory> = memory.map(|m| (m.address(), m.downgrade())).collect();
        let uses = Uses {
            sites: launches.iter().map(|launch| launch.site().clone()).collect(),
            _parts: launches.iter().map(Launch::parts).collect(),
            memory: memory.into_values().collect(),
        };
        capture(stream, uses, || {
            launches.iter().try_for_each(|launch| {
                let (call, status) = stream.start(launch)?;
                device.check(call, status)
            })
        })
    }

    /// Tries out on a device what recording needs: every call of it, with a few bytes that are set.
    ///
    /// # Errors
    /// As [`Graph::record`].
    pub fn probe(device: &Arc<Device>) -> Result<()> {
        const BYTES: usize = 64;
        let (stream, memory) = (Arc::new(Stream::new(device)?), DeviceMemory::alloc(device, BYTES)?);
        let uses = Uses { memory: vec![memory.downgrade()], ..Uses::default() };
        let graph = capture(&stream, uses, || {
            // SAFETY: the memory has so many bytes; a run of the recording holds it.
            let status = unsafe {
                (device.runtime().acl.base.aclrtMemsetAsync)(
                    memory.range(0, BYTES)?,
                    BYTES,
                    0,
                    BYTES,
                    stream.handle(),
                )
            };
            device.check("aclrtMemsetAsync", status)
        })?;
        let replayed = Stream::new(device)?;
        replayed.replay(&graph)?;
        replayed.synchronize(None)
    }

    /// Its launches.
    pub fn launches(&self) -> usize {
        self.0.uses.sites.len()
    }

    /// True while all memory that its launches are given is alive.
    pub fn is_current(&self) -> bool {
        self.0.memory().is_some()
    }
}

/// The functions that record.
fn functions(device: &Device) -> Result<Capture> {
    let acl = &device.runtime().acl;
    acl.capture.ok_or_else(|| Error::symbol(&acl.path, "aclmdlRICaptureBegin"))
}

/// Records what `work` gives to a stream.
fn capture(stream: &Arc<Stream>, uses: Uses, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
    let device = stream.device();
    let f = functions(device)?;
    device.enter()?;
    // SAFETY: the stream is alive.
    let status = unsafe { (f.aclmdlRICaptureBegin)(stream.handle(), CAPTURE_THREAD_LOCAL) };
    device.check("aclmdlRICaptureBegin", status)?;
    let given = work();
    let mut handle = GraphHandle::NULL;
    // SAFETY: the stream is alive and recorded by this thread; writes one handle.
    let status = unsafe { (f.aclmdlRICaptureEnd)(stream.handle(), &mut handle) };
    let ended = device.check("aclmdlRICaptureEnd", status);
    // A recording is released even if launches are missing in it.
    let graph = (handle != GraphHandle::NULL).then(|| {
        device.runtime().counts.graphs.fetch_add(1, Ordering::SeqCst);
        Graph(Arc::new(Recorded { handle, uses, stream: stream.clone() }))
    });
    given?;
    ended?;
    graph.ok_or_else(|| Error::Usage("aclmdlRICaptureEnd gave no recording".into()))
}

impl Stream {
    /// Gives recorded launches to the stream; returns before they have run. Runs of one recording follow each
    /// other.
    ///
    /// # Errors
    /// [`Error::Usage`] for a recording of another device or of memory that was freed, [`Error::Call`] if it
    /// is refused, the device's first error.
    pub fn replay(&self, graph: &Graph) -> Result<()> {
        let (device, recorded) = (self.device(), &graph.0);
        if !Arc::ptr_eq(device, recorded.stream.device()) {
            let (a, b) = (recorded.stream.device().name(), device.name());
            return Err(Error::Usage(format!("a recording of {a} on a stream of {b}")));
        }
        let freed = || Error::Usage("memory that a recording uses was freed".into());
        let hold = (recorded.clone(), recorded.memory().ok_or_else(freed)?);
        let f = functions(device)?;
        device.enter()?;
        // SAFETY: recording and stream are alive; the stream's notes hold the recording and its memory until
        // it is done.
        let status = unsafe { (f.aclmdlRIExecuteAsync)(recorded.handle, self.handle()) };
        device.check(REPLAY, status)?;
        self.note(Sites::Many(recorded.uses.sites.clone()), Some(Arc::new(hold)))
    }
}

/// The call that replays: where it is refused, nothing of the recording runs.
pub const REPLAY: &str = "aclmdlRIExecuteAsync";
