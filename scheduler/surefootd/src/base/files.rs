//! Files that are whole or not there: temporary name, fsync, rename, fsync of the folder.
//!
//! Files that the caller names ([`Output`]) follow one rule, which is [`surefoot_loadgen::output`]'s. In folders of results the names are
//! ours: there a new result replaces a plain file, and nothing else.

use crate::base::error::{Error, Result};
use nix::fcntl::OFlag;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use surefoot_linux::own::{self, Folder};
pub use surefoot_loadgen::output::TEMPORARY;
use surefoot_loadgen::output::{self, Blocked, Input};

/// Write `bytes` to `path` durably, all or nothing.
///
/// # Errors
/// [`Error::Failed`]; the temporary file is gone then, and `path` is what it was.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    sync(&put(path, |f| f.write_all(bytes))?)
}

/// Let `write` fill `path`, all or nothing; durable once the folder is synced ([`sync`]), which many files can share. Returns that folder.
///
/// # Errors
/// As [`write_whole`].
pub fn put(path: &Path, write: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<Folder> {
    let fail = |e: std::io::Error| own_error(path, "cannot be written", &e);
    let (folder, name) = Folder::results_of(path).map_err(fail)?;
    let temporary = format!("{name}{TEMPORARY}");
    output::plain(&pinned(&folder, name, path)).map_err(|why| Error::BadInput(format!("{}: {why}", path.display())))?;
    let written = (|| {
        fault::step()?;
        // Left by a crash, or put there by somebody: neither opened nor followed.
        folder.remove(&temporary)?;
        let mut f = folder.new_file(&temporary, OFlag::O_WRONLY, FILE_MODE)?;
        write(&mut f)?;
        fault::cut(&f, 0)?;
        f.sync_all()?;
        fault::step()?;
        folder.rename(&temporary, name)?;
        fault::step()
    })();
    if let Err(e) = written {
        if !fault::dead() {
            let _ = folder.remove(&temporary);
        }
        return Err(fail(e));
    }
    Ok(folder)
}

/// A name in the folder that was opened; by its path where there is no /proc (a bare chroot).
fn pinned(folder: &Folder, name: &str, path: &Path) -> PathBuf {
    if Path::new("/proc/self/fd").is_dir() {
        folder.pinned(name)
    } else {
        path.into()
    }
}

/// Mode of new files, less the umask.
const FILE_MODE: u32 = 0o666;

/// What is in the way of `path`, which an option names, as an error.
fn blocked(option: &str, path: &Path, why: Blocked) -> Error {
    match why {
        Blocked::There(why) => Error::BadInput(format!("{option} {}: {why}", path.display())),
        Blocked::Io(e) => Error::io(path, "cannot be written", &e),
    }
}

/// What a command reads: by which option or field, and where. What it writes is none of it.
#[derive(Clone, Debug, Default)]
pub struct Sources(Vec<(&'static str, PathBuf)>);

impl Sources {
    pub fn and(mut self, option: &'static str, path: Option<&Path>) -> Self {
        self.0.extend(path.filter(|p| !p.as_os_str().is_empty()).map(|p| (option, p.to_path_buf())));
        self
    }

    pub fn with(mut self, more: &Sources) -> Self {
        self.0.extend(more.0.iter().cloned());
        self
    }

    fn all(&self) -> Vec<Input<'_>> {
        self.0.iter().map(|(option, path)| (*option, path.as_path())).collect()
    }

    /// That none of `files` is one of them.
    ///
    /// # Errors
    /// [`Error::BadInput`].
    pub fn check(&self, option: &str, files: impl IntoIterator<Item = PathBuf>) -> Result<()> {
        let all = self.all();
        files.into_iter().try_for_each(|file| {
            output::check(&file, &all, true).map_err(|why| Error::BadInput(format!("{option} {}: {why}", file.display())))
        })
    }
}

/// A file that an option names, while it is written. Without [`Output::place`] nothing of it is left.
pub struct Output {
    option: &'static str,
    path: PathBuf,
    /// In the folder that was opened at the start, whatever becomes of the way to it.
    inner: output::Output,
    folder: Folder,
}

impl Output {
    /// # Errors
    /// [`Error::BadInput`] for what is in the way, [`Error::Failed`] where it cannot be made.
    pub fn create(option: &'static str, path: &Path, inputs: &Sources, overwrite: bool) -> Result<Self> {
        let refused = |e: std::io::Error| match own_error(path, "cannot be written", &e) {
            Error::BadInput(why) => Error::BadInput(format!("{option} {why}")),
            failed => failed,
        };
        let (folder, name) = Folder::results_of(path).map_err(refused)?;
        let inner = output::Output::create(&pinned(&folder, name, path), &inputs.all(), overwrite).map_err(|e| blocked(option, path, e))?;
        Ok(Output { option, path: path.into(), inner, folder })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Another handle of the same file, for a writer that owns its file.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn handle(&self) -> Result<File> {
        self.inner.file().try_clone().map_err(|e| Error::io(self.path(), "cannot be written", &e))
    }

    /// It has its name from now on; what is written afterwards is in it, too.
    ///
    /// # Errors
    /// As [`Output::create`].
    pub fn place(&mut self) -> Result<()> {
        let done = self.inner.place();
        done.map_err(|e| blocked(self.option, &self.path, e))
    }

    /// All of it is there, and outlasts a power cut.
    ///
    /// # Errors
    /// As [`Output::create`].
    pub fn finish(&mut self) -> Result<()> {
        self.inner.finish().map_err(|e| blocked(self.option, &self.path, e))?;
        sync(&self.folder)
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// That two options do not name one file.
///
/// # Errors
/// [`Error::BadInput`].
pub fn each_its_own(outputs: &[(&str, Option<&Path>)]) -> Result<()> {
    // What is not there yet has a folder that is.
    let place = |p: &Path| {
        let folder = p.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some((folder.canonicalize().ok()?, p.file_name()?.to_os_string()))
    };
    let places: Vec<_> = outputs.iter().filter_map(|(option, path)| Some((option, place((*path)?)?))).collect();
    for (n, (option, at)) in places.iter().enumerate() {
        if let Some((other, _)) = places[..n].iter().find(|(_, a)| a == at) {
            return Err(Error::BadInput(format!("{other} and {option} name one file. Give each its own")));
        }
    }
    Ok(())
}

/// An error about a file of ours in a folder that somebody else may write in: what such a file may not be is the caller's to mend.
pub fn own_error(path: &Path, doing: &str, e: &std::io::Error) -> Error {
    if e.get_ref().is_some_and(|e| e.is::<own::Refusal>()) {
        let (cause, remedy) = own::cause_and_remedy(e, "");
        return Error::BadInput(format!("{}: {cause}. {remedy}", path.display()));
    }
    Error::io(path, doing, e)
}

/// A file to append to, which is one of ours: `is_ours` judges by how it begins. `of` opens its folder.
///
/// # Errors
/// [`Error::BadInput`] for something else at that path, which stays as it is; [`Error::Failed`] where it cannot be opened.
pub fn open_ours<'a>(
    path: &'a Path,
    of: impl FnOnce(&'a Path) -> std::io::Result<(Folder, &'a str)>,
    what: &str,
    is_ours: impl FnOnce(&[u8]) -> bool,
) -> Result<(Folder, String, File)> {
    let fail = |e: std::io::Error| own_error(path, "cannot be opened", &e);
    let (folder, name) = of(path).map_err(fail)?;
    let file = folder.append(name).map_err(fail)?;
    let name = name.to_string();
    if !is_ours(&head(&file).map_err(fail)?) {
        let path = path.display();
        return Err(Error::BadInput(format!("{path}: is there and no {what}, so it stays as it is. Move it away, or give another path")));
    }
    Ok((folder, name, file))
}

/// A file of ours that is there, in a folder of results.
///
/// # Errors
/// As [`own::Folder::file`].
pub fn open_own(path: &Path, flags: OFlag) -> std::io::Result<File> {
    let (folder, name) = Folder::results_of(path)?;
    folder.file(name, flags)
}

/// Enough to know a file by.
const HEAD_BYTES: usize = 64 << 10;

/// How a file begins; it is read from its start afterwards.
///
/// # Errors
/// The system's.
pub fn head(mut file: &File) -> std::io::Result<Vec<u8>> {
    use std::io::{Read, Seek};
    let mut head = vec![];
    file.rewind()?;
    file.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    file.rewind()?;
    Ok(head)
}

/// Make renames and removals in a folder durable: in the very folder that was opened, whatever has its path by now.
///
/// # Errors
/// [`Error::Failed`].
pub fn sync(folder: &Folder) -> Result<()> {
    fault::step().and_then(|()| folder.sync()).map_err(|e| Error::io(folder.path(), "cannot be synced", &e))
}

/// The same for the folder of results at a path. What is no folder is refused, and never waited for.
///
/// # Errors
/// [`Error::BadInput`] behind another user's link, else [`Error::Failed`].
pub fn sync_folder(path: &Path) -> Result<()> {
    sync(&Folder::for_results(path).map_err(|e| own_error(path, "cannot be synced", &e))?)
}

/// Where a process can die, for tests: after a drawn number of writes nothing more reaches the disk.
#[cfg(not(test))]
pub mod fault {
    use std::{fs::File, io::Result};

    pub fn step() -> Result<()> {
        Ok(())
    }

    pub fn cut(_: &File, _: u64) -> Result<()> {
        Ok(())
    }

    pub fn dead() -> bool {
        false
    }
}

#[cfg(test)]
pub mod fault {
    use std::cell::Cell;
    use std::fs::File;
    use std::io::{Error, Result};

    thread_local! {
        /// Steps that are left, and which share of the write that it dies in (of 256) reaches the disk. None: no fault is planned.
        static PLAN: Cell<Option<(u64, u8)>> = const { Cell::new(None) };
        /// Steps of this thread so far.
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    /// Die at the step after so many; None: live. Returns the steps since it was last called.
    pub fn plan(after: Option<(u64, u8)>) -> u64 {
        PLAN.set(after);
        STEPS.replace(0)
    }

    pub fn dead() -> bool {
        PLAN.get().is_some_and(|(left, _)| left == 0)
    }

    pub fn step() -> Result<()> {
        STEPS.set(STEPS.get() + 1);
        let Some((left, torn)) = PLAN.get() else { return Ok(()) };
        PLAN.set(Some((left.saturating_sub(1), torn)));
        if left <= 1 {
            return Err(Error::other("killed, as the test wants it"));
        }
        Ok(())
    }

    /// A step in the middle of a write that began at `start`.
    pub fn cut(file: &File, start: u64) -> Result<()> {
        step().inspect_err(|_| {
            if let (Ok(m), Some((_, torn))) = (file.metadata(), PLAN.get()) {
                let _ = file.set_len(start + m.len().saturating_sub(start) * u64::from(torn) / 256);
            }
        })
    }
}

/// Folders made for a result. Those that are still empty when this is dropped are removed again: nothing came of them.
#[derive(Debug)]
pub struct NewFolders(Vec<PathBuf>);

impl NewFolders {
    /// Make `folder` with all above it.
    ///
    /// # Errors
    /// As [`create_folder`].
    pub fn create(folder: &Path) -> Result<Self> {
        let missing = folder.ancestors().filter(|p| !p.as_os_str().is_empty() && !p.exists());
        let made = NewFolders(missing.map(Path::to_path_buf).collect());
        create_folder(folder)?;
        Ok(made)
    }
}

impl Drop for NewFolders {
    fn drop(&mut self) {
        // Deepest first; one that holds something refuses.
        self.0.iter().for_each(|p| drop(std::fs::remove_dir(p)));
    }
}

/// # Errors
/// [`Error::BadInput`] where a file is in the way, else [`Error::Failed`].
pub fn create_folder(folder: &Path) -> Result<()> {
    if let Some(file) = folder.ancestors().find(|p| p.exists() && !p.is_dir()) {
        let (folder, file) = (folder.display(), file.display());
        return Err(Error::BadInput(format!("{folder}: cannot be a folder, {file} is a file. Give another folder")));
    }
    let way = own::way(folder, own::open_to_others());
    if let Some(link) = way.as_ref().ok().and_then(own::Way::link_of_others) {
        return Err(Error::BadInput(format!("{}: {link}. {}", folder.display(), own::LINK_REMEDY)));
    }
    std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, "cannot be created", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in the way of a folder is named, and what is to be done.
    #[test]
    fn a_file_is_no_folder() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("results");
        write_whole(&file, b"x").unwrap();
        for folder in [file.clone(), file.join("a/b")] {
            let e = NewFolders::create(&folder).err().unwrap();
            let says = format!("{}: cannot be a folder, {} is a file. Give another folder", folder.display(), file.display());
            assert_eq!((e.exit_code(), e.to_string()), (2, says));
        }
    }

    /// What is synced is the folder that was written in: a FIFO that has its path by then is not opened, which would wait for ever.
    #[test]
    fn a_folder_that_is_exchanged_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let (at, moved) = (dir.path().join("d"), dir.path().join("moved"));
        std::fs::create_dir(&at).unwrap();
        let (done, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut out = Output::create("--out", &at.join("r.parquet"), &Sources::default(), false).unwrap();
            let folder = put(&at.join("rows"), |f| {
                std::fs::rename(&at, &moved)?;
                nix::unistd::mkfifo(&at, nix::sys::stat::Mode::S_IRWXU)?;
                f.write_all(b"rows")
            });
            out.write_all(b"x").unwrap();
            let all =
                (out.finish().is_ok(), sync(&folder.unwrap()).is_ok(), sync_folder(&at).is_err(), write_whole(&at.join("x"), b"").is_err());
            let whole = ["r.parquet", "rows"].map(|n| moved.join(n).is_file());
            done.send((all, whole)).unwrap();
        });
        let (all, whole) = told.recv_timeout(std::time::Duration::from_secs(60)).expect("it hangs");
        assert_eq!((all, whole), ((true, true, true, true), [true, true]));
    }

    /// A link in the place of the temporary file is not written through.
    #[test]
    fn a_planted_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, file) = (dir.path().join("victim"), dir.path().join("out"));
        std::fs::write(&victim, b"as it was").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("out.tmp")).unwrap();
        write_whole(&file, b"new").unwrap();
        assert_eq!((std::fs::read(&victim).unwrap(), std::fs::read(&file).unwrap()), (b"as it was".to_vec(), b"new".to_vec()));
        assert!(!dir.path().join("out.tmp").exists());
    }

    /// A result that could not be written leaves no empty folder; a folder with something in it, or one that was there, stays.
    #[test]
    fn empty_folders_go() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        drop(NewFolders::create(&deep).unwrap());
        assert!(!dir.path().join("a").exists());
        std::fs::create_dir(dir.path().join("a")).unwrap();
        drop(NewFolders::create(&deep).unwrap());
        assert!(dir.path().join("a").exists() && !deep.exists());
        let made = NewFolders::create(&deep).unwrap();
        write_whole(&deep.join("file"), b"x").unwrap();
        drop(made);
        assert!(deep.join("file").exists());
    }
}
