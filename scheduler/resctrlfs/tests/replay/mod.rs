//! Replays the recordings in `tests/golden` against anything that behaves as resctrl.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use surefoot_resctrlfs::{Caller, Hardware, Machine, Tid};

pub const RUNS: [&str; 10] =
    ["6.1-one", "6.1-two", "6.1-e5", "6.1-amd", "6.1-faults", "6.12-one", "6.12-two", "6.12-e5", "6.12-amd", "6.12-faults"];
/// The user of the section `unprivileged`.
const NOBODY: u32 = 65534;
/// Time of one operation, ms. The recordings hold none, but RMIDs come back in an order that tells: in the first clean-up of
/// `rmid-exhaustion` even 256 rmdirs took less than the second after which the kernel looks, in the second one 255 took more.
const OPERATION_MS: u64 = 3;
const SECOND_CLEAN_UP_MS: u64 = 4;

/// "ok", or an errno's name.
pub type Outcome<T> = Result<T, &'static str>;

/// A write that failed: where, and how.
pub type WriteFailure = (&'static str, &'static str);

/// What is under test: path names are below the mount point.
pub trait Subject {
    /// The task that writes.
    fn writer(&self) -> Tid {
        150
    }
    /// A write(2) of no bytes arrives.
    fn takes_empty_writes(&self) -> bool {
        true
    }
    fn machine(&mut self, act: &mut dyn FnMut(&mut Machine));
    fn mount(&mut self, options: &str, read_only: bool) -> Outcome<()>;
    fn umount(&mut self) -> Outcome<()>;
    fn read(&mut self, path: &str, who: Caller) -> Outcome<Vec<u8>>;
    fn read_at(&mut self, path: &str, offset: usize, size: usize) -> Outcome<Vec<u8>>;
    fn write(&mut self, path: &str, data: &[u8], flags: &str, offset: Option<i64>, who: Caller) -> Result<usize, WriteFailure>;
    fn list(&mut self, path: &str) -> Outcome<Vec<String>>;
    fn mkdir(&mut self, path: &str, mode: u32, who: Caller) -> Outcome<()>;
    fn rmdir(&mut self, path: &str, who: Caller) -> Outcome<()>;
    fn rename(&mut self, from: &str, to: &str) -> Outcome<()>;
    fn unlink(&mut self, path: &str) -> Outcome<()>;
    /// Mode bits, owner, group, links.
    fn stat(&mut self, path: &str) -> Outcome<(u32, u32, u32, u32)>;
    fn chmod(&mut self, path: &str, mode: u32) -> Outcome<()>;
    fn chown(&mut self, path: &str, id: u32) -> Outcome<()>;
    fn open(&mut self, fd: &str, path: &str, flags: &str) -> Outcome<()>;
    fn fd_read(&mut self, fd: &str, size: usize) -> Outcome<Vec<u8>>;
    fn fd_write(&mut self, fd: &str, data: &[u8]) -> Outcome<usize>;
    fn fd_seek(&mut self, fd: &str, offset: u64) -> Outcome<()>;
    fn close(&mut self, fd: &str) -> Outcome<()>;
    /// Operations that few file systems have; None where the subject has no such operation.
    fn other(&mut self, op: &str, path: &str) -> Option<Outcome<String>>;
}

/// How a replay ended.
#[derive(Default)]
pub struct Score {
    pub equal: usize,
    /// Done, not compared: counters, timing.
    pub volatile: usize,
    /// By operation: not resctrl's doing (`uname`), or not the subject's.
    pub outside: BTreeMap<String, usize>,
    pub different: Vec<String>,
    /// Trees that were compared, by name.
    pub trees: BTreeSet<String>,
    /// Times that the clock was moved on because the recording says that RMIDs became free.
    pub waits: usize,
}

impl Score {
    pub fn operations(&self) -> usize {
        self.equal + self.volatile + self.outside.values().sum::<usize>() + self.different.len()
    }

