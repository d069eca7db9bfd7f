"""The Recipe: what every keyword does, what is refused, and what is saved."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr import ACPMBR, Recipe, as_utility, load_utility
from hf_acpmbr.completion import AgreementALS
from hf_acpmbr.config import COMPLETERS, DECODERS, OBSERVATIONS, SAMPLERS
from hf_acpmbr.decoding import HalvingMBR
from hf_acpmbr.recipe import KEYWORDS, NAMED, Budget
from hf_acpmbr.scoring import UtilitySpec

POOL = ["the cat sat", "a cat sat", "the cat sat", "the cat sat down", "dogs run fast", "the cats sat", "a dog sat"]
# A value other than the default for every keyword.
OTHER = {
    "num_candidates": 7,
    "max_candidates": 200,
    "sure": "every sentence",
    "num_references": 9,
    "sampler": "chunked",
    "references_sampler": "chunked",
    "add_beam": True,
    "max_rows": 3,
    "epsilon": 0.3,
    "temperature": 1.5,
    "top_k": 4,
    "top_p": 0.5,
    "min_p": 0.1,
    "completer": {"name": "agreement-als", "rank": 2},
    "observation": "uniform",
    "reduction": 5,
    "scores_per_row": 3,
    "distilled_reduction": 4,
    "distilled_scores_per_row": 6,
    "max_regret": 0.01,
    "confidence": 0.5,
    "time_limit": 0.5,
    "logprob_weight": 0.5,
    "rank": 3,
    "regularization": 0.7,
    "agreement": 0.9,
    "max_sweeps": 5,
    "tolerance": 0.01,
    "absolute_tolerance": True,
    "center": False,
}

keywords = st.fixed_dictionaries(
    {},
    optional={
        "num_candidates": st.integers(1, 5000),
        "epsilon": st.floats(0, 0.9),
        "reduction": st.floats(1, 1e6),
        "distilled_scores_per_row": st.floats(0.1, 1e3),
        "seed": st.integers(0, 2**40),
        "confidence": st.floats(0.1, 1),
        "recipe": st.sampled_from(["auto", "fast", "thorough"]),
    },
)


def named(recipe="auto", target="chrf", distilled="bleu", **settings) -> Recipe:
    return Recipe.named(recipe, target=target, distilled=distilled, **settings)


@given(keywords)
def test_json_round_trip(values):
    recipe = named(**values)
    assert Recipe.from_json(recipe.to_json()) == recipe


@pytest.mark.parametrize("decoder", DECODERS)
def test_every_decoder_is_saved_and_loaded(decoder, tmp_path):
    needs = DECODERS.get(decoder).needs
    recipe = Recipe.named(
        "fast",
        target="chrf" if "target" in needs else None,
        distilled="bleu" if "guide" in needs else (),
        decoder=decoder,
        seed=7,
    )
    path = recipe.save_pretrained(tmp_path / "new" / "folder")
    assert path.name == "mbr_recipe.json"
    assert Recipe.from_pretrained(path.parent) == Recipe.from_pretrained(path) == recipe
    assert [p.name for p in path.parent.iterdir()] == ["mbr_recipe.json"]
    with pytest.raises(FileNotFoundError, match="save_pretrained"):
        Recipe.from_pretrained(tmp_path)


def test_a_utilitys_checkpoint_and_options_are_kept(tmp_path):
    plus = load_utility("chrf", word_order=2)
    mbr = ACPMBR(target=plus, distilled={"name": "chrf", "char_order": 3}, recipe="fast")
    mbr.recipe.save_pretrained(tmp_path)
    again = ACPMBR(recipe=Recipe.from_pretrained(tmp_path))
    assert again.target.signature == plus.signature != load_utility("chrf").signature
    assert again.guides[0].signature == load_utility("chrf", char_order=3).signature
    assert again.rerank(POOL).signature == mbr.rerank(POOL).signature
    with pytest.raises(ValueError, match="'shout' is a Python object, which cannot be written as JSON"):
        ACPMBR(target=shout).recipe.to_json()


@pytest.mark.parametrize(("guide", "low", "high"), [("d12", 8, 256), ("d6", 4, 128), ("d3", 2, 64)])
def test_a_known_guide_of_bleurt_has_the_papers_rate_of_its_level(guide, low, high):
    pair = {"target": "bleurt-20", "distilled": f"bleurt-20-{guide}"}
    for name, rate in (("low", low), ("high", high)):
        assert Recipe.named(f"paper-{name}", **pair).decoder.guide_budgets == (Budget(reduction=rate),)
    for name, rate in (("auto", low), ("thorough", low), ("fast", high)):
        assert Recipe.named(name, **pair).decoder.guide_budgets == (Budget(scores_per_row=1024 / rate),)
    several = Recipe.named("fast", target="bleurt-20", distilled=["bleurt-20-d12", "bleurt-20-d6"])
    assert several.decoder.guide_budgets == (Budget(scores_per_row=16),)


def shout(hypotheses, references):
    return [float(h == r) for h, r in zip(hypotheses, references, strict=True)]


@pytest.mark.parametrize(
    ("name", "guides", "rate", "distilled", "gamma"),
    [
        ("low", 1, 32, 2, 0.1),
        ("high", 1, 1024, 64, 1.0),
        ("low", 0, 16, None, None),
        ("high", 0, 512, None, None),
    ],
)
def test_the_papers_settings(name, guides, rate, distilled, gamma):
    paper = named(f"paper-{name}", distilled=["bleu"] * guides)
    completer, sampler = paper.decoder.completer, paper.sampling.sampler
    assert paper.decoder.budget == Budget(reduction=rate)
    assert (completer.rank, completer.regularization, completer.max_sweeps, completer.tolerance) == (8, 0.1, 30, 1e-4)
    assert (paper.decoder.observation.name, completer.center, completer.absolute_tolerance) == ("uniform", False, True)
    assert (paper.sampling.num_candidates, sampler.truncation.epsilon, sampler.truncation.top_k) == (1024, 0.02, 0)
    ours = named({"low": "thorough", "high": "fast"}[name], distilled=["bleu"] * guides)
    assert ours.decoder.budget == Budget(scores_per_row=1024 / rate)
    if guides:
        assert (completer.name, completer.agreement) == ("agreement-als", gamma)
        assert paper.decoder.guide_budgets == (Budget(reduction=distilled),)
        assert ours.decoder.guide_budgets == (Budget(scores_per_row=1024 / distilled),)
        assert named(f"paper-{name}", completer="agreement-als").decoder == paper.decoder
    else:
        assert completer.name == "als"


def has(stage, path) -> bool:
    """Whether the setting at the end of a path exists in these stages."""
    for name in path:
        stage = stage[0] if isinstance(stage, tuple) else stage
        if name not in stage.field_names():
            return False
        stage = getattr(stage, name)
    return True


def check_keyword(keyword, **settings):
    """The keyword changes the stages and their line, or is refused with its name and, where there is one, a remedy."""
    plain = Recipe.named("fast", **settings)
    if has(plain, KEYWORDS[keyword]):
        changed = Recipe.named("fast", **settings, **{keyword: OTHER[keyword]})
        assert changed != plain
        assert str(changed) != str(plain), "two runs that can differ have different lines"
    else:
        with pytest.raises(ValueError, match=f"{keyword} is not a setting of .*; (.* that take it: |leave it out)"):
            Recipe.named("fast", **settings, **{keyword: OTHER[keyword]})


@pytest.mark.parametrize("keyword", [name for name in KEYWORDS if name != "decoder"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_every_keyword_with_every_decoder(decoder, keyword):
    needs = DECODERS.get(decoder).needs
    if (decoder, keyword) == ("map", "logprob_weight"):
        pytest.skip("refused by name, see decoding/test_choice_rule.py")
    check_keyword(
        keyword,
        target="chrf" if "target" in needs else None,
        distilled="bleu" if "guide" in needs else (),
        decoder=decoder,
    )


@pytest.mark.parametrize("keyword", [name for name in KEYWORDS if name not in ("decoder", "completer", "observation")])
@pytest.mark.parametrize("completer", COMPLETERS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_every_keyword_with_every_completer_and_plan(completer, observation, keyword):
    settings = {
        "target": "chrf",
        "distilled": ["bleu"] if COMPLETERS.get(completer).takes_guides else [],
        "completer": completer,
        "observation": observation,
    }
    check_keyword(keyword, **settings)


def test_the_table_of_values_is_complete():
    assert OTHER.keys() | {"decoder"} == KEYWORDS.keys()


def test_a_decoder_switched_by_keyword_gets_the_recipes_budget():
    assert Recipe.named("fast", target="chrf", decoder="halving").decoder == HalvingMBR(Budget(scores_per_row=2))
    assert Recipe.named(target="chrf", decoder="halving", reduction=2).decoder == HalvingMBR(Budget(reduction=2))


def test_keywords_change_a_given_recipe_too():
    recipe = named("fast", decoder="acpmbr", seed=5)
    mbr = ACPMBR(recipe=recipe, epsilon=0.1, scores_per_row=4)
    assert mbr.recipe.seed == 5
    assert mbr.recipe.sampling.sampler.truncation.epsilon == 0.1
    assert mbr.decoder.budget == Budget(scores_per_row=4)
    with pytest.raises(ValueError, match="agreement is not a setting of completer 'transfer'; completers that take it"):
        ACPMBR(recipe=recipe, agreement=0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_candidate": 5}, "'num_candidate' is not a setting: did you mean 'num_candidates'"),
        ({"num_candidates": 0}, "num_candidates must be at least 1, got 0"),
        ({"num_candidates": 1.5}, "num_candidates must be an integer"),
        ({"num_candidates": True}, "num_candidates must be an integer"),
        ({"epsilon": 1.0}, "epsilon must be at least 0 and below 1"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"reduction": 0.5}, "reduction must be at least 1"),
        ({"reduction": 2, "scores_per_row": 3}, "two ways to say one thing"),
        ({"completer": "agreement-als", "agreement": -1}, "agreement"),
        ({"completer": "agreement-als", "agreement": [0.1, -1]}, "agreement"),
        ({"completer": "agreement-als", "agreement": [0.1, 0.2]}, "2 values for 1 guides"),
        ({"completer": "agreement-als", "center": "yes"}, "center must be true or false"),
        ({"decoder": ""}, "decoder '' is unknown"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"rank": float("nan")}, "rank must be"),
        ({"sampler": "prefx"}, "sampler 'prefx' is unknown"),
        ({"recipe": "low"}, "recipe 'low' is unknown"),
        ({"completer": "als"}, "'als' would ignore the guides that are paid for"),
        ({"decoder": "mbr"}, "mbr uses no distilled utilities"),
        ({"decoder": {"budget": 3}}, 'a decoder is {"name"'),
        ({"decoder": 3}, "decoder must be a name"),
    ],
)
def test_bad_settings_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        ACPMBR(target="chrf", distilled="bleu", **values)


@pytest.mark.parametrize("value", [8.0, np.int64(8), np.int32(8), np.float64(8)])
def test_numbers_of_other_types_are_taken_as_the_integers_they_are(value):
    recipe = named(num_candidates=value, rank=value, seed=value)
    assert recipe == named(num_candidates=8, rank=8, seed=8)
    assert json.loads(recipe.to_json())["sampling"]["num_candidates"] == 8
    assert json.loads(named(epsilon=np.float32(0.25)).to_json())["sampling"]["sampler"]["truncation"]["epsilon"] == 0.25


def test_stages_as_names_dicts_and_objects_are_the_same():
    by_name = named(completer="agreement-als").decoder.completer
    as_dict = named(completer={"name": "agreement-als", "agreement": 0.1}).decoder.completer
    assert by_name == as_dict == named(completer=AgreementALS(agreement=0.1)).decoder.completer
    assert named(sampler={"name": "chunked", "max_rows": 9}).sampling.sampler == SAMPLERS.build("chunked", max_rows=9)


def test_a_recipe_is_frozen_and_a_file_with_a_typo_is_refused():
    recipe = named(decoder="acpmbr")
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.seed = 3
    with pytest.raises(ValueError, match="JSON object"):
        Recipe.from_json("[1]")
    for path, typo in ((("sampling",), "num_candidate"), (("decoder", "completer"), "rnak")):
        values = json.loads(recipe.to_json())
        inner = values
        for key in path:
            inner = inner[key]
        inner[typo] = 3
        with pytest.raises(ValueError, match=f"'{typo}' is not a setting of"):
            Recipe.from_dict(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"seed": 1, "seed": 2}', "'seed' is there twice"),
        ('{"decoder": {"name": "mbr", "name": "map"}}', "'name' is there twice"),
        ('{"target": ' * 100_000, "more than 100 levels deep"),
        ('{"target": {"name": "chrf", "x": %s}}' % ("[" * 200 + "]" * 200), "more than 100 levels deep"),
        ("{", "is none that can be used"),
        ('{"seed": %s}' % ("9" * 5000), "is none that can be used"),
    ],
    ids=["seed twice", "name twice", "unfinished and deep", "deep", "unfinished", "number"],
)
def test_a_text_in_which_something_would_not_count_is_no_recipe(text, message):
    with pytest.raises(ValueError, match=message):
        Recipe.from_json(text)


@pytest.mark.parametrize(
    ("target", "distilled"),
    [
        ("chrf", "chrf"),
        ("chrf", ["bleu", {"name": "CHRF", "price_per_pair": 2.0}]),
        ("chrf", ["bleu", "bleu"]),
        (load_utility("chrf"), "chrf"),
        ((judge := as_utility(lambda h, r: [1.0] * len(h))), judge),
    ],
)
def test_a_utility_is_not_paid_for_twice(target, distilled):
    with pytest.raises(ValueError, match=r"distilled has .* which is used already"):
        ACPMBR(target=target, distilled=distilled)


def test_one_metric_with_other_options_is_another_guide():
    ACPMBR(target={"name": "chrf", "word_order": 2}, distilled="chrf")
    ACPMBR(target=as_utility(lambda h, r: [1.0] * len(h)), distilled=as_utility(lambda h, r: [2.0] * len(h)))


def test_a_decoder_that_needs_a_guide_says_so_and_not_what_follows_from_it():
    with pytest.raises(ValueError, match="acpmbr needs a distilled utility"):
        ACPMBR(target="chrf", decoder="acpmbr")


def test_a_setting_of_a_completer_chooses_a_decoder_that_completes():
    assert named(rank=3).decoder.completer.rank == 3
    assert named(distilled=(), rank=3).decoder.name == "pmbr"
    assert named(completer="agreement-als", agreement=0.5).decoder.name == "acpmbr"


def test_every_name_has_a_recipe():
    for name, settings in NAMED.items():
        assert named(name).decoder.name == ("acpmbr" if settings.paper else "rounds")
        assert named(name, distilled=()).decoder.name == ("pmbr" if settings.paper else "rounds")
    assert named("auto").decoder.max_regret == "auto"
    assert named("thorough").decoder.max_regret is None
    assert UtilitySpec.of({"name": "chrf", "char_order": 4}).load().signature != load_utility("chrf").signature


def test_a_time_limit_is_refused_by_decoders_that_cannot_keep_it():
    assert named(time_limit=2).decoder.time_limit == 2
    with pytest.raises(ValueError, match="time_limit is not a setting of decoder 'mbr'; decoders that take it: rounds"):
        Recipe.named(target="chrf", decoder="mbr", time_limit=2)
    with pytest.raises(ValueError, match="time_limit must be above 0"):
        named(time_limit=0)


def test_a_seed_of_0_is_a_seed_and_not_none():
    recipe = Recipe.named(target="chrf", seed=5)
    assert ACPMBR(recipe=recipe, seed=0).recipe.seed == 0
    assert ACPMBR(recipe=recipe).recipe.seed == 5
