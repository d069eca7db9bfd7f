"""The COMET family, from its published checkpoints."""
