"""The paper's decoders against plain loops over the expanded list of draws."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from hf_acpmbr import ACPMBR, Candidates
from hf_acpmbr.completion import ALS, AgreementALS, PaperWarning
from hf_acpmbr.completion.observation import Balanced, Uniform
from hf_acpmbr.completion.transfer import Transfer
from hf_acpmbr.decoding import MAP, MBR, PMBR, AgreementPMBR, DistilledMBR, Oracle
from hf_acpmbr.matrix import ObservedScores
from hf_acpmbr.recipe import Budget
from hf_acpmbr.scoring import MatrixUtility
from hf_acpmbr.scoring.adapters import FunctionUtility

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "under", "big", "small", "red"]


class Overlap:
    """The smallest utility that users may bring: `score` and `higher_is_better`."""

    higher_is_better = True

    def __init__(self):
        self.pairs = 0

    def score(self, hypotheses, references, sources=None):
        self.pairs += len(hypotheses)
        return [
            len(set(h) & set(r)) / max(1, len(set(h) | set(r))) for h, r in zip(hypotheses, references, strict=True)
        ]


class Errors(Overlap):
    """The same as an error: lower is better, 0 is perfect."""

    higher_is_better = False

    def score(self, hypotheses, references, sources=None):
        return [25.0 * (1.0 - s) for s in super().score(hypotheses, references)]


def draws(seed: int, size: int = 40) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 5))) for _ in range(size)]


def matrices(seed: int = 0, n: int = 60, rank: int = 3, noise: float = 0.02):
    rng = np.random.default_rng(seed)
    u, v = rng.normal(size=(n, rank)), rng.normal(size=(n, rank))
    target = 0.6 + 0.1 * u @ v.T / np.sqrt(rank) + 0.05 * rng.normal(size=(n, 1))
    guide = target * 0.8 + 0.1 + noise * rng.normal(size=(n, n))
    return target, guide


@given(st.integers(0, 10_000))
def test_mbr_equals_the_plain_double_loop_over_all_draws(seed):
    drawn = draws(seed, 25)
    utility = Overlap()
    best, best_mean = None, -1.0
    for h in drawn:
        mean = sum(Overlap().score([h], [r])[0] for r in drawn) / len(drawn)
        if mean > best_mean + 1e-12:
            best, best_mean = h, mean
    got = MBR().decode(drawn, target=utility)
    assert got.text == best
    assert got.expected[got.index] == pytest.approx(best_mean)
    assert utility.pairs == got.calls["Overlap"] == len(set(drawn)) ** 2
    assert got.exact


def test_mbr_with_chrf_equals_sacrebleu():
    drawn = draws(3, 12)
    metric = sacrebleu.CHRF()
    means = [np.mean([metric.sentence_score(h, [r]).score for r in drawn]) for h in drawn]
    got = MBR().decode(drawn, target="chrf")
    assert got.text == drawn[int(np.argmax(means))]
    assert got.expected[got.index] == pytest.approx(max(means), abs=1e-6)


def test_separate_references_and_their_counts():
    got = MBR().decode(["aa", "bb"], references=["bb", "bb", "aa"], target=Overlap())
    assert got.text == "bb"
    np.testing.assert_allclose(got.expected, [1 / 3, 2 / 3])


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("observe", [Balanced(), Uniform()])
def test_pmbr_is_the_completer_on_the_observed_pairs(center, observe):
    target, _ = matrices()
    utility = MatrixUtility(target)
    decoder = PMBR(ALS(rank=4, center=center), observe, Budget(reduction=4))
    got = decoder.decode([str(i) for i in range(60)], target=utility, full_matrix=target, seed=3)
    assert got.calls == {"matrix": 900}
    mask = np.zeros((60, 60), bool)
    mask[got.observed.rows, got.observed.columns] = True
    assert mask.sum() == 900
    completion = ALS(rank=4, center=center, seed=3).solve(ObservedScores.from_dense(target, mask), [])
    np.testing.assert_allclose(got.expected, completion.matrix.mean(1), atol=1e-9)
    assert got.completion_error == pytest.approx(np.mean((100 * (completion.matrix - target)) ** 2))
    assert not got.exact


def test_acpmbr_is_the_agreement_completer_on_both_matrices():
    target, guide = matrices()
    texts = [str(i) for i in range(60)]
    budgets = Budget(scores_per_row=2), (Budget(scores_per_row=20),)
    decoder = AgreementPMBR(AgreementALS(rank=4, agreement=1.0), Balanced(), *budgets)
    got = decoder.decode(texts, target=MatrixUtility(target, name="t"), guides=MatrixUtility(guide, name="g"))
    assert got.calls == {"t": 120, "g": 1200}
    completion = AgreementALS(rank=4, agreement=1.0).solve(got.observed, got.guides)
    np.testing.assert_allclose(got.expected, completion.matrix.mean(1), atol=1e-9)


@pytest.mark.filterwarnings("ignore::hf_acpmbr.completion.PaperWarning")
def test_the_papers_cost_is_parameters_over_rates():
    target, guide = (MatrixUtility(matrix, name=name) for matrix, name in zip(matrices(), "tg", strict=True))
    target.parameters, guide.parameters = 579, 30  # BLEURT-20 and D3, in millions
    decoder = AgreementPMBR(AgreementALS(), Balanced(), Budget(reduction=1024), (Budget(reduction=64),))
    cost = decoder.decode([str(i) for i in range(60)], target=target, guides=guide).paper_cost
    assert cost == pytest.approx(1.034, abs=1e-3)


def test_a_paper_recipe_that_scores_less_than_one_pair_per_candidate_says_so_once():
    pools = [[f"{word} {k}" for k in range(48)] for word in ("cat", "dog")]
    mbr = ACPMBR(target="chrf", distilled="bleu", recipe="paper-high")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        decisions = mbr.rerank_many(pools)
    assert [decision.calls["chrf"] for decision in decisions] == [2, 2]
    assert [str(each.message).split(",")[0] for each in caught] == [
        "reduction=1024 makes 2 target calls in all for 48×48 samples"
    ]
    assert caught[0].category is PaperWarning


@pytest.mark.parametrize(("scale", "offset"), [(1e-4, 0.0), (1.0, 1e5)])
def test_pmbr_tells_candidates_apart_in_any_unit(scale, offset):
    target, _ = matrices()
    texts = [str(i) for i in range(60)]
    moved = FunctionUtility(
        lambda hypotheses, references: [
            scale * target[int(h), int(r)] + offset for h, r in zip(hypotheses, references, strict=True)
        ]
    )
    decoder = PMBR(budget=Budget(scores_per_row=12))
    expected = decoder.decode(texts, target=MatrixUtility(target)).expected
    got = decoder.decode(texts, target=moved)
    np.testing.assert_allclose((got.expected - offset) / scale, expected, atol=1e-6)
    with pytest.warns(PaperWarning, match=r"regularization=0\.1 erases what tells the candidates apart"):
        PMBR(ALS(center=False), budget=Budget(scores_per_row=12)).decode(texts, target=moved)


def test_what_sampling_tells_of_the_candidates_reaches_the_transfer():
    target, guide = matrices()
    drawn = Candidates(tuple(map(str, range(60))), np.arange(1, 61), logprobs=np.linspace(-9, -1, 60) ** 3)
    decoder = AgreementPMBR(Transfer(), Balanced(), Budget(reduction=20_000), (Budget(reduction=3_000),))
    got = decoder.decode(drawn, target=MatrixUtility(target), guides=MatrixUtility(guide))
    told = Transfer().solve(got.observed, got.guides, drawn.features)
    untold = Transfer().solve(got.observed, got.guides)
    np.testing.assert_allclose(got.expected, told.expected(drawn.weights), atol=1e-9)
    assert np.abs(got.expected - untold.expected(drawn.weights)).max() > 1e-4


def test_two_guides_each_with_its_budget():
    target, guide = matrices()
    texts = [str(i) for i in range(60)]
    guides = [MatrixUtility(guide, name="g"), MatrixUtility(guide**2, name="h")]
    decoder = AgreementPMBR(
        AgreementALS(agreement=[1.0, 0.2]),
        Balanced(),
        Budget(scores_per_row=2),
        (Budget(scores_per_row=20), Budget(scores_per_row=5)),
    )
    assert decoder.decode(texts, target=MatrixUtility(target, name="t"), guides=guides).calls == {
        "t": 120,
        "g": 1200,
        "h": 300,
    }
    with pytest.raises(ValueError, match="2 budgets for 1 guides"):
        decoder.decode(texts, target=MatrixUtility(target), guides=guides[:1])


def test_a_good_guide_helps_where_the_target_has_one_score_a_row():
    errors = {"pmbr": [], "acpmbr": []}
    for seed in range(5):
        target, guide = matrices(seed)
        texts = [str(i) for i in range(60)]
        arguments = dict(target=MatrixUtility(target, name="t"), full_matrix=target, seed=seed)
        plain = PMBR(ALS(), Balanced(), Budget(scores_per_row=2)).decode(texts, **arguments)
        ac = AgreementPMBR(
            AgreementALS(agreement=1.0), Balanced(), Budget(scores_per_row=1), (Budget(scores_per_row=16),)
        )
        errors["pmbr"].append(plain.completion_error)
        errors["acpmbr"].append(ac.decode(texts, guides=MatrixUtility(guide), **arguments).completion_error)
    assert np.mean(errors["acpmbr"]) < np.mean(errors["pmbr"])


@pytest.mark.parametrize("budget", [Budget(reduction=1), Budget(reduction=2), Budget(scores_per_row=30)])
def test_a_budget_that_covers_all_unique_pairs_is_exact_mbr_without_guide_calls(budget):
    drawn = [text for text in draws(5, 10)[:4] for _ in range(10)]
    full = MBR().decode(drawn, target=Overlap())
    for decoder in (
        PMBR(ALS(), Balanced(), budget),
        AgreementPMBR(AgreementALS(), Balanced(), budget, (Budget(reduction=2),)),
    ):
        guide = Overlap()
        got = decoder.decode(drawn, target=Overlap(), guides=[guide] if "guide" in decoder.needs else [])
        assert got.exact
        np.testing.assert_array_equal(got.expected, full.expected)
        assert guide.pairs == 0


@pytest.mark.parametrize("center", [True, False])
def test_lower_is_better_never_makes_a_row_without_scores_look_good(center):
    """Uncentred factors of an unseen row are 0, the best error there is: the gain is counted from the worst seen."""
    target, _ = matrices(n=80)
    errors = 25.0 * (1.2 - target)
    utility = MatrixUtility(errors, higher_is_better=False, scale=25.0)
    decoder = PMBR(ALS(center=center), Uniform(), Budget(reduction=60))
    for seed in range(5):
        got = decoder.decode([str(i) for i in range(80)], target=utility, seed=seed)
        assert 80 - len(np.unique(got.observed.rows)) > 5, "some rows have no score"
        assert got.index in got.observed.rows


def test_a_callable_in_percent_is_completed_as_one_in_units():
    """λ and γ are the paper's, for scores up to 1: a plain callable that says nothing is judged by what it gives."""
    target, guide = matrices()

    def look_up(matrix, times):
        return lambda hypotheses, references: times * matrix[[int(h) for h in hypotheses], [int(r) for r in references]]

    texts = [str(i) for i in range(60)]
    decoder = AgreementPMBR(
        AgreementALS(agreement=1.0), Balanced(), Budget(scores_per_row=2), (Budget(scores_per_row=16),)
    )
    unit = decoder.decode(texts, target=look_up(target / target.max(), 1), guides=look_up(guide, 1))
    percent = decoder.decode(texts, target=look_up(target / target.max(), 100), guides=look_up(guide, 100))
    seen = unit.observed.values.max()
    np.testing.assert_allclose(percent.expected / 100, unit.expected, atol=0.05 * (1 - seen) + 1e-2)
    assert percent.index == unit.index


