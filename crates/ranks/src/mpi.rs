//! MPI's library, opened at run time: its names, its binary interface, and its functions as safe calls. A
//! handle is an `isize`: a pointer in Open MPI and in the standard interface, a sign-extended `int` in
//! MPICH's. No array of handles or of statuses is passed, as their strides differ.
//!
//! Constants are those of the `mpi.h` of Open MPI 4 and 5, of MPICH 4 and 5 and of the standard (MPI 5.0,
//! section 20).

#![allow(unsafe_code, reason = "the binding of a C library")]

use crate::launcher::Launcher;
use crate::{Error, Result};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::null_mut;

/// A handle of MPI's.
type Handle = isize;
type Out = *mut c_void;
type Ints = *const c_int;
type Bytes = *const c_void;

/// The binary interfaces that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// Open MPI's: handles are addresses of data symbols.
    OpenMpi,
    /// MPICH's, Intel MPI's and MVAPICH's: handles are numbers.
    Mpich,
    /// The standard one of MPI 5.0.
    Standard,
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Abi::OpenMpi => "Open MPI's interface",
            Abi::Mpich => "MPICH's interface",
            Abi::Standard => "the standard interface",
        })
    }
}

macro_rules! functions { ($($name:ident : $symbol:literal ( $($ty:ty),* );)*) => {
    /// The functions that are called.
    struct Functions { $($name: unsafe extern "C" fn($($ty),*) -> c_int,)* }

    impl Functions {
        /// Finds all of them.
        ///
        /// # Safety
        /// The library is an MPI of any interface: its functions have these types.
        unsafe fn find(library: &Library) -> Result<Functions, String> {
            Ok(Functions { $($name: {
                // SAFETY: the caller's promise.
                let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                *found.map_err(|e| e.to_string())?
            },)* })
        }
    }
}}

