//! Kernel files for a process that has the rights itself, but acts on what a lesser user could have written: a journal or a safe layout
//! in that user's folder. The same rules as for a client of the actuator: what the allow-list lets through, beneath the mounts.

use super::allow::{Allow, Refused};
use super::beneath::Beneath;
use super::deadman::own_folder;
use super::known::Known;
use super::record::Record;
use super::serve::Hands;
use crate::files::{Files, HostFiles, SharedFiles};
use crate::local::BOOT_ID;
use crate::root::Root;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Kernel files, of which only what the list names is changed.
#[derive(Debug)]
pub struct Guarded {
    hands: Hands,
}

impl Guarded {
    /// `actuator`: the folder of the actuator that the other user writes through, if there is one.
    ///
    /// # Errors
    /// A mount of the list that cannot be opened; a folder or record of the actuator that cannot be believed.
    pub fn new(allow: Allow, root: Root, actuator: Option<&Path>) -> io::Result<Self> {
        let files: SharedFiles = Arc::new(Beneath::open(allow.dirs())?);
        let boot = root.read(BOOT_ID).unwrap_or_default();
        let record = match actuator.map(own_folder) {
            // It has never run.
            Some(Err(e)) if e.kind() == io::ErrorKind::NotFound => None,
            folder => folder.transpose()?.map(|dir| Record::open(dir, &boot, files.clone(), root.clone())).transpose()?,
        };
        let known = Known { record };
        let mut hands = Hands::new(allow, files, root);
        hands.word_of_others = Some(Arc::new(known));
        Ok(Guarded { hands })
    }

    /// Below one of the mounts: looked up there, and nowhere else. What lies elsewhere (/proc, /sys) is no lesser user's.
    fn files(&self, path: &Path) -> &dyn Files {
        match self.hands.allow.dirs().any(|d| path.starts_with(d)) {
            true => self.hands.files.as_ref(),
            false => &HostFiles,
        }
    }

    fn judged<T>(&self, path: &Path, f: impl FnOnce(&str) -> Result<io::Result<T>, Refused>) -> io::Result<T> {
        let text = path.to_str().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        f(text).unwrap_or_else(|rule| Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("refused: {rule}"))))
    }
}

impl Files for Guarded {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files(path).read(path)
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        self.judged(path, |p| self.hands.write(p, text))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.judged(path, |p| self.hands.allow.group(p).map(|()| self.hands.make(path)))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.judged(path, |p| self.hands.allow.group(p).map(|()| self.hands.remove(path)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let to_text = to.to_str().unwrap_or("");
        self.judged(from, |p| self.hands.allow.rename(p, to_text).map(|()| self.hands.rename(from, to)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.files(dir).list(dir)
    }

    fn folders(&self, dir: &Path) -> Vec<String> {
        self.files(dir).folders(dir)
    }

    fn is_dir(&self, path: &Path) -> bool {
        self.files(path).is_dir(path)
    }

    fn is_file(&self, path: &Path) -> bool {
        self.files(path).is_file(path)
    }

    fn writable(&self, path: &Path) -> bool {
        self.judged(path, |p| self.hands.allow.open(p).map(|()| Ok(self.hands.files.writable(path)))).unwrap_or(false)
    }
}
