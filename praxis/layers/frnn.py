# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks: a cell over time, stacks, and bidirectional stacks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.scope import PRNGSequenceFilter
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle, py_utils
from praxis.alias_names import module_getattr
from praxis.base_layer import (
  AUX_LOSS,
  HYPER_PARAMS,
  NON_TRAINABLE,
  PARAMS,
  RANDOM,
  SUMMARIES,
)
from praxis.layers import rnn_cell
from praxis.nested_map import NestedMap

__getattr__ = module_getattr(__name__)

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field
# All steps share the weights; each has its own randomness.
SCAN_SPLIT_RNGS: Mapping[PRNGSequenceFilter, bool] = {
  PARAMS: False,
  RANDOM: True,
}


def reset_mask(
  segment_ids: Int[Array, 'B T *one'],
  paddings: Num[Array, 'B T *one'] | None = None,
  dtype: Any = jnp.float32,
) -> Float[Array, 'B T *one']:
  """Returns 0 at the first step of each segment, else 1.

  Args:
    segment_ids: the segment of each step.
    paddings: 1 at padding, which starts no segment.
    dtype: the dtype of the mask.
  """
  previous = jnp.pad(
    segment_ids[:, :-1],
    [(0, 0), (1, 0)] + [(0, 0)] * (segment_ids.ndim - 2),
    constant_values=-1,
  )
  keep = previous == segment_ids
  if paddings is not None:
    keep |= paddings != 0
  return keep.astype(dtype)


def _sum_gradients_in_float32(
  scan: Callable[[Callable[..., Any]], Callable[..., Any]],
  step: Callable[..., Any],
) -> Callable[..., Any]:
  """Returns `scan(step)` with gradients of weights in float32 until the end.

  A scan adds the gradients of its steps in the precision of the weights. In
  bfloat16 it loses a quarter of them after 512 steps. Each step casts weights
  of float32 to their own precision.
  """
  dtypes: list[Any] = []

  def widen(weights: Any) -> Any:
    dtypes.append(jax.tree.map(lambda x: x.dtype, weights))
    return jax.tree.map(
      lambda x: (
        x.astype(jnp.float32) if py_utils.is_narrow_float(x.dtype) else x
      ),
      weights,
    )

  def narrow(weights: Any) -> Any:
    return jax.tree.map(lambda x, dtype: x.astype(dtype), weights, dtypes[-1])

  step = nn.map_variables(step, PARAMS, trans_in_fn=narrow)
  return nn.map_variables(scan(step), PARAMS, trans_in_fn=widen)


