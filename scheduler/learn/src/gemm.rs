//! Dense products of small matrices on plain slices, in tiles that stay in registers.
//!
//! Each result is one sum, taken in the order of its index with one fused multiply-add a term (a single rounding, IEEE 754).
//! So neither tile nor vector width nor processor changes a bit of it; a processor without fused multiply-add computes the
//! same, slowly.
//!
//! The right-hand matrix is first [`pack`]ed into strips of 16 columns (8 where no more are left), padded with zeros: a strip
//! of some kB stays in the first cache while all rows pass by, four at a time.

use std::hint::black_box;

/// Columns of a strip, and of the last one where no more than that are left.
const WIDE: usize = 16;
const NARROW: usize = 8;

/// Rows of a tile: 4 x 16 sums are eight vector registers of eight, as many as two multiply-adds a cycle of latency 4 need.
const ROWS: usize = 4;

fn strip(columns_left: usize) -> usize {
    if columns_left > NARROW {
        WIDE
    } else {
        NARROW
    }
}

/// Do `$body` for each strip: its first column, its part of the packed matrix as rows of N, and whether it is WHOLE. Strips that
/// are not have a body of their own: with both ways to store in one, the compiler keeps no sum in a register.
macro_rules! each_strip {
    ($columns:expr, $rows:expr, $packed:expr, |$at:ident, $panel:ident, $n:ident, $whole:ident| $body:expr) => {{
        let (mut $at, mut from) = (0, 0);
        while $at < $columns {
            let left = $columns - $at;
            let n = strip(left);
            let $panel = &$packed[from..from + n * $rows];
            match (n, left >= n) {
                (WIDE, true) => each_strip!(@ WIDE true $n $whole $body),
                (WIDE, false) => each_strip!(@ WIDE false $n $whole $body),
                (_, true) => each_strip!(@ NARROW true $n $whole $body),
                (_, false) => each_strip!(@ NARROW false $n $whole $body),
            }
            $at += n;
            from += n * $rows;
        }
    }};
    (@ $width:ident $all:literal $n:ident $whole:ident $body:expr) => {{
        const $n: usize = $width;
        const $whole: bool = $all;
        $body
    }};
}

fn packed_len(rows: usize, columns: usize) -> usize {
    let whole = columns / WIDE * WIDE;
    rows * (whole + if whole < columns { strip(columns - whole) } else { 0 })
}

/// Strips of `b` (rows, columns). Allocates only while `out` grows.
#[inline(always)]
pub(crate) fn pack(b: &[f32], columns: usize, out: &mut Vec<f32>) {
    let rows = b.len() / columns;
    out.resize(packed_len(rows, columns), 0.0);
    let (mut at, mut from) = (0, 0);
    while at < columns {
        let n = strip(columns - at);
        let to = from + n * rows;
        if n == WIDE {
            pack_strip::<WIDE>(b, columns, at, &mut out[from..to]);
        } else {
            pack_strip::<NARROW>(b, columns, at, &mut out[from..to]);
        }
        at += n;
        from = to;
    }
}

#[inline(always)]
fn pack_strip<const N: usize>(b: &[f32], columns: usize, at: usize, out: &mut [f32]) {
    for (to, row) in out.chunks_exact_mut(N).zip(b.chunks_exact(columns)) {
        if at + N <= columns {
            to.copy_from_slice(&row[at..at + N]);
        } else {
            // By hand: for so few numbers a call of memcpy is most of the work.
            let mut from = row[at..].iter();
            for v in to {
                *v = from.next().copied().unwrap_or(0.0);
            }
        }
    }
}

/// Strips of the transpose of `w` (rows, columns), which has `rows` columns.
#[inline(always)]
pub(crate) fn pack_transposed(w: &[f32], columns: usize, out: &mut Vec<f32>) {
    let rows = w.len() / columns;
    out.clear();
    out.resize(packed_len(columns, rows), 0.0);
    let mut from = 0;
    let mut at = 0;
    while at < rows {
        let n = strip(rows - at);
        for (i, row) in w.chunks_exact(columns).skip(at).take(n).enumerate() {
            for (o, v) in row.iter().enumerate() {
                out[from + o * n + i] = *v;
            }
        }
        at += n;
        from += n * columns;
    }
}

/// y = x B + bias for all rows of `x` (rows, k); `packed` is B (k, columns). Without a bias sums start at 0. `relu`: max(y, 0).
#[inline(always)]
pub(crate) fn product(x: &[f32], k: usize, packed: &[f32], columns: usize, bias: Option<&[f32]>, relu: bool, y: &mut [f32]) {
    each_strip!(columns, k, packed, |at, panel, N, WHOLE| {
        let mut start = [0.0; N];
        let n = N.min(columns - at);
        if let Some(b) = bias {
            start[..n].copy_from_slice(&b[at..at + n]);
        }
        product_strip::<N, WHOLE>(x, k, panel, &start, columns, at, relu, y);
    });
}

