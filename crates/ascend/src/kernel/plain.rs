//! Fields of instructions that are not operands: numbers and words after `key=`.

use super::cursor::Cursor;
use super::op::{Layout, Quant};
use super::operand::{AtomicOp, Compare, Fill, Order, Round, Scale, UnitFlag};
use super::scalar::{Real, Value};
use super::text::float;
use super::{Pipe, Program, VarId};
use headwater_core::Result;

/// A field as text.
pub(super) trait Plain: Sized {
    fn print(&self, program: &Program) -> String;
    fn parse(c: &mut Cursor) -> Result<Self>;
}

impl Plain for u32 {
    fn print(&self, _: &Program) -> String {
        self.to_string()
    }

    fn parse(c: &mut Cursor) -> Result<Self> {
        c.number("a number of at most 32 bits")
    }
}

impl Plain for bool {
    fn print(&self, _: &Program) -> String {
        self.to_string()
    }

    fn parse(c: &mut Cursor) -> Result<Self> {
        match c.word()? {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(c.fail("`true` or `false` before this")),
        }
    }
}

impl Plain for Vec<u32> {
    fn print(&self, _: &Program) -> String {
        format!("{self:?}")
    }

    fn parse(c: &mut Cursor) -> Result<Self> {
        c.expect("[")?;
        c.list("]", Plain::parse)
    }
}

impl<const N: usize> Plain for [u32; N] {
    fn print(&self, _: &Program) -> String {
        format!("{self:?}")
    }

    fn parse(c: &mut Cursor) -> Result<Self> {
        Vec::parse(c)?.try_into().map_err(|_| c.fail(&format!("{N} numbers before this")))
    }
}

impl Plain for VarId {
    fn print(&self, program: &Program) -> String {
        program.vars.get(self.0 as usize).map_or("?".into(), |v| v.name.clone())
    }

    fn parse(c: &mut Cursor) -> Result<Self> {
        c.var("a variable")
    }
}

impl Plain for Fill {
    fn print(&self, _: &Program) -> String {
        self.to_string()
    }

    fn parse(c: &mut Cursor) -> Result<Self> {
        c.value().map(Fill)
    }
}

impl Plain for Scale {
    fn print(&self, _: &Program) -> String {
        self.map_or(String::new(), |x| float(x.0))
    }

    fn parse(c: &mut Cursor) -> Result<Self> {
        match c.value()? {
            Value::Float(x) => Ok(Some(Real(x))),
            Value::Int(_) => Err(c.fail("a float before this")),
        }
    }
}

macro_rules! plain_words {
    ($($ty:ty)+) => { $(
        impl Plain for $ty {
            fn print(&self, _: &Program) -> String {
                self.name().into()
            }

            fn parse(c: &mut Cursor) -> Result<Self> {
                c.one_of(<$ty>::from_name, concat!("one of the words for ", stringify!($ty)))
            }
        }
    )+ };
}

plain_words!(Pipe Round Compare UnitFlag Layout Quant);

macro_rules! optional {
    ($($ty:ty)+) => { $(
        impl Plain for Option<$ty> {
            fn print(&self, program: &Program) -> String {
                self.as_ref().map_or(String::new(), |x| Plain::print(x, program))
            }

            fn parse(c: &mut Cursor) -> Result<Self> {
                Plain::parse(c).map(Some)
            }
        }
    )+ };
}

plain_words!(AtomicOp Order);
optional!(AtomicOp Order Fill);
