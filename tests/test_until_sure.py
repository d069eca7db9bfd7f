"""Draw until sure: the draws and decisions of a fixed number, stopped at the stated loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hf_acpmbr import ACPMBR, Candidates, Recipe, load_utility
from hf_acpmbr.sampling import SAMPLERS, Truncation
from hf_acpmbr.scoring import Scorer
from tests.models import tiny_model, tiny_pair
from tests.sampling.requests import SOURCES, request

WIDE = Truncation(epsilon=0.05)


class World:
    """Texts "0" … of latent quality, and a utility that is a noisy mean of both texts' qualities."""

    higher_is_better, name, scale = True, "latent", 1.0

    def __init__(self, seed: int, texts: int = 400) -> None:
        random = np.random.default_rng(seed)
        quality = np.minimum(random.normal(0.6, 0.06, texts), 0.8)
        noise = random.normal(0, 0.05, (texts, texts))
        self.scores = quality[:, None] + noise
        np.fill_diagonal(self.scores, 1.0)
        frequent = random.dirichlet(np.full(texts, 0.3))
        self.draws = [str(k) for k in random.choice(texts, 1024, p=frequent)]

    def score(self, hypotheses: list[str], references: list[str], sources: object = None) -> np.ndarray:
        return self.scores[list(map(int, hypotheses)), list(map(int, references))]

    def more(self) -> Any:
        left = iter(self.draws[64:])
        return lambda n: [next(left) for _ in range(n)]


@pytest.mark.parametrize("name", ["prefix-sharing", "chunked", "auto"])
@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_samples_drawn_in_parts_are_those_of_one_call(name: str, kind: str) -> None:
    sampler = SAMPLERS.build(name, truncation=WIDE, max_rows=8)
    asked = request(tiny_model(kind), SOURCES, max_new_tokens=4)
    whole = sampler.sample(asked, 24, 3)
    parts = [[range(8)] * len(SOURCES), [range(8, 8), *[range(8, 24)] * (len(SOURCES) - 1)]]
    first, second = (sampler.sample_more(asked, ranges, 3) for ranges in parts)
    assert not len(second[0])
    assert second[0].model_rows == 0
    rest = sampler.sample_more(asked, [range(8, 24), *[range(24, 24)] * (len(SOURCES) - 1)], 3)
    second = [rest[0], *second[1:]]
    for one, begun, more in zip(whole, first, second, strict=True):
        both = begun.plus(more)
        assert both.token_ids == one.token_ids
        assert both.counts.tolist() == one.counts.tolist()
        np.testing.assert_allclose(both.logprobs, one.logprobs, atol=1e-5)
        np.testing.assert_allclose(both.sampling_logprobs, one.sampling_logprobs, atol=1e-5)


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_a_scorer_that_learned_asks_nothing_twice(utility: str) -> None:
    texts = ["a b c", "a b d", "b c d", "c d e", "a c e"]
    old = load_utility(utility).prepare(texts[:3], texts[:3], None)
    every = np.arange(3).repeat(3), np.tile(np.arange(3), 3)
    known = old(*every)
    new = load_utility(utility).prepare(texts[::-1], texts[::-1], None)
    new.learn(old)
    paid = new.calls
    np.testing.assert_array_equal(new(4 - every[0], 4 - every[1]), known)
    assert new.calls == paid
    fresh = Scorer(load_utility(utility), texts, texts)
    whole = np.arange(5).repeat(5), np.tile(np.arange(5), 5)
    np.testing.assert_array_equal(new(4 - whole[0], 4 - whole[1]), fresh(*whole))
    assert new.calls == fresh.calls


def decide(kind: str, **settings: Any) -> Any:
    model, tokenizer = tiny_pair(kind, sharpness=3.0)
    mbr = ACPMBR(tokenizer, target="chrf", epsilon=0.05, seed=5, **settings)
    inputs = tokenizer(["the cat sat", "a dog ran home"], return_tensors="pt", padding=True)
    return model.generate(**inputs, custom_generate=mbr, max_new_tokens=5, return_dict_in_generate=True)


@pytest.mark.parametrize("kind", ["m2m100", "llama"])
def test_all_draws_decide_as_a_fixed_number_does(kind: str) -> None:
    fixed = decide(kind, num_candidates=200)
    grown = decide(kind, num_candidates="auto", max_candidates=200, max_regret=1e-9)
    assert grown.texts == fixed.texts
    for one, other in zip(grown.decisions, fixed.decisions, strict=True):
        assert one.draws.drawn == 200
        assert "all 200 draws taken" in one.status
        assert one.candidates.texts == other.candidates.texts
        assert one.candidates.counts.tolist() == other.candidates.counts.tolist()
        np.testing.assert_array_equal(one.expected, other.expected)
        assert one.calls == other.calls


