# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Waiting for files of other processes."""

from __future__ import annotations

import pytest

from pax import checkpoints
from pax.checkpoints import writing


def test_waits_until_a_file_appears(tmp_path):
  answers = iter([False, False, True])
  writing.wait_until(lambda: next(answers), 'x', tmp_path)


def test_a_file_that_does_not_appear(tmp_path, monkeypatch):
  monkeypatch.setattr(writing, '_VISIBLE_SECS', 0.05)
  with pytest.raises(checkpoints.CheckpointError, match='has written x, and'):
    writing.wait_until(lambda: False, 'x', tmp_path)


def test_no_wait_in_a_folder_that_is_gone(tmp_path, monkeypatch):
  monkeypatch.setattr(writing, '_VISIBLE_SECS', 1e6)
  with pytest.raises(FileNotFoundError):
    writing.wait_until(lambda: False, 'x', tmp_path / 'moved')
