"""Put this folder and a model's files together into a repository that can be uploaded, or loaded as it is.

python examples/hub_folder/assemble.py OUTPUT
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from hf_acpmbr.embedded import TRANSLATOR

HERE = Path(__file__).resolve().parent


def assemble(output: Path, model: Path = TRANSLATOR) -> Path:
    """The model's files with this folder's README.md and custom_generate/; an output that exists is refused."""
    if output.exists():
        raise FileExistsError(f"{output} is there already: name a new folder")
    shutil.copytree(model, output, ignore=shutil.ignore_patterns("README.md"))
    shutil.copytree(HERE / "custom_generate", output / "custom_generate", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "README.md", output)
    return output


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="folder to make")
    parser.add_argument("--model", type=Path, default=TRANSLATOR, help="folder of a model; default: the embedded one")
    args = parser.parse_args()
    print(f"{assemble(args.output, args.model)}: hf upload <user>/<repository> {args.output}")
