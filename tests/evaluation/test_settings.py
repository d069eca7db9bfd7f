from __future__ import annotations

import pytest

from evaluation.report.tune import grid
from evaluation.wmt.rows import all_rows, table_rows
from evaluation.wmt.settings import CONFIGS, EvaluationSettings, load_settings

GOOD = {
    "name": "x",
    "data": {"name": "wmt23", "pairs": "en-de"},
    "model": {"name": "m"},
    "target": "chrf",
    "distilled": ["bleu"],
    "metrics": ["chrf"],
    "budgets": {"high": {"recipe": "fast"}},
}


def changed(key: str, value: object) -> dict:
    """GOOD with one dotted key set, or taken away by None."""
    values = {name: dict(part) if isinstance(part, dict) else part for name, part in GOOD.items()}
    *path, last = key.split(".")
    place = values
    for name in path:
        place[name] = dict(place.get(name, {}))
        place = place[name]
    place[last] = value
    if value is None:
        del place[last]
    return values


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("data.limt", 3, r"data\.limt is not a setting: did you mean 'limit'\?"),
        ("data.limit", 0, r"data\.limit must be at least 1, got 0"),
        ("data.limit", "all", r"data\.limit must be an integer, got 'all'"),
        ("data.name", None, r"data\.name is missing"),
        ("target", None, r"target is missing"),
        ("model.chat", 1, r"model\.chat must be true or false"),
        ("metrics", [1], r"metrics\[0\] must be a text"),
        ("sampling", 5, r"sampling must hold keys and values, got 5"),
        ("data.name", "wmt32", r"data\.name 'wmt32' is unknown: did you mean 'wmt"),
        ("data.name", "tatoba", r"data\.name 'tatoba' is unknown: did you mean 'tatoeba'"),
        ("target", "chrff", r"target 'chrff' is unknown: did you mean 'chrf'"),
        ("metrics", ["bleu", "blurt-20"], r"metrics\[1\] 'blurt-20' is unknown: did you mean 'bleurt-20'"),
        (
            "model.generate",
            {"max_new_token": 9},
            r"model\.generate\.max_new_token is not .*: did you mean 'max_new_tokens'",
        ),
        ("model.languages", {"ed": "x"}, r"model\.languages: 'ed' is unknown: choose one of de, en"),
        ("model.dtype", "float61", r"model\.dtype must be one of float32, float16"),
        ("sampling.epsilom", 0.1, r"sampling\.epsilom is not a setting: did you mean 'epsilon'"),
        ("sampling.epsilon", 2, r"sampling\.epsilon must be at least 0 and below 1"),
        ("utility_options", {"chrff": {}}, r"utility_options: 'chrff' is unknown: did you mean 'chrf'"),
        ("sampling.num_candidates", True, r"sampling\.num_candidates must be an integer"),
        ("budgets", ["high"], r"budgets must hold keys and values"),
        ("budgets.high.recipe", "fst", r"budgets\.high\.recipe 'fst' is unknown: did you mean 'fast'"),
        ("budgets.high.count", "all", r"budgets\.high\.count must be one of drawn, unique"),
        ("budgets.high.settings", {"rnak": 4}, r"budgets\.high\.settings\.rnak is not a setting: did you mean 'rank'"),
        ("budgets.high.settings", {"rank": 0}, r"budgets\.high: rank must be at least 1"),
        ("budgets.high.acpmbr", {"agreement": 1}, r"budgets\.high: agreement is not a setting of completer 'transfer'"),
        ("budgets.high.guides", {"blue": {}}, r"budgets\.high\.guides: 'blue' is unknown: did you mean 'bleu'"),
        ("figures.base", "low", r"figures\.base: 'low' is unknown: choose one of high"),
        ("name", "../elsewhere", r"name becomes the name of a folder, .* got '\.\./elsewhere'"),
        ("name", "..", r"name becomes the name of a folder"),
        ("data.pairs", ["../../a-b"], r"data\.pairs: a language pair is written like en-de, got '\.\./\.\./a-b'"),
        ("data.pairs", ["en-de", "en-de"], r"data\.pairs must name at least one language pair, each once"),
        ("data.pairs", [], r"data\.pairs must name at least one language pair"),
        ("distilled", ["chrf"], r"distilled must name other utilities than target"),
    ],
)
def test_errors_name_the_key(key, value, message):
    with pytest.raises(ValueError, match=message):
        EvaluationSettings.from_dict(changed(key, value))


def test_command_line_changes_reach_nested_keys():
    settings = load_settings("embedded", {"data.limit": 3, "model.name": "folder", "target": None})
    assert (settings.data.limit, settings.model.name, settings.target) == (3, "folder", "embedded")


def test_a_missing_file_lists_the_known_ones():
    with pytest.raises(FileNotFoundError, match=r"no configuration paper_hihg: did you mean 'paper_high'"):
        load_settings("paper_hihg")


def test_an_error_names_the_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("name: x\ndaat: {}\n")
    with pytest.raises(ValueError, match=r"mine\.yaml: daat is not a setting: did you mean 'data'"):
        load_settings(file)


