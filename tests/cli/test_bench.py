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
import statistics
import subprocess
import sys
import time
import unittest

NR_HUGEPAGES = "/proc/sys/vm/nr_hugepages"
HUGEPOOL = ""

FAULTS = ["faults", "--instances", "2", "--size", "16M", "--seconds", "0.05"]
FORKS = ["forks", "--instances", "2", "--size", "16M", "--seconds", "0.05"]
COMBINED = ["combined", "--instances", "2", "--size", "16M", "--seconds", "0.05"]
PARALLEL = ["parallel-fault", "2", "16384", "2048"]
FORK_COW = ["fork-cow", "--size", "16M"]
FALLOCATE = ["fallocate", "--size", "16M"]
COLLAPSE = ["collapse", "--count", "3"]
TLB = ["tlb", "--sizes", "4M,16M"]
LOCKS = ["locks", "--seconds", "0.01", "--rounds", "2", "--batches", "12", "--threads", "2", "--processes", "3"]
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


def check_rows(test, report):
    """What the reports of all workloads have in common."""
    test.assertEqual(next(iter(report)), "version")
    test.assertEqual(report["version"], 1)
    for key in ("bench", "params", "env", "rows", "discarded", "ratios"):
        test.assertIn(key, report)
    for key in ("cpu", "kernel", "build"):
        test.assertTrue(report["env"][key], key)
    for row in report["rows"]:
        for key in ("engine", "variant", "metric", "unit", "median", "min", "max", "samples"):
            test.assertIn(key, row)
        test.assertIsInstance(row["variant"], dict)
        test.assertEqual(row["samples"], len(row["values"]))
        test.assertLessEqual(row["min"], row["median"])
        test.assertLessEqual(row["median"], row["max"])