functions! {
    library_version: "MPI_Get_library_version"(*mut c_char, *mut c_int);
    init_thread: "MPI_Init_thread"(Out, Out, c_int, *mut c_int);
    finalize: "MPI_Finalize"();
    abort: "MPI_Abort"(Handle, c_int);
    rank: "MPI_Comm_rank"(Handle, *mut c_int);
    size: "MPI_Comm_size"(Handle, *mut c_int);
    split: "MPI_Comm_split"(Handle, c_int, c_int, *mut Handle);
    dup: "MPI_Comm_dup"(Handle, *mut Handle);
    set_errhandler: "MPI_Comm_set_errhandler"(Handle, Handle);
    error_string: "MPI_Error_string"(c_int, *mut c_char, *mut c_int);
    alltoall: "MPI_Ialltoall"(Bytes, c_int, Handle, Out, c_int, Handle, Handle, *mut Handle);
    alltoallv: "MPI_Ialltoallv"(Bytes, Ints, Ints, Handle, Out, Ints, Ints, Handle, Handle, *mut Handle);
    allgatherv: "MPI_Iallgatherv"(Bytes, c_int, Handle, Out, Ints, Ints, Handle, Handle, *mut Handle);
    bcast: "MPI_Ibcast"(Out, c_int, Handle, c_int, Handle, *mut Handle);
    send: "MPI_Isend"(Bytes, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    receive: "MPI_Irecv"(Out, c_int, Handle, c_int, c_int, Handle, *mut Handle);
    test: "MPI_Test"(*mut Handle, *mut c_int, Out);
}

/// Constants of an interface.
#[derive(Clone, Copy)]
struct Constants {
    world: Handle,
    byte: Handle,
    errors_return: Handle,
    status_ignore: isize,
    funneled: c_int,
}

/// Longest texts of any interface: MPI_MAX_LIBRARY_VERSION_STRING and MPI_MAX_ERROR_STRING.
const LONGEST: usize = 8192;

/// An MPI library.
pub struct Mpi {
    functions: Functions,
    constants: Constants,
    abi: Abi,
    name: String,
    /// Never closed: its threads and handlers may live on.
    _library: ManuallyDrop<Library>,
}

/// A communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Communicator(Handle);

/// Work under way, with the memory that it reads and writes. It is kept until [`Mpi::test`] says that it is
/// over.
pub struct Request {
    handle: Handle,
    over: bool,
    given: Vec<u8>,
    room: Vec<u8>,
    /// Counts and displacements, which MPI may read until the end.
    _numbers: [Vec<c_int>; 4],
}

impl Request {
    fn new(given: Vec<u8>, room: Vec<u8>, numbers: [Vec<c_int>; 4]) -> Request {
        Request { handle: 0, over: false, given, room, _numbers: numbers }
    }

    /// The received bytes.
    pub fn take(mut self) -> Vec<u8> {
        assert!(self.over, "the memory of an exchange that goes on");
        std::mem::take(&mut self.room)
    }

    /// The received bytes, borrowed.
    pub fn received(&self) -> &[u8] {
        assert!(self.over, "the memory of an exchange that goes on");
        &self.room
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.over {
            // MPI may still use the memory: it is left to it.
            std::mem::forget((std::mem::take(&mut self.given), std::mem::take(&mut self.room)));
            std::mem::forget(std::mem::take(&mut self._numbers));
        }
    }
}

/// A count as MPI takes it.
fn count(bytes: usize) -> Result<c_int> {
    let message = || {
        Error::Start(format!(
            "{bytes} bytes in one message: MPI takes 2^31 - 1 (--bucket-size makes it less)"
        ))
    };
    c_int::try_from(bytes).map_err(|_| message())
}

/// Counts, and where each part begins.
fn counts(bytes: &[usize]) -> Result<(Vec<c_int>, Vec<c_int>)> {
    count(bytes.iter().sum())?;
    let counts = bytes.iter().map(|&n| count(n)).collect::<Result<Vec<c_int>>>()?;
    let begins = counts.iter().scan(0, |at, n| {
        let begin = *at;
        *at += n;
        Some(begin)
    });
    let begins = begins.collect();
    Ok((counts, begins))
}

impl Mpi {
    /// Opens the library that belongs to a launcher, or the one that `HEADWATER_MPI` names.
    ///
    /// # Errors
    /// `Start` with all that was tried.
    pub fn open(launcher: Option<&Launcher>) -> Result<Mpi> {
        let named = std::env::var("HEADWATER_MPI").ok().filter(|path| !path.is_empty());
        let names = match &named {
            Some(path) => vec![path.as_str()],
            None => Launcher::libraries(launcher),
        };
        let mut tried = Vec::new();
        for name in names {
            // Global: plugins of Open MPI 4 use symbols of a library that they do not name.
            match Mpi::load(name, RTLD_LAZY | RTLD_GLOBAL) {
                Ok(library) => return Ok(library),
                Err(why) => tried.push(why),
            }
        }
        let started =
            launcher.map_or(String::new(), |l| format!("{} says {} ranks, and ", l.variable, l.size));
        Err(Error::Start(format!(
            "{started}no MPI library was found: {}. Install the MPI that the launcher belongs to, or name its library with \
             HEADWATER_MPI=/path/libmpi.so",
            tried.join("; ")
        )))
    }

    /// All libraries that are found by the names of any launcher, to query their versions.
    pub fn all() -> Vec<Mpi> {
        // Each for itself: they have functions of the same names.
        let load = |name| Mpi::load(name, RTLD_LAZY | RTLD_LOCAL).ok();
        Launcher::libraries(None).into_iter().filter_map(load).collect()
    }

    fn load(name: &str, flags: c_int) -> Result<Mpi, String> {
        // SAFETY: a library of this name is an MPI; its initialisers may run in any thread.
        let library = unsafe { Library::open(Some(name), flags) };
        let library = ManuallyDrop::new(library.map_err(|e| e.to_string())?);
        // SAFETY: as above.
        let functions = unsafe { Functions::find(&library) }.map_err(|e| format!("{name}: {e}"))?;
        let address = |symbol: &str| -> Option<isize> {
            // SAFETY: only the address is taken.
            let found = unsafe { library.get::<*mut c_void>(format!("{symbol}\0").as_bytes()) };
            found.ok().map(|s| s.into_raw() as isize)
        };
        let (mut major, mut minor): (c_int, c_int) = (-1, -1);
        // SAFETY: the function has this type in every library that has it, and may be called at any time.
        unsafe {
            type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
            if let Ok(version) = library.get::<Version>(b"MPI_Abi_get_version\0") {
                version(&mut major, &mut minor);
            }
        }
        // Libraries of their own interface may have the function too, and say that they have no version of
        // it.
        let abi = match major {
            1.. => Abi::Standard,
            _ if address("ompi_mpi_comm_world").is_some() => Abi::OpenMpi,
            _ => Abi::Mpich,
        };
        // Handles of MPICH's are `int`: sign-extended, they are passed rightly on all processors.
        let int = |handle: u32| handle as i32 as isize;
        let symbol = |s: &str| address(s).ok_or_else(|| format!("{name} has no {s}"));
        let constants = match abi {
            Abi::OpenMpi => Constants {
                world: symbol("ompi_mpi_comm_world")?,
                byte: symbol("ompi_mpi_byte")?,
                errors_return: symbol("ompi_mpi_errors_return")?,
                status_ignore: 0,
                funneled: 1,
            },
            Abi::Mpich => Constants {
                world: int(0x4400_0000),
                byte: int(0x4c00_010d),
                errors_return: int(0x5400_0001),
                status_ignore: 1,
                funneled: 1,
            },
            Abi::Standard => Constants {
                world: 0x101,
                byte: 0x247,
                errors_return: 0x143,
                status_ignore: 0,
                funneled: 1024,
            },
        };
        Ok(Mpi { functions, constants, abi, name: name.into(), _library: library })
    }

    /// Its file, version and interface, such as `libmpi.so.40 (Open MPI v4.1.4, Open MPI's interface)`.
    pub fn described(&self) -> String {
        format!("{} ({}, {})", self.name, self.version(), self.abi)
    }

    /// Its binary interface.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    /// The name by which it was opened.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its version as it says it, the first line, without what was installed how.
    pub fn version(&self) -> String {
        let (mut text, mut length) = (vec![0u8; LONGEST], 0);
        // SAFETY: the buffer holds the longest text of any interface; it may be called at any time.
        unsafe { (self.functions.library_version)(text.as_mut_ptr().cast(), &mut length) };
        text.truncate(usize::try_from(length).unwrap_or(0));
        let text = String::from_utf8_lossy(&text);
        let first = text.trim_end_matches('\0').lines().next().unwrap_or_default().replace('\t', " ");
        let words: Vec<&str> = first.split(',').next().unwrap_or_default().split_whitespace().collect();
        words.join(" ").replace("MPICH Version: ", "MPICH ")
    }

    /// Begins MPI in this thread, which alone calls it from now on. The communicator of all ranks.
    ///
    /// # Errors
    /// `Start` in MPI's words.
    pub fn begin(&self) -> Result<Communicator> {
        let mut provided = 0;
        let f = &self.functions;
        // SAFETY: no arguments are passed, which the standard allows.
        self.checked("MPI_Init_thread", unsafe {
            (f.init_thread)(null_mut(), null_mut(), self.constants.funneled, &mut provided)
        })?;
        let world = Communicator(self.constants.world);
        self.returning(world)?;
        Ok(world)
    }

    /// Ends MPI.
    pub fn end(&self) {
        // SAFETY: called by the thread that began it, with nothing under way.
        unsafe { (self.functions.finalize)() };
    }

    /// Ends all processes of the world, if the library still can.
    pub fn abort(&self, status: i32) {
        // SAFETY: called by the thread that began MPI.
        unsafe { (self.functions.abort)(self.constants.world, status) };
    }

    /// This rank's number, and how many there are.
    ///
    /// # Errors
    /// `Lost` in MPI's words.
    pub fn place(&self, of: Communicator) -> Result<(usize, usize)> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: `of` is a communicator of this library.
        self.checked("MPI_Comm_rank", unsafe { (self.functions.rank)(of.0, &mut rank) })?;
        // SAFETY: as above.
        self.checked("MPI_Comm_size", unsafe { (self.functions.size)(of.0, &mut size) })?;
        Ok((rank as usize, size as usize))
    }

    /// The same ranks in another order: by `place`, each one's own.
    ///
    /// # Errors
    /// `Lost` in MPI's words.
    pub fn ordered(&self, of: Communicator, place: usize) -> Result<Communicator> {
        let mut made = 0;
        // SAFETY: `of` is a communicator of this library; `made` can hold a handle of any width.
        let code = unsafe { (self.functions.split)(of.0, 0, count(place)?, &mut made) };
        self.made("MPI_Comm_split", code, made)
    }

    /// The same ranks, for messages that do not meet those of `of`.
    ///
    /// # Errors
    /// `Lost` in MPI's words.
    pub fn apart(&self, of: Communicator) -> Result<Communicator> {
        let mut made = 0;
        // SAFETY: as in `ordered`.
        let code = unsafe { (self.functions.dup)(of.0, &mut made) };
        self.made("MPI_Comm_dup", code, made)
    }

    fn made(&self, function: &str, code: c_int, handle: Handle) -> Result<Communicator> {
        self.checked(function, code)?;
        // MPICH writes the low half alone.
        let made = Communicator(if self.abi == Abi::Mpich { handle as i32 as isize } else { handle });
        self.returning(made)?;
        Ok(made)
    }

    /// Lets errors come back as codes.
    fn returning(&self, of: Communicator) -> Result<()> {
        // SAFETY: both handles are of this library.
        let code = unsafe { (self.functions.set_errhandler)(of.0, self.constants.errors_return) };
        self.checked("MPI_Comm_set_errhandler", code)
    }

    fn checked(&self, function: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut length) = (vec![0u8; LONGEST], 0);
        // SAFETY: the buffer holds the longest text of any interface.
        unsafe { (self.functions.error_string)(code, text.as_mut_ptr().cast(), &mut length) };
        text.truncate(usize::try_from(length).unwrap_or(0));
        Err(Error::Lost(format!("{function}: {}", String::from_utf8_lossy(&text))))
    }

    /// Begins to send each rank as many bytes as every other, and to receive them.
    ///
    /// # Errors
    /// `Lost` in MPI's words.
    pub fn all_to_all(&self, of: Communicator, given: Vec<u8>, each: usize) -> Result<Request> {
        let room = vec![0; given.len()];
        let mut r = Request::new(given, room, Default::default());
        let (byte, each) = (self.constants.byte, count(each)?);
        let (from, to) = (r.given.as_ptr().cast(), r.room.as_mut_ptr().cast());
        // SAFETY: both have `each` bytes for each rank and live until the request is over.
        let code =
            unsafe { (self.functions.alltoall)(from, each, byte, to, each, byte, of.0, &mut r.handle) };
        self.checked("MPI_Ialltoall", code).map(|()| r)
    }

    /// Begins to send each rank its part of `given`, and to receive one of each.
    ///
    /// # Errors
    /// `Lost` in MPI's words; `Start` for too many bytes.
    pub fn all_to_all_v(
        &self,
        of: Communicator,
        given: Vec<u8>,
        sent: &[usize],
        received: &[usize],
    ) -> Result<Request> {
        let ((a, b), (c, d)) = (counts(sent)?, counts(received)?);
        assert_eq!(given.len(), sent.iter().sum::<usize>());
        let mut r = Request::new(given, vec![0; received.iter().sum()], [a, b, c, d]);
        let ([a, b, c, d], byte) = (r._numbers.each_ref().map(|v| v.as_ptr()), self.constants.byte);
        let (from, to) = (r.given.as_ptr().cast(), r.room.as_mut_ptr().cast());
        // SAFETY: the parts are contiguous in memory that lives until the request is over, as do their
        // counts.
        let code =
            unsafe { (self.functions.alltoallv)(from, a, b, byte, to, c, d, byte, of.0, &mut r.handle) };
        self.checked("MPI_Ialltoallv", code).map(|()| r)
    }

    /// Begins to send all ranks `given`, and to receive as many bytes of each as `received` says.
    ///
    /// # Errors
    /// As [`Mpi::all_to_all_v`].
    pub fn all_gather(&self, of: Communicator, given: Vec<u8>, received: &[usize]) -> Result<Request> {
        let (c, d) = counts(received)?;
        let own = count(given.len())?;
        let mut r = Request::new(given, vec![0; received.iter().sum()], [c, d, Vec::new(), Vec::new()]);
        let (c, d, byte) = (r._numbers[0].as_ptr(), r._numbers[1].as_ptr(), self.constants.byte);
        let (from, to) = (r.given.as_ptr().cast(), r.room.as_mut_ptr().cast());
        // SAFETY: as in `all_to_all_v`.
        let code =
            unsafe { (self.functions.allgatherv)(from, own, byte, to, c, d, byte, of.0, &mut r.handle) };
        self.checked("MPI_Iallgatherv", code).map(|()| r)
    }

    /// Begins to send all ranks the bytes of rank `root`; the others give a buffer of the same size.
    ///
    /// # Errors
    /// As [`Mpi::all_to_all_v`].
    pub fn broadcast(&self, of: Communicator, bytes: Vec<u8>, root: usize) -> Result<Request> {
        let (length, root) = (count(bytes.len())?, count(root)?);
        let mut r = Request::new(Vec::new(), bytes, Default::default());
        // SAFETY: the memory lives until the request is over.
        let code = unsafe {
            (self.functions.bcast)(
                r.room.as_mut_ptr().cast(),
                length,
                self.constants.byte,
                root,
                of.0,
                &mut r.handle,
            )
        };
        self.checked("MPI_Ibcast", code).map(|()| r)
    }

    /// Begins to send a rank a message.
    ///
    /// # Errors
    /// `Lost` in MPI's words.
    pub fn send(&self, of: Communicator, to: usize, message: Vec<u8>) -> Result<Request> {
        let mut r = Request::new(message, Vec::new(), Default::default());
        let (from, length, to, byte) =
            (r.given.as_ptr().cast(), count(r.given.len())?, count(to)?, self.constants.byte);
        // SAFETY: the memory lives until the request is over.
        let code = unsafe { (self.functions.send)(from, length, byte, to, 0, of.0, &mut r.handle) };
        self.checked("MPI_Isend", code).map(|()| r)
    }

    /// Begins to receive a message of at most so many bytes from a rank.
    ///
    /// # Errors
    /// `Lost` in MPI's words.
    pub fn receive(&self, of: Communicator, from: usize, room: usize) -> Result<Request> {
        let mut r = Request::new(Vec::new(), vec![0; room], Default::default());
        let (to, length, from, byte) =
            (r.room.as_mut_ptr().cast(), count(room)?, count(from)?, self.constants.byte);
        // SAFETY: the memory lives until the request is over.
        let code = unsafe { (self.functions.receive)(to, length, byte, from, 0, of.0, &mut r.handle) };
        self.checked("MPI_Irecv", code).map(|()| r)
    }

    /// True if a request is over. Lets MPI go on with all others, too.
    ///
    /// # Errors
    /// `Lost` in MPI's words.
    pub fn test(&self, request: &mut Request) -> Result<bool> {
        if request.over {
            return Ok(true);
        }
        let mut over = 0;
        // SAFETY: the handle is of a request that is not over; no status is requested.
        let code = unsafe {
            (self.functions.test)(&mut request.handle, &mut over, self.constants.status_ignore as Out)
        };
        self.checked("MPI_Test", code)?;
        request.over = over != 0;
        Ok(request.over)
    }
}
