"""MBR decoding on Inference Endpoints: the class that the service looks for in a model's repository.

Put this file and requirements.txt beside the model's files. It is called with one request after the other.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hf_acpmbr import ACPMBR, Recipe
from hf_acpmbr.generation.corpus import decide_texts
from hf_acpmbr.generation.models import load_model
from hf_acpmbr.recipe import RECIPE_NAME

MOST_TEXTS = 32
MOST_CHARACTERS = 4000
# What a request may set, with the values that are allowed; integers, and seconds.
LIMITS = {"num_candidates": (1, 1024), "nbest": (1, 16), "max_new_tokens": (1, 512), "time_limit": (0.001, 60.0)}


class EndpointHandler:
    """Loads the model once; `handler({"inputs": ..., "parameters": {...}})` answers a request.

    Args:
        path: folder of the model; a recipe saved there (mbr_recipe.json) says how to decode, else chrF decides.
        languages: source_language and target_language of a multilingual model.
    """

    def __init__(self, path: str = "embedded", **languages: str) -> None:
        self.model, tokenizer, self.generate = load_model(path, **languages)
        saved = (Path(path) / RECIPE_NAME).is_file()
        recipe = Recipe.from_pretrained(path) if saved else "auto"
        target = None if isinstance(recipe, Recipe) and recipe.target is not None else "chrf"
        self.mbr = ACPMBR(tokenizer, target=target, recipe=recipe)

    def __call__(self, data: dict[str, Any]) -> list[dict[str, Any]]:
        """One result for each input: generated_text, expected_utility, with nbest > 1 also the n best.

        Args:
            data: {"inputs": text or list of texts, "parameters": {"num_candidates", "nbest", "max_new_tokens",
                "time_limit": seconds of scoring for all of them}}.
        """
        texts, parameters = _checked(data)
        mbr = self.mbr
        changes = {name: parameters[name] for name in ("num_candidates", "time_limit") if name in parameters}
        if changes:
            if "time_limit" in changes:
                changes["time_limit"] /= len(texts)
            recipe = mbr.recipe.changed(**changes)
            mbr = ACPMBR(mbr.tokenizer, target=mbr.target, distilled=mbr.guides, recipe=recipe)
        start = time.perf_counter()
        generate = {"max_new_tokens": parameters.get("max_new_tokens", 256), **self.generate}
        decided = decide_texts(mbr, self.model, texts, generate=generate)
        results: list[dict[str, Any]] = []
        for decision in decided.decisions:
            best = [] if decision is None else decision.nbest(parameters.get("nbest", 1))
            result = {"generated_text": best[0].text if best else "", "expected_utility": None}
            if best:
                result["expected_utility"] = best[0].expected
            if parameters.get("nbest", 1) > 1:
                result["nbest"] = [{"text": entry.text, "expected_utility": entry.expected} for entry in best]
            results.append({**result, "seconds": round(time.perf_counter() - start, 3)})
        return results


def _checked(data: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The texts and parameters of a request, within the limits."""
    inputs = data.get("inputs")
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f'"inputs" must be a text or a list of texts, got {inputs!r}')
    if len(texts) > MOST_TEXTS or max(map(len, texts)) > MOST_CHARACTERS:
        raise ValueError(f"a request may have {MOST_TEXTS} texts of {MOST_CHARACTERS} characters: split it")
    parameters = data.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise ValueError(f'"parameters" must be an object, got {parameters!r}')
    for name, value in parameters.items():
        if name not in LIMITS:
            raise ValueError(f"parameter {name!r} is unknown: known are {', '.join(LIMITS)}")
        low, high = LIMITS[name]
        kind, kinds = ("an integer", (int,)) if isinstance(high, int) else ("a number", (int, float))
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            raise ValueError(f"parameter {name!r} must be {kind} from {low} to {high}, got {value!r}")
    return texts, parameters