def test_a_source_that_is_sure_leaves_and_the_others_are_as_alone() -> None:
    model, tokenizer = tiny_pair("m2m100", sharpness=9.0)
    mbr = ACPMBR(tokenizer, target="chrf", num_candidates="auto", max_regret=0.5, max_candidates=500, seed=1)
    texts = ["the cat sat on the mat", "a dog ran home", "we all see the red sun"]

    def run(sources: list[str]) -> list[Any]:
        inputs = tokenizer(sources, return_tensors="pt", padding=True)
        output = model.generate(**inputs, custom_generate=mbr, max_new_tokens=6, return_dict_in_generate=True)
        return list(output.decisions)

    together, alone = run(texts), [run([text])[0] for text in texts]
    assert [d.draws for d in together] == [d.draws for d in alone]
    assert [d.text for d in together] == [d.text for d in alone]
    assert len({d.draws.drawn for d in together}) > 1


@pytest.mark.parametrize("sure", ["on average", "every sentence"])
def test_the_stated_loss_holds_on_pools_of_latent_quality(sure: str) -> None:
    lost, stated, drawn = [], [], []
    for seed in range(12):
        world = World(seed)
        mbr = ACPMBR(target=world, decoder="mbr", num_candidates="auto", sure=sure)
        decision = mbr.rerank(world.draws[:64], more=world.more())
        counts = np.bincount([int(text) for text in world.draws], minlength=400)
        full = world.scores @ counts / counts.sum()
        best = full[counts > 0].max()
        lost.append(best - full[int(decision.text)])
        stated.append(decision.draws.expected)
        drawn.append(decision.draws.drawn)
    assert np.mean(lost) <= max(0.001, 1.2 * float(np.mean(stated)))
    assert min(drawn) < 1024
    assert max(stated) <= 0.001


def test_more_is_asked_for_what_is_missing_and_costs_add_up() -> None:
    world, asked = World(3), []
    more = world.more()

    def counted(n: int) -> list[str]:
        asked.append(n)
        return list(more(n))

    mbr = ACPMBR(target=world, decoder="mbr", num_candidates="auto", max_candidates=300, seed=2)
    decision = mbr.rerank(world.draws[:64], more=counted)
    assert decision.draws.drawn == 64 + sum(asked) == decision.candidates.total
    assert decision.total_calls == len(decision.candidates) ** 2
    assert decision.nbest_size == 1


def test_weighted_log_probabilities_take_part_and_lower_is_better() -> None:
    class Distance(World):
        higher_is_better = False

        def score(self, hypotheses: list[str], references: list[str], sources: object = None) -> np.ndarray:
            return 1 - super().score(hypotheses, references)

    choices = []
    for world in (World(4), Distance(4)):
        left = iter(range(64, 1024))

        def more(n: int, world: World = world, left: Any = left) -> Candidates:
            return pool([world.draws[next(left)] for _ in range(n)])

        def pool(texts: list[str]) -> Candidates:
            return Candidates.from_texts(texts, logprobs=[-0.05 * (int(text) % 7) for text in texts])

        mbr = ACPMBR(target=world, decoder="mbr", num_candidates="auto", logprob_weight=0.2)
        choices.append(mbr.rerank(pool(world.draws[:64]), more=more))
    assert choices[0].text == choices[1].text
    assert choices[0].draws.drawn == choices[1].draws.drawn
    assert choices[0].draws.expected == pytest.approx(choices[1].draws.expected)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"decoder": "halving"}, "states none"),
        ({"recipe": "fast"}, "states none"),
        ({"sampler": "beam-search"}, "draws no further samples"),
    ],
)
def test_what_cannot_stop_or_draw_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decide("m2m100", num_candidates="auto", **settings)


@pytest.mark.parametrize("settings", [{"decoder": "halving"}, {"sampler": "beam-search"}])
def test_it_is_refused_before_the_model_runs(settings: dict[str, Any]) -> None:
    model, tokenizer = tiny_pair("llama")
    mbr = ACPMBR(tokenizer, target="chrf", num_candidates="auto", add_beam=True, **settings)
    ran = []
    hook = model.register_forward_hook(lambda *_: ran.append(True))
    with pytest.raises(ValueError, match="num_candidates='auto'"):
        model.generate(**tokenizer("the cat sat", return_tensors="pt"), custom_generate=mbr, max_new_tokens=3)
    hook.remove()
    assert not ran


def test_settings_that_contradict_it_are_refused() -> None:
    with pytest.raises(ValueError, match="leave num_references out"):
        ACPMBR(target="chrf", num_candidates="auto", num_references=8)
    with pytest.raises(ValueError, match='or "auto"'):
        ACPMBR(target="chrf", num_candidates="many")
    with pytest.raises(ValueError, match="give num_candidates='auto'"):
        ACPMBR(target="chrf").rerank(["a"], more=lambda n: ["b"] * n)
    with pytest.raises(ValueError, match="gave 1 candidates"):
        ACPMBR(target="chrf", decoder="mbr", num_candidates="auto").rerank(["a b", "b c"], more=lambda n: ["c d"])


def test_a_recipe_keeps_it_as_json() -> None:
    recipe = Recipe.named(target="chrf", num_candidates="auto", max_candidates=512, sure="every sentence")
    assert Recipe.from_json(recipe.to_json()).to_json() == recipe.to_json()
    assert '"num_candidates": "auto"' in recipe.to_json()
    assert "max_candidates" not in Recipe.named(target="chrf").to_json()
