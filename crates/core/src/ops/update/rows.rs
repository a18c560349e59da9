//! Rows of a table by their numbers, read and written. An optimizer uses them on a gradient that has only the
//! rows that were read
//! ([`EMBEDDING_SPARSE_BACKWARD`](crate::ops::index::embedding_grad::EMBEDDING_SPARSE_BACKWARD)). Numbers
//! ascend, followed by -1 for missing rows, as that operator has them.

use crate::diagnostic::Result;
use crate::dtype::DType;
use crate::ops::{Body, Case, Cost, Derivative, OpCx, OpDef, Precision, Sample};
use crate::tensor::{Data, Tensor, TensorType};
use crate::{ensure, fail};

/// `(table [rows, width], numbers [n])` to the rows of these numbers, `[n, width]`; zeros for -1.
pub static GATHER_ROWS: OpDef = OpDef {
    name: "gather_rows",
    schemas: &["headwater::gather_rows(Tensor table, Tensor numbers) -> Tensor"],
    infer: |cx| {
        let (table, count) = problem(cx)?;
        Ok(vec![TensorType::new(table.dtype, [count, table.shape[1]])])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Same,
    cost: Cost::PerOutput(0),
    body: Body::Kernel(|cx, inputs, outs| {
        let (table, numbers) = operands(inputs)?;
        let width = outs[0].shape[1];
        let rows = written(numbers, cx.shape(0)?[0])?;
        let places = rows.iter().flat_map(|&row| row * width..(row + 1) * width);
        let count = outs[0].shape.numel();
        Ok(vec![match &table.data {
            Data::Float(x) => {
                let mut rows: Vec<f64> = places.map(|i| x[i]).collect();
                rows.resize(count, 0.0);
                Tensor::float(outs[0].dtype, outs[0].shape.clone(), rows)
            }
            Data::Int(x) => {
                let mut rows: Vec<i64> = places.map(|i| x[i]).collect();
                rows.resize(count, 0);
                Tensor::int(outs[0].dtype, outs[0].shape.clone(), rows)
            }
        }])
    }),
    cases: || {
        let ascending = Sample::Values(vec![0.0, 3.0, -1.0]);
        vec![
            case("some", &[3], ascending.clone()),
            case("none", &[2], Sample::Values(vec![-1.0, -1.0])),
            case("no numbers", &[0], Sample::Values(vec![])),
        ]
    },
};

/// `(table [rows, width], numbers [n], values [n, width])` to the table with the rows of these numbers
/// replaced by `values`, in place.
pub static UPDATE_ROWS: OpDef = OpDef {
    name: "update_rows",
    schemas: &["headwater::update_rows(Tensor table, Tensor numbers, Tensor values) -> Tensor"],
    infer: |cx| {
        let (table, count) = problem(cx)?;
        let values = TensorType::new(table.dtype, [count, table.shape[1]]);
        ensure!(*cx.ty(2)? == values, Shape, "the new rows are {}, they must be {values}", cx.ty(2)?);
        Ok(vec![table.clone()])
    },
    derivative: Derivative::NotDifferentiable("an optimizer step is not differentiated"),
    precision: Precision::Same,
    cost: Cost::Custom(|_, _| 0.0),
    body: Body::Update(|_, inputs, outs| {
        let (table, numbers) = operands(inputs)?;
        let values =
            inputs.get(2).copied().flatten().ok_or_else(|| fail!(Attribute, "input 2 is missing"))?;
        let width = outs[0].shape[1];
        let rows = written(numbers, outs[0].shape[0])?;
        let mut out = table.clone();
        for (i, row) in rows.into_iter().enumerate() {
            let (to, from) = (row * width..(row + 1) * width, i * width..(i + 1) * width);
            match (&mut out.data, &values.data) {
                (Data::Float(x), Data::Float(y)) => x[to].copy_from_slice(&y[from]),
                (Data::Int(x), Data::Int(y)) => x[to].copy_from_slice(&y[from]),
                _ => return Err(fail!(DType, "the new rows and the table are of two classes")),
            }
        }
        Ok(vec![out])
    }),
    cases: || {
        let ascending = Sample::Values(vec![0.0, 3.0, -1.0]);
        vec![
            case("some", &[3], ascending).f(&[3, 2]),
            case("none", &[2], Sample::Values(vec![-1.0, -1.0])).f(&[2, 2]),
            case("no numbers", &[0], Sample::Values(vec![])).f(&[0, 2]),
        ]
    },
};

fn case(name: &'static str, shape: &[usize], numbers: Sample) -> Case {
    Case::new(name).f(&[5, 2]).arg(DType::I64, shape, numbers)
}

/// The table's type and how many numbers there are.
fn problem<'a>(cx: &OpCx<'a>) -> Result<(&'a TensorType, usize)> {
    let (table, numbers) = (cx.inputs.first().copied().flatten(), cx.ty(1)?);
    let table = table.ok_or_else(|| fail!(Attribute, "input 0 is missing"))?;
    ensure!(table.shape.rank() == 2, Shape, "a table is [rows, width], got {table}");
    let vector = numbers.dtype == DType::I64 && numbers.shape.rank() == 1;
    ensure!(vector, Shape, "numbers of rows are i64 [n], got {numbers}");
    Ok((table, numbers.shape[0]))
}

fn operands<'a>(inputs: &[Option<&'a Tensor>]) -> Result<(&'a Tensor, &'a [i64])> {
    match inputs {
        [Some(table), Some(numbers), ..] => Ok((table, numbers.ints())),
        _ => Err(fail!(Attribute, "an input is missing")),
    }
}

/// The valid numbers, of rows of a table of `rows` rows.
///
/// # Errors
/// `Value` if they do not ascend, or one is not below `rows`.
pub fn written(numbers: &[i64], rows: usize) -> Result<Vec<usize>> {
    let count = numbers.iter().position(|&n| n == -1).unwrap_or(numbers.len());
    let (there, behind) = numbers.split_at(count);
    let ascend = there.windows(2).all(|w| w[0] < w[1]) && behind.iter().all(|&n| n == -1);
    ensure!(ascend, Value, "numbers of rows must ascend, with -1 behind the last alone");
    let inside = |&n: &i64| usize::try_from(n).ok().filter(|&n| n < rows);
    let all = there.iter().map(inside).collect::<Option<Vec<usize>>>();
    all.ok_or_else(|| fail!(Value, "a number of a row is outside the table of {rows} rows"))
}
