//! Places of buffers in the memories of a core. Buffers of one memory never overlap; a program that is too
//! large is refused here, with who needs what, and never overflows on the chip.

use super::finding::{Finding, Result, Rule};
use super::{Buffer, Program, Space};
use std::fmt::Write;

/// Gives every buffer of `program` an address.
///
/// Buffers with a phase come first, at the requested phase within 512 bytes: the first half is filled from
/// the beginning on, the second from the end. So operands of one instruction are in different banks. The
/// others fill the gaps where they fit.
///
/// # Errors
/// `Capacity` where a memory is too small, with all its buffers.
pub fn place(program: &mut Program) -> Result<()> {
    for &space in Space::ALL.iter().filter(|s| **s != Space::Gm) {
        let capacity = program.arch.capacity(space);
        let mut placed: Vec<(u64, u64)> = Vec::new();
        let mut order: Vec<usize> = (0..program.buffers.len()).collect();
        order.retain(|&i| program.buffers[i].space == space);
        order.sort_by_key(|&i| (program.buffers[i].phase.is_none(), i));
        for i in order {
            let buffer = &mut program.buffers[i];
            let far = buffer.phase.is_some_and(|phase| phase % 512 >= 256);
            let address = if far { last_fit(&placed, buffer, capacity) } else { None };
            let address = address.unwrap_or_else(|| first_fit(&placed, buffer));
            buffer.address = Some(address);
            placed.push((address, address + buffer.bytes));
            placed.sort_unstable();
        }
        let peak = placed.last().map_or(0, |p| p.1);
        if peak > capacity {
            let mut message = format!("{space} has {capacity} bytes, the buffers need {peak}:");
            for buffer in program.buffers.iter().filter(|b| b.space == space) {
                let _ = write!(message, " {} {}", buffer.name, buffer.bytes);
            }
            message.push_str("; take smaller tiles");
            return Err(Finding::new(Rule::Capacity, program, message));
        }
    }
    Ok(())
}

/// The highest address below `end` that a buffer with a phase can have beside those that are placed, if there
/// is one.
fn last_fit(placed: &[(u64, u64)], buffer: &Buffer, end: u64) -> Option<u64> {
    let phase = u64::from(buffer.phase?) % 512;
    let aligned = |at: u64| Some(at.checked_sub(phase)? / 512 * 512 + phase);
    let mut address = aligned(end.checked_sub(buffer.bytes)?)?;
    for &(from, to) in placed.iter().rev() {
        if address >= to {
            break;
        }
        address = address.min(aligned(from.checked_sub(buffer.bytes)?)?);
    }
    Some(address)
}

/// The lowest address that a buffer can have beside those that are placed, in ascending order.
fn first_fit(placed: &[(u64, u64)], buffer: &Buffer) -> u64 {
    let align = buffer.space.align();
    let aligned = |at: u64| match buffer.phase {
        None => at.next_multiple_of(align),
        Some(phase) => {
            let phase = u64::from(phase) % 512;
            (at + 512 - phase).div_ceil(512) * 512 - 512 + phase
        }
    };
    let mut address = aligned(0);
    for &(from, to) in placed {
        if address + buffer.bytes <= from {
            break;
        }
        address = address.max(aligned(to));
    }
    address
}