    pub fn line(&self, run: &str) -> String {
        let outside: Vec<String> = self.outside.iter().map(|(k, n)| format!("{k} {n}")).collect();
        format!(
            "{run:12} {:5} operations: {:5} equal, {:3} volatile, {:2} outside ({}), {} different; {} trees equal, {} waits",
            self.operations(),
            self.equal,
            self.volatile,
            self.outside.values().sum::<usize>(),
            outside.join(", "),
            self.different.len(),
            self.trees.len(),
            self.waits
        )
    }
}

/// The recorded machine.
pub fn hardware(run: &str) -> Hardware {
    Hardware::recorded(run).unwrap()
}

/// Lines of a recording: operations, then trees.
pub fn recording(run: &str) -> (Vec<Value>, BTreeMap<String, Vec<String>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{run}.jsonl.zst"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let text = String::from_utf8(zstd::decode_all(&bytes[..]).unwrap()).unwrap();
    let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let (trees, operations): (Vec<Value>, Vec<Value>) = lines.into_iter().partition(|l| l.get("tree").is_some());
    let lines_of = |t: &Value| t["lines"].as_array().unwrap().iter().map(|l| l.as_str().unwrap().to_string()).collect();
    let trees = trees.iter().map(|t| (t["tree"].as_str().unwrap().to_string(), lines_of(t))).collect();
    (operations, trees)
}

/// Processes of the test: name in the recording, id here.
struct Names {
    ids: BTreeMap<String, Tid>,
    next: Tid,
}

impl Names {
    fn new(writer: Tid) -> Self {
        // Ids that no live process of this machine is likely to have.
        Self { ids: BTreeMap::from([("self".into(), writer), ("ksoftirqd/0".into(), 16)]), next: 4_100_000 }
    }

    /// Names in angle brackets become ids.
    fn fill(&self, text: &str) -> String {
        let mut text = text.to_string();
        for (name, id) in &self.ids {
            text = text.replace(&format!("<{name}>"), &id.to_string()).replace(&format!("<{name}:x>"), &format!("{id:x}"));
        }
        text
    }
}

fn text(v: &Value) -> &str {
    v.as_str().unwrap_or_default()
}

/// One byte a character, as recorded.
fn latin1(text: &str) -> Vec<u8> {
    text.chars().map(|c| c as u8).collect()
}

fn shown(bytes: &[u8]) -> String {
    bytes.iter().map(|b| *b as char).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

pub struct Replay<'a, S: Subject> {
    subject: &'a mut S,
    names: Names,
    score: Score,
    mounted: bool,
    cwd_inside: bool,
}

impl<'a, S: Subject> Replay<'a, S> {
    /// Replays a whole run.
    pub fn run(run: &str, subject: &'a mut S) -> Score {
        let (operations, trees) = recording(run);
        let writer = subject.writer();
        let names = Names::new(writer);
        subject.machine(&mut |m| {
            for tid in [1, 2, 16, writer] {
                m.spawn(tid, tid, 0, 0);
            }
        });
        let mut replay = Replay { subject, names, score: Score::default(), mounted: false, cwd_inside: false };
        for (i, o) in operations.iter().enumerate() {
            replay.step(o, &operations[i + 1..]);
            if let Some(lines) = tree_after(o, &operations[i + 1..]).and_then(|name| trees.get(name.as_str()).map(|l| (name, l))) {
                replay.compare_tree(o, &lines.0, lines.1);
            }
        }
        let all: BTreeSet<String> = trees.into_keys().collect();
        assert_eq!(replay.score.trees, all, "{run}: trees not reached, or not equal: {:#?}", replay.score.different);
        if replay.mounted {
            let _ = replay.subject.umount();
        }
        replay.score
    }

    fn pass(&mut self, ms: u64) {
        self.subject.machine(&mut |m| m.advance(ms));
    }

    fn caller(&mut self, o: &Value) -> Caller {
        match o["uid"].as_u64() {
            Some(_) => Caller { tid: 151, uid: NOBODY, gid: NOBODY },
            None => self.root(),
        }
    }

    fn root(&self) -> Caller {
        Caller { tid: self.subject.writer(), uid: 0, gid: 0 }
    }

    fn data(&self, o: &Value) -> Vec<u8> {
        let mut data = match o["data_hex"].as_str() {
            Some(hex) => unhex(hex),
            None => latin1(&self.names.fill(text(&o["data"]))),
        };
        data.extend(std::iter::repeat_n(b'\n', o["then_newlines"].as_u64().unwrap_or(0) as usize));
        data
    }

