"""Matrices for `selection`: samples of the embedded translator under the embedded utility and its distilled versions.

`python -m evaluation.benchmarks.embedded_matrices FOLDER` takes some seconds per source; a second call makes what is
missing.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from tqdm import tqdm

from evaluation.assets import BUILTIN, BUILTIN_SENTENCES, DATA_OR_BUILTIN_HELP, find, read_lines
from evaluation.benchmarks.measures import full_matrix
from hf_acpmbr import ACPMBR, load_utility
from hf_acpmbr.files import write_atomically
from hf_acpmbr.models import load_model

UTILITIES = ("embedded", "embedded-d1", "embedded-d2")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", help=DATA_OR_BUILTIN_HELP)
    parser.add_argument("--sentences", type=int, default=36, help="in each direction")
    parser.add_argument("--num-candidates", type=int, default=128)
    options = parser.parse_args(arguments)
    file = BUILTIN_SENTENCES if options.data == BUILTIN else find("tatoeba", "test.en-de.jsonl.gz", options.data)
    rows = list(read_lines(file))
    options.folder.mkdir(parents=True, exist_ok=True)
    utilities = [load_utility(name) for name in UTILITIES]
    for seed, (source, target) in enumerate((("en", "de"), ("de", "en"))):
        model, tokenizer, language = load_model("embedded", source_language=source, target_language=target)
        draw = ACPMBR(tokenizer, decoder="map", num_candidates=options.num_candidates)
        texts = [row[source] for row in rows if 25 <= len(row[source]) <= 70]
        order = np.random.default_rng(seed).permutation(len(texts))[: options.sentences]
        for place, k in enumerate(tqdm(order.tolist(), f"{source}-{target}")):
            path = options.folder / f"{source}-{target}-{place:02d}.npz"
            if path.exists():
                continue
            inputs = tokenizer(texts[k], return_tensors="pt")
            output = model.generate(
                **inputs, **language, custom_generate=draw, return_dict_in_generate=True, max_new_tokens=64
            )
            pool = output.candidates[0]
            expensive, good, weak = (full_matrix(u, pool.texts, source=texts[k]) for u in utilities)
            buffer = io.BytesIO()
            np.savez_compressed(
                buffer, target=expensive, distilled=good, weak=weak, counts=pool.counts, logprobs=pool.logprobs
            )
            write_atomically(path, buffer.getvalue())


if __name__ == "__main__":
    main()