def test_lower_is_better_ranks_by_the_lowest():
    drawn = draws(8)
    a, b = MBR().decode(drawn, target=Overlap()), MBR().decode(drawn, target=Errors())
    assert a.text == b.text
    np.testing.assert_allclose(b.expected, 25 * (1 - a.expected))
    assert [r.expected for r in b.nbest(5)] == sorted(b.expected)[:5]


def test_distilled_map_and_oracle():
    _, guide = matrices()
    texts = [str(i) for i in range(60)]
    got = DistilledMBR().decode(texts, guides=MatrixUtility(guide, name="g"))
    assert got.index == guide.mean(1).argmax()
    assert got.calls == {"g": 3600}
    logprobs = np.linspace(-3, -1, 60)
    most_probable = MAP().decode(Candidates(tuple(texts), np.ones(60, int), logprobs=logprobs))
    assert most_probable.text == "59"
    assert most_probable.total_calls == 0
    oracle = Oracle().decode(["big cat", "red mat", "dog"], references=["red cat mat"], target="chrf")
    assert oracle.text == "red mat"


def test_n_best_has_no_duplicates_and_ties_keep_their_order():
    got = MBR().decode(["b", "a", "b", "c"], target=Overlap())
    assert [r.text for r in got.nbest()] == ["b", "a", "c"]
    assert [r.count for r in got.nbest(2)] == [2, 1]
    with pytest.raises(ValueError, match="at least 1"):
        got.nbest(0)


