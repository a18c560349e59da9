//! Synthetic models of any size: deep (a transformer) and wide (thousands of branches that share their
//! input).

use headwater_core::graph::{InputRole, Origin, OutputRole};
use headwater_core::{Attrs, Builder, DType, Graph, OpDef, Registry, TensorType, ValueId};

fn op(name: &str) -> &'static OpDef {
    Registry::standard().by_name(name).expect("a standard operator")
}

const BATCH: usize = 2;
const TOKENS: usize = 8;
const WIDTH: usize = 16;
const HEADS: usize = 2;

struct Model {
    b: Builder,
}

impl Model {
    fn at(&mut self, module: String) {
        self.b.at(Origin {
            node: module.clone(),
            module,
            file: "model.py".into(),
            line: 1,
            ..Origin::default()
        });
    }

    fn linear(&mut self, x: ValueId, module: &str, from: usize, to: usize) -> ValueId {
        self.at(module.into());
        let w = self.b.parameter(&format!("{module}.weight"), DType::F32, &[to, from]);
        let bias = self.b.parameter(&format!("{module}.bias"), DType::F32, &[to]);
        self.b.one(op("linear"), &[x, w, bias], Attrs::new()).unwrap()
    }

    fn norm(&mut self, x: ValueId, module: &str) -> ValueId {
        self.at(module.into());
        let w = self.b.parameter(&format!("{module}.weight"), DType::F32, &[WIDTH]);
        let bias = self.b.parameter(&format!("{module}.bias"), DType::F32, &[WIDTH]);
        let attrs = Attrs::new().with("normalized_shape", [WIDTH as i64]).with("eps", 1e-5);
        self.b.one(op("layer_norm"), &[x, w, bias], attrs).unwrap()
    }

    /// Batch, heads, tokens, width of a head.
    fn heads(&mut self, x: ValueId) -> ValueId {
        let x = self.b.reshape(x, &[BATCH, TOKENS, HEADS, WIDTH / HEADS]).unwrap();
        self.b.permute(x, &[0, 2, 1, 3]).unwrap()
    }

    /// About 27 nodes: attention with an explicit softmax, and a feed-forward part, each with a residual.
    fn layer(&mut self, x: ValueId, i: usize) -> ValueId {
        let h = self.norm(x, &format!("layer.{i}.norm1"));
        let [q, k, v] = ["q", "k", "v"].map(|n| {
            let y = self.linear(h, &format!("layer.{i}.attention.{n}"), WIDTH, WIDTH);
            self.heads(y)
        });
        self.at(format!("layer.{i}.attention"));
        let kt = self.b.transpose_last(k).unwrap();
        let scores = self.b.matmul(q, kt).unwrap();
        let scores = self.b.scale(scores, 0.25).unwrap();
        let p = self.b.one(op("softmax"), &[scores], Attrs::new().with("dim", -1)).unwrap();
        let y = self.b.matmul(p, v).unwrap();
        let y = self.b.permute(y, &[0, 2, 1, 3]).unwrap();
        let y = self.b.reshape(y, &[BATCH, TOKENS, WIDTH]).unwrap();
        let y = self.linear(y, &format!("layer.{i}.attention.out"), WIDTH, WIDTH);
        let x = self.b.add(x, y).unwrap();
        let h = self.norm(x, &format!("layer.{i}.norm2"));
        let h = self.linear(h, &format!("layer.{i}.up"), WIDTH, 2 * WIDTH);
        let h = self.b.one(op("gelu"), &[h], Attrs::new()).unwrap();
        let h = self.linear(h, &format!("layer.{i}.down"), 2 * WIDTH, WIDTH);
        self.b.add(x, h).unwrap()
    }

    fn finish(mut self, y: ValueId) -> Graph {
        let ty = self.b.ty(y).clone();
        let loss = self.b.sum(y, &(0..ty.shape.rank()).collect::<Vec<_>>(), false).unwrap();
        self.b.output("loss", loss, OutputRole::User);
        self.b.finish()
    }
}

/// A transformer of at least `nodes` nodes.
pub fn deep(nodes: usize) -> Graph {
    let mut m = Model { b: Builder::new() };
    let mut x = m.b.input("x", TensorType::new(DType::F32, [BATCH, TOKENS, WIDTH]), InputRole::User);
    for i in 0.. {
        x = m.layer(x, i);
        if m.b.graph().nodes.len() >= nodes {
            break;
        }
    }
    m.finish(x)
}

/// Branches of four nodes that all read the same input and are added up: at least `nodes` nodes.
pub fn wide(nodes: usize) -> Graph {
    let mut m = Model { b: Builder::new() };
    let x = m.b.input("x", TensorType::new(DType::F32, [BATCH, WIDTH]), InputRole::User);
    let scale = m.b.parameter("scale", DType::F32, &[WIDTH]);
    let mut sum = None;
    for i in 0.. {
        let own = m.b.parameter(&format!("branch.{i}.bias"), DType::F32, &[WIDTH]);
        let y = m.b.mul(x, scale).unwrap();
        let y = m.b.add(y, own).unwrap();
        let y = m.b.one(op("gelu"), &[y], Attrs::new()).unwrap();
        sum = Some(match sum {
            Some(s) => m.b.add(s, y).unwrap(),
            None => y,
        });
        if m.b.graph().nodes.len() >= nodes {
            break;
        }
    }
    let y = sum.expect("one branch");
    m.finish(y)
}
