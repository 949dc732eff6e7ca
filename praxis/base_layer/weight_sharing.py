# SPDX-License-Identifier: Apache-2.0
"""Weight sharing between layers by `shared_weight_layer_id`.

All Configs with the same id yield one layer. Its variables are at the root of
the variable tree under the id. Within a scanned or rematerialized body or a
decode loop the root is that body: a StackedTransformer that rematerializes its
layers takes itself as the body of each. A layer of a class with
`is_shared_weight_root` is the root of those below it, outside and inside of a
loop over it.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import flax.linen as nn
from fiddle import daglish
from flax.core import Scope

from praxis import pax_fiddle, struct_text


@dataclasses.dataclass(frozen=True)
class SharedLayer:
  """A shared layer and its Config, which all users must match."""

  layer: nn.Module
  hparams: pax_fiddle.Config


# Shared layers by root scope and id; weak, so that they live as long as the
# modules that use them.
_layers: weakref.WeakKeyDictionary[
  Scope, weakref.WeakValueDictionary[str, nn.Module]
] = weakref.WeakKeyDictionary()


def shared_layer(config: pax_fiddle.Config, root: Scope) -> nn.Module:
  """Returns the layer of the Config's id at `root`, built at the first use.

  Raises:
    ValueError: the layer of that id has another Config.
  """
  name = config.shared_weight_layer_id
  shared = lookup(root, name)
  if shared is None:
    root_config = config.clone().set(name=name, shared_weight_layer_id=None)
    root_config.parent = root.push(name)
    layer = pax_fiddle.build(root_config)
    register(root, name, layer, config)
    return layer
  if not compatible_hparams(shared.hparams, config):
    raise ValueError(
      f'layers of shared_weight_layer_id={name!r} must have one Config; '
      f'give another id or the same values:\n{_diff(shared.hparams, config)}'
    )
  return shared.layer


def root_scope(layer: nn.Module) -> Scope:
  """Returns the scope of the shared weights of the children of a layer."""
  scope = layer.scope
  if scope is None:
    raise ValueError(f'{type(layer).__name__} has no scope; bind it first')
  owner: Any = layer
  while isinstance(owner, nn.Module):
    if getattr(owner, 'is_shared_weight_root', False) and owner.scope:
      return owner.scope
    owner = owner.parent
  return scope.root


def lookup(root: Scope, name: str) -> SharedLayer | None:
  """Returns the layer registered at `root` under an id, or None."""
  layers = _layers.get(root)
  layer = None if layers is None else layers.get(name)
  return None if layer is None else SharedLayer(layer, layer._shared_hparams)


def register(
  root: Scope, name: str, layer: nn.Module, hparams: pax_fiddle.Config
) -> None:
  """Registers a layer at `root` under an id.

  Raises:
    ValueError: the id has a layer already.
  """
  layers = _layers.setdefault(root, weakref.WeakValueDictionary())
  if name in layers:
    raise ValueError(f'a layer is shared as {name!r} already; choose another')
  object.__setattr__(layer, '_shared_hparams', hparams.clone())
  layers[name] = layer


def has_shared_layers(config: Any) -> bool:
  """Returns whether a layer in a Config, or in several, shares its weights."""
  return any(
    isinstance(node, pax_fiddle.Config)
    and getattr(node, 'shared_weight_layer_id', None) is not None
    for node, _ in daglish.iterate(config)
  )


def compatible_hparams(
  hparams1: pax_fiddle.Config, hparams2: pax_fiddle.Config
) -> bool:
  """Whether two Configs are equal except for `name`.

  Raises:
    ValueError: they are of different types.
  """
  if not isinstance(hparams1, type(hparams2)):
    raise ValueError(
      f'compatible_hparams expects one type, got {type(hparams1).__name__}'
      f' and {type(hparams2).__name__}'
    )
  return hparams1.clone().set(name='') == hparams2.clone().set(name='')


def _diff(first: pax_fiddle.Config, second: pax_fiddle.Config) -> str:
  """Returns the differing lines of the text dumps of two Configs."""
  texts = (
    struct_text.nested_struct_to_text(x.clone().set(name=''))
    for x in (first, second)
  )
  old, new = (set(text.splitlines()) for text in texts)
  return '\n'.join(
    [f'  - {line}' for line in sorted(old - new)]
    + [f'  + {line}' for line in sorted(new - old)]
  )
