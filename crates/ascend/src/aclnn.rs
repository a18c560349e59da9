//! Operators of the vendor's library (aclnn) as data: a function, its operands and its options. Knows no
//! memory and calls nothing; [`crate::lower`] writes such calls, and [`crate::host`] makes them.

use headwater_core::DType;

/// A call of an operator.
#[derive(Clone, PartialEq, Debug)]
pub struct Call {
    /// Operator and options.
    pub function: Function,
    /// Its tensors, in the order that [`Function`] states.
    pub operands: Vec<Operand>,
}

/// An operator, with its options.
#[derive(Clone, PartialEq, Debug)]
pub enum Function {
    /// `aclnnMatmul`: two matrices or batches of some, and the product.
    Matmul,
    /// `aclnnAddmm` with both factors 1: the summand, two matrices, and the result.
    Addmm,
    /// `aclnnFlashAttentionScore`: query, key, value; a mask of what is not seen, if `masked`; the largest
    /// score and the sum of each query, and the result.
    Attention(Attention),
    /// `aclnnFlashAttentionScoreGrad`: query, key, value and the result's gradient; the mask; the largest
    /// score, the sum and the result; gradients of query, key and value.
    AttentionGrad(Attention),
    /// `aclnnConvolution`: input, weight; a bias, if `bias`; the result.
    Convolution {
        /// Steps of the kernel.
        window: Window,
        /// True if there is a bias.
        bias: bool,
    },
    /// `aclnnConvolutionBackward` for one result: gradient, input and weight, then the gradient of input or
    /// weight. The operand whose gradient is computed contributes only its shape.
    ConvolutionGrad {
        /// Steps of the kernel.
        window: Window,
        /// True for the gradient of the weight.
        of_weight: bool,
    },
}

/// Options of attention; operands are `[batch, heads, length, size]` (BNSD).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// Factor of the scores.
    pub scale: f64,
    /// Heads of queries.
    pub heads: usize,
    /// True if there is a mask.
    pub masked: bool,
    /// `sparseMode`: the meaning of the mask.
    pub sparse_mode: i64,
}

/// Steps of a convolution, a number for each spatial dimension.
#[derive(Clone, PartialEq, Debug)]
pub struct Window {
    /// Steps between results.
    pub stride: Vec<i64>,
    /// Zeros on either side.
    pub padding: Vec<i64>,
    /// Steps between elements of the kernel.
    pub dilation: Vec<i64>,
    /// Groups of channels.
    pub groups: i64,
}

/// A tensor of a call.
#[derive(Clone, PartialEq, Debug)]
pub struct Operand {
    /// Type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<usize>,
    /// Meaning of the dimensions.
    pub format: Format,
    /// True if the call writes it.
    pub written: bool,
}

/// `aclFormat`, as far as used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// None in particular.
    Nd,
    /// Images of one to three dimensions: `NCL`, `NCHW`, `NCDHW`.
    Images,
}

impl Function {
    /// Name of every function.
    pub const NAMES: [&str; 6] = [
        "aclnnMatmul",
        "aclnnAddmm",
        "aclnnFlashAttentionScore",
        "aclnnFlashAttentionScoreGrad",
        "aclnnConvolution",
        "aclnnConvolutionBackward",
    ];

    /// Name of the function that computes; the one that prepares appends `GetWorkspaceSize`.
    pub const fn name(&self) -> &'static str {
        Function::NAMES[match self {
            Function::Matmul => 0,
            Function::Addmm => 1,
            Function::Attention(_) => 2,
            Function::AttentionGrad(_) => 3,
            Function::Convolution { .. } => 4,
            Function::ConvolutionGrad { .. } => 5,
        }]
    }
}

impl Operand {
    /// Elements from the first to the last.
    pub fn span(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        1 + self.shape.iter().zip(&self.strides).map(|(n, stride)| (n - 1) * stride).sum::<usize>()
    }

    /// Bytes from the first to the last.
    pub fn bytes(&self) -> usize {
        self.span() * self.dtype.size()
    }
}
