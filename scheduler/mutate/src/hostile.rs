//! Texts and numbers that have broken readers.

use fastrand::Rng;

/// Texts that have broken readers.
pub fn text(rng: &mut Rng) -> String {
    let long = |c: char, n: usize| c.to_string().repeat(n);
    match rng.u8(0..24) {
        0 => String::new(),
        1 => long('a', 100_000),
        2 => "\u{1b}[31m\u{1b}[2J\u{7}".into(),
        3 => "\u{202e}txt.exe\u{2066}".into(),
        4 => "\0".into(),
        5 => "a\nb\r\nc".into(),
        6 => "\u{9b}2J\u{85}\u{2028}".into(),
        7 => "\u{feff}\u{200b}".into(),
        8 => "..".into(),
        9 => ".".into(),
        10 => "nan".into(),
        11 => "-1".into(),
        12 => "1..1000000".into(),
        13 => "0..1e308 step 1e-308".into(),
        14 => "99999999999999999999".into(),
        15 => long('é', 3_000),
        16 => "0-1023".into(),
        17 => "%s%n{}{0}$(id)`id`".into(),
        18 => "true".into(),
        19 => "a\\u0000b\"'".into(),
        20 => "CON:".into(),
        21 => "-".into(),
        22 => long(' ', 1_000),
        _ => "0x10".into(),
    }
}

/// Numbers that have broken readers.
pub fn number(rng: &mut Rng) -> f64 {
    const ALL: [f64; 22] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        2.0,
        255.0,
        256.0,
        1023.0,
        1024.0,
        65_536.0,
        1e6,
        1e9,
        4_294_967_295.0,
        4_294_967_296.0,
        9_007_199_254_740_993.0,
        9.2e18,
        1.8e19,
        1e300,
        -1e300,
        5e-324,
        1e-9,
    ];
    ALL[rng.usize(0..ALL.len())]
}
