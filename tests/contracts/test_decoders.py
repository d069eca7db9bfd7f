"""What every decoder in the table keeps, whatever its method."""

from __future__ import annotations

import dataclasses
import json
import re
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.completion import ALS, COMPLETERS, AgreementALS
from hf_acpmbr.completion.observation import Balanced
from hf_acpmbr.decoding import DECODERS, Decision, Decoder
from hf_acpmbr.recipe import Budget
from hf_acpmbr.scoring import decide_together

from ..decoding.worlds import World

SEEDS = range(3)
BALANCED = Balanced()
ROLES = (("target", "target", "chrf"), ("distilled", "guide", "bleu"))


def stages(completer: Any, observation: Any = BALANCED, **budgets: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"completer": completer, "observation": observation, **budgets}


@dataclass
class Case:
    """How to run one decoder on a World.

    options: other than the defaults, small enough for a World of 12 texts drawn 30 times.
    stages: what is handed in instead of options.
    target, guide: which of the World's utilities it gets.
    budget: most calls of each utility, for n unique candidates of N drawn.
    follows_positions: its random choices go by position, not by text.
    combines: `expected` is no utility's but a combination in which more is better.
    """

    budget: Callable[[int, int], dict[str, float]]
    options: dict[str, Any] = field(default_factory=dict)
    stages: Callable[[], dict[str, Any]] = dict
    target: str = "target"
    guide: str = "guide"
    follows_positions: bool = False
    combines: bool = False


CASES = {
    "rounds": Case(lambda n, N: {"target": 3 * N}, {"budget": {"scores_per_row": 3}}),
    "rounds+stop": Case(
        lambda n, N: {"target": 3 * N}, {"budget": {"scores_per_row": 3}, "max_regret": 0.05, "confidence": 0.9}
    ),
    "mbr": Case(lambda n, N: {"target": n * n}),
    "pmbr": Case(
        lambda n, N: {"target": 3 * N},
        stages=stages(ALS(rank=2), budget=Budget(scores_per_row=3)),
        follows_positions=True,
    ),
    "acpmbr": Case(
        lambda n, N: {"target": 2 * N, "guide": 4 * N},
        stages=stages(AgreementALS(rank=2), budget=Budget(scores_per_row=2), guide_budgets=(Budget(scores_per_row=4),)),
        follows_positions=True,
    ),
    "acpmbr+transfer": Case(
        lambda n, N: {"target": 2 * N, "guide": 4 * N},
        stages=stages(
            COMPLETERS.build("transfer"),
            budget=Budget(scores_per_row=2),
            guide_budgets=(Budget(scores_per_row=4),),
        ),
        follows_positions=True,
    ),
    "distilled-mbr": Case(lambda n, N: {"guide": n * n}),
    "map": Case(lambda n, N: {}, combines=True),
    "oracle": Case(lambda n, N: {"target": n * n}),
    "n-by-s": Case(lambda n, N: {"target": 5 * n}, {"num_references": 5}),
    "pruning": Case(lambda n, N: {"target": n * n}, {"alpha": 0.8, "schedule": [3, 9, 20], "bootstrap": 50}),
    "halving": Case(lambda n, N: {"target": N * N / 16}, {"budget": {"reduction": 16}}),
    "aggregation": Case(lambda n, N: {"target": 3 * n + 2 * n}, {"partitions": 3, "fine": 2}),
    "centroid": Case(lambda n, N: {"target": 4 * n}, {"centroids": 4, "weighted": True}),
    "model-based": Case(lambda n, N: {"target": n * n}),
    "coarse-to-fine": Case(lambda n, N: {"target": 3 * n, "guide": 7 * n}, {"keep": 3, "coarse_references": 7}),
    "qe": Case(lambda n, N: {"quality": n}, target="quality"),
    "qe-filter": Case(lambda n, N: {"target": 16, "quality": n}, {"keep": 4}, guide="quality"),
    "diverse": Case(lambda n, N: {"target": n * n}, {"size": 3}),
    "ensemble": Case(lambda n, N: {"target": n * n, "guide": n * n}, {"weights": [2, 1]}, combines=True),
}


def the_class(name: str) -> type[Decoder]:
    """ "decoder" or "decoder+what is special about this case"."""
    return DECODERS.get(name.split("+")[0])


def make(name: str) -> Decoder:
    case = CASES[name]
    return the_class(name).from_dict({**case.stages(), **case.options})


