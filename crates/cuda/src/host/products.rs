//! Matrix products by cuBLASLt.
//!
//! The library stores matrices column by column; a row-major matrix is the transposed one there. So `d = a ·
//! b` is given as `dᵀ = bᵀ · aᵀ`. Parts of sums are added in f32: reduction schemes that add in the type of
//! the result are left out.

use super::context::Context;
use super::error::{Error, Result};
use super::library::{CUBLAS_LT, Installation};
use super::stream::Stream;
use super::table::{Address, Algorithm, CublasLt, Handle, Heuristic, lt};
use crate::lower::WORKSPACE;
use crate::program::Product;
use headwater_core::DType;
use headwater_launch::Site;
use std::ffi::c_void;
use std::sync::Arc;

/// The library, opened for a context.
#[derive(Debug)]
pub struct Products {
    table: CublasLt,
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: the library's handles are used by one call at a time or by several: it says that both are safe.
unsafe impl Send for Products {}
// SAFETY: as above.
unsafe impl Sync for Products {}

/// A product, ready to be given to a stream.
#[derive(Debug)]
pub struct Ready {
    products: Arc<Products>,
    product: Product,
    desc: Handle,
    /// bᵀ, aᵀ, dᵀ.
    layouts: [Handle; 3],
    algorithm: Algorithm,
}

// SAFETY: handles of descriptions; they are changed by no two threads at once, for `give` takes `&mut`-like
// turns of a plan's run.
unsafe impl Send for Ready {}

fn checked(call: &'static str, code: i32, site: Option<&Arc<Site>>) -> Result<()> {
    let name = match code {
        0 => return Ok(()),
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        _ => "a failure of cuBLASLt",
    };
    Err(Error::Call { call, code, text: name.into(), site: site.cloned(), near: Vec::new() })
}

impl Products {
    /// Opens the library.
    ///
    /// # Errors
    /// A library that is missing, or lacks functions.
    pub fn open(context: &Arc<Context>, installation: &Installation) -> Result<Arc<Products>> {
        let without = "matrix products run on the host, slowly";
        let path = installation.library(CUBLAS_LT).ok_or_else(|| Error::Library {
            name: CUBLAS_LT[0],
            problem: "is not found (nor is libcublasLt.so.12)".into(),
            without,
            places: installation.folders().to_vec(),
        })?;
        let table = CublasLt::open(&path, CUBLAS_LT[0], without)?;
        context.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes a handle.
        checked("cublasLtCreate", unsafe { (table.create)(&mut handle) }, None)?;
        Ok(Arc::new(Products { table, context: context.clone(), handle }))
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: created once, destroyed once.
            unsafe { (self.table.destroy)(self.handle) };
        }
    }
}

fn kind(dtype: DType) -> i32 {
    match dtype {
        DType::F64 => lt::R_64F,
        DType::F16 => lt::R_16F,
        DType::BF16 => lt::R_16BF,
        _ => lt::R_32F,
    }
}

impl Ready {
    /// Describes a product and takes the library's first choice of an algorithm.
    ///
    /// # Errors
    /// A product that the library has no algorithm for.
    pub fn new(products: &Arc<Products>, product: &Product, site: &Arc<Site>) -> Result<Ready> {
        products.context.enter()?;
        let table = &products.table;
        let null = std::ptr::null_mut();
        let mut ready = Ready {
            products: products.clone(),
            product: *product,
            desc: null,
            layouts: [null; 3],
            algorithm: Algorithm::default(),
        };
        let (own, wide) = (kind(product.dtype), product.dtype == DType::F64);
        let compute = match product.dtype {
            DType::F64 => lt::COMPUTE_64F,
            // f32 means f32: neither TF32 nor an emulation, whatever the environment requests.
            DType::F32 => lt::COMPUTE_32F_PEDANTIC,
            _ => lt::COMPUTE_32F,
        };
        let scale = if wide { lt::R_64F } else { lt::R_32F };
        // SAFETY: writes a handle.
        let code = unsafe { (table.desc_create)(&mut ready.desc, compute, scale) };
        checked("cublasLtMatmulDescCreate", code, Some(site))?;
        let set = |attribute: i32, value: &[u8]| {
            // SAFETY: the description is alive; the library copies so many bytes.
            let code = unsafe { (table.desc_set)(ready.desc, attribute, value.as_ptr().cast(), value.len()) };
            checked("cublasLtMatmulDescSetAttribute", code, Some(site))
        };
        // Row-major is transposed already: a matrix whose rows are contiguous is taken as it is.
        let turned = |transposed: bool| i32::from(transposed).to_ne_bytes();
        set(lt::DESC_TRANSA, &turned(product.b.transposed))?;
        set(lt::DESC_TRANSB, &turned(product.a.transposed))?;
        if product.d.transposed {
            return Err(Error::Usage(format!("the result of {site} is written column by column")));
        }
        let epilogue = if product.bias { lt::EPILOGUE_BIAS } else { lt::EPILOGUE_DEFAULT };
        set(lt::DESC_EPILOGUE, &epilogue.to_ne_bytes())?;
        if product.bias {
            set(lt::DESC_BIAS_DATA_TYPE, &own.to_ne_bytes())?;
        }
        let matrices = [
            (product.b, product.k, product.n, own),
            (product.a, product.m, product.k, own),
            (product.d, product.m, product.n, kind(product.out)),
        ];
        for (i, (matrix, rows, columns, kind)) in matrices.into_iter().enumerate() {
            // The layout in memory: the contiguous dimension first.
            let (first, second) = if matrix.transposed { (rows, columns) } else { (columns, rows) };
            let (first, second, pitch) = (first as u64, second as u64, matrix.pitch as i64);
            // SAFETY: writes a handle.
            let code = unsafe { (table.layout_create)(&mut ready.layouts[i], kind, first, second, pitch) };
            checked("cublasLtMatrixLayoutCreate", code, Some(site))?;
            let set = |attribute: i32, value: &[u8]| {
                // SAFETY: the layout is alive; the library copies so many bytes.
                let code = unsafe {
                    (table.layout_set)(ready.layouts[i], attribute, value.as_ptr().cast(), value.len())
                };
                checked("cublasLtMatrixLayoutSetAttribute", code, Some(site))
            };
            let count = i32::try_from(product.batch)
                .map_err(|_| Error::Usage(format!("too many products in {site}")))?;
            set(lt::LAYOUT_BATCH_COUNT, &count.to_ne_bytes())?;
            set(lt::LAYOUT_BATCH_OFFSET, &(matrix.step as i64).to_ne_bytes())?;
        }
        ready.algorithm = ready.choose(site)?;
        Ok(ready)
    }

