# SPDX-License-Identifier: Apache-2.0
"""Layers that share their weights by an id: one layer, at the root.

Every Config with `shared_weight_layer_id='x'` gives the same layer, whose
variables lie at the root under `x`, whoever creates it first. Within a scanned
or rematerialised body the root is that body.
"""

from __future__ import annotations

import dataclasses
import weakref

import flax.linen as nn
from flax.core import Scope

from praxis import pax_fiddle, struct_text


@dataclasses.dataclass(frozen=True)
class SharedLayer:
  """A layer, and the Config that all who share it must have."""

  layer: nn.Module
  hparams: pax_fiddle.Config


# The layers of a root live as long as somebody holds them.
_layers: weakref.WeakKeyDictionary[
  Scope, weakref.WeakValueDictionary[str, nn.Module]
] = weakref.WeakKeyDictionary()


def shared_layer(config: pax_fiddle.Config, root: Scope) -> nn.Module:
  """Returns the layer of the Config's id at `root`, made at its first use.

  Raises:
    ValueError: the layer of that id was made with another Config.
  """
  name = config.shared_weight_layer_id
  known = lookup(root, name)
  if known is None:
    made = config.clone().set(name=name, shared_weight_layer_id=None)
    made.parent = root.push(name)
    layer = pax_fiddle.build(made)
    keep(root, name, layer, config)
    return layer
  if not compatible_hparams(known.hparams, config):
    raise ValueError(
      f'layers of shared_weight_layer_id={name!r} must have one Config; '
      f'give another id or the same values:\n{_diff(known.hparams, config)}'
    )
  return known.layer


def lookup(root: Scope, name: str) -> SharedLayer | None:
  """Returns what `keep` stored at `root` under an id, or None."""
  layer = _layers.get(root, {}).get(name)
  return None if layer is None else SharedLayer(layer, layer._shared_hparams)


def keep(
  root: Scope, name: str, layer: nn.Module, hparams: pax_fiddle.Config
) -> None:
  """Stores a layer at `root` under an id; ValueError if there is one."""
  layers = _layers.setdefault(root, weakref.WeakValueDictionary())
  if name in layers:
    raise ValueError(f'a layer is shared as {name!r} already; choose another')
  object.__setattr__(layer, '_shared_hparams', hparams.clone())
  layers[name] = layer


def compatible_hparams(
  hparams1: pax_fiddle.Config, hparams2: pax_fiddle.Config
) -> bool:
  """Whether two Configs are equal but for the names of their layers."""
  if not isinstance(hparams1, type(hparams2)):
    raise ValueError(
      f'compatible_hparams wants two of one kind, got {type(hparams1).__name__}'
      f' and {type(hparams2).__name__}'
    )
  return hparams1.clone().set(name='') == hparams2.clone().set(name='')


def _diff(first: pax_fiddle.Config, second: pax_fiddle.Config) -> str:
  """Returns the lines in which the text dumps of two Configs differ."""
  texts = (
    struct_text.nested_struct_to_text(x.clone().set(name=''))
    for x in (first, second)
  )
  one, other = (set(text.splitlines()) for text in texts)
  return '\n'.join(
    [f'  - {line}' for line in sorted(one - other)]
    + [f'  + {line}' for line in sorted(other - one)]
  )
