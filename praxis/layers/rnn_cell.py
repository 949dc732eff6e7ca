# SPDX-License-Identifier: Apache-2.0
"""Cells of recurrent networks."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer
from praxis.alias_names import module_getattr
from praxis.base_layer import WeightHParams, WeightInit
from praxis.nested_map import NestedMap

__getattr__ = module_getattr(__name__)


class BaseRnnCell(base_layer.BaseLayer):
  """One step of a recurrent network: maps state and inputs to a new state.

  Inputs are a NestedMap of `act`, one array [B, D] or several, `padding`
  [B, 1], where 1 leaves the state unchanged, and further inputs of the cell.
  States are NestedMaps of arrays of constant shape and dtype.
  """

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns the state before the first step."""
    raise NotImplementedError(f'{type(self).__name__} defines no init_states')

  def get_output(self, state: NestedMap) -> Float[Array, 'B O']:
    """Returns the output of the step that led to `state`."""
    raise NotImplementedError(f'{type(self).__name__} defines no get_output')

  def __call__(self, state0: NestedMap, inputs: NestedMap) -> NestedMap:
    """Returns the state after a step."""
    raise NotImplementedError(f'{type(self).__name__} defines no __call__')


class LstmCellSimple(BaseRnnCell):
  """A long short-term memory cell.

  The state has the output `m` and the cell state `c`. One matmul of input and
  previous output computes all gates, in the order cell input, input gate,
  forget gate, output gate.

  References: https://www.bioinf.jku.at/publications/older/2604.pdf
  """

  # Number of arrays in `inputs.act`.
  inputs_arity: int = 1
  # Total size of the input arrays, and size of the output.
  num_input_nodes: int = 0
  num_output_nodes: int = 0
  # Size of the cell state of a projected LSTM
  # (https://arxiv.org/abs/1402.1128); 0: the output is not projected.
  num_hidden_nodes: int = 0
  # Whether the state is reset to 0 where `inputs.reset_mask`, [B, 1], is 0: at
  # the first step of each sequence of a packed row.
  reset_cell_state: bool = False
  # The cell state is clipped to [-cell_value_cap, cell_value_cap]; None: no
  # clipping.
  cell_value_cap: float | None = 10.0
  # Added to the forget gate.
  forget_gate_bias: float = 0.0
  # Whether tanh is applied to the cell state for the output.
  output_nonlinearity: bool = True
  # The zoneout probability that an entry of the state keeps its value in
  # training; eval uses the expectation. References:
  # https://arxiv.org/abs/1606.01305
  zo_prob: float = 0.0
  # The initializer of the gates' bias.
  bias_init: WeightInit = dataclasses.field(
    default_factory=lambda: WeightInit.Constant(0.0)
  )

  @property
  def num_gates(self) -> int:
    """Number of gates, the cell input included."""
    return 4

  @property
  def hidden_size(self) -> int:
    """Size of the cell state."""
    is_projected = self.num_hidden_nodes > 0
    return self.num_hidden_nodes if is_projected else self.output_size

  @property
  def output_size(self) -> int:
    """Size of the output."""
    return self.num_output_nodes

  def setup(self) -> None:
    self._check_settings()
    gates = self.num_gates * self.hidden_size
    inputs = self.num_input_nodes + self.output_size
    self._create('wm', [inputs, gates])
    if self.num_hidden_nodes:
      self._create('w_proj', [self.hidden_size, self.output_size])
    self._create('b', [gates], self.bias_init)

  def init_states(self, batch_size: int) -> NestedMap:
    """Returns zeros: `m`, [B, output_size], and `c`, [B, hidden_size]."""
    return NestedMap(
      m=jnp.zeros((batch_size, self.output_size), self.fprop_dtype),
      c=jnp.zeros((batch_size, self.hidden_size), self.fprop_dtype),
    )

  def get_output(self, state: NestedMap) -> Float[Array, 'B O']:
    return state.m

  def __call__(self, state0: NestedMap, inputs: NestedMap) -> NestedMap:
    """Returns the state after a step."""
    state0 = self._reset(state0, inputs)
    act = jnp.concatenate([self._join(inputs.act), state0.m], axis=-1)
    gates = jnp.einsum('bd,dg->bg', act, self.theta.wm)
    return self._advance(state0, gates, inputs.padding)

  def project_input(self, inputs: NestedMap) -> Float[Array, '*T G']:
    """Returns the contribution of inputs to the gates, for any leading dims."""
    weight = self.theta.wm[: self.num_input_nodes]
    return jnp.einsum('...d,dg->...g', self._join(inputs.act), weight)

  def fprop_with_projected_inputs(
    self, state0: NestedMap, inputs: NestedMap
  ) -> NestedMap:
    """Returns the state after a step from `inputs.proj_inputs`.

    These are the result of `project_input`, which can project all steps in one
    matmul.
    """
    state0 = self._reset(state0, inputs)
    weight = self.theta.wm[self.num_input_nodes :]
    gates = inputs.proj_inputs + jnp.einsum('bd,dg->bg', state0.m, weight)
    return self._advance(state0, gates, inputs.padding)

  def _join(self, act: Array | list[Array] | tuple[Array, ...]) -> Array:
    """Returns the concatenation of the input arrays."""
    arrays = list(act) if isinstance(act, list | tuple) else [act]
    size = sum(array.shape[-1] for array in arrays)
    if len(arrays) != self.inputs_arity or size != self.num_input_nodes:
      raise ValueError(
        f'inputs.act of {type(self).__name__} {self.name!r} must be '
        f'inputs_arity={self.inputs_arity} arrays, in all of size '
        f'num_input_nodes={self.num_input_nodes}, got '
        f'{[array.shape for array in arrays]}'
      )
    return jnp.concatenate(arrays, axis=-1)

  def _reset(self, state: NestedMap, inputs: NestedMap) -> NestedMap:
    if not self.reset_cell_state:
      return state
    if 'reset_mask' not in inputs:
      raise ValueError(
        f'{type(self).__name__} {self.name!r} has reset_cell_state: inputs '
        f'need reset_mask, got {sorted(inputs)}; frnn.reset_mask makes it'
      )
    keep = inputs.reset_mask
    return jax.tree.map(lambda x: x * keep.astype(x.dtype), state)

  def _advance(
    self, state0: NestedMap, gates: Float[Array, 'B G'], padding: Array
  ) -> NestedMap:
    """Returns the state after a step with these gate preactivations."""
    new_c, output = self._update_cell(state0.c, self._split_gates(gates))
    if self.num_hidden_nodes:
      output = jnp.einsum('bd,dc->bc', output, self.theta.w_proj)
    return NestedMap(
      c=self._zone_out(state0.c, new_c, padding),
      m=self._zone_out(state0.m, output, padding),
    )

  def _split_gates(self, x: Float[Array, 'B G']) -> list[Array]:
    """Returns the preactivation of each gate, bias added."""
    gates = jnp.split(x + self.theta.b, self.num_gates, axis=-1)
    return self._bias_forget_gate(gates)

  def _bias_forget_gate(self, gates: list[Array]) -> list[Array]:
    if self.forget_gate_bias:
      gates[-2] = gates[-2] + self.forget_gate_bias
    return gates

  def _update_cell(
    self, cell: Float[Array, 'B H'], gates: list[Array]
  ) -> tuple[Float[Array, 'B H'], Float[Array, 'B H']]:
    """Returns the new cell state and the gated output."""
    cell_input, *input_gate, forget_gate, output_gate = gates
    forget = jax.nn.sigmoid(forget_gate)
    update = jax.nn.sigmoid(input_gate[0]) if input_gate else 1.0 - forget
    new_cell = forget * cell + update * jnp.tanh(cell_input)
    if self.cell_value_cap is not None:
      cap = self.cell_value_cap
      new_cell = jnp.clip(new_cell, -cap, cap)
    output = jnp.tanh(new_cell) if self.output_nonlinearity else new_cell
    return new_cell, jax.nn.sigmoid(output_gate) * output

  def _zone_out(
    self,
    old: Float[Array, 'B H'],
    new: Float[Array, 'B H'],
    padding: Num[Array, 'B 1'],
  ) -> Float[Array, 'B H']:
    """Returns `new`, with `old` at padding and where zoneout keeps it."""
    keep = padding != 0
    if self.zo_prob > 0.0 and self.do_eval:
      new = self.zo_prob * old + (1.0 - self.zo_prob) * new
    elif self.zo_prob > 0.0:
      key = self.next_prng_key()
      keep |= jax.random.bernoulli(key, self.zo_prob, old.shape)
    return jnp.where(keep, old, new)

  def _create(
    self, name: str, shape: list[int], init: WeightInit | None = None
  ) -> None:
    hparams = WeightHParams(shape=shape, init=init, mesh_shape=self.mesh_shape)
    self.create_variable(name, hparams)

  def _check_settings(self) -> None:
    layer_name = f'{type(self).__name__} {self.name!r}'
    if self.num_input_nodes <= 0 or self.num_output_nodes <= 0:
      raise ValueError(
        f'{layer_name} needs num_input_nodes > 0 and num_output_nodes > 0, got '
        f'{self.num_input_nodes} and {self.num_output_nodes}'
      )
    if not 0.0 <= self.zo_prob < 1.0:
      raise ValueError(
        f'{layer_name} needs zo_prob in [0, 1), got {self.zo_prob}'
      )
    if self.cell_value_cap is not None and self.cell_value_cap <= 0:
      raise ValueError(
        f'{layer_name} needs cell_value_cap > 0, or None for none, got '
        f'{self.cell_value_cap}'
      )


