//! Elementary functions in machine code: [`Ops`], as instructions to be selected.

use super::assembler::op;
use super::ir::{Ins, Value};
use super::select::Builder;
use headwater_core::expr::elementary::Ops;

impl Ops for Builder<'_> {
    type V = Value;
    type M = Value;

    fn num(&mut self, x: f32) -> Value {
        self.push(Ins::Num(x.to_bits()))
    }
    fn add(&mut self, a: Value, b: Value) -> Value {
        self.two(op::ADD, a, b)
    }
    fn sub(&mut self, a: Value, b: Value) -> Value {
        self.two(op::SUB, a, b)
    }
    fn mul(&mut self, a: Value, b: Value) -> Value {
        self.two(op::MUL, a, b)
    }
    fn div(&mut self, a: Value, b: Value) -> Value {
        self.two(op::DIV, a, b)
    }
    fn fma(&mut self, a: Value, b: Value, c: Value) -> Value {
        self.push(Ins::Fma(a, b, c))
    }
    fn max(&mut self, a: Value, b: Value) -> Value {
        self.two(op::MAX, a, b)
    }
    fn min(&mut self, a: Value, b: Value) -> Value {
        self.two(op::MIN, a, b)
    }
    fn lt(&mut self, a: Value, b: Value) -> Value {
        self.compare(17, a, b)
    }
    fn eq(&mut self, a: Value, b: Value) -> Value {
        self.compare(0, a, b)
    }
    fn is_nan(&mut self, a: Value) -> Value {
        self.compare(3, a, a)
    }
    fn select(&mut self, mask: Value, a: Value, b: Value) -> Value {
        self.push(Ins::Blend { mask, a: b, b: a })
    }
    fn bits(&mut self, x: u32) -> Value {
        self.push(Ins::Num(x))
    }
    fn and(&mut self, a: Value, b: Value) -> Value {
        self.two(op::AND, a, b)
    }
    fn or(&mut self, a: Value, b: Value) -> Value {
        self.two(op::OR, a, b)
    }
    fn sub_int(&mut self, a: Value, b: Value) -> Value {
        self.two(op::SUB_INT, a, b)
    }
    fn shift_left(&mut self, a: Value, n: u8) -> Value {
        self.push(Ins::Shift(6, a, n))
    }
    fn shift_right(&mut self, a: Value, n: u8) -> Value {
        self.push(Ins::Shift(4, a, n))
    }
    fn lookup(&mut self, table: [u32; 8], a: Value) -> Value {
        let table = self.push(Ins::Eight(table));
        self.two(op::PICK, a, table)
    }
    fn int_to_float(&mut self, a: Value) -> Value {
        self.push(Ins::One(op::FROM_INT, a, None))
    }
}
