//! Facts about this host for the manifest.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use surefoot_io::input::{self, KERNEL_BYTES};

/// Kernel, CPU and memory; what cannot be read is left out.
pub fn facts() -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    if let Ok(u) = nix::sys::utsname::uname() {
        out.insert("os".into(), u.sysname().to_string_lossy().into());
        out.insert("kernel".into(), u.release().to_string_lossy().into());
        out.insert("machine".into(), u.machine().to_string_lossy().into());
    }
    // Those of the host, not what this process may use of them: it may be kept on few CPUs, or on a quota.
    let online = surefoot_linux::discover::online(&surefoot_linux::Root::default()).map(|set| set.len() as usize);
    if let Ok(n) = online.or_else(|_| std::thread::available_parallelism().map(usize::from)) {
        out.insert("cpus".into(), n.into());
    }
    if let Some(m) = kernel("cpuinfo").and_then(|t| field(&t, "model name")) {
        out.insert("cpu_model".into(), m.into());
    }
    // What was turned on or off at boot (rdt=, isolcpus=, mitigations=) decides what was measured.
    if let Some(line) = kernel("cmdline") {
        out.insert("kernel_command_line".into(), line.trim().into());
    }
    let memory_kb = kernel("meminfo").and_then(|t| field(&t, "MemTotal"));
    if let Some(kb) = memory_kb.and_then(|m| m.split_whitespace().next()?.parse::<u64>().ok()) {
        out.insert("memory_bytes".into(), kb.saturating_mul(1024).into());
    }
    out
}

fn kernel(name: &str) -> Option<String> {
    input::text(Path::new(&format!("/proc/{name}")), KERNEL_BYTES).ok()
}

fn field(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}
