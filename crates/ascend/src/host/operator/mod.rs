//! Operators of the vendor's library (aclnn), each called in two phases: the first prepares an executor and
//! says how much workspace it needs, the second gives the work to a stream.
//!
//! An executor serves one call, unless the library lets it be made repeatable. Then it is kept with the
//! addresses that it was prepared for, and later calls are second phases alone. Where the library refuses
//! that, or refuses such a later call, every call has both phases.
#![allow(unsafe_code)]

mod library;
mod phases;

pub use library::{Operators, offered};

use super::acl::types::ExecutorHandle;
use super::codes::{self, Severity};
use super::device::Device;
use super::error::{Error, Result, Site};
use super::log::Sites;
use super::memory::{ALIGN, DeviceMemory};
use super::stream::Stream;
use crate::aclnn::Call;
use library::Parts;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Executors that are kept for one operator: one for each set of addresses.
const KEPT: usize = 4;

/// A prepared call.
#[derive(Debug)]
struct Executor {
    /// Null once a single call was made, which frees it.
    handle: ExecutorHandle,
    /// Bytes of workspace.
    workspace: u64,
    /// True if it may be called again.
    repeatable: bool,
    parts: Parts,
}

impl Drop for Executor {
    fn drop(&mut self) {
        if self.handle == ExecutorHandle::NULL {
            return;
        }
        let operators = &self.parts.operators;
        let runtime = operators.device.runtime();
        operators.device.set_context();
        // SAFETY: the executor is alive and destroyed once, before its operands.
        let status = unsafe { (operators.operands.aclDestroyAclOpExecutor)(self.handle) };
        runtime.released("aclDestroyAclOpExecutor", status, &runtime.counts.executors);
    }
}

/// Workspace of operators, which grows on demand. Calls of one stream share it sequentially.
#[derive(Debug)]
pub struct Workspace {
    device: Arc<Device>,
    memory: Mutex<Option<DeviceMemory>>,
}

impl Workspace {
    /// None yet.
    pub fn new(device: &Arc<Device>) -> Workspace {
        Workspace { device: device.clone(), memory: Mutex::default() }
    }

    /// At least so many bytes. Memory that was given before stays as long as work holds it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], the device's first error.
    pub fn of(&self, bytes: u64) -> Result<Option<DeviceMemory>> {
        let wanted =
            usize::try_from(bytes).map_err(|_| Error::Usage(format!("a workspace of {bytes} bytes")))?;
        let mut memory = lock(&self.memory);
        if wanted > memory.as_ref().map_or(0, DeviceMemory::bytes) {
            // The old memory goes first, so that both need not fit.
            *memory = None;
            *memory = Some(DeviceMemory::alloc(&self.device, wanted)?);
        }
        Ok(memory.clone().filter(|_| wanted > 0))
    }

