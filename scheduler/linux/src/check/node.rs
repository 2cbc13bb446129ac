//! What a daemon on this host needs of its own: its folder, the latency feed, the actuator.

use super::{Area, Node};
use crate::root::Root;
use nix::unistd::AccessFlags;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

pub(super) fn look(root: &Root, node: &Node<'_>) -> Area {
    let state_dir = node.state_dir;
    let mut a = Area::new("node");
    const STATE: &str = "remembering what was changed, so that it can be given back";
    // Files cannot be made in a folder that access(2) denies; opening one to write says nothing.
    let open = |d: &Path| d.is_dir() && nix::unistd::access(d, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    const OWN: &str = "Give state_dir in node.toml, --state, or SUREFOOT_STATE a folder of this user's";
    // Above a relative path stands "", which is this folder.
    let mut above = state_dir.ancestors().map(|d| if d.as_os_str().is_empty() { Path::new(".") } else { d });
    match above.find(|d| d.exists()) {
        Some(d) if d == state_dir && open(d) => a.have("state", STATE, state_dir.display().to_string()),
        Some(d) if open(d) => a.have("state", STATE, format!("{} is not there yet and will be made", state_dir.display())),
        Some(d) if d != state_dir => {
            let what = format!("{} is not there yet and cannot be made: {} cannot be written", state_dir.display(), d.display());
            a.lack("state", STATE, what, OWN);
        }
        _ => a.lack("state", STATE, format!("{} cannot be written", state_dir.display()), OWN),
    }
    const FEED: &str = "latency of services: without it nothing is known of QoS, and policies take nothing away";
    let feed = state_dir.join("feed.sock");
    // Whoever was killed leaves its socket behind.
    let listens = || UnixDatagram::unbound().and_then(|s| s.connect(&feed)).is_ok_and(|()| true);
    if is_socket(&feed) && listens() {
        a.have("latency-feed", FEED, format!("{} is open: a daemon or a recording listens", feed.display()));
    } else {
        a.lack(
            "latency-feed",
            FEED,
            format!("nobody listens on {}", feed.display()),
            "It is opened by `surefootd run --server local` and `record`; send to it from the service or from `surefoot-loadgen --feed`",
        );
    }
    actuator(root, node.actuator, &mut a);
    a
}

/// Whether an actuator can be reached. Not connected to: that would start it, or take the place of the daemon.
pub(super) enum Reach {
    Nobody,
    NotForUs,
    Here,
}

pub(super) fn reach(socket: &Path) -> Reach {
    match (is_socket(socket), nix::unistd::access(socket, AccessFlags::W_OK)) {
        (false, _) => Reach::Nobody,
        (true, Err(_)) => Reach::NotForUs,
        (true, Ok(())) => Reach::Here,
    }
}

fn actuator(root: &Root, socket: &Path, a: &mut Area) {
    const WHY: &str = "a daemon without rights: one small process holds them (else surefootd itself must run as root)";
    const REMEDY: &str = "Start the actuator (docs/privileges.md) as root, for this user; a surefootd that runs as root needs none";
    let path = root.path(socket);
    let socket = socket.display();
    match reach(&path) {
        Reach::Nobody => a.lack("actuator", WHY, format!("nobody listens on {socket}"), REMEDY),
        Reach::NotForUs => a.lack("actuator", WHY, format!("{socket} is there, but not for this user"), REMEDY),
        Reach::Here => a.have("actuator", WHY, format!("{socket} is there for this user")),
    }
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_socket())
}
