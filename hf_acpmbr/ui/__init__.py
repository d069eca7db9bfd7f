"""`acpmbr ui`: the interactive page. It asks ACPMBR and shows its Decision; only the layout needs gradio."""

from .session import Form, Limits, Offer

__all__ = ["Form", "Limits", "Offer"]
