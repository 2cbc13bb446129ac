//! Latency of the LC services of this machine.

use super::{unavailable, LocalServer};
use crate::feed::{Reading, Scrape};
use crate::own::Folder;
use std::collections::BTreeMap;
use surefoot_server::{Kind, ServerError, ServiceId};

impl LocalServer {
    /// Readings of all LC services. The feed listens for these and no others.
    pub(super) fn latency(&mut self, since_ms: u64, now_ms: u64) -> BTreeMap<ServiceId, Reading> {
        let lc = |k: &Kind| if let Kind::Lc { qos_target_ms } = k { Some(*qos_target_ms) } else { None };
        let targets: Vec<(&ServiceId, f64)> = self.services.iter().filter_map(|(id, s)| Some((id, lc(&s.kind)?))).collect();
        self.feed.expect(targets.iter().map(|(id, _)| id.as_str()));
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
        let path = self.feed.path();
        let done = Folder::of(path).and_then(|(folder, name)| folder.open_socket_to(name, mode, group));
        done.map_err(|e| {
            unavailable(format!("latency socket {}", path.display()), e, "Give feed_group a group of this user, or run as root")
        })
    }

    /// Latency datagrams that were not taken, by reason.
    pub fn refused_datagrams(&self) -> BTreeMap<&'static str, u64> {
        self.feed.refused()
    }
}
