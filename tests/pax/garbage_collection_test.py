# SPDX-License-Identifier: Apache-2.0
# bazel: size=small
"""Collections stop and start again, unless somebody else has stopped them."""

from __future__ import annotations

import gc
import weakref

import pytest

from pax import garbage_collection


class _Cycle:
  def __init__(self):
    self.itself = self


@pytest.fixture(autouse=True)
def _restored():
  yield
  gc.unfreeze()
  gc.enable()


def test_what_dies_while_deferred_is_freed_by_resume():
  garbage_collection.defer()
  assert not gc.isenabled()
  cycle = weakref.ref(_Cycle())
  assert cycle() is not None
  num_frozen = gc.get_freeze_count()
  garbage_collection.resume()
  assert gc.isenabled() and cycle() is None
  assert gc.get_freeze_count() > num_frozen


def test_resume_collects_only_after_defer(monkeypatch):
  def collect():
    raise AssertionError

  monkeypatch.setattr(gc, 'collect', collect)
  garbage_collection.resume()
  # Of a user, whose choice it stays.
  gc.disable()
  garbage_collection.defer()
  garbage_collection.resume()
  assert not gc.isenabled()
