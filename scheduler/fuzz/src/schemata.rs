//! `schemata` from both sides: any text is read without a crash, and what a node judges before it writes is what the kernel (its
//! stand-in) then says.
//!
//! The first line is "BITS MASK MASK EXCLUSIVE NUMBER": hardware, masks in hex of two domains and of another group, and what to give
//! of the bandwidth. The rest is text of a `schemata` or `bit_usage` file.

use crate::resctrlfs::hardware;
use std::path::Path;
use surefoot_linux::resctrl::info::L3;
use surefoot_linux::resctrl::masks::{check, marked, Reserved};
use surefoot_linux::resctrl::mba::{MbaInfo, Unit, NO_LIMIT_EIGHTHS};
use surefoot_linux::resctrl::schemata::{text, Entry, Schemata};
use surefoot_resctrlfs::{Caller, Machine};

/// A line that the kernel may show, in the form in which it is written.
fn printed(resource: &'static str, s: &Schemata) -> Vec<Entry> {
    let line = s.line(resource).into_iter().flatten();
    line.map(|(domain, value)| Entry { resource, domain: *domain, value: value.clone() }).collect()
}

fn read(m: &Machine, path: &str) -> Schemata {
    let node = m.resolve(Path::new(path), Caller::ROOT).expect("a file of a group");
    Schemata::parse(std::str::from_utf8(&m.read(node).expect("a file that can be read")).expect("text"))
}

fn write(m: &mut Machine, path: &str, text: &str) -> bool {
    let node = m.resolve(Path::new(path), Caller::ROOT).expect("a file of a group");
    m.write(node, text.as_bytes(), Caller::ROOT).is_ok()
}

/// Read, written and read again it is the same.
fn texts(data: &str) {
    let s = Schemata::parse(data);
    for resource in ["L3", "L3CODE", "L3DATA", "MB"] {
        let entries = printed(resource, &s);
        let again = Schemata::parse(&text(&entries));
        assert_eq!(printed(resource, &again), entries);
        for e in entries {
            let _ = (s.mask(resource, e.domain), s.number(resource, e.domain));
        }
    }
    // A way has one mark: domain for domain, those of two marks have nothing in common.
    let (ours, theirs) = (marked(data, 'S'), marked(data, 'X'));
    assert!(ours.len() == theirs.len() && ours.iter().zip(&theirs).all(|(a, b)| a.0 == b.0 && a.1 & b.1 == 0));
}

pub fn run(data: &[u8]) {
    let Ok(data) = std::str::from_utf8(data) else { return };
    let (first, rest) = data.split_once('\n').unwrap_or((data, ""));
    texts(rest);
    let words: Vec<&str> = first.split(' ').collect();
    let [bits, a, b, taken, number] = words.as_slice() else { return };
    let hex = |t: &str| u32::from_str_radix(t, 16).unwrap_or(0);
    let (ways, taken) = ([hex(a), hex(b)], hex(taken));

    let hw = hardware(bits.parse().unwrap_or(0));
    let ids: Vec<u32> = hw.domains.iter().map(|d| d.id).collect();
    let l3 = L3 {
        lines: &["L3"],
        cbm_mask: hw.cbm_mask(),
        min_cbm_bits: hw.min_cbm_bits,
        shareable_bits: hw.shareable_bits,
        sparse_masks: hw.sparse_masks,
    };
    let mut m = Machine::new(hw);
    m.mount("", false).expect("mounts");
    for group in ["ours", "other"] {
        let root = m.resolve(Path::new(""), Caller::ROOT).expect("the root");
        m.mkdir(root, group.as_ref(), 0o755, Caller::ROOT).expect("there are classes");
    }
    let on_all = |mask: u32| ids.iter().map(|d| Entry { resource: "L3", domain: *d, value: format!("{mask:x}") }).collect::<Vec<_>>();
    // All but the low ways to somebody who holds them alone, where the kernel lets him.
    let low = text(&on_all(0b111));
    let exclusive = write(&mut m, "schemata", &low)
        && write(&mut m, "ours/schemata", &low)
        && write(&mut m, "other/schemata", &text(&on_all(taken)))
        && write(&mut m, "other/mode", "exclusive\n");
    let reserved: Vec<Reserved> =
        (0..ids.len()).map(|domain| Reserved { domain, mask: taken, by: "exclusive group other".into() }).filter(|_| exclusive).collect();
    let entries: Vec<Entry> = ids.iter().zip(ways).map(|(d, w)| Entry { resource: "L3", domain: *d, value: format!("{w:x}") }).collect();
    let before = read(&m, "ours/schemata");
    let judged = check(&l3, &ids, "ours", &ways, &reserved);
    let taken = write(&mut m, "ours/schemata", &text(&entries));
    assert_eq!(taken, judged.is_ok(), "{ways:x?} beside {reserved:?}: {judged:?}");
    let after = read(&m, "ours/schemata");
    if let Err(why) = judged {
        crate::one_line(&why);
        assert_eq!(after, before, "refused, yet changed");
    } else {
        assert!(ids.iter().zip(ways).all(|(d, w)| after.mask("L3", *d) == Some(w)), "{after:?}");
    }
    bandwidth(&mut m, number.parse().unwrap_or(0), ids[0]);
}

/// What a share of the bandwidth becomes is what the kernel keeps of it.
fn bandwidth(m: &mut Machine, pct: u8, domain: u32) {
    let Some(mba) = m.hardware().mba.clone() else { return };
    let unit = if mba.linear { Unit::Percent } else { Unit::EighthGbPerS };
    let info = MbaInfo {
        unit,
        min: mba.min,
        step: mba.step,
        linear: mba.linear,
        throttle_mode: None,
        domains: 1,
        no_limit_eighths: NO_LIMIT_EIGHTHS,
    };
    let Some(value) = info.value(pct, Some(200_000.0)).filter(|_| pct <= 100) else { return };
    let entry = Entry { resource: "MB", domain, value: value.to_string() };
    assert!(write(m, "ours/schemata", &text(&[entry])), "{pct} % as {value}");
    assert_eq!(read(m, "ours/schemata").number("MB", domain), Some(value), "{pct} %");
}
