//! Equal shares for those who arrive, as both forms of PARTIES begin.

use crate::books::{Amount, Books};
use surefoot_server::{Action, ActionKind, Because, HoldsIf, Observation, Plan, Report, ServiceId, ServiceView};

/// Equal shares for those who arrive: from what is free, then from the largest holders. BE jobs count as one holder.
pub(super) fn arrive(books: &mut Books, seen: &Observation, arrived: &[ServiceId], plan: &mut Plan) {
    let holders = (seen.lc().count() + usize::from(books.has_be())).max(1) as u32;
    let total = books.total();
    let share = Amount::new(total.cores / holders, total.ways / holders).at_least(books.least());
    let newcomers = arrived.len() as u32 + u32::from(books.has_be());
    for (i, id) in arrived.iter().enumerate() {
        // Whoever holds more than an equal share gives first.
        let others = newcomers - i as u32 - 1;
        let wanted = Amount::new(share.cores * (1 + others), share.ways * (1 + others));
        let keep = Amount::new(share.cores * others, share.ways * others);
        take_from_largest(books, seen, share, wanted.minus(books.rest()));
        let own = share.at_most(books.rest().minus(keep).at_least(books.least()));
        let own = own.at_most(books.free());
        if books.admit(id, own) {
            let why = format!("an equal share of {holders}: {} core units, {} ways", own.cores, own.ways);
            let seen = seen.get(id).map_or_else(Because::default, Because::seen);
            let mut because = seen.expect(HoldsIf::Qos { at_least: 1.0 });
            because.bind(match own == share {
                true => "everybody begins with an equal share".into(),
                false => format!("an equal share is {} core units, {} ways; no more is free", share.cores, share.ways),
            });
            plan.actions.push(Action { service: id.clone(), kind: ActionKind::Place, why, because });
        } else if !books.is_crowded(id) {
            books.crowd_in(id);
            let why = "not even one core unit and the least ways are left".to_string();
            plan.reports.push(Report::CannotPlace { service: id.clone(), why });
        }
    }
    let (least, lacks) = (books.least(), books.be_lacks());
    take_from_largest(books, seen, least, lacks);
}

/// Units from the holders with most, while they have more than `share`; unknown latency gives nothing.
fn take_from_largest(books: &mut Books, seen: &Observation, share: Amount, mut lack: Amount) {
    for (unit, of) in [(Amount::new(1, 0), 0), (Amount::new(0, 1), 1)] {
        let amount = |a: Amount| if of == 0 { a.cores } else { a.ways };
        while amount(lack) > 0 {
            let may = |id: &str| !seen.get(id).is_some_and(ServiceView::latency_unknown);
            let largest = books.slots().iter().filter(|s| amount(s.own) > amount(share) && may(&s.id)).max_by_key(|s| amount(s.own));
            let Some(id) = largest.map(|s| s.id.clone()) else { break };
            if !books.shrink(&id, unit) {
                break;
            }
            lack = lack.minus(unit);
        }
    }
}
