//! What starting the services of a sweep needs of this machine beside the campaign: a load generator, an engine that answers, images,
//! data, ports. It is looked for before anything is started; nothing is started and nothing changed.

use super::{find_loadgen, BenchHow};
use crate::catalogue::{Entry, Loadgen, PLACEHOLDERS};
use crate::child::{answer, last_line};
use crate::engine::{in_path, Engine};
use crate::local::serves;
use crate::root::Root;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use surefoot_server::ServerError;

/// How long a load generator may take to say what it lacks.
const PATIENCE: Duration = Duration::from_secs(30);

/// A service of a sweep, as far as its start goes.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// As the sweep knows it.
    pub id: &'a str,
    /// Field of the campaign that names it.
    pub field: &'static str,
    pub how: &'a BenchHow,
    /// What it is launched from; None where it is not of the catalogue.
    pub entry: Option<&'a Entry>,
    /// Where it answers on 127.0.0.1.
    pub port: Option<u16>,
    /// What it is loaded with; None for jobs.
    pub loadgen: Option<&'a Loadgen>,
}

impl Start<'_> {
    fn is_launched(&self) -> bool {
        matches!(self.how, BenchHow::Launch)
    }

    fn runs(&self) -> bool {
        matches!(self.how, BenchHow::Adopt(_))
    }
}

fn said(e: &ServerError) -> String {
    e.to_string().trim_end_matches('.').to_string()
}

/// Whether the engine has its image; a name is no option of the engine's command line.
fn has(engine: &Engine, entry: &Entry) -> bool {
    !entry.image.starts_with('-') && engine.has_image(&entry.image)
}

/// Which service first needs which image that the engine does not have, by image.
fn missing<'a>(engine: &Engine, starts: impl Iterator<Item = &'a Start<'a>>) -> BTreeMap<&'a str, &'a Start<'a>> {
    let mut by_image = BTreeMap::new();
    for (s, e) in starts.filter_map(|s| Some((s, s.entry?))).filter(|(_, e)| !has(engine, e)) {
        by_image.entry(e.image.as_str()).or_insert(s);
    }
    by_image
}

/// Why an `exec` load generator could not load the service; None where it can, as far as it says.
fn lacks(s: &Start, l: &Loadgen) -> Option<String> {
    let (program, arguments) = l.command.split_first()?;
    let (field, id) = (s.field, s.id);
    let Some(at) = in_path(program) else {
        return Some(format!("{field}: {id}: its load generator {program} is no program here. Install it, or mend loadgen.command"));
    };
    if !l.check {
        return None;
    }
    let some = |a: &String| PLACEHOLDERS.iter().fold(a.clone(), |a, p| a.replace(p, "1000"));
    let mut command = Command::new(&at);
    command.arg("--check").args(arguments.iter().map(some));
    let why = match answer(command, PATIENCE) {
        Ok(out) if out.status.success() => return None,
        Ok(out) => {
            let line = last_line(&out.stderr).unwrap_or_else(|| "it says no more than that".into());
            line.trim_end_matches('.').to_string()
        }
        Err(e) => format!("{e}. Mend it, or leave loadgen.check out"),
    };
    Some(format!("{field}: {id}: its load generator: {why}"))
}

/// Why these services could not be started or loaded here, most basic first; nothing where they can.
///
/// `catalogue`: the folder of the entries, for remedies. `images`: whether images are to be here already.
pub fn refusals(root: &Root, starts: &[Start], catalogue: &Path, images: bool) -> Vec<String> {
    let mut all = vec![];
    if starts.iter().any(|s| s.loadgen.is_some_and(Loadgen::is_own)) {
        all.extend(find_loadgen().err().map(|e| said(&e)));
    }
    all.extend(starts.iter().filter_map(|s| Some((s, s.loadgen?))).filter_map(|(s, l)| lacks(s, l)));
    let launched = || starts.iter().filter(|s| s.is_launched());
    let engine = match launched().next().map(|_| Engine::find()) {
        Some(Err(e)) => {
            all.push(said(&e));
            None
        }
        other => other.and_then(Result::ok),
    };
    if let Some(engine) = engine.as_ref().filter(|_| images) {
        let gone = missing(engine, launched());
        if !gone.is_empty() {
            let mut whose: Vec<&Start> = gone.values().copied().collect();
            whose.sort_unstable_by_key(|s| s.id);
            let names = |of: &[&Start]| of.iter().map(|s| s.id).collect::<Vec<_>>().join(", ");
            let source = |s: &Start| s.entry.and_then(|e| e.source.clone());
            // What cannot be shipped says where it is to be had.
            let ours: Vec<&Start> = whose.iter().copied().filter(|s| source(s).is_none()).collect();
            let of_sources = || format!("{} from the sources (workloads/NAME/Dockerfile)", names(&ours));
            let mut ways: Vec<String> = (!ours.is_empty()).then(of_sources).into_iter().collect();
            ways.extend(whose.iter().filter_map(|s| Some(format!("{}: {}", s.id, source(s)?))));
            all.push(format!(
                "no image {}, which {} {} started from. Build or pull it: {}; or mend image in {}/NAME/workload.toml",
                gone.keys().copied().collect::<Vec<_>>().join(", "),
                names(&whose),
                if whose.len() == 1 { "is" } else { "are" },
                ways.join("; "),
                catalogue.display()
            ));
        }
    }
    for s in launched() {
        let volumes = s.entry.map_or(&[][..], |e| &e.volumes);
        all.extend(volumes.iter().filter(|v| !Path::new(&v.host).exists()).map(|v| {
            let at = catalogue.display();
            format!(
                "volume {} of {}: there is no such file or folder. Put it there, or mend volumes in {at}/NAME/workload.toml",
                v.host, s.id
            )
        }));
    }
    all.extend(ports(root, engine.as_ref(), starts));
    all
}

