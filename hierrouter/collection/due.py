"""The calls that a collection is to make: those with a known prompt, and those behind them.

A context is hidden while one of its responses is not there yet: its prompts are not known, but how
many of them there may be is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hierrouter.collection import plan
from hierrouter.engines.generator import Call
from hierrouter.pools.pool import Pool
from hierrouter.questions.query import Query
from hierrouter_cache.walk import TreeSpec


@dataclass(frozen=True)
class HiddenContexts:
    """Contexts that begin with known texts; responses that are not there yet follow.

    Each known beginning has one context for each chain, unless responses are equal.

    Attributes:
        texts: the known texts of each beginning: a question and the responses so far.
        chains: the stages whose responses follow, in their order.
        actions: of each chain, the numbers of the actions that make its last call: several may be
            the same call.
    """

    texts: Sequence[tuple[str, ...]]
    chains: Sequence[tuple[plan.Stage, ...]]
    actions: Sequence[frozenset[int]]

    @property
    def most(self) -> int:
        """The most contexts that there may be."""
        return len(self.texts) * len(self.chains)

    def offering(
        self, stage: plan.Stage, level: int, offered: plan.OfferedStages
    ) -> HiddenContexts:
        """Those of the contexts at which a stage is offered.

        Args:
            stage: of the level.
            level: of the contexts.
            offered: says what is offered after an action.
        """
        chains = []
        last_actions = []
        for chain, actions in zip(self.chains, self.actions, strict=True):
            if any(other.step == stage.step for other in offered.after(level, actions)):
                chains.append(chain)
                last_actions.append(actions)
        return HiddenContexts(self.texts, chains, last_actions)

    def behind(self, level: int, offered: plan.OfferedStages) -> HiddenContexts:
        """The contexts after one more response, of any stage that is offered there.

        Args:
            level: of the contexts.
            offered: says what is offered after an action.
        """
        chains = []
        last_actions = []
        for chain, actions in zip(self.chains, self.actions, strict=True):
            following = offered.after(level, actions)
            by_step: dict[str, plan.Stage] = {}  # if one model has two names, the first counts
            for stage in following:
                by_step.setdefault(stage.step, stage)
            for step, stage in by_step.items():
                chains.append((*chain, stage))
                last_actions.append(actions_of(step, following))
        return HiddenContexts(self.texts, chains, last_actions)


def actions_of(step: str, stages: Sequence[plan.Stage]) -> frozenset[int]:
    """Return the numbers of the actions that make a call.

    Args:
        step: of the call.
        stages: that are offered where it is made.
    """
    return frozenset(stage.action for stage in stages if stage.step == step)


@dataclass(frozen=True)
class DueStage:
    """The calls of one model at one level.

    Attributes:
        stage: the model and its instruction.
        depth: responses in a prompt.
        there: calls that are answered, and counted for no earlier stage.
        calls: distinct calls to make whose prompts are known.
        texts: of the context of each of these calls.
        hidden: contexts at which a further call is to be made.
    """

    stage: plan.Stage
    depth: int
    there: int
    calls: Sequence[Call]
    texts: Sequence[tuple[str, ...]]
    hidden: Sequence[HiddenContexts]

    @property
    def most_hidden(self) -> int:
        """The most calls whose prompts are not known."""
        return sum(contexts.most for contexts in self.hidden)

    @property
    def most_calls(self) -> int:
        """The most calls that there are to make."""
        return len(self.calls) + self.most_hidden


@dataclass(frozen=True)
class DueLevel:
    """The calls of one level, or all direct calls.

    Attributes:
        stages: different ones; of two names of one model the first counts.
        is_direct: whether these are the direct calls, which nothing follows.
        siblings: by step, the steps that call at the same contexts, itself included; where these
            differ by the action before, those after the first action that offers it.
    """

    stages: Sequence[DueStage]
    is_direct: bool
    siblings: Mapping[str, tuple[str, ...]]


def due_levels(
    pool: Pool, spec: TreeSpec, queries: Sequence[Query], responses: Mapping[str, str]
) -> Iterator[DueLevel]:
    """Walk the trees of some queries as far as responses are there.

    Args:
        pool: the models.
        spec: the keys of their steps.
        queries: whose trees are to be filled.
        responses: text of every answered call, by key.

    Yields:
        The direct calls, then each level. Of equal calls the first stage counts.
    """
    direct, levels = plan.stages_of(pool, spec)
    offered = plan.OfferedStages(pool, levels)
    contexts = plan.root_contexts(query.question for query in queries)
    hidden: list[HiddenContexts] = []
    counted = set[str]()
    for number, level_stages in enumerate([direct, *levels]):
        is_direct = number == 0
        level = number - 1
        # If one model has two names, the first stage counts.
        by_step: dict[str, plan.Stage] = {}
        for stage in level_stages:
            by_step.setdefault(stage.step, stage)
        stages = list(by_step.values())
        due_stages = []
        unanswered = []
        for stage in stages:
            calls = [
                stage.call(context, texts)
                for context, texts in contexts.items()
                if is_direct or offered.calls_at(level, context, stage)
            ]
            missing = [call for call in calls if call.key not in responses]
            new = [call for call in calls if call.key not in counted]
            counted.update(call.key for call in new)
            due = [call for call in new if call.key not in responses]
            due_stages.append(
                DueStage(
                    stage=stage,
                    depth=max(number - 1, 0),
                    there=len(new) - len(due),
                    calls=due,
                    texts=[contexts[call.context] for call in due],
                    hidden=[]
                    if is_direct
                    else [group.offering(stage, level, offered) for group in hidden],
                )
            )
            by_actions: dict[frozenset[int], list[tuple[str, ...]]] = {}
            for call in [] if is_direct else missing:
                actions = frozenset({stage.action})
                if pool.roles:  # what follows depends on them
                    actions = actions_of(stage.step, offered.at(level, call.context))
                by_actions.setdefault(actions, []).append(contexts[call.context])
            unanswered += [
                HiddenContexts(texts, [(stage,)], [actions])
                for actions, texts in by_actions.items()
            ]
        siblings = {} if is_direct else offered.siblings(level)
        yield DueLevel(due_stages, is_direct, siblings)
        if not is_direct:
            further = [group.behind(level, offered) for group in hidden]
            hidden = [group for group in [*unanswered, *further] if group.most]
            contexts = offered.next_contexts(level, contexts, responses)