    fn step(&mut self, o: &Value, later: &[Value]) {
        let (op, path, volatile) = (text(&o["op"]), text(&o["path"]), o["volatile"] == true);
        let who = self.caller(o);
        let second = volatile && op == "rmdir" && text(&o["section"]) == "rmid-exhaustion";
        self.pass(if second { SECOND_CLEAN_UP_MS } else { OPERATION_MS });
        let mut wrong: Vec<String> = vec![];
        let mut want = |what: &str, got: String, want: String| {
            if got != want {
                wrong.push(format!("{what}: got {got:?}, recorded {want:?}"));
            }
        };
        if who.uid != 0 && op != "spawn" {
            self.subject.machine(&mut |m| m.spawn(who.tid, who.tid, 0, NOBODY));
        }
        let result = text(&o["result"]).to_string();
        let mut done: Result<(), String> = Ok(());
        let name = |r: Outcome<()>| r.map_err(str::to_string);
        match op {
            "read" | "read-directory" if path.starts_with("/proc/") => {}
            "read" | "read-directory" => match self.subject.read(path, who) {
                Ok(bytes) => {
                    if let Some(content) = o.get("content") {
                        let (got, recorded) = self.contents(o, &bytes, content);
                        want("content", got, recorded);
                    }
                }
                Err(e) => done = Err(e.into()),
            },
            "pread" => {
                let (offset, size) = (o["offset"].as_u64().unwrap() as usize, o["size"].as_u64().unwrap() as usize);
                match self.subject.read_at(path, offset, size) {
                    Ok(bytes) => want("content", shown(&bytes), text(&o["content"]).into()),
                    Err(e) => done = Err(e.into()),
                }
            }
            "write" if path.starts_with("/sys/devices/system/cpu/cpu") => {
                let cpu: u32 = path.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap();
                let on = text(&o["data"]).starts_with('1');
                self.subject.machine(&mut |m| m.set_online(cpu, on));
            }
            "write" if o["data"] == "" && !self.subject.takes_empty_writes() => {
                *self.score.outside.entry("empty write".into()).or_default() += 1;
                return;
            }
            "write" => {
                let data = self.data(o);
                match self.subject.write(path, &data, o["flags"].as_str().unwrap_or("O_WRONLY"), o["offset"].as_i64(), who) {
                    Ok(n) => {
                        let recorded = if o["returned"] == "all" { data.len() } else { o["returned"].as_u64().unwrap_or(0) as usize };
                        want("returned", n.to_string(), recorded.to_string());
                    }
                    Err((at, e)) => {
                        done = Err(e.into());
                        want("failed_at", at.into(), text(&o["failed_at"]).into());
                    }
                }
            }
            "list" if path == "/dev/pseudo_lock" => {
                let mut got = vec![];
                self.subject.machine(&mut |m| got = m.pseudo_lock_devices());
                want("entries", format!("{got:?}"), entries(o));
            }
            "list" if !self.mounted => {}
            "list" => match self.subject.list(path) {
                Ok(got) => want("entries", format!("{got:?}"), entries(o)),
                Err(e) => done = Err(e.into()),
            },
            "mkdir" if !self.mounted => done = Err("ENOENT".into()),
            "mkdir" => {
                if text(&o["section"]) == "rmid-exhaustion" && matches!(result.as_str(), "ok" | "ENOSPC") {
                    self.await_rmid();
                }
                let mode = if text(&o["note"]).starts_with("mode 0700") { 0o700 } else { 0o755 };
                done = name(self.subject.mkdir(path, mode, who));
            }
            "rmdir" => done = name(self.subject.rmdir(path, who)),
            "rename" => done = name(self.subject.rename(path, text(&o["data"]))),
            "unlink" => done = name(self.subject.unlink(path)),
            "stat" if !self.mounted => {}
            "stat" => match self.subject.stat(path) {
                Ok((mode, _, _, links)) => {
                    want("mode", format!("{mode:04o}"), text(&o["mode"]).into());
                    if let Some(n) = o["nlink"].as_u64() {
                        want("nlink", links.to_string(), n.to_string());
                    }
                }
                Err(e) => done = Err(e.into()),
            },
            "chmod" => done = name(self.subject.chmod(path, chmod_mode(o, later))),
            "chown" => done = name(self.subject.chown(path, NOBODY)),
            "open" => done = name(self.subject.open(text(&o["fd"]), path, text(&o["flags"]))),
            "fd-read" => {
                let size = if text(&o["note"]) == "one byte at a time" { 1 } else { 65536 };
                match self.subject.fd_read(text(&o["fd"]), size) {
                    Ok(bytes) => {
                        if let Some(content) = o.get("content") {
                            want("content", shown(&bytes), self.names.fill(text(content)));
                        }
                    }
                    Err(e) => done = Err(e.into()),
                }
            }
            "fd-write" => {
                let data = self.data(o);
                done = self.subject.fd_write(text(&o["fd"]), &data).map(|_| ()).map_err(str::to_string);
            }
            "fd-lseek" => done = name(self.subject.fd_seek(text(&o["fd"]), o["offset"].as_u64().unwrap_or(0))),
            "close" => done = name(self.subject.close(text(&o["fd"]))),
            "mount" => {
                let remount = text(&o["note"]).starts_with("remount");
                if !remount {
                    done = name(self.subject.mount(text(&o["data"]), text(&o["note"]) == "read-only"));
                    self.mounted |= done.is_ok();
                }
                let mut got = None;
                self.subject.machine(&mut |m| got = m.mount_options());
                let got: Vec<String> = got.into_iter().map(|o| format!("resctrl /sys/fs/resctrl resctrl {o} 0 0")).collect();
                want("proc_mounts", format!("{got:?}"), format!("{:?}", strings(&o["proc_mounts"])));
            }
            "umount" if self.cwd_inside => done = Err("EBUSY".into()),
            "umount" => {
                done = name(self.subject.umount());
                self.mounted = false;
            }
            "chdir" => self.cwd_inside = path != "/",
            "spawn" | "thread" | "fork" => self.spawn(o, op),
            "kill" | "wait" => {
                let id = self.names.ids[text(&o["name"])];
                let all: Vec<Tid> = self
                    .names
                    .ids
                    .iter()
                    .filter(|(n, _)| n.starts_with(&format!("{}.thread", text(&o["name"]))))
                    .map(|(_, i)| *i)
                    .collect();
                self.subject.machine(&mut |m| all.iter().chain([&id]).for_each(|t| m.exit(*t)));
            }
            "sleep" | "run" => {
                let ms = (o["seconds"].as_f64().unwrap_or(0.0) * 1000.0) as u64;
                if let Some(id) = self.names.ids.get(text(&o["name"])).copied().filter(|_| op == "run") {
                    self.subject.machine(&mut |m| m.ran(id, 0, ms));
                }
                self.pass(ms);
            }
            "sample" => {
                self.pass(200);
                if text(&o["note"]).starts_with("a task of the group runs") {
                    let id = self.names.ids["B"];
                    self.subject.machine(&mut |m| m.ran(id, 0, 200));
                }
            }
            "count" => {
                if let (Some(n), false) = (o["count"].as_u64(), volatile) {
                    let got = self.subject.list(path).unwrap_or_default().into_iter().filter(|n| is_group(n, path)).count() as u64;
                    want("count", got.to_string(), n.to_string());
                }
                for (res, recorded) in o["num_closids"].as_object().into_iter().flatten() {
                    let got = match self.subject.read(&format!("info/{res}/num_closids"), who) {
                        Ok(b) => Value::String(shown(&b)),
                        Err(e) => serde_json::json!({ "error": e }),
                    };
                    want("num_closids", got.to_string(), recorded.to_string());
                }
            }
            "look" => {}
            "cache" => {
                let cpu: u32 = path.trim_start_matches("cpu").split('/').next().unwrap().parse().unwrap();
                self.subject.machine(&mut |m| {
                    let hw = m.hardware();
                    let d = hw.domains.iter().find(|d| d.cpus.has(cpu)).unwrap();
                    let c = &o["content"];
                    want("id", format!("{}\n", d.id), text(&c["id"]).into());
                    want("size", format!("{}K\n", hw.llc_bytes >> 10), text(&c["size"]).into());
                    want("ways", format!("{}\n", hw.cbm_bits), text(&c["ways_of_associativity"]).into());
                    want("cpus", d.cpus.list() + "\n", text(&c["shared_cpu_list"]).into());
                });
            }
            other => match self.subject.other(other, path) {
                Some(r) => {
                    if let (Ok(got), Some(recorded)) = (&r, o.get("content").or(o.get("type"))) {
                        want("content", got.clone(), text(recorded).into());
                    }
                    // Both attempts at an extended attribute have the same record: user's fails, trusted's passes.
                    done = r.map(|_| ()).map_err(str::to_string);
                    if other == "setxattr" && result == "ok" {
                        done = self.subject.other("setxattr-trusted", path).unwrap().map(|_| ()).map_err(str::to_string);
                    }
                }
                None => {
                    *self.score.outside.entry(op.to_string()).or_default() += 1;
                    return;
                }
            },
        }
        want("result", done.err().unwrap_or_else(|| "ok".into()), result);
        if who.uid != 0 && op != "spawn" {
            self.subject.machine(&mut |m| m.exit(who.tid));
        }
        let root = self.root();
        for (file, content) in o["readback"].as_object().into_iter().flatten() {
            let (got, recorded) = match self.subject.read(file, root) {
                Ok(bytes) => self.contents(o, &bytes, content),
                Err(e) => (serde_json::json!({ "error": e }).to_string(), content.to_string()),
            };
            want(file, got, recorded);
        }
        for (process, groups) in o["groups"].as_object().into_iter().flatten() {
            let id = self.names.ids[process];
            let mut got = None;
            self.subject.machine(&mut |m| got = m.task_groups(id));
            want(process, got.unwrap_or_default(), text(groups).into());
        }
        if op == "read" && path == "/proc/self/cpu_resctrl_groups" {
            let mut got = None;
            self.subject.machine(&mut |m| got = m.task_groups(root.tid));
            want("content", format!("{got:?}"), format!("{:?}", o["content"].as_str()));
        }
        if self.mounted && !volatile {
            let got = self.subject.read("info/last_cmd_status", root).map_or_else(str::to_string, |b| shown(&b));
            want("last_cmd_status", got, self.names.fill(text(&o["last_cmd_status"])));
        }
        if volatile {
            self.score.volatile += 1;
        } else if wrong.is_empty() {
            self.score.equal += 1;
        } else {
            let data = o.get("data").map_or(String::new(), |d| format!(" {d}"));
            self.score.different.push(format!("{} {} {op} {path}{data}: {}", o["seq"], text(&o["section"]), wrong.join("; ")));
        }
    }

