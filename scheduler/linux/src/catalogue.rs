//! The catalogue: one `workloads/<name>/workload.toml` a service or job (design 4.7).

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use surefoot_io::input::{self, WRITTEN_BYTES};
use surefoot_server::{names, Kind, LatencyFrom, SendLoop, Sending, ServerError};

/// Latency-critical service or best-effort job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    Lc,
    Be,
}

/// What surefoot-loadgen speaks.
pub const PROTOCOLS: [&str; 3] = ["memcached", "resp", "http"];
/// Load generators of others: a user runs them, `python -m collection.adapters` reads what they write (docs/workloads.md).
pub const ADAPTERS: [&str; 5] = ["mutilate", "memtier_benchmark", "wrk2", "ycsb", "tailbench"];

/// Any other program that loads a service and tells the feed of it (docs/latency-feed.md): `loadgen.command` says how it is started.
pub const EXEC: &str = "exec";
/// What is filled in there.
pub const PLACEHOLDERS: [&str; 7] = ["{rps}", "{seed}", "{port}", "{duration_ms}", "{feed}", "{service}", "{connections}"];

/// How the load generator speaks to a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loadgen {
    /// One of [`PROTOCOLS`], [`EXEC`], or one of [`ADAPTERS`].
    pub protocol: String,
    /// Of [`EXEC`] it may be left out where its command has no such placeholder.
    #[serde(default)]
    pub connections: u32,
    /// Further arguments of surefoot-loadgen, one element each.
    #[serde(default)]
    pub args: Vec<String>,
    /// Of [`EXEC`]: argument vector with [`PLACEHOLDERS`]. A program that begins with "./" lies in the entry's folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Of [`EXEC`]: with `--check` as its first argument the program says what it lacks, and puts no load on anything.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub check: bool,
    /// Of [`EXEC`]: how it sends, and what its latencies count from. None: the rows do not say.
    #[serde(default, rename = "loop", skip_serializing_if = "Option::is_none")]
    pub send_loop: Option<SendLoop>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_from: Option<LatencyFrom>,
}

/// How to know that a service that was started serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Ready {
    /// A process listens on its port. It is not tried: some services take the first connection for their client.
    Port,
    /// It has written this.
    Log(String),
    /// It serves once it runs.
    Runs,
}

impl TryFrom<String> for Ready {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "port" => Ok(Ready::Port),
            "none" => Ok(Ready::Runs),
            _ => match text.strip_prefix("log:").filter(|t| !t.is_empty()) {
                Some(t) => Ok(Ready::Log(t.into())),
                None => Err(format!("ready = \"{text}\": give \"port\", \"log:TEXT\" or \"none\"")),
            },
        }
    }
}

impl From<Ready> for String {
    fn from(r: Ready) -> String {
        match r {
            Ready::Port => "port".into(),
            Ready::Log(t) => format!("log:{t}"),
            Ready::Runs => "none".into(),
        }
    }
}

/// A folder or file of the host that a container may read: "HOST:CONTAINER", both absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Volume {
    pub host: String,
    pub container: String,
}

impl TryFrom<String> for Volume {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let whole = |p: &str| p.starts_with('/') && p.len() > 1 && !p.contains([',', ':']) && !p.chars().any(char::is_control);
        match text.split_once(':').filter(|(h, c)| whole(h) && whole(c)) {
            Some((host, container)) => Ok(Volume { host: host.into(), container: container.into() }),
            None => Err(format!("volumes: \"{text}\". Give \"/HOST/PATH:/CONTAINER/PATH\", without commas; it is read-only")),
        }
    }
}

impl From<Volume> for String {
    fn from(v: Volume) -> String {
        format!("{}:{}", v.host, v.container)
    }
}

