"""A simulated day of use: all commands together, killed at random moments.

    python benchmarks/soak.py --hours 24 --minutes 20 [--seed 1]

One cache of the testbed grows by ten questions or more an hour. Collections, compactions and
trainings are killed or interrupted at random moments; two collectors start together; copies are
damaged and repaired; the cache is repriced, swept, reported, exported and imported, pushed and
pulled. Meanwhile one `hierrouter serve` answers a client that compares each answer with the
replayed tree. A row that was once read from the cache must stay in it, unchanged. The number of
files, bytes per row, the server's memory and its open files must not grow, and each command must
end with its documented exit code, and with one error line if it fails. The script ends with exit
code 1 at the first broken promise.

The commands and their promises are in `soak_commands.py`, the server is in `soak_server.py`. Not
covered: power cuts (`power.py`), full disks (`tests/acceptance`), other machines.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
from live_agreement import replay_answers
from measuring import ROOT, versions
from soak_commands import (
    KILLED,
    LOCKED,
    BrokenPromise,
    Commands,
    Rows,
    calls,
    promise,
    stored,
    without_latency,
)
from soak_server import Client, Watch, running_server

from hierrouter_cache.parts import list_parts
from tests.warm import WarmProcess

FAMILY_COUNT = 10
FIRST_LIMIT = 10  # questions of each family at the beginning
CACHE_FILES = {"parts", "derived", "quarantine", "tmp", "collect.lock", "start.lock", "pull.lock"}
SHARD_LOCK = re.compile(r"shard-\d+-of-\d+\.lock")
RUN_FILES = {"live.json", "policy.safetensors", "run.json", "run.lock"}
EPOCHS = "12"
JOBS_PER_HOUR = 2
MIN_ATTACKS = 2  # per hour; more if time is left


class Day:
    """The cache and the jobs of an hour.

    Attributes:
        commands: runs `hierrouter`.
        folder: the working folder.
        cache: the cache's folder.
        run: the folder of the served run.
        limit: questions of each family.
        rows: the rows at the last check.
        rng: draws jobs and moments.
    """

    def __init__(self, commands: Commands, seed: int) -> None:
        self.commands = commands
        self.folder = commands.folder
        self.cache = self.folder / "cache"
        self.run = self.folder / "runs" / "served"
        self.run.parent.mkdir()
        self.limit = FIRST_LIMIT
        self.rows: Rows = {}
        self.rng = random.Random(seed)
        self._deck: list[Callable[[], None]] = []

    def next_job(self) -> None:
        """Run the next job; all jobs are run in random order before any is run again."""
        jobs = [
            self.look,
            self.two_collectors,
            self.two_shards,
            self.damage_a_copy,
            self.reprice,
            self.train_again,
            self.sweep,
            self.export_and_import,
            self.push_and_pull,
        ]
        self._deck = self._deck or self.rng.sample(jobs, len(jobs))
        self._deck.pop()()

    def collecting(self) -> list[str | Path]:
        """Return the arguments of a collection up to the limit."""
        limit = str(self.limit)
        return ["collect", "--datasets", "testbed", "--limit", limit, "--cache", self.cache]

    def check(self) -> None:
        """Check that all earlier rows are still stored, unchanged; then take over the new ones."""
        rows = stored(self.cache)
        lost = [name for name in self.rows if name not in rows]
        promise(not lost, f"{len(lost)} rows are lost: {lost[:3]}")
        changed = [name for name, row in self.rows.items() if rows[name] != row]
        promise(not changed, f"{len(changed)} rows are not what they were: {changed[:3]}")
        self.rows = rows

    def collect(self) -> None:
        """Collect to the end: only missing calls are made, and no draft is left."""
        before = self.calls()
        _, message = self.commands.run(*self.collecting())
        self.check()
        new_calls = self.calls() - before
        promise(f" {new_calls:,} calls made" in message, f"{new_calls} calls are new: {message}")
        promise(self.info()["queries"] == FAMILY_COUNT * self.limit, "not the last plan")
        self.no_drafts()

    def calls(self) -> int:
        return calls(self.rows)

    def info(self, cache: Path | None = None) -> dict[str, int]:
        """Return `cache info`, after checking that the cache is complete."""
        out, _ = self.commands.run(
            "cache", "info", "--cache", cache or self.cache, "--format", "json"
        )
        info: dict[str, int] = json.loads(out)
        has_all_queries = info["complete_queries"] == info["queries"]
        promise(has_all_queries and not info["missing_nodes"], f"incomplete: {out}")
        return info

    def no_drafts(self) -> None:
        """Check that no draft and no unknown file is left."""
        left = [path.name for path in (self.cache / "tmp").iterdir()]
        promise(not left, f"drafts are left: {left}")
        names = {path.name for path in self.cache.iterdir()} - CACHE_FILES
        unknown = [name for name in names if not SHARD_LOCK.fullmatch(name)]
        promise(not unknown, f"files that no page names: {unknown}")

    def attack(self) -> None:
        """Kill or interrupt a collection with a higher limit, or a compaction."""
        number = self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT])
        if self.rng.random() < 0.7:
            self.commands.strike(number, self.rng.uniform(0.3, 3), *self.collecting())
        else:
            words = ("cache", "compact", "--cache", self.cache)
            self.commands.strike(number, self.rng.uniform(0.2, 0.6), *words)
        self.check()

    def compact(self) -> tuple[int, int]:
        """Compact the cache to one part of each kind; return the number of parts and bytes."""
        self.commands.run("cache", "compact", "--cache", self.cache)
        self.check()
        self.no_drafts()
        parts = list_parts(self.cache)
        kinds = Counter(part.kind for part in parts)
        promise(max(kinds.values()) == 1, f"not compact: {kinds}")
        promise(sum(part.rows for part in parts) == len(self.rows), "rows are stored twice")
        derived = [path for path in self.cache.glob("derived/*/emb-*") if path.is_file()]
        promise(len(derived) <= 2, f"embeddings in {len(derived)} files")
        return len(parts), sum(part.path.stat().st_size for part in parts)

    def look(self) -> None:
        """Verify the cache, and query it by SQL."""
        self.commands.run("verify", "--rescore", "--cache", self.cache)
        query = "SELECT count(*) AS n FROM nodes"
        self.commands.run("cache", "sql", query, "--cache", self.cache, "--format", "json")

    def two_collectors(self) -> None:
        """Start two collectors: one may be refused while the other one works."""
        self.limit += 1
        pair = [self.commands.start(*self.collecting()) for _ in range(2)]
        codes = [self.commands.end(process, (0, LOCKED), *self.collecting())[0] for process in pair]
        promise(0 in codes, "both collectors were refused")
        self.check()
        self.info()

    def two_shards(self) -> None:
        """Run two shards together, kill one and run it again; together they complete the plan."""
        self.limit += 1
        shards = [[*self.collecting(), "--shard", f"{number}/2"] for number in (1, 2)]
        first, second = (self.commands.start(*words) for words in shards)
        time.sleep(self.rng.uniform(0.3, 2))
        second.send_signal(signal.SIGKILL)
        self.commands.end(second, (0, KILLED), *shards[1])
        self.commands.end(first, (0,), *shards[0])
        self.commands.run(*shards[1])
        self.check()
        self.info()

    def damage_a_copy(self) -> None:
        """Damage a part of a copy, which must be detected and repaired.

        `verify` and `report` name the part, `repair` moves it away, and its rows are collected or
        scored again.
        """
        copy = self.folder / "copy"
        shutil.copytree(self.cache, copy)
        part = self.rng.choice([part for part in list_parts(copy) if part.kind != "plans"])
        data = bytearray(part.path.read_bytes())
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        part.path.write_bytes(data[: self.rng.choice([len(data), len(data) // 2])])
        for words in (["verify"], ["report", "--checkpoint", self.run]):
            out, message = self.commands.run(*words, "--cache", copy, codes=(LOCKED,))
            promise(part.path.name in out + message, f"{words} does not name {part.path.name}")
        self.commands.run("cache", "repair", "--cache", copy)
        lost = self.calls() - calls(stored(copy))
        words = ["collect", "--datasets", "testbed", "--limit", str(self.limit)]
        _, message = self.commands.run(*words, "--cache", copy)
        report = f"{part.path.name}, {lost} calls lost: {message}"
        promise(f" {lost:,} calls made" in message, report)
        self.routes(copy)  # computes the scores that are lost
        repaired = without_latency(stored(copy))
        lost_rows = without_latency(self.rows).items() - repaired.items()
        promise(not lost_rows, f"{part.path.name}: repaired, but {len(lost_rows)} rows are other")
        shutil.rmtree(copy)

    def reprice(self) -> None:
        """Report with other prices: other costs, the same quality, and no calls."""
        prices = self.folder / "prices.toml"
        prices.write_text(f"[prices]\ncalc = {self.rng.uniform(0.1, 2):.3f}\n")
        before = self.calls()
        plain = self.routes(self.cache)
        for flags in (("--price", "calc=9"), ("--prices", str(prices))):
            priced = self.routes(self.cache, *flags)
            promise(_column(priced, "quality") == _column(plain, "quality"), "a price changed Q")
            promise(_column(priced, "cost") != _column(plain, "cost"), "a price changed no cost")
        self.check()
        promise(self.calls() == before, "a report made calls")

    def routes(self, cache: Path, *flags: str) -> dict[str, dict[str, float]]:
        """Return the rows of a report on fixed routes, by policy and dataset."""
        words: list[str | Path] = ["report", "--cache", cache, "--alpha", "0.1", "--format", "json"]
        out, _ = self.commands.run(*words, *flags)
        return {
            f"{row['policy']} {row['dataset']}": row
            for row in json.loads(out)["rows"]
            if row["kind"] in ("single", "route")
        }

    def training(self, run: Path) -> list[str | Path]:
        """Return the arguments of a training."""
        words = ["train", "--alpha", "0.1", "--algo", "exact", "--epochs", EPOCHS]
        return [*words, "--cache", self.cache, "--out", run]

    def train_again(self) -> None:
        """Kill and resume a training; it must end with the bytes of an undisturbed one."""
        killed = self.folder / "runs" / "killed"
        undisturbed = self.folder / "runs" / "undisturbed"
        for _ in range(2):
            number = self.rng.choice([signal.SIGKILL, signal.SIGINT])
            self.commands.strike(number, self.rng.uniform(0.5, 3), *self.training(killed))
        for run in (killed, undisturbed):
            self.commands.run(*self.training(run))
            names = {path.name for path in run.iterdir()}
            promise(names == RUN_FILES, f"files of a finished run: {names}")
        is_same = (killed / "policy.safetensors").read_bytes() == (
            undisturbed / "policy.safetensors"
        ).read_bytes()
        promise(is_same, "a training that was killed and given again ended with other bytes")
        self.commands.run(
            "report", "--cache", self.cache, "--checkpoint", killed, "--format", "json"
        )
        shutil.rmtree(killed)
        shutil.rmtree(undisturbed)

    def sweep(self) -> None:
        """Sweep over alpha, and write a page of the report."""
        run = self.folder / "runs" / "sweep"
        cache_flag: list[str | Path] = ["--cache", self.cache]
        self.commands.run("sweep-alpha", "--alphas", "0,0.1,0.5", *cache_flag, "--out", run)
        page: list[str | Path] = ["--out", self.folder / "page"]
        self.commands.run("report", *cache_flag, "--sweep", run, "--alpha", "0.3", *page)
        for folder in (run, self.folder / "page"):
            shutil.rmtree(folder)

    def export_and_import(self) -> None:
        """Export, and import twice into a second cache: the second time changes nothing."""
        file = self.folder / "export.jsonl"
        second = self.folder / "second"
        self.commands.run("cache", "export", "--cache", self.cache, "--out", file)
        for _ in range(2):
            self.commands.run("cache", "import", file, "--cache", second)
        imported = self._without_plans(without_latency(stored(second)))
        exported = self._without_plans(without_latency(self.rows))
        promise(imported == exported, "imported other rows")
        self.info(second)
        self.commands.run("cache", "compact", "--cache", second)
        file.unlink()

    def push_and_pull(self) -> None:
        """Push to a mirror, and pull into a third cache and back: no row changes."""
        mirror = self.folder / "mirror"
        third = self.folder / "third"
        self.commands.run("cache", "push", mirror, "--cache", self.cache)
        for cache in (third, self.cache):
            self.commands.run("cache", "pull", mirror, "--cache", cache)
        self.check()
        promise(stored(third) == self.rows, "pulled other rows")
        self.commands.run("cache", "compact", "--cache", third)

    @staticmethod
    def _without_plans(rows: Rows) -> Rows:
        return {name: row for name, row in rows.items() if name[0] != "plans"}


def _column(rows: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    return {policy: row[name] for policy, row in rows.items()}


def live_through(day: Day, client: Client, watch: Watch, hours: int, seconds: float) -> None:
    """Run all hours; the rest of each hour's time is filled with attacks."""
    start = time.monotonic()
    for hour in range(1, hours + 1):
        for _ in range(JOBS_PER_HOUR):
            day.next_job()
        day.limit += 1
        attacks = 0
        while attacks < MIN_ATTACKS or time.monotonic() - start < hour * seconds / hours - 4:
            day.attack()
            attacks += 1
        day.collect()
        parts, size = day.compact()
        client.expected = replay_answers(day.run, day.cache, "test", 10_000)
        promise(client.is_alive(), f"the client: {client.wrong}")
        watch.look(size / len(day.rows))
        print(
            f"hour {hour:2}: {attacks:2} attacks, {len(day.rows):6,} rows in {parts} parts, "
            f"{watch.row_bytes[-1]:4.1f} bytes each; {client.asked.total():5,} requests, "
            f"server {watch.memory[-1]:4.0f} MiB, {watch.files[-1]} files; "
            f"{time.monotonic() - start:5.0f} s",
            flush=True,
        )


