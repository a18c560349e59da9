//! The stand-in finds faults of kernels, each planted in a text of ours.

use crate::common::{machine, skipped};
use headwater_cuda::host::compile::Source;
use headwater_cuda::host::context::Settings;
use headwater_cuda::host::library::DRIVER;
use headwater_cuda::host::table::Driver;
use headwater_cuda::host::{Compiler, Context, DeviceMemory, Function, Installation, PinnedMemory, Stream};
use headwater_launch::{Host, Site};
use std::sync::Arc;

/// Runs a kernel of 64 threads in 2 blocks on 256 floats that are written and 256 that are not: the failure,
/// if there is one.
fn run(body: &str) -> Option<String> {
    let machine = machine(5);
    let installation = Installation::of(vec![machine.path().to_owned()]);
    let driver = Arc::new(Driver::open(&installation.library(DRIVER).unwrap(), DRIVER[0], "").unwrap());
    let context = Context::open(&driver, 0, Settings::default()).unwrap();
    let compiler = Compiler::find(&installation, "sm_90", None).unwrap();
    let text = format!("HW_KERNEL(planted, 64, 2) {{\n{body}\n}}\n");
    let compiled = compiler.compile(&[Source { name: "planted".into(), text }]).unwrap();
    let function = Function::load(&context, &compiled.binaries[0], "planted").unwrap();
    let stream = Stream::new(&context).unwrap();
    let from = DeviceMemory::alloc(&context, 1024).unwrap();
    let to = DeviceMemory::alloc(&context, 1024).unwrap();
    let pinned = PinnedMemory::alloc(&context, 1024).unwrap();
    Context::arrived(Context::upload(&stream, &from, 0, pinned, 1024).unwrap()).unwrap();
    let mut pointers = vec![from.address(), to.address()];
    stream.launch(&function, (2, 64, 1024), &mut pointers, &Site::of_kernel("planted")).unwrap();
    Context::synchronize(&stream).err().map(|e| e.to_string())
}

#[test]
fn planted_faults_are_found() {
    if skipped("planted_faults_are_found") {
        return;
    }
    let head = "const i64 i = hw_block() * 64 + hw_thread(); float* const x = (float*)hw_a.p[0]; float* const y = (float*)hw_a.p[1];
        float* const s = (float*)hw_shared(); (void)i; (void)x; (void)y; (void)s;";
    let right = "hw_st(s, hw_thread(), hw_ld(x, i)); hw_sync(); hw_st(y, i, hw_ld(s, 63 - hw_thread()));";
    assert_eq!(run(&format!("{head}\n{right}")), None);
    for (fault, words) in [
        ("hw_st(y, i * 3, 1.0f);", "writes outside of memory"),
        ("hw_st(y, i, hw_ld(x, i + 200));", "reads outside of memory"),
        ("hw_st(x, i, hw_ld(y, i));", "reads bytes that nobody wrote"),
        (
            "hw_st(s, hw_thread(), 1.0f); hw_st(y, i, hw_ld(s, 63 - hw_thread()));",
            "reads shared bytes that nobody wrote\nreads what was written",
        ),
        ("hw_st(y, hw_thread(), 1.0f);", "writes what was written by thread"),
        (
            "hw_st(y, i, hw_ld(x, (i + 1) % 128)); hw_st(x, i, 2.0f);",
            "writes what was read\nreads what was written",
        ),
        ("if (hw_thread() < 63)\nhw_sync();\nelse\nhw_sync();", "another barrier"),
        ("if (hw_thread() == 0) hw_sync();", ""),
        ("if (hw_thread() % 32 == 31) return; hw_lane_xor(1.0f, 1);", "a thread that is over"),
        ("hw_st((u32*)(hw_a.p[1] + 2), i, 1u);", "is no multiple of 4"),
    ] {
        let found = run(&format!("{head}\n{fault}")).unwrap_or_default();
        // Threads that have returned do not count at a barrier.
        match words {
            "" => assert!(found.is_empty() || found.contains("wait"), "{fault}: {found}"),
            _ => assert!(words.split('\n').any(|w| found.contains(w)), "{fault}: {found}"),
        }
    }
}
