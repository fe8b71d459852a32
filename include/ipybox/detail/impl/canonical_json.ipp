#pragma once
#include <ipybox/detail/canonical_json.hpp>

#include <charconv>
#include <cmath>
#include <ipybox/compilation.hpp>
#include <vector>

namespace ipybox::detail {

IPYBOX_DECL std::string ecmascript_number(double number) {
    if (number == 0) return "0";
    char text[40];
    const char* end =
        std::to_chars(text, text + sizeof text, std::abs(number), std::chars_format::scientific)
            .ptr;
    std::string digits;
    const char* at = text;
    for (; at < end && *at != 'e'; ++at)
        if (*at != '.') digits += *at;
    int exponent = 0;
    ++at;
    std::from_chars(*at == '+' ? at + 1 : at, end, exponent);
    const int count = static_cast<int>(digits.size());
    const int point = exponent + 1;  // digits before the decimal point
    const auto zeros = [](int size) { return std::string(static_cast<std::size_t>(size), '0'); };
    std::string result = number < 0 ? "-" : "";
    if (point >= count && point <= 21) return result + digits + zeros(point - count);
    if (point > 0 && point <= 21)
        return result + digits.insert(static_cast<std::size_t>(point), 1, '.');
    if (point > -6 && point <= 0) return result + "0." + zeros(-point) + digits;
    result += digits.substr(0, 1);
    if (count > 1) result += '.' + digits.substr(1);
    return result + (exponent < 0 ? "e-" : "e+") + std::to_string(std::abs(exponent));
}

IPYBOX_DECL bool utf16_less(std::string_view a, std::string_view b) noexcept {
    while (!a.empty() && !b.empty()) {
        const auto left = decode_utf8(a), right = decode_utf8(b);
        if (left.value != right.value) {
            const bool pair = left.value > 0xFFFF;
            if (pair == (right.value > 0xFFFF)) return left.value < right.value;
            // Of the two one is a pair of surrogates, which begins with U+D800 or more.
            return pair ? right.value >= 0xE000 : left.value < 0xE000;
        }
        a.remove_prefix(left.size);
        b.remove_prefix(right.size);
    }
    return a.empty() && !b.empty();
}

IPYBOX_DECL void append_canonical(std::string& out, const json::value& value,
                                  CanonicalNumbers numbers);

IPYBOX_DECL void append_canonical(std::string& out, const json::object& object,
                                  CanonicalNumbers numbers) {
    std::vector<const json::key_value_pair*> members;
    members.reserve(object.size());
    for (const auto& entry : object) members.push_back(&entry);
    std::sort(members.begin(), members.end(),
              [](const auto* a, const auto* b) { return utf16_less(a->key(), b->key()); });
    out += '{';
    for (const auto* entry : members) {
        if (entry != members.front()) out += ',';
        append_json_string(out, entry->key());
        out += ':';
        append_canonical(out, entry->value(), numbers);
    }
    out += '}';
}

IPYBOX_DECL void append_canonical(std::string& out, const json::value& value,
                                  CanonicalNumbers numbers) {
    if (const auto* object = value.if_object()) return append_canonical(out, *object, numbers);
    if (const auto* list = value.if_array()) {
        out += '[';
        for (const auto& item : *list) {
            if (&item != list->data()) out += ',';
            append_canonical(out, item, numbers);
        }
        out += ']';
        return;
    }
    if (!is_number(value)) return append_json_scalar(out, value, JsonBytes::repaired);
    constexpr std::int64_t exact_integer = std::int64_t{1} << 53;
    const auto* small = value.if_int64();
    if (small && *small <= exact_integer && *small >= -exact_integer) {
        out += std::to_string(*small);
        return;
    }
    const double nearest = to_double(value);
    const auto written = number_text(value);
    const auto text = std::isfinite(nearest) ? ecmascript_number(nearest) : written;
    const bool same = value.is_double() || !std::isfinite(nearest) ||
                      Decimal(text).compare(Decimal(written)) == 0;
    out += same || numbers == CanonicalNumbers::rounded ? text : written;
}

IPYBOX_DECL std::string canonical_json(const json::value& value, CanonicalNumbers numbers) {
    std::string out;
    append_canonical(out, value, numbers);
    return out;
}

IPYBOX_DECL std::string canonical_json(const json::object& object, CanonicalNumbers numbers) {
    std::string out;
    append_canonical(out, object, numbers);
    return out;
}

}  // namespace ipybox::detail