#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn product_strip<const N: usize, const WHOLE: bool>(
    x: &[f32],
    k: usize,
    panel: &[f32],
    start: &[f32; N],
    columns: usize,
    at: usize,
    relu: bool,
    y: &mut [f32],
) {
    let (panel, _) = panel.as_chunks::<N>();
    for (x, y) in x.chunks(ROWS * k).zip(y.chunks_mut(ROWS * columns)) {
        if x.len() == ROWS * k {
            let (x0, rest) = x.split_at(k);
            let (x1, rest) = rest.split_at(k);
            let (x2, x3) = rest.split_at(k);
            let (mut s0, mut s1, mut s2, mut s3) = (*start, *start, *start, *start);
            for ((((w, a), b), c), d) in panel.iter().zip(x0).zip(x1).zip(x2).zip(x3) {
                add(&mut s0, *a, w);
                add(&mut s1, *b, w);
                add(&mut s2, *c, w);
                add(&mut s3, *d, w);
            }
            let (y0, rest) = y.split_at_mut(columns);
            let (y1, rest) = rest.split_at_mut(columns);
            let (y2, y3) = rest.split_at_mut(columns);
            store::<N, WHOLE>(black_box(s0), relu, &mut y0[at..]);
            store::<N, WHOLE>(black_box(s1), relu, &mut y1[at..]);
            store::<N, WHOLE>(black_box(s2), relu, &mut y2[at..]);
            store::<N, WHOLE>(black_box(s3), relu, &mut y3[at..]);
        } else {
            for (x, row) in x.chunks_exact(k).zip(y.chunks_exact_mut(columns)) {
                let mut sums = *start;
                for (w, a) in panel.iter().zip(x) {
                    add(&mut sums, *a, w);
                }
                store::<N, WHOLE>(black_box(sums), relu, &mut row[at..]);
            }
        }
    }
}

/// g = x^T d: the sum over all rows of `x` (rows, inputs) and of `packed`, d (rows, columns); g is (inputs, columns).
#[inline(always)]
pub(crate) fn product_transposed(x: &[f32], inputs: usize, packed: &[f32], columns: usize, g: &mut [f32]) {
    let rows = x.len() / inputs;
    each_strip!(columns, rows, packed, |at, panel, N, WHOLE| transposed_strip::<N, WHOLE>(x, inputs, panel, columns, at, g));
}

#[inline(always)]
fn transposed_strip<const N: usize, const WHOLE: bool>(x: &[f32], inputs: usize, panel: &[f32], columns: usize, at: usize, g: &mut [f32]) {
    let (panel, _) = panel.as_chunks::<N>();
    let mut i = 0;
    while i < inputs {
        if i + ROWS <= inputs {
            let (mut s0, mut s1, mut s2, mut s3) = ([0.0; N], [0.0; N], [0.0; N], [0.0; N]);
            for (x, d) in x.chunks_exact(inputs).zip(panel) {
                if let Some([a, b, c, e]) = x[i..].first_chunk::<ROWS>() {
                    add(&mut s0, *a, d);
                    add(&mut s1, *b, d);
                    add(&mut s2, *c, d);
                    add(&mut s3, *e, d);
                }
            }
            let (g0, rest) = g[i * columns..(i + ROWS) * columns].split_at_mut(columns);
            let (g1, rest) = rest.split_at_mut(columns);
            let (g2, g3) = rest.split_at_mut(columns);
            store::<N, WHOLE>(black_box(s0), false, &mut g0[at..]);
            store::<N, WHOLE>(black_box(s1), false, &mut g1[at..]);
            store::<N, WHOLE>(black_box(s2), false, &mut g2[at..]);
            store::<N, WHOLE>(black_box(s3), false, &mut g3[at..]);
            i += ROWS;
        } else {
            let mut sums = [0.0; N];
            for (x, d) in x.chunks_exact(inputs).zip(panel) {
                add(&mut sums, x[i], d);
            }
            store::<N, WHOLE>(black_box(sums), false, &mut g[i * columns + at..(i + 1) * columns]);
            i += 1;
        }
    }
}

