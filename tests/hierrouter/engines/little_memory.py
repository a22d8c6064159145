"""Answer prompts in a process whose memory ends soon; prints what became of it as JSON.

python -m tests.hierrouter.engines.little_memory MODEL_FOLDER SPARE_MIB PROMPTS SUMS_IN_EACH [now]

With `now` as live questions are answered.
"""

import json
import resource
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hierrouter.engines import backend
from hierrouter.engines.batches import Shape
from hierrouter.engines.generator import answers_in_order
from hierrouter.pools.pool import Generation, ModelSpec


def virtual_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


def main(folder: str, spare_mib: int, count: int, sums: int, is_live: bool) -> None:
    prompts = [f"{n} " + "1+2 " * sums for n in range(count)]
    generation = Generation(4)
    spec = ModelSpec("m", folder, 0.1, dtype="float32", device="cpu", generation=generation)
    generator = backend("transformers").load(spec)
    decoder = generator._decoder  # type: ignore[attr-defined]
    before = decoder.limits = replace(decoder.limits, rows=512, prompt_tokens=10**6)
    batches = []

    def noting(prompts: list[Any], shape: Shape, following: Any) -> list[list[int]]:
        batches.append((shape.height, len(prompts)))
        return decode_batch(prompts, shape, following)

    decode_batch, decoder._decode_batch = decoder._decode_batch, noting
    first = answers_in_order(generator, ["1+2"])  # all that is loaded once is loaded now
    ceiling = virtual_bytes() + spare_mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    told: dict[str, object]
    try:
        answers = dict(
            generator.answer_now(prompts, {}) if is_live else generator.generate(prompts)
        )
        told = {
            "answers": len(answers),
            "still_well": answers_in_order(generator, ["1+2"]) == first,
        }
    except RuntimeError as error:
        told = {"error": str(error)}
    told |= {"limits": asdict(decoder.limits), "are_as_before": decoder.limits == before}
    sys.stdout.write(json.dumps({**told, "batches": batches}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), is_live=sys.argv[5:] == ["now"])
