// A kernel's text to instructions.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "cuda/ptx/instruction.hpp"

namespace ptx {

namespace {

constexpr std::string_view blanks = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  std::size_t const first = text.find_first_not_of(blanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}
/// Splits where a separator lies outside of braces and brackets.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (depth == 0 && text[i] == separator)) {
      if (std::string_view const part = trimmed(text.substr(begin, i - begin)); !part.empty()) parts.push_back(part);
      begin = i + 1;
    } else if (text[i] == '{' || text[i] == '[') {
      ++depth;
    } else if (text[i] == '}' || text[i] == ']') {
      --depth;
    }
  }
  return parts;
}
std::int64_t number(std::string_view digits) {
  std::int64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}
width width_of(std::string_view type) {
  if (type == "pred") return width::predicate;
  if (type.ends_with("16")) return width::b16;
  return type.ends_with("64") ? width::b64 : width::b32;
}

struct place {
  std::uint32_t at = 0;
  width of = width::none;
};

class decoder {
 public:
  explicit decoder(std::string_view module) : module_(module) {}

  kernel run(std::string_view name) {
    made_.name = name;
    made_.specials.fill(-1);
    std::size_t const header = find_entry(name);
    at_ = module_.find('{', header);
    declare_parameters(module_.substr(header, at_ - header));
    line_ =
        1 + static_cast<std::int32_t>(std::count(module_.begin(), module_.begin() + static_cast<std::ptrdiff_t>(at_), '\n'));
    scopes_.emplace_back();
    ++at_;
    while (!scopes_.empty()) statement();
    for (auto const& [index, label] : branches_) {
      auto const found = labels_.find(label);
      if (found == labels_.end()) refuse("a branch to '" + label + "', which is not in the kernel");
      made_.code[index].target = found->second;
    }
    emit({}, flow::leave);  // the end of the text ends a thread too
    place_constants();
    return std::move(made_);
  }

 private:
  [[noreturn]] void refuse(std::string const& what) const {
    throw std::invalid_argument(made_.name + ":" + std::to_string(line_) + ": " + what);
  }

  std::size_t find_entry(std::string_view name) const {
    std::string const wanted = ".entry " + std::string(name) + "(";
    std::size_t const found = module_.find(wanted);
    if (found == module_.npos) throw std::invalid_argument("the module has no kernel " + std::string(name));
    return found + wanted.size();
  }

  void declare_parameters(std::string_view text) {
    std::int64_t end = 0;
    for (std::string_view const one : split(text.substr(0, text.rfind(')')), ',')) {
      auto const [at, bytes] = declare(one, end);
      made_.parameters.push_back({at, bytes});
      end = at + bytes;
    }
  }
  /// A variable `.param .align 8 .b8 name[544]`, at `from` or a little behind.
  kernel::parameter declare(std::string_view text, std::int64_t from) {
    std::int64_t align = 0, element = 0, count = 1;
    std::vector<std::string_view> const words = split(text, ' ');
    for (std::size_t i = 1; i + 1 < words.size(); ++i) {
      if (words[i] == ".ptr") break;  // of what it points to
      if (words[i] == ".align") align = number(words[++i]);
      else element = number(words[i].substr(2)) / 8;
    }
    std::string_view name = words.back();
    if (std::size_t const bracket = name.find('['); bracket != name.npos) {
      count = number(name.substr(bracket + 1));
      name = name.substr(0, bracket);
    }
    align = std::max(align, element);
    if (element == 0) refuse("the declaration '" + std::string(text) + "'");
    std::int64_t const at = (from + align - 1) / align * align;
    symbols_[std::string(name)] = at;
    return {at, count * element};
  }

  void declare_shared(std::string_view text) {
    auto const [at, bytes] = declare(text, made_.shared_bytes);
    made_.shared_bytes = at + bytes;
  }

  void skip_blanks() {
    while (at_ < module_.size()) {
      if (module_.substr(at_, 2) == "//") {
        at_ = std::min(module_.find('\n', at_), module_.size());
      } else if (blanks.find(module_[at_]) != blanks.npos) {
        if (module_[at_++] == '\n') ++line_;
      } else {
        return;
      }
    }
    refuse("the module ends within a kernel");
  }

