"""Around `model.generate`: what a call asked for, what it is given back, models, prompts, corpora."""
