"""A simulated day: everything at once, killed at random.

    python benchmarks/soak.py --hours 24 --minutes 20 [--seed 1]

One cache of the testbed grows by ten questions and more an hour. Collections, compactions and
trainings are killed or interrupted at random moments; two collectors start together; copies are
damaged and repaired; the cache is repriced, swept, reported, exported and imported, pushed and
pulled. All the while one `hierrouter serve` answers a client that compares each answer with the
replayed tree. Whatever was seen in the cache once must be there, equal, ever after. Files, bytes,
the server's memory and its open files must stay flat, and each command must end with its documented
exit code and one line where it failed. Ends with 1 at the first promise that is broken.

The commands and what is asked of them: `soak_commands.py`; the server: `soak_server.py`. Not
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

FAMILIES, FIRST_LIMIT = 10, 10  # questions of each family at the beginning
KNOWN = {"parts", "derived", "quarantine", "tmp", "collect.lock", "start.lock", "pull.lock"}
SHARD_LOCK = re.compile(r"shard-\d+-of-\d+\.lock")
OF_A_RUN = {"live.json", "policy.safetensors", "run.json", "run.lock"}
EPOCHS = "12"
JOBS_AN_HOUR, ATTACKS = 2, 2  # more attacks where time is left


class Day:
    """The cache, what was seen in it, and the jobs of an hour."""

    def __init__(self, commands: Commands, seed: int) -> None:
        self.do = commands
        self.place = commands.folder
        self.cache = self.place / "cache"
        self.run = self.place / "runs" / "served"
        self.run.parent.mkdir()
        self.limit = FIRST_LIMIT
        self.seen: Rows = {}
        self.rng = random.Random(seed)
        self._deck: list[Callable[[], None]] = []

    def next_job(self) -> None:
        """In random order; each comes up once before any comes up again."""
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
        limit = str(self.limit)
        return ["collect", "--datasets", "testbed", "--limit", limit, "--cache", self.cache]

    def check(self) -> None:
        """Whatever was there is there, and equal; then all that is there counts as seen."""
        now = stored(self.cache)
        lost = [name for name in self.seen if name not in now]
        promise(not lost, f"{len(lost)} rows are lost: {lost[:3]}")
        other = [name for name, row in self.seen.items() if now[name] != row]
        promise(not other, f"{len(other)} rows are not what they were: {other[:3]}")
        self.seen = now

    def collect(self) -> None:
        """To the end: makes what is missing and nothing else, and leaves no draft."""
        before = self.calls()
        _, said = self.do.run(*self.collecting())
        self.check()
        made = self.calls() - before
        promise(f" {made:,} calls made" in said, f"{made} calls are new: {said}")
        promise(self.info()["queries"] == FAMILIES * self.limit, "not the last plan")
        self.no_drafts()

    def calls(self) -> int:
        return calls(self.seen)

    def info(self, cache: Path | None = None) -> dict[str, int]:
        out, _ = self.do.run("cache", "info", "--cache", cache or self.cache, "--format", "json")
        found: dict[str, int] = json.loads(out)
        whole = found["complete_queries"] == found["queries"] and not found["missing_nodes"]
        promise(whole, f"incomplete: {out}")
        return found

    def no_drafts(self) -> None:
        left = [path.name for path in (self.cache / "tmp").iterdir()]
        promise(not left, f"drafts are left: {left}")
        strange = [
            name
            for name in (path.name for path in self.cache.iterdir())
            if name not in KNOWN and not SHARD_LOCK.fullmatch(name)
        ]
        promise(not strange, f"files that no page names: {strange}")

    def attack(self) -> None:
        """A collection that wants more, or a compaction, killed or interrupted."""
        how = self.rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT])
        if self.rng.random() < 0.7:
            self.do.strike(how, self.rng.uniform(0.3, 3), *self.collecting())
        else:
            words = ("cache", "compact", "--cache", self.cache)
            self.do.strike(how, self.rng.uniform(0.2, 0.6), *words)
        self.check()

    def compact(self) -> tuple[int, int]:
        """Parts and bytes afterwards: one part a kind, as long as they are so small."""
        self.do.run("cache", "compact", "--cache", self.cache)
        self.check()
        self.no_drafts()
        parts = list_parts(self.cache)
        kinds = Counter(part.kind for part in parts)
        promise(max(kinds.values()) == 1, f"not compact: {kinds}")
        promise(sum(part.rows for part in parts) == len(self.seen), "rows are stored twice")
        derived = [path for path in self.cache.glob("derived/*/emb-*") if path.is_file()]
        promise(len(derived) <= 2, f"embeddings in {len(derived)} files")
        return len(parts), sum(part.path.stat().st_size for part in parts)

    def look(self) -> None:
        self.do.run("verify", "--rescore", "--cache", self.cache)
        query = "SELECT count(*) AS n FROM nodes"
        self.do.run("cache", "sql", query, "--cache", self.cache, "--format", "json")

    def two_collectors(self) -> None:
        """Both want more: one is refused while the other is at work."""
        self.limit += 1
        pair = [self.do.start(*self.collecting()) for _ in range(2)]
        codes = [self.do.end(process, (0, LOCKED), *self.collecting())[0] for process in pair]
        promise(0 in codes, "both collectors were refused")
        self.check()
        self.info()

    def two_shards(self) -> None:
        """Side by side, one of them killed, then started again; together they make a whole."""
        self.limit += 1
        shards = [[*self.collecting(), "--shard", f"{number}/2"] for number in (1, 2)]
        first, second = (self.do.start(*words) for words in shards)
        time.sleep(self.rng.uniform(0.3, 2))
        second.send_signal(signal.SIGKILL)
        self.do.end(second, (0, KILLED), *shards[1])
        self.do.end(first, (0,), *shards[0])
        self.do.run(*shards[1])
        self.check()
        self.info()

    def damage_a_copy(self) -> None:
        """Named by verify, refused by report, moved aside by repair, collected or scored again."""
        copy = self.place / "copy"
        shutil.copytree(self.cache, copy)
        part = self.rng.choice([part for part in list_parts(copy) if part.kind != "plans"])
        data = bytearray(part.path.read_bytes())
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        part.path.write_bytes(data[: self.rng.choice([len(data), len(data) // 2])])
        for words in (["verify"], ["report", "--checkpoint", self.run]):
            out, said = self.do.run(*words, "--cache", copy, codes=(LOCKED,))
            promise(part.path.name in out + said, f"{words} does not name {part.path.name}")
        self.do.run("cache", "repair", "--cache", copy)
        lost = self.calls() - calls(stored(copy))
        words = ["collect", "--datasets", "testbed", "--limit", str(self.limit)]
        _, said = self.do.run(*words, "--cache", copy)
        promise(f" {lost:,} calls made" in said, f"{part.path.name}, {lost} calls lost: {said}")
        self.routes(copy)  # computes the scores that are lost
        now = without_latency(stored(copy))
        lost_rows = without_latency(self.seen).items() - now.items()
        promise(not lost_rows, f"{part.path.name}: repaired, but {len(lost_rows)} rows are other")
        shutil.rmtree(copy)

    def reprice(self) -> None:
        """Other prices, other costs, the same quality; no call is made."""
        prices = self.place / "prices.toml"
        prices.write_text(f"[prices]\ncalc = {self.rng.uniform(0.1, 2):.3f}\n")
        before = self.calls()
        plain, priced, by_file = (
            self.routes(self.cache, *flags)
            for flags in ((), ("--price", "calc=9"), ("--prices", str(prices)))
        )
        for other in (priced, by_file):
            promise(_column(other, "quality") == _column(plain, "quality"), "a price changed Q")
            promise(_column(other, "cost") != _column(plain, "cost"), "a price changed no cost")
        self.check()
        promise(self.calls() == before, "a report made calls")

    def routes(self, cache: Path, *flags: str) -> dict[str, dict[str, float]]:
        """The rows of a report on fixed routes, by name and dataset."""
        words: list[str | Path] = ["report", "--cache", cache, "--alpha", "0.1", "--format", "json"]
        out, _ = self.do.run(*words, *flags)
        return {
            f"{row['policy']} {row['dataset']}": row
            for row in json.loads(out)["rows"]
            if row["kind"] in ("single", "route")
        }

    def training(self, run: Path) -> list[str | Path]:
        words = ["train", "--alpha", "0.1", "--algo", "exact", "--epochs", EPOCHS]
        return [*words, "--cache", self.cache, "--out", run]

    def train_again(self) -> None:
        """Killed or interrupted and gone on with, it ends with the bytes of one that was not."""
        killed, undisturbed = self.place / "runs" / "killed", self.place / "runs" / "undisturbed"
        for _ in range(2):
            how = self.rng.choice([signal.SIGKILL, signal.SIGINT])
            self.do.strike(how, self.rng.uniform(0.5, 3), *self.training(killed))
        for run in (killed, undisturbed):
            self.do.run(*self.training(run))
            left = {path.name for path in run.iterdir()}
            promise(left == OF_A_RUN, f"files of a finished run: {left}")
        pair = [(run / "policy.safetensors").read_bytes() for run in (killed, undisturbed)]
        promise(
            pair[0] == pair[1], "a training that was killed and made again ended with other bytes"
        )
        self.do.run("report", "--cache", self.cache, "--checkpoint", killed, "--format", "json")
        shutil.rmtree(killed)
        shutil.rmtree(undisturbed)

    def sweep(self) -> None:
        run = self.place / "runs" / "sweep"
        on: list[str | Path] = ["--cache", self.cache]
        learner = ["--algo", "exact", "--epochs", "6"]
        self.do.run("sweep-alpha", "--alphas", "0,0.1,0.5", *learner, *on, "--out", run)
        page: list[str | Path] = ["--out", self.place / "page"]
        self.do.run("report", *on, "--sweep", run, "--alpha", "0.3", *page)
        for folder in (run, self.place / "page"):
            shutil.rmtree(folder)

    def export_and_import(self) -> None:
        """Into a second cache that has what was exported before; twice is once."""
        file, second = self.place / "export.jsonl", self.place / "second"
        self.do.run("cache", "export", "--cache", self.cache, "--out", file)
        for _ in range(2):
            self.do.run("cache", "import", file, "--cache", second)
        equal = self._but_plans(without_latency(stored(second)))
        promise(equal == self._but_plans(without_latency(self.seen)), "imported other rows")
        self.info(second)
        self.do.run("cache", "compact", "--cache", second)
        file.unlink()

    def push_and_pull(self) -> None:
        """Into a third cache; and what a compaction merged comes back and changes nothing."""
        mirror, third = self.place / "mirror", self.place / "third"
        self.do.run("cache", "push", mirror, "--cache", self.cache)
        for cache in (third, self.cache):
            self.do.run("cache", "pull", mirror, "--cache", cache)
        self.check()
        promise(stored(third) == self.seen, "pulled other rows")
        self.do.run("cache", "compact", "--cache", third)

    @staticmethod
    def _but_plans(rows: Rows) -> Rows:
        return {name: row for name, row in rows.items() if name[0] != "plans"}


def _column(rows: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    return {policy: row[name] for policy, row in rows.items()}


def live_through(day: Day, client: Client, watch: Watch, hours: int, seconds: float) -> None:
    """All hours; each fills its share of the time with attacks."""
    began = time.monotonic()
    for hour in range(1, hours + 1):
        for _ in range(JOBS_AN_HOUR):
            day.next_job()
        day.limit += 1
        attacks = 0
        while attacks < ATTACKS or time.monotonic() - began < hour * seconds / hours - 4:
            day.attack()
            attacks += 1
        day.collect()
        parts, size = day.compact()
        client.expected = replay_answers(day.run, day.cache, "test", 10_000)
        promise(client.is_alive(), f"the client: {client.wrong}")
        watch.look(size / len(day.seen))
        print(
            f"hour {hour:2}: {attacks:2} attacks, {len(day.seen):6,} rows in {parts} parts, "
            f"{watch.row_bytes[-1]:4.1f} bytes each; {client.asked.total():5,} requests, "
            f"server {watch.memory[-1]:4.0f} MiB, {watch.files[-1]} files; "
            f"{time.monotonic() - began:5.0f} s",
            flush=True,
        )


def soak(commands: Commands, hours: int, seconds: float, seed: int) -> None:
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    warm = WarmProcess(environment, ROOT)
    with contextlib.closing(warm), tempfile.TemporaryDirectory(prefix="soak-") as folder:
        try:
            soak(Commands(warm.warm, Path(folder)), args.hours, 60 * args.minutes, args.seed)
        except BrokenPromise as broken:
            sys.exit(f"broken: {broken}")
    print("every promise was kept")


if __name__ == "__main__":
    main()
