"""Answer prompts in a process whose memory ends soon; prints what became of it as JSON.

python -m tests.hierrouter.engines.little_memory MODEL_FOLDER
"""

import json
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from hierrouter.engines import backend
from hierrouter.pools.pool import Generation, ModelSpec
from tests.engines import answers_in_order

SPARE = 100 << 20  # bytes
MANY = [f"{n} " + "1+2 " * 60 for n in range(200)]


def main(folder: str) -> None:
    spec = ModelSpec("m", folder, dtype="float32", device="cpu", generation=Generation(4))
    generator: Any = backend("transformers").load(spec)
    decoder = generator._decoder
    decoder.limits = replace(decoder.limits, rows=512, prompt_tokens=10**6)
    batches = []

    def noting(rows: Any, height: int, *more: Any) -> Any:
        batches.append((height, len(rows)))
        return decode_batch(rows, height, *more)

    decode_batch, decoder._decode_batch = decoder._decode_batch, noting
    first = answers_in_order(generator, ["1+2"])  # all that is loaded once is loaded now
    pages = Path("/proc/self/statm").read_text().split()[0]
    ceiling = int(pages) * resource.getpagesize() + SPARE
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    told: list[object] = []
    for answers in (generator.answer_now(MANY, {}), generator.generate(MANY)):
        batches.clear()
        told.append([len(list(answers)), decoder.limits.cache_tokens, list(batches)])
    try:
        list(generator.generate(["1+2 " * 12_000]))
    except RuntimeError as error:
        told.append(str(error))
    told.append(answers_in_order(generator, ["1+2"]) == first)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
