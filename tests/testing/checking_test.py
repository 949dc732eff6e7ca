# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Calls that their annotations forbid fail, in tests."""

from __future__ import annotations

import importlib
import sys

import jaxtyping
import numpy as np
import pytest

from tests.testing import checking

_SAMPLE = """
from __future__ import annotations
import dataclasses
import numpy as np
from jaxtyping import Float

def dot(x: Float[np.ndarray, 'B D'], y: Float[np.ndarray, 'D']) -> Later:
  return x @ y

Later = Float[np.ndarray, 'B']

@dataclasses.dataclass
class Box:
  size: int

  def grown(self, by: int) -> str:
    return self.size + by
"""


@pytest.fixture
def sample(tmp_path, monkeypatch):
  (tmp_path / 'sample_of_checking.py').write_text(_SAMPLE)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(sys, 'meta_path', list(sys.meta_path))
  checking.install('sample_of_checking')
  return importlib.import_module('sample_of_checking')


def test_functions_methods_and_fields_are_checked(sample):
  x = np.ones((2, 3))
  np.testing.assert_array_equal(sample.dot(x, np.ones(3)), [3, 3])
  assert sample.dot.__name__ == 'dot'
  for call in (
    lambda: sample.dot(x, np.ones(2)),
    lambda: sample.dot(np.ones(3), np.ones(3)),
    lambda: sample.Box('large'),
    lambda: sample.Box(1).grown(2),
  ):
    with pytest.raises(jaxtyping.TypeCheckError):
      call()
