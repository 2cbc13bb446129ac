//! Every seed, and every input that once broke a promise, keeps all promises.

use std::path::Path;
use surefoot_fuzz::TARGETS;

/// Each target has seeds, and none of them (nor nothing at all) breaks it.
#[test]
fn seeds_keep_every_promise() {
    for (name, run) in TARGETS {
        run(b"");
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
        let mut seeds: Vec<_> =
            std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())).map(|e| e.unwrap().path()).collect();
        seeds.sort();
        assert!(!seeds.is_empty(), "{name} has no seeds");
        for seed in seeds {
            println!("{}", seed.display());
            run(&std::fs::read(&seed).unwrap());
        }
    }
}
