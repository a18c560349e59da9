//! Instructions as calls of Ascend C.

use super::Emitter;
use crate::chip::Arch;
use crate::kernel::*;

impl Emitter<'_> {
    /// Lines of one instruction; several are a block of their own.
    pub(super) fn instr(&mut self, instr: &Instr) {
        let mut lines = Vec::new();
        match instr {
            Instr::Load(x) => {
                let (view, elem) = (self.element(&x.src), x.src.elem);
                let text = match elem {
                    Elem::BF16 => format!("ToFloat({view})"),
                    Elem::F16 => format!("static_cast<float>({view})"),
                    _ => view,
                };
                let text = format!("{} = {text};", self.target(x.into));
                return self.line(&text);
            }
            Instr::Barrier(barrier) => lines.push(barrier_call(*barrier)),
            _ => self.call(instr, &mut lines),
        }
        if let [line] = &lines[..] {
            return self.line(line);
        }
        self.line("{");
        self.depth += 1;
        for line in lines {
            self.line(&line);
        }
        self.depth -= 1;
        self.line("}");
    }

    /// An element as the scalar unit reads it.
    fn element(&self, view: &View) -> String {
        format!("{}.GetValue({})", self.tensor(view.base, view.elem), self.offset(view))
    }

    fn offset(&self, view: &View) -> String {
        super::scalars::unbracketed(&self.scalar(&view.offset)).to_string()
    }

    /// Puts a copy between the calls that switch the mode of writes to GM.
    fn atomic(lines: &mut Vec<String>, op: Option<AtomicOp>, elem: Elem, copy: String) {
        let Some(op) = op else { return lines.push(copy) };
        let name = match op {
            AtomicOp::Add => "Add",
            AtomicOp::Max => "Max",
            AtomicOp::Min => "Min",
        };
        lines.push(format!("SetAtomic{name}<{}>();", elem.c_name()));
        lines.push(copy);
        lines.push("SetAtomicNone();".into());
    }

    /// The end of a vector call: how much it covers, and strides.
    fn over(&self, over: &Over, count: &str, strides: String, lines: &mut Vec<String>) -> String {
        match over {
            Over::Count(n) => self.as_type(count, n),
            Over::Repeats { mask, repeat } => {
                let mask = self.mask(mask, lines);
                format!("{mask}, {}, {strides}", self.u8(repeat))
            }
        }
    }

    fn call(&self, instr: &Instr, lines: &mut Vec<String>) {
        match instr {
            Instr::UnaryOp(x) => {
                let name = match x.op {
                    Unary::Abs => "Abs",
                    Unary::Exp => "Exp",
                    Unary::Ln => "Ln",
                    Unary::Sqrt => "Sqrt",
                    Unary::Rsqrt => "Rsqrt",
                    Unary::Reciprocal => "Reciprocal",
                    Unary::Relu => "Relu",
                    Unary::Not => "Not",
                };
                let over = self.over(&x.over, "int32_t", unary_strides(&x.dst, &x.src), lines);
                lines.push(format!("{name}({}, {}, {over});", self.vector(&x.dst), self.vector(&x.src)));
            }
            Instr::BinaryOp(x) => {
                let name = match x.op {
                    Binary::Add => "Add",
                    Binary::Sub => "Sub",
                    Binary::Mul => "Mul",
                    Binary::Div => "Div",
                    Binary::Max => "Max",
                    Binary::Min => "Min",
                    Binary::And => "And",
                    Binary::Or => "Or",
                    Binary::MulAddDst => "MulAddDst",
                    Binary::AddWrapping => "Add",
                    Binary::SubWrapping => "Sub",
                    Binary::MulWrapping => "Mul",
                };
                let over = self.over(&x.over, "int32_t", binary_strides(&x.dst, &x.src0, &x.src1), lines);
                let [d, a, b] = [&x.dst, &x.src0, &x.src1].map(|v| self.vector(v));
                lines.push(format!("{name}({d}, {a}, {b}, {over});"));
            }
            Instr::ScaledOp(x) => {
                let name = match x.op {
                    Scaled::Adds => "Adds",
                    Scaled::Muls => "Muls",
                    Scaled::Maxs => "Maxs",
                    Scaled::Mins => "Mins",
                    Scaled::LeakyRelu => "LeakyRelu",
                    Scaled::ShiftLeft => "ShiftLeft",
                    Scaled::ShiftRight => "ShiftRight",
                    Scaled::Axpy => "Axpy",
                    Scaled::AddsWrapping => "Adds",
                    Scaled::MulsWrapping => "Muls",
                };
                let over = self.over(&x.over, "int32_t", unary_strides(&x.dst, &x.src), lines);
                let value = self.value(x.src.view.elem, &x.scalar);
                lines.push(format!(
                    "{name}({}, {}, {value}, {over});",
                    self.vector(&x.dst),
                    self.vector(&x.src)
                ));
            }
            Instr::Duplicate(x) => {
                let strides = format!("{}, {}", x.dst.block, x.dst.repeat);
                let over = self.over(&x.over, "int32_t", strides, lines);
                let value = self.value(x.dst.view.elem, &x.value);
                lines.push(format!("Duplicate({}, {value}, {over});", self.vector(&x.dst)));
            }
            Instr::Cast(x) => {
                if let Some(scale) = x.scale {
                    let value = self.scalar(&Scalar::Float(scale));
                    lines.push(format!("SetDeqScale(static_cast<half>({value}));"));
                }
                let over = self.over(&x.over, "uint32_t", unary_strides(&x.dst, &x.src), lines);
                let round = x.round.name().to_uppercase();
                let (d, s) = (self.vector(&x.dst), self.vector(&x.src));
                lines.push(format!("Cast({d}, {s}, RoundMode::CAST_{round}, {over});"));
            }
            Instr::CompareOp(x) => {
                let strides = binary_strides(&x.src0, &x.src0, &x.src1);
                let over = self.over(&x.over, "uint32_t", strides, lines);
                let (a, b) = (self.vector(&x.src0), self.vector(&x.src1));
                lines.push(format!("Compare({}, {a}, {b}, {}, {over});", self.view(&x.dst), cmp(x.cmp)));
            }
            Instr::CompareScalar(x) => {
                let over = self.over(&x.over, "uint32_t", unary_strides(&x.src, &x.src), lines);
                let value = self.value(x.src.view.elem, &x.scalar);
                let (d, s) = (self.view(&x.dst), self.vector(&x.src));
                lines.push(format!("CompareScalar({d}, {s}, {value}, {}, {over});", cmp(x.cmp)));
            }
            Instr::Select(x) => {
                let over = self.over(&x.over, "uint32_t", binary_strides(&x.dst, &x.src0, &x.src1), lines);
                let [d, a, b] = [&x.dst, &x.src0, &x.src1].map(|v| self.vector(v));
                let mask = self.view(&x.mask);
                lines.push(format!(
                    "Select({d}, {mask}, {a}, {b}, SELMODE::VSEL_TENSOR_TENSOR_MODE, {over});"
                ));
            }
            Instr::SelectScalar(x) => {
                let over = self.over(&x.over, "uint32_t", binary_strides(&x.dst, &x.src, &x.src), lines);
                let value = self.value(x.dst.view.elem, &x.scalar);
                let (d, a, mask) = (self.vector(&x.dst), self.vector(&x.src), self.view(&x.mask));
                lines.push(format!(
                    "Select({d}, {mask}, {a}, {value}, SELMODE::VSEL_TENSOR_SCALAR_MODE, {over});"
                ));
            }
            Instr::Reduce(x) => self.reduce(x, lines),
            Instr::Gather(x) => {
                let [d, s, o] = [&x.dst, &x.src, &x.offsets].map(|v| self.view(v));
                lines.push(format!("Gather({d}, {s}, {o}, {}, {});", self.u32(&x.base), self.u32(&x.count)));
            }
            Instr::GatherMask(x) => {
                lines.push("uint64_t picked_ = 0;".into());
                lines.push(format!(
                    "GatherMask({}, {}, static_cast<uint8_t>({}), true, {}, GatherMaskParams({}, {}, {}, 0), picked_);",
                    self.view(&x.dst),
                    self.vector(&x.src),
                    x.pattern,
                    self.u32(&x.count),
                    x.src.block,
                    self.u16(&x.repeat),
                    x.src.repeat
                ));
            }
            Instr::Brcb(x) => lines.push(format!(
                "Brcb({}, {}, {}, BrcbRepeatParams({}, {}));",
                self.vector(&x.dst),
                self.view(&x.src),
                self.u8(&x.repeat),
                x.dst.block,
                x.dst.repeat
            )),
            Instr::Ramp(x) => {
                let value = self.value(x.dst.elem, &x.first);
                // The call begins on the scalar unit, which waits for the vector unit's instructions before
                // it.
                lines.push(format!("SetFlag<HardEvent::V_S>({RAMP_FLAG});"));
                lines.push(format!("WaitFlag<HardEvent::V_S>({RAMP_FLAG});"));
                lines.push(format!(
                    "CreateVecIndex({}, {value}, {});",
                    self.view(&x.dst),
                    self.u32(&x.count)
                ));
            }
            Instr::Transpose(x) => {
                lines.push(format!("Transpose({}, {});", self.view(&x.dst), self.view(&x.src)));
            }
            Instr::TransposeRows(x) => {
                let c = x.dst.first().map_or("half", |v| v.elem.c_name());
                for (name, views) in [("to_", &x.dst), ("from_", &x.src)] {
                    let views: Vec<_> = views.iter().map(|v| self.view(v)).collect();
                    lines.push(format!("LocalTensor<{c}> {name}[16] = {{{}}};", views.join(", ")));
                }
                lines.push("TransDataTo5HDParams params_;".into());
                lines.push(format!("params_.repeatTimes = {};", self.u8(&x.repeat)));
                lines.push(format!("params_.dstRepStride = {};", x.dst_repeat));
                lines.push(format!("params_.srcRepStride = {};", x.src_repeat));
                lines.push(format!("TransDataTo5HD<{c}>(to_, from_, params_);"));
            }
            Instr::Sort32(x) => {
                let [d, s, i] = [&x.dst, &x.score, &x.index].map(|v| self.view(v));
                lines.push(format!("Sort32({d}, {s}, {i}, {});", self.i32(&x.repeat)));
            }
            Instr::MergeSort(x) => {
                let c = x.dst.elem.c_name();
                let lists: Vec<_> = (0..4).map(|i| self.view(x.src.get(i).unwrap_or(&x.src[0]))).collect();
                let lengths: Vec<_> =
                    (0..4).map(|i| x.lengths.get(i).copied().unwrap_or(0).to_string()).collect();
                lines.push(format!("MrgSortSrcList<{c}> lists_({});", lists.join(", ")));
                lines.push(format!("const uint16_t lengths_[4] = {{{}}};", lengths.join(", ")));
                let valid = (1u32 << x.src.len()) - 1;
                lines.push(format!("MrgSort4Info info_(lengths_, false, {valid}, {});", self.u16(&x.repeat)));
                lines.push(format!("MrgSort({}, lists_, info_);", self.view(&x.dst)));
            }
            Instr::Store(x) => {
                let value = self.value(x.dst.elem, &x.value);
                let tensor = self.tensor(x.dst.base, x.dst.elem);
                lines.push(format!("{tensor}.SetValue({}, {value});", self.offset(&x.dst)));
            }
            Instr::CacheFlush(x) => {
                let (c, view) = (x.line.elem.c_name(), self.view(&x.line));
                let end = if self.program.arch == Arch::A2 { ", DcciDst::CACHELINE_OUT" } else { "" };
                lines.push(format!(
                    "DataCacheCleanAndInvalid<{c}, CacheLine::SINGLE_CACHE_LINE{end}>({view});"
                ));
            }
            Instr::SetFlag(x) => {
                lines.push(format!("SetFlag<HardEvent::{}>({});", event(x.from, x.to), self.flag(&x.id)))
            }
            Instr::WaitFlag(x) => {
                lines.push(format!("WaitFlag<HardEvent::{}>({});", event(x.from, x.to), self.flag(&x.id)));
            }
            Instr::CrossSet(x) => {
                lines.push(format!("CrossCoreSetFlag<{}, {}>({});", x.mode, pipe(x.pipe), self.u16(&x.id)));
            }
            Instr::CrossWait(x) => {
                lines.push(format!("CrossCoreWaitFlag<{}, {}>({});", x.mode, pipe(x.pipe), self.u16(&x.id)));
            }
            Instr::SyncSoft(x) => {
                let (gm, ub) = (self.view(&x.gm), self.view(&x.ub));
                lines.push(format!("SyncAll({gm}, {ub}, {});", self.i32(&x.cores)));
            }
            Instr::Load(_) | Instr::Barrier(_) => {}
            _ => self.transfer(instr, lines),
        }
    }

    fn flag(&self, id: &Scalar) -> String {
        match id {
            Scalar::Int(x) => x.to_string(),
            id => format!("static_cast<event_t>({})", super::scalars::unbracketed(&self.scalar(id))),
        }
    }

    fn reduce(&self, x: &Reduce, lines: &mut Vec<String>) {
        let mask = match &x.mask {
            Mask::First(n) => self.i32(n),
            mask => self.mask(mask, lines),
        };
        let (d, s, repeat) = (self.view(&x.dst), self.vector(&x.src), self.i32(&x.repeat));
        let strides = format!("{}, {}, {}", x.dst_repeat, x.src.block, x.src.repeat);
        let name = match x.op {
            Reduction::WholeSum => "WholeReduceSum",
            Reduction::WholeMax => "WholeReduceMax",
            Reduction::WholeMin => "WholeReduceMin",
            Reduction::BlockSum => "BlockReduceSum",
            Reduction::BlockMax => "BlockReduceMax",
            Reduction::BlockMin => "BlockReduceMin",
            Reduction::PairSum => "PairReduceSum",
        };
        let order = match x.order {
            None => "",
            Some(Order::ValueIndex) => ", ReduceOrder::ORDER_VALUE_INDEX",
            Some(Order::IndexValue) => ", ReduceOrder::ORDER_INDEX_VALUE",
            Some(Order::OnlyValue) => ", ReduceOrder::ORDER_ONLY_VALUE",
            Some(Order::OnlyIndex) => ", ReduceOrder::ORDER_ONLY_INDEX",
        };
        // Blocks and pairs have the number of repeats before the mask.
        lines.push(match x.op.kind() {
            ReductionKind::Whole => format!("{name}({d}, {s}, {mask}, {repeat}, {strides}{order});"),
            _ => format!("{name}({d}, {s}, {repeat}, {mask}, {strides});"),
        });
    }

    fn transfer(&self, instr: &Instr, lines: &mut Vec<String>) {
        match instr {
            Instr::DataCopy(x) => {
                let (src_gap, dst_gap) = (self.u16(&x.src_gap), self.u16(&x.dst_gap));
                let params = format!(
                    "DataCopyParams({}, {}, {src_gap}, {dst_gap})",
                    self.u16(&x.blocks),
                    self.u16(&x.len)
                );
                let copy = format!("DataCopy({}, {}, {params});", self.view(&x.dst), self.view(&x.src));
                Self::atomic(lines, x.atomic, x.dst.elem, copy);
            }
            Instr::DataCopyPad(x) => {
                let c = x.dst.elem.c_name();
                let params = format!(
                    "DataCopyExtParams({}, {}, {}, {}, 0)",
                    self.u16(&x.blocks),
                    self.u32(&x.bytes),
                    self.u32(&x.src_gap),
                    self.u32(&x.dst_gap)
                );
                let (d, s) = (self.view(&x.dst), self.view(&x.src));
                if self.program.space(x.src.base) == Space::Gm {
                    let fill = match x.fill.map(|fill| fill.0) {
                        Some(Value::Int(x)) => Scalar::Int(x),
                        Some(Value::Float(x)) => Scalar::Float(Real(x)),
                        None if x.dst.elem.is_float() => Scalar::from(0.0),
                        None => Scalar::Int(0),
                    };
                    let fill = self.value(x.dst.elem, &fill);
                    let pad = format!("{}, {}, {}, {fill}", x.fill.is_some(), x.left, x.right);
                    lines.push(format!("DataCopyPad({d}, {s}, {params}, DataCopyPadExtParams<{c}>({pad}));"));
                } else {
                    Self::atomic(lines, x.atomic, x.dst.elem, format!("DataCopyPad({d}, {s}, {params});"));
                }
            }
            Instr::CopyNdToNz(x) => {
                let fields = [
                    ("ndNum", &x.matrices),
                    ("nValue", &x.n),
                    ("dValue", &x.d),
                    ("srcNdMatrixStride", &x.src_matrix),
                    ("srcDValue", &x.src_row),
                    ("dstNzC0Stride", &x.dst_c0),
                    ("dstNzNStride", &x.dst_row),
                    ("dstNzMatrixStride", &x.dst_matrix),
                ];
                self.fields("Nd2NzParams", &fields, lines);
                lines.push(format!("DataCopy({}, {}, params_);", self.view(&x.dst), self.view(&x.src)));
            }
            Instr::LoadData2d(x) => {
                let fields = [
                    ("startIndex", &x.start),
                    ("repeatTimes", &x.repeat),
                    ("srcStride", &x.src_stride),
                    ("dstGap", &x.dst_gap),
                ];
                self.fields("LoadData2DParams", &fields, lines);
                lines.push(format!("params_.ifTranspose = {};", x.transpose));
                lines.push(format!("LoadData({}, {}, params_);", self.view(&x.dst), self.view(&x.src)));
            }
            Instr::LoadDataTransposed(x) => {
                let fields = [
                    ("startIndex", &x.start),
                    ("repeatTimes", &x.repeat),
                    ("srcStride", &x.src_stride),
                    ("dstGap", &x.dst_gap),
                    ("dstFracGap", &x.dst_fractal_gap),
                ];
                self.fields("LoadData2dTransposeParams", &fields, lines);
                lines.push(format!(
                    "LoadDataWithTranspose({}, {}, params_);",
                    self.view(&x.dst),
                    self.view(&x.src)
                ));
            }
            Instr::LoadData3d(x) if x.pro => self.load_data_pro(x, lines),
            Instr::LoadData3d(x) => {
                let c = x.dst.elem.c_name();
                let fields = [
                    ("channelSize", &x.channels),
                    ("kExtension", &x.k),
                    ("mExtension", &x.m),
                    ("kStartPt", &x.k_start),
                    ("mStartPt", &x.m_start),
                ];
                self.fields(&format!("LoadData3DParamsV2<{c}>"), &fields, lines);
                let numbers = [
                    ("l1H", x.size[0]),
                    ("l1W", x.size[1]),
                    ("strideH", x.stride[0]),
                    ("strideW", x.stride[1]),
                    ("filterH", x.filter[0]),
                    ("filterW", x.filter[1]),
                    ("dilationFilterH", x.dilation[0]),
                    ("dilationFilterW", x.dilation[1]),
                    ("padList[0]", x.pad[0]),
                    ("padList[1]", x.pad[1]),
                    ("padList[2]", x.pad[2]),
                    ("padList[3]", x.pad[3]),
                ];
                lines.extend(numbers.iter().map(|(name, n)| format!("params_.{name} = {n};")));
                lines.push(format!("params_.padValue = {};", self.value(x.dst.elem, &x.pad_value)));
                lines.push(format!("params_.enTranspose = {};", x.transpose));
                lines.push(format!("LoadData({}, {}, params_);", self.view(&x.dst), self.view(&x.src)));
            }
            Instr::InitConst(x) => {
                let c = x.dst.elem.c_name();
                let fields = [("repeatTimes", &x.repeat), ("blockNum", &x.len), ("dstGap", &x.gap)];
                self.fields(&format!("InitConstValueParams<{c}>"), &fields, lines);
                lines.push(format!("params_.initValue = {};", self.value(x.dst.elem, &x.value)));
                lines.push(format!("InitConstValue({}, params_);", self.view(&x.dst)));
            }
            Instr::Mmad(x) => {
                self.fields("MmadParams", &[("m", &x.m), ("n", &x.n), ("k", &x.k)], lines);
                let init = super::scalars::unbracketed(&self.scalar(&x.init)).to_string();
                lines.push(format!("params_.cmatrixInitVal = ({init}) != 0;"));
                if x.unit_flag != UnitFlag::Off {
                    lines.push(format!("params_.unitFlag = {};", unit_flag(x.unit_flag)));
                }
                if x.hf32 {
                    lines.push("SetHF32Mode(true);".into());
                }
                let [c, a, b] = [&x.c, &x.a, &x.b].map(|v| self.view(v));
                match &x.bias {
                    Some(bias) => lines.push(format!("Mmad({c}, {a}, {b}, {}, params_);", self.view(bias))),
                    None => lines.push(format!("Mmad({c}, {a}, {b}, params_);")),
                }
                if x.hf32 {
                    lines.push("SetHF32Mode(false);".into());
                }
            }
            Instr::Fixpipe(x) => {
                let fields = [
                    ("nSize", &x.n),
                    ("mSize", &x.m),
                    ("srcStride", &x.src_stride),
                    ("dstStride", &x.dst_stride),
                ];
                self.fields("FixpipeParamsV220", &fields, lines);
                let quant = match x.quant {
                    Quant::Off => "NoQuant",
                    Quant::F16 => "F322F16",
                    Quant::BF16 => "F322BF16",
                };
                lines.push(format!("params_.quantPre = QuantMode_t::{quant};"));
                lines.push(format!("params_.reluEn = {};", x.relu));
                if x.unit_flag != UnitFlag::Off {
                    lines.push(format!("params_.unitFlag = {};", unit_flag(x.unit_flag)));
                }
                let layout = if x.layout == Layout::Nd { "CFG_ROW_MAJOR" } else { "CFG_NZ" };
                let types = format!("{}, {}, {layout}", x.dst.elem.c_name(), x.src.elem.c_name());
                let copy =
                    format!("Fixpipe<{types}>({}, {}, params_);", self.view(&x.dst), self.view(&x.src));
                Self::atomic(lines, x.atomic, x.dst.elem, copy);
            }
            Instr::CopyL0c(x) => {
                let (src_gap, dst_gap) = (self.u16(&x.src_gap), self.u16(&x.dst_gap));
                let params = format!(
                    "DataCopyParams({}, {}, {src_gap}, {dst_gap})",
                    self.u16(&x.blocks),
                    self.u16(&x.len)
                );
                lines.push("DataCopyEnhancedParams enhanced_;".into());
                lines.push("enhanced_.blockMode = BlockMode::BLOCK_MODE_MATRIX;".into());
                if x.relu {
                    lines.push("enhanced_.isRelu = true;".into());
                }
                lines.push(format!(
                    "DataCopy({}, {}, {params}, enhanced_);",
                    self.view(&x.dst),
                    self.view(&x.src)
                ));
            }
            _ => {}
        }
    }

    /// The form of `LoadData` in front of which registers take the image's size and padding.
    fn load_data_pro(&self, x: &LoadData3d, lines: &mut Vec<String>) {
        let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        lines.push(format!("const uint8_t pad_[4] = {{{}}};", list(&x.pad)));
        lines.push(format!("SetFmatrix({}, pad_, FmatrixMode::FMATRIX_LEFT);", list(&x.size)));
        if x.pad != [0; 4] {
            let value = self.value(x.dst.elem, &x.pad_value);
            lines.push(format!("SetLoadDataPaddingValue({value});"));
        }
        self.fields("LoadData3DParamsV2Pro", &[("channelSize", &x.channels)], lines);
        lines.push(format!("params_.enTranspose = {};", x.transpose));
        let parts = [(48, &x.m_start), (32, &x.k_start), (16, &x.m), (0, &x.k)];
        let parts = parts.map(|(by, n)| format!("static_cast<uint64_t>({}) << {by}", self.scalar(n)));
        lines.push(format!("params_.extConfig = {};", parts.join(" | ")));
        let [dilation, filter, stride] = [x.dilation, x.filter, x.stride];
        let bytes = [dilation[0], dilation[1], filter[0], filter[1], stride[0], stride[1]];
        let filter = bytes.iter().fold(0, |all, &b| all << 8 | u64::from(b));
        lines.push(format!("params_.filterConfig = {filter:#x};"));
        lines.push(format!("LoadData({}, {}, params_);", self.view(&x.dst), self.view(&x.src)));
    }

    /// A structure of parameters and its fields.
    fn fields(&self, ty: &str, fields: &[(&str, &Scalar)], lines: &mut Vec<String>) {
        lines.push(format!("{ty} params_;"));
        for (name, x) in fields {
            lines.push(format!("params_.{name} = {};", super::scalars::unbracketed(&self.scalar(x))));
        }
    }
}