  void statement() {
    skip_blanks();
    if (module_[at_] == '{') {
      ++at_;
      scopes_.emplace_back();
      return;
    }
    if (module_[at_] == '}') {
      ++at_;
      scopes_.pop_back();
      return;
    }
    std::size_t const end = module_.find_first_of(";:", at_);
    if (end == module_.npos) refuse("a statement without an end");
    std::string_view const text = trimmed(module_.substr(at_, end - at_));
    if (module_[end] == ':') labels_[std::string(text)] = static_cast<std::int32_t>(made_.code.size());
    else if (text.starts_with(".reg")) declare_registers(text);
    else if (text.starts_with(".shared")) declare_shared(text);
    else if (!text.starts_with(".pragma")) decode(text);
    line_ += static_cast<std::int32_t>(std::count(&module_[at_], &module_[end], '\n'));
    at_ = end + 1;
  }

  place new_register(width of) {
    place const made{registers_end_, of};
    registers_end_ += bytes_of(of);
    return made;
  }
  void declare_registers(std::string_view text) {
    std::size_t const type = text.find_first_not_of(blanks, 4), names = text.find_first_of(blanks, type);
    width const of = width_of(text.substr(type + 1, names - type - 1));
    for (std::string_view const name : split(text.substr(names), ',')) {
      if (!name.ends_with('>')) {
        scopes_.back()[std::string(name)] = new_register(of);
        continue;
      }
      std::size_t const bracket = name.find('<');
      for (std::int64_t i = 0; i < number(name.substr(bracket + 1)); ++i)
        scopes_.back()[std::string(name.substr(0, bracket)) + std::to_string(i)] = new_register(of);
    }
  }

  std::optional<place> find_register(std::string_view name) {
    std::string const key(name);
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (auto const found = scope->find(key); found != scope->end()) return found->second;
    auto const special = std::find(special_registers.begin(), special_registers.end(), name);
    if (special == special_registers.end()) return {};
    std::int32_t& at = made_.specials[static_cast<std::size_t>(special - special_registers.begin())];
    if (at < 0) at = static_cast<std::int32_t>(new_register(width::b32).at);
    return place{static_cast<std::uint32_t>(at), width::b32};
  }
  place register_of(std::string_view name) {
    std::optional<place> const found = find_register(name);
    if (!found) refuse("'" + std::string(name) + "' is no register");
    return *found;
  }
  std::uint32_t operand(std::string_view text, width of) {
    if (std::optional<place> const found = find_register(text)) {
      if (found->of != of) refuse("the register " + std::string(text) + " is of another width than its instruction");
      return found->at;
    }
    return constant(of, immediate(text));
  }

