//! NVRTC over a C++ compiler.

use super::driver::MAGIC;
use super::put;
use crate::install::compiler;
use crate::world::world;
use std::ffi::{CStr, c_char, c_void};
use std::process::Command;

const COMPILATION: i32 = 6;
const INTERNAL: i32 = 11;

struct Program {
    text: String,
    headers: Vec<(String, String)>,
    log: Vec<u8>,
    binary: Vec<u8>,
}

fn text(from: *const c_char) -> String {
    // SAFETY: the caller's string ends with a zero.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

fn counted(name: &str, body: impl FnOnce() -> Result<(), i32>) -> i32 {
    // The world's lock is released while the compiler runs: units are compiled concurrently.
    let called = world().call(name, false);
    called.and_then(|()| body()).err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcVersion(major: *mut i32, minor: *mut i32) -> i32 {
    counted("nvrtcVersion", || put(major, 13).and(put(minor, 0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCreateProgram(
    program: *mut *mut c_void,
    source: *const c_char,
    _name: *const c_char,
    count: i32,
    headers: *const *const c_char,
    names: *const *const c_char,
) -> i32 {
    counted("nvrtcCreateProgram", || {
        // SAFETY: the caller's arrays of as many strings.
        let list =
            |from: *const *const c_char| (0..count as usize).map(move |i| text(unsafe { *from.add(i) }));
        let headers = list(names).zip(list(headers)).collect();
        let made = Program { text: text(source), headers, log: vec![0], binary: Vec::new() };
        put(program, Box::into_raw(Box::new(made)).cast())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcCompileProgram(
    program: *mut c_void,
    count: i32,
    options: *const *const c_char,
) -> i32 {
    counted("nvrtcCompileProgram", || {
        // SAFETY: a program that was made here; the caller's array of as many strings.
        let (program, options): (&mut Program, Vec<String>) =
            unsafe { (&mut *program.cast(), (0..count as usize).map(|i| text(*options.add(i))).collect()) };
        // Options that decide bits must be there.
        for wanted in ["--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--std=c++17"] {
            if !options.iter().any(|o| o == wanted) {
                return Err(5);
            }
        }
        let compiler = compiler().ok_or(INTERNAL)?;
        let folder = tempfile::tempdir().map_err(|_| INTERNAL)?;
        let file = |name: &str| folder.path().join(name);
        let simt = ("simt.h".to_string(), include_str!("../simt.h").to_string());
        for (name, text) in program.headers.iter().chain([&simt]) {
            std::fs::write(file(name), text).map_err(|_| INTERNAL)?;
        }
        let mut unit = format!("{}HwMachine* hw_machine;\n{}", program.text, extents(&program.text));
        if let Some((from, to, times)) = &mut world().replaced
            && unit.contains(from.as_str())
        {
            unit = unit.replacen(from.as_str(), to, 1);
            *times += 1;
        }
        std::fs::write(file("unit.cpp"), unit).map_err(|_| INTERNAL)?;
        let mut command = Command::new(compiler);
        command.args([
            "-x",
            "c++",
            "-std=c++17",
            "-O1",
            "-ffp-contract=off",
            "-fno-math-errno",
            "-fno-exceptions",
        ]);
        command.args(["-fno-rtti", "-w", "-fPIC", "-shared", "-DHW_STANDIN"]);
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("fma") {
            command.arg("-mfma");
        }
        let output = command
            .args(["-o".as_ref(), file("unit.so").as_os_str(), file("unit.cpp").as_os_str(), "-lm".as_ref()])
            .output()
            .map_err(|_| INTERNAL)?;
        program.log = output.stderr;
        program.log.push(0);
        if !output.status.success() {
            return Err(COMPILATION);
        }
        let bytes = std::fs::read(file("unit.so")).map_err(|_| INTERNAL)?;
        program.binary = [&MAGIC[..], &(bytes.len() as u64).to_le_bytes(), &bytes].concat();
        Ok(())
    })
}

/// Sizes of operands as data of the binary: kernels state them in comments,
/// `// hw_a.p[1]: y0, 64 bytes, written` before `HW_KERNEL(NAME, …`. For each operand its bytes, and 1 if it
/// is written.
fn extents(text: &str) -> String {
    let (mut all, mut own) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(operand) = line.strip_prefix("// hw_a.p[") {
            let bytes = operand.rsplit(", ").nth(1).and_then(|b| b.strip_suffix(" bytes"));
            own.extend(bytes.map(|b| format!("{b}ll, {}", i32::from(operand.ends_with("written")))));
        } else if let Some(kernel) = line.strip_prefix("HW_KERNEL(") {
            let name = kernel.split(',').next().unwrap_or_default();
            if !own.is_empty() {
                all += &format!("extern \"C\" {{ i64 {name}_extents[] = {{{}, -1ll}}; }}\n", own.join(", "));
            }
            own.clear();
        }
    }
    all
}

fn size(program: *mut c_void, to: *mut usize, of: fn(&Program) -> &Vec<u8>) -> Result<(), i32> {
    // SAFETY: a program that was made here.
    put(to, of(unsafe { &*program.cast() }).len())
}

fn bytes(program: *mut c_void, to: *mut c_char, of: fn(&Program) -> &Vec<u8>) -> Result<(), i32> {
    // SAFETY: a program that was made here; the caller provides a buffer of as many bytes.
    unsafe {
        let from = of(&*program.cast());
        std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len());
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLogSize(program: *mut c_void, to: *mut usize) -> i32 {
    counted("nvrtcGetProgramLogSize", || size(program, to, |p| &p.log))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetProgramLog(program: *mut c_void, to: *mut c_char) -> i32 {
    counted("nvrtcGetProgramLog", || bytes(program, to, |p| &p.log))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBINSize(program: *mut c_void, to: *mut usize) -> i32 {
    counted("nvrtcGetCUBINSize", || size(program, to, |p| &p.binary))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcGetCUBIN(program: *mut c_void, to: *mut c_char) -> i32 {
    counted("nvrtcGetCUBIN", || bytes(program, to, |p| &p.binary))
}

#[unsafe(no_mangle)]
pub extern "C" fn nvrtcDestroyProgram(program: *mut *mut c_void) -> i32 {
    counted("nvrtcDestroyProgram", || {
        // SAFETY: a program that was made here, or none.
        unsafe {
            if !(*program).is_null() {
                drop(Box::from_raw((*program).cast::<Program>()));
            }
            *program = std::ptr::null_mut();
        }
        Ok(())
    })
}
