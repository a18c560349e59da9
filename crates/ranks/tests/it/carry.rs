//! Each collective over a transport has the bits of the reference over all ranks.

use headwater_core::carry::Carrier;
use headwater_core::ops::collective::{
    all_gather::ALL_GATHER, all_reduce::ALL_REDUCE, all_to_all::ALL_TO_ALL, broadcast::BROADCAST, on,
    reduce_scatter::REDUCE_SCATTER, shard::SHARD, sum_lanes::SUM_LANES,
};
use headwater_core::ranks::{DATA, Exchange, Transport, exchanged, lanes_of, parts_by_rank};
use headwater_core::reference::apply_ranks;
use headwater_core::{Attrs, DType, OpCx, OpDef, Tensor, TensorType};
use headwater_ranks::World;
use std::sync::Arc;

/// Numbers that no two ranks share, and whose sums round.
fn given(rank: usize, number: usize, ty: &TensorType) -> Tensor {
    let bytes: Vec<u8> = (0..ty.shape.numel())
        .flat_map(|i| {
            let x = ((i * 7919 + rank * 104_729 + number * 1_299_709) % 100_003) as f64 / 911.0 - 50.0;
            if ty.dtype == DType::F64 { x.to_le_bytes().to_vec() } else { (x as f32).to_le_bytes().to_vec() }
        })
        .collect();
    Tensor::from_bytes(ty, &bytes)
}

/// Runs a rank's part on each of `ranks` threads.
fn on_all<T: Send>(ranks: usize, work: impl Fn(Arc<dyn Transport>) -> T + Sync) -> Vec<T> {
    let world = World::new(ranks);
    std::thread::scope(|s| {
        let work = &work;
        let all: Vec<_> = (0..ranks).map(|r| (r, world.clone())).collect();
        let all: Vec<_> = all.into_iter().map(|(r, w)| s.spawn(move || work(w.rank(r)))).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn check(op: &'static OpDef, attrs: &Attrs, ty: &TensorType, count: usize, ranks: usize) {
    let all: Vec<Vec<Tensor>> = (0..ranks).map(|r| (0..count).map(|n| given(r, n, ty)).collect()).collect();
    let borrowed: Vec<Vec<Option<&Tensor>>> = all.iter().map(|own| own.iter().map(Some).collect()).collect();
    let types = vec![Some(ty); count];
    let outs = (op.infer)(&OpCx { inputs: types, attrs }).unwrap();
    let want = apply_ranks(op, attrs, &borrowed, &outs).unwrap();
    let got = on_all(ranks, |transport| {
        let bytes: Vec<Vec<u8>> = all[transport.rank()].iter().map(Tensor::to_bytes).collect();
        let operands: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let mut out = vec![0; outs[0].bytes()];
        let carrier = Carrier { transport: &*transport, op, attrs, dtype: ty.dtype };
        carrier.run(&operands, &mut out).unwrap();
        out
    });
    for (rank, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!(*got == want[0].to_bytes(), "{} on rank {rank} of {ranks}, {ty}", op.name);
    }
}

#[test]
fn collectives_over_a_transport_have_the_bits_of_the_reference() {
    for ranks in [1, 2, 3, 4, 7] {
        let on = on(DATA, ranks);
        for dtype in [DType::F32, DType::F64] {
            // Ranks have parts of different lengths of a sum over lanes.
            let any = TensorType::new(dtype, [13usize]);
            let whole = TensorType::new(dtype, [2 * ranks, 5]);
            check(&ALL_REDUCE, &on, &any, 1, ranks);
            check(&ALL_GATHER, &on, &any, 1, ranks);
            check(&BROADCAST, &on.clone().with("root", ranks as i64 - 1), &any, 1, ranks);
            for op in [&REDUCE_SCATTER, &ALL_TO_ALL, &SHARD] {
                check(op, &on, &whole, 1, ranks);
            }
            for lanes in ranks..3 * ranks {
                let most = parts_by_rank(lanes, ranks).into_iter().max().unwrap();
                check(&SUM_LANES, &on.clone().with("lanes", lanes as i64), &any, most, ranks);
            }
        }
    }
}

#[test]
fn a_sum_over_lanes_has_the_same_bits_for_any_number_of_ranks() {
    let (ty, lanes) = (TensorType::new(DType::F32, [1000usize]), 8);
    let add = |a: &mut Vec<f32>, b: &[f32]| a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    let floats = |t: &Tensor| t.to_f64().iter().map(|x| *x as f32).collect::<Vec<f32>>();
    let mut found: Vec<Vec<u8>> = Vec::new();
    for ranks in 1..=lanes {
        let sums = on_all(ranks, |transport| {
            let own = lanes_of(transport.rank(), ranks, lanes);
            let mut stack: Vec<Vec<f32>> = Vec::new();
            for lane in own.clone() {
                let mut sum = floats(&given(lane, 0, &ty));
                for _ in 0..headwater_core::ranks::joins(lanes, own.start, lane) {
                    let mut first = stack.pop().unwrap();
                    add(&mut first, &sum);
                    sum = first;
                }
                stack.push(sum);
            }
            stack.rotate_right(1);
            let bytes: Vec<Vec<u8>> =
                stack.iter().map(|s| s.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
            let operands: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
            let attrs = on(DATA, ranks).with("lanes", lanes as i64);
            let mut out = vec![0; ty.bytes()];
            let carrier =
                Carrier { transport: &*transport, op: &SUM_LANES, attrs: &attrs, dtype: DType::F32 };
            carrier.run(&operands, &mut out).unwrap();
            out
        });
        assert!(sums.iter().all(|s| *s == sums[0]), "ranks differ");
        found.push(sums[0].clone());
    }
    assert!(found.iter().all(|s| *s == found[0]));
    // A chain has other bits: the order is looked at.
    let mut chain = floats(&given(0, 0, &ty));
    (1..lanes).for_each(|lane| add(&mut chain, &floats(&given(lane, 0, &ty))));
    assert_ne!(chain.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(), found[0]);
}

#[test]
fn ranks_that_exchange_different_things_are_told() {
    let errors = on_all(2, |transport| {
        let exchange = match transport.rank() {
            0 => Exchange::Barrier,
            _ => Exchange::AllGather(vec![1]),
        };
        exchanged(&*transport, exchange).unwrap_err().message
    });
    assert!(errors.iter().all(|e| e.contains("different things")), "{errors:?}");
    let sizes = on_all(2, |transport| {
        let bytes = vec![0u8; if transport.rank() == 0 { 16 } else { 32 }];
        let attrs = on(DATA, 2);
        let carrier = Carrier { transport: &*transport, op: &ALL_REDUCE, attrs: &attrs, dtype: DType::F32 };
        let done = carrier.run(&[&bytes], &mut vec![0; bytes.len()]);
        if done.is_err() {
            transport.abort("it was told so");
        }
        done.is_err()
    });
    assert!(sizes.iter().all(|e| *e));
}

#[test]
fn a_rank_that_ends_ends_what_others_wait_for() {
    let errors = on_all(3, |transport| {
        if transport.rank() == 1 {
            transport.abort("its data are gone");
            return String::new();
        }
        exchanged(&*transport, Exchange::Barrier).unwrap_err().message
    });
    assert!(errors[0] == "rank 1 has ended: its data are gone" && errors[2] == errors[0], "{errors:?}");
}
