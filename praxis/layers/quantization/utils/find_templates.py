# SPDX-License-Identifier: Apache-2.0
"""Finding the Configs of a class within a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fiddle import daglish

from praxis import pax_fiddle


def find_target_tpl(
  config: Any, targets: type | Sequence[type]
) -> list[pax_fiddle.Config]:
  """Returns the Configs in `config` of the classes, or subclasses of them."""
  wanted = (targets,) if isinstance(targets, type) else tuple(targets)
  found = []
  for node, _ in daglish.iterate(config):
    if isinstance(node, pax_fiddle.Config) and isinstance(node.cls, type):
      if issubclass(node.cls, wanted):
        found.append(node)
  return found
