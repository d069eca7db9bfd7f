"""Rounds: the weights of pseudo-references against their definitions, the choice against full MBR and halving."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hf_acpmbr import Candidates
from hf_acpmbr.decoding import MBR, HalvingMBR, RoundsMBR
from hf_acpmbr.decoding.rounds.model import Additive
from hf_acpmbr.decoding.rounds.posterior import Beliefs
from hf_acpmbr.decoding.rounds.reference_weights import Calibration, Columns
from hf_acpmbr.decoding.rounds.state import Race, reach
from hf_acpmbr.recipe import Budget
from hf_acpmbr.scoring import MatrixUtility

from .worlds import World


def drawn(shares, seed=0, **options) -> Columns:
    size = len(shares)
    return Columns.draw(
        np.asarray(shares), np.arange(size), np.arange(size), np.random.default_rng(seed), Calibration(**options)
    )


def clusters(seed: int, size: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Similarities of texts of three kinds, and how often each was drawn."""
    random = np.random.default_rng(seed)
    kinds = np.eye(3)[random.choice(3, size, p=[0.6, 0.3, 0.1])]
    vectors = kinds + 0.2 * random.normal(size=(size, 3))
    similarity = np.exp(-((vectors[:, None] - vectors[None]) ** 2).sum(-1))
    return similarity, random.zipf(2.0, size).clip(max=20)


def decode(matrix, counts, budget, seed=0, guides=(), **options):
    texts = tuple(map(str, range(len(matrix))))
    helpers = [MatrixUtility(guide, texts, name=f"guide{k}") for k, guide in enumerate(guides)]
    decoder = RoundsMBR(Budget(scores_per_row=budget), (Budget(scores_per_row=16),), **options)
    return decoder.decode(Candidates(texts, counts), None, MatrixUtility(matrix, texts), helpers, seed=seed)


def test_all_pseudo_references_together_have_their_own_shares():
    shares = np.random.default_rng(0).dirichlet(np.ones(9))
    columns = drawn(shares)
    np.testing.assert_allclose(columns.weights(9), shares[columns.order])
    assert columns.doubt(9) == pytest.approx(0)
    assert columns.doubt(1) > columns.doubt(5) > columns.doubt(8)


def test_the_heaviest_come_first_and_the_others_by_weight():
    shares = np.array([0.3, 0.2, 0.15, 0.1, 0.15, 0.07, 0.03])
    shares = shares / shares.sum()
    orders = [drawn(shares, seed).order for seed in range(2000)]
    assert all(set(order[:4].tolist()) == {0, 1, 2, 4} for order in orders)
    fifth = np.bincount([order[4] for order in orders], minlength=7) / 2000
    np.testing.assert_allclose(fifth[[3, 5, 6]], np.array([0.1, 0.07, 0.03]) / 0.2, atol=0.04)


def test_calibrated_weights_bring_the_sample_closer_to_the_population():
    better = []
    for seed in range(30):
        matrix, counts = clusters(seed)
        shares = counts / counts.sum()
        columns = drawn(shares, seed)
        plain = columns.weights(8)
        columns.learn(matrix[:, columns.order[:8]], np.arange(60), 60)
        block, truth = matrix[:, columns.order[:8]], matrix @ shares
        errors = [np.std(block @ weights - truth) for weights in (plain, columns.weights(8))]
        better.append(errors[1] / errors[0])
    assert np.mean(better) < 0.7


def test_with_every_score_the_model_has_the_exact_means():
    matrix, counts = clusters(1)
    shares = counts / counts.sum()
    columns = drawn(shares)
    model = Additive(columns, np.ones((60, 1)), [], np.random.default_rng(0))
    rows, places = (index.ravel() for index in np.indices(matrix.shape))
    got = model.fit(matrix[rows, columns.order[places]], rows, places)
    np.testing.assert_allclose(got.mean, matrix @ shares, atol=1e-6)
    assert got.regret(int(np.argmax(got.mean))) < 1e-6


