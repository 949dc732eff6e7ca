# bazel: size=small
# SPDX-License-Identifier: Apache-2.0
"""Cells of recurrent networks against numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer
from praxis.layers import rnn_cell
from praxis.nested_map import NestedMap
from tests.praxis.layers import running

_B, _I, _O, _H = 3, 4, 5, 6
_CELLS = {
  'plain': rnn_cell.LstmCellSimple,
  'normed': rnn_cell.LayerNormalizedLstmCellSimple,
  'coupled': rnn_cell.CifgLstmCellSimple,
}


def _config(name='plain', **kwargs):
  fields = {'num_input_nodes': _I, 'num_output_nodes': _O}
  return _CELLS[name].config(**{**fields, **kwargs})


def _inputs(dtype=jnp.float32):
  return NestedMap(
    act=running.normal(_B, _I, seed=1).astype(dtype),
    padding=jnp.asarray([[0.0], [1.0], [0.0]], dtype),
    reset_mask=jnp.asarray([[1.0], [1.0], [0.0]], dtype),
  )


def _state(hidden=_O, dtype=jnp.float32):
  return NestedMap(
    m=running.normal(_B, _O, seed=2).astype(dtype),
    c=running.normal(_B, hidden, seed=3).astype(dtype),
  )


def _sigmoid(x):
  return 1 / (1 + np.exp(-x))


def _by_hand(name, params, state, inputs, **settings):
  """One step, a row at a time."""
  params = {k: np.asarray(v, np.float64) for k, v in params.items()}
  m, c = (np.array(state[k], np.float64) for k in 'mc')
  hidden = c.shape[1]
  for b in range(_B):
    old_m, old_c = m[b].copy(), c[b].copy()
    if settings.get('reset_cell_state'):
      old_m *= inputs.reset_mask[b]
      old_c *= inputs.reset_mask[b]
    x = np.concatenate([inputs.act[b], old_m]) @ params['wm']
    gates = []
    for i in range(len(x) // hidden):
      part = slice(i * hidden, (i + 1) * hidden)
      gate = x[part]
      if name == 'normed':
        gate = (gate - gate.mean()) / np.sqrt(gate.var() + 1e-8)
        gate = gate * params['ln_scale'][part]
      gates.append(gate + params['b'][part])
    take_in = _sigmoid(gates[1])
    forget = _sigmoid(gates[-2] + settings.get('forget_gate_bias', 0.0))
    if name == 'coupled':
      take_in = 1 - forget
    new_c = forget * old_c + take_in * np.tanh(gates[0])
    cap = settings.get('cell_value_cap', 10.0)
    new_c = new_c if cap is None else np.clip(new_c, -cap, cap)
    linear = settings.get('output_nonlinearity') is False
    new_m = _sigmoid(gates[-1]) * (new_c if linear else np.tanh(new_c))
    if 'w_proj' in params:
      new_m = new_m @ params['w_proj']
    kept = settings.get('zo_prob', 0.0)
    new_c = kept * old_c + (1 - kept) * new_c
    new_m = kept * old_m + (1 - kept) * new_m
    padded = inputs.padding[b] == 1
    m[b], c[b] = (old_m, old_c) if padded else (new_m, new_c)
  return {'m': m, 'c': c}


@pytest.mark.parametrize(
  'name, settings',
  [
    ('plain', {}),
    ('plain', {'cell_value_cap': None, 'output_nonlinearity': False}),
    (
      'plain',
      {
        'num_hidden_nodes': _H,
        'cell_value_cap': 0.3,
        'forget_gate_bias': 1.5,
        'reset_cell_state': True,
        'zo_prob': 0.3,
      },
    ),
    ('normed', {'forget_gate_bias': -1.0, 'num_hidden_nodes': _H}),
    ('coupled', {'reset_cell_state': True}),
  ],
)
def test_step_equals_numpy(name, settings):
  hidden = settings.get('num_hidden_nodes', _O)
  config = _config(name, **settings)
  layer, variables = running.build(config, _state(hidden), _inputs())
  want = _by_hand(
    name, variables['params'], _state(hidden), _inputs(), **settings
  )

  @running.jit
  def both(variables, state, inputs):
    with base_layer.JaxContext.new_context(
      hparams=base_layer.JaxContext.HParams(do_eval=True)
    ):
      projected = layer.apply(variables, inputs, method='project_input')
      rest = NestedMap(inputs, proj_inputs=projected)
      return layer.apply(variables, state, inputs), layer.apply(
        variables, state, rest, method='fprop_with_projected_inputs'
      )

  for got in both(variables, _state(hidden), _inputs()):
    for part in 'mc':
      np.testing.assert_allclose(got[part], want[part], atol=1e-5)
  if name == 'normed':
    gates = 4 * hidden
    assert running.shapes(variables) == {
      'wm': (_I + _O, gates),
      'w_proj': (hidden, _O),
      'b': (gates,),
      'ln_scale': (gates,),
    }


@pytest.mark.parametrize('name', _CELLS)
def test_gradients_equal_numpy(name):
  layer, variables = running.build(_config(name), _state(), _inputs())
  at = (variables['params'], _inputs().act, _state())
  numbers = np.random.default_rng(1)
  direction = jax.tree.map(lambda x: numbers.normal(size=x.shape), at)

  def by_hand(step):
    moved = jax.tree.map(
      lambda x, d: np.asarray(x, np.float64) + step * d, at, direction
    )
    params, act, state = moved
    new = _by_hand(name, params, state, NestedMap(_inputs(), act=act))
    return np.sum(np.sin(new['m'])) + np.sum(new['c'])

  @running.jit
  def gradient(at):
    def loss(at):
      params, act, state = at
      inputs = NestedMap(_inputs(), act=act)
      with base_layer.JaxContext.new_context():
        new = layer.apply({'params': params}, state, inputs)
      return jnp.sum(jnp.sin(new.m)) + jnp.sum(new.c)

    return jax.grad(loss)(at)

  along = jax.tree.map(lambda g, d: np.sum(g * d), gradient(at), direction)
  want = (by_hand(1e-5) - by_hand(-1e-5)) / 2e-5
  np.testing.assert_allclose(sum(jax.tree.leaves(along)), want, rtol=1e-3)


def test_zoneout_in_training_keeps_or_replaces():
  old, inputs = _state(), _inputs()
  layer, variables = running.build(_config(zo_prob=0.4), old, inputs)
  plain = running.run(_config().Instantiate(), variables, old, inputs)
  got = running.run(
    layer, variables, old, inputs, rngs={'random': jax.random.key(1)}
  )
  for part in 'mc':
    kept = np.asarray(got[part] == old[part])
    new = np.asarray(got[part] == plain[part])
    assert (kept | new).all() and kept[1].all()
    assert kept[0].any() and new[0].any()


def test_several_inputs_and_bfloat16():
  config = _config(inputs_arity=2, fprop_dtype=jnp.bfloat16)
  whole = _inputs(jnp.bfloat16)
  parts = NestedMap(whole, act=[whole.act[:, :1], whole.act[:, 1:]])
  state = _state(dtype=jnp.bfloat16)
  layer, variables = running.build(config, state, parts)
  got = running.run(layer, variables, state, parts)
  start = layer.init_states(_B)
  for part in 'mc':
    assert got[part].dtype == start[part].dtype == jnp.bfloat16
    assert got[part].shape == start[part].shape == (_B, _O)
  want = _by_hand('plain', variables['params'], state, whole)
  np.testing.assert_allclose(got.m.astype(np.float32), want['m'], atol=0.05)


@pytest.mark.parametrize(
  'config, message',
  [
    (_config(num_input_nodes=0), 'num_input_nodes > 0'),
    (_config(num_input_nodes=3), 'num_input_nodes=3, got'),
    (_config(inputs_arity=2), 'inputs_arity=2 arrays'),
    (_config(zo_prob=1.0), r'zo_prob in \[0, 1\)'),
    (_config(cell_value_cap=-1.0), 'cell_value_cap > 0'),
    (_config('coupled', forget_gate_bias=1.0), 'no forget_gate_bias'),
  ],
)
def test_bad_settings(config, message):
  with pytest.raises(ValueError, match=message):
    running.build(config, _state(), _inputs())


def test_missing_reset_mask_is_named():
  inputs = _inputs()
  del inputs.reset_mask
  with pytest.raises(ValueError, match='inputs need reset_mask'):
    running.build(_config(reset_cell_state=True), _state(), inputs)
