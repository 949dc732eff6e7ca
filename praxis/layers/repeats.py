# SPDX-License-Identifier: Apache-2.0
"""Repeated application of a layer by a scan over stacked weights.

The weights of all repetitions are stacked on a leading axis; the layer is
traced and compiled once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.core.scope import CollectionFilter

from praxis import base_layer, flax_utils, pax_fiddle, pytypes
from praxis.alias_names import module_getattr
from praxis.base_layer import quantized_variables
from praxis.layers import checkpoint_policy as checkpoint_policy_lib
from praxis.layers import decode_states

__getattr__ = module_getattr(__name__)

AutodiffCheckpointType = checkpoint_policy_lib.AutodiffCheckpointType
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
NestedJTensor = pytypes.NestedJTensor

# fn(sublayer, carry, xs) -> (carry, ys)
ScanBody = Callable[[base_layer.BaseLayer, Any, Any], tuple[Any, Any]]

_WEIGHTS = (
  base_layer.PARAMS,
  base_layer.NON_TRAINABLE,
  base_layer.HYPER_PARAMS,
  *base_layer.NON_PAX_VAR_COLLECTION,
)
_DECODE_CACHES = (base_layer.DECODE_CACHE, base_layer.PREFIX_DECODE_CACHE)
_OUTPUT_COLLECTIONS = (base_layer.SUMMARIES, base_layer.AUX_LOSS)
# All collections are stacked on the first axis.
SCAN_VARIABLE_AXES: Mapping[CollectionFilter, int] = dict.fromkeys(
  (
    *_WEIGHTS,
    *_DECODE_CACHES,
    *_OUTPUT_COLLECTIONS,
    base_layer.INTERMEDIATES,
  ),
  0,
)
_RNGS = (base_layer.PARAMS, base_layer.RANDOM, base_layer.NON_PAX_RNG_KEY)


class Repeat(decode_states.DecodeStateContainer):
  """Applies a layer x_times; the output of each is the next one's input."""

  # The layer; output and first input have the same structure.
  sub_tpl: LayerTpl | None = pax_fiddle.template_field(None)
  # Number of repetitions.
  x_times: int = 0
  # Whether a summary is a list with an entry [1, ...] of each repetition,
  # instead of stacked. Auxiliary losses are summed over the repetitions.
  unpack_summaries: bool = False
  # Remat policy of a repetition.
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_NOTHING
  )
  # Whether to unroll the loop in decoding, with a separate cache per
  # repetition: a step then updates one row of each cache in place.
  unroll_in_decode: bool = False
  # Name of the layer in variable trees.
  sublayer_name: str = 'sub'
  # Sharding of the optimizer state along the leading axes of weights.
  optimizer_dims_mapping: pytypes.SplitDimsMapping = None
  # Whether to store the outputs of all repetitions in INTERMEDIATES, stacked,
  # as `repeat_intermediates`.
  collect_intermediate_outputs: bool = False
  # Whether to return them instead of the output of the last repetition.
  return_intermediate_outputs: bool = False
  # Shape of several leading axes, whose product is x_times; None for one axis.
  nd_prefix_shape: Sequence[int] | None = None
  # Whether all positional arguments are carried: the layer returns as many
  # outputs as it takes positional arguments.
  positional_args_as_scan_carry: bool = False
  # Repetitions per loop iteration; more is faster for small layers, and slower
  # to compile.
  scan_unroll: int = 1

  class WeightSharding(base_layer.WeightSharding):
    # The leading axes of all weights.
    sub: pytypes.SplitDimsMapping = None

  def setup(self) -> None:
    if self.sub_tpl is None or self.x_times < 1:
      raise ValueError(
        f'Repeat {self.name!r} needs sub_tpl and x_times >= 1, got x_times='
        f'{self.x_times}'
      )
    if math.prod(self._prefix_shape()) != self.x_times:
      raise ValueError(
        f'the product of nd_prefix_shape must be x_times={self.x_times}, got '
        f'{list(self._prefix_shape())}'
      )
    self._check_mapping_rank(
      'weight_split_dims_mapping.sub', self.weight_split_dims_mapping.sub
    )
    self._check_mapping_rank(
      'optimizer_dims_mapping', self.optimizer_dims_mapping
    )
    self.create_child(self.sublayer_name, self.sub_tpl.clone())

  @property
  def sublayer(self) -> base_layer.BaseLayer:
    """The repeated layer."""
    return getattr(self, self.sublayer_name)

  def __call__(
    self,
    inputs: NestedJTensor,
    *args: Any,
    method_name: str | None = None,
    per_layer_kwargs: dict[str, Any] | None = None,
    reversed_per_layer_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
  ) -> Any:
    """Returns the output of the last repetition.

    Args:
      inputs: of the first repetition.
      *args: further arguments of all repetitions.
      method_name: method of the layer to call; None for `__call__`.
      per_layer_kwargs: keyword arguments with a leading axis of x_times;
        repetition i gets entry i.
      reversed_per_layer_kwargs: likewise; repetition i gets entry -1 - i.
      **kwargs: further keyword arguments of all repetitions.
    """
    return self.call_with_custom_method(
      inputs,
      *args,
      method_factory=lambda sub: getattr(sub, method_name or '__call__'),
      per_layer_kwargs=per_layer_kwargs,
      reversed_per_layer_kwargs=reversed_per_layer_kwargs,
      **kwargs,
    )

  def call_with_custom_method(
    self,
    inputs: NestedJTensor,
    *args: Any,
    method_factory: Callable[[base_layer.BaseLayer], Callable[..., Any]],
    per_layer_kwargs: dict[str, Any] | None = None,
    reversed_per_layer_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
  ) -> Any:
    """Returns the output of the last repetition, of a chosen method.

    Args:
      inputs: of the first repetition.
      *args: further arguments of all repetitions.
      method_factory: returns the method to call, given the layer.
      per_layer_kwargs: see `__call__`.
      reversed_per_layer_kwargs: see `__call__`.
      **kwargs: further keyword arguments of all repetitions.
    """
    reversed_kwargs = reversed_per_layer_kwargs or {}
    xs = dict(per_layer_kwargs or {})
    xs.update(jax.tree.map(lambda x: jnp.flip(x, 0), reversed_kwargs))
    stacks_outputs = (
      self.collect_intermediate_outputs or self.return_intermediate_outputs
    )

    def body(sub: base_layer.BaseLayer, carry: Any, x: Any) -> tuple[Any, Any]:
      method = method_factory(sub)
      if self.positional_args_as_scan_carry:
        output = method(*carry, **x, **kwargs)
        carry = output if isinstance(output, tuple) else (output,)
        return carry, carry if stacks_outputs else ()
      output = method(carry, *args, **x, **kwargs)
      return output, output if stacks_outputs else ()

    carry = self._cast_to_fprop_dtype(inputs)
    if self.positional_args_as_scan_carry:
      carry = (carry, *args)
    outputs, all_outputs = self._loop(body, carry, xs)
    if self.return_intermediate_outputs:
      return all_outputs
    if self.collect_intermediate_outputs:
      self.sow(base_layer.INTERMEDIATES, 'repeat_intermediates', all_outputs)
    return outputs

  def extend_step(
    self, step_inputs: NestedJTensor, *args: Any, **kwargs: Any
  ) -> Any:
    """Returns the output of one decoding step."""
    return self(step_inputs, *args, method_name='extend_step', **kwargs)

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    def body(sub: base_layer.BaseLayer, carry: Any, _: Any) -> tuple[Any, Any]:
      visit(sub)
      return carry, ()

    self._loop(body, (), {})

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the stacked quantized weights of all repetitions."""

    def body(sub: base_layer.BaseLayer, carry: Any, _: Any) -> tuple[Any, Any]:
      return carry, sub.quantize_weight()

    _, stacked = self._loop(body, (), {})
    prefix = tuple(self._prefix_shape())
    unflatten = lambda x: x.reshape(*prefix, *x.shape[1:])
    return {
      collection: {self.sublayer_name: jax.tree.map(unflatten, tree)}
      for collection, tree in stacked.items()
    }

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns the partition specs of the output of `quantize_weight`."""
    stacked = quantized_variables.stacked_partition_specs(
      self.sublayer.quantized_partition_specs(),
      self.weight_split_dims_mapping.sub or [None] * len(self._prefix_shape()),
      self.mesh_axis_names,
    )
    return {c: {self.sublayer_name: tree} for c, tree in stacked.items()}

  # Loops.

  def _loop(self, body: ScanBody, carry: Any, xs: Any) -> tuple[Any, Any]:
    """Returns the last carry and the stacked ys of all repetitions."""
    is_decoding = self.is_mutable_collection(base_layer.DECODE_CACHE)
    if self.unroll_in_decode and is_decoding and not self.is_initializing():
      return self._unroll(body, carry, xs)
    policy = self.checkpoint_policy
    loop = self._scan(checkpoint_policy_lib.remat_in_scan(self, body, policy))
    if not self.is_initializing():
      names = [base_layer.AUX_LOSS]
      if self.unpack_summaries or self.nd_prefix_shape:
        names.append(base_layer.SUMMARIES)
      loop = self._with_outputs(loop, names, self._flatten_outputs)
    return loop(self.sublayer, carry, xs)

  def _scan(self, body: ScanBody) -> ScanBody:
    """Returns nested scans over the leading axes, the last axis innermost."""
    shape = self._prefix_shape()
    axes = dict(SCAN_VARIABLE_AXES)
    if not self.is_mutable_collection(base_layer.SUMMARIES):
      # Those of an earlier call may be combined, without the scanned axis.
      del axes[base_layer.SUMMARIES]
    for dim in reversed(range(len(shape))):
      body = nn.scan(
        body,
        variable_axes=axes,
        split_rngs={name: True for name in _RNGS},
        length=shape[dim],
        unroll=self.scan_unroll,
        metadata_params=self._axis_metadata(dim),
        check_constancy_invariants=False,
      )
    if len(shape) == 1:
      return body
    return _flatten_prefix(body, tuple(shape))

  def _with_outputs(
    self,
    loop: ScanBody,
    names: Sequence[str],
    stack_outputs: Callable[[Any], Any],
  ) -> ScanBody:
    """Sums the auxiliary losses of a loop and lists its summaries.

    Args:
      loop: stores the values of all repetitions.
      names: the collections to combine.
      stack_outputs: returns what `loop` stores in a collection with one leading
        axis of x_times.
    """
    names = [name for name in names if self.is_mutable_collection(name)]
    if not names:
      return loop
    previous = {}  # Auxiliary losses of earlier calls.

    def clear(collections: Any) -> Any:
      previous.update(collections.get(base_layer.AUX_LOSS, {}))
      return {name: {} for name in collections}

    def combine(collections: Any) -> Any:
      combined = {}
      for name, tree in collections.items():
        stacked = stack_outputs(tree)
        if name == base_layer.AUX_LOSS:
          combined[name] = jax.tree.map(jnp.sum, stacked)
          if previous:
            combined[name] = jax.tree.map(jnp.add, combined[name], previous)
        else:
          combined[name] = flax_utils.maybe_unpack_summary(
            stacked, self.unpack_summaries, self.x_times
          )
      return combined

    return nn.map_variables(
      loop,
      names,
      trans_in_fn=clear,
      trans_out_fn=combine,
      mutable=True,
    )

  def _flatten_outputs(self, tree: Any) -> Any:
    """Returns what nested scans store, with one leading axis."""
    rank = len(self._prefix_shape())
    return jax.tree.map(
      lambda x: x.reshape(self.x_times, *x.shape[rank:]), tree
    )

  def _stack_layers(self, tree: Any) -> Any:
    """Returns what unrolled repetitions store, stacked."""
    layers = [tree[key] for key in map(_layer_key, range(self.x_times)) if tree]
    return jax.tree.map(lambda *xs: jnp.stack(xs), *layers) if layers else {}

  def _unroll(self, body: ScanBody, carry: Any, xs: Any) -> tuple[Any, Any]:
    """Runs the repetitions without a loop."""

    def loop(sub: base_layer.BaseLayer, carry: Any, xs: Any) -> tuple[Any, Any]:
      all_ys = []
      for i in range(self.x_times):
        carry, ys = self._repetition(body, i)(sub, carry, _index(xs, i))
        all_ys.append(ys)
      return carry, jax.tree.map(lambda *ys: jnp.stack(ys), *all_ys)

    stacked = self._with_outputs(loop, _OUTPUT_COLLECTIONS, self._stack_layers)
    return stacked(self.sublayer, carry, xs)

  def _repetition(self, body: ScanBody, i: int) -> ScanBody:
    """Returns the body with weights [i], storing variables under layer<i>."""
    index = np.unravel_index(i, tuple(self._prefix_shape()))
    key = _layer_key(i)

    def read_layer(collections: Any) -> Any:
      return {name: tree.get(key, {}) for name, tree in collections.items()}

    def write_layer(collections: Any) -> Any:
      return {name: {key: tree} for name, tree in collections.items() if tree}

    body = nn.map_variables(
      body, list(_WEIGHTS), trans_in_fn=lambda tree: _hoisted_index(tree, index)
    )
    return nn.map_variables(
      body,
      [*_DECODE_CACHES, *_OUTPUT_COLLECTIONS, base_layer.INTERMEDIATES],
      trans_in_fn=read_layer,
      trans_out_fn=write_layer,
      mutable=True,
    )

  def _prefix_shape(self) -> Sequence[int]:
    return self.nd_prefix_shape or (self.x_times,)

  def _check_mapping_rank(
    self, name: str, mapping: pytypes.SplitDimsMapping
  ) -> None:
    if mapping and len(mapping) != len(self._prefix_shape()):
      raise ValueError(
        f'{name} must have an entry for each leading axis of '
        f'{list(self._prefix_shape())}, got {mapping}'
      )

  def _axis_metadata(self, dim: int) -> dict[str, Any]:
    mapping = self.weight_split_dims_mapping.sub
    optimizer = self.optimizer_dims_mapping
    return {
      'x_times': self._prefix_shape()[dim],
      'prefix_split_dims_mapping': mapping[dim] if mapping else -1,
      'optimizer_dims_mapping': optimizer[dim] if optimizer else None,
    }


def _layer_key(i: int) -> str:
  return f'layer{i}'


def _index(tree: Any, index: Any) -> Any:
  return jax.tree.map(lambda x: x[index], tree)


def _hoisted_index(tree: Any, index: Any) -> Any:
  """As `_index`; on CPUs the slices are hoisted out of decoding loops.

  CPUs copy a slice before a product uses it. The barrier lets XLA hoist the
  copy out of the loop over steps; other devices read slices in place.
  """
  index_array = lambda x: jax.lax.platform_dependent(
    x[index], cpu=jax.lax.optimization_barrier, default=lambda x: x
  )
  return jax.tree.map(index_array, tree)


def _flatten_prefix(body: ScanBody, shape: tuple[int, ...]) -> ScanBody:
  """Returns nested loops that take xs and return ys with one leading axis."""

  def flattened(
    sub: base_layer.BaseLayer, carry: Any, xs: Any
  ) -> tuple[Any, Any]:
    xs = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), xs)
    carry, ys = body(sub, carry, xs)
    rank = len(shape)
    return carry, jax.tree.map(lambda y: y.reshape(-1, *y.shape[rank:]), ys)

  return flattened
