from __future__ import annotations

import pytest

from evaluation.rows import all_rows, table_rows
from evaluation.settings import CONFIGS, load_settings, parse_settings
from evaluation.tune import grid

GOOD = {
    "name": "x",
    "data": {"name": "wmt23", "pairs": "en-de"},
    "model": {"name": "m"},
    "target": "chrf",
    "distilled": ["bleu"],
    "metrics": ["chrf"],
    "budgets": {"high": {"preset": "high"}},
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
        ("data.limt", 3, r"data\.limt is no setting: did you mean data\.limit\?"),
        ("data.limit", 0, r"data\.limit must be at least 1, got 0"),
        ("data.limit", "all", r"data\.limit must be a whole number, got 'all'"),
        ("data.name", None, r"data\.name is missing"),
        ("target", None, r"target is missing"),
        ("model.chat", 1, r"model\.chat must be true or false"),
        ("metrics", [1], r"metrics\[0\] must be a text"),
        ("sampling", 5, r"sampling must hold keys and values, got 5"),
        ("sampling.num_candidates", True, r"sampling\.num_candidates must be a whole number"),
        ("budgets", ["high"], r"budgets must map names to blocks"),
        ("budgets.high.preset", "middle", r"budgets\.high\.preset must be one of low, high, got 'middle'"),
        ("budgets.high.count", "all", r"budgets\.high\.count must be 'drawn' or 'unique'"),
        (
            "budgets.high.mbr",
            {"rnak": 4},
            r"budgets\.high\.mbr: 'rnak' is no setting of MBRConfig: did you mean 'rank'",
        ),
        ("figures.base", "low", r"figures\.base must be one of budgets \(high\), got 'low'"),
        ("distilled", ["chrf"], r"distilled must name other utilities than target"),
    ],
)
def test_errors_name_the_key(key, value, message):
    with pytest.raises(ValueError, match=message):
        parse_settings(changed(key, value))


def test_command_line_changes_reach_nested_keys():
    settings = load_settings("embedded", {"data.limit": 3, "model.name": "folder", "target": None})
    assert (settings.data.limit, settings.model.name, settings.target) == (3, "folder", "embedded")


def test_a_missing_file_lists_the_known_ones():
    with pytest.raises(FileNotFoundError, match=r"paper_high\.yaml"):
        load_settings("paper_hihg")


def test_settings_survive_json():
    settings = load_settings("embedded")
    assert parse_settings(settings.to_dict()) == settings


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_configuration_makes_its_rows(file):
    rows = all_rows(load_settings(file))
    assert len({row.key for row in rows}) == len(rows)
    for row in [*rows, *grid(load_settings(file), [0.5], [0.1], [4])]:
        assert row.decoder.name == row.config.decoder


def test_rounds_are_for_the_guided_rows_alone():
    settings = parse_settings(changed("budgets.high", {"preset": "high", "mbr": {"observation": "adaptive"}}))
    plans = {row.key: row.config.observation for row in table_rows(settings)}
    assert plans["acpmbr/high/bleu"] == "adaptive"
    assert plans["pmbr/high"] == "balanced"
    assert grid(settings, [0.5], [0.1], [4]) == []


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
        config = found[0].config
        assert config.reduction == rate
        if distilled is not None:
            assert (config.distilled_reduction, config.agreement) == (guide_rate, gamma)
        assert (config.observation, config.center, config.absolute_tolerance) == ("uniform", False, True)
        assert (config.num_candidates, config.epsilon, config.rank, config.max_sweeps) == (1024, 0.02, 8, 30)
    assert settings.model.name == "facebook/m2m100_418M"


def test_rows_of_the_paper_s_table_in_its_order():
    keys = [
        row.key
        for row in table_rows(load_settings("embedded", {"budgets": {"high": {"preset": "high"}}, "figures": {}}))
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


def test_without_full_matrices_nothing_is_scored_in_full():
    rows = table_rows(load_settings("embedded", {"full_matrices": False}))
    assert {row.config.decoder for row in rows} == {"map", "pmbr", "acpmbr", "oracle"}


def test_unique_budgets_count_unique_pairs():
    rows = {row.key: row for row in all_rows(load_settings("embedded"))}
    drawn, unique = rows["pmbr/high"].decoder.budget, rows["pmbr/high-unique"].decoder.budget
    assert drawn.pairs((40, 40), (128, 128)) == 2 * 128
    assert unique.pairs((40, 40), (128, 128)) == 2 * 40
    guided = rows["acpmbr/high-unique/embedded-d1"].decoder
    assert (guided.budget.pairs((40, 40), (128, 128)), guided.guide_budgets[0].pairs((40, 40), (128, 128))) == (40, 160)


def test_the_cost_curve_spends_as_the_paper_does_and_moves_gamma_between_its_values():
    rows = [row for row in all_rows(load_settings("paper")) if row.figure == "cost"]
    by_key = {row.key: row.config for row in rows}
    assert by_key["pmbr/cost-1"].scores_per_row == 2
    low, high = by_key["acpmbr/cost-32/bleurt-20-d6"], by_key["acpmbr/cost-1/bleurt-20-d6"]
    assert (low.scores_per_row, low.distilled_scores_per_row, low.agreement) == (32, 256, pytest.approx(0.1))
    assert (high.scores_per_row, high.distilled_scores_per_row, high.agreement) == (1, 8, 1.0)
