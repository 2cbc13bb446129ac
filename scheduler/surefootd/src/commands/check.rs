//! `surefootd check`.

use crate::base::cli;
use crate::base::error::{server_error, Error, Result};
use crate::base::files::{Output, Sources};
use crate::base::places::state_dir;
use crate::base::say;
use crate::node::machine::check_senders;
use crate::node::pods;
use crate::node::rights;
use crate::stage::config::NodeConfig;
use crate::stage::virtual_target::VirtualTarget;
use crate::sweep::manifest::PlatformFacts;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use surefoot_harvest::Harvester;
use surefoot_linux::check::profile::{platform_file, PlatformFile};
use surefoot_linux::check::recording::{recording, Recording};
use surefoot_linux::check::Lend;
use surefoot_linux::resctrl::{may_be_mounted, Resctrl};
use surefoot_linux::{actuator, discover, Root};

/// `surefootd check`.
///
/// # Errors
/// Bad input.
pub fn check(args: &cli::Check) -> Result<()> {
    let mut written = None;
    let mut packed = None;
    let (all, platform) = match cli::Server::parse(&args.server)? {
        cli::Server::Local => {
            packed = args.pack_tree.as_deref().map(|file| pack_tree(args, file)).transpose()?;
            written = args.write_platform.as_deref().map(|file| write_platform(args, file)).transpose()?;
            check_local(args)?
        }
        cli::Server::Virtual(name) => {
            if let Some(file) = &args.config {
                return Err(Error::BadInput(format!(
                    "--config {}: a virtual server has no folders to check. Leave it out",
                    file.display()
                )));
            }
            if let Some(file) = &args.write_platform {
                let file = file.display();
                return Err(Error::BadInput(format!("--write-platform {file}: a virtual server has a file already. Leave --server out")));
            }
            if let Some(file) = &args.pack_tree {
                let file = file.display();
                return Err(Error::BadInput(format!("--pack-tree {file}: a virtual server has no resctrl. Leave --server out")));
            }
            let v = VirtualTarget::open(&name, args.profiles.as_deref())?;
            (virtual_check(&v), Some(PlatformFacts::of(&v.platform)))
        }
    };
    if args.json {
        let mut said = serde_json::json!({ "server": args.server, "platform": platform, "capabilities": all });
        if let (Some(file), Some(w)) = (&args.write_platform, &written) {
            said["written"] = serde_json::json!({ "file": file, "found": w.found, "estimated": w.estimated, "blank": w.blank });
        }
        if let (Some(file), Some(p)) = (&args.pack_tree, &packed) {
            said["packed"] = serde_json::json!({ "file": file, "files": p.files, "groups": p.groups, "left_out": p.left_out });
        }
        return say::json(&said);
    }
    match (&args.write_platform, &written, &args.pack_tree, &packed) {
        (Some(file), Some(w), ..) => say::print(&written_text(file, w)),
        (.., Some(file), Some(p)) => say::print(&packed_text(file, p)),
        _ => say::print(&check_text(&all)),
    }
}

/// Write a new file that the option names.
fn put(option: &'static str, args: &cli::Check, file: &Path, text: &str) -> Result<()> {
    let sources = Sources::default().and("--config", args.config.as_deref());
    let mut out = Output::create(option, file, &sources, args.overwrite)?;
    out.write_all(text.as_bytes()).map_err(|e| Error::io(file, "cannot be written", &e))?;
    out.place()?;
    out.finish()
}

/// Write a recording of this host's resctrl to a new file.
fn pack_tree(args: &cli::Check, file: &Path) -> Result<Recording> {
    let config = args.config.as_deref().map(NodeConfig::read).transpose()?;
    let root = Root::default();
    let named = config.as_ref().map_or_else(|| Ok(Resctrl::find(&root)), |c| rights::resctrl(c, &root))?;
    let Some(resctrl) = named else {
        let remedy = if may_be_mounted(&root) {
            "Mount it: mount -t resctrl resctrl /sys/fs/resctrl"
        } else {
            "Its kernel or its processor has none: give a recording of a host with Intel RDT or AMD QoS"
        };
        return Err(Error::Failed(format!("--pack-tree {}: resctrl is not mounted on this host. {remedy}", file.display())));
    };
    let made = recording(&root, &resctrl);
    put("--pack-tree", args, file, &made.text)?;
    Ok(made)
}

