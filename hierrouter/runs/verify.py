"""Check everything that figures rest on: a cache, its embeddings, runs and reports."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

from hierrouter.declarations import flags
from hierrouter.declarations.declaration import Flag, OnCount, declaration, ignore_count
from hierrouter.runs import folders
from hierrouter_cache import CACHE
from hierrouter_cache.errors import DamagedPart, InputError

if TYPE_CHECKING:
    from hierrouter.runs.integrity import Inspection


@declaration
class Verify:
    """Check a cache, and the runs beside it.

    Attributes:
        cache: its folder.
        rescore: whether to compute every score again, too.
        run_code: with `rescore`, whether to run the programs in answers once more, confined.
    """

    cache: flags.Cache = CACHE
    rescore: Annotated[bool, Flag("--rescore", help="Compute every score again, too.")] = False
    run_code: Annotated[
        bool, Flag("--run-code", help="With --rescore: run programs in answers again, confined.")
    ] = False

    def inspect(self) -> Inspection:
        """Hash every byte of the cache and of the runs in `runs`; rows are not looked at.

        Raises:
            InputError: programs are to be run, but no score is to be computed.
            CacheError: the cache is of a newer version, or keeps changing.
        """
        from hierrouter.runs.integrity import inspect_files

        if self.run_code and not self.rescore:
            raise InputError("--run-code is for --rescore; add it")
        return inspect_files(self.cache, folders.RUNS)

    def check_rows(self, on_rows: OnCount = ignore_count) -> list[str]:
        """Compute the key of every row of the cache again, and look for missing ones.

        Args:
            on_rows: called with (rows checked since the last call, rows in all).

        Returns:
            The results of the checks, a line each.

        Raises:
            DamagedPart: a row is damaged.
            CacheError: there is no cache, or it changed during the check.
        """
        from hierrouter.replay.inspection import verify_cache

        return verify_cache(self.cache, self.rescore, on_rows, self.run_code)


def inspection_lines(inspection: Inspection) -> list[str]:
    """Return how many files of each kind there are, and whether they are sound, a line each."""
    damaged = Counter(kind for kind, _, _ in inspection.faults)
    lines = []
    for kind, count in inspection.files.items():
        if count:
            state = f"{damaged[kind]:,} damaged or missing" if damaged[kind] else "sound"
            lines.append(f"{kind:<20}{count:>8,}  {state}")
    return lines


def require_sound(inspection: Inspection) -> None:
    """Require that no file is damaged or missing.

    Raises:
        DamagedPart: with the number of those that are.
        InputError: it is only the file that `hierrouter deploy` writes, which takes no repair.
    """
    kinds = {kind for kind, _, _ in inspection.faults}
    if kinds == {folders.SERVICE_KIND}:
        raise InputError(inspection.faults[0][2])
    if kinds:
        raise DamagedPart(
            f"damaged or missing: {len(inspection.faults)} files; `hierrouter cache repair` moves "
            "those of a cache aside, runs are trained again"
        )
