# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: eight CPU devices, shapes of layers are checked.

And which tests run by night only: files with the tag, tests with the mark.
"""

from __future__ import annotations

import gc
import logging
import os
import pathlib
from collections.abc import Iterator
from importlib import metadata

import pytest

_NIGHT = os.environ.get('PAX_NIGHTLY') == '1'
_FLAGS = ['--xla_force_host_platform_device_count=8']
if not _NIGHT:
  # Most tests run what they compile once. By night all is compiled as users
  # have it; by day what is marked `optimized`, whose last bits matter.
  os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
  # To record which lines are behind each operation takes a tenth of the time.
  os.environ.setdefault('JAX_TRACEBACK_IN_LOCATIONS_LIMIT', '0')
# A later jaxlib ends at a flag it does not know.
if any(
  jaxlib.version.startswith('0.10.')
  for jaxlib in metadata.distributions(name='jaxlib')
):
  # As pax.runner.distributed sets it for several simulated devices.
  _FLAGS.append('--xla_cpu_enable_concurrency_optimized_scheduler=false')
  if not _NIGHT:
    # The older emitters compile in half the time. Programs are so small that to
    # compile their parts in threads costs more than it gains.
    _FLAGS.append('--xla_cpu_use_fusion_emitters=false')
    _FLAGS.append('--xla_cpu_parallel_codegen_split_count=1')
# Traced programs are millions of objects that stay. To look for cycles among
# them takes a tenth of the time of a test, and frees a tenth of the memory.
gc.set_threshold(1_000_000)
_CHECKED = ('praxis.layers', 'praxis.kernels', 'praxis.contrib')

# Threads of NumPy's products spin where two tests share two cores.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
# All is read when jax is first imported. A GPU is used when asked for.
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
for flag in _FLAGS:
  if flag.split('=')[0] not in os.environ.get('XLA_FLAGS', ''):
    os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {flag}'


def pytest_configure(config: pytest.Config) -> None:
  """Checks shapes where layers are tested, before these are imported."""
  # Imports jax, which reads the variables above.
  from tests.testing import checking

  of_layers = pathlib.Path(__file__).absolute().parent / 'praxis'
  for argument in config.args:
    path = config.invocation_params.dir / argument.partition('::')[0]
    if path.is_relative_to(of_layers) or of_layers.is_relative_to(path):
      checking.install(*_CHECKED)
      break


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
  """Leaves out what is tagged nightly, without PAX_NIGHTLY=1."""
  if _NIGHT or collection_path.suffix != '.py':
    return None
  with collection_path.open(encoding='utf-8', errors='replace') as lines:
    head = lines.read(1000).splitlines()
  tags = [line for line in head if line.startswith('# bazel: tags=')]
  return True if any('nightly' in line for line in tags) else None


def pytest_collection_modifyitems(
  config: pytest.Config, items: list[pytest.Item]
) -> None:
  """Deselects tests marked nightly, without PAX_NIGHTLY=1."""
  marked = [item for item in items if item.get_closest_marker('nightly')]
  if marked and not _NIGHT:
    config.hook.pytest_deselected(items=marked)
    items[:] = [item for item in items if item not in marked]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
  """Looks for cycles once; pytest does it five times, and Python at its end."""
  gc.collect()
  gc.freeze()


@pytest.fixture(autouse=True)
def _optimize(request: pytest.FixtureRequest) -> Iterator[None]:
  """Compiles tests marked `optimized` with all optimizations."""
  if not request.node.get_closest_marker('optimized'):
    yield
    return
  import jax

  name = 'jax_disable_most_optimizations'
  before = jax.config.values[name]
  jax.config.update(name, False)
  yield
  jax.config.update(name, before)


@pytest.fixture(autouse=True)
def _restore_log_level() -> Iterator[None]:
  """Restores the level of absl, which its flags set when they are parsed."""
  logger = logging.getLogger('absl')
  level = logger.level
  yield
  logger.setLevel(level)
