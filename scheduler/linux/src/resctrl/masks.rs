//! Way masks are judged before they are written: the kernel only says EINVAL, and a log that others write to.

use super::info::L3;
use surefoot_server::allocation::contiguous;

/// Ways that another group holds alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Index of the domain.
    pub domain: usize,
    pub mask: u32,
    /// "exclusive group kvm", "a pseudo-locked region".
    pub by: String,
}

/// Why `ways` of `who` must not be written; `domains` are the ids that go with them.
///
/// # Errors
/// One line: domain, mask, what is wrong, what would be right.
pub fn check(l3: &L3, domains: &[u32], who: &str, ways: &[u32], reserved: &[Reserved]) -> Result<(), String> {
    if ways.len() != domains.len() {
        return Err(format!("{who}: {} way masks, but resctrl has {} L3 domains. Give one for each", ways.len(), domains.len()));
    }
    for (i, (id, mask)) in domains.iter().zip(ways).enumerate() {
        let at = format!("{who}: CBM {mask:#x} of L3 domain {id}");
        if mask & !l3.cbm_mask != 0 {
            return Err(format!("{at} is beyond the ways that there are, {:#x}. Stay within them", l3.cbm_mask));
        }
        if mask.count_ones() < l3.min_cbm_bits {
            return Err(format!("{at} has fewer than {} bits (min_cbm_bits). Give it more", l3.min_cbm_bits));
        }
        if !l3.sparse_masks && !contiguous(*mask) {
            let block = mask | (u32::MAX << mask.trailing_zeros()) & (u32::MAX >> mask.leading_zeros());
            return Err(format!("{at} has a gap, which this processor does not take. Give it one block, e.g. {block:#x}"));
        }
        if let Some(r) = reserved.iter().find(|r| r.domain == i && r.mask & mask != 0) {
            return Err(format!("{at} takes ways {:#x} of {}. Keep off them, or free them there", r.mask & mask, r.by));
        }
    }
    Ok(())
}

/// Ways that a line of `bit_usage` ("0=XXSSPP;1=...", highest way first) marks with `letter`, by domain id.
pub fn marked(bit_usage: &str, letter: char) -> Vec<(u32, u32)> {
    let of = |bits: &str| bits.chars().rev().take(32).enumerate().filter(|(_, c)| *c == letter).fold(0, |m, (i, _)| m | 1 << i);
    bit_usage
        .trim()
        .split(';')
        .filter_map(|d| d.split_once('='))
        .filter_map(|(id, bits)| Some((id.trim().parse().ok()?, of(bits))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn l3() -> L3 {
        L3 { lines: &["L3"], cbm_mask: 0x7ff, min_cbm_bits: 2, shareable_bits: 0x600, sparse_masks: false }
    }

    /// Each rule has its own line, with the remedy.
    #[test]
    fn broken_masks_are_named() {
        let other = Reserved { domain: 1, mask: 0xc, by: "exclusive group kvm".into() };
        let says = |ways: &[u32]| check(&l3(), &[0, 16], "moses", ways, std::slice::from_ref(&other)).unwrap_err();
        assert!(check(&l3(), &[0, 16], "moses", &[0xc, 0x3], std::slice::from_ref(&other)).is_ok());
        assert!(says(&[0x3]).contains("1 way masks, but resctrl has 2"));
        assert!(says(&[0x3, 0x800]).contains("0x800 of L3 domain 16 is beyond"));
        assert!(says(&[0x1, 0x3]).contains("fewer than 2 bits"));
        assert!(says(&[0x35, 0x3]).contains("e.g. 0x3f"));
        assert!(says(&[0x3, 0xe]).contains("takes ways 0xc of exclusive group kvm"));
        let sparse = L3 { sparse_masks: true, ..l3() };
        assert!(check(&sparse, &[0], "moses", &[0x5], &[]).is_ok() && check(&sparse, &[0], "moses", &[0], &[]).is_err());
    }

    /// The highest way comes first; ids need not be dense.
    #[test]
    fn usage_is_read_from_the_top() {
        assert_eq!(marked("0=XXSSSPPS;16=SSSSSSSP\n", 'P'), [(0, 0b110), (16, 1)]);
        assert_eq!(marked("0=HH00", 'P'), [(0, 0)]);
    }
}