/// y = x W + b for one row, without packing: what a single prediction needs.
#[inline(always)]
pub(crate) fn row_product(x: &[f32], w: &[f32], bias: &[f32], relu: bool, y: &mut [f32]) {
    // Every sum waits for its own last term: the more sums at a time, the less is waited for.
    let mut at = row_strips::<64>(x, w, bias, relu, 0, y);
    at = row_strips::<32>(x, w, bias, relu, at, y);
    at = row_strips::<WIDE>(x, w, bias, relu, at, y);
    at = row_strips::<NARROW>(x, w, bias, relu, at, y);
    at = row_strips::<4>(x, w, bias, relu, at, y);
    let columns = y.len();
    for (i, y) in y.iter_mut().enumerate().skip(at) {
        let mut sum = bias[i];
        for (a, row) in x.iter().zip(w.chunks_exact(columns)) {
            sum = a.mul_add(row[i], sum);
        }
        *y = if relu { sum.max(0.0) } else { sum };
    }
}

/// As many strips of N columns as there are from `at` on; where they end.
#[inline(always)]
fn row_strips<const N: usize>(x: &[f32], w: &[f32], bias: &[f32], relu: bool, mut at: usize, y: &mut [f32]) -> usize {
    let columns = y.len();
    while at + N <= columns {
        let mut sums = [0.0f32; N];
        sums.copy_from_slice(&bias[at..at + N]);
        for (a, row) in x.iter().zip(w.chunks_exact(columns)) {
            if let Some(w) = row[at..].first_chunk::<N>() {
                add(&mut sums, *a, w);
            }
        }
        store::<N, true>(black_box(sums), relu, &mut y[at..]);
        at += N;
    }
    at
}

#[inline(always)]
fn add<const N: usize>(sums: &mut [f32; N], a: f32, w: &[f32; N]) {
    for (s, w) in sums.iter_mut().zip(w) {
        *s = a.mul_add(*w, *s);
    }
}

/// Into the row's columns from here on. Callers hand over what is in memory (`black_box`): what a store does with single sums
/// would otherwise reach back into the loop and take them out of their vector registers. Of a strip that is not WHOLE the padding is left out.
#[inline(always)]
fn store<const N: usize, const WHOLE: bool>(mut sums: [f32; N], relu: bool, row: &mut [f32]) {
    if relu {
        sums.iter_mut().for_each(|v| *v = v.max(0.0));
    }
    if !WHOLE {
        for (y, s) in row.iter_mut().zip(sums) {
            *y = s;
        }
    } else if let Some(to) = row.first_chunk_mut::<N>() {
        *to = sums;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Every product equals the plain sum in its order, bit for bit, for sizes on both sides of every tile's edge.
    #[test]
    fn tiles_change_no_bit() {
        let mut rng = Rng::new(4);
        let mut draws = |n: usize| (0..n).map(|_| rng.normal() as f32).collect::<Vec<_>>();
        let sizes =
            [(1, 1, 1), (3, 5, 7), (4, 8, 8), (5, 15, 9), (9, 32, 16), (13, 30, 30), (8, 3, 49), (6, 64, 33), (2, 9, 63), (2, 5, 125)];
        for (rows, k, columns) in sizes {
            let (x, b, bias) = (draws(rows * k), draws(k * columns), draws(columns));
            let plain = |start: f32, r: usize, c: usize| (0..k).fold(start, |s, i| x[r * k + i].mul_add(b[i * columns + c], s));
            let want: Vec<f32> = (0..rows * columns).map(|at| plain(bias[at % columns], at / columns, at % columns).max(0.0)).collect();
            let (mut packed, mut y) = (vec![9.0; 3], vec![9.0; rows * columns]);
            pack(&b, columns, &mut packed);
            product(&x, k, &packed, columns, Some(&bias), true, &mut y);
            assert_eq!(y, want, "{rows} {k} {columns}");
            let mut single = vec![9.0; rows * columns];
            for (x, y) in x.chunks(k).zip(single.chunks_mut(columns)) {
                row_product(x, &b, &bias, true, y);
            }
            assert_eq!(single, want);

            // B given as its transpose.
            let turned: Vec<f32> = (0..columns * k).map(|at| b[at % k * columns + at / k]).collect();
            let want: Vec<f32> = (0..rows * columns).map(|at| plain(0.0, at / columns, at % columns)).collect();
            pack_transposed(&turned, k, &mut packed);
            product(&x, k, &packed, columns, None, false, &mut y);
            assert_eq!(y, want);

            // x^T d, with d of as many rows.
            let d = draws(rows * columns);
            let sum = |i: usize, c: usize| (0..rows).fold(0.0f32, |s, r| x[r * k + i].mul_add(d[r * columns + c], s));
            let want: Vec<f32> = (0..k * columns).map(|at| sum(at / columns, at % columns)).collect();
            let mut g = vec![9.0; k * columns];
            pack(&d, columns, &mut packed);
            product_transposed(&x, k, &packed, columns, &mut g);
            assert_eq!(g, want);
        }
    }
}
