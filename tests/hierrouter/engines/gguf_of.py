"""A folder of the testbed's models as one GGUF file; run by an interpreter that has `gguf`.

Weights are written as float32, which loses nothing of their float16. The tokenizer looks whole
words up, and takes what it does not know in bytes. llama.cpp cuts texts into words by rules that it
knows by name; of those that look words up "tekken" is nearest. What differs, and is in no question
of the testbed: a sign goes with letters right after it ('"tom' is no word then), a capital begins a
word, and " ?" is one token before other signs too.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BY_TYPE = {
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "hunyuan_v1_dense": gguf.MODEL_ARCH.HUNYUAN_DENSE,
}


def tensors(file: Path) -> dict[str, np.ndarray]:
    """Of a safetensors file: the length of a header, the header, the bytes."""
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, told in header.items():
        assert told["dtype"] == "F16"
        begin, end = told["data_offsets"]
        values = np.frombuffer(raw[start + begin : start + end], "<f2")
        found[name] = values.reshape(told["shape"]).astype(np.float32)
    return found


def write(folder: Path, file: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    architecture = BY_TYPE[config["model_type"]]
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_name(folder.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    add_tokenizer(writer, folder, config)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, values in tensors(folder / "model.safetensors").items():
        called = names.get_name(name, try_suffixes=(".weight",))
        assert called, name
        writer.add_tensor(called, values)
        if called == "token_embd.weight":  # not every architecture takes these for both ends
            assert config["tie_word_embeddings"]
            writer.add_tensor("output.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any]) -> None:
    told = json.loads((folder / "tokenizer.json").read_text())
    model, added = told["model"], {token["content"]: token for token in told["added_tokens"]}
    assert (model["type"], model["ignore_merges"], model["merges"]) == ("BPE", True, [])
    by_id = {number: token for token, number in model["vocab"].items()}
    by_id |= {token["id"]: content for content, token in added.items()}
    tokens = [by_id[number] for number in range(config["vocab_size"])]
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    for token in added.values():
        special = token["special"]
        kinds[token["id"]] = gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("tekken")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ ?", "Ġ ."])  # known with a line break behind, too
    writer.add_add_bos_token(False)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
