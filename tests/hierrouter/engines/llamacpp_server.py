"""Run by an interpreter that has `xllamacpp`: llama.cpp's own server.

Arguments: file, port, and `embeddings` where it is to embed instead of answering.
"""

import sys
import threading
from pathlib import Path

import xllamacpp

SLOTS = 4

if __name__ == "__main__":
    file, port = Path(sys.argv[1]), int(sys.argv[2])
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = str(file), {file.stem}
    params.port, params.embedding = port, sys.argv[3:] == ["embeddings"]
    if params.embedding:
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * 512
    params.cpuparams.n_threads = 1
    # All in float32: flash attention takes some in float16.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    threading.Event().wait()  # until it is ended
