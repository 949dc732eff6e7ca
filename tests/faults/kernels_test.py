# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
# bazel: data=//csrc:all_files
# bazel: data=//tests/csrc:all_files
"""The C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

The drivers in tests/csrc call them with sizes, values and pointers at their
limits, on buffers of exactly the documented sizes.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = (
  '-std=c++17',
  '-O1',
  '-g',
  '-fno-strict-aliasing',
  '-fsanitize=address,undefined',
  '-fno-sanitize-recover=all',
  '-pthread',
  '-I.',
)
BAD = """
int main(int argc, char** argv) {
  int* numbers = new int[argc];
  return numbers[argc + 1] + 2147483647 + argc;
}
"""


@pytest.fixture(scope='module')
def kernels(tmp_path_factory):
  """The object files of the kernels."""
  folder = tmp_path_factory.mktemp('kernels')
  sources = [
    ROOT / 'csrc/kernels/softmax_xent.cc',
    *sorted((ROOT / 'csrc/kernels').glob('tiles*.cc')),
  ]
  return [_compile(source, folder) for source in sources]


def _compile(source: pathlib.Path, folder: pathlib.Path) -> str:
  target = folder / f'{source.stem}.o'
  words = ['c++', *FLAGS, '-c', str(source), '-o', str(target)]
  subprocess.run(words, cwd=ROOT, check=True)
  return str(target)


def _run(source: pathlib.Path, folder: pathlib.Path, objects=()):
  """Compiles and runs a driver."""
  program = str(folder / source.stem)
  words = ['c++', *FLAGS, _compile(source, folder), *objects, '-o', program]
  subprocess.run(words, check=True)
  # Another preloaded library must not come before that of the sanitizer.
  env = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}
  return subprocess.run(
    [program], env=env, capture_output=True, text=True, check=False
  )


@pytest.mark.parametrize(
  'driver', ['softmax_xent_test', 'softmax_xent_hostile_test']
)
def test_kernels_have_no_error(kernels, tmp_path, driver):
  ended = _run(ROOT / f'tests/csrc/{driver}.cc', tmp_path, kernels)
  assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
  assert ended.stdout.count('all passed') == 4
  assert not ended.stderr


def test_errors_are_found(tmp_path):
  source = tmp_path / 'bad.cc'
  source.write_text(BAD)
  ended = _run(source, tmp_path)
  assert ended.returncode != 0
  assert 'heap-buffer-overflow' in ended.stderr
