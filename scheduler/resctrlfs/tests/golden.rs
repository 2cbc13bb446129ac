//! Every recorded operation, replayed through the pure model.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout, reason = "a test's input and output are its own")]

mod replay;

use replay::{hardware, Outcome, Replay, Score, Subject, WriteFailure, RUNS};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use surefoot_resctrlfs::{Caller, Errno, Machine, Node, ROOT};

/// The model, with paths and descriptors as a kernel puts before it.
struct Model {
    machine: Machine,
    open: BTreeMap<String, Open>,
}

struct Open {
    node: Node,
    at: usize,
    /// Content as of the last read from the start.
    text: Option<Vec<u8>>,
}

fn name<T>(r: Result<T, Errno>) -> Outcome<T> {
    r.map_err(Errno::name)
}

const ADMIN: Caller = Caller { tid: 150, uid: 0, gid: 0 };

impl Model {
    fn new(run: &str) -> Self {
        Self { machine: Machine::new(hardware(run)), open: BTreeMap::new() }
    }

    fn resolve(&self, path: &str, who: Caller) -> Outcome<Node> {
        name(self.machine.resolve(Path::new(path), who))
    }

    /// Parent's node, and the name in it.
    fn place<'p>(&self, path: &'p str, who: Caller) -> Outcome<(Node, &'p OsStr)> {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.resolve(dir, who)?, OsStr::new(last)))
    }
}

impl Subject for Model {
    fn machine(&mut self, act: &mut dyn FnMut(&mut Machine)) {
        act(&mut self.machine);
    }

    fn mount(&mut self, options: &str, read_only: bool) -> Outcome<()> {
        name(self.machine.mount(options, read_only))
    }

    fn umount(&mut self) -> Outcome<()> {
        name(self.machine.umount())
    }

    fn read(&mut self, path: &str, who: Caller) -> Outcome<Vec<u8>> {
        let node = self.resolve(path, who)?;
        name(self.machine.open(node, true, false, who).and_then(|()| self.machine.read(node)))
    }

    fn read_at(&mut self, path: &str, offset: usize, size: usize) -> Outcome<Vec<u8>> {
        Ok(self.read(path, ADMIN)?.into_iter().skip(offset).take(size).collect())
    }

    fn write(&mut self, path: &str, data: &[u8], flags: &str, _offset: Option<i64>, who: Caller) -> Result<usize, WriteFailure> {
        let node = self.resolve(path, who).map_err(|e| ("open", e))?;
        if flags.contains("O_EXCL") {
            return Err(("open", "EEXIST"));
        }
        self.machine.open(node, flags.contains("O_RDWR"), true, who).map_err(|e| ("open", e.name()))?;
        self.machine.write(node, data, who).map_err(|e| ("write", e.name()))
    }

    fn list(&mut self, path: &str) -> Outcome<Vec<String>> {
        let node = self.resolve(path, ADMIN)?;
        let names = name(self.machine.tree().and_then(|t| t.list(node)))?;
        Ok(names.into_iter().map(|(n, _)| n.to_string_lossy().into_owned()).collect())
    }

    fn mkdir(&mut self, path: &str, mode: u32, who: Caller) -> Outcome<()> {
        let (parent, last) = self.place(path, who)?;
        name(self.machine.mkdir(parent, last, mode, who).map(|_| ()))
    }

    fn rmdir(&mut self, path: &str, who: Caller) -> Outcome<()> {
        if path.is_empty() {
            return Err("EBUSY");
        }
        let (parent, last) = self.place(path, who)?;
        name(self.machine.rmdir(parent, last, who))
    }

    fn rename(&mut self, from: &str, to: &str) -> Outcome<()> {
        let ((p, n), (q, m)) = (self.place(from, ADMIN)?, self.place(to, ADMIN)?);
        name(self.machine.rename(p, n, q, m, ADMIN))
    }

    fn unlink(&mut self, path: &str) -> Outcome<()> {
        let (parent, last) = self.place(path, ADMIN)?;
        name(self.machine.unlink(parent, last))
    }

    fn stat(&mut self, path: &str) -> Outcome<(u32, u32, u32, u32)> {
        let node = self.resolve(path, ADMIN)?;
        let tree = name(self.machine.tree())?;
        let a = name(tree.attr(node))?;
        Ok((a.mode, a.uid, a.gid, name(tree.links(node))?))
    }

    fn chmod(&mut self, path: &str, mode: u32) -> Outcome<()> {
        let node = self.resolve(path, ADMIN)?;
        name(self.machine.set_attr(node, Some(mode), None, None, ADMIN).map(|_| ()))
    }

    fn chown(&mut self, path: &str, id: u32) -> Outcome<()> {
        let node = self.resolve(path, ADMIN)?;
        name(self.machine.set_attr(node, None, Some(id), Some(id), ADMIN).map(|_| ()))
    }

    fn open(&mut self, fd: &str, path: &str, flags: &str) -> Outcome<()> {
        let node = self.resolve(path, ADMIN)?;
        name(self.machine.open(node, flags == "O_RDONLY", flags != "O_RDONLY", ADMIN))?;
        self.open.insert(fd.into(), Open { node, at: 0, text: None });
        Ok(())
    }

    fn fd_read(&mut self, fd: &str, size: usize) -> Outcome<Vec<u8>> {
        let o = self.open.get_mut(fd).unwrap();
        let now = name(self.machine.read(o.node))?;
        let all = if o.at == 0 { o.text.insert(now) } else { o.text.get_or_insert(now) };
        let part: Vec<u8> = all.iter().skip(o.at).take(size).copied().collect();
        o.at += part.len();
        Ok(part)
    }

    fn fd_write(&mut self, fd: &str, data: &[u8]) -> Outcome<usize> {
        let node = self.open[fd].node;
        name(self.machine.write(node, data, ADMIN))
    }

    fn fd_seek(&mut self, fd: &str, offset: u64) -> Outcome<()> {
        self.open.get_mut(fd).unwrap().at = offset as usize;
        Ok(())
    }

    fn close(&mut self, fd: &str) -> Outcome<()> {
        self.open.remove(fd).map(|_| ()).ok_or("EBADF")
    }

    fn other(&mut self, _op: &str, _path: &str) -> Option<Outcome<String>> {
        assert_eq!(ROOT, 1);
        None
    }
}

/// Content, errno, `last_cmd_status` and trees of all ten runs are those of the kernel.
#[test]
fn every_recorded_operation_is_equal() {
    let mut all = Score::default();
    for run in RUNS {
        let score = Replay::run(run, &mut Model::new(run));
        println!("{}", score.line(run));
        score.different.iter().take(20).for_each(|d| println!("  {d}"));
        all.equal += score.equal;
        all.volatile += score.volatile;
        all.trees.extend(score.trees.iter().map(|t| format!("{run} {t}")));
        all.waits += score.waits;
        score.outside.into_iter().for_each(|(k, n)| *all.outside.entry(k).or_default() += n);
        all.different.extend(score.different);
    }
    println!("{}", all.line("all"));
    assert_eq!(all.operations(), 18_004);
    assert_eq!(all.different, Vec::<String>::new());
}
