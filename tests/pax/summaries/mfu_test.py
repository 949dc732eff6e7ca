# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""FLOPs by hand, and the table of devices by their names in JAX."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from pax.summaries import mfu
from praxis import base_layer


def weight(*shape, repeat_prefix=None):
  return base_layer.WeightHParams(
    shape=list(shape), repeat_prefix=repeat_prefix
  )


def test_a_two_layer_model_by_hand():
  # D=8, N=2, H=4, F=32, V=100, two repeated layers; an embedding of its own.
  layer = {
    'self_attention': {
      'combined_qkv': {'w': weight(3, 8, 2, 4, repeat_prefix=[2])},
      'post': {'w': weight(8, 2, 4, repeat_prefix=[2])},
    },
    'ff_layer': {
      'ffn_layer1': {'linear': {'w': weight(8, 32, repeat_prefix=[2])}},
      'ffn_layer2': {'linear': {'w': weight(32, 8, repeat_prefix=[2])}},
    },
  }
  params = {
    'lm': {
      'embedding_lookup': {'emb_var': weight(100, 8)},
      'transformer': {'repeat': {'sub': {'x_layers_0': layer}}},
      'softmax': {'logits_ffn': {'linear': {'w': weight(8, 100)}}},
    }
  }
  tree = {'params': params, 'non_trainable': {'mean': weight(1000)}}
  flops = mfu.model_flops(tree, batch_size=3, seq_len=16)
  # Each layer: 3·64 qkv, 64 post, 2·256 feed-forward.
  matmul = 2 * (192 + 64 + 512) + 800
  assert flops.num_params == matmul + 800
  # Attention, two layers, forward and twice that backward: scores and mix
  # take 2·T·(N·H) each, causal halves them.
  attention = 2 * 3 * (2 * 2 * 16 * 8) / 2
  assert flops.flops_per_token == 6 * matmul + attention
  assert flops.flops_per_step == flops.flops_per_token * 3 * 16


def test_experts_count_as_often_as_tokens_are_routed_to_them():
  # Mixtral's 2 of 8, and a dense weight.
  experts = base_layer.WeightHParams(
    shape=[8, 16, 32], repeat_prefix=[3], active_fraction=2 / 8
  )
  tree = {'params': {'moe': experts, 'dense': weight(16, 16)}}
  flops = mfu.model_flops(tree, batch_size=1, seq_len=4)
  assert flops.num_params == 3 * 8 * 16 * 32 + 16 * 16
  assert flops.num_active_params == 3 * 2 * 16 * 32 + 16 * 16
  assert flops.flops_per_token == 6 * flops.num_active_params


def test_frozen_weights_have_no_gradient_and_frozen_networks_none_at_all():
  attention = {'self_attention': {'post': {'w': weight(8, 2, 4)}}}
  params = {
    'lm': {**attention, 'w': weight(8, 100), 'lora_a': weight(8, 3)},
    'teacher_lm': {**attention, 'w': weight(8, 50)},
  }
  learned = jax.tree.map(lambda _: False, params)
  learned['lm']['lora_a'] = True
  flops = mfu.model_flops(
    {'params': params}, batch_size=1, seq_len=16, learned={'params': learned}
  )
  student = 4 * (64 + 800) + 6 * 24 + 6 * 16 * 8
  teacher = 2 * (64 + 400) + 2 * 16 * 8
  assert flops.flops_per_token == student + teacher


def test_gpt3_by_its_paper():
  """175B: 6·N per token, and 6·L·T·D for attention: T / 12 D more."""
  layers, dims = 96, 12288
  tree = {
    'dense': weight(11 * dims * dims, repeat_prefix=[layers]),
    'self_attention': {
      'post': {'w': weight(dims, 96, 128, repeat_prefix=[layers])}
    },
  }
  flops = mfu.model_flops({'params': tree}, batch_size=1, seq_len=2048)
  assert flops.num_params == pytest.approx(174e9, rel=0.01)
  dense = 6 * flops.num_params
  assert flops.flops_per_token / dense == pytest.approx(1 + 2048 / 12 / dims)


@dataclasses.dataclass
class Device:
  device_kind: str
  platform: str = 'gpu'


@pytest.mark.parametrize(
  'kind, teraflops',
  [
    ('TPU v2', 22.5),
    ('TPU v3', 61.5),
    ('TPU v4', 275),
    ('TPU v4 lite', 138),
    ('TPU v5 lite', 197),
    ('TPU v5', 459),
    ('TPU v5p', 459),
    ('TPU v6 lite', 918),
    ('TPU7x', 1153.5),
    ('NVIDIA A100-SXM4-80GB', 312),
    ('NVIDIA H100 80GB HBM3', 989),
    ('NVIDIA H100 PCIe', 756),
    ('NVIDIA H200', 989),
    ('NVIDIA GH200 480GB', 989),
    ('NVIDIA B200', 2250),
    ('NVIDIA GB200', 2500),
    ('NVIDIA L4', 121),
    ('NVIDIA L40S', 362),
  ],
)
def test_peaks_of_devices(kind, teraflops):
  peak = mfu.peak_flops([Device(kind)] * 2)
  assert peak.flops == 2 * teraflops * 1e12
  assert kind in peak.source


def test_an_unknown_device_has_no_utilization():
  peak = mfu.peak_flops([Device('Abacus 9000')])
  assert peak.flops is None and 'Abacus' in peak.source
  assert mfu.mfu(1e9, 1.0, peak) is None


def test_utilization_is_a_share_of_the_peak():
  peak = mfu.Peak(flops=100.0, source='')
  assert mfu.mfu(20.0, 2.0, peak) == pytest.approx(0.4)


def test_a_cpu_is_measured_once_and_called_so(monkeypatch):
  monkeypatch.setattr(mfu, '_MEASURED_SIZE', 64)
  mfu._measured_cpu.cache_clear()
  few, many = mfu.peak_flops(jax.devices()[:1]), mfu.peak_flops(jax.devices())
  assert 'measured' in few.source
  # Simulated devices share the cores.
  assert few == many and few.flops > 1e6
