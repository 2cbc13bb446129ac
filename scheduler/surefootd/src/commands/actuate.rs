//! `surefootd actuate`: the process that holds the rights to kernel files (docs/privileges.md).

use crate::base::cli;
use crate::base::error::{Error, Result};
use crate::base::say;
use crate::base::stop;
use crate::line;
use crate::node::machine::missing;
use crate::node::notify::Notifier;
use crate::node::rights::{allowed, resctrl, trusted};
use crate::stage::config::{ActuatorConfig, How, NodeConfig};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use surefoot_io::input::{self, KERNEL_BYTES};
use surefoot_linux::actuator::harden::{give_up, restrict_calls, Measure, Open};
use surefoot_linux::actuator::{record, Actuator, Allow, Beneath, DeadMan, Listener, Record};
use surefoot_linux::cgroup::Mounts;
use surefoot_linux::claim;
use surefoot_linux::resctrl::Resctrl;
use surefoot_linux::{running, Root, Target};

/// # Errors
/// Bad input or a failure, on one line.
pub fn run(args: &cli::Actuate) -> Result<()> {
    if let Some(pid) = args.die_with_parent {
        stop::die_with_parent((pid > 0).then_some(pid))?;
    }
    stop::install()?;
    trusted(&args.config)?;
    let config = NodeConfig::read(&args.config)?;
    let own = config.actuator.clone().ok_or_else(|| missing(&config, "actuator", "Add an [actuator] table (docs/privileges.md)"))?;
    let (uid, gid) = user(&args.config, &own.user)?;
    let root = Root::default();
    let resctrl = resctrl(&config, &root)?;
    let allow = allowed(&config, &root, resctrl.as_ref());
    if args.list {
        return say::print(&list(&allow, resctrl.as_ref(), &own));
    }
    for (pattern, service) in unnamed(&config, &allow) {
        tracing::warn!("{service}: is given by {pattern}, whose cgroup is known only when it runs. Name it in actuator.cgroups");
    }
    if !nix::unistd::geteuid().is_root() {
        tracing::warn!("this process is not root: it can change only what user {} may", nix::unistd::geteuid());
    }
    // Its client has no right to make the locks by which controllers of one CPU notice each other.
    if let Err(e) = claim::prepare(Path::new(claim::FOLDER), gid) {
        tracing::warn!("{}: {e}: another controller of the CPUs of user {uid} would not be noticed", claim::FOLDER);
    }
    let files = Arc::new(Beneath::open(allow.dirs()).map_err(|e| Error::Failed(format!("{e}. Check that it is mounted")))?);
    let boot = input::text(Path::new("/proc/sys/kernel/random/boot_id"), KERNEL_BYTES)
        .map_err(|e| Error::Failed(format!("/proc/sys/kernel/random/boot_id: {e}")))?;
    let dead_man = DeadMan::open(&own.state_dir, &boot, Instant::now())
        .map_err(|e| Error::Failed(format!("{e}. Check actuator.state_dir in {}", args.config.display())))?;
    let at = own.state_dir.join(record::NAME);
    let kept = dead_man.folder().try_clone_to_owned().and_then(|dir| Record::open(dir, &boot, files.clone(), root.clone()));
    let kept = kept.map_err(|e| Error::Failed(format!("{}: {e}. Run surefootd reset as root, and move it away", at.display())))?;
    let listener = listen(args, &own)?;
    let mut notifier = Notifier::from_env();
    // What follows holds for this process for ever: everything that needs more has been opened.
    let lookup = if files.by_kernel() { "by the kernel (openat2)" } else { "name by name (this kernel has no openat2)" };
    tracing::info!("lookups below the mounts: {lookup}");
    let folders: Vec<_> = files.folders().collect();
    let say = |m: Measure| match m.done {
        Ok(how) => tracing::info!("{}: {how}", m.name),
        Err(why) => tracing::warn!("{}: NOT in force: {why}", m.name),
    };
    // Loaded while there are rights to, and only where a service lends.
    let running = if config.lends.is_empty() {
        Err("no service lends by its node.toml".to_string())
    } else {
        let version = Mounts::read(&root).version().ok_or_else(|| "no cgroup hierarchy is mounted".to_string());
        let loaded = version.and_then(running::load);
        match &loaded {
            Ok(_) => tracing::info!("programs in the kernel: loaded, for lenders"),
            Err(why) => tracing::warn!("programs in the kernel: NOT loaded, lenders read /proc: {why}"),
        }
        loaded
    };
    give_up(Open { kernel: &folders, state: Some(dead_man.folder()), resctrl: resctrl.is_some() }).into_iter().for_each(say);
    drop(folders);
    // Its thread has given up the same, being started after it, but for what each does for itself.
    let actuator = Actuator::new(allow, files, root).with_dead_man(dead_man).with_record(kept);
    let actuator =
        actuator.map_err(|e| Error::io(&at, "cannot be written", &e))?.with_running(running).with_aside(|| drop(restrict_calls()));
    let mut actuator = actuator.map_err(|e| Error::Failed(format!("no second thread: {e}. Allow more tasks")))?;
    say(restrict_calls());
    tracing::info!("serving user {uid} ({})", own.user);
    notifier.ready(&format!("serving user {}", own.user));
    let ended = actuator.serve(&listener, uid, || {
        notifier.alive();
        stop::requested()
    });
    notifier.stopping();
    ended.map_err(|e| Error::Failed(format!("socket: {e}. Start it again")))
}

