//! The stand-in's `bisheng`, `ccec` and `ld.lld`: make stand-in binaries from sources that carry their
//! programs in comments. They take the flags of the vendor's compilers as far as Headwater gives them, and
//! refuse others.

use headwater_ascend::host::acl::types::magic;
use headwater_ascend_standin::binary::{ANY, StandinBinary, programs_of};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let name = args.first().map(|a| Path::new(a).file_name().unwrap_or_default().to_string_lossy());
    let done = match name.as_deref() {
        Some("ld.lld") => link(&args[1..]),
        Some("bisheng" | "ccec") => compile(&args[1..]),
        other => Err(format!("called as {other:?}; the names are bisheng, ccec and ld.lld")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{path}: {e}"))
}

fn compile(args: &[String]) -> Result<(), String> {
    if args == ["--version"] {
        println!("bisheng stand-in 1.0");
        return Ok(());
    }
    let (mut input, mut output, mut target, mut cce) = (None, None, None, false);
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "-o" => output = rest.next(),
            "-mllvm" => drop(rest.next()),
            "-x" => cce = rest.next().is_some_and(|l| l == "cce"),
            "-c" | "-O2" | "-O3" | "-std=c++17" | "-xasc" | "--cce-aicore-only" | "--cce-auto-sync" => {}
            "--cce-mask-opt" | "-fPIC" => {}
            "--cce-aicore-arch=dav-c220-vec" => target = Some((2201, magic::VECTOR)),
            "--cce-aicore-arch=dav-c220-cube" => target = Some((2201, magic::CUBE)),
            "--cce-aicore-arch=dav-m200" => target = Some((2002, magic::AICORE)),
            "--npu-arch=dav-2002" => target = Some((2002, ANY)),
            "--npu-arch=dav-2201" => target = Some((2201, ANY)),
            flag if flag.starts_with("-I") || flag.starts_with("-D") => {}
            flag if flag.starts_with('-') => return Err(format!("error: unknown argument: '{flag}'")),
            file => input = Some(file.to_string()),
        }
    }
    let (input, output) = (input.ok_or("error: no input files")?, output.ok_or("error: no output")?);
    let (arch, magic) = target.ok_or("error: no architecture")?;
    let source = String::from_utf8(read(&input)?).map_err(|e| e.to_string())?;
    if let Some(ms) = source.lines().find_map(|l| l.strip_prefix("// standin: sleep ")) {
        std::thread::sleep(std::time::Duration::from_millis(ms.trim().parse().unwrap_or(0)));
    }
    if let Some(place) = source.lines().find_map(|l| l.strip_prefix("// standin: meet ")) {
        meet(place.trim())?;
    }
    if source.lines().any(|l| l == "// standin: no output") {
        return Ok(());
    }
    let kernels = programs_of(&source, &input)?;
    // The older driver leaves linking to `ld.lld`.
    let binary = StandinBinary { arch, magic, linked: !cce, kernels };
    std::fs::write(output, binary.to_bytes()).map_err(|e| format!("{output}: {e}"))
}

/// Waits until as many compilers as `FOLDER COUNT` says are in the folder: compilers that run sequentially
/// never meet.
fn meet(place: &str) -> Result<(), String> {
    let (folder, count) = place.split_once(' ').ok_or("meet where, and how many?")?;
    let count: usize = count.parse().map_err(|_| "meet how many?")?;
    let own = Path::new(folder).join(std::process::id().to_string());
    std::fs::write(&own, []).map_err(|e| format!("{}: {e}", own.display()))?;
    for _ in 0..2000 {
        if std::fs::read_dir(folder).map_err(|e| e.to_string())?.count() >= count {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Err(format!("error: waited in vain for {count} compilers"))
}

fn link(args: &[String]) -> Result<(), String> {
    let (mut inputs, mut output) = (Vec::new(), None);
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "-o" => output = rest.next(),
            "-m" => drop(rest.next()),
            "-static" | "-x" => {}
            flag if flag.starts_with("-Ttext=") => {}
            flag if flag.starts_with('-') => return Err(format!("ld.lld: error: unknown argument '{flag}'")),
            file => inputs.push(file.to_string()),
        }
    }
    let [input] = inputs.as_slice() else { return Err("ld.lld: error: one object, please".into()) };
    let mut binary = StandinBinary::parse(&read(input)?)?;
    binary.linked = true;
    let output = output.ok_or("ld.lld: error: no output")?;
    std::fs::write(output, binary.to_bytes()).map_err(|e| format!("{output}: {e}"))
}
