"""griffe extension: classes of settings with their docstrings at run time, which list the help of their fields."""

from __future__ import annotations

import inspect
from typing import Any

import griffe

from hf_acpmbr.config import Configured


class Settings(griffe.Extension):
    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is None or not cls.path.startswith("hf_acpmbr."):
            return
        try:
            found = griffe.dynamic_import(cls.path)
        except ImportError:  # a module of an extra that is not installed
            return
        if isinstance(found, type) and issubclass(found, Configured):
            cls.docstring.value = inspect.getdoc(found) or ""
