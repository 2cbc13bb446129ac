//! The senders of the feed: which process each is, and what is left of its share. How often processes are looked at is bounded too.
//!
//! * Nothing of a datagram is read before its sender was admitted: neither its length nor its contents cost more than a refusal.
//! * /proc is asked once a second for each sender, never for each datagram.
//! * A process is told from a later one with the same number. It is held (pidfd), and a datagram counts as its own only if the process was
//!   there when the kernel stamped the datagram.

use super::sender::{Credentials, Facts, Host, Pool, Rules};
use super::share::{Bucket, Budget, Share, SPEAKERS, STRANGERS};
use crate::procfs::Process;
use nix::poll::PollFd;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;

const SECOND_US: u64 = 1_000_000;
/// A process is looked at again after this time.
const LOOK_US: u64 = SECOND_US;
/// A sender that is silent for so long is forgotten.
const IDLE_US: u64 = 2 * SECOND_US;
/// Between two counts of the senders that speak.
const COUNT_US: u64 = SECOND_US / 5;
/// New senders a second, and at once: of one user, and of all. Processes that are started without end are not looked up without end.
const NEW_OF_USER: (f64, f64) = (200.0, 200.0);
const NEW_OF_ALL: (f64, f64) = (1000.0, 1000.0);
/// Processes that are held by an open file each; of others the start time is compared, which takes longer.
const MOST_HELD: usize = 64;
/// So few of them are asked together with the sockets whether they are still there; of more each is asked when it has sent.
const MOST_POLLED: usize = 16;
/// Processes that are told apart on a service's own socket.
const MOST_OF_SOCKET: usize = 256;

/// Where a datagram came in.
#[derive(Clone, Debug)]
pub(super) struct Via {
    pub number: usize,
    /// The one service that this socket is for; None for the common socket.
    pub service: Option<String>,
}

/// When, microseconds since boot: now, and when the kernel took the datagram from its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub now_us: u64,
    pub sent_us: u64,
    /// The processes of [`Senders::held`] were asked after the datagram had come, and those that had ended were let go since.
    pub polled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    socket: usize,
    pid: u32,
    uid: u32,
}

/// A process that was looked at.
#[derive(Debug)]
struct Known {
    facts: Facts,
    /// Held, so that its end is seen; None for strangers, which have no right that another process could take over.
    process: Option<Process>,
    /// Since when it is held, and when it was last there.
    since_us: u64,
    alive_us: u64,
    /// When its end was first seen: what was sent later is another's.
    ended_us: Option<u64>,
}

impl Known {
    /// Whether a datagram may be one of the last of a process that has ended.
    fn has_last_words(&mut self, host: &Host, at: Times) -> bool {
        let ended_us = *self.ended_us.get_or_insert(at.now_us);
        at.sent_us <= ended_us && self.process.as_ref().is_some_and(|p| host.may_have_sent(p, self.alive_us, at.now_us))
    }
}

#[derive(Debug)]
struct Sender {
    pool: Pool,
    share: Share,
    heard_us: u64,
    known: Option<Known>,
    /// When it was looked at, and by which rules it was judged.
    looked: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Speaking {
    share: Share,
    /// Processes that were heard in the last second.
    active: usize,
}

/// Why a datagram is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Unread {
    /// The datagram is beyond the sender's share.
    Share,
    /// The sender may speak for no service, and its share of being read all the same is used up.
    Stranger,
}

/// The sender of a datagram that may be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Who<'a> {
    Process(&'a Facts),
    /// The process cannot be looked at: it has ended, is hidden, or is in another pid namespace.
    Unseen,
    /// The process with the sender's number may have begun after the datagram was sent.
    Unsure,
}

impl Who<'_> {
    pub fn facts(&self) -> Option<&Facts> {
        if let Who::Process(f) = self {
            Some(f)
        } else {
            None
        }
    }
}

#[derive(Debug)]
pub(super) struct Senders {
    host: Host,
    by: BTreeMap<Key, Sender>,
    pools: BTreeMap<Pool, Speaking>,
    new_of_user: BTreeMap<u32, Bucket>,
    new_of_all: Bucket,
    counted_us: u64,
    /// When a process was last looked at for the first time, or could not be told.
    unsteady_us: u64,
}

fn budget(pool: &Pool) -> Budget {
    if *pool == Pool::Strangers {
        STRANGERS
    } else {
        SPEAKERS
    }
}

impl Senders {
    /// False where the numbers of processes say nothing.
    pub fn sees_processes(&self) -> bool {
        self.host.sees_processes()
    }

