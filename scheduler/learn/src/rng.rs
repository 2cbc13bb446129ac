//! Seeded random numbers (SplitMix64): the same seed gives the same run on every machine.

/// SplitMix64 (Steele, Lea and Flood, 2014): one u64 of state, passes BigCrush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..n, without the bias of a remainder (multiply and shift; off by less than n / 2^64).
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// Standard normal (Box-Muller, one of the pair).
    pub fn normal(&mut self) -> f64 {
        let u = 1.0 - self.uniform();
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published outputs of SplitMix64 for seed 1234567.
    #[test]
    fn splitmix64_known_answers() {
        let mut r = Rng::new(1_234_567);
        assert_eq!([r.next_u64(), r.next_u64()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    /// Mean and variance of 40,000 normal draws are 0 and 1 within five standard errors; draws below n stay below n.
    #[test]
    fn draws_have_their_moments() {
        let mut r = Rng::new(7);
        let n = 40_000;
        let (mut s, mut s2) = (0.0, 0.0);
        for _ in 0..n {
            let x = r.normal();
            s += x;
            s2 += x * x;
            assert!(r.below(3) < 3);
        }
        let (mean, var) = (s / f64::from(n), s2 / f64::from(n));
        assert!(mean.abs() < 5.0 * 0.005 && (var - 1.0).abs() < 5.0 * 0.0071, "{mean} {var}");
    }
}