/// Ports that are taken where a service is to be started, or silent where one runs already.
fn ports(root: &Root, engine: Option<&Engine>, starts: &[Start]) -> Vec<String> {
    let mut all = vec![];
    let mut taken: BTreeMap<u16, &str> = BTreeMap::new();
    for s in starts {
        let Some(port) = s.port else { continue };
        let (field, id) = (s.field, s.id);
        if s.runs() {
            if !serves(port) {
                all.push(format!("{field}: {id}: nothing listens on 127.0.0.1:{port}. Start the service, or mend its port"));
            }
            if let Some(other) = taken.insert(port, id) {
                all.push(format!("{field}: {id}: has port {port}, and so has {other}. Give each its own"));
            }
        } else if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_err() && !left_by_us(root, engine, s) {
            all.push(format!("{field}: {id}: port {port} is in use on this machine. Stop what listens there, or give another port"));
        }
    }
    all
}

/// Whether a sweep that was killed left the service running: the next one takes it over, or ends it.
fn left_by_us(root: &Root, engine: Option<&Engine>, s: &Start) -> bool {
    if s.is_launched() {
        return engine.is_some_and(|e| e.runs_one_of(s.id));
    }
    let ours = |name: &str| name.strip_prefix("surefoot-").and_then(|n| n.split_once('-')).is_some_and(|(_, id)| id == s.id);
    let top = "/sys/fs/cgroup";
    let list = |at: &str| -> Vec<String> {
        let entries = std::fs::read_dir(root.path(at)).into_iter().flatten().flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    };
    let top_level = list(top);
    // cgroup v1 has a hierarchy for each controller.
    top_level.iter().any(|n| ours(n)) || top_level.iter().any(|n| list(&format!("{top}/{n}")).iter().any(|n| ours(n)))
}

/// Those of these entries whose images the engine does not have; none where no engine answers.
pub fn without_image<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<&'a str> {
    let Ok(engine) = Engine::find() else { return vec![] };
    entries.filter(|e| !has(&engine, e)).map(|e| e.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Target;

    fn start(how: &BenchHow, port: u16) -> Start<'_> {
        Start { id: "web", field: "service", how, entry: None, port: Some(port), loadgen: None }
    }

    /// A service that runs already and does not listen cannot be loaded; one that does is not connected to, and is named beside another there.
    #[test]
    fn what_runs_already_has_to_listen() {
        let how = BenchHow::Adopt(Target::Pid(7));
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        let of = |starts: &[Start]| refusals(&Root::default(), starts, Path::new("cat"), true);
        assert_eq!(of(&[start(&how, port)]), Vec::<String>::new());
        here.set_nonblocking(true).unwrap();
        assert_eq!(here.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        let twin = Start { id: "api", ..start(&how, port) };
        assert_eq!(of(&[start(&how, port), twin]), [format!("service: api: has port {port}, and so has web. Give each its own")]);
        drop(here);
        let want = format!("service: web: nothing listens on 127.0.0.1:{port}. Start the service, or mend its port");
        assert_eq!(of(&[start(&how, port)]), [want]);
    }

    /// A command's port must be free, unless a sweep that was killed left the command there, whose group has its name.
    #[test]
    fn what_is_started_needs_its_port() {
        let how = BenchHow::Run(vec!["web".into()]);
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let of = || refusals(&root, &[start(&how, port)], Path::new("cat"), true);
        let want = format!("service: web: port {port} is in use on this machine. Stop what listens there, or give another port");
        assert_eq!(of(), [want]);
        for (group, ours) in [("cpuset/surefoot-0a1b-web2", false), ("cpuset/surefoot-0a1b-web", true), ("surefoot-0a1b-web", true)] {
            let at = root.path("/sys/fs/cgroup").join(group);
            std::fs::create_dir_all(&at).unwrap();
            assert_eq!(of().is_empty(), ours, "{group}");
            std::fs::remove_dir_all(root.path("/sys/fs/cgroup")).unwrap();
        }
        drop(here);
        assert_eq!(of(), Vec::<String>::new());
    }
}
