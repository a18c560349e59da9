//! Execution of kernel programs by the simulator. A few programs of the stand-in's own test the interface
//! itself: they show how arguments arrive, run for long or for ever, and fail.

use crate::function::{Action, Function};
use crate::outcome::{Outcome, fail};
use crate::program;
use crate::stream::Stream;
use crate::world::WORLD;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Runs a kernel with a block of arguments.
pub fn kernel(function: &Function, blocks: u32, args: &[u8], stream: &Stream) -> Outcome {
    let (offsets, size) = function.layout();
    if args.len() != size {
        return fail(507_015, format!("{}: {} bytes of arguments, not {size}", function.name, args.len()));
    }
    let word = |i: usize| {
        let mut bytes = [0; 8];
        let begin = offsets[i];
        bytes[..function.parameters[i]].copy_from_slice(&args[begin..begin + function.parameters[i]]);
        u64::from_le_bytes(bytes)
    };
    match &function.action {
        Action::Program(program) => program::run(program, blocks, args),
        Action::Probe => {
            let count = function.parameters.len();
            let target = device_slice::<u64>(word(0), count)?;
            target[0] = u64::from(blocks);
            for (i, value) in target.iter_mut().enumerate().skip(1) {
                *value = word(i);
            }
            Ok(())
        }
        Action::AddF32 => {
            let count = word(3) as usize;
            // Read before the target is borrowed: it may be one of the operands.
            let x = device_slice::<f32>(word(0), count)?.to_vec();
            let y = device_slice::<f32>(word(1), count)?.to_vec();
            for (z, (x, y)) in device_slice::<f32>(word(2), count)?.iter_mut().zip(x.iter().zip(&y)) {
                *z = x + y;
            }
            Ok(())
        }
        Action::Sleep(ms) => {
            std::thread::sleep(Duration::from_millis(*ms));
            Ok(())
        }
        Action::Spin => spin(&function.name, stream),
        Action::Fault(status) => fail(*status, format!("{} failed", function.name)),
    }
}

/// Work that never ends, unless the device ends it or its stream is aborted.
pub fn spin(name: &str, stream: &Stream) -> Outcome {
    let start = Instant::now();
    while !stream.abandoned.load(Ordering::SeqCst) {
        let (limit, lost) = {
            let state = WORLD.state();
            (u64::from(state.kernel_limit), state.devices[stream.device as usize].lost)
        };
        if limit > 0 && start.elapsed() > Duration::from_secs(limit) {
            return fail(507_034, format!("{name} ran for more than {limit} s"));
        }
        if let Some(status) = lost {
            return fail(status, "the device is lost");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Elements of device memory at an address; a fault as the hardware's if they are not inside of it.
fn device_slice<T>(address: u64, count: usize) -> Outcome<&'static mut [T]> {
    let (address, bytes) = (address as usize, count * size_of::<T>());
    if !WORLD.state().is_device(address, bytes) || !address.is_multiple_of(align_of::<T>()) {
        return fail(507_035, format!("{bytes} bytes at {address:#x} are not device memory"));
    }
    // SAFETY: the range is in one allocation of the stand-in's; the stream's thread alone works on it now, as
    // the launches' order says.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut T, count) })
}