@pytest.mark.parametrize(
    ("decode", "message"),
    [
        (lambda: MBR().decode(["a"]), "mbr needs a target utility: pass target="),
        (lambda: DistilledMBR().decode(["a"]), "distilled-mbr needs a distilled utility"),
        (lambda: DistilledMBR().decode(["a"], target="chrf", guides="bleu"), "uses no target utility"),
        (lambda: MBR().decode(["a"], target="chrf", guides="bleu"), "mbr uses no distilled utilities"),
        (lambda: MAP().decode(["a"]), "map needs log-probabilities"),
        (lambda: Oracle().decode(["a"], target="chrf"), "oracle needs the real references"),
        (lambda: MBR().decode([], target="chrf"), "empty"),
        (lambda: MBR().decode(["a", "b"], target="chrf", full_matrix=[[1.0]]), r"full_matrix has shape \(1, 1\)"),
    ],
)
def test_what_is_missing_is_named(decode, message):
    with pytest.raises(ValueError, match=message):
        decode()


def test_a_utility_that_gives_nan_is_refused_with_the_texts():
    def broken(hypotheses, references):
        return [float("nan") if h == "b" else 1.0 for h in hypotheses]

    with pytest.raises(ValueError, match=r"NaN.*'b'"):
        MBR().decode(["a", "b"], target=broken)