class Schema(unittest.TestCase):
    def measure(self, *args):
        """Runs with --json; returns the report, or skips where this machine has no huge pages of any kind."""
        done = run(*args[:1], "--rounds", "2", *args[1:], "--json")
        self.assertIn(done.returncode, (0, 3), done.stderr)
        report = json.loads(done.stdout)
        self.check(report)
        if done.returncode == 3:
            self.assertGreater(report["discarded"]["count"], 0)
            self.assertFalse([row for row in report["rows"] if row["engine"] == "hugepool"])
            self.skipTest("no huge pages of any kind: " + json.dumps(report["discarded"]["reasons"]))
        return report

    def check(self, report):
        check_rows(self, report)
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
        expected = theirs[0] / ours[0] if ours[1] in ("s", "ns") else ours[0] / theirs[0]
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

    def test_forks(self):
        report = self.measure(*FORKS)
        self.assertEqual(report["bench"], "forks")
        self.assertEqual(report["params"]["instances"], 2)
        self.assertTrue(self.rows(report, "forks_per_s"))
        self.assertEqual(list(report["ratios"]), ["forks_per_s"])
        self.assertFalse(self.rows(report, "faults_per_s"))
        self.assertTrue(self.rows(report, "wall_s"))

    def test_forks_lazy(self):
        self.assertTrue(self.rows(self.measure(*FORKS, "--lazy", "--size", "2M"), "forks_per_s"))

    def check_locks(self, report):
        """Well-formed lock statistics; returns the acquisitions of each hugepool series by (class, mode)."""
        found = {}
        for series in report["locks"]:
            self.assertEqual(series["engine"], "hugepool")
            self.assertEqual(series["rounds"], report["params"]["rounds"])
            acquired = found.setdefault(tuple(series["variant"].values()), {})
            for row in series["rows"]:
                self.assertLessEqual(row["contentions"], row["acquisitions"])
                self.assertEqual(row["contentions"], row["wait_ns"]["count"])
                for place in row["waiter"] + row["holder"]:
                    self.assertGreater(place["count"], 0)
                    self.assertTrue(place["place"])
                acquired[row["class"], row["mode"]] = row["acquisitions"]
        return found

    def test_combined(self):
        report = self.measure(*COMBINED)
        for metric in ("faults_per_s", "forks_per_s"):
            self.assertTrue(self.rows(report, metric))
            self.assertIn(metric, report["ratios"])
        self.assertEqual(list(self.check_locks(report)), [()])

    def test_combined_lazy(self):
        report = self.measure(*COMBINED, "--lazy")
        schemes = ["rwsem", "none", "vma", "invalidate", "biased"]
        for metric in ("faults_per_s", "forks_per_s"):
            self.assertEqual([row["variant"]["file_lock"] for row in self.rows(report, metric)], schemes)
            ratios = report["ratios"][metric]
            self.assertIn(ratios["better_file_lock"], ("vma", "invalidate"))
            others = ["kernel", "tuned", "prefilled"] + ["hugepool file_lock=" + word for word in schemes[:-1]]
            self.assertEqual(sorted(pair["theirs"] for pair in ratios["pairs"]), sorted(others))
            for pair in ratios["pairs"]:
                self.assertEqual(pair["ours"], "hugepool file_lock=biased")
                self.assertIsNone(pair["low"])  # two rounds are too few
                if pair["samples"]:
                    self.assertLessEqual(pair["min"], pair["ratio"])
                    self.assertLessEqual(pair["ratio"], pair["max"])
        # At the least each instance maps once a round, touches 8 pages, or forks, with a mapping for the child.
        locks = self.check_locks(report)
        self.assertGreaterEqual(locks["rwsem",]["file", "W"], 2 * 2)
        self.assertGreaterEqual(locks["rwsem",]["file", "R"], 2 * 2 * 8)
        self.assertGreaterEqual(locks["vma",]["mapping", "R"], 2 * 2 * 8)
        for word in ("invalidate", "biased"):
            self.assertGreaterEqual(locks[word,]["file", "R"], 2 * 2 * (8 + 1))
            self.assertNotIn(("file", "W"), locks[word,])
        self.assertNotIn(("mapping", "R"), locks["none",])

    def test_combined_confidence(self):
        """From six rounds on."""
        report = self.measure(*COMBINED, "--lazy", "--rounds", "6")
        for pair in report["ratios"]["faults_per_s"]["pairs"]:
            if pair["samples"] >= 6:
                self.assertLessEqual(pair["low"], pair["ratio"])
                self.assertLessEqual(pair["ratio"], pair["high"])

    def test_fault_mutexes(self):
        report = self.measure(
            *PARALLEL, "--lazy", "--no-stock", "--fault-around", "1", "--fault-mutexes", "1,default,0", "--lockstat"
        )
        variants = [row["variant"] for row in self.rows(report, "wall_s")]
        self.assertEqual(variants, [{"fault_mutexes": "1"}, {}, {"fault_mutexes": "0"}])
        self.assertEqual(report["params"]["fault_mutexes"], "1,default,0")
        locks = self.check_locks(report)
        # 8 pages in each of the rounds, zeroed by the faults.
        self.assertGreaterEqual(locks["1",]["fault", None], 2 * 8)
        self.assertGreaterEqual(locks[()]["fault", None], 2 * 8)
        self.assertNotIn(("fault", None), locks["0",])

    def test_fallocate(self):
        report = self.measure(*FALLOCATE)
        self.assertEqual(report["bench"], "fallocate")
        self.assertEqual(report["params"]["size"], 16 << 20)
        for metric in ("bytes_per_s", "elapsed_ns"):
            self.assertEqual([row["variant"] for row in self.rows(report, metric)], [{}, {"stock": "dirty"}])
            self.assertIn(metric, report["ratios"])
        zeroed = {row["variant"].get("stock"): row["values"] for row in self.rows(report, "zeroed_frames")}
        self.assertEqual(zeroed, {None: [0, 0], "dirty": [8, 8]})
        self.check_indexes(report, "16M", "1T")
        for part in report["index"]:
            self.assertGreater(part["share_percent"], 0)
        self.check_where(report)
        pairs = {(pair["ours"], pair["theirs"]) for pair in report["ratios"]["elapsed_ns"]["pairs"]}
        self.assertEqual(pairs, {(a, b) for a in ("hugepool", "hugepool stock=dirty") for b in ("kernel", "tuned")})

    def check_where(self, report):
        """The parts of each fill come to all of it."""
        for parts in report["where"]:
            whole = [parts[part] for part in ("zeroing_ns", "index_ns", "syscalls_ns", "other_ns")]
            if parts["engine"] == "hugepool":
                self.assertEqual(parts["zeroing_ns"] == 0, parts["variant"] == {})
                if None not in whole:  # tracing is allowed
                    self.assertTrue(math.isclose(sum(whole), parts["elapsed_ns"], rel_tol=1e-6))
        calls = {row["engine"]: row["median"] for row in report["rows"] if row["metric"] == "syscalls"}
        for engine, count in {"kernel": 1, "tuned": 2}.items():
            self.assertEqual(calls.get(engine, count), count)

    def check_indexes(self, report, *sizes):
        kinds = [("radix", "frame"), ("radix", "run"), ("flat", "frame")]
        for metric in ("insert_ns", "lookup_ns", "bytes_per_frame"):
            found = [
                (row["engine"], *row["variant"].values())
                for row in report["rows"]
                if row["metric"] == metric and row["engine"] != "hugepool"
            ]
            self.assertEqual(found, [(*kind, size) for size in sizes for kind in kinds])
        alone = [row["engine"] for row in report["rows"] if row["metric"] == "lookup_alone_ns"]
        self.assertEqual(alone, ["radix", "radix"] * len(sizes))  # the table has no read sections
        memory = {
            (row["engine"], row["variant"]["insert"]): row["median"]
            for row in report["rows"]
            if row["metric"] == "bytes_per_frame" and row["variant"].get("size") == "1T"
        }
        if memory:
            self.assertEqual(memory["flat", "frame"], 4)
            self.assertTrue(8 < memory["radix", "frame"] < 8.1)
            self.assertLess(memory["radix", "run"], 0.1)

    def test_fallocate_no_stock(self):
        report = self.measure(*FALLOCATE, "--no-stock")
        self.assertEqual([row["variant"] for row in self.rows(report, "elapsed_ns")], [{}])
        self.assertEqual(self.rows(report, "zeroed_frames")[0]["values"], [8, 8])

    def test_fallocate_sim(self):
        """Works without huge pages, and without memory."""
        report = self.measure("fallocate", "--sim", "--size", "8G")
        for metric in ("bytes_per_s", "elapsed_ns", "insert_ns", "bytes_per_frame"):
            self.assertEqual(len(self.rows(report, metric)), 1, metric)
        self.check_indexes(report, "8G")
        self.assertEqual(report["where"], [])
        self.assertEqual(report["discarded"]["count"], 0)

    def test_fallocate_table(self):
        done = run(*FALLOCATE, "--rounds", "1")
        self.assertIn(done.returncode, (0, 3), done.stderr)
        for text in ("where the time goes", "radix insert=run size=1T", "flat insert=frame size=16M"):
            self.assertIn(text, done.stdout)
        if done.returncode == 0:
            self.assertIn("hugepool stock=dirty", done.stdout)

    def check_fork_cow(self, report):
        policies = [{}, {"policy": "without"}, {"policy": "copy"}]
        self.assertEqual(report["bench"], "fork-cow")
        self.assertEqual(report["params"]["size"], 16 << 20)
        self.assertEqual(report["params"]["writes"], 4)
        self.assertEqual([row["variant"] for row in self.rows(report, "fork_ns")], policies)
        self.assertEqual([row["variant"] for row in self.rows(report, "first_write_ns")], policies)
        self.assertEqual([row["variant"] for row in self.rows(report, "child_first_write_ns")], policies[::2])
        kernels = {row["metric"]: row["values"] for row in report["rows"] if row["engine"] == "kernel"}
        for row in report["rows"]:
            self.assertGreater(row["min"], 0)
        for metric, ratios in report["ratios"].items():
            self.assertEqual(
                [pair["ours"] for pair in ratios["pairs"]],
                ["hugepool", "hugepool policy=without", "hugepool policy=copy"],
            )
            ours = self.rows(report, metric)[0]["values"]
            if len(kernels.get(metric, [])) == len(ours) == ratios["pairs"][0]["samples"]:
                expected = statistics.median(b / a for a, b in zip(ours, kernels[metric]))
                self.assertTrue(math.isclose(ratios["pairs"][0]["ratio"], expected, rel_tol=1e-6))
        return kernels

    def test_fork_cow(self):
        self.check_fork_cow(self.measure(*FORK_COW))
        report = self.measure("fork-cow", "--size", "1M", "--rounds", "7")
        self.assertEqual(report["params"]["size"], 4 << 20)
        self.assertEqual(report["params"]["writes"], 1)
        for pair in report["ratios"]["fork_ns"]["pairs"]:
            if pair["samples"] >= 6:
                self.assertLessEqual(pair["low"], pair["ratio"])
                self.assertLessEqual(pair["ratio"], pair["high"])

    def test_fork_cow_none(self):
        """Without huge pages of the kernel's its row is missing, and it is told why."""
        done = run(*FORK_COW, "--rounds", "2", "--json", env={**os.environ, "HUGEPOOL_PAGES_NONE": "1"})
        report = json.loads(done.stdout)
        self.check(report)
        if done.returncode == 0 and not self.check_fork_cow(report):
            reasons = [reason for reason in report["discarded"]["reasons"] if reason["engine"] == "kernel"]
            self.assertEqual([reason["count"] for reason in reasons], [2])
            self.assertIn("no huge pages", reasons[0]["reason"])
            self.assertEqual([pair["samples"] for pair in report["ratios"]["fork_ns"]["pairs"]], [0, 0, 0])

    def test_fork_cow_table(self):
        done = run(*FORK_COW, "--rounds", "1")
        self.assertIn(done.returncode, (0, 3), done.stderr)
        for text in ("child_first_write_ns", "times as fast as the kernel", "hugepool policy=without"):
            self.assertIn(text, done.stdout)

    def check_pairs(self, report, metric, series):
        """All of them, each the median of the rounds' ratios: theirs to ours."""
        pairs = report["ratios"][metric]["pairs"]
        self.assertEqual([(pair["ours"], pair["theirs"]) for pair in pairs], series)
        values = {
            (row["engine"] + "".join(f" {key}={value}" for key, value in row["variant"].items())): row["values"]
            for row in report["rows"]
            if row["metric"] == metric
        }
        for pair in pairs:
            ours, theirs = values.get(pair["ours"], []), values.get(pair["theirs"], [])
            self.assertLessEqual(pair["samples"], min(len(ours), len(theirs)))
            if len(ours) == len(theirs) == pair["samples"] > 0:  # no round was discarded
                ratios = [b / a for a, b in zip(ours, theirs)]
                self.assertTrue(math.isclose(pair["ratio"], statistics.median(ratios), rel_tol=1e-6))
                self.assertEqual(pair["low"] is None, len(ratios) < 6)

    def test_collapse(self):
        report = self.measure(*COLLAPSE, "--pairs", "7")
        self.assertEqual(report["bench"], "collapse")
        self.assertEqual(report["params"], {"count": 3, "pairs": 7, "trace": True})
        variants = [{"collapse": "upgrade"}, {"collapse": "relock"}, {"collapse": "upgrade again"}]
        writers = [{"writers": "2"}, {"writers": "1 pinned"}]
        for metric in ("collapse_us", "collapse_median_us"):
            self.assertEqual([row["variant"] for row in self.rows(report, metric)], variants + writers)
            upgrade = "hugepool collapse=upgrade"
            rivals = ["hugepool collapse=relock", upgrade + " again", "kernel memory=shmem", "kernel memory=anonymous"]
            self.check_pairs(report, metric, [(upgrade, rival) for rival in rivals])
        parts = [
            statistics.mean(row["values"])
            for metric in ("lock_us", "protect_us", "copy_us", "switch_us", "free_us")
            for row in self.rows(report, metric)[:1]
        ]
        self.assertEqual(len(parts), 5)
        self.assertGreater(min(parts), 0)
        rechecked = [row["values"] for row in self.rows(report, "rechecked")]
        self.assertEqual([bool(max(values)) for values in rechecked], [False, True, False])
        self.assertEqual(max(self.rows(report, "gave_up")[1]["values"]), 0)
        self.assertEqual(self.rows(report, "writer_pause_us")[0]["variant"], writers[0])
        self.assertGreater(self.rows(report, "copy_us", "copy")[0]["min"], 0)
        self.check_trace(report)

    def check_trace(self, report):
        """The kernel's function is a part of the call; where tracing is not allowed the reason is told."""
        rows = {(row["metric"], *row["variant"].values()): row for row in report["rows"] if row["engine"] == "kernel"}
        for memory in ("anonymous", "shmem"):
            function, call = rows.get(("function_us", memory)), rows.get(("traced_call_us", memory))
            if function:
                for part, whole in zip(function["values"], call["values"]):
                    self.assertTrue(0 < part <= whole)
            elif ("collapse_us", memory) in rows:
                reasons = [reason["reason"] for reason in report["discarded"]["reasons"]]
                self.assertTrue([reason for reason in reasons if "trac" in reason], reasons)
        for folder in ("/sys/kernel/tracing/instances", "/sys/kernel/debug/tracing/instances"):
            if os.access(folder, os.R_OK):
                self.assertFalse([name for name in os.listdir(folder) if name.startswith("hugepool-")])

    def test_collapse_no_trace(self):
        report = self.measure(*COLLAPSE, "--no-trace")
        self.assertFalse(report["params"]["trace"])
        self.assertFalse([row for row in report["rows"] if row["metric"] in ("function_us", "traced_call_us")])

    def test_collapse_none(self):
        """Without huge pages the rows of hugepool are left out, and those of the kernel are there."""
        done = run(*COLLAPSE, "--pairs", "2", "--json", env={**os.environ, "HUGEPOOL_PAGES_NONE": "1"})
        report = json.loads(done.stdout)
        self.check(report)
        if done.returncode == 3:
            ours = [reason for reason in report["discarded"]["reasons"] if reason["engine"] == "hugepool"]
            self.assertEqual([reason["count"] for reason in ours], [2] * 5)
            self.assertIn("huge pages", ours[0]["reason"])

    def test_collapse_table(self):
        done = run(*COLLAPSE, "--pairs", "2")
        self.assertIn(done.returncode, (0, 3), done.stderr)
        self.assertIn("2 MiB made huge", done.stdout)
        if done.returncode == 0:
            for text in ("A/A", "upgrade to relock, by medians", "bare copy", "pause of a writer"):
                self.assertIn(text, done.stdout)

    def check_tlb(self, report):
        states = [(size, phase) for phase in ("base", "half", "collapsed") for size in ("4M", "16M")]
        found = {}
        for metric in ("read_ns", "base_bytes", "frames", "in_place"):
            rows = [row for row in report["rows"] if row["metric"] == metric]
            self.assertEqual([tuple(row["variant"].values()) for row in rows], states)
            found[metric] = {tuple(row["variant"].values()): row["median"] for row in rows}
        for size, pages in (("4M", 2), ("16M", 8)):
            for phase, huge in (("base", 0), ("half", pages // 2), ("collapsed", pages)):
                state = (size, phase)
                self.assertEqual(found["frames"][state] + found["in_place"][state], huge)
                self.assertEqual(found["base_bytes"][state], (pages - found["frames"][state]) * (2 << 20))
        pairs = [(pair["ours"], pair["theirs"]) for pair in report["ratios"]["read_ns"]["pairs"]]
        expected = [(phase, size) for size in ("4M", "16M") for phase in ("half", "collapsed")]
        self.assertEqual(pairs, [(f"{phase} size={size}", f"base size={size}") for phase, size in expected])

    def test_tlb(self):
        report = self.measure(*TLB)
        self.assertEqual(report["bench"], "tlb")
        self.assertEqual(report["params"], {"sizes": "4M,16M", "rounds": 2})
        self.check_tlb(report)

    def test_tlb_none(self):
        """Without huge pages of its pool the kernel collapses in place, if it can."""
        done = run(*TLB, "--rounds", "2", "--json", env={**os.environ, "HUGEPOOL_PAGES_NONE": "1"})
        report = json.loads(done.stdout)
        self.check(report)
        if done.returncode == 0:
            self.check_tlb(report)

    def test_tlb_too_large(self):
        """What does not fit is left out, with the reason."""
        done = run("tlb", "--sizes", "4M,4T", "--rounds", "1")
        self.assertIn(done.returncode, (0, 3), done.stderr)
        self.assertIn("1 round of hugepool size=4T: it takes", done.stdout)

    def test_zero(self):
        report = self.measure("zero", "--size", "8M")
        self.assertGreater(report["ratios"]["bytes_per_s"]["vs_loop"], 0)
        self.assertGreater(report["ratios"]["bytes_per_s"]["vs_memset"], 0)


class Locks(unittest.TestCase):
    """The locks by themselves: no huge pages, no engine, and ratios of their own."""

    def measure(self, *args):
        done = run(*LOCKS, *args, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        report = json.loads(done.stdout)
        check_rows(self, report)
        self.assertEqual(report["bench"], "locks")
        for ratios in report["ratios"].values():
            for ratio in ratios:
                self.assertLessEqual(ratio["min"], ratio["ratio"])
                self.assertLessEqual(ratio["ratio"], ratio["max"])
                self.assertEqual(ratio["low"] is None, ratio["samples"] < 6)
        return report

    def values(self, report, metric, engine, **variant):
        found = [
            row["values"]
            for row in report["rows"]
            if (row["metric"], row["engine"]) == (metric, engine) and variant.items() <= row["variant"].items()
        ]
        self.assertEqual(len(found), 1, (metric, engine, variant))
        return found[0]

    def ratio(self, report, metric, ours, **variant):
        found = [
            ratio
            for ratio in report["ratios"][metric]
            if ratio["ours"] == ours and variant.items() <= ratio["variant"].items()
        ]
        self.assertEqual(len(found), 1, (metric, ours, variant))
        return found[0]

    def check_ratio(self, ratio, ours, theirs):
        """The median of the pairs' ratios; for twelve, the third from each end bounds it with 96 %."""
        pairs = sorted(a / b for a, b in zip(ours, theirs))
        self.assertEqual(ratio["samples"], len(pairs))
        self.assertTrue(math.isclose(ratio["ratio"], statistics.median(pairs), rel_tol=1e-6))
        if len(pairs) == 12:
            self.assertTrue(math.isclose(ratio["low"], pairs[2], rel_tol=1e-6))
            self.assertTrue(math.isclose(ratio["high"], pairs[9], rel_tol=1e-6))

    def test_uncontended(self):
        report = self.measure("--uncontended")
        self.assertEqual(set(report["ratios"]), {"op_s", "own_s"})
        for section in ("empty", "200ns"):
            for metric in ("op_s", "own_s"):
                mutex = self.values(report, metric, "hp_mutex", section=section)
                theirs = self.values(report, metric, "pthread_mutex", section=section)
                self.check_ratio(self.ratio(report, metric, "hp_mutex", section=section), mutex, theirs)
                self.values(report, metric, "hp_rwsem", section=section, mode="upgradeable")
            bare = self.values(report, "op_s", "none", section=section)
            whole = self.values(report, "op_s", "hp_biased", section=section, mode="read")
            own = self.values(report, "own_s", "hp_biased", section=section, mode="read")
            for a, b, c in zip(whole, bare, own):
                self.assertTrue(math.isclose(a - b, c, abs_tol=1e-12))
        self.assertEqual(self.ratio(report, "own_s", "hp_mutex", section="200ns")["at_most"], 1.1)
        self.assertEqual(self.ratio(report, "own_s", "hp_biased", section="200ns", mode="read")["at_most"], 0.6)
        self.assertIsNone(self.ratio(report, "op_s", "hp_biased", section="200ns", mode="read")["at_most"])

    def test_statistics(self):
        report = self.measure("--stats", "--section", "empty")
        self.assertEqual(set(report["ratios"]), {"statistics"})
        lock = {"mode": "read", "section": "empty"}
        off = self.values(report, "op_s", "hp_biased", statistics="off", **lock)
        for name in ("on", "off again"):
            ratio = self.ratio(report, "statistics", name, engine="hp_biased", **lock)
            self.check_ratio(ratio, self.values(report, "op_s", "hp_biased", statistics=name, **lock), off)
            self.assertEqual(ratio["at_most"], 1.15 if name == "on" else None)

    def test_contended(self):
        report = self.measure("--contended", "--share", "90,0")
        self.assertEqual(set(report["ratios"]), {"ops_per_s"})
        rivals = {"90": ("pthread_rwlock", "hp_rwsem", "hp_biased"), "0": ("pthread_mutex", "hp_mutex")}
        for crowd in ({"threads": "2"}, {"processes": "3"}):
            for section in ("empty", "200ns"):
                for reads, engines in rivals.items():
                    variant = {"reads": reads, "section": section, **crowd}
                    theirs = self.values(report, "ops_per_s", engines[0], **variant)
                    for engine in engines[1:]:
                        ours = self.values(report, "ops_per_s", engine, **variant)
                        self.assertGreater(min(ours), 0)
                        if min(theirs) > 0:
                            self.check_ratio(self.ratio(report, "ops_per_s", engine, **variant), ours, theirs)

    def test_table(self):
        done = run(*LOCKS, "--share", "50,0", "--section", "empty")
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("pthread_mutex", "hp_biased read, warm", "off to off", "2 threads", "3 processes"):
            self.assertIn(text, done.stdout)


class Statistics(unittest.TestCase):
    """What statistics cost: ratios on to off, and off to off, of each work, from the pairs in the rows."""

    def test_report(self):
        done = run("statistics", "--size", "8M", "--seconds", "0.001", "--pairs", "7", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        check_rows(self, report)
        self.assertEqual(report["bench"], "statistics")
        self.assertEqual(report["params"]["pairs"], 7)
        values = {(row["metric"], *row["variant"].values()): row["values"] for row in report["rows"]}
        works = {("touch", "8M", "1"), ("touch", "8M", "default"), ("map", "2M"), ("map", "64M")}
        self.assertEqual({key[1:] for key in values}, works)
        ratios = report["ratios"]["statistics"]
        self.assertEqual(len(ratios), 2 * len(works))
        for ratio in ratios:
            work = tuple(ratio["variant"].values())
            ours = values[("on_s" if ratio["ours"] == "on" else "off_again_s", *work)]
            pairs = sorted(a / b for a, b in zip(ours, values[("off_s", *work)]))
            self.assertEqual(ratio["samples"], 7)
            self.assertTrue(math.isclose(ratio["ratio"], pairs[3], rel_tol=1e-6))
            self.assertTrue(math.isclose(ratio["high"], pairs[6], rel_tol=1e-6))
            self.assertEqual(ratio["at_most"], 1.02 if ratio["ours"] == "on" else None)
            self.assertGreater(min(values[("locks", *work)]), 0)

    def test_table(self):
        done = run("statistics", "--size", "8M", "--seconds", "0.001", "--rounds", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("lazy page, 8 MiB, window 1", "map and unmap, 64 MiB", "on to off", "A/A"):
            self.assertIn(text, done.stdout)


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
            ["forks", "word"],
            ["forks", "--instances", "0"],
            ["forks", "--instances", "161"],
            ["forks", "--seconds", ""],
            ["combined", "word"],
            ["combined", "--instances", "x"],
            ["combined", "--rounds", "0"],
            ["combined", "--lazy", "--tuning", "file_lock=vma"],
            ["combined", "--tuning", "fault_window=3"],
            ["faults", "--tuning", "nosuch=1"],
            ["forks", "--lazy", "--tuning", "file_lock=none"],
            ["parallel-fault", "1", "2048", "2048", "--tuning", "nosuch=1"],
            ["parallel-fault"],
            ["parallel-fault", "1", "2048", "2048", "--fault-mutexes", "3"],
            ["parallel-fault", "1", "2048", "2048", "--fault-mutexes", "1,"],
            ["parallel-fault", "1", "2048", "2048", "--fault-mutexes", "1,2,4,8,16"],
            ["parallel-fault", "1", "2048"],
            ["parallel-fault", "0", "2048", "2048"],
            ["parallel-fault", "1", "2048", "2048", "1"],
            ["parallel-fault", "1", "2048", "2048", "--fault-around", "2"],
            ["parallel-fault", "1", "2048", "2048", "--lazy", "--fault-around", "3"],
            ["fork-cow", "word"],
            ["fork-cow", "--size", "0"],
            ["fork-cow", "--rounds", "0"],
            ["fallocate", "word"],
            ["fallocate", "--nosuch"],
            ["fallocate", "--size", "0"],
            ["fallocate", "--size", "2X"],
            ["fallocate", "--size", "17T"],
            ["fallocate", "--rounds", "0"],
            ["fallocate", "--sim", "--no-stock"],
            ["collapse", "word"],
            ["collapse", "--nosuch"],
            ["collapse", "--count", "0"],
            ["collapse", "--count", "1001"],
            ["collapse", "--pairs", "0"],
            ["collapse", "--rounds", "x"],
            ["tlb", "word"],
            ["tlb", "--sizes", ""],
            ["tlb", "--sizes", "1G,"],
            ["tlb", "--sizes", "1X"],
            ["tlb", "--sizes", "0"],
            ["tlb", "--sizes", "1G,1G,1G,1G,1G,1G,1G,1G,1G"],
            ["tlb", "--rounds", "0"],
            ["zero", "word"],
            ["locks", "word"],
            ["locks", "--threads", "0"],
            ["locks", "--threads", "2,"],
            ["locks", "--threads", "1,2,3,4,5,6,7,8,9"],
            ["locks", "--processes", "100000"],
            ["locks", "--share", "101"],
            ["locks", "--section", "100ns"],
            ["locks", "--rounds", "0"],
            ["locks", "--batches", "0"],
            ["locks", "--seconds", "0"],
            ["statistics", "word"],
            ["statistics", "--pairs", "0"],
            ["statistics", "--size", "0"],
            ["statistics", "--seconds", "0"],
            ["reference", "word"],
        ):
            with self.subTest(args=args):
                done = run(*args)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stdout, "")
                self.assertTrue(done.stderr)

    def test_help(self):
        workloads = ["parallel-fault", "faults", "forks", "fork-cow", "combined", "fallocate", "zero", "locks"]
        for args in ([], *([word] for word in [*workloads, "collapse", "tlb", "statistics", "reference"])):
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

    def test_locks(self):
        """A crowd that is taking locks ends with the bench."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with subprocess.Popen(
                [HUGEPOOL, "bench", "locks", "--contended", "--processes", "4", "--seconds", "20"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ) as bench:
                time.sleep(0.5)
                self.assertEqual(len(processes_of(bench.pid)), 5)
                bench.send_signal(number)
                self.assertEqual(bench.wait(timeout=30), -number)
                bench.stdout.read()  # ends when nobody is left who could write
            deadline = time.monotonic() + 10
            while processes_of(bench.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertEqual(processes_of(bench.pid), [])

    def test_done(self):
        before = nr_hugepages()
        run(*FAULTS, "--rounds", "1")
        self.assertEqual(nr_hugepages(), before)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    HUGEPOOL = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
