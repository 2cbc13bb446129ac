//! A harvester on a lender: read, decide, lend, until an instant.

use crate::harvester::Harvester;
use crate::said::Seen;
use surefoot_server::{LendError, Lender};

/// Run until `until_us` on the lender's clock. It can be gone on with.
///
/// # Errors
/// What the lender says; [`LendError::Ended`] when its lease has ended.
pub fn drive(lender: &mut dyn Lender, harvester: &mut Harvester, until_us: u64) -> Result<(), LendError> {
    loop {
        let next_us = harvester.next_us();
        if next_us >= until_us {
            lender.advance_to(until_us);
            return Ok(());
        }
        lender.advance_to(next_us);
        // A real lender may be late.
        let now_us = lender.now_us();
        if harvester.wants_waits(now_us) {
            let waits = lender.waits()?;
            harvester.waited(now_us, &waits);
        }
        let lent = lender.lent();
        let seen = Seen {
            now_us,
            busy: lender.busy()?,
            here: harvester.cores().saturating_sub(lent.cores + lent.to_come),
            waiting_us: if harvester.wants_waiting() { Some(lender.waiting_us()?) } else { None },
        };
        if let Some((keep, _)) = harvester.poll(&seen).keep {
            lender.lend(harvester.cores() - keep)?;
        }
    }
}
