//! The journal of decisions, as a file of JSON lines: what a run is, each action, each effect, reports and refused plans.
//!
//! Append-only; when a file is full it becomes the old generation (FILE.1, one is kept) and a new one is begun. A disk that is
//! full or gone never stops the control loop: what could not be written is counted and said once.

use super::follower::{Closed, Told};
use crate::base::error::{Error, Result};
use crate::base::files::{head, open_ours, own_error};
use crate::base::holder::{self, Held};
use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use surefoot_io::input::{next_line, Found};
use surefoot_linux::own::Folder;
use surefoot_server::Report;

/// What ran: the first line of a run, and of every generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunLine {
    /// Start of the run, since 1970, UTC; None on a virtual server that runs faster than time.
    pub at_ms: Option<u64>,
    pub policy: String,
    pub platform: String,
    pub bundle: Option<String>,
    pub interval_ms: u64,
    pub seed: u64,
    /// Settings of policies that are not the default, by full name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Vec<f64>>,
    /// Of surefootd.
    pub version: String,
}

/// What has become of a `[[lend]]`: a line of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LendLine {
    /// Since the first tick of the run.
    pub t_ms: u64,
    /// Since 1970, UTC; None on a virtual server that runs faster than time.
    pub at_ms: Option<u64>,
    pub lender: String,
    pub borrower: String,
    pub policy: String,
    pub lend: LendNews,
}

/// See [`LendLine`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "kebab-case")]
pub enum LendNews {
    /// Up to so many cores may be lent from now on: these CPUs.
    Granted { cores: u32, cpus: String },
    /// Nothing can be lent, for another reason than was said last.
    Refused { why: String },
    /// The long-term safeguard: everything is back for `stop_s`. What the last look saw; `long` is null where only sums are known.
    Stopped { dispatches: u64, long: Option<u64>, mean_wait_us: f64, stop_s: f64 },
    /// Everything is back; what was counted under the lease.
    Ended { why: String, lasted_ms: u64, windows: u64, short: u64, exhausted: u64, stops: u64, moves: u64 },
}

/// How models do for a service from now on: a line of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandingLine {
    /// Since the first tick of the run.
    pub t_ms: u64,
    /// Since 1970, UTC; None on a virtual server that runs faster than time.
    pub at_ms: Option<u64>,
    pub service: String,
    pub standing: StandingNews,
}

/// See [`StandingLine`]; the words are those of docs/watched-models.md.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandingNews {
    pub now: String,
    pub was: String,
    /// The comparisons that it rests on, and their figures; null where there are too few.
    pub kind: Option<String>,
    pub error_qos: Option<f64>,
    pub bias_qos: Option<f64>,
    pub taught_qos: Option<f64>,
    /// Inputs outside of what the model was taught with.
    pub outside: Vec<String>,
}

/// The file of one run, open for appending.
pub struct Journal {
    folder: Folder,
    name: String,
    path: PathBuf,
    most_bytes: u64,
    bytes: u64,
    file: Held,
    head: String,
    buffer: Vec<u8>,
    /// Lines that could not be written.
    pub lost: u64,
    /// The last write may have left half a line.
    torn: bool,
}

fn old_name(name: &str) -> String {
    format!("{name}.1")
}

/// Where the full file goes.
pub fn old_generation(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".1");
    name.into()
}

/// Whether what begins so is a journal of decisions, or nothing yet. Of any version: each line has one of these keys.
fn is_journal(head: &[u8]) -> bool {
    const KEYS: [&str; 7] = ["run", "action", "effect", "report", "error", "lend", "standing"];
    let head = head.trim_ascii_start();
    match head.iter().position(|b| *b == b'\n') {
        Some(end) => serde_json::from_slice::<serde_json::Value>(&head[..end]).is_ok_and(|v| KEYS.iter().any(|k| v.get(k).is_some())),
        // A kill may have torn the first line of all.
        None => ["{\"run\":", "{\"id\":", "{\"t_ms\":"].iter().any(|b| head.starts_with(b.as_bytes()) || b.as_bytes().starts_with(head)),
    }
}

