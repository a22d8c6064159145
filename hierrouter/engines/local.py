"""The transformers engine: models that run on this machine, from a folder or the hub's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from importlib.metadata import version
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from hierrouter.engines import batches, generator, identity
from hierrouter.engines.batches import DecodedResponse, Prompt, StaticBatches
from hierrouter.engines.devices import candidates, placement
from hierrouter.engines.soundness import fault_of
from hierrouter.hub.repository import quiet_loading
from hierrouter.pools.pool import Generation, Identity, ModelSpec
from hierrouter_cache.errors import InputError, WorldError, reason_of


class TransformersBackend:
    """Models from a local folder or the hub's cache, loaded by `from_pretrained`."""

    def identify(self, spec: ModelSpec) -> Identity:
        """Identify a model by engine, kind of device, weights and dtype.

        Args:
            spec: the model.

        Returns:
            What decides its responses.

        Raises:
            InputError: a folder is not a saved model, or a GPU does not exist.
            WorldError: a hub model is neither cached nor can it be found on the hub.
        """
        versions = f"transformers {version('transformers')}, torch {version('torch')}"
        entries = {
            "engine": f"{versions}, shapes {batches.SHAPES_VERSION}",
            # The kind of device, not its number: greedy decoding in bfloat16 differs between kinds.
            "device": candidates(spec)[0].type,
            **identity.saved_identity(spec),
        }
        # Older versions decoded with these settings. A model without any has the identity as ever.
        if identity.ignored_settings(spec):
            entries["sampling"] = identity.NEUTRAL_SAMPLING
        return entries

    def weight_bytes(self, spec: ModelSpec) -> int:
        """Compute the size of the weights once they are loaded.

        Args:
            spec: the model.

        Returns:
            Bytes.

        Raises:
            InputError: a folder is not a saved model.
            WorldError: the files cannot be downloaded or are damaged.
        """
        return identity.weight_bytes(spec)

    def load(self, spec: ModelSpec) -> TransformersGenerator:
        """Load weights and tokenizer; remote code is never run.

        Args:
            spec: the model.

        Returns:
            The loaded model.

        Raises:
            InputError: a GPU does not exist.
            WorldError: the files are missing, damaged or need remote code; or the model cannot
                chat, or is broken.
        """
        _require_local(spec.generation, spec.name)
        folder = identity.local_folder(spec)
        source = str(folder or spec.model)
        # The very commit that `identify` names: a branch may have moved in between.
        commit = None if folder else identity.hub_commit(spec.model, spec.revision)
        device_map = placement(spec, identity.weight_bytes(spec))
        # All files are here by now. The loader itself would ask the hub for each file that the
        # repository may have, for minutes if there is no network.
        options: dict[str, Any] = {
            "revision": commit,
            "local_files_only": commit is not None,
            "trust_remote_code": False,
        }
        try:
            with quiet_loading():
                tokenizer = AutoTokenizer.from_pretrained(source, padding_side="left", **options)
                # With `output_loading_info` it returns a pair, which its annotation does not tell.
                pretrained: Any = AutoModelForCausalLM.from_pretrained(
                    source,
                    dtype=spec.dtype,
                    use_safetensors=True,
                    device_map=device_map,
                    output_loading_info=True,
                    **options,
                )
        # The last three are what transformers raises for settings files of another shape.
        except (OSError, ValueError, RuntimeError, TypeError, AttributeError, KeyError) as error:
            reason = reason_of(error, 160)
            raise WorldError(
                f"cannot load model {spec.name}: {spec.model}: {reason}; give another one"
            ) from error
        # Greedy decoding needs no random numbers, and hashing large weights once more takes time.
        weights = identity.weights_of(spec) if spec.generation.temperature else ""
        model, loaded = pretrained
        return TransformersGenerator(model.eval(), tokenizer, spec, weights, loaded)


