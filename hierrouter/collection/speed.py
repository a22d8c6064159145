"""How long a collection takes, from what earlier calls took.

The seconds of a call in the cache are its share of a part: of batches on this machine, of all calls
under way at a server. Neither tells directly how long more calls take, because a larger collection
has fuller batches, and keeps more calls under way. So the calls of the past are put into batches
and rounds as well, and what one of these took counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from hierrouter.collection.expected import NOTHING, Bound, ExpectedStage
from hierrouter.collection.measures import Measures, Range, Sample
from hierrouter.engines.generator import room_for_weights
from hierrouter.pools.pool import OPENAI, Endpoint, ModelSpec, Pool

if TYPE_CHECKING:
    from hierrouter.engines.workload import LocalModel

# Before the first call: imports, and opening the cache. A dry run has just done the same, so that
# its seconds count if they are known.
STARTUP_S = Range(2.0, 6.0, 20.0)
STARTUP_SPREAD = Range(0.5, 1.0, 2.0)
# Loading a model: what does not depend on its size, and seconds for a byte of its weights.
LOADING_S = Range(0.1, 0.5, 2.0)
BYTE_S = Range(1 / 4e9, 1 / 1e9, 1 / 2e8)
# The same work, done again while others use the machine or the server more or less.
SPEED_SPREAD = Range(0.7, 1.0, 1.5)
# Share of the seconds of a served model in which it was not waiting for local ones, at least.
MIN_OWN_SHARE = 0.1
# A model whose files are not here, so that its batches are not known: they may have been full.
UNKNOWN_BATCHES_SPREAD = Range(0.1, 0.7, 1.5)


class Speed:
    """Estimates seconds by the clock.

    Args:
        pool: the models.
        stages: every stage with what is expected of it.
        measures: of the cache.
        startup_s: how long it takes to start on this machine now; None is as usual.

    Attributes:
        by_model: seconds of each model that has calls to make, by name; None if unknown.
    """

    def __init__(
        self,
        pool: Pool,
        stages: Sequence[ExpectedStage],
        measures: Measures,
        startup_s: float | None = None,
    ) -> None:
        self._startup = STARTUP_S
        if startup_s is not None:
            self._startup = STARTUP_SPREAD * Range.exact(startup_s)
        self.by_model: dict[str, Range | None] = {}
        self._measures = measures
        self._local: dict[str, LocalModel | None] = {}
        self._due = {
            model.name: [
                stage for stage in stages if stage.model.name == model.name and stage.due.most_calls
            ]
            for model in pool.all_models
        }
        self._models = [model for model in pool.all_models if self._due[model.name]]
        for model in self._models:
            if model.backend == OPENAI:
                seconds = self._served_seconds(model)
            else:
                seconds = self._local_seconds(model)
            if seconds is not None:  # as many tokens as are expected take as long
                seconds *= _relative_tokens(self._due[model.name])
            self.by_model[model.name] = seconds

    @property
    def total(self) -> Range | None:
        """Seconds of all models: on this machine one after the other, servers side by side.

        None if they are unknown.
        """
        if not self._models:
            return Range.exact(0)
        local = self._loading()
        served = Range.exact(0)
        for model in self._models:
            seconds = self.by_model[model.name]
            if seconds is None:
                return None
            if model.backend == OPENAI:
                served = served.at_least(seconds)
            else:
                local += seconds
        # Servers answer while this machine works, unless one waits for the other's answers.
        together = local.at_least(served)
        return self._startup + Range(together.low, together.likely, local.high + served.high)

    def _loading(self) -> Range:
        """Seconds in which models of this machine are loaded."""
        weights = {
            model.name: engine.weight_bytes
            for model in self._models
            if (engine := self._local.get(model.name))
        }
        local = [model for model in self._models if model.name in weights]
        # If they do not fit together, each is loaded again at each level.
        fit = not local or sum(weights.values()) <= room_for_weights(local[0])
        loading = Range.exact(0)
        for name, weight_bytes in weights.items():
            loads = 1 if fit else len({stage.due.depth for stage in self._due[name]})
            once = LOADING_S + BYTE_S * Range.exact(weight_bytes)
            loading += once * Range.exact(loads)
        # A busy machine delays loading as it delays the start of this program.
        return loading * Range.exact(max(self._startup.likely / STARTUP_S.likely, 1.0))

    def _samples(self, stages: Iterable[ExpectedStage]) -> Mapping[tuple[str, int], Sample]:
        """The calls in the cache of the same steps, by step and depth."""
        samples = {}
        for step in {stage.step for stage in stages}:
            for depth, sample in self._measures.depths(step).items():
                samples[step, depth] = sample
        return samples

    def _local_seconds(self, model: ModelSpec) -> Range | None:
        from hierrouter.engines.workload import Prompts, local_model  # torch: slow to import

        stages = self._due[model.name]
        samples = self._samples(stages)
        seconds = _recorded_seconds(samples.values())
        self._local[model.name] = local_model(model)
        engine = self._local[model.name]
        if not seconds:
            return None
        if engine is None:
            calls = _expected_calls(stages)
            measured_calls = sum(map(len, samples.values()))
            if calls is None:
                return None
            return UNKNOWN_BATCHES_SPREAD * Range.exact(seconds * calls / measured_calls)
        measured_work = 0.0
        for sample in samples.values():
            once = np.ones(len(sample))
            measured_work += engine.work(Prompts(sample.tokens_in, once, sample.tokens_out))
        work = 0.0
        for stage in stages:
            nearest = self._measures.sample(stage.step, stage.due.depth)
            if nearest is None or stage.counts is None:
                return None
            work += engine.work(Prompts(stage.lengths, stage.counts, nearest.tokens_out))
        return SPEED_SPREAD * Range.exact(seconds * work / measured_work)

    def _served_seconds(self, model: ModelSpec) -> Range | None:
        stages = self._due[model.name]
        samples = self._samples(stages)
        seconds = _recorded_seconds(samples.values())
        endpoint = model.endpoint
        if not seconds or endpoint is None:
            return None
        calls = 0.0
        tokens = 0.0
        for stage in stages:
            if stage.counts is None:
                return None
            stage_calls = float(stage.counts.sum())
            calls += stage_calls
            tokens += float(stage.lengths @ stage.counts)
            tokens += stage_calls * stage.model.generation.max_new_tokens
        measured_calls = sum(map(len, samples.values()))
        slots = endpoint.concurrency * len(endpoint.servers)
        measured_rounds = _rounds(measured_calls, slots, {depth for _, depth in samples})
        rounds = _rounds(calls, slots, {stage.due.depth for stage in stages})
        limited = limited_seconds(endpoint, calls, tokens)
        # In the time of a served model that of local ones is, too: its next calls wait for them.
        own = max(seconds - self._recorded_local_seconds(), MIN_OWN_SHARE * seconds)
        scaled = max(own * rounds / measured_rounds, limited)
        # A server that was busy answers no more calls a second if more of them are under way.
        saturated = max(seconds * calls / measured_calls, limited)
        return SPEED_SPREAD * Range(min(scaled, saturated), scaled, max(scaled, saturated))

    def _recorded_local_seconds(self) -> float:
        """The recorded seconds of all models of this machine that have calls to make."""
        seconds = 0.0
        for model in self._models:
            if model.backend != OPENAI:
                seconds += _recorded_seconds(self._samples(self._due[model.name]).values()) or 0.0
        return seconds


def _relative_tokens(stages: Iterable[ExpectedStage]) -> Range:
    """The range of the tokens of all responses, in units of the likely number."""
    tokens = NOTHING
    for stage in stages:
        tokens += stage.tokens_out or NOTHING
    if not tokens.likely:
        return Range.exact(1)
    return tokens * Range.exact(1 / tokens.likely)


def _recorded_seconds(samples: Iterable[Sample]) -> float | None:
    """The seconds of all calls; None if those of some are not recorded."""
    total = 0.0
    for sample in samples:
        if sample.seconds is None:
            return None
        total += sample.seconds
    return total


def _expected_calls(stages: Iterable[ExpectedStage]) -> float | None:
    total = 0.0
    for stage in stages:
        if stage.calls is None or stage.counts is None:
            return None
        total += stage.calls.likely
    return total


def _rounds(calls: float, slots: int, depths: Collection[int]) -> int:
    """Count rounds of calls that are under way at once; each level waits for the one before."""
    return max(ceil(calls / slots), len(depths), 1)


def limited_seconds(endpoint: Endpoint, calls: float, tokens: float) -> float:
    """Return the seconds that the limits per minute of an endpoint make calls take at least.

    Args:
        endpoint: with its limits.
        calls: number of calls.
        tokens: tokens that the limiter counts: of prompts, and of responses as long as their cap.

    Returns:
        Seconds; 0 without a limit.
    """
    seconds = 0.0
    if endpoint.requests_per_minute:
        seconds = max(seconds, 60 * calls / endpoint.requests_per_minute)
    if endpoint.tokens_per_minute:
        seconds = max(seconds, 60 * tokens / endpoint.tokens_per_minute)
    return seconds


def bound_seconds(
    model: ModelSpec, bound: Bound, steps: Iterable[str], measures: Measures
) -> float | None:
    """Bound the seconds of a model, if a token takes no longer than in earlier calls.

    Args:
        model: the model.
        bound: of its calls and tokens.
        steps: that are to be called.
        measures: of the cache.

    Returns:
        Seconds; without earlier calls, those that its limits per minute allow; None if neither is
        known.
    """
    samples = [sample for step in steps for sample in measures.depths(step).values()]
    seconds = _recorded_seconds(samples)
    tokens = sum(int(sample.tokens_out.sum()) for sample in samples)
    limited = 0.0
    if model.endpoint:
        requested = bound.tokens_in + bound.tokens_out
        limited = limited_seconds(model.endpoint, bound.calls, requested)
    if seconds and tokens:
        return max(seconds * bound.tokens_out / tokens, limited)
    return limited or None
