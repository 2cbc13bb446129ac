//! The container engine (Docker or Podman) through its command line, always with argument vectors.

use crate::catalogue::Volume;
use crate::child::answer;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use surefoot_server::{CpuSet, ServerError};

/// Label that says whose container it is; the value is the owner.
pub const LABEL_OWNER: &str = "surefoot.owner";
pub const LABEL_ID: &str = "surefoot.id";
pub const LABEL_SERVICE: &str = "surefoot.service";
/// What exactly was run, so that a later run can go on with a container that is just what it would start.
pub const LABEL_LAUNCH: &str = "surefoot.launch";

/// An engine that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    program: PathBuf,
    /// How long to wait for an answer.
    patience: Duration,
}

/// A running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Full id.
    pub id: String,
    pub name: String,
    /// Process id of its first process, as the host sees it.
    pub pid: u32,
}

/// Limits of a container as its engine has them; 0 = not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub cpus: String,
    pub quota_us: i64,
    pub period_us: u64,
    pub shares: u64,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct RunSpec<'a> {
    pub name: &'a str,
    pub owner: &'a str,
    pub id: &'a str,
    pub service: &'a str,
    pub image: &'a str,
    pub command: &'a [String],
    pub cpus: &'a CpuSet,
    pub memory_mb: Option<u64>,
    pub env: &'a [(String, String)],
    /// Read-only.
    pub volumes: &'a [Volume],
    pub working_dir: Option<&'a str>,
}

impl RunSpec<'_> {
    /// Equal for what is run alike: image, command, memory, and what it is given to see.
    fn fingerprint(&self) -> String {
        let mut text = format!("{}\0{}\0{}", self.image, self.command.join("\0"), self.memory_mb.unwrap_or(0));
        self.env.iter().for_each(|(k, v)| text += &format!("\0env {k}={v}"));
        self.volumes.iter().for_each(|v| text += &format!("\0volume {}:{}", v.host, v.container));
        self.working_dir.iter().for_each(|d| text += &format!("\0in {d}"));
        format!("{:016x}", fnv1a(text.as_bytes()))
    }
}

/// FNV-1a, 64 bits.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

fn unavailable(what: impl Into<String>, cause: impl Into<String>, remedy: impl Into<String>) -> ServerError {
    ServerError::Unavailable { what: what.into(), cause: cause.into(), remedy: remedy.into() }
}

/// First program of this name in PATH.
pub fn in_path(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).is_file().then(|| name.into());
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|d| d.join(name)).find(|p| p.is_file())
}

/// Last line of what a program said, for error messages.
fn last_line(out: &Output) -> String {
    let text = if out.stderr.is_empty() { &out.stdout } else { &out.stderr };
    let text = String::from_utf8_lossy(text);
    // Docker ends with a hint on its help; the cause stands before it.
    let line = text.lines().rev().map(str::trim).find(|l| !l.is_empty() && !l.starts_with("See 'docker")).unwrap_or("no message");
    let line = line.trim_start_matches("Error response from daemon: ");
    line.trim_end_matches(". Is the docker daemon running?").trim_end_matches(['.', '?']).to_string()
}

const START: &str = "Start it: systemctl start docker";

/// What to do about an engine that cannot be reached; None for other causes.
fn remedy_for(cause: &str, docker_host: Option<&str>) -> Option<String> {
    let cause = cause.to_lowercase();
    if cause.contains("permission denied") && cause.contains("sock") {
        return Some("Join the group docker (sudo usermod -aG docker $USER, then log in again), or run as root".into());
    }
    let unreachable =
        ["cannot connect", "daemon running", "error during connect", "failed to connect", "no such host", "unable to parse docker host"];
    unreachable.iter().any(|u| cause.contains(u)).then(|| match docker_host {
        Some(host) if !host.is_empty() => format!("DOCKER_HOST is \"{host}\": unset it, or start the engine that it names"),
        _ => START.into(),
    })
}

fn says_absent(e: &ServerError) -> bool {
    matches!(e, ServerError::Unavailable { cause, .. } if cause.to_lowercase().contains("no such container"))
}

/// That the engine does not take a name for an option of its command line: a journal may hold anything.
fn no_option(name: &str) -> Result<(), ServerError> {
    if name.is_empty() || name.starts_with('-') {
        return Err(unavailable(format!("container \"{name}\""), "no container has such a name", "List containers with: docker ps"));
    }
    Ok(())
}

