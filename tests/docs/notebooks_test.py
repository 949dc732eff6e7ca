# SPDX-License-Identifier: Apache-2.0
# bazel: size=large
# bazel: data=//:all_files
# bazel: deps=//pax:main_lib,//pax/tasks:experiments,@pypi_docs//all
"""The notebooks of docs/notebooks run headless, each in a kernel of its own."""

from __future__ import annotations

import pytest

from tests.docs import pages
from tests.testing import programs

nbformat = pytest.importorskip('nbformat')
nbclient = pytest.importorskip('nbclient')

_NOTEBOOKS = sorted((pages.ROOT / 'docs/notebooks').glob('*.ipynb'))
_CELL_TIMEOUT_SECS = 240
_NIGHTLY = (
  'aot_check',
  'hf_import_and_sampling',
  'inputs_tutorial',
  'models',
  'pax101_end_to_end',
  'rnn_decode',
  'sharding',
)


def test_there_are_notebooks():
  assert len(_NOTEBOOKS) == 10


@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_committed_and_the_end_asserts(path):
  cells = nbformat.read(path, as_version=4).cells
  code = [cell for cell in cells if cell.cell_type == 'code']
  assert not any(cell.outputs or cell.execution_count for cell in code)
  assert 'assert' in cells[-1].source


# Of the event loop and the sockets of the client.
@pytest.mark.filterwarnings('default')
@pytest.mark.parametrize(
  'path',
  [
    pytest.param(path, marks=[pytest.mark.nightly] * (path.stem in _NIGHTLY))
    for path in _NOTEBOOKS
  ],
  ids=lambda path: path.stem,
)
def test_notebooks_run(path, tmp_path, monkeypatch):
  for name, value in programs.environment().items():
    monkeypatch.setenv(name, value)
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.setenv('IPYTHONDIR', str(tmp_path / 'ipython'))
  client = nbclient.NotebookClient(
    nbformat.read(path, as_version=4),
    timeout=_CELL_TIMEOUT_SECS,
    kernel_name='python3',
    resources={'metadata': {'path': str(tmp_path)}},
  )
  client.execute()
