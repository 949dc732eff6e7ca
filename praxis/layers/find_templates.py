# SPDX-License-Identifier: Apache-2.0
"""Search for the Configs of a class within a Config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fiddle import daglish

from praxis import pax_fiddle


def find_target_tpl(
  config: Any, targets: type | Sequence[type]
) -> list[pax_fiddle.Config]:
  """Returns the Configs within `config` of the target classes or subclasses."""
  targets = (targets,) if isinstance(targets, type) else tuple(targets)
  templates = []
  for node, _ in daglish.iterate(config):
    if isinstance(node, pax_fiddle.Config) and isinstance(node.cls, type):
      if issubclass(node.cls, targets):
        templates.append(node)
  return templates
