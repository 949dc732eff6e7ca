# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: eight CPU devices, checked shapes."""

from __future__ import annotations

import os

_DEVICES = '--xla_force_host_platform_device_count=8'
_CHECKED = ('praxis.layers', 'praxis.kernels', 'praxis.contrib')

# Both are read when jax is first imported. A GPU is used when asked for.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if _DEVICES.split('=')[0] not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {_DEVICES}'

if os.environ.get('PAX_CHECK_SHAPES', '1') == '1':
  from tests.testing import checking

  checking.install(*_CHECKED)
