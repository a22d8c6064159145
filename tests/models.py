"""Random-weight models, saved as `from_pretrained` folders: the real loading path, no download."""

from pathlib import Path

ARCHITECTURES = ("qwen2", "phi3", "llama")


def save_random_model(folder: Path, architecture: str, seed: int = 0, window: int = 2048) -> Path:
    """A tiny causal language model of this architecture with the testbed's tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from hierrouter.testbed.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
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