    /// Content got and recorded, in one form. Of the root group's tasks only those of the test are recorded.
    fn contents(&self, o: &Value, bytes: &[u8], content: &Value) -> (String, String) {
        let Some(tasks) = content.get("of_the_test") else {
            return match content {
                Value::String(s) => (shown(bytes), self.names.fill(s)),
                other => (shown(bytes), other.to_string()),
            };
        };
        let known: BTreeSet<Tid> = strings(&o["pids"]).iter().filter_map(|n| self.names.ids.get(n).copied()).collect();
        let got: Vec<String> = shown(bytes).lines().filter(|l| l.parse().is_ok_and(|t| known.contains(&t))).map(str::to_string).collect();
        let recorded: Vec<String> = strings(tasks).iter().map(|t| self.names.fill(t)).collect();
        (format!("{got:?}"), format!("{recorded:?}"))
    }

    fn spawn(&mut self, o: &Value, op: &str) {
        let (id, parent) = (self.names.next, o["parent"].as_str().map_or(self.subject.writer(), |p| self.names.ids[p]));
        self.names.next += 1;
        self.names.ids.insert(text(&o["name"]).into(), id);
        let uid = o["uid"].as_u64().unwrap_or(0) as u32;
        let tgid = if op == "thread" { parent } else { id };
        self.subject.machine(&mut |m| m.spawn(id, tgid, parent, uid));
    }

