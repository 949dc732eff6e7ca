# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: tags=nightly
# bazel: data=//csrc:all_files
# bazel: data=//tests/csrc:all_files
# bazel: data=//tests/praxis/kernels:all_files
# bazel: deps=//praxis/kernels:softmax_xent,@pypi//numpy
"""The C++ kernels under the address, undefined and thread sanitizers.

The drivers in tests/csrc call them with sizes, values and pointers at their
limits, on buffers of exactly the documented sizes.
"""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MEMORY = '-fsanitize=address,undefined'
THREADS = '-fsanitize=thread'
FLAGS = (
  '-std=c++17',
  '-O1',
  '-g',
  '-fno-strict-aliasing',
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
RACE = """
#include <thread>
int main() {
  int number = 0;
  std::thread other([&] { ++number; });
  ++number;
  other.join();
  return number;
}
"""


@pytest.fixture(scope='module')
def kernels(tmp_path_factory):
  """Returns the object files of the kernels for the flags of a sanitizer."""
  sources = [
    ROOT / 'csrc/kernels/adam.cc',
    ROOT / 'csrc/kernels/attention.cc',
    ROOT / 'csrc/kernels/integer_matmul.cc',
    ROOT / 'csrc/kernels/softmax_xent.cc',
    *sorted((ROOT / 'csrc/kernels').glob('tiles*.cc')),
  ]

  @functools.cache
  def objects(sanitizer: str) -> list[str]:
    folder = tmp_path_factory.mktemp('kernels')
    return [_compile(source, folder, sanitizer) for source in sources]

  return objects


def _compile(source: pathlib.Path, folder: pathlib.Path, sanitizer: str) -> str:
  target = folder / f'{source.stem}.o'
  words = ['c++', *FLAGS, sanitizer, '-c', str(source), '-o', str(target)]
  subprocess.run(words, cwd=ROOT, check=True)
  return str(target)


def _run(
  source: pathlib.Path, folder: pathlib.Path, sanitizer: str, objects=()
):
  """Compiles and runs a driver."""
  program = str(folder / source.stem)
  words = ['c++', *FLAGS, sanitizer, _compile(source, folder, sanitizer)]
  subprocess.run([*words, *objects, '-o', program], check=True)
  # Another preloaded library must not come before that of the sanitizer.
  env = {k: v for k, v in os.environ.items() if k != 'LD_PRELOAD'}
  return subprocess.run(
    [program], env=env, capture_output=True, text=True, check=False
  )


@pytest.mark.parametrize(
  'driver, sanitizer',
  [
    ('adam_test', MEMORY),
    ('adam_test', THREADS),
    ('attention_hostile_test', MEMORY),
    ('attention_test', MEMORY),
    ('attention_test', THREADS),
    ('integer_matmul_test', MEMORY),
    ('softmax_xent_test', MEMORY),
    ('softmax_xent_hostile_test', MEMORY),
    ('softmax_xent_test', THREADS),
  ],
)
def test_kernels_have_no_error(kernels, tmp_path, driver, sanitizer):
  source = ROOT / f'tests/csrc/{driver}.cc'
  ended = _run(source, tmp_path, sanitizer, kernels(sanitizer))
  assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-6000:]
  assert ended.stdout.count('all passed') == 4
  assert not ended.stderr


def test_errors_are_found(tmp_path):
  source = tmp_path / 'bad.cc'
  source.write_text(BAD)
  ended = _run(source, tmp_path, MEMORY)
  assert ended.returncode != 0
  assert 'heap-buffer-overflow' in ended.stderr


def test_races_are_found(tmp_path):
  source = tmp_path / 'race.cc'
  source.write_text(RACE)
  ended = _run(source, tmp_path, THREADS)
  assert ended.returncode != 0
  assert 'data race' in ended.stderr


@pytest.mark.parametrize('isa', ['portable', 'avx2', 'avx512'])
def test_edges_on_lower_instruction_sets(isa):
  # The choice of instructions is made once a process.
  command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider']
  command += ['tests/praxis/kernels/softmax_xent_edges_test.py', '-k', 'native']
  ended = subprocess.run(
    command,
    cwd=ROOT,
    env={**os.environ, 'PAX_KERNEL_ISA': isa},
    capture_output=True,
    text=True,
    check=False,
  )
  assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
