"""The page of the Space: a table of texts in, the scores out.

evaluate's own widget asks for parts that gradio no longer has, so the page is made here.
"""

import sys
from pathlib import Path

import evaluate
import gradio

# The folder of this file is the Space; the configuration is the utility that it shows.
metric = evaluate.load(str(Path(__file__).resolve().parent), sys.argv[1] if len(sys.argv) > 1 else "chrf")
columns = list(metric.features)


def compute(rows: list[list[str]]) -> dict[str, object]:
    """The scores of the rows that are filled in; empty rows of the table are left out."""
    filled = [row for row in rows if any(row)]
    if not filled or not all(text for row in filled for text in row):
        raise gradio.Error(f"fill in at least one row, each with {' and '.join(columns)}")
    return metric.compute(**{name: [row[k] for row in filled] for k, name in enumerate(columns)})


page = gradio.Interface(
    fn=compute,
    inputs=gradio.Dataframe(headers=columns, datatype="str", type="array", row_count=2),
    outputs=gradio.JSON(label=metric.name),
    title=f"Metric: {metric.config_name}",
    description=metric.info.description,
)

if __name__ == "__main__":
    page.launch()
