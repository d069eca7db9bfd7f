"""Affordable Minimum Bayes Risk decoding for Hugging Face models (AC-PMBR, https://arxiv.org/abs/2512.01316)."""

from .version import __version__
