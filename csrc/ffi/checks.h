// SPDX-License-Identifier: Apache-2.0
// Errors of a kernel's call, for its caller.
#ifndef CSRC_FFI_CHECKS_H_
#define CSRC_FFI_CHECKS_H_

#include <algorithm>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace pax {

inline xla::ffi::Error InvalidCall(const std::string& kernel,
                                   const std::string& message) {
  return xla::ffi::Error::InvalidArgument(kernel + ": " + message);
}

inline xla::ffi::Error OutOfMemory(const std::string& kernel,
                                   const std::exception& e) {
  return xla::ffi::Error(xla::ffi::ErrorCode::kResourceExhausted,
                         kernel + ": no scratch memory: " + e.what());
}

inline std::string Text(xla::ffi::AnyBuffer::Dimensions dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(dims[i]);
  }
  return text + "]";
}

inline xla::ffi::Error CheckShapeOf(const std::string& kernel,
                                    const std::string& name,
                                    xla::ffi::AnyBuffer::Dimensions got,
                                    std::initializer_list<int64_t> want) {
  if (got.size() == want.size() &&
      std::equal(want.begin(), want.end(), got.begin())) {
    return xla::ffi::Error::Success();
  }
  return InvalidCall(kernel, name + " must have shape " +
                                 Text({want.begin(), want.size()}) + ", got " +
                                 Text(got));
}

}  // namespace pax

#endif  // CSRC_FFI_CHECKS_H_
