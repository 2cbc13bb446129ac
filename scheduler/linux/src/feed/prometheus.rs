//! One histogram out of a page of Prometheus text (exposition format 0.0.4, or OpenMetrics 1.0).
//!
//! Only the lines of the wanted histogram are looked at; whatever else is on the page may be as it likes. Every label set is a
//! series of its own: they are told apart, because one alone may restart or appear, and added up later.
//!
//! Times are in the unit that the page names: in the histogram's `# UNIT` line, in its name, or in its help; in seconds, as the format asks,
//! where it names none. A unit of the configuration counts where the page names no other one; else the page is contradicted, and is doubted.

use std::collections::BTreeMap;

/// Series of one histogram that are taken.
const MOST_SERIES: usize = 4096;
/// Longest finite bound, ms: some 30,000 years. Whoever means more writes +Inf.
const MOST_MS: f64 = 1e15;
/// Largest sum that is believed, ms.
const MOST_SUM_MS: f64 = 1e30;

/// Which histogram of a page.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// Its name, without `_bucket`.
    pub histogram: String,
    /// Series that carry all of these labels count.
    pub labels: BTreeMap<String, String>,
    /// As the configuration has it; None: as the page says.
    pub unit: Option<Unit>,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
    Minutes,
}

impl Unit {
    /// Those that a configuration may name, as it does.
    pub const NAMED: [(&'static str, Unit); 4] =
        [("s", Unit::Seconds), ("ms", Unit::Milliseconds), ("us", Unit::Microseconds), ("ns", Unit::Nanoseconds)];

    fn ms(self) -> f64 {
        match self {
            Unit::Minutes => 60_000.0,
            Unit::Seconds => 1000.0,
            Unit::Milliseconds => 1.0,
            Unit::Microseconds => 1e-3,
            Unit::Nanoseconds => 1e-6,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Unit::Minutes => "minutes",
            Unit::Seconds => "seconds",
            Unit::Milliseconds => "milliseconds",
            Unit::Microseconds => "microseconds",
            Unit::Nanoseconds => "nanoseconds",
        }
    }

    /// What a word in small letters means.
    fn of_word(word: &str) -> Option<Unit> {
        Some(match word {
            "minutes" | "minute" | "mins" => Unit::Minutes,
            "seconds" | "second" | "secs" | "sec" | "s" => Unit::Seconds,
            "milliseconds" | "millisecond" | "millis" | "msecs" | "msec" | "ms" => Unit::Milliseconds,
            "microseconds" | "microsecond" | "micros" | "usecs" | "usec" | "us" | "\u{b5}s" | "\u{3bc}s" => Unit::Microseconds,
            "nanoseconds" | "nanosecond" | "nanos" | "nsecs" | "nsec" | "ns" => Unit::Nanoseconds,
            _ => return None,
        })
    }

    /// The last unit in a metric's name. A short word counts at the end alone: `us` may be a country.
    fn in_name(name: &str) -> Option<Unit> {
        let mut words: Vec<String> = vec![];
        let mut before = '_';
        for c in name.chars() {
            if !c.is_ascii_alphanumeric() || words.is_empty() || c.is_ascii_uppercase() && before.is_ascii_lowercase() {
                words.push(String::new());
            }
            if let Some(w) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
                w.push(c.to_ascii_lowercase());
            }
            before = c;
        }
        words.retain(|w| !w.is_empty());
        words.iter().rev().enumerate().filter(|(k, w)| *k == 0 || w.len() > 4).find_map(|(_, w)| Unit::of_word(w))
    }

    /// The one unit that a help names: "... in milliseconds", "... (ms)".
    fn in_help(help: &str) -> Option<Unit> {
        let mut found: Option<Unit> = None;
        let mut before = String::new();
        for word in help.split_ascii_whitespace() {
            let bare = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
            let bracketed = word.starts_with(['(', '[']) && word.contains([')', ']']);
            if let Some(u) = Unit::of_word(&bare).filter(|_| bracketed || before == "in") {
                if found.is_some_and(|f| f != u) {
                    return None;
                }
                found = Some(u);
            }
            before = bare;
        }
        found
    }
}

/// The unit of a page's times, and what contradicts it.
fn unit_of(page: &str, wanted: &Wanted) -> (Unit, Option<String>) {
    let (mut line_unit, mut help) = (None, None);
    for line in page.lines().map(str::trim) {
        if line == "# EOF" {
            break;
        }
        let Some(rest) = line.strip_prefix('#').map(str::trim_start) else { continue };
        let about = |what: &str| {
            let rest = rest.strip_prefix(what)?.trim_start().strip_prefix(wanted.histogram.as_str())?;
            rest.starts_with([' ', '\t']).then(|| rest.trim())
        };
        line_unit = line_unit.or(about("UNIT "));
        help = help.or(about("HELP "));
    }
    let shown = |text: &str| text.chars().filter(|c| !c.is_control()).take(40).collect::<String>();
    let by_name = Unit::in_name(&wanted.histogram);
    let by_line = line_unit.map(|text| (text, Unit::of_word(&text.to_lowercase())));
    let configured = Unit::NAMED.iter().find(|(_, u)| Some(*u) == wanted.unit).map_or("", |(name, _)| name);
    let contradiction = match (by_line, by_name, wanted.unit) {
        (Some((text, None)), ..) => Some(format!("its # UNIT is {:?}, which is no unit of time", shown(text))),
        (Some((_, Some(l))), Some(n), _) if l != n => Some(format!("its name says {} and its # UNIT {}", n.name(), l.name())),
        (Some((_, Some(l))), _, Some(w)) if l != w => Some(format!("unit = \"{configured}\" in node.toml, and its # UNIT is {}", l.name())),
        (_, Some(n), Some(w)) if n != w => Some(format!("unit = \"{configured}\" in node.toml, and its name says {}", n.name())),
        _ => None,
    };
    let contradiction = contradiction.map(|why| format!("{why}. Leave `unit` out where the page is right, or correct the page"));
    let by_page = by_line.and_then(|(_, u)| u).or(by_name).or_else(|| Unit::in_help(help?));
    (wanted.unit.or(by_page).unwrap_or(Unit::Seconds), contradiction)
}

/// One series: how many requests so far took at most so long.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Upper bounds, ms, rising, finite; and how many requests so far are within each.
    pub buckets: Vec<(f64, u64)>,
    /// All requests so far.
    pub count: u64,
    /// Sum of all response times so far, ms.
    pub sum_ms: Option<f64>,
    /// When the series began, in its own clock (OpenMetrics).
    pub created: Option<f64>,
}

