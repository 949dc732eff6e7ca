# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""The choice of experts by groups and biases, against a loop over tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from praxis import base_layer, pax_fiddle
from praxis.layers import transformers
from praxis.layers.moe import gating
from tests.praxis.layers import running
from tests.praxis.layers.moe import mixtures

_B, _T, _D = 2, 8, mixtures.D


def _choices_of_groups(gates, bias, k, num_groups, num_chosen):
  """Returns the chosen experts of DeepSeek-V3, by sorting token by token."""
  chosen = np.zeros_like(gates)
  for index in np.ndindex(gates.shape[:-1]):
    groups = (gates[index] + bias).reshape(num_groups, -1)
    scores = np.sort(groups, axis=1)[:, -2:].sum(1)
    allowed = np.argsort(scores)[-num_chosen:]
    masked = np.full_like(groups, -np.inf)
    masked[allowed] = groups[allowed]
    chosen[index][np.argsort(masked.reshape(-1))[-k:]] = 1
  return chosen


def test_choice_by_groups_and_biases():
  x = running.normal(_B, _T, _D)
  paddings = jnp.zeros((_B, _T)).at[1, 3:].set(1.0)
  shared = pax_fiddle.Config(
    transformers.TransformerFeedForward, hidden_dims=5, has_bias=False
  )
  config = mixtures.config(
    gating_func='dropless',
    num_experts=12,
    experts_per_token=3,
    gate_function='sigmoid',
    gate_scale=2.5,
    num_expert_groups=4,
    groups_per_token=2,
    experts_per_group_score=2,
    use_choice_bias=True,
    choice_bias_update_rate=0.25,
    balances_each_sequence=True,
    shared_experts_tpl=shared,
  )
  layer, variables = running.build(config, x, paddings)
  p = mixtures.numbers(variables)
  bias = np.asarray(variables['non_trainable']['choice_bias'], np.float64)
  gates = 1 / (1 + np.exp(-np.asarray(x, np.float64) @ p['gate']))
  chosen = _choices_of_groups(gates, bias, 3, 4, 2)
  # The bias changes choices.
  assert np.any(chosen != _choices_of_groups(gates, 0 * bias, 3, 4, 2))
  weights = 2.5 * gates * chosen / np.sum(gates * chosen, -1, keepdims=True)
  want = np.einsum('bted,bte->btd', mixtures.experts(p, x), weights)
  hidden = np.maximum(x @ p['shared_experts']['ffn_layer1']['linear']['w'], 0)
  want += hidden @ p['shared_experts']['ffn_layer2']['linear']['w']
  visible = 1 - np.asarray(paddings)[..., None]
  got, updates = running.run(
    layer, variables, x, paddings, mutable=['aux_loss', 'non_trainable']
  )
  np.testing.assert_allclose(got, x + want * visible, atol=1e-4)
  load = np.sum(chosen * visible, axis=(0, 1))
  np.testing.assert_allclose(
    updates['non_trainable']['choice_bias'],
    bias + 0.25 * np.sign(load.mean() - load),
    rtol=1e-6,
  )
  losses = []
  for i, length in enumerate((_T, 3)):
    density = chosen[i, :length].mean(0) / 3
    mean = (gates / gates.sum(-1, keepdims=True))[i, :length].mean(0)
    losses.append(12 * np.sum(density * mean))
  loss = updates['aux_loss']['aux_moe_load_balance_loss'].value
  np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)


@pytest.mark.parametrize('k', [1, 2])
def test_gates_scale_the_inputs_of_experts(k):
  x = running.normal(_B, _T, _D)
  config = mixtures.config(
    gating_func='dropless',
    num_experts=4,
    experts_per_token=k,
    gate_function='sigmoid',
    normalize_gates=False,
    gates_scale_inputs=True,
    use_gated_activation=True,
  )
  layer, variables = running.build(config, x, jnp.zeros((_B, _T)))
  p = mixtures.numbers(variables)
  gates = 1 / (1 + np.exp(-np.asarray(x, np.float64) @ p['gate']))
  want = np.asarray(x, np.float64)
  for expert in range(4):
    is_chosen = np.argsort(np.argsort(-gates))[..., expert] < k
    scaled = x * (gates[..., expert] * is_chosen)[..., None]
    want = want + mixtures.experts(p, scaled, gated=True)[:, :, expert]
  got = running.run(layer, variables, x, jnp.zeros((_B, _T)))
  np.testing.assert_allclose(got, want, atol=1e-4)


def test_the_router_of_half_precision_has_float32_logits(monkeypatch):
  x = running.normal(_B, _T, _D)
  config = mixtures.config(gating_func='dropless', fprop_dtype=jnp.bfloat16)
  layer, variables = running.build(config, x.astype(jnp.bfloat16))
  found = []
  assign = gating.assign_experts
  monkeypatch.setattr(
    gating,
    'assign_experts',
    lambda logits, *args: found.append(logits) or assign(logits, *args),
  )
  layer.apply(variables, x.astype(jnp.bfloat16))
  half = lambda a: np.asarray(a.astype(jnp.bfloat16), np.float64)
  want = half(x) @ half(variables['params']['gate'])
  np.testing.assert_allclose(found[0], want, rtol=1e-5, atol=1e-6)


def test_biases_of_the_choice_balance_the_experts():
  x = running.normal(4, 64, _D)
  config = mixtures.config(
    gating_func='dropless',
    num_experts=8,
    gate_function='sigmoid',
    use_choice_bias=True,
    choice_bias_update_rate=0.005,
    moe_load_balance_loss_weight=0.0,
  )
  layer, variables = running.build(config, x)
  variables['non_trainable'] = {'choice_bias': jnp.zeros(8)}
  variables['params']['gate'] *= 2

  @running.jit
  def train(variables):
    def step(biases, _):
      _, updates = layer.apply(
        {**variables, 'non_trainable': biases},
        x,
        mutable=['non_trainable', 'summaries'],
      )
      load = updates['summaries']['expert_load_max_scalar']
      return updates['non_trainable'], load

    return jax.lax.scan(step, variables['non_trainable'], length=200)

  biases, loads = train(variables)
  assert loads[0] > 1.4 and np.mean(loads[-50:]) < 1.1
  # Evaluation does not change them.
  context = base_layer.JaxContext.HParams(do_eval=True)
  with base_layer.JaxContext.new_context(hparams=context):
    _, updates = layer.apply(
      {**variables, 'non_trainable': biases}, x, mutable=['non_trainable']
    )
  np.testing.assert_array_equal(
    updates['non_trainable']['choice_bias'], biases['choice_bias']
  )
