#pragma once
#include <ipybox/detail/json_number.hpp>

#include <ipybox/compilation.hpp>

namespace ipybox::detail {

IPYBOX_DECL bool is_number_text(std::string_view text) noexcept {
    const auto digits = [&text] {
        std::size_t count = 0;
        while (count < text.size() && text[count] >= '0' && text[count] <= '9') ++count;
        text.remove_prefix(count);
        return count;
    };
    if (text.starts_with('-')) text.remove_prefix(1);
    const bool zero = text.starts_with('0');
    const auto whole = digits();
    if (whole == 0 || (zero && whole > 1)) return false;
    if (text.starts_with('.')) {
        text.remove_prefix(1);
        if (digits() == 0) return false;
    }
    if (text.starts_with('e') || text.starts_with('E')) {
        text.remove_prefix(1);
        if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
        if (digits() == 0) return false;
    }
    return text.empty();
}

IPYBOX_DECL Decimal::Decimal(std::string_view text) {
    constexpr std::int64_t most = 1'000'000'000'000'000;
    if (text.starts_with('-')) {
        negative = true;
        text.remove_prefix(1);
    }
    const auto exponent_at = std::min(text.find_first_of("eE"), text.size());
    const auto mantissa = text.substr(0, exponent_at);
    const auto dot = std::min(mantissa.find('.'), mantissa.size());
    digits.reserve(mantissa.size());
    digits.append(mantissa.substr(0, dot));
    if (dot < mantissa.size()) digits.append(mantissa.substr(dot + 1));
    std::int64_t exponent = 0;
    if (exponent_at < text.size()) {
        auto rest = text.substr(exponent_at + 1);
        const bool down = rest.starts_with('-');
        if (down || rest.starts_with('+')) rest.remove_prefix(1);
        for (const char digit : rest) exponent = std::min(most, exponent * 10 + (digit - '0'));
        if (down) exponent = -exponent;
    }
    const auto first = digits.find_first_not_of('0');
    if (first == digits.npos) {
        digits.clear();
        negative = false;
        return;
    }
    digits.erase(digits.find_last_not_of('0') + 1);
    digits.erase(0, first);
    point = static_cast<std::int64_t>(dot) - static_cast<std::int64_t>(first) + exponent;
}

IPYBOX_DECL std::optional<bool> is_multiple(const json::value& value, const json::value& step) {
    __extension__ using Wide = unsigned __int128;
    const auto finite = [](const json::value& number) {
        return !number.is_double() || std::isfinite(number.get_double());
    };
    if (!finite(value) || !finite(step)) return false;
    const Decimal a(number_text(value)), b(number_text(step));
    if (a.zero()) return true;
    if (b.zero()) return false;
    if (b.digits.size() > 18) return std::nullopt;
    const auto last = [](const Decimal& number) {
        return number.point - static_cast<std::int64_t>(number.digits.size());
    };
    // A multiple has no digit below the step's last one.
    if (last(a) < last(b)) return false;
    const std::uint64_t divisor = std::stoull(b.digits);
    std::uint64_t rest = 0;
    for (const char digit : a.digits)
        rest = (rest * 10 + static_cast<std::uint64_t>(digit - '0')) % divisor;
    // The zeros that follow its digits, by squaring: their number is up to whoever wrote the
    // exponent.
    Wide power = 10 % divisor, factor = 1 % divisor;
    for (auto zeros = last(a) - last(b); zeros > 0; zeros /= 2) {
        if (zeros % 2 != 0) factor = factor * power % divisor;
        power = power * power % divisor;
    }
    return rest * factor % divisor == 0;
}

IPYBOX_DECL void append_json_string(std::string& out, std::string_view text, JsonBytes bytes) {
    out += '"';
    std::size_t done = 0;
    const auto flush = [&](std::size_t at) { out.append(text, done, at - done); };
    for (std::size_t at = 0; at < text.size();) {
        const auto byte = static_cast<unsigned char>(text[at]);
        if (json_plain[byte]) {
            ++at;
            continue;
        }
        if (byte >= 0x80) {
            const auto point = decode_utf8(text.substr(at));
            if (!point.valid && bytes == JsonBytes::repaired) {
                flush(at);
                out += replacement_character;
                done = at + point.size;
            }
            at += point.size;
            continue;
        }
        flush(at);
        out += '\\';
        switch (byte) {
            case '"':
                out += '"';
                break;
            case '\\':
                out += '\\';
                break;
            case '\b':
                out += 'b';
                break;
            case '\f':
                out += 'f';
                break;
            case '\n':
                out += 'n';
                break;
            case '\r':
                out += 'r';
                break;
            case '\t':
                out += 't';
                break;
            default: {
                constexpr char hex[] = "0123456789abcdef";
                out += "u00";
                out += hex[byte >> 4];
                out += hex[byte & 15];
            }
        }
        done = ++at;
    }
    flush(text.size());
    out += '"';
}

IPYBOX_DECL void append_json_scalar(std::string& out, const json::value& value, JsonBytes bytes) {
    const auto integer = [&out](auto number) {
        char digits[24];
        out.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
    };
    switch (value.kind()) {
        case json::kind::bool_:
            out += value.get_bool() ? "true" : "false";
            break;
        case json::kind::int64:
            integer(value.get_int64());
            break;
        case json::kind::uint64:
            integer(value.get_uint64());
            break;
        case json::kind::double_:
            // JSON has no NaN and no infinity.
            if (std::isfinite(value.get_double()))
                out += std::string_view(DoubleText(value.get_double()));
            else
                out += "null";
            break;
        case json::kind::string:
            if (const auto exact = exact_text(value); !exact.empty())
                out += exact;
            else
                append_json_string(out, value.get_string(), bytes);
            break;
        default:
            out += "null";
    }
}

IPYBOX_DECL void append_json(std::string& out, JsonLevel whole, JsonBytes bytes) {
    std::vector<JsonLevel> open;
    open.reserve(16);
    const auto enter = [&](JsonLevel level) {
        out += level.list ? '[' : '{';
        open.push_back(level);
    };
    const auto append = [&](const json::value& value) {
        if (value.is_structured())
            enter({value.if_array(), value.if_object()});
        else
            append_json_scalar(out, value, bytes);
    };
    enter(whole);
    while (!open.empty()) {
        auto& level = open.back();
        const auto at = level.done++;
        if (at == (level.list ? level.list->size() : level.object->size())) {
            out += level.list ? ']' : '}';
            open.pop_back();
            continue;
        }
        if (at > 0) out += ',';
        if (level.list) {
            append((*level.list)[at]);
        } else {
            const auto& entry = level.object->begin()[static_cast<std::ptrdiff_t>(at)];
            append_json_string(out, entry.key(), bytes);
            out += ':';
            append(entry.value());
        }
    }
}

}  // namespace ipybox::detail
