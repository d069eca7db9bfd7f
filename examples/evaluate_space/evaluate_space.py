"""Any utility of hf_acpmbr as an `evaluate` metric, by configuration name: `evaluate.load(folder, "chrf")`.

`evaluate` loads a script that has the name of its folder or Space: rename this file with it.
"""

from hf_acpmbr import available_utilities, load_utility
from hf_acpmbr.scoring import metric_class

DEFAULT = "chrf"


class UtilityMetric(metric_class()):
    """One metric for each configuration name, with the scores of every pair and their mean.

    Args:
        config_name: a utility's name, hub id or folder (`hf_acpmbr.available_utilities()`); default: chrF.
        utility_options: options of the utility, such as {"device": "cuda:0"}.
    """

    def __init__(self, config_name=None, utility_options=None, **options):
        name = DEFAULT if config_name in (None, "default") else config_name
        try:
            utility = load_utility(name, **(utility_options or {}))
        except ValueError as error:
            known = ", ".join(available_utilities())
            raise ValueError(f"{error} (configuration names are the utilities: {known})") from error
        super().__init__(utility, config_name=name, **options)