/// What a scrape read: series by their labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    pub series: BTreeMap<String, Series>,
    /// When the process that answered began, where its page says so (`process_start_time_seconds`), s.
    pub started: Option<f64>,
    /// What on the page contradicts the unit that its times are taken to be in.
    pub contradicts: Option<String>,
}

/// What has been read of a series, before it is complete.
#[derive(Default)]
struct Draft {
    buckets: Vec<(f64, u64)>,
    infinite: Option<u64>,
    count: Option<u64>,
    sum: Option<f64>,
    created: Option<f64>,
}

#[derive(Clone, Copy)]
enum Part {
    Bucket,
    Count,
    Sum,
    Created,
}

/// Read the wanted histogram from a page.
///
/// # Errors
/// One line: the line number and what is wrong with it, or that the histogram is not there.
pub fn parse(page: &str, wanted: &Wanted) -> Result<Sample, String> {
    let mut drafts: BTreeMap<String, Draft> = BTreeMap::new();
    let mut summary = false;
    let (unit, contradicts) = unit_of(page, wanted);
    let mut started = None;
    for (i, line) in page.lines().enumerate() {
        let line = line.trim();
        let Some(rest) = line.strip_prefix(wanted.histogram.as_str()) else {
            if line == "# EOF" {
                break;
            }
            let of_process = line.strip_prefix("process_start_time_seconds").filter(|rest| rest.starts_with([' ', '\t']));
            let value = || of_process?.split_ascii_whitespace().next()?.parse::<f64>().ok();
            started = started.or_else(|| value().filter(|v| v.is_finite()));
            continue;
        };
        summary |= rest.starts_with('{') && rest.contains("quantile=");
        let name_end = rest.find(|c: char| c == '{' || c.is_ascii_whitespace()).unwrap_or(rest.len());
        let part = match &rest[..name_end] {
            "_bucket" => Part::Bucket,
            "_count" => Part::Count,
            "_sum" => Part::Sum,
            "_created" => Part::Created,
            _ => continue,
        };
        take(&mut drafts, part, &rest[name_end..], wanted, unit.ms()).map_err(|e| format!("line {}: {e}", i + 1))?;
    }
    if drafts.is_empty() {
        let labels: Vec<String> = wanted.labels.iter().map(|(k, v)| format!("{k}={v:?}")).collect();
        let with = if labels.is_empty() { String::new() } else { format!(" with {}", labels.join(", ")) };
        return Err(if summary {
            format!("{} is a summary. Only histograms (series {0}_bucket) can be added up", wanted.histogram)
        } else {
            format!(
                "no series {}_bucket{with}. Check histogram and labels; some services show a series only after its first request",
                wanted.histogram
            )
        });
    }
    let series = drafts.into_iter().map(|(k, d)| Ok((k.clone(), d.finish().map_err(|e| format!("{}{{{k}}}: {e}", wanted.histogram))?)));
    Ok(Sample { series: series.collect::<Result<_, String>>()?, started, contradicts })
}

