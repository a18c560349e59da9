//! Instructions. Each is stated once, in the table below: its name, operands and meaning. From the table come
//! the types, the text form (printed and parsed) and the visits to operands.
//!
//! `S` is a scalar: an expression ([`Scalar`]) in a program, a number ([`super::Value`]) in what a core
//! issues.
//!
//! Pipes: an instruction runs on the pipe that [`Instr::pipe`] gives. Instructions of one pipe start in
//! order, but a dependent one still needs a barrier of the pipe; instructions of different pipes need a flag.

use super::cursor::Cursor;
use super::op::*;
use super::operand::{AtomicOp, Compare, Fill, Mask, Order, Over, Round, Scale, UnitFlag, Vector, View};
use super::plain::Plain;
use super::scalar::Scalar;
use super::text::{self, Show};
use super::{Pipe, Program, VarId};
use headwater_core::Result as CoreResult;

macro_rules! map_field {
    (scalar $f:ident $x:expr) => {
        $f(&$x)?
    };
    (zero $f:ident $x:expr) => {
        $f(&$x)?
    };
    (view $f:ident $x:expr) => {
        $x.map($f)?
    };
    (vector $f:ident $x:expr) => {
        $x.map($f)?
    };
    (mask $f:ident $x:expr) => {
        $x.map($f)?
    };
    (over $f:ident $x:expr) => {
        $x.map($f)?
    };
    (optview $f:ident $x:expr) => {
        match &$x {
            Some(x) => Some(x.map($f)?),
            None => None,
        }
    };
    (views $f:ident $x:expr) => {
        $x.iter().map(|x| x.map($f)).collect::<Result<Vec<_>, _>>()?
    };
    (plain $f:ident $x:expr) => {
        $x.clone()
    };
    (opt $f:ident $x:expr) => {
        $x.clone()
    };
}

macro_rules! print_field {
    (zero $out:ident $p:ident $n:expr, $x:expr) => {
        if !$x.is_zero() {
            text::key(&mut $out, $n, &$x.show($p));
        }
    };
    (optview $out:ident $p:ident $n:expr, $x:expr) => {
        if let Some(x) = &$x {
            text::key(&mut $out, $n, &x.show($p));
        }
    };
    (views $out:ident $p:ident $n:expr, $x:expr) => {
        text::key(
            &mut $out,
            $n,
            &format!("[{}]", $x.iter().map(|x| x.show($p)).collect::<Vec<_>>().join(", ")),
        );
    };
    (over $out:ident $p:ident $n:expr, $x:expr) => {
        text::over(&mut $out, &$x, $p)
    };
    (opt $out:ident $p:ident $n:expr, $x:expr) => {
        if $x != Default::default() {
            text::key(&mut $out, $n, &$x.print($p));
        }
    };
    (plain $out:ident $p:ident $n:expr, $x:expr) => {
        text::key(&mut $out, $n, &$x.print($p))
    };
    ($kind:ident $out:ident $p:ident $n:expr, $x:expr) => {
        text::key(&mut $out, $n, &$x.show($p))
    };
}

macro_rules! parse_field {
    (scalar $c:ident $n:expr) => {{
        $c.key($n)?;
        $c.scalar()?
    }};
    (zero $c:ident $n:expr) => {
        if $c.try_key($n) { $c.scalar()? } else { Scalar::Int(0) }
    };
    (view $c:ident $n:expr) => {{
        $c.key($n)?;
        $c.view()?
    }};
    (vector $c:ident $n:expr) => {{
        $c.key($n)?;
        $c.vector()?
    }};
    (mask $c:ident $n:expr) => {{
        $c.key($n)?;
        $c.mask()?
    }};
    (over $c:ident $n:expr) => {
        $c.over()?
    };
    (optview $c:ident $n:expr) => {
        if $c.try_key($n) { Some($c.view()?) } else { None }
    };
    (views $c:ident $n:expr) => {{
        $c.key($n)?;
        $c.views()?
    }};
    (plain $c:ident $n:expr) => {{
        $c.key($n)?;
        Plain::parse($c)?
    }};
    (opt $c:ident $n:expr) => {
        if $c.try_key($n) { Plain::parse($c)? } else { Default::default() }
    };
}

