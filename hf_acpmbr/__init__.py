"""Affordable Minimum Bayes Risk decoding for Hugging Face models (AC-PMBR, https://arxiv.org/abs/2512.01316)."""

__version__ = "0.1.0"
