//! `add`, from builder to text and back.

use headwater_ascend::Arch;
use headwater_ascend::kernel::{Elem, parse};
use headwater_ascend::kernels::add;

#[test]
fn text_is_exact() {
    for arch in Arch::ALL {
        let program = add(arch, Elem::F16, 100_003, 4096).unwrap();
        let text = program.to_string();
        let again = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(again, program, "{text}");
        assert_eq!(again.to_string(), text);
    }
}
