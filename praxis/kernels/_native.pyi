# SPDX-License-Identifier: Apache-2.0
"""The C++ extension built from csrc/module.cc."""

from typing_extensions import CapsuleType

def registrations() -> dict[str, CapsuleType]: ...
def cpu_isa() -> str: ...
