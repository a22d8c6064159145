"""Training examples for one specialist.

The rule a specialist learns: take your step if it is due; else hand the last response on; else
say `unknown`. In: a specialist and a `Draw` of the train split. Out: the parts of a context and
the response wanted there. Contexts are what routes of perfect specialists leave behind, with
wrong turns and counterfactual first answers mixed in, so that a second hop is computed from the
response and cannot be guessed from the question. Not covered: tokens and batches (`train`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hierrouter.testbed.families import (
    FAMILIES,
    LONGEST_ROW,
    MODELS,
    Draw,
    Model,
    Step,
    Task,
    riddle_steps,
)
from hierrouter.testbed.material import LETTERS, SPLITS
from hierrouter.testbed.templates import REVERSE, UNKNOWN
from hierrouter.testbed.world import ROOMS_PER_SPLIT

SHARE_WAITING = 0.3
SHARE_COUNTERFACTUAL = 0.5
SHARE_WRONG_TURN = 0.3
SHARE_COPYING = 0.35
MOST_HOPS_BEFORE = 2
# None is a sentence of the riddle family: the held-out rooms' questions stay unseen.
RIDDLE_CARDS = (
    "riddle of room {room}",
    "name the riddle of room {room}",
    "what is the riddle in room {room} ?",
    "give the riddle that room {room} keeps",
    "room {room} asks a riddle",
)


@dataclass(frozen=True)
class Lesson:
    """A context, its parts still apart, and the response wanted there."""

    parts: tuple[str, ...]
    response: str


@dataclass(frozen=True)
class Progress:
    """How far a route has come: steps taken and everything said so far."""

    task: Task
    taken: int = 0
    responses: tuple[str, ...] = ()

    def is_due(self, model: Model) -> bool:
        return self.taken < len(self.task.steps) and self.task.steps[self.taken].model == model

    def reply(self, model: Model) -> str:
        """What a perfect specialist says here."""
        if self.is_due(model):
            return self.task.steps[self.taken].response
        return self.responses[-1] if self.responses else UNKNOWN

    def after(self, model: Model) -> Progress:
        """The route one hop on."""
        responses = (*self.responses, self.reply(model))
        return replace(self, taken=self.taken + self.is_due(model), responses=responses)

    def after_saying(self, response: str) -> Progress:
        """The route after a hop that brought nothing but `response`."""
        return replace(self, responses=(*self.responses, response))


def lesson(model: Model, draw: Draw) -> Lesson:
    """A context of any family: `model`'s step is due in most, in the others it waits."""
    waiting = draw.rng.random() < SHARE_WAITING
    progress = _waiting(model, draw) if waiting else _due(model, draw)
    return Lesson((progress.task.question, *progress.responses), progress.reply(model))


def drill(model: Model, draw: Draw) -> Lesson:
    """A short lesson: the bare skill, or handing a response on."""
    if draw.rng.random() < SHARE_COPYING:
        response = wrong_turn(draw)
        return Lesson((draw.word(), response), response)
    return {"calc": _sum_card, "text": _word_card, "facts": _fact_card}[model](draw)


def wrong_turn(draw: Draw) -> str:
    """Something of the kind a specialist may say where it is not wanted."""
    return draw.rng.choice(
        (
            lambda: UNKNOWN,
            lambda: str(draw.rng.randint(0, 80)),
            lambda: draw.word(),
            lambda: str(draw.expression()),
            lambda: f"{draw.word()} {draw.rng.choice((draw.word(), draw.rng.randint(10, 40)))}",
            lambda: draw.rng.choice(LETTERS) * draw.rng.randint(1, LONGEST_ROW),
            lambda: REVERSE.format(word=draw.word()),
        )
    )()


def _task(model: Model, draw: Draw) -> Task:
    family = draw.rng.choice(tuple(FAMILIES))
    return FAMILIES[family](_knowing(draw) if (model, family) == ("facts", "fact") else draw)


def _knowing(draw: Draw) -> Draw:
    """Knowledge is not split: `facts` learns every place and every room."""
    return replace(draw, split=draw.rng.choices(SPLITS, tuple(ROOMS_PER_SPLIT.values()))[0])


