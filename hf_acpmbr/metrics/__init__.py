"""The metrics, one file each with its network; `hf_acpmbr.scoring.load` has them by name."""
