//! Shapes of load: courses, files and errors.

use super::*;
use crate::known::Site;
use crate::workload::Workload;
use surefoot_vserver::Profiles;

const PLAIN: &str = "duration_s = 600\n[[lc]]\nservice = \"moses\"\nload = 0.5\narrive_s = 1\nleave_s = 500\n\
                     [[lc.change]]\nat_s = 300\nload = 0.8\n";
const BURSTS: &str = "[lc.bursts]\nlevels = [0.7, 1.9]\ndwell_s = [3.0, 1.0]\n";
const DRIFT: &str = "[lc.drift]\npct_per_min = 6\nbound_pct = 20\n";
const DAY: &str = "[lc.day]\nday_s = 60\nlow = 0.4\n";

fn target() -> Site {
    let shipped = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../vserver/profiles"));
    let (profiles, traces) = (Profiles::load(std::slice::from_ref(&shipped)).unwrap(), traces(&[shipped]).unwrap());
    Site { platform: profiles.platforms["server-1"].clone(), profiles, traces }
}

fn parse(text: &str) -> Result<Workload> {
    Workload::parse("w.toml".as_ref(), text, &target())
}

fn offered(shape: &str, seed: u64) -> Offered {
    let w = parse(&format!("{PLAIN}{shape}")).unwrap();
    Offered::draw(&w.lc[0].said(), w.duration_ms, seed)
}

/// Without shapes the rate is that of the file to the last bit, from arrival until it leaves.
#[test]
fn without_shapes_it_is_the_load_of_the_file() {
    let w = parse(PLAIN).unwrap();
    let (rps, plain) = (w.lc[0].rps.clone(), offered("", 7));
    let at = |t| plain.rate_at(t).map(f64::to_bits);
    let bits = |i: usize| Some(rps[i].1.to_bits());
    assert_eq!([at(0), at(1000), at(299_999), at(300_000), at(500_000)], [None, bits(0), bits(0), bits(1), None]);
    assert_eq!(plain.load_at(2000), Some(rps[0].1 / w.lc[0].max_load_rps));
}

/// A course is decided by seed and service: asked again, and in another order, it is the same; another seed, or a second copy of the
/// service, has another.
#[test]
fn a_course_is_decided_by_seed_and_service() {
    let shape = format!("{BURSTS}{DRIFT}{DAY}");
    let times: Vec<u64> = (1000..500_000).step_by(700).collect();
    let all = |o: &Offered, times: &[u64]| times.iter().map(|t| o.rate_at(*t).unwrap().to_bits()).collect::<Vec<_>>();
    let first = all(&offered(&shape, 1), &times);
    let mut backwards = all(&offered(&shape, 1), &times.iter().rev().copied().collect::<Vec<_>>());
    backwards.reverse();
    assert_eq!(first, backwards);
    assert_ne!(first, all(&offered(&shape, 2), &times));
    let w = parse(&format!("{PLAIN}{BURSTS}[[lc]]\nservice = \"moses\"\nload = 0.5\n{BURSTS}")).unwrap();
    let loads = w.loads(1);
    let differ = (10..290).filter(|s| loads.rate_at("moses", s * 1000) != loads.rate_at("moses-2", s * 1000)).count();
    assert!(differ > 50, "{differ}");
}

/// Levels 0.7 for 3 s and 1.9 for 1 s: a mean of (0.7 x 3 + 1.9) / 4 = 1, three quarters of the time low, and 600 / 4 = 150 bursts in
/// ten minutes. 40 seeds of 499 s: 1.3 % and 1.6 % are three standard errors or more.
#[test]
fn bursts_have_their_levels_times_and_mean() {
    let (mut sum, mut low, mut rises, mut n) = (0.0, 0.0, 0.0, 0.0);
    for seed in 1..=40 {
        let (bursts, plain) = (offered(BURSTS, seed), offered("", seed));
        let factors: Vec<f64> = (10..5000).map(|k| bursts.rate_at(k * 100).unwrap() / plain.rate_at(k * 100).unwrap()).collect();
        assert!(factors.iter().all(|x| (0.7 - 1e-9..=1.9 + 1e-9).contains(x)));
        sum += factors.iter().sum::<f64>();
        low += factors.iter().filter(|x| **x < 1.0).count() as f64;
        rises += factors.windows(2).filter(|x| x[0] < 1.3 && x[1] >= 1.3).count() as f64;
        n += factors.len() as f64;
    }
    assert!((sum / n - 1.0).abs() < 0.02, "{}", sum / n);
    assert!((low / n - 0.75).abs() < 0.02, "{}", low / n);
    // Bursts below half a tick never show.
    let a_minute = rises / (n / 600.0);
    assert!((13.0..=16.0).contains(&a_minute), "{a_minute}");
}