    /// When RMIDs became free was a matter of the recording's own seconds: it tells that they had.
    fn await_rmid(&mut self) {
        let mut waited = false;
        for _ in 0..5 {
            let mut starved = false;
            self.subject.machine(&mut |m| starved = m.rmids_waiting() && m.rmids_free() == 0);
            if !starved {
                break;
            }
            self.pass(1000);
            waited = true;
        }
        self.score.waits += usize::from(waited);
    }

    fn compare_tree(&mut self, o: &Value, name: &str, recorded: &[String]) {
        let top = recorded[0].split_whitespace().last().unwrap().trim_start_matches('/').to_string();
        let mut got = vec![];
        self.walk(&top, &mut got);
        let (got, recorded): (BTreeSet<_>, BTreeSet<_>) = (got.into_iter().collect(), recorded.iter().cloned().collect());
        if got == recorded {
            self.score.trees.insert(name.into());
        } else {
            let (extra, missing): (Vec<_>, Vec<_>) = (got.difference(&recorded).collect(), recorded.difference(&got).collect());
            self.score.different.push(format!("{} tree {name}: got {extra:?}, recorded {missing:?}", o["seq"]));
        }
    }

    fn walk(&mut self, path: &str, lines: &mut Vec<String>) {
        let (mode, uid, gid, links) = self.subject.stat(path).unwrap();
        let children = self.subject.list(path).ok();
        let letters: String = (0..9).rev().map(|b| if mode >> b & 1 == 1 { b"xwr"[b % 3] as char } else { '-' }).collect();
        let kind = if children.is_some() { 'd' } else { '-' };
        lines.push(format!("{kind}{letters} {mode:04o} {uid}:{gid} {links:2} 0 /{path}"));
        for c in children.unwrap_or_default() {
            self.walk(format!("{path}/{c}").trim_start_matches('/'), lines);
        }
    }
}