/// Bytes of a line that hold its id.
const ID_BYTES: usize = 64;
/// Largest id that is believed: what every reader of JSON tells from the next.
const MOST_ID: u64 = 1 << 53;

/// The largest id in a journal; None without one.
fn last_id(file: impl Read) -> Option<u64> {
    let id = |line: &str| {
        let digits = line.strip_prefix("{\"id\":")?;
        digits[..digits.find(|c: char| !c.is_ascii_digit())?].parse::<u64>().ok()
    };
    let (mut from, mut line, mut last) = (BufReader::new(file), vec![], None);
    // The beginning of a line is enough. One that is no text there is damage, and has no id.
    while !matches!(next_line(&mut from, &mut line, ID_BYTES), Ok(Found::End) | Err(_)) {
        let text = line.utf8_chunks().next().map_or("", |c| c.valid());
        last = last.max(id(text).filter(|id| *id <= MOST_ID));
    }
    last
}

impl Journal {
    /// Go on with the journal at `path`, or begin one; and the last id that it gave.
    ///
    /// # Errors
    /// [`Error`] where the file cannot be opened.
    pub fn open(path: &Path, most_bytes: u64, run: &RunLine) -> Result<(Self, u64)> {
        const WHAT: &str = "journal of decisions";
        let fail = |e: std::io::Error| own_error(path, "cannot be opened", &e);
        let (folder, name, file) = open_ours(path, Folder::of, WHAT, is_journal)?;
        let file = holder::alone(path, file)?;
        // It gives way to the next full file.
        let older = match folder.file(&old_name(&name), OFlag::O_RDONLY) {
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) => return Err(own_error(&old_generation(path), "cannot be opened", &e)),
            Ok(f) if is_journal(&head(&f).map_err(fail)?) => Some(f),
            Ok(_) => {
                let old = old_generation(path);
                let old = old.display();
                return Err(Error::BadInput(format!(
                    "{old}: is there and no {WHAT}, so it stays as it is. Move it away, or give another journal"
                )));
            }
        };
        let last = last_id(&*file).or_else(|| last_id(older?)).unwrap_or(0);
        let bytes = (&*file).seek(SeekFrom::End(0)).map_err(fail)?;
        let head = json!({ "run": run }).to_string();
        let mut j = Journal { folder, name, path: path.into(), most_bytes, bytes, file, head, buffer: vec![], lost: 0, torn: false };
        // A line that a kill cut off stays alone.
        let mut end = [b'\n'];
        let mut from: &File = &j.file;
        j.torn = bytes > 0 && from.seek(SeekFrom::End(-1)).and_then(|_| from.read(&mut end)).is_ok() && end[0] != b'\n';
        j.buffer.extend_from_slice(j.head.as_bytes());
        j.buffer.push(b'\n');
        j.flush();
        Ok((j, last))
    }

    /// What a tick told; a tick without news costs nothing.
    pub fn tell(&mut self, t_ms: u64, told: &Told, reports: &[Report], refused: Option<&str>) {
        if told.is_empty() && reports.is_empty() && refused.is_none() {
            return;
        }
        self.effects(&told.closed);
        for r in &told.opened {
            self.line(r);
        }
        for r in reports {
            self.line(&json!({ "t_ms": t_ms, "report": r }));
        }
        if let Some(error) = refused {
            self.line(&json!({ "t_ms": t_ms, "error": error }));
        }
        self.flush();
    }

    /// What has become of leases; mostly nothing.
    pub fn lends(&mut self, lines: &[LendLine]) {
        lines.iter().for_each(|l| self.line(l));
        self.flush();
    }

    /// How models do; mostly nothing.
    pub fn standings(&mut self, lines: &[StandingLine]) {
        lines.iter().for_each(|l| self.line(l));
        self.flush();
    }

    /// The last effects of a run.
    pub fn end(&mut self, closed: &[Closed]) {
        self.effects(closed);
        self.flush();
    }

    fn effects(&mut self, closed: &[Closed]) {
        for c in closed {
            self.line(c);
        }
    }

    fn line(&mut self, v: &impl Serialize) {
        let before = self.buffer.len();
        if serde_json::to_writer(&mut self.buffer, v).is_ok() {
            self.buffer.push(b'\n');
        } else {
            self.buffer.truncate(before);
        }
    }

    fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        if self.torn {
            self.buffer.insert(0, b'\n');
        }
        let done = self.make_room().and_then(|()| (&*self.file).write_all(&self.buffer));
        self.torn = done.is_err();
        match done {
            Ok(()) => self.bytes += self.buffer.len() as u64,
            Err(e) => {
                if self.lost == 0 {
                    tracing::warn!(
                        "{}: cannot be written: {e}. Decisions go on without a journal; make room on its disk",
                        self.path.display()
                    );
                }
                self.lost += self.buffer.iter().filter(|b| **b == b'\n').count() as u64;
                self.bytes = self.file.metadata().map_or(self.bytes, |m| m.len());
            }
        }
        self.buffer.clear();
    }

    /// A full file becomes the old generation.
    fn make_room(&mut self) -> std::io::Result<()> {
        if self.bytes == 0 || self.bytes + self.buffer.len() as u64 <= self.most_bytes {
            return Ok(());
        }
        match self.folder.rename(&self.name, &old_name(&self.name)) {
            // Somebody has taken the file away: begin anew.
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = self.folder.append(&self.name)?;
        self.file = holder::alone(&self.path, file).map_err(std::io::Error::other)?;
        let head = format!("{}\n", self.head);
        (&*self.file).write_all(head.as_bytes())?;
        self.bytes = head.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::follower::{tests::action, Follower};
    use super::*;
    use surefoot_server::{ActionKind, HoldsIf, Observation};

    fn run() -> RunLine {
        RunLine { policy: "parties".into(), platform: "t".into(), interval_ms: 100, ..RunLine::default() }
    }

    fn act(f: &mut Follower) -> Told {
        f.tick(0, &Observation::default(), action("a", ActionKind::Grow, HoldsIf::P99Falls), None, || None)
    }

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    /// A later run goes on counting where the earlier one stopped, behind a line that a kill cut off.
    #[test]
    fn ids_go_on_over_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("decisions.jsonl");
        let (mut j, last) = Journal::open(&path, 1 << 20, &run()).unwrap();
        let mut f = Follower::new(last);
        j.tell(0, &act(&mut f), &[], None);
        j.tell(0, &act(&mut f), &[], Some("refused"));
        drop(j);
        let whole = text(&path);
        std::fs::write(&path, format!("{whole}{{\"id\":9")).unwrap();
        let (_, last) = Journal::open(&path, 1 << 20, &run()).unwrap();
        assert_eq!(last, 2);
        let lines: Vec<String> = text(&path).lines().map(String::from).collect();
        // Run, action, its effect (the next action on the service closes it), action, refusal, the cut line, run.
        assert_eq!(lines.len(), 7, "{lines:?}");
        assert!(lines[0].starts_with("{\"run\":") && lines[4].contains("\"error\":\"refused\""));
        assert_eq!((lines[5].as_str(), lines[6].starts_with("{\"run\":")), ("{\"id\":9", true));
    }

    /// Reports of earlier journals, which knew no `migrate`, are read; and what is written is what is read.
    #[test]
    fn reports_of_earlier_journals_are_read() {
        let read = |text: &str| serde_json::from_str::<Report>(text).unwrap();
        let (service, why) = ("b".to_string(), "full".to_string());
        let cannot = read(r#"{"report":"cannot-place","service":"b","why":"full"}"#);
        assert_eq!(cannot, Report::CannotPlace { service: service.clone(), why: why.clone() });
        let slower = read(r#"{"qos":0.9,"report":"expected-slowdown","service":"b"}"#);
        assert_eq!(slower, Report::ExpectedSlowdown { service: service.clone(), qos: 0.9 });
        let withheld = read(r#"{"report":"withheld","service":"b","why":"full"}"#);
        assert_eq!(withheld, Report::Withheld { service: service.clone(), why: why.clone() });
        let migrate = Report::Migrate { service, why };
        let text = serde_json::to_string(&migrate).unwrap();
        assert_eq!(text, r#"{"report":"migrate","service":"b","why":"full"}"#);
        assert_eq!(read(&text), migrate);
    }

    /// Two generations and no more: the files together never exceed twice the cap, and ids go on over the change.
    #[test]
    fn the_journal_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        let most = 4096;
        let (mut j, _) = Journal::open(&path, most, &run()).unwrap();
        let mut f = Follower::default();
        for _ in 0..200 {
            j.tell(0, &act(&mut f), &[], None);
            assert!(path.metadata().unwrap().len() <= most);
        }
        let old = old_generation(&path);
        assert!(old.metadata().unwrap().len() <= most && text(&path).starts_with("{\"run\":") && j.lost == 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        assert_eq!(last_id(File::open(&path).unwrap()), Some(200));
        // Only the old generation has ids just after a change.
        drop(j);
        std::fs::write(&path, "").unwrap();
        assert!(Journal::open(&path, most, &run()).unwrap().1 > 100);
    }

    /// A second daemon is refused the journal of a first, also after it has begun a new file, and hears who has it.
    #[test]
    fn a_journal_has_one_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        let (mut j, _) = Journal::open(&path, 4096, &run()).unwrap();
        let mut f = Follower::default();
        for _ in 0..50 {
            j.tell(0, &act(&mut f), &[], None);
            let e = Journal::open(&path, 4096, &run()).err().unwrap();
            assert!(e.exit_code() == 1 && e.to_string().contains(&format!("(pid {})", std::process::id())), "{e}");
        }
        assert!(old_generation(&path).exists() && j.lost == 0);
        let e = Journal::open(Path::new("/dev/null"), 4096, &run()).err().unwrap();
        assert!(e.exit_code() == 2 && e.to_string().contains("no plain file"), "{e}");
    }

    /// A line of gigabytes and an id that no daemon gave are damage that stops nothing.
    #[test]
    fn a_damaged_journal_gives_its_last_sound_id() {
        let text =
            [b"{\"id\":7,\"t\":\"".to_vec(), vec![b'x'; 1 << 20], b"\"}\n{\"id\":18446744073709551615}\n\xff\n{\"id\":3}\n".to_vec()]
                .concat();
        assert_eq!(last_id(&text[..]), Some(7));
    }

    /// A journal that cannot be written is counted, and the loop goes on.
    #[test]
    fn a_full_disk_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d.jsonl");
        let (mut j, _) = Journal::open(&path, 1 << 20, &run()).unwrap();
        let mut f = Follower::default();
        let disk = std::mem::replace(&mut j.file, Held::Shared(File::options().write(true).open("/dev/full").unwrap()));
        j.tell(0, &act(&mut f), &[], None);
        assert_eq!(j.lost, 1);
        // Room again: a line of its own, whatever half of the last one had reached the disk.
        j.file = disk;
        j.tell(0, &act(&mut f), &[], None);
        let kept: Vec<String> = text(&path).lines().map(|l| l.get(..8).unwrap_or("").to_string()).collect();
        // The second action closes the first one's record, of which the line itself was lost.
        assert_eq!(kept, ["{\"run\":{", "", "{\"id\":1,", "{\"id\":2,"]);
    }
}