macro_rules! instructions {
    ($(
        $(#[$doc:meta])*
        $name:ident $([$op:ident])? $(($word:literal))? {
            $($(#[$fdoc:meta])* $field:ident : $kind:ident $ty:ty,)*
        }
    )+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, PartialEq, Debug)]
            pub struct $name<S = Scalar> {
                $(
                    /// Which function.
                    pub op: $op,
                )?
                $($(#[$fdoc])* pub $field: $ty,)*
            }

            impl<S> From<$name<S>> for Instr<S> {
                fn from(x: $name<S>) -> Instr<S> {
                    Instr::$name(x)
                }
            }
        )+

        /// An instruction.
        #[derive(Clone, PartialEq, Debug)]
        pub enum Instr<S = Scalar> {
            $($(#[$doc])* $name($name<S>),)+
            /// Orders instructions of one pipe, of all, or of all cores.
            Barrier(Barrier),
        }

        impl<S> Instr<S> {
            /// Name in the text form.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Instr::$name(_x) => instructions!(@word _x $([$op])? $(($word))?),)+
                    Instr::Barrier(barrier) => barrier.name(),
                }
            }

            /// The same instruction with other scalars.
            ///
            /// # Errors
            /// Errors that `f` returns.
            pub fn map<T, E>(&self, f: &mut impl FnMut(&S) -> Result<T, E>) -> Result<Instr<T>, E> {
                Ok(match self {
                    $(Instr::$name(x) => Instr::$name($name {
                        $(op: instructions!(@op x $op),)?
                        $($field: map_field!($kind f x.$field),)*
                    }),)+
                    Instr::Barrier(barrier) => Instr::Barrier(*barrier),
                })
            }

            /// Calls `f` with the name and view of every operand in memory.
            pub fn views(&self, f: &mut dyn FnMut(&'static str, &View<S>)) {
                match self {
                    $(Instr::$name(_x) => { $(instructions!(@views $kind f _x $field);)* })+
                    Instr::Barrier(_) => {}
                }
            }
        }

        impl Instr {
            /// Reads the operands of the instruction `word`; `None` if there is no such instruction.
            pub(super) fn parse(word: &str, c: &mut Cursor) -> Option<CoreResult<Instr>> {
                if let Some(barrier) = Barrier::from_name(word) {
                    return Some(Ok(Instr::Barrier(barrier)));
                }
                $(instructions!(@parse word c $name $([$op])? $(($word))? { $($field $kind)* });)+
                None
            }
        }

        impl<S: Show> Instr<S> {
            /// The text form, with the names of `program`.
            pub fn print(&self, program: &Program) -> String {
                let mut out = self.name().to_string();
                match self {
                    $(Instr::$name(_x) => {
                        $(print_field!($kind out program stringify!($field), _x.$field);)*
                    })+
                    Instr::Barrier(_) => {}
                }
                out
            }
        }
    };
    (@word $x:ident [$op:ident]) => { $x.op.name() };
    (@word $x:ident ($word:literal)) => { $word };
    (@op $x:ident $op:ident) => { $x.op };
    (@views view $f:ident $x:ident $field:ident) => { $f(stringify!($field), &$x.$field) };
    (@views vector $f:ident $x:ident $field:ident) => { $f(stringify!($field), &$x.$field.view) };
    (@views optview $f:ident $x:ident $field:ident) => {
        if let Some(v) = &$x.$field { $f(stringify!($field), v) }
    };
    (@views views $f:ident $x:ident $field:ident) => { for v in &$x.$field { $f(stringify!($field), v) } };
    (@views $kind:ident $f:ident $x:ident $field:ident) => {};
    (@parse $w:ident $c:ident $name:ident [$op:ident] { $($field:ident $kind:ident)* }) => {
        if let Some(op) = $op::from_name($w) {
            let read = |c: &mut Cursor| -> CoreResult<Instr> {
                Ok($name { op, $($field: parse_field!($kind c stringify!($field)),)* }.into())
            };
            return Some(read($c));
        }
    };
    (@parse $w:ident $c:ident $name:ident ($word:literal) { $($field:ident $kind:ident)* }) => {
        if $w == $word {
            let read = |c: &mut Cursor| -> CoreResult<Instr> {
                Ok($name { $($field: parse_field!($kind c stringify!($field)),)* }.into())
            };
            return Some(read($c));
        }
    };
}

instructions! {
    /// Copies blocks of 32 bytes between memories: `blocks` runs of `len` blocks of 32 bytes each.
    ///
    /// GM↔UB, GM→L1, UB→UB, L1→BT (units of 64 bytes); on 310P also UB↔L1. Both ends are whole blocks; in GM
    /// any multiple of the element's size may be the beginning.
    DataCopy ("data_copy") {
        /// Destination.
        dst: view View<S>,
        /// Source.
        src: view View<S>,
        /// Number of runs, 1 to 4095.
        blocks: scalar S,
        /// Length of a run in units of 32 bytes, 1 to 65535.
        len: scalar S,
        /// From the end of a run to the beginning of the next, in units of 32 bytes, up to 65535.
        src_gap: zero S,
        /// The same in `dst`.
        dst_gap: zero S,
        /// To GM: how the old content is combined.
        atomic: opt Option<AtomicOp>,
    }

    /// Copies rows of any number of bytes between GM and UB (A2): into UB each row is filled up to 32 bytes,
    /// to GM the exact bytes are written.
    DataCopyPad ("data_copy_pad") {
        /// Destination.
        dst: view View<S>,
        /// Source.
        src: view View<S>,
        /// Number of rows, 1 to 4095.
        blocks: scalar S,
        /// Bytes of a row, a multiple of the element's size, up to 2097151.
        bytes: scalar S,
        /// From the end of a row to the beginning of the next: bytes in GM, units of 32 bytes in UB.
        src_gap: zero S,
        /// The same in `dst`.
        dst_gap: zero S,
        /// Elements of filler before each row, at most 32 bytes.
        left: opt u32,
        /// Elements of filler after each row, at most 32 bytes.
        right: opt u32,
        /// Value of fillers. If absent: the row's first element where there are no `left` and `right`, else
        /// undefined.
        fill: opt Option<Fill>,
        /// To GM: how the old content is combined.
        atomic: opt Option<AtomicOp>,
    }

    /// GM rows into L1 fractals (A2): element (n, d) of matrix i is at
    /// `i · dst_matrix + (d / C0) · dst_c0 · C0 + n · dst_row · C0 + d % C0`, where C0 elements are 32 bytes.
    CopyNdToNz ("copy_nd2nz") {
        /// Destination, in L1.
        dst: view View<S>,
        /// Source, in GM.
        src: view View<S>,
        /// Matrices, up to 4095.
        matrices: scalar S,
        /// Rows of each, up to 16384.
        n: scalar S,
        /// Elements of a row, up to 65535.
        d: scalar S,
        /// From one matrix to the next in GM, in elements.
        src_matrix: zero S,
        /// From one row to the next in GM, in elements, up to 65535.
        src_row: scalar S,
        /// From one column of fractals to the next in L1, in units of 32 bytes, up to 16384.
        dst_c0: scalar S,
        /// From one row to the next in L1, in units of 32 bytes, up to 16384.
        dst_row: scalar S,
        /// From one matrix to the next in L1, in elements, up to 65535.
        dst_matrix: zero S,
    }

    /// Moves fractals of 512 bytes: fractal `start + src_stride · i` to fractal `(dst_gap + 1) · i`. From L1
    /// to L0A or L0B, or from GM to L1, L0A or L0B.
    LoadData2d ("load_data_2d") {
        /// Destination.
        dst: view View<S>,
        /// Source.
        src: view View<S>,
        /// First fractal, up to 65535.
        start: zero S,
        /// Number of fractals, up to 255.
        repeat: scalar S,
        /// From one fractal to the next in `src`, in fractals.
        src_stride: scalar S,
        /// Fractals left out between two in `dst`.
        dst_gap: zero S,
        /// True if the 16 × 16 elements of a fractal are transposed (16-bit types, L1 to L0).
        transpose: opt bool,
    }

    /// Moves square blocks of fractals, transposing them, from L1 to L0B (A2: also L0A). With 16-bit types a
    /// block is one fractal, with 32-bit types two.
    LoadDataTransposed ("load_data_transposed") {
        /// Destination.
        dst: view View<S>,
        /// Source.
        src: view View<S>,
        /// First block.
        start: zero S,
        /// Number of blocks, up to 255.
        repeat: scalar S,
        /// From one block to the next in `src`, in blocks.
        src_stride: scalar S,
        /// Fractals left out between two blocks in `dst`.
        dst_gap: zero S,
        /// Fractals left out between the fractals of a block in `dst`.
        dst_fractal_gap: zero S,
    }

    /// Moves a tile of the matrix that im2col makes of an image in NC1HWC0 in L1 into L0A or L0B. With an
    /// image of one row and a filter of one point it moves a tile of a matrix in NZ.
    ///
    /// Row m of the matrix is a position of the filter, column k is (channel block, filter row, filter
    /// column, channel). There are two forms: all in one, and `pro`, in front of which registers take the
    /// size and the padding. They have rules of their own: on 310P only `pro` takes whole blocks of channels.
    LoadData3d ("load_data_3d") {
        /// Destination.
        dst: view View<S>,
        /// Source: the image's beginning.
        src: view View<S>,
        /// Height and width of the image, up to 32767.
        size: plain [u32; 2],
        /// Channels: a fractal's columns, or others of few remainders, by the form and the type.
        channels: scalar S,
        /// Columns of the tile, whole fractals.
        k: scalar S,
        /// Rows of the tile, whole fractals, of 32-bit types any.
        m: scalar S,
        /// First column, of a fractal.
        k_start: zero S,
        /// First row, up to 32767, of a fractal, of 32-bit types any.
        m_start: zero S,
        /// Strides of the filter, vertical and horizontal, 1 to 63.
        stride: plain [u32; 2],
        /// Height and width of the filter, 1 to 255.
        filter: plain [u32; 2],
        /// Dilation, vertical and horizontal, 1 to 255.
        dilation: plain [u32; 2],
        /// Padding: left, right, top, bottom, up to 255.
        pad: plain [u32; 4],
        /// Value of padding.
        pad_value: zero S,
        /// True if the tile is transposed on its way to L0A; to L0B it is in any case.
        transpose: opt bool,
        /// True for the form `LoadData3DParamsV2Pro`.
        pro: opt bool,
    }

    /// Fills L1, L0A or L0B: `repeat` runs of `len` units of 32 bytes (L1) or 512 bytes (L0).
    InitConst ("init_const") {
        /// Destination.
        dst: view View<S>,
        /// Number of runs, up to 32767.
        repeat: scalar S,
        /// Units of a run, up to 32767.
        len: scalar S,
        /// Units left out between two runs.
        gap: zero S,
        /// Value of each element.
        value: scalar S,
    }

    /// Product of fractals, `c = a · b`, or `c += a · b`; accumulated in c's type.
    ///
    /// a (m × k) in L0A, b (k × n) in L0B, c (m × n) in L0C. Element (i, j) of a is in fractal
    /// `(i / 16) · ⌈k / K0⌉ + j / K0`, b's (j, l) in fractal `(j / K0) · ⌈n / 16⌉ + l / 16` with columns
    /// inside it, c's (i, l) in fractal `(l / 16) · ⌈m / 16⌉ + i / 16`; K0 elements are 32 bytes.
    Mmad ("mmad") {
        /// Accumulators, in L0C.
        c: view View<S>,
        /// Left operand, in L0A.
        a: view View<S>,
        /// Right operand, in L0B.
        b: view View<S>,
        /// Row that c begins with, in the bias table (A2).
        bias: optview Option<View<S>>,
        /// Rows of c, up to 4095.
        m: scalar S,
        /// Columns of c, up to 4095.
        n: scalar S,
        /// Length of the sums, up to 4095.
        k: scalar S,
        /// Not 0: c begins at zero (or the bias); 0: at what it holds.
        init: scalar S,
        /// Handshake with `fixpipe`.
        unit_flag: opt UnitFlag,
        /// True if f32 is rounded to HF32, at twice the rate.
        hf32: opt bool,
    }

    /// Results out of L0C, to GM or L1 (A2), converted on the way.
    Fixpipe ("fixpipe") {
        /// Destination.
        dst: view View<S>,
        /// Source, in L0C.
        src: view View<S>,
        /// Columns, up to 4095; of fractals a multiple of 16.
        n: scalar S,
        /// Rows, up to 8192.
        m: scalar S,
        /// From one column of fractals to the next in L0C, in rows of 16 elements: m rounded up to 16, or
        /// more.
        src_stride: scalar S,
        /// Rows: elements from one to the next. Fractals: from one column of them to the next, in units of 32
        /// bytes.
        dst_stride: scalar S,
        /// Layout of the result.
        layout: plain Layout,
        /// Conversion.
        quant: plain Quant,
        /// True if negative results become 0.
        relu: opt bool,
        /// Handshake with `mmad`.
        unit_flag: opt UnitFlag,
        /// To GM: how the old content is combined.
        atomic: opt Option<AtomicOp>,
    }

    /// Results out of L0C to UB (310P), on the vector pipe: `blocks` runs of `len` fractals, converted to
    /// `dst`'s type.
    CopyL0c ("copy_l0c") {
        /// Destination, in UB.
        dst: view View<S>,
        /// Source, in L0C.
        src: view View<S>,
        /// Number of runs, up to 4095.
        blocks: scalar S,
        /// Fractals of a run.
        len: scalar S,
        /// Fractals left out between two runs in L0C.
        src_gap: zero S,
        /// Units of 32 bytes left out between two runs in UB.
        dst_gap: zero S,
        /// True if negative results become 0.
        relu: opt bool,
    }

    /// `dst = op(src)`.
    UnaryOp [Unary] {
        /// Result.
        dst: vector Vector<S>,
        /// Operand.
        src: vector Vector<S>,
        /// Elements.
        over: over Over<S>,
    }

    /// `dst = op(src0, src1)`.
    BinaryOp [Binary] {
        /// Result.
        dst: vector Vector<S>,
        /// Operand.
        src0: vector Vector<S>,
        /// Operand.
        src1: vector Vector<S>,
        /// Elements.
        over: over Over<S>,
    }

    /// `dst = op(src, scalar)`.
    ScaledOp [Scaled] {
        /// Result.
        dst: vector Vector<S>,
        /// Operand.
        src: vector Vector<S>,
        /// Scalar, rounded to the operand's type.
        scalar: scalar S,
        /// Elements.
        over: over Over<S>,
    }

    /// `dst = value`.
    Duplicate ("duplicate") {
        /// Result.
        dst: vector Vector<S>,
        /// Value, rounded to the result's type.
        value: scalar S,
        /// Elements.
        over: over Over<S>,
    }

    /// `dst = src` in dst's type. Where widths differ, a repeat is 256 bytes of the wider type.
    Cast ("cast") {
        /// Result.
        dst: vector Vector<S>,
        /// Operand.
        src: vector Vector<S>,
        /// Rounding.
        round: plain Round,
        /// Factor of i32 to f16.
        scale: opt Scale,
        /// Elements.
        over: over Over<S>,
    }

    /// Bits of `src0 ? src1`, lowest first; repeats are contiguous.
    CompareOp ("compare") {
        /// Bits, as u8, in UB.
        dst: view View<S>,
        /// Operand.
        src0: vector Vector<S>,
        /// Operand.
        src1: vector Vector<S>,
        /// Comparison.
        cmp: plain Compare,
        /// Elements; counted ones are a multiple of 256 bytes.
        over: over Over<S>,
    }

    /// Bits of `src ? scalar`, as [`CompareOp`].
    CompareScalar ("compare_scalar") {
        /// Bits, as u8, in UB.
        dst: view View<S>,
        /// Operand.
        src: vector Vector<S>,
        /// The number that elements are compared with.
        scalar: scalar S,
        /// Comparison.
        cmp: plain Compare,
        /// Elements; counted ones are a multiple of 256 bytes.
        over: over Over<S>,
    }

    /// `dst = bit ? src0 : src1`; bits as [`CompareOp`] writes them.
    Select ("select") {
        /// Result.
        dst: vector Vector<S>,
        /// Bits, as u8, in UB.
        mask: view View<S>,
        /// Values for bits of 1.
        src0: vector Vector<S>,
        /// Values for bits of 0.
        src1: vector Vector<S>,
        /// Elements.
        over: over Over<S>,
    }

    /// `dst = bit ? src : scalar`; bits as [`CompareOp`] writes them.
    SelectScalar ("select_scalar") {
        /// Result.
        dst: vector Vector<S>,
        /// Bits, as u8, in UB.
        mask: view View<S>,
        /// Values for bits of 1.
        src: vector Vector<S>,
        /// Value for bits of 0.
        scalar: scalar S,
        /// Elements.
        over: over Over<S>,
    }

    /// Reduction of each repeat (whole), each block or each pair of elements; the results of a repeat are
    /// contiguous.
    Reduce [Reduction] {
        /// Results; of whole repeats aligned to an element, else to 8 elements or more.
        dst: view View<S>,
        /// Operand.
        src: vector Vector<S>,
        /// Elements of a repeat that take part.
        mask: mask Mask<S>,
        /// Number of repeats, up to 255.
        repeat: scalar S,
        /// From the results of one repeat to those of the next: whole: results; block: 8 results; pair: 128
        /// bytes.
        dst_repeat: plain u32,
        /// Results that maxima and minima of whole repeats write.
        order: opt Option<Order>,
    }

    /// `dst[i] = src` at `base + offsets[i]` bytes.
    Gather ("gather") {
        /// Result, 16 or 32 bits wide.
        dst: view View<S>,
        /// Table, in UB.
        src: view View<S>,
        /// Offsets in bytes from the table's beginning, u32.
        offsets: view View<S>,
        /// Added to the offsets, in bytes.
        base: zero S,
        /// Number of elements.
        count: scalar S,
    }

    /// The elements of `src` that a pattern picks, compacted.
    GatherMask ("gather_mask") {
        /// Result.
        dst: view View<S>,
        /// Operand.
        src: vector Vector<S>,
        /// 1: even elements, 2: odd ones, 3 to 6: the 1st, 2nd, 3rd or 4th of four, 7: all.
        pattern: plain u32,
        /// Elements of a repeat that are looked at.
        count: scalar S,
        /// Number of repeats.
        repeat: scalar S,
    }

    /// Each element fills a block: eight elements in a repeat.
    Brcb ("brcb") {
        /// Result.
        dst: vector Vector<S>,
        /// Elements, contiguous: eight to a repeat.
        src: view View<S>,
        /// Number of repeats, up to 255.
        repeat: scalar S,
    }

    /// `dst[i] = first + i`.
    Ramp ("ramp") {
        /// Result.
        dst: view View<S>,
        /// First value.
        first: scalar S,
        /// Number of elements.
        count: scalar S,
    }

    /// Transposes 16 × 16 elements of 16 bits, contiguous.
    Transpose ("transpose") {
        /// Result.
        dst: view View<S>,
        /// Operand.
        src: view View<S>,
    }

    /// Transposes 16 rows of 32 bytes: element i of row j becomes element j of row i, rows given one by one.
    /// 32-bit types: 8 elements to a row, and results 2i and 2i + 1 are the halves of column i.
    TransposeRows ("transpose_rows") {
        /// Sixteen rows of results.
        dst: views Vec<View<S>>,
        /// Sixteen rows.
        src: views Vec<View<S>>,
        /// Number of repeats, up to 255.
        repeat: scalar S,
        /// From one repeat to the next in `dst`, in units of 32 bytes.
        dst_repeat: opt u32,
        /// From one repeat to the next in `src`, in units of 32 bytes.
        src_repeat: opt u32,
    }

    /// Sorts 32 scores a repeat, largest first, of equal ones the first first (A2). A result is 8 bytes: the
    /// score in the low bytes, its index in the high four.
    Sort32 ("sort32") {
        /// Results, 256 bytes a repeat.
        dst: view View<S>,
        /// Scores, f16 or f32.
        score: view View<S>,
        /// Indices, u32.
        index: view View<S>,
        /// Number of repeats, up to 255.
        repeat: scalar S,
    }

    /// Merges two to four lists as [`Sort32`] writes them (A2).
    MergeSort ("merge_sort") {
        /// Results.
        dst: view View<S>,
        /// Lists.
        src: views Vec<View<S>>,
        /// Lengths of the lists in results, up to 4095; as many as lists.
        lengths: plain Vec<u32>,
        /// Repeats of four equal lists that are contiguous, up to 255.
        repeat: scalar S,
    }

    /// The scalar unit reads an element into a variable.
    Load ("load") {
        /// The variable: an integer or, of a floating-point type, a float.
        into: plain VarId,
        /// The element, in GM or UB.
        src: view View<S>,
    }

    /// The scalar unit writes an element.
    Store ("store") {
        /// The element, in GM or UB.
        dst: view View<S>,
        /// Its value.
        value: scalar S,
    }

    /// The scalar unit's cache line of an address in GM is written back and forgotten.
    CacheFlush ("cache_flush") {
        /// An element of the line.
        line: view View<S>,
    }

    /// Sets a flag when all that pipe `from` was given before is done.
    SetFlag ("set_flag") {
        /// Whose work the flag tells of.
        from: plain Pipe,
        /// Who will wait.
        to: plain Pipe,
        /// Number of the flag, 0 to 5.
        id: scalar S,
    }

    /// Lets pipe `to` wait for the flag, and clears it.
    WaitFlag ("wait_flag") {
        /// Whose work the flag tells of.
        from: plain Pipe,
        /// Who waits.
        to: plain Pipe,
        /// Number of the flag, 0 to 5.
        id: scalar S,
    }

    /// Counts a flag of other cores up when all that `pipe` was given before is done (A2).
    CrossSet ("cross_set") {
        /// Who is notified: 0 all cores of this kind, 1 the other vector core of the pair, 2 the cores of the
        /// other kind in the group.
        mode: plain u32,
        /// Whose work the flag tells of.
        pipe: plain Pipe,
        /// Number of the flag, 0 to 10.
        id: scalar S,
    }

    /// Lets `pipe` wait until its flag has come, and counts it down (A2).
    CrossWait ("cross_wait") {
        /// As the setter's.
        mode: plain u32,
        /// Who waits.
        pipe: plain Pipe,
        /// Number of the flag, 0 to 10.
        id: scalar S,
    }

    /// All cores of the kernel have come here, by counters in GM.
    SyncSoft ("sync_soft") {
        /// Counters, i32, 32 bytes a core, zero before the launch.
        gm: view View<S>,
        /// Buffer for a copy of them.
        ub: view View<S>,
        /// Number of cores.
        cores: scalar S,
    }
}
