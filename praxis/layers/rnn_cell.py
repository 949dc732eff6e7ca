# SPDX-License-Identifier: Apache-2.0
"""Cells of recurrent networks: what one time step does."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from praxis import base_layer
from praxis.base_layer import WeightHParams, WeightInit
from praxis.nested_map import NestedMap


class BaseRnnCell(base_layer.BaseLayer):
  """One step of a recurrent network: from state and inputs to a new state.

  Inputs are a NestedMap of `act`, one array [B, D] or a list of them, of
  `padding` [B, 1], where 1 keeps the state as it is, and of what else a cell
  needs. States are NestedMaps of arrays of constant shape and dtype.
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
  """LSTM: gates decide what the cell forgets, takes in and shows.

  The state is `m`, the output, and `c`, the cell. One product of input and
  last output makes all gates, in the order input, input gate, forget gate,
  output gate.

  References: https://www.bioinf.jku.at/publications/older/2604.pdf
  """

  # How many arrays `inputs.act` has.
  inputs_arity: int = 1
  # Size of the input, all its arrays together, and of the output.
  num_input_nodes: int = 0
  num_output_nodes: int = 0
  # Size of the cell, if the output is a projection of it; 0: the output's.
  # References: https://arxiv.org/abs/1603.08042
  num_hidden_nodes: int = 0
  # Whether the state becomes 0 where `inputs.reset_mask`, [B, 1], is 0: at the
  # first step of each sequence of a packed row.
  reset_cell_state: bool = False
  # The cell is clipped to [-cell_value_cap, cell_value_cap]; None: it is not.
  cell_value_cap: float | None = 10.0
  # Added to the forget gate.
  forget_gate_bias: float = 0.0
  # Whether the output is of the cell's tanh, or of the cell itself.
  output_nonlinearity: bool = True
  # The probability that an entry of the state is kept in a step of training;
  # eval takes the mean. References: https://arxiv.org/abs/1606.01305
  zo_prob: float = 0.0
  # What the gates' bias starts from.
  bias_init: WeightInit = dataclasses.field(
    default_factory=lambda: WeightInit.Constant(0.0)
  )

  @property
  def num_gates(self) -> int:
    """How many gates there are, the input itself among them."""
    return 4

  @property
  def output_size(self) -> int:
    return self.num_output_nodes

  @property
  def hidden_size(self) -> int:
    """Size of the cell."""
    return self.num_hidden_nodes or self.num_output_nodes

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
    """Returns the input's part of the gates, of any number of steps."""
    weight = self.theta.wm[: self.num_input_nodes]
    return jnp.einsum('...d,dg->...g', self._join(inputs.act), weight)

  def fprop_with_projected_inputs(
    self, state0: NestedMap, inputs: NestedMap
  ) -> NestedMap:
    """Does what `__call__` does, from `inputs.proj_inputs` instead of `act`.

    All steps can be projected at once by `project_input`.
    """
    state0 = self._reset(state0, inputs)
    weight = self.theta.wm[self.num_input_nodes :]
    gates = inputs.proj_inputs + jnp.einsum('bd,dg->bg', state0.m, weight)
    return self._advance(state0, gates, inputs.padding)

  def _join(self, act: Array | list[Array] | tuple[Array, ...]) -> Array:
    """Returns the parts of an input as one."""
    parts = list(act) if isinstance(act, list | tuple) else [act]
    size = sum(part.shape[-1] for part in parts)
    if len(parts) != self.inputs_arity or size != self.num_input_nodes:
      raise ValueError(
        f'inputs.act of {type(self).__name__} {self.name!r} must be '
        f'inputs_arity={self.inputs_arity} arrays, in all of size '
        f'num_input_nodes={self.num_input_nodes}, got '
        f'{[part.shape for part in parts]}'
      )
    return jnp.concatenate(parts, axis=-1)

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
    """Returns the state that follows from the gates' products."""
    new_c, shown = self._cell(state0.c, self._split_gates(gates))
    if self.num_hidden_nodes:
      shown = jnp.einsum('bd,dc->bc', shown, self.theta.w_proj)
    return NestedMap(
      c=self._zone_out(state0.c, new_c, padding),
      m=self._zone_out(state0.m, shown, padding),
    )

  def _split_gates(self, x: Float[Array, 'B G']) -> list[Array]:
    """Returns each gate with its bias, before its nonlinearity."""
    gates = jnp.split(x + self.theta.b, self.num_gates, axis=-1)
    return self._bias_forget_gate(gates)

  def _bias_forget_gate(self, gates: list[Array]) -> list[Array]:
    if self.forget_gate_bias:
      gates[-2] = gates[-2] + self.forget_gate_bias
    return gates

  def _cell(
    self, cell: Float[Array, 'B H'], gates: list[Array]
  ) -> tuple[Float[Array, 'B H'], Float[Array, 'B H']]:
    """Returns the new cell, and what it shows of itself."""
    i_i, *input_gate, f_g, o_g = gates
    forget = jax.nn.sigmoid(f_g)
    take_in = jax.nn.sigmoid(input_gate[0]) if input_gate else 1.0 - forget
    new = forget * cell + take_in * jnp.tanh(i_i)
    if self.cell_value_cap is not None:
      new = jnp.clip(new, -self.cell_value_cap, self.cell_value_cap)
    visible = jnp.tanh(new) if self.output_nonlinearity else new
    return new, jax.nn.sigmoid(o_g) * visible

  def _zone_out(
    self,
    old: Float[Array, 'B H'],
    new: Float[Array, 'B H'],
    padding: Num[Array, 'B 1'],
  ) -> Float[Array, 'B H']:
    """Returns the new values, with old ones for padding and by zoneout."""
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
    who = f'{type(self).__name__} {self.name!r}'
    if self.num_input_nodes <= 0 or self.num_output_nodes <= 0:
      raise ValueError(
        f'{who} needs num_input_nodes > 0 and num_output_nodes > 0, got '
        f'{self.num_input_nodes} and {self.num_output_nodes}'
      )
    if not 0.0 <= self.zo_prob < 1.0:
      raise ValueError(f'{who} needs zo_prob in [0, 1), got {self.zo_prob}')
    if self.cell_value_cap is not None and self.cell_value_cap <= 0:
      raise ValueError(
        f'{who} needs cell_value_cap > 0, or None for none, got '
        f'{self.cell_value_cap}'
      )


class LayerNormalizedLstmCellSimple(LstmCellSimple):
  """An LSTM whose gates are normalised before their biases are added.

  References: https://arxiv.org/abs/1607.06450
  """

  # Added to the variance.
  layer_norm_epsilon: float = 1e-8

  def setup(self) -> None:
    super().setup()
    gates = self.num_gates * self.hidden_size
    self._create('ln_scale', [gates], WeightInit.Constant(1.0))

  def _split_gates(self, x: Float[Array, 'B G']) -> list[Array]:
    by_gate = lambda a: a.reshape(*a.shape[:-1], self.num_gates, -1)
    gates = by_gate(x)
    centred = gates - jnp.mean(gates, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + self.layer_norm_epsilon)
    gates = normed * by_gate(self.theta.ln_scale) + by_gate(self.theta.b)
    return self._bias_forget_gate(list(jnp.moveaxis(gates, -2, 0)))


class CifgLstmCellSimple(LstmCellSimple):
  """An LSTM that takes in as much as it forgets, and has no input gate.

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