fn strings(v: &Value) -> Vec<String> {
    v.as_array().map_or(vec![], |a| a.iter().map(|e| text(e).to_string()).collect())
}

fn entries(o: &Value) -> String {
    format!("{:?}", strings(&o["entries"]))
}

fn is_group(name: &str, path: &str) -> bool {
    path == "mon_groups"
        || !["cpus", "cpus_list", "info", "mode", "mon_data", "mon_groups", "schemata", "size", "tasks", "ctrl_hw_id", "mon_hw_id"]
            .contains(&name)
}

/// Modes are not in the record; the trees and what passes afterwards tell them.
fn chmod_mode(o: &Value, later: &[Value]) -> u32 {
    match (text(&o["section"]), text(&o["path"])) {
        ("namespace-operations", "g1/schemata") => 0o600,
        ("namespace-operations", _) => 0o700,
        ("unprivileged", "") if later.iter().any(|l| text(&l["section"]) == "unprivileged" && l["op"] == "chmod") => 0o777,
        ("unprivileged", "") => 0o555,
        _ => 0o666,
    }
}

/// The tree that was recorded right after this operation.
fn tree_after(o: &Value, later: &[Value]) -> Option<String> {
    let (section, op, path) = (text(&o["section"]), text(&o["op"]), text(&o["path"]));
    let next_op = later.first().map_or("", |l| text(&l["op"]));
    let ok = o["result"] == "ok";
    match (section, op, path) {
        ("mount", "statfs", _) => Some("root".into()),
        ("mkdir", "mkdir", "g1") if ok => Some("one-group".into()),
        ("mon-groups", "mkdir", "g1/mon_groups/m2") => Some("mon-groups".into()),
        ("namespace-operations", "chown", "g1") => Some("after-chmod-chown".into()),
        ("pseudo-lock", "write", "p1/mode") if next_op != "mkdir" && text(&o["data"]) == "pseudo-locksetup\n" => {
            Some("pseudo-locksetup".into())
        }
        ("pseudo-lock", "write", "p1/schemata") if ok => Some("pseudo-locked".into()),
        (s, "mount", _) if ok && s.starts_with("mount-") => Some(s.replace(',', "+")),
        _ => None,
    }
}