/// What is in a recording, and what is not.
fn packed_text(file: &Path, p: &Recording) -> String {
    let file = file.display();
    let mut out = format!("{file}: {} files, {} groups. Read it before you give it away: less {file}\n", p.files, p.groups);
    for l in &p.left_out {
        let _ = writeln!(out, "  left out: {} ({})", l.path, l.why);
    }
    out
}

/// Write a platform file of this host to a new file.
fn write_platform(args: &cli::Check, file: &Path) -> Result<PlatformFile> {
    let config = args.config.as_deref().map(NodeConfig::read).transpose()?;
    let root = Root::default();
    let resctrl = config.as_ref().and_then(|c| rights::resctrl(c, &root).ok()).flatten().or_else(|| Resctrl::find(&root));
    let peak = config.as_ref().and_then(|c| c.mem_bw_mbps);
    let resctrl = resctrl.map(|r| r.with_peak(peak));
    let stem = file.file_stem().map_or(String::new(), |s| s.to_string_lossy().into_owned());
    let cpus = config.as_ref().and_then(|c| c.cpus);
    let made = platform_file(&root, &stem, cpus, resctrl.as_ref(), peak).map_err(server_error)?;
    put("--write-platform", args, file, &made.text)?;
    Ok(made)
}

/// What the file has, and for each blank why and what to do.
fn written_text(file: &Path, w: &PlatformFile) -> String {
    let mut out = String::new();
    let (found, estimated, blank) = (w.found.len(), w.estimated.len(), w.blank.len());
    let _ = writeln!(out, "{}: {found} fields of this host, {estimated} estimates, {blank} to fill in", file.display());
    for b in &w.blank {
        let _ = writeln!(out, "  {:<18} {}\n  {:<18} -> {}", b.field, b.why, "", b.remedy);
    }
    let next = if blank == 0 { "" } else { "Fill them in, then try it: " };
    let _ = writeln!(out, "{next}surefootd check --server virtual:{}", file.display());
    out
}

/// What the host can do, and what models are made for: null where sysfs does not say it.
fn check_local(args: &cli::Check) -> Result<(Vec<surefoot_linux::Capability>, Option<PlatformFacts>)> {
    let mut config = args.config.as_deref().map(NodeConfig::read).transpose()?;
    if let Some(c) = &mut config {
        let pods = c.pods.as_ref().map_or(vec![], pods::once);
        c.services.extend(pods);
    }
    let config = config.as_ref();
    let dir = state_dir(args.state.as_deref().or(config.and_then(|c| c.state_dir.as_deref())));
    config.map_or(Ok(()), check_senders)?;
    let services: Vec<_> = config.map_or(vec![], NodeConfig::adopted);
    let lends = config.map_or(vec![], lends);
    let root = Root::default();
    let resctrl = config.and_then(|c| rights::resctrl(c, &root).ok()).flatten();
    let allow = config.filter(|c| c.actuator.is_some()).map(|c| rights::allowed(c, &root, resctrl.as_ref()));
    let node = surefoot_linux::check::Node {
        by_actuator: allow.as_ref(),
        resctrl: config.and_then(|c| c.resctrl.as_deref()),
        actuator: config.and_then(|c| c.actuator.as_ref()).map_or(Path::new(actuator::SOCKET), |a| &a.socket),
        services: &services,
        lends: &lends,
        managed: config.and_then(|c| c.cpus),
        sched_ext: config.is_some_and(|c| c.sched_ext),
        ..surefoot_linux::check::Node::at(&dir)
    };
    let platform = discover::discover_with(&root, node.managed, resctrl.or_else(|| Resctrl::find(&root)).as_ref());
    Ok((surefoot_linux::check(&root, &node), platform.ok().map(|d| PlatformFacts::of(&d.platform))))
}

