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

/// Models communicator, by MPI_Iallreduce and polling. One thread at a time; MPI must be initialised for the threads that call.
/// Neither copied nor moved. The first sum, and one of more numbers than any before it, allocates.
class mpi_communicator {
 public:
  /// Collective over the ranks of `all`, of which it makes a communicator of its own: the engine's messages and errors are not
  /// its business. `deadline` is for one sum: as far as ranks may ever be apart, and as long as a lost one may stay unnoticed.
  /// Throws ranks_error where MPI refuses.
  explicit mpi_communicator(MPI_Comm all, std::chrono::milliseconds deadline = std::chrono::seconds(30))
      : wait_(index_of(all), size_of(all), deadline) {
    check(MPI_Comm_dup(all, &own_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(own_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  mpi_communicator(mpi_communicator const&) = delete;
  mpi_communicator& operator=(mpi_communicator const&) = delete;
  /// Before MPI_Finalize. After a failure, MPI_Abort is the way to end: MPI_Finalize may wait for the rank that is lost.
  ~mpi_communicator() {
    if (!wait_.broken()) {
      MPI_Comm_free(&own_);
      return;
    }
    // MPI may still write to the buffer of a sum that was given up, and to free a communicator is collective.
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