  std::uint64_t immediate(std::string_view text) {
    if (auto const symbol = symbols_.find(std::string(text)); symbol != symbols_.end())
      return static_cast<std::uint64_t>(symbol->second);
    int base = 10;
    bool const negative = text.starts_with('-');
    std::string_view digits = text.substr(negative ? 1 : 0);
    if (digits.size() > 2 && digits[0] == '0' && std::string_view("fFdDxX").find(digits[1]) != std::string_view::npos)
      base = 16, digits.remove_prefix(2);
    std::uint64_t value = 0;
    auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc{} || end != digits.data() + digits.size()) refuse("'" + std::string(text) + "' is no operand");
    return negative ? 0 - value : value;
  }
  /// Constants lie behind all registers, which are not all known yet: until then their places are marked.
  std::uint32_t constant(width of, std::uint64_t value) {
    auto const [found, is_new] = constants_.try_emplace({of, value}, static_cast<std::uint32_t>(made_.constants.size()));
    if (is_new) {
      std::uint64_t const bits = of == width::predicate && value != 0 ? all_lanes : value;
      std::size_t const bytes = of == width::predicate ? bytes_of(of) : static_cast<std::size_t>(of);
      for (std::uint32_t i = 0; i < bytes_of(of); i += static_cast<std::uint32_t>(bytes)) {
        auto const* const from = reinterpret_cast<std::byte const*>(&bits);
        made_.constants.insert(made_.constants.end(), from, from + bytes);
      }
    }
    return found->second | is_constant;
  }
  void place_constants() {
    made_.constants_at = (registers_end_ + 63) / 64 * 64;
    auto const placed = [&](auto& at) {
      auto const bits = static_cast<std::uint32_t>(at);
      if ((bits & is_constant) == 0 || bits == ~std::uint32_t{0}) return;  // a register, or none
      at = static_cast<std::remove_reference_t<decltype(at)>>((bits & ~is_constant) + made_.constants_at);
    };
    for (instruction& one : made_.code) {
      for (std::uint32_t& at : one.at) placed(at);
      placed(one.members);
    }
  }

  void emit(instruction one, flow kind) {
    one.kind = kind;
    one.line = line_;
    one.index = static_cast<std::int32_t>(made_.code.size());
    made_.code.push_back(one);
  }

  void decode(std::string_view text) {
    instruction one;
    if (text.starts_with('@')) {
      std::size_t const end = text.find_first_of(blanks);
      one.unless = text[1] == '!';
      std::size_t const name = one.unless ? 2 : 1;
      one.guard = static_cast<std::int32_t>(register_of(text.substr(name, end - name)).at);
      text = trimmed(text.substr(end));
    }
    std::size_t const end = std::min(text.find_first_of(blanks), text.size());
    opcode_ = text.substr(0, end);
    std::vector<std::string_view> const operands = split(text.substr(end), ',');
    std::string_view const family = opcode_.substr(0, opcode_.find('.'));
    if (family == "bra") {
      branches_.emplace_back(made_.code.size(), std::string(operands.at(0)));
      emit(one, flow::branch);
    } else if (family == "ret" || family == "exit") {
      emit(one, flow::leave);
    } else if (family == "membar") {
      return;  // here one access is done after another
    } else if (opcode_ == "bar.sync") {
      if (operands.size() != 1 || operands[0] != "0") refuse("only the barrier 0 of all threads is executed here");
      emit(one, flow::block_barrier);
    } else if (opcode_ == "bar.warp.sync") {
      one.members = static_cast<std::int32_t>(operand(operands.at(0), width::b32));
      emit(one, flow::warp_barrier);
    } else if (family == "ld" || family == "st") {
      access(one, operands);
    } else if (family == "atom") {
      add(one, operands);
    } else if (action const found = find_exchange(opcode_)) {
      one.run = found;
      exchange(one, operands);
    } else if (family == "mov" && std::any_of(operands.begin(), operands.end(), [](auto each) { return each[0] == '{'; })) {
      regroup(one, operands);
    } else {
      plain(one, operands);
    }
  }

  void plain(instruction one, std::vector<std::string_view> const& operands) {
    operation const* found = find_operation(opcode_);
    // What is converted may be the lower part of a register.
    if (found != nullptr && opcode_.starts_with("cvt") && found->widths[1] < width::b64 && operands.size() == 2 &&
        find_register(operands[1]).value_or(place{}).of == width::b64)
      found = find_operation(std::string(opcode_) + " of b64");
    auto const wanted = found == nullptr ? 0 : std::count_if(found->widths.begin(), found->widths.end(), [](width each) {
      return each != width::none;
    });
    if (found == nullptr || wanted != std::ssize(operands))
      refuse("the instruction " + std::string(opcode_) + " is not executed here");
    one.run = found->run;
    if (register_of(operands[0]).of != found->widths[0])
      refuse("the destination of " + std::string(opcode_) + " is of another width");
    for (std::size_t i = 0; i < operands.size(); ++i) one.at[i] = operand(operands[i], found->widths[i]);
    emit(one, flow::next);
  }

  std::vector<std::string_view> parts_of(std::string_view text) const {
    return text.starts_with('{') ? split(text.substr(1, text.size() - 2), ',') : std::vector{text};
  }
  /// Two registers to one of twice their width, or back.
  void regroup(instruction one, std::vector<std::string_view> const& operands) {
    bool const packs = operands.at(1)[0] == '{';
    width const whole = width_of(opcode_.substr(opcode_.rfind('.') + 1));
    width const part = whole == width::b64 ? width::b32 : width::b16;
    one.run = find_regrouping(whole, packs);
    std::vector<std::string_view> const parts = parts_of(operands[packs ? 1 : 0]);
    if (one.run == nullptr || parts.size() != 2) refuse("this form of mov is not executed here");
    one.at[packs ? 0 : 2] = operand(operands[packs ? 0 : 1], whole);
    for (std::size_t i = 0; i < 2; ++i) one.at[(packs ? 1 : 0) + i] = operand(parts[i], part);
    emit(one, flow::next);
  }

  /// `[register + offset]` or `[symbol + offset]`.
  std::uint32_t address(instruction& one, std::string_view text, width of) {
    if (!text.starts_with('[')) refuse("'" + std::string(text) + "' is no address");
    text = text.substr(1, text.size() - 2);
    std::size_t const plus = text.find('+');
    if (plus != text.npos) one.offset = static_cast<std::int64_t>(immediate(trimmed(text.substr(plus + 1))));
    return operand(trimmed(text.substr(0, plus)), of);
  }
  space where() const {
    for (auto const& [name, is] :
         {std::pair{".global", space::global}, {".shared", space::shared}, {".param", space::parameter}})
      if (opcode_.find(name) != opcode_.npos) return is;
    refuse("the instruction " + std::string(opcode_) + " names no address space that is executed here");
  }
  void access(instruction one, std::vector<std::string_view> const& operands) {
    bool const loads = opcode_.starts_with("ld");
    std::vector<std::string_view> const registers = parts_of(operands.at(loads ? 0 : 1));
    std::vector<std::string_view> const words = split(opcode_, '.');
    bool const is_vector = words.size() > 2 && words[words.size() - 2][0] == 'v';
    space const in = where();
    // An immediate is stored by its type.
    std::optional<place> const first = find_register(registers.at(0));
    width const of = first ? first->of : width_of(words.back());
    ptx::access const found = find_access(in, words.back(), of);
    one.run = loads ? found.load : found.store;
    if (one.run == nullptr ||
        registers.size() != (is_vector ? static_cast<std::size_t>(number(words[words.size() - 2].substr(1))) : 1))
      refuse("the instruction " + std::string(opcode_) + " is not executed here");
    one.parts = static_cast<std::uint8_t>(registers.size());
    std::size_t const values = loads ? 0 : 1;
    for (std::size_t i = 0; i < registers.size(); ++i) one.at[values + i] = operand(registers[i], of);
    one.at[loads ? registers.size() : 0] =
        address(one, operands.at(loads ? 1 : 0), in == space::shared ? width::b32 : width::b64);
    emit(one, flow::next);
  }
  void add(instruction one, std::vector<std::string_view> const& operands) {
    space const in = where();
    one.run = find_atomic_add(in);
    if (one.run == nullptr || !opcode_.ends_with(".add.u32"))
      refuse("the instruction " + std::string(opcode_) + " is not executed here");
    one.at[0] = operand(operands.at(0), width::b32);
    one.at[1] = address(one, operands.at(1), in == space::shared ? width::b32 : width::b64);
    one.at[2] = operand(operands.at(2), width::b32);
    emit(one, flow::next);
  }

  /// Registers in the order of the text; a shuffle's second is its predicate, and the last of those with members their mask.
  void exchange(instruction one, std::vector<std::string_view> const& operands) {
    std::vector<std::uint32_t> found;
    bool const shuffles = opcode_.starts_with("shfl"), votes = opcode_.starts_with("vote");
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (shuffles && i == 0) {
        std::vector<std::string_view> const two = split(operands[0], '|');
        found.push_back(operand(two[0], width::b32));
        found.push_back(two.size() == 2 ? operand(two[1], width::predicate) : new_register(width::predicate).at);
        continue;
      }
      for (std::string_view const part : parts_of(operands[i]))
        found.push_back(operand(part, votes && i == 1 ? width::predicate : width::b32));
    }
    if (shuffles || votes) {
      one.members = static_cast<std::int32_t>(found.back());
      found.pop_back();
    }
    if (found.size() > one.at.size()) refuse("too many operands of " + std::string(opcode_));
    std::copy(found.begin(), found.end(), one.at.begin());
    emit(one, flow::exchange);
  }

  static constexpr std::uint32_t is_constant = 0x80000000;

  std::string_view module_;
  std::size_t at_ = 0;
  std::int32_t line_ = 0;
  std::string_view opcode_;
  kernel made_;
  std::uint32_t registers_end_ = 0;
  std::vector<std::unordered_map<std::string, place>> scopes_;
  std::unordered_map<std::string, std::int64_t> symbols_;  // parameters and shared variables, by where they begin
  std::map<std::pair<width, std::uint64_t>, std::uint32_t> constants_;
  std::unordered_map<std::string, std::int32_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> branches_;
};

}  // namespace

kernel decode(std::string_view module, std::string_view name) { return decoder(module).run(name); }

}  // namespace ptx
