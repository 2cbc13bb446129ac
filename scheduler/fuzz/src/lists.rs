//! Kernel lists of CPUs ("0-3,8"), as a node reads them from cpuset files and node.toml.

use surefoot_resctrlfs::cpus::Cpus;
use surefoot_server::CpuSet;

pub fn run(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        match CpuSet::parse(text) {
            Ok(set) => {
                let again = CpuSet::parse(&set.to_string()).expect("what was printed can be read");
                assert_eq!(set, again, "parse, print, parse");
                assert_eq!(set.len() as usize, set.iter().count());
                assert!(set.iter().all(|c| c < CpuSet::CAPACITY));
                // The kernel's model reads the same set from what we print.
                let kernel = Cpus::parse_list(set.to_string().as_bytes(), CpuSet::CAPACITY).expect("the kernel reads our lists");
                assert!(kernel.iter().eq(set.iter()));
            }
            Err(e) => assert!(!e.is_empty()),
        }
    }
    for n_cpus in [1, 31, 32, 33, 100] {
        if let Ok(cpus) = Cpus::parse_mask(data, n_cpus) {
            let again = Cpus::parse_mask(cpus.mask(n_cpus).as_bytes(), n_cpus).expect("a mask that was shown can be written");
            assert_eq!(cpus, again);
        }
        if let Ok(cpus) = Cpus::parse_list(data, n_cpus) {
            assert!(cpus.iter().all(|c| c < n_cpus));
            let again = Cpus::parse_list(cpus.list().as_bytes(), n_cpus).expect("a list that was shown can be written");
            assert_eq!(cpus, again);
        }
    }
}
