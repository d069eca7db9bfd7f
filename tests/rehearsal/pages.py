"""The snippets and command lines of README, docs, examples and evaluation that need something published."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from hf_acpmbr.scoring.load import UTILITIES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_SERVER = "base_url="
_HUB_ID = re.compile(r"(?<![\w/])[A-Za-z][\w-]+/[A-Za-z][\w.-]*\d(M|B|B-Instruct|-en-de)\b")
_ON_THE_HUB = [
    name for name, entry in UTILITIES.items() if re.fullmatch(r"[\w-]+/[\w.-]+", str(entry.options.get("checkpoint")))
]
_UTILITY = re.compile("|".join(rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in _ON_THE_HUB))


def needs_hub(text: str) -> bool:
    """Whether a model's hub id stands in the text, or the name of a utility whose checkpoint is on the Hub."""
    return bool(_HUB_ID.search(text) or _UTILITY.search(text))


def snippets(page: Path) -> list[str]:
    """The Python blocks of a page, all if one of them needs the Hub: they build on each other."""
    blocks: list[str] = re.findall(r"(?<! -->\n)```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    blocks = [block for block in blocks if _SERVER not in block]  # they need a service that runs
    return blocks if any(map(needs_hub, blocks)) else []


def commands(*pages: Path, program: str, mark: str = "") -> list[list[str]]:
    """The command lines of a program that need the Hub, or that hold the mark, split as a shell does."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    text = re.sub(r"\\+\n\s*", "", text)
    lines = re.findall(rf"^ *({re.escape(program)} .*)$", text, flags=re.M)
    return [shlex.split(line, comments=True) for line in lines if (mark in line if mark else needs_hub(line))]
