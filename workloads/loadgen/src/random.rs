//! Numbers drawn from a seed, a stream and an index: the same anywhere, in any order.

/// SplitMix64's finaliser.
fn finalise(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The `index`th 64-bit number of one of the seed's independent streams.
pub fn draw(seed: u64, stream: u64, index: u64) -> u64 {
    let base = finalise(seed.wrapping_add(stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    finalise(base.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// Uniform on (0, 1].
pub fn unit(x: u64) -> f64 {
    ((x >> 11) + 1) as f64 * (1.0 / (1u64 << 53) as f64)
}
