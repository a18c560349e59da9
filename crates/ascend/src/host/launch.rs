//! Loaded binaries, their kernels, and launches: the same arguments by whichever rung the library has.
//!
//! Arguments are laid out as a C structure: addresses and integers take 8 bytes, floats 4, each aligned to
//! its size. The argument list aligns every entry to 8 bytes, so it gets the structure word by word, which
//! keeps the offsets.
#![allow(unsafe_code)]

use super::acl::types::*;
use super::acl::{LaunchRung, LoadRung};
use super::codes::Status;
use super::device::Device;
use super::error::{Error, Result, Site};
use super::log::Sites;
use super::memory::DeviceMemory;
use super::stream::{Stream, together};
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Arguments that CANN's argument list takes at most.
pub const MAX_ARGUMENTS: usize = 128;

/// The kind of core a binary runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum CoreKind {
    /// Vector cores of A2 and A3.
    Vector,
    /// Cube cores of A2 and A3.
    Cube,
    /// Cube and vector cores in one kernel, and the cores of 310P.
    Mixed,
}

impl CoreKind {
    /// Magic word of such a binary.
    pub const fn magic(self) -> u32 {
        match self {
            CoreKind::Vector => magic::VECTOR,
            CoreKind::Cube => magic::CUBE,
            CoreKind::Mixed => magic::AICORE,
        }
    }
}

/// A compiled unit of kernels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelBinary {
    /// Name of the unit, for errors.
    pub name: String,
    /// The file, if there is one, as an absolute path.
    pub path: Option<PathBuf>,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// Cores it runs on.
    pub core: CoreKind,
}

#[derive(Debug)]
enum Loaded {
    Acl(BinHandle),
    Described(BinaryHandle, BinHandle),
    Runtime(BinHandle),
}

/// A binary loaded onto a device.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    loaded: Loaded,
    /// The bytes: libruntime and described binaries go on reading them.
    binary: KernelBinary,
    /// Kernels registered with libruntime; a second registration of one is refused.
    registered: Mutex<Vec<Arc<Stub>>>,
}

/// The key of a kernel at libruntime: its own address.
#[derive(Debug)]
struct Stub {
    name: CString,
    key: Box<u8>,
}

impl Module {
    /// Loads a binary.
    ///
    /// # Errors
    /// [`Error::Call`] if it is not one for this chip, the device's first error.
    pub fn load(device: &Arc<Device>, binary: KernelBinary) -> Result<Arc<Module>> {
        device.enter()?;
        let rungs = device.runtime.load_rungs(device.arch());
        let rung = rungs
            .into_iter()
            .find(|&r| r != LoadRung::FromFile || binary.path.is_some())
            .ok_or_else(|| Error::symbol(&device.runtime.acl.path, LoadRung::FromFile.function()))?;
        let loaded = load(device, &binary, rung)?;
        device.runtime.counts.binaries.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(Module { device: device.clone(), loaded, binary, registered: Mutex::default() }))
    }

    /// A kernel of the binary.
    ///
    /// # Errors
    /// [`Error::Call`] if it has none of that name, the device's first error.
    pub fn kernel(self: &Arc<Module>, name: &str) -> Result<Kernel> {
        let device = &self.device;
        device.enter()?;
        let c_name = CString::new(name).map_err(|_| Error::Usage(format!("`{name}` is no kernel name")))?;
        let entry = match &self.loaded {
            Loaded::Acl(handle) | Loaded::Described(_, handle) => {
                let f = device.runtime.acl.binaries.ok_or_else(|| self.lacks("aclrtBinaryGetFunction"))?;
                let mut kernel = FuncHandle::NULL;
                // SAFETY: the binary is loaded, the name ends with 0; writes one handle.
                let status = unsafe { (f.aclrtBinaryGetFunction)(*handle, c_name.as_ptr(), &mut kernel) };
                device.check("aclrtBinaryGetFunction", status)?;
                Entry::Function(kernel)
            }
            Loaded::Runtime(handle) => {
                let f = device.runtime.acl.runtime.ok_or_else(|| self.lacks("rtFunctionRegister"))?;
                let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
                let known = registered.iter().find(|s| s.name == c_name).cloned();
                let stub = match known {
                    Some(stub) => stub,
                    None => {
                        let stub = Stub { name: c_name, key: Box::new(0) };
                        // The name of the stub is its key in text: unique, as the runtime demands.
                        let key_name = CString::new(format!("headwater_{:p}", &raw const *stub.key))
                            .map_err(|_| Error::Usage("a key with a zero".into()))?;
                        // SAFETY: the binary is registered; the key is an address of this module's own, alive
                        // until the binary is unregistered; both names end with 0.
                        let status = unsafe {
                            (f.rtFunctionRegister)(
                                handle.0,
                                (&raw const *stub.key).cast(),
                                key_name.as_ptr(),
                                stub.name.as_ptr().cast(),
                                0,
                            )
                        };
                        device.check("rtFunctionRegister", status)?;
                        registered.push(Arc::new(stub));
                        registered[registered.len() - 1].clone()
                    }
                };
                Entry::Stub(stub)
            }
        };
        Ok(Kernel { module: self.clone(), name: name.into(), entry })
    }

    fn lacks(&self, symbol: &str) -> Error {
        Error::symbol(&self.device.runtime.acl.path, symbol)
    }
}

