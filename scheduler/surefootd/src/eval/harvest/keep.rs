//! harvest.partial.jsonl: what is run, then the rows of each finished run, so that a command that was cut off goes on where it was.

use super::run::Row;
use crate::base::error::{Error, Result};
use crate::base::files;
use crate::eval::journal::differs;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use surefoot_io::input::{self, next_line, CASE_BYTES};
use surefoot_linux::own::Folder;

pub const PARTIAL: &str = "harvest.partial.jsonl";
/// How its first line begins: keys are sorted.
const BEGIN: &[u8] = b"{\"harvest_eval\":";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    run: String,
    rows: Vec<Row>,
}

/// The runs of this command that are done.
pub struct Kept {
    path: PathBuf,
    file: Flock<File>,
    pub rows: BTreeMap<String, Vec<Row>>,
}

impl Kept {
    /// Go on with what is in a folder, or begin.
    ///
    /// # Errors
    /// [`Error::BadInput`] for runs of another command; [`Error::Failed`] for a file that is damaged or in use.
    pub fn open(folder: &Path, what: &Value) -> Result<Self> {
        let path = folder.join(PARTIAL);
        let shown = path.display();
        let is_ours = |head: &[u8]| head.starts_with(BEGIN) || BEGIN.starts_with(head);
        let (_, _, file) = files::open_ours(&path, Folder::results_of, "journal of harvest-eval", is_ours)?;
        let busy = || Error::Failed(format!("{shown}: another harvest-eval is writing there. Wait for it, or give another --out"));
        let mut file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| busy())?;
        let io = |e: std::io::Error| Error::io(&path, "cannot be kept", &e);
        let (mut rows, mut bytes, mut lines) = (BTreeMap::new(), 0u64, 0);
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        let mut from = BufReader::new(&*file);
        let mut buffer = vec![];
        while let input::Found::Line(n) = next_line(&mut from, &mut buffer, CASE_BYTES).map_err(io)? {
            // A last line that was cut off.
            if !buffer.ends_with(b"\n") {
                break;
            }
            lines += 1;
            let damaged = |e: serde_json::Error| {
                Error::Failed(format!("{shown}:{lines}: is no line of harvest-eval's: {e}. The file was damaged: remove it and run anew"))
            };
            if lines == 1 {
                let first: Value = serde_json::from_slice(&buffer).map_err(damaged)?;
                if let Some(other) = differs(&first, what) {
                    return Err(Error::BadInput(format!(
                        "{shown}: runs of an interrupted harvest-eval of something else (other: {other}). Finish it with its own \
                         command, give another --out, or remove this file"
                    )));
                }
            } else {
                let line: Line = serde_json::from_slice(&buffer).map_err(damaged)?;
                rows.insert(line.run, line.rows);
            }
            bytes += n as u64;
        }
        drop(from);
        file.set_len(bytes).map_err(io)?;
        if bytes == 0 {
            file.write_all(format!("{what}\n").as_bytes()).map_err(io)?;
        }
        Ok(Kept { path, file, rows })
    }

    /// A run is done.
    ///
    /// # Errors
    /// [`Error::Failed`]; a torn tail is trimmed by the next run.
    pub fn add(&mut self, run: String, rows: Vec<Row>) -> Result<()> {
        let line = Line { run, rows };
        let mut text =
            serde_json::to_vec(&line).map_err(|e| Error::Failed(format!("JSON: {e}. This is a fault of surefootd, please report it")))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(|e| Error::io(&self.path, "cannot be appended to", &e))?;
        self.rows.insert(line.run, line.rows);
        Ok(())
    }

    /// The results are in place: nothing is left to go on with.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn done(self) -> Result<()> {
        let gone = Folder::results_of(&self.path).and_then(|(folder, name)| folder.remove(name).map(|_| folder));
        files::sync(&gone.map_err(|e| files::own_error(&self.path, "cannot be removed", &e))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Finished runs outlast the process, a torn tail does not harm, and another command's runs are not gone on with.
    #[test]
    fn finished_runs_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let what = json!({ "harvest_eval": 1, "seeds": 2 });
        let rows = vec![Row { policy: "p".into(), p99_us: 0.1 + 0.2, ..Row::default() }];
        let mut kept = Kept::open(dir.path(), &what).unwrap();
        assert!(Kept::open(dir.path(), &what).is_err_and(|e| e.to_string().contains("another harvest-eval is writing")));
        kept.add("a/1".into(), rows.clone()).unwrap();
        drop(kept);
        let path = dir.path().join(PARTIAL);
        let mut text = std::fs::read(&path).unwrap();
        text.extend(b"{\"run\":\"a/2\",\"ro");
        std::fs::write(&path, text).unwrap();
        let mut kept = Kept::open(dir.path(), &what).unwrap();
        assert_eq!(kept.rows, BTreeMap::from([("a/1".to_string(), rows.clone())]));
        kept.add("a/2".into(), rows).unwrap();
        drop(kept);
        assert_eq!(Kept::open(dir.path(), &what).unwrap().rows.len(), 2);
        let other = Kept::open(dir.path(), &json!({ "harvest_eval": 1, "seeds": 3 })).err().unwrap();
        assert!(other.to_string().contains("something else (other: seeds)"), "{other}");
        Kept::open(dir.path(), &what).unwrap().done().unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "theirs\n").unwrap();
        assert!(Kept::open(dir.path(), &what).is_err_and(|e| e.to_string().contains("is there and no journal of harvest-eval")));
    }
}