class FRnn(base_layer.BaseLayer):
  """Runs a cell over time.

  Inputs are a NestedMap of `act`, [B, T, D] or a list of these, `padding`,
  [B, T, 1], and for packed rows with reset_cell_state `segment_ids`, [B, T, 1].
  """

  # The cell.
  cell_tpl: LayerTpl | None = template_field(None)
  # Whether to scan from the last step to the first; outputs keep the order of
  # inputs.
  reverse: bool = False
  # Number of steps per iteration of the scan.
  unroll: int = 1

  def setup(self) -> None:
    if self.cell_tpl is None or self.unroll < 1:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} needs cell_tpl, the Config of a '
        f'BaseRnnCell, and unroll >= 1, got unroll={self.unroll}'
      )
    self.create_child('cell', self.cell_tpl.clone())
    if not isinstance(self.cell, rnn_cell.BaseRnnCell):
      raise ValueError(
        f'cell_tpl of {type(self).__name__} {self.name!r} must be of a '
        f'BaseRnnCell, got {type(self.cell).__name__}'
      )

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the state before the first step."""
    return self.cell.init_states(batch_size)

  def get_output(self, state: NestedMap) -> Float[Array, 'B O']:
    """Returns the output of the step that led to `state`."""
    return self.cell.get_output(state)

  def extend_step(
    self, inputs: NestedMap, state0: NestedMap
  ) -> tuple[NestedMap, Float[Array, 'B O']]:
    """Returns state and output after one step within a segment."""
    inputs = _cast_inputs(self, inputs)
    self._check_shapes(inputs, 2)
    inputs.reset_mask = jnp.ones_like(inputs.padding)
    state1 = self.cell(state0, inputs)
    return state1, self.get_output(state1)

  def __call__(
    self, inputs: NestedMap, state0: NestedMap | None = None
  ) -> tuple[Float[Array, 'B T O'], NestedMap]:
    """Returns the output of each step, and the final state."""
    return self._scan(self._cell_inputs(inputs), state0, lambda cell: cell)

  def _cell_inputs(self, inputs: NestedMap) -> NestedMap:
    """Returns inputs of the cell with reset_mask, in the order of the scan."""
    inputs = _cast_inputs(self, inputs)
    self._check_shapes(inputs, 3)
    if self.reverse:
      inputs = jax.tree.map(lambda x: jnp.flip(x, axis=1), inputs)
    if 'segment_ids' in inputs:
      inputs.reset_mask = reset_mask(
        inputs.segment_ids, inputs.padding, self.fprop_dtype
      )
    else:
      inputs.reset_mask = jnp.ones_like(inputs.padding, self.fprop_dtype)
    return inputs

  def _check_shapes(self, inputs: NestedMap, rank: int) -> None:
    """Raises ValueError for padding that would be broadcast over units."""
    wanted = (*inputs.padding.shape[: rank - 1], 1)
    for name in ('padding', 'segment_ids'):
      if name in inputs and inputs[name].shape != wanted:
        raise ValueError(
          f'{name} of {type(self).__name__} {self.name!r} must be '
          f'{"[B, T, 1]" if rank == 3 else "[B, 1]"}, got the shape '
          f'{inputs[name].shape}; {name}[..., None] adds the last dimension'
        )

  def _scan(
    self,
    inputs: NestedMap,
    state0: NestedMap | None,
    get_step_fn: Callable[[Any], Callable[..., NestedMap]],
  ) -> tuple[Float[Array, 'B T O'], NestedMap]:
    """Scans over time; a step is `get_step_fn(cell)(state, step_inputs)`."""
    if not state0:
      state0 = self.init_states(inputs.padding.shape[0])

    def body(cell: Any, state: Any, step_inputs: Any) -> tuple[Any, Any]:
      state = get_step_fn(cell)(state, step_inputs)
      return state, cell.get_output(state)

    if self.is_initializing():
      # The scan cannot create variables.
      body(self.cell, state0, jax.tree.map(lambda x: x[:, 0], inputs))
    # Updates of non-trainable variables are visible to the next step.
    scan = functools.partial(
      nn.scan,
      in_axes=1,
      out_axes=1,
      unroll=self.unroll,
      variable_broadcast=[PARAMS],
      variable_carry=[NON_TRAINABLE],
      variable_axes=dict.fromkeys((AUX_LOSS, SUMMARIES, HYPER_PARAMS), 0),
      split_rngs=SCAN_SPLIT_RNGS,
    )
    scan_steps = _sum_gradients_in_float32(scan, body)
    # The auxiliary loss is the sum over steps.
    scan_steps = nn.map_variables(
      scan_steps,
      AUX_LOSS,
      mutable=self.is_mutable_collection(AUX_LOSS),
      trans_out_fn=lambda losses: jax.tree.map(jnp.sum, losses),
    )
    state, outputs = scan_steps(self.cell, state0, inputs)
    return jnp.flip(outputs, axis=1) if self.reverse else outputs, state


class LstmFrnn(FRnn):
  """Runs an LSTM over time; one matmul projects the inputs of all steps."""

  @property
  def num_input_nodes(self) -> int:
    """Size of the input."""
    cell: rnn_cell.LstmCellSimple = self.cell
    return cell.num_input_nodes

  @property
  def num_output_nodes(self) -> int:
    """Size of the output."""
    cell: rnn_cell.LstmCellSimple = self.cell
    return cell.num_output_nodes

  def __call__(
    self, inputs: NestedMap, state0: NestedMap | None = None
  ) -> tuple[Float[Array, 'B T O'], NestedMap]:
    """Returns the output of each step, and the final state."""
    inputs = self._cell_inputs(inputs)
    inputs.proj_inputs = self.cell.project_input(inputs)
    del inputs.act
    return self._scan(
      inputs, state0, lambda cell: cell.fprop_with_projected_inputs
    )


class _Stack(base_layer.BaseLayer):
  """Base of stacks of recurrent layers."""

  # One layer; the stack sets the sizes of its cell.
  frnn_tpl: LayerTpl | None = template_field(None)
  # Number of layers.
  num_layers: int = 1
  # Sizes of the first layer's input, and of every layer's output.
  num_input_nodes: int = 0
  num_output_nodes: int = 0

  def _checked_template(self) -> LayerTpl:
    if self.frnn_tpl is None or self.num_layers < 1:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} needs frnn_tpl, the Config of a '
        f'FRnn, and num_layers >= 1, got num_layers={self.num_layers}'
      )
    return self.frnn_tpl

  def _layer_templates(
    self, outputs: int, *, reverse: bool | None = None
  ) -> list[LayerTpl]:
    """Returns the layers of one direction, with cells of `outputs` outputs."""
    template = self._checked_template()
    layers = []
    for i in range(self.num_layers):
      layer = template.clone()
      layer.cell_tpl.set(
        num_input_nodes=self.num_output_nodes if i else self.num_input_nodes,
        num_output_nodes=outputs,
      )
      if reverse is not None:
        layer.reverse = reverse
      layers.append(layer)
    return layers


class StackFrnn(_Stack):
  """A stack of recurrent layers."""

  def setup(self) -> None:
    self._checked_template()
    layers = self._layer_templates(self.num_output_nodes)
    self.create_children('frnn', layers)

  def init_states(self, batch_size: int) -> list[NestedMap]:
    """Returns the initial states of all layers."""
    return _init_states(self.frnn, batch_size)

  def get_output(self, state: list[NestedMap]) -> Float[Array, 'B O']:
    """Returns the output of the step that led to `state`."""
    return self.frnn[-1].get_output(state[-1])

  def extend_step(
    self, inputs: NestedMap, state: list[NestedMap]
  ) -> tuple[list[NestedMap], Float[Array, 'B O']]:
    """Returns states and output after one step within a segment."""
    states = []
    act = inputs.act
    for layer, layer_state in zip(self.frnn, state, strict=True):
      layer_inputs = NestedMap(inputs, act=act)
      new_state, act = layer.extend_step(layer_inputs, layer_state)
      states.append(new_state)
    return states, act

  def __call__(
    self, inputs: NestedMap, state0: list[NestedMap] | None = None
  ) -> tuple[Float[Array, 'B T O'], list[NestedMap]]:
    """Returns the last layer's outputs, and the final states of all layers."""
    inputs = _cast_inputs(self, inputs)
    state0 = state0 or self.init_states(inputs.padding.shape[0])
    states = []
    for layer, layer_state0 in zip(self.frnn, state0, strict=True):
      inputs.act, state = layer(inputs, layer_state0)
      states.append(state)
    return inputs.act, states