fn unary_strides(dst: &Vector, src: &Vector) -> String {
    format!("UnaryRepeatParams({}, {}, {}, {})", dst.block, src.block, dst.repeat, src.repeat)
}

fn binary_strides(dst: &Vector, a: &Vector, b: &Vector) -> String {
    let blocks = format!("{}, {}, {}", dst.block, a.block, b.block);
    format!("BinaryRepeatParams({blocks}, {}, {}, {})", dst.repeat, a.repeat, b.repeat)
}

fn cmp(cmp: Compare) -> String {
    format!("CMPMODE::{}", cmp.name().to_uppercase())
}

fn event(from: Pipe, to: Pipe) -> String {
    format!("{}_{}", from.name(), to.name()).to_uppercase()
}

fn pipe(pipe: Pipe) -> String {
    format!("PIPE_{}", pipe.name().to_uppercase())
}

const fn unit_flag(flag: UnitFlag) -> u32 {
    match flag {
        UnitFlag::Off => 0,
        UnitFlag::Keep => 2,
        UnitFlag::Set => 3,
    }
}

fn barrier_call(barrier: Barrier) -> String {
    match barrier {
        Barrier::V => "PipeBarrier<PIPE_V>();",
        Barrier::M => "PipeBarrier<PIPE_M>();",
        Barrier::Mte1 => "PipeBarrier<PIPE_MTE1>();",
        Barrier::Mte2 => "PipeBarrier<PIPE_MTE2>();",
        Barrier::Mte3 => "PipeBarrier<PIPE_MTE3>();",
        Barrier::Fix => "PipeBarrier<PIPE_FIX>();",
        Barrier::All => "PipeBarrier<PIPE_ALL>();",
        Barrier::Cores => "SyncAll();",
    }
    .into()
}
