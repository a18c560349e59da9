//! Operators on images.

pub mod resample;

operators! {
    affine_grid: AFFINE_GRID_GENERATOR;
    grid_sampler: GRID_SAMPLER;
    shuffle: PIXEL_SHUFFLE, PIXEL_UNSHUFFLE, CHANNEL_SHUFFLE;
    upsample: NEAREST, NEAREST_EXACT, BILINEAR, BILINEAR_AA, BICUBIC, BICUBIC_AA;
    upsample2d: UPSAMPLE2D, UPSAMPLE2D_BACKWARD;
}
