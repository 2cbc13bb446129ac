//! Times of day for people, in UTC. Days by the proleptic Gregorian calendar (H. Hinnant, "chrono-compatible low-level date algorithms").

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_S: i64 = 86_400;

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// "2026-11-21 21:00:03".
pub fn text(at_ms: u64) -> String {
    let at_s = (at_ms / 1000) as i64;
    let (days, s) = (at_s / DAY_S, at_s % DAY_S);
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{:02} {:02}:{:02}:{:02}", doy - (153 * mp + 2) / 5 + 1, s / 3600, s % 3600 / 60, s % 60)
}

/// "2026-11-21", "2026-11-21 21:00", "2026-11-21T21:00:03Z": milliseconds since 1970; None for anything else.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim().trim_end_matches(['Z', 'z']);
    let (date, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00"));
    let numbers = |part: &str, mark: char| -> Option<Vec<i64>> {
        let digits = |n: &str| if n.bytes().all(|b| b.is_ascii_digit()) { n.parse().ok() } else { None };
        part.split(mark).map(digits).collect()
    };
    let (d, t) = (numbers(date, '-')?, numbers(time, ':')?);
    let (&[year, month, day], [hour, minute, rest @ ..]) = (d.as_slice(), t.as_slice()) else { return None };
    let second = match rest {
        [] => 0,
        [s] => *s,
        _ => return None,
    };
    let sound = (1970..10_000).contains(&year) && (1..=12).contains(&month) && *hour < 24 && *minute < 60 && second < 60;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if !sound || !(1..=last).contains(&day) {
        return None;
    }
    let y = year - i64::from(month <= 2);
    let doy = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let doe = y % 400 * 365 + y % 400 / 4 - y % 400 / 100 + doy;
    let days = y / 400 * 146_097 + doe - 719_468;
    u64::try_from((days * DAY_S + hour * 3600 + minute * 60 + second) * 1000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known instants (`date -u -d ... +%s`), and every day of 140 years there and back.
    #[test]
    fn days_are_counted_right() {
        assert_eq!(text(0), "1970-01-01 00:00:00");
        assert_eq!(text(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(text(1_795_294_803_999), "2026-11-21 21:00:03");
        assert_eq!(parse("2026-11-21T21:00:03Z"), Some(1_795_294_803_000));
        assert_eq!((parse("2026-11-21"), parse("2026-11-21 00:00")), (Some(1_795_219_200_000), Some(1_795_219_200_000)));
        for day in 0..51_000u64 {
            let at_ms = (day * 86_400 + 12_345) * 1000;
            assert_eq!(parse(&text(at_ms)), Some(at_ms), "{}", text(at_ms));
        }
    }

    /// What is no time is not taken for one.
    #[test]
    fn nonsense_is_refused() {
        for bad in ["", "10m", "2026-11", "2026-13-01", "2026-02-29", "2026-11-21T24:00", "2026-11-21T1:2:3:4", "+2026-11-21", "1969-12-31"]
        {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
