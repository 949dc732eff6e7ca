# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: size=large
"""What each experiment for NVIDIA's GPUs resolves to, and its size.

UPDATE_GOLDEN=1 pytest tests/golden    # accepts what it resolves to now
"""

from __future__ import annotations

import pytest

from pax.tasks.lm.params import nvidia
from tests.golden import experiment_texts


def _dense(layers, model, hidden, vocab=51200):
  """Returns the parameters in millions, without biases, norms, positions."""
  return (vocab * model + layers * (4 * model**2 + 2 * model * hidden)) / 1e6


def _grok(layers):
  keys = 2 * 6144 * 8 * 128
  experts = 8 * 3 * 6144 * 32768
  return (131072 * 6144 + layers * (2 * 6144**2 + keys + experts)) / 1e6


_MILLIONS = {
  'NVIDIA1_3B': _dense(24, 2048, 8192),
  'NVIDIA5B': _dense(24, 4096, 16384),
  'NVIDIA8_3B': _dense(40, 4096, 16384),
  'NVIDIA10B': _dense(32, 5120, 20480),
  'NVIDIA40BProxy': _dense(12, 8192, 32768),
  'NVIDIA70BProxy': _dense(20, 8192, 32768),
  'NVIDIA116BProxy': _dense(16, 12288, 49152),
  'NVIDIA175BProxy': _dense(24, 12288, 49152),
  'NVIDIA175B': _dense(96, 12288, 49152),
  'TestSmallConfig': _dense(16, 4096, 16384),
  'Llama33BProxy': _dense(60, 6656, 17920, 32000),
  'NVIDIA175B_FSDP': _dense(96, 12288, 49152),
  # As Meta's checkpoints.
  'Llama2_7B': 6738.415616,
  'Llama2_13B': 13015.864320,
  'Llama2_70B': 68976.648192,
  # 16 experts for one, in all layers.
  'MoELarge': _dense(12, 4096, 16384) + 12 * 15 * 2 * 4096 * 16384 / 1e6,
  # Four layers have a gate, and four have experts for the one.
  'GLaM64B64EProxy': _dense(8, 8192, 32768)
  + 4 * (1 + 126) * 8192 * 32768 / 1e6,
  'GLaM64B64EProxy_EP': (
    _dense(8, 8192, 32768) + 4 * (1 + 14) * 8192 * 32768 / 1e6
  ),
  'Grok': _grok(64),
  'Grok_Proxy': _grok(16),
  'Grok_Proxy_PP': _grok(16),
  'Grok_PP': _grok(64),
  'NVIDIA_CIRCULAR_REPEAT': _dense(32, 4096, 16384, 32000),
}
_EXACT = ('Llama2_7B', 'Llama2_13B', 'Llama2_70B')


_FAMILY = experiment_texts.Family(
  'nvidia', [getattr(nvidia, name) for name in _MILLIONS]
)


def test_these_are_all():
  assert experiment_texts.registered(nvidia) == set(_MILLIONS)


@pytest.mark.parametrize('name', _MILLIONS)
def test_resolves_to_the_golden_text(name):
  assert _FAMILY.made(name) == _FAMILY.accepted(name)


@pytest.mark.parametrize('name', _MILLIONS)
def test_size_is_that_of_its_numbers(name):
  found = experiment_texts.resolve(getattr(nvidia, name)).num_params
  if name in _EXACT:
    assert found == round(_MILLIONS[name] * 1e6)
  else:
    biases_norms_and_positions = 0.007
    assert 1 <= found / 1e6 / _MILLIONS[name] < 1 + biases_norms_and_positions
