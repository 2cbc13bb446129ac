//! A BE job, drawn: the first of a world streams, the second has a working set, the third computes.

use super::memory;
use super::quantities as q;
use super::quantity::{digits, Stream};

/// The text of a job's profile; `index` from 0. It says how it pages where `pages`.
pub fn toml(s: Stream, name: &str, index: usize, pages: bool) -> String {
    let (kind, apki, floor, mlp) = match index {
        0 => ("streams", &q::STREAM_APKI, &q::STREAM_FLOOR, &q::STREAM_MLP),
        1 => ("reuses a working set", &q::REUSE_APKI, &q::REUSE_FLOOR, &q::REUSE_MLP),
        _ => ("computes", &q::PLAIN_APKI, &q::PLAIN_FLOOR, &q::PLAIN_MLP),
    };
    let (apki, floor, mlp) = (s.draw(apki), s.draw(floor), s.draw(mlp));
    let a = digits((q::MOST_MISSES.max(floor) - floor) * s.draw(&q::JOB_A), 4);
    let paging = pages.then(|| memory::of_job(s, index, apki));
    let (res_mb, paging) = paging.unwrap_or_else(|| (s.draw(&q::JOB_RES_MB).round(), String::new()));
    format!(
        "# A drawn BE job (docs/worlds.md). Fields: docs/virtual-server.md.\n\
         kind = \"be\"\nname = \"{name}\"\ntitle = \"drawn job, {kind}\"\n\n\
         [cpu]\ncpi_core = {}\nparallel = {}\ncontention = 0.0\noversub = 0.0\nweight = 1.0\n\n\
         [cache]\napki = {apki}\nl2_exp = 0.35\nmrc_floor = {floor}\nmrc = [[{a}, {}, {}]]\nws_thread = 0.0\nmlp = {mlp}\n\
         llc_exposed = 0.35\nwriteback = {}\n\n\
         [memory]\nvirt_mb = {}\nvirt_mb_thread = 4\nres_mb = {res_mb}\nres_mb_thread = 1\nres_mb_queued = 0.0\n{paging}",
        s.draw(&q::JOB_CPI),
        s.draw(&q::PARALLEL),
        s.draw(&q::JOB_MB),
        s.draw(&q::JOB_P),
        s.draw(&q::JOB_WRITEBACK),
        (res_mb * 1.2).round(),
    )
}