/// A drift of 6 % a minute changes by 6 % (standard deviation) in a minute, steps once a second, and stays within its walls.
#[test]
fn drift_walks_between_its_walls() {
    let wide = "[lc.drift]\npct_per_min = 6\nbound_pct = 90\n";
    let mut squares = vec![];
    for seed in 1..=400 {
        let (drift, plain) = (offered(wide, seed), offered("", seed));
        squares.push((drift.rate_at(61_000).unwrap() / plain.rate_at(61_000).unwrap() - 1.0).powi(2));
    }
    // Since 0 s, so 61 steps: 0.06 x sqrt(61 / 60) = 0.0605; 400 draws are within 11 %, three standard errors.
    let sd = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
    assert!((sd / 0.0605 - 1.0).abs() < 0.11, "{sd}");
    let (drift, plain) = (offered("[lc.drift]\npct_per_min = 60\nbound_pct = 20\n", 3), offered("", 3));
    let factor = |t| drift.rate_at(t).unwrap() / plain.rate_at(t).unwrap();
    let all: Vec<f64> = (1..500).map(|s| factor(s * 1000)).collect();
    assert!(all.iter().all(|x| (0.8 - 1e-12..=1.2 + 1e-12).contains(x)));
    let (least, most) = all.iter().fold((1.0f64, 1.0f64), |(a, b), x| (a.min(*x), b.max(*x)));
    assert!(least < 0.83 && most > 1.17, "{least} {most}");
    assert!((2000..3000).step_by(100).all(|t| factor(t) == factor(2000)) && factor(3000) != factor(2000));
}

/// A sinusoid is lowest at the day's beginning and highest at its middle, day after day; `begins_at` shifts it. A trace runs through
/// its samples, and is as deep as it was recorded unless the file says otherwise.
#[test]
fn a_day_is_a_sinusoid_or_a_trace() {
    let plain = offered("", 1);
    let factor = |o: &Offered, t_ms| (o.rate_at(t_ms).unwrap() / plain.rate_at(t_ms).unwrap() * 1e9).round() / 1e9;
    let day = offered(DAY, 1);
    assert_eq!([60, 75, 90, 105, 120].map(|s| factor(&day, s * 1000)), [0.4, 0.7, 1.0, 0.7, 0.4]);
    let noon = offered(&format!("{DAY}begins_at = 0.5\nhigh = 1.4\n"), 1);
    assert_eq!([60, 90].map(|s| factor(&noon, s * 1000)), [1.4, 0.4]);
    let trace = target().traces["autothrottle-diurnal"].clone();
    let n = trace.values.len();
    assert_eq!((n, trace.low), (360, 0.465));
    let recorded = offered("[lc.day]\nday_s = 36\ntrace = \"autothrottle-diurnal\"\n", 1);
    for k in [20, 100, 359, 361] {
        let want = 0.465 + (1.0 - 0.465) * trace.values[k as usize % n];
        assert!((factor(&recorded, k * 100) - want).abs() < 1e-8, "{k}");
    }
    let deep = offered("[lc.day]\nday_s = 36\ntrace = \"autothrottle-diurnal\"\nlow = 0.1\n", 1);
    let all: Vec<f64> = (36..72).map(|s| factor(&deep, s * 1000)).collect();
    assert!(all.iter().all(|x| (0.1..=1.0).contains(x)) && all.iter().any(|x| *x < 0.2));
}

