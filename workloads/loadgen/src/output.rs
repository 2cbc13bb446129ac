//! One rule for files that a command writes for its caller. It is that of surefootd, too, and the lab's Python has the same words.
//!
//! - What is there and no plain file (a device, a FIFO, a socket, a folder, a link to anything) is left alone.
//! - Nobody else's link on the way to it is followed.
//! - What the same command reads is left alone.
//! - An existing file gives way only where the caller said so.
//!
//! Bytes go to a new file beside it, which takes the name when it is whole or, for a file that others follow, when its writer begins. So
//! nothing that is there is ever opened, and what somebody else put there is neither followed nor emptied.

use crate::error::{bad, failed, LoadgenError};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use surefoot_io::way::{open_to_others, way, LINK_REMEDY};

/// Ending of files that are being written; left behind by a crash, they are nobody's.
pub const TEMPORARY: &str = ".tmp";
/// A folder that is an input is looked through so deep, and for so many entries: bundles, sets and profiles are smaller.
const DEPTH: u32 = 3;
const MOST_ENTRIES: usize = 20_000;

/// What a command reads: by which option, and where.
pub type Input<'a> = (&'a str, &'a Path);

/// Why a file is not written.
#[derive(Debug)]
pub enum Blocked {
    /// Something is in the way: what, and what to do. The caller's to mend.
    There(String),
    /// The system refuses.
    Io(io::Error),
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocked::There(why) => f.write_str(why),
            Blocked::Io(e) => write!(f, "{e}"),
        }
    }
}

impl Blocked {
    /// The same as an error about the file that an option names.
    pub fn of_option(self, option: &str, path: &Path) -> LoadgenError {
        match self {
            Blocked::There(why) => bad(format!("{option} {}: {why}", path.display())),
            Blocked::Io(e) => failed(format!("cannot write {option} {}: {e}", path.display())),
        }
    }
}

impl From<io::Error> for Blocked {
    fn from(e: io::Error) -> Self {
        Blocked::Io(e)
    }
}

fn kind(t: fs::FileType) -> &'static str {
    match () {
        () if t.is_dir() => "a folder",
        () if t.is_fifo() => "a FIFO",
        () if t.is_socket() => "a socket",
        () => "a device",
    }
}

/// That `path` is free, or a plain file.
///
/// # Errors
/// What it is, and what to do.
pub fn plain(path: &Path) -> Result<Option<fs::Metadata>, String> {
    match fs::symlink_metadata(path) {
        // Why it cannot be looked at is told when it is made.
        Err(_) => Ok(None),
        Ok(m) if m.is_symlink() => Err(format!("is a link. {LINK_REMEDY}")),
        Ok(m) if !m.is_file() => Err(format!("is {} and no plain file. Give a path where nothing is", kind(m.file_type()))),
        Ok(m) => Ok(Some(m)),
    }
}

/// That `path` may be written.
///
/// # Errors
/// What is in the way, and what to do.
pub fn check(path: &Path, inputs: &[Input<'_>], overwrite: bool) -> Result<(), String> {
    let Some(there) = plain(path)? else { return Ok(()) };
    if let Some((option, input)) = inputs.iter().find(|(_, input)| is_or_holds(input, &there)) {
        return Err(format!("is what this command reads ({option} {}). Give another path", input.display()));
    }
    if overwrite {
        return Ok(());
    }
    Err("is there already. Give --overwrite to replace it, or another path".into())
}

/// Whether `input` is that file, by whatever name, or a folder with it.
fn is_or_holds(input: &Path, file: &fs::Metadata) -> bool {
    let same = |m: &fs::Metadata| (m.dev(), m.ino()) == (file.dev(), file.ino());
    let mut left = MOST_ENTRIES;
    let mut todo = vec![(input.to_path_buf(), DEPTH)];
    while let Some((path, depth)) = todo.pop() {
        let Ok(m) = fs::metadata(&path) else { continue };
        if same(&m) {
            return true;
        }
        if m.is_dir() && depth > 0 {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten().take(left);
            let before = todo.len();
            todo.extend(entries.map(|e| (e.path(), depth - 1)));
            left -= todo.len() - before;
        }
    }
    false
}

/// A new file at `temporary`: one that a crash left there is taken away, and nothing that is there is opened.
///
/// # Errors
/// The system's.
pub fn new_file(temporary: &Path) -> io::Result<File> {
    let new = || OpenOptions::new().write(true).create_new(true).open(temporary);
    new().or_else(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => fs::remove_file(temporary).and_then(|()| new()),
        _ => Err(e),
    })
}