def test_the_signature_repeats_the_run():
    decoder = PMBR(ALS(rank=3), Balanced(), Budget(scores_per_row=2))
    line = decoder.decode(draws(1), target="chrf", seed=5).full_signature
    for part in ("hf_acpmbr:", "decoder:pmbr", "target:chrf[", "budget:2/row", "rank=3", "seed:5", "n:40"):
        assert part in line
    assert " " not in line
    assert "\n" not in line


def test_the_completion_error_counts_every_entry_as_often_as_it_was_drawn():
    rng = np.random.default_rng(0)
    truth = 100 * rng.random((9, 7))
    texts, others = [f"c{k}" for k in range(9)], [f"r{k}" for k in range(7)]
    drawn, pseudo = (Candidates(tuple(t), rng.integers(1, 30, len(t))) for t in (texts, others))
    utility = MatrixUtility(truth, texts, others, scale=50.0)
    decoder = PMBR(ALS(rank=2, max_sweeps=200), Balanced(), Budget(reduction=drawn.total * pseudo.total / 25))
    decision = decoder.decode(drawn, pseudo, utility, full_matrix=truth)
    entries = [
        (drawn.counts[i] * pseudo.counts[j], (100 / 50 * (decision.matrix[i, j] - truth[i, j])) ** 2)
        for i in range(9)
        for j in range(7)
    ]
    weights, errors = np.array(entries).T
    assert decision.completion_error == pytest.approx(np.average(errors, weights=weights))
    assert decision.completion_error != pytest.approx(errors.mean(), rel=0.01)


def test_the_target_and_every_guide_have_masks_of_their_own():
    target, guide = matrices(n=40)
    texts = [f"t{k}" for k in range(40)]
    utilities = [MatrixUtility(m, texts, name=name) for m, name in ((target, "t"), (guide, "g"), (guide + 0.1, "h"))]
    for observation in (Balanced(), Uniform()):
        budget = Budget(scores_per_row=8)
        decoder = AgreementPMBR(AgreementALS(max_sweeps=200), observation, budget, (budget,))
        decision = decoder.decode(Candidates.from_texts(texts), None, utilities[0], utilities[1:])
        masks = [set(scores.pairs.flat.tolist()) for scores in (decision.observed, *decision.guides)]
        assert [len(mask) for mask in masks] == [320] * 3
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert len(masks[one] & masks[other]) < 160, "by chance it is about 64"


def test_full_mbr_of_a_symmetric_utility_has_each_two_texts_once():
    texts = [f"text {k}" for k in range(12)]
    symmetric = MatrixUtility(np.ones((12, 12)), texts, symmetric=True)
    for references, pairs in ((None, 12 * 13 // 2), (texts[:5], 12 * 5 - 5 * 4 // 2)):
        got = MBR().decode(texts, references, target=symmetric)
        assert got.exact_calls == got.calls["matrix"] == pairs
