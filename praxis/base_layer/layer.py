# SPDX-License-Identifier: Apache-2.0
"""BaseLayer: a configurable flax module that declares its weights."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax.core import Scope
from flax.core import meta as flax_meta

from praxis import base_hyperparams, fiddle_tags, pax_fiddle, py_utils
from praxis.base_layer import (
  children,
  quantized_variables,
  sharding_annotations,
  weight_params,
)
from praxis.base_layer.initializers import WeightInit, default_param_init
from praxis.base_layer.variable_collections import (
  DECODE_CACHE,
  HYPER_PARAMS,
  NON_TRAINABLE,
  PARAMS,
  PMAP_PARALLEL_AXIS_NAME,
  WrappedHParams,
)
from praxis.base_layer.weight_params import (
  BoxedParam,
  WeightHParams,
  WeightHParamsCollection,
)
from praxis.pytypes import JTensor, SplitDimsMapping

_TreeT = TypeVar('_TreeT')


class Theta:
  """The trainable weights of a layer by name, cast to its fprop_dtype."""

  def __init__(self, module: BaseLayer):
    self.module = module

  def __getattr__(self, name: str) -> JTensor:
    return self.module._theta_value(name)

  def __getitem__(self, name: str) -> JTensor:
    return getattr(self, name)


class ThetaDescriptor:
  """Makes the attribute `theta` of a layer its Theta."""

  def __get__(self, layer: BaseLayer | None, owner: type | None = None) -> Any:
    return self if layer is None else Theta(layer)


def is_running_under_pmap() -> bool:
  """Whether the trace is inside the mapped axis of pmap-style training."""
  try:
    jax.lax.axis_index(PMAP_PARALLEL_AXIS_NAME)
  except NameError:
    return False
  return True


@dataclass_transform(
  kw_only_default=True,
  field_specifiers=(
    pax_fiddle.field,
    pax_fiddle.template_field,
    pax_fiddle.instance_field,
  ),
)
class BaseLayer(children.ParentModule):
  """A layer: fields configure it, `setup` declares weights and children.

  `__call__`, or its alias `fprop`, is the forward pass. A child inherits the
  parent's values of the fields in `INHERITED` that its Config leaves unset.
  """

  # The trainable weights; floats are cast to fprop_dtype, unless they have
  # DISALLOW_BFLOAT16_CONVERSION.
  theta = ThetaDescriptor()
  # Whether layers below share their weights here instead of at the root.
  is_shared_weight_root: ClassVar[bool] = False
  WeightSharding = sharding_annotations.WeightSharding
  ActivationSharding = sharding_annotations.ActivationSharding
  INHERITED: ClassVar[Mapping[str, dataclasses.Field]]
  HParams: ClassVar[Any]

  # Storage dtype of the weights.
  dtype: Any = pax_fiddle.field(
    default=jnp.float32, tags=fiddle_tags.ParamsDType
  )
  # Dtype of the forward pass; None: `dtype`.
  fprop_dtype: Any = pax_fiddle.field(
    default=None, tags=fiddle_tags.ActivationDType
  )
  # Initializer of weights that declare none.
  params_init: WeightInit = pax_fiddle.field(
    default=default_param_init(), tags=fiddle_tags.WeightInit
  )
  # Whether L1, L2 and weight decay skip this layer's weights.
  skip_lp_regularization: bool | None = None
  # Device mesh within a slice, and slices per axis; None: no mesh (pmap).
  ici_mesh_shape: Sequence[int] | None = None
  dcn_mesh_shape: Sequence[int] | None = None
  contiguous_submeshes: bool | None = None
  mesh_axis_names: Sequence[str] | None = None
  # Layers with the same id share their weights.
  shared_weight_layer_id: str | None = None
  weight_split_dims_mapping: pax_fiddle.Config[
    sharding_annotations.WeightSharding
  ] = pax_fiddle.template_field(sharding_annotations.WeightSharding)
  activation_split_dims_mapping: pax_fiddle.Config[
    sharding_annotations.ActivationSharding
  ] = pax_fiddle.template_field(sharding_annotations.ActivationSharding)

  def __init_subclass__(cls, **kwargs: Any) -> None:
    base_hyperparams.lift_hparams(cls)
    sharding_annotations.lift_shardings(cls)
    body = cls.__dict__
    if 'fprop' in body and '__call__' not in body:
      cls.__call__ = body['fprop']  # type: ignore[method-assign]
    if 'setup' in body:
      cls.setup = _recording_config(body['setup'])  # type: ignore[method-assign]
    for field in base_hyperparams.unannotated_defaults(cls):
      logging.warning(
        '%s.%s = %r has no effect on layers without an annotation; write '
        '`%s: %s = %r` to change the default',
        *(cls.__qualname__, field.name, body[field.name]),
        *(field.name, field.type, body[field.name]),
      )
    super().__init_subclass__(kw_only=True, **kwargs)

  def __post_init__(self) -> None:
    self._check_base_fields()
    object.__setattr__(self, '_weight_hparams', {})
    # create_child fills the Config in; other layers inherit when flax finds
    # their parent, the module whose method constructs them.
    is_inline = not isinstance(self.parent, nn.Module | Scope | None)
    super().__post_init__()
    if is_inline and isinstance(self.parent, BaseLayer):
      pax_fiddle.inherit(self, self.parent)
    if self.fprop_dtype is None:
      object.__setattr__(self, 'fprop_dtype', self.dtype)

  def setup(self) -> None:
    """Declares weights and children."""

  @nn.nowrap
  def fprop(self, *args: Any, **kwargs: Any) -> Any:
    """Alias of `__call__`."""
    return self(*args, **kwargs)

  # Configuration.

  @classmethod
  def config(cls, **kwargs: Any) -> pax_fiddle.Config:
    return pax_fiddle.Config(cls, **kwargs)

  @classmethod
  def partial(cls, **kwargs: Any) -> pax_fiddle.Partial:
    return pax_fiddle.Partial(cls, **kwargs)

  @property
  def hparams(self) -> pax_fiddle.Config:
    """A Config that builds an equal layer."""
    return base_hyperparams.config_of(self)

  @property
  def mesh_shape(self) -> list[int] | None:
    """The mesh over all slices, ICI times DCN; None without a mesh."""
    return pax_fiddle.mesh_shape(self.ici_mesh_shape, self.dcn_mesh_shape)

  @nn.nowrap
  def get_shard_count_on_dim(
    self, dim_sharding: str | Sequence[str] | None
  ) -> int:
    """Returns the number of shards of a dimension.

    Raises:
      ValueError: the mesh lacks one of the axes.
    """
    if dim_sharding is None or not self.mesh_axis_names or not self.mesh_shape:
      return 1
    axes = py_utils.mesh_axes(dim_sharding)
    sizes = dict(zip(self.mesh_axis_names, self.mesh_shape, strict=True))
    if unknown := set(axes) - set(sizes):
      raise ValueError(
        f'mesh axes {sorted(unknown)} are not in mesh_axis_names {list(sizes)}'
      )
    return math.prod(sizes[axis] for axis in axes)

  @staticmethod
  def copy_base_hparams(source: Any, target: Any) -> Any:
    """Copies the inherited fields of a layer or Config to Config `target`."""
    pax_fiddle.inherit(target, source)
    return target

  # Weights and other variables.

  @nn.nowrap
  def create_variable(
    self, name: str, var_hparams: WeightHParams, trainable: bool = True
  ) -> JTensor | jax.ShapeDtypeStruct:
    """Declares a variable and returns its value.

    Args:
      name: the layer reads it as `self.theta.<name>`, or by `get_var`.
      var_hparams: shape, initializer, sharding and flags.
      trainable: whether the optimizer updates it.

    Raises:
      AttributeError: the layer has an attribute of that name.
      ValueError: a dimension is not positive.
    """
    self._declare_variable(name, var_hparams, trainable)
    return self.get_var(name)

  @nn.nowrap
  def _declare_variable(
    self, name: str, var_hparams: WeightHParams, trainable: bool = True
  ) -> None:
    """Implements `create_variable`, which subclasses override."""
    existing = {*self._children, *self._weight_hparams}
    if hasattr(type(self), name) or name in existing:
      raise AttributeError(
        f'{type(self).__name__} has an attribute {name!r}; choose another name '
        'for the variable'
      )
    if not all(size > 0 for size in var_hparams.shape):
      raise ValueError(
        f'weight {name!r} of {type(self).__name__} needs positive dimensions, '
        f'got shape {tuple(var_hparams.shape)}; set the sizes in its Config'
      )
    hparams = self._with_layer_defaults(var_hparams, trainable)
    self._weight_hparams[name] = hparams
    collection = PARAMS if trainable else NON_TRAINABLE
    if self.has_variable(collection, name):
      return
    init = lambda key: BoxedParam(weight_params.init_var(hparams, key), hparams)
    if trainable:
      self.param(name, init)
    else:
      self.variable(collection, name, lambda: init(self.make_rng(PARAMS)))

  @nn.nowrap
  def get_var(self, name: str) -> JTensor:
    """Returns a variable as stored, trainable or not."""
    trainable = weight_params.var_is_trainable(self._declared(name))
    return self._stored_value(PARAMS if trainable else NON_TRAINABLE, name)

  @nn.nowrap
  def update_var(self, name: str, new_val: JTensor) -> None:
    """Replaces a non-trainable variable if its collection is mutable.

    Raises:
      ValueError: the variable is trainable, or has another shape.
    """
    if weight_params.var_is_trainable(self._declared(name)):
      raise ValueError(
        f'{name!r} is trainable: the learner updates it; declare it with '
        'trainable=False to update it in the forward pass'
      )
    if self.is_initializing() or not self.is_mutable_collection(NON_TRAINABLE):
      return
    stored: Any = nn.Module.get_variable(self, NON_TRAINABLE, name)
    shape, new_shape = jnp.shape(self.get_var(name)), jnp.shape(new_val)
    if shape != new_shape:
      raise ValueError(
        f'update_var({name!r}) expects shape {shape}, got {new_shape}; a '
        'variable keeps its shape'
      )
    # Within `init` of a plain flax module the variable is boxed, and stays so.
    boxed = flax_meta.replace_boxed(stored, new_val)
    self.put_variable(NON_TRAINABLE, name, boxed)

  @nn.nowrap
  def get_decode_state(self, name: str) -> JTensor:
    """Returns a value that `update_decode_state` stored.

    Raises:
      KeyError: there is no such value.
    """
    if not self.has_variable(DECODE_CACHE, name):
      raise KeyError(
        f'{"/".join(self.path)} has no decode state {name!r}; run the prefix '
        'with mutable=[DECODE_CACHE] first'
      )
    return self.get_variable(DECODE_CACHE, name)

  @nn.nowrap
  def update_decode_state(self, name: str, new_state: JTensor) -> None:
    """Stores state for later decode steps if DECODE_CACHE is mutable."""
    if self.is_mutable_collection(DECODE_CACHE):
      self.put_variable(DECODE_CACHE, name, new_state)

  # Quantized and sparse weights.

  @nn.nowrap
  def create_quantized_variable(
    self,
    name: str,
    weight_hparams: WeightHParams,
    scale_shape: Sequence[int] = (),
    dtype: Any = jnp.int8,
    use_symmetric: bool = True,
    scale_hparams: WeightHParams | None = None,
  ) -> None:
    """Declares a weight stored in `dtype`, its scale, and its zero point.

    Args:
      name: the name of the weight.
      weight_hparams: shape and sharding of the weight.
      scale_shape: the shape of a replicated scale.
      dtype: the storage dtype of the weight.
      use_symmetric: whether the weight has no zero point.
      scale_hparams: shape and sharding of the scale; replaces `scale_shape`.

    Raises:
      ValueError: `scale_shape` and `scale_hparams` are both given.
    """
    scale = quantized_variables.scale_hparams(name, scale_shape, scale_hparams)
    declarations = quantized_variables.quantized_weight_hparams(
      name, weight_hparams, scale, dtype, use_symmetric
    )
    for variable, hparams in declarations.items():
      self._declare_variable(variable, hparams)

  @nn.nowrap
  def get_quantized_weight(
    self, name: str, use_symmetric: bool = True
  ) -> tuple[JTensor, JTensor, JTensor | None]:
    """Returns a weight as stored, its scale, and its zero point or None."""
    zero_point = None
    if not use_symmetric:
      zero_point = self._theta_value(
        name + quantized_variables.QUANTIZED_ZP_NAME_POSTFIX
      )
    scale = self._theta_value(
      name + quantized_variables.QUANTIZED_SCALE_NAME_POSTFIX
    )
    return self._theta_value(name), scale, zero_point

  @nn.nowrap
  def create_sparse_variable(
    self, name: str, weight_hparams: WeightHParams
  ) -> None:
    """Declares a weight and a boolean mask of its shape, False at first."""
    self._declare_variable(name, weight_hparams)
    self._declare_variable(
      name + quantized_variables.SPARSITY_NAME_POSTFIX,
      quantized_variables.sparsity_mask_hparams(weight_hparams),
      trainable=False,
    )

  @nn.nowrap
  def get_sparse_weight(self, name: str) -> tuple[JTensor, JTensor]:
    """Returns a weight and its mask."""
    mask = self.get_var(name + quantized_variables.SPARSITY_NAME_POSTFIX)
    return self._theta_value(name), mask

  def quantize_weight(self) -> quantized_variables.Collections:
    """Returns the variables by collection, with quantized weights.

    This base class leaves the layer's own weights unquantized and collects the
    results of its children.
    """
    collections = quantized_variables.collect(
      self._child_modules(), _quantized_weights
    )
    for collection, name in self._own_variables():
      value = weight_params.maybe_unbox_value(
        self.get_variable(collection, name)
      )
      collections.setdefault(collection, {})[name] = value
    return collections

  def quantized_partition_specs(self) -> quantized_variables.Collections:
    """Returns the partition specs of the variables of `quantize_weight`."""
    collections = quantized_variables.collect(
      self._child_modules(), _quantized_partition_specs
    )
    for collection, name in self._own_variables():
      spec = quantized_variables.partition_spec(
        self._weight_hparams[name], self.mesh_axis_names
      )
      collections.setdefault(collection, {})[name] = spec
    return collections

  @nn.nowrap
  def shard(self, x: JTensor, mapping: SplitDimsMapping) -> JTensor:
    """Constrains `x` to the sharding `mapping` if there is a mesh."""
    return sharding_annotations.maybe_shard(x, mapping, self.mesh_axis_names)

  # Private methods.

  @nn.nowrap
  def _own_variables(self) -> Iterator[tuple[str, str]]:
    """Yields (collection, name) of this layer's variables."""
    for name, hparams in self._weight_hparams.items():
      trainable = weight_params.var_is_trainable(hparams)
      collection = PARAMS if trainable else NON_TRAINABLE
      if self.has_variable(collection, name):
        yield collection, name

  @nn.nowrap
  def _check_positive(self, *names: str) -> None:
    """Raises ValueError for the first of these fields that is not above 0."""
    for name in names:
      value = getattr(self, name)
      if value is None or value <= 0:
        kind = type(self).__name__
        raise ValueError(f'{kind} {self.name!r} needs {name} > 0, got {value}')

  @nn.nowrap
  def _check_base_fields(self) -> None:
    kind = type(self).__name__
    try:
      jnp.dtype(self.dtype)
    except (TypeError, ValueError):
      raise TypeError(
        f'dtype of {kind} must be a dtype, got {self.dtype!r}. Please use '
        '`layer_p.Instantiate()` instead to build a Config.'
      ) from None
    shared = self.shared_weight_layer_id
    if shared is not None and isinstance(self.parent, nn.Module):
      raise ValueError(
        f'shared_weight_layer_id={shared!r} of {kind} works for layers that '
        'create_child builds; to share an instance field, use one Config '
        'object (or one instance) in several fields'
      )

  def _theta_value(self, name: str) -> JTensor:
    # Not nowrap: flax must run `setup` before a parent reads a child's weight.
    hparams = self._weight_hparams.get(name)
    if hparams is None or weight_params.var_not_trainable(hparams):
      raise AttributeError(
        f'{type(self).__name__} has no weight {name!r}; its variables are '
        f'{sorted(self._weight_hparams)} (they exist after setup)'
      )
    value = self._stored_value(PARAMS, name)
    if weight_params.var_disallow_bfloat16_conversion(hparams):
      return value
    return self._cast_to_fprop_dtype(value)

  @nn.nowrap
  def _stored_value(self, collection: str, name: str) -> JTensor:
    value = weight_params.maybe_unbox_value(self.get_variable(collection, name))
    # Restored checkpoints may have numpy arrays, which lack `at`.
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value

  @nn.nowrap
  def _cast_inputs(self, inputs: _TreeT) -> _TreeT:
    if jnp.dtype(self.fprop_dtype) != jnp.bfloat16:
      return inputs
    return jax.tree.map(_float32_to_bfloat16, inputs)

  @nn.nowrap
  def _cast_to_fprop_dtype(self, value: _TreeT) -> _TreeT:
    return py_utils.maybe_cast_float(value, self.fprop_dtype)

  @nn.nowrap
  def _declared(self, name: str) -> WeightHParams:
    if name not in self._weight_hparams:
      raise AttributeError(
        f'{type(self).__name__} has no variable {name!r}; it has '
        f'{sorted(self._weight_hparams)}'
      )
    return self._weight_hparams[name]

  @nn.nowrap
  def _with_layer_defaults(
    self, declared: WeightHParams, trainable: bool
  ) -> WeightHParams:
    """Fills the init, dtype and flags of the layer into a declaration."""
    collections = set(declared.collections or ())
    if not trainable:
      collections.add(WeightHParamsCollection.NON_TRAINABLE)
    if self.skip_lp_regularization:
      collections.add(WeightHParamsCollection.SKIP_LP_REGULARIZATION)
    hparams = copy.copy(declared)
    hparams.collections = sorted(collections)
    hparams.init = declared.init or self.params_init
    hparams.dtype = self.dtype if declared.dtype is None else declared.dtype
    return hparams