def test_the_choice_was_judged_by_many_pseudo_references_and_not_by_a_lucky_few(monkeypatch):
    fit = Additive.fit

    def lucky(self, scores, rows, places):
        estimate = fit(self, scores, rows, places)
        depth = np.bincount(rows, minlength=len(estimate.mean))
        few = np.flatnonzero(depth < depth.max() / 2)[:1]
        estimate.mean[few] += 0.5  # one with few scores seems to be by far the best
        return estimate

    matrix, counts = clusters(11)
    monkeypatch.setattr(Additive, "fit", lucky)
    monkeypatch.setattr(Race, "_hopeful", lambda self, size, allowance: self.standing[:size])
    got = decode(matrix, counts, 4)
    depth = np.bincount(got.observed.rows, minlength=60)
    assert 2 * depth[np.argmax(got.expected)] < depth.max()
    assert 2 * depth[got.index] >= depth.max()
    assert got.nbest(2)[1].index == np.argmax(got.expected)


def test_few_scores_leave_more_doubt_than_many():
    random = np.random.default_rng(0)
    matrix = np.linspace(0, 1, 20)[:, None] + random.normal(0, 0.5, (20, 40))
    columns = drawn(np.full(40, 1 / 40))
    depth = np.where(np.arange(20) >= 15, 40, 3)
    rows = np.repeat(np.arange(20), depth)
    places = np.concatenate([np.arange(d) for d in depth])
    got = Additive(columns, np.ones((20, 1)), [], random).fit(matrix[rows, columns.order[places]], rows, places)
    assert got.deviation[:15].min() > 3 * got.deviation[15:].max()


@pytest.mark.parametrize(("depths", "allowance"), [([0, 0, 0], 7), ([3, 0, 5], 6), ([2, 2], 0), ([0], 100)])
def test_reach_is_the_deepest_common_depth_that_is_paid_for(depths, allowance):
    got = reach(np.array(depths), allowance, 9)
    costs = [sum(max(depth - have, 0) for have in depths) for depth in range(10)]
    assert got == max(depth for depth in range(10) if costs[depth] <= allowance)


def test_a_stated_regret_saves_calls_and_is_kept():
    spent, lost = [], []
    for seed in range(20):
        matrix, counts = clusters(seed)
        expected = matrix @ (counts / counts.sum())
        got = decode(matrix, counts, 8, seed, max_regret=0.02)
        if "stopped early" in got.status:
            assert got.expected_regret <= 0.02
        spent.append(got.total_calls / decode(matrix, counts, 8, seed).total_calls)
        lost.append(expected.max() - expected[got.index])
    assert np.mean(spent) < 0.9
    assert np.mean(lost) <= 1.2 * 0.02


class Slow(MatrixUtility):
    """A matrix whose every score takes so many seconds of a clock that nothing else moves."""

    def __init__(self, clock: list[float], pace: float, *rest, **options) -> None:
        super().__init__(*rest, **options)
        self.clock, self.pace, self.slowest = clock, pace, 0.0

    def kernel(self, table, statistics):
        score = super().kernel(table, statistics)

        def slow(hypotheses, references, sources):
            self.clock[0] += self.pace * len(hypotheses)
            self.slowest = max(self.slowest, self.pace * len(hypotheses))
            return score(hypotheses, references, sources)

        return slow