/// 30 s, and less than the service manager waits for us.
fn patience() -> Duration {
    let watchdog_us = std::env::var("WATCHDOG_USEC").ok().and_then(|t| t.parse::<u64>().ok());
    Duration::from_secs(30).min(watchdog_us.map_or(Duration::MAX, |us| Duration::from_micros(us / 5 * 3)))
}

impl Engine {
    /// `SUREFOOT_ENGINE`, else docker, else podman; must answer.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`]: none installed, or none answers.
    pub fn find() -> Result<Self, ServerError> {
        let start = "Install and start Docker or Podman";
        let program = match std::env::var("SUREFOOT_ENGINE") {
            Ok(name) if !name.is_empty() => in_path(&name).ok_or_else(|| {
                unavailable("container engine", format!("SUREFOOT_ENGINE={name} is not a program"), "Give docker, podman or a path")
            })?,
            _ => ["docker", "podman"]
                .iter()
                .find_map(|n| in_path(n))
                .ok_or_else(|| unavailable("container engine", "neither docker nor podman is installed", start))?,
        };
        Self::at(program)
    }

    /// A given program; must answer.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] with what the engine says.
    pub fn at(program: impl Into<PathBuf>) -> Result<Self, ServerError> {
        let engine = Engine { program: program.into(), patience: patience() };
        engine.version().map(|_| engine)
    }

