//! Panics of libraries that decode files of others, as messages.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls of such libraries that run now: panics of theirs are not printed.
static QUIET: AtomicUsize = AtomicUsize::new(0);

/// The result of `f`; a panic in it, which some files cause, is `None`. It may come from a thread of the
/// library, so that all threads keep silent meanwhile.
pub(crate) fn unless_panic<T>(f: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if QUIET.load(Ordering::SeqCst) == 0 {
                before(panic);
            }
        }));
    });
    QUIET.fetch_add(1, Ordering::SeqCst);
    let done = catch_unwind(AssertUnwindSafe(f));
    QUIET.fetch_sub(1, Ordering::SeqCst);
    done.ok()
}