/// What services are to lend, with what its policy asks of the host.
fn lends(config: &NodeConfig) -> Vec<Lend> {
    let lend = |l: &crate::stage::config::Lend| {
        let policy = Harvester::named(&l.policy, 2, 1, &l.settings);
        Lend {
            lender: l.lender.clone(),
            borrower: l.borrower.clone(),
            poll_ms: l.poll_ms,
            wants_waiting: policy.as_ref().is_ok_and(Harvester::wants_waiting),
            // The first question begins a period, the second comes after its end.
            wants_waits: policy.is_ok_and(|mut h| h.wants_waits(0) || h.wants_waits(u64::MAX / 2)),
        }
    };
    config.lends.iter().map(lend).collect()
}

/// A line for each item, by area; below a gap what it costs and what to do.
fn check_text(all: &[surefoot_linux::Capability]) -> String {
    let mut out = String::new();
    let mut area = "";
    for c in all {
        if c.area != area {
            area = c.area;
            let _ = writeln!(out, "{}{area}", if out.is_empty() { "" } else { "\n" });
        }
        let _ = writeln!(out, "  {} {:<22} {}", if c.found { "yes" } else { "no " }, c.name, c.detail);
        if !c.found {
            let _ = writeln!(out, "      {:<22} for: {}", "", c.needed_for);
        }
        if let Some(r) = &c.remedy {
            let _ = writeln!(out, "      {:<22} -> {r}", "");
        }
    }
    out
}

/// What policies can do with memory on a virtual server: limits are of services and jobs whose profile says how they page.
fn memory(v: &VirtualTarget) -> surefoot_linux::Capability {
    let paging: Vec<&str> = v.profiles.services.iter().filter(|(_, s)| s.paging.is_some()).map(|(name, _)| name.as_str()).collect();
    let bytes = v.platform.memory.map_or(0, |m| m.capacity_bytes);
    let size = format!("{} GiB to share out, zswap; working sets are known", bytes >> 30);
    surefoot_linux::Capability {
        area: "platform",
        name: "memory".into(),
        found: !paging.is_empty(),
        detail: if paging.is_empty() { size.clone() } else { format!("{size}; these page: {}", paging.join(", ")) },
        remedy: paging.is_empty().then(|| "Use a profile with [paging]: docs/virtual-server-data.md".into()),
        needed_for: "limits on memory and pools (cosmos, surefoot-memory, senpai)".into(),
    }
}

fn virtual_check(v: &VirtualTarget) -> Vec<surefoot_linux::Capability> {
    let p = &v.platform;
    let yes = |name: &str, detail: String, needed_for: &str| surefoot_linux::Capability {
        area: "platform",
        name: name.into(),
        found: true,
        detail,
        remedy: None,
        needed_for: needed_for.into(),
    };
    let services: Vec<&str> = v.profiles.services.iter().filter(|(_, s)| !s.is_be()).map(|(n, _)| n.as_str()).collect();
    let jobs: Vec<&str> = v.profiles.services.iter().filter(|(_, s)| s.is_be()).map(|(n, _)| n.as_str()).collect();
    const BANDWIDTH: &str = "throttling the memory bandwidth of BE jobs";
    let mba = match p.mba {
        Some(m) => yes("mba", format!("{} to 100 % in steps of {}", m.min_pct, m.step_pct), BANDWIDTH),
        None => {
            let with: Vec<&str> = v.profiles.platforms.iter().filter(|(_, p)| p.mem.mba).map(|(n, _)| n.as_str()).collect();
            let others = if with.is_empty() { "write one".to_string() } else { format!("have it: {}", with.join(", ")) };
            surefoot_linux::Capability {
                found: false,
                remedy: Some(format!("Choose a platform with `mba = true` ({others})")),
                ..yes("mba", "this platform has none: only 100 % is possible".into(), BANDWIDTH)
            }
        }
    };
    vec![
        yes("platform", format!("{}, virtual", p.name), "everything"),
        yes("cpus", format!("{} ({} cores x {} threads)", p.logical_cpus(), p.physical_cores, p.smt), "holding services apart by CPU"),
        yes("l3-cat", format!("{} ways of {} MB in {} domains", p.ways(), p.mb_per_way(), p.l3_domains()), "giving LLC ways to services"),
        mba,
        memory(v),
        yes("services", services.join(", "), "LC services of workloads"),
        yes("jobs", jobs.join(", "), "BE jobs of workloads"),
    ]
}
