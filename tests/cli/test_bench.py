#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small benches: the JSON's shape, exit statuses, what goes where, and what is left behind.

Usage: test_bench.py HUGEPOOL
The figures are not looked at: those are benchmarks, not tests.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
import unittest

NR_HUGEPAGES = "/proc/sys/vm/nr_hugepages"
HUGEPOOL = ""

FAULTS = ["faults", "--instances", "2", "--size", "16M", "--seconds", "0.05"]
PARALLEL = ["parallel-fault", "2", "16384", "2048"]
RIVALS = ("vs_kernel", "vs_tuned", "vs_prefilled")


def run(*args, **kwargs):
    return subprocess.run([HUGEPOOL, "bench", *args], capture_output=True, text=True, timeout=300, check=False, **kwargs)


def nr_hugepages():
    with open(NR_HUGEPAGES, encoding="ascii") as file:
        return int(file.read())


def processes_of(group):
    """The living processes of a process group."""
    alive = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            alive.append(int(pid))
    return alive


class Schema(unittest.TestCase):
    def measure(self, *args):
        """Runs with --json; returns the report, or skips where this machine has no huge pages of any kind."""
        done = run(*args, "--rounds", "2", "--json")
        self.assertIn(done.returncode, (0, 3), done.stderr)
        report = json.loads(done.stdout)
        self.check(report)
        if done.returncode == 3:
            self.assertGreater(report["discarded"]["count"], 0)
            self.assertFalse([row for row in report["rows"] if row["engine"] == "hugepool"])
            self.skipTest("no huge pages of any kind: " + json.dumps(report["discarded"]["reasons"]))
        return report

    def check(self, report):
        self.assertEqual(next(iter(report)), "version")
        self.assertEqual(report["version"], 1)
        for key in ("bench", "params", "env", "rows", "discarded", "ratios"):
            self.assertIn(key, report)
        for key in ("cpu", "kernel", "build"):
            self.assertTrue(report["env"][key], key)
        for row in report["rows"]:
            for key in ("engine", "variant", "metric", "unit", "median", "min", "max", "samples"):
                self.assertIn(key, row)
            self.assertIsInstance(row["variant"], dict)
            self.assertEqual(row["samples"], len(row["values"]))
            self.assertLessEqual(row["min"], row["median"])
            self.assertLessEqual(row["median"], row["max"])
        reasons = report["discarded"]["reasons"]
        self.assertEqual(report["discarded"]["count"], sum(reason["count"] for reason in reasons))
        for metric, ratios in report["ratios"].items():
            for rival in RIVALS:
                self.check_ratio(report, metric, rival, ratios[rival])

    def check_ratio(self, report, metric, rival, ratio):
        medians = {
            row["engine"]: (row["median"], row["unit"])
            for row in report["rows"]
            if row["metric"] == metric and not row["variant"]
        }
        ours, theirs = medians.get("hugepool"), medians.get(rival[3:])
        if ours is None or theirs is None:
            self.assertIsNone(ratio)
            return
        expected = theirs[0] / ours[0] if ours[1] == "s" else ours[0] / theirs[0]
        self.assertTrue(math.isclose(ratio, expected, rel_tol=1e-3), (metric, rival, ratio, expected))

    def rows(self, report, metric, engine="hugepool"):
        return [row for row in report["rows"] if row["metric"] == metric and row["engine"] == engine]

    def test_parallel_fault(self):
        report = self.measure(*PARALLEL)
        self.assertEqual(report["bench"], "parallel-fault")
        self.assertEqual(report["params"]["touches"], 8)
        variants = [row["variant"] for row in self.rows(report, "pages_per_s")]
        self.assertIn({}, variants)
        self.assertIn({"stock": "cold"}, variants)
        self.assertEqual([row["variant"] for row in self.rows(report, "fill_s")], [{"phase": "fill"}])
        for metric in ("pages_per_s", "wall_s", "cpu_s"):
            self.assertIn(metric, report["ratios"])

    def test_parallel_fault_lazy(self):
        report = self.measure(*PARALLEL, "--lazy", "--random", "--fault-around", "1")
        self.assertEqual(report["params"]["fault_around"], 1)
        self.assertTrue(self.rows(report, "pages_per_s"))

    def test_parallel_fault_sparse(self):
        """Touches further apart than pages, and closer together."""
        for skip, touches in (("5000", 4), ("64", 256)):
            report = self.measure("parallel-fault", "3", "16384", skip)
            self.assertEqual(report["params"]["touches"], touches)

    def test_parallel_fault_no_stock(self):
        report = self.measure(*PARALLEL, "--no-stock")
        self.assertIsNone(report["ratios"]["pages_per_s"]["vs_prefilled"])
        self.assertFalse([row for row in report["rows"] if row["engine"] == "prefilled"])
        self.assertTrue([row for row in self.rows(report, "pages_per_s") if not row["variant"]])

    def test_faults(self):
        report = self.measure(*FAULTS)
        self.assertEqual(report["params"]["size"], 16 << 20)
        self.assertTrue(self.rows(report, "faults_per_s"))
        self.assertIn("faults_per_s", report["ratios"])
        self.assertEqual(self.rows(report, "fill_s")[0]["variant"], {"phase": "fill"})

    def test_faults_lazy(self):
        self.assertTrue(self.rows(self.measure(*FAULTS, "--lazy"), "faults_per_s"))

    def test_zero(self):
        report = self.measure("zero", "--size", "8M")
        self.assertGreater(report["ratios"]["bytes_per_s"]["vs_loop"], 0)
        self.assertGreater(report["ratios"]["bytes_per_s"]["vs_memset"], 0)


