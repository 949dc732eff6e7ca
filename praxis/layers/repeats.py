# SPDX-License-Identifier: Apache-2.0
"""One layer applied many times, each time with weights of its own.

The weights of all repetitions are stacked on a leading axis and the layer is
traced and compiled once, in a loop over that axis (`jax.lax.scan`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from praxis import base_layer, pax_fiddle, pytypes
from praxis.layers import checkpoint_policy as checkpoint_policy_lib
from praxis.layers import decode_states

AutodiffCheckpointType = checkpoint_policy_lib.AutodiffCheckpointType
LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
NestedJTensor = pytypes.NestedJTensor

# fn(module, carry, xs) -> (carry, ys)
_Body = Callable[[nn.Module, Any, Any], tuple[Any, Any]]

_WEIGHTS = (
  base_layer.PARAMS,
  base_layer.NON_TRAINABLE,
  base_layer.HYPER_PARAMS,
  *base_layer.NON_PAX_VAR_COLLECTION,
)
_DECODE_STATE = (base_layer.DECODE_CACHE, base_layer.PREFIX_DECODE_CACHE)
_REPORTS = (base_layer.SUMMARIES, base_layer.AUX_LOSS)
_STACKED = (*_WEIGHTS, *_DECODE_STATE, *_REPORTS, base_layer.INTERMEDIATES)
_RNGS = (base_layer.PARAMS, base_layer.RANDOM, base_layer.NON_PAX_RNG_KEY)


class Repeat(decode_states.DecodeStateContainer):
  """Applies a layer x_times, feeding each output to the next repetition."""

  # The layer; its output must look like its first input.
  sub_tpl: LayerTpl | None = pax_fiddle.template_field(None)
  # Number of repetitions.
  x_times: int = 0
  # Whether each repetition reports summaries and auxiliary losses under its
  # own name, `layer_0` and on, rather than all of them stacked.
  unpack_summaries: bool = False
  # What the backward pass finds in memory.
  checkpoint_policy: AutodiffCheckpointType = (
    AutodiffCheckpointType.SAVE_NOTHING
  )
  # Whether repetitions are separate, each with a cache of its own, in decoding:
  # a step then writes one row of each cache and copies none of them.
  unroll_in_decode: bool = False
  # Name of the repeated layer in variable trees.
  sublayer_name: str = 'sub'
  # How the optimizer splits the leading axes of its state.
  optimizer_dims_mapping: pytypes.SplitDimsMapping = None
  # Whether the outputs of all repetitions go to the collection INTERMEDIATES.
  collect_intermediate_outputs: bool = False
  # Whether those outputs, stacked, are returned as a second result.
  return_intermediate_outputs: bool = False
  # Several leading axes in place of one; their product is x_times.
  nd_prefix_shape: Sequence[int] | None = None
  # Whether positional arguments after the first change, too: the layer returns
  # as many outputs as it takes positional arguments.
  positional_args_as_scan_carry: bool = False
  # How many repetitions one turn of the loop does: more is faster for small
  # layers and slower to compile.
  scan_unroll: int = 1

  class WeightSharding(base_layer.BaseLayer.WeightSharding):
    # Of the leading axes of all weights.
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
    self._check_one_per_axis(
      'weight_split_dims_mapping.sub', self.weight_split_dims_mapping.sub
    )
    self._check_one_per_axis(
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
    """Returns the last repetition's output, of a method of the layer.

    Args:
      inputs: what the first repetition starts from.
      *args: passed to all repetitions.
      method_name: of the layer; `__call__` when absent.
      per_layer_kwargs: keyword arguments with a leading axis of x_times, of
        which repetition i gets entry i.
      reversed_per_layer_kwargs: likewise, counted from the end.
      **kwargs: passed to all repetitions.
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
    """Does what `__call__` does with the method the factory picks."""
    backwards = reversed_per_layer_kwargs or {}
    xs = dict(per_layer_kwargs or {})
    xs.update(jax.tree.map(lambda x: jnp.flip(x, 0), backwards))
    keeps_outputs = (
      self.collect_intermediate_outputs or self.return_intermediate_outputs
    )

    def body(sub: nn.Module, carry: Any, x: Any) -> tuple[Any, Any]:
      method = method_factory(sub)
      if self.positional_args_as_scan_carry:
        output = method(*carry, **x, **kwargs)
        carry = output if isinstance(output, tuple) else (output,)
        return carry, carry[0] if keeps_outputs else ()
      output = method(carry, *args, **x, **kwargs)
      return output, output if keeps_outputs else ()

    carry = self._cast_to_fprop_dtype(inputs)
    if self.positional_args_as_scan_carry:
      carry = (carry, *args)
    outputs, every_output = self._loop(body, carry, xs)
    if self.collect_intermediate_outputs:
      self.sow(base_layer.INTERMEDIATES, 'repeat_outputs', every_output)
    if self.return_intermediate_outputs:
      return outputs, every_output
    return outputs

  def extend_step(
    self, step_inputs: NestedJTensor, *args: Any, **kwargs: Any
  ) -> Any:
    """Returns the output of one decoding step."""
    return self(step_inputs, *args, method_name='extend_step', **kwargs)

  def _visit_decode_states(
    self, visit: Callable[[base_layer.BaseLayer], None]
  ) -> None:
    def body(sub: nn.Module, carry: Any, x: Any) -> tuple[Any, Any]:
      del x
      visit(sub)
      return carry, ()

    self._loop(body, (), {})

  def quantize_weight(self) -> dict[str, Any]:
    """Returns the weights of all repetitions, stacked, each quantised."""

    def body(sub: nn.Module, carry: Any, x: Any) -> tuple[Any, Any]:
      del x
      return carry, sub.quantize_weight()

    _, stacked = self._loop(body, (), {})
    prefix = tuple(self._prefix_shape())
    unflatten = lambda x: x.reshape(*prefix, *x.shape[1:])
    return {
      collection: {self.sublayer_name: jax.tree.map(unflatten, tree)}
      for collection, tree in stacked.items()
    }

  def quantized_partition_specs(self) -> dict[str, Any]:
    """Returns how what `quantize_weight` returns is split."""
    names = self.mesh_axis_names or ()
    split = self.weight_split_dims_mapping.sub if names else None
    split = split or [None] * len(self._prefix_shape())
    prefix = base_layer.to_partition_spec(split, names)

    def stack(spec: base_layer.BoxedPartitionSpec) -> Any:
      return spec.replace(meta=jax.sharding.PartitionSpec(*prefix, *spec.meta))

    specs = self.sublayer.quantized_partition_specs()
    stacked = jax.tree.map(stack, specs, is_leaf=_is_spec)
    return {c: {self.sublayer_name: tree} for c, tree in stacked.items()}

  # Loops.

  def _loop(self, body: _Body, carry: Any, xs: Any) -> tuple[Any, Any]:
    """Returns the last carry and the stacked ys of all repetitions."""
    is_decoding = self.is_mutable_collection(base_layer.DECODE_CACHE)
    if self.unroll_in_decode and is_decoding and not self.is_initializing():
      return self._unrolled(body, carry, xs)
    policy = self.checkpoint_policy
    loop = self._scanned(checkpoint_policy_lib.in_loop(self, body, policy))
    reports = [c for c in _REPORTS if self.is_mutable_collection(c)]
    if self.unpack_summaries and reports and not self.is_initializing():
      loop = self._unpacking(loop, reports)
    return loop(self.sublayer, carry, xs)

  def _scanned(self, body: _Body) -> _Body:
    """Loops over the leading axes of variables, the last of them innermost."""
    shape = self._prefix_shape()
    for dim in reversed(range(len(shape))):
      body = nn.scan(
        body,
        variable_axes={collection: 0 for collection in _STACKED},
        split_rngs={name: True for name in _RNGS},
        length=shape[dim],
        unroll=self.scan_unroll,
        metadata_params=self._axis_metadata(dim),
        check_constancy_invariants=False,
      )
    if len(shape) == 1:
      return body
    return _with_flat_xs(body, tuple(shape))

  def _unpacking(self, loop: _Body, reports: list[str]) -> _Body:
    """Files the stacked reports of a loop under layer_0, layer_1 ..."""
    prefix = len(self._prefix_shape())

    def unpack(collections: Any) -> Any:
      flat = jax.tree.map(
        lambda x: x.reshape(self.x_times, *x.shape[prefix:]), collections
      )
      return {
        collection: {
          _layer_key(i): _take(stacked, i) for i in range(self.x_times)
        }
        for collection, stacked in flat.items()
        if stacked
      }

    return nn.map_variables(
      loop,
      reports,
      trans_in_fn=lambda collections: {name: {} for name in collections},
      trans_out_fn=unpack,
      mutable=True,
    )

  def _unrolled(self, body: _Body, carry: Any, xs: Any) -> tuple[Any, Any]:
    """Runs the repetitions one after the other."""
    every_y = []
    for i in range(self.x_times):
      repetition = self._repetition(body, i)
      carry, y = repetition(self.sublayer, carry, _take(xs, i))
      every_y.append(y)
    return carry, jax.tree.map(lambda *ys: jnp.stack(ys), *every_y)

  def _repetition(self, body: _Body, i: int) -> _Body:
    """Runs the body with weights [i]; what it stores goes under layer_i."""
    index = np.unravel_index(i, tuple(self._prefix_shape()))
    key = _layer_key(i)

    def take_own(collections: Any) -> Any:
      return {name: tree.get(key, {}) for name, tree in collections.items()}

    def put_own(collections: Any) -> Any:
      return {name: {key: tree} for name, tree in collections.items() if tree}

    body = nn.map_variables(
      body, list(_WEIGHTS), trans_in_fn=lambda tree: _take_apart(tree, index)
    )
    stored = [*_DECODE_STATE, *_REPORTS, base_layer.INTERMEDIATES]
    return nn.map_variables(
      body, stored, trans_in_fn=take_own, trans_out_fn=put_own, mutable=True
    )

  def _prefix_shape(self) -> Sequence[int]:
    return self.nd_prefix_shape or (self.x_times,)

  def _check_one_per_axis(
    self, name: str, mapping: pytypes.SplitDimsMapping
  ) -> None:
    if mapping and len(mapping) != len(self._prefix_shape()):
      raise ValueError(
        f'{name} must have an entry for each leading axis of '
        f'{list(self._prefix_shape())}, got {mapping}'
      )

  def _axis_metadata(self, dim: int) -> dict[str, Any]:
    split = self.weight_split_dims_mapping.sub
    optimizer = self.optimizer_dims_mapping
    return {
      'x_times': self._prefix_shape()[dim],
      'prefix_split_dims_mapping': split[dim] if split else None,
      'optimizer_dims_mapping': optimizer[dim] if optimizer else None,
    }


def _is_spec(x: Any) -> bool:
  return isinstance(x, base_layer.BoxedPartitionSpec)


def _layer_key(i: int) -> str:
  return f'layer_{i}'


def _take(tree: Any, index: Any) -> Any:
  return jax.tree.map(lambda x: x[index], tree)


def _take_apart(tree: Any, index: Any) -> Any:
  """As `_take`, in a loop over decoding steps once and not in every step.

  A CPU copies a part of an array before it multiplies by it. The barrier makes
  XLA do that before the loop; elsewhere parts are read where they are.
  """
  take = lambda x: jax.lax.platform_dependent(
    x[index], cpu=jax.lax.optimization_barrier, default=lambda x: x
  )
  return jax.tree.map(take, tree)


def _with_flat_xs(body: _Body, shape: tuple[int, ...]) -> _Body:
  """Lets nested loops take xs, and return ys, with one leading axis."""

  def wrapped(sub: nn.Module, carry: Any, xs: Any) -> tuple[Any, Any]:
    xs = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), xs)
    carry, ys = body(sub, carry, xs)
    rank = len(shape)
    return carry, jax.tree.map(lambda y: y.reshape(-1, *y.shape[rank:]), ys)

  return wrapped
