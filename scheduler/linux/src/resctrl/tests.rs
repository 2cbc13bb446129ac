//! The adapter on every machine of the recordings, with the answers of their kernels.

use super::classes::{plan, Layout, Need, Place, Setting};
use super::monitor::Event;
use super::steps::{steps, Op};
use super::*;
use crate::testing::{intel, Faulty, ModelFiles};
use std::collections::BTreeMap;
use surefoot_resctrlfs::hardware::{CacheDomain, Hardware};

const RUNS: [&str; 10] =
    ["6.1-one", "6.1-two", "6.1-e5", "6.1-amd", "6.1-faults", "6.12-one", "6.12-two", "6.12-e5", "6.12-amd", "6.12-faults"];

struct Host {
    _dir: tempfile::TempDir,
    files: ModelFiles,
    root: Root,
    r: Resctrl,
    layout: Layout,
}

impl Host {
    fn with(hw: Hardware, options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (files, root) = ModelFiles::mount(&Root::at(dir.path()), hw, options);
        let r = Resctrl::find(&root).unwrap().with_peak(Some(1e5));
        Host { _dir: dir, files, root, r, layout: Layout::default() }
    }

    fn recorded(run: &str, options: &str) -> Self {
        Self::with(Hardware::recorded(run).unwrap(), options)
    }

    fn spawn(&self, tids: &[u32]) {
        tids.iter().for_each(|t| self.files.machine().spawn(*t, *t, 1, 0));
    }