/// Shapes multiply each other, no rate passes the highest that they can reach, and beyond what was drawn the course goes on.
#[test]
fn shapes_multiply_and_have_a_highest() {
    let shape = format!("{BURSTS}{DRIFT}{DAY}");
    let w = parse(&format!("{PLAIN}{shape}")).unwrap();
    let l = &w.lc[0];
    assert!((l.shapes.highest() - 1.9 * 1.2).abs() < 1e-12);
    assert_eq!(l.highest_load_at(1000), Some(l.rps[0].1 / l.max_load_rps * l.shapes.highest()));
    let [all, bursts, drift, day, plain] = [&shape, BURSTS, DRIFT, DAY, ""].map(|s| offered(s, 5));
    for t in (1000..500_000).step_by(1700) {
        let [a, b, c, d, p] = [&all, &bursts, &drift, &day, &plain].map(|o| o.rate_at(t).unwrap());
        assert!((a / (b * c * d / p / p) - 1.0).abs() < 1e-12);
        assert!(a <= p * l.shapes.highest() * (1.0 + 1e-12));
    }
    let stays = PLAIN.replace("leave_s = 500\n", "");
    let w = parse(&format!("{stays}{shape}")).unwrap();
    let o = Offered::draw(&w.lc[0].said(), w.duration_ms, 5);
    let drawn = o.bursts.len() as u64;
    assert_eq!(drawn, 8000);
    assert_eq!((drawn_at(&o.bursts, drawn), drawn_at(&o.bursts, 2 * drawn)), (o.bursts.last().copied(), Some(o.bursts[0])));
    assert!(o.rate_at(100_000_000).is_some_and(|r| r > 0.0));
}

/// The server offers what [`Offered`] says, tick by tick, and from a tick's middle to the next too.
#[test]
fn the_server_follows_the_course() {
    use surefoot_server::{Server, Tick};
    let at = target();
    let text = format!("{PLAIN}{BURSTS}{DRIFT}{DAY}[[lc]]\nservice = \"login\"\nload = 0.3\n").replace("arrive_s = 1", "arrive_s = 0.5");
    let w = Workload::parse("w.toml".as_ref(), &text, &at).unwrap();
    let mut server = at.server(9);
    let loads = w.announce(&mut server, &at.profiles, 9).unwrap();
    let mut changes = 0;
    let mut before = None;
    for tick in 0..200 {
        for id in ["moses", "login"] {
            let (now, rate) = (server.now_ms(), server.offered_rps(id));
            assert_eq!(rate.map(f64::to_bits), loads.rate_at(id, now).map(f64::to_bits), "{id} {now}");
        }
        changes += usize::from(server.offered_rps("moses") != before);
        before = server.offered_rps("moses");
        server.advance(Tick { ms: if tick % 10 == 3 { 250 } else { 100 } });
    }
    assert!(changes > 150, "{changes}");
}

