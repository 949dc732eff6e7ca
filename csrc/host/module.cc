// SPDX-License-Identifier: Apache-2.0
// The Python extension of the input pipeline. Functions release the GIL.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/host/index_permutation.h"
#include "csrc/host/packing.h"

namespace py = pybind11;

namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;
// An array that is written: never a converted copy.
template <class T>
using Output = py::array_t<T, py::array::c_style>;

// An array that owns the memory of a vector.
template <class T>
py::array_t<T> ToArray(std::vector<T>&& values) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owner->data();
  const auto size = static_cast<py::ssize_t>(owner->size());
  py::capsule capsule(owner.release(), [](void* pointer) {
    delete static_cast<std::vector<T>*>(pointer);
  });
  return py::array_t<T>(size, data, capsule);
}

pax::Fit ToFit(const std::string& name) {
  if (name == "best_fit") return pax::Fit::kBestFit;
  if (name == "first_fit") return pax::Fit::kFirstFit;
  throw std::invalid_argument("fit must be best_fit or first_fit, got " + name);
}

py::tuple Pack(const Array<int64_t>& lengths, int64_t seq_len,
               const std::string& fit, int64_t block_size) {
  pax::PackingPlan plan;
  const int64_t* data = lengths.data();
  const int64_t size = lengths.size();
  {
    py::gil_scoped_release release;
    plan = pax::Pack(data, size, seq_len, ToFit(fit), block_size);
  }
  return py::make_tuple(
      ToArray(std::move(plan.documents)), ToArray(std::move(plan.offsets)),
      ToArray(std::move(plan.lengths)), ToArray(std::move(plan.columns)),
      ToArray(std::move(plan.row_starts)));
}

void CheckSize(const py::array& array, int64_t size, const char* name) {
  if (array.size() != size) {
    throw std::invalid_argument(std::string(name) + " must have " +
                                std::to_string(size) + " elements, got " +
                                std::to_string(array.size()));
  }
}

// Documents, offsets, lengths, columns and row_starts of a PackingPlan.
using Plan = std::tuple<Array<int64_t>, Array<int64_t>, Array<int32_t>,
                        Array<int32_t>, Array<int64_t>>;

// Returns whether the tokens are of the type Token; then writes the rows.
template <class Token>
bool WriteRowsOf(const py::array& tokens, const Array<int64_t>& starts,
                 const Plan& plan, const Array<int64_t>& rows,
                 const Array<int64_t>& places, const pax::Batch& batch) {
  if (!tokens.dtype().equal(py::dtype::of<Token>())) return false;
  const auto& [documents, offsets, lengths, columns, row_starts] = plan;
  const pax::PackedCorpus<Token> corpus{
      static_cast<const Token*>(tokens.data()),
      tokens.size(),
      starts.data(),
      starts.size() - 1,
      documents.data(),
      offsets.data(),
      lengths.data(),
      columns.data(),
      documents.size(),
      row_starts.data(),
      row_starts.size() - 1};
  const int64_t* row_data = rows.data();
  const int64_t* place_data = places.data();
  const int64_t count = rows.size();
  py::gil_scoped_release release;
  pax::WriteRows(corpus, row_data, place_data, count, batch);
  return true;
}

// The memory of array `index` of a batch.
template <class T>
T* Memory(const py::tuple& batch, size_t index) {
  const py::object item = batch[index];
  // An array of another type or layout would be converted to a copy.
  if (!py::isinstance<Output<T>>(item)) {
    throw py::type_error("array " + std::to_string(index) +
                         " of a batch has another dtype, or is not contiguous");
  }
  auto array = py::reinterpret_borrow<Output<T>>(item);
  CheckSize(array, py::array(batch[0]).size(), "the arrays of a batch");
  return array.mutable_data();
}

pax::Batch ToBatch(const py::tuple& arrays) {
  if (arrays.size() != 6 || !py::isinstance<py::array>(arrays[0])) {
    throw py::type_error("a batch must have six arrays");
  }
  const py::array ids = arrays[0];
  if (ids.ndim() != 2) {
    throw std::invalid_argument("the arrays of a batch must have two axes");
  }
  return {Memory<int32_t>(arrays, 0),
          Memory<int32_t>(arrays, 1),
          Memory<int32_t>(arrays, 2),
          Memory<int32_t>(arrays, 3),
          Memory<float>(arrays, 4),
          Memory<float>(arrays, 5),
          ids.shape(0),
          ids.shape(1)};
}

void WriteRows(const py::array& tokens, const Array<int64_t>& starts,
               const Plan& plan, const Array<int64_t>& rows,
               const Array<int64_t>& places, const py::tuple& batch) {
  const auto& [documents, offsets, lengths, columns, row_starts] = plan;
  CheckSize(offsets, documents.size(), "offsets");
  CheckSize(lengths, documents.size(), "lengths");
  CheckSize(columns, documents.size(), "columns");
  CheckSize(places, rows.size(), "places");
  if (tokens.ndim() != 1 || !(tokens.flags() & py::array::c_style)) {
    throw std::invalid_argument("tokens must be one-dimensional, contiguous");
  }
  const pax::Batch memory = ToBatch(batch);
  const auto write = [&](auto token) {
    return WriteRowsOf<decltype(token)>(tokens, starts, plan, rows, places,
                                        memory);
  };
  if (write(uint16_t{}) || write(int32_t{}) || write(uint8_t{}) ||
      write(uint32_t{}) || write(int64_t{})) {
    return;
  }
  throw std::invalid_argument("tokens must be integers of 8 to 64 bits");
}

py::array_t<int64_t> Permute(const Array<int64_t>& indices, int64_t size,
                             uint64_t seed) {
  py::array_t<int64_t> out(std::vector<py::ssize_t>(
      indices.shape(), indices.shape() + indices.ndim()));
  const int64_t* in = indices.data();
  int64_t* images = out.mutable_data();
  const int64_t count = indices.size();
  py::gil_scoped_release release;
  pax::Permute(in, count, size, seed, images);
  return out;
}

}  // namespace

PYBIND11_MODULE(_host, m) {
  m.def("pack", &Pack, py::arg("lengths"), py::arg("seq_len"), py::arg("fit"),
        py::arg("block_size"));
  m.def("write_rows", &WriteRows, py::arg("tokens"), py::arg("starts"),
        py::arg("plan"), py::arg("rows"), py::arg("places"), py::arg("batch"));
  m.def("permute", &Permute, py::arg("indices"), py::arg("size"),
        py::arg("seed"));
}
