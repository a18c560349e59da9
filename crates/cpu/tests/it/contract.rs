//! The contract of devices on the CPU: borrowed memory is used in place, and plans run in parts.

use headwater_core::device::{Buffer, Content, Device, Foreign, Stream};
use headwater_core::graph::parse;
use headwater_core::pass::{check_plan, plan};
use headwater_core::plan::{ALIGN, Bindings, Plan};
use headwater_core::{Code, Registry};
use headwater_cpu::Cpu;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Rows of `tanh(x) · xᵀ`, chosen by `ids`: values between steps are in the arena.
fn model(device: &Cpu) -> Plan {
    let text = r#"headwater graph 1
%0 = user "x" : f32[8, 16]
%1 = user "ids" : i32[3]
%2 = tanh(%0) : f32[8, 16]
%3 = transpose(%0, dim0=0, dim1=1) : f32[16, 8]
%4 = matmul(%2, %3) : f32[8, 8]
%5 = embedding(%4, %1) : f32[3, 8]
output "y" = %5
@0 = ""
"#;
    let graph = parse(text, Registry::standard()).unwrap();
    let plan = plan(&graph, &Bindings::simple(&graph), device.target()).unwrap();
    check_plan(&plan).unwrap();
    assert!(plan.steps.len() >= 3 && plan.segments[0].bytes > 0);
    plan
}

/// Contents of the inputs `x` and `ids`, the segments 1 and 2; the result is segment 3.
fn inputs(scale: f32) -> [Vec<u8>; 2] {
    let x = (0..128).flat_map(|i| (scale * (i as f32 / 64.0 - 1.0)).to_le_bytes()).collect();
    [x, [7, 0, 3].map(i32::to_le_bytes).concat()]
}

const RESULT: usize = 3 * 8 * 4;

/// Memory of the device for a run on some inputs.
fn memory(device: &Cpu, stream: &dyn Stream, plan: &Plan, scale: f32) -> Vec<Arc<dyn Buffer>> {
    let alloc = |bytes| device.alloc(bytes, Content::Undefined).unwrap();
    let memory: Vec<Arc<dyn Buffer>> = plan.segments.iter().map(|s| alloc(s.bytes)).collect();
    for (buffer, bytes) in memory[1..].iter().zip(inputs(scale)) {
        stream.write(buffer, 0, &bytes).unwrap();
    }
    memory
}

fn result(stream: &dyn Stream, memory: &[Arc<dyn Buffer>]) -> Vec<u8> {
    let mut data = vec![0; RESULT];
    stream.read(&memory[3], 0, &mut data).unwrap();
    data
}

/// The result of a run of the whole plan in the device's own memory.
fn whole(device: &Cpu, plan: &Plan, scale: f32) -> Vec<u8> {
    let stream = device.stream().unwrap();
    let memory = memory(device, stream.as_ref(), plan, scale);
    device.load(plan).unwrap().submit(stream.as_ref(), &memory, 0..plan.steps.len()).unwrap();
    stream.synchronize().unwrap();
    result(stream.as_ref(), &memory)
}

#[repr(align(64))]
struct Block([u8; 1024]);
const _: () = assert!(align_of::<Block>() == ALIGN);

/// Lends bytes of a block, which come back when the device lets go of them.
struct Lent {
    block: NonNull<Block>,
    first: usize,
    bytes: usize,
    back: Sender<Box<Block>>,
}

// SAFETY: the block is this value's own.
#[allow(unsafe_code)]
unsafe impl Send for Lent {}

// SAFETY: the block lives until this value is dropped, and until then no test touches it.
#[allow(unsafe_code)]
unsafe impl Foreign for Lent {
    fn memory(&self) -> NonNull<[u8]> {
        assert!(self.first + self.bytes <= size_of::<Block>());
        // SAFETY: within the block.
        NonNull::slice_from_raw_parts(unsafe { self.block.cast::<u8>().add(self.first) }, self.bytes)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: leaked in `lend`, and taken back here alone.
        #[allow(unsafe_code)]
        let block = unsafe { Box::from_raw(self.block.as_ptr()) };
        // A test that has failed does not wait for it.
        let _ = self.back.send(block);
    }
}

