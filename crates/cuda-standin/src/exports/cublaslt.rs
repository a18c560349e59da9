//! cuBLASLt, strict: attributes of other sizes, layouts that do not fit and types that differ are refused.

use super::{export, put};
use crate::product::{Layout, Product, dtype};
use crate::world::Work;
use headwater_core::DType;
use std::ffi::c_void;

const INVALID: i32 = 7;
const NOT_SUPPORTED: i32 = 15;

#[derive(Clone, Default)]
struct Desc {
    compute: i32,
    scale: i32,
    turned: [i32; 2],
    epilogue: u32,
    bias: u64,
    bias_type: i32,
}

#[derive(Default)]
struct Preference {
    workspace: u64,
    reduction: u32,
}

fn boxed<T>(to: *mut *mut c_void, value: T) -> Result<(), i32> {
    put(to, Box::into_raw(Box::new(value)).cast())
}

fn unboxed<T>(handle: *mut c_void) -> Result<(), i32> {
    if handle.is_null() {
        return Err(INVALID);
    }
    // SAFETY: a handle that `boxed` made.
    unsafe { drop(Box::from_raw(handle.cast::<T>())) };
    Ok(())
}

fn own<T>(handle: *mut c_void) -> Result<&'static mut T, i32> {
    // SAFETY: a handle that `boxed` made, alive until it is destroyed.
    unsafe { handle.cast::<T>().as_mut() }.ok_or(INVALID)
}

fn value<T: Copy>(from: *const c_void, bytes: usize) -> Result<T, i32> {
    if bytes != size_of::<T>() || from.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's value of that size.
    Ok(unsafe { from.cast::<T>().read_unaligned() })
}

/// True if layouts and types fit each other.
fn fits(desc: &Desc, a: &Layout, b: &Layout, d: &Layout) -> Result<(), i32> {
    let kind = dtype(a.kind).ok_or(INVALID)?;
    // Operands of 16 bits may have a result in f32.
    let types =
        b.kind == a.kind && (d.kind == a.kind || (kind.size() == 2 && dtype(d.kind) == Some(DType::F32)));
    let computes =
        matches!((kind.size(), desc.compute, desc.scale), (8, 70, 1) | (4, 68 | 69, 0) | (2, 68, 0));
    let shape = |l: &Layout, turned: i32| if turned == 1 { (l.columns, l.rows) } else { (l.rows, l.columns) };
    let ((m, k), (k2, n)) = (shape(a, desc.turned[0]), shape(b, desc.turned[1]));
    let sizes = m == d.rows && n == d.columns && k == k2;
    let whole = [a, b, d].iter().all(|l| l.pitch as u64 >= l.rows && l.batch == d.batch);
    let bias = desc.epilogue == 1 || (desc.epilogue == 4 && desc.bias_type == a.kind);
    let apart = d.batch <= 1 || d.step as u64 >= (d.columns - 1) * d.pitch as u64 + d.rows;
    if computes && types && sizes && whole && bias && apart { Ok(()) } else { Err(NOT_SUPPORTED) }
}

