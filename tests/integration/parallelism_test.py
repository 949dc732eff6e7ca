# SPDX-License-Identifier: Apache-2.0
"""However a model is spread, its loss and gradients are those of one device."""

# bazel: size=large
from __future__ import annotations

import pytest

from tests.integration import parallelism

Case = parallelism.Case

_CASES = {
  'data': Case(replica=8),
  'fsdp': Case(data=8),
  'tensor': Case(mdl=8),
  'data_fsdp_tensor': Case(replica=2, data=2, mdl=2),
  'expert_fsdp_tensor': Case(data=2, expert=2, mdl=2),
  'pipeline_fsdp': Case(stages=4, data=2),
  'circular_fsdp_tensor': Case(
    stages=2, data=2, mdl=2, more=(('CIRCULAR_REPEAT', 2),)
  ),
  'streamed_tensor': Case(stages=4, mdl=2, more=(('STREAM_IO', True),)),
}


@pytest.mark.parametrize('name', _CASES)
def test_it_learns_what_one_device_does(name):
  parallelism.check(_CASES[name])
