"""The transformers engine: models that run on this machine, from a folder or the hub's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from hierrouter.engines import batches, generator, identity
from hierrouter.engines.batches import Decoded, Prompt, StaticBatches
from hierrouter.engines.devices import candidates, placement
from hierrouter.engines.soundness import fault_of
from hierrouter.pools.pool import Identity, ModelSpec
from hierrouter_cache.errors import WorldError, reason_of


class TransformersBackend:
    """Models from a local folder or the hub's cache, through `from_pretrained`."""

    def identify(self, spec: ModelSpec) -> Identity:
        """Engine, kind of device, and what decides the answers of the model itself.

        Raises InputError: a folder that is not a saved model, a GPU that is not there; WorldError:
        a hub id that is neither cached nor reachable.
        """
        found = {
            "engine": f"transformers {version('transformers')}, torch {version('torch')}",
            # Not its number: greedy decoding in bfloat16 differs between the kinds.
            "device": candidates(spec)[0].type,
            **identity.saved_identity(spec),
        }
        found["engine"] += f", shapes {batches.SHAPES}"
        return found

    def weight_bytes(self, spec: ModelSpec) -> int:
        """Bytes of the weights once loaded.

        Raises InputError: a folder that is not a saved model; WorldError: the files cannot be
        fetched or are damaged.
        """
        return identity.weight_bytes(spec)

    def load(self, spec: ModelSpec) -> TransformersGenerator:
        """Load weights and tokenizer; remote code is never run.

        Raises InputError: a GPU that is not there; WorldError: the files are missing, damaged or
        need code of their own.
        """
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        folder = identity.local_folder(spec)
        source = str(folder or spec.model)
        # The very commit that `identify` names: a branch may have moved in between.
        commit = None if folder else identity.hub_commit(spec.model, spec.revision)
        options: dict[str, Any] = {"revision": commit, "trust_remote_code": False}
        where = placement(spec, identity.weight_bytes(spec))
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left", **options)
            model, loaded = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=spec.dtype,
                use_safetensors=True,
                device_map=where,
                output_loading_info=True,
                **options,
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = reason_of(error, 160)
            raise WorldError(
                f"cannot load model {spec.name}: {spec.model}: {reason}; give another one"
            ) from error
        # Greedy decoding needs no random numbers; hashing large weights once more takes time.
        weights = identity.weights_of(spec) if spec.generation.temperature else ""
        return TransformersGenerator(model.eval(), tokenizer, spec, weights, loaded)


class TransformersGenerator:
    """A causal language model with its tokenizer.

    Args:
        weights: name of the content of the weights; models of a pool so draw independently.
        loaded: what the loader says of the weights; nothing for a model that was made here.

    Raises:
        WorldError: a model that cannot chat, or is broken.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        spec: ModelSpec,
        weights: str,
        loaded: Mapping[str, Any] | None = None,
    ) -> None:
        if tokenizer.chat_template is None:
            raise WorldError(
                f"model {spec.name} has no chat template: {spec.model}; use an instruct model"
            )
        self._model = model
        self._tokenizer = tokenizer
        self._generation = spec.generation
        self._weights = weights
        own = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._window = min((size for size in (own, spec.window) if size), default=None)
        ends = model.generation_config.eos_token_id
        if ends is None:
            ends = tokenizer.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else [ends])
        if why := fault_of(model, tokenizer, loaded or {}, self._ends):
            raise WorldError(f"model {spec.name} is broken: {why}: {spec.model}; give another one")
        pad = tokenizer.pad_token_id
        pad = min(self._ends) if pad is None else pad
        self._decoder = StaticBatches(model, pad, self._ends, spec.generation)

    def generate(
        self, prompts: Sequence[str], stop: generator.Stop = generator.never
    ) -> Iterator[tuple[int, generator.Answer]]:
        """The answers as they are finished; `too_long` where the window is too small comes first.

        Raises RuntimeError: the model failed, e.g. one prompt alone needs too much memory.
        """
        fitting, failures = self._fitting(prompts)
        yield from failures.items()
        for place, decoded in self._decoder.decode(fitting, stop):
            yield place, self._response(len(fitting[place].tokens), decoded)

    def answer_now(
        self, prompts: Sequence[str], follow: Mapping[int, Callable[[str], None]]
    ) -> Iterator[tuple[int, generator.Answer]]:
        """As `generate`, for people who wait: batches are not filled up, texts told as they grow.

        Raises RuntimeError: as `generate`.

        `follow`: by place, told what comes next of its answer; all of it together is the text.
        """
        fitting, failures = self._fitting(prompts)
        yield from failures.items()
        growing = {place: GrowingText(self._text, self._ends) for place in follow}

        def on_token(place: int, token: int) -> None:
            if place in growing and (more := growing[place].told(token)):
                follow[place](more)

        told = on_token if growing else None
        results = self._decoder.decode(fitting, generator.never, is_live=True, on_token=told)
        for place, decoded in results:
            answer = self._response(len(fitting[place].tokens), decoded)
            if place in follow and (more := answer.text[len(growing[place].shown) :]):
                follow[place](more)
            yield place, answer

    def _fitting(
        self, prompts: Sequence[str]
    ) -> tuple[dict[int, Prompt], dict[int, generator.Failure]]:
        """The prompts that fit the window, and why the others have no answer, by place."""
        new = self._generation.max_new_tokens
        tokens, failures = generator.split_by_window(self._tokenizer, prompts, new, self._window)
        fitting = {place: Prompt(tokens[place], self._seed(prompts[place])) for place in tokens}
        return fitting, failures

    def _seed(self, prompt: str) -> int:
        return batches.prompt_seed(self._weights, self._generation.seed, prompt)

    def _response(self, tokens_in: int, decoded: Decoded) -> generator.Response:
        tokens = decoded.tokens
        has_ended = bool(tokens) and tokens[-1] in self._ends
        return generator.Response(
            text=self._text(tokens[:-1] if has_ended else tokens).strip(),
            tokens_in=tokens_in,
            tokens_out=len(tokens),
            finish_reason="stop" if has_ended else "length",
            confidence=decoded.confidence,
        )

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the first bytes of a character, decoded


class GrowingText:
    """An answer as its tokens come; white space at its ends is left out, as it is in the answer.

    Args:
        text: of tokens.
        ends: tokens that end a response.

    Attributes:
        shown: all that was told so far.
    """

    def __init__(self, text: Callable[[list[int]], str], ends: frozenset[int]) -> None:
        self._text = text
        self._ends = ends
        self._over = False
        # Read already; how a token is written depends on the last ones.
        self._before: list[int] = []
        self._new: list[int] = []
        self._space = ""
        self.shown = ""

    def told(self, token: int) -> str:
        """What one more token adds; nothing while a character is not whole, or after the end."""
        self._over = self._over or token in self._ends
        if self._over:
            return ""
        self._new.append(token)
        old, whole = self._text(self._before), self._text([*self._before, *self._new])
        if whole.endswith(UNFINISHED) or not whole.startswith(old):
            return ""
        self._before, self._new = self._new, []
        more = self._space + whole[len(old) :]
        if not self.shown:
            more = more.lstrip()
        self._space = more[len(more.rstrip()) :]
        more = more.rstrip()
        self.shown += more
        return more
