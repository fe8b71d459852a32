#pragma once
// Numbers with the digits that they were written with, and the one way JSON is written.
//
// Boost.JSON has integers of 64 bits and double. A number of a peer that neither writes back with
// the same characters (1e2, 0.10, 123456789012345678901) is kept as a string of exact_mark and its
// text. Nobody can forge one: a parsed string is UTF-8, which has no byte 0xFF, and names of files
// or variables have no NUL.
#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/string.hpp>
#include <boost/json/value.hpp>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ipybox/detail/utf8.hpp>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ipybox::detail {

namespace json = boost::json;

inline constexpr std::string_view exact_mark("\xFF\0", 2);

// Whether `text` is a number by JSON's grammar.
bool is_number_text(std::string_view text) noexcept;

// The text of a number that is kept with its digits; empty for every other value.
inline std::string_view exact_text(const json::value& value) noexcept {
    const auto* string = value.if_string();
    if (!string || string->size() <= exact_mark.size() || string->front() != exact_mark.front())
        return {};
    std::string_view text(*string);
    if (!text.starts_with(exact_mark)) return {};
    text.remove_prefix(exact_mark.size());
    return is_number_text(text) ? text : std::string_view();
}

inline bool is_exact(const json::value& value) noexcept { return !exact_text(value).empty(); }
// What value.is_number() and value.is_string() mean for the values of a peer.
inline bool is_number(const json::value& value) noexcept {
    return value.is_number() || is_exact(value);
}
inline bool is_text(const json::value& value) noexcept {
    return value.is_string() && !is_exact(value);
}

// The number that `text`, one by JSON's grammar, stands for, with these digits.
inline json::value exact_value(std::string_view text) {
    json::string kept;
    kept.reserve(exact_mark.size() + text.size());
    kept.append(exact_mark);
    kept.append(text);
    return kept;
}

// The shortest text that reads back as the same double, as Python and most others write it: 1.0,
// 0.1, 1e-05.
class DoubleText {
public:
    // number: finite.
    explicit DoubleText(double number) noexcept {
        const double size = std::abs(number);
        const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
        char* end = std::to_chars(text_, text_ + sizeof text_ - 2, number,
                                  plain ? std::chars_format::fixed : std::chars_format::scientific)
                        .ptr;
        if (plain && std::find(text_, end, '.') == end) {
            *end++ = '.';
            *end++ = '0';
        }
        size_ = static_cast<std::size_t>(end - text_);
    }
    operator std::string_view() const noexcept { return {text_, size_}; }

private:
    char text_[40];
    std::size_t size_;
};

// The text of a number, as it came or as it is written.
inline std::string number_text(const json::value& value) {
    if (const auto* small = value.if_int64()) return std::to_string(*small);
    if (const auto* large = value.if_uint64()) return std::to_string(*large);
    if (const auto* real = value.if_double())
        return std::isfinite(*real) ? std::string(DoubleText(*real)) : "null";
    return std::string(exact_text(value));
}

// The nearest double of a number by JSON's grammar; infinite when it is beyond all of them.
inline double nearest_double(std::string_view text) noexcept;

// A decimal number of any size: 0.DIGITS * 10^point. Zero has no digits.
struct Decimal {
    bool negative = false;
    std::string digits;  // neither begins nor ends with 0
    std::int64_t point = 0;

    // text: a number by JSON's grammar. Exponents beyond ±10^15 count as that.
    explicit Decimal(std::string_view text);

    bool zero() const noexcept { return digits.empty(); }
    bool integer() const noexcept {
        return zero() || point >= static_cast<std::int64_t>(digits.size());
    }
    // The same text for equal numbers.
    std::string text() const {
        return zero() ? "0" : (negative ? "-0." : "0.") + digits + "e" + std::to_string(point);
    }
    // <0, 0 or >0. Looks at the digits that there are, never at the size of the number.
    int compare(const Decimal& other) const noexcept {
        const auto sign = [](const Decimal& number) {
            return number.zero() ? 0 : number.negative ? -1 : 1;
        };
        if (sign(*this) != sign(other)) return sign(*this) < sign(other) ? -1 : 1;
        if (zero()) return 0;
        const int size =
            point != other.point ? (point < other.point ? -1 : 1) : digits.compare(other.digits);
        return negative ? -size : size;
    }
};

inline double nearest_double(std::string_view text) noexcept {
    double number = 0;
    const auto found = std::from_chars(text.data(), text.data() + text.size(), number);
    if (found.ec == std::errc()) return number;
    // Too large or too small, which from_chars() does not tell: the place of the first digit does.
    const bool negative = text.starts_with('-');
    const double size = Decimal(text).point > 0 ? std::numeric_limits<double>::infinity() : 0.0;
    return negative ? -size : size;
}

// A number as a double, rounded; 0 for what is none.
inline double to_double(const json::value& value) noexcept {
    if (const auto* small = value.if_int64()) return static_cast<double>(*small);
    if (const auto* large = value.if_uint64()) return static_cast<double>(*large);
    if (const auto* real = value.if_double()) return *real;
    const auto text = exact_text(value);
    return text.empty() ? 0 : nearest_double(text);
}

// Whether a number has no fraction: 5, 5.0 and 5e0.
inline bool is_integer(const json::value& value) {
    if (value.is_int64() || value.is_uint64()) return true;
    if (const auto* real = value.if_double())
        return std::isfinite(*real) && *real == std::floor(*real);
    const auto text = exact_text(value);
    return !text.empty() && Decimal(text).integer();
}