def soak(commands: Commands, hours: int, seconds: float, seed: int) -> None:
    """Prepare a cache and a run, start the server and its client, and run all hours."""
    day = Day(commands, seed)
    day.collect()
    commands.run(*day.training(day.run))
    expected = replay_answers(day.run, day.cache, "test", 10_000)
    with running_server(day.run, commands.folder) as (process, url):
        client = Client(url, expected, seed)
        client.start()
        watch = Watch(psutil.Process(process.pid))
        live_through(day, client, watch, hours, seconds)
        client.over.set()
        client.join()
        promise(not client.wrong, f"the client: {client.wrong}")
    lines = (commands.folder / "requests.jsonl").read_text().splitlines()
    answered = sum(client.asked[way] for way in ("plain", "stream"))
    promise(sum(json.loads(line)["status"] == 200 for line in lines) >= answered, "log lines lost")
    print(f"requests: {dict(client.asked)}")
    print(f"commands by exit code: {dict(sorted(commands.ended.items()))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(versions(psutil))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    # All three roots: else the processes would run the code that is installed, not this one.
    roots = os.pathsep.join(str(ROOT / folder) for folder in (".", "cache", "cli"))
    environment = {**os.environ, "PYTHONPATH": roots, "OMP_NUM_THREADS": "1"}
    warm = WarmProcess(environment, ROOT)
    with contextlib.closing(warm), tempfile.TemporaryDirectory(prefix="soak-") as folder:
        try:
            soak(Commands(warm.warm, Path(folder)), args.hours, 60 * args.minutes, args.seed)
        except BrokenPromise as broken:
            sys.exit(f"broken: {broken}")
    print("every promise was kept")


if __name__ == "__main__":
    main()
