# SPDX-License-Identifier: Apache-2.0
"""Runs a test file of Sax's servers without Sax's compiled modules.

    sax_server_test_runner.py FILE [FLAGS]

Two extension modules of Sax have a counterpart here: the runner of TensorFlow
graphs, and the address of the admin server, which no test uses.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


class TFSessionRunner:
  """Runs a TensorFlow graph in a session."""

  def __init__(self, name: str):
    del name

  def initialize(self, graph_def: Any) -> None:
    """Takes the graph."""
    graph = tf.Graph()
    with graph.as_default():
      tf.import_graph_def(graph_def, name='')
    self._session = tf.Session(graph=graph)

  def run(
    self,
    feed_names: Sequence[str],
    fetch_names: Sequence[str],
    arrays: Sequence[np.ndarray],
  ) -> list[np.ndarray]:
    """Returns the fetched tensors."""
    feeds = dict(zip(feed_names, arrays, strict=True))
    return self._session.run(list(fetch_names), feeds)


def _add_module(package: str, name: str, **attributes: Any) -> None:
  module = types.ModuleType(f'{package}.{name}')
  vars(module).update(attributes)
  sys.modules[module.__name__] = module
  setattr(importlib.import_module(package), name, module)


def replace_compiled_modules() -> None:
  """Adds the two modules to Sax's packages."""
  _add_module('saxml.common', 'pybind_location')
  _add_module(
    'saxml.server.tf', 'tf_session_runner', TFSessionRunner=TFSessionRunner
  )


if __name__ == '__main__':
  replace_compiled_modules()
  sys.argv = sys.argv[1:]
  runpy.run_path(sys.argv[0], run_name='__main__')
