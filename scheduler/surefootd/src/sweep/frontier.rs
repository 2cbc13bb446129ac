//! Sweeps by search: each chain of planes is a sequence of cases that is known only as it is measured. It is cut into pieces, a shard
//! each, after a fixed number of cases; what its journal lines heard brings a resumed search to where it was.

use super::chain::{reading, Chain, Step};
use super::job::{Answer, Job, Measure, Pieces, Worker};
use super::journal::Heard;
use super::parallel::Make;
use super::rows::{without_measuring, Marks, Measured};
use super::shard::{Keeper, Maker};
use crate::base::error::{Error, Result};
use crate::base::progress::Progress;
use crate::base::stop;

/// Makes chains that are one piece each.
pub fn chains<'a>(job: &'a Job, pieces: &'a Pieces, mut worker: Worker<'a>, progress: &'a Progress) -> Make<'a> {
    let mut maker = Maker::new(job);
    let (mut walk, mut rows) = (job.cases.walk(), vec![]);
    Box::new(move |shard| {
        let mut chain = Chain::new(job.cases, pieces.place(shard).0);
        loop {
            match chain.step() {
                Step::Case(i) => {
                    let case = walk.at(i);
                    rows.clear();
                    let (state, reason) = match without_measuring(case) {
                        Some((state, why)) => (state, Some(why)),
                        None => worker(case, &mut rows),
                    };
                    let r = reading(&rows);
                    maker.hear(shard, case, state, reason, &rows, r.into(), Marks::default());
                    chain.tell(r);
                    progress.case();
                }
                Step::Tally(t) => {
                    progress.cases(t.cases);
                    maker.tally(shard, t);
                }
                Step::End => return maker.finish_piece(shard, true),
            }
        }
    })
}

/// Measure a chain on a real machine, from where `heard` left it.
pub fn one_by_one(
    job: &Job,
    pieces: &Pieces,
    number: u32,
    heard: &[Answer],
    measure: &mut Measure<'_>,
    progress: &Progress,
    keeper: &mut Keeper,
) -> Result<()> {
    let mut walk = job.cases.walk();
    let mut chain = Chain::new(job.cases, number);
    for (id, what) in heard {
        let i = loop {
            match chain.step() {
                Step::Case(i) => break Some(i),
                Step::Tally(_) => {}
                Step::End => break None,
            }
        };
        if i.is_none_or(|i| walk.at(i).case_id != *id) {
            return Err(Error::BadInput(format!(
                "{}: case {id} is not the one that the search asks for here. The journal is not of this campaign or was damaged: restore it, \
                 or remove the folder and measure again",
                keeper.folder.journal().display()
            )));
        }
        chain.tell((*what).into());
    }
    let per_piece = pieces.cases.unwrap_or(u64::MAX);
    let mut piece = (heard.len() as u64 / per_piece) as u32;
    let (mut maker, mut cases) = (Maker::new(job), 0);
    loop {
        let shard = pieces.shard(number, piece);
        match chain.step() {
            Step::Case(i) => {
                if stop::requested() {
                    return Ok(());
                }
                let case = walk.at(i).clone();
                let m = match without_measuring(&case) {
                    Some((state, why)) => Measured::without_rows(case, state, why),
                    None => measure(case, &job.campaign.sampling)?,
                };
                let r = reading(&m.rows);
                let told: Heard = r.into();
                maker.hear(shard, &m.case, m.state, m.reason, &m.rows, told, m.marks);
                chain.tell(r);
                progress.case();
                cases += 1;
                if cases == per_piece {
                    keeper.keep(vec![maker.finish_piece(shard, false)?])?;
                    (piece, cases) = (piece + 1, 0);
                }
            }
            Step::Tally(t) => {
                progress.cases(t.cases);
                maker.tally(shard, t);
            }
            Step::End => return keeper.keep(vec![maker.finish_piece(shard, true)?]),
        }
    }
}