    /// When a process last sent for the first time, or could not be told.
    pub fn unsteady_us(&self) -> u64 {
        self.unsteady_us
    }

    /// The processes that are held, and what to poll for their end. None where they are too many to be asked with every datagram.
    pub fn held(&self) -> Option<Vec<(Key, PollFd<'_>)>> {
        let ends = self.by.iter().filter_map(|(key, s)| Some((*key, s.known.as_ref()?.process.as_ref()?.until_end()?)));
        let held: Vec<_> = ends.take(MOST_POLLED + 1).collect();
        (held.len() <= MOST_POLLED).then_some(held)
    }

    /// Files that are readable once a process that is held has ended. None where those that speak are not all held, or are too many.
    pub fn ends(&self) -> Option<Vec<OwnedFd>> {
        let known = self.by.values().filter_map(|s| s.known.as_ref()?.process.as_ref());
        let ends: Option<Vec<OwnedFd>> = known.take(MOST_POLLED + 1).map(Process::end).collect();
        ends.filter(|e| e.len() <= MOST_POLLED)
    }

    /// These have ended: nothing that is sent from now on is theirs.
    pub fn let_go(&mut self, ended: &[Key], now_us: u64) {
        for key in ended {
            self.unsteady_us = now_us;
            if let Some(known) = self.by.get_mut(key).and_then(|s| s.known.as_mut()) {
                known.process = known.process.take().map(Process::let_go);
                known.ended_us.get_or_insert(now_us);
            }
        }
    }

    pub fn new(host: Host, now_us: u64) -> Self {
        let new_of_all = Bucket::new(NEW_OF_ALL.1, now_us);
        Senders {
            host,
            by: BTreeMap::new(),
            pools: BTreeMap::new(),
            new_of_user: BTreeMap::new(),
            new_of_all,
            counted_us: now_us,
            unsteady_us: now_us,
        }
    }

