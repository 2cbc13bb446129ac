#!/usr/bin/env python3
"""A campaign's sweep on this target: run it, keep it running, say how it stands, pack what is finished.

Standard library, Python 3.8 or newer. A job is a folder:

    JOB/job.json          {"argv": [...]}: the sweep's command line, as the playbook wrote it
    JOB/campaign.toml     what to measure
    JOB/out/              manifest.json, journal.jsonl, shards/: written by `surefootd sweep`
    JOB/sweep.log         what the sweep said: messages and progress lines
    JOB/ended.json        {"code": N, "message": "..."} once the sweep ended and is not to be started again

Under systemd the unit surefoot-sweep@JOB runs `surefoot-sweep run`; elsewhere `surefoot-sweep start` leaves a supervisor behind
that does what the unit would do. Neither knows of the connection it was started through.
"""

import argparse
import contextlib
import fcntl
import hashlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
import time

BAD_INPUT = 2
# before a sweep that failed is started again, and the most it grows to
RETRY_S, MOST_RETRY_S = 1, 60
# what of the log is looked at for messages and progress
TAIL_BYTES = 64 << 10
MOST_LOG_BYTES = 8 << 20
# what a controller holds at first
NOTHING = {"shards": {}, "journal_bytes": 0, "journal_sha256": hashlib.sha256().hexdigest(), "manifest_sha256": ""}


def read_json(path):
    """A JSON object; None if there is none that can be read."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path, value):
    temporary = path + ".part"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def tail(job):
    """The last lines of the log."""
    try:
        with open(os.path.join(job, "sweep.log"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


def last_message(job):
    """The error of the sweep: the last line that it signed."""
    signed = [line for line in tail(job) if line.startswith(("surefootd: ", "error: "))]
    return signed[-1].split(": ", 1)[1] if signed else "it said nothing; see {}".format(os.path.join(job, "sweep.log"))


def progress(job):
    """The last progress line."""
    for line in reversed(tail(job)):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict) and "event" in value:
                    return value
    return None


def run(job):
    """Run the sweep once, to its end. The exit code is the sweep's."""
    argv = read_json(os.path.join(job, "job.json"))["argv"]
    log_path = os.path.join(job, "sweep.log")
    if os.path.exists(log_path) and os.path.getsize(log_path) > MOST_LOG_BYTES:
        os.replace(log_path, log_path + ".1")
    with open(log_path, "ab") as log:
        child = subprocess.Popen(argv, cwd=job, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
        # a stop is the sweep's to hear: it finishes what it is writing
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda n, _frame: child.send_signal(n))
        code = child.wait()
    if code in (0, BAD_INPUT):
        write_json(os.path.join(job, "ended.json"), {"code": code, "message": "" if code == 0 else last_message(job)})
    return code


def lock(path):
    """Take a lock; None if another process has it."""
    file = open(path, "a")  # noqa: SIM115 - it is held as long as the process lives
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def is_locked(path):
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def start(job):
    """Leave a supervisor behind that runs the sweep until it has ended. True if there was none."""
    if os.path.exists(os.path.join(job, "ended.json")) or is_locked(os.path.join(job, "supervisor.lock")):
        return False
    if os.fork() == 0:
        # no terminal, no session, no open pipe of whoever started this
        os.setsid()
        if os.fork() == 0:
            with open(os.devnull, "r+b") as null:
                for fd in (0, 1, 2):
                    os.dup2(null.fileno(), fd)
            # the controller bounds what a fetch writes, also where it fetches from itself; a sweep is not bounded
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            supervise(job)
        os._exit(0)
    os.wait()
    return True


def supervise(job):
    held = lock(os.path.join(job, "supervisor.lock"))
    if held is None:
        return
    pause_s = RETRY_S
    while not os.path.exists(os.path.join(job, "ended.json")):
        # in a process of its own, so that a signal for the sweep does not end the supervisor
        code = subprocess.call([sys.executable, os.path.abspath(__file__), "run", "--job", job])
        if code in (0, BAD_INPUT):
            break
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_RETRY_S)
    held.close()