    /// Bytes of it.
    pub fn bytes(&self) -> usize {
        lock(&self.memory).as_ref().map_or(0, DeviceMemory::bytes)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An executor that is called again, with the addresses that it was prepared for.
type Kept = (Vec<u64>, Arc<Mutex<Executor>>);

/// A call of an operator, for operands at any addresses.
#[derive(Debug)]
pub struct Operator {
    operators: Arc<Operators>,
    call: Call,
    workspace: u64,
    kept: Mutex<Vec<Kept>>,
    /// True once an executor could not be called again.
    once: AtomicBool,
}

impl Operator {
    /// Asks the library for a call: prepares it once, to see if it does and how much workspace it needs.
    ///
    /// # Errors
    /// [`Error::Symbol`] where the library lacks the operator, [`Error::Call`] where it refuses, the device's
    /// first error.
    pub fn new(operators: &Arc<Operators>, call: Call) -> Result<Operator> {
        let mut this = Operator {
            operators: operators.clone(),
            call,
            workspace: 0,
            kept: Mutex::default(),
            once: AtomicBool::new(false),
        };
        // The first phase reads no operand: any address will do.
        let executor = this.prepare(&vec![ALIGN as u64; this.call.operands.len()])?;
        this.workspace = executor.workspace;
        Ok(this)
    }

    /// Bytes of workspace that a call needs.
    pub fn workspace(&self) -> u64 {
        self.workspace
    }

    /// True while a later call of the same operands is a second phase alone.
    fn is_kept(&self) -> bool {
        !self.once.load(Ordering::SeqCst)
    }

    /// Computes: an address for each operand, in order with the stream. Returns before it is done.
    ///
    /// # Errors
    /// [`Error::Usage`] for operands outside of their memory or of another device, [`Error::Call`] if a call
    /// is refused, the device's first error.
    pub fn run(
        &self,
        stream: &Stream,
        operands: &[(&DeviceMemory, usize)],
        workspace: &Workspace,
        site: &Arc<Site>,
    ) -> Result<()> {
        let device = &self.operators.device;
        if operands.len() != self.call.operands.len() || !Arc::ptr_eq(device, stream.device()) {
            return Err(Error::Usage(format!("{site}: other operands, or a stream of another device")));
        }
        let mut addresses = Vec::with_capacity(operands.len());
        for (operand, (memory, at)) in self.call.operands.iter().zip(operands) {
            stream.same_device(memory)?;
            addresses.push(memory.range(*at, operand.bytes())? as u64);
        }
        device.enter()?;
        if self.is_kept() {
            let executor = self.kept(addresses.clone())?;
            match self.give(&executor, stream, operands, workspace, site) {
                // One that could be called once only has been called.
                Ok(()) => return Ok(()),
                // A repeated call was refused; one with both phases may do.
                Err(Error::Call { call, .. })
                    if call == self.call.function.name() && self.forget(&executor) => {}
                Err(error) => return Err(error),
            }
        }
        let executor = Arc::new(Mutex::new(self.prepare(&addresses)?));
        self.give(&executor, stream, operands, workspace, site)
    }

    /// The executor for some addresses, kept if that can be.
    fn kept(&self, addresses: Vec<u64>) -> Result<Arc<Mutex<Executor>>> {
        let mut kept = lock(&self.kept);
        if let Some((_, executor)) = kept.iter().find(|(of, _)| *of == addresses) {
            return Ok(executor.clone());
        }
        let executor = self.prepare(&addresses)?;
        let repeatable = executor.repeatable;
        let executor = Arc::new(Mutex::new(executor));
        if repeatable {
            if kept.len() == KEPT {
                kept.remove(0);
            }
            kept.push((addresses, executor.clone()));
        } else {
            self.once.store(true, Ordering::SeqCst);
        }
        Ok(executor)
    }

    /// Releases repeatable executors; false if this was none.
    fn forget(&self, executor: &Arc<Mutex<Executor>>) -> bool {
        let repeatable = lock(executor).repeatable;
        self.once.store(true, Ordering::SeqCst);
        lock(&self.kept).clear();
        repeatable
    }

    /// The second phase, with its workspace.
    fn give(
        &self,
        executor: &Arc<Mutex<Executor>>,
        stream: &Stream,
        operands: &[(&DeviceMemory, usize)],
        workspace: &Workspace,
        site: &Arc<Site>,
    ) -> Result<()> {
        let memory = workspace.of(lock(executor).workspace)?;
        let status = lock(executor).call(&self.call, stream, memory.as_ref())?;
        self.operators.device.check(self.call.function.name(), status)?;
        let mut held: Vec<DeviceMemory> = operands.iter().map(|(m, _)| (*m).clone()).collect();
        held.extend(memory);
        stream.note(Sites::One(site.clone()), Some(Arc::new((executor.clone(), held))))
    }

    /// The first phase, for operands at addresses; repeatable if the library lets it be.
    fn prepare(&self, addresses: &[u64]) -> Result<Executor> {
        let device = &self.operators.device;
        device.enter()?;
        let mut parts = Parts::new(&self.operators);
        let mut tensors = Vec::with_capacity(addresses.len());
        for (operand, address) in self.call.operands.iter().zip(addresses) {
            tensors.push(parts.tensor(operand, *address)?);
        }
        let (mut workspace, mut handle) = (0, ExecutorHandle::NULL);
        let (name, status) =
            phases::first(&self.call.function, &mut parts, &tensors, &mut workspace, &mut handle)?;
        device.check(name, status)?;
        if handle == ExecutorHandle::NULL {
            return Err(library::nothing(name));
        }
        device.runtime().counts.executors.fetch_add(1, Ordering::SeqCst);
        let mut executor = Executor { handle, workspace, repeatable: false, parts };
        if let Some(f) = self.operators.repeatable.filter(|_| self.is_kept()) {
            // SAFETY: the executor is alive.
            let status = unsafe { (f.aclSetAclOpExecutorRepeatable)(handle) };
            executor.repeatable = status == 0;
            if codes::severity(status) == Severity::DeviceLost {
                device.check("aclSetAclOpExecutorRepeatable", status)?;
            }
        }
        Ok(executor)
    }
}
