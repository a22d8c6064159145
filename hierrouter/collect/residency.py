"""Which models stay loaded.

In: models as they are called. Out: their generators. All stay where they fit; where memory is
short, those called longest ago are let go before the next one is loaded. A model behind an
endpoint holds no memory here and stays. Not covered: the memory of batches, see `backends`.
"""

from __future__ import annotations

from collections.abc import Callable

from hierrouter.collect.generator import Engines, Generator
from hierrouter.pool import ModelSpec

Room = Callable[[ModelSpec], int]
# Of a device's memory, for the keys and values of batches: models that leave less are too many.
BATCHES_SHARE = 0.25


def room_for_weights(spec: ModelSpec) -> int:
    """Bytes that weights may take now on the devices of this model."""
    from hierrouter.collect.backends.devices import candidates, memory

    seen = memory(candidates(spec))
    return int(seen.free - BATCHES_SHARE * seen.total)


def _give_back_memory() -> None:
    from hierrouter.collect.backends.devices import give_back_memory

    give_back_memory()


class Residency:
    """The loaded models, the one called longest ago first.

    Args:
        engines: the backend of a name.
        room: bytes that weights may take now, on the devices of a model.
    """

    def __init__(self, engines: Engines, room: Room = room_for_weights) -> None:
        self._engines = engines
        self._room = room
        self._loaded: dict[str, Generator] = {}
        self._bytes: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        """Whether a model of this name is loaded: call such models first at each level."""
        return name in self._loaded

    def generator(self, spec: ModelSpec) -> Generator:
        """The model, loaded now unless it is already.

        Do not keep it: a generator that somebody holds is not freed when it is let go.

        Raises:
            InputError, WorldError: it cannot be loaded, see its backend.
        """
        if spec.name in self._loaded:
            self._loaded[spec.name] = self._loaded.pop(spec.name)
            return self._loaded[spec.name]
        engine = self._engines(spec.backend)
        self._bytes[spec.name] = engine.weight_bytes(spec)
        self._make_room(spec)
        self._loaded[spec.name] = engine.load(spec)
        return self._loaded[spec.name]

    def release(self, name: str) -> None:
        """Let a model go, loaded or not: it is called no more."""
        if self._loaded.pop(name, None) and self._bytes[name]:
            _give_back_memory()

    def release_served(self) -> None:
        """Let go what servers hold: whether they answer is looked at again before the next call."""
        for name in [name for name in self._loaded if not self._bytes[name]]:
            self.release(name)

    def _make_room(self, spec: ModelSpec) -> None:
        """Where it is too large for an empty device it is tried all the same: this is a guess."""
        needed = self._bytes[spec.name]
        if not needed:
            return
        for name in [name for name in self._loaded if self._bytes[name]]:
            if needed <= self._room(spec):
                return
            self.release(name)
