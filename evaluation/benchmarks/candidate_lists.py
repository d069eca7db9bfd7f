"""Candidate lists for the benchmarks: strings with the overlap and the duplicates that samples of one source have."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from dataclasses import dataclass

from evaluation.assets import BUILTIN, find, read_lines

# Written for this file: eleven ways to say the same in English.
BUILT_IN = [
    "A man in a blue shirt is standing on a ladder and cleaning a window.",
    "A man wearing a blue shirt stands on a ladder and cleans a window.",
    "A man in a blue shirt stands on a ladder while cleaning the window.",
    "A man with a blue shirt is standing on a ladder to clean a window.",
    "The man in the blue shirt is on a ladder and is cleaning a window.",
    "A man in a blue shirt cleans a window while standing on a ladder.",
    "A man in blue is standing on the ladder and washing a window.",
    "A guy in a blue shirt is standing on a ladder and cleaning windows.",
    "A man wearing a blue shirt is on a ladder and is washing the window.",
    "Standing on a ladder, a man in a blue shirt is cleaning a window.",
    "A man in a blue top stands on a ladder and is cleaning the windows.",
]


@dataclass(frozen=True)
class CandidateList:
    """`texts` were drawn for one source, duplicates included, with their log-probabilities."""

    name: str
    source: str
    texts: list[str]
    logprobs: list[float]


def word_graph_samples(outputs: list[str], count: int, seed: int, context: int = 2) -> tuple[list[str], list[float]]:
    """Draw `count` samples from the word graph of real translations of one source, with their log-probabilities.

    A sample starts as one of the translations starts, and goes on from the last `context` words as any of them does.
    A text determines its path, so its log-probability is the sum along it (samples twice as long as any translation
    are thrown away, which is left out of account).
    """
    follow: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for output in outputs:
        words = ["<s>"] * context + output.split() + ["</s>"]
        for k in range(context, len(words)):
            follow[tuple(words[k - context : k])].append(words[k])
    longest = 2 * max(len(output.split()) for output in outputs)
    draw = random.Random(seed)
    samples: list[str] = []
    logprobs: list[float] = []
    while len(samples) < count:
        state, words, logprob = ("<s>",) * context, [], 0.0
        while len(words) <= longest:
            word = draw.choice(follow[state])
            logprob += math.log(follow[state].count(word) / len(follow[state]))
            if word == "</s>":
                samples.append(" ".join(words))
                logprobs.append(logprob)
                break
            words.append(word)
            state = (*state[1:], word)
    return samples, logprobs


def candidate_lists(number: int, count: int, seed: int = 0, data: str | None = None) -> list[CandidateList]:
    """Make `number` lists of `count` samples, from real system outputs in the data folder or from those built in.

    Args:
        data: the folder, or "builtin"; default: ACPMBR_DATA.
    """
    if data == BUILTIN:
        drawn = [word_graph_samples(BUILT_IN, count, seed + k, context=1) for k in range(number)]
        return [CandidateList(f"builtin {k}", "", *samples) for k, samples in enumerate(drawn)]
    pools = list(read_lines(find("pools", "wmt22.en-de.jsonl.gz", data)))
    pools = [pool for pool in pools if 10 <= len(pool["source"].split()) <= 40]
    return [
        CandidateList(pool["id"], pool["source"], *word_graph_samples(pool["candidates"], count, seed))
        for pool in random.Random(seed).sample(pools, number)
    ]