class StackBiFrnn(_Stack):
  """A bidirectional stack; each direction has half of the output size."""

  def setup(self) -> None:
    self._checked_template()
    if self.num_output_nodes % 2:
      raise ValueError(
        f'StackBiFrnn {self.name!r} needs an even num_output_nodes, half for '
        f'each direction, got {self.num_output_nodes}'
      )
    half = self.num_output_nodes // 2
    forward = self._layer_templates(half, reverse=False)
    backward = self._layer_templates(half, reverse=True)
    self.create_children('fwd_frnn', forward)
    self.create_children('bwd_frnn', backward)

  def fwd_init_states(self, batch_size: int) -> list[NestedMap]:
    """Returns the initial states of the forward layers."""
    return _init_states(self.fwd_frnn, batch_size)

  def bwd_init_states(self, batch_size: int) -> list[NestedMap]:
    """Returns the initial states of the backward layers."""
    return _init_states(self.bwd_frnn, batch_size)

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the initial states `fwd` and `bwd` of the two directions."""
    return NestedMap(
      fwd=self.fwd_init_states(batch_size), bwd=self.bwd_init_states(batch_size)
    )

  def __call__(
    self, inputs: NestedMap, state0: NestedMap | None = None
  ) -> tuple[Float[Array, 'B T O'], list[NestedMap]]:
    """Returns the last layer's outputs, and `fwd` and `bwd` of each layer."""
    inputs = _cast_inputs(self, inputs)
    state0 = state0 or self.init_states(inputs.padding.shape[0])
    states = []
    for i in range(self.num_layers):
      fwd_act, fwd_state = self.fwd_frnn[i](inputs, state0.fwd[i])
      bwd_act, bwd_state = self.bwd_frnn[i](inputs, state0.bwd[i])
      inputs.act = jnp.concatenate([fwd_act, bwd_act], axis=-1)
      states.append(NestedMap(fwd=fwd_state, bwd=bwd_state))
    return inputs.act, states


def _init_states(layers: Sequence[FRnn], batch_size: int) -> list[NestedMap]:
  return [layer.init_states(batch_size) for layer in layers]


def _cast_inputs(layer: base_layer.BaseLayer, inputs: NestedMap) -> NestedMap:
  """Returns a copy of `inputs` in fprop_dtype.

  Raises:
    ValueError: `act` or `padding` is missing.
  """
  missing = {'act', 'padding'} - set(inputs)
  if missing:
    raise ValueError(
      f'inputs of {type(layer).__name__} {layer.name!r} need act and padding, '
      f'got {sorted(inputs)}'
    )
  return NestedMap(layer._cast_to_fprop_dtype(inputs))
