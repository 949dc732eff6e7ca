# SPDX-License-Identifier: Apache-2.0
"""Recurrent networks: cells run over time, stacks of them, both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from praxis import base_layer, pax_fiddle
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

LayerTpl = pax_fiddle.Config[base_layer.BaseLayer]
template_field = pax_fiddle.template_field


def reset_mask(
  segment_ids: Int[Array, 'B T *one'],
  paddings: Num[Array, 'B T *one'] | None = None,
  dtype: Any = jnp.float32,
) -> Float[Array, 'B T *one']:
  """Returns 0 where a segment starts, else 1; padding starts no segment."""
  before = jnp.pad(
    segment_ids[:, :-1],
    [(0, 0), (1, 0)] + [(0, 0)] * (segment_ids.ndim - 2),
    constant_values=-1,
  )
  keep = before == segment_ids
  if paddings is not None:
    keep |= paddings != 0
  return keep.astype(dtype)


class FRnn(base_layer.BaseLayer):
  """Runs a cell over time.

  Inputs are a NestedMap of `act`, [B, T, D] or a list of such, `padding`,
  [B, T, 1], and `segment_ids`, [B, T, 1], where rows pack several sequences
  and the cell has reset_cell_state.
  """

  # The cell.
  cell_tpl: LayerTpl | None = template_field(None)
  # Whether time runs backwards; outputs stay where their inputs are.
  reverse: bool = False
  # How many steps one turn of the loop does.
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
    """Returns state and output after one step, which starts no segment."""
    inputs = _checked(self, inputs)
    inputs.reset_mask = jnp.ones_like(inputs.padding)
    state1 = self.cell(state0, inputs)
    return state1, self.get_output(state1)

  def __call__(
    self, inputs: NestedMap, state0: NestedMap | None = None
  ) -> tuple[Float[Array, 'B T O'], NestedMap]:
    """Returns the output at each step, and the state after the last one."""
    return self._loop(self._prepared(inputs), state0, lambda cell: cell)

  def _prepared(self, inputs: NestedMap) -> NestedMap:
    """Returns inputs of the cell, in the order of its steps."""
    inputs = _checked(self, inputs)
    if self.reverse:
      inputs = jax.tree.map(lambda x: jnp.flip(x, axis=1), inputs)
    if 'segment_ids' in inputs:
      inputs.reset_mask = reset_mask(
        inputs.segment_ids, inputs.padding, self.fprop_dtype
      )
    else:
      inputs.reset_mask = jnp.ones_like(inputs.padding, self.fprop_dtype)
    return inputs

  def _loop(
    self,
    inputs: NestedMap,
    state0: NestedMap | None,
    step_of: Callable[[Any], Callable[..., NestedMap]],
  ) -> tuple[Float[Array, 'B T O'], NestedMap]:
    """Scans over time: a step is `step_of(cell)(state, inputs)`."""
    if not state0:
      state0 = self.init_states(inputs.padding.shape[0])

    def body(cell: Any, state: Any, now: Any) -> tuple[Any, Any]:
      state = step_of(cell)(state, now)
      return state, cell.get_output(state)

    if self.is_initializing():
      # Variables cannot be created inside of the loop.
      body(self.cell, state0, jax.tree.map(lambda x: x[:, 0], inputs))
    # A step sees what the last one did to non-trainable variables.
    scan = nn.scan(
      body,
      variable_axes={AUX_LOSS: 0, SUMMARIES: 0, HYPER_PARAMS: 0},
      variable_broadcast=[PARAMS],
      variable_carry=[NON_TRAINABLE],
      split_rngs={PARAMS: False, RANDOM: True},
      in_axes=1,
      out_axes=1,
      unroll=self.unroll,
    )
    # Auxiliary losses are those of all steps together.
    scan = nn.map_variables(
      scan,
      AUX_LOSS,
      mutable=self.is_mutable_collection(AUX_LOSS),
      trans_out_fn=lambda losses: jax.tree.map(jnp.sum, losses),
    )
    state, outputs = scan(self.cell, state0, inputs)
    return jnp.flip(outputs, axis=1) if self.reverse else outputs, state


class LstmFrnn(FRnn):
  """Runs an LSTM over time; the inputs of all steps are projected at once."""

  @property
  def num_input_nodes(self) -> int:
    return self.cell.num_input_nodes

  @property
  def num_output_nodes(self) -> int:
    return self.cell.num_output_nodes

  def __call__(
    self, inputs: NestedMap, state0: NestedMap | None = None
  ) -> tuple[Float[Array, 'B T O'], NestedMap]:
    """Returns the output at each step, and the state after the last one."""
    inputs = self._prepared(inputs)
    inputs.proj_inputs = self.cell.project_input(inputs)
    del inputs.act
    step_of = lambda cell: cell.fprop_with_projected_inputs
    return self._loop(inputs, state0, step_of)


class _Stack(base_layer.BaseLayer):
  """What stacks of recurrent networks share."""

  # One layer; its cell's sizes are the stack's.
  frnn_tpl: LayerTpl | None = template_field(None)
  # How many layers.
  num_layers: int = 1
  # Sizes of the first layer's input, and of the output of every layer.
  num_input_nodes: int = 0
  num_output_nodes: int = 0

  def _check_settings(self) -> None:
    if self.frnn_tpl is None or self.num_layers < 1:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} needs frnn_tpl, the Config of a '
        f'FRnn, and num_layers >= 1, got num_layers={self.num_layers}'
      )

  def _create_layers(
    self, name: str, outputs: int, *, reverse: bool | None = None
  ) -> None:
    """Creates the layers of one direction; a cell has `outputs` outputs."""
    layers = []
    for i in range(self.num_layers):
      layer = self.frnn_tpl.clone()
      layer.cell_tpl.set(
        num_input_nodes=self.num_output_nodes if i else self.num_input_nodes,
        num_output_nodes=outputs,
      )
      if reverse is not None:
        layer.reverse = reverse
      layers.append(layer)
    self.create_children(name, layers)


class StackFrnn(_Stack):
  """A stack of recurrent networks, each run on the outputs of the last."""

  def setup(self) -> None:
    self._check_settings()
    self._create_layers('frnn', self.num_output_nodes)

  def init_states(self, batch_size: int) -> list[NestedMap]:
    """Returns the states of all layers before the first step."""
    return _init_states(self.frnn, batch_size)

  def get_output(self, state: list[NestedMap]) -> Float[Array, 'B O']:
    """Returns the output of the step that led to `state`."""
    return self.frnn[-1].get_output(state[-1])

  def extend_step(
    self, inputs: NestedMap, state: list[NestedMap]
  ) -> tuple[list[NestedMap], Float[Array, 'B O']]:
    """Returns states and output after one step, which starts no segment."""
    states = []
    act = inputs.act
    for layer, before in zip(self.frnn, state, strict=True):
      now = NestedMap(inputs, act=act)
      after, act = layer.extend_step(now, before)
      states.append(after)
    return states, act

  def __call__(
    self, inputs: NestedMap, state0: list[NestedMap] | None = None
  ) -> tuple[Float[Array, 'B T O'], list[NestedMap]]:
    """Returns the last layer's outputs, and the final states of all layers."""
    inputs = _checked(self, inputs)
    state0 = state0 or self.init_states(inputs.padding.shape[0])
    states = []
    for layer, before in zip(self.frnn, state0, strict=True):
      inputs.act, state = layer(inputs, before)
      states.append(state)
    return inputs.act, states


