//! Convolutions and poolings.

pub mod geometry;
mod volume;
pub mod window;

operators! {
    adaptive_avg_pool3d: ADAPTIVE_AVG_POOL3D;
    avg_pool2d: AVG_POOL2D, AVG_POOL2D_BACKWARD, ADAPTIVE_AVG_POOL2D, ADAPTIVE_AVG_POOL2D_BACKWARD;
    avg_pool3d: AVG_POOL3D;
    conv_tbc: CONV_TBC;
    convolution: CONVOLUTION, CONVOLUTION_INPUT_GRAD, CONVOLUTION_WEIGHT_GRAD;
    general: GENERAL, CONV_TRANSPOSE;
    max_pool2d: MAX_POOL2D, ADAPTIVE_MAX_POOL2D, MAX_POOL2D_BACKWARD;
    max_pool3d: MAX_POOL3D, ADAPTIVE_MAX_POOL3D;
    max_unpool: MAX_UNPOOL2D, MAX_UNPOOL3D;
    pool1d: MAX_POOL1D, AVG_POOL1D, ADAPTIVE_AVG_POOL1D, ADAPTIVE_MAX_POOL1D;
    unfold: IM2COL, COL2IM;
}
