"""Before a release: README.md's links to files of the repository become links to its address, and so does the metadata.

    python .github/absolute_links.py https://github.com/OWNER/NAME v1.2.3

On PyPI a relative link leads nowhere, and only the release knows where the repository is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#|mailto:)(?P<path>[^)\s]+)\)")


def absolute(markdown: str, repository: str, tag: str) -> str:
    """The text with absolute links; pictures are asked for as files, pages as pages."""

    def replaced(link: re.Match[str]) -> str:
        view = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({repository}/{view}/{tag}/{link['path']})"

    return LINK.sub(replaced, markdown)


def with_urls(project: str, repository: str) -> str:
    """pyproject.toml with the repository's address among its links."""
    found = f'[project.urls]\nRepository = "{repository}"\nIssues = "{repository}/issues"\n'
    return project.replace("[project.urls]\n", found, 1)


if __name__ == "__main__":
    address, version = sys.argv[1:]
    for name, text in {
        "README.md": absolute(Path("README.md").read_text(encoding="utf-8"), address, version),
        "pyproject.toml": with_urls(Path("pyproject.toml").read_text(encoding="utf-8"), address),
    }.items():
        Path(name).write_text(text, encoding="utf-8")
