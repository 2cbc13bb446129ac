//! Latency of the LC services of this machine.

use super::LocalServer;
use crate::feed::{Reading, Scrape, Trusted};
use std::collections::BTreeMap;
use std::path::PathBuf;
use surefoot_server::{Kind, ServerError, ServiceId};

impl LocalServer {
    /// Readings of all LC services. The feed listens for these and no others, and to the senders that may speak for them.
    pub(super) fn latency(&mut self, since_ms: u64, now_ms: u64) -> BTreeMap<ServiceId, Reading> {
        let lc = |k: &Kind| if let Kind::Lc { qos_target_ms } = k { Some(*qos_target_ms) } else { None };
        let targets: Vec<(&ServiceId, f64)> = self.services.iter().filter_map(|(id, s)| Some((id, lc(&s.kind)?))).collect();
        self.feed.expect(targets.iter().map(|(id, _)| id.as_str()));
        self.feed.at_home(self.services.iter().filter_map(|(id, s)| {
            let g = s.cgroup.as_ref()?;
            Some((id.as_str(), [g.cpu.as_path(), g.cpuset.as_path()], lc(&s.kind).is_some()))
        }));
        targets.into_iter().map(|(id, target)| (id.clone(), self.feed.read(id, since_ms, now_ms, target))).collect()
    }

    /// Take the latency of a service from its Prometheus histogram instead of datagrams, whenever it is here.
    pub fn scrape(&mut self, id: &str, what: Scrape) {
        self.feed.scrape(id, Some(what));
    }

    /// LC services that may come, or come back: what they send while they are not here is no mistake.
    pub fn know(&mut self, ids: impl Iterator<Item = ServiceId>) {
        self.feed.with(|w| w.know(ids));
    }

    /// Who else than this process's own group and user may write to the latency socket.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where its group or mode cannot be changed.
    pub fn open_feed_to(&mut self, mode: u32, group: Option<u32>) -> Result<(), ServerError> {
        self.feed.open_to(mode, group)
    }

    /// Senders that may speak for a service besides its own processes, root and this process's user.
    pub fn trust(&mut self, id: &str, whom: Trusted) {
        self.feed.trust(id, whom);
    }

    /// A socket for one service alone, STATE_DIR/feed/ID.sock: processes that may write to it speak for that service. Returns its path.
    ///
    /// # Errors
    /// [`ServerError::Invalid`] for an id that cannot be a file's name; [`ServerError::Unavailable`] where it cannot be made.
    pub fn own_feed_socket(&mut self, id: &str, mode: u32, group: Option<u32>) -> Result<PathBuf, ServerError> {
        super::check_id_form(id).map_err(|e| ServerError::Invalid(format!("service id {e}")))?;
        self.feed.bind_own(id, mode, group)
    }

    /// Latency datagrams and pages that were not taken, by reason.
    pub fn refused_datagrams(&self) -> BTreeMap<&'static str, u64> {
        self.feed.refused()
    }

    /// Latency datagrams that were taken, by service.
    pub fn taken_datagrams(&self) -> BTreeMap<String, u64> {
        self.feed.taken()
    }
}
