"""`acpmbr ui`: the interactive page. What it shows is computed apart from its layout, which alone needs gradio."""

from .settings import Form, Limits, Offer

__all__ = ["Form", "Limits", "Offer"]