/// What is wrong with a shape is said in one line with file, field and remedy.
#[test]
fn bad_shapes_are_named() {
    let cases = [
        ("[lc.bursts]\nlevels = [1.0]\ndwell_s = [1.0]", "lc.bursts.levels: 1 levels. Give 2 to 8"),
        ("[lc.bursts]\nlevels = [1.0, 2.0]\ndwell_s = [1.0]", "lc.bursts.dwell_s: 1 times for 2 levels"),
        ("[lc.bursts]\nlevels = [1.0, 0.0]\ndwell_s = [1.0, 1.0]", "lc.bursts.levels: 0 is out of range. Give 0.01 to 10"),
        ("[lc.bursts]\nlevels = [1.0, nan]\ndwell_s = [1.0, 1.0]", "lc.bursts.levels: NaN is out of range"),
        ("[lc.bursts]\nlevels = [1.0, 2.0]\ndwell_s = [1.0, 0.05]", "lc.bursts.dwell_s: 0.05 is out of range. Give 0.1 to 10 seconds"),
        ("[lc.bursts]\nlevels = [1.0, 2.0]", "missing field `dwell_s`"),
        ("[lc.drift]\npct_per_min = 0\nbound_pct = 20", "lc.drift.pct_per_min: 0 is out of range. Give 0.1 to 100 per cent"),
        ("[lc.drift]\npct_per_min = 5\nbound_pct = 95", "lc.drift.bound_pct: 95 is out of range. Give 1 to 90 per cent"),
        ("[lc.drift]\npct_per_min = 5\nbound_pct = 20\nspeed = 1", "unknown field `speed`"),
        ("[lc.day]\nday_s = 5\nlow = 0.5", "lc.day.day_s: 5 is out of range. Give 10 to 86400 seconds"),
        ("[lc.day]\nday_s = 60", "lc.day.low: is missing. Give the lowest load"),
        ("[lc.day]\nday_s = 60\nlow = 1.0", "lc.day.low: 1 is not below high = 1. Give a lower share"),
        ("[lc.day]\nday_s = 60\nlow = 0.5\nhigh = 11", "lc.day.high: 11 is out of range. Give 0.01 to 10"),
        ("[lc.day]\nday_s = 60\nlow = 0.5\nbegins_at = 1", "lc.day.begins_at: 1 is out of range"),
        ("[lc.day]\nday_s = 60\ntrace = \"autothrottle-diurnl\"", "Did you mean \"autothrottle-diurnal\"?"),
        ("[lc.day]\nday_s = 60\ntrace = \"no-such-thing\"", "lc.day.trace: unknown trace \"no-such-thing\""),
    ];
    for (shape, says) in cases {
        let text = PLAIN.replace("[[lc.change]]\nat_s = 300\nload = 0.8\n", "");
        let e = parse(&format!("{text}{shape}\n")).unwrap_err().to_string();
        assert!(e.contains("w.toml:") && e.contains(says) && !e.contains('\n'), "{shape}: {e}");
    }
    let e = parse(&format!("{}[lc.day]\nday_s = 60\nlow = 0.5\nhigh = 9\n", PLAIN.replace("load = 0.5", "rps = 9e8"))).unwrap_err();
    assert!(e.to_string().contains("lc.load: its shapes reach 8.1e9 requests/s. Give at most 1e9"), "{e}");
}

/// A trace that is not one is named with file, field and remedy; one of a later folder is taken in place of an earlier one.
#[test]
fn traces_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let loads = dir.path().join("loads");
    std::fs::create_dir(&loads).unwrap();
    let file = loads.join("mine.toml");
    let good = "source = \"s\"\nlicence = \"l\"\nsample_s = 1\nlow = 0.2\nvalues = [0, 0.5, 1]\n";
    let cases = [
        ("low = 0.2", "low = 1.0", "low: 1 is out of range"),
        ("low = 0.2\n", "", "missing field `low`"),
        ("[0, 0.5, 1]", "[1]", "values: 1 numbers. Give 2 to 100000"),
        ("[0, 0.5, 1]", "[0.1, 0.5, 1]", "values: from 0.1 to 1. Scale them"),
        ("[0, 0.5, 1]", "[0, nan, 1]", "values: from 0 to 1. Scale them"),
        ("source", "origin", "unknown field `origin`"),
    ];
    for (from, to, says) in cases {
        std::fs::write(&file, good.replace(from, to)).unwrap();
        let e = traces(&[dir.path().into()]).unwrap_err().to_string();
        assert!(e.contains("mine.toml") && e.contains(says), "{to}: {e}");
    }
    std::fs::write(&file, good).unwrap();
    let other = tempfile::tempdir().unwrap();
    std::fs::create_dir(other.path().join("loads")).unwrap();
    std::fs::write(other.path().join("loads/mine.toml"), good.replace("0.5", "0.6")).unwrap();
    let found = traces(&[dir.path().into(), other.path().into()]).unwrap();
    assert_eq!(found["mine"].values, [0.0, 0.6, 1.0]);
    assert!(traces(&[dir.path().join("loads")]).unwrap().is_empty());
}
