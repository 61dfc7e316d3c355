// A communicator over MPI. Needs mpi.h: link MPI::MPI_CXX, or compile with mpicxx.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "kvpolicy/interop/ranks_deadline.hpp"

namespace kvpolicy {

/// Sums over MPI ranks, by MPI_Iallreduce and polling. Models communicator; neither copied nor moved.
/// Only one thread at a time may use it, and MPI must be initialised for the calling threads. sum() allocates at the first
/// call, and when it gets more numbers than in any call before.
class mpi_communicator {
 public:
  /// Duplicates `all`, so that messages and errors stay apart from the engine's. Collective over the ranks of `all`.
  /// @param all  the group
  /// @param deadline  for one sum: how far ranks may ever be apart, and how long a lost rank may go unnoticed
  /// @throws ranks_error if MPI refuses
  /// @throws invalid_value if `deadline` is not above 0
  explicit mpi_communicator(MPI_Comm all, std::chrono::milliseconds deadline = std::chrono::seconds(30))
      : wait_(index_of(all), size_of(all), deadline) {
    check(MPI_Comm_dup(all, &own_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(own_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  mpi_communicator(mpi_communicator const&) = delete;
  mpi_communicator& operator=(mpi_communicator const&) = delete;
  /// Call it before MPI_Finalize. After a failure end with MPI_Abort: MPI_Finalize may wait for the lost rank.
  ~mpi_communicator() {
    if (!wait_.broken()) {
      MPI_Comm_free(&own_);
      return;
    }
    // MPI may still write to the buffer of a sum that was given up, and freeing a communicator is collective.
    [[maybe_unused]] float* const left_to_mpi = buffer_.release();
  }

  int rank() const noexcept { return wait_.rank(); }
  int size() const noexcept { return wait_.size(); }

  void sum(std::span<float> values) {
    wait_.begin();
    if (values.size() > room_) {
      buffer_ = std::make_unique<float[]>(values.size());
      room_ = values.size();
    }
    std::copy(values.begin(), values.end(), buffer_.get());
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallreduce(MPI_IN_PLACE, buffer_.get(), static_cast<int>(values.size()), MPI_FLOAT, MPI_SUM, own_, &request),
          "MPI_Iallreduce");
    for (;;) {
      int done = 0;
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) break;
      wait_.poll();
    }
    std::copy_n(buffer_.get(), values.size(), values.begin());
  }

 private:
  static int index_of(MPI_Comm all) {
    int rank = 0;
    MPI_Comm_rank(all, &rank);
    return rank;
  }
  static int size_of(MPI_Comm all) {
    int size = 0;
    MPI_Comm_size(all, &size);
    return size;
  }

  void check(int code, char const* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    wait_.fail(std::string("lost the other ranks: ") + call + " says: " + text);
  }

  ranks_deadline wait_;
  MPI_Comm own_ = MPI_COMM_NULL;
  std::unique_ptr<float[]> buffer_;
  std::size_t room_ = 0;
};

static_assert(communicator<mpi_communicator>);

}  // namespace kvpolicy
