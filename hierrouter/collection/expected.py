"""How many calls and tokens a collection takes: what is expected, and at most.

Expectations come from calls of the same steps in the cache, the upper bound from caps, windows,
rates and counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hierrouter.collection.due import DueLevel, DueStage, HiddenContexts
from hierrouter.collection.measures import STANDARD_ERRORS, Measures, Range, Sample
from hierrouter.collection.plan import Stage
from hierrouter.engines.generator import prompt_text
from hierrouter.engines.token_counts import MAX_READ_TOKENS, MAX_TEMPLATE_TOKENS, TokenCounter
from hierrouter.pools.pool import OPENAI, ModelSpec
from hierrouter_cache.reader import CacheReader
from hierrouter_cache.tree import Rate

# English questions and answers; text in LaTeX has 2.4 bytes a token, see docs/decisions.md.
TOKENS_PER_BYTE = Range(1 / 6, 1 / 4, 1 / 2)
MEASURED_SPREAD = Range(0.9, 1.0, 1.1)  # of tokens a byte, from prompts of the same step
# Of a share: answers of few contexts may all differ by chance.
MIN_SHARE_SPREAD = 0.01
NOTHING = Range.exact(0)
# Share of the steps' responses that differ, at contexts at which all these steps have answered:
# mean, deviation and number of contexts. Equal responses lead to one context below.
DIFFERING_SHARE = (
    "SELECT avg(share), coalesce(stddev_samp(share), 0), count(*) FROM ("
    "SELECT count(DISTINCT outcome) / count(DISTINCT step) AS share "
    "FROM calls_rows WHERE list_contains($1, step) "
    "AND (context IN (SELECT context FROM queries_rows)) = $2 "
    "GROUP BY context HAVING count(DISTINCT step) = len($1))"
)


@dataclass(frozen=True)
class ExpectedStage:
    """The expected calls, tokens and cost of one model at one level; None is unknown.

    Attributes:
        due: the calls.
        calls: their number.
        tokens_in: of their prompts.
        tokens_out: of their responses.
        cost: tokens times the pool's rates.
        lengths: int64[n], tokens of prompts.
        counts: float64[n], expected number of calls with a prompt of that length; None if unknown.
    """

    due: DueStage
    calls: Range | None
    tokens_in: Range | None
    tokens_out: Range | None
    cost: Range | None
    lengths: NDArray[np.int64]
    counts: NDArray[np.float64] | None

    @property
    def model(self) -> ModelSpec:
        """The model that is called."""
        return self.due.stage.model

    @property
    def step(self) -> str:
        """Key of model, settings and instruction."""
        return self.due.stage.step


def expected_stages(
    levels: Sequence[DueLevel],
    datasets: Mapping[str, str],
    reader: CacheReader | None,
    measures: Measures,
    counters: Mapping[str, TokenCounter],
    rates: Mapping[str, Rate],
) -> Iterator[ExpectedStage]:
    """Expect each stage to go on as the calls of its dataset in the cache.

    Args:
        levels: the calls to make, see `due.due_levels`.
        datasets: of each question.
        reader: of the cache; None if it does not exist yet.
        measures: of the calls in it.
        counters: of every model, by name.
        rates: of a token of every model, by name.

    Yields:
        Every stage in the order of the calls.
    """
    contexts = HiddenCalls(levels, datasets, reader)
    for level in levels:
        for due in level.stages:
            expectation = StageExpectation(due, datasets, contexts.of(due), measures)
            yield expectation.stage(counters[due.stage.model.name], rates[due.stage.caller])


class HiddenCalls:
    """Expects at how many contexts a stage calls that follow responses which are not there yet.

    There are at most as many as chains of responses; equal responses lead to one context.

    Args:
        levels: the calls to make, see `due.due_levels`.
        datasets: of each question.
        reader: of the cache; None if it does not exist yet.
    """

    def __init__(
        self, levels: Sequence[DueLevel], datasets: Mapping[str, str], reader: CacheReader | None
    ) -> None:
        self._siblings = [level.siblings for level in levels if not level.is_direct]
        self._datasets = datasets
        self._reader = reader
        self._shares: dict[tuple[tuple[str, ...], bool], Range | None] = {}

    def of(self, due: DueStage) -> dict[str, Range] | None:
        """Return the contexts at which a stage calls, by dataset; None if unknown."""
        counts: dict[str, Range] = {}
        for group in due.hidden:
            differing = NOTHING
            for chain in group.chains:
                share = self._differing_share(due.depth, chain)
                if share is None:
                    return None
                differing += share
            by_dataset = Counter(self._datasets[question] for question, *_ in group.texts)
            for name, count in by_dataset.items():
                counts[name] = counts.get(name, NOTHING) + Range.exact(count) * differing
        return counts

    def _differing_share(self, depth: int, chain: Sequence[Stage]) -> Range | None:
        """Return the share of a chain's contexts that are no other chain's.

        Args:
            depth: of the contexts, in responses.
            chain: the stages whose responses come last.
        """
        product = Range.exact(1)
        for level, stage in enumerate(chain, depth - len(chain)):
            steps = self._siblings[level][stage.step]
            if len(steps) == 1:
                continue
            key = (steps, level == 0)
            if key not in self._shares:
                self._shares[key] = _differing_share(self._reader, *key)
            share = self._shares[key]
            if share is None:
                return None
            product *= share
        return product


def _differing_share(
    reader: CacheReader | None, steps: Sequence[str], is_first: bool
) -> Range | None:
    """Return the share of the responses to one context that differ; None if unknown."""
    if reader is None:
        return None
    [row] = reader.sql(DIFFERING_SHARE, [list(steps), is_first]).to_pylist()
    mean, deviation, contexts = row.values()
    if not contexts:
        return None
    spread = max(STANDARD_ERRORS * deviation / contexts**0.5, MIN_SHARE_SPREAD)
    return Range(max(mean - spread, 1 / len(steps)), mean, min(mean + spread, 1.0))


class StageExpectation:
    """Works out what a stage takes.

    Args:
        due: its calls.
        datasets: of each question.
        hidden: contexts with a call whose prompt is not known, by dataset; None if unknown.
        measures: of the cache.
    """

    def __init__(
        self,
        due: DueStage,
        datasets: Mapping[str, str],
        hidden: Mapping[str, Range] | None,
        measures: Measures,
    ) -> None:
        self._due = due
        self._hidden = hidden
        self._known = Counter(datasets[question] for question, *_ in due.texts)
        self._datasets = [datasets[question] for question, *_ in due.texts]
        self._measures = measures

    def _sample(self, dataset: str) -> Sample | None:
        stage = self._due.stage
        sample = self._measures.sample(stage.step, self._due.depth, dataset)
        # A further draw that was never made will be like the first one.
        return sample or self._measures.sample(stage.first_step, self._due.depth, dataset)

    def stage(self, counter: TokenCounter, rate: Rate) -> ExpectedStage:
        """Return what the stage takes.

        Args:
            counter: of its model.
            rate: of its model.
        """
        known_lengths, known_tokens = self._known_prompts(counter)
        calls = add(Range.exact(len(self._due.calls)), self._hidden_calls())
        tokens_in = add(known_tokens, self._hidden_tokens())
        tokens_out = self._response_tokens()
        lengths, counts = self._lengths(known_lengths)
        return ExpectedStage(
            due=self._due,
            calls=calls,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            cost=cost_of(calls, tokens_in, tokens_out, rate),
            lengths=lengths,
            counts=counts,
        )

    def _known_prompts(self, counter: TokenCounter) -> tuple[NDArray[np.int64], Range]:
        """Tokens of each known prompt, and of all of them."""
        prompts = [call.prompt for call in self._due.calls]
        if counter.is_exact:
            lengths = counter.count(prompts)
            if counter.is_exact:  # no chat template has failed
                return lengths, Range.exact(int(lengths.sum()))
        tokens = NOTHING
        known_lengths = []
        for prompt, dataset in zip(prompts, self._datasets, strict=True):
            sample = self._sample(dataset)
            ratio = TOKENS_PER_BYTE
            if sample is not None:
                ratio = MEASURED_SPREAD * Range.exact(sample.tokens_per_byte)
            length = ratio * Range.exact(len(prompt.encode()))
            tokens += length
            known_lengths.append(max(round(length.likely), 1))
        return np.array(known_lengths, dtype=np.int64), tokens

    def _hidden_calls(self) -> Range | None:
        if self._hidden is None:
            return None
        return sum(self._hidden.values(), NOTHING)

    def _hidden_tokens(self) -> Range | None:
        if self._hidden is None:
            return None
        tokens = NOTHING
        for dataset, count in self._hidden.items():
            sample = self._sample(dataset)
            if sample is None:
                return None
            tokens += count * self._measures.mean(sample.tokens_in, dataset)
        return tokens

    def _response_tokens(self) -> Range | None:
        if self._hidden is None:
            return None
        tokens = NOTHING
        cap = self._due.stage.model.generation.max_new_tokens
        for dataset in sorted({*self._known, *self._hidden}):
            sample = self._sample(dataset)
            if sample is None:
                return None
            count = Range.exact(self._known[dataset]) + self._hidden.get(dataset, NOTHING)
            mean = self._measures.mean(sample.tokens_out, dataset)
            tokens += count * Range(mean.low, mean.likely, min(mean.high, cap))
        return tokens

    def _lengths(
        self, known_lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """Tokens of prompts, and the expected number of calls with each of these lengths."""
        if self._hidden is None:
            return known_lengths, None
        lengths = [known_lengths]
        counts = [np.ones(len(known_lengths))]
        for dataset, count in self._hidden.items():
            sample = self._sample(dataset)
            if sample is None:
                return known_lengths, None
            lengths.append(sample.tokens_in)
            counts.append(np.full(len(sample), count.likely / len(sample)))
        return np.concatenate(lengths), np.concatenate(counts)


def add(first: Range | None, second: Range | None) -> Range | None:
    """Return the sum of two ranges; None if one of them is unknown."""
    return None if first is None or second is None else first + second


def cost_of(
    calls: Range | None, tokens_in: Range | None, tokens_out: Range | None, rate: Rate
) -> Range | None:
    """Return the cost of calls; None if their number or tokens are unknown and cost something.

    Which prompt tokens will come from a cache, and which tokens will be thoughts, is not known
    before: where these have prices of their own, the range goes from the lower to the higher price.
    """

    def cost(count: Range | None, price: float, own_price: float | None = None) -> Range | None:
        other = price if own_price is None else own_price
        if price == other == 0:
            return NOTHING
        prices = Range(min(price, other), price, max(price, other))
        return None if count is None else count * prices

    cost_in = cost(tokens_in, rate.tokens_in, rate.cached)
    cost_out = cost(tokens_out, rate.tokens_out, rate.thoughts)
    return add(add(cost_in, cost_out), cost(calls, rate.call))


# Upper bounds.

SEPARATOR_TOKENS = 2  # of the two line breaks between two texts of a prompt


@dataclass(frozen=True)
class Bound:
    """The most that some calls take.

    Attributes:
        calls: number of calls.
        tokens_in: of their prompts.
        tokens_out: of their responses.
        cost: in the pool's currency.
        seconds: at the speed of earlier calls, and at the limits per minute; None if unknown.
    """

    # A dry run prints these names as JSON.
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float = 0.0
    seconds: float | None = None

    def __add__(self, other: Bound) -> Bound:
        """The sum of all but the seconds."""
        return Bound(
            calls=self.calls + other.calls,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            cost=self.cost + other.cost,
        )


def bound_stage(due: DueStage, counters: Mapping[str, TokenCounter]) -> tuple[int, int]:
    """Bound the tokens of a stage's calls.

    Args:
        due: the calls to make.
        counters: of every model of the pool, by name.

    Returns:
        The most tokens of prompts and of responses.
    """
    model = due.stage.model
    counter = counters[model.name]
    cap = model.generation.max_new_tokens
    lengths = counter.count([call.prompt for call in due.calls])
    tokens_in, answered = _answerable(counter, lengths, cap)
    for contexts in due.hidden:
        beginnings = _beginnings(counter, contexts, due.stage.instruction)
        for further, chains in _response_tokens(counter, contexts, counters).items():
            longest, calls = _answerable(counter, beginnings, cap, further)
            tokens_in += chains * longest
            answered += chains * calls
    return tokens_in, answered * cap


def _beginnings(
    counter: TokenCounter, contexts: HiddenContexts, instruction: str
) -> NDArray[np.int64]:
    """Count the tokens of prompts as if nothing followed their known texts."""
    return counter.count(
        [prompt_text(question, responses, instruction) for question, *responses in contexts.texts]
    )


def _response_tokens(
    counter: TokenCounter, contexts: HiddenContexts, counters: Mapping[str, TokenCounter]
) -> Counter[int]:
    """Count the chains of responses by the most tokens that they add to a prompt."""
    read_tokens = {name: counter.read_tokens(writer) for name, writer in counters.items()}

    def most_tokens(stage: Stage) -> int:
        cap = stage.model.generation.max_new_tokens
        return cap * read_tokens[stage.model.name] + SEPARATOR_TOKENS

    return Counter(sum(map(most_tokens, chain)) for chain in contexts.chains)


def _answerable(
    counter: TokenCounter, lengths: NDArray[np.int64], cap: int, further: int = 0
) -> tuple[int, int]:
    """Bound the tokens of prompts that a model may answer: it refuses those beyond its window.

    Args:
        counter: of the model.
        lengths: int64[n], tokens that each prompt has at least, or a bound of them.
        cap: the most tokens of a response; an action may have another cap than its model.
        further: the most tokens that come on top.

    Returns:
        Tokens of all prompts that may be answered, and the number of these prompts.
    """
    longest = lengths + further
    limit = counter.max_prompt_tokens
    if limit is None:
        return int(longest.sum()), len(lengths)
    limit = max(limit + counter.spec.generation.max_new_tokens - cap, 0)
    if counter.is_exact:
        longest = longest[lengths <= limit]
    elif limit == 0:
        longest = longest[:0]
    return int(np.minimum(longest, limit).sum()), len(longest)


def bound_notes(counters: Sequence[TokenCounter]) -> Iterator[str]:
    """Explain what the bound assumes, and what it cannot bound.

    Args:
        counters: of the models that have calls to make.

    Yields:
        A sentence for people each.
    """
    by_bytes = [counter.spec.name for counter in counters if not counter.is_exact]
    if by_bytes:
        yield (
            f"no tokenizer here of {', '.join(by_bytes)}: at most, a prompt has a token a byte, "
            f"those of the chat template ({MAX_TEMPLATE_TOKENS}, or the shortest prompt so far), "
            f"and {MAX_READ_TOKENS} times the cap of each earlier answer"
        )
    for counter in counters:
        if counter.max_prompt_tokens == 0:
            cap = counter.spec.generation.max_new_tokens
            yield (
                f"{counter.spec.name} can answer nothing: its window has no room beside "
                f"max_new_tokens = {cap}; give it less"
            )
    served = [counter.spec.name for counter in counters if counter.spec.backend == OPENAI]
    if served:
        yield (
            f"a server may do what is not in the bound: bill failed attempts, answer beyond the "
            f"cap, count other tokens ({', '.join(served)})"
        )