def _due(model: Model, draw: Draw) -> Progress:
    """A context in which the next step is `model`'s."""
    while True:
        task = _task(model, draw)
        owned = [number for number, step in enumerate(task.steps) if step.model == model]
        if owned:
            break
    if owned[0] and draw.rng.random() < SHARE_COUNTERFACTUAL:
        task = counterfactual(task, draw)
    progress = Progress(task)
    if draw.rng.random() < SHARE_WRONG_TURN:
        progress = progress.after_saying(wrong_turn(draw))
    for step in task.steps[: owned[0]]:
        progress = progress.after(step.model)
    return progress


def _waiting(model: Model, draw: Draw) -> Progress:
    """A context in which `model` has no step to take."""
    while True:
        progress = Progress(_task(model, draw))
        for _ in range(draw.rng.randint(0, MOST_HOPS_BEFORE)):
            progress = _hop(progress, model, draw)
        if not progress.is_due(model):
            return progress


def _hop(progress: Progress, model: Model, draw: Draw) -> Progress:
    """One hop of any specialist, now and then a wrong turn that `model` cannot mistake."""
    other = draw.rng.choice(MODELS)
    is_stray = _has_no_part(model, progress.task) and not progress.is_due(other)
    if is_stray and draw.rng.random() < SHARE_WRONG_TURN:
        return progress.after_saying(wrong_turn(draw))
    return progress.after(other)


def _has_no_part(model: Model, task: Task) -> bool:
    """A riddle's question does not tell, so a stray response to it could be meant for `model`."""
    return task.family != "riddle" and all(step.model != model for step in task.steps)


def counterfactual(task: Task, draw: Draw) -> Task:
    """The same question with another first response and the answer that follows from it."""
    match task.family:
        case "story" | "census":
            x = draw.expression()
            steps = Step(task.steps[0].model, str(x)), Step("calc", str(x.value))
        case "backcap":
            word = draw.word()
            steps = Step("facts", word), Step("text", word[::-1])
        case "room":
            room = _knowing(draw).room()
            steps = Step("calc", str(room.number)), Step("facts", room.occupant)
        case "copies":
            count = draw.rng.randint(1, LONGEST_ROW)
            steps = Step("calc", str(count)), Step("text", task.answer[0] * count)
        case "mirror":
            place = _knowing(draw).place()
            steps = Step("text", place.name), Step("facts", place.capital)
        case "riddle":
            is_sum = task.steps[1].model == "calc"
            steps = riddle_steps(draw.expression() if is_sum else draw.word())
        case _:
            return task
    return replace(task, steps=steps)


def _sum_card(draw: Draw) -> Lesson:
    x = draw.expression()
    return Lesson((str(x),), str(x.value))


def _word_card(draw: Draw) -> Lesson:
    word = draw.word()
    if draw.rng.random() < 0.7:
        return Lesson((REVERSE.format(word=word),), word[::-1])
    return Lesson((f"double {word}",), word + word)


def _fact_card(draw: Draw) -> Lesson:
    """One thing about the world; every second card is a riddle, the longest thing to learn."""
    question, response = draw.rng.choice((_place_or_room, _riddle_told))(draw)
    wrong_turns = (wrong_turn(draw),) * (draw.rng.random() < SHARE_WRONG_TURN)
    return Lesson((question, *wrong_turns), response)


def _place_or_room(draw: Draw) -> tuple[str, str]:
    place, room = _knowing(draw).place(), _knowing(draw).room()
    # A pair with a place of the train split is never a pair of the other splits' questions.
    one, other = draw.rng.sample((place, draw.place()), 2)
    return draw.rng.choice(
        (
            (f"population of {one.name} and {other.name}", f"{one.people}+{other.people}"),
            (f"capital of {place.name}", place.capital),
            (f"population of {place.name}", str(place.people)),
            (f"room {room.number}", room.occupant),
        )
    )


def _riddle_told(draw: Draw) -> tuple[str, str]:
    room = _knowing(draw).room()
    question = draw.rng.choice(RIDDLE_CARDS).format(room=room.number)
    return question, riddle_steps(room.riddle)[0].response
