"""What every utility keeps, whatever its method."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from hf_acpmbr.scoring import Utility, UtilitySpec

from ..metrics.cases import CASES, SOURCES, TEXTS, Case

N = len(TEXTS)
ROWS, COLUMNS = np.divmod(np.arange(N * N), N)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contracts")


@pytest.fixture(scope="module", params=CASES)
def made(request: pytest.FixtureRequest, folder: Path) -> tuple[Case, Utility, np.ndarray]:
    """A utility and its scores of every pair of texts."""
    case = CASES[request.param]
    pytest.importorskip(case.needs)
    utility = case.make(folder / request.param)
    return case, utility, prepared(utility)(ROWS, COLUMNS).reshape(N, N)


def prepared(utility: Utility):
    return utility.prepare(TEXTS, TEXTS, SOURCES[0] if utility.needs_source else None)


def aligned(utility: Utility, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    references = [TEXTS[k] for k in columns] if utility.needs_reference else None
    sources = SOURCES[:1] * len(rows) if utility.needs_source else None
    return utility.score([TEXTS[k] for k in rows], references, sources)


def test_scores_are_finite_numbers_even_of_empty_texts(made) -> None:
    _, _, matrix = made
    assert matrix.dtype == np.float64
    assert np.isfinite(matrix).all()
    assert len(np.unique(matrix.round(9))) > 3, "scores must differ, or the rest shows nothing"


def test_aligned_lists_score_as_pairs_do(made) -> None:
    case, utility, matrix = made
    np.testing.assert_allclose(aligned(utility, ROWS, COLUMNS).reshape(N, N), matrix, atol=case.tolerance, rtol=0)


def test_order_subsets_and_earlier_calls_do_not_matter(made) -> None:
    case, utility, matrix = made
    scorer, random = prepared(utility), np.random.default_rng(0)
    for size in (5, 20, N * N):
        some = random.permutation(N * N)[:size]
        found = scorer(ROWS[some], COLUMNS[some])
        np.testing.assert_allclose(found, matrix.reshape(-1)[some], atol=case.tolerance, rtol=0)


def test_batches_do_not_matter(made, folder: Path, request: pytest.FixtureRequest) -> None:
    case, utility, matrix = made
    if utility.parameters == 0:
        pytest.skip("not a network")
    small = case.make(folder / request.node.callspec.params["made"], batch_tokens=1)
    np.testing.assert_allclose(prepared(small)(ROWS, COLUMNS).reshape(N, N), matrix, atol=case.tolerance, rtol=0)


def test_repeated_pairs_are_computed_once(made) -> None:
    _, utility, _ = made
    scorer = prepared(utility)
    rows, columns = np.array([1, 1, 2, 1]), np.array([2, 2, 3, 2])
    first = scorer(rows, columns)
    assert first[0] == first[1] == first[3]
    assert scorer.calls == 2
    scorer(rows, columns)
    assert (scorer.calls, scorer.statistics.requested) == (2, 8)


def test_symmetric_utilities_are_and_reference_free_ones_look_at_no_reference(made) -> None:
    case, utility, matrix = made
    if utility.symmetric:
        unhalved = copy.copy(utility)
        unhalved.symmetric = False
        both_ways = prepared(unhalved)(ROWS, COLUMNS).reshape(N, N)
        np.testing.assert_allclose(both_ways, both_ways.T, atol=max(case.tolerance, 1e-9))
    if not utility.needs_reference:
        assert (matrix == matrix[:, :1]).all()


def test_pickles_and_copies_keep_signature_and_scores(made) -> None:
    case, utility, matrix = made
    utility.as_metric()
    for twin in (pickle.loads(pickle.dumps(utility)), copy.deepcopy(utility)):
        assert type(twin) is type(utility)
        assert twin.signature == utility.signature
        found = prepared(twin)(ROWS[:6], COLUMNS[:6])
        np.testing.assert_allclose(found, matrix.reshape(-1)[:6], atol=case.tolerance, rtol=0)


def test_as_metric_gives_the_same_scores(made) -> None:
    import evaluate

    case, utility, matrix = made
    metric = utility.as_metric()
    assert isinstance(metric, evaluate.Metric)
    inputs = {"predictions": [TEXTS[k] for k in ROWS[:9]]}
    if utility.needs_reference:
        inputs["references"] = [TEXTS[k] for k in COLUMNS[:9]]
    if utility.needs_source:
        inputs["sources"] = SOURCES[:1] * 9
    assert set(metric.features) == set(inputs)
    result = metric.compute(**inputs)
    np.testing.assert_allclose(result["scores"], matrix.reshape(-1)[:9], atol=case.tolerance, rtol=0)
    assert result["mean_score"] == pytest.approx(np.mean(result["scores"]))
    metric.add_batch(**inputs)
    assert metric.compute() == result


def test_the_signature_is_one_word(made) -> None:
    _, utility, _ = made
    assert utility.signature == utility.signature
    assert utility.signature.startswith((utility.name, f"evaluate:{utility.name}"))
    assert not any(letter.isspace() for letter in utility.signature)


def test_what_was_loaded_by_name_can_be_written_as_json(made) -> None:
    _, utility, _ = made
    spec = UtilitySpec.of(utility)
    if utility.loaded_as is None:
        with pytest.raises(ValueError, match="is a Python object, which cannot be written as JSON"):
            spec.to_dict()
        return
    written = json.loads(json.dumps(spec.to_dict()))
    assert "trust_remote_code" not in written, "whoever loads it again has to give it"
    again = UtilitySpec.of(written).load(trust_remote_code=True)
    assert again.signature == utility.signature


def test_abilities_are_those_of_the_kernel(made) -> None:
    case, utility, matrix = made
    scorer = prepared(utility)
    vectors = hasattr(scorer.kernel, "vector_scores")
    averages = vectors or hasattr(scorer.kernel, "aggregate_scores")
    assert utility.can_aggregate == averages or not utility.needs_reference
    assert utility.has_vectors == vectors or not utility.needs_reference
    rows = np.random.default_rng(0).permutation(N)
    matrix = matrix[rows]
    tolerance = max(case.tolerance, 1e-9)
    if utility.can_aggregate:
        # Averages of a single reference are that reference.
        np.testing.assert_allclose(scorer.aggregate_scores(rows, np.eye(N)), matrix, atol=tolerance)
    else:
        with pytest.raises(TypeError, match="cannot average its references"):
            scorer.aggregate_scores(rows, np.eye(N))
    if utility.has_vectors:
        np.testing.assert_allclose(scorer.vector_scores(rows, scorer.vectors()[1]), matrix, atol=tolerance)
    else:
        with pytest.raises(TypeError, match="cannot compare sentence vectors"):
            scorer.vectors()
