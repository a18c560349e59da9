//! Elementary functions by computing type: in f32 the definition that all devices share, with neither
//! branches nor tables; in f64, which serves checking, the standard library's.

pub(crate) use headwater_core::expr::elementary::scalar as f32;

/// In f64.
pub(crate) mod f64 {
    #[inline(always)]
    pub fn exp(x: f64) -> f64 {
        x.exp()
    }
    #[inline(always)]
    pub fn exp_nonpos(x: f64) -> f64 {
        x.exp()
    }
    #[inline(always)]
    pub fn log(x: f64) -> f64 {
        x.ln()
    }
    #[inline(always)]
    pub fn tanh(x: f64) -> f64 {
        x.tanh()
    }
    #[inline(always)]
    pub fn erf(x: f64) -> f64 {
        libm::erf(x)
    }
    #[inline(always)]
    pub fn ndtr(x: f64) -> f64 {
        0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
    }
    #[inline(always)]
    pub fn sigmoid(x: f64) -> f64 {
        // exp of a negative number cannot overflow.
        let e = exp(-x.abs());
        if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
    }
}