export! {
    true fn cublasLtCreate(world, handle: *mut *mut c_void) { put(handle, 16 as *mut c_void)?; }
    false fn cublasLtDestroy(world, handle: *mut c_void) { if handle as usize != 16 { return Err(INVALID); } }
    false fn cublasLtMatmulDescCreate(world, desc: *mut *mut c_void, compute: i32, scale: i32) {
        boxed(desc, Desc { compute, scale, epilogue: 1, ..Desc::default() })?;
    }
    false fn cublasLtMatmulDescDestroy(world, desc: *mut c_void) { unboxed::<Desc>(desc)?; }
    false fn cublasLtMatmulDescSetAttribute(world, desc: *mut c_void, attribute: i32, from: *const c_void, bytes: usize) {
        let desc = own::<Desc>(desc)?;
        match attribute {
            3 => desc.turned[0] = value(from, bytes)?,
            4 => desc.turned[1] = value(from, bytes)?,
            7 => desc.epilogue = value(from, bytes)?,
            8 => desc.bias = value(from, bytes)?,
            26 => desc.bias_type = value(from, bytes)?,
            _ => return Err(INVALID),
        }
    }
    false fn cublasLtMatrixLayoutCreate(world, layout: *mut *mut c_void, kind: i32, rows: u64, columns: u64, pitch: i64) {
        boxed(layout, Layout { kind, rows, columns, pitch, batch: 1, step: 0 })?;
    }
    false fn cublasLtMatrixLayoutDestroy(world, layout: *mut c_void) { unboxed::<Layout>(layout)?; }
    false fn cublasLtMatrixLayoutSetAttribute(world, layout: *mut c_void, attribute: i32, from: *const c_void, bytes: usize) {
        let layout = own::<Layout>(layout)?;
        match attribute {
            5 => layout.batch = value(from, bytes)?,
            6 => layout.step = value(from, bytes)?,
            _ => return Err(INVALID),
        }
    }
    false fn cublasLtMatmulPreferenceCreate(world, preference: *mut *mut c_void) {
        boxed(preference, Preference { workspace: 0, reduction: 7 })?;
    }
    false fn cublasLtMatmulPreferenceDestroy(world, preference: *mut c_void) { unboxed::<Preference>(preference)?; }
    false fn cublasLtMatmulPreferenceSetAttribute(world, preference: *mut c_void, attribute: i32, from: *const c_void, bytes: usize) {
        let preference = own::<Preference>(preference)?;
        match attribute {
            1 => preference.workspace = value(from, bytes)?,
            3 => preference.reduction = value(from, bytes)?,
            5..=8 => drop(value::<u32>(from, bytes)?),
            _ => return Err(INVALID),
        }
    }
    true fn cublasLtMatmulAlgoGetHeuristic(
        world, _handle: *mut c_void, desc: *mut c_void, a: *mut c_void, b: *mut c_void, c: *mut c_void, d: *mut c_void,
        preference: *mut c_void, requested: i32, results: *mut [u64; 12], count: *mut i32
    ) {
        let preference = own::<Preference>(preference)?;
        // Schemes that add in the type of the result (1 and 4) are what Headwater must exclude.
        if requested < 1 || preference.reduction & 5 != 0 || own::<Layout>(c)? != own::<Layout>(d)? { return Err(INVALID); }
        let fit = fits(own::<Desc>(desc)?, own(a)?, own(b)?, own(d)?);
        put(count, i32::from(fit.is_ok()))?;
        fit?;
        let mut result = [0u64; 12];
        result[0] = 0x5354_414e_4449_4e00;
        result[8] = preference.workspace;
        put(results, result)?;
    }
    true fn cublasLtMatmul(
        world, _handle: *mut c_void, desc: *mut c_void, alpha: *const c_void, a: u64, of_a: *mut c_void, b: u64,
        of_b: *mut c_void, beta: *const c_void, c: u64, of_c: *mut c_void, d: u64, of_d: *mut c_void, algorithm: *const u64,
        workspace: u64, bytes: usize, stream: *mut c_void
    ) {
        let desc = own::<Desc>(desc)?;
        let (of_a, of_b, of_d) = (*own::<Layout>(of_a)?, *own::<Layout>(of_b)?, *own::<Layout>(of_d)?);
        fits(desc, &of_a, &of_b, &of_d)?;
        // SAFETY: an algorithm that the heuristic gave.
        let known = !algorithm.is_null() && unsafe { *algorithm } == 0x5354_414e_4449_4e00;
        if !known || c != d || *own::<Layout>(of_c)? != of_d || !workspace.is_multiple_of(256) { return Err(INVALID); }
        let scale = |at: *const c_void| -> Result<f64, i32> {
            if desc.scale == 1 { value::<f64>(at, 8) } else { value::<f32>(at, 4).map(f64::from) }
        };
        let product = Product {
            a: of_a,
            b: of_b,
            d: of_d,
            turned: [desc.turned[0] == 1, desc.turned[1] == 1],
            at: [a, b, d],
            bias: (desc.epilogue == 4).then_some(desc.bias),
            scales: [scale(alpha)?, scale(beta)?],
            workspace: (workspace, bytes),
        };
        world.give(stream as usize, Work::Product(Box::new(product)))?;
    }
}
