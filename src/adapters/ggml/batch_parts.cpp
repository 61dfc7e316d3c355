#include "batch_parts.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "kvpolicy/error.hpp"

namespace kvpolicy::ggml {
namespace {

/// Cells that a token with this row of the mask sees, counted from `base`. What it sees is 0 or -0.
template <class Bits>
std::vector<cell_range> seen_in(Bits const* row, std::int64_t cells, std::int64_t base) {
  std::vector<cell_range> all;
  auto const seen = [&](std::int64_t c) { return static_cast<Bits>(row[c] << 1U) == 0; };
  constexpr std::int64_t block = 64;
  for (std::int64_t c = 0; c < cells;) {
    bool const now = seen(c);
    std::int64_t end = c + 1;
    for (bool same = true; same && end + block <= cells; end += same ? block : 0)  // whole blocks, a vector at a time
      for (std::int64_t i = end; i < end + block; ++i) same &= seen(i) == now;
    while (end < cells && seen(end) == now) ++end;
    if (now) all.push_back({base + c, base + end});
    c = end;
  }
  return all;
}

bool has_all(std::span<cell_range const> ranges, cell_range const& of) {
  auto const behind = std::ranges::upper_bound(ranges, of.begin, {}, &cell_range::begin);
  return behind != ranges.begin() && of.end <= std::prev(behind)->end;
}
bool has(std::span<cell_range const> ranges, std::int64_t cell) { return has_all(ranges, {cell, cell + 1}); }

std::int64_t count(std::span<cell_range const> ranges) {
  std::int64_t cells = 0;
  for (cell_range const& each : ranges) cells += each.end - each.begin;
  return cells;
}

void take_out(std::vector<cell_range>& ranges, std::int64_t cell) {
  auto const at = std::prev(std::ranges::upper_bound(ranges, cell, {}, &cell_range::begin));
  cell_range const behind{cell + 1, at->end};
  at->end = cell;
  if (behind.begin < behind.end) ranges.insert(std::next(at), behind);
  std::erase_if(ranges, [](cell_range const& each) { return each.begin == each.end; });
}

class inputs {
 public:
  inputs(attention_graph const& of, ggml_backend_t backend, std::function<std::span<std::byte>(std::size_t)> const& room)
      : of_(of), mask_(*of.mask.input()), backend_(backend), row_bytes_(static_cast<std::size_t>(mask_.ne[0]) * mask_.nb[0]) {
    auto const tokens = static_cast<std::size_t>(of.tokens());
    std::size_t const outputs = of.outputs != nullptr ? static_cast<std::size_t>(of.outputs->ne[0]) : 0;
    constexpr std::size_t most_rows = 32;  // read at once: those of a step
    rows_ = std::min(most_rows, tokens);
    cells_.resize(tokens);
    outputs_.resize(outputs);
    room_ = room(rows_ * row_bytes_ + tokens * sizeof cells_[0] + outputs * sizeof outputs_[0]);
    std::byte* const cells = room_.data() + rows_ * row_bytes_;
    std::byte* const chosen = cells + tokens * sizeof cells_[0];
    ggml_backend_tensor_get_async(backend, of.cells, cells, 0, tokens * sizeof cells_[0]);
    if (outputs > 0) ggml_backend_tensor_get_async(backend, of.outputs, chosen, 0, outputs * sizeof outputs_[0]);
    all_at_once_ = rows_ == tokens;
    if (all_at_once_)
      for (std::size_t t = 0; t < tokens; ++t) get_row(static_cast<std::int64_t>(t), t);
    ggml_backend_synchronize(backend);
    std::memcpy(cells_.data(), cells, tokens * sizeof cells_[0]);
    if (outputs > 0) std::memcpy(outputs_.data(), chosen, outputs * sizeof outputs_[0]);
  }

