//! The gradient of an embedding uses the workspace it requested and no other memory: all of it, and nothing
//! is allocated.

#![allow(unsafe_code)]

use headwater_core::DType;
use headwater_core::ops::index::embedding_grad::{EmbeddingGradOptions, Method};
use headwater_cpu::kernels::embedding_grad::{EmbeddingGrad, Strided, StridedIndices};
use headwater_cpu::{CpuMemory, Pool};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn nothing_is_allocated() {
    let (n, rows, width) = (3000usize, 40_000, 40);
    let index: Vec<i32> = (0..n as i32).map(|i| if i % 2 == 0 { 17 } else { i * 13 % rows as i32 }).collect();
    let grad = vec![0.5f32; n * width];
    let pool = Pool::new(1);
    for method in Method::NAMES.map(|(_, m)| m) {
        let options = EmbeddingGradOptions {
            method,
            max_norm: Some(1.0),
            scale_grad_by_freq: true,
            ..EmbeddingGradOptions::new(rows)
        };
        let job = EmbeddingGrad::new(options, DType::F32, n, width).unwrap();
        let mut workspace = CpuMemory::new(job.workspace_size()).unwrap();
        let (mut out, mut ids) = (vec![0.0f32; rows * width], vec![0i64; n]);
        let grad = Strided::rows(&grad, 0, &[n, width], &[width as isize, 1]).unwrap();
        let index = StridedIndices::I32(Strided::elements(&index, 0, &[n], &[1]).unwrap());
        let before = COUNT.get();
        let dense = job.dense(&pool, &grad, &index, &mut out, workspace.as_mut_slice());
        let sparse =
            job.sparse(&pool, &grad, &index, &mut ids, &mut out[..n * width], workspace.as_mut_slice());
        assert_eq!(COUNT.get() - before, 0, "{method:?}");
        assert!(dense.is_ok() && sparse.is_ok());
    }
}
