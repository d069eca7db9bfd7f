"""The whole estimator of rounds against the same in plain loops, from scores to the stated loss."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hf_acpmbr.decoding.rounds.model import Summand, believe
from hf_acpmbr.decoding.rounds.reference_weights import Columns
from hf_acpmbr.decoding.rounds.scores import Effects, RaggedScores

N, M, LEADER, TRUST = 9, 40, 2, 0.7
DEPTHS = [5, 16, 16, 5, 0, 12, 9, 16, 5]
GUIDE_DEPTHS = [40, 40, 40, 9, 9, 40, 40, 40, 12]


def ordered_rule(columns: Columns, d: int) -> dict[str, list[float]]:
    """What to make of the first d columns: weights, residual maker, and how sure the estimate is."""
    order = columns.order.tolist()
    w = [float(columns.shares[j]) for j in order]
    z = [[1.0, *columns.profiles[j].tolist()] for j in order]
    rest = sum(w[d:])
    if d == len(order):
        return {"weights": w, "doubt": 0.0, "degrees": 1e6}
    later = float(columns.arrivals[order[d]])
    always = [columns.arrivals[order[k]] == 0 for k in range(d)]
    chance = [1.0 if always[k] else 1 - math.exp(-w[k] * later) for k in range(d)]
    stands = [w[k] * (1 - chance[k]) / chance[k] for k in range(d)]
    start = [s / sum(stands) if sum(stands) > 1e-12 else 1 / d for s in stands]
    mixed = [0.5 / d + 0.5 * s for s in start]
    size = 1 / sum(x * x for x in mixed)
    p = len(z[0])
    gap = [
        sum(w[k] * z[k][a] for k in range(d, len(w))) / rest - sum(start[k] * z[k][a] for k in range(d))
        for a in range(p)
    ]
    ridge = [0.0] + [4.0 / size] * (p - 1)
    gram = [[sum(mixed[k] * z[k][a] * z[k][b] for k in range(d)) for b in range(p)] for a in range(p)]
    inverse = np.linalg.inv(np.array(gram) + np.diag(ridge))
    moved = [sum(inverse[a, b] * gap[b] for b in range(p)) for a in range(p)]
    extra = [rest * (start[k] + mixed[k] * sum(z[k][a] * moved[a] for a in range(p))) for k in range(d)]
    bias = rest**2 * sum(ridge[a] * moved[a] ** 2 for a in range(p))
    telling = [0.0 if always[k] and d - sum(always) >= 4 else mixed[k] for k in range(d)]
    total = sum(x * x for x in extra)
    fit = [
        [mixed[k] * sum(z[j][a] * inverse[a, b] * z[k][b] for a in range(p) for b in range(p)) for k in range(d)]
        for j in range(d)
    ]
    leverage = [fit[k][k] for k in range(d)]
    return {
        "weights": [w[k] + extra[k] for k in range(d)],
        "doubt": total + sum(x * x for x in w[d:]) + bias,
        "degrees": max(size - sum(inverse[a, b] * gram[b][a] for a in range(p) for b in range(p)), 0.5),
        "blame": [0.5 * extra[k] ** 2 / total + 0.5 * telling[k] / sum(telling) for k in range(d)],
        "keep": [1 - min(x, 0.8) for x in leverage],
        "fit": fit,
    }


def residuals(rule, scores):
    return [
        (s - sum(f * other for f, other in zip(fit, scores, strict=True))) / keep
        for s, fit, keep in zip(scores, rule["fit"], rule["keep"], strict=True)
    ]


def weighted(weights, values):
    return sum(w * v for w, v in zip(weights, values, strict=True))


def compared_by_hand(columns, centred):
    """Mean, mean square, doubt, degrees and slope of each candidate against the leader; centred[i] is its scores."""
    lead, found = centred[LEADER], []
    first = ordered_rule(columns, len(lead))
    expected = weighted(first["weights"], lead)
    leader = (0.0, 0.0, 1e6)
    if first["doubt"]:
        left = residuals(first, lead)
        leader = weighted(first["blame"], [x * x for x in left]), first["doubt"], first["degrees"]
    for i in range(N):
        d = min(len(centred[i]), len(lead))
        if not d or i == LEADER:
            found.append(
                (expected if i == LEADER else math.nan, 0.0, 0.0, first["degrees"] if i == LEADER else 0.0, 0.0)
            )
            continue
        rule, own, other = ordered_rule(columns, d), centred[i][:d], lead[:d]
        if not rule["doubt"]:
            found.append((weighted(rule["weights"], own), 0.0, 0.0, 1e6, 0.0))
            continue
        its, mine = residuals(rule, other), residuals(rule, own)
        together = weighted(rule["blame"], [a * b for a, b in zip(its, mine, strict=True)])
        alone = weighted(rule["blame"], [a * a for a in its])
        slope = min(max(together / (alone * (1 + 1 / (rule["degrees"] + 1))), 0.0), 1.0)
        mean = weighted(rule["weights"], own) + slope * (expected - weighted(rule["weights"], other))
        square = weighted(rule["blame"], [(a - slope * b) ** 2 for a, b in zip(mine, its, strict=True)])
        found.append((mean, square, rule["doubt"], rule["degrees"], slope))
    return found, leader


def beliefs_by_hand(parts, columns, own, features, bonus):
    """Means, deviations, and the loss with its risk at 0.01; a part is (scores per candidate, effects)."""
    share = [float(columns.shares[columns.order[own[i]]]) if own[i] < M else 0.0 for i in range(N)]
    estimate, typical, pieces = [0.0] * N, [0.0] * N, []
    for scores, effect in parts:
        centred = [
            [effect.row[i] if k == own[i] else s - effect.column[k] for k, s in enumerate(scores[i])] for i in range(N)
        ]
        pieces.append(compared_by_hand(columns, centred))
        for i in range(N):
            estimate[i] += pieces[-1][0][i][0]
            typical[i] += effect.row[i] + (effect.column[own[i]] if own[i] < len(effect.column) else 0.0)
    seen_own = {i: sum(scores[i][own[i]] for scores, _ in parts) for i in range(N) if own[i] < len(parts[0][0][i])}
    for i in range(N):
        itself = seen_own.get(i, np.mean(list(seen_own.values())) if own[i] < M and seen_own else typical[i])
        estimate[i] += share[i] * (itself - typical[i])
    error, relative = [0.0] * N, [0.0] * N
    for found, leader in pieces:
        usable = [i for i in range(N) if math.isfinite(estimate[i]) and found[i][2] > 0]
        middle = np.median([estimate[i] + bonus[i] for i in usable]) if usable else 0.0
        top = [i for i in usable if estimate[i] + bonus[i] >= middle]
        heavy = [min(found[i][3], 20) ** 2 for i in top]
        pooled = weighted(heavy, [found[i][1] for i in top]) / sum(heavy) if top else 0.0
        its = (6 * pooled + leader[2] * leader[0]) / (4 + leader[2]) * leader[1]
        for i in range(N):
            _, square, doubt, degrees, slope = found[i]
            mine = (6 * pooled + degrees * square) / (4 + degrees) * doubt
            error[i] += TRUST * (its if i == LEADER else mine + slope**2 * its)
            relative[i] += TRUST * (mine + (1 - slope) ** 2 * its)
    known = [i for i in range(N) if math.isfinite(estimate[i])]
    spread = float(np.var([estimate[i] for i in known]))
    least = 0.05 * spread
    variance = max(spread - np.mean([error[i] for i in known]), least)
    design = [[1.0, *features[i]] for i in range(N)]
    p = len(design[0])
    for _ in range(3):
        trust = {i: 1 / (error[i] + variance) for i in known}
        system = np.diag([0.0] + [0.01 * sum(trust.values())] * (p - 1))
        right = np.zeros(p)
        for i in known:
            system += trust[i] * np.outer(design[i], design[i])
            right += trust[i] * estimate[i] * np.array(design[i])
        prior = [float(np.linalg.solve(system, right) @ design[i]) for i in range(N)]
        squares = sum(t * t for t in trust.values())
        signal = sum(trust[i] ** 2 * ((estimate[i] - prior[i]) ** 2 - error[i]) for i in known) / squares
        variance = max(max(signal, 0.0) + 2 * math.sqrt(2 / squares), least)
    mean, deviation = [], []
    for i in range(N):
        if i not in known:
            mean.append(prior[i] + bonus[i])
            deviation.append(math.sqrt(variance))
            continue
        mean.append(prior[i] + variance / (variance + error[i]) * (estimate[i] - prior[i]) + bonus[i])
        deviation.append(0.0 if i == LEADER else math.sqrt(2 * variance * relative[i] / (relative[i] + 2 * variance)))
    return mean, deviation


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_beliefs_are_those_of_plain_loops(guided, seed):
    random = np.random.default_rng(seed)
    shares = random.dirichlet(np.full(M, 2.0))
    matrix = 0.5 + 0.1 * random.normal(size=(N, M)) + 0.05 * random.normal(size=(N, 1)) + 0.1 * random.normal(size=M)
    candidate = np.array([*range(5), *[-1] * 3, *range(5, 9), *[-1] * (M - 12)])
    columns = Columns.draw(shares, np.arange(M), candidate, random)
    own = columns.place_of_own(N)
    columns.learn(matrix[:, columns.order[:2]])
    features, bonus = random.normal(size=(N, 1)), 0.01 * random.normal(size=N)

    def prefixes(values, depths):
        rows = np.repeat(np.arange(N), depths)
        places = np.concatenate([np.arange(d) for d in depths]).astype(np.int64)
        return RaggedScores.none(N).with_new(rows, places, values[rows, columns.order[places]])

    slope = 0.6 if guided else 0.0
    guide = matrix + 0.05 * random.normal(size=(N, M))
    target, cheap = prefixes(matrix, DEPTHS), prefixes(guide, GUIDE_DEPTHS)
    parts = [Summand(target, target.values - slope * cheap.at(target))]
    if guided:
        parts.append(Summand(cheap, slope * cheap.values))
    effects = [Effects.fit(part.scores, part.values, own, None) for part in parts]
    by_hand = []
    for part, effect in zip(parts, effects, strict=True):
        per_row = [[float(v) for v in part.values[part.scores.rows == i]] for i in range(N)]
        by_hand.append((per_row, effect))
    if guided:  # a score of the target against itself is the sum of both parts
        assert all(len(guided_row) >= len(row) for row, guided_row in zip(by_hand[0][0], by_hand[1][0], strict=True))

    got = believe(parts, effects, columns, own, features, bonus, LEADER, TRUST)
    mean, deviation = beliefs_by_hand(by_hand, columns, own, features, bonus)
    np.testing.assert_allclose(got.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(got.deviation, deviation, rtol=1e-6, atol=1e-12)

    draws = np.array(mean) + np.array(deviation) * np.random.default_rng(1).normal(size=(400_000, N))
    lost = np.maximum(draws.max(axis=1) - mean[LEADER], 0)
    stated, _, risk = got.outlook(0.01)
    assert stated == pytest.approx(lost.mean(), rel=0.02)
    assert risk == pytest.approx((lost > 0.01).mean(), abs=0.005)
