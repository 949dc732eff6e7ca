# SPDX-License-Identifier: Apache-2.0
"""The tools by name, for `pax TOOL ...`."""

# bazel: deps=//pax/tools:codegen_lib,//pax/tools:diff_configs_lib
# bazel: deps=//pax/tools:dump_hparams_lib,//pax/tools:dump_input_specs_lib
# bazel: deps=//pax/tools:graph_lib,//pax/tools:list_experiments_lib
# bazel: deps=//pax/tools:model_analysis_lib,//pax/tools:plot_lib
# bazel: deps=//pax/tools:launch_lib,//pax/tools:validate_config_lib
from __future__ import annotations

import importlib
from collections.abc import Sequence

from pax.tools import tool

# What each does, for `pax --help`.
TOOLS = {
  'list_experiments': 'experiments, how large they are, and on what mesh',
  'dump_hparams': 'the whole configuration of an experiment as text',
  'dump_input_specs': 'shapes and dtypes of its batches',
  'model_analysis': 'its parameters, FLOPs, memory, HLO; one forward pass',
  'validate_config': 'whether it can run, checked to a depth of 0 to 10',
  'diff_configs': 'what is different between two experiments',
  'graph': 'a picture of its configuration',
  'codegen': 'Python code that makes its configuration',
  'launch': 'all processes of a job: here, over ssh, or as a file',
  'plot': 'curves of jobs, as a picture and a page',
}


def named(argv: Sequence[str]) -> str | None:
  """The tool that a command line `pax TOOL ...` names, or None."""
  name = argv[1].replace('-', '_') if len(argv) > 1 else ''
  return name if name in TOOLS else None


def run(argv: Sequence[str]) -> int:
  """Runs `pax TOOL ...`; returns the exit code."""
  module = importlib.import_module(f'pax.tools.{named(argv)}')
  return tool.run(module.main, argv[1:])


def help_text() -> str:
  """One line for each tool."""
  width = max(map(len, TOOLS))
  return '\n'.join(
    f'  pax {name:{width}}  {text}' for name, text in TOOLS.items()
  )