def start(name: str, world: World, candidates: Any = None, sign: float = 1.0, broken: bool = False, **arguments: Any):
    case = CASES[name]
    given = world.candidates() if candidates is None else candidates
    needs = the_class(name).needs
    return make(name).start(
        given,
        references=given if "references" in needs else None,
        target=getattr(world, case.target)(sign, broken=broken) if "target" in needs else None,
        guides=[getattr(world, case.guide)(sign, broken=broken)] if "guide" in needs else [],
        **arguments,
    )


def run(name: str, world: World, *given: Any, **arguments: Any) -> Decision:
    return decide_together([start(name, world, *given, **arguments)])[0]


def assert_same(a: Decision, b: Decision) -> None:
    np.testing.assert_array_equal(a.expected, b.expected)
    np.testing.assert_array_equal(a.ranking, b.ranking)
    assert a.calls == b.calls
    assert a.signature == b.signature


every_decoder = pytest.mark.parametrize("name", CASES)


def test_the_table_of_cases_is_complete():
    assert {name.split("+")[0] for name in CASES} == set(DECODERS)


@every_decoder
def test_a_list_with_duplicates_and_counts_decide_alike(name):
    for seed in SEEDS:
        world = World.make(seed)
        counted = Candidates(
            tuple(world.texts),
            np.array(list(world.counts.values())),
            logprobs=np.array([world.logprobs[text] for text in world.texts]),
        )
        assert_same(run(name, world, seed=seed), run(name, world, counted, seed=seed))


@every_decoder
def test_sources_decided_together_are_decided_as_alone(name):
    worlds = [World.make(seed) for seed in range(5)]
    alone = [run(name, world, seed=seed) for seed, world in enumerate(worlds)]
    together = decide_together([start(name, world, seed=seed) for seed, world in enumerate(worlds)])
    for one, other in zip(alone, together, strict=True):
        assert_same(one, other)


@every_decoder
def test_losses_decide_like_the_gains_they_negate(name):
    for seed in SEEDS:
        world = World.make(seed)
        gain, loss = run(name, world, seed=seed), run(name, world, sign=-1.0, seed=seed)
        np.testing.assert_array_equal(loss.ranking, gain.ranking)
        assert loss.calls == gain.calls
        sign = 1.0 if CASES[name].combines else -1.0
        np.testing.assert_allclose(loss.expected, sign * gain.expected, atol=1e-9)


@every_decoder
def test_one_candidate_is_chosen(name):
    world = World.make(0, unique=1, draws=4)
    got = run(name, world)
    assert got.text == world.texts[0]
    assert len(got.nbest()) == 1
    assert np.isfinite(got.expected).all()


@every_decoder
def test_equal_candidates_are_equally_good(name):
    world = World.make(1)
    same = World({text: np.ones(3) for text in world.texts}, world.drawn, dict.fromkeys(world.texts, -1.0))
    got = run(name, same)
    known = got.expected[np.isfinite(got.expected)]
    assert known.size
    np.testing.assert_allclose(known, known[0], atol=1e-6)
    assert np.isfinite(got.expected[got.index])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.follows_positions])
def test_the_order_of_the_candidates_has_no_influence(name):
    for seed in SEEDS:
        world = World.make(seed)
        order = np.random.default_rng(seed).permutation(len(world.drawn))
        a = run(name, world, seed=seed)
        b = run(name, world, world.candidates([world.drawn[k] for k in order]), seed=seed)
        assert a.text == b.text
        assert [entry.text for entry in a.nbest(12)] == [entry.text for entry in b.nbest(12)]
        expected = dict(zip(b.candidates.texts, b.expected, strict=True))
        np.testing.assert_allclose(a.expected, [expected[text] for text in a.candidates.texts], atol=1e-9)


@every_decoder
def test_counts_of_any_size_cost_what_the_unique_texts_cost(name):
    world = World.make(2)
    drawn = world.candidates()
    many = Candidates(drawn.texts, drawn.counts * 2**47, logprobs=drawn.logprobs)
    tracemalloc.start()
    try:
        got = run(name, world, many)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6
    assert np.isfinite(got.expected[got.index])


@every_decoder
def test_a_seed_of_any_size_is_taken(name):
    world = World.make(3)
    got = run(name, world, seed=2**70)
    assert f"|seed:{2**70}" in got.signature
    assert_same(got, run(name, world, seed=2**70))


@every_decoder
def test_same_seed_same_decision(name):
    world = World.make(3)
    assert_same(run(name, world, seed=7), run(name, world, seed=7))


