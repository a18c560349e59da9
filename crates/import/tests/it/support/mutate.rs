//! Mutations of JSON documents, shared by the property tests and the fuzz targets.

use serde_json::Value;

/// Changes a JSON document in one place; `random` gives numbers.
pub fn mutate(doc: &mut Value, random: &mut impl FnMut() -> u32) {
    let count = size(doc) as u32;
    let donor = pick(doc, random() % count).cloned().unwrap_or(Value::Null);
    let Some(place) = pick_mut(doc, random() % count) else { return };
    const INTS: [i64; 13] = [0, 1, -1, 2, 3, 4, 7, 10, 12, 64, i64::MAX, i64::MIN, 1 << 40];
    match (random() % 8, &mut *place) {
        (0, Value::Array(v)) if !v.is_empty() => {
            let at = random() as usize % v.len();
            v.remove(at);
        }
        (1, Value::Array(v)) if !v.is_empty() => {
            let (at, to) = (random() as usize % v.len(), random() as usize % v.len());
            let item = v[at].clone();
            v.insert(to, item);
        }
        (2, Value::Array(v)) if v.len() > 1 => {
            let (a, b) = (random() as usize % v.len(), random() as usize % v.len());
            v.swap(a, b);
        }
        (0 | 1, Value::Object(m)) if !m.is_empty() => {
            let key = m.keys().nth(random() as usize % m.len()).cloned().unwrap_or_default();
            let value = m.remove(&key);
            if random().is_multiple_of(2) {
                m.insert(WORDS[random() as usize % WORDS.len()].into(), value.unwrap_or(Value::Null));
            }
        }
        (2..=4, Value::Number(_)) => *place = INTS[random() as usize % INTS.len()].into(),
        (2..=4, Value::String(s)) => {
            *s = if random().is_multiple_of(2) {
                WORDS[random() as usize % WORDS.len()].into()
            } else {
                s.chars().take(random() as usize % (s.len() + 1)).collect()
            }
        }
        (5, _) => *place = WORDS[random() as usize % WORDS.len()].into(),
        (_, _) => *place = donor,
    }
}

/// Words that matter to the importer.
const WORDS: &[&str] = &[
    "as_int",
    "as_ints",
    "as_none",
    "as_tensor",
    "as_tensors",
    "as_float",
    "as_bool",
    "as_sym_int",
    "as_sym_ints",
    "as_name",
    "as_expr",
    "as_scalar_type",
    "as_optional_tensors",
    "as_graph",
    "as_string",
    "self",
    "other",
    "dim",
    "size",
    "start",
    "end",
    "step",
    "NaN",
    "Infinity",
    "Symbol('s0', integer=True)",
    "FloorDiv(Symbol('s0'), Integer(0))",
    "Pow(Integer(9), Symbol('s0'))",
    "as_complex",
    "torch.ops.aten.view_as_complex.default",
    "torch.ops.aten.view_as_real.default",
    "torch.ops.aten.conj.default",
    "torch.ops.aten.imag.default",
    "torch.ops.aten.mul.Tensor",
    "torch.ops.aten.fft_irfft2.default",
    "torch.ops.aten.stft.default",
    "torch.ops.aten.add_.Tensor",
    "torch.ops.aten.copy_.default",
    "torch.ops.aten.slice.Tensor",
    "torch.ops.aten.select.int",
    "torch.ops.aten.view.default",
    "torch.ops.aten.reshape.default",
    "torch.ops.aten.expand.default",
    "torch.ops.aten.permute.default",
    "torch.ops.aten.split.Tensor",
    "torch.ops.aten.unbind.int",
    "torch.ops.aten.cat.default",
    "torch.ops.aten.sum.dim_IntList",
    "torch.ops.aten.matmul.default",
    "torch.ops.aten.index.Tensor",
    "torch.ops.aten.index_put_.default",
    "torch.ops.aten.item.default",
    "torch.ops.aten.detach_.default",
    "torch.ops.aten.batch_norm.default",
    "torch.ops.aten.arange.start_step",
    "torch.ops.aten.diagonal.default",
    "torch.ops.higher_order.wrap_with_set_grad_enabled",
    "_operator.floordiv",
    "_operator.pow",
    "torch.sym_ite",
    "user_input",
    "buffer",
];

fn size(v: &Value) -> usize {
    1 + match v {
        Value::Array(a) => a.iter().map(size).sum(),
        Value::Object(m) => m.values().map(size).sum(),
        _ => 0,
    }
}

/// The n-th value of a document, parents first.
fn pick(v: &Value, mut n: u32) -> Option<&Value> {
    if n == 0 {
        return Some(v);
    }
    n -= 1;
    let children: Vec<&Value> = match v {
        Value::Array(a) => a.iter().collect(),
        Value::Object(m) => m.values().collect(),
        _ => vec![],
    };
    for child in children {
        let s = size(child) as u32;
        if n < s {
            return pick(child, n);
        }
        n -= s;
    }
    None
}

fn pick_mut(v: &mut Value, mut n: u32) -> Option<&mut Value> {
    if n == 0 {
        return Some(v);
    }
    n -= 1;
    let children: Vec<&mut Value> = match v {
        Value::Array(a) => a.iter_mut().collect(),
        Value::Object(m) => m.values_mut().collect(),
        _ => vec![],
    };
    for child in children {
        let s = size(child) as u32;
        if n < s {
            return pick_mut(child, n);
        }
        n -= s;
    }
    None
}
