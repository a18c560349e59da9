//! The notes of a stream on work under way: what it holds, and the launch to name when it fails.
#![allow(unsafe_code)]

use super::acl::types::{EVENT_COMPLETE, EventHandle};
use super::codes::Status;
use super::error::Site;
use super::runtime::Runtime;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// Work between two marks of a stream. A mark is an event; entries before a completed mark can be retired.
const MARK_EVERY: u64 = 64;

/// Memory and events that work holds until it is done.
pub type Hold = Option<Arc<dyn Any + Send + Sync>>;

/// Launches that a piece of work consists of.
#[derive(Clone, Debug)]
pub enum Sites {
    /// None: a copy, or an event.
    None,
    /// A launch.
    One(Arc<Site>),
    /// All of a recording, in order.
    Many(Arc<[Arc<Site>]>),
}

impl Sites {
    fn list(&self) -> &[Arc<Site>] {
        match self {
            Sites::None => &[],
            Sites::One(site) => std::slice::from_ref(site),
            Sites::Many(sites) => sites,
        }
    }
}

/// A piece of work.
#[derive(Debug)]
pub struct Entry {
    task: Option<u32>,
    sites: Sites,
    _hold: Hold,
}

/// Notes of a stream: work that is not known to be done, oldest first.
#[derive(Debug)]
pub struct Log {
    id: Option<u32>,
    entries: VecDeque<Entry>,
    /// Entries already retired.
    settled: u64,
    /// An event and the count of entries before it.
    marks: VecDeque<(u64, EventHandle)>,
}

impl Log {
    /// No notes yet, of the stream with a number.
    pub fn new(id: Option<u32>) -> Log {
        Log { id, entries: VecDeque::new(), settled: 0, marks: VecDeque::new() }
    }

    /// True if all work is known to be done.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Notes work. Gives the count of entries if a mark is due after them.
    pub fn push(&mut self, task: Option<u32>, sites: Sites, hold: Hold) -> Option<u64> {
        self.entries.push_back(Entry { task, sites, _hold: hold });
        let count = self.count();
        let last = self.marks.back().map_or(self.settled, |m| m.0);
        (count - last >= MARK_EVERY).then_some(count)
    }

    /// Marks that the first `count` entries precede an event, and retires completed ones.
    pub fn mark(&mut self, count: u64, event: EventHandle, runtime: &Runtime) {
        self.marks.push_back((count, event));
        self.settle(runtime);
    }

    /// The launch of a task, if it is this stream's; all of a recording whose task it is.
    pub fn find(&self, stream: u32, task: u32) -> Option<Vec<Arc<Site>>> {
        let mine = self.id == Some(stream);
        let entry = self.entries.iter().find(|e| mine && e.task == Some(task))?;
        Some(entry.sites.list().to_vec()).filter(|sites| !sites.is_empty())
    }

    /// Launches that are not known to be done.
    pub fn unfinished(&self) -> Vec<Arc<Site>> {
        self.entries.iter().flat_map(|e| e.sites.list()).cloned().collect()
    }

    /// Retires entries before completed marks. Polls; never waits.
    pub fn settle(&mut self, runtime: &Runtime) {
        while let Some(&(before, event)) = self.marks.front() {
            if query(runtime, event) != Ok(true) {
                return;
            }
            self.forget(before, runtime);
        }
    }

    /// Entries that were ever noted.
    pub fn count(&self) -> u64 {
        self.settled + self.entries.len() as u64
    }

    /// Forgets the first `count` entries ever noted, which are done, and gives what they were.
    pub fn forget(&mut self, count: u64, runtime: &Runtime) -> Vec<Entry> {
        let done = count.saturating_sub(self.settled) as usize;
        self.settled = self.settled.max(count);
        while let Some((_, event)) = self.marks.front().copied().filter(|m| m.0 <= count) {
            self.marks.pop_front();
            destroy_event(runtime, event);
        }
        self.entries.drain(..done).collect()
    }
}

/// Asks if everything before an event is done.
pub fn query(runtime: &Runtime, event: EventHandle) -> std::result::Result<bool, Status> {
    let mut state = 0;
    // SAFETY: the event is alive; writes one number.
    match unsafe { (runtime.acl.base.aclrtQueryEventStatus)(event, &mut state) } {
        0 => Ok(state == EVENT_COMPLETE),
        status => Err(status),
    }
}

/// Releases an event.
pub fn destroy_event(runtime: &Runtime, event: EventHandle) {
    // SAFETY: the event is alive and destroyed once.
    let status = unsafe { (runtime.acl.base.aclrtDestroyEvent)(event) };
    runtime.released("aclrtDestroyEvent", status, &runtime.counts.events);
}