class LayerNormalizedLstmCellSimple(LstmCellSimple):
  """An LSTM with layer normalization of each gate before its bias.

  References: https://arxiv.org/abs/1607.06450
  """

  # Added to the variance.
  layer_norm_epsilon: float = 1e-8

  def setup(self) -> None:
    super().setup()
    gates = self.num_gates * self.hidden_size
    self._create('ln_scale', [gates], WeightInit.Constant(1.0))

  def _split_gates(self, x: Float[Array, 'B G']) -> list[Array]:
    split = lambda a: a.reshape(*a.shape[:-1], self.num_gates, -1)
    gates = split(x)
    centered = gates - jnp.mean(gates, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
    normalized = centered * jax.lax.rsqrt(variance + self.layer_norm_epsilon)
    gates = normalized * split(self.theta.ln_scale) + split(self.theta.b)
    return self._bias_forget_gate(list(jnp.moveaxis(gates, -2, 0)))


class CifgLstmCellSimple(LstmCellSimple):
  """An LSTM with coupled gates: the input gate is 1 - the forget gate.

  References: https://arxiv.org/abs/1503.04069
  """

  @property
  def num_gates(self) -> int:
    return 3

  def _check_settings(self) -> None:
    super()._check_settings()
    if self.forget_gate_bias:
      raise ValueError(
        f'CifgLstmCellSimple {self.name!r} has no forget_gate_bias, got '
        f'{self.forget_gate_bias}; set bias_init'
      )
