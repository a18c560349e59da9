//! Kernel programs, run by the simulator over the device's memory: the very instructions that the emitted
//! source states, with every check.

use crate::outcome::{Outcome, fail};
use crate::world::WORLD;
use headwater_ascend::Chip;
use headwater_ascend::kernel::{ParamKind, Program};
use headwater_ascend::sim::{Launch, Mode, decode, launch};
use std::sync::{Mutex, PoisonError};

/// A kernel runs alone: it has the memory that its arguments span for itself.
static RUNNING: Mutex<()> = Mutex::new(());

fn chip() -> Option<&'static Chip> {
    Chip::from_name(&WORLD.config.soc)
}

/// Runs a program on a block of arguments.
pub fn run(program: &Program, blocks: u32, args: &[u8]) -> Outcome {
    let exception = if WORLD.arch() == 2002 { 507_015 } else { 507_035 };
    let (offsets, _) = program.abi();
    let mut span: Option<(u64, u64)> = None;
    for (param, offset) in program.params.iter().zip(offsets) {
        if !matches!(param.kind, ParamKind::Pointer { .. }) {
            continue;
        }
        let word = args.get(offset..offset + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        let Some(address) = word else { return fail(exception, "too few arguments") };
        let bytes = param.bytes();
        if !WORLD.state().is_device(address as usize, bytes as usize) {
            let text = format!("{}: {bytes} bytes at {address:#x} are not device memory", param.name);
            return fail(exception, text);
        }
        let (low, high) = span.unwrap_or((address, address));
        span = Some((low.min(address), high.max(address + bytes)));
    }
    let (low, high) = span.unwrap_or_default();
    // Kernels see addresses as aligned as they are.
    let low = low / 512 * 512;
    let _alone = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let memory: &mut [u8] = match span {
        // SAFETY: from the first to the last byte of allocations of one arena, all of it alive; kernels run
        // one at a time, and copies of the same bytes are ordered before or after by the streams.
        Some(_) => unsafe { std::slice::from_raw_parts_mut(low as *mut u8, (high - low) as usize) },
        None => &mut [],
    };
    let args = decode(program, args, low).map_err(|f| (exception, f.to_string()))?;
    let Some(chip) = chip() else { return fail(exception, "a chip that is not simulated") };
    let run = Launch::new(program, chip, blocks, &args, Mode::Checked { seed: 0 });
    match launch(&run, memory) {
        Ok(_) => Ok(()),
        Err(findings) => {
            let text: Vec<String> = findings.iter().take(3).map(|f| f.to_string()).collect();
            fail(exception, text.join("\n"))
        }
    }
}