fn load(device: &Arc<Device>, binary: &KernelBinary, rung: LoadRung) -> Result<Loaded> {
    let acl = &device.runtime.acl;
    let lacks = || Error::symbol(&acl.path, rung.function());
    let data: *const c_void = binary.bytes.as_ptr().cast();
    let mut option = LoadOption { kind: LOAD_MAGIC, value: [binary.core.magic(), 0, 0, 0] };
    let mut options = LoadOptions { options: &mut option, count: 1 };
    let mut handle = BinHandle::NULL;
    match rung {
        LoadRung::FromData => {
            let f = acl.from_data.ok_or_else(lacks)?;
            // SAFETY: the bytes and the options are alive through the call, which copies them; writes one
            // handle.
            let status =
                unsafe { (f.aclrtBinaryLoadFromData)(data, binary.bytes.len(), &options, &mut handle) };
            device.check(rung.function(), status)?;
            Ok(Loaded::Acl(handle))
        }
        LoadRung::FromFile => {
            let f = acl.from_file.ok_or_else(lacks)?;
            let path = binary.path.as_ref().ok_or_else(lacks)?;
            let c_path = CString::new(path.as_os_str().as_encoded_bytes())
                .map_err(|_| Error::Usage(format!("{} is no path", path.display())))?;
            // SAFETY: path and options are alive through the call, which copies them; writes one handle.
            let status = unsafe { (f.aclrtBinaryLoadFromFile)(c_path.as_ptr(), &mut options, &mut handle) };
            device.check(rung.function(), status)?;
            Ok(Loaded::Acl(handle))
        }
        LoadRung::Described => {
            let f = acl.described.ok_or_else(lacks)?;
            // SAFETY: the bytes live as long as the module.
            let described = unsafe { (f.aclrtCreateBinary)(data, binary.bytes.len()) };
            if described == BinaryHandle::NULL {
                return Err(Error::Usage(format!("aclrtCreateBinary refused {}", binary.name)));
            }
            // SAFETY: the description is alive; writes one handle.
            let status = unsafe { (f.aclrtBinaryLoad)(described, &mut handle) };
            device.check(rung.function(), status).inspect_err(|_| {
                // SAFETY: the description is alive and destroyed once.
                unsafe { (f.aclrtDestroyBinary)(described) };
            })?;
            Ok(Loaded::Described(described, handle))
        }
        LoadRung::Runtime => {
            let f = acl.runtime.ok_or_else(lacks)?;
            let length = binary.bytes.len() as u64;
            let described = RuntimeBinary { magic: binary.core.magic(), version: 0, data, length };
            // SAFETY: the structure is read in the call; the bytes live as long as the module. Writes one
            // handle.
            let status = unsafe { (f.rtDevBinaryRegister)(&described, &mut handle.0) };
            device.check(rung.function(), status)?;
            Ok(Loaded::Runtime(handle))
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let runtime = &self.device.runtime;
        self.device.set_context();
        let unload = |handle| {
            let Some(f) = runtime.acl.binaries else { return 0 };
            // SAFETY: the binary is loaded and unloaded once; kernels and launches hold the module.
            unsafe { (f.aclrtBinaryUnLoad)(handle) }
        };
        let (call, status) = match &self.loaded {
            Loaded::Acl(handle) => ("aclrtBinaryUnLoad", unload(*handle)),
            Loaded::Described(described, handle) => {
                let first = unload(*handle);
                // SAFETY: the description is alive and destroyed once.
                let second =
                    runtime.acl.described.map_or(0, |f| unsafe { (f.aclrtDestroyBinary)(*described) });
                if first != 0 { ("aclrtBinaryUnLoad", first) } else { ("aclrtDestroyBinary", second) }
            }
            Loaded::Runtime(handle) => {
                // SAFETY: the binary is registered and unregistered once.
                let status =
                    runtime.acl.runtime.map_or(0, |f| unsafe { (f.rtDevBinaryUnRegister)(handle.0) });
                ("rtDevBinaryUnRegister", status)
            }
        };
        if status != 0 {
            // The library may go on reading the bytes, and knows the keys still: neither may be used again.
            let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget((self.binary.bytes.clone(), registered.clone()));
        }
        runtime.released(call, status, &runtime.counts.binaries);
    }
}

#[derive(Clone, Debug)]
enum Entry {
    Function(FuncHandle),
    Stub(Arc<Stub>),
}

/// A kernel of a loaded binary.
#[derive(Clone, Debug)]
pub struct Kernel {
    module: Arc<Module>,
    name: Arc<str>,
    entry: Entry,
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device it is loaded on.
    pub fn device(&self) -> &Arc<Device> {
        &self.module.device
    }

    /// Name of the binary it is part of.
    pub fn binary(&self) -> &str {
        &self.module.binary.name
    }
}

/// An argument of a kernel.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Address of a byte of device memory, which stays alive until the launch is done.
    Memory(DeviceMemory, usize),
    /// An integer, or an address that is not memory of ours.
    Word(u64),
    /// A float.
    Float(f32),
}

