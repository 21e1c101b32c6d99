#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`hugepool lockstat` on running programs. Arguments: the path of the program, and that of lockstat_target."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

NULL = type(None)
PLACE = {"place": str, "count": int}
TIMES = {"count": int, "min": (int, NULL), "max": (int, NULL), "total": int}
KEYS = {
    "version": int,
    "pid": int,
    "seconds": (float, NULL),
    "pools": [
        {
            "pool": int,
            "locks": [
                {
                    "class": str,
                    "mode": (str, NULL),
                    "acquisitions": int,
                    "acq_bounces": int,
                    "contentions": int,
                    "con_bounces": int,
                    "deaths": int,
                    "sampled": int,
                    "wait_ns": TIMES,
                    "hold_ns": TIMES,
                    "waiter": [PLACE],
                    "holder": [PLACE],
                }
            ],
        }
    ],
}

# What a script that reads /proc/lock_stat looks for.
HEADING = (
    "class name con-bounces contentions waittime-min waittime-max waittime-total waittime-avg "
    "acq-bounces acquisitions holdtime-min holdtime-max holdtime-total holdtime-avg"
).split(" ", 2)
COUNT, TIME = r" *(\d+)", r" *(\d+\.\d\d|-)"
ROW = re.compile(r" *(\S+):" + (COUNT + " " + COUNT + (" " + TIME) * 4 + " ") + COUNT + " " + COUNT + (" " + TIME) * 4)
POINT = re.compile(r" *(\S+) +(\d+) +\[<([0-9a-f]+)>\] (.+)")
WIDTH = 40 + 1 + 12 * 15
EMPTY = "no lock was taken, or statistics are off"


