//! What a refusal of the kernel means: its errno depends on the operation, its status text may be older than the refusal.

use std::io;
use surefoot_server::ServerError;

/// What was attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    MakeClass,
    MakeMonitor,
    Schemata,
    Tasks,
    Rename,
    Remove,
}

/// Why it failed, as far as somebody can do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    OutOfClasses,
    OutOfRmids,
    /// RMIDs of removed groups wait until the cache has forgotten them: it works later.
    RmidsInLimbo,
    Gone,
    NoRight,
    ReadOnly,
    /// No word of the kernel on the value: whoever carries it out is away, or cannot.
    Away,
    Other,
}

impl Cause {
    /// Monitoring ids are short.
    pub fn of_rmids(self) -> bool {
        matches!(self, Cause::OutOfRmids | Cause::RmidsInLimbo)
    }
}

/// A refusal, and its words.
#[derive(Debug)]
pub struct Refusal {
    pub cause: Cause,
    pub error: ServerError,
}

impl Refusal {
    /// `status` is `info/last_cmd_status`, read under the lock; `what` is path and value.
    pub fn new(attempt: Attempt, what: String, e: &io::Error, status: &str) -> Self {
        let cause = cause(attempt, e, status);
        let said = match status.trim() {
            "" | "ok" => String::new(),
            text => format!("; the kernel's log of commands: {}", text.replace('\n', " / ")),
        };
        Refusal { cause, error: ServerError::Write { what, cause: format!("{e}{said}"), remedy: remedy(attempt, cause).into() } }
    }

    /// True where sharing what there is helps.
    pub fn is_shortage(&self) -> bool {
        self.cause == Cause::OutOfClasses || self.cause.of_rmids()
    }
}

impl From<Refusal> for ServerError {
    fn from(r: Refusal) -> Self {
        r.error
    }
}

fn cause(attempt: Attempt, e: &io::Error, status: &str) -> Cause {
    match (attempt, e.raw_os_error().unwrap_or(0)) {
        // The log grows at its end, and a mkdir that fails for want of either writes to it.
        (Attempt::MakeClass, libc::ENOSPC) if !status.lines().last().is_some_and(|l| l.contains("RMID")) => Cause::OutOfClasses,
        (Attempt::MakeClass | Attempt::MakeMonitor, libc::ENOSPC) => Cause::OutOfRmids,
        (Attempt::MakeClass | Attempt::MakeMonitor, libc::EBUSY) => Cause::RmidsInLimbo,
        (_, libc::ENOENT | libc::ENODEV) => Cause::Gone,
        (_, libc::EACCES | libc::EPERM) => Cause::NoRight,
        (_, libc::EROFS) => Cause::ReadOnly,
        (_, 0 | libc::EIO | libc::ENOMEM | libc::EINTR | libc::EAGAIN | libc::EPIPE | libc::ECONNABORTED | libc::ETIMEDOUT) => Cause::Away,
        _ => Cause::Other,
    }
}

fn remedy(attempt: Attempt, cause: Cause) -> &'static str {
    match (cause, attempt) {
        (Cause::OutOfClasses, _) => "All classes of the processor are taken: remove groups of others that nobody needs",
        (Cause::OutOfRmids, _) => "All monitoring ids are taken: remove monitoring groups that nobody needs",
        (Cause::RmidsInLimbo, _) => {
            "Monitoring ids of removed groups are not free yet: try again in some seconds, or raise info/L3_MON/max_threshold_occupancy"
        }
        (Cause::Gone, _) => "Somebody has removed the group or unmounted resctrl: look for another tool that manages it",
        (Cause::NoRight, Attempt::Tasks) => "Run as root in the host's pid namespace",
        (Cause::NoRight, _) => "Run as root",
        (Cause::ReadOnly, _) => "Mount resctrl for writing: mount -o remount,rw",
        (Cause::Away, _) => "Look in the log for what keeps it from being written",
        (Cause::Other, Attempt::Schemata) => "Check the values against info/L3 and info/MB, and for exclusive groups of others",
        (Cause::Other, Attempt::Remove) => "Remove what other tools made in it",
        (Cause::Other, _) => "Look at info/last_cmd_status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same errno means something else for another operation, and old text beside it does not mislead.
    #[test]
    fn an_errno_is_read_by_operation() {
        let of = |a, errno, status: &str| Refusal::new(a, "x".into(), &io::Error::from_raw_os_error(errno), status);
        assert_eq!(of(Attempt::MakeClass, libc::ENOSPC, "Out of RMIDs\nOut of CLOSIDs").cause, Cause::OutOfClasses);
        assert_eq!(of(Attempt::MakeClass, libc::ENOSPC, "Out of CLOSIDs\nOut of RMIDs").cause, Cause::OutOfRmids);
        assert_eq!(of(Attempt::MakeMonitor, libc::ENOSPC, "ok").cause, Cause::OutOfRmids);
        assert_eq!(of(Attempt::MakeMonitor, libc::EBUSY, "ok").cause, Cause::RmidsInLimbo);
        assert_eq!(of(Attempt::Schemata, libc::ENOSPC, "").cause, Cause::Other);
        let r = of(Attempt::Schemata, libc::EINVAL, "Mask out of range\nOverlaps with exclusive group");
        let said = r.error.to_string();
        assert!(!r.is_shortage() && said.contains("os error 22"), "{said}");
        assert!(said.contains("Mask out of range / Overlaps with exclusive group"), "{said}");
        assert!(of(Attempt::Tasks, libc::EPERM, "ok").error.to_string().contains("pid namespace"));
    }
}
