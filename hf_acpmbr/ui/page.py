"""The page's layout and events in gradio, the only file that needs it. What is shown comes from `views`."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from html import escape
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from ..generation.models import EMBEDDED
from .analysis import Analysis, Workbench
from .session import DRAW, NO_GUIDE, OF_THE_RECIPE, OPENING, PASTE, RECIPES, Cancelled, Form, Jobs, Limits, Offer
from .views import candidates_table, comparison, costs, headline, heat_map, rounds_picture

if TYPE_CHECKING:
    from gradio import Blocks, Request
    from gradio.components import Component

Updates: TypeAlias = list[object]  # new values of the components that an event changes
_HERE = Path(__file__).parent
_LOG = logging.getLogger(__name__)
_INTRO = """# Minimum Bayes Risk decoding
Of many candidate translations, choose the one that agrees best with the others, by a quality metric.
Only some of the pairs are scored; a cheaper metric may help to find them."""
_LANGUAGES = {"en": "English", "de": "German"}
_EXAMPLES = [
    [OPENING, "en", "de"],
    ["The weather was so bad that we stayed at home all day.", "en", "de"],
    ["Morgen fahren wir mit dem ersten Zug nach Hamburg.", "de", "en"],
]
# The tabs of the result: what each shows, and the files that its HTML component is made of.
_VIEWS: dict[str, tuple[Callable[[Analysis], object], dict[str, str]]] = {
    "Choice": (comparison, {}),
    "Candidates": (candidates_table, {"js_on_load": "table.js"}),
    "Matrix": (heat_map, {"html_template": "heatmap.html", "js_on_load": "heatmap.js"}),
    "Cost": (costs, {}),
    "Rounds": (rounds_picture, {}),
}


def gradio() -> ModuleType:
    """Import gradio, or say how to get it."""
    try:
        return importlib.import_module("gradio")
    except ImportError as error:
        raise ImportError(
            f"the page needs gradio ({error}): pip install '.[ui]' in a copy of the repository"
        ) from error


def message(said: str | Exception) -> str:
    """Write a line above the result; screen readers read errors out, and details of unexpected ones are logged."""
    if isinstance(said, (str, Cancelled)):
        return f"<div class='message' role='status'>{escape(str(said))}</div>"
    text = " ".join(str(said).split())
    if not isinstance(said, (ValueError, OSError, ImportError)):
        _LOG.exception("the job failed", exc_info=said)
        text = f"this failed unexpectedly ({type(said).__name__}); the log says more"
    return f"<div class='message error' role='alert'>{escape(text)}</div>"


def _named(languages: Sequence[str]) -> list[tuple[str, str]]:
    return [(_LANGUAGES.get(code, code), code) for code in languages]


class Page:
    """Components and what happens when they are used."""

    def __init__(self, workbench: Workbench) -> None:
        self.gr = gradio()
        self.workbench = workbench
        self.jobs = Jobs()
        offer = workbench.offer
        self.languages = workbench.languages(offer.models[0])
        source, target = [*self.languages[:2], None, None][:2]
        self.start = Form(
            OPENING,
            model=offer.models[0],
            source_language=source,
            target_language=target,
            target=offer.targets[0],
            guide=(*offer.guides, NO_GUIDE)[0],
            candidates=min(Form.candidates, workbench.limits.candidates),
        )
        self._opening: Analysis | None = None  # computed once for all visitors

    def build(self) -> Blocks:
        """Lay out the page."""
        gr, limits, start = self.gr, self.workbench.limits, self.start
        # The page takes and writes no files; what is uploaded past it goes when the server ends, or within the hour.
        with gr.Blocks(title="hf_acpmbr", analytics_enabled=False, delete_cache=(600, 3600)) as blocks:
            gr.Markdown(_INTRO)
            form = self._form()
            with gr.Row():
                run = gr.Button("Translate", variant="primary", scale=4, elem_id="run")
                cancel = gr.Button("Cancel", scale=1, min_width=100, elem_id="cancel")
            status = self._html("status", value=message("Type a sentence and press Translate."))
            with gr.Column(visible=False) as result:
                views = []
                for name, (_, options) in _VIEWS.items():
                    with gr.Tab(name):
                        views.append(self._html(name.lower(), **{key: _read(file) for key, file in options.items()}))
            how = {
                "inputs": [form[field.name] for field in fields(Form)],
                "outputs": [status, result, *views],
                "concurrency_id": "job",
            }
            gr.on([run.click, form["source"].submit], self._for_visitor(self.run), **how)
            if start.model == EMBEDDED == start.target:  # others may take minutes that nobody asked for
                blocks.load(self._for_visitor(self.run), **how, show_progress="hidden")
            cancel.click(self._for_visitor(self.cancel), None, status, queue=False)
            blocks.unload(self._for_visitor(self.leave))
            names = ("pasted", "candidates", "model", "source_language", "target_language")
            switched = [*(form[name] for name in names), run]
            gr.on([form["mode"].change, form["model"].change], self.switch, [form["mode"], form["model"]], switched)
        blocks.queue(max_size=limits.waiting, default_concurrency_limit=limits.jobs, api_open=False)
        return blocks

    def _form(self) -> dict[str, Component]:
        """Make one component per field of the form."""
        gr, offer, limits, start = self.gr, self.workbench.offer, self.workbench.limits, self.start
        form: dict[str, Component] = {}

        def choose(name: str, label: str, choices: Sequence[object], **options: object) -> None:
            value = getattr(start, name)
            form[name] = gr.Dropdown(choices, value=value, label=label, min_width=120, elem_id=name, **options)

        with gr.Row():
            with gr.Column(scale=3):
                modes = [("Translate with a model", DRAW), ("Paste candidates", PASTE)]
                form["mode"] = gr.Radio(modes, value=DRAW, show_label=False, container=False, elem_id="mode")
                longest = limits.source_characters
                form["source"] = gr.Textbox(start.source, label="Source", lines=3, max_length=longest, elem_id="source")
                label = "Candidates, one per line; a line that repeats counts as drawn again"
                form["pasted"] = gr.Textbox("", label=label, lines=5, visible=False, elem_id="pasted")
            with gr.Column(scale=2):
                with gr.Row():
                    for name, label in (("source_language", "From"), ("target_language", "To")):
                        choose(name, label, _named(self.languages), visible=bool(self.languages))
                with gr.Row():
                    choose("recipe", "Recipe", RECIPES)
                    form["candidates"] = gr.Slider(2, limits.candidates, start.candidates, step=1, label="Samples")
        with gr.Accordion("Model, metrics and decoder", open=False):
            with gr.Row():
                choose("model", "Model", offer.models)
                choose("target", "Metric that decides (target)", offer.targets)
                choose("guide", "Cheaper metric that guides (distilled)", (*offer.guides, NO_GUIDE))
            with gr.Row():
                choose("decoder", "Decoder", (OF_THE_RECIPE, *offer.decoders))
                form["seed"] = gr.Number(start.seed, label="Seed", precision=0, minimum=0)
                label = "Budget: target scores per candidate (0: the recipe's)"
                form["scores"] = gr.Slider(0, 64, start.scores, step=0.5, label=label, elem_id="scores")
            with gr.Row():
                label = "Weight of the log-probability, in the metric's units per nat (chrF: 1 to 1.5)"
                form["logprob_weight"] = gr.Number(start.logprob_weight, label=label, minimum=0, step=0.005)
                form["add_beam"] = gr.Checkbox(start.add_beam, label="The model's own output is a candidate too")
                label = "Draw until sure, at most that number of samples"
                form["until_sure"] = gr.Checkbox(start.until_sure, label=label, elem_id="until_sure")
            label = "Score all pairs too: full MBR and the true quality"
            form["score_all"] = gr.Checkbox(start.score_all, label=label)
        if set(_LANGUAGES) <= set(self.languages):
            filled = [form[name] for name in ("source", "source_language", "target_language")]
            gr.Examples(_EXAMPLES, filled, example_labels=[text for text, *_ in _EXAMPLES])
        return form

    def _html(self, name: str, **options: object) -> Component:
        """Make HTML that the page's own style sheet covers."""
        settings = {"value": "", "js_on_load": None, **options}
        return self.gr.HTML(elem_id=name, apply_default_css=False, **settings)

    def switch(self, mode: str, model: str) -> Updates:
        """Show what drawing from this model needs, or what pasting needs."""
        draws, update = mode == DRAW, self.gr.update
        known = self.workbench.languages(model) if model in self.workbench.offer.models else []
        languages: Updates = [update(visible=False, value=None)] * 2
        if draws and known:
            languages = [update(choices=_named(known), value=value, visible=True) for value in known[:2]]
        button = "Translate" if draws else "Choose"
        return [update(visible=not draws), *[update(visible=draws)] * 2, *languages, button]

    def run(self, visitor: str, *values: Any) -> Iterator[Updates]:
        """Run the form; every step of progress is one update of the status line."""
        form, unchanged = Form(*values), [self.gr.skip()] * (1 + len(_VIEWS))
        event = self.jobs.start(visitor)
        try:
            analysis = self._opening if form == self.start else None
            steps = self.workbench.analyse(form, event.is_set)
            while analysis is None:
                try:
                    yield [message(f"{next(steps)} …"), *unchanged]
                except StopIteration as stop:
                    analysis = stop.value
            if form == self.start:
                self._opening = analysis
            shown = [view(analysis) for view, _ in _VIEWS.values()]
            yield [message(headline(analysis)), self.gr.update(visible=True), *shown]
        except Exception as error:
            yield [message(error), *unchanged]
        finally:
            self.jobs.end(visitor, event)

    def cancel(self, visitor: str) -> Iterator[str]:
        """Cancel the visitor's job."""
        yield message("cancelled" if self.jobs.cancel(visitor) else "nothing to cancel")

    def leave(self, visitor: str) -> Iterator[None]:
        """Cancel the job of a visitor who has closed the page."""
        self.jobs.cancel(visitor)
        yield

    def _for_visitor(self, job: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return the job as gradio calls it: with its request, which it recognises by the annotation."""

        def run(request: Request, *values: object) -> Iterator[Any]:
            yield from job(str(request.session_hash), *values)

        run.__annotations__ = {"request": self.gr.Request}
        return run


def _read(name: str) -> str:
    """Read a file of the page: its script, template or style sheet."""
    return (_HERE / name).read_text(encoding="utf-8")


def launch(
    offer: Offer | None = None,
    limits: Limits | None = None,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    browser: bool = False,
    wait: bool = True,
) -> Blocks:
    """Serve the page; with wait=False return the running gradio Blocks, whose `close()` ends it."""
    page = Page(Workbench(offer, limits))
    blocks = page.build()
    blocks.launch(
        server_name=host,
        server_port=port,
        inbrowser=browser,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size=1,
        css=_read("page.css"),
        theme=page.gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]),
        footer_links=[],
        ssr_mode=False,
    )
    if wait:
        print(f"The page is at {blocks.local_url} (Ctrl+C ends it).", flush=True)
        blocks.block_thread()
    return blocks