    fn choose(&self, site: &Arc<Site>) -> Result<Algorithm> {
        let table = &self.products.table;
        let mut preference = std::ptr::null_mut();
        // SAFETY: writes a handle.
        let code = unsafe { (table.preference_create)(&mut preference) };
        checked("cublasLtMatmulPreferenceCreate", code, Some(site))?;
        let set = |attribute: i32, value: &[u8]| {
            // SAFETY: the preference is alive; the library copies so many bytes.
            let code =
                unsafe { (table.preference_set)(preference, attribute, value.as_ptr().cast(), value.len()) };
            checked("cublasLtMatmulPreferenceSetAttribute", code, Some(site))
        };
        let asked = || {
            set(lt::PREFERENCE_WORKSPACE, &WORKSPACE.to_ne_bytes())?;
            set(lt::PREFERENCE_REDUCTION, &lt::REDUCTION_COMPUTE_TYPE.to_ne_bytes())?;
            for operand in 0..4 {
                set(lt::PREFERENCE_ALIGNMENT_A + operand, &self.product.alignment.to_ne_bytes())?;
            }
            let (mut found, mut count) = (Heuristic::default(), 0);
            let [b, a, d] = self.layouts;
            // SAFETY: all handles are alive; at most one result is written.
            let code = unsafe {
                (table.heuristic)(
                    self.products.handle,
                    self.desc,
                    b,
                    a,
                    d,
                    d,
                    preference,
                    1,
                    &mut found,
                    &mut count,
                )
            };
            checked("cublasLtMatmulAlgoGetHeuristic", code, Some(site))?;
            match count {
                1 if found.state == 0 => Ok(found.algorithm),
                _ => Err(Error::Usage(format!("cuBLASLt has no algorithm for {site}: {:?}", self.product))),
            }
        };
        let chosen = asked();
        // SAFETY: created once, destroyed once.
        unsafe { (table.preference_destroy)(preference) };
        chosen
    }

    /// Gives the product to a stream. Addresses are those of its launch's arguments.
    ///
    /// # Errors
    /// Refusals of the library.
    pub fn give(&self, stream: &Stream, addresses: &[Address], site: &Arc<Site>) -> Result<()> {
        self.products.context.enter()?;
        let (table, bias) = (&self.products.table, usize::from(self.product.bias));
        let (a, b, d, workspace) = (addresses[0], addresses[1], addresses[2 + bias], addresses[3 + bias]);
        if self.product.bias {
            let at = addresses[2].to_ne_bytes();
            // SAFETY: the description is alive; the library copies the address.
            let code = unsafe { (table.desc_set)(self.desc, lt::DESC_BIAS_POINTER, at.as_ptr().cast(), 8) };
            checked("cublasLtMatmulDescSetAttribute", code, Some(site))?;
        }
        let (narrow, wide) = ([1.0f32, 0.0], [1.0f64, 0.0]);
        let scales: [*const c_void; 2] = match self.product.dtype {
            DType::F64 => [(&raw const wide[0]).cast(), (&raw const wide[1]).cast()],
            _ => [(&raw const narrow[0]).cast(), (&raw const narrow[1]).cast()],
        };
        let [of_b, of_a, of_d] = self.layouts;
        // SAFETY: descriptions are alive; operands in memory have the stated layouts, which was checked when
        // the plan was loaded; scales are read before this returns.
        let code = unsafe {
            (table.matmul)(
                self.products.handle,
                self.desc,
                scales[0],
                b,
                of_b,
                a,
                of_a,
                scales[1],
                d,
                of_d,
                d,
                of_d,
                &self.algorithm,
                workspace,
                WORKSPACE as usize,
                stream.handle(),
            )
        };
        checked("cublasLtMatmul", code, Some(site))?;
        stream.launched("cublasLtMatmul", 0, site)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let table = &self.products.table;
        for layout in self.layouts.iter().filter(|l| !l.is_null()) {
            // SAFETY: created once, destroyed once.
            unsafe { (table.layout_destroy)(*layout) };
        }
        if !self.desc.is_null() {
            // SAFETY: created once, destroyed once.
            unsafe { (table.desc_destroy)(self.desc) };
        }
    }
}
