//! Groups that programs tell apart, by number (`bpf/classes.h`).

/// Groups at a time, and one: 0 stands for every other thread.
pub const CLASSES: usize = 32;

/// A number that a header of the programs defines.
#[cfg(test)]
pub fn defined(header: &str, name: &str) -> u64 {
    let line = header.lines().find_map(|l| l.strip_prefix(&format!("#define {name} ")));
    line.and_then(|n| n.trim().parse().ok()).unwrap_or_else(|| panic!("{name} is no number in the header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_have_as_many() {
        assert_eq!(defined(include_str!("../bpf/classes.h"), "CLASSES"), CLASSES as u64);
    }
}
