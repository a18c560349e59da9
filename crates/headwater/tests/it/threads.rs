//! The same bits for any number of threads, and for every run.

use crate::common::train;

#[test]
fn training_gives_the_same_bits_for_any_number_of_threads_and_every_run() {
    let one = train(1, |_| {});
    assert_eq!(one.losses.len(), 4);
    assert!(one.tensors.len() > 30);
    for threads in [1, 2, 7] {
        let other = train(threads, |_| {});
        assert!(one.same_losses(&other), "{threads} threads: other losses");
        assert!(one.tensors == other.tensors, "{threads} threads: other parameters");
    }
}