  std::vector<cell_range> seen_by(std::int64_t token) {
    std::size_t const at = all_at_once_ ? static_cast<std::size_t>(token) : 0;
    if (!all_at_once_) {
      get_row(token, 0);
      ggml_backend_synchronize(backend_);
    }
    std::byte const* const row = room_.data() + at * row_bytes_;
    std::int64_t const base = stream_of(token) * of_.stream_cells();
    if (mask_.type == GGML_TYPE_F32) return seen_in(reinterpret_cast<std::uint32_t const*>(row), mask_.ne[0], base);
    return seen_in(reinterpret_cast<std::uint16_t const*>(row), mask_.ne[0], base);
  }
  std::int64_t stream_of(std::int64_t token) const { return cell(token) / of_.stream_cells(); }
  std::int64_t cell(std::int64_t token) const { return cells_[static_cast<std::size_t>(token)]; }
  /// Rows of the logits of tokens from `first` to `end`; the last one of them.
  std::int64_t outputs_of(std::int64_t first, std::int64_t end, std::int64_t& last) const {
    last = -1;
    if (of_.outputs == nullptr) {  // every token's
      last = end - 1;
      return of_.logits != nullptr && of_.logits->ne[1] > 1 ? end - first : 1;
    }
    std::int64_t found = 0;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i] < first || outputs_[i] >= end) continue;
      ++found;
      if (outputs_[i] + 1 == end) last = static_cast<std::int64_t>(i);
    }
    return found;
  }

 private:
  void get_row(std::int64_t token, std::size_t to) {
    std::int64_t const of_stream = of_.layers.front().node->src[0]->ne[1];
    std::size_t const at =
        static_cast<std::size_t>(token % of_stream) * mask_.nb[1] + static_cast<std::size_t>(token / of_stream) * mask_.nb[3];
    ggml_backend_tensor_get_async(backend_, &mask_, room_.data() + to * row_bytes_, at, row_bytes_);
  }

  attention_graph const& of_;
  ggml_tensor const& mask_;
  ggml_backend_t backend_;
  std::size_t row_bytes_;
  std::size_t rows_ = 0;
  bool all_at_once_ = false;
  std::span<std::byte> room_{};
  std::vector<std::int64_t> cells_{};
  std::vector<std::int32_t> outputs_{};
};

}  // namespace

std::int64_t batch_part::before() const noexcept { return count(seen); }

std::vector<batch_part> parts_of(attention_graph const& of, ggml_backend_t backend,
                                 std::function<std::span<std::byte>(std::size_t)> const& room) {
  inputs from(of, backend, room);
  std::vector<batch_part> parts;
  for (std::int64_t end = of.tokens(); end > 0;) {
    batch_part part;
    std::vector<cell_range> const by_last = from.seen_by(end - 1);
    auto const sees = [&](std::int64_t token) {
      return from.stream_of(token) == from.stream_of(end - 1) && has(by_last, from.cell(token));
    };
    part.first = end - 1;
    while (part.first > 0 && sees(part.first - 1)) --part.first;
    part.seen = part.first + 1 == end ? by_last : from.seen_by(part.first);
    bool causal = sees(end - 1) && has(part.seen, from.cell(part.first));
    for (std::int64_t t = part.first; t < end; ++t) {
      part.cells.push_back(from.cell(t));
      causal = causal && (t == part.first || !has(part.seen, from.cell(t)));
    }
    causal = causal && count(by_last) == count(part.seen) + part.tokens() - 1 &&
             std::ranges::all_of(part.seen, [&](cell_range const& each) { return has_all(by_last, each); });
    if (!causal)
      throw unsupported("tokens " + std::to_string(part.first) + " to " + std::to_string(end - 1) +
                        " of a batch do not see exactly those before them (an image's, or a token of several sequences at "
                        "once): on a device only causal attention is served");
    take_out(part.seen, from.cell(part.first));
    if (std::int64_t const outputs = from.outputs_of(part.first, end, part.output); outputs > 1)
      throw unsupported(
          "outputs of " + std::to_string(outputs) +
          " tokens at once: those of drafts, embeddings or a measurement would attend to everything; steps of one token "
          "are served");
    end = part.first;
    parts.push_back(std::move(part));
  }
  for (batch_part const& part : parts)
    for (batch_part const& other : parts)
      if (std::ranges::any_of(other.cells, [&](std::int64_t cell) { return has(part.seen, cell); }))
        throw unsupported("tokens of a sequence that do not follow each other in a batch: token " + std::to_string(part.first) +
                          " sees token " + std::to_string(other.first) +
                          ", with others between them; on a device, give a batch's tokens sequence by sequence");
  std::ranges::reverse(parts);
  return parts;
}

}  // namespace kvpolicy::ggml
