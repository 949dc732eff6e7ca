# SPDX-License-Identifier: Apache-2.0
# bazel: data=//tests/golden:all_files
# bazel: size=large
"""What the experiments of contrib/gpu resolve to, and their exact sizes.

UPDATE_GOLDEN=1 pytest tests/golden    # accepts what it resolves to now
"""

from __future__ import annotations

import pytest

from pax.contrib.gpu.scripts_gpu import configs
from tests.golden import experiment_texts
from tests.testing import nightly


def _gpt3(layers, model, vocab=50304, length=2048):
  """Returns GPT-3's parameters: all layers with biases, one table of tokens."""
  matrices_and_biases = 12 * model**2 + 9 * model
  norms = 4 * model
  tables = (vocab + length) * model
  return tables + layers * (matrices_and_biases + norms) + 2 * model


_SIZES = {
  'Synthetic126M': _gpt3(12, 768),
  'Synthetic5B': _gpt3(24, 4096),
  # 175B, says table 2.1 of the paper.
  'Synthetic175B': 174_604_259_328,
  'Pile126M': _gpt3(12, 768),
  'Pile5B': _gpt3(24, 4096),
  'Pile175B': _gpt3(96, 12288, 50257),
  'Lambada126M': _gpt3(12, 768),
  # Those of Meta's checkpoints.
  'LLaMA7B': 6_738_415_616,
  'LLaMA13B': 13_015_864_320,
  'LLaMA70B': 68_976_648_192,
}
# Table 4 of GLaM's paper: 1.9B and 1.2T, of which 1.1T are the experts'.
_UNREGISTERED = {'PileGLaM126M64E': 1.9e9, 'LambadaGLaM64B64E': 1.14e12}
# Their many layers are traced one by one.
_NIGHTLY = ('LLaMA13B', 'LLaMA70B')
_NAMES = sorted([*_SIZES, *_UNREGISTERED], key=_NIGHTLY.__contains__)

_FAMILY = experiment_texts.Family(
  'gpu', [getattr(configs, name) for name in _NAMES]
)


def test_these_are_all():
  assert experiment_texts.registered(configs) == set(_SIZES)
  assert configs.GPT175B is configs.Pile175B
  assert configs.GPT5B is configs.Pile5B


@pytest.mark.parametrize('name', nightly.marked(_NAMES, _NIGHTLY))
def test_resolves_to_the_golden_text(name):
  assert _FAMILY.made(name) == _FAMILY.accepted(name)


@pytest.mark.parametrize('name', nightly.marked(_SIZES, _NIGHTLY))
def test_size_is_the_published_one(name):
  found = experiment_texts.resolve(getattr(configs, name)).num_params
  assert found == _SIZES[name]


@pytest.mark.parametrize('name', _UNREGISTERED)
def test_mixture_of_experts_is_as_large_as_in_its_paper(name):
  found = experiment_texts.resolve(getattr(configs, name)).num_params
  assert found == pytest.approx(_UNREGISTERED[name], rel=0.02)