/// One entry. Fields as in the file; `name` is also the folder's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub kind: EntryKind,
    /// What kind of service or job it is ("key-value store").
    pub domain: String,
    /// Which workload of which paper it stands for.
    pub stands_for: Option<String>,
    /// What is not as in that workload.
    pub differs: Option<String>,
    pub image: String,
    /// Dockerfile that makes the image, relative to the entry's folder.
    pub dockerfile: Option<String>,
    /// Argument vector in the container; `{threads}` and `{port}` are filled in. Never a shell string.
    pub command: Vec<String>,
    /// TCP port on 127.0.0.1; LC services only.
    pub port: Option<u16>,
    /// Flag of the command that sets the number of threads ("-t"), for people; None where it has none.
    pub threads_flag: Option<String>,
    /// Threads unless said otherwise.
    #[serde(default = "one")]
    pub default_threads: u32,
    /// Memory limit of the container, MB (2^20 bytes).
    pub memory_mb: Option<u64>,
    /// Environment of the command; placeholders as there.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Data of the host that it may read.
    #[serde(default)]
    pub volumes: Vec<Volume>,
    /// Folder in the container that the command is run in; None: the image's own.
    pub working_dir: Option<String>,
    /// None: its port where it has one.
    pub ready: Option<Ready>,
    /// Whether each case of a campaign begins with a new container.
    #[serde(default)]
    pub restart: bool,
    pub loadgen: Option<Loadgen>,
    /// QoS target on p99, ms.
    pub qos_target_ms: Option<f64>,
    /// Highest RPS within the QoS target alone on everything, by platform; "local" for hosts without an own figure.
    #[serde(default)]
    pub max_load_rps: BTreeMap<String, f64>,
    /// Loads that campaigns use, RPS.
    #[serde(default)]
    pub rps_levels: Vec<f64>,
    #[serde(default)]
    pub warmup_ms: u64,
    pub licence: String,
    /// Where a user gets what cannot be shipped.
    pub source: Option<String>,
}

impl Loadgen {
    /// Whether surefoot-loadgen drives it.
    pub fn is_own(&self) -> bool {
        PROTOCOLS.contains(&self.protocol.as_str())
    }

    fn check_connections(&self) -> Result<(), String> {
        if !(1..=10_000).contains(&self.connections) {
            return Err(format!("loadgen.connections = {}: give 1 to 10000", self.connections));
        }
        Ok(())
    }

    /// Whether a sweep can start it.
    pub fn is_run_here(&self) -> bool {
        self.is_own() || self.protocol == EXEC
    }

    /// That a sweep can start it.
    ///
    /// # Errors
    /// The field and its remedy.
    pub fn check_run_here(&self) -> Result<(), String> {
        if !self.is_run_here() {
            let known = PROTOCOLS.join(", ");
            return Err(format!(
                "protocol = \"{}\": a sweep does not start it. Give {known}, or {EXEC} with the command of a program that tells the feed",
                self.protocol
            ));
        }
        self.check()
    }

    /// How it sends, and what its latencies count from.
    pub fn sending(&self) -> Sending {
        if self.is_own() {
            return Sending::OPEN;
        }
        Sending { send_loop: self.send_loop, latency_from: self.latency_from }
    }

    /// Whether it says itself how many threads send.
    pub fn names_threads(&self) -> bool {
        self.args.iter().any(|a| a == "--threads" || a.starts_with("--threads="))
    }

    /// Whether a placeholder is in its command.
    pub fn asks_for(&self, placeholder: &str) -> bool {
        self.command.iter().any(|a| a.contains(placeholder))
    }

