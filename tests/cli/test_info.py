#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`hugepool` and `hugepool info` as a person and as a program see them. Argument: the path of the program."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

SECTIONS = [
    "Kernel and processor",
    "Memory",
    "The kernel's pools of huge pages",
    "Transparent huge pages",
    "Limits of this process",
    "NUMA nodes",
    "What stands in the way",
]

# Every key that version 1 of the JSON promises, with the types that its value may have.
NULL = type(None)
LIMIT = {"limit_bytes": (int, NULL), "used_bytes": (int, NULL), "file": (str, NULL)}
KEYS = {
    "version": int,
    "hugepool": str,
    "kernel": {
        "release": (str, NULL),
        "upstream": (str, NULL),
        "machine": (str, NULL),
        "table_sharing": bool,
        "table_sharing_why_not": (str, NULL),
    },
    "processor": {"model": (str, NULL), "usable_cpus": int, "zero_method": (str, NULL)},
    "memory": {"total_bytes": (int, NULL), "available_bytes": (int, NULL)},
    "pools": [
        {
            "page_bytes": int,
            "total_pages": int,
            "free_pages": int,
            "reserved_pages": int,
            "surplus_pages": int,
            "overcommit_pages": int,
            "cgroup": LIMIT,
            "cgroup_reserved": LIMIT,
        }
    ],
    "may_set_pools": bool,
    "transparent_huge_pages": {
        "enabled": (str, NULL),
        "shmem_enabled": (str, NULL),
        "defrag": (str, NULL),
        "disabled_by_prctl": bool,
        "collapse_works": bool,
        "collapse_errno": int,
    },
    "limits": {
        "cgroup": (str, NULL),
        "cgroup_memory": LIMIT,
        "memlock_bytes": (int, NULL),
        "max_map_count": (int, NULL),
        "userfaultfd": bool,
    },
    "numa_nodes": [
        {"id": int, "memory_bytes": int, "free_bytes": int, "huge_total_pages": int, "huge_free_pages": int}
    ],
    "findings": [{"id": str, "severity": str, "text": str, "command": (str, NULL)}],
}


def run(*command):
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def check_keys(value, shape, where):
    if isinstance(shape, dict):
        assert isinstance(value, dict), f"{where} is no object"
        for key, inner in shape.items():
            assert key in value, f"{where}.{key} is missing"
            check_keys(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(value, list), f"{where} is no array"
        for i, element in enumerate(value):
            check_keys(element, shape[0], f"{where}[{i}]")
    else:
        assert isinstance(value, shape), f"{where} is {value!r}"
        # A bool is an int to Python, and a number never is a bool in the interface.
        if shape is int or (isinstance(shape, tuple) and int in shape):
            assert not isinstance(value, bool), f"{where} is {value!r}"


def check_json(*command):
    result = run(*command)
    assert result.returncode == 0, result
    assert result.stderr == "", result.stderr
    report = json.loads(result.stdout)
    check_keys(report, KEYS, "report")
    assert report["version"] == 1
    order = ["blocks", "slows", "note"]
    ranks = [order.index(finding["severity"]) for finding in report["findings"]]
    assert ranks == sorted(ranks), ranks
    return report


def check_table(report, *command):
    result = run(*command)
    assert result.returncode == 0, result
    assert result.stderr == "", result.stderr
    lines = result.stdout.splitlines()
    positions = [lines.index(section) for section in SECTIONS]
    assert positions == sorted(positions), positions
    for line in lines:
        assert line == line.rstrip() and "(null)" not in line, repr(line)
    last = lines[positions[-1] + 1 :]
    assert last, "the last section is empty"
    assert (last == ["  nothing"]) == (not report["findings"]), last
    # The figures in texts change from run to run, the commands' verbs and files do not.
    for finding in report["findings"]:
        if finding["command"]:
            file = finding["command"].split()[-1]
            assert any(line.endswith(file) for line in last), finding


def check_usage(program):
    for command in ([], ["nonsense"], ["--nonsense"], ["info", "--nonsense"], ["info", "surplus"], ["-x"]):
        result = run(program, *command)
        assert result.returncode == 2, (command, result)
        assert result.stdout == "", (command, result)
        assert "hugepool" in result.stderr and "--help" in result.stderr, (command, result)
    for command in (["--help"], ["-h"], ["info", "--help"], ["info", "-h"]):
        result = run(program, *command)
        assert result.returncode == 0 and result.stderr == "", (command, result)
        assert "Usage:" in result.stdout and "Examples:" in result.stdout, (command, result)
    result = run(program, "--version")
    assert result.returncode == 0 and result.stdout.startswith("hugepool "), result
    with open("/dev/full", "w") as full:
        result = subprocess.run([program, "info"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1 and result.stderr, result


def main():
    program = os.path.abspath(sys.argv[1])
    check_usage(program)
    check_table(check_json(program, "info", "--json"), program, "info")
    if os.geteuid() != 0:
        return
    with tempfile.TemporaryDirectory() as directory:
        # An ordinary user may not be able to reach the build directory.
        os.chmod(directory, 0o755)
        copy = shutil.copy(program, directory)
        os.chmod(copy, 0o755)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", copy]
        report = check_json(*user, "info", "--json")
        assert not report["may_set_pools"]
        check_table(report, *user, "info")
        for finding in report["findings"]:
            if finding["command"]:
                assert "sudo" in finding["command"], finding


main()
