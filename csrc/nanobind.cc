// SPDX-License-Identifier: Apache-2.0
// The library part of nanobind, for setup.py; Bazel builds @pypi//nanobind:cc.
#include "nb_combined.cpp"