    /// Version of the engine that answers.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where none does.
    pub fn version(&self) -> Result<String, ServerError> {
        let name = format!("container engine {}", self.program.display());
        let out = self.raw(&["version", "--format", "{{.Server.Version}}"]).map_err(|e| unavailable(&name, e, START))?;
        if !out.status.success() {
            let cause = last_line(&out);
            let remedy = remedy_for(&cause, std::env::var("DOCKER_HOST").ok().as_deref()).unwrap_or_else(|| START.into());
            return Err(unavailable(name, cause, remedy));
        }
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_string())
    }

    /// An engine that hangs must not hang the control loop, which a watchdog looks after.
    fn raw(&self, args: &[&str]) -> Result<Output, String> {
        let patience = if matches!(args.first(), Some(&"run" | &"rm")) { Duration::from_secs(120) } else { self.patience };
        let mut command = Command::new(&self.program);
        command.args(args);
        answer(command, patience)
    }

    fn call(&self, what: &str, args: &[&str], remedy: &str) -> Result<String, ServerError> {
        let out = self.raw(args).map_err(|e| unavailable(what, e, remedy))?;
        if out.status.success() {
            return Ok(String::from_utf8_lossy(&out.stdout).trim().to_string());
        }
        let cause = last_line(&out);
        let remedy = remedy_for(&cause, std::env::var("DOCKER_HOST").ok().as_deref()).unwrap_or_else(|| remedy.into());
        Err(unavailable(what, cause, remedy))
    }

    pub fn has_image(&self, image: &str) -> bool {
        self.raw(&["image", "inspect", image]).is_ok_and(|o| o.status.success())
    }

    /// Start a container on the host's network: published ports would go through a relay process of the engine, whose CPU
    /// time and delay belong to no service. Services listen on 127.0.0.1 themselves.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`]: image missing, name taken, whatever the engine says.
    pub fn run(&self, spec: &RunSpec) -> Result<Container, ServerError> {
        let folder = spec.image.strip_prefix("surefoot/").unwrap_or(spec.image);
        if !self.has_image(spec.image) {
            self.version()?;
            return Err(unavailable(
                format!("image {}", spec.image),
                "it does not exist",
                format!(
                    "Build it from the sources (workloads/{folder}/Dockerfile) or pull it, or mend image in workloads/{}/workload.toml",
                    spec.service
                ),
            ));
        }
        let cpus = spec.cpus.to_string();
        let labels = [
            format!("{LABEL_OWNER}={}", spec.owner),
            format!("{LABEL_ID}={}", spec.id),
            format!("{LABEL_SERVICE}={}", spec.service),
            format!("{LABEL_LAUNCH}={}", spec.fingerprint()),
        ];
        let memory = spec.memory_mb.map(|m| format!("{m}m"));
        let mut args = vec!["run", "--detach", "--name", spec.name, "--network", "host", "--cpuset-cpus", &cpus];
        args.extend(["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--restart", "no", "--pull", "never"]);
        args.extend(["--log-opt", "max-size=1m"]);
        // An image's health check would run beside what is measured.
        args.push("--no-healthcheck");
        labels.iter().for_each(|l| args.extend(["--label", l]));
        if let Some(m) = &memory {
            args.extend(["--memory", m, "--memory-swap", m]);
        }
        let env: Vec<String> = spec.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        env.iter().for_each(|e| args.extend(["--env", e]));
        // Unlike --volume it makes no folder where there is none.
        let mount = |v: &Volume| format!("type=bind,source={},target={},readonly", v.host, v.container);
        let mounts: Vec<String> = spec.volumes.iter().map(mount).collect();
        mounts.iter().for_each(|m| args.extend(["--mount", m]));
        if let Some(dir) = spec.working_dir {
            args.extend(["--workdir", dir]);
        }
        args.push(spec.image);
        args.extend(spec.command.iter().map(String::as_str));
        let id = self.call(&format!("start of {}", spec.id), &args, "See the engine's message")?;
        self.inspect(&id)
    }

    /// A running container by name or id.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where it is not there or does not run.
    pub fn inspect(&self, name: &str) -> Result<Container, ServerError> {
        let what = format!("container {name}");
        no_option(name)?;
        let text = self.call(&what, &["inspect", "--type", "container", name], "List containers with: docker ps")?;
        let json: Value = serde_json::from_str(&text).map_err(|e| unavailable(&what, e.to_string(), "Check the engine"))?;
        let c = &json[0];
        let pid = c["State"]["Pid"].as_u64().unwrap_or(0) as u32;
        if !c["State"]["Running"].as_bool().unwrap_or(false) || pid == 0 {
            let said = self.last_log(name);
            let cause = format!("it does not run (exit code {}){said}", c["State"]["ExitCode"].as_i64().unwrap_or(-1));
            return Err(unavailable(what, cause, "Start it, or look at its log: docker logs"));
        }
        Ok(Container {
            id: c["Id"].as_str().unwrap_or(name).into(),
            name: c["Name"].as_str().unwrap_or(name).trim_start_matches('/').into(),
            pid,
        })
    }

    /// Last line that a container wrote, as ": line"; empty where it wrote nothing.
    pub fn last_log(&self, name: &str) -> String {
        let Ok(out) = self.raw(&["logs", "--tail", "5", name]) else { return String::new() };
        let line = last_line(&out);
        if line == "no message" {
            line.replace("no message", "")
        } else {
            format!(": {line}")
        }
    }

    /// Everything a container wrote to stdout in its last lines.
    pub fn log_tail(&self, name: &str, lines: u32) -> Vec<String> {
        let n = lines.to_string();
        self.raw(&["logs", "--tail", &n, name])
            .map(|o| String::from_utf8_lossy(&o.stdout).lines().map(str::to_string).collect())
            .unwrap_or_default()
    }

    /// Whether a container has written this in its last 1000 lines.
    pub fn has_written(&self, name: &str, text: &str) -> bool {
        let has = |o: Output| [o.stdout, o.stderr].iter().any(|s| String::from_utf8_lossy(s).contains(text));
        self.raw(&["logs", "--tail", "1000", name]).is_ok_and(has)
    }

    /// Ids of all containers of an owner, running or not; of every owner with `None`.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where the engine does not answer.
    pub fn owned(&self, owner: Option<&str>) -> Result<Vec<String>, ServerError> {
        let filter = owner.map_or(format!("label={LABEL_OWNER}"), |o| format!("label={LABEL_OWNER}={o}"));
        let text = self.call("list of containers", &["ps", "--all", "--quiet", "--no-trunc", "--filter", &filter], "Check the engine")?;
        Ok(text.lines().map(str::to_string).collect())
    }

    /// Whether a container of ours runs that was started as this service, whoever of us started it.
    pub fn runs_one_of(&self, id: &str) -> bool {
        let filter = format!("label={LABEL_ID}={id}");
        self.raw(&["ps", "--quiet", "--filter", &filter]).is_ok_and(|o| o.status.success() && !o.stdout.trim_ascii().is_empty())
    }

    /// The running one among these containers of ours that is just what `spec` would start.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where the engine does not answer.
    pub fn left_of(&self, containers: &[String], spec: &RunSpec) -> Result<Option<Container>, ServerError> {
        let format = format!("{{{{index .Config.Labels \"{LABEL_ID}\"}}}}|{{{{index .Config.Labels \"{LABEL_LAUNCH}\"}}}}");
        for id in containers {
            let text = self.call(&format!("labels of {id}"), &["inspect", "--type", "container", "-f", &format, id], "Check the engine")?;
            if text.split_once('|') == Some((spec.id, &spec.fingerprint())) {
                return Ok(self.inspect(id).ok());
            }
        }
        Ok(None)
    }

    /// Stop and remove; one that has gone already is no error.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] with what the engine says.
    pub fn remove(&self, id: &str) -> Result<(), ServerError> {
        match self.call(&format!("removal of container {id}"), &["rm", "--force", "--volumes", id], "Remove it by hand: docker rm -f") {
            Err(e) if says_absent(&e) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// True where the engine says that it has no such container.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where the engine does not answer: that proves nothing.
    pub fn lacks(&self, id: &str) -> Result<bool, ServerError> {
        match self.limits(id) {
            Err(e) if says_absent(&e) => Ok(true),
            other => other.map(|_| false),
        }
    }

    /// Limits of a container as the engine has them.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] where the container is not there.
    pub fn limits(&self, id: &str) -> Result<Limits, ServerError> {
        no_option(id)?;
        let format = "{{.HostConfig.CpusetCpus}}|{{.HostConfig.CpuQuota}}|{{.HostConfig.CpuPeriod}}|{{.HostConfig.CpuShares}}";
        let text = self.call(&format!("limits of {id}"), &["inspect", "--type", "container", "-f", format, id], "Check the engine")?;
        let f: Vec<&str> = text.split('|').collect();
        let num = |i: usize| f.get(i).and_then(|t| t.parse::<i64>().ok()).unwrap_or(0);
        Ok(Limits {
            cpus: f.first().copied().unwrap_or("").to_string(),
            quota_us: num(1),
            period_us: num(2).max(0) as u64,
            shares: num(3).max(0) as u64,
        })
    }

    /// The engine's own way to set the share of contested CPU time (2 and more; 1024 is the default).
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] with what the engine says.
    pub fn update_shares(&self, id: &str, shares: &str) -> Result<(), ServerError> {
        self.call(&format!("update of container {id}"), &["update", "--cpu-shares", shares, id], "See the engine's message").map(|_| ())
    }

    /// The engine's own way to set CPUs and quota, where the cgroup's files cannot be written. An empty list leaves the CPUs
    /// as they are: the engine has no way to empty it.
    ///
    /// # Errors
    /// [`ServerError::Unavailable`] with what the engine says.
    pub fn update(&self, id: &str, cpus: &str, quota_us: i64, period_us: u64) -> Result<(), ServerError> {
        let (quota, period) = (quota_us.to_string(), period_us.to_string());
        let mut args = vec!["update", "--cpu-period", &period, "--cpu-quota", &quota];
        if !cpus.is_empty() {
            args.extend(["--cpuset-cpus", cpus]);
        }
        args.push(id);
        self.call(&format!("update of container {id}"), &args, "See the engine's message").map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An engine that does not answer gives one line with what it said and how to start it.
    #[test]
    fn a_silent_engine_is_one_clear_error() {
        let err = Engine::at("/bin/false").unwrap_err().to_string();
        assert!(err.contains("/bin/false") && err.contains("systemctl start docker"), "{err}");
        let err = Engine::at("/nonexistent/docker").unwrap_err().to_string();
        assert!(err.contains("No such file") && err.lines().count() == 1, "{err}");
    }

    /// One that hangs is given up, and does not stay behind.
    #[test]
    fn a_hanging_engine_is_given_up() {
        let engine = Engine { program: "sleep".into(), patience: Duration::from_millis(20) };
        assert_eq!(engine.raw(&["1000"]).unwrap_err(), "no answer within 0.02 s");
    }

    /// Who may not use the engine is told to join its group; who points at an engine that is not there is told the variable.
    #[test]
    fn remedies_fit_the_cause() {
        let denied = "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock";
        assert!(remedy_for(denied, None).unwrap().contains("group docker"));
        let dead = "Cannot connect to the Docker daemon at tcp://127.0.0.1:9";
        assert!(remedy_for(dead, Some("tcp://127.0.0.1:9")).unwrap().starts_with("DOCKER_HOST is \"tcp://127.0.0.1:9\""));
        assert_eq!(remedy_for(dead, Some("")).as_deref(), Some(START));
        assert_eq!(remedy_for("manifest unknown", Some("tcp://127.0.0.1:9")), None);
    }

    /// The engine's question is no cause, and would stand before the remedy's sentence.
    #[test]
    fn a_cause_does_not_end_with_a_question() {
        let said = "Cannot connect to the Docker daemon at unix:///none. Is the docker daemon running?\n";
        let out = Command::new("printf").arg("%s").arg(said).output().unwrap();
        assert_eq!(last_line(&out), "Cannot connect to the Docker daemon at unix:///none");
    }
}
