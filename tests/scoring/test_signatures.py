"""Two utilities whose scores can differ have different signatures, and nothing else changes a signature."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import shutil
from pathlib import Path
from typing import Any, get_origin

import numpy as np
import pytest

import hf_acpmbr
from hf_acpmbr.scoring import NEUTRAL_OPTIONS, Utility, as_utility, load_utility
from hf_acpmbr.scoring.fingerprint import digest, option_names, word

from ..metrics.cases import CASES, length_difference, shared_words, write_script
from ..metrics.checkpoints import write_bleurt, write_comet, write_encoder, write_hub_cache, write_metricx

# What stands for the content of files: tested below, each in its own way.
FILES = {"checkpoint", "revision", "encoder", "tokenizer", "module"}
NEUTRAL_VALUES: dict[str, Any] = {
    "device": "cpu",
    "batch_tokens": 100,
    "compile": True,
    "cache": "scores.db",
    "trust_remote_code": True,
    "progress": True,
    "parameters": 7,
    "price_per_pair": 3.0,
    "price_per_text": 0.0,
}
WALKED = (
    "chrf",
    "bleu",
    "ter",
    "bleurt",
    "comet",
    "unite",
    "metricx",
    "bertscore",
    "embedding",
    "function",
    "evaluate",
    "matrix",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signatures")


def all_classes() -> set[type[Utility]]:
    """Every utility class of the package that can be made."""
    found = set()
    for module in pkgutil.walk_packages(hf_acpmbr.__path__, "hf_acpmbr."):
        if not module.name.startswith(("hf_acpmbr.scoring", "hf_acpmbr.metrics")):
            continue
        for item in vars(importlib.import_module(module.name)).values():
            # What is subscripted (list[str]) passes for a class in Python 3.10.
            if inspect.isclass(item) and get_origin(item) is None and issubclass(item, Utility):
                found |= set() if inspect.isabstract(item) else {item}
    return found


def test_every_class_is_walked_through(folder: Path) -> None:
    assert {type(CASES[name].make(folder / name)) for name in WALKED} == all_classes()
    assert set(NEUTRAL_VALUES) == set(NEUTRAL_OPTIONS)


@pytest.mark.filterwarnings("ignore:dtype='bfloat16' on this CPU")
@pytest.mark.parametrize("name", WALKED)
def test_every_option_changes_the_signature_or_is_neutral(folder: Path, name: str) -> None:
    case, place = CASES[name], folder / name
    plain = case.make(place)
    seen = {plain.signature: "nothing"}
    for option in option_names(type(plain)):
        if option in NEUTRAL_OPTIONS:
            same = case.make(place, **{option: NEUTRAL_VALUES[option]})
            assert same.signature == plain.signature, f"{option} cannot change a score"
            continue
        assert option in case.changes or option in FILES, f"{name}: say by which values {option} is tested"
        for value in case.changes.get(option, ()):
            signature = case.make(place, **{option: value}).signature
            assert signature not in seen, f"{option}={value!r} has the signature of {seen[signature]}"
            seen[signature] = f"{option}={value!r}"
    for signature in seen:
        assert not any(letter.isspace() for letter in signature)


@pytest.mark.parametrize(
    ("write", "file"),
    [
        (write_bleurt, "model.safetensors"),
        (write_bleurt, "spm.model"),
        (write_metricx, "config.json"),
        (lambda path: write_comet(path, 6, class_identifier="regression_metric"), "checkpoints/model.ckpt"),
        (lambda path: write_comet(path, 6, class_identifier="regression_metric"), "encoder/tokenizer.json"),
    ],
)
def test_one_changed_byte_of_a_checkpoint_changes_the_signature(tmp_path: Path, write: Any, file: str) -> None:
    write(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "copies" / "one")
    before = load_utility(str(tmp_path / "one")).signature
    assert "encoder" in file or load_utility(str(tmp_path / "copies" / "one")).signature == before, "a copy is the same"
    content = bytearray((tmp_path / "one" / file).read_bytes())
    if file.endswith(".json"):
        content += b"\n"
    else:
        content[len(content) // 2] ^= 1
    (tmp_path / "one" / file).write_bytes(bytes(content))
    assert load_utility(str(tmp_path / "one")).signature != before


def test_hub_checkpoints_are_known_by_their_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_bleurt(tmp_path / "bleurt")
    cache = tmp_path / "hub"
    for ref, commit in (("main", "a" * 40), ("v2", "b" * 40)):
        write_hub_cache(cache, {"someone/bleurt": folder}, commit, ref)
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    first = load_utility("someone/bleurt", device="cpu").signature
    second = load_utility("someone/bleurt", device="cpu", revision="v2").signature
    assert first.startswith("bleurt@aaaaaaaaaaaa|")
    assert second == first.replace("a" * 12, "b" * 12)
    with pytest.raises(ValueError, match="revision='v2' is for hub ids"):
        load_utility(str(folder), revision="v2").score(["a"], ["b"])


def test_encoders_and_tokenisers_count_by_their_content(tmp_path: Path) -> None:
    comet = write_comet(tmp_path / "comet", 6, class_identifier="regression_metric")
    other = write_encoder(tmp_path / "encoder", "bert")
    assert load_utility(str(comet)).signature != load_utility(str(comet), encoder=str(other)).signature
    metricx = write_metricx(tmp_path / "metricx")
    other = write_metricx(tmp_path / "other", vocab_size=150)
    options = {"score_token": 7}
    assert (
        load_utility(str(metricx), **options).signature
        != load_utility(str(metricx), tokenizer=str(other), **options).signature
    )


def test_evaluate_modules_count_by_their_code(tmp_path: Path) -> None:
    script = write_script(tmp_path / "one" / "lengths")
    other = write_script(tmp_path / "two" / "lengths")
    other.write_text(other.read_text().replace("** power", "* power"))
    options = {"output_key": "lengths"}
    utilities = [load_utility(str(path), trust_remote_code=True, **options) for path in (script, other, script)]
    signatures = {utility.signature for utility in utilities}
    assert len(signatures) == 2


def test_functions_count_by_code_defaults_and_closure() -> None:
    def scaled(factor: float) -> Any:
        return lambda h, r: [factor * len(x) for x in h]

    def with_default(h: list[str], r: list[str], factor: float = 1.0) -> list[float]:
        return [factor * len(x) for x in h]

    class Scaled:
        def __init__(self, factor: float) -> None:
            self.factor, self.calls = factor, 0

        def __call__(self, h: list[str], r: list[str]) -> list[float]:
            self.calls += 1
            return [self.factor * len(x) for x in h]

    different = [
        *(scaled(factor) for factor in (1.0, 2.0)),
        *(Scaled(factor) for factor in (1.0, 2.0)),
        lambda h, r: [3.0 * len(x) for x in h],
        lambda h, r: [4.0 * len(x) for x in h],
        *(functools.partial(with_default, factor=factor) for factor in (1.0, 2.0)),
        with_default,
        length_difference,
        shared_words,
    ]
    signatures = [as_utility(function, name="mine").signature for function in different]
    assert len(set(signatures)) == len(different)
    assert as_utility(scaled(1.0), name="mine").signature == signatures[0]
    utility = as_utility(Scaled(1.0), name="mine")
    utility.score(["a"], ["b"])
    assert utility.signature == signatures[2], "what a callable counts while it is used is not what it is"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, "none"),
        (None, ""),
        (True, "true"),
        ("a b", "a\tb"),
        (["a", "b"], ["a+b"]),
        ([1, [2]], [[1], 2]),
        ({"a": 1}, {"a": 2}),
        (np.zeros(4), np.zeros((2, 2))),
        (np.zeros(4), np.zeros(4, dtype=np.float32)),
        ("x" * 50, "x" * 51),
        (["a", "bstrc"], ["astrb", "c"]),
        (["a", ("b", "c")], ["a", "b", ("c",)]),
    ],
)
def test_different_values_are_different_words(one: object, other: object) -> None:
    assert word(one) != word(other)


def test_digests_do_not_depend_on_the_order_of_sets_and_dicts() -> None:
    assert digest({"a": 1, "b": {"x", "y"}}) == digest({"b": {"y", "x"}, "a": 1})


def test_digests_end_where_things_contain_themselves() -> None:
    class Node:
        def __init__(self) -> None:
            super().__init__()
            self.children = {"self": [self]}

        def other(self) -> Any:
            return lambda: (self, Node, node)

    node = Node()
    assert digest(node) == digest(Node())
    assert digest(node.other()) == digest(node.other())


def test_options_that_came_later_show_only_where_they_are_used() -> None:
    assert "smooth" not in load_utility("bleu", smooth_method="exp").signature
    assert "smooth" not in load_utility("chrf", eps_smoothing=False).signature
    floors = {load_utility("bleu", smooth_method="floor", smooth_value=value).signature for value in (None, 0.2, 0.3)}
    assert len(floors) == 3


def test_an_option_that_is_not_kept_is_named() -> None:
    class Forgetful(Utility):
        name = "forgetful"

        def __init__(self, *, factor: float = 1.0) -> None:
            super().__init__()

        def kernel(self, table: Any, statistics: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(TypeError, match="Forgetful takes factor= but has no attribute of that name"):
        _ = Forgetful().signature