/// A kernel with its arguments, ready to be launched many times.
#[derive(Debug)]
pub struct Launch {
    kernel: Kernel,
    blocks: u32,
    /// Arguments as a C structure, in words.
    words: Vec<u64>,
    /// Offset of each argument in it.
    offsets: Vec<usize>,
    hold: Arc<(Kernel, Vec<DeviceMemory>)>,
    site: Arc<Site>,
    together: bool,
    /// Arguments in device memory, where the rung requires that.
    block: Option<DeviceMemory>,
}

impl Launch {
    /// A launch of `blocks` blocks.
    ///
    /// # Errors
    /// [`Error::Usage`] for no blocks, too many arguments, an address outside of its memory or memory of
    /// another device; [`Error::OutOfMemory`] where arguments are in device memory.
    pub fn new(kernel: &Kernel, blocks: u32, arguments: &[Argument], site: Arc<Site>) -> Result<Launch> {
        let device = kernel.device();
        if blocks == 0 || arguments.len() > MAX_ARGUMENTS {
            return Err(Error::Usage(format!(
                "{site}: {blocks} blocks and {} arguments; there must be a block and at most {MAX_ARGUMENTS} arguments",
                arguments.len()
            )));
        }
        let (mut bytes, mut offsets, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        let mut push = |value: &[u8]| {
            bytes.resize(usize::next_multiple_of(bytes.len(), value.len()), 0u8);
            offsets.push(bytes.len());
            bytes.extend_from_slice(value);
        };
        for argument in arguments {
            match argument {
                Argument::Word(word) => push(&word.to_ne_bytes()),
                Argument::Float(float) => push(&float.to_ne_bytes()),
                Argument::Memory(m, offset) => {
                    if !Arc::ptr_eq(device, m.device()) {
                        let (a, b) = (m.device().name(), device.name());
                        return Err(Error::Usage(format!("{site}: an argument of {a} for a kernel on {b}")));
                    }
                    memory.push(m.clone());
                    push(&(m.range(*offset, 0)? as u64).to_ne_bytes());
                }
            }
        }
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let mut block = None;
        if device.runtime.launch_rung() == LaunchRung::DeviceArgs {
            let place = DeviceMemory::alloc(device, bytes.len())?;
            place.write(0, &bytes)?;
            memory.push(place.clone());
            block = Some(place);
        }
        let (chunks, _) = bytes.as_chunks::<8>();
        let words = chunks.iter().map(|c| u64::from_ne_bytes(*c)).collect();
        let hold = Arc::new((kernel.clone(), memory));
        Ok(Launch { kernel: kernel.clone(), blocks, words, offsets, hold, site, together: false, block })
    }

    /// The same, with all blocks running at the same time, as a barrier over them needs.
    ///
    /// # Errors
    /// [`Error::Usage`] where the rung cannot state it and there are more blocks than `cores`: later blocks
    /// would start only after the first ones finish, which wait for them.
    pub fn together(mut self, cores: u32) -> Result<Launch> {
        let rung = self.kernel.device().runtime.launch_rung();
        if self.blocks > cores && matches!(rung, LaunchRung::DeviceArgs | LaunchRung::Runtime) {
            return Err(Error::Usage(format!(
                "{}: {} blocks wait for each other on {cores} cores, and {} cannot start them together",
                self.site,
                self.blocks,
                rung.function()
            )));
        }
        self.together = true;
        Ok(self)
    }

    /// Memory of its arguments, and that of the block that stores them.
    pub(super) fn memory(&self) -> &[DeviceMemory] {
        &self.hold.1
    }

    /// Its own parts, which must live as long as it may be run: the kernel, and the block of arguments.
    pub(super) fn parts(&self) -> (Kernel, Option<DeviceMemory>) {
        (self.kernel.clone(), self.block.clone())
    }

    /// The device of its kernel.
    pub(super) fn device(&self) -> &Arc<Device> {
        self.kernel.device()
    }

    /// The place it comes from.
    pub fn site(&self) -> &Arc<Site> {
        &self.site
    }
}

impl Stream {
    /// Gives a launch to the stream; returns before it has run.
    ///
    /// # Errors
    /// [`Error::Usage`] for a kernel of another device, [`Error::Call`] if the launch is refused, the
    /// device's first error. With blocking launches also what the kernel fails with.
    pub fn launch(&self, launch: &Launch) -> Result<()> {
        let device = self.device();
        if !Arc::ptr_eq(device, launch.kernel.device()) {
            let (a, b) = (launch.kernel.device().name(), device.name());
            return Err(Error::Usage(format!("{} is loaded on {a}, not on {b}", launch.site)));
        }
        device.enter()?;
        let (call, status) = self.start(launch)?;
        device.check(call, status)?;
        self.note(Sites::One(launch.site.clone()), Some(launch.hold.clone()))
    }

