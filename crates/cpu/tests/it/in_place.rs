//! Results that overwrite operands in place, which a program loads only after it has computed them.

use crate::common::run;
use headwater_core::{Registry, Tensor, graph, reference};
use headwater_cpu::Cpu;

#[test]
fn a_number_does_not_overwrite_what_is_loaded_later() {
    for (shape, space, access) in
        [("", "", ""), ("1", "1", "0"), ("4", "4", "0"), ("3, 1", "3, 1", "0 1"), ("1, 3", "1, 3", "0 1")]
    {
        let ty = format!("f32[{shape}]");
        let access = format!("f32({access})");
        let text = format!(
            "headwater graph 1\n\n%0 = user \"x\" : {ty}\n%1 = user \"y\" : {ty}\n\nforward\n%2 = neg(%1) : {ty}\n\
             %3, %4 = fused(%0, %2, ops=\"a\", outputs=\"{ty}; {ty}\", program=rows[][{space}] ({access}, {access}) -> \
             ({access}, {access}) {{ %0 = load 0; %1 = Mul %0 %0; %2 = store 0 %1; %3 = load 1; %4 = Add %1 %3; \
             %5 = store 1 %4; }}) : {ty}, {ty}\n%5 = neg(%3) : {ty}\n%6 = neg(%4) : {ty}\n\noutput \"a\" = %5\n\
             output \"b\" = %6\n"
        );
        let graph = graph::parse(&text, Registry::standard()).unwrap();
        let fed: Vec<Tensor> =
            (graph.inputs.iter().zip([0.25, 3.0])).map(|(i, x)| Tensor::full(graph.ty(i.value), x)).collect();
        let want = reference::run(&graph, &fed).unwrap();
        let got = run(&Cpu::new(1), &graph, &fed).unwrap();
        for (a, b) in want.iter().zip(&got) {
            assert_eq!(a.to_f64(), b.to_f64(), "{ty}");
        }
    }
}