// <0, 0 or >0 like a comparison of the two numbers; exact for any number of digits.
inline int compare_numbers(const json::value& a, const json::value& b) {
    const auto sign = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
    const auto *i = a.if_int64(), *j = b.if_int64();
    if (i && j) return sign(*i, *j);
    const auto *x = a.if_double(), *y = b.if_double();
    if (x && y) return sign(*x, *y);
    // Beyond all numbers of JSON, and written by no peer.
    if ((x && !std::isfinite(*x)) || (y && !std::isfinite(*y)))
        return sign(to_double(a), to_double(b));
    return Decimal(number_text(a)).compare(Decimal(number_text(b)));
}

// The same text for numbers that are equal, whatever they are written like.
inline std::string canonical_number(const json::value& value) {
    const auto* real = value.if_double();
    return real && !std::isfinite(*real) ? std::to_string(*real)
                                         : Decimal(number_text(value)).text();
}

// Whether `value` is a multiple of `step`; exact. Nothing for a step of more than 18 digits.
std::optional<bool> is_multiple(const json::value& value, const json::value& step);

// An integer in digits alone, whatever it is written like; empty beyond `most` digits.
inline std::string integer_text(const json::value& value, std::size_t most) {
    const Decimal number(number_text(value));
    if (number.zero()) return "0";
    if (!number.integer() || number.point > static_cast<std::int64_t>(most)) return {};
    const auto zeros = static_cast<std::size_t>(number.point) - number.digits.size();
    return (number.negative ? "-" : "") + number.digits + std::string(zeros, '0');
}

// Calls `take` with every number in a value that is kept with its digits, until it returns true. No
// recursion: what is read from files may be nested 25,000 deep.
template <class Value, class Take>
bool any_exact(Value& value, const Take& take) {
    if (!value.is_structured()) return is_exact(value) && take(value);
    std::vector<Value*> open{&value};
    const auto look = [&](Value& item) {
        if (!item.is_structured()) return is_exact(item) && take(item);
        open.push_back(&item);
        return false;
    };
    while (!open.empty()) {
        Value& next = *open.back();
        open.pop_back();
        if (auto* list = next.if_array()) {
            for (auto& item : *list)
                if (look(item)) return true;
        } else {
            for (auto& entry : next.get_object())
                if (look(entry.value())) return true;
        }
    }
    return false;
}

// Whether a number in it is kept with its digits.
inline bool holds_exact(const json::value& value) {
    return any_exact(value, [](const json::value&) { return true; });
}

// Makes of them what Boost.JSON has, for code that knows no others: the nearest double.
inline void round_numbers(json::value& value) {
    any_exact(value, [](json::value& number) {
        number = to_double(number);
        return false;
    });
}
inline bool holds_exact(const json::object& object) {
    return std::any_of(object.begin(), object.end(),
                       [](const auto& entry) { return holds_exact(entry.value()); });
}
inline void round_numbers(json::object& object) {
    for (auto& entry : object) round_numbers(entry.value());
}

// Rounds those with a fraction or an exponent that lose no digit by it: 1e2, 0.10.
inline void simplify_numbers(json::value& value) {
    any_exact(value, [](json::value& number) {
        if (exact_text(number).find_first_of(".eE") == std::string_view::npos) return false;
        json::value rounded = to_double(number);
        if (std::isfinite(rounded.get_double()) && compare_numbers(rounded, number) == 0)
            number = std::move(rounded);
        return false;
    });
}

// The characters that stand in a string of JSON as they are; of more than one byte, none.
inline constexpr auto json_plain = [] {
    std::array<bool, 256> plain{};
    for (std::size_t c = 0x20; c < 0x80; ++c) plain[c] = c != '"' && c != '\\';
    return plain;
}();

// What becomes of bytes in a string that are not UTF-8: U+FFFD, so that every reader takes it; or
// they stay, in records of our own about files, whose names are bytes.
enum class JsonBytes { repaired, kept };

// Appends a string as JSON.
void append_json_string(std::string& out, std::string_view text,
                        JsonBytes bytes = JsonBytes::repaired);

// Appends what is neither array nor object as JSON.
void append_json_scalar(std::string& out, const json::value& value, JsonBytes bytes);

// What is being written: an array or an object, and how much of it is.
struct JsonLevel {
    const json::array* list;
    const json::object* object;
    std::size_t done = 0;
};

// Appends an array or object as JSON, however deep.
void append_json(std::string& out, JsonLevel whole, JsonBytes bytes = JsonBytes::repaired);
inline void append_json(std::string& out, const json::array& list) {
    append_json(out, JsonLevel{&list, nullptr});
}
inline void append_json(std::string& out, const json::object& object) {
    append_json(out, JsonLevel{nullptr, &object});
}
inline void append_json(std::string& out, const json::value& value) {
    if (value.is_structured())
        append_json(out, JsonLevel{value.if_array(), value.if_object()});
    else
        append_json_scalar(out, value, JsonBytes::repaired);
}

// As JSON what goes to a peer, a person or a file: numbers as they came, doubles as they are read.
// value: a json::value, object or array.
template <class Value>
std::string write_json(const Value& value) {
    std::string out;
    out.reserve(256);
    append_json(out, value);
    return out;
}
// With the bytes of its strings as they are.
inline std::string write_json_bytes(const json::object& object) {
    std::string out;
    append_json(out, JsonLevel{nullptr, &object}, JsonBytes::kept);
    return out;
}
inline std::string write_json(const json::string& text) {
    std::string out;
    append_json_string(out, text);
    return out;
}

}  // namespace ipybox::detail

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/detail/impl/json_number.ipp>
#endif
