//! Small functions of the model (SPEC.md, section 3) and counter-based random numbers (section 7).

/// Reported percentiles.
pub const QUANTILES: [f64; 3] = [0.50, 0.95, 0.99];

fn poly(k: &[f64], x: f64) -> f64 {
    k.iter().fold(0.0, |s, y| s * x + y)
}

/// `z` with P(N > z) = `p` (Acklam's rational approximation, relative error below 1.2e-9).
pub fn upper_z(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e+01,
        2.209460984245205e+02,
        -2.759285104469687e+02,
        1.38357751867269e+02,
        -3.066479806614716e+01,
        2.506628277459239e+00,
    ];
    const B: [f64; 6] =
        [-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01, -1.328068155288572e+01, 1.0];
    const C: [f64; 6] = [
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838e+00,
        -2.549732539343734e+00,
        4.374664141464968e+00,
        2.938163982698783e+00,
    ];
    const D: [f64; 5] = [7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00, 1.0];
    let p = p.clamp(1e-300, 1.0 - 1e-16);
    if p < 0.02425 {
        let q = (-2.0 * p.ln()).sqrt();
        return -poly(&C, q) / poly(&D, q);
    }
    if p > 1.0 - 0.02425 {
        let q = (-2.0 * (1.0 - p).ln()).sqrt();
        return poly(&C, q) / poly(&D, q);
    }
    let q = 0.5 - p;
    let r = q * q;
    poly(&A, r) * q / poly(&B, r)
}

/// Probability of waiting in M/M/k at load `rho` per server.
pub fn erlang_c(k: u32, rho: f64) -> f64 {
    if rho >= 1.0 {
        return 1.0;
    }
    if rho <= 0.0 {
        return 0.0;
    }
    // The recursion B_j = aB / (j + aB) in 1/B: a multiplication instead of a division a step.
    let inv_a = 1.0 / (f64::from(k) * rho);
    let mut inv_b = 1.0;
    let mut j_over_a = 0.0;
    for _ in 0..k {
        j_over_a += inv_a;
        inv_b = 1.0 + j_over_a * inv_b;
    }
    let b = 1.0 / inv_b;
    b / (1.0 - rho + rho * b)
}

/// Usable share of an allocation of few ways (conflict misses).
pub fn assoc(ways: u32) -> f64 {
    let w = f64::from(ways);
    w / (w + 0.35)
}

/// g(c) = mean x density at zero of a normal law truncated at zero, against its squared coefficient of variation c = 0, 1/64, ..., 1.
const G_TABLE: [f64; 65] = [
    0.000000, 0.000000, 0.000000, 0.000043, 0.000538, 0.002412, 0.006539, 0.013370, 0.022975, 0.035200, 0.049777, 0.066404, 0.084779,
    0.104615, 0.125653, 0.147663, 0.170437, 0.193799, 0.217592, 0.241679, 0.265944, 0.290285, 0.314613, 0.338854, 0.362943, 0.386824,
    0.410450, 0.433781, 0.456782, 0.479425, 0.501687, 0.523547, 0.544990, 0.566001, 0.586572, 0.606695, 0.626363, 0.645573, 0.664322,
    0.682610, 0.700436, 0.717803, 0.734712, 0.751166, 0.767168, 0.782723, 0.797835, 0.812509, 0.826750, 0.840564, 0.853955, 0.866929,
    0.879492, 0.891649, 0.903406, 0.914769, 0.925741, 0.936329, 0.946537, 0.956369, 0.965829, 0.974920, 0.983645, 0.992005, 1.000000,
];

/// Linear interpolation in the table of g, clamped to 0..=1.
pub fn g_of(c: f64) -> f64 {
    let x = c.clamp(0.0, 1.0) * 64.0;
    let i = (x as usize).min(63);
    G_TABLE[i] + (x - i as f64) * (G_TABLE[i + 1] - G_TABLE[i])
}

/// One step of the table of g. The next value is mostly wanted from the same one, and then nothing has to be looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    from: f64,
    /// Offsets below this are in the cell.
    width: f64,
    g: f64,
    slope: f64,
}

impl Cell {
    pub(crate) fn of(c: f64) -> Self {
        let x = c.clamp(0.0, 1.0) * 64.0;
        let i = (x as usize).min(63);
        // The last one includes its end.
        let width = if i == 63 { 1.0f64.next_up() } else { 1.0 };
        Cell { from: i as f64, width, g: G_TABLE[i], slope: G_TABLE[i + 1] - G_TABLE[i] }
    }

    /// [`g_of`], bit for bit.
    #[inline(always)]
    pub(crate) fn g_of(&mut self, c: f64) -> f64 {
        let x = c * 64.0 - self.from;
        if 0.0 <= x && x < self.width {
            return self.g + x * self.slope;
        }
        *self = Cell::of(c);
        self.g + (c.clamp(0.0, 1.0) * 64.0 - self.from) * self.slope
    }
}

/// Counter-based random bits: SplitMix64 folded over the key. Same bits everywhere, in any order of evaluation.
pub fn mix64(key: &[u64]) -> u64 {
    key.iter().fold(0x9E37_79B9_7F4A_7C15, |h, x| fold(h, *x))
}

fn fold(h: u64, x: u64) -> u64 {
    let mut h = (h ^ x).wrapping_add(0x9E37_79B9_7F4A_7C15);
    h = (h ^ (h >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    h ^ (h >> 31)
}

fn unit(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) * (0.5f64).powi(53)
}

/// Uniform in (0, 1).
pub fn uniform(key: &[u64]) -> f64 {
    unit(mix64(key))
}

/// Standard normal.
pub fn gauss(key: &[u64]) -> f64 {
    upper_z(uniform(key))
}

/// Random numbers whose keys differ in the last word only: the others are folded once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(key: &[u64]) -> Self {
        Draws(mix64(key))
    }

    /// As [`uniform`] of the key with `last` at its end.
    pub(crate) fn uniform(self, last: u64) -> f64 {
        unit(fold(self.0, last))
    }

    /// As [`gauss`] of the key with `last` at its end.
    pub(crate) fn gauss(self, last: u64) -> f64 {
        upper_z(self.uniform(last))
    }
}

/// Random key of an identifier: the fold of its bytes.
pub fn ident_hash(ident: &str) -> u64 {
    ident.bytes().fold(0x9E37_79B9_7F4A_7C15, |h, b| fold(h, u64::from(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Remembering the cell changes no bit of the table of g, wherever the next value is.
    #[test]
    fn cells_are_those_of_the_table() {
        let mut cell = Cell::of(0.3);
        let c = |i: u32| uniform(&[1, u64::from(i)]) * 1.3 - 0.1;
        let edges = (0..=64).flat_map(|i| [f64::from(i) / 64.0, (f64::from(i) / 64.0).next_down(), (f64::from(i) / 64.0).next_up()]);
        for c in (0..3000).map(c).chain(edges).chain([f64::INFINITY, 1.0, 1.0 + 1e-12, -0.0]) {
            for _ in 0..2 {
                assert_eq!(cell.g_of(c).to_bits(), g_of(c).to_bits(), "{c}");
            }
        }
    }

    /// Folding the common part of keys first changes no bit.
    #[test]
    fn draws_are_those_of_the_whole_key() {
        let draws = Draws::new(&[7, 11, 3]);
        for last in 0..200 {
            assert_eq!(draws.uniform(last).to_bits(), uniform(&[7, 11, 3, last]).to_bits());
            assert_eq!(draws.gauss(last).to_bits(), gauss(&[7, 11, 3, last]).to_bits());
        }
    }
}