def stop(job):
    """Stop sweep and supervisor; finished cases stay. False if it has ended already."""
    if os.path.exists(os.path.join(job, "ended.json")):
        return False
    write_json(os.path.join(job, "ended.json"), {"code": -1, "message": "it was stopped"})
    path = os.path.join(job, "out", ".lock")
    if is_locked(path):
        with open(path) as file:
            os.kill(int(file.read().strip()), signal.SIGTERM)
    return True


def status(job):
    """How the job stands, as JSON."""
    manifest = read_json(os.path.join(job, "out", "manifest.json"))
    ended = read_json(os.path.join(job, "ended.json"))
    running = is_locked(os.path.join(job, "out", ".lock"))
    return {
        "ended": ended,
        "running": running,
        "complete": bool(manifest and manifest.get("complete")),
        "planned": manifest["cases"]["planned"] if manifest else None,
        "progress": progress(job),
        "message": None if running or ended or not tail(job) else last_message(job),
    }


def pack(job, have, most_bytes, out):
    """Put into a tar what the controller does not hold yet: shards that the manifest lists, the manifest, the journal's rest.

    Args:
        have: as NOTHING; shards: {file: sha256}.
        most_bytes: of shards in one tar; one shard goes in any case.
    Returns:
        packed: whether there is a tar; shards in it; more: whether more is left for another one; where the journal's rest begins.
    """
    folder = os.path.join(job, "out")
    try:
        with open(os.path.join(folder, "manifest.json"), "rb") as file:
            manifest_bytes = file.read()
    except FileNotFoundError:
        return {"packed": False, "shards": 0, "more": False}
    manifest = json.loads(manifest_bytes)
    wanted = [s for s in manifest["shards"] if have["shards"].get(s["file"]) != s["sha256"]]
    chosen, size = [], 0
    for shard in wanted:
        here = os.path.getsize(os.path.join(folder, shard["file"]))
        if chosen and size + here > most_bytes:
            break
        chosen.append(shard["file"])
        size += here
    try:
        with open(os.path.join(folder, "journal.jsonl"), "rb") as file:
            journal = file.read()
    except FileNotFoundError:
        journal = b""
    first = have["journal_bytes"]
    if hashlib.sha256(journal[:first]).hexdigest() != have["journal_sha256"]:
        first = 0  # it was repaired after a crash, or is another
    same = hashlib.sha256(manifest_bytes).hexdigest() == have["manifest_sha256"]
    if same and not chosen and first == len(journal):
        return {"packed": False, "shards": 0, "more": False}
    temporary = out + ".part"
    # plain headers, one a file: a controller takes nothing else (collection/intake.py)
    with tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in (("manifest.json", manifest_bytes), ("journal.rest", journal[first:])):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name in chosen:
            with open(os.path.join(folder, name), "rb") as content:
                info = tarfile.TarInfo(name)
                info.size = os.fstat(content.fileno()).st_size
                tar.addfile(info, content)
    os.chmod(temporary, 0o644)  # the user of the connection fetches it, who need not be root
    os.replace(temporary, out)
    return {"packed": True, "shards": len(chosen), "more": len(chosen) < len(wanted), "journal_from": first}


def main():
    parser = argparse.ArgumentParser(prog="surefoot-sweep", description="The sweep of a campaign on this target.")
    parser.add_argument("command", choices=["run", "start", "stop", "status", "pack"])
    parser.add_argument("--job", required=True, help="folder of the job")
    parser.add_argument("--most-bytes", type=int, default=256 << 20)
    parser.add_argument("--out", help="for pack: the tar")
    args = parser.parse_args()
    job = os.path.abspath(args.job)
    if args.command == "run":
        return run(job)
    if args.command == "start":
        print(json.dumps({"started": start(job)}))
    elif args.command == "stop":
        print(json.dumps({"stopped": stop(job)}))
    elif args.command == "status":
        print(json.dumps(status(job)))
    else:
        if (read_json(os.path.join(job, "job.json")) or {}).get("supervised"):
            start(job)  # where no init of the target did
        keeper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "surefoot-hoststate")
        subprocess.call([keeper, "--dir", os.path.dirname(os.path.dirname(job)), "renew"], stdout=subprocess.DEVNULL)
        have = dict(NOTHING, **json.loads(sys.stdin.read() or "{}"))
        print(json.dumps(dict(pack(job, have, args.most_bytes, args.out), status=status(job))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
