"""Routing questions through live models: what can be asked for, and how it is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

from hierrouter.declarations import flags
from hierrouter.declarations.checks import check_path
from hierrouter.declarations.declaration import Flag, declaration, shown_name, shown_value
from hierrouter.paper import PAPER_SEED
from hierrouter_cache.errors import InputError

if TYPE_CHECKING:
    from hierrouter.serving.messages import Question
    from hierrouter.serving.results import Hop, RouteResult
    from hierrouter.serving.router import RouteOptions, Router

STDIN = "-"
STDIN_DESCRIPTOR = 0


def ignore_hop(hop: Hop) -> None:
    """Do nothing at a hop."""


@dataclass(frozen=True)
class FirstAction:
    """The first action of a policy for a question.

    Attributes:
        action: its name, see `Actions.names`.
        chances: of each action, by name.
        deferred_to: name of the model that the question is deferred to; "" without a deferral.
    """

    action: str
    chances: dict[str, float]
    deferred_to: str


@declaration
class Route:
    """Route one question, or those in a file, through the models of a router.

    Attributes:
        question: its text; or give `file`.
        file: JSON lines with `question` or `messages`; `-` is stdin.
        alpha: cost penalty; None is the one that the router was trained for.
        sample: draw each action from the policy, so that other policies can be evaluated on the
            results.
        seed: of the draws.
        reroute: if a model fails, take the next likeliest action.
        group: data set or label of the question, for a router that has routes for some (`train
            --algo groups`); of a file each line's `group` or `dataset` comes first.
        group_by: the field of each line that comes before these.
    """

    question: Annotated[str | None, Flag("", "QUESTION", "The text; or give --file.")] = None
    file: Annotated[
        Path | None,
        Flag(
            "--file",
            "FILE|-",
            "Questions as JSON lines, question or messages in each; - is stdin.",
            check=check_path,
        ),
    ] = None
    alpha: flags.Alpha = None
    sample: flags.Sample = False
    seed: flags.Seed = PAPER_SEED
    reroute: flags.Reroute = False
    group: flags.Group = ""
    group_by: flags.GroupBy = None

    def check(self) -> None:
        """Refuse whatever can be refused before anything is loaded.

        Raises:
            InputError: neither question nor file, or both, or no such file.
        """
        question = shown_name(Route, "question")
        file = shown_name(Route, "file")
        if self.question is None and self.file is None:
            raise InputError(f"no question; give {question} or {file} FILE")
        if self.file is None:
            return
        if self.question is not None:
            raise InputError(
                f"a question and {file} contradict each other; give {question} or {file} FILE"
            )
        is_stdin = str(self.file) == STDIN
        if is_stdin and sys.stdin is None:
            # Nothing can be read from its descriptor, which is another file's by now.
            flag = shown_value(file, STDIN)
            raise InputError(f"stdin is closed: {flag}; give JSON lines there, or a file")
        if not is_stdin and not self.file.is_file():
            raise InputError(f"no such file: {self.file}; give JSON lines, or - for stdin")

    def run(
        self,
        router: Router,
        on_text: Callable[[str], None] | None = None,
        on_hop: Callable[[Hop], None] = ignore_hop,
    ) -> RouteResult:
        """Answer the question, and close the router.

        Args:
            router: with its models loaded.
            on_text: receives the answer as it grows.
            on_hop: receives each call when its response is complete.

        Raises:
            InputError: see `Router.aroute`.
            CallFailed: see `Router.aroute`.
        """
        import anyio

        assert self.question is not None
        question = self.question
        options = self._options(on_text, on_hop)

        async def answer() -> RouteResult:
            try:
                return await router.aroute(question, options)
            finally:
                await router.aclose()

        return anyio.run(answer)

    def preview(self, router: Router) -> FirstAction:
        """Return what the policy would do first with the question, and close the router.

        Args:
            router: without its models.

        Raises:
            InputError: see `Router.decide`.
        """
        import anyio

        assert self.question is not None
        question = self.question
        options = self._options()

        async def decide() -> FirstAction:
            try:
                decision = await router.decide(question, options=options)
            finally:
                await router.aclose()
            policy = router.policy
            names = policy.at(None).actions.names(policy.origin.models)
            return FirstAction(
                action=names[decision.action],
                chances=dict(zip(names, decision.chances.tolist(), strict=True)),
                deferred_to=decision.deferred_to,
            )

        return anyio.run(decide)

    def run_file(self, router: Router, on_line: Callable[[dict[str, Any]], bool]) -> int:
        """Answer every question of the file, in their order, and close the router.

        Args:
            router: with its models loaded.
            on_line: receives JSON values for each question: its `id`, if it has one, and the result
                or the `error` with its `status`. It returns whether to go on.

        Returns:
            How many questions have no answer.

        Raises:
            InputError: there is no question, or a bad line, after the results of those before it.
        """
        import anyio

        return anyio.run(self._run_file, router, on_line)

    async def _run_file(self, router: Router, on_line: Callable[[dict[str, Any]], bool]) -> int:
        from hierrouter.serving.models import CallFailed
        from hierrouter.serving.router import route_all

        ids: list[Any] = []
        stopped = Event()
        answered = 0
        failed = 0
        try:
            questions = self._questions(ids, stopped)
            async with aclosing(route_all(router, questions, self._options())) as results:
                async for result in results:
                    question_id = ids[answered + failed]
                    line: dict[str, Any] = {} if question_id is None else {"id": question_id}
                    if isinstance(result, CallFailed):
                        failed += 1
                        line.update(error=str(result), status=result.status)
                    else:
                        answered += 1
                        line.update(result.as_object())
                    if not on_line(line):
                        break
        finally:
            stopped.set()  # end a read that waits for more questions
            await router.aclose()
        if not answered + failed:
            raise InputError(f"no question: {self.file}; write one JSON object a line")
        return failed

    def _questions(self, ids: list[Any], stopped: Event) -> Iterator[tuple[Question, str]]:
        """Yield the question of each line, and its group; "" if the line has none.

        Args:
            ids: receives the id of each question, or None.
            stopped: set to end a read from stdin that waits.
        """
        from hierrouter.questions.files import parse_object, raw_lines
        from hierrouter.serving.messages import group_in, piped_lines, question_in

        assert self.file is not None
        if str(self.file) == STDIN:
            source = "stdin"
            lines = piped_lines(STDIN_DESCRIPTOR, stopped, source)
        else:
            source = str(self.file)
            lines = raw_lines(self.file)
        for number, line in lines:
            if line.strip():
                where = f"{source}:{number}"
                row = parse_object(line, where)
                question = question_in(row, where)
                group = group_in(row, where, self.group_by)
                ids.append(row.get("id"))
                yield question, group

    def _options(
        self,
        on_text: Callable[[str], None] | None = None,
        on_hop: Callable[[Hop], None] = ignore_hop,
    ) -> RouteOptions:
        import numpy as np

        from hierrouter.serving.router import RouteOptions

        return RouteOptions(
            alpha=self.alpha,
            rng=np.random.default_rng(self.seed) if self.sample else None,
            reroute=self.reroute,
            on_text=on_text,
            on_hop=on_hop,
            group=self.group,
        )
