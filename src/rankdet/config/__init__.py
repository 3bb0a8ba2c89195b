"""The settings of a training and its evaluation: frozen, checked, and readable as YAML.

>>> from rankdet.config import Config, apply_settings, dump, from_dict, to_dict
>>> config = apply_settings(Config(), ["training.epochs=12", "loss.settings.delta=0.5"])
>>> config.training.epochs, config.loss.settings
(12, {'delta': 0.5})
>>> from_dict(to_dict(config)) == config
True
>>> apply_settings(Config(), ["training.epoch=12"])
Traceback (most recent call last):
rankdet.config.rules.SettingError: training.epoch: there is no such setting. Did you mean 'epochs'?
"""

from rankdet.config.rules import SettingError, closest
from rankdet.config.sections import (
    BACKBONE_NAMES,
    DETECTOR_NAMES,
    FORMAT_NAMES,
    LOSS_NAMES,
    Config,
    DataConfig,
    DetectorConfig,
    EvaluationConfig,
    LossConfig,
    TrainingConfig,
)
from rankdet.config.text import (
    apply_settings,
    dump,
    from_dict,
    merge,
    read_config,
    to_dict,
)

__all__ = [
    "BACKBONE_NAMES",
    "DETECTOR_NAMES",
    "FORMAT_NAMES",
    "LOSS_NAMES",
    "Config",
    "DataConfig",
    "DetectorConfig",
    "EvaluationConfig",
    "LossConfig",
    "SettingError",
    "TrainingConfig",
    "apply_settings",
    "closest",
    "dump",
    "from_dict",
    "merge",
    "read_config",
    "to_dict",
]
