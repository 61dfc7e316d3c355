#include "tensor.hpp"

#include <cstdio>

namespace kvpolicy::c {
namespace {

/// "float16", "int32", "float32 in 4 lanes", "type code 9 of 16 bits"
std::string text_of(kvpolicy_dtype type) {
  char const* const kind = type.code == 0   ? "int"
                           : type.code == 1 ? "uint"
                           : type.code == 2 ? "float"
                           : type.code == 4 ? "bfloat"
                           : type.code == 5 ? "complex"
                           : type.code == 6 ? "bool"
                                            : nullptr;
  std::string text = kind != nullptr ? kind + std::to_string(type.bits)
                                     : "type code " + std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits";
  if (type.lanes != 1) text += " in " + std::to_string(type.lanes) + " lanes";
  return text;
}

std::string text_of(std::span<axis const> axes) {
  std::string text = "[";
  for (axis const& a : axes) text += (&a == axes.data() ? "" : ", ") + std::string(a.name);
  return text + "]";
}

std::string text_of(place const& where) {
  std::string const device = "CUDA device " + std::to_string(where.cuda_id);
  if (!where.cuda) return "in host memory (device type 1)";
  return where.host ? "in host memory or on " + device : "on " + device;
}

/// Sorted by stride, each axis must step over all that the ones before it reach.
bool overlaps(tensor const& t, std::size_t axes, std::int64_t size) {
  std::int64_t reach = size;
  std::array<bool, tensor::max_axes> seen{};
  for (std::size_t n = 0; n < axes; ++n) {
    std::size_t next = axes;
    for (std::size_t i = 0; i < axes; ++i) {
      if (!seen[i] && (next == axes || t.stride[i] < t.stride[next])) next = i;
    }
    seen[next] = true;
    if (t.extent[next] <= 1) continue;
    if (t.stride[next] < reach) return true;
    reach = t.stride[next] * (t.extent[next] - 1) + reach;
  }
  return false;
}

}  // namespace

tensor checked(kvpolicy_tensor const* given, tensor_rule const& rule, std::span<axis const> axes) {
  auto const refuse = [&](std::string const& why) { throw invalid_value(rule.named() + ": " + why); };
  if (given == nullptr) refuse("no tensor was given; it must be " + text_of(axes) + " of " + text_of(rule.dtype));
  kvpolicy_tensor const& t = *given;
  tensor found;
  found.on_device = t.device.type == 2;
  bool const host = t.device.type == 1 || t.device.type == 3;
  if (!(rule.where.host && host) && !(rule.where.cuda && found.on_device && t.device.id == rule.where.cuda_id)) {
    refuse("on device type " + std::to_string(t.device.type) + ", id " + std::to_string(t.device.id) + "; it must be " +
           text_of(rule.where));
  }
  if (t.dtype.code != rule.dtype.code || t.dtype.bits != rule.dtype.bits || t.dtype.lanes != rule.dtype.lanes) {
    refuse("of type " + text_of(t.dtype) + "; it must be " + text_of(rule.dtype));
  }
  if (t.ndim != static_cast<std::int32_t>(axes.size())) {
    refuse(std::to_string(t.ndim) + " axes; it must have " + std::to_string(axes.size()) + ": " + text_of(axes));
  }
  if (t.shape == nullptr) refuse("its shape is NULL");

  std::size_t const last = axes.size() - 1;
  std::int64_t const size = rule.dtype.bits / 8;
  bool empty = false;
  for (std::size_t i = 0; i <= last; ++i) {
    axis const& a = axes.begin()[i];
    found.extent[i] = t.shape[i];
    bool const fits = a.extent == axis::any ? t.shape[i] >= 0 : t.shape[i] == a.extent;
    if (!fits) {
      refuse("axis " + std::to_string(i) + " (" + a.name + ") has " + std::to_string(t.shape[i]) + " elements; it must have " +
             (a.extent == axis::any ? "at least 0" : std::to_string(a.extent)));
    }
    empty = empty || t.shape[i] == 0;
  }
  bool overflows = false;
  std::int64_t dense = size;
  for (std::size_t i = last + 1; i-- > 0;) {
    found.stride[i] = dense;
    if (t.strides != nullptr && found.extent[i] > 1) {
      std::string const name = axes.begin()[i].name;
      if (t.strides[i] < 0) refuse("the stride of " + name + " is " + std::to_string(t.strides[i]) + "; it can't be negative");
      if (rule.dense_last && i == last && t.strides[i] != 1) {
        refuse("the stride of " + name + " is " + std::to_string(t.strides[i]) + "; it must be 1");
      }
      overflows = overflows || __builtin_mul_overflow(t.strides[i], size, &found.stride[i]);
    }
    overflows = overflows || (!empty && __builtin_mul_overflow(dense, found.extent[i], &dense));
  }
  std::int64_t reach = size;  // bytes from the first element to behind the last
  for (std::size_t i = 0; i <= last && !empty; ++i) {
    std::int64_t part = 0;
    overflows = overflows || __builtin_mul_overflow(found.extent[i] - 1, found.stride[i], &part) ||
                __builtin_add_overflow(reach, part, &reach);
  }
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  overflows = overflows || __builtin_add_overflow(reinterpret_cast<std::uintptr_t>(t.data), t.byte_offset, &begin) ||
              __builtin_add_overflow(begin, static_cast<std::uint64_t>(reach), &end);
  if (overflows) refuse("its strides or byte offset reach past the end of the address space");
  if (t.data == nullptr && !empty) refuse("its data is NULL");
  if (begin % static_cast<std::uintptr_t>(size) != 0) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(begin));
    refuse("its data begins at " + std::string(text) + ", which is not aligned to its elements of " + std::to_string(size) +
           " bytes");
  }
  if (rule.apart && !empty && overlaps(found, last + 1, size)) {
    std::string strides;
    for (std::size_t i = 0; i <= last; ++i) strides += (i == 0 ? "" : ", ") + std::to_string(found.stride[i] / size);
    refuse("its strides of " + strides + " elements let elements overlap; each axis must step over those inside it");
  }
  found.data = reinterpret_cast<std::byte*>(begin);
  return found;
}

}  // namespace kvpolicy::c
