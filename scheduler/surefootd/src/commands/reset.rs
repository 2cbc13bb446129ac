//! `surefootd reset`.

use crate::base::cli;
use crate::base::error::{server_error, Error, Result};
use crate::base::places::state_dir;
use crate::base::say;
use crate::line;
use crate::node::machine::kernel_files;
use crate::node::rights;
use crate::stage::config::NodeConfig;
use std::path::Path;
use surefoot_linux::actuator::{self, Allow};
use surefoot_linux::claim::{self, lock_folder};
use surefoot_linux::files::Files;
use surefoot_linux::local::{by_whom, BOOT_ID};
use surefoot_linux::own::{self, plain_file, Author, Folder};
use surefoot_linux::resctrl::Resctrl;
use surefoot_linux::safe::{self, SafeLayout};
use surefoot_linux::{LocalConfig, LocalServer, Root};

/// Whether a folder has anything of a daemon's: its journal, its safe layout; a journal that is damaged counts beside the daemon's lock.
fn is_state_folder(dir: &Path) -> bool {
    const EVENT: &[u8] = b"{\"event\":";
    let head = |name: &str| plain_file(&dir.join(name)).and_then(|f| crate::base::files::head(&f)).ok();
    // A kill may have torn its only line.
    let ours = |h: &[u8]| !h.is_empty() && (h.starts_with(EVENT) || EVENT.starts_with(h));
    let is_pid = |h: &[u8]| !h.is_empty() && h.trim_ascii().iter().all(u8::is_ascii_digit);
    let there = |name: &str| dir.join(name).symlink_metadata().ok();
    let journal = head("journal.jsonl");
    // What is no plain file there is named by whoever opens it.
    let led = there("journal.jsonl").is_some_and(|m| !m.is_file());
    led || there(safe::FILE).is_some()
        || journal.as_deref().is_some_and(ours)
        || journal.is_some() && head("lock").as_deref().is_some_and(is_pid)
}

/// `surefootd reset`.
///
/// # Errors
/// Bad input, or what could not be given back.
pub fn reset(args: &cli::Reset) -> Result<()> {
    if let cli::Server::Virtual(name) = cli::Server::parse(&args.server)? {
        crate::stage::virtual_target::VirtualTarget::open(&name, None)?;
        if args.json {
            let nothing = serde_json::json!({
                "server": args.server, "restored": [], "gone": [], "groups_removed": [], "containers_removed": [],
                "commands_ended": [], "leases_ended": []
            });
            return say::json(&nothing);
        }
        return say::print(&format!("{}: a virtual server keeps nothing between runs\n", args.server));
    }
    let config = args.config.as_deref().map(NodeConfig::read).transpose()?;
    let config = config.as_ref();
    let dir = state_dir(args.state.as_deref().or(config.and_then(|c| c.state_dir.as_deref())));
    if !dir.is_dir() {
        return Err(Error::BadInput(format!("{}: no such state folder. Give --state or --config as for the run", dir.display())));
    }
    if args.state.is_some() && !args.safe && !is_state_folder(&dir) {
        let dir = dir.display();
        return Err(Error::BadInput(format!(
            "{dir}: is no state folder (neither a journal of a daemon nor a safe layout is in it), so it stays as it is. Give --state or --config as for the run"
        )));
    }
    let allow = rights::for_state(&dir, config)?;
    // Root has the rights itself where no actuator runs any more.
    let files = match config.map(|c| kernel_files(c, allow.as_ref())) {
        Some(Err(e)) if nix::unistd::geteuid().is_root() && config.is_some_and(|c| c.actuator.is_some()) => {
            tracing::warn!("without the actuator: {e}");
            None
        }
        other => other.transpose()?,
    };
    let without_actuator = files.is_none();
    let root = Root::with("/", files.map_or_else(|| rights::own_files(allow.as_ref(), config), Ok)?);
    if args.safe {
        return put_safe_layout_in_force(&dir, root.files.as_ref(), allow, args.json);
    }
    let mut resctrl = config.and_then(|c| c.resctrl.clone());
    if let Some(at) = resctrl.take_if(|at| Resctrl::named(&Root::default(), at).is_err()) {
        tracing::warn!("resctrl = {}: nothing like resctrl is mounted there: what was set in it went with it", at.display());
    }
    let local = LocalConfig { root, allow, resctrl, ..LocalConfig::new(dir) };
    let mut server = LocalServer::open_to_reset(local).map_err(server_error)?;
    let held = config.and_then(|c| c.actuator.as_ref()).map(|a| &a.state_dir).filter(|d| without_actuator && d.is_dir());
    // What the actuator would put in force at its next start is void: it would be of before, and what is given back is forgotten after.
    if let Some(held) = held {
        forget_held(held).map_err(|e| Error::io(&held.join(actuator::deadman::NAME), "is void but cannot be removed", &e))?;
    }
    let r = server.reset().map_err(server_error);
    // Last, since nobody could falsify it: what the actuator itself knows to have been there.
    let recorded = held.map_or(Ok(()), |dir| put_record_back(dir));
    // Its locks are free before a word is said, which may have to wait.
    drop(server);
    let r = r?;
    recorded?;
    if args.json {
        let mut v = serde_json::to_value(&r).unwrap_or_default();
        v["server"] = "local".into();
        return say::json(&v);
    }
    let list = |l: &[String]| if l.is_empty() { "none".to_string() } else { l.join(", ") };
    let mut page = String::new();
    line!(page, "restored: {}", list(&r.restored));
    line!(page, "gone: {}", list(&r.gone));
    line!(page, "resctrl groups removed: {}", list(&r.groups_removed));
    line!(page, "containers removed: {}", list(&r.containers_removed));
    if !r.commands_ended.is_empty() {
        line!(page, "commands ended: {}", list(&r.commands_ended));
    }
    if !r.leases_ended.is_empty() {
        let ended = r.leases_ended.iter().map(|l| format!("{} to {} (CPUs {})", l.lender, l.borrower, l.cpus)).collect::<Vec<_>>();
        line!(page, "leases ended: {}", list(&ended));
    }
    say::print(&page)
}

