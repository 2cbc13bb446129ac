//! The one way in which this crate changes kernel files (cgroups, resctrl), and reads those that it changes.
//!
//! A port with three adapters: the host's own files ([`HostFiles`]), a small privileged process that holds the rights
//! (`actuator`), and tests that fail any one write or stand in for the kernel.

use crate::handed::Handed;
use crate::safe_layout::SafeLayout;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use surefoot_io::input::{self, KERNEL_BYTES};

/// Kernel files by absolute path. Every error keeps the kernel's errno ([`io::Error::raw_os_error`]) where there is one.
pub trait Files: Debug + Send + Sync {
    /// Whole content.
    ///
    /// # Errors
    /// The kernel's.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// A handle that shows the file's content anew at each read from its start; None where only [`Files::read`] does.
    fn open(&self, _path: &Path) -> Option<File> {
        None
    }

    /// One open, one write(2), one close: the kernel takes each write as one command.
    ///
    /// # Errors
    /// The kernel's, also for a short write.
    fn write(&self, path: &Path, text: &str) -> io::Result<()>;

    /// # Errors
    /// The kernel's.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// # Errors
    /// The kernel's.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// # Errors
    /// The kernel's.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Names in a folder, sorted.
    ///
    /// # Errors
    /// The kernel's.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Names of the folders in a folder, sorted; none where it cannot be read.
    fn folders(&self, dir: &Path) -> Vec<String> {
        let names = self.list(dir).unwrap_or_default();
        names.into_iter().filter(|n| self.is_dir(&dir.join(n))).collect()
    }

    fn is_dir(&self, path: &Path) -> bool;

    fn is_file(&self, path: &Path) -> bool;

    /// Whether [`Files::write`] has the right to; nothing is written.
    fn writable(&self, path: &Path) -> bool;

    /// Whether this process makes the changes itself, so that what the kernel does for a write is done on the CPUs of the thread that asked.
    fn is_here(&self) -> bool {
        true
    }

    /// The same files for a thread whose writes may block for long, so that nobody else waits for them; None where nobody would.
    fn aside(&self) -> Option<SharedFiles> {
        None
    }

    /// Leave a layout to be put in force should this process go, in place of an earlier one; an empty one when everything has
    /// been given back. Only an actuator can do that; elsewhere nothing is left.
    ///
    /// # Errors
    /// `EPERM` where a part of it is not allowed, or that of the disk: then what was left before holds.
    fn keep_safe(&self, _layout: &SafeLayout) -> io::Result<()> {
        Ok(())
    }

    /// Programs in the kernel that whoever has the rights loaded for this process; None: this process loads its own.
    fn running(&self) -> Option<io::Result<Handed>> {
        None
    }
}

/// Operations of an adapter over another one that it hands on as they are, by name: `hand_on!(inner: read, list)`.
#[macro_export]
macro_rules! hand_on {
    (@op $to:tt read) => {
        fn read(&self, path: &::std::path::Path) -> ::std::io::Result<Vec<u8>> {
            self.$to.read(path)
        }
    };
    (@op $to:tt open) => {
        fn open(&self, path: &::std::path::Path) -> Option<::std::fs::File> {
            self.$to.open(path)
        }
    };
    (@op $to:tt write) => {
        fn write(&self, path: &::std::path::Path, text: &str) -> ::std::io::Result<()> {
            self.$to.write(path, text)
        }
    };
    (@op $to:tt make_dir) => {
        fn make_dir(&self, path: &::std::path::Path) -> ::std::io::Result<()> {
            self.$to.make_dir(path)
        }
    };
    (@op $to:tt remove_dir) => {
        fn remove_dir(&self, path: &::std::path::Path) -> ::std::io::Result<()> {
            self.$to.remove_dir(path)
        }
    };
    (@op $to:tt rename) => {
        fn rename(&self, from: &::std::path::Path, to: &::std::path::Path) -> ::std::io::Result<()> {
            self.$to.rename(from, to)
        }
    };
    (@op $to:tt list) => {
        fn list(&self, dir: &::std::path::Path) -> ::std::io::Result<Vec<String>> {
            self.$to.list(dir)
        }
    };
    (@op $to:tt is_dir) => {
        fn is_dir(&self, path: &::std::path::Path) -> bool {
            self.$to.is_dir(path)
        }
    };
    (@op $to:tt is_file) => {
        fn is_file(&self, path: &::std::path::Path) -> bool {
            self.$to.is_file(path)
        }
    };
    (@op $to:tt writable) => {
        fn writable(&self, path: &::std::path::Path) -> bool {
            self.$to.writable(path)
        }
    };
    (@op $to:tt is_here) => {
        fn is_here(&self) -> bool {
            self.$to.is_here()
        }
    };
    (@op $to:tt aside) => {
        fn aside(&self) -> Option<$crate::files::SharedFiles> {
            self.$to.aside()
        }
    };
    (@op $to:tt keep_safe) => {
        fn keep_safe(&self, layout: &$crate::safe::SafeLayout) -> ::std::io::Result<()> {
            self.$to.keep_safe(layout)
        }
    };
    (@op $to:tt running) => {
        fn running(&self) -> Option<::std::io::Result<$crate::handed::Handed>> {
            self.$to.running()
        }
    };
    ($to:tt: $($op:ident),+ $(,)?) => {
        $($crate::hand_on!(@op $to $op);)+
    };
}

