# SPDX-License-Identifier: Apache-2.0
"""Building of child layers from their Configs."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
from fiddle import history
from flax.core import Scope

from praxis import pax_fiddle
from praxis.base_layer import auxiliary_outputs, weight_sharing
from praxis.pax_fiddle import build_errors


class ParentModule(auxiliary_outputs.AuxiliaryOutputs):
  """A module that builds children in `setup`; `_children` maps their names."""

  # In this class, not in BaseLayer: a class with both `__new__` and `__init__`
  # has the signature of `__new__`, which lacks the fields.
  def __new__(cls, *args: Any, **kwargs: Any) -> ParentModule:
    if args:
      raise TypeError(
        f'{cls.__name__} takes its fields by keyword, got {args[0]!r}. '
        'Please use `layer_p.Instantiate()` instead to build a Config.'
      )
    return super().__new__(cls)

  def __post_init__(self) -> None:
    object.__setattr__(self, '_children', {})
    super().__post_init__()

  @nn.nowrap
  def _register_submodules(self, name: str, val: Any) -> None:
    # A private method: flax calls it for each field of each layer, and needs
    # 50 us to see that numbers or a Config contain no modules.
    if pax_fiddle.is_leaf(val) or isinstance(val, pax_fiddle.Buildable):
      val = tuple(val) if isinstance(val, list) else val
      object.__setattr__(self, name, val)
    else:
      super()._register_submodules(name, val)

  @nn.nowrap
  def create_child(
    self, name: str, params: pax_fiddle.Config, *, skip_clone: bool = False
  ) -> nn.Module:
    """Builds a child layer, binds it to `self.<name>` and returns it.

    In a compact method the child has the name, but is no attribute. Configs
    with the same `shared_weight_layer_id` yield the same layer.

    Args:
      name: the name of the child.
      params: its Config.
      skip_clone: whether to fill inherited fields into `params` itself instead
        of a copy.

    Raises:
      ValueError: `params` is not a Config, or a child has that name.
      AttributeError: the layer has a field of that name.
    """
    child = self._build_child(name, params, skip_clone)
    return self._bind(name, child, {name: child})

  @nn.nowrap
  def create_children(
    self,
    name: str,
    params: Sequence[pax_fiddle.Config],
    *,
    skip_clone: bool = False,
  ) -> Sequence[nn.Module]:
    """Builds a list of layers: `self.<name>[i]`, `<name>_i` in variable trees.

    Raises:
      ValueError: `params` is not a sequence of Configs, or a child has one of
        the names.
      AttributeError: the layer has a field of that name.
    """
    if not isinstance(params, Sequence):
      raise ValueError(
        f'create_children({name!r}) expects a sequence of Configs, got '
        f'{type(params).__name__}; create_child takes a single one'
      )
    children = [self._build_child(name, p, skip_clone) for p in params]
    modules = {f'{name}_{i}': child for i, child in enumerate(children)}
    return self._bind(name, children, modules)

  @nn.nowrap
  def _child_modules(self) -> Iterator[nn.Module]:
    """Yields the children whose variables are below this module's."""
    fields = {f.name for f in pax_fiddle.fields_of(type(self))} - {'parent'}
    values = [getattr(self, name) for name in sorted(fields)]
    for child in (*self._children.values(), *values):
      # A shared layer belongs to the first module that uses it.
      if isinstance(child, nn.Module) and child.path[:-1] == self.path:
        yield child

  @nn.nowrap
  @contextlib.contextmanager
  def _setup_context(self) -> Iterator[None]:
    """Attaches the path of this layer's Config to errors of its `setup`.

    The Configs of its children record no history: it would take a tenth of the
    time, and nobody sees these Configs.
    """
    try:
      with history.suspend_tracking():
        yield
    except Exception as e:
      _locate(e, self)
      raise

  @nn.nowrap
  def _build_child(
    self, name: str, params: pax_fiddle.Config, skip_clone: bool
  ) -> nn.Module:
    if not isinstance(params, pax_fiddle.Buildable):
      hint = ''
      if isinstance(params, nn.Module):
        hint = (
          ' (an instance: pass its Config). This may be caused by an incorrect '
          'type annotation on a field that contains a Fiddle Config.'
        )
      raise ValueError(
        f'Expected templates for child {name!r} of {type(self).__name__} to be '
        f'Fiddle Configs, got {type(params).__name__}{hint}'
      )
    params = params if skip_clone else params.clone()
    pax_fiddle.inherit(params, self)
    return instantiate_layer(params, weight_sharing.root_scope(self))

  @nn.nowrap
  def _bind(self, name: str, child: Any, modules: dict[str, nn.Module]) -> Any:
    kind = type(self).__name__
    if name in {f.name for f in pax_fiddle.fields_of(type(self))}:
      raise AttributeError(f'child {name!r} of {kind} has the name of a field')
    # A private attribute: flax has no public one. It allows attributes in setup
    # only; in a compact method a module gets its parent as an argument.
    if not self._state.in_setup:
      attached = {
        key: module.clone(parent=self, name=key)
        if module.parent is None
        else module  # A shared layer, which another module owns.
        for key, module in modules.items()
      }
      self._children.update(attached)
      layers = list(attached.values())
      return layers if isinstance(child, list) else layers[0]
    if existing := {name, *modules} & set(self._children):
      raise ValueError(f'{kind} has a child {min(existing)!r} already')
    setattr(self, name, child)
    bound = getattr(self, name)
    layers = bound if isinstance(child, list) else [bound]
    self._children.update(zip(modules, layers, strict=True))
    return bound


def locate_call(error: BaseException) -> None:
  """Attaches the path of the layer whose method raised an error, if one did.

  An error of `setup` or of the building of an object keeps its location.
  """
  if build_errors.location_of(error) is not None:
    return
  frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
  for frame in reversed(frames):
    layer = frame.f_locals.get('self')
    if isinstance(layer, ParentModule):
      location = build_errors.location_of(error)
      # Layers in a loop do not have the parents of the loop.
      if location is None or _template_path(layer, location.root) is not None:
        _locate(error, layer)


def _locate(error: BaseException, layer: ParentModule) -> None:
  """Attaches the path of the Config of `layer`, or of a child in it."""
  location = build_errors.location_of(error)
  path = ''
  cls: Callable[..., Any] = type(layer)
  if location is not None:
    inner_path = _template_path(layer, location.root)
    path, cls = f'{inner_path or ""}{location.path}', location.cls
  while isinstance(layer.parent, ParentModule):
    name = _template_path(layer.parent, type(layer)) or f'.{layer.name}'
    layer, path = layer.parent, f'{name}{path}'
  # An enclosing setup has the location already.
  if location is None or location.root is not type(layer):
    build_errors.attach(error, build_errors.Location(type(layer), path, cls))


def _template_path(layer: ParentModule, cls: Callable[..., Any]) -> str | None:
  """The path to the template of a child of class `cls`."""
  names = (f.name for f in pax_fiddle.fields_of(type(layer)))
  return build_errors.path_of_class(
    {name: getattr(layer, name) for name in names if name != 'parent'}, cls
  )


def instantiate_layer(layer_p: pax_fiddle.Config, scope: Scope) -> nn.Module:
  """Builds a layer, or returns the shared one of its id at `scope`."""
  if getattr(layer_p, 'shared_weight_layer_id', None) is None:
    with pax_fiddle.empty_flax_module_stack():
      return pax_fiddle.build(layer_p)
  return weight_sharing.shared_layer(layer_p, scope)
