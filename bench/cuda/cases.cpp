// What a case prints, and what a command line asks for; gpu.cu measures, and tests/cuda/ptx/counted_gpu.cpp counts.
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "gpu.hpp"

namespace kvpolicy::bench {
namespace {

std::string quoted(std::string const& value) {
  std::string made = "\"";
  for (char const c : value) {
    if (c == '"' || c == '\\') made += '\\';
    made += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return made + "\"";
}

}  // namespace

void print(std::vector<field> const& fields) {
  std::string line = "{";
  for (field const& f : fields) line += (line.size() > 1 ? ", " : "") + quoted(f.name) + ": " + f.json;
  std::printf("%s}\n", line.c_str());
  std::fflush(stdout);
}

field number(std::string name, double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.9g", value);
  return {std::move(name), digits};
}
field text(std::string name, std::string const& value) { return {std::move(name), quoted(value)}; }

options options_of(int count, char const* const* arguments) {
  options made;
  for (int i = 1; i < count; i += 2) {
    std::string_view const name = arguments[i];
    KVPOLICY_EXPECTS(i + 1 < count, std::string(name) + " needs a value");
    std::string const value = arguments[i + 1];
    if (name == "--only") made.only = value;
    else if (name == "--batch") made.batches.push_back(std::stoll(value));
    else if (name == "--context") made.contexts.push_back(std::stoll(value));
    else if (name == "--layout") made.layout = value == "hnd" ? page_layout::hnd : page_layout::nhd;
    else if (name == "--replays") made.replays = std::max(1, std::stoi(value));
    else
      throw invalid_value("unknown option " + std::string(name) + "; --only, --batch, --context, --layout and --replays are");
  }
  return made;
}

bool measured_gpu::run(std::string const& name, std::int64_t batch, std::int64_t context,
                       std::function<outcome()> const& work) {
  if (name.find(wanted_.only) == std::string::npos) return false;
  ++met_;
  std::vector<field> line{
      text("name", name), number("batch", static_cast<double>(batch)), {"context", std::to_string(context)}};
  try {
    outcome const found = work();
    line.push_back(number("bytes", found.bytes));
    line.insert(line.end(), found.time.counted.begin(), found.time.counted.end());
    line.insert(line.end(), found.more.begin(), found.more.end());
    if (!found.time.counted.empty()) {
      print(line);
      return true;
    }
    double const speed = found.bytes / found.time.us * 1e6;
    line.push_back(number("us", found.time.us));
    line.push_back(number("gbps", speed / 1e9));
    line.push_back(number("share_of_ceiling", speed / ceiling_));
    line.push_back(number("floor_us", found.bytes / llama_8b::floor_speed * 1e6));
    line.push_back(number("us_least", found.time.least));
    line.push_back(number("us_most", found.time.most));
    line.push_back(number("repetitions", found.time.repetitions));
    line.push_back(number("replays", found.time.replays));
    print(line);
    return true;
  } catch (gpu::device_memory_exceeded const& e) {
    line.push_back(text("skipped", e.what()));
  } catch (std::exception const& e) {
    failed_ = true;
    line.push_back(text("failed", e.what()));
  }
  print(line);
  return false;
}

void measured_gpu::each(std::vector<std::int64_t> const& wanted, std::vector<std::int64_t> const& all,
                        std::function<void(std::int64_t)> const& work) {
  for (std::int64_t const value : all) {
    if (wanted.empty() || std::ranges::find(wanted, value) != wanted.end()) work(value);
  }
}

void measured_gpu::each_cell(std::vector<std::int64_t> const& batches, std::vector<std::int64_t> const& contexts,
                             std::function<void(std::int64_t, std::int64_t)> const& work) const {
  each(wanted_.contexts, contexts,
       [&](std::int64_t context) { each(wanted_.batches, batches, [&](std::int64_t batch) { work(batch, context); }); });
}

int main_of(int count, char const* const* arguments, std::function<void(measured_gpu&)> const& work) {
  try {
    options const wanted = options_of(count, arguments);
    if (!measured_gpu::there()) {
      std::fprintf(stderr, "no GPU here\n");
      return 77;
    }
    measured_gpu on(wanted);
    work(on);
    KVPOLICY_EXPECTS(on.met() > 0,
                     "no case has that name, batch and context; without --only, --batch and --context all are run");
    return on.failed() ? 1 : 0;
  } catch (invalid_value const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

}  // namespace kvpolicy::bench