    fn check(&self) -> Result<(), String> {
        if self.protocol != EXEC || self.connections != 0 || self.asks_for("{connections}") {
            self.check_connections()?;
        }
        if self.protocol != EXEC {
            let of_others = [("check", self.check), ("loop", self.send_loop.is_some()), ("latency_from", self.latency_from.is_some())];
            for (field, told) in of_others {
                if told {
                    return Err(format!("loadgen.{field}: only for protocol = \"{EXEC}\". Remove it, or give that protocol"));
                }
            }
            return if self.command.is_empty() {
                Ok(())
            } else {
                Err(format!("loadgen.command: only for protocol = \"{EXEC}\". Remove it, or give that protocol"))
            };
        }
        if !self.args.is_empty() {
            return Err("loadgen.args are surefoot-loadgen's. Write them into loadgen.command".into());
        }
        let program = self.command.first().map_or("", String::as_str);
        if program.is_empty() || program.contains('/') && !program.starts_with('/') {
            return Err(format!(
                "loadgen.command: \"{program}\" is no program. Give an absolute path, a name that is in PATH, or ./FILE of the entry's folder"
            ));
        }
        unknown_placeholder("loadgen.command", &self.command, &PLACEHOLDERS)?;
        // What says nothing of the rate measures one load whatever it is asked for.
        for needed in ["{rps}", "{feed}"] {
            if !self.asks_for(needed) {
                return Err(format!("loadgen.command: has no {needed}, which is filled in with what the case says. Add it"));
            }
        }
        Ok(())
    }
}

fn one() -> u32 {
    1
}

fn unknown_placeholder(field: &str, args: &[String], known: &[&str]) -> Result<(), String> {
    let rest = |a: &String| known.iter().fold(a.clone(), |a, p| a.replace(p, ""));
    match args.iter().find(|a| rest(a).contains(['{', '}'])) {
        Some(a) => Err(format!("{field}: \"{a}\" has an unknown placeholder. Known are {}", known.join(", "))),
        None => Ok(()),
    }
}

impl Entry {
    pub fn server_kind(&self) -> Kind {
        match (self.kind, self.qos_target_ms) {
            (EntryKind::Lc, Some(qos_target_ms)) => Kind::Lc { qos_target_ms },
            _ => Kind::Be,
        }
    }

    /// The command with its placeholders filled in.
    pub fn command_line(&self, threads: u32, port: u16) -> Vec<String> {
        self.command.iter().map(|a| filled(a, threads, port)).collect()
    }

    /// The environment with its placeholders filled in.
    pub fn environment(&self, threads: u32, port: u16) -> Vec<(String, String)> {
        self.env.iter().map(|(k, v)| (k.clone(), filled(v, threads, port))).collect()
    }

    /// How to know that it serves.
    pub fn ready(&self) -> Ready {
        self.ready.clone().unwrap_or(if self.port.is_some() { Ready::Port } else { Ready::Runs })
    }

    /// Max load on `platform`, else the figure for "local".
    pub fn max_load_rps_on(&self, platform: &str) -> Option<f64> {
        self.max_load_rps.get(platform).or_else(|| self.max_load_rps.get("local")).copied()
    }

    /// Read and check one file.
    ///
    /// # Errors
    /// [`ServerError::Invalid`]: file, field, remedy.
    pub fn load(path: &Path) -> Result<Self, ServerError> {
        let bad = |m: String| ServerError::Invalid(format!("{}: {m}", path.display()));
        let text = input::text(path, WRITTEN_BYTES).map_err(|e| bad(format!("{e}. Give a folder that has a workload.toml")))?;
        let mut entry: Entry = toml::from_str(&text).map_err(|e| {
            let line = e.span().map_or(0, |s| text[..s.start.min(text.len())].lines().count().max(1));
            let near = names::expected(e.message()).map_or(String::new(), |n| format!(" Did you mean \"{n}\"?"));
            bad(format!("line {line}: {}.{near} See docs/catalogue.md for the fields", e.message().replace('\n', ", ")))
        })?;
        let folder = path.parent().and_then(|p| p.file_name()).and_then(|n| n.to_str());
        if let Some(program) = entry.loadgen.as_mut().and_then(|l| l.command.first_mut()) {
            if let Some(file) = program.strip_prefix("./") {
                let at = path.parent().unwrap_or(Path::new("")).join(file);
                *program = std::path::absolute(&at).unwrap_or(at).display().to_string();
            }
        }
        entry.check(folder).map_err(bad)?;
        Ok(entry)
    }