class Target:
    """A program with pools."""

    def __init__(self, path, pools):
        self.process = subprocess.Popen(
            [path, str(pools)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.expect("ready")

    def expect(self, word):
        line = self.process.stdout.readline()
        assert line == word + "\n", repr(line)

    def do(self, what, times=1):
        for _ in range(times):
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
            self.expect("done")

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0
        self.process.stdout.close()

    @property
    def pid(self):
        return str(self.process.pid)


def run(*command, **more):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **more)


def output(*command):
    result = run(*command)
    assert result.returncode == 0, result
    assert result.stderr == "", result.stderr
    return result.stdout


def expect_failure(code, words, *command):
    result = run(*command)
    assert result.returncode == code, (command, result)
    assert result.stdout == "", (command, result)
    assert result.stderr.startswith("hugepool lockstat: ") and words in result.stderr, (command, result)


def check_keys(value, shape, where):
    if isinstance(shape, dict):
        assert isinstance(value, dict) and set(value) == set(shape), f"{where}: {value!r}"
        for key, inner in shape.items():
            check_keys(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), f"{where} is no array"
        for i, element in enumerate(value):
            check_keys(element, shape[0], f"{where}[{i}]")
    else:
        assert isinstance(value, shape) and not isinstance(value, bool), f"{where} is {value!r}"


def read_json(text):
    report = json.loads(text)
    check_keys(report, KEYS, "report")
    assert report["version"] == 1
    return report


def lock_of(report, name, mode, pool=0):
    found = [lock for lock in report["pools"][pool]["locks"] if (lock["class"], lock["mode"]) == (name, mode)]
    assert len(found) <= 1, found
    return found[0] if found else {"acquisitions": 0, "contentions": 0, "waiter": [], "holder": []}


def parse_text(text):
    """Rows by name, and lists of points by class, as a script reads them from /proc/lock_stat."""
    lines = text.splitlines()
    assert lines[0] == "lock_stat version 0.4", lines[0]
    assert lines[1] == lines[3] == "-" * WIDTH, lines[1]
    assert lines[2].split() == " ".join(HEADING).split(), lines[2]
    assert len(lines[2]) == WIDTH - 1, lines[2]
    assert lines[4] == "", lines[4]
    rows, points = {}, {}
    for line in lines[5:]:
        row, point = ROW.fullmatch(line), POINT.fullmatch(line)
        if row:
            assert row.group(1) not in rows, line
            assert line.index(":") == 40, line
            rows[row.group(1)] = row.groups()[1:]
        elif point:
            assert line[40] == " " and line.index("[<") == 40 + 1 + 14 + 1 + 9, line
            points.setdefault(point.group(1), []).append((int(point.group(2)), point.group(4)))
        else:
            assert line in ("", "." * WIDTH, EMPTY) or re.fullmatch(r" *-+", line), repr(line)
    assert (EMPTY in lines) == (not rows), text
    return rows, points


def check_usage(program):
    lockstat = [program, "lockstat"]
    for arguments in (
        [],
        ["--nonsense", "1"],
        ["nonsense"],
        ["0"],
        ["-1"],
        ["99999999999"],
        ["1", "2"],
        ["1", "--pool"],
        ["1", "--pool", "x"],
        ["1", "--pool", "-1"],
        ["1", "--watch", "0"],
        ["1", "--watch", "nan"],
        ["1", "--watch", "soon"],
        ["1", "--on", "--off"],
        ["1", "--reset", "--json"],
        ["1", "--off", "--watch", "1"],
    ):
        result = run(*lockstat, *arguments)
        assert result.returncode == 2, (arguments, result)
        assert result.stdout == "", (arguments, result)
        assert "--help" in result.stderr, (arguments, result)
    for arguments in (["--help"], ["-h"], ["1", "--help"]):
        text = output(*lockstat, *arguments)
        assert "Usage:" in text and "Examples:" in text and "Exit code:" in text, text
    assert "lockstat" in output(program, "--help")


def check_failures(program, target):
    ended = Target(target, 0)
    expect_failure(1, "no pool", program, "lockstat", ended.pid)
    for action in ("--on", "--off", "--reset"):
        expect_failure(1, "no pool", program, "lockstat", ended.pid, action)
    ended.end()
    expect_failure(1, "no process", program, "lockstat", ended.pid)
    expect_failure(1, "no process", program, "lockstat", ended.pid, "--json", "--watch", "1")


def check_one_pool(program, target):
    lockstat = [program, "lockstat", target.pid]
    target.do("truncate", 3)
    target.do("contend")
    rows, points = parse_text(output(*lockstat))
    report = read_json(output(*lockstat, "--json"))
    assert report["pid"] == int(target.pid) and report["seconds"] is None
    assert [pool["pool"] for pool in report["pools"]] == [0]
    assert lock_of(report, "file", "W")["acquisitions"] == 3
    assert rows["file-W"][7] == "3", rows
    fault = lock_of(report, "fault", None)
    assert fault["acquisitions"] == 2 and fault["contentions"] == 1, fault
    assert fault["wait_ns"]["max"] > 5000000, fault
    assert rows["fault"][1] == "1" and rows["fault"][7] == "2", rows
    for place in fault["waiter"][0], fault["holder"][0]:
        assert place["count"] == 1 and place["place"].startswith("hp_file_fault_locked (allocate.c:"), place
    assert points["fault"] == [(1, fault["waiter"][0]["place"]), (1, fault["holder"][0]["place"])], points
    for lock in report["pools"][0]["locks"]:
        name = lock["class"] + ("-" + lock["mode"] if lock["mode"] else "")
        assert rows[name][7] == str(lock["acquisitions"]), (lock, rows)

    assert "are off" in output(*lockstat, "--off")
    target.do("truncate")
    assert lock_of(read_json(output(*lockstat, "-j")), "file", "W")["acquisitions"] == 3
    assert output(*lockstat, "--on", "--pool", "0") == ""
    target.do("truncate")
    assert lock_of(read_json(output(*lockstat, "-j")), "file", "W")["acquisitions"] == 4
    assert output(program, "lockstat", "--reset", target.pid) == ""
    assert parse_text(output(*lockstat)) == ({}, {})
    assert read_json(output(*lockstat, "-j"))["pools"] == [{"pool": 0, "locks": []}]

    with open("/dev/full", "w") as full:
        result = subprocess.run(lockstat, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1 and result.stderr, result


def check_two_pools(program, path):
    target = Target(path, 2)
    lockstat = [program, "lockstat", target.pid]
    target.do("truncate", 2)
    report = read_json(output(*lockstat, "--json"))
    assert [pool["pool"] for pool in report["pools"]] == [0, 1]
    assert lock_of(report, "file", "W", 0)["acquisitions"] == 0
    assert lock_of(report, "file", "W", 1)["acquisitions"] == 2
    parts = re.split(r"^pool (\d)\n", output(*lockstat), flags=re.MULTILINE)
    assert parts[0] == "" and parts[1::2] == ["0", "1"], parts
    assert "file-W" not in parse_text(parts[2])[0] and "file-W" in parse_text(parts[4])[0], parts
    assert "file-W" in parse_text(output(*lockstat, "--pool", "1"))[0]
    assert read_json(output(*lockstat, "--json", "-p", "1"))["pools"] == [report["pools"][1]]
    expect_failure(1, "no pool 2", *lockstat, "--pool", "2")
    expect_failure(1, "no pool 2", *lockstat, "--pool", "2", "--reset")
    output(*lockstat, "--pool", "1", "--reset")
    assert read_json(output(*lockstat, "--json"))["pools"] == [report["pools"][0], {"pool": 1, "locks": []}]
    output(*lockstat, "--reset")
    assert all(not pool["locks"] for pool in read_json(output(*lockstat, "--json"))["pools"])
    target.end()


def start_watching(program, target, *more):
    return subprocess.Popen(
        [program, "lockstat", target.pid, "--watch", "0.05", *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end_watching(watch, errors=""):
    rest, complaints = watch.stdout.read(), watch.stderr.read()
    watch.wait(timeout=30)
    assert watch.returncode == 0, (watch.returncode, complaints)
    assert errors in complaints and bool(errors) == bool(complaints), complaints
    return rest


def check_watch(program, path):
    target = Target(path, 1)
    target.do("truncate", 2)
    watch = start_watching(program, target, "--json")
    first = read_json(watch.stdout.readline())
    assert first["seconds"] is None
    assert lock_of(first, "file", "W")["acquisitions"] == 2
    seen, waited, looks = 0, 0, 0
    for i in range(3):
        target.do("truncate", 5)
        target.do("contend")
    deadline = time.monotonic() + 20
    while (seen, waited) != (15, 3):
        report = read_json(watch.stdout.readline())
        assert 0.04 < report["seconds"] < 20 and time.monotonic() < deadline, report
        seen += lock_of(report, "file", "W")["acquisitions"]
        fault = lock_of(report, "fault", None)
        waited += fault["contentions"]
        assert sum(place["count"] for place in fault["waiter"]) == fault["contentions"], fault
        assert "wait_ns" not in fault or (fault["wait_ns"]["min"] is None) == (waited > fault["contentions"] > 0), fault
        looks += 1
    # Nothing more has happened: nothing has grown.
    watch.stdout.readline()
    assert read_json(watch.stdout.readline())["pools"] == [{"pool": 0, "locks": []}]
    # A reset in between is not taken for growth.
    output(program, "lockstat", target.pid, "--reset")
    watch.stdout.readline()
    watch.stdout.readline()
    assert read_json(watch.stdout.readline())["pools"] == [{"pool": 0, "locks": []}]
    watch.send_signal(signal.SIGINT)
    end_watching(watch)

    target.do("truncate", 1)
    watch = start_watching(program, target)
    lines = [watch.stdout.readline() for _ in range(7)]
    target.do("truncate", 7)
    time.sleep(0.2)
    target.end()
    text = "".join(lines) + end_watching(watch, "has ended")
    start, *parts = re.split(r"^(?:since the start, or the last reset|\nin \d+\.\d s):\n", text, flags=re.MULTILINE)
    assert start == "" and len(parts) > 2 and text.startswith("since the start"), text
    counts = [int(parse_text(part)[0].get("file", [0] * 12)[7]) for part in parts]
    assert sum(counts) == 8, counts


def check_as_user(program, path):
    target = Target(path, 1)
    with tempfile.TemporaryDirectory() as directory:
        # An ordinary user may not be able to reach the build directory.
        os.chmod(directory, 0o755)
        copy = shutil.copy(program, directory)
        os.chmod(copy, 0o755)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        expect_failure(1, "root", *user, copy, "lockstat", target.pid)
        expect_failure(1, "root", *user, copy, "lockstat", target.pid, "--reset")
    target.end()


def main():
    program, path = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    check_usage(program)
    check_failures(program, path)
    target = Target(path, 1)
    check_one_pool(program, target)
    target.end()
    check_two_pools(program, path)
    check_watch(program, path)
    if os.geteuid() == 0:
        check_as_user(program, path)


main()