/// The layout that an actuator keeps in its own folder, which nobody else may have a hand in.
fn forget_held(dir: &Path) -> std::io::Result<()> {
    let folder = Folder::open(dir)?;
    match folder.author() {
        Author::Us => folder.remove(actuator::deadman::NAME).map(|_| ()),
        Author::Others(weak) => Err(std::io::Error::other(weak.to_string())),
    }
}

/// What an actuator that does not run any more recorded.
fn put_record_back(state_dir: &Path) -> Result<()> {
    let root = Root::default();
    let boot = root.read(BOOT_ID).unwrap_or_default();
    let at = state_dir.join(actuator::record::NAME);
    let done = actuator::record::put_back_alone(state_dir, &boot, &root).map_err(|e| Error::Failed(format!("{}: {e}", at.display())))?;
    match done.and_then(|r| r.failed.into_iter().next()) {
        None => Ok(()),
        Some(first) => {
            Err(Error::Failed(format!("{}: not all of it could be given back: {first}. Run surefootd reset again", at.display())))
        }
    }
}

/// No model, no policy, no look at the host: what a daemon that has died recorded, write by write. `allow`: what bounds `files`, where
/// another user could have written it.
fn put_safe_layout_in_force(dir: &Path, kernel: &dyn Files, allow: Option<Allow>, json: bool) -> Result<()> {
    let file = dir.join(safe::FILE);
    let folder = Folder::open(dir).map_err(|e| crate::base::files::own_error(dir, "cannot be opened", &e))?;
    // Once more, of the folder that is gone on with: it may be another one by now.
    let bounded = by_whom(&folder, allow).map_err(server_error)?.is_some();
    let Some(layout) = SafeLayout::load_in(&folder).map_err(server_error)? else {
        if json {
            return say::json(&serde_json::json!({ "server": "local", "done": 0, "gone": 0, "failed": [] }));
        }
        return say::print(&format!("nothing is in force: {} is not there\n", file.display()));
    };
    let boot_id = Root::default().read(BOOT_ID);
    if layout.boot_id.is_some() && boot_id.is_some() && layout.boot_id != boot_id {
        let _ = folder.remove(safe::FILE);
        if json {
            return say::json(&serde_json::json!({ "server": "local", "done": 0, "gone": layout.ops.len(), "failed": [] }));
        }
        return say::print(
            "nothing is in force: the host was started anew since
",
        );
    }
    // A daemon that lives would write against it.
    let lock = lock_folder(&folder, claim::PATIENCE).map_err(|e| {
        let (cause, remedy) = own::cause_and_remedy(&e, "Stop the daemon first");
        Error::Failed(format!("{}: {cause}. {remedy}", dir.display()))
    })?;
    // What an actuator would put in force a moment later must not be an older one.
    if let Err(e) = kernel.keep_safe(&layout) {
        tracing::warn!("the actuator keeps an older layout: {e}");
    }
    let report = layout.put_in_force(kernel);
    drop(lock);
    if json {
        let mut v = serde_json::to_value(&report).unwrap_or_default();
        v["server"] = "local".into();
        say::json(&v)?;
    } else {
        say::print(&format!("safe layout: {} writes done, {} not needed (their services have gone)\n", report.done, report.gone))?;
    }
    match report.failed.first() {
        None => Ok(()),
        Some(first) => {
            let (failed, all, dir) = (report.failed.len(), layout.ops.len(), dir.display());
            let remedy = match (bounded, nix::unistd::geteuid().is_root()) {
                (true, _) => format!("Look who writes in {dir}; surefootd reset --config FILE gives back what FILE names"),
                (false, true) => "Run surefootd reset".into(),
                (false, false) => "Run surefootd reset as root".into(),
            };
            Err(Error::Failed(format!("{failed} of {all} writes were refused, the first: {first}. {remedy}")))
        }
    }
}