def _float32_to_bfloat16(x: Any) -> Any:
  """Returns a float32 array as a bfloat16 shape, other leaves unchanged."""
  if getattr(x, 'dtype', None) != jnp.float32:
    return x
  return jax.ShapeDtypeStruct(x.shape, jnp.bfloat16)


def _quantized_weights(module: nn.Module) -> quantized_variables.Collections:
  if isinstance(module, BaseLayer):
    return module.quantize_weight()
  return quantized_variables.flax_variables(module)


def _quantized_partition_specs(
  module: nn.Module,
) -> quantized_variables.Collections:
  if isinstance(module, BaseLayer):
    return module.quantized_partition_specs()
  return quantized_variables.flax_partition_specs(module)


LayerTpl = pax_fiddle.Config[BaseLayer]
BaseLayerT = TypeVar('BaseLayerT', bound=BaseLayer)


def is_sublayer_template_or_instance(val: Any) -> bool:
  """Whether a value is a layer, the Config of one, or a container of them."""
  if isinstance(val, pax_fiddle.Config):
    return isinstance(val.cls, type) and issubclass(val.cls, BaseLayer)
  if isinstance(val, Mapping):
    return is_sublayer_template_or_instance(list(val.values()))
  if isinstance(val, list | tuple):
    values = [v for v in val if v is not None]
    return bool(values) and all(map(is_sublayer_template_or_instance, values))
  return isinstance(val, BaseLayer)