/// Lends a block with some content from byte `first` on.
fn lend(first: usize, content: &[u8]) -> (Box<Lent>, Receiver<Box<Block>>) {
    let mut block = Box::new(Block([0xff; 1024]));
    block.0[first..][..content.len()].copy_from_slice(content);
    let (back, receiver) = channel();
    let block = NonNull::from(Box::leak(block));
    (Box::new(Lent { block, first, bytes: content.len(), back }), receiver)
}

#[test]
fn a_plan_reads_and_writes_borrowed_memory_where_it_lies() {
    let device = Cpu::new(2);
    let plan = model(&device);
    let stream = device.stream().unwrap();
    let mut memory = memory(&device, stream.as_ref(), &plan, 1.0);
    let [x, ids] = inputs(0.5);
    let mut lenders = Vec::new();
    for (segment, content) in [(1, &x), (2, &ids), (3, &vec![0xff; RESULT])] {
        let (lent, back) = lend(2 * ALIGN, content);
        memory[segment] = device.borrow(lent).unwrap();
        assert_eq!(memory[segment].bytes(), content.len());
        lenders.push(back);
    }
    let mut loaded = device.load(&plan).unwrap();
    loaded.submit(stream.as_ref(), &memory, 0..plan.steps.len()).unwrap();
    stream.synchronize().unwrap();
    let want = whole(&device, &plan, 0.5);
    assert!(want != whole(&device, &plan, 1.0), "the inputs that were lent decide");
    assert!(result(stream.as_ref(), &memory) == want);

    // Nothing is given back while the device holds it, and nothing around it has changed.
    assert!(lenders.iter().all(|back| back.try_recv().is_err()));
    drop(memory);
    let blocks: Vec<Box<Block>> = lenders.iter().map(|back| back.try_recv().unwrap()).collect();
    for (block, content) in blocks.iter().zip([&x, &ids, &want]) {
        let (before, rest) = block.0.split_at(2 * ALIGN);
        let (own, behind) = rest.split_at(content.len());
        assert!(own == &content[..] && before.iter().chain(behind).all(|&b| b == 0xff));
    }
}

#[test]
fn borrowed_memory_that_is_not_aligned_or_too_small_is_refused_and_given_back() {
    let device = Cpu::new(1);
    let plan = model(&device);
    let (lent, back) = lend(ALIGN / 2, &[0; RESULT]);
    assert_eq!(device.borrow(lent).unwrap_err().code, Code::Device);
    assert!(back.try_recv().is_ok());

    let stream = device.stream().unwrap();
    let mut memory = memory(&device, stream.as_ref(), &plan, 1.0);
    let (lent, back) = lend(0, &[0; RESULT - 1]);
    memory[3] = device.borrow(lent).unwrap();
    let mut loaded = device.load(&plan).unwrap();
    let refused = loaded.submit(stream.as_ref(), &memory, 0..plan.steps.len()).unwrap_err();
    assert_eq!(refused.code, Code::Device);
    drop(memory);
    assert!(back.try_recv().is_ok());
}

#[test]
fn a_plan_in_parts_gives_the_bits_of_the_whole() {
    for threads in [1, 3] {
        let device = Cpu::new(threads);
        let plan = model(&device);
        let steps = plan.steps.len();
        let want = [1.0, 0.5].map(|scale| whole(&device, &plan, scale));
        assert!(want[0] != want[1]);
        let stream = device.stream().unwrap();
        let mut loaded = device.load(&plan).unwrap();
        for cut in 0..=steps {
            let memory = memory(&device, stream.as_ref(), &plan, 1.0);
            for part in [0..cut, cut..steps] {
                loaded.submit(stream.as_ref(), &memory, part).unwrap();
            }
            stream.synchronize().unwrap();
            assert!(result(stream.as_ref(), &memory) == want[0], "cut before step {cut}");
        }
        // Two runs that take turns have nothing in common but the executable.
        let memories = [1.0, 0.5].map(|scale| memory(&device, stream.as_ref(), &plan, scale));
        for step in 0..steps {
            for memory in &memories {
                loaded.submit(stream.as_ref(), memory, step..step + 1).unwrap();
            }
        }
        stream.synchronize().unwrap();
        assert!(memories.map(|memory| result(stream.as_ref(), &memory)) == want);
        assert!(loaded.submit(stream.as_ref(), &[], 0..steps).is_err());
    }
}