class TransformersGenerator:
    """A causal language model with its tokenizer.

    Args:
        model: the model, as loaded.
        tokenizer: its tokenizer, as loaded.
        spec: the model's entry in a pool.
        weights: name of the content of the weights. It enters the seeds, so that the models of a
            pool draw independently.
        loaded: the loader's report on the weights; None for a model that was not loaded.

    Raises:
        WorldError: the model cannot chat, or is broken.
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
        self._spec = spec
        self._pad = 0
        self._tokenizer = tokenizer
        self._generation = spec.generation
        self._weights = weights
        model_window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._window = min((size for size in (model_window, spec.window) if size), default=None)
        ends = model.generation_config.eos_token_id
        if ends is None:
            ends = tokenizer.eos_token_id
        end_ids = ends if isinstance(ends, list) else [ends]
        self._ends = frozenset(token for token in end_ids if isinstance(token, int))
        fault = fault_of(model, tokenizer, loaded or {}, self._ends)
        if fault:
            raise WorldError(
                f"model {spec.name} is broken: {fault}: {spec.model}; give another one"
            )
        pad = tokenizer.pad_token_id
        if pad is None:
            pad = min(self._ends)
        self._pad = pad
        # Settings that come with a model, such as a repetition penalty, would change its responses
        # without being in the pool. See `identity.ignored_settings`.
        model.generation_config = GenerationConfig(
            bos_token_id=model.generation_config.bos_token_id,
            eos_token_id=sorted(self._ends),
            pad_token_id=pad,
        )
        self._decoder = StaticBatches(model, pad, self._ends, spec.generation)

    def with_generation(self, generation: Generation) -> TransformersGenerator:
        """Return the same loaded model with other decoding settings.

        Args:
            generation: the settings.

        Raises:
            InputError: they are for a server.
        """
        _require_local(generation, self._spec.name)
        other = copy(self)
        other._generation = generation
        if generation.temperature and not other._weights:
            other._weights = identity.weights_of(self._spec)
        other._decoder = StaticBatches(self._model, self._pad, self._ends, generation)
        return other

    def generate(
        self,
        prompts: Sequence[str],
        stop: generator.Stop = generator.never,
        draws: Sequence[int] = (),
    ) -> Iterator[tuple[int, generator.Answer]]:
        """Answer prompts; failures of prompts too long for the window come first.

        Args:
            prompts: the prompts.
            stop: once it returns true, no further batch is begun.
            draws: as `Generator.generate`.

        Yields:
            (position in `prompts`, answer) as the answers are finished.

        Raises:
            RuntimeError: the model failed, e.g. one prompt alone needs too much memory.
        """
        fitting, failures = self._fitting(prompts, draws)
        yield from failures.items()
        for position, decoded in self._decoder.decode(fitting, stop):
            yield position, self._response(len(fitting[position].tokens), decoded)

    def answer_now(
        self, prompts: Sequence[str], follow: Mapping[int, Callable[[str], None]]
    ) -> Iterator[tuple[int, generator.Answer]]:
        """Answer prompts of people who are waiting: batches are not filled up, texts are streamed.

        Args:
            prompts: the prompts.
            follow: callbacks by position in `prompts`. Each is called with the next piece of its
                answer's text; the pieces together are the text.

        Yields:
            (position in `prompts`, answer) as the answers are finished.

        Raises:
            RuntimeError: the model failed, e.g. one prompt alone needs too much memory.
        """
        fitting, failures = self._fitting(prompts)
        yield from failures.items()
        growing_texts = {position: GrowingText(self._text, self._ends) for position in follow}

        def on_token(position: int, token: int) -> None:
            if position not in growing_texts:
                return
            addition = growing_texts[position].add(token)
            if addition:
                follow[position](addition)

        results = self._decoder.decode(
            fitting, generator.never, is_live=True, on_token=on_token if growing_texts else None
        )
        for position, decoded in results:
            answer = self._response(len(fitting[position].tokens), decoded)
            if position in follow:
                # The stream may have kept back an incomplete character at the end.
                rest = answer.text[len(growing_texts[position].text) :]
                if rest:
                    follow[position](rest)
            yield position, answer

    def _fitting(
        self, prompts: Sequence[str], draws: Sequence[int] = ()
    ) -> tuple[dict[int, Prompt], dict[int, generator.Failure]]:
        """Split prompts by position into those that fit the window, and failures for the others."""
        new_tokens = self._generation.max_new_tokens
        tokens, failures = generator.split_by_window(
            self._tokenizer, prompts, new_tokens, self._window
        )
        fitting = {}
        for position in tokens:
            seed = self._seed(prompts[position], draws[position] if draws else 0)
            fitting[position] = Prompt(tokens[position], seed)
        return fitting, failures

    def _seed(self, prompt: str, draw: int = 0) -> int:
        return batches.prompt_seed(self._weights, self._generation.seed, prompt, draw)

    def _response(self, tokens_in: int, decoded: DecodedResponse) -> generator.Response:
        tokens = decoded.tokens
        has_ended = bool(tokens) and tokens[-1] in self._ends
        return generator.Response(
            text=self._text(tokens[:-1] if has_ended else tokens).strip(),
            tokens_in=tokens_in,
            tokens_out=len(tokens),
            finish_reason="stop" if has_ended else "length",
            confidence=decoded.confidence,
            time=decoded.time,
        )

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def _require_local(generation: Generation, name: str) -> None:
    """Refuse settings of servers.

    Raises:
        InputError: there are some.
    """
    if generation.further_fields:
        raise InputError(
            f"effort and extra_body are for models on a server: model {name}; leave them out"
        )


# Tokenizers decode the first bytes of a character to this while its last bytes are missing.
INCOMPLETE_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class GrowingText:
    """The text of a response while its tokens arrive, without white space at either end.

    Args:
        decode: returns the text of tokens.
        ends: tokens that end a response.

    Attributes:
        text: the text so far.
    """

    def __init__(self, decode: Callable[[list[int]], str], ends: frozenset[int]) -> None:
        self.text = ""
        self._decode = decode
        self._ends = ends
        self._is_over = False
        # Tokens of the last piece: a token's text depends on the tokens before it.
        self._previous: list[int] = []
        self._pending: list[int] = []
        # White space that is part of the text only if more text follows.
        self._space = ""

    def add(self, token: int) -> str:
        """Add a token and return the text that it adds.

        Args:
            token: the next token.

        Returns:
            The new text; empty while a character is incomplete, and after the end token.
        """
        self._is_over = self._is_over or token in self._ends
        if self._is_over:
            return ""
        self._pending.append(token)
        before = self._decode(self._previous)
        after = self._decode([*self._previous, *self._pending])
        if after.endswith(INCOMPLETE_CHARACTER) or not after.startswith(before):
            return ""
        self._previous = self._pending
        self._pending = []
        addition = self._space + after[len(before) :]
        if not self.text:
            addition = addition.lstrip()
        visible = addition.rstrip()
        self._space = addition[len(visible) :]
        self.text += visible
        return visible