/// The host's files, with the rights of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostFiles;

impl Files for HostFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        input::bytes(path, KERNEL_BYTES)
    }

    fn open(&self, path: &Path) -> Option<File> {
        File::open(path).ok()
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        // Truncated only where a file has a length of its own: on the kernel's it means nothing.
        let mut f: File = OpenOptions::new().write(true).truncate(true).open(path)?;
        match f.write(text.as_bytes())? {
            n if n == text.len() => Ok(()),
            n => Err(io::Error::new(io::ErrorKind::WriteZero, format!("only {n} of {} bytes were taken", text.len()))),
        }
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names: Vec<String> =
            fs::read_dir(dir)?.map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned())).collect::<io::Result<_>>()?;
        names.sort();
        Ok(names)
    }

    /// By the type that readdir(3) gives: a cgroup has dozens of files, and asking for each costs more than all else.
    fn folders(&self, dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let folders = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        let mut names: Vec<String> = folders.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn is_file(&self, path: &Path) -> bool {
        path.is_file()
    }

    fn writable(&self, path: &Path) -> bool {
        OpenOptions::new().write(true).open(path).is_ok()
    }
}

/// Shared by everything that works on the same host.
pub type SharedFiles = Arc<dyn Files>;

/// Trimmed text of a file; None where it cannot be read.
pub fn text(files: &dyn Files, path: impl AsRef<Path>) -> Option<String> {
    String::from_utf8(files.read(path.as_ref()).ok()?).ok().map(|t| t.trim().to_string())
}

/// First number in a file of one number; None for anything else ("max", "Unavailable").
pub fn number(files: &dyn Files, path: impl AsRef<Path>) -> Option<u64> {
    text(files, path)?.parse().ok()
}

/// A write whose error says what was written where; the errno is kept in its kind.
///
/// # Errors
/// As [`Files::write`].
pub fn write_named(files: &dyn Files, path: &Path, text: &str) -> io::Result<()> {
    files.write(path, text).map_err(|e| io::Error::new(e.kind(), format!("{} <- \"{}\": {e}", path.display(), text.trim_end())))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A write is one write, and errors keep their errno.
    #[test]
    fn host_files_keep_the_errno() {
        let dir = tempfile::tempdir().unwrap();
        let (f, missing) = (dir.path().join("f"), dir.path().join("missing/f"));
        fs::write(&f, "a longer text").unwrap();
        HostFiles.write(&f, "short").unwrap();
        assert_eq!(text(&HostFiles, &f).as_deref(), Some("short"));
        assert_eq!(HostFiles.write(&missing, "x").unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(HostFiles.make_dir(dir.path()).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert_eq!(HostFiles.list(dir.path()).unwrap(), ["f"]);
        fs::create_dir(dir.path().join("d")).unwrap();
        assert_eq!(HostFiles.folders(dir.path()), ["d"]);
        assert!(HostFiles.writable(&f) && !HostFiles.writable(&missing));
        let said = write_named(&HostFiles, &missing, "x\n").unwrap_err();
        assert!(said.kind() == io::ErrorKind::NotFound && said.to_string().contains("<- \"x\""), "{said}");
    }
}