fn take(drafts: &mut BTreeMap<String, Draft>, part: Part, rest: &str, wanted: &Wanted, unit_ms: f64) -> Result<(), String> {
    let (mut labels, rest) = read_labels(rest)?;
    let bound = labels.iter().position(|(k, _)| k == "le").map(|i| labels.swap_remove(i).1);
    if !wanted.labels.iter().all(|(k, v)| labels.iter().any(|(l, w)| l == k && w == v)) {
        return Ok(());
    }
    // What follows the value is a time or an exemplar: neither is of use here.
    let text = rest.split_ascii_whitespace().next().ok_or("has no value")?;
    let value = number(text).ok_or_else(|| format!("{text:?} is no number"))?;
    labels.sort();
    let key = labels.iter().map(|(k, v)| format!("{k}={v:?}")).collect::<Vec<_>>().join(",");
    if drafts.len() >= MOST_SERIES && !drafts.contains_key(&key) {
        return Err(format!("more than {MOST_SERIES} series. Choose fewer by labels"));
    }
    let d = drafts.entry(key).or_default();
    let twice = |taken: bool| if taken { Err("stands there twice".to_string()) } else { Ok(()) };
    match part {
        Part::Bucket => {
            let le = bound.ok_or("a bucket without le")?;
            let may = |b: &f64| b.is_infinite() || b * unit_ms <= MOST_MS;
            let bound = number(&le).filter(|b| *b >= 0.0 && may(b)).ok_or_else(|| format!("le={le:?} is no bound of a time"))?;
            let n = whole(value)?;
            if bound.is_infinite() {
                twice(d.infinite.is_some())?;
                d.infinite = Some(n);
            } else {
                d.buckets.push((bound * unit_ms, n));
            }
        }
        Part::Count => {
            twice(d.count.is_some())?;
            d.count = Some(whole(value)?);
        }
        Part::Sum => d.sum = Some(value * unit_ms).filter(|v| (0.0..=MOST_SUM_MS).contains(v)),
        Part::Created => d.created = Some(value).filter(|v| v.is_finite()),
    }
    Ok(())
}

impl Draft {
    fn finish(mut self) -> Result<Series, String> {
        self.buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        if self.buckets.windows(2).any(|w| w[0].0 == w[1].0) {
            return Err("a bucket stands there twice".into());
        }
        if self.buckets.is_empty() {
            return Err("no bucket with a finite bound. Give the histogram buckets around the QoS target".into());
        }
        let count = self.infinite.or(self.count).ok_or("neither a bucket +Inf nor a count")?;
        // A page is not read in one instant: counts may disagree a little. More is no cumulative histogram.
        let mut most = 0u64;
        for n in self.buckets.iter_mut().map(|b| &mut b.1).chain([&mut count.clone()]) {
            if *n < most && most - *n > most / 100 + 16 {
                return Err(format!("buckets fall from {most} to {n}: they are not cumulative"));
            }
            most = most.max(*n);
            *n = most;
        }
        Ok(Series { buckets: self.buckets, count: most, sum_ms: self.sum, created: self.created })
    }
}

