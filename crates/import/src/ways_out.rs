//! Advice on operators that are not known: a sentence for the report. A fact about models,
//! not about devices.

use crate::scope;

/// Says that the target is not supported, and the ways around it.
pub(crate) fn unknown(target: &str) -> String {
    let (namespace, name) = scope::base(target);
    if !matches!(namespace, "aten" | "higher_order") {
        return format!(
            "no operator of the namespace `{}` is registered under this name: write it as one file and register \
             it before importing (CONTRIBUTING.md, \"From outside\")",
            crate::error::shown(namespace)
        );
    }
    let way = match name {
        "lstm" | "gru" | "rnn_tanh" | "rnn_relu" => {
            "give the module the padded batch instead of a packed sequence, and mask the padded steps in the loss"
        }
        "nonzero"
        | "argwhere"
        | "masked_select"
        | "_unique"
        | "unique_dim"
        | "_unique2"
        | "unique_consecutive"
        | "unique_dim_consecutive" => {
            "its shape depends on data: keep the shape and use `where`, `masked_fill` or `topk` with a fixed count"
        }
        "bincount" => {
            "its length depends on data: `torch.zeros(n).index_add(0, index, weights)`, with ones for weights if there are \
             none, counts up to a fixed n"
        }
        "equal" | "allclose" | "item" | "_local_scalar_dense" | "is_nonzero" => {
            "a number in Python depends on data: keep it a tensor, and choose by `torch.where` or `torch.cond`"
        }
        "_ctc_loss" => {
            "export it without decompositions: the call `torch.nn.functional.ctc_loss` is supported"
        }
        "embedding_renorm" => {
            "export it without decompositions, which cut the gradient of the weights that `max_norm` scales"
        }
        "while_loop" | "associative_scan" => {
            "write the loop in Python with a fixed number of steps, or as `scan`: it is unrolled"
        }
        _ => {
            "rewrite the line with other operators, or register it as an operator of your own (CONTRIBUTING.md, \"From \
             outside\"). export(..., decompose=True) replaces it if PyTorch has a decomposition, and loses gradients where \
             the model computes or writes under `no_grad`, which headwater_tools.record then refuses"
        }
    };
    format!("not supported yet: {way}; see docs/errors.md, HW-I015")
}

/// Says that the target is not supported of complex numbers, and the way around it.
pub(crate) fn complex(target: &str) -> String {
    let (namespace, _) = scope::base(target);
    let which = if namespace == "aten" {
        "it is not supported of complex numbers yet"
    } else {
        "it takes or gives complex numbers"
    };
    format!(
        "{which}: apply it to `torch.view_as_real(x)`, a real tensor with a last dimension of 2, or compute with `x.real` and \
         `x.imag` and join them by `torch.complex`; see docs/errors.md, HW-I015"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_a_way_out() {
        let packed = unknown("torch.ops.aten.lstm.data");
        assert!(packed.contains("padded batch") && packed.contains("docs/errors.md"), "{packed}");
        assert!(complex("torch.ops.aten.linalg_eig.default").contains("view_as_real"));
        assert!(unknown("torch.ops.aten.digamma.default").contains("decompose=True"));
        assert!(unknown("torch.ops.mylib.thing.default").contains("`mylib`"));
    }
}