    fn check(&self, folder: Option<&str>) -> Result<(), String> {
        let plain = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.');
        if !plain(&self.name) {
            return Err(format!("name = \"{}\": use letters, digits, '-', '_' and '.'", self.name));
        }
        if folder.is_some_and(|f| f != self.name) {
            return Err(format!("name = \"{}\" but the folder is \"{}\". Make them equal", self.name, folder.unwrap_or("")));
        }
        if self.image.is_empty() || self.image.starts_with('-') || self.image.contains(char::is_whitespace) {
            return Err(format!("image = \"{}\": give an image name such as \"surefoot/{}\"", self.image, self.name));
        }
        if self.command.is_empty() {
            return Err("command = []: give at least the program's name".into());
        }
        if self.licence.is_empty() {
            return Err("licence = \"\": name the licence of what runs".into());
        }
        unknown_placeholder("command", &self.command, &["{threads}", "{port}"])?;
        for (key, value) in &self.env {
            let plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !key.starts_with(|c: char| c.is_ascii_digit());
            if key.is_empty() || !plain {
                return Err(format!("env: \"{key}\" is no name of a variable. Use letters, digits and '_'"));
            }
            if value.contains(['\n', '\0']) {
                return Err(format!("env.{key}: a value is one line"));
            }
            unknown_placeholder(&format!("env.{key}"), std::slice::from_ref(value), &["{threads}", "{port}"])?;
        }
        if let Some(dir) = self.working_dir.as_ref().filter(|d| !d.starts_with('/') || d.chars().any(char::is_control)) {
            return Err(format!("working_dir = \"{dir}\": give an absolute path in the container"));
        }
        if self.ready == Some(Ready::Port) && self.port.is_none() {
            return Err("ready = \"port\", but there is no port. Give one, or ready = \"log:TEXT\"".into());
        }
        if !(1..=1024).contains(&self.default_threads) {
            return Err(format!("default_threads = {}: give 1 to 1024", self.default_threads));
        }
        if self.memory_mb.is_some_and(|m| !(6..=4_194_304).contains(&m)) {
            return Err(format!("memory_mb = {}: give 6 to 4194304", self.memory_mb.unwrap_or(0)));
        }
        if self.warmup_ms > 600_000 {
            return Err(format!("warmup_ms = {}: give at most 600000", self.warmup_ms));
        }
        let rps_ok = |r: f64| r.is_finite() && r > 0.0 && r <= 1e8;
        if let Some((p, r)) = self.max_load_rps.iter().find(|(_, r)| !rps_ok(**r)) {
            return Err(format!("max_load_rps.{p} = {r}: give a number above 0, requests per second"));
        }
        if let Some(r) = self.rps_levels.iter().find(|r| !rps_ok(**r)) {
            return Err(format!("rps_levels: {r} is not a rate. Give numbers above 0, requests per second"));
        }
        match self.kind {
            EntryKind::Lc => self.check_lc(),
            EntryKind::Be if self.qos_target_ms.is_some() => {
                Err("qos_target_ms: a BE job has none. Remove it, or set kind = \"lc\"".into())
            }
            EntryKind::Be if self.loadgen.is_some() => Err("[loadgen]: a BE job has none. Remove it, or set kind = \"lc\"".into()),
            EntryKind::Be => Ok(()),
        }
    }