/// A number as the format writes it: Go's ParseFloat.
fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" | "+inf" | "inf" => Some(f64::INFINITY),
        "-Inf" | "-inf" => Some(f64::NEG_INFINITY),
        _ => text.parse().ok(),
    }
}

/// A count of requests.
fn whole(v: f64) -> Result<u64, String> {
    // Beyond 2^53 a number of this format no longer counts by ones.
    if v.is_finite() && (0.0..=9_007_199_254_740_992.0).contains(&v) {
        Ok(v.round() as u64)
    } else {
        Err(format!("{v} is no count"))
    }
}

type Labels = Vec<(String, String)>;

/// Labels in braces, if there are any, and what follows them.
fn read_labels(text: &str) -> Result<(Labels, &str), String> {
    let Some(mut rest) = text.trim_start().strip_prefix('{') else { return Ok((vec![], text)) };
    let mut labels: Labels = vec![];
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        let (name, value) = rest.split_once('=').ok_or("labels do not end")?;
        let name = name.trim().trim_matches('"');
        rest = value.trim_start().strip_prefix('"').ok_or_else(|| format!("label {name:?} has no quoted value"))?;
        let mut text = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next() {
                None => return Err(format!("label {name:?} does not end")),
                Some((i, '"')) => break i,
                Some((_, '\\')) => match chars.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, c)) => text.push(c),
                    None => return Err(format!("label {name:?} does not end")),
                },
                Some((_, c)) => text.push(c),
            }
        };
        if labels.iter().any(|(k, _)| k == name) {
            return Err(format!("label {name:?} stands there twice"));
        }
        labels.push((name.into(), text));
        rest = &rest[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(histogram: &str, labels: &[(&str, &str)]) -> Wanted {
        let labels = labels.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Wanted { histogram: histogram.into(), labels, unit: Some(Unit::Seconds) }
    }

    /// The example of the format's own documentation, among other metrics.
    const PAGE: &str = r#"# HELP http_request_duration_seconds A histogram of the request duration.
# TYPE http_request_duration_seconds histogram
http_request_duration_seconds_bucket{le="0.05"} 24054
http_request_duration_seconds_bucket{le="0.1"} 33444
http_request_duration_seconds_bucket{le="0.2"} 100392
http_request_duration_seconds_bucket{le="0.5"} 129389
http_request_duration_seconds_bucket{le="1"} 133988
http_request_duration_seconds_bucket{le="+Inf"} 144320
http_request_duration_seconds_sum 53423
http_request_duration_seconds_count 144320
http_request_duration_seconds_bucket_other{le="1"} nonsense
rpc_duration_seconds{quantile="0.5"} 4773
rpc_duration_seconds_sum 1.7560473e+07
metric_without_timestamp_and_labels 12.47
something_weird{problem="division by zero"} +Inf -3982045
"#;

    #[test]
    fn the_formats_own_example_is_read() {
        let s = parse(PAGE, &seconds("http_request_duration_seconds", &[])).unwrap();
        let one = &s.series[""];
        assert_eq!(one.buckets, [(50.0, 24054), (100.0, 33444), (200.0, 100_392), (500.0, 129_389), (1000.0, 133_988)]);
        assert_eq!((one.count, one.sum_ms, one.created), (144_320, Some(53_423_000.0), None));
    }

    /// Label sets are series; labels choose among them, escapes and order notwithstanding; times and exemplars do not matter.
    #[test]
    fn labels_choose_series() {
        let page = "h_bucket{code=\"200\",path=\"/a\\\"b\\\\\",le=\"0.1\"} 3 1395066363000\n\
                    h_bucket{ le=\"+Inf\" , path=\"/a\\\"b\\\\\",code=\"200\", } 4 # {trace_id=\"x\"} 0.67 1.5e9\n\
                    h_bucket{le=\"0.1\",code=\"500\",path=\"/a\\\"b\\\\\"} 1e+00\nh_count{code=\"500\",path=\"/a\\\"b\\\\\"} 2\n\
                    h_bucket{le=\"0.1\",code=\"200\",path=\"/other\"} NaN\n# EOF\nh_bucket{le=\"0.2\"} 7\n";
        let s = parse(page, &seconds("h", &[("path", "/a\"b\\")])).unwrap();
        let counts: Vec<(u64, u64)> = s.series.values().map(|x| (x.buckets[0].1, x.count)).collect();
        assert_eq!(counts, [(3, 4), (1, 2)]);
        assert_eq!(parse(page, &seconds("h", &[("path", "/a\"b\\"), ("code", "500")])).unwrap().series.len(), 1);
    }

    /// OpenMetrics: bounds and counts with a point, when a series began, and units.
    #[test]
    fn open_metrics_is_read() {
        let page = "# TYPE f histogram\n# UNIT f milliseconds\nf_bucket{le=\"1.0\"} 2.0\nf_bucket{le=\"+Inf\"} 2.0 123.4\nf_count 2.0\nf_sum 1.5\nf_created 1.7e9\n# EOF\n";
        let s = parse(page, &Wanted { unit: Some(Unit::Milliseconds), ..seconds("f", &[]) }).unwrap();
        assert_eq!(s.series[""], Series { buckets: vec![(1.0, 2)], count: 2, sum_ms: Some(1.5), created: Some(1.7e9) });
    }

    /// A page's times are in the unit that its # UNIT, its name or its help names, else in seconds; a unit of the configuration that the page
    /// contradicts, and a page that contradicts itself, are said.
    #[test]
    fn units_are_the_pages_own() {
        // The bound of 2 in ms, and whether something is contradicted.
        let read = |name: &str, comments: &str, unit: Option<Unit>| {
            let page = format!("{comments}{name}_bucket{{le=\"2\"}} 1\n{name}_count 1\n");
            let s = parse(&page, &Wanted { histogram: name.into(), labels: BTreeMap::new(), unit }).unwrap();
            if let Some(c) = &s.contradicts {
                assert!(!c.contains('\n') && c.contains("Leave `unit` out"), "{c}");
            }
            (s.series[""].buckets[0].0, s.contradicts.is_some())
        };
        let (s, ms, us) = (Some(Unit::Seconds), Some(Unit::Milliseconds), Some(Unit::Microseconds));
        for (name, want) in [
            ("request_duration_seconds", 2000.0),
            ("request_duration_milliseconds", 2.0),
            ("request_ms", 2.0),
            ("requestDurationMillis", 2.0),
            ("latency_us", 0.002),
            ("latency_microseconds_hist", 0.002),
            ("rpc:latency_ns", 0.000_002),
            ("job_minutes", 120_000.0),
            ("request_duration", 2000.0),
            // A country, and other words.
            ("us_east_latency", 2000.0),
            ("status_latency", 2000.0),
            ("last_60_seconds_latency_ms", 2.0),
        ] {
            assert_eq!(read(name, "", None), (want, false), "{name}");
        }
        let unit = |u: &str| format!("# TYPE h histogram\n# UNIT h {u}\n# UNIT h_other days\n");
        assert_eq!(read("h", &unit("milliseconds"), None), (2.0, false));
        assert_eq!(read("h", &unit("milliseconds"), ms), (2.0, false));
        assert_eq!(read("h", &unit("milliseconds"), s), (2000.0, true));
        assert_eq!(read("h", &unit("bytes"), s), (2000.0, true));
        assert_eq!(read("h_seconds", "# UNIT h_seconds milliseconds\n", None), (2.0, true));
        assert_eq!(read("h_milliseconds", "", s), (2000.0, true));
        assert_eq!(read("h_seconds", "", us), (0.002, true));
        assert_eq!(read("h_us", "", us), (0.002, false));
        // Prose counts where nothing else does.
        for help in ["Time of requests in milliseconds.", "Time of requests (ms)"] {
            assert_eq!(read("h", &format!("# HELP h {help}\n"), None), (2.0, false));
            assert_eq!(read("h", &format!("# HELP h {help}\n"), s), (2000.0, false));
            assert_eq!(read("h_us", &format!("# HELP h_us {help}\n"), None), (0.002, false));
        }
        assert_eq!(read("h", "# HELP h Requests of the last 60 seconds, ms and us\n", None), (2000.0, false));
    }

    /// When the process of a page began is read; the same name with labels is another's.
    #[test]
    fn a_page_says_when_its_process_began() {
        let of = |line: &str| parse(&format!("h_bucket{{le=\"1\"}} 1\nh_count 1\n{line}\n"), &seconds("h", &[])).unwrap().started;
        assert_eq!(of("process_start_time_seconds 1.7326e+09"), Some(1.7326e9));
        assert_eq!([of("process_start_time_seconds{job=\"x\"} 1"), of("process_start_time_seconds NaN"), of("")], [None; 3]);
    }

    /// What is wrong is said in one line, with its place.
    #[test]
    fn malformed_pages_are_refused() {
        let says = |page: &str, text: &str| {
            let e = parse(page, &seconds("h", &[])).unwrap_err();
            assert!(e.contains(text) && !e.contains('\n'), "{e}");
        };
        says("", "no series h_bucket");
        says("h{quantile=\"0.99\"} 1\nh_other 2\n", "is a summary");
        says("# x\nh_bucket{le=\"1\"} NaN\n", "line 2: NaN is no count");
        says("h_bucket{le=\"1\"} -1\n", "is no count");
        says("h_bucket{le=\"1\"} +Inf\n", "is no count");
        says("h_bucket{le=\"1\"} 1e300\n", "is no count");
        says("h_bucket{le=\"1\"}\n", "has no value");
        says("h_bucket{le=\"1\"} much\n", "\"much\" is no number");
        says("h_bucket{le=\"NaN\"} 1\n", "no bound of a time");
        says("h_bucket{le=\"-1\"} 1\n", "no bound of a time");
        says("h_bucket{le=\"1e300\"} 1\n", "no bound of a time");
        says("h_bucket{x=\"1\"} 1\n", "without le");
        says("h_bucket{le=\"1\" 1\n", "do not end");
        says("h_bucket{le=\"1} 1\n", "does not end");
        says("h_bucket{le=1} 1\n", "no quoted value");
        says("h_bucket{le=\"1\",le=\"2\"} 1\n", "twice");
        says("h_bucket{le=\"1\"} 1\nh_bucket{le=\"1.0\"} 1\nh_count 1\n", "twice");
        says("h_bucket{le=\"+Inf\"} 1\n", "no bucket with a finite bound");
        says("h_bucket{le=\"1\"} 1\n", "neither a bucket +Inf nor a count");
        says("h_bucket{le=\"1\"} 1000\nh_bucket{le=\"2\"} 10\nh_count 1000\n", "not cumulative");
        // Read while it grew: a little less further up is not malformed, and not believed.
        let s = parse("h_bucket{le=\"1\"} 1000\nh_bucket{le=\"2\"} 995\nh_count 990\n", &seconds("h", &[])).unwrap();
        assert_eq!((&s.series[""].buckets[..], s.series[""].count), (&[(1000.0, 1000), (2000.0, 1000)][..], 1000));
        let many: String = (0..=MOST_SERIES).map(|i| format!("h_bucket{{le=\"1\",i=\"{i}\"}} 1\nh_count{{i=\"{i}\"}} 1\n")).collect();
        says(&many, "more than 4096 series");
    }

    /// Whatever bytes are on a page, the parser comes back.
    #[test]
    fn random_pages_do_no_harm() {
        let mut x = 5u64;
        let mut lot = move |n: usize| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) as usize % n
        };
        const PIECES: [&str; 22] = [
            "h_bucket",
            "h_count",
            "h_sum",
            "h_created",
            "h",
            "{",
            "}",
            "le=",
            "\"",
            "\\",
            ",",
            " ",
            "\n",
            "+Inf",
            "NaN",
            "1",
            "-0.5",
            "1e9",
            "# EOF",
            "x=",
            "\u{fc}",
            "\0",
        ];
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = match lot(2) {
                0 => (0..lot(40)).flat_map(|_| PIECES[lot(PIECES.len())].bytes()).collect(),
                _ => PAGE.replace("http_request_duration_seconds", "h").into_bytes(),
            };
            for _ in 0..lot(4) {
                if !bytes.is_empty() {
                    let i = lot(bytes.len());
                    bytes[i] = lot(256) as u8;
                }
            }
            match parse(&String::from_utf8_lossy(&bytes), &seconds("h", &[])) {
                Ok(_) => read += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(read > 1000 && refused > 1000, "{read} {refused}");
    }
}
