# SPDX-License-Identifier: Apache-2.0
"""The wheel builds by MODULE.bazel, and is that of WORKSPACE."""

# bazel: tags=nightly,local
# bazel: data=//:all_files,//:wheels
# bazel: size=large
from __future__ import annotations

import os
import pathlib
import pwd
import subprocess
import zipfile

import pytest

_WHEELS = 'tools/wheel/pax_jax-*.whl'

pytestmark = pytest.mark.skipif(
  not list(pathlib.Path().glob(_WHEELS)), reason='Bazel builds what this reads'
)


def _modules(wheel: pathlib.Path) -> dict[str, tuple[int, int]]:
  """Returns the sizes of all files, and the checksums of all but extensions.

  Objects contain the paths of the headers, which have the repository's name.
  """
  with zipfile.ZipFile(wheel) as z:
    return {
      i.filename: (
        i.file_size,
        0 if i.filename.endswith(('.so', '/RECORD')) else i.CRC,
      )
      for i in z.infolist()
    }


def test_the_wheel(tmp_path):
  # The tree alone: a sandbox has only links to it.
  tree = pathlib.Path('bazelw').resolve().parent
  out = tmp_path / 'out'
  bazel = [tree / 'bazelw', f'--output_user_root={out}']
  run = {
    'cwd': tree,
    'env': os.environ | {'HOME': pwd.getpwuid(os.getuid()).pw_dir},
    'check': True,
  }
  build = ['build', '--config=bzlmod', f'--symlink_prefix={tmp_path}/link-']
  try:
    subprocess.run([*bazel, *build, '//:wheels'], **run)
  finally:
    subprocess.run([*bazel, 'shutdown'], **run)
  (built,) = tmp_path.glob(f'link-bin/{_WHEELS}')
  (expected,) = pathlib.Path().glob(_WHEELS)
  assert built.name == expected.name
  assert _modules(built) == _modules(expected)
