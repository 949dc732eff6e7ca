# SPDX-License-Identifier: Apache-2.0
"""Draws Configs, made simpler first."""

from __future__ import annotations

from typing import Any

from pax.tools.fiddler import config_normalization


def render(
  config: Any,
  *,
  max_depth: int | None = 4,
  max_str_length: int | None = 100,
  remove_defaults: bool = True,
  convert_dataclasses: bool = True,
  remove_sharding_annotations: bool = False,
  unshare_sharding_config: bool = True,
) -> Any:
  """Returns the picture of a Config, as a `graphviz.Graph`.

  Args:
    config: what is drawn.
    max_depth: how many levels; None draws all.
    max_str_length: longer values are cut; None keeps them.
    remove_defaults: as of ConfigNormalizer, like the following.
    convert_dataclasses: see there.
    remove_sharding_annotations: see there.
    unshare_sharding_config: see there.
  """
  from fiddle import graphviz

  normalizer = config_normalization.ConfigNormalizer(
    remove_defaults=remove_defaults,
    convert_dataclasses=convert_dataclasses,
    wrap_nested_maps=False,
    remove_sharding_annotations=remove_sharding_annotations,
    unshare_sharding_config=unshare_sharding_config,
  )
  return graphviz.render(
    normalizer.task(config), max_depth=max_depth, max_str_length=max_str_length
  )
