"""From the words of the command line to a frozen RunConfig: Hydra composes the groups, OmegaConf checks each value.

Owns Hydra: the schema in its store, its search path, its plugins. Nothing else imports it but launcher.overrides.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from launcher.diagnose import Problem, broken_conf, in_file, missing_value, no_entry, refusal, wrong_value
from launcher.errors import ConfigError
from launcher.keys import as_typed, free_key_of, keys_of
from launcher.overrides import Options, is_choice, read_overrides
from launcher.resolved import schema_node, to_config
from launcher.schema import RunConfig

PRIMARY = "config"
