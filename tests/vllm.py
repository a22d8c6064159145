"""A server that answers as vLLM documents its own, over the weights of a saved model.

vLLM itself needs a GPU or a build of its own. From its documentation and its published protocol
this one has what a client sees:

* a setting that a request leaves out or sends as null is that of the server: the model's
  `generation_config.json` (vLLM's `--generation-config auto`, its default), else a neutral value;
  `max_new_tokens` in that file is a ceiling for every request;
* settings that are not OpenAI's: `repetition_penalty`, `top_k`, `min_p`, `min_tokens`; those that
  it does not know are ignored; impossible ones, and prompts that do not fit, are refused in its
  words;
* temperatures below 1e-5 are greedy, log-probabilities are those before any penalty, and the end
  token counts and has one.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.servers import Reply, Server

NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
GREEDY = 1e-5
# A setting, what it must be, and how vLLM says so.
CHECKS = (
    ("repetition_penalty", lambda value: value > 0, "must be greater than zero"),
    ("presence_penalty", lambda value: -2 <= value <= 2, "must be in [-2, 2]"),
    ("frequency_penalty", lambda value: -2 <= value <= 2, "must be in [-2, 2]"),
    ("temperature", lambda value: value >= 0, "must be non-negative"),
    ("temperature", lambda value: value <= 2, "must be in [0, 2]"),
    ("top_p", lambda value: 0 < value <= 1, "must be in (0, 1]"),
    ("top_k", lambda value: value >= -1, "must be 0 (disable), or at least 1"),
    ("min_p", lambda value: 0 <= value <= 1, "must be in [0, 1]"),
)


def error(status: int, kind: str, message: str, param: str | None = None) -> Reply:
    """The body of an error."""
    return Reply(
        {"error": {"message": message, "type": kind, "param": param, "code": status}}, status
    )


@dataclass
class Vllm(Server):
    """The server.

    Attributes:
        folder: of the saved model.
        name: that the model is served under.
        window: `--max-model-len`.
        generation_config: `auto`, or `vllm`, which leaves the model's settings aside.
    """

    folder: Path = field(default_factory=Path)
    name: str = "org/model"
    window: int = 512
    generation_config: str = "auto"

    def __post_init__(self) -> None:
        card = {"id": self.name, "object": "model", "owned_by": "vllm", "root": str(self.folder)}
        self.listing = Reply(
            {"object": "list", "data": [{**card, "parent": None, "max_model_len": self.window}]}
        )

    @cached_property
    def model(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(self.folder, dtype="float32").eval()

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.folder)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The settings that the model brings in."""
        if self.generation_config == "vllm":
            return {}
        return dict(json.loads((self.folder / "generation_config.json").read_text()))

    def completed(self, request: dict[str, Any]) -> Reply:
        with self.lock:
            self.asked[request["messages"][0]["content"]] += 1
            self.requests.append(request)
            return self._answer(request)

    def _answer(self, request: dict[str, Any]) -> Reply:
        if request.get("model") != self.name:
            message = f"The model `{request.get('model')}` does not exist."
            return error(404, "NotFoundError", message, "model")
        settings = {
            name: self.defaults.get(name, neutral) if request.get(name) is None else request[name]
            for name, neutral in NEUTRAL.items()
        }
        for name, is_possible, words in CHECKS:
            if not is_possible(settings[name]):
                message = f"{name} {words}, got {settings[name]}."
                return error(400, "BadRequestError", message, name)
        prompt = self.tokenizer.apply_chat_template(
            request["messages"], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        width = prompt.shape[1]
        limit = request.get("max_completion_tokens") or request.get("max_tokens")
        if width + (limit or 1) > self.window:
            return error(
                400,
                "BadRequestError",
                f"This model's maximum context length is {self.window} tokens. However, you "
                f"requested {limit} output tokens and your prompt contains at least {width} input "
                f"tokens, for a total of at least {width + (limit or 1)} tokens. Please reduce the "
                "length of the input prompt or the number of requested output tokens.",
                "input_tokens",
            )
        ceilings = (limit, self.defaults.get("max_new_tokens"), self.window - width)
        limit = min(number for number in ceilings if number)
        at_least = request.get("min_tokens", 0)
        if at_least > limit:
            message = (
                f"min_tokens must be less than or equal to max_tokens={limit}, got {at_least}."
            )
            return error(400, "BadRequestError", message)
        tokens, logprobs = self._decode(prompt, settings, limit, at_least, request.get("seed"))
        return Reply(self._body(request, width, tokens, logprobs))

    @torch.inference_mode()
    def _decode(
        self,
        prompt: torch.Tensor,
        settings: dict[str, Any],
        limit: int,
        at_least: int,
        seed: int | None,
    ) -> tuple[list[int], list[float]]:
        greedy = settings["temperature"] < GREEDY
        warpers = LogitsProcessorList()
        if not greedy:
            warpers.append(TemperatureLogitsWarper(float(settings["temperature"])))
            if settings["top_k"] > 0:
                warpers.append(TopKLogitsWarper(settings["top_k"]))
            warpers.append(TopPLogitsWarper(float(settings["top_p"])))
            warpers.append(MinPLogitsWarper(float(settings["min_p"])))
        torch.manual_seed(seed or 0)
        ends = self.model.generation_config.eos_token_id
        self.model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=0)
        output = self.model.generate(
            prompt,
            max_new_tokens=limit,
            min_new_tokens=at_least,
            do_sample=not greedy,
            temperature=None,
            top_p=None,
            top_k=None if greedy else 0,
            repetition_penalty=settings["repetition_penalty"],
            logits_processor=warpers,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = output.sequences[0, prompt.shape[1] :].tolist()
        pairs = zip(output.logits, tokens, strict=True)
        return tokens, [float(logits[0].log_softmax(-1)[token]) for logits, token in pairs]

    def _body(
        self, request: dict[str, Any], width: int, tokens: list[int], logprobs: list[float]
    ) -> dict[str, Any]:
        has_ended = tokens[-1] == self.tokenizer.eos_token_id
        content = [
            {
                "token": (text := self.tokenizer.decode([token])),
                "logprob": max(logprob, -9999.0),
                "bytes": list(text.encode()),
                "top_logprobs": [],
            }
            for token, logprob in zip(tokens, logprobs, strict=True)
        ]
        choice = {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": self.tokenizer.decode(tokens, skip_special_tokens=True),
                "refusal": None,
                "reasoning": None,
            },
            "logprobs": {"content": content} if request.get("logprobs") else None,
            "finish_reason": "stop" if has_ended else "length",
            "stop_reason": None,
        }
        usage = {
            "prompt_tokens": width,
            "total_tokens": width + len(tokens),
            "completion_tokens": len(tokens),
            "prompt_tokens_details": None,
        }
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": self.name,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": usage,
            "prompt_logprobs": None,
        }
