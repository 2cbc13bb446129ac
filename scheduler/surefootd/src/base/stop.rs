//! Signals that ask for the end, as a flag that loops look at; and dying with the parent.

#![allow(unsafe_code, reason = "a signal handler that only sets a flag")]

use crate::base::error::{Error, Result};
use nix::sys::signal::{sigaction, SaFlags, SigAction, SigHandler, SigSet, Signal};
use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    // Asking twice (a terminal and a parent, say) is asking once: what was changed is always given back.
    STOP.store(true, Ordering::SeqCst);
}

/// True once somebody asked this process to end.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// # Errors
/// [`Error::Failed`].
pub fn install() -> Result<()> {
    // No SA_RESTART: blocking calls return, so that loops get to look.
    let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::empty(), SigSet::empty());
    let handle = |signal: Signal, action: &SigAction| {
        // SAFETY: the handler stores to an atomic, which is async-signal-safe.
        unsafe { sigaction(signal, action) }.map_err(|e| Error::Failed(format!("{signal}: cannot be handled: {e}")))
    };
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        handle(signal, &action)?;
    }
    // A terminal that goes away, and Ctrl-\: what was changed is given back then, too. `nohup` has them ignored, and is heeded.
    for signal in [Signal::SIGHUP, Signal::SIGQUIT] {
        if matches!(handle(signal, &action)?.handler(), SigHandler::SigIgn) {
            handle(signal, &SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty()))?;
        }
    }
    Ok(())
}

/// Ask the kernel for SIGTERM when the parent ends. `parent` is the parent's pid as the parent knows it.
///
/// # Errors
/// [`Error::Failed`] if the parent has ended already.
pub fn die_with_parent(parent: Option<i32>) -> Result<()> {
    let before = nix::unistd::getppid().as_raw();
    nix::sys::prctl::set_pdeathsig(Signal::SIGTERM).map_err(|e| Error::Failed(format!("PR_SET_PDEATHSIG: {e}")))?;
    // It may have ended before the call above.
    if nix::unistd::getppid().as_raw() != parent.unwrap_or(before) {
        return Err(Error::Failed("the parent process has ended. Start it again".into()));
    }
    Ok(())
}
