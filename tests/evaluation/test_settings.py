from __future__ import annotations

import pytest

from evaluation.wmt.rows import all_rows, completer_name, table_rows
from evaluation.wmt.settings import CONFIGS, EvaluationSettings, load_settings

GOOD = {
    "name": "x",
    "data": {"name": "wmt23", "pairs": "en-de"},
    "model": {"name": "m"},
    "target": "chrf",
    "distilled": ["bleu"],
    "metrics": ["chrf"],
    "budgets": ["high"],
    "own": {"fast": {"recipe": "fast"}},
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
        ("budgets", ["hihg"], r"budgets\[0\] must be one of low, high"),
        ("density", "all", r"density must be one of rate, row"),
        ("own", ["fast"], r"own must hold keys and values"),
        ("own.fast.recipe", "fst", r"own\.fast: recipe 'fst' is unknown: did you mean 'fast'"),
        ("own.fast", {"decoder": "pmbr", "rnak": 4}, r"own\.fast: 'rnak' is not a setting: did you mean 'rank'"),
        ("own.fast", {"decoder": "pmbr", "rank": 0}, r"own\.fast: rank must be at least 1"),
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
    with pytest.raises(FileNotFoundError, match=r"no configuration papre: did you mean 'paper'"):
        load_settings("papre")


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
    for row in rows:
        assert row.own or row.method == row.key.split("/")[0]
        assert row.decoder.name


# (budget, distilled) → r, r′, γ as published
PUBLISHED = {
    ("low", None): (16, None, None),
    ("low", "bleurt-20-d3"): (32, 2, 0.1),
    ("low", "bleurt-20-d6"): (32, 4, 0.1),
    ("low", "bleurt-20-d12"): (32, 8, 0.1),
    ("high", None): (512, None, None),
    ("high", "bleurt-20-d3"): (1024, 64, 1.0),
    ("high", "bleurt-20-d6"): (1024, 128, 1.0),
    ("high", "bleurt-20-d12"): (1024, 256, 1.0),
}


def test_the_paper_s_settings_are_as_published():
    settings = load_settings("paper")
    for (block, distilled), (rate, guide_rate, gamma) in PUBLISHED.items():
        (found,) = (r for r in table_rows(settings) if r.budget == block and r.distilled == distilled)
        decoder, sampling = found.decoder, found.recipe.sampling
        assert decoder.budget.reduction == rate
        if distilled is not None:
            assert (decoder.guide_budgets[0].reduction, decoder.completer.agreement) == (guide_rate, gamma)
        solver = decoder.completer
        assert solver.name == ("als" if distilled is None else "agreement-als")
        assert (decoder.observation.name, solver.center, solver.absolute_tolerance) == ("uniform", False, True)
        assert (sampling.num_candidates, sampling.sampler.truncation.epsilon) == (1024, 0.02)
        assert (solver.rank, solver.max_sweeps, solver.tolerance, solver.regularization) == (8, 30, 1e-4, 0.1)
    assert settings.model.name == "facebook/m2m100_418M"


def test_the_paper_s_rows_come_first_in_its_order_and_the_package_s_own_are_named_as_such():
    guides = ("embedded-d1", "embedded-d2")
    own = {"default": {}, "transfer": {"recipe": "fast", "decoder": "acpmbr"}}
    rows = table_rows(load_settings("embedded", {"own": own}))
    blocks = [["pmbr/" + name, *(f"acpmbr/{name}/{guide}" for guide in guides)] for name in ("low", "high")]
    assert [row.key for row in rows if not row.own] == [
        *("map", "beam", "mbr"),
        *(f"distilled-mbr/{guide}" for guide in guides),
        *(key for block in blocks for key in block),
        "oracle",
    ]
    after = rows[[row.key for row in rows].index("oracle") + 1 :]
    assert [row.key for row in after] == [
        *("own/default", "own/default/embedded-d1", "own/default/embedded-d2"),
        *("own/transfer/embedded-d1", "own/transfer/embedded-d2"),  # it needs a guide
    ]
    assert all(row.label.endswith("(this package)") for row in after)
    assert [completer_name(row) for row in after] == ["", "", "", "transfer", "transfer"]
    assert {completer_name(row) for row in rows if row.method == "acpmbr" and not row.own} == {"AC-ALS"}
    assert {completer_name(row) for row in rows if row.method == "pmbr"} == {"ALS"}


def test_without_full_matrices_nothing_is_scored_in_full():
    rows = table_rows(load_settings("embedded", {"full_matrices": False, "own": {}}))
    assert {row.method for row in rows} == {"map", "beam", "pmbr", "acpmbr", "oracle"}


def test_scores_per_row_are_the_paper_s_for_each_unique_candidate():
    for density, target, guide in (("row", 40, 4 * 40), ("rate", 128 * 128 // 1024, 128 * 128 // 256)):
        rows = {row.key: row.decoder for row in all_rows(load_settings("embedded", {"density": density}))}
        guided = rows["acpmbr/high/embedded-d1"]
        assert guided.budget.pairs((40, 40), (128, 128)) == target
        assert guided.guide_budgets[0].pairs((40, 40), (128, 128)) == guide
        assert rows["pmbr/high"].budget.pairs((40, 40), (128, 128)) == 2 * target


def test_the_cost_curve_spends_as_the_paper_does_and_moves_gamma_between_its_values():
    rows = [row for row in all_rows(load_settings("paper")) if row.figure == "cost"]
    by_key = {row.key: row.decoder for row in rows}
    assert by_key["pmbr/cost-1"].budget.scores_per_row == 2
    for key, target, guide, gamma in (("cost-32", 32, 256, 0.1), ("cost-1", 1, 8, 1.0)):
        decoder = by_key[f"acpmbr/{key}/bleurt-20-d6"]
        assert decoder.budget.scores_per_row == target
        assert decoder.guide_budgets[0].scores_per_row == guide
        assert decoder.completer.agreement == pytest.approx(gamma)