@every_decoder
@pytest.mark.parametrize("size", [(12, 30), (20, 20), (5, 60)])
def test_calls_are_counted_and_never_above_the_budget(name, size):
    world = World.make(2, *size)
    for seed in SEEDS:
        got = run(name, world, seed=seed)
        allowed = CASES[name].budget(len(world.texts), len(world.drawn))
        assert {utility for utility, calls in got.calls.items() if calls} <= set(allowed)
        for utility, calls in got.calls.items():
            assert calls <= allowed.get(utility, 0), utility
        guides = int("guide" in the_class(name).needs)
        most = make(name).most_calls((len(world.texts),) * 2, (len(world.drawn),) * 2, guides)
        assert all(calls <= bound for calls, bound in zip(got.calls.values(), most, strict=True))
        assert (got.total_calls > 0) == (name != "map")


@every_decoder
def test_the_signature_says_what_repeats_the_run(name):
    world = World.make(4)
    got = run(name, world, seed=11)
    assert " " not in got.signature
    parts = dict(part.split(":", 1) for part in got.full_signature.split("|"))
    assert parts["decoder"] == the_class(name).name
    assert (parts["seed"], parts["n"], parts["unique"]) == ("11", "30", "12x12")
    needs = the_class(name).needs
    assert ("target" in parts) == ("target" in needs)
    assert ("guide" in parts) == ("guide" in needs)
    assert set(CASES[name].options) <= set(parts)


@every_decoder
def test_a_utility_that_would_be_ignored_is_refused(name):
    world, needs = World.make(0), the_class(name).needs
    utilities = {"target": world.target(), "guides": [world.guide()]}
    for role, need in (("target", "target"), ("guides", "guide")):
        if need not in needs and not (role == "guides" and the_class(name).any_guides):
            given = {
                key: utilities[key] for key, other in (("target", "target"), ("guides", "guide")) if other in needs
            }
            with pytest.raises(ValueError, match=f"{the_class(name).name} uses no"):
                make(name).decode(world.candidates(), world.candidates(), **given, **{role: utilities[role]})


@every_decoder
def test_a_broken_utility_is_refused(name):
    if name == "map":
        with pytest.raises(ValueError, match="NaN"):
            Candidates.from_texts(["a"], logprobs=[float("nan")])
        return
    with pytest.raises(ValueError, match="NaN"):
        run(name, World.make(5), broken=True)


@every_decoder
def test_the_n_best_list_holds_every_candidate_once_from_best_to_worst(name):
    world = World.make(6)
    got = run(name, world)
    assert sorted(entry.text for entry in got.nbest(12)) == sorted(world.texts)
    assert got.nbest(1)[0].text == got.text
    assert np.isfinite(got.expected[got.index])


@every_decoder
def test_options_survive_json(name):
    decoder = make(name)
    assert DECODERS.build(json.loads(json.dumps(decoder.to_dict()))) == decoder
    the_class(name)()
    with pytest.raises(dataclasses.FrozenInstanceError):
        decoder.anything = 1
    with pytest.raises(TypeError, match="misspelt"):
        the_class(name)(misspelt=1)


@pytest.mark.parametrize(
    "name", sorted(set(DECODERS) - {"map", "model-based", "centroid", "qe", "qe-filter", "oracle"})
)
def test_by_name_through_the_front_door(name):
    needs = the_class(name).needs
    utilities = {role: utility for role, need, utility in ROLES if need in needs}
    mbr = ACPMBR(**utilities, decoder={"name": name, **CASES[name].options} if CASES[name].options else name)
    drawn = ["the cat sat", "a cat sat", "the cat sat", "the cat sat down", "dogs run fast", "the cats sat"]
    got = mbr.rerank(drawn)
    assert got.text in drawn
    assert f"decoder:{name}" in got.signature


@every_decoder
def test_the_documentation_has_its_name_options_and_paper(name):
    page = (Path(__file__).resolve().parents[2] / "docs" / "decoders.md").read_text(encoding="utf-8")
    line = next(line for line in page.splitlines() if line.startswith(f"| `{the_class(name).name}` |"))
    for option in set(the_class(name).field_names()) - set(Decoder.field_names()):
        assert f"`{option}`" in line
    for paper in re.findall(r"arxiv\.org/abs/[\d.]+\d", the_class(name).__doc__ or "")[:1]:
        assert paper in line