class StackBiFrnn(_Stack):
  """A stack whose layers run in both directions, half of the output each."""

  def setup(self) -> None:
    self._check_settings()
    if self.num_output_nodes % 2:
      raise ValueError(
        f'StackBiFrnn {self.name!r} needs an even num_output_nodes, half for '
        f'each direction, got {self.num_output_nodes}'
      )
    half = self.num_output_nodes // 2
    self._create_layers('fwd_frnn', half, reverse=False)
    self._create_layers('bwd_frnn', half, reverse=True)

  def fwd_init_states(self, batch_size: int) -> list[NestedMap]:
    """Returns the states of the layers that run forwards."""
    return _init_states(self.fwd_frnn, batch_size)

  def bwd_init_states(self, batch_size: int) -> list[NestedMap]:
    """Returns the states of the layers that run backwards."""
    return _init_states(self.bwd_frnn, batch_size)

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the states of both directions: `fwd` and `bwd`."""
    return NestedMap(
      fwd=self.fwd_init_states(batch_size), bwd=self.bwd_init_states(batch_size)
    )

  def __call__(
    self, inputs: NestedMap, state0: NestedMap | None = None
  ) -> tuple[Float[Array, 'B T O'], list[NestedMap]]:
    """Returns the last layer's outputs, and `fwd` and `bwd` of each layer."""
    inputs = _checked(self, inputs)
    state0 = state0 or self.init_states(inputs.padding.shape[0])
    states = []
    for i in range(self.num_layers):
      ahead, fwd = self.fwd_frnn[i](inputs, state0.fwd[i])
      back, bwd = self.bwd_frnn[i](inputs, state0.bwd[i])
      inputs.act = jnp.concatenate([ahead, back], axis=-1)
      states.append(NestedMap(fwd=fwd, bwd=bwd))
    return inputs.act, states


def _init_states(layers: Sequence[FRnn], batch_size: int) -> list[NestedMap]:
  return [layer.init_states(batch_size) for layer in layers]


def _checked(layer: base_layer.BaseLayer, inputs: NestedMap) -> NestedMap:
  """Returns a copy of `inputs`, in fprop_dtype, with what every cell needs."""
  missing = {'act', 'padding'} - set(inputs)
  if missing:
    raise ValueError(
      f'inputs of {type(layer).__name__} {layer.name!r} need act and padding, '
      f'got {sorted(inputs)}'
    )
  return NestedMap(layer._cast_to_fprop_dtype(inputs))