/// A file that is being written. Without [`Output::place`] nothing of it is left.
#[derive(Debug)]
pub struct Output {
    at: PathBuf,
    temporary: PathBuf,
    file: File,
    overwrite: bool,
    placed: bool,
    /// The caller's words for it, and the folder that it is in, whatever becomes of the way there.
    path: PathBuf,
    folder: Option<OwnedFd>,
}

/// The folder of `path`, opened; None where there is none.
///
/// # Errors
/// A link of somebody else's on the way; else the system's.
fn folder_of(path: &Path) -> Result<Option<OwnedFd>, Blocked> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let way = way(folder, open_to_others())?;
    match way.link_of_others() {
        Some(link) => Err(Blocked::There(format!("{link}. {LINK_REMEDY}"))),
        // Why it is not there is told when the file is made.
        None => Ok(way.missing.is_empty().then_some(way.end)),
    }
}

impl Output {
    /// # Errors
    /// What is in the way; else where the file cannot be made.
    pub fn create(path: &Path, inputs: &[Input<'_>], overwrite: bool) -> Result<Self, Blocked> {
        check(path, inputs, overwrite).map_err(Blocked::There)?;
        let mut name: OsString = path.file_name().unwrap_or_default().into();
        name.push(format!(".{}{TEMPORARY}", std::process::id()));
        let temporary = path.with_file_name(name);
        let file = new_file(&temporary)?;
        Ok(Output { at: path.into(), temporary, file, overwrite, placed: false, path: path.into(), folder: None })
    }

    /// As [`Output::create`], for the load generator's own options; in the folder that is found now, which no link of others leads to.
    ///
    /// # Errors
    /// `BadInput` or `Failed`, naming option and path.
    pub fn for_option(option: &str, path: &Path, inputs: &[Input<'_>], overwrite: bool) -> Result<Self, LoadgenError> {
        let create = || {
            let folder = folder_of(path)?.filter(|_| Path::new("/proc/self/fd").is_dir());
            let at =
                folder.as_ref().zip(path.file_name()).map(|(f, name)| PathBuf::from(format!("/proc/self/fd/{}", f.as_raw_fd())).join(name));
            let mut out = Self::create(at.as_deref().unwrap_or(path), inputs, overwrite)?;
            (out.path, out.folder) = (path.into(), folder);
            Ok(out)
        };
        create().map_err(|e: Blocked| e.of_option(option, path))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the bytes go.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// All of it is there, on disk, and has its name.
    ///
    /// # Errors
    /// As [`Output::place`].
    pub fn finish(&mut self) -> Result<(), Blocked> {
        self.file.sync_all()?;
        self.place()
    }

    /// It has its name from now on; what is written afterwards is in it, too.
    ///
    /// # Errors
    /// What has come in the way meanwhile; else the system's.
    pub fn place(&mut self) -> Result<(), Blocked> {
        if !self.placed {
            check(&self.at, &[], self.overwrite).map_err(Blocked::There)?;
            fs::rename(&self.temporary, &self.at)?;
            self.placed = true;
        }
        Ok(())
    }
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.placed {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a pipe to be found in the way")]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Whatever is no plain file is named by its kind and stays, whether or not the caller said to overwrite.
    #[test]
    fn what_is_no_plain_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        fs::write(at("plain"), "precious").unwrap();
        fs::create_dir(at("folder")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let fifo = std::ffi::CString::new(at("fifo").to_str().unwrap()).unwrap();
        // SAFETY: a string that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        symlink(at("plain"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        symlink("/dev/null", at("null")).unwrap();
        let before = names(dir.path());
        for overwrite in [false, true] {
            for (name, words) in [
                ("/dev/null", "is a device and no plain file"),
                ("folder", "is a folder and no plain file"),
                ("socket", "is a socket and no plain file"),
                ("fifo", "is a FIFO and no plain file"),
                ("link", "is a link"),
                ("dangling", "is a link"),
                ("null", "is a link"),
            ] {
                let said = Output::create(&dir.path().join(name), &[], overwrite).unwrap_err();
                assert!(matches!(&said, Blocked::There(s) if s.contains(words)), "{name}: {said}");
            }
        }
        assert_eq!((names(dir.path()), fs::read_to_string(at("plain")).unwrap()), (before, "precious".into()));
        assert!(!at("nowhere").exists());
    }

    /// An existing file stays unless the caller says otherwise, an input in any case and by any name; a new one is there when it is placed.
    #[test]
    fn files_give_way_only_when_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        fs::write(at("old"), "old").unwrap();
        let said = check(&at("old"), &[], false).unwrap_err();
        assert!(said.contains("is there already. Give --overwrite"), "{said}");
        fs::create_dir_all(at("bundle/models")).unwrap();
        fs::write(at("bundle/models/a"), "input").unwrap();
        fs::hard_link(at("bundle/models/a"), at("another-name")).unwrap();
        symlink(at("bundle"), at("by-link")).unwrap();
        for input in ["bundle", "bundle/models/a", "by-link"] {
            for out in ["bundle/models/a", "another-name"] {
                let said = check(&at(out), &[("--config", &at("old")), ("--bundle", &at(input))], true).unwrap_err();
                assert!(said.contains("is what this command reads (--bundle "), "{said}");
            }
        }
        let mut out = Output::create(&at("old"), &[("--bundle", &at("bundle"))], true).unwrap();
        out.write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(at("old")).unwrap(), "old");
        out.place().unwrap();
        out.write_all(b"er").unwrap();
        assert_eq!(fs::read_to_string(at("old")).unwrap(), "newer");
        drop(Output::create(&at("never"), &[], false).unwrap());
        // Somebody else was first.
        let mut late = Output::create(&at("late"), &[], false).unwrap();
        fs::write(at("late"), "precious").unwrap();
        assert!(late.place().is_err());
        drop(late);
        assert_eq!(fs::read_to_string(at("late")).unwrap(), "precious");
        assert_eq!(names(dir.path()), ["another-name", "bundle", "by-link", "late", "old"]);
        assert!(matches!(Output::create(&at("none/x"), &[], false).unwrap_err(), Blocked::Io(_)));
    }

    /// Another user's link on the way is not followed, and a file stays in the folder that was found, whatever has its path by then.
    #[test]
    fn nobody_leads_an_output_elsewhere() {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return eprintln!("NOT RUN: nobody_leads_an_output_elsewhere: needs root: run the tests as root");
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        ["nd", "root", "nd/out"].iter().for_each(|n| fs::create_dir(at(n)).unwrap());
        symlink(at("root"), at("nd/lnk")).unwrap();
        ["nd", "nd/lnk", "nd/out"].iter().for_each(|n| std::os::unix::fs::lchown(at(n), Some(65_534), None).unwrap());
        for overwrite in [false, true] {
            let path = at("nd/lnk/lg.json");
            let said = Output::for_option("--out", &path, &[], overwrite).unwrap_err();
            let words = format!(
                "--out {}: {}: the link belongs to user 65534. Give the path that it leads to",
                path.display(),
                at("nd/lnk").display()
            );
            assert!(matches!(&said, LoadgenError::BadInput(_)) && said.to_string() == words, "{said}");
        }
        let path = at("nd/out/lg.json");
        let mut out = Output::for_option("--out", &path, &[], false).unwrap();
        fs::rename(at("nd/out"), at("nd/moved")).unwrap();
        symlink(at("root"), at("nd/out")).unwrap();
        out.write_all(b"x").unwrap();
        out.finish().unwrap();
        assert_eq!((out.path(), fs::read_to_string(at("nd/moved/lg.json")).unwrap().as_str()), (path.as_path(), "x"));
        assert!(names(&at("root")).is_empty() && names(&at("nd/moved")) == ["lg.json"]);
    }

    /// What somebody put at the name that a file has while it is written is not followed, and not emptied.
    #[test]
    fn the_name_meanwhile_is_no_trap() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, temporary) = (dir.path().join("victim"), dir.path().join(format!("out.{}{TEMPORARY}", std::process::id())));
        fs::write(&victim, "precious").unwrap();
        let ways: [fn(&Path, &Path) -> io::Result<()>; 2] = [|a, b| symlink(a, b), |a, b| fs::hard_link(a, b)];
        for make in ways {
            make(&victim, &temporary).unwrap();
            let mut out = Output::create(&dir.path().join("out"), &[], true).unwrap();
            out.write_all(b"x").unwrap();
            out.place().unwrap();
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        }
    }
}