    fn check_lc(&self) -> Result<(), String> {
        match self.qos_target_ms {
            None => return Err("qos_target_ms is missing. An LC service needs its target on p99, ms".into()),
            Some(q) if !(q.is_finite() && q > 0.0 && q <= 60_000.0) => {
                return Err(format!("qos_target_ms = {q}: give a number above 0 and up to 60000"));
            }
            Some(_) => {}
        }
        let Some(l) = &self.loadgen else {
            return Err("[loadgen] is missing. An LC service needs protocol and connections".into());
        };
        // TailBench's integrated programs make their load within.
        if self.port.map_or(l.is_own() || l.asks_for("{port}"), |p| p < 1024) {
            return Err("port: an LC service needs one, 1024 to 65535".into());
        }
        if !l.is_run_here() && !ADAPTERS.contains(&l.protocol.as_str()) {
            let known = format!("{}, {EXEC} or, for another load generator, {}", PROTOCOLS.join(", "), ADAPTERS.join(", "));
            return Err(format!("loadgen.protocol = \"{}\": give {known}", l.protocol));
        }
        l.check()
    }
}

fn filled(text: &str, threads: u32, port: u16) -> String {
    text.replace("{threads}", &threads.to_string()).replace("{port}", &port.to_string())
}

/// All entries below one folder, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    pub dir: PathBuf,
    pub entries: BTreeMap<String, Entry>,
}

impl Catalogue {
    /// Read every `DIR/<name>/workload.toml`.
    ///
    /// # Errors
    /// [`ServerError::Invalid`]: the first file that is wrong, or a folder without entries.
    pub fn load(dir: &Path) -> Result<Self, ServerError> {
        let bad = |m: String| ServerError::Invalid(format!("catalogue {}: {m}", dir.display()));
        let list =
            fs::read_dir(dir).map_err(|e| bad(format!("{e}. Give the workloads folder (`catalogue` in node.toml, or --catalogue)")))?;
        let mut files: Vec<PathBuf> = list.flatten().map(|e| e.path().join("workload.toml")).filter(|p| p.is_file()).collect();
        files.sort();
        if files.is_empty() {
            return Err(bad("no <name>/workload.toml in it. Give the workloads folder (`catalogue` in node.toml, or --catalogue)".into()));
        }
        let entries = files.iter().map(|f| Entry::load(f).map(|e| (e.name.clone(), e))).collect::<Result<_, _>>()?;
        Ok(Catalogue { dir: dir.into(), entries })
    }