def get_template_fields(template: pax_fiddle.Config) -> list[str]:
  """Returns the names of all fields of a Config, set or not.

  Raises:
    TypeError: `template` is not a Config.
  """
  if not isinstance(template, pax_fiddle.Config):
    raise TypeError(
      f'get_template_fields expects a Config, got {type(template)}'
    )
  names = [f.name for f in pax_fiddle.fields_of(template.cls) if f.init]
  return names or list(inspect.signature(template.cls).parameters)


def assert_has_shape(t: JTensor, shape: Sequence[int]) -> None:
  """Checks the shape of an array; -1 in `shape` matches any size.

  Raises:
    ValueError: the shape differs.
  """
  matches = t.ndim == len(shape) and all(
    expected in (-1, size)
    for expected, size in zip(shape, t.shape, strict=True)
  )
  if not matches:
    raise ValueError(f'an array must have shape {list(shape)}, got {t.shape}')


def _recording_config(setup: Callable[[BaseLayer], None]) -> Any:
  """Wraps `setup` to also record the Config in HYPER_PARAMS if requested."""

  @functools.wraps(setup)
  def wrapped(self: BaseLayer) -> None:
    with self._setup_context():
      setup(self)
    if self.reflect_configs and self.is_initializing():
      config = self.hparams
      for name, value in list(config.__arguments__.items()):
        if is_sublayer_template_or_instance(value):
          setattr(config, str(name), None)
      self.put_variable(HYPER_PARAMS, '_hparams', WrappedHParams(config))

  return wrapped


BaseLayer.setup = _recording_config(BaseLayer.setup)  # type: ignore[method-assign]

_INHERITED = (
  'dtype',
  'fprop_dtype',
  'params_init',
  'skip_lp_regularization',
  'ici_mesh_shape',
  'dcn_mesh_shape',
  'contiguous_submeshes',
  'mesh_axis_names',
)
BaseLayer.INHERITED = {
  f.name: f for f in pax_fiddle.fields_of(BaseLayer) if f.name in _INHERITED
}
base_hyperparams.lift_hparams(BaseLayer)
# The base of a layer's nested HParams, under the name that the README uses.
BaseHParams = BaseLayer.HParams
