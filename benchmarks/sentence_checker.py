"""Compare what random reports say in words with the figures of the same reports.

    python benchmarks/sentence_checker.py [--count 5000] [--first 0] [--one SEED] [--show 20]

Each report is made by the code that makes a user's, see `random_reports.py`: of random trees, with
or without stops, returns and several draws, with no router, one learned in any way, a sweep, a
budget, a hand-over, price lists and policies of the user's own. A third of the trees is compared
with baselines, too, as `hierrouter compare` does.

Every sentence that a user reads is parsed: the message, the headlines, the notes, titles and notes
of all tables and captions, and what `train` and `compare` print; see `sentence_grammar.py`. Of each
sentence the claims are checked: its numbers, names, action set, oracle, and what is better, worse
or open. A sentence that cannot be parsed is a failure, and so is a message that names no policy
with the highest R.

The script prints the number of reports, sentences and claims by kind as it goes, and each
contradiction with the seed that repeats it. It exits with 1 if there is one. Several processes may
share the work: `--first` is the first seed of each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from random_reports import Case, draw_case
from sentence_grammar import ROUNDING, ComparisonFigures, Figures, parse

from hierrouter.learning.baselines.contest import contest
from hierrouter.learning.baselines.registry import baselines
from hierrouter.reports import comparison
from hierrouter.reports.estimates import Bootstrap
from hierrouter.reports.fold_report import report_on_fold
from hierrouter.reports.report import as_object
from hierrouter.reports.results import ReportData
from hierrouter.reports.sentences import headlines, in_time_sentence, message, router_sentence
from hierrouter.reports.tables import lacking_for_paper, named_tables, paper_tables
from hierrouter.runs.run import Performance
from hierrouter.runs.training import budget_note, ladder_in_words

RESAMPLES = 100  # of the intervals: their width does not matter here, only what is made of them
TREES_PER_LINE = 50  # after which the counts so far are printed


def texts_of_report(report: ReportData) -> Iterator[str]:
    """Yield all that a report says: the message first, then figures, notes, titles and captions."""
    yield message(report)
    for headline in headlines(report):
        yield f"figure: {' '.join(headline)}"
    yield in_time_sentence(report)
    yield from report.notes
    for table in (*named_tables(report).values(), *paper_tables(report)):
        yield f"title: {table.title}"
        # The notes of the report are in the note of its first table.
        yield table.note.removeprefix(" ".join(report.notes)).strip()
    yield router_sentence(report)
    yield from lacking_for_paper(report)


def texts_of_training(case: Case) -> Iterator[str]:
    """Yield what `train` prints of a router."""
    if case.trained is None:
        return
    yield f"train: {Performance.of(case.trained, case.tree)}"
    if case.trained.ladder:
        yield f"train: {ladder_in_words(case.trained)}"
    if case.trained.budget is not None:
        fold = case.trained.judging_fold(case.tree)
        yield f"train: {budget_note(case.trained, fold, case.trained.budget)}"
    if case.trained.constant is not None:
        yield f"train: {case.trained.why_constant}"
    elif case.trained.table_in_words:
        yield f"train: {case.trained.table_in_words}"


def texts_of_comparison(standings: comparison.Standings) -> Iterator[str]:
    """Yield what `compare` says."""
    yield from standings.notes
    for table in comparison.named_tables(standings).values():
        yield f"title: {table.title}"
        yield table.note.removeprefix(" ".join(standings.notes)).strip()
    for value in standings.values:
        names = f"{comparison.VALUE_TITLES[value.value]}: {value.first} less {value.second}"
        yield f"value: {names}, as the {value.chosen_on} fold has it, {value.difference:+.4f}"


@dataclass
class Tally:
    """What was checked so far.

    Attributes:
        reports: number of reports by the way in which the router was learned; "compared" are
            comparisons.
        sentences: number of sentences.
        claims: number of claims by kind.
        contradictions: seed, sentence and what the figures say.
    """

    reports: Counter[str] = field(default_factory=Counter)
    sentences: int = 0
    claims: Counter[str] = field(default_factory=Counter)
    contradictions: list[tuple[int, str, str]] = field(default_factory=list)

    def read(self, text: str, figures: Figures) -> None:
        """Parse a text, and count its claims."""
        for sentence, claims in parse(text, figures):
            self.sentences += 1
            for claim in claims:
                self.claims[claim.kind] += 1
                if not claim.holds:
                    detail = f"{claim.kind}: {claim.detail}"
                    self.contradictions.append((figures.case.seed, sentence, detail))

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.reports.most_common())
        claims = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.claims.items()))
        return (
            f"{self.reports.total():,} reports and comparisons ({kinds}), {self.sentences:,} "
            f"sentences, {self.claims.total():,} claims ({claims}), "
            f"{len(self.contradictions):,} contradictions"
        )


def report_of(case: Case) -> ReportData:
    """Make the report of a case."""
    return report_on_fold(
        case.tree,
        case.alpha,
        case.trained,
        case.sweep,
        {},
        case.split,
        Bootstrap(n=RESAMPLES, seed=case.seed),
        **case.more,
    )


def figures_of(case: Case, report: ReportData) -> Figures:
    """The figures of a report as its reader has them, from JSON."""
    return Figures(case, json.loads(json.dumps(as_object(report))))


def check_case(case: Case, tally: Tally) -> None:
    """Make the report and the comparison of a case, and check all that they say."""
    report = report_of(case)
    figures = figures_of(case, report)
    tally.reports[case.kind] += 1
    texts = [*filter(None, texts_of_report(report)), *texts_of_training(case)]
    for text in texts:
        tally.read(text, figures)
    tally.claims["complete"] += 1
    if not is_complete(texts[0], figures):
        tally.contradictions.append((case.seed, texts[0], "complete: another policy is ahead"))


def is_complete(text: str, figures: Figures) -> bool:
    """Whether a message names a policy with the highest R of all that do not know the answers."""
    figures.named.clear()
    for _ in parse(text, figures):
        pass
    highest = max(row["reward"] for row in figures.rows if row["kind"] != "oracle")
    return max(figures.named, default=-np.inf) >= highest - ROUNDING


COMPARED = ("random", "best-static", "dataset-oracle")


def check_comparison(case: Case, tally: Tally) -> None:
    """Compare the router of a case with baselines, and check what that says."""
    own = case.more.get("policies", ())
    result = contest(
        case.tree,
        case.alpha,
        # A fit takes longer than the rest.
        baselines((*COMPARED, "ridge") if case.seed % 10 == 0 else COMPARED),
        trained=case.trained,
        split=case.split,
        policies=own,
    )
    settings = Bootstrap(n=RESAMPLES, seed=case.seed)
    standings = comparison.build_standings(result, case.tree.scorer, {}, settings)
    told = json.loads(comparison.as_json(standings))
    figures = ComparisonFigures(case, {}, standings=told)
    tally.reports["compared"] += 1
    for text in filter(None, texts_of_comparison(standings)):
        tally.read(text, figures)


def check(seed: int, tally: Tally) -> None:
    """Draw the case of a seed and check it; every third one is compared with baselines, too.

    A report that cannot be made is a contradiction, too.
    """
    try:
        case = draw_case(seed)
        check_case(case, tally)
        if seed % 3 == 0 and case.split != "all":
            check_comparison(case, tally)
    except Exception as error:  # whatever it is, a user would see it in place of the report
        where = traceback.format_exc().strip().splitlines()[-3]
        tally.contradictions.append((seed, f"no report: {error!r}", where.strip()))


def check_many(seeds: Sequence[int]) -> Tally:
    """Check the cases of some seeds."""
    tally = Tally()
    for seed in seeds:
        check(seed, tally)
    return tally


def print_texts(seed: int) -> None:
    """Print the report of a seed, as far as it is text."""
    case = draw_case(seed)
    for text in (*texts_of_report(report_of(case)), *texts_of_training(case)):
        print(text)


def main() -> None:
    """Check random reports, and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=5000, help="reports to check")
    parser.add_argument("--first", type=int, default=0, help="seed of the first report")
    parser.add_argument("--one", type=int, help="check the report of this seed, and print it")
    parser.add_argument("--show", type=int, default=20, help="contradictions to print")
    args = parser.parse_args()
    seeds = range(args.first, args.first + args.count)
    if args.one is not None:
        print_texts(args.one)
        seeds = range(args.one, args.one + 1)
    tally = Tally()
    shown = 0
    for done, seed in enumerate(seeds, 1):
        check(seed, tally)
        for contradiction in tally.contradictions[shown : args.show]:
            print("contradiction: seed {}: {}\n    {}".format(*contradiction), flush=True)
        shown = len(tally.contradictions)
        if done % TREES_PER_LINE == 0 or done == len(seeds):
            seconds = time.process_time()
            print(f"seeds {seeds[0]} to {seed}, {seconds:.0f} CPU s: {tally}", flush=True)
    sys.exit(1 if tally.contradictions else 0)


if __name__ == "__main__":
    main()
