"""What the paper takes from the hub, tiny: its five models, its encoder, and two data sets."""

import hashlib
import itertools
import random
from pathlib import Path
from typing import Any

from hierrouter.engines.encoder_names import PAPER_ENCODER
from hierrouter.pools.files import load_pool
from hierrouter.questions.sources import HUB_REPOSITORIES, MATH_SUBJECTS
from tests.hub import Files, Model, repository
from tests.models import save_letters

ARCHITECTURES = ("qwen2", "qwen2", "phi3", "llama", "qwen2")  # of the pool's models, in order
WINDOW = 8192  # the paper's
END_WEIGHT = 30.0  # of that number
QUESTIONS = 12  # of gsm8k; of each subject of math a sixth


def commit_of(files: Files) -> str:
    """A commit as the hub names it: 40 hexadecimal digits, other ones for other files."""
    total = hashlib.sha1(usedforsecurity=False)
    for path, data in sorted(files.items()):
        total.update(path.encode() + b"\0" + data)
    return total.hexdigest()


def files_of(folder: Path) -> Files:
    """The files of a repository, sub-folders included."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def save_brief_model(folder: Path, architecture: str, seed: int) -> Path:
    """A random language model that soon ends its answers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from benchmarks.testbed_recipe import build_tokenizer, vocabulary

    tokenizer = build_tokenizer(vocabulary())
    tokenizer.model_max_length = WINDOW
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        # One number of each state says whether the newest token is one of an answer, and speaks
        # for the end alone: so an answer has a token or two before it, and no more.
        model.get_input_embeddings().weight[:, 0] = 2.0
        model.get_input_embeddings().weight[tokenizer.all_special_ids, 0] = -2.0
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight[0] = 0.0
        model.get_output_embeddings().weight[:, 0] = 0.0
        model.get_output_embeddings().weight[tokenizer.eos_token_id] = 0.0
        model.get_output_embeddings().weight[tokenizer.eos_token_id, 0] = END_WEIGHT
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


THOUGHT = ("<think>", "1", "5", "</think>")
THOUGHT_ANSWER = ("7", "2")


def save_thinking_model(folder: Path) -> Path:
    """A model that thinks aloud: to whatever it is asked, it answers `<think>15</think>72`.

    Each token alone decides the next one: attention and feed-forward layers add nothing, and the
    output weights of a token are the embedding of the token before it.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from benchmarks.testbed_recipe import build_tokenizer, vocabulary

    tokenizer = build_tokenizer(vocabulary())
    # As in DeepSeek's distilled models the tags are no special tokens, so they are decoded.
    tokenizer.add_tokens([THOUGHT[0], THOUGHT[-1]])
    tokenizer.model_max_length = WINDOW
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config)
    said = ["<|assistant|>", *THOUGHT, *THOUGHT_ANSWER, tokenizer.eos_token]
    tokens = tokenizer.convert_tokens_to_ids(said)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        embedding = model.get_input_embeddings().weight
        embedding.copy_(torch.nn.functional.normalize(torch.randn_like(embedding), dim=1))
        output = model.get_output_embeddings().weight
        output.zero_()
        for before, after in itertools.pairwise(tokens):
            output[after] = embedding[before]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_tiny_encoder(folder: Path, seed: int = 0) -> Path:
    """A sentence-transformers model that reads 512 letters."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertModel

    _, config = save_letters(folder, 512)
    torch.manual_seed(seed)
    BertModel(config).save_pretrained(folder)
    layers = [Transformer(str(folder)), Pooling(config.hidden_size)]
    SentenceTransformer(modules=layers).save(str(folder))
    return folder


REASONER = "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"  # the paper's model that thinks


def paper_models(folder: Path, thinks: bool = False) -> dict[str, Model]:
    """The models of the paper's pool and its encoder, each with one commit.

    Args:
        folder: where they are made.
        thinks: whether the paper's reasoning model thinks aloud.
    """
    models = {}
    specs = load_pool("paper").all_models
    for seed, (spec, architecture) in enumerate(zip(specs, ARCHITECTURES, strict=True)):
        if thinks and spec.model == REASONER:
            saved = save_thinking_model(folder / spec.model)
        else:
            saved = save_brief_model(folder / spec.model, architecture, seed)
        models[spec.model] = files_of(saved)
    models[PAPER_ENCODER] = files_of(save_tiny_encoder(folder / PAPER_ENCODER))
    return {name: Model({commit_of(files): files}) for name, files in models.items()}


def paper_datasets() -> dict[str, Files]:
    """gsm8k and math as they are published, with other questions, and a few of them."""
    draw = random.Random(0)
    gsm8k = []
    for number in range(QUESTIONS):
        first, second = draw.randrange(10, 99), draw.randrange(10, 99)
        question = f"Box {number} has {first} red and {second} blue balls. How many is that?"
        answer = f"{first} + {second} = <<{first}+{second}={first + second}>>{first + second}."
        gsm8k.append({"question": question, "answer": f"{answer}\n#### {first + second}"})
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for subject in MATH_SUBJECTS:
        rows = []
        for number in range(QUESTIONS // 6):
            problem = f"In {subject.replace('_', ' ')} {number}, what is ${number} + 1$?"
            solution = f"It is $\\boxed{{{number + 1}}}$."
            level = {"level": "Level 1", "type": subject}
            rows.append({"problem": problem, "solution": solution, **level})
        parts[subject, "train"] = rows[:1]
        parts[subject, "test"] = rows
    return {
        HUB_REPOSITORIES["gsm8k"].repository: repository(
            {("main", "train"): gsm8k[:2], ("main", "test"): gsm8k, ("socratic", "test"): gsm8k}
        ),
        HUB_REPOSITORIES["math"].repository: repository(parts),
    }