    fn show(&self, path: &str) -> String {
        self.r.read(self.r.dir.join(path)).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Where a thread is: "res:... mon:...".
    fn groups_of(&self, tid: u32) -> String {
        self.files.machine().task_groups(tid).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The whole tree with contents that are settings.
    fn tree(&self) -> Vec<(String, String)> {
        fn walk(r: &Resctrl, dir: &Path, out: &mut Vec<(String, String)>) {
            for name in r.files.list(dir).unwrap() {
                let p = dir.join(&name);
                if r.files.is_dir(&p) {
                    out.push((p.display().to_string(), String::new()));
                    walk(r, &p, out);
                } else if ["schemata", "mode", "tasks", "cpus"].contains(&name.as_str()) {
                    out.push((p.display().to_string(), r.read(&p).unwrap()));
                }
            }
        }
        let mut out = vec![];
        walk(&self.r, &self.r.dir, &mut out);
        out
    }

    /// Put `needs` in force, as the local server does; threads of a service are those in `tids`.
    fn apply(&mut self, needs: &BTreeMap<String, Need>, tids: &BTreeMap<String, Vec<u32>>) -> Result<Vec<Op>, ServerError> {
        let survey = self.r.survey()?;
        for (id, n) in needs {
            survey.check(&self.r.info, id, &n.setting)?;
        }
        let before = survey.with_members(&self.layout);
        let after = plan(needs, &before, &survey.bounds);
        let ops: Vec<Op> =
            steps(&before, &after, self.r.min_cbm_bits(), |id| needs.get(id).is_some_and(|n| n.lc)).into_iter().map(|s| s.1).collect();
        for op in &ops {
            self.r.execute(op, &|| match op {
                Op::Move { id, .. } => tids.get(id).cloned().unwrap_or_default(),
                _ => vec![],
            })?;
        }
        self.layout = after;
        Ok(ops)
    }
}

fn need(lc: bool, ways: &[u32], mba_pct: Option<u8>) -> Need {
    Need { setting: Setting { ways: ways.to_vec(), mba_pct }, lc }
}

fn tids(of: &[(&str, &[u32])]) -> BTreeMap<String, Vec<u32>> {
    of.iter().map(|(id, t)| (id.to_string(), t.to_vec())).collect()
}

/// What the recorded machines offer: lines, masks, units and classes differ, and are told.
#[test]
fn what_a_kernel_offers_is_read() {
    for run in RUNS {
        for options in ["", "cdp", "mba_MBps"] {
            let hw = Hardware::recorded(run).unwrap();
            if options == "mba_MBps" && !hw.mba_in_mbps() {
                continue;
            }
            let h = Host::recorded(run, options);
            let i = h.r.info();
            let l3 = i.l3.as_ref().unwrap();
            let said = format!("{run} {options}: {i:?}");
            assert_eq!((l3.cbm_mask, l3.shareable_bits, l3.min_cbm_bits), (hw.cbm_mask(), hw.shareable_bits, 1), "{said}");
            // 6.1 has no sparse_masks file: without it masks are blocks.
            assert_eq!(l3.sparse_masks, hw.sparse_masks && run.starts_with("6.12"), "{said}");
            assert_eq!((i.cdp(), l3.lines[0]), (options == "cdp", if options == "cdp" { "L3CODE" } else { "L3" }), "{said}");
            // 16 for L3, half of them with CDP; Intel's MBA has 8.
            let expected = if run.ends_with("e5") || run.ends_with("amd") {
                if options == "cdp" {
                    8
                } else {
                    16
                }
            } else {
                8
            };
            assert_eq!(i.num_closids, expected, "{said}");
            let unit = i.mba.as_ref().map(|m| m.unit);
            let expected = match (run.ends_with("e5"), run.ends_with("amd"), options) {
                (true, ..) => None,
                (_, true, _) => Some(mba::Unit::EighthGbPerS),
                (_, _, "mba_MBps") => Some(mba::Unit::MbPerS),
                _ => Some(mba::Unit::Percent),
            };
            assert_eq!(unit, expected, "{said}");
            assert_eq!(i.monitoring.as_ref().unwrap().num_rmids, hw.monitoring.unwrap().rmids, "{said}");
            assert!(i.monitors("mbm_local_bytes") && !i.monitors("mbm_sideways"), "{said}");
            assert_eq!(h.r.root_bytes(), Some(hw.llc_bytes), "{said}");
        }
    }
}

/// On each machine, kernel and mount: services get their classes and counters, change them, and leave the tree as it was.
#[test]
fn services_come_and_go_everywhere() {
    for run in RUNS {
        for options in ["", "cdp", "mba_MBps"] {
            let hw = Hardware::recorded(run).unwrap();
            if options == "mba_MBps" && !hw.mba_in_mbps() {
                continue;
            }
            let mut h = Host::recorded(run, options);
            h.spawn(&[10, 11, 20]);
            let before = h.tree();
            let n = hw.domains.len();
            let pct = |p: u8| h.r.mba_steps().map(|_| p);
            let (full, half) = (pct(100), pct(50));
            let threads = tids(&[("web", &[10, 11]), ("job", &[20])]);
            let needs = |web: u32, job: u32, p| {
                [("web".into(), need(true, &vec![web; n], full)), ("job".into(), need(false, &vec![job; n], p))].into()
            };
            h.apply(&needs(0x0f, 0x30, half), &threads).unwrap();
            let said = format!("{run} {options}: {:?}", h.tree());
            let line = |mask: &str| format!("0={mask}{}", if n > 1 { format!(";1={mask}") } else { String::new() });
            let width = if hw.cbm_bits == 20 { 5 } else { 4 };
            let l3 = line(&format!("{:0width$x}", 0x0f));
            let schemata = h.show("surefoot.web/schemata");
            let lines: &[&str] = if options == "cdp" { &["L3CODE", "L3DATA"] } else { &["L3"] };
            assert!(lines.iter().all(|l| schemata.contains(&format!("{l}:{l3}"))), "{said}");
            // 50 % of 100 GB/s: 400 eighths of a GB/s, or 50e9 / 2^20 = 47683.7 MB/s; of two domains each has half of that.
            let job = Schemata::parse(&h.r.read(h.r.dir.join("surefoot.job/schemata")).unwrap());
            let expected = h.r.info.mba.as_ref().map(|m| match m.unit {
                mba::Unit::Percent => 50,
                mba::Unit::EighthGbPerS => 400 / n as u32,
                mba::Unit::MbPerS => 47_684 / n as u32,
            });
            assert!((0..n as u32).all(|d| job.number("MB", d) == expected), "{said}");
            assert_eq!(h.groups_of(11), "res:surefoot.web mon:web", "{said}");
            // Nothing differs: nothing is done. Then only what differs is written, and a shrinking class comes first.
            assert_eq!(h.apply(&needs(0x0f, 0x30, half), &threads).unwrap(), [], "{said}");
            let ops = h.apply(&needs(0x07, 0x38, half), &threads).unwrap();
            assert!(matches!(&ops[..], [Op::Set { class: a, .. }, Op::Set { class: b, .. }] if a == "web" && b == "job"), "{ops:?}");
            // What a restarted process finds is what there is.
            assert_eq!(h.r.survey().unwrap().layout, h.layout, "{said}");
            h.apply(&BTreeMap::new(), &threads).unwrap();
            assert_eq!(h.tree(), before, "{run} {options}");
            assert_eq!(h.groups_of(10), "res:/ mon:", "{run} {options}");
        }
    }
}

/// Two services of one class count apart; with threads moved all at once on 6.12 and one by one on 6.1.
#[test]
fn services_that_share_a_class_count_apart() {
    for run in ["6.1-one", "6.12-one"] {
        let mut h = Host::recorded(run, "");
        h.spawn(&[10, 20]);
        // Foreign groups leave one class of seven.
        (0..6).for_each(|n| h.r.files.make_dir(&h.r.dir.join(format!("other{n}"))).unwrap());
        let threads = tids(&[("a", &[10]), ("b", &[20])]);
        let one = BTreeMap::from([("a".to_string(), need(false, &[0x3], Some(50)))]);
        h.apply(&one, &threads).unwrap();
        let mut two = one.clone();
        two.insert("b".into(), need(false, &[0xc], Some(40)));
        let ops = h.apply(&two, &threads).unwrap();
        assert_eq!(h.layout.companions("a"), ["b".to_string()].into());
        // Adjacent ways become one block, the lower bandwidth counts; the class keeps its name.
        assert_eq!(h.show("surefoot.a/schemata"), "MB:0= 40 L3:0=0000f", "{ops:?}");
        assert_eq!((h.groups_of(10), h.groups_of(20)), ("res:surefoot.a mon:a".into(), "res:surefoot.a mon:b".into()));
        h.files.machine().ran(10, 0, 1000);
        let of = |id: &str| h.r.counter(id, &Place::Class("a".into()), false, Event::MbmLocal).unwrap();
        assert!(of("a") > 0 && of("b") == 0, "{run}: {} {}", of("a"), of("b"));
        let held = h.layout.held("a", &[0], &h.r.survey().unwrap().bounds.default).unwrap();
        assert_eq!(held, (vec![0xf], vec![0xf]));
        // Room again: each has its own, and the counter of the one that moves goes along where the kernel can.
        (0..6).for_each(|n| h.r.files.remove_dir(&h.r.dir.join(format!("other{n}"))).unwrap());
        h.files.machine().ran(20, 0, 1000);
        let before = h.r.counter("b", &Place::Class("a".into()), false, Event::MbmTotal).unwrap();
        h.apply(&two, &threads).unwrap();
        let after = h.r.counter("b", &Place::Class("b".into()), true, Event::MbmTotal).unwrap();
        assert_eq!(h.groups_of(20), "res:surefoot.b mon:b");
        assert!(before > 0 && (run == "6.1-one" && after == 0 || run == "6.12-one" && after >= before), "{run}: {before} {after}");
    }
}

/// Every thread comes along: those that are born meanwhile, those that enter later; one that exits is no error.
#[test]
fn threads_follow_their_service() {
    let mut h = Host::recorded("6.1-one", "");
    h.spawn(&[41, 42]);
    let machine = h.files.clone();
    let looks = std::cell::Cell::new(0);
    // The second look finds a thread that came from outside, and one that is gone before it can be moved.
    let list = || {
        looks.set(looks.get() + 1);
        if looks.get() == 2 {
            machine.machine().spawn(43, 43, 1, 0);
        }
        if looks.get() < 2 {
            vec![41, 42]
        } else {
            vec![41, 42, 43, 99]
        }
    };
    let setting = Setting { ways: vec![0x3], mba_pct: Some(100) };
    h.r.execute(&Op::Make { class: "a".into(), setting }, &|| vec![]).unwrap();
    let place = Place::Class("a".into());
    h.r.execute(&Op::Move { id: "a".into(), from: None, to: Some(place.clone()) }, &list).unwrap();
    assert_eq!((h.show("surefoot.a/tasks"), h.show("surefoot.a/mon_groups/a/tasks")), ("41 42 43".into(), "41 42 43".into()));
    h.layout.classes.entry("a".into()).or_default().members.insert("a".into());
    // A process that enters the cgroup later is not in the class until it is looked for; without news nothing is written.
    h.spawn(&[7]);
    assert_eq!(h.r.follow("a", &place, &|| vec![41, 42, 43, 7], &mut |_| Ok(())).unwrap().unwrap().threads, 1);
    assert_eq!(h.groups_of(7), "res:surefoot.a mon:a");
    assert_eq!(h.r.follow("a", &place, &|| vec![41, 42, 43, 7], &mut |_| Ok(())).unwrap().unwrap().threads, 0);
    // One that enters at every look does not keep the plan waiting.
    let next = std::cell::Cell::new(100);
    let endless = || {
        next.set(next.get() + 1);
        machine.machine().spawn(next.get(), next.get(), 1, 0);
        vec![next.get()]
    };
    assert!(h.r.follow("a", &place, &endless, &mut |_| Ok(())).unwrap().unwrap().threads > 10);
}

/// Refusals carry path, value, the kernel's errno and its words; what was begun is taken back.
#[test]
fn refusals_carry_the_kernels_words() {
    let h = Host::with(intel(1, 11), "");
    let make = |class: &str, mask| {
        let setting = Setting { ways: vec![mask], mba_pct: Some(100) };
        h.r.execute(&Op::Make { class: class.into(), setting }, &|| vec![])
    };
    let r = make("gap", 0x5).unwrap_err();
    let said = r.error.to_string();
    assert!(said.contains("L3:0=5") && said.contains("os error 22") && said.contains("non-consecutive"), "{said}");
    assert!(!h.r.files.is_dir(&h.r.class_dir("gap")));
    (0..7).for_each(|n| make(&format!("g{n}"), 0x1).unwrap());
    let r = make("b", 0x1).unwrap_err();
    assert!(r.is_shortage() && r.error.to_string().contains("Out of CLOSIDs"), "{r:?}");
    assert_eq!(r.cause, refusal::Cause::OutOfClasses);
}

/// Ways of exclusive groups and pseudo-locked regions are told from the files, before anything is written.
#[test]
fn ways_of_others_are_kept_off() {
    let mut h = Host::recorded("6.12-two", "");
    h.r.files.make_dir(&h.r.dir.join("kvm")).unwrap();
    h.r.files.write(&h.r.dir.join("schemata"), "L3:0=ffff0;1=ffff0\n").unwrap();
    h.r.files.write(&h.r.dir.join("kvm/schemata"), "L3:0=f;1=f\n").unwrap();
    h.r.files.write(&h.r.dir.join("kvm/mode"), "exclusive\n").unwrap();
    let before = h.tree();
    let needs = |mask| BTreeMap::from([("web".to_string(), need(true, &[0xf0, mask], Some(100)))]);
    let said = h.apply(&needs(0x18), &BTreeMap::new()).unwrap_err().to_string();
    assert!(said.contains("0x8 of exclusive group kvm") && said.contains("L3 domain 1") && said.contains("Nothing was changed"), "{said}");
    assert_eq!(h.tree(), before);
    h.apply(&needs(0x30), &BTreeMap::new()).unwrap();
    assert_eq!(h.show("kvm/schemata"), "MB:0= 100;1= 100 L3:0=0000f;1=0000f");
    assert_eq!(h.r.survey().unwrap().foreign, ["kvm"]);
    let e5 = Host::recorded("6.12-e5", "");
    e5.r.files.write(&e5.r.dir.join("schemata"), "L3:0=ffff0\n").unwrap();
    e5.r.files.make_dir(&e5.r.dir.join("locked")).unwrap();
    e5.r.files.write(&e5.r.dir.join("locked/mode"), "pseudo-locksetup\n").unwrap();
    e5.r.files.write(&e5.r.dir.join("locked/schemata"), "L3:0=3\n").unwrap();
    let survey = e5.r.survey().unwrap();
    assert_eq!(survey.reserved.iter().map(|r| (r.mask, r.by.as_str())).collect::<Vec<_>>(), [(0x3, "pseudo-locked group locked")]);
}

/// Ways that an exclusive group has for code or for data only are its own, with CDP; what takes the least of a class keeps off them, too.
#[test]
fn halves_of_an_exclusive_group_are_kept_off() {
    let h = Host::recorded("6.12-one", "cdp");
    h.r.files.write(&h.r.dir.join("schemata"), "L3CODE:0=fff00\nL3DATA:0=fff00\n").unwrap();
    h.r.files.make_dir(&h.r.dir.join("kvm")).unwrap();
    h.r.files.write(&h.r.dir.join("kvm/schemata"), "L3CODE:0=3\nL3DATA:0=3c\n").unwrap();
    h.r.files.write(&h.r.dir.join("kvm/mode"), "exclusive\n").unwrap();
    let survey = h.r.survey().unwrap();
    assert_eq!(survey.reserved.iter().map(|r| (r.mask, r.by.as_str())).collect::<Vec<_>>(), [(0x3f, "exclusive group kvm")]);
    let offer = h.r.offer(&survey, &BTreeMap::from([(0, 0)]));
    assert_eq!((offer.ways, offer.to_hardware(&[0], &[0x3])), (14, vec![0xc0]));
    let crate::safe::Op::Write { text, .. } = h.r.least_op("a").unwrap() else { panic!() };
    assert_eq!(text, "L3CODE:0=40\nL3DATA:0=40\n");
    h.r.execute(&Op::Make { class: "a".into(), setting: Setting { ways: vec![0xc0], mba_pct: None } }, &|| vec![]).unwrap();
    h.r.files.write(&h.r.class_dir("a").join("schemata"), &text).unwrap();
    // The default group may be exclusive, too: what it does not have is left.
    let h = Host::recorded("6.12-one", "");
    h.r.files.write(&h.r.dir.join("schemata"), "L3:0=3ffff\n").unwrap();
    h.r.files.write(&h.r.dir.join("mode"), "exclusive\n").unwrap();
    let offer = h.r.offer(&h.r.survey().unwrap(), &BTreeMap::from([(0, 0)]));
    assert_eq!((offer.ways, offer.to_hardware(&[0], &[0x1])), (2, vec![0x40000]));
    assert!(offer.taken[0].contains("default group") && offer.taken[0].contains("0x3ffff"), "{:?}", offer.taken);
}

/// A share of the machine's bandwidth is written to each L3 domain as the same share of its own part, on AMD and under mba_MBps; and it is
/// read back as that share. AMD's field may be wider than 2048 eighths, and its greatest value is no limit.
#[test]
fn a_share_of_bandwidth_is_each_domains_share() {
    for (run, options, half) in
        [("6.1-two", "mba_MBps", 23_842), ("6.12-two", "mba_MBps", 23_842), ("6.1-amd", "", 200), ("6.12-amd", "", 200)]
    {
        let mut h = Host::recorded(run, options);
        let needs = |pct| BTreeMap::from([("job".to_string(), need(false, &[0x3, 0x3], Some(pct)))]);
        h.apply(&needs(50), &BTreeMap::new()).unwrap();
        let schemata = Schemata::parse(&h.r.read(h.r.class_dir("job").join("schemata")).unwrap());
        assert_eq!([0, 1].map(|d| schemata.number("MB", d)), [Some(half); 2], "{run}");
        assert_eq!(h.r.survey().unwrap().layout.classes["job"].setting.mba_pct, Some(50), "{run}");
        h.apply(&needs(100), &BTreeMap::new()).unwrap();
        let free = Schemata::parse(&h.r.read(h.r.class_dir("job").join("schemata")).unwrap());
        let root = Schemata::parse(&h.r.read(h.r.dir.join("schemata")).unwrap());
        assert_eq!(free.line("MB"), root.line("MB"), "{run}");
    }
    let mut wide = Hardware::recorded("6.12-amd").unwrap();
    wide.mba.iter_mut().for_each(|m| m.max = 4096);
    let h = Host::with(wide, "");
    let m = h.r.info().mba.clone().unwrap();
    assert_eq!((m.unit, m.value(100, Some(5e4)), m.domains), (mba::Unit::EighthGbPerS, Some(4096), 2));
}

/// A value between two steps comes out as the next one up, which is no error; a mask that is widened is one.
#[test]
fn what_the_kernel_made_of_a_write_is_read_back() {
    let h = Host::recorded("6.12-one", "");
    let setting = Setting { ways: vec![0xf], mba_pct: Some(100) };
    h.r.execute(&Op::Make { class: "a".into(), setting: setting.clone() }, &|| vec![]).unwrap();
    let dir = h.r.class_dir("a");
    let e = schemata::Entry { resource: "MB", domain: 0, value: "45".into() };
    let got = |text: &str| Schemata::parse(text);
    assert!(h.r.kept(&dir, &e, &got("MB:0=50")).is_ok());
    assert!(h.r.kept(&dir, &e, &got("MB:0=60")).unwrap_err().error.to_string().contains("wrote 45, the kernel keeps 60"));
    let e = schemata::Entry { resource: "L3", domain: 0, value: "40000".into() };
    let said = h.r.kept(&dir, &e, &got("L3:0=c0000")).unwrap_err().error.to_string();
    assert!(said.contains("wrote 40000, the kernel keeps c0000") && said.contains("contention bits c0000"), "{said}");
    assert!(h.r.kept(&dir, &e, &got("")).unwrap_err().error.to_string().contains("keeps nothing"));
}

/// Without a monitoring id a service has its class, and no counter of its own; alone in the class it has the class's.
#[test]
fn no_monitoring_id_means_no_counter_and_no_error() {
    for errno in [libc::ENOSPC, libc::EBUSY] {
        let h = Host::with(intel(1, 11), "");
        h.spawn(&[5]);
        let faulty = Faulty::new(h.root.files.clone());
        let r = Resctrl { files: faulty.clone(), ..h.r.clone() };
        let setting = Setting { ways: vec![0x3], mba_pct: Some(100) };
        r.execute(&Op::Make { class: "a".into(), setting }, &|| vec![]).unwrap();
        // Changes of the move: the thread, the monitoring group.
        faulty.arm(BTreeMap::from([(1, errno)]));
        let place = Place::Class("a".into());
        r.execute(&Op::Move { id: "a".into(), from: None, to: Some(place.clone()) }, &|| vec![5]).unwrap();
        assert_eq!(h.groups_of(5), "res:surefoot.a mon:", "{errno}");
        assert_eq!((r.counter("a", &place, true, Event::MbmLocal), r.counter("a", &place, false, Event::MbmLocal)), (Some(0), None));
        // It gets its own as soon as there is one.
        faulty.arm(BTreeMap::new());
        r.follow("a", &place, &|| vec![5], &mut |_| Ok(())).unwrap();
        assert_eq!(h.groups_of(5), "res:surefoot.a mon:a");
    }
}

/// Counters in error or not available are unknown, never 0.
#[test]
fn counters_without_a_figure_are_unknown() {
    for run in ["6.1-faults", "6.12-faults"] {
        let h = Host::recorded(run, "");
        let mut seen = vec![];
        for n in 0..4 {
            let place = Place::Default;
            h.r.execute(&Op::Move { id: format!("s{n}"), from: None, to: Some(place.clone()) }, &|| vec![]).unwrap();
            seen.push([Event::MbmLocal, Event::MbmTotal, Event::LlcOccupancy].map(|e| h.r.counter(&format!("s{n}"), &place, true, e)));
        }
        // The second and third RMID that are given out (2 and 3) fail.
        let known: Vec<bool> = seen.iter().map(|s| s.iter().all(Option::is_some)).collect();
        assert_eq!(known, [true, false, false, true], "{run}: {seen:?}");
        assert!(seen.iter().flatten().all(|v| v.is_none_or(|n| n == 0)));
    }
}

/// Ids of domains with a gap; a stand-in is used only where it is named, and where none is mounted that is said.
#[test]
fn mounts_are_told_apart() {
    let mut hw = intel(2, 11);
    hw.domains[1] = CacheDomain { id: 16, ..hw.domains[1].clone() };
    let mut h = Host::with(hw, "");
    let needs = BTreeMap::from([("web".to_string(), need(true, &[0x3, 0x70], Some(40)))]);
    h.apply(&needs, &BTreeMap::new()).unwrap();
    assert_eq!(h.show("surefoot.web/schemata"), "MB:0= 40;16= 40 L3:0=003;16=070");
    let mounts = h.root.path("/proc/mounts");
    std::fs::write(&mounts, "resctrl /sys/fs/resctrl fuse.resctrl rw,nosuid 0 0\n").unwrap();
    assert!(Resctrl::find(&h.root).is_none());
    let named = Resctrl::named(&h.root, Path::new("/sys/fs/resctrl")).unwrap();
    assert!(named.is_stand_in() && named.survey().unwrap().layout.classes.len() == 1);
    let said = Resctrl::named(&h.root, Path::new("/tmp/none")).unwrap_err().to_string();
    assert!(said.contains("/tmp/none") && said.contains("Mount it first"), "{said}");
    assert_eq!(unescape("/a\\040b\\134c\\x"), "/a b\\c\\x");
}

/// Everything of ours goes, LC services first; what others made, and what they set, stays.
#[test]
fn clearing_leaves_what_others_made() {
    let mut h = Host::recorded("6.12-two", "");
    h.spawn(&[10, 20, 30]);
    h.r.files.make_dir(&h.r.dir.join("kvm")).unwrap();
    h.r.files.make_dir(&h.r.dir.join("mon_groups/vm")).unwrap();
    h.r.files.write(&h.r.dir.join("kvm/tasks"), "30\n").unwrap();
    h.r.files.write(&h.r.dir.join("schemata"), "L3:0=ffff0\nMB:1=50\n").unwrap();
    let before = h.tree();
    let needs = BTreeMap::from([
        ("web".to_string(), need(true, &[0x3, 0x70], Some(100))),
        ("job".to_string(), need(false, &[0xc, 0xf00], Some(40))),
    ]);
    h.apply(&needs, &tids(&[("web", &[10]), ("job", &[20])])).unwrap();
    // One that is only monitored.
    h.r.execute(&Op::Move { id: "x".into(), from: None, to: Some(Place::Default) }, &|| vec![]).unwrap();
    // A new process knows no members.
    assert_eq!(h.r.clear(|_| false).unwrap(), ["job", "web"]);
    assert_eq!(h.tree(), before);
}
