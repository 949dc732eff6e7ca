# SPDX-License-Identifier: Apache-2.0
# bazel: size=medium
"""Recurrent networks against loops over time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import frnn, linears, rnn_cell
from praxis.nested_map import NestedMap
from tests.praxis.layers import running
from tests.testing.layers import random_variables

_B, _T, _I, _O = 2, 5, 3, 4
_SEGMENTS = np.array([[1, 1, 2, 2, 0], [1, 2, 2, 3, 3]], np.int32)
_PADDING = np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], np.float32)


def _inputs(**more):
  padding = jnp.asarray(_PADDING)[..., None]
  return NestedMap(act=running.normal(_B, _T, _I), padding=padding, **more)


def _packed():
  return _inputs(segment_ids=jnp.asarray(_SEGMENTS)[..., None])


def _cell(**kwargs):
  return rnn_cell.LstmCellSimple.config(
    num_input_nodes=_I, num_output_nodes=_O, reset_cell_state=True
  ).set(**kwargs)


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _by_hand(params, act, *, packed, reverse, state=None):
  """Outputs and the last state of an LSTM, a step at a time."""
  w, b = (np.asarray(params[k], np.float64) for k in ('wm', 'b'))
  size = len(b) // 4
  out = np.zeros((_B, _T, size))
  last = np.zeros((2, _B, size))
  times = range(_T)[::-1] if reverse else range(_T)
  for row in range(_B):
    m, c = (state[0][row], state[1][row]) if state else np.zeros((2, size))
    before = -1
    for t in times:
      segment = _SEGMENTS[row, t]
      is_padding = _PADDING[row, t] == 1
      if packed and segment != before and not is_padding:
        m, c = np.zeros((2, size))
      before = segment
      if not is_padding:
        x = np.concatenate([act[row, t], m]) @ w + b
        i_i, i_g, f_g, o_g = np.split(x, 4)
        c = _sigmoid(f_g) * c + _sigmoid(i_g) * np.tanh(i_i)
        m = _sigmoid(o_g) * np.tanh(c)
      out[row, t] = m
    last[:, row] = m, c
  return out, last


def test_reset_mask():
  ids, padding = jnp.asarray(_SEGMENTS), jnp.asarray(_PADDING)
  want = [[0, 1, 0, 1, 0], [0, 0, 1, 0, 1]]
  np.testing.assert_array_equal(frnn.reset_mask(ids), want)
  want[0][4] = 1
  got = frnn.reset_mask(ids[..., None], padding[..., None], jnp.bfloat16)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got[..., 0].astype(np.float32), want)


@pytest.mark.parametrize('cls', [frnn.FRnn, frnn.LstmFrnn])
def test_frnn_equals_numpy(cls):
  config = cls.config(cell_tpl=_cell(), unroll=2)
  layer, variables = running.build(config, _packed())
  backward = config.clone().set(reverse=True, name='layer').Instantiate()

  @running.jit
  def run(variables):
    return {
      (reverse, packed): each.apply(
        variables, _packed() if packed else _inputs()
      )
      for reverse, each in enumerate((layer, backward))
      for packed in (False, True)
    }

  for (reverse, packed), (out, state) in run(variables).items():
    want, last = _by_hand(
      variables['params']['cell'],
      _inputs().act,
      packed=packed,
      reverse=bool(reverse),
    )
    np.testing.assert_allclose(out, want, atol=1e-5)
    np.testing.assert_allclose([state.m, state.c], last, atol=1e-5)


def test_gradients_of_both_classes_and_numpy():
  variables = running.build(frnn.FRnn.config(cell_tpl=_cell()), _packed())[1]
  params = variables['params']
  direction = jax.tree.map(
    lambda x: np.random.default_rng(1).normal(size=x.shape), params
  )

  def by_hand(step):
    moved = jax.tree.map(
      lambda x, d: np.asarray(x) + step * d, params, direction
    )
    act = np.asarray(_packed().act)
    out, _ = _by_hand(moved['cell'], act, packed=True, reverse=False)
    return np.sin(out).sum()

  want = (by_hand(1e-5) - by_hand(-1e-5)) / 2e-5
  for cls in (frnn.FRnn, frnn.LstmFrnn):
    layer = cls.config(cell_tpl=_cell(), name='layer').Instantiate()

    @running.jit
    @jax.grad
    def gradient(params, layer=layer):
      with base_layer.JaxContext.new_context():
        out, _ = layer.apply({'params': params}, _packed())
      return jnp.sum(jnp.sin(out))

    found = gradient(params)
    along = jax.tree.map(lambda g, d: np.sum(g * d), found, direction)
    np.testing.assert_allclose(
      sum(jax.tree.leaves(along)), want, rtol=1e-3, err_msg=cls.__name__
    )


def test_stack_decodes_like_the_whole_and_continues():
  config = frnn.StackFrnn.config(
    frnn_tpl=frnn.LstmFrnn.config(cell_tpl=_cell(reset_cell_state=False)),
    num_layers=2,
    num_input_nodes=_I,
    num_output_nodes=_O,
  )
  layer, variables = running.build(config, _inputs())
  out, states = running.run(layer, variables, _inputs())
  x = np.asarray(_inputs().act)
  for i in range(2):
    cell = variables['params'][f'frnn_{i}']['cell']
    x, last = _by_hand(cell, x, packed=False, reverse=False)
    np.testing.assert_allclose(states[i].c, last[1], atol=1e-5)
  np.testing.assert_allclose(out, x, atol=1e-5)

  @running.jit
  def extend(now, states):
    return layer.apply(variables, now, states, method='extend_step')

  bound = layer.bind(variables)
  states = bound.init_states(_B)
  for t in range(_T):
    now = jax.tree.map(lambda x, t=t: x[:, t], _inputs())
    states, step = extend(now, states)
    np.testing.assert_allclose(step, out[:, t], atol=1e-5)
    np.testing.assert_array_equal(step, bound.get_output(states))
  half = lambda part: jax.tree.map(lambda x: x[:, part], _inputs())
  _, between = running.run(layer, variables, half(slice(0, 2)))
  rest, _ = running.run(layer, variables, half(slice(2, None)), between)
  np.testing.assert_allclose(rest, out[:, 2:], atol=1e-5)


def test_bidirectional_stack_equals_numpy():
  config = frnn.StackBiFrnn.config(
    frnn_tpl=frnn.FRnn.config(cell_tpl=_cell()),
    num_layers=2,
    num_input_nodes=_I,
    num_output_nodes=2 * _O,
  )
  layer, variables = running.build(config, _packed())
  out, states = running.run(layer, variables, _packed())
  x = np.asarray(_packed().act)
  for i in range(2):
    both = []
    for name, reverse in (('fwd', False), ('bwd', True)):
      cell = variables['params'][f'{name}_frnn_{i}']['cell']
      half, last = _by_hand(cell, x, packed=True, reverse=reverse)
      np.testing.assert_allclose(states[i][name].m, last[0], atol=1e-5)
      both.append(half)
    x = np.concatenate(both, axis=-1)
  np.testing.assert_allclose(out, x, atol=1e-5)
  start = layer.bind(variables).init_states(_B)
  assert start.fwd[1].m.shape == start.bwd[0].c.shape == (_B, _O)


class _Reporting(rnn_cell.LstmCellSimple):
  """An LSTM that reports, loses and counts."""

  def setup(self):
    super().setup()
    self.create_variable(
      'steps',
      base_layer.WeightHParams(
        shape=[1], init=base_layer.WeightInit.Constant(0.0)
      ),
      trainable=False,
    )

  def __call__(self, state0, inputs):
    state = super().__call__(state0, inputs)
    self.update_var('steps', self.get_var('steps') + 1)
    self.add_aux_loss('size', jnp.sum(state.m))
    self.add_summary('mean', jnp.mean(state.m))
    return state


def test_cells_report_and_keep_variables_over_time():
  config = frnn.FRnn.config(
    cell_tpl=pax_fiddle.Config(
      _Reporting, num_input_nodes=_I, num_output_nodes=_O
    )
  )
  layer, variables = running.build(config, _inputs())
  (out, _), new = running.run(
    layer,
    variables,
    _inputs(),
    mutable=[
      base_layer.NON_TRAINABLE,
      base_layer.AUX_LOSS,
      base_layer.SUMMARIES,
    ],
  )
  before = variables['non_trainable']['cell']['steps']
  after = new['non_trainable']['cell']['steps']
  np.testing.assert_allclose(after - before, _T, rtol=1e-5)
  loss = new['aux_loss']['cell']['size']
  np.testing.assert_allclose(loss.value, np.sum(out), rtol=1e-4)
  means = new['summaries']['cell']['mean_scalar']
  np.testing.assert_allclose(means, np.mean(out, axis=(0, 2)), atol=1e-5)


def test_bfloat16():
  config = frnn.LstmFrnn.config(cell_tpl=_cell(), fprop_dtype=jnp.bfloat16)
  layer, variables = running.build(config, _packed())
  out, state = running.run(layer, variables, _packed())
  assert out.dtype == state.c.dtype == jnp.bfloat16
  want, _ = _by_hand(
    variables['params']['cell'], _packed().act, packed=True, reverse=False
  )
  np.testing.assert_allclose(out.astype(np.float32), want, atol=0.05)


@pytest.mark.parametrize('cls', [frnn.FRnn, frnn.LstmFrnn])
def test_gradients_of_many_steps_in_bfloat16(cls):
  config = cls.config(cell_tpl=_cell())
  numbers = np.random.default_rng(0)
  inputs = NestedMap(
    act=jnp.asarray(numbers.normal(0.5, size=(2, 512, _I)), jnp.float32),
    padding=jnp.zeros((2, 512, 1)),
  )
  layer, variables = running.build(config, inputs)

  def gradients(dtype):
    layer = config.clone().set(name='layer', fprop_dtype=dtype).Instantiate()
    loss = lambda variables: jnp.sum(
      layer.apply(variables, inputs)[0].astype(jnp.float32)
    )
    cast = jax.tree.map(lambda x: x.astype(dtype), variables)
    return jax.tree.leaves(running.jit(jax.grad(loss))(cast))

  # Sums over steps in bfloat16 had errors of a tenth.
  for got, want in zip(
    gradients(jnp.bfloat16), gradients(jnp.float32), strict=True
  ):
    assert got.dtype == jnp.bfloat16
    error = np.linalg.norm(got.astype(np.float32) - want)
    assert error < 0.01 * np.linalg.norm(want)


_STACK = frnn.StackBiFrnn.config(
  frnn_tpl=frnn.FRnn.config(cell_tpl=_cell()),
  num_input_nodes=_I,
  num_output_nodes=3,
)


@pytest.mark.parametrize(
  'config, message',
  [
    (frnn.FRnn.config(), 'needs cell_tpl'),
    (frnn.FRnn.config(cell_tpl=_cell(), unroll=0), 'unroll >= 1'),
    (
      frnn.FRnn.config(
        cell_tpl=linears.Linear.config(input_dims=2, output_dims=2)
      ),
      'must be of a BaseRnnCell, got Linear',
    ),
    (frnn.StackFrnn.config(), 'needs frnn_tpl'),
    (_STACK, 'even num_output_nodes'),
    (_STACK.clone().set(num_layers=0), 'num_layers >= 1'),
  ],
)
def test_bad_settings(config, message):
  with pytest.raises(ValueError, match=message):
    running.build(config, _inputs())


def test_missing_inputs_are_named():
  config = frnn.FRnn.config(cell_tpl=_cell())
  with pytest.raises(ValueError, match=r"need act and padding, got \['act'\]"):
    running.build(config, NestedMap(act=_inputs().act))


@pytest.mark.parametrize('name', ['padding', 'segment_ids'])
@pytest.mark.parametrize('cls', [frnn.FRnn, frnn.LstmFrnn])
def test_padding_that_would_be_broadcast_over_units_is_refused(cls, name):
  layer = cls.config(name='rnn', cell_tpl=_cell(num_output_nodes=_B))
  layer = layer.Instantiate()
  inputs = _packed()
  variables = random_variables(layer, inputs)
  inputs[name] = inputs[name][..., 0]
  with pytest.raises(ValueError, match=rf'{name} .* must be \[B, T, 1\]'):
    layer.apply(variables, inputs)
  step = NestedMap(act=inputs.act[:, 0], padding=jnp.zeros([_B]))
  states = layer.apply(variables, _B, method='init_states')
  with pytest.raises(ValueError, match=r'padding .* must be \[B, 1\]'):
    layer.apply(variables, step, states, method='extend_step')