/// Numbers of a user given by name or number, and of that user's group.
fn user(file: &Path, name: &str) -> Result<(u32, u32)> {
    let ids = |u: nix::unistd::User| (u.uid.as_raw(), u.gid.as_raw());
    if let Ok(uid) = name.parse::<u32>() {
        // One that has no entry has no group either.
        return Ok(nix::unistd::User::from_uid(uid.into()).ok().flatten().map_or((uid, 0), ids));
    }
    let found = nix::unistd::User::from_name(name).map_err(|e| Error::Failed(format!("user {name}: {e}")))?;
    found.map(ids).ok_or_else(|| {
        Error::BadInput(format!("{}: actuator.user: there is no user \"{name}\". Run: useradd --system {name}", file.display()))
    })
}

/// Services whose cgroup is not known before they run, where no pattern could cover them.
fn unnamed<'a>(config: &'a NodeConfig, allow: &Allow) -> Vec<(&'static str, &'a str)> {
    let by = |how: &How| match how {
        How::Adopt { target: Target::Cgroup(_) | Target::Unit(_), .. } => None,
        How::Adopt { target: Target::Pid(_), .. } => Some("pid"),
        How::Adopt { .. } => Some("name"),
        How::Launch { .. } => Some("catalogue"),
    };
    if !allow.cgroups().is_empty() {
        return vec![];
    }
    config.services.iter().filter_map(|s| Some((by(&s.how)?, s.id.as_str()))).collect()
}

fn list(allow: &Allow, resctrl: Option<&Resctrl>, own: &ActuatorConfig) -> String {
    let mut page = String::new();
    let (cgroup_files, resctrl_files) = allow.files();
    line!(page, "user: {}", own.user);
    line!(page, "socket: {}", own.socket.display());
    allow.dirs().for_each(|d| line!(page, "below: {}", d.display()));
    allow.cgroups().iter().for_each(|p| line!(page, "cgroup: {p}"));
    if allow.cgroups().is_empty() {
        line!(page, "cgroup: none (name them in actuator.cgroups)");
    }
    line!(page, "files of a cgroup: {}", cgroup_files.join(" "));
    match resctrl {
        Some(r) => line!(page, "files of {}/surefoot.*: {}", r.dir().display(), resctrl_files.join(" ")),
        None => line!(page, "resctrl: not mounted"),
    }
    page
}

fn listen(args: &cli::Actuate, own: &ActuatorConfig) -> Result<Listener> {
    if let Some(l) = Listener::inherited().map_err(|e| Error::Failed(format!("LISTEN_FDS: {e}")))? {
        tracing::info!("on the socket of the service manager");
        return Ok(l);
    }
    let at = args.socket.as_ref().unwrap_or(&own.socket);
    let l = Listener::bind(at).map_err(|e| Error::io(at, "cannot be made a socket", &e))?;
    tracing::info!("on {}", at.display());
    Ok(l)
}