    /// # Errors
    /// [`ServerError::Invalid`] that lists the known names.
    pub fn get(&self, name: &str) -> Result<&Entry, ServerError> {
        self.entries.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.entries.keys().map(String::as_str).collect();
            let near = names::nearest(name, known.iter().copied()).map_or(String::new(), |n| format!(" Did you mean \"{n}\"?"));
            ServerError::Invalid(format!("unknown service \"{name}\".{near} The catalogue {} has {}", self.dir.display(), known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
name = "memcached"
kind = "lc"
domain = "key-value store"
image = "surefoot/memcached"
command = ["memcached", "-p", "{port}", "-t", "{threads}"]
port = 11211
qos_target_ms = 10.0
rps_levels = [1000, 2000]
licence = "BSD-3-Clause"
[loadgen]
protocol = "memcached"
connections = 8
"#;

    fn load(text: &str) -> Result<Entry, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memcached");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("workload.toml"), text).unwrap();
        Entry::load(&path.join("workload.toml")).map_err(|e| e.to_string())
    }

    /// Placeholders become numbers, one argument stays one argument.
    #[test]
    fn commands_are_argument_vectors() {
        let e = load(GOOD).unwrap();
        assert_eq!(e.command_line(3, 4000), ["memcached", "-p", "4000", "-t", "3"]);
        assert_eq!(e.server_kind(), Kind::Lc { qos_target_ms: 10.0 });
    }

    /// An original: its data, environment, folder and generator are said; a generator of the entry's own lies beside the file.
    #[test]
    fn originals_say_how_they_run() {
        let more = "env = { TBENCH_PORT = \"{port}\" }\nvolumes = [\"/srv/tailbench:/data\"]\nworking_dir = \"/app\"\nready = \"none\"\n";
        let text = GOOD.replace("licence", &format!("{more}restart = true\nlicence"));
        let run = "protocol = \"exec\"\nloop = \"closed\"\nlatency_from = \"actual\"\ncommand = [\"./drive\", \"{rps}\", \"{feed}\"]";
        let e = load(&text.replace("protocol = \"memcached\"", run)).unwrap();
        assert_eq!(e.environment(2, 4000), [("TBENCH_PORT".to_string(), "4000".to_string())]);
        assert_eq!((e.volumes[0].host.as_str(), e.volumes[0].container.as_str()), ("/srv/tailbench", "/data"));
        assert_eq!((e.ready(), e.restart, e.working_dir.as_deref()), (Ready::Runs, true, Some("/app")));
        let l = e.loadgen.unwrap();
        assert!(l.command[0].starts_with('/') && l.command[0].ends_with("memcached/drive") && l.is_run_here() && !l.is_own());
        assert_eq!((l.sending().words(), Sending::OPEN.words()), ((Some("closed"), Some("actual")), (Some("open"), Some("intended"))));
        assert_eq!(load(GOOD).unwrap().loadgen.unwrap().sending(), Sending::OPEN);
        assert_eq!(load(GOOD).unwrap().ready(), Ready::Port);
    }

    /// Each wrong field is named, with the file and a remedy.
    #[test]
    fn wrong_fields_are_named() {
        let cases = [
            ("kind = \"lc\"", "kind = \"xx\"", "unknown variant"),
            ("port = 11211", "port = 80", "port: an LC service"),
            ("qos_target_ms = 10.0", "qos_target_ms = -1.0", "qos_target_ms = -1"),
            ("qos_target_ms = 10.0", "", "qos_target_ms is missing"),
            ("qos_target_ms = 10.0", "qos_target = 1.0", "unknown field `qos_target`"),
            ("qos_target_ms = 10.0", "qos_taregt_ms = 10.0", "Did you mean \"qos_target_ms\"?"),
            ("[1000, 2000]", "[1000, -5]", "rps_levels: -5"),
            ("\"{threads}\"", "\"{cores}\"", "unknown placeholder"),
            ("connections = 8", "connections = 0", "loadgen.connections = 0"),
            ("connections = 8", "", "loadgen.connections = 0"),
            ("connections = 8", "command = [\"x\"]", "loadgen.connections = 0"),
            ("protocol = \"memcached\"", "protocol = \"smtp\"", "loadgen.protocol"),
            ("licence", "volumes = [\"data:/x\"]\nlicence", "volumes: \"data:/x\""),
            ("licence", "volumes = [\"/a,b:/x\"]\nlicence", "without commas"),
            ("licence", "working_dir = \"x\"\nlicence", "working_dir = \"x\""),
            ("licence", "ready = \"soon\"\nlicence", "ready = \"soon\""),
            ("licence", "env = { \"A B\" = \"1\" }\nlicence", "env: \"A B\""),
            ("licence", "env = { A = \"{rps}\" }\nlicence", "env.A: \"{rps}\""),
            ("connections = 8", "connections = 8\ncommand = [\"x\"]", "only for protocol"),
            ("connections = 8", "connections = 8\nloop = \"open\"", "loadgen.loop: only for protocol"),
            ("connections = 8", "connections = 8\ncheck = true", "loadgen.check: only for protocol"),
            ("connections = 8", "connections = 8\nlatency_from = \"actual\"", "loadgen.latency_from: only for protocol"),
            ("connections = 8", "connections = 8\nloop = \"half-open\"", "expected `open` or `closed`"),
            ("protocol = \"memcached\"", "protocol = \"exec\"", "is no program"),
            ("protocol = \"memcached\"", "protocol = \"exec\"\ncommand = [\"bin/x\"]", "\"bin/x\" is no program"),
            ("protocol = \"memcached\"", "protocol = \"exec\"\ncommand = [\"x\", \"{feed}\"]", "has no {rps}"),
            ("protocol = \"memcached\"", "protocol = \"exec\"\ncommand = [\"x\", \"{rate}\"]", "unknown placeholder"),
            ("name = \"memcached\"", "name = \"redis\"", "the folder is \"memcached\""),
        ];
        for (from, to, want) in cases {
            let err = load(&GOOD.replace(from, to)).unwrap_err();
            assert!(err.contains(want) && err.contains("workload.toml"), "{err}");
        }
    }

    /// Every entry that is shipped loads, says what it stands for, can be built, and has a port of its own.
    #[test]
    fn the_shipped_catalogue_is_sound() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads");
        let all = Catalogue::load(&dir).unwrap();
        let mut ports = std::collections::BTreeSet::new();
        for (name, e) in &all.entries {
            assert_eq!(e.port.is_some(), e.command.iter().any(|a| a.contains("{port}")), "{name}");
            assert!(e.command.iter().any(|a| a.contains("{threads}")), "{name}");
            assert!(dir.join(name).join(e.dockerfile.as_deref().unwrap()).is_file(), "{name}");
            assert!(e.stands_for.is_some() && e.differs.is_some(), "{name}");
            assert!(e.loadgen.as_ref().is_none_or(Loadgen::is_own), "{name}");
            // Neighbours of one service use the ports after its own: see the bench.
            assert!(e.port.is_none_or(|p| ports.insert(p)), "{name}");
            // Levels are for the platform that `local` was measured on.
            assert!(e.rps_levels.iter().all(|r| *r <= e.max_load_rps["local"]), "{name}");
        }
        for name in ["memcached", "nginx", "redis", "stream"] {
            assert!(all.entries.contains_key(name), "{name}");
        }
        assert!(all.get("memcachde").unwrap_err().to_string().contains("Did you mean \"memcached\"?"));
        assert!(all.get("nonsense").unwrap_err().to_string().contains("memcached, "));
    }

    /// A folder with a Dockerfile is an entry; only the compiler's image is none.
    #[test]
    fn every_dockerfile_has_its_entry() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads");
        let all = Catalogue::load(&dir).unwrap();
        let images: Vec<&str> = all.entries.values().map(|e| e.image.as_str()).collect();
        for folder in fs::read_dir(&dir).unwrap().flatten().filter(|f| f.path().join("Dockerfile").is_file()) {
            let name = folder.file_name().into_string().unwrap();
            assert!(name == "toolchain" || images.contains(&format!("surefoot/{name}").as_str()), "workloads/{name} has no entry");
        }
    }

    /// Entries for the originals load too, and a sweep can start each of their generators and says how it loads. Ports of
    /// neighbours follow a service's own.
    #[test]
    fn the_originals_are_sound() {
        let all = Catalogue::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/originals")).unwrap();
        let mut ports: Vec<u16> = vec![];
        for (name, e) in &all.entries {
            assert!(e.source.is_some() && e.stands_for.is_some() && e.differs.is_some(), "{name}");
            let Some(l) = &e.loadgen else { continue };
            let program = Path::new(&l.command[0]);
            assert!(l.is_run_here() && program.ends_with("drive.py") && program.is_file(), "{name}: {}", program.display());
            assert!(l.send_loop.is_some() && l.latency_from.is_some(), "{name}");
            assert!(ports.iter().all(|p| e.port.unwrap().abs_diff(*p) > 8), "{name}");
            ports.extend(e.port);
        }
        let tool = |e: &Entry| e.loadgen.as_ref().map(|l| l.command[1].clone());
        let tools: std::collections::BTreeSet<String> = all.entries.values().filter_map(tool).collect();
        assert!(tools.iter().eq(["memtier", "mutilate", "tailbench", "wrk2", "ycsb"]), "{tools:?}");
    }
}
