//! Predicting, acting and learning allocate nothing once their buffers have grown.

use std::path::Path;
use surefoot_learn::{one_hot, Bundle, Expect, Scratch, TrustedKeys};
use surefoot_mutate::allocations::{allocations, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The first call may allocate, the following ones may not.
#[test]
fn hot_paths_do_not_allocate() {
    assert!(allocations(|| drop(std::hint::black_box(vec![1u8; 9]))) > 0, "the counter counts");
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors");
    let keys = TrustedKeys::load(&vectors.join("keys/trusted")).unwrap();
    let mut b = Bundle::load(&vectors.join("bundle-small"), &keys, &Expect::default()).unwrap();
    let mut scratch = Scratch::default();
    let raw = vec![Some(1.0); b.a.inputs.len()];
    let mut infer = || {
        b.a.predict(&raw, &mut scratch).unwrap();
        b.b.predict_by(|_| Some(1.0), &mut scratch).unwrap();
    };
    infer();
    assert_eq!(allocations(infer), 0);

    let s = vec![0.5; b.c.inputs.len()];
    for i in 0.. {
        b.c.remember(&s, &one_hot(i % 7), 1.0, &s);
        if b.c.remembered() == b.c.hyper.replay {
            break;
        }
    }
    let window = b.c.guard.window;
    let mut learn = || {
        let p = b.c.act(&s);
        b.c.remember(&s, &one_hot(b.c.best(&p)), 1.0, &s);
        assert!(b.c.learn_step().unwrap().is_some());
    };
    // Two windows of the guard: one for the buffers to grow, one that is watched.
    let mut windows = |n: u32| (0..n).for_each(|_| learn());
    windows(window);
    assert_eq!(allocations(|| windows(window)), 0);
    assert_eq!(b.c.counts().kept + b.c.counts().refused, 2, "{:?}", b.c.counts());
}