def test_settings_survive_json():
    settings = load_settings("embedded")
    assert EvaluationSettings.from_dict(settings.to_dict()) == settings


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_configuration_makes_its_rows(file):
    rows = all_rows(load_settings(file))
    assert len({row.key for row in rows}) == len(rows)
    for row in [*rows, *grid(load_settings(file), [0.5], [0.1], [4])]:
        assert row.decoder.name == row.key.split("/")[0]


def test_blocks_observe_balanced_masks_unless_they_say_otherwise():
    settings = EvaluationSettings.from_dict(changed("budgets.high", {"recipe": "fast"}))
    rows = {row.key: row.decoder for row in table_rows(settings)}
    assert rows["acpmbr/high/bleu"].observation.name == "balanced"
    assert rows["pmbr/high"].observation.name == "balanced"


# (budget, distilled) → r, r′, γ as published
PUBLISHED = {
    ("paper_low", None): (16, None, None),
    ("paper_low", "bleurt-20-d3"): (32, 2, 0.1),
    ("paper_low", "bleurt-20-d6"): (32, 4, 0.1),
    ("paper_low", "bleurt-20-d12"): (32, 8, 0.1),
    ("paper_high", None): (512, None, None),
    ("paper_high", "bleurt-20-d3"): (1024, 64, 1.0),
    ("paper_high", "bleurt-20-d6"): (1024, 128, 1.0),
    ("paper_high", "bleurt-20-d12"): (1024, 256, 1.0),
}


@pytest.mark.parametrize("together", [False, True], ids=["paper_low, paper_high", "paper"])
def test_the_paper_s_settings_are_as_published(together):
    for (file, distilled), (rate, guide_rate, gamma) in PUBLISHED.items():
        settings = load_settings("paper" if together else file)
        block = file.removeprefix("paper_")
        found = [r for r in table_rows(settings) if r.budget == block and r.distilled == distilled]
        assert len(found) == 1
        decoder, sampling = found[0].decoder, found[0].recipe.sampling
        assert decoder.budget.reduction == rate
        if distilled is not None:
            assert (decoder.guide_budgets[0].reduction, decoder.completer.agreement) == (guide_rate, gamma)
        solver = decoder.completer
        assert (decoder.observation.name, solver.center, solver.absolute_tolerance) == ("uniform", False, True)
        assert (sampling.num_candidates, sampling.sampler.truncation.epsilon) == (1024, 0.02)
        assert (solver.rank, solver.max_sweeps, solver.tolerance, solver.regularization) == (8, 30, 1e-4, 0.1)
    assert settings.model.name == "facebook/m2m100_418M"


def test_rows_of_the_paper_s_table_in_its_order():
    keys = [
        row.key
        for row in table_rows(
            load_settings("embedded", {"budgets": {"high": {"recipe": "fast"}}, "figures": {}, "rounds": []})
        )
    ]
    assert keys == [
        "map",
        "mbr",
        "distilled-mbr/embedded-d1",
        "distilled-mbr/embedded-d2",
        "pmbr/high",
        "acpmbr/high/embedded-d1",
        "acpmbr/high/embedded-d2",
        "oracle",
    ]


def test_the_default_decoder_has_rows_where_it_is_asked_for():
    settings = load_settings("embedded")
    rows = {row.key: row for row in table_rows(settings) if row.method == "rounds"}
    guides = (None, *settings.distilled)
    assert list(rows) == ["/".join(filter(None, ("rounds", name, each))) for name in settings.rounds for each in guides]
    assert [len(row.recipe.distilled) for row in rows.values()] == [0, 1, 1] * 2
    assert rows["rounds/auto"].recipe.decoder.max_regret == "auto"
    assert rows["rounds/fast"].recipe.decoder.max_regret is None


def test_without_full_matrices_nothing_is_scored_in_full():
    rows = table_rows(load_settings("embedded", {"full_matrices": False, "rounds": []}))
    assert {row.method for row in rows} == {"map", "pmbr", "acpmbr", "oracle"}


def test_unique_budgets_count_unique_pairs():
    rows = {row.key: row for row in all_rows(load_settings("embedded"))}
    drawn, unique = rows["pmbr/high"].decoder.budget, rows["pmbr/high-unique"].decoder.budget
    assert drawn.pairs((40, 40), (128, 128)) == 2 * 128
    assert unique.pairs((40, 40), (128, 128)) == 2 * 40
    guided = rows["acpmbr/high-unique/embedded-d1"].decoder
    assert (guided.budget.pairs((40, 40), (128, 128)), guided.guide_budgets[0].pairs((40, 40), (128, 128))) == (40, 160)


def test_the_cost_curve_spends_as_the_paper_does_and_moves_gamma_between_its_values():
    rows = [row for row in all_rows(load_settings("paper")) if row.figure == "cost"]
    by_key = {row.key: row.decoder for row in rows}
    assert by_key["pmbr/cost-1"].budget.scores_per_row == 2
    for key, target, guide, gamma in (("cost-32", 32, 256, 0.1), ("cost-1", 1, 8, 1.0)):
        decoder = by_key[f"acpmbr/{key}/bleurt-20-d6"]
        assert decoder.budget.scores_per_row == target
        assert decoder.guide_budgets[0].scores_per_row == guide
        assert decoder.completer.agreement == pytest.approx(gamma)
