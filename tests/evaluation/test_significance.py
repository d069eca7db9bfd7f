from __future__ import annotations

import numpy as np
import pytest
from sacrebleu.significance import PairedTest

from evaluation.report.layout import Bold, Layout
from evaluation.report.significance import Comparison, corpus_metric, paired_bootstrap, resampled

RESAMPLES = 400


def plain_bootstrap(baseline: np.ndarray, system: np.ndarray, seed: int) -> tuple[float, float, float]:
    """Koehn's paired bootstrap in a few lines: mean, half of the 95% interval, p."""
    random = np.random.default_rng(seed)
    chosen = random.choice(len(system), size=(RESAMPLES, len(system)), replace=True)
    ours, theirs = system[chosen].mean(1), baseline[chosen].mean(1)
    ordered = np.sort(ours)
    cut = RESAMPLES // 40
    differences = np.abs(ours - theirs)
    extreme = (differences - differences.mean() > abs(system.mean() - baseline.mean())).sum()
    return ours.mean(), (ordered[-cut - 1] - ordered[cut]) / 2, (extreme + 1) / (RESAMPLES + 1)


@pytest.mark.parametrize("shift", [0.0, 0.3, 5.0])
def test_means_of_sentence_scores_are_resampled_as_a_plain_program_does(shift):
    random = np.random.default_rng(0)
    baseline = random.normal(50, 5, 60)
    system = baseline + random.normal(shift, 1, 60)
    first, result = paired_bootstrap([resampled(scores, resamples=RESAMPLES) for scores in (baseline, system)])
    mean, interval, p = plain_bootstrap(baseline, system, 12345)
    assert first.p_value is None
    assert result.score == pytest.approx(system.mean())
    assert result.mean == pytest.approx(mean)
    assert result.interval == pytest.approx(interval)
    assert result.p_value == pytest.approx(p)
    assert result.better == (shift > 0 or system.mean() > baseline.mean())
    assert (result.p_value < 0.05) == (shift > 0.1)


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_corpus_metrics_are_resampled_as_sacrebleu_does(name):
    references = [f"the {word} cat sat on mat {k}" for k, word in enumerate(["big", "small", "old", "new"] * 8)]
    systems = [
        [text.replace("sat", "sits") for text in references],
        [text.replace("cat", "dog") for text in references],
    ]
    systems[1][::3] = references[::3]
    _, scores = PairedTest(
        [("a", systems[0]), ("b", systems[1])], {"x": corpus_metric(name)}, [references], "bs", RESAMPLES
    )()
    found = paired_bootstrap([resampled(texts, name, references, RESAMPLES) for texts in systems], name != "ter")
    for ours, theirs in zip(found, next(values for key, values in scores.items() if key != "System"), strict=True):
        assert (ours.score, ours.mean) == (pytest.approx(theirs.score), pytest.approx(float(theirs.mean), rel=1e-4))
        assert ours.interval == pytest.approx(float(theirs.ci), rel=1e-3)
        assert ours.p_value == pytest.approx(theirs.p_value)


def test_only_improvements_are_significant():
    assert Comparison(2.0, 2.0, 0.1, 0.01, better=True).significant
    assert not Comparison(2.0, 2.0, 0.1, 0.01, better=False).significant
    assert not Comparison(2.0, 2.0, 0.1, 0.2, better=True).significant
    assert not Comparison(2.0, 2.0, 0.1, None, better=True).significant


def test_corpus_metrics_are_sacrebleu_s():
    for name in ("bleu", "chrf", "chrf++", "ter"):
        score = corpus_metric(name).corpus_score(["a b c d"], [["a b c d"]]).score
        assert score == pytest.approx(0 if name == "ter" else 100)


def test_every_form_of_a_table():
    layout = Layout("T", ("m", "d", "x ↓"), (("a_b", "<i>", Bold("1")), None), ("note",))
    assert "1*" in layout.text()
    assert "| a_b | &lt;i&gt; | **1** |" in layout.markdown()
    assert r"a\_b & <i> & \textbf{1} \\" in layout.latex()
    assert "<td>&lt;i&gt;</td><td class=n><b>1</b></td>" in layout.html()


def test_names_cannot_leave_their_place_in_a_table():
    name = "=1+1|x\n\\input{a}$~^<b>"
    layout = Layout(name, ("m",), ((name,),), (name,))
    latex = layout.latex()
    assert r"=1+1|x \textbackslash{}input\{a\}\$\textasciitilde{}\textasciicircum{}<b> \\" in latex
    assert all(line.startswith("%") for line in latex.splitlines() if r"\input" in line), "only in comments"
    assert r"| =1+1\|x \input{a}$~^&lt;b&gt; |" in layout.markdown()
    assert "<td>=1+1|x\n\\input{a}$~^&lt;b&gt;</td>" in layout.html()