class CommandLine(unittest.TestCase):
    def test_wrong(self):
        for args in (
            [],
            ["nosuch"],
            ["faults", "--nosuch"],
            ["faults", "word"],
            ["faults", "--size"],
            ["faults", "--size", "0"],
            ["faults", "--size", "1X"],
            ["faults", "--instances", "0"],
            ["faults", "--seconds", "-1"],
            ["faults", "--rounds", "0"],
            ["parallel-fault"],
            ["parallel-fault", "1", "2048"],
            ["parallel-fault", "0", "2048", "2048"],
            ["parallel-fault", "1", "2048", "2048", "1"],
            ["parallel-fault", "1", "2048", "2048", "--fault-around", "2"],
            ["parallel-fault", "1", "2048", "2048", "--lazy", "--fault-around", "3"],
            ["zero", "word"],
            ["reference", "word"],
        ):
            with self.subTest(args=args):
                done = run(*args)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stdout, "")
                self.assertTrue(done.stderr)

    def test_help(self):
        for args in ([], ["parallel-fault"], ["faults"], ["zero"], ["reference"]):
            with self.subTest(args=args):
                done = run(*args, "--help")
                self.assertEqual(done.returncode, 0)
                self.assertIn("Examples:", done.stdout)
                self.assertEqual(done.stderr, "")

    def test_table(self):
        done = run(*PARALLEL, "--rounds", "1")
        self.assertIn(done.returncode, (0, 3), done.stderr)
        self.assertIn("kernel", done.stdout)
        self.assertNotIn("\r", done.stderr)


class LeftBehind(unittest.TestCase):
    def check_signal(self, number, after):
        before = nr_hugepages()
        with subprocess.Popen(
            [HUGEPOOL, "bench", "faults", "--instances", "3", "--size", "16M", "--seconds", "20"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as bench:
            time.sleep(after)
            self.assertIsNone(bench.poll())
            bench.send_signal(number)
            self.assertEqual(bench.wait(timeout=30), -number)
            if number != signal.SIGKILL:
                self.assertEqual(nr_hugepages(), before)
                self.assertEqual(processes_of(bench.pid), [])
            self.assertEqual(bench.stdout.read(), b"")  # ends when nobody is left who could write
        deadline = time.monotonic() + 10
        while (nr_hugepages() != before or processes_of(bench.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(nr_hugepages(), before)
        self.assertEqual(processes_of(bench.pid), [])

    def test_interrupt(self):
        for after in (0.05, 0.3, 1.5):
            self.check_signal(signal.SIGINT, after)

    def test_terminate(self):
        self.check_signal(signal.SIGTERM, 1)

    def test_hangup(self):
        self.check_signal(signal.SIGHUP, 1)

    def test_kill(self):
        self.check_signal(signal.SIGKILL, 1)

    def test_done(self):
        before = nr_hugepages()
        run(*FAULTS, "--rounds", "1")
        self.assertEqual(nr_hugepages(), before)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    HUGEPOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
