#!/usr/bin/env python3
"""Settings of a host that a campaign changes: set, put in force again after a reboot, put back byte for byte.

One file, standard library, Python 3.8 or newer: the module `surefoot_host_state` and the program on the target (which a timer
runs when the controller never comes back) are this same code.

What was there is on disk (written, fsynced, renamed) before the first change, in DIR/host-state.json. What is recorded there
is never recorded anew, so a second `set` cannot take our own value for the host's. Kinds of settings:

    file     path (may hold *), value     a file of sysfs or procfs that holds one word or number
    swap     value "off"                  every swap area
    service  name, value "stopped"        a systemd service that runs now
    mount    fstype, path                 a file system that is not mounted
    boot     parameter                    a word of the kernel's command line, through a file in /etc/default/grub.d
"""

import argparse
import base64
import contextlib
import fcntl
import glob
import json
import math
import os
import re
import subprocess
import sys
import time

DIR = "/var/lib/surefoot-lab"
STATE = "host-state.json"
VERSION = 1
BOOT_FILE = "/etc/default/grub.d/50-surefoot-lab.cfg"
# how often the watcher of a host without systemd looks
WATCH_EVERY_S = 60
_PATH = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")


class Refused(Exception):
    """The host does not take a setting; the message says which and why."""


class Host:
    """Files and programs of a host. Under another root than / its programs too are those below that root."""

    def __init__(self, root="/"):
        self.root = root

    def path(self, name):
        return os.path.join(self.root, name.lstrip("/"))

    def read(self, name):
        """Bytes of a file; None if it is not there."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, name, data):
        """Write a kernel's file: it is there already, and takes its value in one write."""
        fd = os.open(self.path(name), os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def program(self, name):
        for folder in _PATH:
            path = os.path.join(self.root, folder, name)
            if os.access(path, os.X_OK):
                return path
        return None

    def run(self, *argv):
        """Exit code and output of a program of the host.

        Raises:
            Refused: the host has no such program.
        """
        program = self.program(argv[0])
        if program is None:
            raise Refused(f"{argv[0]} is not installed")
        env = dict(os.environ, LC_ALL="C", SUREFOOT_ROOT=self.root)
        done = subprocess.run([program, *argv[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, check=False)
        return done.returncode, done.stdout.decode("utf-8", "replace").strip()

    def must(self, *argv):
        code, said = self.run(*argv)
        if code != 0:
            last = said.splitlines()[-1] if said else "said nothing"
            raise Refused(f"{' '.join(argv)}: exit code {code}: {last}")


def chosen(data):
    """The value of a kernel's file: the word in brackets where it lists the possible ones, else all of it."""
    text = data.decode("utf-8", "replace").strip()
    found = re.search(r"\[([^\]]+)\]", text)
    return found.group(1) if found else text


class Entry:
    """One setting: what was there, and what is to be there. Subclasses know how."""

    def __init__(self, host, fields):
        self.host = host
        self.fields = fields

    def label(self):
        return self.fields["path"]

    def now(self):
        """What is there, in words."""
        raise NotImplementedError

    def wanted(self):
        """What is to be there, in words."""
        return self.fields["value"]

    def look(self):
        """Record what is there, in fields that JSON can hold."""

    def put(self):
        """Bring about what is wanted."""
        raise NotImplementedError

    def put_back(self):
        """Bring back what was there; a line of what differs after that, or None."""
        raise NotImplementedError


class FileEntry(Entry):
    def now(self):
        data = self.host.read(self.fields["path"])
        if data is None:
            raise Refused("is not here")
        return chosen(data)

    def look(self):
        self.fields["before_base64"] = base64.b64encode(self.host.read(self.fields["path"])).decode("ascii")

    def put(self):
        self.host.write(self.fields["path"], self.fields["value"].encode("utf-8"))
        if self.now() != self.fields["value"]:
            raise Refused("was set to {} and reads {}".format(self.fields["value"], self.now()))

    def put_back(self):
        before = base64.b64decode(self.fields["before_base64"])
        now = self.host.read(self.fields["path"])
        if now is None:
            return "is gone"
        if now != before:
            # a list of possible values takes the word that was chosen; an ordinary file (a trial) takes its bytes
            for data in [chosen(before).encode("utf-8"), before] if b"[" in before else [before]:
                if now != before:
                    self.host.write(self.fields["path"], data)
                    now = self.host.read(self.fields["path"])
        return None if now == before else f"reads {now!r}, was {before!r}"


class SwapEntry(Entry):
    def label(self):
        return "swap"

    def areas(self):
        """Swap areas in use: [device or file, priority]."""
        lines = (self.host.read("/proc/swaps") or b"").decode("utf-8").splitlines()[1:]
        rows = [line.split() for line in lines]
        return [[row[0].replace("\\040", " "), int(row[-1])] for row in rows if len(row) >= 5]

    def now(self):
        return "on" if self.areas() else "off"

    def look(self):
        self.fields["before"] = self.areas()

    def put(self):
        for name, _priority in self.areas():
            self.host.must("swapoff", name)

    def put_back(self):
        there = {name for name, _ in self.areas()}
        for name, priority in self.fields["before"]:
            if name not in there:
                # the kernel hands out negative priorities itself, in the order of the calls
                self.host.must("swapon", *(["-p", str(priority)] if priority >= 0 else []), name)
        return (
            None if self.areas() == self.fields["before"] else "areas are {}, were {}".format(self.areas(), self.fields["before"])
        )


class ServiceEntry(Entry):
    def label(self):
        return "service " + self.fields["name"]

    def now(self):
        if self.host.program("systemctl") is None:
            raise Refused("there is no systemd")
        code, said = self.host.run("systemctl", "is-active", self.fields["name"])
        return "running" if code == 0 and said == "active" else "stopped"

    def put(self):
        self.host.must("systemctl", "stop", self.fields["name"])

    def put_back(self):
        if self.now() != "running":
            self.host.must("systemctl", "start", self.fields["name"])
        return None if self.now() == "running" else "does not run again"


class MountEntry(Entry):
    def now(self):
        if not os.path.isdir(self.host.path(self.fields["path"])):
            raise Refused("the kernel has no {}".format(self.fields["fstype"]))
        mounts = [line.split() for line in (self.host.read("/proc/mounts") or b"").decode("utf-8", "replace").splitlines()]
        there = any(row[1:3] == [self.fields["path"], self.fields["fstype"]] for row in mounts)
        return "mounted" if there else "not mounted"

    def wanted(self):
        return "mounted"

    def put(self):
        self.host.must("mount", "-t", self.fields["fstype"], self.fields["fstype"], self.fields["path"])

    def put_back(self):
        if self.now() == "mounted":
            self.host.must("umount", self.fields["path"])
        return None if self.now() == "not mounted" else "is still mounted"


class BootEntry(Entry):
    """Takes effect at the next boot. The boot loader's own file is made anew, never put back from a copy: a kernel that was
    installed in between would be missing from it."""

    def label(self):
        return "boot parameter " + self.fields["parameter"]

    def text(self):
        if not re.match(r"^[A-Za-z0-9_.,=-]+$", self.fields["parameter"]):
            raise Refused("{!r} is no boot parameter".format(self.fields["parameter"]))
        line = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {}"\n'.format(self.fields["parameter"])
        return ("# Set for a Surefoot campaign; surefoot-hoststate restore takes it away again.\n" + line).encode("utf-8")

    def now(self):
        if self.host.program("update-grub") is None:
            raise Refused("there is no update-grub: add {} to the kernel's command line by hand".format(self.fields["parameter"]))
        return "set" if self.host.read(BOOT_FILE) == self.text() else "not set"

    def wanted(self):
        return "set"

    def put(self):
        os.makedirs(os.path.dirname(self.host.path(BOOT_FILE)), exist_ok=True)
        write_whole(self.host.path(BOOT_FILE), self.text())
        self.host.must("update-grub")

    def put_back(self):
        path = self.host.path(BOOT_FILE)
        if os.path.exists(path):
            os.unlink(path)
            self.host.must("update-grub")
        return None

    def in_force(self):
        """Whether the running kernel was booted with it."""
        return self.fields["parameter"] in (self.host.read("/proc/cmdline") or b"").decode("utf-8", "replace").split()


KINDS = {"file": FileEntry, "swap": SwapEntry, "service": ServiceEntry, "mount": MountEntry, "boot": BootEntry}


def entry(host, fields):
    """The entry of some fields.

    Raises:
        ValueError: no such kind, or a field is missing.
    """
    kind = fields.get("kind", "file")
    if kind not in KINDS:
        raise ValueError("kind {!r} is unknown; known: {}".format(kind, ", ".join(sorted(KINDS))))
    needs = {
        "file": ("path", "value"),
        "swap": ("value",),
        "service": ("name", "value"),
        "mount": ("fstype", "path"),
        "boot": ("parameter",),
    }
    missing = [name for name in needs[kind] if not isinstance(fields.get(name), str)]
    if missing:
        raise ValueError(f"a setting of kind {kind} needs {missing[0]} as text")
    return KINDS[kind](host, dict(fields, kind=kind))


def expanded(host, wanted):
    """Entries for what is wanted, patterns replaced by the files that fit them, in order."""
    for fields in wanted:
        if fields.get("kind", "file") == "file" and "*" in fields.get("path", ""):
            found = sorted(glob.glob(host.path(fields["path"])))
            for path in found:
                yield entry(host, dict(fields, path="/" + os.path.relpath(path, host.root)))
            if not found:
                yield entry(host, fields)
        else:
            yield entry(host, fields)


def write_whole(path, data):
    """Replace a file: written beside it, fsynced, renamed, the folder fsynced."""
    temporary = path + ".part"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Keeper:
    """DIR/host-state.json and what is done with it. One process at a time: hold `locked()`."""

    def __init__(self, folder=DIR, root="/"):
        self.folder = folder
        self.host = Host(root)
        self.file = os.path.join(folder, STATE)

    @contextlib.contextmanager
    def locked(self):
        os.makedirs(self.folder, exist_ok=True)
        with open(os.path.join(self.folder, ".host-state.lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def load(self):
        """What is recorded. From then on the root is the recorded one, whoever asks."""
        try:
            with open(self.file, encoding="utf-8") as file:
                state = json.load(file)
        except FileNotFoundError:
            return {"version": VERSION, "root": self.host.root, "entries": [], "lease_until_s": None, "lease_s": None}
        if state.get("version") != VERSION:
            raise Refused(f"{self.file}: version {state.get('version')!r} is not the {VERSION} that this program reads")
        self.host = Host(state["root"])
        return state

    def save(self, state):
        if state["entries"]:
            os.makedirs(self.folder, exist_ok=True)
            write_whole(self.file, (json.dumps(state, indent=1) + "\n").encode("utf-8"))
        elif os.path.exists(self.file):
            os.unlink(self.file)

    def set(self, wanted, lease_s=None, check=False, now_s=None):
        """Bring about what is wanted.

        Args:
            wanted: list of settings (see the top of this file).
            lease_s: seconds without a word of the controller after which `expire` puts everything back.
            check: change nothing, say what would be changed.
        Returns:
            changed: lines "what: before -> after"; not_possible: [{what, why}]; reboot_due: boot parameters not in force yet.
        """
        state = self.load()
        known = {entry(self.host, e).label() for e in state["entries"]}
        changed, not_possible, reboot_due = [], [], []
        for e in list(expanded(self.host, wanted)):
            try:
                before = e.now()
                if before != e.wanted():
                    if not check:
                        if e.label() not in known:
                            e.look()
                            state["entries"].append(e.fields)
                            self._lease(state, lease_s, now_s)
                            self.save(state)
                        e.put()
                    changed.append(f"{e.label()}: {before} -> {e.wanted()}")
                if isinstance(e, BootEntry) and not e.in_force():
                    reboot_due.append(e.fields["parameter"])
            except (Refused, OSError) as error:
                why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                not_possible.append({"what": e.label(), "why": why})
        if not check and state["entries"]:
            self._lease(state, lease_s, now_s)
            self.save(state)
        return {"changed": changed, "not_possible": not_possible, "reboot_due": reboot_due, "kept_in": self.file}

    def _lease(self, state, lease_s, now_s):
        if lease_s is not None:
            state["lease_s"] = lease_s
            state["lease_until_s"] = (time.time() if now_s is None else now_s) + lease_s

    def again(self):
        """After a reboot: what is recorded is brought about once more. What was there before stays as recorded."""
        state = self.load()
        lines = []
        for fields in state["entries"]:
            e = entry(self.host, fields)
            if isinstance(e, BootEntry):
                continue
            try:
                if e.now() != e.wanted():
                    e.put()
                    lines.append(f"{e.label()}: {e.wanted()}")
            except (Refused, OSError) as error:
                lines.append(f"{e.label()}: not possible: {error}")
        return {"changed": lines}

    def restore(self, check=False):
        """Put everything back, the last change first. What cannot be put back stays recorded.

        Returns:
            restored: labels; different: [{what, why}].
        """
        state = self.load()
        restored, different, left = [], [], []
        for fields in reversed(state["entries"]):
            e = entry(self.host, fields)
            if check:
                restored.append(e.label())
                continue
            try:
                why = e.put_back()
            except (Refused, OSError) as error:
                why = str(error)
            if why is None:
                restored.append(e.label())
            elif why == "is gone":
                # a CPU taken off line, a module unloaded: there is nothing left that could be wrong
                restored.append(f"{e.label()} (is gone)")
            else:
                different.append({"what": e.label(), "why": why})
                left.append(fields)
        if not check:
            state["entries"] = left[::-1]
            self.save(state)
        return {"restored": restored, "different": different}

    def renew(self, lease_s=None, now_s=None):
        """The controller, or a running sweep, was here: the time starts anew."""
        state = self.load()
        if state["entries"]:
            self._lease(state, state["lease_s"] if lease_s is None else lease_s, now_s)
            self.save(state)
        return {"lease_until_s": state["lease_until_s"]}

    def expire(self, now_s=None):
        """Put everything back if nobody was here for the length of the lease and no sweep runs."""
        now_s = time.time() if now_s is None else now_s
        state = self.load()
        if not state["entries"] or state["lease_until_s"] is None:
            return {"expired": False}
        if self.sweep_runs():
            self.renew(now_s=now_s)
            return {"expired": False, "sweep_runs": True}
        if now_s < state["lease_until_s"]:
            return {"expired": False, "left_s": math.ceil(state["lease_until_s"] - now_s)}
        return dict(self.restore(), expired=True)

    def start_watch(self):
        """Leave a process behind that looks at the lease until nothing is recorded any more. True if there was none."""
        if not os.path.exists(self.file) or is_locked(self._watch_lock()):
            return False
        if os.fork() == 0:
            # no terminal, no session, no open pipe of whoever started this
            os.setsid()
            if os.fork() == 0:
                with open(os.devnull, "r+b") as null:
                    for fd in (0, 1, 2):
                        os.dup2(null.fileno(), fd)
                self.watch()
            os._exit(0)
        os.wait()
        return True

    def _watch_lock(self):
        return os.path.join(self.folder, ".host-state.watch")

    def watch(self):
        """Look at the lease until nothing is recorded any more."""
        with open(self._watch_lock(), "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another one does
            while os.path.exists(self.file):
                left_s = WATCH_EVERY_S
                with contextlib.suppress(Refused, OSError, ValueError), self.locked():
                    left_s = self.expire().get("left_s", left_s)
                time.sleep(min(WATCH_EVERY_S, max(1, left_s)))

    def sweep_runs(self):
        """Whether a sweep holds the lock of its folder, or its supervisor that of its job."""
        jobs = os.path.join(self.folder, "campaigns", "*")
        locks = glob.glob(os.path.join(jobs, "out", ".lock")) + glob.glob(os.path.join(jobs, "supervisor.lock"))
        return any(is_locked(path) for path in locks)


def is_locked(path):
    """Whether another process holds a lock file."""
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def main(argv=None):
    parser = argparse.ArgumentParser(prog="surefoot-hoststate", description="Settings of this host that a campaign changed.")
    parser.add_argument("command", choices=["set", "again", "restore", "renew", "expire", "start-watch", "show"])
    parser.add_argument("--dir", default=DIR, help="where the previous state is kept (default: %(default)s)")
    parser.add_argument("--root", default="/", help="another root of the file system, for trials; kept with the state")
    parser.add_argument("--wanted", help="JSON file of settings, for set")
    parser.add_argument("--lease-s", type=float, help="put back after so many seconds without a word of the controller")
    parser.add_argument("--check", action="store_true", help="change nothing, say what would be done")
    args = parser.parse_args(argv)
    keeper = Keeper(args.dir, args.root)
    try:
        if args.command == "start-watch":
            print(json.dumps({"started": keeper.start_watch()}))
            return 0
        with keeper.locked():
            if args.command == "set":
                if args.wanted is None:
                    parser.error("set needs --wanted FILE")
                with open(args.wanted, encoding="utf-8") as file:
                    result = keeper.set(json.load(file), args.lease_s, args.check)
            elif args.command == "again":
                result = keeper.again()
            elif args.command == "restore":
                result = keeper.restore(args.check)
            elif args.command == "renew":
                result = keeper.renew(args.lease_s)
            elif args.command == "show":
                result = keeper.load()
            else:
                result = keeper.expire()
    except (Refused, OSError, ValueError) as error:
        print(f"surefoot-hoststate: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 1 if result.get("different") else 0


if __name__ == "__main__":
    sys.exit(main())
