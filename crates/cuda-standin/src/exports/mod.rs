//! Functions under the vendor's names.

pub mod control;
mod cublaslt;
mod driver;
mod nvrtc;

/// An exported function: notes its call, fails where a failure was planted, and gives the status of its body.
macro_rules! export {
    ($($context:literal fn $name:ident($world:ident $(, $arg:ident: $ty:ty)*) $body:block)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> i32 {
            let mut held = crate::world::world();
            let $world = &mut *held;
            let run = |$world: &mut crate::world::World| -> Result<(), i32> {
                $world.call(stringify!($name), $context)?;
                $body
                Ok(())
            };
            run($world).err().unwrap_or(0)
        }
    )* };
}
pub(crate) use export;

/// Writes a result of a function.
fn put<T>(to: *mut T, value: T) -> Result<(), i32> {
    if to.is_null() {
        return Err(crate::world::INVALID);
    }
    // SAFETY: the caller's place for it.
    unsafe { to.write(value) };
    Ok(())
}
