//! Failures of the libraries: each is an error that names its call, and leaks no handle.

use crate::common::{device, machine, skipped};
use headwater_core::device::{Content, Device};
use headwater_core::graph::{Builder, InputRole, OutputRole};
use headwater_core::{Attrs, Code, DType, Registry, Shape, Tensor, TensorType, evaluate};
use headwater_cuda::Cuda;
use headwater_cuda::host::Installation;
use headwater_cuda::host::context::Settings;
use headwater_cuda::host::table::{CublasLt, Driver, Nvrtc};

/// A product, then a row program.
fn work(gpu: &Cuda) -> headwater_core::Result<Vec<Tensor>> {
    let registry = Registry::standard();
    let mut b = Builder::new();
    let ty = TensorType::new(DType::F32, [4, 4]);
    let x = b.input("x", ty.clone(), InputRole::User);
    let y = b.apply(registry.by_name("matmul").unwrap(), &[Some(x), Some(x)], Attrs::new()).unwrap()[0];
    let z = b.apply(registry.by_name("silu").unwrap(), &[Some(y)], Attrs::new()).unwrap()[0];
    b.output("z", z, OutputRole::User);
    let input = Tensor::float(DType::F32, ty.shape.clone(), (0..16).map(f64::from).collect());
    evaluate(gpu, &b.finish(), &[input])
}

#[test]
fn every_call_that_fails_is_named_and_leaves_nothing() {
    if skipped("every_call_that_fails_is_named_and_leaves_nothing") {
        return;
    }
    let mut failed = Vec::new();
    for name in Driver::NAMES.iter().chain(Nvrtc::NAMES).chain(CublasLt::NAMES) {
        let machine = machine(0);
        let installation = Installation::of(vec![machine.path().to_owned()]);
        machine.inject(name, 1, 1);
        let cache = (!Nvrtc::NAMES.contains(name)).then(crate::common::cache);
        let result = Cuda::on(0, &installation, Settings::default(), cache).and_then(|gpu| work(&gpu));
        let called = machine.calls(name) > 0;
        machine.forget();
        // Failures of clearing up, and of the compiler's and cuBLASLt's opening, leave results as they are.
        if let Err(error) = result {
            assert!(called, "{name} was not called, but: {error}");
            assert_eq!(error.code, Code::Device, "{name}: {error}");
            let plain = name.trim_end_matches("_v2").trim_end_matches("WithFlags").trim_end_matches("Size");
            let said = if *name == "nvrtcCompileProgram" { "does not compile for sm_90" } else { plain };
            assert!(error.to_string().contains(said), "{name}: {error}");
            failed.push(*name);
        }
        let live = machine.live();
        let kept = name.contains("Destroy") || name.contains("Free") || name.contains("Unload");
        assert!(kept || live == [0; 6], "{name}: {live:?} are left");
    }
    for name in [
        "cuInit",
        "cuMemAlloc_v2",
        "cuLaunchKernel",
        "cuModuleLoadData",
        "nvrtcCompileProgram",
        "cublasLtMatmul",
    ] {
        assert!(failed.contains(&name), "{name} fails without an error: {failed:?}");
    }
}

#[test]
fn a_failed_context_stays_failed_and_names_launches() {
    if skipped("a_failed_context_stays_failed_and_names_launches") {
        return;
    }
    let machine = machine(0);
    let gpu = device(&machine, Settings::default());
    assert!(work(&gpu).is_ok());
    machine.inject("cuStreamSynchronize", 1, 719);
    let first = work(&gpu).unwrap_err();
    assert!(first.to_string().contains("cuStreamSynchronize failed"), "{first}");
    assert!(first.to_string().contains("HEADWATER_CUDA_BLOCKING=1"), "{first}");
    let again = gpu.alloc(4, Content::Undefined).unwrap_err();
    assert!(again.to_string().contains("cuStreamSynchronize failed"), "{again}");
    drop(gpu);
    let gpu = device(&machine, Settings { blocking: true, ..Settings::default() });
    machine.inject("cuStreamSynchronize", 1, 719);
    let named = work(&gpu).unwrap_err().to_string();
    assert!(named.contains("in kernel `hw_product"), "{named}");
}

#[test]
fn memory_that_is_short_says_how_much_there_is() {
    if skipped("memory_that_is_short_says_how_much_there_is") {
        return;
    }
    let machine = machine(0);
    let gpu = device(&machine, Settings::default());
    let error = gpu.alloc(8 << 30, Content::Undefined).unwrap_err().to_string();
    assert!(
        error.contains("no memory for 8589934592 bytes on cuda:0") && error.contains("are free"),
        "{error}"
    );
    assert!(gpu.alloc(1 << 20, Content::Zero).is_ok());
}

#[test]
fn an_index_out_of_range_is_named_and_over() {
    if skipped("an_index_out_of_range_is_named_and_over") {
        return;
    }
    let machine = machine(0);
    let gpu = device(&machine, Settings::default());
    let registry = Registry::standard();
    let mut b = Builder::new();
    let table = b.input("table", TensorType::new(DType::F32, [5, 3]), InputRole::User);
    let index = b.input("index", TensorType::new(DType::I64, [600]), InputRole::User);
    let attrs = Attrs::new().with("padding_idx", -1i64);
    let y = b.apply(registry.by_name("embedding").unwrap(), &[Some(table), Some(index)], attrs).unwrap()[0];
    b.output("y", y, OutputRole::User);
    let graph = b.finish();
    let table = Tensor::float(DType::F32, Shape::new(&[5, 3]), (0..15).map(f64::from).collect());
    let index = |bad: &[(usize, i64)]| {
        let mut all: Vec<i64> = (0..600).map(|i| i % 5).collect();
        bad.iter().for_each(|&(at, x)| all[at] = x);
        Tensor::int(DType::I64, Shape::new(&[600]), all)
    };
    let error = evaluate(&gpu, &graph, &[table.clone(), index(&[(599, 7), (301, -4)])]).unwrap_err();
    assert_eq!(error.code, Code::Value);
    assert!(error.to_string().contains("index -4 at position 301 is outside 0..5"), "{error}");
    let rows = evaluate(&gpu, &graph, &[table, index(&[])]).unwrap();
    assert_eq!(rows[0].floats()[3 * 599..], [12.0, 13.0, 14.0]);
}

#[test]
fn what_is_missing_is_named() {
    let error = Cuda::on(0, &Installation::of(vec!["/nowhere".into()]), Settings::default(), None);
    // A machine with a driver finds it by the system's search.
    if let Err(error) = error.map(drop) {
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    }
    if skipped("what_is_missing_is_named") {
        return;
    }
    // Without NVRTC and cuBLASLt all runs on the host.
    let machine = machine(0);
    let alone = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(machine.path().join("libcuda.so.1"), alone.path().join("libcuda.so.1"))
        .unwrap();
    let gpu =
        Cuda::on(0, &Installation::of(vec![alone.path().to_owned()]), Settings::default(), None).unwrap();
    assert_eq!(work(&gpu).unwrap()[0].dtype(), DType::F32);
    let notes = gpu.notes().join("\n");
    assert!(notes.contains("libnvrtc.so.13 is not found") && notes.contains("libcublasLt.so.13"), "{notes}");
}
