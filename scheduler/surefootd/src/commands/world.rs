//! `surefootd world draw`: a world as a folder, for `--profiles` and `--workloads`.

use crate::base::cli::{WorldCommand, WorldDraw};
use crate::base::error::{Error, Result};
use crate::base::files::{self, NewFolders, TEMPORARY};
use crate::base::say;
use crate::line;
use crate::stage::world;
use serde_json::Value;
use std::io::Write as _;
use std::path::Path;
use surefoot_vserver::world::{Range, World, WorldId};

/// # Errors
/// Bad input or a failure, on one line.
pub fn run(args: &crate::base::cli::World) -> Result<()> {
    match &args.command {
        WorldCommand::Draw(args) => draw(args),
    }
}

fn draw(args: &WorldDraw) -> Result<()> {
    let range: Range = args.range.parse().map_err(|e| Error::BadInput(format!("--range: {e}")))?;
    let drawn = world::draw(WorldId { range, number: args.seed })?;
    let manifest = world::manifest(&drawn);
    if args.out.symlink_metadata().is_ok() {
        let out = args.out.display();
        return Err(Error::BadInput(format!(
            "--out {out}: is there already. Give another folder, or remove it: it is drawn again in no time"
        )));
    }
    let parent = args.out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = args.out.file_name() else {
        return Err(Error::BadInput(format!("--out {}: names no folder. Give the path of a new one", args.out.display())));
    };
    let _above = NewFolders::create(parent)?;
    // Of this process alone: two that draw at once are not in each other's way.
    let part_of = |pid: u32| parent.join(format!(".{}.{pid}{TEMPORARY}", name.to_string_lossy()));
    let part = part_of(std::process::id());
    for left in left_by_kills(parent, &name.to_string_lossy()).into_iter().map(part_of) {
        let _ = std::fs::remove_dir_all(left);
    }
    let placed = write(&part, &drawn, &manifest).and_then(|()| {
        // A folder is never replaced but by this: an empty one that came meanwhile.
        std::fs::rename(&part, &args.out).map_err(|e| Error::io(&args.out, "cannot be put in place", &e))
    });
    if let Err(e) = placed {
        let _ = std::fs::remove_dir_all(&part);
        return Err(e);
    }
    files::sync_folder(parent)?;
    if args.json {
        return say::json(&manifest);
    }
    say::print(&page(&drawn, &args.out))
}

/// Processes that drew a world of this name here, and ended before it was in place.
fn left_by_kills(parent: &Path, name: &str) -> Vec<u32> {
    let pid = |e: std::fs::DirEntry| e.file_name().to_str()?.strip_prefix(&format!(".{name}."))?.strip_suffix(TEMPORARY)?.parse().ok();
    let all = std::fs::read_dir(parent).into_iter().flatten().flatten().filter_map(pid);
    all.filter(|pid: &u32| !Path::new("/proc").join(pid.to_string()).exists()).collect()
}

/// All files of a world, in a folder that must not be there yet.
fn write(folder: &Path, drawn: &World, manifest: &Value) -> Result<()> {
    let made = |path: &Path, made: std::io::Result<()>| made.map_err(|e| Error::io(path, "cannot be created", &e));
    made(folder, std::fs::create_dir(folder))?;
    let manifest = (world::MANIFEST.to_string(), format!("{manifest:#}\n"));
    for (path, text) in drawn.files.iter().chain([&manifest]) {
        let file = folder.join(path);
        if let Some(inner) = file.parent().filter(|p| !p.is_dir()) {
            made(inner, std::fs::create_dir(inner))?;
        }
        files::sync(&files::put(&file, |f| f.write_all(text.as_bytes()))?)?;
    }
    Ok(())
}

fn page(w: &World, out: &Path) -> String {
    let p = &w.platform;
    let (dir, name) = (out.display(), &p.name);
    let mut page = String::new();
    line!(page, "world {}: {} ({} logical CPUs, {} GB/s)", w.id, p.title, p.logical_cpus(), p.mem.bw_gbs);
    for s in w.profiles.services.values() {
        match s.lc() {
            Some(lc) => {
                let max = lc.max_load_rps.get(name).copied().unwrap_or(0.0);
                line!(page, "  {:<14} {}; target {} ms, max load {max} RPS", s.name, s.title, lc.qos_target_ms);
            }
            None => line!(page, "  {:<14} {}", s.name, s.title),
        }
    }
    let held = |what: &str, of: &Option<String>| of.as_ref().map(|s| format!("{s} {what}"));
    let holds: Vec<String> = [held("has a floor", &w.floor), held("sheds", &w.sheds)].into_iter().flatten().collect();
    if !holds.is_empty() {
        line!(page, "{}", holds.join("; "));
    }
    line!(page, "written to {dir}. Try it:");
    line!(page, "  surefootd eval --profiles {dir} --platform {name} --workloads {dir}/{} --policies parties --out OUT", world::WORKLOADS);
    line!(page, "  surefootd sweep {dir}/campaign.toml --profiles {dir} --server virtual:{name} --out OUT");
    page
}
