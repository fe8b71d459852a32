#pragma once
// JSON in one form for each value (RFC 8785), to be hashed and signed.
#include <ipybox/detail/json_number.hpp>
#include <string>
#include <string_view>

namespace ipybox::detail {

// The text that ECMAScript has for a number: 100, 1e+21, 0.000001, 1e-7; of -0, 0. number: finite.
std::string ecmascript_number(double number);

// Whether the name `a` stands before `b`: by units of UTF-16, where what lies beyond U+FFFF comes
// before U+E000.
bool utf16_less(std::string_view a, std::string_view b) noexcept;

// What becomes of a number that is no double's shortest text, such as 123456789012345678901: the
// nearest double, as the RFC says, or its own digits, so that none can be altered unnoticed.
enum class CanonicalNumbers { rounded, exact };

// The canonical text; that of equal values is equal. Recursive: whoever parses bounds the depth.
std::string canonical_json(const json::value& value, CanonicalNumbers numbers);
std::string canonical_json(const json::object& object, CanonicalNumbers numbers);

}  // namespace ipybox::detail

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/detail/impl/canonical_json.ipp>
#endif