    /// Whether a datagram of so many bytes is to be read, and its sender.
    ///
    /// # Errors
    /// Why it is not.
    pub fn admit(&mut self, via: &Via, c: &Credentials, bytes: usize, at: Times, rules: &Rules) -> Result<Who<'_>, Unread> {
        self.count(at.now_us);
        let mut key = Key { socket: via.number, pid: c.pid, uid: c.uid };
        if !self.by.contains_key(&key) && !self.is_let_in(via, c.uid, at.now_us) {
            // On a service's own socket further processes share one part. On the common one the user has had its part of look-ups.
            key = Key { socket: via.number, pid: 0, uid: 0 };
            if via.service.is_none() {
                return Err(Unread::Share);
            }
        }
        let sender = match self.by.get_mut(&key) {
            Some(s) => s,
            None => {
                self.unsteady_us = at.now_us;
                let pool = via.service.clone().map_or(Pool::Strangers, Pool::Socket);
                self.join(&pool, at.now_us);
                let share = Share::full(self.part_of(&pool), at.now_us);
                self.by.entry(key).or_insert(Sender { pool, share, heard_us: at.now_us, known: None, looked: None })
            }
        };
        sender.heard_us = at.now_us;
        let is_fresh = |(at_us, generation)| at_us + LOOK_US > at.now_us && generation == rules.generation;
        if via.service.is_none() && !sender.looked.is_some_and(is_fresh) {
            self.look(key, c, at, rules);
        }
        self.draw(key, bytes, at.now_us)?;
        Ok(self.identify(key, at))
    }

    /// Whether there is room for a sender that was not there before.
    fn is_let_in(&mut self, via: &Via, uid: u32, now_us: u64) -> bool {
        if via.service.is_some() {
            return self.by.keys().filter(|k| k.socket == via.number).count() < MOST_OF_SOCKET;
        }
        let of_user = self.new_of_user.entry(uid).or_insert(Bucket::new(NEW_OF_USER.1, now_us));
        of_user.fill(now_us, NEW_OF_USER.0, NEW_OF_USER.1);
        self.new_of_all.fill(now_us, NEW_OF_ALL.0, NEW_OF_ALL.1);
        let room = of_user.level >= 1.0 && self.new_of_all.level >= 1.0;
        if room {
            of_user.level -= 1.0;
            self.new_of_all.level -= 1.0;
        }
        room
    }

    fn join(&mut self, pool: &Pool, now_us: u64) {
        let whole = budget(pool).pool;
        self.pools.entry(pool.clone()).or_insert_with(|| Speaking { share: Share::full(whole, now_us), active: 0 }).active += 1;
    }

    /// What one process of a pool gets.
    fn part_of(&self, pool: &Pool) -> super::share::Rate {
        budget(pool).of_one(self.pools.get(pool).map_or(1, |p| p.active))
    }

    /// Look at a process, and find the pool that it draws on.
    fn look(&mut self, key: Key, c: &Credentials, at: Times, rules: &Rules) {
        let now_us = at.now_us;
        let held = self.by.values().filter_map(|s| s.known.as_ref()?.process.as_ref()).filter(|p| p.is_held()).count();
        let Some(sender) = self.by.get_mut(&key) else { return };
        let again = sender.known.take().and_then(|mut known| {
            if self.host.look_again(known.process.as_ref()?, &mut known.facts) {
                return Some(Known { alive_us: now_us, ..known });
            }
            known.has_last_words(&self.host, at).then_some(known)
        });
        let found = again.or_else(|| {
            let (facts, process) = self.host.look(key.pid)?;
            Some(Known { facts, process: Some(process), since_us: now_us, alive_us: now_us, ended_us: None })
        });
        let pool = rules.pool(c, found.as_ref().map(|k| &k.facts));
        sender.known = found.map(|k| {
            let process = k.process.map(|p| if held < MOST_HELD { p } else { p.let_go() });
            Known { process: process.filter(|_| pool != Pool::Strangers), ..k }
        });
        sender.looked = Some((now_us, rules.generation));
        let former = std::mem::replace(&mut sender.pool, pool.clone());
        if former != pool {
            if let Some(p) = self.pools.get_mut(&former) {
                p.active = p.active.saturating_sub(1);
            }
            self.join(&pool, now_us);
            let share = Share::full(self.part_of(&pool), now_us);
            if let Some(sender) = self.by.get_mut(&key) {
                sender.share = share;
            }
        }
    }

    /// Take a datagram's part from its sender's share and its pool's.
    fn draw(&mut self, key: Key, bytes: usize, now_us: u64) -> Result<(), Unread> {
        let Some(sender) = self.by.get_mut(&key) else { return Err(Unread::Share) };
        let Some(pool) = self.pools.get_mut(&sender.pool) else { return Err(Unread::Share) };
        let budget = budget(&sender.pool);
        let part = budget.of_one(pool.active);
        let own = sender.share.has_room(now_us, part, bytes);
        let pooled = pool.share.has_room(now_us, budget.pool, bytes) || sender.share.is_rested(part);
        if !(own && pooled) {
            return Err(if sender.pool == Pool::Strangers { Unread::Stranger } else { Unread::Share });
        }
        sender.share.take(bytes);
        pool.share.take(bytes);
        Ok(())
    }

    /// The process that sent a datagram, as far as that is certain.
    fn identify(&mut self, key: Key, at: Times) -> Who<'_> {
        let Some(known) = self.by.get_mut(&key).and_then(|s| s.known.as_mut()) else { return Who::Unseen };
        let is_there = known.process.as_ref().map(|p| at.polled && p.is_held() || !self.host.has_ended(p));
        match is_there {
            None => {}
            Some(true) => known.alive_us = at.now_us,
            Some(false) if known.has_last_words(&self.host, at) => {}
            Some(false) => {
                let Some((facts, process)) = self.host.look(key.pid) else { return Who::Unseen };
                let (since_us, alive_us) = (at.now_us, at.now_us);
                *known = Known { facts, process: Some(process.let_go()), since_us, alive_us, ended_us: None };
            }
        }
        if known.since_us <= at.sent_us || known.facts.was_there(at.sent_us) {
            Who::Process(&known.facts)
        } else {
            Who::Unsure
        }
    }

    /// Forget silent senders, and count those that speak.
    fn count(&mut self, now_us: u64) {
        if now_us < self.counted_us + COUNT_US {
            return;
        }
        self.counted_us = now_us;
        self.by.retain(|_, s| s.heard_us + IDLE_US > now_us);
        self.pools.values_mut().for_each(|p| p.active = 0);
        for s in self.by.values().filter(|s| s.heard_us + SECOND_US > now_us) {
            if let Some(p) = self.pools.get_mut(&s.pool) {
                p.active += 1;
            }
        }
        let named: BTreeSet<&Pool> = self.by.values().map(|s| &s.pool).collect();
        self.pools.retain(|pool, _| named.contains(pool));
        self.new_of_user.retain(|_, b| {
            b.fill(now_us, NEW_OF_USER.0, NEW_OF_USER.1);
            b.level < NEW_OF_USER.1
        });
    }

    /// How many are known, for tests.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.by.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sender::tests::{home, host, process};
    use super::super::MAX_DATAGRAM;
    use super::*;
    use crate::root::Root;
    use std::fs;

    const OPERATOR: &str = "NSpid:\t1\n";

    fn all() -> Via {
        Via { number: 0, service: None }
    }

    /// A host on which processes 1 to 99 are root's, 100 to 199 of service web, 200 to 299 of service db, and those from 300 on nobody's.
    fn world() -> (tempfile::TempDir, Root, Senders, Rules) {
        let cgroup = |pid: u32| match pid {
            1..100 => "0::/user",
            100..200 => "0::/web",
            200..300 => "0::/db",
            _ => "0::/tenant",
        };
        let processes: Vec<_> = (1..900).map(|pid| process(pid, 7, cgroup(pid), OPERATOR)).collect();
        let (dir, root, host) = host(&processes);
        let homes = [("web".to_string(), home(&root, "/web", true)), ("db".to_string(), home(&root, "/db", true))].into();
        let rules = Rules { uid: 900, homes, ..Rules::default() };
        (dir, root, Senders::new(host, SECOND_US), rules)
    }

    fn sent(pid: u32) -> Credentials {
        Credentials { pid, uid: if pid < 100 { 0 } else { pid / 100 * 1000 }, gid: 0 }
    }

    fn at(us: u64) -> Times {
        Times { now_us: us, sent_us: us, polled: false }
    }

    /// Where, by which process, how many datagrams a second, and of how many bytes each.
    type Sends = (Via, Credentials, u64, usize);

    /// Ten seconds of senders, each with so many datagrams a second of so many bytes, in an order that a seed draws. Of each how many were
    /// read, how many not, and why.
    fn ten_seconds(senders: &[Sends]) -> Vec<(u64, BTreeMap<Unread, u64>)> {
        let (_dir, _root, mut s, rules) = world();
        let mut due: Vec<(u64, usize)> = vec![];
        let mut x = 9u64;
        for (n, (.., per_s, _)) in senders.iter().enumerate() {
            let gap = 10 * SECOND_US / (10 * per_s);
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            due.extend((0..10 * per_s).map(|i| (2 * SECOND_US + i * gap + (x >> 40) % gap.max(1), n)));
        }
        due.sort_unstable();
        let mut got = vec![(0, BTreeMap::new()); senders.len()];
        for (us, n) in due {
            let (via, c, _, bytes) = &senders[n];
            match s.admit(via, c, *bytes, at(us), &rules) {
                Ok(_) => got[n].0 += 1,
                Err(e) => *got[n].1.entry(e).or_default() += 1,
            }
        }
        got
    }

    /// Beside a flood, of whatever size and by whatever right, honest senders of other services, of the same user and on other sockets lose
    /// nothing; and what is read of the flood is bounded.
    #[test]
    fn a_flood_takes_nothing_from_honest_senders() {
        let honest: Vec<_> = [100, 200, 1, 2].map(|pid| (all(), sent(pid), 10, 3000)).into();
        let own = |pid| (Via { number: 1, service: Some("web".into()) }, sent(pid), 10, 3000);
        let floods: [(&str, Vec<Sends>, u64); 6] = [
            ("of a stranger", vec![(all(), sent(300), 50_000, 1)], 20),
            ("of a stranger, of the largest size", vec![(all(), sent(300), 50_000, MAX_DATAGRAM)], 20),
            ("of many processes of a stranger", (300..364).map(|pid| (all(), sent(pid), 1000, 200)).collect(), 100),
            ("of a service that speaks for itself", vec![(all(), sent(250), 50_000, 200)], 1000),
            ("of the honest ones' own user", (10..60).map(|pid| (all(), sent(pid), 1000, 200)).collect(), 5000),
            ("on a service's own socket", vec![(Via { number: 1, service: Some("web".into()) }, sent(301), 50_000, 200)], 1000),
        ];
        for (what, flood, most_per_s) in floods {
            let senders: Vec<_> = honest.iter().cloned().chain([own(302)]).chain(flood).collect();
            let got = ten_seconds(&senders);
            for (n, (read, unread)) in got.iter().enumerate().take(5) {
                assert_eq!((*read, unread.len()), (100, 0), "a flood {what}: honest sender {n}");
            }
            let read: u64 = got[5..].iter().map(|g| g.0).sum();
            // A second's worth at the beginning, another while the pool's processes are being counted.
            assert!(read > 0 && read <= 12 * most_per_s, "a flood {what}: {read} were read");
        }
    }

    /// A user who starts processes without end is looked up no more often than is allowed, and what is known stays bounded; a service that is
    /// known already loses nothing.
    #[test]
    fn processes_without_end_are_not_looked_up_without_end() {
        let (_dir, _root, mut s, rules) = world();
        let (mut looked, mut honest) = (0, 0);
        for n in 0..100_000u64 {
            let us = 2 * SECOND_US + n * 100;
            // No process has these numbers any more: each look is in vain.
            let stranger = Credentials { pid: 1000 + n as u32, uid: 7, gid: 7 };
            looked += u64::from(!matches!(s.admit(&all(), &stranger, 10, at(us), &rules), Err(Unread::Share)));
            if n % 1000 == 0 {
                honest += u64::from(s.admit(&all(), &sent(100), 10, at(us), &rules).is_ok());
            }
            assert!(s.len() <= 700, "{}", s.len());
        }
        // 200 at once and 200 in each of ten seconds.
        assert!((2100..=2210).contains(&looked), "{looked}");
        assert_eq!(honest, 100);
    }

    /// A number names a process only while that process lives: a later process with the number is another one, and what was sent before it
    /// began is not its word.
    #[test]
    fn a_number_is_not_a_process() {
        let (_dir, root, mut s, rules) = world();
        let is_web = |who: Who<'_>, rules: &Rules| rules.may_speak("web", &sent(100), who.facts());
        let us = |s: u64| s * SECOND_US;
        let gone = |root: &Root, pid: u32| fs::remove_dir_all(root.path(format!("/proc/{pid}"))).unwrap();
        let come = |root: &Root, pid: u32, ticks: u64, cgroup: &str| {
            for (path, text) in process(pid, ticks, cgroup, OPERATOR) {
                fs::create_dir_all(root.path(&path).parent().unwrap()).unwrap();
                fs::write(root.path(path), text).unwrap();
            }
        };
        assert!(is_web(s.admit(&all(), &sent(100), 9, at(us(10)), &rules).unwrap(), &rules));
        assert!(is_web(s.admit(&all(), &sent(100), 9, at(us(10) + 900_000), &rules).unwrap(), &rules));
        // The last datagrams of a process count, as long as no other process has its number; also when it was time to look again.
        gone(&root, 100);
        for late_us in [0, 500_000, 900_000] {
            let late = Times { now_us: us(11) + late_us, ..at(us(11)) };
            assert!(is_web(s.admit(&all(), &sent(100), 9, late, &rules).unwrap(), &rules), "{late_us}");
        }
        // But not what was sent after its end was seen: a process that had the number for a moment has ended, too.
        assert_eq!(s.admit(&all(), &sent(100), 9, at(us(11) + 900_001), &rules).unwrap(), Who::Unseen);
        come(&root, 100, 1195, "0::/tenant");
        let who = s.admit(&all(), &sent(100), 9, at(us(12)), &rules).unwrap();
        assert!(matches!(who, Who::Process(f) if f.started_us == 11_950_000) && !is_web(who, &rules));
        // What a stranger sent at 12.1 s is not the word of the service's process that has the number since 12.2 s.
        gone(&root, 100);
        come(&root, 100, 1220, "0::/web");
        let late = Times { now_us: us(14), sent_us: 12_100_000, polled: false };
        assert_eq!(s.admit(&all(), &sent(100), 9, late, &rules).unwrap(), Who::Unsure);
        // What is sent while the process is held is its own.
        assert!(is_web(s.admit(&all(), &sent(100), 9, at(us(14) + 1), &rules).unwrap(), &rules));
        // Last seen alive more than a second ago.
        gone(&root, 100);
        assert_eq!(s.admit(&all(), &sent(100), 9, at(us(15) + 500_000), &rules).unwrap(), Who::Unseen);
        // From another pid namespace.
        assert_eq!(s.admit(&all(), &Credentials { pid: 0, uid: 0, gid: 0 }, 9, at(us(16)), &rules).unwrap(), Who::Unseen);
    }

    /// A change of a process's cgroup counts within a second, the coming of its service at once.
    #[test]
    fn what_changes_is_seen() {
        let (_dir, root, mut s, mut rules) = world();
        let may = |s: &mut Senders, rules: &Rules, us: u64| {
            let who = s.admit(&all(), &sent(300), 9, at(us), rules).unwrap();
            rules.may_speak("late", &sent(300), who.facts())
        };
        assert!(!may(&mut s, &rules, 10 * SECOND_US));
        rules.homes.insert("late".into(), home(&root, "/tenant", true));
        rules.generation += 1;
        assert!(may(&mut s, &rules, 10 * SECOND_US + 1));
        fs::write(root.path("/proc/300/cgroup"), "0::/elsewhere\n").unwrap();
        assert!(!may(&mut s, &rules, 11 * SECOND_US + 2));
    }
}