    /// The launching call of the rung, and what it returned.
    pub(super) fn start(&self, launch: &Launch) -> Result<(&'static str, Status)> {
        let acl = &self.device().runtime.acl;
        let rung = self.device().runtime.launch_rung();
        let lacks = || Error::symbol(&acl.path, rung.function());
        let mut attribute = together();
        let mut config = LaunchConfig { attributes: &mut attribute, count: 1 };
        let config: *mut LaunchConfig = if launch.together { &mut config } else { std::ptr::null_mut() };
        let (blocks, stream) = (launch.blocks, self.handle());
        // The calls take arguments by mutable pointers and do not write them: a copy makes that certain.
        let mut words = launch.words.clone();
        let bytes = size_of_val(words.as_slice());
        let status = match (&launch.kernel.entry, rung) {
            (Entry::Function(kernel), LaunchRung::ArgsArray) => {
                let f = acl.args_array.ok_or_else(lacks)?;
                let base: *mut u8 = words.as_mut_ptr().cast();
                let mut pointers: Vec<*mut c_void> =
                    launch.offsets.iter().map(|&o| base.wrapping_add(o).cast()).collect();
                // SAFETY: kernel and stream are alive. One pointer for each parameter, into the block of
                // arguments, alive through the call, which copies what they point to.
                unsafe {
                    (f.aclrtLaunchKernelWithArgsArray)(*kernel, blocks, stream, config, pointers.as_mut_ptr())
                }
            }
            (Entry::Function(kernel), LaunchRung::HostArgs) => {
                let f = acl.host_args.ok_or_else(lacks)?;
                // SAFETY: kernel and stream are alive; the call copies the block of arguments.
                unsafe {
                    (f.aclrtLaunchKernelWithHostArgs)(
                        *kernel,
                        blocks,
                        stream,
                        config,
                        words.as_mut_ptr().cast(),
                        bytes,
                        std::ptr::null_mut(),
                        0,
                    )
                }
            }
            (Entry::Function(kernel), LaunchRung::ArgsList) => {
                let f = acl.args_list.ok_or_else(lacks)?;
                let mut list = ArgsHandle::NULL;
                // The list is the thread's own and good until its next `Init`: made and launched in one go.
                // SAFETY: the kernel is alive; writes one handle.
                match unsafe { (f.aclrtKernelArgsInit)(*kernel, &mut list) } {
                    0 => {}
                    status => return Ok(("aclrtKernelArgsInit", status)),
                }
                for word in &mut words {
                    let mut parameter = ParamHandle::NULL;
                    // SAFETY: the list is alive; 8 bytes are copied from the word; writes one handle.
                    match unsafe {
                        (f.aclrtKernelArgsAppend)(list, (&raw mut *word).cast(), 8, &mut parameter)
                    } {
                        0 => {}
                        status => return Ok(("aclrtKernelArgsAppend", status)),
                    }
                }
                // SAFETY: the list is alive.
                match unsafe { (f.aclrtKernelArgsFinalize)(list) } {
                    0 => {}
                    status => return Ok(("aclrtKernelArgsFinalize", status)),
                }
                // SAFETY: kernel, stream and list are alive; the reserved argument is null, as demanded.
                unsafe {
                    (f.aclrtLaunchKernelWithConfig)(
                        *kernel,
                        blocks,
                        stream,
                        config,
                        list,
                        std::ptr::null_mut(),
                    )
                }
            }
            (Entry::Function(kernel), LaunchRung::DeviceArgs) => {
                let f = acl.device_args.ok_or_else(lacks)?;
                let block = launch.block.as_ref().ok_or_else(lacks)?;
                // SAFETY: kernel and stream are alive; the block is in device memory that the stream's notes
                // hold until the launch is done.
                unsafe {
                    (f.aclrtLaunchKernel)(*kernel, blocks, block.address() as *const c_void, bytes, stream)
                }
            }
            (Entry::Stub(stub), _) => {
                let f = acl.runtime.ok_or_else(lacks)?;
                // SAFETY: the key is registered and the stream alive; the call copies the block of arguments.
                unsafe {
                    (f.rtKernelLaunch)(
                        (&raw const *stub.key).cast(),
                        blocks,
                        words.as_mut_ptr().cast(),
                        bytes as u32,
                        std::ptr::null_mut(),
                        stream,
                    )
                }
            }
            (Entry::Function(_), LaunchRung::Runtime) => return Err(lacks()),
        };
        Ok((rung.function(), status))
    }
}