@pytest.mark.parametrize("pace", [0.0, 1e-4, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("guide_pace", [None, 1e-5, 1e-3])
def test_a_time_limit_is_kept_within_one_round_and_its_time_is_used(monkeypatch, pace, guide_pace):
    clock = [0.0]
    monkeypatch.setattr("hf_acpmbr.scoring.together.time.perf_counter", lambda: clock[0])
    matrix, counts = clusters(5)
    texts = tuple(map(str, range(60)))
    target = Slow(clock, pace, matrix, texts)
    guides = [] if guide_pace is None else [Slow(clock, guide_pace, matrix, texts, name="guide")]
    decoder = RoundsMBR(Budget(reduction=1), (Budget(reduction=1),), time_limit=1.0)
    got = decoder.decode(Candidates(texts, counts), None, target, guides)
    assert clock[0] <= 1 + max(each.slowest for each in (target, *guides))
    assert clock[0] >= 0.7 or got.calls["matrix"] == 3600
    assert got.calls["matrix"] >= 8
    assert ("1 seconds are over" in got.status) == (got.calls["matrix"] < 3600)
    assert f"|scores:{'+'.join(map(str, got.calls.values()))}|" in got.full_signature
    assert "time_limit:1|" in got.full_signature


def test_a_time_limit_does_not_trust_a_regret_that_is_stated_too_early():
    matrix, counts = clusters(5)
    least = [decode(matrix, counts, 8, max_regret=10.0, time_limit=limit).total_calls for limit in (None, 3600)]
    assert min(least) > 64, "2 scores per candidate are what every stop waits for"


def test_with_time_enough_a_time_limit_changes_nothing_of_the_choice():
    matrix, counts = clusters(6)
    expected = matrix @ (counts / counts.sum())
    got = decode(matrix, counts, 1000, time_limit=3600)
    np.testing.assert_allclose(got.expected[got.index], expected.max(), atol=1e-6)
    assert got.index == int(np.argmax(expected))


def test_exact_where_the_budget_reaches_every_pair():
    world = World.make(1)
    got = RoundsMBR(Budget(reduction=1)).decode(world.candidates(), target=world.target())
    full = MBR().decode(world.candidates(), target=world.target())
    np.testing.assert_allclose(got.expected, full.expected)
    assert got.exact
    assert got.expected_regret == 0


def test_guides_are_scored_within_their_own_budget():
    matrix, counts = clusters(3)
    noise = np.random.default_rng(0).normal(0, 0.05, matrix.shape)
    got = decode(matrix, counts, 1, guides=[matrix + noise, matrix.T])
    assert 0 < got.calls["guide0"] <= 16 * counts.sum()
    assert 0 < got.calls["guide1"] <= 16 * counts.sum()
    with pytest.raises(ValueError, match="guide_budgets has 2 budgets for 3 guides"):
        RoundsMBR(guide_budgets=(Budget(reduction=2),) * 2).check_utilities(True, 3)


@pytest.mark.parametrize("scores", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("guided", [False, True])
def test_a_handful_of_scores_in_all_is_enough_to_choose(scores, guided):
    for size in (2, 3, 31):
        matrix, counts = clusters(0, size)
        got = decode(matrix, counts, scores / counts.sum(), guides=[matrix**2] if guided else [])
        assert got.calls["matrix"] <= scores
        assert got.text in got.candidates.texts


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_decision_keeps_what_was_scored_in_which_round(sign):
    matrix, counts = clusters(3)
    texts = tuple(map(str, range(len(matrix))))
    target = MatrixUtility(sign * matrix, texts, higher_is_better=sign > 0)
    guide = MatrixUtility(sign * matrix**2, texts, name="guide", higher_is_better=sign > 0)
    decoder = RoundsMBR(Budget(scores_per_row=4), (Budget(scores_per_row=3),))
    got = decoder.decode(Candidates(texts, counts), None, target, guide)
    for scores, full in ((got.observed, target.matrix), (got.guides[0], guide.matrix)):
        assert len(scores) == got.calls["matrix" if full is target.matrix else "guide"]
        np.testing.assert_allclose(scores.values, full[scores.rows, scores.columns])
    assert len(got.trials) == len(got.rounds) > 1
    assert sorted(flat for trial in got.trials for flat in trial.flat) == got.observed.pairs.flat.tolist()
    assert got.deviation.shape == (60,)
    assert (got.deviation[got.trials[-1].rows] < got.deviation.max()).all()


def test_the_summary_says_what_full_mbr_would_have_cost():
    matrix, counts = clusters(4)
    assert "full MBR has 3,600" in decode(matrix, counts, 1).summary()


def test_real_matrices_half_the_calls_of_halving_choose_better(shared_data: Path):
    losses: dict[str, list[float]] = {"rounds": [], "halving": []}
    for file in sorted((shared_data / "matrices").glob("*.npz")):
        with np.load(file) as data:
            matrix, counts = data["target"].astype(float), data["counts"].astype(np.int64)
        texts, expected = tuple(map(str, range(len(counts)))), matrix @ (counts / counts.sum())
        halving = HalvingMBR(Budget(scores_per_row=2))
        for seed in range(5):
            other = halving.decode(Candidates(texts, counts), target=MatrixUtility(matrix, texts), seed=seed)
            for name, got in (("rounds", decode(matrix, counts, 1, seed)), ("halving", other)):
                losses[name].append(expected.max() - expected[got.index])
    assert np.mean(losses["rounds"]) < 0.6 * np.mean(losses["halving"])


@pytest.mark.parametrize("guide", [None, "distilled"])
def test_real_matrices_a_stated_regret_is_kept(shared_data: Path, guide):
    lost: dict[float, list[float]] = {0.0005: [], 0.001: [], 0.005: []}
    calls: dict[float, list[float]] = {bound: [] for bound in lost}
    for file in [*(shared_data / "matrices").glob("*.npz"), *(shared_data / "pools_fr-en").glob("*.npz")]:
        with np.load(file) as data:
            matrix, counts = data["target"].astype(float), data["counts"].astype(np.int64)
            guides = [] if guide is None else [data[guide].astype(float)]
        expected = matrix @ (counts / counts.sum())
        for bound, losses in lost.items():
            got = decode(matrix, counts, 64, 1, guides, max_regret=bound)
            losses.append(expected.max() - expected[got.index])
            calls[bound].append(got.calls["matrix"] / counts.sum())
    for bound, losses in lost.items():
        assert np.mean(losses) <= 1.2 * bound
    assert np.mean(calls[0.005]) < np.mean(calls[0.001]) < np.mean(calls[0.0005]) < 40


def test_a_guide_that_does_not_agree_gets_no_more_of_its_budget():
    matrix, counts = clusters(7)
    random = np.random.default_rng(0)
    useless = matrix[random.permutation(60)][:, random.permutation(60)]
    calls = {
        name: decode(matrix, counts, 64, 0, [guide], max_regret=1e-6).calls["guide0"]
        for name, guide in (("useless", useless), ("good", matrix + 0.01 * random.normal(size=matrix.shape)))
    }
    assert calls["useless"] < calls["good"]


def test_the_first_few_pseudo_references_stand_for_all_without_bias():
    shares = np.random.default_rng(0).dirichlet(np.full(12, 0.7))
    values = np.argsort(np.argsort(shares)).astype(float)  # what the heavy have most of
    samples = [drawn(shares, seed, heavy=0) for seed in range(3000)]
    estimates = [sample.weights(7) @ values[sample.order[:7]] for sample in samples]
    assert np.mean(estimates) == pytest.approx(shares @ values, abs=0.1)


def fitted(matrix, shares, depths, guides=()):
    """A model fitted once for each of the depths, all candidates against the first columns, and its last estimate."""
    columns = drawn(shares)
    model = Additive(columns, np.ones((len(matrix), 1)), list(guides), np.random.default_rng(0))
    for depth in depths:
        rows, places = (index.ravel() for index in np.indices((len(matrix), depth)))
        got = model.fit(matrix[rows, columns.order[places]], rows, places)
    return model, got


def test_variances_widen_where_pseudo_references_come_in_kinds_and_only_there():
    even = np.full(60, 1 / 60)
    noise = np.random.default_rng(0).normal(size=(60, 60))
    assert np.mean([fitted(clusters(seed)[0], even, (2, 4, 8))[0].widening for seed in range(10)]) > 2
    assert fitted(noise, even, (2, 4, 8))[0].widening < 2


def test_a_guide_with_the_target_s_residuals_makes_means_of_few_scores_better():
    errors = {}
    for name in ("none", "guide"):
        lost = []
        for seed in range(10):
            matrix, counts = clusters(seed)
            shares = counts / counts.sum()
            columns = drawn(shares)
            block = matrix[:, columns.order[:30]]
            left = block - block.mean(axis=1, keepdims=True)
            guides = [] if name == "none" else [left - left.mean(axis=0)]
            truth = matrix @ shares
            lost.append(np.std(fitted(matrix, shares, (3,), guides)[1].mean - truth))
        errors[name] = np.mean(lost)
    assert errors["guide"] < 0.95 * errors["none"]


def test_the_regret_of_a_leader_is_that_of_this_leader():
    matrix, counts = clusters(2)
    _, got = fitted(matrix, counts / counts.sum(), (30,))
    best, worst = int(np.argmax(got.mean)), int(np.argmin(got.mean))
    assert got.regret(worst) == pytest.approx(got.mean[best] - got.mean[worst], rel=0.1)
    assert got.regret(best) < 0.1 * got.regret(worst)
    assert got.confidence(best) > 0.3 > got.confidence(worst)


def test_a_candidate_that_nobody_has_scored_is_the_best_as_often_as_any_other():
    means = np.append(np.linspace(0.0, 1.0, 19), 0.0)
    errors = np.append(np.full(19, 1e-6), np.inf)
    beliefs = Beliefs.of(means, errors, np.zeros(20))
    beyond = beliefs.chances[19][beliefs.grid > 1.0].sum()
    assert beyond == pytest.approx(1 / 20, rel=0.1)
    told = Beliefs.of(means, errors, np.append(means[:19], 0.9))
    assert told.center[19] > 0.8  # what was known beforehand says that it is one of the best
    assert beliefs.center[19] == pytest.approx(0.5, abs=0.1)


def test_the_first_round_takes_the_candidates_drawn_most_and_later_steps_fewer_and_fewer():
    matrix, counts = clusters(8)
    first = decode(matrix, counts, 0.5).trials[0]
    taken = np.unique(first.rows)
    assert counts[taken].min() >= np.sort(counts)[-len(taken)]
    assert len(taken) < 60
    sizes = decode(matrix, counts, 12, max_regret=1e-9).rounds
    assert sizes[0] == 60
    assert 2 * sizes[5] <= 60 + 1  # after the first step's five rounds half as many take part


def test_a_budget_is_spent_even_where_the_best_have_no_scores_to_come():
    matrix, _ = clusters(9)
    got = decode(matrix, np.ones(60, dtype=np.int64), 55)
    assert 60 * 55 >= got.calls["matrix"] >= 0.97 * 60 * 55


def test_auto_is_a_part_of_the_utility_s_scale_and_the_cost_is_what_was_spent():
    matrix, counts = clusters(10)
    texts = tuple(map(str, range(60)))
    calls = []
    for scale in (1.0, 100.0):
        target = MatrixUtility(scale * matrix, texts, scale=scale, parameters=50)
        guide = MatrixUtility(matrix, texts, name="guide", parameters=5)
        decoder = RoundsMBR(max_regret="auto")
        got = decoder.decode(Candidates(texts, counts), None, target, [guide])
        calls.append(got.calls)
        pairs = counts.sum() ** 2
        assert got.paper_cost == pytest.approx((50 * got.calls["matrix"] + 5 * got.calls["guide"]) / pairs)
    assert calls[0] == calls[1]
    assert calls[0]["matrix"] < 3600
