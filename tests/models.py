"""Random-weight models, saved as `from_pretrained` folders: the real loading path, no download."""

import string
from pathlib import Path
from typing import Any

ARCHITECTURES = ("qwen2", "phi3", "llama")


def save_random_model(folder: Path, architecture: str, seed: int = 0, window: int = 2048) -> Path:
    """A tiny causal language model of this architecture with the testbed's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from benchmarks.testbed_recipe import build_tokenizer, vocabulary

    tokenizer = build_tokenizer(vocabulary())
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=window,
        # Large enough that the models babble: with small weights every response is the same.
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_letters(folder: Path, window: int) -> tuple[Any, Any]:
    """A tokenizer that reads text by letters, saved, and the settings of a tiny BERT for it."""
    from transformers import BertConfig, BertTokenizer

    letters = string.ascii_lowercase + string.digits + string.punctuation
    inner = [f"##{letter}" for letter in letters]  # as WordPiece spells all but a word's first
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *inner]
    numbered = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = BertTokenizer(vocab=numbered, model_max_length=window)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(pieces),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=window,
        num_labels=1,
        initializer_range=1.0,  # with small weights every text has nearly the same vector
    )
    return tokenizer, config


def save_random_encoder(folder: Path, seed: int = 0, window: int = 64) -> Path:
    """A tiny sentence-transformers model, BERT and mean pooling."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertModel

    _, config = save_letters(folder, window)
    torch.manual_seed(seed)
    BertModel(config).save_pretrained(folder)
    layers = [Transformer(str(folder)), Pooling(config.hidden_size)]
    SentenceTransformer(modules=layers).save(str(folder))
    return folder


def save_random_reward_model(folder: Path, seed: int = 0, window: int = 64) -> Path:
    """A tiny sequence classifier of one number, as reward models on the hub are."""
    import torch
    from transformers import BertForSequenceClassification

    _, config = save_letters(folder, window)
    torch.manual_seed(seed)
    BertForSequenceClassification(config).save_pretrained(folder)
    return folder
