//! Kernels written by hand.

mod add;
mod attention;
mod check_index;
mod copies;
mod embedding_grad;
mod gather_packed;
mod gather_rows;
mod gather_task;
mod indices;
mod matmul;
mod matmul_read;
mod matmul_shape;
mod matmul_step;
mod matmul_store;
mod matmul_tiling;
mod philox;
mod places;
mod rms_norm;
mod rms_norm_grad;
mod row_tile;
mod scatter_rows;
mod scatter_sum;
mod sum_rows;

pub use add::add;
pub use attention::{Attention, HeadRows, attention};
pub use check_index::{CheckIndex, check_index};
pub use embedding_grad::{EmbeddingGrad, Operand, Rung, Stage, Stages, embedding_grad};
pub use gather_rows::gather_rows;
pub use gather_task::GatherRows;
pub use matmul::{grouped_matmul, matmul, matmuls};
pub use matmul_shape::{Grouped, Matmul, Matrix};
pub use philox::{philox_uniform, uniform_blocks};
pub use places::{Places, places};
pub use rms_norm::{RmsNorm, rms_norm};
pub use rms_norm_grad::{rms_norm_grad, rms_norm_grad_gamma, rms_norm_grad_partials};
pub use scatter_rows::scatter_rows;
pub use scatter_sum::{Scatter, ScatterSum, scatter_sum};
pub use sum_rows::{SumRows, sum_rows, sum_rows_after};

use crate::kernel::finding::{Finding, Rule};

/// A finding about a kernel that cannot be written for the shape that was requested.
fn refusal(kernel: &str, op: &str, rule: Rule, message: String) -> Box<Finding> {
    Box::new(Finding {
        rule,
        message,
        kernel: kernel.into(),
        statement: String::new(),
        buffer: String::new(),
        block: None,
        op: op.into(),
        origin: None,
    })
}
