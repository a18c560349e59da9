//! Fibers: threads of a block, switched by hand. x86-64 alone.

use std::alloc::{Layout, alloc, dealloc};

/// Bytes of a fiber's stack.
const STACK: usize = 128 << 10;

/// Saves the registers that calls preserve and the stack pointer at `from`, and goes on where `to` was left.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn switch(from: *mut usize, to: usize) {
    core::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C" fn switch(_: *mut usize, _: usize) {
    std::process::abort()
}

/// A fiber, and its stack.
#[derive(Debug)]
pub struct Fiber {
    stack: *mut u8,
    pointer: usize,
}

// SAFETY: a fiber is run by one thread at a time: that which holds the world.
unsafe impl Send for Fiber {}

fn layout() -> Layout {
    Layout::from_size_align(STACK, 4096).unwrap_or_else(|_| Layout::new::<u8>())
}

impl Fiber {
    pub fn new() -> Fiber {
        // SAFETY: the layout is not empty.
        Fiber { stack: unsafe { alloc(layout()) }, pointer: 0 }
    }

    /// Lets it begin with a function when it is next run.
    pub fn begin(&mut self, entry: extern "C" fn()) {
        // SAFETY: the words are at the end of the fiber's own stack: six registers, the function, and nothing
        // to return to.
        unsafe {
            let top = self.stack.add(STACK - 64).cast::<usize>();
            top.sub(1).write(0);
            top.sub(2).write(entry as usize);
            (3..9).for_each(|i| top.sub(i).write(0));
            self.pointer = top.sub(8) as usize;
        }
    }

    /// Runs it until it leaves; `scheduler` keeps where to go on.
    ///
    /// # Safety
    /// It has begun, and is not over.
    pub unsafe fn run(&mut self, scheduler: &mut usize) {
        // SAFETY: the pointer is one that `begin` or `leave` made.
        unsafe { switch(scheduler, self.pointer) }
    }

    /// Leaves it for the scheduler.
    ///
    /// # Safety
    /// It is running.
    pub unsafe fn leave(&mut self, scheduler: usize) {
        // SAFETY: the scheduler waits in `run`.
        unsafe { switch(&mut self.pointer, scheduler) }
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.stack, layout()) }
    }
}
