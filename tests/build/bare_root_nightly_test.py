# SPDX-License-Identifier: Apache-2.0
"""The commands of README.md in bare roots of Debian and Ubuntu, by a new user.

It runs as root with debootstrap, for the suites of which the APT sources of
this machine have a mirror, and takes half an hour for each on two cores.
"""

# bazel: tags=nightly,local
# bazel: data=//:all_files
# bazel: size=enormous
from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tools import bare_root

_BAZELW = './bazelw'
_TRAIN = (
  *(_BAZELW, 'run', '//pax:main', '--'),
  '--exp=tasks.lm.params.quickstart.TinyLm',
  '--job_log_dir=/tmp/pax/tiny',
  '--set=task.train.num_train_steps=20',
)
_TEST = (
  *(_BAZELW, 'test', '//tests/build/...', '//tests/csrc/...'),
  '//tests/integration:medium_tests',
)

pytestmark = pytest.mark.skipif(
  os.geteuid() != 0 or not shutil.which('debootstrap'),
  reason='bare roots are made by root with debootstrap',
)


@dataclasses.dataclass(frozen=True)
class _Root:
  """A bare root of a suite."""

  suite: str
  path: pathlib.Path

  def output(self, *command: str) -> tuple[int, str]:
    """Returns the exit code and the output of a command of the new user."""
    done = bare_root.run(
      self.path,
      command,
      env=bare_root.variables(self.suite),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    return done.returncode, done.stdout


@pytest.fixture(params=['bookworm', 'trixie', 'noble'])
def root(request, tmp_path) -> Iterator[_Root]:
  try:
    uri = bare_root.mirror(request.param)
  except bare_root.MissingError as e:
    pytest.skip(str(e))
  path = tmp_path / 'root'
  bare_root.make(path, request.param, uri)
  yield _Root(request.param, path)
  shutil.rmtree(path)


def test_the_commands_of_the_readme(root):
  code, output = root.output(_BAZELW, 'run', '//pax:main')
  assert code == 1
  assert 'this machine lacks: python3\n' in output
  assert 'this machine lacks: pip of python3 (python3-pip)\n' in output
  bare_root.install(root.path, bare_root.PACKAGES)
  code, output = root.output(*_TRAIN)
  assert code == 0, output
  assert re.search(r'step 20/20 +loss \d', output)
  code, output = root.output(*_TEST)
  assert code == 0, output
  assert re.fullmatch(r'[1-9]\d* passed, 0 failed', output.splitlines()[-1])
